"""The frame format: how the transaction log stores groups of transactions. Pure bytes, no files.

A log (``log/<generation>.log``) is a header (see ``header``; magic ``PQ-LOG\\r\\n``), then frames back to back, then
unused space. The flags of the header are:

- 1 = synced: every frame was made durable before it was acknowledged.
- 2 = sealed: a clean close wrote the log.
- 4 = doubted: the previous generation ended in doubt, and must be kept.

The first frame holds one transaction: a checkpoint, then the operations that supplement it. Every other frame is one
group of transactions, written with one call. A sealed log has only its first frame and never gets another. The first
commit after the seal begins the next generation. The seal is in the header, so that cutting the log cannot hide the
clean close.

::

    offset  bytes  field
         0      4  magic          ``PQFr``
         4      4  salt           the low half of the log's
         8      8  number         of the frame: one more than the frame before; goes on over generations
        16      4  body length    bytes of the body
        20      4  transactions   in the body
        24      4  operations     in the body, over all transactions
        28      4  previous       checksum of the frame before; 0 in the first
        32      4  checksum       CRC-32 of the 32 bytes before it and of the body
        36         body           transactions (see ``operations``)
                   8 zero bytes   the end; overwritten by the next frame

The checksum begins with the CRC-32 of the log's salt and the frame's offset. So a frame fails the check if it is stale,
recycled, misplaced, or copied into the payload of an item. ``previous`` chains the frames, so that a missing frame is
noticed.

The frame is the commit point. A crash leaves one of these:

- The whole frame is on disk: the group is committed.
- A part of the frame is missing: its checksum fails, and no valid frame follows. The group was never committed (a torn
  tail).

A frame that fails the check *before* a valid one was damaged later. The reason: a frame is written only after the one
before it was acknowledged. (In a log that is not synced, it may also be a write that never reached the disk. Such a log
ends there.)

The zero bytes at the end distinguish "no frame was begun here" from "a frame was begun here": the unused space of a
recycled file holds old frames.

Worked example: one 1-byte item, inline: body = 4 (count) + 1 + 52 (enqueue) + 49 (block) = 106 bytes, frame = 142.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import CorruptionError
from .checksum import crc32
from .header import seed
from .operations import (
    FieldError,
    Operation,
    Transaction,
    decode_operation,
    decode_transactions,
    unpack,
)

LOG_MAGIC = b"PQ-LOG\r\n"
SYNCED = 1
SEALED = 2
DOUBTED = 4

FRAME_MAGIC = b"PQFr"
FRAME_HEADER_BYTES = 36
END = bytes(8)
"""The zero bytes behind the last frame."""
BODY_BYTES_MAX = 2**32 - 1

_FRAME = struct.Struct("<4sIQIIII")
_U32 = struct.Struct("<I")

CHECKSUM_BYTES = _U32.size
"""Bytes of the checksum, with which the header of a frame ends."""
assert _FRAME.size + CHECKSUM_BYTES == FRAME_HEADER_BYTES


class Frame(NamedTuple):
    """A decoded frame that begins at ``offset`` and ends at ``end``."""

    offset: int
    end: int
    number: int
    previous: int
    checksum: int
    transactions: list[Transaction]


def encode_frame(
    body: bytes, salt: int, offset: int, number: int, previous: int, transactions: int, operations: int
) -> tuple[bytes, int]:
    """Return the header that precedes ``body`` in a frame at ``offset``, and the checksum of the frame."""
    fields = _FRAME.pack(FRAME_MAGIC, salt & 0xFFFFFFFF, number, len(body), transactions, operations, previous)
    checksum = crc32(body, crc32(fields, seed(salt, offset)))
    return fields + _U32.pack(checksum), checksum


class _Opened(NamedTuple):
    """The header of a frame with a valid checksum, and the position of its body in the data."""

    number: int
    previous: int
    checksum: int
    transactions: int
    operations: int
    body_at: int
    end: int


def decode_frame(data: bytes, offset: int, salt: int, file: str, base: int = 0) -> Frame:
    """Check and decode the frame at ``offset`` of the log, of which ``data`` are the bytes from ``base`` on.

    Raises ``CorruptionError``. The caller decides whether the frame is damaged or the log ends there (see
    ``find_frame``). Lengths and counts are compared with the available bytes before anything is allocated for them.
    """
    number, previous, checksum, transactions, operations, body_at, end = _open(data, offset, salt, file, base)
    try:
        decoded = list(decode_transactions(data, body_at, end))
        counts = (len(decoded), sum(map(len, decoded)))
        if counts != (transactions, operations):
            raise FieldError(f"{transactions} transactions with {operations} operations", "{} with {}".format(*counts))
    except FieldError as damage:
        raise CorruptionError(file, offset, *damage.args) from None
    return Frame(offset, end + base, number, previous, checksum, decoded)


def decode_lone_transaction(data: bytes, salt: int, file: str) -> tuple[int, Iterator[Operation]]:
    """Check the frame that begins the data, which must hold one transaction; return its end, and an iterator over its
    operations.

    For a frame that another process wrote: operations are decoded one at a time, and only those that the caller keeps
    stay in memory. Raises ``CorruptionError``, also during the iteration.
    """
    opened = _open(data, 0, salt, file)
    return opened.end, _decode_lone(data, opened, file)


def _decode_lone(data: bytes, opened: _Opened, file: str) -> Iterator[Operation]:
    at, end = opened.body_at, opened.end
    try:
        (count,) = unpack(_U32, data, at, end)
        if (opened.transactions, opened.operations) != (1, count):
            found = f"{opened.transactions} with {opened.operations}"
            raise FieldError(f"one transaction with {count} operations", found)
        at += _U32.size
        for _ in range(count):
            operation, at = decode_operation(data, at, end)
            yield operation
        if at < end:
            raise FieldError("the end of the frame", f"{end - at} bytes more")
    except FieldError as damage:
        raise CorruptionError(file, 0, *damage.args) from None


def _open(data: bytes, offset: int, salt: int, file: str, base: int = 0) -> _Opened:
    """Check the frame at ``offset``, but not the content of its body. Raises ``CorruptionError``."""
    at = offset - base
    body_at = at + FRAME_HEADER_BYTES
    if len(data) < body_at:
        raise CorruptionError(file, offset, "a frame", f"the end of the file, {len(data) - at} bytes on")
    magic, low_salt, number, body_bytes, transactions, operations, previous = _FRAME.unpack_from(data, at)
    if magic != FRAME_MAGIC or low_salt != salt & 0xFFFFFFFF:
        raise CorruptionError(file, offset, "a frame of this log", f"{data[at : at + 8]!r}")
    end = body_at + body_bytes
    if end > len(data):
        raise CorruptionError(file, offset, f"a frame of {body_bytes} bytes", f"{len(data) - body_at} bytes")
    (checksum,) = _U32.unpack_from(data, body_at - _U32.size)
    fields = crc32(data[at : body_at - _U32.size], seed(salt, offset))
    found = crc32(memoryview(data)[body_at:end], fields)
    if found != checksum:
        raise CorruptionError(file, offset, f"a frame with checksum {checksum:#010x}", f"{found:#010x}")
    return _Opened(number, previous, checksum, transactions, operations, body_at, end)


def claimed_bytes(data: bytes, salt: int) -> int:
    """Return the length of the frame that seems to begin the data, or that of a header if there are fewer bytes. Return
    0 if no frame of this log begins there."""
    if len(data) < FRAME_HEADER_BYTES:
        return FRAME_HEADER_BYTES
    magic, low_salt, _, body_bytes, *_ = _FRAME.unpack_from(data)
    return FRAME_HEADER_BYTES + body_bytes if (magic, low_salt) == (FRAME_MAGIC, salt & 0xFFFFFFFF) else 0


def find_frame(data: bytes, start: int, salt: int, file: str) -> Frame | None:
    """Return the first valid frame of this log at or behind ``start``, at any offset; None if there is none.

    The checksum of each candidate covers its own offset. So neither stale bytes nor copies in payloads are found.
    """
    mark = FRAME_MAGIC + _U32.pack(salt & 0xFFFFFFFF)
    while (start := data.find(mark, start)) >= 0:
        try:
            return decode_frame(data, start, salt, file)
        except CorruptionError:
            start += 1
    return None

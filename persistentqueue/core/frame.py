"""The frame format: what the transaction log says. Pure bytes, no files.

A log (``log/<generation>.log``) is a header (see ``header``; magic ``PQ-LOG\r\n``), then frames back to back, then
unused space. The flags are 1 = synced (every frame was made durable before it was acknowledged), 2 = sealed (written
by a clean close) and 4 = doubted (the generation before ended in doubt, and is to be kept). The first frame holds one
transaction: a checkpoint, then what supplements it. Every other frame is one group of transactions, written with one
call. A sealed log is its first frame and never gets another: the first commit after it begins the next generation. The
seal stands in the header so that cutting the log cannot hide that it was closed.

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

The checksum begins with the CRC-32 of the log's salt and the frame's offset, so that a frame that is stale, recycled,
misplaced, or copied into somebody's payload does not check out. ``previous`` chains the frames: none can be missing.

What an incomplete write leaves: the frame is the commit point. All of it on disk: committed. Any part of it missing:
the checksum fails, nothing valid follows, and the group never was (a torn tail). A frame that fails *before* a valid
one was damaged later, since a frame is written only after the one before it was acknowledged (in a log that is not
synced it may also be a write that never happened; such a log ends there). The zero bytes at the end tell "nothing came
here" from "something began here": in a recycled file the unused space holds old frames.

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
"""What stands behind the last frame."""
BODY_BYTES_MAX = 2**32 - 1

_FRAME = struct.Struct("<4sIQIIII")
_U32 = struct.Struct("<I")

assert _FRAME.size + _U32.size == FRAME_HEADER_BYTES


class Frame(NamedTuple):
    """A decoded frame that stands at ``offset`` and ends at ``end``."""

    offset: int
    end: int
    number: int
    previous: int
    checksum: int
    transactions: list[Transaction]


def encode_frame(
    body: bytes, salt: int, offset: int, number: int, previous: int, transactions: int, operations: int
) -> tuple[bytes, int]:
    """The header that goes before ``body`` in a frame at ``offset``, and the frame's checksum."""
    fields = _FRAME.pack(FRAME_MAGIC, salt & 0xFFFFFFFF, number, len(body), transactions, operations, previous)
    checksum = crc32(body, crc32(fields, seed(salt, offset)))
    return fields + _U32.pack(checksum), checksum


class _Opened(NamedTuple):
    """A frame whose checksum fits: what its header says, and where its body is."""

    number: int
    previous: int
    checksum: int
    transactions: int
    operations: int
    body_at: int
    end: int


def decode_frame(data: bytes, offset: int, salt: int, file: str) -> Frame:
    """Check and decode the frame at ``offset`` of the log ``data``.

    Raises ``CorruptionError``: whether the frame is damaged or the log's end is the reader's to tell (see
    ``find_frame``). Lengths and counts are bounded by what is there before anything is made of them.
    """
    number, previous, checksum, transactions, operations, body_at, end = _open(data, offset, salt, file)
    try:
        decoded = list(decode_transactions(data, body_at, end))
        counts = (len(decoded), sum(map(len, decoded)))
        if counts != (transactions, operations):
            raise FieldError(f"{transactions} transactions with {operations} operations", "{} with {}".format(*counts))
    except FieldError as damage:
        raise CorruptionError(file, offset, *damage.args) from None
    return Frame(offset, end, number, previous, checksum, decoded)


def decode_lone_transaction(data: bytes, offset: int, salt: int, file: str) -> tuple[int, Iterator[Operation]]:
    """Check the frame at ``offset``, which must hold one transaction; its end, and its operations one at a time.

    For a frame that another process wrote: nothing is allocated that the caller does not keep. Raises
    ``CorruptionError``, also while the operations are iterated.
    """
    opened = _open(data, offset, salt, file)
    return opened.end, _decode_lone(data, opened, file, offset)


def _decode_lone(data: bytes, opened: _Opened, file: str, offset: int) -> Iterator[Operation]:
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
        raise CorruptionError(file, offset, *damage.args) from None


def _open(data: bytes, offset: int, salt: int, file: str) -> _Opened:
    """Check the frame at ``offset``, but for what its body says. Raises ``CorruptionError``."""
    body_at = offset + FRAME_HEADER_BYTES
    if len(data) < body_at:
        raise CorruptionError(file, offset, "a frame", f"the end of the file, {len(data) - offset} bytes on")
    magic, low_salt, number, body_bytes, transactions, operations, previous = _FRAME.unpack_from(data, offset)
    if magic != FRAME_MAGIC or low_salt != salt & 0xFFFFFFFF:
        raise CorruptionError(file, offset, "a frame of this log", f"{data[offset : offset + 8]!r}")
    end = body_at + body_bytes
    if end > len(data):
        raise CorruptionError(file, offset, f"a frame of {body_bytes} bytes", f"{len(data) - body_at} bytes")
    (checksum,) = _U32.unpack_from(data, body_at - _U32.size)
    fields = crc32(data[offset : body_at - _U32.size], seed(salt, offset))
    found = crc32(memoryview(data)[body_at:end], fields)
    if found != checksum:
        raise CorruptionError(file, offset, f"a frame with checksum {checksum:#010x}", f"{found:#010x}")
    return _Opened(number, previous, checksum, transactions, operations, body_at, end)


def find_frame(data: bytes, start: int, salt: int, file: str) -> Frame | None:
    """The first valid frame of this log at or behind ``start``, wherever it stands; None if there is none.

    Every candidate's checksum covers its own offset, so that neither stale bytes nor copies in payloads are found.
    """
    mark = FRAME_MAGIC + _U32.pack(salt & 0xFFFFFFFF)
    while (start := data.find(mark, start)) >= 0:
        try:
            return decode_frame(data, start, salt, file)
        except CorruptionError:
            start += 1
    return None

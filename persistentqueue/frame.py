"""The frame format: what the transaction log says. Pure bytes, no files.

A log (``log/<generation>.log``) is a header (see ``header``; magic ``PQ-LOG\\r\\n``), then frames back to back, then
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
        36         body           transactions
                   8 zero bytes   the end; overwritten by the next frame

    transaction = u32 count of operations, that many operations
    operation   = u8 kind, then
        1 enqueue          first u64, count u64, segment u64, offset u64, length u64, ordinal u64, checksum u32
        2 enqueue inline   as 1, then the blocks themselves, ``length`` bytes
        3 dequeue          subscription u32, first u64, count u64
        4 segment          number u64, salt u64, capacity u64
        5 marker           version u64, length u16, name in UTF-8
        6 checkpoint       time u64, next sequence, next segment, current segment or 0, frontier (u64 each), then the
                           counts u32 of consumed runs, segments, extents, markers, then each as its u64:
                             consumed run (first, count) · segment (number, salt, capacity, end, ordinal)
                             extent (first, count, segment, offset, length, ordinal, live, live bytes)
                             marker as in 5
        7 compaction       counts u32 of sources and moves, then the sources (segment u64 each) and the moves (first,
                           count, segment, offset, length, ordinal, checksum, live, u64 each)
        8 adoption         segment u64, salt u64, capacity u64, length u16, file name in ASCII
        9 subscription     number u32, first u64, length u16, name in UTF-8
       10 unsubscription   number u32
       11 to 15            see ``pact``
       16 and 17           see ``delivery``

The checksum begins with the CRC-32 of the log's salt and the frame's offset, so that a frame that is stale, recycled,
misplaced, or copied into somebody's payload does not check out. ``previous`` chains the frames: none can be missing.

Operations carry runs, not items: a flush of one item or of a million is one small frame. *Enqueue* says that the blocks
in ``length`` bytes at ``offset`` of ``segment`` hold the sequences ``first …``; ``checksum`` combines the blocks'
header checksums, so that a block which an unfinished transaction left at the same place cannot stand in for them.
*Enqueue inline* carries the blocks as well: the log is then a redo log, and one sync makes a small transaction durable.
*Compaction* says that what was unconsumed in the sources now lies in the moves, and that nothing refers to the sources
any more. The blocks of a move hold ``count`` items for the sequences ``first …``; ``live`` of them were unconsumed when
they were copied, the others are empty, and are not served. *Adoption* says that a file of the inbox (see
``publication``) is a segment from here on, and is renamed to it if it was not yet; in the file itself, with segment 0,
under which name it was published. *Subscription* says that there is another one who consumes, from sequence ``first``
on, of what is not gone; *unsubscription*, that there is one less. Behind a checkpoint a subscription stands for one
that is as far as ``first``, and what it has consumed above that and others have not follows as *dequeue*. If any stands
there they are all that there are, the plain queue's, 0, among them or not; if an unsubscription stands there, there are
none.

What an incomplete write leaves: the frame is the commit point. All of it on disk: committed. Any part of it missing:
the checksum fails, nothing valid follows, and the group never was (a torn tail). A frame that fails *before* a valid
one was damaged later, since a frame is written only after the one before it was acknowledged (in a log that is not
synced it may also be a write that never happened; such a log ends there). The zero bytes at the end tell "nothing came
here" from "something began here": in a recycled file the unused space holds old frames.

Worked example: one 1-byte item, inline: body = 4 (count) + 1 + 52 (enqueue) + 49 (block) = 106 bytes, frame = 142.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from .checksum import crc32
from .delivery import DELIVERY_DECODERS, DELIVERY_ENCODERS, Delivery
from .errors import CorruptionError
from .fields import FieldError, fixed, take, unpack
from .header import seed
from .intervals import Run
from .pact import PACT_DECODERS, PACT_ENCODERS, Pact

LOG_MAGIC = b"PQ-LOG\r\n"
SYNCED = 1
SEALED = 2
DOUBTED = 4

FRAME_MAGIC = b"PQFr"
FRAME_HEADER_BYTES = 36
END = bytes(8)
"""What stands behind the last frame."""
BODY_BYTES_MAX = 2**32 - 1
COUNT_BYTES = 4
"""What each transaction takes beside its operations."""
LONE_ENQUEUE_BYTES = COUNT_BYTES + 53
"""What ``encode_lone_enqueue`` puts before the blocks."""
LONE_DEQUEUE_BYTES = COUNT_BYTES + 21

_FRAME = struct.Struct("<4sIQIIII")
_U32 = struct.Struct("<I")
_ENQUEUE = struct.Struct("<BQQQQQQI")
_LONE_ENQUEUE = struct.Struct("<IBQQQQQQI")
_DEQUEUE = struct.Struct("<BIQQ")
_LONE_DEQUEUE = struct.Struct("<IBIQQ")
_SEGMENT = struct.Struct("<BQQQ")
_MARKER = struct.Struct("<BQH")
_CHECKPOINT = struct.Struct("<BQQQQQIIII")
_COMPACTION = struct.Struct("<BII")
_ADOPTION = struct.Struct("<BQQQH")
_SUBSCRIPTION = struct.Struct("<BIQH")
_UNSUBSCRIPTION = struct.Struct("<BI")
_KIND_ENQUEUE, _KIND_INLINE, _KIND_DEQUEUE, _KIND_SEGMENT, _KIND_MARKER, _KIND_CHECKPOINT = range(1, 7)
_KIND_COMPACTION, _KIND_ADOPTION, _KIND_SUBSCRIPTION, _KIND_UNSUBSCRIPTION = range(7, 11)

assert _FRAME.size + _U32.size == FRAME_HEADER_BYTES
assert (_LONE_ENQUEUE.size, _LONE_DEQUEUE.size) == (LONE_ENQUEUE_BYTES, LONE_DEQUEUE_BYTES)


class Enqueue(NamedTuple):
    """The sequences ``first … first + count - 1`` lie in these blocks. ``inline`` is the blocks, where they came
    along."""

    first: int
    count: int  # type: ignore[assignment]
    segment: int
    offset: int
    length_bytes: int
    ordinal: int
    checksum: int
    inline: bytes | None = None


class Dequeue(NamedTuple):
    """The subscription is done with the sequences ``first … first + count - 1``. The plain queue is subscription 0."""

    subscription: int
    first: int
    count: int  # type: ignore[assignment]


class SegmentCreated(NamedTuple):
    """A segment exists from here on: its number, its salt, and the bytes it was made for."""

    number: int
    salt: int
    capacity_bytes: int


class MarkerSet(NamedTuple):
    """The marker ``name`` stands at ``version`` from here on."""

    name: str
    version: int


class Move(NamedTuple):
    """The sequences ``first … first + count - 1`` were copied to these blocks, ``live`` of them as they were."""

    first: int
    count: int  # type: ignore[assignment]
    segment: int
    offset: int
    length_bytes: int
    ordinal: int
    checksum: int
    live: int


class Compaction(NamedTuple):
    """What is unconsumed in the segments ``sources`` lies where ``moves`` say from here on."""

    sources: list[int]
    moves: list[Move]


class Adoption(NamedTuple):
    """The file ``name`` of the inbox is this segment from here on; 0 in the file itself, which was published so."""

    segment: int
    salt: int
    capacity_bytes: int
    name: str


class SubscriptionOpened(NamedTuple):
    """There is a subscription of this number and name from here on; what is below ``first`` is not for it."""

    number: int
    first: int
    name: str


class SubscriptionClosed(NamedTuple):
    """There is no subscription of this number any more."""

    number: int


class SegmentRow(NamedTuple):
    """A segment in a checkpoint; the next block goes to ``end``, behind ``ordinal`` items."""

    number: int
    salt: int
    capacity_bytes: int
    end: int
    ordinal: int


class ExtentRow(NamedTuple):
    """An extent in a checkpoint: a run of sequences that lies contiguously in a segment."""

    first: int
    count: int  # type: ignore[assignment]
    segment: int
    offset: int
    length_bytes: int
    ordinal: int
    live: int
    live_bytes: int


class Checkpoint(NamedTuple):
    """The whole state. ``current_segment`` is the one to write on in after a clean close, 0 for none."""

    time_ns: int
    next_sequence: int
    next_segment: int
    current_segment: int
    frontier: int
    consumed: list[Run]
    segments: list[SegmentRow]
    extents: list[ExtentRow]
    markers: list[MarkerSet]


Operation = (
    Enqueue
    | Dequeue
    | SegmentCreated
    | MarkerSet
    | Checkpoint
    | Compaction
    | Adoption
    | SubscriptionOpened
    | SubscriptionClosed
    | Pact
    | Delivery
)
Transaction = list[Operation]


class Frame(NamedTuple):
    """A decoded frame that stands at ``offset`` and ends at ``end``."""

    offset: int
    end: int
    number: int
    previous: int
    checksum: int
    transactions: list[Transaction]


_Row = TypeVar("_Row")


def encode_operation(operation: Operation) -> bytes:
    """The bytes of one operation."""
    return _ENCODERS[type(operation)](operation)


def encode_transaction(operations: Sequence[Operation]) -> bytes:
    """The bytes of one transaction: the count of its operations, then the operations."""
    return _U32.pack(len(operations)) + b"".join(map(encode_operation, operations))


def encode_lone_enqueue(
    first: int,
    count: int,
    segment: int,
    offset: int,
    length_bytes: int,
    ordinal: int,
    checksum: int,
    blocks: Sequence[bytes],
    transactions: int,
) -> bytes:
    """The bytes of a transaction that is one ``Enqueue`` with its ``blocks`` inline, and of others without any
    operation: ``transactions`` in all."""
    fields = _LONE_ENQUEUE.pack(1, _KIND_INLINE, first, count, segment, offset, length_bytes, ordinal, checksum)
    return b"".join((fields, *blocks, bytes(COUNT_BYTES * (transactions - 1))))


def encode_lone_dequeue(subscription: int, first: int, count: int, transactions: int) -> bytes:
    """The bytes of a transaction that is one ``Dequeue``, and of others without any operation."""
    return _LONE_DEQUEUE.pack(1, _KIND_DEQUEUE, subscription, first, count) + bytes(COUNT_BYTES * (transactions - 1))


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
        decoded = list(_decode_transactions(data, body_at, end))
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
            operation, at = _decode_operation(data, at, end)
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


def _encode_enqueue(operation: Enqueue) -> bytes:
    kind = _KIND_ENQUEUE if operation.inline is None else _KIND_INLINE
    return _ENQUEUE.pack(kind, *operation[:7]) + (operation.inline or b"")


def _encode_compaction(operation: Compaction) -> bytes:
    counts = _COMPACTION.pack(_KIND_COMPACTION, len(operation.sources), len(operation.moves))
    return counts + _numbers(operation.sources) + _numbers(chain.from_iterable(operation.moves))


def _encode_adoption(operation: Adoption) -> bytes:
    name = operation.name.encode("ascii")
    return _ADOPTION.pack(_KIND_ADOPTION, *operation[:3], len(name)) + name


def _encode_subscription(operation: SubscriptionOpened) -> bytes:
    name = operation.name.encode()
    return _SUBSCRIPTION.pack(_KIND_SUBSCRIPTION, operation.number, operation.first, len(name)) + name


def _encode_marker(marker: MarkerSet) -> bytes:
    name = marker.name.encode()
    return _MARKER.pack(_KIND_MARKER, marker.version, len(name)) + name


def _encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    tables: tuple[Sequence[tuple[int, ...]], ...] = (checkpoint.consumed, checkpoint.segments, checkpoint.extents)
    counts = (*map(len, tables), len(checkpoint.markers))
    parts = [_CHECKPOINT.pack(_KIND_CHECKPOINT, *checkpoint[:5], *counts)]
    parts += [_numbers(chain.from_iterable(table)) for table in tables]
    parts += map(_encode_marker, checkpoint.markers)
    return b"".join(parts)


def _numbers(numbers: Iterable[int]) -> bytes:
    values = array("Q", numbers)
    return struct.pack(f"<{len(values)}Q", *values)


def _decode_transactions(data: bytes, at: int, end: int) -> Iterator[Transaction]:
    while at < end:
        (count,) = unpack(_U32, data, at, end)
        at += _U32.size
        operations: Transaction = []
        for _ in range(count):
            operation, at = _decode_operation(data, at, end)
            operations.append(operation)
        yield operations


def _decode_operation(data: bytes, at: int, end: int) -> tuple[Operation, int]:
    if at >= end:
        raise FieldError("an operation", "the end of the frame")
    decode = _DECODERS.get(data[at])
    if decode is None:
        raise FieldError("an operation of a known kind", f"kind {data[at]}")
    return decode(data, at, end)


def _decode_enqueue(data: bytes, at: int, end: int) -> tuple[Enqueue, int]:
    kind, first, count, segment, offset, length_bytes, ordinal, checksum = unpack(_ENQUEUE, data, at, end)
    at += _ENQUEUE.size
    inline = None
    if kind == _KIND_INLINE:
        inline, at = take(data, at, length_bytes, end)
    return Enqueue(first, count, segment, offset, length_bytes, ordinal, checksum, inline), at


def _decode_marker(data: bytes, at: int, end: int) -> tuple[MarkerSet, int]:
    kind, version, length_bytes = unpack(_MARKER, data, at, end)
    name, at = take(data, at + _MARKER.size, length_bytes, end)
    try:
        if kind == _KIND_MARKER:
            return MarkerSet(name.decode(), version), at
    except UnicodeDecodeError:
        pass
    raise FieldError("a marker", f"kind {kind} named {name!r}")


def _decode_checkpoint(data: bytes, at: int, end: int) -> tuple[Checkpoint, int]:
    _, time_ns, next_sequence, next_segment, current, frontier, *counts = unpack(_CHECKPOINT, data, at, end)
    consumed_count, segment_count, extent_count, marker_count = counts
    at += _CHECKPOINT.size
    consumed, at = _decode_rows(_run, 2, consumed_count, data, at, end)
    segments, at = _decode_rows(SegmentRow._make, 5, segment_count, data, at, end)
    extents, at = _decode_rows(ExtentRow._make, 8, extent_count, data, at, end)
    markers = []
    for _ in range(marker_count):
        marker, at = _decode_marker(data, at, end)
        markers.append(marker)
    rows = (consumed, segments, extents, markers)
    return Checkpoint(time_ns, next_sequence, next_segment, current, frontier, *rows), at


def _decode_compaction(data: bytes, at: int, end: int) -> tuple[Compaction, int]:
    _, source_count, move_count = unpack(_COMPACTION, data, at, end)
    sources, at = _decode_rows(itemgetter(0), 1, source_count, data, at + _COMPACTION.size, end)
    moves, at = _decode_rows(Move._make, 8, move_count, data, at, end)
    return Compaction(sources, moves), at


def _decode_adoption(data: bytes, at: int, end: int) -> tuple[Adoption, int]:
    _, segment, salt, capacity_bytes, length_bytes = unpack(_ADOPTION, data, at, end)
    name, at = take(data, at + _ADOPTION.size, length_bytes, end)
    if not name.isascii():
        raise FieldError("a file name in ASCII", f"{name!r}")
    return Adoption(segment, salt, capacity_bytes, name.decode("ascii")), at


def _decode_subscription(data: bytes, at: int, end: int) -> tuple[SubscriptionOpened, int]:
    _, number, first, length_bytes = unpack(_SUBSCRIPTION, data, at, end)
    name, at = take(data, at + _SUBSCRIPTION.size, length_bytes, end)
    try:
        return SubscriptionOpened(number, first, name.decode()), at
    except UnicodeDecodeError:
        raise FieldError("the name of a subscription in UTF-8", f"{name!r}") from None


def _decode_rows(
    make: Callable[[tuple[int, ...]], _Row], width: int, count: int, data: bytes, at: int, end: int
) -> tuple[list[_Row], int]:
    rows, at = take(data, at, 8 * width * count, end)
    return [make(row) for row in struct.iter_unpack(f"<{width}Q", rows)], at


def _run(row: tuple[int, ...]) -> Run:
    return row[0], row[1]


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Enqueue: _encode_enqueue,
    Dequeue: lambda operation: _DEQUEUE.pack(_KIND_DEQUEUE, *operation),
    SegmentCreated: lambda operation: _SEGMENT.pack(_KIND_SEGMENT, *operation),
    MarkerSet: _encode_marker,
    Checkpoint: _encode_checkpoint,
    Compaction: _encode_compaction,
    Adoption: _encode_adoption,
    SubscriptionOpened: _encode_subscription,
    SubscriptionClosed: lambda operation: _UNSUBSCRIPTION.pack(_KIND_UNSUBSCRIPTION, *operation),
    **PACT_ENCODERS,
    **DELIVERY_ENCODERS,
}
_DECODERS: dict[int, Callable[[bytes, int, int], tuple[Operation, int]]] = {
    _KIND_ENQUEUE: _decode_enqueue,
    _KIND_INLINE: _decode_enqueue,
    _KIND_DEQUEUE: fixed(Dequeue, _DEQUEUE),
    _KIND_SEGMENT: fixed(SegmentCreated, _SEGMENT),
    _KIND_MARKER: _decode_marker,
    _KIND_CHECKPOINT: _decode_checkpoint,
    _KIND_COMPACTION: _decode_compaction,
    _KIND_ADOPTION: _decode_adoption,
    _KIND_SUBSCRIPTION: _decode_subscription,
    _KIND_UNSUBSCRIPTION: fixed(SubscriptionClosed, _UNSUBSCRIPTION),
    **PACT_DECODERS,
    **DELIVERY_DECODERS,
}

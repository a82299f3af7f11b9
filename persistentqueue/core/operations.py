"""The operations of the transaction log: the content of the body of a frame. Pure bytes, no files.

::

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
       11 prepare          transaction 16 bytes, number u64, then the coordinator: length u8, name in ASCII
       12 decision         transaction 16 bytes, count u32 of participants, each as the coordinator in 11
       13 resolution       transaction 16 bytes, committed u8
       14 identity         queue 16 bytes, forgotten u64
       15 prepare          transaction 16 bytes, number u64, queue 16 bytes, then the coordinator as in 11
       16 delivered        subscription u32, first u64, count u64, times u32
       17 delayed          subscription u32, first u64, count u64, due u64, delay u64
       18 decision         transaction 16 bytes, count u32 of participants, each: queue 16 bytes, then as in 11
       19 flushed          connection 16 bytes, number u64

Operations carry runs, not items: a flush of one item or of a million is one small frame.

Items and segments:

- *Enqueue*: the blocks in ``length`` bytes at ``offset`` of ``segment`` hold the sequences ``first …``. ``checksum``
  combines the header checksums of the blocks. So a block that an unfinished transaction left at the same place cannot
  replace them.
- *Enqueue inline* carries the blocks as well. The log is then a redo log, and one sync makes a small transaction
  durable.
- *Dequeue*: the subscription has consumed the sequences ``first … first + count - 1``. The plain queue is subscription
  0.
- *Segment*: from here on there is a segment with this number and salt, made for ``capacity`` bytes.
- *Marker*: from here on the marker has this version.
- *Compaction*: the unconsumed items of the sources are now in the moves, and nothing refers to the sources any more.
  The blocks of a move hold ``count`` items for the sequences ``first …``. ``live`` of them were unconsumed when they
  were copied. The others are empty, and are not served.
- *Adoption*: from here on a file of the inbox (see ``publication``) is a segment. The file is renamed, if that did not
  happen before. The published file itself contains the operation, too, with segment 0 and the name under which it was
  published.

A checkpoint and its supplement:

- *Checkpoint*: the whole state, as the first operation of a generation. The operations behind it in its transaction
  supplement it.
- *Subscription*: from here on there is another subscription. It gets the items from sequence ``first`` on that are not
  gone. Behind a checkpoint, it stands for a subscription whose frontier is ``first``. Sequences that
  it has consumed above its frontier, and other subscriptions have not, follow as *dequeue*.
- *Unsubscription*: from here on the subscription does not exist.
- If a *subscription* stands behind a checkpoint, the list is complete: the plain queue, 0, exists only if it is in the
  list. If an *unsubscription* stands there, there is no subscription.

Transactions over several queues (see ``two_phase``). The queues are neighbours, and are named by their directories:

- *Prepare*: its transaction is the only one of its frame. The operations behind the *prepare* count only if the log of
  the coordinator has a *decision* for it. That decision is in the frame with this ``number``, or nowhere. Kind 15 has
  the identity of the coordinator, too. So no other queue with the same name is mistaken for it.
- *Decision*: the transaction is committed. Behind a checkpoint, it is a decision that a participant may still ask for.
  Kind 18 has the identities of the participants, too. So another queue with the name of a participant cannot settle the
  decision for it.
- *Resolution*: the outcome, repeated in the log that has the *prepare*. It begins the next frame of that log.
- *Identity*: stands behind each checkpoint. ``queue`` is the identity of this queue. The queue keeps it when its name
  changes. A new queue never has it, nor does a queue that a repair made of nothing but blocks. The frames up to the
  ``forgotten`` one may have held decisions that were forgotten, because the directory of a participant was gone. The
  outcome of a transaction that was prepared for one of these frames is unknown if no decision is found.

Logs of older versions lack the *identity*. Their prepares are of kind 11, and their decisions of kind 12.

Deliveries (see ``retries``):

- *Delivered*: the subscription was given the sequences ``first … first + count - 1`` so many ``times`` more, and has
  not consumed them. ``times`` is 1 when they were just handed out. The operation also ends a delay of these sequences.
  With 0 ``times``, the last delivery is not counted: its consumer had no key for them.
- *Delayed*: the sequences are not handed out before ``due``, in nanoseconds since the epoch. ``delay`` is how far off
  ``due`` was then, in nanoseconds. So a clock that was set back holds them no longer than that.
- Behind a checkpoint, both kinds state the deliveries and delays of the sequences that are not consumed. Nothing is
  remembered of a consumed sequence.

Flushes of workers (see ``serving.service``):

- *Flushed*: its transaction is the flush with this ``number`` of a worker's session, which ``connection`` identifies.
  A worker whose owner died before the answer asks the next owner, which finds the outcome here. Behind a checkpoint,
  it is the last flush of a connection that may still ask. Logs of version 1 have none.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, repeat, starmap
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from .intervals import Run


class FieldError(Exception):
    """Internal error: the bytes of a frame are invalid. Arguments: expected, found."""


def unpack(fields: struct.Struct, data: bytes, at: int, end: int) -> tuple[Any, ...]:
    """Return the fields at ``at``. Raises ``FieldError`` if they go beyond ``end``."""
    if at + fields.size > end:
        raise FieldError(f"{fields.size} bytes of an operation", f"{end - at} bytes")
    return fields.unpack_from(data, at)


def take(data: bytes, at: int, length_bytes: int, end: int) -> tuple[bytes, int]:
    """Return ``length_bytes`` bytes at ``at``, and the position behind them. Raises ``FieldError`` if they go beyond
    ``end``.
    """
    if at + length_bytes > end:
        raise FieldError(f"{length_bytes} bytes of an operation", f"{end - at} bytes")
    return data[at : at + length_bytes], at + length_bytes


# --- transactions over several queues --------------------------------------------------------------------------------

_PREPARE = struct.Struct("<B16sQ")
_DECISION = struct.Struct("<B16sI")
_RESOLUTION = struct.Struct("<B16s?")
_IDENTITY = struct.Struct("<B16sQ")
_PREPARE_FOR = struct.Struct("<B16sQ16s")
_KIND_PREPARE, _KIND_DECISION, _KIND_RESOLUTION, _KIND_IDENTITY, _KIND_PREPARE_FOR = range(11, 16)
_KIND_DECISION_FOR = 18  # 16 and 17 are deliveries
IDENTITY_BYTES = 16


class Prepare(NamedTuple):
    """The operations behind this one count only if the coordinator has decided so in its frame with this number.

    ``coordinator`` is the name of a neighbouring queue.
    """

    transaction: bytes
    number: int
    coordinator: str
    queue: bytes = b""
    """The identity of the coordinator; empty in logs of older versions."""


class Participant(NamedTuple):
    """A queue that takes part in a transaction: its name, and its identity. An identity from an older log is empty."""

    name: str
    queue: bytes


class Decision(NamedTuple):
    """The transaction is committed, here and in the participants."""

    transaction: bytes
    participants: tuple[str, ...]
    queues: tuple[bytes, ...] = ()
    """The identity of each participant; empty in logs of older versions."""

    def asking(self) -> tuple[Participant, ...]:
        """Return the name and identity of each participant that may have to ask for this decision."""
        queues = self.queues or (b"",) * len(self.participants)
        return tuple(map(Participant, self.participants, queues))


class Resolution(NamedTuple):
    """The outcome of the transaction that the frame before has prepared."""

    transaction: bytes
    committed: bool


class Identity(NamedTuple):
    """The identity of this queue, and the last frame whose decisions it may have forgotten."""

    queue: bytes
    forgotten: int


def _encode_prepare(operation: Prepare) -> bytes:
    transaction, number, coordinator, queue = operation
    if queue:
        return _PREPARE_FOR.pack(_KIND_PREPARE_FOR, transaction, number, queue) + _encode_name(coordinator)
    return _PREPARE.pack(_KIND_PREPARE, transaction, number) + _encode_name(coordinator)


def _encode_decision(operation: Decision) -> bytes:
    kind = _KIND_DECISION_FOR if operation.queues else _KIND_DECISION
    parts = [each.queue + _encode_name(each.name) for each in operation.asking()]
    return _DECISION.pack(kind, operation.transaction, len(parts)) + b"".join(parts)


def _encode_name(name: str) -> bytes:
    return bytes([len(name)]) + name.encode("ascii")


def _decode_prepare(data: bytes, at: int, end: int) -> tuple[Prepare, int]:
    fields = _PREPARE_FOR if data[at] == _KIND_PREPARE_FOR else _PREPARE
    _, transaction, number, *queue = unpack(fields, data, at, end)
    coordinator, at = _decode_name(data, at + fields.size, end)
    return Prepare(transaction, number, coordinator, *queue), at


def _decode_decision(data: bytes, at: int, end: int) -> tuple[Decision, int]:
    kind, transaction, count = unpack(_DECISION, data, at, end)
    participants, queues, at = [], [], at + _DECISION.size
    for _ in range(count):
        if kind == _KIND_DECISION_FOR:
            queue, at = take(data, at, IDENTITY_BYTES, end)
            queues.append(queue)
        participant, at = _decode_name(data, at, end)
        participants.append(participant)
    return Decision(transaction, tuple(participants), tuple(queues)), at


def _decode_name(data: bytes, at: int, end: int) -> tuple[str, int]:
    """Return the name of a neighbour, which must not lead out of the directory of the queues. Raises ``FieldError``."""
    length, at = take(data, at, 1, end)
    name, at = take(data, at, length[0], end)
    if not name.isascii() or name[:1] in {b"", b"."} or b"/" in name or b"\0" in name:
        raise FieldError("the name of a queue beside this one", f"{name!r}")
    return name.decode("ascii"), at


# --- deliveries ------------------------------------------------------------------------------------------------------

_DELIVERED = struct.Struct("<BIQQI")
_DELAYED = struct.Struct("<BIQQQQ")
_KIND_DELIVERED, _KIND_DELAYED = range(16, 18)
TIMES_MAX = 2**32 - 1


class Delivered(NamedTuple):
    """The subscription was given these sequences so many times more; 0 takes the last delivery back."""

    subscription: int
    first: int
    count: int  # type: ignore[assignment]
    times: int


class Delayed(NamedTuple):
    """The subscription is not given these sequences before ``due_ns``, which was ``delay_ns`` away when this was
    logged.
    """

    subscription: int
    first: int
    count: int  # type: ignore[assignment]
    due_ns: int
    delay_ns: int


# --- flushes of workers ----------------------------------------------------------------------------------------------

_FLUSHED = struct.Struct("<B16sQ")
_KIND_FLUSHED = 19


class Flushed(NamedTuple):
    """The flush with this number of this connection is committed."""

    connection: bytes
    number: int


COUNT_BYTES = 4
"""Bytes that each transaction takes beside its operations."""
LONE_ENQUEUE_BYTES = COUNT_BYTES + 53
"""Bytes that ``encode_lone_enqueue`` puts before the blocks."""
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
assert _LONE_ENQUEUE.size == LONE_ENQUEUE_BYTES
_FEW, _MANY = 8, 256
"""Operations that are decoded as quickly one by one as in groups, and the most that are in one group. It is bounded,
since a group begins with a look for its end."""
_DEQUEUE_KIND = bytes((_KIND_DEQUEUE,))
_pack_dequeue = partial(_DEQUEUE.pack, _KIND_DEQUEUE)


class Enqueue(NamedTuple):
    """The sequences ``first … first + count - 1`` are in these blocks. ``inline`` has the blocks if they are in the
    log.
    """

    first: int
    count: int  # type: ignore[assignment]
    segment: int
    offset: int
    length_bytes: int
    ordinal: int
    checksum: int
    inline: bytes | None = None


class Dequeue(NamedTuple):
    """The subscription has consumed the sequences ``first … first + count - 1``. The plain queue is subscription 0."""

    subscription: int
    first: int
    count: int  # type: ignore[assignment]


def dequeues(subscription: int, runs: Sequence[Run]) -> list[Dequeue]:
    """Return the operations of a subscription that has consumed these runs."""
    fields = zip(repeat(subscription), map(itemgetter(0), runs), map(itemgetter(1), runs))
    return list(map(partial(tuple.__new__, Dequeue), fields))  # a call of ``Dequeue`` takes a step of Python for each


class SegmentCreated(NamedTuple):
    """A segment exists from here on: its number, its salt, and the bytes that it was made for."""

    number: int
    salt: int
    capacity_bytes: int


class MarkerSet(NamedTuple):
    """The marker ``name`` has this ``version`` from here on."""

    name: str
    version: int


class Move(NamedTuple):
    """The sequences ``first … first + count - 1`` were copied to these blocks; ``live`` of them were unconsumed."""

    first: int
    count: int  # type: ignore[assignment]
    segment: int
    offset: int
    length_bytes: int
    ordinal: int
    checksum: int
    live: int


class Compaction(NamedTuple):
    """The unconsumed items of the segments ``sources`` are in the blocks of ``moves`` from here on."""

    sources: list[int]
    moves: list[Move]


class Adoption(NamedTuple):
    """The file ``name`` of the inbox is this segment from here on. In the published file itself, the segment is 0."""

    segment: int
    salt: int
    capacity_bytes: int
    name: str


class SubscriptionOpened(NamedTuple):
    """A subscription with this number and name exists from here on. It gets no item below ``first``."""

    number: int
    first: int
    name: str


class SubscriptionClosed(NamedTuple):
    """The subscription with this number exists no more."""

    number: int


class SegmentRow(NamedTuple):
    """A segment in a checkpoint. The next block goes to ``end``, behind ``ordinal`` items."""

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
    """The whole state. ``current_segment`` is the segment to continue after a clean close, or 0."""

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
    | Prepare
    | Decision
    | Resolution
    | Identity
    | Delivered
    | Delayed
    | Flushed
)
Transaction = list[Operation]


_Row = TypeVar("_Row")


def encode_operation(operation: Operation) -> bytes:
    """Return the bytes of one operation."""
    return _ENCODERS[type(operation)](operation)


def encode_transaction(operations: Sequence[Operation]) -> bytes:
    """Return the bytes of one transaction: the count of its operations, then the operations."""
    parts = [_U32.pack(len(operations))]
    for kind, alike in groupby(operations, type):
        encode_all = partial(starmap, _pack_dequeue) if kind is Dequeue else partial(map, _ENCODERS[kind])
        parts += encode_all(alike)
    return b"".join(parts)


def encode_lone_enqueue(
    operations: int,
    first: int,
    count: int,
    segment: int,
    offset: int,
    length_bytes: int,
    ordinal: int,
    checksum: int,
    blocks: Sequence[bytes],
    rest: bytes,
) -> bytes:
    """Return the bytes of a frame whose first operation is an ``Enqueue`` with its ``blocks`` inline, and the only one
    with items.

    Its transaction has so many ``operations``. The ``rest`` comes from ``encode_rest``.
    """
    kind = _KIND_INLINE
    fields = _LONE_ENQUEUE.pack(operations, kind, first, count, segment, offset, length_bytes, ordinal, checksum)
    return b"".join((fields, *blocks, rest))


def encode_rest(flushes: Sequence[tuple[bytes, int] | None]) -> bytes:
    """Return the bytes of the ``Flushed`` of some transactions, each None without one. The first one is already
    begun."""
    first, *others = (b"" if each is None else _FLUSHED.pack(_KIND_FLUSHED, *each) for each in flushes)
    return first + b"".join([_U32.pack(1 if each else 0) + each for each in others])


def encode_lone_dequeue(subscription: int, first: int, count: int, transactions: int) -> bytes:
    """Return the bytes of ``transactions`` transactions: one ``Dequeue``, and the others empty."""
    return _LONE_DEQUEUE.pack(1, _KIND_DEQUEUE, subscription, first, count) + bytes(COUNT_BYTES * (transactions - 1))


def encode_dequeues(
    subscription: int, runs: Sequence[Sequence[Run]], flushes: Sequence[tuple[bytes, int] | None]
) -> bytes:
    """Return the bytes of transactions that consume these ``runs`` each, and have a ``Flushed`` if theirs is not
    None."""
    parts, pack = [], partial(_pack_dequeue, subscription)
    for its_runs, flush in zip(runs, flushes, strict=True):
        parts.append(_U32.pack(len(its_runs) + (flush is not None)))
        parts += starmap(pack, its_runs)
        if flush is not None:
            parts.append(_FLUSHED.pack(_KIND_FLUSHED, *flush))
    return b"".join(parts)


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


def encode_marker(marker: MarkerSet) -> bytes:
    """Return the bytes of a marker, in a frame and in a checkpoint."""
    name = marker.name.encode()
    return _MARKER.pack(_KIND_MARKER, marker.version, len(name)) + name


def _encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    tables: tuple[Sequence[tuple[int, ...]], ...] = (checkpoint.consumed, checkpoint.segments, checkpoint.extents)
    counts = (*map(len, tables), len(checkpoint.markers))
    parts = [_CHECKPOINT.pack(_KIND_CHECKPOINT, *checkpoint[:5], *counts)]
    parts += [_numbers(chain.from_iterable(table)) for table in tables]
    parts += map(encode_marker, checkpoint.markers)
    return b"".join(parts)


def _numbers(numbers: Iterable[int]) -> bytes:
    values = array("Q", numbers)
    return struct.pack(f"<{len(values)}Q", *values)


def decode_transactions(data: bytes, at: int, end: int) -> Iterator[Transaction]:
    """Yield the transactions of a frame's body, which lies at ``at … end - 1``. Raises ``FieldError``."""
    while at < end:
        (count,) = unpack(_U32, data, at, end)
        at += _U32.size
        operations: Transaction = []
        while left := count - len(operations):
            if left > _FEW and data[at : at + 1] == _DEQUEUE_KIND:
                consumed, at = _decode_dequeues(data, at, end, min(left, _MANY))
                operations += consumed
            if len(operations) < count:
                operation, at = decode_operation(data, at, end)
                operations.append(operation)
        yield operations


def decode_operation(data: bytes, at: int, end: int) -> tuple[Operation, int]:
    """Return the operation at ``at``, and the offset of the next one. Raises ``FieldError``."""
    if at >= end:
        raise FieldError("an operation", "the end of the frame")
    decode = _DECODERS.get(data[at])
    if decode is None:
        raise FieldError("an operation of a known kind", f"kind {data[at]}")
    return decode(data, at, end)


def _decode_dequeues(data: bytes, at: int, end: int, most: int) -> tuple[Iterable[Dequeue], int]:
    """Return the dequeues from ``at`` on that follow each other, up to ``most`` of them, and the offset behind them.

    All of them have one length. So a byte of their kind at each multiple of it tells how many they are.
    """
    size = _DEQUEUE.size
    kinds = data[at : at + size * min(most, (end - at) // size) : size]
    stop = at + size * (len(kinds) - len(kinds.lstrip(_DEQUEUE_KIND)))
    fields = map(itemgetter(1, 2, 3), _DEQUEUE.iter_unpack(data[at:stop]))
    return map(partial(tuple.__new__, Dequeue), fields), stop


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
    consumed, at = _decode_rows(itemgetter(0, 1), 2, consumed_count, data, at, end)
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


def _encode_fixed(kind: int, fields: struct.Struct, operation: tuple[Any, ...]) -> bytes:
    return fields.pack(kind, *operation)


def _decode_fixed(
    make: Callable[..., Operation], fields: struct.Struct, data: bytes, at: int, end: int
) -> tuple[Operation, int]:
    return make(*unpack(fields, data, at, end)[1:]), at + fields.size


_FIXED: dict[int, tuple[type[Operation], struct.Struct]] = {
    _KIND_DEQUEUE: (Dequeue, _DEQUEUE),
    _KIND_SEGMENT: (SegmentCreated, _SEGMENT),
    _KIND_UNSUBSCRIPTION: (SubscriptionClosed, _UNSUBSCRIPTION),
    _KIND_RESOLUTION: (Resolution, _RESOLUTION),
    _KIND_IDENTITY: (Identity, _IDENTITY),
    _KIND_DELIVERED: (Delivered, _DELIVERED),
    _KIND_DELAYED: (Delayed, _DELAYED),
    _KIND_FLUSHED: (Flushed, _FLUSHED),
}
"""Operations that consist of their kind and these fields."""
_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Enqueue: _encode_enqueue,
    MarkerSet: encode_marker,
    Checkpoint: _encode_checkpoint,
    Compaction: _encode_compaction,
    Adoption: _encode_adoption,
    SubscriptionOpened: _encode_subscription,
    Prepare: _encode_prepare,
    Decision: _encode_decision,
    **{make: partial(_encode_fixed, kind, fields) for kind, (make, fields) in _FIXED.items()},
}
_DECODERS: dict[int, Callable[[bytes, int, int], tuple[Operation, int]]] = {
    _KIND_ENQUEUE: _decode_enqueue,
    _KIND_INLINE: _decode_enqueue,
    _KIND_MARKER: _decode_marker,
    _KIND_CHECKPOINT: _decode_checkpoint,
    _KIND_COMPACTION: _decode_compaction,
    _KIND_ADOPTION: _decode_adoption,
    _KIND_SUBSCRIPTION: _decode_subscription,
    _KIND_PREPARE: _decode_prepare,
    _KIND_PREPARE_FOR: _decode_prepare,
    _KIND_DECISION: _decode_decision,
    _KIND_DECISION_FOR: _decode_decision,
    **{kind: partial(_decode_fixed, make, fields) for kind, (make, fields) in _FIXED.items()},
}

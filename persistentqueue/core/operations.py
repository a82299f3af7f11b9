"""The operations of the transaction log: what the body of a frame says. Pure bytes, no files.

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
       11 to 15, and 18    of transactions over several queues, below
       16 and 17           of deliveries, below

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

Transactions over several queues (see ``two_phase``)::

       11 prepare          transaction 16 bytes, number u64, then the coordinator: length u8, name in ASCII
       12 decision         transaction 16 bytes, count u32 of participants, each as in 11
       13 resolution       transaction 16 bytes, committed u8
       14 identity         queue 16 bytes, forgotten u64
       15 prepare          transaction 16 bytes, number u64, queue 16 bytes, then the coordinator as in 11
       18 decision         transaction 16 bytes, count u32 of participants, each: queue 16 bytes, then as in 11

The queues are named by their directories, which are neighbours. What stands behind a *prepare* in its transaction, the
only one of its frame, counts only if it is decided by a *decision* in the log of the coordinator, in the frame with
that ``number`` or nowhere. The next frame of the log that has the prepare begins with the *resolution*, which says so
once more. A *decision* behind a checkpoint is one that a participant may have to ask for.

An *identity* stands behind each checkpoint: the ``queue`` has it for ever, whatever it is called, and no other has it
that was made anew, also by a repair that had nothing but blocks. A *prepare* has that of its coordinator, so that no
other is taken for it that has its name. The decisions in frames up to the ``forgotten`` one may have been forgotten for
a participant whose directory was gone: of what was prepared for these, and is not decided, nobody knows what became.
A *decision* of kind 18 has the identities of its participants: another queue that has the name of one of them settles
nothing for it. Older logs lack an identity, and their prepares, of kind 11, and their decisions, of kind 12, too.

Deliveries (see ``retries``)::

       16 delivered        subscription u32, first u64, count u64, times u32
       17 delayed          subscription u32, first u64, count u64, due u64, delay u64

*Delivered* says that the subscription was given the sequences ``first … first + count - 1`` so many ``times`` more, one
where they were handed out just then, and is not done with any of them; a delay of theirs is over. *Delayed* says that
they are not to be handed out before ``due``, in nanoseconds since the epoch; ``delay`` is how long that was then, so
that a clock which was set back meanwhile holds them no longer than that. Behind a checkpoint both say what there is of
this, without a delivery that was consumed. Of a sequence that is consumed nothing is remembered.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from .intervals import Run

_Made = TypeVar("_Made")


class FieldError(Exception):
    """Internal: what is wrong with the bytes of a frame. Arguments: expected, found."""


def fixed(make: Callable[..., _Made], fields: struct.Struct) -> Callable[[bytes, int, int], tuple[_Made, int]]:
    """What decodes an operation that is just these fields, behind its kind."""
    return lambda data, at, end: (make(*unpack(fields, data, at, end)[1:]), at + fields.size)


def unpack(fields: struct.Struct, data: bytes, at: int, end: int) -> tuple[Any, ...]:
    """The fields that stand there. Raises ``FieldError``."""
    if at + fields.size > end:
        raise FieldError(f"{fields.size} bytes of an operation", f"{end - at} bytes")
    return fields.unpack_from(data, at)


def take(data: bytes, at: int, length_bytes: int, end: int) -> tuple[bytes, int]:
    """So many bytes, and where the next ones are. Raises ``FieldError``."""
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
_KIND_DECISION_FOR = 18  # those between are of deliveries
RESOLUTION_BYTES = _RESOLUTION.size
IDENTITY_BYTES = 16


class Prepare(NamedTuple):
    """What follows in this transaction counts if the coordinator, the neighbour of this name, has decided so in the
    frame of this number."""

    transaction: bytes
    number: int
    coordinator: str
    queue: bytes = b""
    """The coordinator's identity; of older logs empty."""


class Participant(NamedTuple):
    """A queue that takes part in a transaction: its name, and its identity, which is empty if an older log says so."""

    name: str
    queue: bytes


class Decision(NamedTuple):
    """The transaction is committed, here and in the participants."""

    transaction: bytes
    participants: tuple[str, ...]
    queues: tuple[bytes, ...] = ()
    """The identity of each participant; of older logs empty."""

    def asking(self) -> tuple[Participant, ...]:
        """Return who may have to ask for it, by name and identity."""
        queues = self.queues or (b"",) * len(self.participants)
        return tuple(map(Participant, self.participants, queues))


class Resolution(NamedTuple):
    """What became of the transaction that the frame before has prepared."""

    transaction: bytes
    committed: bool


class Identity(NamedTuple):
    """Which queue this is, and up to which frame it may have forgotten decisions that somebody may come and ask for."""

    queue: bytes
    forgotten: int


Pact = Prepare | Decision | Resolution | Identity


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
    _, transaction, number = unpack(_PREPARE, data, at, end)
    coordinator, at = _decode_name(data, at + _PREPARE.size, end)
    return Prepare(transaction, number, coordinator), at


def _decode_prepare_for(data: bytes, at: int, end: int) -> tuple[Prepare, int]:
    _, transaction, number, queue = unpack(_PREPARE_FOR, data, at, end)
    coordinator, at = _decode_name(data, at + _PREPARE_FOR.size, end)
    return Prepare(transaction, number, coordinator, queue), at


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
    """The name of a neighbour: nothing that leads anywhere else."""
    length, at = take(data, at, 1, end)
    name, at = take(data, at, length[0], end)
    if not name.isascii() or name[:1] in {b"", b"."} or b"/" in name or b"\0" in name:
        raise FieldError("the name of a queue beside this one", f"{name!r}")
    return name.decode("ascii"), at


PACT_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Prepare: _encode_prepare,
    Decision: _encode_decision,
    Resolution: lambda operation: _RESOLUTION.pack(_KIND_RESOLUTION, *operation),
    Identity: lambda operation: _IDENTITY.pack(_KIND_IDENTITY, *operation),
}
PACT_DECODERS: dict[int, Callable[[bytes, int, int], tuple[Pact, int]]] = {
    _KIND_PREPARE: _decode_prepare,
    _KIND_DECISION: _decode_decision,
    _KIND_RESOLUTION: fixed(Resolution, _RESOLUTION),
    _KIND_IDENTITY: fixed(Identity, _IDENTITY),
    _KIND_PREPARE_FOR: _decode_prepare_for,
    _KIND_DECISION_FOR: _decode_decision,
}


# --- deliveries ------------------------------------------------------------------------------------------------------

_DELIVERED = struct.Struct("<BIQQI")
_DELAYED = struct.Struct("<BIQQQQ")
_KIND_DELIVERED, _KIND_DELAYED = range(16, 18)
TIMES_MAX = 2**32 - 1


class Delivered(NamedTuple):
    """The subscription was given these sequences so many times more."""

    subscription: int
    first: int
    count: int  # type: ignore[assignment]
    times: int


class Delayed(NamedTuple):
    """The subscription is not given these sequences before then, which was so far off."""

    subscription: int
    first: int
    count: int  # type: ignore[assignment]
    due_ns: int
    delay_ns: int


Delivery = Delivered | Delayed

DELIVERY_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Delivered: lambda operation: _DELIVERED.pack(_KIND_DELIVERED, *operation),
    Delayed: lambda operation: _DELAYED.pack(_KIND_DELAYED, *operation),
}
DELIVERY_DECODERS: dict[int, Callable[[bytes, int, int], tuple[Delivery, int]]] = {
    _KIND_DELIVERED: fixed(Delivered, _DELIVERED),
    _KIND_DELAYED: fixed(Delayed, _DELAYED),
}


COUNT_BYTES = 4
"""What each transaction takes beside its operations."""
LONE_ENQUEUE_BYTES = COUNT_BYTES + 53
"""What ``encode_lone_enqueue`` puts before the blocks."""
LONE_DEQUEUE_BYTES = COUNT_BYTES + 21
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


def decode_transactions(data: bytes, at: int, end: int) -> Iterator[Transaction]:
    while at < end:
        (count,) = unpack(_U32, data, at, end)
        at += _U32.size
        operations: Transaction = []
        for _ in range(count):
            operation, at = decode_operation(data, at, end)
            operations.append(operation)
        yield operations


def decode_operation(data: bytes, at: int, end: int) -> tuple[Operation, int]:
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

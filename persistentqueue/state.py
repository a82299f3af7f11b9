"""The state machine: what the operations of the log add up to. Pure data: no files, clocks, threads.

The same code applies a frame that was just written and one that recovery reads. Two halves:

- ``State`` is durable: what a checkpoint holds. Items are numbered by a *sequence*, given at commit, counted from 0. An
  *extent* is a run of sequences that lies contiguously in a segment. What was consumed is a *frontier* (all below it)
  and the runs above it that were consumed out of order.
- ``Ready`` is volatile: what may be dequeued now, and what sessions hold.

Memory follows the number of extents and gaps, never the number of items. Invariants, checked by ``fsck``:

1. Extents are disjoint and sorted; each unconsumed sequence below ``next_sequence`` lies in exactly one.
2. An extent's ``live`` is the number of its unconsumed sequences, and above 0.
3. A segment's ``live`` is the sum over its extents; ``drained`` is the segments where it is 0. ``live_bytes`` is summed
   up over extents and segments alike.
4. ready + held + damaged + consumed = next_sequence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter

from .frame import (
    Adoption,
    Checkpoint,
    Compaction,
    Decision,
    Dequeue,
    Enqueue,
    ExtentRow,
    MarkerSet,
    Move,
    Operation,
    SegmentCreated,
    SegmentRow,
)
from .header import HEADER_BYTES
from .intervals import Intervals, Run


class StateError(ValueError):
    """An operation contradicts the state: the log is not what was written. Arguments: expected, found."""


class Extent:
    """Sequences ``first … end - 1``: ``length_bytes`` of blocks at ``offset`` of a segment, behind ``ordinal``
    items."""

    __slots__ = ("count", "first", "length_bytes", "live", "live_bytes", "offset", "ordinal", "segment")

    def __init__(self, row: ExtentRow) -> None:
        self.first, self.count, self.segment, self.offset, self.length_bytes, self.ordinal, self.live, _ = row
        self.live_bytes = row.live_bytes

    @property
    def end(self) -> int:
        """The sequence behind the last."""
        return self.first + self.count

    def row(self) -> ExtentRow:
        """As a checkpoint writes it."""
        return ExtentRow(
            self.first,
            self.count,
            self.segment,
            self.offset,
            self.length_bytes,
            self.ordinal,
            self.live,
            self.live_bytes,
        )


class SegmentInfo:
    """What the log knows of a segment. ``end`` and ``ordinal`` are behind its last logged block."""

    __slots__ = ("capacity_bytes", "end", "live", "live_bytes", "number", "ordinal", "salt")

    def __init__(self, row: SegmentRow) -> None:
        self.number, self.salt, self.capacity_bytes, self.end, self.ordinal = row
        self.live = 0
        self.live_bytes = 0


class State:
    """The durable half. ``apply`` is the only way to change it."""

    def __init__(self) -> None:
        self.next_sequence = 0
        self.next_segment = 1
        self.current_segment = 0
        self.frontier = 0
        self.consumed = Intervals()
        self.segments: dict[int, SegmentInfo] = {}
        self.drained: set[int] = set()
        self.extents: list[Extent] = []
        self.markers: dict[str, int] = {}
        self.live_bytes = 0
        """Bytes of blocks that hold unconsumed items; within a block that is partly consumed, by average."""
        self.decisions: dict[bytes, frozenset[str]] = {}
        """The transactions over several queues that were decided here, and who may have to ask for each."""
        self._firsts: list[int] = []

    @property
    def consumed_count(self) -> int:
        """How many items were consumed since the queue was made."""
        return self.frontier + len(self.consumed)

    def apply(self, operation: Operation) -> None:
        """Apply one operation. Raises ``StateError`` when it contradicts the state, which then is not to be used."""
        if isinstance(operation, Enqueue):
            self.enqueue(*operation[:6])
        elif isinstance(operation, Dequeue):
            self.dequeue(*operation)
        elif isinstance(operation, SegmentCreated | Adoption):
            self._add_segment(*operation[:3])
        elif isinstance(operation, MarkerSet):
            self.markers[operation.name] = operation.version
        elif isinstance(operation, Compaction):
            self.compact(*operation)
        elif isinstance(operation, Decision):
            self.decide(*operation)
        else:
            raise StateError("an operation of a transaction", f"a {type(operation).__name__.lower()}")

    def _add_segment(self, number: int, salt: int, capacity_bytes: int) -> None:
        if number in self.segments:
            raise StateError("a segment that is not known", f"{number}")
        # One that was copied to is told of when the copy is done, and younger ones may have been before.
        self.next_segment = max(self.next_segment, number + 1)
        self.segments[number] = SegmentInfo(SegmentRow(number, salt, capacity_bytes, 0, 0))
        self.drained.add(number)

    def skip(self, count: int) -> None:
        """Give out sequences that no item has: as if they were enqueued and consumed."""
        first = self.next_sequence
        if first + count >= 2**63:
            raise StateError("a number of items that a queue can have had", f"{first + count}")
        self.next_sequence += count
        if self.frontier == first:
            self.frontier += count
        else:
            self.consumed.add(first, count)

    def enqueue(self, first: int, count: int, number: int, offset: int, length_bytes: int, ordinal: int) -> None:
        """Apply the fields of an ``Enqueue``; ``number`` is its segment's."""
        segment = self.segments.get(number)
        if segment is None or first != self.next_sequence or count == 0 or offset < HEADER_BYTES:
            raise StateError(
                f"sequence {self.next_sequence}, in a known segment, behind its header",
                f"{count} from sequence {first} at offset {offset} of segment {number}",
            )
        self.next_sequence = first + count
        # Blocks that a session spilled may be committed after blocks that were written behind them.
        end, end_ordinal = offset + length_bytes, ordinal + count
        if end > segment.end:
            segment.end = end
        if end_ordinal > segment.ordinal:
            segment.ordinal = end_ordinal
        if segment.live == 0:
            self.drained.discard(number)
        segment.live += count
        segment.live_bytes += length_bytes
        self.live_bytes += length_bytes
        if self.extents:
            last = self.extents[-1]
            if (
                last.offset + last.length_bytes == offset
                and last.segment == number
                and last.first + last.count == first
                and last.ordinal + last.count == ordinal
            ):
                last.count += count
                last.length_bytes += length_bytes
                last.live += count
                last.live_bytes += length_bytes
                return
        self.extents.append(Extent(ExtentRow(first, count, number, offset, length_bytes, ordinal, count, length_bytes)))
        self._firsts.append(first)

    def dequeue(self, subscription: int, first: int, count: int) -> None:
        """Apply the fields of a ``Dequeue``."""
        end = first + count
        if (
            subscription != 0
            or count == 0
            or first < self.frontier
            or end > self.next_sequence
            or (len(self.consumed) and self.consumed.overlap(first, end))
        ):
            raise StateError(
                f"sequences of {self.frontier} to {self.next_sequence} that are not consumed",
                f"{count} from {first} of subscription {subscription}",
            )
        if first == self.frontier:
            self.frontier = end
            if len(self.consumed):
                self._advance()
        else:
            self.consumed.add(first, count)
        self._release(first, end)

    def compact(self, sources: Sequence[int], moves: Sequence[Move]) -> None:
        """Apply the fields of a ``Compaction``. What was consumed since it was copied does not move."""
        gone = set(sources)
        if not gone <= self.segments.keys():
            raise StateError("a compaction of known segments", f"{sorted(gone)}")
        extents = [extent for extent in self.extents if extent.segment not in gone]
        moved = [extent for move in moves if (extent := self._moved(move, gone)) is not None]
        extents = sorted(extents + moved, key=attrgetter("first"))
        live = sum(self.segments[number].live for number in gone)
        if live != sum(extent.live for extent in moved) or any(a.end > b.first for a, b in pairwise(extents)):
            raise StateError(f"moves of all {live} live items of the segments {sorted(gone)}", f"{len(moves)} moves")
        for number in gone:
            self.live_bytes -= self.segments[number].live_bytes
            self.segments[number].live = self.segments[number].live_bytes = 0
        for extent in moved:
            segment = self.segments[extent.segment]
            segment.live += extent.live
            segment.live_bytes += extent.live_bytes
            self.live_bytes += extent.live_bytes
            self.drained.discard(extent.segment)
        self.drained |= gone
        self.extents = extents
        self._firsts = [extent.first for extent in extents]

    def _moved(self, move: Move, gone: set[int]) -> Extent | None:
        """The extent that a move makes; None where nothing of it is unconsumed any more."""
        first, count, number, offset, length_bytes, ordinal, _, copied = move
        segment, end = self.segments.get(number), first + count
        if segment is None or number in gone or offset < HEADER_BYTES or not 0 < copied <= count:
            raise StateError("a move to a known segment that stays, behind its header", f"{move}")
        if end > self.next_sequence:
            raise StateError(f"moves of sequences below {self.next_sequence}", f"{move}")
        segment.end = max(segment.end, offset + length_bytes)
        segment.ordinal = max(segment.ordinal, ordinal + count)
        live = self.live_between(first, end)
        if live > copied:
            raise StateError(f"no more than {copied} live items in {move}", f"{live}")
        if not live:
            return None
        return Extent(
            ExtentRow(first, count, number, offset, length_bytes, ordinal, live, length_bytes * live // copied)
        )

    def decide(self, transaction: bytes, participants: Sequence[str]) -> None:
        """Apply the fields of a ``Decision``. Who takes part has settled what was decided for him before: his log says
        so, in the frame that prepares this one."""
        if transaction in self.decisions or not participants:
            raise StateError("a decision for somebody, and no other", f"{transaction.hex()} for {participants}")
        for other in list(self.decisions):
            for name in participants:
                self.forget(other, name)
        self.decisions[transaction] = frozenset(participants)

    def forget(self, transaction: bytes, name: str) -> None:
        """This participant needs the decision no more, if there is one."""
        left = self.decisions.pop(transaction, frozenset()) - {name}
        if left:
            self.decisions[transaction] = left

    def live_between(self, first: int, end: int) -> int:
        """How many of the sequences ``first … end - 1`` are not consumed."""
        start = max(first, self.frontier)
        return end - start - self.consumed.overlap(start, end) if start < end else 0

    def unconsumed(self, first: int, end: int) -> list[Run]:
        """The runs of the sequences ``first … end - 1`` that are not consumed."""
        runs: list[Run] = []
        at = max(first, self.frontier)
        for start, count in [*self.consumed.between(at, end), (end, 0)]:
            if at < start:
                runs.append((at, start - at))
            at = max(at, start + count)
        return runs

    def find(self, sequence: int) -> Extent:
        """The extent that holds the sequence."""
        at = bisect_right(self._firsts, sequence) - 1
        if at < 0 or sequence >= self.extents[at].end:
            raise StateError(f"an extent with sequence {sequence}", "none")
        return self.extents[at]

    def extents_from(self, sequence: int) -> Iterator[Extent]:
        """The extents from the one on that holds the sequence, or the last one before it."""
        for at in range(max(bisect_right(self._firsts, sequence) - 1, 0), len(self.extents)):
            yield self.extents[at]

    def share_bytes(self, runs: Iterable[Run]) -> int:
        """What consuming these runs would take off ``live_bytes``, if it were done now."""
        total_bytes = 0
        for first, count in runs:
            at, left = bisect_right(self._firsts, first) - 1, count
            while left:
                extent = self.extents[at]
                part = min(left, extent.end - max(first, extent.first))
                total_bytes += extent.live_bytes * part // extent.live
                left -= part
                at += 1
        return total_bytes

    def checkpoint(self, time_ns: int, current: SegmentRow | None, kept: Iterable[int]) -> Checkpoint:
        """The whole state as one operation.

        ``current`` is the segment that is being written. Drained segments are left out, which is
        what retires them, except for the current one and those in ``kept``.
        """
        rows = [
            SegmentRow(segment.number, segment.salt, segment.capacity_bytes, segment.end, segment.ordinal)
            for segment in self.segments.values()
            if segment.live or segment.number in kept
        ]
        if current is not None:
            rows = [row for row in rows if row.number != current.number] + [current]
        markers = [MarkerSet(name, version) for name, version in self.markers.items()]
        return Checkpoint(
            time_ns,
            self.next_sequence,
            self.next_segment,
            current.number if current is not None else 0,
            self.frontier,
            self.consumed.runs(),
            rows,
            [extent.row() for extent in self.extents],
            markers,
        )

    def supplement(self) -> list[Operation]:
        """The rest of the state, for which a checkpoint has no place: it follows it in its transaction."""
        return [Decision(transaction, tuple(sorted(names))) for transaction, names in self.decisions.items()]

    def retire(self, number: int) -> None:
        """Forget a drained segment; a checkpoint without it is durable."""
        del self.segments[number]
        self.drained.remove(number)

    @classmethod
    def restore(cls, checkpoint: Checkpoint, supplement: Sequence[Operation] = ()) -> State:
        """The state that a checkpoint and its supplement hold. Raises ``StateError`` when it contradicts itself."""
        state = cls()
        state.next_sequence = checkpoint.next_sequence
        state.next_segment = checkpoint.next_segment
        state.current_segment = checkpoint.current_segment
        state.frontier = checkpoint.frontier
        above = checkpoint.frontier
        for first, count in checkpoint.consumed:
            if first <= above or not 0 < count <= checkpoint.next_sequence - first:
                raise StateError("consumed runs in order, with gaps", f"{count} from {first}, behind {above}")
            state.consumed.add(first, count)
            above = first + count
        for row in checkpoint.segments:
            state.segments[row.number] = SegmentInfo(row)
        for extent_row in checkpoint.extents:
            state._restore_extent(Extent(extent_row))
        state.drained = {number for number, segment in state.segments.items() if not segment.live}
        state.markers = {marker.name: marker.version for marker in checkpoint.markers}
        live = sum(extent.live for extent in state.extents)
        if live + state.consumed_count != state.next_sequence:
            raise StateError(f"extents with {state.next_sequence - state.consumed_count} live items", f"{live}")
        for operation in supplement:
            if not isinstance(operation, Decision) or operation.transaction in state.decisions:
                raise StateError("what supplements a checkpoint", f"{operation}")
            state.decisions[operation.transaction] = frozenset(operation.participants)
        return state

    def _restore_extent(self, extent: Extent) -> None:
        above = self.extents[-1].end if self.extents else 0
        segment = self.segments.get(extent.segment)
        if segment is None or extent.first < above or extent.end > self.next_sequence:
            raise StateError("extents in order, in known segments", f"one from {extent.first} in {extent.segment}")
        if extent.offset + extent.length_bytes > segment.end:
            raise StateError(f"an extent up to the end of its segment, {segment.end}", f"{extent.row()}")
        live = self.live_between(extent.first, extent.end)
        if live != extent.live or live == 0:
            raise StateError(f"{live} live items in the extent from {extent.first}", f"{extent.live}")
        segment.live += extent.live
        segment.live_bytes += extent.live_bytes
        self.live_bytes += extent.live_bytes
        self.extents.append(extent)
        self._firsts.append(extent.first)

    def _advance(self) -> None:
        """Move the frontier over the consumed run that begins at it."""
        run = next(iter(self.consumed))
        if run[0] == self.frontier:
            self.consumed.remove(*run)
            self.frontier += run[1]

    def _release(self, first: int, end: int) -> None:
        """Take consumed sequences off their extents and segments, by average size within an extent."""
        at = start = bisect_right(self._firsts, first) - 1
        emptied: list[int] = []
        while first < end:
            extent = self.extents[at]
            count = min(end, extent.end) - first
            share_bytes = extent.live_bytes * count // extent.live
            extent.live -= count
            extent.live_bytes -= share_bytes
            segment = self.segments[extent.segment]
            segment.live -= count
            segment.live_bytes -= share_bytes
            self.live_bytes -= share_bytes
            if extent.live == 0:
                emptied.append(at)
            if segment.live == 0:
                self.drained.add(extent.segment)
            first += count
            at += 1
        if len(emptied) == at - start:
            del self.extents[start:at], self._firsts[start:at]
        else:
            for at in reversed(emptied):
                del self.extents[at], self._firsts[at]


class Ready:
    """The volatile half: what may be dequeued now. Everything from ``position`` on was never handed out.

    ``returned`` was handed out and came back; ``damaged`` was set aside, because its block could not be read.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.returned = Intervals()
        self.damaged = Intervals()
        self.held = 0
        self.position = state.frontier
        for first, count in state.consumed:
            self.returned.add(self.position, first - self.position)
            self.position = first + count

    def __len__(self) -> int:
        return len(self.returned) + self._state.next_sequence - self.position

    def front(self) -> int:
        """The lowest sequence that may be handed out next: all below it is held, consumed or damaged."""
        firsts = self.returned.firsts
        return firsts[0] if firsts else self.position

    def runs(self) -> list[Run]:
        """All that may be handed out, in order."""
        return [*self.returned.runs(), (self.position, self._state.next_sequence - self.position)]

    def hold(self, count: int) -> list[Run]:
        """Hand out up to ``count`` ready sequences, lowest first."""
        runs: list[Run] = []
        left = count
        while left and len(self.returned):
            run = self.returned.pop_lowest(left)
            runs.append(run)
            left -= run[1]
        ahead = min(left, self._state.next_sequence - self.position)
        if ahead > 0:
            runs.append((self.position, ahead))
            self.position += ahead
            left -= ahead
        self.held += count - left
        return runs

    def release(self, runs: Iterable[Run]) -> None:
        """Take back what was handed out: it comes out again, in its old order."""
        for first, count in runs:
            self.held -= count
            self.returned.add(first, count)

    def consume(self, runs: Iterable[Run]) -> None:
        """What was handed out is consumed for good."""
        for _, count in runs:
            self.held -= count

    def set_aside(self, first: int, end: int) -> None:
        """Take what is ready of ``first … end - 1`` out for good, since it could not be read."""
        if end > self.position:
            start = max(first, self.position)
            if start > self.position:
                self.returned.add(self.position, start - self.position)
            self.position = end
            self.damaged.add(start, end - start)
        for start, count in self.returned.runs():
            low, high = max(start, first), min(start + count, end)
            if low < high:
                self.returned.remove(low, high - low)
                self.damaged.add(low, high - low)

    def next_run(self, sequence: int) -> Run | None:
        """What is ready from ``sequence`` on: the first run of it, in order."""
        run = self.returned.run_from(sequence)
        if run is not None:
            return run
        low = max(self.position, sequence)
        return (low, self._state.next_sequence - low) if low < self._state.next_sequence else None

"""The state machine: the state that the operations of the log add up to. Pure data: no files, clocks, threads.

The same code applies a frame that was just written and a frame that recovery reads. This is the durable half of the
state, which a checkpoint holds. ``availability`` is the volatile half. Items are numbered by a *sequence*, counted from
0, which they get at their commit. An *extent* is a run of sequences that lies contiguously in a segment.

Each *subscription* has a cursor: the sequences that it has consumed. An item is *gone* when all subscriptions have
consumed it; then nothing keeps it on the disk. If there is one subscription, everything that it consumes is gone, and
both are the same cursor. If there is none, no item becomes gone. The plain queue is subscription 0.

Memory follows the number of extents and gaps, never the number of items. Invariants, verified by ``check``:

1. Extents are disjoint and sorted. Each sequence below ``next_sequence`` that is not gone lies in exactly one.
2. An extent's ``live`` is the number of its sequences that are not gone, and above 0.
3. A segment's ``live`` is the sum over its extents. ``drained`` is the set of segments with a ``live`` of 0.
   ``live_bytes`` is summed up over extents and over segments in the same way.
4. The gone sequences are those that all cursors have in common.
5. Deliveries are counted only for sequences that a subscription has not consumed.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter, itemgetter
from typing import NamedTuple

from .delivery_counts import Attempts
from .frame import Frame
from .header import HEADER_BYTES
from .intervals import Cursor, Intervals, Run
from .operations import (
    Adoption,
    Checkpoint,
    Compaction,
    Decision,
    Delayed,
    Delivered,
    Dequeue,
    Enqueue,
    ExtentRow,
    Flushed,
    Identity,
    MarkerSet,
    Move,
    Operation,
    Participant,
    Prepare,
    Resolution,
    SegmentCreated,
    SegmentRow,
    SubscriptionClosed,
    SubscriptionOpened,
    dequeues,
)

_FEW = 8
"""Operations that are applied as quickly one by one as in groups."""
_RUN = itemgetter(slice(1, None))
"""Returns the run of a ``Dequeue``."""


class StateError(ValueError):
    """An operation contradicts the state, so the log is not what was written. Arguments: expected, found."""


class Extent:
    """The sequences ``first … end - 1``: ``length_bytes`` of blocks at ``offset`` of a segment, behind ``ordinal``
    items.
    """

    __slots__ = ("count", "first", "length_bytes", "live", "live_bytes", "offset", "ordinal", "segment")

    def __init__(self, row: ExtentRow) -> None:
        self.first, self.count, self.segment, self.offset, self.length_bytes, self.ordinal, self.live, _ = row
        self.live_bytes = row.live_bytes

    @property
    def end(self) -> int:
        """The sequence behind the last one."""
        return self.first + self.count

    def row(self) -> ExtentRow:
        """Return the extent as a checkpoint writes it."""
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
    """The statements of the log about a segment. ``end`` and ``ordinal`` are behind its last logged block."""

    __slots__ = ("capacity_bytes", "end", "live", "live_bytes", "number", "ordinal", "salt")

    def __init__(self, row: SegmentRow) -> None:
        self.number, self.salt, self.capacity_bytes, self.end, self.ordinal = row
        self.live = 0
        self.live_bytes = 0


class State:
    """The durable half of the state. Only operations change it: by ``apply``, or by the method for an operation's
    fields.
    """

    def __init__(self) -> None:
        self.next_sequence = 0
        self.next_segment = 1
        self.current_segment = 0
        self.gone = Cursor()
        """Cursor of the sequences that no subscription needs any more."""
        self.subscriptions: dict[int, Cursor] = {0: self.gone}
        self.segments: dict[int, SegmentInfo] = {}
        self.drained: set[int] = set()
        self.extents: list[Extent] = []
        self.markers: dict[str, int] = {}
        self.live_bytes = 0
        """Bytes of blocks with items that are not gone. A block that is partly gone counts in proportion."""
        self.decisions: dict[bytes, frozenset[Participant]] = {}
        """Transactions over several queues that were decided here, and the participants that may still ask for each."""
        self.asked_for: dict[Participant, bytes] = {}
        """For each participant that may have to ask, its transaction. There is at most one."""
        self.identity = b""
        """Identity of this queue; empty if its log was written by a version without identities."""
        self.forgotten = 0
        """Number of the last frame that may have held decisions that were forgotten, and that a participant may ask
        for.
        """
        self.attempts: dict[int, Attempts] = {}
        """For each subscription that counts them, its deliveries of items that it has not consumed."""
        self.flushes: dict[bytes, int] = {}
        """Number of the last flush of each connection that may ask for its outcome."""
        self._firsts: list[int] = []

    @property
    def gone_count(self) -> int:
        """Number of items that are gone, since the queue was made."""
        return self.gone.count

    def apply(self, operation: Operation) -> None:
        """Apply one operation. Raises ``StateError`` if it contradicts the state; then the state must not be used any
        more.
        """
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
            self.decide(operation.transaction, operation.asking())
        elif isinstance(operation, SubscriptionOpened):
            self._subscribe(*operation)
        elif isinstance(operation, SubscriptionClosed):
            self._unsubscribe(operation.number)
        elif isinstance(operation, Delivered):
            self._deliver(*operation)
        elif isinstance(operation, Delayed):
            self._counted(*operation[:3]).delay(*operation[1:])
        elif isinstance(operation, Flushed):
            self.note_flush(*operation)
        else:
            raise StateError("an operation of a transaction", f"a {type(operation).__name__.lower()}")

    def apply_all(self, operations: Sequence[Operation]) -> None:
        """Apply the operations, in order, and all runs that a subscription consumes in a row at once. Raises
        ``StateError`` as ``apply`` does."""
        if len(operations) <= _FEW:
            for operation in operations:
                self.apply(operation)
            return
        for kind, alike in groupby(operations, type):
            if kind is Dequeue:
                for subscription, its in groupby(alike, itemgetter(0)):
                    self._dequeue_all(subscription, list(map(_RUN, its)))
            else:
                for operation in alike:
                    self.apply(operation)

    def note_flush(self, connection: bytes, number: int) -> None:
        """Apply the fields of a ``Flushed``."""
        self.flushes.pop(connection, None)  # the connection that flushed last is the last one
        self.flushes[connection] = number

    def _add_segment(self, number: int, salt: int, capacity_bytes: int) -> None:
        if number in self.segments:
            raise StateError("a segment that is not known", f"{number}")
        # A compaction logs its target when the copy is done. Younger segments may have been logged before that.
        self.next_segment = max(self.next_segment, number + 1)
        self.segments[number] = SegmentInfo(SegmentRow(number, salt, capacity_bytes, 0, 0))
        self.drained.add(number)

    def enqueue(self, first: int, count: int, number: int, offset: int, length_bytes: int, ordinal: int) -> None:
        """Apply the fields of an ``Enqueue``; ``number`` is the number of its segment."""
        segment = self.segments.get(number)
        if segment is None or first != self.next_sequence or count == 0 or offset < HEADER_BYTES:
            raise StateError(
                f"sequence {self.next_sequence}, in a known segment, behind its header",
                f"{count} from sequence {first} at offset {offset} of segment {number}",
            )
        self.next_sequence = first + count
        # A session may commit spilled blocks after another one has committed blocks that are behind them.
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

    def check(self, operation: Operation, created: Container[int] = ()) -> None:
        """Raise ``StateError`` if ``apply`` would, and change nothing. For the operations beside the items of a
        transaction.

        ``created`` are the segments that the transaction makes known before this operation.
        """
        if isinstance(operation, Dequeue):
            self.check_unconsumed(*operation)
        elif isinstance(operation, Delivered | Delayed):
            self.check_unconsumed(*operation[:3])
        elif isinstance(operation, Compaction):
            self._compacted(*operation, created)
        elif isinstance(operation, SubscriptionOpened):
            self._check_new(*operation)
        elif isinstance(operation, SubscriptionClosed):
            self._check_known(operation.number)

    def copy(self) -> State:
        """Return a copy. It takes a fraction of the time of ``copy.deepcopy``, which copies each number by itself."""
        copied: State = pickle.loads(pickle.dumps(self, pickle.HIGHEST_PROTOCOL))
        return copied

    def become(self, other: State) -> None:
        """Take over another state, which the caller gives up, in one step that nothing interrupts."""
        vars(self).update(vars(other))

    def check_unconsumed(self, subscription: int, first: int, count: int) -> None:
        """Raise ``StateError`` unless the queue has these sequences, and the subscription has consumed none of them."""
        end, cursor = first + count, self.subscriptions.get(subscription)
        if cursor is None or count <= 0 or end > self.next_sequence or cursor.overlaps(first, end):
            above = "no subscription" if cursor is None else cursor.frontier
            raise StateError(
                f"sequences of {above} to {self.next_sequence} that are not consumed",
                f"{count} from {first} of subscription {subscription}",
            )

    def are_unconsumed(self, subscription: int, runs: Sequence[Run]) -> bool:
        """Return whether ``check_unconsumed`` passes each of these runs, and no sequence is in two of them."""
        cursor = self.subscriptions.get(subscription)
        if cursor is None or len(runs) != 1:
            return cursor is not None and cursor.lacks(runs, self.next_sequence)
        first, count = runs[0]  # the usual case
        end = first + count
        return count > 0 and end <= self.next_sequence and not cursor.overlaps(first, end)

    def dequeue(self, subscription: int, first: int, count: int) -> None:
        """Apply the fields of a ``Dequeue``."""
        self.check_unconsumed(subscription, first, count)
        self.consume(subscription, first, count)

    def _dequeue_all(self, subscription: int, runs: list[Run]) -> None:
        if len(runs) > 1 and self.are_unconsumed(subscription, runs):
            self.consume_all(subscription, Intervals(runs))
        else:
            for first, count in runs:  # of many runs, the first one that is wrong tells it
                self.dequeue(subscription, first, count)

    def consume(self, subscription: int, first: int, count: int) -> None:
        """Apply the fields of a ``Dequeue`` that ``check_unconsumed`` has passed."""
        end, cursor = first + count, self.subscriptions[subscription]
        cursor.consume(first, count)
        if self.attempts:
            self._uncount(subscription, first, count)
        if cursor is self.gone:
            self._release(first, end)
        elif all(each.overlaps(first, end) for each in self.subscriptions.values()):
            self._let_go(self._done_by_all(Intervals([(first, count)])))

    def consume_all(self, subscription: int, sequences: Intervals) -> None:
        """Apply the fields of a ``Dequeue`` for each run of these sequences, which ``are_unconsumed`` has passed."""
        cursor = self.subscriptions[subscription]
        cursor.consume_all(sequences)
        if self.attempts:
            for run in sequences:
                self._uncount(subscription, *run)
        if cursor is self.gone:
            self._release_all(sequences)
        else:
            self._let_go(self._done_by_all(sequences))

    def would_free(self, subscription: int, runs: Sequence[Run]) -> Iterable[Run]:
        """Return the runs that would be gone if the subscription consumed these runs now."""
        cursor = self.subscriptions.get(subscription)
        return runs if cursor is self.gone else self._done_by_all(Intervals(runs), cursor)

    def compact(self, sources: Sequence[int], moves: Sequence[Move]) -> None:
        """Apply the fields of a ``Compaction``. Items that were consumed since they were copied do not move."""
        gone, moved, extents = self._compacted(sources, moves)
        for number in gone:
            self.live_bytes -= self.segments[number].live_bytes
            self.segments[number].live = self.segments[number].live_bytes = 0
        for move in moves:
            segment = self.segments[move.segment]
            segment.end = max(segment.end, move.offset + move.length_bytes)
            segment.ordinal = max(segment.ordinal, move.ordinal + move.count)
        for extent in moved:
            segment = self.segments[extent.segment]
            segment.live += extent.live
            segment.live_bytes += extent.live_bytes
            self.live_bytes += extent.live_bytes
            self.drained.discard(extent.segment)
        self.drained |= gone
        self.extents = extents
        self._firsts = [extent.first for extent in extents]

    def _compacted(
        self, sources: Sequence[int], moves: Sequence[Move], created: Container[int] = ()
    ) -> tuple[set[int], list[Extent], list[Extent]]:
        """Return the sources of a ``Compaction``, the extents that it makes, and all extents after it."""
        gone = set(sources)
        if not gone <= self.segments.keys():
            raise StateError("a compaction of known segments", f"{sorted(gone)}")
        extents = [extent for extent in self.extents if extent.segment not in gone]
        moved = [extent for move in moves if (extent := self._moved(move, gone, created)) is not None]
        extents = sorted(extents + moved, key=attrgetter("first"))
        live = sum(self.segments[number].live for number in gone)
        if live != sum(extent.live for extent in moved) or any(a.end > b.first for a, b in pairwise(extents)):
            raise StateError(f"moves of all {live} live items of the segments {sorted(gone)}", f"{len(moves)} moves")
        return gone, moved, extents

    def _moved(self, move: Move, gone: set[int], created: Container[int]) -> Extent | None:
        """Return the extent that a move makes; None if all of it is gone meanwhile."""
        first, count, number, offset, length_bytes, ordinal, _, copied = move
        is_known, end = number in self.segments or number in created, first + count
        if not is_known or number in gone or offset < HEADER_BYTES or not 0 < copied <= count:
            raise StateError("a move to a known segment that stays, behind its header", f"{move}")
        if end > self.next_sequence:
            raise StateError(f"moves of sequences below {self.next_sequence}", f"{move}")
        live = self.gone.live_between(first, end)
        if live > copied:
            raise StateError(f"no more than {copied} live items in {move}", f"{live}")
        if not live:
            return None
        return Extent(
            ExtentRow(first, count, number, offset, length_bytes, ordinal, live, length_bytes * live // copied)
        )

    def decide(self, transaction: bytes, participants: Sequence[Participant]) -> None:
        """Apply the fields of a ``Decision``.

        A participant has settled every earlier decision: its log has the resolution, at the latest in the frame that
        prepares this one. So its earlier decision is forgotten.
        """
        if transaction in self.decisions or not participants:
            raise StateError("a new decision with participants", f"{transaction.hex()} for {participants}")
        for name in participants:
            if name in self.asked_for:
                self.forget(self.asked_for[name], name)
            self.asked_for[name] = transaction
        self.decisions[transaction] = frozenset(participants)

    def forget(self, transaction: bytes, name: Participant) -> None:
        """Drop this participant from the decision, if the decision is still known: it does not need it any more."""
        if self.asked_for.get(name) == transaction:
            del self.asked_for[name]
        left = self.decisions.pop(transaction, frozenset()) - {name}
        if left:
            self.decisions[transaction] = left

    def find(self, sequence: int) -> Extent:
        """Return the extent that holds the sequence. Raises ``StateError`` if there is none."""
        at = bisect_right(self._firsts, sequence) - 1
        if at < 0 or sequence >= self.extents[at].end:
            raise StateError(f"an extent with sequence {sequence}", "none")
        return self.extents[at]

    def last_remaining(self) -> int:
        """Return the highest sequence that is not gone; 0 if there is none."""
        if not self.extents:
            return 0
        last = self.extents[-1]  # with a live item, as every extent
        first, count = self.gone.unconsumed(last.first, last.end)[-1]
        return first + count - 1

    def extents_from(self, sequence: int) -> Iterator[Extent]:
        """Yield the extents, from the one that holds the sequence on, or from the last one before it."""
        for at in range(max(bisect_right(self._firsts, sequence) - 1, 0), len(self.extents)):
            yield self.extents[at]

    def share_bytes(self, runs: Iterable[Run]) -> int:
        """Return by how much ``live_bytes`` would decrease if these runs were consumed now."""
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
        """Return the whole state as one operation.

        ``current`` is the segment that is being written. Drained segments are left out, except ``current`` and those in
        ``kept``. That retires them.
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
            self.gone.frontier,
            self.gone.consumed.runs(),
            rows,
            [extent.row() for extent in self.extents],
            markers,
        )

    def supplement(self) -> list[Operation]:
        """Return the operations that follow a checkpoint in its transaction: the parts of the state that it has no
        fields for.
        """
        rest: list[Operation] = [Identity(self.identity, self.forgotten)] if self.identity else []
        rest += [_decision(transaction, asking) for transaction, asking in self.decisions.items()]
        for number, attempts in self.attempts.items():
            rest += [Delivered(number, *run) for run in attempts.times]
            rest += [Delayed(number, first, count, *delay) for first, count, delay in attempts.delays]
        rest += [Flushed(*each) for each in self.flushes.items()]
        if self.subscriptions.keys() == {0}:
            return rest
        if not self.subscriptions:
            return [SubscriptionClosed(0), *rest]
        operations: list[Operation] = [
            SubscriptionOpened(number, cursor.frontier, cursor.name) for number, cursor in self.subscriptions.items()
        ]
        needed = self.gone.rest(self.gone.frontier, self.next_sequence)
        for number, cursor in self.subscriptions.items():
            operations += dequeues(number, cursor.consumed.common(needed).runs())
        return operations + rest

    def retire(self, number: int) -> None:
        """Forget a drained segment. A checkpoint without it is durable."""
        del self.segments[number]
        self.drained.remove(number)

    @classmethod
    def restore(cls, checkpoint: Checkpoint, supplement: Sequence[Operation] = ()) -> State:
        """Return the state that a checkpoint and its supplement hold. Raises ``StateError`` if they contradict each
        other.
        """
        state = cls()
        state.next_sequence = checkpoint.next_sequence
        state.next_segment = checkpoint.next_segment
        state.current_segment = checkpoint.current_segment
        above = checkpoint.frontier
        for first, count in checkpoint.consumed:
            if first <= above or not 0 < count <= checkpoint.next_sequence - first:
                raise StateError("consumed runs in order, with gaps", f"{count} from {first}, behind {above}")
            above = first + count
        state.subscriptions[0] = state.gone = Cursor("", checkpoint.frontier, checkpoint.consumed)
        for row in checkpoint.segments:
            state.segments[row.number] = SegmentInfo(row)
        for extent_row in checkpoint.extents:
            state._restore_extent(Extent(extent_row))
        state.drained = {number for number, segment in state.segments.items() if not segment.live}
        state.markers = {marker.name: marker.version for marker in checkpoint.markers}
        live = sum(extent.live for extent in state.extents)
        if live + state.gone_count != state.next_sequence:
            raise StateError(f"extents with {state.next_sequence - state.gone_count} live items", f"{live}")
        few = [each for each in supplement if not isinstance(each, Dequeue)]  # of these alone there may be very many
        decisions = [operation for operation in few if isinstance(operation, Decision)]
        for decision in decisions:
            state.decide(decision.transaction, decision.asking())
        if sum(map(len, state.decisions.values())) < sum(len(decision.participants) for decision in decisions):
            raise StateError("at most one decision for each participant", f"{decisions}")
        for each in few:
            if isinstance(each, Identity):
                state.identity, state.forgotten = each
        state.flushes = {each.connection: each.number for each in few if isinstance(each, Flushed)}
        apart = {Decision, Identity, Delivered, Delayed, Flushed}
        others = [each for each in supplement if type(each) not in apart]
        if others:
            state._restore_subscriptions(others)
        state._restore_attempts([each for each in few if isinstance(each, Delivered | Delayed)])
        return state

    def _restore_extent(self, extent: Extent) -> None:
        above = self.extents[-1].end if self.extents else 0
        segment = self.segments.get(extent.segment)
        if segment is None or extent.first < above or extent.end > self.next_sequence:
            raise StateError("extents in order, in known segments", f"one from {extent.first} in {extent.segment}")
        if extent.offset + extent.length_bytes > segment.end:
            raise StateError(f"an extent up to the end of its segment, {segment.end}", f"{extent.row()}")
        live = self.gone.live_between(extent.first, extent.end)
        if live != extent.live or live == 0:
            raise StateError(f"{live} live items in the extent from {extent.first}", f"{extent.live}")
        segment.live += extent.live
        segment.live_bytes += extent.live_bytes
        self.live_bytes += extent.live_bytes
        self.extents.append(extent)
        self._firsts.append(extent.first)

    # --- subscriptions -----------------------------------------------------------------------------------------------

    def number_of(self, name: str) -> int | None:
        """Return the number of the subscription with this name; None if there is none."""
        return next((number for number, cursor in self.subscriptions.items() if cursor.name == name), None)

    def next_subscription(self, name: str, first: int) -> SubscriptionOpened:
        """Return the operation that makes a new subscription, from ``first`` or ``next_sequence`` on, whichever is
        lower.
        """
        return SubscriptionOpened(max(self.subscriptions, default=0) + 1, min(first, self.next_sequence), name)

    def _subscribe(self, number: int, first: int, name: str) -> None:
        self._check_new(number, first, name)
        cursor, others = self.gone.copy(name), len(self.subscriptions)
        skipped = cursor.consume_rest(cursor.frontier, first)
        self.subscriptions[number] = cursor
        if others == 1:
            self.gone = self.gone.copy()
        elif others == 0:
            self._let_go(Intervals(skipped))
            self.gone = cursor

    def _check_new(self, number: int, first: int, name: str) -> None:
        if number in self.subscriptions or self.number_of(name) is not None or first > self.next_sequence:
            raise StateError(f"a new subscription, from {self.next_sequence} on or before", f"{number}, {name!r}")

    def _check_known(self, number: int) -> None:
        if number not in self.subscriptions:
            raise StateError(f"one of the subscriptions {sorted(self.subscriptions)}", f"{number}")

    def _unsubscribe(self, number: int) -> None:
        self._check_known(number)
        cursor = self.subscriptions.pop(number)
        self.attempts.pop(number, None)
        if cursor is self.gone:
            self.gone = cursor.copy()
        else:
            self._let_go(self._done_by_all(cursor.rest(self.gone.frontier, self.next_sequence)))
            self._share_alone()

    def _restore_subscriptions(self, supplement: Sequence[Operation]) -> None:
        self.subscriptions = {}
        for kind, alike in groupby(supplement, type):
            if kind is Dequeue:
                for number, its in groupby(alike, itemgetter(0)):
                    self._restore_consumed(number, list(map(_RUN, its)))
                continue
            for operation in alike:
                if isinstance(operation, SubscriptionOpened):
                    cursor = self.gone.copy(operation.name)
                    cursor.consume_rest(cursor.frontier, operation.first)
                    self.subscriptions[operation.number] = cursor
                elif operation != SubscriptionClosed(0):
                    raise StateError("an operation that may supplement a checkpoint", f"{operation}")
        frontier = self.gone.frontier
        remaining = Intervals().rest(frontier, self.next_sequence if self.subscriptions else 0)
        for cursor in self._cursors():
            if cursor.count > self.next_sequence or len(cursor.consumed.between(self.next_sequence, 2**64)):
                raise StateError(f"subscriptions up to {self.next_sequence}", f"{cursor.name!r} beyond it")
        if self._done_by_all(remaining).runs() != (self.gone.consumed.runs() if remaining else []):
            raise StateError("subscriptions whose consumed items have in common exactly the gone ones", f"{supplement}")
        self._share_alone()

    def _restore_consumed(self, number: int, runs: list[Run]) -> None:
        cursor = self.subscriptions.get(number)
        if cursor is None:
            raise StateError(f"consumed runs of the subscriptions {sorted(self.subscriptions)}", f"one of {number}")
        if cursor.lacks(runs, self.next_sequence):
            cursor.consume_all(Intervals(runs))
        else:  # after a repair, a part may be gone already
            for first, count in runs:
                cursor.consume_rest(first, first + count)

    def _share_alone(self) -> None:
        """Use the cursor of the only subscription for the gone sequences, too, if there is only one."""
        if len(self.subscriptions) == 1:
            (self.gone,) = self.subscriptions.values()

    def _cursors(self) -> list[Cursor]:
        """Return all cursors, each once."""
        return [self.gone, *(cursor for cursor in self.subscriptions.values() if cursor is not self.gone)]

    def _done_by_all(self, sequences: Intervals, but: Cursor | None = None) -> Intervals:
        """Return those of these sequences that all subscriptions, except that of the cursor ``but``, have consumed."""
        done = sequences
        for cursor in self.subscriptions.values():
            if not done.size:
                break  # as a rule: the first of many subscriptions still needs the items
            if cursor is not but:
                done = cursor.done_of(done)
        return done

    def _let_go(self, sequences: Intervals) -> None:
        """Make these sequences gone: no subscription needs them any more."""
        self.gone.consume_all(sequences)
        self._release_all(sequences)

    # --- deliveries --------------------------------------------------------------------------------------------------

    def times(self, subscription: int, sequence: int) -> int:
        """Return how often the sequence was delivered to the subscription, as far as deliveries were counted."""
        attempts = self.attempts.get(subscription)
        return attempts.times.get(sequence) or 0 if attempts is not None else 0

    def _counted(self, subscription: int, first: int, count: int) -> Attempts:
        """Return the deliveries of the subscription. Raises ``StateError`` unless it still has to consume this run."""
        self.check_unconsumed(subscription, first, count)
        return self.attempts.setdefault(subscription, Attempts())

    def _deliver(self, subscription: int, first: int, count: int, times: int) -> None:
        attempts = self._counted(subscription, first, count)
        attempts.deliver(first, count, times)
        if not attempts:
            del self.attempts[subscription]

    def _uncount(self, subscription: int, first: int, count: int) -> None:
        """Forget the deliveries of this run, which is consumed."""
        attempts = self.attempts.get(subscription)
        if attempts is not None:
            attempts.drop(first, count)
            if not attempts:
                del self.attempts[subscription]

    def _restore_attempts(self, supplement: Sequence[Delivered | Delayed]) -> None:
        for operation in supplement:
            cursor = self.subscriptions.get(operation.subscription)
            end = operation.first + operation.count
            if cursor is None or end > self.next_sequence:
                raise StateError(f"deliveries of sequences below {self.next_sequence}", f"{operation}")
            for first, count in cursor.unconsumed(operation.first, end):  # after a repair, a part may be consumed
                self.apply(operation._replace(first=first, count=count))

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _release(self, first: int, end: int) -> None:
        """Subtract gone sequences from their extents and segments, by the average size within an extent."""
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

    def _release_all(self, sequences: Intervals) -> None:
        """Do what ``_release`` does for each of these runs, in a step for each extent or for each run."""
        if not sequences.size:
            return
        at, stop = bisect_right(self._firsts, sequences.lowest) - 1, bisect_left(self._firsts, sequences.end)
        if sequences.run_count < stop - at:
            for first, count in sequences:
                self._release(first, first + count)
            return
        for extent in self.extents[at:stop]:
            # Of the sequences of an extent, only the number matters.
            self._release(extent.first, extent.first + sequences.overlap(extent.first, extent.end))


def _decision(transaction: bytes, asking: Iterable[Participant]) -> Decision:
    """Return a decision as a checkpoint writes it; without identities if an older log lacks one."""
    names, queues = zip(*sorted(asking), strict=True)
    return Decision(transaction, names, queues if all(queues) else ())


class Prepared(NamedTuple):
    """A transaction that was prepared and not resolved."""

    prepare: Prepare
    operations: list[Operation]


@dataclass
class Unfolding:
    """Decides, frame by frame, which operations of a log count."""

    prepared: Prepared | None = None
    """Transaction that counts only if the next frame says so."""
    aborted: int = 0
    """Number of transactions that did not count."""

    def counting(self, frame: Frame) -> list[Operation]:
        """Return the operations that count from this frame on, with those that it resolves. Raises ``StateError``."""
        counting: list[Operation] = []
        for transaction in frame.transactions:
            operations = transaction
            if self.prepared is not None:
                (prepare, held), first = self.prepared, operations[0] if operations else None
                if not isinstance(first, Resolution) or first.transaction != prepare.transaction:
                    raise StateError(f"the outcome of the transaction {prepare.transaction.hex()}", f"{first}")
                if first.committed:
                    counting += held
                else:
                    self.aborted += 1
                self.prepared, operations = None, operations[1:]
            if operations and isinstance(operations[0], Prepare):
                self.prepared = Prepared(operations[0], operations[1:])
            else:
                counting += operations
        return counting

    def counting_anyway(self, frame: Frame) -> list[Operation]:
        """Return the operations that count, in a log that lacks frames.

        If the outcome of a prepared transaction is lost, it counts if the next items are numbered from behind its own.
        """
        try:
            return self.counting(frame)
        except StateError:
            prepared, self.prepared = self.prepared, None
        rest = [each for transaction in frame.transactions for each in transaction if not isinstance(each, Resolution)]
        held = prepared.operations if prepared is not None else []
        ends = [each.first + each.count for each in held if isinstance(each, Enqueue)]
        first = next((each.first for each in rest if isinstance(each, Enqueue)), 0)
        return (held if ends and first >= ends[-1] else []) + rest

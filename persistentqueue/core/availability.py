"""The volatile half of the state: the items that a subscription may dequeue, and that its sessions hold. Pure data.

The first ready items may be in the *lane*, each with its sequence. Any thread takes one of them by a single call of C
code, without the mutex. To take and release the mutex would be a third of a dequeue. Everything else needs the mutex.

1. A session that finds the lane empty fills it, and takes the first item from there.
2. Each method that hands out, takes back or sets aside sequences recalls the lane first. It takes from the end while
   other threads take from the beginning. The rest is one run, which ends where the other ready sequences begin.
3. A method that only looks counts the lane as ready. Its answer may be older than an item that was taken meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from .intervals import Cursor, Intervals, Run, append_run, count_of, last_of
from .state import State

Taken = tuple[int, bytes]
"""A sequence and its item."""
LANE_ITEMS = 64
"""Upper bound on the items in the lane."""
_ROOM_ITEMS = 2
"""Number of items that are put into the lane at first, and after a recall."""
_LANE_BYTES = 64 * 1024
"""Upper bound on the bytes in the lane, by the average of their page. They stay in memory when their page goes."""


class Availability:
    """The items that a subscription may dequeue now. Everything from ``position`` on was never handed out.

    ``returned`` was handed out and came back. ``damaged`` was set aside, because its block could not be read.
    ``delayed`` came back, and is not due yet (see ``reader``). At any time, the ready, held, damaged, delayed and
    consumed sequences are together as many as the next sequence.
    """

    def __init__(self, state: State, number: int = 0, cursor: Cursor | None = None) -> None:
        """Begin with the subscription of this number, 0 for the plain queue, or with another ``cursor``."""
        cursor = state.subscriptions[number] if cursor is None else cursor
        self._state = state
        self.number = number
        self.name = cursor.name
        self.is_closed = False
        """True if the subscription was removed."""
        consumed = cursor.consumed
        self.returned = consumed.rest(cursor.frontier, consumed.end) if consumed.size else Intervals()
        self.damaged = Intervals()
        self.delayed = Intervals()
        self.lane: deque[Taken] = deque()
        """Items of the lane. Any thread may take from the left."""
        self._recalled: list[Taken] = []
        """Items taken out of the lane, the last one first; empty unless a recall was interrupted."""
        self._laid = 0
        """Number of items that were put into the lane and not recalled."""
        self._room = _ROOM_ITEMS
        """Number of items that may be put into the lane next. It doubles until a recall."""
        self._behind = cursor.count + self.returned.size
        """First sequence behind the lane that was never handed out."""

    def __len__(self) -> int:
        return len(self.returned) + self._state.next_sequence - self.position

    @property
    def position(self) -> int:
        """First sequence that was never handed out; nor was any above it."""
        if self.lane:
            with suppress(IndexError):  # other threads have taken the rest meanwhile
                return self.lane[0][0]
        return self._recalled[-1][0] if self._recalled else self._behind

    @property
    def passed(self) -> int:
        """Number of items that threads have taken from the lane."""
        return self._laid - len(self._recalled) - len(self.lane)

    @property
    def held(self) -> int:
        """Number of sequences on hold: neither ready nor set aside nor delayed nor consumed."""
        cursor = self._state.subscriptions.get(self.number)
        if cursor is None:
            return 0
        others = Availability.__len__(self) + len(self.damaged) + len(self.delayed)
        return self._state.next_sequence - cursor.count - others

    def front(self) -> int:
        """Return the lowest sequence that may be handed out next. None below it is ready."""
        return self.returned.lowest if self.returned.size else self.position

    def members(self) -> Intervals:
        """Return a copy of the set of all ready sequences."""
        first, ready = self.position, self.returned.copy()
        if first < self._state.next_sequence:
            ready.add(first, self._state.next_sequence - first)
        return ready

    def hold(self, count: int, runs: list[Run] | None = None) -> list[Run]:
        """Hand out up to ``count`` ready sequences, lowest first: append them to ``runs``, and return it.

        An interruption, by a signal handler for instance, finds each sequence either ready or in ``runs``.
        """
        if self.lane or self._recalled:
            self.recall()
        runs = [] if runs is None else runs
        left, returned = count, self.returned
        while left and returned.size:
            left -= returned.move_lowest(left, runs)
        first = self._behind
        ahead = min(left, self._state.next_sequence - first)
        if ahead > 0:
            at, last = append_run(runs, first, ahead) if runs else (0, ((first, ahead),))
            # No calls from here on, so no signal handler runs between these steps.
            runs[at:] = last
            self._behind = first + ahead
        return runs

    def hand_out(self, count: int, runs: list[Run] | None = None) -> list[Run]:
        """Hand out up to ``count`` sequences to a consumer, by ``hold``. A subclass may hand out fewer."""
        return self.hold(count, runs)

    def hold_below(self, end: int) -> list[Run]:
        """Hand out all ready sequences below ``end``."""
        self.recall()
        ahead = min(end, self._state.next_sequence) - self.position
        return self.hold(self.returned.overlap(0, end) + max(ahead, 0))

    def hold_again(self, runs: Sequence[Run]) -> bool:
        """Hand out exactly these runs. Return False, and hand out nothing, unless all of them are ready."""
        self.recall()
        if not runs:
            return True
        # A cursor that has consumed nothing tells whether the runs are apart, and there.
        if not Cursor().lacks(runs, self._state.next_sequence):
            return False
        wanted = Intervals(runs)
        again = wanted.below(self._behind)
        if self.returned.common(again).size < again.size:
            return False
        self.returned.remove_all(again.runs())
        if wanted.end > self._behind:
            self.returned.unite(wanted.rest(self._behind, wanted.end))
            self._behind = wanted.end
        return True

    def release(self, runs: Sequence[Run]) -> None:
        """Take back what was handed out: it comes out again, in its old order."""
        self.recall()
        self.returned.add_all(runs)

    def give_back(self, runs: list[Run], count: int) -> None:
        """Take back the last ``count`` sequences of ``runs``, and remove them from it."""
        self.recall()
        last = last_of(runs, count)
        assert count_of(last) == count, f"{count} sequences are given back, and {count_of(runs)} are held"
        if last:
            at = len(runs) - len(last)
            (first, _), (behind, _) = runs[at], last[-1]
            self.returned.add_all(last)
            runs[at:] = [(first, behind - first)] if first < behind else []

    def set_aside(self, first: int, end: int) -> None:
        """Remove the ready sequences of ``first … end - 1`` until the next opening: their block cannot be read."""
        self._take_out(first, end, self.damaged)

    def close(self) -> None:
        """Hand out nothing more: the subscription was removed."""
        self.is_closed = True
        self.recall()

    def lay(self, items: Sequence[bytes], at: int, cost_bytes: int) -> None:
        """Put items of a page into the lane, beginning with ``items[at]``, which is the item at ``position``.

        The lane and ``returned`` must be empty. Each item counts as ``cost_bytes``.
        """
        fitting = items[at : at + max(min(self._room, _LANE_BYTES // cost_bytes), 1)]
        first, count, lane = self._behind, len(fitting), self.lane
        pairs = enumerate(fitting, first)
        self._room = min(2 * self._room, LANE_ITEMS)
        # No calls of Python code from here on, so no signal handler runs between these steps.
        lane += pairs
        self._laid += count
        self._behind = first + count

    def recall(self) -> None:
        """Take back the items in the lane. Until it is filled again, no thread takes an item without the mutex.

        After an interruption all of them are ready, and the next recall continues.
        """
        if self.lane or self._recalled:
            from_the_end = iter(self.lane.pop, None)
            while self.lane:
                with suppress(IndexError):  # the lane is empty
                    self._recalled.extend(from_the_end)
            first, count = self.position, len(self._recalled)
            # No calls from here on, so no signal handler runs between these steps.
            self._behind, self._recalled = first, []
            self._laid -= count
            self._room = _ROOM_ITEMS

    def _take_out(self, first: int, end: int, into: Intervals) -> None:
        self.recall()
        if end > self._behind:
            start = max(first, self._behind)
            if start > self._behind:
                self.returned.add(self._behind, start - self._behind)
            self._behind = end
            into.add(start, end - start)
        runs = self.returned.within(first, end)
        self.returned.remove_all(runs)
        into.add_all(runs)

    def next_run(self, sequence: int) -> Run | None:
        """Return the first run of ready sequences from ``sequence`` on; None if there is none, or after ``close``."""
        if self.is_closed:
            return None
        run = self.returned.run_from(sequence)
        if run is not None:
            return run
        low = max(self.position, sequence)
        return (low, self._state.next_sequence - low) if low < self._state.next_sequence else None


class Remaining(Availability):
    """The sequences that are not gone, on hold or not, for readers that only look.

    A sequence that becomes gone meanwhile is no longer in it.
    """

    def __init__(self, state: State) -> None:
        super().__init__(state, -1, Cursor("", state.gone.frontier))

    def __len__(self) -> int:
        return self._state.next_sequence - self._state.gone.count

    def next_run(self, sequence: int) -> Run | None:
        """Return the first run that is not gone now, from ``sequence`` on; None if there is none."""
        return self._state.gone.next_unconsumed(sequence, self._state.next_sequence)

"""The volatile half of the state: what one subscription may dequeue now, and what its sessions hold. Pure data."""

from __future__ import annotations

from collections.abc import Iterable

from .cursor import Cursor
from .intervals import Intervals, Run, append_run
from .state import State


class Ready:
    """What a subscription may dequeue now. Everything from ``position`` on was never handed out.

    ``returned`` was handed out and came back; ``damaged`` was set aside, because its block could not be read;
    ``delayed`` came back, and is not due yet (see ``counting``). At any time ready, held, damaged, delayed and consumed
    ones are together as many as the next sequence.
    """

    def __init__(self, state: State, number: int = 0, cursor: Cursor | None = None) -> None:
        """For the subscription of this number, 0 for the plain queue; or for who is as far as another ``cursor``."""
        cursor = state.subscriptions[number] if cursor is None else cursor
        self._state = state
        self.number = number
        self.name = cursor.name
        self.is_closed = False
        """Whether the subscription was removed."""
        self.returned = Intervals()
        self.damaged = Intervals()
        self.delayed = Intervals()
        self.position = cursor.frontier
        for first, count in cursor.consumed:
            self.returned.add(self.position, first - self.position)
            self.position = first + count

    def __len__(self) -> int:
        return len(self.returned) + self._state.next_sequence - self.position

    @property
    def held(self) -> int:
        """How many sequences are on hold: neither ready nor set aside nor delayed nor consumed."""
        cursor = self._state.subscriptions.get(self.number)
        if cursor is None:
            return 0
        others = Ready.__len__(self) + len(self.damaged) + len(self.delayed)
        return self._state.next_sequence - cursor.count - others

    def front(self) -> int:
        """The lowest sequence that may be handed out next: all below it is held, consumed or damaged."""
        firsts = self.returned.firsts
        return firsts[0] if firsts else self.position

    def runs(self) -> list[Run]:
        """All that may be handed out, in order."""
        return [*self.returned.runs(), (self.position, self._state.next_sequence - self.position)]

    def hold(self, count: int, runs: list[Run] | None = None) -> list[Run]:
        """Hand out up to ``count`` ready sequences, lowest first: append them to ``runs``, which is returned.

        An interruption, by a signal handler for instance, finds each sequence either ready or in ``runs``.
        """
        runs = [] if runs is None else runs
        left, returned = count, self.returned
        while left and returned.firsts:
            left -= returned.move_lowest(left, runs)
        first = self.position
        ahead = min(left, self._state.next_sequence - first)
        if ahead > 0:
            at, last = append_run(runs, first, ahead)
            # From here on without a call: nothing interrupts that.
            runs[at:] = last
            self.position = first + ahead
        return runs

    def hand_out(self, count: int, runs: list[Run] | None = None) -> list[Run]:
        """Hand out what a consumer gets that asks for ``count`` sequences; otherwise like ``hold``."""
        return self.hold(count, runs)

    def hold_below(self, end: int) -> list[Run]:
        """Hand out all that is ready below ``end``."""
        ahead = min(end, self._state.next_sequence) - self.position
        return self.hold(self.returned.overlap(0, end) + max(ahead, 0))

    def release(self, runs: Iterable[Run]) -> None:
        """Take back what was handed out: it comes out again, in its old order."""
        for first, count in runs:
            self.returned.add(first, count)

    def give_back(self, runs: list[Run], count: int) -> None:
        """Take back the last ``count`` sequences of ``runs``, which were handed out."""
        while count:
            first, held = runs[-1]
            part = min(count, held)
            self.returned.add(first + held - part, part)
            runs[-1:] = [(first, held - part)] if part < held else []
            count -= part

    def set_aside(self, first: int, end: int) -> None:
        """Take what is ready of ``first … end - 1`` out for good, since it could not be read."""
        self._take_out(first, end, self.damaged)

    def _take_out(self, first: int, end: int, into: Intervals) -> None:
        if end > self.position:
            start = max(first, self.position)
            if start > self.position:
                self.returned.add(self.position, start - self.position)
            self.position = end
            into.add(start, end - start)
        for start, count in self.returned.runs():
            low, high = max(start, first), min(start + count, end)
            if low < high:
                self.returned.remove(low, high - low)
                into.add(low, high - low)

    def next_run(self, sequence: int) -> Run | None:
        """What is ready from ``sequence`` on: the first run of it, in order; nothing where it was removed."""
        if self.is_closed:
            return None
        run = self.returned.run_from(sequence)
        if run is not None:
            return run
        low = max(self.position, sequence)
        return (low, self._state.next_sequence - low) if low < self._state.next_sequence else None


class Remaining(Ready):
    """What anybody may still dequeue, on hold or not, for who only looks: what is gone meanwhile is not there."""

    def __init__(self, state: State) -> None:
        super().__init__(state, -1, Cursor("", state.gone.frontier))

    def __len__(self) -> int:
        return self._state.next_sequence - self._state.gone.count

    def next_run(self, sequence: int) -> Run | None:
        """The first run of it from ``sequence`` on, as the state is now."""
        return self._state.gone.next_unconsumed(sequence, self._state.next_sequence)

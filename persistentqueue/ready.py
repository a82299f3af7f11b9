"""The volatile half of the state: what one subscription may dequeue now, and what its sessions hold. Pure data."""

from __future__ import annotations

from collections.abc import Iterable

from .cursor import Cursor
from .intervals import Intervals, Run
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
        self.held = 0
        self.position = cursor.frontier
        for first, count in cursor.consumed:
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

    hand_out = hold
    """What a consumer is given who asks for so many."""

    def hold_below(self, end: int) -> list[Run]:
        """Hand out all that is ready below ``end``."""
        ahead = min(end, self._state.next_sequence) - self.position
        return self.hold(self.returned.overlap(0, end) + max(ahead, 0))

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

"""The reading side of a queue that counts deliveries (see ``retries``): what was delivered before comes out alone, so
that a batch does not share the fate of one bad item, and what is not due yet waits.

When an item is due is the wall clock's matter in the log, so that it outlives the process; from then on it is that of
the monotonic clock, so that nobody waits for a clock that was set back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from .disk import Disk
from .intervals import Run
from .pages import Page, Pages
from .reader import Guard, Reader, UnreadableError
from .ready import Ready
from .segments import Segments
from .state import State

_NS = 10**9


class CountedReady(Ready):
    """What a subscription may dequeue now, where deliveries are counted."""

    def __init__(self, disk: Disk, state: State, number: int) -> None:
        super().__init__(state, number)
        self._disk = disk
        self._due: list[tuple[float, int, int]] = []
        """A heap of what is delayed: by the monotonic clock, and the run."""
        attempts, now_ns = state.attempts.get(number), disk.time_ns()
        for first, count, (due_ns, delay_ns) in attempts.delays if attempts is not None else ():
            left_ns = min(due_ns - now_ns, delay_ns)
            if left_ns > 0:
                self._take_out(first, first + count, self.delayed)
                self._wait_for(first, count, left_ns / _NS)

    def __len__(self) -> int:
        self._see_what_is_due()
        return super().__len__()

    def runs(self) -> list[Run]:
        """All that may be handed out, in order."""
        self._see_what_is_due()
        return super().runs()

    def next_run(self, sequence: int) -> Run | None:
        """What is ready from ``sequence`` on."""
        self._see_what_is_due()
        return super().next_run(sequence)

    def hand_out(self, count: int, runs: list[Run] | None = None) -> list[Run]:
        """Hand out an item that was delivered before alone; of the others up to ``count``, up to the next such item."""
        if not len(self):
            return [] if runs is None else runs
        attempts, front = self._state.attempts.get(self.number), self.front()
        suspect = attempts.times.next_from(front) if attempts is not None else None
        if suspect is not None:
            ahead = max(min(suspect, self._state.next_sequence) - self.position, 0)
            count = min(count, max(self.returned.overlap(0, suspect) + ahead, 1))
        return self.hold(count, runs)

    def postpone(self, runs: Iterable[Run], seconds: float) -> None:
        """Take back what was handed out, to come again when so many seconds are over."""
        for first, count in runs:
            self.delayed.add(first, count)
            self._wait_for(first, count, seconds)

    def seconds_until_due(self) -> float | None:
        """How long it is until something is due that is not; None where nothing is delayed."""
        return max(self._due[0][0] - self._disk.monotonic(), 0.0) if self._due else None

    def _wait_for(self, first: int, count: int, seconds: float) -> None:
        heappush(self._due, (self._disk.monotonic() + seconds, first, count))

    def _see_what_is_due(self) -> None:
        while self._due and self._due[0][0] <= self._disk.monotonic():
            _, first, count = heappop(self._due)
            self.delayed.remove(first, count)
            self.returned.add(first, count)


class CountedReader(Reader):
    """Reads what a subscription may dequeue, where deliveries are counted."""

    def __init__(
        self, state: State, ready: CountedReady, segments: Segments, pages: Pages, mutex: Guard, reading: Guard
    ) -> None:
        super().__init__(state, ready, segments, pages, mutex, reading)
        self.counted = ready

    def _first_page(self) -> Page | None:
        """None: there is no short way, since each delivery is to be logged first."""
        return None

    def until_due(self, timeout_seconds: float | None) -> float | None:
        """The timeout, or the time until something is due, if that is less."""
        due_seconds = self.counted.seconds_until_due()
        if due_seconds is None or timeout_seconds is None:
            return timeout_seconds if due_seconds is None else due_seconds
        return min(timeout_seconds, due_seconds)

    def read(self, runs: Iterable[Run]) -> Iterator[tuple[int, bytes]]:
        """Each item of these runs, which are held, with its sequence; nothing of it stays in memory for that.

        Raises ``CorruptionError``, and ``StateError`` where it is consumed.
        """
        for first, count in runs:
            at, end = first, first + count
            while at < end:
                try:
                    page = self._page(at, cursors={})
                except UnreadableError as unreadable:
                    raise unreadable.damage from None
                items = page.items[at - page.first : end - page.first]
                yield from enumerate(items, at)
                at += len(items)

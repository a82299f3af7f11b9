"""How far somebody is with the items of a queue: what he has consumed, in any order."""

from __future__ import annotations

from collections.abc import Iterable

from .intervals import Intervals, Run


class Cursor:
    """A *frontier*, below which everything is consumed, and the runs above it that were consumed out of order.

    None of these begins at the frontier. Pure data, not synchronized.
    """

    __slots__ = ("consumed", "frontier", "name")

    def __init__(self, name: str = "", frontier: int = 0, consumed: Iterable[Run] = ()) -> None:
        self.name = name
        """Of the subscription whose cursor it is; empty for the plain queue."""
        self.frontier = frontier
        self.consumed = Intervals(consumed)

    @property
    def count(self) -> int:
        """How many items are consumed."""
        return self.frontier + len(self.consumed)

    def copy(self, name: str = "") -> Cursor:
        """Another one that is as far."""
        return Cursor(name, self.frontier, self.consumed.runs())

    def consume(self, first: int, count: int) -> None:
        """Consume a run of which nothing is consumed yet."""
        if first != self.frontier:
            self.consumed.add(first, count)
            return
        self.frontier = first + count
        if self.consumed.firsts and self.consumed.firsts[0] == self.frontier:
            self.frontier += self.consumed.pop_lowest(2**63)[1]

    def consume_rest(self, first: int, end: int) -> list[Run]:
        """Consume what is not of the sequences ``first … end - 1``: the runs of it."""
        runs = self.unconsumed(first, end)
        for run in runs:
            self.consume(*run)
        return runs

    def overlaps(self, first: int, end: int) -> bool:
        """Whether any of the sequences ``first … end - 1`` is consumed."""
        return first < self.frontier or (bool(self.consumed.firsts) and self.consumed.overlap(first, end) > 0)

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

    def next_unconsumed(self, sequence: int, end: int) -> Run | None:
        """The first run from ``sequence`` on, and below ``end``, that is not consumed; None if there is none."""
        at = max(sequence, self.frontier)
        run = self.consumed.run_from(at)
        if run is not None and run[0] == at:
            at += run[1]
            run = self.consumed.run_from(at)
        stop = min(run[0], end) if run is not None else end
        return (at, stop - at) if at < stop else None

    def done_of(self, runs: Iterable[Run]) -> list[Run]:
        """What is consumed of these runs."""
        done: list[Run] = []
        for first, count in runs:
            end = first + count
            if first < self.frontier:
                done.append((first, min(end, self.frontier) - first))
            for start, length in self.consumed.between(max(first, self.frontier), end):
                low, high = max(start, first), min(start + length, end)
                done.append((low, high - low))
        return done

"""Sets of sequences as disjoint runs, and cursors: sequences that a subscription has consumed, in any order. Pure data.

Memory follows the number of gaps, never the number of members.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Run = tuple[int, int]
"""``(first, count)``: the sequences ``first … first + count - 1``."""


class Intervals:
    """A set of non-negative integers as sorted, disjoint runs. Runs that touch are one.

    ``len`` counts members. Not synchronized. The caller must not add a member twice, or remove one that is missing:
    ``add`` and ``remove`` assert it.
    """

    __slots__ = ("_ends", "_size", "firsts")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.firsts: list[int] = []
        """First members of the runs, in order. Other classes only read it."""
        self._ends: list[int] = []
        self._size = 0
        for first, count in runs:
            self.add(first, count)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs())

    def runs(self) -> list[Run]:
        """Return the runs, in order. (``list`` of the set would first allocate space for ``len`` runs.)"""
        return [(first, end - first) for first, end in zip(self.firsts, self._ends, strict=True)]

    def add(self, first: int, count: int) -> None:
        """Add a run. None of its members is in the set."""
        end = first + count
        at = bisect_right(self.firsts, first)
        joins_before = at > 0 and self._ends[at - 1] == first
        joins_after = at < len(self.firsts) and self.firsts[at] == end
        assert at == 0 or self._ends[at - 1] <= first, "the run overlaps one before it"
        assert at == len(self.firsts) or self.firsts[at] >= end, "the run overlaps one behind it"
        if joins_before and joins_after:
            self._ends[at - 1] = self._ends[at]
            del self.firsts[at], self._ends[at]
        elif joins_before:
            self._ends[at - 1] = end
        elif joins_after:
            self.firsts[at] = first
        else:
            self.firsts.insert(at, first)
            self._ends.insert(at, end)
        self._size += count

    def remove(self, first: int, count: int) -> None:
        """Remove a run. All of its members are in the set."""
        end = first + count
        at = bisect_right(self.firsts, first) - 1
        assert at >= 0, "the run is not in the set"
        assert self._ends[at] >= end, "the run is not in the set"
        old_first, old_end = self.firsts[at], self._ends[at]
        if old_first == first and old_end == end:
            del self.firsts[at], self._ends[at]
        elif old_first == first:
            self.firsts[at] = end
        elif old_end == end:
            self._ends[at] = first
        else:
            self._ends[at] = first
            self.firsts.insert(at + 1, end)
            self._ends.insert(at + 1, old_end)
        self._size -= count

    def move_lowest(self, count: int, runs: list[Run]) -> int:
        """Move the lowest run, or its first ``count`` members, to the end of ``runs``, and return the number of
        members.

        The run is joined to the last one of ``runs`` if they touch. The set must not be empty. An interruption, by a
        signal handler for instance, finds the members in exactly one of both places.
        """
        firsts, ends = self.firsts, self._ends
        first, end = firsts[0], ends[0]
        count = min(count, end - first)
        at, start = _place_behind(runs, first)
        if count < end - first:
            # No calls from here on, so no signal handler runs between these steps.
            firsts[0] = first + count
            self._size -= count
            runs[at:] = ((start, first + count - start),)
            return count
        # No calls from here on, so no signal handler runs between these steps.
        del firsts[0], ends[0]
        self._size -= count
        runs[at:] = ((start, end - start),)
        return count

    def pop_lowest(self, count: int) -> Run:
        """Remove and return the lowest run, or its first ``count`` members. The set must not be empty."""
        first = self.firsts[0]
        count = min(count, self._ends[0] - first)
        self.remove(first, count)
        return first, count

    def run_from(self, sequence: int) -> Run | None:
        """Return the lowest run of members from ``sequence`` on; None if there is none."""
        at = bisect_right(self._ends, sequence)
        if at == len(self._ends):
            return None
        first = max(self.firsts[at], sequence)
        return first, self._ends[at] - first

    def between(self, first: int, end: int) -> list[Run]:
        """Return the whole runs that have members in ``first … end - 1``, in order."""
        at = bisect_right(self._ends, first)
        stop = bisect_left(self.firsts, end) if first < end else at
        return [(start, self._ends[i] - start) for i, start in enumerate(self.firsts[at:stop], at)]

    def missing(self, first: int, end: int) -> list[Run]:
        """Return the runs of the numbers ``first … end - 1`` that are not in the set, in order."""
        runs: list[Run] = []
        for start, count in [*self.between(first, end), (end, 0)]:
            if first < start:
                runs.append((first, start - first))
            first = start + count
        return runs

    def overlap(self, first: int, end: int) -> int:
        """Return the number of members in ``first … end - 1``."""
        at = bisect_right(self._ends, first)
        stop = bisect_left(self.firsts, end)
        return sum(min(self._ends[i], end) - max(self.firsts[i], first) for i in range(at, stop))


def append_run(runs: list[Run], first: int, count: int) -> tuple[int, tuple[Run]]:
    """Return ``at`` and ``last`` for ``runs[at:] = last``, which appends a run, joined to the last one if they touch.

    The caller makes that assignment itself, in one step with other changes that no interruption may separate.
    """
    at, start = _place_behind(runs, first)
    return at, ((start, first + count - start),)


def last_of(runs: list[Run], count: int) -> list[Run]:
    """Return the runs of the last ``count`` members of ``runs``, the highest run first."""
    last: list[Run] = []
    for first, held in reversed(runs):
        if not count:
            break
        part = min(count, held)
        last.append((first + held - part, part))
        count -= part
    return last


def _place_behind(runs: list[Run], first: int) -> tuple[int, int]:
    """Return the index for a run that begins at ``first``, and where the run begins after it is joined."""
    if runs and sum(runs[-1]) == first:
        return len(runs) - 1, runs[-1][0]
    return len(runs), first


def join_runs(runs: list[Run], more: Iterable[Run]) -> None:
    """Append runs, and join each to the last one if they touch."""
    for first, count in more:
        if runs and sum(runs[-1]) == first:
            runs[-1] = (runs[-1][0], runs[-1][1] + count)
        else:
            runs.append((first, count))


def joined(runs: Iterable[Run]) -> list[Run]:
    """Return the runs in order, each joined to the one before it if they touch. The runs must not overlap."""
    result: list[Run] = []
    join_runs(result, sorted(runs))
    return result


def without(runs: Iterable[Run], others: Iterable[Run]) -> list[Run]:
    """Return the runs, in order, without these parts of them."""
    left = Intervals(runs)
    for run in others:
        left.remove(*run)
    return left.runs()


def within(runs: Iterable[Run], start: int, end: int) -> tuple[Run, ...]:
    """Return the parts of the runs that lie in ``start … end - 1``, in their order."""
    ends = ((max(first, start), min(first + count, end)) for first, count in runs)
    return tuple((first, stop - first) for first, stop in ends if first < stop)


class Cursor:
    """The sequences that one subscription has consumed: a *frontier*, and runs above it, consumed out of order.

    Everything below the frontier is consumed. No run of ``consumed`` begins at the frontier. Not synchronized.
    """

    __slots__ = ("consumed", "frontier", "name")

    def __init__(self, name: str = "", frontier: int = 0, consumed: Iterable[Run] = ()) -> None:
        self.name = name
        """Name of the subscription; empty for the plain queue."""
        self.frontier = frontier
        self.consumed = Intervals(consumed)

    @property
    def count(self) -> int:
        """Number of consumed items."""
        return self.frontier + len(self.consumed)

    def copy(self, name: str = "") -> Cursor:
        """Return a copy of the cursor with another name."""
        return Cursor(name, self.frontier, self.consumed.runs())

    def consume(self, first: int, count: int) -> None:
        """Consume a run. None of its sequences is consumed yet."""
        if first != self.frontier:
            self.consumed.add(first, count)
            return
        self.frontier = first + count
        if self.consumed.firsts and self.consumed.firsts[0] == self.frontier:
            self.frontier += self.consumed.pop_lowest(2**63)[1]

    def consume_rest(self, first: int, end: int) -> list[Run]:
        """Consume those of the sequences ``first … end - 1`` that are not consumed, and return their runs."""
        runs = self.unconsumed(first, end)
        for run in runs:
            self.consume(*run)
        return runs

    def overlaps(self, first: int, end: int) -> bool:
        """Return whether any of the sequences ``first … end - 1`` is consumed."""
        return first < self.frontier or (bool(self.consumed.firsts) and self.consumed.overlap(first, end) > 0)

    def live_between(self, first: int, end: int) -> int:
        """Return the number of the sequences ``first … end - 1`` that are not consumed."""
        start = max(first, self.frontier)
        return end - start - self.consumed.overlap(start, end) if start < end else 0

    def unconsumed(self, first: int, end: int) -> list[Run]:
        """Return the runs of the sequences ``first … end - 1`` that are not consumed."""
        return self.consumed.missing(max(first, self.frontier), end)

    def next_unconsumed(self, sequence: int, end: int) -> Run | None:
        """Return the first run that is not consumed, from ``sequence`` on and below ``end``; None if there is none."""
        at = max(sequence, self.frontier)
        run = self.consumed.run_from(at)
        if run is not None and run[0] == at:
            at += run[1]
            run = self.consumed.run_from(at)
        stop = min(run[0], end) if run is not None else end
        return (at, stop - at) if at < stop else None

    def done_of(self, runs: Iterable[Run]) -> list[Run]:
        """Return the consumed parts of these runs."""
        done: list[Run] = []
        for first, count in runs:
            end = first + count
            if first < self.frontier:
                done.append((first, min(end, self.frontier) - first))
            for start, length in self.consumed.between(max(first, self.frontier), end):
                low, high = max(start, first), min(start + length, end)
                done.append((low, high - low))
        return done

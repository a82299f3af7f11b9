"""Sets of sequences as disjoint runs, and cursors: sequences that a subscription has consumed, in any order. Pure data.

Memory follows the number of gaps, never the number of members.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

Run = tuple[int, int]
"""``(first, count)``: the sequences ``first … first + count - 1``."""


class Intervals:
    """A set of non-negative integers as sorted, disjoint runs. Runs that touch are one.

    ``len`` counts members. Not synchronized. The caller must not add a member twice, or remove one that is missing:
    ``add`` and ``remove`` assert it.

    The runs are an array that is open at both ends, so that the lowest run comes and goes at a constant cost:

    1. The run at each place is ``_firsts[place] … _ends[place] - 1``. The places below ``_start`` are *free*.
    2. A removal of the lowest run frees its place. A run that is added below all others takes the last free place.
    3. A set that frees more than half of its places drops the free ones. One that needs a free place gets many.
    """

    __slots__ = ("_ends", "_firsts", "_start", "size")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._start = 0
        self.size = 0
        """Number of members, for callers that have no time for ``len``. Other classes only read it."""
        for first, count in runs:
            self.add(first, count)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs())

    @property
    def lowest(self) -> int:
        """The lowest member. The set must not be empty."""
        return self._firsts[self._start]

    def runs(self) -> list[Run]:
        """Return the runs, in order. (``list`` of the set would first allocate space for ``len`` runs.)"""
        places = slice(self._start, None)
        return [(first, end - first) for first, end in zip(self._firsts[places], self._ends[places], strict=True)]

    def copy(self) -> Intervals:
        """Return a copy. It costs the copies of two arrays, without a step for each run."""
        return _with(self._firsts[self._start :], self._ends[self._start :], self.size)

    def gaps(self, first: int) -> Intervals:
        """Return the numbers from ``first`` on, which is below all members, that are missing below the highest one."""
        if not self.size:
            return Intervals()
        size = self._ends[-1] - first - self.size
        return _with([first, *self._ends[self._start : -1]], self._firsts[self._start :], size)

    def add(self, first: int, count: int) -> None:
        """Add a run. None of its members is in the set."""
        end, firsts, ends, start = first + count, self._firsts, self._ends, self._start
        at = bisect_right(firsts, first, start)
        joins_before = at > start and ends[at - 1] == first
        joins_after = at < len(firsts) and firsts[at] == end
        assert at == start or ends[at - 1] <= first, "the run overlaps one before it"
        assert at == len(firsts) or firsts[at] >= end, "the run overlaps one behind it"
        if joins_before and joins_after:
            firsts[at] = firsts[at - 1]
            self._remove_place(at - 1)
        elif joins_before:
            ends[at - 1] = end
        elif joins_after:
            firsts[at] = first
        elif at == start < len(firsts):
            self._take_free_place(first, end)
        else:
            firsts.insert(at, first)
            ends.insert(at, end)
        self.size += count

    def remove(self, first: int, count: int) -> None:
        """Remove a run. All of its members are in the set."""
        end, firsts, ends = first + count, self._firsts, self._ends
        at = bisect_right(firsts, first, self._start) - 1
        assert at >= self._start, "the run is not in the set"
        assert ends[at] >= end, "the run is not in the set"
        old_first, old_end = firsts[at], ends[at]
        if old_first == first and old_end == end:
            self._remove_place(at)
        elif old_first == first:
            firsts[at] = end
        elif old_end == end:
            ends[at] = first
        else:
            ends[at] = first
            firsts.insert(at + 1, end)
            ends.insert(at + 1, old_end)
        self.size -= count

    def move_lowest(self, count: int, runs: list[Run]) -> int:
        """Move the lowest run, or its first ``count`` members, to the end of ``runs``, and return the number of
        members.

        The run is joined to the last one of ``runs`` if they touch. The set must not be empty. An interruption, by a
        signal handler for instance, finds the members in exactly one of both places.
        """
        firsts, ends, place = self._firsts, self._ends, self._start
        first, end = firsts[place], ends[place]
        count = min(count, end - first)
        at, start = _place_behind(runs, first)
        if count < end - first:
            # No calls from here on, so no signal handler runs between these steps.
            firsts[place] = first + count
            self.size -= count
            runs[at:] = ((start, first + count - start),)
            return count
        drops, free = self._without_lowest()
        # No calls from here on, so no signal handler runs between these steps.
        del firsts[:drops], ends[:drops]
        self._start = free
        self.size -= count
        runs[at:] = ((start, end - start),)
        return count

    def drop_below(self, end: int) -> None:
        """Remove all members below ``end``."""
        at = bisect_right(self._ends, end, self._start)
        gone = slice(self._start, at)
        self.size -= sum(self._ends[gone]) - sum(self._firsts[gone])
        del self._firsts[:at], self._ends[:at]
        self._start = 0
        if self._firsts and self._firsts[0] < end:
            self.size -= end - self._firsts[0]
            self._firsts[0] = end

    def pop_lowest(self, count: int) -> Run:
        """Remove and return the lowest run, or its first ``count`` members. The set must not be empty."""
        first, end = self._firsts[self._start], self._ends[self._start]
        count = min(count, end - first)
        self.remove(first, count)
        return first, count

    def run_from(self, sequence: int) -> Run | None:
        """Return the lowest run of members from ``sequence`` on; None if there is none."""
        at = bisect_right(self._ends, sequence, self._start)
        if at == len(self._ends):
            return None
        first = max(self._firsts[at], sequence)
        return first, self._ends[at] - first

    def between(self, first: int, end: int) -> list[Run]:
        """Return the whole runs that have members in ``first … end - 1``, in order."""
        at, stop = self._places(first, end) if first < end else (0, 0)
        return [(start, self._ends[i] - start) for i, start in enumerate(self._firsts[at:stop], at)]

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
        at, stop = self._places(first, end)
        return sum(min(self._ends[i], end) - max(self._firsts[i], first) for i in range(at, stop))

    def _places(self, first: int, end: int) -> tuple[int, int]:
        """Return the first place of the runs that have members in ``first … end - 1``, and the place behind them."""
        return bisect_right(self._ends, first, self._start), bisect_left(self._firsts, end, self._start)

    def _remove_place(self, at: int) -> None:
        """Remove the run at this place."""
        if at > self._start:
            del self._firsts[at], self._ends[at]
        else:
            drops, self._start = self._without_lowest()
            del self._firsts[:drops], self._ends[:drops]

    def _without_lowest(self) -> tuple[int, int]:
        """Return how many places to drop when the lowest run goes, and ``_start`` behind that."""
        free = self._start + 1
        return (free, 0) if 2 * free > len(self._firsts) else (0, free)

    def _take_free_place(self, first: int, end: int) -> None:
        """Add a run below all others."""
        if not self._start:
            self._start = len(self._firsts)
            self._firsts *= 2
            self._ends *= 2
        self._start -= 1
        self._firsts[self._start], self._ends[self._start] = first, end


def _with(firsts: list[int], ends: list[int], size: int) -> Intervals:
    """Return the set of these runs, with ``size`` members."""
    intervals = Intervals()
    intervals._firsts, intervals._ends, intervals.size = firsts, ends, size
    return intervals


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


def united(runs: Iterable[Run], members: Sequence[int]) -> list[Run]:
    """Return the runs in their order, and behind them those of the ``members`` that are in none of them."""
    result = list(runs)
    if not members:
        return result
    rest, low, high = Intervals((member, 1) for member in members), min(members), max(members)
    for first, count in [run for run in result if run[0] <= high and sum(run) > low]:
        for each in within(rest.between(first, first + count), first, first + count):
            rest.remove(*each)
    return [*result, *rest]


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
        other = Cursor(name, self.frontier)
        other.consumed = self.consumed.copy()
        return other

    def consume(self, first: int, count: int) -> None:
        """Consume a run. None of its sequences is consumed yet."""
        if first != self.frontier:
            self.consumed.add(first, count)
            return
        self.frontier = first + count
        if self.consumed.size and self.consumed.lowest == self.frontier:
            self.frontier += self.consumed.pop_lowest(2**63)[1]

    def consume_rest(self, first: int, end: int) -> list[Run]:
        """Consume those of the sequences ``first … end - 1`` that are not consumed, and return their runs."""
        runs = self.unconsumed(first, end)
        if first > self.frontier:
            for run in runs:
                self.consume(*run)
        elif end > self.frontier:
            self.consumed.drop_below(end)
            self.consume(self.frontier, end - self.frontier)
        return runs

    def overlaps(self, first: int, end: int) -> bool:
        """Return whether any of the sequences ``first … end - 1`` is consumed."""
        return first < self.frontier or (self.consumed.size > 0 and self.consumed.overlap(first, end) > 0)

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

    def unconsumed_from(self, sequence: int, end: int) -> Iterator[Run]:
        """Yield the runs of the sequences ``sequence … end - 1`` that are not consumed when their turn comes."""
        while (run := self.next_unconsumed(sequence, end)) is not None:
            yield run
            sequence = sum(run)

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

"""Sets of sequences as disjoint runs, and cursors: sequences that a subscription has consumed, in any order. Pure data.

Memory follows the number of gaps, never the number of members.

Many runs are added, removed or compared in a few calls of C code, since other threads wait meanwhile. A set is its
*bounds*: where its runs begin, and where they end, each in order. Two sets are merged by two sorts of their bounds:

- As many runs have a number as begin at it or before, without those that end there or before.
- So a number is in both sets if it is between the next beginning and the end at the same place (see ``_common``).
- A run of the union ends at the end before a later beginning (see ``_union``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, compress, islice, starmap
from operator import add, gt, itemgetter, le, lt, sub

Run = tuple[int, int]
"""``(first, count)``: the sequences ``first … first + count - 1``."""
Bounds = tuple[list[int], list[int]]
"""Where the runs of a set begin, and where they end, each in order."""
_FIRST, _COUNT = itemgetter(0), itemgetter(1)
_RUN_COSTS = 256
"""Runs that a merge passes in about the time that one run takes by itself."""


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
        """Begin with these runs, in any order. No number is in two of them."""
        firsts, ends = _bounds_of(list(runs))
        if len(firsts) > 1:
            assert _are_apart(firsts, ends), "two runs overlap"
            firsts, ends = _union(firsts, ends)
        self._firsts, self._ends = firsts, ends
        self._start = 0
        self.size = sum(ends) - sum(firsts)
        """Number of members, for callers that have no time for ``len``. Other classes only read it."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs())

    @property
    def lowest(self) -> int:
        """The lowest member. The set must not be empty."""
        return self._firsts[self._start]

    @property
    def end(self) -> int:
        """The number behind the highest member. The set must not be empty."""
        return self._ends[-1]

    @property
    def run_count(self) -> int:
        """Number of runs."""
        return len(self._firsts) - self._start

    def may_merge(self, run_count: int) -> bool:
        """Return whether a merge with so many runs takes less time than each of them by itself."""
        return run_count > 1 + (len(self._firsts) - self._start) // _RUN_COSTS

    def runs(self) -> list[Run]:
        """Return the runs, in order. (``list`` of the set would first allocate space for ``len`` runs.)"""
        return self._runs(self._start, None)

    def copy(self) -> Intervals:
        """Return a copy. It costs the copies of two arrays, without a step for each run."""
        return _with(self._firsts[self._start :], self._ends[self._start :])

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

    def add_all(self, runs: Sequence[Run]) -> None:
        """Add runs, in any order. None of their members is in the set, nor in two of them."""
        if self.may_merge(len(runs)):
            self.unite(Intervals(runs))
        else:
            for first, count in reversed(runs):  # each of them comes below the others, as a rule
                self.add(first, count)

    def remove_all(self, runs: Sequence[Run]) -> None:
        """Remove runs, in any order. All of their members are in the set, and none is in two of them."""
        if self.may_merge(len(runs)):
            self.subtract(Intervals(runs))
        else:
            for first, count in runs:
                self.remove(first, count)

    def unite(self, other: Intervals) -> None:
        """Add all members of another set. None of them is in this one."""
        if not self.may_merge(other.run_count):
            for first, count in reversed(other.runs()):
                self.add(first, count)
            return
        at = bisect_left(self._ends, other.lowest, self._start)
        span = slice(at, bisect_right(self._firsts, other.end, at))
        firsts, ends = _merged((self._firsts[span], self._ends[span]), other._bounds())
        assert _are_apart(firsts, ends), "a run overlaps another one"
        self._firsts[span], self._ends[span] = _union(firsts, ends)
        self.size += other.size

    def subtract(self, other: Intervals) -> None:
        """Remove all members of another set. All of them are in this one."""
        if not other.size:
            return
        span = slice(*self._places(other.lowest, other.end))
        ours, (firsts, ends) = (self._firsts[span], self._ends[span]), other._bounds()
        # The numbers that are not in the other set are a set as well. The common members stay.
        kept = _common(_merged(ours, ([0, *ends], [*firsts, 2**64])))
        assert _size_of(ours) - _size_of(kept) == other.size, "a run is not in the set"
        self._firsts[span], self._ends[span] = kept
        self.size -= other.size

    def common(self, other: Intervals) -> Intervals:
        """Return the set of the members that are also in another set."""
        if not self.size or not other.size:
            return Intervals()
        if not self.may_merge(other.run_count):
            return Intervals([run for first, count in other for run in self.within(first, first + count)])
        first, end = max(self.lowest, other.lowest), min(self.end, other.end)
        return _with(*_common(_merged(self.bounds_between(first, end), other.bounds_between(first, end))))

    def below(self, end: int) -> Intervals:
        """Return the set of the members below ``end``."""
        places = slice(self._start, bisect_left(self._firsts, end, self._start))
        firsts, ends = self._firsts[places], self._ends[places]
        if ends:
            ends[-1] = min(ends[-1], end)
        return _with(firsts, ends)

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
        """Move runs of up to ``count`` members, the lowest ones, to the end of ``runs``. Return the number of members.

        If the lowest run has more members, its first ones are moved.

        The lowest run is joined to the last one of ``runs`` if they touch. The set must not be empty. An interruption,
        by a signal handler for instance, finds the members in exactly one of both places.
        """
        firsts, ends, place = self._firsts, self._ends, self._start
        first, end = firsts[place], ends[place]
        at, start = _place_behind(runs, first)
        if count < end - first:
            # No calls from here on, so no signal handler runs between these steps.
            firsts[place] = first + count
            self.size -= count
            runs[at:] = ((start, first + count - start),)
            return count
        moved, places, lowest = end - first, 1, [(start, end - start)]
        if moved < count and moved < self.size:
            lows, highs = firsts[place : place + count], ends[place : place + count]
            counts = list(map(sub, highs, lows))
            totals = list(accumulate(counts))
            places = bisect_right(totals, count)
            moved = totals[places - 1]
            lowest += zip(lows[1:places], counts[1:places], strict=True)
        drops, free = self._without_lowest(places)
        # No calls from here on, so no signal handler runs between these steps.
        del firsts[:drops], ends[:drops]
        self._start = free
        self.size -= moved
        runs[at:] = lowest
        return moved

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

    def pop_lowest(self) -> int:
        """Remove the lowest run, and return the number behind it. The set must not be empty."""
        first, end = self._firsts[self._start], self._ends[self._start]
        self.remove(first, end - first)
        return end

    def run_from(self, sequence: int) -> Run | None:
        """Return the lowest run of members from ``sequence`` on; None if there is none."""
        at = bisect_right(self._ends, sequence, self._start)
        if at == len(self._ends):
            return None
        first = max(self._firsts[at], sequence)
        return first, self._ends[at] - first

    def between(self, first: int, end: int) -> list[Run]:
        """Return the whole runs that have members in ``first … end - 1``, in order."""
        return self._runs(*self._places(first, end)) if first < end else []

    def within(self, first: int, end: int) -> list[Run]:
        """Return the runs of the members in ``first … end - 1``, in order."""
        runs = self.between(first, end)
        if runs:
            (start, count), least = runs[0], max(runs[0][0], first)
            runs[0] = least, start + count - least
            start, count = runs[-1]
            runs[-1] = start, min(start + count, end) - start
        return runs

    def rest(self, first: int, end: int) -> Intervals:
        """Return the set of the numbers ``first … end - 1`` that are not in this one."""
        if first >= end:
            return Intervals()
        firsts, ends = self.bounds_between(first, end)
        lows, highs = [first, *ends], [*firsts, end]
        # Only the first and the last one can be empty: the set may have the numbers at both ends.
        if lows[-1] >= highs[-1]:
            del lows[-1], highs[-1]
        if lows and lows[0] >= highs[0]:
            del lows[0], highs[0]
        return _with(lows, highs)

    def missing(self, first: int, end: int) -> list[Run]:
        """Return the runs of the numbers ``first … end - 1`` that are not in the set, in order."""
        return self.rest(first, end).runs()

    def bounds_between(self, first: int, end: int) -> Bounds:
        """Return the bounds of the whole runs that have members in ``first … end - 1``."""
        at, stop = self._places(first, end)
        return self._firsts[at:stop], self._ends[at:stop]

    def overlap(self, first: int, end: int) -> int:
        """Return the number of members in ``first … end - 1``."""
        at, stop = self._places(first, end)
        if at >= stop:
            return 0
        firsts, ends = self._firsts[at:stop], self._ends[at:stop]
        return sum(ends) - sum(firsts) - max(first - firsts[0], 0) - max(ends[-1] - end, 0)

    def _runs(self, at: int, stop: int | None) -> list[Run]:
        """Return the runs at the places ``at … stop - 1``."""
        firsts = self._firsts[at:stop]
        return list(zip(firsts, map(sub, self._ends[at:stop], firsts), strict=True))

    def _bounds(self) -> Bounds:
        return self._firsts[self._start :], self._ends[self._start :]

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

    def _without_lowest(self, places: int = 1) -> tuple[int, int]:
        """Return how many places to drop when the lowest runs go, and ``_start`` behind that."""
        free = self._start + places
        return (free, 0) if 2 * free > len(self._firsts) else (0, free)

    def _take_free_place(self, first: int, end: int) -> None:
        """Add a run below all others."""
        if not self._start:
            self._start = len(self._firsts)
            self._firsts *= 2
            self._ends *= 2
        self._start -= 1
        self._firsts[self._start], self._ends[self._start] = first, end


def _size_of(bounds: Bounds) -> int:
    """Return the number of members of the set with these bounds."""
    return sum(bounds[1]) - sum(bounds[0])


def _with(firsts: list[int], ends: list[int]) -> Intervals:
    """Return the set with these bounds. Its runs do not touch."""
    intervals = Intervals.__new__(Intervals)
    intervals._start = 0
    intervals._firsts, intervals._ends, intervals.size = firsts, ends, sum(ends) - sum(firsts)
    return intervals


def _bounds_of(runs: Sequence[Run]) -> Bounds:
    """Return the bounds of runs, which are in any order."""
    return sorted(map(_FIRST, runs)), sorted(starmap(add, runs))


def _merged(one: Bounds, other: Bounds) -> Bounds:
    """Return the bounds of two sets together."""
    return sorted(one[0] + other[0]), sorted(one[1] + other[1])


def _are_apart(firsts: list[int], ends: list[int]) -> bool:
    """Return whether no number is in two of the runs that these merged bounds are of."""
    return all(map(le, ends, islice(firsts, 1, None)))


def _union(firsts: list[int], ends: list[int]) -> Bounds:
    """Return the bounds of the numbers in any of the runs that these merged bounds are of."""
    later = firsts[1:]
    parted = list(map(gt, later, ends))
    return [*firsts[:1], *compress(later, parted)], [*compress(ends, parted), *ends[-1:]]


def _common(merged: Bounds) -> Bounds:
    """Return the bounds of the numbers in both of the sets that these merged bounds are of."""
    later, ends = merged[0][1:], merged[1]
    in_both = list(map(lt, later, ends))
    return list(compress(later, in_both)), list(compress(ends, in_both))


def append_run(runs: list[Run], first: int, count: int) -> tuple[int, tuple[Run]]:
    """Return ``at`` and ``last`` for ``runs[at:] = last``, which appends a run, joined to the last one if they touch.

    The caller makes that assignment itself, in one step with other changes that no interruption may separate.
    """
    at, start = _place_behind(runs, first)
    return at, ((start, first + count - start),)


def count_of(runs: Iterable[Run]) -> int:
    """Return the number of sequences in these runs."""
    return sum(map(_COUNT, runs))


def joined(runs: Sequence[Run]) -> Run | None:
    """Return the one run that these runs, in any order, join to without an overlap; None if they do not."""
    firsts, ends = _bounds_of(runs)
    return (firsts[0], ends[-1] - firsts[0]) if firsts[1:] == ends[:-1] else None


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


def without(runs: Iterable[Run], others: Iterable[Run]) -> list[Run]:
    """Return the runs, in order, without these parts of them."""
    left = Intervals(runs)
    left.remove_all(list(others))
    return left.runs()


def united(runs: Iterable[Run], members: Sequence[int]) -> list[Run]:
    """Return the runs in their order, and behind them those of the ``members`` that are in none of them."""
    result = list(runs)
    if not members:
        return result
    rest, low, high = Intervals((member, 1) for member in members), min(members), max(members)
    for first, count in [run for run in result if run[0] <= high and sum(run) > low]:
        rest.remove_all(rest.within(first, first + count))
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
            self.frontier = self.consumed.pop_lowest()

    def consume_all(self, runs: Intervals) -> None:
        """Consume all of these sequences. None of them is consumed yet."""
        self.consumed.unite(runs)
        if self.consumed.size and self.consumed.lowest == self.frontier:
            self.frontier = self.consumed.pop_lowest()

    def consume_rest(self, first: int, end: int) -> list[Run]:
        """Consume those of the sequences ``first … end - 1`` that are not consumed, and return their runs."""
        runs = self.unconsumed(first, end)
        if first > self.frontier:
            self.consumed.add_all(runs)
        elif end > self.frontier:
            self.consumed.drop_below(end)
            self.consume(self.frontier, end - self.frontier)
        return runs

    def overlaps(self, first: int, end: int) -> bool:
        """Return whether any of the sequences ``first … end - 1`` is consumed."""
        return first < self.frontier or (self.consumed.size > 0 and self.consumed.overlap(first, end) > 0)

    def lacks(self, runs: Sequence[Run], end: int) -> bool:
        """Return whether these runs have sequences below ``end`` that are not consumed, each of them in one run."""
        firsts, ends = _bounds_of(runs)
        if firsts[0] < self.frontier or ends[-1] > end or min(map(_COUNT, runs)) <= 0:
            return False
        consumed = self.consumed
        if consumed.may_merge(len(runs)):
            return _are_apart(*_merged((firsts, ends), consumed.bounds_between(firsts[0], ends[-1])))
        return _are_apart(firsts, ends) and not any(map(consumed.overlap, firsts, ends))

    def live_between(self, first: int, end: int) -> int:
        """Return the number of the sequences ``first … end - 1`` that are not consumed."""
        start = max(first, self.frontier)
        return end - start - self.consumed.overlap(start, end) if start < end else 0

    def unconsumed(self, first: int, end: int) -> list[Run]:
        """Return the runs of the sequences ``first … end - 1`` that are not consumed."""
        return self.consumed.missing(max(first, self.frontier), end)

    def rest(self, first: int, end: int) -> Intervals:
        """Return the set of the sequences ``first … end - 1`` that are not consumed."""
        return self.consumed.rest(max(first, self.frontier), end)

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

    def done_of(self, runs: Intervals) -> Intervals:
        """Return the set of these sequences that are consumed: ``runs`` itself if the frontier has passed them."""
        if not runs.size or runs.end <= self.frontier:
            return runs
        done = self.consumed.common(runs)
        if runs.lowest < self.frontier:
            done.unite(runs.below(self.frontier))
        return done

"""Counts of deliveries and delays of the items that a subscription has not consumed, kept by runs. Pure data.

Memory follows the number of runs that differ, never the number of items. Not synchronized.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

from .operations import TIMES_MAX

Value = TypeVar("Value")
Valued = tuple[int, int, Value]
"""``(first, count, value)``: the value of the sequences ``first … first + count - 1``."""


class Runs(Generic[Value]):
    """A mapping of sequences to values, as sorted, disjoint runs. Neighbours with the same value are one run."""

    __slots__ = ("_ends", "_firsts", "_values")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._values: list[Value] = []

    def __len__(self) -> int:
        """Return the number of runs, which is the cost in memory."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[Valued[Value]]:
        for first, end, value in zip(self._firsts, self._ends, self._values, strict=True):
            yield first, end - first, value

    def get(self, sequence: int) -> Value | None:
        """Return the value of this sequence; None if it has none."""
        at = bisect_right(self._firsts, sequence) - 1
        return self._values[at] if at >= 0 and sequence < self._ends[at] else None

    def next_from(self, sequence: int) -> int | None:
        """Return the lowest sequence from ``sequence`` on that has a value; None if there is none."""
        at = bisect_right(self._ends, sequence)
        return max(self._firsts[at], sequence) if at < len(self._ends) else None

    def pieces(self, first: int, count: int) -> list[tuple[int, int, Value | None]]:
        """Return the run, in order, in parts with one value each; None stands for no value."""
        found: list[tuple[int, int, Value | None]] = []
        at, end = bisect_right(self._ends, first), first + count
        while first < end:
            if at == len(self._firsts) or end <= self._firsts[at]:
                found.append((first, end - first, None))
                break
            if first < self._firsts[at]:
                found.append((first, self._firsts[at] - first, None))
                first = self._firsts[at]
            stop = min(self._ends[at], end)
            found.append((first, stop - first, self._values[at]))
            first, at = stop, at + 1
        return found

    def put(self, first: int, count: int, value: Value) -> None:
        """Set the value of the whole run, and replace the values that it had."""
        self.drop(first, count)
        at, end = bisect_left(self._firsts, first), first + count
        if at < len(self._firsts) and self._firsts[at] == end and self._values[at] == value:
            end = self._ends[at]
            self._delete(at, at + 1)
        if at and self._ends[at - 1] == first and self._values[at - 1] == value:
            self._ends[at - 1] = end
            return
        self._insert(at, first, end, value)

    def drop(self, first: int, count: int) -> None:
        """Remove the values of the run."""
        end = first + count
        at, stop = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        if at >= stop:
            return
        low, high = self._firsts[at], self._ends[stop - 1]
        before, behind = self._values[at], self._values[stop - 1]
        self._delete(at, stop)
        if end < high:
            self._insert(at, end, high, behind)
        if low < first:
            self._insert(at, low, first, before)

    def _insert(self, at: int, first: int, end: int, value: Value) -> None:
        self._firsts.insert(at, first)
        self._ends.insert(at, end)
        self._values.insert(at, value)

    def _delete(self, at: int, stop: int) -> None:
        del self._firsts[at:stop], self._ends[at:stop], self._values[at:stop]


class Attempts:
    """Counts and delays of the deliveries of one subscription, for the sequences that it has not consumed."""

    __slots__ = ("delays", "times")

    def __init__(self) -> None:
        self.times: Runs[int] = Runs()
        """How often each sequence was delivered."""
        self.delays: Runs[tuple[int, int]] = Runs()
        """When each sequence is due, in nanoseconds since the epoch, and how far off that was when it was logged."""

    def __bool__(self) -> bool:
        return bool(self.times or self.delays)

    def deliver(self, first: int, count: int, times: int = 1) -> None:
        """Add ``times`` deliveries of the run, or take the last one back if that is 0, and end its delays."""
        for start, length, before in self.times.pieces(first, count):
            after = (before or 0) + times if times else (before or 0) - 1
            if after > 0:
                self.times.put(start, length, min(after, TIMES_MAX))
            else:
                self.times.drop(start, length)
        self.delays.drop(first, count)

    def delay(self, first: int, count: int, due_ns: int, delay_ns: int) -> None:
        """Set the delay of the run."""
        self.delays.put(first, count, (due_ns, delay_ns))

    def drop(self, first: int, count: int) -> None:
        """Remove the counts and delays of the run, which is consumed."""
        self.times.drop(first, count)
        self.delays.drop(first, count)

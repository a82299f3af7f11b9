"""What is measured while a queue is at work: histograms, and the meters that make them.

Buckets are fixed, so that histograms can be subtracted, and added up over queues. Each bound is about twice the one
before it: what a quantile is off by.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from math import inf, nan

SECONDS = tuple(float(f"{step}e{power}") for power in range(-5, 2) for step in (1, 2, 5))
"""The bounds of times: 10 microseconds to 50 seconds, at numbers that people name in their objectives."""
TRANSACTIONS = tuple(step * 10**power for power in range(4) for step in (1, 2, 5))
"""The bounds of how many transactions there are in a group."""


@dataclass(frozen=True, repr=False)
class Histogram:
    """How often which values came, in buckets: ``later - earlier`` is that of the time between two looks.

    ``counts`` has one more than there are ``bounds``: of values up to each of these, above the one before it, and of
    those above the last. ``sum`` is that of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Of the values; nan where there are none."""
        return self.sum / self.count if self.count else nan

    def quantile(self, part: float) -> float:
        """The bound that this part of the values, from 0 to 1, does not exceed; the largest of these exceeds the bound
        before it. inf if it is above the last bound, nan where there are no values."""
        if not 0 <= part <= 1:
            raise ValueError(f"a part must be from 0 to 1, got {part}")
        if not self.count:
            return nan
        wanted = max(part * self.count, 1)
        upto = accumulate(self.counts)
        return next(bound for bound, count in zip((*self.bounds, inf), upto, strict=True) if count >= wanted)

    def __sub__(self, earlier: Histogram) -> Histogram:
        if self.bounds != earlier.bounds:
            raise ValueError("histograms with other bounds cannot be subtracted")
        counts = (late - early for late, early in zip(self.counts, earlier.counts, strict=True))
        return Histogram(self.bounds, tuple(counts), self.sum - earlier.sum)

    def __repr__(self) -> str:
        if not self.count:
            return "Histogram(no values)"
        half, most, top = (f"{self.quantile(part):.4g}" for part in (0.5, 0.99, 1))
        return f"Histogram({self.count:,} values, mean {self.mean:.3g}, half <= {half}, 99% <= {most}, all <= {top})"


class Meter:
    """Makes a histogram of values.

    They are counted later, many at once: on its way through a flush a value takes no lock, and 30 ns instead of 100.
    """

    __slots__ = ("_bounds", "_counts", "_noted", "_sum", "note")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum: float = 0
        self._noted: list[float] = []
        self.note: Callable[[float], None] = self._noted.append
        """Take a value, to be counted. For any thread: it is one call of C."""

    def count(self) -> None:
        """Count what was noted, which takes no more memory then. For one thread at a time."""
        noted = len(self._noted)
        values = sorted(self._noted[:noted])  # a bisection for each bucket, not for each value; many are the same
        del self._noted[:noted]  # not those that came meanwhile
        self._sum += sum(values)
        below = 0
        for at, bound in enumerate(self._bounds):
            upto = bisect_right(values, bound, below)
            self._counts[at] += upto - below
            below = upto
        self._counts[-1] += noted - below

    def histogram(self) -> Histogram:
        """Of all that was noted. For one thread at a time, the same as ``count``."""
        self.count()
        return Histogram(self._bounds, tuple(self._counts), self._sum)


class Meters:
    """Those of a queue; see ``Stats``, which has a histogram of each."""

    def __init__(self) -> None:
        self.flush_seconds = Meter(SECONDS)
        self.commit_seconds = Meter(SECONDS)
        self.read_seconds = Meter(SECONDS)
        self.group_size = Meter(TRANSACTIONS)

    def count(self) -> None:
        """Count what was noted. For one thread at a time."""
        for meter in vars(self).values():
            meter.count()

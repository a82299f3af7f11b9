"""Measurements of a queue at work: counts, histograms, and the meters that make them.

Buckets are fixed, so histograms can be subtracted, and added up over queues. Each bound is about twice the one before
it. So a quantile can be wrong by a factor of about two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from math import inf, nan

SECONDS = tuple(float(f"{step}e{power}") for power in range(-5, 2) for step in (1, 2, 5))
"""Bounds for times: 10 microseconds to 50 seconds, at the round numbers that service objectives name."""
TRANSACTIONS = tuple(step * 10**power for power in range(4) for step in (1, 2, 5))
"""Bounds for the number of transactions in a group."""


@dataclass(frozen=True, repr=False)
class Histogram:
    """The number of measured values in each of several buckets.

    ``later - earlier`` is the histogram of the values between two moments::

        before = queue.stats().flush_seconds
        ...
        print((queue.stats().flush_seconds - before).quantile(0.99))

    Args:
        bounds: Upper bounds of the buckets, ascending, in the unit of the values.
        counts: Number of values in each bucket, one count more than there are bounds. A bucket holds the values up to
            its bound and above the bound before it. The last one holds the values above the last bound.
        sum: Sum of all values.

    A histogram never changes, so any thread may use it. It is not durable.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean of the values; nan if there are none."""
        return self.sum / self.count if self.count else nan

    def quantile(self, part: float) -> float:
        """Return an upper bound of the smallest values that make up this part of all values.

        The largest of these values is above the bound before the returned one.

        Args:
            part: Part of all values, from 0 to 1. For example, 0.5 asks for the median.

        Returns:
            One of ``bounds``. inf if that value is above the last bound, and nan if there are no values.

        Raises:
            ValueError: If ``part`` is not from 0 to 1.

        For any thread.
        """
        if not 0 <= part <= 1:
            raise ValueError(f"a part must be from 0 to 1, got {part}")
        if not self.count:
            return nan
        wanted = max(part * self.count, 1)
        upto = accumulate(self.counts)
        return next(bound for bound, count in zip((*self.bounds, inf), upto, strict=True) if count >= wanted)

    def __sub__(self, earlier: Histogram) -> Histogram:
        if self.bounds != earlier.bounds:
            raise ValueError("histograms with different bounds cannot be subtracted: subtract histograms of one kind")
        counts = (late - early for late, early in zip(self.counts, earlier.counts, strict=True))
        return Histogram(self.bounds, tuple(counts), self.sum - earlier.sum)

    def __repr__(self) -> str:
        if not self.count:
            return "Histogram(no values)"
        half, most, top = (f"{self.quantile(part):.4g}" for part in (0.5, 0.99, 1))
        return f"Histogram({self.count:,} values, mean {self.mean:.3g}, half <= {half}, 99% <= {most}, all <= {top})"


@dataclass
class Counts:
    """The counts of a queue since it was opened. Its mutex guards them."""

    refused: int = 0
    """Number of transactions that were refused because the queue is full."""
    given_back: int = 0
    """Number of items that were released by sessions that had dequeued them."""
    rejected: int = 0
    """Number of items that sessions have rejected."""
    dead: int = 0
    """Number of items that were moved to the dead letters."""
    undecodable: int = 0
    """Number of times that a codec refused a dequeued item."""


class Meter:
    """A collector of values for a histogram.

    Values are counted later, many at once. On its way through a flush a value takes no lock, and 30 ns instead of 100.
    """

    __slots__ = ("_bounds", "_counts", "_noted", "_sum", "note")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum: float = 0
        self._noted: list[float] = []
        self.note: Callable[[float], None] = self._noted.append
        """Take a value, to be counted later. For any thread: it is one call of C."""

    def count(self) -> None:
        """Count the noted values, and free their memory. For one thread at a time."""
        noted = len(self._noted)
        values = sorted(
            self._noted[:noted]
        )  # one bisection for each bucket instead of each value: many values are equal
        del self._noted[:noted]  # values that came meanwhile stay
        self._sum += sum(values)
        below = 0
        for at, bound in enumerate(self._bounds):
            upto = bisect_right(values, bound, below)
            self._counts[at] += upto - below
            below = upto
        self._counts[-1] += noted - below

    def histogram(self) -> Histogram:
        """Return the histogram of all noted values. For one thread at a time, as ``count`` is."""
        self.count()
        return Histogram(self._bounds, tuple(self._counts), self._sum)


class Meters:
    """The meters of a queue; ``Stats`` has a histogram of each."""

    def __init__(self) -> None:
        self.flush_seconds = Meter(SECONDS)
        self.commit_seconds = Meter(SECONDS)
        self.read_seconds = Meter(SECONDS)
        self.group_size = Meter(TRANSACTIONS)

    def count(self) -> None:
        """Count the noted values of all meters. For one thread at a time."""
        for meter in vars(self).values():
            meter.count()

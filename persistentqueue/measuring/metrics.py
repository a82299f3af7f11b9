"""Measurements of a queue at work: counts, histograms, the meters that make them, and samples over time.

Buckets are fixed, so histograms can be subtracted, and added up over queues. Each bound is about twice the one before
it. So a quantile can be wrong by a factor of about two.

Maintenance takes a sample about a second after a commit. So a busy queue has one sample for each second, and an idle
queue takes none. A ring keeps the last minute by seconds, the last hour by minutes, and two days by hours.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from math import inf, nan
from typing import NamedTuple

from .stalls import CAUSES

SECONDS = tuple(float(f"{step}e{power}") for power in range(-5, 2) for step in (1, 2, 5))
"""Bounds for times: 10 microseconds to 50 seconds, at the round numbers that service objectives name."""
TRANSACTIONS = tuple(step * 10**power for power in range(4) for step in (1, 2, 5))
"""Bounds for the number of transactions in a group."""
NS = 10**9
SAMPLE_NS = NS
"""Time from a commit to its sample, in nanoseconds. Before that, the queue was as the last sample says."""
_TIERS = ((NS // 2, 60), (60 * NS, 60), (3600 * NS, 48))
"""Tiers of the ring: the least time between two samples, in nanoseconds, and the number of samples."""
_SAMPLE = struct.Struct("<4Q")


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
    connected: Callable[[], tuple[int, int, int]] = lambda: (0, 0, 0)
    """Returns three numbers: of connections, of those that wait for an item, and of those whose flush waits for room.
    A server replaces it."""


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

    def __len__(self) -> int:
        """Return the number of values that are noted, but not counted yet."""
        return len(self._noted)

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
        self.stall_seconds = {cause: Meter(SECONDS) for cause in CAUSES}
        """A meter for each cause of stalls."""

    def note_stall(self, cause: str, seconds: float) -> None:
        """Note a stall of a flush. For any thread."""
        self.stall_seconds[cause].note(seconds)

    def count(self) -> None:
        """Count the noted values of all meters. For one thread at a time."""
        for meter in self.all():
            meter.count()

    def all(self) -> Iterator[Meter]:
        """Yield all meters."""
        yield from (self.flush_seconds, self.commit_seconds, self.read_seconds, self.group_size)
        yield from self.stall_seconds.values()


class Sample(NamedTuple):
    """The counts of a queue at one moment of its past. ``View.history`` and ``Stats.history`` have them.

    The counts include all subscriptions. A sample never changes, so any thread may use it.
    """

    time_ns: int
    """Time of the sample, in nanoseconds since the epoch."""
    enqueued: int
    """Number of items enqueued since the queue was made."""
    dequeued: int
    """Number of items that every subscription has consumed, since the queue was made."""
    live_bytes: int
    """Bytes that the live items take in their blocks."""

    @property
    def depth(self) -> int:
        """Number of items that at least one subscription has not consumed."""
        return self.enqueued - self.dequeued


class History:
    """A ring of samples of one queue: dense for the last minute, and thinner before. For one thread at a time."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self._tiers = tuple(deque[Sample](maxlen=most) for _, most in _TIERS)
        for sample in samples:
            self._keep(sample)

    def add(self, sample: Sample) -> bool:
        """Add a sample; return False if nothing has changed since the last one.

        If the clock was set back, all samples of a later time are dropped.
        """
        last = self._tiers[0][-1] if self._tiers[0] else None
        if last is not None and last[1:] == sample[1:]:
            return False
        for tier in self._tiers:
            while tier and tier[-1].time_ns >= sample.time_ns:
                tier.pop()
        for each in until(sample, last):
            self._keep(each)
        return True

    def _keep(self, sample: Sample) -> None:
        for tier, (least_ns, _) in zip(self._tiers, _TIERS, strict=True):
            # The last sample of a tier is always the latest one. It stays if the next one is far enough behind.
            if len(tier) > 1 and sample.time_ns - tier[-2].time_ns < least_ns:
                tier.pop()
            tier.append(sample)

    def samples(self) -> tuple[Sample, ...]:
        """Return the samples, the oldest first."""
        return tuple(sorted(set(chain(*self._tiers))))


def up_to(present: Sample, samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Return the samples, and ``present`` as the last one. Samples that are not of its past are left out."""
    earlier = [
        each
        for each in samples
        if each.time_ns < present.time_ns and each.enqueued <= present.enqueued and each.dequeued <= present.dequeued
    ]
    return (*earlier, *until(present, earlier[-1] if earlier else None))


def until(sample: Sample, last: Sample | None) -> list[Sample]:
    """Return the sample behind the ``last`` one. If the queue was idle in between, a sample of the end of that time is
    first."""
    if last is None or sample.time_ns - last.time_ns <= 2 * SAMPLE_NS:
        return [sample]
    return [last._replace(time_ns=sample.time_ns - SAMPLE_NS), sample]


def seconds_since(samples: Sequence[Sample], sequence: int) -> float:
    """Return the approximate seconds from the enqueue of an item to the last sample.

    If the first sample includes the item, return the seconds since that one.
    """
    at = bisect_right([sample.enqueued for sample in samples], sequence)
    if at == len(samples):
        return 0.0
    since_ns = samples[at].time_ns
    if at:
        before, after = samples[at - 1], samples[at]
        part = (after.enqueued - sequence - 1) / (after.enqueued - before.enqueued)
        since_ns -= int((after.time_ns - before.time_ns) * part)
    return (samples[-1].time_ns - since_ns) / NS


def encode_samples(samples: Iterable[Sample]) -> bytes:
    """Return the samples as bytes (see ``storage.lock``)."""
    return b"".join(_SAMPLE.pack(*sample) for sample in samples)


def decode_samples(data: bytes) -> tuple[Sample, ...]:
    """Return the samples that these bytes describe; none if they describe no history of one queue."""
    if len(data) % _SAMPLE.size:
        return ()
    samples = tuple(map(Sample._make, _SAMPLE.iter_unpack(data)))
    is_sound = all(each.dequeued <= each.enqueued for each in samples) and all(
        before.time_ns < after.time_ns and before.enqueued <= after.enqueued and before.dequeued <= after.dequeued
        for before, after in pairwise(samples)
    )
    return samples if is_sound else ()

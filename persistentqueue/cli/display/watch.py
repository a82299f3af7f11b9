"""The changes between two looks at a queue: rates, and how long items have waited."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from dataclasses import dataclass, field

from persistentqueue import Connection, PersistentQueueError, Sample, Snapshot, View
from persistentqueue.drawing.charts import positions

from ..summary import (
    Sight,
    connections_to,
    document_of,
    document_of_connections,
    document_of_error,
    resident_bytes,
)

HISTORY = 60
"""Number of looks that the curves cover."""
AGES = 32
"""Number of positions among the items left at which the age is shown."""
_POINTS_MAX = 4096


class Arrivals:
    """The times at which items were written: known for some, and interpolated for those between."""

    def __init__(self) -> None:
        self._points: list[tuple[int, int]] = []

    def add(self, sequence: int, time_ns: int) -> None:
        """Note that the item with this sequence was written at this time."""
        at = bisect_right(self._points, (sequence, 0))
        if at == len(self._points) or self._points[at][0] != sequence:
            insort(self._points, (sequence, time_ns))
        if len(self._points) > _POINTS_MAX:
            del self._points[1 : len(self._points) // 2 : 2]

    def time_ns(self, sequence: int) -> int:
        """Return the approximate time at which the item was written. At least one time must have been added."""
        at = bisect_right(self._points, (sequence, 2**63))
        if at == 0 or at == len(self._points):
            return self._points[max(at - 1, 0)][1]
        (low, begin_ns), (high, end_ns) = self._points[at - 1 : at + 1]
        return begin_ns + (end_ns - begin_ns) * (sequence - low) // (high - low)


@dataclass(frozen=True)
class Pace:
    """The changes between two looks. Rates are in items per second; they are None after the first look."""

    seconds: float | None = None
    in_per_second: float | None = None
    out_per_second: float | None = None
    consumed: int = 0
    waited_half_seconds: float | None = None
    """The estimated median wait of the consumed items, in seconds; None if no item was consumed."""
    waited_longest_seconds: float | None = None


@dataclass
class Watched:
    """A queue that is watched, and the results of the looks at it so far."""

    name: str
    view: View
    snapshot: Snapshot | None = None
    failure: Exception | None = None
    """The error of the last look; None if it succeeded."""
    pace: Pace = field(default_factory=Pace)
    resident_bytes: int | None = None
    connections: tuple[Connection, ...] | None = None
    """The sessions of other processes; None if no owner serves the queue."""
    past: tuple[Sample, ...] = ()
    """Samples of the owner, from before the first look."""
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """Samples of the last looks."""
    arrivals: Arrivals = field(default_factory=Arrivals)

    @property
    def error(self) -> str:
        """The error of the last look in words; empty if it succeeded."""
        return f"{type(self.failure).__name__}: {self.failure}" if self.failure is not None else ""

    def look(self) -> None:
        """Look again. An error is kept in ``failure`` until a look succeeds."""
        before = self.snapshot
        try:
            snapshot = self.view.look()
            if before is not None and snapshot.time_ns <= before.time_ns:  # the clock was set back: begin anew
                before = None
                self.samples.clear()
            self._learn(before, snapshot)
        except (PersistentQueueError, OSError) as error:
            self.snapshot, self.failure, self.pace, self.connections = None, error, Pace(), None
            return
        self.pace = pace_of(before, snapshot, self.arrivals) if before is not None else Pace()
        self.snapshot, self.failure = snapshot, None
        self.samples.append(Sample(snapshot.time_ns, snapshot.enqueued, snapshot.dequeued, snapshot.live_bytes))
        self.resident_bytes = resident_bytes(snapshot)
        self.connections = connections_to(self.view)

    def _learn(self, before: Snapshot | None, snapshot: Snapshot) -> None:
        """Note when items were written: at the first look the items that wait, later the new ones and the oldest."""
        if before is None:
            self.past = tuple(each for each in self.view.history() if each.time_ns < snapshot.time_ns)
            for sequence, time_ns in self.view.times_of(positions(snapshot.runs, AGES)).items():
                self.arrivals.add(sequence, time_ns)
        if before is None or snapshot.enqueued > before.enqueued:
            self.arrivals.add(snapshot.enqueued, snapshot.time_ns)
        if snapshot.oldest_ns is not None:
            self.arrivals.add(snapshot.runs[0][0], snapshot.oldest_ns)

    def sight(self) -> Sight:
        """Return the facts for the detailed picture. The last look must not have failed."""
        assert self.snapshot is not None
        now_ns = self.snapshot.time_ns
        times = map(self.arrivals.time_ns, positions(self.snapshot.runs, AGES))
        ages = tuple(max(now_ns - each, 0) / 1e9 for each in times)
        history = (*self.past, *self.samples)
        return Sight(self.name, self.snapshot, ages, history=history, connections=self.connections)


def pace_of(before: Snapshot, now: Snapshot, arrivals: Arrivals) -> Pace:
    """Return the changes between two looks at one queue."""
    seconds = max(now.time_ns - before.time_ns, 1) / 1e9
    came, went = now.enqueued - before.enqueued, now.enqueued - now.depth - (before.enqueued - before.depth)
    waits = []
    for first, length in now.consumed_since(before):
        mean_ns = (arrivals.time_ns(first) + arrivals.time_ns(first + length - 1)) // 2
        waits.append((max(now.time_ns - mean_ns, 0) / 1e9, length))
        waits.append((max(now.time_ns - arrivals.time_ns(first), 0) / 1e9, 0))
    # An item that was enqueued and consumed between the two looks waited for less than the time between them.
    unseen = went - sum(length for _, length in waits)
    if unseen > 0:
        waits.append((seconds, unseen))
    half = longest = None
    left = went / 2
    for wait, length in sorted(waits):
        left -= length
        half = wait if half is None and left <= 0 else half
        longest = wait
    return Pace(seconds, came / seconds, went / seconds, went, half, longest)


def document_of_look(queue: Watched) -> dict[str, object]:
    """Return a look as a JSON object, without the data files, which may be many."""
    if queue.failure is not None:
        return {"name": queue.name, "error": document_of_error(queue.failure)}
    assert queue.snapshot is not None  # a look that did not fail has one
    seen = document_of(queue.snapshot, queue.name)
    del seen["segments"]
    more = {
        "segments": len(queue.snapshot.segments),
        "owner_resident_bytes": queue.resident_bytes,
        "connections": document_of_connections(queue.connections),
    }
    return seen | more | vars(queue.pace)

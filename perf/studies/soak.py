"""``python -m perf.studies.soak --minutes 20``: runs a stream from queue to queue for a long time, and measures growth.

A second process enqueues without a pause, as a producer beside the owner. A query, triggered twice a second, reads the
first queue and writes the second one. This process owns both queues and answers the requests of the query. It also
consumes both queues: all items of the second one, and those of the first one as a consumer beside the query. Each item
has a number. The numbers must arrive in order, so that each item arrives exactly once.

Every ten seconds the program takes a sample:

- the resident memory of this process, of Python's workers and of Java;
- the time of the query's last calls of ``latestOffset``;
- the lengths of the files of both queues, after maintenance has freed drained segments.

At the end the producer stops and all items are taken; then the files must be at most as long as in the smallest sample.
Growth is the slope of a line through the second half of the samples.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from persistentqueue import PersistentQueue, Producer

from .. import harness
from ..harness import Row
from ..report import programs
from .churn import file_sizes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATE = 2_000
SAMPLE_SECONDS = 10.0
GROWTH_MIB_BAR, GROWTH_MS_BAR = 16.0, 5.0
"""Largest growth in the second half: memory of this process and of the largest worker, and ``latestOffset``."""
_FLUSHES = 20
_PATIENCE_SECONDS = 120.0
_MIB = 2**20


class Sample(NamedTuple):
    """The measurements of one moment."""

    seconds: float
    user_mib: float
    worker_mib: float
    """Memory of the largest of Python's workers."""
    workers: int
    workers_mib: float
    """Sum of the memory of all workers. Shared memory counts once for each worker."""
    java_mib: float
    latest_offset_ms: float
    disk_mib: float
    taken: int


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB, or 0 if the process has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


def below(pid: int) -> Iterator[int]:
    """Yield the ids of all descendants of a process."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            children.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    waiting = [pid]
    while waiting:
        found = children.get(waiting.pop(), [])
        yield from found
        waiting += found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _produce(directory: str, rate: float) -> None:
    """Print a line, enqueue numbered items until SIGTERM arrives, then print their number."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    print("begun", flush=True)
    number = 0
    begun = time.monotonic()
    with Producer(directory, "in") as producer:
        while not stopped:
            for _ in range(max(int(rate / _FLUSHES), 1)):
                producer.enqueue((b"%d " % number).ljust(100, b"."))
                number += 1
            producer.flush()
            time.sleep(max(begun + number / rate - time.monotonic(), 0.0))
    print(number)


class Soak:
    """One run. ``samples`` has the measurements."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark, self._directory = spark, directory
        self.samples: list[Sample] = []
        self.taken = 0
        self._begun = time.monotonic()
        self.end_mib = 0.0
        self.batches = 0

    def run(self, seconds: float, sample_seconds: float, rate: float) -> None:
        """Run for this time, then take the items that are left.

        Raises ``AssertionError`` unless each item arrived exactly once, in order.
        """
        from persistentqueue.spark import acknowledge, register

        register(self._spark)
        with ExitStack() as stack:
            source, target = (stack.enter_context(PersistentQueue(self._directory, name)) for name in ("in", "out"))
            source.subscribe("spark")
            command = [sys.executable, "-m", "perf.studies.soak", "--produce", str(self._directory)]
            command += ["--rate", str(rate)]
            producer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=harness.ROOT)
            query = self._start()
            try:
                assert producer.stdout is not None
                producer.stdout.readline()  # from here on, SIGTERM does not kill it
                end = time.monotonic() + seconds
                due = time.monotonic() + sample_seconds
                while time.monotonic() < end:
                    self._take(target)
                    self._attend(source)
                    if time.monotonic() >= due:
                        due += sample_seconds
                        self._sample(query, producer.pid, (source, target))
                producer.terminate()
                number = int(producer.communicate()[0])
                self._take_until(target, source, number)
                query.processAllAvailable()  # the items can arrive before the batch is committed
            finally:
                producer.kill()
                producer.wait()
                query.stop()
            acknowledge(query)
            self._settle(source, target)
        assert self.taken == number, f"{self.taken} items arrived of {number}"

    def _start(self) -> Any:
        reader = self._spark.readStream.format("persistentqueue").options(queue="in", subscription="spark")
        writer = reader.load(str(self._directory)).select("value").writeStream.format("persistentqueue")
        options = {"queue": "out", "checkpointLocation": str(self._directory / "checkpoint")}
        return writer.options(**options).trigger(processingTime="500 milliseconds").start(str(self._directory))

    def _attend(self, source: PersistentQueue) -> None:
        """Take all items of subscription 0 of the first queue, and so answer the requests of other processes."""
        with source.transaction() as session:
            session.dequeue_many(100_000)

    def _take(self, target: PersistentQueue) -> None:
        """Take the items of the second queue, waiting up to 0.1 s for the first of them.

        Raises ``AssertionError`` unless each number follows the number before it.
        """
        with target.transaction() as session:
            first = session.dequeue(timeout=0.1)
            some = [] if first is None else [first, *session.dequeue_many(100_000)]
        for item in some:
            assert int(item.split()[0]) == self.taken, f"the item {item[:20]!r} arrived instead of number {self.taken}"
            self.taken += 1

    def _take_until(self, target: PersistentQueue, source: PersistentQueue, number: int) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self.taken < number and time.monotonic() < deadline:
            self._attend(source)
            self._take(target)

    def _settle(self, source: PersistentQueue, target: PersistentQueue) -> None:
        """Answer the last request, and measure the files when both queues are empty."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        subscription = source.subscribe("spark")
        while len(subscription) and time.monotonic() < deadline:
            self._attend(source)
        assert not len(subscription)
        self.end_mib = self._disk_mib((source, target))

    def _disk_mib(self, queues: tuple[PersistentQueue, ...]) -> float:
        for queue in queues:
            queue.maintain()
        places = [self._directory / name for name in ("in", "out")]
        return sum(sum(file_sizes(place).values()) for place in places) / _MIB

    def _sample(self, query: Any, producer: int, queues: tuple[PersistentQueue, ...]) -> None:
        progress = [each for each in query.recentProgress if "latestOffset" in each["durationMs"]]
        if query.exception() is not None:
            raise AssertionError(f"the query failed: {query.exception()}")
        others = [pid for pid in below(os.getpid()) if pid != producer]
        java = [pid for pid in others if _name(pid) == "java"]
        workers = [mib for mib in map(resident_mib, set(others) - set(java)) if mib]
        looks = [each["durationMs"]["latestOffset"] for each in progress[-15:]] or [0]
        self.batches = int(progress[-1]["batchId"]) if progress else 0
        self.samples.append(
            Sample(
                time.monotonic() - self._begun,
                resident_mib(os.getpid()),
                max(workers, default=0.0),
                len(workers),
                sum(workers),
                sum(map(resident_mib, java)),
                median(looks),
                self._disk_mib(queues),
                self.taken,
            )
        )
        print(" ".join(f"{key} {value:,.1f}" for key, value in self.samples[-1]._asdict().items()), flush=True)


def grown(samples: list[Sample], what: str) -> float:
    """Return the growth of a field over the samples, from the median slope of all pairs of samples."""
    slopes = [
        (getattr(later, what) - getattr(sample, what)) / (later.seconds - sample.seconds)
        for number, sample in enumerate(samples)
        for later in samples[number + 1 :]
    ]
    return median(slopes) * (samples[-1].seconds - samples[0].seconds) if slopes else 0.0


def lines(soak: Soak) -> Iterator[Row]:
    """Yield a line for the whole run, and a line for each quantity that may grow."""
    samples = soak.samples
    half = samples[len(samples) // 2 :]
    seconds = samples[-1].seconds
    yield Row(
        f"Soak of {seconds / 60:.0f} min, {soak.batches:,} batches",
        f"{soak.taken:,} items",
        "",
        "each exactly once, in order",
        "",
        "yes",
    )
    for what, field in (
        ("this process", "user_mib"),
        ("the largest of Python's workers", "worker_mib"),
        ("Java", "java_mib"),
    ):
        found = [getattr(sample, field) for sample in samples]
        more = grown(half, field)
        bar = f"{GROWTH_MIB_BAR:g} MiB at most" if field != "java_mib" else ""
        met = harness.met(more <= GROWTH_MIB_BAR) if bar else ""
        said = f"{more:+.1f} MiB in the second half, by its slope"
        yield Row(f"Memory of {what}", f"{min(found):.0f} to {max(found):.0f} MiB", "", said, bar, met)
    found = [sample.workers_mib for sample in samples]
    counts = [sample.workers for sample in samples]
    said = f"{min(counts)} to {max(counts)} of them; shared memory counts in each"
    yield Row("Memory of all of Python's workers", f"{min(found):.0f} to {max(found):.0f} MiB", "", said, "", "")
    looks = [sample.latest_offset_ms for sample in samples]
    more = grown(half, "latest_offset_ms")
    yield Row(
        "latestOffset",
        f"{median(looks):.1f} ms, {min(looks):.1f} to {max(looks):.1f}",
        "",
        f"{more:+.1f} ms in the second half",
        f"{GROWTH_MS_BAR:g} ms at most",
        harness.met(more <= GROWTH_MS_BAR),
    )
    disks = [sample.disk_mib for sample in samples]
    least = min(disks)
    yield Row(
        "Files of both queues",
        f"{least:.1f} to {max(disks):.1f} MiB; empty {soak.end_mib:.1f} MiB",
        "",
        f"{grown(half, 'disk_mib'):+.1f} MiB in the second half",
        "empty, at most what they took at least",
        harness.met(soak.end_mib <= least),
    )


def main() -> None:
    """Measure and print the table. With ``--results``, also write JSON."""
    parser = programs.parser("soak", __doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="duration in minutes (20)")
    parser.add_argument("--rate", type=float, default=RATE, help=f"items a second ({RATE})")
    parser.add_argument("--produce", help="run only the producer, for the queue below this directory")
    options = parser.parse_args()
    if options.produce:
        _produce(options.produce, options.rate)
        return

    def rows(spark: SparkSession, directory: Path) -> Iterator[Row]:
        soak = Soak(spark, directory)
        soak.run(options.minutes * 60, SAMPLE_SECONDS, options.rate)
        yield from lines(soak)

    programs.run_on_spark("soak", options, rows)


if __name__ == "__main__":
    main()

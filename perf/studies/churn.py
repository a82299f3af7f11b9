"""Churn: checks that a long run of all operations at once leaves no file, descriptor, thread or memory behind.

Threads put and take items of random sizes, some larger than a segment, and flush or roll back. Another thread compacts,
trims and resizes segments at the same time. Some sessions hold items, and blocks that are not committed, across pauses.
Now and then the queue is cleared, or opened again with other bounds of its pool. At each pause, after ``maintain()``:

- The lengths of the files below the queue's directory equal what ``stats()`` reports as in use and as pool, to the
  byte. Only the lock and the stored limits are not counted.
- Each open descriptor belongs to the lock, to the log, or to a segment in use. No file but the log is open twice, and
  no descriptor belongs to a deleted file.
- When maintenance has nothing left to do, no thread is left. The memory of Python's objects, without the cached items,
  does not grow.

The memory of the whole process is reported as well, without a bar. It rises and falls with what the heap of the C
library keeps between objects; each thread has a part of that heap.

Each item carries a checksum. The items put equal the items taken, and the queue is empty at the end.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple
from zlib import crc32

from persistentqueue import PersistentQueue, QueueFullError, Session
from persistentqueue.interrupts.signal_shield import THREAD_NAME as HELPER_NAME
from persistentqueue.runtime import maintenance
from persistentqueue.runtime.background import THREAD_NAME
from persistentqueue.storage.locations import LIMITS_NAME

from ..harness import Row, met

KIB = 1024
MIB = 1024 * KIB
PRODUCERS = CONSUMERS = 3
GROWTH_KIB_BAR = 256.0
_SIZES = (0, 10, 100, 1_000, 10 * KIB, 100 * KIB)
_LARGE_BYTES = 3 * MIB
_BACKLOG_BYTES = 24 * MIB
_SEGMENT_BYTES = (64 * KIB, 256 * KIB, MIB, 4 * MIB)
_POOL_BYTES = ((0, 0), (0, 4 * MIB), (MIB, 2 * MIB), (2 * MIB, 12 * MIB))
_SETTINGS: dict[str, Any] = {"log_bytes": 64 * KIB, "memory_bytes": 4 * MIB, "max_bytes": _BACKLOG_BYTES}


class Pause(NamedTuple):
    """The state at one pause."""

    files_bytes: int
    """Sum of the lengths of all files except the lock and the stored limits."""
    used_bytes: int
    """Bytes of segments, log and spare, from ``stats()``."""
    pool_bytes: int
    """Bytes of the pool, from ``stats()``."""
    stray_descriptors: tuple[str, ...]
    """Open files that are not in use, or that are open too often."""
    descriptors: int
    """Number of open files of the queue."""
    threads: int
    """Number of threads, without those that existed at the beginning."""
    rss_mib: float
    alive_bytes: int
    """Memory of Python's objects, without the cached items. 0 if it is not traced."""
    sessions: int
    """Number of sessions that hold items across the pause. They take memory."""

    @property
    def leaked_bytes(self) -> int:
        """Bytes of files that ``stats()`` does not report."""
        return self.files_bytes - self.used_bytes - self.pool_bytes


def other_threads() -> int:
    """Wait for the end of the helper thread of shielded calls, and return the number of threads that are left."""
    for thread in threading.enumerate():
        if thread.name == HELPER_NAME:
            thread.join()
    return threading.active_count()


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def give_heap_back() -> None:
    """Have the C library return freed memory to the system, if it can, so that resident memory is used memory."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def file_sizes(directory: Path) -> dict[str, int]:
    """Return the lengths of the files below the directory, by path.

    This does not use ``Path``, because ``pathlib`` keeps every name in Python's memory for ever.
    """
    sizes = {}
    for above, _, names in os.walk(directory.resolve()):
        for name in names:
            path = os.path.join(above, name)
            with suppress(FileNotFoundError):  # renamed since it was listed, by a producer for instance
                sizes[path] = os.lstat(path).st_size
    return sizes


def descriptors_below(directory: Path) -> list[str]:
    """Return the targets of this process's open descriptors that lie below the directory."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith(f"{directory.resolve()}/"):
                found.append(target)
    return found


class Churn:
    """One queue and its workers. The seed decides the work; the timing of the threads is not repeatable."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._random = Random(seed)
        self._threads = other_threads()
        self._queue = PersistentQueue(directory, **_SETTINGS)
        self._holders: list[Session] = []
        self._counts = threading.Lock()
        self.put = self.taken = self.put_bytes = self.rollbacks = self.openings = self.compactions = 0

    def run(self, seconds: float, slice_seconds: float) -> Iterator[Pause]:
        """Work for this time, at least one slice, and yield a pause after each. Then the queue is empty and closed."""
        now = time.monotonic()
        deadline = now + seconds
        while now < deadline:
            self._work(slice_seconds)
            self._change()
            yield self.pause()
            now = time.monotonic()
        self._end_holders()
        while items := self._take_all():
            self.taken += items
        stats = self._queue.stats()
        assert (stats.enqueued, stats.dequeued) == (self.put, self.taken)
        yield self.pause()
        self.close()

    def close(self) -> None:
        """End all sessions and close the queue."""
        self._end_holders()
        self._queue.close()

    def _work(self, seconds: float) -> None:
        begin = time.monotonic()
        workers: list[Callable[[Random], None]] = [self._chores]
        workers += [self._produce] * self._random.randint(1, PRODUCERS)
        workers += [self._consume] * self._random.randint(0, CONSUMERS)
        with ThreadPoolExecutor(len(workers)) as pool:

            def repeat(worker: Callable[[Random], None], seed: int) -> None:
                chance, now = Random(seed), begin
                while now < begin + seconds:
                    worker(chance)
                    now = time.monotonic()

            jobs = [pool.submit(repeat, each, self._random.randrange(2**32)) for each in workers]
            for job in jobs:
                job.result()

    def _produce(self, chance: Random) -> None:
        items = [_item(chance) for _ in range(chance.choice((1, 1, 5, 50)))]
        with self._queue.session() as session:
            session.enqueue_many(items)
            if chance.random() < 0.2:
                session.rollback()
                self._count(rollbacks=1)
                return
            try:
                session.flush()
            except QueueFullError:
                session.rollback()
                time.sleep(0.001)
                return
            self._count(put=len(items), put_bytes=sum(map(len, items)))

    def _consume(self, chance: Random) -> None:
        with self._queue.session() as session:
            items = session.dequeue_many(chance.choice((1, 3, 30, 300)))
            _check(items)
            if not items:
                time.sleep(0.001)
            elif chance.random() < 0.2:
                session.rollback()
                self._count(rollbacks=1)
            else:
                session.flush()
                self._count(taken=len(items))

    def _chores(self, chance: Random) -> None:
        time.sleep(chance.uniform(0.0, 0.2))
        what = chance.randrange(4)
        if what == 0:
            self._queue.trim()
        elif what == 1:
            self._count(compactions=self._queue.compact(below=chance.uniform(0.1, 0.9)).segments)
        elif what == 2:
            self._queue.resize(segment_bytes=chance.choice(_SEGMENT_BYTES))
        else:
            self._queue.maintain()

    def _change(self) -> None:
        """Start or end holding sessions, clear the queue, or open it again, at random. No worker may run."""
        chance = self._random.random()
        if chance < 0.3:
            self._end_holders()
        elif len(self._holders) < 8:
            holder = self._queue.session()
            _check(holder.dequeue_many(self._random.choice((1, 10, 100))))
            if self._random.random() < 0.5:
                holder.enqueue_many([_item(self._random, _LARGE_BYTES) for _ in range(3)])
            self._holders.append(holder)
        if self._random.random() < 0.1:
            self.taken += self._queue.clear()
        if self._random.random() < 0.2:
            self._end_holders()
            self._queue.close()
            low, high = self._random.choice(_POOL_BYTES)
            segment_bytes = self._random.choice(_SEGMENT_BYTES)
            self._queue = PersistentQueue(
                self._directory, pool_min_bytes=low, pool_max_bytes=high, segment_bytes=segment_bytes, **_SETTINGS
            )
            self.openings += 1

    def _end_holders(self) -> None:
        for holder in self._holders:
            holder.close()
        self._holders = []

    def _take_all(self) -> int:
        with self._queue.transaction() as session:
            items = session.dequeue_many(1000)
            _check(items)
        return len(items)

    def pause(self) -> Pause:
        """Return the state of the queue, the files and the process. No worker may run."""
        self._queue.maintain()
        for thread in threading.enumerate():
            if thread.name == THREAD_NAME:
                thread.join()  # the background thread ends by itself when it has nothing to do
        stats = self._queue.stats()
        assert stats.damaged == 0
        sizes = file_sizes(self._directory)
        for name in ("lock", LIMITS_NAME):
            sizes.pop(str((self._directory / name).resolve()), None)
        used_bytes = stats.data_bytes + stats.log_capacity_bytes + stats.spare_bytes
        descriptors = descriptors_below(self._directory)
        logs = [each for each in descriptors if each.endswith(".log")]
        others = [each for each in descriptors if each not in logs]
        known = {str((self._directory / "lock").resolve()), *(each for each in sizes if each.endswith(".seg"))}
        stray = [each for each in {*others} if each not in known] + [
            each for each in {*others} if others.count(each) > 1
        ]
        stray += logs[2:] + [each for each in logs if each not in sizes]
        gc.collect()
        threads = other_threads() - self._threads
        give_heap_back()
        return Pause(
            sum(sizes.values()),
            used_bytes,
            stats.pool_bytes,
            tuple(stray),
            len(descriptors),
            threads,
            rss_bytes() / MIB,
            max(tracemalloc.get_traced_memory()[0] - stats.cached_bytes, 0),
            len(self._holders),
        )

    def _count(self, **more: int) -> None:
        with self._counts:
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)


def _item(chance: Random, size_bytes: int | None = None) -> bytes:
    """Return a random item that begins with the checksum of the rest."""
    if size_bytes is None:
        size_bytes = _LARGE_BYTES if chance.random() < 0.002 else chance.randint(0, chance.choice(_SIZES))
    body = chance.randbytes(min(size_bytes, KIB)) * (size_bytes // KIB or 1)
    return crc32(body).to_bytes(4, "little") + body


def _check(items: list[bytes]) -> None:
    for item in items:
        assert crc32(item[4:]) == int.from_bytes(item[:4], "little"), item[:40]


def growth(pauses: list[Pause], what: Callable[[Pause], float]) -> float:
    """Return the growth of the median from the second to the last quarter of the pauses.

    Pauses at which a session holds items do not count.
    """
    quarter = len(pauses) // 4
    second, last = (
        [what(pause) for pause in part if not pause.sessions]
        for part in (pauses[quarter : 2 * quarter], pauses[-quarter:])
    )
    return median(last) - median(second) if second and last else 0.0


def rows(directory: Path, seconds: float) -> Iterator[Row]:
    """Yield the line of the table."""
    tracemalloc.start()
    churn = Churn(directory, seed=20081114)
    idle_seconds, maintenance.IDLE_SECONDS = (
        maintenance.IDLE_SECONDS,
        0.0,
    )  # a pause shall not wait for the maintenance of idle queues
    try:
        pauses = list(churn.run(seconds, min(2.0, seconds / 8)))
    finally:
        maintenance.IDLE_SECONDS = idle_seconds
        tracemalloc.stop()
    alive_kib = growth(pauses, lambda pause: pause.alive_bytes / KIB)
    leaked = [pause.leaked_bytes for pause in pauses]
    strays = [stray for pause in pauses for stray in pause.stray_descriptors]
    threads = max(pause.threads for pause in pauses)
    mib = [pause.used_bytes / MIB for pause in pauses]
    yield Row(
        f"Churn of {seconds:,.0f} s: {churn.put:,} items, {churn.put_bytes / MIB:,.0f} MiB, {churn.rollbacks:,} "
        f"rollbacks, {churn.compactions:,} segments compacted, {churn.openings} reopenings",
        f"{max(leaked)} bytes left over at {len(pauses)} pauses; {len(strays)} stray descriptors of up to "
        f"{max(pause.descriptors for pause in pauses)}, {threads} threads",
        "",
        f"in use {min(mib):.1f} to {max(mib):.1f} MiB, pool up to {max(p.pool_bytes for p in pauses) / MIB:.1f} MiB; "
        f"from the second to the last quarter objects {alive_kib:+.1f} KiB, process "
        f"{growth(pauses, lambda pause: pause.rss_mib):+.1f} of {median(pause.rss_mib for pause in pauses):.0f} MiB",
        f"0 bytes, descriptors and threads; {GROWTH_KIB_BAR:.0f} KiB",
        met(not any(leaked) and not strays and threads == 0 and alive_kib <= GROWTH_KIB_BAR),
    )

"""A thousand idle queues in one process: the disk, memory and descriptors of each, and the threads of all.

The measurement runs in a process of its own, ``python -m perf.studies.idle <directory> <count> <item bytes>``, which
may open 8,192 descriptors. Each queue is opened with default settings, and stays open. Ten items are put and five
taken. The queues are measured when maintenance has nothing left to do. Memory is the growth of the process after the
first queues. Then the other items are taken and compared.
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from persistentqueue import PersistentQueue
from persistentqueue.runtime import maintenance
from persistentqueue.runtime.background import THREAD_NAME

from ..harness import ROOT, Row, met
from .churn import descriptors_below, give_heap_back, other_threads, rss_bytes

DISK_BYTES_BAR = 3 * 1024 * 1024
MEMORY_BYTES_BAR = 100 * 1024
DESCRIPTORS = 8192
_ITEMS = 10
_SIZES = (100, 6_000)


class Idle(NamedTuple):
    """The resources of idle queues: the maximum of all queues, or the average."""

    queues: int
    length_bytes: int
    """Maximum of the sum of the file lengths of a queue."""
    allocated_bytes: int
    """Maximum of the bytes that the file system has allocated for the files and directories of a queue."""
    memory_bytes: float
    """Average growth of the process for a queue."""
    descriptors: float
    """Average number of open descriptors for a queue."""
    threads_busy: int
    """Maximum of the additional threads that were seen while the queues were opened and used."""
    threads_idle: int
    """Number of additional threads at the end."""

    @property
    def is_met(self) -> bool:
        """Whether all bars are met."""
        return (
            max(self.length_bytes, self.allocated_bytes) <= DISK_BYTES_BAR
            and self.memory_bytes <= MEMORY_BYTES_BAR
            and self.descriptors * 1000 < DESCRIPTORS
            and self.threads_busy <= 1
            and self.threads_idle == 0
        )


def _sizes(directory: Path) -> tuple[int, int]:
    """Return the sum of the file lengths, and the bytes allocated for files and directories."""
    found = [directory, *directory.rglob("*")]
    length_bytes = sum(path.stat().st_size for path in found if path.is_file())
    return length_bytes, sum(path.stat().st_blocks * 512 for path in found)


def _use(directory: Path, number: int, item_bytes: int) -> tuple[PersistentQueue, list[bytes]]:
    """Open a queue, put items and take half of them. Return the queue and the items that are left."""
    queue = PersistentQueue(directory, f"queue-{number}")
    items = [(b"%d %d " % (number, n)).ljust(item_bytes, b".") for n in range(_ITEMS)]
    for item in items:
        with queue.transaction() as session:
            session.enqueue(item)
    with queue.transaction() as session:
        assert session.dequeue_many(_ITEMS // 2) == items[: _ITEMS // 2]
    return queue, items[_ITEMS // 2 :]


def measure(directory: Path, count: int, item_bytes: int) -> Idle:
    """Open and use this number of queues in this process, and measure them when they are idle."""
    maintenance.IDLE_SECONDS = (
        0.0  # maintenance of an idle queue, due after ten seconds without a commit, begins at once
    )
    first = max(count // 20, 5)
    threads = other_threads()
    threads_busy = 0
    queues: list[tuple[PersistentQueue, list[bytes]]] = []
    before_bytes = 0
    for number in range(count):
        if number == first:
            before_bytes = _settled_bytes()
        queues.append(_use(directory, number, item_bytes))
        threads_busy = max(threads_busy, other_threads() - threads)
    memory_bytes = (_settled_bytes() - before_bytes) / (count - first)
    sizes = [_sizes(directory / f"queue-{number}") for number in range(count)]
    idle = Idle(
        count,
        max(length_bytes for length_bytes, _ in sizes),
        max(allocated_bytes for _, allocated_bytes in sizes),
        memory_bytes,
        len(descriptors_below(directory)) / count,
        threads_busy,
        other_threads() - threads,
    )
    for queue, left in queues:
        with queue, queue.transaction() as session:
            assert session.dequeue_many(_ITEMS) == left
    return idle


def _settled_bytes() -> int:
    """Wait until maintenance has nothing to do, and return the resident memory of this process."""
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join()
    gc.collect()
    give_heap_back()
    return rss_bytes()


def measure_apart(directory: Path, count: int, item_bytes: int) -> Idle:
    """Call ``measure`` in a process of its own, which may open 8,192 descriptors."""
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", __spec__.name, str(directory.absolute()), str(count), str(item_bytes)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return Idle(*json.loads(output.stdout))


def rows(directory: Path, count: int) -> Iterator[Row]:
    """Yield the lines of the table, for small and for larger items.

    A queue at work keeps more memory for larger items.
    """
    for item_bytes in _SIZES:
        idle = measure_apart(directory / str(item_bytes), count, item_bytes)
        yield Row(
            f"{idle.queues:,} idle queues in one process, {_ITEMS // 2} items of {item_bytes:,} B left in each",
            f"{idle.length_bytes / 2**20:.3f} MiB of files, {idle.allocated_bytes / 2**20:.3f} MiB allocated, "
            f"{idle.memory_bytes / 1024:.1f} KiB of memory, {idle.descriptors:.1f} descriptors each",
            "",
            f"{idle.threads_busy} thread at work, {idle.threads_idle} once idle",
            f"3 MiB, 100 KiB, {DESCRIPTORS:,} descriptors for 1,000; one thread, then none",
            met(idle.is_met),
        )


def _main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))


if __name__ == "__main__":
    _main()

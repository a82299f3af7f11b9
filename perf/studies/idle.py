"""A thousand idle queues in one process: what each takes of the disk, of memory, of descriptors, and how many threads.

All happens in a process of its own, ``python -m perf.studies.idle <directory> <count> <item bytes>``, with room for
8,192 descriptors. Each queue is opened with default settings, items are put, half of them are taken, and it stays open.
What it takes is measured once maintenance has nothing to do any more; memory by what the process grew after the first
queues. Then the rest of the items is taken and compared.
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
    """What idle queues take: the most that one takes, or by average."""

    queues: int
    length_bytes: int
    """The most that the files of a queue are long."""
    allocated_bytes: int
    """The most that files and directories of a queue take of the file system."""
    memory_bytes: float
    """By which the process grew for each."""
    descriptors: float
    """For each."""
    threads_busy: int
    """The most that were seen beside the first one while items were put."""
    threads_idle: int
    """Those that are there in the end."""

    @property
    def is_met(self) -> bool:
        """Whether all bars are."""
        return (
            max(self.length_bytes, self.allocated_bytes) <= DISK_BYTES_BAR
            and self.memory_bytes <= MEMORY_BYTES_BAR
            and self.descriptors * 1000 < DESCRIPTORS
            and self.threads_busy <= 1
            and self.threads_idle == 0
        )


def _sizes(directory: Path) -> tuple[int, int]:
    """The lengths of the files, and what they and the directories take."""
    found = [directory, *directory.rglob("*")]
    length_bytes = sum(path.stat().st_size for path in found if path.is_file())
    return length_bytes, sum(path.stat().st_blocks * 512 for path in found)


def _use(directory: Path, number: int, item_bytes: int) -> tuple[PersistentQueue, list[bytes]]:
    """Open one, put items and take half of them; the queue, and what is left."""
    queue = PersistentQueue(directory, f"queue-{number}")
    items = [(b"%d %d " % (number, n)).ljust(item_bytes, b".") for n in range(_ITEMS)]
    for item in items:
        with queue.transaction() as session:
            session.enqueue(item)
    with queue.transaction() as session:
        assert session.dequeue_many(_ITEMS // 2) == items[: _ITEMS // 2]
    return queue, items[_ITEMS // 2 :]


def measure(directory: Path, count: int, item_bytes: int) -> Idle:
    """Open and use so many queues in this process, and look at them when they are idle."""
    maintenance.IDLE_SECONDS = 0.0  # what comes after ten seconds without a commit comes at once
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
    """What of this process is in memory once maintenance has nothing to do."""
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join()
    gc.collect()
    give_heap_back()
    return rss_bytes()


def measure_apart(directory: Path, count: int, item_bytes: int) -> Idle:
    """The same in a process of its own, with room for 8,192 descriptors."""
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", __spec__.name, str(directory.absolute()), str(count), str(item_bytes)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return Idle(*json.loads(output.stdout))


def rows(directory: Path, count: int) -> Iterator[Row]:
    """The lines of the table: small items, and larger ones, of which a queue at work keeps more in memory."""
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

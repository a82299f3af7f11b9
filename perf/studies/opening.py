"""Opening a queue of many items: the time, and the memory beyond that of opening an empty queue.

Each opening happens in a process of its own, ``python -m perf.studies.opening <directory>``. A queue of many items is
opened in two states, each time beside an empty queue:

- after a clean close;
- after a crash with a log of one megabyte, filled by flushes of one item, which takes the longest to read.

The bare disk reads and checksums the log: every opening must do at least this.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from persistentqueue import PersistentQueue
from persistentqueue.core.checksum import crc32

from ..harness import ROOT, Row, met
from ..workloads import ITEMS

SECONDS_BAR = 0.2
MEMORY_MIB_BAR = 64.0
_FLUSH_ITEMS = 10_000
_LOG_FLUSHES = 4_096
_MIB = 1024 * 1024


class Opening(NamedTuple):
    """One opening: its seconds, and the highest memory use of the process in MiB."""

    seconds: float
    memory_mib: float


def fill(directory: Path, items: int) -> None:
    """Put this number of items of 100 B, in flushes of 10,000, and close cleanly."""
    chunk = ITEMS * (_FLUSH_ITEMS // len(ITEMS))
    with PersistentQueue(directory) as queue, queue.session() as session:
        for start in range(0, items, _FLUSH_ITEMS):
            session.enqueue_many(chunk[: items - start])
            session.flush()


def crash(directory: Path, flushes_max: int) -> None:
    """Fill the log with flushes of one item, at most ``flushes_max``, and end without a close.

    The files are closed, the lock is free, and nothing is written, as after ``kill -9``.
    """
    queue = PersistentQueue(directory)
    with queue.session() as session:

        def flush() -> int:
            session.enqueue(ITEMS[0])
            session.flush()
            return queue.stats().log_bytes

        first = flush()  # this flush begins a generation, and may create a segment
        frame_bytes = flush() - first
        room_bytes = queue.stats().log_capacity_bytes - first - frame_bytes
        for _ in range(min(room_bytes // frame_bytes - 1, flushes_max)):
            session.enqueue(ITEMS[0])
            session.flush()
        group = queue._open_queue
        assert group is not None
        group.disown("crashed on purpose, to measure the opening after a crash")


def measure(directory: Path) -> Opening:
    """Open the queue in a process of its own, which closes it cleanly afterwards."""
    command = [sys.executable, "-m", __spec__.name, str(directory.absolute())]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return Opening(*json.loads(output.stdout))


def bare(directory: Path) -> float:
    """Read and checksum the log, and return the seconds."""
    log = max((directory / "log").iterdir())
    start = time.perf_counter()
    crc32(log.read_bytes())
    return time.perf_counter() - start


def rows(directory: Path, items: int, rounds: int) -> Iterator[Row]:
    """Yield the lines of the table: opening after a clean close, and after a crash."""
    full, empty = directory / "full", directory / "empty"
    fill(full, items)
    fill(empty, 0)
    for after in ("a clean close", "a crash"):
        seconds, bare_seconds, growth_mib = [], [], []
        for _ in range(rounds):
            if after == "a crash":
                crash(full, min(_LOG_FLUSHES, items // 100))
            bare_seconds.append(bare(full))
            opening = measure(full)
            seconds.append(opening.seconds)
            growth_mib.append(opening.memory_mib - measure(empty).memory_mib)
        found_seconds, found_mib = median(seconds), median(growth_mib)
        yield Row(
            f"Opening {items:,} items after {after}",
            f"{1e3 * found_seconds:.1f} ms, {found_mib:.1f} MiB",
            f"{1e3 * median(bare_seconds):.1f} ms",
            "",
            f"under {1e3 * SECONDS_BAR:.0f} ms and {MEMORY_MIB_BAR:.0f} MiB",
            met(found_seconds < SECONDS_BAR and found_mib < MEMORY_MIB_BAR),
        )


def memory_mib() -> float:
    """Return the highest memory use of this process so far, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / _MIB


def _main() -> None:
    start = time.perf_counter()
    queue = PersistentQueue(sys.argv[1], create=False)
    seconds = time.perf_counter() - start
    print(json.dumps([seconds, memory_mib()]))
    queue.close()


if __name__ == "__main__":
    _main()

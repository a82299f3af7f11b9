"""``python -m perf.studies.planning``: measures the planning of a read of a queue with a hundred thousand segments.

The planner of the data source reads the log (``look``), plans the splits (``plan``) and combines them to partitions
(``partition``). It does not open a segment if the log says that the segment is written. Measured are the seconds, and
the growth of Python's objects (``tracemalloc``, in a run of its own): once while the owner has the queue open, and once
after the owner has closed it.

The queue is made quickly: one item in each segment, no syncs, and the segments in memory (``--data``), where a file is
created in a tenth of the time. The log is not affected by this.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

from persistentqueue import PersistentQueue
from persistentqueue.interprocess.splits import look, partition, plan
from persistentqueue.system.disk import DISK

from .. import harness
from ..disks import using_disk
from ..harness import Row
from ..report import programs

SEGMENTS = 100_000
PARTITIONS = 64
_ITEM = bytes(100)
_TRIM = 500
"""Flushes between two trims of the log. Until a trim, each segment with a deferred block is an open file."""


def _ignore(_fd: int) -> None:
    pass


_UNSYNCED = replace(DISK, fdatasync=_ignore, fsync=_ignore)


def _fill(directory: Path, data: Path, segments: int) -> PersistentQueue:
    with using_disk(_UNSYNCED):
        queue = PersistentQueue(directory, data_path=data, segment_bytes=1, sync=False, memory_bytes=0)
    with queue.session() as session:
        for number in range(segments):
            session.enqueue(_ITEM)
            session.flush()
            if number % _TRIM == _TRIM - 1:
                queue.trim()
    assert queue.stats().segments >= segments
    return queue


def _plan(directory: Path) -> tuple[float, float, int, int]:
    """Plan a read. Return the seconds of ``look`` and of the rest, and the numbers of splits and of partitions."""
    begun = time.perf_counter()
    places, recovered = look(DISK, str(directory))
    looked = time.perf_counter()
    splits = plan(DISK, places, recovered, [(0, recovered.state.next_sequence)])
    total_bytes = sum(split.length_bytes for split in splits)
    groups = partition(splits, -(-total_bytes // PARTITIONS))
    return looked - begun, time.perf_counter() - looked, len(splits), len(groups)


def _row(directory: Path, segments: int, rounds: int, what: str) -> Row:
    found = [_plan(directory) for _ in range(rounds)]
    assert {splits for _, _, splits, _ in found} == {segments}
    tracemalloc.start()
    try:
        _plan(directory)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    looked, planned = (median(each[which] for each in found) for which in (0, 1))
    log_bytes = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    return Row(
        f"{segments:,} segments planned, {what}",
        f"{looked + planned:.2f} s, {peak_bytes / 2**20:.0f} MiB",
        "",
        f"look {looked:.2f} s, plan and partition {planned:.2f} s; {found[0][3]} partitions; "
        f"a segment {(looked + planned) / segments * 1e6:.0f} µs, {peak_bytes / segments:,.0f} B, "
        f"{log_bytes / segments:.0f} B of the logs",
        "",
        "",
    )


def rows(directory: Path, data: Path, segments: int, rounds: int) -> Iterator[Row]:
    """Yield a line while the owner is at work, and a line after the owner has closed the queue."""
    with ExitStack() as stack:
        place = stack.enter_context(harness.workspace(data, memory=True))
        with _fill(directory / "queue", place / "data", segments):
            yield _row(directory / "queue", segments, rounds, "beside the owner")
        yield _row(directory / "queue", segments, rounds, "without an owner")


def main() -> None:
    """Measure and print the table. With ``--results``, also write JSON."""
    parser = programs.parser("planning", __doc__)
    parser.add_argument("--data", type=Path, default=Path("/dev/shm"), help="a directory for the segments (/dev/shm)")
    parser.add_argument(
        "--segments", type=harness.at_least_one, default=SEGMENTS, help=f"number of segments ({SEGMENTS})"
    )
    parser.add_argument("--rounds", type=harness.at_least_one, default=5, help="rounds of each line (5)")
    options = parser.parse_args()
    programs.run("planning", options, lambda where: rows(where, options.data, options.segments, options.rounds))


if __name__ == "__main__":
    main()

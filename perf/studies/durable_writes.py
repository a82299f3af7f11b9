"""``python -m perf.studies.durable_writes``: measures a durable write into space of three kinds.

The space was written before, was only reserved, or is added by the write. Files of the three kinds take turns, write by
write. The offsets go from front to back, and each write is one ``pwritev`` with ``RWF_DSYNC``, as the log makes it. The
write of a batch into a segment finds space that was only reserved, unless the segment comes from the pool.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from persistentqueue.system.disk import CREATE_NEW, DISK, DSYNC
from persistentqueue.system.files import write_all, write_zeros

from .. import harness

HEADINGS = ("bytes", "written before, µs", "only reserved, µs", "times written", "added, µs", "times written")
_KINDS = ("written", "reserved", "added")
_LENGTHS = (4_096, 104 * 1024, 1024 * 1024)


def measure(directory: Path, length_bytes: int, writes: int) -> dict[str, list[float]]:
    """Return the seconds of each write, by kind of space."""
    directory.mkdir(parents=True)
    data, fds = os.urandom(length_bytes), {}
    found: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for kind in _KINDS:
        fds[kind] = fd = DISK.open(str(directory / kind), CREATE_NEW, 0o600)
        if kind == "written":
            write_zeros(DISK, fd, 0, length_bytes * writes)
        elif kind == "reserved":
            DISK.fallocate(fd, 0, length_bytes * writes)
        DISK.fsync(fd)
    try:
        for number in range(writes):
            for kind in _KINDS[:: 1 if number % 2 else -1]:
                start = time.perf_counter()
                write_all(DISK, fds[kind], (data,), length_bytes, number * length_bytes, DSYNC)
                found[kind].append(time.perf_counter() - start)
    finally:
        for fd in fds.values():
            DISK.close(fd)
    return found


def rows(directory: Path, writes: int) -> Iterator[tuple[str, ...]]:
    """Yield a line for each length, as soon as it is known."""
    for length_bytes in _LENGTHS:
        found = measure(directory / str(length_bytes), length_bytes, writes)
        line = [f"{length_bytes:,}", f"{median(found['written']) * 1e6:,.0f}"]
        for kind in _KINDS[1:]:
            shares = [one / other for one, other in zip(found[kind], found["written"], strict=True)]
            line += [f"{median(found[kind]) * 1e6:,.0f}", harness.spread(shares)]
        yield tuple(line)


def main() -> None:
    """Measure, and print each line as soon as it is known."""
    parser = harness.parser("perf.studies.durable_writes", __doc__, rounds=400)
    options = parser.parse_args()
    print(harness.table_head(HEADINGS, HEADINGS[:1]))
    with harness.asked_for(options.directory) as directory:
        for row in rows(directory, options.rounds):
            print(harness.table_line(row), flush=True)


if __name__ == "__main__":
    main()

"""Space beside the items: how much a busy queue with small segments keeps in files beside its live data.

A queue with segments of 1 MiB takes flushes of 1,000 items of 100 B: first only in, then in and out in turn. The files
are measured every 50 flushes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from persistentqueue import PersistentQueue

from ..harness import Row, met

MIB = 1024 * 1024
SEGMENT_BYTES = MIB
BAR_MIB = 16.0
_EVERY_FLUSHES = 50
_ITEMS = [b"x" * 100] * 1_000


def kept_bytes(directory: Path, flushes: int, *, in_turn: bool) -> int:
    """Return the most bytes that the files had beside the live data, during this number of flushes."""
    most = 0
    with PersistentQueue(directory, segment_bytes=SEGMENT_BYTES) as queue, queue.session() as session:
        for number in range(flushes):
            session.enqueue_many(_ITEMS)
            session.flush()
            if in_turn:
                session.dequeue_many(len(_ITEMS))
                session.flush()
            if number % _EVERY_FLUSHES == 0:
                stats = queue.stats()
                most = max(most, stats.disk_bytes - stats.live_bytes)
    return most


def rows(directory: Path, flushes: int) -> Iterator[Row]:
    """Yield the lines of the table."""
    for in_turn in (False, True):
        name = "in and out in turn" if in_turn else "in"
        most_mib = kept_bytes(directory / name.replace(" ", "-"), flushes, in_turn=in_turn) / MIB
        yield Row(
            f"Files beside the items: segments of 1 MiB, 1,000 items of 100 B per flush, {name}, {flushes:,} flushes",
            f"{most_mib:.1f} MiB",
            "",
            "",
            f"at most {BAR_MIB:g} MiB",
            met(most_mib <= BAR_MIB),
        )

"""The time that Python alone needs for a transaction: calls to the device are replaced by functions that do nothing.

The figure is the processor time of the best of many rounds: nothing waits for the disk, and the caches are warm. After
a real sync the caches are cold, and the code takes about twice as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from persistentqueue import PersistentQueue
from persistentqueue.system.disk import DISK, Buffers

from ..disks import using_disk
from ..harness import Row, met
from ..workloads import ITEM_BYTES

FLUSHES = 200
ONE_ITEM_BAR = 10.0
"""Microseconds. A sketch of the whole path took this long."""


def _write(_fd: int, buffers: Buffers, _offset: int, _flags: int) -> int:
    return sum(map(len, buffers))


def _ignore(*_: int) -> None:
    pass


_NO_DEVICE = replace(DISK, pwritev=_write, fdatasync=_ignore, fsync=_ignore, start_sync=_ignore)


def _best_seconds(queue: PersistentQueue, count: int, rounds: int) -> dict[str, float]:
    items = [bytes(ITEM_BYTES)] * count
    best = {"in": float("inf"), "out": float("inf")}
    with queue.session() as session:

        def put() -> None:
            session.enqueue_many(items)

        def take() -> None:
            assert len(session.dequeue_many(count)) == count

        ways: dict[str, Callable[[], None]] = {"in": put, "out": take}
        for _ in range(rounds):
            for way, work in ways.items():
                start = time.process_time()
                for _ in range(FLUSHES):
                    work()
                    session.flush()
                best[way] = min(best[way], (time.process_time() - start) / FLUSHES)
    return best


def best(directory: Path, rounds: int) -> dict[tuple[int, str], float]:
    """Return the least seconds of a flush, averaged over a round: one item and a thousand, in and out."""
    found = {}
    for count in (1, 1_000):
        # The items taken must be in memory, because no device exists to read them from.
        with using_disk(_NO_DEVICE), PersistentQueue(directory / str(count)) as queue:
            for way, seconds in _best_seconds(queue, count, rounds).items():
                found[count, way] = seconds
    return found


def rows(directory: Path, rounds: int) -> Iterator[Row]:
    """Yield the lines of the table."""
    for (count, way), seconds in best(directory, rounds).items():
        bar = ONE_ITEM_BAR if count == 1 else None
        yield Row(
            f"{count:,} item{'s' * (count > 1)} of {ITEM_BYTES} B per flush without a device, {way}",
            f"{1e6 * seconds:.1f} µs",
            "",
            "",
            f"at most {bar:g} µs" if bar else "",
            met(1e6 * seconds <= bar) if bar else "",
        )

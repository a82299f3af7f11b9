"""A queue far larger than memory: its use of memory, its rates, and the time of opening it.

A process of its own, ``python -m perf.studies.backlog <directory> <items>``, puts the items of 20 B in flushes of
10,000. Then it takes some items, rolls back, browses some, and prints its highest memory use. The items stay queued.

Then this process puts and takes flushes of 100 and of 1,000 items: in the queue with the backlog, and in turn in a
queue with 10,000 items. Items of the smaller queue are in memory; those of the larger one are read from files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median

from persistentqueue import PersistentQueue

from ..harness import ROOT, Row, met, spread
from ..workloads import BATCH, ITEMS
from . import opening

ITEM_BYTES = 20
NEAR_ITEMS = 10_000
MEMORY_BYTES = 64 * 1024 * 1024
MEMORY_MIB_BAR = 32.0
GROWTH_MIB_BAR = 1.0
RATE_BAR = 0.8
CRASH_SECONDS_BAR = 1.0
SMALL_PART = 100
"""The full backlog is this many times the smaller backlog, whose memory use is compared."""
_FLUSH_ITEMS = 10_000
_LOOK_ITEMS = 200_000
_CRASH_FLUSHES = 1_000
_BATCHES = (100, BATCH)
_SLICE_FLUSHES = 150
"""More than the system reads ahead at once. With fewer, most slices would read nothing and a few everything."""
_SLICES = 6
_RANDOM_BYTES = b"".join(ITEMS)
_MIB = 1024 * 1024


def fill(directory: Path, items: int) -> None:
    """Put the items, dequeue some and roll back, browse some, and close cleanly."""
    with PersistentQueue(directory, memory_bytes=MEMORY_BYTES) as queue:
        with queue.session() as session:
            for start in range(0, items, _FLUSH_ITEMS):
                session.enqueue_many(_new_items(min(_FLUSH_ITEMS, items - start)))
                session.flush()
        with queue.session() as session:
            for _ in range(0, min(items, _LOOK_ITEMS), BATCH):
                session.dequeue_many(BATCH)
            session.rollback()
        for _ in islice(queue.browse(), _LOOK_ITEMS):
            pass


def _new_items(count: int) -> list[bytes]:
    """Return new objects, so that each item that is kept takes memory of its own."""
    return [_RANDOM_BYTES[at : at + ITEM_BYTES] for at in range(count)]


def measure(directory: Path, items: int) -> float:
    """Fill the queue in a process of its own, and return the highest memory use of that process in MiB."""
    command = [sys.executable, "-m", __spec__.name, str(directory.absolute()), str(items)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return float(json.loads(output.stdout))


def rates(
    far: PersistentQueue, near: PersistentQueue, batch: int, rounds: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Return the items per second of both queues, in and out. The queues take turns, slice by slice."""
    found: dict[str, tuple[list[float], list[float]]] = {"in": ([], []), "out": ([], [])}
    for number in range(rounds * _SLICES):
        for at in (0, 1) if number % 2 else (1, 0):
            queue = (far, near)[at]
            with queue.session() as session:
                start = time.perf_counter()
                for _ in range(_SLICE_FLUSHES):
                    session.enqueue_many(_new_items(batch))
                    session.flush()
                middle = time.perf_counter()
                for _ in range(_SLICE_FLUSHES):
                    assert len(session.dequeue_many(batch)) == batch
                    session.flush()
                end = time.perf_counter()
            found["in"][at].append(_SLICE_FLUSHES * batch / (middle - start))
            found["out"][at].append(_SLICE_FLUSHES * batch / (end - middle))
    return found


def rows(directory: Path, items: int, rounds: int) -> Iterator[Row]:
    """Yield the lines of the table: memory, its growth, in, out, and opening after a clean close and after a crash."""
    far, small, empty, near = (directory / name for name in ("far", "small", "empty", "near"))
    empty_mib, small_mib, far_mib = measure(empty, 0), measure(small, items // SMALL_PART), measure(far, items)
    bound_mib = MEMORY_BYTES / _MIB
    what = f"{items:,} × {ITEM_BYTES} B queued"
    over_mib, growth_mib = far_mib - empty_mib, far_mib - small_mib
    allowed_mib = GROWTH_MIB_BAR + max(bound_mib - (small_mib - empty_mib), 0)
    yield _row(
        f"{what}, memory",
        f"{over_mib:.1f} MiB over an empty queue",
        f"at most {bound_mib:.0f} + {MEMORY_MIB_BAR:.0f} MiB",
        over_mib <= bound_mib + MEMORY_MIB_BAR,
    )
    yield _row(
        f"{what}, memory",
        f"{growth_mib:.1f} MiB over {items // SMALL_PART:,} items",
        f"at most {GROWTH_MIB_BAR:.0f} MiB beyond the bound",
        growth_mib <= allowed_mib,
    )
    seconds = [opening.measure(far).seconds for _ in range(rounds)]
    fill(near, NEAR_ITEMS)
    with PersistentQueue(far) as far_queue, PersistentQueue(near) as near_queue:
        for batch in _BATCHES:
            for way, (ours, theirs) in rates(far_queue, near_queue, batch, rounds).items():
                ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
                yield _row(
                    f"{batch:,} × {ITEM_BYTES} B per flush with {items:,} queued, {way}",
                    f"{median(ours):,.0f} items/s",
                    f"{RATE_BAR} × with {NEAR_ITEMS:,}",
                    median(ratios) >= RATE_BAR,
                    f"{spread(ratios)} × with {NEAR_ITEMS:,}",
                )
    crashed_seconds = []
    for _ in range(rounds):
        opening.crash(far, _CRASH_FLUSHES)
        crashed_seconds.append(opening.measure(far).seconds)
    openings = {"a clean close": (seconds, opening.SECONDS_BAR), "a crash": (crashed_seconds, CRASH_SECONDS_BAR)}
    for after, (found_seconds, bar_seconds) in openings.items():
        yield _row(
            f"Opening {items:,} items after {after}",
            f"{1e3 * median(found_seconds):.1f} ms",
            f"under {1e3 * bar_seconds:.0f} ms",
            median(found_seconds) < bar_seconds,
        )


def _row(what: str, ours: str, bar: str, is_met: bool, ratio: str = "") -> Row:
    return Row(what, ours, "", ratio, bar, met(is_met))


def _main() -> None:
    fill(Path(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps(opening.memory_mib()))


if __name__ == "__main__":
    _main()

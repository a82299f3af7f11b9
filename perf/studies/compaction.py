"""Compaction: the disk space that it frees, the space and time that it needs, and its effect on other threads.

- One item is left in each of a hundred segments of 10^5 items: the disk use before and after, and the time.
- A quarter of the items is left in each of twenty segments: the most that the files grow during the compaction.
- Four threads enqueue and dequeue, one item per flush: the time of a flush while segments are compacted at the rate of
  maintenance, and the time without compaction, in alternating rounds. This is repeated for other sizes of the pieces
  in which copied data is given to the device.
- A thousand sessions hold all items, and flush in reverse order or in random order: the memory for each gap, and the
  disk use at the end.

All items that are left are compared, in order, with the items that were put.
"""

from __future__ import annotations

import random
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest import mock

from persistentqueue import PersistentQueue, Session
from persistentqueue.engine import compaction
from persistentqueue.engine.context import Settings

from ..harness import Row, met
from ..workloads import ITEM_BYTES, ITEMS

SEGMENTS = 100
THREADS = 4
SESSIONS = 1_000
SEGMENTS_BAR = 2
SLOWER_BAR = 3.0
GAP_BYTES_BAR = 256
PIECES_BYTES = (compaction._START_SYNC_BYTES, 32 * 1024, 128 * 1024, 512 * 1024)
"""Bytes of copied data that are given to the device at once: first the value of the package, then others."""
BY_HAND: dict[str, Any] = {"memory_bytes": 0, "compact_below": 0}
"""Settings with which only the measured call compacts."""
_MIB = 1024 * 1024
_ROUND_SECONDS = 1.0


def _item(number: int) -> bytes:
    """Return an item that contains its number."""
    return (b"%d " % number).ljust(ITEM_BYTES, b".")


def _segment_bytes(per_segment: int) -> int:
    """Return the segment size that just holds this number of items."""
    return per_segment * (ITEM_BYTES + 1)


def _fill(
    queue: PersistentQueue, keeper: Session, segments: int, per_segment: int, kept: int, run: int = 1
) -> list[bytes]:
    """Fill this number of segments, and return the items that are left.

    The session ``keeper`` holds ``kept`` items of each segment, in runs. All other items are consumed.
    """
    left: list[bytes] = []
    every = per_segment // (kept // run)
    for _ in range(segments):
        with queue.session() as session:
            for _ in range(kept // run):
                mine = [_item(len(left) + n) for n in range(run)]
                left += mine
                session.enqueue_many(mine)
                session.enqueue_many(ITEMS * ((every - run) // len(ITEMS)) + ITEMS[: (every - run) % len(ITEMS)])
            session.flush()
        with queue.session() as session:
            for at in range(len(left) - kept, len(left), run):
                assert keeper.dequeue_many(run) == left[at : at + run]
                assert len(session.dequeue_many(every - run)) == every - run
            session.flush()
    queue.trim()
    return left


def _data_bytes(directory: Path) -> int:
    """Return the sum of the lengths of the data files."""
    total = 0
    for path in (directory / "data").iterdir():
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # deleted since it was listed
            continue
    return total


def _check(directory: Path, left: list[bytes]) -> None:
    """Open the queue, take the items, and raise ``AssertionError`` unless they are ``left``, in order."""
    with PersistentQueue(directory) as queue, queue.transaction() as session:
        assert session.dequeue_many(len(left)) == left


def _orphans(directory: Path, items: int) -> Iterator[Row]:
    per_segment = items // SEGMENTS
    segment_bytes = _segment_bytes(per_segment)
    with PersistentQueue(directory, **BY_HAND, segment_bytes=segment_bytes) as queue, queue.session() as keeper:
        left = _fill(queue, keeper, SEGMENTS, per_segment, 1)
        before = queue.stats()
        start = time.perf_counter()
        queue.compact()
        seconds = time.perf_counter() - start
        after = queue.stats()
        keeper.rollback()
    _check(directory, left)
    room_bytes = after.disk_bytes - 2 * after.log_capacity_bytes
    yield Row(
        f"One item of 100 B left in each of {before.segments} segments",
        f"{before.disk_bytes / _MIB:,.1f} → {after.disk_bytes / _MIB:,.1f} MiB, {seconds:.2f} s",
        "",
        f"{after.segments} segments",
        f"at most {SEGMENTS_BAR} segments, beside two logs",
        met(after.segments <= SEGMENTS_BAR and room_bytes <= SEGMENTS_BAR * segment_bytes),
    )


def _room(directory: Path, items: int) -> Iterator[Row]:
    per_segment = items // SEGMENTS
    segments = SEGMENTS // 5
    segment_bytes = _segment_bytes(per_segment)
    with PersistentQueue(directory, **BY_HAND, segment_bytes=segment_bytes) as queue, queue.session() as keeper:
        left = _fill(queue, keeper, segments, per_segment, per_segment // 4, min(per_segment // 4, 250))
        before = most = _data_bytes(directory)

        def look(*_: object) -> None:
            nonlocal most
            most = max(most, _data_bytes(directory))

        start = time.perf_counter()
        compacted = queue.compact(progress=look)
        seconds = time.perf_counter() - start
        after = _data_bytes(directory)
        keeper.rollback()
    _check(directory, left)
    yield Row(
        f"A quarter left in each of {segments}: the most room beside",
        f"{(most - before) / _MIB:,.2f} MiB, {compacted.copied_bytes / _MIB / seconds:,.0f} MiB/s",
        "",
        f"{(most - before) / segment_bytes:.2f} segments; then {before / after:.1f} times less",
        "at most one segment",
        met(most - before <= segment_bytes + 4096),
    )


def _flush(queue: PersistentQueue, go_on: Callable[[], bool]) -> list[float]:
    """Enqueue and dequeue, one item per flush, once and while ``go_on`` is true. Return the seconds of each flush."""
    seconds: list[float] = []
    with queue.session() as session:
        while not seconds or go_on():
            session.enqueue(ITEMS[0])
            start = time.perf_counter()
            session.flush()
            middle = time.perf_counter()
            session.dequeue()
            end = time.perf_counter()
            session.flush()
            seconds += [middle - start, time.perf_counter() - end]
    return seconds


def _while(queue: PersistentQueue, work: Callable[[], None]) -> list[float]:
    """Do ``work`` while the threads flush, and return the seconds of each flush."""
    running = threading.Event()
    running.set()
    with ThreadPoolExecutor(THREADS) as pool:
        threads = [pool.submit(_flush, queue, running.is_set) for _ in range(THREADS)]
        try:
            work()
        finally:
            running.clear()
        return [seconds for each in threads for seconds in each.result()]


def _traffic(directory: Path, items: int, rounds: int, piece_bytes: int) -> Iterator[Row]:
    per_segment = items // SEGMENTS
    with (
        PersistentQueue(directory, **BY_HAND, segment_bytes=_segment_bytes(per_segment)) as queue,
        queue.session() as keeper,
    ):
        alone: list[float] = []
        beside: list[float] = []
        ratios: list[float] = []
        left: list[bytes] = []
        copied_bytes, seconds = 0, [0.0]
        kept = per_segment // 4
        for _ in range(rounds):
            left += _fill(queue, keeper, SEGMENTS // 5, per_segment, kept, min(kept, 250))

            def work() -> None:
                nonlocal copied_bytes
                start = time.perf_counter()
                with mock.patch.object(compaction, "_START_SYNC_BYTES", piece_bytes):
                    copied_bytes += queue.compact(bytes_per_second=Settings.compact_bytes_per_second).copied_bytes
                seconds.append(time.perf_counter() - start)

            found = {}
            for what in (lambda: time.sleep(max(_ROUND_SECONDS * items / 10**7, seconds[-1])), work):
                found[what] = _while(queue, what)
            without, with_ = found.values()
            alone += without
            beside += with_
            ratios.append(_p99(with_) / _p99(without))
        keeper.rollback()
    _check(directory, left)
    is_ours = piece_bytes == PIECES_BYTES[0]
    yield Row(
        f"A flush of {THREADS} threads while segments are compacted"
        f"{'' if is_ours else f', {piece_bytes // 1024} KiB at once'}: 99 in 100",
        f"{1e3 * _p99(beside):.2f} ms, longest {1e3 * max(beside):.1f} ms, half {1e3 * median(beside):.2f} ms",
        "",
        f"{median(ratios):.2f} × {1e3 * _p99(alone):.2f} ms, longest {1e3 * max(alone):.1f} ms, "
        f"half {1e3 * median(alone):.2f} ms; {sum(seconds):.1f} s for {copied_bytes / _MIB:.0f} MiB",
        f"at most {SLOWER_BAR:g} ×" if is_ours else "",
        met(median(ratios) <= SLOWER_BAR) if is_ours else "",
    )


def _p99(seconds: list[float]) -> float:
    return quantiles(seconds, n=100)[98]


def _completion(directory: Path, items: int) -> Iterator[Row]:
    per_session = items // SESSIONS
    chance = random.Random(20081114)
    orders = {
        "reverse order": list(range(SESSIONS))[::-1],
        "any order": chance.sample(range(SESSIONS), SESSIONS),
    }
    for name, order in orders.items():
        own = directory / name.split()[0]
        with PersistentQueue(own, **BY_HAND, segment_bytes=_MIB) as queue, ExitStack() as stack:
            with queue.session() as session:
                for start in range(0, items, 10_000):
                    session.enqueue_many([b"%d" % n for n in range(start, min(start + 10_000, items))])
                    session.flush()
            sessions = [stack.enter_context(queue.session()) for _ in range(SESSIONS)]
            for number, session in enumerate(sessions):
                taken = session.dequeue_many(per_session)
                assert (taken[0], len(taken)) == (b"%d" % (number * per_session), per_session)
            held = queue.stats()
            group = queue._open_queue
            assert group is not None
            consumed = group._store.state.gone.consumed
            tracemalloc.start()
            most_bytes = gaps = 0
            start_time = time.perf_counter()
            for done, number in enumerate(order, 1):
                sessions[number].flush()
                if (runs := len(consumed._firsts) - consumed._start) >= gaps or done % 100 == 0:
                    gaps = max(gaps, runs)
                    most_bytes = max(most_bytes, tracemalloc.get_traced_memory()[0])
            seconds = time.perf_counter() - start_time
            tracemalloc.stop()
            queue.compact()
            after = queue.stats()
        yield Row(
            f"{items:,} items held by {SESSIONS:,} sessions that flush in {name}",
            f"{most_bytes / 1024:,.0f} KiB for {gaps} gaps, {seconds:.2f} s",
            "",
            f"{held.disk_bytes / _MIB:.1f} → {after.disk_bytes / _MIB:.1f} MiB",
            f"{GAP_BYTES_BAR} B for each, and 256 KiB; one segment at most",
            met(most_bytes <= GAP_BYTES_BAR * gaps + 256 * 1024 and after.segments <= 1),
        )


def rows(directory: Path, items: int, rounds: int) -> Iterator[Row]:
    """Yield the lines of the table."""
    yield from _orphans(directory / "orphans", items)
    yield from _room(directory / "room", items)
    for piece_bytes in PIECES_BYTES:
        yield from _traffic(directory / f"traffic-{piece_bytes}", items, min(rounds, 5), piece_bytes)
    yield from _completion(directory / "completion", max(items // 10, SESSIONS))

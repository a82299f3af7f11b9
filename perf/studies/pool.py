"""The gain of the pool: segments made from files that were written before, beside new files.

- Two queues flush items of 1 MiB in turn, one with a filled pool and one without a pool: the time of a flush, and the
  calls to the disk.
- Two files are written and synced in turn, one that was written before and one whose space was only reserved: the time
  of each call of ``fdatasync``.

Every item and both files are read back and compared.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from persistentqueue import PersistentQueue
from persistentqueue.system.disk import CREATE_NEW, DISK, Disk
from persistentqueue.system.files import read_all, write_all, write_zeros

from ..disks import using_disk
from ..harness import Row, spread

_MIB = 1024 * 1024
_PER_SEGMENT = 3
_WARM = 3
_METADATA = ("fallocate", "ftruncate", "unlink", "rename", "fsync")


class Watch:
    """A ``Disk`` that counts calls, and measures the time of each ``fdatasync``."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.sync_seconds: list[float] = []
        counted = {each.name: self._count(each.name, getattr(DISK, each.name)) for each in fields(Disk)}
        self.disk = replace(DISK, **counted)

    def _count(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.calls[name] += 1
            if name != "fdatasync":
                return call(*arguments)
            start = time.perf_counter()
            call(*arguments)
            self.sync_seconds.append(time.perf_counter() - start)
            return None

        return counted


class Contender:
    """A queue whose segments hold a few items of 1 MiB each. Each round fills and drains it."""

    def __init__(self, directory: Path, segments: int, is_pooled: bool) -> None:
        self.watch = Watch()
        segment_bytes = _PER_SEGMENT * (_MIB + 4096)
        pool_bytes = 2 * segments * segment_bytes if is_pooled else 0
        with using_disk(self.watch.disk):
            self.queue = PersistentQueue(
                directory, segment_bytes=segment_bytes, pool_max_bytes=pool_bytes, memory_bytes=0
            )
        self.seconds: list[float] = []

    def round(self, items: list[bytes]) -> float:
        """Put the items, one per flush, and take them. Return the seconds of the flushes that put."""
        self.watch.calls.clear()
        seconds = 0.0
        with self.queue.session() as session:
            for item in items:
                session.enqueue(item)
                start = time.perf_counter()
                session.flush()
                seconds += time.perf_counter() - start
        self.put_calls = Counter(self.watch.calls)
        with self.queue.transaction() as session:
            for item in items:
                assert session.dequeue() == item
        self.queue.trim()
        return seconds


def _queues(directory: Path, segments: int, rounds: int) -> Iterator[Row]:
    items = [os.urandom(_MIB) for _ in range(_PER_SEGMENT * segments)]
    contenders = {name: Contender(directory / name, segments, name == "pooled") for name in ("pooled", "fresh")}
    try:
        for contender in contenders.values():
            for _ in range(_WARM):  # these rounds fill the pool with files that are large enough
                contender.round(items)
            contender.watch.sync_seconds.clear()
        taken = contenders["pooled"].queue.stats().pool_taken
        for number in range(rounds):
            for name in list(contenders)[:: 1 if number % 2 else -1]:
                contenders[name].seconds.append(contenders[name].round(items))
        taken = contenders["pooled"].queue.stats().pool_taken - taken
    finally:
        for contender in contenders.values():
            contender.queue.close()
    pooled, fresh = contenders["pooled"], contenders["fresh"]
    ratios = [ours / theirs for ours, theirs in zip(pooled.seconds, fresh.seconds, strict=True)]
    yield Row(
        f"1 MiB per flush into segments of {_PER_SEGMENT} items, {taken} of them from the pool",
        f"{1e3 * median(pooled.seconds) / len(items):.2f} ms",
        f"{1e3 * median(fresh.seconds) / len(items):.2f} ms",
        f"{spread(ratios)} × the time of fresh ones",
        "",
        "",
    )
    yield Row(
        f"The calls of {len(items)} such flushes that change more than data",
        _shown(pooled.put_calls),
        _shown(fresh.put_calls),
        "",
        "",
        "",
    )
    yield _syncs("fdatasync, the queues' own", pooled.watch.sync_seconds, fresh.watch.sync_seconds)


def _shown(calls: Counter[str]) -> str:
    return ", ".join(f"{calls[name]} {name}" for name in _METADATA)


def _syncs(what: str, ours: list[float], theirs: list[float]) -> Row:
    shown = [f"{1e3 * median(one):.2f} ms, 99 in 100 under {1e3 * _p99(one):.2f} ms" for one in (ours, theirs)]
    ratio = f"{median(ours) / median(theirs):.2f} ×, {_p99(ours) / _p99(theirs):.2f} × of 99 in 100"
    return Row(f"{what}, {len(ours)} and {len(theirs)} calls", shown[0], shown[1], ratio, "", "")


def _p99(seconds: list[float]) -> float:
    return quantiles(seconds, n=100)[98]


def _files(directory: Path, pages: int) -> Iterator[Row]:
    """Sync after each small write, so that the time is that of the sync and not of the data."""
    directory.mkdir(parents=True)
    seconds: dict[str, list[float]] = {"pooled": [], "fresh": []}
    open_files = {}
    for name in seconds:
        open_files[name] = fd = DISK.open(str(directory / name), CREATE_NEW, 0o600)
        if name == "pooled":
            write_zeros(DISK, fd, 0, 4096 * pages)
        else:
            DISK.fallocate(fd, 0, 4096 * pages)
        DISK.fdatasync(fd)
    data = [os.urandom(4096) for _ in range(pages)]
    for number, page in enumerate(data):
        for name in list(seconds)[:: 1 if number % 2 else -1]:
            write_all(DISK, open_files[name], [page], len(page), 4096 * number)
            start = time.perf_counter()
            DISK.fdatasync(open_files[name])
            seconds[name].append(time.perf_counter() - start)
    for fd in open_files.values():
        assert read_all(DISK, fd, 4096 * pages, 0) == b"".join(data)
        DISK.close(fd)
    yield _syncs("fdatasync of a page, written before or only reserved", seconds["pooled"], seconds["fresh"])


def rows(directory: Path, segments: int, rounds: int) -> Iterator[Row]:
    """Yield the lines of the table. Column "ours" is with the pool, column "beside" is without it."""
    yield from _queues(directory / "queues", segments, rounds)
    yield from _files(directory / "files", 128 * segments)

"""This machine's disk against this queue, in some seconds: durable writes of the same bytes, in turn."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from persistentqueue import PersistentQueue
from persistentqueue.system.disk import DIRECTORY, DISK, DSYNC

SECONDS = 10.0
ITEM_BYTES = 100
MANY = 1000
_TURNS = 5
_RECORD_BYTES = 16
"""What the disk writes where the queue takes items out: that they are gone."""
_FILE_BYTES = 4 * 1024 * 1024
_PAGE_BYTES = 4096
_PREFIX = ".persistentqueue-bench-"
_YOUNG_SECONDS = 60.0


class Row(NamedTuple):
    """One kind of flush: how many items a second, and how often the queue syncs."""

    what: str
    items_per_flush: int
    bare_per_second: float
    queue_per_second: float
    syncs_per_flush: float

    @property
    def ratio(self) -> float:
        """How many times the rate of the bare disk is the queue's."""
        return self.queue_per_second / self.bare_per_second


class Lane:
    """A file that was written before, to which some bytes are written, durably, again and again."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._at = 0
        # Page by page: of what one call writes the system keeps larger pieces, and would write such a piece whole.
        for at in range(0, _FILE_BYTES, _PAGE_BYTES):
            os.pwrite(self._fd, bytes(_PAGE_BYTES), at)
        os.fsync(self._fd)

    def write(self, data: bytes) -> None:
        """Write it durably, behind what was written before, or at the beginning again."""
        if self._at + len(data) > _FILE_BYTES:
            self._at = 0
        DISK.pwritev(self._fd, [data], self._at, DSYNC)
        self._at += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class _Sum:
    """What a contender did in all its turns."""

    def __init__(self, flush: Callable[[], int]) -> None:
        self.flush = flush
        self.items = self.flushes = self.syncs = 0
        self.seconds = 0.0

    def work(self, seconds: float, syncs: Callable[[], int]) -> None:
        """Flush again and again, for so long; or until there is nothing to take."""
        begin, before = time.perf_counter(), syncs()
        while True:
            items = self.flush()
            self.items += items
            self.flushes += items > 0
            spent = time.perf_counter() - begin
            if spent >= seconds or not items:
                break
        self.seconds += spent
        self.syncs += syncs() - before

    @property
    def per_second(self) -> float:
        """Items a second."""
        return self.items / self.seconds


def measure(path: str, seconds: float, progress: Callable[[float], object] = str) -> list[Row]:
    """Measure for about so long on the disk that ``path`` is on. Leaves nothing behind, but where it is killed: that
    goes with the next one. Raises ``OSError``."""
    _sweep(path)
    directory = tempfile.mkdtemp(prefix=_PREFIX, dir=path)
    try:
        with _locked(directory):
            lane = Lane(os.path.join(directory, "bare"))
            try:
                with PersistentQueue(directory, "queue") as queue:
                    return _measure(queue, lane, seconds, progress)
            finally:
                lane.close()
    finally:
        shutil.rmtree(directory)


def _sweep(path: str) -> None:
    """Delete what those left that were killed: it is locked by nobody, and not just being made."""
    for left in Path(path).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _YOUNG_SECONDS:
                with _locked(str(left)) as is_left:
                    if is_left:
                        shutil.rmtree(left)


@contextmanager
def _locked(directory: str) -> Iterator[bool]:
    """Hold the lock on a directory, which ends with the process; yields whether it was free."""
    fd = DISK.open(directory, DIRECTORY, 0)
    try:
        yield DISK.lock(fd)
    finally:
        DISK.close(fd)


def _measure(queue: PersistentQueue, lane: Lane, seconds: float, progress: Callable[[float], object]) -> list[Row]:
    item = bytes(range(ITEM_BYTES))
    session = queue.session("bench")

    def put(count: int) -> int:
        """So many items in, durably."""
        session.enqueue_many([item] * count)
        session.flush()
        return count

    def take(count: int) -> int:
        """So many items out, durably; or as many as there are."""
        items = session.dequeue_many(count)
        session.flush()
        return len(items)

    def write(data: bytes, count: int) -> int:
        """What stands for so many items, durably."""
        lane.write(data)
        return count

    record = bytes(_RECORD_BYTES)
    kinds = [
        _Kind("1 item per flush, in", 1, partial(write, item, 1), partial(put, 1)),
        _Kind("1 item per flush, out", 1, partial(write, record, 1), partial(take, 1)),
        _Kind(f"{MANY:,} items per flush, in", MANY, partial(write, item * MANY, MANY), partial(put, MANY)),
        _Kind(f"{MANY:,} items per flush, out", MANY, partial(write, record, MANY), partial(take, MANY)),
    ]
    each_seconds = seconds / _TURNS / len(kinds) / 2
    for turn in range(_TURNS):  # in turn, so that what else the disk does slows down both
        for at, kind in enumerate(kinds):
            kind.bare.work(each_seconds, lambda: 0)
            kind.ours.work(each_seconds, lambda: queue.stats().syncs)
            progress((turn * len(kinds) + at + 1) * 2 * each_seconds)
    session.close()
    return [
        Row(
            each.what,
            each.count,
            each.bare.per_second,
            each.ours.per_second,
            each.ours.syncs / max(each.ours.flushes, 1),
        )
        for each in kinds
    ]


class _Kind:
    """A kind of flush, and the two who contend in it."""

    def __init__(self, what: str, count: int, bare: Callable[[], int], ours: Callable[[], int]) -> None:
        self.what, self.count = what, count
        self.bare, self.ours = _Sum(bare), _Sum(ours)

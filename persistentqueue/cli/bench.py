"""A comparison of a queue with the bare disk, in some seconds: durable writes of the same bytes, in turn."""

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
"""Bytes that the bare disk writes for a dequeue: a record that the items are consumed."""
_FILE_BYTES = 4 * 1024 * 1024
_PAGE_BYTES = 4096
_PREFIX = ".persistentqueue-bench-"
_YOUNG_SECONDS = 60.0


class Row(NamedTuple):
    """The result for one kind of flush: items per second, and syncs of the queue per flush."""

    what: str
    items_per_flush: int
    bare_per_second: float
    queue_per_second: float
    syncs_per_flush: float

    @property
    def ratio(self) -> float:
        """The queue's rate divided by that of the bare disk."""
        return self.queue_per_second / self.bare_per_second


class Lane:
    """A file, written once in full, to which durable writes are repeated: the bare disk."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._at = 0
        # Page by page: the page cache of the system keeps one large write in large pieces, and later rewrites each
        # piece whole.
        for at in range(0, _FILE_BYTES, _PAGE_BYTES):
            os.pwrite(self._fd, bytes(_PAGE_BYTES), at)
        os.fsync(self._fd)

    def write(self, data: bytes) -> None:
        """Write the bytes durably behind those before; start again at the beginning when the file is full."""
        if self._at + len(data) > _FILE_BYTES:
            self._at = 0
        DISK.pwritev(self._fd, [data], self._at, DSYNC)
        self._at += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class _Sum:
    """The totals of one contender over all its turns."""

    def __init__(self, flush: Callable[[], int]) -> None:
        self.flush = flush
        self.items = self.flushes = self.syncs = 0
        self.seconds = 0.0

    def work(self, seconds: float, syncs: Callable[[], int]) -> None:
        """Flush repeatedly for this many seconds, or until there is no item left to take."""
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
        """Items per second."""
        return self.items / self.seconds


def measure(path: str, seconds: float, progress: Callable[[float], object] = str) -> list[Row]:
    """Measure the disk of ``path`` for about this many seconds. Raises ``OSError``.

    Its directory is deleted at the end; if the process is killed, the next measurement deletes it.
    """
    _sweep(path)
    try:
        directory = tempfile.mkdtemp(prefix=_PREFIX, dir=path)
    except OSError as error:
        advice = "name a directory on the disk to measure that this user may write to"
        raise type(error)(f"{path}: no directory can be made here: {error.strerror}: {advice}") from None
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
    """Delete the directories of killed measurements: those that are unlocked, and older than a minute.

    A younger one may have just been made, and not be locked yet.
    """
    for left in Path(path).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _YOUNG_SECONDS:
                with _locked(str(left)) as is_left:
                    if is_left:
                        shutil.rmtree(left)


@contextmanager
def _locked(directory: str) -> Iterator[bool]:
    """Hold a lock on a directory, and yield whether it was free. The lock also ends with the process."""
    with DISK.opened(directory, DIRECTORY) as fd:
        yield DISK.lock(fd)


def _measure(queue: PersistentQueue, lane: Lane, seconds: float, progress: Callable[[float], object]) -> list[Row]:
    item = bytes(range(ITEM_BYTES))
    session = queue.session("bench")

    def put(count: int) -> int:
        """Enqueue ``count`` items durably, and return ``count``."""
        session.enqueue_many([item] * count)
        session.flush()
        return count

    def take(count: int) -> int:
        """Consume up to ``count`` items durably, and return how many."""
        items = session.dequeue_many(count)
        session.flush()
        return len(items)

    def write(data: bytes, count: int) -> int:
        """Write the bytes that stand for ``count`` items durably, and return ``count``."""
        lane.write(data)
        return count

    record = bytes(_RECORD_BYTES)
    kinds = [
        (f"{what}, {way}", count, _Sum(partial(write, data, count)), _Sum(partial(flush, count)))
        for what, count in (("1 item per flush", 1), (f"{MANY:,} items per flush", MANY))
        for way, data, flush in (("in", item * count, put), ("out", record, take))
    ]
    each_seconds = seconds / _TURNS / len(kinds) / 2
    for turn in range(_TURNS):  # in turn, so that other work on the disk slows both down
        for at, (_, _, bare, ours) in enumerate(kinds):
            bare.work(each_seconds, lambda: 0)
            ours.work(each_seconds, lambda: queue.stats().syncs)
            progress((turn * len(kinds) + at + 1) * 2 * each_seconds)
    session.close()
    return [
        Row(what, count, bare.per_second, ours.per_second, ours.syncs / max(ours.flushes, 1))
        for what, count, bare, ours in kinds
    ]

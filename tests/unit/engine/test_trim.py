"""Generations of the log: their lengths, and a trim that fails."""

from __future__ import annotations

import errno
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import BrokenQueueError, DiskFullError
from persistentqueue.core.frame import LOG_MAGIC
from persistentqueue.storage.log_reader import read_log
from persistentqueue.storage.pool import SPARE_NAME
from persistentqueue.storage.segment_files import OPEN_FILES
from persistentqueue.system.disk import DISK, PAGE_BYTES, Buffers, StatResult
from tests.conftest import QueueFactory
from tests.support.queues import IN_CACHE, crash, drain, log_file, put, put_each


def test_log_that_fills_at_the_right_pace_keeps_its_size(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that takes neither too few groups nor too many keeps its length in later generations."""
    monkeypatch.setattr("persistentqueue.engine.trim._GROUPS_PER_LOG", (1, 10**6))
    queue = open_queue(log_bytes=8192)
    for n in range(200):
        put(queue, b"%d" % n)
    assert queue.stats().generation > 2
    assert queue.stats().log_capacity_bytes == 8192


def test_an_unsynced_queue_keeps_few_files_open(open_queue: QueueFactory) -> None:
    """With ``sync=False``, segments stay open until they are synced. A trim syncs them when there are many of them."""
    queue, most, segments = open_queue(sync=False, segment_bytes=1, memory_bytes=0), 0, 4 * OPEN_FILES
    for n in range(segments):
        put(queue, b"%4d" % n * 10_000)
        most = max(most, len(queue._open()._store.segments._open))
    assert queue.stats().segments >= segments
    assert most <= OPEN_FILES + 1
    assert [int(item[:4]) for item in drain(queue)] == list(range(segments))


class ChangingDeque(deque[tuple[int, int]]):
    """A deque of which another thread removes what is left as soon as the second entry is asked for. To iterate over it
    or to copy it fails, as it does without a GIL if the other thread removes something meanwhile."""

    def __getitem__(self, at: Any) -> Any:
        """Return the entry. Raises ``IndexError`` if the other thread has removed it."""
        if at == 1:
            self.clear()
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Raise ``RuntimeError``."""
        raise RuntimeError("deque mutated during iteration")

    copy = __iter__  # type: ignore[assignment]


def test_segments_that_another_thread_deletes_meanwhile(open_queue: QueueFactory) -> None:
    """A flush asks for the size of the retired segments while another thread deletes them: it gets what it has seen."""
    generations = open_queue()._open()._store.generations
    entries = [(7, 5), (8, 11)]
    generations.retired = deque(entries)
    assert generations.retired_bytes == 16
    generations.retired = ChangingDeque(entries)
    assert generations.retired_bytes == 5
    generations.retired = deque()


class ZerosDisk:
    """A disk that counts the zeros that are written, and that may have no room for them. Payloads have no zeros."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.is_full = False
        self.disk = replace(IN_CACHE, pwritev=self._pwritev)

    def _pwritev(self, fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        data = b"".join(buffers)
        if not data.strip(b"\0"):
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.counts["zeros"] += len(data)
        return IN_CACHE.pwritev(fd, buffers, offset, flags)


def test_no_flush_writes_a_longer_log(open_queue: QueueFactory) -> None:
    """A log becomes longer bit by bit: a flush writes at most 512 KiB of zeros, and three times its own bytes."""
    zeros, most = ZerosDisk(), 0
    queue = open_queue(log_bytes=16 * 1024, disk=zeros.disk)
    for _ in range(800):
        zeros.counts.clear()
        put(queue, b"x" * 10_000)
        most = max(most, zeros.counts["zeros"])
    assert 10_000 < most <= 3 * 10_000 + 512 * 1024
    assert queue.stats().log_capacity_bytes >= 2**20
    crash(queue)
    assert drain(open_queue()) == [b"x" * 10_000] * 800


def test_a_log_that_finds_no_room_to_grow(open_queue: QueueFactory) -> None:
    """Without room for a longer log, all flushes go on with the log that there is. It grows once there is room."""
    zeros = ZerosDisk()
    queue = open_queue(log_bytes=16 * 1024, disk=zeros.disk)
    zeros.is_full = True
    put_each(queue, [b"x" * 1000] * 200)
    assert queue.stats().log_capacity_bytes == queue.stats().spare_bytes == 16 * 1024
    zeros.is_full = False
    put_each(queue, [b"x" * 1000] * 200)
    assert queue.stats().log_capacity_bytes > 16 * 1024
    assert drain(queue) == [b"x" * 1000] * 400


def test_a_spare_that_cannot_be_reached(open_queue: QueueFactory) -> None:
    """If the spare cannot grow, and not even be looked at, the flush before is reported as durable, which it is."""
    left = 0

    def lstat(path: str) -> StatResult:
        nonlocal left
        if left and path.endswith(SPARE_NAME):
            left -= 1
            raise OSError(errno.EIO, "Input/output error", path)
        return IN_CACHE.lstat(path)

    queue = open_queue(log_bytes=16 * 1024, disk=replace(IN_CACHE, lstat=lstat))
    count = 0
    while not queue._open()._store.generations.growth_bytes:
        put(queue, b"x" * 1000)
        count += 1
        assert count < 100
    left = 2  # the call that makes the spare longer, and the look at it after that
    while left:
        put(queue, b"x" * 1000)
        count += 1
        assert count < 100
    put_each(queue, [b"x" * 1000] * 100)
    assert drain(queue) == [b"x" * 1000] * (count + 100)


def test_a_trim_whose_spare_cannot_be_reached(open_queue: QueueFactory) -> None:
    """A flush that finds no room because the spare cannot be reached names that error, not a full disk."""
    trims = 0

    def lstat(path: str) -> StatResult:
        if trims > 1 and path.endswith(SPARE_NAME):
            raise OSError(errno.EIO, "Input/output error", path)
        return IN_CACHE.lstat(path)

    def rename(source: str, target: str) -> None:
        nonlocal trims
        IN_CACHE.rename(source, target)
        trims += source.endswith(SPARE_NAME)  # the first one is at the opening

    queue = open_queue(log_bytes=4096, disk=replace(IN_CACHE, lstat=lstat, rename=rename))
    count = 0
    with pytest.raises(BrokenQueueError, match="Input/output error") as caught:
        while count < 100:
            put(queue, b"x" * 500)
            count += 1
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.EIO
    crash(queue)
    assert drain(open_queue()) == [b"x" * 500] * count


def test_a_log_whose_spare_is_shorter(open_queue: QueueFactory) -> None:
    """If the disk is full before the spare is as long as its log, all items can still be dequeued, one by one."""
    zeros, items = ZerosDisk(), [b"x" * 300] * 10
    queue = open_queue(log_bytes=4096, segment_bytes=400, inline_bytes=2000, disk=zeros.disk)
    for _ in range(100):
        put(queue, b"inline" * 200)
        drain(queue)
        if (stats := queue.stats()).log_capacity_bytes > stats.spare_bytes:
            break
    assert stats.log_capacity_bytes > stats.spare_bytes
    zeros.is_full = True
    with pytest.raises(DiskFullError):
        for _ in range(500):
            put(queue, *items)
    with queue.session() as session:
        while session.dequeue() is not None:
            session.flush()
    assert len(queue) == 0


def test_full_log_whose_trim_breaks(open_queue: QueueFactory) -> None:
    """A flush breaks the queue and raises ``BrokenQueueError`` if it needs a new generation of the log whose sync
    fails."""
    failing = [False]

    def fdatasync(fd: int) -> None:
        if failing[0]:
            raise OSError(errno.EIO, "Input/output error")
        DISK.fdatasync(fd)

    queue = open_queue(log_bytes=4096, disk=replace(DISK, fdatasync=fdatasync))
    put(queue, b"x" * 2000)
    failing[0] = True
    with pytest.raises(BrokenQueueError):
        put_each(queue, [b"x" * 2000] * 3)
    failing[0] = False
    queue.close()
    assert set(drain(open_queue())) == {b"x" * 2000}


def test_a_log_is_doubled_after_its_trims_have_paid(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of twice the length is full twice as often before the next one is doubled: each turn saves one trim."""
    monkeypatch.setattr("persistentqueue.engine.trim._BYTES_PER_TURN", 8192)
    queue = open_queue(log_bytes=8192, disk=IN_CACHE)
    lengths: dict[int, int] = {}
    for _ in range(300):
        put(queue, b"x" * 1000)
        stats = queue.stats()
        lengths[stats.generation] = stats.log_capacity_bytes
    turns = Counter(length // 8192 for length in lengths.values())
    # While the spare grows, one more log has the old length.
    assert (turns[1], turns[2], turns[4]) == (2, 3, 5) and turns[8]


def test_a_generation_begins_with_whole_pages(open_queue: QueueFactory, directory: Path) -> None:
    """A trim writes its checkpoint up to the end of a page, with zeros, so that the system need not read the page.

    Behind the next frame there are zeros, too: nothing of the frames of the log before."""
    first: list[int] = []

    def pwritev(fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        if not flags and bytes(buffers[0][:8]) == LOG_MAGIC:
            first.append(sum(map(len, buffers)))
        return DISK.pwritev(fd, buffers, offset, flags)

    queue = open_queue(disk=replace(DISK, pwritev=pwritev))
    put(queue, b"long" * 1500)
    queue.trim()
    put(queue, b"short")
    crash(queue)
    assert len(first) > 1 and {length_bytes % PAGE_BYTES for length_bytes in first} == {0}
    end = read_log(DISK, str(log_file(directory))).end
    assert end < PAGE_BYTES
    assert set(log_file(directory).read_bytes()[end:PAGE_BYTES]) == {0}
    assert drain(open_queue()) == [b"long" * 1500, b"short"]

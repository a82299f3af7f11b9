"""The scenarios of DiskQueue's own test suite, for this queue.

Each group of tests has the name of the suite's fixture, and a number is that of the scenario in its fixture. The
scenarios of the transaction log are in ``test_diskqueue_log``, and those with several processes in ``test_processes``.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    CorruptionError,
    DiskFullError,
    PersistentQueue,
    QueueLockedError,
    delete_queue,
    list_queues,
)
from persistentqueue.core.block import BLOCK_HEADER_BYTES, BLOCK_MAGIC, SEGMENT_MAGIC
from persistentqueue.core.frame import END, FRAME_HEADER_BYTES, FRAME_MAGIC, LOG_MAGIC, SEALED, SYNCED
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.storage.log_reader import read_log
from persistentqueue.system.disk import DISK, Buffers
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, log_file, put, put_each, segment_files, spilling_session

EMPTY_LOG_BYTES = HEADER_BYTES + FRAME_HEADER_BYTES + 4 + 57 + 25
"""Length of an empty log: its header, and one frame with the fixed fields of a checkpoint and the queue's identity."""


def digits(*bounds: int) -> list[bytes]:
    """Return the numbers of ``range(*bounds)`` as items."""
    return [b"%d" % number for number in range(*bounds)]


def dequeue_each(queue: PersistentQueue, count: int) -> list[bytes | None]:
    """Dequeue so many times in one session, with a flush each time. Return the results."""
    found = []
    with queue.session() as session:
        for _ in range(count):
            found.append(session.dequeue())
            session.flush()
    return found


def dequeue_held(queue: PersistentQueue, count: int) -> list[bytes | None]:
    """Dequeue so many times in one session that ends without a flush. Return the results."""
    with queue.session() as session:
        found = [session.dequeue() for _ in range(count)]
        session.rollback()
    return found


# --- PersistentQueueTests ---------------------------------------------------------------------------------------------


def test_queue_01_a_second_open_is_refused(open_queue: QueueFactory, directory: Path) -> None:
    """An open queue cannot be opened again, and its owner is not affected."""
    queue = open_queue()
    with pytest.raises(QueueLockedError, match="the queue is open in process"):
        open_queue()
    put(queue, b"a")
    assert drain(queue) == [b"a"]


def test_queue_02_junk_in_the_lock_file_does_not_matter(open_queue: QueueFactory, directory: Path) -> None:
    """A lock file that no process has locked is no obstacle, whatever it contains."""
    open_queue().close()
    (directory / "lock").write_text("78924759045")
    with open_queue() as queue:
        assert len(queue) == 0


def test_queue_03_a_new_queue_can_be_made_and_closed(open_queue: QueueFactory, directory: Path) -> None:
    """A new queue is empty and clean, and a close leaves an empty sealed log of a fixed length."""
    with open_queue() as queue:
        assert (len(queue), queue.recovery.clean) == (0, True)
    replay = read_log(DISK, str(log_file(directory)))
    assert (replay.sealed, replay.end) == (True, EMPTY_LOG_BYTES)


@pytest.mark.damages
@pytest.mark.parametrize("length_bytes", [0, 48, 4096])
def test_queue_04_a_log_of_random_bytes_is_refused(
    open_queue: QueueFactory, directory: Path, length_bytes: int
) -> None:
    """A log of random bytes raises an error with its file and offset, and stays unchanged."""
    open_queue().close()
    junk = random.Random(4).randbytes(length_bytes)
    log = log_file(directory)
    log.write_bytes(junk)
    with pytest.raises(CorruptionError) as caught:
        open_queue()
    assert (caught.value.file, caught.value.offset) == (str(log), 0)
    assert log.read_bytes() == junk


def test_queue_05_an_empty_queue_gives_none(open_queue: QueueFactory) -> None:
    """Dequeueing from an empty queue returns None without waiting."""
    with open_queue().session() as session:
        assert session.dequeue() is None


@pytest.mark.parametrize("item", [b"one", b""], ids=["06-07", "08 zero-length"])
def test_queue_06_to_08_what_went_in_comes_out(open_queue: QueueFactory, item: bytes) -> None:
    """A flushed item comes out of its own session unchanged, even if it is empty."""
    with open_queue().session() as session:
        session.enqueue(item)
        assert session.flush()
        assert session.dequeue() == item
        assert session.dequeue() is None
        session.rollback()


def test_queue_09_an_item_survives_a_restart(open_queue: QueueFactory) -> None:
    """A flushed item is there after a close and an opening."""
    with open_queue() as queue:
        put(queue, b"one")
    assert drain(open_queue()) == [b"one"]


def test_queue_10_an_item_comes_out_once(open_queue: QueueFactory) -> None:
    """A dequeued item does not come out again."""
    queue = open_queue()
    put(queue, b"one")
    with queue.session() as session:
        assert [session.dequeue(), session.dequeue()] == [b"one", None]
        session.rollback()


@pytest.mark.filterwarnings("ignore::persistentqueue.UnflushedWarning")
@pytest.mark.parametrize(
    ("flush_in", "flush_out", "expected"),
    [(True, True, None), (True, False, b"one"), (False, False, None)],
    ids=["11 both flushed", "12 dequeue not flushed", "13 enqueue not flushed"],
)
@pytest.mark.parametrize("end", [PersistentQueue.close, crash])
def test_queue_11_to_13_only_a_flush_outlives_a_restart(
    open_queue: QueueFactory,
    end: Callable[[PersistentQueue], None],
    flush_in: bool,
    flush_out: bool,
    expected: bytes | None,
) -> None:
    """After a close or a crash, the queue contains the effects of the flushes and of nothing else."""
    queue = open_queue()
    with queue.session() as session:
        session.enqueue(b"one")
        if flush_in:
            session.flush()
            assert session.dequeue() == b"one"
        if flush_out:
            session.flush()
        end(queue)
    assert dequeue_held(open_queue(), 1) == [expected]


def test_queue_14_a_closed_session_gives_back(open_queue: QueueFactory) -> None:
    """An item that a session dequeued without a flush goes to the next session."""
    queue = open_queue()
    put(queue, b"one")
    assert dequeue_held(queue, 1) == [b"one"]
    assert dequeue_held(queue, 1) == [b"one"]


def test_queue_15_a_held_item_is_nobody_elses(open_queue: QueueFactory) -> None:
    """While one session holds an item, no other session gets it."""
    queue = open_queue()
    put(queue, b"one")
    with queue.session() as first, queue.session() as second:
        assert first.dequeue() == b"one"
        assert second.dequeue() is None
        assert (len(queue), queue.stats().held) == (0, 1)
        first.rollback()
        second.rollback()


def test_queue_16_unflushed_dequeues_repeat_in_order(open_queue: QueueFactory) -> None:
    """However often items are dequeued without a flush, they come out in their order the next time."""
    with open_queue() as queue:
        put(queue, *digits(1, 5))
    for _ in range(4):
        with open_queue() as queue:
            assert dequeue_held(queue, 3) == digits(1, 4)


# --- CountOfItemsPersistentQueueTests ---------------------------------------------------------------------------------


def test_count_follows_the_flushes(open_queue: QueueFactory) -> None:
    """The count is 0 for an empty queue, grows with each flush, and is unchanged after a restart."""
    with open_queue() as queue:
        assert len(queue) == 0
        for count in range(1, 6):
            put(queue, b"x")
            assert len(queue) == count
    assert len(open_queue()) == 5


# --- MultiFileQueueTests: with segments of 10 bytes each block gets a file of its own ---------------------------------


def test_files_1_to_3_each_block_has_a_file(open_queue: QueueFactory, directory: Path) -> None:
    """A queue over many files counts its items and its files."""
    queue = open_queue(segment_bytes=10)
    put_each(queue, digits(11))
    assert (len(queue), queue.stats().segments) == (11, 11)
    assert [path.name for path in segment_files(directory)] == [f"{number:012d}.seg" for number in range(1, 12)]


def test_files_4_and_5_restarts_change_no_order(open_queue: QueueFactory, directory: Path) -> None:
    """After a restart new items go behind the last file, and all items come out in order."""
    with open_queue(segment_bytes=10) as queue:
        put_each(queue, digits(12))
    with open_queue(segment_bytes=10) as queue:
        put_each(queue, digits(12, 14))
        assert len(segment_files(directory)) == 14
    queue = open_queue(segment_bytes=10)
    assert dequeue_each(queue, 15) == [*digits(14), None]


def test_files_6_one_session_reads_over_all_files(open_queue: QueueFactory) -> None:
    """One session that flushes each dequeue gets the items of two earlier openings of the queue, over all files."""
    for part in (digits(12), digits(12, 15)):
        with open_queue(segment_bytes=10) as queue:
            put_each(queue, part)
    assert dequeue_each(open_queue(segment_bytes=10), 16) == [*digits(15), None]


@pytest.mark.parametrize("end", [PersistentQueue.trim, PersistentQueue.close])
def test_files_7_drained_files_go(
    open_queue: QueueFactory, directory: Path, end: Callable[[PersistentQueue], None]
) -> None:
    """Files whose items were all consumed are deleted by the next trim or by the close."""
    queue = open_queue(segment_bytes=10)
    put_each(queue, digits(12))
    assert dequeue_each(queue, 12) == digits(12)
    end(queue)
    left = [path.name for path in segment_files(directory)]
    assert left == (["000000000012.seg"] if end is PersistentQueue.trim else [])  # the current segment


# --- PersistentQueueSessionTests, PendingWriteExceptionTests ----------------------------------------------------------


class Switch:
    """A disk whose writes fail with ``error`` while it is set."""

    def __init__(self) -> None:
        self.error = 0
        self.disk = replace(DISK, pwritev=self._pwritev)

    def _pwritev(self, fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return DISK.pwritev(fd, buffers, offset, flags)


def test_session_1_a_failed_write_ahead_surfaces(open_queue: QueueFactory) -> None:
    """A session that must spill and cannot raises ``DiskFullError`` at once, and keeps its items."""
    switch = Switch()
    queue = open_queue(disk=switch.disk)
    with spilling_session(queue, 200) as session:
        session.enqueue(b"a" * 100)
        switch.error = errno.ENOSPC
        with pytest.raises(DiskFullError):
            session.enqueue(b"b" * 100)
        switch.error = 0
        session.enqueue(b"c" * 100)
        session.flush()
    assert drain(queue) == [b"a" * 100, b"c" * 100]


def test_session_2_a_failed_write_surfaces_with_its_cause(open_queue: QueueFactory) -> None:
    """A write that fails for another reason than lack of room breaks the queue, and the operating system's error is its
    cause."""
    switch = Switch()
    queue = open_queue(disk=switch.disk)
    with queue.session() as session:
        session.enqueue(b"a")
        switch.error = errno.EIO
        with pytest.raises(BrokenQueueError) as caught:
            session.flush()
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EIO
    queue.close()
    assert drain(open_queue()) == []


@pytest.mark.damages
def test_session_3_to_5_a_cut_segment_costs_its_item(open_queue: QueueFactory, directory: Path) -> None:
    """An item that was cut off raises once, and items that are enqueued later come out unchanged."""
    with open_queue() as queue:
        put(queue, bytes([1, 2, 3, 4]))
    (segment,) = segment_files(directory)
    os.truncate(segment, HEADER_BYTES + 2)
    queue = open_queue()
    with queue.session() as session:
        with pytest.raises(CorruptionError) as caught:
            session.dequeue()
        assert (caught.value.file, caught.value.offset) == (str(segment), HEADER_BYTES)
        assert session.dequeue() is None
        session.enqueue(bytes([5, 6, 7, 8]))
        session.flush()
        assert session.dequeue() == bytes([5, 6, 7, 8])
        session.flush()
    assert queue.stats().damaged == 1


# --- ParanoidFlushingTests, WriteFailureTests, LongTermDequeueTests ---------------------------------------------------


def test_flushing_across_four_sessions(open_queue: QueueFactory) -> None:
    """Each of several sessions sees the effects of earlier flushes, and nothing of unflushed work."""
    queue = open_queue()
    with queue.session() as session:
        session.enqueue(b"one")
        session.flush()
        session.enqueue(b"two")
        session.rollback()
    assert dequeue_held(queue, 2) == [b"one", None]
    assert dequeue_each(queue, 2) == [b"one", None]
    assert dequeue_held(queue, 1) == [None]


def test_write_failure_keeps_everything(open_queue: QueueFactory) -> None:
    """On a full disk a session can dequeue while its flushes fail again and again. Once there is room, all its work
    commits exactly once."""
    switch = Switch()
    queue = open_queue(disk=switch.disk, inline_bytes=0)
    put_each(queue, digits(100))
    with queue.session() as session:
        for number in range(3):
            assert session.dequeue() == b"%d" % number
            session.enqueue(b"new %d" % number)
            switch.error = errno.ENOSPC
            with pytest.raises(DiskFullError):
                session.flush()
            switch.error = 0
        session.flush()
    assert drain(queue) == [*digits(3, 100), b"new 0", b"new 1", b"new 2"]


def test_long_term_session_sees_later_flushes(open_queue: QueueFactory) -> None:
    """A session that was opened first dequeues items that another session flushed later."""
    queue = open_queue()
    with queue.session() as early:
        put(queue, b"late")
        assert early.dequeue() == b"late"
        early.rollback()


# --- ThreadSafeAccessTests --------------------------------------------------------------------------------------------


def run_threads(*bodies: Callable[[], Any]) -> None:
    """Run the bodies at the same time, and raise the first error of any of them."""
    failures: list[BaseException] = []

    def guarded(body: Callable[[], Any]) -> None:
        try:
            body()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


@pytest.mark.parametrize("segment_bytes", [10, 1 << 20], ids=["with size limits", "without"])
def test_threads_share_a_queue(open_queue: QueueFactory, segment_bytes: int) -> None:
    """A hundred sessions that enqueue and a hundred that dequeue, on two threads, move each item once and in order."""
    queue = open_queue(segment_bytes=segment_bytes)
    found: list[bytes | None] = []

    def produce() -> None:
        for item in digits(100):
            put(queue, item)

    def consume() -> None:
        for _ in range(100):
            with queue.session() as session:
                found.append(session.dequeue(timeout=60))
                session.flush()

    run_threads(produce, consume)
    assert found == digits(100)
    assert len(queue) == 0


def test_threads_take_turns_at_opening(open_queue: QueueFactory) -> None:
    """Two threads that open the queue for every step, and wait for its lock, move each item once and in order."""
    found: list[bytes] = []

    def produce() -> None:
        for item in digits(30):
            with open_queue(lock_timeout=60) as queue:
                put(queue, item)

    def consume() -> None:
        while len(found) < 30:
            with open_queue(lock_timeout=60) as queue:
                found.extend(drain(queue))

    run_threads(produce, consume)
    assert found == digits(30)


# --- ConstantChecks, GenericQueueTests --------------------------------------------------------------------------------


def test_constants_are_frozen() -> None:
    """The marks and lengths of the formats are those of every queue on disk."""
    marks = (LOG_MAGIC, FRAME_MAGIC, SEGMENT_MAGIC, BLOCK_MAGIC, END)
    assert marks == (b"PQ-LOG\r\n", b"PQFr", b"PQ-SEG\r\n", b"PQBk", bytes(8))
    assert (SYNCED, SEALED) == (1, 2)
    assert (HEADER_BYTES, FRAME_HEADER_BYTES, BLOCK_HEADER_BYTES) == (64, 36, 44)


@pytest.mark.parametrize(
    "item",
    ["", " leading and trailing ", "control \0\1\r\n\x7f", "ünïcödé"],
    ids=["empty", "spaces", "control", "unicode"],
)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: array("B", data)])
def test_generic_items_round_trip(open_queue: QueueFactory, item: str, kind: Callable[[bytes], Any]) -> None:
    """An item of any bytes-like type comes out as the bytes that it had when it was enqueued."""
    with open_queue() as queue, queue.session() as session:
        data = kind(item.encode())
        session.enqueue(data)
        if isinstance(data, bytearray):
            data[:] = b"overwritten"
        session.flush()
    assert drain(open_queue()) == [item.encode()]


# --- PerformanceTests, small, as tests of the results -----------------------------------------------------------------


@pytest.mark.parametrize("flushes", [100, 1], ids=["100 flushes", "one flush"])
@pytest.mark.parametrize("restart", [False, True], ids=["same queue", "restart"])
def test_performance_many_small_items(open_queue: QueueFactory, flushes: int, restart: bool) -> None:
    """Ten thousand items come out in order, in however many flushes they were enqueued, and also after a restart."""
    queue = open_queue()
    items = [b"%016d" % number for number in range(10_000)]
    step = len(items) // flushes
    with queue.session() as session:
        for start in range(0, len(items), step):
            for item in items[start : start + step]:
                session.enqueue(item)
            session.flush()
    if restart:
        queue.close()
        queue = open_queue()
    with queue.session() as session:
        found = [session.dequeue() for _ in range(len(items) + 1)]
        session.flush()
    assert found == [*items, None]


def test_performance_large_items(open_queue: QueueFactory) -> None:
    """Items of 512 KiB to 1 MiB, flushed at once over several files, are unchanged after a restart."""
    source = random.Random(5)
    items = [source.randbytes(source.randrange(512 * 1024, 1024 * 1024)) for _ in range(20)]
    with open_queue(segment_bytes=2 * 1024 * 1024) as queue:
        put(queue, *items)
        assert queue.stats().segments > 4
    assert dequeue_each(open_queue(), 21) == [*items, None]


def test_performance_write_heavy(open_queue: QueueFactory) -> None:
    """Many threads that each open, enqueue and close lose no item, and keep the order of each thread."""

    def produce(name: int) -> None:
        for step in range(5):
            with open_queue(lock_timeout=60) as queue:
                put(queue, b"%d %d" % (name, step))

    run_threads(*(partial(produce, name) for name in range(8)))
    found = [tuple(map(int, item.split())) for item in drain(open_queue())]
    assert sorted(found) == [(name, step) for name in range(8) for step in range(5)]
    assert sorted(found, key=lambda pair: pair[0]) == sorted(found)


def test_performance_read_heavy(open_queue: QueueFactory) -> None:
    """With one writer and many reading threads, each item is read once."""
    queue = open_queue()
    found: list[bytes | None] = []

    def consume() -> None:
        with queue.session() as session:
            for _ in range(10):
                item = session.dequeue(timeout=60)
                session.flush()
                found.append(item)

    run_threads(lambda: put_each(queue, digits(100)), *[consume] * 10)
    assert sorted(map(int, filter(None, found))) == list(range(100))
    assert len(queue) == 0


# --- The active fork's addition ---------------------------------------------------------------------------------------


def test_hard_delete_leaves_nothing(open_queue: QueueFactory, tmp_path: Path, directory: Path) -> None:
    """A deleted queue is gone with its directory, and a new one of its name is empty."""
    with open_queue(segment_bytes=10) as queue:
        put_each(queue, digits(3))
    delete_queue(tmp_path / "queues", "orders")
    assert not directory.exists()
    assert list_queues(tmp_path / "queues") == []
    assert len(open_queue()) == 0

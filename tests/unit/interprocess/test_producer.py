"""Producers: items of processes that do not own the queue, adopted by its owner."""

from __future__ import annotations

import errno
import os
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    CorruptionError,
    DataPathError,
    DiskFullError,
    ItemTooLargeError,
    PersistentQueue,
    Producer,
    QueueNotFoundError,
    UnflushedWarning,
    UnusablePathError,
    check,
    delete_queue,
    move_data,
)
from persistentqueue.core.block import SEGMENT_MAGIC
from persistentqueue.core.header import HEADER_BYTES, VERSION, decode_header, encode_header
from persistentqueue.engine.inbox import ADOPTED_MAX, DRAFT_SECONDS_KEPT
from persistentqueue.engine.transaction import SPILL_BYTES
from persistentqueue.errors import UnsupportedFormatError
from persistentqueue.interprocess import is_reached, reached_version
from persistentqueue.interprocess.producer import Versions
from persistentqueue.storage.publication import parse_name
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import drain, put, wait_for


def publish(directory: Path, *items: bytes, marker: tuple[str, int] | None = None, disk: Disk = DISK) -> bool:
    """Publish the items by one flush of a new producer; return what the flush returns."""
    with call_on(disk, Producer, directory) as producer:
        producer.enqueue_many(items)
        return producer.flush(marker)


def inbox(directory: Path) -> list[str]:
    """Return the names in the inbox, in order."""
    return sorted(os.listdir(directory / "inbox"))


def test_what_is_published_comes_out_of_an_open_queue(open_queue: QueueFactory, directory: Path) -> None:
    """A producer's flush is there for the owner's next dequeue, as one transaction, and only once."""
    queue = open_queue()
    with Producer(directory) as producer:
        producer.enqueue(b"a")
        producer.enqueue_many(b"%d" % n for n in range(3))
        assert producer.pending == 4
        assert drain(queue) == []
        assert producer.flush()
        assert producer.pending == 0
        assert len(inbox(directory)) == 1
        assert drain(queue) == [b"a", b"0", b"1", b"2"]
        assert inbox(directory) == []
        assert producer.flush()  # nothing to publish
        assert drain(queue) == []


def test_opening_adopts_what_was_published_meanwhile(directory: Path) -> None:
    """A producer can make a queue without an owner; the next opening finds all that was published, in order."""
    with Producer(directory.parent, directory.name) as producer:
        for number in range(5):
            producer.enqueue(b"%d" % number)
            producer.flush()
    assert check(directory).published == 5
    with PersistentQueue(directory) as queue:
        assert len(queue) == 5
        assert drain(queue) == [b"0", b"1", b"2", b"3", b"4"]
    with PersistentQueue(directory) as queue:
        assert len(queue) == 0


def test_a_flush_of_the_owner_adopts(open_queue: QueueFactory, directory: Path) -> None:
    """A flush of the owner adopts published files, even if no session dequeues."""
    queue = open_queue()
    publish(directory, b"theirs")
    put(queue, b"ours")
    ours = 1
    while len(queue) == ours:  # between two looks into the inbox at least a millisecond passes
        put(queue, b"ours")
        ours += 1
    assert sorted(drain(queue)) == [b"ours"] * ours + [b"theirs"]


def test_a_waiting_consumer_hears_of_it(open_queue: QueueFactory, directory: Path) -> None:
    """A waiting consumer has an item within 50 ms of its publication, with and without a timeout."""
    queue = open_queue()
    for timeout in (None, 60.0):
        with ThreadPoolExecutor(1) as pool, queue.session() as session:
            waiting = pool.submit(lambda: (session.dequeue(timeout), time.monotonic()))  # noqa: B023
            wait_for(lambda: queue._open_queue is not None and queue._open_queue._waiters.keeper is not None)
            publish(directory, b"x")
            published = time.monotonic()
            item, heard = waiting.result(60)
            assert item == b"x"
            assert heard - published < 0.05 + SLOW_SECONDS
            session.flush()


SLOW_SECONDS = 20.0
"""Seconds that a busy machine may add to a measured time; less than any wait without a wake-up would take.

``python -m perf --only waiting`` measures the real figure.
"""


def test_several_wait_and_each_gets_one(open_queue: QueueFactory, directory: Path) -> None:
    """One of three waiters listens for other processes; all of them get the items, published or enqueued here."""
    queue = open_queue()
    found: list[bytes | None] = []

    def consume() -> None:
        with queue.session() as session:
            for _ in range(20):
                found.append(session.dequeue(60))
                session.flush()

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    with Producer(directory) as producer:
        for number in range(60):
            if number % 3:
                producer.enqueue(b"%d" % number)
                producer.flush()
            else:
                put(queue, b"%d" % number)
    for thread in threads:
        thread.join(60)
    assert sorted(found, key=lambda item: int(item or b"-1")) == [b"%d" % number for number in range(60)]


def test_all_who_wait_are_heard_of(open_queue: QueueFactory, directory: Path) -> None:
    """A publication wakes as many waiters as it has items; the waiter that is left goes on listening."""
    queue = open_queue()

    def consume() -> bytes | None:
        with queue.transaction() as session:
            return session.dequeue(60)

    for rounds in range(5):
        with ThreadPoolExecutor(4) as pool:
            waiting = {pool.submit(consume) for _ in range(4)}
            wait_for(lambda: queue._open()._waiters.count == 4 and queue._open()._waiters.keeper is not None)
            publish(directory, b"a", b"b", b"c")
            done, left = wait_for_futures(waiting, timeout=30, return_when=FIRST_COMPLETED)
            while len(done) < 3:
                more, left = wait_for_futures(left, timeout=30, return_when=FIRST_COMPLETED)
                assert more, "somebody was not woken"
                done |= more
            assert sorted(each.result() or b"" for each in done) == [b"a", b"b", b"c"]
            publish(directory, b"d%d" % rounds)
            assert [each.result(30) for each in left] == [b"d%d" % rounds]


def test_each_producers_order_is_kept(open_queue: QueueFactory, directory: Path) -> None:
    """The flushes of one producer come in order, even if its clock goes back; those of several come in any order."""
    queue = open_queue()
    clocks = iter(range(10**9, 0, -7))
    backwards = replace(DISK, time_ns=lambda: next(clocks))
    with call_on(backwards, Producer, directory) as one, Producer(directory) as other:
        for number in range(30):
            for name, producer in ((b"one", one), (b"other", other)):
                producer.enqueue(b"%s %d" % (name, number))
                producer.flush()
    items = drain(queue)
    for name in (b"one", b"other"):
        assert [item for item in items if item.startswith(name + b" ")] == [b"%s %d" % (name, n) for n in range(30)]


def test_more_than_one_frame_takes(open_queue: QueueFactory, directory: Path) -> None:
    """Any number of publications is adopted by one opening, in frames of at most ``ADOPTED_MAX`` publications."""
    with Producer(directory) as producer:
        count = 2 * ADOPTED_MAX + 3
        for number in range(count):
            producer.enqueue(b"%d" % number)
            producer.flush()
    queue = open_queue()
    assert len(queue) == count
    assert drain(queue) == [b"%d" % number for number in range(count)]


def test_markers_are_reached_once(open_queue: QueueFactory, directory: Path) -> None:
    """A reached marker is not reached again, whether its publication waits, was adopted, or came from the owner."""
    queue = open_queue()
    with Producer(directory) as producer:
        producer.enqueue(b"a")
        assert producer.flush(("app", 3))
        producer.enqueue(b"again")
        assert not producer.flush(("app", 3))  # the first publication waits to be adopted
        assert producer.pending == 0
        assert drain(queue) == [b"a"]
        assert queue.marker("app") == 3
        producer.enqueue(b"older")
        assert not producer.flush(("app", 2))  # the log has a later version
        with queue.session() as session:
            session.enqueue(b"b")
            assert session.flush(("app", 4))
        producer.enqueue(b"late")
        assert not producer.flush(("app", 4))
        assert producer.flush(("other", 0))
        assert drain(queue) == [b"b"]
        assert drain(queue) == []  # only an owner that finds no item is sure to look into the inbox
        assert queue.marker("other") == 0
    assert inbox(directory) == []


def test_a_marker_can_be_asked_for_before_the_work(open_queue: QueueFactory, directory: Path) -> None:
    """A marker can be asked for without a producer, when it waits in the inbox and when it is adopted.

    A queue that does not exist, and a marker that no queue can record, raise errors.
    """
    queue = open_queue()
    assert not is_reached(directory, None, ("app", 3))
    publish(directory, b"a", marker=("app", 3))
    for _ in range(2):
        assert is_reached(directory, None, ("app", 3))
        assert is_reached(directory.parent, directory.name, ("app", 2))
        assert not is_reached(directory, None, ("app", 4))
        assert not is_reached(directory, None, ("other", 0))
        assert [reached_version(directory, None, name) for name in ("app", "other")] == [3, None]
        drain(queue)
    assert inbox(directory) == []
    with pytest.raises(ValueError, match="a marker must be a name of"):
        is_reached(directory, None, ("", 1))
    with pytest.raises(ValueError, match="a marker must be a name of"):
        reached_version(directory, None, "")
    with pytest.raises(QueueNotFoundError):
        is_reached(directory / "nowhere", None, ("app", 1))


def test_two_that_publish_the_same_marker_at_once(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If two producers of one marker do not see each other, the owner adopts the first file and drops the second."""
    queue = open_queue()
    with Producer(directory) as one, Producer(directory) as other:
        one.enqueue(b"one")
        other.enqueue(b"other")
        monkeypatch.setattr(Versions, "is_reached", lambda *_: False)
        assert one.flush(("app", 1))
        assert other.flush(("app", 1))
    assert drain(queue) == [b"one"]
    assert drain(queue) == []
    assert inbox(directory) == []


def test_rollback_and_leaving_drop(open_queue: QueueFactory, directory: Path) -> None:
    """Items that were not flushed are never seen, and a rollback or the end of the producer leaves no file of them."""
    queue = open_queue()
    with pytest.warns(UnflushedWarning), Producer(directory) as producer:
        producer.enqueue(b"a")
        producer.rollback()
        assert producer.flush()
        producer.enqueue_many([bytes(1024 * 1024)] * 6)  # more than it keeps in memory
        assert len(inbox(directory)) == 1
        producer.rollback()
        assert inbox(directory) == []
        producer.enqueue_many([bytes(1024 * 1024)] * 6)
    assert inbox(directory) == []
    assert drain(queue) == []


def test_more_than_the_memory_takes(open_queue: QueueFactory, directory: Path) -> None:
    """A transaction of any size is one transaction, and its items come out unchanged."""
    queue = open_queue()
    items = [os.urandom(300 * 1024) + b"%d" % n for n in range(4 * SPILL_BYTES // (300 * 1024))] + [b"", b"last"]
    with Producer(directory) as producer:
        producer.enqueue_many(iter(items))
        assert len(inbox(directory)) == 1
        assert drain(queue) == []
        producer.flush()
    assert drain(queue) == items


def test_what_is_no_item(directory: Path) -> None:
    """Wrong arguments are refused at once, and no item of their call is kept."""
    with Producer(directory) as producer:
        with pytest.raises(TypeError):
            producer.enqueue("text")  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            producer.enqueue_many([b"a", 1])  # type: ignore[list-item]
        with pytest.raises(TypeError):
            producer.flush(("app", "1"))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="a marker must be a name of"):
            producer.flush(("", 1))
        huge = memoryview(bytearray(1)).cast("B")
        assert producer.pending == 0
        producer.enqueue(huge)
        producer.enqueue(bytearray(b"b"))
        assert producer.pending == 2
        producer.flush()
    with PersistentQueue(directory) as queue:
        assert drain(queue) == [b"\0", b"b"]


def test_an_item_that_is_too_large(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item beyond the limit is refused before anything is buffered."""
    monkeypatch.setattr("persistentqueue.core.items.ITEM_BYTES_MAX", 10)
    with Producer(directory) as producer, pytest.raises(ItemTooLargeError):
        producer.enqueue(bytes(11))


def test_closed(directory: Path) -> None:
    """A closed producer refuses calls, except for those that drop what it has: nothing."""
    producer = Producer(directory)
    before = producer.closed
    producer.close()
    producer.close()
    assert not before
    assert producer.closed
    for call in (lambda: producer.enqueue(b"a"), producer.flush):
        with pytest.raises(ClosedError, match="closed"):
            call()
    producer.rollback()
    producer.close()


def test_another_process_is_refused(directory: Path) -> None:
    """A producer refuses calls in another process than the one that made it."""
    forks = [0]
    producer = call_on(replace(DISK, forks=lambda: forks[0]), Producer, directory)
    forks[0] = 1
    with pytest.raises(ClosedError, match="parent"):
        producer.enqueue(b"a")
    producer.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused(directory: Path) -> None:
    """In a forked child a producer refuses calls, and the file of the parent stays as it is."""
    with Producer(directory) as producer:
        producer.enqueue_many([bytes(1024 * 1024)] * 6)
        pid = os.fork()
        if not pid:  # pragma: no cover - another process
            refused = 0
            for call in (partial(producer.enqueue, b"a"), producer.rollback):
                try:
                    call()
                except ClosedError:
                    refused += 1
            producer.close()
            producer.rollback()  # of a closed one, which has nothing
            os._exit(refused != 2)
        assert os.waitpid(pid, 0)[1] == 0
        producer.flush()
    with PersistentQueue(directory) as queue:
        assert len(drain(queue)) == 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_keeps_no_draft_open(directory: Path) -> None:
    """A forked child closes its descriptor of the file that its parent has spilled to. Otherwise it would keep the
    space of a deleted file, and the lock of a file that a killed parent has left."""
    with Producer(directory) as producer:
        producer.enqueue_many([bytes(1024 * 1024)] * 6)
        assert producer._draft is not None
        fd = producer._draft._fd
        pid = os.fork()
        if not pid:  # pragma: no cover - another process
            try:
                os.fstat(fd)
            except OSError as error:
                os._exit(error.errno != errno.EBADF)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert producer.flush()


def test_a_producer_of_a_queue_that_was_made_again(directory: Path) -> None:
    """A producer that has spilled to a queue that was deleted says so, if another queue was made in its place."""
    with Producer(directory) as producer:
        producer.enqueue_many([bytes(1024 * 1024)] * 6)
        delete_queue(directory)
        PersistentQueue(directory).close()
        with pytest.raises(QueueNotFoundError, match="the queue was deleted and made again"):
            producer.flush()


def test_a_flush_that_finds_no_inbox_for_a_moment(directory: Path) -> None:
    """A flush during a move that fails says so, and not that the queue was deleted: it can be repeated."""
    fails = [True]

    def rename(source: str, target: str) -> None:
        if fails and "/inbox/" in source:
            fails.clear()
            raise FileNotFoundError(errno.ENOENT, "moved", source)
        DISK.rename(source, target)

    with call_on(replace(DISK, rename=rename), Producer, directory) as producer:
        producer.enqueue(b"1")
        with pytest.raises(DataPathError, match="flush again"):
            producer.flush()
        assert producer.flush() is True


@pytest.mark.parametrize(("mebibytes", "advice"), [(1, "flush again"), (6, "enqueue it once more")])
def test_a_queue_that_is_made_again_during_a_flush(mebibytes: int, advice: str, directory: Path) -> None:
    """A flush during which the queue is deleted and made again names that cause, too. It cannot tell it from a move."""
    PersistentQueue(directory).close()
    steps = ["delete", "make"]

    def rename(source: str, target: str) -> None:
        if steps == ["delete", "make"] and "/inbox/" in source:
            steps.remove("delete")
            delete_queue(directory)
        DISK.rename(source, target)

    def listdir(path: str) -> list[str]:
        try:
            return DISK.listdir(path)
        finally:
            if steps == ["make"] and path.endswith("/inbox"):
                steps.clear()
                PersistentQueue(directory).close()

    with call_on(replace(DISK, rename=rename, listdir=listdir), Producer, directory) as producer:
        producer.enqueue_many([bytes(1024 * 1024)] * mebibytes)
        with pytest.raises(DataPathError, match=f"or the queue was deleted and made again: {advice}"):
            producer.flush()
        assert not steps
        producer.rollback()


def test_a_spill_on_a_disk_that_is_read_only(directory: Path) -> None:
    """A spill to a file system that became read-only raises the error that ``flush`` raises there."""

    def open_(path: str, flags: int, mode: int) -> int:
        if flags & os.O_CREAT and path.startswith(str(directory / "inbox")):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return DISK.open(path, flags, mode)

    producer = call_on(replace(DISK, open=open_), Producer, directory)
    with producer:
        with pytest.raises(UnusablePathError, match="mount the file system for writing"):
            producer.enqueue_many([bytes(1024 * 1024)] * 6)
        producer.rollback()


def test_a_flush_on_a_disk_that_is_read_only(directory: Path) -> None:
    """A flush on a file system that became read-only raises the error with the path and the advice, and keeps items."""

    def open_(path: str, flags: int, mode: int) -> int:
        if is_mounted_anew and flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return DISK.open(path, flags, mode)

    is_mounted_anew = False
    with call_on(replace(DISK, open=open_), Producer, directory) as producer:
        producer.enqueue(b"a")
        is_mounted_anew = True
        with pytest.raises(UnusablePathError, match="inbox"):
            producer.flush()
        is_mounted_anew = False
        assert producer.flush()
    with PersistentQueue(directory) as queue:
        assert drain(queue) == [b"a"]


def test_made_while_the_segments_move(open_queue: QueueFactory, directory: Path, tmp_path: Path) -> None:
    """A producer that is made while the segments are moved is refused with the reason, or it works."""
    with open_queue() as queue:
        put(queue, *[bytes(100_000)] * 100)
    made, refused = 0, set[str]()

    def meanwhile(_done: int, _total: int | None) -> None:
        nonlocal made
        try:
            Producer(directory).close()
            made += 1
        except DataPathError as error:
            refused.add(str(error).rpartition(": ")[2])

    move_data(directory, data_path=tmp_path / "media", progress=meanwhile)
    assert made
    assert refused == {"make the producer again"}


def test_dropped_with_work(directory: Path) -> None:
    """Dropping a producer with unflushed items causes a warning, and leaves no file."""
    producer = Producer(directory)
    producer.enqueue_many([bytes(1024 * 1024)] * 6)
    with pytest.warns(UnflushedWarning, match="was dropped without a flush: 6 items are dropped"):
        del producer
    assert inbox(directory) == []


def test_no_queue(directory: Path) -> None:
    """Without ``create`` the queue must exist, and a flush to a deleted queue raises ``QueueNotFoundError``."""
    with pytest.raises(QueueNotFoundError):
        Producer(directory, create=False)
    with Producer(directory) as producer, Producer(directory, create=False) as other:
        other.enqueue_many([bytes(1024 * 1024)] * 6)
        producer.enqueue(b"x")
        delete_queue(directory)
        for each in (producer, other):
            with pytest.raises(QueueNotFoundError):
                each.flush()
        other.rollback()
        producer.rollback()


# --- room ------------------------------------------------------------------------------------------------------------


def test_where_limits_leave_no_room_it_waits(open_queue: QueueFactory, directory: Path) -> None:
    """Files that exceed a limit wait in order until there is room, and do not fail the owner's flush."""
    queue = open_queue(max_items=3)
    put(queue, b"a", b"b")
    with Producer(directory) as producer:
        for item in (b"c", b"d", b"e"):
            producer.enqueue(item)
            producer.flush()
    put(queue)
    with queue.session() as session:
        assert session.dequeue_many(9) == [b"a", b"b"]
        assert session.dequeue() == b"c"
        assert session.dequeue() is None
        assert queue.stats().held == 3
        session.flush()
        assert session.dequeue_many(9) == [b"d", b"e"]
        session.flush()
    assert inbox(directory) == []


def test_it_counts_for_the_disk(open_queue: QueueFactory, directory: Path) -> None:
    """Adopted files count for ``max_disk_bytes``; files that do not fit stay in the inbox until there is room."""
    queue = open_queue(max_disk_bytes=8 * 1024 * 1024)
    (directory / "queue.limits").unlink()  # as if the producer knew of no limit
    with Producer(directory) as producer:
        for _ in range(6):
            producer.enqueue(bytes(1024 * 1024))
            producer.flush()
    with queue.session() as session:
        assert session.dequeue() is not None
        waiting = len(inbox(directory))
        assert 2 <= waiting <= 5
        assert queue._open_queue is not None
        assert queue._open_queue._store.quota.used_bytes <= 8 * 1024 * 1024
        session.flush()
        taken = 1
        while session.dequeue() is not None:
            taken += 1
            session.flush()
            queue.trim()
    assert taken == 6


def test_a_full_disk_for_the_producer(directory: Path) -> None:
    """On a full disk a producer keeps its items and publishes them when there is room; a partial transaction is never
    seen."""
    full = [False]

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return DISK.pwritev(fd, buffers, offset, flags)

    with PersistentQueue(directory) as queue, call_on(replace(DISK, pwritev=pwritev), Producer, directory) as producer:
        full[0] = True
        producer.enqueue(b"a")
        for _ in range(2):
            with pytest.raises(DiskFullError, match="flush again"):
                producer.flush()
        full[0] = False
        producer.enqueue(b"b")
        producer.flush()
        producer.enqueue_many([bytes(1024 * 1024)] * 6)
        full[0] = True
        with pytest.raises(DiskFullError):
            producer.flush()
        assert drain(queue) == [b"a", b"b"]
        full[0] = False
        producer.flush()
        assert len(drain(queue)) == 6
        full[0] = True
        for _ in range(2):
            with pytest.raises(DiskFullError, match="flush again"):
                producer.flush(marker=("alone", 1))
        full[0] = False
        assert producer.flush(marker=("alone", 1))


@pytest.mark.parametrize("call", ["fdatasync", "rename", "fsync"])
def test_a_failing_disk_for_the_producer(directory: Path, call: str) -> None:
    """After a failed sync nothing is published, and the producer keeps the items for another file.

    If the sync behind the rename fails, the outcome is unknown, and the items are dropped.
    """
    failing = [False]

    def fails(*arguments: Any) -> Any:
        if failing[0]:
            raise OSError(errno.EIO, "Input/output error")
        return getattr(DISK, call)(*arguments)

    with PersistentQueue(directory) as queue:
        with call_on(replace(DISK, **{call: fails}), Producer, directory) as producer:
            producer.enqueue(b"a")
            failing[0] = True
            with pytest.raises(BrokenQueueError if call == "fsync" else OSError):
                producer.flush()
            failing[0] = False
            assert producer.pending == (0 if call == "fsync" else 1)
            producer.enqueue(b"b")
            producer.flush()
        assert drain(queue) == [b"a", b"b"]
    assert inbox(directory) == []


# --- damage and leftovers --------------------------------------------------------------------------------------------


@pytest.mark.damages
@pytest.mark.parametrize("at", [0, 20, 70, -1])
def test_what_does_not_check_out_is_set_aside(open_queue: QueueFactory, directory: Path, at: int) -> None:
    """A published file with a damaged header or end is reported once, by a dequeue, and stays as ``*.damaged``.

    Damage in its blocks is reported by the dequeue that reads them.
    """
    queue = open_queue()
    publish(directory, b"first")
    publish(directory, b"second")
    name = inbox(directory)[0]
    path = directory / "inbox" / name
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert not check(directory).ok
    with queue.session() as session:
        if at == 70:
            with pytest.raises(CorruptionError, match=r"\.seg"):
                session.dequeue()
            assert session.dequeue() == b"second"
        else:
            assert session.dequeue() == b"second"
            with pytest.raises(CorruptionError, match=name):
                session.dequeue()
            assert inbox(directory) == [f"{name}.damaged"]
        assert session.dequeue() is None
        session.flush()


@pytest.mark.damages
def test_a_name_that_is_not_its_own(open_queue: QueueFactory, directory: Path) -> None:
    """A copy of a published file under another name is refused, so that its items do not come twice."""
    queue = open_queue()
    publish(directory, b"once")
    path = directory / "inbox" / inbox(directory)[0]
    (path.parent / f"{'1' * 16}-{'2' * 16}.seg").write_bytes(path.read_bytes())
    assert drain(queue) == [b"once"]
    with queue.session() as session, pytest.raises(CorruptionError, match="a file that was published as"):
        session.dequeue()


def test_what_a_newer_release_published(open_queue: QueueFactory, directory: Path) -> None:
    """A file of a newer format stays in the inbox until it can be read."""
    queue = open_queue()
    publish(directory, b"x")
    path = directory / "inbox" / inbox(directory)[0]
    whole = path.read_bytes()
    header = encode_header(SEGMENT_MAGIC, decode_header(whole, SEGMENT_MAGIC, "x"), VERSION + 1)
    path.write_bytes(header + whole[HEADER_BYTES:])
    with queue.session() as session, pytest.raises(UnsupportedFormatError):
        session.dequeue()
    put(queue, b"y")
    path.write_bytes(whole)
    assert drain(queue) == [b"y"]
    assert drain(queue) == [b"x"]


def test_drafts_that_were_left_behind(directory: Path) -> None:
    """The owner deletes an old draft that no producer holds; a held draft and a young one stay."""
    PersistentQueue(directory).close()
    old = time.time() - 2 * DRAFT_SECONDS_KEPT
    names = [f"{n:016x}-{n:016x}.tmp" for n in (1, 2)]
    for name in names:
        (directory / "inbox" / name).write_bytes(b"half")
    os.utime(directory / "inbox" / names[0], (old, old))
    with Producer(directory) as producer:
        producer.enqueue_many([b"x" * 1024 * 1024] * 6)
        held = (set(inbox(directory)) - set(names)).pop()
        os.utime(directory / "inbox" / held, (old, old))
        PersistentQueue(directory).close()
        assert inbox(directory) == sorted([names[1], held])
        producer.flush()
    with PersistentQueue(directory) as queue:
        assert len(drain(queue)) == 6
    (directory / "inbox" / names[1]).unlink()


def test_files_of_others_stay(open_queue: QueueFactory, directory: Path) -> None:
    """Files in the inbox that are not a producer's are left alone, and ``check`` reports them."""
    queue = open_queue()
    (directory / "inbox" / "notes.txt").write_text("mine")
    publish(directory, b"x")
    assert drain(queue) == [b"x"]
    queue.close()
    assert check(directory).leftovers == ("inbox/notes.txt",)
    assert parse_name("notes.txt") is None


def test_an_inbox_that_is_gone(open_queue: QueueFactory, directory: Path) -> None:
    """A queue without its inbox goes on, and the next opening makes the inbox again."""
    queue = open_queue()
    (directory / "inbox").rmdir()
    put(queue, b"x")
    assert drain(queue) == [b"x"]
    queue.close()
    open_queue()
    assert inbox(directory) == []

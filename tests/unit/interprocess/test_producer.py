"""Producers: items from processes that do not own the queue, adopted by the one that does."""

from __future__ import annotations

import errno
import gc
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager
from dataclasses import replace
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
    QueueLockedError,
    QueueNotFoundError,
    UnflushedWarning,
    check,
    delete_queue,
    move_data,
    repair,
)
from persistentqueue.core.block import SEGMENT_MAGIC
from persistentqueue.core.frame import encode_frame
from persistentqueue.core.header import HEADER_BYTES, VERSION, decode_header, encode_header
from persistentqueue.core.operations import Adoption, Dequeue, Enqueue, MarkerSet, Operation, encode_transaction
from persistentqueue.core.page_cache import ITEM_OVERHEAD_BYTES
from persistentqueue.engine.adoption import ADOPTED_MAX, GRACE_SECONDS
from persistentqueue.engine.transaction import SPILL_BYTES, Transaction
from persistentqueue.errors import UnsupportedFormatError
from persistentqueue.interprocess.producer import Versions
from persistentqueue.storage.layout import find_generations
from persistentqueue.storage.publication import parse_name, read_publication
from persistentqueue.system.disk import DISK, Disk
from persistentqueue.system.wakeup import Wakeup, _watch
from tests.conftest import QueueFactory
from tests.crash.disk import SimulatedDisk
from tests.support.queues import crash, drain, log_file, put, wait_for


def publish(directory: Path, *items: bytes, marker: tuple[str, int] | None = None, disk: Disk = DISK) -> bool:
    """One flush of a producer of its own."""
    with Producer(directory, disk=disk) as producer:
        producer.enqueue_many(items)
        return producer.flush(marker)


def inbox(directory: Path) -> list[str]:
    """The names in the inbox, in order."""
    return sorted(os.listdir(directory / "inbox"))


def test_what_is_published_comes_out_of_an_open_queue(open_queue: QueueFactory, directory: Path) -> None:
    """A flush of a producer is there for the owner's next dequeue, as one transaction, and only once."""
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
        assert producer.flush()  # nothing
        assert drain(queue) == []


def test_opening_adopts_what_was_published_meanwhile(directory: Path) -> None:
    """Nobody need own the queue: a producer makes it, and whoever opens it finds what was published, in order."""
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
    """What was published comes behind what the owner's next flush enqueues, though nobody dequeues."""
    queue = open_queue()
    publish(directory, b"theirs")
    put(queue, b"ours")
    ours = 1
    while len(queue) == ours:  # he looks once in a millisecond, at least
        put(queue, b"ours")
        ours += 1
    assert sorted(drain(queue)) == [b"ours"] * ours + [b"theirs"]


def test_a_waiting_consumer_hears_of_it(open_queue: QueueFactory, directory: Path) -> None:
    """Who waits has the item within 50 ms of its publication, with and without a limit to the waiting."""
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
"""Seconds that a busy machine may add to a measured one; less than any wait without a wake-up would take.

``python -m perf --only waiting`` tells the real figure."""


def test_several_wait_and_each_gets_one(open_queue: QueueFactory, directory: Path) -> None:
    """Of three who wait one listens for others; whoever he is, all get what comes, from here or from elsewhere."""
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
    """What one publication brings wakes as many as it has items for; whoever is left goes on listening."""
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
    """The flushes of one producer come in their order, also where the clock goes back; those of several, somehow."""
    queue = open_queue()
    clocks = iter(range(10**9, 0, -7))
    backwards = replace(DISK, time_ns=lambda: next(clocks))
    with Producer(directory, disk=backwards) as one, Producer(directory) as other:
        for number in range(30):
            for name, producer in ((b"one", one), (b"other", other)):
                producer.enqueue(b"%s %d" % (name, number))
                producer.flush()
    items = drain(queue)
    for name in (b"one", b"other"):
        assert [item for item in items if item.startswith(name + b" ")] == [b"%s %d" % (name, n) for n in range(30)]


def test_more_than_one_frame_takes(open_queue: QueueFactory, directory: Path) -> None:
    """Any number of publications is adopted at once, some hundreds to a frame."""
    with Producer(directory) as producer:
        count = 2 * ADOPTED_MAX + 3
        for number in range(count):
            producer.enqueue(b"%d" % number)
            producer.flush()
    queue = open_queue()
    assert len(queue) == count
    assert drain(queue) == [b"%d" % number for number in range(count)]


def test_markers_are_reached_once(open_queue: QueueFactory, directory: Path) -> None:
    """A marker that was reached, here, by another producer, or by the owner, is not reached again."""
    queue = open_queue()
    with Producer(directory) as producer:
        producer.enqueue(b"a")
        assert producer.flush(("app", 3))
        producer.enqueue(b"again")
        assert not producer.flush(("app", 3))  # it waits to be adopted
        assert producer.pending == 0
        assert drain(queue) == [b"a"]
        assert queue.marker("app") == 3
        producer.enqueue(b"older")
        assert not producer.flush(("app", 2))  # the log tells
        with queue.session() as session:
            session.enqueue(b"b")
            assert session.flush(("app", 4))
        producer.enqueue(b"late")
        assert not producer.flush(("app", 4))
        assert producer.flush(("other", 0))
        assert drain(queue) == [b"b"]
        assert queue.marker("other") == 0
    assert inbox(directory) == []


def test_two_that_publish_the_same_marker_at_once(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where neither could know of the other the owner takes the first, and drops the second."""
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
    """Nothing that was not flushed is seen, nor stays as a file."""
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
    """A transaction of any size is one, and comes out as it was put in."""
    queue = open_queue()
    items = [os.urandom(300 * 1024) + b"%d" % n for n in range(4 * SPILL_BYTES // (300 * 1024))] + [b"", b"last"]
    with Producer(directory) as producer:
        producer.enqueue_many(iter(items))
        assert len(inbox(directory)) == 1
        assert drain(queue) == []
        producer.flush()
    assert drain(queue) == items


def test_what_is_no_item(directory: Path) -> None:
    """Wrong arguments are told at once, and nothing of their call is taken."""
    with Producer(directory) as producer:
        with pytest.raises(TypeError):
            producer.enqueue("text")  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            producer.enqueue_many([b"a", 1])  # type: ignore[list-item]
        with pytest.raises(TypeError):
            producer.flush(("app", "1"))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="a marker has a name"):
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
    """A closed producer says so."""
    producer = Producer(directory)
    before = producer.closed
    producer.close()
    producer.close()
    assert not before
    assert producer.closed
    for call in (lambda: producer.enqueue(b"a"), producer.flush):
        with pytest.raises(ClosedError, match="closed"):
            call()


def test_another_process_is_refused(directory: Path) -> None:
    """Whoever finds himself in another process than the one that made it hears so."""
    pid = [1]
    producer = Producer(directory, disk=replace(DISK, getpid=lambda: pid[0]))
    pid[0] = 2
    with pytest.raises(ClosedError, match="parent"):
        producer.enqueue(b"a")
    producer.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused(directory: Path) -> None:
    """In a child it is the parent's, whose file stays as it is."""
    with Producer(directory) as producer:
        producer.enqueue_many([bytes(1024 * 1024)] * 6)
        pid = os.fork()
        if not pid:  # pragma: no cover - another process
            try:
                producer.enqueue(b"a")
            except ClosedError:
                producer.close()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        producer.flush()
    with PersistentQueue(directory) as queue:
        assert len(drain(queue)) == 6


def test_dropped_with_work(directory: Path) -> None:
    """Who drops a producer with items is warned, and leaves no file."""
    producer = Producer(directory)
    producer.enqueue_many([bytes(1024 * 1024)] * 6)
    with pytest.warns(ResourceWarning, match="not flushed"):
        del producer
    assert inbox(directory) == []


def test_no_queue(directory: Path) -> None:
    """Without ``create`` there must be one; and one that is deleted is told of."""
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
    """What is published beyond a limit is adopted once there is room, in its order, and refuses nobody else."""
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
    """What is adopted counts for ``max_disk_bytes``; what there is no room for stays in the inbox until there is."""
    queue = open_queue(max_disk_bytes=8 * 1024 * 1024)
    (directory / "queue.limits").unlink()  # as for a producer that knows of none
    with Producer(directory) as producer:
        for _ in range(6):
            producer.enqueue(bytes(1024 * 1024))
            producer.flush()
    with queue.session() as session:
        assert session.dequeue() is not None
        waiting = len(inbox(directory))
        assert 2 <= waiting <= 5
        assert queue._open_queue is not None
        assert queue._open_queue.store.quota.used_bytes <= 8 * 1024 * 1024
        session.flush()
        taken = 1
        while session.dequeue() is not None:
            taken += 1
            session.flush()
            queue.trim()
    assert taken == 6


def test_a_full_disk_for_the_producer(directory: Path) -> None:
    """Without room it keeps its items, and publishes them when there is; nothing half is ever seen."""
    full = [False]

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return DISK.pwritev(fd, buffers, offset, flags)

    with PersistentQueue(directory) as queue, Producer(directory, disk=replace(DISK, pwritev=pwritev)) as producer:
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
    """A sync that fails is not tried again: nothing is published, and the items are kept for another file; or, behind
    the rename, nobody knows, and they go."""
    failing = [False]

    def fails(*arguments: Any) -> Any:
        if failing[0]:
            raise OSError(errno.EIO, "Input/output error")
        return getattr(DISK, call)(*arguments)

    with PersistentQueue(directory) as queue:
        with Producer(directory, disk=replace(DISK, **{call: fails})) as producer:
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
    """A published file with a damaged end or header is told of once, by a dequeue, and stays as ``*.damaged``; what
    damage there is in its blocks is met by whoever reads them."""
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
    """A copy of a published file under another name is no publication: it does not come twice."""
    queue = open_queue()
    publish(directory, b"once")
    path = directory / "inbox" / inbox(directory)[0]
    (path.parent / f"{'1' * 16}-{'2' * 16}.seg").write_bytes(path.read_bytes())
    assert drain(queue) == [b"once"]
    with queue.session() as session, pytest.raises(CorruptionError, match="a file that was published as"):
        session.dequeue()


def test_what_a_newer_release_published(open_queue: QueueFactory, directory: Path) -> None:
    """It stays where it is until it can be read: an older release can tell nothing of it."""
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
    """The owner deletes a draft that nobody holds and that is old; one that is held, or young, stays."""
    PersistentQueue(directory).close()
    old = time.time() - 2 * GRACE_SECONDS
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
    """What is in the inbox and no producer's is left alone, and reported by ``check``."""
    queue = open_queue()
    (directory / "inbox" / "notes.txt").write_text("mine")
    publish(directory, b"x")
    assert drain(queue) == [b"x"]
    queue.close()
    assert check(directory).leftovers == ("inbox/notes.txt",)
    assert parse_name("notes.txt") is None


def test_an_inbox_that_is_gone(open_queue: QueueFactory, directory: Path) -> None:
    """Without its inbox a queue goes on; the next opening makes it again."""
    queue = open_queue()
    (directory / "inbox").rmdir()
    put(queue, b"x")
    assert drain(queue) == [b"x"]
    queue.close()
    open_queue()
    assert inbox(directory) == []


# --- crashes, moves, deletion, repair --------------------------------------------------------------------------------


def test_adopted_and_not_renamed(directory: Path) -> None:
    """An owner who is killed between the frame and the renames leaves files that the log says are segments: ``check``
    finds them, and the next opening renames them."""

    def failpoint(name: str) -> None:
        if name == "adopt.3 rename":
            raise KeyboardInterrupt

    queue = PersistentQueue(directory, disk=replace(DISK, failpoint=failpoint))
    put(queue, b"x")
    publish(directory, b"a", b"b")
    with pytest.raises(KeyboardInterrupt), queue.session() as session:
        session.dequeue_many(3)
        session.dequeue()
    crash(queue)
    assert len(inbox(directory)) == 1
    report = check(directory)
    assert (report.ok, report.items, report.published) == (True, 3, 0)
    with PersistentQueue(directory) as queue:
        assert inbox(directory) == []
        assert drain(queue) == [b"x", b"a", b"b"]


def test_repair_keeps_what_is_published(directory: Path) -> None:
    """A queue whose log is lost is repaired with what was adopted and what was not."""
    queue = PersistentQueue(directory)
    publish(directory, b"adopted")
    put(queue, b"own")
    assert len(queue) == 2
    crash(queue)
    publish(directory, b"waiting")
    for log in (directory / "log").glob("*.log"):
        log.write_bytes(bytes(log.stat().st_size))
    report = repair(directory)
    assert report.without_log
    with PersistentQueue(directory) as queue:
        assert b"adopted" in (items := drain(queue))
        assert b"waiting" in items


def test_moving_takes_it_along(directory: Path, tmp_path: Path) -> None:
    """What is published when the segments are moved is published at the other place; who was about to, is told."""
    with Producer(directory) as producer, Producer(directory) as other:
        producer.enqueue(b"a")
        producer.flush()
        other.enqueue_many([bytes(1024 * 1024)] * 6)
        moved = move_data(directory, data_path=tmp_path / "elsewhere")
        assert moved.files == 1
        producer.enqueue(b"b")
        producer.flush()
        with pytest.raises(DataPathError, match="enqueue it once more"):
            other.flush()
        other.enqueue(b"c")
        other.flush()
    assert len(inbox(tmp_path / "elsewhere")) == 3
    assert not (directory / "inbox").exists()
    with PersistentQueue(directory) as queue:
        assert drain(queue) == [b"a", b"b", b"c"]
    move_data(directory, data_path=None)
    publish(directory, b"d")
    with PersistentQueue(directory) as queue:
        assert drain(queue) == [b"d"]


def test_a_move_that_is_cut_short_opens_the_inbox_again(directory: Path, tmp_path: Path) -> None:
    """While segments are moved nobody publishes; a move that is killed leaves it so until the next opening."""

    def failpoint(name: str) -> None:
        if name == "move.4 switch":
            raise KeyboardInterrupt

    with Producer(directory) as producer:
        producer.enqueue(b"a")
        producer.flush()
        with pytest.raises(KeyboardInterrupt):
            move_data(directory, data_path=tmp_path / "elsewhere", disk=replace(DISK, failpoint=failpoint))
        producer.enqueue(b"b")
        with pytest.raises(DataPathError, match=r"being moved.*flush again"):
            producer.flush()
        with PersistentQueue(directory) as queue:
            assert drain(queue) == [b"a"]
            producer.enqueue(b"c")
            producer.flush()
            assert drain(queue) == [b"b", b"c"]


def test_deleting_takes_it_along(directory: Path, tmp_path: Path) -> None:
    """A queue that is deleted leaves nothing of what was published for it."""
    for data_path in (None, tmp_path / "elsewhere"):
        PersistentQueue(directory, data_path=data_path).close()
        publish(directory, b"a")
        delete_queue(directory)
        assert not (directory / "inbox").exists()
        assert not (tmp_path / "elsewhere" / "inbox").exists()


def test_published_files_are_private_and_tell_what_they_are(directory: Path) -> None:
    """A published file is 0600, and says by itself under which name, with how many items, and which marker."""
    publish(directory, b"a", b"bc", marker=("app", 7))
    (name,) = inbox(directory)
    path = directory / "inbox" / name
    assert path.stat().st_mode & 0o777 == 0o600
    publication = read_publication(DISK, str(path))
    assert (publication.name, publication.own.count, publication.marker) == (name, 2, ("app", 7))
    assert publication.own.capacity_bytes == path.stat().st_size - 64


def test_an_adoption_that_a_power_cut_took(directory: Path) -> None:
    """Where the files have their new names, and the frame that said so is lost, they are published once more: no
    producer loses what it was told is durable."""
    with PersistentQueue(directory) as queue:
        put(queue, b"own")
    queue = PersistentQueue(directory)
    put(queue, b"other")
    log = log_file(directory)
    before = log.read_bytes()
    for item in (b"a", b"b"):
        publish(directory, item)
    assert queue.peek(4) == [b"own", b"other"]
    with queue.session() as session:
        assert len(session.dequeue_many(4)) == 2
        assert session.dequeue_many(4) == [b"a", b"b"]
        session.rollback()
    crash(queue)
    assert inbox(directory) == []
    log.write_bytes(before)
    with PersistentQueue(directory) as queue:
        assert queue.recovery.set_aside == ()
        assert drain(queue) == [b"own", b"other", b"a", b"b"]


def test_a_draft_that_cannot_be_locked(directory: Path) -> None:
    """A producer whose file cannot be locked leaves none behind."""

    def lock(fd: int) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    PersistentQueue(directory).close()
    with Producer(directory, disk=replace(DISK, lock=lock)) as producer:
        producer.enqueue(b"a")
        with pytest.raises(OSError, match="No locks"):
            producer.flush()
        producer.rollback()
    assert inbox(directory) == []


@pytest.mark.damages
@pytest.mark.parametrize(
    "operations",
    [
        [],
        [MarkerSet("app", 1)],
        [Adoption(0, 0, 0, "{name}")],
        [Adoption(0, 0, 0, "../elsewhere"), MarkerSet("app", 1)],
        [Adoption(0, 0, 0, "{name}"), Enqueue(1, 1, 0, 64, 44, 0, 0)],
        [Adoption(0, 0, 0, "{name}"), Enqueue(0, 0, 0, 64, 44, 0, 0)],
        [Adoption(0, 0, 0, "{name}"), Enqueue(0, 1, 0, 64, 44, 0, 0), Dequeue(0, 0, 1)],
    ],
)
def test_a_frame_that_says_something_else(
    open_queue: QueueFactory, directory: Path, operations: list[Operation]
) -> None:
    """A frame whose checksum is right and that is no publication's is refused."""
    queue = open_queue()
    publish(directory, b"x")
    (name,) = inbox(directory)
    path = directory / "inbox" / name
    data = path.read_bytes()
    header = decode_header(data, SEGMENT_MAGIC, name)
    named = [
        each._replace(name=each.name.format(name=name)) if isinstance(each, Adoption) else each for each in operations
    ]
    body = encode_transaction(named)
    frame, _ = encode_frame(body, header.salt, 0, 1, 0, 1, len(named))
    path.write_bytes(data[: header.size_bytes] + frame + body)
    with queue.session() as session, pytest.raises(CorruptionError, match="enqueues"):
        session.dequeue()
    assert inbox(directory) == [f"{name}.damaged"]


@pytest.mark.damages
@pytest.mark.parametrize("length_bytes", [0, 63, 64, 120, 200])
def test_a_published_file_that_was_cut(open_queue: QueueFactory, directory: Path, length_bytes: int) -> None:
    """A published file that is shorter than it was is set aside, whatever it lacks."""
    queue = open_queue()
    publish(directory, b"x")
    (name,) = inbox(directory)
    os.truncate(directory / "inbox" / name, length_bytes)
    with queue.session() as session, pytest.raises(CorruptionError, match=name):
        session.dequeue()


def test_markers_while_the_log_is_trimmed(open_queue: QueueFactory, directory: Path) -> None:
    """Who reads the log while its owner replaces it looks again."""
    queue = open_queue()
    with queue.session() as session:
        session.flush(("app", 5))
    looks = [0]

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        looks[0] += 1
        if looks[0] == 2:
            raise FileNotFoundError(errno.ENOENT, "trimmed meanwhile")
        return DISK.pread(fd, length_bytes, offset)

    with Producer(directory, disk=replace(DISK, pread=pread)) as producer:
        looks[0] = 0
        producer.enqueue(b"x")
        assert not producer.flush(("app", 5))
        assert producer.flush(("app", 6))
    with Producer(directory) as producer:
        assert not producer.flush(("app", 6))
        assert producer.flush(("other", 1))
        assert not producer.flush(("other", 1))
    assert drain(queue) == []
    assert (queue.marker("app"), queue.marker("other")) == (6, 1)


def test_markers_of_a_log_that_cannot_be_read(directory: Path) -> None:
    """Where the log cannot be read, however often one looks, the owner will tell; drafts of others tell nothing."""
    with PersistentQueue(directory) as queue:
        put(queue, b"x")
    failing = [False]

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        if failing[0]:
            raise FileNotFoundError(errno.ENOENT, "trimmed meanwhile")
        return DISK.pread(fd, length_bytes, offset)

    with Producer(directory) as other, Producer(directory, disk=replace(DISK, pread=pread)) as producer:
        other.enqueue_many([bytes(1024 * 1024)] * 6)
        failing[0] = True
        assert producer.flush(("app", 5))
        failing[0] = False
        other.rollback()
    with PersistentQueue(directory) as queue:
        assert queue.marker("app") == 5
        assert drain(queue) == [b"x"]


def test_closing_wakes_who_listens(open_queue: QueueFactory) -> None:
    """Who waits, and listens for other processes, hears that the queue is closed; nothing of the bell is left open."""
    queue = open_queue()
    with ThreadPoolExecutor(3) as pool, queue.session() as session, queue.session() as other:
        waiting = [pool.submit(each.dequeue, None) for each in (session, other)]
        wait_for(lambda: queue._open_queue is not None and queue._open_queue._waiters.count == 2)
        group = queue._open_queue
        assert group is not None
        wait_for(lambda: group._waiters.keeper is not None)
        queue.close()
        for each in waiting:
            with pytest.raises(ClosedError):
                each.result(60)
    assert group._waiters._bell is None


@pytest.mark.parametrize("lacks", ["inotify", "eventfd"])
def test_where_the_system_has_less(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """Without ``inotify`` who waits looks every 50 ms, without ``eventfd`` a pipe does the same."""
    if lacks == "inotify":
        monkeypatch.setattr("persistentqueue.system.wakeup._watch", lambda directory: -1)
    else:
        monkeypatch.delattr(os, "eventfd")
    queue = open_queue()
    with ThreadPoolExecutor(1) as pool, queue.session() as session:
        for puts in (lambda: publish(directory, b"x"), lambda: put(queue, b"x")):
            waiting = pool.submit(session.dequeue, 60)
            wait_for(lambda: queue._open_queue is not None and queue._open_queue._waiters.keeper is not None)
            puts()
            assert waiting.result(60) == b"x"
            session.flush()


def test_a_directory_that_cannot_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is nothing to watch the bell looks every 50 ms."""
    bell = Wakeup(-1)
    bell.ring()
    bell.wait(60)
    begun = time.monotonic()
    bell.wait(60)
    assert time.monotonic() - begun >= 0.04
    bell.close()
    assert _watch(-1) == -1
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())  # a system without it
    fd = os.open(tmp_path, os.O_RDONLY)
    assert _watch(fd) == -1
    os.close(fd)


def test_what_cannot_be_read_stays(directory: Path) -> None:
    """A file that the owner cannot read for now breaks nothing: what is before it is adopted, and who dequeues hears of
    it until it can be read."""
    unreadable: list[str] = []

    def opens(path: str, flags: int, mode: int) -> int:
        if os.path.basename(path) in unreadable:
            raise OSError(errno.EIO, "Input/output error", path)
        return DISK.open(path, flags, mode)

    disk = replace(DISK, open=opens)
    with PersistentQueue(directory, disk=disk) as queue:
        for item in (b"a", b"b", b"c"):
            publish(directory, item)
        unreadable.append(inbox(directory)[1])
        with queue.session() as session:
            assert session.dequeue() == b"a"
            for _ in range(2):
                with pytest.raises(OSError, match=unreadable[0]):
                    session.dequeue()
            session.flush()
            put(queue, b"own")
            assert session.dequeue() == b"own"
            session.flush()
    with PersistentQueue(directory, disk=disk) as queue:
        assert queue.stats().published == 2
        unreadable.clear()
        assert drain(queue) == [b"b", b"c"]
        assert queue.stats().published == 0


def test_a_dropped_queue_leaves_no_bell(directory: Path) -> None:
    """Who drops a queue that was waited on leaves no descriptor of it: the fixture of all tests looks."""
    queue = PersistentQueue(directory)
    with queue.session() as session:
        for _ in range(2):
            assert session.dequeue(timeout=0.01) is None
    with pytest.warns(ResourceWarning):
        del session, queue
        gc.collect()


def test_a_queue_that_does_not_sync(directory: Path) -> None:
    """What is published for a queue with ``sync=False`` is adopted, once, and is there after a kill."""
    queue = PersistentQueue(directory, sync=False)
    publish(directory, b"a", marker=("app", 1))
    assert queue.peek() == []
    with queue.session() as session:
        assert session.dequeue() == b"a"
        session.rollback()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Versions, "is_reached", lambda *_: False)
        publish(directory, b"again", marker=("app", 1))
        publish(directory, marker=("other", 1))
    generation = queue.stats().generation
    with queue.session() as session:
        assert session.dequeue_many(9) == [b"a"]
        assert session.dequeue() is None
        session.rollback()
    # The marker that stands for what is deleted must outlive the power first.
    assert queue.stats().generation > generation
    assert inbox(directory) == []
    publish(directory, b"b")
    with queue.session() as session:
        assert session.dequeue_many(9) == [b"a"]
        assert session.dequeue() == b"b"
        session.rollback()
    crash(queue)
    with PersistentQueue(directory) as queue:
        assert not queue.recovery.clean
        assert drain(queue) == [b"a", b"b"]
        assert (queue.marker("app"), queue.marker("other")) == (1, 1)


def test_a_full_queue_looks_no_further(open_queue: QueueFactory, directory: Path) -> None:
    """While a limit leaves no room for what is published, flushes do not read it again and again."""
    queue = open_queue(max_items=2)
    put(queue, b"a", b"b")
    publish(directory, b"c")
    group = queue._open()
    assert group.store.inbox.adopt() == 0
    reads: list[str] = []

    def begin(_next_sequence: int) -> list[Transaction]:
        reads.append("read")
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group.store.adopter, "begin", begin)
        assert group.store.inbox.adopt() == 0
        assert reads == []
        assert group.store.inbox.adopt(insists=True) == 0
        assert reads == ["read"]
    with queue.session() as session:
        assert session.dequeue_many(2) == [b"a", b"b"]
        session.flush()
    group.store.inbox.adopt()
    assert len(queue) == 1
    assert drain(queue) == [b"c"]


@pytest.mark.parametrize("call", ["lstat", "listdir"])
def test_a_look_that_fails_fails_no_flush(directory: Path, call: str) -> None:
    """Where the inbox cannot be looked into, a flush that is durable says so, and a dequeue that finds nothing else
    says what is wrong."""
    failing = [False]

    def fails(path: str) -> Any:
        if failing[0] and path.endswith("inbox"):
            raise OSError(errno.EIO, "Input/output error", path)
        return getattr(DISK, call)(path)

    times = iter(range(0, 10**15, 10**9))  # it looks each time
    doors: dict[str, Any] = {call: fails, "time_ns": lambda: next(times)}
    disk = replace(DISK, **doors)
    with PersistentQueue(directory, disk=disk) as queue:
        failing[0] = True
        put(queue, b"a", b"b")
        assert len(queue) == 2
        with queue.session() as session:
            assert session.dequeue_many(2) == [b"a", b"b"]
            with pytest.raises(OSError, match="inbox"):
                session.dequeue()
            session.flush()
        failing[0] = False
        assert drain(queue) == []


@pytest.mark.parametrize("wipe", [False, True])
def test_what_was_published_is_not_written_to_again(open_queue: QueueFactory, directory: Path, wipe: bool) -> None:
    """A drained file that was published does not go to the pool: without its new header it would seem to be waiting."""
    queue = open_queue(pool_max_bytes=1 << 24, wipe=wipe)
    put(queue, b"own" * 1000)
    for _ in range(3):
        publish(directory, bytes(100_000))
    assert len(drain(queue)) == 1
    assert len(drain(queue)) == 3
    queue.trim()
    stats = queue.stats()
    assert (stats.pool_files, stats.segments) == (0, 1)
    assert len(os.listdir(directory / "data")) == 1


@pytest.mark.damages
def test_a_damaged_file_does_not_go_to_the_pool(open_queue: QueueFactory, directory: Path) -> None:
    """Of a drained file without a header nobody can tell whether it was published."""
    queue = open_queue(pool_max_bytes=1 << 24, segment_bytes=100_000, memory_bytes=0)
    put(queue, bytes(90_000))
    put(queue, bytes(90_000))
    assert len(drain(queue)) == 2
    path = min((directory / "data").glob("*.seg"))
    path.write_bytes(b"?" * 64 + path.read_bytes()[64:])
    queue.trim()
    assert queue.stats().pool_files == 0
    assert not path.exists()


# --- what failed half way --------------------------------------------------------------------------------------------


class Stumbling:
    """A disk of which one call fails, or is interrupted, the ``at``-th that changes anything from ``begin`` on."""

    CALLS = ("open", "pwritev", "ftruncate", "fdatasync", "rename", "fsync", "close", "lock")

    def __init__(self, at: int, errno_or_none: int | None) -> None:
        self._left, self._errno, self._is_on = at, errno_or_none, False
        self.has_failed = False
        doors: dict[str, Any] = {name: self._door(getattr(DISK, name)) for name in self.CALLS}
        self.disk = replace(DISK, **doors)

    @contextmanager
    def stumbles(self) -> Iterator[None]:
        """Only here."""
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    def _door(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def door(*arguments: Any) -> Any:
            # A signal behind the opening of a file leaks its descriptor, in any program of Python.
            if not self._is_on or (self._errno is None and real is DISK.open):
                return real(*arguments)
            self._left -= 1
            if self._left:
                return real(*arguments)
            self._is_on, self.has_failed = False, True
            if self._errno is None:
                real(*arguments)  # a signal is noticed behind a call
                raise KeyboardInterrupt
            if real is DISK.close:
                real(*arguments)  # it is closed all the same
            elif real is DISK.pwritev:  # some of it is written
                fd, buffers, offset, flags = arguments
                data = b"".join(buffers)
                real(fd, [data[: len(data) // 2]], offset, flags)
            raise OSError(self._errno, os.strerror(self._errno))

        return door


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, None], ids=["full", "broken", "interrupted"])
@pytest.mark.parametrize("ahead", [0, 6], ids=["in memory", "written ahead"])
def test_whatever_fails_a_transaction_comes_once_or_not_at_all(tmp_path: Path, error: int | None, ahead: int) -> None:
    """Wherever a flush fails, the producer keeps the whole transaction, or has dropped it, or it is published; flushed
    again, also with a shorter marker, it comes as it was put in, once, and the producer goes on."""
    items = [bytes([n]) * 1024 * 1024 for n in range(ahead)] + [b"x" * 600_000, b"y" * 600_000, b"z"]
    outcomes = set()
    for at in range(1, 40):
        stumbling = Stumbling(at, error)
        directory = tmp_path / f"{at}"
        with PersistentQueue(directory) as queue, Producer(directory, disk=stumbling.disk) as producer:
            producer.enqueue_many(items)
            try:
                with stumbling.stumbles():
                    producer.flush(marker=("a long name" * 1000, 1))
            except (BrokenQueueError, KeyboardInterrupt, OSError, DiskFullError) as raised:
                told = type(raised).__name__
            else:
                told = "nothing"
            kept = producer.pending
            assert kept in {0, len(items)}
            producer.flush(marker=("short", 1))
            producer.enqueue(b"goes on")
            producer.flush()
            found = drain(queue) + drain(queue)
            assert found in ([*items, b"goes on"], [b"goes on"])
            if kept or told in {"nothing", "BrokenQueueError"}:
                assert len(found) == len(items) + 1
            if told == "DiskFullError":
                assert kept
            outcomes.add((told, bool(kept), len(found) > 1))
        assert inbox(directory) == []
        shutil.rmtree(directory)
        if not stumbling.has_failed:
            break
    assert ("nothing", False, True) in outcomes
    assert not stumbling.has_failed
    assert len(outcomes) > 1


def test_waiting_for_very_long(open_queue: QueueFactory) -> None:
    """A month, and for ever as a number, are times to wait like others."""
    queue = open_queue()
    for seconds in (30 * 86_400.0, 1e12, float("inf")):
        with ThreadPoolExecutor(1) as pool, queue.session() as session:
            waiting = pool.submit(session.dequeue, seconds)
            wait_for(lambda: queue._open()._waiters.keeper is not None)
            put(queue, b"x")
            assert waiting.result(60) == b"x"
            session.flush()


def test_waiting_without_a_descriptor_left(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who finds no descriptor for a bell waits all the same, and looks every 50 ms."""

    def no_more(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "eventfd", no_more)
    queue = open_queue()
    with ThreadPoolExecutor(2) as pool, queue.session() as session:
        for puts in (lambda: publish(directory, b"x"), lambda: put(queue, b"x")):
            waiting = pool.submit(session.dequeue, 60)
            wait_for(lambda: queue._open()._waiters.count == 1)
            puts()
            assert waiting.result(60) == b"x"
            session.flush()


@pytest.mark.damages
def test_an_adoption_that_a_power_cut_took_of_a_damaged_file(directory: Path) -> None:
    """Of a file that goes back to the inbox the end is damaged: it is set aside, and the queue opens."""
    queue = PersistentQueue(directory)
    put(queue, b"own")
    log = log_file(directory)
    before = log.read_bytes()
    publish(directory, b"a")
    with queue.session() as session:
        assert session.dequeue_many(2) == [b"own"]
        assert session.dequeue() == b"a"
        session.rollback()
    crash(queue)
    log.write_bytes(before)
    segment = max((directory / "data").glob("*.seg"))
    segment.write_bytes(segment.read_bytes()[:-1] + b"?")
    with PersistentQueue(directory) as queue:
        assert queue.recovery.set_aside == (f"data/{segment.name}",)
        assert drain(queue) == [b"own"]
    assert (directory / "data" / f"{segment.name}.damaged").exists()


def test_a_queue_that_is_just_being_made(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wants to make a queue that its owner makes at the same time does not wait until he closes it."""
    with PersistentQueue(directory):
        looks = iter([[], *[find_generations(DISK, str(directory))] * 9])
        monkeypatch.setattr("persistentqueue.interprocess.producer.find_generations", lambda *_: next(looks))
        Producer(directory).close()
    assert len(list(looks)) == 7  # one try found the lock taken; then `_create` and the producer look once each


def test_a_queue_that_is_never_made(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wants to make a queue that somebody has begun to make, and does not finish, is told who."""
    monkeypatch.setattr("persistentqueue.interprocess.producer._CREATION_TRIES", 2)
    monkeypatch.setattr("persistentqueue.interprocess.producer._TRY_SECONDS", 0.001)
    with PersistentQueue(directory):
        monkeypatch.setattr("persistentqueue.interprocess.producer.find_generations", lambda *_: [])
        with pytest.raises(QueueLockedError, match=str(os.getpid())):
            Producer(directory)


def test_what_somebody_takes_away(open_queue: QueueFactory, directory: Path) -> None:
    """A published file that is gone when its turn comes is passed over."""
    queue = open_queue(max_items=3)
    put(queue, b"a", b"b")
    for item in (b"c", b"d", b"e"):
        publish(directory, item)
    with queue.session() as session:
        assert session.dequeue_many(9) == [b"a", b"b"]
        assert session.dequeue() == b"c"  # and the others were listed, but there is no room for them
        (directory / "inbox" / inbox(directory)[0]).unlink()
        session.flush()
    assert drain(queue) == [b"e"]


@pytest.mark.damages
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_set_aside(open_queue: QueueFactory, directory: Path, make: Callable[[Path], None]) -> None:
    """A directory, a pipe and a link by the name of a publication are told of, once, and hold up nobody."""
    queue = open_queue()
    publish(directory, b"a")
    (name,) = inbox(directory)
    make(directory / "inbox" / name.replace(".seg", ".tmp"))
    make(directory / "inbox" / f"{0:016x}-{1:016x}.seg")
    assert drain(queue) == [b"a"]
    with queue.session() as session:
        with pytest.raises(CorruptionError, match="expected a regular file"):
            session.dequeue()
        assert session.dequeue() is None
    queue.close()
    assert drain(open_queue()) == []
    assert sorted(inbox(directory))[0].endswith(".damaged")


def test_a_large_inbox_is_listed_a_few_times(directory: Path) -> None:
    """To adopt ten frames' worth of publications takes a few listings, not some for each frame."""
    listings = [0]

    def listdir(path: str) -> list[str]:
        listings[0] += path.endswith("inbox")
        return DISK.listdir(path)

    PersistentQueue(directory).close()
    with Producer(directory, disk=replace(DISK, fdatasync=lambda fd: None, fsync=lambda fd: None)) as producer:
        for number in range(10 * ADOPTED_MAX):
            producer.enqueue(b"%d" % number)
            producer.flush()
    with PersistentQueue(directory, disk=replace(DISK, listdir=listdir)) as queue:
        assert len(queue) == 10 * ADOPTED_MAX
        assert listings[0] <= 6
        assert drain(queue) == [b"%d" % number for number in range(10 * ADOPTED_MAX)]


# --- the order of markers --------------------------------------------------------------------------------------------


def test_a_version_comes_before_the_next_whatever_the_clock_says(open_queue: QueueFactory, directory: Path) -> None:
    """Who publishes the next version of a marker, with a clock that is behind, publishes it behind the one before."""
    queue = open_queue()
    ahead = replace(DISK, time_ns=lambda: DISK.time_ns() + 3600 * 10**9)
    publish(directory, b"41", marker=("app", 41), disk=ahead)
    publish(directory, b"42", marker=("app", 42))
    publish(directory, b"43", marker=("app", 43))
    assert drain(queue) == [b"41", b"42", b"43"]
    assert queue.marker("app") == 43


def test_a_listing_that_misses_what_came_before(directory: Path) -> None:
    """A look that has what came later, and not yet what came before from another producer, looks once more."""
    PersistentQueue(directory).close()
    answers: list[list[str]] = []

    def listdir(path: str) -> list[str]:
        return answers.pop(0) if path.endswith("inbox") and answers else DISK.listdir(path)

    publish(directory, b"43", marker=("app", 43))
    publish(directory, b"44", marker=("app", 44))
    first, second = inbox(directory)
    answers += [[first, second], [second]]  # to sweep, then to adopt
    with PersistentQueue(directory, disk=replace(DISK, listdir=listdir)) as queue:
        assert drain(queue) == [b"43", b"44"]
        assert queue.marker("app") == 44


def test_a_version_is_reached_only_durably(tmp_path: Path) -> None:
    """That a version was reached is said of a frame in the owner's log only when that outlives the power: an owner may
    be just about to make it durable."""
    machine = SimulatedDisk()
    queue = PersistentQueue("/queues", "a", disk=machine.disk)
    for number in range(2):
        put(queue, b"%d" % number)
    answers: list[bool] = []
    after: list[SimulatedDisk] = []

    store = queue._open().store

    def tick() -> None:
        log = machine.inodes[machine.names[store.generations.path or ""]]
        if not answers and log.pending:
            answers.append(True)
            with Producer("/queues", "a", disk=machine.disk) as producer:
                producer.enqueue(b"2")
                answers[:] = [producer.flush(marker=("app", 2))]
            after.append(machine.cut_power(lambda _: 0))

    machine.on_tick = tick
    with queue.session() as session:
        session.enqueue(b"2")
        session.flush(marker=("app", 2))
    machine.on_tick = lambda: None
    queue.close()
    assert answers == [False]
    with PersistentQueue("/queues", "a", disk=after[0].disk) as queue:
        assert queue.marker("app") == 2
        assert drain(queue) == [b"0", b"1", b"2"]


def test_what_waits_is_read_once(directory: Path) -> None:
    """However many flushes of a producer wait to be adopted, the next reads what is new of them, and no log again."""
    PersistentQueue(directory).close()
    opened: list[str] = []

    def opens(path: str, flags: int, mode: int) -> int:
        opened.append(path)
        return DISK.open(path, flags, mode)

    with Producer(directory, disk=replace(DISK, open=opens)) as producer, Producer(directory) as other:
        for number in range(60):
            producer.enqueue(b"%d" % number)
            assert producer.flush(("app", 2 * number))
            assert other.flush(("other", number))
            assert not producer.flush(("other", number))
            assert not producer.flush(("app", 2 * number))
    published = [path for path in opened if path.endswith(".seg")]
    assert len(published) == len(set(published)) == 120
    with PersistentQueue(directory) as queue:
        assert drain(queue) == [b"%d" % number for number in range(60)]


def test_what_was_read_and_is_adopted_is_in_the_log(open_queue: QueueFactory, directory: Path) -> None:
    """A version that a producer has seen waiting is reached as well when its owner has adopted it; and not where it was
    set aside, since it was damaged."""
    queue = open_queue()
    with Producer(directory) as producer:
        for version in range(3):
            publish(directory, b"%d" % version, marker=("app", version))
            assert not producer.flush(("app", version))
            assert drain(queue) == [b"%d" % version]
            assert not producer.flush(("app", version))
        publish(directory, b"3", marker=("app", 3))
        assert not producer.flush(("app", 3))
        (directory / "inbox" / inbox(directory)[0]).unlink()
        producer.enqueue(b"3")
        assert producer.flush(("app", 3))
    assert drain(queue) == [b"3"]


@pytest.mark.damages
def test_what_is_listed_beside_published_files(directory: Path) -> None:
    """What is no publication, or is gone before it is read, or damaged, tells of no version; the log of a queue that is
    not synced tells what it has."""
    queue = PersistentQueue(directory, sync=False)
    with queue.session() as session:
        session.flush(marker=("app", 1))
    answers = [["a stranger", f"{1:016x}-{1:016x}.seg", f"{2:016x}-{2:016x}.seg"]]
    (directory / "inbox" / answers[0][2]).write_bytes(b"nothing of ours")

    def listdir(path: str) -> list[str]:
        return answers.pop() if answers and path.endswith("inbox") else DISK.listdir(path)

    with Producer(directory, disk=replace(DISK, listdir=listdir)) as producer:
        assert not producer.flush(("app", 1))
        assert producer.flush(("app", 2))
    assert queue.marker("app") == 1
    crash(queue)


@pytest.mark.parametrize("seed", range(5))
def test_many_at_once_are_buffered_as_one_by_one(open_queue: QueueFactory, directory: Path, seed: int) -> None:
    """However many items come at once, and however long, at most a few mebibytes of them are in memory, or one, and
    they come out as they were put in."""
    chance = random.Random(seed)
    queue = open_queue()
    put_in: list[bytes] = []
    with Producer(directory) as producer:
        for _ in range(3):
            length_bytes = chance.choice([0, 10, 100_000, SPILL_BYTES // 2, SPILL_BYTES])
            count = chance.randrange(1, 3 + 2 * SPILL_BYTES // (length_bytes + ITEM_OVERHEAD_BYTES))
            some = [bytes(length_bytes)] * count
            put_in += some
            producer.enqueue_many(some)
            if chance.random() < 0.5:
                producer.enqueue(b"one")
                put_in.append(b"one")
            batch = producer._batch
            assert batch.payload_bytes == sum(map(len, batch.items))
            assert len(batch.items) == 1 or batch.payload_bytes + ITEM_OVERHEAD_BYTES * len(batch.items) <= SPILL_BYTES
            assert producer.pending == len(put_in)
        producer.flush()
    assert drain(queue) == put_in


def test_many_at_once_of_which_one_is_too_large(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the list is buffered."""
    PersistentQueue(directory).close()
    monkeypatch.setattr("persistentqueue.core.items.ITEM_BYTES_MAX", 10)
    with Producer(directory) as producer:
        producer.enqueue(b"before")
        with pytest.raises(ItemTooLargeError):
            producer.enqueue_many([b"good", bytes(11), b"good"])
        producer.enqueue_many([b"short"] * 3)
        assert producer.pending == 4
        producer.rollback()

"""Flushes that wait for room: their order, their timeouts, and the events that wake them."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import BrokenQueueError, ClosedError, CorruptionError, QueueFullError
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Transaction
from persistentqueue.runtime import maintenance
from persistentqueue.runtime.waiting import Place
from persistentqueue.system import files
from persistentqueue.system.disk import DISK, DSYNC
from tests.conftest import QueueFactory
from tests.support.limits import SECONDS, consume, flush, spilling, waits
from tests.support.queues import IN_CACHE, drain, is_idle, put, segment_files, wait_for

from .test_open_queue import Interruption

MIB = 1024 * 1024


def test_flush_waits_for_room(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """A flush that finds no room ends as soon as a dequeue was committed, and not before."""
    queue = open_queue(max_items=2, full="block")
    put(queue, b"a", b"b")
    waiting = threads.submit(flush, queue, b"c")
    waits(queue)
    with queue.session() as session:
        assert session.dequeue() == b"a"
        session.rollback()
        assert session.dequeue() == b"a"
        assert not waiting.done() and queue.stats().waiting == 1
        session.flush()
    waiting.result(SECONDS)
    assert drain(queue) == [b"b", b"c"]
    assert queue.stats().refused == 0


@pytest.mark.parametrize("timeout", [0, 0.0, 0.01])
def test_timeout(open_queue: QueueFactory, timeout: float) -> None:
    """A flush whose timeout is over, or is 0, is refused, and its session can flush again later."""
    queue = open_queue(max_items=1, full="block")
    put(queue, b"a")
    with queue.session() as session:
        session.enqueue(b"b")
        for _ in range(2):
            with pytest.raises(QueueFullError) as caught:
                session.flush(timeout=timeout)
            assert (caught.value.holds, caught.value.asked) == (1, 1)
        assert queue.stats().waiting == 0 and queue.stats().refused == 2
        assert consume(queue) == [b"a"]
        session.flush(timeout=timeout)
    assert drain(queue) == [b"b"]


def test_timeouts_that_make_no_sense(open_queue: QueueFactory) -> None:
    """A timeout below 0 is refused, and so is any timeout above 0 for a queue that never waits."""
    blocking, raising = open_queue(max_items=1, full="block"), open_queue("other", max_items=1)
    with blocking.session() as session, pytest.raises(ValueError, match="at least 0"):
        session.flush(timeout=-1)
    with raising.session() as session:
        with pytest.raises(ValueError, match='needs a queue with full="block"'):
            session.flush(timeout=1.5)
        session.enqueue(b"x")
        session.flush(timeout=0)
    assert drain(raising) == [b"x"]


def test_first_come_first_served(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """Flushes get room in the order in which they came; a small one does not overtake a large one that waits."""
    queue = open_queue(max_items=4, full="block")
    put(queue, b"a", b"b", b"c", b"d")
    waiting: list[Future[None]] = []
    for n, count in enumerate([1, 4, 1, 2, 1]):
        waiting.append(threads.submit(flush, queue, *[b"%d" % n] * count))
        waits(queue, n + 1)
    taken: list[bytes] = []
    while len(taken) < 13:
        with queue.session() as session:
            item = session.dequeue(timeout=SECONDS)
            assert item is not None
            taken.append(item)
            session.flush()
    for each in waiting:
        each.result(SECONDS)
    assert b"".join(taken) == b"abcd" + b"0" + b"1111" + b"2" + b"33" + b"4"


def test_who_does_not_wait_overtakes_nobody(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """While a large flush waits, a small one is refused at its timeout, even if there would be room for it."""
    queue = open_queue(max_items=4, full="block")
    put(queue, b"a", b"b", b"c")
    large = threads.submit(flush, queue, b"1", b"2", b"3")
    waits(queue)
    for timeout in (0, 0.01):
        with pytest.raises(QueueFullError) as caught:
            flush(queue, b"x", timeout=timeout)
        assert (caught.value.limit, caught.value.holds, caught.value.asked) == ("max_items", 3, 1)
        assert "the queue holds 3, and other flushes come before this one" in str(caught.value)
    with pytest.raises(QueueFullError, match="never fits"):
        flush(queue, *[b"x"] * 5)
    consume(queue, 2)
    large.result(SECONDS)
    assert drain(queue) == [b"c", b"1", b"2", b"3"]


def test_who_gives_up_lets_the_next_one_try(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """When a large flush ends its wait, a small one behind it goes on at once if there is room for it."""
    queue = open_queue(max_items=4, full="block")
    put(queue, b"a", b"b", b"c")
    large = threads.submit(flush, queue, b"1", b"2", timeout=0.5)
    wait_for(lambda: large.done() or queue.stats().waiting == 1)
    flush(queue, b"x", timeout=SECONDS)
    with pytest.raises(QueueFullError):
        large.result(SECONDS)
    assert drain(queue) == [b"a", b"b", b"c", b"x"]


def test_queue_full_blocks_dequeues(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """In Qpid's legacy store a full journal had no room for a dequeue.

    Here consumers do not wait, however many flushes do. A session that enqueues only as much as it dequeues does not
    wait, either.
    """
    queue = open_queue(max_items=2, full="block")
    put(queue, b"a", b"b")
    waiting = [threads.submit(flush, queue, b"%d" % n) for n in range(8)]
    waits(queue, 8)
    with queue.session() as worker:
        assert worker.dequeue() == b"a"
        worker.enqueue(b"A")
        worker.flush(timeout=0)
    assert queue.stats().waiting == 8
    seen: list[bytes] = []
    while len(seen) < 10:
        seen += consume(queue)
    for each in waiting:
        each.result(SECONDS)
    assert seen[:2] == [b"b", b"A"] and sorted(seen[2:]) == [b"%d" % n for n in range(8)]


def test_session_that_waits_for_itself(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """A session that enqueues more than it has dequeued waits for others, up to its timeout, and blocks no other
    session."""
    queue = open_queue(max_items=2, full="block")
    put(queue, b"a", b"b")
    with queue.session() as session:
        assert session.dequeue() == b"a"
        session.enqueue_many([b"c", b"d"])
        with pytest.raises(QueueFullError):
            session.flush(timeout=0.01)

        def wait() -> None:
            session.flush()

        waiting = threads.submit(wait)
        waits(queue)
        assert consume(queue) == [b"b"]
        waiting.result(SECONDS)
    assert drain(queue) == [b"c", b"d"]


def test_marker_reached_meanwhile(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """A flush that waits for room returns False at its turn if another session has reached its marker meanwhile."""
    queue = open_queue(max_items=1, full="block")
    put(queue, b"a")

    def work(item: bytes) -> bool:
        with queue.session() as session:
            session.enqueue(item)
            return session.flush(marker=("m", 1))

    first = threads.submit(work, b"first")
    waits(queue)
    second = threads.submit(work, b"second")
    waits(queue, 2)
    assert consume(queue) == [b"a"]
    assert first.result(SECONDS) is True
    assert second.result(SECONDS) is False
    assert drain(queue) == [b"first"]


def test_closing_wakes_who_waits(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """If the queue is closed, each flush that waits for room gets ``ClosedError``, and nothing of it is committed."""
    queue = open_queue(max_items=1, full="block")
    put(queue, b"a")
    waiting = [threads.submit(flush, queue, b"x") for _ in range(5)]
    waits(queue, 5)
    queue.close()
    for each in waiting:
        with pytest.raises(ClosedError):
            each.result(SECONDS)
    assert drain(open_queue()) == [b"a"]


@pytest.mark.parametrize("how", ["commit", "trim"])
def test_breaking_wakes_who_waits(open_queue: QueueFactory, threads: ThreadPoolExecutor, how: str) -> None:
    """If the queue breaks, each wait for room or for an item ends with ``BrokenQueueError``."""
    failing = [False]

    def fail(call: Callable[..., Any]) -> Callable[..., Any]:
        def door(*arguments: Any) -> Any:
            if failing[0] and (call is DISK.fdatasync or arguments[-1] == DSYNC):
                raise OSError(errno.EIO, "Input/output error")
            return call(*arguments)

        return door

    disk = replace(DISK, fdatasync=fail(DISK.fdatasync), pwritev=fail(DISK.pwritev))
    queue = open_queue(max_items=1, full="block", disk=disk)
    put(queue, b"a")
    waiting = [threads.submit(flush, queue, b"x") for _ in range(3)]
    waits(queue, 3)
    consumer = queue.session()
    assert consumer.dequeue() == b"a"
    with queue.session() as other:
        waiting.append(threads.submit(other.dequeue, None))  # type: ignore[arg-type]
        wait_for(lambda: queue._open()._waiters.count == 1)
        failing[0] = True
        with pytest.raises(BrokenQueueError):
            queue.trim() if how == "trim" else consumer.flush()
        assert repr(queue).startswith("<broken PersistentQueue(")
        for each in waiting:
            with pytest.raises(BrokenQueueError):
                each.result(SECONDS)


@pytest.mark.parametrize("how", ["dequeue", "browse"])
def test_damage_makes_room(open_queue: QueueFactory, directory: Path, threads: ThreadPoolExecutor, how: str) -> None:
    """Items that turn out to be damaged no longer count, and a flush that waits for room goes on at once."""
    queue = open_queue(max_items=2, memory_bytes=0, full="block")
    put(queue, b"a" * 1000)
    put(queue, b"b")
    queue.trim()
    path = segment_files(directory)[0]
    data = path.read_bytes()
    path.write_bytes(data.replace(b"aaaa", b"bbbb", 1))
    waiting = threads.submit(flush, queue, b"c")
    waits(queue)
    with queue.session() as session, pytest.raises(CorruptionError):
        session.dequeue() if how == "dequeue" else queue.peek()
    waiting.result(SECONDS)
    path.write_bytes(data)
    assert drain(queue) == [b"b", b"c"]


@pytest.mark.maintained
def test_waiting_for_room_does_nothing(
    open_queue: QueueFactory, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that waits for room tries when it comes, and when it takes its place.

    Maintenance, which follows, causes no further attempt unless it made room, and then comes to rest.
    """
    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", 0.0)
    monkeypatch.setattr(maintenance, "IDLE_SECONDS", 0.0)
    tried = []
    commit = Store.commit

    def counted(store: Store, transactions: list[Transaction]) -> None:
        tried.append(transactions)
        commit(store, transactions)

    queue = open_queue(max_items=1, full="block")
    put(queue, b"a")
    groups = queue.stats().groups
    monkeypatch.setattr(Store, "commit", counted)
    waiting = threads.submit(flush, queue, b"b")
    waits(queue)
    wait_for(lambda: len(tried) == 2)
    assert is_idle()
    assert (len(tried), queue.stats().groups) == (2, groups)
    consume(queue)
    waiting.result(SECONDS)


def test_interrupted_while_it_waits(
    open_queue: QueueFactory, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that is interrupted while it waits leaves the line, keeps its session, and lets the next one try."""
    queue = open_queue(max_items=2, full="block")
    put(queue, b"a")
    group = queue._open_queue
    assert group is not None
    behind: list[Future[None]] = []
    sleep, this_thread = Place.sleep, threading.get_ident()

    def interrupted(seat: Place, timeout_seconds: float) -> None:
        if threading.get_ident() != this_thread:
            sleep(seat, timeout_seconds)
            return
        behind.append(threads.submit(flush, queue, b"b"))
        waits(queue, 2)
        raise Interruption

    with queue.session() as session:
        session.enqueue_many([b"c", b"d"])
        with monkeypatch.context() as patch, pytest.raises(Interruption):
            patch.setattr(Place, "sleep", interrupted)
            session.flush()
        behind[0].result(SECONDS)
        assert drain(queue) == [b"a", b"b"]
        session.flush()
    assert drain(queue) == [b"c", b"d"]


@pytest.mark.parametrize("limit", [{"max_items": 7}, {"max_bytes": 1000}, {"max_disk_bytes": 60_000}], ids=str)
def test_producers_and_consumers_at_the_limit(open_queue: QueueFactory, directory: Path, limit: dict[str, int]) -> None:
    """With producers that wait and a consumer, each item comes once, each producer's in order, and the limit holds."""
    queue = open_queue(full="block", log_bytes=4096, segment_bytes=4000, disk=IN_CACHE, **limit)
    count = 60
    produced, seen = [], list[bytes]()

    def produce(number: int) -> None:
        with queue.session() as session:
            for n in range(count):
                session.enqueue((b"%d %d " % (number, n)).ljust(3000 if "max_disk_bytes" in limit else 10, b"."))
                if n % 3:
                    session.flush(timeout=SECONDS)

    def consume_all() -> None:
        with queue.session() as session:
            while item := session.dequeue(timeout=SECONDS):
                if item.startswith(b"stop"):
                    session.flush()
                    return
                if len(seen) % 5 == 2:
                    session.rollback()
                    item = session.dequeue(timeout=SECONDS)
                    assert item is not None and not item.startswith(b"stop")
                stats = queue.stats()
                assert stats.ready + stats.held <= limit.get("max_items", 10**9)
                assert stats.live_bytes <= limit.get("max_bytes", 10**9)
                assert stats.disk_bytes <= limit.get("max_disk_bytes", 10**9)
                session.flush()
                seen.append(item)

    with ThreadPoolExecutor(8) as threads:
        producers = [threads.submit(produce, number) for number in range(4)]
        consumer = threads.submit(consume_all)
        for each in producers:
            each.result(4 * SECONDS)
        flush(queue, b"stop", timeout=SECONDS)
        consumer.result(4 * SECONDS)
    for number in range(4):
        own = [item for item in seen if item.startswith(b"%d " % number)]
        produced += own
        assert [int(item.split()[1]) for item in own] == list(range(count))
    assert len(produced) == len(seen) == 4 * count


@pytest.mark.parametrize("how", ["dequeues", "rollback", "trim"])
def test_waiting_for_the_disk(open_queue: QueueFactory, threads: ThreadPoolExecutor, how: str) -> None:
    """A flush that waits for disk space gets it when dequeues have drained a segment or a trim has given one back.

    It also gets it when a session gives up the items that it has spilled.
    """
    queue = open_queue(max_disk_bytes=100_000, log_bytes=4096, segment_bytes=10_000, full="block")
    items = [b"%d" % n * 4000 for n in range(10)]
    blocked = b"x" * (30_000 if how == "trim" else 20_000)
    if how == "rollback":
        session = spilling(queue)
        with pytest.raises(QueueFullError):
            while True:
                session.enqueue(bytes(4000))
    else:
        with pytest.raises(QueueFullError):
            while True:
                flush(queue, items[0], timeout=0)
    waiting = threads.submit(flush, queue, blocked)
    waits(queue)
    seen: list[bytes] = []
    if how == "rollback":
        session.close()
    elif how == "dequeues":
        while not waiting.done():
            seen += consume(queue)
    else:
        with queue.session() as holder:
            group = queue._open_queue
            assert group is not None
            assert holder.dequeue_many(100) and holder._transaction is not None
            drained, holder._transaction = holder._transaction, Transaction()
            with group._group_commit.writing:  # past the queue, so that it tells no waiter
                group._store.commit([drained])
            assert not waiting.done()
            queue.trim()
    waiting.result(SECONDS)
    assert [*seen, *drain(queue)][-1] == blocked


def test_given_back_behind_the_flush_wakes_who_waits(
    open_queue: QueueFactory, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that found no room while another thread deleted segments tries again when they are deleted."""
    monkeypatch.setattr(files, "UNLINK_STEP_BYTES", 4 * MIB)  # else the deletion makes room before its end
    began, allowed = threading.Event(), threading.Event()

    def unlink(path: str) -> None:
        if path.endswith("1.seg"):
            began.set()
            assert allowed.wait(SECONDS)
        DISK.unlink(path)

    disk = replace(DISK, unlink=unlink)
    queue = open_queue(max_disk_bytes=5 * MIB, log_bytes=4096, segment_bytes=3 * MIB, full="block", disk=disk)
    put(queue, bytes(3 * MIB))
    put(queue, b"small")

    def delete() -> None:
        consume(queue)
        queue.trim()

    deleting = threads.submit(delete)
    assert began.wait(SECONDS)
    waiting = threads.submit(flush, queue, bytes(4 * MIB))
    waits(queue)
    allowed.set()
    deleting.result(SECONDS)
    waiting.result(SECONDS)
    assert [len(item) for item in drain(queue)] == [5, 4 * MIB]

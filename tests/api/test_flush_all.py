"""What one thread does on behalf of many: flush their sessions together, wait for an item, give up, put back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    CodecError,
    CorruptionError,
    DiskFullError,
    PersistentQueue,
    Producer,
    QueueFullError,
    Session,
    SubscriptionNotFoundError,
    codecs,
    transaction,
)
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Transaction
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.limits import SECONDS, consume, flush, spilling, waits
from tests.support.queues import drain, put, segment_files, wait_for
from tests.unit.runtime.test_open_queue import Gate, Interruption


def sessions_with(queue: PersistentQueue, *items: bytes) -> list[Session]:
    """A session for each item, which it will enqueue."""
    sessions = [queue.session() for _ in items]
    for session, item in zip(sessions, items, strict=True):
        session.enqueue(item)
    return sessions


def test_many_sessions_share_one_sync(open_queue: QueueFactory) -> None:
    """Each is a transaction of its own, in one group with one sync, in the order given; idle ones are true as well."""
    queue = open_queue()
    put(queue, b"first")
    before = queue.stats()
    sessions = sessions_with(queue, *(b"%d" % n for n in range(50)))
    taking = queue.session()
    assert taking.dequeue() == b"first"
    assert queue.flush_all([*sessions, taking, queue.session()]) == [True] * 52
    after = queue.stats()
    assert (after.groups - before.groups, after.transactions - before.transactions) == (1, 51)
    assert after.syncs - before.syncs == 1
    assert queue.flush_all([]) == [] and queue.flush_all(sessions) == [True] * 50
    assert drain(queue) == [b"%d" % n for n in range(50)]


def test_markers_of_each(open_queue: QueueFactory) -> None:
    """Of two with the same marker the first is committed; one whose marker is no marker hears so, alone."""
    queue = open_queue()
    sessions = sessions_with(queue, b"a", b"b", b"c", b"d")
    found = queue.flush_all(sessions, [("m", 1), ("m", 1), None, ("", -1)])
    assert found[:3] == [True, False, True] and isinstance(found[3], ValueError)
    assert drain(queue) == [b"a", b"c"]
    sessions[3].close()


def test_sessions_that_cannot_be_flushed_together(open_queue: QueueFactory) -> None:
    """A session that is there twice, of another queue, or of a transaction over several; markers that are too few."""
    queue, other = open_queue(), open_queue("other")
    (session,) = sessions_with(queue, b"a")
    with transaction(queue, other) as (joint, _), other.session() as foreign:
        for sessions in ([session, session], [session, foreign], [session, joint]):
            with pytest.raises(ValueError, match="flush_all"):
                queue.flush_all(sessions)
    with pytest.raises(ValueError, match="2 markers for 1 sessions"):
        queue.flush_all([session], [None, None])
    assert queue.flush_all([session]) == [True]
    assert drain(queue) == [b"a"]


def test_closed_session_fails_alone(open_queue: QueueFactory) -> None:
    """One that was closed has a ClosedError, the others are committed."""
    queue = open_queue()
    closed, open_one = sessions_with(queue, b"a", b"b")
    closed.close()
    found = queue.flush_all([closed, open_one])
    assert isinstance(found[0], ClosedError) and found[1] is True
    assert drain(queue) == [b"b"]


@pytest.mark.parametrize("full", ["raise", "block"])
def test_each_hears_of_its_own_limit(open_queue: QueueFactory, full: str) -> None:
    """Who finds no room is refused, without waiting, and can be flushed again; those who fit are committed."""
    queue = open_queue(max_items=2, full=full)
    sessions = sessions_with(queue, b"a", b"b", b"c")
    found = queue.flush_all(sessions)
    assert found[:2] == [True, True] and isinstance(found[2], QueueFullError)
    assert queue.stats().refused == 1
    assert consume(queue) == [b"a"]
    assert queue.flush_all(sessions) == [True] * 3
    assert drain(queue) == [b"b", b"c"]


def test_nobody_overtakes_those_who_wait(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """While somebody waits for room who only enqueues is refused; who also dequeues goes."""
    queue = open_queue(max_items=2, full="block")
    put(queue, b"a")
    waiting = threads.submit(flush, queue, b"1", b"2")
    waits(queue)
    small, large = sessions_with(queue, b"x", b"y")
    large.enqueue_many([b"y", b"y"])
    both = queue.session()
    assert both.dequeue() == b"a"
    both.enqueue(b"A")
    found = queue.flush_all([small, large, both])
    assert found[2] is True
    assert [isinstance(each, QueueFullError) and each.lasting for each in found[:2]] == [False, True]
    assert consume(queue) == [b"A"]
    waiting.result(SECONDS)
    assert drain(queue) == [b"1", b"2"]
    for session in (small, large):
        session.close()


def test_breaking_is_told_to_each(open_queue: QueueFactory) -> None:
    """When the write of the frame fails, each session hears that the outcome is unknown; so does who comes later."""
    failing = [False]

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if flags and failing[0]:
            raise OSError(5, "Input/output error")
        return DISK.pwritev(fd, buffers, offset, flags)

    queue = open_queue(disk=replace(DISK, pwritev=pwritev))
    sessions = sessions_with(queue, b"a", b"b")
    failing[0] = True
    for _ in range(2):
        found = queue.flush_all(sessions)
        assert [type(each) for each in found] == [BrokenQueueError] * 2


def test_closing_under_way_is_told_to_each(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """Sessions in line when the queue is closed have a ClosedError each, and nothing of them is committed."""
    gate = Gate()
    queue = open_queue(disk=replace(DISK, failpoint=gate.failpoint))
    gate.armed = True
    first = threads.submit(put, queue, b"first")
    assert gate.reached.wait(SECONDS)
    group = queue._open_queue
    assert group is not None
    flushing = threads.submit(queue.flush_all, sessions_with(queue, b"a", b"b"))
    wait_for(lambda: len(group._group_commit) == 1)
    closing = threads.submit(queue.close)
    wait_for(lambda: queue.closed)
    gate.go_on.set()
    first.result(SECONDS)
    assert [type(each) for each in flushing.result(SECONDS)] == [ClosedError] * 2
    closing.result(SECONDS)
    with pytest.raises(ClosedError):
        queue.flush_all([])
    assert drain(open_queue()) == [b"first"]


def test_they_are_taken_along_as_a_whole(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """Those who come while others write are one group with whoever else came, and are led as a whole."""
    gate = Gate()
    queue = open_queue(disk=replace(DISK, failpoint=gate.failpoint))
    gate.armed = True
    jobs = [threads.submit(put, queue, b"first")]
    assert gate.reached.wait(SECONDS)
    group = queue._open_queue
    assert group is not None
    for number in range(3):
        jobs.append(threads.submit(queue.flush_all, sessions_with(queue, b"%d" % number, b"x")))  # type: ignore[arg-type]
        wait_for(lambda count=number + 1: len(group._group_commit) == count)  # type: ignore[misc]
    gate.go_on.set()
    for each in jobs:
        assert each.result(SECONDS) in (None, [True, True])
    assert (queue.stats().groups, queue.stats().transactions) == (2, 7)
    assert drain(queue) == [b"first", b"0", b"x", b"1", b"x", b"2", b"x"]


@pytest.mark.parametrize("where", ["before", "behind"])
def test_interrupted(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Interrupted before anything was written each keeps its operations, behind the commit each is empty."""
    queue = open_queue()
    sessions = sessions_with(queue, b"a", b"b")
    with monkeypatch.context() as patch, pytest.raises(Interruption):
        if where == "before":
            patch.setattr(Store, "commit", Mock(side_effect=Interruption))
        else:
            patch.setattr(queue._open(), "after_commit", Mock(side_effect=Interruption))
        queue.flush_all(sessions)
    assert len(queue) == (0 if where == "before" else 2)
    assert queue.flush_all(sessions) == [True, True]
    assert drain(queue) == [b"a", b"b"]


def test_a_failure_is_forgotten(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who failed, and was interrupted before he heard, is not told so by the next flush."""
    queue = open_queue()
    (session,) = sessions_with(queue, b"a")

    def fail(_store: Store, transactions: list[Transaction]) -> None:
        for each in transactions:
            each.error = DiskFullError("/here", 28, "full")
        raise Interruption

    with monkeypatch.context() as patch, pytest.raises(Interruption):
        patch.setattr(Store, "commit", fail)
        session.flush()
    assert session.flush()
    assert drain(queue) == [b"a"]


def test_wait_takes_nothing(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """Waiting is over when there is something, which it leaves where it is, or when the time is."""
    queue = open_queue()
    assert queue.wait(0) is False and queue.wait(0.01) is False
    waiting = [threads.submit(queue.wait) for _ in range(3)]
    wait_for(lambda: queue._open()._waiters.count == 3)
    put(queue, b"x")
    assert [each.result(SECONDS) for each in waiting] == [True] * 3
    assert queue.wait() is True
    assert drain(queue) == [b"x"]
    with pytest.raises(ValueError, match="at least 0"):
        queue.wait(-1)


def test_who_waits_beside_a_consumer_takes_nothing_from_him(
    open_queue: QueueFactory, threads: ThreadPoolExecutor
) -> None:
    """One item, told to who only waits, comes to the consumer who waits beside him."""
    queue = open_queue()
    waiting = threads.submit(queue.wait)
    with queue.session() as session:
        consuming = threads.submit(session.dequeue, SECONDS)
        wait_for(lambda: queue._open()._waiters.count == 2)
        put(queue, b"x")
        assert consuming.result(SECONDS) == b"x"
        if not waiting.done():  # the consumer was first
            put(queue, b"y")
        assert waiting.result(SECONDS) is True
        session.rollback()


def test_waiting_is_stopped(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """It ends when ``stop`` says so, at once if it does at the beginning, and otherwise when it is woken."""
    queue = open_queue()
    subscription = queue.subscribe("s")
    stop = threading.Event()
    waiting = [threads.submit(each.wait, stop=stop.is_set) for each in (queue, subscription)]
    wait_for(lambda: queue._open()._waiters.count == 2)
    queue.wake()
    stop.set()
    queue.wake()
    assert [each.result(SECONDS) for each in waiting] == [False, False]
    assert queue.wait(stop=stop.is_set) is False


@pytest.mark.parametrize("how", ["close", "unsubscribe"])
def test_waiting_ends_with_what_is_waited_for(open_queue: QueueFactory, threads: ThreadPoolExecutor, how: str) -> None:
    """Closing ends it with ClosedError; the removal of the subscription is something that its consumers must hear."""
    queue = open_queue()
    subscription = queue.subscribe("s")
    waiting = threads.submit(subscription.wait)
    wait_for(lambda: queue._open()._waiters.count == 1)
    if how == "close":
        queue.close()
        with pytest.raises(ClosedError):
            waiting.result(SECONDS)
        queue.wake()
    else:
        queue.unsubscribe("s")
        assert waiting.result(SECONDS) is True


def test_a_queue_of_subscriptions_has_nobody_to_wait_for(open_queue: QueueFactory) -> None:
    """Where there is no plain consumer, waiting for it is refused, with the names of those that there are."""
    queue = open_queue(fan_out=True)
    queue.subscribe("s")
    with pytest.raises(SubscriptionNotFoundError, match="s"):
        queue.wait()
    with queue.session() as session, pytest.raises(SubscriptionNotFoundError):
        session.dequeue_cached(1)


def test_waiting_hears_of_other_processes(
    open_queue: QueueFactory, directory: Path, threads: ThreadPoolExecutor
) -> None:
    """What is published is adopted by who waits; what is wrong with a publication is for a dequeue to tell."""
    queue = open_queue()
    waiting = threads.submit(queue.wait)
    wait_for(lambda: queue._open()._waiters.count == 1)
    with Producer(directory) as producer:
        producer.enqueue(b"x")
        producer.flush()
    assert waiting.result(SECONDS) is True
    assert drain(queue) == [b"x"]


@pytest.mark.damages
def test_waiting_hears_of_damage(open_queue: QueueFactory, directory: Path) -> None:
    """A publication that is damaged ends the waiting, and is told once, by dequeue."""
    with open_queue() as queue:
        put(queue, b"a")
    queue = open_queue()
    assert drain(queue) == [b"a"]
    with Producer(directory) as producer:
        producer.enqueue(b"x" * 100)
        producer.flush()
    published = next(path for path in (directory / "inbox").iterdir() if path.stat().st_size)
    data = bytearray(published.read_bytes())
    data[data.index(b"xxxx")] ^= 1
    published.write_bytes(data)
    assert queue.wait(SECONDS) is True
    with queue.session() as session:
        with pytest.raises(CorruptionError):
            session.dequeue()
        assert session.dequeue() is None
    assert segment_files(directory)


def test_put_back(open_queue: QueueFactory) -> None:
    """The last items come out first again, in their order; those before them stay on hold, and are consumed."""
    queue = open_queue()
    items = [b"%d" % n for n in range(6)]
    put(queue, *items)
    with queue.session() as first, queue.session() as session:
        assert session.dequeue_many(2) == items[:2]
        assert first.dequeue() == items[2]
        assert session.dequeue_many(3) == items[3:]
        session.put_back(2)
        assert queue.peek(9) == items[4:]
        session.put_back(0)
        for count in (-1, 4):
            with pytest.raises(ValueError, match="count must be"):
                session.put_back(count)
        session.put_back(2)
        assert queue.peek(9) == [items[1], *items[3:]]
        session.flush()
        first.put_back()
        with pytest.raises(ValueError, match="count must be"):
            session.put_back()
    assert drain(queue) == items[1:]


def test_who_has_put_all_back_holds_nothing(open_queue: QueueFactory) -> None:
    """For how long it holds something counts from what it dequeues then."""
    queue = open_queue()
    put(queue, b"a", b"b")
    with queue.session() as session:
        session.dequeue()
        began = session.keeps_since
        session.dequeue()
        session.put_back()
        assert session.keeps_since == began
        session.put_back()
        assert queue.stats().held_seconds == 0.0
        now = queue._open().now()
        session.dequeue()
        assert (session.keeps_since or 0.0) >= now
        session.rollback()


def test_put_back_wakes_who_waits(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """Who waits gets what was put back."""
    queue = open_queue()
    put(queue, b"x")
    with queue.session() as holder, queue.session() as session:
        assert holder.dequeue() == b"x"
        waiting = threads.submit(session.dequeue, SECONDS)
        wait_for(lambda: queue._open()._waiters.count == 1)
        holder.put_back()
        assert waiting.result(SECONDS) == b"x"
        holder.rollback()
        session.rollback()


def test_dequeue_cached_never_reads(open_queue: QueueFactory) -> None:
    """It gives what is in memory, up to so many, and nothing where the disk would have to be asked."""
    queue = open_queue()
    put(queue, b"a", b"b", b"c", b"d")
    reads = queue.stats().page_reads
    with queue.session() as session:
        assert session.dequeue_cached(0) == []
        assert session.dequeue_cached(1) == [b"a"]
        assert session.dequeue_cached(2) == [b"b", b"c"]
        queue.resize(memory_bytes=0)
        assert session.dequeue_cached(1) == []
        assert queue.stats().page_reads == reads
        assert session.dequeue() == b"d"
        session.flush()
        assert session.dequeue_cached(1) == []
    assert len(queue) == 0


def test_enqueue_cached_never_writes(open_queue: QueueFactory) -> None:
    """It takes what fits, at least one item, and what does not fit is not in the session."""
    queue = open_queue()
    with spilling(queue) as session:
        assert session.enqueue_cached(bytearray(b"x" * 3000))
        assert not session.enqueue_cached(b"y")
        assert queue.stats().data_bytes == 0
        session.enqueue(b"z")
        assert session.enqueue_cached(b"y")
        session.flush()
        with pytest.raises(TypeError):
            session.enqueue_cached("text")
    assert drain(queue) == [b"x" * 3000, b"z", b"y"]


def test_cached_items_have_the_codec(open_queue: QueueFactory) -> None:
    """What goes in and out without the disk is encoded and decoded as well, and what cannot be harms no other item."""
    queue: PersistentQueue[Any] = open_queue(codec=codecs.JSON)
    with queue.session() as session:
        for item in (None, {"a": 1}):
            assert session.enqueue_cached(item)
        with pytest.raises(CodecError):
            session.enqueue_cached(object())
        session.flush()
        assert session.dequeue_cached(5) == [None, {"a": 1}]
        session.flush()
    assert len(queue) == 0


def test_give_up(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """A flush that waits for room is refused at once, keeps its session, and lets the next one try."""
    queue = open_queue(max_items=2, full="block")
    put(queue, b"a")
    large, small = queue.session(), queue.session()
    large.enqueue_many([b"1", b"2"])
    small.enqueue(b"3")
    waiting = []
    for number, session in enumerate((large, small), 1):
        waiting.append(threads.submit(session.flush))
        waits(queue, number)
    large.give_up()
    with pytest.raises(QueueFullError):
        waiting[0].result(SECONDS)
    assert waiting[1].result(SECONDS) is True
    assert queue.stats().waiting == 0
    assert drain(queue) == [b"a", b"3"]
    assert large.flush() is True
    assert drain(queue) == [b"1", b"2"]
    large.close()
    large.give_up()
    small.close()


def test_give_up_before_it_waits(open_queue: QueueFactory) -> None:
    """The flush that comes next does not wait, and the one after it would."""
    queue = open_queue(max_items=1, full="block")
    put(queue, b"a")
    with queue.session() as session:
        session.enqueue(b"b")
        session.give_up()
        with pytest.raises(QueueFullError):
            session.flush()
        with pytest.raises(QueueFullError):
            session.flush(timeout=0.01)
        assert queue.stats().refused == 2
        session.rollback()
    assert drain(queue) == [b"a"]

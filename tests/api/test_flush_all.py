"""Calls by which one thread serves many sessions: ``flush_all``, ``wait``, ``give_up``, ``put_back``,
``dequeue_cached`` and ``enqueue_cached``."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

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
    SessionInUseError,
    SubscriptionNotFoundError,
    codecs,
    transaction,
)
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Transaction
from persistentqueue.interrupts.call_guard import SessionCalls
from persistentqueue.runtime.open_queue import OpenQueue
from persistentqueue.runtime.session_state import held_seconds
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.limits import SECONDS, consume, flush, spilling, waits
from tests.support.queues import drain, put, segment_files, wait_for
from tests.unit.runtime.test_open_queue import Gate, Interruption


def sessions_with(queue: PersistentQueue, *items: bytes) -> list[Session]:
    """Return a session for each item, with the item enqueued."""
    sessions = [queue.session() for _ in items]
    for session, item in zip(sessions, items, strict=True):
        session.enqueue(item)
    return sessions


def test_many_sessions_share_one_sync(open_queue: QueueFactory) -> None:
    """``flush_all`` commits each session as its own transaction, in the given order, in one group with one sync. An
    idle session gets True as well."""
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
    """Of two sessions with the same marker ``flush_all`` commits the first. An invalid marker fails only its own
    session."""
    queue = open_queue()
    sessions = sessions_with(queue, b"a", b"b", b"c", b"d")
    found = queue.flush_all(sessions, [("m", 1), ("m", 1), None, ("", -1)])
    assert found[:3] == [True, False, True] and isinstance(found[3], ValueError)
    assert drain(queue) == [b"a", b"c"]
    sessions[3].close()


def test_an_error_of_the_whole_group_reaches_all(open_queue: QueueFactory) -> None:
    """If the group fails as a whole, each session gets the error and keeps its items."""
    queue = open_queue()
    sessions = sessions_with(queue, b"a", b"b")
    error = ClosedError("all of them")
    with patch.object(OpenQueue, "commit_all", side_effect=error):
        assert queue.flush_all(sessions) == [error, error]
    assert queue.flush_all(sessions) == [True, True] and drain(queue) == [b"a", b"b"]


def test_sessions_that_cannot_be_flushed_together(open_queue: QueueFactory) -> None:
    """``flush_all`` refuses a repeated session, a session of another queue or of a transaction over several queues, and
    too few markers."""
    queue, other = open_queue(), open_queue("other")
    (session,) = sessions_with(queue, b"a")
    with transaction(queue, other) as (joint, _), other.session() as foreign:
        for sessions in ([session, session], [session, foreign], [session, joint]):
            with pytest.raises(ValueError, match="flush_all"):
                queue.flush_all(sessions)
    with pytest.raises(ValueError, match="a marker or None for each session: 1, not 2"):
        queue.flush_all([session], [None, None])
    assert queue.flush_all([session]) == [True]
    assert drain(queue) == [b"a"]


def test_a_list_that_changes_meanwhile(open_queue: QueueFactory) -> None:
    """The sessions that were passed are flushed, and no other one, also if their list changes during the call."""
    sessions: list[Session[bytes]] = []
    late = []

    def failpoint(name: str) -> None:
        if name.startswith("commit.1") and sessions:
            late.extend(sessions)
            sessions[:] = [other]

    queue = open_queue(disk=replace(DISK, failpoint=failpoint))
    put(queue, b"1", b"2")
    with queue.session() as session, queue.session() as other:
        assert (session.dequeue_many(1), other.dequeue_many(1)) == ([b"1"], [b"2"])
        sessions.append(session)
        assert queue.flush_all(sessions) == [True]
        assert late == [session]
        other.rollback()
    assert drain(queue) == [b"2"]


def test_an_error_ends_no_call_of_another_thread(
    open_queue: QueueFactory, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one session is in use, the others are cleaned up. One that another thread has begun to use since is left
    alone."""
    queue, end = open_queue(), SessionCalls._end_badly
    calls: list[Future[bytes | None]] = []
    first = iter([True])

    def delayed(session: SessionCalls) -> None:
        """Let another thread clean up the session and begin a call, just before this thread does."""
        if session is free and next(first, False):
            calls.append(threads.submit(free.dequeue, None))
            wait_for(lambda: queue._open()._waiters.count == 2)
        end(session)

    with queue.session() as free, queue.session() as used:
        calls_of_used = threads.submit(used.dequeue, None)
        wait_for(lambda: queue._open()._waiters.count == 1)
        monkeypatch.setattr(SessionCalls, "_end_badly", delayed)
        with pytest.raises(SessionInUseError):
            queue.flush_all([free, used])
        with pytest.raises(SessionInUseError):
            free.enqueue(b"during the dequeue")
        put(queue, b"1", b"2")
        assert {calls[0].result(SECONDS), calls_of_used.result(SECONDS)} == {b"1", b"2"}
        assert queue.stats().held == 2
        queue.flush_all([free, used])


def test_closed_session_fails_alone(open_queue: QueueFactory) -> None:
    """A closed session gets a ``ClosedError``, and ``flush_all`` commits the others."""
    queue = open_queue()
    closed, open_one = sessions_with(queue, b"a", b"b")
    closed.close()
    found = queue.flush_all([closed, open_one])
    assert isinstance(found[0], ClosedError) and found[1] is True
    assert drain(queue) == [b"b"]


@pytest.mark.parametrize("full", ["raise", "block"])
def test_each_hears_of_its_own_limit(open_queue: QueueFactory, full: str) -> None:
    """A session that finds no room is refused without waiting, and can be flushed again. The sessions that fit are
    committed."""
    queue = open_queue(max_items=2, full=full)
    sessions = sessions_with(queue, b"a", b"b", b"c")
    found = queue.flush_all(sessions)
    assert found[:2] == [True, True] and isinstance(found[2], QueueFullError)
    assert queue.stats().refused == 1
    assert consume(queue) == [b"a"]
    assert queue.flush_all(sessions) == [True] * 3
    assert drain(queue) == [b"b", b"c"]


def test_nobody_overtakes_those_who_wait(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """While a flush waits for room, ``flush_all`` refuses sessions that only enqueue, and commits a session that also
    dequeues."""
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


def test_room_of_a_removed_subscription(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """A flush that waits gets the room of a subscription that is removed, also if the trim behind that lacks a
    descriptor. It waited on."""
    is_short = False

    def open_file(path: str, flags: int, mode: int) -> int:
        if is_short:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return DISK.open(path, flags, mode)

    queue = open_queue(max_items=1, full="block", fan_out=True, disk=replace(DISK, open=open_file))
    queue.subscribe("a")
    put(queue, b"1")
    second = queue.subscribe("b", start="latest")
    waiting = threads.submit(flush, queue, b"2", timeout=SECONDS)
    waits(queue)
    is_short = True
    queue.unsubscribe("a")
    is_short = False
    waiting.result(SECONDS)
    assert list(second.browse()) == [b"2"]


def test_breaking_is_told_to_each(open_queue: QueueFactory) -> None:
    """If the write of the frame fails, each session gets a ``BrokenQueueError``: the outcome is unknown. Each later
    flush gets it, too."""
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
    """If the queue is closed while sessions wait for their group, each gets a ``ClosedError`` and none is committed."""
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
    """Calls of ``flush_all`` that come during a write form the next group together, each with all of its sessions."""
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
    """Sessions keep their operations if ``flush_all`` is interrupted before the commit. They are empty if it is
    interrupted after the commit."""
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
    """If an interruption keeps an error from the caller, the next flush of the session does not raise that error."""
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
    """``wait`` ends when an item is ready, which it leaves in its place, or when the time is over."""
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
    """An item that wakes a thread in ``wait`` still reaches the consumer that waits beside it."""
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
    """``wait`` returns False when ``stop`` returns True: at once if it does so at the beginning, otherwise when
    ``wake`` is called."""
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
    """``wait`` raises ``ClosedError`` when the queue is closed. It returns True when the subscription is removed, since
    its consumers must learn of that."""
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
    """A queue without a plain queue refuses ``wait`` and ``dequeue_cached``, and the error names its
    subscriptions."""
    queue = open_queue(fan_out=True)
    queue.subscribe("s")
    with pytest.raises(SubscriptionNotFoundError, match="s"):
        queue.wait()
    with queue.session() as session, pytest.raises(SubscriptionNotFoundError):
        session.dequeue_cached(1)


def test_waiting_hears_of_other_processes(
    open_queue: QueueFactory, directory: Path, threads: ThreadPoolExecutor
) -> None:
    """A thread in ``wait`` adopts an item that another process publishes, and returns True."""
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
    """A damaged publication ends ``wait``, and its error is raised once, by ``dequeue``."""
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
    """``put_back`` makes the last items ready again, in their order. The items before them stay held and are consumed
    by a flush."""
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
    """After a session has put everything back, the time for which it holds items counts from its next dequeue."""
    queue = open_queue()
    put(queue, b"a", b"b")
    with queue.session() as session:
        session.dequeue()
        began = queue._open().now()
        session.dequeue()
        session.put_back()
        seconds = queue._open().now() - began
        assert held_seconds(session) >= seconds
        session.put_back()
        assert queue.stats().held_seconds == 0.0
        began = queue._open().now()
        session.dequeue()
        assert held_seconds(session) <= queue._open().now() - began
        session.rollback()


def test_put_back_wakes_who_waits(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """An item that is put back goes to a waiting consumer."""
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
    """``dequeue_cached`` returns up to the given count of items from memory, and none if the disk would have to be
    read."""
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
    """``enqueue_cached`` takes an item if that needs no write, and takes at least one. An item that it does not take is
    not in the session."""
    queue = open_queue()
    with spilling(queue) as session:
        assert session._enqueue_cached(bytearray(b"x" * 3000))
        assert not session._enqueue_cached(b"y")
        assert queue.stats().data_bytes == 0
        session.enqueue(b"z")
        assert session._enqueue_cached(b"y")
        session.flush()
        with pytest.raises(TypeError):
            session._enqueue_cached("text")
    assert drain(queue) == [b"x" * 3000, b"z", b"y"]


def test_cached_items_have_the_codec(open_queue: QueueFactory) -> None:
    """``enqueue_cached`` and ``dequeue_cached`` use the codec, and an item that cannot be encoded harms no other
    item."""
    queue: PersistentQueue[Any] = open_queue(codec=codecs.JSON)
    with queue.session() as session:
        for item in (None, {"a": 1}):
            assert session._enqueue_cached(item)
        with pytest.raises(CodecError):
            session._enqueue_cached(object())
        session.flush()
        assert session.dequeue_cached(5) == [None, {"a": 1}]
        session.flush()
    assert len(queue) == 0


def test_give_up(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """``give_up`` ends a flush that waits for room with ``QueueFullError``, at once. Its session keeps its items, and
    the next waiting flush tries."""
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
    """``give_up`` before a flush makes that flush fail without waiting; the flush after it would wait."""
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

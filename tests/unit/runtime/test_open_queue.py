"""Threads that share a queue: group commit, waiting, closing during other calls, and interruptions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from persistentqueue import BrokenQueueError, ClosedError, DiskFullError, PersistentQueue, Session, transaction
from persistentqueue.engine.context import Guards, Settings
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Transaction
from persistentqueue.recovery.opening import open_store
from persistentqueue.runtime.open_queue import OpenQueue
from persistentqueue.runtime.session_state import SessionParts
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, put, wait_for

SECONDS = 30.0  # a limit for calls that should take milliseconds


class Gate:
    """A failpoint that stops the first write of a frame until it is told to go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.passes = 0
        self.armed = False

    def failpoint(self, name: str) -> None:
        """Stop once, at the write of a frame, if the gate is armed."""
        if name.startswith("commit.3") and self.armed:
            self.armed = False
            self.reached.set()
            assert self.go_on.wait(SECONDS)


def test_who_comes_meanwhile_shares_one_write(open_queue: QueueFactory) -> None:
    """All transactions that arrive while a group is written are committed as the next group."""
    gate = Gate()
    queue = open_queue(disk=replace(DISK, failpoint=gate.failpoint))
    gate.armed = True
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(put, queue, b"first")
        assert gate.reached.wait(SECONDS)
        before = queue.stats()
        assert before.groups == 0
        rest = [pool.submit(put, queue, b"%d" % n) for n in range(15)]
        group = queue._open_queue
        assert group is not None
        wait_for(lambda: len(group._group_commit) == 15)
        gate.go_on.set()
        for each in [first, *rest]:
            each.result(SECONDS)
    after = queue.stats()
    assert (after.groups, after.transactions) == (2, 16)
    assert after.syncs - before.syncs <= 4  # one for each group, and those of the first segment
    assert sorted(drain(queue)) == sorted([b"first", *(b"%d" % n for n in range(15))])


@pytest.mark.parametrize("settings", [{}, {"segment_bytes": 300, "memory_bytes": 100, "log_bytes": 4096}], ids=str)
def test_producers_and_consumers(open_queue: QueueFactory, settings: dict[str, Any]) -> None:
    """With many producers and consumers at work, each item comes out once."""
    queue = open_queue(**settings)
    producers, count = 4, 200
    seen: list[list[bytes]] = [[] for _ in range(3)]

    def produce(number: int) -> None:
        with queue.session() as session:
            for n in range(count):
                session.enqueue(b"%d %d" % (number, n))
                if n % 3:
                    session.flush()
            session.flush()

    def consume(number: int) -> None:
        with queue.session() as session:
            while item := session.dequeue(timeout=SECONDS):
                if item == b"stop":
                    session.flush()
                    return
                if len(seen[number]) % 7 == 3 and item[-1:] in b"05":
                    session.rollback()  # and take it again
                    item = session.dequeue(timeout=SECONDS)
                    assert item is not None
                    if item == b"stop":
                        session.flush()
                        return
                session.flush()
                seen[number].append(item)

    with ThreadPoolExecutor(8) as pool:
        consumers = [pool.submit(consume, number) for number in range(3)]
        done = [pool.submit(produce, number) for number in range(producers)]
        for each in done:
            each.result(SECONDS)
        wait_for(lambda: len(queue) == 0)
        put(queue, b"stop", b"stop", b"stop")
        for each in consumers:
            each.result(SECONDS)
    flat = [item for items in seen for item in items]
    assert sorted(flat) == sorted(b"%d %d" % (p, n) for p in range(producers) for n in range(count))
    assert len(queue) == 0


def test_the_leader_follows_up_for_its_group(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that led a group follows it up, once for the whole group."""
    queue = open_queue()
    put(queue, b"first")
    before, followed = queue.stats(), []
    follow_up = OpenQueue.follow_up

    def counted(group: OpenQueue) -> None:
        followed.append(threading.get_ident())
        follow_up(group)

    monkeypatch.setattr(OpenQueue, "follow_up", counted)
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(put, queue, b"%d" % number) for number in range(200)]:
            future.result(SECONDS)
    after = queue.stats()
    assert after.transactions - before.transactions == 200
    assert len(followed) == after.groups - before.groups
    with queue.session() as session:
        session.enqueue(b"one")
        session.flush()
        assert followed[-1] == threading.get_ident()


def test_waiting_wakes_on_a_commit(open_queue: QueueFactory) -> None:
    """A waiting consumer gets an item as soon as it is committed, with and without a timeout."""
    queue = open_queue()
    for timeout in (None, SECONDS):
        with ThreadPoolExecutor(1) as pool, queue.session() as session:
            waiting = pool.submit(session.dequeue, timeout)
            wait_for(lambda: queue._open_queue._waiters.count == 1)  # type: ignore[union-attr]
            put(queue, b"x")
            assert waiting.result(SECONDS) == b"x"
            session.flush()


def test_waiting_wakes_on_a_rollback(open_queue: QueueFactory) -> None:
    """A waiting consumer gets an item that another session releases."""
    queue = open_queue()
    put(queue, b"x")
    with ThreadPoolExecutor(1) as pool, queue.session() as holder, queue.session() as session:
        assert holder.dequeue() == b"x"
        waiting = pool.submit(session.dequeue_many, 5, None)
        wait_for(lambda: queue._open_queue._waiters.count == 1)  # type: ignore[union-attr]
        holder.rollback()
        assert waiting.result(SECONDS) == [b"x"]
        session.rollback()


def test_waiting_ends_in_time(open_queue: QueueFactory) -> None:
    """A wait without an item ends after its timeout, with an empty result."""
    queue = open_queue()
    with queue.session() as session:
        assert session.dequeue(timeout=0.01) is None
        assert session.dequeue_many(3, timeout=0.01) == []


def test_closing_wakes_who_waits(open_queue: QueueFactory) -> None:
    """Closing the queue ends every wait with ``ClosedError``."""
    queue = open_queue()
    with ThreadPoolExecutor(3) as pool:
        sessions = [queue.session() for _ in range(3)]
        waiting = [pool.submit(session.dequeue, None) for session in sessions]
        wait_for(lambda: queue._open_queue._waiters.count == 3)  # type: ignore[union-attr]
        queue.close()
        for each in waiting:
            with pytest.raises(ClosedError):
                each.result(SECONDS)


def test_closing_while_others_flush(open_queue: QueueFactory) -> None:
    """``close`` waits for the group that is being written; a transaction in line behind it gets ``ClosedError``."""
    gate = Gate()
    queue = open_queue(disk=replace(DISK, failpoint=gate.failpoint))
    gate.armed = True
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(put, queue, b"first")
        assert gate.reached.wait(SECONDS)
        second = pool.submit(put, queue, b"second")
        group = queue._open_queue
        assert group is not None
        wait_for(lambda: len(group._group_commit) == 1)
        closing = pool.submit(queue.close)
        wait_for(lambda: queue.closed)
        gate.go_on.set()
        first.result(SECONDS)
        with pytest.raises(ClosedError):
            second.result(SECONDS)
        closing.result(SECONDS)
    assert drain(open_queue()) == [b"first"]


def test_one_too_large_for_the_disk_fails_alone(open_queue: QueueFactory) -> None:
    """Only those transactions of a group fail that find no room on the disk; dequeues never do."""
    gate = Gate()
    limit = [10**9]

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if sum(map(len, buffers)) > limit[0] and not flags:
            raise OSError(28, "No space left on device")
        return DISK.pwritev(fd, buffers, offset, flags)

    queue = open_queue(disk=replace(DISK, failpoint=gate.failpoint, pwritev=pwritev), inline_bytes=1000)
    put(queue, b"old")
    gate.armed = True

    def take() -> bytes | None:
        with queue.transaction() as session:
            return session.dequeue()

    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(put, queue, b"first")
        assert gate.reached.wait(SECONDS)
        limit[0] = 4096  # a page, which a new generation of the log begins with
        group = queue._open_queue
        assert group is not None
        large = pool.submit(put, queue, b"x" * 5000)
        small = pool.submit(put, queue, b"small")
        taken = pool.submit(take)
        wait_for(lambda: len(group._group_commit) == 3)
        gate.go_on.set()
        first.result(SECONDS)
        small.result(SECONDS)
        assert taken.result(SECONDS) == b"old"
        with pytest.raises(DiskFullError):
            large.result(SECONDS)
    assert drain(queue) == [b"first", b"small"]


def test_broken_group_breaks_all_of_it(open_queue: QueueFactory) -> None:
    """If the write of a frame fails, its transaction and those in line behind it get ``BrokenQueueError``."""
    gate = Gate()
    failing = [False]

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if flags and failing[0]:
            raise OSError(5, "Input/output error")
        return DISK.pwritev(fd, buffers, offset, flags)

    queue = open_queue(disk=replace(DISK, failpoint=gate.failpoint, pwritev=pwritev))
    gate.armed = True
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(put, queue, b"first")
        assert gate.reached.wait(SECONDS)
        group = queue._open_queue
        assert group is not None
        rest = [pool.submit(put, queue, b"x") for _ in range(2)]
        wait_for(lambda: len(group._group_commit) == 2)
        failing[0] = True
        gate.go_on.set()
        for each in [first, *rest]:
            with pytest.raises(BrokenQueueError, match="open it again"):
                each.result(SECONDS)


def test_a_broken_queue_is_not_usable(open_queue: QueueFactory) -> None:
    """Each call of a session that has work raises from the moment on when the store breaks."""
    queue = open_queue()
    put(queue, b"item")
    core = queue._open()
    with queue.session() as session:
        assert session.dequeue() == b"item"
        before = core.is_usable
        core._store.fail(OSError(5, "failed by a test"))
        assert (before, core.is_usable) == (True, False)
        for call in (
            session.dequeue,
            session.flush,
            lambda: session.enqueue(b"x"),
            lambda: session.enqueue_many([b"x"]),
        ):
            with pytest.raises(BrokenQueueError, match="failed by a test"):
                call()


def test_a_queue_that_breaks_as_it_is_opened_is_not_usable(tmp_path: Path) -> None:
    """A store that is broken before the open queue has it is not taken for usable."""

    def open_broken(guards: Guards) -> Store:
        store = open_store(DISK, str(tmp_path / "queue"), Settings(), guards, create=True)
        store.fail(OSError(5, "failed by a test"))
        return store

    core = OpenQueue(open_broken)
    assert not core.is_usable
    with Session(SessionParts(core)) as session, pytest.raises(BrokenQueueError, match="failed by a test"):
        session.enqueue(b"x")
    core.close("closed by a test")


@pytest.mark.parametrize("end", [PersistentQueue.close, crash])
def test_a_closed_queue_is_not_usable(open_queue: QueueFactory, end: Callable[[PersistentQueue], None]) -> None:
    """A queue that was closed or disowned takes no more calls."""
    queue = open_queue()
    core, session = queue._open(), queue.session()
    end(queue)
    assert not core.is_usable
    with pytest.raises(ClosedError):
        session.enqueue(b"x")


class Interruption(BaseException):
    """A stand-in for ``KeyboardInterrupt``, which threads of a test cannot get."""


def test_interrupted_leader_hands_on(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a leader is interrupted before it has written anything, its followers commit without it."""
    queue = open_queue()
    group = queue._open_queue
    assert group is not None
    entered, go_on = threading.Event(), threading.Event()
    commit = Store.commit
    interrupted: list[bool] = []

    def interrupt(store: Store, transactions: list[Transaction]) -> None:
        if not interrupted:
            interrupted.append(True)
            entered.set()
            assert go_on.wait(SECONDS)
            raise Interruption
        commit(store, transactions)

    monkeypatch.setattr(Store, "commit", interrupt)
    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(put, queue, b"leader")
        assert entered.wait(SECONDS)
        rest = [pool.submit(put, queue, b"follower") for _ in range(2)]
        wait_for(lambda: len(group._group_commit) == 2)
        go_on.set()
        with pytest.raises(Interruption):
            leader.result(SECONDS)
        for each in rest:
            each.result(SECONDS)
    assert drain(queue) == [b"follower"] * 2


@pytest.mark.parametrize("step", ["commit.1", "commit.2", "commit.3", "commit.4"])
def test_interrupted_in_the_middle_of_a_commit(open_queue: QueueFactory, step: str) -> None:
    """An interrupted flush is undone or finished; the queue and the session go on, and nothing is doubled."""
    armed = [False]

    def failpoint(name: str) -> None:
        if armed[0] and name.startswith(step):
            armed[0] = False
            raise Interruption

    queue = open_queue(disk=replace(DISK, failpoint=failpoint))
    put(queue, b"a")
    with queue.session() as session:
        session.enqueue(b"b")
        armed[0] = True
        with pytest.raises(Interruption):
            session.flush()
        session.enqueue(b"c")
        assert session.flush()
        assert queue.peek(9) == [b"a", b"b", b"c"]
        assert session.dequeue() == b"a"
        armed[0] = True
        with pytest.raises(Interruption):
            session.flush()
        assert session.flush()
    assert (len(queue), queue.stats().held) == (2, 0)
    queue.close()
    assert drain(open_queue()) == [b"b", b"c"]


def interrupted_behind_the_commit(queue: PersistentQueue, call: Callable[[], object]) -> None:
    """Make the call, and interrupt it when its transaction is durable and the session does not know that yet."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interruption):
        patch.setattr(queue._open(), "after_commit", Mock(side_effect=Interruption))
        call()


def test_what_was_committed_is_not_given_back(open_queue: QueueFactory) -> None:
    """Items stay consumed if the flush is interrupted behind its commit: a rollback does not give them back."""
    queue = open_queue()
    put(queue, b"a", b"b", b"c")
    with queue.session() as session:
        assert session.dequeue() == b"a"
        interrupted_behind_the_commit(queue, session.flush)
    assert drain(queue) == [b"b", b"c"]
    put(queue, b"d")
    interrupted_behind_the_commit(queue, queue.clear)
    assert (queue.stats().ready, queue.stats().held, queue.stats().given_back) == (0, 0, 0)


def test_a_session_goes_on_behind_an_interrupted_commit(open_queue: QueueFactory) -> None:
    """Items that are enqueued after an interrupted flush, which was committed, are committed once, by the next
    flush."""
    queue = open_queue()
    with queue.session() as session:
        session.enqueue(b"a")
        interrupted_behind_the_commit(queue, session.flush)
        session.enqueue(b"b")
        assert session.flush()
        assert session.flush()
        assert drain(queue) == [b"a", b"b"]
        session.enqueue(b"c")
        session.flush(marker=("m", 1))
        assert session.dequeue() == b"c"
        interrupted_behind_the_commit(queue, lambda: session.flush(marker=("m", 1)))
        assert queue.peek() == [b"c"]
        assert session.flush(), "it was skipped and rolled back: there is nothing to flush"


@pytest.mark.parametrize("times", range(1, 9))
def test_interrupted_around_the_mutex(open_queue: QueueFactory, times: int) -> None:
    """A thread that is interrupted when it has just released the mutex leaves no lead and no place in a line behind."""
    queue = open_queue(max_items=1, full="block")
    put(queue, b"a")
    group = queue._open()
    mutex, this_thread, left = group.mutex, threading.get_ident(), [times]

    class Interrupting:
        """The mutex, for code that takes it in a ``with`` block."""

        acquire, release, locked = mutex.acquire, mutex.release, mutex.locked

        def __enter__(self) -> None:
            mutex.acquire()

        def __exit__(self, *_: object) -> None:
            mutex.release()
            left[0] -= threading.get_ident() == this_thread
            if left[0] == 0 and threading.get_ident() == this_thread:
                raise Interruption

    with queue.session() as session:
        session.enqueue(b"b")
        group.mutex = group._group_commit._mutex = group._room_waiters._mutex = Interrupting()  # type: ignore[assignment]
        with pytest.raises(Interruption):
            session.flush(timeout=0.01)
        group.mutex = group._group_commit._mutex = group._room_waiters._mutex = mutex
        session.rollback()
    assert queue.stats().waiting == 0
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(drain, queue).result(SECONDS) == [b"a"]
        pool.submit(put, queue, b"c").result(SECONDS)
    assert drain(queue) == [b"c"]


def interrupt_when_waiting(queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the next thread that waits in line for its turn."""
    from persistentqueue.runtime import group_commit as module

    class Turn:
        """A lock whose first wait is interrupted."""

        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.acquired = 0

        def acquire(self) -> None:
            self.acquired += 1
            if self.acquired == 2:
                raise Interruption
            self.lock.acquire()

        def release(self) -> None:
            self.lock.release()

    original = module._Member.__init__

    def init(member: Any, transactions: Sequence[Transaction]) -> None:
        original(member, transactions)
        member.turn = Turn()
        member.turn.acquire()

    monkeypatch.setattr(module._Member, "__init__", init)


def test_interrupted_follower_leaves_the_line(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that is interrupted in line commits nothing, and its session can flush again."""
    gate = Gate()
    queue = open_queue(disk=replace(DISK, failpoint=gate.failpoint))
    gate.armed = True
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(put, queue, b"first")
        assert gate.reached.wait(SECONDS)
        interrupt_when_waiting(queue, monkeypatch)
        with queue.session() as session:
            session.enqueue(b"second")
            with pytest.raises(Interruption):
                session.flush()
            monkeypatch.undo()
            gate.go_on.set()
            first.result(SECONDS)
            session.flush()
    assert drain(queue) == [b"first", b"second"]


@pytest.mark.parametrize("later", ["spill", "several"])
def test_the_refusal_of_an_interrupted_flush_is_forgotten(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    """A later call of the session raises no refusal that belongs to a flush which was interrupted."""
    queue, other = open_queue(max_items=1), open_queue("other")
    line = queue._open()._group_commit
    hand_on = line._hand_on

    def interrupted() -> None:
        hand_on()
        raise KeyboardInterrupt

    with transaction(queue, other) as (session, second):
        session._spill_bytes = 1
        session.enqueue_many([b"a", b"b"])
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(line, "_hand_on", interrupted)
            session.flush()
        if later == "spill":
            session.enqueue(b"c")
            session.rollback()
        else:
            monkeypatch.setattr(queue._open()._store.limits, "max_items", 2)
            second.enqueue(b"d")
            assert session.flush()
    assert (len(queue), len(other)) == ((0, 0) if later == "spill" else (2, 1))

"""Held items go from an owner that leaves to the next one, and their sessions go on."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from persistentqueue import (
    HoldLostError,
    NoThreadError,
    NotServedError,
    PersistentQueue,
    QueueNotFoundError,
    SessionLostError,
    SubscriptionNotFoundError,
    connect,
    delete_queue,
    repair,
    transaction,
)
from persistentqueue.compat import Queue
from persistentqueue.runtime.session_state import SessionState, flush_jointly, let_go
from persistentqueue.serving import away, calls, server, service
from persistentqueue.serving.away import Away
from persistentqueue.serving.handover import encode_holds
from persistentqueue.serving.protocol import Flush, Message
from persistentqueue.storage.layout import HOLDS_NAME
from persistentqueue.system.byte_locks import LockFile
from persistentqueue.workers import SharedQueue, WorkerSession
from persistentqueue.workers.link import Link

from ..support.limits import SECONDS
from ..support.queues import log_file, wait_for

AT_ONCE: dict[str, Any] = {"grace_seconds": 0.0}


def put(queue: SharedQueue[bytes], *items: bytes) -> None:
    """Enqueue the items in one flush."""
    with queue.transaction() as session:
        session.enqueue_many(items)


@contextmanager
def two(path: Path, **settings: Any) -> Iterator[tuple[SharedQueue[bytes], SharedQueue[bytes]]]:
    """Connect twice: the first one owns, and leaves without a grace."""
    with connect(path, "q", grace_seconds=0.0, **settings) as first, connect(path, "q", **settings) as second:
        yield first, second


def holding(queue: SharedQueue[bytes], *items: bytes) -> WorkerSession[bytes]:
    """Return a session that holds these items, which are the first ones."""
    session = queue.session()
    assert isinstance(session, WorkerSession)
    assert session.dequeue_many(len(items)) == list(items)
    return session


def test_a_session_goes_on_at_the_next_owner(tmp_path: Path) -> None:
    """It keeps its items, which no other session gets, takes more, and flushes all of them."""
    with two(tmp_path) as (first, second):
        put(first, b"1", b"2", b"3", b"4")
        with holding(second, b"1", b"2") as session:
            first.close()
            with second.session() as other:
                assert other.dequeue() == b"3"
                assert second.owns
                assert session.dequeue_many(9) == [b"4"]
                session.enqueue(b"5")
                assert session.flush() is True
                other.rollback()
        assert second.peek(9) == [b"3", b"5"]


def test_a_session_goes_on_over_several_owners(tmp_path: Path) -> None:
    """Also at an owner that it has never called."""
    with ExitStack() as stack:
        owners = [stack.enter_context(connect(tmp_path, "q", **AT_ONCE)) for _ in range(4)]
        put(owners[0], b"1", b"2")
        session = stack.enter_context(holding(owners[3], b"1"))
        for owner, following in pairwise(owners):
            assert owner.owns
            owner.close()
            if following is not owners[3]:
                assert following.peek(9) == [b"2"]
        assert session.flush() is True
        assert owners[3].owns
        assert owners[3].peek(9) == [b"2"]


@pytest.mark.parametrize("end", ["rollback", "close", "drop", "put back"])
def test_what_ends_without_an_owner_goes_back(tmp_path: Path, end: str) -> None:
    """A session that ends while nothing owns the queue needs no owner for that: the next one gives its items back."""
    with two(tmp_path) as (first, second):
        put(first, b"1", b"2")
        held: list[WorkerSession[bytes]] = [holding(second, b"1")]
        first.close()
        if end == "rollback":
            held[0].rollback()
        elif end == "close":
            held[0].close()
        elif end == "put back":
            held[0].put_back(1)
        else:
            held.clear()
        assert second.peek(9) == [b"1", b"2"]
        for session in held:
            session.close()


def test_a_rollback_behind_the_hand_over_is_seen_soon(tmp_path: Path) -> None:
    """The next owner has the items on hold. It gives them back, in order, when their session has ended."""
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(connect(tmp_path, "q", **AT_ONCE)) for _ in range(3))
        put(first, b"1", b"2")
        session = stack.enter_context(holding(third, b"1"))
        first.close()
        assert second.peek(9) == [b"2"]
        assert second.owns
        (seen,) = (each for each in second.connections() if each.held)
        assert (seen.held, seen.process, seen.session) == (1, os.getpid(), session.name)
        with second.session() as waiting:
            assert waiting.dequeue() == b"2"
            session.rollback()
            assert waiting.dequeue(timeout=None) == b"1"
            assert waiting.flush() is True


def test_an_item_that_was_put_to_the_owner_is_lost(tmp_path: Path) -> None:
    """Then the session begins anew, and what it held is ready at once."""
    with two(tmp_path) as (first, second):
        put(first, b"1")
        with holding(second, b"1") as session:
            session.enqueue_many([bytes(1 << 20)] * 6)
            first.close()
            assert second.peek(9) == [b"1"]
            with pytest.raises(SessionLostError):
                session.flush()


def test_a_flush_that_waits_for_room_goes_on(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    """It is made again at the next owner, with the items that the session holds and enqueues."""
    settings: dict[str, Any] = {"max_items": 2, "full": "block"}
    with two(tmp_path, **settings) as (first, second):
        put(first, b"1", b"2")
        with holding(second, b"1") as session:
            session.enqueue_many([b"3", b"4"])
            flushing = threads.submit(session.flush)
            server = first._owner.here()._server  # type: ignore[union-attr]
            wait_for(lambda: bool(server._service._blocked))  # type: ignore[union-attr]
            first.close()
            with second.session() as other:
                assert other.dequeue(timeout=None) == b"2"
                assert other.flush() is True
            assert flushing.result(SECONDS) is True
        assert second.peek(9) == [b"3", b"4"]


def test_the_time_of_a_flush_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that is made again at the next owner waits there for what is left of its timeout."""
    with two(tmp_path, max_items=9, full="block") as (first, second), second.session() as session:
        assert isinstance(session, WorkerSession)
        session.enqueue(b"1")
        now, waits, called = [0.0], list[int](), Link.call
        session._now = lambda: now[0]

        def call(link: Link, message: Message, before: bytes = b"") -> Message:
            """Let the first owner leave before it gets the flush, four seconds later."""
            if isinstance(message, Flush):
                waits.append(message.wait_milliseconds)
                if len(waits) == 1:
                    now[0] += 4
                    first.close()
            return called(link, message, before)

        monkeypatch.setattr(Link, "call", call)
        assert session.flush(timeout=10.0) is True
        assert waits == [10_000, 6_000]


def test_a_call_that_finds_no_owner_gives_its_items_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller did not get those that the call had taken: they go back, and the session keeps the others."""
    monkeypatch.setattr(service, "TAKEN_BYTES", 10)  # so each answer has room for one of the items
    with two(tmp_path, lock_timeout=0.0) as (first, second):
        put(first, b"1", b"2" * 10, b"3" * 10)
        with holding(second, b"1") as session:
            link = session._link
            assert link is not None

            def last(message: Any) -> Any:
                """Make the call, and let the owner leave behind its answer."""
                monkeypatch.delattr(link, "call")
                answer = link.call(message)
                first.close()
                alone.append(stack.enter_context(PersistentQueue(tmp_path, "q")))
                return answer

            alone: list[PersistentQueue] = []
            monkeypatch.setattr(link, "call", last, raising=False)
            with ExitStack() as stack, pytest.raises(NotServedError):
                session.dequeue_many(2)
            assert alone
            assert session.held == 1
            assert session.flush() is True
        assert second.peek(9) == [b"2" * 10, b"3" * 10]


def test_a_killed_owner_hands_nothing_over(tmp_path: Path) -> None:
    """A session that held items at an owner that was killed is told so by the next one."""
    program = (
        "import sys, time; from persistentqueue import PersistentQueue\n"
        "queue = PersistentQueue(sys.argv[1], 'q', serve=True)\n"
        "with queue.transaction() as session: session.enqueue(b'1')\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout is not None
            owner.stdout.readline()
            with connect(tmp_path, "q") as shared, holding(shared, b"1") as session:
                owner.kill()
                owner.wait()
                with pytest.raises(SessionLostError, match="held 1 item"):
                    session.flush()
                assert session.dequeue() == b"1"
                assert session.flush() is True
        finally:
            owner.kill()


@pytest.mark.parametrize("when", ["early", "late", "late, and nothing wakes the owner"])
def test_a_worker_that_is_killed_meanwhile_gives_its_items_back(tmp_path: Path, when: str) -> None:
    """The kernel frees its lock, before the next owner looks or behind that."""
    program = (
        "import sys, time; from persistentqueue import connect\n"
        "session = connect(sys.argv[1], 'q').session()\n"
        "print(session.dequeue(timeout=None), flush=True); time.sleep(600)"
    )
    with ExitStack() as stack:
        first: SharedQueue[bytes] = stack.enter_context(connect(tmp_path, "q", **AT_ONCE))
        put(first, b"1", b"2")
        command = [sys.executable, "-c", program, str(tmp_path)]
        worker = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        stack.callback(worker.kill)
        assert worker.stdout is not None
        worker.stdout.readline()
        first.close()
        second: SharedQueue[bytes] | PersistentQueue[bytes]
        if when == "late, and nothing wakes the owner":
            second = stack.enter_context(PersistentQueue(tmp_path, "q", serve=True))
        else:
            second = stack.enter_context(connect(tmp_path, "q"))
        if when != "early":
            assert second.peek(9) == [b"2"]
        worker.kill()
        worker.wait()
        wait_for(lambda: second.peek(9) == [b"1", b"2"])


@pytest.mark.parametrize("lack", ["a thread", "a socket"])
def test_an_owner_that_cannot_serve_leaves_the_holds_in_place(
    tmp_path: Path, lack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An opening that fails behind the take-over of the holds leaves them to the next one."""
    with connect(tmp_path, "q", **AT_ONCE) as first, connect(tmp_path, "q", serve="never") as second:
        put(first, b"1", b"2")
        with holding(second, b"1") as session:
            first.close()

            def fail(*_: object, **__: object) -> None:
                raise RuntimeError("can't start new thread") if lack == "a thread" else OSError("no socket")

            with monkeypatch.context() as patched, pytest.raises((NoThreadError, OSError)):
                if lack == "a thread":
                    patched.setattr(Thread, "start", fail)
                else:
                    patched.setattr(server, "listen", fail)
                PersistentQueue(tmp_path, "q", serve=True)
            with PersistentQueue(tmp_path, "q", serve=True) as third:
                assert third.peek(9) == [b"2"]
                assert session.flush() is True
                assert third.peek(9) == [b"2"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_a_worker_of_root_shuts_no_one_out(tmp_path: Path) -> None:
    """The file of the holds belongs to the user of the directory, also if a process of root has made it."""
    directory = tmp_path / "q"
    directory.mkdir()
    os.chown(directory, 4711, 4712)
    locks = LockFile(str(directory), HOLDS_NAME)
    assert locks.lock(0)
    locks.abandon()
    found = (directory / HOLDS_NAME).stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (4711, 4712, 0o600)


@pytest.mark.parametrize("is_late", [False, True])
def test_the_time_of_a_hold_begins_anew(tmp_path: Path, is_late: bool) -> None:
    """The next owner counts ``hold_seconds`` from the time when it took over, also without a word of the session."""
    hold_seconds = 1.5 if is_late else 30.0
    with (
        connect(tmp_path, "q", **AT_ONCE) as first,
        connect(tmp_path, "q") as second,
        connect(tmp_path, "q", hold_seconds=hold_seconds) as third,
    ):
        put(first, b"1")
        with holding(third, b"1") as session:
            first.close()
            if is_late:
                wait_for(lambda: second.peek(9) == [b"1"])
                with pytest.raises(HoldLostError):
                    session.flush()
                session.rollback()
            else:
                assert second.peek(9) == []
                session.extend()
                assert session.flush() is True


def test_an_owner_that_does_not_serve_leaves_the_holds_in_place(tmp_path: Path) -> None:
    """The session finds no owner, and goes on at a later one, if its items are still there."""
    with two(tmp_path, lock_timeout=0.0) as (first, second):
        put(first, b"1", b"2")
        with holding(second, b"1") as session:
            first.close()
            with PersistentQueue(tmp_path, "q") as alone:
                assert alone.peek(9) == [b"1", b"2"]
                with pytest.raises(NotServedError):
                    session.flush()
            assert session.flush() is True
        assert second.peek(9) == [b"2"]


def test_items_that_another_process_has_consumed_are_lost(tmp_path: Path) -> None:
    """An owner that serves no process may hand them out: then the session is told that it has lost them."""
    with two(tmp_path) as (first, second):
        put(first, b"1", b"2")
        with holding(second, b"1", b"2") as session:
            first.close()
            with PersistentQueue(tmp_path, "q") as alone, alone.transaction() as mine:
                assert mine.dequeue() == b"1"
            with pytest.raises(SessionLostError, match="held 2 items"):
                session.flush()
            assert session.dequeue_many(9) == [b"2"]
            assert session.flush() is True


def test_a_subscription_keeps_its_holds(tmp_path: Path) -> None:
    """A hold belongs to its subscription, whose name may be a long one."""
    name = "subscription of a very long name " * 9
    with two(tmp_path, fan_out=True) as (first, second):
        first.subscribe("other")
        subscription = second.subscribe(name)
        put(first, b"1", b"2")
        with subscription.session() as session:
            assert session.dequeue() == b"1"
            first.close()
            assert len(subscription) == 1
            assert session.dequeue() == b"2"
            assert session.flush() is True
        assert [len(second.subscribe(each)) for each in ("other", name)] == [2, 0]


def test_a_hold_of_a_subscription_that_was_removed_is_lost(tmp_path: Path) -> None:
    """Its session gets the same error as without a change of owners."""
    with two(tmp_path, fan_out=True) as (first, second):
        first.subscribe("other")
        subscription = second.subscribe("mine")
        put(first, b"1")
        with subscription.session() as session:
            assert session.dequeue() == b"1"
            first.close()
            with PersistentQueue(tmp_path, "q") as alone:
                alone.unsubscribe("mine")
            with pytest.raises(SubscriptionNotFoundError, match="mine"):
                session.flush()
            session.rollback()


def test_attempts_are_counted_once(tmp_path: Path) -> None:
    """A hand-over is no delivery attempt: an item at its last one may be consumed, rejected or lost as before."""
    settings: dict[str, Any] = {"max_attempts": 2, "dead_letter": "dead", "retry_delay_seconds": 0.0}
    with two(tmp_path, **settings) as (first, second):
        put(first, b"1", b"2")
        with first.session() as once:
            assert once.dequeue() == b"1"
            once.rollback()
        with holding(second, b"1") as session:
            first.close()
            assert session.dequeue() is None  # it is at its last attempt, and comes alone
            session.reject(b"1", "no")
            assert session.flush() is True
        assert second.dead_letters is not None
        assert len(second.dead_letters) == 1
        assert second.peek(9) == [b"2"]


def test_a_hand_over_is_no_rollback(tmp_path: Path) -> None:
    """No delay begins, and no other session of the owner that leaves gets the items."""
    settings: dict[str, Any] = {"retry_delay_seconds": 3600.0}
    with two(tmp_path, **settings) as (first, second):
        put(first, b"1")
        with holding(second, b"1") as session:
            first.close()
            assert session.dequeue() is None
            assert session.flush() is True
        assert second.sizes() == (0, 0)


def test_a_session_that_comes_back_keeps_its_time(tmp_path: Path) -> None:
    """The time of its hold goes on, and ends, when it has connected to the next owner."""
    with (
        connect(tmp_path, "q", **AT_ONCE) as first,
        connect(tmp_path, "q") as second,
        connect(tmp_path, "q", hold_seconds=1.5) as third,
    ):
        put(first, b"1")
        with holding(third, b"1") as session:
            first.close()
            assert session.dequeue() is None
            wait_for(lambda: second.peek(9) == [b"1"])
            with pytest.raises(HoldLostError):
                session.flush()
            session.rollback()


def test_a_delivery_is_taken_back_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that leaves behind the effect of that call, and before its answer, does not make it count twice."""
    settings: dict[str, Any] = {"max_attempts": 9, "dead_letter": "dead"}
    with two(tmp_path, **settings) as (first, second):
        put(first, b"1")
        with first.session() as once:
            assert once.dequeue() == b"1"
            once.rollback()
        with holding(second, b"1") as session:
            link = session._link
            assert link is not None

            def lost(message: Any) -> Any:
                """Make the call, and lose its answer with the owner."""
                Link.call(link, message)
                link.end()
                first.close()
                raise link._lost()

            monkeypatch.setattr(link, "call", lost, raising=False)
            session._uncount(1)
            assert session.dequeue() is None
            owner = second._owner.here()
            assert owner is not None
            assert owner._open().attempts(0, 0) == 1
            assert session.flush() is True


def test_a_rejection_at_the_owner_is_not_handed_over(tmp_path: Path) -> None:
    """The session is lost, and its item ready again."""
    settings: dict[str, Any] = {"max_attempts": 3, "dead_letter": "dead"}
    with two(tmp_path, **settings) as (first, second):
        put(first, b"1")
        with holding(second, b"1") as session:
            session.reject(b"1", "no")
            first.close()
            with pytest.raises(SessionLostError):
                session.flush()
        assert second.peek(9) == [b"1"]


def test_items_ahead_go_to_the_next_owner(tmp_path: Path) -> None:
    """A session with ``prefetch`` dequeues them there without a further call."""
    with connect(tmp_path, "q", **AT_ONCE) as first, connect(tmp_path, "q", prefetch=True) as second:
        put(first, b"1", b"2", b"3", b"4", b"5")
        with holding(second, b"1", b"2") as session:
            assert session.flush() is True
            assert session.dequeue() == b"3"
            first.close()
            assert second.peek(9) == [b"5"]
            assert session.dequeue() == b"4"
            assert session.flush() is True
        assert second.peek(9) == [b"5"]


def test_items_ahead_of_a_session_that_has_held_nothing_go_to_the_next_owner(tmp_path: Path) -> None:
    """Owners keep the items that a flush of enqueues alone has brought, also for a session that is new to them."""
    with (
        connect(tmp_path, "q", **AT_ONCE) as first,
        connect(tmp_path, "q", **AT_ONCE) as second,
        connect(tmp_path, "q", prefetch=True) as third,
        third.session() as session,
    ):
        for owner in (first, second):
            assert owner.peek() == []  # the next owner
            session.enqueue(b"1")
            session.flush()
            assert session.dequeue() == b"1"
            if owner is first:
                session.flush()
            owner.close()
        assert session.flush() is True
        assert len(third) == 0


def test_an_interrupted_dequeue_of_an_item_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that no caller got goes back, with those behind it: the session never consumes one for another."""
    with connect(tmp_path, "q", **AT_ONCE) as first, connect(tmp_path, "q", prefetch=True) as second:
        put(first, b"1", b"2", b"3", b"4", b"5", b"6")
        with holding(second, b"1", b"2", b"3") as session:
            assert session.flush() is True
            assert session.dequeue() == b"4"

            def interrupted(self: WorkerSession[bytes], *_: object) -> list[bytes]:
                """Take an item that is there, let the owner leave, and raise as a signal handler does."""
                items, self._ahead = self._ahead[:1], self._ahead[1:]
                self._held += len(items)
                first.close()
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(WorkerSession, "_take", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    session.dequeue()
            got = session.dequeue()
            assert got == b"5"
            assert session.flush() is True
            session.rollback()
        assert second.peek(9) == [b"6"]


def test_a_transaction_over_two_queues_goes_on(tmp_path: Path) -> None:
    """It takes from one queue, and puts into the other, with a change of owners in between."""
    with ExitStack() as stack:
        firsts = [stack.enter_context(connect(tmp_path, name, **AT_ONCE)) for name in "ab"]
        seconds = [stack.enter_context(connect(tmp_path, name)) for name in "ab"]
        put(firsts[0], b"1", b"2")
        with transaction(*seconds) as (a, b):
            assert a.dequeue() == b"1"
            for each in firsts:
                each.close()
            b.enqueue(b"result")
            assert a.dequeue() == b"2"
            assert b.flush() is True
        assert (seconds[0].peek(9), seconds[1].peek(9)) == ([], [b"result"])


def test_a_flush_of_two_queues_learns_of_the_next_owners(tmp_path: Path) -> None:
    """A flush whose owners have left since the last call is made at the next ones."""
    with ExitStack() as stack:
        firsts = [stack.enter_context(connect(tmp_path, name, **AT_ONCE)) for name in "ab"]
        seconds = [stack.enter_context(connect(tmp_path, name)) for name in "ab"]
        for each in firsts:
            put(each, b"1")
        with transaction(*seconds) as (a, b):
            assert (a.dequeue(), b.dequeue()) == (b"1", b"1")
            for each in firsts:
                each.close()
            assert a.flush() is True
        assert (seconds[0].peek(9), seconds[1].peek(9)) == ([], [])


def test_a_flush_of_two_queues_behind_a_hand_over(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that has found its sessions before one of them is handed over commits nothing in either queue. It is made
    again at the next owner."""
    has_begun, is_handed_over, has_ended = Event(), Event(), Event()

    def let_go_first(session: SessionState[Any]) -> None:
        """Hand the session over, and let the flush go on before the queue is closed."""
        let_go(session)
        is_handed_over.set()
        assert has_ended.wait(SECONDS)

    def flush_late(*arguments: Any) -> bool:
        """Flush the sessions behind the hand-over."""
        has_begun.set()
        assert is_handed_over.wait(SECONDS)
        try:
            return flush_jointly(*arguments)
        finally:
            has_ended.set()

    def move() -> None:
        """Move the item from the one queue to the other."""
        with (
            connect(tmp_path, "numbers", serve="never") as numbers,
            connect(tmp_path, "squares", serve="never") as squares,
            transaction(squares, numbers) as (putting, taking),
        ):
            putting.enqueue(taking.dequeue() or b"")

    with PersistentQueue(tmp_path, "squares", serve=True) as squares:
        with monkeypatch.context() as patched:
            patched.setattr(away, "let_go", let_go_first)
            patched.setattr(calls, "flush_jointly", flush_late)
            with PersistentQueue(tmp_path, "numbers", serve=True, grace_seconds=0.0) as numbers:
                with numbers.transaction() as session:
                    session.enqueue(b"2")
                moved = threads.submit(move)
                assert has_begun.wait(SECONDS)
        with PersistentQueue(tmp_path, "numbers", serve=True) as numbers:
            moved.result(SECONDS)
            assert (numbers.peek(2), squares.peek(2)) == ([], [b"2"])


def test_a_task_of_the_standard_queue_goes_on(tmp_path: Path) -> None:
    """An item that was got from ``compat.Queue`` can be finished at the next owner."""
    first: Queue[str] = Queue(tmp_path, shared=True)
    second: Queue[str] = Queue(tmp_path, shared=True)
    first.put("1")
    first.put("2")
    assert second.get() == "1"
    first.close()
    assert second.unfinished_tasks == 2
    second.task_done()
    assert second.get() == "2"
    second.task_done()
    second.join()
    second.close()


def test_a_forked_child_holds_nothing_for_its_parent(tmp_path: Path) -> None:
    """If the parent ends, its items go back, though its child lives on."""
    program = (
        "import os, sys, time; from persistentqueue import connect\n"
        "session = connect(sys.argv[1], 'q').session()\n"
        "item = session.dequeue(timeout=None)\n"
        "child = os.fork()\n"
        "if child: print(child, flush=True)\n"
        "time.sleep(600)"
    )
    with two(tmp_path) as (first, second):
        put(first, b"1")
        command = [sys.executable, "-W", "ignore", "-c", program, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            child = int(worker.stdout.readline())
            try:
                first.close()
                assert second.peek(9) == []
                worker.kill()
                worker.wait()
                wait_for(lambda: second.peek(9) == [b"1"])
            finally:
                worker.kill()
                os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("content", [b"", b"torn", b"PQ-HOLDS" + bytes(8), encode_holds([])[:-1]])
def test_a_file_that_cannot_be_read_has_no_holds(tmp_path: Path, content: bytes) -> None:
    """The next owner serves, and the session is told that it has lost its items."""
    with two(tmp_path) as (first, second):
        put(first, b"1")
        with holding(second, b"1") as session:
            first.close()
            (tmp_path / "q" / HOLDS_NAME).write_bytes(content)
            with pytest.raises(SessionLostError):
                session.flush()
            assert second.peek(9) == [b"1"]


def test_a_repaired_queue_has_no_holds_of_the_damaged_one(tmp_path: Path) -> None:
    """A repair without the log gives the queue a new identity: no session comes back for what it held before."""
    with two(tmp_path, inline_bytes=0) as (first, second):
        put(first, b"1", b"2")
        with holding(second, b"1") as session:
            first.close()
            log_file(tmp_path / "q").write_bytes(bytes(4096))
            assert repair(tmp_path / "q").without_log
            with PersistentQueue(tmp_path / "q", serve=True) as third:
                assert third.peek(9) == [b"1", b"2"]
                with pytest.raises(QueueNotFoundError):
                    session.flush()
                session.close()


@pytest.mark.parametrize("what", ["hard link", "symbolic link", "pipe", "directory", "nothing"])
def test_what_is_no_plain_file_is_left_alone(tmp_path: Path, what: str) -> None:
    """Nothing is read from it or written to it; queues work, and holds end with their owner."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    with two(tmp_path) as (first, second):
        path = tmp_path / "q" / HOLDS_NAME
        if what == "hard link":
            path.hardlink_to(precious)
        elif what == "symbolic link":
            path.symlink_to(precious)
        elif what == "pipe":
            os.mkfifo(path)
        elif what == "directory":
            path.mkdir()
        put(first, b"1")
        with holding(second, b"1") as session:
            if what == "nothing":
                path.unlink()
            first.close()
            with pytest.raises(SessionLostError):
                session.flush()
            assert session.dequeue() == b"1"
            assert session.flush() is True
    assert precious.read_bytes() == b"precious"


def test_a_full_disk_costs_the_holds_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An owner that cannot write the holds closes nevertheless, and says so in the log."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with two(tmp_path) as (first, second):
        put(first, b"1")
        with holding(second, b"1") as session:
            monkeypatch.setattr("persistentqueue.serving.handover.write_all", fail)
            first.close()
            assert "could not be left to the next owner" in caplog.text
            with pytest.raises(SessionLostError):
                session.flush()
        assert second.peek(9) == [b"1"]


def test_a_deleted_queue_leaves_no_file(tmp_path: Path) -> None:
    """The file of the holds is deleted with its queue."""
    with two(tmp_path) as (first, second):
        put(first, b"1")
        with holding(second, b"1") as session:
            assert session.flush() is True
    assert (tmp_path / "q" / HOLDS_NAME).exists()
    delete_queue(tmp_path, "q")
    assert not (tmp_path / "q").exists()


def test_holds_keep_their_thread_and_their_time(tmp_path: Path) -> None:
    """``connections`` of the next owner shows a session that is away, and counts its hold from the take-over."""
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(connect(tmp_path, "q", **AT_ONCE)) for _ in range(3))
        put(first, b"1")
        session = third.session("by name")
        assert session.dequeue() == b"1"
        first.close()
        (seen,) = (each for each in second.connections() if each.held)
        assert (seen.session, seen.thread, seen.waits, seen.is_lost) == ("by name", "MainThread", False, False)
        assert second.explain()
        session.close()


def test_an_idle_owner_does_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner looks at the locks of sessions only while one of them is away."""
    looks: list[int] = []
    gone = Away.gone

    def counted(self: Away, now: float) -> Any:
        """Count the looks that ask the kernel."""
        looks.append(1) if now >= self.looks_at else None
        return gone(self, now)

    monkeypatch.setattr(Away, "gone", counted)
    with two(tmp_path) as (first, second):
        put(first, b"1", b"2")
        with holding(second, b"1") as session:
            assert not looks
            first.close()
            assert session.flush() is True
            assert second.owns
            count = len(looks)
            put(second, b"3")
            assert session.dequeue() == b"2"
            assert session.flush() is True
            assert len(looks) <= count + 1

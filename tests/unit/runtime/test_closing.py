"""A queue that several callers close at once: each of them returns when the files are closed."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import PersistentQueue, ReentrantUseError, connect
from persistentqueue.runtime import closing
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import drain, put, wait_for

SECONDS = 30.0  # a limit for calls that should take milliseconds


class Gate:
    """A failpoint that stops the trim of a close until it is told to go on, and then makes a call."""

    def __init__(self, then: Callable[[], object] = bool) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.then = then
        self.armed = False
        self.disk: Disk = replace(DISK, failpoint=self.failpoint)

    def failpoint(self, name: str) -> None:
        """Stop once, before a generation of the log is written, if the gate is armed."""
        if name.startswith("trim.2") and self.armed:
            self.armed = False
            self.reached.set()
            assert self.go_on.wait(SECONDS)
            self.then()

    def close(self, pool: ThreadPoolExecutor, close: Callable[[], None]) -> Future[None]:
        """Begin to close a queue in another thread, and return when it is about to write."""
        self.armed = True
        closing = pool.submit(close)
        assert self.reached.wait(SECONDS)
        return closing

    def until_waiting(self, queue: PersistentQueue[Any], *others: Future[None]) -> None:
        """Return when all other closes of the queue wait for the one that is stopped here; fail if one has returned."""
        wait_for(lambda: len(ends(queue)) == len(others) or any(each.done() for each in others))
        if any(each.done() for each in others):
            self.go_on.set()
            pytest.fail("a close has returned, although another thread still closes the queue")


def ends(queue: PersistentQueue[Any]) -> list[threading.Lock]:
    """Return the locks of the threads that wait for another thread that closes the queue."""
    group = queue._open_queue
    assert group is not None and group._end is not None
    return group._end.waiting


def is_free(path: Path) -> bool:
    """Return whether the lock of the queue is free; its directory is opened and left as it is."""
    with (path / "lock").open("rb+") as file:
        return DISK.lock(file.fileno())


def test_a_second_close_waits_for_the_first(open_queue: QueueFactory, directory: Path) -> None:
    """A thread that closes a queue while another one does returns when the files are closed: the queue opens."""
    gate = Gate()
    queue = open_queue(disk=gate.disk)
    put(queue, b"x")
    with ThreadPoolExecutor(4) as pool:
        first = gate.close(pool, queue.close)
        others = [pool.submit(queue.close) for _ in range(3)]
        gate.until_waiting(queue, *others)
        assert not first.done() and not is_free(directory)
        gate.go_on.set()
        others[0].result(SECONDS)
        assert drain(open_queue(lock_timeout=0)) == [b"x"]
        for each in [first, *others]:
            each.result(SECONDS)
    queue.close()


def test_a_second_close_returns_after_the_error_of_the_first(open_queue: QueueFactory) -> None:
    """If the first close raises, the error is that of its caller: the second one returns, and the queue opens."""

    def fail() -> None:
        raise MemoryError("failed by a test")

    gate = Gate(fail)
    queue = open_queue(disk=gate.disk)
    put(queue, b"x")
    with ThreadPoolExecutor(2) as pool:
        first = gate.close(pool, queue.close)
        second = pool.submit(queue.close)
        gate.until_waiting(queue, second)
        gate.go_on.set()
        second.result(SECONDS)
        assert drain(open_queue(lock_timeout=0)) == [b"x"]
        with pytest.raises(MemoryError):
            first.result(SECONDS)


def test_an_interrupted_second_close_does_no_harm(open_queue: QueueFactory, directory: Path) -> None:
    """Ctrl-C ends the wait of a second close at once. The first one goes on, and a third one waits for it."""
    gate = Gate()
    queue = open_queue(disk=gate.disk)
    put(queue, b"x")
    main, is_interrupted = threading.get_ident(), threading.Event()

    def interrupt() -> None:
        wait_for(lambda: len(ends(queue)) == 1)
        # Without a GIL the signal may come between the last look for signals and the wait itself, which then goes on.
        while not is_interrupted.is_set():
            signal.pthread_kill(main, signal.SIGINT)
            is_interrupted.wait(5)

    with ThreadPoolExecutor(3) as pool:
        first = gate.close(pool, queue.close)
        interrupting = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            queue.close()
        is_interrupted.set()
        interrupting.result(SECONDS)
        assert not first.done() and not is_free(directory)
        third = pool.submit(queue.close)
        wait_for(lambda: len(ends(queue)) == 2)
        gate.go_on.set()
        third.result(SECONDS)
        assert drain(open_queue(lock_timeout=0)) == [b"x"]
        first.result(SECONDS)


def test_a_close_inside_a_close_is_refused(open_queue: QueueFactory) -> None:
    """Code that interrupts a close may not close that queue: it gets an error, and waits for nothing."""
    refused: list[ReentrantUseError] = []

    def again() -> None:
        with pytest.raises(ReentrantUseError) as caught:
            queue.close()
        refused.append(caught.value)

    gate = Gate(again)
    queue = open_queue(disk=gate.disk)
    put(queue, b"x")
    gate.armed = True
    gate.go_on.set()
    queue.close()
    assert len(refused) == 1
    assert drain(open_queue(lock_timeout=0)) == [b"x"]


def test_a_signal_handler_inside_a_close_is_refused(open_queue: QueueFactory) -> None:
    """A signal handler that runs during the close of the main thread gets an error, and waits for nothing."""
    refused: list[ReentrantUseError] = []
    handled = threading.Event()
    main = threading.get_ident()

    def handle(*_: object) -> None:
        if not handled.is_set():
            with pytest.raises(ReentrantUseError) as caught:
                queue.close()
            refused.append(caught.value)
            handled.set()

    def interrupt() -> None:
        # Several times: a signal that comes just before the main thread begins to wait is seen when the wait is over.
        for _ in range(int(SECONDS / 0.1)):
            signal.pthread_kill(main, signal.SIGALRM)
            if handled.wait(0.1):
                return
        raise AssertionError("no handler ran")

    gate = Gate(interrupt)
    queue = open_queue(disk=gate.disk)
    put(queue, b"x")
    before = signal.signal(signal.SIGALRM, handle)
    try:
        gate.armed = True
        gate.go_on.set()
        queue.close()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(refused) == 1
    assert drain(open_queue(lock_timeout=0)) == [b"x"]


def test_closes_inside_closes_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Two threads each close a queue, and each close is interrupted by code that closes the other one: both end."""
    gates = [Gate(), Gate()]
    queues = [call_on(gate.disk, PersistentQueue, tmp_path, name) for gate, name in zip(gates, "ab", strict=True)]
    for gate, other in zip(gates, reversed(queues), strict=True):
        gate.then = other.close
    with ThreadPoolExecutor(2) as pool:
        closes = []
        for gate, queue in zip(gates, queues, strict=True):
            put(queue, b"x")
            closes.append(gate.close(pool, queue.close))
        for gate in gates:
            gate.go_on.set()
        done, left = wait(closes, SECONDS)
        for queue in queues if left else ():  # a test that fails must not wait for ever
            for end in ends(queue):
                end.release()
    assert len(done) == 2 and not closing._CLOSING
    for each in done:
        each.result()
    for name in "ab":
        with PersistentQueue(tmp_path, name, lock_timeout=0) as queue:
            assert drain(queue) == [b"x"]


def test_closes_of_connected_queues_inside_closes_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Two threads each close a connected queue that this process owns, and each close is interrupted by code that
    closes the other one: both end."""
    gates = [Gate(), Gate()]
    queues = [call_on(gate.disk, connect, tmp_path, name) for gate, name in zip(gates, "ab", strict=True)]
    threads = []
    for gate, queue, other in zip(gates, queues, reversed(queues), strict=True):
        with queue.transaction() as session:
            session.enqueue(b"x")
        gate.then, gate.armed = other.close, True
        threads.append(threading.Thread(target=queue.close, daemon=True))
        threads[-1].start()
        assert gate.reached.wait(SECONDS)
    for gate in gates:
        gate.go_on.set()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert is_free(tmp_path / "a") and is_free(tmp_path / "b")


def test_a_close_inside_another_close_is_whole(tmp_path: Path) -> None:
    """Code that interrupts the close of a queue may close another one, which is closed on its return."""
    gate, inner = Gate(), PersistentQueue(tmp_path, "inner")
    free: list[bool] = []

    def close_inner() -> None:
        inner.close()
        free.append(is_free(tmp_path / "inner"))

    gate.then = close_inner
    outer = call_on(gate.disk, PersistentQueue, tmp_path, "outer")
    put(outer, b"x")
    gate.armed = True
    gate.go_on.set()
    outer.close()
    assert free == [True] and not closing._CLOSING


def test_callbacks_of_tickets_close_a_queue_that_is_closed(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callbacks of several tickets may all close the queue while another thread does. None waits for another one."""
    may_commit, closed = threading.Event(), list[bool]()

    def failpoint(name: str) -> None:
        assert not name.startswith("commit.3") or may_commit.wait(SECONDS)

    queue = open_queue(disk=replace(DISK, failpoint=failpoint))
    # The flushes come right behind the step of the close that waits for flushes.
    monkeypatch.setattr(queue._open(), "settle", lambda **_: None)
    both = threading.Barrier(2)

    def close(_: object) -> None:
        wait_for(lambda: queue.closed)
        both.wait(SECONDS)
        queue.close()
        closed.append(True)

    sessions = [queue.session() for _ in range(2)]
    for session in sessions:
        session.enqueue(b"x")
    tickets = [session.flush(wait=False) for session in sessions]
    for ticket in tickets:
        ticket.add_done_callback(close)  # before the flush has ended: later, this thread would call it
    may_commit.set()
    assert all(ticket.wait(SECONDS) for ticket in tickets)
    queue.close()
    assert closed == [True, True]
    assert drain(open_queue()) == [b"x", b"x"]


def test_a_child_that_is_forked_during_a_close_does_not_wait(open_queue: QueueFactory, directory: Path) -> None:
    """In a child that is forked while another thread closes the queue, ``close`` does nothing, and no lock is held."""
    gate = Gate()
    queue = open_queue(disk=gate.disk)
    put(queue, b"x")
    (closed, tell), (end, release) = os.pipe(), os.pipe()
    with ThreadPoolExecutor(1) as pool:
        first = gate.close(pool, queue.close)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # since 3.12 Python warns of a fork beside threads
            pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(int(SECONDS))
                queue.close()
                os.close(release)
                os.write(tell, b"x")
                os.read(end, 1)  # until the parent has opened the queue again
                os._exit(0)
            finally:
                os._exit(1)
        os.close(tell)
        assert os.read(closed, 1) == b"x"
        gate.go_on.set()
        first.result(SECONDS)
    assert drain(open_queue(lock_timeout=0)) == [b"x"]
    for fd in (closed, end, release):
        os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_second_close_waits_for_the_dead_letters(tmp_path: Path) -> None:
    """The dead-letter queue that a queue has opened is closed when any of the closes has returned."""
    gate = Gate()
    queue = call_on(gate.disk, PersistentQueue, tmp_path, "q", max_attempts=1, dead_letter="dead")
    put(queue.dead_letters, b"x")
    gate.armed = False
    with ThreadPoolExecutor(2) as pool:
        queue._open().close("closed by a test")
        first = gate.close(pool, queue.close)
        second = pool.submit(queue.close)
        gate.until_waiting(queue.dead_letters, second)
        gate.go_on.set()
        second.result(SECONDS)
        assert is_free(tmp_path / "dead")
        first.result(SECONDS)


def test_a_second_close_of_a_connected_queue_waits(tmp_path: Path) -> None:
    """Each close of a connected queue returns when this process has closed the queue and its dead letters."""
    gate = Gate()
    shared = call_on(gate.disk, connect, tmp_path, "q", max_attempts=1, dead_letter="dead")
    with shared.transaction() as session:
        session.enqueue(b"x")
    closed = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = gate.close(pool, shared.close)
        second = pool.submit(shared.close)
        second.add_done_callback(lambda _: closed.set())
        assert not closed.wait(0.05)  # a ``close`` that does not wait would nearly always return within this time
        assert not is_free(tmp_path / "q")
        gate.go_on.set()
        second.result(SECONDS)
        assert is_free(tmp_path / "q") and is_free(tmp_path / "dead")
        first.result(SECONDS)


def test_nothing_waits_when_the_interpreter_ends(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the interpreter the thread of the first close may have stopped: a second one returns."""
    gate = Gate()
    queue = open_queue(disk=gate.disk)
    put(queue, b"x")
    with ThreadPoolExecutor(2) as pool:
        first = gate.close(pool, queue.close)
        with monkeypatch.context() as patched:
            patched.setattr("sys.is_finalizing", partial(bool, 1))
            pool.submit(queue.close).result(SECONDS)
        assert not first.done()
        gate.go_on.set()
        first.result(SECONDS)

"""Shared sessions, interrupted calls and re-entrant calls: none of them hurts the files."""

from __future__ import annotations

import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from persistentqueue import (
    ClosedError,
    InvalidTransactionError,
    PersistentQueue,
    ReentrantUseError,
    Session,
    SessionInUseError,
    transaction,
)
from persistentqueue.core.state import State, StateError
from persistentqueue.errors import PersistentQueueError
from persistentqueue.interrupts.call_guard import BUSY, FREE
from persistentqueue.system.disk import DISK, PORTABLE, Disk
from tests.conftest import QueueFactory
from tests.crash import scenarios
from tests.crash.interrupts import Interruption
from tests.crash.scenarios import SCENARIOS
from tests.support.queues import drain, put, wait_for

SECONDS = 60.0


class Gate:
    """A failpoint that stops a thread at one step, until the thread may go on."""

    def __init__(self, step: str) -> None:
        self.step, self.armed = step, False
        self.reached, self.go_on = threading.Event(), threading.Event()

    def failpoint(self, name: str) -> None:
        if self.armed and name.startswith(self.step):
            self.armed = False
            self.reached.set()
            assert self.go_on.wait(SECONDS)


# --- row 1: two threads, one session ---------------------------------------------------------------------------------


def test_row_01_the_second_caller_is_refused_at_once(open_queue: QueueFactory) -> None:
    """While one thread flushes a session, each call of another thread raises ``SessionInUseError``, and the flush
    succeeds."""
    gate = Gate("commit.3")
    queue = open_queue(disk=replace(DISK, failpoint=gate.failpoint))
    put(queue, b"a", b"b")
    session = queue.session()
    assert session.dequeue() == b"a"
    session.enqueue(b"c")
    gate.armed = True
    calls: list[Callable[[], object]] = [
        session.flush,
        session.dequeue,
        session.rollback,
        session.close,
        session.put_back,
        lambda: session.enqueue(b"d"),
        lambda: session.enqueue_many([b"d"]),
        lambda: session._enqueue_cached(b"d"),
        lambda: session.dequeue_many(3),
        lambda: session.dequeue_cached(3),
        lambda: session.reject(b"a"),
        lambda: queue.flush_all([session]),
    ]
    with ThreadPoolExecutor(1) as pool:
        flush = pool.submit(session.flush)
        assert gate.reached.wait(SECONDS)
        for call in calls:
            with pytest.raises(SessionInUseError, match="one session for each thread"):
                call()
        gate.go_on.set()
        assert flush.result(SECONDS)
    session.close()
    assert drain(queue) == [b"b", b"c"]


def test_row_01_two_threads_loop_on_one_session(open_queue: QueueFactory) -> None:
    """Threads that dequeue, enqueue and flush on one session get named errors, and each acknowledged item is there
    once."""
    queue = open_queue()
    items = [b"%d" % number for number in range(300)]
    put(queue, *items)
    session = queue.session()
    taken: list[bytes] = []
    added: list[bytes] = []

    def consume() -> None:
        while True:
            try:
                item = session.dequeue()
                if item is None:
                    return
                taken.append(item)
                session.flush()
            except SessionInUseError:
                pass

    def produce(name: bytes) -> None:
        for number in range(100):
            item = name + b"%d" % number
            with suppress(SessionInUseError):
                session.enqueue(item)
                added.append(item)

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(consume), pool.submit(consume), pool.submit(produce, b"x"), pool.submit(produce, b"y")]
        for job in jobs:
            job.result(SECONDS)
    session.flush()
    session.close()
    left = drain(queue)
    queue.close()
    assert Counter(taken) + Counter(left) == Counter(items) + Counter(added)
    open_queue()


def test_row_01_no_frame_is_written_that_the_state_would_refuse(open_queue: QueueFactory) -> None:
    """A transaction that consumes a consumed item raises in its own caller. The others of its group are committed, and
    the log can be read."""
    queue = open_queue()
    put(queue, b"a", b"b", b"c")
    group = queue._open()
    with queue.session() as first, queue.session() as second, queue.session() as third:
        assert first.dequeue() == b"a"
        third.enqueue(b"d")
        work = second._open()
        work.runs = [(0, 1)]  # held by the first session: no public call can make this
        found = queue.flush_all([first, second, third])
        assert found[0] is True
        assert isinstance(found[1], InvalidTransactionError)
        assert found[2] is True
        with pytest.raises(InvalidTransactionError, match="roll the session back"):
            second.flush()
        first.rollback()
        second.rollback()
        third.rollback()
    assert group._store.broken is None
    queue.close()
    assert drain(open_queue()) == [b"b", b"c", b"d"]


@pytest.mark.parametrize("runs", [[(1, 1), (1, 1)], [(0, 9)], [(2, 1), (1, 2)]], ids=str)
def test_row_01_an_invalid_transaction_changes_nothing(open_queue: QueueFactory, runs: list[tuple[int, int]]) -> None:
    """A transaction is refused before anything is written if its runs overlap, or go beyond the last item."""
    queue = open_queue()
    put(queue, b"a", b"b", b"c")
    store = queue._open()._store
    log = store.generations.log
    assert log is not None
    before = log.end
    with queue.session() as session:
        session._open().runs = runs
        with pytest.raises(InvalidTransactionError) as caught:
            session.flush()
        session.rollback()
    assert caught.value.path == store.directory
    assert log.end == before
    assert drain(queue) == [b"a", b"b", b"c"]


# --- rows 3 and 4: interruptions -------------------------------------------------------------------------------------


def test_row_03_a_waiting_consumer_is_interrupted(open_queue: QueueFactory) -> None:
    """A signal ends the wait of the main thread with the handler's error. The queue, and other threads that wait, go
    on."""
    queue = open_queue()
    group = queue._open()

    def interrupt(*_: object) -> None:
        raise Interruption

    with handling(interrupt), ThreadPoolExecutor(2) as pool:
        other = queue.session()
        waiting = pool.submit(other.dequeue, SECONDS)
        wait_for(lambda: group._waiters.count == 1)
        main = threading.get_ident()

        def send() -> None:
            wait_for(lambda: group._waiters.count == 2)
            signal.pthread_kill(main, signal.SIGALRM)

        sent = pool.submit(send)
        with queue.session() as session, pytest.raises(Interruption):
            session.dequeue(SECONDS)
        sent.result(SECONDS)
        assert group._waiters.count == 1, "the place of the thread that was interrupted is kept"
        put(queue, b"a")
        assert waiting.result(SECONDS) == b"a"
    assert queue.stats().held == 1
    other.close()
    assert (len(queue), queue.stats().held) == (1, 0)


@contextmanager
def handling(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Let ``SIGALRM`` call the handler, in the main thread."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def torn_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Interrupt a change of the state half-way, the next time that it is made."""
    original, left = getattr(State, name), [1]

    def change(state: State, *arguments: Any) -> None:
        if left:
            left.clear()
            state.next_sequence += 7
            state.live_bytes += 1
            raise Interruption
        original(state, *arguments)

    monkeypatch.setattr(State, name, change)


@pytest.mark.parametrize("name", ["enqueue", "consume", "apply"])
@pytest.mark.parametrize("door", [DISK, PORTABLE], ids=["this system's", "portable"])
def test_row_04_half_a_change_of_the_state_is_never_seen(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch, name: str, door: Disk
) -> None:
    """If a change of the state is interrupted behind the commit point, the state is read from the log, and the flush is
    done."""
    queue = open_queue(disk=door)
    put(queue, b"a", b"b")
    with queue.session() as session:
        marker = ("m", 1) if name == "apply" else None
        if name == "consume":
            assert session.dequeue() == b"a"
        else:
            session.enqueue(b"c")
        torn_once(monkeypatch, name)
        with pytest.raises(Interruption):
            session.flush(marker)
        assert session.flush()
    left = [b"b"] if name == "consume" else [b"a", b"b", b"c"]
    assert queue.peek(9) == left
    assert (queue.stats().live_bytes > 1, queue.marker("m")) == (True, 1 if marker else None)
    queue.close()
    assert drain(open_queue()) == left


def test_row_03_an_interrupted_codec_gives_its_items_back(open_queue: QueueFactory) -> None:
    """An item whose decoding is interrupted was not given to the caller, and is ready again."""

    class Interrupted:
        left = 1

        def encode(self, item: bytes) -> bytes:
            return item

        def decode(self, data: bytes) -> bytes:
            if data == b"b" and self.left:
                self.left -= 1
                raise Interruption
            return data

    codec = Interrupted()
    queue = open_queue(codec=codec)
    with queue.transaction() as session:
        session.enqueue_many([b"b", b"c"])
    with queue.session() as session:
        with pytest.raises(Interruption):
            session.dequeue()
        assert (len(queue), queue.stats().held) == (2, 0)
        codec.left = 1
        with pytest.raises(Interruption):
            session.dequeue_many(2)
        assert (len(queue), queue.stats().held) == (2, 0)
        assert session.dequeue_many(2) == [b"b", b"c"]
        session.flush()


# --- row 5: re-entrant use -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["commit.1", "commit.2", "commit.3", "commit.4"])
def test_row_05_a_signal_handler_that_uses_the_queue(open_queue: QueueFactory, step: str) -> None:
    """A signal handler that uses the queue in the middle of a flush gets ``ReentrantUseError`` at once, whatever it
    calls."""
    armed = [False]
    told: list[str] = []

    def failpoint(name: str) -> None:
        if armed[0] and name.startswith(step):
            armed[0] = False
            signal.raise_signal(signal.SIGALRM)

    queue = open_queue(disk=replace(DISK, failpoint=failpoint))
    subscription = queue.subscribe("reports")
    put(queue, b"a")
    other = queue.session()
    other.enqueue(b"never")
    calls: list[Callable[[], object]] = [
        other.flush,
        other.dequeue,
        lambda: other.dequeue(timeout=1),
        lambda: len(queue),
        queue.stats,
        queue.trim,
        queue.close,
        queue.clear,
        queue.maintain,
        lambda: queue.peek(1),
        lambda: queue.wait(1),
        queue.wake,
        lambda: queue.subscribe("s"),
        lambda: len(subscription),
        lambda: subscription.wait(1),
        lambda: queue.flush_all([other]),
        lambda: put(queue, b"never"),
    ]

    def handle(*_: object) -> None:
        for call in calls:
            try:
                call()
            except ReentrantUseError as error:
                told.append(str(error))

    with handling(handle), queue.session() as session:
        session.enqueue(b"b")
        armed[0] = True
        assert session.flush()
    assert len(told) == len(calls)
    assert "signal handler" in told[0]
    other.rollback()
    other.close()
    assert drain(queue) == [b"a", b"b"]


def test_row_05_stop_that_calls_the_queue(open_queue: QueueFactory) -> None:
    """A ``stop`` that calls the queue gets ``ReentrantUseError`` at once, because ``wait`` calls it with a lock
    held."""
    queue = open_queue()
    subscription = queue.subscribe("reports")
    for call in (queue.wake, lambda: len(queue), lambda: len(subscription), queue.stats, lambda: queue.wait(0)):

        def stop(call: Callable[[], object] = call) -> bool:
            call()
            return True

        with pytest.raises(ReentrantUseError):
            queue.wait(10, stop=stop)
    assert not queue.wait(0)


def test_row_05_a_partner_is_refused(open_queue: QueueFactory) -> None:
    """A signal handler in a call of one queue may call any other queue, unless that queue shares transactions with the
    first one. Such a call might wait for a transaction over both, which waits for the interrupted call."""
    armed, found = [False], list[object]()

    def failpoint(name: str) -> None:
        if armed[0] and name.startswith("commit.1"):
            armed[0] = False
            signal.raise_signal(signal.SIGALRM)

    a, b, other = open_queue("a", disk=replace(DISK, failpoint=failpoint)), open_queue("b"), open_queue("other")
    with transaction(a, b) as (one, two):
        one.enqueue(b"a")
        two.enqueue(b"b")

    def handle(*_: object) -> None:
        put(other, b"from the handler")
        for call in (lambda: put(b, b"never"), lambda: len(b), b.stats, partial(put, a, b"never")):
            try:
                found.append(call())
            except ReentrantUseError as error:
                found.append(str(error).partition(": called in the middle of another call of ")[2].partition(" ")[0])

    with handling(handle), a.session() as session:
        for flushes in (1, 2):
            session.enqueue(b"more")
            armed[0] = True
            assert session.flush()
            assert found == [a._open().directory] * 4 * flushes
    assert (drain(a), drain(b), drain(other)) == ([b"a", b"more", b"more"], [b"b"], [b"from the handler"] * 2)


def test_row_05_a_signal_handler_that_closes_the_queue_that_waits(open_queue: QueueFactory) -> None:
    """While a call only waits, a signal handler may use the queue: closing it ends the wait with ``ClosedError``."""
    queue = open_queue()
    main, group = threading.get_ident(), queue._open()

    def send() -> None:
        wait_for(lambda: group._waiters.count == 1 and main not in group.inside)
        signal.pthread_kill(main, signal.SIGALRM)

    with handling(lambda *_: queue.close()), ThreadPoolExecutor(1) as pool, queue.session() as session:
        sent = pool.submit(send)
        with pytest.raises(ClosedError):
            session.dequeue(SECONDS)
        sent.result(SECONDS)


def test_row_05_a_log_handler_that_uses_the_queue(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler of ``logging`` that writes into the queue that logs gets ``ReentrantUseError`` at most, and the queue
    goes on."""
    queue = open_queue()
    found: list[BaseException] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                put(queue, record.getMessage().encode())
            except PersistentQueueError as error:
                found.append(error)

    logger = logging.getLogger("persistentqueue")
    handler = Handler()
    logger.addHandler(handler)
    monkeypatch.setattr(logger, "propagate", False)
    try:
        (directory / "inbox" / f"{0:016x}-{1:016x}.seg").write_bytes(b"no publication")
        with queue.session() as session, suppress(PersistentQueueError):
            session.dequeue()
    finally:
        logger.removeHandler(handler)
    assert [type(error) for error in found] in ([ReentrantUseError], [])
    put(queue, b"a")
    assert drain(queue)[-1:] == [b"a"]


# --- the campaign, and the sessions below it ------------------------------------------------------------------------


def test_the_scenarios_are_of_all_calls() -> None:
    """A scenario of the campaign interrupts each public method of a session or a queue that does work."""
    source = Path(scenarios.__file__).read_text(encoding="utf-8")
    for name in ("enqueue", "enqueue_many", "dequeue", "dequeue_many", "flush", "rollback", "put_back", "reject"):
        assert hasattr(Session, name)
        assert f"session.{name}" in source or f'"{name}"' in source, name
    for name in ("trim", "compact", "maintain", "clear", "peek", "stats", "explain", "close", "subscribe", "requeue"):
        assert hasattr(PersistentQueue, name)
        assert f".{name}" in source or f'"{name}"' in source, name
    assert len(SCENARIOS) > 40


def test_a_session_that_was_torn_is_seen_to_by_its_next_call(open_queue: QueueFactory) -> None:
    """If the end of an interrupted call is interrupted as well, the next call releases the items that were not
    returned."""
    queue = open_queue()
    put(queue, b"a", b"b", b"c", b"d")
    session = queue.session()
    work = session._open()
    assert queue._open()._store.reader.take_cached(1, work.runs) == [b"a"]
    session._busy = 2
    assert session.flush()
    assert len(queue) == 4
    assert (session.dequeue(), session.dequeue()) == (b"a", b"b")
    next(session._takes)
    session._busy = 2
    assert session.flush()
    assert len(queue) == 2
    assert session.dequeue() == b"c"
    session.close()
    with pytest.raises(ClosedError):
        session.flush()


def test_sessions_of_a_transaction_are_free_behind_a_refusal(open_queue: QueueFactory) -> None:
    """A flush over several queues that finds one session in use leaves the other sessions free."""
    a, b = open_queue("a"), open_queue("b")
    with transaction(a, b) as (first, second):
        second._busy = BUSY
        with pytest.raises(SessionInUseError):
            first.flush()
        second._busy = FREE
        first.enqueue(b"x")
    assert drain(a) == [b"x"]


def test_what_state_refuses_is_known_before(open_queue: QueueFactory) -> None:
    """``State.check`` raises for each operation that ``apply`` would refuse, and changes nothing."""
    from persistentqueue.core.operations import (
        Compaction,
        Delayed,
        Delivered,
        Dequeue,
        Move,
        SubscriptionClosed,
        SubscriptionOpened,
    )

    queue = open_queue()
    put(queue, b"a", b"b")
    state = queue._open()._store.state
    before = state.checkpoint(0, None, ()), state.supplement()
    for operation in (
        Dequeue(0, 1, 2),
        Dequeue(7, 0, 1),
        Delivered(0, 2, 1, 1),
        Delayed(0, 0, 3, 5, 5),
        SubscriptionOpened(0, 0, "again"),
        SubscriptionOpened(3, 9, "beyond"),
        SubscriptionClosed(5),
        Compaction([99], []),
        Compaction([1], [Move(0, 2, 77, 64, 10, 0, 0, 2)]),
    ):
        with pytest.raises(StateError):
            state.check(operation)
    state.check(Compaction([1], [Move(0, 2, 77, 64, 10, 0, 0, 2)]), {77})
    assert (state.checkpoint(0, None, ()), state.supplement()) == before


def test_the_attributes_of_a_group_are_found_at_once(open_queue: QueueFactory) -> None:
    """An ``OpenQueue`` has at most 29 attributes: CPython 3.11 finds the attributes of such an object at once, and each
    call uses them."""
    assert len(vars(open_queue()._open())) <= 29

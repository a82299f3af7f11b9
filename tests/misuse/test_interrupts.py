"""Rows 3 and 4: calls that are interrupted at each place where CPython looks for signals, and by real signals."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from persistentqueue import BrokenQueueError, PersistentQueue, Producer, Session, aio, transaction
from persistentqueue.aio.item_waiter import Watcher
from persistentqueue.interrupts.call_guard import FREE_THREADED
from persistentqueue.interrupts.locks import Lock
from persistentqueue.runtime.maintenance import Maintenance
from persistentqueue.runtime.open_queue import OpenQueue
from persistentqueue.runtime.waiting import ItemWaiters
from persistentqueue.serving.server import THREAD_NAME, Server
from persistentqueue.system.byte_locks import LockFile
from persistentqueue.workers import WorkerSession
from tests.crash.interrupts import Place, Tracer, interrupt, run_places
from tests.crash.owner_interrupts import SCENARIOS as OF_OWNERS
from tests.crash.owner_interrupts import interrupt_owner, run_owner_places
from tests.crash.scenarios import SCENARIOS
from tests.crash.signals import run_signals
from tests.crash.worker_interrupts import run_worker_places
from tests.support.limits import SECONDS
from tests.support.queues import put, receive_signals, wait_for

pytestmark = [
    pytest.mark.filterwarnings("ignore::persistentqueue.UnflushedWarning"),  # interrupted work is dropped
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # one that no variable had yet closes itself
]


def test_row_03_a_dequeue_that_is_interrupted_anywhere_holds_nothing() -> None:
    """A dequeue that is interrupted at any place where CPython looks for signals leaves no item held, and no lock."""
    assert run_places("dequeue, and go on").interruptions >= 40


@pytest.mark.parametrize(
    "name",
    [
        "dequeue with a codec, and go on",
        "dequeue many with a codec, and go on",
        "dequeue many from disk",
        "transaction",
        "put back",
        "open",
        "delete",
        "len behind a delay",
        "browse a damaged block",
    ],
)
def test_row_03_interrupted_everywhere_nothing_is_on_hold(name: str) -> None:
    """A call that is interrupted where CPython looks for signals, at one place in four, leaves no item held, and no
    lock."""
    report = run_places(name, part=2, parts=4)
    assert report.interruptions >= 4


@pytest.mark.parametrize(
    "name",
    [
        "flush one item",
        "flush with a marker",
        "consume one",
        "wait for room",
        "wait for a ticket",
        "call back when a ticket is done",
    ],
)
def test_row_04_interrupted_everywhere_a_flush_is_finished_or_undone(name: str) -> None:
    """A flush that is interrupted where CPython looks for signals, at one place in four, is finished or undone, and the
    queue is not broken."""
    few = "a ticket" in name  # the pipeline's thread does most of that flush: each place is tried
    report = run_places(name) if few else run_places(name, part=2, parts=4)
    assert report.interruptions >= (2 if few and FREE_THREADED else 4)


def test_row_03_an_opening_loses_no_dead_letter_queue() -> None:
    """``connect`` that is interrupted while it opens the dead-letter queue, or just behind that, leaves both queues
    free to be opened: the thread that serves one would keep it for ever."""
    scenario = OF_OWNERS["own: connect with dead letters"]
    with patch.object(Maintenance, "maintain_soon", lambda _: None):  # its thread would change the places of each run
        seen = interrupt_owner(scenario, None)
        places = [place for place in seen if place.code.co_name == "_bury_in"]
        of_opening = [place for place in seen if place.code is OpenQueue.__init__.__code__]
        assert len(places) > 5
        assert len(of_opening) > 5
        for place in places:
            interrupt_owner(scenario, (place, 1))
        for place in of_opening:
            interrupt_owner(scenario, (place, 2))  # the second opening is that of the dead-letter queue


def test_row_03_a_repair_that_is_interrupted_beside_its_lock_frees_it() -> None:
    """A repair that is interrupted where it takes its lock, or hands it over, leaves the queue free to be opened."""
    scenario = SCENARIOS["repair"]
    seen = interrupt(scenario, None)
    places = [place for place in seen if place.code.co_name in {"take", "_repair"}]
    assert len(places) > (20 if sys.version_info[:2] == (3, 12) else 40)  # ``take`` is a generator
    for place in places:
        interrupt(scenario, (place, 1))


@pytest.mark.parametrize(
    "name",
    [
        "worker: flush in as the owner dies after it",
        "worker: flush as the owner dies before it",
        "worker: flush both",
        "worker: dequeue many",
        "worker: dequeue with a codec",
        "worker: close a session",
        "worker: put back",
        "worker: wait",
        "worker: joint flush as the owner dies after it",
        "subscription: flush as the owner dies after it",
        "late: bad item of a codec, alone",
    ],
)
def test_rows_03_and_04_interrupted_workers(name: str) -> None:
    """A call of a worker that is interrupted, at one place in twelve, is finished or undone, also as the owner of the
    queue dies. The session works on, and nothing is on hold after its close."""
    report = run_worker_places(name, part=1, parts=12)
    assert report.interruptions >= 4


def test_row_03_a_rejection_that_is_interrupted_is_made_once() -> None:
    """If a worker is interrupted in the rejection of one of several equal items, it can still reject each of them."""
    assert run_worker_places("reject: an equal number", part=0, parts=6).interruptions >= 10


@pytest.mark.parametrize("name", ["own: connect", "own: close"])
def test_row_03_an_owner_that_is_interrupted_beside_its_server_keeps_no_descriptor(name: str) -> None:
    """A process that is interrupted as it begins or ends to serve a queue leaves no descriptor open, and no thread."""
    scenario, files = OF_OWNERS[name], {"server.py", "wakeup.py", "sockets.py", "calls.py"}
    with patch.object(Maintenance, "maintain_soon", lambda _: None):
        interrupt_owner(scenario, None)
        seen = interrupt_owner(scenario, None)
        places = [each for each in seen if os.path.basename(each.code.co_filename) in files]
        places += [each for each in seen if each.code.co_name == "_serve"]
        assert len(places) > 5
        for place in places:
            interrupt_owner(scenario, (place, 1))


def test_row_03_an_interrupted_close_waits_for_its_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A close that is interrupted as it waits for the thread of the server leaves its descriptors to that thread.

    Up to Python 3.12, an interrupted ``join`` takes a running thread for one that has ended.
    """
    handled, is_over, leave = threading.Event(), threading.Event(), Server._leave

    def come_between(*_: object) -> None:
        if not handled.is_set():
            handled.set()
            raise KeyboardInterrupt

    def leave_late(server: Server) -> None:
        """Interrupt the close in its wait for this thread, and go on behind it if it does not wait."""
        main = threading.main_thread().ident or 0
        while sys._current_frames()[main].f_code.co_name not in {"_wait_for_tstate_lock", "join", "wait"}:
            is_over.wait(0.001)
        deadline = time.monotonic() + 60
        while not handled.is_set() and time.monotonic() < deadline:
            signal.pthread_kill(main, signal.SIGUSR1)  # one that comes just before the wait of C code ends no wait
            handled.wait(0.05)
        assert handled.is_set()
        is_over.wait(0.2)
        leave(server)

    before = signal.signal(signal.SIGUSR1, come_between)
    try:
        with patch.object(Server, "_leave", leave_late):
            queue = PersistentQueue(tmp_path, serve=True)
            with pytest.raises(KeyboardInterrupt):
                queue.close()
            queue.close()
            is_over.set()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caplog.text == ""
    assert not [each for each in threading.enumerate() if each.name == THREAD_NAME]


def test_row_04_an_interrupted_process_becomes_the_owner() -> None:
    """A flush during which the owner dies, and that is interrupted as its process becomes the owner, is committed once
    or undone. The process then owns the queue, or has freed its lock."""
    assert run_owner_places("own: flush in as the owner dies after it", part=0, parts=24).interruptions >= 10


def test_row_04_a_worker_learns_the_outcome_of_an_interrupted_flush() -> None:
    """A flush of a worker is committed once, wherever it is interrupted as its owner dies behind the commit."""
    assert run_worker_places("worker: flush as the owner dies after it", part=2, parts=4).interruptions >= 10


def test_row_04_a_refused_transaction_is_interrupted() -> None:
    """A flush of a transaction over two queues that one queue refuses, and that is interrupted, leaves no session in
    use."""
    assert run_places("transaction that is refused", part=0, parts=4).interruptions >= 10


def test_rows_03_and_04_real_signals() -> None:
    """After real signals at random moments no item is lost, doubled or held, and no queue is broken."""
    assert run_signals(300, per_process=300).signals >= 300


def test_row_03_objects_that_are_half_made_are_finalized() -> None:
    """An interruption of a constructor leaves an object without attributes: its finalizer raises nothing."""
    kinds: list[Any] = [aio.Queue, LockFile, PersistentQueue, Producer, Session, Watcher, WorkerSession]
    for kind in kinds:
        kind.__new__(kind).__del__()


def test_row_03_the_end_of_a_wait_behind_a_close_leaves_no_descriptor(tmp_path: Path) -> None:
    """A thread that ends its wait when the queue was closed closes the wake-up once, wherever it is interrupted."""

    def leave(target: tuple[Place, int] | None) -> dict[Place, int]:
        """End such a wait, interrupted at the target; return the places that it reached."""
        waiters = ItemWaiters(Lock(), lambda: nullcontext(inbox))
        tracer = Tracer(target)

        def sleep(_: object) -> None:
            waiters.close()

        with suppress(KeyboardInterrupt):
            tracer.run(lambda: [waiters.wait(lambda: 1.0, sleep) for _ in range(2)])
        waiters.close()
        assert (waiters.count, waiters._bell) == (0, None)
        return tracer.seen

    receive_signals()
    inbox = os.open(tmp_path, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    seen = leave(None)
    assert len(seen) > 20
    for place, count in seen.items():
        for nth in {1, count}:
            leave((place, nth))
            assert len(os.listdir("/proc/self/fd")) == before, place
    os.close(inbox)


# --- a stack that is full --------------------------------------------------------------------------------------------


def with_room(calls: int, call: Callable[[], object]) -> None:
    """Make the call so deep in the stack that it has room for this number of further calls. Ignore its
    ``RecursionError``."""

    def descend(steps: int) -> None:
        if steps:
            descend(steps - 1)
        else:
            call()

    frame, depth = sys._getframe(), 1
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    with suppress(RecursionError):
        descend(sys.getrecursionlimit() - depth - calls)


def in_thread(call: Callable[[], None]) -> None:
    """Make the call in a thread, whose stack is empty. Raise an error if it does not end."""
    ended: list[bool] = []

    def run() -> None:
        call()
        ended.append(True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert ended


def consume(queue: PersistentQueue, session: Session[bytes], room: int) -> None:
    """Dequeue, and flush where the stack is nearly full."""
    session.dequeue()
    with_room(room, session.flush)


def take(queue: PersistentQueue, session: Session[bytes], room: int) -> None:
    """Dequeue where the stack is nearly full."""
    with_room(room, session.dequeue)


def give_back(queue: PersistentQueue, session: Session[bytes], room: int) -> None:
    """Dequeue, and roll back where the stack is nearly full."""
    session.dequeue_many(2)
    with_room(room, session.rollback)


def close(queue: PersistentQueue, session: Session[bytes], room: int) -> None:
    """Dequeue, and close the session where the stack is nearly full."""
    session.dequeue()
    with_room(room, session.close)


def clear(queue: PersistentQueue, session: Session[bytes], room: int) -> None:
    """Consume all items where the stack is nearly full."""
    with_room(room, queue.clear)


AFTER = {consume: [b"two"], clear: []}
"""Items that are left when the steps were committed."""
COUNTED = {"max_attempts": 9, "dead_letter": "dead"}


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        *((consume, {}), (consume, COUNTED), (take, {}), (give_back, {}), (give_back, COUNTED), (close, {})),
        (clear, {}),
    ],
)
def test_row_03_a_call_that_finds_the_stack_full(tmp_path: Path, steps: Callable[..., None], options: Any) -> None:
    """A call that a ``RecursionError`` ends at any depth is done or not done, keeps no other call waiting, and leaves
    nothing on hold. If the queue is broken then, its next opening has every item."""
    first = [b"one", b"two"]

    def run(name: str, room: int) -> None:
        """Make the steps, then use the queue as before, and open it again."""
        last, told = [b"last"], "an earlier call was interrupted (RecursionError"
        with PersistentQueue(tmp_path, name, **options) as queue:
            put(queue, *first)
            session = queue.session()
            steps(queue, session, room)
            try:
                session.rollback()
                put(queue, *last)
                wait_for(lambda: queue.stats().held == 0)  # a new thread may release them
            except BrokenQueueError as broken:
                told, last = str(broken), []
        with PersistentQueue(tmp_path, name, **options) as queue:
            assert list(queue.browse()) in ([*first, *last], [*AFTER.get(steps, first), *last]), room
        assert "an earlier call was interrupted (RecursionError" in told

    for room in range(1, 20):
        in_thread(partial(run, f"room{room}", room))


@pytest.mark.parametrize("room", range(3, 16))
def test_row_03_a_leader_that_finds_the_stack_full_hands_on(tmp_path: Path, room: int) -> None:
    """A thread that leads a group, and that a ``RecursionError`` ends at any depth, leaves no other thread waiting."""

    def flush(queue: PersistentQueue, limit: Callable[[Callable[[], object]], object]) -> None:
        with queue.session() as session:
            session.enqueue(b"item")
            limit(session.flush)
            session.rollback()

    with PersistentQueue(tmp_path) as queue:
        group_commit = queue._open_queue._group_commit  # type: ignore[union-attr]
        leader = threading.Thread(target=flush, args=(queue, partial(with_room, room)))
        followers = [threading.Thread(target=flush, args=(queue, lambda call: call()), daemon=True) for _ in range(3)]
        with group_commit.writing:
            leader.start()
            wait_for(lambda: group_commit.leader is not None or not leader.is_alive())
            for each in followers:
                each.start()
            wait_for(lambda: len(group_commit) + (not leader.is_alive()) >= len(followers))
        for each in (leader, *followers):
            each.join(SECONDS)
            assert not each.is_alive()
        assert len(queue) in {3, 4}


@pytest.mark.parametrize("room", range(1, 12))
def test_row_03_a_flush_of_several_queues_that_finds_the_stack_full(tmp_path: Path, room: int) -> None:
    """A flush over several queues that a ``RecursionError`` ends at any depth leaves its sessions usable."""

    def run() -> None:
        """Flush where the stack is nearly full, and then where it is not."""
        with PersistentQueue(tmp_path, "one") as one, PersistentQueue(tmp_path, "two") as two:
            with transaction(one, two) as (first, second):
                first.enqueue(b"item")
                second.enqueue(b"item")
                with_room(room, first.flush)
                first.flush()
            assert list(one.browse()) == list(two.browse()) == [b"item"]

    in_thread(run)

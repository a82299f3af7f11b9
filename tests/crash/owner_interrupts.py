"""Interruptions of a process that becomes the owner of a shared queue: a signal handler raises at each place where
CPython checks for signals, in a call that finds no owner.

The places, the handlers and the rules are those of ``interrupts``. The queues are real ones, on files in memory, with
real sockets and the real thread that serves. A simulated machine has neither a socket to listen on nor a second thread.
Another owner is a queue that this process has opened. It dies by an error in its thread, before or after a commit.

After each interruption no lock of the queue is taken, and no call is under way. The process owns the queue and serves
it, or has freed its lock. Then the call is made again, and all is closed. After that the process has as many
descriptors and threads as before, and the queue opens at once with exactly the expected items.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, cast

from persistentqueue import PersistentQueue, Session
from persistentqueue.codecs import BYTES
from persistentqueue.errors import PersistentQueueError
from persistentqueue.interrupts.call_guard import BUSY, FREE
from persistentqueue.options import Options
from persistentqueue.serving.server import CALL_THREAD_NAME, THREAD_NAME
from persistentqueue.serving.service import OwnerFailedError
from persistentqueue.workers.shared_queue import SharedQueue
from persistentqueue.workers.worker_session import WorkerSession

from .interrupts import Interrupt, Place, Report, ViolationError, require, require_idle, run_scenarios, traced
from .kills import fast_directory
from .scenarios import MANY, SMALL, B
from .worker_scenarios import telling

_WAIT_SECONDS, _POLL_SECONDS = 20.0, 0.002
"""The longest wait for the threads of owners, and the time between two looks."""


class OwnerWorld:
    """A directory of queues, the owner of one of them, and what this process has connected."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.settings: dict[str, Any] = {**SMALL, "grace_seconds": 0.01}
        self.other: PersistentQueue[bytes] | None = None
        """The queue of another owner, until it dies."""
        self.queues: list[SharedQueue[Any]] = []
        self.sessions: list[Session[Any] | WorkerSession[Any]] = []

    def serve(self, *items: bytes) -> None:
        """Let another owner have a queue with these items."""
        self.other = PersistentQueue(self.directory, "q", **self.settings, serve=True)
        if items:
            with self.other.transaction() as session:
                session.enqueue_many(items)

    def leave(self) -> None:
        """Let the other owner close the queue."""
        if self.other is not None:
            self.other.close()

    def die(self, *, behind: bool) -> None:
        """Let the other owner die in the next turn in which a flush comes: behind its commit, or before it."""
        assert self.other is not None
        server: Any = self.other._server
        service, turn = server._service, server._service.turn

        def last_turn() -> float:
            if not service._flushing:
                return cast(float, turn())
            if behind:
                turn()
            raise OwnerFailedError

        service.turn = last_turn
        server.on_failure = self.other.close

    def connect(self, serve: Any = "auto", **settings: Any) -> SharedQueue[Any]:
        """Connect to the queue. Its first call finds the owner, or makes this process the owner."""
        options = Options(**{**self.settings, "lock_timeout": _WAIT_SECONDS, **settings})
        queue: SharedQueue[Any] = SharedQueue(self.directory, "q", BYTES, options, serve, None)
        self.queues.append(queue)
        return queue

    def session(self, queue: SharedQueue[Any]) -> Any:
        """Return a new session of the queue."""
        session = queue.session("interrupted")
        self.sessions.append(session)
        return session

    def close(self) -> None:
        """Close all."""
        for each in (*self.sessions, *self.queues, self.other):
            if each is not None:
                each.close()


class Case(NamedTuple):
    """A call to interrupt, a call to make after it, and the items that the queue may then have."""

    call: Callable[[], object]
    again: Callable[[], object]
    may_hold: list[list[bytes]]


Scenario = Callable[[OwnerWorld], Case]


def _connect(world: OwnerWorld, *items: bytes, **settings: Any) -> Case:
    """Connect to a queue without an owner, or to one that does not exist."""
    world.settings |= settings
    if items:
        world.serve(*items)
        world.leave()
    queue = world.connect()

    def again() -> None:
        last = world.connect() if queue.closed else queue  # an opening that is interrupted closes the queue
        last.open()
        assert last.owns and last.peek(9) == list(items)

    return Case(queue.open, again, [list(items)])


def _call(world: OwnerWorld, method: str) -> Case:
    """Make a call of a queue whose owner has left."""
    world.serve(*MANY[:9])
    queue = world.connect()
    assert len(queue) == 9
    world.leave()
    calls: dict[str, Callable[[], object]] = {
        "len": lambda: len(queue),
        "peek": lambda: queue.peek(5),
        "wait": lambda: queue.wait(0.5),
        "sizes": queue.sizes,
        "subscribe": lambda: queue.subscribe("one"),
    }
    call = calls.get(method) or getattr(queue, method)

    def again() -> None:
        call()
        assert queue.owns

    return Case(call, again, [MANY[:9]])


def _dequeue(world: OwnerWorld, count: int) -> Case:
    """Dequeue in a session whose owner has left: it held nothing, and goes on."""
    world.serve(*MANY[:9])
    queue = world.connect()
    session = world.session(queue)
    assert session.dequeue() == MANY[0]
    session.flush()
    world.leave()
    got: list[bytes] = []

    def call() -> None:
        for _ in range(2):
            got.extend([session.dequeue()] if count == 1 else session.dequeue_many(count))

    def again() -> None:
        session.flush()
        session.close()
        assert [*got, *queue.peek(9)] == MANY[1:9], (got, queue.peek(9))
        queue.clear()

    return Case(call, again, [[]])


def _enqueue(world: OwnerWorld) -> Case:
    """Flush what a session has enqueued, after its owner has left."""
    world.serve(*MANY[:2])
    queue = world.connect()
    session = world.session(queue)
    session.enqueue(MANY[2])
    session.flush()
    world.leave()
    session.enqueue(B)
    return Case(session.flush, session.flush, [[*MANY[:3], B]])


def _flush(world: OwnerWorld, taken: int, behind: bool, marker: tuple[str, int] | None = None) -> Case:
    """Flush a session whose owner dies in this flush."""
    world.serve(*MANY[:9])
    queue = world.connect()
    session = world.session(queue)
    assert session.dequeue_many(taken) == MANY[:taken]
    session.enqueue(B)
    world.die(behind=behind)
    told: list[bool] = []

    flush = telling(partial(session.flush, marker), told)

    def again() -> None:
        flush()
        found = list(queue.browse_all())
        has_ended = found == [*MANY[taken:9], B]
        assert has_ended or found == MANY[:9], found
        assert has_ended == told[0], (found, told)
        assert marker is None or not has_ended or queue.marker(marker[0]) == marker[1]

    return Case(flush, again, [[*MANY[taken:9], B], MANY[:9]])


def _block(world: OwnerWorld) -> Case:
    """Consume an item in a block that makes this process the owner, or that has a local session then."""
    world.serve(*MANY[:4])
    queue = world.connect()
    queue.open()
    world.leave()

    def call() -> None:
        with queue.transaction() as session:
            session.enqueue(session.dequeue())

    def again() -> None:
        found = list(queue.browse_all())
        assert found in (MANY[:4], [*MANY[1:4], MANY[0]]), found
        if found == MANY[:4]:
            call()
        assert queue.owns

    return Case(call, again, [[*MANY[1:4], MANY[0]]])


def _close(world: OwnerWorld) -> Case:
    """Close a queue that this process owns and serves."""
    queue = world.connect()
    queue.open()
    with queue.transaction() as session:
        session.enqueue_many(MANY[:3])
    remote = world.connect("never")
    other = world.session(remote)
    assert other.dequeue() == MANY[0]

    def again() -> None:
        other.close()
        remote.close()
        queue.close()

    return Case(queue.close, again, [MANY[:3]])


def _give_up(world: OwnerWorld, *items: bytes) -> Case:
    """Give a queue up, without a session, or with one that has enqueued these items."""
    queue = world.connect()
    queue.open()
    with queue.transaction() as session:
        session.enqueue_many(MANY[:3])
    if items:
        mine = world.session(queue)
        mine.enqueue_many(items)

    def again() -> None:
        if items:
            mine.flush()
            assert queue.owns
        assert list(queue.browse_all()) == [*MANY[:3], *items]
        assert queue.sizes().unheld == 3 + len(items)  # a call to the owner, which serves

    return Case(queue._owner.give_up, again, [[*MANY[:3], *items]])


DEAD: dict[str, Any] = {"max_attempts": 5, "dead_letter": "dead"}
SCENARIOS: dict[str, Scenario] = {
    "own: connect to a new queue": _connect,
    "own: connect": lambda world: _connect(world, *MANY[:3]),
    "own: connect with dead letters": lambda world: _connect(world, *MANY[:3], **DEAD),
    **{
        f"own: {method}": partial(_call, method=method)
        for method in ("len", "peek", "wait", "sizes", "subscribe", "stats")
    },
    "own: dequeue": partial(_dequeue, count=1),
    "own: dequeue many": partial(_dequeue, count=3),
    "own: flush in": _enqueue,
    "own: block": _block,
    "own: close": _close,
    "own: give up": _give_up,
    "own: give up with a session": lambda world: _give_up(world, B),
    "own: flush in as the owner dies before it": partial(_flush, taken=0, behind=False),
    "own: flush in as the owner dies after it": partial(_flush, taken=0, behind=True),
    "own: flush as the owner dies before it": partial(_flush, taken=2, behind=False),
    "own: flush as the owner dies after it": partial(_flush, taken=2, behind=True),
    "own: flush a marker as the owner dies after it": partial(_flush, taken=0, behind=True, marker=("m", 1)),
}
"""Scenarios to interrupt, by name."""


# --- what holds after an interruption --------------------------------------------------------------------------------


def _await(check: Callable[[], None]) -> None:
    """Raise ``ViolationError`` unless the check passes in time: threads of owners may be at work."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            return check()
        except ViolationError:
            if time.monotonic() > deadline:
                raise
        gc.collect()  # a session that was dropped ends its connection
        time.sleep(_POLL_SECONDS)


def _require_sound(world: OwnerWorld) -> None:
    """Raise ``ViolationError`` if the interruption has left a lock, a call, or a hold."""
    given = 0
    for session in world.sessions:
        require(session._busy != BUSY, "a session is in a call")
        if isinstance(session, WorkerSession) and session._busy == FREE and session._link is not None:
            link = session._link
            require(link.is_lost or link.going is None, "a call is under way")
            require(session._held == session._given, f"{session._held} held, {session._given} of them given")
            given += 0 if link.is_lost else session._held
    owners = [each for queue in world.queues if not queue.closed and (each := queue._owner.here()) is not None]
    for queue in world.queues:
        owner: Any = queue._owner
        require(not owner._guard._is_owned() and not owner._owning._is_owned(), "a lock of the queue is taken")
        require(not owner._controlling.mutex.locked(), "the lock of calls is taken")
        require(not owner._controlling.inside, "a thread seems to be in a call")
        require(not queue._waiting, "a thread seems to wait")
    require(len(owners) <= 1, "the queue has two owners")
    for each in owners:
        require(each._server is not None and not each._server._is_stopping, "the owner does not serve")
        counts = all(isinstance(session, WorkerSession) and session._busy == FREE for session in world.sessions)
        require(not counts or each.stats().held == given, f"{each.stats().held} on hold, {given} of them given")
        if not each.stats().held:
            require_idle(each, [])


def _threads() -> int:
    return sum(each.name in {THREAD_NAME, CALL_THREAD_NAME} for each in threading.enumerate())


def _descriptors() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}").split(":")[0])
    # libffi, which ctypes uses, keeps its own file open.
    return sorted(each for each in found if not each.endswith("/fd") and "/libffi" not in each)


def interrupt_owner(scenario: Scenario, target: tuple[Place, int] | None) -> dict[Place, int]:
    """Run the scenario, interrupted at the target; return the places that it reached. Raises ``ViolationError``."""
    directory = tempfile.mkdtemp(dir=fast_directory())
    world = OwnerWorld(directory)
    try:
        return _interrupt(world, scenario, target)
    finally:
        with suppress(PersistentQueueError):
            world.close()
        shutil.rmtree(directory)


def _interrupt(world: OwnerWorld, scenario: Scenario, target: tuple[Place, int] | None) -> dict[Place, int]:
    before = _descriptors(), _threads()
    case = scenario(world)
    tracer = traced(case.call, target)
    if target is not None and not tracer.has_raised:
        return tracer.seen  # this time the call did not reach the place
    _await(partial(_require_sound, world))
    case.again()
    world.close()
    _await(partial(_require_sound, world))
    with PersistentQueue[bytes](world.directory, "q", **SMALL) as queue:
        require(queue.stats().held == 0, f"{queue.stats().held} items on hold")
        found = list(queue.browse_all())
    require(found in case.may_hold, f"the queue holds {found}")
    _await(lambda: require((_descriptors(), _threads()) == before, f"left: {_descriptors()}, {_threads()} of {before}"))
    return tracer.seen


def run_owner_places(only: str = "", part: int = 0, parts: int = 1) -> Report:
    """Interrupt a process that becomes an owner, as ``run_places`` does one. Raises ``ViolationError``."""
    return run_scenarios(SCENARIOS, cast(Interrupt, interrupt_owner), only, part, parts)

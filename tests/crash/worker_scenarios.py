"""Scenarios of ``worker_interrupts``: calls of a queue that another process owns, on a simulated machine.

The queue is a real ``SharedQueue``, and its owner the real ``Service`` on an open ``PersistentQueue``, on a simulated
disk. Between them are sockets made of two buffers. A worker that reads an empty socket lets the owner take a step. The
owner is another process, so no signal of the worker interrupts it: its code is not traced.

A scenario is a ``Case``, as those of ``scenarios`` are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, cast

import persistentqueue
from persistentqueue import PersistentQueue, Session
from persistentqueue.codecs import BYTES
from persistentqueue.compat import Queue
from persistentqueue.errors import QueueFullError, SessionLostError
from persistentqueue.options import Options
from persistentqueue.serving.calls import make_call
from persistentqueue.serving.handover import Handover
from persistentqueue.serving.server import _SERVERS, Server
from persistentqueue.serving.service import Served, Service
from persistentqueue.system.byte_locks import LockFile
from persistentqueue.system.disk import DISK, Disk, basename
from persistentqueue.system.sockets import Socket
from persistentqueue.workers.shared_queue import SharedQueue
from persistentqueue.workers.worker_session import WorkerSession
from tests.support.disks import call_on
from tests.support.left_holds import LeftHolds, NoLocks

from . import network
from .disk import SimulatedDisk
from .interrupts import require
from .scenarios import (
    COUNTED,
    LARGE,
    MANY,
    PATH,
    RAW,
    SMALL,
    A,
    B,
    C,
    Case,
    Numbers,
    joint_sessions,
    refuse_several,
    several,
    subscriptions,
    take_numbers,
)

_STEPS_MAX = 5000
"""Steps in a row without a message, from which on a worker waits for ever."""
_STEP_SECONDS = 0.01
"""Time that passes in a step without a message."""
_LONG_SECONDS = 3600.0
"""Time after which no hold of a scenario lasts any more."""


@contextmanager
def another_process() -> Iterator[None]:
    """Run code that no signal of this process interrupts: it is not traced."""
    before = sys.gettrace(), sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(before[1])
        sys.settrace(before[0])


class Handle:
    """The worker's end of a connection. A socket that is dropped is closed."""

    def __init__(self, wire: network.Wire) -> None:
        self.wire = wire
        self.send, self.recv = wire.send, wire.recv
        self.shutdown, self.close = wire.shutdown, wire.close

    def __del__(self) -> None:
        self.wire.close()


class _Owner(network.Owner):
    """The process that owns one queue."""

    def __init__(self, world: WorkerWorld, name: str) -> None:
        self.disk = world.machine
        self.rung, self.due = True, inf
        self.wires: list[network.Wire] = []
        self.public = PersistentQueue[bytes](PATH, name, **world.settings[name])
        self.queue = queue = self.public._open()

        def session(session_name: str, subscription: str) -> Session[Any]:
            """Return a session of a worker."""
            reader = queue.reader_named(subscription) if subscription else None
            return self.public._session(session_name, reader, Session)

        counts = self.public._retries is not None
        facts = {"version": 1, "identity": queue.identity.hex(), "data_path": self.public.data_path, "counts": counts}
        call = partial(make_call, self.public, queue)
        served = Served(queue, session, call, facts, world.now, world.handover(name))
        self.server = self.public._server = Server(served, 0.0)
        self.service = self.server._service = Service(served, self.ring, lambda call: call())
        self.service.inherit()
        _SERVERS.add(self.server)

    def on_hold(self) -> int:
        """Return the number of items on hold, for all consumers."""
        readers = [self.queue.reader_named(name) for name in self.public.subscriptions()]
        return self.public.stats().held + sum(each.ready.held for each in readers)

    def die(self) -> None:
        """Leave what a killed process leaves."""
        super().die()
        self.server.stop()

    def close(self) -> None:
        """Close the queue, unless it is closed."""
        if not self.public.closed:
            self.finish()
            self.leave()

    def leave(self) -> None:
        """Hand over what workers hold, end all connections, and close the queue."""
        self.hand_over()
        for wire in list(self.wires):
            wire.to_worker += wire.left
            self.drop(wire, by_worker=False)
        self.service.leave()
        self.public.close()


class WorkerWorld:
    """A simulated machine with the owners of queues, and one process that is connected to them."""

    def __init__(self) -> None:
        self.machine = SimulatedDisk()
        self.folder: str | None = None
        """Directory on the real disk with the locks of sessions, and the files by which owners hand over; None if
        nothing is handed over."""
        self.leaves = False
        """True if an owner leaves in order where it would die."""
        self.was_interrupted = False
        """True if the call of the scenario was interrupted."""
        self.settings: dict[str, dict[str, Any]] = {}
        self.owners: dict[str, _Owner] = {}
        self.queues: dict[str, SharedQueue[Any]] = {}
        self.sessions: list[WorkerSession[Any]] = []
        self.seconds = 0.0
        self.standard: Queue[Any] | None = None
        self.block: object = None
        """A block that stays open, since its end would close the sessions."""
        self.dies_behind: int | None = None
        """Messages that the owner of a queue still takes before it dies; None if it lives on."""
        self.answers_last = False
        """True if the owner that dies makes its last turn, whose answers are lost."""
        self.late_behind: int | None = None
        """Messages that owners still take before much time passes: holds run out. None if no time passes."""
        self.meanwhile: Callable[[], object] | None = None
        """A call that another process makes, once, while a worker waits for an item."""
        self.quiet = 0

    @property
    def disk(self) -> Disk:
        """Disk of the machine."""
        return replace(self.machine.disk, monotonic=self.now, sleep=lambda _: self.step())

    def now(self) -> float:
        """Return the time of all processes, in seconds."""
        return self.seconds

    def part_of(self, count: int) -> int:
        """Return how many of so many bytes go now."""
        return count

    def handover(self, name: str) -> Handover:
        """Return the way from one owner of this queue to the next."""
        return Handover(DISK, self._place(name)) if self.folder is not None else LeftHolds()

    def lock_file(self, directory: str, name: str) -> LockFile:
        """Return the locks of the sessions of the queue in this directory."""
        return LockFile(self._place(basename(directory)), name) if self.folder is not None else NoLocks()

    def _place(self, name: str) -> str:
        assert self.folder is not None
        path = os.path.join(self.folder, name)
        os.makedirs(path, exist_ok=True)
        return path

    # --- the processes -----------------------------------------------------------------------------------------------

    def serve(self, name: str) -> _Owner:
        """Return the owner of the queue; if there is none, let a process become it."""
        if name not in self.owners:
            self.owners[name] = call_on(self.disk, _Owner, self, name)
        return self.owners[name]

    def open(
        self,
        name: str,
        *items: bytes,
        prefetch: bool = False,
        codec: Any = BYTES,
        hold_seconds: float | None = None,
        **settings: Any,
    ) -> SharedQueue[Any]:
        """Let another process own a queue with these items, and connect to it."""
        self.settings[name] = SMALL | settings
        owner = self.serve(name)
        if items:
            with owner.public.transaction() as session:
                session.enqueue_many(items)
        return self.connect(name, prefetch, codec, hold_seconds)

    def connect(
        self, name: str, prefetch: bool = False, codec: Any = BYTES, hold_seconds: float | None = None
    ) -> SharedQueue[Any]:
        """Connect to the queue."""
        options = Options(**{"lock_timeout": 1.0, **self.settings[name]})
        arguments = (PATH, name, codec, options, "never", hold_seconds, prefetch)
        queue: SharedQueue[Any] = call_on(self.disk, SharedQueue, *arguments)
        queue.open()
        self.queues[name] = queue
        return queue

    def session(self, name: str, subscription: str = "") -> WorkerSession[Any]:
        """Return a new session of the queue, or of an existing subscription of it."""
        queue = self.queues[name]
        session = (queue.subscribe(subscription) if subscription else queue).session("interrupted")
        assert isinstance(session, WorkerSession)
        self.sessions.append(session)
        return session

    def dial(self, directory: str, _name: str) -> Socket:
        """Return a connection to the owner of the queue, as ``sockets.connect`` does."""
        with another_process():
            owner = self.serve(basename(directory))
            wire = network.Wire(cast(network.World, self), "worker")
            wire.client = owner.service.connect()
            wire.client.peer = wire
            owner.wires.append(wire)
        return cast(Socket, Handle(wire))

    def step(self) -> None:
        """Let each owner take what has come, and answer. Time passes if nothing has come."""
        with another_process():
            if self._steps():
                self.quiet = 0
                return
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()
            self.quiet += 1
            require(self.quiet < _STEPS_MAX, "a worker waits for an answer that never comes")
            self.seconds += _STEP_SECONDS

    def pass_time(self) -> None:
        """Let so much time pass that all holds run out, and the owners notice."""
        with another_process():
            self.seconds += _LONG_SECONDS
            for owner in self.owners.values():
                owner.turn()

    def _steps(self) -> bool:
        """Let each owner take a step; return whether any had something to do."""
        return sum(self._step(owner) for owner in list(self.owners.values())) > 0

    def _step(self, owner: _Owner) -> bool:
        has_moved = False
        for wire in list(owner.wires):
            if wire.to_owner:
                has_moved = True
                if self.late_behind is not None:
                    self.late_behind -= 1
                    if self.late_behind < 0:
                        self.late_behind = None
                        self.pass_time()
                if self.dies_behind is not None:
                    self.dies_behind -= 1
                    if self.dies_behind < 0:
                        self._kill(owner, wire)
                        return True
                owner.receive(wire, len(wire.to_owner))
            if wire.worker_left:
                has_moved = True
                owner.drop(wire, by_worker=True)
        owner.turn()
        for wire in owner.wires:
            has_moved = has_moved or bool(wire.left)
            wire.to_worker += wire.left
            wire.left.clear()
        return has_moved

    def _kill(self, owner: _Owner, wire: network.Wire) -> None:
        self.dies_behind = None
        if self.answers_last:
            owner.receive(wire, len(wire.to_owner))
            owner.turn()
        self.end_owners()

    def end_owners(self) -> None:
        """End the process that owns all queues."""
        ended, self.owners = self.owners, {}
        for each in ended.values():
            if self.leaves:
                each.leave()
            else:
                each.die()

    def settle(self) -> None:
        """Let the owners take everything that has come."""
        while self._steps():
            pass

    def wires(self) -> list[network.Wire]:
        """Return the connections that no process has ended."""
        return [wire for owner in self.owners.values() for wire in owner.wires if not wire.worker_left]


Scenario = Callable[[WorkerWorld], Case]


def _put(session: WorkerSession[Any], *items: bytes) -> None:
    """Move items to the session at the owner, as a batch that has grown does."""
    session.enqueue_many(items)
    session._put()


def telling(flush: Callable[[], object], told: list[bool]) -> Callable[[], None]:
    """Return a flush that notes whether it was committed, or its session lost: an interruption may replace the error.

    A marker that an interrupted flush has recorded makes the repeated one return False.
    """

    def call() -> None:
        try:
            flush()
            told.append(True)
        except SessionLostError:
            told.append(False)
        except (KeyboardInterrupt, TimeoutError) as error:
            if isinstance(error.__context__, SessionLostError):
                told.append(False)
            raise

    return call


def _flush(
    world: WorkerWorld,
    taken: int,
    items: list[bytes],
    marker: tuple[str, int] | None = None,
    wait: bool = True,
    prefetch: bool = False,
    sent: bool = False,
    dies: str = "",
    **settings: Any,
) -> Case:
    """Flush a session that has enqueued and dequeued, perhaps while its owner dies."""
    queue = world.open("q", *MANY[:9], prefetch=prefetch, **settings)
    session = world.session("q")
    got = session.dequeue_many(taken) if taken else []
    session.enqueue_many(items)
    if sent:
        session._put()
    if dies:
        world.dies_behind, world.answers_last = 0, dies == "after"
    told: list[bool] = []

    flush = telling(partial(session.flush, marker, wait=wait), told)

    def again() -> None:
        world.dies_behind = None
        flush()
        has_ended = [*MANY[taken:9], *items] == list(queue.browse_all())
        assert has_ended == told[0], (list(queue.browse_all()), told)
        assert marker is None or not has_ended or queue.marker(marker[0]) == marker[1]
        if prefetch:
            assert session.dequeue() == MANY[taken]
            session.put_back()

    assert got == MANY[:taken]
    after = [*MANY[taken:9], *items]
    return Case(flush, again, [{"q": after}, *([{"q": MANY[:9]}] if dies else [])])


def _dequeue(world: WorkerWorld, count: int, prefetch: bool = False, dies: bool = False, **settings: Any) -> Case:
    world.open("q", *MANY, prefetch=prefetch, **settings)
    session = world.session("q")
    start = 0
    if prefetch:
        start = 2
        assert session.dequeue_many(2) == MANY[:2]
        session.flush()
    if dies:
        world.dies_behind = 0
    got: list[bytes] = []

    def call() -> None:
        for _ in range(3):
            got.extend([session.dequeue()] if count == 1 else session.dequeue_many(count))  # type: ignore[list-item]

    def again() -> None:
        world.dies_behind = None
        session.flush()
        session.close()  # with prefetch, it holds items
        rest = world.queues["q"].peek(len(MANY))
        assert [*got, *rest] == MANY[start:], (got, rest[:3])
        assert world.queues["q"].clear() == len(rest)

    return Case(call, again, [{"q": []}])


def _dequeue_numbers(world: WorkerWorld, count: int, **settings: Any) -> Case:
    """Dequeue with a codec, and go on: an item that the caller did not get is not consumed."""
    world.open("q", *RAW, codec=Numbers(), **settings)
    session = world.session("q")
    got: list[bytes] = []

    def again() -> None:
        session.flush()
        session.close()
        world.settle()
        public = world.owners["q"].public
        rest = list(public.browse_all())
        assert [*got, *rest] == RAW, (got, rest)
        public.clear()

    return Case(partial(take_numbers, session, count, got), again, [{"q": []}])


def _wait(world: WorkerWorld, what: str) -> Case:
    if what == "dequeue":
        queue = world.open("q")
        session = world.session("q")
        return Case(lambda: session.dequeue(timeout=0.05), lambda: len(queue), [{"q": []}])
    if what == "wait":
        queue = world.open("q")
        return Case(lambda: queue.wait(0.05), lambda: queue.wait(0.0), [{"q": []}])
    queue = world.open("q", A, max_items=1, full="block")
    session = world.session("q")
    session.enqueue(B)

    def call() -> None:
        with suppress(QueueFullError):
            session.flush(timeout=0.05)

    def again() -> None:
        with queue.transaction() as other:
            assert other.dequeue() == A
        session.flush(timeout=60)

    return Case(call, again, [{"q": [B]}])


def _enqueue(world: WorkerWorld) -> Case:
    queue = world.open("q", A)
    session = world.session("q")
    put: list[bytes] = []

    def call() -> None:
        for item in (B, C):
            session.enqueue(item)
            put.append(item)

    def again() -> None:
        session.flush()
        found = queue.peek(9)[1:]
        # The item whose enqueue was interrupted may be in the session, or not.
        assert found == [B, C][: len(found)] and len(put) <= len(found) <= len(put) + 1, (put, found)
        with queue.transaction() as other:
            other.dequeue_many(9)

    return Case(call, again, [{"q": []}])


def _spill(world: WorkerWorld, goes_on: bool) -> Case:
    """Enqueue more than a session keeps. If it goes on, a flush commits a beginning of the items, each once."""
    queue = world.open("q", A)
    session = world.session("q")
    session._batch._most_bytes = 128 * 1024

    def again() -> None:
        if goes_on:
            session.flush()
            found = queue.peek(99)[1:]
            assert found == LARGE[: len(found)], len(found)
            with queue.transaction() as other:
                assert other.dequeue() == A
                other.dequeue_many(99)
            return
        session.rollback()
        session.enqueue_many(LARGE)
        session.flush()

    return Case(lambda: session.enqueue_many(LARGE), again, [{"q": [] if goes_on else [A, *LARGE]}])


def _rollback(world: WorkerWorld, end: str, **settings: Any) -> Case:
    world.open("q", *MANY[:20], **settings)
    session = world.session("q")
    session.dequeue_many(7)
    _put(session, C)
    session.enqueue(B)

    def again() -> None:
        with suppress(persistentqueue.ClosedError):
            session.rollback()

    return Case(getattr(session, end), again, [{"q": MANY[:20]}])


def _put_back(world: WorkerWorld, dies: bool = False) -> Case:
    queue = world.open("q", *MANY[:9])
    session = world.session("q")
    session.dequeue_many(5)
    world.dies_behind = 0 if dies else None

    def call() -> None:
        with suppress(SessionLostError):
            session.put_back(3)

    def again() -> None:
        world.dies_behind = None
        if dies:
            session.rollback()
            assert queue.clear() == 9
            return
        held = session.held
        assert held in {2, 5} and queue.stats().held == held, held
        session.flush()
        assert queue.peek(9) == MANY[held:9]
        with queue.transaction() as other:
            other.dequeue_many(9)

    return Case(call, again, [{"q": []}])


def _reject(world: WorkerWorld) -> Case:
    queue = world.open("q", *MANY[:6], **COUNTED)
    session = world.session("q")
    session.dequeue_many(3)
    session.enqueue(C)

    def again() -> None:
        session.flush()
        found = queue.peek(9)
        assert sorted(found) in (sorted([*MANY[3:6], C]), sorted([MANY[1], *MANY[3:6], C])), found
        queue.clear()

    return Case(lambda: session.reject(MANY[1]), again, [{"q": []}])


def _call(world: WorkerWorld, method: str, dies: bool = False) -> Case:
    """Make a call of the queue that is not one of a session."""
    queue = world.open("q", *MANY[:9])
    if dies:
        world.dies_behind = 0
    calls: dict[str, Callable[[], object]] = {
        "len": lambda: len(queue),
        "peek": lambda: queue.peek(5),
        "browse_all": lambda: list(queue.browse_all()),
        "sizes": queue.sizes,
        "identity": lambda: queue.identity,
    }
    call = calls.get(method) or getattr(queue, method)
    return Case(call, call, [{"q": [] if method == "clear" else MANY[:9]}])


def _connect(world: WorkerWorld) -> Case:
    """Connect, and begin the first call of a session."""
    world.open("q", A, B).close()

    def call() -> None:
        world.connect("q")
        assert world.session("q").dequeue() == A

    def again() -> None:
        for session in world.sessions:
            session.close()
        call()

    return Case(call, again, [{"q": [A, B]}])


def _close(world: WorkerWorld) -> Case:
    queue = world.open("q", A, B)
    session = world.session("q")
    assert session.dequeue() == A
    session.enqueue(C)

    def again() -> None:
        queue.close()
        world.settle()
        assert world.owners["q"].public.stats().held == 0

    return Case(queue.close, again, [{"q": [A, B]}])


def _block(world: WorkerWorld, fails: bool) -> Case:
    """Consume items in a block that is one transaction, or that raises."""
    queue = world.open("q", *MANY[:4], **COUNTED)

    def call() -> None:
        with suppress(ZeroDivisionError), queue.transaction() as session:
            if (item := session.dequeue()) is not None:
                session.enqueue(item)
            if fails:
                raise ZeroDivisionError

    def again() -> None:
        assert fails or sorted(queue.browse_all()) == MANY[:4]
        assert not fails or list(queue.browse_all()) == MANY[:4]
        queue.clear()

    return Case(call, again, [{"q": []}])


def _extend(world: WorkerWorld) -> Case:
    world.open("q", *MANY[:4])
    session = world.session("q")
    session.dequeue_many(2)

    def again() -> None:
        session.extend()
        session.flush()

    return Case(session.extend, again, [{"q": MANY[2:4]}])


def _standard(world: WorkerWorld, method: str) -> Case:
    """Make a call of a queue that looks like ``queue.Queue``. A ``get`` that is interrupted may have the item still, as
    one of ``queue.Queue`` may: the close gives it back."""
    world.open("q", A, B).close()
    queue: Queue[Any] = call_on(world.disk, Queue, f"{PATH}/q", shared=True, serve="never", codec=BYTES, **SMALL)
    world.standard = queue
    if method == "task_done":
        assert queue.get() == A
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: queue.put(C),
        "get": queue.get,
        "task_done": queue.task_done,
        "qsize": queue.qsize,
    }

    def again() -> None:
        queue.close()

    may_hold = {"put": [[A, B], [A, B, C]], "task_done": [[A, B], [B]]}.get(method, [[A, B]])
    return Case(calls[method], again, [{"q": each} for each in may_hold])


def _joint_flush(
    world: WorkerWorld, marker: tuple[str, int] | None = None, behind: str = "", dies: str = "", takes: bool = True
) -> Case:
    """Flush the sessions of two queues together, and repeat it, perhaps while the owner of both dies.

    ``behind`` is a call of the other session that is made before the flush is repeated.
    """
    source, target = world.open("a", A, B), world.open("b")
    out, into = joint_sessions(world, source, target)
    if takes:
        assert out.dequeue() == A
    into.enqueue(A)
    if dies:
        world.dies_behind, world.answers_last = 1, dies == "after"  # an item is sent first

    def call() -> None:
        with suppress(SessionLostError):
            out.flush(marker)

    def again() -> None:
        world.dies_behind = None
        with suppress(*((SessionLostError,) if dies else ())):
            if behind:
                getattr(into, behind)()
            if behind != "close":
                out.flush(marker)
        assert behind or dies or list(target.browse_all()) == [A]

    left = [B] if takes else [A, B]
    may_hold = [{"a": left, "b": [A]}]
    if behind or dies:
        may_hold += [{"a": [A, B], "b": []}]
    if behind and not dies:  # the flush was undone, and the other session has dropped its item since
        may_hold += [{"a": left, "b": []}]
    return Case(call, again, may_hold)


SCENARIOS: dict[str, Scenario] = {
    "worker: enqueue": _enqueue,
    "worker: spill": partial(_spill, goes_on=False),
    "worker: spill, and go on": partial(_spill, goes_on=True),
    "worker: dequeue": partial(_dequeue, count=1),
    "worker: dequeue many": partial(_dequeue, count=50),
    "worker: dequeue with prefetch": partial(_dequeue, count=1, prefetch=True),
    "worker: dequeue many with prefetch": partial(_dequeue, count=3, prefetch=True),
    "worker: dequeue with attempts": partial(_dequeue, count=2, **COUNTED),
    "worker: dequeue as the owner dies": partial(_dequeue, count=9, dies=True),
    "worker: dequeue with a codec": partial(_dequeue_numbers, count=1),
    "worker: dequeue many with a codec": partial(_dequeue_numbers, count=2, prefetch=True),
    "worker: dequeue with a codec and attempts": partial(_dequeue_numbers, count=2, **COUNTED),
    "worker: wait for an item": partial(_wait, what="dequeue"),
    "worker: wait": partial(_wait, what="wait"),
    "worker: wait for room": partial(_wait, what="flush"),
    "worker: flush in": partial(_flush, taken=0, items=[B]),
    "worker: flush out": partial(_flush, taken=3, items=[]),
    "worker: flush both": partial(_flush, taken=3, items=[B, C], sent=True),
    "worker: flush a marker": partial(_flush, taken=1, items=[B], marker=("m", 3)),
    "worker: flush nothing": partial(_flush, taken=0, items=[]),
    "worker: flush without a wait": partial(_flush, taken=1, items=[B], wait=False),
    "worker: flush with prefetch": partial(_flush, taken=3, items=[B], prefetch=True),
    "worker: flush with attempts": partial(_flush, taken=3, items=[B], **COUNTED),
    "worker: flush in as the owner dies before it": partial(_flush, taken=0, items=[B], dies="before"),
    "worker: flush in as the owner dies after it": partial(_flush, taken=0, items=[B], dies="after"),
    "worker: flush as the owner dies before it": partial(_flush, taken=2, items=[B], dies="before"),
    "worker: flush as the owner dies after it": partial(_flush, taken=2, items=[B], dies="after"),
    "worker: flush a marker as the owner dies after it": partial(
        _flush, taken=2, items=[B], marker=("m", 1), dies="after"
    ),
    "worker: flush with prefetch as the owner dies after it": partial(
        _flush, taken=2, items=[B], prefetch=True, dies="after"
    ),
    "worker: rollback": partial(_rollback, end="rollback"),
    "worker: rollback with attempts": partial(_rollback, end="rollback", **COUNTED),
    "worker: close a session": partial(_rollback, end="close"),
    "worker: put back": _put_back,
    "worker: put back as the owner dies": partial(_put_back, dies=True),
    "worker: reject": _reject,
    "worker: extend": _extend,
    "worker: block": partial(_block, fails=False),
    "worker: block that raises": partial(_block, fails=True),
    **{
        f"worker: {method}": partial(_call, method=method)
        for method in ("len", "peek", "browse_all", "sizes", "stats", "clear", "identity")
    },
    "worker: len as the owner dies": partial(_call, method="len", dies=True),
    "worker: subscribe": partial(subscriptions, method="subscribe"),
    "worker: unsubscribe": partial(subscriptions, method="unsubscribe"),
    "worker: connect": _connect,
    "worker: close the queue": _close,
    "worker: transaction": several,
    "worker: transaction that is refused": refuse_several,
    **{
        f"worker: {name} of the standard queue": partial(_standard, method=name)
        for name in ("put", "get", "task_done", "qsize")
    },
    "worker: joint flush": _joint_flush,
    "worker: joint flush with a marker": partial(_joint_flush, marker=("m", 1)),
    "worker: joint flush, then the other session": partial(_joint_flush, behind="dequeue"),
    "worker: joint flush, then roll the other back": partial(_joint_flush, behind="rollback"),
    "worker: joint flush, then close the other": partial(_joint_flush, behind="close"),
    "worker: joint flush as the owner dies before it": partial(_joint_flush, dies="before"),
    "worker: joint flush as the owner dies after it": partial(_joint_flush, dies="after"),
    "worker: joint flush in as the owner dies after it": partial(_joint_flush, dies="after", takes=False),
    "worker: joint flush as the owner dies after it, then the other": partial(
        _joint_flush, dies="after", behind="dequeue"
    ),
}
"""Scenarios to interrupt, by name."""

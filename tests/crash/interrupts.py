"""Interruptions: a signal handler raises at each place where CPython checks for signals, in each public call.

CPython runs signal handlers in the main thread, between two instructions: at the start of a function, after a call, and
at a jump back. ``run_places`` traces a call once to find all such places in it. Then it makes the call once for each
place, on a simulated disk, and raises there. In a call that postpones Ctrl-C, it sends the signal instead.

Half of the places are interrupted in a program that has the handlers of Python alone, so that shielded calls postpone
Ctrl-C. The others are interrupted in a program with a handler of its own, so that a helper thread makes the shielded
calls (see ``signal_shield``).

After each interruption, only its exception came out. The queue object still works, no lock is taken, and no item is
held that no caller was given. Then the call is made again. After that, and after a reopening and a power cut, the
queue holds exactly the expected items.

Interruptions at random moments, by real signals, are in ``signals``.
"""

from __future__ import annotations

import dis
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import persistentqueue
from persistentqueue import PersistentQueue, Producer, Session, transaction
from persistentqueue.errors import CorruptionError, PersistentQueueError, QueueFullError
from persistentqueue.runtime.maintenance import Maintenance
from persistentqueue.runtime.pipeline import pipelines_of
from persistentqueue.runtime.session_state import BUSY, TORN, SessionParts
from persistentqueue.system import signal_shield
from persistentqueue.system.disk import Disk
from persistentqueue.system.signal_shield import end_helper, is_postponing
from tests.support.disks import call_on
from tests.support.queues import receive_signals

from .disk import SimulatedDisk

_IDLE_SECONDS, _POLL_SECONDS = 60.0, 0.005
"""The longest wait for an idle queue, and the time between two looks."""
_PACKAGE = str(Path(persistentqueue.__file__).parent)
_SHIELD = str(signal_shield.__file__)
_TESTS = str(Path(__file__).parent)
_LOOKING = ("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD", "RESUME", "JUMP_ABSOLUTE")
"""Prefixes of the names of instructions after which CPython checks for signals."""
SMALL: dict[str, Any] = {"segment_bytes": 64 * 1024, "log_bytes": 64 * 1024}
PATH = "/queues"
PARTS = 32
"""Number of parts into which the places of all scenarios are divided."""


class Interruption(KeyboardInterrupt):
    """The exception that the signal handler raises."""


class ViolationError(AssertionError):
    """A broken promise; the message says how to replay it."""


class Place(NamedTuple):
    """An instruction after which CPython may check for signals."""

    code: CodeType
    offset: int

    def __str__(self) -> str:
        code = self.code
        lines = [line for start, _, line in code.co_lines() if start <= self.offset and line is not None]
        name = getattr(code, "co_qualname", code.co_name)
        return f"{os.path.basename(code.co_filename)}:{lines[-1] if lines else 0} {name}+{self.offset}"


@lru_cache(None)
def _instructions(code: CodeType) -> dict[int, str]:
    return {each.offset: each.opname for each in dis.get_instructions(code)}


@lru_cache(None)
def _handlers(code: CodeType) -> list[tuple[int, int, int]]:
    """Return the ranges of instructions with a handler, as ``start, end, handler``; empty if CPython does not tell."""
    parse: Any = getattr(dis, "_parse_exception_table", None)
    return [(each.start, each.end, each.target) for each in parse(code)] if parse is not None else []


def _handler(code: CodeType, offset: int) -> tuple[int, int, int] | None:
    return next((each for each in _handlers(code) if each[0] <= offset < each[1]), None)


class Tracer:
    """Records all places in a call, and raises when it reaches one of them for the n-th time.

    Python code of the simulated disk stands for a system call, in which there is no place.
    """

    def __init__(self, target: tuple[Place, int] | None = None) -> None:
        self.seen: dict[Place, int] = {}
        self.has_raised = False
        self._target = target
        self._last: dict[FrameType, int] = {}
        self._inside: dict[FrameType, bool] = {}

    def run(self, call: Callable[[], object]) -> None:
        """Make the call, traced."""
        before = sys.gettrace(), sys.getprofile()
        sys.setprofile(self._profile)
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(before[0])
            sys.setprofile(before[1])
            self._last.clear()
            self._inside.clear()

    def _is_inside(self, frame: FrameType | None) -> bool:
        """Return if the frame belongs to the package, or to code that the package has called."""
        if frame is None:
            return False
        known = self._inside.get(frame)
        if known is None:
            file, name = frame.f_code.co_filename, frame.f_code.co_name
            if file.startswith(_TESTS) or name == "__del__":  # an exception of a finalizer is not raised in the caller
                known = False
            else:
                known = file.startswith(_PACKAGE) or self._is_inside(frame.f_back)
            self._inside[frame] = known
        return known

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "call" or not self._is_inside(frame) or _is_shielded(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            code, offset, last = frame.f_code, frame.f_lasti, self._last.get(frame)
            self._last[frame] = offset
            looks = last is not None and _instructions(code).get(last, "").startswith(_LOOKING)
            # An error raised now seems to come from this instruction, so that must have the same handler.
            if looks and last is not None and _handler(code, last) == _handler(code, offset):
                self._look(Place(code, last))
        elif event in {"return", "exception"}:  # a call that raised is no place: its handler is next
            self._last.pop(frame, None)
        return self._step

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        # After a function of C, the error comes from the call itself, like that of a signal handler.
        if event == "c_return" and self._is_inside(frame) and not _is_shielded(frame):
            self._look(Place(frame.f_code, frame.f_lasti))

    def _look(self, place: Place) -> None:
        count = self.seen[place] = self.seen.get(place, 0) + 1
        if not self.has_raised and self._target is not None and self._target == (place, count):
            self.has_raised = True
            if is_postponing():
                signal.raise_signal(signal.SIGINT)
            else:
                raise Interruption


def _is_shielded(frame: FrameType) -> bool:
    """Return whether a handler that comes here is postponed. The shield itself stands for all the code within it."""
    return is_postponing() and frame.f_code.co_filename != _SHIELD


# --- scenarios -------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """A simulated machine with queues, which a scenario prepares."""

    machine: SimulatedDisk = field(default_factory=SimulatedDisk)
    queues: dict[str, PersistentQueue[Any]] = field(default_factory=dict)
    sessions: list[Session[Any]] = field(default_factory=list)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    block: object = None
    """A block that stays open, since its end would close the sessions."""
    seconds: float = 0.0
    """Time of the monotonic clock."""
    damaged: bytes | None = None
    """Bytes that are read wrong, wherever they are; None if the device is sound."""

    @property
    def disk(self) -> Disk:
        """Disk of the machine."""
        return replace(self.machine.disk, monotonic=lambda: self.seconds, pread=self._pread)

    def _pread(self, fd: int, length_bytes: int, offset: int) -> bytes:
        data = self.machine.disk.pread(fd, length_bytes, offset)
        return data if self.damaged is None else data.replace(self.damaged, bytes(len(self.damaged)))

    def open(self, name: str, *items: bytes, **settings: Any) -> PersistentQueue[Any]:
        """Open a queue that holds these items."""
        self.settings[name] = SMALL | settings
        queue = self.queues[name] = call_on(self.disk, PersistentQueue, PATH, name, **self.settings[name])
        if items:
            with queue.transaction() as session:
                session.enqueue_many(items)
        return queue

    def again(self, name: str) -> PersistentQueue[Any]:
        """Close the queue, and open it again: nothing is in memory."""
        self.queues[name].close()
        queue = self.queues[name] = call_on(self.disk, PersistentQueue, PATH, name, **self.settings[name])
        return queue

    def session(self, name: str) -> Session[Any]:
        """Return a new session of the queue."""
        session = self.queues[name].session("interrupted")
        self.sessions.append(session)
        return session


class Case(NamedTuple):
    """A call to interrupt, a call to make after it, and the contents that the queues may then have."""

    call: Callable[[], object]
    again: Callable[[], object]
    may_hold: Sequence[dict[str, list[bytes]]]


Scenario = Callable[[World], Case]
Interrupt = Callable[[Any, "tuple[Place, int] | None"], dict[Place, int]]
"""Runs a scenario, interrupted at a target, and returns the places that it reached."""
A, B, C = b"a" * 30, b"b" * 40, b"c" * 50
MANY = [b"%6d" % number for number in range(400)]
LARGE = [b"%06d" % number * 2000 for number in range(40)]


def _flush(world: World, items: list[bytes], marker: tuple[str, int] | None = None, **settings: Any) -> Case:
    queue = world.open("q", A, **settings)
    session = world.session("q")
    session.enqueue_many(items)

    def again() -> None:
        session.flush(marker)
        if marker is not None:
            assert queue.marker(marker[0]) == marker[1]

    return Case(lambda: session.flush(marker), again, [{"q": [A, *items]}])


def _hand_over(world: World, given: int, **settings: Any) -> Case:
    """Hand a flush over, as the first one of its session or behind ``given`` others, and wait for it."""
    queue = world.open("q", A, **settings)
    session = world.session("q")
    for _ in range(given):
        session.enqueue(B)
        session.flush(wait=False)
    queue.sync()
    session.enqueue(C)

    def call() -> None:
        session.flush(wait=False)
        session.flush()

    return Case(call, session.flush, [{"q": [A, *[B] * given, C]}])


def _wait_for_a_ticket(world: World) -> Case:
    """Wait for a flush that was handed over. Its end waits for no lock that an interrupted wait has kept."""
    queue = world.open("q", A)
    session = world.session("q")
    session.enqueue(B)
    ticket = session.flush(wait=False)
    return Case(ticket.result, queue.sync, [{"q": [A, B]}])


def _dequeue(world: World, count: int, is_cold: bool = False, **settings: Any) -> Case:
    world.open("q", *MANY, **settings)
    if is_cold:
        world.again("q")
    session = world.session("q")

    def call() -> None:
        if count == 1:
            session.dequeue()
        else:
            session.dequeue_many(count)

    def again() -> None:
        session.rollback()
        taken = [session.dequeue()] if count == 1 else session.dequeue_many(count)
        assert taken == MANY[: len(taken)] and taken, taken
        session.flush()
        rest = world.queues["q"].peek(len(MANY))
        assert [*taken, *rest] == MANY
        with world.queues["q"].transaction() as other:
            assert other.dequeue_many(len(MANY)) == rest

    return Case(call, again, [{"q": []}])


def _consume(world: World, count: int, **settings: Any) -> Case:
    world.open("q", *MANY, **settings)
    session = world.session("q")
    session.dequeue_many(count)
    return Case(session.flush, session.flush, [{"q": MANY[count:]}])


def _go_on_behind_a_dequeue(world: World) -> Case:
    """Continue with the session and flush it: an item that the caller did not get is not consumed."""
    world.open("q", *MANY[:9])
    session = world.session("q")
    got: list[bytes] = []

    def call() -> None:
        for _ in range(3):
            item = session.dequeue()
            assert item is not None
            got.append(item)

    def again() -> None:
        session.flush()
        rest = world.queues["q"].peek(9)
        # An interruption between the return of ``dequeue`` and the next step loses an item of the caller.
        assert [*got, *rest] == MANY[:9], (got, rest)
        with world.queues["q"].transaction() as other:
            other.dequeue_many(9)

    return Case(call, again, [{"q": []}])


def _several(world: World) -> Case:
    source, target = world.open("a", A, B), world.open("b")

    def call() -> None:
        with transaction(source, target) as (out, into):
            item = out.dequeue()
            assert item is not None
            into.enqueue(item)

    def again() -> None:
        while len(source):
            call()

    return Case(call, again, [{"a": [], "b": [A, B]}])


def _refuse_several(world: World) -> Case:
    """Flush a transaction over two queues, one of which has no room for its item."""
    source, target = world.open("a", A), world.open("b", B, max_items=1)
    block: Any = transaction(source, target)
    out, into = block.__enter__()
    world.block = block
    world.sessions += [out, into]
    assert out.dequeue() == A
    into.enqueue(A)

    def call() -> None:
        with suppress(QueueFullError):
            out.flush()

    def again() -> None:
        assert (out.dequeue(), into.dequeue()) == (None, B)
        out.flush()

    return Case(call, again, [{"a": [], "b": [A]}])


def _rollback(world: World, end: str) -> Case:
    world.open("q", *MANY)
    session = world.session("q")
    session.dequeue_many(7)
    session.enqueue(C)

    def again() -> None:
        with suppress(persistentqueue.ClosedError):
            session.rollback()

    return Case(getattr(session, end), again, [{"q": MANY}])


def _put_back(world: World) -> Case:
    world.open("q", *MANY[:9])
    session = world.session("q")
    session.dequeue_many(5)

    def again() -> None:
        held = world.queues["q"].stats().held
        assert 2 <= held <= 5, held
        session.rollback()

    return Case(lambda: session.put_back(3), again, [{"q": MANY[:9]}])


def _spill(world: World) -> Case:
    queue = world.open("q", A)
    session = Session(SessionParts(queue._open(), spill_bytes=64 * 1024))
    world.sessions.append(session)

    def again() -> None:
        session.rollback()
        session.enqueue_many(LARGE)
        session.flush()

    return Case(lambda: session.enqueue_many(LARGE), again, [{"q": [A, *LARGE]}])


def _enqueue(world: World) -> Case:
    world.open("q", A)
    session = world.session("q")
    put: list[bytes] = []

    def call() -> None:
        for item in (B, C):
            session.enqueue(item)
            put.append(item)

    def again() -> None:
        session.flush()
        found = world.queues["q"].peek(9)[1:]
        # The item whose enqueue was interrupted may be in the session, or not.
        assert found == [B, C][: len(found)] and len(put) <= len(found) <= len(put) + 1, (put, found)
        with world.queues["q"].transaction() as other:
            other.dequeue_many(9)

    return Case(call, again, [{"q": []}])


def _housekeeping(world: World, method: str) -> Case:
    queue = world.open("q", *LARGE)
    with queue.session() as session:
        for _ in range(len(LARGE) // 2):
            session.dequeue()
            session.put_back()
            session.dequeue_many(1)
        session.flush()
    call = getattr(queue, method)
    return Case(call, call, [{"q": LARGE[len(LARGE) // 2 :]}])


def _clear(world: World) -> Case:
    queue = world.open("q", *MANY)
    return Case(queue.clear, queue.clear, [{"q": []}])


def _look(world: World, method: str) -> Case:
    queue = world.open("q", *MANY)
    queue = world.again("q")
    call = {
        "peek": lambda: queue.peek(50),
        "browse_all": lambda: list(queue.browse_all()),
        "stats": queue.stats,
        "explain": queue.explain,
        "len": lambda: len(queue),
    }[method]
    return Case(call, call, [{"q": MANY}])


def _set_aside(world: World, method: str) -> Case:
    """Make a call that meets a damaged block."""
    world.open("q", A, B)
    with world.queues["q"].transaction() as session:
        session.enqueue(C)
    queue = world.again("q")
    session = world.session("q")
    world.damaged = A

    def call() -> None:
        with suppress(CorruptionError):
            if method == "browse":
                list(queue.browse())
            else:
                session.dequeue()

    def again() -> None:
        call()
        session.rollback()
        assert (queue.peek(9), queue.stats().damaged) == ([C], 2), (queue.peek(9), queue.stats().damaged)
        world.damaged = None

    return Case(call, again, [{"q": [A, B, C]}])


def _subscriptions(world: World, method: str) -> Case:
    queue = world.open("q", A, B)
    if method == "unsubscribe":
        queue.subscribe("other")

    def again() -> None:
        if method == "subscribe":
            assert len(queue.subscribe("other")) == 2
        else:
            with suppress(persistentqueue.SubscriptionNotFoundError):
                queue.unsubscribe("other")
            assert queue.subscriptions() == []

    return Case(lambda: getattr(queue, method)("other"), again, [{"q": [A, B]}])


def _open(world: World, is_clean: bool) -> Case:
    queue = world.open("q", *MANY)
    if is_clean:
        queue.close()
    else:
        queue._open().disown("killed")
    del world.queues["q"]

    def call() -> None:
        if "q" not in world.queues:
            world.queues["q"] = call_on(world.disk, PersistentQueue, PATH, "q", **SMALL)

    return Case(call, call, [{"q": MANY}])


def _close(world: World) -> Case:
    queue = world.open("q", *MANY)

    def again() -> None:
        queue.close()
        world.queues["q"] = call_on(world.disk, PersistentQueue, PATH, "q", **SMALL)

    return Case(queue.close, again, [{"q": MANY}])


def _delete(world: World) -> Case:
    """Delete a queue. Its lock is free then, so that the rest of it can be opened."""
    world.open("q", *MANY).close()
    del world.queues["q"]

    def call() -> None:
        with suppress(persistentqueue.QueueNotFoundError):
            call_on(world.disk, persistentqueue.delete_queue, PATH, "q")

    def again() -> None:
        call()
        world.open("q")

    return Case(call, again, [{"q": []}])


def _move(world: World) -> Case:
    """Move the segments of a queue. All locks are free then, so that the move can be made again."""
    world.open("q", *MANY).close()
    del world.queues["q"]

    def call() -> None:
        call_on(world.disk, persistentqueue.move_data, PATH, "q", data_path="/media")

    def again() -> None:
        call()
        world.open("q")

    return Case(call, again, [{"q": MANY}])


def _repair(world: World) -> Case:
    """Repair a queue that its owner has left without a close. Its lock is free then, so that it can be made again."""
    world.open("q", *MANY)._open().disown("killed")
    del world.queues["q"]

    def call() -> None:
        call_on(world.disk, persistentqueue.repair, PATH, "q")

    def again() -> None:
        call()
        world.open("q")

    return Case(call, again, [{"q": MANY}])


def _wait(world: World, what: str) -> Case:
    if what == "dequeue":
        queue = world.open("q")
        session = world.session("q")
        return Case(lambda: session.dequeue(timeout=0.002), lambda: len(queue), [{"q": []}])
    queue = world.open("q", A, max_items=1, full="block")
    session = world.session("q")
    session.enqueue(B)

    def call() -> None:
        with suppress(QueueFullError):
            session.flush(timeout=0.002)

    def again() -> None:
        assert queue.stats().waiting == 0
        with queue.transaction() as other:
            assert other.dequeue() == A
        session.flush(timeout=60)

    return Case(call, again, [{"q": [B]}])


def _flush_all(world: World) -> Case:
    queue = world.open("q")
    sessions = [world.session("q") for _ in range(3)]
    for number, session in enumerate(sessions):
        session.enqueue(b"%d" % number)
    return Case(lambda: queue.flush_all(sessions), lambda: queue.flush_all(sessions), [{"q": [b"0", b"1", b"2"]}])


def _retries(world: World, what: str) -> Case:
    queue = world.open("q", A, B, max_attempts=100, dead_letter="dead")
    world.queues["dead"] = queue.dead_letters
    session = world.session("q")
    if what == "dequeue":

        def again() -> None:
            session.rollback()
            assert session.dequeue() == A
            session.flush()

        return Case(session.dequeue, again, [{"q": [B]}])
    assert session.dequeue() == A
    session.reject(A, "bad", retry=False)

    def is_buried() -> None:
        session.flush()
        assert len(queue.dead_letters) == 1, len(queue.dead_letters)

    return Case(session.flush, is_buried, [{"q": [B]}])


def _delay(world: World, end: str) -> Case:
    """End a session whose items are ready again much later."""
    world.open("q", *MANY[:6], retry_delay_seconds=3600.0)
    session = world.session("q")
    assert len(session.dequeue_many(4)) == 4

    def again() -> None:
        with suppress(persistentqueue.ClosedError):
            session.rollback()

    return Case(getattr(session, end), again, [{"q": MANY[:6]}])


def _due(world: World, method: str) -> Case:
    """Make a call that is the first one to see that the delay of some items is over."""
    queue = world.open("q", *MANY[:6], retry_delay_seconds=60.0)
    session = world.session("q")
    assert len(session.dequeue_many(3)) == 3
    session.rollback()
    world.seconds = 100.0
    calls: dict[str, Callable[[], object]] = {
        "dequeue": session.dequeue,
        "len": lambda: len(queue),
        "wait": partial(queue.wait, 0.0),
    }

    def again() -> None:
        session.close()
        world.seconds = 200.0
        assert queue.peek(9) == MANY[:6], queue.peek(9)

    return Case(calls[method], again, [{"q": MANY[:6]}])


def _reject(world: World, delay_seconds: float, dead_letter: str | None) -> Case:
    """Flush a session that has rejected some of its items."""
    delays: Any = {"retry_delay_seconds": lambda _: delay_seconds}
    queue = world.open("q", *MANY[:6], **delays, dead_letter=dead_letter)
    session = world.session("q")
    assert len(session.dequeue_many(4)) == 4
    session.reject(MANY[0])
    session.reject(MANY[2])
    if dead_letter is not None:
        world.queues[dead_letter] = queue.dead_letters
        session.reject(MANY[3], retry=False)
    session.enqueue(C)

    def again() -> None:
        session.flush()
        assert dead_letter is None or len(queue.dead_letters) == 1, len(queue.dead_letters)
        assert len(queue) == (3 if delay_seconds else 5), len(queue)

    return Case(session.flush, again, [{"q": [MANY[0], MANY[2], *MANY[4:6], C]}])


def _fail(world: World) -> Case:
    """Let an exception leave the block of a session that holds an item at its last attempt."""
    queue = world.open("q", A, B, max_attempts=1, dead_letter="dead")
    world.queues["dead"] = queue.dead_letters
    session = world.session("q")
    assert session.dequeue() == A

    def call() -> None:
        with suppress(ZeroDivisionError), session:
            raise ZeroDivisionError

    return Case(call, session.close, [{"q": [B]}, {"q": [A, B]}])


def _bury_beside(world: World) -> Case:
    """Flush a transaction over several queues, one of which gets a letter from another one, and an item."""
    queue, other = world.open("a", A, B, dead_letter="dead"), world.open("b")
    dead = world.queues["dead"] = queue.dead_letters
    block: Any = transaction(queue, other, dead)
    taking, putting, burying = block.__enter__()
    world.block = block
    world.sessions += [taking, putting, burying]
    assert taking.dequeue() == A
    taking.reject(A, retry=False)
    putting.enqueue(C)
    burying.enqueue(B)

    def again() -> None:
        taking.flush()
        assert (len(queue), len(other), len(dead)) == (1, 1, 2), (len(queue), len(other), len(dead))

    return Case(taking.flush, again, [{"a": [B], "b": [C]}])


def _adopt(world: World) -> Case:
    queue = world.open("q")
    producer = call_on(world.disk, Producer, PATH, "q")
    producer.enqueue_many([A, B])
    producer.flush()
    session = world.session("q")

    def again() -> None:
        session.rollback()
        assert session.dequeue_many(9) == [A, B]
        session.flush()

    del queue
    return Case(lambda: session.dequeue_many(9), again, [{"q": []}])


def _requeue(world: World) -> Case:
    queue = world.open("q", A, B, dead_letter="dead")
    world.queues["dead"] = queue.dead_letters
    with queue.session() as session:
        while (item := session.dequeue()) is not None:
            session.reject(item, retry=False)
        session.flush()
    return Case(queue.requeue, queue.requeue, [{"q": [A, B], "dead": []}])


SCENARIOS: dict[str, Scenario] = {
    "enqueue": _enqueue,
    "flush one item": partial(_flush, items=[B]),
    "flush many items": partial(_flush, items=MANY),
    "flush large items": partial(_flush, items=LARGE, inline_bytes=4096),
    "flush with a marker": partial(_flush, items=[B], marker=("m", 3)),
    "flush into a full log": partial(_flush, items=LARGE[:5], log_bytes=64 * 1024),
    "flush with limits": partial(_flush, items=[B, C], max_items=100, max_bytes=10**6),
    "flush without sync": partial(_flush, items=[B], sync=False),
    "flush by a pipeline": partial(_hand_over, given=0),
    "flush by a pipeline that runs": partial(_hand_over, given=1),
    "wait for a ticket": _wait_for_a_ticket,
    "dequeue": partial(_dequeue, count=1),
    "dequeue many": partial(_dequeue, count=50),
    "dequeue from disk": partial(_dequeue, count=1, is_cold=True),
    "dequeue many from disk": partial(_dequeue, count=300, is_cold=True),
    "dequeue without memory": partial(_dequeue, count=9, memory_bytes=0),
    "dequeue, and go on": _go_on_behind_a_dequeue,
    "consume one": partial(_consume, count=1),
    "consume many": partial(_consume, count=300),
    "transaction": _several,
    "transaction that is refused": _refuse_several,
    "rollback": partial(_rollback, end="rollback"),
    "close a session": partial(_rollback, end="close"),
    "put back": _put_back,
    "spill": _spill,
    "trim": partial(_housekeeping, method="trim"),
    "compact": partial(_housekeeping, method="compact"),
    "maintain": partial(_housekeeping, method="maintain"),
    "clear": _clear,
    "peek": partial(_look, method="peek"),
    "browse all": partial(_look, method="browse_all"),
    "stats": partial(_look, method="stats"),
    "explain": partial(_look, method="explain"),
    "len": partial(_look, method="len"),
    "browse a damaged block": partial(_set_aside, method="browse"),
    "dequeue a damaged block": partial(_set_aside, method="dequeue"),
    "subscribe": partial(_subscriptions, method="subscribe"),
    "unsubscribe": partial(_subscriptions, method="unsubscribe"),
    "open": partial(_open, is_clean=True),
    "recover": partial(_open, is_clean=False),
    "close": _close,
    "delete": _delete,
    "move": _move,
    "repair": _repair,
    "wait for an item": partial(_wait, what="dequeue"),
    "wait for room": partial(_wait, what="flush"),
    "flush all": _flush_all,
    "deliver": partial(_retries, what="dequeue"),
    "bury": partial(_retries, what="flush"),
    "rollback with a delay": partial(_delay, end="rollback"),
    "close with a delay": partial(_delay, end="close"),
    "dequeue behind a delay": partial(_due, method="dequeue"),
    "len behind a delay": partial(_due, method="len"),
    "wait behind a delay": partial(_due, method="wait"),
    "reject": partial(_reject, delay_seconds=0.0, dead_letter=None),
    "reject with a delay": partial(_reject, delay_seconds=3600.0, dead_letter=None),
    "reject and bury": partial(_reject, delay_seconds=3600.0, dead_letter="dead"),
    "fail": _fail,
    "bury beside another item": _bury_beside,
    "adopt": _adopt,
    "requeue": _requeue,
}
"""Scenarios to interrupt, by name."""


# --- interrupting a scenario -----------------------------------------------------------------------------------------


def require(condition: object, what: str) -> None:
    """Raise ``ViolationError`` with this text unless the condition is true."""
    if not condition:
        raise ViolationError(what)


def require_idle(queue: PersistentQueue[Any], sessions: Sequence[Session[Any]]) -> None:
    """Raise ``ViolationError`` unless the queue is idle.

    No lock may be taken, and no thread may wait. Each held item must have been given to the caller of its session.
    """
    group = queue._open_queue
    assert group is not None
    line: Any = group._group_commit
    locks = {
        "mutex": group.mutex,
        "writing": group.writing,
        "reading": group._reading,
        "giving_back": group.giving_back,
        "compacting": group._compacting,
    }
    for name, lock in locks.items():
        require(not lock.locked(), f"the lock {name!r} is taken")
    require(not group.inside.keys() - {0}, "a thread seems to be in a call")
    require(line.leader is None and len(line) == 0, "a thread seems to stand in the line")
    if queue.closed:
        return
    require(group._waiters.count == 0 and not group._room_waiters.taken, "a thread seems to wait")
    require(group._store.broken is None, f"the queue is broken: {group._store.broken!r}")
    given = 0
    for session in sessions:
        work = session._transaction
        if session._open_queue is group and work is not None:
            require(session._busy != BUSY, "a session is in a call")
            holds = sum(run[1] for run in session._runs_of(work))
            is_torn = session._busy == TORN  # the next call of the session cleans up
            require(is_torn or holds == work.given, "a session holds what its caller was not given")
            given += holds
    require(queue.stats().held == given, f"{queue.stats().held} items on hold, {given} of them given to a session")


def await_idle(queue: PersistentQueue[Any], sessions: Sequence[Session[Any]]) -> None:
    """Raise ``ViolationError`` unless the queue gets idle within a minute: a thread of its own may be at work in it."""
    deadline = time.monotonic() + _IDLE_SECONDS
    while True:
        try:
            require_idle(queue, sessions)
        except ViolationError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return


def drained(disk: Disk, name: str) -> list[bytes]:
    """Open the queue on this disk, and return all its items."""
    with call_on(disk, PersistentQueue[bytes], PATH, name, **SMALL) as queue:
        return list(queue.browse_all())


def interrupt(scenario: Scenario, target: tuple[Place, int] | None) -> dict[Place, int]:
    """Run the scenario, interrupted at the target; return the places that it reached. Raises ``ViolationError``."""
    world = World()
    try:
        return _interrupt(world, scenario, target)
    finally:
        for queue in world.queues.values():
            with suppress(PersistentQueueError):
                queue.close()


def _interrupt(world: World, scenario: Scenario, target: tuple[Place, int] | None) -> dict[Place, int]:
    case = scenario(world)
    tracer = Tracer(target)
    try:
        tracer.run(case.call)
    except KeyboardInterrupt:
        require(tracer.has_raised, "an interruption that nobody raised")
    else:
        require(not tracer.has_raised, "the interruption did not come out")
    if target is not None and not tracer.has_raised:
        return tracer.seen  # this time the call did not reach the place
    for queue in world.queues.values():
        threads = pipelines_of(queue._open_queue)  # without them, nothing is under way behind the call
        (await_idle if threads else require_idle)(queue, world.sessions)
    case.again()
    for session in world.sessions:
        session.close()
    held = {name: list(queue.browse_all()) for name, queue in world.queues.items() if name in case.may_hold[0]}
    require(held in case.may_hold, f"the queues hold {held}")
    # The power goes: an acknowledged flush is durable, even if it was interrupted.
    is_durable = all(each.get("sync", True) for each in world.settings.values())
    machine = world.machine.cut_power(lambda n: n - 1)
    for queue in world.queues.values():
        queue.close()
    for disk in (world.disk, *([machine.disk] if is_durable else [])):
        found = {name: drained(disk, name) for name in held}
        require(found == held, f"after a reopening the queues hold {found}")
    return tracer.seen


class Report(NamedTuple):
    """Result of a campaign."""

    scenarios: int
    places: int
    interruptions: int
    seconds: float


def run_places(only: str = "", part: int = 0, parts: int = 1) -> Report:
    """Interrupt the scenarios with ``only`` in their names at each place. Raises ``ViolationError``."""
    return run_scenarios(SCENARIOS, interrupt, only, part, parts)


def run_scenarios(scenarios: Mapping[str, Any], run: Interrupt, only: str, part: int, parts: int) -> Report:
    """Interrupt the scenarios with ``only`` in their names at each place: the first time that they reach it, and the
    last. ``run`` runs one of them.

    Raises ``ViolationError`` with the scenario and the place.
    """
    receive_signals()
    chosen = {name: scenario for name, scenario in scenarios.items() if only in name}
    # Maintenance runs in a thread of its own, which would change the places of each run.
    with patch.object(Maintenance, "maintain_soon", lambda _: None):
        return _run_places(chosen, run, part, parts)


@contextmanager
def _handlers_of(name: str) -> Iterator[None]:
    """Have the handlers of a program: those of Python, or one more, so that a helper thread makes shielded calls."""
    before = signal.getsignal(signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, signal.SIG_DFL if name == "Python" else lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, before)


def _run_places(chosen: Mapping[str, Any], run: Interrupt, part: int, parts: int) -> Report:
    began, places, done = time.monotonic(), 0, 0
    for turn, handlers in enumerate(("Python", "the program")):
        with _handlers_of(handlers):
            for name, scenario in chosen.items():
                run(scenario, None)  # imports and objects of the first run do not count
                seen = run(scenario, None)
                for number, (place, count) in enumerate(seen.items()):
                    if number % (2 * parts) != 2 * part + turn:
                        continue
                    places += 1
                    for nth in {1, count}:
                        try:
                            run(scenario, (place, nth))
                        except Exception as error:
                            where = f"{name!r} with the handlers of {handlers}, interrupted at {place}, time {nth}"
                            raise ViolationError(f"{where}: {error!r}") from error
                        done += 1
    end_helper()
    return Report(len(chosen), places, done, time.monotonic() - began)

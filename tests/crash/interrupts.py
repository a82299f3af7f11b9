"""Interruptions: a signal handler raises at each place where CPython checks for signals, in each public call.

CPython runs signal handlers in the main thread, between two instructions: at the start of a function, after a call, and
at a jump back. ``run_places`` traces a call once to find all such places in it. Then it makes the call once for each
place, on a simulated disk, and raises there. In a call that postpones Ctrl-C, it sends the signal instead.

Half of the interruptions raise a ``KeyboardInterrupt``, and half a ``TimeoutError``, but the latter only in code of the
package: modules of Python may swallow it.

Half of the places are interrupted in a program that has the handlers of Python alone, so that shielded calls postpone
Ctrl-C. The others are interrupted in a program with a handler of its own, so that a helper thread makes the shielded
calls (see ``signal_shield``).

After each interruption, only its exception came out. The queue object still works, no lock is taken, and no item is
held that no caller was given. Then the call is made again. After that, and after a reopening and a power cut, the
queue holds exactly the expected items.

The scenarios are in ``scenarios``. Those of workers are in ``worker_scenarios`` and ``session_scenarios``, and those of
a process that becomes an owner in ``owner_interrupts``. Interruptions at random moments, by real signals, are in
``signals``.
"""

from __future__ import annotations

import _weakrefset
import dis
import gc
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import persistentqueue
from persistentqueue import PersistentQueue, Session
from persistentqueue.errors import PersistentQueueError
from persistentqueue.interrupts import signal_shield
from persistentqueue.interrupts.call_guard import BUSY, FREE_THREADED, TORN, Exclusive, SessionCalls
from persistentqueue.interrupts.signal_shield import is_postponing
from persistentqueue.runtime.maintenance import Maintenance
from persistentqueue.runtime.pipeline import pipelines_of
from persistentqueue.system.disk import Disk
from tests.support.disks import call_on
from tests.support.queues import receive_signals

from .scenarios import PATH, SCENARIOS, SMALL, Scenario, World

_IDLE_SECONDS, _POLL_SECONDS = 60.0, 0.005
"""The longest wait for an idle queue, and the time between two looks."""
_PACKAGE = str(Path(persistentqueue.__file__).parent)
_SHIELD = str(signal_shield.__file__)
_TESTS = str(Path(__file__).parent)
_WEAK = str(_weakrefset.__file__)
_LOOKING = ("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD", "RESUME", "JUMP_ABSOLUTE")
"""Prefixes of the names of instructions after which CPython checks for signals."""
_CALLS_NOTHING = "CALL_INTRINSIC"
"""Prefix of the names of instructions that are no calls."""
_CLAIMING = {
    each.__code__
    for each in (Exclusive._begin, Exclusive._claims, Exclusive._claimed, SessionCalls._begin, SessionCalls._claims)
    if FREE_THREADED
}
"""Code that begins a call of a session. Behind its return CPython 3.13 has no look for signals, on which it relies."""
_LOSES = inspect.CO_GENERATOR if sys.version_info[:2] == (3, 12) else 0
"""Flags of code in which Python loses an error of the tracer: that of generators, in Python 3.12."""
PARTS = 32
"""Number of parts into which the places of all scenarios are divided."""


class Interruption(KeyboardInterrupt):
    """The exception that the signal handler raises, as that for Ctrl-C does."""


class AlarmError(TimeoutError):
    """The exception that the signal handler raises, as programs do that bound a call by ``signal.alarm``. Such an error
    is an ``OSError``, as those of system calls are."""


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
def _start(code: CodeType) -> int:
    """Return the offset of the last instruction before the first look for signals; -1 if that look comes first."""
    return next((offset for offset, name in _instructions(code).items() if name == "RESUME"), -1)


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

    raises: type[BaseException] = Interruption

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
        sys._getframe().f_trace_opcodes = True  # Python 3.12 traces opcodes only if a frame asks for it before
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
            # An exception of a finalizer, or of the callback of a weak reference, is not raised in the caller.
            if file.startswith(_TESTS) or _is_finalizing(frame) or (file == _WEAK and name == "_remove"):
                known = False
            else:
                known = file.startswith(_PACKAGE) or self._is_inside(frame.f_back)
            self._inside[frame] = known
        return known

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "call" or not self._is_inside(frame) or _is_shielded(frame) or _LOSES & frame.f_code.co_flags:
            return None
        frame.f_trace, frame.f_trace_lines = self._step, False
        for traces in (False, True):  # Python 3.13 traces the opcodes of a frame with a function, and when this changes
            frame.f_trace_opcodes = traces
        if frame.f_lasti == _start(frame.f_code):  # no opcode event comes for it
            self._look(Place(frame.f_code, max(frame.f_lasti, 0)))
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            code, offset, last = frame.f_code, frame.f_lasti, self._last.get(frame)
            self._last[frame] = offset
            name = _instructions(code).get(last, "") if last is not None else ""
            looks = name.startswith(_LOOKING) and not name.startswith(_CALLS_NOTHING)
            # An error raised now seems to come from this instruction, so that must have the same handler.
            if looks and last is not None and _handler(code, last) == _handler(code, offset):
                self._look(Place(code, last))
        elif event in {"return", "exception"}:  # a call that raised is no place: its handler is next
            self._last.pop(frame, None)
            if frame.f_code in _CLAIMING and frame.f_back is not None:
                self._last.pop(frame.f_back, None)
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
                self.interrupt()

    def interrupt(self) -> None:
        """Do what the signal handler does: raise."""
        raise self.raises


def _is_finalizing(frame: FrameType | None) -> bool:
    """Return whether the frame is in code that the garbage collector has called: a finalizer, or a ``gc.callbacks``."""
    called = {getattr(each, "__code__", None) for each in gc.callbacks}
    while frame is not None and frame.f_code.co_name != "__del__" and frame.f_code not in called:
        frame = frame.f_back
    return frame is not None


def _is_shielded(frame: FrameType) -> bool:
    """Return whether a handler that comes here is postponed. The shield itself stands for all the code within it."""
    return is_postponing() and frame.f_code.co_filename != _SHIELD


# --- interrupting a scenario -----------------------------------------------------------------------------------------

Interrupt = Callable[[Any, "tuple[Place, int] | None"], dict[Place, int]]
"""Runs a scenario, interrupted at a target, and returns the places that it reached."""


def require(condition: object, what: str) -> None:
    """Raise ``ViolationError`` with this text unless the condition is true."""
    if not condition:
        raise ViolationError(what)


def traced(call: Callable[[], object], target: tuple[Place, int] | None) -> Tracer:
    """Make the call, interrupted at the target; return the tracer. Raises ``ViolationError`` unless the interruption
    comes out, and nothing else does."""
    tracer = Tracer(target)
    try:
        tracer.run(call)
    except (KeyboardInterrupt, AlarmError):
        require(tracer.has_raised, "an interruption that nobody raised")
    else:
        require(not tracer.has_raised, "the interruption did not come out")
    return tracer


def require_idle(queue: PersistentQueue[Any], sessions: Sequence[Session[Any]], waiting: int = 0) -> None:
    """Raise ``ViolationError`` unless the queue is idle.

    No lock may be taken, and no thread may wait, except for those ``waiting`` for room. Each held item must have been
    given to the caller of its session.
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
    waits = group._waiters.count, len(group._room_waiters.taken)
    require(waits == (0, waiting), f"threads seem to wait, for items and for room: {waits}")
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


def await_idle(queue: PersistentQueue[Any], sessions: Sequence[Session[Any]], waiting: int = 0) -> None:
    """Raise ``ViolationError`` unless the queue gets idle within a minute: a thread of its own may be at work in it."""
    deadline = time.monotonic() + _IDLE_SECONDS
    while True:
        try:
            require_idle(queue, sessions, waiting)
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
    tracer = traced(case.call, target)
    if target is not None and not tracer.has_raised:
        return tracer.seen  # this time the call did not reach the place
    for queue in world.queues.values():
        threads = pipelines_of(queue._open_queue)  # without them, nothing is under way behind the call
        (await_idle if threads else require_idle)(queue, world.sessions, case.waiting)
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
                        is_alarm = (number // 2 + (nth > 1)) % 2 and place.code.co_filename.startswith(_PACKAGE)
                        raises = AlarmError if is_alarm else Interruption
                        try:
                            with patch.object(Tracer, "raises", raises):
                                run(scenario, (place, nth))
                        except Exception as error:
                            where = (
                                f"{name!r} with the handlers of {handlers}, {raises.__name__} at {place}, time {nth}"
                            )
                            raise ViolationError(f"{where}: {error!r}") from error
                        done += 1
    return Report(len(chosen), places, done, time.monotonic() - began)

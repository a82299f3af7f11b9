"""Re-entry: a signal handler calls the queue at each place where CPython checks for signals, in each public call.

The places and the scenarios are those of ``interrupts``. There the handler raises. Here it makes calls, as that of a
program that closes its queues at SIGTERM does. One handler makes the calls of one kind:

- ``close`` closes each queue.
- ``look`` asks each queue for its length, its statistics and its first item.
- ``work`` trims and compacts each queue, and puts an item.
- ``session`` uses the session that is interrupted, and the other ones.
- ``end`` closes these sessions.

Each of its calls returns or raises a documented error, and so does the interrupted call. None waits for ever: after
``_HANG_SECONDS`` the campaign ends with the tracebacks of all threads. Then no lock is taken, each queue can be closed
and opened again, and no item is there more often than it was put.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from itertools import cycle, islice
from types import FrameType, TracebackType
from typing import Any

import persistentqueue
from persistentqueue import PersistentQueue
from persistentqueue.errors import CorruptionError, PersistentQueueError, QueueNotFoundError

from .interrupts import Place, Report, Tracer, ViolationError, drained, require, require_idle, run_scenarios
from .scenarios import SCENARIOS, Scenario, World

PARTS = 64
"""Number of parts into which the places of all scenarios are divided."""
_HANG_SECONDS = 90.0
_IDLE_SECONDS, _POLL_SECONDS = 30.0, 0.002
"""The longest wait for threads that finish what a call has begun, and the time between two looks."""
_PACKAGE = os.path.dirname(persistentqueue.__file__)
_OF_HANDLER = b"of the handler"
Calls = Callable[[World], Iterator[Callable[[], object]]]


def _close(world: World) -> Iterator[Callable[[], object]]:
    for queue in world.queues.values():
        yield queue.close


def _look(world: World) -> Iterator[Callable[[], object]]:
    for queue in world.queues.values():
        yield queue.__len__
        yield queue.stats
        yield partial(queue.peek, 1)


def _work(world: World) -> Iterator[Callable[[], object]]:
    for queue in world.queues.values():
        yield queue.trim
        yield queue.compact
        yield partial(_put, queue)


def _put(queue: PersistentQueue[Any]) -> None:
    with queue.session() as session:
        session.enqueue(_OF_HANDLER)
        session.flush(timeout=0.0)  # no wait for room: the interrupted call may be what makes it


def _use(world: World) -> Iterator[Callable[[], object]]:
    for session in world.sessions:
        yield partial(session.enqueue, _OF_HANDLER)
        yield session.dequeue
        yield partial(session.flush, timeout=0.0)
        yield session.rollback


def _end(world: World) -> Iterator[Callable[[], object]]:
    for session in world.sessions:
        yield session.close


KINDS: dict[str, Calls] = {"close": _close, "look": _look, "work": _work, "session": _use, "end": _end}


_IDLE_BEHIND = {name: each for name, each in SCENARIOS.items() if name != "call back when a ticket is done"}
"""The scenarios behind whose calls no thread waits. The flush of the other one waits for room until its second call."""


class CallingTracer(Tracer):
    """Makes the calls of a handler at its target."""

    def __init__(self, target: tuple[Place, int] | None, handle: Callable[[], None]) -> None:
        super().__init__(target)
        self._handle = handle

    def interrupt(self) -> None:
        """Do what the signal handler does."""
        self._handle()


class _Handler:
    """The signal handler, with the errors of its calls that no document names."""

    def __init__(self, world: World, calls: Calls) -> None:
        self._world, self._calls = world, calls
        self.bare: list[str] = []

    def __call__(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """Make the calls, also if one of them raises."""
        for call in list(self._calls(self._world)):
            self.documented(call)

    def documented(self, call: Callable[[], object]) -> None:
        """Make a call, and note an error of the package that is not documented.

        A scenario may raise any error of its own: the handler has changed its queue.
        """
        try:
            call()
        except (PersistentQueueError, ValueError):
            pass
        except Exception as error:
            if _is_of_package(error.__traceback__):
                self.bare.append(traceback.format_exc())


def _is_of_package(trace: TracebackType | None) -> bool:
    """Return whether code of the package has raised the error, and no function of the scenario that it called."""
    last = ""
    while trace is not None:
        last, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    return last.startswith(_PACKAGE)


def _await_idle(queue: PersistentQueue[Any]) -> None:
    """Raise ``ViolationError`` unless no lock is taken, and no thread waits or is in a call.

    A handler may leave work to a thread. Sessions may hold anything, since the handler has used them.
    """
    deadline = time.monotonic() + _IDLE_SECONDS
    while True:
        try:
            require_idle(queue, [])
        except ViolationError as error:
            if "on hold" in str(error):
                return
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return


def reenter(kinds: Iterator[str], scenario: Scenario, target: tuple[Place, int] | None) -> dict[Place, int]:
    """Run the scenario with the next kind of handler at the target; return the places that it reached. Raises
    ``ViolationError``."""
    world, kind = World(), next(kinds)
    handler = _Handler(world, KINDS[kind])
    before = signal.signal(signal.SIGINT, handler)
    faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
    try:
        return _run(world, handler, scenario, target)
    except ViolationError as error:
        raise ViolationError(f"a handler of the kind {kind!r}: {error}") from error
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGINT, before)
        for queue in world.queues.values():
            with suppress(PersistentQueueError):
                queue.close()


@lru_cache(None)
def _most(scenario: Scenario) -> dict[str, Counter[bytes]]:
    """Return how often items of a queue may be there: as before the scenario's call, or as it allows afterwards.

    An item of which the scenario says nothing is not among them: it consumes that again, or the handler has put it.
    """
    world = World()
    case = scenario(world)
    most: dict[str, Counter[bytes]] = {}
    for content in case.may_hold:
        for name, items in content.items():
            most[name] = most.get(name, Counter()) | Counter(items)
    for queue in world.queues.values():
        queue.close()
    for name in most:
        with suppress(QueueNotFoundError, CorruptionError):
            most[name] |= Counter(drained(world.disk, name))
    return most


def _run(world: World, handler: _Handler, scenario: Scenario, target: tuple[Place, int] | None) -> dict[Place, int]:
    most = _most(scenario)
    case = scenario(world)
    tracer = CallingTracer(target, handler)
    handler.documented(partial(tracer.run, case.call))
    require(not handler.bare, "".join(handler.bare))
    if not tracer.has_raised:
        return tracer.seen
    for queue in world.queues.values():
        _await_idle(queue)
    for session in world.sessions:
        with suppress(PersistentQueueError):
            session.close()
    for queue in world.queues.values():
        queue.close()
    for name in most:
        with suppress(QueueNotFoundError, CorruptionError):  # some scenarios delete or damage a queue
            found = Counter(drained(world.disk, name))
            more = {item for item, count in most[name].items() if found[item] > count}
            require(not more, f"the queue {name} has these items more often than they were put: {more}")
    return tracer.seen


def run_reentry(only: str = "", part: int = 0, parts: int = 1) -> Report:
    """Call the queue from a handler at each place of the scenarios with ``only`` in their names. One run after the
    other has another kind of handler; the part decides which one is first. Raises ``ViolationError``."""
    kinds = islice(cycle(KINDS), part, None)
    return run_scenarios(_IDLE_BEHIND, partial(reenter, kinds), only, part, parts)

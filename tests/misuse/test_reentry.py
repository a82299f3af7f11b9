"""Row 5: signal handlers that call the queue, at each place where CPython looks for signals in some calls."""

from __future__ import annotations

import faulthandler
import signal
import sys
from collections.abc import Callable
from itertools import cycle, repeat
from typing import Any

import pytest

from persistentqueue import PersistentQueue, PersistentQueueError, ReentrantUseError
from persistentqueue.compat import Empty, Full, Queue, ShutDown
from persistentqueue.runtime.maintenance import Maintenance
from tests.crash import reentry
from tests.crash.disk import SimulatedDisk
from tests.crash.interrupts import Place
from tests.crash.reentry import KINDS, CallingTracer, reenter, run_reentry
from tests.crash.scenarios import SCENARIOS
from tests.support.disks import call_on
from tests.support.queues import receive_signals

pytestmark = pytest.mark.filterwarnings("ignore::persistentqueue.UnflushedWarning")  # a handler that closes drops work


@pytest.fixture(autouse=True)
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receive signals, and let a call that hangs end the process soon."""
    receive_signals()
    monkeypatch.setattr(reentry, "_HANG_SECONDS", 45.0)
    monkeypatch.setattr(Maintenance, "maintain_soon", lambda _: None)


def places_in(name: str, functions: str) -> list[Place]:
    """Return the places of a scenario in these functions."""
    chosen = functions.split()
    reenter(repeat("look"), SCENARIOS[name], None)  # imports and objects of the first run do not count
    return [place for place in reenter(repeat("look"), SCENARIOS[name], None) if place.code.co_name in chosen]


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="Python 3.12 loses errors of a tracer in generators")
@pytest.mark.parametrize("kind", ["close", "work"])
def test_row_05_a_handler_beside_the_lock_of_a_compaction(kind: str) -> None:
    """A handler that compacts or closes, where a compaction takes its lock or frees it, does not wait for itself."""
    places = places_in("compact", "compacting keeping_files __enter__ __exit__")
    assert len(places) >= 4
    for place in places:
        reenter(repeat(kind), SCENARIOS["compact"], (place, 1))


@pytest.mark.parametrize(("name", "functions"), [("compact", "_opened pin"), ("fail", "find _page")])
@pytest.mark.parametrize("kind", ["look", "session"])
def test_row_05_a_handler_during_a_read(name: str, functions: str, kind: str) -> None:
    """A handler does not wait for the locks of a read: of a compaction, and of items that become dead letters."""
    places = places_in(name, functions)
    assert len(places) >= 4
    for place in places:
        reenter(repeat(kind), SCENARIOS[name], (place, 1))


@pytest.mark.parametrize("name", ["dequeue with a codec and attempts, and go on", "fail"])
@pytest.mark.parametrize("kind", ["end", "session"])
def test_row_05_a_handler_during_a_cleanup(name: str, kind: str) -> None:
    """While a call that raised cleans up, or an error leaves the block of a session, the session is in use for a
    handler: the rest of the cleanup would release what the handler has dequeued or consumed."""
    reenter(repeat("look"), SCENARIOS[name], None)
    seen = reenter(repeat("look"), SCENARIOS[name], None)
    places = [(place, count) for place, count in seen.items() if place.code.co_name in {"check_outermost", "_release"}]
    assert len(places) >= 2
    for place, count in places:
        for at in sorted({1, *range(count, 0, -9)}):
            reenter(repeat(kind), SCENARIOS[name], (place, at))


@pytest.mark.parametrize(
    "name",
    [
        "flush one item",
        "dequeue from disk",
        "consume one",
        "put back",
        "stats",
        "transaction",
        "give up a wait for room",
    ],
)
def test_row_05_a_handler_anywhere(name: str) -> None:
    """At one place in eight of each of these calls, a handler of one kind or another calls the queue."""
    assert run_reentry(name, part=3, parts=8).interruptions >= 4


NAMED = PersistentQueueError, ValueError, Empty, Full, ShutDown
"""Errors that the calls of a ``compat.Queue`` document."""


def work(queue: Queue[str]) -> None:
    """Get the next item, and mark it as done."""
    queue.get_nowait()
    queue.task_done()


HANDLERS: dict[str, Callable[[Queue[str]], None]] = {
    "shutdown": lambda queue: queue.shutdown(),
    "close": lambda queue: queue.close(),
    "put": lambda queue: queue.put_nowait("of the handler"),
    "work": work,
}


def documented(call: Callable[[], object]) -> Exception | None:
    """Make the call; return the error that it raises, which must be a documented one, or None."""
    try:
        call()
    except NAMED as error:
        return error
    return None


def reenter_face(kind: str, target: tuple[Place, int] | None, **settings: Any) -> dict[Place, int]:
    """Make the calls of a ``compat.Queue`` with a handler of this kind at the target, and check what is left of both.
    Return the places that were reached."""
    disk, errors = SimulatedDisk().disk, []
    queue: Queue[str] = call_on(disk, Queue, "/face", **settings)
    queue.put_many(["a", "b"])

    def handle(*_: object) -> None:
        error = documented(lambda: HANDLERS[kind](queue))
        errors.append(error)
        if isinstance(error, ReentrantUseError):  # it has done nothing
            assert not (queue.is_shutdown or queue.persistent.closed)

    def calls() -> None:
        for call in (lambda: queue.put("c"), queue.get, queue.task_done, lambda: queue.get_many(2), queue.task_done):
            documented(call)

    tracer = CallingTracer(target, handle)
    before = signal.signal(signal.SIGINT, handle)
    faulthandler.dump_traceback_later(45.0, exit=True)
    try:
        tracer.run(calls)
        assert target is None or errors
        assert not queue.mutex.locked()
        queue.close()
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGINT, before)
    with call_on(disk, PersistentQueue[bytes], "/face") as persistent:
        items = list(persistent.browse_all())
    assert len(items) == len(set(items))
    assert (b'"of the handler"' in items) is (kind == "put" and errors == [None])
    return tracer.seen


@pytest.mark.parametrize("settings", [{}, {"max_attempts": 3, "dead_letter": "face.dead"}])
def test_row_05_a_handler_that_calls_a_standard_queue(settings: dict[str, Any]) -> None:
    """A handler that calls a ``compat.Queue`` ends, at half of the places of its own and at some of the core. If it
    gets ``ReentrantUseError``, its call has done nothing."""
    reenter_face("put", None, **settings)  # imports and objects of the first run do not count
    seen = reenter_face("put", None, **settings)
    own = [place for place in seen if "compat" in place.code.co_filename]
    assert len(own) >= 40
    kinds = cycle(HANDLERS)
    for place in [*own[::2], *list(seen)[::32]]:
        reenter_face(next(kinds), (place, 1), **settings)


def test_a_handler_that_gets_a_bare_error_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the package that no document names is a violation."""
    monkeypatch.setitem(KINDS, "bare", lambda world: iter([lambda: world.sessions[0]._take(None, None, None)]))
    seen = reenter(repeat("look"), SCENARIOS["flush one item"], None)
    with pytest.raises(AssertionError, match=r"a handler of the kind 'bare': Traceback"):
        reenter(repeat("bare"), SCENARIOS["flush one item"], (next(iter(seen)), 1))


def test_row_05_a_handler_during_give_up() -> None:
    """A handler that comes while ``give_up`` has the mutex gets ``ReentrantUseError``. It waited for ever."""
    name = "give up a wait for room"
    seen = reenter(repeat("look"), SCENARIOS[name], None)
    places = [place for place in seen if place.code.co_name in {"give_up", "wake_all"}]
    assert len(places) >= 2
    for place in places:
        reenter(repeat("work"), SCENARIOS[name], (place, 1))

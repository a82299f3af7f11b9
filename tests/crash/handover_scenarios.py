"""Scenarios of ``worker_interrupts``: an owner leaves in order, and a session goes on at the next one.

They run on the simulated machine of ``worker_scenarios``. The locks of sessions, and the files of owners that hand
over, are real ones. The owner leaves before the call, or in the middle of it. Without an interruption no session is
lost. With one, a session may be lost, and says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from persistentqueue.errors import SessionLostError
from persistentqueue.workers.shared_queue import SharedQueue
from persistentqueue.workers.worker_session import WorkerSession

from .scenarios import COUNTED, MANY, A, B, Case, joint_sessions
from .worker_scenarios import Scenario, WorkerWorld, another_process, telling

ITEMS = MANY[:9]


def _begin(world: WorkerWorld, **settings: Any) -> tuple[SharedQueue[Any], WorkerSession[Any]]:
    """Return a queue with ``ITEMS``, and a session that holds the first three of them."""
    world.folder, world.leaves = tempfile.mkdtemp(prefix="handover-"), True
    queue = world.open("q", *ITEMS, **settings)
    session = world.session("q")
    assert session.dequeue_many(3) == ITEMS[:3]
    return queue, session


def _end(world: WorkerWorld, messages: int | None) -> None:
    """Let the owner leave now, or behind so many messages."""
    if messages is None:
        with another_process():
            world.end_owners()
    else:
        world.dies_behind = messages


def _flushed(world: WorkerWorld, session: WorkerSession[Any]) -> bool:
    """Flush; return False if the session was lost, as only an interruption may cause."""
    world.dies_behind = None
    try:
        session.flush()
    except SessionLostError:
        assert world.was_interrupted
        return False
    return True


def _dequeue(world: WorkerWorld, messages: int | None, **settings: Any) -> Case:
    """Take more items, and flush all of them."""
    queue, session = _begin(world, **settings)
    _end(world, messages)
    got = [*ITEMS[:3]]

    def call() -> None:
        """Take the items, two at a time."""
        for _ in range(3):
            got.extend(session.dequeue_many(2))

    def again() -> None:
        """Flush, and count what is left."""
        with suppress(SessionLostError):
            call()
        if not _flushed(world, session):
            got.clear()
        rest = list(queue.browse_all())
        lost = rest == ITEMS and world.was_interrupted
        assert lost or [*got, *rest] == ITEMS, (got, rest)
        session.close()
        queue.clear()

    return Case(call, again, [{"q": []}])


def _dequeue_ahead(world: WorkerWorld, messages: int | None) -> Case:
    """Dequeue items that a flush has brought."""
    queue, session = _begin(world, prefetch=True)
    session.flush()
    _end(world, messages)
    got: list[Any] = []

    def call() -> None:
        """Dequeue them one by one, and one more."""
        got.extend(session.dequeue() for _ in range(4))

    def again() -> None:
        """Flush, and count what is left."""
        if not _flushed(world, session):
            got.clear()
        session.close()
        rest = queue.peek(9)
        assert [*got, *rest] == ITEMS[3:], (got, rest)
        queue.clear()

    return Case(call, again, [{"q": []}])


def _flush(
    world: WorkerWorld,
    messages: int | None,
    marker: tuple[str, int] | None = None,
    prefetch: bool = False,
    **settings: Any,
) -> Case:
    """Flush what the session holds, and an item that it enqueues."""
    queue, session = _begin(world, prefetch=prefetch, **settings)
    session.enqueue(B)
    _end(world, messages)
    told: list[bool] = []

    call = telling(partial(session.flush, marker), told)

    def again() -> None:
        """Flush again, which tells the truth."""
        world.dies_behind = None
        call()
        assert told[0] or world.was_interrupted
        found = list(queue.browse_all())
        assert found == ([*ITEMS[3:], B] if told[0] else ITEMS), (told, found)
        assert not (marker and told[0]) or queue.marker(marker[0]) == marker[1]

    return Case(call, again, [{"q": [*ITEMS[3:], B]}, {"q": ITEMS}])


def _put_back(world: WorkerWorld, messages: int | None) -> Case:
    """Give two of three items back, and flush the first one."""
    queue, session = _begin(world)
    _end(world, messages)

    def call() -> None:
        """Give back."""
        with suppress(SessionLostError):
            session.put_back(2)

    def again() -> None:
        """Flush what is held."""
        world.dies_behind = None
        held = session.held
        assert held in {0, 1, 3}, held
        assert world.was_interrupted or held == 1, held
        taken = held if _flushed(world, session) else 0
        assert queue.peek(9) == ITEMS[taken:], (held, queue.peek(9))
        queue.clear()

    return Case(call, again, [{"q": []}])


def _give_up(world: WorkerWorld, messages: int | None, end: str, **settings: Any) -> Case:
    """Roll back, or close: the items go back, with or without an owner."""
    _, session = _begin(world, **settings)
    session.enqueue(B)
    _end(world, messages)
    return Case(getattr(session, end), session.close, [{"q": ITEMS}])


def _extend(world: WorkerWorld, messages: int | None) -> Case:
    """Begin the time of a hold anew."""
    queue, session = _begin(world, hold_seconds=60.0)
    _end(world, messages)

    def again() -> None:
        """Flush."""
        left = ITEMS[3:] if _flushed(world, session) else ITEMS
        assert queue.peek(9) == left
        queue.clear()

    return Case(session.extend, again, [{"q": []}])


def _reject(world: WorkerWorld, messages: int | None) -> Case:
    """Reject an item behind a change of owners: it is ready again, and the others are consumed."""
    queue, session = _begin(world, **COUNTED)
    _end(world, messages)

    def call() -> None:
        """Reject the second item. An owner that leaves behind the rejection does not hand it over."""
        with suppress(SessionLostError):
            session.reject(ITEMS[1])

    def again() -> None:
        """Flush, and look which items are left."""
        is_flushed = _flushed(world, session)
        found = sorted(queue.browse_all())
        assert found in ([ITEMS[1], *ITEMS[3:]], ITEMS[3:], ITEMS), found
        assert world.was_interrupted or found == [ITEMS[1], *ITEMS[3:]], found
        assert is_flushed or found == ITEMS
        session.close()
        world.settle()
        with another_process():
            world.owners["q"].public.clear()

    return Case(call, again, [{"q": []}])


def _joint_flush(world: WorkerWorld, messages: int | None) -> Case:
    """Flush the sessions of two queues together."""
    world.folder, world.leaves = tempfile.mkdtemp(prefix="handover-"), True
    source, target = world.open("a", A, B), world.open("b")
    out, into = joint_sessions(world, source, target)
    assert out.dequeue() == A
    into.enqueue(A)
    _end(world, messages)

    def call() -> None:
        """Flush both. Items that were put to the owner are lost with it."""
        with suppress(SessionLostError):
            out.flush()

    def again() -> None:
        """Flush again, which may have nothing left to do."""
        world.dies_behind = None
        call()
        if messages is None and not world.was_interrupted:
            assert list(target.browse_all()) == [A]

    return Case(call, again, [{"a": [B], "b": [A]}, {"a": [A, B], "b": []}])


def _named(name: str, scenario: Callable[..., Case], most: int, **arguments: Any) -> dict[str, Scenario]:
    """Return the scenarios in which the owner leaves before the call, and behind each of so many messages of it."""
    named: dict[str, Scenario] = {f"handover: {name}": partial(scenario, messages=None, **arguments)}
    for messages in range(most):
        when = f"behind {messages} messages" if messages else "as it begins"
        named[f"handover: {name}, {when}"] = partial(scenario, messages=messages, **arguments)
    return named


SCENARIOS: dict[str, Scenario] = {
    **_named("dequeue", _dequeue, 3),
    **_named("dequeue with attempts", _dequeue, 2, **COUNTED),
    **_named("dequeue ahead", _dequeue_ahead, 1),
    **_named("flush", _flush, 1),
    **_named("flush a marker", _flush, 1, marker=("m", 1)),
    **_named("flush with prefetch", _flush, 1, prefetch=True),
    **_named("flush with attempts", _flush, 1, **COUNTED),
    **_named("put back", _put_back, 1),
    **_named("rollback", _give_up, 1, end="rollback"),
    **_named("rollback with attempts", _give_up, 1, end="rollback", **COUNTED),
    **_named("close", _give_up, 1, end="close"),
    **_named("extend", _extend, 1),
    **_named("reject", _reject, 1),
    **_named("joint flush", _joint_flush, 2),
}

"""Interruptions of workers: a signal handler raises at each place where CPython checks for signals, in each public call
of a queue that another process owns.

The places, the handlers and the rules are those of ``interrupts``, and the scenarios are in ``worker_scenarios``,
``session_scenarios`` and ``handover_scenarios``.

After each interruption the session is free, or cleans up at its next call. It counts the holds that the owner counts,
and its caller was given each held item. No call is under way, no lock is taken, and each connection belongs to a
session or to the queue. Then the call is made again, and the sessions and the queue are closed. After that nothing is
on hold, no connection is left, and the owner's queue has exactly the expected items, also after a power cut.
"""

from __future__ import annotations

import gc
import shutil
from contextlib import suppress
from typing import Any, cast
from unittest.mock import patch

from persistentqueue.errors import PersistentQueueError
from persistentqueue.interrupts.call_guard import BUSY, FREE
from persistentqueue.system import sockets
from persistentqueue.system.disk import basename
from persistentqueue.workers import shared_queue

from .handover_scenarios import SCENARIOS as OF_HANDOVERS
from .interrupts import Interrupt, Place, Report, drained, require, run_scenarios, traced
from .session_scenarios import SCENARIOS as OF_SESSIONS
from .worker_scenarios import SCENARIOS as OF_WORKERS
from .worker_scenarios import Handle, Scenario, WorkerWorld, another_process

SCENARIOS = OF_WORKERS | OF_SESSIONS | OF_HANDOVERS


def _is_free(lock: Any) -> bool:
    """Return whether no thread has the lock. For this thread, which has no other call under way."""
    return not lock._is_owned()


def _require_sound(world: WorkerWorld) -> None:
    """Raise ``ViolationError`` if the interruption has left anything behind."""
    world.settle()
    links = []
    for session in world.sessions:
        require(session._busy != BUSY, "a session is in a call")
        link = session._link
        if link is None:
            continue
        links.append(link)
        require(_is_free(link._cancelling), "the lock of a connection is taken")
        if session._busy == FREE and not link.is_lost:
            require(link.going is None, f"a call is under way: {link.going and link.going.message!r}")
            owner = world.owners.get(basename(session._path))
            holds = owner.held() if owner is not None else {}
            clients = owner.service.clients if owner is not None else set()
            client = next((each for each in clients if each.id == session._id), None)
            if client is not None and client.is_lost:  # each call but a rollback says so
                require(not holds.get(client), "a hold that has run out holds items")
                continue
            require(session._held == session._given, f"{session._held} held, {session._given} of them given")
            if client is not None:
                held = len(holds.get(client, ()))
                ahead = len(session._ahead)
                require(held == session._held + ahead, f"{held} on hold, the session knows {session._held} + {ahead}")
    for queue in world.queues.values():
        owner_of = queue._owner
        require(_is_free(owner_of._guard) and _is_free(owner_of._owning), "a lock of the queue is taken")
        require(not owner_of._controlling.mutex.locked(), "the lock of calls is taken")
        require(not owner_of._controlling.inside, "a thread seems to be in a call")
        require(not queue._waiting, "a thread seems to wait")
        links += owner_of._control
    known = {id(cast(Handle, link._socket).wire) for link in links}
    if any(id(wire) not in known for wire in world.wires()):
        gc.collect()  # a session that was dropped ends its connection
        world.settle()
    leaked = [wire for wire in world.wires() if id(wire) not in known]
    require(not leaked or world.standard is not None, f"{len(leaked)} connections belong to nothing")
    for owner in world.owners.values():
        # The holds of a subscription end with its removal.
        counted = sum(
            len(held)
            for client, held in owner.held().items()
            if client.reader is None or not client.reader.ready.is_closed
        )
        require(owner.on_hold() == counted, "items are on hold for no connection")


def interrupt_worker(scenario: Scenario, target: tuple[Place, int] | None) -> dict[Place, int]:
    """Run the scenario, interrupted at the target; return the places that it reached. Raises ``ViolationError``."""
    world = WorkerWorld()
    with (
        patch.object(sockets, "connect", world.dial),
        patch.object(sockets, "is_believed", lambda *_: True),
        patch.object(shared_queue, "LockFile", world.lock_file),
    ):
        try:
            return _interrupt(world, scenario, target)
        finally:
            with another_process():
                for each in (world.standard, *world.sessions, *world.queues.values(), *world.owners.values()):
                    with suppress(PersistentQueueError):
                        if each is not None:
                            each.close()
            if world.folder is not None:  # last: a close makes it again
                shutil.rmtree(world.folder)


def _interrupt(world: WorkerWorld, scenario: Scenario, target: tuple[Place, int] | None) -> dict[Place, int]:
    case = scenario(world)
    tracer = traced(case.call, target)
    if target is not None and not tracer.has_raised:
        return tracer.seen  # this time the call did not reach the place
    _require_sound(world)
    world.was_interrupted = target is not None
    case.again()
    for session in world.sessions:
        session.close()
    world.block = None
    _require_sound(world)
    for queue in world.queues.values():
        queue.close()
    world.settle()
    require(not world.wires(), f"{len(world.wires())} connections are left")
    world.pass_time()  # so that owners see which sessions have ended
    for session in world.sessions:
        require(not session._presence.is_held, "a session that was closed has its lock")
    held = {}
    world.standard = None
    for name in case.may_hold[0]:
        owner = world.serve(name)
        require(owner.on_hold() == 0, f"{owner.on_hold()} items on hold")
        held[name] = list(owner.public.browse_all())
    require(held in case.may_hold, f"the queues hold {held}")
    # The power goes: an acknowledged flush is durable, even if it was interrupted.
    machine = world.machine.cut_power(lambda n: n - 1)
    for owner in world.owners.values():
        owner.close()
    for disk in (world.disk, machine.disk):
        found = {name: drained(disk, name) for name in held}
        require(found == held, f"after a reopening the queues hold {found}")
    return tracer.seen


def run_worker_places(only: str = "", part: int = 0, parts: int = 1) -> Report:
    """Interrupt the scenarios of workers, as ``run_places`` does those of one process. Raises ``ViolationError``."""
    return run_scenarios(SCENARIOS, cast(Interrupt, interrupt_worker), only, part, parts)

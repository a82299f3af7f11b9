"""Random programs of workers on a simulated network and a simulated disk, and a model of the promises to them.

Two or three workers enqueue, dequeue, give back, flush, roll back and close, in sessions of one queue. Messages come
late, and in parts of any length. The owner leaves, or is killed between two calls, at any call of the disk, and while
it recovers. Connections end at any byte. Workers are killed anywhere. Holds run out. The power goes.

The model knows the items in order, and the transactions whose flush is under way. After each step of the owner:

- The queue has the items of the model, with some of those transactions as a whole, in some order. A flush that returned
  True is among them, once. A flush that raised ``SessionLostError`` is not, and never will be.
- Each item that is not ready is held by a connection, and a connection got the first items that were ready.
- Waiting connections are served in the order in which they came.
- A connection holds the items that its session has dequeued or taken ahead, and no others.
- An owner that leaves in order hands out nothing to connections without work. Held items go to the next owner: a
  session that has not enqueued anything there does not raise ``SessionLostError``.

A *schedule* is one end: of an owner, of a connection, of a worker, or of the power. Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any, TypeVar
from unittest.mock import patch

from persistentqueue.codecs import BYTES
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.engine.context import Settings
from persistentqueue.errors import HoldLostError, NotServedError, OutcomeUnknownError, QueueFullError, SessionLostError
from persistentqueue.interrupts import call_guard
from persistentqueue.runtime.session_state import buffered, holds
from persistentqueue.serving import service as service_module
from persistentqueue.serving.client import Client
from persistentqueue.serving.errors import decode_error
from persistentqueue.serving.handover import LOOK_SECONDS
from persistentqueue.serving.protocol import Failed, Hello
from persistentqueue.workers import worker_state
from persistentqueue.workers.link import Attached, Link, LinkLostError
from persistentqueue.workers.presence import Presence
from persistentqueue.workers.worker_session import WorkerSession

from .disk import Pick, SimulatedDisk
from .exploring import ViolationError, exploring
from .network import DIRECTORY, Killed, Owner, Wire, World

T = TypeVar("T")
WORKERS = "workers"
"""Style of programs in which workers use a queue that another process owns."""
_BATCH_BYTES, _TAKEN_BYTES = 300, 60
"""Bounds of a worker's batch and of an answer: small, so that batches spill and answers have no room."""
_DEPTH_MAX = 3
"""Most workers in the middle of a call at one time."""
_ACTIONS = ("enqueue", "take", "flush", "mark", "give back", "rollback", "close", "extend", "pause", "own")
_ODDS = (30, 30, 25, 4, 6, 4, 3, 3, 6, 6)
_OPEN, _FLUSHING, _COMMITTED, _LOST = "open", "flushing", "committed", "lost"


class Work:
    """The transaction of a session: the items that it has enqueued and dequeued since the last flush."""

    def __init__(self, worker: str, ends: int) -> None:
        self.worker = worker
        self.enqueued: list[bytes] = []
        self.held: list[bytes] = []
        self.state = _OPEN
        self.ends = ends
        """Ends of owners and connections when the transaction began."""
        self.held_since = inf
        self.marker: tuple[str, int] | None = None
        """Marker of a flush that was refused: the transaction keeps it."""

    @property
    def is_empty(self) -> bool:
        """True if a flush has nothing to commit."""
        return not (self.enqueued or self.held)

    @property
    def is_in_doubt(self) -> bool:
        """True if a flush has begun whose outcome the worker has not learned."""
        return self.state in {_FLUSHING, _COMMITTED}


class Model:
    """The items of the queue, in order, and the transactions that may be committed next."""

    def __init__(self) -> None:
        self.content: list[bytes] = []
        self.pending: list[Work] = []
        self._key: object = None
        self._owner: Owner | None = None
        self._held: dict[bytes, list[int]] = {}
        """Sequences that each connection holds, by its id."""
        self._holders: dict[bytes, str] = {}
        """Worker that holds each item."""
        self._lines: list[tuple[Client, int]] = []

    def observe(self, owner: Owner) -> None:
        """Compare the queue with the model after a step of its owner. Raises ``ViolationError``."""
        held = owner.held()
        if owner is not self._owner:  # inherited items were not taken from the ready ones
            self._owner, self._held = owner, {client.id: each for client, each in held.items()}
        state, ready_count = owner.queue._store.state, len(owner.queue.need_plain().ready)
        waiting = [(each, each.waits[0]) for each in owner.service.clients if each.waits and _is_in_line(owner, each)]
        lost = [client for client in held if client.is_lost]
        key = (owner, state.next_sequence, state.gone_count, ready_count, held, set(waiting), lost)
        if key == self._key:
            return
        self._key = key
        content = owner.content()
        self._settle(list(content.values()))
        ready = owner.ready()
        taken = {at for each in held.values() for at in each}
        if list(ready) != [at for at in content if at not in taken]:
            raise ViolationError(f"{list(ready)} are ready and {sorted(taken)} held of {list(content)}")
        if any(held[client] for client in lost):
            raise ViolationError("a connection whose hold has ended still holds something")
        before = {at for each in self._held.values() for at in each}
        got = {client: set(each) - set(self._held.get(client.id, ())) for client, each in held.items()}
        if owner.leaves_by < inf and any(got[client] and not self._had_work(client) for client in got):
            raise ViolationError("an owner that leaves has given an item to a connection without work")
        last = max((at for each in got.values() for at in each), default=-1)
        passed = [at for at in ready if at < last and at not in before]
        if passed:
            raise ViolationError(f"{passed} are ready, but {last} was taken")
        self._check_line(waiting, {client for client, each in got.items() if each})
        self._held = {client.id: each for client, each in held.items()}
        self._holders = {content[at]: _name_of(client) for client, each in held.items() for at in each}

    def _had_work(self, client: Client) -> bool:
        return bool(self._held.get(client.id)) or (client.session is not None and buffered(client.session) > 0)

    def _check_line(self, waiting: list[tuple[Client, int]], served: set[Client]) -> None:
        still = set(waiting)
        if served - {client for client, _ in self._lines} and not still.isdisjoint(self._lines):
            raise ViolationError("a connection that did not wait was served before one that waits")
        for at, (client, call) in enumerate(self._lines):
            if client in served and (client, call) not in still and not still.isdisjoint(self._lines[:at]):
                raise ViolationError("a connection that came later was served first")
        self._lines = [each for each in self._lines if each in still]
        self._lines += [each for each in waiting if each not in self._lines]

    def _settle(self, found: list[bytes]) -> None:
        """Find the transactions that were committed since the last look, and nothing else."""
        there, before = set(found), self.content
        if len(there) < len(found):
            raise ViolationError(f"doubled: {found}")
        kept = [item for item in before if item in there]
        if found[: len(kept)] != kept:
            raise ViolationError(f"out of order: {found}, before {before}")
        gone, new = set(before) - there, found[len(kept) :]
        while new:
            work = next((each for each in self.pending if each.enqueued[:1] == new[:1]), None)
            if work is None or new[: len(work.enqueued)] != work.enqueued or not self._may_consume(work, gone):
                raise ViolationError(f"{new} came, {gone} went: no transaction under way is that")
            del new[: len(work.enqueued)]
            gone = self._commit(work, gone)
        for work in [each for each in self.pending if each.held and not each.enqueued]:
            if self._may_consume(work, gone):
                gone = self._commit(work, gone)
        if gone:
            raise ViolationError(f"lost: {gone}")
        self.content = found

    def _may_consume(self, work: Work, gone: set[bytes]) -> bool:
        return gone.issuperset(work.held) and all(self._holders.get(item, "") == work.worker for item in work.held)

    def _commit(self, work: Work, gone: set[bytes]) -> set[bytes]:
        work.state = _COMMITTED
        self.pending.remove(work)
        return gone - set(work.held)


def _is_in_line(owner: Owner, client: Client) -> bool:
    """Return whether the connection waits for an item of this owner."""
    session = client.session
    has_work = session is not None and (holds(session) or buffered(session) > 0)
    return client.waits is not None and (has_work or owner.leaves_by == inf)


def _name_of(client: Client) -> str:
    name, _ = client.id.decode().strip(".").split()
    return name


class Worker:
    """One process with one session at a time."""

    def __init__(self, world: WorkersWorld, number: int, hold_seconds: float | None, prefetches: bool) -> None:
        self.world = world
        self.name = f"w{number}"
        self.hold_seconds, self.prefetches = hold_seconds, prefetches
        self.is_busy = self.is_dead = False
        self.wire: Wire | None = None
        self.cuts = 0
        self._sessions = self._flush_ends = 0
        self._begin()

    def _begin(self) -> None:
        self._sessions += 1
        connection = f"{self.name} {self._sessions}".encode().ljust(16, b".")
        self.presence = Presence(self.world.left.locks, connection)
        self.session: WorkerSession[bytes] = WorkerSession(
            DIRECTORY, self.name, BYTES, connection, self._attach, self.presence, self.world.now, self.prefetches
        )
        self.work = Work(self.name, self._ends())

    def _ends(self) -> int:
        return self.world.losses + self.cuts

    def _attach(self, connection: bytes, _: Callable[[], bool]) -> Attached:
        """Connect to the owner, as ``SharedQueue`` does."""
        fields: dict[str, Any] = {"versions": [1, 1], "name": self.name, "hold_seconds": self.hold_seconds}
        while True:
            if self.is_dead:
                raise Killed
            if self.world.is_unserved():
                raise NotServedError(DIRECTORY, None)
            self.wire = self.world.connect(self.name)
            if self.wire is None:
                continue
            link = Link(self.wire.socket, DIRECTORY)
            with suppress(LinkLostError):
                answer = link.call(Hello({**fields, "connection": connection.hex()}))
                link.end()
                if isinstance(answer, Failed):
                    raise decode_error(answer.fields)
                return Attached(link, False, int(answer.fields.get("kept", 0)))  # type: ignore[union-attr]

    def kill(self) -> None:
        """Kill the process. If it is in a call, each further call of its socket raises ``Killed``."""
        self.is_dead = True
        self.presence.close()
        if self.wire is not None:
            self.wire.is_killed = self.wire.worker_left = True

    def act(self, action: str) -> None:
        """Do something with the session, and check the outcome."""
        self.is_busy, began = True, self.world.seconds
        self.world.note(f"{self.name} {action}")
        try:
            self._do(action)
            self.world.note(f"{self.name} {action} is done: {self.session!r}")
            self._check_session()
        except Killed:
            return
        except ViolationError as error:
            self.world.violation = self.world.violation or error
            raise
        except OutcomeUnknownError as error:
            raise ViolationError(f"{self.name} {action}: {error}") from error
        except SessionLostError as error:
            if self.work.ends == self._ends() and not self._may_have_lost_hold():
                raise ViolationError(f"{self.name} {action} since {began}: no owner has ended, but {error}") from error
            self._lose()
        except HoldLostError as error:
            if not self._may_have_lost_hold():
                raise ViolationError(f"{self.name} {action}: too early: {error}") from error
            self._lose()
            with suppress(Killed):
                self.session.rollback()
        except NotServedError:
            self.world.note(f"{self.name} {action}: finds no owner")
        except QueueFullError:
            self._reopen()
        finally:
            self.is_busy = False

    def _may_have_lost_hold(self) -> bool:
        """Return whether ``hold_seconds`` may be over."""
        return self.hold_seconds is not None and self.world.seconds >= self.work.held_since + self.hold_seconds

    def _do(self, action: str) -> None:
        chance, session = self.world.chance, self.session
        if action == "enqueue":
            for item in self.world.items():
                session.enqueue(item)
                self._need_new_outcome()
                self.work.enqueued.append(item)
        elif action == "take":
            self._take(chance.choice((1, 1, 2, 5)), chance.choice((0.0, 0.0, 0.2, 1.0)))
        elif action == "flush":
            self._flush(None)
        elif action == "mark":
            self._flush((chance.choice("mn"), chance.randrange(8)))
        elif action == "give back":
            count = chance.randint(0, len(self.work.held))
            if count:
                with self._may_be_committed():
                    session.put_back(count)
                del self.work.held[len(self.work.held) - count :]
                if not self.work.held:
                    self.work.held_since = inf
        elif action == "rollback":
            is_in_doubt = self.work.is_in_doubt
            session.rollback()
            self._end_work(is_in_doubt)
        elif action == "close":
            is_in_doubt = self.work.is_in_doubt
            session.close()
            self._end_work(is_in_doubt)
            self._begin()
        elif action == "extend":
            began = self.world.seconds
            session.extend()
            self._need_new_outcome()
            if self.work.held:
                self.work.held_since = began
        elif action == "pause":
            self.world.seconds += chance.choice((0.01, 0.1, 1.0, 3.0))

    @contextmanager
    def _may_be_committed(self) -> Iterator[None]:
        """Let a call find that the session holds nothing any more: it learned that a flush in doubt was committed."""
        try:
            yield
        except ValueError:
            if self.work.state != _COMMITTED:
                raise
        self._need_new_outcome()

    def _end_work(self, is_in_doubt: bool) -> None:
        """Begin a new transaction. A flush whose outcome the worker never learned may have been committed."""
        if is_in_doubt:
            self.work = Work(self.name, self._ends())
        else:
            self._lose()

    def _take(self, most: int, timeout: float) -> None:
        began = self.world.seconds
        self.work.held_since = min(self.work.held_since, began)  # a call may take the first items before it takes more
        if self.session._ahead:  # they came with the last flush, so an end since then loses them
            self.work.ends = min(self.work.ends, self._flush_ends)
        items = self.session.dequeue_many(most, timeout=timeout)
        self._need_new_outcome()
        if not items and self.world.seconds < began + timeout:
            raise ViolationError(f"{self.name} got nothing after {self.world.seconds - began} of {timeout} seconds")
        self.work.held += items
        self.work.held_since = min(self.work.held_since, began) if self.work.held else inf
        self.world.takes += len(items)

    def _flush(self, marker: tuple[str, int] | None) -> None:
        work, chance, ends = self.work, self.world.chance, self._ends()
        is_doubtful = work.is_in_doubt
        if not work.is_empty and not is_doubtful:
            work.state = _FLUSHING
            self.world.model.pending.append(work)
        timeout = chance.choice((0.0, 0.5)) if self.world.settings.full == "block" else None
        work.marker = marker = work.marker if is_doubtful or marker is None else marker
        committed = self.session.flush(marker, timeout=timeout)
        if committed and not work.is_empty and work.state != _COMMITTED:
            raise ViolationError(f"{self.name}: a flush returned True, and was not committed")
        if not committed:
            if marker is None or self._marker(marker[0]) < marker[1]:
                raise ViolationError(f"{self.name}: a flush returned False for the marker {marker}")
            if not (is_doubtful and work.state == _COMMITTED):  # else it is the marker of the flush in doubt itself
                self._lose()
        if marker is not None or not work.is_empty:  # else the owner heard nothing of the flush
            self._flush_ends = ends
        self.work = Work(self.name, self._ends())
        self.world.flushes += 1

    def _marker(self, name: str) -> int:
        owner = self.world.owner
        return 99 if owner is None else owner.queue._store.state.markers.get(name, -1)

    def _need_new_outcome(self) -> None:
        """Begin a new transaction if this call has learned that a flush was committed.

        A flush that raised ``NotServedError`` leaves its outcome to the next call.
        """
        if self.work.state == _COMMITTED:
            self.work = Work(self.name, self._ends())
        elif self.work.state == _FLUSHING:
            self._reopen()

    def _reopen(self) -> None:
        """Note that the flush is over and was not committed, and that the session still has its work."""
        self._need_uncommitted()
        self.work.state = _OPEN

    def _lose(self) -> None:
        """Note that the work of the session is lost, and never will be committed."""
        self._need_uncommitted()
        self.work.state = _LOST
        self.work = Work(self.name, self._ends())

    def _need_uncommitted(self) -> None:
        if self.work.state == _COMMITTED:
            raise ViolationError(f"{self.name}: a transaction that failed was committed")
        if self.work in self.world.model.pending:
            self.world.model.pending.remove(self.work)

    def _check_session(self) -> None:
        """Compare the work with what the connection holds, if both ends are there."""
        wire, owner = self.wire, self.world.owner
        client = wire.client if wire is not None and not wire.worker_left else None
        if client is None or owner is None or client.is_lost or client.session is None or client.flush is not None:
            return
        content = owner.content()
        held = [content[at] for at in owner.held().get(client, [])]
        ahead = self.session._ahead
        if sorted(held) != sorted([*self.work.held, *ahead]):
            raise ViolationError(f"{self.name} has {self.work.held} and {ahead}, and its connection holds {held}")
        if buffered(client.session) > len(self.work.enqueued):
            raise ViolationError(f"{self.name} has enqueued {self.work.enqueued}, its connection has more")


class WorkersWorld(World):
    """A world whose choices are random, with workers and a model."""

    def __init__(self, disk: SimulatedDisk, settings: Settings, chance: random.Random) -> None:
        super().__init__(disk, settings)
        self.chance = chance
        self.model = Model()
        self.schedules = self.flushes = self.takes = 0
        self.is_over = False
        self.violation: ViolationError | None = None
        """The first violation. Workers that it passes on its way may cause others."""
        self._ends_odds = self.chance.choice((0.002, 0.01, 0.03))
        self._greed = self.chance.choice((0.1, 0.5, 0.9))
        """Odds that all bytes go at once."""
        self._item_number = 0
        self._workers_made = 0
        self.workers = [self._worker() for _ in range(self.chance.choice((2, 3)))]

    def _worker(self) -> Worker:
        self._workers_made += 1
        hold_seconds, prefetches = self.chance.choice(((None, False), (None, True), (0.5, False), (2.0, False)))
        return Worker(self, self._workers_made, hold_seconds, prefetches)

    def items(self) -> list[bytes]:
        """Return items that never come twice."""
        made = []
        for _ in range(self.chance.choice((1, 1, 2, 4))):
            self._item_number += 1
            made.append(b"%d" % self._item_number + b"." * self.chance.choice((0, 0, 10, 40, 200)))
        return made

    def observe(self) -> None:
        """Compare the queue with the model."""
        if self.owner is not None:
            self.model.observe(self.owner)

    def note_leave(self, owner: Owner) -> None:
        """Note which workers may lose something: those with items at the owner. A flush under way is made again."""
        for client in owner.service.clients:
            has_put = client.flush is None and client.session is not None and buffered(client.session) > 0
            for worker in self.workers:
                may_lose = has_put or client.is_lost or worker.session._has_put
                worker.cuts += worker.name == _name_of(client) and may_lose

    def is_unserved(self) -> bool:
        """Return whether a worker gives up looking for an owner."""
        return self.owner is None and self.chance.random() < 0.05

    def part_of(self, count: int) -> int:
        """Return how many of so many bytes go now."""
        return count if self.chance.random() < self._greed else self.chance.randint(1, count)

    def pick(self) -> Pick:
        """Return the function that decides what a kill leaves."""
        return self.chance.randrange

    def program(self, steps: int) -> None:
        """Let the workers act, then end all of them and the owner, and look at what is left."""
        for _ in range(steps):
            if self.is_over:
                break
            self._next_action(self.idle())
        self.finish()

    def idle(self) -> list[Worker]:
        """Return the workers that are in no call. A new process takes the place of one that was killed."""
        self.workers = [each if each.is_busy or not each.is_dead else self._worker() for each in self.workers]
        return [each for each in self.workers if not each.is_busy]

    def _next_action(self, idle: list[Worker]) -> None:
        action = self.chance.choices(_ACTIONS, _ODDS)[0]
        if action == "own":
            self._own()
        elif idle:
            self.chance.choice(idle).act(action)
        if self.chance.random() < self._ends_odds:
            self._end_something()

    def step(self) -> None:
        """Let one thing happen while a worker waits: mostly bytes that go, or a turn of the owner."""
        if self.chance.random() < self._ends_odds / 4:
            self._end_something()
        owner = self.owner
        if owner is None:
            return
        steps = self.possible(owner)
        depth = sum(each.is_busy for each in self.workers)
        idle = self.idle() if depth < _DEPTH_MAX and self.chance.random() < 0.08 else []
        if idle:
            self._next_action(idle)
        elif steps:
            self.chance.choice(steps)()
        else:
            self._pass_time(owner)

    def possible(self, owner: Owner) -> list[Callable[[], None]]:
        """Return the steps that the owner and its network can take now."""
        steps: list[Callable[[], None]] = []
        for wire in owner.wires:
            if wire.left:
                steps.append(partial(self._send, wire))
            elif wire.to_owner:
                steps.append(partial(self._receive, wire))
            elif wire.worker_left:
                steps.append(partial(self.act, partial(Owner.drop, wire=wire, by_worker=True)))
        if owner.rung or owner.due <= self.seconds:
            steps.append(partial(self.act, Owner.turn))
        if self.may_leave(owner):
            steps.append(self.leave)
        return steps

    def _send(self, wire: Wire) -> None:
        count = self.part_of(len(wire.left))
        wire.to_worker += wire.left[:count]
        del wire.left[:count]

    def _receive(self, wire: Wire) -> None:
        self.act(partial(Owner.receive, wire=wire, count=self.part_of(len(wire.to_owner))))

    def _pass_time(self, owner: Owner) -> None:
        waits = [client for client in owner.service.clients if _is_in_line(owner, client)]
        due = min(owner.due, owner.leaves_by)
        if waits and len(owner.queue.need_plain().ready):
            raise ViolationError("an item is ready, and a worker waits for one")
        if due == inf:
            raise ViolationError("a worker waits for an answer that never comes")
        away = {each.id for each in owner.service.clients if each.is_away}
        if away - self.left.present(away) and owner.due > self.seconds + LOOK_SECONDS:
            raise ViolationError("items are held for a session that has ended")
        self.seconds = max(self.seconds, min(due, self.seconds + self.chance.choice((0.05, 0.3, 5.0))))

    # --- ends --------------------------------------------------------------------------------------------------------

    def _end_something(self) -> None:
        self.schedules += 1
        how = self.chance.choice(
            (
                *(self.kill_owner, self._arm, self._arm, self.leave, self._leave_soon, self._leave_soon, self._cut),
                *(self._kill_worker, self.intrude, self._power),
            )
        )
        how()

    def _leave_soon(self) -> None:
        self.begin_to_leave(self.chance.choice((0.05, 1.0, 100.0)))

    def _arm(self) -> None:
        self.crash_at = self.disk.ticks + self.chance.randrange(1, 12)
        self.power_goes = self.chance.random() < 0.3
        self.note(f"the disk kills the owner at tick {self.crash_at}")

    def _cut(self) -> None:
        """Let the owner end a connection, and live on."""
        if self.owner is not None and self.owner.wires:
            wire = self.chance.choice(self.owner.wires)
            self.note(f"the owner ends the connection of {wire.worker}")
            for worker in self.workers:
                worker.cuts += worker.wire is wire
            self.act(partial(Owner.drop, wire=wire, by_worker=False))

    def _kill_worker(self) -> None:
        worker = self.chance.choice(self.workers)
        self.note(f"{worker.name} is killed")
        worker.kill()

    def _power(self) -> None:
        """Cut the power, once in a while: all processes die."""
        if self.chance.random() < 0.3:
            self.note("the power goes")
            self.is_over = True
            for worker in self.workers:
                worker.kill()
            self.kill_owner()
            self.disk = self.disk.cut_power(self.pick())

    def _own(self) -> None:
        """Let the owner's process use its own queue."""
        owner, chance = self.owner, self.chance
        if owner is None:
            return
        work = Work("", 0)
        work.enqueued = self.items() if chance.random() < 0.7 else []

        def use(owner: Owner) -> None:
            """Flush a transaction of the owner's own session."""
            owner.own.enqueue_many(work.enqueued)
            if chance.random() < 0.3:
                work.held = owner.own.dequeue_many(1)
            if not work.is_empty:
                self.model.pending.append(work)
            with suppress(QueueFullError):
                owner.own.flush(timeout=0.0)
            owner.own.rollback()

        self.act(use)
        if self.owner is owner and work in self.model.pending:
            self.model.pending.remove(work)

    def finish(self) -> None:
        """End all processes, and compare what the next owner finds, in a session that takes all of it."""
        for worker in self.workers:
            if not worker.is_dead and self.chance.random() < 0.5:
                worker.act("close")
            worker.kill()
        for worker in self.workers:  # new processes, which have taken the places of those
            worker.kill()
        self.chance.choice((self.kill_owner, self.leave))()
        while (owner := self.found()) is None:
            pass
        found = list(owner.content().values())
        if found != self.model.content or list(owner.ready().values()) != found:
            raise ViolationError(f"found {found}, expected {self.model.content}")
        if owner.own.dequeue_many(len(found) + 1) != found:
            raise ViolationError("the last owner dequeues something else")
        owner.own.rollback()
        self.leave()


class WorkersExplorer:
    """All schedules of one seed. ``schedules`` counts them."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        self.seed = seed
        self.schedules = self.lives = self.flushes = self.takes = 0
        self._trace = trace
        self._random = random.Random(f"settings of workers of {seed}")
        choose = self._random.choice
        limited = self._random.random() < 0.3
        self._settings = Settings(
            segment_bytes=choose((80, 300, 1000, 4096)) + HEADER_BYTES,
            memory_bytes=choose((0, 200, 1 << 20)),
            inline_bytes=choose((0, 100, 65536)),
            log_bytes=choose((700, 2000, 4096)),
            max_items=choose((2, 5, 12)) if limited else None,
            full=choose(("raise", "block")) if limited else "raise",
        )

    def run(self) -> None:
        """Explore all schedules of the seed. Raises ``ViolationError`` like ``exploring``."""
        with exploring(self._random, self.seed, False, self._trace, WORKERS) as disk, small_messages():
            world = WorkersWorld(disk, self._settings, random.Random(f"workers of {self.seed}"))
            try:
                world.program(self._random.choice((20, 40, 80)))
            except Exception as error:
                found = world.violation or error
                if world.log is not None:
                    raise ViolationError("\n".join([*world.log[-150:], repr(found)])) from error
                raise found from None
            finally:
                self.schedules, self.lives = world.schedules, world.deaths
                self.flushes, self.takes = world.flushes, world.takes


@contextmanager
def small_messages() -> Iterator[None]:
    """Let workers spill, and answers be full, after a few items. No signal comes, so no call needs a shield."""
    with (
        patch.object(call_guard, "shielded", _call),
        patch.object(worker_state, "SPILL_BYTES", _BATCH_BYTES),
        patch.object(service_module, "TAKEN_BYTES", _TAKEN_BYTES),
    ):
        yield


def _call(call: Callable[[], T]) -> T:
    return call()

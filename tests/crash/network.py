"""A simulated network beside the simulated disk: an owner and its workers, in one thread.

The owner is the real ``Service`` on an open queue, and the workers are real sessions. Between them are sockets made of
two buffers. A worker that reads an empty socket runs the scheduler of ``World``, which takes one step: the owner
receives some bytes, or makes its turn, or sends some bytes; the clock advances; the owner dies. So everything happens
in one order, and that order follows from the choices of the scheduler alone.

A process that is killed leaves what a kernel leaves: bytes that it has sent can still be read, then the connection
ends. The disk keeps what it has. The next owner recovers the queue from it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import chain
from math import inf
from typing import Any, cast

from persistentqueue.engine.context import Settings
from persistentqueue.errors import QueueLockedError
from persistentqueue.recovery.opening import open_store
from persistentqueue.runtime.open_queue import OpenQueue
from persistentqueue.runtime.session_state import SessionParts, hold_of
from persistentqueue.serving.client import Client
from persistentqueue.serving.protocol import ProtocolError
from persistentqueue.serving.service import Served, Service
from persistentqueue.session import Session
from persistentqueue.system.sockets import Socket

from ..support.left_holds import LeftHolds
from .disk import Crash, Pick, SimulatedDisk
from .exploring import ViolationError

DIRECTORY = "/queues/q"
_SPILL_BYTES = 600
"""Bytes of items from which on a session at the owner spills: small, so that it happens."""
_TURNS_MAX = 200
"""Turns in a row, with nothing to do, from which on the owner spins."""


class Killed(BaseException):
    """The end of a worker's process. No code may catch it."""


class Wire:
    """One connection, and the socket of its worker."""

    def __init__(self, world: World, worker: str) -> None:
        self.world = world
        self.worker = worker
        self.to_owner = bytearray()
        self.left = bytearray()
        """Answers that the owner could not send yet."""
        self.to_worker = bytearray()
        self.client: Client | None = None
        """The connection as its owner sees it; None if the owner has ended it, or has died."""
        self.worker_left = False
        self.is_killed = False
        """True if the worker's process is dead: each call of the socket raises ``Killed``."""

    @property
    def socket(self) -> Socket:
        """This object, as ``Link`` takes it."""
        return cast(Socket, self)

    def send(self, data: bytes | memoryview, _flags: int = 0) -> int:
        """Take some of the bytes. Raises ``OSError`` if the owner has ended the connection."""
        self._need_life()
        if self.client is None:
            raise BrokenPipeError(errno.EPIPE, "the owner has ended the connection")
        count = self.world.part_of(len(data))
        self.to_owner += bytes(data[:count])
        return count

    def recv(self, size_bytes: int) -> bytes:
        """Return some bytes, and run the scheduler until there are any; no bytes if the connection has ended."""
        while True:
            self._need_life()
            if self.to_worker:
                count = self.world.part_of(min(size_bytes, len(self.to_worker)))
                data = bytes(self.to_worker[:count])
                del self.to_worker[:count]
                return data
            if self.client is None:
                return b""
            self.world.step()

    def shutdown(self, _how: int) -> None:
        """End the connection."""
        self.close()

    def close(self) -> None:
        """End the connection, as the worker or the kernel does."""
        self.worker_left = True

    def _need_life(self) -> None:
        if self.is_killed:
            raise Killed
        if self.worker_left:
            raise OSError(errno.EBADF, "the socket is closed")


class Owner:
    """One process that owns the queue, until it leaves or is killed."""

    def __init__(self, world: World) -> None:
        self.disk = world.disk
        self.rung = True
        """True if the next turn must come soon."""
        self.due = self.leaves_by = inf
        """Times of the next turn, and of the end of a close that has begun."""
        self.wires: list[Wire] = []
        opening = partial(open_store, self.disk.disk, DIRECTORY, world.settings, create=True)
        self.queue = OpenQueue(opening, 0.0, None, self.disk.disk)
        facts = {"version": 1, "counts": False}
        served = Served(self.queue, self._session, _refuse, facts, world.now, world.left)
        self.service = Service(served, self.ring, _apart)
        self.service.inherit()
        self.own: Session[bytes] = Session(SessionParts(self.queue, "own", spill_bytes=_SPILL_BYTES))

    def ring(self) -> None:
        """Note that a turn must come soon."""
        self.rung = True

    def _session(self, name: str, _subscription: str) -> Session[bytes]:
        return Session(SessionParts(self.queue, name, spill_bytes=_SPILL_BYTES))

    def receive(self, wire: Wire, count: int) -> None:
        """Take so many bytes that a worker has sent."""
        data = bytes(wire.to_owner[:count])
        del wire.to_owner[:count]
        assert wire.client is not None
        try:
            self.service.receive(wire.client, data)
        except ProtocolError as error:
            raise ViolationError(f"a worker has sent {error}") from error
        self.rung = True

    def turn(self) -> None:
        """Make turns until there is nothing to do. Raises ``ViolationError`` if that never comes."""
        for _ in range(_TURNS_MAX):
            self.rung = False
            self.due = self.service.turn()
            for client in self.service.take_answered():
                data = b"".join(client.out)
                client.out.clear()
                wire = client.peer
                if isinstance(wire, Wire) and wire.client is client:
                    wire.left += data
            if not self.rung and self.due > self.service._now():
                return
        raise ViolationError("the owner spins: its turns have nothing to do, and do not end")

    def drop(self, wire: Wire, *, by_worker: bool) -> None:
        """End a connection. With ``by_worker``, the worker has ended it, or has died."""
        client, wire.client = wire.client, None
        self.wires.remove(wire)
        wire.left.clear()
        assert client is not None
        self.service.disconnect(client, may_return=by_worker)
        self.rung = True

    def finish(self) -> None:
        """Take what has come, and make the last turn, as ``Server._leave`` does."""
        for wire in list(self.wires) if not self.service.may_leave() else ():
            if wire.to_owner and not wire.left:
                self.receive(wire, len(wire.to_owner))
        self.turn()

    def hand_over(self) -> None:
        """Leave what sessions hold to the next owner, as ``Server._leave`` does."""
        self.service.hand_over()

    def leave(self) -> None:
        """Send the last answers, end all connections, and close the queue."""
        for wire in list(self.wires):
            wire.to_worker += wire.left
            self.drop(wire, by_worker=False)
        self.service.leave()
        self.queue.close("the owner leaves")

    def die(self) -> None:
        """Forget the process, without a call that another process could see."""
        self.disk.on_tick = None
        for wire in self.wires:
            wire.client = None
            wire.left.clear()
        self.wires = []
        self.queue.disown("the owner is dead", alone=True)

    # --- what the model looks at -------------------------------------------------------------------------------------

    def content(self) -> dict[int, bytes]:
        """Return all items that are not consumed, held ones included, by their sequences, in order."""
        return _numbered(self.queue.browse(self.queue.of_all()))

    def ready(self) -> dict[int, bytes]:
        """Return the items that a dequeue could get, by their sequences, in order."""
        return _numbered(self.queue.browse(self.queue.need_plain()))

    def held(self) -> dict[Client, list[int]]:
        """Return the sequences that each connection holds, in order."""
        holds = {client: hold_of(client.session) for client in self.service.clients if client.session is not None}
        return {
            client: [at for first, count in hold.runs for at in range(first, first + count)]
            for client, hold in holds.items()
            if hold is not None
        }


class World:
    """The disk, the clock, and the present owner. A subclass schedules: it defines ``step`` and ``part_of``."""

    def __init__(self, disk: SimulatedDisk, settings: Settings) -> None:
        self.disk = disk
        self.settings = settings
        self.seconds = 1000.0
        self.owner: Owner | None = None
        self.left = LeftHolds()
        self.crash_at: int | None = None
        """Tick of the disk at which the owner is killed."""
        self.power_goes = False
        """True if the disk loses what is not durable when it kills the owner. The workers live on: they see more."""
        self.deaths = 0
        """Number of owners that have ended."""
        self.losses = 0
        """Number of those that may have had anything of a worker."""
        self.log: list[str] | None = None if disk.trace is None else []

    def now(self) -> float:
        """Return the time of all processes, in seconds."""
        return self.seconds

    def note(self, event: str) -> None:
        """Add an event to the trace, if there is one."""
        if self.log is not None:
            self.log.append(f"{self.seconds:9.3f}  {event}")

    def step(self) -> None:
        """Let one thing happen: a worker waits for its answer."""
        raise NotImplementedError

    def part_of(self, count: int) -> int:
        """Return how many of so many bytes go now, at least 1."""
        raise NotImplementedError

    def pick(self) -> Pick:
        """Return the function that decides what a kill leaves of a write under way."""
        raise NotImplementedError

    def observe(self) -> None:
        """Compare the queue with the model: the owner has done something."""

    # --- owners ------------------------------------------------------------------------------------------------------

    def found(self) -> Owner | None:
        """Return the owner; if there is none, let a process become it. None if that one was killed meanwhile."""
        if self.owner is None:
            self.arm()
            with suppress(Crash):
                self.owner = Owner(self)
            if self.owner is None:
                self.note("the next owner is killed as it opens the queue")
                self._lose_owner()
            else:
                self.note("another process owns the queue")
                self.observe()
        return self.owner

    def arm(self) -> None:
        """Let the disk kill the owner at ``crash_at``."""
        disk = self.disk

        def on_tick() -> None:
            if self.crash_at is not None and disk.ticks >= self.crash_at:
                self.crash_at = None
                self.disk = disk.kill(self.pick())
                if self.power_goes:
                    self.disk = self.disk.cut_power(self.pick())
                disk.on_tick = _stay_dead
                raise Crash

        disk.on_tick = on_tick

    def act(self, action: Callable[[Owner], None], *, is_last: bool = False) -> None:
        """Let the owner do something, which may be its end."""
        owner = self.owner
        if owner is None:
            return
        try:
            action(owner)
        except Crash:
            self.note("the owner is killed in a call of the disk")
            self._lose_owner()
            return
        if owner is self.owner and not is_last:
            self.observe()

    def kill_owner(self) -> None:
        """Kill the owner between two calls of the disk."""
        if self.owner is not None:
            self.note("the owner is killed")
            self._lose_owner()

    def _lose_owner(self) -> None:
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.die()
            if self.disk is owner.disk:
                self.disk = owner.disk.kill(self.pick())
        self.deaths += 1
        self.losses += 1
        self.crash_at = None
        self.power_goes = False

    def begin_to_leave(self, grace_seconds: float) -> None:
        """Let the owner begin to end in order: it stays for the workers that have work, up to this time."""
        if self.owner is not None:
            self.note(f"the owner leaves within {grace_seconds} s")
            self.owner.leaves_by = min(self.owner.leaves_by, self.seconds + grace_seconds)
            self.owner.service.may_leave()

    def may_leave(self, owner: Owner) -> bool:
        """Return whether the owner leaves now, as ``Server._may_leave`` does."""
        return owner.leaves_by < inf and (owner.service.may_leave() or self.seconds >= owner.leaves_by)

    def leave(self) -> None:
        """Let the owner end in order."""
        owner = self.owner
        if owner is None:
            return
        self.note("the owner leaves")
        self.act(Owner.finish)
        if self.owner is owner:
            self.note_leave(owner)
            owner.hand_over()
            self.act(Owner.leave, is_last=True)
        if self.owner is owner:
            self.owner = None
            self.deaths += 1
            owner.disk.on_tick = None
            self.crash_at = None

    def note_leave(self, owner: Owner) -> None:
        """Note what workers may lose: the owner takes no message any more, and leaves."""

    def intrude(self) -> None:
        """Let another process try to own the queue. Raises ``ViolationError`` if it can while the owner lives."""
        if self.owner is None:
            return
        with self.disk.undisturbed():
            try:
                other = OpenQueue(partial(open_store, self.disk.disk, DIRECTORY, self.settings, create=True))
            except QueueLockedError:
                return
            other.disown("an intruder", alone=True)
        raise ViolationError("two processes own the queue")

    def connect(self, worker: str) -> Wire | None:
        """Return a new connection to the owner; None if there is none at this moment."""
        owner = self.found()
        if owner is None:
            return None
        wire = Wire(self, worker)
        wire.client = owner.service.connect()
        wire.client.peer = wire
        owner.wires.append(wire)
        return wire


def _numbered(batches: Iterable[tuple[int, list[bytes]]]) -> dict[int, bytes]:
    return dict(chain.from_iterable(enumerate(items, first) for first, items in batches))


def _stay_dead() -> None:
    raise Crash


def _refuse(name: str, _arguments: dict[str, Any]) -> Any:
    raise ViolationError(f"nobody calls {name}")


def _apart(call: Callable[[], None]) -> None:
    call()

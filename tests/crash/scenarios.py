"""Scenarios of ``interrupts``: calls of a queue that this process has open, each on a simulated machine of its own.

A scenario prepares queues and sessions. It returns the call to interrupt, the call that follows, and the contents that
the queues may then have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import persistentqueue
from persistentqueue import PersistentQueue, Producer, Session, transaction
from persistentqueue.errors import CodecError, CorruptionError, PrecedingFlushError, QueueFullError, WrongKeyError
from persistentqueue.runtime.session_state import SessionParts
from persistentqueue.system.disk import Disk
from tests.support.disks import call_on

from .disk import SimulatedDisk

SMALL: dict[str, Any] = {"segment_bytes": 64 * 1024, "log_bytes": 64 * 1024}
PATH = "/queues"


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

    def open(self, name: str, *items: Any, **settings: Any) -> PersistentQueue[Any]:
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


class AnyWorld(Protocol):
    """The part of a ``World`` that scenarios need which are those of workers, too."""

    sessions: list[Any]
    block: object

    def open(self, name: str, *items: bytes, **settings: Any) -> Any:
        """Open a queue that holds these items."""


class Case(NamedTuple):
    """A call to interrupt, a call to make after it, and the contents that the queues may then have."""

    call: Callable[[], object]
    again: Callable[[], object]
    may_hold: Sequence[dict[str, list[bytes]]]
    waiting: int = 0
    """Number of threads that wait for room between the calls."""


Scenario = Callable[[World], Case]
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


def _call_back(world: World) -> Case:
    """Ask a ticket to call back, while its flush waits for room. Its end waits for no lock that this call has kept."""
    queue = world.open("q", A, max_items=1, full="block")
    session = world.session("q")
    session.enqueue(B)
    ticket, called = session.flush(wait=False), list[object]()

    def again() -> None:
        ticket.add_done_callback(called.append)
        queue.clear()
        assert ticket.result(60) and called[-1:] == [ticket]

    return Case(lambda: ticket.add_done_callback(bool), again, [{"q": [B]}], waiting=1)


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


class Numbers:
    """A codec of numbers. It cannot decode 3, and has no key for 5."""

    def encode(self, item: int) -> bytes:
        return b"%d" % item

    def decode(self, data: bytes) -> int:
        if data == b"5":
            raise WrongKeyError("5", "needs another key")
        if data == b"3":
            raise ValueError("3 is bad")
        return int(data)


COUNTED: dict[str, Any] = {"max_attempts": 99, "dead_letter": "dead"}
RAW = [b"%d" % number for number in range(9)]


def take_numbers(session: Any, count: int, got: list[bytes]) -> None:
    """Dequeue all numbers before 5, and note what the caller got. It gets a bad item as an error."""
    while len(got) < 5:
        try:
            numbers = [session.dequeue()] if count == 1 else session.dequeue_many(count)
        except CodecError as error:
            got.append(cast(bytes, error.item))
        else:
            assert numbers
            got += [b"%d" % number for number in numbers]
    with suppress(WrongKeyError):
        session.dequeue_many(count)


def _dequeue_numbers(world: World, count: int, **settings: Any) -> Case:
    """Dequeue with a codec, and go on: an item that the caller did not get is not consumed."""
    world.open("q", *range(9), codec=Numbers(), **settings)
    session = world.session("q")
    got: list[bytes] = []

    def again() -> None:
        session.flush()
        session.close()
        del world.settings["q"]["codec"]
        queue = world.again("q")
        rest = list(queue.browse_all())
        assert [*got, *rest] == RAW, (got, rest)
        queue.clear()

    return Case(partial(take_numbers, session, count, got), again, [{"q": []}])


def several(world: AnyWorld) -> Case:
    """Move an item from one queue to another, in a block."""
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


def joint_sessions(world: AnyWorld, *queues: Any) -> Any:
    """Begin a transaction over the queues, and return its sessions."""
    block: Any = transaction(*queues)
    world.block, sessions = block, block.__enter__()
    world.sessions += sessions
    return sessions


def refuse_several(world: AnyWorld) -> Case:
    """Flush a transaction over two queues, one of which has no room for its item."""
    source, target = world.open("a", A), world.open("b", B, max_items=1)
    out, into = joint_sessions(world, source, target)
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


def _end_rejections(world: World, how: str) -> Case:
    """Make a call behind the rejection of all held items. Each is ready again and not rejected, or gets its letter."""
    queue = world.open("q", *MANY[:4], dead_letter="dead")
    world.queues["dead"] = queue.dead_letters
    session = world.session("q")
    assert len(session.dequeue_many(4)) == 4
    for item in MANY[:4]:
        session.reject(item, retry=False)

    def leave() -> None:
        with suppress(ZeroDivisionError), session:
            raise ZeroDivisionError

    calls: dict[str, Callable[[], object]] = {
        "put_back": lambda: session.put_back(2),
        "rollback": session.rollback,
        "flush": lambda: session.flush(wait=False),
        "flush_all": lambda: queue.flush_all([session, world.session("q")]),
        "close": session.close,
        "leave": leave,
    }

    def again() -> None:
        released: list[bytes] = []
        with suppress(persistentqueue.ClosedError):
            while items := session.dequeue_many(9):  # items that were delivered before come one by one
                released += items
            session.flush()
        queue.sync()
        left, letters = len(queue), len(queue.dead_letters)
        assert left + len(released) + letters == 4, (left, released, letters)

    return Case(calls[how], again, [{"q": MANY[:4]}, {"q": []}])


def _end_tickets(world: World, how: str, refused: bool) -> Case:
    """Make a call behind flushes that were handed over, while the session holds further items."""
    queue = world.open("q", *MANY[:6], max_items=6)
    session = world.session("q")
    if refused:
        session.enqueue(C)
    else:
        session.dequeue_many(3)
    ticket = session.flush(wait=False)
    held = session.dequeue_many(2)

    def call() -> None:
        with suppress(PrecedingFlushError, QueueFullError):
            getattr(session, how)()

    def again() -> None:
        with suppress(persistentqueue.ClosedError):
            session.rollback()
        queue.sync()
        assert ticket.done() and len(held) == 2, held

    left = MANY[0 if refused else 3 : 6]
    return Case(call, again, [{"q": left}, {"q": left[2:]}] if how == "flush" and not refused else [{"q": left}])


def _skip(world: World) -> Case:
    """Flush with a marker that is recorded already: nothing is enqueued, consumed or rejected."""
    queue = world.open("q", *MANY[:4], dead_letter="dead")
    world.queues["dead"] = queue.dead_letters
    session = world.session("q")
    session.flush(("m", 3))
    session.enqueue(C)
    session.dequeue_many(3)
    session.reject(MANY[1], retry=False)

    def again() -> None:
        assert not session.flush(("m", 3))
        released = []
        while items := session.dequeue_many(9):
            released += items
        assert released == MANY[:4], released
        session.flush()
        assert len(queue.dead_letters) == 0, len(queue.dead_letters)

    return Case(lambda: session.flush(("m", 3)), again, [{"q": []}])


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


def subscriptions(world: AnyWorld, method: str) -> Case:
    """Make or remove a subscription."""
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
        if what == "give up":
            queue._open().give_up(session._open())
        with suppress(QueueFullError):
            session.flush(timeout=60 if what == "give up" else 0.002)

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


def _reject_one(world: World) -> Case:
    """Reject one of two equal items. It gets its letter, or the call did nothing. The other one is consumed."""
    queue = world.open("q", A, B, A, dead_letter="dead")
    world.queues["dead"] = queue.dead_letters
    session = world.session("q")
    assert len(session.dequeue_many(3)) == 3

    def again() -> None:
        session.flush()
        assert len(queue.dead_letters) < 2, len(queue.dead_letters)

    return Case(lambda: session.reject(A, retry=False), again, [{"q": []}])


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
    taking, putting, burying = joint_sessions(world, queue, other, dead)
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
    "call back when a ticket is done": _call_back,
    "dequeue": partial(_dequeue, count=1),
    "dequeue many": partial(_dequeue, count=50),
    "dequeue from disk": partial(_dequeue, count=1, is_cold=True),
    "dequeue many from disk": partial(_dequeue, count=300, is_cold=True),
    "dequeue without memory": partial(_dequeue, count=9, memory_bytes=0),
    "dequeue, and go on": _go_on_behind_a_dequeue,
    "dequeue with a codec, and go on": partial(_dequeue_numbers, count=1),
    "dequeue many with a codec, and go on": partial(_dequeue_numbers, count=2),
    "dequeue with a codec and attempts, and go on": partial(_dequeue_numbers, count=1, **COUNTED),
    "dequeue many with a codec and attempts, and go on": partial(_dequeue_numbers, count=2, **COUNTED),
    "consume one": partial(_consume, count=1),
    "consume many": partial(_consume, count=300),
    "transaction": several,
    "transaction that is refused": refuse_several,
    "rollback": partial(_rollback, end="rollback"),
    "close a session": partial(_rollback, end="close"),
    "put back": _put_back,
    **{
        f"{how} what was rejected": partial(_end_rejections, how=how)
        for how in ("put_back", "rollback", "flush", "flush_all", "close", "leave")
    },
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
    "subscribe": partial(subscriptions, method="subscribe"),
    "unsubscribe": partial(subscriptions, method="unsubscribe"),
    "open": partial(_open, is_clean=True),
    "recover": partial(_open, is_clean=False),
    "close": _close,
    "delete": _delete,
    "move": _move,
    "repair": _repair,
    "wait for an item": partial(_wait, what="dequeue"),
    "wait for room": partial(_wait, what="flush"),
    "give up a wait for room": partial(_wait, what="give up"),
    **{
        f"{how} behind a {'refused ' if refused else ''}ticket": partial(_end_tickets, how=how, refused=refused)
        for how in ("rollback", "close", "put_back", "flush")
        for refused in (False, True)
    },
    "flush with a marker that is there": _skip,
    "flush all": _flush_all,
    "deliver": partial(_retries, what="dequeue"),
    "bury": partial(_retries, what="flush"),
    "rollback with a delay": partial(_delay, end="rollback"),
    "close with a delay": partial(_delay, end="close"),
    "dequeue behind a delay": partial(_due, method="dequeue"),
    "len behind a delay": partial(_due, method="len"),
    "wait behind a delay": partial(_due, method="wait"),
    "reject": partial(_reject, delay_seconds=0.0, dead_letter=None),
    "reject one of two": _reject_one,
    "reject with a delay": partial(_reject, delay_seconds=3600.0, dead_letter=None),
    "reject and bury": partial(_reject, delay_seconds=3600.0, dead_letter="dead"),
    "fail": _fail,
    "bury beside another item": _bury_beside,
    "adopt": _adopt,
    "requeue": _requeue,
}
"""Scenarios to interrupt, by name."""

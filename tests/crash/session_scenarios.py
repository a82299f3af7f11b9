"""Scenarios of ``worker_interrupts``: sessions of named subscriptions, holds that run out, and rejections with a codec.

They run on the simulated machine of ``worker_scenarios``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

from persistentqueue import Encryption
from persistentqueue.codecs import JSON, Codec, Enclosed
from persistentqueue.core.dead_letter import DeadLetter
from persistentqueue.errors import (
    ClosedError,
    CodecError,
    HoldLostError,
    QueueFullError,
    SubscriptionNotFoundError,
    WrongKeyError,
)
from persistentqueue.workers.shared_queue import SharedQueue
from persistentqueue.workers.worker_session import WorkerSession

from .scenarios import COUNTED, MANY, RAW, A, B, Case, Numbers, joint_sessions
from .worker_scenarios import Scenario, WorkerWorld, telling

_HOLD_SECONDS = 60.0
_SHORT_SECONDS = 0.03


# --- subscriptions ---------------------------------------------------------------------------------------------------


def _subscribe(world: WorkerWorld, **settings: Any) -> SharedQueue[Any]:
    """Return a queue of two subscriptions, with items for both."""
    queue = world.open("q", fan_out=True, **settings)
    for name in ("one", "other"):
        queue.subscribe(name)
    with queue.transaction() as session:
        session.enqueue_many(MANY[:9])
    return queue


def _left(queue: SharedQueue[Any], name: str = "one") -> list[bytes]:
    return list(queue.subscribe(name).browse())


def _dequeue(world: WorkerWorld, count: int, dies: bool = False, **settings: Any) -> Case:
    """Dequeue for a subscription, and go on: the other one keeps its items."""
    queue = _subscribe(world, **settings)
    session = world.session("q", "one")
    if dies:
        world.dies_behind = 0
    got: list[bytes] = []

    def call() -> None:
        for _ in range(3):
            got.extend([session.dequeue()] if count == 1 else session.dequeue_many(count))  # type: ignore[list-item]

    def again() -> None:
        world.dies_behind = None
        session.flush()
        session.close()
        world.settle()
        assert [*got, *_left(queue)] == MANY[:9], (got, _left(queue))
        assert _left(queue, "other") == MANY[:9]

    return Case(call, again, [{"q": MANY[:9]}])


def _flush(world: WorkerWorld, dies: str = "", **settings: Any) -> Case:
    """Flush a session of a subscription that has dequeued and enqueued, perhaps while its owner dies."""
    queue = _subscribe(world, **settings)
    session = world.session("q", "one")
    assert session.dequeue_many(3) == MANY[:3]
    session.enqueue(B)
    if dies:
        world.dies_behind, world.answers_last = 0, dies == "after"
    told: list[bool] = []

    flush = telling(session.flush, told)

    def again() -> None:
        world.dies_behind = None
        flush()
        session.close()  # with prefetch, it holds items
        is_committed = _left(queue) != MANY[:9]
        assert is_committed == told[0], (_left(queue), told)
        if is_committed:
            assert (_left(queue), _left(queue, "other")) == ([*MANY[3:9], B], [*MANY[:9], B])

    return Case(flush, again, [{"q": [*MANY[:9], B]}, *([{"q": MANY[:9]}] if dies else [])])


def _put_back(world: WorkerWorld) -> Case:
    queue = _subscribe(world)
    session = world.session("q", "one")
    session.dequeue_many(5)

    def again() -> None:
        held = session.held
        assert held in {2, 5}, held
        session.flush()
        assert _left(queue) == MANY[held:9]

    return Case(lambda: session.put_back(3), again, [{"q": MANY[:9]}])


def _unsubscribe(world: WorkerWorld) -> Case:
    """Remove a subscription whose session holds items."""
    queue = _subscribe(world)
    session = world.session("q", "one")
    session.dequeue_many(2)
    session.enqueue(B)

    def again() -> None:
        with suppress(SubscriptionNotFoundError):
            queue.unsubscribe("one")
        assert queue.subscriptions() == ["other"]
        try:
            session.flush()
        except SubscriptionNotFoundError:
            session.rollback()
        else:
            raise AssertionError("a session of no subscription has flushed")
        assert session.held == 0

    return Case(lambda: queue.unsubscribe("one"), again, [{"q": MANY[:9]}])


def _unsubscribed(world: WorkerWorld, method: str) -> Case:
    """Make a call of a session whose subscription was removed while it held items."""
    queue = _subscribe(world)
    session = world.session("q", "one")
    assert session.dequeue_many(3) == MANY[:3]
    session.enqueue(B)
    one = queue.subscribe("one")
    queue.unsubscribe("one")
    calls: dict[str, Callable[[], object]] = {
        "put_back": lambda: session.put_back(2),
        "dequeue": session.dequeue,
        "len": lambda: len(one),
        "wait": lambda: one.wait(0.05),
    }
    call = calls.get(method) or getattr(session, method)

    def try_it() -> None:
        with suppress(SubscriptionNotFoundError):
            call()

    def again() -> None:
        with suppress(SubscriptionNotFoundError, ValueError, ClosedError):
            call()
        with suppress(ClosedError):
            session.rollback()
        assert session.held == 0
        assert (len(one), one.removed) == (0, True)

    return Case(try_it, again, [{"q": MANY[:9]}])


def _unsubscribed_meanwhile(world: WorkerWorld, method: str) -> Case:
    """Wait for an item of a subscription that another process removes meanwhile."""
    queue = world.open("q", fan_out=True)
    one = queue.subscribe("one")
    session = world.session("q", "one")

    def call() -> None:
        world.meanwhile = lambda: world.owners["q"].public.unsubscribe("one")
        with suppress(SubscriptionNotFoundError):
            if method == "dequeue":
                assert session.dequeue(timeout=60.0) is None
            else:
                one.wait(60.0)

    def again() -> None:
        world.meanwhile = None
        with suppress(SubscriptionNotFoundError):
            queue.unsubscribe("one")
        try:
            session.dequeue()
        except SubscriptionNotFoundError:
            return
        raise AssertionError("a session of no subscription has dequeued")

    return Case(call, again, [{"q": []}])


def _look(world: WorkerWorld, method: str) -> Case:
    queue = _subscribe(world)
    one = queue.subscribe("one")
    with one.session() as session:
        session.dequeue_many(2)
        session.flush()
    calls: dict[str, tuple[Callable[[], object], object]] = {
        "len": (lambda: len(one), 7),
        "sizes": (lambda: tuple(one.sizes()), (7, 7)),
        "browse": (lambda: list(one.browse()), MANY[2:9]),
        "wait": (lambda: one.wait(0.05), True),
        "removed": (lambda: one.removed, False),
    }
    call, expected = calls[method]

    def again() -> None:
        assert call() == expected, call()

    return Case(call, again, [{"q": MANY[:9]}])


def _wait(world: WorkerWorld) -> Case:
    queue = world.open("q", A, fan_out=False)
    one = queue.subscribe("one", "latest")
    return Case(lambda: one.wait(0.05), lambda: one.wait(0.0), [{"q": [A]}])


def _wait_to_dequeue(world: WorkerWorld) -> Case:
    """Wait for an item of a subscription, which another process enqueues meanwhile."""
    queue = world.open("q", fan_out=True)
    queue.subscribe("one")
    session = world.session("q", "one")
    got: list[bytes | None] = []

    def enqueue() -> None:
        with world.owners["q"].public.transaction() as other:
            other.enqueue(A)

    def call() -> None:
        world.meanwhile = enqueue
        got.append(session.dequeue(timeout=60.0))

    def again() -> None:
        meanwhile, world.meanwhile = world.meanwhile, None
        if meanwhile is not None:
            enqueue()
        if not got:
            assert session.dequeue() == A
        session.flush()

    return Case(call, again, [{"q": []}])


def _block(world: WorkerWorld) -> Case:
    """Consume an item of a subscription in a block that is one transaction."""
    queue = _subscribe(world)
    one = queue.subscribe("one")

    def call() -> None:
        with one.transaction() as session:
            session.enqueue(session.dequeue())

    def again() -> None:
        left = _left(queue)
        assert left in (MANY[:9], [*MANY[1:9], MANY[0]]), left
        if left == MANY[:9]:
            call()

    return Case(call, again, [{"q": [*MANY[:9], MANY[0]]}])


# --- holds that run out ----------------------------------------------------------------------------------------------


def _late(world: WorkerWorld, method: str, behind: int = 0, **settings: Any) -> Case:
    """Make a call before which, or in the middle of which, the time of its session is over.

    ``behind`` is the number of messages that the owner takes before.
    """
    queue = world.open("q", *MANY[:9], hold_seconds=_HOLD_SECONDS, **settings)
    session = world.session("q")
    assert session.dequeue_many(3) == MANY[:3]
    session.enqueue(B)
    world.late_behind = behind
    calls: dict[str, Callable[[], object]] = {
        "dequeue": lambda: [session.dequeue() for _ in range(2)],
        "put": session._put if method != "put" else lambda: _put(session),
        "put_back": lambda: session.put_back(2),
        "reject": lambda: session.reject(MANY[1]),
    }
    call = calls.get(method) or getattr(session, method)
    got: list[int] = []

    def late() -> None:
        with suppress(HoldLostError):
            call()
            got.append(1)

    def again() -> None:
        world.late_behind = None
        _end_late(world, session, queue, 9, method)

    return Case(late, again, [{"q": []}])


def _put(session: WorkerSession[Any]) -> None:
    """Enqueue more than the session keeps."""
    session._batch._most_bytes = 100
    session.enqueue_many([B, B, B])


def _end_late(world: WorkerWorld, session: WorkerSession[Any], queue: SharedQueue[Any], count: int, how: str) -> None:
    """Flush a session whose time may be over: it commits all that it holds, or nothing, and then works."""
    held = session.held
    try:
        if not session.closed:
            session.flush()
    except HoldLostError:
        assert session.held == held
        session.rollback()
        held = 0
    if session.closed:
        held = 0
    items = list(queue.browse_all())
    if how == "reject" and held:  # the item that was rejected, if it was
        items = [item for item in items if item != MANY[1]]
    assert [item for item in items if item not in {A, B}] == MANY[held:count], (held, items)
    assert bool(held) or how in {"flush", "rollback", "close"} or B not in items, items
    if not session.closed and items:
        assert session.dequeue_many(99)
        session.rollback()
    queue.clear()


def _late_wait(world: WorkerWorld) -> Case:
    """Wait for an item until the time of the items that the session holds is over."""
    queue = world.open("q", *MANY[:2], hold_seconds=_SHORT_SECONDS)
    session = world.session("q")
    assert session.dequeue_many(2) == MANY[:2]

    def call() -> None:
        with suppress(HoldLostError):
            session.dequeue(timeout=60.0)

    def again() -> None:
        _end_late(world, session, queue, 2, "dequeue")

    return Case(call, again, [{"q": []}])


def _late_room(world: WorkerWorld) -> Case:
    """Wait for room in a flush while the time of the items that the session holds is over: it is not too late."""
    queue = world.open("q", *MANY[:2], hold_seconds=_SHORT_SECONDS, max_items=2, full="block")
    session = world.session("q")
    assert session.dequeue() == MANY[0]
    session.enqueue_many([A, B])

    def call() -> None:
        with suppress(QueueFullError, HoldLostError):
            session.flush(timeout=0.1)

    def again() -> None:
        with queue.transaction() as other:
            taken = other.dequeue()
        try:
            session.flush()
            consumed, added = {MANY[0]}, [A, B]
        except HoldLostError:
            session.rollback()
            consumed, added = set(), []
        left = [item for item in MANY[:2] if item not in consumed | {taken}]
        assert list(queue.browse_all()) == [*left, *added], (taken, added)
        queue.clear()

    return Case(call, again, [{"q": []}])


def _late_numbers(world: WorkerWorld, bad: int, count: int, **settings: Any) -> Case:
    """Dequeue with a codec in which the time of the session runs out, and go on."""
    is_late: list[int] = []

    class Slow(Numbers):
        """Numbers, one of which takes longer than a hold."""

        def decode(self, data: bytes) -> int:
            """Return the number."""
            if data == b"%d" % bad and not is_late:
                is_late.append(1)
                world.pass_time()
            return super().decode(data)

    world.open("q", *RAW, codec=Slow(), hold_seconds=_HOLD_SECONDS, **settings)
    session = world.session("q")
    got: list[bytes] = []

    def call() -> None:
        for _ in range(99):
            try:
                got.extend(b"%d" % each for each in session.dequeue_many(count))
            except CodecError as error:
                got.append(cast(bytes, error.item))
            except HoldLostError:
                got.clear()
                session.rollback()
            except WrongKeyError:
                return
        raise AssertionError("it goes on for ever")

    def again() -> None:
        try:
            session.flush()
        except HoldLostError:
            got.clear()
            session.rollback()
        session.close()
        world.settle()
        public = world.owners["q"].public
        rest = list(public.browse_all())
        assert [*got, *rest] == RAW, (got, rest)
        public.clear()

    return Case(call, again, [{"q": []}])


def _late_joint(world: WorkerWorld, behind: int) -> Case:
    """Flush the sessions of two queues together, after the time of the items is over."""
    source, target = world.open("a", A, B, hold_seconds=_HOLD_SECONDS), world.open("b", hold_seconds=_HOLD_SECONDS)
    out, into = joint_sessions(world, source, target)
    assert out.dequeue() == A
    into.enqueue(A)
    world.late_behind = behind

    def call() -> None:
        with suppress(HoldLostError):
            out.flush()

    def again() -> None:
        world.late_behind = None
        try:
            out.flush()
        except HoldLostError:
            out.rollback()
            into.rollback()
            assert out.dequeue() == A
            into.enqueue(A)
            out.flush()

    return Case(call, again, [{"a": [B], "b": [A]}])


# --- rejections ------------------------------------------------------------------------------------------------------


def _find_key(key_id: str) -> bytes:
    return {"one": b"1" * 32, "two": b"2" * 32}[key_id]


def _rejected(world: WorkerWorld) -> list[bytes]:
    """Return the items that the dead-letter queue has."""
    return [DeadLetter.decode(each).item for each in world.owners["q"].public.dead_letters.browse_all()]


def _reject(world: WorkerWorld, codec: Codec[Any], raw: list[bytes], item: Any, goes_on: bool) -> Case:
    """Reject an item that several held items are equal to. If it goes on, reject each of them."""
    world.open("q", *raw, codec=codec, **COUNTED)
    session = world.session("q")
    taken = [each for _ in raw for each in session.dequeue_many(1)]
    equal = [raw[at] for at, each in enumerate(taken) if each == item]
    session.enqueue(item)

    def again() -> None:
        if goes_on:
            for _ in range(len(equal)):
                with suppress(ValueError):  # it is rejected already
                    session.reject(item, retry=False)
        session.flush()
        found = _rejected(world)
        assert found == equal if goes_on else found in ([], equal[:1]), (found, equal)
        public = world.owners["q"].public
        assert len(public) == 1
        public.clear()

    return Case(lambda: session.reject(item, retry=False), again, [{"q": []}])


def _end_rejections(world: WorkerWorld, how: str) -> Case:
    """Make a call behind the rejection of all held items. Each is ready again and not rejected, or gets its letter."""
    world.open("q", *MANY[:4], **COUNTED)
    session = world.session("q")
    assert len(session.dequeue_many(4)) == 4
    for item in MANY[:4]:
        session.reject(item, retry=False)
    calls: dict[str, Callable[[], object]] = {
        "put_back": lambda: session.put_back(2),
        "rollback": session.rollback,
        "flush": session.flush,
        "close": session.close,
    }

    def again() -> None:
        released: list[bytes] = []
        with suppress(ClosedError):
            while items := session.dequeue_many(9):  # items that were delivered before come one by one
                released += items
            session.flush()
        left, letters = len(world.owners["q"].public), _rejected(world)
        assert left + len(released) + len(letters) == 4, (left, released, letters)

    return Case(calls[how], again, [{"q": MANY[:4]}, {"q": []}])


def _reject_enclosed(world: WorkerWorld, goes_on: bool) -> Case:
    codec = Enclosed(JSON, encryption=Encryption("one", _find_key))
    raw = [codec.encode(each) for each in ({"a": 1}, [2], {"a": 1}, None)]
    return _reject(world, codec, raw, {"a": 1}, goes_on)


def _reject_undecodable(world: WorkerWorld) -> Case:
    """Reject an item that the codec refuses, by its error."""
    world.open("q", b"1", b"3", b"2", codec=Numbers(), **COUNTED)
    session = world.session("q")
    assert session.dequeue() == 1
    try:
        session.dequeue()
    except CodecError as error:
        bad = error
    assert session.dequeue() == 2

    def again() -> None:
        with suppress(ValueError):
            session.reject(bad, retry=False)
        session.flush()
        assert _rejected(world) == [b"3"]

    return Case(lambda: session.reject(bad, retry=False), again, [{"q": []}])


def _enclosed(world: WorkerWorld, count: int, **settings: Any) -> Case:
    """Dequeue enclosed items up to one with a key that this process has not, and go on."""
    codec = Enclosed(JSON, encryption=Encryption("one", _find_key))
    other = Enclosed(JSON, encryption=Encryption("two", _find_key))

    def key(key_id: str) -> bytes:
        if key_id == "two":
            raise KeyError(key_id)
        return _find_key(key_id)

    raw = [*map(codec.encode, range(3)), b"bad", codec.encode(4), other.encode(5), codec.encode(6)]
    world.open("q", *raw, codec=Enclosed(JSON, encryption=Encryption("one", key)), **settings)
    session = world.session("q")
    got: list[Any] = []

    def call() -> None:
        while True:
            try:
                got.extend([session.dequeue()] if count == 1 else session.dequeue_many(count))
            except CodecError:
                got.append(3)
            except WrongKeyError:
                return

    def again() -> None:
        session.flush()
        session.close()
        world.settle()
        public = world.owners["q"].public
        rest = list(public.browse_all())
        assert rest == raw[len(got) :] and got == list(range(len(got))), (got, len(rest))
        public.clear()

    return Case(call, again, [{"q": []}])


def _enclose(world: WorkerWorld) -> Case:
    """Enqueue enclosed items: no two envelopes are made with the same nonce."""
    codec = Enclosed(JSON, encryption=Encryption("one", _find_key))
    queue = world.open("q", codec=codec)
    session = world.session("q")

    def call() -> None:
        session.enqueue_many(["same"] * 4)

    def again() -> None:
        call()
        session.flush()
        raw = list(world.owners["q"].public.browse_all())
        assert len(set(raw)) == len(raw) and len(raw) in range(4, 9), len(raw)
        assert list(queue.browse()) == ["same"] * len(raw)
        queue.clear()

    return Case(call, again, [{"q": []}])


SCENARIOS: dict[str, Scenario] = {
    "subscription: dequeue": partial(_dequeue, count=1),
    "subscription: dequeue many": partial(_dequeue, count=2),
    "subscription: dequeue many with prefetch": partial(_dequeue, count=2, prefetch=True),
    "subscription: dequeue many with attempts": partial(_dequeue, count=2, **COUNTED),
    "subscription: dequeue as the owner dies": partial(_dequeue, count=9, dies=True),
    "subscription: flush": _flush,
    "subscription: flush with attempts": partial(_flush, **COUNTED),
    "subscription: flush with prefetch": partial(_flush, prefetch=True),
    "subscription: flush as the owner dies before it": partial(_flush, dies="before"),
    "subscription: flush as the owner dies after it": partial(_flush, dies="after"),
    "subscription: put back": _put_back,
    "subscription: unsubscribe": _unsubscribe,
    **{
        f"subscription: {method} behind its removal": partial(_unsubscribed, method=method)
        for method in ("dequeue", "flush", "put_back", "rollback", "close", "extend", "len", "wait")
    },
    "subscription: removal in a dequeue": partial(_unsubscribed_meanwhile, method="dequeue"),
    "subscription: removal in a wait": partial(_unsubscribed_meanwhile, method="wait"),
    **{f"subscription: {method}": partial(_look, method=method) for method in ("len", "sizes", "browse", "removed")},
    "subscription: wait": partial(_look, method="wait"),
    "subscription: wait in vain": _wait,
    "subscription: wait for an item": _wait_to_dequeue,
    "subscription: block": _block,
    **{
        f"late: {method}": partial(_late, method=method)
        for method in ("flush", "extend", "put", "put_back", "dequeue", "rollback", "close")
    },
    "late: reject": partial(_late, method="reject", **COUNTED),
    "late: flush with attempts": partial(_late, method="flush", **COUNTED),
    "late: dequeue behind one": partial(_late, method="dequeue", behind=1),
    "late: wait for an item": _late_wait,
    "late: wait for room": _late_room,
    "late: bad item of a codec": partial(_late_numbers, bad=3, count=3),
    "late: bad item of a codec, alone": partial(_late_numbers, bad=3, count=1),
    "late: bad item of a codec with attempts": partial(_late_numbers, bad=3, count=3, **COUNTED),
    "late: item without a key": partial(_late_numbers, bad=5, count=3),
    "late: item without a key with attempts": partial(_late_numbers, bad=5, count=3, **COUNTED),
    "late: joint flush": partial(_late_joint, behind=0),
    "late: joint flush behind its items": partial(_late_joint, behind=1),
    "reject: bytes": partial(_reject, codec=Numbers(), raw=[b"1", b"2", b"1"], item=1, goes_on=False),
    "reject: the same number": partial(_reject, codec=Numbers(), raw=[b"1", b"2", b"1"], item=1, goes_on=True),
    "reject: an equal number": partial(_reject, codec=Numbers(), raw=[b"1", b"2", b"01"], item=1, goes_on=True),
    "reject: an enclosed item": partial(_reject_enclosed, goes_on=False),
    "reject: enclosed items": partial(_reject_enclosed, goes_on=True),
    "reject: a bad item": _reject_undecodable,
    **{
        f"reject: all, and {how}": partial(_end_rejections, how=how)
        for how in ("put_back", "rollback", "flush", "close")
    },
    "enclosed: enqueue": _enclose,
    "enclosed: dequeue": partial(_enclosed, count=1),
    "enclosed: dequeue many": partial(_enclosed, count=2),
    "enclosed: dequeue many with attempts": partial(_enclosed, count=2, **COUNTED),
}
"""Scenarios to interrupt, by name."""

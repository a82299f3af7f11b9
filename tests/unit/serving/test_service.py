"""The owner's side of all connections, alone: messages go in, messages come out, and the clock stands still."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from persistentqueue import Encryption, HoldLostError, PersistentQueue, Producer, SessionInUseError
from persistentqueue.engine.reader import Reader
from persistentqueue.engine.transaction import SPILL_BYTES
from persistentqueue.errors import CorruptionError, PersistentQueueError, TooManyFilesError
from persistentqueue.interrupts.call_guard import exclusively
from persistentqueue.runtime.open_queue import OpenQueue
from persistentqueue.runtime.session_state import flush_at_once, hold_of, put_at_once
from persistentqueue.serving import server
from persistentqueue.serving import service as service_module
from persistentqueue.serving.calls import make_call
from persistentqueue.serving.client import Client
from persistentqueue.serving.connections import count_connections
from persistentqueue.serving.protocol import (
    CONNECTION_BYTES,
    FOR_EVER,
    FROM_OWNER,
    JSON_BYTES_MAX,
    VERSION,
    Ahead,
    Browse,
    Call,
    Cancel,
    Done,
    End,
    Failed,
    Flush,
    GiveBack,
    Hello,
    Incoming,
    Mark,
    Message,
    Outcome,
    ProtocolError,
    Put,
    Reject,
    Result,
    RollBack,
    Take,
    Taken,
    Welcome,
    encode,
)
from persistentqueue.serving.service import (
    FORGET_SECONDS,
    ROOM_SECONDS,
    SOME_LOST,
    OwnerFailedError,
    Served,
    Service,
    session_for,
)
from persistentqueue.session import Session

from ...conftest import QueueFactory
from ...support.left_holds import LeftHolds
from ...support.queues import put, wait_for

DONE, NOT_DONE, NOTHING = Done(1), Done(0), Taken(0, [])


class Peer:
    """One worker: it sends messages, and gets answers."""

    def __init__(self, bench: Bench, number: int, **fields: Any) -> None:
        self.bench = bench
        self.client: Client = bench.service.connect()
        self.incoming = Incoming(FROM_OWNER)
        self.calls = 0
        self.id = bytes([number]) * CONNECTION_BYTES
        if fields.pop("says_hello", True):
            answer = self.ask(Hello({"versions": [VERSION, VERSION], "connection": self.id.hex(), **fields}))
            assert isinstance(answer, Welcome)

    def send(self, message: Message) -> None:
        """Send a message, without a turn."""
        self.calls += 1
        self.bench.service.receive(self.client, encode(message, self.calls))

    def got(self) -> list[tuple[int, Message]]:
        """Return the answers since the last call."""
        data = b"".join(self.client.out)
        self.client.out.clear()
        return self.incoming.feed(data) if data else []

    def answer(self) -> Message | None:
        """Return the answer to the last message; None if there is none yet."""
        found = self.got()
        assert len(found) <= 1
        assert not found or found[0][0] == self.calls
        return found[0][1] if found else None

    def ask(self, message: Message) -> Message | None:
        """Send a message, let the owner make a turn, and return the answer; None if there is none yet."""
        self.send(message)
        self.bench.turn()
        return self.answer()

    def error(self, message: Message) -> str:
        """Return the class of the error with which the message is answered."""
        return failure(self.ask(message))

    def leave(self, by_worker: bool = True) -> None:
        """End the connection."""
        self.bench.service.disconnect(self.client, may_return=by_worker)


class Bench:
    """A service on an open queue, with a clock and without sockets."""

    def __init__(self, queue: PersistentQueue, left: LeftHolds | None = None) -> None:
        self.queue = queue
        self.seconds = 100.0
        self.rings = 0
        self.apart: list[Callable[[], None]] = []
        self.left = left or LeftHolds()
        self.open_queue = queue._open()
        self.service = self.again()

    def again(self) -> Service:
        """Return a service as the next owner makes it."""

        def session(name: str, subscription: str) -> Session[bytes]:
            return self.queue._session(
                name, self.open_queue.reader_named(subscription) if subscription else None, Session
            )

        def ring() -> None:
            self.rings += 1

        def call(name: str, arguments: dict[str, Any]) -> Any:
            return "x" * JSON_BYTES_MAX if name == "long" else make_call(self.queue, self.open_queue, name, arguments)

        served = Served(self.open_queue, session, call, {"version": VERSION}, lambda: self.seconds, self.left)
        service = Service(served, ring, self.apart.append)
        service.inherit()
        self.open_queue.counts.connected = partial(count_connections, service.clients, service.blocked)
        return service

    def end(self) -> None:
        """End all connections."""
        self.service.leave()
        for client in list(self.service.clients):
            self.service.disconnect(client, may_return=True)

    def turn(self) -> float:
        """Make a turn, and return the seconds until the next one."""
        return self.service.turn() - self.seconds

    def put(self, *items: bytes) -> None:
        """Enqueue items in the owner's process."""
        with self.queue.transaction() as session:
            session.enqueue_many(items)

    def flushes(self) -> dict[bytes, int]:
        """Return the records of flushes."""
        return self.open_queue._store.state.flushes


def failure(answer: Message | None) -> str:
    """Return the class of the error of a call."""
    assert isinstance(answer, Failed), answer
    return str(answer.fields["error"])


@pytest.fixture
def bench(open_queue: QueueFactory) -> Iterator[Bench]:
    """Return a service on a new queue. Its connections end with the test."""
    made = Bench(open_queue())
    yield made
    made.end()


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(open_queue: QueueFactory) -> Iterator[MakeBench]:
    """Return a function that makes a service on a queue with these settings."""
    made: list[Bench] = []

    def make(**settings: Any) -> Bench:
        made.append(Bench(open_queue(**settings)))
        return made[-1]

    yield make
    for each in made:
        each.end()


# --- the beginning ---------------------------------------------------------------------------------------------------


def test_a_hello_comes_first_and_once(bench: Bench) -> None:
    """A message before the hello, and a second hello, end the connection."""
    silent = Peer(bench, 1, says_hello=False)
    for message in (Take(1, 0), Put([b"x"]), RollBack(), Outcome(1), Call({"call": "trim"})):
        with pytest.raises(ProtocolError, match="before the hello"):
            silent.send(message)
    silent.leave()
    peer = Peer(bench, 2)
    with pytest.raises(ProtocolError, match="second hello"):
        peer.send(Hello({"versions": [1, 1], "connection": peer.id.hex()}))


@pytest.mark.parametrize(
    "fields",
    [
        {"versions": None},
        {"versions": [1]},
        {"versions": [1, "1"]},
        {"versions": [True, 1]},
        {"connection": None},
        {"connection": "zz" * 16},
        {"connection": "00" * 15},
        {"connection": "00" * 16},
        {"hold_seconds": 0},
        {"hold_seconds": -1.0},
        {"hold_seconds": "1"},
        {"hold_seconds": float("nan")},
    ],
    ids=str,
)
def test_a_hello_that_no_worker_sends_ends_the_connection(bench: Bench, fields: dict[str, Any]) -> None:
    """A hello with wrong fields raises ``ProtocolError``. The id of no connection is reserved."""
    peer = Peer(bench, 1, says_hello=False)
    with pytest.raises(ProtocolError):
        peer.send(Hello({"versions": [1, 1], "connection": peer.id.hex(), **fields}))
    peer.leave()


def test_other_versions_are_refused(bench: Bench) -> None:
    """A worker that speaks no common version is told so. One that speaks newer versions as well is welcome."""
    for versions in ([VERSION + 1, VERSION + 2], [0, VERSION - 1]):
        peer = Peer(bench, 1, says_hello=False)
        assert peer.error(Hello({"versions": versions, "connection": peer.id.hex()})) == "RefusedError"
        peer.leave()
    peer = Peer(bench, 2, says_hello=False)
    assert isinstance(peer.ask(Hello({"versions": [0, 99], "connection": peer.id.hex(), "process": "x"})), Welcome)


def test_a_missing_subscription_is_named(bench: Bench) -> None:
    """A hello for a subscription that does not exist fails, and the connection goes on without a session."""
    peer = Peer(bench, 1, says_hello=False)
    hello = {"versions": [1, 1], "connection": peer.id.hex(), "subscription": "gone"}
    assert peer.error(Hello(hello)) == "SubscriptionNotFoundError"
    with pytest.raises(ProtocolError, match="before the hello"):
        peer.send(Take(1, 0))


def test_one_call_at_a_time(bench: Bench) -> None:
    """A call during a wait, a flush, or a call that is made apart ends the connection."""
    calls: tuple[Message, ...] = (
        Take(1, FOR_EVER),
        Flush(1, FOR_EVER, [b"x"]),
        Call({"call": "trim", "arguments": {}}),
    )
    for number, message in enumerate(calls):
        peer = Peer(bench, number + 1)
        peer.send(message)
        with pytest.raises(ProtocolError, match="during another call"):
            peer.send(Put([b"y"]))
        peer.leave(by_worker=False)
    bench.apart.pop()()
    bench.turn()
    assert len(bench.queue) == 0


# --- items -----------------------------------------------------------------------------------------------------------


def test_items_go_in_and_out(bench: Bench) -> None:
    """Items are held, given back in order, rolled back and committed."""
    peer = Peer(bench, 1)
    assert peer.ask(Put([b"1", b"2"])) == DONE
    assert len(bench.queue) == 0
    assert peer.ask(Flush(1, FOR_EVER, [b"3"])) == DONE
    assert peer.ask(Take(2, 0)) == Taken(0, [b"1", b"2"])
    assert peer.ask(GiveBack(1)) == DONE
    assert peer.error(GiveBack(2)) == "ValueError"
    assert bench.queue.peek(5) == [b"2", b"3"]
    assert peer.ask(RollBack()) == DONE
    assert peer.ask(Take(9, 0)) == Taken(0, [b"1", b"2", b"3"])
    assert peer.ask(Take(9, 0)) == NOTHING
    assert peer.ask(Flush(2, FOR_EVER, [])) == DONE
    assert len(bench.queue) == 0


def test_an_answer_has_room_for_so_many_bytes(bench: Bench) -> None:
    """Items without room in the answer are given back, and the answer says that there are more."""
    bench.put(*([b"x" * 40] * 5))
    peer = Peer(bench, 1)
    with patch.object(service_module, "TAKEN_BYTES", 100):
        assert peer.ask(Take(5, 0)) == Taken(1, [b"x" * 40] * 2)
        assert len(bench.queue) == 3
        with patch.object(service_module, "TAKEN_BYTES", 10):
            assert peer.ask(Take(5, 0)) == Taken(1, [b"x" * 40])
        assert peer.ask(Take(2, 0)) == Taken(0, [b"x" * 40] * 2)


def test_a_large_batch_takes_work_in_proportion_to_its_items(bench: Bench) -> None:
    """However many items a worker asks for, each answer holds and releases at most one item more than it sends."""
    items = [b"%03d" % number * (1 + number % 7) for number in range(500)]
    bench.put(*items)
    peer, answers, more = Peer(bench, 1), 0, 1
    got: list[bytes] = []
    with patch.object(service_module, "TAKEN_BYTES", 400):
        while more:
            answer = peer.ask(Take(10**6, 0))
            assert isinstance(answer, Taken)
            assert sum(len(item) + 4 for item in answer.items) <= 400
            more, answers = answer.more, answers + 1
            got += answer.items
    assert got == items
    assert 20 < answers < 60
    assert bench.queue.stats().given_back <= 8 * answers


def test_only_items_that_are_sent_are_delivered(make_bench: MakeBench) -> None:
    """An item that finds no room in the answer, or in no message, has no delivery attempt. One that was delivered
    before comes alone."""
    bench = make_bench(max_attempts=2, dead_letter="dead")
    bench.put(*(b"%d" % number * 40 for number in range(8)))
    state, peer, other = bench.open_queue._store.state, Peer(bench, 1), Peer(bench, 2)

    def times() -> list[int]:
        return [state.times(0, sequence) for sequence in range(8)]

    with patch.object(service_module, "TAKEN_BYTES", 100):
        assert peer.ask(Take(8, 0)) == Taken(1, [b"0" * 40, b"1" * 40])
        assert times() == [1, 1, 0, 0, 0, 0, 0, 0]
        assert peer.ask(RollBack()) == DONE
        for number in (0, 1):
            assert other.ask(Take(8, 0)) == Taken(0, [b"%d" % number * 40])
            assert other.ask(Flush(1 + number, FOR_EVER, [])) == DONE
        with patch.object(service_module, "ITEM_BYTES_MAX", 39):
            for _ in range(3):
                assert peer.error(Take(8, 0)) == "ItemTooLargeError"
        assert times()[2:] == [0] * 6
        assert bench.queue.peek(1) == [b"2" * 40]
    assert peer.ask(Take(4, 0)) == Taken(0, [b"%d" % number * 40 for number in range(2, 6)])
    assert peer.ask(GiveBack(1)) == DONE
    assert other.ask(Take(8, 0)) == Taken(0, [b"5" * 40])
    assert other.ask(RollBack()) == DONE
    assert times()[2:] == [1, 1, 1, 2, 0, 0]


@pytest.mark.parametrize("new", [1, 2])
def test_a_batch_ends_before_an_item_that_was_delivered(make_bench: MakeBench, new: int) -> None:
    """An item that was delivered before is not in the batch of those before it, and has no further attempt by it."""
    bench = make_bench(max_attempts=3, dead_letter="dead")
    items = [b"%d" % number for number in range(new + 2)]
    bench.put(*items)
    state, peer, other = bench.open_queue._store.state, Peer(bench, 1), Peer(bench, 2)

    def times() -> list[int]:
        return [state.times(0, sequence) for sequence in range(new + 2)]

    assert peer.ask(Take(new, 0)) == Taken(0, items[:new])
    assert other.ask(Take(1, 0)) == Taken(0, items[new : new + 1])
    uncount = Call({"call": "uncount", "arguments": {"count": new}})
    assert (peer.ask(uncount), peer.ask(RollBack()), other.ask(RollBack())) == (Result({"result": None}), DONE, DONE)
    assert times() == [*[0] * new, 1, 0]
    assert peer.ask(Take(9, 0)) == Taken(0, items[:new])
    assert times() == [*[1] * new, 1, 0]
    assert peer.ask(Take(9, 0)) == Taken(0, items[new : new + 1])
    assert peer.ask(Take(9, 0)) == Taken(0, items[new + 1 :])


def test_items_before_one_that_cannot_be_opened_come_first(open_queue: QueueFactory) -> None:
    """A batch ends before a block whose key is missing. The next take raises the error, and no item is lost."""
    encryption = Encryption("key", lambda _: bytes(32))
    for settings in ({}, {"encryption": encryption}):
        with open_queue(**settings) as queue:
            put(queue, b"1" if not settings else b"2")
    bench = Bench(open_queue())
    peer = Peer(bench, 1)
    assert peer.ask(Take(9, 0)) == Taken(0, [b"1"])
    assert peer.error(Take(9, 0)) == "WrongKeyError"
    assert peer.ask(RollBack()) == DONE
    assert len(bench.queue) == 2
    peer.leave()


def test_a_batch_does_not_look_behind_the_last_item(bench: Bench) -> None:
    """A batch that takes all ready items reports no damage of published files: the next take does."""
    bench.put(b"1", b"2")
    damage = bench.open_queue._store.inbox.damage
    damage.append(CorruptionError("/q/inbox/1.seg", 0, "a header", "none"))
    peer = Peer(bench, 1)
    assert peer.ask(Take(9, 0)) == Taken(0, [b"1", b"2"])
    assert peer.error(Take(9, 0)) == "CorruptionError"
    assert not damage


def test_an_item_that_no_message_can_hold_stays(bench: Bench) -> None:
    """An item above the limit of a message is not taken: it is not consumed by the next flush of the worker."""
    bench.put(b"small", b"too large", b"next")
    with patch.object(service_module, "ITEM_BYTES_MAX", 8), patch.object(service_module, "TAKEN_BYTES", 12):
        waiting, peer = Peer(bench, 1), Peer(bench, 2)
        assert peer.ask(Take(3, 0)) == Taken(0, [b"small"])  # with more to come, the worker would lose it to the error
        assert peer.error(Take(3, 0)) == "ItemTooLargeError"
        assert waiting.error(Take(1, FOR_EVER)) == "ItemTooLargeError"
        assert peer.error(Browse(0)) == "ItemTooLargeError"
        assert peer.ask(Flush(1, FOR_EVER, [])) == DONE
    assert bench.queue.peek(3) == [b"too large", b"next"]


def test_waits_are_served_in_the_order_of_their_coming(bench: Bench) -> None:
    """Each new item goes to the connection that has waited longest. One that came later waits behind it."""
    peers = [Peer(bench, number) for number in (1, 2, 3)]
    for peer in peers:
        assert peer.ask(Take(1, FOR_EVER)) is None
    assert bool(bench.service.waits)
    late = Peer(bench, 4)
    bench.put(b"1", b"2")
    assert bench.rings == 1
    assert late.ask(Take(1, 0)) == NOTHING  # the items are for those that wait
    assert [peer.answer() for peer in peers] == [Taken(0, [b"1"]), Taken(0, [b"2"]), None]
    peers[2].leave()
    assert (bench.turn(), bench.service.waits) == (inf, False)
    bench.put(b"3")
    assert late.ask(Take(1, FOR_EVER)) == Taken(0, [b"3"])
    assert {late.client, *(peer.client for peer in peers)} == set(bench.service.take_answered())
    assert bench.service.take_answered() == []


def test_a_connection_that_waits_no_more_is_passed_over(bench: Bench) -> None:
    """A wait that was cancelled, or whose time is over, takes no item from the line, also before the next turn."""
    first, second, third = (Peer(bench, number) for number in (1, 2, 3))
    assert first.ask(Take(1, 50)) is None
    assert second.ask(Take(1, FOR_EVER)) is None
    assert 0 < bench.turn() <= 0.05
    bench.seconds += 0.06
    bench.turn()
    assert first.answer() == NOTHING
    second.bench.service.receive(second.client, encode(Cancel(), second.calls))
    assert second.answer() == NOTHING
    second.bench.service.receive(second.client, encode(Cancel(), second.calls))
    assert second.answer() is None
    bench.put(b"1")
    assert third.ask(Take(1, 0)) == Taken(0, [b"1"])


def test_many_waits_that_ended_leave_no_deadlines(bench: Bench) -> None:
    """The deadlines of waits that were cancelled are dropped, also the late ones."""
    peer = Peer(bench, 1)
    for _ in range(200):
        peer.send(Take(1, 10**6))
        bench.service.receive(peer.client, encode(Cancel(), peer.calls))
        assert peer.answer() == NOTHING
    assert bench.service._waits._due[0][0] - bench.seconds > 900
    peer.send(Take(1, 10**5))
    assert bench.turn() <= 100
    assert len(bench.service._waits._due) < 100


def test_a_wait_without_a_take(bench: Bench) -> None:
    """A wait for an item holds nothing, and ends for every item."""
    peer = Peer(bench, 1)
    assert peer.ask(Take(0, 0)) == NOTHING
    assert peer.ask(Take(0, FOR_EVER)) is None
    bench.put(b"1")
    bench.turn()
    assert peer.answer() == Taken(1, [])
    assert peer.ask(Take(0, 0)) == Taken(1, [])
    assert len(bench.queue) == 1


def test_a_wait_that_another_consumer_outruns_goes_on(bench: Bench) -> None:
    """If others take each item first, the connection waits on. It is not told that there is nothing."""
    peer = Peer(bench, 1)
    assert peer.ask(Take(1, FOR_EVER)) is None
    bench.put(b"1")
    with patch.object(Session, "dequeue", side_effect=[None, b"1"]):
        bench.turn()
    assert peer.answer() == Taken(0, [b"1"])


def test_a_removed_subscription_ends_the_wait(bench: Bench) -> None:
    """A wait of a subscription that is removed raises its error, and the others go on."""
    bench.queue.subscribe("a")
    peer, plain = Peer(bench, 1, subscription="a"), Peer(bench, 2)
    assert (peer.ask(Take(1, FOR_EVER)), plain.ask(Take(1, FOR_EVER))) == (None, None)
    bench.queue.unsubscribe("a")
    bench.turn()
    assert failure(peer.answer()) == "SubscriptionNotFoundError"
    bench.put(b"1")
    bench.turn()
    assert plain.answer() == Taken(0, [b"1"])


@contextmanager
def ends_each_turn(bench: Bench) -> Iterator[None]:
    """Let the test fail when a turn does not end by itself."""
    looks, has_item = [0], bench.open_queue.has_item

    def counted(reader: Reader) -> bool:
        looks[0] += 1
        assert looks[0] < 1000, "a turn has no end"
        return has_item(reader)

    with patch.object(bench.open_queue, "has_item", counted):
        yield


def test_a_subscription_may_have_the_number_of_a_removed_one(bench: Bench) -> None:
    """A wait for a new subscription ends as any other one, also if a removed one had its number."""
    with ends_each_turn(bench):
        for number, name in enumerate("aab"):
            bench.queue.subscribe(name, start="latest")
            peer = Peer(bench, number + 1, subscription=name)
            assert peer.ask(Take(1, 50)) is None
            bench.seconds += 1
            bench.turn()
            assert peer.answer() == NOTHING
            assert peer.ask(Take(1, FOR_EVER)) is None
            bench.put(name.encode())
            bench.turn()
            assert peer.answer() == Taken(0, [name.encode()])
            peer.leave()
            bench.queue.unsubscribe(name)


def test_a_removed_subscription_leaves_nothing_to_serve(bench: Bench) -> None:
    """The service keeps no place of a removed subscription, and no place of it stands in the line of the queue."""
    with ends_each_turn(bench):
        for name in "abc":
            bench.queue.subscribe(name)
            peer = Peer(bench, ord(name), subscription=name)
            assert peer.ask(Take(1, 50)) is None
            bench.seconds += 1
            bench.turn()
            assert peer.answer() == NOTHING
            bench.queue.unsubscribe(name)
            bench.turn()
    assert (bench.service._waits._places, bench.open_queue._waiters.count) == ({}, 0)


def test_delayed_items_and_last_attempts(make_bench: MakeBench) -> None:
    """A rejected item comes again after its delay. A session that holds nothing gets an item at its last attempt."""
    bench = make_bench(max_attempts=2, dead_letter="dead")
    bench.put(b"1", b"2", b"3")
    peer, other = Peer(bench, 1), Peer(bench, 2)
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    assert peer.ask(Reject(1, [b"1", b"why", b"1000"])) == DONE
    assert peer.error(Reject(1, [b"other", b"why", b""])) == "NotHeldError"
    with pytest.raises(ProtocolError, match="2 fields"):
        Peer(bench, 3).send(Reject(1, [b"1", b"why"]))
    assert peer.ask(Flush(1, FOR_EVER, [])) == DONE
    assert peer.ask(Take(1, 0)) == Taken(0, [b"2"])
    assert peer.ask(RollBack()) == DONE
    assert other.ask(Take(1, 0)) == Taken(0, [b"2"])
    assert other.ask(RollBack()) == DONE
    assert peer.ask(Call({"call": "give_up", "arguments": {"error": "Boom", "text": "it"}})) == Result({"result": None})
    assert peer.ask(Take(5, FOR_EVER)) == Taken(0, [b"3"])
    assert peer.ask(Flush(2, FOR_EVER, [])) == DONE
    assert peer.ask(Take(5, FOR_EVER)) is None
    for _ in range(2):
        assert 0 < bench.turn() <= 1000
    bench.seconds += 1000
    assert 0 < bench.turn() <= 1000
    assert len(bench.open_queue._waiters.sleeping) == 1


def test_an_item_at_its_last_attempt_ends_the_wait_of_a_session_that_holds_one(make_bench: MakeBench) -> None:
    """A session that holds an item is told that there is nothing for it, also if it waits."""
    bench = make_bench(max_attempts=2, dead_letter="dead")
    bench.put(b"1", b"2")
    peer, other = Peer(bench, 1), Peer(bench, 2)
    assert other.ask(Take(1, 0)) == Taken(0, [b"1"])
    assert peer.ask(Take(1, 0)) == Taken(0, [b"2"])
    assert peer.ask(Take(1, FOR_EVER)) is None
    assert other.ask(RollBack()) == DONE
    bench.turn()
    assert peer.answer() == NOTHING


def test_an_error_with_a_long_text_reaches_its_worker_alone(bench: Bench) -> None:
    """An error whose text no message can hold is shortened. The turn goes on for the others."""
    for number in range(75):
        bench.queue.subscribe(f"{number:06}" * 9_990)
    bench.queue.subscribe("last")
    peer, plain = Peer(bench, 1, subscription="last"), Peer(bench, 2)
    assert (peer.ask(Take(1, FOR_EVER)), plain.ask(Take(1, FOR_EVER))) == (None, None)
    bench.queue.unsubscribe("last")
    bench.put(b"1")
    bench.turn()
    assert failure(peer.answer()) == "SubscriptionNotFoundError"
    assert plain.answer() == Taken(0, [b"1"])


def test_a_call_comes_behind_the_answer_of_the_last_one(bench: Bench) -> None:
    """A worker that makes a call before the answer of the last one was sent loses its connection."""
    peer = Peer(bench, 1)
    bench.service.take_answered()
    peer.send(Put([b"1"]))
    assert bench.service.take_answered() == [peer.client]
    with pytest.raises(ProtocolError, match="during another call"):
        peer.send(RollBack())
    assert [message for _, message in peer.got()] == [DONE]
    for _ in range(2):
        peer.client.answer(9, DONE)
    assert bench.service.take_answered() == [peer.client]
    assert len(peer.got()) == 2


# --- flushes ---------------------------------------------------------------------------------------------------------


def test_flushes_of_several_connections_share_a_group(bench: Bench) -> None:
    """All flushes that came before a turn are one write, and each has its own answer and record."""
    peers = [Peer(bench, number) for number in (1, 2, 3)]
    before = bench.queue.stats().groups
    for number, peer in enumerate(peers):
        peer.send(Flush(1, FOR_EVER, [b"%d" % number]))
    bench.turn()
    assert [peer.answer() for peer in peers] == [DONE] * 3
    assert bench.queue.stats().groups == before + 1
    assert bench.queue.peek(9) == [b"0", b"1", b"2"]
    assert bench.flushes() == {peer.id: 1 for peer in peers}


def test_a_flush_takes_ahead(bench: Bench) -> None:
    """A flush behind *ahead* holds the next items, once; the next one releases those that the worker did not use."""
    bench.put(b"1", b"2", b"3", b"4")
    peer, other = Peer(bench, 1), Peer(bench, 2)
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    peer.send(Ahead(0, 2))
    assert peer.ask(Flush(1, FOR_EVER, [b"5"])) == Taken(0, [b"2", b"3"])
    assert other.ask(Take(1, 0)) == Taken(0, [b"4"])
    peer.send(Ahead(1, 0))
    assert peer.ask(Flush(2, FOR_EVER, [])) == DONE
    assert bench.queue.peek(9) == [b"3", b"5"]
    assert peer.ask(Flush(3, FOR_EVER, [])) == DONE
    assert bench.queue.peek(9) == [b"3", b"5"]
    peer.send(Ahead(0, 9))
    assert peer.ask(Flush(4, FOR_EVER, [])) == Taken(0, [b"3", b"5"])
    peer.leave()
    assert bench.queue.peek(9) == [b"3", b"5"]


def test_a_flush_that_fails_takes_nothing_ahead(make_bench: MakeBench) -> None:
    """A flush that is refused, or whose marker was reached before, is answered as if nothing was asked ahead."""
    bench = make_bench(max_items=2)
    bench.put(b"1", b"2")
    peer = Peer(bench, 1)
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    assert peer.ask(Flush(1, FOR_EVER, [])) == DONE
    peer.send(Ahead(0, 1))
    assert peer.error(Flush(2, FOR_EVER, [b"3", b"4"])) == "QueueFullError"
    assert peer.ask(RollBack()) == DONE
    assert peer.ask(Flush(3, FOR_EVER, [])) == DONE
    assert bench.queue.peek(9) == [b"2"]
    peer.send(Mark(1, "m"))
    peer.send(Ahead(0, 1))
    assert peer.ask(Flush(4, FOR_EVER, [])) == Taken(0, [b"2"])
    peer.send(Mark(1, "m"))
    peer.send(Ahead(1, 1))
    assert peer.ask(Flush(5, FOR_EVER, [])) == NOT_DONE
    assert bench.queue.peek(9) == [b"2"]
    peer.send(Ahead(1, 0))
    assert peer.error(Flush(6, FOR_EVER, [])) == "ValueError"
    assert peer.ask(Flush(7, FOR_EVER, [])) == DONE


def test_a_flush_takes_nothing_ahead_of_those_that_wait(bench: Bench) -> None:
    """An item goes to the connection that waits for it, and not to one that takes ahead."""
    peer, waiting = Peer(bench, 1), Peer(bench, 2)
    assert waiting.ask(Take(1, FOR_EVER)) is None
    peer.send(Ahead(0, 1))
    assert peer.ask(Flush(1, FOR_EVER, [b"1"])) == Taken(0, [])
    assert waiting.answer() == Taken(0, [b"1"])


def test_an_error_of_a_take_ahead_is_left_to_the_next_take(make_bench: MakeBench) -> None:
    """A flush is answered as committed, also if the items behind it cannot be taken."""
    bench = make_bench(fan_out=True)
    peer = Peer(bench, 1)
    peer.send(Ahead(0, 1))
    assert peer.ask(Flush(1, FOR_EVER, [b"1"])) == Taken(0, [])
    assert peer.error(Take(1, 0)) == "SubscriptionNotFoundError"


def test_numbers_of_flushes_grow(bench: Bench) -> None:
    """A flush whose number was used ends the connection, also one of an earlier owner."""
    peer = Peer(bench, 1)
    assert peer.ask(Flush(3, FOR_EVER, [b"x"])) == DONE
    with pytest.raises(ProtocolError, match="number 3"):
        peer.send(Flush(3, FOR_EVER, [b"y"]))
    peer.leave(by_worker=False)
    bench.service = bench.again()
    again = Peer(bench, 1)
    with pytest.raises(ProtocolError, match="number 3"):
        again.send(Flush(2, FOR_EVER, [b"y"]))


def test_a_refused_flush_is_alone(make_bench: MakeBench) -> None:
    """A flush without room is refused beside good ones, and keeps its items for the next one."""
    bench = make_bench(max_items=2)
    large, small = Peer(bench, 1), Peer(bench, 2)
    large.send(Flush(1, FOR_EVER, [b"1", b"2", b"3"]))
    small.send(Flush(1, FOR_EVER, [b"a"]))
    bench.turn()
    answer = large.answer()
    assert failure(answer) == "QueueFullError"
    assert isinstance(answer, Failed)
    assert answer.fields["taken"] == 3
    assert small.answer() == DONE
    assert bench.flushes() == {small.id: 1}
    assert large.ask(Outcome(1)) == NOT_DONE
    assert large.error(Flush(2, 5, [b"4"])) == "ValueError"
    assert large.ask(RollBack()) == DONE
    assert large.ask(Flush(3, 0, [b"b"])) == DONE
    assert bench.queue.peek(9) == [b"a", b"b"]


def test_a_flush_waits_for_room(make_bench: MakeBench) -> None:
    """With ``full="block"`` a flush waits for room, in order, until its time is over or it is cancelled."""
    bench = make_bench(max_items=1, full="block")
    bench.put(b"1")
    first, second, third, fourth = (Peer(bench, number) for number in (1, 2, 3, 4))
    assert first.ask(Flush(1, FOR_EVER, [b"2"])) is None
    assert second.ask(Flush(1, 200, [b"3"])) is None
    assert third.ask(Flush(1, FOR_EVER, [b"4"])) is None
    assert fourth.ask(Flush(1, 0, [b"5"])) is None  # it stands behind the others until the next attempt
    bench.seconds += 0.3
    bench.turn()
    assert failure(fourth.answer()) == "QueueFullError"
    assert failure(second.answer()) == "QueueFullError"
    rings = bench.rings
    bench.service.receive(third.client, encode(Cancel(), third.calls + 1))
    assert bench.rings == rings
    bench.service.receive(third.client, encode(Cancel(), third.calls))
    assert bench.rings == rings + 1
    bench.turn()
    assert failure(third.answer()) == "QueueFullError"
    assert 0 < bench.turn() <= service_module.ROOM_SECONDS
    taker = Peer(bench, 5)
    assert taker.ask(Take(1, 0)) == Taken(0, [b"1"])
    assert taker.ask(Flush(1, FOR_EVER, [])) == DONE
    bench.seconds += service_module.ROOM_SECONDS
    bench.turn()
    assert first.answer() == DONE
    assert third.ask(Flush(2, FOR_EVER, [])) is None
    third.leave()
    bench.seconds += 1
    assert bench.turn() == inf
    assert bench.queue.peek(5) == [b"2"]


def test_stats_count_a_flush_that_waits_for_room_as_refused_only_at_its_end(make_bench: MakeBench) -> None:
    """However often the flush of a worker is tried, ``stats()`` counts it once, as waiting, until it ends."""
    bench = make_bench(max_items=1, full="block")
    bench.put(b"1")
    first, second = (Peer(bench, number) for number in (1, 2))
    assert first.ask(Flush(1, FOR_EVER, [b"2"])) is None
    assert second.ask(Flush(1, 200, [b"3"])) is None
    for _ in range(3):
        bench.seconds += service_module.ROOM_SECONDS
        bench.turn()
        stats = bench.queue.stats()
        assert (stats.waiting, stats.refused) == (2, 0)
    bench.seconds += 0.2
    bench.turn()
    assert failure(second.answer()) == "QueueFullError"
    stats = bench.queue.stats()
    assert (stats.waiting, stats.refused) == (1, 1)
    assert bench.queue.clear() == 1
    bench.turn()
    bench.seconds += service_module.ROOM_SECONDS
    bench.turn()
    assert first.answer() == DONE
    stats = bench.queue.stats()
    assert (stats.waiting, stats.refused) == (0, 1)


def test_a_flush_that_buries_an_item_waits_for_no_room(make_bench: MakeBench, open_queue: QueueFactory) -> None:
    """With ``full="block"``, a flush that moves a rejected item to a full dead-letter queue is refused at once. One
    whose rejected item is to be tried again waits."""
    bench = make_bench(max_items=1, full="block", dead_letter=open_queue("dead", max_items=1))
    with bench.queue.dead_letters.transaction() as session:
        session.enqueue(b"old")
    bench.put(b"1")
    peer = Peer(bench, 1)
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    assert peer.ask(Reject(1, [b"1", b"why", b""])) == DONE
    assert peer.ask(Flush(1, FOR_EVER, [b"2"])) is None
    assert bench.queue.stats().waiting == 1
    bench.service.receive(peer.client, encode(Cancel(), peer.calls))
    bench.turn()
    assert failure(peer.answer()) == "QueueFullError"
    assert peer.ask(RollBack()) == DONE
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    assert peer.ask(Reject(0, [b"1", b"why", b""])) == DONE
    assert peer.error(Flush(2, FOR_EVER, [])) == "QueueFullError"
    assert (bench.queue.stats().refused, bench.queue.dead_letters.stats().refused) == (1, 1)
    assert bench.queue.dead_letters.clear() == 1
    assert peer.ask(Flush(3, FOR_EVER, [])) == DONE
    assert len(bench.queue.dead_letters) == 1


def test_a_flush_that_is_given_up_before_it_waits_never_waits(make_bench: MakeBench) -> None:
    """A cancel that comes with the flush ends the wait of that flush. With room, the flush is committed."""
    bench = make_bench(max_items=1, full="block")
    peer = Peer(bench, 1)
    for number, expected in ((1, "Done"), (2, "QueueFullError")):
        peer.calls += 1
        flush = encode(Flush(number, FOR_EVER, [b"x"]), peer.calls)
        bench.service.receive(peer.client, flush + encode(Cancel(), peer.calls))
        bench.turn()
        answer = peer.answer()
        assert (failure(answer) if isinstance(answer, Failed) else type(answer).__name__) == expected


def test_a_hold_of_a_flush_that_waits_does_not_end(make_bench: MakeBench) -> None:
    """A flush that waits for room is in time. The owner sleeps meanwhile, also when the hold would have ended."""
    bench = make_bench(max_items=2, full="block")
    bench.put(b"1", b"2")
    peer = Peer(bench, 1, hold_seconds=5)
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    assert peer.ask(Flush(1, FOR_EVER, [b"3", b"4"])) is None
    bench.seconds += 10
    bench.turn()
    assert 0 < bench.turn() <= service_module.ROOM_SECONDS
    assert peer.client.is_lost is False


def test_markers(bench: Bench) -> None:
    """A marker belongs to the flush behind it. A flush whose marker was reached returns False and rolls back."""
    peer = Peer(bench, 1)
    peer.send(Mark(5, "m"))
    assert peer.answer() is None
    assert peer.ask(Flush(1, FOR_EVER, [b"1"])) == DONE
    peer.send(Mark(5, "m"))
    assert peer.ask(Flush(2, FOR_EVER, [b"2"])) == NOT_DONE
    assert peer.ask(Flush(3, FOR_EVER, [b"3"])) == DONE
    peer.send(Mark(7, "m"))
    assert peer.ask(RollBack()) == DONE
    assert peer.ask(Flush(4, FOR_EVER, [b"4"])) == DONE
    peer.send(Mark(8, ""))
    assert peer.error(Flush(5, FOR_EVER, [b"5"])) == "ValueError"
    assert bench.queue.marker("m") == 5
    assert bench.queue.peek(9) == [b"1", b"3", b"4"]


def test_the_marker_of_a_refused_call_is_not_that_of_the_next_flush(bench: Bench) -> None:
    """If a flush is refused before it is tried, its marker goes with it."""
    peer = Peer(bench, 1)
    peer.send(Mark(5, "m"))
    assert peer.error(Flush(1, 7, [b"1"])) == "ValueError"
    assert peer.ask(Flush(2, FOR_EVER, [b"2"])) == DONE
    assert bench.queue.marker("m") is None


def test_a_buffer_that_cannot_spill_says_what_it_has(make_bench: MakeBench) -> None:
    """If only some items of a message can be buffered, the answer says how many."""
    bench = make_bench(max_items=3)
    peer = Peer(bench, 1)

    def take_two(session: Session[bytes], items: Sequence[bytes]) -> None:
        for item in items[:2]:
            session.enqueue(item)
        raise PersistentQueueError("no room for the rest")

    with (
        patch.object(service_module, "put_at_once", return_value=False),
        patch.object(Session, "enqueue_many", take_two),
    ):
        for message in (Put([b"1", b"2", b"3"]), Flush(1, FOR_EVER, [b"4", b"5", b"6"])):
            answer = peer.ask(message)
            assert isinstance(answer, Failed)
            assert answer.fields["taken"] == 2
    assert peer.client.flush is None


def test_items_that_exceed_the_memory_of_a_session_are_spilled(bench: Bench) -> None:
    """The items of several messages may be longer together than a session keeps in memory."""
    peer = Peer(bench, 1)
    items = [bytes([number]) * (SPILL_BYTES // 4) for number in range(6)]
    assert peer.ask(Put(items[:3])) == DONE
    assert peer.ask(Put(items[3:5])) == DONE
    session = peer.client.session
    assert session is not None and hold_of(session) is not None
    assert peer.ask(Flush(1, FOR_EVER, items[5:])) == DONE
    assert bench.queue.peek(10) == items


@pytest.mark.parametrize("where", [(OpenQueue, "commit_all"), (service_module, "flush_at_once")], ids=str)
def test_an_error_of_the_whole_group_reaches_all(bench: Bench, where: tuple[object, str]) -> None:
    """If the group fails as a whole, each flush has the error."""
    peers = [Peer(bench, 1), Peer(bench, 2)]
    for peer in peers:
        peer.send(Flush(1, FOR_EVER, [b"x"]))
    with patch.object(*where, side_effect=PersistentQueueError("all of them")):
        bench.turn()
    assert [failure(peer.answer()) for peer in peers] == ["PersistentQueueError"] * 2


# --- the outcome of flushes ------------------------------------------------------------------------------------------


def test_the_next_owner_knows_the_outcome(bench: Bench) -> None:
    """The record of a flush tells each later owner that it was committed, and no other flush."""
    peer, other = Peer(bench, 1), Peer(bench, 2)
    assert peer.ask(Flush(4, FOR_EVER, [b"x"])) == DONE
    for each in (peer, other):
        each.leave(by_worker=False)
    bench.service = bench.again()
    peer, other = Peer(bench, 1), Peer(bench, 2)
    assert [peer.ask(Outcome(number)) for number in (3, 4, 5)] == [DONE, DONE, NOT_DONE]
    assert other.ask(Outcome(1)) == NOT_DONE


def test_the_record_goes_with_the_worker(bench: Bench) -> None:
    """A record is forgotten when the worker says that it ends, or a minute after a connection that ends without it."""
    polite, killed, back = (Peer(bench, number) for number in (1, 2, 3))
    for peer in (polite, killed, back):
        assert peer.ask(Flush(1, FOR_EVER, [b"x"])) == DONE
    for peer in (Peer(bench, 4), Peer(bench, 5, says_hello=False), killed, back):
        peer.leave(by_worker=True)
    polite.send(End())
    polite.leave(by_worker=True)
    assert bench.flushes() == {killed.id: 1, back.id: 1}
    assert bench.turn() == pytest.approx(FORGET_SECONDS)
    again = Peer(bench, 3)
    bench.seconds += FORGET_SECONDS
    bench.turn()
    assert bench.flushes() == {back.id: 1}
    assert again.ask(Outcome(1)) == DONE
    again.leave(by_worker=False)
    assert (bench.turn(), bench.flushes()) == (inf, {back.id: 1})


def test_a_record_lasts_from_the_last_end_on(bench: Bench) -> None:
    """A connection that comes back and ends again keeps its record for a minute from then on."""
    first = Peer(bench, 1)
    assert first.ask(Flush(1, FOR_EVER, [b"x"])) == DONE
    first.leave()
    bench.seconds += 1
    again = Peer(bench, 1)
    assert again.ask(Flush(2, FOR_EVER, [b"y"])) == DONE
    bench.seconds += FORGET_SECONDS - 2
    again.leave()
    bench.seconds += 2
    assert bench.turn() == pytest.approx(FORGET_SECONDS - 2)
    assert Peer(bench, 1).ask(Outcome(2)) == DONE


def test_waits_that_are_over_leave_the_line(bench: Bench) -> None:
    """However often others wait in vain behind one that waits for ever, the line stays short."""
    patient, hasty = Peer(bench, 1), Peer(bench, 2)
    assert patient.ask(Take(1, FOR_EVER)) is None
    for _ in range(1000):
        assert hasty.ask(Take(1, 1)) is None
        bench.seconds += 1
        bench.turn()
        assert hasty.answer() == NOTHING
    (place,) = bench.service._waits._places.values()
    assert len(place.line) < 100
    bench.put(b"1")
    bench.turn()
    assert patient.answer() == Taken(0, [b"1"])


def test_a_disconnect_with_a_flush_that_was_not_tried(bench: Bench) -> None:
    """A flush whose connection ends before the turn is not committed, and what it held is back."""
    bench.put(b"1")
    peer = Peer(bench, 1)
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    peer.send(Flush(1, FOR_EVER, [b"x"]))
    peer.leave(by_worker=False)
    bench.turn()
    assert bench.queue.peek(5) == [b"1"]
    assert bench.flushes() == {}


def test_too_many_records_are_forgotten_and_said_so(bench: Bench) -> None:
    """The next owner keeps so many records, the latest ones, and says of others that it does not know."""
    peers = [Peer(bench, number) for number in range(1, 6)]
    for peer in peers:
        assert peer.ask(Flush(1, FOR_EVER, [b"x"])) == DONE
        peer.leave(by_worker=False)
    with patch.object(service_module, "INHERITED_MAX", 3):
        bench.service = bench.again()
    assert bench.flushes() == {**{peer.id: 1 for peer in peers[2:]}, SOME_LOST: 1}
    assert Peer(bench, 5).ask(Outcome(1)) == DONE
    assert Peer(bench, 1).error(Outcome(1)) == "OutcomeUnknownError"
    bench.service = bench.again()
    assert len(bench.flushes()) == 4


def test_a_session_that_cannot_be_closed_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """An error of the end of a session reaches no other connection."""
    peer = Peer(bench, 1)
    with patch.object(Session, "close", side_effect=ValueError("not now")):
        peer.leave()
    assert "could not be closed" in caplog.text
    assert peer.client.session is not None
    peer.client.session.close()


def test_the_delay_of_an_item_begins_with_the_end_of_its_worker(make_bench: MakeBench) -> None:
    """An item that a worker held when its process ended is ready again after ``retry_delay_seconds``."""
    bench = make_bench(retry_delay_seconds=3600.0)
    bench.put(b"1")
    peer = Peer(bench, 1)
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    peer.leave()
    stats = bench.queue.stats()
    assert (stats.ready, stats.held, stats.delayed) == (0, 0, 1)


def test_an_error_of_the_delay_reaches_no_other_connection(
    make_bench: MakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    """If ``retry_delay_seconds`` raises at the end of a session or of a hold, the item is back, and others go on."""
    bench = make_bench(retry_delay_seconds=lambda attempts: [1.0][attempts])
    bench.put(b"1")
    for ends_hold in (False, True):
        peer = Peer(bench, 1 + ends_hold, hold_seconds=5)
        assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
        if ends_hold:
            bench.seconds += 6
            bench.turn()
            assert peer.error(Take(1, 0)) == "HoldLostError"
        else:
            peer.leave()
        assert bench.queue.peek(1) == [b"1"]
        assert "IndexError" in caplog.text
        caplog.clear()


def test_an_error_of_the_delay_is_that_of_the_call(make_bench: MakeBench) -> None:
    """If ``retry_delay_seconds`` raises in a rejection or a rollback, the worker gets that error. The connection goes
    on, and a rollback has released the items."""
    bench = make_bench(retry_delay_seconds=lambda attempts: [1.0][attempts])
    bench.put(b"1")
    peer = Peer(bench, 1)
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    answer = peer.ask(Reject(1, [b"1", b"", b""]))
    assert isinstance(answer, Failed)
    assert answer.fields["text"] == "IndexError: list index out of range"
    assert peer.error(RollBack()) == "PersistentQueueError"
    assert bench.queue.peek(1) == [b"1"]
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    assert peer.ask(Flush(1, FOR_EVER, [])) == DONE


def test_a_bug_in_a_call_is_raised(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error of another call is raised, so that the owner ends this connection, and logs the error."""
    monkeypatch.setitem(service_module._HANDLERS, Take, lambda *_: [].pop())
    with pytest.raises(IndexError):
        Peer(bench, 1).ask(Take(1, 0))


# --- holds that end --------------------------------------------------------------------------------------------------


def test_a_hold_ends_in_time(bench: Bench) -> None:
    """Held items go back after ``hold_seconds``. Then each call fails until the rollback, and commits nothing."""
    bench.put(b"1", b"2")
    peer = Peer(bench, 1, hold_seconds=5)
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    assert peer.ask(Put([b"late"])) == DONE
    assert bench.turn() == 5
    bench.seconds += 4
    assert peer.ask(Call({"call": "extend", "arguments": {}})) == Result({"result": None})
    bench.seconds += 4
    assert peer.ask(Take(1, 0)) == Taken(0, [b"2"])
    assert bench.turn() == 1
    assert peer.ask(Take(1, FOR_EVER)) is None
    bench.seconds += 1
    bench.turn()
    assert failure(peer.answer()) == "HoldLostError"
    assert bench.queue.peek(2) == [b"1", b"2"]
    calls = (Take(1, 0), Put([b"x"]), Flush(1, FOR_EVER, []), GiveBack(1), Reject(1, [b"1", b"", b""]))
    for message in (*calls, Call({"call": "extend", "arguments": {}})):
        assert peer.error(message) == "HoldLostError"
    assert peer.ask(RollBack()) == DONE
    assert peer.ask(Flush(2, FOR_EVER, [b"3"])) == DONE
    assert bench.turn() == inf
    assert bench.queue.peek(5) == [b"1", b"2", b"3"]


def test_a_hold_that_was_flushed_or_given_back_has_no_end(bench: Bench) -> None:
    """After a flush, and after all items were given back, nothing runs out. Extending nothing does nothing."""
    bench.put(b"1", b"2")
    peer, free = Peer(bench, 1, hold_seconds=5), Peer(bench, 2)
    assert peer.ask(Call({"call": "extend", "arguments": {}})) == Result({"result": None})
    assert free.ask(Call({"call": "extend", "arguments": {}})) == Result({"result": None})
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    assert peer.ask(Flush(1, FOR_EVER, [])) == DONE
    assert peer.ask(Take(1, 0)) == Taken(0, [b"2"])
    assert peer.ask(GiveBack(1)) == DONE
    assert bench.turn() == inf
    bench.seconds += 10
    bench.turn()
    assert peer.ask(Put([b"3"])) == DONE


def test_a_flush_that_has_come_is_in_time(bench: Bench) -> None:
    """A flush that came before the turn in which the hold ends is committed."""
    bench.put(b"1")
    peer = Peer(bench, 1, hold_seconds=5)
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    bench.seconds += 6
    assert peer.ask(Flush(1, FOR_EVER, [])) == DONE
    assert len(bench.queue) == 0


# --- other calls -----------------------------------------------------------------------------------------------------


def test_other_calls_are_made_apart(bench: Bench) -> None:
    """A call of the queue is made apart, and answered in the turn after its end. Its errors are answered as well."""
    bench.put(b"1")
    peer = Peer(bench, 1)

    def call(method: str, **arguments: Any) -> Message | None:
        assert peer.ask(Call({"call": method, "arguments": arguments})) is None
        rings = bench.rings
        bench.apart.pop()()
        assert bench.rings == rings + 1
        bench.turn()
        return peer.answer()

    assert call("__len__") == Result({"result": 1})
    assert call("subscribe", name="a", start="earliest") == Result({"result": None})
    assert call("subscription_length", name="a") == Result({"result": 1})
    assert failure(call("subscription_length", name="b")) == "SubscriptionNotFoundError"
    assert failure(call("close")) == "PersistentQueueError"
    assert failure(call("__class__")) == "PersistentQueueError"
    assert failure(call("trim", wrong=1)) == "TypeError"
    too_long = call("long")
    assert failure(too_long) == "PersistentQueueError"
    assert "in the process that owns the queue" in too_long.fields["text"]  # type: ignore[union-attr]
    assert failure(peer.ask(Call({"call": "extend", "arguments": {"wrong": 1}}))) == "TypeError"
    with pytest.raises(ProtocolError, match="without arguments"):
        peer.send(Call({"call": "trim"}))


def test_uncounted_deliveries(make_bench: MakeBench) -> None:
    """A worker that cannot open what it got takes the deliveries back. A count of items that it does not hold is
    refused, and one that is no whole number ends the connection."""
    bench = make_bench(max_attempts=2, dead_letter="dead")
    bench.put(b"a", b"b")
    peer = Peer(bench, 1)

    def uncount(count: object) -> Message | None:
        return peer.ask(Call({"call": "uncount", "arguments": {"count": count}}))

    assert uncount(0) == Result({"result": None})
    assert failure(uncount(1)) == "ValueError"
    assert peer.ask(Take(2, 0)) == Taken(0, [b"a", b"b"])
    assert [failure(uncount(count)) for count in (-1, 3)] == ["ValueError", "ValueError"]
    assert uncount(1) == Result({"result": None})
    state = bench.open_queue._store.state
    assert [state.times(0, sequence) for sequence in (0, 1)] == [1, 0]
    for count in (1.0, True, "1", None, [1]):
        with pytest.raises(ProtocolError, match="a count of"):
            uncount(count)
    peer.leave()
    plain = make_bench(name="plain")
    other = Peer(plain, 1)
    assert other.ask(Call({"call": "uncount", "arguments": {"count": 1}})) == Result({"result": None})


def test_sizes_of_a_consumer(bench: Bench) -> None:
    """``sizes_of`` counts what no session holds, and what is not consumed; a removed subscription has nothing."""
    bench.put(b"a", b"b", b"c")
    bench.queue.subscribe("s")
    reader = bench.open_queue.reader_named("s")
    with bench.queue.session() as session:
        session.dequeue()
        assert make_call(bench.queue, bench.open_queue, "sizes_of", {"name": ""}) == [2, 3]
        assert make_call(bench.queue, bench.open_queue, "sizes_of", {"name": "s"}) == [3, 3]
        session.flush()
    assert make_call(bench.queue, bench.open_queue, "sizes_of", {"name": ""}) == [2, 2]
    bench.queue.unsubscribe("s")
    assert bench.open_queue.sizes_of(reader) == (0, 0)


def test_a_call_that_ends_after_its_connection(bench: Bench) -> None:
    """The answer to a connection that has ended meanwhile goes nowhere."""
    peer = Peer(bench, 1)
    peer.send(Call({"call": "__len__", "arguments": {}}))
    peer.leave()
    bench.apart.pop()()
    assert bench.turn() == inf


def test_browsing(bench: Bench) -> None:
    """The items come in batches, without being held: those that are ready, or those that not all have consumed."""
    bench.put(b"1", b"2")
    holding, ready, kept = Peer(bench, 1), Peer(bench, 2), Peer(bench, 3)
    assert holding.ask(Take(1, 0)) == Taken(0, [b"1"])
    assert ready.ask(Browse(0)) == Taken(0, [b"2"])
    assert ready.ask(Browse(0)) == NOTHING
    assert kept.ask(Browse(1)) == Taken(0, [b"1", b"2"])


def test_a_queue_of_subscriptions_only(make_bench: MakeBench) -> None:
    """Without a plain queue, a connection without a subscription can put, and not take."""
    bench = make_bench(fan_out=True)
    peer = Peer(bench, 1)
    assert peer.error(Take(1, 0)) == "SubscriptionNotFoundError"
    assert peer.error(Browse(0)) == "SubscriptionNotFoundError"
    assert peer.ask(Flush(1, FOR_EVER, [b"1"])) == DONE
    assert peer.ask(RollBack()) == DONE


def test_a_thread_and_a_connection_wait_in_one_line(bench: Bench) -> None:
    """A told place that takes nothing passes the wake-up on: no thread sleeps beside an item."""
    peer = Peer(bench, 1)
    assert peer.ask(Take(1, FOR_EVER)) is None
    found: list[Any] = []

    def consume() -> None:
        with bench.queue.session() as session:
            found.append(session.dequeue(timeout=30))
            session.flush()

    thread = threading.Thread(target=consume)
    thread.start()
    while bench.open_queue._waiters.count < 2:
        pass
    bench.service.receive(peer.client, encode(Cancel(), peer.calls))
    assert peer.answer() == NOTHING
    bench.put(b"1")
    bench.turn()
    thread.join()
    assert found == [b"1"]


def test_a_published_item_is_for_those_that_wait(bench: Bench) -> None:
    """An item of a producer is found by a take, and by a wait after the owner has looked."""
    peer = Peer(bench, 1)
    assert peer.ask(Take(1, FOR_EVER)) is None
    with Producer(bench.queue.path, bench.queue.name) as producer:
        producer.enqueue(b"1")
        producer.flush()
    bench.open_queue.adopt_news()
    bench.turn()
    assert peer.answer() == Taken(0, [b"1"])


# --- flushes together with sessions of other queues ------------------------------------------------------------------


def test_a_session_that_is_flushed_elsewhere_is_closed_later(bench: Bench) -> None:
    """If a worker dies while another thread flushes its session, the session is closed when that thread is done."""
    bench.put(b"1")
    peer = Peer(bench, 1)
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    session = peer.client.session
    assert session is not None

    def meanwhile() -> None:
        """Let the worker die in the middle of the flush."""
        peer.leave()
        assert bench.turn() == pytest.approx(ROOM_SECONDS)
        assert not session.closed

    exclusively([session], meanwhile)
    bench.turn()
    assert session.closed
    assert bench.queue.peek() == [b"1"]


def test_a_hold_that_is_flushed_elsewhere_is_not_over(bench: Bench) -> None:
    """A hold whose time is over goes back only when another thread is done with the session."""
    bench.put(b"1")
    peer = Peer(bench, 1, hold_seconds=5)
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    session = peer.client.session
    assert session is not None
    bench.seconds += 6

    def meanwhile() -> None:
        """Let the time be over in the middle of the flush."""
        assert 0 < bench.turn() < 1
        assert not peer.client.is_lost

    exclusively([session], meanwhile)
    bench.turn()
    assert peer.client.is_lost
    with pytest.raises(HoldLostError):
        session_for("q", peer.client, 1)


def test_a_joint_flush_needs_a_new_number(bench: Bench) -> None:
    """A flush together with others has a number behind that of the last flush, and its number is noted."""
    peer = Peer(bench, 1)
    assert session_for("q", peer.client, 1) is peer.client.session
    bench.service.note_flush(peer.client, 7)
    bench.turn()
    assert peer.client.number == 7
    with pytest.raises(PersistentQueueError, match="number above 7, found 7"):
        session_for("q", peer.client, 7)
    with pytest.raises(PersistentQueueError, match="found 18446744073709551616"):  # the log has no room for it
        session_for("q", peer.client, 2**64)


def test_a_joint_flush_behind_the_end_of_its_connection_is_forgotten(bench: Bench) -> None:
    """If a connection ends during its first flush together with others, the record of that flush goes in time."""
    peer = Peer(bench, 1)
    bench.flushes()[peer.id] = 1  # the commit, in the thread of the call
    peer.leave()
    bench.service.note_flush(peer.client, 1)
    assert bench.turn() == pytest.approx(FORGET_SECONDS)
    bench.seconds += FORGET_SECONDS
    assert (bench.turn(), bench.flushes()) == (inf, {})


def test_a_record_that_lasts_longer_holds_up_no_other(bench: Bench) -> None:
    """A connection whose joint flush ends behind it is forgotten later, and others in their time."""
    first, second = Peer(bench, 1), Peer(bench, 2)
    for peer in (first, second):
        assert peer.ask(Flush(1, FOR_EVER, [b"x"])) == DONE
        peer.leave()
    bench.seconds += 30
    bench.service.note_flush(first.client, 2)
    bench.turn()
    bench.seconds += FORGET_SECONDS - 30
    assert bench.turn() == pytest.approx(30)
    assert bench.flushes() == {first.id: 1}


def test_a_session_in_use_fails_its_own_flush_only(bench: Bench) -> None:
    """A flush of a session that another thread flushes fails alone: those that came with it are committed."""
    peers = [Peer(bench, number) for number in (1, 2, 3)]
    session = peers[1].client.session
    assert session is not None
    for peer in peers:
        peer.send(Flush(1, FOR_EVER, [b"x"]))
    exclusively([session], bench.turn)
    answers = [peer.answer() for peer in peers]
    assert (answers[0], failure(answers[1]), answers[2]) == (DONE, "SessionInUseError", DONE)
    assert bench.queue.peek(5) == [b"x", b"x"]


class Watched(list[bytes]):
    """Items. The first look at them is one more call of their session, as another thread makes it."""

    def __init__(self, items: list[bytes], call: Callable[[], object]) -> None:
        super().__init__(items)
        self.call = call
        self.errors: list[str] = []

    def _look(self) -> None:
        if not self.errors:
            self.errors.append("none")
            try:
                self.call()
            except SessionInUseError:
                self.errors.append("SessionInUseError")

    def __iter__(self) -> Iterator[bytes]:
        self._look()
        return super().__iter__()

    def __len__(self) -> int:
        self._look()
        return super().__len__()


def test_items_for_a_session_that_cannot_take_them_are_refused(bench: Bench) -> None:
    """Items for a session that another thread uses, or that is closed, are answered by the error of its call."""
    peer = Peer(bench, 1)
    session = peer.client.session
    assert session is not None
    exclusively([session], partial(peer.send, Put([b"x"])))
    assert failure(peer.answer()) == "SessionInUseError"
    session.close()
    assert peer.error(Put([b"x"])) == "ClosedError"


def test_no_thread_flushes_a_session_that_is_filled(bench: Bench) -> None:
    """While items of a message are buffered, no other thread can flush their session, so that they are not lost."""
    session = Peer(bench, 1).client.session
    assert session is not None
    session.enqueue(b"1")
    items = Watched([b"2", b"3"], session.flush)
    assert put_at_once(session, items)
    assert items.errors == ["none", "SessionInUseError"]
    session.flush()
    assert bench.queue.peek(9) == [b"1", b"2", b"3"]


def test_no_thread_flushes_a_session_that_is_flushed(bench: Bench) -> None:
    """While a flush looks at its session, no other thread can flush it, so that its number is recorded."""
    peer = Peer(bench, 1)
    session = peer.client.session
    assert session is not None
    assert session._transaction is not None
    session.enqueue(b"1")
    session._transaction.items = items = Watched([b"1"], session.flush)
    assert flush_at_once(bench.open_queue, [session], [(peer.id, 7)]) == [True]
    assert items.errors == ["none", "SessionInUseError"]
    assert bench.flushes() == {peer.id: 7}
    assert bench.queue.peek(9) == [b"1"]


def test_an_owner_that_has_failed_gives_no_answers(bench: Bench) -> None:
    """If a sync has failed, a turn raises, and no worker gets an answer that only recovery can know."""
    peer = Peer(bench, 1)
    peer.send(Flush(1, FOR_EVER, [b"1"]))
    bench.open_queue.is_usable = False
    try:
        with pytest.raises(OwnerFailedError):
            bench.turn()
        assert peer.answer() is None
    finally:
        bench.open_queue.is_usable = True


def test_a_server_that_cannot_start_leaves_nothing(
    open_queue: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the socket of an owner cannot be made, the opening raises, and frees the lock."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "no descriptors")

    monkeypatch.setattr(server, "listen", refuse)
    with pytest.raises(TooManyFilesError, match="to serve the queue"):
        PersistentQueue(tmp_path, "other", serve=True)
    PersistentQueue(tmp_path, "other").close()


def test_a_take_stands_behind_those_that_wait(bench: Bench) -> None:
    """An item that comes while a worker waits is for that worker, also if another one asks before the next turn."""
    first, second = Peer(bench, 1), Peer(bench, 2)
    first.send(Take(1, FOR_EVER))
    bench.turn()
    bench.put(b"1")
    second.send(Take(1, 0))
    bench.turn()
    assert first.answer() == Taken(0, [b"1"])
    assert second.answer() == NOTHING


def test_a_small_flush_does_not_overtake_one_that_waits(open_queue: QueueFactory) -> None:
    """Flushes that wait for room are committed in the order of their coming, and a late one is refused in time."""
    bench = Bench(open_queue(max_items=3, full="block"))
    bench.put(b"1", b"2", b"3")
    large, small, late = peers = [Peer(bench, number) for number in (1, 2, 3)]
    large.send(Flush(1, FOR_EVER, [b"a", b"b"]))
    bench.turn()
    small.send(Flush(1, FOR_EVER, [b"c"]))
    late.send(Flush(1, 1000, [b"d"]))

    def after(seconds: float, items: int) -> list[Message | None]:
        """Consume items, let this time pass, and return the answers."""
        with bench.queue.transaction() as session:
            assert len(session.dequeue_many(items)) == items
        bench.seconds += seconds
        bench.turn()
        return [peer.answer() for peer in peers]

    assert after(0.1, 1) == [None, None, None]
    assert bench.queue.stats().ready == 2
    *others, refused = after(2.0, 0)
    assert (others, failure(refused)) == ([None, None], "QueueFullError")
    assert after(0.1, 1) == [DONE, None, None]
    assert after(0.1, 3) == [None, DONE, None]
    assert bench.queue.peek(9) == [b"c"]
    for peer in peers:
        peer.leave()


def test_a_second_connection_with_an_id_ends_the_first(bench: Bench) -> None:
    """A worker that connects again has given its old connection up: nothing that it sent there is committed."""
    former = Peer(bench, 1)
    assert former.ask(Flush(1, FOR_EVER, [b"1"])) == DONE
    former.send(Flush(2, FOR_EVER, [b"2"]))
    later = Peer(bench, 1)
    assert later.ask(Outcome(2)) == NOT_DONE
    assert bench.queue.peek(9) == [b"1"]
    former.leave()
    assert later.ask(Outcome(1)) == DONE


def test_the_connection_that_flushed_last_is_remembered_longest(bench: Bench) -> None:
    """If too many connections of dead owners are recorded, those whose last flush is oldest are forgotten."""
    for number, peer in ((1, Peer(bench, 1)), (2, Peer(bench, 2))):
        assert peer.ask(Flush(1, FOR_EVER, [b"%d" % number])) == DONE
    assert Peer(bench, 1).ask(Flush(2, FOR_EVER, [b"again"])) == DONE
    bench.open_queue.inherit_flushes(1, SOME_LOST)
    assert set(bench.flushes()) == {bytes([1]) * CONNECTION_BYTES, SOME_LOST}


# --- the close -------------------------------------------------------------------------------------------------------


def test_a_session_that_holds_items_finishes_before_the_owner_leaves(bench: Bench) -> None:
    """Until its flush or its rollback the owner stays, and it may take more meanwhile. Items ahead are not brought."""
    bench.put(b"1", b"2", b"3", b"4")
    one, other = Peer(bench, 1), Peer(bench, 2)
    assert one.ask(Take(1, 0)) == Taken(0, [b"1"])
    assert other.ask(Take(1, 0)) == Taken(0, [b"2"])
    assert not bench.service.may_leave()
    assert one.ask(Take(1, 0)) == Taken(0, [b"3"])
    one.send(Ahead(0, 9))
    assert one.ask(Flush(1, 0, [b"new"])) == NOTHING
    assert not bench.service.may_leave()
    assert other.ask(RollBack()) == DONE
    assert bench.service.may_leave()
    assert bench.queue.peek(9) == [b"2", b"4", b"new"]


def test_what_a_worker_has_put_is_waited_for(bench: Bench) -> None:
    """So is a flush that has come, and a call that is made apart."""
    peer, caller = Peer(bench, 1), Peer(bench, 2)
    assert bench.service.may_leave()
    assert peer.ask(Put([b"1"])) == DONE
    assert not bench.service.may_leave()
    peer.send(Flush(1, 0, []))
    assert not bench.service.may_leave()
    bench.turn()
    assert peer.answer() == DONE
    assert bench.service.may_leave()
    caller.send(Call({"call": "clear", "arguments": {}}))
    assert not bench.service.may_leave()
    bench.apart.pop()()
    bench.turn()
    assert caller.answer() == Result({"result": 1})
    assert bench.service.may_leave()


@pytest.mark.parametrize("begins", ["before", "after"])
@pytest.mark.parametrize("wait", [0, 50, FOR_EVER])
def test_a_session_without_items_gets_no_answer_from_an_owner_that_leaves(bench: Bench, begins: str, wait: int) -> None:
    """It asks the next owner: neither is an item taken, nor is the wait over. A cancel ends the call."""
    holder, peer = Peer(bench, 1), Peer(bench, 2)
    bench.put(b"held")
    assert holder.ask(Take(1, 0)) == Taken(0, [b"held"])
    if begins == "before" and wait:
        peer.send(Take(1, wait))
    assert not bench.service.may_leave()
    if begins == "after" or not wait:
        peer.send(Take(1, wait))
    bench.put(b"1")
    bench.seconds += 1.0
    assert bench.turn() == inf
    assert peer.answer() is None
    assert bench.queue.peek(9) == [b"1"]
    peer.bench.service.receive(peer.client, encode(Cancel(), peer.calls))
    assert peer.answer() == Taken(0, [])
    assert holder.ask(Flush(1, 0, [])) == DONE
    assert bench.service.may_leave()


def test_a_thread_of_the_owner_gets_the_item_that_a_worker_no_longer_waits_for(bench: Bench) -> None:
    """A connection that was told of an item, and is let go then, passes the word on."""
    holder, peer = Peer(bench, 1), Peer(bench, 2)
    bench.put(b"held")
    assert holder.ask(Take(1, 0)) == Taken(0, [b"held"])
    assert peer.ask(Take(1, FOR_EVER)) is None
    with bench.queue.session() as session:
        found: list[bytes | None] = []
        thread = threading.Thread(target=lambda: found.append(session.dequeue(timeout=60.0)))
        thread.start()
        wait_for(lambda: bench.open_queue._waiters.count == 2)
        bench.put(b"1")  # the place of the worker is told, for it came first
        assert not bench.service.may_leave()
        bench.turn()
        thread.join(60.0)
        assert found == [b"1"]
        session.flush()
    assert holder.ask(Flush(1, 0, [])) == DONE


def test_a_wait_of_a_session_that_holds_items_goes_on(bench: Bench) -> None:
    """It gets the next item, also from an owner that leaves."""
    bench.put(b"1")
    peer = Peer(bench, 1)
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])
    assert peer.ask(Take(1, 50)) is None
    assert not bench.service.may_leave()
    bench.put(b"2")
    bench.turn()
    assert peer.answer() == Taken(0, [b"2"])
    assert peer.ask(Take(1, 50)) is None
    bench.seconds += 1.0
    bench.turn()
    assert peer.answer() == NOTHING
    assert peer.ask(Flush(1, 0, [])) == DONE

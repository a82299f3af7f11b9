"""Connections that are away: a service holds their items until they come back, run out of time, or end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import pytest

from persistentqueue.interrupts.call_guard import exclusively
from persistentqueue.serving.connections import connections_of
from persistentqueue.serving.handover import LOOK_SECONDS, decode_holds, encode_holds, place_of
from persistentqueue.serving.protocol import (
    CONNECTION_BYTES,
    VERSION,
    Flush,
    GiveBack,
    Hello,
    Put,
    Reject,
    RollBack,
    Take,
    Taken,
    Welcome,
)

from ...conftest import QueueFactory
from .test_service import DONE, NOTHING, Bench, Peer

HOLDER = bytes([1]) * CONNECTION_BYTES


class Change:
    """A change of owners. The first one has the items 1 to 4, and a worker that holds the first two."""

    def __init__(self, open_queue: QueueFactory, settings: dict[str, Any], fields: dict[str, Any]) -> None:
        self.open_queue, self.settings, self.fields = open_queue, settings, fields
        self.bench = Bench(open_queue(**settings))
        self.bench.put(b"1", b"2", b"3", b"4")
        self.bench.left.locks.lock(place_of(HOLDER))
        self.peer = Peer(self.bench, 1, **fields)
        assert self.peer.ask(Take(2, 0)) == Taken(0, [b"1", b"2"])

    def leave(self, **settings: Any) -> Bench:
        """Let another owner take over, with these settings besides, and return it."""
        self.bench.service.hand_over()
        self.bench.end()
        self.bench.queue.close()
        self.bench = Bench(self.open_queue(**{**self.settings, **settings}), self.bench.left)
        return self.bench

    def come_back(self, **fields: Any) -> tuple[Peer, int]:
        """Connect again; return the connection, and the number of items that it holds."""
        peer = Peer(self.bench, 1, says_hello=False)
        hello = {"versions": [VERSION, VERSION], "connection": HOLDER.hex(), **self.fields, **fields}
        answer = peer.ask(Hello(hello))
        assert isinstance(answer, Welcome)
        return peer, answer.fields.get("kept", 0)


MakeChange = Callable[..., Change]


@pytest.fixture
def make_change(open_queue: QueueFactory) -> Iterator[MakeChange]:
    """Return a function that makes a change of owners, of a queue with settings and a worker with fields."""
    made: list[Change] = []

    def make(settings: dict[str, Any] | None = None, **fields: Any) -> Change:
        made.append(Change(open_queue, settings or {}, fields))
        return made[-1]

    yield make
    for each in made:
        each.bench.end()


def test_a_connection_comes_back(make_change: MakeChange) -> None:
    """It holds what it held, takes on, gives back the last items first, and flushes the rest."""
    change = make_change(name="worker", process=7)
    bench = change.leave()
    (seen,) = connections_of(bench.open_queue, bench.service.clients)
    assert (seen.session, seen.process, seen.held) == ("worker", 7, 2)
    peer, kept = change.come_back()
    assert kept == 2
    assert peer.ask(Take(1, 0)) == Taken(0, [b"3"])
    assert peer.ask(GiveBack(2)) == DONE
    assert peer.ask(Flush(1, 0, [])) == DONE
    assert bench.queue.peek(9) == [b"2", b"3", b"4"]
    bench.seconds += LOOK_SECONDS
    assert bench.turn() == inf  # it looks no more


def test_a_connection_that_ends_meanwhile_gives_its_items_back(make_change: MakeChange) -> None:
    """The service sees it at its next look, which comes soon. Those that wait get the items."""
    change = make_change()
    bench = change.leave()
    other = Peer(bench, 2)
    assert other.ask(Take(9, 0)) == Taken(0, [b"3", b"4"])
    assert other.ask(Take(9, 9000)) is None
    bench.seconds += LOOK_SECONDS
    assert bench.turn() <= LOOK_SECONDS
    bench.left.locks.locked.clear()
    assert bench.turn() <= LOOK_SECONDS
    bench.seconds += LOOK_SECONDS
    bench.turn()
    assert other.answer() == Taken(0, [b"1", b"2"])
    assert change.come_back()[1] == 0


def test_a_connection_that_has_ended_is_not_waited_for(make_change: MakeChange) -> None:
    """A service holds nothing for a connection whose session has ended before it began."""
    change = make_change()
    change.bench.left.locks.locked.clear()
    assert change.leave().queue.peek(9) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("comes_back", [False, True])
def test_the_time_of_a_hold_begins_with_the_service(make_change: MakeChange, comes_back: bool) -> None:
    """It ends the hold, whether the connection has come back or not, and a late flush is refused."""
    change = make_change(hold_seconds=5.0)
    change.bench.seconds += 4.0
    bench = change.leave()
    bench.seconds += 4.0
    bench.turn()
    assert bench.queue.peek(9) == [b"3", b"4"]
    peer = change.come_back()[0] if comes_back else None
    bench.seconds += 1.0
    bench.turn()
    assert bench.queue.peek(9) == [b"1", b"2", b"3", b"4"]
    if peer is None:
        peer, kept = change.come_back()
        assert kept == 2  # so it learns from its next call that they went back
    assert peer.error(Flush(1, 0, [])) == "HoldLostError"
    assert peer.ask(RollBack()) == DONE
    assert peer.ask(Take(1, 0)) == Taken(0, [b"1"])


def test_a_connection_without_a_time_may_come_back_with_one(make_change: MakeChange) -> None:
    """The other way round, too: the hello counts, and a time begins with the next item."""
    change = make_change(hold_seconds=5.0)
    change.leave()
    change.fields = {}
    peer, kept = change.come_back()
    assert kept == 2
    change.bench.seconds += 60.0
    change.bench.turn()
    assert peer.ask(Flush(1, 0, [])) == DONE


def test_an_owner_hands_over_what_it_has_inherited(make_change: MakeChange) -> None:
    """A connection may be away over several owners. It keeps none of them from leaving."""
    change = make_change()
    for _ in range(3):
        assert change.leave().service.may_leave()
        assert change.bench.queue.peek(9) == [b"3", b"4"]
    peer, kept = change.come_back()
    assert (kept, peer.ask(Flush(1, 0, []))) == (2, DONE)


def test_only_a_session_of_the_same_subscription_comes_back(make_change: MakeChange) -> None:
    """A hello with the same id for another one ends the hold."""
    change = make_change({"fan_out": False})
    change.bench.queue.subscribe("other")
    bench = change.leave()
    assert change.come_back(subscription="other")[1] == 0
    assert bench.queue.peek(9) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("message", [Put([b"5"]), Reject(1, (b"1", b"", b""))], ids=["put", "reject"])
def test_other_work_is_not_handed_over(make_change: MakeChange, message: Put | Reject) -> None:
    """The items of a session that has put or rejected others are ready at the next owner."""
    change = make_change({"retry_delay_seconds": 0.001} if isinstance(message, Reject) else {})
    assert change.peer.ask(message) == DONE
    change.leave()
    assert change.come_back()[1] == 0


def test_a_flush_under_way_does_not_count(make_change: MakeChange) -> None:
    """The worker makes it again, at the next owner, with the items that it holds."""
    change = make_change({"max_items": 4, "full": "block"})
    assert change.peer.ask(Flush(1, 9000, [b"5", b"6", b"7"])) is None
    bench = change.leave(max_items=None)
    assert bench.queue.peek(9) == [b"3", b"4"]
    peer, kept = change.come_back()
    assert (kept, peer.ask(Flush(2, 0, [b"5", b"6", b"7"]))) == (2, DONE)
    assert bench.queue.peek(9) == [b"3", b"4", b"5", b"6", b"7"]


def test_a_session_in_use_is_not_handed_over(make_change: MakeChange) -> None:
    """Another thread flushes it, together with a session of another queue."""
    change = make_change()
    session = change.peer.client.session
    assert session is not None
    exclusively([session], change.bench.service.hand_over)
    assert decode_holds(change.bench.left.data) == []


def test_a_session_that_is_taken_into_use_meanwhile(make_change: MakeChange, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its items, which its flush consumes: the next owner does not find them ready."""
    change = make_change()
    session, left = change.peer.client.session, change.bench.left
    assert session is not None
    leave = left.leave

    def late(holds: Any) -> set[bytes]:
        """Let the other thread begin between the look and the end of the hold."""
        session._busy = 1
        return leave(holds)

    monkeypatch.setattr(left, "leave", late)
    change.bench.service.hand_over()
    session._busy = 0
    assert session.flush() is True
    change.bench.end()
    change.bench.queue.close()
    change.bench = Bench(change.open_queue(), left)
    assert change.come_back()[1] == 0
    assert change.bench.queue.peek(9) == [b"3", b"4"]


def test_nothing_is_let_go_that_could_not_be_written(make_change: MakeChange, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the end of the connections releases the items."""
    change = make_change()
    monkeypatch.setattr(change.bench.left, "leave", lambda _: set())
    change.bench.service.hand_over()
    change.bench.end()
    assert change.bench.queue.peek(9) == [b"1", b"2", b"3", b"4"]


def test_items_that_are_not_ready_are_not_held(make_change: MakeChange) -> None:
    """A hold of items that were consumed meanwhile is over as a whole, and so is one of a subscription that is gone."""
    change = make_change()
    change.bench.service.hand_over()
    left = change.bench.left
    (hold,) = decode_holds(left.data)
    change.bench.end()
    change.bench.queue.close()
    queue = change.open_queue()
    with queue.transaction() as session:
        assert session.dequeue() == b"1"
    left.data = encode_holds([hold, hold._replace(connection=bytes(16), subscription="gone")])
    left.locks.lock(place_of(bytes(16)))
    change.bench = Bench(queue, left)
    assert queue.peek(9) == [b"2", b"3", b"4"]
    peer, kept = change.come_back()
    assert (kept, peer.ask(Take(9, 0))) == (0, Taken(0, [b"2", b"3", b"4"]))
    assert peer.ask(Take(9, 0)) == NOTHING

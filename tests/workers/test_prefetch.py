"""``connect(prefetch=True)``: a flush brings the next items, and only what was dequeued is consumed."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from persistentqueue import Session
from persistentqueue.serving.protocol import Ahead, Cancel, Done, Flush, GiveBack, Message, Take, Taken
from persistentqueue.workers import WorkerSession
from persistentqueue.workers.link import Link

from .test_links import Script, session_on
from .test_sessions import Serve, drained, put, served

__all__ = ["served"]


def held(session: object) -> int:
    """Return the number of items that the session has dequeued since its last flush."""
    assert isinstance(session, WorkerSession)
    return session.held


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the calls that workers make from now on."""
    made: list[str] = []
    call = Link.call

    def note(link: Link, message: Message, *before: bytes) -> Message:
        made.append(type(message).__name__)
        return call(link, message, *before)

    monkeypatch.setattr(Link, "call", note)
    return made


def test_a_flush_brings_the_next_items(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``prefetch`` a loop of dequeues and flushes makes one call for each item, and consumes each once."""
    queue, join = served()
    put(queue, *(b"%d" % number for number in range(10)))
    with join(prefetch=True) as shared, shared.session() as session:
        assert session.dequeue() == b"0"
        made = calls_of(monkeypatch)
        for number in range(1, 9):
            session.enqueue(b"%d" % (10 * number))
            assert session.flush() is True
            assert held(session) == 0
            assert session.dequeue() == b"%d" % number
            assert held(session) == 1
        assert made == ["Flush"] * 8
        assert queue.peek(1) == [b"9"]
        session.flush()
        assert queue.peek(1) == [b"10"]
    assert queue.peek(1) == [b"9"]


def test_work_in_turn_brings_items_when_they_are_wanted(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a loop with a flush of enqueues and one of dequeues, the first one brings the items that are dequeued next.

    No item is brought twice, and none is given back.
    """
    queue, join = served()
    with join(prefetch=True) as shared, shared.session() as session:

        def turn(number: int) -> None:
            session.enqueue_many([b"%d" % number, b"x"])
            session.flush()
            assert session.dequeue_many(2) == [b"%d" % number, b"x"]
            session.flush()

        turn(0)
        turn(1)
        made, back = calls_of(monkeypatch), []
        monkeypatch.setattr(Session, "put_back", lambda *arguments: back.append(arguments))
        turn(2)
        turn(3)
        assert (made, back) == (["Flush"] * 4, [])
        monkeypatch.undo()
        put(queue, b"4", b"5", b"6")
        session.enqueue(b"7")
        session.flush()
        assert queue.peek(9) == [b"6", b"7"]
        session.enqueue(b"8")
        session.flush()  # gives them back, since nothing was dequeued
        session.enqueue(b"9")
        session.flush()
        assert queue.peek(9) == [b"4", b"5", b"6", b"7", b"8", b"9"]


def test_a_refused_flush_consumes_nothing_that_it_brought(served: Serve) -> None:
    """If the owner refuses a flush at once, the items that an earlier flush has brought stay, and come next."""
    queue, join = served()
    put(queue, *(b"%d" % number for number in range(6)))
    with join(prefetch=True) as shared, shared.session() as session:
        assert session.dequeue_many(2) == [b"0", b"1"]
        session.flush()  # takes 2 and 3
        session.enqueue(b"6")
        with pytest.raises(ValueError, match='full="block"'):
            session.flush(timeout=5)
        assert session.flush() is True
        assert session.dequeue_many(9) == [b"2", b"3", b"4", b"5", b"6"]
        session.flush()
    assert len(queue) == 0


def test_items_that_were_not_asked_for_stay(served: Serve) -> None:
    """Items that a flush has brought stay in the queue until a dequeue returns them.

    Neither the next flush, nor a rollback, ``put_back`` or the end of the session loses one. A larger dequeue gets them
    and others.
    """
    queue, join = served()
    put(queue, *(b"%d" % number for number in range(9)))
    with join(prefetch=True) as shared:
        with shared.session() as session:
            assert session.dequeue_many(3) == [b"0", b"1", b"2"]
            session.flush()
            assert queue.peek(1) == [b"6"]
            assert session.dequeue() == b"3"
            session.flush()  # releases 4 and 5, takes 4
            assert session.dequeue_many(3) == [b"4", b"5", b"6"]
            session.put_back(2)
            assert (session.dequeue(), held(session)) == (b"5", 2)
            session.flush()
            assert session.dequeue() == b"6"
            session.put_back()
            assert queue.peek(9) == [b"6", b"7", b"8"]
            assert session.dequeue() == b"6"
            session.flush()
            session.rollback()
            assert queue.peek(1) == [b"7"]
            assert session.dequeue() == b"7"
            session.flush()
        assert drained(queue) == [b"8"]


def test_a_flush_of_nothing_releases_what_was_brought(served: Serve) -> None:
    """A flush without any work releases the items that an earlier flush has brought, as each flush does."""
    queue, join = served()
    put(queue, b"1", b"2")
    with join(prefetch=True) as shared, shared.session() as session:
        assert session.dequeue() == b"1"
        session.flush()
        assert queue.peek() == []
        assert session.flush() is True
        assert queue.peek() == [b"2"]
        assert session.dequeue() == b"2"
        session.flush()
    assert len(queue) == 0


def test_queues_that_count_attempts_bring_nothing_ahead(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery is counted when an item is dequeued, so nothing is delivered before."""
    queue, join = served(max_attempts=2, dead_letter="failed")
    put(queue, b"1", b"2")
    with join(prefetch=True) as shared, shared.session() as session:
        assert session.dequeue() == b"1"
        session.flush()
        made = calls_of(monkeypatch)
        assert session.dequeue() == b"2"
        session.flush()
    assert made[:2] == ["Take", "Flush"]


def test_a_hold_with_an_end_excludes_prefetch(served: Serve) -> None:
    """The time of an item that no caller has would run out unseen, so both settings together are refused."""
    _, join = served()
    with pytest.raises(ValueError, match="prefetch and hold_seconds exclude each other"):
        join(prefetch=True, hold_seconds=1.0)


@pytest.mark.parametrize("seconds", [Decimal("0.5"), Fraction(1, 2), 10**400])
def test_a_time_to_hold_of_another_type_of_number(served: Serve, seconds: Any) -> None:
    """Any number is a time to hold: it reaches the owner with the first dequeue."""
    queue, join = served()
    put(queue, b"1")
    with join(hold_seconds=seconds) as shared, shared.session() as session:
        assert session.dequeue() == b"1"
        assert session.flush() is True


@pytest.mark.parametrize("seconds", ["3", b"3", True, [3]])
def test_a_time_to_hold_that_is_no_number(served: Serve, seconds: Any) -> None:
    """``connect`` refuses it with the name of the argument, before any call."""
    _, join = served()
    with pytest.raises(
        TypeError, match=re.escape(f"hold_seconds must be None or a number of seconds, not {seconds!r}")
    ):
        join(hold_seconds=seconds)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), -(10**400)])
def test_a_time_to_hold_that_is_not_above_zero(served: Serve, seconds: float) -> None:
    """``connect`` refuses it, before any call."""
    _, join = served()
    with pytest.raises(ValueError, match="hold_seconds must be more than 0, got"):
        join(hold_seconds=seconds)


def test_a_prefetch_that_is_a_number(served: Serve) -> None:
    """A number could only mean a count of items, which no session brings ahead: it is refused."""
    _, join = served()
    with pytest.raises(TypeError, match="prefetch must be True or False, not 10"):
        join(prefetch=10)


def test_a_pickled_queue_brings_items_ahead_as_well(served: Serve) -> None:
    """The setting goes to the other process with the queue."""
    queue, join = served()
    put(queue, b"1", b"2")
    with join(prefetch=True) as shared, shared.handle() as again, again.session() as session:
        session.dequeue()
        session.flush()
        assert queue.peek(9) == []


def test_items_ahead_end_with_their_owner() -> None:
    """If the owner ends, the items that no dequeue has returned are forgotten, and the session goes on."""
    first, second = Script(Taken(0, [b"1"]), Taken(0, [b"2"]), None), Script(Done(1), Taken(0, [b"other"]))
    session = session_on(first, second, prefetches=True)
    assert session.dequeue() == b"1"
    session.flush()
    session.extend()
    assert session.dequeue() == b"other"


def test_an_interrupted_flush_keeps_what_it_brought() -> None:
    """A flush whose answer arrives after an interruption has committed, and its items reach the next dequeue."""
    script = Script(Taken(0, [b"1"]), KeyboardInterrupt(), Taken(0, [b"2"]), Done(1))
    session = session_on(script, prefetches=True)
    assert session.dequeue() == b"1"
    with pytest.raises(KeyboardInterrupt):
        session.flush()
    assert held(session) == 0
    assert session.dequeue() == b"2"
    session.put_back()
    assert [message for _, message in script.messages()] == [
        Take(1, 0),
        Ahead(0, 1),
        Flush(1, 2**32 - 1, []),
        Cancel(),
        GiveBack(1),
    ]

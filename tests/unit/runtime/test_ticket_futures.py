"""A ticket as a ``Future`` whose parts are made at their first use: no end of a flush is missed, or told twice."""

from __future__ import annotations

import asyncio
import copy
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    InvalidStateError,
    ThreadPoolExecutor,
    TimeoutError,  # noqa: A004 - not the built-in one before 3.11
    as_completed,
    wait,
)
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from persistentqueue import Ticket
from persistentqueue.runtime import pipeline
from tests.support.queues import wait_for

SECONDS = 300.0
TICKETS = 30_000
Ending = Callable[[Ticket], None]


def end_well(ticket: Ticket) -> None:
    pipeline._succeed(ticket, True)


def end_halfway(ticket: Ticket) -> None:
    """End the flush well, up to the step behind which no thread that waits is woken any more."""
    ticket.__dict__["_result"] = True
    assert ticket.__dict__.setdefault("_lock", pipeline._END) is pipeline._END


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads change after nearly each instruction."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("end", [end_well, end_halfway])
def test_a_ticket_that_nobody_waited_for_has_ended(end: Ending) -> None:
    """Each way to look at a ticket finds the end of a flush that ended before, or that is about to end."""
    for look in (
        lambda ticket: ticket.result(0.0),
        lambda ticket: ticket.wait(0.0),
        lambda ticket: ticket.exception(0.0) is None,
        lambda ticket: not ticket.running() and not ticket.cancelled(),
        lambda ticket: wait([ticket], 0.0).done == {ticket},
        lambda ticket: list(as_completed([ticket], 0.0)) == [ticket],
        lambda ticket: "finished" in repr(ticket),
    ):
        ticket = Ticket()
        end(ticket)
        assert look(ticket)
        assert ticket.done() and ticket.result(0.0)
    called: list[Future[bool]] = []
    ticket = Ticket()
    end(ticket)
    ticket.add_done_callback(called.append)
    assert called == [ticket]


def test_a_ticket_that_has_not_ended() -> None:
    """Nothing is found before the end, and a callback is called by the end, once."""
    ticket, called = Ticket(), list[Future[bool]]()
    assert not ticket.done() and not ticket.running() and not ticket.cancelled()
    with pytest.raises(TimeoutError):
        ticket.result(0.0)
    assert wait([ticket], 0.0).not_done == {ticket}
    ticket.add_done_callback(called.append)
    assert called == []
    end_well(ticket)
    assert called == [ticket] and ticket.result(0.0)


@pytest.mark.parametrize("timeout", [float("inf"), 1e10, Decimal("1e400"), Fraction(10**12)], ids=repr)
def test_a_ticket_waits_as_long_as_it_is_told(timeout: Any) -> None:
    """A timeout may be of any size and type of number: the end of the flush ends the wait."""
    ticket = Ticket()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ticket.result, timeout)
        wait_for(lambda: bool(vars(ticket).get("_turns")) or waiting.done())
        end_well(ticket)
        assert waiting.result(SECONDS)


@pytest.mark.parametrize("end", [end_well, lambda _: None], ids=["behind its end", "before its end"])
def test_a_timeout_of_a_ticket_is_checked(end: Ending) -> None:
    """A ticket refuses what is no timeout, also behind its end. A negative one does not wait, as in a ``Future``."""
    ticket = Ticket()
    end(ticket)
    wrong: list[Any] = ["1", True, b"", float("nan"), Decimal("NaN")]
    for call in (ticket.result, ticket.exception, ticket.wait):
        for timeout in wrong:
            with pytest.raises((TypeError, ValueError), match=r"^timeout must be None or "):
                call(timeout)
    for timeout in (-1, -0.5, float("-inf")):
        assert ticket.wait(timeout) is ticket.done()


@pytest.mark.parametrize("end", [end_well, end_halfway])
def test_an_end_is_not_told_twice(end: Ending) -> None:
    """``wait`` and ``as_completed`` of some tickets that have ended, and of one that has not, wait for that one."""
    ended, pending, later = [Ticket() for _ in range(3)], Ticket(), Ticket()
    for each in ended:
        end(each)
    found = wait([*ended, pending], 0.0)
    assert (found.done, found.not_done) == (set(ended), {pending})
    assert wait([*ended, later], 0.0, FIRST_COMPLETED).done == set(ended)
    with ThreadPoolExecutor(1) as pool:
        all_of_them = pool.submit(lambda: list(as_completed([*ended, pending], SECONDS)))
        end_well(pending)
        assert sorted(map(id, all_of_them.result(SECONDS))) == sorted(map(id, [*ended, pending]))


def test_an_error_is_the_same_for_each_look() -> None:
    """A flush that has failed raises its own error, each time."""
    error = ValueError("before")
    waited, unwaited = Ticket(), Ticket()
    with pytest.raises(TimeoutError):
        waited.exception(0.0)
    for ticket in (waited, unwaited):
        pipeline._fail(ticket, error)
        assert ticket.done() and ticket.exception() is error
        with pytest.raises(ValueError, match="before"):
            ticket.result()


@pytest.mark.unwatched
@pytest.mark.usefixtures("often_switched")
@pytest.mark.parametrize("way", ["result", "wait", "callback", "as_completed"])
def test_no_end_is_missed(way: str) -> None:
    """However a thread that waits and the one that ends the flush interleave, the one that waits goes on, once."""
    for _ in range(TICKETS // 30):
        tickets, called = [Ticket() for _ in range(30)], list[Future[bool]]()
        ending = threading.Thread(target=lambda each=tickets: list(map(end_well, each)))
        ending.start()
        if way == "result":
            assert all(each.result(SECONDS) for each in tickets)
        elif way == "wait":
            assert wait(tickets, SECONDS).done == set(tickets)
        elif way == "callback":
            for each in tickets:
                each.add_done_callback(called.append)
            ending.join()
            assert sorted(map(id, called)) == sorted(map(id, tickets))
        else:
            assert sorted(map(id, as_completed(tickets, SECONDS))) == sorted(map(id, tickets))
        ending.join()


_SHARING = """
import gc, sys, threading
from persistentqueue import Ticket

class Finalized:
    def __init__(self):
        self.myself = self

    def __del__(self):
        for _ in range(20):  # threads change here, in the collection that an allocation has begun
            pass

def note(tickets, name, noted):
    for ticket in tickets:
        parts = ticket.__dict__
        parts[name] = True
        noted.append(parts)
        Finalized()

gc.set_threshold(50, 2, 2)
sys.setswitchinterval(1e-6)
for _ in range(200):
    tickets, first, second = [Ticket() for _ in range(300)], [], []
    thread = threading.Thread(target=note, args=(tickets, "a", first))
    thread.start()
    note(tickets, "b", second)
    thread.join()
    assert all(one is other and len(one) == 2 for one, other in zip(first, second))
"""


def test_two_threads_find_the_same_parts() -> None:
    """If two threads use a new ticket at once, and a collection of garbage lets them change, both see what either of
    them has set. In a process of its own: CPython 3.11 frees memory twice if each thread makes the dictionary."""
    subprocess.run([sys.executable, "-c", _SHARING], check=True, timeout=SECONDS)


def test_an_end_while_a_thread_begins_to_wait_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the flush ends between the look of a thread and its wait, the thread does not wait."""
    ticket, lock = Ticket(), threading.Lock

    def end_and_lock() -> object:
        end_well(ticket)
        return lock()

    monkeypatch.setattr(threading, "Lock", end_and_lock)
    assert ticket.wait(SECONDS)


def test_threads_that_wait_go_on_before_the_callbacks() -> None:
    """A callback may wait for a thread that waits for the ticket."""
    ticket = Ticket()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ticket.result, SECONDS)
        ticket.add_done_callback(lambda _: waiting.result(SECONDS))
        end_well(ticket)
        assert waiting.done() and waiting.result(0.0)


def test_a_lost_lock_of_a_future_keeps_no_thread_from_the_end() -> None:
    """An interruption of a thread that waits for the lock of a ``Future`` may leave it locked. So ``result`` and
    ``wait`` of a ticket do not take it."""
    ticket = Ticket()
    assert not ticket.wait(0.0)
    with pytest.raises(TimeoutError):
        ticket.result(0.0)
    assert "_lock" not in vars(ticket)


def test_an_outcome_never_changes() -> None:
    """A second end raises ``InvalidStateError``, whether or not a thread has waited."""
    for looks in (False, True):
        ticket = Ticket()
        assert not looks or wait([ticket], 0.0).not_done
        end_well(ticket)
        with pytest.raises(InvalidStateError):
            end_well(ticket)
        with pytest.raises(InvalidStateError):
            pipeline._fail(ticket, ValueError())
        assert ticket.result(0.0)


def test_a_ticket_that_is_called_running_ends() -> None:
    """``set_running_or_notify_cancel``, which executors call, does not keep a flush from its end."""
    for end in (end_well, lambda ticket: pipeline._fail(ticket, ValueError())):
        ticket = Ticket()
        assert ticket.set_running_or_notify_cancel() and ticket.running()
        end(ticket)
        assert ticket.done() and not ticket.running()
        with pytest.raises(InvalidStateError):
            end_well(ticket)


def test_tasks_await_tickets() -> None:
    """``asyncio.wrap_future`` takes a ticket that has ended, and one that ends later."""

    async def main() -> None:
        ended, later = Ticket(), Ticket()
        end_well(ended)
        waiting = asyncio.wrap_future(later)
        ending = threading.Timer(0.01, end_well, [later])
        ending.start()
        assert await asyncio.wrap_future(ended) and await waiting
        ending.join()  # it wakes the task before its last step

    asyncio.run(main())


def test_a_ticket_cannot_be_copied() -> None:
    """A copy would never end: ``copy`` and ``pickle`` raise ``TypeError``."""
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="Ticket cannot be copied, pickled or sent to another process: wait for it"):
            call(Ticket())

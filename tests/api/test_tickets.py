"""Flushes that a session does not wait for: ``flush(wait=False)``, its tickets, and ``PersistentQueue.sync``."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    PersistentQueue,
    PrecedingFlushError,
    QueueFullError,
    ReentrantUseError,
    Session,
    Ticket,
    transaction,
)
from persistentqueue.runtime import pipeline
from persistentqueue.system.disk import Buffers
from tests.conftest import QueueFactory
from tests.support.queues import IN_CACHE, crash, drain, put, put_each, wait_for

SECONDS = 60.0


class GatedDisk:
    """A disk whose log writes wait while the gate is closed, so that flushes collect behind the one under way."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        self.error: OSError | None = None
        self.disk = replace(IN_CACHE, pwritev=self._pwritev)

    def _pwritev(self, fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        if flags:
            self.waiting.set()
            assert self.gate.wait(SECONDS)
            if self.error is not None:
                raise self.error
        return IN_CACHE.pwritev(fd, buffers, offset, flags)

    def close(self) -> None:
        """Let the next write wait."""
        self.waiting.clear()
        self.gate.clear()


def give(session: Session, *items: bytes) -> list[Ticket]:
    """Enqueue the items with one flush each, none of them waited for."""
    tickets = []
    for item in items:
        session.enqueue(item)
        tickets.append(session.flush(wait=False))
    return tickets


def collected(gated: GatedDisk, session: Session, *items: bytes) -> list[Ticket]:
    """Enqueue the items with one flush each, all of which wait behind a first one, which waits for the disk."""
    gated.close()
    tickets = give(session, b"first")
    assert gated.waiting.wait(SECONDS)
    return [*tickets, *give(session, *items)]


def test_a_ticket_is_done_when_its_flush_is_durable(open_queue: QueueFactory) -> None:
    """After ``result``, the items of the flush survive a crash, and those of all flushes before it."""
    queue = open_queue()
    with queue.session() as session:
        tickets = give(session, *(b"%d" % n for n in range(100)))
        assert tickets[-1].result(SECONDS) is True
        assert all(ticket.done() for ticket in tickets)
        crash(queue)
    assert drain(open_queue()) == [b"%d" % n for n in range(100)]


def test_flushes_share_syncs(open_queue: QueueFactory) -> None:
    """Flushes that collect while the disk writes become durable with one more write."""
    gated = GatedDisk()
    queue = open_queue(disk=gated.disk)
    with queue.session() as session:
        before = queue.stats().groups
        tickets = collected(gated, session, *(b"%d" % n for n in range(50)))
        assert not tickets[0].done() and not tickets[0].wait(0.0)
        gated.gate.set()
        assert tickets[-1].wait(SECONDS)
        assert queue.stats().groups - before == 2
    assert drain(queue) == [b"first", *(b"%d" % n for n in range(50))]


def test_dequeues_are_pipelined(open_queue: QueueFactory) -> None:
    """Dequeues and enqueues of one session are committed in order, however many flushes they are spread over."""
    queue = open_queue()
    put_each(queue, [b"%d" % n for n in range(200)])
    with queue.session() as session:
        for n in range(200):
            item = session.dequeue()
            assert item == b"%d" % n
            session.enqueue(item + b"!")
            session.flush(wait=False)
        queue.sync()
        crash(queue)
    assert drain(open_queue()) == [b"%d!" % n for n in range(200)]


def test_a_waiting_flush_comes_behind_the_tickets(open_queue: QueueFactory) -> None:
    """``flush`` returns when all tickets of the session are done, also if there is nothing else to commit."""
    gated = GatedDisk()
    queue = open_queue(disk=gated.disk)
    with queue.session() as session, ThreadPoolExecutor(1) as threads:
        for last in (b"last", None):
            tickets = collected(gated, session, b"second")
            if last is not None:
                session.enqueue(last)
            flush = threads.submit(session.flush)
            assert not flush.done()
            gated.gate.set()
            assert flush.result(SECONDS) is True and all(ticket.done() for ticket in tickets)
    assert drain(queue) == [b"first", b"second", b"last", b"first", b"second"]


def test_an_empty_flush_has_a_ticket(open_queue: QueueFactory) -> None:
    """A flush of nothing has a ticket that is done when those before it are."""
    gated = GatedDisk()
    queue = open_queue(disk=gated.disk)
    with queue.session() as session:
        assert session.flush(wait=False).result(0.0) is True
        collected(gated, session, b"second")
        empty = session.flush(wait=False)
        assert not empty.done()
        gated.gate.set()
        assert empty.result(SECONDS) is True
        assert session.flush(wait=False).result(SECONDS) is True
    assert drain(queue) == [b"first", b"second"]


def test_markers(open_queue: QueueFactory) -> None:
    """The ticket of a flush whose marker was recorded before has the result False; its items are released."""
    queue = open_queue()
    put(queue, b"work")
    with queue.session() as session:
        session.enqueue(b"a")
        assert session.flush(("batch", 1), wait=False).result(SECONDS) is True
        session.enqueue(b"again")
        assert session.dequeue() == b"work"
        assert session.flush(("batch", 1), wait=False).result(SECONDS) is False
        session.enqueue(b"b")
        assert session.flush(("batch", 2), wait=False).result(SECONDS) is True
    assert drain(queue) == [b"work", b"a", b"b"]


def test_a_refused_flush_fails_those_behind_it(open_queue: QueueFactory) -> None:
    """Of flushes that collected, those before the first one without room are committed, and none behind it.

    The session accepts no flush until it is rolled back.
    """
    gated = GatedDisk()
    queue = open_queue(disk=gated.disk, max_items=3)
    with queue.session() as session:
        first, second, third, large, small = collected(gated, session, b"second", b"third", b"large", b"small")
        session.enqueue(b"never")
        gated.gate.set()
        assert [each.result(SECONDS) for each in (first, second, third)] == [True] * 3
        refusal = large.exception(SECONDS)
        assert isinstance(refusal, QueueFullError)
        behind = small.exception(SECONDS)
        assert isinstance(behind, PrecedingFlushError)
        assert behind.failure is behind.__cause__ is refusal and behind.path == str(session._open_queue.directory)
        for wait in (True, False):
            with pytest.raises(PrecedingFlushError, match="rollback"):
                session.flush(wait=wait)
        with pytest.raises(PrecedingFlushError):
            queue.sync()
        assert queue.flush_all([session]) and len(queue) == 3
        session.rollback()
        queue.sync()
        assert session.dequeue() == b"first"
        session.enqueue(b"fourth")
        assert session.flush() is True
    assert drain(queue) == [b"second", b"third", b"fourth"]


def test_what_a_failed_flush_held_is_released(open_queue: QueueFactory) -> None:
    """Items that failed flushes have dequeued are ready again after the rollback, in their old order."""
    gated = GatedDisk()
    queue = open_queue(disk=gated.disk, max_items=6)
    put(queue, b"0", b"1", b"2")
    with queue.session() as session:
        gated.close()
        give(session, b"first")
        assert gated.waiting.wait(SECONDS)
        for count in (5, 1, 1):
            assert session.dequeue_many(1)
            session.enqueue_many([b"x"] * count)
            last = session.flush(wait=False)
        gated.gate.set()
        assert isinstance(last.exception(SECONDS), PrecedingFlushError)
        assert [use.held for use in queue.explain()] == [3]
        session.rollback()
    assert drain(queue) == [b"0", b"1", b"2", b"first"]


def test_a_session_gets_no_item_twice(open_queue: QueueFactory) -> None:
    """Items of a failed flush stay on hold until the session is rolled back: the next dequeue gets the next item."""
    queue = open_queue(max_items=6)
    put(queue, *(b"%d" % n for n in range(6)))
    with queue.session() as session, queue.session() as other:
        assert session.dequeue_many(2) == [b"0", b"1"]
        session.enqueue_many([b"x"] * 3)
        assert isinstance(session.flush(wait=False).exception(SECONDS), QueueFullError)
        assert session.dequeue() == b"2" and other.dequeue() == b"3"
        with pytest.raises(PrecedingFlushError):
            session.flush()
        other.flush()
        session.rollback()
    assert drain(queue) == [b"0", b"1", b"2", b"4", b"5"]


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_session_that_ends_releases_what_failed(
    open_queue: QueueFactory, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Items that failed flushes have dequeued are ready again when their session was closed or dropped.

    A close raises the error. Of a dropped session it is logged.
    """
    queue = open_queue(max_items=2)
    put(queue, b"0", b"1")
    session = queue.session()
    assert session.dequeue() == b"0"
    session.enqueue_many([b"x"] * 3)
    assert isinstance(session.flush(wait=False).exception(SECONDS), QueueFullError)
    assert len(queue) == 1
    if how == "close":
        with pytest.raises(PrecedingFlushError):
            session.close()
    thread = session._pipeline._thread  # type: ignore[union-attr]
    del session
    gc.collect()
    assert thread is not None
    thread.join(SECONDS)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (how == "drop")
    assert ("1 of its flushes had failed (QueueFullError: " in caplog.text) == (how == "drop")
    assert drain(queue) == [b"0", b"1"]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_error_that_was_raised_keeps_no_session(open_queue: QueueFactory) -> None:
    """A session is dropped with its thread, and releases its items, also if a ticket has raised an error in the same
    function."""
    queue = open_queue(max_items=2)
    put(queue, b"0", b"1")

    def work() -> None:
        session = queue.session()
        assert session.dequeue() == b"0"
        session.enqueue_many([b"x"] * 3)
        ticket = session.flush(wait=False)
        with pytest.raises(QueueFullError):
            ticket.result(SECONDS)
        del ticket
        with pytest.raises(PrecedingFlushError, match="QueueFullError") as caught:
            session.flush()
        assert isinstance(caught.value.failure, QueueFullError)
        assert caught.value.failure is caught.value.__cause__
        assert session.dequeue() == b"1"

    work()
    gc.collect()
    await_end_of_threads()
    assert drain(queue) == [b"0", b"1"]


def test_the_end_of_a_block_raises_what_failed(open_queue: QueueFactory) -> None:
    """A ``with`` block with failed flushes ends with an error, unless another one leaves it or it was rolled back."""
    queue = open_queue(max_items=1)
    with pytest.raises(PrecedingFlushError) as caught, queue.session() as session:
        give(session, b"a", b"b")
    assert isinstance(caught.value.__cause__, QueueFullError) and session.closed
    with pytest.raises(KeyError), queue.session() as session:
        give(session, b"b")
        raise KeyError
    with queue.session() as session:
        give(session, b"b")
        session.rollback()
    assert drain(queue) == [b"a"]


def test_the_end_of_a_block_waits(open_queue: QueueFactory) -> None:
    """When a ``with`` block ends, all its flushes are durable. So it is when the queue is closed."""
    queue = open_queue()
    with queue.session() as session:
        give(session, *(b"%d" % n for n in range(100)))
    assert len(queue) == 100
    session = queue.session()
    tickets = give(session, *(b"%d" % n for n in range(100)))
    queue.close()
    assert all(ticket.result(0.0) for ticket in tickets)
    with pytest.raises(ClosedError):
        session.flush(wait=False)
    session.close()
    assert len(open_queue()) == 200


def test_a_flush_waits_while_many_do(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session cannot be more than so many flushes, or so many bytes, ahead of the disk."""
    gated = GatedDisk()
    queue = open_queue(disk=gated.disk)
    for name in ("_WAITING_MAX", "_WAITING_BYTES_MAX"):
        with monkeypatch.context() as patch, queue.session() as session, ThreadPoolExecutor(1) as threads:
            patch.setattr(pipeline, name, 3 if name == "_WAITING_MAX" else 2500)
            collected(gated, session, *[b"x" * 900] * 3)
            flush = threads.submit(give, session, b"more")
            assert not flush.done() and len(session._pipeline.waiting) == 3  # type: ignore[union-attr]
            gated.gate.set()
            assert flush.result(SECONDS)[0].result(SECONDS) is True
    assert len(drain(queue)) == 10


def test_large_flushes_are_not_merged(open_queue: QueueFactory) -> None:
    """Spilled flushes, and more than 4 MiB of items, keep their order, too."""
    queue = open_queue()
    items = [b"a" * 3_000_000, b"b" * 3_000_000, b"c", b"d" * 5_000_000, b"e"]
    with queue.session() as session:
        for item in items:
            session.enqueue_many([item[:1], item])
            session.flush(wait=False)
    assert drain(queue) == [each for item in items for each in (item[:1], item)]


def test_a_failed_write_leaves_all_outcomes_unknown(open_queue: QueueFactory) -> None:
    """If a write of the log fails, the tickets of that write have a ``BrokenQueueError``, and so has the session."""
    gated = GatedDisk()
    queue = open_queue(disk=gated.disk)
    with pytest.raises(PrecedingFlushError), queue.session() as session:
        tickets = collected(gated, session, b"second", b"third")
        gated.error = OSError(5, "Input/output error")
        gated.gate.set()
        assert isinstance(tickets[0].exception(SECONDS), BrokenQueueError)
        assert all(isinstance(each.exception(SECONDS), PrecedingFlushError) for each in tickets[1:])
        with pytest.raises(BrokenQueueError):
            session.flush()
    gated.error = None
    crash(queue)
    assert drain(open_queue()) == []


def test_a_merged_write_that_fails(open_queue: QueueFactory) -> None:
    """If the write of merged flushes fails, the outcome of each of them is unknown."""
    gated = GatedDisk()
    queue = open_queue(disk=gated.disk)
    session = queue.session()
    tickets = collected(gated, session, b"second", b"third")

    def fail(_: Future[bool]) -> None:
        gated.error = OSError(5, "Input/output error")

    tickets[0].add_done_callback(fail)
    gated.gate.set()
    assert [type(each.exception(SECONDS)) for each in tickets] == [type(None), BrokenQueueError, BrokenQueueError]
    with pytest.raises(PrecedingFlushError):
        session.close()
    gated.error = None
    crash(queue)
    assert drain(open_queue()) == [b"first"]


def test_waiting_for_room(open_queue: QueueFactory) -> None:
    """With ``full="block"`` a flush in the pipeline waits for room, and those behind it wait with it."""
    queue = open_queue(max_items=2, full="block")
    with queue.session() as session:
        tickets = give(session, *(b"%d" % n for n in range(6)))
        assert tickets[1].result(SECONDS)
        assert not tickets[2].wait(0.05)
        taken: list[bytes | None] = []
        with queue.session() as other:
            while len(taken) < 6:
                taken.append(other.dequeue(timeout=SECONDS))
                other.flush()
        assert [each.result(SECONDS) for each in tickets] == [True] * 6
    assert taken == [b"%d" % n for n in range(6)]


def test_a_wait_for_room_that_ends(open_queue: QueueFactory) -> None:
    """A flush that waits for room is refused when its time is over, when it gives up, or when the queue is closed."""
    queue = open_queue(max_items=1, full="block")
    put(queue, b"full")
    with queue.session() as session:
        session.enqueue(b"late")
        assert isinstance(session.flush(timeout=0.01, wait=False).exception(SECONDS), QueueFullError)
        session.rollback()
        ticket = give(session, b"patient")[0]
        assert not ticket.wait(0.05)
        session.give_up()
        assert isinstance(ticket.exception(SECONDS), QueueFullError)
        session.rollback()
    session = queue.session()
    tickets = give(session, b"patient", b"behind")
    assert not tickets[0].wait(0.05)
    queue.close()
    assert [type(each.exception(0.0)) for each in tickets] == [QueueFullError, PrecedingFlushError]
    with pytest.raises(PrecedingFlushError):
        session.close()
    assert drain(open_queue()) == [b"full"]


@pytest.mark.parametrize("timeout", [Decimal("0.01"), Fraction(1, 100)], ids=str)
@pytest.mark.parametrize("wait", [True, False], ids=["waits", "ticket"])
def test_a_wait_for_room_of_any_number(open_queue: QueueFactory, timeout: Any, wait: bool) -> None:
    """A flush takes each kind of number as its timeout, also one that cannot be added to a time."""
    queue = open_queue(max_items=1, full="block")
    put(queue, b"full")
    with queue.session() as session:
        session.enqueue(b"late")
        with pytest.raises(QueueFullError):
            session.flush(timeout=timeout) if wait else session.flush(timeout=timeout, wait=False).result(SECONDS)
        session.rollback()


def test_rejected_items(open_queue: QueueFactory) -> None:
    """A flush with rejections is committed before the call returns, behind the tickets of the session."""
    queue = open_queue(dead_letter="dead", max_attempts=3)
    put(queue, b"good", b"bad", b"next")
    with queue.session() as session:
        assert session.flush(wait=False).done()
        for item in (b"good", b"bad", b"next"):
            assert session.dequeue() == item
            if item == b"bad":
                session.reject(item, "is bad", retry=False)
            ticket = session.flush(wait=False)
            assert ticket.done() or item != b"bad"
        assert ticket.result(SECONDS)
    assert drain(queue) == []
    queue.close()
    assert len(open_queue("dead")) == 1


def test_rejected_items_at_first(open_queue: QueueFactory) -> None:
    """A session may reject in its first flush. A flush that its marker skips takes nothing from a later rejection."""
    queue = open_queue(dead_letter="dead", max_attempts=3)
    put(queue, b"bad", b"worse")
    with queue.session() as session:
        assert session.dequeue() == b"bad"
        session.reject(b"bad", retry=False)
        assert session.flush(("batch", 1), wait=False).done()
        session.enqueue(b"again")
        skipped = session.flush(("batch", 1), wait=False)
        assert session.dequeue() == b"worse"
        session.reject(b"worse", retry=False)
        assert session.flush(wait=False).done() and skipped.result(0.0) is False
    queue.close()
    assert len(open_queue("dead")) == 2


def test_a_close_that_raises_ends_the_thread(open_queue: QueueFactory) -> None:
    """If the delay of a released item cannot be computed, ``close`` raises that error, and the thread ends."""

    def refuse(_: int) -> float:
        raise KeyError("no such delay")

    queue = open_queue(retry_delay_seconds=refuse)
    session = queue.session()
    give(session, b"a")[0].result(SECONDS)
    assert session.dequeue() == b"a"
    with pytest.raises(KeyError):
        session.close()
    assert session.closed and not pipeline.pipelines_of(queue._open())
    assert len(queue) == 1


def test_the_end_of_an_older_object_ends_no_thread(open_queue: QueueFactory) -> None:
    """To close a closed queue again does nothing, also if the queue was opened again and a flush waits for room."""
    older = open_queue()
    older.close()
    queue = open_queue(max_items=1, full="block")
    with queue.session() as session, queue.session() as other:
        give(session, b"a")[0].result(SECONDS)
        (ticket,) = give(session, b"b")
        older.close()
        assert not ticket.done()
        assert other.dequeue() == b"a"
        other.flush()
        assert ticket.result(SECONDS)
        (last,) = pipeline.pipelines_of(queue._open())
        assert other.dequeue() == b"b"
        other.flush()
        give(session, b"c")[0].result(SECONDS)
        assert pipeline.pipelines_of(queue._open()) == [last]
    drain(queue)


def test_tickets_of_several_sessions(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """Sessions of several threads do not wait for each other; each keeps its own order."""
    queue = open_queue()

    def work(name: int) -> None:
        with queue.session() as session:
            give(session, *(b"%d %d" % (name, n) for n in range(200)))

    for done in [threads.submit(work, name) for name in range(8)]:
        done.result(SECONDS)
    items = drain(queue)
    for name in range(8):
        assert [item for item in items if item.startswith(b"%d " % name)] == [b"%d %d" % (name, n) for n in range(200)]


def test_a_ticket_is_a_future(open_queue: QueueFactory) -> None:
    """``concurrent.futures`` and ``asyncio`` accept a ticket. It cannot be cancelled, and only the queue sets it."""
    queue = open_queue()
    with queue.session() as session:
        tickets = give(session, b"a", b"b")
        assert not tickets[0].cancel()
        assert wait_for_all(tickets, SECONDS).done == set(tickets)
        for setter in (partial(tickets[0].set_result, True), partial(tickets[0].set_exception, KeyError())):
            with pytest.raises(InvalidStateError):
                setter()

        async def wait() -> bool:
            return await asyncio.wrap_future(give(session, b"c")[0])

        assert asyncio.run(wait())
    assert drain(queue) == [b"a", b"b", b"c"]


def test_a_callback_must_not_wait_for_its_session(open_queue: QueueFactory) -> None:
    """A callback runs in the thread that commits: waiting for it there is refused; other sessions may be used."""
    gated = GatedDisk()
    queue = open_queue(disk=gated.disk)
    found: list[Any] = []
    with queue.session() as session:

        def call(_: Future[bool]) -> None:
            for wait in (session.flush, partial(session.flush, wait=False), session.rollback, queue.sync, queue.close):
                try:
                    wait()
                except ReentrantUseError as error:
                    found.append(type(error))
            put(queue, b"by the callback")
            found.append("done")

        gated.close()
        ticket = give(session, b"a")[0]
        ticket.add_done_callback(call)  # before the flush has ended: later, this thread would call it
        gated.gate.set()
        wait_for(lambda: "done" in found)
    assert found == [ReentrantUseError] * 5 + ["done"] and not queue.closed
    assert drain(queue) == [b"a", b"by the callback"]


def test_a_callback_that_would_end_its_thread_is_logged(
    open_queue: QueueFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """No error of a callback stops the callbacks and the flushes behind it. If the flush has ended before, the caller
    gets the error, unless it is an ``Exception``."""
    gated = GatedDisk()
    queue = open_queue(disk=gated.disk)
    called: list[Future[bool]] = []
    with queue.session() as session:
        tickets = collected(gated, session, b"second")
        for callback in (lambda _: sys.exit("in a callback"), called.append):
            tickets[0].add_done_callback(callback)
        gated.gate.set()
        assert [ticket.result(SECONDS) for ticket in tickets] == [True, True]
        assert called == [tickets[0]]
        assert caplog.text.count("SystemExit: in a callback") == 1
        with pytest.raises(SystemExit):
            tickets[0].add_done_callback(lambda _: sys.exit())
        tickets[0].add_done_callback(lambda ticket: ticket.result(SECONDS) and 1 / 0)
        assert "ZeroDivisionError" in caplog.text
    assert drain(queue) == [b"first", b"second"]


def test_code_that_interrupts_a_call_must_not_wait(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code in the middle of a commit, like a signal handler, may hand a flush over. To wait for one is refused: the
    pipeline may wait for that commit."""
    found: list[str] = []
    armed = False

    def interrupt(name: str) -> None:
        nonlocal armed
        if armed and name.startswith("commit.3") and threading.current_thread() is threading.main_thread():
            armed = False
            give(other, b"handed over")
            for wait in (other.flush, other.rollback, other.close, partial(give, other, b"one too many")):
                try:
                    wait()
                except ReentrantUseError:
                    found.append("refused")

    queue = open_queue(disk=replace(IN_CACHE, failpoint=interrupt))
    with queue.session() as session, queue.session() as other, monkeypatch.context() as patch:
        give(other, b"first")[0].result(SECONDS)
        patch.setattr(pipeline, "_WAITING_MAX", 1)
        session.enqueue(b"interrupted")
        armed = True
        assert session.flush()
        queue.sync()
        other.rollback()
    assert found == ["refused"] * 4
    assert drain(queue) == [b"first", b"interrupted", b"handed over"]


def test_a_transaction_over_several_queues_has_no_tickets(open_queue: QueueFactory) -> None:
    """``flush(wait=False)`` in a transaction over several queues is refused, and nothing is committed."""
    one, two = open_queue("one"), open_queue("two")
    with pytest.raises(ValueError, match="wait=True"), transaction(one, two) as (session, _):
        session.enqueue(b"a")
        session.flush(wait=False)
    assert len(one) == len(two) == 0


@pytest.mark.parametrize("step", ["__init__", "start"])  # the first one fails in a subinterpreter
def test_without_a_thread(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Where the process can have no further thread, the flush commits before it returns."""
    queue = open_queue()

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with queue.session() as session:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, step, refuse)
            assert give(session, b"a")[0].done()
        assert give(session, b"b")[0].result(SECONDS)
    assert drain(queue) == [b"a", b"b"]


def test_sync_without_syncs(open_queue: QueueFactory) -> None:
    """``sync`` makes everything durable that was committed with ``sync=False``: the log begins anew."""
    queue = open_queue(sync=False)
    put(queue, b"a")
    before = queue.stats().generation
    queue.sync()
    assert queue.stats().generation == before + 1


def test_explain_names_the_session_of_a_ticket(open_queue: QueueFactory) -> None:
    """Items that a flush under way has dequeued are shown as held by its session."""
    gated = GatedDisk()
    queue = open_queue(disk=gated.disk)
    put(queue, b"0", b"1")
    with queue.session("worker") as session:
        collected(gated, session)
        assert session.dequeue_many(2)
        session.flush(wait=False)
        assert [holder.session for use in queue.explain() for holder in use.holders if holder.items] == ["worker"]
        gated.gate.set()
        queue.sync()
        assert not [use for use in queue.explain() if use.holders]


def await_end_of_threads() -> None:
    """Wait until no thread of a session is left: it forgets its flushes a moment before it ends."""
    wait_for(lambda: all(each.name != pipeline.THREAD_NAME for each in threading.enumerate()))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dropped_session_finishes_its_flushes(open_queue: QueueFactory) -> None:
    """The flushes of a session that its user drops become durable, and its thread ends."""
    queue = open_queue()
    ticket = give(queue.session(), b"a", b"b")[-1]
    assert ticket.result(SECONDS)
    assert drain(queue) == [b"a", b"b"]
    await_end_of_threads()
    assert not pipeline.pipelines_of(queue._open())


def test_a_session_is_dropped_where_warnings_are_errors(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the warning about a dropped session is an error, its items are released all the same, and its thread ends."""
    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(unraisable.exc_type))
    queue = open_queue()
    session = queue.session()
    assert give(session, b"a", b"b")[-1].result(SECONDS)
    assert session.dequeue() == b"a"
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        del session
        gc.collect()
    assert seen == [ResourceWarning]
    assert drain(queue) == [b"a", b"b"]
    await_end_of_threads()
    assert not pipeline.pipelines_of(queue._open())


def test_an_interruption_behind_the_start_leaves_no_thread(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a signal handler interrupts the first flush when its thread has started, the session ends that thread."""
    queue = open_queue()
    session = queue.session()
    session.enqueue(b"a")
    shielded = queue._open().shielded

    def interrupted(call: Callable[[], object]) -> None:
        shielded(call)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(queue._open(), "shielded", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.flush(wait=False)
    session.close()
    assert not pipeline.pipelines_of(queue._open())
    assert len(queue) == 0


def test_a_flush_after_the_end_of_the_thread(open_queue: QueueFactory) -> None:
    """A flush that comes between the last look of the thread and the end of the queue fails, instead of waiting."""
    queue = open_queue()
    session = queue.session()
    give(session, b"a")[0].result(SECONDS)
    line = session._pipeline
    assert line is not None
    line.end()
    line.join()
    queue._open().closed = "closed by the test"
    try:
        ticket = give_late(session, b"late")
    finally:
        queue._open_queue.closed = None  # type: ignore[union-attr]
    assert isinstance(ticket.exception(0.0), ClosedError)
    session.rollback()


def give_late(session: Session, item: bytes) -> Ticket:
    """Hand an item over although the queue is closed, as a flush does that has passed the test before."""
    transaction = session._new()
    transaction.add([item])
    ticket = session._hand_over(transaction, None)
    assert ticket is not None
    return ticket


PROGRAM = """
import sys
from persistentqueue import PersistentQueue
queue = PersistentQueue(sys.argv[1])
session = queue.session()
for n in range(300):
    session.enqueue(b"%d" % n)
    session.flush(wait=False)
print("over")
"""


def test_the_end_of_a_process_waits(tmp_path: Path) -> None:
    """A process that ends without closing its session or its queue commits its flushes before."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / "queue")]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
    assert done.stdout == b"over\n"
    with PersistentQueue(tmp_path / "queue") as queue:
        assert drain(queue) == [b"%d" % n for n in range(300)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_gets_an_error(open_queue: QueueFactory) -> None:
    """In a forked child, a ticket of the parent that is not done has a ``ClosedError``, instead of waiting for ever."""
    gated = GatedDisk()
    queue = open_queue(disk=gated.disk)
    with queue.session() as session:
        tickets = collected(gated, session, b"second")
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.write(writing, b" ".join(type(each.exception(5.0)).__name__.encode() for each in tickets))
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        gated.gate.set()
        assert os.read(reading, 1000) == b"ClosedError ClosedError"
        os.close(reading)
        os.close(writing)
        assert [each.result(SECONDS) for each in tickets] == [True, True]
    assert drain(queue) == [b"first", b"second"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_keeps_outcomes(open_queue: QueueFactory) -> None:
    """In a forked child, a ticket that is done keeps its outcome, although flushes taken with it are under way."""
    gated, there, gates = GatedDisk(), threading.Semaphore(0), [threading.Event(), threading.Event()]
    queue = open_queue(disk=gated.disk)

    def hold(gate: threading.Event, _: object) -> None:
        """Keep the thread that commits until the gate opens."""
        there.release()
        assert gate.wait(SECONDS)

    with queue.session() as session:
        tickets = collected(gated, session)
        tickets[0].add_done_callback(partial(hold, gates[0]))  # before the flush has ended
        gated.gate.set()
        assert there.acquire(timeout=SECONDS)  # so the next ones are taken together
        for version in (2, 1, 3, 4):
            session.enqueue(b"%d" % version)
            tickets.append(session.flush(("m", version), wait=False))
        tickets[3].add_done_callback(partial(hold, gates[1]))
        gates[0].set()
        assert there.acquire(timeout=SECONDS)
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                errors = [each.exception(5.0) for each in tickets]
                outcomes = [
                    each.result() if error is None else error for each, error in zip(tickets, errors, strict=True)
                ]
                os.write(writing, "\n".join(f"{type(each).__name__} {each}" for each in outcomes).encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        gates[1].set()
        found = os.read(reading, 10_000).decode().splitlines()
        assert found[:4] == ["bool True", "bool True", "bool False", "bool True"]
        assert found[4].startswith("ClosedError ")
        os.close(reading)
        os.close(writing)
    assert drain(queue) == [b"first", b"2", b"3", b"4"]


def test_a_ticket_keeps_its_outcome_in_a_forked_child() -> None:
    """A ticket that has ended before a fork has the same result, or the same error, in the child."""
    ticket, error = Ticket(), ValueError("before")
    pipeline._fail(ticket, error)
    ended = pipeline.done(False)
    for each in (ticket, ended):
        each.abandon("the process has forked")
    assert ticket.exception(0.0) is error
    assert ended.result(0.0) is False

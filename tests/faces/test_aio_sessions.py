"""``aio`` sessions: flushes that are not waited for, delivery attempts, and transactions over several queues."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    ClosedError,
    CodecError,
    DeadLetter,
    PersistentQueue,
    PrecedingFlushError,
    QueueFullError,
    Session,
    Ticket,
    aio,
    codecs,
)
from persistentqueue.runtime import pipeline
from tests.api.test_tickets import GatedDisk
from tests.faces.test_aio import drain, put, run, until
from tests.faces.test_aio_cancelled import cancelled_everywhere
from tests.support.disks import call_on


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "queues"


def test_a_task_goes_on(place: Path) -> None:
    """A task gets tickets, goes on, and may await them. At the end of the block all are durable, in order."""

    async def main() -> None:
        async with aio.PersistentQueue[bytes](place, "orders") as queue:
            async with queue.session() as session:
                tickets: list[Ticket] = []
                for number in range(1000):
                    await session.enqueue(b"%d" % number)
                    tickets.append(await session.flush(wait=False))
                assert await asyncio.wrap_future(tickets[500]) is True and tickets[0].done()
                marked = await session.flush(("m", 1), wait=False)
                assert await asyncio.wrap_future(marked) and not await session.flush(("m", 1))
            assert all(ticket.result(0.0) for ticket in tickets)
            assert await drain(queue) == [b"%d" % number for number in range(1000)]

    run(main())


@pytest.mark.parametrize("connects", [False, True], ids=["owner", "connect"])
def test_a_session_of_tasks_puts_items_back(place: Path, connects: bool) -> None:
    """``put_back`` releases the items that were dequeued last, in their order, and ``extend`` is there in each process:
    a program of sessions runs with ``aio.PersistentQueue`` and with ``aio.connect``."""

    async def main() -> None:
        kind: Any = aio.connect if connects else aio.PersistentQueue
        async with kind(place, "jobs", max_attempts=5, dead_letter="dead") as queue, queue.session() as session:
            await put(queue, *(b"%d" % number for number in range(4)))
            assert await session.dequeue_many(3) == [b"0", b"1", b"2"]
            await session.reject(b"2")
            await session.extend()
            await session.put_back(2)
            for count in (2, -1):
                with pytest.raises(ValueError):
                    await session.put_back(count)
            await session.put_back(0)
            await session.flush()
            assert await queue.peek(4) == [b"1", b"2", b"3"]
            assert await session.dequeue() == b"1"
            await session.put_back()
            await session.close()
            with pytest.raises(ClosedError):
                await session.put_back()

    run(main())


def test_sessions_of_tasks_have_all_methods() -> None:
    """The sessions of ``aio`` have each method of a ``Session``, but for the two that serve an event loop."""
    needed = {name for name in dir(Session) if not name.startswith("_")} - {"dequeue_cached", "give_up"}
    for kind in (aio.Session, aio.ConnectedSession):
        assert needed <= set(dir(kind))


def test_tickets_that_wait_for_room_take_no_threads(place: Path) -> None:
    """Any number of sessions may end behind tickets that wait for room: the other calls of the queue go on."""

    async def main() -> None:
        async with aio.PersistentQueue[bytes](place, "orders", max_items=1, full="block") as queue:
            await put(queue, b"first")

            async def produce(number: int) -> None:
                async with queue.session() as session:
                    await session.enqueue(b"%d" % number)
                    await session.flush(wait=False)

            async def consume() -> None:
                async with queue.session() as session:
                    await session.dequeue(None)
                    await session.flush()

            producers = [asyncio.create_task(produce(number)) for number in range(8)]
            await until(lambda: core_of(queue).stats().waiting == 8)
            assert (await queue.stats()).waiting == 8
            for _ in range(9):
                await consume()
            await asyncio.gather(*producers)
            assert len(queue) == 0

    run(main())


@pytest.mark.parametrize("call", ["flush", "flush of a ticket", "rollback", "close"])
def test_a_call_behind_a_ticket_that_waits_for_room_is_cancelled(
    place: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A cancellation ends each call behind a ticket that waits for room. A flush leaves the ticket and the session as
    they were; a rollback or a close refuses the ticket."""
    monkeypatch.setattr(pipeline, "_WAITING_MAX", 1)

    async def main() -> None:
        async with aio.PersistentQueue[bytes](place, "orders", max_items=1, full="block") as queue:
            await put(queue, b"first")
            session = queue.session()
            await session.enqueue(b"1")
            tickets = [await session.flush(wait=False)]
            await until(lambda: core_of(queue).stats().waiting)
            if call == "flush of a ticket":
                await session.enqueue(b"2")
                tickets.append(await session.flush(wait=False))
            await session.enqueue(b"last")
            ways: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
                "flush": session.flush,
                "flush of a ticket": partial(session.flush, wait=False),
                "rollback": session.rollback,
                "close": session.close,
            }
            task = asyncio.create_task(ways[call]())
            done, _ = await asyncio.wait([task], timeout=0.02)
            assert not done
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if not call.startswith("flush"):
                assert isinstance(tickets[0].exception(0.0), QueueFullError)
                assert session.closed == (call == "close")
                return
            assert not tickets[0].done()
            consumer = asyncio.ensure_future(consume_all(queue, len(tickets) + 2))
            assert await session.flush() and all(ticket.result(0.0) for ticket in tickets)
            assert (await consumer)[-1] == b"last"
            await session.close()

    run(main())


def core_of(queue: aio.PersistentQueue[bytes]) -> PersistentQueue[bytes]:
    """Return the open synchronous queue."""
    assert queue._core is not None
    return queue._core


async def consume_all(queue: aio.PersistentQueue[bytes], count: int) -> list[bytes | None]:
    """Consume this number of items, each in a transaction of its own, and return them."""
    items = []
    for _ in range(count):
        async with queue.transaction() as session:
            items.append(await session.dequeue(None))
    return items


def test_timeouts_are_those_of_the_synchronous_session(place: Path) -> None:
    """A timeout may be of any length, and what is no number of seconds is named."""

    async def main() -> None:
        async with aio.PersistentQueue[bytes](place, "orders", full="block") as queue, queue.session() as session:
            unclear: Any = "soon"
            for call in (session.dequeue(unclear), session.dequeue_many(2, unclear), session.flush(timeout=unclear)):
                with pytest.raises(TypeError, match="number of seconds, not 'soon'"):
                    await call
            taking = asyncio.create_task(session.dequeue(10**400))
            await until(lambda: len(queue._watch))
            await put(queue, b"late")
            assert await taking == b"late"
            assert await session.flush(timeout=10**400)

    run(main())


def test_the_loop_goes_on_while_many_flushes_wait(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If so many flushes wait that another one must wait, only its task does. So it is with a rollback and a close."""
    monkeypatch.setattr(pipeline, "_WAITING_MAX", 2)
    gated = GatedDisk()

    async def main() -> None:
        async with call_on(gated.disk, aio.PersistentQueue[bytes], place, "orders") as queue:
            session, one, other = (queue.session() for _ in range(3))
            gated.close()
            for item in (b"1", b"2", b"3"):
                await session.enqueue(item)
                first = await session.flush(wait=False)
                if item == b"1":
                    await asyncio.to_thread(gated.waiting.wait)
            await session.enqueue(b"4")
            flush = asyncio.ensure_future(session.flush(wait=False))
            for each, item in ((one, b"5"), (other, b"6")):
                await each.enqueue(item)
                await each.flush(wait=False)
            rollback, close = asyncio.ensure_future(one.rollback()), asyncio.ensure_future(other.close())
            done, _ = await asyncio.wait([flush, rollback, close], timeout=0.05)
            assert not done and not first.done()
            gated.gate.set()
            assert await asyncio.wrap_future(await flush) is True
            await asyncio.gather(rollback, close, session.close())
            assert sorted(await drain(queue)) == [b"1", b"2", b"3", b"4", b"5", b"6"]

    run(main())


def test_a_flush_that_fails(place: Path) -> None:
    """The error of a flush is that of its ticket, and the end of the block raises it unless the block was rolled
    back."""

    async def main() -> None:
        async with aio.PersistentQueue[bytes](place, "orders", max_items=1) as queue:
            with pytest.raises(PrecedingFlushError):
                async with queue.session() as session:
                    await session.enqueue_many([b"1", b"2"])
                    ticket = await session.flush(wait=False)
                    with pytest.raises(QueueFullError):
                        await asyncio.wrap_future(ticket)
                    with pytest.raises(PrecedingFlushError):
                        await session.flush(wait=False)
            with pytest.raises(KeyError):
                async with queue.session() as session:
                    await session.enqueue_many([b"1", b"2"])
                    await session.flush(wait=False)
                    raise KeyError
            async with queue.session() as session:
                await session.enqueue_many([b"1", b"2"])
                await session.flush(wait=False)
                await session.rollback()
                await session.enqueue(b"3")
                assert await asyncio.wrap_future(await session.flush(wait=False))
            assert await drain(queue) == [b"3"]

    run(main())


def test_a_cancelled_wait_for_a_ticket(place: Path) -> None:
    """A cancellation ends the wait for a ticket, and the flush goes on."""
    gated = GatedDisk()

    async def main() -> None:
        async with (
            call_on(gated.disk, aio.PersistentQueue[bytes], place, "orders") as queue,
            queue.session() as session,
        ):
            gated.close()
            await session.enqueue(b"1")
            ticket = await session.flush(wait=False)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(ticket), 0.01)
            gated.gate.set()
            assert await asyncio.wrap_future(ticket)
            assert await drain(queue) == [b"1"]

    run(main())


def test_a_flush_behind_a_ticket_that_waits_for_room(place: Path) -> None:
    """A flush waits for the tickets of its session, and not in the way of other tasks, which make room for them."""

    async def main() -> None:
        opening = aio.PersistentQueue[bytes](place, "orders", max_items=1, full="block")
        async with opening as queue, queue.session() as session, queue.session() as other:
            for item in (b"1", b"2"):
                await session.enqueue(item)
                await session.flush(wait=False)
            await session.enqueue(b"3")
            flush = asyncio.ensure_future(session.flush())
            done, _ = await asyncio.wait([flush], timeout=0.05)
            assert not done
            taken: list[bytes | None] = []
            while len(taken) < 3:
                taken.append(await other.dequeue(timeout=None))
                await other.flush()
            assert await flush and taken == [b"1", b"2", b"3"]

    run(main())


# --- delivery attempts ------------------------------------------------------------------------------------------------

COUNTING: dict[str, Any] = {"max_attempts": 2, "dead_letter": "dead"}


async def letters(queue: aio.PersistentQueue[Any]) -> list[DeadLetter]:
    return [DeadLetter.decode(each) async for each in queue.dead_letters.browse()]


def test_a_rejected_item_comes_again_and_then_becomes_a_dead_letter(place: Path) -> None:
    """A rejected item is delivered again until its attempts are used up. Then it is a dead letter with the last reason,
    and ``requeue`` brings it back."""

    async def main() -> None:
        async with aio.PersistentQueue(place, "jobs", **COUNTING) as queue:
            await put(queue, b"bad", b"good")
            async with queue.session() as session:
                assert await session.dequeue_many(9) == [b"bad", b"good"]
                await session.reject(b"bad", "first")
                assert await session.flush() and len(queue) == 1
                assert await session.dequeue(None) == b"bad"
                with pytest.raises(ValueError, match="no such item"):
                    await session.reject(b"good")
                await session.reject(b"bad", "second")
                assert await session.flush()
            (letter,) = await letters(queue)
            assert (letter.item, letter.reason, letter.attempts) == (b"bad", "second", 2)
            assert queue.dead_letters is queue.dead_letters and await queue.requeue() == 1
            assert await drain(queue) == [b"bad"]
            dead = queue.dead_letters
        assert dead.closed and queue.closed

    run(main())


@pytest.mark.parametrize("kind", ["session", "queue"])
def test_a_function_of_delays_that_ends_ends_no_loop(place: Path, kind: str) -> None:
    """A ``retry_delay_seconds`` that raises ``StopIteration`` makes the call raise ``RuntimeError``, and never hang.
    The next call has its effect."""
    delays: Iterator[float] = iter(())

    async def main() -> None:
        nonlocal delays
        settings: Any = {"codec": codecs.JSON, "retry_delay_seconds": lambda _: next(delays)}
        if kind == "queue":
            async with aio.Queue(place / "jobs", **settings) as queue:
                await queue.put("job")
                job = await queue.get()
                with pytest.raises(RuntimeError, match=r"raised StopIteration\(\)") as raised:
                    await queue.reject(job)
                delays = repeat(0.0)
                await queue.reject(job)
                assert await queue.get() == "job"
        else:
            async with aio.PersistentQueue(place, "jobs", **settings) as jobs, jobs.session() as session:
                await put(jobs, "job")
                assert await session.dequeue() == "job"
                with pytest.raises(RuntimeError, match=r"raised StopIteration\(\)") as raised:
                    await session.reject("job")
                delays = repeat(0.0)
                await session.reject("job")
                await session.flush()
                assert await session.dequeue(None) == "job"
                await session.flush()
        assert isinstance(raised.value.__cause__, StopIteration)

    run(main())


def test_an_exception_buries_items_at_their_last_attempt(place: Path) -> None:
    """An exception that leaves the block buries held items without attempts left; a cancellation and a plain end only
    release them."""

    async def main() -> None:
        async with aio.PersistentQueue(place, "jobs", max_attempts=1, dead_letter="dead") as queue:
            await put(queue, b"x")
            with pytest.raises(KeyError):
                async with queue.transaction() as session:
                    await session.dequeue()
                    raise KeyError("k")
            assert [each.reason for each in await letters(queue)] == ["KeyError: 'k'"] and not len(queue)
        async with aio.PersistentQueue(place, "jobs", **COUNTING) as queue:
            await queue.dead_letters.clear()
            await put(queue, b"y")
            with pytest.raises(asyncio.CancelledError):
                async with queue.transaction() as session:
                    assert await session.dequeue() == b"y"
                    raise asyncio.CancelledError
            async with queue.session() as session:
                assert await session.dequeue() == b"y"
                await session.rollback()
                assert await session.dequeue() is None
            assert [each.attempts for each in await letters(queue)] == [2]

    run(main())


def test_a_session_with_a_last_attempt_gets_nothing_more_at_once(place: Path) -> None:
    """A session that holds an item gets None at once if its own item is at its last attempt, or if the next one is."""

    async def main() -> None:
        async with aio.PersistentQueue(place, "jobs", **COUNTING) as queue:
            await put(queue, b"1", b"2")
            async with queue.session() as one, queue.session() as other:
                assert await one.dequeue_many(2) == [b"1", b"2"]
                await one.rollback()
                assert await one.dequeue(None) == b"1"
                assert await one.dequeue(None) is None
                assert await other.dequeue(None) == b"2"
                assert await other.dequeue_many(3, 9.0) == []
                await one.flush()
                await put(queue, b"3")
                assert await one.dequeue(None) == b"3"
                await other.reject(b"2", "no")
                await other.flush()
                await put(queue, b"4")
                assert await other.dequeue() == b"4"
                await other.rollback()
                assert await one.dequeue(None) is None  # 4 is next, at its last attempt
                await one.flush()
                assert await one.dequeue(None) == b"4"
                await one.flush()
            assert [each.item for each in await letters(queue)] == [b"2"]

    run(main())


def test_a_waiting_session_that_holds_an_item_gets_the_next_one(place: Path) -> None:
    """A session that holds an item waits for the next one, and passes over what another session takes meanwhile."""

    async def main() -> None:
        async with aio.PersistentQueue(place, "jobs", **COUNTING) as queue:
            await put(queue, b"1")
            async with queue.session() as one, queue.session() as other:
                assert await one.dequeue() == b"1"
                waiting = asyncio.create_task(one.dequeue(None))
                late = asyncio.create_task(other.dequeue(None))
                await asyncio.sleep(0)
                await put(queue, b"2", b"3")
                assert (await waiting, await late) == (b"2", b"3")
                last = asyncio.create_task(other.dequeue(None))
                await asyncio.sleep(0)
                await one.rollback()
                assert await last is None  # 1 is at its last attempt
                await other.flush()

    run(main())


def test_a_delayed_item_wakes_a_waiting_task(place: Path) -> None:
    """A rolled back item is ready again after its delay. A task that waits gets it then, and no timer of its own."""

    async def main() -> None:
        async with aio.PersistentQueue(place, "jobs", retry_delay_seconds=1.0) as queue:
            await put(queue, b"x")
            async with queue.session() as session:
                assert await session.dequeue() == b"x"
                await session.rollback()
                assert (await queue.stats()).delayed == 1 and not len(queue)
                assert await session.dequeue(None) == b"x"
                await session.reject(b"x", delay_seconds=0.0)
                await session.flush()
                assert await session.dequeue() == b"x"
                with pytest.raises(ValueError, match="dead-letter queue"):
                    await session.reject(b"x", retry=False)
                await session.flush()
            with pytest.raises(ValueError, match="no dead letters"):
                await queue.requeue()
        async with aio.PersistentQueue(place, "jobs") as queue, queue.session() as session:
            with pytest.raises(ValueError, match="does not count attempts"):
                await session.reject(b"x")

    run(main())


def test_an_item_that_the_codec_refuses_is_rejected(place: Path) -> None:
    """``reject`` takes the ``CodecError`` of an item. Its text without the advice is the reason of the dead letter."""

    async def main() -> None:
        async with aio.PersistentQueue(place, "jobs") as queue:
            await put(queue, b"{oops", b"1")
        async with aio.PersistentQueue(place, "jobs", codec=codecs.JSON, **COUNTING) as typed:
            async with typed.session() as session:
                with pytest.raises(CodecError) as refused:
                    await session.dequeue(None)
                await session.reject(refused.value, retry=False)
                await session.flush()
                assert await session.dequeue(None) == 1
                await session.flush()
            (letter,) = await letters(typed)
            assert letter.item == b"{oops" and letter.reason == refused.value.problem

    run(main())


def test_a_subscription_counts_attempts_for_itself(place: Path) -> None:
    """Each subscription counts its own attempts, delivers again, and buries its own items."""

    async def main() -> None:
        async with aio.PersistentQueue(place, "jobs", fan_out=True, **COUNTING) as queue:
            first, second = await queue.subscribe("first"), await queue.subscribe("second")
            await put(queue, b"x")
            for _ in range(2):
                async with first.session() as session:
                    assert await session.dequeue(None) == b"x"
                    await session.reject(b"x", "no")
                    await session.flush()
            async with second.transaction() as session:
                assert await session.dequeue(None) == b"x"
            assert [(each.subscription, each.attempts) for each in await letters(queue)] == [("first", 2)]

    run(main())


def test_queues_share_a_dead_letter_queue(place: Path) -> None:
    """Several queues may bury in one open queue, of ``aio`` or synchronous, which they leave open."""

    async def main() -> None:
        async with aio.PersistentQueue[bytes](place, "dead") as dead:
            for name in ("a", "b"):
                async with aio.PersistentQueue(place, name, dead_letter=dead) as queue:
                    await put(queue, b"x")
                    async with queue.session() as session:
                        await session.dequeue()
                        await session.reject(b"x", retry=False)
                        await session.flush()
                    assert queue.dead_letters is dead
            assert len(dead) == 2
        with PersistentQueue(place, "dead") as core:
            async with aio.PersistentQueue(place, "a", dead_letter=core) as queue:
                with pytest.raises(ValueError, match="was passed as dead_letter"):
                    _ = queue.dead_letters
                assert await queue.requeue(1) == 1
            assert len(core) == 1
        with pytest.raises(ClosedError):
            await aio.PersistentQueue(place, "a", dead_letter=dead).open()

    run(main())


def test_a_full_dead_letter_queue_refuses_the_flush(place: Path) -> None:
    """A flush that must bury an item never waits for room. It raises ``QueueFullError``, and the session keeps all."""

    async def main() -> None:
        async with aio.PersistentQueue[bytes](place, "dead", max_items=1) as dead:
            await put(dead, b"other")
            async with aio.PersistentQueue(place, "a", dead_letter=dead, max_items=9, full="block") as queue:
                await put(queue, b"x")
                async with queue.session() as session:
                    assert await session.dequeue() == b"x"
                    await session.reject(b"x", retry=False)
                    with pytest.raises(QueueFullError):
                        await session.flush()
                    await dead.clear()
                    assert await session.flush() and len(dead) == 1

    run(main())


@pytest.mark.parametrize("waits", [False, True])
def test_cancelled_at_any_await_of_a_counting_session(place: Path, waits: bool) -> None:
    """If any await of a session is cancelled, its item is there once: ready, done or a dead letter. None stays held.

    No item is delivered more than ``max_attempts`` times.
    """

    async def main() -> None:
        async with aio.PersistentQueue(place, "jobs", **COUNTING) as queue:
            deliveries: list[bytes] = []

            async def begin() -> None:
                await queue.clear()
                await queue.dead_letters.clear()
                deliveries.clear()
                await put(queue, b"1", b"2")

            async def work(_: None) -> None:
                async with queue.session() as session:
                    items = await session.dequeue_many(2, None if waits else 0)
                    deliveries.extend(items)
                    await session.reject(items[0], "bad", retry=waits)
                    await session.flush()

            async def look(_: None, was_cancelled: bool) -> None:
                stats = await queue.stats()
                assert stats.held == 0 and stats.delayed == 0
                ready = [item async for item in queue.browse()]
                dead = [each.item for each in await letters(queue)]
                done = [b"2"] if b"2" not in ready else []
                assert sorted(ready + dead + done) == [b"1", b"2"]
                for item in ready:
                    for _attempt in range(3):
                        async with queue.session() as session:
                            got = await session.dequeue()
                            deliveries.extend([got] if got is not None else [])
                            await session.rollback()
                    assert deliveries.count(item) <= 2
                assert not len(queue)

            assert await cancelled_everywhere(begin, work, look) >= 3

    run(main())


def test_attempts_of_killed_processes_count(place: Path) -> None:
    """A process that is killed with an item has used an attempt. After ``max_attempts`` of them, the item is a dead
    letter and was delivered exactly so often."""
    program = f"""
import asyncio, os, signal
from persistentqueue import aio

async def main():
    async with aio.PersistentQueue({str(place)!r}, "jobs", max_attempts=2, dead_letter="dead") as queue:
        async with queue.session() as session:
            item = await session.dequeue()
            print(item, flush=True)
            if item is not None:
                os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    with PersistentQueue(place, "jobs") as queue, queue.transaction() as session:
        session.enqueue(b"x")
    found = [run_program(program) for _ in range(3)]
    assert found == ["b'x'", "b'x'", "None"]
    with PersistentQueue(place, "dead") as dead:
        assert [DeadLetter.decode(each).attempts for each in dead.browse()] == [2]


def run_program(program: str) -> str:
    """Run the program in a process of its own, and return what it has printed."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stdout.strip()


# --- transactions over several queues ---------------------------------------------------------------------------------


def test_a_transaction_over_queues_is_flushed_as_one(place: Path) -> None:
    """At the end of the block all sessions are committed, those of subscriptions too; ``flush`` of one flushes all. The
    marker is recorded in the queue that was asked."""

    async def main() -> None:
        async with aio.PersistentQueue(place, "a", fan_out=True) as a, aio.PersistentQueue(place, "b") as b:
            consumer = await a.subscribe("s")
            await put(a, b"1", b"2")
            async with aio.transaction(consumer, b, name="mine") as (one, other):
                assert one.name == other.name == "mine"
                item = await one.dequeue(None)
                assert item == b"1"
                await other.enqueue_many([b"done", item])
                assert await other.flush(("m", 1)) and b.marker("m") == 1 and len(consumer) == len(b) - 1 == 1
                assert await one.dequeue_many(9) == [b"2"]
                assert not await other.flush(("m", 1)) and len(consumer) == 1
                assert await one.dequeue() == b"2"
                with pytest.raises(ValueError, match="has no tickets"):
                    await one.flush(wait=False)
                with pytest.raises(ValueError, match="never waits for room"):
                    await one.flush(timeout=1.0)
                await other.enqueue(b"2")
            assert len(consumer) == 0 and await drain(b) == [b"done", b"1", b"2"]
            async with aio.transaction(b) as (alone,):
                await alone.enqueue(b"x")
            assert len(b) == 1

    run(main())


def test_an_exception_rolls_all_sessions_back(place: Path) -> None:
    """An exception of the block rolls all sessions back, comes out as it is, and buries items without attempts left."""

    async def main() -> None:
        async with (
            aio.PersistentQueue(place, "a", max_attempts=1, dead_letter="dead") as a,
            aio.PersistentQueue(place, "b") as b,
        ):
            await put(a, b"1")
            await put(b, b"2")
            with pytest.raises(KeyError):
                async with aio.transaction(a, b) as (one, other):
                    assert await one.dequeue() == b"1" and await other.dequeue() == b"2"
                    await other.enqueue(b"3")
                    raise KeyError("k")
            assert len(a) == 0 and len(b) == 1 and [each.item for each in await letters(a)] == [b"1"]
            with pytest.raises(ClosedError):
                async with aio.transaction(a, b) as (one, other):
                    await other.enqueue(b"3")
                    await a.close()
                    await b.close()

    run(main())


def test_arguments_of_a_transaction_that_make_no_sense(place: Path) -> None:
    """``aio.transaction`` refuses no queue, a synchronous one, one twice, ``sync=False`` and a closed one."""

    async def main() -> None:
        async with aio.PersistentQueue(place, "a") as a, aio.PersistentQueue(place, "b", sync=False) as b:
            with pytest.raises(ValueError, match="needs a queue"):
                aio.transaction()
            with pytest.raises(TypeError, match="of aio"):
                aio.transaction(a, "b")  # type: ignore[call-overload]
            for pair, match in (((a, a), "twice"), ((a, b), "sync=False")):
                with pytest.raises(ValueError, match=match):
                    async with aio.transaction(*pair):
                        pass
            await b.close()
            with pytest.raises(ClosedError):
                async with aio.transaction(a, b):
                    pass

    run(main())


def test_cancelled_at_any_await_of_a_transaction(place: Path) -> None:
    """If any await of a transaction over two queues is cancelled, its item is in one queue, and none stays held."""

    async def main() -> None:
        async with aio.PersistentQueue(place, "a", memory_bytes=0) as a, aio.PersistentQueue(place, "b") as b:

            async def begin() -> None:
                await a.clear()
                await b.clear()
                await put(a, b"1")

            async def work(_: None) -> None:
                async with aio.transaction(a, b) as (one, other):
                    await other.enqueue_many([await one.dequeue(None) or b""])

            async def look(_: None, was_cancelled: bool) -> None:
                assert (await a.stats()).held == 0
                found = await a.peek(9), await b.peek(9)
                assert found in (([b"1"], []), ([], [b"1"])) and (was_cancelled or found[1])

            assert await cancelled_everywhere(begin, work, look) >= 3

    run(main())

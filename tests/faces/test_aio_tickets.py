"""``aio`` sessions whose flushes are not waited for: ``await session.flush(wait=False)``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from persistentqueue import PrecedingFlushError, QueueFullError, Ticket, aio
from persistentqueue.runtime import pipeline
from tests.api.test_tickets import GatedDisk
from tests.faces.test_aio import drain, run
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

"""Queues of many processes in an event loop: ``aio.connect``."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import HoldLostError, SessionLostError, UnflushedWarning, aio, codecs, connect
from persistentqueue.workers import WorkerSession

from ..conftest import QueueFactory


def test_two_loops_share_a_queue(tmp_path: Path) -> None:
    """An owner and a worker in event loops see each other's flushes, also through a subscription."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q", codec=codecs.JSON) as first:
            second = await aio.connect(tmp_path, "q", codec=codecs.JSON, serve="never")
            async with second:
                billing = await second.subscribe("billing")
                async with first.transaction() as session:
                    await session.enqueue_many([1, [2]])
                    await session.enqueue({"three": 3})
                assert await second.size() == 3
                async with second.session() as session, billing.session("bills") as bills:
                    assert await session.dequeue() == 1
                    assert await session.dequeue_many(5, timeout=None) == [[2], {"three": 3}]
                    await session.put_back(1)
                    assert await session.flush() is True
                    assert await bills.dequeue_many(5) == [1, [2], {"three": 3}]
                    assert (bills.name, billing.name) == ("bills", "billing")
                    assert await bills.flush() is True
                    assert await session.dequeue() == {"three": 3}
                    await session.rollback()
                assert await first.size() == 1

    asyncio.run(main())


def test_tasks_wait_beside_each_other(tmp_path: Path) -> None:
    """Many tasks wait for items at once, and a cancellation ends a wait without losing an item."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q") as queue:

            async def take() -> Any:
                async with queue.session() as session:
                    item = await session.dequeue(timeout=None)
                    await session.flush()
                    return item

            tasks = [asyncio.create_task(take()) for _ in range(6)]
            await asyncio.sleep(0)
            for task in tasks[:3]:
                task.cancel()
            for task in tasks[:3]:
                with pytest.raises(asyncio.CancelledError):
                    await task
            async with queue.transaction() as session:
                await session.enqueue_many([b"1", b"2", b"3"])
            assert sorted(await asyncio.gather(*tasks[3:])) == [b"1", b"2", b"3"]
            assert await queue.size() == 0

    asyncio.run(main())


def test_a_block_without_a_flush_warns_and_rolls_back(tmp_path: Path) -> None:
    """Leaving the block without a flush gives items back, with a warning; an exception does so without one."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q") as queue:
            async with queue.transaction() as session:
                await session.enqueue(b"1")
            with pytest.warns(UnflushedWarning, match="flush"):
                async with queue.session() as session:
                    assert await session.dequeue() == b"1"
            with pytest.raises(RuntimeError, match="stop"):
                async with queue.session() as session:
                    assert await session.dequeue() == b"1"
                    raise RuntimeError("stop")
            assert session.closed
            assert await queue.size() == 1

    asyncio.run(main())


def test_the_owner_of_a_loop_may_end(tmp_path: Path, open_queue: QueueFactory) -> None:
    """If the owner closes, a session that held an item learns it, and the loop's process takes over."""

    async def main() -> None:
        owner = connect(tmp_path, "q")
        with owner.transaction() as session:
            session.enqueue(b"1")
        async with await aio.connect(tmp_path, "q", hold_seconds=30) as queue, queue.session() as taking:
            assert await taking.dequeue() == b"1"
            await taking.extend()
            owner.close()
            with pytest.raises(SessionLostError):
                await taking.flush()
            assert await taking.dequeue() == b"1"
            assert await taking.flush() is True
            assert queue.core.owns

    asyncio.run(main())


def test_a_hold_ends_in_a_loop(tmp_path: Path) -> None:
    """With ``hold_seconds`` an item goes back, and the late flush raises ``HoldLostError``."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q", hold_seconds=0.05) as queue:
            async with queue.transaction() as session:
                await session.enqueue(b"1")
            async with queue.session() as slow, queue.session() as other:
                assert await slow.dequeue() == b"1"
                assert await other.dequeue(timeout=30) == b"1"
                await other.flush()
                with pytest.raises(HoldLostError):
                    await slow.flush()
                await slow.rollback()

    asyncio.run(main())


def test_a_cancelled_flush_waits_for_no_room(tmp_path: Path) -> None:
    """A cancellation ends the wait of a flush for room, and the session keeps its items."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q", max_items=1, full="block") as queue:
            async with queue.transaction() as session:
                await session.enqueue(b"1")
            async with queue.session() as full, queue.session() as other:
                await full.enqueue(b"2")
                waiting = asyncio.create_task(full.flush())
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                assert await other.dequeue() == b"1"
                await other.flush()
                assert await full.flush() is True
            assert await queue.size() == 1

    asyncio.run(main())


def test_a_cancelled_dequeue_releases_any_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an item comes while its task is cancelled, it is released, also an item that is None."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q", codec=codecs.JSON) as queue:
            async with queue.transaction() as session:
                await session.enqueue(None)
            async with queue.session() as session:
                take, taken, go_on = session._core.dequeue, threading.Event(), threading.Event()

                def slow(timeout: float | None) -> Any:
                    item = take(timeout)
                    taken.set()
                    assert go_on.wait(60)
                    return item

                monkeypatch.setattr(WorkerSession, "dequeue", lambda _, timeout: slow(timeout))
                task = asyncio.create_task(session.dequeue())
                await asyncio.to_thread(taken.wait, 60)
                task.cancel()
                go_on.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert await queue.size() == 1

    asyncio.run(main())

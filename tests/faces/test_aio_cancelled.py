"""Tasks that are cancelled at every await where they can be: no item is lost, and no item stays held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    PersistentQueue,
    aio,
)
from persistentqueue.system.disk import DISK
from tests.support.disks import call_on
from tests.unit.runtime.test_open_queue import Gate

from .test_aio import SECONDS, CancelledAt, drain, put, run, until


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "queues"


async def cancelled_everywhere(
    begin: Callable[[], Awaitable[Any]],
    work: Callable[[Any], Coroutine[Any, Any, Any]],
    look: Callable[[Any, bool], Awaitable[None]],
) -> int:
    """Cancel the work at each of its suspensions in turn, in both ways, and return the number of suspensions.

    Each time, call ``begin`` for a fresh state, and ``look`` to check the result.
    """
    number = 0
    while True:
        for when_over in (False, True):
            state = await begin()
            job = CancelledAt(work(state), number, when_over=when_over)

            async def body(job: CancelledAt = job) -> None:
                await job

            task = asyncio.create_task(body())
            await asyncio.wait([task])
            await look(state, task.cancelled())
            if not task.cancelled():
                task.result()
            if job.suspensions <= number:
                return number
        number += 1


@pytest.mark.parametrize("settings", [{}, {"memory_bytes": 0}, {"max_items": 3, "full": "block"}], ids=str)
@pytest.mark.parametrize("waits", [False, True])
def test_cancelled_at_any_await_of_a_session(place: Path, settings: dict[str, Any], waits: bool) -> None:
    """If any await of a session is cancelled, each item is there once, as it was or processed, in order, and none stays
    held. Acknowledged work is done."""

    async def main() -> None:
        async with aio.PersistentQueue(place, **settings) as queue:
            acknowledged: list[bytes] = []

            async def begin() -> None:
                await queue.clear()
                acknowledged.clear()
                if not waits:
                    await put(queue, b"1", b"2", b"3")

            async def work(_: None) -> None:
                coming = asyncio.create_task(asyncio.sleep(0.002)) if waits else None
                if coming is not None:
                    coming.add_done_callback(
                        lambda _: filling.append(asyncio.create_task(put(queue, b"1", b"2", b"3")))
                    )
                async with queue.session() as session:
                    items = [await session.dequeue(None)] if waits else []
                    items += await session.dequeue_many(2 - len(items))
                    await session.enqueue_many([b"done " + item for item in items if item is not None])
                    await session.flush()
                    acknowledged.extend(item for item in items if item is not None)

            filling: list[asyncio.Task[None]] = []

            async def look(_: None, was_cancelled: bool) -> None:
                while waits and not filling:
                    await asyncio.sleep(0.001)
                if filling:
                    await filling.pop()
                items = [item async for item in queue.browse()]
                stats = await queue.stats()
                assert stats.held == 0 and stats.waiting == 0
                plain = [item for item in items if not item.startswith(b"done ")]
                done = [item.removeprefix(b"done ") for item in items if item.startswith(b"done ")]
                assert sorted(plain + done) == [b"1", b"2", b"3"] and plain == sorted(plain)
                assert set(acknowledged) <= set(done)
                if not was_cancelled:
                    assert done == acknowledged

            assert await cancelled_everywhere(begin, work, look) >= 2

    run(main())


@pytest.mark.parametrize("waits", [False, True])
def test_a_cancelled_dequeue_has_taken_nothing(place: Path, waits: bool) -> None:
    """A session whose dequeue was cancelled consumes no item that the dequeue did not return, even if a thread had read
    the items."""

    async def main() -> None:
        async with aio.PersistentQueue(place, memory_bytes=0) as queue:
            await put(queue, b"1", b"2", b"3")

            async def begin() -> None:
                pass

            async def work(_: None) -> None:
                async with queue.session() as session:
                    try:
                        await session.dequeue_many(2, None if waits else 0)
                    except asyncio.CancelledError:
                        await session.flush()
                        raise
                    await session.rollback()

            async def look(_: None, was_cancelled: bool) -> None:
                assert await queue.peek(9) == [b"1", b"2", b"3"]

            assert await cancelled_everywhere(begin, work, look) >= 1

    run(main())


def test_cancelled_at_any_await_of_opening_and_closing(place: Path) -> None:
    """If any await of ``async with`` is cancelled, the lock is free, no thread is left, and no item is lost."""

    async def main() -> None:
        acknowledged = [0]

        async def begin() -> set[threading.Thread]:
            return {each for each in threading.enumerate() if "aio" in each.name}

        async def work(_: set[threading.Thread]) -> None:
            async with aio.PersistentQueue(place) as queue:
                async with queue.transaction() as session:
                    await session.enqueue(b"x")
                acknowledged[0] += 1
                async with queue.session() as session:
                    await session.dequeue()
                    await session.rollback()

        async def look(threads: set[threading.Thread], _: bool) -> None:
            assert {each for each in threading.enumerate() if "aio" in each.name} == threads
            with PersistentQueue(place) as core:
                assert len(core) >= acknowledged[0]
                assert len(core) <= acknowledged[0] + 1
                acknowledged[0] = len(core)

        assert await cancelled_everywhere(begin, work, look) >= 3

    run(main())


def test_cancelled_at_any_await_of_what_looks(place: Path) -> None:
    """Browsing, statistics, subscriptions, compaction and maintenance can be cancelled at any await, and the queue goes
    on."""

    async def main() -> None:
        async with aio.PersistentQueue(place) as queue:
            await put(queue, b"1", b"2")

            async def begin() -> None:
                pass

            async def work(_: None) -> None:
                async for _item in queue.browse():
                    pass
                await queue.stats()
                subscription = await queue.subscribe("s")
                async with subscription.session() as session:
                    await session.dequeue()
                    await session.rollback()
                await queue.unsubscribe("s")
                await queue.compact()
                await queue.maintain()

            async def look(_: None, was_cancelled: bool) -> None:
                assert await queue.peek(9) == [b"1", b"2"]

            assert await cancelled_everywhere(begin, work, look) >= 6

    run(main())


def test_a_flush_is_cancelled_while_it_is_written(place: Path) -> None:
    """A flush that is cancelled while it is written raises ``CancelledError`` when the group is durable. The session is
    empty then, and its item is there once."""
    gate = Gate()

    async def main() -> None:
        async with call_on(replace(DISK, failpoint=gate.failpoint), aio.PersistentQueue, place) as queue:
            gate.armed = True
            async with queue.session() as session:
                await session.enqueue(b"x")
                flushing = asyncio.create_task(session.flush())
                await until(gate.reached.is_set)
                flushing.cancel()
                flushing.cancel()
                await asyncio.sleep(0.01)
                assert not flushing.done()
                gate.go_on.set()
                with pytest.raises(asyncio.CancelledError):
                    await flushing
                assert await session.flush()
            assert await drain(queue) == [b"x"]

    run(main())


def test_a_timeout_of_asyncio(place: Path) -> None:
    """``wait_for`` around a dequeue loses no item and returns none twice, however close the timeout is."""

    async def main() -> None:
        async with aio.PersistentQueue(place) as queue:
            got: list[bytes] = []
            done = asyncio.Event()

            async def consume() -> None:
                async with queue.session() as session:
                    while not done.is_set() or len(queue):
                        try:
                            item = await asyncio.wait_for(session.dequeue(None), 0.0005)
                        except (asyncio.TimeoutError, TimeoutError):
                            await session.rollback()
                            continue
                        await session.flush()
                        if item is not None:
                            got.append(item)

            consumers = [asyncio.create_task(consume()) for _ in range(4)]
            for n in range(200):
                await put(queue, b"%d" % n)
            done.set()
            await asyncio.gather(*consumers)
            assert sorted(got, key=int) == [b"%d" % n for n in range(200)]

    asyncio.run(asyncio.wait_for(main(), SECONDS))

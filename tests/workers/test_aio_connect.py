"""Queues of many processes in an event loop: ``aio.connect``."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    ClosedError,
    CodecError,
    DeadLetter,
    HoldLostError,
    PersistentQueue,
    QueueFullError,
    SessionInUseError,
    SessionLostError,
    SubscriptionNotFoundError,
    Ticket,
    UnflushedWarning,
    aio,
    codecs,
    connect,
)
from persistentqueue.runtime import session_state
from persistentqueue.serving import calls
from persistentqueue.workers import SharedQueue, WorkerSession
from persistentqueue.workers.owner import Owner

from ..conftest import QueueFactory
from ..support.limits import SECONDS
from .test_prefetch import calls_of


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


def test_a_connection_that_is_not_awaited_says_so(tmp_path: Path) -> None:
    """A call of the queue before ``await`` raises an error with the two ways to connect, and the connection is good."""

    async def main() -> None:
        connecting: Any = aio.connect(tmp_path, "q")
        with pytest.raises(AttributeError, match="has no session: write queue = await aio"):
            connecting.session()
        async with connecting as queue:
            assert await queue.size() == 0

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


def test_connect_is_awaited_or_is_a_block(tmp_path: Path) -> None:
    """``aio.connect`` can be awaited, be a task, or be an ``async with`` block, which closes the queue at its end."""

    async def main() -> None:
        async with aio.connect(tmp_path, "q") as queue, queue.transaction() as session:
            await session.enqueue(b"x")
        assert queue.closed
        with pytest.raises(KeyError):
            async with aio.connect(tmp_path, "q") as queue:
                raise KeyError
        assert queue.closed
        with pytest.warns(UnflushedWarning) as caught:
            async with aio.connect(tmp_path, "q") as queue:
                session = queue.session()
                await session.enqueue(b"z")
        assert [each.filename for each in caught] == [__file__]
        for queue in (
            await aio.connect(tmp_path, "q"),
            await asyncio.create_task(aio.connect(tmp_path, "q")),
            await asyncio.wait_for(aio.connect(tmp_path, "q"), 60.0),
        ):
            assert await queue.size() == 1
            await queue.close()
        with pytest.raises(TypeError, match="colour"):
            async with aio.connect(tmp_path, "q", colour="blue"):  # type: ignore[call-arg]
                pass
        aio.connect(tmp_path, "q").close()

    asyncio.run(main())


def test_a_close_that_loses_items_warns(tmp_path: Path) -> None:
    """If a session has not flushed what it has enqueued, the close of its queue warns. It does not for a session that
    only holds items, nor if an exception leaves the block of the queue."""

    async def main() -> None:
        queue = await aio.connect(tmp_path, "q", dead_letter="dead")
        holding, session, grave = queue.session(), queue.session(), queue.dead_letters.session()
        await session.enqueue_many([b"x", b"y"])
        await session.flush()
        assert await holding.dequeue() == b"x"
        await session.enqueue(b"z")
        await grave.enqueue(b"letter")
        with pytest.warns(UnflushedWarning, match="was not flushed before its queue was closed") as caught:
            await queue.close()
        assert [each.filename for each in caught] == [__file__] * 2
        with pytest.raises(KeyError):
            async with await aio.connect(tmp_path, "q") as queue:
                session = queue.session()
                await session.enqueue(b"z")
                raise KeyError
        with pytest.warns(UnflushedWarning) as caught:
            async with await aio.connect(tmp_path, "q") as queue:
                session = queue.session()
                await session.enqueue(b"z")
        assert [each.filename for each in caught] == [__file__]
        async with await aio.connect(tmp_path, "q") as queue:
            assert await queue.size() == 2

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


def test_a_session_that_is_dropped_releases_its_items(tmp_path: Path) -> None:
    """A session that is garbage-collected ends its connection: its items are ready again, though the queue is open."""

    async def main() -> None:
        with PersistentQueue(tmp_path, "q", serve=True) as owner:
            async with aio.connect(tmp_path, "q", serve="never") as queue:
                async with queue.transaction() as session:
                    await session.enqueue(b"1")
                session = queue.session()
                assert await session.dequeue() == b"1"
                dropped = weakref.ref(session)
                del session
                gc.collect()
                assert dropped() is None
                assert owner.wait(SECONDS)

    asyncio.run(main())


def test_the_owner_of_a_loop_may_end(tmp_path: Path, open_queue: QueueFactory) -> None:
    """If the owner closes, a session goes on with the item that it holds, and the loop's process takes over."""

    async def main() -> None:
        owner = connect(tmp_path, "q")
        with owner.transaction() as session:
            session.enqueue(b"1")
        async with await aio.connect(tmp_path, "q", hold_seconds=30) as queue, queue.session() as taking:
            assert await taking.dequeue() == b"1"
            await taking.extend()
            owner.close()
            assert await taking.dequeue() is None
            assert await taking.flush() is True
            assert queue.core.owns

    asyncio.run(main())


def test_a_hold_ends_in_a_loop(tmp_path: Path) -> None:
    """With ``hold_seconds`` an item goes back, and the late flush raises ``HoldLostError``."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q", hold_seconds=0.05) as queue:
            async with queue.transaction() as session:
                await session.enqueue(b"1")
            patient = await aio.connect(tmp_path, "q", serve="never")
            async with patient, queue.session() as slow, patient.session() as other:
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


def test_a_timeout_hides_no_lost_session(tmp_path: Path) -> None:
    """If a session is lost while its dequeue is cancelled, the next call says so: no half of its work is committed."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q") as queue, queue.session() as session:
            await put(queue, b"job")
            assert await session.dequeue() == b"job"
            await lose_in_a_cancelled_dequeue(session)
            with pytest.raises(SessionLostError, match="held 1 item"):
                await session.enqueue(b"result")
            assert await session.flush() is True
            assert await queue.peek(9) == [b"job"]

    asyncio.run(main())


@pytest.mark.parametrize("rolls_back", [False, True])
def test_a_release_that_loses_the_session_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rolls_back: bool
) -> None:
    """If a session is lost while a cancelled dequeue releases its item, the next call says so, unless it is a
    rollback."""
    take, keep = WorkerSession.dequeue, WorkerSession.keep

    async def main() -> None:
        async with await aio.connect(tmp_path, "q") as queue, queue.session() as session:
            await put(queue, b"1", b"2")
            assert await session.dequeue() == b"1"
            taken, go_on = threading.Event(), threading.Event()

            def slow(core: WorkerSession[Any], timeout: float | None) -> Any:
                item = take(core, timeout)
                taken.set()
                assert go_on.wait(SECONDS)
                return item

            def lost(core: WorkerSession[Any], count: int) -> None:
                end_connection(session)
                keep(core, count)

            monkeypatch.setattr(WorkerSession, "dequeue", slow)
            monkeypatch.setattr(WorkerSession, "keep", lost)
            task = asyncio.create_task(session.dequeue())
            await asyncio.to_thread(taken.wait, SECONDS)
            task.cancel()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            if rolls_back:
                await session.rollback()
            else:
                with pytest.raises(SessionLostError, match="held 2 items"):
                    await session.flush()
            assert await session.flush() is True
            assert await queue.peek(9) == [b"1", b"2"]

    asyncio.run(main())


def test_an_item_of_a_cancelled_dequeue_is_released_without_an_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no owner is found while a cancelled dequeue releases its item, a later flush does not consume the item.

    The cancelled call does not look for an owner up to ``lock_timeout``.
    """
    take = WorkerSession.dequeue

    async def main() -> None:
        served = connect(tmp_path, "q")
        queue = await aio.connect(tmp_path, "q", serve="never", lock_timeout=SECONDS)
        await put(queue, b"1", b"2", b"3")
        session = queue.session()
        assert await session.dequeue() == b"1"
        taken, go_on = threading.Event(), threading.Event()

        def slow(core: WorkerSession[Any], timeout: float | None) -> Any:
            item = take(core, timeout)
            taken.set()
            assert go_on.wait(SECONDS)
            return item

        monkeypatch.setattr(WorkerSession, "dequeue", slow)
        task = asyncio.create_task(session.dequeue())
        await asyncio.to_thread(taken.wait, SECONDS)
        served.close()
        task.cancel()
        begun = time.monotonic()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begun < SECONDS / 2
        with connect(tmp_path, "q") as served:
            assert await session.flush() is True
            await queue.close()
            assert served.peek(9) == [b"2", b"3"]

    asyncio.run(main())


@pytest.mark.parametrize("is_told_before", [False, True])
def test_a_timeout_hides_no_lost_session_of_a_transaction(tmp_path: Path, is_told_before: bool) -> None:
    """If one of two sessions is lost while its dequeue is cancelled, a later call says so, at the latest their common
    flush. Nothing that was done before is committed."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "a") as a, await aio.connect(tmp_path, "b") as b:
            await put(a, b"job")
            with pytest.raises(SessionLostError, match="held 1 item"):
                async with aio.transaction(a, b) as (taking, putting):
                    assert await taking.dequeue() == b"job"
                    await lose_in_a_cancelled_dequeue(taking)
                    await putting.enqueue(b"result")
                    if is_told_before:
                        with pytest.raises(SessionLostError) as caught:
                            await taking.put_back(0)
                        await putting.flush()
                        raise caught.value
            assert (await a.peek(9), await b.peek(9)) == ([b"job"], [])

    asyncio.run(main())


async def lose_in_a_cancelled_dequeue(session: aio.ConnectedSession[Any]) -> None:
    """Cancel a dequeue of the session that waits, and end its connection meanwhile."""
    task = asyncio.create_task(session.dequeue(timeout=None))
    await until(lambda: is_taking(session))
    task.cancel()
    end_connection(session)
    with pytest.raises(asyncio.CancelledError):
        await task


def end_connection(session: aio.ConnectedSession[Any]) -> None:
    """End the connection, as the kernel does when the owner dies."""
    assert session._core._link is not None
    session._core._link.cut()


async def until(condition: Callable[[], object]) -> None:
    """Let the other tasks run until the condition holds."""
    end_seconds = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_seconds
        await asyncio.sleep(0)


async def put(queue: aio.ConnectedQueue[Any], *items: object) -> None:
    """Enqueue the items durably."""
    async with queue.transaction() as session:
        await session.enqueue_many(items)


async def drained(queue: aio.ConnectedQueue[Any] | aio.ConnectedSubscription[Any]) -> list[Any]:
    """Return all ready items, and consume them."""
    async with queue.transaction() as session:
        return await session.dequeue_many(1000)


def is_taking(session: aio.ConnectedSession[Any]) -> bool:
    """Return True if the thread of the session waits for the answer to a call."""
    link = session._core._link
    return link is not None and link.going is not None


def test_prefetch_in_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``prefetch`` a flush brings the next items, also in the process that owns the queue."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q", prefetch=True) as queue:
            await put(queue, *(b"%d" % number for number in range(4)))
            async with queue.session() as session:
                assert await session.dequeue() == b"0"
                made = calls_of(monkeypatch)
                for number in range(1, 4):
                    assert await session.flush() is True
                    assert await session.dequeue() == b"%d" % number
                assert made == ["Flush"] * 3
                await session.rollback()
            assert await drained(queue) == [b"3"]
        with pytest.raises(ValueError, match="exclude each other"):
            await aio.connect(tmp_path, "q", prefetch=True, hold_seconds=1)

    asyncio.run(main())


@asynccontextmanager
async def connected(path: Path, serve: Any) -> AsyncIterator[aio.ConnectedQueue[bytes]]:
    """Yield a queue whose owner is this object, or for ``never`` another one."""
    async with await aio.connect(path, "q") as owner, await aio.connect(path, "q", serve=serve) as other:
        yield owner if serve == "auto" else other


@pytest.mark.parametrize("serve", ["auto", "never"])
def test_calls_beside_sessions(tmp_path: Path, serve: Any) -> None:
    """The looks and calls of a queue have their effect at its owner, in the owner and elsewhere."""

    async def main() -> None:
        async with connected(tmp_path, serve) as queue:
            await put(queue, b"1", b"2", b"3")
            async with queue.session() as session:
                await session.enqueue(b"4")
                assert await session.flush(("moved", 7)) is True
            assert (await queue.marker("moved"), await queue.marker("other")) == (7, None)
            stats = await queue.stats()
            assert (await queue.size(), stats.ready, stats.enqueued) == (4, 4, 4)
            assert (await queue.peek(), await queue.peek(9)) == ([b"1"], [b"1", b"2", b"3", b"4"])
            with pytest.raises(ValueError, match="at least 0"):
                await queue.peek(-1)
            assert [use.live for use in await queue.explain()] == [4]
            assert await queue.wait() is True
            await queue.sync()
            await queue.trim()
            assert (await queue.compact(below=0.5)).segments == 0
            assert (await queue.maintain()).copied_bytes == 0
            await queue.resize(memory_bytes=1024, segment_bytes=1 << 20)
            assert (await queue.stats()).memory_bytes == 1024
            async with queue.session() as session:
                assert await session.dequeue() == b"1"
                assert [item async for item in queue.browse()] == [b"2", b"3", b"4"]
                assert [item async for item in queue.browse_all()] == [b"1", b"2", b"3", b"4"]
                await session.rollback()
            assert await queue.clear() == 4
            assert await queue.wait(0.01) is False
            assert (queue.name, queue.path, queue.closed) == ("q", str(tmp_path), False)
        assert queue.closed

    asyncio.run(main())


@pytest.mark.parametrize("serve", ["auto", "never"])
def test_calls_of_a_subscription(tmp_path: Path, serve: Any) -> None:
    """A subscription has a size, transactions, looks and waits of its own, until it is removed."""

    async def main() -> None:
        async with connected(tmp_path, serve) as queue:
            await put(queue, b"old")
            billing = await queue.subscribe("billing", start="latest")
            assert await billing.wait(0.01) is False
            await put(queue, b"1", b"2")
            assert (await billing.size(), await queue.size(), await billing.wait()) == (2, 3, True)
            assert [item async for item in billing.browse()] == [b"1", b"2"]
            async with billing.transaction("bills") as session:
                assert (session.name, await session.dequeue()) == ("bills", b"1")
            assert (await billing.size(), await billing.removed()) == (1, False)
            assert await queue.subscriptions() == ["billing"]
            await queue.unsubscribe("billing")
            assert (await billing.removed(), await billing.size()) == (True, 0)
            with pytest.raises(SubscriptionNotFoundError):
                await queue.unsubscribe("billing")

    asyncio.run(main())


def test_looks_at_many_items(tmp_path: Path) -> None:
    """A look returns all items, however many there are, and ends its connection if it is left early."""

    async def main() -> None:
        async with (
            await aio.connect(tmp_path, "q", codec=codecs.JSON) as owner,
            await aio.connect(tmp_path, "q", codec=codecs.JSON, serve="never") as queue,
        ):
            threads = set()

            def numbers() -> Iterator[int]:
                threads.add(threading.current_thread())
                yield from range(10_000)

            async with queue.transaction() as session:
                await session.enqueue_many(numbers())
            assert threads == {threading.current_thread()}
            assert [item async for item in queue.browse()] == list(range(10_000))
            looking = queue.browse()
            assert await anext(looking) == 0
            assert "browse" in {each.session for each in await asyncio.to_thread(owner.core.connections)}
            await looking.aclose()  # type: ignore[attr-defined]
            while "browse" in {each.session for each in await asyncio.to_thread(owner.core.connections)}:
                pass
            async with await aio.connect(tmp_path, "q") as plain:
                assert await plain.clear() == 10_000
                await put(plain, b"1", b"no json", b"2")
            found = []
            with pytest.raises(CodecError):
                async for item in queue.browse():
                    found.append(item)  # noqa: PERF401 - the items before the error
            assert found == [1]

    asyncio.run(main())


def test_dead_letters_in_a_loop(tmp_path: Path) -> None:
    """The dead-letter queue of a connected queue is one object, which is read, emptied, and closed with its queue."""

    async def main() -> None:
        settings: Any = {"max_attempts": 1, "dead_letter": "q.dead"}
        owner = await aio.connect(tmp_path, "q", **settings)
        queue = await aio.connect(tmp_path, "q", serve="never", **settings)
        async with owner, queue:
            await put(queue, b"bad", b"worse")
            for item in (b"bad", b"worse"):
                async with queue.transaction() as session:
                    assert await session.dequeue() == item
                    await session.reject(item, "no use")
            dead = queue.dead_letters
            assert dead is queue.dead_letters
            letters = [DeadLetter.decode(letter) async for letter in dead.browse()]
            assert [(each.item, each.reason) for each in letters] == [(b"bad", "no use"), (b"worse", "no use")]
            assert await queue.requeue(1) == 1
            assert [DeadLetter.decode(letter).item for letter in await drained(dead)] == [b"worse"]
            assert [DeadLetter.decode(letter).item for letter in await owner.dead_letters.peek()] == []
            assert await drained(queue) == [b"bad"]
        assert dead.closed
        with pytest.raises(ClosedError):
            _ = queue.dead_letters
        async with await aio.connect(tmp_path / "single") as single:
            with pytest.raises(ValueError, match="dead_letter="):
                _ = single.dead_letters

    asyncio.run(main())


def test_dead_letters_of_a_queue_without_a_name(tmp_path: Path) -> None:
    """The dead-letter queue of a queue without a name stands beside its directory."""

    async def main() -> None:
        async with await aio.connect(tmp_path / "q", max_attempts=1, dead_letter="dead") as queue:
            await put(queue, b"bad")
            async with queue.transaction() as session:
                assert await session.dequeue() == b"bad"
                await session.reject(b"bad", "no use")
            assert await queue.dead_letters.size() == 1
            assert queue.dead_letters.path == str(tmp_path)

    asyncio.run(main())


def test_a_flush_returns_a_ticket(tmp_path: Path) -> None:
    """``flush(wait=False)`` returns a ticket that is done, with the result of the flush."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q") as queue, queue.session() as session:
            for version, is_new in ((1, True), (1, False)):
                await session.enqueue(b"1")
                ticket = await session.flush(("moved", version), wait=False)
                assert isinstance(ticket, Ticket)
                assert ticket.done()
                assert await asyncio.wrap_future(ticket) is is_new
            assert await queue.size() == 1

    asyncio.run(main())


def test_a_session_is_for_one_task_at_a_time(tmp_path: Path) -> None:
    """A second call of a session during a call is refused, and the first one goes on."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q") as queue, queue.session() as session:
            taking = asyncio.create_task(session.dequeue(timeout=None))
            await until(lambda: is_taking(session))
            calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
                lambda: session.enqueue(b"1"),
                lambda: session.enqueue_many([b"1"]),
                session.dequeue,
                session.flush,
                session.rollback,
                session.close,
            ]
            for call in calls:
                with pytest.raises(RuntimeError, match="one task"):
                    await call()
            await put(queue, b"2")
            assert await taking == b"2"
            await session.flush()
            for _ in range(2):
                await session.close()
            assert session.closed

    asyncio.run(main())


def test_names_and_reprs(tmp_path: Path) -> None:
    """Sessions have the name of their task, and each object shows what it is."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q") as queue:
            billing = await queue.subscribe("billing")
            task = asyncio.current_task()
            assert task is not None
            async with queue.session() as session, billing.session() as bills, queue.session("mine") as mine:
                assert [each.name for each in (session, bills, mine)] == [task.get_name()] * 2 + ["mine"]
                await mine.enqueue(b"1")
                assert "'mine'" in repr(mine)
                assert "1 enqueued" in repr(mine)
                await mine.rollback()
            assert "closed" in repr(mine)
            assert repr(queue) == f"<aio.ConnectedQueue of <owned shared queue in {str(tmp_path / 'q')!r}>>"
            assert "'billing'" in repr(billing)
        assert "closed" in repr(queue)

    asyncio.run(main())


def test_a_wait_ends_with_its_task(tmp_path: Path) -> None:
    """A cancellation ends a wait at once, other waits go on, and the closing of the queue ends them."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q") as queue:
            billing = await queue.subscribe("billing")
            waits = [asyncio.create_task(each.wait()) for each in (queue, billing, queue, billing)]
            await until(lambda: len(queue.core._waiting) == 4)
            for wait in waits[:2]:
                wait.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await wait
            assert not any(wait.done() for wait in waits[2:])
            await put(queue, b"1")
            assert [await wait for wait in waits[2:]] == [True, True]
            await queue.clear()
            last = asyncio.create_task(queue.wait())
            await until(lambda: queue.core._waiting)
        with pytest.raises(ClosedError):
            await last
        for call in (queue.size(), queue.peek(), queue.wait(), queue.maintain(), anext(queue.browse())):
            with pytest.raises(ClosedError, match=r"^/.*: the queue is closed: connect again$"):
                await call
        await queue.close()

    asyncio.run(main())


@pytest.mark.parametrize("call", ["wait", "dequeue", "flush", "extend", "spill"])
def test_a_cancellation_ends_the_look_for_an_owner(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation ends a call that looks for an owner long before ``lock_timeout``, also beside other tasks that
    look."""
    looks: set[str] = set()
    look_once = Owner._connect

    def look(owner: Owner[bytes], hello: dict[str, Any]) -> Any:
        """Look for the owner, and note the name of a thread that has found none."""
        found = look_once(owner, hello)
        if found is None:
            looks.add(hello["name"])
        return found

    async def main() -> None:
        served = connect(tmp_path, "q")
        async with await aio.connect(tmp_path, "q", serve="never", lock_timeout=SECONDS) as queue:
            other, session = queue.session("other"), queue.session("session")
            await session.enqueue(b"1")
            served.close()
            monkeypatch.setattr(Owner, "_connect", look)
            calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
                "wait": queue.wait,
                "dequeue": partial(session.dequeue, None),
                "flush": session.flush,
                "extend": session.extend,
                "spill": partial(session.enqueue_many, [bytes(2**20)] * 30),
            }
            tasks = [asyncio.create_task(other.dequeue(None)), asyncio.create_task(calls[call]())]
            await until(lambda: looks == {"other", "wait" if call == "wait" else "session"})
            begun = time.monotonic()
            for task in reversed(tasks):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert time.monotonic() - begun < SECONDS / 2
            await session.rollback()

    asyncio.run(main())


class _Begins:
    """A codec whose ``encode`` begins a task in the event loop, and then waits for ``goes_on``."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self.begin, self.goes_on = begin, threading.Event()
        self.begun: list[Any] = []

    def encode(self, item: bytes, /) -> bytes:
        self.begun.append(self.begin())
        assert self.goes_on.wait(SECONDS)
        return item

    def decode(self, data: bytes, /) -> bytes:
        return data


def test_a_cancellation_stops_no_other_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled call ends no look for an owner of a task that its codec has begun, with a copy of its context."""
    looks: list[object] = []
    look_once = Owner._connect

    def look(owner: Owner[bytes], hello: dict[str, Any]) -> Any:
        looks.append(owner)
        return look_once(owner, hello)

    async def main() -> None:
        loop, is_cancelled = asyncio.get_running_loop(), asyncio.Event()

        async def dequeue() -> bytes | None:
            await is_cancelled.wait()
            return await queue.session().dequeue()

        codec = _Begins(lambda: asyncio.run_coroutine_threadsafe(dequeue(), loop))
        with connect(tmp_path, "q"):
            queue = await aio.connect(tmp_path, "q", codec=codec, serve="never", lock_timeout=SECONDS)
            session = queue.session()
            call = asyncio.create_task(session.enqueue(b"1"))
            await until(lambda: codec.begun)
            call.cancel()
            await asyncio.sleep(0)
            codec.goes_on.set()
            with pytest.raises(asyncio.CancelledError):
                await call
            await session.rollback()
        monkeypatch.setattr(Owner, "_connect", look)
        is_cancelled.set()
        await until(lambda: len(looks) > 1 or codec.begun[0].done())
        with connect(tmp_path, "q"):
            assert await asyncio.wrap_future(codec.begun[0]) is None
            await queue.close()

    asyncio.run(main())


CALLS: dict[str, Callable[[aio.ConnectedQueue[bytes]], Coroutine[Any, Any, object]]] = {
    "size": lambda queue: queue.size(),
    "peek": lambda queue: queue.peek(),
    "browse": lambda queue: anext(queue.browse()),  # type: ignore[arg-type]
    "stats": lambda queue: queue.stats(),
    "compact": lambda queue: queue.compact(),
    "dead letters": lambda queue: queue.dead_letters.size(),
}
"""Calls of a connected queue that look for its owner."""


@pytest.mark.parametrize("call", CALLS)
def test_a_timeout_ends_a_call_that_looks_for_an_owner(call: str, tmp_path: Path) -> None:
    """A timeout ends a call of a queue without an owner long before ``lock_timeout``, and the queue goes on."""

    async def main() -> None:
        with connect(tmp_path, "q", dead_letter="dead") as served:
            queue = await aio.connect(tmp_path, "q", serve="never", dead_letter="dead", lock_timeout=SECONDS)
            served.close()
            begun = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(CALLS[call](queue), 0.05)
            assert time.monotonic() - begun < SECONDS / 2
        with connect(tmp_path, "q", dead_letter="dead"):
            assert await queue.size() == 0
            await queue.close()

    asyncio.run(main())


@pytest.mark.parametrize("ending", ["block", "flush", "error"])
def test_a_timeout_ends_a_joint_flush_that_looks_for_an_owner(ending: str, tmp_path: Path) -> None:
    """A timeout ends the flush of a transaction over two queues, whose owner is gone, long before ``lock_timeout``.

    So it does at the end of a block, also at one with an error that the owner should learn.
    """
    options: dict[str, Any] = {"lock_timeout": SECONDS}
    counted = {**options, "dead_letter": "dead", "max_attempts": 3, "grace_seconds": 0}

    async def transact(
        a: aio.ConnectedQueue[bytes], b: aio.ConnectedQueue[bytes], served: list[SharedQueue[bytes]]
    ) -> None:
        async with aio.transaction(a, b) as (taking, putting):
            await putting.enqueue(b"1")
            if ending == "error":
                assert await taking.dequeue() == b"0"
            for queue in served:
                queue.close()
            if ending == "flush":
                await putting.flush()
            assert ending != "error"

    async def main() -> None:
        with connect(tmp_path, "a", **counted) as one, connect(tmp_path, "b", **options) as other:
            with one.transaction() as session:
                session.enqueue(b"0")
            a = await aio.connect(tmp_path, "a", serve="never", **counted)
            b = await aio.connect(tmp_path, "b", serve="never", **options)
            begun = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(transact(a, b, [one, other]), 0.05)
            assert time.monotonic() - begun < SECONDS / 2
        with connect(tmp_path, "a", **counted), connect(tmp_path, "b", **options):
            assert (await a.peek(9), await b.peek(9)) == ([b"0"], [])
            await a.close()
            await b.close()

    asyncio.run(main())


def test_a_timeout_ends_connect(tmp_path: Path) -> None:
    """A timeout ends ``connect`` to a queue without an owner long before ``lock_timeout``."""

    async def main() -> None:
        PersistentQueue(tmp_path, "q").close()
        begun = time.monotonic()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aio.connect(tmp_path, "q", serve="never", lock_timeout=SECONDS), 0.05)
        assert time.monotonic() - begun < SECONDS / 2

    asyncio.run(main())


def test_a_close_ends_the_look_for_an_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``dequeue`` that looks for an owner when its queue is closed raises ``ClosedError``, as one that waits does."""
    looks: list[object] = []
    look_once = Owner._connect

    def look(owner: Owner[bytes], hello: dict[str, Any]) -> Any:
        """Look for the owner, and note that there is none."""
        found = look_once(owner, hello)
        if found is None:
            looks.append(hello)
        return found

    async def main() -> None:
        served = connect(tmp_path, "q")
        async with await aio.connect(tmp_path, "q", serve="never", lock_timeout=SECONDS) as queue:
            session = queue.session()
            served.close()
            monkeypatch.setattr(Owner, "_connect", look)
            task = asyncio.create_task(session.dequeue(None))
            await until(lambda: bool(looks))
        with pytest.raises(ClosedError):
            await task

    asyncio.run(main())


@pytest.mark.parametrize("delay", ["raises", "returns text"])
def test_closing_with_a_function_of_delays_that_fails(tmp_path: Path, delay: str) -> None:
    """The closing of a queue raises no error of ``retry_delay_seconds``, warns of losses, and releases the items."""

    def delay_seconds(attempts: int) -> Any:
        if delay == "raises":
            raise LookupError(attempts)
        return "soon"

    async def main() -> None:
        queue = await aio.connect(tmp_path, "q", retry_delay_seconds=delay_seconds)
        await put(queue, b"1", b"2")
        sessions = [queue.session("1"), queue.session("2")]
        for session in sessions:
            assert await session.dequeue() is not None
            await session.enqueue(b"3")
        with pytest.warns(UnflushedWarning) as told:
            await queue.close()
        assert len(told) == 2
        assert [session.closed for session in sessions] == [True, True]
        with PersistentQueue(tmp_path, "q") as again:
            assert again.peek(3) == [b"1", b"2"]

    asyncio.run(main())


@pytest.mark.parametrize("holds", [False, True])
def test_closing_ends_waits_for_items(tmp_path: Path, holds: bool) -> None:
    """The closing of a queue, also a cancelled one, ends the wait of a task, and what it held is ready again."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q") as owner:
            queue = await aio.connect(tmp_path, "q", serve="never")
            session = queue.session()
            if holds:
                await put(owner, b"1")
                assert await session.dequeue() == b"1"
            taking = asyncio.create_task(session.dequeue(timeout=None))
            await until(lambda: is_taking(session))
            closing = asyncio.create_task(queue.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            with pytest.raises(SessionLostError if holds else ClosedError):
                await taking
            assert (queue.closed, session.closed) == (True, True)
            if holds:
                assert await owner.wait(60) is True
                assert await drained(owner) == [b"1"]

    asyncio.run(main())


def test_closing_gives_no_item_to_a_task_that_waits(tmp_path: Path) -> None:
    """The items that the closing of a queue releases come to no task that waits for one: its wait ends."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q") as owner:
            queue = await aio.connect(tmp_path, "q", serve="never")
            await put(owner, b"1", b"2")
            sessions = [queue.session() for _ in range(6)]
            holding = (sessions[0], sessions[-1])
            for session in holding:
                assert await session.dequeue() is not None
            taking = [asyncio.create_task(session.dequeue(timeout=None)) for session in sessions[1:-1]]
            await until(lambda: all(map(is_taking, sessions[1:-1])))
            await queue.close()
            for task in taking:
                with pytest.raises(ClosedError):
                    await task
            assert await owner.wait(60) is True
            assert await drained(owner) == [b"1", b"2"]

    asyncio.run(main())


def test_closing_ends_waits_for_room(tmp_path: Path) -> None:
    """A flush that waits for room when its queue is closed is refused, and commits nothing."""

    async def main() -> None:
        queue = await aio.connect(tmp_path, "q", max_items=1, full="block")
        await put(queue, b"1")
        session = queue.session()
        await session.enqueue(b"2")
        flushing = asyncio.create_task(session.flush())
        await until(lambda: is_taking(session))
        await queue.close()
        with pytest.raises(QueueFullError):
            await flushing
        async with await aio.connect(tmp_path, "q", max_items=1, full="block") as queue:
            assert await queue.peek(9) == [b"1"]

    asyncio.run(main())


def test_a_task_that_is_cancelled_twice_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second cancellation does not end the call before its thread: the item is released all the same."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "q") as queue:
            await put(queue, b"1")
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
                for _ in range(3):
                    task.cancel()
                    await asyncio.sleep(0)
                assert not task.done()
                go_on.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert session._core.held == 0
                assert await queue.size() == 1

    asyncio.run(main())


def test_a_transaction_over_connected_queues(tmp_path: Path) -> None:
    """``aio.transaction`` flushes sessions of connected queues and subscriptions together, or none of them."""

    async def main() -> None:
        async with (
            await aio.connect(tmp_path, "a") as a,
            await aio.connect(tmp_path, "b", max_items=2) as b,
            await aio.connect(tmp_path, "b", serve="never") as worker,
        ):
            await put(a, b"1", b"2", b"3")
            async with aio.transaction(a, worker, name="mover") as (taking, putting):
                await putting.enqueue(b"%s!" % await taking.dequeue())
                assert (taking.name, putting.name, await b.size()) == ("mover", "mover", 0)
            assert (await a.peek(9), await b.peek(9), taking.closed) == ([b"2", b"3"], [b"1!"], True)
            with pytest.raises(RuntimeError, match="stop"):
                async with aio.transaction(a, b) as (taking, putting):
                    await putting.enqueue(b"%s!" % await taking.dequeue())
                    raise RuntimeError("stop")
            with pytest.raises(QueueFullError):
                async with aio.transaction(a, b) as (taking, putting):
                    await putting.enqueue_many([b"%s!" % await taking.dequeue(), b"more"])
            with pytest.raises(ValueError, match="wait=True"):
                async with aio.transaction(a, b) as (taking, putting):
                    await taking.flush(wait=False)
            assert (await a.peek(9), await b.peek(9)) == ([b"2", b"3"], [b"1!"])
            everything = await a.subscribe("all")
            async with aio.transaction(everything, b) as (taking, putting):
                await putting.enqueue(b"%s!" % await taking.dequeue())
                assert await putting.flush(("moved", 1)) is True
                assert await taking.dequeue() == b"3"
                assert await putting.flush(("moved", 1)) is False
            assert (await everything.size(), await b.peek(9)) == (1, [b"1!", b"2!"])
            async with aio.transaction(everything) as (alone,):
                assert await alone.dequeue() == b"3"
            assert await everything.size() == 0
            assert await b.marker("moved") == 1

    asyncio.run(main())


def test_a_transaction_over_connected_queues_is_cancelled(tmp_path: Path) -> None:
    """A cancellation in the block rolls back the sessions of all connected queues at once."""

    async def main() -> None:
        async with await aio.connect(tmp_path, "a") as a, await aio.connect(tmp_path, "b") as b:
            await put(a, b"1")

            async def move() -> None:
                async with aio.transaction(a, b) as (taking, putting):
                    await putting.enqueue(b"%s!" % await taking.dequeue())
                    await putting.dequeue(timeout=None)

            task = asyncio.create_task(move())
            await until(lambda: b._sessions and is_taking(next(iter(b._sessions))))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not (a._sessions or b._sessions)
            assert (await a.size(), await b.size()) == (1, 0)

    asyncio.run(main())


def test_a_queue_is_closed_during_a_flush_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one of two queues is closed during their flush, the flush ends first, and both have it."""
    begun, go_on, refused = threading.Event(), threading.Event(), threading.Event()
    flush, close = session_state.flush_jointly, WorkerSession.close

    def slow(*arguments: Any) -> bool:
        begun.set()
        assert go_on.wait(60)
        return flush(*arguments)

    def refusing(session: WorkerSession[Any]) -> None:
        try:
            close(session)
        except SessionInUseError:
            refused.set()
            raise

    async def main() -> None:
        async with await aio.connect(tmp_path, "a") as a, await aio.connect(tmp_path, "b") as b:
            worker = await aio.connect(tmp_path, "b", serve="never")

            async def move() -> None:
                async with aio.transaction(a, worker) as (first, second):
                    await first.enqueue(b"1")
                    await second.enqueue(b"2")

            with monkeypatch.context() as patched:
                patched.setattr(calls, "flush_jointly", slow)
                patched.setattr(WorkerSession, "close", refusing)
                task = asyncio.create_task(move())
                await asyncio.to_thread(begun.wait, 60)
                closing = asyncio.create_task(worker.close())
                assert await asyncio.to_thread(refused.wait, 60)
                assert not closing.done()
                go_on.set()
                await asyncio.gather(closing, task)
            assert (await a.peek(), await b.peek()) == ([b"1"], [b"2"])

    asyncio.run(main())


def test_transactions_that_do_not_go_together(tmp_path: Path) -> None:
    """A transaction refuses queues that are opened differently, that come twice, or that are no queues."""

    async def main() -> None:
        async with (
            await aio.connect(tmp_path, "a") as a,
            await aio.connect(tmp_path / "other", "b") as b,
            aio.PersistentQueue(tmp_path, "c") as c,
        ):
            for mixed in ((a, c), (c, a), (await a.subscribe("all"), await c.subscribe("all"))):
                with pytest.raises(ValueError, match="opened 1 of 2"):
                    aio.transaction(*mixed)
            with pytest.raises(ValueError, match="twice"):
                await aio.transaction(a, a).__aenter__()
            with pytest.raises(ValueError, match="beside each other"):
                await aio.transaction(a, b).__aenter__()
            with pytest.raises(TypeError, match="of aio"):
                aio.transaction(a, a.core)  # type: ignore[call-overload]
            assert not a._sessions
        with pytest.raises(ClosedError):
            await aio.transaction(a, b).__aenter__()

    asyncio.run(main())


def test_a_connection_that_is_refused_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If ``connect`` is cancelled, the queue is closed again, and its lock is free."""
    opened, go_on = threading.Event(), threading.Event()
    open_queue = SharedQueue.open

    def slow(queue: SharedQueue[Any]) -> None:
        open_queue(queue)
        opened.set()
        assert go_on.wait(60)

    async def main() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(SharedQueue, "open", slow)
            task = asyncio.create_task(aio.connect(tmp_path, "q"))
            await asyncio.to_thread(opened.wait, 60)
            task.cancel()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with aio.PersistentQueue(tmp_path, "q", lock_timeout=0):
            pass

    asyncio.run(main())


def test_calls_need_no_thread_of_the_loop(tmp_path: Path) -> None:
    """A session ends, a wait ends and a queue is closed while all threads of the loop's executor are busy."""
    go_on = threading.Event()

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        busy = asyncio.create_task(asyncio.to_thread(go_on.wait, SECONDS))
        async with aio.connect(tmp_path) as queue:
            async with queue.session() as session:
                await session.enqueue(b"x")
                await session.flush()
            assert await queue.wait(0.1)
        assert not busy.done()
        go_on.set()
        assert await busy

    asyncio.run(asyncio.wait_for(main(), SECONDS))


def logging_shield(landing: asyncio.Future[Any]) -> asyncio.Future[Any]:
    """Do what ``asyncio.shield`` does from Python 3.14 on: behind a cancellation, log the error of the inner future."""
    outer: asyncio.Future[Any] = landing.get_loop().create_future()

    def end(inner: asyncio.Future[Any]) -> None:
        error = inner.exception()
        if outer.cancelled():
            if error is not None:
                inner.get_loop().call_exception_handler({"message": "in shielded future", "exception": error})
        elif error is not None:
            outer.set_exception(error)
        else:
            outer.set_result(inner.result())

    landing.add_done_callback(end)
    return outer


def test_a_cancelled_flush_logs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a flush whose wait for room was cancelled is the cause of its ``CancelledError``, and is not
    logged."""
    monkeypatch.setattr(asyncio, "shield", logging_shield)
    logged: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        async with aio.connect(tmp_path, max_items=1, full="block") as queue:
            await put(queue, b"1")
            async with queue.session() as session:
                await session.enqueue(b"2")
                flushing = asyncio.create_task(session.flush())
                await asyncio.sleep(0)
                flushing.cancel()
                with pytest.raises(asyncio.CancelledError) as caught:
                    await flushing
                assert isinstance(caught.value.__cause__, QueueFullError)
                await session.rollback()

    asyncio.run(asyncio.wait_for(main(), SECONDS), debug=True)
    assert not logged


FORKING = """
import asyncio, os, sys
from persistentqueue import aio

async def main():
    async with aio.connect(sys.argv[1]) as queue, queue.session() as session:
        await session.enqueue(b"x")
        await session.flush()
        assert await queue.size() == 1  # the threads of these calls are idle now
        if not (pid := os.fork()):
            asyncio.run(use(queue))
            os._exit(0)
        while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            await asyncio.sleep(0.01)
        assert ended[1] == 0
        assert await queue.size() == 0

async def use(queue):
    assert await queue.size() == 1
    async with queue.transaction() as session:
        print(await session.dequeue(), flush=True)
    await queue.close()

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_uses_the_queue(tmp_path: Path) -> None:
    """A forked child uses a queue of ``aio.connect``, also if the parent had just made a call."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, str(tmp_path / "q")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, check=True)
    assert (done.stdout, done.stderr) == ("b'x'\n", "")

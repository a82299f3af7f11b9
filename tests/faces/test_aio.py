"""``aio.PersistentQueue``, whose calls are awaited: shared syncs, waiting tasks, errors, and work that must not block
the event loop."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    CodecError,
    CorruptionError,
    PersistentQueue,
    Producer,
    QueueFullError,
    QueueLockedError,
    SubscriptionNotFoundError,
    TooManyFilesError,
    UnflushedWarning,
    aio,
    codecs,
)
from persistentqueue.engine.context import Full
from persistentqueue.system.disk import DISK
from tests.support.disks import call_on, using_disk
from tests.support.queues import segment_files, without_descriptors
from tests.unit.runtime.test_closing import Gate as ClosingGate
from tests.unit.runtime.test_open_queue import Gate

SECONDS = 30.0


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run the coroutine in an event loop of its own, with asyncio's debug checks."""
    return asyncio.run(asyncio.wait_for(main, SECONDS), debug=True)


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until the condition holds."""
    for _ in range(30_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    pytest.fail("it never came to be")


async def put(queue: aio.PersistentQueue[Any], *items: Any) -> None:
    async with queue.transaction() as session:
        for item in items:
            await session.enqueue(item)


async def drain(queue: aio.PersistentQueue[Any]) -> list[Any]:
    async with queue.transaction() as session:
        return await session.dequeue_many(10**6)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "queues"


def test_a_class_of_a_program_can_derive_from_it() -> None:
    """A class can derive from a queue of ``aio`` and from a class with a metaclass: the queue has none of its own."""

    class Meta(type):
        """The metaclass of a framework."""

    class Base(metaclass=Meta):
        """A class of a framework."""

    class Both(Base, aio.PersistentQueue[bytes]):
        """A class of a program."""

    assert {type(aio.PersistentQueue), type(aio.Subscription), type(aio.ConnectedQueue)} == {type}


def test_it_is_used_like_the_other_one(place: Path) -> None:
    """The awaited calls do what the core's calls do: transactions, rollbacks, markers, browsing, statistics and
    maintenance."""

    async def main() -> None:
        queue = aio.PersistentQueue[bytes](place, "orders", fan_out=False)
        assert (queue.path, queue.name) == (str(place), "orders")
        async with queue:
            assert bool(queue) and queue.recovery is not None
            async with queue.session("mine") as session:
                assert session.name == "mine"
                await session.enqueue(b"one")
                await session.enqueue_many([b"two", b"three"])
                await session.enqueue_many(b"%d" % n for n in range(10_000))
                assert len(queue) == 0
                assert await session.flush(marker=("m", 1)) is True
                await session.enqueue(b"again")
                assert await session.flush(marker=("m", 1)) is False
                assert await session.dequeue() == b"one"
                assert await session.dequeue_many(2) == [b"two", b"three"]
                assert await session.dequeue_many(0) == []
                await session.rollback()
            assert session.closed and queue.marker("m") == 1
            assert await queue.peek(2) == [b"one", b"two"]
            assert [item async for item in queue.browse()][:4] == [b"one", b"two", b"three", b"0"]
            assert len([item async for item in queue.browse_all()]) == len(queue) == 10_003
            assert (await queue.stats()).ready == 10_003 and len(await queue.explain()) >= 1
            assert queue.data_path.endswith("orders") and len(queue.identity) == 32
            await queue.resize(memory_bytes=10_000)
            await queue.trim()
            assert (await queue.compact(below=0.5)).segments == 0
            assert (await queue.maintain()).pooled_bytes == 0
            assert await queue.clear() == 10_003
            with pytest.raises(RuntimeError, match="is open"):
                await queue.open()
        assert queue.closed
        await queue.close()

    run(main())


def test_subscriptions(place: Path) -> None:
    """Each subscription gets every item, has its own line of waiting tasks, and can be removed."""

    async def main() -> None:
        async with aio.PersistentQueue(place, fan_out=True) as queue:
            first, second = await queue.subscribe("first"), await queue.subscribe("second")
            assert await queue.subscribe("first") is first and queue.subscriptions() == ["first", "second"]
            assert repr(first) == "<subscription 'first'>" and first.name == "first" and bool(first)

            async def consume(subscription: aio.Subscription[bytes]) -> bytes | None:
                async with subscription.transaction() as session:
                    return await session.dequeue(None)

            consuming = [asyncio.create_task(consume(each)) for each in (first, second)]
            await asyncio.sleep(0)
            await put(queue, b"x", b"y")
            assert await asyncio.gather(*consuming) == [b"x", b"x"]
            assert len(first) == 1 and [item async for item in first.browse()] == [b"y"]
            await queue.unsubscribe("first")
            assert first.removed
            async with first.session() as session:
                with pytest.raises(SubscriptionNotFoundError):
                    await session.dequeue()
            async with queue.session() as session:
                with pytest.raises(SubscriptionNotFoundError):
                    await session.dequeue(None)
            assert await queue.subscribe("first", "latest") is not first

    run(main())


def test_a_removed_subscription_is_not_kept(place: Path) -> None:
    """A queue keeps nothing of the subscriptions that were removed, and a task that waits for one gets its error."""

    async def main() -> None:
        async with aio.PersistentQueue(place) as queue:
            for number in range(3):
                subscription = await queue.subscribe(f"client {number}")
                session = subscription.session()
                waiting = asyncio.create_task(session.dequeue(None))
                await asyncio.sleep(0)
                await queue.unsubscribe(subscription.name)
                with pytest.raises(SubscriptionNotFoundError):
                    await waiting
                await session.close()
            assert not queue._subscriptions
            with pytest.raises(SubscriptionNotFoundError):
                await queue.unsubscribe("client 0")

    run(main())


def test_many_tasks_share_one_sync(place: Path) -> None:
    """A hundred tasks that flush at the same time share a few groups, which one thread writes."""

    async def main() -> None:
        async with aio.PersistentQueue(place) as queue:

            async def produce(number: int) -> None:
                async with queue.session() as session:
                    for n in range(10):
                        await session.enqueue(b"%d %d" % (number, n))
                        assert await session.flush()

            await put(queue, b"first")
            before, threads = await queue.stats(), threading.active_count()
            await asyncio.gather(*map(produce, range(100)))
            assert threading.active_count() <= threads
            after = await queue.stats()
            assert after.transactions - before.transactions == 1000
            assert after.groups - before.groups <= 20
            items = (await drain(queue))[1:]
            for number in range(100):
                own = [item for item in items if item.startswith(b"%d " % number)]
                assert own == [b"%d %d" % (number, n) for n in range(10)]

    run(main())


def test_the_loop_goes_on_while_the_disk_writes(place: Path) -> None:
    """While a commit waits for the disk, tasks enqueue and dequeue from memory, and their flushes form one group."""
    gate = Gate()

    async def main() -> None:
        async with call_on(replace(DISK, failpoint=gate.failpoint), aio.PersistentQueue, place) as queue:
            await put(queue, b"a", b"b")
            groups = (await queue.stats()).groups
            gate.armed = True
            flushing = [asyncio.create_task(put(queue, b"first"))]
            await until(gate.reached.is_set)
            async with queue.session() as session:
                assert await session.dequeue() == b"a"
                await session.enqueue(b"A")
                flushing += [asyncio.create_task(put(queue, b"%d" % n)) for n in range(20)]
                await asyncio.sleep(0.01)
                assert not any(each.done() for each in flushing)
                await session.rollback()
            gate.go_on.set()
            await asyncio.gather(*flushing)
            assert (await queue.stats()).groups - groups == 2

    run(main())


def test_tasks_get_items_in_the_order_in_which_they_came(place: Path) -> None:
    """The task that waits longest gets the next item, also after other tasks gave up. A task that comes later does not
    overtake it."""

    async def main() -> None:
        async with aio.PersistentQueue(place) as queue:
            got: list[tuple[int, bytes | None]] = []

            async def consume(number: int, timeout: float | None) -> None:
                async with queue.session() as session:
                    got.append((number, await session.dequeue(timeout)))
                    await session.flush()

            consuming = [asyncio.create_task(consume(n, 0.01 if n % 3 == 1 else None)) for n in range(30)]
            await until(lambda: len(got) == 10)
            assert {item for _, item in got} == {None}
            got.clear()
            consuming[0].cancel()
            await asyncio.sleep(0)
            await put(queue, *(b"%d" % n for n in range(10)))
            await put(queue, *(b"%d" % n for n in range(10, 19)))
            await asyncio.wait(consuming)
            assert got == [(n, b"%d" % at) for at, n in enumerate(n for n in range(1, 30) if n % 3 != 1)]

    run(main())


@pytest.mark.parametrize("settings", [{}, {"memory_bytes": 0}, {"max_attempts": 100, "dead_letter": "dead"}], ids=repr)
def test_the_shortest_timeout_is_enough_for_a_ready_item(place: Path, settings: dict[str, Any]) -> None:
    """A dequeue with any timeout returns an item that is ready, also one that a thread has to read. A file that a
    ``Producer`` has published counts."""

    async def main() -> None:
        async with aio.PersistentQueue(place, "q", **settings) as queue, queue.session() as session:
            await put(queue, b"1")
            for _ in range(20):
                assert await session.dequeue(timeout=1e-12) == b"1"
                await session.rollback()
            await queue.clear()
            with Producer(place, "q") as producer:
                producer.enqueue(b"2")
                producer.flush()
            assert await session.dequeue_many(2, timeout=1e-12) == [b"2"]
            await session.flush()
            assert await session.dequeue(timeout=1e-12) is None

    run(main())


def test_waiting_has_one_thread_and_takes_no_time(place: Path) -> None:
    """A hundred waiting tasks cost one thread and no processor time, and its wait ends when no task waits."""

    async def main() -> None:
        async with aio.PersistentQueue(place) as queue, queue.session() as session:
            await put(queue, b"x")
            assert await session.dequeue() == b"x"
            await session.flush()
            names = {each.name for each in threading.enumerate()}

            async def wait() -> None:
                async with queue.session() as waiting:
                    assert await waiting.dequeue(None) is None

            tasks = [asyncio.create_task(wait()) for _ in range(100)]
            await until(lambda: queue._core._open_queue._waiters.count == 1)  # type: ignore[union-attr]
            start = time.process_time()
            await asyncio.sleep(0.5)
            assert time.process_time() - start < 0.05
            assert {each.name for each in threading.enumerate()} - names <= {"persistentqueue-aio-watch"}
            assert queue._core._open_queue._waiters.count == 1  # type: ignore[union-attr]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await until(lambda: queue._core._open_queue._waiters.count == 0)  # type: ignore[union-attr]

    asyncio.run(main())


def test_what_waits_hears_of_other_processes(place: Path) -> None:
    """An item that a ``Producer`` publishes goes to the task that waits."""

    async def main() -> None:
        async with aio.PersistentQueue(place) as queue, queue.session() as session:
            waiting = asyncio.create_task(session.dequeue(None))
            await until(lambda: queue._core._open_queue._waiters.count == 1)  # type: ignore[union-attr]
            with Producer(place) as producer:
                producer.enqueue(b"x")
                producer.flush()
            assert await waiting == b"x"
            await session.flush()

    run(main())


def test_what_cannot_be_read_for_now(place: Path) -> None:
    """A waiting task gets the error if a publication cannot be read for now; later tasks wait as before."""
    disk, failing = without_descriptors()

    async def main() -> None:
        async with call_on(disk, aio.PersistentQueue, place) as queue, queue.session() as session:
            waiting = asyncio.create_task(session.dequeue(None))
            await until(lambda: queue._core._open_queue._waiters.count == 1)  # type: ignore[union-attr]
            failing[0] = True
            with Producer(place) as producer:
                producer.enqueue(b"1")
                producer.flush()
            with pytest.raises(TooManyFilesError, match="too many files are open"):
                await waiting
            failing[0] = False
            assert await session.dequeue(None) == b"1"
            waiting = asyncio.create_task(session.dequeue(None))
            await put(queue, b"2")
            assert await waiting == b"2"
            await session.rollback()

    run(main())


def test_damage_is_told_to_one(place: Path) -> None:
    """A damaged block raises an error in the one task whose turn it is. The tasks behind it get the items behind the
    block."""

    async def main() -> None:
        async with aio.PersistentQueue(place, memory_bytes=0) as queue:
            await put(queue, b"a" * 1000)
            await put(queue, b"b")
            await queue.trim()
            path = segment_files(place)[0]
            data = path.read_bytes()
            path.write_bytes(data.replace(b"aaaa", b"bbbb", 1))
            async with queue.session() as first, queue.session() as second:
                found = await asyncio.gather(first.dequeue(None), second.dequeue(None), return_exceptions=True)
                assert isinstance(found[0], CorruptionError) and found[1] == b"b"
                await first.rollback()
                await second.rollback()
            path.write_bytes(data)

    run(main())


def test_codecs(place: Path) -> None:
    """Items are encoded and decoded by the codec, including None, and an item that the codec refuses raises
    ``CodecError``."""

    async def main() -> None:
        async with aio.PersistentQueue(place, codec=codecs.JSON) as queue, queue.session() as session:
            await session.enqueue({"a": [1]})
            await session.enqueue(None)
            with pytest.raises(CodecError):
                await session.enqueue(object())
            await session.flush()
            assert await session.dequeue_many(5) == [{"a": [1]}, None]
            await session.flush()

    run(main())


def test_a_session_that_outgrows_the_memory_writes_in_a_thread(place: Path) -> None:
    """Items of a session that outgrows the memory are spilled by a thread, and are committed as one transaction."""

    async def main() -> None:
        async with aio.PersistentQueue(place) as queue:
            thread = threading.get_ident()
            written_by = set()
            core = queue._core
            assert core is not None
            spill = core._open().spill

            def spilled(transaction: Any) -> None:
                written_by.add(threading.get_ident())
                spill(transaction)

            core._open().spill = spilled  # type: ignore[method-assign]
            async with queue.session() as session:
                for n in range(6):
                    await session.enqueue(b"%d" % n * 2**20)
                await session.flush()
            assert written_by and thread not in written_by
            assert [item[:1] async for item in queue.browse()] == [b"%d" % n for n in range(6)]
            await queue.clear()

    run(main())


def test_waiting_for_room(place: Path) -> None:
    """Flushes that find no room wait in order, up to their timeouts, while other sessions commit. A flush that can
    never fit is refused."""

    async def main() -> None:
        async with aio.PersistentQueue(place, max_items=2, full="block") as queue:
            await put(queue, b"a", b"b")
            sessions = [queue.session() for _ in range(5)]
            for n, session in enumerate(sessions):
                await session.enqueue(b"%d" % n)
            flushing = [
                asyncio.create_task(session.flush(timeout=0.05 if n in (1, 4) else None))
                for n, session in enumerate(sessions)
            ]
            for n in (1, 4):
                with pytest.raises(QueueFullError):
                    await flushing[n]
            with pytest.raises(QueueFullError):
                await sessions[1].flush(timeout=0)
            async with queue.session() as large:
                await large.enqueue_many([b"x"] * 3)
                with pytest.raises(QueueFullError, match="never fits"):
                    await large.flush()
                await large.rollback()
            async with queue.session() as worker:  # a session that makes room for its own items does not wait
                assert await worker.dequeue() == b"a"
                await worker.enqueue(b"A")
                assert await worker.flush()
            taken: list[bytes | None] = []
            while len(taken) < 5:
                async with queue.session() as consumer:
                    taken.append(await consumer.dequeue(None))
                    await consumer.flush()
            assert taken == [b"b", b"A", b"0", b"2", b"3"]
            assert await asyncio.gather(*(flushing[n] for n in (0, 2, 3))) == [True] * 3
            for session in sessions:
                await session.close()

    run(main())


def test_a_flush_that_waits_for_room_is_cancelled(place: Path) -> None:
    """A cancelled flush that waits for room leaves the line at once, from any place in it, and keeps its operations.
    The next flush gets the room."""

    async def main() -> None:
        async with aio.PersistentQueue(place, max_items=1, full="block") as queue:
            await put(queue, b"a")
            sessions = [queue.session() for _ in range(3)]
            for n, session in enumerate(sessions):
                await session.enqueue(b"%d" % n)
            flushing = [asyncio.create_task(session.flush()) for session in sessions]
            await until(lambda: queue._core.stats().waiting == 1)  # type: ignore[union-attr]
            for task in flushing[:2]:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert await drain(queue) == [b"a"]
            assert await flushing[2]
            assert await drain(queue) == [b"2"]
            assert await sessions[0].flush() and await drain(queue) == [b"0"]
            for session in sessions:
                await session.close()

    run(main())


@pytest.mark.parametrize("how", ["raise", "block"])
def test_arguments_that_make_no_sense(place: Path, how: Full) -> None:
    """Invalid arguments are refused as by the core, and the session goes on."""

    async def main() -> None:
        async with aio.PersistentQueue(place, full=how) as queue, queue.session() as session:
            for call in (
                session.dequeue(-1),
                session.dequeue_many(1, float("nan")),
                session.dequeue_many(-1),
                session.flush(timeout=-1),
            ):
                with pytest.raises(ValueError, match="must"):
                    await call
            with pytest.raises(TypeError):
                await session.enqueue("text")  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="marker"):
                await session.flush(marker=("", -1))
            await session.rollback()
            if how == "raise":
                with pytest.raises(ValueError, match='needs a queue with full="block"'):
                    await session.flush(timeout=1)
            await session.enqueue(b"x")
            assert await session.flush(timeout=0)

    run(main())


def test_a_session_is_for_one_task(place: Path) -> None:
    """A second task that uses a session meanwhile gets ``RuntimeError``, and harms nothing."""

    async def main() -> None:
        async with aio.PersistentQueue(place) as queue, queue.session() as session:
            waiting = asyncio.create_task(session.dequeue(None))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="one task at a time"):
                await session.flush()
            await put(queue, b"x")
            assert await waiting == b"x"
            await session.rollback()

    run(main())


def test_closing_ends_who_waits(place: Path) -> None:
    """Closing raises ``ClosedError`` in the tasks that wait for items or for room, rolls sessions back, and leaves no
    thread. Flushed items stay."""

    async def main() -> None:
        threads = set(threading.enumerate())
        queue = aio.PersistentQueue(place, "jobs", max_items=3, full="block")
        async with queue:
            await put(queue, b"a")
            holder = queue.session()
            assert await holder.dequeue() == b"a"
            consuming = [asyncio.create_task(queue.session().dequeue(None)) for _ in range(3)]
            full = [queue.session() for _ in range(2)]
            for session in full:
                await session.enqueue_many([b"x"] * 3)
            flushing = [asyncio.create_task(session.flush()) for session in full]
            await until(lambda: queue._core.stats().waiting == 1)  # type: ignore[union-attr]
        found = await asyncio.gather(*consuming, *flushing, return_exceptions=True)
        assert [type(each) for each in found] == [ClosedError] * 5
        for call in (queue.stats(), holder.flush()):
            with pytest.raises(ClosedError, match=f"^{place}/jobs: the queue is not open: open it by async with or"):
                await call
        with pytest.raises(ClosedError):
            len(queue)
        await until(lambda: {each for each in threading.enumerate() if "aio" in each.name} <= threads)
        async with queue:
            assert (await drain(queue))[0] == b"a"

    run(main())


def test_another_loop(place: Path) -> None:
    """A queue belongs to the loop in which it was opened, also for a plain call; after a close, another may open it."""
    queue = aio.PersistentQueue[bytes](place)

    async def use() -> None:
        async with queue:
            await put(queue, b"x")

    async def begin() -> None:
        await queue.open()

    async def too_late() -> None:
        advice = (
            r"belongs to the event loop .*: open, use and close it in one asyncio\.run\(\); if its loop has ended, drop"
        )
        for call in (queue.stats, queue.open, queue.close):
            with pytest.raises(RuntimeError, match=advice):
                await call()

    run(use())
    run(use())
    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    run(too_late())
    with pytest.raises(RuntimeError, match="belongs to the event loop"):
        len(queue)  # in no event loop
    loop.run_until_complete(queue.close())
    loop.close()
    with PersistentQueue(place) as core:
        assert len(core) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_dropped_without_close(place: Path) -> None:
    """A queue that is dropped without ``close`` frees its lock, with a warning, and its threads end."""

    async def main() -> None:
        queue = await aio.PersistentQueue[bytes](place).open()
        await put(queue, b"x")

    with pytest.warns(ResourceWarning, match="dropped without close"):
        asyncio.run(main())
        for thread in threading.enumerate():  # a thread may still refer to its last work
            if thread.name == "persistentqueue-aio-flush":
                thread.join(SECONDS)
        gc.collect()
    with PersistentQueue(place) as core:
        assert len(core) == 1


def test_opening_while_it_is_closed(place: Path) -> None:
    """``open`` is refused until a close that is under way has ended."""

    async def main() -> None:
        queue = await aio.PersistentQueue(place, lock_timeout=SECONDS).open()
        closing = asyncio.create_task(queue.close())
        await asyncio.sleep(0)
        assert queue.closed
        with pytest.raises(RuntimeError, match="is open"):
            await queue.open()
        await closing
        async with queue:
            await put(queue, b"x")

    run(main())


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("face", ["PersistentQueue", "Queue", "connect"])
def test_a_second_close_waits_for_the_first(place: Path, face: str, cancels: bool) -> None:
    """A task that closes a queue while another one does returns when the files are closed, also if it is cancelled."""
    gate = ClosingGate()

    async def main() -> None:
        with using_disk(gate.disk):
            made = getattr(aio, face)(place)
            queue = await (made if face == "connect" else made.open())
        await (queue.put("x") if face == "Queue" else put(queue, b"x"))
        gate.armed = True
        first = asyncio.create_task(queue.close())
        await until(gate.reached.is_set)
        second = asyncio.create_task(queue.close())
        done, _ = await asyncio.wait([second], timeout=0.05)  # a close that does not wait would nearly always be done
        assert not done
        if cancels:
            second.cancel()
        gate.go_on.set()
        await asyncio.wait([second])
        assert second.cancelled() == cancels and (cancels or second.result() is None)
        PersistentQueue(place, lock_timeout=0).close()
        await first
        await queue.close()

    run(main())


def test_a_close_that_loses_items_warns(place: Path) -> None:
    """If a session has not flushed what it has enqueued, the close of its queue warns. It does not if the flush of that
    session waits for room and raises, or if an exception leaves the block of the queue."""

    async def main() -> None:
        queue = await aio.PersistentQueue(place, max_items=1, full="block").open()
        await put(queue, b"x")
        waiting, session = queue.session(), queue.session()
        await waiting.enqueue(b"y")
        flushing = asyncio.create_task(waiting.flush(timeout=None))
        await asyncio.sleep(0)
        await session.enqueue(b"z")
        with pytest.warns(UnflushedWarning, match="was not flushed before its queue was closed") as caught:
            await queue.close()
        assert [each.filename for each in caught] == [__file__]
        with pytest.raises(ClosedError):
            await flushing
        with pytest.raises(KeyError):
            async with aio.PersistentQueue(place) as queue:
                session = queue.session()
                await session.enqueue(b"z")
                raise KeyError
        with pytest.warns(UnflushedWarning) as caught:
            async with aio.PersistentQueue(place) as queue:
                session = queue.session()
                await session.enqueue(b"z")
        assert [each.filename for each in caught] == [__file__]

    run(main())


def test_errors_of_opening(place: Path) -> None:
    """Errors of opening are those of the core; they leave no thread, and the object may try again."""

    async def main() -> None:
        queue = aio.PersistentQueue(place)
        with PersistentQueue(place), pytest.raises(QueueLockedError):
            await queue.open()
        with pytest.raises(ClosedError, match="open it"):
            queue.session()
        async with queue:
            await put(queue, b"x")

    run(main())


def test_breaking_is_told_to_all(place: Path) -> None:
    """A failed sync raises ``BrokenQueueError`` in each task of the group and in the tasks that wait."""
    failing = [False]

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if flags and failing[0]:
            raise OSError(errno.EIO, "Input/output error")
        return DISK.pwritev(fd, buffers, offset, flags)

    async def main() -> None:
        async with call_on(replace(DISK, pwritev=pwritev), aio.PersistentQueue, place) as queue:
            waiting = asyncio.create_task(queue.session().dequeue(None))
            await until(lambda: queue._core._open_queue._waiters.count == 1)  # type: ignore[union-attr]
            failing[0] = True
            found = await asyncio.gather(put(queue, b"a"), put(queue, b"b"), waiting, return_exceptions=True)
            assert [type(each) for each in found] == [BrokenQueueError] * 3

    run(main())


def test_no_thread_can_be_started(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system gives no thread, the call that needs one raises the error, and the next call may succeed."""

    async def main() -> None:
        async with aio.PersistentQueue(place) as queue, queue.session() as session:
            with monkeypatch.context() as patch:
                patch.setattr(threading, "Thread", lambda **_: (_ for _ in ()).throw(RuntimeError("no thread")))
                await session.enqueue(b"x")
                with pytest.raises(RuntimeError, match="no thread"):
                    await session.flush()
                with pytest.raises(RuntimeError, match="no thread"):
                    await session.dequeue(None)
            assert await session.flush()
            assert await session.dequeue(None) == b"x"
            await session.flush()

    run(main())


class CancelledAt:
    """Awaitable that cancels its task at the suspension of a given number.

    It cancels when the suspension begins, or when its future is done and the task has not been told yet.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], number: int, *, when_over: bool) -> None:
        self.work = work
        self.number = number
        self.when_over = when_over
        self.suspensions = 0

    def __await__(self) -> Any:
        task = asyncio.current_task()
        assert task is not None
        steps = self.work.__await__()
        error: BaseException | None = None
        while True:
            try:
                future = steps.throw(error) if error is not None else next(steps)
            except StopIteration as end:
                return end.value
            if self.suspensions == self.number:
                if self.when_over and future is not None:
                    future.add_done_callback(lambda _: task.cancel())
                else:
                    task.cancel()
            self.suspensions += 1
            error = None
            try:
                yield future
            except BaseException as thrown:
                error = thrown

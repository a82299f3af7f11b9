"""Tasks of ``aio`` that are cancelled at every step of the event loop: each item is got once, and nothing is left held.

Other tasks wait for the same items, or for the same room, and get what a cancelled task leaves. When the loop ends, no
task, thread or descriptor is left.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from persistentqueue import CodecError, Encryption, PersistentQueue, Producer, WrongKeyError, aio, codecs

from .test_aio import SECONDS, drain, put, until

CANCELLED = "cancelled"
Work = Callable[[], Coroutine[Any, Any, Any]]
COUNTING: dict[str, Any] = {"max_attempts": 1000, "dead_letter": "dead"}
SEALED = codecs.Enclosed(codecs.BYTES, encryption=Encryption("key", lambda _: b"1" * 32))
KEYLESS = codecs.Enclosed(codecs.BYTES, encryption=Encryption("key", lambda _: b"2" * 32))


class Loop(asyncio.SelectorEventLoop):
    """An event loop that calls a hook before each of its steps."""

    before_step: Callable[[], None] | None = None

    def _run_once(self) -> None:
        if self.before_step is not None:
            self.before_step()
        cast(Any, super())._run_once()


async def cut(step: int, most: int, work: Work, *others: Work) -> tuple[bool, list[Any]]:
    """Run the tasks together. From this step of the loop after its begin on, cancel the first one, ``most`` times.

    Return whether it was cancelled, and the results of all: ``CANCELLED`` or an exception in place of a result.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    begun: list[int] = []

    async def first() -> Any:
        begun.append(0)
        return await work()

    tasks = [asyncio.ensure_future(each) for each in (first(), *(other() for other in others))]

    def before_step() -> None:
        if begun and not tasks[0].done():
            if step <= begun[0] < step + most:
                tasks[0].cancel()
            begun[0] += 1

    loop.before_step = before_step
    try:
        _, pending = await asyncio.wait(tasks, timeout=SECONDS)
        assert not pending
    finally:
        loop.before_step = None
    found = [CANCELLED if each.cancelled() else each.exception() or each.result() for each in tasks]
    return begun[0] > step, found


async def at_every_step(run_once: Callable[[int, int], Coroutine[Any, Any, bool]]) -> None:
    """Run with a cancellation at each step, one and two of them, until the work ends before the step comes."""
    for most in (1, 2):
        step = 0
        while await run_once(step, most):
            step += 1


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine in a loop with a hook, and look for what it leaves: tasks, errors, threads and descriptors."""
    descriptors, loop, errors = _descriptors(), Loop(), list[Any]()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    try:
        loop.run_until_complete(asyncio.wait_for(main, SECONDS))
        assert not asyncio.all_tasks(loop)
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
    assert not errors
    names = [each.name for each in threading.enumerate()]
    assert not [each for each in names if each.startswith(("persistentqueue-aio", "persistentqueue-shared"))]
    assert _descriptors() <= descriptors


def _descriptors() -> set[str]:
    """Return the files in temporary directories and the sockets that this process has open."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.add(os.readlink(each))
        except FileNotFoundError:
            continue
    return {each for each in found if "queues" in each or each.startswith("socket")}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "queues"


@pytest.mark.parametrize("options", [{}, {"memory_bytes": 0}, COUNTING], ids=["memory", "disk", "counts"])
def test_two_tasks_wait_for_an_item(place: Path, options: dict[str, Any]) -> None:
    """A session whose wait is cancelled holds nothing, and the task behind it gets the item at once."""

    async def main() -> None:
        async with aio.PersistentQueue(place, "q", **options) as queue:

            async def take() -> bytes | None:
                async with queue.transaction() as session:
                    return await session.dequeue(None)

            async def once(step: int, most: int) -> bool:
                async with queue.session() as session:
                    was_cut, found = await cut(
                        step, most, lambda: session.dequeue(None), take, lambda: put(queue, b"1", b"2")
                    )
                    stats = await queue.stats()
                    assert (stats.held, stats.waiting) == (found[0] != CANCELLED, 0)
                    assert found[1] in (b"1", b"2") and found[0] in (CANCELLED, *{b"1", b"2"} - {found[1]})
                    await session.flush()
                left = await drain(queue)
                assert left == [each for each in (b"1", b"2") if each not in found]
                return was_cut

            await at_every_step(once)

    run(main())


@pytest.mark.parametrize("fault", ["undecodable", "no key"])
@pytest.mark.parametrize("options", [{}, COUNTING], ids=["plain", "counts"])
def test_an_item_that_cannot_be_decoded(place: Path, fault: str, options: dict[str, Any]) -> None:
    """A dequeue that is cancelled at an item that the codec refuses, or has no key for, holds nothing."""
    codec: Any = codecs.JSON if fault == "undecodable" else KEYLESS
    data = b"{" if fault == "undecodable" else SEALED.encode(b"item")
    error = CodecError if fault == "undecodable" else WrongKeyError
    holds = error is CodecError

    async def main() -> None:
        with PersistentQueue(place, "q", **options) as core, core.session() as session:
            session.enqueue(data)
            session.flush()
        async with aio.PersistentQueue(place, "q", codec=codec, **options) as queue:

            async def once(step: int, most: int) -> bool:
                async with queue.session() as session:
                    was_cut, (found,) = await cut(step, most, lambda: session.dequeue(None))
                    assert found == CANCELLED or isinstance(found, error)
                    assert (await queue.stats()).held == (holds and found != CANCELLED)
                    await session.rollback()
                assert len(queue) == 1
                return was_cut

            await at_every_step(once)

    run(main())


def test_two_flushes_wait_for_room(place: Path) -> None:
    """A flush that is cancelled while it waits for room has committed all or nothing, and the next one gets the room.
    Its session flushes what is left."""

    async def main() -> None:
        async with aio.PersistentQueue(place, max_items=2, full="block") as queue:

            async def once(step: int, most: int) -> bool:
                await put(queue, b"1", b"2")
                async with queue.session() as a, queue.session() as b:
                    await a.enqueue(b"a")
                    await b.enqueue(b"b")

                    async def make_room() -> None:
                        for expected in (b"1", b"2"):
                            async with queue.transaction() as session:
                                assert await session.dequeue() == expected

                    was_cut, found = await cut(step, most, a.flush, b.flush, make_room)
                    assert found[1:] == [True, None] and found[0] in (CANCELLED, True)
                    items = await queue.peek(9)
                    assert sorted(items) in ([b"a", b"b"], [b"b"]) and (found[0] == CANCELLED or b"a" in items)
                    await a.flush()
                    assert sorted(await drain(queue)) == [b"a", b"b"]
                return was_cut

            await at_every_step(once)

    run(main())


@asynccontextmanager
async def connected(place: Path, *, is_worker: bool) -> AsyncIterator[aio.ConnectedQueue[bytes]]:
    """Yield a connected queue, which owns the files or has another owner."""
    async with aio.connect(place, "q") as owner:
        if not is_worker:
            yield owner
            return
        async with aio.connect(place, "q", serve="never") as queue:
            yield queue


@pytest.mark.parametrize("is_worker", [False, True], ids=["owner", "worker"])
def test_two_tasks_of_a_connected_queue(place: Path, is_worker: bool) -> None:
    """A shared session whose wait is cancelled holds nothing, and another task gets the item."""

    async def main() -> None:
        async with connected(place, is_worker=is_worker) as queue:

            async def take() -> bytes | None:
                async with queue.transaction() as session:
                    return await session.dequeue(None)

            async def fill() -> None:
                async with queue.transaction() as session:
                    await session.enqueue_many([b"1", b"2"])

            async def once(step: int, most: int) -> bool:
                async with queue.session() as session:
                    was_cut, found = await cut(step, most, lambda: session.dequeue(None), take, fill)
                    assert found[1] in (b"1", b"2") and found[0] in (CANCELLED, *{b"1", b"2"} - {found[1]})
                    stats = await queue.stats()
                    assert (stats.held, stats.waiting) == (found[0] != CANCELLED, 0)
                    await session.flush()
                assert await queue.clear() == (found[0] == CANCELLED)
                return was_cut

            await at_every_step(once)

    run(main())


@pytest.mark.parametrize("options", [{}, COUNTING, {"subscription": "s"}], ids=["plain", "counts", "subscription"])
def test_two_tasks_get(place: Path, options: dict[str, Any]) -> None:
    """Tasks get items of ``aio.Queue`` in the order in which they came. A cancelled one has got nothing: the next one
    gets its item."""

    async def main() -> None:
        async with aio.Queue[int](place, **options) as queue:

            async def fill() -> None:
                await queue.put(1)
                queue.put_nowait(2)

            async def once(step: int, most: int) -> bool:
                was_cut, found = await cut(step, most, queue.get, queue.get, fill)
                assert found in ([1, 2, None], [CANCELLED, 1, None])
                if found[0] == CANCELLED:
                    assert await queue.get() == 2
                queue.task_done()
                queue.task_done()
                with pytest.raises(ValueError, match="too many times"):
                    queue.task_done()
                await queue.join()
                return was_cut

            await at_every_step(once)

    run(main())
    with PersistentQueue(place, **{key: each for key, each in options.items() if key in COUNTING}) as core:
        assert len(core) == 0 or options == {"subscription": "s"}


@pytest.mark.parametrize("options", [{}, COUNTING], ids=["plain", "counts"])
def test_two_tasks_put_into_a_full_queue(place: Path, options: dict[str, Any]) -> None:
    """A ``put`` of ``aio.Queue`` that is cancelled has put its item once, or not at all, and takes no slot of another
    task."""

    async def main() -> None:
        async with aio.Queue[int](place, 1, **options) as queue:

            async def once(step: int, most: int) -> bool:
                await queue.put(0)
                got: list[int] = []

                async def take() -> None:
                    while 2 not in got:
                        got.append(await queue.get())
                        queue.task_done()

                was_cut, found = await cut(step, most, lambda: queue.put(1), lambda: queue.put(2), take)
                assert found[1:] == [None, None]
                assert got in ([0, 1, 2], [0, 2]) and (found[0] == CANCELLED or 1 in got)
                await queue.join()
                assert queue.empty()
                return was_cut

            await at_every_step(once)

    run(main())


@pytest.mark.parametrize("face", ["sessions", "queue"])
def test_a_close_beside_tasks(place: Path, face: str) -> None:
    """A close that is cancelled closes the queue nevertheless, and ends the tasks that wait. Durable items are there
    once."""

    async def main() -> None:
        async def once(step: int, most: int) -> bool:
            async with aio.PersistentQueue(place) as before:
                await before.clear()
                await put(before, b"1")
            queue: Any = await (aio.PersistentQueue(place) if face == "sessions" else aio.Queue(place)).open()

            async def work() -> None:
                if face == "queue":
                    await queue.put(await queue.get() + 1)
                    queue.task_done()
                    await queue.get()
                    await queue.get()
                async with queue.session() as session:
                    await session.enqueue(b"%d" % (int(await session.dequeue()) + 1))
                    await session.flush()
                    await session.dequeue_many(1, None)
                    await session.dequeue(None)

            was_cut, found = await cut(step, most, queue.close, work, queue.close)
            assert found[0] in (CANCELLED, None) and found[2] is None
            assert type(found[1]).__name__ == "ClosedError"
            with PersistentQueue(place) as core:
                assert list(core.browse()) in ([b"1"], [b"2"], [b"1", b"2"][: 2 * (face == "queue")])
            return was_cut

        await at_every_step(once)

    run(main())


@pytest.mark.parametrize("subscription", [None, "s"])
def test_an_item_done_before_its_write_reaches_other_consumers(place: Path, subscription: str | None) -> None:
    """An item of ``aio.Queue`` that is got and done before its write begins is written for the other consumers."""

    async def main() -> None:
        async with aio.PersistentQueue(place) as queue:
            await queue.subscribe("s")
        async with aio.Queue[int](place, subscription=subscription) as queue:
            putting = asyncio.create_task(queue.put(1))
            await asyncio.sleep(0)
            assert queue.get_nowait() == 1
            queue.task_done()
            await putting
            await queue.join()
        async with aio.PersistentQueue(place) as queue:
            sizes = [len(queue), len(await queue.subscribe("s"))]
            assert sizes == ([0, 1] if subscription is None else [1, 0])

    run(main())


@pytest.mark.parametrize("is_done", [False, True])
def test_join_ends_though_another_process_puts_behind_a_shutdown(place: Path, is_done: bool) -> None:
    """An item that a ``Producer`` publishes when the queue was shut down and empty is for the next opening: ``join``
    does not wait for it."""

    async def main() -> None:
        async with aio.Queue[int](place) as queue:
            await queue.put(1)
            assert await queue.get() == 1
            waiting = asyncio.create_task(queue.get())
            await until(lambda: queue._watcher.is_watching)
            if is_done:
                queue.task_done()
            with Producer(place) as producer:
                producer.enqueue(b"2")
                producer.flush()
            queue.shutdown()
            assert queue._core is not None
            while not len(queue._core):
                time.sleep(0.001)  # the loop does not learn yet that it was adopted
            with pytest.raises(aio.QueueShutDown):
                await waiting
            if not is_done:
                queue.task_done()
            await queue.flush()
            await until(lambda: not (queue._watcher.is_watching or queue._is_working))
            assert queue.qsize() == 0
            await asyncio.wait_for(queue.join(), SECONDS)
        with PersistentQueue(place) as core:
            assert list(core.browse()) == [b"2"]

    run(main())

"""The queues of the standard library, for threads and for tasks: delivery attempts, dead letters, subscriptions."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import ClosedError, CodecError, DeadLetter, NotHeldError, PersistentQueue, QueueFullError, aio
from persistentqueue import SubscriptionNotFoundError as NotFoundError
from persistentqueue.compat import Empty, FifoQueue, Queue, ShutDown
from persistentqueue.system.disk import DISK
from tests.faces.test_aio import SECONDS, run, until
from tests.faces.test_aio_cancelled import cancelled_everywhere
from tests.faces.test_compat import Waiting, get_and_end, waiters_of
from tests.support.disks import call_on
from tests.support.queues import wait_for
from tests.unit.runtime.test_open_queue import Gate

COUNTING: dict[str, Any] = {"max_attempts": 2, "dead_letter": "dead"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


def dead(queue: PersistentQueue[Any]) -> list[tuple[bytes, int, str]]:
    """Return the items, the attempts and the reasons of the dead letters of a queue."""
    letters = map(DeadLetter.decode, queue.dead_letters.browse())
    return [(each.item, each.attempts, each.reason) for each in letters]


async def adead(queue: aio.Queue[Any]) -> list[tuple[bytes, int, str]]:
    """Return what ``dead`` returns."""
    letters = [DeadLetter.decode(each) async for each in queue.dead_letters.browse()]
    return [(each.item, each.attempts, each.reason) for each in letters]


# --- threads ----------------------------------------------------------------------------------------------------------


def test_a_rejected_item_of_a_thread_comes_again_and_then_is_a_dead_letter(place: Path) -> None:
    """``reject`` puts an item back to its place until its attempts are used up; then it is a dead letter."""
    with Queue[Any](place, **COUNTING) as queue:
        for item in ("bad", "good"):
            queue.put(item)
        assert queue.get() == "bad"
        queue.reject("bad", "first")
        assert queue.qsize() == queue.unfinished_tasks == 2 and queue.get() == "bad"
        with pytest.raises(NotHeldError, match="no such item"):
            queue.reject("good")
        queue.reject("bad", "second")
        assert get_and_end(queue) == "good" and dead(queue.persistent) == [(b'"bad"', 2, "second")]
        with pytest.raises(NotHeldError, match="no item was got"):
            queue.reject("bad")
        queue.join()
        assert queue.persistent.requeue() == 1 and get_and_end(queue) == "bad"


@pytest.mark.parametrize("by_another", [False, True], ids=["by its thread", "by another thread"])
def test_a_rejection_is_for_an_item_that_is_not_done(place: Path, by_another: bool) -> None:
    """Items may be rejected in any order. Each rejection is durable on return, and ``join`` waits for all others."""
    with Queue[Any](place, **COUNTING) as queue:
        queue.put_many(["x", "y", "z"])
        assert [queue.get(), queue.get()] == ["x", "y"]
        reject = partial(queue.reject, "y", retry=False)
        if by_another:
            other = threading.Thread(target=reject)
            other.start()
            other.join()
        else:
            reject()
        assert queue.get() == "z"
        queue.reject("z", retry=False)
        assert [item for item, *_ in dead(queue.persistent)] == [b'"y"', b'"z"']
        assert (queue.persistent.stats().held, queue.unfinished_tasks) == (1, 1)
        queue.task_done()
        queue.join()
        with pytest.raises(ValueError, match="too many times"):
            queue.task_done()
    with Queue[Any](place, **COUNTING) as queue:
        assert queue.qsize() == 0


def test_a_thread_keeps_no_items_that_are_done(place: Path) -> None:
    """A thread that keeps one item, and gets and rejects many others, remembers only that one."""
    with Queue[Any](place, **COUNTING) as queue:
        queue.put_many(["kept", *range(20)])
        assert queue.get() == "kept"
        for number in range(20):
            assert queue.get() == number
            queue.reject(number, retry=False)
        assert len(queue._own_tasks()) == len(queue._tasks) == 1
        queue.task_done()


def test_attempts_of_a_thread_count_over_closings(place: Path) -> None:
    """An item that is got and not done when the queue is closed has used an attempt. After ``max_attempts`` of them it
    is a dead letter."""
    with Queue[Any](place, **COUNTING) as queue:
        queue.put(1)
    for _ in range(2):
        with Queue[Any](place, **COUNTING) as queue:
            assert queue.get() == 1
    with Queue[Any](place, **COUNTING) as queue:
        queue.put(2)
        assert get_and_end(queue) == 2 and [each[:2] for each in dead(queue.persistent)] == [(b"1", 2)]
        with pytest.raises(Empty):
            queue.get(block=False)


def test_join_and_shutdown_of_threads_wait_for_a_delayed_item(place: Path) -> None:
    """An item that waits for its retry is unfinished, and is got before ``ShutDown``. ``immediate`` leaves it."""
    with Queue[Any](place, retry_delay_seconds=0.05) as queue:
        queue.put(1)
        assert queue.get() == 1
        queue.reject(1)
        assert queue.qsize() == queue.unfinished_tasks == 1
        joining = Waiting(queue.join)
        queue.shutdown()
        assert get_and_end(queue) == 1 and joining.answer() is None
        with pytest.raises(ShutDown):
            queue.get()
    with Queue[Any](place, retry_delay_seconds=1000.0) as queue:
        queue.put(2)
        assert queue.get() == 2
        queue.reject(2)
        queue.shutdown()
        getting = Waiting(queue.get)
        queue.shutdown(immediate=True)
        assert isinstance(getting.answer(), ShutDown) and queue.qsize() == 0


def test_dead_letters_make_room_for_threads_and_end_join(place: Path) -> None:
    """If ``get`` makes dead letters of items, threads in ``put`` get all their places; without other items, ``join``
    ends."""
    settings: dict[str, Any] = {"maxsize": 3, "max_attempts": 1, "dead_letter": "dead"}
    with Queue[Any](place, **settings) as queue:
        queue.put_many(list("abc"))
        assert [queue.get(), queue.get()] == ["a", "b"]
    with Queue[Any](place, **settings) as queue:
        putters = [Waiting(queue.put, item) for item in "def"]
        wait_for(lambda: len(waiters_of(queue)) == 3)
        assert queue.get() == "c"
        assert [putter.answer() for putter in putters] == [None] * 3
        assert sorted(queue.get() for _ in putters) == ["d", "e", "f"]
    with Queue[Any](place, **settings) as queue:
        joiner, putter = Waiting(queue.join), Waiting(queue.put_many, ["g", "h"])
        wait_for(lambda: len(waiters_of(queue)) == 1)
        assert [queue.get(), queue.get()] == ["g", "h"] and putter.answer() is None
        for _ in range(2):
            queue.task_done()
        assert joiner.answer() is None
        queue.put("i")
        assert queue.get() == "i"
    with Queue[Any](place, **settings) as queue:
        joiner = Waiting(queue.join)
        with pytest.raises(Empty):
            queue.get(timeout=0)
        assert joiner.answer() is None


def test_a_rejected_item_keeps_its_place_while_others_are_written(place: Path) -> None:
    """An item that comes back while puts are written is counted: later puts do not exceed ``maxsize``."""
    gate = Gate()
    with call_on(replace(DISK, failpoint=gate.failpoint), Queue[int], place, 2, **COUNTING) as queue:
        queue.put(0)
        assert queue.get() == 0
        gate.armed = True
        putter = Waiting(queue.put, 1)
        assert gate.reached.wait(SECONDS)
        rejecter = Waiting(queue.reject, 0)
        wait_for(lambda: not queue._tasks)
        late = Waiting(queue.put, 2)
        wait_for(lambda: len(waiters_of(queue)) == 1)
        gate.go_on.set()
        assert putter.answer() is None and rejecter.answer() is None
        assert (queue.qsize(), late.is_alive()) == (2, True)
        assert get_and_end(queue) == 0 and late.answer() is None


def test_a_rejected_item_has_its_place_before_it_is_back(place: Path) -> None:
    """While a rejection with a delay is written, its item is counted, also in a queue that was opened with items."""
    gate = Gate()
    with Queue[int](place, 2, **COUNTING) as queue:
        queue.put_many([0, 1])
    with call_on(replace(DISK, failpoint=gate.failpoint), Queue[int], place, 2, **COUNTING) as queue:
        assert queue.get() == 0
        gate.armed = True
        rejecter = Waiting(partial(queue.reject, 0, delay_seconds=600.0))
        assert gate.reached.wait(SECONDS)
        late = Waiting(queue.put, 2)
        wait_for(lambda: len(waiters_of(queue)) == 1)
        gate.go_on.set()
        assert rejecter.answer() is None
        assert (queue.qsize(), late.is_alive()) == (2, True)
        assert get_and_end(queue) == 1 and late.answer() is None


def test_get_many_ends_before_an_item_that_failed(place: Path) -> None:
    """``get_many`` returns an item that failed before alone. A list with rejected items is settled by its last one."""

    class Hooked(Queue[Any]):
        def _get(self) -> Any:
            return super()._get()

    for kind in (Queue[Any], Hooked):
        with kind(place.with_name(kind.__name__), **COUNTING) as queue:
            queue.put_many([1, 2, 3])
            assert queue.get_many(9) == [1, 2, 3]
            queue.reject(2, "no")
            queue.task_done()
            assert len(queue.persistent) == 0
            queue.task_done()
            assert queue.get_many(9) == [2]
            queue.reject(2, "again")
            assert queue.unfinished_tasks == 0 and dead(queue.persistent) == [(b"2", 2, "again")]
            queue.persistent.dead_letters.clear()
            with pytest.raises(Empty):
                queue.get_many(9, block=False)


def test_an_item_of_a_thread_that_the_codec_refuses_is_rejected(place: Path) -> None:
    """``reject`` takes the ``CodecError`` of an item. Its text without its advice is the reason of the dead letter."""
    with PersistentQueue(place) as core, core.transaction() as session:
        session.enqueue_many([b"{oops", b"1"])
    with Queue[Any](place, **COUNTING) as queue:
        with pytest.raises(CodecError) as refused:
            queue.get()
        queue.reject(refused.value, retry=False)
        problem = refused.value.problem
        assert get_and_end(queue) == 1 and dead(queue.persistent) == [(b"{oops", 1, problem)]


def test_a_rejection_without_room_is_tried_again_by_task_done(place: Path) -> None:
    """If the dead-letter queue is full, ``reject`` raises ``QueueFullError``, and ``task_done`` tries it again."""
    with PersistentQueue(place.with_name("dead"), max_items=1) as full:
        with full.transaction() as session:
            session.enqueue(b"other")
        with Queue[Any](place, dead_letter=full) as queue:
            queue.put(1)
            assert queue.get() == 1
            with pytest.raises(QueueFullError):
                queue.reject(1, "no", retry=False)
            full.clear()
            queue.task_done()
            assert dead(queue.persistent) == [(b"1", 1, "no")] and queue.unfinished_tasks == 0


def test_a_queue_of_threads_reads_a_subscription(place: Path) -> None:
    """With ``subscription``, ``get`` reads the subscription of that name, which is made; ``put`` is for all of them."""
    with Queue[Any](place, subscription="a", fan_out=True, **COUNTING) as queue:
        queue.persistent.subscribe("b")
        getting = Waiting(queue.get)
        queue.put(1)
        assert getting.answer() == 1
        queue.task_done()
        queue.join()
        assert queue.qsize() == 0
    with Queue[Any](place, subscription="b") as queue:
        assert queue.qsize() == 1 and get_and_end(queue) == 1
        queue.persistent.unsubscribe("b")
        with pytest.raises(NotFoundError):
            queue.get()
    with Queue[Any](place, subscription="c", **COUNTING) as queue:
        queue.persistent.unsubscribe("c")
        assert queue.qsize() == 0
    with pytest.raises(TypeError):
        Queue[Any](place, subscription=1)  # type: ignore[arg-type]
    PersistentQueue(place).close()  # the lock is free


def test_where_attempts_have_no_meaning_they_are_refused(place: Path) -> None:
    """``FifoQueue`` refuses to count attempts, since ``pop`` consumes at once. ``reject`` needs a queue that counts."""
    with pytest.raises(ValueError, match="consumes an item when it returns it"):
        FifoQueue(place, dead_letter="dead")  # type: ignore[call-arg]
    with Queue[Any](place) as queue:
        queue.put(1)
        queue.get()
        with pytest.raises(ValueError, match="does not count attempts"):
            queue.reject(1)


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_a_rejected_item_of_a_task_comes_again_and_then_is_a_dead_letter(place: Path) -> None:
    """``reject`` puts an item back to its place until its attempts are used up. Then it is a dead letter.

    ``requeue`` brings it back.
    """

    async def main() -> None:
        async with aio.Queue[Any](place, **COUNTING) as queue:
            await queue.put("bad")
            queue.put_nowait("good")
            assert await queue.get() == "bad"
            with pytest.raises(NotHeldError, match="no such item"):
                await queue.reject("good")
            with pytest.raises(ValueError, match="a delay must be"):
                await queue.reject("bad", delay_seconds=-1.0)
            await queue.reject("bad", "first")
            assert queue.qsize() == 2 and await queue.get() == "bad"
            await queue.reject("bad", "second")
            assert await queue.get() == "good" and await adead(queue) == [(b'"bad"', 2, "second")]
            queue.task_done()
            await queue.join()
            assert await queue.requeue() == 1 and queue.qsize() == 1
            joining = asyncio.create_task(queue.join())
            assert await queue.get() == "bad"
            await queue.reject("bad", retry=False)
            await joining
            graves = queue.dead_letters
            assert queue.dead_letters is graves and len(graves) == 1
        assert graves.closed
        async with aio.Queue[Any](place) as queue:
            with pytest.raises(ValueError, match="does not count attempts"):
                await queue.reject("bad")

    run(main())


def test_attempts_of_a_task_count_over_closings(place: Path) -> None:
    """An item that is got and not done when the queue is closed has used an attempt. One that was not got has not."""

    async def main() -> None:
        async with aio.Queue[Any](place, **COUNTING) as queue:
            for n in range(3):
                await queue.put(n)
        for _ in range(2):
            async with aio.Queue[Any](place, **COUNTING) as queue:
                assert await queue.get() == 0
        async with aio.Queue[Any](place, **COUNTING) as queue:
            found = await asyncio.gather(queue.get(), queue.get())
            assert sorted(found) == [1, 2] and [each[:2] for each in await adead(queue)] == [(b"0", 2)]
            with pytest.raises(asyncio.QueueEmpty):
                queue.get_nowait()

    run(main())


def test_a_cancelled_get_leaves_its_item_to_the_next_one(place: Path) -> None:
    """If a ``get`` is cancelled while its item is taken, the next one returns that item in the same attempt.

    No item is lost at any await where a task is cancelled.
    """

    async def main() -> None:
        async with aio.Queue[Any](place, max_attempts=1, dead_letter="dead") as queue:

            async def begin() -> None:
                await queue.put(1)

            async def work(_: None) -> None:
                assert await queue.get() == 1
                await queue.reject(1, "no")

            async def look(_: None, was_cancelled: bool) -> None:
                await queue.flush()
                if queue._got:
                    queue.task_done()
                elif not (letters := await adead(queue)):
                    assert await asyncio.wait_for(queue.get(), SECONDS) == 1
                    queue.task_done()
                else:
                    assert letters == [(b"1", 1, "no")]
                await queue.join()
                await queue.dead_letters.clear()
                assert queue.qsize() == 0

            assert await cancelled_everywhere(begin, work, look) >= 2

    run(main())


def test_join_and_shutdown_of_tasks_wait_for_a_delayed_item(place: Path) -> None:
    """An item that waits for its retry is unfinished, and is got before ``QueueShutDown``."""

    async def main() -> None:
        async with aio.Queue[Any](place, retry_delay_seconds=0.05) as queue:
            await queue.put(1)
            assert await queue.get() == 1
            await queue.reject(1)
            joining = asyncio.create_task(queue.join())
            await asyncio.sleep(0)
            queue.shutdown()
            assert queue.qsize() == 1 and await queue.get() == 1 and not joining.done()
            queue.task_done()
            await joining
            with pytest.raises(aio.QueueShutDown):
                await queue.get()
        async with aio.Queue[Any](place, retry_delay_seconds=1000.0) as queue:
            await queue.put(2)
            assert await queue.get() == 2
            queue.shutdown(immediate=True)
            await queue.reject(2)
            await queue.join()

    run(main())


def test_many_workers_of_a_counting_queue(place: Path) -> None:
    """Workers that fail at random items get each item until it is done or a dead letter; none is lost."""

    async def main() -> None:
        async with aio.Queue[Any](place, maxsize=10, max_attempts=3, dead_letter="dead") as queue:
            done: list[int] = []
            attempts: dict[int, int] = {}

            async def worker() -> None:
                while True:
                    item = await queue.get()
                    attempts[item] = attempts.get(item, 0) + 1
                    if item % 5 == 0 or (item % 3 == 0 and attempts[item] == 1):
                        await queue.reject(item, "bad")
                    else:
                        await asyncio.sleep(0)
                        done.append(item)
                        queue.task_done()

            workers = [asyncio.create_task(worker()) for _ in range(4)]
            for n in range(40):
                await queue.put(n)
            await queue.join()
            for each in workers:
                each.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            bad = list(range(0, 40, 5))
            assert sorted(done) == [n for n in range(40) if n not in bad]
            assert sorted(int(item) for item, *_ in await adead(queue)) == bad
            assert all(attempts[n] == 3 for n in bad)

    run(main())


@pytest.mark.parametrize(
    "wrong",
    [{"delay_seconds": -1}, {"delay_seconds": "x"}, {"retry": False}, {"reason": None}, {"reason": 0}],
    ids=repr,
)
def test_a_rejection_of_a_task_that_is_refused_changes_nothing(place: Path, wrong: dict[str, Any]) -> None:
    """A ``reject`` with a wrong argument, or whose ``retry_delay_seconds`` raises, leaves the item as it was:
    ``task_done`` is for the oldest item that was got. While a rejection is under way, it is for the next one."""

    async def main() -> None:
        delays: Iterator[float] = iter(())
        async with aio.Queue(place / "jobs", retry_delay_seconds=lambda _: next(delays)) as queue:
            for item in "abc":
                await queue.put(item)
            assert [await queue.get() for _ in "abc"] == ["a", "b", "c"]
            with pytest.raises((TypeError, ValueError)):
                await queue.reject("b", **wrong)
            with pytest.raises(RuntimeError):
                await queue.reject("b")
            queue.task_done()
            delays = iter([0.0])
            rejecting = asyncio.create_task(queue.reject("b"))
            await asyncio.sleep(0)
            with pytest.raises(NotHeldError, match="no such item was got"):
                await queue.reject("b")
            queue.task_done()
            with pytest.raises(ValueError, match="too many times"):
                queue.task_done()
            await rejecting
        with pytest.raises(ClosedError):
            queue.task_done()
        async with aio.Queue(place / "jobs") as again:
            assert (await again.get(), again.qsize()) == ("b", 0)

    asyncio.run(main())


def test_a_full_dead_letter_queue_refuses_the_rejection_of_a_task(place: Path) -> None:
    """If the dead-letter queue is full, ``reject`` raises ``QueueFullError``, and ``task_done`` tries it again."""

    async def main() -> None:
        async with aio.PersistentQueue[bytes](place.with_name("dead"), max_items=1) as graves:
            async with graves.transaction() as session:
                await session.enqueue(b"other")
            async with aio.Queue[Any](place, dead_letter=graves) as queue:
                await queue.put(1)
                assert await queue.get() == 1 and queue.dead_letters is graves
                with pytest.raises(QueueFullError):
                    await queue.reject(1, "no", retry=False)
                await graves.clear()
                queue.task_done()
                await queue.join()
                assert await adead(queue) == [(b"1", 1, "no")]
        with PersistentQueue(place.with_name("dead")) as core:
            async with aio.Queue[Any](place, dead_letter=core) as queue:
                with pytest.raises(ValueError, match="was passed as dead_letter"):
                    _ = queue.dead_letters

    run(main())


def test_an_item_of_a_task_that_the_codec_refuses_is_rejected(place: Path) -> None:
    """``reject`` takes the ``CodecError`` of an item. One that waits when the queue is closed gets its error."""

    async def main() -> None:
        with PersistentQueue(place) as core, core.transaction() as session:
            session.enqueue_many([b"{oops", b"1"])
        async with aio.Queue[Any](place, **COUNTING) as queue:
            with pytest.raises(CodecError) as refused:
                await queue.get()
            await queue.reject(refused.value, retry=False)
            assert await adead(queue) == [(b"{oops", 1, refused.value.problem)] and await queue.get() == 1
            rejecting = asyncio.create_task(queue.reject(1))
            await asyncio.sleep(0)
            queue._fail(ClosedError("closed by a test"))
            with pytest.raises(ClosedError):
                await rejecting
            queue._failure = None
            await queue.reject(1)

    run(main())


def test_no_thread_for_a_rejection(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, ``reject`` raises that error, and the item is as before."""

    async def main() -> None:
        async with aio.Queue[Any](place, **COUNTING) as queue:
            await queue.put(1)
            assert await queue.get() == 1
            await queue._worker.ended()
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", _no_thread)
                with pytest.raises(RuntimeError, match="can't start"):
                    await queue.reject(1)
            await queue.reject(1, retry=False)
            assert len(queue.dead_letters) == 1

    run(main())


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_queue_of_tasks_reads_a_subscription(place: Path) -> None:
    """With ``subscription``, ``get`` reads the subscription of that name, which is made; ``put`` is for all of them."""

    async def main() -> None:
        for settings in ({}, COUNTING):
            path = place.with_name(f"queue{len(settings)}")
            async with aio.Queue[Any](path, subscription="a", fan_out=True, **settings) as queue:
                getting = asyncio.create_task(queue.get())
                await until(lambda: queue._watcher.is_watching)
                await queue.put(1)
                assert await getting == 1
                queue.task_done()
                await queue.join()
            async with aio.Queue[Any](path, subscription="a", **settings) as queue:
                assert queue.qsize() == 0
            async with aio.Queue[Any](path, subscription="b", **settings) as queue:
                await queue.put(2)
                assert await queue.get() == 2
            with pytest.raises(NotFoundError):
                await aio.Queue[Any](path).open()

    run(main())


# --- processes --------------------------------------------------------------------------------------------------------

PROGRAMS = {
    "threads": """
import os, signal, sys
from persistentqueue.compat import Empty, Queue

with Queue(sys.argv[1], max_attempts=2, dead_letter="dead") as queue:
    try:
        print(queue.get(block=False), flush=True)
    except Empty:
        print(None, flush=True)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
""",
    "tasks": """
import asyncio, os, signal, sys
from persistentqueue import aio

async def main():
    async with aio.Queue(sys.argv[1], max_attempts=2, dead_letter="dead") as queue:
        if queue.qsize():
            await queue.put(2)
            item = await queue.get()
            if item == 1:
                print(item, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        print(None, flush=True)

asyncio.run(main())
""",
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_attempts_of_killed_processes_count(place: Path, kind: str) -> None:
    """A process that is killed behind ``get`` has used an attempt. After ``max_attempts`` kills, the item is a dead
    letter, and was got exactly so often."""
    with Queue[Any](place) as queue:
        queue.put(1)
    command = [sys.executable, "-c", PROGRAMS[kind], str(place)]
    found = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(3)]
    assert [each.stdout.strip() for each in found] == ["1", "1", "None"], found[-1].stderr
    with PersistentQueue(place.with_name("dead")) as graves:
        assert [DeadLetter.decode(each).attempts for each in graves.browse()] == [2]

"""Queues of ``aio`` and their event loop: forked children, other threads, loops that have ended, and closes and
openings that do not block it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import PersistentQueue, Producer, QueueLockedError, UnflushedWarning, aio, codecs
from persistentqueue.aio import flush_batcher, futures

from .test_aio import SECONDS, put, run, until

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "queue"


def output(program: str, *arguments: object) -> str:
    """Return what a program in a process of its own prints."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, check=True)
    assert not done.stderr
    return done.stdout


FORKING_QUEUE = """
import asyncio, os, sys
from persistentqueue import ClosedError, aio

async def tried(call):
    try:
        found = call()
        return repr(await found if asyncio.iscoroutine(found) else found)
    except ClosedError as error:
        return "parent" if "belongs to the parent process" in str(error) else str(error)

async def use(queue):
    calls = (
        lambda: queue.put_nowait(3), queue.get_nowait, queue.task_done, lambda: queue.put(3), queue.get, queue.flush,
        queue.join, lambda: queue.dead_letters, queue.shutdown,
    )
    found = {await tried(each) for each in calls}
    await queue.close()
    print(found, queue.qsize(), flush=True)

async def main():
    queue = await aio.Queue(sys.argv[1]).open()
    await queue.put(1)
    await queue.put(2)
    await queue.get()
    pid = os.fork()
    if not pid:
        asyncio.run(use(queue))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    queue.task_done()
    assert await queue.get() == 2
    queue.task_done()
    await queue.join()
    await queue.close()

asyncio.run(main())
"""


@needs_fork
def test_a_forked_child_of_a_queue_is_refused(place: Path) -> None:
    """In a forked child, each call of ``aio.Queue`` raises ``ClosedError``, and ``close`` does nothing. The parent goes
    on."""
    assert output(FORKING_QUEUE, place) == "{'parent'} 1\n"


FORKING_SESSIONS = """
import asyncio, os, sys
from persistentqueue import ClosedError, aio

async def tried(call):
    try:
        found = call()
        return repr(await asyncio.wait_for(found, 20) if asyncio.iscoroutine(found) else found)
    except ClosedError:
        return "closed"

async def use(queue, session, subscription):
    calls = (
        queue.session, queue.stats, queue.peek, lambda: len(queue), lambda: queue.subscribe("b"), subscription.session,
        session.dequeue, session.flush, lambda: session.enqueue(b"c"), lambda: session.dequeue(timeout=None),
    )
    found = {await tried(each) for each in calls}
    await session.rollback()
    await session.close()
    await queue.close()
    print(found, queue.closed, flush=True)
    os._exit(0)

async def main():
    queue = await aio.PersistentQueue(sys.argv[1]).open()
    subscription = await queue.subscribe("a")
    session = queue.session()
    await session.enqueue_many([b"a", b"b"])
    await session.flush()
    await queue.stats()  # its thread is idle now
    assert await session.dequeue() == b"a"
    pid = os.fork()
    if not pid:
        asyncio.run(use(queue, session, subscription))
    assert os.waitpid(pid, 0)[1] == 0
    await session.flush()
    await session.close()
    assert len(queue) == 1
    await queue.close()

asyncio.run(main())
"""


@needs_fork
def test_a_forked_child_of_sessions_is_refused(place: Path) -> None:
    """In a forked child, each call of ``aio.PersistentQueue`` and its sessions raises ``ClosedError``, and none waits
    for a thread of the parent."""
    assert output(FORKING_SESSIONS, place) == "{'closed'} True\n"


def test_another_thread_is_refused(place: Path) -> None:
    """A call of ``aio.Queue`` from another thread raises ``RuntimeError`` that names the calls for it."""

    async def main() -> None:
        async with aio.Queue[int](place) as queue:
            await queue.put(1)
            for call in (lambda: queue.put_nowait(2), queue.get_nowait, queue.task_done, queue.shutdown):
                with pytest.raises(
                    RuntimeError, match=r"another one: pass the call to that loop, by loop\.call_soon_th"
                ):
                    await asyncio.to_thread(call)
            assert await asyncio.to_thread(queue.qsize) == 1
            assert await queue.get() == 1
            queue.task_done()
            await queue.join()

    run(main())


def test_another_loop_is_told_no_items(place: Path) -> None:
    """The error of another event loop names the path of ``aio.Queue``, and none of its items."""
    queue = aio.Queue[str](place)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(queue.open())
    loop.run_until_complete(queue.put("confidential"))

    async def too_late() -> None:
        with pytest.raises(RuntimeError, match=f"^{place}: the queue is bound to a different event loop") as caught:
            await queue.get()
        assert "confidential" not in str(caught.value)

    run(too_late())
    loop.run_until_complete(queue.close())
    loop.close()


def locked(place: Path) -> bool:
    """Return whether the queue is open."""
    try:
        PersistentQueue(place, lock_timeout=0).close()
    except QueueLockedError:
        return True
    return False


async def wait_in_a_queue(place: Path, *, is_ready: bool) -> object:
    queue = await aio.Queue[int](place).open()
    if is_ready:
        await queue.put(1)
        await queue.get()
    task = asyncio.create_task(queue.get())
    await until(lambda: queue._watcher.is_watching)
    return queue, task


async def wait_in_a_session(place: Path, *, is_ready: bool) -> object:
    queue = await aio.PersistentQueue[bytes](place).open()
    source: Any = await queue.subscribe("a") if is_ready else queue

    async def look() -> bytes | None:
        async with source.session() as session:
            item: bytes | None = await session.dequeue(timeout=None)
            await session.rollback()
            return item

    task = asyncio.create_task(look())
    await until(lambda: source._watch._watcher.is_watching)
    return queue, task


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("is_ready", [False, True])
@pytest.mark.parametrize("wait", [wait_in_a_queue, wait_in_a_session], ids=["Queue", "PersistentQueue"])
def test_a_queue_whose_loop_has_ended_is_dropped(
    place: Path, monkeypatch: pytest.MonkeyPatch, wait: Callable[..., Any], is_ready: bool
) -> None:
    """If a loop has ended while a task waited for an item, its drop frees the lock and ends the thread."""
    monkeypatch.setattr(futures, "LINGER_SECONDS", 0.01)
    loop = asyncio.new_event_loop()
    kept = loop.run_until_complete(asyncio.wait_for(wait(place, is_ready=is_ready), SECONDS))
    loop.close()
    assert locked(place)
    core = weakref.ref(kept[0]._core)
    del loop, kept
    deadline = time.monotonic() + SECONDS
    gc.collect()
    while core() is not None and time.monotonic() < deadline:
        time.sleep(0.001)  # a thread may still refer to its last work
        gc.collect()
    assert not locked(place)
    for thread in threading.enumerate():
        if thread.name.startswith("persistentqueue-aio"):
            thread.join(SECONDS)


@pytest.mark.parametrize("wait", [wait_in_a_queue, wait_in_a_session], ids=["Queue", "PersistentQueue"])
def test_a_task_that_waits_stays_as_long_as_its_loop(place: Path, wait: Callable[..., Any]) -> None:
    """A task that waits for an item gets it, also if the program keeps neither the task nor the queue."""

    async def main() -> None:
        done: list[Any] = []
        queue, task = await wait(place, is_ready=False)
        task.add_done_callback(partial(lambda queue, task: done.append((queue, task.result())), queue))
        del queue, task
        gc.collect()
        with Producer(place) as producer:
            producer.enqueue(b"1")
            producer.flush()
        await until(lambda: done)
        ((queue, item),) = done
        assert item in (1, b"1")
        await queue.close()

    run(main())


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_drop_that_loses_items_warns(place: Path, is_saved: bool) -> None:
    """If ``aio.Queue`` is dropped before its last puts are durable, there is an ``UnflushedWarning``. After a flush
    there is none."""
    queue: aio.Queue[int] | None = aio.Queue[int](place)
    assert queue is not None
    loop = asyncio.new_event_loop()
    loop.run_until_complete(queue.open())
    queue.put_nowait(1)  # no loop runs, so nothing saves it
    if is_saved:
        loop.run_until_complete(queue.flush())
    loop.run_until_complete(queue._worker.ended())
    loop.close()
    del loop
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.simplefilter("always", UnflushedWarning)
        queue = None
        gc.collect()
    lost = [] if is_saved else [(__file__, True)]
    assert [(each.filename, "dropped without close()" in str(each.message)) for each in caught] == lost
    with PersistentQueue(place) as core:
        assert len(core) == is_saved


@pytest.mark.parametrize("count", [1, 3])
def test_a_close_comes_behind_the_flushes_that_have_begun(place: Path, count: int) -> None:
    """Flushes that begin in the same round of the loop as ``close``, and before it, are committed."""

    async def main() -> None:
        queue = await aio.PersistentQueue[bytes](place).open()
        sessions = [queue.session() for _ in range(count)]
        for session in sessions:
            await session.enqueue(b"x")
        found = await asyncio.gather(*(session.flush() for session in sessions), queue.close())
        assert found == [True] * count + [None]

    run(main())
    with PersistentQueue(place) as core:
        assert len(core) == count


def test_a_close_that_waits_for_a_call_blocks_no_loop(place: Path) -> None:
    """While ``close`` of ``aio.PersistentQueue`` waits for the end of a call, other tasks of the loop run."""
    begun, go_on, was_told = threading.Event(), threading.Event(), []

    def delay(_attempt: int) -> float:
        begun.set()
        was_told.append(go_on.wait(2.0))
        return 0.0

    async def main() -> None:
        queue = await aio.PersistentQueue[bytes](place, retry_delay_seconds=delay).open()
        await put(queue, b"x")
        session = queue.session()
        item = await session.dequeue()
        assert item is not None
        rejecting = asyncio.create_task(session.reject(item))
        await until(begun.is_set)
        closing = asyncio.create_task(queue.close())
        for _ in range(20):  # rounds in which the close gets to where it waits
            await asyncio.sleep(0.001)
        assert queue.closed and not closing.done()
        go_on.set()
        await closing
        await asyncio.wait([rejecting])

    run(main())
    assert was_told == [True]


def test_two_openings_of_one_object(place: Path) -> None:
    """While a task opens ``aio.Queue``, another one that opens the object gets ``RuntimeError`` at once."""

    async def main() -> None:
        queue = aio.Queue[int](place, lock_timeout=SECONDS)
        with PersistentQueue(place):
            first = asyncio.create_task(queue.open())
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="opened before by this object"):
                await queue.open()
            assert not first.done()
        assert await first is queue
        await queue.close()
        again = aio.Queue[int](place, lock_timeout=0)
        with PersistentQueue(place), pytest.raises(QueueLockedError):
            await again.open()
        async with again:  # an opening that failed may be tried again
            await again.put(1)

    run(main())


class NamingCodec(codecs.Codec[str]):
    """Adds the value of a context variable to each item."""

    def encode(self, item: str) -> bytes:
        return f"{item} by {CALLER.get()}".encode()

    def decode(self, data: bytes) -> str:
        return f"{data.decode()} for {CALLER.get()}"


CALLER: ContextVar[str] = ContextVar("CALLER", default="nobody")


def test_codecs_see_the_context_of_the_caller(place: Path) -> None:
    """A codec sees the context variables of the calling task, in memory and in a thread."""

    async def look(queue: aio.PersistentQueue[str], name: str) -> list[str]:
        CALLER.set(name)
        return await queue.peek(2) + [item async for item in queue.browse()]

    async def main() -> None:
        CALLER.set("task")
        async with aio.PersistentQueue(place, codec=NamingCodec()) as queue:
            async with queue.transaction() as session:
                await session.enqueue("1")
                await session.enqueue_many(["2"])
            looks = await asyncio.gather(look(queue, "a"), look(queue, "b"))
            assert list(looks) == [["1 by task for " + name, "2 by task for " + name] * 2 for name in "ab"]
        async with aio.PersistentQueue(place, codec=NamingCodec()) as queue, queue.session() as session:
            assert [await session.dequeue(), await session.dequeue()] == ["1 by task for task", "2 by task for task"]
            await session.rollback()

    run(main())


INTERRUPTED = """
import asyncio, signal, sys, threading
from persistentqueue import aio

def interrupted(thread):
    start(thread)
    if thread.name.startswith("persistentqueue-aio"):
        for _ in range(2):  # from Python 3.11 on, asyncio makes a cancellation of the first one
            signal.raise_signal(signal.SIGINT)

async def main():
    await aio.PersistentQueue(sys.argv[1]).open()

start, threading.Thread.start = threading.Thread.start, interrupted
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(main())
"""


def test_a_program_ends_that_is_interrupted_at_the_start_of_a_thread(place: Path) -> None:
    """Ctrl-C at the start of the first thread of a queue ends the program, which waits for no unknown thread."""
    command = [sys.executable, "-c", INTERRUPTED, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == -signal.SIGINT, done.stderr


def test_an_opening_without_a_thread_can_be_repeated(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue can be opened again after no thread could be started for its opening."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        queue = aio.PersistentQueue(place)
        with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="can't start new thread"):
            patched.setattr(threading.Thread, "start", refused)
            await queue.open()
        await queue.open()
        await queue.close()

    run(main())


def test_a_lost_result_comes_with_the_cancellation(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled task ends, also if Ctrl-C has lost the call of the event loop that tells the result of a thread."""
    told: list[str] = []
    tell = futures.tell

    def lose(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
        told.append(getattr(call, "__name__", ""))
        if told[-1] not in lost:
            tell(loop, call, *arguments)

    async def cancelled(call: Callable[[], Any]) -> None:
        before = len(told)
        task = asyncio.ensure_future(call())
        await until(lambda: len(told) > before)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(task), SECONDS)

    async def main() -> None:
        queue = await aio.PersistentQueue(place).open()
        session = queue.session()
        await session.enqueue(b"one")
        lost.update({"land", "_landed"})
        await cancelled(session.flush)
        await cancelled(lambda: session.enqueue_many([b"two"]))
        lost.clear()
        await session.close()
        assert len(queue) == 1
        await queue.close()

    lost: set[str] = set()
    monkeypatch.setattr(futures, "tell", lose)
    monkeypatch.setattr(flush_batcher, "tell", lose)
    run(main())


def test_a_lost_result_keeps_no_flush_from_its_room(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next flush that waits for room comes to its turn when the first one is cancelled. So it does if Ctrl-C has
    lost the call that tells the result of the first one."""
    told: list[str] = []
    tell = futures.tell

    def lose(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
        name = getattr(call, "__qualname__", "")
        told.append(name)
        if name != "_Room._landed" or told.count(name) != 1:
            tell(loop, call, *arguments)

    async def main() -> None:
        async with aio.PersistentQueue(place, max_items=1, full="block") as queue, queue.session() as consumer:
            await put(queue, b"one")
            core = queue._open()
            sessions = [queue.session() for _ in range(2)]
            flushes = []
            for session, item in zip(sessions, (b"two", b"three"), strict=True):
                await session.enqueue(item)
                flushes.append(asyncio.ensure_future(session.flush()))
                await until(lambda: core.stats().waiting == 1)  # before that, the second could overtake the first
            for item in (b"one", b"two"):
                assert await consumer.dequeue(timeout=SECONDS) == item
                await consumer.flush()
                await until(lambda: "_Room._landed" in told)
                flushes[0].cancel()
            await asyncio.wait_for(asyncio.shield(flushes[1]), SECONDS)
            assert flushes[0].cancelled()
            for session in sessions:
                await session.close()

    monkeypatch.setattr(flush_batcher, "tell", lose)
    run(main())

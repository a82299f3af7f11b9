"""``aio.Queue``, an ``asyncio.Queue`` on disk: durability, items that come back, items of other processes, limits and
failures."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from traceback import walk_tb
from typing import Any
from unittest.mock import Mock

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    CodecError,
    CorruptionError,
    DeadLetter,
    PersistentQueue,
    Producer,
    QueueFullError,
    QueueLockedError,
    SubscriptionNotFoundError,
    TooManyFilesError,
    aio,
    codecs,
)
from persistentqueue.aio import standard_queue
from persistentqueue.aio.standard_queue_worker import Entry
from persistentqueue.system.disk import DISK
from tests.support.disks import call_on
from tests.support.queues import crash, segment_files, without_descriptors
from tests.unit.runtime.test_open_queue import Gate

from .test_aio import SECONDS, run, until
from .test_aio_cancelled import cancelled_everywhere


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "queue"


def stored(place: Path) -> list[bytes]:
    """Return the items in the directory, as the next opening finds them."""
    with PersistentQueue(place) as queue:
        return list(queue.browse())


async def kill(queue: aio.Queue[Any]) -> None:
    """End the queue as ``kill -9`` ends its process."""
    assert queue._core is not None
    crash(queue._core)
    queue._fail(ClosedError("crashed by a test"))
    await queue._worker.ended()
    await queue._watcher.ended()


def test_what_was_put_survives(place: Path) -> None:
    """Items that ``put`` has put survive a crash. Items that were got and not done come back first."""

    async def main() -> None:
        queue = await aio.Queue[Any](place).open()
        for n in range(5):
            await queue.put(n)
        assert [await queue.get() for _ in range(3)] == [0, 1, 2]
        queue.task_done()
        await queue.flush()
        await kill(queue)
        async with aio.Queue[Any](place) as again:
            assert again.qsize() == 4
            assert [await again.get() for _ in range(4)] == [1, 2, 3, 4]
            for _ in range(4):
                again.task_done()
            await asyncio.wait_for(again.join(), SECONDS)

    run(main())
    assert stored(place) == []


def test_the_errors_of_an_ended_queue_stay_short(place: Path) -> None:
    """Each call of a queue that has ended has an error of its own, with the traceback of this call alone."""

    async def main() -> None:
        async with aio.Queue[int](place) as queue:
            await kill(queue)
            errors = []
            for _ in range(3):
                with pytest.raises(ClosedError, match="crashed by a test") as caught:
                    await queue.get()
                errors.append(caught.value)
            assert len({len(list(walk_tb(each.__traceback__))) for each in errors}) == 1
            assert len(set(map(id, errors))) == 3

    run(main())


def test_what_comes_during_a_close_is_refused_or_durable(place: Path) -> None:
    """While a task closes the queue, ``put_nowait`` and ``get`` of another one are refused: no item is lost. An item
    that is done meanwhile is consumed."""

    async def main() -> None:
        queue = await aio.Queue[int](place).open()
        await queue.put(0)
        assert await queue.get() == 0

        async def work() -> None:
            await queue.put(1)  # ends in the round of the loop in which the flush of close() ends
            queue.task_done()
            with pytest.raises(ClosedError, match="the queue is closed"):
                queue.put_nowait(2)
            with pytest.raises(ClosedError, match="the queue is closed"):
                await queue.get()

        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        await queue.close()
        await working

    run(main())
    assert stored(place) == [b"1"]


def test_task_done_is_for_the_item_of_the_task(place: Path) -> None:
    """``task_done`` of a task consumes the oldest item that it has got itself, and keeps the items of slower tasks. A
    task that has got none consumes the oldest item of all."""

    async def main() -> None:
        queue = await aio.Queue[int](place).open()
        for n in range(4):
            await queue.put(n)
        assert await queue.get() == 0

        async def work() -> None:
            assert [await queue.get(), await queue.get()] == [1, 2]
            queue.task_done()

        async def help_out() -> None:
            queue.task_done()

        await asyncio.create_task(work())
        await queue.flush()
        assert queue._core is not None
        assert [item.data for item in queue._core.view().browse()] == [b"0", b"2", b"3"]
        await asyncio.create_task(help_out())
        queue.task_done()  # this task has none any more: the oldest one is of the task that has ended
        with pytest.raises(ValueError, match="too many times"):
            queue.task_done()
        await queue.close()

    run(main())
    assert stored(place) == [b"3"]


def test_puts_of_many_tasks_share_syncs(place: Path) -> None:
    """A hundred tasks that put at the same time share a few groups."""

    async def main() -> None:
        async with aio.Queue[int](place) as queue:
            await asyncio.gather(*map(queue.put, range(100)))
            assert queue._core is not None and queue._core.stats().groups <= 3
            assert [queue.get_nowait() for _ in range(100)] == list(range(100))

    run(main())


def test_closing_saves_and_gives_back(place: Path) -> None:
    """Closing saves the items of ``put_nowait`` and removes the items that are done. Other items that were got are back
    in their place."""

    async def main() -> None:
        async with aio.Queue[int](place) as queue:
            for n in range(6):
                queue.put_nowait(n)
            assert [queue.get_nowait() for _ in range(3)] == [0, 1, 2]
            queue.task_done()
        await queue.close()
        for call in (queue.put(1), queue.get(), queue.flush()):
            with pytest.raises(ClosedError):
                await call
        with pytest.raises(ClosedError):
            queue.put_nowait(1)
        with pytest.raises(RuntimeError, match="make another"):
            await queue.open()

    run(main())
    assert stored(place) == [b"%d" % n for n in range(1, 6)]


def test_closing_wakes_who_waits(place: Path) -> None:
    """Closing raises ``ClosedError`` in the tasks that wait for an item or for a free place."""

    async def main() -> None:
        queue = aio.Queue[int](place, 1)
        async with queue:
            getting = asyncio.create_task(queue.get())
            await asyncio.sleep(0)
            await queue.put(1)
            assert await getting == 1
            await queue.put(2)
            waiting = [asyncio.create_task(queue.put(3))]
            await asyncio.sleep(0)
        other = aio.Queue[int](place.with_name("other"))
        async with other:
            waiting.append(asyncio.create_task(other.get()))  # type: ignore[arg-type]
            await until(lambda: other._watcher.is_watching)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in found] == [ClosedError] * 2

    run(main())


def test_not_opened(place: Path) -> None:
    """Calls before ``open`` raise ``ClosedError``. If ``open`` fails, the error says why and no thread is left."""

    async def main() -> None:
        queue = aio.Queue[int](place)
        with pytest.raises(ClosedError, match="not open"):
            queue.put_nowait(1)
        await queue.close()
        with PersistentQueue(place), pytest.raises(QueueLockedError):
            await queue.open()
        async with queue:
            assert queue.empty()

    run(main())


def test_more_than_is_kept_at_hand(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue longer than its items in memory comes out in order, whether producers or consumers are ahead, and keeps
    few items in memory."""
    monkeypatch.setattr(standard_queue, "AT_HAND_ITEMS", 10)
    count = 500

    async def main() -> None:
        async with aio.Queue[int](place) as queue:
            for n in range(100):
                queue.put_nowait(n)
            assert queue.qsize() == 100 and len(queue._queue) == 10

            async def produce() -> None:
                for n in range(100, count):
                    await (queue.put(n) if n % 3 else asyncio.sleep(0, queue.put_nowait(n)))  # type: ignore[func-returns-value]

            producing = asyncio.create_task(produce())
            for n in range(count):
                assert await queue.get() == n
                assert len(queue._queue) <= 20
                if n % 2:
                    queue.task_done()
            await producing
            for _ in range(count - count // 2):
                queue.task_done()
            await queue.join()
        async with aio.Queue[int](place) as queue:
            assert queue.qsize() == 0

    run(main())


def test_large_items_are_not_kept_at_hand(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes also limit the items that are kept in memory, and one item always fits."""
    monkeypatch.setattr(standard_queue, "AT_HAND_BYTES", 1000)

    async def main() -> None:
        async with aio.Queue[str](place) as queue:
            for n in range(20):
                await queue.put(str(n) * 2000)
                assert len(queue._queue) == 1
            for n in range(20):
                assert await queue.get() == str(n) * 2000
                queue.task_done()
            await queue.join()

    run(main())


def test_maxsize_counts_what_was_there(place: Path) -> None:
    """An opening whose ``maxsize`` is smaller than the number of items is full until enough items were got."""

    async def main() -> None:
        async with aio.Queue[int](place) as queue:
            for n in range(5):
                queue.put_nowait(n)
        async with aio.Queue[int](place, 2) as queue:
            assert queue.full() and queue.qsize() == 5
            with pytest.raises(asyncio.QueueFull):
                queue.put_nowait(5)
            putting = asyncio.create_task(queue.put(5))
            assert [await queue.get() for _ in range(6)] == list(range(6))
            await putting

    run(main())


@pytest.mark.parametrize("ahead", [False, True])
def test_others_put_as_well(place: Path, ahead: bool) -> None:
    """An item of a ``Producer`` is got like others, wakes a waiting task, and is unfinished. It is not mistaken for an
    item of this process."""

    async def main() -> None:
        async with aio.Queue[Any](place) as queue:
            own = ["own", "own 2"] if ahead else []
            for item in own:
                queue.put_nowait(item)
            with Producer(place) as producer:
                producer.enqueue(b'"other"')
                producer.flush()
            got = [await queue.get() for _ in range(len(own) + 1)]
            assert sorted(got) == sorted([*own, "other"])
            for _ in got:
                queue.task_done()
            await queue.join()
            getting = asyncio.create_task(queue.get())
            await until(lambda: queue._watcher.is_watching)
            with Producer(place) as producer:
                producer.enqueue(b"[1]")
                producer.flush()
            assert await getting == [1]

    run(main())
    assert stored(place) == [b"[1]"]


def test_items_that_cannot_be_decoded(place: Path) -> None:
    """An undecodable item raises once, in its turn, and is consumed like any other item. An item that cannot be encoded
    is not put."""
    with PersistentQueue(place) as core, core.transaction() as session:
        session.enqueue_many([b"1", b"{", b"2"])

    async def main() -> None:
        async with aio.Queue[Any](place) as queue:
            assert await queue.get() == 1
            with pytest.raises(CodecError):
                await queue.get()
            assert await queue.get() == 2
            for _ in range(3):
                queue.task_done()
            await queue.join()
            with pytest.raises(CodecError):
                await queue.put(object())
            assert queue.qsize() == 0

    run(main())
    assert stored(place) == []


@pytest.mark.parametrize("codec", ["json", None, codecs.MessagePack])
def test_codec_that_is_none(place: Path, codec: Any) -> None:
    """The constructor refuses a codec without both methods, and a class. A queue with it could not read its items."""
    with pytest.raises(TypeError, match="codec must be an object with encode and decode"):
        aio.Queue[Any](place, codec=codec)


def test_bytes(place: Path) -> None:
    """Items are encoded and decoded by the given codec. If the codec cannot decode its own bytes, nothing is put."""

    class Broken:
        def encode(self, item: object) -> bytes:
            return b"x"

        def decode(self, data: bytes) -> object:
            raise ValueError(data)

    async def main() -> None:
        async with aio.Queue[bytes](place, codec=codecs.BYTES) as queue:
            await queue.put(b"\xff")
            assert await queue.get() == b"\xff"
            queue.task_done()
        async with aio.Queue[Any](place, codec=Broken()) as queue:
            with pytest.raises(CodecError):
                await queue.put(1)

    run(main())
    assert stored(place) == []


def test_damage(place: Path) -> None:
    """A damaged block raises an error of one ``get``. The items behind it come out, and ``join`` does not wait for the
    lost item."""
    with PersistentQueue(place, memory_bytes=0) as core:
        for item in (b'"%s"' % (b"a" * 1000), b'"b"', b'"c"'):
            with core.transaction() as session:
                session.enqueue(item)
        core.trim()
        path = segment_files(place)[0]
        data = path.read_bytes()
    path.write_bytes(data.replace(b"aaaa", b"bbbb", 1))

    async def main() -> None:
        async with aio.Queue[str](place, memory_bytes=0) as queue:
            with pytest.raises(CorruptionError):
                await queue.get()
            queue.task_done()
            assert [await queue.get() for _ in range(2)] == ["b", "c"]
            for _ in range(2):
                queue.task_done()
            await asyncio.wait_for(queue.join(), SECONDS)
        path.write_bytes(data)

    run(main())


def failing_disk(kind: int) -> tuple[Any, list[bool]]:
    """Return a disk, and a flag: while the flag is set, writes and syncs fail with the error number ``kind``."""
    failing = [False]

    def fail(call: Callable[..., Any]) -> Callable[..., Any]:
        def door(*arguments: Any) -> Any:
            if failing[0]:
                raise OSError(kind, "failed by a test")
            return call(*arguments)

        return door

    return replace(DISK, pwritev=fail(DISK.pwritev), fdatasync=fail(DISK.fdatasync)), failing


def test_no_room(place: Path) -> None:
    """At a limit ``put`` puts nothing, and items of ``put_nowait`` are saved as soon as there is room."""

    async def main() -> None:
        async with aio.Queue[Any](place, max_items=2) as queue:
            await queue.put(1)
            queue.put_nowait(2)
            await queue.flush()
            queue.put_nowait(3)
            with pytest.raises(Exception, match="max_items") as caught:
                await queue.flush()
            assert queue.qsize() == 3
            with pytest.raises(type(caught.value)):
                await queue.put(4)
            assert queue.qsize() == 3
            assert [await queue.get() for _ in range(3)] == [1, 2, 3]
            queue.task_done()
            await queue.flush()
            queue.task_done()
            queue.task_done()
            await queue.join()

    run(main())
    assert stored(place) == []


def test_each_error_is_told_once(place: Path) -> None:
    """An error that a ``put`` has raised is not raised again by ``flush`` and ``close``. An error of ``put_nowait`` is
    raised by all flushes that wait."""

    async def main() -> None:
        async with aio.Queue[Any](place, max_items=1) as queue:
            await queue.put(1)
            with pytest.raises(QueueFullError):
                await queue.put(2)
            await queue.flush()
        async with aio.Queue[Any](place, max_items=1) as queue:
            queue.put_nowait(2)
            found = await asyncio.gather(queue.flush(), queue.flush(), return_exceptions=True)
            assert [type(each) for each in found] == [QueueFullError] * 2
            for _ in range(2):
                await queue.get()
                queue.task_done()

    run(main())
    assert stored(place) == []


def test_what_never_fits(place: Path) -> None:
    """An item of ``put_nowait`` that can never be saved keeps other items out until it is done, and not longer."""

    async def main() -> None:
        async with aio.Queue[Any](place, max_bytes=1000) as queue:
            queue.put_nowait("x" * 2000)
            with pytest.raises(QueueFullError):
                await queue.flush()
            with pytest.raises(QueueFullError):
                await queue.put("y")
            assert len(await queue.get()) == 2000
            queue.task_done()
            await queue.put("z")

    run(main())
    assert stored(place) == [b'"z"']


def test_done_before_it_is_saved(place: Path) -> None:
    """An item that is got and done before its write begins is done for its put, too, and is not written."""
    gate = Gate()

    async def main() -> None:
        async with call_on(replace(DISK, failpoint=gate.failpoint), aio.Queue[Any], place) as queue:
            gate.armed = True
            putting = [asyncio.create_task(queue.put(1))]
            await until(gate.reached.is_set)
            putting.append(asyncio.create_task(queue.put(2)))
            assert [await queue.get(), await queue.get()] == [1, 2]
            queue.task_done()
            queue.task_done()
            gate.go_on.set()
            await asyncio.gather(*putting)
            await queue.join()
            assert queue._core is not None and queue._core.stats().enqueued == 1

    run(main())
    assert stored(place) == []


def test_who_puts_while_it_breaks(place: Path) -> None:
    """A put that comes while a sync is about to fail raises ``BrokenQueueError`` as well."""
    began, go = threading.Event(), threading.Event()

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if putting and flags:
            began.set()
            go.wait()
            raise OSError(errno.EIO, "failed by a test")
        return DISK.pwritev(fd, buffers, offset, flags)

    putting: list[asyncio.Task[None]] = []

    async def main() -> None:
        queue = await call_on(replace(DISK, pwritev=pwritev), aio.Queue[Any], place).open()
        putting.append(asyncio.create_task(queue.put(1)))
        await until(began.is_set)
        putting.append(asyncio.create_task(queue.put(2)))
        flushing = asyncio.create_task(queue.flush())
        await until(lambda: queue._settling)
        go.set()
        found = await asyncio.gather(*putting, flushing, return_exceptions=True)
        assert [type(each) for each in found] == [BrokenQueueError] * 3
        putting.clear()
        with pytest.raises(BrokenQueueError):
            await queue.close()

    run(main())
    assert stored(place) in ([], [b"1"])


def test_what_cannot_be_taken_for_now(place: Path) -> None:
    """Each waiting task gets the error if a publication cannot be taken for now. When it can be taken, the next ``get``
    returns it."""
    disk, failing = without_descriptors()

    async def main() -> None:
        async with call_on(disk, aio.Queue[Any], place) as queue:
            getting = [asyncio.create_task(queue.get()) for _ in range(2)]
            await until(lambda: queue._watcher.is_watching)
            failing[0] = True
            with Producer(place) as producer:
                producer.enqueue(b"1")
                producer.flush()
            found = await asyncio.gather(*getting, return_exceptions=True)
            assert [type(each) for each in found] == [TooManyFilesError] * 2
            failing[0] = False
            assert await queue.get() == 1

    run(main())


def test_another_loop(place: Path) -> None:
    """A queue belongs to the loop in which it was opened: calls from another loop raise ``RuntimeError``, including
    ``close``."""
    queue = aio.Queue[int](place)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(queue.open())

    async def too_late() -> None:
        for call in (queue.put(1), queue.get(), queue.flush(), queue.close()):
            with pytest.raises(RuntimeError, match="different event loop: open, use and close it in one asyncio"):
                await call

    run(too_late())
    queue.put_nowait(1)  # outside of any loop, as with asyncio.Queue
    loop.run_until_complete(queue.close())
    loop.close()
    assert stored(place) == [b"1"]


def test_a_queue_without_items_of_its_own(place: Path) -> None:
    """A queue that was made with ``fan_out`` cannot be opened, and its lock is free afterwards."""
    PersistentQueue(place, fan_out=True).close()

    async def main() -> None:
        with pytest.raises(SubscriptionNotFoundError):
            await aio.Queue[int](place).open()

    run(main())
    PersistentQueue(place).close()


def test_a_broken_queue(place: Path) -> None:
    """After a failed sync every call that puts, waits, flushes or closes raises ``BrokenQueueError``. The item is there
    unless its end was durable."""
    disk, failing = failing_disk(errno.EIO)

    async def main() -> None:
        queue = call_on(disk, aio.Queue[Any], place)
        await queue.open()
        await queue.put(1)
        assert await queue.get() == 1
        getting = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        failing[0] = True
        queue.task_done()
        with pytest.raises(BrokenQueueError):
            await queue.flush()
        with pytest.raises(BrokenQueueError):
            await getting
        with pytest.raises(BrokenQueueError):
            await queue.put(2)
        with pytest.raises(BrokenQueueError):
            await queue.close()
        failing[0] = False

    run(main())
    assert stored(place) in ([b"1"], [])


def test_shutdown(place: Path) -> None:
    """``shutdown`` works as in Python 3.13, on all versions: no item comes in, and the remaining items come out or,
    with ``immediate``, stay on disk."""

    async def main() -> None:
        async with aio.Queue[int](place, 2) as queue:
            for n in range(2):
                await queue.put(n)
            putting = asyncio.create_task(queue.put(2))
            await asyncio.sleep(0)
            queue.shutdown()
            for call in (putting, queue.put(3)):
                with pytest.raises(aio.QueueShutDown):
                    await call
            with pytest.raises(aio.QueueShutDown):
                queue.put_nowait(3)
            assert await queue.get() == 0
            queue.task_done()
            queue.shutdown(immediate=True)
            with pytest.raises(aio.QueueShutDown):
                await queue.get()
            with pytest.raises(aio.QueueShutDown):
                queue.get_nowait()
            await queue.join()
        async with aio.Queue[int](place) as queue:
            assert await queue.get() == 1
            queue.task_done()
            getting = asyncio.create_task(queue.get())
            await asyncio.sleep(0)
            queue.shutdown()
            with pytest.raises(aio.QueueShutDown):
                await getting

    run(main())
    assert stored(place) == []


def test_shutdown_before_an_item_is_in_memory(place: Path) -> None:
    """An item that is only on disk is still got after a shutdown; a task that waits for another one is told."""

    async def main() -> None:
        async with aio.Queue[int](place) as queue:
            for n in range(2):
                await queue.put(n)
        async with aio.Queue[int](place) as queue:
            queue.shutdown()
            with pytest.raises(asyncio.QueueEmpty):
                queue.get_nowait()
            assert queue.qsize() == 2
            getting = [asyncio.create_task(queue.get()) for _ in range(3)]
            found = await asyncio.gather(*getting, return_exceptions=True)
            assert sorted(map(repr, found)) == ["0", "1", "QueueShutDown()"]

    run(main())


def test_shutdown_of_tasks_that_were_woken_for_nothing(place: Path) -> None:
    """A task is woken, another one is faster, and then the queue is shut down: the task does not wait again."""

    async def main() -> None:
        async with aio.Queue[int](place, 1) as queue:
            getting = asyncio.create_task(queue.get())
            await asyncio.sleep(0)
            queue.put_nowait(0)
            assert queue.get_nowait() == 0
            queue.shutdown()
            with pytest.raises(aio.QueueShutDown):
                await getting
        async with aio.Queue[int](place, 1) as queue:
            assert await queue.get() == 0
            await queue.put(1)
            putting = asyncio.create_task(queue.put(2))
            await asyncio.sleep(0)
            assert queue.get_nowait() == 1
            queue.put_nowait(3)
            queue.shutdown()
            with pytest.raises(aio.QueueShutDown):
                await putting

    run(main())
    assert stored(place) == [b"0", b"1", b"3"]


def test_a_put_that_is_refused_behind_what_is_at_hand(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that was refused before it was in memory is not counted any more: ``join`` does not wait for it."""
    monkeypatch.setattr(standard_queue, "AT_HAND_ITEMS", 1)

    async def main() -> None:
        async with aio.Queue[int](place, max_items=2) as queue:
            await queue.put(0)
            await queue.put(1)
            with pytest.raises(QueueFullError):
                await queue.put(2)
            assert queue.qsize() == 2
            for number in range(2):
                assert await queue.get() == number
                queue.task_done()
            await queue.join()

    run(main())
    assert stored(place) == []


def test_a_put_that_is_refused_behind_a_shutdown(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that a shutdown dropped is not counted any more, also if it turns out later that it could not be
    saved."""
    monkeypatch.setattr(standard_queue, "AT_HAND_ITEMS", 1)

    async def main() -> None:
        async with aio.Queue[int](place, max_items=2) as queue:
            await queue.put(0)
            await queue.put(1)
            putting = asyncio.create_task(queue.put(2))
            await asyncio.sleep(0)  # the put has begun; its outcome comes in a later round of the loop
            queue.shutdown(immediate=True)
            with pytest.raises(QueueFullError):
                await putting
            assert queue.qsize() == 0
            with pytest.raises(aio.QueueShutDown):
                await queue.get()
            await queue.join()

    run(main())
    assert stored(place) == [b"0", b"1"]


def test_too_many_are_done(place: Path) -> None:
    """``task_done`` is refused if it is called more often than items were got, however many are in the queue."""

    async def main() -> None:
        async with aio.Queue[int](place) as queue:
            await queue.put(1)
            with pytest.raises(ValueError, match="too many times"):
                queue.task_done()
            assert await queue.get() == 1
            queue.task_done()

    run(main())


@pytest.mark.parametrize("maxsize", [0, 1])
def test_cancelled_at_any_await(place: Path, maxsize: int) -> None:
    """If any await of opening, putting, getting, joining or closing is cancelled, each item is there once or done, in
    order. Acknowledged items are not lost, and no thread is left."""

    async def main() -> None:
        acknowledged: list[int] = []
        done: list[int] = []
        attempted: list[int] = []

        async def begin() -> set[threading.Thread]:
            with PersistentQueue(place) as core:
                core.clear()
            for each in (acknowledged, done, attempted):
                each.clear()
            return {each for each in threading.enumerate() if "aio" in each.name}

        async def work(_: set[threading.Thread]) -> None:
            async with aio.Queue[int](place, maxsize) as queue:

                async def consume() -> None:
                    while True:
                        item = await queue.get()
                        await asyncio.sleep(0)
                        queue.task_done()
                        done.append(item)

                consuming = asyncio.create_task(consume())
                try:
                    for n in range(3):
                        attempted.append(n)
                        await queue.put(n)
                        acknowledged.append(n)
                    await queue.join()
                finally:
                    consuming.cancel()
                await queue.put(3)
                acknowledged.append(3)

        async def look(threads: set[threading.Thread], was_cancelled: bool) -> None:
            await asyncio.sleep(0)
            assert {each for each in threading.enumerate() if "aio" in each.name} == threads
            left = [int(item) for item in stored(place)]
            assert left == sorted(set(left)) and not set(left) & set(done)
            assert set(acknowledged) <= set(left) | set(done) <= {0, 1, 2, 3}
            if not was_cancelled:
                assert (left, done) == ([3], [0, 1, 2])

        assert await cancelled_everywhere(begin, work, look) >= 4

    run(main())


def test_no_thread_can_be_started(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system gives no thread, ``put``, ``get`` and ``flush`` raise the error, and the next calls succeed."""

    async def main() -> None:
        async with aio.Queue[int](place) as queue:
            await queue._worker.ended()  # a worker that is idle for a while ends, too
            with monkeypatch.context() as patch:
                patch.setattr(threading, "Thread", Mock(side_effect=RuntimeError("no thread")))
                for call in (queue.put(1), queue.get()):
                    with pytest.raises(RuntimeError, match="no thread"):
                        await call
                queue.put_nowait(2)
                with pytest.raises(RuntimeError, match="no thread"):
                    await queue.flush()
            await queue.flush()
            assert await queue.get() == 2

    run(main())
    assert stored(place) == [b"2"]


LOSING = """
import asyncio, sys, threading
from persistentqueue import aio

async def main():
    queue = aio.Queue(sys.argv[1])
    await queue.open()
    if len(sys.argv) < 3:
        queue._worker.submit(threading.Event().wait)  # the thread that writes is busy
    for number in range(500):
        queue.put_nowait(number)
    if len(sys.argv) > 2:
        await queue.flush()

asyncio.run(main())
"""


@pytest.mark.parametrize("arguments", [[], ["flush"]])
def test_a_program_that_ends_without_a_close_is_warned(place: Path, arguments: list[str]) -> None:
    """If a program ends without ``close``, and its last puts are not durable, Python shows an ``UnflushedWarning``."""
    program = [sys.executable, "-c", LOSING, str(place), *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert ("UnflushedWarning: " in done.stderr, "without close()" in done.stderr) == (not arguments, not arguments)
    assert len(stored(place)) == (500 if arguments else 0)


class Stop(BaseException):
    """Raised by a codec that ends the program."""


class StoppingCodec(codecs.Codec[bytes]):
    """Raises ``Stop`` in place of decoding, while it is told to."""

    stops = False

    def encode(self, item: bytes) -> bytes:
        return item

    def decode(self, data: bytes) -> bytes:
        if self.stops:
            raise Stop
        return data


@pytest.mark.parametrize("counts", [False, True])
def test_a_codec_that_ends_the_program(place: Path, counts: bool) -> None:
    """An exception that is no ``Exception`` reaches the task that gets the item, which stays in the queue."""
    settings: Any = {"max_attempts": 5, "dead_letter": "dead"} if counts else {}

    async def main() -> None:
        codec = StoppingCodec()
        async with aio.Queue(place, codec=codec, **settings) as queue:
            await queue.put(b"x")
        codec.stops = True
        async with aio.Queue(place, codec=codec, **settings) as queue:
            for _ in range(2):
                with pytest.raises(Stop):
                    await asyncio.wait_for(queue.get(), SECONDS)
            codec.stops = False
            assert await asyncio.wait_for(queue.get(), SECONDS) == b"x"

    run(main())


def test_a_delay_that_ends_the_program(place: Path) -> None:
    """An exception of ``retry_delay_seconds`` that is no ``Exception`` reaches the task that rejects. The item stays
    got, and can be rejected again."""
    stops = True

    def delay(_attempt: int) -> float:
        if stops:
            raise Stop
        return 0.0

    async def main() -> None:
        nonlocal stops
        async with aio.Queue[Any](place, retry_delay_seconds=delay) as queue:
            await queue.put(1)
            assert await queue.get() == 1
            with pytest.raises(Stop):
                await asyncio.wait_for(queue.reject(1), SECONDS)
            stops = False
            await asyncio.wait_for(queue.reject(1), SECONDS)
            assert await asyncio.wait_for(queue.get(), SECONDS) == 1
            queue.task_done()

    run(main())


def test_rejections_look_at_few_items(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejection looks at no item behind the one that the caller has got. An equal item that is older stays."""
    looked: list[object] = []
    is_meant = Entry.is_meant

    def counted(entry: Entry, item: object) -> bool:
        looked.append(entry)
        return is_meant(entry, item)

    async def main() -> None:
        async with aio.Queue[Any](place, max_attempts=3, dead_letter="dead") as queue:
            for number in range(40):
                queue.put_nowait([number // 2])
            got = [await queue.get() for _ in range(40)]
            monkeypatch.setattr(Entry, "is_meant", counted)
            await queue.reject(got[1], "the second", retry=False)
            assert len(looked) == 2
            for item in [got[0], *got[2:]]:
                await queue.reject(item, "another", retry=False)
            assert len(looked) == 41

    run(main())
    letters = [DeadLetter.decode(letter) for letter in stored(place.parent / "dead")[:2]]
    assert [(letter.item, letter.reason) for letter in letters] == [(b"[0]", "the second"), (b"[0]", "another")]

"""Tasks that wait in ``aio.Queue``, and room: limits, slots that become free, and failures."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import ClosedError, CodecError, QueueFullError, aio
from persistentqueue.aio import standard_queue
from persistentqueue.aio.standard_queue_worker import Found, Opened, Work, work_on

from .test_aio import SECONDS, run, until
from .test_aio_queue import stored


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "queue"


def test_of_puts_of_many_tasks_those_that_fit_are_saved(place: Path) -> None:
    """If the puts of one round do not fit together, the first ones that fit are saved, and the others are refused."""

    async def main() -> None:
        async with aio.Queue[int](place, max_items=5) as queue:
            found = await asyncio.gather(*map(queue.put, range(9)), return_exceptions=True)
            assert found[:5] == [None] * 5 and queue.qsize() == 5
            assert all(isinstance(each, QueueFullError) and not each.lasting for each in found[5:])

    run(main())
    assert stored(place) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_large_item_refuses_no_small_one(place: Path) -> None:
    """An item beyond ``max_bytes`` is refused alone: the puts of the same round that fit are saved."""

    async def main() -> None:
        async with aio.Queue[str](place, max_bytes=1000) as queue:
            items = ["a", "b" * 2000, "c"]
            found = await asyncio.gather(*map(queue.put, items), return_exceptions=True)
            assert isinstance(found[1], QueueFullError) and found[1].lasting and found[::2] == [None, None]
            assert [await queue.get() for _ in range(2)] == ["a", "c"]

    run(main())


def test_puts_without_a_wait_are_saved_in_order_as_room_comes(place: Path) -> None:
    """Of ``put_nowait`` items that do not fit together, the first ones are saved, and the others when there is room.
    Nothing overtakes them."""

    async def main() -> None:
        async with aio.Queue[str](place, max_bytes=1000) as queue:
            for item in ("a", "b" * 600, "c" * 600, "d"):
                queue.put_nowait(item)
            with pytest.raises(QueueFullError):
                await queue.flush()
            assert queue._core is not None and len(queue._core) == 0 and queue._core.stats().held == 2
            for expected in "ab":
                assert (await queue.get())[0] == expected
                queue.task_done()
            await queue.flush()

    run(main())
    assert stored(place) == [b'"%s"' % (b"c" * 600), b'"d"']


def test_a_put_behind_a_refused_one_is_tried(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that comes while the thread refuses an earlier one is tried, too."""
    go_on, begun = threading.Event(), threading.Event()

    def slow(opened: Opened, work: Work) -> Found:
        """Work as the thread does, once the gate is open."""
        begun.set()
        assert go_on.wait(SECONDS)
        return work_on(opened, work)

    monkeypatch.setattr(standard_queue, "work_on", slow)

    async def main() -> None:
        async with aio.Queue[int](place, max_items=1) as queue:
            go_on.set()
            await queue.put(0)
            await queue.flush()
            go_on.clear()
            begun.clear()
            refused = asyncio.create_task(queue.put(1))
            await until(begun.is_set)
            behind = asyncio.create_task(queue.put(2))
            await until(lambda: queue._unsaved)
            go_on.set()
            found = await asyncio.gather(refused, behind, return_exceptions=True)
            assert [type(each) for each in found] == [QueueFullError] * 2

    run(main())


def test_a_put_that_is_refused_leaves_its_slot(place: Path) -> None:
    """A task whose item the codec refuses, after a wait, leaves the free slot to the next task."""

    async def main() -> None:
        async with aio.Queue[Any](place, 1) as queue:
            await queue.put(0)
            bad = asyncio.create_task(queue.put(object()))
            await until(lambda: len(queue._putters) == 1)
            good = asyncio.create_task(queue.put(1))
            await until(lambda: len(queue._putters) == 2)
            assert await queue.get() == 0
            with pytest.raises(CodecError):
                await bad
            await good

    run(main())


def test_dead_letters_make_room_and_end_join(place: Path) -> None:
    """If ``get`` makes dead letters of items, tasks in ``put`` get their slots; without other items, ``join`` ends."""
    settings: dict[str, Any] = {"maxsize": 2, "max_attempts": 1, "dead_letter": "dead"}

    async def main() -> None:
        async with aio.Queue[int](place, **settings) as queue:
            for number in range(2):
                await queue.put(number)
                assert await queue.get() == number
        async with aio.Queue[int](place, **settings) as queue:
            joining = asyncio.create_task(queue.join())
            puts = [asyncio.create_task(queue.put(number)) for number in (2, 3)]
            await until(lambda: len(queue._putters) == 2)
            assert [await queue.get() for _ in puts] == [2, 3]
            await asyncio.gather(*puts)
            for _ in puts:
                queue.task_done()
            await joining
            await queue.put(4)
            assert await queue.get() == 4
        async with aio.Queue[int](place, **settings) as queue:
            joining = asyncio.create_task(queue.join())
            getting = asyncio.create_task(queue.get())
            await joining
            getting.cancel()

    run(main())


@pytest.mark.parametrize("how", ["closed", "broken"])
def test_join_ends_with_the_queue(place: Path, how: str) -> None:
    """``join`` raises the error of a queue that is closed, or that breaks: before the end as after it."""

    async def main() -> None:
        async with aio.Queue[int](place) as queue:
            await queue.put(1)
            joining = asyncio.create_task(queue.join())
            await asyncio.sleep(0)
            error = ClosedError("closed by a test")
            if how == "closed":
                await queue.close()
            else:
                queue._fail(error)
            for each in (joining, queue.join()):
                with pytest.raises(ClosedError):
                    await each
            if how == "broken":
                queue._failure = None

    run(main())

"""Tasks of ``asyncio``: the flushes per second of a hundred tasks, beside one task, one with tickets, and threads.

Each task or thread has a session and makes its part of the flushes: first all puts, then all takes. A flush has one
item, and is durable. In each round all ways take turns, and ratios are taken within a round.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

from persistentqueue import PersistentQueue, aio

from ..harness import Row, met, percentile, spread
from ..workloads import ITEMS

TASKS = 100
BAR = 5.0
"""Least ratio to the rate of one task."""
IDLE_MS_BAR = 1.0
_THREADS = (1, 8, 32)
_IDLE_SECONDS = 2.0
_PAUSE_SECONDS = 0.001
_ITEM = ITEMS[0]

Way = Callable[[Path, int], tuple[float, float]]
"""Makes this number of flushes in, and out, and returns the seconds of both."""


def by_tasks(tasks: int, directory: Path, count: int, *, wait: bool = True) -> tuple[float, float]:
    """Make ``count`` flushes in this number of tasks of one event loop, and return the seconds in and out.

    Without ``wait``, a task goes on before its flushes are durable, and waits for all of them at the end.
    """

    async def put(queue: aio.PersistentQueue[bytes]) -> None:
        async with queue.session() as session:
            for _ in range(count // tasks):
                await session.enqueue(_ITEM)
                await (session.flush() if wait else session.flush(wait=False))

    async def take(queue: aio.PersistentQueue[bytes]) -> None:
        async with queue.session() as session:
            for _ in range(count // tasks):
                assert await session.dequeue() == _ITEM
                await (session.flush() if wait else session.flush(wait=False))

    async def main() -> tuple[float, float]:
        async with aio.PersistentQueue(directory) as queue:
            start = time.perf_counter()
            await asyncio.gather(*(put(queue) for _ in range(tasks)))
            half = time.perf_counter()
            await asyncio.gather(*(take(queue) for _ in range(tasks)))
            return half - start, time.perf_counter() - half

    return asyncio.run(main())


def by_threads(threads: int, directory: Path, count: int) -> tuple[float, float]:
    """Make ``count`` flushes in this number of threads, without an event loop, and return the seconds in and out."""
    with PersistentQueue(directory) as queue, ThreadPoolExecutor(threads) as pool:

        def put() -> None:
            with queue.session() as session:
                for _ in range(count // threads):
                    session.enqueue(_ITEM)
                    session.flush()

        def take() -> None:
            with queue.session() as session:
                for _ in range(count // threads):
                    assert session.dequeue() == _ITEM
                    session.flush()

        def all_of(work: Callable[[], None]) -> float:
            start = time.perf_counter()
            for each in [pool.submit(work) for _ in range(threads)]:
                each.result()
            return time.perf_counter() - start

        return all_of(put), all_of(take)


def rates(directory: Path, count: int, rounds: int, *, tickets: bool = True) -> dict[str, list[tuple[float, float]]]:
    """Return the flushes per second, in and out, of each way, round by round. Older trees have no tickets."""
    ways: dict[str, tuple[Way, int]] = {f"{n} task{'s' * (n > 1)}": (partial(by_tasks, n), n) for n in (TASKS, 1)}
    if tickets:
        ways["1 task with tickets"] = (partial(by_tasks, 1, wait=False), TASKS)
    ways |= {f"{n} thread{'s' * (n > 1)}": (partial(by_threads, n), n) for n in _THREADS}
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in list(ways)[:: 1 if number % 2 else -1]:
            work, many = ways[way]
            flushes = max(count if many > 1 else count // 5, many) // many * many
            seconds = work(directory / way.replace(" ", "-"), flushes)
            found[way].append((flushes / seconds[0], flushes / seconds[1]))
    return found


def idle_seconds(directory: Path, tasks: int, seconds: float = _IDLE_SECONDS) -> float:
    """Return the processor seconds of this number of tasks that wait for an item, and of their event loop."""

    async def wait(queue: aio.PersistentQueue[bytes]) -> None:
        async with queue.session() as session:
            await session.dequeue(timeout=None)

    async def main() -> float:
        async with aio.PersistentQueue(directory) as queue:
            waiting = [asyncio.create_task(wait(queue)) for _ in range(tasks)]
            while len(queue._watch) < tasks:
                await asyncio.sleep(_PAUSE_SECONDS)
            start = time.process_time()
            await asyncio.sleep(seconds)
            taken_seconds = time.process_time() - start
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return taken_seconds

    return asyncio.run(main())


def wake_ups(directory: Path, count: int) -> list[float]:
    """Return the seconds from a task's flush until a waiting task has the item, sorted."""

    async def main() -> list[float]:
        woken: list[float] = []
        async with aio.PersistentQueue(directory) as queue, queue.session() as putting, queue.session() as taking:
            for _ in range(count):
                waiting = asyncio.create_task(taking.dequeue(None))
                await asyncio.sleep(0.001)  # until the task waits
                await putting.enqueue(_ITEM)
                await putting.flush()
                start = time.perf_counter()
                assert await waiting == _ITEM
                woken.append(time.perf_counter() - start)
                await taking.flush()
        return sorted(woken)

    return asyncio.run(main())


def rows(directory: Path, count: int, rounds: int) -> Iterator[Row]:
    """Yield the lines of the table."""
    found = rates(directory / "rates", count, rounds)
    many = found[f"{TASKS} tasks"]
    for at, way in enumerate(("in", "out")):
        others = {name: [each[at] for each in pairs] for name, pairs in found.items()}
        ratios = [ours[at] / one[at] for ours, one in zip(many, found["1 task"], strict=True)]
        beside = " · ".join(f"{median(each):,.0f} {name}" for name, each in others.items() if name != f"{TASKS} tasks")
        yield Row(
            f"{TASKS} tasks of asyncio, one item of 100 B per flush, {way}",
            f"{median(others[f'{TASKS} tasks']):,.0f} flushes/s",
            beside,
            f"{spread(ratios)} × 1 task",
            f"{BAR:g} × 1 task",
            met(median(ratios) >= BAR),
        )
    seconds = wake_ups(directory / "wake", max(count // 50, 10))
    yield Row(
        "From a task's flush to the wake-up of another one",
        f"half {1e3 * percentile(seconds, 0.5):.3f} ms, 99 % {1e3 * percentile(seconds, 0.99):.3f} ms",
        "",
        "",
        "",
        "",
    )
    empty_ms, taken_ms = (1e3 * idle_seconds(directory / f"idle{tasks}", tasks) for tasks in (0, TASKS))
    yield Row(
        f"{TASKS} tasks that wait for an item, {_IDLE_SECONDS:g} s",
        f"{taken_ms:.2f} ms of processor time",
        f"{empty_ms:.2f} ms an event loop without tasks",
        "",
        f"under {IDLE_MS_BAR:g} ms",
        met(taken_ms < IDLE_MS_BAR),
    )

"""Programs that misuse the other interfaces: ``compat.Queue`` from threads, ``aio.Queue`` from tasks and threads."""

from __future__ import annotations

import asyncio
import itertools
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from persistentqueue import PersistentQueue, aio, check
from persistentqueue.compat import Queue

from .exploring import ViolationError
from .wrong import TIMEOUTS, Program, Step, is_named

_COMPAT = {
    "put": 24,
    "put_many": 8,
    "get": 22,
    "get_many": 6,
    "task_done": 18,
    "qsize": 4,
    "maxsize": 2,
    "persistent": 3,
    "shutdown": 1,
    "close": 1,
    "join": 1,
}
_AIO = {
    "put": 20,
    "put_nowait": 12,
    "get": 16,
    "get_nowait": 10,
    "task_done": 16,
    "flush": 6,
    "qsize": 2,
    "open": 1,
    "thread": 3,
    "shutdown": 1,
    "close": 1,
    "join": 2,
    "session": 8,
}
_ODD_MAXSIZES: tuple[Any, ...] = ("2", None, 1.5, -1, 0, 3, [])
_AIO_NAMED = (RuntimeError, asyncio.QueueFull, asyncio.QueueEmpty, asyncio.TimeoutError, aio.QueueShutDown)


def _compat_steps(random: Random) -> tuple[Step, ...]:
    return _steps(random, _COMPAT)


def _aio_steps(random: Random) -> tuple[Step, ...]:
    return _steps(random, _AIO)


def _steps(random: Random, weights: dict[str, int]) -> tuple[Step, ...]:
    calls = random.choices(tuple(weights), tuple(weights.values()), k=random.randint(4, 14))
    return tuple(
        Step(call, random.randrange(7), "right" if random.random() < 0.7 else random.choice(tuple(TIMEOUTS)), None)
        for call in calls
    )


FACES: dict[str, Callable[[Random], tuple[Step, ...]]] = {"compat": _compat_steps, "aio": _aio_steps}


class _Tally:
    """Acknowledged calls of an interface. Appending to a list is atomic."""

    def __init__(self) -> None:
        self.ids = itertools.count()
        self.put: list[str] = []
        self.maybe: list[str] = []
        self.got: list[str] = []
        self.done: list[int] = []
        self.bare: list[tuple[Step, BaseException]] = []

    def require(self, found: list[Any]) -> None:
        """Compare the acknowledged calls with the items in the queue at the end. Raises ``ViolationError``."""
        twice = [item for item, times in Counter(found).items() if times > 1]
        again = [item for item, times in Counter(self.got).items() if times > 1]
        lost = sorted(set(self.put) - set(self.got) - set(found))
        foreign = sorted(set(found) - set(self.put) - set(self.maybe))
        for what, items in (("there twice", twice), ("got twice", again), ("lost", lost), ("never put", foreign)):
            if items:
                raise ViolationError(f"{what}: {items[:5]} ({len(items)} in all)")
        left = len(set(found) & set(self.put))
        if left < len(set(self.put)) - len(self.done):
            raise ViolationError(f"{len(self.put)} put, {len(self.done)} done, {left} left")


def run_face(program: Program, root: str) -> None:
    """Run the program of an interface, and check the queue after it."""
    tally = _Tally()
    settings = dict(program.settings)
    if program.style == "compat":
        settings |= {"max_items": None}
        _run_compat(program, root, tally, settings)
    else:
        asyncio.run(_run_aio(program, root, tally, settings | {"max_items": None}))
    if tally.bare:
        step, error = tally.bare[0]
        found = "".join(traceback.format_exception(error))
        raise ViolationError(f"an error that no documentation names, from {step!r}:\n{found}")
    report = check(root)
    if not report.ok:
        raise ViolationError(f"check: {report.problems}")
    with PersistentQueue(root, create=False) as queue:
        tally.require([item.decode().strip('"') for item in queue.browse()])


# --- compat ----------------------------------------------------------------------------------------------------------


def _run_compat(program: Program, root: str, tally: _Tally, settings: dict[str, Any]) -> None:
    queue: Queue[Any] = Queue(root, program.seed % 5, **settings)
    threads = [threading.Thread(target=_use_compat, args=(queue, steps, tally)) for steps in program.threads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.close()


def _use_compat(queue: Queue[Any], steps: tuple[Step, ...], tally: _Tally) -> None:
    for step in steps:
        try:
            _call_compat(queue, step, tally)
        except BaseException as error:
            if not is_named(error):
                tally.bare.append((step, error))


def _call_compat(queue: Queue[Any], step: Step, tally: _Tally) -> None:
    is_right = step.how == "right"
    timeout: Any = 0.0005 if is_right else TIMEOUTS[step.how]
    if step.call == "put":
        item = str(next(tally.ids))
        queue.put(item if is_right or step.target else object(), True, timeout)
        tally.put.append(item)
    elif step.call == "put_many":
        items = [str(next(tally.ids)) for _ in range(2)]
        wrong: list[Any] = [items[0], {1}]
        queue.put_many(items if is_right else wrong, True, timeout)
        tally.put.extend(items)
    elif step.call == "get":
        tally.got.append(queue.get(step.target != 0, timeout))
    elif step.call == "get_many":
        tally.got.extend(queue.get_many(2 if is_right else timeout, True, 0.0005))
    elif step.call == "task_done":
        queue.task_done()
        tally.done.append(1)
    elif step.call == "qsize":
        repr((queue.qsize(), queue.empty(), queue.full(), queue.unfinished_tasks))
    elif step.call == "maxsize":
        queue.maxsize = _ODD_MAXSIZES[step.target]
    elif step.call == "persistent":
        list(queue.persistent.browse())
        queue.persistent.stats()
    elif step.call == "shutdown":
        queue.shutdown(step.target == 0)
    elif step.call == "close" and step.target == 0:
        queue.close()
    elif step.call == "join":
        queue.shutdown()
        with_none_left = not queue.unfinished_tasks
        if with_none_left:
            queue.join()


# --- aio -------------------------------------------------------------------------------------------------------------


async def _run_aio(program: Program, root: str, tally: _Tally, settings: dict[str, Any]) -> None:
    queue: aio.Queue[Any] = aio.Queue(root, program.seed % 5, **settings)
    await queue.open()
    await asyncio.gather(*(_use_aio(queue, steps, tally) for steps in program.threads))
    await queue.close()


async def _use_aio(queue: aio.Queue[Any], steps: tuple[Step, ...], tally: _Tally) -> None:
    for step in steps:
        try:
            await _call_aio(queue, step, tally)
        except BaseException as error:
            if not (is_named(error) or isinstance(error, _AIO_NAMED)):
                tally.bare.append((step, error))


async def _call_aio(queue: aio.Queue[Any], step: Step, tally: _Tally) -> None:
    item: Any = str(next(tally.ids)) if step.how == "right" or step.target else object()
    if step.call == "put":
        tally.maybe.append(item)
        await asyncio.wait_for(queue.put(item), 0.02)
        tally.put.append(item)
    elif step.call == "put_nowait":
        tally.maybe.append(item)
        queue.put_nowait(item)
    elif step.call == "get":
        tally.got.append(await asyncio.wait_for(queue.get(), 0.002))
    elif step.call == "get_nowait":
        tally.got.append(queue.get_nowait())
    elif step.call == "task_done":
        queue.task_done()
        tally.done.append(1)
    elif step.call == "flush":
        await queue.flush()
    elif step.call == "qsize":
        repr((queue.qsize(), queue.empty(), queue.full()))
    elif step.call == "open":
        await queue.open()
    elif step.call == "thread":
        await asyncio.get_running_loop().run_in_executor(None, _from_a_thread, queue)
    elif step.call == "shutdown":
        queue.shutdown(step.target == 0)
    elif step.call == "close" and step.target == 0:
        await queue.close()
    elif step.call == "join":
        await asyncio.wait_for(queue.join(), 0.002)


def _from_a_thread(queue: aio.Queue[Any]) -> None:
    """Call the queue from another thread with an event loop of its own, which must be refused."""

    async def use() -> None:
        queue.put_nowait("foreign")

    asyncio.run(use())

"""Tasks that wait for an item, in the order in which they came, and the one thread that waits for all of them.

The thread exists only while a task waits. It sleeps in ``wait`` of the queue, which also notices what other processes
publish. When an item is ready, the first task is woken and tries to take it. A task that has got an item, or leaves,
lets the next task try. When no item is left, the thread sleeps again. Only one task tries at a time.

The thread keeps the synchronous queue, and nothing that leads to the tasks: the event loop keeps these. So a program
whose loop was closed can drop its queue, which ends the wait and frees the lock.
"""

from __future__ import annotations

import _thread
import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar
from weakref import WeakMethod

from .futures import Worker, tell

T = TypeVar("T")


_DAY_SECONDS = 86_400.0
"""Time after which a timer of the event loop, which keeps the tasks, begins anew; it does nothing else."""


class _Tasks:
    """The facts about the tasks that wait, as the thread knows them."""

    __slots__ = ("have_left",)

    def __init__(self) -> None:
        self.have_left = False
        """True if no task waits any more."""


class Watcher:
    """The thread that waits for items of one consumer while tasks do. For the tasks of one event loop.

    Args:
        wake: Makes the queue ask its waits again whether they end.
        watched: A method that the event loop calls behind each wait. Its argument is False if no task waited any more.
    """

    is_watching = False
    """True from ``start`` to the call of ``watched``."""

    def __init__(self, wake: Callable[[], object], watched: Callable[[bool], object]) -> None:
        self._wake = wake
        self._watched = WeakMethod(watched)
        self._tasks = _Tasks()
        self._worker = Worker("persistentqueue-aio-watch")

    def start(self, loop: asyncio.AbstractEventLoop, wait: Callable[..., bool]) -> None:
        """Let the thread wait by ``wait``, unless it does. Raises ``RuntimeError`` if no thread can be started."""
        self._tasks.have_left = False
        if not self.is_watching:
            self._worker.submit(partial(_wait, loop, wait, self._tasks, self._watched))
            self.is_watching = True
            self._keep(loop, self._watched())

    def _keep(self, loop: asyncio.AbstractEventLoop, watched: object) -> None:
        """Let the loop refer to the tasks until it is closed, or the wait has ended. Perhaps the program does not."""
        self._keeping = loop.call_later(_DAY_SECONDS, self._keep, loop, watched)

    def stop(self) -> None:
        """End the wait: no task waits any more."""
        if self.is_watching:
            self._tasks.have_left = True
            self._wake()

    def note(self) -> None:
        """Take note that the wait has ended. For ``watched``."""
        self.is_watching = False
        self._keeping.cancel()

    async def ended(self) -> None:
        """Wait until the thread has ended. The queue is closed, or the subscription removed."""
        try:
            await self._worker.ended()
        finally:
            if self.is_watching:
                self.note()

    def __del__(self) -> None:
        if self.is_watching and self._worker.is_running:  # it is not in a forked child
            self._tasks.have_left = True
            with suppress(RuntimeError):  # no thread can be started: the process ends
                _thread.start_new_thread(self._wake, ())  # a finalizer may run in the middle of a call of the queue


def _wait(
    loop: asyncio.AbstractEventLoop,
    wait: Callable[..., bool],
    tasks: _Tasks,
    watched: WeakMethod[Callable[[bool], object]],
) -> None:
    is_there = True
    with suppress(BaseException):  # the next attempt to take an item raises it
        is_there = wait(stop=lambda: tasks.have_left)
    tell(loop, _report, watched, is_there)


def _report(watched: WeakMethod[Callable[[bool], object]], is_there: bool) -> None:
    call = watched()
    if call is not None:
        call(is_there)


class _Place:
    """The place of one task in the line."""

    def __init__(self) -> None:
        self.turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Future whose result is True if an item was seen to be ready."""
        self.is_late = False

    def expire(self) -> None:
        """End the waiting of the task: its timeout is over."""
        self.is_late = True
        if not self.turn.done():
            self.turn.set_result(False)


class Watch:
    """The tasks that wait for items of one consumer. For the tasks of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wait: Callable[..., bool], wake: Callable[[], object]) -> None:
        """``wait`` is that of the consumer, and ``wake`` makes the queue ask its waits again whether they end."""
        self._loop = loop
        self._wait = wait
        self._waiting: deque[_Place] = deque()
        self._served: _Place | None = None
        self._has_ended = False
        self._watcher = Watcher(wake, self._watched)

    def __len__(self) -> int:
        """Return the number of waiting tasks."""
        return len(self._waiting)

    async def take(
        self, attempt: Callable[[bool], Awaitable[list[T] | None]], timeout_seconds: float | None
    ) -> list[T]:
        """Wait for this task's turn and return the first list that an attempt returns; an empty list after the timeout.

        The argument of ``attempt`` is True if an item was seen to be ready. None makes the task wait for its next turn.
        A cancelled task leaves the line.
        """
        if self._has_ended:
            return await attempt(True) or []
        place = _Place()
        timer = None if timeout_seconds is None else self._loop.call_later(timeout_seconds, place.expire)
        is_first = not self._waiting
        self._waiting.append(place)
        if is_first and timer is not None:  # its first attempt is in time, however short that is
            self._serve(is_sure=True)
        try:
            while True:
                self._watch()
                is_sure = await place.turn
                if place.is_late:
                    return []
                items = await attempt(is_sure)
                if items is not None or place.is_late:
                    return items or []
                self._served = None
                place.turn = self._loop.create_future()
                self._waiting.appendleft(place)
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(place)

    async def ended(self) -> None:
        """Let all tasks try once more, and end the thread. The queue is closed, or the subscription removed."""
        self._has_ended = True
        for place in self._waiting:
            if not place.turn.done():
                place.turn.set_result(True)
        await self._watcher.ended()

    def _leave(self, place: _Place) -> None:
        with suppress(ValueError):
            self._waiting.remove(place)
        if self._served is place:
            self._served = None
            self._serve(is_sure=False)
        if not self._waiting:
            self._watcher.stop()

    def _serve(self, *, is_sure: bool) -> None:
        """Let the first task try."""
        while self._waiting and self._served is None:
            place = self._waiting.popleft()
            if not place.turn.done():  # else it is about to leave
                self._served = place
                place.turn.set_result(is_sure)

    def _watch(self) -> None:
        if self._served is None and not self._has_ended:
            self._watcher.start(self._loop, self._wait)

    def _watched(self, _: bool) -> None:
        self._watcher.note()
        self._serve(is_sure=True)

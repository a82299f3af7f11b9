"""Tasks that wait for an item, in the order in which they came, and the one thread that waits for all of them.

The thread exists only while a task waits. It sleeps in ``wait`` of the queue, which also notices what other processes
publish. When an item is ready, the first task is woken and tries to take it. A task that has got an item, or leaves,
lets the next task try. When no item is left, the thread sleeps again. Only one task tries at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from .futures import Worker, tell

T = TypeVar("T")


class Waitable(Protocol):
    """A queue or a subscription."""

    def wait(self, timeout: float | None = None, *, stop: Callable[[], bool] = bool) -> bool:
        """Wait until an item is ready."""
        ...


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

    def __init__(self, loop: asyncio.AbstractEventLoop, consumer: Waitable, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._consumer = consumer
        self._wake = wake
        self._waiting: deque[_Place] = deque()
        self._served: _Place | None = None
        self._is_watching = False
        self._has_ended = False
        self._worker = Worker("persistentqueue-aio-watch")

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

    def end(self) -> None:
        """Let all tasks try once more, and end the thread. The queue is closed, or the subscription removed."""
        self._has_ended = True
        for place in self._waiting:
            if not place.turn.done():
                place.turn.set_result(True)
        self._worker.end()

    def _leave(self, place: _Place) -> None:
        with suppress(ValueError):
            self._waiting.remove(place)
        if self._served is place:
            self._served = None
            self._serve(is_sure=False)
        if not self._waiting and self._is_watching:
            self._wake()

    def _serve(self, *, is_sure: bool) -> None:
        """Let the first task try."""
        while self._waiting and self._served is None:
            place = self._waiting.popleft()
            if not place.turn.done():  # else it is about to leave
                self._served = place
                place.turn.set_result(is_sure)

    def _watch(self) -> None:
        if self._served is None and not self._is_watching and not self._has_ended:
            self._is_watching = True
            try:
                self._worker.submit(self._wait)
            except RuntimeError:
                self._is_watching = False
                raise

    def _wait(self) -> None:
        with suppress(Exception):  # the next attempt raises it
            self._consumer.wait(stop=lambda: not self._waiting)
        tell(self._loop, self._watched)

    def _watched(self) -> None:
        self._is_watching = False
        self._serve(is_sure=True)

"""Tasks that wait for an item, in the order in which they came, and the one thread that waits for all of them.

The thread is there only while some task waits, and sleeps in the core's own waiting, which also hears of what other
processes publish. When there is something, the first task is told, and tries to take it; whoever has got something, or
leaves, lets the next one look, and when there is nothing left the thread sleeps again. One task at a time is told.
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
    """A queue, or a subscription."""

    def wait(self, timeout: float | None = None, *, stop: Callable[[], bool] = bool) -> bool:
        """Until there is something to dequeue."""
        ...


class _Place:
    """That of a task in line."""

    def __init__(self) -> None:
        self.turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Ends with whether somebody has seen that there is something."""
        self.is_late = False

    def expire(self) -> None:
        """Its time is over: it need not wait for its turn."""
        self.is_late = True
        if not self.turn.done():
            self.turn.set_result(False)


class Watch:
    """Those who wait for items of one consumer. For the tasks of one loop."""

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
        """How many wait."""
        return len(self._waiting)

    async def take(self, attempt: Callable[[bool], Awaitable[list[T]]], timeout_seconds: float | None) -> list[T]:
        """What the attempt gives, once it gives anything, and it is one's turn; nothing when the time is over.

        The attempt is told whether somebody has seen that there is something. Cancelled, it leaves the line.
        """
        if self._has_ended:
            return await attempt(True)
        place = _Place()
        timer = None if timeout_seconds is None else self._loop.call_later(timeout_seconds, place.expire)
        self._waiting.append(place)
        try:
            while True:
                self._watch()
                is_sure = await place.turn
                if place.is_late:
                    return []
                items = await attempt(is_sure)
                if items or place.is_late:
                    return items
                self._served = None
                place.turn = self._loop.create_future()
                self._waiting.appendleft(place)
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(place)

    def end(self) -> None:
        """The queue is closed, or the subscription removed: all are to look, and the thread ends."""
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
        """Let the first one try."""
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
        with suppress(Exception):  # who tries hears of it
            self._consumer.wait(stop=lambda: not self._waiting)
        tell(self._loop, self._watched)

    def _watched(self) -> None:
        self._is_watching = False
        self._serve(is_sure=True)

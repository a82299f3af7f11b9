"""The bond between ``aio.Queue`` and its event loop: in another loop or thread, a call raises an error that says what
to do."""

from __future__ import annotations

import asyncio
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .opening import other_loop


class LoopBound:
    """A base class for ``aio.Queue``, before ``asyncio.Queue``."""

    _path: str
    _thread: int | None = None
    """Thread of the loop, in which the queue was opened; None before that."""
    # Private attributes of asyncio.Queue, present in each version from 3.10 on.
    _loop: asyncio.AbstractEventLoop | None
    _wakeup_next: Callable[[deque[asyncio.Future[None]]], None]

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop. The first one is that of the queue. Raises ``RuntimeError`` in another one."""
        bound: Any = super()
        if self._loop not in (None, asyncio.get_running_loop()):  # the error of asyncio would tell all items
            raise other_loop(f"{self._path}: the queue is bound to a different event loop")
        loop: asyncio.AbstractEventLoop = bound._get_loop()
        return loop

    def _here(self) -> asyncio.AbstractEventLoop | None:
        """Return the running loop, or None if no loop runs in the thread of the queue.

        Without a loop, as with ``asyncio.Queue``, no tasks wait and no work starts. Raises ``RuntimeError`` in another
        loop than the first, and in another thread.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self._thread not in (None, get_ident()):
                raise RuntimeError(
                    f"{self._path}: the queue belongs to the thread of its event loop, and this is another one: pass "
                    "the call to that loop, by loop.call_soon_threadsafe() or asyncio.run_coroutine_threadsafe()"
                ) from None
            return None
        return self._get_loop()

    async def _line_up(self, waiters: deque[asyncio.Future[None]], must_wait: Callable[[], bool]) -> None:
        """Wait until this task is woken. The caller then looks at the queue again, and at its shutdown or failure.

        The loops of ``asyncio.Queue`` itself look at a shutdown only from Python 3.13 on, and never at items that are
        only on disk. As there, a cancelled task that was woken wakes the next one, unless its wait would go on.
        """
        waiter: asyncio.Future[None] = self._get_loop().create_future()
        waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            with suppress(RuntimeError):  # the loop is closed, and its tasks are dropped
                waiter.cancel()  # if it is not done yet
            with suppress(ValueError):
                waiters.remove(waiter)
            if not waiter.cancelled() and not must_wait():
                self._wakeup_next(waiters)
            raise

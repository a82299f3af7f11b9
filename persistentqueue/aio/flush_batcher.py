"""Flushes of many tasks that share one sync, made by one thread instead of one thread per flush.

All flushes of one round of the event loop are given to the thread together. When the thread has finished a group, it
takes all flushes that have come meanwhile. It reports the results of a group to the loop in one call. Each flush is a
transaction of its own.

With ``full="block"``, a flush that waits for room does not delay the others. Refused flushes wait in a line of their
own. The first of them waits in another thread, among the waiters for room of the queue itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from persistentqueue import PersistentQueue, QueueFullError, Session

from .futures import Landing, Worker, launch, over, tell

Marker = tuple[str, int]


class Flush(Landing[bool]):
    """One flush of a session."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        session: Session[Any],
        marker: Marker | None,
        timeout: float | None,
        give: Callable[[], None],
    ) -> None:
        super().__init__(loop=loop)
        self._give = give
        """Gives the flushes of this round of the loop to the thread."""
        self.session = session
        self.marker = marker
        self.deadline = None if timeout is None else loop.time() + timeout
        self.waits = timeout != 0
        """True if the flush may wait for room."""
        self.room: _Room | None = None
        """Where it waits for room; None if it does not wait now."""
        self.refusal: QueueFullError | None = None

    def cancel(self, msg: object = None) -> bool:
        """Stop waiting for room. The flush itself cannot be cancelled: it ends when its thread has finished it."""
        self.waits = False
        self._give()  # as in ``Landing``: the loop may have lost the call
        if self.room is not None:
            self.room.give_up(self)
        return super().cancel(msg)


class Flushes:
    """The flushes of one queue. For the tasks of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: PersistentQueue[Any], *, blocks: bool) -> None:
        self._loop = loop
        self._queue = queue
        self._blocks = blocks
        self._coming: list[Flush] = []
        """Flushes of this round of the loop."""
        self._given: deque[Flush] = deque()
        """Flushes that the thread has not taken yet."""
        self._worker = Worker("persistentqueue-aio-flush")
        self._room = _Room(loop)

    def flush(self, session: Session[Any], marker: Marker | None, timeout: float | None) -> Flush:
        """Flush the session together with all flushes of this round of the loop."""
        flush = Flush(self._loop, session, marker, timeout, self._give)
        self._coming.append(flush)
        if len(self._coming) == 1:
            self._loop.call_soon(self._give)
        return flush

    def close(self) -> Landing[None]:
        """Close the queue after the flushes that have begun, those of this round of the loop among them. Later flushes
        get ``ClosedError``."""
        self._give()
        return launch(self._loop, self._worker.submit, self._close)

    def _close(self) -> None:
        self._queue._close()  # without its warnings: it does not know the flushes that wait here

    async def ended(self, last: Callable[[], None]) -> None:
        """Make a last call in the thread, and end both threads. The queue is closed."""
        try:
            await over(launch(self._loop, self._worker.submit, last))
        finally:
            try:
                await self._worker.ended()
            finally:
                await self._room.ended()

    def _give(self) -> None:
        if not self._coming:  # a close has given them
            return
        coming, self._coming = self._coming, []
        self._given += coming
        try:
            self._worker.submit(self._commit)
        except RuntimeError as error:
            self._given.clear()
            self._landed(coming, [error] * len(coming))

    def _commit(self) -> None:
        flushes: list[Flush] = []
        while self._given:
            flushes.append(self._given.popleft())
        if flushes:  # else an earlier call has taken them
            found: list[bool | Exception]
            try:
                found = self._queue.flush_all([each.session for each in flushes], [each.marker for each in flushes])
            except Exception as error:
                found = [error] * len(flushes)
            for flush, each in zip(flushes, found, strict=True):
                flush.found = (each,)
            tell(self._loop, self._landed, flushes, found)

    def _landed(self, flushes: list[Flush], found: list[bool | Exception]) -> None:
        for flush, each in zip(flushes, found, strict=True):
            if isinstance(each, QueueFullError) and self._blocks and flush.waits and not each.lasting:
                flush.refusal = each
                self._room.wait(flush)
            else:
                flush.land(each)


class _Room:
    """Flushes that wait for room, in the order in which they were refused. Only the first one waits in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Flush] = deque()
        self._first: Flush | None = None
        self._worker = Worker("persistentqueue-aio-room")

    def wait(self, flush: Flush) -> None:
        """Let the flush wait for room until its deadline."""
        flush.room, flush.found = self, None
        self._waiting.append(flush)
        if flush.deadline is not None:
            timer = self._loop.call_at(flush.deadline, self._leave, flush)
            flush.add_done_callback(lambda _: timer.cancel())
        self._next()

    def give_up(self, flush: Flush) -> None:
        """End the waiting of this flush."""
        if flush is self._first:
            flush.session.give_up()
            self._landed(flush)
        else:
            self._leave(flush)

    async def ended(self) -> None:
        """End the thread. The queue is closed, and each flush that waits gets its ``ClosedError``."""
        try:
            while (first := self._first) is not None:
                await asyncio.wait([first])
                self._landed(first)  # the loop may have lost the call
        finally:
            await self._worker.ended()

    def _leave(self, flush: Flush) -> None:
        """Refuse a flush whose time is over. The first flush is not affected: the queue itself knows its deadline."""
        with suppress(ValueError):
            self._waiting.remove(flush)
            assert flush.refusal is not None
            flush.land(flush.refusal)

    def _next(self) -> None:
        if self._first is None and self._waiting:
            self._first = self._waiting.popleft()
            try:
                self._worker.submit(partial(self._flush, self._first))
            except RuntimeError as error:
                self._first.found = (error,)
                self._landed(self._first)

    def _flush(self, flush: Flush) -> None:
        found: bool | Exception | None = None
        is_second = False
        while found is None:
            left = None if flush.deadline is None else max(flush.deadline - self._loop.time(), 0.0)
            try:
                found = flush.session.flush(flush.marker, left)
            except QueueFullError as error:
                # Otherwise, a late cancellation of this session's previous flush ended this one: try again. Such a
                # cancellation ends one flush only. The error of a full dead-letter queue comes each time.
                if error.lasting or not flush.waits or left == 0.0 or (is_second and flush.session._rejects()):
                    found = error
                is_second = True
            except Exception as error:
                found = error
        flush.found = (found,)
        tell(self._loop, self._landed, flush)

    def _landed(self, flush: Flush) -> None:
        """End the first flush, once its thread has made it, and begin with the next one."""
        if flush is self._first and flush.found is not None:
            self._first = flush.room = None
            flush.land(*flush.found)
            self._next()

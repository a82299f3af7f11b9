"""Flushes of many tasks that share one sync, by one thread, not by one for each.

All flushes of one round of the event loop are handed to the thread together, and it takes whatever has come when it is
done with the last group; the loop is told of a group at once. Each is a transaction of its own.

With ``full="block"`` nobody who waits for room holds up the others: what is refused stands in a line of its own, whose
first one waits in another thread, in the core's line of those who wait for room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

from persistentqueue import PersistentQueue, QueueFullError, Session

from .futures import Landing, Worker, tell

Marker = tuple[str, int]


class Flush(Landing[bool]):
    """One flush of a session."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, session: Session[Any], marker: Marker | None, timeout: float | None
    ) -> None:
        super().__init__(loop=loop)
        self.session = session
        self.marker = marker
        self.deadline = None if timeout is None else loop.time() + timeout
        self.waits = timeout != 0
        """Whether it waits for room."""
        self.room: _Room | None = None
        """Where it does, if it does so now."""
        self.refusal: QueueFullError | None = None

    def cancel(self, msg: object = None) -> bool:
        """It is over when it is, but waits for room no longer."""
        self.waits = False
        if self.room is not None:
            self.room.give_up(self)
        return super().cancel(msg)


class Flushes:
    """Those of one queue. For the tasks of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: PersistentQueue[Any], *, blocks: bool) -> None:
        self._loop = loop
        self._queue = queue
        self._blocks = blocks
        self._coming: list[Flush] = []
        """Of this round of the loop."""
        self._given: deque[Flush] = deque()
        """Those that the thread is to take."""
        self._worker = Worker("persistentqueue-aio-flush")
        self._room = _Room(loop)

    def flush(self, session: Session[Any], marker: Marker | None, timeout: float | None) -> Flush:
        """Have it flushed, with all who come in this round."""
        flush = Flush(self._loop, session, marker, timeout)
        self._coming.append(flush)
        if len(self._coming) == 1:
            self._loop.call_soon(self._give)
        return flush

    def close(self) -> Landing[None]:
        """Close the queue when what was given is flushed; then who comes hears that it is closed."""
        closing: Landing[None] = Landing(loop=self._loop)
        self._worker.submit(partial(self._close, closing))
        return closing

    def end(self) -> None:
        """The queue is closed: no thread is left."""
        self._worker.end()
        self._room.end()

    def _give(self) -> None:
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
        if flushes:  # else an earlier round took them along
            found: list[bool | Exception]
            try:
                found = self._queue.flush_all([each.session for each in flushes], [each.marker for each in flushes])
            except Exception as error:
                found = [error] * len(flushes)
            tell(self._loop, self._landed, flushes, found)

    def _landed(self, flushes: list[Flush], found: list[bool | Exception]) -> None:
        for flush, each in zip(flushes, found, strict=True):
            if isinstance(each, QueueFullError) and self._blocks and flush.waits and not each.lasting:
                flush.refusal = each
                self._room.wait(flush)
            else:
                flush.land(each)

    def _close(self, closing: Landing[None]) -> None:
        found: Exception | None = None
        try:
            self._queue.close()
        except Exception as error:
            found = error
        tell(self._loop, closing.land, found)


class _Room:
    """Flushes that wait for room, in the order in which they were refused. The first one does in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Flush] = deque()
        self._first: Flush | None = None
        self._worker = Worker("persistentqueue-aio-room")

    def wait(self, flush: Flush) -> None:
        """It waits until its time is over."""
        flush.room = self
        self._waiting.append(flush)
        if flush.deadline is not None:
            timer = self._loop.call_at(flush.deadline, self._leave, flush)
            flush.add_done_callback(lambda _: timer.cancel())
        self._next()

    def give_up(self, flush: Flush) -> None:
        """It waits no longer."""
        if flush is self._first:
            flush.session.give_up()
        else:
            self._leave(flush)

    def end(self) -> None:
        """The queue is closed, and the first one has heard of it."""
        self._worker.end()

    def _leave(self, flush: Flush) -> None:
        """Unless it is the first, whose time the core knows."""
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
                self._landed(error)

    def _flush(self, flush: Flush) -> None:
        found: bool | Exception | None = None
        while found is None:
            left = None if flush.deadline is None else max(flush.deadline - self._loop.time(), 0.0)
            try:
                found = flush.session.flush(flush.marker, left)
            except QueueFullError as error:
                # Else it heard of a cancellation that came when its last flush was just over.
                if error.lasting or not flush.waits or left == 0.0:
                    found = error
            except Exception as error:
                found = error
        tell(self._loop, self._landed, found)

    def _landed(self, found: bool | Exception) -> None:
        flush, self._first = self._first, None
        assert flush is not None
        flush.room = None
        flush.land(found)
        self._next()

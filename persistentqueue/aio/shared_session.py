"""``ConnectedSession``: a session for ``asyncio`` of a queue that many processes use.

Each session has a thread of its own while a call of it is under way. So tasks that wait do not hold up each other.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Generic, Literal, TypeVar, overload

from persistentqueue import (
    CodecError,
    PersistentQueueError,
    SessionInUseError,
    SessionLostError,
    Ticket,
    UnflushedWarning,
)
from persistentqueue.codecs import T
from persistentqueue.core.items import chunks
from persistentqueue.pickling import Uncopyable
from persistentqueue.workers import STOP, WorkerSession

from .futures import Landing, Worker, impatiently, launch, over, patiently

R = TypeVar("R")
THREAD_NAME = "persistentqueue-shared"
_LOGGER = logging.getLogger("persistentqueue")
_POLL_SECONDS = 0.01
"""Pause between two attempts to close a session that is flushed with that of another queue, in seconds."""


class ConnectedSession(Uncopyable, Generic[T]):
    """A session for ``asyncio`` of a queue that many processes use, with the methods of ``WorkerSession``.

    Use it in an ``async with`` block, in one task at a time: a second task gets ``RuntimeError``. Any number of
    sessions work in parallel. If the block ends without a flush, the session is rolled back, with an
    ``UnflushedWarning`` unless an exception leaves the block.

    A cancellation ends the wait of a dequeue or a flush, for an item, for room or for an owner. Then ``CancelledError``
    is raised: an item that was dequeued meanwhile is released, and a flush may be committed. Another call looks for no
    owner any more, but ends first if it has reached one.

    Each method raises ``ClosedError`` if the session or the queue is closed. It raises ``SessionLostError`` if the
    owner has ended and had anything of the session, which begins anew. ``rollback`` and ``close`` are exceptions. If
    that call was cancelled, the next one raises the error.

    Args:
        core: The synchronous session.
        forget: Called when the session is closed.
        thread: The thread for the calls of the session.
    """

    _elsewhere = "get another one from queue.session()"

    def __init__(self, core: WorkerSession[T], forget: Callable[[ConnectedSession[T]], object], thread: Worker) -> None:
        self._core = core
        self._forget = forget
        self._thread = thread
        self._is_busy = False
        self._is_taking = False
        """True while a dequeue is under way."""

    async def __aenter__(self) -> ConnectedSession[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unflushed = kind is None and not self.closed and self._core.has_work
        with self._using():
            await self._finish(partial(self._core.__exit__, kind or asyncio.CancelledError, error, trace))
        if unflushed:
            message = f"the block of the session {self.name!r} ended without a flush: call flush(), or rollback()"
            warnings.warn(message, UnflushedWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"<aio.ConnectedSession of {self._core!r}>"

    @property
    def name(self) -> str:
        """Name of the session."""
        return self._core.name

    @property
    def closed(self) -> bool:
        """True if the session was closed, by its user or with its queue."""
        return self._core.closed

    @contextmanager
    def _using(self) -> Iterator[None]:
        if self._is_busy:
            raise RuntimeError("the session is in another call: use a session in one task at a time")
        self._is_busy = True
        try:
            yield
        except asyncio.CancelledError as cancelled:
            if isinstance(cancelled.__cause__, SessionLostError):  # a timeout around the call hides it
                self._core.tell_again(cancelled.__cause__)
            raise
        finally:
            self._is_busy = False

    async def make(self, call: Callable[[], R]) -> R:
        """Make a call in the thread of the session, behind the earlier ones. For ``aio.transaction``.

        Args:
            call: The call. A cancellation ends its looks for an owner.
        """
        job, give_up = stoppable(call)
        return await patiently(self._in_thread(job), give_up)

    def _in_thread(self, call: Callable[[], R]) -> Landing[R]:
        return launch(asyncio.get_running_loop(), self._thread.submit, call)

    async def _call(self, call: Callable[[], R]) -> R:
        with self._using():
            return await self.make(call)

    async def _wait_for(self, call: Callable[[], R]) -> R:
        """Make a call that may wait for an item, for room or for an owner. A cancellation ends each of these waits."""
        job, look_no_more = stoppable(call)

        def give_up() -> None:
            look_no_more()  # also that for the owner of another session, in a transaction of several
            self._core.wait_no_more()

        return await patiently(self._in_thread(job), give_up)

    async def enqueue(self, item: T) -> None:
        """Buffer an item, also if the call is cancelled. Nothing is durable before ``flush``.

        Args:
            item: Up to 64 MiB - 1 KiB, or an object that the codec of the queue can encode.

        Raises:
            TypeError, ItemTooLargeError, CodecError: The item has the wrong type, is too large, or cannot be encoded.
            ResourceError, QueueFullError: The session has outgrown its memory, and its owner found no room on disk.
        """
        await self._call(partial(self._core.enqueue, item))

    async def enqueue_many(self, items: Iterable[T]) -> None:
        """Buffer items, in order. Nothing is durable before ``flush``.

        Of an iterable that is no list or tuple, the items before an error or a cancellation stay in the session.

        Args:
            items: Items, as for ``enqueue``; no mapping. The event loop iterates over them, in parts.

        Raises:
            TypeError, ItemTooLargeError, CodecError, ResourceError, QueueFullError: As ``enqueue`` describes.
        """
        with self._using():
            for chunk in chunks(items):
                await self.make(partial(self._core.enqueue_many, chunk))

    async def dequeue(self, timeout: float | None = 0.0) -> T | None:
        """Return the first ready item, and hold it; return None if there is none in time.

        Waiting costs no CPU. After a cancellation, no item is held: one that was taken meanwhile is back in its place.

        Args:
            timeout: Seconds to wait for an item; at least 0. Default 0.0: no wait. None: no limit.

        Raises:
            ValueError: ``timeout`` is negative.
            CodecError: The item cannot be decoded. It is on hold.
            CorruptionError: A block is damaged; raised once per block. Its items are set aside.
            SubscriptionNotFoundError: The subscription was removed, or the queue has only named subscriptions.
            HoldLostError: The session held items for longer than ``hold_seconds``: roll it back.
        """
        return await self._taken(partial(self._core.dequeue, timeout))

    async def dequeue_many(self, max_items: int, timeout: float | None = 0.0) -> list[T]:
        """Return up to ``max_items`` ready items, in order, and hold them; an empty list if there are none in time.

        It waits only for the first item. A cancellation has the effect that ``dequeue`` describes.

        Args:
            max_items: Upper bound for the number of items; at least 0.
            timeout: Seconds to wait for the first item; at least 0. Default 0.0: no wait. None: no limit.

        Raises:
            ValueError: ``max_items`` or ``timeout`` is negative.
            CodecError, CorruptionError, SubscriptionNotFoundError, HoldLostError: As ``dequeue`` describes.
        """
        return await self._taken(partial(self._core.dequeue_many, max_items, timeout))

    async def _taken(self, take: Callable[[], R]) -> R:
        with self._using():
            held = self._core.held
            self._is_taking = True
            try:
                return await self._wait_for(take)
            except asyncio.CancelledError as cancelled:
                if self._core.held > held:
                    job, give_up = stoppable(partial(self._core.keep, held))
                    give_up()
                    try:
                        await over(self._in_thread(job))
                    except PersistentQueueError as error:  # the items are released all the same
                        raise cancelled from error
                raise
            finally:
                self._is_taking = False

    @overload
    async def flush(
        self, marker: tuple[str, int] | None = None, timeout: float | None = None, *, wait: Literal[True] = True
    ) -> bool: ...

    @overload
    async def flush(
        self, marker: tuple[str, int] | None = None, timeout: float | None = None, *, wait: Literal[False]
    ) -> Ticket: ...

    @overload
    async def flush(
        self, marker: tuple[str, int] | None = None, timeout: float | None = None, *, wait: bool
    ) -> bool | Ticket: ...

    async def flush(
        self, marker: tuple[str, int] | None = None, timeout: float | None = None, *, wait: bool = True
    ) -> bool | Ticket:
        """Commit everything since the last flush as one transaction, durable on return.

        It shares its sync with the flushes of other tasks and processes. A cancellation ends a wait for room. The flush
        may be committed nevertheless, and the session is then empty. If not, the session keeps its operations.

        Args:
            marker: Name and version that the transaction records. Default None. If the version was reached before,
                nothing is committed, and the session is rolled back.
            timeout: Seconds to wait for room; needs ``full="block"``. Default None: no limit.
            wait: True (the default) to return whether the transaction was committed. False to return a ticket. It is
                done: the call waits nevertheless.

        Returns:
            False if the marker was reached before, otherwise True. With ``wait=False`` a ticket with that result.

        Raises:
            TypeError, ValueError: ``marker``, ``timeout`` or ``wait`` is not valid.
            QueueFullError, ResourceError: There is no room. Nothing was committed, and the session keeps its
                operations.
            OutcomeUnknownError: The owner ended, and no later one knows the outcome.
            HoldLostError: The session held items for longer than ``hold_seconds``. Nothing was committed.
            BrokenQueueError: A sync failed. It is unknown whether the transaction was committed.
        """
        with self._using():
            return await self._wait_for(partial(self._core.flush, marker, timeout, wait=wait))

    async def reject(
        self, item: T | CodecError, reason: str = "", *, retry: bool = True, delay_seconds: float | None = None
    ) -> None:
        """Mark a held item as failed, also if the call is cancelled. The next ``flush`` handles it.

        Args:
            item: The item as ``dequeue`` returned it. For an item that the codec could not decode, its ``CodecError``.
            reason: Why the item failed, for its dead letter. Default: empty, or the ``CodecError`` without its advice.
            retry: True (the default) to deliver the item again if it has attempts left. False to make it a dead letter.
            delay_seconds: Seconds until the item is ready again, from 0 to ten years. Default None:
                ``retry_delay_seconds`` of the queue.

        Raises:
            TypeError, ValueError, CorruptionError: On the conditions that ``persistentqueue.Session.reject`` names.
        """
        await self._call(partial(self._core.reject, item, reason, retry=retry, delay_seconds=delay_seconds))

    async def put_back(self, count: int = 1) -> None:
        """Release the items that were dequeued last: they are ready again, in their old places.

        Args:
            count: Number of items, from 0 to that of the held ones. Default 1.

        Raises:
            ValueError: ``count`` is out of range.
            HoldLostError: The time of ``hold_seconds`` is over: roll the session back.
        """
        await self._call(partial(self._core.put_back, count))

    async def extend(self) -> None:
        """Begin the time of ``hold_seconds`` anew for the items that the session holds. Nothing becomes durable.

        Raises:
            HoldLostError: The time is over, and the items are back in the queue: roll the session back.
        """
        await self._call(self._core.extend)

    async def rollback(self) -> None:
        """Release what was dequeued and drop what was enqueued since the last flush."""
        await self._call(self._core.rollback)

    async def close(self) -> None:
        """Roll back what was not flushed, and end the session; closing again does nothing."""
        with self._using():
            await self._finish(self._core.close)

    def loss(self) -> str | None:
        """Return the text of a warning if the close of the queue loses something. For ``ConnectedQueue``."""
        return None if self._is_busy else self._core.loss()

    def end_take(self) -> None:
        """End the wait of a dequeue, since the queue closes. For ``ConnectedQueue``."""
        if self._is_taking:
            self._core.end()

    async def leave(self) -> None:
        """Close the session with its queue, also during a call of its task, whose wait ends. For ``ConnectedQueue``."""
        self.end_take()
        while True:
            try:
                await self._finish(self._core.close, is_patient=False)
            except SessionInUseError:  # it is being flushed with the session of another queue
                await asyncio.sleep(_POLL_SECONDS)
            except Exception as error:  # of ``retry_delay_seconds``: the items are released all the same
                _LOGGER.warning("a session could not be closed with its queue: %r", error)
                return
            else:
                return

    async def _finish(self, call: Callable[[], None], *, is_patient: bool = True) -> None:
        """Make the last call of the session, and end its thread."""
        self._forget(self)
        try:
            await (self.make(call) if is_patient else impatiently(self._in_thread(call), self._end_wait))
        finally:
            await self._thread.ended()

    def _end_wait(self) -> None:
        if self._is_busy:
            self._core.wait_no_more()


def stoppable(call: Callable[[], R]) -> tuple[Callable[[], R], Callable[[], None]]:
    """Return the call for a thread, and a function that ends its looks for an owner."""
    given_up: set[bool] = set()

    def with_stop() -> R:
        """Make the call."""
        STOP.asked = lambda: bool(given_up)
        try:
            return call()
        finally:
            del STOP.asked

    return with_stop, partial(given_up.add, True)

"""``Session`` for ``asyncio``: its methods are coroutines."""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

import persistentqueue
from persistentqueue import CodecError, PersistentQueueError, Ticket, UnflushedWarning
from persistentqueue.codecs import T
from persistentqueue.core.items import checked_count, checked_timeout, checked_truth, chunks
from persistentqueue.pickling import Uncopyable

from .flush_batcher import Marker
from .futures import Landing, over, patiently
from .item_waiter import Watch

R = TypeVar("R")


class Host(Protocol):
    """The parts of a queue that its sessions use."""

    def in_thread(self, call: Callable[..., R], *arguments: Any, **named: Any) -> Landing[R]:
        """Make this call in a thread."""
        ...

    def flush_session(
        self, session: persistentqueue.Session[Any], marker: Marker | None, timeout: float | None
    ) -> Landing[bool]:
        """Flush the session, together with others."""
        ...

    def check(self) -> None:
        """Raise ``ClosedError`` if the queue is closed, ``RuntimeError`` in another event loop."""
        ...


class Session(Uncopyable, Generic[T]):
    """A session for ``asyncio``: one transaction after the other, with the methods of ``persistentqueue.Session``::

        async with queue.session() as session:
            await session.enqueue(b"one")
            await session.flush()

    ``PersistentQueue.session`` and ``Subscription.session`` make it. Use it in an ``async with`` block, in one task at
    a time: a second task gets ``RuntimeError``. Any number of sessions work in parallel.

    If the block ends without a flush, also by a cancellation, enqueued items are dropped. Dequeued items are released:
    they are ready again, in their old places. If no exception leaves the block, there is an ``UnflushedWarning``.

    In a queue with ``max_attempts``, held items without attempts left become dead letters when an ``Exception`` leaves
    the block. A cancellation is no such exception: it releases them.

    Each method raises ``ClosedError`` if the session or the queue is closed, and ``BrokenQueueError`` after a failed
    sync. ``rollback`` and ``close`` are exceptions.

    Args:
        host: The queue.
        core: The synchronous session.
        watch: The tasks that wait for items of the same consumer.
        ready: Returns the number of items that the session can dequeue.
        is_joint: Whether its flush is that of a transaction over several queues. Default False.
    """

    _elsewhere = persistentqueue.Session._elsewhere

    def __init__(
        self,
        host: Host,
        core: persistentqueue.Session[T],
        watch: Watch,
        ready: Callable[[], int],
        *,
        is_joint: bool = False,
    ) -> None:
        self._host = host
        self._core = core
        self._watch = watch
        self._ready = ready
        """Returns the number of items that the session can dequeue."""
        self._is_joint = is_joint
        self._is_busy = False
        self._tickets: deque[Ticket] = deque()
        """Tickets that the session has given, from the first one on that had not ended when the last one was given."""
        self._counts = core._counts_attempts()
        """True if each dequeue logs a delivery, and a rollback may log a delay."""

    def __repr__(self) -> str:
        return f"<aio.Session of {self._core!r}>"

    async def __aenter__(self) -> Session[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unflushed = self._core._unflushed() if kind is None else None
        if error is None:
            await self.close()
        else:  # the synchronous session sees the error: it may bury items
            with self._using(checks=False):
                await self._end(partial(self._core.__exit__, kind, error, trace))
        if unflushed is not None:
            warnings.warn(unflushed, UnflushedWarning, stacklevel=2)

    def _unflushed(self) -> str | None:
        """Return the text of an ``UnflushedWarning`` if the close of the queue, which begins, loses enqueued items.

        A call that is under way ends first, or raises ``ClosedError``.
        """
        return None if self._is_busy else self._core._unflushed(closes=True)

    @property
    def name(self) -> str:
        """Name of the session in ``PersistentQueue.explain``."""
        return self._core.name

    @property
    def closed(self) -> bool:
        """True if the session was closed, by its user or with its queue."""
        return self._core.closed

    async def enqueue(self, item: T) -> None:
        """Buffer an item. Nothing is durable before ``flush``.

        A cancellation can come only if the session has outgrown its memory. Then it is unknown whether the item is in
        the session.

        Args:
            item: Up to 4 GiB - 1 bytes, or an object that the codec of the queue can encode.

        Raises:
            TypeError, ItemTooLargeError, CodecError: The item has the wrong type, is too large, or cannot be encoded.
            ResourceError, QueueFullError: The session has outgrown its memory and found no room on disk. The item is
                not in the session.
        """
        with self._using():
            if not self._core._enqueue_cached(item):
                await over(self._host.in_thread(self._core.enqueue, item))

    async def enqueue_many(self, items: Iterable[T]) -> None:
        """Buffer items, in order, in a thread. Nothing is durable before ``flush``.

        A list or tuple is checked before any of its items is buffered. Of another iterable, the items before an error
        or a cancellation stay in the session.

        Args:
            items: Items, as for ``enqueue``; no mapping. The event loop iterates over them, in parts.

        Raises:
            TypeError, ItemTooLargeError, CodecError, ResourceError, QueueFullError: On the conditions that ``enqueue``
                names.
        """
        with self._using():
            for chunk in chunks(items):
                await over(self._host.in_thread(self._core.enqueue_many, chunk))

    async def dequeue(self, timeout: float | None = 0.0) -> T | None:
        """Return the first ready item, and hold it; return None if there is none in time.

        Waiting costs no CPU. Waiting tasks get items in the order in which they came. After a cancellation, no item is
        held: one that a thread had taken already is back in its place, at once.

        In a queue that counts delivery attempts, the rules of ``persistentqueue.Session.dequeue`` apply. A delivery
        that was logged counts, also if its task was cancelled meanwhile. A task that waits has no delivery yet.

        Args:
            timeout: Seconds to wait for an item; at least 0. Default 0.0: no wait. None: no limit.

        Raises:
            ValueError: ``timeout`` is negative.
            CodecError: The item cannot be decoded. It is on hold.
            CorruptionError: A block is damaged; raised once per block. Its items are set aside.
            SubscriptionNotFoundError: The subscription was removed, or the queue has only named subscriptions.
        """
        items = await self.dequeue_many(1, timeout)
        return items[0] if items else None

    async def dequeue_many(self, max_items: int, timeout: float | None = 0.0) -> list[T]:
        """Return up to ``max_items`` ready items, in order, and hold them; an empty list if there are none in time.

        It waits only for the first item. A cancellation has the effect that ``dequeue`` describes. In a queue that
        counts delivery attempts, the rules of ``persistentqueue.Session.dequeue_many`` apply.

        Args:
            max_items: Upper bound for the number of items; at least 0.
            timeout: Seconds to wait for the first item; at least 0. Default 0.0: no wait. None: no limit.

        Raises:
            ValueError: ``max_items`` or ``timeout`` is negative.
            CodecError, CorruptionError, SubscriptionNotFoundError: On the conditions that ``dequeue`` names.
        """
        timeout = checked_timeout(timeout)
        max_items = checked_count("max_items", max_items)
        with self._using():
            items = self._cached(max_items) if max_items and (timeout == 0 or not self._watch) else []
            if items:
                return items
            if timeout == 0 or not max_items or (self._counts and self._core._takes_no_more()):
                return await self._read(max_items)
            return await self._watch.take(lambda is_sure: self._attempt(max_items, is_sure), timeout)

    @overload
    async def flush(
        self, marker: Marker | None = None, timeout: float | None = None, *, wait: Literal[True] = True
    ) -> bool: ...

    @overload
    async def flush(
        self, marker: Marker | None = None, timeout: float | None = None, *, wait: Literal[False]
    ) -> Ticket: ...

    @overload
    async def flush(
        self, marker: Marker | None = None, timeout: float | None = None, *, wait: bool
    ) -> bool | Ticket: ...

    async def flush(
        self, marker: Marker | None = None, timeout: float | None = None, *, wait: bool = True
    ) -> bool | Ticket:
        """Commit everything since the last flush as one transaction, durable on return.

        It shares its sync with the flushes of other tasks. With ``wait=False`` it returns a ``Ticket``, and the session
        goes on (see ``persistentqueue.Session.flush``). ``asyncio.wrap_future(ticket)`` can be awaited.

        A cancelled flush no longer waits for room, and ends when its group is durable. If it was committed, the session
        is empty. If not, the session keeps its operations: flush it again, or roll it back. If that is unknown, the
        queue is broken, and the ``CancelledError`` has the reason as its cause. A flush that is cancelled behind
        tickets ends at once, and the tickets go on.

        Args:
            marker: Name and version that the transaction records. Default None. If the version was reached before,
                nothing is committed, and the session is rolled back.
            timeout: Seconds to wait for room; needs ``full="block"``. Default None: no limit.
            wait: True (the default) to return when the transaction is durable. False to return a ticket at once, or as
                soon as fewer flushes wait.

        Returns:
            False if the marker was reached before, otherwise True. With ``wait=False`` a ticket with that result.

        Raises:
            TypeError, ValueError: ``marker``, ``timeout`` or ``wait`` is not valid.
            QueueFullError, ResourceError: There is no room. Nothing was committed, and the session keeps its
                operations.
            PrecedingFlushError: An earlier flush with ``wait=False`` failed: roll the session back.
            InvalidTransactionError: The session contradicts the queue. Nothing was committed: roll it back.
            BrokenQueueError: A sync failed. It is unknown whether the transaction was committed.
        """
        with self._using():
            # Tickets may wait for room that flushes of other tasks make: nothing else waits in a thread meanwhile.
            if checked_truth("wait", wait):
                await self._all_ended()
                if self._is_joint:
                    return await over(self._host.in_thread(self._core.flush, marker, timeout))
                return await over(self._host.flush_session(self._core, marker, timeout))
            return await self._begin_flush(marker, timeout)

    async def _begin_flush(self, marker: Marker | None, timeout: float | None) -> Ticket:
        if self._core._rejects():
            await self._all_ended()
        while not (self._core._rejects() or self._core._hands_over_at_once()):
            first = next((each for each in self._tickets if not each.done()), None)
            await (asyncio.sleep(0) if first is None else self._ended(first))  # the thread may be about to take them
            self._host.check()
        if self._core._hands_over_at_once():
            ticket = self._core.flush(marker, timeout, wait=False)
        else:
            ticket = await over(self._host.in_thread(self._core.flush, marker, timeout, wait=False))
        while self._tickets and self._tickets[0].done():
            self._tickets.popleft()
        self._tickets.append(ticket)
        return ticket

    async def _all_ended(self) -> None:
        """Wait until all tickets have ended. They end in order."""
        if self._tickets:
            await self._ended(self._tickets[-1])
            self._host.check()

    async def _ended(self, ticket: Ticket) -> None:
        if not ticket.done():
            await asyncio.shield(_landing_of(ticket))

    async def reject(
        self, item: T | CodecError, reason: str = "", *, retry: bool = True, delay_seconds: float | None = None
    ) -> None:
        """Mark a held item as failed, as ``persistentqueue.Session.reject`` does. The next ``flush`` handles it.

        After a cancellation, the item is marked. A callable ``retry_delay_seconds`` is called in a thread.

        Args:
            item: The item as ``dequeue`` returned it. For an item that the codec could not decode, its ``CodecError``.
            reason: Why the item failed, for its dead letter. Default: empty, or the ``CodecError`` without its advice.
            retry: True (the default) to deliver the item again if it has attempts left. False to make it a dead letter.
            delay_seconds: Seconds until the item is ready again, from 0 to ten years. Default None:
                ``retry_delay_seconds`` of the queue.

        Raises:
            NotHeldError: The session holds no such item; also a ``ValueError``.
            ValueError: The delay is out of range, or the queue was opened without ``max_attempts``, ``dead_letter`` and
                ``retry_delay_seconds``. Or ``retry`` is False without dead letters.
            TypeError: ``reason`` is not a string.
            CorruptionError: The block of a held item cannot be read any more.
        """
        with self._using():
            reject = partial(self._core.reject, item, reason, retry=retry, delay_seconds=delay_seconds)
            await over(self._host.in_thread(reject))

    async def put_back(self, count: int = 1) -> None:
        """Release the items that were dequeued last: they are ready again, in their old places.

        Args:
            count: Number of items, from 0 to that of the held ones. Default 1.

        Raises:
            TypeError, ValueError: ``count`` is no whole number, or out of range.
        """
        with self._using():
            self._core.put_back(count)

    async def extend(self) -> None:
        """Do nothing, as ``persistentqueue.Session.extend``. It stands for the method of sessions of ``connect``."""

    async def rollback(self) -> None:
        """Release what was dequeued and drop what was enqueued since the last flush.

        It waits for tickets, and for the log if it begins a delay (see ``retry_delay_seconds``). If the call is
        cancelled, tickets that wait for room are refused, and the session is rolled back.
        """
        with self._using(checks=False):
            await self._end(self._core.rollback)

    async def close(self) -> None:
        """Roll back what was not flushed, and end the session; closing again does nothing.

        It waits as ``rollback`` does, and can be cancelled as it can. The session is then closed.

        Raises:
            PrecedingFlushError: A flush with ``wait=False`` failed, and the session was not rolled back since. The
                session is closed nevertheless.
        """
        with self._using(checks=False):
            await self._end(self._core.close)

    async def _end(self, call: Callable[[], None]) -> None:
        """Make the call, in a thread if it may write. Before that, wait for tickets: other tasks need the threads."""
        cancelled: asyncio.CancelledError | None = None
        if self._tickets and not self._tickets[-1].done():
            try:
                await patiently(_landing_of(self._tickets[-1]), self._core.give_up)
            except asyncio.CancelledError as error:
                cancelled = error
        if self._core.closed or not (self._counts or self._core._has_pipeline()):
            call()
        else:
            ending = self._host.in_thread(call)
            try:
                await over(ending)
            except Exception:
                if cancelled is None:
                    raise
            if cancelled is not None:
                raise cancelled from ending.exception()
        if cancelled is not None:
            raise cancelled

    @contextmanager
    def _using(self, *, checks: bool = True) -> Iterator[None]:
        if checks:
            self._host.check()
        if self._is_busy:
            raise RuntimeError("the session is in another call: use a session in one task at a time")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    async def _attempt(self, max_items: int, is_sure: bool) -> list[T] | None:
        """Take what is ready; return None if the task must wait. It is this task's turn."""
        items = self._cached(max_items) or (await self._read(max_items) if is_sure or self._ready() else [])
        return items or ([] if self._counts and self._core._takes_no_more() else None)

    def _cached(self, max_items: int) -> list[T]:
        """Return the ready items, up to ``max_items``, if all of them are in memory; otherwise an empty list."""
        items = self._core.dequeue_cached(max_items)
        if 0 < len(items) < max_items and self._ready():
            self._core.put_back(len(items))
            return []
        return items

    async def _read(self, max_items: int) -> list[T]:
        reading = self._host.in_thread(self._core.dequeue_many, max_items)
        try:
            return await over(reading)
        except asyncio.CancelledError:
            error = reading.exception()
            self._put_back(len(reading.result()) if error is None else int(isinstance(error, CodecError)))
            raise

    def _put_back(self, count: int) -> None:
        with suppress(PersistentQueueError):  # the closing of the queue has released them
            self._core.put_back(count)


def _landing_of(ticket: Ticket) -> Landing[None]:
    """Return a future that has a result when the ticket has ended, well or badly."""
    landing: Landing[None] = Landing(loop=asyncio.get_running_loop())
    ticket.add_done_callback(lambda _: landing.bring(None))
    return landing

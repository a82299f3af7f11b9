"""A session whose methods are awaited."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import persistentqueue
from persistentqueue import CodecError, PersistentQueueError, UnflushedWarning
from persistentqueue.codecs import T
from persistentqueue.system.uncopyable import Uncopyable

from .flush_batcher import Marker
from .futures import Landing, over
from .item_waiter import Watch

R = TypeVar("R")
_CHUNK_ITEMS = 8192


class Host(Protocol):
    """What a session asks of its queue."""

    def in_thread(self, call: Callable[..., R], *arguments: Any) -> Landing[R]:
        """Have a thread make this call."""
        ...

    def flush(
        self, session: persistentqueue.Session[Any], marker: Marker | None, timeout: float | None
    ) -> Landing[bool]:
        """Flush with others."""
        ...

    def check(self) -> None:
        """Raise where the queue is closed, or another loop's."""
        ...


class Session(Uncopyable, Generic[T]):
    """One transaction after the other; the methods are those of ``persistentqueue.Session``, to be awaited, and raise
    what those do. Made by ``PersistentQueue.session()``, and used in an ``async with`` block.

    A session is for one task at a time, which a ``RuntimeError`` says; any number of sessions go on beside each other.
    Leaving the block without a flush, also by a cancellation, gives dequeued items back to the front, in their order.
    """

    _elsewhere = persistentqueue.Session._elsewhere

    def __init__(self, host: Host, core: persistentqueue.Session[T], watch: Watch, ready: Callable[[], int]) -> None:
        self._host = host
        self._core = core
        self._watch = watch
        self._ready = ready
        """How many items there are for it."""
        self._is_busy = False

    async def __aenter__(self) -> Session[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unflushed = self._core.unflushed() if kind is None else None
        await self.close()
        if unflushed is not None:
            warnings.warn(unflushed, UnflushedWarning, stacklevel=2, source=self)

    @property
    def name(self) -> str:
        """What ``PersistentQueue.explain`` calls it."""
        return self._core.name

    @property
    def closed(self) -> bool:
        """Whether the session was closed, by its user or with its queue."""
        return self._core.closed

    async def enqueue(self, item: T) -> None:
        """Buffer an item. Cancelled, which it can be only where the session has outgrown the memory, it is unknown
        whether the item is in the session."""
        with self._using():
            if not self._core.enqueue_cached(item):
                await over(self._host.in_thread(self._core.enqueue, item))

    async def enqueue_many(self, items: Iterable[T]) -> None:
        """Buffer items, in order, in a thread. Of an iterable that is no list or tuple what came before the item that
        raised, or a cancellation, stays in the session."""
        with self._using():
            for chunk in _chunks(items):
                await over(self._host.in_thread(self._core.enqueue_many, chunk))

    async def dequeue(self, timeout: float | None = 0.0) -> T | None:
        """The first ready item, on hold from now on; None when there is none within ``timeout`` seconds (None: for
        ever), which cost no CPU.

        Tasks that wait get items in the order in which they came. Cancelled, it has taken nothing: what a thread had
        taken already is back at the front.
        """
        items = await self.dequeue_many(1, timeout)
        return items[0] if items else None

    async def dequeue_many(self, max_items: int, timeout: float | None = 0.0) -> list[T]:
        """Up to ``max_items`` ready items, in order, waiting for the first one only; otherwise like ``dequeue``."""
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout must be None or at least 0 seconds, got {timeout}")
        if max_items < 0:
            raise ValueError(f"max_items must not be negative, got {max_items}")
        with self._using():
            items = self._cached(max_items) if timeout == 0 or not self._watch else []
            if items or not max_items:
                return items
            if timeout == 0:
                return await self._read(max_items)
            return await self._watch.take(lambda is_sure: self._attempt(max_items, is_sure), timeout)

    async def flush(self, marker: Marker | None = None, timeout: float | None = None) -> bool:
        """Make everything since the last flush one atomic transaction, durable on return; it shares its sync with those
        of other tasks. ``marker`` and ``timeout`` are as in ``persistentqueue.Session.flush``.

        Cancelled, it ends when the group in which it is written is durable, and waits for room no longer. Then, if it
        was committed, the session is empty; if not, it keeps its operations, to be flushed again or rolled back; if
        nobody knows, the queue is broken, and the ``CancelledError`` has the reason as its cause.
        """
        with self._using():
            return await over(self._host.flush(self._core, marker, timeout))

    async def rollback(self) -> None:
        """Give back what was dequeued, drop what was enqueued, since the last flush. Waits for nothing."""
        with self._using(checks=False):
            self._core.rollback()

    async def close(self) -> None:
        """Roll back what was not flushed, and end the session. Waits for nothing; closing again does nothing."""
        with self._using(checks=False):
            self._core.close()

    @contextmanager
    def _using(self, *, checks: bool = True) -> Iterator[None]:
        if checks:
            self._host.check()
        if self._is_busy:
            raise RuntimeError("a session is for one task at a time: each takes one from queue.session()")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    async def _attempt(self, max_items: int, is_sure: bool) -> list[T]:
        """Take what there is, when it is this task's turn."""
        return self._cached(max_items) or (await self._read(max_items) if is_sure or self._ready() else [])

    def _cached(self, max_items: int) -> list[T]:
        """What there is, if all of it is in memory."""
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
            self._put_back(len(reading.result()) if error is None else isinstance(error, CodecError))
            raise

    def _put_back(self, count: int) -> None:
        with suppress(PersistentQueueError):  # closing has done so
            self._core.put_back(count)


def _chunks(items: Iterable[T]) -> Iterator[list[T] | tuple[T, ...]]:
    """A list or a tuple as a whole, anything else in parts, of which none is made in a thread."""
    if isinstance(items, list | tuple):
        yield items
        return
    iterator = iter(items)
    while chunk := list(islice(iterator, _CHUNK_ITEMS)):
        yield chunk

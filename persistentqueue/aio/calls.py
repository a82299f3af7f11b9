"""The calls that the two queues of ``aio`` share, of one process and of many: those of the synchronous queue."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

from persistentqueue import Maintained, MemoryBudget, SegmentUse, Stats, UnflushedWarning
from persistentqueue.codecs import T
from persistentqueue.misplaced_calls import MisplacedCalls
from persistentqueue.pickling import UncopyableAsyncBlock

from .futures import read_some
from .session import Session
from .shared_session import ConnectedSession

R = TypeVar("R")
SessionT = TypeVar("SessionT", bound=Session[Any] | ConnectedSession[Any])


class Consumer(MisplacedCalls, Generic[SessionT]):
    """A queue or a subscription, which makes sessions."""

    _with, _await = "async with", "await "

    @abstractmethod
    def session(self, name: str | None = None) -> SessionT:
        """Return a new session."""

    def transaction(self, name: str | None = None) -> AbstractAsyncContextManager[SessionT]:
        """Return an ``async with`` block that is one transaction: flushed if it ends well, rolled back if it raises.

        Args:
            name: Name of the session in ``explain``. Default None: the name of the running task.

        Yields:
            A new session. Its work is durable when the block has ended. It is also rolled back if its flush raises.
        """
        return UncopyableAsyncBlock(_transaction, (self.session, name), {})


async def _transaction(
    make_session: Callable[[str | None], SessionT], name: str | None
) -> AsyncGenerator[SessionT, None]:
    session = make_session(name)
    async with session:
        yield session
        await session.flush()


class QueueCalls(Consumer[SessionT], Generic[SessionT, T]):
    """Calls of a queue, each of which a thread makes."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = await self._closed()
        for loss in lost if kind is None else ():  # else the error tells it
            warnings.warn(loss, UnflushedWarning, stacklevel=2)

    async def _closed(self) -> list[str]:
        """Close the queue; return the texts of the warnings."""
        lost: list[str] = []
        await self._end(lost)
        return lost

    @abstractmethod
    async def _end(self, lost: list[str]) -> None:
        """Close the queue; add the texts of the warnings."""

    @abstractmethod
    async def _ask(self, call: Callable[..., R], *arguments: Any, **named: Any) -> R:
        """Make a call in a thread, and return its result."""

    @abstractmethod
    async def _do(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call the method of the synchronous queue in a thread, and return its result."""

    async def peek(self, n: int = 1) -> list[T]:
        """Return the first ready items, in order, without holding or consuming them.

        Args:
            n: Upper bound for the number of items; at least 0. Default 1.

        Returns:
            Up to ``n`` items; an empty list if none is ready.

        Raises:
            ValueError: ``n`` is negative.
            PersistentQueueError: An item cannot be read; see ``persistentqueue.PersistentQueue.browse``.
        """
        items: list[T] = await self._do("peek", n)
        return items

    async def clear(self) -> int:
        """Consume all ready items in one transaction, durable on return, and return their number.

        Raises:
            SubscriptionNotFoundError: The queue was made with ``fan_out``.
            OutcomeUnknownError: The queue is connected, and its owner ended during the call.
            ResourceError, BrokenQueueError: On the conditions that ``persistentqueue.PersistentQueue.clear`` names.
        """
        count: int = await self._do("clear")
        return count

    async def requeue(self, max_items: int | None = None) -> int:
        """Move dead letters that came from this queue back to its end, in one transaction, durable on return.

        Its rules are those of ``persistentqueue.PersistentQueue.requeue``. A cancelled call waits until they are moved.

        Args:
            max_items: Upper bound for the number of moved items; at least 0. Default None: no limit.

        Returns:
            The number of moved items.

        Raises:
            ValueError: ``max_items`` is negative, or the queue was opened without ``dead_letter``.
            OutcomeUnknownError: The queue is connected, and its owner ended during the call.
            CorruptionError, ResourceError, QueueFullError, BrokenQueueError: On the conditions that the synchronous
                method names.
        """
        count: int = await self._do("requeue", max_items)
        return count

    async def trim(self) -> None:
        """Begin a new generation of the log, and delete drained segments, now. Everything committed is durable on
        return.

        Raises:
            ResourceError, BrokenQueueError: On the conditions that ``persistentqueue.PersistentQueue.trim`` names.
        """
        await self._do("trim")

    async def maintain(self) -> Maintained:
        """Run now what maintenance does by itself, and return what it did.

        Raises:
            ResourceError, BrokenQueueError, OSError: On the conditions that ``persistentqueue.PersistentQueue.compact``
                names.
        """
        maintained: Maintained = await self._do("maintain")
        return maintained

    async def resize(self, *, memory_bytes: int | MemoryBudget | None = None, segment_bytes: int | None = None) -> None:
        """Change options of the open queue, for all its tasks and processes.

        Args:
            memory_bytes: Upper bound in bytes for the items in memory. Or a ``MemoryBudget`` that the queue joins, in
                the process that owns the queue. Default None: no change.
            segment_bytes: Size in bytes of data files, from the next one on. Default None: no change.

        Raises:
            TypeError, ValueError: An option has the wrong type or range. Nothing was changed.
        """
        await self._do("resize", memory_bytes=memory_bytes, segment_bytes=segment_bytes)

    async def explain(self) -> list[SegmentUse]:
        """Return why each data file exists, oldest first."""
        uses: list[SegmentUse] = await self._do("explain")
        return uses

    async def stats(self) -> Stats:
        """Return the state of the queue at this moment, and what was measured since its owner has opened it.

        Raises:
            TooManyFilesError: No file descriptor is free to list a directory.
        """
        stats: Stats = await self._do("stats")
        return stats

    async def _iterate(self, browse: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        """Yield what ``browse`` yields, read in parts by a thread."""
        items = await self._ask(browse)
        try:
            while True:
                found, error = await self._ask(read_some, items)
                for item in found:
                    yield item
                if error is not None:
                    raise error
                if not found:
                    return
        finally:
            del items  # ends its connection, if any; the traceback of an error would keep it

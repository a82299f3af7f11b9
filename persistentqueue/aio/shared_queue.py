"""``connect`` for ``asyncio``: a queue that any number of processes use, with its calls as coroutines.

Each session has a thread of its own while a call of it is under way. So tasks that wait for an item do not hold up each
other. The thread that serves other processes, if this one owns the queue, needs nothing of the event loop.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from persistentqueue import UnflushedWarning
from persistentqueue.codecs import BYTES, Codec, T
from persistentqueue.options import OptionArguments, Options, Start, Unnamed
from persistentqueue.system.disk import StrPath, abspath
from persistentqueue.system.uncopyable import Uncopyable
from persistentqueue.workers import SharedQueue, SharedSubscription, WorkerSession, connect_options

from .futures import Landing, Worker, launch, over

if TYPE_CHECKING:
    from typing_extensions import Unpack

R = TypeVar("R")
_THREAD_NAME = "persistentqueue-shared"
_GIVE_UP_SECONDS = 0.01
"""Time between two attempts to end the wait of a call that its thread has not begun yet, in seconds."""


async def connect(
    path: StrPath,
    name: str | Unnamed | None = Unnamed.NO_NAME,
    *,
    codec: Codec[T] = cast(Any, BYTES),  # noqa: B008 - a constant
    serve: Literal["auto", "never"] = "auto",
    hold_seconds: float | None = None,
    options: Options | None = None,
    **arguments: Unpack[OptionArguments],
) -> ConnectedQueue[T]:
    """Return a queue that any number of processes can use; see ``persistentqueue.connect``::

        async with await aio.connect("queues", "orders") as queue, queue.session() as session:
            item = await session.dequeue(timeout=None)
            await session.flush()

    Args:
        path: Directory of the queue, or, if ``name`` is given, the directory above it.
        name: Name of the queue; see ``persistentqueue.PersistentQueue``.
        codec: Converts items to bytes and back. Default ``codecs.BYTES``.
        serve: ``"auto"`` (default) to own the queue if no process does, ``"never"`` to wait for an owner.
        hold_seconds: Seconds for which a session may hold items without a flush. Default None: no limit. It counts also
            if this process owns the queue.
        options: The settings of the queue as one value. Default None.
        **arguments: The other keyword arguments of ``persistentqueue.connect``.

    Raises:
        NotServedError, RefusedError: On the conditions that ``persistentqueue.connect`` names.
        TypeError, ValueError: A setting has the wrong type or range.
    """
    chosen = connect_options(options, arguments)
    core = SharedQueue(abspath(path), name, codec, chosen, serve, hold_seconds, has_local_sessions=False)
    queue = ConnectedQueue(core)
    try:
        await over(queue.in_thread(core.open))
    except BaseException:
        await queue.close()
        raise
    return queue


class ConnectedQueue(Uncopyable, Generic[T]):
    """A queue for ``asyncio`` that any number of processes use; ``aio.connect`` makes it.

    Use it in an ``async with`` block, in one event loop. For calls of the synchronous queue that are not here, use a
    thread: ``await asyncio.to_thread(queue.core.stats)``.

    Args:
        core: The synchronous queue.
    """

    _elsewhere = "call aio.connect() in the other process"

    def __init__(self, core: SharedQueue[T]) -> None:
        self.core = core
        """The synchronous queue."""
        self._calls = Worker(_THREAD_NAME)
        self._sessions: set[ConnectedSession[T]] = set()

    async def __aenter__(self) -> ConnectedQueue[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def in_thread(self, call: Callable[[], R]) -> Landing[R]:
        """Make this call in a thread."""
        return launch(asyncio.get_running_loop(), self._calls.submit, call)

    def session(self, name: str | None = None) -> ConnectedSession[T]:
        """Return a new session, for one task at a time.

        Args:
            name: Name of the session in ``explain``. Default None: the name of the calling thread.

        Raises:
            ClosedError: The queue is closed.
        """
        return self._session(self.core, name)

    def _session(self, source: SharedQueue[T] | SharedSubscription[T], name: str | None) -> ConnectedSession[T]:
        core = source.session(name)
        assert isinstance(core, WorkerSession)  # the core has no local sessions
        session = ConnectedSession(core, self._sessions.discard)
        self._sessions.add(session)
        return session

    @asynccontextmanager
    async def transaction(self, name: str | None = None) -> AsyncIterator[ConnectedSession[T]]:
        """Return an ``async with`` block that is one transaction: flushed if it ends well, rolled back if it raises.

        Args:
            name: Name of the session in ``explain``.

        Yields:
            A new session. Its work is durable when the block has ended.
        """
        async with self.session(name) as session:
            yield session
            await session.flush()

    async def subscribe(self, name: str, start: Start = "earliest") -> ConnectedSubscription[T]:
        """Return the subscription of this name; make it if it does not exist. Durable on return."""
        core = await over(self.in_thread(partial(self.core.subscribe, name, start)))
        return ConnectedSubscription(self._session, core)

    async def size(self) -> int:
        """Return the number of ready items."""
        return await over(self.in_thread(self.core.__len__))

    async def close(self) -> None:
        """Roll back the sessions of this queue. If this process owns the queue, close it: another one takes over."""
        for session in list(self._sessions):
            await session.close()
        await over(self.in_thread(self.core.close))
        await asyncio.get_running_loop().run_in_executor(None, self._calls.end)


class ConnectedSubscription(Uncopyable, Generic[T]):
    """One named consumer of a connected queue; ``ConnectedQueue.subscribe`` makes it.

    Args:
        session: Makes a session.
        core: The synchronous subscription.
    """

    _elsewhere = "pass its name, and call subscribe() there"

    def __init__(
        self,
        session: Callable[[SharedSubscription[T], str | None], ConnectedSession[T]],
        core: SharedSubscription[T],
    ) -> None:
        self._make = session
        self.core = core
        """The synchronous subscription."""

    @property
    def name(self) -> str:
        """Name of the subscription."""
        return self.core.name

    def session(self, name: str | None = None) -> ConnectedSession[T]:
        """Return a new session that dequeues for this subscription, for one task at a time."""
        return self._make(self.core, name)


class ConnectedSession(Uncopyable, Generic[T]):
    """A session for ``asyncio`` of a queue that many processes use, with the methods of ``WorkerSession``.

    A cancellation ends a wait for an item or for room. Then ``CancelledError`` is raised: an item that was dequeued
    meanwhile is released, and a flush may be committed.

    Args:
        core: The synchronous session.
        forget: Called when the session is closed.
    """

    _elsewhere = "get another one from queue.session()"

    def __init__(self, core: WorkerSession[T], forget: Callable[[ConnectedSession[T]], object]) -> None:
        self._core = core
        self._forget = forget
        self._thread = Worker(_THREAD_NAME)

    async def __aenter__(self) -> ConnectedSession[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unflushed = kind is None and not self.closed and self._core.has_work
        await self._end(partial(self._core.__exit__, kind or asyncio.CancelledError, error, trace))
        if unflushed:
            message = f"the block of the session {self.name!r} ended without a flush: call flush(), or rollback()"
            warnings.warn(message, UnflushedWarning, stacklevel=2, source=self)

    @property
    def name(self) -> str:
        """Name of the session."""
        return self._core.name

    @property
    def closed(self) -> bool:
        """True if the session was closed."""
        return self._core.closed

    async def _call(self, call: Callable[[], R]) -> R:
        """Make the call in the thread of the session."""
        return await over(launch(asyncio.get_running_loop(), self._thread.submit, call))

    async def enqueue(self, item: T) -> None:
        """Buffer an item until the next flush. Raises the errors of ``Session.enqueue``."""
        await self._call(partial(self._core.enqueue, item))

    async def enqueue_many(self, items: Iterable[T]) -> None:
        """Buffer several items, in order, until the next flush. Raises the errors of ``Session.enqueue_many``."""
        await self._call(partial(self._core.enqueue_many, items))

    async def dequeue(self, timeout: float | None = 0.0) -> T | None:
        """Hold the first ready item and return it; None if there is none in time. A cancellation ends the wait.

        Raises the errors of ``Session.dequeue``.
        """
        return await self._taken(partial(self._core.dequeue, timeout))

    async def dequeue_many(self, max_items: int, timeout: float | None = 0.0) -> list[T]:
        """Hold up to ``max_items`` ready items and return them, in order. A cancellation ends the wait.

        Raises the errors of ``Session.dequeue_many``.
        """
        return await self._taken(partial(self._core.dequeue_many, max_items, timeout))

    async def _taken(self, take: Callable[[], R]) -> R:
        held = self._core.held
        try:
            return await self._waited(take)
        except asyncio.CancelledError:
            if self._core.held > held:
                await self._call(partial(self._core.put_back, self._core.held - held))
            raise

    async def _waited(self, call: Callable[[], R]) -> R:
        """Make a call that may wait, for an item or for room. A cancellation ends the wait."""
        landing = launch(asyncio.get_running_loop(), self._thread.submit, call)
        try:
            return await asyncio.shield(landing)
        except asyncio.CancelledError as cancelled:
            while not landing.done():
                self._core.give_up()
                await asyncio.wait([landing], timeout=_GIVE_UP_SECONDS)
            raise cancelled from landing.exception()

    async def flush(self, marker: tuple[str, int] | None = None, timeout: float | None = None) -> bool:
        """Commit everything since the last flush as one durable transaction, as ``WorkerSession.flush`` does.

        A cancellation ends a wait for room. The flush may be committed nevertheless, and the session is then empty.
        """
        return await self._waited(partial(self._core.flush, marker, timeout))

    async def reject(
        self, item: Any, reason: str = "", *, retry: bool = True, delay_seconds: float | None = None
    ) -> None:
        """Mark a held item as failed, as ``Session.reject`` does."""
        await self._call(partial(self._core.reject, item, reason, retry=retry, delay_seconds=delay_seconds))

    async def put_back(self, count: int = 1) -> None:
        """Release the items that were dequeued last."""
        await self._call(partial(self._core.put_back, count))

    async def extend(self) -> None:
        """Begin the time of ``hold_seconds`` anew. Raises ``HoldLostError`` if it is over."""
        await self._call(self._core.extend)

    async def rollback(self) -> None:
        """Drop what was enqueued and release what was dequeued since the last flush."""
        await self._call(self._core.rollback)

    async def close(self) -> None:
        """Roll back what was not flushed, and end the session. Closing again does nothing."""
        await self._end(self._core.close)

    async def _end(self, call: Callable[[], None]) -> None:
        self._forget(self)
        try:
            await self._call(call)
        finally:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.end)

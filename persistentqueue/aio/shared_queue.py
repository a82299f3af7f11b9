"""``connect`` for ``asyncio``: a queue that any number of processes use, with its calls as coroutines.

Each session has a thread of its own while a call of it is under way. Each ``wait`` and each long call of a queue has
one, too. So tasks that wait do not hold up each other. The thread that serves other processes, if this one owns the
queue, needs nothing of the event loop.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import AsyncExitStack
from functools import partial
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from persistentqueue import ClosedError, Compacted, Session, UnflushedWarning
from persistentqueue.codecs import BYTES, Codec, T
from persistentqueue.interrupts.members import Members
from persistentqueue.options import OptionArguments, Options, Start, Unnamed
from persistentqueue.pickling import Uncopyable
from persistentqueue.storage.layout import queue_directory
from persistentqueue.system.disk import StrPath, abspath
from persistentqueue.workers import SharedQueue, SharedSubscription, WorkerSession, connect_options

from .calls import Consumer, QueueCalls
from .futures import Closing, Worker, apart, launch, patiently, session_name
from .shared_session import THREAD_NAME, ConnectedSession, stoppable

if TYPE_CHECKING:
    from typing_extensions import Unpack

R = TypeVar("R")
_LONG = frozenset({"compact", "maintain"})
"""Calls with a thread of their own: no other call waits until they have ended."""


class Connecting(Coroutine[Any, Any, "ConnectedQueue[T]"]):
    """The call of ``aio.connect``: await it, or use it in an ``async with`` block, which closes the queue at its end.

    For one task, once.

    Args:
        call: The coroutine that connects.
    """

    def __init__(self, call: Coroutine[Any, Any, ConnectedQueue[T]]) -> None:
        self._call = call
        self._queue: ConnectedQueue[T] | None = None

    def __await__(self) -> Generator[Any, Any, ConnectedQueue[T]]:
        return self._call.__await__()

    async def __aenter__(self) -> ConnectedQueue[T]:
        self._queue = queue = await self._call
        return queue

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, None]:
        assert self._queue is not None
        return self._queue.__aexit__(kind, error, trace)  # its warnings name the line of the block

    def send(self, value: Any) -> Any:
        """Continue the call, as the event loop does for a coroutine.

        Args:
            value: The result of that for which the call has waited.
        """
        return self._call.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an exception in the call, as the event loop does for a coroutine.

        Args:
            *error: The exception.
        """
        return self._call.throw(*error)

    def close(self) -> None:
        """End a call that nothing awaits."""
        self._call.close()

    if not TYPE_CHECKING:  # a type checker reports a missing attribute by itself

        def __getattr__(self, name):
            """Raise ``AttributeError``: a name that is missing here is most likely one of the queue."""
            text = "write queue = await aio.connect(…), or async with aio.connect(…) as queue"
            raise AttributeError(f"aio.connect has not connected yet, and has no {name}: {text}", name=name, obj=None)


def connect(
    path: StrPath,
    name: str | Unnamed | None = Unnamed.NO_NAME,
    *,
    codec: Codec[T] = BYTES,  # type: ignore[assignment] # where it is left out, T is bytes
    serve: Literal["auto", "never"] = "auto",
    hold_seconds: float | None = None,
    prefetch: bool = False,
    options: Options | None = None,
    **arguments: Unpack[OptionArguments],
) -> Connecting[T]:
    """Return a queue that any number of processes can use; see ``persistentqueue.connect``::

        async with aio.connect("queues", "orders") as queue, queue.session() as session:
            item = await session.dequeue(timeout=None)
            await session.flush()

    Args:
        path: Directory of the queue, or, if ``name`` is given, the directory above it.
        name: Name of the queue; see ``persistentqueue.PersistentQueue``.
        codec: Converts items to bytes and back. Default ``codecs.BYTES``.
        serve: ``"auto"`` (default) to own the queue if no process does, ``"never"`` to wait for an owner.
        hold_seconds: Seconds for which a session may hold items without a flush. Default None: no limit. It counts also
            if this process owns the queue.
        prefetch: True if ``flush`` also brings the next items; see ``persistentqueue.connect``. Default False. It has
            an effect also if this process owns the queue.
        options: The settings of the queue as one value. Default None.
        **arguments: The other keyword arguments of ``persistentqueue.connect``.

    Returns:
        The call. Use it in an ``async with`` block. Or await it, and await ``close`` of the queue that it returns.

    Raises:
        NotServedError, RefusedError: On the conditions that ``persistentqueue.connect`` names.
        TypeError, ValueError: A setting has the wrong type or range, or ``prefetch`` and ``hold_seconds`` are both set.

    Everything that was committed before is durable on return. A cancellation ends the look for an owner. The cancelled
    call waits for its thread, and then closes the queue.
    """
    return Connecting(_connect(path, name, codec, serve, hold_seconds, prefetch, options, arguments))


async def _connect(
    path: StrPath,
    name: str | Unnamed | None,
    codec: Codec[T],
    serve: Literal["auto", "never"],
    hold_seconds: float | None,
    prefetch: bool,
    options: Options | None,
    arguments: OptionArguments,
) -> ConnectedQueue[T]:
    chosen = connect_options(options, arguments)
    core = SharedQueue(abspath(path), name, codec, chosen, serve, hold_seconds, prefetch, has_local_sessions=False)
    queue = ConnectedQueue(core)
    try:
        await queue._ask(core.open)
    except BaseException:
        await queue.close()
        raise
    return queue


class ConnectedQueue(Uncopyable, QueueCalls[ConnectedSession[T], T]):
    """A queue for ``asyncio`` that any number of processes use; ``aio.connect`` makes it.

    It has the methods of ``aio.PersistentQueue``. Each one that asks the owner is a coroutine, also ``marker`` and
    ``subscriptions``. In place of ``len(queue)`` there is ``size``. For calls of the synchronous queue that are not
    here, use a thread: ``await asyncio.to_thread(queue.core.connections)``.

    Use it in an ``async with`` block, in one event loop. The methods raise what those of the synchronous queue raise,
    and ``ClosedError`` after ``close``. If the owner has ended, a call finds the next one, or makes this process the
    owner. A call that finds none in ``lock_timeout`` seconds raises ``NotServedError``. If the owner ends during
    ``clear`` or ``requeue``, the call raises ``OutcomeUnknownError``.

    A cancellation ends ``wait``, and the look for an owner of each call. A cancelled call that has reached the owner
    waits until its thread has finished, and has its effect. Calls of one queue end in their order.

    Args:
        core: The synchronous queue.
    """

    _elsewhere = "call aio.connect() in the other process"

    def __init__(self, core: SharedQueue[T]) -> None:
        self.core = core
        """The synchronous queue."""
        self._calls = Worker(THREAD_NAME)
        self._closing = Closing()
        self._sessions = Members[ConnectedSession[T]]()
        self._threads = Members[Worker]()
        """Threads of the sessions. That of a session that was dropped is here until it ends."""
        self._graves: ConnectedQueue[bytes] | None = None
        """The dead-letter queue, once it was asked for."""

    async def __aenter__(self) -> ConnectedQueue[T]:
        return self

    def __repr__(self) -> str:
        return f"<aio.ConnectedQueue of {self.core!r}>"

    @property
    def path(self) -> str:
        """Path that the queue was connected with, as an absolute path."""
        return self.core.path

    @property
    def name(self) -> str | None:
        """Name of the queue; None without a name."""
        return self.core.name

    @property
    def closed(self) -> bool:
        """True if the queue was closed."""
        return self.core.closed

    async def _ask(self, call: Callable[..., R], *arguments: Any, **named: Any) -> R:  # behind the earlier calls
        self._check()
        job, give_up = stoppable(partial(call, *arguments, **named))
        return await patiently(launch(asyncio.get_running_loop(), self._calls.submit, job), give_up)

    async def _do(self, method: str, *arguments: Any, **named: Any) -> Any:
        call = getattr(self.core, method)
        if method in _LONG:
            return await apart(THREAD_NAME, *stoppable(partial(call, *arguments, **named)))
        return await self._ask(call, *arguments, **named)

    def _check(self) -> None:
        if self.core.closed:  # no thread may begin any more
            raise ClosedError(f"{queue_directory(self.path, self.name)}: the queue is closed: connect again")

    def session(self, name: str | None = None) -> ConnectedSession[T]:
        """Return a new session, for one task at a time.

        Args:
            name: Name of the session in ``explain``. Default None: the name of the running task.

        Raises:
            ClosedError: The queue is closed.
        """
        return self.session_of(self.core.session(session_name(name)))

    def session_of(self, core: Session[T] | WorkerSession[T]) -> ConnectedSession[T]:
        """Return a session for a synchronous one. For the subscriptions of the queue, and for ``aio.transaction``.

        Args:
            core: The synchronous session.
        """
        assert isinstance(core, WorkerSession)  # the core has no local sessions
        thread = Worker(THREAD_NAME)
        session = ConnectedSession(core, self._sessions.discard, thread)
        self._sessions.add(session)
        self._threads.add(thread)
        return session

    async def subscribe(self, name: str, start: Start = "earliest") -> ConnectedSubscription[T]:
        """Return the subscription of this name; make it if it does not exist. Durable on return.

        Args:
            name: Name of the subscription, 1 to 65,535 bytes in UTF-8.
            start: Where a new subscription begins: ``"earliest"`` (default) or ``"latest"``.

        Raises:
            TypeError, ValueError: ``name`` or ``start`` is not valid.
            ResourceError, BrokenQueueError: On the conditions that ``persistentqueue.PersistentQueue.subscribe`` names.
        """
        return ConnectedSubscription(self, await self._ask(self.core.subscribe, name, start))

    async def unsubscribe(self, name: str) -> None:
        """Remove a subscription, and the items that only it still needed; durable on return.

        Args:
            name: Name of the subscription.

        Raises:
            SubscriptionNotFoundError: There is no subscription of this name.
            ResourceError, BrokenQueueError: On the conditions that ``persistentqueue.PersistentQueue.clear`` names.
        """
        await self._ask(self.core.unsubscribe, name)

    async def subscriptions(self) -> list[str]:
        """Return the names of the subscriptions, oldest first."""
        return await self._ask(self.core.subscriptions)

    async def size(self) -> int:
        """Return the number of ready items.

        Raises:
            SubscriptionNotFoundError: The queue was made with ``fan_out``.
        """
        return await self._ask(self.core.__len__)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until an item is ready, without holding it; return False if there is none in time.

        A cancellation ends the wait, also a look for an owner.

        Args:
            timeout: Seconds to wait; at least 0. Default None: no limit.

        Raises:
            ValueError: ``timeout`` is negative.
            ClosedError: The queue is closed, or was closed during the wait.
            SubscriptionNotFoundError: The queue was made with ``fan_out``, or the subscription was removed.
        """
        return await _wait(self.core, self.core.wait, timeout)

    def browse(self) -> AsyncIterator[T]:
        """Return an asynchronous iterator over the ready items, in order, without holding or consuming them.

        Its rules are those of ``aio.PersistentQueue.browse``. It raises ``ClosedError`` if the owner ends meanwhile.
        """
        return self._iterate(self.core.browse)

    def browse_all(self) -> AsyncIterator[T]:
        """Return an asynchronous iterator over the items that any subscription has not consumed, held ones included.

        Its rules are those of ``browse``, except that a queue that was made with ``fan_out`` can be browsed, too.
        """
        return self._iterate(self.core.browse_all)

    async def marker(self, name: str) -> int | None:
        """Return the version that a marker has reached, or None if it was never set.

        Args:
            name: Name of the marker.
        """
        return await self._ask(self.core.marker, name)

    @property
    def dead_letters(self) -> ConnectedQueue[bytes]:
        """The dead-letter queue. Its items are envelopes (see ``persistentqueue.DeadLetter``).

        It connects at its first call, and is closed with this queue.

        Raises:
            ValueError: ``connect`` got no name of a dead-letter queue.
            ClosedError: The queue is closed.
        """
        if self._graves is None or self._graves.closed:
            self._graves = ConnectedQueue(self.core.make_dead_letters())
        return self._graves

    async def sync(self) -> None:
        """Wait until everything flushed before this call is durable; see ``persistentqueue.PersistentQueue.sync``.

        Raises:
            BrokenQueueError: The sync failed.
        """
        await self._ask(self.core.sync)

    async def compact(self, *, below: float = Options.compact_below, bytes_per_second: float = inf) -> Compacted:
        """Copy the live items of sparse segments to new segments, and delete the old ones.

        Args:
            below: Share of live bytes below which a segment is sparse, 0 to 1. Default 0.3.
            bytes_per_second: Upper bound for the average rate of copying; more than 0. Default ``inf``.

        Returns:
            The number of segments that were emptied, and the bytes copied.

        Raises:
            ValueError: An argument is out of range.
            ResourceError, BrokenQueueError, OSError: As ``persistentqueue.PersistentQueue.compact`` describes.
        """
        compacted: Compacted = await self._do("compact", below=below, bytes_per_second=bytes_per_second)
        return compacted

    async def close(self) -> None:
        """Roll back the sessions of this queue. If this process owns the queue, close it: another one takes over.

        Flushes that have begun end first, but wait for no more room. Tasks that wait for an item get ``ClosedError``,
        or ``SessionLostError`` if their session held items. Everything committed is durable on return. The queue is
        closed also if the call is cancelled. Closing again does nothing, but waits for another task that is closing it.
        A session with enqueued items that it has not flushed causes an ``UnflushedWarning``. If this process owns the
        queue, the sessions of other processes have ``grace_seconds`` to flush what they hold.

        Raises:
            ResourceError, BrokenQueueError: The log could not be sealed. The queue is closed, and the next owner
                recovers.
        """
        for loss in await self._closed():
            warnings.warn(loss, UnflushedWarning, stacklevel=2)

    async def _end(self, lost: list[str]) -> None:
        await self._closing.once(partial(self._close, lost))

    async def _close(self, lost: list[str]) -> None:
        lost += filter(None, [session.loss() for session in self._sessions])
        async with AsyncExitStack() as stack:  # the last one that is pushed comes first
            stack.push_async_callback(self._calls.ended)
            stack.push_async_callback(apart, THREAD_NAME, self.core.close)
            if self._graves is not None:
                stack.push_async_callback(self._graves._end, lost)
            stack.push_async_callback(self._end_threads)
            for session in self._sessions:
                session.end_take()  # first: no wait may get an item that the end of another session releases
                stack.push_async_callback(session.leave)

    async def _end_threads(self) -> None:
        for thread in self._threads:
            await thread.ended()


class ConnectedSubscription(Uncopyable, Consumer[ConnectedSession[T]], Generic[T]):
    """One named consumer of a connected queue; ``ConnectedQueue.subscribe`` makes it.

    It has the methods of ``aio.Subscription``. Each one that asks the owner is a coroutine, also ``removed``. In place
    of ``len(subscription)`` there is ``size``. For the tasks of the event loop of its queue.

    Args:
        queue: The queue.
        core: The synchronous subscription.
    """

    _what = "subscription"
    _elsewhere = "pass its name, and call subscribe() there"

    def __init__(self, queue: ConnectedQueue[T], core: SharedSubscription[T]) -> None:
        self._queue = queue
        self.core = core
        """The synchronous subscription."""
        self.session_of = queue.session_of
        """Makes a session for a synchronous one."""

    def __repr__(self) -> str:
        return f"<aio.ConnectedSubscription {self.name!r} of {self._queue.core!r}>"

    @property
    def name(self) -> str:
        """Name of the subscription."""
        return self.core.name

    async def size(self) -> int:
        """Return the number of items that are ready for this subscription; 0 if it was removed."""
        return await self._queue._ask(self.core.__len__)

    async def removed(self) -> bool:
        """Return True if the subscription was removed."""
        return await self._queue._ask(lambda: self.core.removed)

    def session(self, name: str | None = None) -> ConnectedSession[T]:
        """Return a new session that dequeues for this subscription, for one task at a time.

        Args:
            name: Name of the session in ``explain``. Default None: the name of the running task.

        Raises:
            ClosedError: The queue is closed.
        """
        return self.session_of(self.core.session(session_name(name)))

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is an item for this subscription, without holding it; see ``ConnectedQueue.wait``.

        Args:
            timeout: Seconds to wait; at least 0. Default None: no limit.

        Returns:
            False if there was none in time.

        Raises:
            ValueError, ClosedError, SubscriptionNotFoundError: On the conditions that ``ConnectedQueue.wait`` names.
        """
        return await _wait(self._queue.core, self.core.wait, timeout)

    def browse(self) -> AsyncIterator[T]:
        """Return an asynchronous iterator over the items that are ready for this subscription, without holding them.

        Its rules and errors are those of ``ConnectedQueue.browse``.
        """
        return self._queue._iterate(self.core.browse)


async def _wait(core: SharedQueue[Any], wait: Callable[..., bool], timeout: float | None) -> bool:
    """Wait for an item, in a thread of its own. A cancellation ends the wait."""
    given_up: list[bool] = []

    def give_up() -> None:
        given_up.append(True)
        core.wake()

    return await apart(THREAD_NAME, partial(wait, timeout, stop=lambda: bool(given_up)), give_up)

"""``PersistentQueue`` and ``Subscription`` for the tasks of one event loop."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import persistentqueue
from persistentqueue import (
    Compacted,
    Progress,
    RecoveryReport,
    UnflushedWarning,
    codecs,
)
from persistentqueue.codecs import T
from persistentqueue.core.items import checked_text, checked_timeout
from persistentqueue.interrupts.members import Members
from persistentqueue.options import DeadLetterQueue, Options, PlainOptionArguments, Start, Unnamed, chosen_options
from persistentqueue.pickling import Uncopyable
from persistentqueue.storage.layout import queue_directory
from persistentqueue.system.disk import StrPath, after_fork_in_child, fspath

from .calls import Consumer, QueueCalls
from .flush_batcher import Flushes, Marker
from .futures import Closing, Landing, launch, over, session_name
from .item_waiter import Watch
from .opening import not_open, other_loop, prepare
from .session import Session

if TYPE_CHECKING:
    from typing_extensions import Unpack

R = TypeVar("R")
_THREADS = 4
"""Number of threads for calls such as opening, reading and compaction."""


class OptionArguments(PlainOptionArguments, total=False):
    """Keyword arguments of ``aio.PersistentQueue``: those of the synchronous queue."""

    max_attempts: int | None
    dead_letter: str | DeadLetterQueue | PersistentQueue[bytes] | None
    retry_delay_seconds: float | Callable[[int], float]


class Part(NamedTuple):
    """A queue or subscription in a transaction over several queues."""

    core: persistentqueue.PersistentQueue[Any] | persistentqueue.Subscription[Any]
    """The synchronous queue or subscription."""
    host: PersistentQueue[Any]
    """The queue."""
    watch: Watch
    """The tasks that wait for items of the same consumer."""


class PersistentQueue(Uncopyable, QueueCalls[Session[T], T]):
    """A ``persistentqueue.PersistentQueue`` for the tasks of one event loop::

        async with aio.PersistentQueue("queues", "orders") as queue:
            async with queue.transaction() as session:
                await session.enqueue(b"one")  # durable when the block has ended

    ``async with``, or ``open`` and ``close``, open and close the queue in a thread. The constructor itself opens
    nothing.

    Args:
        path: Directory of the queue, or, if ``name`` is given, the directory above it.
        name: Name of the queue. Default: no name; see ``persistentqueue.PersistentQueue``.
        codec: Converts items to bytes and back (see ``codecs``). Default ``codecs.BYTES``.
        options: Options as one value. A keyword argument has precedence over its field. Default None.
        progress: How to report what each opening handles, as in ``persistentqueue.PersistentQueue``. Default None: not
            at all. A thread calls it, and not the event loop.
        **arguments: The other keyword arguments of ``persistentqueue.PersistentQueue``. ``dead_letter`` may also be an
            open ``aio.PersistentQueue`` of the same event loop. A callable ``retry_delay_seconds`` is called in a
            thread.

    Raises:
        TypeError, ValueError: An option has the wrong type or range, or contradicts another one.

    The queue belongs to the event loop in which it was opened; in another loop, its methods raise ``RuntimeError``.
    After ``close``, any loop may open it again. If it is dropped without ``close``, its lock is freed with a
    ``ResourceWarning``. In a forked child, it is closed.

    Each method that uses the disk is a coroutine. It raises what the method of ``persistentqueue.PersistentQueue``
    raises, and ``ClosedError`` if the queue is not open. A cancelled call waits until its thread has finished: what the
    thread did remains done. Waiting costs no CPU. A codec sees the context variables of the task that calls.
    """

    _elsewhere = persistentqueue.PersistentQueue._elsewhere

    def __init__(
        self,
        path: StrPath,
        name: str | Unnamed | None = Unnamed.NO_NAME,
        *,
        codec: codecs.Codec[T] = codecs.BYTES,  # type: ignore[assignment] # where it is left out, T is bytes
        options: Options | None = None,
        progress: Progress = None,
        **arguments: Unpack[OptionArguments],
    ) -> None:
        chosen = chosen_options(options, arguments)
        self._path = fspath(path)
        self._name = None if isinstance(name, Unnamed) else name
        self._opening = prepare(persistentqueue.PersistentQueue[T], chosen, path, name, codec=codec, progress=progress)
        self._dead_letter: object = chosen.dead_letter
        self._graves: PersistentQueue[bytes] | None = None
        """The dead-letter queue, once it was asked for."""
        self._blocks = chosen.full == "block"
        self._core: persistentqueue.PersistentQueue[T] | None = None
        self._is_opening = False
        self._closing = Closing()
        self._subscriptions: dict[str, Subscription[T]] = {}
        self._sessions = Members[Session[T]]()

    async def __aenter__(self) -> PersistentQueue[T]:
        return await self.open()

    def __repr__(self) -> str:
        return f"aio.PersistentQueue({self._path!r}, {self._name!r})"

    def __len__(self) -> int:
        """Return the number of ready items.

        Raises:
            SubscriptionNotFoundError: The queue was made with ``fan_out``.
        """
        return len(self._open())

    def __bool__(self) -> bool:
        """Return True, also for an empty queue."""
        return True

    async def open(self) -> PersistentQueue[T]:
        """Open the queue, and return it. Everything that was committed before is durable on return.

        A cancelled call waits for the opening, which may take ``lock_timeout`` seconds, and then closes the queue.

        Raises:
            RuntimeError: The queue is open already. Or the dead-letter queue belongs to another event loop.
            TypeError, ValueError, PersistentQueueError, OSError: The queue cannot be opened; see
                ``persistentqueue.PersistentQueue``.
        """
        if self._is_opening or self._closing.is_under_way or not self.closed:
            if self._core is not None:
                self._check_loop()
            raise RuntimeError(f"{self!r} is open, or is being opened or closed: await its close() first")
        call = self._opening
        if isinstance(self._dead_letter, PersistentQueue):
            call = partial(cast(Any, call), dead_letter=self._dead_letter._open())
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(_THREADS, "persistentqueue-aio")
        self._is_opening = True
        try:
            # The pool does not know a thread whose start was interrupted, and Python would wait for that at the end. So
            # the first thread starts with an empty job, and its shutdown ends it.
            self._pool.submit(bool)
            opening = self.in_thread(call)
            self._core = await over(opening)
        except asyncio.CancelledError:
            if opening.exception() is None:
                await over(self.in_thread(opening.result().close))
            raise
        finally:
            self._is_opening = False
            if self._core is None or self._core.closed:
                self._pool.shutdown()
        self._begin()
        return self

    def _begin(self) -> None:
        """Begin to work with the open synchronous queue."""
        assert self._core is not None
        self._subscriptions, self._graves = {}, None
        self._flushes = Flushes(self._loop, self._core, blocks=self._blocks)
        self._watch = Watch(self._loop, self._core.wait, self._core.wake)
        _OPEN.add(self)

    async def close(self) -> None:
        """Roll back open sessions, trim and seal the log, and free the lock.

        Flushes that have begun end first. Tasks that wait get ``ClosedError``. Everything committed is durable on
        return. The queue is closed also if the call is cancelled. Closing again does nothing, but waits for another
        task that is closing the queue. A dead-letter queue that was opened by name is closed, too. Items that a session
        has not flushed cause an ``UnflushedWarning``.

        Raises:
            RuntimeError: The queue was opened in another event loop.
            ResourceError, BrokenQueueError: The log could not be sealed. The queue is closed, and the next opening
                recovers.
        """
        for loss in await self._closed():
            warnings.warn(loss, UnflushedWarning, stacklevel=2)

    async def _end(self, lost: list[str]) -> None:
        if self._core is not None:
            self._check_loop()
            await self._closing.once(partial(self._close, lost))

    async def _close(self, lost: list[str]) -> None:
        lost += filter(None, [session._unflushed() for session in self._sessions])
        async with AsyncExitStack() as stack:  # the last one that is pushed comes first
            stack.callback(self._forget_core)
            if isinstance(self._dead_letter, str) and self._graves is not None:
                stack.push_async_callback(self._graves._end, lost)
            stack.push_async_callback(self._flushes.ended, self._pool.shutdown)
            for watch in [self._watch, *(each._watch for each in self._subscriptions.values())]:
                stack.push_async_callback(watch.ended)
            await over(self._flushes.close())

    def _forget_core(self) -> None:
        self._core = None

    @property
    def path(self) -> str:
        """Path that the queue is opened with."""
        return self._path

    @property
    def name(self) -> str | None:
        """Name that the queue is opened with; None without a name."""
        return self._name

    @property
    def data_path(self) -> str:
        """Directory that has the segments in its ``data``."""
        return self._open().data_path

    @property
    def identity(self) -> str:
        """Identity of the queue in hex digits."""
        return self._open().identity

    @property
    def recovery(self) -> RecoveryReport:
        """Report of what the opening found and recovered."""
        return self._open().recovery

    @property
    def closed(self) -> bool:
        """True if the queue is closed, or not open yet."""
        return self._core is None or self._closing.is_under_way or self._core.closed

    def session(self, name: str | None = None) -> Session[T]:
        """Return a new session, for one task at a time. Use it in an ``async with`` block.

        Args:
            name: Name of the session in ``explain``. Default None: the name of the running task.
        """
        core = self._open()
        return self._session(core.session(session_name(name)), self._watch, core.__len__)

    def _session(self, core: persistentqueue.Session[T], watch: Watch, ready: Callable[[], int]) -> Session[T]:
        session = Session(self, core, watch, ready)
        self._sessions.add(session)
        return session

    async def subscribe(self, name: str, start: Start = "earliest") -> Subscription[T]:
        """Return the subscription of this name; make it if it does not exist. Durable on return.

        Args:
            name: Name of the subscription, 1 to 65,535 bytes in UTF-8.
            start: Where a new subscription begins: ``"earliest"`` (default) or ``"latest"``.

        Raises:
            TypeError, ValueError: ``name`` or ``start`` is not valid.
            ResourceError, BrokenQueueError: On the conditions that ``persistentqueue.PersistentQueue.subscribe`` names.
        """
        core = self._open()
        made = await self._ask(core.subscribe, name, start)
        await self._forget(name)
        if name not in self._subscriptions:
            self._subscriptions[name] = Subscription(self, made)
        return self._subscriptions[name]

    async def _forget(self, name: str) -> None:
        """Drop the subscription of this name if it was removed. The tasks that wait for it get its error."""
        known = self._subscriptions.get(name)
        if known is not None and known.removed:
            del self._subscriptions[name]
            await known._watch.ended()

    async def unsubscribe(self, name: str) -> None:
        """Remove a subscription, and the items that only it still needed; durable on return.

        Args:
            name: Name of the subscription.

        Raises:
            SubscriptionNotFoundError: There is no subscription of this name.
            ResourceError, BrokenQueueError: On the conditions that ``persistentqueue.PersistentQueue.unsubscribe``
                names.
        """
        checked_text("a subscription's name", name)
        try:
            await self._do("unsubscribe", name)
        finally:  # a call that was cancelled has removed it, too
            await self._forget(name)

    def subscriptions(self) -> list[str]:
        """Return the names of the subscriptions, oldest first."""
        return self._open().subscriptions()

    def browse(self, *, progress: Progress = None) -> AsyncIterator[T]:
        """Return an asynchronous iterator over the ready items, in order, without holding or consuming them.

        Its rules and errors are those of ``persistentqueue.PersistentQueue.browse``, except that it ends after any
        error, also after a ``CodecError``.

        Args:
            progress: How to report the number of items that were read. Default None: not at all. A thread calls it, and
                not the event loop.
        """
        return self._iterate(partial(self._open().browse, progress=progress))

    def browse_all(self, *, progress: Progress = None) -> AsyncIterator[T]:
        """Return an asynchronous iterator over the items that any subscription has not consumed, held ones included.

        Its rules are those of ``browse``, except that a queue that was made with ``fan_out`` can be browsed, too.

        Args:
            progress: How to report the number of items that were read, as in ``browse``. Default None: not at all.
        """
        return self._iterate(partial(self._open().browse_all, progress=progress))

    def marker(self, name: str) -> int | None:
        """Return the version that a marker has reached, or None if it was never set.

        Args:
            name: Name of the marker.
        """
        return self._open().marker(name)

    @property
    def dead_letters(self) -> PersistentQueue[bytes]:
        """The dead-letter queue. Its items are envelopes (see ``persistentqueue.DeadLetter``).

        Raises:
            ValueError: The queue was opened without ``dead_letter``, or with a synchronous queue, which the caller has.
        """
        core = self._open()
        if isinstance(self._dead_letter, PersistentQueue):
            return self._dead_letter
        dead = core.dead_letters
        if self._graves is not None:
            return self._graves
        if isinstance(self._dead_letter, str):
            self._graves = adopted(dead)
            return self._graves
        raise ValueError(f"the dead letters of {self!r} are in {dead!r}, which was passed as dead_letter: use it")

    def _adopt(self, core: persistentqueue.PersistentQueue[T]) -> None:
        """Take over an open synchronous queue, in place of ``open``."""
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(_THREADS, "persistentqueue-aio")
        self._core = core
        self._begin()

    async def compact(
        self, *, below: float = Options.compact_below, progress: Progress = None, bytes_per_second: float = inf
    ) -> Compacted:
        """Copy the live items of sparse segments to new segments, and delete the old ones.

        Args:
            below: Share of live bytes below which a segment is sparse, 0 to 1. Default 0.3.
            progress: How to report the bytes that were copied. Default None: not at all. A thread calls it.
            bytes_per_second: Upper bound for the average rate of copying; more than 0. Default ``inf``.

        Returns:
            The number of segments that were emptied, and the bytes copied.

        Raises:
            ValueError: An argument is out of range.
            ResourceError, BrokenQueueError, OSError: On the conditions that the synchronous method names.
        """
        compacted: Compacted = await self._do(
            "compact", below=below, progress=progress, bytes_per_second=bytes_per_second
        )
        return compacted

    def in_thread(self, call: Callable[..., R], *arguments: Any, **named: Any) -> Landing[R]:
        """Make a call in a thread, and return its result as a future. For the sessions of this queue.

        Args:
            call: The call.
            *arguments: Its positional arguments.
            **named: Its named arguments.
        """
        return launch(self._loop, self._pool.submit, partial(call, *arguments, **named))

    def flush_session(
        self, session: persistentqueue.Session[Any], marker: Marker | None, timeout: float | None
    ) -> Landing[bool]:
        """Flush the session together with others. For the sessions of this queue.

        Args:
            session: The synchronous session.
            marker: Name and version that the transaction records, or None.
            timeout: Seconds to wait for room; None: no limit.

        Raises:
            ValueError: ``timeout`` is negative, or is above 0 without ``full="block"``.
        """
        timeout = checked_timeout(timeout)
        if timeout and not self._blocks:
            raise ValueError(f'a timeout of {timeout} seconds needs a queue with full="block"')
        return self._flushes.flush(session, marker, timeout)

    def part(self) -> Part:
        """Return the part of this queue in a transaction over several queues. For ``aio.transaction``."""
        return Part(self._open(), self, self._watch)

    def check(self) -> None:
        """Raise if this task cannot use the queue. For its sessions and subscriptions.

        Raises:
            ClosedError: The queue is closed.
            RuntimeError: The queue belongs to another event loop.
        """
        self._open()

    async def _ask(self, call: Callable[..., R], *arguments: Any, **named: Any) -> R:
        self._open()
        return await over(self.in_thread(call, *arguments, **named))

    async def _do(self, method: str, *arguments: Any, **named: Any) -> Any:
        return await self._ask(getattr(self._open(), method), *arguments, **named)

    def _open(self) -> persistentqueue.PersistentQueue[T]:
        if self._core is None or self._closing.is_under_way:
            raise not_open(queue_directory(self._path, self._name))
        self._check_loop()
        return self._core

    def _check_loop(self) -> None:
        if asyncio._get_running_loop() is not self._loop:  # None in a thread without a loop
            raise other_loop(f"{self!r} belongs to the event loop in which it was opened, not to this one")


class Subscription(Uncopyable, Consumer[Session[T]], Generic[T]):
    """One named consumer of a queue; ``PersistentQueue.subscribe`` makes it (see ``persistentqueue.Subscription``).

    For the tasks of the event loop of its queue.

    Args:
        queue: The queue.
        core: The synchronous subscription.
    """

    _what = "subscription"
    _elsewhere = persistentqueue.Subscription._elsewhere

    def __init__(self, queue: PersistentQueue[T], core: persistentqueue.Subscription[T]) -> None:
        self._queue = queue
        self._core = core
        self._watch = Watch(queue._loop, core.wait, queue._open().wake)

    def __repr__(self) -> str:
        return repr(self._core)

    def __len__(self) -> int:
        """Return the number of items that are ready for this subscription."""
        return len(self._core)

    def __bool__(self) -> bool:
        """Return True, also if no item is ready."""
        return True

    @property
    def name(self) -> str:
        """Name of the subscription."""
        return self._core.name

    @property
    def removed(self) -> bool:
        """True if the subscription was removed."""
        return self._core.removed

    def session(self, name: str | None = None) -> Session[T]:
        """Return a new session that dequeues for this subscription, for one task at a time.

        Args:
            name: Name of the session in ``explain``. Default None: the name of the running task.
        """
        self._queue.check()
        return self._queue._session(self._core.session(session_name(name)), self._watch, self._core.__len__)

    def part(self) -> Part:
        """Return the part of this subscription in a transaction over several queues. For ``aio.transaction``."""
        self._queue.check()
        return Part(self._core, self._queue, self._watch)

    def browse(self, *, progress: Progress = None) -> AsyncIterator[T]:
        """Return an asynchronous iterator over the items that are ready for this subscription, without holding them.

        Its rules and errors are those of ``PersistentQueue.browse``.

        Args:
            progress: How to report the number of items that were read, as in ``PersistentQueue.browse``. Default None:
                not at all.
        """
        self._queue.check()
        return self._queue._iterate(partial(self._core.browse, progress=progress))


def adopted(core: persistentqueue.PersistentQueue[T]) -> PersistentQueue[T]:
    """Return an open queue of this event loop for an open synchronous queue. Closing it closes both."""
    queue = PersistentQueue[T](core.path, core.name)
    queue._adopt(core)
    return queue


_OPEN: Members[PersistentQueue[Any]] = Members()
"""The queues that were opened. One that was closed since may be among them."""


def _forget_parent() -> None:
    for queue in _OPEN:  # the parent has the threads of a queue, and its lock
        queue._core, queue._closing, queue._is_opening = None, Closing(), False
    _OPEN.clear()


after_fork_in_child(_forget_parent)

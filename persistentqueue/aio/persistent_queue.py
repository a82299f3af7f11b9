"""``PersistentQueue`` for the tasks of one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import persistentqueue
from persistentqueue import ClosedError, Compacted, Maintained, RecoveryReport, SegmentUse, Stats, codecs
from persistentqueue.codecs import T
from persistentqueue.engine.settings import refuse_retries
from persistentqueue.system.disk import StrPath, abspath, fspath
from persistentqueue.system.uncopyable import Uncopyable

from .flush_batcher import Flushes, Marker
from .futures import Landing, over, tell
from .item_waiter import Watch
from .session import Session

R = TypeVar("R")
_THREADS = 4
"""How many read, open, compact … at a time."""
_BATCH_ITEMS = 256
"""How many items browsing reads at a time."""


class PersistentQueue(Uncopyable, Generic[T]):
    """``persistentqueue.PersistentQueue``, with the same settings, for the tasks of one event loop.

    Used in ``async with``, which opens it, in a thread, and closes it, or by ``open`` and ``close``. It belongs to the
    loop in which it was opened: another one's tasks hear a ``RuntimeError``. Once it is closed it may be opened again,
    by any loop. What is dropped without ``close`` frees its lock with a ``ResourceWarning``, as in the core.

    Methods that touch the disk are awaited, and raise what those of the core raise; a cancellation waits until the
    thread is done, and then what it did is done. Nothing waits busily.
    """

    _elsewhere = persistentqueue.PersistentQueue._elsewhere

    def __init__(
        self,
        path: StrPath,
        name: str | None = None,
        *,
        codec: codecs.Codec[T] = cast(Any, codecs.BYTES),  # noqa: B008 - a constant
        **settings: Any,
    ) -> None:
        self._path = fspath(path)
        self._name = name
        # It is opened later, and the process may change its directory meanwhile.
        if settings.get("data_path") is not None:
            settings["data_path"] = abspath(settings["data_path"])
        self._opening = partial(persistentqueue.PersistentQueue[T], abspath(path), name, codec=codec, **settings)
        refuse_retries(settings, "asyncio")
        self._blocks = settings.get("full") == "block"
        self._core: persistentqueue.PersistentQueue[T] | None = None
        self._is_opening = self._is_closing = False
        self._subscriptions: dict[str, Subscription[T]] = {}

    async def __aenter__(self) -> PersistentQueue[T]:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"aio.PersistentQueue({self._path!r}, {self._name!r})"

    def __len__(self) -> int:
        """How many items may be dequeued now."""
        return len(self._open())

    def __bool__(self) -> bool:
        """A queue is true also when it is empty."""
        return True

    async def open(self) -> PersistentQueue[T]:
        """Open it; raises what the constructor of the core's raises, and ``RuntimeError`` if it is open. Cancelled,
        which waits as long as ``lock_timeout`` says, it is closed."""
        if self._is_opening or self._is_closing or not self.closed:
            raise RuntimeError(f"{self!r} is open")
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(_THREADS, "persistentqueue-aio")
        self._is_opening = True
        opening = self.in_thread(self._opening)
        try:
            self._core = await over(opening)
        except asyncio.CancelledError:
            if opening.exception() is None:
                await over(self.in_thread(opening.result().close))
            raise
        finally:
            self._is_opening = False
            if self._core is None or self._core.closed:
                self._pool.shutdown()
        self._subscriptions = {}
        self._flushes = Flushes(self._loop, self._core, blocks=self._blocks)
        self._watch = Watch(self._loop, self._core, self._core.wake)
        return self

    async def close(self) -> None:
        """End open sessions by rollback, close the queue; closing again does nothing. Whoever waits hears
        ``ClosedError``. Flushes that have begun are ended first. Raises like the core's; cancelled, it is closed."""
        if self._core is None or self._is_closing:
            return
        self._check_loop()
        self._is_closing = True
        try:
            await over(self._flushes.close())
        finally:
            self._watch.end()
            for subscription in self._subscriptions.values():
                subscription._watch.end()
            self._flushes.end()
            self._pool.shutdown()
            self._core, self._is_closing = None, False

    @property
    def path(self) -> str:
        """The path that the queue is opened with."""
        return self._path

    @property
    def name(self) -> str | None:
        """The name that the queue is opened with."""
        return self._name

    @property
    def data_path(self) -> str:
        """The directory that the segments are in ``data`` of."""
        return self._open().data_path

    @property
    def identity(self) -> str:
        """Which queue this is, in hex digits."""
        return self._open().identity

    @property
    def recovery(self) -> RecoveryReport:
        """What opening found, and did about it."""
        return self._open().recovery

    @property
    def closed(self) -> bool:
        """Whether the queue was closed, or was not opened yet."""
        return self._core is None or self._is_closing or self._core.closed

    def session(self, name: str | None = None) -> Session[T]:
        """A new session; use it in an ``async with`` block. By default it is called like the running task."""
        core = self._open()
        return Session(self, core.session(name or _task_name()), self._watch, core.__len__)

    @asynccontextmanager
    async def transaction(self, name: str | None = None) -> AsyncIterator[Session[T]]:
        """A session that is flushed when the block ends well, and rolled back when it raises."""
        async with self.session(name) as session:
            yield session
            await session.flush()

    async def subscribe(self, name: str, start: str = "earliest") -> Subscription[T]:
        """The subscription of this name, which is made if it is not there; durable on return."""
        core = self._open()
        made = await over(self.in_thread(core.subscribe, name, start))
        known = self._subscriptions.get(name)
        if known is None or known.removed:
            if known is not None:
                known._watch.end()
            known = self._subscriptions[name] = Subscription(self, made)
        return known

    async def unsubscribe(self, name: str) -> None:
        """Remove a subscription, and give back what only it has kept; durable on return."""
        await self._do("unsubscribe", name)

    def subscriptions(self) -> list[str]:
        """The names of the subscriptions, the oldest first."""
        return self._open().subscriptions()

    def browse(self) -> AsyncIterator[T]:
        """Iterate, by ``async for``, over the ready items, in order, without consuming or holding them."""
        return self.iterate(self._open().browse)

    def browse_all(self) -> AsyncIterator[T]:
        """Like ``browse``, over what anybody has still to consume: of any subscription, on hold or not."""
        return self.iterate(self._open().browse_all)

    async def peek(self, n: int = 1) -> list[T]:
        """The first ``n`` ready items, or as many as there are, without consuming or holding them."""
        items: list[T] = await self._do("peek", n)
        return items

    def marker(self, name: str) -> int | None:
        """The version that the marker has reached; None if it was never set."""
        return self._open().marker(name)

    async def clear(self) -> int:
        """Consume all ready items as one transaction, durable on return; how many there were."""
        count: int = await self._do("clear")
        return count

    async def trim(self) -> None:
        """Shorten the log to what is live and delete drained segments now."""
        await self._do("trim")

    async def compact(self, **how: Any) -> Compacted:
        """Copy what lives in sparse segments together. ``progress`` is called in a thread."""
        compacted: Compacted = await self._do("compact", **how)
        return compacted

    async def maintain(self) -> Maintained:
        """Do now what maintenance does by itself."""
        maintained: Maintained = await self._do("maintain")
        return maintained

    async def resize(self, **settings: Any) -> None:
        """Change ``memory_bytes`` or ``segment_bytes`` of the open queue."""
        await self._do("resize", **settings)

    async def explain(self) -> list[SegmentUse]:
        """Why each data file is there, the oldest first."""
        uses: list[SegmentUse] = await self._do("explain")
        return uses

    async def stats(self) -> Stats:
        """The queue at this moment."""
        stats: Stats = await self._do("stats")
        return stats

    def in_thread(self, call: Callable[..., R], *arguments: Any, **named: Any) -> Landing[R]:
        """What comes of a call that a thread makes; for what belongs to this queue."""
        landing: Landing[R] = Landing(loop=self._loop)
        self._pool.submit(_make, landing, partial(call, *arguments, **named))
        return landing

    def flush(
        self, session: persistentqueue.Session[Any], marker: Marker | None, timeout: float | None
    ) -> Landing[bool]:
        """Flush this with what else is to be flushed; for its sessions."""
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout must be None or at least 0 seconds, got {timeout}")
        if timeout and not self._blocks:
            raise ValueError(f'a timeout of {timeout} seconds needs a queue with full="block"')
        return self._flushes.flush(session, marker, timeout)

    def check(self) -> None:
        """Raise ``ClosedError`` if it is closed, ``RuntimeError`` if this is another loop; for what belongs to it."""
        self._open()

    async def iterate(self, browse: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        """What is browsed, some at a time; for its subscriptions."""
        items = browse()
        while True:
            self._open()
            found, error = await over(self.in_thread(_some, items))
            for item in found:
                yield item
            if error is not None:
                raise error
            if not found:
                return

    async def _do(self, method: str, *arguments: Any, **named: Any) -> Any:
        return await over(self.in_thread(getattr(self._open(), method), *arguments, **named))

    def _open(self) -> persistentqueue.PersistentQueue[T]:
        if self._core is None or self._is_closing:
            raise ClosedError("the queue is closed: open it, with async with or await queue.open()")
        self._check_loop()
        return self._core

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(f"{self!r} belongs to the event loop in which it was opened, not to this one")


class Subscription(Uncopyable, Generic[T]):
    """One consumer of a queue, by its name; see ``persistentqueue.Subscription``. Made by ``subscribe``."""

    _elsewhere = persistentqueue.Subscription._elsewhere

    def __init__(self, queue: PersistentQueue[T], core: persistentqueue.Subscription[T]) -> None:
        self._queue = queue
        self._core = core
        self._watch = Watch(queue._loop, core, queue._open().wake)

    def __repr__(self) -> str:
        return repr(self._core)

    def __len__(self) -> int:
        """How many items it may dequeue now."""
        return len(self._core)

    def __bool__(self) -> bool:
        """It is true also when it has nothing to dequeue."""
        return True

    @property
    def name(self) -> str:
        """The name that it was made with."""
        return self._core.name

    @property
    def removed(self) -> bool:
        """Whether it was removed."""
        return self._core.removed

    def session(self, name: str | None = None) -> Session[T]:
        """A new session that dequeues for this subscription."""
        self._queue.check()
        return Session(self._queue, self._core.session(name or _task_name()), self._watch, self._core.__len__)

    @asynccontextmanager
    async def transaction(self, name: str | None = None) -> AsyncIterator[Session[T]]:
        """A session that is flushed when the block ends well, and rolled back when it raises."""
        async with self.session(name) as session:
            yield session
            await session.flush()

    def browse(self) -> AsyncIterator[T]:
        """Iterate, by ``async for``, over what it may dequeue, in order, without holding it."""
        self._queue.check()
        return self._queue.iterate(self._core.browse)


def _make(landing: Landing[R], call: Callable[[], R]) -> None:
    found: R | Exception
    try:
        found = call()
    except Exception as error:
        found = error
    tell(landing.get_loop(), landing.land, found)


def _some(items: Iterator[T]) -> tuple[list[T], Exception | None]:
    """The next of them, and the error behind these."""
    found: list[T] = []
    try:
        found.extend(islice(items, _BATCH_ITEMS))
    except Exception as error:
        return found, error
    return found, None


def _task_name() -> str:
    task = asyncio.current_task()
    return task.get_name() if task is not None else ""

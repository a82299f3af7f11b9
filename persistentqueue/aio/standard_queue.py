"""``asyncio.Queue`` with its items on disk.

It is the standard library's own class, so that waiting, waking and cancelling are as everywhere; only the items are in
another place. At hand, in memory, are the first items of the queue and, while these are all, what was just put. What
comes behind so many is on disk alone, until there is room. One thread writes: each time it saves what was put, consumes
what is done, and takes what comes next, all puts in one transaction and all of it with one sync.

What is at hand is on hold in the core, each item in a session of its own, which is flushed when the item is done. What
was just put may be got before it is saved; it is put on hold when it is. Since the core gives items in the order in
which they were put, the thread meets it again as the next one with the same bytes; anything else was put by another
process.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any

from persistentqueue import BrokenQueueError, ClosedError, CorruptionError, PersistentQueue, Session, codecs
from persistentqueue.engine.settings import refuse_retries
from persistentqueue.system.disk import StrPath, abspath, fspath
from persistentqueue.system.uncopyable import Uncopyable

from .futures import Landing, Worker, over, tell
from .standard_queue_worker import Entry, Found, Work, opened, work_on

if sys.version_info >= (3, 13):
    from asyncio import QueueShutDown
else:

    class QueueShutDown(Exception):  # noqa: N818 - the standard library's name
        """Raised by ``put`` and ``get`` once the queue was shut down; from Python 3.13 on it is asyncio's."""


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
AT_HAND_ITEMS = 1000
AT_HAND_BYTES = 8 * 1024 * 1024
"""Of so many items, or bytes, nothing more is kept at hand, but for one item."""


class Queue(Uncopyable, asyncio.Queue[T]):
    """``asyncio.Queue`` in the directory ``path``, with every call of Python 3.13's, for the tasks of one event loop.

    Used in ``async with``, or by ``open`` and ``close``. A ``codec`` makes bytes of items, JSON where nothing else is
    said, so that a tuple comes out as a list; all other settings are those of ``persistentqueue.PersistentQueue``.

    - ``put`` is durable on return; those of many tasks share a sync. Where it waits for a slot it may be cancelled, and
      has put nothing; cancelled later the item is in the queue. ``put_nowait`` is durable soon, and when ``flush``,
      ``join`` or ``close`` return.
    - ``get`` takes the first item, which is on hold until ``task_done``: that is for the items in the order in which
      they were got, and durable soon, like ``put_nowait``. What was got and is not done comes back, at the front and in
      its order, when the queue is opened again, after a crash as after ``close``.
    - What is in the queue when it is opened is unfinished, for ``join``. So is what other processes put in, by a
      ``Producer``.
    - ``get_nowait`` raises ``QueueEmpty``, and ``empty`` is true, also where the next item is not in memory yet;
      ``get`` waits for it, and ``qsize`` counts it.
    - ``shutdown`` ends this object and no more: what it drops is there again for the next opening.

    It is for the loop that used it first: another one's tasks hear a ``RuntimeError``.

    Raises what ``PersistentQueue`` raises: ``ClosedError`` before ``open`` and after ``close``, ``CorruptionError`` and
    ``CodecError`` from ``get``, in the item's turn (then ``task_done`` is due as for any other), ``ResourceError`` from
    ``put``, which has put nothing then, or from ``flush``, which may be called again.
    """

    _elsewhere = "pass its path, and open a Producer there, with the codec that the queue has"
    # What there is of asyncio's, in each version from 3.10 on.
    _getters: deque[asyncio.Future[None]]
    _putters: deque[asyncio.Future[None]]
    _finished: asyncio.Event
    _unfinished_tasks: int
    _wakeup_next: Callable[[deque[asyncio.Future[None]]], None]
    _get_loop: Callable[[], asyncio.AbstractEventLoop]

    def __init__(
        self, path: StrPath, maxsize: int = 0, *, codec: codecs.Codec[T] = codecs.JSON, **settings: Any
    ) -> None:
        self._path = fspath(path)
        self._codec = codec
        refuse_retries(settings, "asyncio")
        # It is opened later, and the process may change its directory meanwhile.
        if settings.get("data_path") is not None:
            settings["data_path"] = abspath(settings["data_path"])
        self._opening = partial(PersistentQueue[bytes], abspath(path), **settings)
        self._core: PersistentQueue[bytes] | None = None
        self._reset()
        super().__init__(maxsize)

    def _reset(self) -> None:
        self._got: deque[Entry] = deque()
        """Got, and not done, in this order."""
        self._unsaved: list[Entry] = []
        self._fresh: deque[Entry] = deque()
        """Saved, and not on hold yet, in the order of the core."""
        self._done: list[Session[bytes]] = []
        """To be consumed."""
        self._dropped: list[Entry] = []
        """By a shutdown: given back when it is closed, so that nobody meets them before."""
        self._away = 0
        """How many items come behind those at hand."""
        self._at_hand_bytes = 0
        self._last: Entry | None = None
        self._failure: Exception | None = None
        """Why nothing goes any more."""
        self._settling: list[Landing[None]] = []
        self._is_armed = self._is_working = self._is_told = self._is_watching = False
        self._is_shutdown = self._is_drained = False
        self._worker = Worker("persistentqueue-aio-queue")
        self._watcher = Worker("persistentqueue-aio-watch")

    async def __aenter__(self) -> Queue[T]:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> Queue[T]:
        """Open it; raises what ``PersistentQueue`` raises. Cancelled, it is closed."""
        if self._core is not None:
            raise RuntimeError(f"the queue {self._path!r} was opened already: make another object")
        opening: Landing[PersistentQueue[bytes]] = Landing(loop=asyncio.get_running_loop())
        self._worker.submit(partial(_do, opening, partial(opened, self._opening)))
        try:
            self._begin(await over(opening))
        except asyncio.CancelledError:
            if opening.exception() is None:
                self._begin(opening.result())
                await self.close()
            raise
        finally:
            if self._core is None:
                self._worker.end()
        return self

    async def close(self) -> None:
        """``flush``, and close it, which gives back what is not done; closing again does nothing. Who waits hears
        ``ClosedError``. Raises what ``flush`` does; the queue is closed all the same. Cancelled, it is closed."""
        if self._core is None or isinstance(self._failure, ClosedError):
            return
        self._here()
        error: BaseException | None = None
        try:
            await self.flush()
        except (Exception, asyncio.CancelledError) as failed:
            error = failed
        self._fail(ClosedError("the queue is closed: open it again"))
        closing: Landing[None] = Landing(loop=asyncio.get_running_loop())
        self._worker.submit(partial(_do, closing, self._core.close))
        try:
            await over(closing)
        finally:
            self._worker.end()
            self._watcher.end()
        if error is not None:
            raise error

    async def flush(self) -> None:
        """All that was put is durable on return, and so is what was done. Raises why it is not."""
        self._check()
        if self._unsaved or self._done or self._fresh or self._is_working:
            settling: Landing[None] = Landing(loop=asyncio.get_running_loop())
            self._settling.append(settling)
            self._arm()
            await over(settling)

    def qsize(self) -> int:
        """How many items are in the queue: those that were got not included."""
        return len(self._queue) + self._away

    def put_nowait(self, item: T) -> None:
        """Put an item, which is durable soon; see ``flush``."""
        self._check()
        if self._is_shutdown:
            raise QueueShutDown
        super().put_nowait(item)

    async def put(self, item: T) -> None:
        """Put an item, waiting for a slot; durable on return."""
        self._check()
        if self._is_shutdown:
            raise QueueShutDown
        await super().put(item)
        entry, self._last = self._last, None
        if entry is not None:
            entry.saved = Landing(loop=asyncio.get_running_loop())
            await over(entry.saved)

    def get_nowait(self) -> T:
        """The first item, if it is in memory."""
        self._check()
        if self._is_shutdown and not self.qsize():
            raise QueueShutDown
        return super().get_nowait()

    async def get(self) -> T:
        """The first item, waiting for one."""
        self._check()
        if self._is_shutdown and not self.qsize():
            raise QueueShutDown
        if self.empty():
            self._arm()
            self._watch()
        try:
            return await super().get()
        finally:
            if self._is_watching and not self._getters and self._core is not None:
                self._core.wake()

    def task_done(self) -> None:
        """The first of the items that were got, and are not done, is consumed, durably soon; see ``flush``."""
        if not self._got:
            raise ValueError("task_done() called too many times")
        super().task_done()
        entry = self._got.popleft()
        entry.is_done = True
        if entry.hold is not None:
            self._done.append(entry.hold)
        self._arm()

    async def join(self) -> None:
        """Wait until all items are done, and until that is durable."""
        await super().join()
        await self.flush()

    def shutdown(self, immediate: bool = False) -> None:
        """Let nothing more in; ``get`` raises ``QueueShutDown`` once nothing is left, or, ``immediate``, from now on.
        What is dropped so stays on disk."""
        self._is_shutdown = True
        if immediate:
            self._is_drained = True
            self._unfinished_tasks = max(self._unfinished_tasks - self.qsize(), 0)
            self._dropped += self._queue
            self._queue.clear()
            self._away = 0
            if not self._unfinished_tasks:
                self._finished.set()
        if not self.qsize():
            _raise(self._getters, QueueShutDown())
        _raise(self._putters, QueueShutDown())

    def _init(self, maxsize: int) -> None:  # noqa: ARG002 - that of asyncio's
        self._queue: deque[Entry] = deque()

    def _put(self, item: T) -> None:
        entry = Entry(codecs.encode(self._codec, item, self._path), self._codec)
        if entry.error is not None:
            raise entry.error
        if self._away or not self._has_room():
            entry.is_at_hand = False
            self._away += 1
        else:
            self._append(entry, len(self._queue))
        self._last = entry
        self._unsaved.append(entry)
        self._arm()

    def _get(self) -> T:
        entry = self._queue.popleft()
        self._at_hand_bytes -= len(entry.data)
        entry.is_got = True
        self._got.append(entry)
        if self._away:
            self._arm()
        if entry.error is not None:
            self._wakeup_next(self._putters)
            raise entry.error
        item: T = entry.item
        return item

    def _begin(self, core: PersistentQueue[bytes]) -> None:
        """It is open."""
        self._core = core
        self._away = self._unfinished_tasks = len(core)
        if self._away:
            self._finished.clear()
        self._arm()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._core is None:
            raise ClosedError("the queue is not open: use async with, or await queue.open()")
        self._here()

    def _here(self) -> asyncio.AbstractEventLoop | None:
        """The loop that runs; None where, as with asyncio.Queue, none does: then there are no tasks that wait, and
        nothing goes on. Raises ``RuntimeError`` in another loop than the first."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return None
        return self._get_loop()

    def _fail(self, error: Exception) -> None:
        """Nothing goes any more: all who wait hear so."""
        self._failure = error
        self._unsaved = [entry for entry in self._unsaved if not self._withdraws(entry, error)]
        _raise(self._getters, error)
        _raise(self._putters, error)

    def _has_room(self) -> bool:
        return not self._queue or (len(self._queue) < AT_HAND_ITEMS and self._at_hand_bytes < AT_HAND_BYTES)

    def _append(self, entry: Entry, at: int) -> None:
        self._queue.insert(at, entry)
        self._at_hand_bytes += len(entry.data)

    def _arm(self) -> None:
        """Have the thread do what there is, with what else comes in this round of the loop."""
        loop = self._here()
        if loop is not None and not self._is_armed and not self._is_working and self._failure is None:
            self._is_armed = True
            loop.call_soon(self._work, loop)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_armed = False
        assert self._core is not None
        unsaved, self._unsaved = self._unsaved, []
        for entry in unsaved:
            if not entry.is_done:
                self._unsaved.append(entry)
            elif entry.saved is not None:  # it was got and done before it was saved: nothing is left of it
                entry.saved.land(None)
        can_take = self._has_room() and not self._is_drained and (self._away or self._is_told)
        if self._is_working or not (self._unsaved or self._done or self._fresh or can_take):
            self._settle()
            return
        fresh = len(self._fresh) + sum(entry.is_at_hand for entry in self._unsaved)
        more = max(AT_HAND_ITEMS - len(self._queue), 1) if can_take else 0
        work = Work(self._unsaved, self._done, fresh + more, AT_HAND_BYTES)
        self._unsaved, self._done = [], []
        self._is_told = False
        self._is_working = True
        try:
            self._worker.submit(partial(_tell_of, loop, self._landed, self._core, work))
        except RuntimeError as error:  # no thread: nothing was begun, and the next call tries again
            self._is_working = False
            self._unsaved = [entry for entry in work.entries if not self._withdraws(entry, error)]
            self._done = work.done
            self._settle(error)

    def _landed(self, work: Work, found: Found) -> None:
        self._is_working = False
        self._done = found.undone + self._done
        if found.save_error is None:
            for entry in work.entries:
                if entry.is_at_hand:
                    self._fresh.append(entry)
                if entry.saved is not None:
                    entry.saved.land(None)
        else:
            again = [entry for entry in work.entries if not self._withdraws(entry, found.save_error)]
            self._unsaved = again + self._unsaved
        self._take_over(found)
        for each in (found.save_error, found.done_error, found.take_error):
            if isinstance(each, BrokenQueueError | ClosedError) and self._failure is None:
                self._fail(each)
        error = found.save_error or found.done_error or self._failure
        goes_on = found.taken and (self._fresh or (self._away and self._has_room()))
        if error is not None:
            self._settle(error)
        elif self._unsaved or self._done or self._is_told or goes_on:
            self._arm()
        else:
            self._settle()
        if self._getters:
            self._watch()

    def _take_over(self, found: Found) -> None:
        """What was taken is at hand: what is not expected before what is."""
        before = self.qsize()
        waking = 0
        own = sum(each.hold is None for each in self._queue) if self._fresh or self._unsaved else 0
        for data, hold in found.taken:
            if self._fresh and self._fresh[0].data == data:
                entry = self._fresh.popleft()
                entry.hold = hold
                own -= not entry.is_got
                if entry.is_done:
                    self._done.append(hold)
            elif self._is_drained:
                self._dropped.append(Entry(data, self._codec, hold))
            else:
                self._append(Entry(data, self._codec, hold), len(self._queue) - own)
                waking += 1
        if self._is_drained:
            return
        if isinstance(found.take_error, CorruptionError):
            damaged = Entry(b"", codecs.BYTES)
            damaged.error = found.take_error
            self._append(damaged, len(self._queue) - own)
            waking += 1
        elif found.take_error is not None:  # what is there cannot be taken for now: it is told to one, as by the core
            _raise(self._getters, found.take_error, 1)
        self._away = found.ready - len(self._fresh) + sum(not entry.is_at_hand for entry in self._unsaved)
        # What others have put, and what was damaged, was not counted.
        self._unfinished_tasks += self.qsize() - before
        if self._unfinished_tasks:
            self._finished.clear()
        else:
            self._finished.set()
        for _ in range(waking):
            self._wakeup_next(self._getters)

    def _withdraws(self, entry: Entry, error: Exception) -> bool:
        """Who awaits that it is saved hears why it is not; then it was never put, unless somebody has got it."""
        if entry.saved is None:
            return False
        entry.saved.land(error)
        if entry.is_at_hand:
            with suppress(ValueError):
                self._queue.remove(entry)
                self._at_hand_bytes -= len(entry.data)
                self._finish_one()
        elif not self._is_drained:  # else it counts no more
            self._away -= 1
            self._finish_one()
        return True

    def _finish_one(self) -> None:
        self._unfinished_tasks -= 1
        if not self._unfinished_tasks:
            self._finished.set()
        self._wakeup_next(self._putters)

    def _settle(self, error: Exception | None = None) -> None:
        """Nothing is left to be done, or nothing can be: all who are in ``flush`` hear so."""
        settling, self._settling = self._settling, []
        for each in settling:
            each.land(error)

    def _watch(self) -> None:
        """While somebody waits for an item, a thread waits for what other processes put."""
        if not self._is_watching and self._failure is None and self._core is not None:
            self._is_watching = True
            waiting = partial(_wait, asyncio.get_running_loop(), self._watched, self._core, self._getters)
            try:
                self._watcher.submit(waiting)
            except RuntimeError:
                self._is_watching = False
                raise

    def _watched(self, is_there: bool) -> None:
        self._is_watching = False
        self._is_told = is_there
        if is_there:
            self._arm()
        elif self._getters:  # it began to wait before the first of them was in line
            self._watch()


def _do(landing: Landing[T], call: Callable[[], T]) -> None:
    found: T | Exception
    try:
        found = call()
    except Exception as error:
        found = error
    tell(landing.get_loop(), landing.land, found)


def _tell_of(
    loop: asyncio.AbstractEventLoop, landed: Callable[..., None], core: PersistentQueue[bytes], work: Work
) -> None:
    tell(loop, landed, work, work_on(core, work))


def _wait(
    loop: asyncio.AbstractEventLoop, watched: Callable[..., None], core: PersistentQueue[bytes], getters: deque[Any]
) -> None:
    """In a thread: wait for what other processes put, and tell whether there is anything."""
    is_there = True
    with suppress(Exception):  # whoever takes hears of it
        is_there = core.wait(stop=lambda: not getters)
    tell(loop, watched, is_there)


def _raise(waiters: deque[asyncio.Future[None]], error: Exception, most: float = inf) -> None:
    """So many of those who wait hear of this."""
    while waiters and most:
        waiter = waiters.popleft()
        if not waiter.done():
            waiter.set_exception(error)
            most -= 1

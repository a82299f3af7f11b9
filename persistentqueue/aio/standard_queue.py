"""``asyncio.Queue`` with its items on disk.

It is a subclass of ``asyncio.Queue``, so that waiting, waking and cancelling work as in the standard library. Only the
items are stored elsewhere. The first items of the queue are *at hand*, in memory. While these are all items, new ones
are at hand as well. Beyond ``AT_HAND_ITEMS`` or ``AT_HAND_BYTES``, new items are only on disk until there is room.

One thread writes. In each piece of work, it saves what was put, consumes what is done, and takes what comes next. All
puts are one transaction, if a limit has room for it, and the whole work has one sync.

Each item at hand is held by a session of its own, which is flushed when the item is done. A new item may be got before
it is saved; after that, it is held, too. The persistent queue returns items in the order in which they were put.
Therefore the thread recognizes a new item as the next one with equal bytes. Another process has put any other item.

A queue that counts delivery attempts keeps nothing at hand ahead of its users, since each item at hand is delivered.
The thread takes one item for each task that waits in ``get``, behind the durable write of its delivery.
"""

from __future__ import annotations

import asyncio
import atexit
import sys
import warnings
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from copy import copy
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    CodecError,
    CorruptionError,
    NotHeldError,
    PersistentQueue,
    Progress,
    Session,
    UnflushedWarning,
    codecs,
)
from persistentqueue.interrupts.members import Members
from persistentqueue.options import Options, chosen_options, counts_deliveries
from persistentqueue.system.disk import StrPath, abspath, after_fork_in_child, fspath

from ..faces.lifecycle import Lifecycle, T
from ..faces.refusals import UncopyableFace, need_maxsize
from .futures import Closing, Landing, Worker, launch, over, raise_in, tell
from .item_waiter import Watcher
from .loop_bound import LoopBound
from .opening import closed, in_child, not_open, prepare
from .persistent_queue import OptionArguments, adopted
from .persistent_queue import PersistentQueue as AioPersistentQueue
from .standard_queue_worker import Entry, Errand, Found, Got, Opened, Work, opened, reject, work_on

if sys.version_info >= (3, 13):
    from asyncio import QueueShutDown
else:

    class QueueShutDown(Exception):  # noqa: N818 - the standard library's name
        """Raised by ``put`` and ``get`` after ``shutdown``. From Python 3.13 on, it is ``asyncio.QueueShutDown``."""


if TYPE_CHECKING:
    from typing_extensions import Unpack
AT_HAND_ITEMS = 1000
AT_HAND_BYTES = 8 * 1024 * 1024
"""Upper bounds for what is kept at hand; one item is at hand in any case."""
_OPEN: Members[Queue[Any]] = Members()


class Queue(UncopyableFace, LoopBound, asyncio.Queue[T]):
    """``asyncio.Queue`` in a directory on disk, with every method of Python 3.13, for the tasks of one event loop::

        async with aio.Queue("queues/orders") as queue:
            await queue.put({"order": 42})  # durable on return
            order = await queue.get()  # on hold
            queue.task_done()
            await queue.flush()  # durably consumed on return

    ``async with``, or ``open`` and ``close``, open and close it. The constructor itself opens nothing.

    Args:
        path: Directory of the queue; made if it does not exist.
        maxsize: Upper bound for the number of items in the queue, without those that ``get`` returned. Default 0; 0 or
            less: no limit.
        codec: Converts items to bytes and back (see ``persistentqueue.codecs``). Default JSON, which returns a tuple as
            a list.
        subscription: Name of the subscription that ``get`` reads (see ``PersistentQueue.subscribe``), which is made if
            it does not exist. Default None: the queue itself. Put items go to all consumers.
        options: Options as one value. A keyword argument has precedence over its field. Default None.
        progress: How to report what each opening handles, as in ``persistentqueue.PersistentQueue``. Default None: not
            at all. A thread calls it, and not the event loop.
        **arguments: The other keyword arguments of ``aio.PersistentQueue``.

    Raises:
        TypeError, ValueError: An option has the wrong type or range, or contradicts another one.

    - ``put`` is durable on return. Puts of many tasks share a sync. ``put_nowait`` is durable soon, and at the latest
      when ``flush``, ``join`` or ``close`` returns.
    - ``put`` waits for a slot only, and not for room of a limit such as ``max_items``, also with ``full="block"``.
    - A ``put`` that is cancelled while it waits for a slot has put nothing. If it is cancelled later, the item is in
      the queue.
    - ``get`` returns the first item, which is on hold until ``task_done``. ``task_done`` is for the oldest item that
      the calling task has got. If it has none, it is for the oldest item of all tasks. It is durable soon, like
      ``put_nowait``. Up to Python 3.11, ``asyncio.wait_for`` runs ``get`` in a task of its own.
    - Items that were got and are not done come back when the queue is opened again, after a crash as after ``close``.
      They are at the front, in their old order.
    - For ``join``, all items that the queue has when it is opened are unfinished, and so are items of other processes,
      by a ``Producer``.
    - If the next item is not in memory yet, ``get_nowait`` raises ``QueueEmpty``, and ``empty`` is true. ``get`` waits
      for it, and ``qsize`` counts it.
    - ``shutdown`` ends only this object. The next opening has the items that it drops, and those that other processes
      put when the queue was empty after it.

    With ``max_attempts``, ``dead_letter`` or ``retry_delay_seconds`` the queue counts delivery attempts:

    - An attempt is an item that was taken for a task in ``get``. It is durable before ``get`` returns. ``task_done``
      ends it well. ``reject``, ``close`` and the end of the process end it badly.
    - An item is delivered at most ``max_attempts`` times. Then it becomes a dead letter: by ``reject`` at once, else
      before it would be delivered once more.
    - If a ``get`` is cancelled while its item is taken, the next ``get`` returns that item, in the same attempt.
    - An item that waits for its retry is in the queue: for ``qsize``, for ``join`` and after ``shutdown``.
    - ``get_nowait`` returns only an item that a cancelled ``get`` has left, since a delivery waits for the disk.

    The queue belongs to the first event loop that uses it. In another loop or thread, its methods raise
    ``RuntimeError``. Methods raise ``ClosedError`` before ``open``, after ``close`` and in a forked child, and
    ``BrokenQueueError`` after a failed sync. ``qsize``, ``empty`` and ``full`` go on to tell the last number. A queue
    that is dropped while its last puts are not durable causes an ``UnflushedWarning``.
    """

    # Private attributes of asyncio.Queue, present in each version from 3.10 on.
    _getters: deque[asyncio.Future[None]]
    _putters: deque[asyncio.Future[None]]
    _finished: asyncio.Event
    _unfinished_tasks: int

    _opened: Opened | None = None
    _is_inherited = False
    """True in a forked child."""
    _warns = True
    """False once the program was told what it loses."""
    _watcher: Watcher

    def __init__(
        self,
        path: StrPath,
        maxsize: int = 0,
        *,
        codec: codecs.Codec[T] = codecs.JSON,
        subscription: str | None = None,
        options: Options | None = None,
        progress: Progress = None,
        **arguments: Unpack[OptionArguments],
    ) -> None:
        need_maxsize(maxsize)
        self._path = fspath(path)
        self._codec = codecs.checked_codec(codec, abspath(self._path))
        self._subscription = subscription
        chosen = chosen_options(options, arguments)
        self._counts = counts_deliveries(chosen)
        self._dead_letter: object = chosen.dead_letter
        self._graves: AioPersistentQueue[bytes] | None = None
        """The dead-letter queue, once it was asked for."""
        self._opening = prepare(PersistentQueue[bytes], chosen, path, progress=progress)
        self._core: PersistentQueue[bytes] | None = None
        self._reset()
        super().__init__(maxsize)

    def _reset(self) -> None:
        self._got = Got()
        self._unsaved: list[Entry] = []
        self._fresh: deque[Entry] = deque()
        """Entries that are saved and not yet on hold, in the order of the persistent queue."""
        self._done: list[Session[bytes]] = []
        """Sessions of entries that are done, to be flushed."""
        self._errands: list[Errand] = []
        """Calls that tasks await, and that the thread has not begun."""
        self._dropped: list[Entry] = []
        """Entries that a shutdown has dropped. ``close`` releases them, not earlier: nothing takes them again."""
        self._away = 0
        """Number of items behind those at hand."""
        self._at_hand_bytes = 0
        self._last: Entry | None = None
        self._failure: Exception | None = None
        """Error that ended all work; None while the queue works."""
        self._settling: list[Landing[None]] = []
        self._is_armed = self._is_working = self._is_saving = self._is_told = self._is_opening = False
        self._lifecycle = Lifecycle()
        self._closing = Closing()
        self._worker = Worker("persistentqueue-aio-queue")

    async def __aenter__(self) -> Queue[T]:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> Queue[T]:
        """Open the queue, and return it. If the call is cancelled, the queue is closed again.

        Raises:
            RuntimeError: This object was opened before, or another task is opening it.
            TypeError, ValueError, PersistentQueueError, OSError: The queue cannot be opened; see
                ``persistentqueue.PersistentQueue``.
        """
        if self._is_opening or self._core is not None:
            raise RuntimeError(f"the queue {self._path!r} was opened before by this object: make another aio.Queue")
        call: Any = self._opening
        if isinstance(self._dead_letter, AioPersistentQueue):
            call = partial(call, dead_letter=self._dead_letter.part().core)
        opening = launch(asyncio.get_running_loop(), self._worker.submit, partial(opened, call, self._subscription))
        self._is_opening = True
        try:
            self._begin(await over(opening))
        except asyncio.CancelledError:
            if opening.exception() is None:
                self._begin(opening.result())
                await self.close()
            raise
        finally:
            self._is_opening = False
            if self._core is None:
                await self._worker.ended()
        return self

    async def close(self) -> None:
        """Flush, and close the queue; items that are not done are ready again at the next opening.

        Tasks that wait get ``ClosedError``, and so does each ``put`` and ``get`` from now on. The queue is closed also
        if the call is cancelled or raises. Closing again does nothing, but waits for another task that is closing it.

        Raises:
            ResourceError, QueueFullError, BrokenQueueError: A put or a ``task_done`` could not be made durable, or the
                log could not be sealed.
        """
        if self._core is None or (isinstance(self._failure, ClosedError) and not self._closing.is_under_way):
            return
        self._here()
        await self._closing.once(partial(self._close, self._core))

    async def _close(self, core: PersistentQueue[bytes]) -> None:
        error: BaseException | None = None
        try:
            await self.flush()
            while self._done or self._errands:  # of tasks that have run since this flush ended
                await self.flush()
        except (Exception, asyncio.CancelledError) as failed:
            error = failed
        self._fail(closed(self._path))
        closing = launch(asyncio.get_running_loop(), self._worker.submit, core.close)
        try:
            await over(closing)
        finally:
            _OPEN.discard(self)
            async with AsyncExitStack() as stack:  # the last one that is pushed comes first
                if self._graves is not None:
                    stack.push_async_callback(self._graves.close)
                stack.push_async_callback(self._watcher.ended)
                stack.push_async_callback(self._worker.ended)
        if error is not None:
            raise error

    async def flush(self) -> None:
        """Make everything that was put, and everything that is done, durable.

        Raises:
            ResourceError, QueueFullError: There is no room. Make room, then call again.
            BrokenQueueError, ClosedError: The queue is broken or closed.
        """
        self._check()
        if self._unsaved or self._done or self._fresh or self._errands or self._is_working:
            settling: Landing[None] = Landing(loop=asyncio.get_running_loop())
            self._settling.append(settling)
            self._arm()
            await over(settling)

    def qsize(self) -> int:
        """Return the number of items in the queue, without those that ``get`` returned."""
        return self._lifecycle.size(len(self._queue) + self._away)

    def put_nowait(self, item: T) -> None:
        """Put an item, which is durable soon (see ``flush``).

        Args:
            item: An item that the codec can encode.

        Raises:
            QueueFull: There are ``maxsize`` items.
            QueueShutDown: The queue was shut down.
            CodecError: The codec cannot encode the item.
            ClosedError, BrokenQueueError: The queue is not open, or is broken.
        """
        self._check_put()
        if self.full():
            raise asyncio.QueueFull
        self._put(item)

    async def put(self, item: T) -> None:
        """Wait for a slot, and put an item, durable on return.

        Args:
            item: An item that the codec can encode.

        Raises:
            QueueShutDown: The queue was shut down. The item is not in the queue.
            CodecError: The codec cannot encode the item.
            ResourceError, QueueFullError: There is no room. The item is not in the queue, unless another task has got
                it.
            ClosedError: The queue is not open.
            BrokenQueueError: A sync failed. It is unknown whether the item is in the queue.
        """
        while self.full():
            self._check_put()
            await self._line_up(self._putters, self.full)
        try:
            self.put_nowait(item)
        except Exception:
            self._wake_putters()  # this task may have been woken for a slot, which it does not take
            raise
        entry, self._last = self._last, None
        if entry is not None:
            entry.saved = Landing(loop=asyncio.get_running_loop())
            await over(entry.saved)

    def get_nowait(self) -> T:
        """Return the first item if it is in memory, and hold it until ``task_done``.

        Raises:
            QueueEmpty: No item is in memory.
            QueueShutDown: The queue was shut down, and is empty.
            CodecError: The item cannot be decoded. It counts as got: ``task_done`` consumes it.
            CorruptionError: A block is damaged; raised once per block. It counts as got, so it needs a ``task_done``.
            ClosedError, BrokenQueueError: The queue is not open, or is broken.
        """
        self._check_get()
        if self.empty():
            raise asyncio.QueueEmpty
        return super().get_nowait()

    async def get(self) -> T:
        """Wait for an item, return it, and hold it until ``task_done``. Waiting costs no CPU.

        Raises:
            QueueShutDown: The queue was shut down, and is empty.
            CodecError: The item cannot be decoded. It counts as got: ``task_done`` consumes it.
            CorruptionError: A block is damaged; raised once per block. It counts as got, so it needs a ``task_done``.
            ClosedError, BrokenQueueError: The queue is not open, or is broken.
            PersistentQueueError: The next item cannot be taken for now, as with a ``WrongKeyError`` of ``codec``. One
                waiting task gets this error.
        """
        while self.empty():
            self._check_get()
            self._arm()
            self._watch()
            try:
                await self._line_up(self._getters, self.empty)
            finally:
                if not self._getters:
                    self._watcher.stop()
        return self.get_nowait()

    def task_done(self) -> None:
        """Mark the oldest item that this task has got as done; if it has none, the oldest one of all tasks.

        The item is durably consumed soon (see ``flush``).

        Raises:
            ValueError: Every item that was got is done already.
            ClosedError, BrokenQueueError: The queue is not open, or is broken. The item comes back.
        """
        self._check()
        entry = self._got.first()
        self._got.remove(entry)
        entry.is_done = True
        self._lifecycle.undone -= 1
        self._count()
        if entry.hold is not None:
            self._done.append(entry.hold)
        self._arm()

    async def reject(
        self, item: T | CodecError, reason: str = "", *, retry: bool = True, delay_seconds: float | None = None
    ) -> None:
        """Mark an item that was got as failed, in place of its ``task_done``. Durable on return.

        With ``retry`` and attempts left, the item is in the queue again, in its old place. Otherwise it becomes a dead
        letter. A cancelled call waits until that is done.

        Args:
            item: The item as ``get`` returned it: that object, or the first equal one that was got and is not done. For
                an item that the codec could not decode, its ``CodecError``.
            reason: Why the item failed, for its dead letter. Default: empty, or the ``CodecError`` without its advice.
            retry: True (the default) to deliver the item again if it has attempts left. False to make it a dead letter.
            delay_seconds: Seconds until the item can be got again, from 0 to ten years. Default None:
                ``retry_delay_seconds`` of the queue.

        Raises:
            NotHeldError: No such item was got, or all of them are done; also a ``ValueError``.
            ValueError: The queue was opened without ``max_attempts``, ``dead_letter`` and ``retry_delay_seconds``. Or
                ``delay_seconds`` is out of range, or ``retry`` is False without dead letters. The item is as before.
            TypeError: ``reason`` is not a string. The item is as before.
            QueueFullError, ResourceError: There is no room for the rejection. The item is the oldest that was got: its
                ``task_done`` tries the rejection again.
            BrokenQueueError, ClosedError: The queue is broken or closed.
        """
        self._check()
        if not self._counts:
            needs = "max_attempts=, dead_letter= or retry_delay_seconds="
            raise ValueError(f"this queue does not count attempts: open it with {needs} to reject items")
        entry = self._got.meant(item)
        if entry is None:
            raise NotHeldError("no such item was got, or all of them are done: pass an item that get returned")
        assert entry.hold is not None  # it is meant
        entry.is_leaving = True
        if entry.error is not None:
            reason = reason or entry.problem
        await self._run(partial(reject, entry.hold, entry.data, reason, retry, delay_seconds), entry)

    @property
    def dead_letters(self) -> AioPersistentQueue[bytes]:
        """The dead-letter queue. Its items are envelopes (see ``persistentqueue.DeadLetter``).

        Raises:
            ValueError: The queue was opened without ``dead_letter``, or with a synchronous queue, which the caller has.
        """
        self._check()
        assert self._core is not None
        dead = self._core.dead_letters
        if isinstance(self._dead_letter, AioPersistentQueue):
            return self._dead_letter
        if not isinstance(self._dead_letter, str):
            text = f"the dead letters of {self._path!r} are in {dead!r}, which was passed as dead_letter: use it"
            raise ValueError(text)  # noqa: TRY004 - as without dead letters
        if self._graves is None:
            self._graves = adopted(dead)
        return self._graves

    async def requeue(self, max_items: int | None = None) -> int:
        """Move dead letters that came from this queue back to its end, in one transaction, durable on return.

        Its rules and errors are those of ``persistentqueue.PersistentQueue.requeue``.

        Args:
            max_items: Upper bound for the number of moved items; at least 0. Default None: no limit.

        Returns:
            The number of moved items.
        """
        self._check()
        assert self._core is not None
        return await self._run(partial(self._core.requeue, max_items))

    async def _run(self, call: Callable[[], int], entry: Entry | None = None) -> int:
        """Let the thread make a call, and return its result. ``entry`` is the item that it rejects."""
        errand = Errand(call, Landing(loop=asyncio.get_running_loop()), entry)
        self._errands.append(errand)
        self._arm()
        return await over(errand.landing)

    async def join(self) -> None:
        """Wait until all items are done, and until that is durable.

        Raises:
            ResourceError, QueueFullError, BrokenQueueError, ClosedError: On the conditions that ``flush`` names.
        """
        self._check()
        await super().join()
        await self.flush()

    def shutdown(self, immediate: bool = False) -> None:
        """Refuse further items, and end ``get`` when the queue is empty: both raise ``QueueShutDown``.

        Args:
            immediate: Whether the queue is emptied at once. Its items stay on disk, for the next opening. Default
                False.
        """
        if self._is_inherited:
            self._check()
        self._here()
        self._is_shutdown = True  # for the repr of Python 3.13
        self._lifecycle.shut_down(immediate)
        if immediate:
            self._dropped += self._queue
            self._queue.clear()
            self._away = 0
        self._count()

    def _init(self, maxsize: int) -> None:  # noqa: ARG002 - asyncio's signature
        self._queue: deque[Entry] = deque()

    def _put(self, item: T) -> None:
        entry = Entry(codecs.encode(self._codec, item, self._path), self._codec)
        if entry.error is not None:
            raise entry.error
        if self._away or self._counts or not self._has_room():
            entry.is_at_hand = False
            self._away += 1
        else:
            self._append(entry, len(self._queue))
            self._wakeup_next(self._getters)
        self._last = entry
        self._unsaved.append(entry)
        self._count()
        self._arm()

    def _get(self) -> T:
        entry = self._queue.popleft()
        self._at_hand_bytes -= len(entry.data)
        entry.is_got = True
        self._got.add(entry)
        self._lifecycle.undone += 1
        if self._lifecycle.is_shutdown:
            self._count()  # this may have been the last item
        if self._away:
            self._arm()
        if entry.error is not None:
            self._wakeup_next(self._putters)
            raise entry.error
        item: T = entry.item
        return item

    def _begin(self, found: Opened) -> None:
        """Take over the open queue."""
        self._watcher = Watcher(found.core.wake, self._watched)
        self._opened, self._core, self._thread = found, found.core, get_ident()
        _OPEN.add(self)
        self._away = found.consumer.stored()
        self._count()
        self._arm()

    def _check(self, is_new: bool = False) -> None:
        if self._failure is not None:
            raise copy(self._failure) from self._failure.__cause__  # else its traceback would grow with each call
        if is_new and self._closing.is_under_way:  # the last flush may not see what begins now
            raise closed(self._path)
        if self._core is None:
            raise not_open(self._path)
        self._here()

    def _check_put(self) -> None:
        self._check(is_new=True)
        if self._lifecycle.is_shutdown:
            raise QueueShutDown

    def _check_get(self) -> None:
        self._check(is_new=True)
        if self._lifecycle.is_shutdown and not self.qsize():
            raise QueueShutDown

    def _fail(self, error: Exception) -> None:
        """Give the error to all tasks that wait; nothing works after it."""
        self._failure = error
        self._unsaved = [entry for entry in self._unsaved if not self._withdraws(entry, error)]
        errands, self._errands = self._errands, []
        self._ran(errands, [error] * len(errands))
        raise_in(self._getters, error)
        raise_in(self._putters, error)
        self._finished.set()  # ``join`` looks at the failure

    def _wake_putters(self) -> None:
        """Wake as many tasks in ``put`` as there are slots."""
        for _ in range(min(self.maxsize - self.qsize(), len(self._putters))):
            self._wakeup_next(self._putters)

    def _has_room(self) -> bool:
        return not self._queue or (len(self._queue) < AT_HAND_ITEMS and self._at_hand_bytes < AT_HAND_BYTES)

    def _wanted(self) -> int:
        """Return the number of items that there is room for at hand."""
        if self._counts:  # each item at hand is delivered
            return max(len(self._getters) - len(self._queue), 0)
        return max(AT_HAND_ITEMS - len(self._queue), 1) if self._has_room() else 0

    def _append(self, entry: Entry, at: int) -> None:
        self._queue.insert(at, entry)
        self._at_hand_bytes += len(entry.data)

    def _arm(self) -> None:
        """Start the thread's work at the end of this round of the loop, together with what else comes in it."""
        loop = self._here()
        if loop is not None and not self._is_armed and not self._is_working and self._failure is None:
            self._is_armed = True
            loop.call_soon(self._work, loop)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_armed = False
        assert self._opened is not None
        if any(entry.is_done for entry in self._unsaved) and self._opened.is_only_consumer():  # nothing else gets them
            unsaved, self._unsaved = self._unsaved, []
            for entry in unsaved:
                if not entry.is_done:
                    self._unsaved.append(entry)
                elif entry.saved is not None:
                    entry.saved.land(None)
        more = self._wanted() if not self._lifecycle.is_drained and (self._away or self._is_told) else 0
        if self._is_working or not (self._unsaved or self._done or self._fresh or self._errands or more):
            self._settle()
            return
        fresh = len(self._fresh) + sum(entry.is_at_hand for entry in self._unsaved)
        expected = [entry.data for entry in (*self._fresh, *self._unsaved) if entry.is_at_hand]
        work = Work(self._unsaved, self._done, fresh + more, AT_HAND_BYTES, self._errands, self._codec, expected)
        self._unsaved, self._done, self._errands = [], [], []
        self._is_told = False
        self._is_working, self._is_saving = True, bool(work.entries or work.done)
        try:
            self._worker.submit(partial(_tell_of, loop, self._landed, self._opened, work))
        except RuntimeError as error:  # no thread: no work was begun, and the next call tries again
            self._is_working = self._is_saving = False
            self._unsaved = [entry for entry in work.entries if not self._withdraws(entry, error)]
            self._done = work.done
            self._ran(work.errands, [error] * len(work.errands))
            self._settle(error)

    def _landed(self, work: Work, found: Found) -> None:
        self._is_working = self._is_saving = False
        self._done = found.undone + self._done
        again = self._saved(work.entries, found.save_errors)
        self._unsaved = again + self._unsaved
        self._ran(work.errands, found.ran)
        self._take_over(found)
        if work.errands:
            self._count()
        save_error = next((each for each in found.save_errors if each is not None), None)
        for result in (save_error, found.done_error, found.take_error, *found.ran):
            if isinstance(result, BrokenQueueError | ClosedError) and self._failure is None:
                self._fail(result)
        error = save_error or found.done_error or self._failure
        has_taken = found.taken or (self._counts and not work.most_items)
        goes_on = has_taken and (self._fresh or (self._away and self._wanted()))
        if error is not None:
            self._settle(error)
            if len(self._unsaved) > len(again) or len(self._done) > len(found.undone) or self._errands:
                self._arm()  # this came meanwhile, and was not tried
        elif self._unsaved or self._done or self._errands or self._is_told or goes_on:
            self._arm()
        else:
            self._settle()
        if self._getters:
            self._watch()

    def _saved(self, entries: Sequence[Entry], errors: Sequence[Exception | None]) -> list[Entry]:
        """Tell the ``put`` calls that await the entries, and return what is to be saved later."""
        again: list[Entry] = []
        for entry, error in zip(entries, errors, strict=True):
            if error is not None:
                if not self._withdraws(entry, error):
                    again.append(entry)
                continue
            if entry.is_at_hand:
                self._fresh.append(entry)
            if entry.saved is not None:
                entry.saved.land(None)
        return again

    def _ran(self, errands: list[Errand], found: Sequence[int | BaseException]) -> None:
        """Give the results of errands to the tasks that await them. A rejected item is done with."""
        for errand, each in zip(errands, found, strict=True):
            entry = errand.entry
            if entry is not None and isinstance(each, BaseException):
                entry.is_leaving = False
                if entry.hold is not None and entry.hold._rejects():  # its ``task_done`` tries that again
                    self._got.make_first(entry)
            elif entry is not None:
                self._got.remove(entry)
                self._lifecycle.undone -= 1
            errand.landing.land(each)

    def _take_over(self, found: Found) -> None:
        """Put the taken items at hand: unexpected items before those that this object has put."""
        waking = 0
        own = sum(each.hold is None for each in self._queue) if self._fresh or self._unsaved else 0
        for data, hold, entry in found.taken:
            if self._fresh and self._fresh[0].data == data:
                own_entry = self._fresh.popleft()
                own_entry.hold = hold
                own -= not own_entry.is_got
                if own_entry.is_done:
                    self._done.append(hold)
            elif self._lifecycle.is_drained:
                self._dropped.append(entry or Entry(data, self._codec, hold))
            else:
                self._append(entry or Entry(data, self._codec, hold), len(self._queue) - own)
                waking += 1
        if self._lifecycle.is_drained:
            return
        if isinstance(found.take_error, CorruptionError):
            damaged = Entry(b"", codecs.BYTES)
            damaged.error = found.take_error
            self._append(damaged, len(self._queue) - own)
            waking += 1
        elif found.take_error is not None:  # it cannot be taken for now: one task gets the error
            raise_in(self._getters, found.take_error, 1)
        self._away = found.ready - len(self._fresh) + sum(not entry.is_at_hand for entry in self._unsaved)
        self._count()
        if self._counts:  # items may have become dead letters
            self._wake_putters()
        for _ in range(waking):
            self._wakeup_next(self._getters)

    def _withdraws(self, entry: Entry, error: Exception) -> bool:
        """Give the error to the ``put`` that awaits the entry, and remove the entry.

        Return False if no ``put`` awaits it. An entry that a task has got already is not removed.
        """
        if entry.saved is None:
            return False
        entry.saved.land(error)
        if entry.is_at_hand:
            with suppress(ValueError):
                self._queue.remove(entry)
                self._at_hand_bytes -= len(entry.data)
                self._finish_one()
        elif not self._lifecycle.is_drained:  # after an immediate shutdown, it is no longer counted
            self._away -= 1
            self._finish_one()
        return True

    def _finish_one(self) -> None:
        self._count()
        self._wakeup_next(self._putters)

    def _count(self) -> None:
        """Take note that the number of items has changed: for ``join``, and for tasks that wait after a shutdown.

        The count of ``asyncio.Queue`` itself knows only what this object has put.
        """
        self._unfinished_tasks = self._lifecycle.unfinished(len(self._queue) + self._away)
        if self._unfinished_tasks:
            self._finished.clear()
        else:
            self._finished.set()
        if self._lifecycle.is_shutdown:
            raise_in(self._putters, QueueShutDown())
            if not self.qsize():
                raise_in(self._getters, QueueShutDown())
                has_ended = self._core is not None and not (self._counts and self._lifecycle.undone)
                self._lifecycle.is_drained |= has_ended  # the next opening has the items that others put from now on

    def _settle(self, error: Exception | None = None) -> None:
        """Wake all ``flush`` calls: no work is left, or none is possible because of ``error``."""
        settling, self._settling = self._settling, []
        for each in settling:
            each.land(error)

    def _watch(self) -> None:
        """Let a thread wait for items of other processes, while a task waits for an item."""
        if self._failure is None and self._opened is not None:
            self._watcher.start(asyncio.get_running_loop(), self._opened.consumer.source.wait)

    def _watched(self, is_there: bool) -> None:
        self._watcher.note()
        self._is_told = is_there
        if is_there:
            self._arm()
        elif self._getters:  # a task came while the wait ended
            self._watch()

    def _loss(self) -> str:
        """Return what the end of the object may lose, as a sentence of a warning; empty if that is nothing."""
        if self._warns and self._failure is None and (self._unsaved or self._done or self._is_saving):
            self._warns = False
            return (
                "items of put_nowait() may be lost, and items that are done may come back: use the queue in an async "
                "with block, or call close()"
            )
        return ""

    def __del__(self) -> None:
        if self._opened is not None and (loss := self._loss()):
            text = f"{self._path}: the queue was dropped without close(): {loss}"
            warnings.warn(text, UnflushedWarning, stacklevel=2)


def _tell_of(loop: asyncio.AbstractEventLoop, landed: Callable[..., None], found: Opened, work: Work) -> None:
    tell(loop, landed, work, work_on(found, work))


@atexit.register
def _warn_of_losses() -> None:
    """Warn of the queues that the program leaves open while their last puts are not durable."""
    for queue in _OPEN:
        if loss := queue._loss():
            text = f"{queue._path}: the program ended without close() of the queue: {loss}"
            warnings.warn(text, UnflushedWarning, stacklevel=2)


def _forget_parent() -> None:
    for queue in _OPEN:  # the parent has the threads of a queue, and its lock
        queue._failure, queue._closing, queue._is_inherited = in_child(queue._path), Closing(), True
    _OPEN.clear()


after_fork_in_child(_forget_parent)

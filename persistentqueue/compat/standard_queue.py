"""``queue.Queue`` of the standard library, on a persistent queue."""

from __future__ import annotations

import errno
import queue
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from queue import Empty, Full
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from persistentqueue import (
    CodecError,
    HoldLostError,
    NotHeldError,
    PersistentQueue,
    PersistentQueueError,
    Progress,
    QueueFullError,
    Session,
    SessionLostError,
    TooManyFilesError,
    codecs,
)
from persistentqueue.core.items import checked_count, need_several
from persistentqueue.interrupts.members import Members
from persistentqueue.options import OptionArguments, Options, Unnamed, chosen_options, counts_deliveries
from persistentqueue.system.disk import StrPath, abspath, after_fork_in_child
from persistentqueue.workers import SharedQueue, SharedSubscription, connect_options

from ..faces.lifecycle import Lifecycle, T, oldest
from ..faces.refusals import Consumer, UncopyableFace, consumer_of, need_maxsize
from .missing_attributes import MissingAttributes
from .mutex import Mutex

if sys.version_info >= (3, 13):
    from queue import ShutDown
else:

    class ShutDown(Exception):  # noqa: N818 - the standard library's name
        """Raised by ``put`` and ``get`` after ``shutdown``. From Python 3.13 on, it is ``queue.ShutDown``."""


if TYPE_CHECKING:
    from typing_extensions import Unpack

_IDLE_SESSIONS = 64
"""Upper bound for the number of idle sessions that are kept for later calls."""
UNDONE_CALLS_MAX: Final = 200
"""Calls of ``get`` of one process whose items may be not done, of a shared queue: each takes a connection."""
_LOOK_SECONDS = 0.05
"""Time between two looks of ``put`` and ``join`` for the work of other processes, in seconds."""


class _Task:
    """The items of one ``get`` or ``get_many``: held by one session until all of them are done."""

    __slots__ = ("left", "rejected", "session")

    def __init__(self, session: Session[Any], left: int) -> None:
        self.session = session
        self.left = left
        self.rejected = 0
        """Number of items that may be in the queue again when the session is flushed."""


class Queue(MissingAttributes, UncopyableFace, queue.Queue[T]):
    """``queue.Queue`` in a directory on disk, for any number of threads of one process, or of many with ``shared``::

        with Queue("queues/orders", maxsize=1000) as queue:
            queue.put({"order": 42})  # durable on return
            order = queue.get()  # on hold
            queue.task_done()  # durably consumed on return

    Args:
        path: Directory of the queue; made if it does not exist.
        maxsize: Upper bound for the number of items in the queue, without those that ``get`` returned. Default 0; 0 or
            less: no limit. It can be changed at any time.
        codec: Converts items to bytes and back (see ``persistentqueue.codecs``). Default: JSON.
        subscription: Name of the subscription that ``get`` reads (see ``PersistentQueue.subscribe``), which is made if
            it does not exist. Default None: the queue itself. Put items go to all consumers.
        shared: Whether other processes use the queue as well. Default False: this process owns it alone.
        serve: Of a shared queue: ``"auto"`` (default) to own the queue if no process does, ``"never"`` to wait for an
            owner instead.
        hold_seconds: Of a shared queue: seconds until ``task_done`` for which this process may hold an item, more than
            0. Then the item goes back. Default None: as long as the process lives.
        options: Options as one value. A keyword argument has precedence over its field. Default None.
        progress: How to report what the opening handles, as in ``PersistentQueue``. Default None: not at all. A shared
            queue reports nothing.
        **arguments: The other keyword arguments of ``PersistentQueue``, or of ``connect`` with ``shared``. With
            ``sync=False``, a power cut may take the latest calls. A callable ``retry_delay_seconds`` must not call this
            queue.

    Raises:
        TypeError, ValueError: An option has the wrong type or range, or contradicts another one.
        PersistentQueueError, OSError: The queue cannot be opened; see ``PersistentQueue`` and ``connect``.

    - ``put`` is durable on return. Concurrent calls share one sync.
    - ``get`` holds the first item until ``task_done``, which is durable on return. After a crash or ``close``, held
      items are at the front of the queue again.
    - ``task_done`` applies to the oldest item that the calling thread has got. If it has none, it applies to the oldest
      item of all threads.
    - For ``join`` and ``unfinished_tasks``, all items that the queue has when it is opened are unfinished. Items of
      other processes, by a ``Producer``, are unfinished, too; they end a waiting ``get``.
    - ``shutdown`` ends only this object. The next opening has the items that are left.
    - Items that leave by ``persistent``, as with its ``clear``, wake no ``put`` and no ``join`` that waits.
    - Subclasses may override the hooks ``_init``, ``_qsize``, ``_put`` and ``_get``. They are called while ``mutex`` is
      held. An override of ``_put`` may call the original any number of times; its items are committed after ``mutex``
      is released.

    With ``max_attempts``, ``dead_letter`` or ``retry_delay_seconds`` the queue counts delivery attempts:

    - An attempt is an item that ``get`` returns, and it is durable before that. ``task_done`` ends it well. ``reject``,
      ``close`` and the end of the process end it badly.
    - An item is delivered at most ``max_attempts`` times. Then it becomes a dead letter: by ``reject`` at once, else
      before it would be delivered once more. ``persistent`` has ``dead_letters`` and ``requeue``.
    - An item that waits for its retry is in the queue: for ``qsize``, for ``join`` and after ``shutdown``.
    - ``get`` writes while it holds ``mutex``, so that other calls of this queue wait for it.

    With ``shared``, any number of processes use the queue, and one of them owns it (see ``connect``):

    - ``qsize``, ``empty``, ``full``, ``maxsize``, ``join`` and ``unfinished_tasks`` count the items of all processes.
      Threads of one process never exceed ``maxsize``. Processes that put at the same moment can exceed it, each by what
      it puts. ``put`` and ``join`` look every 50 ms for what other processes have done.
      The items of a ``get_many`` are unfinished until the last one is done, since they are consumed together.
    - ``task_done`` and ``reject`` are for items that this process has got, by at most 200 calls that are not done.
      ``shutdown`` is for this process.
    - If a process ends, the items that it has got are back in the queue at once. If the owner is killed, so are those
      of all processes: their ``task_done`` raises ``SessionLostError``, and the item comes again. ``get``, ``put`` and
      ``join`` just go on, once a process owns the queue again. They look for one for ``lock_timeout`` seconds, 10 by
      default, and then raise ``NotServedError``. This time does not count for ``timeout``, and a call that does not
      block takes it, too. It matters with ``serve="never"``: otherwise this process becomes the owner.
    - After ``hold_seconds``, ``task_done`` raises ``HoldLostError``, and the item is back, too.
    - The queue can be pickled, for ``multiprocessing``, and used after a fork. The other process has got no items, and
      its queue is not shut down. A subclass has to pickle its own attributes itself.
    - ``persistent`` is a ``SharedQueue``.

    Every method raises ``ClosedError`` after ``close``, and ``BrokenQueueError`` after a failed sync. A re-entrant call
    raises ``ReentrantUseError``: a signal handler, a finalizer or a hook makes it in the middle of another call.
    """

    def __init__(
        self,
        path: StrPath,
        maxsize: int = 0,
        *,
        codec: codecs.Codec[T] = codecs.JSON,
        subscription: str | None = None,
        shared: bool = False,
        serve: Literal["auto", "never"] = "auto",
        hold_seconds: float | None = None,
        options: Options | None = None,
        progress: Progress = None,
        **arguments: Unpack[OptionArguments],
    ) -> None:
        if not shared and (serve != "auto" or hold_seconds is not None):
            raise ValueError("serve and hold_seconds are for a queue of many processes: pass shared=True")
        need_maxsize(maxsize)
        chosen = (connect_options if shared else chosen_options)(options, arguments)
        core: Any
        if shared:
            core = SharedQueue(
                abspath(path), Unnamed.NO_NAME, codec, chosen, serve, hold_seconds, has_local_sessions=False
            )
        else:
            core = PersistentQueue(path, codec=codec, options=chosen, progress=progress)
        try:
            if shared:
                core.open()
            if shared and subscription is not None:
                core.subscribe(subscription)
            consumer = _shared_consumer(core, subscription) if shared else consumer_of(core, subscription)
        except BaseException:
            core.close()
            raise
        self._begin_with(core, consumer, maxsize, shared or counts_deliveries(chosen), chosen.full == "block")

    def _begin_with(self, core: Any, consumer: Consumer, maxsize: int, counts: bool, blocks: bool) -> None:
        self._persistent: PersistentQueue[T] = core  # a ``SharedQueue`` has the methods of it that are called
        self._consumer, self._stored = consumer
        self._is_shared = isinstance(core, SharedQueue)
        self._blocks = blocks
        self._counts = counts
        """Whether each dequeue is a call that takes time: it is logged first, or made by another process. Then ``get``
        takes several items at once. Some of those in the queue may not be ready."""
        hooks = type(self)._get, type(self)._qsize
        self._takes_first = self._is_shared and hooks == (Queue._get, Queue._qsize)
        """Whether ``get`` takes an item without a look at the size of the queue."""
        self._maxsize = maxsize
        self._session: Session[T] | None = None
        """Session of the put or get that holds the mutex, for the hooks."""
        self._begin_anew()
        _OPEN.add(self)
        self._init(maxsize)

    def _begin_anew(self) -> None:
        self._make_locks()
        self._idle: list[Session[T]] = []
        self._putting = 0
        """Number of items that are being committed: put ones, which have a place, and rejected ones that may return."""
        self._committing: set[Session[T]] = set()
        """Sessions of ``put`` calls that may wait for room of the persistent queue."""
        self._places = 0
        """Number of places that are taken; valid while items are being committed, since their outcome is unknown."""
        self._many_putters = 0
        """Number of threads that wait for several places at once."""
        self._tasks: OrderedDict[_Task, None] = OrderedDict()
        self._own = threading.local()
        self._lifecycle = Lifecycle()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return what makes a shared queue again in another process. Raises ``TypeError`` for any other queue."""
        if not self._is_shared:
            return super().__reduce_ex__(protocol)
        subscription = getattr(self._consumer, "name", None) if self._consumer is not self._persistent else None
        return _connected, (type(self), self._persistent, subscription, self._maxsize, self._blocks)

    def __enter__(self) -> Queue[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._persistent.path!r}, {self._maxsize})"

    @property
    def persistent(self) -> PersistentQueue[T]:
        """The ``PersistentQueue``, or the ``SharedQueue``, that stores the items: for ``browse``, ``compact``,
        ``explain``, ``stats`` and ``view``."""
        return self._persistent

    @property
    def maxsize(self) -> int:
        """Upper bound for the number of items in the queue; 0 or less: no limit. Setting it wakes the waiting ``put``
        calls."""
        return self._maxsize

    @maxsize.setter
    def maxsize(self, maxsize: int) -> None:
        """Change the limit, also for ``put`` calls that wait."""
        with self.mutex:
            self._maxsize = maxsize
            self.not_full.notify_all()

    @property
    def unfinished_tasks(self) -> int:  # type: ignore[override]
        """Number of items that are in the queue, or were got and are not done."""
        if self._is_shared and not self._lifecycle.is_drained:
            return int(cast(Any, self._consumer).sizes().unconsumed) + self._putting  # those of all processes
        return self._lifecycle.unfinished(self._stored()) + self._putting

    @property
    def is_shutdown(self) -> bool:
        """True after ``shutdown``."""
        return self._lifecycle.is_shutdown

    def join(self) -> None:
        """Wait until each item that is in the queue, or was got, is done.

        Raises:
            ClosedError, BrokenQueueError: The queue is closed or broken.
            NotServedError: On the conditions that ``put`` names.
        """
        with self.mutex:
            while self.unfinished_tasks:
                self.all_tasks_done.wait(_LOOK_SECONDS if self._is_shared else None)

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """Put an item into the queue, durable on return.

        Args:
            item: An item that the codec can encode.
            block: Whether to wait for room if there are ``maxsize`` items. Default True.
            timeout: Seconds to wait for room; at least 0. Default None: no limit.

        Raises:
            ValueError: ``timeout`` is negative.
            Full: There was no room in time, or a limit of ``PersistentQueue`` is reached. The item is not in the queue.
            ShutDown: The queue was shut down. The item is not in the queue.
            CodecError: The codec cannot encode the item. The item is not in the queue.
            ResourceError: The system has no room. The item is not in the queue.
            BrokenQueueError: A sync failed. It is unknown whether the item is in the queue.
            NotServedError: The queue is shared, and no process has served it for ``lock_timeout`` seconds, whatever
                ``timeout`` is. If the error is ``in_doubt``, it is unknown whether the item is in the queue.
        """
        self._add([item], block, timeout)

    def put_many(self, items: Iterable[T], block: bool = True, timeout: float | None = None) -> None:
        """Put items into the queue, in order, as one transaction with one sync, durable on return.

        Args:
            items: Items that the codec can encode, in an iterable with an order. Either all of them are put, or none.
            block: Whether to wait until there is room for all items. Default True.
            timeout: Seconds to wait for room; at least 0. Default None: no limit.

        Raises:
            TypeError: ``items`` is a mapping, a string or bytes. No item is in the queue.
            ValueError: There are more than ``maxsize`` items, or ``timeout`` is negative.
            Full, ShutDown, CodecError, ResourceError: On the conditions that ``put`` names. No item is in the queue.
            BrokenQueueError: A sync failed. It is unknown whether the items are in the queue.
            NotServedError: On the conditions that ``put`` names.
        """
        need_several(items, "put_many", "put")
        found = list(items)
        if found:
            self._add(found, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Return the first item, and hold it until ``task_done``.

        Args:
            block: Whether to wait for an item. Default True.
            timeout: Seconds to wait for an item; at least 0. Default None: no limit.

        Raises:
            ValueError: ``timeout`` is negative.
            Empty: There was no item in time.
            ShutDown: The queue was shut down, and has no more items.
            CodecError: The item cannot be decoded. It counts as got: ``task_done`` consumes it. The next call continues
                after it.
            CorruptionError: A block is damaged; raised once per block. Its items are set aside, and the next call
                continues after them.
            WrongKeyError, MissingExtraError: The item cannot be opened for now. It is in the queue again.
            TooManyFilesError: The items of 200 calls in this process are not done, and the queue is shared.
            NotServedError: The queue is shared, and no process has served it for ``lock_timeout`` seconds, whatever
                ``timeout`` is. No item was got.
        """
        return self._take(1, block, timeout)[0]

    def get_many(self, max_items: int, block: bool = True, timeout: float | None = None) -> list[T]:
        """Return up to ``max_items`` items, in order, at least one, and hold them until they are done.

        Each item needs its own ``task_done``. All of them are consumed together, with one sync, by the last
        ``task_done``.

        Args:
            max_items: Upper bound for the number of items; at least 1.
            block: Whether to wait for the first item. Default True.
            timeout: Seconds to wait for the first item; at least 0. Default None: no limit.

        Raises:
            TypeError: ``max_items`` is no whole number.
            ValueError: ``max_items`` is less than 1, or ``timeout`` is negative.
            Empty, ShutDown, CodecError, CorruptionError, WrongKeyError, MissingExtraError, TooManyFilesError,
                NotServedError: On the conditions that ``get`` names.
        """
        return self._take(checked_count("max_items", max_items, 1), block, timeout)

    def task_done(self) -> None:
        """Mark the oldest item that this thread has got as done; if it has none, the oldest item of all threads.

        The item is durably consumed on return. An item of ``get_many`` is consumed with the last item of its list.

        Raises:
            ValueError: Every item that was got is done already.
            ResourceError: The system has no room. The item is not done: make room, then call again.
            BrokenQueueError: A sync failed. It is unknown whether the item is consumed.
            SessionLostError, HoldLostError: The item of a shared queue is back in the queue, to be got again.
            NotServedError: On the conditions that ``put`` names. The next ``task_done`` tries it again.
        """
        with self.mutex:
            task = oldest(self._undone())
            if not self._is_last(task):
                return
        self._consume(task)

    def reject(
        self, item: T | CodecError, reason: str = "", *, retry: bool = True, delay_seconds: float | None = None
    ) -> None:
        """Mark an item that was got as failed, in place of its ``task_done``. Durable on return.

        With ``retry`` and attempts left, the item is in the queue again, in its old place. Otherwise it becomes a dead
        letter. An item of ``get_many`` is rejected with the last item of its list.

        Args:
            item: The item as ``get`` returned it: the oldest equal one of this thread, or else of all threads; 1, 1.0
                and True are equal. For an item that the codec could not decode, its ``CodecError``.
            reason: Why the item failed, for its dead letter. Default: empty, or the ``CodecError`` without its advice.
            retry: True (the default) to deliver the item again if it has attempts left. False to make it a dead letter.
            delay_seconds: Seconds until the item can be got again, from 0 to ten years. Default None:
                ``retry_delay_seconds`` of the queue.

        Raises:
            NotHeldError: No such item was got, or all of them are done; also a ``ValueError``.
            ValueError: The queue was opened without ``max_attempts``, ``dead_letter`` and ``retry_delay_seconds``. Or
                ``delay_seconds`` is out of range, or ``retry`` is False without dead letters. The item is as before.
            TypeError: ``reason`` is not a string. The item is as before.
            QueueFullError, ResourceError: There is no room for the rejection: make room, then call ``task_done``, which
                tries it again.
            BrokenQueueError: A sync failed. It is unknown whether the item is rejected.
            SessionLostError, HoldLostError: The item of a shared queue is back in the queue, to be got again.
            NotServedError: On the conditions that ``put`` names. The next ``task_done`` tries it again.
        """
        with self.mutex:
            task = self._reject(item, reason, retry, delay_seconds)
            if not self._is_last(task):
                return
        self._consume(task)

    def _reject(self, item: object, reason: str, retry: bool, delay_seconds: float | None) -> _Task:
        """Reject the item in the first task that holds it, and return that task."""
        failure = NotHeldError("no item was got that is not done: reject takes an item that get returned")
        for task in self._undone():
            try:
                task.session.reject(item, reason, retry=retry, delay_seconds=delay_seconds)
            except (SessionLostError, HoldLostError):
                self._lose(task)
                raise
            except NotHeldError as error:
                failure = error
            else:
                task.rejected += 1
                return task
        raise failure

    def _is_last(self, task: _Task) -> bool:
        """Count an item of the task as done. Return True if it was the last one: the task is then to be consumed."""
        task.left -= 1
        if task.left:
            self._done(1)
            return False
        del self._tasks[task]
        if task.rejected:
            if not self._putting:
                with suppress(PersistentQueueError):  # the flush raises it
                    self._places = self._qsize()
            self._putting += task.rejected
            self._places += task.rejected
        return True

    def _consume(self, task: _Task) -> None:
        try:
            task.session.flush()
        except (SessionLostError, HoldLostError):
            with self.mutex:
                task.left = 1
                self._end_commit(task.rejected)
                self._lose(task)
            raise
        except BaseException:
            with self.mutex:
                task.left = 1
                self._end_commit(task.rejected)
                self._places -= task.rejected
                self._tasks[task] = None
                self._tasks.move_to_end(task, last=False)
                self._wake_all()
            raise
        with self.mutex:
            self._own_tasks().pop(task, None)
            self._release(task.session)
            self._end_commit(task.rejected)
            self._count_places_anew()
            self._done(1)

    def _lose(self, task: _Task) -> None:
        """Forget a task whose items are back in the queue: the owner has ended, or they were held for too long."""
        self._tasks.pop(task, None)
        self._give_up(task.session)
        self._done(task.left)
        self._wake_all()

    def shutdown(self, immediate: bool = False) -> None:
        """Refuse further items, and end ``get`` when the queue is empty.

        Calls that wait raise ``ShutDown``. A ``put`` that is already committing succeeds, unless it waits for room with
        ``full="block"``; ``get`` waits for its item. No item is consumed. Items that were got can still be done, and
        ``join`` waits for them.

        Args:
            immediate: Whether ``get`` ends at once. Then this object counts the queue as empty. Default False.

        Raises:
            ReentrantUseError: The call interrupts another call of the queue in the same thread. It has done nothing.
        """
        with self.mutex:
            self._persistent.wake()  # it refuses a re-entrant call, before anything is changed
            self._lifecycle.shut_down(immediate)
            self._persistent.wake()
            self._wake_all()
            for session in self._committing:
                session.give_up()

    def close(self) -> None:
        """Close the queue; items that were got and are not done are ready again at the next opening.

        Calls that wait raise ``ClosedError``. Everything that was put is durable on return. Closing again does nothing.

        Raises:
            ResourceError, BrokenQueueError: The log could not be sealed. The queue is closed, and the next opening
                recovers.
            ReentrantUseError: The call interrupts another call of the queue in the same thread. It has done nothing.
        """
        self._mutex.check()
        try:
            self._persistent.close()
        finally:  # also if it raises: a thread that waits for a place or a task must not wait for ever
            with self.mutex:
                self._wake_all()

    # --- the hooks, with the mutex held ------------------------------------------------------------------------------

    def _init(self, maxsize: int) -> None:
        """Do nothing. This hook is called at the end of the constructor."""

    def _qsize(self) -> int:
        return self._lifecycle.size(self._stored())

    def _put(self, item: T) -> None:
        assert self._session is not None
        self._session.enqueue(item)

    def _get(self) -> T:
        assert self._session is not None
        items = self._session.dequeue_many(1)
        if not items:
            raise Empty
        return items[0]

    # -----------------------------------------------------------------------------------------------------------------

    def _make_locks(self) -> None:
        self._mutex = Mutex(self._persistent.path)
        self.mutex = cast(threading.Lock, self._mutex)
        self.not_full, self.all_tasks_done = threading.Condition(self.mutex), threading.Condition(self.mutex)

    def _add(self, items: list[T], block: bool, timeout: float | None) -> None:
        """Reserve places with the mutex held, then commit without it, so that concurrent calls share one sync."""
        deadline, count = _deadline(block, timeout), len(items)
        with self.mutex:
            self._wait_for_places(count, block, deadline)
            session = self._begin()
            try:
                for item in items:
                    self._put(item)
            except BaseException as error:
                self._give_up(session)
                self.not_full.notify_all()  # this call may have been woken for a place, which it does not take
                if isinstance(error, QueueFullError):
                    raise Full(str(error)) from error
                raise
            self._places += count
            self._putting += count
            if self._blocks:
                self._committing.add(session)
        is_in = False
        try:
            session.flush(timeout=_left(block, deadline) if self._blocks else None)
            is_in = True
        except QueueFullError as error:
            if self.is_shutdown and self._blocks and not error.lasting:
                raise ShutDown from error
            raise Full(str(error)) from error
        finally:
            with self.mutex:
                self._committing.discard(session)
                self._end_commit(count)
                self._count_places_anew()
                if is_in:
                    self._release(session)
                else:
                    self._places -= count
                    self._give_up(session)
                    self._wake_all()
                self._tell_if_all_is_done()

    def _take(self, most: int, block: bool, timeout: float | None) -> list[T]:
        deadline = _deadline(block, timeout)
        with self.mutex:
            if self._is_shared and len(self._tasks) >= UNDONE_CALLS_MAX:
                reason = f"the items of {UNDONE_CALLS_MAX} calls of get are not done, and each takes a connection"
                advice = "or call task_done, or get several items by one get_many"
                raise TooManyFilesError(self._persistent.path, errno.EMFILE, reason, advice)
            looks = not self._takes_first or self._lifecycle.is_drained
            while True:
                if looks:
                    self._wait_for_item(block, deadline)
                looks = True
                session = self._begin()
                session.name = threading.current_thread().name
                try:
                    items = self._get_some(most)
                except Empty:  # another user of the persistent queue has taken the item, or it has become a dead letter
                    self._give_up(session)
                    if not self._is_shared:  # else ``put`` and ``join`` look by themselves
                        self._wake_all()
                except CodecError:
                    self._hold(session, 1)
                    raise
                except BaseException:
                    self._give_up(session)
                    self._wake_all()  # damaged items are no longer counted, so there may be room
                    raise
                else:
                    self._hold(session, len(items))
                    return items

    def _get_some(self, most: int) -> list[T]:
        """Return up to ``most`` items, at least one, which the session of this call then holds.

        Raises ``CodecError`` if the first item cannot be decoded; the session then holds that item.
        """
        assert self._session is not None
        if self._counts and type(self)._get is Queue._get:  # one delivery for all items
            if not (found := self._session.dequeue_many(most)):
                raise Empty
            return found
        items: list[T] = []
        while len(items) < most and (not items or self._qsize()):
            try:
                items.append(self._get())
            except Empty:
                if not items:
                    raise
                break
            except CodecError:
                if not items:
                    raise
                self._session.put_back()  # the next call raises it
                break
        return items

    def _hold(self, session: Session[Any], count: int) -> None:
        """Record that this thread has got ``count`` items, held by this session."""
        task = _Task(session, count)
        self._own_tasks()[task] = None
        self._tasks[task] = None
        self._lifecycle.undone += count
        self._places -= count
        if self._many_putters or self._counts:  # other items may have become dead letters
            self.not_full.notify_all()
        else:
            self.not_full.notify(count)

    def _own_tasks(self) -> OrderedDict[_Task, None]:
        """Return what this thread has got, oldest first. Other threads may have finished all but the first."""
        try:
            own: OrderedDict[_Task, None] = self._own.tasks
        except AttributeError:
            own = self._own.tasks = OrderedDict()
        while own and (first := next(iter(own))) not in self._tasks:
            del own[first]
        return own

    def _undone(self) -> Iterator[_Task]:
        """Yield what is got and not done: that of this thread, then that of the others; the oldest of each first."""
        own = self._own_tasks()
        yield from (each for each in own if each in self._tasks)  # the session of a finished one may be in use again
        yield from (each for each in self._tasks if each not in own)

    def _done(self, count: int) -> None:
        self._lifecycle.undone -= count
        self._tell_if_all_is_done()

    def _tell_if_all_is_done(self) -> None:
        """Wake the threads in ``join`` if nothing is got or being put; they check the queue themselves."""
        if not self._lifecycle.undone and not self._putting:
            self.all_tasks_done.notify_all()

    def _end_commit(self, count: int) -> None:
        """Count these items as committed or refused. After a shutdown, ``get`` may have waited for the last of them."""
        self._putting -= count
        if self._has_ended():
            self._persistent.wake()

    def _count_places_anew(self) -> None:
        """Wake the threads that wait for a place if nothing is being committed, so that they can count the places.

        Otherwise ``_places`` may be too high: items may have become dead letters, or be counted twice.
        """
        if self._counts and not self._putting:
            self.not_full.notify_all()

    def _begin(self) -> Session[T]:
        self._session = self._idle.pop() if self._idle else self._consumer.session()
        return self._session

    def _release(self, session: Session[T]) -> None:
        """Keep the session for a later call."""
        if len(self._idle) < _IDLE_SESSIONS:
            self._idle.append(session)

    def _give_up(self, session: Session[T]) -> None:
        session.rollback()
        self._release(session)

    def _wake_all(self) -> None:
        """Wake all waiting threads except those in ``get``, which the persistent queue wakes."""
        self.not_full.notify_all()
        self.all_tasks_done.notify_all()

    def _wait_for_places(self, count: int, block: bool, deadline: float | None) -> None:
        while not self.is_shutdown:
            if 0 < self._maxsize < count:
                raise ValueError(f"{count} items never fit into a queue with maxsize={self._maxsize}: put fewer")
            if self._is_shared and self._maxsize <= 0:
                return
            if self._is_shared or not self._putting:
                # The items that this process commits may be counted twice: then the loop goes on.
                self._places = self._qsize() + (self._putting if self._is_shared else 0)
            if self._maxsize <= 0 or self._places + count <= self._maxsize:
                return
            left = _left(block, deadline)
            if self._is_shared:
                left = _LOOK_SECONDS if left is None or (left == 0 and self._putting) else min(left, _LOOK_SECONDS)
            if left == 0:
                raise Full
            self._many_putters += count > 1
            try:
                self.not_full.wait(left)
            finally:
                self._many_putters -= count > 1
        self._qsize()  # raises ClosedError if the queue is closed
        raise ShutDown

    def _wait_for_item(self, block: bool, deadline: float | None) -> None:
        """Wait for an item, also of other processes. The mutex is released while it waits."""
        while not self._qsize() or (self._counts and not len(self._consumer)):
            left = _left(block, deadline)
            if not self._lifecycle.is_drained and self._is_there(0.0 if self._is_over() else left):
                return
            if self._is_over():
                self._lifecycle.is_drained |= not (self._is_shared or (self._counts and self._lifecycle.undone))
                raise ShutDown
            if left == 0:
                raise Empty

    def _is_over(self) -> bool:
        """Return whether the queue was shut down and has no more items, not even delayed ones."""
        return self._has_ended() and not self._qsize()

    def _has_ended(self) -> bool:
        """Return whether the queue was shut down, and no item is being committed that ``get`` would have to return."""
        return self._lifecycle.is_drained or (self.is_shutdown and not self._putting)

    def _is_there(self, timeout: float | None) -> bool:
        had_ended = self._has_ended()

        def is_over() -> bool:
            """Return whether the wait is to end."""
            return self._lifecycle.is_drained or self._has_ended() != had_ended

        return self._mutex.outside(partial(self._consumer.wait, timeout, stop=is_over))


def _deadline(block: bool, timeout: float | None) -> float | None:
    if not block or timeout is None:
        return None
    if not timeout >= 0:
        raise ValueError("'timeout' must be a non-negative number")
    return monotonic() + min(timeout, threading.TIMEOUT_MAX)  # the longest wait of a condition variable


def _left(block: bool, deadline: float | None) -> float | None:
    """Return the seconds left to wait; None means no limit."""
    if not block:
        return 0.0
    return None if deadline is None else min(max(deadline - monotonic(), 0.0), threading.TIMEOUT_MAX)


_OPEN: Members[Queue[Any]] = Members()


def _shared_consumer(core: SharedQueue[Any], subscription: str | None) -> Consumer:
    """Return the consumer of a queue that any number of processes share. Nothing is opened."""
    source: Any = core if subscription is None else SharedSubscription(core, subscription)
    return Consumer(source, lambda: source.sizes().unheld)


def _connected(
    kind: type[Queue[T]], core: SharedQueue[T], subscription: str | None, maxsize: int, blocks: bool
) -> Queue[T]:
    """Return a queue that was pickled. It connects at its first use."""
    made = kind.__new__(kind)
    made._begin_with(core, _shared_consumer(core, subscription), maxsize, True, blocks)
    return made


def _forget_parent() -> None:
    for each in _OPEN:
        if each._is_shared:
            each._begin_anew()
        else:  # a lock held by another thread would block the child, which must get ``ClosedError``
            each._make_locks()


after_fork_in_child(_forget_parent)

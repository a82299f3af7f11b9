"""What other queues are called by: the standard library's ``queue.Queue``, and queuelib's FIFO, on a persistent queue.

``Queue`` has every call of ``queue.Queue`` as of Python 3.13, on any Python that this package is for, and is one to
``isinstance``. What was put is durable when ``put`` returns, what was got is gone for good when its ``task_done``
returns; in between it is on hold, and comes back after a crash::

    from persistentqueue.compat import Queue

    with Queue("queues/orders") as queue:
        queue.put({"order": 42})
        order = queue.get()
        queue.task_done()

``FifoQueue`` has the ``push``, ``pop`` and ``peek`` of queuelib. For Scrapy see ``persistentqueue.scrapy``.
"""

from __future__ import annotations

import queue
import sys
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable
from contextlib import suppress
from queue import Empty, Full
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from persistentqueue import (
    CodecError,
    PersistentQueue,
    PersistentQueueError,
    QueueFullError,
    Session,
    codecs,
    delete_queue,
)
from persistentqueue.engine.settings import refuse_retries
from persistentqueue.system.disk import DISK, StrPath, abspath, after_fork_in_child, fspath
from persistentqueue.system.uncopyable import Uncopyable

if sys.version_info >= (3, 13):
    from queue import ShutDown
else:

    class ShutDown(Exception):  # noqa: N818 - the standard library's name
        """Raised by ``put`` and ``get`` once the queue was shut down; from Python 3.13 on it is ``queue.ShutDown``."""


__all__ = ["Queue", "FifoQueue", "Empty", "Full", "ShutDown"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
_IDLE_SESSIONS = 64
"""So many that nobody uses are kept for the next calls."""

_ELSEWHERE = "pass its path, and open a Producer there, with the codec that the queue has"


class _Json:
    """JSON, and in its errors, what else there is."""

    decode = staticmethod(codecs.JSON.decode)

    def encode(self, item: Any) -> bytes:
        """The item in JSON. Raises ``TypeError``, with what else there is."""
        try:
            return codecs.JSON.encode(item)
        except (TypeError, ValueError) as error:
            others = "codecs.MessagePack(), codecs.UNSAFE_PICKLE, or one of your own"
            raise TypeError(f"{error}; for what is no JSON there is codec={others}") from error


_JSON: Final = _Json()


class _Task:
    """What one ``get`` or ``get_many`` has taken: on hold in a session, until it is done to the last of its items."""

    __slots__ = ("left", "session")

    def __init__(self, session: Session[Any], left: int) -> None:
        self.session = session
        self.left = left


class Queue(Uncopyable, queue.Queue[T]):
    """``queue.Queue`` in a directory on disk, for any number of threads of the one process that has it open.

    ``path`` is the directory, which is made if it is not there. At most ``maxsize`` items are in the queue (no limit
    where it is 0 or less), those that were got not included; it may be changed at any time. ``codec`` says how an item
    becomes bytes: see ``persistentqueue.codecs``. ``sync`` and all other settings are those of ``PersistentQueue``.

    - ``put`` is durable on return. Calls at the same time share one sync.
    - ``get`` takes the first item, on hold until ``task_done``, which is durable on return. A crash, or ``close``,
      gives what is on hold back to the front of the queue.
    - ``task_done`` is for the oldest item that the calling thread has got; where it has none, for the oldest of all.
    - What is in the queue when it is opened is unfinished, for ``join`` and ``unfinished_tasks``, and so is what other
      processes have put in, by a ``Producer``; that wakes who waits in ``get``, too.
    - ``shutdown`` ends this object and no more: what remains is not consumed, and there again for the next opening.
    - The hooks ``_init``, ``_qsize``, ``_put`` and ``_get`` are called with ``mutex`` held, for subclasses to override.
      What a ``_put`` has put, by calling this one any number of times, is committed when ``mutex`` is free again.

    Raises what ``PersistentQueue`` raises. All methods raise ``ClosedError`` once it was closed, and
    ``BrokenQueueError`` once a sync has failed.
    """

    _elsewhere = _ELSEWHERE

    def __init__(
        self, path: StrPath, maxsize: int = 0, *, codec: codecs.Codec[T] = _JSON, sync: bool = True, **settings: Any
    ) -> None:
        refuse_retries(settings, "persistentqueue.compat")
        self._persistent: PersistentQueue[T] = PersistentQueue(path, codec=codec, sync=sync, **settings)
        self._blocks = settings.get("full") == "block"
        self._make_locks()
        _OPEN.add(self)
        self.is_shutdown = False
        self._is_drained = False
        """Whether it was shut down immediately: what remains is nobody's here any more."""
        self._maxsize = maxsize
        self._idle: list[Session[T]] = []
        self._session: Session[T] | None = None
        """That of the put or get which holds the mutex, for the hooks."""
        self._putting = 0
        """How many items have a place, and are being committed."""
        self._places = 0
        """How many places are taken: while items are being committed, of which nobody knows whether they are in."""
        self._many_putters = 0
        """How many wait for several places at once."""
        self._tasks: OrderedDict[_Task, None] = OrderedDict()
        self._own = threading.local()
        self._undone = 0
        """How many items were got and are not done."""
        self._init(maxsize)

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
        """The queue beneath: to ``browse``, ``check``, ``compact`` it, for its ``stats``, and what it ``explain``s."""
        return self._persistent

    @property
    def maxsize(self) -> int:
        """How many items may be in the queue; 0 or less for no limit. To raise it lets in who waits."""
        return self._maxsize

    @maxsize.setter
    def maxsize(self, maxsize: int) -> None:
        """Change it, for all who come and all who wait."""
        with self.mutex:
            self._maxsize = maxsize
            self.not_full.notify_all()

    @property
    def unfinished_tasks(self) -> int:  # type: ignore[override]
        """How many items are in the queue, or were got and are not done."""
        ready = len(self._persistent)
        return (0 if self._is_drained else ready) + self._undone + self._putting

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """Put an item in; it is durable on return. Waits for room, if there is a ``maxsize``, up to ``timeout`` seconds
        (None: for ever).

        Raises ``Full``, ``ShutDown``, ``CodecError`` and ``ResourceError``: the item is not in the queue. ``Full`` also
        tells of the limits of ``PersistentQueue``, if it was opened with any. ``BrokenQueueError``: nobody knows.
        """
        self._add([item], block, timeout)

    def put_many(self, items: Iterable[T], block: bool = True, timeout: float | None = None) -> None:
        """Put items in, in order, as one transaction: all or none, with one sync. Waits until there is room for all.

        Raises like ``put``, and ``ValueError`` for more than ``maxsize`` of them.
        """
        found = list(items)
        if found:
            self._add(found, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """The first item, which is on hold until ``task_done``. Waits for one up to ``timeout`` seconds (None: for
        ever).

        Raises ``Empty``, and ``ShutDown`` where there will be none. Raises ``CodecError`` for an item that cannot be
        decoded, which counts as got: ``task_done`` drops it. Raises ``CorruptionError`` once for each damaged block,
        whose items are set aside. In both cases the next call goes on behind it.
        """
        return self._take(1, block, timeout)[0]

    def get_many(self, max_items: int, block: bool = True, timeout: float | None = None) -> list[T]:
        """Up to ``max_items`` items, in order, at least one; like ``get``, which waits for the first only.

        Each of them needs its ``task_done``; they are gone, all at once and with one sync, with the last of these.
        """
        if max_items < 1:
            raise ValueError(f"max_items must be at least 1, got {max_items}")
        return self._take(max_items, block, timeout)

    def task_done(self) -> None:
        """Tell that the oldest item which this thread has got is done (where there is none, the oldest of all threads).

        It is gone for good on return. Raises ``ValueError`` when nothing was got that is not done, and
        ``ResourceError``: it is not done, call again after making room.
        """
        with self.mutex:
            own = self._own_tasks()
            task = own[0] if own else next(iter(self._tasks), None)
            if task is None:
                raise ValueError("task_done() called too many times")
            task.left -= 1
            if task.left:
                self._done(1)
                return
            del self._tasks[task]
        try:
            task.session.flush()
        except BaseException:
            with self.mutex:
                task.left = 1
                self._tasks[task] = None
                self._tasks.move_to_end(task, last=False)
                self._wake_all()
            raise
        with self.mutex:
            self._release(task.session)
            self._done(1)

    def shutdown(self, immediate: bool = False) -> None:
        """Let nobody put in any more, nor get anything once the queue is empty; with ``immediate`` at once, and it is
        empty then, for this object. Nothing is consumed by that. What is being put in meanwhile is put in.

        Whoever waits is woken, and told by ``ShutDown``. What was got may still be done, and ``join`` waits for it.
        """
        with self.mutex:
            self.is_shutdown = True
            self._is_drained = self._is_drained or immediate
            self._persistent.wake()
            self._wake_all()

    def close(self) -> None:
        """Close the queue: what was got and is not done goes back. Whoever waits is told by ``ClosedError``.

        Everything that was put is durable on return. Closing again does nothing.
        """
        self._persistent.close()
        with self.mutex:
            self._wake_all()

    # --- the hooks, with the mutex held ------------------------------------------------------------------------------

    def _init(self, maxsize: int) -> None:
        """The end of the constructor."""

    def _qsize(self) -> int:
        ready = len(self._persistent)
        return 0 if self._is_drained else ready

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
        self.mutex = threading.Lock()
        self.not_full = threading.Condition(self.mutex)
        self.all_tasks_done = threading.Condition(self.mutex)

    def _add(self, items: list[T], block: bool, timeout: float | None) -> None:
        """Take the places under the mutex, then commit without it, so that those who do so at once share a sync."""
        deadline, count = _deadline(block, timeout), len(items)
        with self.mutex:
            self._wait_for_places(count, block, deadline)
            session = self._begin()
            try:
                for item in items:
                    self._put(item)
            except BaseException as error:
                self._give_up(session)
                if isinstance(error, QueueFullError):
                    raise Full(str(error)) from error
                raise
            self._places += count
            self._putting += count
        is_in = False
        try:
            session.flush(timeout=_left(block, deadline) if self._blocks else None)
            is_in = True
        except QueueFullError as error:
            raise Full(str(error)) from error
        finally:
            with self.mutex:
                self._putting -= count
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
            while True:
                self._wait_for_item(block, deadline)
                session = self._begin()
                session.name = threading.current_thread().name
                try:
                    items = self._get_some(most)
                except Empty:  # somebody has cleared the queue beneath
                    self._give_up(session)
                except CodecError:
                    self._hold(session, 1)
                    raise
                except BaseException:
                    self._give_up(session)
                    self._wake_all()  # what is damaged is in the queue no more
                    raise
                else:
                    self._hold(session, len(items))
                    return items

    def _get_some(self, most: int) -> list[T]:
        """Up to so many items, at least one, which this thread's session holds then. Raises ``CodecError`` where the
        first cannot be decoded, which it holds, too."""
        assert self._session is not None
        items: list[T] = []
        while len(items) < most and (not items or self._qsize()):
            try:
                items.append(self._get())
            except CodecError:
                if not items:
                    raise
                self._session.put_back()  # the next call hears of it
                break
        return items

    def _hold(self, session: Session[Any], count: int) -> None:
        """So many items are this thread's from now on, in this session."""
        task = _Task(session, count)
        self._own_tasks().append(task)
        self._tasks[task] = None
        self._undone += count
        self._places -= count
        if self._many_putters:
            self.not_full.notify_all()
        else:
            self.not_full.notify(count)

    def _own_tasks(self) -> deque[_Task]:
        """What this thread has got, the oldest first; but what another one has done."""
        try:
            own: deque[_Task] = self._own.tasks
        except AttributeError:
            own = self._own.tasks = deque()
        while own and own[0] not in self._tasks:
            own.popleft()
        return own

    def _done(self, count: int) -> None:
        self._undone -= count
        self._tell_if_all_is_done()

    def _tell_if_all_is_done(self) -> None:
        """Wake those in ``join``, who look for themselves what is in the queue."""
        if not self._undone and not self._putting:
            self.all_tasks_done.notify_all()

    def _begin(self) -> Session[T]:
        self._session = self._idle.pop() if self._idle else self._persistent.session()
        return self._session

    def _release(self, session: Session[T]) -> None:
        """It has done its work: the next call may have it."""
        if len(self._idle) < _IDLE_SESSIONS:
            self._idle.append(session)

    def _give_up(self, session: Session[T]) -> None:
        session.rollback()
        self._release(session)

    def _wake_all(self) -> None:
        """All who wait look once more; but for those who wait for an item, whom the queue beneath wakes."""
        self.not_full.notify_all()
        self.all_tasks_done.notify_all()

    def _wait_for_places(self, count: int, block: bool, deadline: float | None) -> None:
        while not self.is_shutdown:
            if 0 < self._maxsize < count:
                raise ValueError(f"{count} items at once never fit into a queue with maxsize={self._maxsize}")
            if not self._putting:
                self._places = self._qsize()
            if self._maxsize <= 0 or self._places + count <= self._maxsize:
                return
            left = _left(block, deadline)
            if left == 0:
                raise Full
            self._many_putters += count > 1
            try:
                self.not_full.wait(left)
            finally:
                self._many_putters -= count > 1
        self._qsize()  # where it was closed, too, it says so
        raise ShutDown

    def _wait_for_item(self, block: bool, deadline: float | None) -> None:
        """Until there is something to get, also of what another process has published. The mutex is free meanwhile."""
        while not self._qsize():
            left = 0.0 if self.is_shutdown else _left(block, deadline)
            if not self._is_drained and self._is_there(left):
                return
            if self.is_shutdown:
                raise ShutDown
            if left == 0:
                raise Empty

    def _is_there(self, timeout: float | None) -> bool:
        self.mutex.release()
        try:
            return self._persistent.wait(timeout, stop=lambda: self.is_shutdown)
        finally:
            self.mutex.acquire()


def _deadline(block: bool, timeout: float | None) -> float | None:
    if not block or timeout is None:
        return None
    if not timeout >= 0:
        raise ValueError("'timeout' must be a non-negative number")
    return monotonic() + min(timeout, threading.TIMEOUT_MAX)  # a condition waits no longer


def _left(block: bool, deadline: float | None) -> float | None:
    """The seconds that are left to wait; None for ever."""
    if not block:
        return 0.0
    return None if deadline is None else min(max(deadline - monotonic(), 0.0), threading.TIMEOUT_MAX)


_OPEN: weakref.WeakSet[Queue[Any]] = weakref.WeakSet()


def _make_all_locks() -> None:
    for each in list(_OPEN):  # a thread that holds one is not there in the child, which is to hear ``ClosedError``
        each._make_locks()


after_fork_in_child(_make_all_locks)


class FifoQueue(Uncopyable):
    """A FIFO of bytes with the calls of queuelib's ``FifoDiskQueue``, each of them durable on return.

    ``settings`` are those of ``PersistentQueue``, and so are the exceptions. A directory that is empty when it is
    closed is deleted, as queuelib does: nobody else should publish there. For one thread at a time.
    """

    _elsewhere = _ELSEWHERE

    def __init__(self, path: StrPath, **settings: Any) -> None:
        self._path = abspath(fspath(path))  # it is deleted later; the process may change its directory meanwhile
        refuse_retries(settings, "persistentqueue.compat")
        self._persistent = PersistentQueue(self._path, **settings)
        self._session = self._persistent.session()

    def __enter__(self) -> FifoQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """How many items are in the queue."""
        return len(self._persistent)

    def push(self, item: bytes) -> None:
        """Put an item in; durable on return. Raises ``TypeError`` for what is not bytes, ``ResourceError``,
        ``QueueFullError``: it is not in the queue."""
        if not isinstance(item, bytes):
            raise TypeError(f"a FIFO of bytes takes bytes, not {type(item).__name__}")
        try:
            self._session.enqueue(item)
            self._session.flush()
        finally:
            self._session.rollback()

    def pop(self) -> bytes | None:
        """Take the first item, which is gone for good on return; None if there is none."""
        try:
            item = self._session.dequeue()
            self._session.flush()
        finally:
            self._session.rollback()
        return item

    def peek(self) -> bytes | None:
        """The first item, without taking it; None if there is none."""
        try:
            return self._session.dequeue()
        finally:
            self._session.rollback()

    def clear(self) -> None:
        """Drop all items; durable on return."""
        self._persistent.clear()

    def close(self) -> None:
        """Close the queue, and delete it if it is empty. Closing again does nothing."""
        if self._persistent.closed:
            return
        is_empty = False
        with suppress(PersistentQueueError):  # whatever is wrong with it, it is closed
            is_empty = self.peek() is None
        self._persistent.close()
        if is_empty:
            delete_queue(self._path)
            with suppress(OSError):  # something else is in it
                DISK.rmdir(self._path)

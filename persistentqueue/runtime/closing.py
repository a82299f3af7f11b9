"""The end of an open queue: its close, for any number of threads, and its disowning, which writes nothing.

The first thread that closes the queue writes its last generation of the log, closes its files and frees its lock. A
thread that closes it meanwhile waits for that: on return the files are closed, and the queue can be opened again. The
wait holds no lock, so a signal handler may end it.

A close never waits for another close. Code that interrupts the close of one queue, such as a log handler, may close
another one that a second thread is closing. It would wait for ever if that thread waited for the first queue.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from ..interrupts.call_guard import whole
from ..system.disk import after_fork_in_child
from .background import BACKGROUND
from .inspection import InspectedQueue
from .pipeline import is_committing, pipelines_of
from .waiting import ItemWaiters

get_ident = threading.get_ident
_CLOSING: set[int] = set()
"""Threads that close the files of a queue."""


class Ending:
    """The end of a close, or of a thread. Any number of threads wait for it, and one thread tells them.

    An interrupted wait leaves nothing that needs a cleanup. That of a ``threading.Event`` may lose a lock.
    """

    __slots__ = ("has_come", "waiting")

    def __init__(self) -> None:
        self.has_come = False
        self.waiting: list[threading.Lock] = []
        """Locks to release when the end has come, one for each thread that waits."""

    def come(self) -> None:
        """Wake the threads that wait."""
        self.has_come = True  # first: a thread that comes later does not wait
        for each in self.waiting:
            each.release()

    def wait(self) -> None:
        """Return when the end has come."""
        if not self.has_come:
            lock = threading.Lock()
            lock.acquire()
            self.waiting.append(lock)
            if not self.has_come:  # else ``come`` may have passed by before it could see the lock
                lock.acquire()


class ClosableQueue(InspectedQueue):
    """The part of an open queue that ends it. For any number of threads."""

    _reading: threading.Lock
    """Held over a read of a file."""
    _waiters: ItemWaiters
    """Threads that wait for an item."""
    _end: Ending | None = None
    """End of the close; None before it began. An open queue has as few attributes of its own as it can."""
    was_dropped = False
    """True if the program has dropped the queue without a close, and perhaps sessions with it."""

    def settle(self, *, may_wait: bool = True) -> None:
        """Wait until all flushes that sessions have handed over have ended. Raise the error of the first that failed.

        With ``may_wait`` off, none of them waits for room any more, and an error is left to its session.
        """
        pipelines = pipelines_of(self)
        for pipeline in pipelines:
            pipeline.drain(may_wait=may_wait)
        failures = [pipeline.failure for pipeline in pipelines]
        for failure in filter(None, failures if may_wait else ()):
            raise failure

    def check_closable(self) -> None:
        """Raise ``ReentrantUseError`` if a close by this thread would wait for a call of the same thread."""
        if self._is_disowned:
            return
        if self.closed is None:
            self.check_outermost()
        self.check_not_compacting()

    def close(self, reason: str, note: Callable[[], object] = bool) -> None:
        """Refuse new calls, wake the waiting threads, then close the store.

        ``note`` is called when the queue begins to refuse calls, with the mutex held. It must change nothing here.
        Closing again does nothing. If another thread is closing the queue, wait until it has ended, whatever its error
        is. Code that interrupts the close of another queue does not wait.
        """
        if self._is_disowned:  # in a forked child, for example, the mutex may be held for ever
            return
        self.check_closable()
        if self.closed is None:
            self.settle(may_wait=False)
        try:
            self._close(reason, note)
        finally:
            if self.closed is not None:
                waits = not is_committing()  # callbacks of tickets that close a queue must not wait for each other
                for pipeline in pipelines_of(self):
                    pipeline.end()
                    if waits:
                        pipeline.join()
        self._await_end()

    @whole
    def _close(self, reason: str, note: Callable[[], object]) -> None:
        with self.mutex:
            if self.closed is not None:
                return
            note()
            self.closed, self.is_usable = reason, False
            self._end = end = Ending()
        thread = get_ident()
        is_inner = thread in _CLOSING
        _CLOSING.add(thread)
        try:
            self._close_files()
        finally:
            if not is_inner:
                _CLOSING.discard(thread)
            end.come()

    def _close_files(self) -> None:
        with self.mutex:
            self._waiters.close()
            self._room_waiters.wake_all()
        BACKGROUND.forget(self)
        with self._compacting, self.writing, self._reading, self.giving_back:
            try:
                try:
                    self.sample()
                finally:
                    self._store.close()
            finally:
                self._leave_budget()

    def _await_end(self) -> None:
        """Wait until the thread that closes the files has ended.

        When the interpreter ends, that thread may have stopped for ever.
        """
        if self._end is not None and get_ident() not in _CLOSING and not sys.is_finalizing():
            self._end.wait()

    def disown(self, reason: str, alone: bool = False) -> None:
        """Close the files without a lock and without a write.

        In a forked child, pass ``alone``. Without it, the queue was dropped, and no thread is left that could close it.
        """
        if self.closed is None:
            self.closed, self.is_usable = reason, False
            BACKGROUND.forget(self)
            self._is_disowned = True  # before the next step: a compaction that is about to end must see it
            self.was_dropped = not alone
            if alone:
                self._store.release()
            elif self._compacting.acquire(blocking=False):
                self._store.release()
                self._compacting.release()
            self._waiters.close_bell()
            if self._share is not None:
                self._share.abandon()
        elif alone and self._end is not None and not self._end.has_come:
            # A thread of the parent was closing the files, and no call of the child may wait for it. Which of them are
            # open is unknown, except for the lock.
            self._is_disowned = True
            self._store.lock.release()


after_fork_in_child(_CLOSING.clear)

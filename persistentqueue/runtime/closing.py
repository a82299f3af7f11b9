"""The end of an open queue: its close, for any number of threads, and its disowning, which writes nothing."""

from __future__ import annotations

import threading
from abc import abstractmethod
from functools import partial

from ..system.call_guard import outermost
from .background import BACKGROUND
from .inspection import InspectedQueue
from .pipeline import pipelines_of
from .waiting import ItemWaiters


class ClosableQueue(InspectedQueue):
    """The part of an open queue that ends it. For any number of threads."""

    _reading: threading.Lock
    """Held over a read of a file."""
    _waiters: ItemWaiters
    """Threads that wait for an item."""

    @abstractmethod
    def settle(self, *, may_wait: bool = True) -> None:
        """Wait until all flushes that sessions have handed over have ended."""

    def close(self, reason: str) -> None:
        """Refuse new calls, wake the waiting threads, then close the store. Closing again does nothing."""
        if self._is_disowned:  # in a forked child, for example, the mutex may be held for ever
            return
        if self.closed is None:
            self.check_outermost()
            self.settle(may_wait=False)
        try:
            self._close_whole(reason)
        finally:
            if self.closed is not None:
                for pipeline in pipelines_of(self):
                    pipeline.end()
                    pipeline.join()

    @outermost
    def _close_whole(self, reason: str) -> None:
        self.check_not_compacting()
        self.shielded(partial(self._close, reason))

    def _close(self, reason: str) -> None:
        with self.mutex:
            if self.closed is not None:
                return
            self.closed, self.is_usable = reason, False
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

    def disown(self, reason: str, alone: bool = False) -> None:
        """Close the files without a lock and without a write.

        In a forked child, pass ``alone``. Without it, the queue was dropped, and no thread is left that could close it.
        """
        if self.closed is None:
            self.closed, self.is_usable = reason, False
            BACKGROUND.forget(self)
            self._is_disowned = True  # before the next step: a compaction that is about to end must see it
            if alone:
                self._store.release()
            elif self._compacting.acquire(blocking=False):
                self._store.release()
                self._compacting.release()
            self._waiters.abandon()
            if self._share is not None:
                self._share.abandon()

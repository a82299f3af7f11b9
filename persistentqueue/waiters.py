"""Those who wait for an item: one of them listens for other processes, and the others for him and his like.

To wait costs no processor time. The first who waits keeps the bell (see ``bell``), which rings when another process
publishes something; the others sleep until somebody in this process has an item for them. Whoever goes while nobody
keeps it wakes another one, who keeps it then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from .bell import LONGEST_SECONDS, POLL_SECONDS, Bell


class Waiters:
    """All of one queue. ``mutex`` is held by whoever calls, but for ``abandon``. ``opened`` opens the directory that
    other processes publish in, and closes it again."""

    def __init__(self, mutex: threading.Lock, opened: Callable[[], AbstractContextManager[int]]) -> None:
        self._mutex = mutex
        self._opened = opened
        self._sleeping = threading.Condition(mutex)
        self._bell: Bell | None = None
        self._is_kept = False
        self._is_closed = False
        self.count = 0
        """How many wait."""

    def wait(self, timeout_seconds: float | None) -> None:
        """Return when something may have come, the time is over (None: never), or before. The mutex is free meanwhile.

        Where the process has no descriptors left for a bell, it returns within 50 ms.
        """
        timeout_seconds = min(LONGEST_SECONDS if timeout_seconds is None else timeout_seconds, LONGEST_SECONDS)
        self.count += 1
        try:
            if self._is_kept:
                self._sleeping.wait(timeout_seconds)
            elif self._bell is not None:
                self._keep(self._bell, timeout_seconds)
            else:
                try:
                    with self._opened() as directory:
                        self._bell = Bell(directory)  # what came before may not have rung: look once more
                except OSError:
                    self._sleeping.wait(min(timeout_seconds, POLL_SECONDS))
        finally:
            self.count -= 1
            if not self._is_kept:
                self._sleeping.notify()  # who may be the next to keep it

    def wake(self, count: int) -> None:
        """There are so many items for those who wait."""
        if self.count and count:
            self._sleeping.notify(count)
            if self._is_kept and self._bell is not None:
                self._bell.ring()

    def wake_all(self) -> None:
        """All who wait are to look."""
        self.wake(self.count)

    def close(self) -> None:
        """Wake all, who must not come back; the bell is closed when nobody keeps it."""
        self._is_closed = True
        self.wake_all()
        if not self._is_kept:
            self._close_bell()

    def abandon(self) -> None:
        """Close the bell, without the mutex: nobody waits any more, or those who do are threads of a parent process."""
        self._close_bell()

    def _keep(self, bell: Bell, timeout_seconds: float) -> None:
        self._is_kept = True
        try:
            self._mutex.release()
            try:
                bell.wait(timeout_seconds)
            finally:
                self._mutex.acquire()
        finally:
            self._is_kept = False
            if self._is_closed:
                self._close_bell()

    def _close_bell(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()

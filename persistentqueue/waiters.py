"""Threads that wait for an item: one of them listens for other processes, and the rest sleep.

To wait costs no processor time. The first that waits keeps the bell (see ``bell``), which rings when another process
publishes something; the others sleep until this process has an item for them. A thread that leaves while none keeps the
bell wakes another one, which keeps it then.

A thread sleeps without the mutex, in a place of its own: ``threading.Condition`` loses the mutex if a signal handler
raises while it takes it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from .bell import LONGEST_SECONDS, POLL_SECONDS, Bell
from .shield import shielded


class _Place:
    """The place of one waiting thread: with the bell, or with a lock that is released when it is told."""

    __slots__ = ("bell", "is_told", "most_seconds", "turn")

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.turn.acquire()
        self.bell: Bell | None = None
        self.is_told = False
        self.most_seconds = LONGEST_SECONDS

    def tell(self) -> None:
        """End its sleep; again, if that was interrupted."""
        if not self.is_told:
            self.is_told = True
            self.turn.release()

    def sleep(self, timeout_seconds: float) -> None:
        """Return when it is told, when the bell rings that it keeps, or when the time is over."""
        seconds = min(timeout_seconds, self.most_seconds)
        if self.bell is not None:
            self.bell.wait(seconds)
        elif self.turn.acquire(timeout=seconds):
            self.turn.release()


class Waiters:
    """All waiting threads of one queue. ``mutex`` is held by the caller, but for ``wait`` and ``abandon``.

    ``opened`` opens the directory that other processes publish in, and closes it again.
    """

    def __init__(
        self, mutex: AbstractContextManager[object], opened: Callable[[], AbstractContextManager[int]]
    ) -> None:
        self._mutex = mutex
        self._opened = opened
        self.sleeping: list[_Place] = []
        """The places without the bell."""
        self.keeper: _Place | None = None
        """The place that has the bell. Neither is to be changed from outside."""
        self._bell: Bell | None = None
        self._is_closed = False

    @property
    def count(self) -> int:
        """How many threads wait."""
        return len(self.sleeping) + (self.keeper is not None)

    def wait(self, must_wait: Callable[[], float | None], outside: Callable[[Callable[[], None]], None]) -> bool:
        """Ask ``must_wait`` with the mutex held, and sleep for at most so many seconds; return False if it says None.

        The sleep is made by ``outside``, without the mutex, which the caller does not hold. Returns True when something
        may have come, the time is over, or before. If the process has no descriptors left for a bell, it returns within
        50 ms.
        """
        place = _Place()
        try:
            with self._mutex:
                seconds = must_wait()
                if seconds is None:
                    return False
                if not self._enter(place):
                    return True
            outside(partial(place.sleep, min(seconds, LONGEST_SECONDS)))
            self._leave(place)
        except BaseException:
            shielded(partial(self._leave, place, passes=True))
            raise
        return True

    def wake(self, count: int) -> None:
        """Wake as many threads as there are new items."""
        if count and self.count:
            for place in self.sleeping[:count]:
                place.tell()
            del self.sleeping[:count]
            if self.keeper is not None and self._bell is not None:
                self._bell.ring()

    def wake_all(self) -> None:
        """Have all threads look."""
        self.wake(self.count)

    def close(self) -> None:
        """Wake all threads, which must not come back; the bell is closed when none keeps it."""
        self._is_closed = True
        self.wake_all()
        if self.keeper is None:
            self._close_bell()

    def abandon(self) -> None:
        """Close the bell, without the mutex: nobody waits any more, or those who do are threads of a parent process."""
        self._close_bell()

    def _enter(self, place: _Place) -> bool:
        """Take the place; False if the thread is to look once more first: what came before there was a bell did not
        ring."""
        if self.keeper is None:
            if self._bell is None:
                try:
                    shielded(self._make_bell)
                except OSError:
                    place.most_seconds = POLL_SECONDS
                else:
                    return False
            else:
                place.bell = self._bell
                self.keeper = place
                return True
        self.sleeping.append(place)
        return True

    def _make_bell(self) -> None:
        with self._opened() as directory:
            self._bell = Bell(directory)

    def _leave(self, place: _Place, passes: bool = False) -> None:
        """Give up the place; again, if that was interrupted. If the thread ``passes``, since it will not look for what
        it was woken for, another one is woken."""
        with self._mutex:
            if place in self.sleeping:
                self.sleeping.remove(place)
            if self.keeper is place:
                self.keeper = None
                if self._is_closed:
                    self._close_bell()
            if self.keeper is None or (passes and place.is_told):
                for other in self.sleeping[:1]:  # which may be the next one to keep the bell
                    other.tell()
                del self.sleeping[:1]

    def _close_bell(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()

"""Threads that wait: ``ItemWaiters`` for an item, and ``RoomWaiters`` for room in a full queue.

A waiting thread sleeps without the mutex, on a lock of its own. ``threading.Condition`` is not used: it loses the mutex
if a signal handler raises while it takes the mutex again.

Waiters for an item use no processor time. The first one keeps the wake-up (see ``wakeup``), which ends its sleep when
another process publishes something. The others sleep until this process has an item for them. When a thread leaves and
no thread keeps the wake-up, it wakes another waiter, which keeps the wake-up from then on.

Waiters for room stand in a line, in the order in which they came. The first one tries again whenever an item was
dequeued or released. It leaves when it has found room, and then it is the next one's turn. Meanwhile the first one
looks every 50 ms for what other processes publish: perhaps no other thread does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from ..errors import QueueFullError
from ..interrupts.signal_shield import shielded, surely
from ..system.path_errors import faults
from ..system.wakeup import LONGEST_SECONDS, POLL_SECONDS, Wakeup


class Place:
    """The place of one thread that waits: a lock, which ``tell`` releases."""

    __slots__ = ("_turn", "is_told")

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._turn.acquire()
        self.is_told = False

    def tell(self) -> None:
        """End its sleep, or the next one. The mutex is held. After an interruption it may be called again."""
        if not self.is_told:
            self.is_told = True
            self._turn.release()

    def listen(self) -> None:
        """Forget what the place was told so far. The mutex is held."""
        if self.is_told:
            self._turn.acquire(blocking=False)
            self.is_told = False

    def sleep(self, timeout_seconds: float) -> None:
        """Return when the place is told, or was told since ``listen``, or when the time is over. Without the mutex."""
        if self._turn.acquire(timeout=timeout_seconds):
            self._turn.release()


class _ItemPlace(Place):
    """The place of one thread that waits for an item. It may keep the wake-up, which then ends its sleep."""

    __slots__ = ("bell", "most_seconds")

    def __init__(self) -> None:
        super().__init__()
        self.bell: Wakeup | None = None
        self.most_seconds = LONGEST_SECONDS

    def sleep(self, timeout_seconds: float) -> None:
        """Return when the place is told, when the wake-up that it keeps rings, or when the time is over."""
        seconds = min(timeout_seconds, self.most_seconds)
        if self.bell is not None:
            self.bell.wait(seconds)
        else:
            super().sleep(seconds)


class Waiter(Protocol):
    """A place in the line of those that wait for an item, of a thread or of another process."""

    is_told: bool

    def tell(self) -> None:
        """Say that there may be an item. The mutex is held."""


class ItemWaiters:
    """The threads that wait for an item of one queue. The caller holds ``mutex``, except for ``wait`` and ``abandon``.

    ``opened`` opens the directory into which other processes publish, and closes it again.
    """

    def __init__(
        self, mutex: AbstractContextManager[object], opened: Callable[[], AbstractContextManager[int]]
    ) -> None:
        self._mutex = mutex
        self._opened = opened
        self.sleeping: list[Waiter] = []
        """Places without the wake-up. Read-only outside this class."""
        self.keeper: _ItemPlace | None = None
        """Place that keeps the wake-up; None if there is none. Read-only outside this class."""
        self._bell: Wakeup | None = None
        self._is_closed = False

    @property
    def count(self) -> int:
        """Number of threads that wait."""
        return len(self.sleeping) + (self.keeper is not None)

    def wait(self, must_wait: Callable[[], float | None], outside: Callable[[Callable[[], None]], None]) -> bool:
        """Call ``must_wait`` with the mutex held, and sleep for at most the returned seconds; return False if it
        returned None.

        ``outside`` makes the sleep, without the mutex. The caller does not hold the mutex. Returns True when something
        may have come, when the time is over, or earlier. If the process has no file descriptors left for a wake-up, it
        returns within 50 ms.
        """
        place = _ItemPlace()
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
            surely(partial(self._leave, place, passes=True))
            raise
        return True

    def enlist(self, waiter: Waiter) -> None:
        """Let another waiter stand in the line, until it is told. It looks by itself for published files.

        A waiter that stands in the line keeps its place.
        """
        if waiter not in self.sleeping:
            self.sleeping.append(waiter)

    def dismiss(self, waiter: Waiter) -> None:
        """Let a waiter leave the line. If it was told, another one is told: this one takes nothing."""
        if waiter in self.sleeping:
            self.sleeping.remove(waiter)
        elif waiter.is_told:
            self.wake(1)

    def wake(self, count: int) -> None:
        """Wake as many threads as there are new items."""
        if count and self.count:
            for place in self.sleeping[:count]:
                place.tell()
            del self.sleeping[:count]
            if self.keeper is not None and self._bell is not None:
                self._bell.ring()

    def wake_all(self) -> None:
        """Wake all threads, so that each looks again."""
        self.wake(self.count)

    def close(self) -> None:
        """Wake all threads, which must not come back. The wake-up is closed when no thread keeps it."""
        self._is_closed = True
        self.wake_all()
        if self.keeper is None:
            self.close_bell()

    def close_bell(self) -> None:
        """Close the wake-up: no thread keeps it any more. Also without the mutex, if no thread waits, or if the waiting
        threads belong to a parent process."""
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()

    def _enter(self, place: _ItemPlace) -> bool:
        """Take the place. Return False if the thread must look again first: files that came before the wake-up
        existed did not ring it."""
        if self.keeper is None:
            if self._bell is None:
                try:
                    shielded(self._make_bell)
                except faults(OSError):
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
            self._bell = Wakeup(directory)

    def _leave(self, place: _ItemPlace, passes: bool = False) -> None:
        """Give up the place. After an interruption it may be called again.

        If the thread ``passes``, it will not look for what it was woken for, and another thread is woken.
        """
        with self._mutex:
            if place in self.sleeping:
                self.sleeping.remove(place)
            if self.keeper is place:
                self.keeper = None
                if self._is_closed:
                    shielded(self.close_bell)
            if self.keeper is None or (passes and place.is_told):
                # One of the threads may keep the wake-up next.
                for other in [each for each in self.sleeping if isinstance(each, Place)][:1] or self.sleeping[:1]:
                    other.tell()
                    self.sleeping.remove(other)


class RoomWaiters:
    """The threads that wait for room in one queue. ``mutex`` guards them. Only ``tell_first`` and ``wake_all`` are
    called with it."""

    def __init__(self, mutex: threading.Lock) -> None:
        self._mutex = mutex
        self.taken: list[Place] = []
        """Places of the waiting threads, in the order in which they came. Read-only outside this class."""
        self._rooms = 0
        """Number of times that there may have been room for them."""

    def tell(self) -> None:
        """Tell the first waiter that there may be room."""
        if self.taken:
            with self._mutex:
                self.tell_first()

    def tell_first(self) -> None:
        """Tell the first waiter that there may be room. The mutex is held."""
        self._rooms += 1
        if self.taken:
            self.taken[0].tell()

    def wake_all(self) -> None:
        """Wake all waiters, so that each checks whether it may go on waiting. The mutex is held."""
        for place in self.taken:
            place.tell()

    def wait(
        self,
        attempt: Callable[[], None],
        refuse: Callable[[], QueueFullError],
        check: Callable[[], None],
        look: Callable[[], object],
        timeout_seconds: float | None,
        outside: Callable[[Callable[[], None]], None],
    ) -> None:
        """Retry ``attempt`` while at the head of the line and room may be available, until it succeeds.

        While it is at the head of the line, it calls ``look`` from time to time, for what other processes publish: that
        may make room. ``check`` is called before each sleep, and ``outside`` makes the sleep.

        If the timeout is over (None: never), the last refusal is raised, or the error of ``refuse`` if there was no
        attempt. A refusal that is ``lasting`` is raised at once, and so is an error of ``check``.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        place = Place()
        try:
            try:
                self._stand(place, attempt, refuse, check, look, deadline, outside)
            finally:
                self._leave(place)
        except BaseException:  # an interruption may have come in the line or in the leave
            surely(partial(self._leave, place))
            raise

    def _stand(
        self,
        place: Place,
        attempt: Callable[[], None],
        refuse: Callable[[], QueueFullError],
        check: Callable[[], None],
        look: Callable[[], object],
        deadline: float | None,
        outside: Callable[[Callable[[], None]], None],
    ) -> None:
        """Do what ``wait`` does, but stay in the line at the end."""
        tried, refusal = -1, None
        with self._mutex:
            self.taken.append(place)
        while True:
            with self._mutex:
                place.listen()
                is_first, rooms = self.taken[0] is place, self._rooms
                is_its_turn = is_first and rooms != tried
                if not is_its_turn:
                    check()
                    left = LONGEST_SECONDS if deadline is None else deadline - time.monotonic()
                    if left <= 0:
                        raise refusal or refuse()
            if is_its_turn:
                tried = rooms
                try:
                    return attempt()
                except QueueFullError as refused:
                    if refused.lasting:
                        raise
                    refusal = refused
            else:
                outside(partial(place.sleep, min(left, POLL_SECONDS if is_first else LONGEST_SECONDS)))
                if is_first:
                    look()

    def _leave(self, place: Place) -> None:
        with self._mutex:
            if place in self.taken:
                self.taken.remove(place)
            if self.taken:
                self.taken[0].tell()

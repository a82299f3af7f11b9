"""Threads that wait for an item: one of them listens for other processes, and the rest sleep.

To wait costs no processor time. The first that waits keeps the bell (see ``bell``), which rings when another process
publishes something; the others sleep until this process has an item for them. A thread that leaves while none keeps the
bell wakes another one, which keeps it then.

A thread sleeps without the mutex, in a place of its own: ``threading.Condition`` loses the mutex if a signal handler
raises while it takes it again.

Transactions that wait for room in a full queue, in the order of their coming.

The first one tries again whenever something was dequeued or given back, and leaves when it has found room; then it is
the next one's turn. Meanwhile it looks at what other processes say: nobody else may be there who does.

A thread sleeps on a lock of its own, without the mutex: ``threading.Condition`` loses the mutex if a signal handler
raises while it takes it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from ..errors import QueueFullError
from ..system.signal_shield import shielded
from ..system.wakeup import LONGEST_SECONDS, POLL_SECONDS, Wakeup


class _Place:
    """The place of one waiting thread: with the bell, or with a lock that is released when it is told."""

    __slots__ = ("bell", "is_told", "most_seconds", "turn")

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.turn.acquire()
        self.bell: Wakeup | None = None
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


class ItemWaiters:
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
        self._bell: Wakeup | None = None
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
            self._bell = Wakeup(directory)

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


class RoomWaiter:
    """The place of one waiting thread."""

    __slots__ = ("_is_told", "_turn")

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._turn.acquire()
        self._is_told = False

    def tell(self) -> None:
        """End its sleep, or the next one; the mutex is held."""
        if not self._is_told:
            self._is_told = True
            self._turn.release()

    def listen(self) -> None:
        """Forget what it was told so far; the mutex is held."""
        if self._is_told:
            self._turn.acquire(blocking=False)
            self._is_told = False

    def sleep(self, timeout_seconds: float) -> None:
        """Return when it is told, when the time is over, or when it was told since ``listen``; without the mutex."""
        if self._turn.acquire(timeout=timeout_seconds):
            self._turn.release()


class RoomWaiters:
    """The seats of one queue. ``mutex`` guards them; only ``tell_first`` and ``wake_all`` are called with it."""

    def __init__(self, mutex: threading.Lock) -> None:
        self._mutex = mutex
        self.taken: list[RoomWaiter] = []
        """By those that wait, in the order of coming; not to be changed from outside."""
        self._rooms = 0
        """How often there may have been room for those that wait."""

    def tell(self) -> None:
        """Tell the first that there may be room."""
        if self.taken:
            with self._mutex:
                self.tell_first()

    def tell_first(self) -> None:
        """Tell the first that there may be room; the mutex is held."""
        self._rooms += 1
        if self.taken:
            self.taken[0].tell()

    def wake_all(self) -> None:
        """Have all look whether they may stay; the mutex is held."""
        for seat in self.taken:
            seat.tell()

    def wait(
        self,
        attempt: Callable[[], None],
        refuse: Callable[[], QueueFullError],
        check: Callable[[], None],
        look: Callable[[], object],
        timeout_seconds: float | None,
        outside: Callable[[Callable[[], None]], None],
    ) -> None:
        """Retry the ``attempt`` while at the head of the line and room may be available, until it succeeds.

        The first of those that wait has a ``look`` now and then at what other processes say, which may make room. When
        the time is over (None: never), raises the last refusal, or what ``refuse`` gives if there was no attempt.
        Raises a refusal that is ``lasting`` at once, and what ``check`` raises, which is called before each sleep. The
        sleep is made by ``outside``.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        seat = RoomWaiter()
        try:
            error = self._wait(seat, attempt, refuse, check, look, deadline, outside)
            self._leave(seat)
        except BaseException:
            shielded(partial(self._leave, seat))
            raise
        if error is not None:
            raise error

    def _wait(
        self,
        seat: RoomWaiter,
        attempt: Callable[[], None],
        refuse: Callable[[], QueueFullError],
        check: Callable[[], None],
        look: Callable[[], object],
        deadline: float | None,
        outside: Callable[[Callable[[], None]], None],
    ) -> QueueFullError | None:
        """Return the refusal that ends the waiting; None once the attempt has succeeded."""
        tried, refusal = -1, None
        with self._mutex:
            self.taken.append(seat)
        while True:
            with self._mutex:
                seat.listen()
                is_first = self.taken[0] is seat
                is_its_turn = is_first and self._rooms != tried
                if is_its_turn:
                    tried = self._rooms
                else:
                    check()
                    left = LONGEST_SECONDS if deadline is None else deadline - time.monotonic()
                    if left <= 0:
                        return refusal or refuse()
            if not is_its_turn:
                outside(partial(seat.sleep, min(left, POLL_SECONDS if is_first else LONGEST_SECONDS)))
                if is_first:
                    look()
                continue
            try:
                attempt()
            except QueueFullError as refused:
                if refused.lasting:
                    return refused
                refusal = refused
            else:
                return None

    def _leave(self, seat: RoomWaiter) -> None:
        with self._mutex:
            if seat in self.taken:
                self.taken.remove(seat)
            if self.taken:
                self.taken[0].tell()

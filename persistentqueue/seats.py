"""Transactions that wait for room in a full queue, in the order of their coming.

The first one tries again whenever something was dequeued or given back, and leaves when it has found room; then it is
the next one's turn. Meanwhile it looks at what other processes say: nobody else may be there who does.

A thread sleeps on a lock of its own, without the mutex: ``threading.Condition`` loses the mutex if a signal handler
raises while it takes it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from .bell import LONGEST_SECONDS, POLL_SECONDS
from .errors import QueueFullError
from .shield import shielded


class Seat:
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


class Seats:
    """The seats of one queue. ``mutex`` guards them; only ``tell_first`` and ``wake_all`` are called with it."""

    def __init__(self, mutex: threading.Lock) -> None:
        self._mutex = mutex
        self.taken: list[Seat] = []
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
        seat = Seat()
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
        seat: Seat,
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

    def _leave(self, seat: Seat) -> None:
        with self._mutex:
            if seat in self.taken:
                self.taken.remove(seat)
            if self.taken:
                self.taken[0].tell()

"""Those who wait for room in a full queue, in the order of coming.

The first one tries again whenever something was dequeued or given back, and leaves when it has found room; then it is
the next one's turn. Meanwhile it looks at what other processes say: nobody else may be there who does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .bell import LONGEST_SECONDS, POLL_SECONDS
from .errors import QueueFullError


class Seats:
    """The seats of one queue. ``mutex`` guards them; only ``tell_first`` is called with it."""

    def __init__(self, mutex: threading.Lock) -> None:
        self._mutex = mutex
        self.taken: list[threading.Condition] = []
        """By those who wait, in the order of coming; not to be changed from outside."""
        self._rooms = 0
        """How often there may have been room for those who wait."""

    def tell(self) -> None:
        """There may be room for the first."""
        if self.taken:
            with self._mutex:
                self.tell_first()

    def tell_first(self) -> None:
        """The same; the mutex is held."""
        self._rooms += 1
        if self.taken:
            self.taken[0].notify()

    def wake_all(self) -> None:
        """All are to look whether they may stay; the mutex is held."""
        for seat in self.taken:
            seat.notify()

    def wait(
        self,
        attempt: Callable[[], None],
        refuse: Callable[[], QueueFullError],
        check: Callable[[], None],
        look: Callable[[], object],
        timeout_seconds: float | None,
    ) -> None:
        """Make the ``attempt`` when it is one's turn and there may be room, until it finds some. The first of those who
        wait has a ``look`` now and then at what other processes say, which may make room.

        When the time is over (None: never), raises what it was last refused for, or what ``refuse`` gives, if it never
        was its turn. Raises what it is refused for with no hope, and what ``check`` raises, who is asked before each
        sleep.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        tried, refusal = -1, None
        seat = threading.Condition(self._mutex)
        try:
            with self._mutex:
                self.taken.append(seat)
            while True:
                with self._mutex:
                    is_first = self.taken[0] is seat
                    is_its_turn = is_first and self._rooms != tried
                    if is_its_turn:
                        tried = self._rooms
                    else:
                        check()
                        left = LONGEST_SECONDS if deadline is None else deadline - time.monotonic()
                        if left <= 0:
                            raise refusal or refuse()
                        seat.wait(min(left, POLL_SECONDS if is_first else LONGEST_SECONDS))
                if not is_its_turn:
                    if is_first:
                        look()
                    continue
                try:
                    attempt()
                except QueueFullError as refused:
                    if refused.lasting:
                        raise
                    refusal = refused
                else:
                    return
        finally:
            with self._mutex:
                if seat in self.taken:
                    self.taken.remove(seat)
                if self.taken:
                    self.taken[0].notify()

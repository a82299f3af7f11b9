"""Which threads are in a call of a queue: what interrupts one of them may not call the queue.

A signal handler, a finalizer, a handler of ``logging`` or the callable that gives a key runs in the middle of a call,
in its thread, and would wait for a lock that this very thread holds. It gets ``ReentrantUseError`` instead, at once.
While a call only waits, for an item or for room, it holds no lock: then the queue may be called.

Queues that take part in a transaction are *partners*. What interrupts a call of one may not call the other either: that
might wait for a transaction over both, which waits for the call that was interrupted.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, TypeVar, cast

from ..errors import ClosedError, ReentrantUseError
from ..system.signal_shield import shielded

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])
_thread = threading.get_ident


def outermost(method: Method) -> Method:
    """Refuse a call of the method with ``ReentrantUseError``, if the same thread is in another one already.

    Such a call comes from code that interrupts the other one, and would wait for a lock that its own thread holds.
    """

    @wraps(method)
    def call(calls: CallGuard, *arguments: Any, **named: Any) -> Any:
        thread, inside = _thread(), calls.inside
        if inside and (0 in inside or thread in inside):
            calls.check_outermost()
        # Neither here nor in ``finally`` is there a call that an interruption could come behind.
        inside[thread] = None
        try:
            return method(calls, *arguments, **named)
        finally:
            del inside[thread]

    return cast(Method, call)


class CallGuard:
    """The calls of one queue; what has them is its group. For any number of threads."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.inside: dict[int, None] = {}
        """The threads that are in a call; see ``outermost``. 0, which is none, is there if there are partners."""
        self.partners: tuple[CallGuard, ...] = ()
        """The queues that have been in a transaction with this one, and are open."""
        self.closed: str | None = "the queue is not open"
        """Why nothing goes; None while the queue is open."""

    @property
    @abstractmethod
    def directory(self) -> str:
        """Of the queue."""

    def add_partners(self, others: Sequence[CallGuard]) -> None:
        """Know these queues as partners; the queue itself may be among them.

        Without a lock: what two threads add at once, and one of them overwrites, is added by its next transaction.
        """
        new = [each for each in others if each is not self and each not in self.partners]
        if new:
            self.partners = (*(each for each in self.partners if each.closed is None), *new)
            self.inside[0] = None

    def shielded(self, call: Callable[[], T]) -> T:
        """Make the call, which no signal handler interrupts, and which may not be interrupted by a call of the group
        either, from a handler of ``logging`` for instance."""
        return shielded(partial(self._call_inside, call))

    def _call_inside(self, call: Callable[[], T]) -> T:
        thread, inside = _thread(), self.inside
        if thread in inside:
            return call()
        inside[thread] = None
        try:
            return call()
        finally:
            del inside[thread]

    def outside(self, call: Callable[[], None]) -> None:
        """Make a call that holds no lock, and waits: what interrupts that may call the group."""
        thread, inside = _thread(), self.inside
        # As in ``outermost``, the other way round.
        del inside[thread]
        try:
            call()
        finally:
            inside[thread] = None

    def check_outermost(self) -> None:
        """Raise ``ReentrantUseError`` if this thread is in a call of the queue, or of a partner."""
        thread = _thread()
        for each in (self, *self.partners):
            if thread in each.inside:
                raise ReentrantUseError(
                    f"{self.directory}: called in the middle of another call of {each.directory} in the same thread, "
                    "by a signal handler, a finalizer, a log handler or a callable that gives a key: make the call "
                    "when that one has ended"
                )

    def check_closed(self) -> None:
        """Raise ``ClosedError`` if the queue is closed."""
        if self.closed is not None:
            raise ClosedError(self.closed)

    def together(self, call: Callable[[], T]) -> T:
        """Make the call as one of this queue in the middle of one of its partners, which the caller has begun."""
        thread, inside = _thread(), self.inside
        # As in ``outermost``.
        inside[thread] = None
        try:
            return call()
        finally:
            del inside[thread]

    @outermost
    def around(self, call: Callable[[], T]) -> T:
        """Make the call as one of this group: what interrupts it may not call the group."""
        return call()

    @outermost
    def look(self, look: Callable[[], T]) -> T:
        """Return what the callable does, with the mutex held."""
        with self.mutex:
            return look()

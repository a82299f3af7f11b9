"""Which threads are in a call of a queue: what interrupts one of them may not call the queue.

A signal handler, a finalizer, a handler of ``logging`` or the callable that gives a key runs in the middle of a call,
in its thread, and would wait for a lock that this very thread holds. It gets ``ReentrantUseError`` instead, at once.
While a call only waits, for an item or for room, it holds no lock: then the queue may be called.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, cast

from .errors import ReentrantUseError
from .shield import shielded

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])
_thread = threading.get_ident


def outermost(method: Method) -> Method:
    """Refuse a call of the method with ``ReentrantUseError``, if the same thread is in another one already.

    Such a call comes from code that interrupts the other one, and would wait for a lock that its own thread holds.
    """

    @wraps(method)
    def call(calls: Calls, *arguments: Any, **named: Any) -> Any:
        thread, inside = _thread(), calls.inside
        if thread in inside:
            raise calls.reentrance()
        # Neither here nor in ``finally`` is there a call that an interruption could come behind.
        inside[thread] = None
        try:
            return method(calls, *arguments, **named)
        finally:
            del inside[thread]

    return cast(Method, call)


class Calls:
    """The calls of one queue; what has them is its group. For any number of threads."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.inside: dict[int, None] = {}
        """The threads that are in a call; see ``outermost``."""

    @property
    @abstractmethod
    def directory(self) -> str:
        """Of the queue."""

    def reentrance(self) -> ReentrantUseError:
        """What is raised for a call in the middle of another one of the same thread."""
        return ReentrantUseError(
            f"{self.directory}: called in the middle of another call of this queue in the same thread, by a "
            "signal handler, a finalizer, a log handler or a callable that gives a key: make the call when that one "
            "has ended"
        )

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
        """Raise ``ReentrantUseError`` if this thread is in a call of the queue."""
        if _thread() in self.inside:
            raise self.reentrance()

    @outermost
    def around(self, call: Callable[[], T]) -> T:
        """Make the call as one of this group: what interrupts it may not call the group."""
        return call()

    @outermost
    def look(self, look: Callable[[], T]) -> T:
        """Return what the callable does, with the mutex held."""
        with self.mutex:
            return look()

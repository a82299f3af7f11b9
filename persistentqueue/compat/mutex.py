"""The mutex of a ``Queue``: a lock that refuses the thread that holds it.

A call of the queue may wait for a disk or for another process while it holds the mutex. A signal handler, a finalizer
or a callable of the caller can run in the middle of it, in its thread. If that code calls the queue, it would wait for
its own thread. It gets ``ReentrantUseError`` instead. A call that waits for an item or for room has released the mutex.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from persistentqueue import ReentrantUseError

T = TypeVar("T")


class Mutex:
    """A lock that raises ``ReentrantUseError`` in the thread that holds it. Condition variables can be made of it.

    Args:
        path: Directory of the queue, for the error.

    A ``with`` statement takes it without a look for signals behind the acquisition, as ``interrupts.locks`` explains:
    ``__enter__`` acquires it in a loop, and ``__exit__`` is a function of C.
    """

    __slots__ = (
        "__enter__",
        "__exit__",
        "_acquire_restore",
        "_is_owned",
        "_lock",
        "_release_save",
        "check",
        "release",
    )

    def __init__(self, path: str) -> None:
        inner: Any = threading.RLock()  # it knows its thread, and a condition variable releases it
        acquiring, is_owned = iter(inner.acquire, None), inner._is_owned

        def check() -> None:
            """Raise ``ReentrantUseError`` if this thread holds the lock."""
            if is_owned():
                raise ReentrantUseError(
                    f"{path}: called in the middle of another call of this queue in the same thread, by a signal "
                    "handler, a finalizer, a hook or a callable of an option: make this call after that call has ended"
                )

        def enter() -> None:
            """Acquire the lock. Raises ``ReentrantUseError``."""
            check()
            for _ in acquiring:
                return

        self.__enter__, self.__exit__ = enter, inner.__exit__
        self._lock, self.release = inner, inner.release
        self._is_owned, self._release_save, self._acquire_restore = (
            is_owned,
            inner._release_save,
            inner._acquire_restore,
        )
        self.check = check

    def outside(self, call: Callable[[], T]) -> T:
        """Make a call that waits, without the lock. Take it back in any case: that wait looks for no signals."""
        mine = 1, threading.get_ident()
        try:  # no call before the two of C code, so no interruption finds the lock in another state
            self._release_save()
            return call()
        finally:
            self._acquire_restore(mine)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock, as that of ``threading`` does. Return True if it is acquired.

        Args:
            blocking: Whether to wait for another thread. Default True.
            timeout: Seconds to wait. Default -1: no limit.

        Raises:
            ReentrantUseError: This thread holds the lock, and the call would wait.
        """
        if blocking:
            self.check()
        elif self._is_owned():
            return False
        return bool(self._lock.acquire(blocking, timeout))

    def locked(self) -> bool:
        """Return whether a thread holds the lock."""
        is_free = self.acquire(False)
        if is_free:
            self.release()
        return not is_free

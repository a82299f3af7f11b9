"""Locks for ``with`` statements: a signal handler that raises leaves none of them taken.

CPython runs signal handlers after each call of a function of C. In Python 3.14, ``with lock:`` makes such a call to
acquire the lock, and the statement releases the lock only from the next instruction on. So the exception of a handler
could leave it taken for ever (https://github.com/python/cpython/issues/148874). Older versions acquire it by an
instruction of its own, and Python 3.15 looks for no signals there.

A lock that is acquired by the methods ``acquire`` and ``release`` alone, such as the turn of a thread, is an ordinary
one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

LOOKS_BEHIND_ENTER: Final = (3, 14) <= sys.version_info < (3, 15)
"""Whether this Python looks for signals between the acquisition of a lock and the block of a ``with`` statement."""


class WholeLock:
    """A lock of the standard library. A ``with`` statement acquires it without a look for signals behind it.

    A loop takes its next value without such a look, and so does the end of a function of Python. So ``__enter__`` is
    a function of Python, in which a loop acquires the lock. ``__exit__`` is that of the lock, in C: a look at the
    beginning of a function of Python would come before the release.
    """

    __slots__ = ("__enter__", "__exit__", "__weakref__", "_lock", "acquire", "release")

    def __init__(self, lock: Any) -> None:
        acquiring = iter(lock.acquire, None)  # each step acquires the lock, and the loop never ends by itself

        def enter() -> None:
            """Acquire the lock."""
            for _ in acquiring:
                return

        self.__enter__ = enter
        self.__exit__ = lock.__exit__
        self._lock, self.acquire, self.release = lock, lock.acquire, lock.release

    def __getattr__(self, name: str) -> Any:
        """Return another attribute of the lock, for instance for a condition variable."""
        return getattr(self._lock, name)


if TYPE_CHECKING or not LOOKS_BEHIND_ENTER:
    Lock: Callable[[], threading.Lock] = threading.Lock
    """Makes a lock."""
    RLock = threading.RLock
    """Makes a lock that its owner can acquire again."""
else:  # pragma: no cover - one version of Python

    def Lock() -> WholeLock:  # noqa: N802 - in place of a class
        """Make a lock."""
        return WholeLock(threading.Lock())

    def RLock() -> WholeLock:  # noqa: N802
        """Make a lock that its owner can acquire again."""
        return WholeLock(threading.RLock())


class Condition(threading.Condition):
    """A condition variable that a ``with`` statement acquires and releases as its lock.

    That of ``threading`` does so in functions of Python, in which a handler may raise. For code of others that needs
    one, and does not wait in a thread that handlers interrupt: an interrupted ``wait`` loses the lock.
    """

    __slots__ = ("__enter__", "__exit__")

    def __init__(self) -> None:
        lock = RLock()
        super().__init__(lock)
        self.__enter__, self.__exit__ = lock.__enter__, lock.__exit__  # type: ignore[method-assign]

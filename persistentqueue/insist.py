"""What the core asks of the threads above it: to make a call that no signal handler interrupts.

The core starts no thread. Its owner hands it an ``Insist`` instead: ``shield.shielded`` in a program, ``call_once``
where nothing interrupts, as in the tests that simulate a disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Insist(Protocol):
    """Makes a call to its end, whatever signal handlers raise meanwhile."""

    def __call__(self, call: Callable[[], T], /) -> T:
        """Make the call; return or raise what it does. What a handler raises is raised behind it, instead."""


def call_once(call: Callable[[], T], /) -> T:
    """Make the call."""
    return call()


def is_interruption(error: BaseException) -> bool:
    """Return whether the error may come from a signal handler, and so says nothing of the call that it ended.

    An ``OSError`` of the system has a number. One without comes from a handler, as ``TimeoutError`` often does.
    """
    return not isinstance(error, OSError) or error.errno is None

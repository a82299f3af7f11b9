"""Threads that run at once, for tests of what several of them share."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

R = TypeVar("R")
SECONDS = 300.0
"""Time that a call or a thread has, on a machine with other load."""


@contextmanager
def often_switched() -> Iterator[None]:
    """Let threads change after nearly each instruction. On a free-threaded Python they run at once in any case."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def at_once(*calls: Callable[[], R]) -> list[R]:
    """Make each call in a thread of its own, all of them from one moment on; return the results in order.

    Raises the first error.
    """
    start = threading.Barrier(len(calls), timeout=SECONDS)

    def begun(call: Callable[[], R]) -> R:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as executor, often_switched():
        made = [executor.submit(begun, call) for call in calls]
        return [each.result(SECONDS) for each in made]

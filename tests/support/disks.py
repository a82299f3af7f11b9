"""Another disk for public calls, and for the objects that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from persistentqueue.system.disk import CURRENT_DISK, Disk

R = TypeVar("R")


@contextmanager
def using_disk(disk: Disk) -> Iterator[None]:
    """Let the public calls of this thread and task inside the block use this disk."""
    token = CURRENT_DISK.set(disk)
    try:
        yield
    finally:
        CURRENT_DISK.reset(token)


def call_on(disk: Disk, call: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Return what the public function or class ``call`` returns if it uses this disk."""
    with using_disk(disk):
        return call(*args, **kwargs)

"""Another disk for one public call, and for the object that the call makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from persistentqueue.system.disk import Disk, using_disk

R = TypeVar("R")


def call_on(disk: Disk, call: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Return what the public function or class ``call`` returns if it uses this disk."""
    with using_disk(disk):
        return call(*args, **kwargs)

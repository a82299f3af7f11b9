"""Another disk for the queues that a study opens, in the present tree and in older ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from persistentqueue import PersistentQueue
from persistentqueue.system.disk import Disk


@contextmanager
def using_disk(disk: Disk) -> Iterator[None]:
    """Let the public calls of this thread inside the block use this disk.

    In an older tree, the disk is a keyword argument of the queue.
    """
    current = getattr(sys.modules[Disk.__module__], "CURRENT_DISK", None)
    if current is not None:
        token = current.set(disk)
        try:
            yield
        finally:
            current.reset(token)
        return
    defaults: Any = PersistentQueue.__init__.__kwdefaults__
    usual, defaults["disk"] = defaults["disk"], disk
    try:
        yield
    finally:
        defaults["disk"] = usual

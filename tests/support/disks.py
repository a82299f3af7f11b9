"""Another disk for public calls, and for the objects that they make."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from persistentqueue.system.disk import CURRENT_DISK, DISK, Disk, StatResult

R = TypeVar("R")
_MINORS = count(70_001)
"""Numbers that no device has, and that no other test has used in this process."""
_LINES = """\
24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 24 0:70000 / /elsewhere rw shared:7 - nfs4 host:/b rw
30 24 0:{minor} / /mnt/with\\040space rw,relatime shared:5 master:2 - {kind} host:/a - b rw
"""


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


def disk_with(tmp_path: Path, kind: str, below: Path) -> Disk:
    """Return a disk that shows all directories below a path on a file system of this type."""
    mounts = tmp_path / "mounts"
    minor = next(_MINORS)
    mounts.write_text(_LINES.format(kind=kind, minor=minor))

    def lstat(path: str) -> StatResult:
        found = DISK.lstat(path)
        is_there = path.startswith(f"{below}/") and path.endswith("/.")
        return os.stat_result((*found[:2], os.makedev(0, minor), *found[3:])) if is_there else found

    def opened(path: str, flags: int, mode: int) -> int:
        return DISK.open(str(mounts) if path == "/proc/self/mountinfo" else path, flags, mode)

    return replace(DISK, lstat=lstat, open=opened)

"""The lock file: its signature, and a file that has lost its name."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    QueueLockedError,
)
from persistentqueue.storage.lock import Lock
from persistentqueue.system.disk import DISK


def test_lock_that_cannot_be_signed_or_read(tmp_path: Path) -> None:
    """A full disk does not prevent a lock; an owner that could not sign is reported as one that has not named
    itself."""

    def refuse(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    lock = Lock(replace(DISK, pwritev=refuse), str(tmp_path / "lock"))
    lock.acquire(0)
    other = Lock(DISK, str(tmp_path / "lock"))
    with pytest.raises(QueueLockedError, match="has not named itself") as caught:
        other.acquire(0.03)
    assert (caught.value.pid, caught.value.host, caught.value.since) == (None, None, None)
    lock.release()
    lock.release()
    other.acquire(0)
    other.release()


def test_lock_file_that_lost_its_name(tmp_path: Path) -> None:
    """A lock on a file whose name is gone does not count: the lock is taken again."""
    calls = [0]

    def lstat(path: str) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise FileNotFoundError(path)
        return DISK.lstat(path)

    lock = Lock(replace(DISK, lstat=lstat), str(tmp_path / "lock"))
    lock.acquire(1)
    lock.release()
    assert calls[0] == 3  # twice for the file, once for its directory


def test_locations_whose_closes_fail_are_free(tmp_path: Path) -> None:
    """A release frees the lock, and each location that it holds, even if every close fails."""

    def close(fd: int) -> None:
        DISK.close(fd)
        raise OSError(errno.EIO, "Input/output error")

    places = [tmp_path / name for name in ("queue", "first", "second")]
    for place in places:
        place.mkdir()
    lock, other = (Lock(disk, str(places[0] / "lock")) for disk in (replace(DISK, close_file=close), DISK))
    for owner in (lock, other):
        owner.acquire(0)
        assert all(owner.hold_location(str(place)) for place in places[1:])
        owner.release()

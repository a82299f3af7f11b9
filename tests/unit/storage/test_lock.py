"""The lock file: its signature, and a file that has lost its name."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import NotServedError, PersistentQueue, QueueLockedError, UnusablePathError, connect
from persistentqueue.storage.lock import Lock
from persistentqueue.system.disk import DISK
from tests.support.disks import call_on


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


def test_a_file_system_without_locks(tmp_path: Path) -> None:
    """If the file system has no locks, the error names the path, and says what to do."""

    def refuse(fd: int) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with pytest.raises(UnusablePathError, match="use a file system that has locks") as caught:
        call_on(replace(DISK, lock=refuse), PersistentQueue, tmp_path, "q")
    assert caught.value.path.startswith(str(tmp_path))


def test_an_owner_in_another_container(tmp_path: Path) -> None:
    """A process does not take the owner of a lock for itself if a container of the same host name has the lock.

    Both can have the same process id, and the system hides that lock.
    """
    hidden = tmp_path / "locks"
    hidden.touch()

    def opened(path: str, flags: int, mode: int) -> int:
        return DISK.open(str(hidden) if path == "/proc/locks" else path, flags, mode)

    inside = replace(DISK, open=opened)
    with PersistentQueue(tmp_path, "q"):
        with pytest.raises(QueueLockedError) as locked:
            call_on(inside, PersistentQueue, tmp_path, "q")
        assert locked.value.pid == os.getpid() and "that is this process" not in str(locked.value)
        with pytest.raises(NotServedError) as unserved:
            call_on(inside, connect, tmp_path, "q", lock_timeout=0.0)
        assert unserved.value.pid == os.getpid() and not unserved.value.is_here


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

"""Openings on a full disk, beside a former owner that is just ending, and of a queue that is deleted meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    DiskFullError,
    PersistentQueue,
    QueueLockedError,
    QueueNotFoundError,
    delete_queue,
    move_data,
    repair,
)
from persistentqueue.system.disk import DISK, Disk
from tests.support.disks import call_on
from tests.support.queues import crash, drain, put, segment_files


def test_opening_where_nothing_can_be_made(tmp_path: Path) -> None:
    """If the disk is too full for a directory or the spare file, opening raises ``DiskFullError`` and leaves no lock
    behind."""

    def refuse(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with pytest.raises(DiskFullError, match="then open it"):
        call_on(replace(DISK, mkdir=refuse), PersistentQueue, tmp_path / "q")
    opened = [0]

    def open_(path: str, flags: int, mode: int) -> int:
        opened[0] += path.endswith(".free")
        if opened[0] >= 3:
            refuse()
        return DISK.open(path, flags, mode)

    with pytest.raises(DiskFullError, match="then open it"):
        call_on(replace(DISK, open=open_), PersistentQueue, tmp_path / "q")
    opened[0] = 2
    with pytest.raises(DiskFullError, match="then open it"):
        call_on(replace(DISK, open=open_), PersistentQueue, tmp_path / "r")
    PersistentQueue(tmp_path / "q").close()


def test_leftover_that_goes_meanwhile(tmp_path: Path) -> None:
    """A queue opens even if its former owner deletes a retired segment meanwhile."""
    path = tmp_path / "queue"
    put(queue := PersistentQueue(path), b"x")
    crash(queue)
    spare = path / "data" / "000000000000.seg"
    shutil.copyfile(segment_files(path)[0], spare)

    def open_(name: str, flags: int, mode: int) -> int:
        if name == str(spare):
            spare.unlink(missing_ok=True)
        return DISK.open(name, flags, mode)

    with call_on(replace(DISK, open=open_), PersistentQueue, path) as queue:
        assert drain(queue) == [b"x"]


# --- a queue that is deleted meanwhile -------------------------------------------------------------------------------


def _disk_with(path: Path, act: Callable[[], object]) -> Disk:
    """Return a disk with which another process acts when the lock file of the queue at the path is opened first."""
    acts = [act]

    def open_(name: str, flags: int, mode: int) -> int:
        if str(name) == str(path / "lock") and acts:
            acts.pop()()
        return DISK.open(name, flags, mode)

    return replace(DISK, open=open_)


def _open_existing(path: Path) -> None:
    PersistentQueue(path.parent, path.name, create=False).close()


def _move(path: Path) -> None:
    move_data(path.parent, path.name, data_path=path.parent / "data of all")


def _repair(path: Path) -> None:
    repair(path.parent, path.name)


MAKING_NONE = pytest.mark.parametrize("call", [_open_existing, _move, _repair])


@MAKING_NONE
def test_deleted_with_its_directory(tmp_path: Path, call: Callable[[Path], None]) -> None:
    """A call that makes no queue finds none if another process deletes the queue before this one has its lock."""
    path = tmp_path / "q"
    put(queue := PersistentQueue(path), b"x")
    queue.close()
    with pytest.raises(QueueNotFoundError):
        call_on(_disk_with(path, lambda: delete_queue(tmp_path, "q")), call, path)
    assert not list(path.glob("*"))
    PersistentQueue(path).close()


@MAKING_NONE
def test_deleted_beside_a_foreign_file(tmp_path: Path, call: Callable[[Path], None]) -> None:
    """The call then leaves the foreign file alone, and no lock file beside it."""
    path = tmp_path / "q"
    put(queue := PersistentQueue(path), b"x")
    queue.close()
    (path / "photo").write_text("foreign")
    with pytest.raises(QueueNotFoundError):
        call_on(_disk_with(path, lambda: delete_queue(tmp_path, "q")), call, path)
    assert [each.name for each in path.rglob("*")] == ["photo"]


def test_deleted_in_part(tmp_path: Path) -> None:
    """If the other process ends early, its deletion is still there for the next process, which finishes it."""
    path = tmp_path / "q"
    put(queue := PersistentQueue(path), b"x")
    queue.close()
    with pytest.raises(QueueNotFoundError):
        call_on(_disk_with(path, lambda: (path / "log").rename(path / "deleted")), _open_existing, path)
    assert {each.name for each in path.iterdir()} >= {"lock", "deleted", "data"}
    delete_queue(tmp_path, "q")
    assert not path.exists()


@pytest.mark.parametrize("create", [False, True])
def test_deleted_and_made_anew(tmp_path: Path, create: bool) -> None:
    """An opening that meets another queue of that name opens that one."""
    path = tmp_path / "q"
    put(queue := PersistentQueue(path), b"old")
    queue.close()

    def renew() -> None:
        delete_queue(tmp_path, "q")
        with PersistentQueue(path) as other:
            put(other, b"new")

    with call_on(_disk_with(path, renew), PersistentQueue, path, create=create) as queue:
        assert drain(queue) == [b"new"]


@pytest.mark.parametrize("foreign", [False, True])
def test_deleted_and_to_be_made(tmp_path: Path, foreign: bool) -> None:
    """An opening with ``create=True`` makes a new queue then, with a lock that counts."""
    path = tmp_path / "q"
    put(queue := PersistentQueue(path), b"old")
    queue.close()
    if foreign:
        (path / "photo").write_text("foreign")
    with call_on(_disk_with(path, lambda: delete_queue(tmp_path, "q")), PersistentQueue, path) as queue:
        assert drain(queue) == []
        with pytest.raises(QueueLockedError):
            PersistentQueue(path)

"""Openings on a full disk, and beside a former owner that is just ending."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    DiskFullError,
    PersistentQueue,
)
from persistentqueue.system.disk import DISK
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

"""Steps of several calls of the disk: short reads and writes, directories, and deletion little by little."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue.system import files
from persistentqueue.system.disk import CREATE, CREATE_NEW, DISK, DSYNC, PORTABLE, READ, Disk
from persistentqueue.system.files import (
    make_directory,
    read_all,
    sync_directory,
    sync_names,
    unlink_in_steps,
    write_all,
)

DISKS = {"this system's": DISK, "portable": PORTABLE}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return the path of a file that does not exist."""
    return str(tmp_path / "file")


@pytest.mark.parametrize("disk", DISKS.values(), ids=DISKS)
@pytest.mark.parametrize("flags", [0, DSYNC])
@pytest.mark.parametrize("at_once", [None, 1, 3, 1000])
def test_write_all_writes_all(disk: Disk, flags: int, at_once: int | None, path: str) -> None:
    """Every byte is written, in order, however few bytes one call takes, and however many buffers there are."""
    buffers: list[bytes | memoryview] = [
        b"",
        b"abc",
        memoryview(b"defgh"),
        b"",
        *[bytes([n % 256]) for n in range(3000)],
    ]

    def short(fd: int, parts: Any, offset: int, given: int) -> int:
        assert given == flags
        data = b"".join(parts) if at_once is None else b"".join(parts)[:at_once]
        return disk.pwritev(fd, [data], offset, given)

    writing = disk if at_once is None else replace(disk, pwritev=short)
    fd = disk.open(path, CREATE_NEW, 0o600)
    expected = b"".join(buffers)
    write_all(writing, fd, buffers, len(expected), 5, flags)
    assert disk.pread(fd, 10_000, 0) == bytes(5) + expected
    disk.close(fd)


def test_write_that_accepts_nothing_is_an_error(path: str) -> None:
    """A write that takes no byte and reports no error raises an error, so that the writer does not hang."""
    fd = DISK.open(path, CREATE, 0o600)
    with pytest.raises(OSError, match="accepted no bytes"):
        write_all(replace(DISK, pwritev=lambda *_: 0), fd, [b"abc"], 3, 0)
    DISK.close(fd)


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_read_all_reads_all(at_once: int, path: str) -> None:
    """``read_all`` returns fewer bytes than requested only at the end of the file."""
    Path(path).write_bytes(b"0123456789")
    fd = DISK.open(path, READ, 0)
    reading = replace(DISK, pread=lambda fd, length, offset: os.pread(fd, min(length, at_once), offset))
    assert read_all(reading, fd, 4, 2) == b"2345"
    assert read_all(reading, fd, 100, 7) == b"789"
    assert read_all(reading, fd, 100, 10) == b""
    DISK.close(fd)


def test_directories_are_private_and_durable(tmp_path: Path) -> None:
    """Missing directories are made with mode 0700, and each name is synced in the directory above it."""
    synced: list[str] = []
    opened: dict[int, str] = {}

    def open_(path: str, flags: int, mode: int) -> int:
        fd = DISK.open(path, flags, mode)
        opened[fd] = path
        return fd

    disk = replace(DISK, open=open_, fsync=lambda fd: synced.append(opened[fd]))
    make_directory(disk, str(tmp_path / "a" / "b"))
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o700, 0o700]
    make_directory(disk, str(tmp_path / "a" / "b"))
    assert len(synced) == 2


def test_directory_made_by_somebody_else_meanwhile(tmp_path: Path) -> None:
    """``make_directory`` succeeds if another process makes the directory at the same time."""

    def mkdir(path: str, mode: int) -> None:
        os.mkdir(path, mode)
        raise FileExistsError(path)

    make_directory(replace(DISK, mkdir=mkdir), str(tmp_path / "a"))
    sync_directory(DISK, str(tmp_path / "a"))


def test_nothing_is_made_in_a_directory_that_cannot_be_read(tmp_path: Path) -> None:
    """``make_directory`` makes nothing where it cannot make the name durable, so each call raises the same error."""

    def refuse(path: str, flags: int, _mode: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    for _ in range(2):
        with pytest.raises(PermissionError):
            make_directory(replace(DISK, open=refuse), str(tmp_path / "a"))
        assert not (tmp_path / "a").exists()


def test_directories_that_cannot_be_synced_are_passed_over(tmp_path: Path) -> None:
    """Names of a queue become durable below directories that cannot be synced: those of autofs, and of other users."""
    refused = {tmp_path: errno.EINVAL, tmp_path / "home": errno.EACCES, tmp_path / "home" / "user": errno.ENOENT}
    paths: dict[int, Path] = {}
    synced: list[Path] = []

    def opened(path: str, *arguments: int) -> int:
        fd = DISK.open(path, *arguments)
        paths[fd] = Path(path)
        return fd

    def fsync(fd: int) -> None:
        path = paths[fd]
        if path in refused:
            raise OSError(refused[path], os.strerror(refused[path]))
        synced.append(path)

    queues = tmp_path / "home" / "user" / "queues"
    queues.mkdir(parents=True)
    disk = replace(DISK, open=opened, fsync=fsync)
    sync_names(disk, str(queues))
    assert synced == [queues, *tmp_path.parents]
    refused[Path("/")] = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        sync_names(disk, str(queues))


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of a single name is taken to be in the working directory."""
    monkeypatch.chdir(tmp_path)
    make_directory(DISK, "here")
    assert (tmp_path / "here").is_dir()


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], Disk]:
    """Return a list of the lengths that files are cut to, and the disk that notes them. Steps have 1,000 bytes."""
    lengths: list[int] = []

    def cut(fd: int, size_bytes: int) -> None:
        lengths.append(size_bytes)
        DISK.ftruncate(fd, size_bytes)

    monkeypatch.setattr(files, "UNLINK_STEP_BYTES", 1000)
    return lengths, replace(DISK, ftruncate=cut)


@pytest.mark.parametrize(("size_bytes", "expected"), [(1000, []), (1001, [1]), (3500, [2500, 1500, 500])])
def test_a_large_file_is_deleted_in_steps(
    path: str, cuts: tuple[list[int], Disk], size_bytes: int, expected: list[int]
) -> None:
    """A file is cut step by step before its name goes, so that no sync waits for a large deletion."""
    Path(path).write_bytes(bytes(size_bytes))
    lengths, disk = cuts
    unlink_in_steps(disk, path)
    assert (lengths, os.path.exists(path)) == (expected, False)


def test_a_file_with_another_name_is_not_cut(path: str, tmp_path: Path, cuts: tuple[list[int], Disk]) -> None:
    """A file with another name loses only this name, and no byte."""
    Path(path).write_bytes(b"x" * 3500)
    os.link(path, tmp_path / "other")
    unlink_in_steps(cuts[1], path)
    assert (tmp_path / "other").read_bytes() == b"x" * 3500
    assert not os.path.exists(path)


def test_a_file_that_cannot_be_cut_is_deleted(path: str, cuts: tuple[list[int], Disk]) -> None:
    """A file that this process may not write, or for which it has no descriptor left, is deleted nevertheless."""

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    Path(path).write_bytes(bytes(3500))
    unlink_in_steps(replace(cuts[1], open=refuse), path)
    assert (cuts[0], os.path.exists(path)) == ([], False)

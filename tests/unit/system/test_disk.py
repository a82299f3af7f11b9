"""The access to the operating system: short reads and writes, paths, links, the portable disk, and low descriptors."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import portalocker
import pytest

from persistentqueue import PersistentQueue
from persistentqueue.system import disk as door
from persistentqueue.system.disk import (
    DISK,
    DSYNC,
    PORTABLE,
    Disk,
    join,
    make_directory,
    read_all,
    sync_directory,
    unlink_in_steps,
    write_all,
)
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, put, put_each

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
    fd = disk.open(path, door.CREATE_NEW, 0o600)
    expected = b"".join(buffers)
    write_all(writing, fd, buffers, len(expected), 5, flags)
    assert disk.pread(fd, 10_000, 0) == bytes(5) + expected
    disk.close(fd)


def test_write_that_accepts_nothing_is_an_error(path: str) -> None:
    """A write that takes no byte and reports no error raises an error, so that the writer does not hang."""
    fd = DISK.open(path, door.CREATE, 0o600)
    with pytest.raises(OSError, match="accepted no bytes"):
        write_all(replace(DISK, pwritev=lambda *_: 0), fd, [b"abc"], 3, 0)
    DISK.close(fd)


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_read_all_reads_all(at_once: int, path: str) -> None:
    """``read_all`` returns fewer bytes than requested only at the end of the file."""
    Path(path).write_bytes(b"0123456789")
    fd = DISK.open(path, door.READ, 0)
    reading = replace(DISK, pread=lambda fd, length, offset: os.pread(fd, min(length, at_once), offset))
    assert read_all(reading, fd, 4, 2) == b"2345"
    assert read_all(reading, fd, 100, 7) == b"789"
    assert read_all(reading, fd, 100, 10) == b""
    DISK.close(fd)


@pytest.mark.parametrize("disk", DISKS.values(), ids=DISKS)
def test_fallocate_extends_and_never_shrinks(disk: Disk, path: str) -> None:
    """Reserved bytes count into the size and read as zeros; a longer file stays as long as it is."""
    fd = disk.open(path, door.CREATE, 0o600)
    disk.fallocate(fd, 0, 100)
    assert (disk.fstat(fd).st_size, disk.pread(fd, 200, 0)) == (100, bytes(100))
    disk.fallocate(fd, 0, 10)
    assert disk.fstat(fd).st_size == 100
    disk.close(fd)


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EIO])
def test_file_system_without_fallocate(code: int, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is extended even if the file system cannot reserve space; any other failure is raised."""

    def refuse(*_: int) -> None:
        raise OSError(code, "refused")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    fd = DISK.open(path, door.CREATE, 0o600)
    if code == errno.EOPNOTSUPP:
        DISK.fallocate(fd, 0, 50)
        assert DISK.fstat(fd).st_size == 50
    else:
        with pytest.raises(OSError, match="refused"):
            DISK.fallocate(fd, 0, 50)
    DISK.close(fd)


@pytest.mark.parametrize("code", [None, errno.ENOTSUP, errno.EIO])
def test_full_sync_of_macos(code: int | None, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that empties the cache of the drive is used if the system has one; if it is not supported, a plain sync
    follows."""
    calls: list[str] = []

    def full_sync(fd: int, command: int) -> int:
        calls.append("full")
        if code is not None:
            raise OSError(code, "refused")
        return 0

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("plain"))
    if code == errno.EIO:
        with pytest.raises(OSError, match="refused"):
            PORTABLE.fdatasync(0)
    else:
        PORTABLE.fdatasync(0)
    assert calls == (["full", "plain"] if code == errno.ENOTSUP else ["full"])


@pytest.mark.parametrize(
    ("arguments", "said"), [((), None), (("why",), "why"), (("why", OSError(errno.ENOLCK, "no locks")), "no locks")]
)
def test_lock_that_is_refused(arguments: tuple[object, ...], said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that no process holds, and that the system refuses all the same, raises ``OSError`` with its reason."""

    def lock(*_: object) -> None:
        raise portalocker.LockException(*arguments)

    monkeypatch.setattr(portalocker, "lock", lock)
    with pytest.raises(OSError, match=said):
        DISK.lock(0)


def test_links_are_not_followed(tmp_path: Path) -> None:
    """A link in the place of a file or of a queue's directory is refused."""
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(OSError, match="link"):
        DISK.open(str(tmp_path / "link"), door.CREATE, 0o600)
    (tmp_path / "directory").mkdir()
    (tmp_path / "linked").symlink_to("directory")
    with pytest.raises(NotADirectoryError, match="a file or a link"):
        make_directory(DISK, str(tmp_path / "linked"))
    assert (tmp_path / "target").read_bytes() == b"precious"


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


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of a single name is taken to be in the working directory."""
    monkeypatch.chdir(tmp_path)
    make_directory(DISK, "here")
    assert (tmp_path / "here").is_dir()


@pytest.mark.parametrize("directory", ["", ".", "/", "//", "a", "a/", "/a/b", "../a b/"])
def test_paths_are_those_of_the_system(directory: str) -> None:
    """``join`` makes the path that the standard library makes."""
    assert join(directory, "name") == os.path.join(directory, "name")


def test_queue_on_the_portable_disk(open_queue: QueueFactory) -> None:
    """A queue works through the portable disk, and can be opened through the other disk in between."""
    queue = open_queue(disk=PORTABLE, log_bytes=4096, segment_bytes=1000)
    put_each(queue, [b"%d" % n for n in range(100)])
    crash(queue)
    queue = open_queue()
    put(queue, b"more" * 30_000)
    queue.close()
    queue = open_queue(disk=PORTABLE)
    assert drain(queue) == [b"%d" % n for n in range(100)] + [b"more" * 30_000]


def test_standard_streams_are_never_a_queues_file(tmp_path: Path) -> None:
    """With descriptors 0 to 2 closed, no file of a queue gets their numbers."""
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(door.__file__).parents[2])!r})
from persistentqueue import PersistentQueue
out = os.dup(1)
os.closerange(0, 3)
with PersistentQueue({str(tmp_path)!r}, "q") as queue:
    with queue.transaction() as session:
        session.enqueue(b"x")
    low = [n for n in range(3) if os.path.exists(f"/proc/self/fd/{{n}}")]
    os.write(out, repr(low).encode())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.stdout == b"[]"


def test_a_lock_whose_library_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first lock imports ``portalocker``; a process that can no longer read it learns what to do before."""
    monkeypatch.setitem(sys.modules, "portalocker", None)
    with pytest.raises(
        ImportError, match="import it before this process gives up rights or changes its root"
    ) as raised:
        PersistentQueue(tmp_path)
    assert raised.value.name == "portalocker"
    monkeypatch.undo()
    PersistentQueue(tmp_path).close()


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], Disk]:
    """Return a list of the lengths that files are cut to, and the disk that notes them. Steps have 1,000 bytes."""
    lengths: list[int] = []

    def cut(fd: int, size_bytes: int) -> None:
        lengths.append(size_bytes)
        DISK.ftruncate(fd, size_bytes)

    monkeypatch.setattr(door, "UNLINK_STEP_BYTES", 1000)
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

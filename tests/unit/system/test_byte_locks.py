"""Locks on single bytes: other open files see them, and they end with their process or their file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest

from persistentqueue.system.byte_locks import LockFile, is_locked

from ...support.limits import SECONDS
from ...support.queues import wait_for

FAR = 2**62 - 1


def seen(path: Path, *offsets: int) -> list[bool]:
    """Return which of these bytes are locked, as another open file sees it."""
    fd = os.open(path, os.O_RDWR)
    try:
        return [is_locked(fd, offset) for offset in offsets]
    finally:
        os.close(fd)


def test_each_byte_has_a_lock_of_its_own(tmp_path: Path) -> None:
    """Also bytes that the file does not have. Another open file gets no lock on the same byte, in one process, too."""
    locks, others = LockFile(str(tmp_path), "file"), LockFile(str(tmp_path), "file")
    assert [locks.lock(0), locks.lock(FAR), locks.lock(FAR)] == [True, True, True]
    assert [others.lock(0), others.lock(1)] == [False, True]
    assert seen(tmp_path / "file", 0, 1, 2, FAR - 1, FAR) == [True, True, False, False, True]
    locks.unlock(0)
    locks.unlock(5)
    assert [others.lock(0), others.lock(FAR)] == [True, False]
    del others
    assert seen(tmp_path / "file", 0, 1, FAR) == [False, False, True]
    locks.abandon()
    locks.unlock(FAR)
    assert seen(tmp_path / "file", FAR) == [False]
    assert (tmp_path / "file").stat().st_size == 0


def test_a_killed_process_frees_its_locks(tmp_path: Path) -> None:
    """The kernel does it, without a word of the process."""
    program = (
        "import sys, time; from persistentqueue.system.byte_locks import LockFile\n"
        "locks = LockFile(sys.argv[1], 'file'); print(locks.lock(7), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        assert seen(tmp_path / "file", 7) == [True]
        process.kill()
        process.wait()
    assert seen(tmp_path / "file", 7) == [False]


@pytest.mark.parametrize(("mode", "expected"), [(0o700, 0o600), (0o770, 0o660)])
def test_the_file_is_for_those_that_may_write_to_the_directory(tmp_path: Path, mode: int, expected: int) -> None:
    """A group that shares the directory shares the file, whatever the umask is."""
    tmp_path.chmod(mode)
    locks = LockFile(str(tmp_path), "file")
    before = os.umask(0o077)
    try:
        assert locks.lock(0)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == expected


@pytest.mark.parametrize("what", ["missing directory", "directory", "hard link", "link", "pipe"])
def test_no_lock_where_none_is_possible(tmp_path: Path, what: str) -> None:
    """Nothing is raised, no descriptor stays open, and no other file changes."""
    other, path = tmp_path / "other", tmp_path / "file"
    other.touch(mode=0o640)
    if what == "directory":
        path.mkdir()
    elif what == "hard link":
        path.hardlink_to(other)
    elif what == "link":
        path.symlink_to(other)
    elif what == "pipe":
        os.mkfifo(path)
    tmp_path.chmod(0o770)
    locks = LockFile(str(tmp_path / "missing" if what.startswith("missing") else tmp_path), "file")
    assert [locks.lock(0), locks.lock(0)] == [False, False]
    locks.unlock(0)
    assert other.stat().st_mode & 0o777 == 0o640


def is_free(path: Path) -> bool:
    """Return whether none of the first four bytes is locked."""
    return seen(path, 0, 1, 2, 3) == [False] * 4


def test_threads_that_open_the_file_at_once(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    """Each of them has its lock, all in one open file, and no descriptor stays open."""
    for number in range(20):
        locks, barrier = LockFile(str(tmp_path), f"file {number}"), Barrier(4)

        def lock(offset: int, locks: LockFile = locks, barrier: Barrier = barrier) -> bool:
            """Lock a byte when all threads are there."""
            barrier.wait(SECONDS)
            return locks.lock(offset)

        assert list(threads.map(lock, range(4))) == [True] * 4
        assert seen(tmp_path / f"file {number}", 0, 1, 2, 3) == [True] * 4
        del locks, lock
        wait_for(partial(is_free, tmp_path / f"file {number}"))


def test_the_file_takes_no_number_of_a_standard_stream(tmp_path: Path) -> None:
    """In a process without them, as some daemons are, a stray print would write into it."""
    program = (
        "import os, sys; from persistentqueue.system.byte_locks import LockFile\n"
        "for fd in (0, 2): os.close(fd)\n"
        "locks = LockFile(sys.argv[1], 'file'); assert locks.lock(0)\n"
        "print(sorted(locks._fds)[0] > 2, [fd for fd in (0, 2) if os.path.exists(f'/proc/self/fd/{fd}')])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "True []\n"


def test_owners_that_the_container_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the file cannot be given to the owners of the directory, its bytes are locked, and its mode is theirs."""

    def fail(*_: int) -> None:
        raise OSError(errno.EINVAL, "no such user here")

    monkeypatch.setattr(os, "fchown", fail)
    tmp_path.chmod(0o770)
    locks = LockFile(str(tmp_path), "file")
    assert locks.lock(7)
    locks.abandon()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o660


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_a_file_that_was_not_given_away_is_given_later(tmp_path: Path) -> None:
    """A process of root that ended behind the making of the file leaves it to the next one to share it."""
    directory = tmp_path / "queue"
    directory.mkdir()
    (directory / "file").touch(mode=0o600)
    os.chown(directory, 4711, 4712)
    directory.chmod(0o770)
    locks = LockFile(str(directory), "file")
    assert locks.lock(7)
    locks.abandon()
    found = (directory / "file").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (4711, 4712, 0o660)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_a_file_with_content_is_not_given_away(tmp_path: Path) -> None:
    """Root gives no file of its own away that may be another one, put there under this name."""
    directory = tmp_path / "queue"
    directory.mkdir()
    (directory / "file").write_bytes(b"secret")
    (directory / "file").chmod(0o600)
    os.chown(directory, 4711, 4712)
    locks = LockFile(str(directory), "file")
    assert locks.lock(7)
    locks.abandon()
    found = (directory / "file").stat()
    assert (found.st_uid, found.st_mode & 0o777) == (0, 0o600)

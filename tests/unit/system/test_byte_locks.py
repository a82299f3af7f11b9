"""Locks on single bytes: other open files see them, and they end with their process or their file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from persistentqueue.system.byte_locks import ByteLock, is_locked

FAR = 2**62 - 1


def seen(path: Path, *offsets: int) -> list[bool]:
    """Return which of these bytes are locked, as another open file sees it."""
    fd = os.open(path, os.O_RDWR)
    try:
        return [is_locked(fd, offset) for offset in offsets]
    finally:
        os.close(fd)


def test_each_byte_has_a_lock_of_its_own(tmp_path: Path) -> None:
    """Also bytes that the file does not have. A second lock on the same byte is refused, in one process, too."""
    locks = [ByteLock(str(tmp_path), "file", offset) for offset in (0, FAR)]
    for lock in locks:
        lock.hold()
        lock.hold()
    assert [lock.is_held for lock in locks] == [True, True]
    again = ByteLock(str(tmp_path), "file", 0)
    again.hold()
    assert [lock.is_held for lock in (again, *locks)] == [False, True, True]
    assert seen(tmp_path / "file", 0, 1, FAR - 1, FAR) == [True, False, False, True]
    locks[0].release()
    again.hold()
    assert [lock.is_held for lock in (again, *locks)] == [True, False, True]
    locks[1].close()
    locks[1].hold()
    assert seen(tmp_path / "file", 0, FAR) == [True, False]
    again.close()
    again.close()
    assert (tmp_path / "file").stat().st_size == 0


def test_a_killed_process_frees_its_locks(tmp_path: Path) -> None:
    """The kernel does it, without a word of the process."""
    program = (
        "import sys, time; from persistentqueue.system.byte_locks import ByteLock\n"
        "lock = ByteLock(sys.argv[1], 'file', 7); lock.hold(); print(lock.is_held, flush=True); time.sleep(600)"
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
    before = os.umask(0o077)
    try:
        lock = ByteLock(str(tmp_path), "file", 0)
        lock.hold()
    finally:
        os.umask(before)
    assert lock.is_held
    assert (tmp_path / "file").stat().st_mode & 0o777 == expected
    lock.close()


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
    lock = ByteLock(str(tmp_path / "missing" if what.startswith("missing") else tmp_path), "file", 0)
    lock.hold()
    assert not lock.is_held
    assert other.stat().st_mode & 0o777 == 0o640
    lock.close()


def test_a_lock_that_is_closed_meanwhile_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may close it while this one takes it."""
    lock = ByteLock(str(tmp_path), "file", 0)
    take = ByteLock._lock

    def late(self: ByteLock, fd: int) -> bool:
        """Let the other thread come first."""
        found = take(self, fd)
        self.close()
        return found

    monkeypatch.setattr(ByteLock, "_lock", late)
    lock.hold()
    assert not lock.is_held
    assert seen(tmp_path / "file", 0) == [False]

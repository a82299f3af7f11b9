"""One owner per queue: an exclusive lock of the kernel's on an open file that is never deleted.

Who holds it is never judged by what the file says: that is for the error message only. The kernel frees the lock with
the last descriptor of the open file, however its process ended; hence the descriptor is closed in a forked child.

The file also says which inode it is. A copy of the directory has another one: there the opening looks for the original
before it signs (see ``doubt.find_copy``).

The directory is opened before its lock file, and held as long as the lock (see ``roots``). The owner uses ``disk``, the
door of the lock: it reaches the directory that was locked, whatever becomes of its name.
"""

from __future__ import annotations

import errno
import json
from contextlib import suppress
from datetime import datetime, timezone
from functools import lru_cache
from stat import S_ISREG, filemode
from typing import Any, NamedTuple

from ..errors import QueueLockedError, UntrustedError, printable
from ..system.directory_handles import Roots
from ..system.disk import CREATE, DIRECTORY, NO_LINK, READ, Disk, StatResult, dirname, join, read_all, write_all

LOCK_NAME = "lock"
_OWNER_BYTES_MAX = 4096
_POLL_SECONDS = 0.01
_KERNEL_LOCKS = "/proc/locks"
_KERNEL_LOCKS_BYTES_MAX = 16 * 1024 * 1024
_LOOKS = 3
_PID_MAX = 2**32 - 1
_TEXT_CHARACTERS_MAX = 255
"""Most characters of a host's name, or of a time, that are believed."""
_NO_PLAIN_FILE = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV, errno.EMLINK})
"""Errors of an opening that meets no plain file."""


class Owner(NamedTuple):
    """Who has a queue open, as it described itself in the lock file; for people, since the lock is the kernel's."""

    pid: int
    host: str
    since: str
    """ISO 8601, UTC."""


@lru_cache(1)  # one process opens many queues in a second
def _signature(pid: int, host: str, since_seconds: int) -> str:
    since = datetime.fromtimestamp(since_seconds, timezone.utc).isoformat()
    return json.dumps({"pid": pid, "host": host, "since": since})[:-1]


class Lock:
    """The lock on a queue's directory, held from ``acquire`` to ``release``."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._directory = dirname(path) or "."
        self._fd: int | None = None
        self._inode = ""
        self.is_moved = False
        """Whether the file was not signed, or was signed as another one: the directory may be a copy."""
        self.roots = Roots(disk)
        """The directories that are held as long as the lock: that of the queue, and what its owner adds."""

    @property
    def disk(self) -> Disk:
        """The door of the owner: it reaches the held directories by their descriptors."""
        return self.roots.disk

    def is_named(self) -> bool:
        """Return whether the directory still has the name that it was opened by."""
        return self.roots.is_named(self._directory)

    def is_on(self, found: StatResult) -> bool:
        """Return whether this is the directory that is held."""
        return self.roots.is_held(self._directory, found)

    def is_deleted(self) -> bool:
        """Return whether the directory was deleted since it was opened."""
        return self.roots.is_deleted(self._directory)

    def hold_above(self, directory: str) -> None:
        """Hold the directory that a held one is in. Raises ``OSError``."""
        self.roots.hold(dirname(directory) or ".", through=join(directory, ".."))

    def acquire(self, timeout_seconds: float) -> None:
        """Take the lock, waiting for it up to ``timeout_seconds``, and say in the file who has it.

        ``is_moved`` is known then. For the next owner that stays as it is, until ``settle`` is called.

        Raises ``QueueLockedError``; the owner notices nothing. Raises ``UntrustedError`` if the lock is no plain file,
        or has another name too: then nothing is written to it.
        """
        deadline = self._disk.monotonic() + timeout_seconds
        while not self._try():
            if self._disk.monotonic() >= deadline:
                raise QueueLockedError(self.path, *(read_owner(self._disk, self.path) or (None, None, None)))
            self._disk.sleep(_POLL_SECONDS)
        assert self._fd is not None
        self.is_moved = _signed(self._disk, self._fd).get("inode") != self._inode
        self._sign("" if self.is_moved else self._inode)

    def settle(self) -> None:
        """Record that the directory is no copy of another one."""
        if self.is_moved and self._fd is not None:
            self._sign(self._inode)
            self.is_moved = False

    def release(self) -> None:
        """Free the lock. The file stays: unlinking it would let two owners hold two files of the same name."""
        self.roots.close()  # first: who gets the lock next finds no call of ours
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._disk.close(fd)

    def _try(self) -> bool:
        fd = -1
        try:
            self.roots.hold(self._directory, DIRECTORY | NO_LINK)
            fd = self._open()
            if self._disk.lock(fd) and self._is_named(fd) and self.is_named():
                found = self._disk.fstat(fd)
                _need_plain(self.path, found)
                self._inode = f"{found.st_ino:016x}"
                self._fd, fd = fd, -1  # last: what raises before frees the lock
                return True
        finally:
            if self._fd is None:
                self.roots.keep(())  # another directory may have the name at the next try
            if fd >= 0:
                self._disk.close(fd)
        return False

    def _open(self) -> int:
        """Open the lock file, or make it. Raises ``UntrustedError``."""
        with suppress(FileNotFoundError):
            _need_plain(self.path, self.disk.lstat(self.path))  # to open a device may do anything
        try:
            return self.disk.open(self.path, CREATE, 0o600)
        except OSError as error:
            if error.errno in _NO_PLAIN_FILE:  # it came behind that look
                raise _untrusted(self.path, str(error.strerror)) from error
            raise

    def _is_named(self, fd: int) -> bool:
        """Whether the open file still has the name: else the queue was deleted while we waited for it."""
        ours = self._disk.fstat(fd)
        try:
            named = self.disk.lstat(self.path)
        except FileNotFoundError:
            return False
        return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)

    def _sign(self, inode: str) -> None:
        assert self._fd is not None
        signature = _signature(self._disk.getpid(), self._disk.gethostname(), self._disk.time_ns() // 10**9)
        data = f'{signature}, "inode": "{inode}"}}'.encode()
        # A full disk must not keep anybody from dequeueing; the message of a second opener will be poorer.
        with suppress(OSError):
            self._disk.ftruncate(self._fd, 0)
            write_all(self._disk, self._fd, [data], len(data), 0)


def _need_plain(path: str, found: StatResult) -> None:
    """Raise ``UntrustedError`` unless this is a plain file with at most one name: it is to be written to."""
    if not S_ISREG(found.st_mode):
        raise _untrusted(path, filemode(found.st_mode))
    if found.st_nlink > 1:
        raise _untrusted(path, f"one with {found.st_nlink} names, of which another may be somebody's file")


def _untrusted(path: str, found: str) -> UntrustedError:
    advice = "nothing was written to it: look at it, and remove it while nobody has the queue open"
    return UntrustedError(path, "a plain file with one name as the lock", found, advice)


def read_owner(disk: Disk, path: str) -> Owner | None:
    """Return who has signed the lock file, and may have ended since; None if the file does not tell.

    The file may hold anything: its texts are returned printable and of bounded length.
    """
    try:
        if not S_ISREG(disk.lstat(path).st_mode):
            return None
        fd = disk.open(path, READ, 0)
        try:
            signed = _signed(disk, fd)
        finally:
            disk.close(fd)
        pid, texts = signed["pid"], (signed["host"], signed["since"])
    except (OSError, KeyError):
        return None
    if type(pid) is not int or not 0 < pid <= _PID_MAX or not all(isinstance(text, str) for text in texts):
        return None
    return Owner(pid, *(printable(text[:_TEXT_CHARACTERS_MAX]) for text in texts))


def _signed(disk: Disk, fd: int) -> dict[str, Any]:
    """What the lock file says; nothing if that is no signature. The file may hold anything."""
    with suppress(OSError, ValueError, RecursionError):
        signed = json.loads(read_all(disk, fd, _OWNER_BYTES_MAX, 0))
        if isinstance(signed, dict):
            return signed
    return {}


def is_held(disk: Disk, path: str) -> bool | None:
    """Whether the system shows that somebody holds the lock; None where it shows no locks, as only Linux does.

    Nobody notices: to try the lock would keep out, for a moment, who is about to take it. A process in another
    container may be hidden.
    """
    try:
        named = disk.lstat(path)
    except FileNotFoundError:
        return False
    owner = read_owner(disk, path)
    try:
        # The system shows them page by page, and between two pages one may slip through where others come and go.
        return any(_is_lock_on(line.split(), named, owner) for _ in range(_LOOKS) for line in _kernel_locks(disk))
    except OSError:
        return None


def _kernel_locks(disk: Disk) -> list[str]:
    fd = disk.open(_KERNEL_LOCKS, READ, 0)
    try:
        return read_all(disk, fd, _KERNEL_LOCKS_BYTES_MAX, 0).decode().splitlines()
    finally:
        disk.close(fd)


def _is_lock_on(fields: list[str], named: StatResult, owner: Owner | None) -> bool:
    """Whether a line such as ``1: FLOCK ADVISORY WRITE 4711 fe:00:815 0 EOF`` is of this file.

    Some file systems show another device here than ``stat`` does: there the process tells.
    """
    if len(fields) < 6 or fields[1] != "FLOCK":
        return False
    device, _, inode = fields[5].rpartition(":")
    major = (named.st_dev >> 8) & 0xFFF | (named.st_dev >> 32) & ~0xFFF
    minor = named.st_dev & 0xFF | (named.st_dev >> 12) & ~0xFF
    is_ours = owner is not None and fields[4] == str(owner.pid)
    return inode == str(named.st_ino) and (is_ours or device == f"{major:02x}:{minor:02x}")

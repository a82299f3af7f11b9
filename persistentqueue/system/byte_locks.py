"""Locks on single bytes of a file, which the kernel frees when the process that took them ends, however it ends.

The lock belongs to the open file, not to the process: it ends with the last descriptor of that file. So two open files
of one process see each other's locks, and a lock works between containers that share the file. Only Linux has such
locks. Elsewhere no byte is ever locked.
"""

from __future__ import annotations

import os
import struct
from stat import S_ISREG, S_IWGRP
from typing import Final

try:
    import fcntl
except ImportError:  # pragma: no cover - not a POSIX system
    fcntl = None  # type: ignore[assignment]

from .disk import LOWEST_DESCRIPTOR
from .path_errors import faults, suppress

_GET: Final = getattr(fcntl, "F_OFD_GETLK", 0)
_SET: Final = getattr(fcntl, "F_OFD_SETLK", 0)
_LOCKED: Final = getattr(fcntl, "F_WRLCK", 0)
_FREE: Final = getattr(fcntl, "F_UNLCK", 0)
_LOCK: Final = struct.Struct("hhqqi0q")
"""``struct flock``: type, whence, start, length, process."""
_FLAGS: Final = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_ALONE, _GROUP = 0o600, 0o660
_ROOT = 0


class LockFile:
    """A file whose bytes are locked. It is open from the first lock to the last reference. For any number of threads.

    A signal handler may raise between any two instructions. So the descriptor is opened and closed by one call of C
    code that also notes it.
    """

    __slots__ = ("_directory", "_fds", "_path")

    def __init__(self, directory: str, name: str) -> None:
        self._directory, self._path = directory, os.path.join(directory, name)
        self._fds: list[int] = []
        """The descriptor, and that of another thread that opened the file at the same time; empty before."""

    def __del__(self) -> None:
        with suppress(AttributeError):  # of an object that was interrupted before it had any descriptors
            self.abandon()

    def lock(self, offset: int) -> bool:
        """Lock the byte at this offset, which the file need not have. Return False if that is not possible.

        The file is made if it does not exist, for each user that may write to the directory.
        """
        try:
            if not self._fds and not self._open():
                return False
            self._set(_LOCKED, offset)
        except faults(OSError):  # the system lacks something, or the byte is locked
            return False
        except IndexError:  # the file was abandoned
            return False
        return True

    def unlock(self, offset: int) -> None:
        """Free the byte, if this object has locked it."""
        with suppress(OSError, IndexError):  # the file was abandoned, which has freed the byte
            self._set(_FREE, offset)

    def abandon(self) -> None:
        """Close the file. In a forked child, first: else its unlocks would be those of the parent. No other thread may
        use it."""
        while self._fds:
            with suppress(OSError):  # a close that fails has closed the file
                next(map(os.close, map(self._fds.pop, (0,))))

    def _open(self) -> bool:
        """Open the file; return False if it is no plain file with one name, which may belong to something else."""
        if not _SET:  # pragma: no cover - not Linux
            return False
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            with suppress(FileExistsError):  # another process makes it just now
                self._note(_FLAGS | os.O_CREAT | os.O_EXCL)
                self._share(os.stat(self._directory))
                return True
            found = os.lstat(self._path)
        if not S_ISREG(found.st_mode) or found.st_nlink != 1:
            return False
        self._note(_FLAGS)
        opened = os.fstat(self._fds[-1])
        if opened.st_uid == os.geteuid() and not opened.st_size:  # a process that made it may not have come so far
            self._share(os.stat(self._directory))
        return True

    def _share(self, directory: os.stat_result) -> None:
        """Give the empty file to the user and the group of the directory, also if root has made it."""
        fd, user = self._fds[-1], directory.st_uid if os.geteuid() == _ROOT else -1
        for owner in ((user, -1), (-1, directory.st_gid)):
            with suppress(OSError):  # this process is in no such group, or its container does not know them
                os.fchown(fd, *owner)
        if directory.st_mode & S_IWGRP:
            os.fchmod(fd, _GROUP)

    def _note(self, flags: int) -> None:
        next(map(self._fds.append, map(os.open, (self._path,), (flags,), (_ALONE,))))
        fd = self._fds[-1]
        if fd < LOWEST_DESCRIPTOR:  # a standard stream is closed, and a stray print would write into the file
            next(map(self._fds.append, map(fcntl.fcntl, (fd,), (fcntl.F_DUPFD_CLOEXEC,), (LOWEST_DESCRIPTOR,))))
            self._fds.remove(fd)
            os.close(fd)

    def _set(self, kind: int, offset: int) -> None:
        fcntl.fcntl(self._fds[0], _SET, _LOCK.pack(kind, os.SEEK_SET, offset, 1, 0))


def is_locked(fd: int, offset: int) -> bool:
    """Return whether another open file has a lock on the byte at this offset. Raises ``OSError``."""
    if not _GET:  # pragma: no cover - not Linux
        return False
    found: tuple[int, ...] = _LOCK.unpack(fcntl.fcntl(fd, _GET, _LOCK.pack(_LOCKED, os.SEEK_SET, offset, 1, 0)))
    return found[0] != _FREE

"""Locks on single bytes of a file, which the kernel frees when the process that took them ends, however it ends.

The lock belongs to the open file, not to the process: it ends with the last descriptor of that file. So two threads of
one process see each other's locks, and a lock works between containers that share the file. Only Linux has such locks.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from stat import S_ISREG, S_IWGRP
from typing import Final

try:
    import fcntl
except ImportError:  # pragma: no cover - not a POSIX system
    fcntl = None  # type: ignore[assignment]

_LOCK: Final = struct.Struct("hhqqi0q")
"""``struct flock``: type, whence, start, length, process."""
_FLAGS: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_ALONE, _GROUP = 0o600, 0o660


class ByteLock:
    """A lock on one byte of a file. For one thread at a time; only ``close`` is for any thread.

    A signal handler may raise between any two instructions. So each descriptor is opened and closed by one call of C
    code that also notes it.
    """

    __slots__ = ("_directory", "_fds", "_is_closed", "_name", "_offset")

    def __init__(self, directory: str, name: str, offset: int) -> None:
        self._directory, self._name, self._offset = directory, name, offset
        self._fds: list[int] = []
        """The descriptor of the file; empty without a lock."""
        self._is_closed = False

    @property
    def is_held(self) -> bool:
        """Whether the byte is locked, by this object."""
        return bool(self._fds)

    def hold(self) -> None:
        """Lock the byte, which the file need not have; make the file if it does not exist.

        Each user that may write to the directory may use the file. Where no lock is possible, do nothing.
        """
        if self._fds or self._is_closed:
            return
        is_locked = False
        try:
            path = os.path.join(self._directory, self._name)
            next(map(self._fds.append, map(os.open, (path,), (_FLAGS,), (_ALONE,))))
            is_locked = self._lock(self._fds[0])
        except (OSError, IndexError):  # the system lacks something, or another thread has closed it
            pass
        finally:
            if not is_locked or self._is_closed:
                self.release()

    def _lock(self, fd: int) -> bool:
        found = os.fstat(fd)
        if not S_ISREG(found.st_mode) or found.st_nlink != 1:  # it may belong to something else
            return False
        if not found.st_mode & S_IWGRP and os.stat(self._directory).st_mode & S_IWGRP:
            os.fchmod(fd, _GROUP)
        if not hasattr(fcntl, "F_OFD_SETLK"):  # pragma: no cover - not Linux
            return False
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, self._offset, 1, 0))
        return True

    def release(self) -> None:
        """Free the byte."""
        with suppress(IndexError, OSError):  # another thread has freed it; a close that fails has closed the file
            while self._fds:
                next(map(os.close, map(self._fds.pop, (0,))))

    def close(self) -> None:
        """Free the byte for good. For any thread."""
        self._is_closed = True  # first: another thread may be in ``hold``
        self.release()


def is_locked(fd: int, offset: int) -> bool:
    """Return whether another open file has a lock on the byte at this offset. Raises ``OSError``."""
    if not hasattr(fcntl, "F_OFD_GETLK"):  # pragma: no cover - not Linux
        return False
    asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
    return bool(_LOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)

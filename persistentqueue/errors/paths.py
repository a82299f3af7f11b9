"""Errors of paths that the operating system refuses: each is also the built-in error."""

from __future__ import annotations

import errno
from typing import Final

from .base import PersistentQueueError

ADVICE: Final = {
    errno.ENOTDIR: "give the path of a directory, not of a file or of a link to a directory",
    errno.EISDIR: "move the directory away: a file belongs there",
    errno.EACCES: "change its owner or its mode, or those of its directory, or run as its owner",
    errno.EPERM: "change its owner or its mode, or those of its directory, or run as its owner",
    errno.EROFS: "mount the file system for writing, or read the queue with a View",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ELOOP: "remove the symbolic links that lead to each other",
    errno.ENOLCK: "use a file system that has locks; one over a network needs its lock service",
    errno.ENOENT: "correct the path, or make the directories that it names",
}
"""Advice for each error number that the operating system reports about the path of a queue."""


class UnusablePathError(PersistentQueueError, OSError):
    """The operating system refuses a path when a queue is opened, inspected, repaired, moved or deleted.

    Committed data is unchanged. Make the path usable, or name another. Each subclass is also the matching built-in
    error, so that ``except PermissionError`` catches it.

    Attributes:
        errno: The error number of the original ``OSError``.
        strerror: The text of the original ``OSError``.
        filename: The path that was refused.
    """

    def __str__(self) -> str:
        """Return the path, the reason of the operating system, and what to do."""
        return f"{self.filename}: {self.strerror}: {ADVICE.get(self.errno or 0, 'make the path usable')}"

    @property
    def path(self) -> str:
        """The path that was refused."""
        return str(self.filename)


class PathDeniedError(UnusablePathError, PermissionError):
    """This process has no permission to use the path.

    Change the owner or the mode of the path, or run as its owner. The attributes are those of ``UnusablePathError``.
    """


class PathMissingError(UnusablePathError, FileNotFoundError):
    """The path does not exist and cannot be made.

    Make its parent directory, or give a path on a writable file system. The attributes are those of
    ``UnusablePathError``.
    """


class PathNotADirectoryError(UnusablePathError, NotADirectoryError):
    """The path must be a directory, and is a file or a link.

    Give the path of a directory. The attributes are those of ``UnusablePathError``.
    """


class PathIsADirectoryError(UnusablePathError, IsADirectoryError):
    """The path must be a file, and is a directory.

    Move the directory away. The attributes are those of ``UnusablePathError``.
    """

"""What is believed of what a directory holds: plain files.

A pipe, a socket, a device, a directory or a link in the place of a queue's file is never opened: to open a device may
do anything, and to read a pipe waits for a writer. It is damage like any other, so that ``repair`` sets it aside.
"""

from __future__ import annotations

from contextlib import suppress
from stat import S_ISREG, filemode

from .disk import Disk
from .errors import CorruptionError


def open_plain(disk: Disk, path: str, flags: int, mode: int = 0) -> int:
    """Open a plain file, or make it if ``flags`` say so; return the descriptor.

    Raises:
        CorruptionError: Something else has the name.
        OSError: The file cannot be opened; ``FileNotFoundError`` if there is none.
    """
    with suppress(FileNotFoundError):  # the opening says so, or makes it
        need_regular(disk, path)
    return disk.open(path, flags, mode)


def need_regular(disk: Disk, path: str) -> int:
    """Return the size of a plain file, in bytes. Raises ``CorruptionError`` for anything else, and ``OSError``."""
    found = disk.lstat(path)
    if not S_ISREG(found.st_mode):
        raise CorruptionError(path, 0, "a regular file", filemode(found.st_mode))
    return found.st_size

"""The rules for which files and directories a process believes: plain files, of its own user or of root.

A user that prepares a queue's directory for another user decides what the next owner reads, deletes and serves. This
concerns the directory, its parts, and the files in it that say where everything is. They are *believed* only if

- they belong to the effective user of this process, or to root, and
- others may not write to them. A directory with the sticky bit is an exception: there others can only add names.

The right of a *group* to write is believed. Only the user that the files belong to can have given it, for instance to
share the inbox. For root the directory of another user is foreign, too. Calls that only read (``View``, ``check``) open
it. Calls that take the lock or publish need ``trust=True``. If a system has no users, everything is believed.

A pipe, a socket, a device, a directory or a link in the place of a queue's file is never opened. To open a device may
have any effect, and to read a pipe waits for a writer. It is damage like any other, so ``repair`` sets it aside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from stat import S_ISDIR, S_ISLNK, S_ISREG, S_ISVTX, S_IWOTH, filemode

from ..errors import CorruptionError, UntrustedError
from .disk import Disk, StatResult
from .path_errors import ABSENT

_ROOT = 0
_ADVICE = (
    "inspect it; then give it to this user (chown), take the right to write from others (chmod o-w), or accept it with "
    "trust=True"
)


def open_plain(disk: Disk, path: str, flags: int) -> int:
    """Open a plain file, and return the descriptor.

    Raises ``CorruptionError`` if the path is not a plain file. Raises ``OSError`` if the file cannot be opened, and
    ``FileNotFoundError`` if it is missing.
    """
    need_regular(disk, path)
    return disk.open(path, flags, 0)


@contextmanager
def opened_plain(disk: Disk, path: str) -> Iterator[int]:
    """Open a plain file to read it, for the length of the block. Raises the errors of ``open_plain``."""
    need_regular(disk, path)
    with disk.opened(path) as fd:
        yield fd


def need_regular(disk: Disk, path: str) -> int:
    """Return the size of a plain file, in bytes. Raises ``CorruptionError`` if it is not one, and ``OSError``."""
    return regular_bytes(disk.lstat(path), path)


def regular_bytes(found: StatResult, path: str) -> int:
    """Return the size of what was found at the path, in bytes. Raises ``CorruptionError`` if it is not a plain file."""
    if not S_ISREG(found.st_mode):
        raise CorruptionError(path, 0, "a regular file", filemode(found.st_mode))
    return found.st_size


def need_trusted(disk: Disk, paths: Iterable[str]) -> None:
    """Raise ``UntrustedError`` for the first of these paths that is not believed. Missing paths are skipped."""
    for error in distrusted(disk, paths):
        raise error


def distrusted(disk: Disk, paths: Iterable[str]) -> Iterator[UntrustedError]:
    """Yield an error for each of the paths that is not believed, with the reason."""
    user = disk.geteuid()
    for path in paths:
        try:
            found = disk.lstat(path)
        except ABSENT:
            continue
        if user is not None and found.st_uid not in {user, _ROOT}:
            yield UntrustedError(path, f"an owner that is user {user} or root", f"user {found.st_uid}", _ADVICE)
        elif user is not None and _is_writable_to_others(found):
            yield UntrustedError(path, "no right for others to write", filemode(found.st_mode), _ADVICE)


def _is_writable_to_others(found: StatResult) -> bool:
    """Return whether others may replace what is at the path. The mode of a link means nothing."""
    is_sticky = S_ISDIR(found.st_mode) and bool(found.st_mode & S_ISVTX)
    return bool(found.st_mode & S_IWOTH) and not is_sticky and not S_ISLNK(found.st_mode)

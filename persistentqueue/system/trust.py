"""The rules for which files and directories a process believes: plain files, of its own user or of root, without bad
pages.

A user that prepares a queue's directory for another user decides what the next owner reads, deletes and serves. This
concerns the directory, its parts, and the files in it that say where everything is. They are *believed* only if

- they belong to the effective user of this process, or to root, and
- others may not write to them. A directory with the sticky bit is an exception: there others can only add names.

The right of a *group* to write is believed. Only the user that the files belong to can have given it, for instance to
share the inbox. For root the directory of another user is foreign, too. Calls that only read (``View``, ``check``) open
it. Calls that take the lock or publish need ``trust=True``. If a system has no users, everything is believed.

A pipe, a socket, a device, a directory or a link in the place of a queue's file is never opened. To open a device may
have any effect, and to read a pipe waits for a writer. It is damage like any other, so ``repair`` sets it aside.

A *bad page* is a page of a file that the device cannot read. Linux reports it as ``EIO``, also if a checksum of the
file system does not agree. It is damage of what needs its bytes. A read of many pages fails because of one of them, so
after a failure each page is read by itself.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from stat import S_ISDIR, S_ISLNK, S_ISREG, S_ISVTX, S_IWOTH, filemode

from ..errors import CorruptionError, UntrustedError
from .disk import PAGE_BYTES, Disk, StatResult, copy_file, read_all

_ROOT = 0
_ADVICE = (
    "inspect it; then give it to this user (chown), take the right to write from others (chmod o-w), or accept it with "
    "trust=True"
)


def open_plain(disk: Disk, path: str, flags: int, mode: int = 0) -> int:
    """Open a plain file, or make it if ``flags`` say so; return the descriptor.

    Raises ``CorruptionError`` if the path is not a plain file. Raises ``OSError`` if the file cannot be opened, and
    ``FileNotFoundError`` if it is missing.
    """
    with suppress(FileNotFoundError):  # the opening below raises this, or makes the file
        need_regular(disk, path)
    return disk.open(path, flags, mode)


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
        except (FileNotFoundError, NotADirectoryError):
            continue
        if user is not None and found.st_uid not in {user, _ROOT}:
            yield UntrustedError(path, f"an owner that is user {user} or root", f"user {found.st_uid}", _ADVICE)
        elif user is not None and _is_writable_to_others(found):
            yield UntrustedError(path, "no right for others to write", filemode(found.st_mode), _ADVICE)


def _is_writable_to_others(found: StatResult) -> bool:
    """Return whether others may replace what is at the path. The mode of a link means nothing."""
    is_sticky = S_ISDIR(found.st_mode) and bool(found.st_mode & S_ISVTX)
    return bool(found.st_mode & S_IWOTH) and not is_sticky and not S_ISLNK(found.st_mode)


def is_unreadable(error: OSError) -> bool:
    """Return whether a read failed because the device cannot read what it was asked for."""
    return error.errno == errno.EIO


def read_needed(disk: Disk, fd: int, length_bytes: int, offset: int, path: str, consequence: str = "") -> bytes:
    """Return what ``read_all`` returns. Raises ``CorruptionError`` for the first page that cannot be read twice."""
    try:
        return read_all(disk, fd, length_bytes, offset)
    except OSError as error:
        if not is_unreadable(error):
            raise
        pages: list[bytes] = []
        for at, _, data in _pages(disk, fd, length_bytes, offset):
            if data is None:
                raise CorruptionError(path, at, "bytes that can be read", f"{error.strerror}", consequence) from error
            pages.append(data)
        return b"".join(pages)


def read_around(disk: Disk, fd: int, length_bytes: int, offset: int) -> bytes:
    """Return what ``read_all`` returns, with zeros in place of the pages that cannot be read."""
    try:
        return read_all(disk, fd, length_bytes, offset)
    except OSError as error:
        if not is_unreadable(error):
            raise
    pages = _pages(disk, fd, length_bytes, offset)
    return b"".join(bytes(end - start) if data is None else data for start, end, data in pages)


def copy_around(disk: Disk, source_path: str, target_path: str) -> bool:
    """Copy the file like ``copy_file``, with zeros in place of the pages that cannot be read; return whether there are
    any.
    """
    is_whole = True

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        """Read as ``disk.pread`` does, but around bad pages, and note them."""
        nonlocal is_whole
        try:
            return disk.pread(fd, length_bytes, offset)
        except OSError as error:
            if not is_unreadable(error):
                raise
        is_whole = False
        return read_around(disk, fd, min(length_bytes, disk.fstat(fd).st_size - offset), offset)

    copy_file(replace(disk, pread=pread), source_path, target_path)
    return not is_whole


def _pages(disk: Disk, fd: int, length_bytes: int, offset: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield the start, the end and the bytes of each page in this range; None for the bytes that cannot be read."""
    at, end = offset, offset + length_bytes
    while at < end:
        stop = min(at - at % PAGE_BYTES + PAGE_BYTES, end)
        data: bytes | None = None
        try:
            data = read_all(disk, fd, stop - at, at)
        except OSError as error:
            if not is_unreadable(error):
                raise
        yield at, stop, data
        if data is not None and len(data) < stop - at:
            return  # the file ends here
        at = stop

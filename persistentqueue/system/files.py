"""Steps of several calls of the disk: whole writes and reads, durable names, wiping, and deletion little by little.

A call of the kernel may leave work undone: it writes or reads less than it was asked for. A name is durable only when
its directory has been synced. The functions here carry each step out to its end.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from .disk import DIRECTORY, READ, WRITE, Buffers, Disk, dirname
from .path_errors import faults, suppress

_BUFFERS_PER_CALL = 1024
"""A call takes at most this many buffers (``IOV_MAX`` on Linux)."""
_ZEROS = bytes(1024 * 1024)


def write_all(disk: Disk, fd: int, buffers: Buffers, length_bytes: int, offset: int, flags: int = 0) -> None:
    """Write the buffers, ``length_bytes`` in all, one after the other at ``offset``.

    Usually this is one call of the kernel. With ``DSYNC`` in ``flags`` all bytes are durable on return.
    """
    written_bytes = disk.pwritev(fd, buffers, offset, flags) if len(buffers) <= _BUFFERS_PER_CALL else 0
    if written_bytes != length_bytes:
        _write_rest(disk, fd, buffers, offset, flags, written_bytes)


def _write_rest(disk: Disk, fd: int, buffers: Buffers, offset: int, flags: int, written_bytes: int) -> None:
    """Continue after a short write, or write more buffers than one call takes."""
    views: list[memoryview] = []
    skip_bytes = written_bytes
    for buffer in buffers:
        view = memoryview(buffer)
        if skip_bytes < len(view):
            views.append(view[skip_bytes:])
            skip_bytes = 0
        else:
            skip_bytes -= len(view)
    start = 0
    while start < len(views):
        chunk = views[start : start + _BUFFERS_PER_CALL]
        count_bytes = disk.pwritev(fd, chunk, offset + written_bytes, flags)
        if count_bytes == 0:
            raise OSError(errno.EIO, "a write accepted no bytes")
        written_bytes += count_bytes
        while start < len(views) and count_bytes >= len(views[start]):
            count_bytes -= len(views[start])
            start += 1
        if count_bytes:
            views[start] = views[start][count_bytes:]


def read_all(disk: Disk, fd: int, length_bytes: int, offset: int) -> bytes:
    """Read ``length_bytes`` at ``offset``. Return fewer bytes only if the file ends before."""
    data = disk.pread(fd, length_bytes, offset)
    if len(data) == length_bytes or not data:
        return data
    parts = [data]
    have_bytes = len(data)
    while have_bytes < length_bytes:
        data = disk.pread(fd, length_bytes - have_bytes, offset + have_bytes)
        if not data:
            break
        parts.append(data)
        have_bytes += len(data)
    return b"".join(parts)


def write_zeros(disk: Disk, fd: int, start: int, end: int) -> None:
    """Write zeros to ``start … end`` of the file, not durably. The system begins to write them at once."""
    for at in range(start, end, len(_ZEROS)):
        chunk = _ZEROS[: end - at]
        write_all(disk, fd, [chunk], len(chunk), at)
        disk.start_sync(fd, at, len(chunk))


def wipe_file(disk: Disk, path: str) -> None:
    """Overwrite all bytes of the file with zeros, durably. Old copies that the device itself keeps are not reached.

    A file with several names is not overwritten: a power cut can bring an old name back for a file that is still
    needed.
    """
    with disk.opened(path, WRITE) as fd:
        found = disk.fstat(fd)
        write_zeros(disk, fd, 0, found.st_size if found.st_nlink == 1 else 0)
        disk.fdatasync(fd)


_PASSED_OVER = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOENT})
"""Errors of the sync of a directory that has no names to be made durable, or that was renamed meanwhile."""
UNLINK_STEP_BYTES = 1024 * 1024
"""Bytes of a file that are given back at once."""


def unlink_in_steps(disk: Disk, path: str) -> None:
    """Delete a file that nothing needs any more, a large one little by little. Raises ``OSError`` of the last step.

    A file system gives back all blocks of a deleted file in one transaction of its journal. Each sync waits for the end
    of that: 20 ms for 64 MiB on ext4. A file with several names is deleted in one step: a power cut can bring an old
    name back for a file that is still needed. So is a file that this process may not write.
    """
    if disk.lstat(path).st_size > UNLINK_STEP_BYTES:
        with suppress(OSError), disk.opened(path, WRITE) as fd:
            found = disk.fstat(fd)
            if found.st_nlink == 1:
                for size_bytes in range(found.st_size - UNLINK_STEP_BYTES, 0, -UNLINK_STEP_BYTES):
                    disk.ftruncate(fd, size_bytes)
    disk.unlink(path)


def sync_directory(disk: Disk, path: str) -> None:
    """Make the names in the directory durable: that new ones exist, and that removed ones do not."""
    with names_of(disk, path) as sync:
        sync()


@contextmanager
def names_of(disk: Disk, path: str) -> Iterator[Callable[[], None]]:
    """Yield a call that makes the names in the directory durable, and needs no new descriptor.

    A step that must not fail for lack of a descriptor opens the directory before it begins.
    """
    with disk.opened(path, READ | DIRECTORY) as fd:
        yield partial(disk.fsync, fd)


def make_directory(disk: Disk, path: str) -> None:
    """Make the directory and its missing parents, with mode 0700, and make their names durable.

    Raises ``NotADirectoryError`` if a file or a link is in the place of the directory itself.
    """
    if not _has_directory(disk, path):
        _make_missing(disk, path)


def make_parts(disk: Disk, paths: Iterable[str]) -> list[str]:
    """Make the missing directories among these, whose parents exist, and return the directories to sync for their
    names.

    Raises ``NotADirectoryError`` like ``make_directory``.
    """
    missing = [path for path in paths if not _has_directory(disk, path)]
    for path in missing:
        _make(disk, path)
    return list(dict.fromkeys(dirname(path) or "." for path in missing))


def _has_directory(disk: Disk, path: str) -> bool:
    try:
        mode = disk.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, "expected a directory, found a file or a link", path)
    return True


def _make(disk: Disk, path: str) -> None:
    with suppress(FileExistsError):  # another process has made it meanwhile
        disk.mkdir(path, 0o700)


def _make_missing(disk: Disk, path: str) -> None:
    above = dirname(path.rstrip("/")) or "."
    try:
        disk.lstat(above)
    except FileNotFoundError:
        _make_missing(disk, above)
    with names_of(disk, above) as sync:  # first: a directory that cannot be opened cannot be synced, so it gets nothing
        _make(disk, path)
        sync()


def sync_names(disk: Disk, path: str) -> None:
    """Make durable the names in the directory, its own name, and those of its parents.

    For directories that exist already: their maker may have been killed before their names were durable. A directory
    that this process may not read was not made by this package, and is passed over. So is one of a file system that
    cannot sync: that of autofs above the homes of users, for example, has its names in memory only.
    """
    while True:
        try:
            sync_directory(disk, path)
        except faults(OSError) as error:
            if error.errno not in _PASSED_OVER:
                raise
        above = dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")
        if path in {"/", "."}:
            return
        path = above

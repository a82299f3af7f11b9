"""Bad pages: pages of a file that the device cannot read, and reads that lose no other page for them.

Linux reports a bad page as ``EIO``, also if a checksum of the file system does not agree. It is damage of what needs
its bytes. A read of many pages fails because of one of them, so after a failure each page is read by itself.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from stat import S_ISREG

from ..errors import CorruptionError
from .disk import CREATE_NEW, PAGE_BYTES, Disk
from .files import read_all, write_all
from .path_errors import faults
from .progress import SILENT, Meter

_STEP_BYTES = 1024 * 1024
"""Bytes that a copy reads and writes at once."""


def is_unreadable(error: OSError) -> bool:
    """Return whether a read failed because the device cannot read what it was asked for."""
    return error.errno == errno.EIO


def read_needed(disk: Disk, fd: int, length_bytes: int, offset: int, path: str, consequence: str = "") -> bytes:
    """Return what ``read_all`` returns. Raises ``CorruptionError`` for the first page that cannot be read twice."""
    try:
        return read_all(disk, fd, length_bytes, offset)
    except faults(OSError) as error:
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
    except faults(OSError) as error:
        if not is_unreadable(error):
            raise
    pages = _pages(disk, fd, length_bytes, offset)
    return b"".join(bytes(end - start) if data is None else data for start, end, data in pages)


def copy_file(disk: Disk, source_path: str, target_path: str, meter: Meter = SILENT) -> int:
    """Copy the file to a new one and return its length in bytes. Raises ``FileExistsError``.

    The content of the copy is durable on return, its name is not.
    """
    offset = 0
    with disk.opened(source_path) as source, disk.opened(target_path, CREATE_NEW, 0o600) as target:
        while data := disk.pread(source, _STEP_BYTES, offset):
            write_all(disk, target, [data], len(data), offset)
            offset += len(data)
            meter.advance(len(data))
        disk.fdatasync(target)
    return offset


def is_copy(disk: Disk, path: str, other_path: str) -> bool:
    """Return whether the other file is a copy of this one, and not another name of it; the copy is then durable.

    A file that cannot be read, or not as a whole, is none.
    """
    found, other = disk.lstat(path), disk.lstat(other_path)
    if found.st_ino == other.st_ino or found.st_size != other.st_size or not S_ISREG(other.st_mode):
        return False
    with disk.opened(path) as source:
        try:
            with disk.opened(other_path) as target:
                for at in range(0, found.st_size, _STEP_BYTES):
                    if read_all(disk, source, _STEP_BYTES, at) != read_all(disk, target, _STEP_BYTES, at):
                        return False
                disk.fdatasync(target)
        except faults(OSError) as error:
            if not (is_unreadable(error) or isinstance(error, PermissionError)):
                raise
            return False
    return True


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
        except faults(OSError) as error:
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
        except faults(OSError) as error:
            if not is_unreadable(error):
                raise
        yield at, stop, data
        if data is not None and len(data) < stop - at:
            return  # the file ends here
        at = stop

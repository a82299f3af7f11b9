"""The pool of empty files that become segments, and the spare file that becomes the next generation of the log.

A file that was written before changes neither its size nor its map of blocks when it is written again. So its sync is
cheaper, and it needs no new space on a disk that is filling up. The idea is the Empty File Pool of the linearstore.

**The pool.** A retired segment goes to the pool instead of being deleted, if the pool stays within its upper bound.
``fill`` makes files up to the lower bound: in the queue's own idle time, or from outside. The name tells the size:
``<bytes>-<random>.free``. While a file is being filled, its name ends in ``.part`` instead, and it is locked. So the
remains of a killed process are told from a file that is still being filled.

All state is in the directory, and each step is one rename. So any number of queues and processes may share a pool.
Nothing in it is trusted. Only a plain file of the named size with one name is taken, and ``clean`` removes any other: a
power cut may bring an old name back beside the name of a live segment. The content of a file does not matter, since a
segment gets a new salt. Files with other names do not belong to the pool, and are left alone.

**The spare.** One spare is always kept. So the log can be trimmed when the disk is full, and with it items can be
dequeued. Its bytes were written before. So a sync of it is cheaper, as for the files of the pool. Its content does not
matter, since a generation is written under a new salt.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import suppress
from stat import S_ISREG, filemode
from typing import NamedTuple

from ..system.disk import CREATE, CREATE_NEW, NO_SPACE, WRITE, Disk, StatResult, join
from ..system.event_log import LOGGER
from ..system.files import wipe_file, write_zeros
from ..system.path_errors import faults, unless_lacking
from ..system.quota import OverLimitError, Quota

SIZE_BYTES_MAX = 10**12 - 1
"""The largest size that a name can tell, in bytes."""
SUFFIX = ".free"
PART_SUFFIX = ".part"
_NAME = re.compile(r"([0-9]{12})-[0-9a-f]{16}(\.free|\.part)", re.ASCII)


class Empty(NamedTuple):
    """A file of the pool."""

    size_bytes: int
    name: str


def parse_pool_name(name: str) -> int | None:
    """Return the size in the name of a pooled file; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def _is_sound(found: StatResult, size_bytes: int) -> bool:
    return S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_size == size_bytes


class Pool:
    """A directory of empty files.

    For any thread, and for several processes at once. Then the pool may miss its bounds by a file.
    """

    def __init__(self, disk: Disk, directory: str, max_bytes: int) -> None:
        self._disk = disk
        self.directory = directory
        self.max_bytes = max_bytes
        self.taken = 0
        """The number of files that were taken."""

    def files(self) -> list[Empty]:
        """Return the files that may be taken, smallest first."""
        found = []
        for name in self._names():
            size_bytes = parse_pool_name(name)
            if size_bytes is not None and name.endswith(SUFFIX):
                found.append(Empty(size_bytes, name))
        return sorted(found)

    def size_bytes(self) -> int:
        """Return the length of all files that may be taken, in bytes."""
        return sum(each.size_bytes for each in self.files())

    def take(self, path: str, least_bytes: int, most_bytes: int) -> int | None:
        """Rename the largest file within these bounds to ``path``, where there is no file yet.

        Returns its length, or None if there is no such file. The rename is not durable. Raises ``OSError``.
        """
        for size_bytes, name in reversed(self.files()):
            if not least_bytes <= size_bytes <= most_bytes:
                continue
            source = join(self.directory, name)
            with suppress(FileNotFoundError):  # another process took it first
                if not (_is_sound(self._disk.lstat(source), size_bytes) and self._is_ours(source)):
                    self._remove(name)
                    continue
                self._disk.rename(source, path)
                self.taken += 1
                return size_bytes
        return None

    def give(self, path: str) -> bool:
        """Take the unneeded file at ``path`` into the pool. Return False if the pool has no room or no use for it.

        Smaller files are deleted to make room for it. Raises ``OSError``.
        """
        found = self._disk.lstat(path)
        size_bytes = found.st_size
        if not 0 < size_bytes <= self.max_bytes or not _is_sound(found, size_bytes):
            return False
        files = self.files()
        room_bytes = self.max_bytes - sum(each.size_bytes for each in files)
        smaller = [each for each in files if each.size_bytes < size_bytes]
        if room_bytes + sum(each.size_bytes for each in smaller) < size_bytes:
            return False
        for each in smaller:
            if room_bytes < size_bytes and self._remove(each.name):
                room_bytes += each.size_bytes
        if room_bytes < size_bytes:
            return False
        self._disk.rename(path, join(self.directory, self._new_name(size_bytes, SUFFIX)))
        return True

    def fill(self, min_bytes: int, file_bytes: int) -> Iterator[int]:
        """Make files of this size, and yield their lengths, until the pool has ``min_bytes`` or another file would
        exceed its bound.

        A yielded file is written durably, but its name is not durable. Raises ``ResourceError`` and ``OSError``; then
        no unfinished file is left.
        """
        with unless_lacking(self.directory, "to fill the pool", "then fill it again"):
            while (size_bytes := self.size_bytes()) < min_bytes and size_bytes + file_bytes <= self.max_bytes:
                # Else each try, one a second in a busy queue, would fill the disk with zeros, and take them back.
                # A file system that does not know its free space reports 0.
                if 0 < self._disk.free_bytes(self.directory) < file_bytes:
                    raise OSError(errno.ENOSPC, "no room for another file", self.directory)
                part = join(self.directory, self._new_name(file_bytes, PART_SUFFIX))
                if self._make(part, file_bytes):
                    yield file_bytes

    def _make(self, part: str, size_bytes: int) -> bool:
        """Make a file, first under the name ``part``. Return False if another process removed it."""
        with self._disk.opened(part, CREATE_NEW, 0o600) as fd:
            try:
                if not self._disk.lock(fd) or not self._disk.fstat(fd).st_nlink:
                    return False  # another process removed it before the lock, or is removing it
                write_zeros(self._disk, fd, 0, size_bytes)
                self._disk.fdatasync(fd)
                self._disk.rename(part, part.removesuffix(PART_SUFFIX) + SUFFIX)
            except BaseException:
                with suppress(FileNotFoundError):
                    self._disk.unlink(part)
                raise
        return True

    def shrink(self, max_bytes: int) -> int:
        """Delete files, largest first, until at most ``max_bytes`` remain; return how many bytes were freed."""
        files = self.files()
        size_bytes = total_bytes = sum(each.size_bytes for each in files)
        for each in reversed(files):
            if size_bytes > max_bytes and self._remove(each.name):
                size_bytes -= each.size_bytes
        return total_bytes - size_bytes

    def clean(self) -> list[str]:
        """Remove unusable files with names of the pool, and return these names. Raises ``OSError``."""
        removed = []
        for name in self._names():
            size_bytes = parse_pool_name(name)
            if size_bytes is None:
                continue
            path = join(self.directory, name)
            with suppress(FileNotFoundError):
                if name.endswith(PART_SUFFIX) and self._is_being_filled(path):
                    continue
                is_junk = name.endswith(PART_SUFFIX) or not _is_sound(self._disk.lstat(path), size_bytes)
                if is_junk and self._remove(name):
                    removed.append(name)
        return removed

    def _names(self) -> list[str]:
        try:
            return sorted(self._disk.listdir(self.directory))
        except FileNotFoundError:
            return []

    def _is_being_filled(self, path: str) -> bool:
        if not S_ISREG(self._disk.lstat(path).st_mode):
            return False
        try:
            with self._disk.opened(path, WRITE) as fd:
                return not self._disk.lock(fd)
        except PermissionError:
            return True  # by another user, perhaps: its process removes it

    def _is_ours(self, path: str) -> bool:
        """Return whether this process may write to the file: another user may have filled the pool."""
        try:
            self._disk.close(self._disk.open(path, WRITE, 0))
        except PermissionError:
            return False
        return True

    def _remove(self, name: str) -> bool:
        """Delete a file. Return False if another process did so first, or if it cannot be deleted."""
        with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
            self._disk.unlink(join(self.directory, name))
            return True
        return False

    def _new_name(self, size_bytes: int, suffix: str) -> str:
        return f"{size_bytes:012d}-{self._disk.urandom(8).hex()}{suffix}"


SPARE_NAME = "log.free"


class Spare:
    """The file ``log.free`` in the pool's directory. Not synchronized: it belongs to the thread that writes."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.path = join(directory, SPARE_NAME)

    def fill(self, least_bytes: int, most_bytes: int | None = None) -> int:
        """Make sure that there is a spare whose length is within these bounds, and return its length.

        Raises ``OSError`` if there is no space. A spare that existed before still exists then. It is not longer than
        before, so the free space stays free.
        """
        fd, size_bytes = self.open(least_bytes, most_bytes)
        # The zeros are not synced, and a network file system may say only now that there is no room for them. Any other
        # failure is reported again by the sync of the log that the spare becomes, before a frame is written over them.
        self._disk.close(fd, NO_SPACE)
        return size_bytes

    def open(self, least_bytes: int, most_bytes: int | None = None) -> tuple[int, int]:
        """Do what ``fill`` does, and return a descriptor of the spare, which the caller must close, and its length."""
        self._set_aside_special()
        fd = self._disk.open(self.path, CREATE, 0o600)
        try:
            found = self._disk.fstat(fd)
            if found.st_nlink <= 1:
                return fd, self._resize(fd, found.st_size, least_bytes, most_bytes)
            # A power cut brought this name back beside the younger name of a log: both names are the same file.
            self._disk.unlink(self.path)
        except BaseException:
            self._disk.close(fd)
            raise
        self._disk.close(fd)
        return self.open(least_bytes, most_bytes)

    def open_fitting(
        self, wanted_bytes: int, most_bytes: int, least: tuple[int, int], enqueues: bool, quota: Quota
    ) -> tuple[int, int]:
        """Do what ``open`` does on a disk that may be full, with smaller lengths if necessary.

        ``least`` are two minimum lengths: of a log that may enqueue, and of one that may only dequeue. For the latter
        the queue's own limit is exceeded if necessary, unless this ``enqueues``.
        """
        try:
            return self.open(wanted_bytes, most_bytes)
        except faults(OSError) as error:
            if error.errno not in NO_SPACE:
                raise
        try:
            return self.open(least[0])
        except faults(OSError) as error:
            if self.size_bytes() >= least[1]:
                return self.open(least[1])
            if enqueues or not isinstance(error, OverLimitError):
                raise
        quota.pressing = True
        try:
            return self.open(least[1])
        finally:
            quota.pressing = False

    def _set_aside_special(self) -> None:
        """Rename anything that has the spare's name and is no plain file to ``*.damaged``."""
        try:
            mode = self._disk.lstat(self.path).st_mode
        except FileNotFoundError:
            return
        if not S_ISREG(mode):
            aside = f"{self.path}.{int.from_bytes(self._disk.urandom(8), 'little')}.damaged"
            LOGGER.error("%s: expected a regular file, found %s: renamed to %s", self.path, filemode(mode), aside)
            self._disk.rename(self.path, aside)

    def _resize(self, fd: int, size_bytes: int, least_bytes: int, most_bytes: int | None) -> int:
        if most_bytes is not None and size_bytes > most_bytes:
            self._disk.ftruncate(fd, most_bytes)
            size_bytes = most_bytes
        try:
            write_zeros(self._disk, fd, size_bytes, least_bytes)
        except faults(OSError):
            self._disk.ftruncate(fd, size_bytes)
            raise
        return max(size_bytes, least_bytes)

    def leave_room(self, fd: int, size_bytes: int, least_bytes: int) -> int:
        """Shorten the open spare so that a full disk has space for a second one, and return its length.

        It keeps at least ``least_bytes``. If there is space for twice its length it is not shortened. Raises
        ``OSError``.
        """
        left_bytes = size_bytes
        try:
            write_zeros(self._disk, fd, size_bytes, 2 * size_bytes)
        except faults(OSError) as error:
            if error.errno not in NO_SPACE:
                raise
            left_bytes = min(max(size_bytes // 2, least_bytes), size_bytes)
        self._disk.ftruncate(fd, left_bytes)
        return left_bytes

    def size_bytes(self) -> int:
        """Return the length of the spare; 0 if there is none."""
        try:
            return self._disk.lstat(self.path).st_size
        except FileNotFoundError:
            return 0

    def give(self, path: str, wipe: bool = False) -> None:
        """Make the unneeded file at ``path`` the spare; with ``wipe``, wipe it before, durably."""
        if wipe:
            wipe_file(self._disk, path)
        self._disk.rename(path, self.path)

"""The spare file that the next generation of the log will be written to.

One is always kept, so that the log can be trimmed, and with it items dequeued, when the disk is full. Its bytes were
written before, so that a sync of what is written to it changes neither its size nor its map of blocks, and is cheaper.
What it contains is of no interest: whoever takes it writes under a fresh salt.
"""

from __future__ import annotations

from stat import S_ISREG, filemode

from .disk import CREATE, NO_SPACE, Disk, join, wipe_file, write_zeros
from .logger import LOGGER
from .quota import OverLimitError, Quota

SPARE_NAME = "log.free"


class Spare:
    """``log.free`` in the pool's directory. Not synchronized: it belongs to whoever writes."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.path = join(directory, SPARE_NAME)

    def fill(self, least_bytes: int, most_bytes: int | None = None) -> int:
        """Make sure that there is a spare, and that its length is within these bounds; its length then.

        Raises ``OSError`` when there is no room; a spare that was there before is then still there, no longer than it
        was, so that what room there is stays free.
        """
        fd, size_bytes = self.open(least_bytes, most_bytes)
        self._disk.close(fd)
        return size_bytes

    def open(self, least_bytes: int, most_bytes: int | None = None) -> tuple[int, int]:
        """The same, for whoever goes on to write it: the descriptor, which is theirs to close, and the length."""
        self._set_aside_special()
        fd = self._disk.open(self.path, CREATE, 0o600)
        try:
            found = self._disk.fstat(fd)
            if found.st_nlink <= 1:
                return fd, self._resize(fd, found.st_size, least_bytes, most_bytes)
            # A power cut brought this name back beside the younger one of a log: what is written here is there.
            self._disk.unlink(self.path)
        except BaseException:
            self._disk.close(fd)
            raise
        self._disk.close(fd)
        return self.open(least_bytes, most_bytes)

    def open_fitting(
        self, wanted_bytes: int, most_bytes: int, least: tuple[int, int], enqueues: bool, quota: Quota
    ) -> tuple[int, int]:
        """The same on a disk that may be full: ``least`` are the lengths to be content with, of a log that may enqueue,
        and of one that may only dequeue, for which a limit of the queue's own is stretched unless this ``enqueues``.
        """
        try:
            return self.open(wanted_bytes, most_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
        try:
            return self.open(least[0])
        except OSError as error:
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
        """Rename whatever has the spare's name, and is no plain file, to ``*.damaged``."""
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
        except OSError:
            self._disk.ftruncate(fd, size_bytes)
            raise
        return max(size_bytes, least_bytes)

    def leave_room(self, fd: int, size_bytes: int, least_bytes: int) -> int:
        """Make the open spare so short that a full disk has room for another one; its length then.

        Not below ``least_bytes``. With room for twice its length it stays as it is. Raises ``OSError``.
        """
        left_bytes = size_bytes
        try:
            write_zeros(self._disk, fd, size_bytes, 2 * size_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            left_bytes = min(max(size_bytes // 2, least_bytes), size_bytes)
        self._disk.ftruncate(fd, left_bytes)
        return left_bytes

    def size_bytes(self) -> int:
        """The length of the spare; 0 if there is none."""
        try:
            return self._disk.lstat(self.path).st_size
        except FileNotFoundError:
            return 0

    def give(self, path: str, wipe: bool = False) -> None:
        """Make the file at ``path``, which nobody needs any more, the spare; ``wipe`` it before, durably."""
        if wipe:
            wipe_file(self._disk, path)
        self._disk.rename(path, self.path)

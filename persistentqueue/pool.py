"""Empty, already-written files, ready to become a log.

Writing to a file whose bytes were written before needs no change of its size or its map of blocks, so that its sync is
cheaper; and a file that is there already needs no room on a full disk. One spare is always kept, so that the log can be
trimmed, and with it items dequeued, when the disk is full. What a spare contains is of no interest: whoever takes it
writes under a fresh salt.
"""

from __future__ import annotations

from .disk import CREATE, Disk, join, write_all

SPARE_NAME = "log.free"
_ZEROS = bytes(1024 * 1024)
_WASTE = 4


class Pool:
    """The directory of spare files. Not synchronized: it belongs to whoever writes."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.path = join(directory, SPARE_NAME)

    def fill(self, length_bytes: int) -> int:
        """Make sure that there is a spare of at least this length, and not many times it; its actual length.

        Raises ``OSError`` when there is no room; a spare that was there before is then still there, as it was or
        longer.
        """
        fd = self._disk.open(self.path, CREATE, 0o600)
        try:
            size_bytes = self._disk.fstat(fd).st_size
            if size_bytes > _WASTE * length_bytes:
                self._disk.ftruncate(fd, length_bytes)
                return length_bytes
            while size_bytes < length_bytes:
                chunk = _ZEROS[: length_bytes - size_bytes]
                size_bytes += write_all(self._disk, fd, [chunk], size_bytes)
        finally:
            self._disk.close(fd)
        return size_bytes

    def size_bytes(self) -> int:
        """The length of the spare; 0 if there is none."""
        try:
            return self._disk.lstat(self.path).st_size
        except FileNotFoundError:
            return 0

    def give(self, path: str) -> None:
        """Make the file at ``path``, which nobody needs any more, the spare."""
        self._disk.rename(path, self.path)

"""The quota of a queue: a ``Disk`` that lets the files of the queue grow only up to a limit.

A limit acts like a disk that is full earlier. A call that would make a file too long is refused as a full file system
would refuse it. So the queue does at its limit what it does on a full disk. It gives back what it can, takes a smaller
segment, keeps a part of the log for dequeues, and then refuses the transaction. Code that handles the errors of the
file system handles these too.

There are two grades:

- Space for enqueues must leave ``reserve_bytes`` of the limit, and ``min_free_bytes`` of the file system.
- The least space that the next checkpoint needs (``pressing``) may use both, and more. Without it nothing could be
  dequeued. Many gaps between small items take more space than the items did, and a segment that cannot be drained never
  gets smaller.

Threads: for any thread. ``mutex`` is held while space is counted, and never during the call that makes a file longer.
The caller of that call must not hold it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import TypeVar

from .disk import CREATE, Buffers, Disk, dirname, join
from .path_errors import faults

_Result = TypeVar("_Result")
_FREE = nullcontext()


class OverLimitError(OSError):
    """A file in ``directory`` would have grown beyond ``limit``, the name of a setting.

    Internal: the user gets ``QueueFullError``.
    """

    def __init__(self, limit: str, directory: str) -> None:
        super().__init__(errno.EDQUOT, f"the queue's own {limit}")
        self.limit, self.directory = limit, directory


class _File:
    """A file that counts. This object stays the same when the path of the file changes."""

    __slots__ = ("directory", "size_bytes")

    def __init__(self, directory: str, size_bytes: int) -> None:
        self.directory, self.size_bytes = directory, size_bytes


class Quota:
    """The files of one queue, and what they take.

    ``disk`` is the interface that counts. Without limits it is the given ``Disk`` itself.
    """

    def __init__(
        self,
        disk: Disk,
        most_bytes: int | None,
        min_free_bytes: int,
        mutex: AbstractContextManager[object] = _FREE,
    ) -> None:
        self._disk = disk
        self._mutex = mutex
        self._most_bytes = most_bytes
        self._min_free_bytes = min_free_bytes
        self.reserve_bytes = 0
        self.pressing = False
        self.refused: tuple[str, str] | None = None
        """The limit and the directory of the last refusal; None if there was none."""
        self._directories: set[str] = set()
        self._files: dict[str, _File] = {}
        self._opened: dict[int, _File] = {}
        self.disk = disk
        if most_bytes is not None or min_free_bytes:
            self.disk = replace(
                disk,
                open=self._open,
                close_file=self._close,
                pwritev=self._pwritev,
                ftruncate=self._ftruncate,
                fallocate=self._fallocate,
                rename=self._rename,
                unlink=self._unlink,
            )

    @property
    def refusal(self) -> OverLimitError | None:
        """The error of the last refusal; None if there was none.

        It is a new one: an error that was raised would keep the objects of its callers alive.
        """
        return OverLimitError(*self.refused) if self.refused is not None else None

    @property
    def used_bytes(self) -> int:
        """Bytes that the counted files take now."""
        return sum(file.size_bytes for file in list(self._files.values()))  # a copy: other threads delete meanwhile

    def bytes_of(self, suffix: str) -> int:
        """Return the bytes that the counted files with this end of their names take now."""
        return sum(file.size_bytes for path, file in list(self._files.items()) if path.endswith(suffix))

    def learn(self, directories: Iterable[str]) -> None:
        """Count the files that are in these directories now, and those that will be made in them."""
        if self.disk is self._disk:
            return
        for directory in directories:
            self._directories.add(directory)
            for name in self._disk.listdir(directory):
                path = join(directory, name)
                with suppress(FileNotFoundError):
                    self._files[path] = _File(directory, self._disk.lstat(path).st_size)

    def take(self, path: str, size_bytes: int, directory: str) -> None:
        """Count a file of this size before it is renamed into one of the directories. Raises ``OverLimitError``."""
        if directory in self._directories:
            self._files[path] = self._arrived(size_bytes, directory)

    def leave(self, path: str) -> None:
        """Stop counting this file, because its rename did not happen."""
        self._files.pop(path, None)

    # --- the calls of ``disk`` ---------------------------------------------------------------------------------------

    def _open(self, path: str, flags: int, mode: int) -> int:
        fd = self._disk.open(path, flags, mode)
        file = self._files.get(path)
        if file is None and flags & CREATE == CREATE and dirname(path) in self._directories:
            file = self._files[path] = _File(dirname(path), self._disk.fstat(fd).st_size)
        if file is not None:
            self._opened[fd] = file
        return fd

    def _close(self, fd: int) -> None:
        self._opened.pop(fd, None)  # first: once closed, the number may be another file's
        self._disk.close_file(fd)

    def _pwritev(self, fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        file = self._opened.get(fd)
        if file is not None:
            end = offset + sum(map(len, buffers))
            if end > file.size_bytes:
                return self._grow(file, fd, end, lambda: self._disk.pwritev(fd, buffers, offset, flags))
        return self._disk.pwritev(fd, buffers, offset, flags)

    def _fallocate(self, fd: int, offset: int, length_bytes: int) -> None:
        file = self._opened.get(fd)
        if file is not None and offset + length_bytes > file.size_bytes:
            end = offset + length_bytes
            self._grow(file, fd, end, lambda: self._disk.fallocate(fd, offset, length_bytes))
        else:
            self._disk.fallocate(fd, offset, length_bytes)

    def _ftruncate(self, fd: int, size_bytes: int) -> None:
        file = self._opened.get(fd)
        if file is not None and size_bytes > file.size_bytes:
            self._grow(file, fd, size_bytes, lambda: self._disk.ftruncate(fd, size_bytes))
            return
        self._disk.ftruncate(fd, size_bytes)
        if file is not None:
            file.size_bytes = size_bytes

    def _rename(self, source: str, target: str) -> None:
        file, directory = self._files.get(source), dirname(target)
        if file is None and directory in self._directories:  # from a pool that another process filled
            file = self._arrived(self._disk.lstat(source).st_size, directory)
        self._disk.rename(source, target)
        self._files.pop(source, None)
        if file is not None and directory in self._directories:
            file.directory = directory
            self._files[target] = file

    def _unlink(self, path: str) -> None:
        try:
            self._disk.unlink(path)
        except FileNotFoundError:  # for example a part that was counted for a second manifest, and was adopted before
            self._files.pop(path, None)
            raise
        self._files.pop(path, None)

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _grow(self, file: _File, fd: int, size_bytes: int, call: Callable[[], _Result]) -> _Result:
        """Make the call that extends the file to this size, if the limits allow it. Raises ``OverLimitError``, and what
        the call raises.
        """
        self._take_room(file, size_bytes)
        try:
            return call()
        except faults(OSError):
            file.size_bytes = self._disk.fstat(fd).st_size
            raise

    def _arrived(self, size_bytes: int, directory: str) -> _File:
        """Return the record of a file that is renamed into the directory. Raises ``OverLimitError``.

        The file is on the file system already, so the rename takes no free space.
        """
        file = _File(directory, 0)
        with self._mutex:
            self._check_limit(file, size_bytes)
            file.size_bytes = size_bytes
        return file

    def _take_room(self, file: _File, size_bytes: int) -> None:
        with self._mutex:
            self._check_limit(file, size_bytes - file.size_bytes)
            self._check_free(file, size_bytes - file.size_bytes)
            file.size_bytes = size_bytes

    def _check_limit(self, file: _File, more_bytes: int) -> None:
        most_bytes = self._most_bytes
        if self.pressing or most_bytes is None:
            return
        if self.used_bytes + more_bytes > most_bytes - self.reserve_bytes:
            self._refuse("max_disk_bytes", file)

    def _check_free(self, file: _File, more_bytes: int) -> None:
        if self.pressing:
            return
        if self._min_free_bytes and self._disk.free_bytes(file.directory) - more_bytes < self._min_free_bytes:
            self._refuse("min_free_bytes", file)

    def _refuse(self, limit: str, file: _File) -> None:
        self.refused = limit, file.directory
        raise OverLimitError(limit, file.directory)

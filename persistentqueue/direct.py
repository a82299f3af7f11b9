"""Appending to a file past the page cache, in whole pages: what makes a small commit quick.

A durable write through the page cache copies a page, marks it dirty, hands it to write-back and waits for that; past
the cache the kernel sends the page that we hold to the device at once, in 0.87 of the time (``perf/README.md``).

The price: offset, length and address must be multiples of a page. So the page in which the file ends is kept in memory,
and each append writes it again, with what is new behind what was there, and zeros behind that. The bytes that were
there do not change, so a write that is cut off cannot hurt them on a device that writes its sectors whole, just as
through the page cache, which rewrites whole pages too.

Not every file system can do it, and none has to: ``append`` says so, and the caller writes the usual way.
"""

from __future__ import annotations

import errno

from .disk import DSYNC, PAGE_BYTES, Disk, page_memory, write_all

_MEMORY_BYTES = 256 * 1024


class DirectAppender:
    """Appends to the file at ``path``, which ends with the bytes ``tail`` in its last page. Not synchronized."""

    def __init__(self, disk: Disk, path: str, tail: bytes) -> None:
        self._disk = disk
        self._fd = disk.open_direct(path)
        self._tail = tail
        self._memory: memoryview | None = None
        """Begins with what stands in the file's last page; made by the first append."""
        self._dirty_bytes = 0
        """Behind these there are only zeros in memory."""

    def append(self, data: bytes, offset: int, next_offset: int, capacity_bytes: int) -> bool:
        """Write ``data`` at ``offset``, durably, and zeros up to the end of its last page. False: it wrote nothing.

        The next append will be at ``next_offset``. Writes nothing behind ``capacity_bytes``. Raises ``OSError``.
        """
        at = offset % PAGE_BYTES
        used_bytes = at + len(data)
        size_bytes = used_bytes + -used_bytes % PAGE_BYTES
        start, next_at = offset - at, next_offset % PAGE_BYTES
        memory, done = self._memory or self._begin(), False
        if size_bytes > _MEMORY_BYTES:
            memory[:next_at] = data[next_offset - next_at - offset : next_offset - offset]
            self._dirty_bytes = max(self._dirty_bytes, next_at)
            return False
        memory[at:used_bytes] = data
        if self._dirty_bytes > used_bytes:
            memory[used_bytes : self._dirty_bytes] = bytes(self._dirty_bytes - used_bytes)
        self._dirty_bytes = used_bytes
        if self._fd is not None and start + size_bytes <= capacity_bytes:
            done = self._write(self._fd, memory[:size_bytes], size_bytes, start)
        if next_offset - next_at != start:
            memory[:next_at] = bytes(memory[next_offset - next_at - start : next_offset - start])
        return done

    def _begin(self) -> memoryview:
        self._memory = memory = page_memory(_MEMORY_BYTES)
        self._dirty_bytes = len(self._tail)
        memory[: self._dirty_bytes] = self._tail
        return memory

    def _write(self, fd: int, pages: memoryview, length_bytes: int, offset: int) -> bool:
        try:
            write_all(self._disk, fd, (pages,), length_bytes, offset, DSYNC)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.close()  # this file system asks for something else; the caller's write comes over whatever we wrote
            return False
        return True

    def begin_anew(self, tail: bytes) -> None:
        """Go on behind an append that was interrupted; ``tail`` is what the file's last page holds."""
        self._tail, self._memory = tail, None

    def rest(self) -> None:
        """Let the memory go; the next append takes some anew."""
        if self._memory is not None:
            self._tail = bytes(self._memory[:PAGE_BYTES])
            self._memory = None

    def close(self) -> None:
        """Close the file; ``append`` is False from now on."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)

"""The writing of the transaction log: ``log/<generation>.log``, in the format of ``frame``.

A generation gets its name only when its header and its checkpoint are complete and synced. So anything invalid under
such a name was damaged, and the highest generation is the one that counts. Not synchronized: a log belongs to the
thread that writes.

``DirectAppender`` appends in whole pages that bypass the operating system's page cache, which makes a small commit
quick. A durable write through that cache copies a page, marks it dirty, passes it to write-back and waits for that. A
direct write sends the page that the queue holds to the device at once, in 0.87 of the time (``perf/README.md``).

The cost: offset, length and address must be multiples of a page. So the page in which the file ends is kept in memory.
Each append writes this page again: the old bytes, the new bytes after them, then zeros. The old bytes do not change, so
an interrupted write cannot damage them on a device that writes its sectors whole. The operating system's page cache
rewrites whole pages, too, and has the same property.

Not every file system supports direct writes, and none has to. ``DirectAppender.append`` reports that, and the log is
written the usual way.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from contextlib import ExitStack

from ..core.frame import END, FRAME_HEADER_BYTES, LOG_MAGIC, SEALED, SYNCED, Frame, encode_frame
from ..core.header import HEADER_BYTES, Header, encode_header
from ..system.disk import DSYNC, PAGE_BYTES, Disk, dirname, page_memory
from ..system.files import names_of, read_all, write_all
from ..system.path_errors import faults, unless_lacking

SUFFIX = ".log"
_NAME = re.compile(r"([0-9]{12}|[1-9][0-9]{12,18})\.log")
OVERHEAD_BYTES = HEADER_BYTES + FRAME_HEADER_BYTES + len(END)
"""Bytes that a log of one frame needs in addition to its body."""
_FOR_ITS_NAME = "for the name of a generation of the log"


def log_name(generation: int) -> str:
    """Return the file name of a generation."""
    return f"{generation:012d}{SUFFIX}"


def parse_log_name(name: str) -> int | None:
    """Return the generation in a log's file name; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def generations_of(names: Iterable[str]) -> list[int]:
    """Return the generations among these file names, lowest first."""
    return sorted(number for name in names if (number := parse_log_name(name)) is not None)


class Log:
    """The generation that is being written."""

    def __init__(
        self, disk: Disk, fd: int, direct: DirectAppender | None, path: str, header: Header, first: Frame
    ) -> None:
        self._disk = disk
        self._fd = fd
        self._direct = direct
        self.path = path
        self.salt = header.salt
        self.capacity_bytes = header.size_bytes
        self.end = first.end
        self.number = first.number
        self.groups = 0
        self.enqueue_bytes_max = self.capacity_bytes
        """Offset up to which frames may enqueue. The rest is for frames that only dequeue, which a full disk must not
        prevent.
        """
        self._flags = DSYNC if header.flags & SYNCED else 0
        self._checksum = first.checksum

    @classmethod
    def begin(
        cls, disk: Disk, fd: int, spare: str, path: str, header: Header, number: int, body: bytes, operations: int
    ) -> Log:
        """Write a new generation into the open file ``spare``. It counts only after ``publish`` has renamed it to
        ``path``.

        ``header`` describes it, and gets its salt here. The first frame, with the number ``number``, has one
        transaction, ``body``: the checkpoint, and its supplement. If this raises ``OSError``, it closes the file, and
        nothing has changed.
        """
        try:
            salt = int.from_bytes(disk.urandom(8), "little")
            header = header._replace(salt=salt)
            frame, checksum = encode_frame(body, salt, HEADER_BYTES, number, 0, 1, operations)
            end = HEADER_BYTES + len(frame) + len(body)
            content = b"".join([encode_header(LOG_MAGIC, header), frame, body])
            # Zeros up to the end of the page: of a page written in part, the system would read the rest first.
            zeros = bytes(max(min(-end % PAGE_BYTES, header.size_bytes - end), len(END)))
            write_all(disk, fd, [content, zeros], end + len(zeros), 0)
        except BaseException:
            disk.close(fd)
            raise
        appends = header.flags & SYNCED and not header.flags & SEALED
        direct = DirectAppender(disk, spare, content[end - end % PAGE_BYTES :]) if appends else None
        return cls(disk, fd, direct, path, header, Frame(HEADER_BYTES, end, number, 0, checksum, []))

    def publish(self, spare: str) -> None:
        """Make the new generation durable, then its name. The rename is the commit point of a trim.

        Raises ``ResourceError`` if nothing has changed: the system lacks what the name needs, and no sync has failed.
        Otherwise raises ``OSError``. Then it is unknown which generation the next opening will find.
        """
        directory = dirname(self.path)
        with ExitStack() as opened:
            with unless_lacking(directory, _FOR_ITS_NAME):  # first: after the rename only a sync may fail
                sync_names = opened.enter_context(names_of(self._disk, directory))
            self._disk.failpoint("trim.3 sync generation")
            self._disk.fdatasync(self._fd)
            self._disk.failpoint("trim.4 rename generation")
            with unless_lacking(directory, _FOR_ITS_NAME):  # a rename that failed so has not happened
                self._disk.rename(spare, self.path)
            self._disk.failpoint("trim.5 sync names")
            sync_names()

    def inherit(self, old: Log) -> None:
        """Take over the memory that the previous generation was written from; it is not written to any more."""
        if self._direct is not None and old._direct is not None:
            self._direct.inherit(old._direct)

    def has_room(self, body_bytes: int, enqueues: bool) -> bool:
        """Return whether a frame with a body of this length fits."""
        limit_bytes = self.enqueue_bytes_max if enqueues else self.capacity_bytes
        return self.end + FRAME_HEADER_BYTES + body_bytes + len(END) <= limit_bytes

    def append(self, body: bytes, transactions: int, operations: int) -> None:
        """Write one frame with one call. This is the commit point.

        On return the frame is durable, if the log is synced. The caller has checked that there is room. Raises
        ``OSError``; then it is unknown whether the frame is on disk.
        """
        number = self.number + 1
        header, checksum = encode_frame(body, self.salt, self.end, number, self._checksum, transactions, operations)
        end = self.end + FRAME_HEADER_BYTES + len(body)
        frame = b"".join((header, body, END))
        if self._direct is None or not self._direct.append(frame, self.end, end, self.capacity_bytes):
            write_all(self._disk, self._fd, [frame], len(frame), self.end, self._flags)
        self.end = end
        self.number = number
        self.groups += 1
        self._checksum = checksum

    def append_again(self, before: int, body: bytes, transactions: int, operations: int) -> None:
        """Write the frame after the frame ``before``, if its ``append`` was interrupted before it ended.

        The same bytes are written over the part that is on disk, so it does not matter how far the first write came. No
        sync has failed: a failed ``append`` is never repeated. Raises like ``append``.
        """
        direct, self._direct = self._direct, None
        if self.number == before:
            self.append(body, transactions, operations)
        if direct is not None:  # its memory may be that of before or after the frame
            start = self.end - self.end % PAGE_BYTES
            direct.begin_anew(read_all(self._disk, self._fd, self.end - start, start))
            self._direct = direct

    def rest(self) -> None:
        """Free the memory that only a busy log needs."""
        if self._direct is not None:
            self._direct.rest()

    def close(self) -> None:
        """Close the file."""
        try:
            self._disk.close(self._fd)
        finally:
            if self._direct is not None:
                self._direct.close()


_MEMORY_BYTES = 256 * 1024


class DirectAppender:
    """Direct appends to the file at ``path``, which ends with the bytes ``tail`` in its last page. Not synchronized."""

    def __init__(self, disk: Disk, path: str, tail: bytes) -> None:
        self._disk = disk
        self._fd = disk.open_direct(path)
        self._tail = tail
        self._memory: memoryview | None = None
        """The bytes of the file's last page, then memory for more. The first append makes it."""
        self._dirty_bytes = 0
        """Length of the part of the memory that may hold other bytes than zeros."""

    def append(self, data: bytes, offset: int, next_offset: int, capacity_bytes: int) -> bool:
        """Write ``data`` at ``offset``, durably, and zeros up to the end of its last page.

        Returns False if the caller must write the data itself. The next append will be at ``next_offset``. Writes
        nothing after ``capacity_bytes``. Raises ``OSError``.
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
        memory = page_memory(_MEMORY_BYTES)
        self._fill(memory)
        return memory

    def _fill(self, memory: memoryview) -> None:
        self._dirty_bytes = len(self._tail)
        memory[: self._dirty_bytes] = self._tail
        self._memory = memory

    def _write(self, fd: int, pages: memoryview, length_bytes: int, offset: int) -> bool:
        try:
            write_all(self._disk, fd, (pages,), length_bytes, offset, DSYNC)
        except faults(OSError) as error:
            if error.errno != errno.EINVAL:
                raise
            self.close()  # not supported like this; the caller's write replaces what was written
            return False
        return True

    def inherit(self, old: DirectAppender) -> None:
        """Take over the memory of an appender that is not used any more: its pages are mapped already."""
        memory, old._memory = old._memory, None
        if memory is not None:
            memory[: old._dirty_bytes] = bytes(old._dirty_bytes)
            self._fill(memory)

    def begin_anew(self, tail: bytes) -> None:
        """Continue after an interrupted append; ``tail`` is what the file's last page holds."""
        self._tail, self._memory = tail, None

    def rest(self) -> None:
        """Free the memory. The next append takes it anew."""
        if self._memory is not None:
            self._tail = bytes(self._memory[:PAGE_BYTES])
            self._memory = None

    def close(self) -> None:
        """Close the file. From now on ``append`` returns False."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)

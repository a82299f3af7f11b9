"""The transaction log: ``log/<generation>.log``, in the format of ``frame``.

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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple, TypeVar

from ..core.frame import (
    END,
    FRAME_HEADER_BYTES,
    LOG_MAGIC,
    SEALED,
    SYNCED,
    Frame,
    decode_frame,
    encode_frame,
    find_frame,
)
from ..core.header import HEADER_BYTES, Header, decode_header, encode_header
from ..core.operations import Checkpoint, Operation
from ..errors import CorruptionError, MemoryShortageError, unless_lacking
from ..system.disk import DSYNC, PAGE_BYTES, READ, Disk, basename, dirname, names_of, page_memory, read_all, write_all
from ..system.trust import open_plain

T = TypeVar("T")
SUFFIX = ".log"
_NAME = re.compile(r"([0-9]{12}|[1-9][0-9]{12,})\.log")
OVERHEAD_BYTES = HEADER_BYTES + FRAME_HEADER_BYTES + len(END)
"""Bytes that a log of one frame needs in addition to its body."""
_TRIES = 100
_FOR_ITS_NAME = "for the name of a generation of the log"


def log_name(generation: int) -> str:
    """Return the file name of a generation."""
    return f"{generation:012d}{SUFFIX}"


def parse_log_name(name: str) -> int | None:
    """Return the generation in a log's file name; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


class Log:
    """The generation that is being written."""

    def __init__(
        self, disk: Disk, fd: int, direct: DirectAppender | None, path: str, header: Header, first: Frame
    ) -> None:
        self._disk = disk
        self._fd = fd
        self._direct = direct
        self.path = path
        self.generation = header.number
        self.salt = header.salt
        self.sealed = bool(header.flags & SEALED)
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
            write_all(disk, fd, [content, END], end + len(END), 0)
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


class Replay(NamedTuple):
    """The content of a log: its checkpoint, the transactions after it, and how it ends.

    ``end`` is the offset after the last valid frame. ``torn_bytes`` counts the bytes after it that began a frame and
    are none; it is 0 at a clean end. ``missing_bytes`` is how much shorter the file is than it was made.
    """

    file: str
    header: Header
    checkpoint: Checkpoint
    frames: list[Frame]
    end: int
    torn_bytes: int
    missing_bytes: int

    @property
    def sealed(self) -> bool:
        """Whether the log was closed cleanly."""
        return bool(self.header.flags & SEALED)

    @property
    def synced(self) -> bool:
        """Whether its frames were made durable before they were acknowledged."""
        return bool(self.header.flags & SYNCED)

    @property
    def supplement(self) -> Sequence[Operation]:
        """The operations that follow the checkpoint in its frame, and are a part of it."""
        return self.frames[0].transactions[0][1:] if self.frames[0].transactions else ()

    @property
    def last_number(self) -> int:
        """The number of the last valid frame."""
        return self.frames[-1].number


def read_log(disk: Disk, path: str) -> Replay:
    """Read and check the log at ``path``, and change nothing.

    Raises ``CorruptionError``, ``UnsupportedFormatError``, ``MemoryShortageError`` and ``OSError``.
    """
    fd = open_plain(disk, path, READ)
    try:
        return replay(read_whole(disk, fd, path), path)
    finally:
        disk.close(fd)


def read_whole(disk: Disk, fd: int, path: str) -> bytes:
    """Return the content of the open log. Raises ``MemoryShortageError``."""
    size_bytes = disk.fstat(fd).st_size
    try:
        return read_all(disk, fd, size_bytes, 0)
    except MemoryError:
        raise MemoryShortageError(path, 0, size_bytes) from None


def read_steadily(newest: Callable[[], int], read: Callable[[int], T]) -> T | None:
    """Return what ``read`` makes of the newest log, if its generation is still the ``newest`` one afterwards.

    A log that was superseded meanwhile may have been cut or overwritten during the reading, so the newest one is read
    again. Returns None if a new generation comes each time. Raises what both callables raise.
    """
    generation = newest()
    for _ in range(_TRIES):
        result, damage, before = None, None, generation
        try:
            result = read(before)
        except (CorruptionError, FileNotFoundError) as error:
            damage = error
        generation = newest()
        if generation == before:
            if damage is not None:
                raise damage
            return result
    return None


def replay(data: bytes, file: str) -> Replay:
    """Check and decode a whole log. This function reads no file.

    An invalid frame ends the log if no valid one follows it: a torn tail. Otherwise it is damage, and so is any invalid
    byte in the header, in the checkpoint, or in a sealed log. Then this raises ``CorruptionError``.
    """
    header, first, checkpoint = first_frame(data, file)
    frames = [first]
    end = first.end
    torn_bytes = 0
    if not header.flags & SEALED:
        while True:
            try:
                frame = decode_frame(data, end, header.salt, file)
                if (frame.number, frame.previous) != (frames[-1].number + 1, frames[-1].checksum):
                    raise CorruptionError(file, end, f"frame {frames[-1].number + 1}", f"frame {frame.number}")
            except CorruptionError as damage:
                torn_bytes = _judge_end(data, end, header, file, damage)
                break
            frames.append(frame)
            end = frame.end
    return Replay(file, header, checkpoint, frames, end, torn_bytes, max(header.size_bytes - len(data), 0))


def first_frame(data: bytes, file: str) -> tuple[Header, Frame, Checkpoint]:
    """Return the header, the first frame and its checkpoint. Raises like ``replay``."""
    header = decode_header(data, LOG_MAGIC, file)
    if parse_log_name(basename(file)) != header.number:
        raise CorruptionError(file, 0, "the generation that the file is named by", f"{header.number}")
    first = decode_frame(data, HEADER_BYTES, header.salt, file)
    operation = first.transactions[0][0] if first.transactions and first.transactions[0] else None
    if not isinstance(operation, Checkpoint):
        raise CorruptionError(file, HEADER_BYTES, "a checkpoint", f"{operation}")
    return header, first, operation


def _judge_end(data: bytes, end: int, header: Header, file: str, damage: CorruptionError) -> int:
    """Return 0 for a clean end, and the number of bytes for a torn tail. Raises ``CorruptionError`` for damage."""
    if header.flags & SYNCED:
        later = find_frame(data, end, header.salt, file)
        if later is not None:
            raise CorruptionError(
                file,
                end,
                damage.expected,
                damage.found,
                f"frame {later.number} at offset {later.offset} is valid, so this is no torn tail, but damage to "
                "acknowledged transactions; nothing was changed: restore the file, or copy the directory, then repair",
            )
    behind = data[end : end + len(END)]
    if behind == END[: len(behind)]:
        return 0
    return len(data[end:].rstrip(b"\0"))


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
            self.close()  # not supported like this; the caller's write replaces what was written
            return False
        return True

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

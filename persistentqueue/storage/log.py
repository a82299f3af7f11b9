"""The transaction log: ``log/<generation>.log``, in the format of ``frame``.

A generation gets its name only when its header and its checkpoint are complete and synced, so whatever is invalid under
such a name was damaged, and the highest generation is the one that counts. Not synchronized: a log belongs to whoever
writes.

Appending to a file past the page cache, in whole pages: what makes a small commit quick.

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
"""What a log of one frame needs beside its body."""
_TRIES = 100
_FOR_ITS_NAME = "for the name of a generation of the log"


def log_name(generation: int) -> str:
    """The file name of a generation."""
    return f"{generation:012d}{SUFFIX}"


def parse_log_name(name: str) -> int | None:
    """The generation in a log's file name; None for any other name."""
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
        """Up to where frames may enqueue: the rest is for those that only dequeue, which a full disk must not stop."""
        self._flags = DSYNC if header.flags & SYNCED else 0
        self._checksum = first.checksum

    @classmethod
    def begin(
        cls, disk: Disk, fd: int, spare: str, path: str, header: Header, number: int, body: bytes, operations: int
    ) -> Log:
        """Write a new generation into the open file ``spare``; it counts only once it was published as ``path``.

        ``header`` says which; its salt is given here. The first frame, with the number ``number``, has the one
        transaction ``body``: the checkpoint, and what supplements it. Raises ``OSError``, and closes the file; then
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
        """Make the new generation durable, then its name. The renaming is the commit point of a trim.

        Raises ``ResourceError`` if nothing has changed: the system lacks what the name needs, and no sync has failed.
        Raises ``OSError`` otherwise; it is then unknown which generation the next opening will find.
        """
        directory = dirname(self.path)
        with ExitStack() as opened:
            with unless_lacking(directory, _FOR_ITS_NAME):  # first: behind the renaming nothing but a sync may fail
                sync_names = opened.enter_context(names_of(self._disk, directory))
            self._disk.failpoint("trim.3 sync generation")
            self._disk.fdatasync(self._fd)
            self._disk.failpoint("trim.4 rename generation")
            with unless_lacking(directory, _FOR_ITS_NAME):  # a renaming that has failed so has not happened
                self._disk.rename(spare, self.path)
            self._disk.failpoint("trim.5 sync names")
            sync_names()

    def has_room(self, body_bytes: int, enqueues: bool) -> bool:
        """Whether a frame with a body of this length fits."""
        limit_bytes = self.enqueue_bytes_max if enqueues else self.capacity_bytes
        return self.end + FRAME_HEADER_BYTES + body_bytes + len(END) <= limit_bytes

    def append(self, body: bytes, transactions: int, operations: int) -> None:
        """Write one frame with one call, durable on return if the log is a synced one. This is the commit point.

        The caller made sure that there is room. Raises ``OSError``; it is then unknown whether the frame is on disk.
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
        """Write the frame behind the frame ``before``, of which ``append`` was interrupted, unless that has ended.

        What is on disk of it is written over with the same bytes, so it does not matter how far it came. No sync has
        failed: a failed ``append`` is never repeated. Raises like ``append``.
        """
        direct, self._direct = self._direct, None
        if self.number == before:
            self.append(body, transactions, operations)
        if direct is not None:  # its memory may be that of before or behind the frame
            start = self.end - self.end % PAGE_BYTES
            direct.begin_anew(read_all(self._disk, self._fd, self.end - start, start))
            self._direct = direct

    def rest(self) -> None:
        """Let go of memory that only a log at work needs."""
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
    """What a log says: its checkpoint, the transactions after it, and how it ends.

    ``end`` is behind the last valid frame. ``torn_bytes`` is how much was found of something that began there and is
    not a frame, 0 at a clean end; ``missing_bytes`` is how much shorter the file is than it was made.
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
        """What follows the checkpoint in its frame, and is a part of it."""
        return self.frames[0].transactions[0][1:] if self.frames[0].transactions else ()

    @property
    def last_number(self) -> int:
        """The number of the last valid frame."""
        return self.frames[-1].number


def read_log(disk: Disk, path: str) -> Replay:
    """Read and check the log at ``path``. Raises ``CorruptionError`` or ``UnsupportedFormatError``; changes nothing."""
    fd = open_plain(disk, path, READ)
    try:
        return replay(read_whole(disk, fd, path), path)
    finally:
        disk.close(fd)


def read_whole(disk: Disk, fd: int, path: str) -> bytes:
    """Return what the open log holds. Raises ``MemoryShortageError``."""
    size_bytes = disk.fstat(fd).st_size
    try:
        return read_all(disk, fd, size_bytes, 0)
    except MemoryError:
        raise MemoryShortageError(path, 0, size_bytes) from None


def read_steadily(newest: Callable[[], int], read: Callable[[int], T]) -> T | None:
    """What ``read`` makes of the log whose ``newest`` generation it is told, if that was still the newest behind it.

    What was superseded meanwhile was perhaps cut or overwritten meanwhile, and read in part: it is read again; None
    where a new one comes again and again. Raises what both raise.
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
    """Check and decode a whole log. Pure: bytes in, frames out.

    A frame that does not check out ends the log, if no valid one follows it: a torn tail. Otherwise, and always in the
    header, in the checkpoint and in a sealed log, it is damage: raises ``CorruptionError``.
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
    """The header, the first frame and its checkpoint. Raises like ``replay``."""
    header = decode_header(data, LOG_MAGIC, file)
    if parse_log_name(basename(file)) != header.number:
        raise CorruptionError(file, 0, "the generation that the file is named by", f"{header.number}")
    first = decode_frame(data, HEADER_BYTES, header.salt, file)
    operation = first.transactions[0][0] if first.transactions and first.transactions[0] else None
    if not isinstance(operation, Checkpoint):
        raise CorruptionError(file, HEADER_BYTES, "a checkpoint", f"{operation}")
    return header, first, operation


def _judge_end(data: bytes, end: int, header: Header, file: str, damage: CorruptionError) -> int:
    """Tell a clean end (0) from a torn tail (its bytes) from damage (raises)."""
    if header.flags & SYNCED:
        later = find_frame(data, end, header.salt, file)
        if later is not None:
            raise CorruptionError(
                file,
                end,
                damage.expected,
                damage.found,
                f"frame {later.number} at offset {later.offset} is valid, so this is no torn tail but damage to what "
                "was acknowledged; nothing was changed: restore the file, or copy the directory before any repair",
            )
    behind = data[end : end + len(END)]
    if behind == END[: len(behind)]:
        return 0
    return len(data[end:].rstrip(b"\0"))


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

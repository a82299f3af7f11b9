"""What another process publishes for the owner to adopt: one transaction that puts items into the queue.

::

    inbox/<time>-<producer>.tmp      being written; its producer holds a lock on it
    inbox/<time>-<producer>.seg      published: whole, durable, and the owner's as soon as he finds it

``time`` is the nanoseconds since the epoch, ``producer`` a random number, both in 16 hexadecimal digits; a producer
never publishes under a time that is not above the one before, so that the order of the names is his order.

The file is a segment (see ``block``): a header, with the number 0, then blocks. The header's size says where the blocks
end; there stands one frame (see ``frame``), which is the last of the file. Its number is that of the nanoseconds, its
checksum is that of a frame at offset 0 of a log with the segment's salt. Its one transaction
is an *adoption* with segment 0 and the name that it was published under, an *enqueue* of all blocks, with segment and
sequence 0, unless there are none, and perhaps a *marker*.

The write order (``publish.1`` …): 1. write the blocks, then header and frame. 2. Sync the file. 3. Rename it: whoever
looks sees it as a whole. 4. Sync the directory: **the commit point of a publication**: from here on it outlives the
power. *A crash before 3 leaves a ``.tmp``, which the owner sweeps; between 3 and 4 either.*
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from stat import S_ISREG, filemode
from typing import NamedTuple

from .block import SEGMENT_MAGIC, combine_checksums, encode_block, split_items
from .disk import CREATE_NEW, READ, Disk, join, read_all, sync_directory, write_all
from .errors import CorruptionError
from .frame import (
    FRAME_HEADER_BYTES,
    Adoption,
    Enqueue,
    MarkerSet,
    Operation,
    decode_frame,
    encode_frame,
    encode_transaction,
)
from .header import HEADER_BYTES, Header, decode_header, encode_header
from .segment import PUBLISHED, Segment

SUFFIX = ".seg"
DRAFT_SUFFIX = ".tmp"
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})(\.seg|\.tmp)")
_FRAME_BYTES_MAX = 128 * 1024
_UNBOUNDED = 2**63 - 1
_NOTHING = Enqueue(0, 0, PUBLISHED, HEADER_BYTES, 0, 0, 0)


class Name(NamedTuple):
    """A decoded file name."""

    time_ns: int
    producer: str
    is_draft: bool


class Publication(NamedTuple):
    """A published transaction: ``count`` items in ``length_bytes`` of blocks, in a file with room for
    ``capacity_bytes`` behind its header. It was published under this name."""

    name: str
    salt: int
    capacity_bytes: int
    count: int  # type: ignore[assignment]
    length_bytes: int
    checksum: int
    marker: tuple[str, int] | None


def parse_name(name: str) -> Name | None:
    """The parts of a file name in the inbox; None for what is no producer's."""
    match = _NAME.fullmatch(name)
    return Name(int(match[1], 16), match[2], match[3] == DRAFT_SUFFIX) if match else None


def is_published(name: str) -> bool:
    """Whether a file in the inbox with this name is whole, and waits to be adopted."""
    parsed = parse_name(name)
    return parsed is not None and not parsed.is_draft


class Draft:
    """A transaction that is being written to a file of its own. For one thread at a time."""

    def __init__(self, disk: Disk, directory: str, producer: str, time_ns: int) -> None:
        """Make the file. Raises ``OSError``, ``FileNotFoundError`` where there is no such inbox."""
        self._disk = disk
        self._directory = directory
        self._producer = producer
        self._path = join(directory, f"{time_ns:016x}-{producer}{DRAFT_SUFFIX}")
        self._checksum = 0
        self.is_intact = True
        """Whether it holds what was written to it, and nothing else, so that it can be written on."""
        self._fd = disk.open(self._path, CREATE_NEW, 0o600)
        try:
            disk.lock(self._fd)
            salt = int.from_bytes(disk.urandom(8), "little")
            self._segment = Segment(disk, self._path, self._fd, PUBLISHED, salt, _UNBOUNDED)
        except BaseException:
            self.drop()
            raise

    @property
    def count(self) -> int:
        """How many items were written to it."""
        return self._segment.ordinal

    @property
    def is_published(self) -> bool:
        """Whether it has, or may have, its final name: then somebody may have seen it."""
        return not self._path

    def write(self, items: Sequence[bytes], payload_bytes: int, time_ns: int) -> None:
        """Write the items behind those that were written: all of them, or, when this raises ``OSError``, none."""
        segment = self._segment
        before = segment.end, segment.ordinal, self._checksum
        with self._cut_again():
            try:
                for part, _ in split_items(items, payload_bytes):
                    at, ordinal = segment.end, segment.ordinal
                    blocks, length_bytes, checksum = encode_block(part, segment.salt, at, ordinal, time_ns)
                    segment.write(blocks, length_bytes, len(part))
                    self._checksum = combine_checksums(self._checksum, checksum)
            except BaseException:
                segment.end, segment.ordinal, self._checksum = before
                raise

    def publish(self, marker: tuple[str, int] | None, time_ns: int) -> None:
        """Make the transaction whole, durable and the owner's, in the order of its ``time_ns``; the file is closed.

        Raises ``OSError``; then ``is_published`` tells whether it may be, and else ``is_intact`` whether it can be
        tried again. A sync that failed is not.
        """
        segment, disk = self._segment, self._disk
        name = f"{time_ns:016x}-{self._producer}{SUFFIX}"
        published = join(self._directory, name)
        with self._cut_again():
            disk.failpoint("publish.1 write frame")
            length_bytes = segment.end - HEADER_BYTES
            operations: list[Operation] = [Adoption(PUBLISHED, segment.salt, length_bytes, name)]
            if segment.ordinal:
                operations.append(Enqueue(0, segment.ordinal, PUBLISHED, HEADER_BYTES, length_bytes, 0, self._checksum))
            if marker is not None:
                operations.append(MarkerSet(*marker))
            body = encode_transaction(operations)
            frame, _ = encode_frame(body, segment.salt, 0, time_ns, 0, 1, len(operations))
            header = encode_header(SEGMENT_MAGIC, Header(0, PUBLISHED, segment.salt, time_ns, segment.end))
            write_all(disk, self._fd, [frame, body], len(frame) + len(body), segment.end)
            write_all(disk, self._fd, [header], HEADER_BYTES, 0)
        self.is_intact = False
        disk.failpoint("publish.2 sync file")
        disk.fdatasync(self._fd)
        disk.failpoint("publish.3 rename")
        draft, self._path = self._path, ""
        try:
            disk.rename(draft, published)
        except OSError:
            self._path = draft
            raise
        disk.failpoint("publish.4 sync name")
        sync_directory(disk, self._directory)
        self._close()

    def drop(self) -> None:
        """Close the file, and delete it if it is not published. Never raises ``OSError``."""
        with suppress(OSError):
            self._close()
        if self._path:
            with suppress(OSError):
                self._disk.unlink(self._path)

    @contextmanager
    def _cut_again(self) -> Iterator[None]:
        """Give up what stands behind the last block where that fails: it must be nothing, or a frame."""
        try:
            yield
        except BaseException:
            self.is_intact = False
            self._disk.ftruncate(self._fd, self._segment.end)
            self.is_intact = True
            raise

    def _close(self) -> None:
        fd, self._fd = self._fd, -1  # first: it is closed also where that raises
        if fd >= 0:
            self._disk.close(fd)


def read_publication(disk: Disk, path: str) -> Publication:
    """Read and check a published file, but for its blocks, which whoever dequeues checks.

    Raises ``CorruptionError``, ``UnsupportedFormatError``, ``FileNotFoundError`` and other ``OSError``.
    """
    mode = disk.lstat(path).st_mode
    if not S_ISREG(mode):  # to open a pipe would wait for somebody to write
        raise CorruptionError(path, 0, "a regular file", filemode(mode))
    fd = disk.open(path, READ, 0)
    try:
        size_bytes = disk.fstat(fd).st_size
        header = decode_header(read_all(disk, fd, HEADER_BYTES, 0), SEGMENT_MAGIC, path)
        end = header.size_bytes
        room_bytes = size_bytes - end
        if header.number != PUBLISHED or not FRAME_HEADER_BYTES <= room_bytes <= _FRAME_BYTES_MAX:
            raise CorruptionError(path, 0, f"a published file of {size_bytes} bytes", f"{header}")
        frame = decode_frame(read_all(disk, fd, room_bytes, end), 0, header.salt, path)
    finally:
        disk.close(fd)
    name, blocks, marker = "", _NOTHING, None
    operations = list(chain.from_iterable(frame.transactions))
    for operation in operations:
        if isinstance(operation, Enqueue):
            blocks = operation
        elif isinstance(operation, MarkerSet):
            marker = operation
        elif isinstance(operation, Adoption):
            name = operation.name
    length_bytes = end - HEADER_BYTES
    named = Enqueue(0, blocks.count, PUBLISHED, HEADER_BYTES, length_bytes, 0, blocks.checksum)
    is_right = blocks == named and (blocks.count > 0) == (length_bytes > 0) and frame.end == room_bytes
    if not is_right or len(operations) != 1 + (length_bytes > 0) + (marker is not None) or parse_name(name) is None:
        raise CorruptionError(path, end, f"a frame that enqueues {length_bytes} bytes of blocks", f"{frame}")
    return Publication(
        name,
        header.salt,
        size_bytes - HEADER_BYTES,
        blocks.count,
        length_bytes,
        blocks.checksum,
        None if marker is None else (marker.name, marker.version),
    )

"""The published files of other processes, for the owner to adopt: each is one transaction that puts items into the
queue.

::

    inbox/<time>-<producer>.tmp      a draft: being written; its producer holds a lock on it
    inbox/<time>-<producer>.seg      published: whole and durable; it belongs to the owner as soon as the owner finds it
    inbox/<time>-<producer>.part     a part: whole and durable; it belongs to the owner when a manifest names it

``time`` is the nanoseconds since the epoch, below 2^63, and ``producer`` is a random number, both in 16 hexadecimal
digits. The times under which a producer publishes always increase, so the order of the names is its own order.

The file is a segment (see ``block``): a header, with the number 0, then blocks. The size in the header is the offset
where the blocks end. There stands one frame (see ``frame``), the last of the file. The number of the frame is the
nanoseconds. Its checksum is that of a frame at offset 0 of a log with the segment's salt. Its one transaction consists
of:

- an *adoption* with segment 0 and the name under which the file was published,
- an *enqueue* of all blocks, with segment and sequence 0, unless there are no blocks,
- perhaps a *marker*.

Any process that may write into the inbox may put anything there. A file counts only if it is a regular file and really
there as a whole: a file that is mostly holes does not count. The bytes that are really there bound the work for it.

The write order (``publish.1`` …):

1. Write the blocks, then header and frame.
2. Sync the file.
3. Rename it. From now on each process that looks sees the whole file.
4. Sync the directory: **the commit point of a publication**. From here on it survives a power cut. *A crash before 3
   leaves a ``.tmp``, which the owner sweeps; a crash between 3 and 4 leaves either name.*

A transaction that many processes write together is a *manifest* and its *parts*. A part is written like any other file,
in this order, under a name that is not adopted. It has items, and no marker. The manifest is published when all parts
are durable. It is a file without blocks. After its own adoption it names each part, in the order of the items: by an
adoption (segment 0, the part's salt, its length without the header, its name) and an enqueue (as in the part). The
manifest is the commit point of all parts, and they belong to the owner together. *A crash before leaves parts that no
manifest names, which the owner sweeps when they are old.* Files are deleted in an order that leaves no manifest without
its parts.

A *request* is a published file without blocks, parts and marker, from a process that consumes a subscription without
owning the queue. After its adoption stands a *subscription* with number 0, ``first`` and the name. It asks that this
subscription exists. A new one begins at ``first`` (2^64 - 1: with the items that are enqueued from then on). A
*dequeue* may follow, with subscription 0 and first 0. It says that an existing subscription has consumed all items
below ``count``, except those that a session holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ..core.block import (
    BLOCK_HEADER_BYTES,
    BLOCK_ITEMS,
    LENGTH_BYTES,
    SEGMENT_MAGIC,
    Columns,
    Encode,
    combine_checksums,
    encode_block,
    split_columns,
    split_items,
)
from ..core.frame import FRAME_HEADER_BYTES, decode_lone_transaction, encode_frame
from ..core.header import HEADER_BYTES, Header, decode_header, encode_header
from ..core.operations import Adoption, Dequeue, Enqueue, MarkerSet, Operation, SubscriptionOpened, encode_transaction
from ..errors import CorruptionError, MemoryShortageError, PersistentQueueError
from ..interrupts.members import Members
from ..system.bad_pages import read_needed
from ..system.disk import CREATE_NEW, LACKING, READ, Disk, after_fork_in_child, basename, join
from ..system.files import names_of, write_all
from ..system.path_errors import faults, is_no_plain_file, suppress
from ..system.trust import need_regular, regular_bytes
from .inbox_access import make_readable, publication_mode
from .segment import PUBLISHED, Segment

SUFFIX = ".seg"
DRAFT_SUFFIX = ".tmp"
PART_SUFFIX = ".part"
_NAME = re.compile(r"([0-7][0-9a-f]{15})-([0-9a-f]{16})(\.seg|\.tmp|\.part)")
_PUBLISHED = re.compile(r"[0-7][0-9a-f]{15}-[0-9a-f]{16}\.seg")
_PART = re.compile(r"[0-7][0-9a-f]{15}-[0-9a-f]{16}\.part")
TIME_NS_MAX = 2**63 - 1
"""The last time that a name can tell, in the year 2262."""
PRODUCER = slice(17, 33)
"""The part of a name that is its producer."""
_FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Enough for a manifest of half a million parts. The frame of one file has some hundred bytes."""
_UNBOUNDED = 2**63 - 1
_HOLES_FACTOR, _HOLES_BYTES = 16, 1024 * 1024
"""A file may be longer than its real bytes by this factor, and by this number of bytes in addition."""


class TooManyPartsError(PersistentQueueError, ValueError):
    """A manifest would be longer than the owner that adopts it would read. Nothing was published.

    Publish fewer, larger parts.
    """


class Name(NamedTuple):
    """A decoded file name."""

    time_ns: int
    producer: str
    suffix: str


class Part(NamedTuple):
    """A file with ``count`` items in ``length_bytes`` of blocks.

    ``name`` is its name in the inbox. ``capacity_bytes`` is its whole length after the header.
    """

    name: str
    salt: int
    capacity_bytes: int
    count: int  # type: ignore[assignment]
    length_bytes: int
    checksum: int


class Request(NamedTuple):
    """A request that a subscription of this name exists, from sequence ``first`` on if it is new.

    With an ``end``: the message that the subscription has consumed all items below it.
    """

    name: str
    first: int = 0
    end: int = 0


LATEST = 2**64 - 1
"""The ``first`` of a subscription that skips all items that exist already."""


class Publication(NamedTuple):
    """A published transaction, or a request. The items are in the file itself, or, of a manifest, in its parts."""

    own: Part
    parts: tuple[Part, ...]
    marker: tuple[str, int] | None
    request: Request | None = None

    @property
    def name(self) -> str:
        """The name under which it was published."""
        return self.own.name

    @property
    def items(self) -> int:
        """The number of items that it enqueues."""
        return sum(file.count for file in self.files)

    @property
    def files(self) -> tuple[Part, ...]:
        """The files that become segments, in this order; none if there are no items.

        The manifest comes last, so that it stays in the inbox as long as one of its parts.
        """
        return (*self.parts, self.own) if self.parts or self.own.count else ()


def parse_name(name: str) -> Name | None:
    """Return the fields of a file name in the inbox; None if the name is not from a producer."""
    match = _NAME.fullmatch(name)
    return Name(int(match[1], 16), match[2], match[3]) if match else None


def is_published(name: str) -> bool:
    """Return whether a file in the inbox with this name is whole, and waits to be adopted."""
    return _PUBLISHED.fullmatch(name) is not None


def is_part(name: str) -> bool:
    """Return whether a file in the inbox with this name is a whole part, with or without a manifest."""
    return _PART.fullmatch(name) is not None


def time_behind(disk: Disk, inbox: str, name: str, time_ns: int = 0) -> int:
    """Return the time for a publication: after ``time_ns``, and after that of ``name``, if it is given.

    Raises ``CorruptionError`` if that file has the last possible time.
    """
    parsed = parse_name(name)
    behind_ns = max(disk.time_ns(), time_ns + 1, parsed.time_ns + 1 if parsed is not None else 0)
    if behind_ns > TIME_NS_MAX:
        consequence = "nothing was published: open the queue, which adopts the file or sets it aside, then try again"
        raise CorruptionError(join(inbox, name), 0, f"a name with a time below {TIME_NS_MAX}", name, consequence)
    return behind_ns


class Draft:
    """A transaction that is being written to a file of its own. For one thread at a time."""

    def __init__(self, disk: Disk, directory: str, producer: str, time_ns: int, encode: Encode = encode_block) -> None:
        """Make the file; ``encode`` will make its blocks.

        Raises ``OSError``, ``FileNotFoundError`` if there is no such inbox, and ``InboxAccessError``.
        """
        self._disk = disk
        self._encode = encode
        self._directory = directory
        self._producer = producer
        self._path = join(directory, f"{time_ns:016x}-{producer}{DRAFT_SUFFIX}")
        self._checksum = 0
        self.is_intact = True
        """Whether the file holds exactly what was written to it, so that writing can continue."""
        mode = publication_mode(disk, directory)
        self._fd = disk.open(self._path, CREATE_NEW, mode)
        _DRAFTS.add(self)
        try:
            make_readable(disk, self._fd, mode)
            disk.lock(self._fd)
            salt = int.from_bytes(disk.urandom(8), "little")
            self._segment = Segment(disk, self._path, self._fd, PUBLISHED, salt, _UNBOUNDED)
        except BaseException:
            self.drop()
            raise

    @property
    def count(self) -> int:
        """The number of items that were written to it."""
        return self._segment.ordinal

    @property
    def length_bytes(self) -> int:
        """The bytes of the blocks that were written to it."""
        return self._segment.end - HEADER_BYTES

    @property
    def is_published(self) -> bool:
        """Whether it has, or may have, a name under which it is adopted. Then another process may have seen it."""
        return not self._path

    @property
    def is_gone(self) -> bool:
        """Whether the file has no name any more in an inbox that is there."""
        try:
            return basename(self._path) not in self._disk.listdir(self._directory)
        except faults(OSError):  # the inbox was moved, and the file with it
            return False

    def write(self, items: Sequence[bytes], payload_bytes: int, time_ns: int) -> None:
        """Write the items after those that were written: all of them, or none if this raises ``OSError``."""
        self._write([part for part, _ in split_items(items, payload_bytes)], time_ns)

    def write_columns(self, columns: Columns, time_ns: int) -> None:
        """Write these items like ``write``, which makes the same bytes of them."""
        self._write(split_columns(columns), time_ns)

    def _write(self, parts: Sequence[Sequence[bytes] | Columns], time_ns: int) -> None:
        segment = self._segment
        before = segment.end, segment.ordinal, self._checksum
        try:
            for part in parts:
                at, ordinal = segment.end, segment.ordinal
                blocks, length_bytes, checksum = self._encode(part, segment.salt, at, ordinal, time_ns)
                segment.write(blocks, length_bytes, len(part))
                self._checksum = combine_checksums(self._checksum, checksum)
        except BaseException:
            segment.end, segment.ordinal, self._checksum = before
            self._cut()
            raise

    def publish(self, marker: tuple[str, int] | None, time_ns: int, parts: Sequence[Part] = ()) -> None:
        """Complete the transaction, make it durable, and give it to the owner, in the order of its ``time_ns``; close
        the file.

        With ``parts``, which are durable, it becomes their manifest; then nothing was written here before.

        Raises ``TooManyPartsError``; then the draft is unchanged. Raises ``OSError``; then ``is_published`` tells
        whether it may be published. If it is not, ``is_intact`` tells whether the call can be repeated. After a failed
        sync it cannot.
        """
        self._end(SUFFIX, parts, marker, time_ns)

    def ask(self, request: Request, time_ns: int) -> None:
        """Publish a request instead, if nothing was written here. Raises like ``publish``."""
        self._end(SUFFIX, (), None, time_ns, request)

    def end_part(self, time_ns: int) -> Part:
        """Complete the file as a durable part, which may still be dropped. It must have items.

        Raises ``OSError``; then the draft can only be dropped.
        """
        return self._end(PART_SUFFIX, (), None, time_ns)

    def _end(
        self,
        suffix: str,
        parts: Sequence[Part],
        marker: tuple[str, int] | None,
        time_ns: int,
        request: Request | None = None,
    ) -> Part:
        segment, disk = self._segment, self._disk
        length_bytes = segment.end - HEADER_BYTES
        name = f"{time_ns:016x}-{self._producer}{suffix}"
        own = Part(name, segment.salt, length_bytes, segment.ordinal, length_bytes, self._checksum)
        # Opened first: after the rename only a sync may fail.
        with names_of(disk, self._directory) as sync_names:
            try:
                disk.failpoint("publish.1 write frame")
                operations = _operations([own, *parts], marker, request)
                body = encode_transaction(operations)
                frame, _ = encode_frame(body, segment.salt, 0, time_ns, 0, 1, len(operations))
                if len(frame) + len(body) > _FRAME_BYTES_MAX:
                    found = f"{len(parts)} parts take {len(frame) + len(body)} bytes of a manifest"
                    raise TooManyPartsError(
                        f"{self._path}: {found}, at most {_FRAME_BYTES_MAX} are allowed: publish fewer, larger parts"
                    )
                header = encode_header(SEGMENT_MAGIC, Header(0, PUBLISHED, segment.salt, time_ns, segment.end))
                write_all(disk, self._fd, [frame, body], len(frame) + len(body), segment.end)
                write_all(disk, self._fd, [header], HEADER_BYTES, 0)
            except BaseException:
                self._cut()
                raise
            self.is_intact = False
            disk.failpoint("publish.2 sync file")
            disk.fdatasync(self._fd)
            disk.failpoint("publish.3 rename")
            draft, target = self._path, join(self._directory, name)
            self._path = target if suffix == PART_SUFFIX else ""
            try:
                disk.rename(draft, target)
            except faults(OSError) as error:
                if error.errno in LACKING:  # no rename, and no failed sync: the draft can be tried again
                    self._path = draft
                    self._cut()
                elif not self._may_have(target):  # over a network, a rename that failed may have happened
                    self._path = draft
                raise
            disk.failpoint("publish.4 sync name")
            sync_names()
        self._close()
        return own._replace(capacity_bytes=length_bytes + len(frame) + len(body))

    def _may_have(self, path: str) -> bool:
        """Return whether the file may have this path now."""
        try:
            self._disk.lstat(path)
        except FileNotFoundError:
            return False
        except faults(OSError):
            return True
        return True

    def drop(self) -> None:
        """Close the file, and delete it if it is not published. Never raises ``OSError``."""
        with suppress(OSError):
            self._close()
        if self._path:
            with suppress(OSError):
                self._disk.unlink(self._path)

    def _cut(self) -> None:
        """Cut off the bytes after the last block: only a frame may be there."""
        self.is_intact = False
        self._disk.ftruncate(self._fd, self._segment.end)
        self.is_intact = True

    def _close(self) -> None:
        fd, self._fd = self._fd, -1  # first: the file is closed even if the call raises
        if fd >= 0:
            self._disk.close(fd)


_DRAFTS: Members[Draft] = Members()


def _close_all() -> None:  # pragma: no cover - another process
    # The child would keep the space of a deleted file, and the lock of a file that a killed parent has left.
    for draft in _DRAFTS:
        with suppress(OSError):
            draft._close()


after_fork_in_child(_close_all)


def read_publication(disk: Disk, path: str) -> Publication:
    """Read and check a published file or a part, except for its blocks, which are checked when they are dequeued.

    Its claims are compared with the bytes that are really there before memory is used for them. Raises
    ``CorruptionError``, ``UnsupportedFormatError``, ``MemoryShortageError``, ``FileNotFoundError`` and other
    ``OSError``.
    """
    size_bytes = need_regular(disk, path)  # to open a device may have any effect, and a pipe waits for a writer
    if size_bytes < HEADER_BYTES + FRAME_HEADER_BYTES:
        raise CorruptionError(path, 0, f"{HEADER_BYTES + FRAME_HEADER_BYTES} bytes at least", f"{size_bytes} bytes")
    with opened_dense(disk, path) as (fd, size_bytes):
        header = decode_header(read_needed(disk, fd, HEADER_BYTES, 0, path), SEGMENT_MAGIC, path)
        end = header.size_bytes
        room_bytes = size_bytes - end
        if header.number != PUBLISHED or not FRAME_HEADER_BYTES <= room_bytes <= _FRAME_BYTES_MAX or end < HEADER_BYTES:
            raise CorruptionError(path, 0, f"a published file of {size_bytes} bytes", f"{header}")
        try:
            data = read_needed(disk, fd, room_bytes, end, path)
            frame_bytes, operations = decode_lone_transaction(data, header.salt, path)
            length_bytes = end - HEADER_BYTES
            publication = _decode(operations, header.salt, length_bytes)
        except MemoryError:
            raise MemoryShortageError(path, end, room_bytes) from None
    if publication is None or frame_bytes != room_bytes:
        found = f"another transaction, in {frame_bytes} bytes"
        raise CorruptionError(path, end, f"a frame that enqueues {length_bytes} bytes of blocks, or parts", found)
    return publication._replace(own=publication.own._replace(capacity_bytes=size_bytes - HEADER_BYTES))


@contextmanager
def opened_dense(disk: Disk, path: str) -> Iterator[tuple[int, int]]:
    """Open a file of another process to read it, for the length of the block; yield its descriptor and its size.

    Raises ``CorruptionError`` if it is not a regular file, or if it consists of holes: to read these would take for
    ever.
    """
    try:
        fd = disk.open(path, READ, 0)
    except faults(OSError) as error:
        if is_no_plain_file(error):  # something else has just taken its place
            raise CorruptionError(path, 0, "a regular file", f"{error.strerror}") from error
        raise
    try:
        size_bytes = regular_bytes(disk.fstat(fd), path)
        real_bytes = disk.real_bytes(fd)
        if size_bytes > _HOLES_FACTOR * real_bytes + _HOLES_BYTES:
            raise CorruptionError(path, 0, f"{size_bytes} bytes", f"{real_bytes} bytes, and holes")
        yield fd, size_bytes
    finally:
        disk.close(fd)


def _operations(
    files: Sequence[Part], marker: tuple[str, int] | None, request: Request | None = None
) -> list[Operation]:
    """Return the operations of a published file's frame: for the file itself, then for its parts."""
    operations: list[Operation] = []
    for name, salt, capacity_bytes, count, length_bytes, checksum in files:
        operations.append(Adoption(PUBLISHED, salt, capacity_bytes, name))
        if count:
            operations.append(Enqueue(0, count, PUBLISHED, HEADER_BYTES, length_bytes, 0, checksum))
    if marker is not None:
        operations.append(MarkerSet(*marker))
    if request is not None:
        operations.append(SubscriptionOpened(0, request.first, request.name))
        operations += [Dequeue(0, 0, request.end)] if request.end else []
    return operations


def _decode(operations: Iterable[Operation], salt: int, length_bytes: int) -> Publication | None:
    """Return what these operations publish, in a file with this salt and length of blocks; None if they are malformed.

    They are decoded one at a time, so no memory is kept for one that is out of place.
    """
    files: list[Part] = []
    names: set[str] = set()
    marker: tuple[str, int] | None = None
    request: Request | None = None
    for operation in operations:
        is_over = marker is not None or request is not None
        if isinstance(operation, Adoption) and not is_over and operation.segment == PUBLISHED:
            if operation.name in names or (files and not is_part(operation.name)):
                return None
            names.add(operation.name)
            files.append(Part(operation.name, operation.salt, operation.capacity_bytes, 0, 0, 0))
        elif isinstance(operation, Enqueue) and files and not is_over:
            name, file_salt, capacity_bytes, before, _, _ = files[-1]
            _, count, _, _, blocks_bytes, _, checksum, _ = operation
            if before or not count or operation != (0, count, PUBLISHED, HEADER_BYTES, blocks_bytes, 0, checksum, None):
                return None
            files[-1] = Part(name, file_salt, capacity_bytes, count, blocks_bytes, checksum)
        elif isinstance(operation, MarkerSet) and files and not is_over:
            marker = (operation.name, operation.version)
        elif isinstance(operation, SubscriptionOpened) and files and not is_over and operation.number == 0:
            request = Request(operation.name, operation.first)
        elif isinstance(operation, Dequeue) and request is not None and not request.end and operation[:2] == (0, 0):
            request = request._replace(end=operation.count)
            if not request.end:
                return None
        else:
            return None
    if not files:
        return None
    own, *parts = files
    is_right = (
        own[1:3] == (salt, length_bytes)
        and own.length_bytes == length_bytes
        and (own.count > 0) == (length_bytes > 0)
        and all(file.count <= _most_items(file.length_bytes) for file in files)
        and (is_published(own.name) or (is_part(own.name) and own.count > 0 and marker is None))
        and (not parts or (is_published(own.name) and own.count == 0))
        and all(part.count > 0 and 0 < part.length_bytes <= part.capacity_bytes for part in parts)
        and (request is None or (is_published(own.name) and not parts and own.count == 0 and marker is None))
    )
    return Publication(own, tuple(parts), marker, request) if is_right else None


def _most_items(length_bytes: int) -> int:
    """Return the largest number of items in blocks of this length: that of empty items."""
    return BLOCK_ITEMS * (length_bytes // (BLOCK_HEADER_BYTES + LENGTH_BYTES))

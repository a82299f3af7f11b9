"""One segment: the data file ``data/<number>.seg``, written from front to back in the format of ``block``, never
edited.

Not synchronized. The writing calls (``defer``, ``write``, ``sync``, ``seal``) are for one thread at a time. ``load``
may run at the same time, since it reads only blocks that were committed before.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from ..core.block import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    ENVELOPED,
    HOLES,
    LENGTH_BYTES,
    RAW_LENGTH_BYTES,
    SEGMENT_MAGIC,
    BlockHeader,
    Columns,
    check_body,
    check_item,
    claimed_time_ns,
    combine_checksums,
    decode_block_header,
    decode_columns,
    decode_envelope,
    decode_holes,
    peek_payload_bytes,
)
from ..core.encryption import PLAIN, UNOPENED, Envelopes
from ..core.header import HEADER_BYTES, Header, decode_header, encode_header
from ..core.page_cache import ITEM_OVERHEAD_BYTES
from ..errors import CorruptionError, MemoryShortageError
from ..system.bad_pages import is_unreadable, read_around, read_needed
from ..system.disk import CREATE_NEW, READ, WRITE, Disk
from ..system.files import read_all, write_all
from ..system.path_errors import faults, suppress
from ..system.progress import SILENT, Meter
from ..system.trust import open_plain, opened_plain

T = TypeVar("T")
SUFFIX = ".seg"
_NAME = re.compile(r"([0-9]{12}|[1-9][0-9]{12,18})\.seg")
READ_AHEAD_BYTES = 1024 * 1024
"""Bytes that a consumer reads at once. A larger block is read whole."""
START_SYNC_BYTES = 192 * 1024
"""From this length on, the system is told to begin with a write at once. So the data of many flushes goes to the device
little by little. A flush that waits for the sync of a trim then waits for little.
"""
_START_BYTES = 32 * 1024
"""Bytes that the system is told to begin with at once, for a small group. Each further group tells it of as many, so
that no frame waits behind all of a long write. A larger group tells it of four times its own bytes.
"""
PUBLISHED = 0
"""The number in the header of a published file. When the file is adopted, its name gets a real number."""
_FIRST_READ_BYTES = 4096
_HEADER_READ_BYTES = 512
"""Bytes that are read where only a header is expected to be of use."""
_NEAR_BLOCKS = 8
"""So many headers are read one after the other before the next guess."""
_DIRECT_BYTES = 64 * 1024
_UNUSED_PART = 64
"""A full segment may keep this part of itself unused. A sixteenth kept 54 MiB beside a gigabyte of items."""


def segment_name(number: int) -> str:
    """Return the file name of a segment."""
    return f"{number:012d}{SUFFIX}"


def parse_segment_name(name: str) -> int | None:
    """Return the number in a segment's file name; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def is_little(size_bytes: int, end: int) -> bool:
    """Return whether the unused part of a file is so small that it does not matter."""
    return size_bytes - end <= size_bytes // _UNUSED_PART


class Loaded(NamedTuple):
    """The result of ``load``: the items from ``ordinal`` on, the first block after them, and the damage that stopped
    it.

    ``lost`` is the number of items that the damage costs, from ``next_ordinal`` on; it is 0 if ``damage`` is None. With
    damage, ``next_offset`` is behind the lost items. The last block that was read begins at ``last_offset``, with the
    item ``last_ordinal``. ``cost_bytes`` is the memory that the items take. ``time_ns`` is the time of the first block.
    """

    ordinal: int
    items: list[bytes]
    next_offset: int
    next_ordinal: int
    damage: CorruptionError | MemoryShortageError | None
    lost: int
    last_offset: int = 0
    last_ordinal: int = 0
    cost_bytes: int = 0
    time_ns: int = 0


class Ahead(NamedTuple):
    """The range that a reading may cover beyond the wanted item, in ordinals. It never exceeds ``READ_AHEAD_BYTES``.

    Items up to ``taken`` are handed out at once. After them, whole blocks are read as long as they cost at most
    ``room_bytes`` of memory. Items from ``stop`` on are in memory already.
    """

    taken: int
    stop: int
    room_bytes: int


NO_BOUND = Ahead(2**64, 2**64, 0)


class Intact(NamedTuple):
    """One or several consecutive blocks that check out: ``count`` items after ``ordinal`` others."""

    offset: int
    length_bytes: int
    ordinal: int
    count: int  # type: ignore[assignment]
    holes: list[int]
    """The positions in the block that hold no item."""
    time_ns: int
    """Time of the write, in nanoseconds since the epoch."""


class FoundBlock(NamedTuple):
    """A block of a segment, whose header was checked.

    ``items`` and ``columns`` read and check its body, and return its items. Call one of them before the next block is
    asked for. They raise ``CorruptionError``, and what ``load`` raises.
    """

    header: BlockHeader
    items: Callable[[], list[bytes]]
    columns: Callable[[], Columns]


def read_header(disk: Disk, path: str) -> Header:
    """Return the header of a segment's file. Raises ``CorruptionError`` if it does not check out, and ``OSError``."""
    with opened_plain(disk, path) as fd:
        return decode_header(read_needed(disk, fd, HEADER_BYTES, 0, path), SEGMENT_MAGIC, path)


def find_header(disk: Disk, path: str, number: int) -> Header:
    """Return what ``read_header`` does. Raises ``CorruptionError`` also if there is no file, or that of another
    segment."""
    try:
        header = read_header(disk, path)
    except FileNotFoundError:
        raise CorruptionError(path, 0, "a segment", "no file") from None
    if header.number not in {number, PUBLISHED}:
        raise CorruptionError(path, 0, f"segment {number}", f"segment {header.number}")
    return header


def was_published(disk: Disk, path: str) -> bool:
    """Return whether the file was published, or may have been, since it cannot be read."""
    with suppress(CorruptionError, OSError):
        return read_header(disk, path).number == PUBLISHED
    return True


class Segment:
    """An open data file.

    ``end`` is the offset of the next block, and ``ordinal`` is the number of items before it.
    """

    def __init__(self, disk: Disk, path: str, fd: int, number: int, salt: int, capacity_bytes: int) -> None:
        self._disk = disk
        self._fd = fd
        self.path = path
        self.number = number
        self.salt = salt
        self.capacity_bytes = capacity_bytes
        self.end = HEADER_BYTES
        self.ordinal = 0
        self.dirty = False
        """Whether there are blocks that were not synced."""
        self.is_read_only = False
        """Whether the file belongs to another user, whose process published it. It need not be written."""
        self.deferred_bytes = 0
        """Bytes of the blocks that ``write`` still has to write."""
        self._deferred: tuple[int, list[bytes]] = (0, [])
        """The offset of the blocks that are only in memory so far, and these blocks: all up to ``end``. A reader takes
        the pair in one step. The list only grows, and is replaced when its blocks are in the file, so one of both
        always has the bytes.
        """
        self._unstarted: tuple[int, int] | None = None
        """Begin and end of written bytes that the system was not told yet to begin with."""

    @classmethod
    def create(
        cls,
        disk: Disk,
        path: str,
        number: int,
        capacity_bytes: int,
        *,
        salt: int | None = None,
        recycled: bool = False,
    ) -> Segment:
        """Make the file and reserve space for it.

        ``salt`` is that of a missing file that the log knows; by default, a new one is drawn. With ``recycled`` the
        file exists with this capacity, and is written anew. It is durable after ``sync``, and its name after a sync of
        its directory. If this raises ``OSError``, no file is left.
        """
        salt = int.from_bytes(disk.urandom(8), "little") if salt is None else salt
        fd = -1
        try:
            fd = disk.open(path, WRITE if recycled else CREATE_NEW, 0o600)
            if not recycled:
                disk.fallocate(fd, 0, HEADER_BYTES + capacity_bytes)
            segment = cls(disk, path, fd, number, salt, capacity_bytes)
            segment.write_header()
        except faults(OSError):
            if fd >= 0:
                disk.close(fd)
            if fd >= 0 or recycled:
                with suppress(OSError):  # the first failure is reported; the next opening sweeps the file
                    disk.unlink(path)
            raise
        return segment

    @classmethod
    def open(cls, disk: Disk, path: str, number: int, salt: int, capacity_bytes: int, trusted: bool = False) -> Segment:
        """Open an existing file with the values that the log gives. Its header must agree with them, unless
        ``trusted``.

        Raises ``CorruptionError`` if the header does not agree, or if the file is missing.
        """
        return cls._open(disk, [path], WRITE, number, salt, capacity_bytes, trusted)

    @classmethod
    def open_to_read(cls, disk: Disk, paths: Sequence[str], number: int, salt: int, trusted: bool = False) -> Segment:
        """Open the first of these paths that is a file, only to read it. Raises like ``open``.

        For a process beside the owner, which may rename the file meanwhile, from each path to the next one.
        """
        return cls._open(disk, paths, READ, number, salt, 0, trusted)

    @classmethod
    def _open(
        cls,
        disk: Disk,
        paths: Sequence[str],
        flags: int,
        number: int,
        salt: int,
        capacity_bytes: int,
        trusted: bool = False,
    ) -> Segment:
        fd, is_read_only = -1, False
        for path in paths:
            with suppress(FileNotFoundError):
                try:
                    fd = open_plain(disk, path, flags)
                except PermissionError:
                    fd, is_read_only = open_plain(disk, path, READ), True
                break
        else:
            raise CorruptionError(path, 0, "a segment that holds items", "no file")
        try:
            if not trusted:
                header = decode_header(read_needed(disk, fd, HEADER_BYTES, 0, path), SEGMENT_MAGIC, path)
                if header.number not in {number, PUBLISHED} or header.salt != salt:
                    raise CorruptionError(path, 0, f"segment {number} with salt {salt:#x}", f"{header}")
        except BaseException:
            disk.close(fd)
            raise
        segment = cls(disk, path, fd, number, salt, capacity_bytes)
        segment.is_read_only = is_read_only
        return segment

    def close(self) -> None:
        """Close the file. The object cannot be used afterwards.

        Blocks that were not synced are given up: their queue is broken, or ends as after a crash.
        """
        self._disk.close(self._fd)

    def has_room(self, staged_bytes: int, length_bytes: int) -> bool:
        """Return whether a block of this length fits after the staged ones.

        The first block of a segment always fits.
        """
        used_bytes = self.end + staged_bytes - HEADER_BYTES
        return used_bytes == 0 or used_bytes + length_bytes <= self.capacity_bytes

    def defer(self, blocks: list[bytes], length_bytes: int, count: int) -> None:
        """Append blocks that the log carries too, and leave their writing to the next ``write``."""
        if self._unstarted is not None:
            self._start(*self._unstarted, length_bytes)
        if not self.deferred_bytes:
            self._deferred = (self.end, [])
        deferred = self._deferred[1]
        # The rest makes no call, so no signal handler interrupts it.
        deferred += blocks
        self.deferred_bytes += length_bytes
        self.end += length_bytes
        self.ordinal += count
        self.dirty = True

    def write(
        self, blocks: list[bytes], length_bytes: int, count: int, start_sync_bytes: int = START_SYNC_BYTES
    ) -> None:
        """Append blocks, and write them and the deferred ones in one call, not durably.

        If it raises, these blocks are not appended, and the deferred ones are still deferred.
        """
        if self.deferred_bytes:  # one long buffer costs a third of thousands of short ones
            blocks = [b"".join(self._deferred[1]), *blocks]
        start, end = self.end - self.deferred_bytes, self.end + length_bytes
        write_all(self._disk, self._fd, blocks, end - start, start)
        if end - start >= start_sync_bytes:
            self._start(self._unstarted[0] if self._unstarted is not None else start, end, length_bytes or end - start)
        self._deferred = (end, [])
        self.deferred_bytes = 0
        self.end = end
        self.ordinal += count
        self.dirty = True

    def _start(self, first: int, end: int, group_bytes: int) -> None:
        """Tell the system to begin with the first of these bytes, beside a group of this length."""
        stop = min(end, first + max(_START_BYTES, 4 * group_bytes))
        self._disk.start_sync(self._fd, first, stop - first)
        self._unstarted = (stop, end) if stop < end else None

    def write_header(self) -> None:
        """Write the header, which identifies the file."""
        header = Header(0, self.number, self.salt, self._disk.time_ns(), HEADER_BYTES + self.capacity_bytes)
        write_all(self._disk, self._fd, [encode_header(SEGMENT_MAGIC, header)], HEADER_BYTES, 0)
        self.dirty = True

    def redo(self, offset: int, blocks: Sequence[bytes]) -> None:
        """Write blocks again that the log carries."""
        write_all(self._disk, self._fd, blocks, sum(map(len, blocks)), offset)
        self.dirty = True

    def rewrite(self, offset: int, length_bytes: int) -> None:
        """Write the bytes again that the file holds there."""
        for at in range(offset, offset + length_bytes, READ_AHEAD_BYTES):
            data = read_all(self._disk, self._fd, min(READ_AHEAD_BYTES, offset + length_bytes - at), at)
            write_all(self._disk, self._fd, [data], len(data), at)

    def sync(self) -> None:
        """Make the written bytes durable."""
        self._disk.fdatasync(self._fd)
        self.dirty = False

    def seal(self) -> None:
        """Give back the space after the last block: no other block will follow."""
        if not self.is_read_only:
            self._disk.ftruncate(self._fd, self.end)
            self.capacity_bytes = self.end - HEADER_BYTES

    def load(
        self,
        offset: int,
        ordinal: int,
        end: int,
        end_ordinal: int,
        wanted: int,
        ahead: Ahead = NO_BOUND,
        envelopes: Envelopes = PLAIN,
    ) -> Loaded:
        """Read blocks from the one with ``wanted`` on: at least that block, and more as far as one reading goes.

        ``offset … end`` hold the items ``ordinal … end_ordinal - 1`` of this segment, with ``wanted`` among them. The
        reading stops at the first damage. If it has read wanted items before, it returns them. Otherwise it reports how
        many items from ``next_ordinal`` on are lost. It also stops at a block that ``envelopes`` cannot open. Then
        nothing is lost: without items before, it raises ``MissingExtraError`` or ``WrongKeyError``.
        """
        window = self._window(end)
        items: list[bytes] = []
        first, last_offset, last_ordinal, cost_bytes, room_bytes = ordinal, 0, 0, 0, ahead.room_bytes
        limit = None
        length_bytes, has_sought, time_ns = 0, False, 0
        try:
            # The next block is probably as long as the last one. If that does not fit, not even its header is read.
            while offset < end and (limit is None or offset + length_bytes <= limit):
                header = self._header(window, offset, ordinal, end, end_ordinal)
                behind, next_ordinal = offset + BLOCK_HEADER_BYTES + header.body_bytes, ordinal + header.count
                if next_ordinal > wanted:
                    is_enveloped = header.flags & ENVELOPED
                    block_bytes = self._peek_bytes(window, offset, header) if is_enveloped else header.payload_bytes
                    block_bytes += ITEM_OVERHEAD_BYTES * header.count
                    if limit is None:
                        first, limit = ordinal, offset + READ_AHEAD_BYTES
                        if next_ordinal >= ahead.taken:
                            window.narrow(room_bytes)
                    elif (
                        behind > limit or ordinal >= ahead.stop or (ordinal >= ahead.taken and block_bytes > room_bytes)
                    ):
                        break
                    items += self._body(window, offset, header, envelopes)
                    last_offset, last_ordinal, length_bytes = offset, ordinal, behind - offset
                    time_ns = time_ns or header.time_ns
                    cost_bytes += block_bytes
                    if next_ordinal > ahead.taken:
                        room_bytes -= block_bytes
                elif not has_sought:
                    has_sought = True
                    offset, ordinal = self._seek(window, offset, ordinal, end, end_ordinal, wanted)
                    continue
                offset, ordinal = behind, next_ordinal
            if ordinal <= wanted:
                raise CorruptionError(self.path, offset, f"items up to {end_ordinal}", f"none from {ordinal} on")
        except (CorruptionError, MemoryShortageError, *UNOPENED) as damage:
            if items:
                return Loaded(first, items, offset, ordinal, None, 0, last_offset, last_ordinal, cost_bytes, time_ns)
            if isinstance(damage, UNOPENED):
                raise
            next_offset, next_ordinal = self._resume(offset, ordinal, end, end_ordinal)
            if next_ordinal <= wanted:
                return self.load(next_offset, next_ordinal, end, end_ordinal, wanted, ahead, envelopes)
            return Loaded(ordinal, [], next_offset, ordinal, damage, next_ordinal - ordinal)
        return Loaded(first, items, offset, ordinal, None, 0, last_offset, last_ordinal, cost_bytes, time_ns)

    def checksums(self, offset: int, end: int, meter: Meter = SILENT) -> tuple[int, int]:
        """Check every block in ``offset … end``; return their combined checksum and the number of their items.

        ``meter`` counts their bytes. Raises ``CorruptionError`` at the first block that does not check out.
        """
        window = self._window(end)
        combined = count = 0
        while offset < end:
            header = decode_block_header(window.read(offset, BLOCK_HEADER_BYTES), 0, self.salt, offset, self.path)
            self._check(window, offset, header)
            combined = combine_checksums(combined, header.checksum)
            count += header.count
            offset += BLOCK_HEADER_BYTES + header.body_bytes
            meter.advance(BLOCK_HEADER_BYTES + header.body_bytes)
        return combined, count

    def damage(
        self, offset: int, ordinal: int, end: int, end_ordinal: int, meter: Meter = SILENT
    ) -> Iterator[tuple[CorruptionError | MemoryShortageError, range]]:
        """Yield the error of each block that does not check out, and the ordinals of its items.

        The arguments are those of ``load``. ``meter`` counts the bytes of all blocks.
        """
        window, begin, begin_ordinal = self._window(end), offset, ordinal
        while offset < end:
            start, first = offset, ordinal
            try:
                header = self._header(window, offset, ordinal, end, end_ordinal)
                self._check(window, offset, header)
                offset, ordinal = offset + BLOCK_HEADER_BYTES + header.body_bytes, ordinal + header.count
            except (CorruptionError, MemoryShortageError) as damage:
                offset, ordinal = self._resume(offset, ordinal, end, end_ordinal)
                yield damage, range(first, ordinal)
            meter.advance(offset - start)
        if ordinal != end_ordinal:
            expected, found = f"{end_ordinal - begin_ordinal} items", f"{ordinal - begin_ordinal}"
            yield CorruptionError(self.path, begin, expected, found), range(ordinal, end_ordinal)

    def blocks(
        self, offset: int, ordinal: int, end: int, end_ordinal: int, wanted: int, envelopes: Envelopes = PLAIN
    ) -> Iterator[FoundBlock]:
        """Yield the blocks from the one with ``wanted`` on, each with a checked header.

        The other arguments are those of ``load``. Raises ``CorruptionError`` at the first of these headers that does
        not check out. A body is read and checked when its block is asked for it.
        """
        window = self._window(end)
        if wanted > ordinal:
            offset, ordinal = self._seek(window, offset, ordinal, end, end_ordinal, wanted)
        while offset < end:
            try:
                header = self._header(window, offset, ordinal, end, end_ordinal)
            except CorruptionError:
                offset, ordinal = self._resume(offset, ordinal, end, end_ordinal)
                if ordinal > wanted:
                    raise
                continue
            ordinal += header.count
            if ordinal > wanted:
                place = window, offset, header, envelopes
                yield FoundBlock(header, partial(self._body, *place), partial(self._naming, self._read_columns, *place))
            offset += BLOCK_HEADER_BYTES + header.body_bytes
        if ordinal != end_ordinal:
            raise CorruptionError(self.path, offset, f"items up to {end_ordinal}", f"none from {ordinal} on")

    def _window(self, end: int) -> _Window:
        deferred_at, blocks = self._deferred  # a thread that commits may add to the list meanwhile: it is copied
        return _Window(self._disk, self._fd, self.path, end, deferred_at, b"".join(blocks.copy()))

    def _header(self, window: _Window, offset: int, ordinal: int, end: int, end_ordinal: int) -> BlockHeader:
        data = window.read(offset, BLOCK_HEADER_BYTES)
        header = decode_block_header(data, 0, self.salt, offset, self.path)
        behind = offset + BLOCK_HEADER_BYTES + header.body_bytes
        if header.ordinal != ordinal or behind > end or ordinal + header.count > end_ordinal:
            raise CorruptionError(
                self.path,
                offset,
                f"a block of items {ordinal} to {end_ordinal} that ends by {end}",
                f"{header.count} items from {header.ordinal} that end at {behind}",
            )
        return header

    def _peek_bytes(self, window: _Window, offset: int, header: BlockHeader) -> int:
        """Return the bytes of the items according to the envelope, unchecked.

        They only decide how far to read ahead.
        """
        return peek_payload_bytes(window.read(offset + BLOCK_HEADER_BYTES, RAW_LENGTH_BYTES), header)

    def _check(self, window: _Window, offset: int, header: BlockHeader) -> None:
        """Raise ``CorruptionError`` if the body does not check out. This opens no envelope."""
        if header.flags & ENVELOPED:
            try:
                decode_envelope(self._stored(window, offset, header), header, offset, self.path)
            except MemoryError as error:
                raise MemoryShortageError(self.path, offset, header.body_bytes) from error
        else:
            self._body(window, offset, header, PLAIN)

    def _stored(self, window: _Window, offset: int, header: BlockHeader) -> bytes:
        """Return the body as it is stored, checked. Raises ``CorruptionError`` and ``MemoryError``."""
        data = window.read(offset + BLOCK_HEADER_BYTES, header.body_bytes)
        check_body((data,), header, self.salt, offset, self.path)
        return data

    def _body(self, window: _Window, offset: int, header: BlockHeader, envelopes: Envelopes) -> list[bytes]:
        """Return the items of the block. Raises ``MemoryShortageError`` as ``_naming`` does."""
        return self._naming(self._read_body, window, offset, header, envelopes)

    def _naming(
        self,
        read: Callable[[_Window, int, BlockHeader, Envelopes], T],
        window: _Window,
        offset: int,
        header: BlockHeader,
        envelopes: Envelopes,
    ) -> T:
        """Return what ``read`` returns for the block.

        Raises ``MemoryShortageError`` if there is no memory for a large block. This error names the block, so that the
        items after it can still be read.
        """
        try:
            return read(window, offset, header, envelopes)
        except MemoryError as error:
            raw_bytes = self._peek_bytes(window, offset, header) if header.flags & ENVELOPED else 0
            needed_bytes = max(raw_bytes, header.body_bytes)
            if needed_bytes <= READ_AHEAD_BYTES:
                raise  # so small a block is not the cause
            raise MemoryShortageError(self.path, offset, needed_bytes) from error

    def _read_columns(self, window: _Window, offset: int, header: BlockHeader, envelopes: Envelopes) -> Columns:
        content = envelopes.open_content(self._stored(window, offset, header), header, offset, self.path)
        return decode_columns(content, header, offset, self.path)

    def _read_body(self, window: _Window, offset: int, header: BlockHeader, envelopes: Envelopes) -> list[bytes]:
        if header.count == 1 and header.body_bytes >= _DIRECT_BYTES and not header.flags & ENVELOPED:
            # A large item is read directly into the object that is handed out.
            at = offset + BLOCK_HEADER_BYTES
            length = window.read(at, LENGTH_BYTES)
            item = window.read(at + LENGTH_BYTES, header.body_bytes - LENGTH_BYTES)
            return [check_item(length, item, header, self.salt, offset, self.path)]
        return envelopes.open(self._stored(window, offset, header), header, offset, self.path)

    def _resume(self, offset: int, ordinal: int, end: int, end_ordinal: int) -> tuple[int, int]:
        """Return offset and ordinal of the first valid block after the damaged one at ``offset``, or of the end."""
        window = self._window(end)
        try:
            header = self._header(window, offset, ordinal, end, end_ordinal)
            return offset + BLOCK_HEADER_BYTES + header.body_bytes, ordinal + header.count
        except CorruptionError:
            pass
        # The header cannot be believed, and neither can its length. The ordinal of the next valid header tells how many
        # items are lost.
        at, found = self._find_header(window, offset + 1, end, range(ordinal + 1, end_ordinal))
        return (at, found.ordinal) if found is not None else (end, end_ordinal)

    def _seek(
        self, window: _Window, offset: int, ordinal: int, end: int, end_ordinal: int, wanted: int
    ) -> tuple[int, int]:
        """Return offset and ordinal of the block with ``wanted``, or of one not far before it.

        Its place is guessed from the items and the bytes around it: a valid header tells how many items are before it,
        wherever it is found. Each third guess is the middle, since blocks may differ. From the header that is found,
        some more are read: that takes fewer bytes than to look for one of them.
        """
        high, high_ordinal = end, end_ordinal
        for step in itertools.count(1):
            start = offset
            with suppress(CorruptionError):
                for _ in range(_NEAR_BLOCKS):
                    header = self._header(window, offset, ordinal, end, end_ordinal)
                    if ordinal + header.count > wanted:
                        return offset, ordinal
                    offset, ordinal = offset + BLOCK_HEADER_BYTES + header.body_bytes, ordinal + header.count
            if high - offset <= max(_DIRECT_BYTES, offset - start):
                break
            middle = (offset + high) // 2
            if step % 3:
                guess = offset + (high - offset) * (wanted - ordinal) // (high_ordinal - ordinal)
                middle = min(max(guess - (offset - start) // 2, offset + 1), high - 1)
            stop = min(high, middle + READ_AHEAD_BYTES)
            at, found = self._find_header(window, middle, stop, range(ordinal + 1, end_ordinal))
            if found is not None and found.ordinal <= wanted:
                offset, ordinal = at, found.ordinal
            elif found is None and stop < high:
                break  # among such large items there are few headers to read
            else:
                high, high_ordinal = middle, high_ordinal if found is None else found.ordinal
        return offset, ordinal

    def _find_header(self, window: _Window, start: int, end: int, ordinals: range) -> tuple[int, BlockHeader | None]:
        """Return the offset and the first valid header, from ``start`` on, of a block with one of these ordinals.

        Payloads that look like a header do not check out, since the checksum covers the offset.
        """
        size_bytes = _FIRST_READ_BYTES
        while start < end:
            data = window.read_around(start, min(size_bytes + BLOCK_HEADER_BYTES, end - start))
            if not data:
                break  # a forged log may claim more bytes than the file has
            at = -1
            while (at := data.find(BLOCK_MAGIC, at + 1)) >= 0:
                try:
                    header = decode_block_header(data, at, self.salt, start + at, self.path)
                except CorruptionError:
                    continue
                if header.ordinal in ordinals and start + at < end:
                    return start + at, header
            start += size_bytes
            size_bytes = min(8 * size_bytes, READ_AHEAD_BYTES)
        return end, None

    def intact(self, offset: int, end: int) -> Iterator[Intact]:
        """Yield the blocks between these offsets that check out, and skip anything between them."""
        window = self._window(end)
        while offset < end:
            try:
                header = decode_block_header(window.read(offset, BLOCK_HEADER_BYTES), 0, self.salt, offset, self.path)
            except CorruptionError:
                offset, _ = self._find_header(window, offset + 1, end, range(2**63))
                continue
            length_bytes = BLOCK_HEADER_BYTES + header.body_bytes
            try:
                self._check(window, offset, header)
                holes: list[int] = []
                if header.flags & HOLES:
                    holes = decode_holes(window.read(offset + BLOCK_HEADER_BYTES, header.body_bytes), header)
                yield Intact(offset, length_bytes, header.ordinal, header.count, holes, header.time_ns)
            except CorruptionError:
                pass
            offset += length_bytes

    def may_have_lost(self, offset: int, end: int, time_ns: int) -> bool:
        """Return whether blocks of this segment may have stood between these offsets, behind its last intact block.

        That block was written at ``time_ns``. A file from the pool has older blocks there, of an earlier segment. They
        say that there was none of this one.
        """
        if self.is_blank(offset, end):
            return False
        window = self._window(end)
        if self._find_header(window, offset, end, range(2**63))[1] is not None:
            return True
        step_bytes, has_magic = READ_AHEAD_BYTES - BLOCK_HEADER_BYTES, False
        for start in range(offset, end, step_bytes):
            data = window.read_around(start, min(READ_AHEAD_BYTES, end - start))
            at = -1
            while (at := data.find(BLOCK_MAGIC, at + 1)) >= 0:
                has_magic = True
                if claimed_time_ns(data, at) >= time_ns:
                    return True
        return not has_magic

    def is_blank(self, offset: int, end: int) -> bool:
        """Return whether all bytes between these offsets are zeros, and can be read."""
        window = self._window(end)
        try:
            return not any(
                window.read_once(at, min(READ_AHEAD_BYTES, end - at)).strip(b"\0")
                for at in range(offset, end, READ_AHEAD_BYTES)
            )
        except CorruptionError:
            return False

    def file_bytes(self) -> int:
        """Return the length of the file."""
        return self._disk.fstat(self._fd).st_size


class _Window:
    """A window over a file that is read from front to back: one buffer that moves along, and grows while it proves
    useful.

    If ``deferred`` is not empty, it replaces the content of the file from ``deferred_at`` on.

    Bytes that the device cannot read are damage of the block that needs them. A read that fails ahead of the wanted
    bytes is made again for these alone.
    """

    __slots__ = (
        "_ahead_bytes",
        "_ahead_bytes_max",
        "_data",
        "_deferred",
        "_deferred_at",
        "_disk",
        "_end",
        "_fd",
        "_path",
        "_single_end",
        "_start",
    )

    def __init__(self, disk: Disk, fd: int, path: str, end: int, deferred_at: int, deferred: bytes) -> None:
        self._disk, self._fd, self._path, self._end = disk, fd, path, end
        self._deferred_at, self._deferred = deferred_at, deferred
        self._start, self._data = 0, b""
        self._ahead_bytes = _FIRST_READ_BYTES
        self._ahead_bytes_max = READ_AHEAD_BYTES
        self._single_end = 0
        """Up to this offset nothing is read ahead, since a page before it cannot be read."""

    def narrow(self, ahead_bytes: int) -> None:
        """Read ahead no more than about this length, since more would not be used."""
        self._ahead_bytes_max = min(max(ahead_bytes, _FIRST_READ_BYTES), READ_AHEAD_BYTES)

    def read(self, offset: int, length_bytes: int) -> bytes:
        """Return the bytes at ``offset``; fewer if the file or the range ends before.

        Raises ``CorruptionError`` if the device cannot read them.
        """
        at = offset - self._start
        if at >= 0 and at + length_bytes <= len(self._data):
            return self._data[at : at + length_bytes]
        length_bytes = min(length_bytes, self._end - offset)
        if length_bytes >= _DIRECT_BYTES:  # a large body is its own buffer
            return self.read_once(offset, length_bytes)
        if at > len(self._data):
            # A body was skipped, or was large. The next one is probably alike, so only a header is read ahead.
            self._ahead_bytes = _HEADER_READ_BYTES
        ahead_bytes = min(max(min(self._ahead_bytes, self._ahead_bytes_max), length_bytes), self._end - offset)
        self._ahead_bytes = min(self._ahead_bytes * 8, READ_AHEAD_BYTES)
        if offset < self._single_end:
            ahead_bytes = length_bytes
        try:
            data = self._take(read_all, offset, ahead_bytes)
        except faults(OSError) as error:
            if not is_unreadable(error):
                raise
            self._single_end = offset + ahead_bytes
            data = self.read_once(offset, length_bytes)
        self._start, self._data = offset, data
        return data[:length_bytes]

    def read_once(self, offset: int, length_bytes: int) -> bytes:
        """Return the bytes at ``offset``, without the buffer; fewer if the file ends before.

        Raises ``CorruptionError`` if the device cannot read them.
        """
        return self._take(partial(read_needed, path=self._path), offset, length_bytes)

    def read_around(self, offset: int, length_bytes: int) -> bytes:
        """Return what ``read_once`` returns, with zeros in place of the pages that the device cannot read."""
        return self._take(read_around, offset, length_bytes)

    def _take(self, read: Callable[[Disk, int, int, int], bytes], offset: int, length_bytes: int) -> bytes:
        at = offset - self._deferred_at
        if not self._deferred or at + length_bytes <= 0:
            return read(self._disk, self._fd, length_bytes, offset)
        if at >= 0:
            return self._deferred[at : at + length_bytes]
        return read(self._disk, self._fd, -at, offset) + self._deferred[: at + length_bytes]

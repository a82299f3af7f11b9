"""All segments of one queue: which one is written, which ones are open, and at which place each block stands.

Blocks are *staged*: encoded, and given a place. Then they are *written*: the blocks of a whole group go to disk in one
call, those of a large group in a few. Or they are *deferred*, if the log carries them too, so that the blocks of many
groups go to disk in one call. When the current segment is full, staging continues in a new one.

Threads: all calls are for the writer, one thread at a time. Exceptions are ``pin``, ``pin_pieces``, ``unpin`` and
``pinned``, for a thread that holds the mutex. The mutex guards the table of open files and the pins.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from typing import NamedTuple

from ..core.block import BLOCK_HEADER_BYTES, LENGTH_BYTES, MIXED, combine_checksums, split_items
from ..core.encryption import PLAIN, Envelopes
from ..core.header import HEADER_BYTES
from ..core.operations import Enqueue, SegmentCreated
from ..core.state import SegmentInfo
from ..errors import CorruptionError, TooManyFilesError
from ..interrupts.signal_shield import Shielded, call_once
from ..measuring.stalls import Note, stalled, unnoted
from ..system.disk import LACKING, NO_SPACE, Disk, join
from ..system.event_log import Damage
from ..system.files import names_of, sync_directory, unlink_in_steps, wipe_file
from ..system.path_errors import faults, suppress, unless_lacking
from ..system.progress import SILENT, Meter
from ..system.trust import need_regular
from .pool import Pool
from .segment import START_SYNC_BYTES, Segment, is_little, segment_name, was_published

SEGMENT_BYTES_FIRST = 960 * 1024
"""Length of the first segment's file, so that a thousand small queues stay small. Each takes 3 MiB: log and spare take
1 MiB each, and the directories and the lock file a few blocks.
"""
OPEN_FILES = 64
"""The number of segments that are kept open for reading."""
DEFERRED_BYTES = 256 * 1024
"""Blocks are deferred up to this length in all."""


class Piece(NamedTuple):
    """Blocks with a place: ``count`` items in ``length_bytes`` bytes at ``offset`` of a segment."""

    segment: int
    offset: int
    length_bytes: int
    count: int  # type: ignore[assignment]
    ordinal: int
    checksum: int
    blocks: list[bytes]
    """The bytes of the blocks; empty when only the place is needed."""


class Segments:
    """The data directory of a queue.

    ``segment_bytes`` is the size that segments' files grow to. ``pool`` provides files for them, and takes the files
    back; with ``wipe`` they are overwritten before. ``envelopes`` compresses and encrypts. ``shielded`` makes the calls
    that must not be interrupted.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        segment_bytes: int,
        next_number: int,
        mutex: AbstractContextManager[object],
        pool: Pool | None = None,
        wipe: bool = False,
        envelopes: Envelopes = PLAIN,
        shielded: Shielded = call_once,
        note_stall: Note = unnoted,
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.next_number = next_number
        """The number of the next new segment."""
        self._mutex = mutex
        self._shielded = shielded
        self._note_stall = note_stall
        self._pool = pool
        self._wipe = wipe
        self.envelopes = envelopes
        self.encode = envelopes.encoder(disk)
        """Encodes the blocks that are staged; for the writer."""
        self.next_bytes = min(SEGMENT_BYTES_FIRST, segment_bytes)
        """The length of the next segment's file, with its header."""
        self._open: OrderedDict[int, Segment] = OrderedDict()
        self._pins: dict[int, int] = {}
        self._staged: list[bytes] = []
        self._staged_bytes = 0
        self._staged_count = 0
        self.touched: set[int] = set()
        """The segments with blocks of the current group, which no frame names yet. They are not retired either."""
        self.copied: set[int] = set()
        """The sources that a compaction has copied. They are not retired before it ends. Their files may be closed."""
        self.shrinks = False
        """Whether a segment is made smaller than usual if there is no space for a whole one."""
        self.has_many_unsynced = False
        """Whether more files stay open until they are synced than stay open for reading."""
        self.new: list[Segment] = []
        """Segments whose headers and names are not durable yet."""
        self.has_adopted = False
        """Whether there are adopted segments whose names are not durable yet."""
        self._distrusted: set[int] = set()
        self.current: Segment | None = None
        self.unlogged: list[SegmentCreated] = []
        """Segments that were made, and that no frame names yet."""
        self.in_inbox: dict[int, str] = {}
        """The paths of adopted segments that keep their published names: there was no space for a name in the data
        directory.
        """
        self.syncs = 0
        self.damage = Damage()
        """The damage that readers have found."""
        self.is_closed = False

    # --- writing -----------------------------------------------------------------------------------------------------

    def stage(
        self, items: Sequence[bytes], payload_bytes: int, time_ns: int, kept_bytes: int = 0, each_bytes: int = MIXED
    ) -> list[Piece]:
        """Encode the items as blocks and give each block its place, in a new segment when one is full.

        ``each_bytes`` is the length of every item, or ``MIXED`` if it is not known.

        Up to ``kept_bytes`` of blocks, the pieces have their bytes. Beyond that, blocks may be written while the next
        ones are encoded, and their bytes are not kept. Blocks before a change of segment are written, too. Raises
        ``OSError``.
        """
        pieces: list[Piece] = []
        total_bytes = 0
        for part, part_bytes in split_items(items, payload_bytes, each_bytes):
            room_bytes = BLOCK_HEADER_BYTES + LENGTH_BYTES * len(part) + part_bytes + self.envelopes.most_bytes
            segment = self.current
            if segment is None or not segment.has_room(self._staged_bytes, room_bytes):
                with stalled(self._disk.monotonic, self._note_stall, "segment"):
                    segment = self._shielded(partial(self._roll, room_bytes))
            self.touched.add(segment.number)
            at, ordinal, count = segment.end + self._staged_bytes, segment.ordinal + self._staged_count, len(part)
            blocks, length_bytes, checksum = self.encode(part, segment.salt, at, ordinal, time_ns, (), each_bytes)
            self._staged += blocks
            self._staged_bytes += length_bytes
            self._staged_count += count
            last = pieces[-1] if pieces else None
            if last is None or last.segment != segment.number:
                combined = combine_checksums(0, checksum)
                pieces.append(Piece(segment.number, at, length_bytes, count, ordinal, combined, blocks))
            else:
                last.blocks.extend(blocks)
                pieces[-1] = last._replace(
                    length_bytes=last.length_bytes + length_bytes,
                    count=last.count + count,
                    checksum=combine_checksums(last.checksum, checksum),
                )
            total_bytes += length_bytes
            if total_bytes > kept_bytes and self._staged_bytes >= START_SYNC_BYTES:
                self.write()
                # The next block takes the memory of this one, which is mapped and in the caches of the processor.
                for piece in pieces:
                    piece.blocks.clear()
                del blocks
        return pieces

    def write(self, may_defer: bool = False) -> None:
        """Write the staged blocks to the current segment, and the deferred ones, in one call, not durably.

        With ``may_defer``, since the log carries them too, a small amount is left to a later ``write``. If it raises
        ``OSError``, no staged block counts as written, and ``unstage`` frees their places.
        """
        current = self.current
        if current is None:
            return
        if may_defer and current.deferred_bytes + self._staged_bytes <= DEFERRED_BYTES:
            if self._staged:
                current.defer(self._staged, self._staged_bytes, self._staged_count)
        elif self._staged or current.deferred_bytes:
            current.write(self._staged, self._staged_bytes, self._staged_count)
        self.unstage()

    def unstage(self) -> None:
        """Forget the staged blocks: they were written, or they never will be."""
        self._staged = []
        self._staged_bytes = self._staged_count = 0

    def sync(self) -> None:
        """Make all blocks written so far durable, and the names of their files. Never call it again after a failed
        sync.

        Deferred blocks need a ``write`` before. Raises like ``sync_new``; after ``ResourceError`` it may be called
        again.
        """
        with self._mutex:
            dirty = [segment for segment in self._open.values() if segment.dirty]
        for segment in dirty:
            segment.sync()
        self.syncs += len(dirty)
        self.has_many_unsynced = False
        self.sync_new()

    def sync_new(self) -> None:
        """Make the headers and the names of new segments durable, and the names of adopted ones, if there are any.

        Raises ``ResourceError`` if no sync was begun, so that another call may succeed, and ``OSError`` otherwise.
        """
        if self.new or self.has_adopted:
            self._shielded(self._sync_new)

    def _sync_new(self) -> None:
        with ExitStack() as opened:
            with unless_lacking(self.directory, "to sync the names of segments"):
                sync_names = opened.enter_context(names_of(self._disk, self.directory))
            dirty = [segment for segment in self.new if segment.dirty]
            for segment in dirty:
                segment.sync()
            sync_names()
        self.syncs += len(dirty) + 1
        self.new, self.has_adopted = [], False

    def sync_again(self, rows: Mapping[int, SegmentInfo], blocks: Iterable[Enqueue], meter: Meter = SILENT) -> None:
        """Write these blocks again, unchanged, and sync them, the files they are in, and the files' names.

        An earlier owner left them in the operating system's page cache. A sync alone is not enough. If the sync of that
        owner failed, the system considers the pages clean, and a second sync succeeds without writing them.
        """
        extents: dict[int, list[tuple[int, int]]] = {}
        for each in blocks:
            extents.setdefault(each.segment, [(0, HEADER_BYTES)]).append((each.offset, each.length_bytes))
            meter.expect(each.length_bytes)
        for number in filter(self.exists, extents):
            with closing(self._open_file(rows[number])) as segment:
                if segment.is_read_only:  # its producer has synced it
                    continue
                for offset, length_bytes in extents[number]:
                    segment.rewrite(offset, length_bytes)
                    meter.advance(length_bytes)
                segment.sync()
            self.syncs += 1
        sync_directory(self._disk, self.directory)

    def redo(
        self, rows: Mapping[int, SegmentInfo], operations: Iterable[Enqueue], are_new: bool, meter: Meter = SILENT
    ) -> int:
        """Write blocks again that the log carries, adjacent ones in one call; return how many bytes they are.

        Only the log is believed. With ``are_new``, headers and names of the files may not be durable either. Then the
        headers are written again, too, and all of it is synced with the blocks.
        """
        runs: list[tuple[int, int, list[bytes]]] = []
        number = end = -1
        redone_bytes = 0
        for operation in operations:
            blocks = operation.inline or b""
            if (operation.segment, operation.offset) != (number, end):
                number, end = operation.segment, operation.offset
                runs.append((number, end, []))
            runs[-1][2].append(blocks)
            end += len(blocks)
            redone_bytes += len(blocks)
        meter.expect(redone_bytes)
        for number, offset, run in runs:
            segment = self._to_redo(rows[number])
            segment.redo(offset, run)
            meter.advance(sum(map(len, run)))
            if are_new and segment not in self.new:
                segment.write_header()
                self.new.append(segment)
        return redone_bytes

    def redo_header(self, info: SegmentInfo) -> None:
        """Write the header of a segment again. Its file must exist."""
        self._open[info.number] = segment = self._open_file(info)
        if not segment.is_read_only:
            segment.write_header()

    def cut(self, rows: Iterable[SegmentInfo]) -> None:
        """Give back the space after the last block of each segment. A crash left it reserved in one of them."""
        for row in rows:
            if row.live and not is_little(self.file_bytes(row.number), row.end):
                with suppress(CorruptionError), self._mutex:  # a reader of this segment gets the error
                    segment = self._opened(row, first=True)
                    segment.end = max(row.end, HEADER_BYTES)
                    segment.seal()

    def adopt(self, files: Iterable[tuple[int, str]]) -> None:
        """Make segments of the complete and durable files of a transaction. Their new names become durable by ``sync``.

        The log has their frame already. If there is no space for a name, this file and those behind it keep their
        present ones until ``name_adopted``: a manifest, which comes last, stays beside its parts. Raises ``OSError``
        for any other failure.
        """
        has_room = True
        for number, path in files:
            self._disk.failpoint("adopt.3 rename")
            has_room = has_room and self._may_rename(path, self.path(number))
            if has_room:
                self.has_adopted = True
            else:
                with self._mutex:
                    self.in_inbox[number] = path

    def _may_rename(self, path: str, target: str) -> bool:
        """Rename a file; return False if there is no space for its new name. Raises ``OSError``."""
        try:
            self._disk.rename(path, target)
        except faults(OSError) as error:
            if error.errno not in LACKING:
                raise
            return False
        return True

    def name_adopted(self) -> None:
        """Give adopted segments the names that they still lack. Raises ``OSError``; finished renames stay.

        This comes before a checkpoint, which knows segments by their numbers only.
        """
        for number, path in list(self.in_inbox.items()):
            self._disk.rename(path, join(self.directory, segment_name(number)))
            self.has_adopted = True
            with self._mutex:
                del self.in_inbox[number]

    def write_on(self, info: SegmentInfo) -> None:
        """Continue in the segment that a clean close left half full. Raises ``CorruptionError``."""
        with self._mutex:
            segment = self._opened(info, first=True)
        segment.end, segment.ordinal = max(info.end, HEADER_BYTES), info.ordinal
        # A spill may have left the segment and cut its file. Blocks are deferred only to a place that is reserved: else
        # a full disk would refuse each trim.
        segment.capacity_bytes = min(segment.capacity_bytes, self.file_bytes(info.number) - HEADER_BYTES)
        self.current = segment

    def resize(self, segment_bytes: int) -> None:
        """Change the size that segments grow to, from the next one on."""
        self.segment_bytes = segment_bytes
        self.next_bytes = min(self.next_bytes, segment_bytes)

    def let_go(self) -> None:
        """Leave the current segment, and continue in a new one that is as small as the first.

        The current segment must hold no live item, and must not be about to get one.
        """
        self.current = None
        self.next_bytes = min(SEGMENT_BYTES_FIRST, self.segment_bytes)

    def follow(self, rows: Iterable[SegmentInfo]) -> None:
        """Set the size of the next segment according to the largest existing one."""
        largest_bytes = max((row.end for row in rows), default=0)
        if largest_bytes > HEADER_BYTES:
            self._size_next(largest_bytes)

    # --- reading -----------------------------------------------------------------------------------------------------

    def pin(self, info: SegmentInfo, first: bool = False) -> Segment:
        """Return the open segment, which stays open and is not retired until ``unpin``. Raises ``CorruptionError``.

        A damaged header is reported once; with ``first``, the next call reports it again.
        """
        segment = self._opened(info, first)
        self._pins[info.number] = self._pins.get(info.number, 0) + 1
        return segment

    def pin_pieces(self, pieces: Iterable[Piece]) -> None:
        """Pin the segments of uncommitted pieces."""
        for piece in pieces:
            self._pins[piece.segment] = self._pins.get(piece.segment, 0) + 1

    def unpin(self, numbers: Iterable[int]) -> None:
        """Remove one pin for each of these numbers."""
        for number in numbers:
            left = self._pins.pop(number, 0) - 1
            if left > 0:
                self._pins[number] = left

    def unpin_all(self) -> None:
        """Remove all pins: no session needs a segment any more."""
        self._pins.clear()
        self.touched, self.copied = set(), set()

    @property
    def pinned(self) -> set[int]:
        """The numbers of the segments that are still needed."""
        return self.touched.union(self._pins, self.copied)

    # --- giving back -------------------------------------------------------------------------------------------------

    def retire(self, number: int) -> None:
        """Close a segment that nothing refers to any more, and forget it. Its file must then be deleted."""
        with self._mutex:
            segment = self._open.pop(number, None)
            if segment is not None and segment is self.current:
                self.current = None
        if segment is not None:
            self.new = [new for new in self.new if new is not segment]
            segment.close()

    def delete(self, number: int) -> None:
        """Give the file of a retired segment to the pool, or delete it; with ``wipe``, it is wiped before.

        A published file never goes to the pool. Assume that it is written again, and a power cut loses its new header,
        but not its new name. Then it would seem to wait for another adoption.

        For any thread, since no other thread knows the segment any more. Raises ``OSError``.
        """
        path, pool = self.path(number), self._pool
        if pool is not None and was_published(self._disk, path):
            pool = None
        if self._wipe:
            with suppress(PermissionError):  # another user has published it
                wipe_file(self._disk, path)
        is_kept = False
        if pool is not None:
            with suppress(OSError):  # its directory takes no file: it may be on another file system, or full
                is_kept = pool.give(path)
        if not is_kept:
            unlink_in_steps(self._disk, path)

    def exists(self, number: int) -> bool:
        """Return whether the segment's file exists."""
        return self.file_bytes(number) >= 0

    def is_plain(self, number: int) -> bool:
        """Return whether the segment's file exists, and is a plain file."""
        try:
            need_regular(self._disk, self.path(number))
        except (CorruptionError, FileNotFoundError):
            return False
        return True

    def file_bytes(self, number: int) -> int:
        """Return the length of the segment's file; -1 if there is none."""
        try:
            return self._disk.lstat(self.path(number)).st_size
        except FileNotFoundError:
            return -1

    def path(self, number: int) -> str:
        """Return the path of a segment."""
        if number in self.in_inbox:
            return self.in_inbox[number]
        return join(self.directory, segment_name(number))

    def drop_tried(self, first: int) -> None:
        """Delete the segments from number ``first`` on, made for a group that found no space. Nothing is staged."""
        self.touched = {number for number in self.touched if number < first}
        self.drop_unlogged(first)

    def drop_unlogged(self, first: int = 0) -> bool:
        """Retire segments with ``retire_unlogged``, and delete them at once. Return whether there were any."""
        dropped = self.retire_unlogged(first)
        for created in dropped:
            with suppress(OSError):  # the next opening sweeps it
                self.delete(created.number)
        return bool(dropped)

    def retire_unlogged(self, first: int = 0) -> list[SegmentCreated]:
        """Retire the unpinned segments that no frame names, and return them: they hold only blocks of rollbacks. Their
        files must then be deleted.

        Only segments from number ``first`` on are retired. Nothing may be staged.
        """
        with self._mutex:
            pinned = self.pinned
            unlogged = [created for created in self.unlogged if created.number >= first]
            dropped = [created for created in unlogged if created.number not in pinned]
        for created in dropped:
            with suppress(OSError):  # of a close that fails: the file is closed
                self.retire(created.number)
        self.unlogged = [created for created in self.unlogged if created not in dropped]
        return dropped

    def close(self) -> None:
        """Close every file, for good.

        The caller holds ``reading``, unless no thread is left that could read. The mutex is not taken: in a forked
        child it may be locked for ever, and no other thread is there.
        """
        self.is_closed = True
        opened, self._open, self.current = self._open, OrderedDict(), None
        with ExitStack() as stack:  # each file is closed, whatever the close of another one raises
            for segment in reversed(opened.values()):
                stack.callback(segment.close)

    def create_aside(self, capacity_bytes: int) -> Segment:
        """Make a segment that does not become the current one. The caller must sync, log and close it.

        No flush waits for its sync or notices that it failed. No frame names a segment whose header may not survive a
        power cut. Raises ``OSError``.
        """
        number = self._free_number()
        segment = Segment.create(self._disk, self.path(number), number, capacity_bytes)
        self.next_number = number + 1
        return segment

    def _roll(self, length_bytes: int) -> Segment:
        """Begin a new segment, with space for a first block of at least this length."""
        if self.current is not None:
            self.write()
            if not is_little(HEADER_BYTES + self.current.capacity_bytes, self.current.end):
                # A change of the length waits for the pages that are being written. So little space stays, and the pool
                # can use the file again.
                self.current.seal()
            self._size_next(HEADER_BYTES + self.current.capacity_bytes)
            self.current = None
        number = self._free_number()
        segment = self._create(number, length_bytes)
        self.next_number = number + 1
        self.new.append(segment)
        self.unlogged.append(SegmentCreated(number, segment.salt, segment.capacity_bytes))
        with self._mutex:
            self._open[number] = segment
            self._evict()
            many = len(self._open) > OPEN_FILES
            self.has_many_unsynced = many and sum(each.dirty for each in self._open.values()) > OPEN_FILES
        self.current = segment
        return segment

    def _free_number(self) -> int:
        """Return the next number that no file has.

        A file that could neither be completed nor deleted keeps its number.
        """
        while self.exists(self.next_number):
            self.next_number += 1
        return self.next_number

    def close_idle(self) -> bool:
        """Close the files that only reading needs, to free descriptors; return whether there were any."""
        with self._mutex:
            return self._evict(0)

    def _create(self, number: int, length_bytes: int) -> Segment:
        path, wanted_bytes = self.path(number), max(self.next_bytes - HEADER_BYTES, length_bytes)
        if self._pool is not None:
            least_bytes = max(length_bytes, wanted_bytes // 2)
            size_bytes = None
            with suppress(OSError):  # then without the pool; a new file reports any other error
                size_bytes = self._pool.take(path, HEADER_BYTES + least_bytes, HEADER_BYTES + wanted_bytes)
            if size_bytes is not None:
                return Segment.create(self._disk, path, number, size_bytes - HEADER_BYTES, recycled=True)
        while True:
            try:
                return Segment.create(self._disk, path, number, wanted_bytes)
            except faults(OSError) as error:
                if error.errno not in NO_SPACE or wanted_bytes == length_bytes or not self.shrinks:
                    raise
            # There is no space for a whole segment, but perhaps for a smaller one, or just for the block to write.
            wanted_bytes = max(wanted_bytes // 2, length_bytes)

    def _size_next(self, used_bytes: int) -> None:
        self.next_bytes = min(max(2 * used_bytes, SEGMENT_BYTES_FIRST), self.segment_bytes)

    def _to_redo(self, info: SegmentInfo) -> Segment:
        if info.number not in self._open:
            if self.exists(info.number):
                segment = self._open_file(info)
            else:
                # The blocks that the log carries are written anew. All others are lost, and a reader gets an error. The
                # file stays open until it is synced: a close before that could lose its header unnoticed.
                path = self.path(info.number)
                segment = Segment.create(self._disk, path, info.number, info.capacity_bytes, salt=info.salt)
                self.new.append(segment)
            self._open[info.number] = segment
        return self._open[info.number]

    def _opened(self, info: SegmentInfo, first: bool = False) -> Segment:
        segment = self._open.get(info.number)
        if segment is None:
            # A damaged header is reported to one reader. Then the values in the log are enough to read the items.
            trusted = info.number in self._distrusted
            try:
                segment = self._open_to_read(info, trusted)
            except CorruptionError:
                if not first:
                    self._distrusted.add(info.number)
                raise
            self._open[info.number] = segment
        self._open.move_to_end(info.number)  # the most recently used stands last
        self._evict()
        return segment

    def _open_file(self, info: SegmentInfo, trusted: bool = True) -> Segment:
        """Open the file of a segment. Raises ``CorruptionError`` and ``OSError``."""
        return Segment.open(self._disk, self.path(info.number), info.number, info.salt, info.capacity_bytes, trusted)

    def _open_to_read(self, info: SegmentInfo, trusted: bool) -> Segment:
        """Open the file of a segment, and close others if descriptors are short.

        Raises ``CorruptionError``, ``ResourceError`` and ``OSError``.
        """
        while True:
            try:
                with unless_lacking(self.path(info.number), "to read a segment", "then dequeue again"):
                    return self._open_file(info, trusted)
            except TooManyFilesError:
                if not self._evict(0):
                    raise

    def _evict(self, most: int = OPEN_FILES) -> bool:
        """Close the least recently used files, down to ``most``; return whether any was closed. The mutex is held."""
        closed = False
        for number in list(self._open)[: max(len(self._open) - most, 0)]:
            segment = self._open[number]
            if not segment.dirty and segment is not self.current and number not in self._pins:
                del self._open[number]  # first: its number may be another file's once it is closed
                segment.close()
                closed = True
        return closed

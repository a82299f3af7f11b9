"""Compaction: copies the live items of sparse segments to a new segment, so that the sparse files can be deleted.

One unconsumed item keeps a whole file. In ActiveMQ's AMQ-3978, a few slow messages among many fast ones keep every file
of a journal. Therefore a segment becomes a *source* if less than a given share of it is live. The live items of several
sources are copied to one *target*. One frame of the log, with a ``Compaction``, records the new places. The write order
(``compact.1`` …):

1. Make the target. *A crash leaves a segment that no frame names. The next opening sweeps it.*
2. Copy: read the sources, check them, and write blocks to the target. *A crash leaves the target, which the next
   opening sweeps.*
3. Sync the target, then its name, whatever ``sync`` is: once the frame is written, the sources may be deleted.
4. Commit the ``Compaction``, in the order of all commits (see ``commit``): **its frame is the commit point**. An item
   that was consumed after it was copied stays consumed. *A crash before the commit point leaves the sources as they
   were. A crash after it leaves the items in the target.*

Then the sources are segments without live items, like any others: a trim retires them. Until then they exist beside the
target. The target is no larger than a segment, and that is all the extra space that a compaction takes.

An item keeps its sequence. Up to ``HOLE_ITEMS`` consumed items between two live ones become a hole in their block (see
``block``). To begin another block would cost an extent, in memory and in every checkpoint.

Items that cannot be read stay in their segment, and so do items that are encrypted with a key that was not given. All
other items are encoded again, compressed and encrypted as the settings say.

Threads: ``begin``, the commit and ``end`` are for the writer. ``step`` and ``finish`` are for one thread, which may run
beside all others.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Container, Generator, Iterator
from contextlib import contextmanager
from itertools import accumulate

from ..core.block import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    BLOCK_ITEMS,
    LENGTH_BYTES,
    Encode,
    combine_checksums,
    split_items,
)
from ..core.encryption import UNOPENED
from ..core.header import HEADER_BYTES
from ..core.operations import Compaction, ExtentRow, Move, Operation, SegmentCreated
from ..core.state import SegmentInfo, State
from ..errors import CorruptionError, DiskFullError
from ..storage.segment import Ahead, Segment
from ..storage.segment_files import SEGMENT_BYTES_FIRST, Segments
from ..system.bad_pages import is_unreadable
from ..system.disk import NO_SPACE
from ..system.files import sync_directory
from ..system.path_errors import faults, suppress, unless_lacking
from ..system.quota import OverLimitError
from .context import Context
from .subscriptions import Subscriptions

HOLE_ITEMS = 64
"""Largest number of consumed items in a row that a copied block may contain as a hole."""
_STEP_BYTES = 128 * 1024
"""Bytes to read at once, except for a larger block. During a step other threads wait for the interpreter lock."""
_START_SYNC_BYTES = 64 * 1024
"""Bytes to write at once and to pass on to the device, so that a flush waits there for little else."""
SMALL_SEGMENTS = 4
"""Number of small segments that maintenance tolerates, so that it does not copy the same items in each round."""
MOVES_MAX = 4096
"""Number of moves after which no further source is begun. It bounds the size of the frame."""


def share(info: SegmentInfo) -> float:
    """Return the live part of the bytes in a segment's blocks, from 0.0 to 1.0."""
    return info.live_bytes / max(info.end - HEADER_BYTES, 1)


def choose_sources(
    state: State,
    *,
    below: float,
    small_bytes: float,
    few: int,
    left_alone: Container[int],
    position: int | None,
    limit_bytes: int,
) -> list[SegmentInfo]:
    """Return the segments to compact to one target. The caller holds the mutex.

    First come the segments of which a share less than ``below`` is live. Behind them come segments with less than
    ``small_bytes`` of live blocks, if there are more than ``few`` segments of both kinds together. So the results of
    small compactions are joined at last.

    With a ``position``, a segment is left out if it has an item at that sequence or behind it. Such an item is yet to
    be handed out for the first time. It will soon be consumed and its segment drained, so that a copy would be useless.
    """
    rows = [info for info in state.segments.values() if info.live and info.number not in left_alone]
    sparse = {info.number: info for info in rows if share(info) < below}
    small = {info.number: info for info in rows if info.number not in sparse and info.live_bytes < small_bytes}
    if not sparse and len(small) <= few:
        return []
    for extent in reversed(state.extents):
        if position is None or extent.end <= position:
            break
        sparse.pop(extent.segment, None)
        small.pop(extent.segment, None)
    chosen = list(sparse.values()) + (list(small.values()) if len(sparse) + len(small) > few else [])
    if not chosen:
        return []
    moves = Counter(extent.segment for extent in state.extents)
    live_bytes = accumulate(info.live_bytes for info in chosen)
    counts = accumulate(moves[info.number] for info in chosen)
    fitting = sum(a <= limit_bytes and b <= MOVES_MAX for a, b in zip(live_bytes, counts, strict=True))
    # The first source is taken however large it is. A small segment alone is not copied: the copy would be as small.
    chosen = chosen[: max(fitting, 1)]
    return [] if len(chosen) == 1 and share(chosen[0]) >= below else chosen


@contextmanager
def _room_in(directory: str) -> Iterator[None]:
    """Raise ``ResourceError`` if an ``OSError`` of the block reports that a resource is lacking.

    It names the limit of the queue that has caused it, if there is one.
    """
    with unless_lacking(directory, "to compact to", "then compact again"):
        try:
            yield
        except OverLimitError as error:
            reason, remedy = f"{error.limit} leaves no room to compact to", f"dequeue items or change {error.limit}"
            raise DiskFullError(directory, errno.EDQUOT, reason, "then compact again", remedy) from error


class _Writer:
    """Writes items to the target, as blocks, and records their places as ``moves``."""

    def __init__(self, target: Segment, hole_items: int, encode: Encode) -> None:
        self._target = target
        self._encode_block = encode
        self._hole_items = hole_items
        self._time_ns = 0
        """Time of the oldest block that items of ``_items`` come from."""
        self.moves: list[Move] = []
        self._kept = (0, target.end, target.ordinal)
        """State of the target behind the sources that were copied whole: number of moves, offset, ordinal."""
        self._first = self._live = self._payload_bytes = 0
        self._items: list[bytes] = []
        """Items that are not encoded yet: those from the sequence ``_first`` on. ``_live`` of them are no holes."""
        self._holes: list[int] = []
        """Indexes in ``_items`` that are holes."""
        self._blocks: list[bytes] = []
        self._blocks_bytes = self._blocks_count = 0
        self.written_bytes = 0

    @property
    def next_sequence(self) -> int:
        """Sequence behind the last item that waits to be encoded. It is of no use if none does."""
        return self._first + len(self._items)

    @property
    def end(self) -> int:
        """Offset where the target will end with all items that were put so far."""
        end = self._target.end + self._blocks_bytes
        return end + BLOCK_HEADER_BYTES + (LENGTH_BYTES + 1) * len(self._items) + self._payload_bytes

    def put(self, first: int, items: list[bytes], time_ns: int, is_hole_consumed: bool) -> None:
        """Append items of blocks from ``time_ns`` on. The gap before them may become a hole if ``is_hole_consumed``."""
        hole = first - self.next_sequence
        if self._items and 0 <= hole <= self._hole_items and is_hole_consumed:
            self._holes += range(len(self._items), len(self._items) + hole)
            self._items += [b""] * hole
        else:
            self._encode()
            self._first = first
        self._time_ns = min(self._time_ns, time_ns) if self._items else time_ns
        self._items += items
        self._live += len(items)
        self._payload_bytes += sum(map(len, items))
        if self._payload_bytes >= BLOCK_BYTES or len(self._items) >= BLOCK_ITEMS:
            self._encode()

    def keep(self) -> None:
        """Keep what was copied, since the source was copied whole."""
        self._encode()
        self.write()
        self._kept = (len(self.moves), self._target.end, self._target.ordinal)

    def drop(self) -> None:
        """Forget the copied part of the source. The next blocks are written over it."""
        self._items, self._holes, self._live, self._payload_bytes = [], [], 0, 0
        self._blocks, self._blocks_bytes, self._blocks_count = [], 0, 0
        moves, self._target.end, self._target.ordinal = self._kept
        del self.moves[moves:]

    def write(self, least_bytes: int = 1) -> None:
        """Write the encoded blocks, not durably, if they have at least ``least_bytes``. Raises ``OSError``."""
        if self._blocks_bytes >= least_bytes:
            self._target.write(self._blocks, self._blocks_bytes, self._blocks_count, _START_SYNC_BYTES)
            self.written_bytes += self._blocks_bytes
            self._blocks, self._blocks_bytes, self._blocks_count = [], 0, 0

    def _encode(self) -> None:
        if not self._items:
            return
        target, first, live = self._target, self._first, self._live
        start = 0
        for part, _ in split_items(self._items, self._payload_bytes):
            at, ordinal = target.end + self._blocks_bytes, target.ordinal + self._blocks_count
            holes = [hole - start for hole in self._holes if start <= hole < start + len(part)]
            start += len(part)
            blocks, length_bytes, checksum = self._encode_block(part, target.salt, at, ordinal, self._time_ns, holes)
            self._blocks += blocks
            self._blocks_bytes += length_bytes
            self._blocks_count += len(part)
            last = self.moves[-1] if len(self.moves) > self._kept[0] else None
            if last is not None and last.first + last.count == first and last.offset + last.length_bytes == at:
                self.moves[-1] = last._replace(
                    count=last.count + len(part),
                    length_bytes=last.length_bytes + length_bytes,
                    checksum=combine_checksums(last.checksum, checksum),
                    live=last.live + live,
                )
            else:
                combined = combine_checksums(0, checksum)
                self.moves.append(Move(first, len(part), target.number, at, length_bytes, ordinal, combined, live))
            first, live = first + len(part), 0
        self._first, self._items, self._holes, self._live, self._payload_bytes = first, [], [], 0, 0


class Compactor:
    """Begins and ends the compactions of a queue. For the writer."""

    def __init__(self, context: Context, segments: Segments, subscriptions: Subscriptions) -> None:
        self._context = context
        self._state = context.state
        self._mutex = context.guards.mutex
        self._segments = segments
        self._subscriptions = subscriptions
        self._unreadable: set[int] = set()
        """Segments that cannot be compacted: damaged, unreadable on the device, or encrypted without a given key."""
        self.compacted = self.copied_bytes = 0
        """Number of segments that were emptied, and bytes of blocks that were written for that, also in vain."""

    def begin(self, below: float, settled_only: bool, hole_items: int, before: int | None) -> Copy | None:
        """Begin to compact segments of which a share less than ``below`` is live; return None if there are none.

        With ``settled_only``, segments that are about to be drained anyway are left alone, and so are a few small ones.
        With ``before``, segments from that number on are left alone. The caller must ``end`` the compaction in any
        case. Raises ``ResourceError`` and ``OSError``.
        """
        current, limit_bytes = self._segments.current, self._segments.segment_bytes - HEADER_BYTES
        with self._mutex:
            left_alone = self._segments.pinned | self._unreadable | ({current.number} if current is not None else set())
            left_alone.update(number for number in self._state.segments if before is not None and number >= before)
            sources = choose_sources(
                self._state,
                below=below,
                small_bytes=below * min(limit_bytes, SEGMENT_BYTES_FIRST),
                few=SMALL_SEGMENTS if settled_only else 1,
                left_alone=left_alone,
                position=self._subscriptions.position if settled_only else None,
                limit_bytes=limit_bytes,
            )
        if not sources:
            return None
        limit_bytes = max(limit_bytes, sources[0].live_bytes)
        return Copy(self._context, self._segments, sources, limit_bytes, hole_items)

    def end(self, copy: Copy, is_known: bool) -> None:
        """Release the sources and the target.

        The target is deleted if nothing was committed, but only if ``is_known``: the outcome of each commit is known.
        """
        copy.close()
        is_committed = copy.target.number in self._state.segments
        with self._mutex:
            self._segments.copied.clear()
            self._unreadable.update(copy.unreadable)
            self.compacted += len(copy.done) if is_committed else 0
            self.copied_bytes += copy.copied_bytes
        for damage in copy.damage:
            self._segments.damage.tell(damage)
        if is_known and not is_committed:
            with suppress(OSError):  # the next opening sweeps it
                self._segments.delete(copy.target.number)


class Copy:
    """One compaction under way, of ``sources`` to one target of up to ``limit_bytes``. The writer makes it.

    Each method raises ``ResourceError`` if a resource is lacking, and ``OSError`` for any other error of the disk. Then
    nothing was committed, and the queue is as it was.
    """

    def __init__(
        self, context: Context, segments: Segments, sources: list[SegmentInfo], limit_bytes: int, hole_items: int
    ) -> None:
        self._disk = disk = context.disk
        self._state = context.state
        self._mutex = context.guards.mutex
        self._segments = segments
        self._left = sources[::-1]
        self._rows: dict[int, list[ExtentRow]] = {info.number: [] for info in sources}
        with self._mutex:
            for extent in self._state.extents:
                if extent.segment in self._rows:
                    self._rows[extent.segment].append(extent.row())
        self._limit_bytes = limit_bytes
        disk.failpoint("compact.1 make target")
        with _room_in(segments.directory):
            self.target = segments.create_aside(min(sum(info.live_bytes for info in sources), limit_bytes))
        self.done: list[int] = []
        """Numbers of the sources that were copied whole."""
        self.unreadable: list[int] = []
        """Numbers of the sources that were left as they are, because they could not be read."""
        self.damage: list[CorruptionError] = []
        """Damage that was found in the sources."""
        self._writer = _Writer(self.target, hole_items, segments.envelopes.encoder(disk))
        self._steps: Generator[None, None, None] = (None for _ in ())

    @property
    def copied_bytes(self) -> int:
        """Bytes of blocks that were written to the target."""
        return self._writer.written_bytes

    def step(self) -> bool:
        """Copy a block, or some small ones; return whether there may be more to copy."""
        with _room_in(self._segments.directory):
            for _ in self._steps:
                return True
        if not self._left or len(self._writer.moves) >= MOVES_MAX:
            return False
        source = self._left.pop()
        if self.done and self.target.end + source.live_bytes > self._limit_bytes:
            return False
        self._steps = self._copy(source)
        return True

    def finish(self) -> list[Operation]:
        """Make the target durable, and return the operations to commit. Sources not copied whole stay as they are.

        If nothing was copied, return an empty list.
        """
        self._steps.close()
        self._writer.drop()
        if not self._writer.moves:
            return []
        created = SegmentCreated(self.target.number, self.target.salt, self.target.capacity_bytes)
        self._disk.failpoint("compact.3 sync target")
        with _room_in(self._segments.directory):
            self.target.seal()
            self.target.sync()
            sync_directory(self._disk, self._segments.directory)
        self._disk.failpoint("compact.4 commit")
        return [created, Compaction(self.done, self._writer.moves)]

    def close(self) -> None:
        """Release the source that is being copied, and close the target's file."""
        self._steps.close()
        self.target.close()

    def _copy(self, source: SegmentInfo) -> Generator[None, None, None]:
        """Copy one source, in steps. A copied source is kept, so that no trim retires it before the commit."""
        self._disk.failpoint("compact.2 copy")
        with self._mutex:
            present = self._state.segments.get(source.number)
            if present is None or not present.live:
                return  # the source was drained meanwhile
            try:
                segment = self._segments.pin(source, first=True)
            except CorruptionError as damage:
                self.unreadable.append(source.number)
                self.damage.append(damage)
                return
        try:
            for row in self._rows[source.number]:
                for _ in self._copy_extent(segment, row):
                    if self.done and self._writer.end > self._limit_bytes:
                        self._writer.drop()  # its live items are larger than the average, and the target is full
                        self._left.clear()
                        return
                    self._writer.write(_START_SYNC_BYTES)
                    yield
            with self._mutex:
                self._segments.copied.add(source.number)
            self._writer.keep()
            self.done.append(source.number)
        except (CorruptionError, *UNOPENED) as error:  # a dequeue from this segment raises the error, too
            self._writer.drop()
            self.unreadable.append(source.number)
            if isinstance(error, CorruptionError):
                self.damage.append(error)
        finally:
            with self._mutex:
                self._segments.unpin([source.number])

    def _copy_extent(self, segment: Segment, row: ExtentRow) -> Iterator[None]:
        """Put the live items of an extent into the target, and yield after each read."""
        with self._mutex:
            runs = self._state.gone.unconsumed(row.first, row.first + row.count)
            filled = bool(runs) and self._state.gone.live_between(self._writer.next_sequence, runs[0][0]) == 0
        at, ordinal, end, end_ordinal = row.offset, row.ordinal, row.offset + row.length_bytes, row.ordinal + row.count
        base = row.first - row.ordinal
        while runs:
            wanted, ahead = runs[0][0] - base, Ahead(0, sum(runs[0]) - base, _STEP_BYTES)
            try:
                loaded = segment.load(at, ordinal, end, end_ordinal, wanted, ahead, self._segments.envelopes)
            except faults(OSError) as error:
                if not (is_unreadable(error) or error.errno in NO_SPACE):
                    raise
                raise CorruptionError(segment.path, at, "bytes that can be read", repr(error)) from error
            if loaded.damage is not None:
                raise loaded.damage
            at, ordinal, first = loaded.next_offset, loaded.next_ordinal, base + loaded.ordinal
            while runs and runs[0][0] < base + ordinal:
                start, count = runs.pop(0)
                part = loaded.items[start - first : start - first + count]
                self._writer.put(start, part, loaded.time_ns, filled)
                filled = True
                if len(part) < count:
                    runs.insert(0, (start + len(part), count - len(part)))
            yield

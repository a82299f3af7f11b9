"""Compaction: what still lives in sparse segments is copied to a new one, so that theirs can be given back.

One unconsumed item keeps a whole file (ActiveMQ's AMQ-3978: a few slow messages among many fast ones keep every file of
a journal). So a segment of which less than a given share lives is a *source*: its live items are copied to the end of a
*target*, several sources into one, and one frame of the log, a ``Compaction``, says that they are there now. The write
order (``compact.1`` …):

1. Make the target. *A crash leaves a segment that no frame names, which the next opening sweeps.*
2. Copy: read the sources, check them, write blocks to the target. *A crash leaves the same.*
3. Sync the target, then its name, whatever ``sync`` is: once the frame stands, the sources may go.
4. Commit the ``Compaction``, in the order of all commits (see ``commit``): **its frame is the commit point**. What was
   consumed since it was copied stays consumed. *A crash before leaves the sources as they were, after it the target.*

Then the sources are segments without live items like any others: a trim retires them. Until then they are there beside
the target, which is no larger than a segment: that is all the room it takes.

An item keeps its sequence. Up to ``HOLE_ITEMS`` consumed items between two live ones are a hole in their block (see
``block``), since beginning another block would cost an extent, in memory and in every checkpoint.

What cannot be read stays where it is, and so does its segment; so does what is encrypted with a key that was not given.
All else is encoded anew, compressed and encrypted as the settings say. Threads: ``begin``, the commit and ``end`` are
for the writer; ``step`` and ``finish`` are for one thread beside all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Generator, Iterator
from contextlib import AbstractContextManager, suppress
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
from ..errors import CorruptionError, unless_lacking
from ..storage.segment import Ahead, Segment
from ..storage.segment_files import SEGMENT_BYTES_FIRST, Segments
from ..system.disk import LACKING, NO_SPACE, Disk, sync_directory
from .reader import Guard
from .subscriptions import Subscriptions

HOLE_ITEMS = 64
_STEP_BYTES = 128 * 1024
"""What is read at once, beside a block that is larger: meanwhile others wait for the interpreter."""
_START_SYNC_BYTES = 64 * 1024
"""What is written at once, and given to the device at once: what a flush then has to wait for there is short."""
SMALL_SEGMENTS = 4
"""How many small segments maintenance leaves alone, so that an item is not copied at each of its rounds."""
MOVES_MAX = 4096
"""After so many moves no further source is begun: they make the frame."""


def share(info: SegmentInfo) -> float:
    """The part of a segment's blocks that lives."""
    return info.live_bytes / max(info.end - HEADER_BYTES, 1)


def choose_sources(
    state: State,
    below: float,
    small_bytes: float,
    few: int,
    left_alone: Container[int],
    position: int | None,
    limit_bytes: int,
) -> list[SegmentInfo]:
    """The segments to be compacted to one target; the mutex is held.

    They are those of which less than ``below`` lives. Those with less than ``small_bytes`` of live blocks come behind
    them, if with these there are more than ``few``: what was compacted bit by bit is brought together at last.

    With a ``position`` only those of which no item is at it or behind it: what is yet to be handed out for the first
    time is about to be consumed, and its segment drained, so that a copy of it would be of no use.
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
    # The first is taken whatever room it needs; and a small one alone is as good as its copy.
    chosen = chosen[: max(fitting, 1)]
    return [] if len(chosen) == 1 and share(chosen[0]) >= below else chosen


def _room_in(directory: str) -> AbstractContextManager[None]:
    """Raise ``ResourceError`` where an ``OSError`` says that there is none."""
    return unless_lacking(directory, "to compact to", "then compact again")


class _Writer:
    """Puts items with their sequences into the target, as blocks, and notes where: the ``moves``."""

    def __init__(self, disk: Disk, target: Segment, hole_items: int, encode: Encode) -> None:
        self._target = target
        self._encode_block = encode
        self._hole_items = hole_items
        self._time_ns = disk.time_ns()
        self.moves: list[Move] = []
        self._kept = (0, target.end, target.ordinal)
        """So many of the moves are of sources that were copied whole, and up to there their blocks stand."""
        self._first = self._live = self._payload_bytes = 0
        self._items: list[bytes] = []
        self._holes: list[int] = []
        """Which of these are none."""
        """What is to be encoded yet: the sequences from ``_first`` on, ``_live`` of them not empty for a hole."""
        self._blocks: list[bytes] = []
        self._blocks_bytes = self._blocks_count = 0
        self.written_bytes = 0

    @property
    def next_sequence(self) -> int:
        """The sequence behind the last item that was put, if that was of the same source."""
        return self._first + len(self._items)

    @property
    def end(self) -> int:
        """Where the target will end with what was put so far."""
        end = self._target.end + self._blocks_bytes
        return end + BLOCK_HEADER_BYTES + (LENGTH_BYTES + 1) * len(self._items) + self._payload_bytes

    def put(self, first: int, items: list[bytes], is_hole_consumed: bool) -> None:
        """Append items; what lies between them and those before may be filled if it ``is_hole_consumed``."""
        hole = first - self.next_sequence
        if self._items and 0 <= hole <= self._hole_items and is_hole_consumed:
            self._holes += range(len(self._items), len(self._items) + hole)
            self._items += [b""] * hole
        else:
            self._encode()
            self._first = first
        self._items += items
        self._live += len(items)
        self._payload_bytes += sum(map(len, items))
        if self._payload_bytes >= BLOCK_BYTES or len(self._items) >= BLOCK_ITEMS:
            self._encode()

    def keep(self) -> None:
        """The source was copied whole."""
        self._encode()
        self.write()
        self._kept = (len(self.moves), self._target.end, self._target.ordinal)

    def drop(self) -> None:
        """Forget what was copied of the source; what comes next is written over it."""
        self._items, self._holes, self._live, self._payload_bytes = [], [], 0, 0
        self._blocks, self._blocks_bytes, self._blocks_count = [], 0, 0
        moves, self._target.end, self._target.ordinal = self._kept
        del self.moves[moves:]

    def write(self, least_bytes: int = 1) -> None:
        """Write the blocks, not durably, if there are so many bytes of them. Raises ``OSError``."""
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

    def __init__(
        self, disk: Disk, state: State, subscriptions: Subscriptions, segments: Segments, mutex: Guard
    ) -> None:
        self._disk = disk
        self._state = state
        self._subscriptions = subscriptions
        self._segments = segments
        self._mutex = mutex
        self._unreadable: set[int] = set()
        """Segments that cannot be compacted, since they are damaged, or the device cannot read them, or their key was
        not given."""
        self.compacted = self.copied_bytes = 0
        """How many segments were emptied, and bytes of blocks that were written for that, also in vain."""

    def begin(self, below: float, settled_only: bool, hole_items: int, before: int | None) -> Copy | None:
        """Begin to compact segments of which less than this share lives; None where there are none to be compacted.

        With ``settled_only`` those are left alone that are about to be drained anyway, and few small ones; with
        ``before`` those from that number on. ``end`` it in any case. Raises ``ResourceError``, ``OSError``.
        """
        current, limit_bytes = self._segments.current, self._segments.segment_bytes - HEADER_BYTES
        with self._mutex:
            left_alone = self._segments.pinned | self._unreadable | ({current.number} if current is not None else set())
            left_alone.update(number for number in self._state.segments if before is not None and number >= before)
            position = self._subscriptions.position if settled_only else None
            small_bytes = below * min(limit_bytes, SEGMENT_BYTES_FIRST)
            few = SMALL_SEGMENTS if settled_only else 1
            sources = choose_sources(self._state, below, small_bytes, few, left_alone, position, limit_bytes)
        if not sources:
            return None
        limit_bytes = max(limit_bytes, sources[0].live_bytes)
        return Copy(self._disk, self._state, self._segments, self._mutex, sources, limit_bytes, hole_items)

    def end(self, copy: Copy, is_known: bool) -> None:
        """Let go of sources and target. It is deleted if nothing was committed, and that ``is_known``."""
        copy.close()
        is_committed = copy.target.number in self._state.segments
        with self._mutex:
            self._segments.unpin(copy.done)
            self._unreadable.update(copy.unreadable)
            self.compacted += len(copy.done) if is_committed else 0
            self.copied_bytes += copy.copied_bytes
        for damage in copy.damage:
            self._segments.damage.tell(damage)
        if is_known and not is_committed:
            with suppress(OSError):  # the next opening sweeps it
                self._segments.delete(copy.target.number)


class Copy:
    """One compaction under way, of some ``sources`` to one target of up to ``limit_bytes``.

    Made by the writer. All of it raises ``ResourceError``, and ``OSError`` for what else is wrong with the disk; then
    nothing was committed, and the queue is as it was.
    """

    def __init__(
        self,
        disk: Disk,
        state: State,
        segments: Segments,
        mutex: Guard,
        sources: list[SegmentInfo],
        limit_bytes: int,
        hole_items: int,
    ) -> None:
        self._disk = disk
        self._state = state
        self._segments = segments
        self._mutex = mutex
        self._left = sources[::-1]
        self._limit_bytes = limit_bytes
        disk.failpoint("compact.1 make target")
        with _room_in(segments.directory):
            self.target = segments.create_aside(min(sum(info.live_bytes for info in sources), limit_bytes))
        self.done: list[int] = []
        """The sources that were copied whole."""
        self.unreadable: list[int] = []
        """The sources that were left as they are, for the same reasons."""
        self.damage: list[CorruptionError] = []
        """What is wrong with those that are damaged."""
        self._writer = _Writer(disk, self.target, hole_items, segments.envelopes.encoder(disk))
        self._steps: Generator[None, None, None] = (None for _ in ())

    @property
    def copied_bytes(self) -> int:
        """How many bytes of blocks were written to the target."""
        return self._writer.written_bytes

    def step(self) -> bool:
        """Copy a block, or some small ones; whether there is more to copy."""
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
        """Make the target durable; what is then to be committed, if anything is. Sources not yet copied stay."""
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
        """Let go of the source that is being copied, and of the target's file."""
        self._steps.close()
        self.target.close()

    def _copy(self, source: SegmentInfo) -> Generator[None, None, None]:
        """Copy one source, in steps. One that was copied stays pinned, so that no trim retires it before the commit."""
        self._disk.failpoint("compact.2 copy")
        with self._mutex:
            rows = [extent.row() for extent in self._state.extents if extent.segment == source.number]
            if not rows:
                return  # drained meanwhile
            try:
                segment = self._segments.pin(source, first=True)
            except CorruptionError as damage:
                self.unreadable.append(source.number)
                self.damage.append(damage)
                return
        try:
            for row in rows:
                for _ in self._copy_extent(segment, row):
                    if self.done and self._writer.end > self._limit_bytes:
                        self._writer.drop()  # it lives in larger items than the average
                        self._left.clear()
                        return
                    self._writer.write(_START_SYNC_BYTES)
                    yield
            self._writer.keep()
            self.done.append(source.number)
        except (CorruptionError, *UNOPENED) as error:  # whoever dequeues there will hear of it, too
            self._writer.drop()
            self.unreadable.append(source.number)
            if isinstance(error, CorruptionError):
                self.damage.append(error)
        finally:
            if self.done[-1:] != [source.number]:
                with self._mutex:
                    self._segments.unpin([source.number])

    def _copy_extent(self, segment: Segment, row: ExtentRow) -> Iterator[None]:
        """Put what lives in it, yielding after each reading."""
        with self._mutex:
            runs = self._state.gone.unconsumed(row.first, row.first + row.count)
            filled = bool(runs) and self._state.gone.live_between(self._writer.next_sequence, runs[0][0]) == 0
        at, ordinal, end, end_ordinal = row.offset, row.ordinal, row.offset + row.length_bytes, row.ordinal + row.count
        base = row.first - row.ordinal
        while runs:
            wanted, ahead = runs[0][0] - base, Ahead(0, sum(runs[0]) - base, _STEP_BYTES)
            try:
                loaded = segment.load(at, ordinal, end, end_ordinal, wanted, ahead, self._segments.envelopes)
            except OSError as error:
                if error.errno in LACKING - NO_SPACE:
                    raise
                raise CorruptionError(segment.path, at, "bytes that can be read", repr(error)) from error
            if loaded.damage is not None:
                raise loaded.damage
            at, ordinal, first = loaded.next_offset, loaded.next_ordinal, base + loaded.ordinal
            while runs and runs[0][0] < base + ordinal:
                start, count = runs.pop(0)
                part = loaded.items[start - first : start - first + count]
                self._writer.put(start, part, filled)
                filled = True
                if len(part) < count:
                    runs.insert(0, (start + len(part), count - len(part)))
            yield

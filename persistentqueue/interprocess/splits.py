"""Reading beside the owner: what a queue holds, cut into *splits* that any process can read, without the lock.

A reader looks into the log (``look``), which changes nothing, and plans: each ``Split`` is a part of one extent, by the
offsets of its blocks and by the sequences of its items. Whoever has it, on any machine that sees the files under the
same paths, reads the blocks and checks them, as the owner would: they are never edited.

Two things may be otherwise than the log says. What the owner still keeps in memory, since the log carries it, is not in
the segment yet: the split brings the bytes along. And a segment may be gone by the time it is read, since its items
were consumed, or compacted, or moved: then the log is asked once more where those are that nobody has consumed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from ..core.encryption import PLAIN, Envelopes
from ..core.frame import END, LOG_MAGIC
from ..core.header import HEADER_BYTES, encode_header
from ..core.intervals import Run, within
from ..core.operations import Enqueue
from ..core.state import Extent
from ..errors import CorruptionError, PersistentQueueError, QueueNotFoundError
from ..recovery.replay import Recovered, recover
from ..storage.layout import find_generations
from ..storage.locations import DATA_DIRECTORY, Places, read_places
from ..storage.log import Replay, read_steadily
from ..storage.segment import NO_BOUND, Segment, find_salt, segment_name
from ..system.disk import READ, Disk, abspath, dirname, join, read_all, sync_directory
from ..system.trust import open_plain

_LOOKS = 10
_RELOCATIONS = 10


class GoneError(PersistentQueueError):
    """What was to be read is not in the queue any more: it was consumed since it was planned, and its file given back.

    ``missing`` is how many items. Plan once more, to read what is there now.
    """

    def __init__(self, directory: str, path: str, missing: int) -> None:
        self.path, self.missing = path, missing
        super().__init__(
            f"{directory}: {missing} items that were to be read are not there any more: they were consumed meanwhile, "
            f"and {path} was given back; nothing is damaged: read again to see what the queue holds now"
        )


class Split(NamedTuple):
    """Blocks in ``offset … end`` of a segment, with the items ``ordinal … end_ordinal - 1`` of it, whose sequences
    begin with ``first``. To be read are the sequences in ``runs``."""

    paths: tuple[str, ...]
    """Where the file is: at the first of them that is there."""
    number: int
    salt: int
    offset: int
    end: int
    ordinal: int
    end_ordinal: int
    first: int
    runs: tuple[Run, ...]
    blocks: bytes | None
    """The blocks themselves, where they are not in the file yet."""

    @property
    def items(self) -> int:
        """How many items are to be read."""
        return sum(count for _, count in self.runs)

    @property
    def length_bytes(self) -> int:
        """What they take, by average."""
        return (self.end - self.offset) * self.items // (self.end_ordinal - self.ordinal)


class Found(NamedTuple):
    """Items with the sequences from ``first`` on, in a block that was written at this time."""

    first: int
    time_ns: int
    items: list[bytes]


def look(disk: Disk, directory: str, durably: bool = False) -> tuple[Places, Recovered]:
    """What the log of the queue in this directory says, owned or not. Changes nothing.

    It is what the owner has committed, or is about to. With ``durably`` it was also made durable, so that no sequence
    comes again for another item, whatever crashes: for who writes down how far he has read. A queue that does not sync
    promises nothing like that.

    Raises ``QueueNotFoundError``, ``DataMissingError``, ``UnsupportedFormatError``, ``OSError``, ``CorruptionError``
    where it is damaged, however often one looks: an owner may replace it meanwhile; and, ``durably``, ``ValueError``
    for a queue with ``sync=False``.
    """
    directory = abspath(directory)  # a split may be read by a process that has another directory
    looks = _LOOKS
    while True:
        looks -= 1
        try:
            found = read_steadily(partial(_newest, disk, directory), lambda _: _look(disk, directory, durably))
            break
        except (CorruptionError, FileNotFoundError):  # also of what is just being written
            if not looks:
                raise
    if found is None:
        raise TimeoutError(errno.ETIMEDOUT, "its owner begins a new log again and again: look once more", directory)
    places, recovered = found
    if recovered is None:
        raise QueueNotFoundError(f"{directory}: no queue here to read")
    return places, recovered


def _newest(disk: Disk, directory: str) -> int:
    return max(find_generations(disk, directory), default=0)


def _look(disk: Disk, directory: str, durably: bool) -> tuple[Places, Recovered | None]:
    places = read_places(disk, directory)
    recovered = recover(disk, places)
    if durably and recovered is not None:
        _make_durable(disk, recovered.replay)
    return places, recovered


def _make_durable(disk: Disk, replay: Replay) -> None:
    """Make durable what was read of a log, and its name: an owner who was killed may have left both in the page cache.

    Raises ``FileNotFoundError`` where it is not the newest any more, and ``ValueError``.
    """
    if not replay.synced:
        raise ValueError(f"{replay.file}: without syncs a power cut gives sequences out again: use sync=True")
    fd = disk.open(replay.file, READ, 0)
    try:
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    sync_directory(disk, dirname(replay.file))


class Onlooker:
    """Looks at one queue again and again, for who waits for something new; where nothing is, that is a few calls of the
    system, and no sync. For one thread at a time. Pickled, it has seen nothing yet.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = abspath(directory)
        self._last: tuple[Places, Recovered] | None = None
        self._is_durable = False

    def __reduce__(self) -> tuple[type[Onlooker], tuple[Disk, str]]:
        return Onlooker, (self._disk, self._directory)

    def look(self, durably: bool = False) -> tuple[Places, Recovered]:
        """What ``look`` finds, which may be what it found the last time, and is not to be changed. Raises like it."""
        try:
            if self._last is not None and self._is_unchanged(*self._last):
                if durably and not self._is_durable:
                    _make_durable(self._disk, self._last[1].replay)
                    self._is_durable = True
                return self._last
        except (CorruptionError, FileNotFoundError):  # superseded just now
            pass
        self._last, self._is_durable = None, durably
        self._last = look(self._disk, self._directory, durably)
        return self._last

    def _is_unchanged(self, places: Places, recovered: Recovered) -> bool:
        """Whether the log is the same file, with nothing behind its last frame, and was the newest even then.

        A file that was adopted may have its usual name by now: a split says both.
        """
        disk, replay = self._disk, recovered.replay
        if replay.torn_bytes or recovered.lost_transactions:  # it may be that more of it is there by now
            return False
        fd = open_plain(disk, replay.file, READ)
        try:
            header = read_all(disk, fd, HEADER_BYTES, 0)
            behind = read_all(disk, fd, len(END), replay.end)
        finally:
            disk.close(fd)
        is_same = header == encode_header(LOG_MAGIC, replay.header) and behind == END[: len(behind)]
        newest = _newest(disk, self._directory)
        return is_same and newest == replay.header.number and read_places(disk, self._directory) == places


def plan(disk: Disk, places: Places, recovered: Recovered, runs: Iterable[Run]) -> list[Split]:
    """The splits of what nobody has consumed of these runs of sequences, in their order. Raises ``OSError``."""
    state = recovered.state
    carried = _carried(disk, places, recovered)
    splits: list[Split] = []
    for first, count in runs:
        end = first + count
        for extent in state.extents_from(first):
            if extent.first >= end:
                break
            wanted = state.gone.unconsumed(max(first, extent.first), min(end, extent.end))
            if wanted:
                splits += _plan_extent(places, recovered, extent, wanted, carried.get(extent.segment, ()))
    return splits


def partition(splits: Sequence[Split], most_bytes: int) -> list[list[Split]]:
    """The splits in groups of about so many bytes at most, in their order, cut where they are larger."""
    groups: list[list[Split]] = []
    room_bytes = -1
    for split in splits:
        for part in _cut(split, -(-split.length_bytes // most_bytes)):
            if part.length_bytes > room_bytes:
                groups.append([])
                room_bytes = most_bytes
            groups[-1].append(part)
            room_bytes -= part.length_bytes
    return groups


def read(
    disk: Disk,
    directory: str,
    split: Split,
    skips: bool = False,
    relocations: int = _RELOCATIONS,
    envelopes: Envelopes = PLAIN,
) -> Iterator[Found]:
    """The items of a split, in order, each block checked; those that have another place by now from there.

    Raises ``CorruptionError`` for what does not check out, and ``GoneError`` for what is not there any more, unless it
    ``skips`` that; ``MissingExtraError`` and ``WrongKeyError`` for what ``envelopes`` does not open; and what ``look``
    raises.
    """
    end = split.runs[0][0]
    try:
        for found in _read(disk, split, envelopes):
            yield found
            end = found.first + len(found.items)
    except CorruptionError:
        if not relocations or not _is_gone(disk, split):
            raise
    left = within(split.runs, end, sum(split.runs[-1]))
    if not left:
        return
    places, recovered = look(disk, directory)
    again = plan(disk, places, recovered, left)
    missing = sum(count for _, count in left) - sum(each.items for each in again)
    if missing and not skips:
        raise GoneError(directory, split.paths[-1], missing)
    for each in again:
        yield from read(disk, directory, each, skips, relocations - 1, envelopes)


def find_behind(disk: Disk, split: Split, envelopes: Envelopes) -> int:
    """The sequence with which the first block begins behind the one that is to be read first, which is damaged.

    Raises ``CorruptionError`` if that is not so, and what ``read`` raises for what cannot be opened.
    """
    first = split.first - split.ordinal
    try:
        with _opened(disk, split) as segment:
            loaded = segment.load(
                split.offset, split.ordinal, split.end, split.end_ordinal, split.runs[0][0] - first, NO_BOUND, envelopes
            )
    except CorruptionError:  # there is no such file, or it is another one
        return first + split.end_ordinal
    if loaded.damage is None:
        raise CorruptionError(split.paths[-1], split.offset, "damage, as there was just now", "none")
    return first + loaded.next_ordinal + loaded.lost


def _read(disk: Disk, split: Split, envelopes: Envelopes) -> Iterator[Found]:
    runs = list(reversed(split.runs))
    wanted = split.ordinal + runs[-1][0] - split.first
    with _opened(disk, split) as segment:
        for header, items in segment.blocks(
            split.offset, split.ordinal, split.end, split.end_ordinal, wanted, envelopes
        ):
            first = split.first + header.ordinal - split.ordinal
            end = first + header.count
            while runs and runs[-1][0] < end:
                start, count = runs.pop()
                stop = min(start + count, end)
                yield Found(start, header.time_ns, items[start - first : stop - first])
                if stop < start + count:
                    runs.append((stop, start + count - stop))
            if not runs:
                return


@contextmanager
def _opened(disk: Disk, split: Split) -> Iterator[Segment]:
    """The segment, or what there is of it. Raises ``CorruptionError``."""
    if split.blocks is not None:
        segment = Segment(disk, split.paths[0], -1, split.number, split.salt, 0)
        segment.end = split.offset
        segment.defer([split.blocks], len(split.blocks), split.end_ordinal - split.ordinal)
        yield segment
        return
    segment = Segment.open_to_read(disk, split.paths, split.number, split.salt)
    try:
        yield segment
    finally:
        segment.close()


def _is_gone(disk: Disk, split: Split) -> bool:
    """Whether the file is none of the queue's any more, so that it tells nothing that it does not check out."""
    for path in split.paths:
        try:
            if find_salt(disk, path, split.number) == split.salt:
                return False
        except CorruptionError:
            if _exists(disk, path):
                return False
    return True


def _exists(disk: Disk, path: str) -> bool:
    try:
        disk.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _plan_extent(
    places: Places, recovered: Recovered, extent: Extent, runs: Sequence[Run], carried: Sequence[Enqueue]
) -> Iterator[Split]:
    """The splits of one extent, cut around the blocks that the log carries and the file has not."""
    info = recovered.state.segments[extent.segment]
    usual = places.path(join(DATA_DIRECTORY, segment_name(info.number)))
    paths = tuple(dict.fromkeys((recovered.path(places, info.number), usual)))
    pieces: list[tuple[int, int, int, int, bytes | None]] = []
    at, ordinal = extent.offset, extent.ordinal
    end, end_ordinal = extent.offset + extent.length_bytes, extent.ordinal + extent.count
    # Neighbours in the file may be of two extents, where what lay between them is gone.
    for each in map(_joined, _neighbours(each for each in carried if extent.offset <= each.offset < end)):
        behind, high = each.offset + each.length_bytes, each.ordinal + each.count
        pieces.append((at, each.offset, ordinal, each.ordinal, None))
        pieces.append((each.offset, behind, each.ordinal, high, each.inline))
        at, ordinal = behind, high
    pieces.append((at, end, ordinal, end_ordinal, None))
    for begin, behind, low, high, blocks in pieces:
        first = extent.first + low - extent.ordinal
        wanted = within(runs, first, first + high - low)
        if wanted:
            yield Split(paths, info.number, info.salt, begin, behind, low, high, first, wanted, blocks)


def _carried(disk: Disk, places: Places, recovered: Recovered) -> dict[int, list[Enqueue]]:
    """What the log carries and the segments do not have yet, by segment, in order."""
    by_segment: dict[int, list[Enqueue]] = {}
    for operation in recovered.redo:
        by_segment.setdefault(operation.segment, []).append(operation)
    return {number: _lacking(disk, recovered.path(places, number), each) for number, each in by_segment.items()}


def _lacking(disk: Disk, path: str, operations: Iterable[Enqueue]) -> list[Enqueue]:
    """Those of the operations whose blocks the file has not, in order."""
    groups = _neighbours(sorted(operations, key=attrgetter("offset")))
    try:
        fd = open_plain(disk, path, READ)
    except FileNotFoundError:
        return [each for group in groups for each in group]
    lacking: list[Enqueue] = []
    try:
        for group in groups:
            start = group[0].offset
            data = read_all(disk, fd, _ends(group[-1])[1] - start, start)
            lacking += [each for each in group if data[each.offset - start : _ends(each)[1] - start] != each.inline]
    finally:
        disk.close(fd)
    return lacking


def _neighbours(operations: Iterable[Enqueue]) -> list[list[Enqueue]]:
    """The operations in groups that lie, and are numbered, one behind the other."""
    groups: list[list[Enqueue]] = []
    for each in operations:
        if groups and _ends(groups[-1][-1]) == (each.first, each.offset, each.ordinal):
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _ends(operation: Enqueue) -> tuple[int, int, int]:
    """What comes behind it: sequence, offset, ordinal."""
    first, count, _, offset, length_bytes, ordinal, _, _ = operation
    return first + count, offset + length_bytes, ordinal + count


def _joined(group: Sequence[Enqueue]) -> Enqueue:
    blocks = b"".join(each.inline or b"" for each in group)
    return group[0]._replace(count=sum(each.count for each in group), length_bytes=len(blocks), inline=blocks)


def _cut(split: Split, parts: int) -> Iterator[Split]:
    """The split in so many parts, of about as many items each."""
    if parts <= 1:
        yield split
        return
    most = -(-split.items // parts)
    some: list[Run] = []
    room = most
    for first, count in split.runs:
        at, left = first, count
        while left:
            taken = min(left, room)
            some.append((at, taken))
            at, left, room = at + taken, left - taken, room - taken
            if not room:
                yield split._replace(runs=tuple(some))
                some, room = [], most
    if some:
        yield split._replace(runs=tuple(some))

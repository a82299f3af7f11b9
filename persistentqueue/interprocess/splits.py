"""Reading beside the owner: the content of a queue, cut into *splits* that any process can read without the lock.

A reader looks into the log with ``look``, which changes nothing, and plans with ``plan``. Each ``Split`` is a part of
one extent, given by the offsets of its blocks and the sequences of its items. Any process, on any machine that sees
the files under the same paths, can read the blocks of a split. It checks them as the owner does. Blocks are never
edited.

A segment may differ from the log in two ways:

- A block that is deferred is in the owner's memory and in the log, and not yet in the segment: the split carries its
  bytes.
- The segment may be gone when it is read, since its items were consumed, compacted or moved. Then the reader asks the
  log again where the items are that are not consumed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple, TypeVar

from ..core.block import Columns
from ..core.encryption import PLAIN, Envelopes
from ..core.intervals import Run, within
from ..core.operations import Enqueue
from ..core.state import Extent, State
from ..drawing.text import many
from ..errors import (
    CorruptionError,
    MissingExtraError,
    PersistentQueueError,
    QueueNotFoundError,
    WrongKeyError,
)
from ..recovery.in_doubt import MayDecide, is_decided
from ..recovery.replay import Recovered, advance, recover
from ..storage.layout import MAKE_FIRST, find_generations, no_queue
from ..storage.locations import DATA_DIRECTORY, Places, read_places
from ..storage.log_reader import SNAPSHOT, Last, Replay, last_of, read_further, read_steadily
from ..storage.relocation import need_data, need_own_location
from ..storage.segment import NO_BOUND, FoundBlock, Segment, segment_name
from ..system.bad_pages import read_around
from ..system.disk import Disk, abspath, dirname, join
from ..system.files import sync_directory
from ..system.trust import opened_plain

T = TypeVar("T")
_RELOCATIONS = 10


class GoneError(PersistentQueueError):
    """Items of a split are not in the queue any more: they were consumed since the split was planned.

    Nothing is damaged. ``path`` is the file that held the items, and ``missing`` their number. Plan again to read what
    the queue holds now.
    """

    def __init__(self, directory: str, path: str, missing: int) -> None:
        self.path, self.missing = path, missing
        super().__init__(
            f"{directory}: {many(missing, 'item')} of those that were planned to be read were consumed meanwhile, and "
            f"the segment {path} was retired; nothing is damaged: read again to see what the queue holds now"
        )


class Split(NamedTuple):
    """Blocks of one segment, with the sequences among their items that are to be read.

    The blocks lie at ``offset … end`` and hold the items ``ordinal … end_ordinal - 1`` of the segment. The first of
    these items has the sequence ``first``. The sequences in ``runs`` are to be read. A split can be pickled.
    """

    paths: tuple[str, ...]
    """Candidate paths of the file; the first that exists is used."""
    number: int
    salt: int
    offset: int
    end: int
    ordinal: int
    end_ordinal: int
    first: int
    runs: tuple[Run, ...]
    blocks: bytes | None
    """Bytes of the blocks, if they are not in the file yet; else None."""

    @property
    def items(self) -> int:
        """Number of items that are to be read."""
        return sum(count for _, count in self.runs)

    @property
    def length_bytes(self) -> int:
        """Bytes that these items take, computed from the average item."""
        return (self.end - self.offset) * self.items // (self.end_ordinal - self.ordinal)


class Found(NamedTuple):
    """Items of one block, with consecutive sequences from ``first`` on, and the time at which the block was written."""

    first: int
    time_ns: int
    items: list[bytes]


class FoundRun(NamedTuple):
    """Consecutive sequences of one block: ``count`` from ``first`` on, and the time at which the block was written.

    With ``columns``, they are the items ``start … start + count - 1`` of these columns, which are the whole block.
    """

    first: int
    count: int  # type: ignore[assignment]
    time_ns: int
    start: int
    columns: Columns | None


def look(
    disk: Disk, directory: str, durably: bool = False, decide: MayDecide | None = None
) -> tuple[Places, Recovered]:
    """Return the state that the log of a queue adds up to, whether the queue is owned or not. Nothing is changed.

    The state is what the owner has committed, or is about to commit.

    Args:
        disk: The access to the file system.
        directory: The directory of the queue.
        durably: Whether to make durable what was read. No crash can then give a sequence to another item. A caller
            needs this before it records how far it has read. Default: False.
        decide: Returns whether the last transaction, if it covers several queues and the log does not have its outcome,
            is committed. Default None: the state does not contain it.

    Returns:
        The locations of the queue, and its state.

    Raises:
        QueueNotFoundError: There is no queue in the directory.
        DataMissingError: The location of the segments is not there.
        DataPathError: The directory is the location of another queue's segments; or it is a copy without segments of
            its own.
        UnsupportedFormatError: A newer version has written the queue.
        CorruptionError: The queue is damaged: ten looks have found it so. A single look may meet a file that the owner
            replaces.
        MemoryShortageError: The log takes more memory than this process may have.
        TimeoutError: The owner replaced the log during each look.
        ValueError: ``durably`` is True, and the queue has ``sync=False``: it cannot promise that.
        OSError: A file cannot be read or synced for another reason.

    With ``durably``, the state is durable on return. Any number of threads and processes may call it at the same time.
    """
    directory = abspath(directory)  # a split may be read by a process that has another working directory
    find = partial(find_generations, disk, directory)
    found = read_steadily(find, lambda _: _look(disk, directory, durably, decide), SNAPSHOT)
    if found is None:
        raise TimeoutError(errno.ETIMEDOUT, "the owner replaced the log during each look: look again", directory)
    places, recovered = found
    if recovered is None:
        raise no_queue(disk, directory, "to read", MAKE_FIRST)
    return places, recovered


def _look(disk: Disk, directory: str, durably: bool, decide: MayDecide | None) -> tuple[Places, Recovered | None]:
    places = read_places(disk, directory)
    need_own_location(disk, places)
    recovered = recover(disk, places, decide)
    if recovered is not None and recovered.state.extents:  # without an item, no segment is needed
        need_data(disk, places, recovered.replay)
    if durably and recovered is not None:
        _make_durable(disk, recovered.replay)
    return places, recovered


def _make_durable(disk: Disk, replay: Replay) -> None:
    """Make durable what was read of a log, and its name: a killed owner may have left both in the page cache only.

    Raises ``FileNotFoundError`` if it is not the newest log any more, and ``ValueError`` if the queue is not synced.
    """
    if not replay.synced:
        raise ValueError(
            f"{replay.file}: the log is not synced, so a power cut may give a sequence to another item: open the queue "
            "with sync=True"
        )
    with disk.opened(replay.file) as fd:
        disk.fdatasync(fd)
    sync_directory(disk, dirname(replay.file))


class Onlooker:
    """A reader that looks at one queue again and again, for a caller that waits for new items.

    A further look reads only what was appended to the log meanwhile. If that is nothing, it costs a few system calls
    and no sync. A pickled copy has not looked yet.

    Args:
        disk: The access to the file system.
        directory: The directory of the queue.
        asks: Whether to ask the coordinator's log for the outcome of a transaction over several queues, if the queue's
            own log does not have it. That outcome may not be durable, even with ``durably``. Default: False.

    An onlooker is for one thread at a time.
    """

    def __init__(self, disk: Disk, directory: str, asks: bool = False) -> None:
        self._disk = disk
        self._directory = abspath(directory)
        self._decide = partial(is_decided, disk, self._directory) if asks else None
        self._last: tuple[Places, Recovered] | None = None
        self._end = Last(0, 0, 0)
        """The last frame of the log that the last look has found."""
        self._is_durable = False
        self.beginnings = 0
        """Number of looks that have read a log from its beginning. The log may then be that of a restored backup, in
        which sequences have other items."""

    def __reduce__(self) -> tuple[type[Onlooker], tuple[Disk, str, bool]]:
        """Return how to rebuild an onlooker of this queue that has not looked yet."""
        return Onlooker, (self._disk, self._directory, self._decide is not None)

    def look(self, durably: bool = False) -> tuple[Places, Recovered]:
        """Return what the function ``look`` finds. It may be the result of the last call, and must not be changed.

        Args:
            durably: Whether to make durable what was read; see the function ``look``. Default: False.

        Returns:
            The locations of the queue, and its state.

        Raises:
            PersistentQueueError: One of the errors of the function ``look``.
            ValueError: ``durably`` is True, and the queue has ``sync=False``.
            OSError: A file cannot be read or synced. A ``TimeoutError`` means that the owner replaced the log during
                each look.

        With ``durably``, the state is durable on return. An onlooker is for one thread at a time.
        """
        try:
            found = self._look_further()
            if found is not None:
                if durably and not self._is_durable:
                    _make_durable(self._disk, found[1].replay)
                    self._is_durable = True
                return found
        except (CorruptionError, FileNotFoundError):  # a newer generation has just replaced this log
            pass
        self._last = None
        self.beginnings += 1
        places, recovered = look(self._disk, self._directory, durably, self._decide)
        return self._keep(places, recovered, durably)

    def _look_further(self) -> tuple[Places, Recovered] | None:
        """Return the last result with what the log has got since, and read no more than that. Return None if the whole
        log must be read.

        An adopted file may have its usual name by now: a split holds both names.
        """
        if self._last is None:
            return None
        disk, (places, recovered) = self._disk, self._last
        may_be_decided = recovered.prepared is not None and self._decide is not None
        if recovered.replay.torn_bytes or recovered.lost_transactions or may_be_decided:  # more may be there by now
            return None
        further = read_further(disk, recovered.replay, self._end)
        # Behind the reading: a log that was superseded may have been overwritten meanwhile.
        newest = find_generations(disk, self._directory)[-1:]
        if further is None or newest != [further.header.number] or read_places(disk, self._directory) != places:
            return None
        if not further.frames:
            return self._last
        following = advance(disk, places, recovered, further)
        if following is not None and following.state.extents:
            need_data(disk, places)
        return self._keep(places, following, False) if following is not None else None

    def _keep(self, places: Places, recovered: Recovered, is_durable: bool) -> tuple[Places, Recovered]:
        """Keep the result, without its frames: the state has their content, in less memory."""
        self._end, self._is_durable = last_of(recovered.replay.frames), is_durable
        recovered.replay = recovered.replay._replace(frames=[])
        self._last = places, recovered
        return self._last


def plan(disk: Disk, places: Places, recovered: Recovered, runs: Iterable[Run]) -> list[Split]:
    """Return the splits of the items in these runs that are not consumed.

    Args:
        disk: The access to the file system.
        places: The locations of the queue, as ``look`` returned them.
        recovered: The state of the queue, as ``look`` returned it.
        runs: The sequences to read, as ``(first, count)``, in their order.

    Returns:
        The splits, in the order of their sequences.

    Raises:
        OSError: A file cannot be read.
        CorruptionError: A file of the queue is not a regular file.

    The call only reads. Any number of threads and processes may call it at the same time.
    """
    carried = _carried(disk, places, recovered)
    splits: list[Split] = []
    # Each extent is planned once, with all its runs: each block is read once, however many gaps it has.
    for extent, parts in groupby(_wanted(recovered.state, runs), itemgetter(0)):
        wanted = [run for _, part in parts for run in part]
        splits += _plan_extent(places, recovered, extent, wanted, carried.get(extent.segment, ()))
    return splits


def _wanted(state: State, runs: Iterable[Run]) -> Iterator[tuple[Extent, list[Run]]]:
    """Yield the extents with items in these runs that are not consumed, with the runs of these items."""
    for first, count in runs:
        end = first + count
        for extent in state.extents_from(first):
            if extent.first >= end:
                break
            wanted = state.gone.unconsumed(max(first, extent.first), min(end, extent.end))
            if wanted:
                yield extent, wanted


def partition(splits: Sequence[Split], count: int, slack: float = 0.0) -> list[list[Split]]:
    """Return the splits in ``count`` groups of about as many bytes, or in fewer if some items are longer than that.

    Args:
        splits: The splits, in their order. Each has an item.
        count: The number of groups; at least 1.
        slack: The part of a group by which it may be longer or shorter, so that a split is not cut. A task that begins
            in the middle of a segment reads about a block more, to find its first one. Default 0.

    Returns:
        The groups. Neither the order of the splits nor that of their items changes.

    The function reads no file. Any number of threads may call it at the same time.
    """
    left_bytes = sum(split.length_bytes for split in splits)
    room_bytes, near_bytes, number = left_bytes // count, int(left_bytes / count * slack), 0
    groups: dict[int, list[Split]] = {}
    for split in splits:
        items, length_bytes, done = split.items, split.length_bytes, 0
        while done < items:
            done_bytes, upto = length_bytes * done // items, items
            if length_bytes - done_bytes > room_bytes + near_bytes and number < count - 1:
                upto = done + (items * room_bytes // length_bytes if room_bytes > near_bytes else 0)
            if upto > done:
                groups.setdefault(number, []).append(split._replace(runs=_part(split.runs, done, upto)))
                taken_bytes = length_bytes * upto // items - done_bytes
                left_bytes, room_bytes = left_bytes - taken_bytes, room_bytes - taken_bytes
            if upto < items:  # the other groups share the rest, without those that are too small for an item
                number = max(number + 1, count - left_bytes // max(length_bytes // items - near_bytes, 1))
                room_bytes = left_bytes // (count - number)
            done = upto
    return list(groups.values())


def read(
    disk: Disk, directory: str, split: Split, skips: bool = False, envelopes: Envelopes = PLAIN
) -> Iterator[Found]:
    """Read the items of a split, in their order, and check each block.

    If items are not in the file any more, they are read where the log says that they are now.

    Args:
        disk: The access to the file system.
        directory: The directory of the queue.
        split: The split, as ``plan`` or ``partition`` returned it.
        skips: Whether to skip items that are not in the queue any more. Default: False.
        envelopes: Opens blocks that are compressed or encrypted. The default opens compressed blocks, and has no key.

    Yields:
        The items, block by block, as ``Found``.

    Raises:
        CorruptionError: A block is damaged, or the items have moved ten times.
        GoneError: Items are not in the queue any more, and ``skips`` is False.
        MissingExtraError: A package that a block needs is not installed.
        WrongKeyError: A block is encrypted, and ``envelopes`` does not have its key.
        PersistentQueueError: One of the errors of ``look``.
        OSError: A file cannot be read. A ``TimeoutError`` means that the owner replaced the log during each look.

    The call only reads. Any number of threads and processes may read splits at the same time.
    """
    for first, count, time_ns, start, items in _read(disk, directory, split, skips, _RELOCATIONS, envelopes, items_of):
        yield Found(first, time_ns, items[start : start + count])


def read_columns(
    disk: Disk,
    directory: str,
    split: Split,
    skips: bool = False,
    *,
    has_values: bool = True,
    is_wanted: Callable[[int], bool] = lambda _: True,
) -> Iterator[FoundRun]:
    """Read the items of a split as columns, without an object for each item, and check each block like ``read``.

    Compressed blocks are opened, and there is no key for encrypted ones.

    Args:
        disk: The access to the file system.
        directory: The directory of the queue.
        split: The split, as ``plan`` or ``partition`` returned it.
        skips: Whether to skip items that are not in the queue any more. Default: False.
        has_values: Whether to read the items. If it is False, only the headers of blocks are read and checked, for
            which no key is needed. Default: True.
        is_wanted: A function of the time of a block. If it returns False, only the header of the block is read, and
            its items are left out. Default: All blocks are read.

    Yields:
        The sequences, block by block, as ``FoundRun``.

    Raises:
        PersistentQueueError: One of the errors of ``read``.
        OSError: A file cannot be read. A ``TimeoutError`` means that the owner replaced the log during each look.

    The call only reads. Any number of threads and processes may read splits at the same time.
    """

    def take(block: FoundBlock) -> Columns | None:
        return block.columns() if has_values and is_wanted(block.header.time_ns) else None

    for first, count, time_ns, start, columns in _read(disk, directory, split, skips, _RELOCATIONS, PLAIN, take):
        if is_wanted(time_ns):
            yield FoundRun(first, count, time_ns, start, columns)


def _read(
    disk: Disk,
    directory: str,
    split: Split,
    skips: bool,
    relocations: int,
    envelopes: Envelopes,
    take: Callable[[FoundBlock], T],
) -> Iterator[tuple[int, int, int, int, T]]:
    """Yield what ``read_here`` yields.

    If items are not in the file any more, they are read where the log says that they are now, ``relocations`` times at
    most.
    """
    end = split.runs[0][0]
    try:
        for found in read_here(disk, split, envelopes, take):
            yield found
            end = found[0] + found[1]
    except CorruptionError:
        if not relocations:
            raise
        # The segment may be retired: then it is shortened or overwritten while it still has its name. The block is
        # damaged only if the log, read after that failure, still says that the items are there.
        rest = rest_of(split, end)
        places, recovered = look(disk, directory)
        again = plan(disk, places, recovered, rest.runs)
        if again and is_same(again[0], split):
            raise
    else:
        return
    missing = rest.items - sum(each.items for each in again)
    if missing and not skips:
        raise GoneError(directory, split.paths[-1], missing)
    for each in again:
        yield from _read(disk, directory, each, skips, relocations - 1, envelopes, take)


def wrong_keys(disk: Disk, directory: str, envelopes: Envelopes = PLAIN) -> Iterator[WrongKeyError]:
    """Yield the errors of the oldest and the newest item of a queue if these envelopes do not have their keys.

    An item that cannot be read for another reason, or that is consumed meanwhile, tells nothing, and neither does a
    queue that is not there. Raises ``OSError``.
    """
    unread = CorruptionError, MissingExtraError, PermissionError
    with suppress(QueueNotFoundError, *unread):
        places, recovered = look(disk, directory)
        runs = recovered.state.gone.unconsumed(0, recovered.state.next_sequence)
        for sequence in {runs[0][0], sum(runs[-1]) - 1} if runs else ():
            for split in plan(disk, places, recovered, [(sequence, 1)]):
                try:
                    with suppress(*unread):  # of one end: the other one may tell
                        next(read(disk, directory, split, skips=True, envelopes=envelopes), None)
                except WrongKeyError as error:
                    yield error


def rest_of(split: Split, end: int) -> Split:
    """Return the split without the sequences below ``end``."""
    return split._replace(runs=within(split.runs, end, sum(split.runs[-1])))


def is_same(split: Split, failed: Split) -> bool:
    """Return whether a later plan has the split that could not be read: the log says that its items are there."""
    return split[:3] == failed[:3] and split.runs == failed.runs


def find_behind(disk: Disk, split: Split, envelopes: Envelopes) -> int:
    """Return the sequence with which the first intact block behind a damaged one begins.

    The damaged block is the one that the split has to read first. Raises ``CorruptionError`` if that block is not
    damaged, and what ``read`` raises for a block that cannot be opened.
    """
    first = split.first - split.ordinal
    try:
        with _opened(disk, split) as segment:
            loaded = segment.load(
                split.offset, split.ordinal, split.end, split.end_ordinal, split.runs[0][0] - first, NO_BOUND, envelopes
            )
    except CorruptionError:  # the file is missing, or is another one
        return first + split.end_ordinal
    if loaded.damage is None:
        raise CorruptionError(split.paths[-1], split.offset, "the damage that was there just now", "none")
    return first + loaded.next_ordinal + loaded.lost


def items_of(block: FoundBlock) -> list[bytes]:
    """Return the items of the block, which is read and checked."""
    return block.items()


def read_here(
    disk: Disk, split: Split, envelopes: Envelopes, take: Callable[[FoundBlock], T]
) -> Iterator[tuple[int, int, int, int, T]]:
    """Yield the fields of a ``FoundRun``, and at the end of each the result of ``take`` for its block.

    Only the file of the split is read, or the bytes that it carries. Raises ``CorruptionError``, and what ``take``
    raises.
    """
    runs = list(reversed(split.runs))
    wanted = split.ordinal + runs[-1][0] - split.first
    with _opened(disk, split) as segment:
        for block in segment.blocks(split.offset, split.ordinal, split.end, split.end_ordinal, wanted, envelopes):
            header = block.header
            first = split.first + header.ordinal - split.ordinal
            end = first + header.count
            if runs[-1][0] >= end:
                continue
            body = take(block)
            while runs and runs[-1][0] < end:
                start, count = runs.pop()
                stop = min(start + count, end)
                yield start, stop - start, header.time_ns, start - first, body
                if stop < start + count:
                    runs.append((stop, start + count - stop))
            if not runs:
                return


@contextmanager
def _opened(disk: Disk, split: Split) -> Iterator[Segment]:
    """Open the segment of the split, or make one of the bytes that the split carries. Raises ``CorruptionError``."""
    if split.blocks is not None:
        segment = Segment(disk, split.paths[0], -1, split.number, split.salt, 0)
        segment.end = split.offset
        segment.defer([split.blocks], len(split.blocks), split.end_ordinal - split.ordinal)
        yield segment
        return
    with closing(Segment.open_to_read(disk, split.paths, split.number, split.salt)) as segment:
        yield segment


def _plan_extent(
    places: Places, recovered: Recovered, extent: Extent, runs: Sequence[Run], carried: Sequence[Enqueue]
) -> Iterator[Split]:
    """Yield the splits of one extent, cut around the blocks that only the log has."""
    info = recovered.state.segments[extent.segment]
    usual = places.path(join(DATA_DIRECTORY, segment_name(info.number)))
    paths = tuple(dict.fromkeys((recovered.path(places, info.number), usual)))
    pieces: list[tuple[int, int, int, int, bytes | None]] = []
    at, ordinal = extent.offset, extent.ordinal
    end, end_ordinal = extent.offset + extent.length_bytes, extent.ordinal + extent.count
    # Neighbours in the file may belong to two extents, if the items between them are gone.
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
    """Return the enqueues whose blocks the log carries and the segments lack, by segment, in order."""
    by_segment: dict[int, list[Enqueue]] = {}
    for operation in recovered.redo:
        by_segment.setdefault(operation.segment, []).append(operation)
    return {number: _lacking(disk, recovered.path(places, number), each) for number, each in by_segment.items()}


def _lacking(disk: Disk, path: str, operations: Iterable[Enqueue]) -> list[Enqueue]:
    """Return the operations whose blocks the file lacks, in order."""
    groups = _neighbours(sorted(operations, key=attrgetter("offset")))
    lacking: list[Enqueue] = []
    try:
        with opened_plain(disk, path) as fd:
            for group in groups:
                start = group[0].offset
                data = read_around(disk, fd, _ends(group[-1])[1] - start, start)
                lacking += [each for each in group if data[each.offset - start : _ends(each)[1] - start] != each.inline]
    except FileNotFoundError:
        return [each for group in groups for each in group]
    return lacking


def _neighbours(operations: Iterable[Enqueue]) -> list[list[Enqueue]]:
    """Return the operations in groups; in a group, each follows the one before in sequence, offset and ordinal."""
    groups: list[list[Enqueue]] = []
    for each in operations:
        if groups and _ends(groups[-1][-1]) == (each.first, each.offset, each.ordinal):
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _ends(operation: Enqueue) -> tuple[int, int, int]:
    """Return the sequence, the offset and the ordinal behind the operation."""
    first, count, _, offset, length_bytes, ordinal, _, _ = operation
    return first + count, offset + length_bytes, ordinal + count


def _joined(group: Sequence[Enqueue]) -> Enqueue:
    """Return one operation that carries the blocks of all operations of the group."""
    blocks = b"".join(each.inline or b"" for each in group)
    return group[0]._replace(count=sum(each.count for each in group), length_bytes=len(blocks), inline=blocks)


def _part(runs: Iterable[Run], start: int, stop: int) -> tuple[Run, ...]:
    """Return the items ``start … stop - 1`` of the runs, counted from the first item of the first run."""
    found: list[Run] = []
    at = 0
    for first, count in runs:
        begin, end = max(start - at, 0), min(stop - at, count)
        if begin < end:
            found.append((first + begin, end - begin))
        at += count
    return tuple(found)

"""Salvage, the first half of ``repair``: read what is intact of a queue that does not open, or that opens with damage.

1. Every intact frame of the log counts, wherever it stands: the frames before the damage, and those behind it. The
   items that a lost frame enqueued are lost: their sequences are missing between those of the neighbouring frames. Only
   published files that it adopted are kept (see ``lost_adoptions``). The items that a lost frame consumed are delivered
   again, since the consumption is unknown. Items that were compacted behind the damage are read from their segments
   before the compaction. In a log that is not synced, a frame counts as lost if the blocks that it names are not all
   there: another block may stand in the place of one.
2. Without an intact header and checkpoint, nothing in a log can be believed. Then the blocks of all segments count, in
   their order, also behind a damaged header of a segment. Items that were consumed since the oldest of these segments
   was made are delivered again. Items that were compacted are delivered twice while their source still exists. Items of
   large transactions that were rolled back, or cut short by a crash, are delivered as well: their blocks are like all
   others. The subscriptions are lost: the plain consumer gets all items. Bytes that are in no intact block may have
   been items: they are reported, and a copy of their segment is kept. Zeros, the frame of an adopted file, and older
   blocks of a recycled one were none.
3. The blocks that the log carries are written to the segments, as at any opening. Then every block that the log names
   is read. The blocks that are not intact are lost, and nothing else. Damaged headers of segments are written again. If
   the frame that has the salt is lost, too, an intact block tells one that is as good.

Bytes that the device cannot read are damage, too. A file with such bytes is replaced by its copy, and kept.

Lost sequences count as consumed. A transaction in doubt is decided as at any opening (see ``in_doubt``). If no queue
can know its outcome any more, the transaction is dropped, and the log that holds it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain, pairwise

from ..core.block import BLOCK_HEADER_BYTES, find_equal_salt
from ..core.frame import SYNCED, Frame
from ..core.header import HEADER_BYTES, Header
from ..core.intervals import Intervals, Run, join_runs
from ..core.operations import (
    Adoption,
    Checkpoint,
    Compaction,
    Delayed,
    Delivered,
    Dequeue,
    Enqueue,
    ExtentRow,
    Operation,
    Prepare,
    SegmentCreated,
    SubscriptionOpened,
)
from ..core.state import Extent, State, StateError, Unfolding
from ..drawing.text import many
from ..errors import CorruptionError, InDoubtError
from ..storage.layout import find_copy, find_generations, keep_copy, names_in, set_aside
from ..storage.locations import DATA_DIRECTORY, INBOX_DIRECTORY, LOG_DIRECTORY, Places
from ..storage.log import generations_of, log_name, parse_log_name
from ..storage.log_reader import SALVAGE, Replay, decode_log, read_bytes
from ..storage.publication import is_published
from ..storage.segment import PUBLISHED, Intact, Segment, find_header, parse_segment_name, segment_name
from ..storage.segment_files import Segments
from ..system.bad_pages import read_needed
from ..system.disk import Disk, join
from ..system.progress import SILENT, Meter
from ..system.trust import need_regular, opened_plain
from .in_doubt import Decide
from .lost_adoptions import count_doubtful, find_adoptions, find_outrun
from .opening import finish_adoptions
from .replay import Recovered, is_written, look_into_inbox, recover, sort_files

_ABOUT_ITEMS = Dequeue | Delivered | Delayed
"""Operations about items that earlier ones have enqueued."""
_NOWHERE = 0
"""Number of a segment that never exists. Until the blocks are read, it holds the items that lost frames enqueued."""


@dataclass
class Salvaged:
    """A consistent state, with a record of what it lacks."""

    recovered: Recovered
    lost: list[Run] = field(default_factory=list)
    """Sequences that are lost."""
    skipped: int = 0
    """Number of sequences that lost frames have enqueued."""
    again: int = 0
    """Number of published files that are adopted again without a way through the inbox."""
    problems: list[str] = field(default_factory=list)
    """Problems that were found, as texts."""
    damaged: set[str] = field(default_factory=set)
    """Paths of the segments with damage."""
    copies: dict[str, str | None] = field(default_factory=dict)
    """Copies of segments, by the path of the segment. They were made before anything was written to it. None for a
    segment without a file."""
    reused: set[str] = field(default_factory=set)
    """Those of these copies that an earlier repair has made, which was cut short."""
    without_log: bool = False
    """Whether the log could not be used."""

    @property
    def kept(self) -> set[str]:
        """The copies of damaged segments."""
        return {copy for path in self.damaged if (copy := self.copies.get(path)) is not None}


def salvage(disk: Disk, places: Places, decide: Decide, meter: Meter = SILENT) -> Salvaged:
    """Read everything that is intact, and return a consistent state. ``meter`` counts the bytes.

    Raises ``OSError`` and ``UnsupportedFormatError``, but never ``CorruptionError``. Raises ``InDoubtError`` only if
    another queue may still know the outcome of a transaction.
    """
    undecided: list[str] = []

    def decide_anyway(prepare: Prepare) -> bool:
        """Return what the coordinator says; if its answer is lost, record this loss and return False."""
        try:
            return decide(prepare)
        except InDoubtError as error:
            if not error.lost:
                raise
            undecided.append(f"{error}; the transaction was dropped")
            return False

    special = list(_set_special_aside(disk, places))
    try:
        recovered = recover(disk, places, decide_anyway, meter)
        if recovered is None:
            raise CorruptionError(places.path(LOG_DIRECTORY), 0, "a log", "none")
        if recovered.lost_transactions:
            raise recovered.loss()
        salvaged = Salvaged(recovered)
    except CorruptionError as damage:
        salvaged = _salvage_log(disk, places, decide_anyway, meter)
        salvaged.problems.append(damage.damage)  # without the advice to run a repair
    salvaged.problems[:0] = special
    salvaged.problems += undecided
    finish_adoptions(disk, places, salvaged.recovered)
    try:
        _write_carried(disk, places, salvaged, meter)
        _read_blocks(disk, places, salvaged, meter)
    except StateError as contradiction:
        problems = [*salvaged.problems, f"the log contradicts itself: {contradiction}"]
        replay, copies, reused = salvaged.recovered.replay, salvaged.copies, salvaged.reused
        log_bytes = replay.end + replay.torn_bytes
        salvaged = _salvage_segments(disk, places, replay.header.number, replay.file, log_bytes)
        salvaged.problems[:0] = problems
        salvaged.copies, salvaged.reused = copies, reused
        _read_blocks(disk, places, salvaged, meter)
    _mend(disk, places, salvaged)
    for path, copy in salvaged.copies.items():
        if copy is not None and path not in salvaged.damaged and copy not in salvaged.reused:
            disk.unlink(copy)
    if salvaged.problems:
        _set_rest_aside(disk, places, salvaged)
    return salvaged


def _set_rest_aside(disk: Disk, places: Places, salvaged: Salvaged) -> None:
    """Have all files set aside that nothing refers to, except files that were published: those are adopted again."""
    # The log, even if it is sealed, and the files that nothing refers to must not be deleted: they may hold items
    # that are missing. So the log is marked as torn, and these files are set aside.
    recovered = salvaged.recovered
    replay = recovered.replay
    header = replay.header._replace(flags=replay.header.flags & SYNCED)
    recovered.replay = replay._replace(header=header, torn_bytes=max(replay.torn_bytes, 1))
    sort_files(disk, places, recovered, generations_of(names_in(disk, places.path(LOG_DIRECTORY))))
    if salvaged.without_log:
        recovered.keep_segments()
    recovered.sweep, recovered.set_aside = [], recovered.sweep + recovered.set_aside
    doubtful = salvaged.again + sum(map(is_published, recovered.orphans.values()))
    doubtful += count_doubtful(disk, places, recovered.state.markers, salvaged.skipped)
    if doubtful:
        salvaged.problems.append(
            f"{places.path(INBOX_DIRECTORY)}: {many(doubtful, 'published file')} may have been adopted by a lost "
            "frame: the items come behind all others, also those that were consumed before"
        )


def _set_special_aside(disk: Disk, places: Places) -> Iterator[str]:
    """Set aside what has the name of a log or a segment and is not a regular file; yield a problem for each."""
    for part, parse in ((LOG_DIRECTORY, parse_log_name), (DATA_DIRECTORY, parse_segment_name)):
        for name in names_in(disk, places.path(part)):
            path = places.path(join(part, name))
            if parse(name) is not None:
                try:
                    need_regular(disk, path)
                except CorruptionError as damage:
                    yield str(damage)
                    set_aside(disk, path)


def _salvage_log(disk: Disk, places: Places, decide: Decide, meter: Meter) -> Salvaged:
    """Read every intact frame of the newest log; use the segments alone if its header or checkpoint is damaged."""
    try:
        generation = max(find_generations(disk, places.directory, places), default=0)
    except CorruptionError:
        generation = 0
    path = places.path(join(LOG_DIRECTORY, log_name(generation)))
    data = read_bytes(disk, path) if generation else b""
    try:
        intact = decode_log(data, path, SALVAGE, meter)
        state = State.restore(intact.checkpoint, intact.supplement)
    except (CorruptionError, StateError):
        return _salvage_segments(disk, places, generation, path, len(data))
    salvaged = Salvaged(Recovered(state, intact))
    salts = {number: segment.salt for number, segment in state.segments.items()}
    doubted, inbox, unfolding = False, look_into_inbox(disk, places), Unfolding()
    markers = state.markers  # a copy from the first lost frame on
    for at, (before, frame) in enumerate(pairwise(intact.frames), 1):
        if frame.offset > before.end:
            salvaged.recovered.has_gaps = True
            doubted, markers = True, markers if doubted else state.markers.copy()
            proven = find_adoptions(disk, places, data, before.end, frame.offset, inbox)
            # Behind a prepare, the numbers of the next frame must tell first whether the prepared items are there.
            for adoption in proven if unfolding.prepared is None else ():
                _salvage_adoption(salvaged, adoption, intact.frames[at:], inbox)
        operations = unfolding.counting_anyway(frame)
        if not intact.synced and not _has_blocks(disk, places, salts, operations, inbox):
            doubted, markers = True, markers if doubted else state.markers.copy()
            _drop_frame(places, salvaged, frame, operations)
        else:
            _salvage_frame(disk, places, salvaged, frame, operations, doubted=doubted, inbox=inbox)
        meter.advance(frame.end - frame.offset)
    salvaged.recovered.prepared = unfolding.prepared
    if unfolding.prepared is not None:
        prepare, held = unfolding.prepared
        try:
            _skip(salvaged, _end_before_all(held) - state.next_sequence if doubted else 0)
            salvaged.recovered.resolve(decide(prepare))
        except (StateError, CorruptionError) as damage:
            salvaged.recovered.prepared = None
            salvaged.problems.append(str(damage))
    adopted = salvaged.recovered.adopted.values()
    files = {name: path for name, path in inbox.items() if path not in adopted}
    for adoption in find_outrun(disk, places, state, intact.checkpoint.next_segment, markers, files):
        salvaged.again += _salvage_adoption(salvaged, adoption, (), files)
    return salvaged


def _salvage_adoption(
    salvaged: Salvaged, operations: list[Operation], behind: Iterable[Frame], inbox: Mapping[str, str]
) -> bool:
    """Apply the adoption of a lost frame if its items fit before those of the intact frames ``behind``; return whether
    they do."""
    recovered, state = salvaged.recovered, salvaged.recovered.state
    enqueued = [each for each in operations if isinstance(each, Enqueue)]
    first, end = enqueued[0].first, enqueued[-1].first + enqueued[-1].count
    later = chain.from_iterable(transaction for frame in behind for transaction in frame.transactions)
    stop = _end_before_all(later, max(end if first == state.next_sequence else 0, state.next_sequence))
    is_new = all(each.segment not in state.segments for each in operations if isinstance(each, Adoption))
    if is_new and state.next_sequence <= first and end <= stop:
        _skip(salvaged, first - state.next_sequence)
        for operation in operations:
            state.apply(operation)
            recovered.note(operation, inbox)
        recovered.transactions += 1
        return True
    return False


def _has_blocks(
    disk: Disk, places: Places, salts: dict[int, int], operations: list[Operation], inbox: Mapping[str, str]
) -> bool:
    """Return whether the blocks of these operations are the ones that were written. ``salts`` is extended.

    A damaged header of a segment does not matter, since it is written again.
    """
    for each in operations:
        if isinstance(each, Enqueue) and each.segment not in salts:
            with suppress(CorruptionError):
                salts[each.segment] = _salt_for(disk, places, each)
    return is_written(disk, places, operations, salts, inbox, trusted=True)


def _salt_for(disk: Disk, places: Places, operation: Enqueue) -> int:
    """Return the salt of a segment whose creation was in a lost frame.

    If its header is damaged, too, the first block of the operation tells a salt that is as good. The operation proves
    that block: it carries it, or has its checksum. Raises ``CorruptionError``.
    """
    path = places.path(join(DATA_DIRECTORY, segment_name(operation.segment)))
    try:
        return find_header(disk, path, operation.segment).salt
    except CorruptionError:
        block = operation.inline if operation.inline is not None else _read_head(disk, path, operation.offset)
        salt = find_equal_salt(block, operation.offset)
        if not is_written(disk, places, [operation], {operation.segment: salt}, {}, trusted=True):
            raise
        return salt


def _drop_frame(places: Places, salvaged: Salvaged, frame: Frame, operations: list[Operation]) -> None:
    """Drop a frame that lacks a block: the items that it enqueued are lost, and those that it consumed come again.

    Its other blocks cannot be proven: at their places, blocks of an older transaction that was rolled back may stand.
    """
    state, paths = salvaged.recovered.state, dict[str, None]()
    for operation in operations:
        if isinstance(operation, SegmentCreated) and operation.number not in state.segments:
            state.apply(operation)  # later frames may name blocks in it
        elif isinstance(operation, Enqueue):
            with suppress(StateError):  # a number that no queue can have
                _skip(salvaged, operation.first + operation.count - state.next_sequence)
            paths[places.path(join(DATA_DIRECTORY, segment_name(operation.segment)))] = None
    salvaged.damaged.update(paths)
    salvaged.problems.append(
        f"{salvaged.recovered.replay.file}: frame {frame.number} at {frame.offset} was dropped, with "
        f"{many(len(frame.transactions), 'transaction')}: not all of its blocks in {', '.join(paths)} are intact"
    )


def _salvage_frame(
    disk: Disk,
    places: Places,
    salvaged: Salvaged,
    frame: Frame,
    operations: Iterable[Operation],
    *,
    doubted: bool,
    inbox: Mapping[str, str],
) -> None:
    """Apply the operations of a frame that agree with the state; ``doubted`` means that earlier frames are lost."""
    recovered, state = salvaged.recovered, salvaged.recovered.state
    for operation in operations:
        if isinstance(operation, Compaction) and (doubted or salvaged.problems):
            # An item whose consumption was lost may be a hole in the copy. The sources are still whole, since no
            # generation of the log has retired them yet.
            continue
        try:
            _skip(salvaged, _end_before(operation) - state.next_sequence)
            if isinstance(operation, Enqueue):
                _need_possible(operation.first + operation.count)
            if isinstance(operation, Enqueue) and operation.segment not in state.segments:
                state.apply(SegmentCreated(operation.segment, _salt_for(disk, places, operation), 0))
            state.apply(operation)
            recovered.note(operation, inbox)
        except (StateError, CorruptionError) as damage:
            salvaged.problems.append(f"frame {frame.number} at {frame.offset} contradicts the state: {damage}")
    recovered.transactions += len(frame.transactions)


def _skip(salvaged: Salvaged, count: int) -> None:
    """Enqueue the next ``count`` sequences, if it is above 0, without blocks.

    Intact frames may have consumed some of them. ``_read_blocks`` finds the others lost.
    """
    if count > 0:
        state = salvaged.recovered.state
        first = state.next_sequence
        _need_possible(first + count)
        if _NOWHERE not in state.segments:
            state.apply(SegmentCreated(_NOWHERE, 0, 0))
        state.enqueue(first, count, _NOWHERE, HEADER_BYTES, 0, first)
        salvaged.skipped += count


def _need_possible(end: int) -> None:
    """Raise ``StateError`` if no queue can have so many sequences."""
    if end >= 2**63:
        raise StateError("fewer than 2**63 sequences", f"{end}")


def _end_before(operation: Operation) -> int:
    """Return the sequence behind the items that earlier operations have enqueued, as far as this one tells it."""
    if isinstance(operation, Enqueue | SubscriptionOpened):
        return operation.first
    return operation.first + operation.count if isinstance(operation, _ABOUT_ITEMS) else 0


def _end_before_all(operations: Iterable[Operation], end: int = 0) -> int:
    """Return the first sequence that these operations enqueue; if there is none, the highest ``_end_before`` of them,
    and at least ``end``."""
    for operation in operations:
        if isinstance(operation, Enqueue):
            return operation.first
        end = max(end, _end_before(operation))
    return end


def _read_head(disk: Disk, path: str, offset: int = HEADER_BYTES) -> bytes:
    """Return the bytes of a block header at ``offset`` of a file; fewer if they are not there or cannot be read."""
    with suppress(FileNotFoundError, CorruptionError), opened_plain(disk, path) as fd:
        return read_needed(disk, fd, BLOCK_HEADER_BYTES, offset, path)
    return b""


def _salvage_segments(disk: Disk, places: Places, generation: int, path: str, log_bytes: int) -> Salvaged:
    """Make a state of every intact block, in the order of the segments.

    A segment with damage and without an intact block is left out: the opening sets it aside.
    """
    state, problems, damaged = State(), list[str](), set[str]()
    for name in sorted(names_in(disk, places.path(DATA_DIRECTORY))):
        number = parse_segment_name(name)
        if number is None:
            continue
        file = places.path(join(DATA_DIRECTORY, name))
        header, is_known = Header(0, number, 0, 0, 0), True
        try:
            header = find_header(disk, file, number)
        except CorruptionError as damage:
            problems.append(str(damage))
            header, is_known = header._replace(salt=find_equal_salt(_read_head(disk, file), HEADER_BYTES)), False
        with closing(Segment.open(disk, file, number, header.salt, 0, trusted=True)) as segment:
            end = header.size_bytes if header.number == PUBLISHED else segment.file_bytes()  # a frame stands behind it
            blocks = list(segment.intact(HEADER_BYTES, end))
            unread = list(_unread_spans(segment, blocks, end))
        problems += [f"{file}: no block between {start} and {stop} is intact" for start, stop in unread]
        if not blocks and (unread or not is_known):
            continue
        if unread:
            damaged.add(file)
        state.apply(SegmentCreated(number, header.salt, 0))
        for offset, length_bytes, ordinal, count, holes, _ in blocks:
            first = state.next_sequence
            state.enqueue(first, count, number, offset, length_bytes, ordinal)
            for hole in holes:
                state.dequeue(0, first + hole, 1)
    of_log = Header(0, generation, 0, 0, log_bytes)  # flags 0: whether the log was synced is unknown
    checkpoint = Checkpoint(0, 0, state.next_segment, 0, 0, [], [], [], [])
    frame = Frame(HEADER_BYTES, HEADER_BYTES, 0, 0, 0, [[checkpoint]])
    replay = Replay(path, of_log, checkpoint, [frame], HEADER_BYTES, max(log_bytes, 1), 0)
    unsynced = [Enqueue(e.first, e.count, e.segment, e.offset, e.length_bytes, e.ordinal, 0) for e in state.extents]
    return Salvaged(Recovered(state, replay, unsynced=unsynced), problems=problems, damaged=damaged, without_log=True)


def _unread_spans(segment: Segment, blocks: Iterable[Intact], end: int) -> Iterator[tuple[int, int]]:
    """Yield beginning and end of the spans between and behind these blocks in which others may have been."""
    at, time_ns = HEADER_BYTES, 0
    for block in blocks:
        if not segment.is_blank(at, block.offset):
            yield at, block.offset
        at, time_ns = block.offset + block.length_bytes, block.time_ns
    if segment.may_have_lost(at, end, time_ns):
        yield at, end


def _read_blocks(disk: Disk, places: Places, salvaged: Salvaged, meter: Meter) -> None:
    """Remove the blocks that are not intact from the state, and record their sequences as lost."""
    state = salvaged.recovered.state
    gone = state.gone.copy()
    rows: list[ExtentRow] = []
    claimed: dict[int, Intervals] = {}
    meter.expect(sum(extent.length_bytes for extent in state.extents))
    for extent in state.extents:
        if extent.segment == _NOWHERE:
            join_runs(salvaged.lost, gone.consume_rest(extent.first, extent.end))
            continue
        path = places.path(join(DATA_DIRECTORY, segment_name(extent.segment)))
        its_claims = claimed.setdefault(extent.segment, Intervals())
        pieces = _intact_pieces(disk, places, salvaged.recovered, extent, its_claims, meter)
        if pieces == [(extent.first, extent.count, extent.offset, extent.length_bytes, extent.ordinal)]:
            rows.append(extent.row())
            continue
        salvaged.damaged.add(path)
        end = extent.offset + extent.length_bytes
        salvaged.problems.append(f"{path}: not all blocks between {extent.offset} and {end} are intact")
        at = extent.first
        for first, count, offset, length_bytes, ordinal in [*pieces, (extent.end, 0, 0, 0, 0)]:
            if lost := gone.consume_rest(at, first):
                salvaged.lost += lost
                salvaged.problems.append(f"{path}: no intact block holds the sequences {at} to {first - 1}")
            at = first + count
            live = gone.live_between(first, at)
            if live:
                live_bytes = length_bytes * live // count
                rows.append(ExtentRow(first, count, extent.segment, offset, length_bytes, ordinal, live, live_bytes))
    checkpoint = state.checkpoint(0, None, set(state.segments))
    checkpoint = checkpoint._replace(
        frontier=gone.frontier,
        consumed=gone.consumed.runs(),
        segments=[row for row in checkpoint.segments if row.number != _NOWHERE],
        extents=rows,
    )
    salvaged.recovered.state = State.restore(checkpoint, state.supplement())


def _segments(disk: Disk, places: Places) -> Segments:
    """Return the segments, for writing to those that there are."""
    return Segments(disk, places.path(DATA_DIRECTORY), segment_bytes=0, next_number=0, mutex=nullcontext())


def _write_carried(disk: Disk, places: Places, salvaged: Salvaged, meter: Meter) -> None:
    """Write the blocks that the log carries to the segments, durably: then the segments hold all items."""
    recovered = salvaged.recovered
    with closing(_segments(disk, places)) as segments:
        for number in dict.fromkeys(operation.segment for operation in recovered.redo):
            _keep(disk, salvaged, segments.path(number))
        segments.redo(recovered.state.segments, recovered.redo, not recovered.replay.synced, meter)
        segments.sync()
    recovered.redo = []


def _keep(disk: Disk, salvaged: Salvaged, path: str) -> None:
    """Keep a copy of the segment, before anything is written to it; one from a repair that was cut short will do."""
    found = find_copy(disk, path)
    if found is not None:
        salvaged.reused.add(found)
    salvaged.copies[path] = found or keep_copy(disk, path)


def _mend(disk: Disk, places: Places, salvaged: Salvaged) -> None:
    """Copy the damaged segments, and write damaged headers of segments with items again.

    The log knows everything that a header holds.
    """
    segments = _segments(disk, places)
    headers: list[int] = []
    for number, info in salvaged.recovered.state.segments.items():
        path = segments.path(number)
        try:
            if info.live:
                Segment.open(disk, path, number, info.salt, info.capacity_bytes).close()
        except CorruptionError as damage:
            salvaged.problems.append(str(damage))
            salvaged.damaged.add(path)
            headers.append(number)
    for path in sorted(salvaged.damaged - salvaged.copies.keys()):
        _keep(disk, salvaged, path)
    for number in headers:
        with closing(segments):
            segments.redo_header(salvaged.recovered.state.segments[number])
            segments.sync()


def _intact_pieces(
    disk: Disk, places: Places, recovered: Recovered, extent: Extent, claimed: Intervals, meter: Meter
) -> list[tuple[int, ...]]:
    """Return the intact parts of an extent: first sequence, count, offset, length and ordinal. Neighbours are joined.

    A log with forged checksums may say anything. So bytes that another extent has ``claimed`` are not given out again,
    and neither is a sequence.
    """
    info = recovered.state.segments[extent.segment]
    path = places.path(join(DATA_DIRECTORY, segment_name(info.number)))
    pieces: list[tuple[int, ...]] = []
    try:
        segment = Segment.open(disk, path, info.number, info.salt, info.capacity_bytes, trusted=True)
    except CorruptionError:
        return pieces
    with closing(segment):
        above = extent.first
        end = extent.offset + extent.length_bytes
        for offset, length_bytes, ordinal, count, *_ in segment.intact(extent.offset, end):
            meter.advance(length_bytes)
            first = extent.first + ordinal - extent.ordinal
            if not above <= first < first + count <= extent.end or claimed.overlap(offset, offset + length_bytes):
                continue
            claimed.add(offset, length_bytes)
            if pieces and above == first and pieces[-1][2] + pieces[-1][3] == offset:
                last = pieces[-1]
                pieces[-1] = (last[0], last[1] + count, last[2], last[3] + length_bytes, last[4])
            else:
                pieces.append((first, count, offset, length_bytes, ordinal))
            above = first + count
    return pieces

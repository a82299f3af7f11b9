"""What can be had from a queue that does not open, or that opens with damage: the first half of ``repair``.

1. Of the log everything counts that checks out, wherever it stands: the frames before the damage, and those behind it.
   What a lost frame enqueued is lost (its sequences are missing between those of its neighbours); what it consumed
   comes again, since nobody can tell. What was compacted behind it is taken from where it was before.
2. Without a header and a checkpoint that check out nothing in a log can be believed. Then the blocks of all segments
   count, in their order: what was consumed since the oldest of them was made comes again. What was compacted comes
   twice while its source still stands.
3. What the log carries is written to the segments, as any opening does. Then of what the log names each block is read.
   Those that do not check out are lost, and nothing beside them. Damaged headers of segments are written once more.

The sequences that are lost are given out as consumed. What is in doubt is decided as by any opening (see ``doubt``);
where nobody knows any more, it is dropped, and the log that says what it was is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from ..core.frame import SYNCED, Frame, find_frame
from ..core.header import HEADER_BYTES, Header
from ..core.intervals import Intervals, Run
from ..core.operations import Checkpoint, Compaction, Enqueue, ExtentRow, Operation, Prepare, SegmentCreated
from ..core.state import Extent, State, StateError, Unfolding
from ..errors import CorruptionError, InDoubtError
from ..storage.layout import find_generations, keep_copy, names_in, set_aside
from ..storage.locations import DATA_DIRECTORY, LOG_DIRECTORY, Places
from ..storage.log import Replay, first_frame, log_name, parse_log_name, read_whole
from ..storage.segment import Segment, find_salt, parse_segment_name, segment_name
from ..storage.segment_files import Segments
from ..system.disk import READ, Disk, join
from ..system.trust import need_regular, open_plain
from .in_doubt import Decide
from .replay import Recovered, finish_adoptions, look_into_inbox, recover


@dataclass
class Salvaged:
    """A state that is consistent, and what it lacks."""

    recovered: Recovered
    lost: list[Run] = field(default_factory=list)
    """The sequences that are gone."""
    problems: list[str] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    """The segments with damage."""
    copies: dict[str, str | None] = field(default_factory=dict)
    """Copies of segments, made before anything was written to them."""
    without_log: bool = False


def salvage(disk: Disk, places: Places, decide: Decide) -> Salvaged:
    """Read what is there. Raises ``OSError`` and ``UnsupportedFormatError``, never ``CorruptionError``, and
    ``InDoubtError`` only where somebody may still know."""
    undecided: list[str] = []

    def decide_anyway(prepare: Prepare) -> bool:
        """What the coordinator says; where it is lost, that nothing is committed, and that this was a loss."""
        try:
            return decide(prepare)
        except InDoubtError as error:
            if not error.lost:
                raise
            undecided.append(f"{error}; it is dropped")
            return False

    special = list(_set_special_aside(disk, places))
    try:
        recovered = recover(disk, places, decide_anyway)
        if recovered is None:
            raise CorruptionError(places.path(LOG_DIRECTORY), 0, "a log", "none")
        salvaged = Salvaged(recovered)
    except CorruptionError as damage:
        salvaged = _salvage_log(disk, places, decide_anyway)
        salvaged.problems.append(str(damage))
    salvaged.problems[:0] = special
    salvaged.problems += undecided
    finish_adoptions(disk, places, salvaged.recovered)
    try:
        _write_carried(disk, places, salvaged)
        _read_blocks(disk, places, salvaged)
    except StateError as contradiction:
        problems = [*salvaged.problems, f"the log says what cannot be: {contradiction}"]
        replay, copies = salvaged.recovered.replay, salvaged.copies
        log_bytes = replay.end + replay.torn_bytes
        salvaged = _salvage_segments(disk, places, replay.header.number, replay.file, log_bytes)
        salvaged.problems, salvaged.copies = problems, copies
        _read_blocks(disk, places, salvaged)
    _mend(disk, places, salvaged)
    for path, copy in salvaged.copies.items():
        if copy is not None and path not in salvaged.damaged:
            disk.unlink(copy)
    if salvaged.problems:
        # Neither a clean log nor a file that nothing refers to may go: there may be in it what is missed.
        recovered = salvaged.recovered
        replay = recovered.replay
        header = replay.header._replace(flags=replay.header.flags & SYNCED)
        recovered.replay = replay._replace(header=header, torn_bytes=max(replay.torn_bytes, 1))
        recovered.set_aside = _unknown_files(disk, places, recovered)
        recovered.sweep, recovered.orphans = [], {}
    return salvaged


def _set_special_aside(disk: Disk, places: Places) -> Iterator[str]:
    """Rename whatever has the name of a log or of a segment, and is no plain file; yield what it was."""
    for part, parse in ((LOG_DIRECTORY, parse_log_name), (DATA_DIRECTORY, parse_segment_name)):
        for name in names_in(disk, places.path(part)):
            path = places.path(join(part, name))
            if parse(name) is not None:
                try:
                    need_regular(disk, path)
                except CorruptionError as damage:
                    yield str(damage)
                    set_aside(disk, path)


def _unknown_files(disk: Disk, places: Places, recovered: Recovered) -> list[str]:
    logs = [
        join(LOG_DIRECTORY, name)
        for name in names_in(disk, places.path(LOG_DIRECTORY))
        if (number := parse_log_name(name)) is not None and number != recovered.replay.header.number
    ]
    return logs + [
        join(DATA_DIRECTORY, name)
        for name in names_in(disk, places.path(DATA_DIRECTORY))
        if (number := parse_segment_name(name)) is not None and number not in recovered.state.segments
    ]


def _salvage_log(disk: Disk, places: Places, decide: Decide) -> Salvaged:
    try:
        generation = max(find_generations(disk, places.directory, places), default=0)
    except CorruptionError:
        generation = 0
    path = places.path(join(LOG_DIRECTORY, log_name(generation)))
    data = b""
    if generation:
        fd = open_plain(disk, path, READ)
        try:
            data = read_whole(disk, fd, path)
        finally:
            disk.close(fd)
    try:
        header, first, checkpoint = first_frame(data, path)
        state = State.restore(checkpoint, first.transactions[0][1:])
    except (CorruptionError, StateError):
        return _salvage_segments(disk, places, generation, path, len(data))
    # Not sealed, whatever it was, so that opening writes a new generation and keeps this one aside.
    header = header._replace(flags=header.flags & SYNCED)
    replay = Replay(path, header, checkpoint, [first], first.end, len(data) - first.end, 0)
    salvaged = Salvaged(Recovered(state, replay))
    at, doubted, inbox, unfolding = first.end, False, look_into_inbox(disk, places), Unfolding()
    while (frame := find_frame(data, at, header.salt, path)) is not None:
        doubted = doubted or frame.offset > at
        operations = unfolding.counting_anyway(frame, state.next_sequence)
        _salvage_frame(disk, places, salvaged, frame, operations, doubted, inbox)
        replay.frames.append(frame)
        at = frame.end
    salvaged.recovered.prepared = unfolding.prepared
    if unfolding.prepared is not None:
        try:
            salvaged.recovered.resolve(decide(unfolding.prepared.prepare))
        except CorruptionError as damage:
            salvaged.problems.append(str(damage))
    return salvaged


def _salvage_frame(
    disk: Disk,
    places: Places,
    salvaged: Salvaged,
    frame: Frame,
    operations: Iterable[Operation],
    doubted: bool,
    inbox: Mapping[str, str],
) -> None:
    """Apply what a frame says as far as it goes together with what is known; ``doubted``: frames before it are lost."""
    recovered, state = salvaged.recovered, salvaged.recovered.state
    for operation in operations:
        if isinstance(operation, Compaction) and (doubted or salvaged.problems):
            # What comes again may be a hole in what was copied. In the sources, which no generation of the log retired
            # yet, it is whole.
            continue
        try:
            if isinstance(operation, Enqueue):
                gap = operation.first - state.next_sequence
                if gap > 0:
                    state.skip(gap)
                    salvaged.lost.append((operation.first - gap, gap))
                if operation.segment not in state.segments:
                    path = places.path(join(DATA_DIRECTORY, segment_name(operation.segment)))
                    salt = find_salt(disk, path, operation.segment)
                    state.apply(SegmentCreated(operation.segment, salt, 0))
            state.apply(operation)
            recovered.note(operation, inbox)
        except (StateError, CorruptionError) as damage:
            salvaged.problems.append(f"frame {frame.number} at {frame.offset} says what cannot be: {damage}")
    recovered.transactions += len(frame.transactions)


def _salvage_segments(disk: Disk, places: Places, generation: int, path: str, log_bytes: int) -> Salvaged:
    """A state made of every block that checks out, in the order of the segments."""
    state = State()
    for name in sorted(names_in(disk, places.path(DATA_DIRECTORY))):
        number = parse_segment_name(name)
        if number is None:
            continue
        file = places.path(join(DATA_DIRECTORY, name))
        try:
            salt = find_salt(disk, file, number)
        except CorruptionError:
            continue  # nothing in it can be checked: it is left where it is, and set aside by the opening
        state.apply(SegmentCreated(number, salt, 0))
        segment = Segment.open(disk, file, number, salt, 0)
        try:
            for offset, length_bytes, ordinal, count, holes in segment.intact(HEADER_BYTES, segment.file_bytes()):
                first = state.next_sequence
                state.enqueue(first, count, number, offset, length_bytes, ordinal)
                for hole in holes:
                    state.dequeue(0, first + hole, 1)
        finally:
            segment.close()
    header = Header(0, generation, 0, 0, log_bytes)  # nobody knows whether it was synced
    checkpoint = Checkpoint(0, 0, state.next_segment, 0, 0, [], [], [], [])
    frame = Frame(HEADER_BYTES, HEADER_BYTES, 0, 0, 0, [[checkpoint]])
    replay = Replay(path, header, checkpoint, [frame], HEADER_BYTES, max(log_bytes, 1), 0)
    blocks = [Enqueue(e.first, e.count, e.segment, e.offset, e.length_bytes, e.ordinal, 0) for e in state.extents]
    return Salvaged(Recovered(state, replay, unsynced=blocks), without_log=True)


def _read_blocks(disk: Disk, places: Places, salvaged: Salvaged) -> None:
    """Take what does not check out, out of the state."""
    state = salvaged.recovered.state
    consumed = Intervals(state.gone.consumed)
    rows: list[ExtentRow] = []
    claimed: dict[int, Intervals] = {}
    for extent in state.extents:
        path = places.path(join(DATA_DIRECTORY, segment_name(extent.segment)))
        its_claims = claimed.setdefault(extent.segment, Intervals())
        pieces = _intact_pieces(disk, places, salvaged.recovered, extent, its_claims)
        if pieces == [(extent.first, extent.count, extent.offset, extent.length_bytes, extent.ordinal)]:
            rows.append(extent.row())
            continue
        salvaged.damaged.add(path)
        end = extent.offset + extent.length_bytes
        salvaged.problems.append(f"{path}: not all blocks between {extent.offset} and {end} are intact")
        at = extent.first
        for first, count, offset, length_bytes, ordinal in [*pieces, (extent.end, 0, 0, 0, 0)]:
            if at < first and _lose(consumed, state.gone.frontier, at, first, salvaged.lost):
                salvaged.problems.append(f"{path}: no intact block holds the sequences {at} to {first - 1}")
            at = first + count
            start = max(first, state.gone.frontier)
            live = at - start - consumed.overlap(start, at) if start < at else 0
            if live:
                live_bytes = length_bytes * live // count
                rows.append(ExtentRow(first, count, extent.segment, offset, length_bytes, ordinal, live, live_bytes))
    salvaged.recovered.state = _rebuild(state, rows, consumed)


def _write_carried(disk: Disk, places: Places, salvaged: Salvaged) -> None:
    """Write the blocks that the log carries, as any opening does, so that what the segments hold is all there is."""
    segments = Segments(disk, places.path(DATA_DIRECTORY), 0, 0, nullcontext())
    recovered = salvaged.recovered
    for number in dict.fromkeys(operation.segment for operation in recovered.redo):
        salvaged.copies[segments.path(number)] = keep_copy(disk, segments.path(number))
    try:
        segments.redo(recovered.state.segments, recovered.redo, not recovered.replay.synced)
        segments.sync()
    finally:
        segments.close()
    recovered.redo = []


def _mend(disk: Disk, places: Places, salvaged: Salvaged) -> None:
    """Keep copies of what is damaged; write damaged headers once more where the segments hold items.

    What was in a header the log knows too.
    """
    segments = Segments(disk, places.path(DATA_DIRECTORY), 0, 0, nullcontext())
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
        salvaged.copies[path] = keep_copy(disk, path)
    for number in headers:
        try:
            segments.redo_header(salvaged.recovered.state.segments[number])
            segments.sync()
        finally:
            segments.close()


def _intact_pieces(
    disk: Disk, places: Places, recovered: Recovered, extent: Extent, claimed: Intervals
) -> list[tuple[int, ...]]:
    """The intact parts of an extent: first sequence, count, offset, length, ordinal; neighbours joined.

    A log whose checksums were made to fit may say anything: bytes that another extent has ``claimed`` are not given
    twice, nor is a sequence.
    """
    info = recovered.state.segments[extent.segment]
    path = places.path(join(DATA_DIRECTORY, segment_name(info.number)))
    pieces: list[tuple[int, ...]] = []
    try:
        segment = Segment.open(disk, path, info.number, info.salt, info.capacity_bytes, trusted=True)
    except CorruptionError:
        return pieces
    try:
        above = extent.first
        end = extent.offset + extent.length_bytes
        for offset, length_bytes, ordinal, count, _ in segment.intact(extent.offset, end):
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
    finally:
        segment.close()
    return pieces


def _lose(consumed: Intervals, frontier: int, first: int, end: int, lost: list[Run]) -> bool:
    """Count as consumed what is not yet; whether there was any of it."""
    at, before = max(first, frontier), len(lost)
    for run_first, run_count in [*consumed.runs(), (end, 0)]:
        stop = min(run_first, end)
        if at < stop:
            consumed.add(at, stop - at)
            lost.append((at, stop - at))
        at = max(at, run_first + run_count)
    return len(lost) > before


def _rebuild(state: State, rows: list[ExtentRow], consumed: Intervals) -> State:
    frontier, runs = state.gone.frontier, consumed.runs()
    while runs and runs[0][0] == frontier:
        frontier += runs.pop(0)[1]
    checkpoint = state.checkpoint(0, None, set(state.segments))
    return State.restore(checkpoint._replace(frontier=frontier, consumed=runs, extents=rows), state.supplement())

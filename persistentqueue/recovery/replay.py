"""The reading half of recovery: from a directory to the state that its log adds up to. It changes nothing.

1. Choose the highest generation of the log. A generation gets its name when it is complete, so the lower ones are
   leftovers.
2. Replay it: apply every frame after the checkpoint, up to the end or a torn tail (``log_reader`` tells a torn tail
   from damage).
3. If the log is not synced, end it before the first frame whose blocks are not all there: its writes may have reached
   the disk in any order. Even the blocks that are there may be in the operating system's page cache only. This also
   holds after a sync, if the sync failed. So these blocks are ``unsynced``, and are written again.
4. Apply a transaction that was prepared over several queues if the log says that it is committed. If the log ends in
   the prepare, ``decide`` says whether it is committed (see ``in_doubt``).
5. Sort the other files of the directory into three kinds. Leftovers are to be swept. Files that may hold items which
   the log has lost are to be set aside. Published files whose adoption was lost with its frame are to be adopted again.

The cost of an opening depends on the length of the log, and not on the number of items. Nothing here writes, so
recovery that is run twice, or cut short and run again, gives the same result. ``opening`` writes the result as a new
generation, beside the old one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf

from ..core.block import SEGMENT_MAGIC
from ..core.frame import DOUBTED, Frame
from ..core.header import HEADER_BYTES, Header, decode_header
from ..core.operations import Adoption, Enqueue, Operation, SegmentCreated
from ..core.state import Prepared, SegmentInfo, State, StateError, Unfolding
from ..errors import CorruptionError, PersistentQueueError, UnsupportedFormatError
from ..storage.layout import find_generations, names_in
from ..storage.locations import CLOSED_DIRECTORY, DATA_DIRECTORY, INBOX_DIRECTORY, LOG_DIRECTORY, Places
from ..storage.log import log_name
from ..storage.log_reader import Replay, read_log
from ..storage.publication import Publication, is_published, read_publication
from ..storage.segment import PUBLISHED, Segment, find_header, parse_segment_name, segment_name
from ..system.bad_pages import read_needed
from ..system.disk import Disk, join
from ..system.progress import SILENT, Meter
from ..system.trust import opened_plain
from .in_doubt import MayDecide


@dataclass
class Recovered:
    """The recovered state, with what must be written again and which files must be cleaned up."""

    state: State
    replay: Replay
    redo: list[Enqueue] = field(default_factory=list)
    """Enqueues whose blocks the log carries. The blocks are written to the segments again."""
    unsynced: list[Enqueue] = field(default_factory=list)
    """Enqueues since the checkpoint of a log that is not synced. Their blocks may be in the operating system's page
    cache only."""
    transactions: int = 0
    lost_transactions: int = 0
    """Number of transactions that a log lacks that is not synced, from the first lost frame or block on."""
    lost_at: int = 0
    """Offset of the first frame of the lost transactions."""
    has_gaps: bool = False
    """Whether frames are lost before others that count. Their blocks may stand before the end of a segment."""
    adopted: dict[int, str] = field(default_factory=dict)
    """Segments whose files are still in the inbox, with the paths of these files."""
    adoptions: set[int] = field(default_factory=set)
    """Segments whose names may not be durable, since their files were renamed."""
    orphans: dict[int, str] = field(default_factory=dict)
    """Orphans, with the names under which they were published. Their adoption was in a lost frame, so they are adopted
    again."""
    sweep: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    is_strange: bool = False
    """Whether the segments to which nothing refers do not look like those of a killed owner. It would have made them
    after its log, and the first one with the next number. It would not have adopted a file without a frame."""
    prepared: Prepared | None = None
    """Transaction in doubt. The state does not contain it."""
    resolved: bool | None = None
    """Outcome of the transaction that was in doubt: whether it is committed."""

    @property
    def identity(self) -> str:
        """Identity of the queue in hexadecimal. A queue that was deleted and made again has another one. Empty for a
        queue of an older version, until its next commit."""
        return self.state.identity.hex()

    def path(self, places: Places, number: int) -> str:
        """Return the current path of a segment's file."""
        return segment_path(places, number, self.adopted)

    def loss(self) -> CorruptionError:
        """Return the error of the lost transactions."""
        expected, found = "a frame whose blocks are on disk", "one whose blocks are not"
        if self.lost_at == self.replay.end:
            expected, found = "a valid frame, since others follow", "an invalid one"
        consequence = (
            f"an opening drops the {self.lost_transactions} transactions from there on, and a repair keeps those that "
            "are intact; if the power did not fail under sync=False, find out what has damaged the file"
        )
        return CorruptionError(self.replay.file, self.lost_at, expected, found, consequence)

    def keep_segments(self) -> None:
        """Have the segments set aside that would be swept or adopted again: they may be those of another queue."""
        kept = [path for path in self.sweep if path.startswith(f"{DATA_DIRECTORY}/")]
        self.sweep = [path for path in self.sweep if path not in kept]
        self.set_aside += kept + [join(DATA_DIRECTORY, segment_name(number)) for number in self.orphans]
        self.orphans = {}

    def resolve(self, committed: bool) -> None:
        """Apply the transaction in doubt if it is ``committed``, else drop it. Raises ``CorruptionError``."""
        assert self.prepared is not None
        operations = self.prepared.operations if committed else ()
        self.prepared, self.resolved = None, committed
        try:
            self.state.apply_all(operations)
        except StateError as error:
            raise CorruptionError(self.replay.file, self.replay.frames[-1].offset, *error.args) from None
        for operation in operations:
            self.note(operation, {})
        self.transactions -= not committed

    def note(self, operation: Operation, inbox: Mapping[str, str]) -> None:
        """Remember an operation whose blocks must be written, or whose file must be renamed, again.

        ``inbox`` maps the names of the files in the inbox to their paths.
        """
        if isinstance(operation, Adoption):
            self.adoptions.add(operation.segment)
            if operation.name in inbox:
                self.adopted[operation.segment] = inbox[operation.name]
        elif isinstance(operation, Enqueue):
            if operation.inline is not None:
                self.redo.append(operation)
            elif not self.replay.synced:
                self.unsynced.append(operation)


def recover(disk: Disk, places: Places, decide: MayDecide | None = None, meter: Meter = SILENT) -> Recovered | None:
    """Read the queue whose parts are in ``places``; return None if there is no queue. Nothing is changed.

    Without ``decide``, or if it returns None, a transaction in doubt stays in doubt. ``meter`` counts the bytes of the
    log. Raises ``CorruptionError``, and what ``decide`` raises.
    """
    generations = find_generations(disk, places.directory, places)
    if not generations:
        return None
    path = places.path(join(LOG_DIRECTORY, log_name(generations[-1])))
    replay = read_log(disk, path, meter=meter)
    recovered = _apply(disk, places, replay, meter)
    if recovered.prepared is not None and decide is not None:
        committed = decide(recovered.prepared.prepare)
        if committed is not None:
            recovered.resolve(committed)
    sort_files(disk, places, recovered, generations)
    return recovered


def advance(disk: Disk, places: Places, recovered: Recovered, further: Replay) -> Recovered | None:
    """Return what was ``recovered``, with the frames of ``further``, which have followed since. Nothing else is read.

    Return None if the whole log must be read: a transaction over several queues is about to be decided, or frames are
    lost. The files to clean up are those of the earlier look. Raises ``CorruptionError``.
    """
    if recovered.prepared is not None or recovered.resolved is not None:
        return None
    lists = {name: getattr(recovered, name).copy() for name in ("redo", "unsynced", "adopted", "adoptions")}
    following = replace(recovered, state=recovered.state.copy(), replay=further, lost_at=further.end, **lists)
    _apply_groups(disk, places, following, further.frames, SILENT)
    return None if following.prepared is not None or following.lost_transactions else following


def _apply(disk: Disk, places: Places, replay: Replay, meter: Meter) -> Recovered:
    try:
        recovered = Recovered(State.restore(replay.checkpoint, replay.supplement), replay)
    except StateError as error:
        raise CorruptionError(replay.file, replay.frames[0].offset, *error.args) from None
    recovered.lost_at, recovered.lost_transactions = replay.end, replay.behind
    _apply_groups(disk, places, recovered, replay.frames[1:], meter)
    return recovered


def _apply_groups(disk: Disk, places: Places, recovered: Recovered, groups: Sequence[Frame], meter: Meter) -> None:
    """Apply the frames behind a checkpoint, or behind those that were applied, up to the first one that is lost."""
    replay, unfolding = recovered.replay, Unfolding()
    salts = {number: segment.salt for number, segment in recovered.state.segments.items()}
    inbox = look_into_inbox(disk, places) if groups else {}
    for at, group in enumerate(groups):
        operations = list(chain.from_iterable(group.transactions))
        if not replay.synced and not is_written(disk, places, operations, salts, inbox):
            # The whole group is lost, since its transactions share blocks.
            recovered.lost_at = group.offset
            recovered.lost_transactions += sum(len(lost.transactions) for lost in groups[at:])
            break
        try:
            operations = unfolding.counting(group)
            recovered.state.apply_all(operations)
        except StateError as error:
            raise CorruptionError(replay.file, group.offset, *error.args) from None
        for operation in operations:
            recovered.note(operation, inbox)
        recovered.transactions += len(group.transactions)
        meter.advance(group.end - group.offset)
    recovered.prepared = unfolding.prepared
    recovered.transactions -= unfolding.aborted


def is_written(
    disk: Disk,
    places: Places,
    operations: list[Operation],
    salts: dict[int, int],
    inbox: Mapping[str, str],
    trusted: bool = False,
) -> bool:
    """Return whether all blocks that the operations name and the log does not carry are on disk, with their checksums.

    ``salts`` is extended by the segments that the operations introduce. If they are ``trusted``, the headers of the
    segments do not matter.
    """
    for operation in operations:
        if isinstance(operation, SegmentCreated):
            salts[operation.number] = operation.salt
        elif isinstance(operation, Adoption):
            salts[operation.segment] = operation.salt
    adopted = {o.segment: inbox[o.name] for o in operations if isinstance(o, Adoption) and o.name in inbox}
    for operation in operations:
        if isinstance(operation, Enqueue) and operation.inline is None:
            number = operation.segment
            paths = [segment_path(places, number, names) for names in (adopted, {})]
            try:
                with closing(Segment.open_to_read(disk, paths, number, salts.get(number, 0), trusted)) as segment:
                    end = operation.offset + operation.length_bytes
                    if segment.checksums(operation.offset, end) != (operation.checksum, operation.count):
                        return False
            except CorruptionError:
                return False
    return True


def segment_path(places: Places, number: int, adopted: Mapping[int, str]) -> str:
    """Return the path of a segment's file, which is in the inbox if ``adopted`` names it there."""
    return places.path(adopted.get(number) or join(DATA_DIRECTORY, segment_name(number)))


def look_into_inbox(disk: Disk, places: Places) -> dict[str, str]:
    """Return the paths of the files in the inbox, by name, also while the inbox is closed."""
    parts = (CLOSED_DIRECTORY, INBOX_DIRECTORY)
    return {name: join(part, name) for part in parts for name in names_in(disk, places.path(part))}


def _header(disk: Disk, path: str) -> Header | None:
    """Return the header of a segment; None if it never reached the disk, or if the file is gone.

    Raises ``PersistentQueueError`` if the bytes are not a header.
    """
    try:
        with opened_plain(disk, path) as fd:
            data = read_needed(disk, fd, HEADER_BYTES, 0, path)
    except FileNotFoundError:  # an owner that has just ended has deleted it in the meantime
        return None
    return decode_header(data, SEGMENT_MAGIC, path) if any(data) else None


def sort_files(disk: Disk, places: Places, recovered: Recovered, generations: list[int]) -> None:
    """Sort the files that the state does not refer to into those to sweep, to set aside and to adopt again."""
    replay, state = recovered.replay, recovered.state
    recovered.sweep, recovered.set_aside, recovered.orphans = [], [], {}
    orphans: dict[int, Publication] = {}
    # A torn, missing or lost part of the log may hold flushes that were acknowledged: a bit may have flipped in the
    # last frame, or the device may have confirmed a sync that it did not make. A segment that the state does not know
    # is then no leftover, but may hold items, if it is younger than the checkpoint. An older one was retired by it. A
    # drained one, which the next trim retires, may hold items as well, behind those of the frames that count.
    doubtful = replay.torn_bytes or replay.missing_bytes or recovered.lost_transactions
    held = recovered.prepared.operations if recovered.prepared is not None else ()
    known = {each.number for each in held if isinstance(each, SegmentCreated)}.union(state.segments)
    for generation in generations:
        if generation != replay.header.number:
            # A newer generation replaces it. If it ended in damage, it is set aside: the opening that should have done
            # so was cut short.
            kept = generation == replay.header.number - 1 and replay.header.flags & DOUBTED
            (recovered.set_aside if kept else recovered.sweep).append(join(LOG_DIRECTORY, log_name(generation)))
    first: float = inf
    for name in names_in(disk, places.path(DATA_DIRECTORY)):
        number = parse_segment_name(name)
        path = join(DATA_DIRECTORY, name)
        if doubtful and number in state.drained and _may_have_lost(disk, places, recovered, state.segments[number]):
            recovered.set_aside.append(path)
        if number is not None and number not in known:
            retired = number < replay.checkpoint.next_segment
            try:
                header = _header(disk, places.path(path))
                first = min(first, number)
                if header is not None:  # a file may be published before the log is made, and is adopted by a frame
                    is_older = header.time_ns < replay.header.time_ns
                    recovered.is_strange |= replay.sealed if header.number == PUBLISHED else is_older
                if header is not None and header.number == PUBLISHED and not retired and not replay.sealed:
                    orphans[number] = read_publication(disk, places.path(path))
                    continue
            except (CorruptionError, UnsupportedFormatError):
                recovered.set_aside.append(path)
            else:
                (recovered.sweep if retired or not doubtful else recovered.set_aside).append(path)
    recovered.is_strange |= first not in {inf, state.next_segment}
    waiting = read_waiting(disk, places, look_into_inbox(disk, places)) if orphans else ()
    named = {part.name for each in chain(orphans.values(), waiting) for part in each.parts}
    for number, publication in orphans.items():
        if is_published(publication.name) or publication.name in named:
            recovered.orphans[number] = publication.name
        else:  # in the inbox, a part without its manifest would be swept when it is old
            recovered.set_aside.append(join(DATA_DIRECTORY, segment_name(number)))


def _may_have_lost(disk: Disk, places: Places, recovered: Recovered, info: SegmentInfo) -> bool:
    """Return whether lost frames may have enqueued blocks in this segment, which is there."""
    path = places.path(join(DATA_DIRECTORY, segment_name(info.number)))
    try:
        header = find_header(disk, path, info.number)
        with closing(Segment.open_to_read(disk, [path], info.number, info.salt)) as segment:
            start, end = HEADER_BYTES if recovered.has_gaps else info.end, segment.file_bytes()
            return header.number != PUBLISHED and segment.may_have_lost(start, end, header.time_ns)
    except (CorruptionError, UnsupportedFormatError):
        return True


def read_waiting(disk: Disk, places: Places, inbox: Mapping[str, str]) -> list[Publication]:
    """Return what waits in the inbox, as far as it can be read."""
    waiting = []
    for name, path in inbox.items():
        if is_published(name):
            with suppress(FileNotFoundError, PermissionError, PersistentQueueError):
                waiting.append(read_publication(disk, places.path(path)))
    return waiting

"""Opening, the reading half: from a directory to the state that its log adds up to. Changes nothing.

1. Choose the highest generation of the log. It got its name when it was complete, so the lower ones are leftovers.
2. Replay it: every frame after the checkpoint, up to the end or a torn tail (``log.replay`` tells it from damage).
3. A log that is not synced ends before the first frame whose blocks are not all there, since its writes may have
   reached the disk in any order. Those that are there may be so in the page cache only, even after a sync, if that
   failed; so they are ``unsynced``, to be written once more.
4. What was prepared for a transaction over several queues counts if the log says so, or, at its end, if ``decide`` does
   (see ``doubt``).
5. Say what the directory holds beside that: leftovers to sweep, files to set aside because they may hold something that
   nobody can tell, and what was published and adopted by a frame that is lost.

Opening costs what the log costs, never what the queue holds. Recovery run twice, or cut short and run again, gives the
same result, since nothing here writes; what ``store`` writes then is a new generation, beside the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from ..core.block import SEGMENT_MAGIC
from ..core.frame import DOUBTED
from ..core.header import HEADER_BYTES, Header, decode_header
from ..core.operations import Adoption, Enqueue, Operation, SegmentCreated
from ..core.state import Prepared, State, StateError, Unfolding
from ..errors import CorruptionError, PersistentQueueError
from ..storage.layout import find_generations, names_in
from ..storage.locations import CLOSED_DIRECTORY, DATA_DIRECTORY, INBOX_DIRECTORY, LOG_DIRECTORY, Places
from ..storage.log import Replay, log_name, read_log
from ..storage.publication import read_publication
from ..storage.segment import PUBLISHED, Segment, parse_segment_name, segment_name
from ..system.disk import READ, Disk, join, read_all
from ..system.trust import open_plain
from .in_doubt import Decide


@dataclass
class Recovered:
    """The state, what is to be written once more, and what is to be cleaned up."""

    state: State
    replay: Replay
    redo: list[Enqueue] = field(default_factory=list)
    """What the log carries."""
    unsynced: list[Enqueue] = field(default_factory=list)
    """What a log that is not synced names since its checkpoint: it may stand in the page cache only."""
    transactions: int = 0
    lost_transactions: int = 0
    adopted: dict[int, str] = field(default_factory=dict)
    """The segments that are still in the inbox, as these files."""
    adoptions: set[int] = field(default_factory=set)
    """The segments whose names may not be durable, since their files were renamed."""
    orphans: dict[int, str] = field(default_factory=dict)
    """Segments that were adopted by a frame which is lost, and everything behind it, with the names that they were
    published under: to be adopted once more."""
    sweep: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    prepared: Prepared | None = None
    """What is in doubt: the state is that without it."""
    resolved: bool | None = None
    """What became of what was in doubt."""

    @property
    def identity(self) -> str:
        """Which queue this is: another one than before, where it was deleted and made anew; "" of older ones, until
        their next commit."""
        return self.state.identity.hex()

    def path(self, places: Places, number: int) -> str:
        """Where the file of a segment is now."""
        return segment_path(places, number, self.adopted)

    def resolve(self, committed: bool) -> None:
        """What was in doubt is committed, or never was. Raises ``CorruptionError``."""
        assert self.prepared is not None
        operations = self.prepared.operations if committed else ()
        self.prepared, self.resolved = None, committed
        try:
            for operation in operations:
                self.state.apply(operation)
        except StateError as error:
            raise CorruptionError(self.replay.file, self.replay.frames[-1].offset, *error.args) from None
        for operation in operations:
            self.note(operation, {})
        self.transactions -= not committed

    def note(self, operation: Operation, inbox: Mapping[str, str]) -> None:
        """Remember the operation if its blocks are to be written, or its file to be renamed, once more. ``inbox`` is
        what is there, by name."""
        if isinstance(operation, Adoption):
            self.adoptions.add(operation.segment)
            if operation.name in inbox:
                self.adopted[operation.segment] = inbox[operation.name]
        elif isinstance(operation, Enqueue):
            if operation.inline is not None:
                self.redo.append(operation)
            elif not self.replay.synced:
                self.unsynced.append(operation)


def recover(disk: Disk, places: Places, decide: Decide | None = None) -> Recovered | None:
    """Read the queue in these places; None if there is none yet; what is in doubt stays so if nobody is to ``decide``.

    Raises ``CorruptionError``, and what ``decide`` raises; changes nothing.
    """
    generations = find_generations(disk, places.directory, places)
    if not generations:
        return None
    path = places.path(join(LOG_DIRECTORY, log_name(generations[-1])))
    replay = read_log(disk, path)
    recovered = _apply(disk, places, replay)
    if recovered.prepared is not None and decide is not None:
        recovered.resolve(decide(recovered.prepared.prepare))
    _inspect(disk, places, recovered, generations)
    return recovered


def _apply(disk: Disk, places: Places, replay: Replay) -> Recovered:
    try:
        recovered = Recovered(State.restore(replay.checkpoint, replay.supplement), replay)
    except StateError as error:
        raise CorruptionError(replay.file, replay.frames[0].offset, *error.args) from None
    salts = {number: segment.salt for number, segment in recovered.state.segments.items()}
    groups, unfolding = replay.frames[1:], Unfolding()
    inbox = look_into_inbox(disk, places) if groups else {}
    for at, group in enumerate(groups):
        operations = list(chain.from_iterable(group.transactions))
        if not replay.synced and not _is_written(disk, places, operations, salts, inbox):
            # All of it, since the transactions of a group share blocks.
            recovered.lost_transactions = sum(len(lost.transactions) for lost in groups[at:])
            break
        try:
            operations = unfolding.counting(group)
            for operation in operations:
                recovered.state.apply(operation)
        except StateError as error:
            raise CorruptionError(replay.file, group.offset, *error.args) from None
        for operation in operations:
            recovered.note(operation, inbox)
        recovered.transactions += len(group.transactions)
    recovered.prepared = unfolding.prepared
    recovered.transactions -= unfolding.aborted
    return recovered


def _is_written(
    disk: Disk, places: Places, operations: list[Operation], salts: dict[int, int], inbox: Mapping[str, str]
) -> bool:
    """Whether all blocks that the operations name are on disk, as they were written; ``salts`` learns of segments."""
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
                segment = Segment.open_to_read(disk, paths, number, salts.get(number, 0))
                try:
                    end = operation.offset + operation.length_bytes
                    if segment.checksums(operation.offset, end) != (operation.checksum, operation.count):
                        return False
                finally:
                    segment.close()
            except CorruptionError:
                return False
    return True


def segment_path(places: Places, number: int, adopted: Mapping[int, str]) -> str:
    return places.path(adopted.get(number) or join(DATA_DIRECTORY, segment_name(number)))


def look_into_inbox(disk: Disk, places: Places) -> dict[str, str]:
    """The files in the inbox, by name; also while it is closed."""
    parts = (CLOSED_DIRECTORY, INBOX_DIRECTORY)
    return {name: join(part, name) for part in parts for name in names_in(disk, places.path(part))}


def finish_adoptions(disk: Disk, places: Places, recovered: Recovered) -> None:
    """Rename what the log says is adopted, and is still in the inbox; not durably. Its place is then the usual one."""
    adopted, recovered.adopted = recovered.adopted, {}
    for number in adopted:
        disk.rename(segment_path(places, number, adopted), recovered.path(places, number))


def _header(disk: Disk, path: str) -> Header | None:
    """The header of a segment; None where that never reached the disk, or the file is gone.

    Raises ``PersistentQueueError`` for what is none.
    """
    try:
        fd = open_plain(disk, path, READ)
    except FileNotFoundError:  # deleted meanwhile, by an owner who ended just now
        return None
    try:
        data = read_all(disk, fd, HEADER_BYTES, 0)
    finally:
        disk.close(fd)
    return decode_header(data, SEGMENT_MAGIC, path) if any(data) else None


def _inspect(disk: Disk, places: Places, recovered: Recovered, generations: list[int]) -> None:
    """Sort the files that the state does not refer to."""
    replay, state = recovered.replay, recovered.state
    # What was torn, cut or lost may have been acknowledged all the same (a bit that flipped in the last frame, or a
    # device that lied): then a segment that nobody knows is not a leftover but evidence, if it is younger than the
    # log's checkpoint. An older one was retired by it.
    doubtful = replay.torn_bytes or replay.missing_bytes or recovered.lost_transactions
    held = recovered.prepared.operations if recovered.prepared is not None else ()
    known = {each.number for each in held if isinstance(each, SegmentCreated)}.union(state.segments)
    for generation in generations:
        if generation != replay.header.number:
            # Superseded. One that ended in doubt is evidence; the opening that was to keep it was itself cut short.
            kept = generation == replay.header.number - 1 and replay.header.flags & DOUBTED
            (recovered.set_aside if kept else recovered.sweep).append(join(LOG_DIRECTORY, log_name(generation)))
    for name in names_in(disk, places.path(DATA_DIRECTORY)):
        number = parse_segment_name(name)
        if number is not None and number not in known:
            path = join(DATA_DIRECTORY, name)
            retired = number < replay.checkpoint.next_segment
            try:
                header = _header(disk, places.path(path))
                if header is not None and header.number == PUBLISHED and not retired and not replay.sealed:
                    recovered.orphans[number] = read_publication(disk, places.path(path)).name
                    continue
            except PersistentQueueError:
                recovered.set_aside.append(path)
            else:
                (recovered.sweep if retired or not doubtful else recovered.set_aside).append(path)

"""Does everything in a queue's directory add up, and if not, what can be had from it?

``check`` reads the log as recovery does, then every block that holds an unconsumed item, then asks whether the state's
own invariants hold (they are listed in ``state``). It changes nothing and takes no lock. A directory that is owned
meanwhile may be inspected too: what its owner changes while we read shows as a problem at worst.

``repair`` takes the lock and reads what is intact (see ``salvage``, and what it writes to the segments, after a copy
of each), and begins a new generation of the log with what is left, as a trim does. Nothing else is written, and nothing
is lost by a repair that is cut short: it can be run again, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from ..core.header import HEADER_BYTES
from ..core.state import Extent, State
from ..engine.adoption import MEND, READABLE
from ..engine.transaction import Settings
from ..errors import (
    CorruptionError,
    DataMissingError,
    MemoryShortageError,
    PersistentQueueError,
    QueueNotFoundError,
    UnsupportedFormatError,
    UntrustedError,
    naming_paths,
)
from ..storage.layout import (
    bears,
    believed,
    find_generations,
    names_in,
    parse_spare_name,
    part_of_segment,
    place_path,
    queue_directory,
)
from ..storage.locations import DATA_DIRECTORY, INBOX_DIRECTORY, LOG_DIRECTORY, OWN, POOL_DIRECTORY, Places, read_places
from ..storage.log import parse_log_name
from ..storage.publication import Part, is_published, parse_name, read_publication
from ..storage.segment import PUBLISHED, Segment, parse_segment_name, segment_name
from ..system.disk import DISK, Disk, StrPath, abspath, dirname, join
from ..system.trust import distrusted, need_trusted
from .in_doubt import Decide
from .location_repair import mend_places, set_stray_id_aside
from .opening import open_store
from .replay import Recovered, look_into_inbox, recover
from .salvage import Salvaged, salvage


@dataclass(frozen=True)
class CheckReport:
    """What ``check`` found."""

    problems: tuple[str, ...]
    """What is wrong, each with file and offset; empty: all is well."""
    sealed: bool
    """Whether the queue was closed cleanly."""
    items: int
    """Unconsumed items whose blocks were read and checked."""
    transactions: int
    """Transactions in the log after its checkpoint."""
    torn_bytes: int
    """Bytes of an unfinished group at the log's end, which the next opening will drop."""
    published: int
    """Items that other processes have published, and that wait to be adopted; their blocks were read and checked."""
    leftovers: tuple[str, ...]
    """Files that nothing refers to, which the next opening will sweep, and files that are not the queue's."""
    in_doubt: str = ""
    """The name of the queue that knows whether the last transaction, over both, is committed, which the next opening
    will ask; "" where nothing is in doubt. What it would enqueue was checked, and is not counted."""

    untrusted: tuple[str, ...] = ()
    """What another user has prepared, or may write to, and so an opening without ``trust=True`` refuses; no problem of
    the queue itself."""

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


@naming_paths()
def check(path: StrPath, name: str | None = None, *, disk: Disk = DISK) -> CheckReport:
    """Inspect the queue at ``path/name``. Raises ``QueueNotFoundError`` where there is none; problems are reported.

    That the place of its segments is not there is one of them.
    """
    directory = queue_directory(path, name)
    try:
        if not find_generations(disk, directory):
            raise QueueNotFoundError(f"{directory}: no queue here to check")
        places = read_places(disk, directory)
        recovered = recover(disk, places)
    except (CorruptionError, DataMissingError) as damage:
        untrusted = tuple(map(str, _distrusted(disk, directory)))
        return CheckReport((str(damage),), False, 0, 0, 0, 0, (), untrusted=untrusted)
    assert recovered is not None
    problems: list[str] = []
    items = 0
    for extent in recovered.state.extents:
        try:
            _check_extent(disk, places, recovered, extent)
            items += extent.live
        except (CorruptionError, MemoryShortageError) as damage:
            problems.append(str(damage))
    problems += _check_state(recovered.state)
    in_doubt = recovered.prepared.prepare.coordinator if recovered.prepared is not None else ""
    leftovers = tuple(_leftovers(disk, places, recovered))
    if in_doubt:
        problems += _check_doubt(disk, places, recovered, in_doubt)
    published = 0
    for file in _published(disk, places, recovered):
        try:
            published += _check_publication(disk, places, recovered, file)
        except FileNotFoundError:  # adopted meanwhile
            continue
        except PermissionError as problem:
            problems.append(str(CorruptionError(file, 0, READABLE, str(problem.strerror), MEND)))
        except (CorruptionError, UnsupportedFormatError, MemoryShortageError, OSError) as problem:
            problems.append(str(problem))
    replay = recovered.replay
    return CheckReport(
        tuple(problems),
        replay.sealed,
        items,
        recovered.transactions,
        replay.torn_bytes,
        published,
        leftovers,
        in_doubt,
        tuple(str(error) for root in dict.fromkeys((directory, places.data_root)) for error in _distrusted(disk, root)),
    )


def _distrusted(disk: Disk, root: str) -> Iterator[UntrustedError]:
    return distrusted(disk, believed(disk, root))


def _check_extent(disk: Disk, places: Places, recovered: Recovered, extent: Extent) -> None:
    info = recovered.state.segments[extent.segment]
    path = recovered.path(places, info.number)
    segment = Segment.open_to_read(disk, [path], info.number, info.salt)
    try:
        # Blocks that the log carries may not have reached the segment yet: opening writes them once more.
        carried = {operation.offset: operation for operation in recovered.redo if operation.segment == info.number}
        offset, end, count = extent.offset, extent.offset + extent.length_bytes, 0
        while offset < end:
            if offset in carried:
                count += carried[offset].count
                offset += carried[offset].length_bytes
                continue
            stop = min((start for start in carried if offset < start < end), default=end)
            count += segment.checksums(offset, stop)[1]
            offset = stop
    finally:
        segment.close()
    if count != extent.count:
        raise CorruptionError(path, extent.offset, f"{extent.count} items", f"{count}")


def _check_doubt(disk: Disk, places: Places, recovered: Recovered, coordinator: str) -> Iterator[str]:
    """What is wrong with what is in doubt, which counts from then on."""
    state = recovered.state
    try:
        if not find_generations(disk, join(dirname(abspath(places.directory)), coordinator)):
            yield f"{places.directory}: what is in doubt {coordinator} knows, and there is no such queue beside it"
        next_sequence = state.next_sequence
        recovered.resolve(True)
        for extent in state.extents:
            if extent.end > next_sequence:
                _check_extent(disk, places, recovered, extent)
    except PersistentQueueError as problem:
        yield str(problem)
    yield from _check_state(state)


def _published(disk: Disk, places: Places, recovered: Recovered) -> Iterator[str]:
    """The paths of what waits in the inbox."""
    adopted = set(recovered.adopted.values())
    for name, file in look_into_inbox(disk, places).items():
        if is_published(name) and file not in adopted:
            yield places.path(file)


def _check_publication(disk: Disk, places: Places, recovered: Recovered, path: str) -> int:
    publication = read_publication(disk, path)
    if not publication.parts:
        _check_part(disk, path, publication.own)
    # The adoption of a manifest may be lost when some of its files have their new names: they get back the old ones.
    files = look_into_inbox(disk, places)
    files |= {name: join(DATA_DIRECTORY, segment_name(number)) for number, name in recovered.orphans.items()}
    for part in publication.parts:
        _check_part(disk, places.path(files.get(part.name) or join(INBOX_DIRECTORY, part.name)), part)
    return sum(part.count for part in publication.files)


def _check_part(disk: Disk, path: str, part: Part) -> None:
    if part.count:
        segment = Segment.open_to_read(disk, [path], PUBLISHED, part.salt)
        try:
            found = segment.checksums(HEADER_BYTES, HEADER_BYTES + part.length_bytes)
        finally:
            segment.close()
        if found != (part.checksum, part.count):
            expected = f"{part.count} items with checksum {part.checksum:#010x}"
            raise CorruptionError(path, HEADER_BYTES, expected, f"{found[1]} with {found[0]:#010x}")


def _check_state(state: State) -> Iterator[str]:
    """The invariants of ``state``."""
    above = 0
    live: dict[int, int] = dict.fromkeys(state.segments, 0)
    for extent in state.extents:
        if extent.first < above:
            yield f"extent {extent.row()} overlaps the one before it"
        above = extent.end
        unconsumed = state.gone.live_between(extent.first, extent.end)
        if unconsumed != extent.live or unconsumed == 0:
            yield f"extent {extent.row()} has {unconsumed} items that are not gone"
        live[extent.segment] += extent.live
    for number, segment in state.segments.items():
        if segment.live != live[number] or (segment.live == 0) != (number in state.drained):
            yield f"segment {number} counts {segment.live} live items, its extents {live[number]}"
    live_bytes = sum(segment.live_bytes for segment in state.segments.values())
    if live_bytes != state.live_bytes:
        yield f"the segments count {live_bytes} live bytes, the state {state.live_bytes}"
    if sum(live.values()) + state.gone_count != state.next_sequence:
        yield f"{sum(live.values())} live and {state.gone_count} gone of {state.next_sequence} items"
    for number, attempts in state.attempts.items():
        for first, count, _ in (*attempts.times, *attempts.delays):
            cursor, end = state.subscriptions.get(number), first + count
            if cursor is None or end > state.next_sequence or cursor.overlaps(first, end):
                yield f"deliveries of {count} items from {first} are counted, for subscription {number}, not due to it"
    common = [(0, state.next_sequence)] if state.subscriptions else []
    for cursor in state.subscriptions.values():
        common = cursor.done_of(common)
    if state.subscriptions and sum(count for _, count in common) != state.gone_count:
        yield f"{state.gone_count} items are gone, all subscriptions have consumed {common}"


def _leftovers(disk: Disk, places: Places, recovered: Recovered) -> Iterator[str]:
    yield from recovered.sweep
    yield from recovered.set_aside
    own: dict[str, Callable[[str], object]] = {
        LOG_DIRECTORY: parse_log_name,
        DATA_DIRECTORY: parse_segment_name,
        INBOX_DIRECTORY: parse_name,
        POOL_DIRECTORY: parse_spare_name,
    }
    for part, parse in own.items():
        yield from (join(part, name) for name in names_in(disk, places.path(part)) if parse(name) is None)
    for other in places.others:
        if other == OWN or bears(disk, other):
            path = join(places.root_of(other), DATA_DIRECTORY)
            yield from (join(path, name) for name in names_in(disk, path) if part_of_segment(name))


@dataclass(frozen=True)
class RepairReport:
    """What ``repair`` did."""

    problems: tuple[str, ...]
    """What was wrong, each with file and offset; empty: nothing, and nothing was changed but what opening changes."""
    items: int
    """Items in the queue now, each of them read and checked."""
    lost: tuple[tuple[int, int], ...]
    """``(first, count)``: the sequences, counted from the queue's first item on, that are gone."""
    without_log: bool
    """The log was of no use: the items come from the blocks alone, and some may have been consumed before."""
    kept: tuple[str, ...]
    """The files, relative to the queue's directory or the place of its segments, in which what was cut is kept;
    ``*.damaged``."""


@naming_paths()
def repair(
    path: StrPath,
    name: str | None = None,
    *,
    data_path: StrPath | None = None,
    renew: bool = False,
    trust: bool = False,
    disk: Disk = DISK,
) -> RepairReport:
    """Make the queue at ``path/name`` open again, with all that is provably intact, in its order.

    On return the queue is durable, closed and consistent. Nothing is deleted: damaged files stay as ``*.damaged``. What
    a lost part of the log said of items being consumed is unknown, so these come again.

    A damaged ``data.path``, and a lost or damaged ``queue.id``, are written anew if the segments that the log names are
    where they should be, or at ``data_path``, which is meant as at an opening. A ``queue.id`` that no queue records is
    set aside. Otherwise ``DataPathError`` says what is needed. With ``renew`` the queue gets a new identity: a copy of
    a directory needs one, to be open beside the other. Raises ``QueueNotFoundError``, ``QueueLockedError`` (it is
    owned), ``UnsupportedFormatError``, ``DiskFullError``, and ``DataMissingError``: the place of the segments must be
    there; ``InDoubtError`` where another queue still knows what became of a transaction: repair that one first. Raises
    ``UntrustedError`` for what another user has prepared, unless ``trust`` accepts that.
    """
    directory = abspath(queue_directory(path, name))
    if not trust:
        need_trusted(disk, believed(disk, directory))
    mended = set_stray_id_aside(disk, directory)
    if not mended.problems:
        given = None if data_path is None else place_path(directory, name, data_path)
        mended = mend_places(disk, directory, given)
    places = read_places(disk, directory)
    if (
        mended.problems
        and not names_in(disk, directory, LOG_DIRECTORY)
        and not names_in(disk, places.path(DATA_DIRECTORY))
    ):
        return RepairReport(mended.problems, 0, (), False, mended.kept)
    if not names_in(disk, places.path(LOG_DIRECTORY)) and not names_in(disk, places.path(DATA_DIRECTORY)):
        raise QueueNotFoundError(f"{directory}: no queue here to repair")
    found: list[Salvaged] = []
    before = _damaged_files(disk, places)

    def read(disk: Disk, places: Places, decide: Decide) -> Recovered:
        """What an opening reads, and a note of what it lacks."""
        salvaged = salvage(disk, places, decide)
        found.append(salvaged)
        if renew:
            salvaged.recovered.state.identity = b""  # an opening draws one for a queue that has none
        return salvaged.recovered

    free = nullcontext()
    store = open_store(disk, directory, Settings(trust=trust), True, 0.0, free, free, read)
    try:
        if renew:
            store.trim()  # so that the log says so, also one that was closed cleanly
        inbox_problems = [str(problem) for problem in store.adopter.damage]
    finally:
        store.close()
    items = check(directory, disk=disk).items  # which needs no key
    salvaged = found[0]
    kept = sorted(_damaged_files(disk, places) - before)
    problems, kept = (*mended.problems, *salvaged.problems, *inbox_problems), [*mended.kept, *kept]
    return RepairReport(problems, items, tuple(salvaged.lost), salvaged.without_log, tuple(kept))


def _damaged_files(disk: Disk, places: Places) -> set[str]:
    return {
        join(part, name)
        for part in (LOG_DIRECTORY, DATA_DIRECTORY, INBOX_DIRECTORY)
        for name in names_in(disk, places.path(part))
        if name.endswith(".damaged")
    }

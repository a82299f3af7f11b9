"""Inspection and repair of a queue's directory: ``check`` reports problems, and ``repair`` keeps what is intact.

``check`` reads the log in the way that recovery does. It then reads every block that holds an unconsumed item, and
verifies the invariants of the state, which are listed in ``state``. It changes nothing and takes no lock. The queue
may be open meanwhile. A change that the owner makes during the check can look like a problem, for instance a segment
that is gone. So a check that finds problems begins again if the queue had an owner before, behind or during it, and the
last one counts.

``repair`` takes the lock and reads what is intact. ``salvage`` describes this, and what it writes to the segments after
it has copied each of them. ``repair`` then begins a new generation of the log with what is left, in the way that a trim
does. It writes nothing else. A repair that is cut short loses nothing: it can be run again, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain

from ..core.header import HEADER_BYTES
from ..core.intervals import Intervals
from ..core.operations import SubscriptionClosed
from ..core.state import Extent, State
from ..engine.context import Settings
from ..engine.inbox import MEND, READABLE
from ..errors import (
    CorruptionError,
    DataMissingError,
    DataPathError,
    PersistentQueueError,
    QueueLockedError,
    UnsupportedFormatError,
    UntrustedError,
)
from ..storage.inbox_limits import check_limits
from ..storage.layout import (
    DAMAGED_SUFFIX,
    HOLDS_NAME,
    bears,
    believed,
    find_generations,
    gone_meanwhile,
    holds_queue,
    names_in,
    no_queue,
    parse_spare_name,
    part_of_segment,
    place_path,
    queue_directory,
    sizes_in,
)
from ..storage.locations import (
    DATA_DIRECTORY,
    INBOX_DIRECTORY,
    LOG_DIRECTORY,
    OWN,
    POOL_DIRECTORY,
    SCHEMAS_DIRECTORY,
    Places,
    read_places,
    remove_file,
)
from ..storage.lock import LOCK_NAME, is_held
from ..storage.log import parse_log_name
from ..storage.log_reader import SNAPSHOT, read_steadily
from ..storage.publication import Part, is_published, parse_name, read_publication
from ..storage.relocation import need_data, need_own_location
from ..storage.schema_files import check_schemas, parse_schema_name
from ..storage.segment import PUBLISHED, Segment, parse_segment_name, segment_name
from ..system.disk import Disk, StrPath, abspath, basename, current_disk, dirname, join
from ..system.path_errors import naming_paths, unless_call_lacks
from ..system.progress import SILENT, Meter, Progress, metering
from ..system.trust import distrusted, need_trusted
from .in_doubt import refuse_unsettled
from .location_repair import mend_places, set_stray_id_aside
from .opening import asking, begin, take
from .replay import Recovered, look_into_inbox, recover
from .salvage import Salvaged, salvage

_TRIES = 3
"""Most inspections of a queue whose owner is at work."""


@dataclass(frozen=True)
class CheckReport:
    """Result of ``check``."""

    problems: tuple[str, ...]
    """Problems that were found, each with its file and offset if it has them. Empty if the queue is sound."""
    sealed: bool
    """Whether the queue was closed cleanly."""
    items: int
    """Number of unconsumed items whose blocks were read and are intact."""
    transactions: int
    """Number of transactions in the log after its checkpoint."""
    torn_bytes: int
    """Bytes of an unfinished group at the end of the log. The next opening drops this group."""
    published: int
    """Number of items that other processes have published and that wait to be adopted. Their blocks were read and are
    intact."""
    leftovers: tuple[str, ...]
    """Files that nothing refers to, which the next opening sweeps or sets aside, and files that are not the queue's."""
    in_doubt: str = ""
    """Name of the coordinator if the last transaction is in doubt, else empty. The next opening asks the coordinator.
    The items that this transaction would enqueue were checked and are not counted."""

    untrusted: tuple[str, ...] = ()
    """Messages about paths that another user has prepared or may write to. An opening without ``trust=True`` refuses
    them. They are not problems of the queue itself."""

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def check(path: StrPath, name: str | None = None, *, progress: Progress = None) -> CheckReport:
    """Inspect the queue at ``path/name`` without changing it.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None, the default, means the queue that lies in ``path`` itself.
        progress: How to report the bytes that were read (see ``Progress``). Default None: not at all. If the callable
            raises, the inspection ends, and nothing was changed.

    Returns:
        The report. Damage is a problem in the report, and not an error. A location of the segments that is not there
        is a problem, too. So is one that belongs to the original of a copied queue, or to another queue.

    Raises:
        QueueNotFoundError: There is no queue at the path.
        InvalidNameError: The name cannot be a queue's.
        TypeError: ``path`` or ``name`` is not text, or ``progress`` has another type than ``Progress``.
        MissingExtraError: ``progress`` is True, and tqdm is not installed.
        DataPathError: The directory is the location of another queue's segments.
        UnsupportedFormatError: A newer version has written the queue.
        MemoryShortageError: The log takes more memory than this process may have.
        UnusablePathError: The operating system refuses the path.
        OSError: A file cannot be read for another reason.

    The call only reads and takes no lock. Any number of threads and processes may call it, also while the queue is
    open, opened or closed. If it finds problems then, it reads up to three times, since the owner's changes can look
    like them. Example::

        report = check("queues", "orders")
        for problem in report.problems:
            print(problem)
    """
    directory = queue_directory(path, name)
    with metering(progress, f"check {basename(directory)}") as meter, naming_paths():
        return _check_steadily(current_disk(), abspath(directory), meter)


def _check_steadily(disk: Disk, directory: str, meter: Meter) -> CheckReport:
    """Inspect the queue, and again while an owner may have made what looks like a problem. Raises as ``check`` does."""
    before: CheckReport | None = None
    for _ in range(_TRIES - 1):
        unowned = _unowned(disk, directory)
        report = _check(disk, directory, meter)
        if report.ok or (unowned and unowned == _unowned(disk, directory)):
            return report
        if before is not None and report.problems == before.problems:  # damage: an owner changes other files each time
            return report
        before = report
    return _check(disk, directory, meter)


def _unowned(disk: Disk, directory: str) -> tuple[int, ...]:
    """Return traits of the lock that each owner changes; an empty tuple if an owner may be at work."""
    path = join(directory, LOCK_NAME)
    if is_held(disk, path) is not False:
        return ()
    try:
        found = disk.lstat(path)
    except FileNotFoundError:
        return (0,)
    return found.st_ino, found.st_mtime_ns


def _check(disk: Disk, directory: str, meter: Meter = SILENT) -> CheckReport:
    """Inspect the queue in this directory. Raises the errors of ``check``."""
    try:
        if not find_generations(disk, directory):
            raise no_queue(disk, directory, "to check")
        places = read_places(disk, directory)
        try:
            need_own_location(disk, places)
        except DataPathError as foreign:  # to read on would find the segments of the original sound
            return _unread(disk, directory, foreign)
        recovered = _read(disk, places, meter)
    except (CorruptionError, DataMissingError) as damage:
        return _unread(disk, directory, damage)
    if recovered is None:  # the queue was deleted meanwhile
        raise no_queue(disk, directory, "to check")
    problems = list(_check_log(recovered))
    items = 0
    meter.expect(sum(extent.length_bytes for extent in recovered.state.extents))
    for extent in recovered.state.extents:
        items += extent.live
        for error, live in _damage_in(disk, places, recovered, extent, meter):
            problems.append(str(error))
            items -= live
    problems += _check_state(recovered.state)
    problems += map(str, chain(check_schemas(disk, directory), check_limits(disk, directory)))
    in_doubt = recovered.prepared.prepare.coordinator if recovered.prepared is not None else ""
    leftovers = tuple(_leftovers(disk, places, recovered))
    if in_doubt:
        problems += _check_doubt(disk, places, recovered, in_doubt)
    published = 0
    inbox = look_into_inbox(disk, places)
    files = _published(places, recovered, inbox)
    # A power cut may take the adoption of a manifest after some of its files were renamed. These files get their old
    # names back, so they are looked for under the new names as well.
    inbox |= {name: join(DATA_DIRECTORY, segment_name(number)) for number, name in recovered.orphans.items()}
    if files:
        meter.expect(sum(sizes_in(disk, places.path(INBOX_DIRECTORY)).values()))
    for file in files:
        try:
            published += _check_publication(disk, places, inbox, file, meter)
        except FileNotFoundError:  # the owner has adopted it in the meantime
            continue
        except PermissionError as problem:
            problems.append(str(CorruptionError(file, 0, READABLE, str(problem.strerror), MEND)))
        except (CorruptionError, UnsupportedFormatError) as problem:
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


def _read(disk: Disk, places: Places, meter: Meter) -> Recovered | None:
    """Read the log, which an owner may replace meanwhile. Raises ``DataMissingError`` and the errors of ``recover``."""
    recovered = read_steadily(
        lambda: find_generations(disk, places.directory, places), lambda _: recover(disk, places, None, meter), SNAPSHOT
    )
    if recovered is not None and recovered.state.extents:  # without an item, no segment is needed
        need_data(disk, places, recovered.replay)
    return recovered


def _check_log(recovered: Recovered) -> Iterator[str]:
    """Yield the problems of a log of which an opening uses a part only.

    A log has its whole length before it gets its name, so no owner can make a sound one look short. A sealed log has
    nothing behind its checkpoint that could be lost. A frame comes behind its blocks, also with ``sync=False``.
    """
    replay = recovered.replay
    if recovered.lost_transactions:
        yield str(recovered.loss())
    if replay.missing_bytes and not replay.sealed:
        size_bytes = replay.header.size_bytes
        advice = (
            "the flushes that stood there are lost, if there were any: find out what has cut the file, and restore it; "
            "else open the queue, which goes on with the rest"
        )
        expected, found = f"a log of {size_bytes} bytes", f"{size_bytes - replay.missing_bytes}"
        yield str(CorruptionError(replay.file, size_bytes - replay.missing_bytes, expected, found, advice))


def _unread(disk: Disk, directory: str, problem: PersistentQueueError) -> CheckReport:
    """Return the report of a queue that cannot be read because of this problem."""
    return CheckReport((str(problem),), False, 0, 0, 0, 0, (), untrusted=tuple(map(str, _distrusted(disk, directory))))


def _distrusted(disk: Disk, root: str) -> Iterator[UntrustedError]:
    return distrusted(disk, believed(disk, root))


def _damage_in(
    disk: Disk, places: Places, recovered: Recovered, extent: Extent, meter: Meter = SILENT
) -> Iterator[tuple[PersistentQueueError, int]]:
    """Yield the error of each block of the extent that does not check out, and the number of its unconsumed items."""
    info = recovered.state.segments[extent.segment]
    try:
        segment = Segment.open_to_read(disk, [recovered.path(places, info.number)], info.number, info.salt)
    except CorruptionError as damage:
        yield damage, extent.live
        return
    end = extent.offset + extent.length_bytes
    # Blocks that the log carries may not have reached the segment yet. An opening writes them again.
    carried = {each.offset: each for each in recovered.redo if each.segment == info.number}
    within = [carried[offset] for offset in sorted(carried) if extent.offset <= offset < end]
    stops = [(each.offset, each.ordinal, each.length_bytes, each.count) for each in within]
    offset, ordinal = extent.offset, extent.ordinal
    first = extent.first - extent.ordinal
    with closing(segment):
        for stop, stop_ordinal, length_bytes, count in [*stops, (end, extent.ordinal + extent.count, 0, 0)]:
            for problem, lost in segment.damage(offset, ordinal, stop, stop_ordinal, meter):
                yield problem, recovered.state.gone.live_between(first + lost.start, first + lost.stop)
            meter.advance(length_bytes)
            offset, ordinal = stop + length_bytes, stop_ordinal + count


def _check_doubt(disk: Disk, places: Places, recovered: Recovered, coordinator: str) -> Iterator[str]:
    """Yield the problems of the transaction in doubt, and count it as committed from then on."""
    state = recovered.state
    try:
        if not find_generations(disk, join(dirname(abspath(places.directory)), coordinator)):
            yield (
                f"{places.directory}: a transaction is in doubt, its coordinator is {coordinator}, and there is no "
                "such queue beside this one: bring it back, or run repair"
            )
        next_sequence = state.next_sequence
        recovered.resolve(True)
        for extent in state.extents:
            if extent.end > next_sequence:
                yield from (str(damage) for damage, _ in _damage_in(disk, places, recovered, extent))
    except PersistentQueueError as problem:
        yield str(problem)
    yield from _check_state(state)


def _published(places: Places, recovered: Recovered, inbox: Mapping[str, str]) -> list[str]:
    """Return the paths of the published files that wait in the inbox."""
    adopted = set(recovered.adopted.values())
    return [places.path(file) for name, file in inbox.items() if is_published(name) and file not in adopted]


def _check_publication(disk: Disk, places: Places, files: Mapping[str, str], path: str, meter: Meter) -> int:
    """Check a published file, or the parts of a manifest, with their blocks; return the number of its items.

    ``files`` are the paths at which the parts may be, by their names. The owner adopts nothing of a manifest with a
    part of another length.
    """
    publication = read_publication(disk, path)
    if publication.name != basename(path):
        raise CorruptionError(path, 0, f"a file that was published as {basename(path)}", publication.name)
    if not publication.parts:
        _check_part(disk, path, publication.own, meter)
    for part in publication.parts:
        at = places.path(files.get(part.name) or join(INBOX_DIRECTORY, part.name))
        _check_part(disk, at, part, meter)
        expected, found = HEADER_BYTES + part.capacity_bytes, disk.lstat(at).st_size
        if found != expected:
            raise CorruptionError(at, min(expected, found), f"{expected} bytes, as its manifest says", f"{found} bytes")
    return sum(part.count for part in publication.files)


def _check_part(disk: Disk, path: str, part: Part, meter: Meter) -> None:
    if part.count:
        with closing(Segment.open_to_read(disk, [path], PUBLISHED, part.salt)) as segment:
            found = segment.checksums(HEADER_BYTES, HEADER_BYTES + part.length_bytes, meter)
        if found != (part.checksum, part.count):
            expected = f"{part.count} items with checksum {part.checksum:#010x}"
            raise CorruptionError(path, HEADER_BYTES, expected, f"{found[1]} with {found[0]:#010x}")


def _check_state(state: State) -> Iterator[str]:
    """Yield each violation of the invariants that ``state`` lists."""
    above = 0
    live: dict[int, int] = dict.fromkeys(state.segments, 0)
    for extent in state.extents:
        if extent.first < above:
            yield f"extent {extent.row()} overlaps the extent before it"
        above = extent.end
        unconsumed = state.gone.live_between(extent.first, extent.end)
        if unconsumed != extent.live or unconsumed == 0:
            yield f"extent {extent.row()} has {unconsumed} items that are not gone"
        live[extent.segment] += extent.live
    for number, segment in state.segments.items():
        if segment.live != live[number] or (segment.live == 0) != (number in state.drained):
            yield f"segment {number} counts {segment.live} live items, but its extents count {live[number]}"
    live_bytes = sum(segment.live_bytes for segment in state.segments.values())
    if live_bytes != state.live_bytes:
        yield f"the segments count {live_bytes} live bytes, but the state counts {state.live_bytes}"
    if sum(live.values()) + state.gone_count != state.next_sequence:
        yield (
            f"{sum(live.values())} live items and {state.gone_count} gone items do not add up to the "
            f"{state.next_sequence} items that were enqueued"
        )
    for number, attempts in state.attempts.items():
        for first, count, _ in (*attempts.times, *attempts.delays):
            cursor, end = state.subscriptions.get(number), first + count
            if cursor is None or end > state.next_sequence or cursor.overlaps(first, end):
                yield (
                    f"deliveries of {count} items from sequence {first} on are counted for subscription {number}, "
                    "which does not have all of them left"
                )
    common = Intervals().rest(0, state.next_sequence)
    for cursor in state.subscriptions.values():
        common = cursor.done_of(common)
    if state.subscriptions and common.size != state.gone_count:
        runs = common.runs()
        yield f"{state.gone_count} items are gone, but the runs that every subscription has consumed are {runs}"


def _leftovers(disk: Disk, places: Places, recovered: Recovered) -> Iterator[str]:
    yield from recovered.sweep
    yield from recovered.set_aside
    own: dict[str, Callable[[str], object]] = {
        LOG_DIRECTORY: parse_log_name,
        DATA_DIRECTORY: parse_segment_name,
        INBOX_DIRECTORY: parse_name,
        POOL_DIRECTORY: parse_spare_name,
        SCHEMAS_DIRECTORY: parse_schema_name,
    }
    for part, parse in own.items():
        yield from (join(part, name) for name in names_in(disk, places.path(part)) if parse(name) is None)
    for other in places.others:
        if other == OWN or bears(disk, other):
            path = join(places.root_of(other), DATA_DIRECTORY)
            yield from (join(path, name) for name in names_in(disk, path) if part_of_segment(name))


@dataclass(frozen=True)
class RepairReport:
    """Result of ``repair``."""

    problems: tuple[str, ...]
    """Problems that were found, also in the files that it adopted, each with its file and offset if it has them. If
    empty, ``repair`` changed nothing except what an opening changes, and what ``renew`` and ``fan_out`` ask for."""
    items: int
    """Number of items in the queue after the repair. Each of them was read and is intact."""
    lost: tuple[tuple[int, int], ...]
    """Sequences that are lost, as ``(first, count)``. They are counted from the first item of the queue on."""
    without_log: bool
    """Whether the log could not be used. The items then come from the blocks alone. Some may have been consumed before,
    and some may be those of large transactions that were rolled back."""
    kept: tuple[str, ...]
    """Names of the ``*.damaged`` files that keep what was removed or replaced, relative to the queue's directory or to
    the location of its segments."""


def repair(
    path: StrPath,
    name: str | None = None,
    *,
    data_path: StrPath | None = None,
    renew: bool = False,
    fan_out: bool = False,
    trust: bool = False,
    progress: Progress = None,
) -> RepairReport:
    """Make a damaged queue open again, with everything that is provably intact, in its order.

    A lost part of the log may have recorded that items were consumed. ``repair`` cannot know this, so these items are
    delivered again. Nor does it always know which published files were adopted there. Those files are adopted again,
    and the report says so.

    A wrong or damaged ``data.path``, and a lost or damaged ``queue.id``, are written anew under one condition: the
    segments that the log names are in the recorded location, or at ``data_path``. If the log names none, ``data_path``
    is believed unless it holds segments, or another queue has that location. A ``queue.id`` that no queue records is
    set aside.

    A damaged schema of typed rows is reported and stays as it is, since its number must not be given to another one. A
    damaged ``queue.limits`` is reported, too: the next opening that does not keep the limits writes it anew.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None, the default, means the queue that lies in ``path`` itself.
        data_path: The directory of the segments, with the meaning that it has at an opening. None, the default, means
            the recorded location. It is needed only if the record is damaged or wrong.
        renew: Whether the queue gets a new identity. Default: False. A copy of a queue needs a new one before it can
            be open beside the original.
        fan_out: Whether the queue loses its plain consumer, if that is its only one. Default: False. A queue that was
            made with ``fan_out`` gets a plain consumer if ``repair`` cannot use the log, which held the subscriptions.
            All items stay. The first subscription gets those that the plain consumer had left, unless it is made with
            ``start="latest"``.
        trust: Whether to accept a directory that another user has prepared or may write to. Default: False.
        progress: How to report the bytes that were read and written (see ``Progress``). Default None: not at all. If
            the callable raises, the repair ends as by a crash: the lock is free, nothing is lost, and a new call
            repairs the rest.

    Returns:
        The report. It names the problems, the lost sequences, and the files that were kept.

    Raises:
        QueueNotFoundError: There is no queue at the path.
        QueueLockedError: The queue is open.
        InvalidNameError: The name cannot be a queue's.
        TypeError: ``path``, ``name`` or ``data_path`` is not text, or ``progress`` has another type than ``Progress``.
        MissingExtraError: ``progress`` is True, and tqdm is not installed.
        DataPathError: The segments are not in the recorded location, or not at ``data_path``. The message says what is
            needed.
        DataMissingError: The location of the segments is not there: mount it first. Or ``data.path`` is missing, and
            ``data_path`` was not given.
        InDoubtError: Another queue still knows the outcome of a transaction. Repair that queue first. With ``renew``:
            a queue beside this one may have to ask it for an outcome. Open that queue first.
        ValueError: ``fan_out`` is True, and the queue has a plain consumer and subscriptions.
        UntrustedError: Another user has prepared the directory or may write to it, and ``trust`` is False.
        UnsupportedFormatError: A newer version has written the queue.
        MemoryShortageError: A file takes more memory than this process may have.
        ResourceError: The operating system lacks disk space, descriptors or memory. Call it again later.
        UnusablePathError: The operating system refuses the path.
        BrokenQueueError: A sync or a write of the log failed. Call it again.
        OSError: A file cannot be read or written for another reason.

    On return, the queue is durable, closed and consistent. Nothing is deleted: damaged files stay as ``*.damaged``.
    Any thread may call it. A call raises ``QueueLockedError`` while another repair of the queue runs.
    """
    directory = queue_directory(path, name)
    with metering(progress, f"repair {basename(directory)}") as meter, naming_paths():
        directory = abspath(directory)
        given = None if data_path is None else place_path(directory, name, data_path)
        with unless_call_lacks(directory, "to repair the queue", "then repair it again"):
            return _repair(current_disk(), directory, given, renew, fan_out, trust, meter)


def _repair(
    disk: Disk, directory: str, given: str | None, renew: bool, fan_out: bool, trust: bool, meter: Meter
) -> RepairReport:
    """Repair the queue in this directory, with its segments at ``given``. Raises the errors of ``repair``."""
    if not trust:
        need_trusted(disk, believed(disk, directory))
    mended = set_stray_id_aside(disk, directory)
    if not mended.problems:
        mended = mend_places(disk, directory, given)
    places = read_places(disk, directory)
    if not _has_files(disk, places):
        if mended.problems:
            return RepairReport(mended.problems, 0, (), False, mended.kept)
        raise no_queue(disk, directory, "to repair")
    before = _damaged_files(disk, places)
    with take(disk, directory, _settings(trust), create=True, data_path=given) as taken:
        if not _has_files(taken.lock.disk, taken.places):  # it was deleted meanwhile: there is nothing to keep
            raise gone_meanwhile(taken.lock, directory, "to repair")
        if renew:
            refuse_unsettled(taken.lock.disk, directory, "gets no new identity", "renew")
        salvaged = salvage(taken.lock.disk, taken.places, asking(disk, directory, trust), meter)
        _change(taken.lock.disk, directory, salvaged.recovered.state, renew, fan_out)
        salvaged.problems += _check_log(salvaged.recovered)
        next_sequence = salvaged.recovered.state.next_sequence
        # With the lock still in the hands of ``take``: an interruption may come between the begin and the block.
        with closing(begin(taken, salvaged.recovered, meter=meter)) as store:
            if renew or fan_out:
                store.trim()  # writes what was changed to the log, also after a clean close
            inbox_problems = [str(problem) for problem in store.inbox.damage]
            adopted = store.state.next_sequence > next_sequence
    report = _check(disk, directory, meter)  # without a key: checksums cover the encrypted bytes
    lasting = [str(problem) for problem in chain(check_schemas(disk, directory), check_limits(disk, directory))]
    if adopted and not set(report.problems).issubset(lasting):
        # The blocks of published files are not read before the adoption.
        with suppress(QueueLockedError):  # a process that has opened the queue meanwhile meets the damage
            again = _salvage_adopted(disk, directory, given, trust, meter)
            salvaged.problems += again.problems
            salvaged.lost += again.lost
            report = _check(disk, directory, meter)
    found = (*mended.problems, *salvaged.problems, *inbox_problems, *lasting, *report.problems)
    reused = {join(DATA_DIRECTORY, basename(copy)) for copy in salvaged.kept}
    kept = [*mended.kept, *sorted(_damaged_files(disk, places) - before | reused)]
    problems, lost = tuple(dict.fromkeys(found)), tuple(salvaged.lost)
    return RepairReport(problems, report.items, lost, salvaged.without_log, tuple(kept))


def _has_files(disk: Disk, places: Places) -> bool:
    """Return whether there is a queue, or at least one file of it, however damaged."""
    if holds_queue(disk, places.directory):
        return True
    return any(names_in(disk, places.path(part)) for part in (LOG_DIRECTORY, DATA_DIRECTORY))


def _salvage_adopted(disk: Disk, directory: str, given: str | None, trust: bool, meter: Meter) -> Salvaged:
    """Repair a queue that has adopted damaged files, and adopt no more. Raises the errors of ``repair``."""
    with take(disk, directory, _settings(trust), create=False, data_path=given) as taken:
        salvaged = salvage(taken.lock.disk, taken.places, asking(disk, directory, trust), meter)
        begin(taken, salvaged.recovered, adopts=False, meter=meter).close()
    return salvaged


def _settings(trust: bool) -> Settings:
    return Settings(keep_limits=True, trust=trust, network_disk=True)


def _change(disk: Disk, directory: str, state: State, renew: bool, fan_out: bool) -> None:
    """Make the changes that the caller of ``repair`` asks for. Raises ``ValueError``."""
    if renew:
        state.identity = b""  # an opening gives a new identity to a queue without one
    if not state.identity:  # the holds in the file are those of the queue that was here
        remove_file(disk, join(directory, HOLDS_NAME))
    if fan_out:
        _remove_plain_consumer(directory, state)


def _remove_plain_consumer(directory: str, state: State) -> None:
    """Remove the plain consumer if it is the only one: no item is dropped while there is no consumer.

    Raises ``ValueError`` if there are others: then the items would be dropped that only the plain consumer has left.
    """
    if state.subscriptions.keys() == {0}:
        state.apply(SubscriptionClosed(0))
    elif 0 in state.subscriptions:
        raise ValueError(
            f"{directory}: this queue has subscriptions beside its plain consumer, so fan_out=True could drop items: "
            "repair it without fan_out"
        )


def _damaged_files(disk: Disk, places: Places) -> set[str]:
    return {
        join(part, name)
        for part in (LOG_DIRECTORY, DATA_DIRECTORY, INBOX_DIRECTORY)
        for name in names_in(disk, places.path(part))
        if name.endswith(DAMAGED_SUFFIX)
    }

"""The opening of a queue: take its lock, recover it or make a new one, and adopt the published files.

The steps of an opening. ``take`` makes the steps 1 and 2 and finds the location, ``recover`` reads the log, and
``begin`` makes the steps from 5 on. ``repair`` does the same with ``salvage`` in place of ``recover``. Only the steps
from 6 on write to the queue, apart from its directory and its lock file.

1. Check the directory: its name, that it is on a local disk (see ``mounts``), and that no other user has prepared it
   (see ``trust``).
2. Take the lock. From here on the owner uses the descriptors of its directories.
3. Find the location of the segments, and lock it if it is not the queue's directory. Read the log. ``replay`` does
   this, and also says what must be written again. Refuse a queue whose record of the location is lost.
4. If a transaction is in doubt, ask the queue that coordinated it for the outcome (see ``in_doubt``). If that queue is
   not owned, it is opened for this, and closed.
5. Refuse a copy of a queue that lies beside its original.
6. Finish a deletion, or a move of segments, that was cut short. If the location of the segments names another
   directory, and is not proven to be this queue's, set aside the segments that nothing refers to.
7. Make a ``Store`` of the state, and write on. After a clean close the store continues with the same log and segment.
   After a crash it begins a new generation of the log and a new segment. *A crash here leaves the log that was read:
   the next opening does all of this again, with the same result.*
8. Make the location name this directory. *A crash before leaves the other name: the next opening needs the proof
   again.* Record the limits for producers, and adopt what they have published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from logging import ERROR, WARNING
from typing import NamedTuple

from ..core.frame import DOUBTED
from ..core.operations import IDENTITY_BYTES, SubscriptionClosed
from ..core.state import State
from ..engine.context import UNGUARDED, Guards, Settings
from ..engine.inbox import LOOK_NAMES
from ..engine.store import RecoveryReport, Store
from ..errors import BrokenQueueError, CopiedQueueError, CorruptionError, QueueLockedError, ResourceError
from ..interrupts.signal_shield import shielded
from ..storage.inbox_limits import kept_limits, record_limits
from ..storage.layout import (
    REPAIR,
    believed,
    delete_all,
    find_generations,
    gone_meanwhile,
    need_name,
    need_own_directory,
    no_queue,
    set_all_aside,
    sizes_in,
)
from ..storage.locations import DATA_DIRECTORY, LOG_DIRECTORY, OWN, Places
from ..storage.lock import LOCK_NAME, Lock
from ..storage.log import parse_log_name
from ..storage.pool import Pool
from ..storage.relocation import claim, is_proven, need_data, open_places, settle, sweep_others
from ..storage.segment import segment_name
from ..system.disk import PAGE_BYTES, Disk, basename, join, relpath
from ..system.event_log import LOGGER
from ..system.files import make_directory, make_parts, sync_directory, sync_names
from ..system.path_errors import faults, suppress, unless_call_lacks
from ..system.progress import SILENT, Meter
from ..system.trust import need_trusted
from .in_doubt import Decide, ask, find_copy, forget_settled
from .mounts import need_local
from .replay import Recovered, recover, segment_path


def announce(directory: str, report: RecoveryReport) -> None:
    """Write to the program's log what was recovered in the queue in this directory."""
    if not report.clean:
        LOGGER.info("%s: recovered %s", directory, report)
    if report.resolved is not None:
        became = "committed" if report.resolved else "not committed"
        LOGGER.warning("%s: a transaction over several queues was in doubt, and is %s", directory, became)
    if report.torn_bytes or report.missing_bytes or report.lost_transactions:
        # A crash tears a log, and takes writes that were not synced. It never shortens a file whose length was durable:
        # missing bytes are an error.
        LOGGER.log(
            ERROR if report.missing_bytes else WARNING,
            "%s: the log ended in up to %d torn bytes and %d missing bytes, and %d transactions were dropped; "
            "set aside: %s",
            directory,
            report.torn_bytes,
            report.missing_bytes,
            report.lost_transactions,
            ", ".join(report.set_aside) or "nothing",
        )
    else:
        for name in report.set_aside:
            LOGGER.error("%s: nothing refers to %s, which may hold items: renamed to *.damaged", directory, name)


_NO_CREATION = "check the path; create=False makes none"


IsSound = Callable[[str], bool]
"""Returns whether this process owns the queue in a directory, and that queue is not broken."""


def _knows_none(_directory: str) -> bool:
    return False


class Taken(NamedTuple):
    """A queue whose lock is held, and of which nothing but its locations was read yet."""

    disk: Disk
    """Access to the neighbours of the queue, by their names. ``lock.disk`` reaches the queue, even if it is renamed."""
    directory: str
    settings: Settings
    data_path: str | None
    """Location of the segments that the caller asks for."""
    lock: Lock
    places: Places


def open_store(
    disk: Disk,
    directory: str,
    settings: Settings,
    guards: Guards = UNGUARDED,
    *,
    create: bool,
    needs_name: bool = False,
    lock_timeout_seconds: float = 0.0,
    data_path: str | None = None,
    is_sound: IsSound = _knows_none,
    meter: Meter = SILENT,
) -> Store:
    """Take the lock, then recover the queue, or make a new one with its segments at ``data_path``.

    ``is_sound`` is about the queues that this one may have to ask. With ``needs_name``, no queue is made in a
    directory of named queues. A directory that another user has prepared is opened only if the settings say ``trust``.
    A directory on a network file system is opened only if they say ``network_disk``. ``meter`` counts bytes: of the
    log, of the blocks that are written again, and of the published files.

    On return, the whole state is durable (with ``settings.sync``).

    Raises ``QueueLockedError``, ``UntrustedError``, ``NetworkDiskError``, ``QueueNotFoundError``,
    ``InvalidNameError``, ``DataPathError``, ``DataMissingError``, ``CorruptionError``, ``UnsupportedFormatError``,
    ``CopiedQueueError``, ``InDoubtError``, ``ResourceError``, ``BrokenQueueError``, ``ValueError`` for ``fan_out`` and
    ``OSError``. The lock is then free. Nothing is lost: an opening only writes what the log said, and a later one can
    write it again.
    """
    with take(
        disk,
        directory,
        settings,
        create=create,
        needs_name=needs_name,
        lock_timeout_seconds=lock_timeout_seconds,
        data_path=data_path,
    ) as taken:
        decide = asking(disk, directory, settings.trust, is_sound)
        recovered = _recover(taken, decide, meter)
        return begin(taken, recovered, guards, meter=meter)


@contextmanager
def take(
    disk: Disk,
    directory: str,
    settings: Settings,
    *,
    create: bool,
    needs_name: bool = False,
    lock_timeout_seconds: float = 0.0,
    data_path: str | None = None,
) -> Iterator[Taken]:
    """Take the lock and find the locations, so that the caller can read the queue and then ``begin`` it.

    If the caller raises, the lock is freed. Otherwise it stays, and belongs to the store that ``begin`` has made.
    Raises the errors that ``open_store`` lists.
    """
    with unless_call_lacks(directory, "to open the queue", "then open it"):
        need_own_directory(disk, directory)
        _need_local(disk, settings, directory, data_path)
        if not create:
            _need_queue(disk, directory)
        if needs_name:
            need_name(disk, directory)
        lock = Lock(disk, join(directory, LOCK_NAME))
        try:  # with the lock in it: an interruption may come when it is taken
            while True:
                if create:
                    make_directory(disk, directory)
                _need_trusted(disk, settings, directory, data_path)
                with suppress(FileNotFoundError):  # the queue was being deleted, and its directory with it
                    lock.acquire(lock_timeout_seconds)
                    break
                if not create:
                    _need_queue(disk, directory)
            own = lock.disk
            _need_trusted(own, settings, directory, None)  # again: under the lock no other process replaces it
            if not create and not find_generations(own, directory):  # again: it may have been deleted during the wait
                raise gone_meanwhile(lock, directory, "to open", _NO_CREATION)
            places = open_places(own, directory, data_path, lock)
            _need_trusted(own, settings, places.data_root, None)
            if places.data_root != directory:
                _need_local(own, settings, places.data_root, None)
            if settings.keep_limits:
                settings = replace(settings, **kept_limits(own, directory))
            yield Taken(disk, directory, settings, data_path, lock, places)
        except BaseException:
            shielded(lock.release)
            raise


def begin(
    taken: Taken,
    recovered: Recovered | None,
    guards: Guards = UNGUARDED,
    *,
    adopts: bool = True,
    meter: Meter = SILENT,
) -> Store:
    """Return a store that writes on behind what was read of the queue, or a new queue if that is None.

    With ``adopts=False`` published files are left to a later opening. Raises the errors that ``open_store`` lists.
    """
    disk, directory, settings, data_path, lock, places = taken
    own = lock.disk
    if recovered is not None and lock.is_moved:
        _need_original(disk, lock, directory, recovered.state.identity)
    if recovered is not None and recovered.state.decisions and lock.is_named():
        forget_settled(disk, directory, recovered.state, recovered.replay.last_number)
    places = sweep_others(own, settle(own, places, lock, data_path, recovered is None))
    is_doubtful = recovered is not None and not is_proven(own, places, recovered.replay, recovered.is_strange)
    if recovered is not None and is_doubtful:
        recovered.keep_segments()
    state = _new_state(settings) if recovered is None else recovered.state
    # The first frame of this opening records the identity.
    state.identity = state.identity or disk.urandom(IDENTITY_BYTES)
    if settings.fan_out and 0 in state.subscriptions:
        raise ValueError(
            f"{directory}: this queue was made without fan_out, or repaired without its log: open it without fan_out; "
            "or, if it has no subscriptions, run repair with fan_out=True (persistentqueue repair --fan-out)"
        )
    store = Store(own, places, settings, lock, state, guards)
    try:
        _begin_log(store, recovered, meter)
        if is_doubtful:
            sync_directory(own, places.path(DATA_DIRECTORY))  # else a later opening could sweep what was set aside
        claim(own, places, lock)
        lock.settle()
        if adopts:
            if not settings.keep_limits:
                record_limits(own, directory, vars(settings))
            _adopt(store, meter)
    except BaseException:
        store.abandon()
        raise
    return store


def _need_queue(disk: Disk, directory: str) -> None:
    """Raise ``QueueNotFoundError`` if there is no queue in this directory."""
    if not find_generations(disk, directory):
        raise no_queue(disk, directory, "to open", _NO_CREATION)


def _recover(taken: Taken, decide: Decide, meter: Meter = SILENT) -> Recovered | None:
    """Read the queue; return None if there is none. Raises ``DataMissingError``, and the errors of ``recover``."""
    try:
        recovered = recover(taken.lock.disk, taken.places, decide, meter)
    except CorruptionError as error:
        if str(error) != error.damage:
            raise
        raise CorruptionError(error.file, error.offset, error.expected, error.found, REPAIR) from None
    if recovered is not None and recovered.state.extents:  # without an item, no segment is needed
        need_data(taken.lock.disk, taken.places, recovered.replay)
    return recovered


def _need_trusted(disk: Disk, settings: Settings, root: str, data_path: str | None) -> None:
    """Raise ``UntrustedError`` if another user has prepared what is there, unless the settings accept that."""
    if not settings.trust:
        roots = (root,) if data_path in {None, OWN.path} else (root, str(data_path))
        need_trusted(disk, chain.from_iterable(believed(disk, each) for each in roots))


def _need_local(disk: Disk, settings: Settings, root: str, data_path: str | None) -> None:
    """Raise ``NetworkDiskError`` if one of the paths is on a network file system, unless the settings accept that."""
    if not settings.network_disk:
        need_local(disk, root)
        if data_path is not None and data_path != OWN.path:
            need_local(disk, data_path)


def _need_original(disk: Disk, lock: Lock, directory: str, identity: bytes) -> None:
    """Raise ``CopiedQueueError`` if a neighbour has the same identity.

    Otherwise an answer about one of the two queues would be believed of the other.
    """
    with suppress(PermissionError, FileNotFoundError):  # without the right to list the parent, no copy can be found
        other = find_copy(disk, directory, identity, lock.is_on) if identity else None
        if other is not None:
            raise CopiedQueueError(directory, other)


def asking(disk: Disk, directory: str, trust: bool, is_sound: IsSound = _knows_none) -> Decide:
    """Return a function that asks the neighbours of the queue in this directory for the outcome of a transaction."""
    recover_other = partial(_recover_other, disk, trust, is_sound)
    return lambda prepare: ask(disk, directory, prepare, recover_other, is_sound)


def _recover_other(disk: Disk, trust: bool, is_sound: IsSound, directory: str) -> bool:
    """Open the neighbour in this directory, so that it can be asked, and close it; return False if it is owned.

    Its whole log is durable then. If the neighbour is in doubt itself, it asks its own coordinator through this
    function. A loop in place of this recursion would need a stack: each queue stays locked until its coordinator has
    answered. The recursion ends, since the name of a coordinator sorts before those of its participants. After renames
    there may be a circle. Then the last one in it finds the first one locked, which counts as owned.
    """
    # The settings of its owner are not known. So this opening has no limits: they could keep the queue from answering.
    # It takes as little disk space as possible. It wipes what it frees, since the owner may have asked for that.
    settings = Settings(log_bytes=PAGE_BYTES, wipe=True, trust=trust, network_disk=True)
    try:
        with take(disk, directory, settings, create=False) as taken:
            recovered = _recover(taken, asking(disk, directory, trust, is_sound))
            store = begin(taken, recovered, adopts=False)
            announce(directory, store.recovery)
            with suppress(ResourceError, BrokenQueueError):  # its log is durable already
                store.close()
    except QueueLockedError:
        return False
    return True


def _begin_log(store: Store, recovered: Recovered | None, meter: Meter) -> None:
    """Make the missing directories, and the log that the store will write to."""
    disk, parts, roots = store.disk, store.places.parts(), store.lock.roots
    if store.settings.shared_pool:
        store.lock.hold_above(store.places.data_root)
    unsynced = make_parts(disk, dict.fromkeys([*parts, store.pool.directory]))
    if store.settings.shared_pool:
        roots.hold(store.pool.directory)
    store.quota.learn(path for path in parts if path != store.inbox.directory)
    store.quota.pressing = True
    if recovered is None:
        for path in dict.fromkeys((store.directory, store.places.data_root)):
            sync_names(disk, path)
        store.trim()
        store.generations.spare.fill(store.settings.log_bytes)
    else:
        for path in unsynced:  # a copy of a queue may lack the directories that were empty
            sync_directory(disk, path)
        _go_on(store, recovered, meter)
    roots.keep((store.directory, store.places.data_root, store.pool.directory))
    store.quota.pressing = False
    store.generations.make_spare()
    store.quota.reserve_bytes = store.quota.reserve_bytes or store.limits.reserve_bytes(store.settings.log_bytes)


def _adopt(store: Store, meter: Meter) -> None:
    """Adopt the files that other processes have published meanwhile, step by step."""
    if store.inbox.sweep():
        sizes = sizes_in(store.disk, store.inbox.directory) if meter is not SILENT else {}
        meter.expect(sum(sizes.values()))
        # A published file that cannot be read, or that has no room, does not fail the opening: a later dequeue raises
        # the error. A failed sync raises ``BrokenQueueError`` and fails the opening, as at every other step.
        with suppress(OSError, ResourceError):
            is_cut = True
            while is_cut:
                before_bytes = store.committer.enqueued_bytes
                store.adopter.adopt(insists=True, most=LOOK_NAMES)
                is_cut = store.inbox.is_cut
                meter.advance(store.committer.enqueued_bytes - before_bytes)


def _go_on(store: Store, recovered: Recovered, meter: Meter) -> None:
    """Let the store write on behind what was recovered, then delete the files that nothing refers to."""
    replay, disk, places = recovered.replay, store.disk, store.places
    store.generations.follow(replay)
    store.segments.follow(store.state.segments.values())
    if store.settings.shared_pool:
        # A power cut may have brought a name in the pool back for a segment that this owner will write. Should the
        # queue's directory be deleted meanwhile, that name would be the only one, and another queue would take it.
        with suppress(OSError):
            store.pool.clean()
        # The files of its own pool would count for its limits, and no segment would be made of them any more.
        own = Pool(disk, places.pool_directory(False), 0)
        with suppress(OSError):
            own.clean()
            own.shrink(0)
    if recovered.sweep or recovered.set_aside:
        # The name of this generation may exist in the operating system's page cache only. It must be durable before
        # an older generation is deleted.
        sync_directory(disk, places.path(LOG_DIRECTORY))
    logs = [name for name in map(places.path, recovered.sweep) if parse_log_name(basename(name)) is not None]
    spare = store.generations.find_spare(logs)
    sweep = [name for name in recovered.sweep if places.path(name) != spare]
    if replay.sealed:
        store.recovery = _go_on_sealed(store, recovered, sweep)
    else:
        store.recovery = _go_on_crashed(store, recovered, sweep, meter)
    delete_all(disk, places, sweep, store.settings.wipe)


def _go_on_sealed(store: Store, recovered: Recovered, sweep: list[str]) -> RecoveryReport:
    """Write on, after a clean close, in the segment that was written last."""
    current = store.state.segments.get(store.state.current_segment)
    if current is not None:
        with suppress(CorruptionError):  # a consumer that reads from it gets the error
            store.segments.write_on(current)
    set_all_aside(store.disk, store.places, recovered.set_aside)
    return RecoveryReport(
        generation=recovered.replay.header.number, swept=tuple(sweep), set_aside=tuple(recovered.set_aside)
    )


def finish_adoptions(disk: Disk, places: Places, recovered: Recovered) -> None:
    """Rename adopted files that are still in the inbox to their segments, not durably; forget their old names."""
    adopted, recovered.adopted = recovered.adopted, {}
    for number in adopted:
        disk.rename(segment_path(places, number, adopted), recovered.path(places, number))


def _go_on_crashed(store: Store, recovered: Recovered, sweep: list[str], meter: Meter) -> RecoveryReport:
    """Write again, after a crash, what may not be durable, then begin a new generation of the log."""
    replay, disk, places = recovered.replay, store.disk, store.places
    finish_adoptions(disk, places, recovered)
    store.inbox.sync()  # a file that a killed owner has deleted there must not come back after this owner has served
    store.segments.has_adopted = bool(recovered.adoptions)
    if recovered.orphans:
        store.inbox.take_back(recovered.orphans)
    if not replay.synced:
        try:
            store.segments.sync_again(store.state.segments, recovered.unsynced, meter)
        except faults(OSError) as error:
            raise store.break_off(error) from error
    redone_bytes = store.segments.redo(store.state.segments, recovered.redo, not replay.synced, meter)
    doubtful = replay.torn_bytes or replay.missing_bytes or recovered.lost_transactions
    was_in_doubt = recovered.resolved is not None
    if not doubtful and not was_in_doubt:
        _cut(store, recovered)
    # Frames of a log that is not synced count with their blocks only. So those of drained segments stay in their places
    # until a checkpoint replaces these frames: a crash, or a full disk, may end this opening before that.
    drained = {join(DATA_DIRECTORY, segment_name(number)) for number in store.state.drained if not replay.synced}
    kept = drained.intersection(recovered.set_aside)
    set_all_aside(disk, places, [path for path in recovered.set_aside if path not in kept])
    if doubtful or replay.header.flags & DOUBTED:
        # Files that were set aside, also by an opening that was killed, must keep their new names: under the old ones,
        # the next opening would sweep them, since the generation that follows may lack ``DOUBTED``.
        for part in (LOG_DIRECTORY, DATA_DIRECTORY):
            sync_directory(disk, places.path(part))
    store.quota.pressing = False  # the trim takes no more than it needs
    # A new generation is needed: the log that was read may exist in the operating system's page cache only.
    store.trim(keep_old=bool(doubtful))
    if kept:
        set_all_aside(disk, places, sorted(kept))
        sync_directory(disk, places.path(DATA_DIRECTORY))
    if not doubtful and was_in_doubt:
        _cut(store, recovered)  # only now: a log that ends in a prepare names blocks behind the last committed one
    aside = [*recovered.set_aside, *([relpath(replay.file, store.directory)] if doubtful else [])]
    return RecoveryReport(
        clean=False,
        generation=replay.header.number,
        transactions=recovered.transactions,
        torn_bytes=replay.torn_bytes,
        missing_bytes=replay.missing_bytes,
        lost_transactions=recovered.lost_transactions,
        redone_bytes=redone_bytes,
        swept=tuple(sweep),
        set_aside=tuple(aside),
        resolved=recovered.resolved,
    )


def _cut(store: Store, recovered: Recovered) -> None:
    # An adopted file keeps its frame behind the last block: it may have to be published again.
    store.segments.cut(row for row in store.state.segments.values() if row.number not in recovered.adoptions)


def _new_state(settings: Settings) -> State:
    state = State()
    if settings.fan_out:
        state.apply(SubscriptionClosed(0))
    return state

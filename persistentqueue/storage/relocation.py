"""The move of a closed queue's segments to another location, and the taking of a location for them.

The write order of a move (``move.1`` …), under the queue's lock:

1. Take the new location: its directory, the lock on that, its own id in ``queue.id``, and all names above it, durably.
   *A crash before 2 leaves an id that names this queue's directory, by which it is recognized.*
2. Record it in ``data.path`` as another location, which does not count.
3. Close the inbox by renaming it, so that no process publishes files there which would not be copied. Copy the
   segments, the segments that were set aside, and the published files. Sync each copy, then their directories. *A crash
   leaves copies, which the next opening or move sweeps, and a closed inbox, which it opens again.*
4. Replace ``data.path`` by one that names the new location, and the old one as another: **the commit point of a move**.
   *A crash leaves either file, and the segments are at both locations.*
5. Sweep the old location, durably. Remove it from the record, then remove its id. *A crash leaves files that an opening
   sweeps. After the record, it leaves an id that names this queue's directory.*

An error or an interrupt before 4 undoes the steps: the new location is swept, and the inbox is opened again.

Another location is swept only if it bears the id that was recorded with it, and names this directory, which is no copy.
If it bears no id, because it is not mounted, it stays recorded until it does. Otherwise it is forgotten: it may be the
location of the queue of which this directory is a copy. Before anything is swept, ``data.path`` is made durable, since
its content may so far be in the operating system's page cache only.

The owner of a queue locks its location before it writes or sweeps there (see ``lock``). Only when an opening is
accepted, its location is made to name its directory, by ``claim``. A refused opening writes nothing there.

The records of two queues may have been exchanged, by a backup for instance. Then each location bears the recorded id,
and names the other queue. So a location that names another queue needs a proof: a segment that the log of this
queue names. Without one, that queue must be at a location that names it, or be gone, and no segment may contradict the
log. Otherwise a location with files is refused. An opening sweeps only a location of which ``is_proven`` is true.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from stat import S_ISREG, S_ISSOCK

from ..core.items import checked_lock_timeout
from ..errors import (
    CorruptionError,
    DataMissingError,
    DataPathError,
    InvalidNameError,
    PersistentQueueError,
)
from ..interrupts.signal_shield import shielded
from ..system.bad_pages import copy_file
from ..system.disk import LACKING, Disk, StrPath, abspath, basename, current_disk, dirname, join, samestat
from ..system.files import make_directory, sync_directory, sync_names
from ..system.path_errors import OUT_OF_REACH, faults, lacking, naming_paths, suppress
from ..system.progress import Meter, Progress, StoppedError, metering
from ..system.trust import need_regular, need_trusted
from .layout import (
    DELETED_DIRECTORY,
    SOCKET_NAME,
    bears,
    believed,
    find_generations,
    finish_deletion,
    gone_meanwhile,
    holds_queue,
    is_left_here,
    is_there,
    let_go,
    names_in,
    need_own_directory,
    no_queue,
    part_of_inbox,
    part_of_segment,
    place_path,
    queue_directory,
    remove_directory,
    sizes_in,
    sweep_place,
)
from .locations import (
    CLOSED_DIRECTORY,
    DATA_DIRECTORY,
    ID_NAME,
    INBOX_DIRECTORY,
    LOG_DIRECTORY,
    NEW_SUFFIX,
    OWN,
    PATH_NAME,
    Place,
    Places,
    read_claim,
    read_id,
    read_places,
    read_record,
    renew_id,
    write_id,
    write_places,
)
from .lock import LOCK_NAME, Lock, read_inode
from .log import parse_log_name
from .log_reader import SALVAGE, SNAPSHOT, Policy, Replay, named_segments, read_newest
from .segment import find_header, parse_segment_name, segment_name

_ENDED = (Exception, StoppedError, KeyboardInterrupt, SystemExit)
"""Errors that end a move, which is undone then. Tests simulate a kill by others."""
_SOCKETS = frozenset({SOCKET_NAME, SOCKET_NAME + NEW_SUFFIX})


@dataclass(frozen=True)
class Moved:
    """The result of ``move_data``."""

    source: str
    """The directory where the segments were: that of the queue, or the absolute path of a location."""
    target: str
    """The directory where they are now; equal to ``source`` if they were there already."""
    files: int
    """The number of files that were copied."""
    copied_bytes: int
    """Their length in all, in bytes."""
    left: tuple[str, ...]
    """Locations that may still hold files of the queue, which do not count. They were not reachable, or could not be
    swept.
    """


def move_data(
    path: StrPath,
    name: str | None = None,
    *,
    data_path: StrPath | None,
    lock_timeout: float = 0.0,
    trust: bool = False,
    progress: Progress = None,
) -> Moved:
    """Move the segments of a closed queue to another location, or back into its own directory.

    They move to ``data_path/name``, or to ``data_path`` for a queue without a name. Only files of the queue are
    touched. The queue's own pool is not moved: its empty files are deleted.

    Args:
        path: The directory of the queues; without a ``name``, the directory of the queue itself.
        name: The name of the queue. Default: None, for a queue without a name.
        data_path: The new location, on other media for instance. None means the queue's own directory.
        lock_timeout: Seconds to wait for the queue's lock, 0 or more. Default: 0, do not wait.
        trust: Whether to accept files and directories that another user may have prepared. Default: False.
        progress: How to report the bytes that were copied (see ``Progress``). Default None: not at all. If the callable
            raises, the move ends, the lock is free, and the queue is as it was. The error of a last report comes after
            the move.

    Returns:
        Where the segments were and are, what was copied, and which locations could not be swept.

    Raises:
        TypeError: ``path``, ``name``, ``data_path``, ``lock_timeout`` or ``progress`` has a wrong type.
        ValueError: ``lock_timeout`` is negative or not a number.
        MissingExtraError: ``progress`` is True, and tqdm is not installed.
        InvalidNameError: ``name`` cannot be the name of a queue.
        QueueNotFoundError: There is no queue at this path.
        QueueLockedError: The queue is open, and was not closed within ``lock_timeout``.
        UntrustedError: Another user may have prepared what is there, and ``trust`` is False; or the lock is no plain
            file.
        DataPathError: The new location holds something that is not this queue's; or the segments may be those of
            another queue, of which this one is a copy.
        DataMissingError: The segments are not at the location where they should be, or ``data.path`` is missing.
        CorruptionError: A file to be copied is no plain file, or ``data.path`` or a ``queue.id`` is damaged.
        UnsupportedFormatError: A newer version has written ``data.path`` or a ``queue.id``.
        ResourceError: The system lacks space, descriptors or memory for the move. Call it again then.
        UnusablePathError: The system refuses one of the paths.
        OSError: The system fails in another way.

    On return, the segments are durably at the new location, and deleted at the old one. If ``Moved.left`` names the old
    one, the next opening or move sweeps it. After a crash at any moment, all items are at one of the two locations, and
    the next opening or move sweeps the other.

    If it raises, the queue is as it was. The one exception is a failed sync of ``data.path``: then the next opening
    finds out which location counts.

    Any thread may call it. During the move the queue is locked: to open it raises ``QueueLockedError``.

    Example::

        moved = move_data("queues", "orders", data_path="/mnt/fast")
        print(moved.source, moved.target, moved.copied_bytes)
    """
    lock_timeout = checked_lock_timeout(lock_timeout)
    directory = queue_directory(path, name)
    with metering(progress, f"move {basename(directory)}") as meter, naming_paths():
        return _move_data(current_disk(), abspath(directory), name, data_path, lock_timeout, trust, meter)


def _move_data(
    disk: Disk,
    directory: str,
    name: str | None,
    data_path: StrPath | None,
    lock_timeout: float,
    trust: bool,
    meter: Meter,
) -> Moved:
    """Move the segments of the queue in this directory. Raises the errors of ``move_data``."""
    target = place_path(directory, name, data_path)
    if not find_generations(disk, directory):
        raise no_queue(disk, directory, "to move")
    if not trust:
        roots = (directory,) if target == OWN.path else (directory, target)
        need_trusted(disk, chain.from_iterable(believed(disk, root) for root in roots))
    lock = Lock(disk, join(directory, LOCK_NAME))
    try:  # with the lock in it: an interruption may come when it is taken
        try:
            lock.acquire(lock_timeout)
        except FileNotFoundError:  # it was deleted meanwhile, with its directory
            raise no_queue(disk, directory, "to move") from None
        disk = lock.disk
        places = read_places(disk, directory)
        if not find_generations(disk, directory, places):
            raise gone_meanwhile(lock, directory, "to move")
        need_data(disk, places)
        own_location(disk, places, lock)
        claim(disk, places, lock)
        _reopen_inbox(disk, places)
        places = sweep_others(disk, places)
        source, files, copied_bytes = places.data_root, 0, 0
        if target != places.place.path:
            _need_plain_files(disk, places)
            places, files, copied_bytes = _move(disk, places, target, lock, meter)
            if name is not None:
                with suppress(OSError):
                    disk.rmdir(source)
        left = tuple(places.root_of(other) for other in places.others)
        moved = Moved(source, places.data_root, files, copied_bytes, left)
        shielded(lock.release)
    except BaseException:  # also an interruption of that step, which then does the rest
        shielded(lock.release)
        raise
    return moved


def open_places(disk: Disk, directory: str, data_path: str | None, lock: Lock) -> Places:
    """Return the locations of the parts of a queue that is being opened with this ``data_path``, if one was given.

    A location that is not where it was recorded, but at this path, is recorded anew, since it bears the id. If the
    queue was being deleted, the deletion is finished. Raises ``DataMissingError``, and the errors of ``own_location``.
    """
    names = names_in(disk, directory)  # one call, which nearly always finds that no more is needed
    places = _found_places(disk, directory, data_path, lock.is_copied) if PATH_NAME in names else Places(directory)
    own_location(disk, places, lock, data_path)
    for name in _SOCKETS.intersection(names):  # of an owner that was killed
        _remove_socket(disk, join(directory, name))
    if CLOSED_DIRECTORY in names or places.place != OWN:
        _reopen_inbox(disk, places)
    return finish_deletion(disk, places) if DELETED_DIRECTORY in names else places


def _remove_socket(disk: Disk, path: str) -> None:
    with suppress(OSError):
        if S_ISSOCK(disk.lstat(path).st_mode):
            disk.unlink(path)


def own_location(disk: Disk, places: Places, lock: Lock, data_path: str | None = None) -> None:
    """Lock the recorded location, and make sure that it is this directory's own, and no other copy's.

    The caller of an opening may give the location of a copied directory as ``data_path``. Nothing is written: ``claim``
    does that, when the opening is accepted. Raises ``DataPathError`` if the location may belong to the original, or to
    another queue.
    """
    if places.place == OWN:
        return
    is_free = lock.hold_location(places.data_root)
    queue, owner = read_claim(disk, places.place)
    is_given = data_path is not None and (data_path == places.place.path or _is_same(disk, places, data_path))
    if not is_given:
        _need_ours(places, queue, owner, lock.inode, lock.is_copied)
    _need_left(disk, places, queue)
    need_own_segments(disk, places, queue, SALVAGE)
    if not is_free:  # last: the errors above say more
        raise _locked(places, places.data_root, queue)


def claim(disk: Disk, places: Places, lock: Lock) -> None:
    """Make the locked location name this directory, durably; and its lock, if the directory was a copy.

    A full disk must not prevent dequeueing. If only the name has changed, it is written by a later opening then.
    """
    if places.place == OWN:
        return
    queue, owner = read_claim(disk, places.place)
    inode = lock.inode if owner or lock.is_copied else ""
    if (queue, owner) != (abspath(places.directory), inode):
        try:
            renew_id(disk, places.directory, places.place, inode)
        except faults(OSError) as error:
            if owner != inode or error.errno not in LACKING:
                raise


def hold_location(places: Places, root: str, lock: Lock) -> None:
    """Lock this location of the queue. Raises ``DataPathError`` if another owner has locked it, and ``OSError``."""
    if not lock.hold_location(root):
        raise _locked(places, root, "")


def _locked(places: Places, root: str, queue: str) -> DataPathError:
    named = f", such as the queue in {queue}" if queue and queue != abspath(places.directory) else ""
    return DataPathError(
        places.directory,
        f"no other owner at the location {root}",
        f"that a queue which is open has locked it{named}",
        "close that queue; if this directory is a copy of it, copy the segments, too, and pass the path of their copy",
    )


def need_own_location(disk: Disk, places: Places) -> None:
    """Raise ``DataPathError`` if the recorded location may belong to another directory, of which this one is a copy, or
    to another queue.

    Reads the lock file, and takes no lock.
    """
    if places.place != OWN:
        inode, is_copied = read_inode(disk, join(places.directory, LOCK_NAME))
        queue, owner = read_claim(disk, places.place)
        _need_ours(places, queue, owner, inode, is_copied)
        _need_left(disk, places, queue)
        need_own_segments(disk, places, queue, SNAPSHOT)


def need_own_segments(disk: Disk, places: Places, queue: str, policy: Policy) -> None:
    """Raise ``DataPathError`` if the location names another ``queue``, and may hold the files of that one.

    It is this queue's if it holds a segment that the log of this queue names. Otherwise the other queue must be gone or
    surely have its files elsewhere, and no segment may contradict the log. If the log names no segment, a location
    without a file is enough. A log that cannot be read proves nothing.
    """
    if not _is_named_otherwise(disk, places, queue):
        return
    root, replay = places.data_root, _read_log(disk, places.directory, policy)
    named = named_segments(replay) if replay is not None else []
    if holds_one(disk, root, named):
        return
    is_free = _is_elsewhere(disk, places, queue) or (replay is not None and not named and is_empty(disk, root))
    if not is_free or (replay is not None and _contradicts(disk, root, replay)):
        raise DataPathError(
            places.directory,
            f"segments of its own at {root}",
            f"none that its log names, and the name of the queue in {queue}",
            f"if {PATH_NAME} of the two queues was exchanged, restore it, or run repair with the data_path= that each "
            "queue had (persistentqueue repair --data-path DIR); if that queue is gone for good, remove its directory "
            "by hand, and move away what it has left at the location",
        )


def _contradicts(disk: Disk, root: str, replay: Replay) -> bool:
    """Return whether the segments at a location that holds none of those in the log contradict that log.

    A power cut may take a segment whose blocks the log carries, and bring back one that was deleted. It never takes a
    segment that has items in the checkpoint of a synced log. A damaged segment contradicts nothing.
    """
    numbers = set(map(parse_segment_name, names_in(disk, root, DATA_DIRECTORY)))
    if not (replay.synced and replay.checkpoint.extents):
        numbers &= {number for number, _, _ in named_segments(replay)}
    for number in filter(None, numbers):
        with suppress(CorruptionError):
            find_header(disk, join(root, f"{DATA_DIRECTORY}/{segment_name(number)}"), number)
            return True
    return False


def is_proven(disk: Disk, places: Places, replay: Replay, is_strange: bool) -> bool:
    """Return whether the location is surely this queue's, so that the segments that nothing refers to may be swept.

    It names this directory, or holds a segment that the log names. Otherwise the named queue must be gone or elsewhere.
    The segments must then look like those of a killed owner (not ``is_strange``, see ``recovery.replay``). Raises
    ``CorruptionError``.
    """
    if places.place == OWN:
        return True
    queue = read_claim(disk, places.place)[0]
    if not _is_named_otherwise(disk, places, queue):
        return True
    if holds_one(disk, places.data_root, named_segments(replay)):
        return True
    return not is_strange and _is_elsewhere(disk, places, queue)


def _is_named_otherwise(disk: Disk, places: Places, queue: str) -> bool:
    """Return whether the location, which names its ``queue``, names another directory than this one."""
    return queue != abspath(places.directory) and not _is_directory(disk, places, queue)


def _is_directory(disk: Disk, places: Places, queue: str) -> bool:
    """Return whether this path leads to the directory of the queue, under another name."""
    with suppress(OSError):
        return samestat(disk.lstat(queue), disk.lstat(places.directory))
    return False


def _is_elsewhere(disk: Disk, places: Places, queue: str) -> bool:
    """Return whether the ``queue`` surely has its files at another location, which names it, or is gone.

    A path that is out of reach may lead to a queue.
    """
    try:
        if not holds_queue(disk, queue):
            return True
        place = read_record(disk, queue).place
        need_data(disk, Places(queue, place))
        if place == OWN:
            return True
        return place.id != places.place.id and bears(disk, place) and read_claim(disk, place)[0] == queue
    except faults(OSError, PersistentQueueError):
        return False


def segments_in_log(disk: Disk, directory: str, policy: Policy) -> list[tuple[int, int, str]] | None:
    """Return number, salt and published name of each segment in the log; None if the log cannot be read."""
    replay = _read_log(disk, directory, policy)
    return None if replay is None else named_segments(replay)


def _read_log(disk: Disk, directory: str, policy: Policy) -> Replay | None:
    """Return the newest log; None if it cannot be read. A producer of another user may not read it."""
    try:
        return read_newest(disk, directory, policy)
    except (CorruptionError, *OUT_OF_REACH):
        return None


def holds_one(disk: Disk, root: str, named: list[tuple[int, int, str]]) -> bool:
    """Return whether the location holds one of the named segments, with its salt."""
    for number, salt, name in named:
        paths = [f"{DATA_DIRECTORY}/{segment_name(number)}"]
        if name:  # a crash between the frame and the rename leaves an adopted file in the inbox
            paths += [f"{part}/{name}" for part in (INBOX_DIRECTORY, CLOSED_DIRECTORY)]
        for path in paths:
            with suppress(CorruptionError):
                if find_header(disk, join(root, path), number).salt == salt:
                    return True
    return False


def is_empty(disk: Disk, root: str) -> bool:
    """Return whether the location holds no segment and no published file."""
    parts = {DATA_DIRECTORY: part_of_segment, INBOX_DIRECTORY: part_of_inbox, CLOSED_DIRECTORY: part_of_inbox}
    return not any(is_ours(name) for part, is_ours in parts.items() for name in names_in(disk, root, part))


def need_data(disk: Disk, places: Places, replay: Replay | None = None) -> None:
    """Raise ``DataMissingError`` if no location is recorded, and ``data`` is missing, but the log names segments.

    ``data`` is made durably before the first log, and deleted only when another location is recorded or the log is
    gone. So it is missing if ``data.path`` was lost, by a backup for instance. A copy without empty directories lacks
    ``data``, too, but its log names no segment, or only ones without an item. The log is read if its ``replay`` is not
    given. Nothing is written, and no lock is needed. Raises what ``read_newest`` raises.
    """
    directory = places.directory
    if places.place != OWN or DATA_DIRECTORY in names_in(disk, directory) or not _has_log(disk, directory):
        return
    replay = replay or read_newest(disk, directory, SNAPSHOT)
    if replay is None or not named_segments(replay):
        return
    # Looked for after ``data``: a move records the new location, and a deletion renames the log, before ``data`` goes.
    names = names_in(disk, directory)
    if LOG_DIRECTORY in names and not is_there(disk, join(directory, PATH_NAME)):  # a listing may miss a new record
        raise DataMissingError(
            directory,
            directory,
            "",
            None,
            f"no location of its segments is recorded: expected {PATH_NAME} or a directory {DATA_DIRECTORY}, since the "
            "log names segments, found neither",
            f"restore {PATH_NAME}, or run repair with the data_path= that the queue had (persistentqueue repair "
            f"--data-path DIR); if the segments are lost for good, make the directory {DATA_DIRECTORY}, then run "
            "repair",
        )


def _has_log(disk: Disk, directory: str) -> bool:
    """Return whether the queue has a log that is a plain file: anything else with such a name was never its log."""
    log = join(directory, LOG_DIRECTORY)
    for name in names_in(disk, log):
        with suppress(FileNotFoundError):  # an owner has replaced it meanwhile
            if parse_log_name(name) is not None and S_ISREG(disk.lstat(join(log, name)).st_mode):
                return True
    return False


def _need_ours(places: Places, queue: str, owner: str, inode: str, is_copied: bool) -> None:
    """Raise ``DataPathError`` if the location, which names its ``queue`` and ``owner``, may be another directory's."""
    root = places.data_root
    given, name = f"data_path={root!r}", basename(root)
    if name == basename(places.directory):
        given = f"data_path={dirname(root)!r} and the name {name!r} (or {given} without a name)"
    if owner and owner == inode:
        return
    if is_copied:
        raise DataPathError(
            places.directory,
            "a queue that is where it was last opened",
            f"a copy, or a queue that was moved, with its segments at {root}",
            f"if the original is gone, open this one once with {given}, or repair it with --data-path PATH; else copy "
            "the segments, too, and pass the path of their copy; to delete only the copy, remove its directory by hand",
        )
    if owner and queue != abspath(places.directory):
        raise DataPathError(
            places.directory,
            f"segments of its own at {root}",
            f"those of a copy, {queue}, which was opened with their path",
            f"use that queue; or remove its directory by hand, and open this one once with {given}",
        )


def _need_left(disk: Disk, places: Places, queue: str) -> None:
    """Raise ``DataPathError`` if the queue that the location names is another one, and may have its segments there."""
    if queue != abspath(places.directory) and not _has_left(disk, places, queue):
        raise DataPathError(
            places.directory,
            f"no other queue with its segments at {places.data_root}",
            f"the queue in {queue}",
            "copy the segments, too, and pass the path of their copy; if that queue is gone for good, remove its "
            "directory by hand",
        )


def _has_left(disk: Disk, places: Places, queue: str) -> bool:
    """Return whether the queue in this directory surely has its segments elsewhere, or is this queue, or is gone.

    Its recorded location may be one that is not mounted there any more. Then it may be the same one as that of
    ``places``.
    """
    try:
        if samestat(disk.lstat(queue), disk.lstat(places.directory)):
            return True
        place = read_record(disk, queue).place
    except OUT_OF_REACH:  # there is none any more, or it is not ours
        return True
    except PersistentQueueError:  # its record is damaged
        return False
    if place == OWN or place.id != places.place.id:
        return True
    with suppress(OSError, PersistentQueueError):
        return bears(disk, place) and not _is_same(disk, places, place.path)
    return False


def _found_places(disk: Disk, directory: str, data_path: str | None, is_copied: bool) -> Places:
    missing: DataMissingError | None = None
    try:
        places = read_places(disk, directory)
    except DataMissingError as error:
        missing, places = error, read_record(disk, directory)
    given = Place(data_path, places.place.id) if data_path is not None and data_path != OWN.path else places.place
    # A copy may have segments of its own, while those of the original are where they were.
    if given != places.place and (missing is not None or is_copied) and bears(disk, given):
        places, missing = places._replace(place=given), None
        write_places(disk, places)
    if missing is not None:
        raise missing
    return places


def settle(disk: Disk, places: Places, lock: Lock, data_path: str | None, is_new: bool) -> Places:
    """Use the location that the opening asks for: from here on, the opening is accepted, and will ``claim`` it.

    A new queue takes the location; an existing queue must already be there.

    Raises ``DataPathError``, and for a new queue what ``take_place`` raises.
    """
    recorded = places.place.path
    if data_path in {None, recorded} or _is_same(disk, places, str(data_path)):
        return places
    if not is_new:
        given = "the queue's own directory" if data_path == OWN.path else str(data_path)
        raise DataPathError(
            places.directory,
            f"its segments at data_path={given}",
            f"them in {'its own directory' if places.place == OWN else recorded}",
            "omit data_path=, or close the queue and move them: python -m persistentqueue move PATH [NAME] "
            "--data-path NEW",
        )
    place = take_place(disk, places, str(data_path), lock)
    places = _switched(places, place, *(() if places.place == OWN else (places.place,)))
    write_places(disk, places)
    return places


def take_place(disk: Disk, places: Places, path: str, lock: Lock) -> Place:
    """Take a location for the queue's segments, durably, and lock it.

    Raises ``DataPathError`` if the location holds something that is not this queue's, or if another owner has it.
    """
    if path == OWN.path:
        return OWN
    _need_free(disk, places, path)
    make_directory(disk, path)
    hold_location(places, path, lock)
    place = write_id(disk, places.directory, path, lock.inode if lock.is_copied else "")
    sync_names(disk, path)
    return place


def sweep_others(disk: Disk, places: Places) -> Places:
    """Sweep the other locations, remove the swept ones from the record, and return the locations then.

    A location that may be another directory's is removed from the record, and left alone. A location that cannot be
    swept is left to the next opening. So is a record that cannot be written for lack of space. Raises ``OSError`` if a
    sync of ``data.path`` fails.
    """
    if not places.others:
        return places
    sync_directory(disk, places.directory)
    kept, swept = [], []
    for other in places.others:
        with suppress(OSError):
            found = read_id(disk, other.path) if other != OWN else ("", "")
            is_here = found is not None and found[0] == other.id
            if is_here and (other == OWN or is_left_here(disk, places.directory, other)):
                sweep_place(disk, places.root_of(other))
                swept.append(other)
                continue
            if found is not None:  # it belongs to another queue, perhaps to the original of this one
                continue
        kept.append(other)
    if len(kept) == len(places.others):
        return places
    remaining = places._replace(others=tuple(kept))
    try:
        write_places(disk, remaining)
    except faults(OSError) as error:
        if error.errno not in LACKING:
            raise
        return places
    for other in swept:
        with suppress(OSError):
            let_go(disk, other)
    return remaining


def _move(disk: Disk, places: Places, path: str, lock: Lock, meter: Meter) -> tuple[Places, int, int]:
    full = path
    try:
        disk.failpoint("move.1 take place")
        target = take_place(disk, places, path, lock)
        disk.failpoint("move.2 record target")
        full = places.directory
        write_places(disk, places._replace(others=(*places.others, target)))
        disk.failpoint("move.3 copy")
        full = root = places.root_of(target)
        sweep_place(disk, root)
        _close_inbox(disk, places)
        files, copied_bytes = _copy_all(disk, places, root, meter)
        disk.failpoint("move.4 switch")
        moved = _switched(places, target, places.place)
        full = places.directory
        write_places(disk, moved)
    except _ENDED as error:
        with suppress(OSError, PersistentQueueError):
            now = read_record(disk, places.directory)
            if now.place == places.place:  # else a sync has failed, and the next opening finds the segments
                sweep_others(disk, now)
                _reopen_inbox(disk, places)
        purpose = "to move the segments there" if full == path else "to record where the segments are"
        lack = lacking(error, full, purpose, "then move again") if isinstance(error, OSError) else None
        if lack is None:
            raise
        raise lack from error
    disk.failpoint("move.5 sweep source")
    return sweep_others(disk, moved), files, copied_bytes


def _switched(places: Places, place: Place, *left: Place) -> Places:
    """Return the locations with the queue at ``place``, which is then none of the others."""
    others = tuple(other for other in (*places.others, *left) if other != place)
    return places._replace(place=place, others=others)


def _reopen_inbox(disk: Disk, places: Places) -> None:
    """Open the inbox again, durably, if an interrupted move has left it closed."""
    closed, inbox = places.path(CLOSED_DIRECTORY), places.path(INBOX_DIRECTORY)
    names = names_in(disk, places.data_root)
    if CLOSED_DIRECTORY in names:
        if INBOX_DIRECTORY in names:
            _merge(disk, closed, inbox)
        else:
            disk.rename(closed, inbox)
        sync_directory(disk, places.data_root)


def _merge(disk: Disk, closed: str, inbox: str) -> None:
    """Move all files of the closed inbox to the other one, durably except for the name of the closed one.

    Both are there if the queue was copied while its inbox was being renamed. Of two files with the same name, one may
    be shorter, since it was copied first: the longer one stays.
    """
    lengths = sizes_in(disk, inbox)
    for name, length_bytes in sizes_in(disk, closed).items():
        if length_bytes > lengths.get(name, -1):
            disk.rename(join(closed, name), join(inbox, name))
        else:
            disk.unlink(join(closed, name))
    sync_directory(disk, inbox)
    if not remove_directory(disk, closed):
        sync_directory(disk, closed)


def _close_inbox(disk: Disk, places: Places) -> None:
    with suppress(FileNotFoundError):  # an old queue, made before there were inboxes
        disk.rename(places.path(INBOX_DIRECTORY), places.path(CLOSED_DIRECTORY))
        sync_directory(disk, places.data_root)


def _copy_all(disk: Disk, places: Places, root: str, meter: Meter) -> tuple[int, int]:
    """Copy the queue's files in the data directory and the inbox, durably; return how many files, and their bytes."""
    files = copied_bytes = 0
    parts = ((DATA_DIRECTORY, DATA_DIRECTORY), (CLOSED_DIRECTORY, INBOX_DIRECTORY))
    meter.expect(sum(sum(sizes_in(disk, places.path(part)).values()) for part, _ in parts))
    for source_part, part in parts:
        source, target = places.path(source_part), join(root, part)
        make_directory(disk, target)
        for name in names_in(disk, source):
            if part_of_segment(name) or part_of_inbox(name):
                copied_bytes += copy_file(disk, join(source, name), join(target, name), meter)
                files += 1
        sync_directory(disk, target)
    sync_directory(disk, root)
    return files, copied_bytes


def _need_plain_files(disk: Disk, places: Places) -> None:
    """Raise ``CorruptionError`` if anything that is to be copied is no plain file."""
    for part, is_ours in ((DATA_DIRECTORY, part_of_segment), (INBOX_DIRECTORY, part_of_inbox)):
        for name in filter(is_ours, names_in(disk, places.path(part))):
            with suppress(FileNotFoundError):  # producers add and remove files in the inbox
                path = places.path(join(part, name))
                try:
                    need_regular(disk, path)
                except CorruptionError as error:
                    advice = "nothing was moved: inspect it, and remove it"
                    raise CorruptionError(path, 0, error.expected, error.found, advice) from None


def _need_free(disk: Disk, places: Places, path: str) -> None:
    """Raise ``DataPathError`` unless the location is free, or was left by this queue."""
    try:
        need_own_directory(disk, path)
    except InvalidNameError as error:
        advice = f"choose another data_path ({error})"
        raise DataPathError(places.directory, "a location of its own", f"{path}", advice) from error
    found, advice = read_id(disk, path), "choose another data_path"
    if found is not None:
        # It is recorded nowhere: the process that took it for the queue in this directory was killed, or deleted it. If
        # published files are there, the record was lost.
        if found[1] == abspath(places.directory):
            if is_empty(disk, path):
                return
            has_segments = any(map(part_of_segment, names_in(disk, path, DATA_DIRECTORY)))
            if not holds_queue(disk, places.directory):  # a repair needs a segment
                then = "run repair there" if has_segments else "open that directory as a queue"
                advice += f"; to bring back what is there, remove {ID_NAME} there, then {then}"
            elif not has_segments:
                advice += ", or first move what is in its inbox to the inbox of this queue"
        what = f"the location of the segments of {found[1]}"
    elif LOCK_NAME in (names := names_in(disk, path)) or {LOG_DIRECTORY, DELETED_DIRECTORY, PATH_NAME} & set(names):
        what = "a queue's own directory"
    elif not is_empty(disk, path):
        what = f"segments or published files, and no {ID_NAME} that names their queue"
    else:
        return
    raise DataPathError(places.directory, f"nothing of another queue in {path}", what, advice)


def _is_same(disk: Disk, places: Places, path: str) -> bool:
    """Return whether the path leads to the recorded location under another name.

    A copy of a location bears the same id, but its ``queue.id`` is another file.
    """
    if path == OWN.path or not bears(disk, places.place._replace(path=path)):
        return False
    return samestat(*(disk.lstat(join(root, ID_NAME)) for root in (path, places.place.path)))

"""Repair of the two files that tie a queue to the location of its segments: ``data.path`` and ``queue.id``.

``locations`` describes these files. A directory is accepted as the queue's location if it holds a segment that the
queue's log names, with its salt. If the log names no segment, the directory must hold no file of a queue, or name this
queue. So no segment of another queue is tied to this one. Only if the log cannot be read, any file in ``data`` counts;
then ``queue.id`` alone says that the directory is another queue's.

Records of two queues may have been exchanged, and accepted so. Then a location that names another queue is taken from
it, with another id, under two conditions. It holds a segment that the log of this queue names. And the other queue
records another location, or records this one and has none of its segments there.

If the log names no segment, the location may hold published files, and its ``queue.id`` may be damaged or lost. Then a
caller that names the location is believed, unless it holds a segment, which may be that of another queue.

If no record and no argument names a location, the queue's own directory must have ``data``, which each queue without
another location has (see ``need_data``). A file that is replaced is kept as ``*.damaged``.
"""

from __future__ import annotations

from contextlib import suppress
from stat import S_ISREG
from typing import NamedTuple

from ..errors import CorruptionError, DataMissingError, DataPathError
from ..interrupts.signal_shield import shielded
from ..storage.layout import find_generations, holds_queue, keep_copy, names_in, set_aside
from ..storage.locations import (
    DATA_DIRECTORY,
    ID_NAME,
    LOG_DIRECTORY,
    LOST_FOR_GOOD,
    NAME_DIRECTORY,
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
from ..storage.lock import LOCK_NAME, Lock
from ..storage.log_reader import SALVAGE, STRICT
from ..storage.relocation import (
    hold_location,
    holds_one,
    is_empty,
    need_data,
    need_own_segments,
    segments_in_log,
)
from ..storage.segment import parse_segment_name
from ..system.disk import Disk, abspath, basename, join

_COPIED_BYTES_MAX = 1024 * 1024
"""Maximum length of a file that is copied. A longer file is not the queue's, and may consist of holes."""


class Mended(NamedTuple):
    """Result of a location repair: the problems that were found, and the names of the files that were kept."""

    problems: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def mend_places(disk: Disk, directory: str, data_path: str | None) -> Mended:
    """Repair ``data.path`` and the location's ``queue.id``, durably; ``data_path``, if given, is the location.

    A sound record is replaced if the segments are at ``data_path``, and none of them at the recorded location.

    Raises:
        DataPathError: The segments are not in the recorded location, or not at ``data_path``; or another owner has that
            location. The message says what is needed.
        DataMissingError: The recorded location is not there, or none is recorded and there is no ``data``; and
            ``data_path`` was not given.
        QueueLockedError: The queue is open.
        OSError: A file could not be read or written.
    """
    problem: CorruptionError | DataMissingError | DataPathError
    try:
        places = read_places(disk, directory)
        need_data(disk, places)
        if data_path in {None, places.place.path}:
            return Mended()
        if places.place != OWN:
            need_own_segments(disk, places, read_claim(disk, places.place)[0], SALVAGE)
        _need_none_there(disk, places, str(data_path))
        return Mended()
    except (CorruptionError, DataMissingError, DataPathError) as error:
        problem = error
    lock = Lock(disk, join(directory, LOCK_NAME))
    try:  # with the lock in it: an interruption may come when it is taken
        lock.acquire(0.0)
        mended = _mend(disk, directory, data_path, problem, lock)
        shielded(lock.release)
    except BaseException:  # also an interruption of that step, which then does the rest
        shielded(lock.release)
        raise
    return mended


def _need_none_there(disk: Disk, places: Places, data_path: str) -> None:
    """Raise ``DataPathError`` if the segments of the queue are at ``data_path``, and none at the recorded location.

    If no log names a segment, and nothing is recorded, raise it if the location names this queue, which has no files
    elsewhere: its record is lost.
    """
    directory = places.directory
    named = segments_in_log(disk, directory, STRICT)
    root = directory if data_path == OWN.path else data_path
    if named and holds_one(disk, root, named) and not holds_one(disk, places.data_root, named):
        raise DataPathError(
            directory, f"segments of this queue in {places.data_root}", f"them in {root}", NAME_DIRECTORY
        )
    has_none = (
        not named and places == Places(directory) and bool(names_in(disk, directory)) and is_empty(disk, directory)
    )
    if has_none and _is_named_at(disk, root, directory):
        raise DataPathError(directory, f"{PATH_NAME} to lead to {root}, which names this queue", "none", NAME_DIRECTORY)


def _mend(
    disk: Disk,
    directory: str,
    data_path: str | None,
    problem: CorruptionError | DataMissingError | DataPathError,
    lock: Lock,
) -> Mended:
    """Tie the queue to its location."""
    what = problem.damage if isinstance(problem, CorruptionError) else problem.problem
    record: Places | None = None
    with suppress(CorruptionError):
        record = read_record(disk, directory)
    path = data_path or (record.place.path if record is not None else OWN.path)
    root = directory if path == OWN.path else path
    is_held = _holds(disk, directory, root)
    if isinstance(problem, DataMissingError) and data_path is None:
        if not names_in(disk, root) or not is_held:
            raise problem  # the remedy is to mount the medium, or to name the location, and not a repair
    elif not (is_held or (data_path is not None and _may_hold(disk, directory, root))) or (
        record is None and data_path is None and DATA_DIRECTORY not in names_in(disk, directory)
    ):
        advice = f"{NAME_DIRECTORY}; {LOST_FOR_GOOD}"
        raise DataPathError(directory, f"segments of this queue in {root}", f"none ({what})", advice)
    copies: list[str | None] = []
    place = OWN
    if path != OWN.path:
        hold_location(Places(directory), path, lock)
        recorded_id = record.place.id if record is not None else ""
        place = Place(path, _mend_id(disk, directory, path, recorded_id, copies))
    if record is None or record.place != place:
        copies.append(_keep(disk, join(directory, PATH_NAME)))
        write_places(disk, Places(directory, place, record.others if record is not None else ()))
    return Mended((what,), tuple(basename(copy) for copy in copies if copy is not None))


def _keep(disk: Disk, path: str) -> str | None:
    """Keep a file that is about to be replaced: copy a small regular file, and rename anything else.

    Return the new path; None if there is no file.
    """
    try:
        found = disk.lstat(path)
    except FileNotFoundError:
        return None
    is_small_file = S_ISREG(found.st_mode) and found.st_size <= _COPIED_BYTES_MAX
    return keep_copy(disk, path) if is_small_file else set_aside(disk, path)


def _mend_id(disk: Disk, directory: str, root: str, recorded_id: str, copies: list[str | None]) -> str:
    """Return the id of the location, which gets one if its own is lost or damaged. Raises ``DataPathError``."""
    try:
        found = read_id(disk, root)
    except CorruptionError:
        found = None
        copies.append(_keep(disk, join(root, ID_NAME)))
    if found is None:
        if not recorded_id:
            return write_id(disk, directory, root).id
        renew_id(disk, directory, Place(root, recorded_id))
        return recorded_id
    if found[0] != recorded_id and found[1] != abspath(directory):
        if _has_left(disk, directory, root, found):
            return write_id(disk, directory, root).id  # another id: a record of that queue does not lead here any more
        what = f"the location of the segments of {found[1]}"
        advice = f"if that queue is gone, remove {join(root, ID_NAME)}, then repair again; else {NAME_DIRECTORY}"
        raise DataPathError(directory, f"in {root} the location of this queue's segments", what, advice)
    return found[0]


def _has_left(disk: Disk, directory: str, root: str, found: tuple[str, str]) -> bool:
    """Return whether ``root`` holds segments of the queue in this directory, and none of the queue that it names.

    An opening with an exchanged record may have given the location to that queue.
    """
    named, others = (segments_in_log(disk, queue, STRICT) or [] for queue in (directory, found[1]))
    with suppress(CorruptionError):
        if holds_one(disk, root, named) and holds_queue(disk, found[1]):
            place = read_record(disk, found[1]).place
            return place.id != found[0] or (place.path == root and bool(others) and not holds_one(disk, root, others))
    return False


def _holds(disk: Disk, directory: str, root: str) -> bool:
    """Return whether ``root`` holds a segment that the log names; without a readable log, whether it holds any file.

    If the log names no segment, return whether ``root`` holds no file of a queue, or names this one.
    """
    named = segments_in_log(disk, directory, STRICT)
    if named is None:
        return bool(names_in(disk, root, DATA_DIRECTORY))
    if named:
        return holds_one(disk, root, named)
    return root == directory or _is_named_at(disk, root, directory) or is_empty(disk, root)


def _is_named_at(disk: Disk, root: str, directory: str) -> bool:
    """Return whether the location names the queue in this directory."""
    with suppress(CorruptionError):
        found = read_id(disk, root)
        return found is not None and found[1] == abspath(directory)
    return False


def _may_hold(disk: Disk, directory: str, root: str) -> bool:
    """Return whether nothing says that ``root`` is not the queue's location: the log names no segment, and ``root`` has
    neither a segment nor a readable id. Segments that were set aside do not matter: no queue uses them."""
    are_there = any(parse_segment_name(name) is not None for name in names_in(disk, root, DATA_DIRECTORY))
    if segments_in_log(disk, directory, STRICT) != [] or are_there:
        return False
    try:
        return read_id(disk, root) is None
    except CorruptionError:
        return True


def set_stray_id_aside(disk: Disk, directory: str) -> Mended:
    """Set aside a ``queue.id`` that no queue records; leave it if the queue that it names still records this location.

    A directory with such a file, and without a log, is refused as the location of another queue's segments. A damaged
    one names no queue.
    """
    parts = (LOG_DIRECTORY, DATA_DIRECTORY)
    if ID_NAME not in names_in(disk, directory) or any(names_in(disk, directory, part) for part in parts):
        return Mended()
    try:
        found = read_id(disk, directory)
    except CorruptionError as damage:
        return Mended((damage.damage,), (basename(set_aside(disk, join(directory, ID_NAME))),))
    with suppress(CorruptionError, DataPathError, DataMissingError):
        if found and (not find_generations(disk, found[1]) or read_record(disk, found[1]).place.id != found[0]):
            path = join(directory, ID_NAME)
            copy = keep_copy(disk, path)
            disk.unlink(path)
            what = (
                f"{path}: it names the location of the segments of {found[1]}, but that queue records another one, or "
                "is gone: the file was set aside"
            )
            return Mended((what,), (basename(str(copy)),))
    return Mended()

"""Segments on other media: taking a place for them, and moving those of a closed queue from one place to another.

The write order of a move (``move.1`` …), under the queue's lock:

1. Take the new place: its directory, an id of its own in ``queue.id``, and all names above it, durably. *A crash before
   2 leaves an id that is known for this queue's by the directory that it names.*
2. Record it in ``data.path`` as another place, which does not count. 3. Close the inbox, by renaming it, so that nobody
   publishes there what would not be copied. Copy the segments, what was set aside of them, and what is published; sync
   each, then their directories. *A crash leaves copies, which the next opening, or the next move, sweeps, and a closed
   inbox, which they open again.*
4. Replace ``data.path`` by one that names the new place, and the old one as another: **the commit point of a move**. *A
   crash leaves either, and the segments are at both.*
5. Sweep the old place, durably; record it no more; then take its id off. *A crash leaves what an opening sweeps.*

What is recorded as another place is swept only if it bears the id that was recorded with it. One that bears none, since
it is not mounted, stays recorded until it does; one that bears another is forgotten. Before anything is swept, what
``data.path`` says is made durable, since it may so far survive in the page cache only.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from ..errors import (
    CorruptionError,
    DataMissingError,
    DataPathError,
    InvalidNameError,
    QueueNotFoundError,
    lacking,
    naming_paths,
)
from ..system.disk import (
    DISK,
    LACKING,
    Disk,
    StrPath,
    abspath,
    copy_file,
    join,
    make_directory,
    sync_directory,
    sync_names,
)
from ..system.trust import need_regular, need_trusted
from .layout import (
    DELETED_DIRECTORY,
    bears,
    believed,
    find_generations,
    finish_deletion,
    let_go,
    names_in,
    need_own_directory,
    part_of_inbox,
    part_of_segment,
    place_path,
    queue_directory,
    sweep_place,
)
from .locations import (
    CLOSED_DIRECTORY,
    DATA_DIRECTORY,
    ID_NAME,
    INBOX_DIRECTORY,
    LOG_DIRECTORY,
    OWN,
    PATH_NAME,
    Place,
    Places,
    read_id,
    read_places,
    read_record,
    write_id,
    write_places,
)
from .lock import LOCK_NAME, Lock


@dataclass(frozen=True)
class Moved:
    """What ``move_data`` did."""

    source: str
    """The directory that the segments were in: that of the queue, or an absolute path."""
    target: str
    """The one that they are in now; the same if they were there already."""
    files: int
    """How many files were copied."""
    copied_bytes: int
    """Their bytes."""
    left: tuple[str, ...]
    """Places that may hold files of the queue which do not count, since they are not there or could not be swept."""


@naming_paths()
def move_data(
    path: StrPath,
    name: str | None = None,
    *,
    data_path: StrPath | None,
    lock_timeout: float = 0.0,
    trust: bool = False,
    disk: Disk = DISK,
) -> Moved:
    """Move the segments of a closed queue to ``data_path/name``, or to ``data_path`` for a queue without a name; with
    None back into the queue's own directory.

    On return they are there durably, and gone where they were, with the empty files of the queue's own pool. Nothing
    that is not the queue's is touched. Cut short at any moment, all items are at the one place or the other, and the
    next opening, or move, sweeps what is left; a move that raises leaves the queue as it was, but where a sync of
    ``data.path`` failed: then the next opening tells.

    Raises ``QueueNotFoundError``, ``QueueLockedError`` (it is open), ``DataPathError`` (the target holds what is not
    this queue's), ``DataMissingError`` (the segments are not where they should be), ``CorruptionError`` (a
    pipe, for instance, has the name of a segment), ``UntrustedError`` (another user has prepared what is there, unless
    ``trust`` accepts that), ``ResourceError``, ``OSError``.
    """
    directory = abspath(queue_directory(path, name))
    target = place_path(directory, name, data_path)
    missing = QueueNotFoundError(f"{directory}: no queue here to move")
    if not find_generations(disk, directory):
        raise missing
    if not trust:
        roots = (directory,) if target == OWN.path else (directory, target)
        need_trusted(disk, chain.from_iterable(believed(disk, root) for root in roots))
    lock = Lock(disk, join(directory, LOCK_NAME))
    try:
        lock.acquire(lock_timeout)
    except FileNotFoundError:  # somebody deleted it meanwhile, and its directory with it
        raise missing from None
    disk = lock.disk
    try:
        places = read_places(disk, directory)
        if not find_generations(disk, directory, places):
            raise missing
        places = sweep_others(disk, reopen_inbox(disk, places))
        source, files, copied_bytes = places.data_root, 0, 0
        if target != places.place.path:
            _need_plain_files(disk, places)
            places, files, copied_bytes = _move(disk, places, target)
            if name is not None:
                with suppress(OSError):
                    disk.rmdir(source)
        left = tuple(places.root_of(other) for other in places.others)
        return Moved(source, places.data_root, files, copied_bytes, left)
    finally:
        lock.release()


def open_places(disk: Disk, directory: str, data_path: str | None) -> Places:
    """Where the parts of the queue are that is being opened with this path of a place, if any was given; one that was
    being deleted is gone then.

    A place that is not where it was recorded, but at this path, is recorded anew: it bears the id. Raises
    ``DataMissingError``.
    """
    names = names_in(disk, directory)  # one look, which nearly always says that there is nothing else to look for
    places = _found_places(disk, directory, data_path) if PATH_NAME in names else Places(directory)
    if CLOSED_DIRECTORY in names or places.place != OWN:
        places = reopen_inbox(disk, places)
    return finish_deletion(disk, places) if DELETED_DIRECTORY in names else places


def _found_places(disk: Disk, directory: str, data_path: str | None) -> Places:
    try:
        return read_places(disk, directory)
    except DataMissingError:
        if data_path is None or data_path == OWN.path:
            raise
        places = read_record(disk, directory)
        moved = Place(data_path, places.place.id)
        if not bears(disk, moved):
            raise
        places = places._replace(place=moved)
        write_places(disk, places)
        return places


def settle(disk: Disk, places: Places, data_path: str | None, is_new: bool) -> Places:
    """See to it that the parts are where the opening wants them: those of a new queue anywhere, others where they are.

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
            f"that they are in {'it' if places.place == OWN else recorded}",
            "leave data_path= away, or close the queue and move them: python -m persistentqueue move PATH [NAME] "
            "--data-path NEW",
        )
    place = take_place(disk, places, str(data_path))
    places = _switched(places, place, *(() if places.place == OWN else (places.place,)))
    write_places(disk, places)
    return places


def take_place(disk: Disk, places: Places, path: str) -> Place:
    """Take a place for the queue's segments, durably. Raises ``DataPathError`` if it holds what is not this queue's."""
    if path == OWN.path:
        return OWN
    _need_free(disk, places, path)
    make_directory(disk, path)
    place = write_id(disk, places.directory, path)
    sync_names(disk, path)
    return place


def sweep_others(disk: Disk, places: Places) -> Places:
    """Sweep the other places, and record no more those that are swept. Where the parts are then.

    What cannot be swept, or not be recorded for want of room, is left to the next one. Raises ``OSError`` for a sync of
    ``data.path`` that fails.
    """
    if not places.others:
        return places
    sync_directory(disk, places.directory)
    kept, swept = [], []
    for other in places.others:
        with suppress(OSError):
            found = read_id(disk, other.path) if other != OWN else ("", "")
            if found is not None and found[0] == other.id:
                sweep_place(disk, places.root_of(other))
                swept.append(other)
                continue
            if found is not None:  # somebody else's by now
                continue
        kept.append(other)
    if len(kept) == len(places.others):
        return places
    remaining = places._replace(others=tuple(kept))
    try:
        write_places(disk, remaining)
    except OSError as error:
        if error.errno not in LACKING:
            raise
        return places
    for other in swept:
        with suppress(OSError):
            let_go(disk, other)
    return remaining


def _move(disk: Disk, places: Places, path: str) -> tuple[Places, int, int]:
    try:
        disk.failpoint("move.1 take place")
        target = take_place(disk, places, path)
        disk.failpoint("move.2 record target")
        write_places(disk, places._replace(others=(*places.others, target)))
        disk.failpoint("move.3 copy")
        root = places.root_of(target)
        sweep_place(disk, root)
        _close_inbox(disk, places)
        files, copied_bytes = _copy_all(disk, places, root)
        disk.failpoint("move.4 switch")
        moved = _switched(places, target, places.place)
        write_places(disk, moved)
    except OSError as error:
        with suppress(OSError):
            now = read_record(disk, places.directory)
            if now.place == places.place:  # else a sync has failed, and the next opening looks where the segments are
                sweep_others(disk, now)
                reopen_inbox(disk, places)
        lack = lacking(error, path, "to move the segments to", "then move again")
        if lack is None:
            raise
        raise lack from error
    disk.failpoint("move.5 sweep source")
    return sweep_others(disk, moved), files, copied_bytes


def _switched(places: Places, place: Place, *left: Place) -> Places:
    """The queue at this place, which is then none of the others."""
    others = tuple(other for other in (*places.others, *left) if other != place)
    return places._replace(place=place, others=others)


def reopen_inbox(disk: Disk, places: Places) -> Places:
    """Open the inbox again that a move has closed and left so, since it was cut short; durably."""
    closed, inbox = places.path(CLOSED_DIRECTORY), places.path(INBOX_DIRECTORY)
    if CLOSED_DIRECTORY in names_in(disk, places.data_root):
        disk.rename(closed, inbox)
        sync_directory(disk, places.data_root)
    return places


def _close_inbox(disk: Disk, places: Places) -> None:
    with suppress(FileNotFoundError):  # a queue that was made before there were any
        disk.rename(places.path(INBOX_DIRECTORY), places.path(CLOSED_DIRECTORY))
        sync_directory(disk, places.data_root)


def _copy_all(disk: Disk, places: Places, root: str) -> tuple[int, int]:
    """Copy what the data directory and the inbox have of the queue, durably; how many files, and their bytes."""
    files = copied_bytes = 0
    for source_part, part in ((DATA_DIRECTORY, DATA_DIRECTORY), (CLOSED_DIRECTORY, INBOX_DIRECTORY)):
        source, target = places.path(source_part), join(root, part)
        make_directory(disk, target)
        for name in names_in(disk, source):
            if part_of_segment(name) or part_of_inbox(name):
                copied_bytes += copy_file(disk, join(source, name), join(target, name))
                files += 1
        sync_directory(disk, target)
    sync_directory(disk, root)
    return files, copied_bytes


def _need_plain_files(disk: Disk, places: Places) -> None:
    """Raise ``CorruptionError`` if anything that is to be copied is no plain file."""
    for part, is_ours in ((DATA_DIRECTORY, part_of_segment), (INBOX_DIRECTORY, part_of_inbox)):
        for name in filter(is_ours, names_in(disk, places.path(part))):
            with suppress(FileNotFoundError):  # what producers have in the inbox comes and goes
                path = places.path(join(part, name))
                try:
                    need_regular(disk, path)
                except CorruptionError as error:
                    advice = "nothing was moved: look at it, and remove it"
                    raise CorruptionError(path, 0, error.expected, error.found, advice) from None


def _need_free(disk: Disk, places: Places, path: str) -> None:
    """Raise ``DataPathError`` unless the place is free, or was left by this queue."""
    try:
        need_own_directory(disk, path)
    except InvalidNameError as error:
        advice = f"choose another data_path ({error})"
        raise DataPathError(places.directory, "a place of its own", f"{path}", advice) from error
    found = read_id(disk, path)
    if found is not None:
        # It is recorded nowhere: whoever took the place for the queue in this directory was killed, or deleted it.
        if found[1] == abspath(places.directory) and not _segments_in(disk, path):
            return
        what = f"the place of segments of {found[1]}"
    elif LOCK_NAME in (names := names_in(disk, path)) or {LOG_DIRECTORY, DELETED_DIRECTORY, PATH_NAME} & set(names):
        what = "a queue's own directory"
    elif _segments_in(disk, path):
        what = f"segments, and no {ID_NAME} that says whose they are"
    else:
        return
    raise DataPathError(places.directory, f"nothing of another queue in {path}", what, "choose another data_path")


def _segments_in(disk: Disk, root: str) -> bool:
    return any(map(part_of_segment, names_in(disk, join(root, DATA_DIRECTORY))))


def _is_same(disk: Disk, places: Places, path: str) -> bool:
    """Whether the path leads to the recorded place, by another name: a copy bears the same id, and is another file."""
    if path == OWN.path or not bears(disk, places.place._replace(path=path)):
        return False
    one, other = (disk.lstat(join(root, ID_NAME)) for root in (path, places.place.path))
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)

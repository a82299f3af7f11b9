"""The layout of a directory of queues: valid names, the files of a queue, and the deletion of a queue.

::

    <path>/<name>/                one named queue; without a name, <path> itself
      lock                        locked while the queue is owned; deleted only with the queue; names the owner
      .socket                     the socket for workers, while an owner serves
      .holds                      what workers hold, from an owner that leaves to the next one; see ``handover``
      log/<generation>.log        the transaction log: one generation, two only during a trim
      data/<number>.seg           the segments: append-only, never edited
      inbox/<time>-<producer>.*   what other processes publish, for the owner to adopt; see ``publication``
      inbox.closed/               what ``inbox`` is renamed to while the segments are being moved
      pool/log.free               the spare file that the next generation of the log will be written to
      pool/<bytes>-<random>.free  empty files that become segments; of a shared pool in <path>/.pool
      queue.limits                the limits, if there are any, for producers; see ``inbox_limits``
      schemas/<number>.schema     the schemas of typed rows, if there are any; see ``schema_files``
      data.path                   where the segments are, if they are elsewhere; see ``locations``
      deleted/                    what ``log`` is renamed to when the queue is being deleted
      *.damaged, */*.damaged      what could not be read, set aside

    <data_path>/<name>/           the location of its segments, on other media; without a name, <data_path> itself
      queue.id                    the queue that the location belongs to; see ``locations``
      data/<number>.seg           the segments
      inbox/<time>-<producer>.*   what other processes publish, next to the segments
      pool/<bytes>-<random>.free  empty files that become segments; of a shared pool in <data_path>/.pool

The write order of a deletion (``delete.1`` …). If it is cut short, the next process that opens or deletes the queue
finishes it:

1. Rename ``log`` to ``deleted``.
2. Sync the directory: **the commit point of a deletion**. From here on there is no queue. *A crash before leaves the
   whole queue, or none.*
3. Rename the inbox, so that no producer adds a file to it. Delete the segments, what is published, and the files of
   the pool; at an external location, sync. A location that does not count, and may belong to another directory, is left
   alone. Delete the schemas, ``queue.limits`` and ``data.path``; sync. Delete the logs; sync. Delete ``queue.id``;
   sync. *A crash leaves files that ``deleted`` accounts for, or a ``queue.id`` that is recognized by the directory in
   it.*
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, islice, takewhile
from stat import S_ISLNK, S_ISREG

from ..errors import (
    CorruptionError,
    DataPathError,
    ForeignQueueError,
    InvalidNameError,
    QueueNotFoundError,
)
from ..system.bad_pages import copy_around, is_copy
from ..system.disk import Disk, StrPath, abspath, basename, current_disk, dirname, fspath, join, relpath
from ..system.files import make_directory, read_all, sync_directory, wipe_file
from ..system.path_errors import ABSENT, faults, is_out_of_reach, naming_paths, suppress
from .locations import (
    CLOSED_DIRECTORY,
    DATA_DIRECTORY,
    ID_NAME,
    INBOX_DIRECTORY,
    LIMITS_NAME,
    LOG_DIRECTORY,
    NEW_SUFFIX,
    OWN,
    PATH_NAME,
    POOL_DIRECTORY,
    SCHEMAS_DIRECTORY,
    SHARED_POOL,
    Place,
    Places,
    read_claim,
    read_id,
    read_places,
    remove_file,
)
from .lock import LOCK_NAME, Lock, read_inode
from .log import generations_of, parse_log_name
from .log_reader import LISTINGS_MAX, list_generations
from .pool import SPARE_NAME, Pool, parse_pool_name
from .publication import is_part, is_published, parse_name
from .schema_files import parse_schema_file
from .segment import parse_segment_name

DELETED_DIRECTORY = "deleted"
DAMAGED_SUFFIX = ".damaged"
SOCKET_NAME = ".socket"
"""Name of the socket of an owner that serves; with a suffix while it is made. No queue can have such a name."""
HOLDS_NAME = ".holds"
"""Name of the file by which an owner that leaves hands over what workers hold. No queue can have such a name."""

PART_NAMES = frozenset(
    {LOCK_NAME, LOG_DIRECTORY, DATA_DIRECTORY, INBOX_DIRECTORY, CLOSED_DIRECTORY, POOL_DIRECTORY, DELETED_DIRECTORY}
    | {SCHEMAS_DIRECTORY}
    | {name + suffix for name in (PATH_NAME, ID_NAME) for suffix in ("", NEW_SUFFIX)}
)
"""Names in the directory of a queue, or in the location of its segments: a queue without a name has them in ``path``,
which may be a directory of queues.
"""

_DAMAGED = re.compile(r"(\.[0-9]+)?\.damaged")
_IN_THE_WAY = frozenset({errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})
"""Numbers of the errors of a rename if there is no inbox, or if the closed one holds files of another program."""
_NAMES_SHOWN = 5
"""Number of queues that an error names."""
_FOREIGN_CHUNK = re.compile(r"q[0-9]{5,}")
_FOREIGN_TABLE = re.compile(rb"CREATE TABLE `((?:ack_)?(?:filo_|unique_|priority_)?queue_\w+)`")
"""Statement in a database of persist-queue that made the table of a queue."""
_HEAD_BYTES = 64 * 1024
"""Bytes of a database that are searched for this statement."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", re.ASCII)


def is_name(name: str) -> bool:
    """Return whether a queue can have this name."""
    return _NAME.fullmatch(name) is not None


def queue_directory(path: StrPath, name: str | None, argument: str = "path") -> str:
    """Return the directory of the queue; ``argument`` is the name of the path in errors.

    Raises ``InvalidNameError``, ``TypeError`` and ``ValueError``.
    """
    path = fspath(path, argument)
    if name is None:
        return path
    if not isinstance(name, str):
        raise TypeError(f"name must be text or None, not {type(name).__name__}")
    if not is_name(name):
        raise InvalidNameError(
            f"{name!r} cannot be a queue's name: 1 to 64 of A-Z a-z 0-9 . _ - are allowed, not beginning with a dot"
        )
    return join(path, name)


def need_name(disk: Disk, directory: str) -> None:
    """Raise ``InvalidNameError`` if this is no queue, but a directory that holds named queues.

    A caller that forgot the name would otherwise make a second, empty queue beside them.
    """
    if is_there(disk, join(directory, LOCK_NAME)) or is_queue(disk, directory):
        return
    shown = _queues_shown(disk, directory)
    if shown:
        raise InvalidNameError(
            f"{directory}: this directory holds named queues: {shown}: name one of them, or add its name to the "
            "path; PersistentQueue(path, name=None) makes a queue without a name beside them"
        )


def place_path(directory: str, name: str | None, data_path: StrPath | None) -> str:
    """Return the path of the location that ``data_path`` means for the queue.

    It is the path of ``OWN`` if that location is the queue's own directory.
    """
    root = directory if data_path is None else queue_directory(data_path, name, "data_path")
    return OWN.path if abspath(root) == abspath(directory) else abspath(root)


def need_own_directory(disk: Disk, directory: str) -> None:
    """Raise ``InvalidNameError`` if the directory is a part of another queue, or has another queue as a part.

    A queue without a name has its parts in ``path``, and a queue that is named like a part would lie in that part. An
    existing queue keeps its directory: only for a new queue are the parts checked for other queues. Then
    ``ForeignQueueError`` is raised for files of other packages, too.
    """
    above, name = dirname(directory), basename(directory)
    if name in PART_NAMES and is_queue(disk, above or "."):
        raise InvalidNameError(
            f"{directory}: {name!r} cannot be a queue's name in {above or '.'}: that directory is a queue itself, or a "
            f"location of segments, and {name!r} is a part of it: choose another name, or another path"
        )
    if not is_there(disk, join(directory, LOCK_NAME)):
        names = names_in(disk, directory)
        _need_no_foreign_queue(disk, directory, names)
        for part in sorted(PART_NAMES.intersection(names)):
            if is_queue(disk, join(directory, part)):
                raise InvalidNameError(
                    f"{directory}: a queue without a name cannot be made here: there is a queue named {part!r}, which "
                    "is the name of a part of a queue: give the new queue a name, or another path"
                )


def _need_no_foreign_queue(disk: Disk, directory: str, names: list[str]) -> None:
    """Raise ``ForeignQueueError`` if these names in the directory are those of a queue of persist-queue or queuelib."""
    chunks = [name for name in names if _FOREIGN_CHUNK.fullmatch(name)]
    for info, origin in (("info", "persist-queue"), ("info.json", "queuelib")):
        if chunks and is_there(disk, join(directory, info)):  # its owner replaces it, so a listing may miss it
            raise ForeignQueueError(directory, origin, f"{info!r} and {chunks[0]!r}")
    for name in ("data.db", "data.db-wal"):  # its tables are in the second file until a checkpoint
        if name in names and is_there(disk, join(directory, name)):
            table = _FOREIGN_TABLE.search(_head(disk, join(directory, name)))
            if table is not None:
                found = f"'data.db' with the table {table.group(1).decode(errors='replace')!r}"
                raise ForeignQueueError(directory, "persist-queue", found)


def _head(disk: Disk, path: str) -> bytes:
    """Return the first bytes of the file; none if this process may not read it."""
    try:
        with disk.opened(path) as fd:
            return read_all(disk, fd, _HEAD_BYTES, 0)
    except PermissionError:
        return b""


def is_queue(disk: Disk, directory: str) -> bool:
    """Return whether the directory is that of a queue, or the location of its segments."""
    return (
        holds_queue(disk, directory)
        or bool(generations_of(names_in(disk, directory, DELETED_DIRECTORY)))
        or any(is_there(disk, join(directory, name)) for name in (PATH_NAME, ID_NAME))
    )


def is_there(disk: Disk, path: str) -> bool:
    """Return whether the path is a plain file."""
    try:
        return S_ISREG(disk.lstat(path).st_mode)
    except ABSENT:
        return False


def believed(disk: Disk, root: str) -> Iterator[str]:
    """Yield the paths that an owner believes, in a queue's directory or in the location of its segments."""
    yield root
    yield from (join(root, name) for name in names_in(disk, root) if name in PART_NAMES)
    logs = join(root, LOG_DIRECTORY)
    yield from (join(logs, name) for name in names_in(disk, logs) if parse_log_name(name) is not None)


def open_pool(path: StrPath, name: str | None, *, shared: bool, max_bytes: int, create: bool = True) -> Pool:
    """Return the pool of a queue, owned or not, or the one that the queues of ``path`` share.

    Its directory is made if it is missing, unless ``create`` is false. A pool of queues that share a ``data_path`` is
    found by the name of one of them, or by that path. Raises ``QueueNotFoundError``, ``DataMissingError``,
    ``InvalidNameError`` and, if no directory is made, ``UnusablePathError``.
    """
    disk = current_disk()
    if shared and name is None:
        root = abspath(queue_directory(path, None))
        if not create:
            with naming_paths(root):  # a mistyped path is not taken for an empty pool
                disk.listdir(root)
        pool = join(root, SHARED_POOL)
    else:
        directory = abspath(queue_directory(path, name))
        if not find_generations(disk, directory):
            raise no_queue(disk, directory, "that could have a pool")
        pool = read_places(disk, directory).pool_directory(shared)
    if create:
        make_directory(disk, pool)
    return Pool(disk, pool, max_bytes)


MAKE_FIRST = "check the path, or make the queue first, by opening it with PersistentQueue"
"""Advice about a directory without a queue, for calls that make none."""
REPAIR = "nothing was changed: restore the file, or copy the directory, then run repair"
"""Advice about a log that is damaged or gone."""


def names_in(disk: Disk, directory: str, part: str = "") -> list[str]:
    """Return the sorted names in a part of a queue's directory; none if the part is missing."""
    try:
        return sorted(disk.listdir(join(directory, part) if part else directory))
    except ABSENT:
        return []


def holds_queue(disk: Disk, directory: str) -> bool:
    """Return whether the directory holds a queue: it has a log."""
    return bool(_generations(disk, directory))


def _generations(disk: Disk, directory: str) -> list[int]:
    """Return the generations of the log in this directory, lowest first; none if it has no log."""
    try:
        return list_generations(disk, directory)
    except ABSENT:
        return []


def is_named_queue(disk: Disk, directory: str) -> bool:
    """Return whether the directory holds a queue, and is no link to it; False if this process may not look into it."""
    try:
        return not S_ISLNK(disk.lstat(directory).st_mode) and holds_queue(disk, directory)
    except faults(OSError) as error:
        if not is_out_of_reach(error):  # the directory may belong to anything
            raise
        return False


def no_queue(disk: Disk, directory: str, purpose: str, advice: str = "check the path") -> QueueNotFoundError:
    """Return the error for a directory without a queue of its own. It names the queues that are in it, or has the
    advice if there are none."""
    shown = ""
    with suppress(OSError):
        shown = _queues_shown(disk, directory)
    hint = f"name one of the queues in this directory: {shown}" if shown else advice
    return QueueNotFoundError(f"{directory}: no queue here {purpose}: {hint}")


def gone_meanwhile(lock: Lock, directory: str, purpose: str, advice: str = "check the path") -> QueueNotFoundError:
    """Return the error for a queue that another process has deleted before this process got the ``lock``.

    The lock file goes, too: this process may have made it beside foreign files. If a deletion was cut short, it stays
    for the next process, which finishes that deletion.
    """
    disk = lock.disk
    if DELETED_DIRECTORY not in names_in(disk, directory):
        with suppress(FileNotFoundError):
            disk.unlink(lock.path)
    return no_queue(disk, directory, purpose, advice)


def _queues_shown(disk: Disk, directory: str) -> str:
    """Return the names of the first queues in a directory, for an error; empty if there are none."""
    found = (
        name for name in names_in(disk, directory) if is_name(name) and is_named_queue(disk, join(directory, name))
    )
    names = list(islice(found, _NAMES_SHOWN + 1))
    return ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")


def sizes_in(disk: Disk, directory: str) -> dict[str, int]:
    """Return the lengths of the files in a directory, by their names."""
    sizes = {}
    for name in names_in(disk, directory):
        with suppress(FileNotFoundError):  # it was retired meanwhile
            sizes[name] = disk.lstat(join(directory, name)).st_size
    return sizes


def find_generations(disk: Disk, directory: str, places: Places | None = None) -> list[int]:
    """Return the generations of the log in a queue's directory, lowest first; none if it holds no queue.

    Raises ``CorruptionError`` if there are segments and no log, since that was a queue. Raises ``DataPathError`` if the
    directory is the location of another queue's segments, and ``DataMissingError`` like ``read_places``.
    """
    for _ in range(LISTINGS_MAX - 1):
        with suppress(CorruptionError):  # another process may have made or deleted the queue between these listings
            return _find_generations(disk, directory, places)
    return _find_generations(disk, directory, places)


def _find_generations(disk: Disk, directory: str, places: Places | None) -> list[int]:
    """Return what ``find_generations`` returns, by a single look at the directory, and raise its errors."""
    found = _generations(disk, directory)
    if found:
        return found
    names = names_in(disk, directory)
    owner = read_id(disk, directory) if ID_NAME in names else None
    if owner is not None:
        whose = f"the location of the segments of {owner[1]}"
        raise DataPathError(
            directory,
            "a queue's directory",
            whose,
            f"open that queue instead; if it is gone for good, remove {ID_NAME}, then run repair",
        )
    if DELETED_DIRECTORY not in names:
        places = places or read_places(disk, directory)
        for name in names_in(disk, places.path(DATA_DIRECTORY)):
            if parse_segment_name(name) is not None:
                path = join(directory, LOG_DIRECTORY)
                segment = places.path(join(DATA_DIRECTORY, name))
                expected = f"a log, since there is {relpath(segment, directory)}"
                raise CorruptionError(path, 0, expected, "none", REPAIR)
    return found


def set_aside(disk: Disk, path: str) -> str:
    """Rename a file that could not be read to ``*.damaged``, beside what was set aside before; return the new path."""
    damaged = _damaged_name(disk, path)
    disk.rename(path, damaged)
    return damaged


def set_all_aside(disk: Disk, places: Places, names: Iterable[str]) -> None:
    """Set these files aside, which are named with their part."""
    for name in names:
        set_aside(disk, places.path(name))


def delete_all(disk: Disk, places: Places, names: Iterable[str], wipe: bool) -> None:
    """Delete these files, which are named with their part; with ``wipe``, wipe them before, durably."""
    for path in map(places.path, names):
        with suppress(FileNotFoundError):  # an owner that has just ended deleted it first
            delete_file(disk, path, wipe)


def delete_file(disk: Disk, path: str, wipe: bool) -> None:
    """Delete a file; with ``wipe``, wipe it before, durably. Raises ``OSError``."""
    if wipe:
        wipe_file(disk, path)
    disk.unlink(path)


def keep_copy(disk: Disk, path: str) -> str | None:
    """Copy a file to ``*.damaged`` before a repair, durably; return the copy's path, or None if there is no file.

    If the device cannot read some pages of the file, the copy has zeros there and takes the place of the file. Then the
    file itself is what is kept. So nothing needs these pages any more, and a later read of them may still succeed.
    """
    copy = _damaged_name(disk, path)
    try:
        has_bad_pages = copy_around(disk, path, copy)
    except FileNotFoundError:
        return None
    except faults(OSError):
        with suppress(OSError):  # a part of a copy, which a full disk cannot take, is no evidence
            disk.unlink(copy)
        raise
    sync_directory(disk, dirname(path))
    return _exchange(disk, path, copy) if has_bad_pages else copy


def _exchange(disk: Disk, path: str, copy: str) -> str:
    """Give the file another ``*.damaged`` name and the copy its old name, durably; return the name of what is kept.

    A crash in between leaves the file with both of its names.
    """
    kept = _damaged_name(disk, path)
    try:
        disk.link(path, kept)
    except faults(OSError):  # a file system without such names: the copy, which has what can be read, is kept
        return copy
    sync_directory(disk, dirname(path))
    disk.rename(copy, path)
    sync_directory(disk, dirname(path))
    return kept


def find_copy(disk: Disk, path: str) -> str | None:
    """Return the path of a copy that ``keep_copy`` has made of this file as it is now, durably; None if there is none.

    A repair that was cut short leaves its copies, and those of the next one would be the same.
    """
    for copy in takewhile(partial(has_name, disk), _damaged_names(path)):
        with suppress(FileNotFoundError):  # there is no such file
            if is_copy(disk, path, copy):
                sync_directory(disk, dirname(path))
                return copy
    return None


def _damaged_name(disk: Disk, path: str) -> str:
    """Return a free name for a damaged file."""
    return next(name for name in _damaged_names(path) if not has_name(disk, name))


def _damaged_names(path: str) -> Iterator[str]:
    """Yield the names that a damaged file may get. It gets the first of them that is free.

    A directory may hold any number of files, so it is not listed, and few names are tried.
    """
    yield f"{path}{DAMAGED_SUFFIX}"
    yield from (f"{path}.{1 << power}{DAMAGED_SUFFIX}" for power in count(1))


def has_name(disk: Disk, path: str) -> bool:
    """Return whether there is anything of this name. Raises ``OSError`` if that is not known."""
    try:
        disk.lstat(path)
    except FileNotFoundError:
        return False
    return True


def finish_deletion(disk: Disk, places: Places) -> Places:
    """Finish the deletion of a queue, if one was begun, and return where the parts of the next queue are.

    The lock is held. If there is a log, there is a queue, and a directory named ``deleted`` is not from a deletion.
    """
    directory = places.directory
    if DELETED_DIRECTORY not in names_in(disk, directory) or find_generations(disk, directory, places):
        return places
    disk.failpoint("delete.2 sync name")
    # A killed owner may not have synced its rename to ``deleted``. A power cut could undo that after the segments are
    # gone, and the log would come back.
    sync_directory(disk, directory)
    disk.failpoint("delete.3 sweep")
    elsewhere = [place for place in places.others if bears(disk, place) and is_left_here(disk, directory, place)]
    elsewhere += [places.place] if bears(disk, places.place) else []
    for place in elsewhere:
        sweep_place(disk, place.path)
    _sweep_inbox(disk, directory)
    _sweep(disk, join(directory, DATA_DIRECTORY), parse_segment_name)
    _sweep(disk, join(directory, POOL_DIRECTORY), parse_spare_name)
    _sweep(disk, join(directory, SCHEMAS_DIRECTORY), parse_schema_file)
    remove_file(disk, join(directory, LIMITS_NAME))
    remove_file(disk, join(directory, PATH_NAME))
    _remove_damaged(disk, directory, PATH_NAME)
    remove_file(disk, join(directory, SOCKET_NAME))  # of an owner that was killed
    remove_file(disk, join(directory, HOLDS_NAME))
    # The log goes last, when the other files are gone durably: it tells the next opening what these files are.
    sync_directory(disk, directory)
    _sweep(disk, join(directory, DELETED_DIRECTORY), parse_log_name)
    if DELETED_DIRECTORY in names_in(disk, directory):
        with suppress(OSError):
            disk.rename(join(directory, DELETED_DIRECTORY), join(directory, LOG_DIRECTORY))
    sync_directory(disk, directory)
    for place in elsewhere:
        let_go(disk, place)
    return Places(directory)


def bears(disk: Disk, place: Place) -> bool:
    """Return whether the location, which is not the queue's own directory, exists and bears its id."""
    found = read_id(disk, place.path) if place != OWN else None
    return found is not None and found[0] == place.id


def is_left_here(disk: Disk, directory: str, place: Place) -> bool:
    """Return whether the external location names this directory, and this directory is no copy of another one.

    A copy may record the locations of its original. The lock is held.
    """
    queue, owner = read_claim(disk, place)
    inode, is_copied = read_inode(disk, join(directory, LOCK_NAME))
    return queue == abspath(directory) and (owner == inode if owner else not is_copied)


def sweep_place(disk: Disk, root: str) -> None:
    """Delete the segments, the published and the empty files of a queue from this location, durably."""
    _sweep_inbox(disk, root)
    _sweep(disk, join(root, DATA_DIRECTORY), parse_segment_name)
    _sweep(disk, join(root, POOL_DIRECTORY), parse_pool_name)
    sync_directory(disk, root)


def let_go(disk: Disk, place: Place) -> None:
    """Remove the id of a location that holds nothing of the queue any more, and that is recorded nowhere."""
    if bears(disk, place):
        remove_file(disk, join(place.path, ID_NAME))
        _remove_damaged(disk, place.path, ID_NAME)
        sync_directory(disk, place.path)


def parse_spare_name(name: str) -> str | None:
    """Return the name if it is one of a file in the pool's directory; None for any other."""
    return name if name == SPARE_NAME or parse_pool_name(name) is not None else None


def _sweep_inbox(disk: Disk, root: str) -> None:
    """Delete the published files, and the inbox. It is renamed before, so that producers which are at work add no file
    to it."""
    inbox, closed = join(root, INBOX_DIRECTORY), join(root, CLOSED_DIRECTORY)
    _sweep(disk, closed, parse_name)
    try:
        disk.rename(inbox, closed)
    except faults(OSError) as error:
        if error.errno not in _IN_THE_WAY:
            raise
    for path in (inbox, closed):
        _sweep(disk, path, parse_name)


def _sweep(disk: Disk, path: str, parse: Callable[[str], object]) -> None:
    """Delete the queue's files in a part of it, and the part itself if it is then empty.

    If the part holds other files it stays, and is synced. The caller makes the removal of a part durable.
    """
    for entry in names_in(disk, path):
        if parse(_DAMAGED.sub("", entry)) is not None:
            with suppress(IsADirectoryError):  # not a file of the queue
                disk.unlink(join(path, entry))
    if not remove_directory(disk, path):
        sync_directory(disk, path)


def _remove_damaged(disk: Disk, root: str, name: str) -> None:
    """Remove what repairs have set aside of one of the small files; not durably."""
    for entry in names_in(disk, root):
        if entry != name and _DAMAGED.sub("", entry) == name:
            with suppress(IsADirectoryError):  # not a file of the queue
                disk.unlink(join(root, entry))


def part_of_segment(name: str) -> bool:
    """Return whether a file in a data directory is the queue's: a segment, or one that was set aside."""
    return parse_segment_name(_DAMAGED.sub("", name)) is not None


def part_of_inbox(name: str) -> bool:
    """Return whether a file in an inbox is published, or a part, or one of these that was set aside."""
    whole = _DAMAGED.sub("", name)
    return is_published(whole) or is_part(whole)


def remove_directory(disk: Disk, path: str) -> bool:
    """Remove the directory; return False if it cannot be removed, because it is not empty for instance."""
    try:
        disk.rmdir(path)
    except FileNotFoundError:
        pass
    except faults(OSError):
        return False
    return True

"""The queues of a directory: list their names, and delete one.

The write order of a deletion is at the top of ``directory``; step 1 is here, and the others are in
``finish_deletion``, since the next opening may have to finish them.
"""

from __future__ import annotations

from contextlib import suppress

from ..errors import InDoubtError, QueueNotFoundError, naming_paths, unless_lacking
from ..storage.layout import (
    DELETED_DIRECTORY,
    believed,
    find_generations,
    finish_deletion,
    is_name,
    names_in,
    queue_directory,
    remove_directory,
)
from ..storage.locations import LOG_DIRECTORY, OWN, read_places
from ..storage.lock import LOCK_NAME, Lock
from ..storage.log import parse_log_name
from ..system.disk import DISK, Disk, StrPath, abspath, dirname, fspath, join, sync_directory
from ..system.trust import need_trusted
from .in_doubt import find_unsettled


@naming_paths()
def list_queues(path: StrPath, *, disk: Disk = DISK) -> list[str]:
    """The names of the queues under ``path``, sorted, whether open or not. Reads only."""
    path = fspath(path)
    return [
        name
        for name in names_in(disk, path)
        if is_name(name)
        and any(parse_log_name(entry) is not None for entry in names_in(disk, join(path, name), LOG_DIRECTORY))
    ]


@naming_paths()
def delete_queue(
    path: StrPath, name: str | None = None, *, lock_timeout: float = 0.0, trust: bool = False, disk: Disk = DISK
) -> None:
    """Delete a queue and all its items, for good; only its own files, and only under its lock.

    On return the queue is gone durably, its segments too where these are elsewhere. Directories that hold anything else
    stay, with that. Raises ``QueueNotFoundError``, ``QueueLockedError``, ``InvalidNameError``, ``DataMissingError``
    where the place of the segments is not there, and ``InDoubtError`` where a queue beside it may have to ask this one
    what became of a transaction over both. Raises ``UntrustedError`` for what another user has prepared, unless
    ``trust`` accepts that.
    Raises ``ResourceError``: call it again, also if some files are gone.
    """
    directory = abspath(queue_directory(path, name))
    with unless_lacking(directory, "to delete the queue", "then delete it again"):
        _delete_queue(disk, directory, name, lock_timeout, trust)


def _delete_queue(disk: Disk, directory: str, name: str | None, lock_timeout: float, trust: bool) -> None:
    missing = QueueNotFoundError(f"{directory}: no queue here to delete")
    if not find_generations(disk, directory):
        raise missing
    if not trust:
        need_trusted(disk, believed(disk, directory))
    lock = Lock(disk, join(directory, LOCK_NAME))
    try:
        lock.acquire(lock_timeout)
    except FileNotFoundError:  # somebody else deleted it meanwhile, and its directory with it
        raise missing from None
    disk = lock.disk
    try:
        places = read_places(disk, directory)
        found = find_generations(disk, directory, places)  # once more: it may have been deleted while we waited
        if found:
            _refuse_unsettled(disk, directory)
            disk.failpoint("delete.1 rename log")
            disk.rename(join(directory, LOG_DIRECTORY), join(directory, DELETED_DIRECTORY))
        finish_deletion(disk, places)
        if name is not None:
            for place in (*places.others, places.place):
                if place != OWN:
                    remove_directory(disk, place.path)
        # Whoever waits for the lock meanwhile sees that its file has lost the name, and makes a new one.
        disk.unlink(lock.path)
        if name is not None:
            remove_directory(disk, directory)
            with suppress(FileNotFoundError):  # another name of the directory, or of the one above, is not ours to sync
                sync_directory(disk, dirname(directory) or ".")
    finally:
        lock.release()
    if not found:
        raise missing


def _refuse_unsettled(disk: Disk, directory: str) -> None:
    """Raise ``InDoubtError`` where a neighbour may have to ask this queue what became of a transaction over both."""
    above = dirname(abspath(directory))
    unsettled = find_unsettled(disk, directory, filter(is_name, names_in(disk, above)))
    if unsettled is not None:
        neighbour, prepare = unsettled
        reason = "so that one is not deleted: first open the other, or trim it where it is open, and close it"
        raise InDoubtError(neighbour, prepare.transaction, abspath(directory), reason)

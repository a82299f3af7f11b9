"""Operations on the queues of a directory: list their names, and delete one queue.

The write order of a deletion is described at the top of ``layout``. Step 1 is in this module. The other steps are in
``finish_deletion``, because the next opening may have to finish them.
"""

from __future__ import annotations

from contextlib import suppress

from ..core.items import checked_lock_timeout
from ..interrupts.signal_shield import shielded
from ..storage.layout import (
    DELETED_DIRECTORY,
    believed,
    find_generations,
    finish_deletion,
    is_name,
    is_named_queue,
    names_in,
    no_queue,
    queue_directory,
    remove_directory,
)
from ..storage.locations import LOG_DIRECTORY, OWN, read_places
from ..storage.lock import LOCK_NAME, Lock, read_owner
from ..storage.log import parse_log_name
from ..storage.relocation import own_location
from ..system.disk import Disk, StrPath, abspath, current_disk, dirname, join
from ..system.files import sync_directory
from ..system.path_errors import OUT_OF_REACH, naming_paths, unless_lacking
from ..system.trust import need_trusted
from .in_doubt import refuse_unsettled


@naming_paths()
def list_queues(path: StrPath) -> list[str]:
    """Return the names of the queues under ``path``, open or not.

    Args:
        path: The directory that holds the queues.

    Returns:
        The names, sorted. A queue without a name, which lies in ``path`` itself, is not among them. Neither is a
        symbolic link to a queue, which no opening accepts, nor a directory that this process may not read.

    Raises:
        PathMissingError, PathNotADirectoryError: There is no directory at the path. A wrong path is not taken for an
            empty directory.
        UnusablePathError: The operating system refuses the path, for instance because this process may not read it.
        OSError: The directory cannot be read for another reason.

    The call only reads and takes no lock. Any number of threads and processes may call it at the same time.
    """
    disk = current_disk()
    path = abspath(path)  # an opening takes ".." behind a link as text, too
    return [name for name in sorted(disk.listdir(path)) if is_name(name) and is_named_queue(disk, join(path, name))]


@naming_paths()
def delete_queue(path: StrPath, name: str | None = None, *, lock_timeout: float = 0.0, trust: bool = False) -> None:
    """Delete a queue and all its items permanently.

    The call takes the lock of the queue, and deletes only files of the queue. A directory that holds other files
    stays, with these files.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None, the default, means the queue that lies in ``path`` itself.
        lock_timeout: Seconds to wait for the lock, at least 0. The default 0.0 means not to wait.
        trust: Whether to accept a directory that another user has prepared or may write to. Default: False.

    Raises:
        QueueNotFoundError: There is no queue at the path, or another process deleted it in the meantime.
        QueueLockedError: The queue is open, and was not closed within ``lock_timeout``.
        InvalidNameError: The name cannot be a queue's.
        TypeError: ``path`` or ``name`` is not text, or ``lock_timeout`` is no number.
        ValueError: ``lock_timeout`` is negative or not a number.
        DataMissingError: The location of the segments is not there. Most likely it is not mounted.
        DataPathError: The directory is the location of another queue's segments.
        CorruptionError: The directory has segments and no log, or ``data.path`` or ``queue.id`` is damaged.
        InDoubtError: A neighbouring queue may still have to ask this queue for the outcome of a transaction over both.
        UntrustedError: Another user has prepared the directory or may write to it, and ``trust`` is False.
        ResourceError: The operating system lacks disk space, descriptors or memory. Call it again.
        UnusablePathError: The operating system refuses the path. Call it again when it does not.
        OSError: A file cannot be read or deleted for another reason.

    On return, the deletion is durable. It includes segments in another location. After a crash or an error there is
    the whole queue, or none. The next call, or the next opening in this directory, deletes the items that are left. Any
    number of threads and processes may call it at the same time.
    """
    lock_timeout = checked_lock_timeout(lock_timeout)
    disk = current_disk()
    directory = abspath(queue_directory(path, name))
    with unless_lacking(directory, "to delete the queue", "then delete it again"):
        _delete_queue(disk, directory, name, lock_timeout, trust)


def _delete_queue(disk: Disk, directory: str, name: str | None, lock_timeout: float, trust: bool) -> None:
    is_done = _is_done(disk, directory)
    if not find_generations(disk, directory) and not _has_begun(disk, directory) and not is_done:
        raise no_queue(disk, directory, "to delete")
    if not trust:
        need_trusted(disk, believed(disk, directory))
    lock = Lock(disk, join(directory, LOCK_NAME))
    try:  # with the lock in it: an interruption may come when it is taken
        try:
            lock.acquire(lock_timeout)
        except FileNotFoundError:  # another process has deleted the queue and its directory in the meantime
            raise no_queue(disk, directory, "to delete") from None
        held = lock.disk
        places = read_places(held, directory)
        found = find_generations(held, directory, places)  # again: the queue may have been deleted during the wait
        had_begun = _has_begun(held, directory)
        if found:
            own_location(held, places, lock)
            refuse_unsettled(held, directory, "is not deleted", "delete")
            held.failpoint("delete.1 rename log")
            held.rename(join(directory, LOG_DIRECTORY), join(directory, DELETED_DIRECTORY))
        finish_deletion(held, places)
        if name is not None:
            for place in (*places.others, places.place):
                if place != OWN:
                    remove_directory(held, place.path)
        lock.free_locations()  # the next queue of this name may want the same one
        # A process that waits for the lock notices that its lock file has lost its name, and makes a new one.
        held.unlink(lock.path)
        if name is not None:
            remove_directory(held, directory)
            # The old name of a renamed directory needs no sync. In a parent that cannot be read, a power cut may bring
            # an empty directory back.
            with suppress(*OUT_OF_REACH):
                sync_directory(held, dirname(directory) or ".")
        shielded(lock.release)
    except BaseException:  # also an interruption of that step, which then does the rest
        shielded(lock.release)
        raise
    if not (found or had_begun or is_done):
        raise no_queue(disk, directory, "to delete")  # by its name: the directory is not held any more


def _has_begun(disk: Disk, directory: str) -> bool:
    """Return whether a deletion has begun here, and an error or a crash has ended it early.

    Then the directory ``deleted`` has logs, or nothing more. A directory with other files belongs to another program.
    """
    if not {DELETED_DIRECTORY, LOCK_NAME} <= {*names_in(disk, directory)}:
        return False
    return all(parse_log_name(name) is not None for name in names_in(disk, join(directory, DELETED_DIRECTORY)))


def _is_done(disk: Disk, directory: str) -> bool:
    """Return whether a deletion has been cut short here when only the lock file was left."""
    return names_in(disk, directory) == [LOCK_NAME] and read_owner(disk, join(directory, LOCK_NAME)) is not None

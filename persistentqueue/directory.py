"""Queues in a directory: which names they have, which are there, and how one is deleted.

::

    <path>/<name>/                one named queue; without a name, <path> itself
      lock                        held while owned; never deleted; says who owns it, for the error message
      log/<generation>.log        the transaction log: one generation, two only while trimming
      data/<number>.seg           the segments: append-only, never edited
      pool/log.free               the spare file that the next generation of the log will be written to
      pool/<bytes>-<random>.free  empty files that segments are made of; for a shared pool in <path>/.pool
      deleted/                    what ``log`` is renamed to when the queue is being deleted
      */*.damaged                 what could not be read, moved aside

The write order of a deletion (``delete.1`` …), which whoever comes next finishes if it is cut short:

1. Rename ``log`` to ``deleted``. 2. Sync the directory: **the commit point of a deletion**; from here on there is no
   queue. *A crash before leaves the queue as a whole, or none.*
3. Delete the segments and the spare; sync; delete the logs; sync. *A crash leaves files that ``deleted`` tells of.*
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

from .disk import (
    CREATE_NEW,
    DISK,
    READ,
    Disk,
    StrPath,
    basename,
    dirname,
    fspath,
    join,
    make_directory,
    sync_directory,
    write_all,
)
from .errors import CorruptionError, InvalidNameError, QueueNotFoundError
from .lock import LOCK_NAME, Lock
from .log import parse_log_name
from .pool import Pool, parse_pool_name
from .segment import parse_segment_name
from .spare import SPARE_NAME

LOG_DIRECTORY = "log"
DATA_DIRECTORY = "data"
POOL_DIRECTORY = "pool"
DELETED_DIRECTORY = "deleted"
SHARED_POOL = ".pool"

_DAMAGED = re.compile(r"(\.[0-9]+)?\.damaged")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", re.ASCII)
_COPY_BYTES = 1024 * 1024


def queue_directory(path: StrPath, name: str | None) -> str:
    """The directory of the queue. Raises ``InvalidNameError``, ``TypeError``."""
    path = fspath(path)
    if not isinstance(path, str):
        raise TypeError(f"path must be text, not {type(path).__name__}")
    if name is None:
        return path
    if not isinstance(name, str):
        raise TypeError(f"name must be text or None, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"{name!r} cannot be a queue's name: 1 to 64 of A-Z a-z 0-9 . _ - are allowed, not beginning with a dot"
        )
    return join(path, name)


def pool_directory(directory: str, shared: bool) -> str:
    """Where the empty files of a queue are: its own, or those of all queues beside it."""
    return join(dirname(directory.rstrip("/")) or ".", SHARED_POOL) if shared else join(directory, POOL_DIRECTORY)


def open_pool(path: StrPath, name: str | None, *, shared: bool, max_bytes: int, disk: Disk = DISK) -> Pool:
    """The pool of a queue, owned or not, or the one that the queues of ``path`` share, made if it is not there.

    Raises ``QueueNotFoundError`` and ``InvalidNameError``.
    """
    if shared and name is None:
        pool = join(fspath(path), SHARED_POOL)
    else:
        directory = queue_directory(path, name)
        if not find_generations(disk, directory):
            raise QueueNotFoundError(f"{directory}: no queue here with a pool")
        pool = pool_directory(directory, shared)
    make_directory(disk, pool)
    return Pool(disk, pool, max_bytes)


def names_in(disk: Disk, directory: str, part: str = "") -> list[str]:
    """The names in a part of a queue's directory, sorted; none if it is not there."""
    try:
        return sorted(disk.listdir(join(directory, part)))
    except (FileNotFoundError, NotADirectoryError):
        return []


def find_generations(disk: Disk, directory: str) -> list[int]:
    """The generations of the log in a queue's directory, lowest first; none if it holds no queue.

    Raises ``CorruptionError`` for a directory with segments and no log: it was a queue's.
    """
    numbers = [parse_log_name(name) for name in names_in(disk, directory, LOG_DIRECTORY)]
    found = sorted(number for number in numbers if number is not None)
    if not found and DELETED_DIRECTORY not in names_in(disk, directory):
        for name in names_in(disk, directory, DATA_DIRECTORY):
            if parse_segment_name(name) is not None:
                path = join(directory, LOG_DIRECTORY)
                raise CorruptionError(path, 0, f"a log, since there is {DATA_DIRECTORY}/{name}", "none")
    return found


def set_aside(disk: Disk, path: str) -> None:
    """Rename what could not be read to ``*.damaged``, beside what was set aside before."""
    disk.rename(path, _damaged_name(disk, path))


def keep_copy(disk: Disk, path: str) -> str | None:
    """Copy a file that is to be repaired to ``*.damaged``, durably; the copy's path, None where there is no file."""
    try:
        source = disk.open(path, READ, 0)
    except FileNotFoundError:
        return None
    copy = _damaged_name(disk, path)
    try:
        target = disk.open(copy, CREATE_NEW, 0o600)
        try:
            offset = 0
            while data := disk.pread(source, _COPY_BYTES, offset):
                write_all(disk, target, [data], len(data), offset)
                offset += len(data)
            disk.fdatasync(target)
        finally:
            disk.close(target)
    finally:
        disk.close(source)
    sync_directory(disk, dirname(path))
    return copy


def _damaged_name(disk: Disk, path: str) -> str:
    taken = names_in(disk, dirname(path))
    damaged, number = f"{path}.damaged", 1
    while basename(damaged) in taken:
        number += 1
        damaged = f"{path}.{number}.damaged"
    return damaged


def list_queues(path: StrPath, *, disk: Disk = DISK) -> list[str]:
    """The names of the queues under ``path``, sorted, whether open or not. Reads only."""
    path = fspath(path)
    return [
        name
        for name in names_in(disk, path)
        if _NAME.fullmatch(name)
        and any(parse_log_name(entry) is not None for entry in names_in(disk, join(path, name), LOG_DIRECTORY))
    ]


def delete_queue(path: StrPath, name: str | None = None, *, lock_timeout: float = 0.0, disk: Disk = DISK) -> None:
    """Delete a queue and all its items, for good; only its own files, and only under its lock.

    On return the queue is gone durably. Directories that hold anything else stay, with that. Raises
    ``QueueNotFoundError``, ``QueueLockedError``, ``InvalidNameError``.
    """
    directory = queue_directory(path, name)
    missing = QueueNotFoundError(f"{directory}: no queue here to delete")
    if not find_generations(disk, directory):
        raise missing
    lock = Lock(disk, join(directory, LOCK_NAME))
    try:
        lock.acquire(lock_timeout)
    except FileNotFoundError:  # somebody else deleted it meanwhile, and its directory with it
        raise missing from None
    try:
        found = find_generations(disk, directory)  # once more: it may have been deleted while we waited
        if found:
            disk.failpoint("delete.1 rename log")
            disk.rename(join(directory, LOG_DIRECTORY), join(directory, DELETED_DIRECTORY))
        finish_deletion(disk, directory)
        # Whoever waits for the lock meanwhile sees that its file has lost the name, and makes a new one.
        disk.unlink(lock.path)
        if name is not None:
            _remove_directory(disk, directory)
            sync_directory(disk, dirname(directory) or ".")
    finally:
        lock.release()
    if not found:
        raise missing


def finish_deletion(disk: Disk, directory: str) -> None:
    """Remove the files of a queue that was being deleted, if there is one; the lock is held.

    Where there is a log, there is a queue, and a directory of that name is somebody else's.
    """
    if DELETED_DIRECTORY not in names_in(disk, directory) or find_generations(disk, directory):
        return
    disk.failpoint("delete.2 sync name")
    # Also the name that an owner gave it who was killed: it could vanish after the segments, and the log come back.
    sync_directory(disk, directory)
    disk.failpoint("delete.3 sweep")
    _sweep(disk, join(directory, DATA_DIRECTORY), parse_segment_name)
    _sweep(disk, join(directory, POOL_DIRECTORY), parse_spare_name)
    # The log goes last, when they are gone durably: while it is there, whoever opens knows what these files are.
    sync_directory(disk, directory)
    _sweep(disk, join(directory, DELETED_DIRECTORY), parse_log_name)
    if DELETED_DIRECTORY in names_in(disk, directory):
        with suppress(OSError):
            disk.rename(join(directory, DELETED_DIRECTORY), join(directory, LOG_DIRECTORY))
    sync_directory(disk, directory)


def parse_spare_name(name: str) -> str | None:
    """The name, if it is one of a file in the pool's directory; None for any other."""
    return name if name == SPARE_NAME or parse_pool_name(name) is not None else None


def _sweep(disk: Disk, path: str, parse: Callable[[str], object]) -> None:
    """Delete the queue's files in a part of it, and the part, unless it holds what is not ours; then durably."""
    for entry in names_in(disk, path):
        if parse(_DAMAGED.sub("", entry)) is not None:
            disk.unlink(join(path, entry))
    if not _remove_directory(disk, path):
        sync_directory(disk, path)


def _remove_directory(disk: Disk, path: str) -> bool:
    """Remove the directory; False if it holds something."""
    try:
        disk.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True

"""Consuming a subscription without owning the queue: what a process asks whoever does, or will, and what it may know.

A request is published like anything else (see ``publication``), and is durable then; the owner answers it when he next
looks into the inbox, or opens the queue. Nobody waits for his lock.
"""

from __future__ import annotations

from contextlib import suppress

from .directory import queue_directory
from .disk import DISK, READ, Disk, StrPath
from .errors import BrokenQueueError, CorruptionError, QueueNotFoundError
from .place import Places, read_places
from .producer import find_inbox
from .publication import Draft, Request
from .recovery import Recovered, recover

_LOOKS = 100


def request_subscription(path: StrPath, name: str | None, subscription: str, first: int, *, disk: Disk = DISK) -> None:
    """Have a subscription made, if it is not there, which begins with the sequence ``first``, or ``LATEST``.

    Durable on return, but perhaps not answered. Raises ``QueueNotFoundError``, ``DataMissingError``, ``OSError``, and
    ``BrokenQueueError``: whether it is durable is unknown; it may be asked for again.
    """
    _ask(path, name, Request(subscription, first), disk)


def acknowledge(path: StrPath, name: str | None, subscription: str, end: int, *, disk: Disk = DISK) -> None:
    """Tell that the subscription has consumed everything below the sequence ``end``, but what sessions hold.

    Nothing is done where there is no such subscription, or it was further. The sequence must be one that ``look`` gave,
    which does so for queues that sync. Raises like ``request_subscription``.
    """
    if end > 0:
        _ask(path, name, Request(subscription, 0, end), disk)


def look(path: StrPath, name: str | None, *, durably: bool = False, disk: Disk = DISK) -> tuple[Places, Recovered]:
    """What the log says, without the lock, and where the files are. Changes nothing.

    It is what the owner has committed, or is about to. With ``durably`` it was also made durable, so that no sequence
    comes again for another item, whatever crashes: for who writes down how far he has read. A queue that does not sync
    promises nothing like that.

    Raises ``QueueNotFoundError``, ``DataMissingError``, ``CorruptionError``, ``OSError``, and, ``durably``,
    ``ValueError`` for a queue with ``sync=False``.
    """
    directory, looks = queue_directory(path, name), 0
    while True:
        looks += 1
        places = read_places(disk, directory)
        try:
            recovered = recover(disk, places)
        except (CorruptionError, FileNotFoundError):  # it was trimmed meanwhile
            if looks == _LOOKS:
                raise
            continue
        if recovered is None:
            raise QueueNotFoundError(f"{directory}: no queue here")
        if durably:
            if not recovered.replay.synced:
                raise ValueError(f"{directory}: without syncs a power cut gives sequences out again: use sync=True")
            with suppress(FileNotFoundError):  # trimmed meanwhile, which made it durable
                _sync(disk, recovered.replay.file)
        return places, recovered


def _sync(disk: Disk, path: str) -> None:
    """Make durable what was read of a file: an owner who was killed may have left it in the page cache."""
    fd = disk.open(path, READ, 0)
    try:
        disk.fdatasync(fd)
    finally:
        disk.close(fd)


def _ask(path: StrPath, name: str | None, request: Request, disk: Disk) -> None:
    inbox = find_inbox(disk, queue_directory(path, name))
    time_ns = disk.time_ns()
    draft = Draft(disk, inbox, disk.urandom(8).hex(), time_ns)
    try:
        draft.ask(request, time_ns)
    except OSError as error:
        if draft.is_published:
            raise BrokenQueueError(
                f"{inbox}: a sync failed ({error}): whether the request is durable is unknown"
            ) from error
        raise
    finally:
        with suppress(OSError):
            draft.drop()

"""Consuming a subscription without owning the queue: what a process asks whoever does, or will.

A request is published like anything else (see ``publication``), and is durable then; the owner answers it when he next
looks into the inbox, or opens the queue. Nobody waits for his lock.
"""

from __future__ import annotations

from contextlib import suppress

from .directory import queue_directory
from .disk import DISK, Disk, StrPath
from .errors import BrokenQueueError
from .producer import find_inbox
from .publication import Draft, Request


def request_subscription(path: StrPath, name: str | None, subscription: str, first: int, *, disk: Disk = DISK) -> None:
    """Have a subscription made, if it is not there, which begins with the sequence ``first``, or ``LATEST``.

    Durable on return, but perhaps not answered. Raises ``QueueNotFoundError``, ``DataMissingError``, ``OSError``, and
    ``BrokenQueueError``: whether it is durable is unknown; it may be asked for again.
    """
    _ask(path, name, Request(subscription, first), disk)


def acknowledge(path: StrPath, name: str | None, subscription: str, end: int, *, disk: Disk = DISK) -> None:
    """Tell that the subscription has consumed everything below the sequence ``end``, but what sessions hold.

    Nothing is done where there is no such subscription, or it was further. The sequence must be one that was looked for
    ``durably`` (see ``splits``). Raises like ``request_subscription``.
    """
    if end > 0:
        _ask(path, name, Request(subscription, 0, end), disk)


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

"""Consuming a subscription without owning the queue: what a process asks whoever does, or will.

A request is published like anything else (see ``publication``), and is durable then; the owner answers it when he next
looks into the inbox, or opens the queue. Nobody waits for his lock.
"""

from __future__ import annotations

from ..core.items import checked_name
from ..storage.layout import queue_directory
from ..storage.publication import LATEST, Draft, Request
from ..system.disk import DISK, Disk, StrPath
from .producer import explained, find_inbox


def request_subscription(path: StrPath, name: str | None, subscription: str, first: int, *, disk: Disk = DISK) -> None:
    """Have a subscription made, if it is not there, which begins with the sequence ``first``, or ``LATEST``.

    Durable on return, but perhaps not answered. Raises ``QueueNotFoundError``, ``DataMissingError``, ``ResourceError``,
    ``DataPathError`` (the segments are being moved), ``OSError``, ``TypeError`` and ``ValueError`` for what is no name
    or no sequence, and ``BrokenQueueError``: whether it is durable is unknown; it may be asked for again.
    """
    _ask(path, name, Request(checked_name(subscription), _checked_sequence(first)), disk)


def acknowledge(path: StrPath, name: str | None, subscription: str, end: int, *, disk: Disk = DISK) -> None:
    """Tell that the subscription has consumed everything below the sequence ``end``, but what sessions hold.

    Nothing is done where there is no such subscription, or it was further. The sequence must be one that was looked for
    ``durably`` (see ``splits``). Raises like ``request_subscription``.
    """
    request = Request(checked_name(subscription), 0, _checked_sequence(end))
    if end:
        _ask(path, name, request, disk)


def _checked_sequence(sequence: int) -> int:
    if not isinstance(sequence, int):
        raise TypeError(f"a sequence must be an int, not {sequence!r}")
    if not 0 <= sequence <= LATEST:
        raise ValueError(f"a sequence is from 0 to 2**64 - 1, not {sequence}")
    return sequence


def _ask(path: StrPath, name: str | None, request: Request, disk: Disk) -> None:
    directory = queue_directory(path, name)
    inbox, time_ns = find_inbox(disk, directory), disk.time_ns()
    draft: Draft | None = None
    try:
        draft = Draft(disk, inbox, disk.urandom(8).hex(), time_ns)
        draft.ask(request, time_ns)
    except OSError as error:
        raise explained(error, directory, inbox, draft, "the request", "ask once more") from error
    finally:
        if draft is not None:
            draft.drop()  # nothing that is published

"""Requests of a process that consumes a subscription without owning the queue.

A request is published like a transaction (see ``publication``), and is durable then. The owner answers it when it next
looks into the inbox, or when it opens the queue. No process waits for the lock.
"""

from __future__ import annotations

from ..core.items import checked_name
from ..storage.publication import LATEST, Draft, Request
from ..system.disk import StrPath
from ..system.path_errors import faults
from .producer import explained, located


def request_subscription(path: StrPath, name: str | None, subscription: str, first: int) -> None:
    """Request a subscription that begins with the sequence ``first``.

    An existing subscription of this name is left unchanged.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None means the queue that lies in ``path`` itself.
        subscription: The name of the subscription, of 1 to 65,535 bytes in UTF-8.
        first: The first sequence that a new subscription gets, from 0 to 2**64 - 1. ``LATEST`` means the items that
            are enqueued after the owner has answered.

    Raises:
        QueueNotFoundError: There is no queue at the path.
        InvalidNameError: The name cannot be a queue's.
        DataMissingError: The location of the segments is not there.
        DataPathError: The segments are being moved. Nothing was published.
        InboxAccessError: This process may not publish for this queue.
        CorruptionError: The queue's files that name its locations are damaged.
        ResourceError: The operating system lacks disk space, descriptors or memory. Nothing was published.
        BrokenQueueError: A sync failed. Whether the request is durable is unknown. It may be repeated.
        TypeError: ``path``, ``name`` or ``subscription`` is not text, or ``first`` is not an int.
        ValueError: ``subscription`` is not a valid name, or ``first`` is out of range.
        OSError: The request cannot be written for another reason.

    On return, the request is durable. The owner may not have answered it yet. Any number of threads and processes may
    call it at the same time.
    """
    _ask(path, name, Request(checked_name(subscription), _checked_sequence(first)))


def acknowledge(path: StrPath, name: str | None, subscription: str, end: int) -> None:
    """Tell the owner that the subscription has consumed everything below the sequence ``end``.

    Items that a session holds are excepted. The request does nothing if there is no such subscription, or if the
    subscription has consumed more already.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None means the queue that lies in ``path`` itself.
        subscription: The name of the subscription, of 1 to 65,535 bytes in UTF-8.
        end: The first sequence that is not consumed, from 0 to 2**64 - 1. The caller must have read it with ``look(…,
            durably=True)``. For 0 nothing is published.

    Raises:
        TypeError: ``path``, ``name`` or ``subscription`` is not text, or ``end`` is not an int.
        ValueError: ``subscription`` is not a valid name, or ``end`` is out of range.
        PersistentQueueError, OSError: On the conditions that ``request_subscription`` names.

    On return, the request is durable. The owner may not have answered it yet. Any number of threads and processes may
    call it at the same time.
    """
    request = Request(checked_name(subscription), 0, _checked_sequence(end))
    if end:
        _ask(path, name, request)


def _checked_sequence(sequence: int) -> int:
    if not isinstance(sequence, int):
        raise TypeError(f"a sequence must be an int, not {sequence!r}")
    if not 0 <= sequence <= LATEST:
        raise ValueError(f"a sequence must be from 0 to 2**64 - 1, not {sequence}")
    return sequence


def _ask(path: StrPath, name: str | None, request: Request) -> None:
    disk, directory, inbox = located(path, name)
    time_ns = disk.time_ns()
    draft: Draft | None = None
    try:
        draft = Draft(disk, inbox, disk.urandom(8).hex(), time_ns)
        draft.ask(request, time_ns)
    except faults(OSError) as error:
        raise explained(error, directory, inbox, draft, "the request", "ask once more") from error
    finally:
        if draft is not None:
            draft.drop()  # deletes nothing that is published

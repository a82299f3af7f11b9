"""Enqueueing without owning the queue: a producer in any process, beside the owner and other producers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from types import TracebackType

from .block import ITEM_BYTES_MAX
from .directory import find_generations, names_in, queue_directory
from .disk import DISK, NO_SPACE, Disk, StrPath, join
from .errors import (
    BrokenQueueError,
    ClosedError,
    CorruptionError,
    DataPathError,
    DiskFullError,
    QueueNotFoundError,
)
from .items import Buffer, as_bytes, checked_marker, chunks, too_large
from .pages import ITEM_OVERHEAD_BYTES
from .place import INBOX_DIRECTORY, read_places
from .publication import Draft, is_published, read_publication
from .recovery import recover
from .store import Store
from .transaction import Settings

SPILL_BYTES = 4 * 1024 * 1024
"""What a producer keeps in memory before it writes blocks ahead of its flush."""
_CREATION_SECONDS = 10.0
_LOOKS = 10


class Producer:
    """Puts items into a queue that another process owns, or nobody for now, without its lock.

    ``path`` and ``name`` are those of ``PersistentQueue``. Any number of producers, in any processes of this machine,
    work beside the owner and each other. Each flush is one atomic transaction in a file of its own, which the owner
    makes a part of the queue, without copying it: when he opens it, at his next flush, when he finds nothing else to
    dequeue, and at once while he waits. The flushes of one producer come in their order.

    What is enqueued is invisible until ``flush``; leaving the ``with`` block without one drops it. What is published
    counts for the limits of the queue only once it is adopted; where they leave no room it waits.

    A producer is for one thread at a time, and not for a forked child. With ``create`` a queue that is not there is
    made. Raises ``QueueNotFoundError``, ``InvalidNameError``, ``DataMissingError``, ``QueueLockedError`` (somebody has
    begun to make it, ten seconds ago), ``DiskFullError`` and ``OSError``.
    """

    __slots__ = (
        "__weakref__",
        "_directory",
        "_disk",
        "_draft",
        "_id",
        "_inbox",
        "_items",
        "_payload_bytes",
        "_pid",
        "_spilled",
        "_time_ns",
    )

    def __init__(self, path: StrPath, name: str | None = None, *, create: bool = True, disk: Disk = DISK) -> None:
        self._draft: Draft | None = None
        self._items: list[bytes] = []
        self._payload_bytes = 0
        self._spilled = 0
        self._time_ns = 0
        self._disk = disk
        self._pid: int | None = disk.getpid()
        self._id = disk.urandom(8).hex()
        self._directory = queue_directory(path, name)
        if create and not find_generations(disk, self._directory):
            free = nullcontext()
            Store.open(disk, self._directory, Settings(), True, _CREATION_SECONDS, free, free).close()
        self._inbox = self._find_inbox()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pid", None) == self._disk.getpid() and (self._items or self._spilled):
            message = "a producer was dropped with items that were not flushed"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            self.close()

    @property
    def closed(self) -> bool:
        """Whether the producer was closed."""
        return self._pid is None

    @property
    def pending(self) -> int:
        """How many items wait for the next flush."""
        return self._spilled + len(self._items)

    def enqueue(self, item: Buffer) -> None:
        """Buffer an item, any bytes-like object of up to 4 GiB - 1 bytes; its content is taken now.

        Nothing is durable before ``flush``. Raises ``TypeError``, ``ItemTooLargeError``, ``ClosedError``, and
        ``DiskFullError`` or ``OSError`` where the producer outgrew the memory and could not write ahead; the item is
        then not taken.
        """
        self._check()
        data = item if type(item) is bytes else as_bytes(item)
        if len(data) > ITEM_BYTES_MAX:
            raise too_large(len(data))
        if self._items and self._payload_bytes + len(data) + ITEM_OVERHEAD_BYTES * len(self._items) > SPILL_BYTES:
            self._spill()
        self._items.append(data)
        self._payload_bytes += len(data)

    def enqueue_many(self, items: Iterable[Buffer]) -> None:
        """Buffer items, in order: ``enqueue`` for each of them. What came before one that raised stays buffered, but
        of a list or a tuple that holds what is no item nothing is."""
        for chunk in chunks(items):
            data = [item if type(item) is bytes else as_bytes(item) for item in chunk]
            for item in data:
                self.enqueue(item)

    def flush(self, marker: tuple[str, int] | None = None) -> bool:
        """Publish everything since the last flush as one atomic transaction: durable on return.

        With ``marker=(name, version)`` the owner records that ``name`` has reached ``version`` when he adopts it, and
        drops it if ``name`` had before: work that is repeated is done once, whoever repeats it. The answer is False,
        and nothing is published, if that is known here already, from the log or from what else is published.

        Raises ``DiskFullError``: nothing is published, the producer keeps its items, flush again after making room.
        Raises ``DataPathError``: so much was enqueued that it was written ahead, and the queue's segments were moved
        meanwhile; and ``OSError``: nothing is published, and the items are dropped. Raises ``BrokenQueueError``:
        whether it is durable is unknown. Raises ``QueueNotFoundError``: the queue was deleted.
        """
        self._check()
        if marker is not None:
            marker = checked_marker(marker)
            if self._is_reached(*marker):
                self.rollback()
                return False
        elif not self.pending:
            return True
        self._spill(marker, publishes=True)
        return True

    def rollback(self) -> None:
        """Drop what was enqueued since the last flush. The producer can be used on."""
        self._items, self._payload_bytes, self._spilled = [], 0, 0
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.drop()

    def close(self) -> None:
        """Drop what was not flushed, and end the producer. Closing again does nothing."""
        if self._pid == self._disk.getpid():
            self.rollback()
        self._pid = None

    def _check(self) -> None:
        if self._pid is None:
            raise ClosedError("the producer is closed: make another one")
        if self._pid != self._disk.getpid():
            raise ClosedError("the producer belongs to the parent of this process: make another one here")

    def _find_inbox(self) -> str:
        if not find_generations(self._disk, self._directory):
            raise QueueNotFoundError(f"{self._directory}: no queue here to produce for")
        return read_places(self._disk, self._directory).path(INBOX_DIRECTORY)

    def _spill(self, marker: tuple[str, int] | None = None, publishes: bool = False) -> None:
        """Write what is in memory to the draft, and perhaps publish it. Raises like ``flush``."""
        try:
            if self._draft is None:
                self._draft = self._begin()
            if self._items:
                self._draft.write(self._items, self._payload_bytes, self._disk.time_ns())
                self._spilled += len(self._items)
                self._items, self._payload_bytes = [], 0
            if publishes:
                self._draft.publish(marker, self._next_time_ns())
                self._draft, self._spilled = None, 0
        except OSError as error:
            draft = self._draft
            is_published = draft is not None and draft.is_published
            if error.errno in NO_SPACE and not is_published:
                raise DiskFullError(self._inbox, error.errno, "no room to publish") from error
            self.rollback()
            if is_published:
                raise BrokenQueueError(
                    f"{self._inbox}: a sync failed ({error}): whether this flush is durable is unknown"
                ) from error
            if isinstance(error, FileNotFoundError):
                inbox, self._inbox = self._inbox, self._find_inbox()
                raise DataPathError(
                    self._directory, f"an inbox at {inbox}", "none: its segments are being moved", "enqueue once more"
                ) from error
            raise

    def _begin(self) -> Draft:
        try:
            return Draft(self._disk, self._inbox, self._id, self._next_time_ns())
        except FileNotFoundError:
            self._inbox = self._find_inbox()  # the segments were moved, or the queue deleted
            return Draft(self._disk, self._inbox, self._id, self._next_time_ns())

    def _next_time_ns(self) -> int:
        """One above the last, also where the clock was set back: it makes the order."""
        self._time_ns = max(self._disk.time_ns(), self._time_ns + 1)
        return self._time_ns

    def _is_reached(self, name: str, version: int) -> bool:
        for published in names_in(self._disk, self._inbox):
            if is_published(published):
                with suppress(CorruptionError, FileNotFoundError):  # adopted meanwhile: the log tells
                    marker = read_publication(self._disk, join(self._inbox, published)).marker
                    if marker is not None and marker[0] == name and marker[1] >= version:
                        return True
        places = read_places(self._disk, self._directory)
        for _ in range(_LOOKS):
            with suppress(CorruptionError, FileNotFoundError):  # trimmed meanwhile
                recovered = recover(self._disk, places)
                return recovered is not None and recovered.state.markers.get(name, -1) >= version
        return False

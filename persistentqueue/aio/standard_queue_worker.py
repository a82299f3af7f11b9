"""The work of the thread of ``aio.Queue``: save what was put, consume what is done, and take what comes next.

All puts are one transaction. The puts and the consumed items share one sync. ``standard_queue`` starts the work, and
gets the result.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from persistentqueue import CodecError, PersistentQueue, PersistentQueueError, Session, codecs

from .futures import Landing


class Entry:
    """An item of ``aio.Queue``: at hand, got, or not yet saved."""

    __slots__ = ("data", "error", "hold", "is_at_hand", "is_done", "is_got", "item", "saved")

    def __init__(self, data: bytes, codec: codecs.Codec[Any], hold: Session[bytes] | None = None) -> None:
        self.data = data
        self.hold = hold
        """Session that holds the item; None until it is saved, and for a damaged block."""
        self.error: Exception | None = None
        """Exception that ``get`` raises instead of returning the item."""
        self.item: Any = None
        self.is_at_hand = True
        self.is_got = self.is_done = False
        self.saved: Landing[None] | None = None
        """Future that the ``put`` of this item awaits, if any."""
        try:
            self.item = codec.decode(data)
        except Exception as error:
            refused = hold._undecodable(codec, data, error) if hold is not None else None
            self.error = refused or CodecError("decode", codec, data, error)
            self.error.__cause__ = error

    def __repr__(self) -> str:
        return repr(self.item if self.error is None else self.error)


class Work(NamedTuple):
    """A piece of work for the thread."""

    entries: list[Entry]
    """Items to save."""
    done: list[Session[bytes]]
    """Sessions that hold items that are done."""
    most_items: int
    """Upper bound for the number of items to take."""
    most_bytes: int
    """Bytes of items after which it takes no more."""


class Found(NamedTuple):
    """The result of a piece of work."""

    save_error: Exception | None
    undone: list[Session[bytes]]
    """Sessions of ``Work.done`` that could not be flushed."""
    done_error: Exception | None
    """Why they could not be flushed."""
    taken: list[tuple[bytes, Session[bytes]]]
    take_error: Exception | None
    ready: int
    """Number of items that are still ready in the persistent queue."""


def opened(opening: Callable[[], PersistentQueue[bytes]]) -> PersistentQueue[bytes]:
    """Open the queue. If it has no plain consumer, close it and raise ``SubscriptionNotFoundError``."""
    core = opening()
    try:
        len(core)
    except PersistentQueueError:
        core.close()
        raise
    return core


def work_on(core: PersistentQueue[bytes], work: Work) -> Found:
    """Save, consume and take. Runs in the thread."""
    save_error: Exception | None = None
    done_error: Exception | None = None
    undone: list[Session[bytes]] = []
    taken: list[tuple[bytes, Session[bytes]]] = []
    take_error: Exception | None = None
    ready = 0
    try:
        with core.session("aio.Queue") as putting:
            putting.enqueue_many([entry.data for entry in work.entries])
            *consumed, saved = core.flush_all([*work.done, putting])  # in this order: consumed items make room
            putting.rollback()  # a later piece of work saves refused items again
        if isinstance(saved, Exception):
            save_error = saved
        for hold, each in zip(work.done, consumed, strict=True):
            if isinstance(each, Exception):
                undone.append(hold)
                done_error = each
    except Exception as error:
        save_error = done_error = error
        undone = work.done
    size_bytes = 0
    try:
        while len(taken) < work.most_items and size_bytes < work.most_bytes:
            hold = core.session("aio.Queue")
            data = hold.dequeue()
            if data is None:
                break
            taken.append((data, hold))
            size_bytes += len(data)
        ready = len(core)
    except Exception as error:
        take_error = error
        with suppress(Exception):
            ready = len(core)
    return Found(save_error, undone, done_error, taken, take_error, ready)

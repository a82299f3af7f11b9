"""What the thread of ``aio.Queue`` does: it saves what was put, consumes what is done, and takes what comes next.

All puts are one transaction, and all of it has one sync. ``face`` has it done, and hears what came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from persistentqueue import CodecError, PersistentQueue, PersistentQueueError, Session, codecs

from .futures import Landing


class Entry:
    """An item at hand, or got, or about to be saved."""

    __slots__ = ("data", "error", "hold", "is_at_hand", "is_done", "is_got", "item", "saved")

    def __init__(self, data: bytes, codec: codecs.Codec[Any], hold: Session[bytes] | None = None) -> None:
        self.data = data
        self.hold = hold
        """The session that has it on hold; None while it is being saved, and for what is damaged."""
        self.error: Exception | None = None
        """What whoever gets it hears instead."""
        self.item: Any = None
        self.is_at_hand = True
        self.is_got = self.is_done = False
        self.saved: Landing[None] | None = None
        """What somebody awaits who has put it."""
        try:
            self.item = codec.decode(data)
        except Exception as error:
            refused = hold.undecodable(codec, data, error) if hold is not None else None
            self.error = refused or CodecError("decode", codec, data, error)
            self.error.__cause__ = error

    def __repr__(self) -> str:
        return repr(self.item if self.error is None else self.error)


class Work(NamedTuple):
    """What the thread is to do."""

    entries: list[Entry]
    """What was put."""
    done: list[Session[bytes]]
    """Which have on hold what is done."""
    most_items: int
    """How many items it may take."""
    most_bytes: int
    """With so many bytes it takes no more of them."""


class Found(NamedTuple):
    """What came of it."""

    save_error: Exception | None
    undone: list[Session[bytes]]
    """What could not be consumed."""
    done_error: Exception | None
    """Why."""
    taken: list[tuple[bytes, Session[bytes]]]
    take_error: Exception | None
    ready: int
    """How many items are left in the core, not on hold."""


def opened(opening: Callable[[], PersistentQueue[bytes]]) -> PersistentQueue[bytes]:
    """It, where it has items of its own. Raises ``SubscriptionNotFoundError``, too."""
    core = opening()
    try:
        len(core)
    except PersistentQueueError:
        core.close()
        raise
    return core


def work_on(core: PersistentQueue[bytes], work: Work) -> Found:
    """In the thread: save, consume, take."""
    save_error: Exception | None = None
    done_error: Exception | None = None
    undone: list[Session[bytes]] = []
    taken: list[tuple[bytes, Session[bytes]]] = []
    take_error: Exception | None = None
    ready = 0
    try:
        with core.session("aio.Queue") as putting:
            putting.enqueue_many([entry.data for entry in work.entries])
            *consumed, saved = core.flush_all([*work.done, putting])  # in this order: what is consumed makes room
            putting.rollback()  # what could not be saved is put once more
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

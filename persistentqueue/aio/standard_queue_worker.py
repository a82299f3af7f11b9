"""The work of the thread of ``aio.Queue``: save what was put, consume what is done, and take what comes next.

All puts are one transaction. The puts and the consumed items share one sync. If the puts do not fit together, they are
saved in parts, as far as there is room. ``standard_queue`` starts the work, and gets the result.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from persistentqueue import (
    CodecError,
    MissingExtraError,
    PersistentQueue,
    QueueFullError,
    Session,
    WrongKeyError,
    codecs,
)

from ..faces.lifecycle import oldest
from ..faces.refusals import Consumer, consumer_of
from .futures import Landing

UNOPENED = (MissingExtraError, WrongKeyError)
"""Errors of a codec that lacks a package or a key. The item is not a bad one."""


class Entry:
    """An item of ``aio.Queue``: at hand, got, or not yet saved.

    Raises ``MissingExtraError`` and ``WrongKeyError``. It keeps any other error of the codec.
    """

    __slots__ = ("data", "error", "hold", "is_at_hand", "is_done", "is_got", "is_leaving", "item", "own", "saved")

    def __init__(self, data: bytes, codec: codecs.Codec[Any], hold: Session[bytes] | None = None) -> None:
        self.data = data
        self.hold = hold
        """Session that holds the item; None until it is saved, and for a damaged block."""
        self.error: Exception | None = None
        """Exception that ``get`` raises instead of returning the item."""
        self.item: Any = None
        self.is_at_hand = True
        self.is_got = self.is_done = False
        self.is_leaving = False
        """Whether the thread is about to reject the item. If it cannot, the item is got and not done, as before."""
        self.own: OrderedDict[Entry, None] | None = None
        """Entries that the task has which got this one; see ``Got``."""
        self.saved: Landing[None] | None = None
        """Future that the ``put`` of this item awaits, if any."""
        try:
            self.item = codec.decode(data)
        except UNOPENED:
            raise
        except Exception as error:
            refused = hold._undecodable(codec, data, error) if hold is not None else None
            self.error = refused or CodecError("decode", codec, data, error, advice=codecs.advice_on_hold(error))
            self.error.__cause__ = error

    def __repr__(self) -> str:
        return repr(self.item if self.error is None else self.error)

    @property
    def problem(self) -> str:
        """Text of the error without its advice; empty if there is none."""
        return self.error.problem if isinstance(self.error, CodecError) else str(self.error or "")

    def is_meant(self, item: object) -> bool:
        """Return whether it has been got, and this is an equal item, or its error."""
        if self.hold is None or self.is_leaving:
            return False
        return bool(self.item == item if self.error is None else self.error is item)


class Got:
    """The entries that were got and are not done, oldest first, and the task that has got each of them.

    For the tasks of one event loop. Outside a task, an entry belongs to no task.
    """

    def __init__(self) -> None:
        self._all: OrderedDict[Entry, None] = OrderedDict()
        self._of_task: WeakKeyDictionary[asyncio.Task[Any], OrderedDict[Entry, None]] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._all)

    def meant(self, item: object) -> Entry | None:
        """Return the oldest entry with this object, else the oldest one with an equal item; None if there is none."""
        equal = None
        for entry in self._all:
            if entry.is_meant(item):
                if entry.item is item:
                    return entry
                equal = equal or entry
        return equal

    def add(self, entry: Entry) -> None:
        """Add an entry that the running task has got."""
        self._all[entry] = None
        if (task := _running_task()) is not None:
            entry.own = self._of_task.setdefault(task, OrderedDict())
            entry.own[entry] = None

    def make_first(self, entry: Entry) -> None:
        """Make an entry the oldest one."""
        for entries in (self._all, entry.own):
            if entries is not None:
                entries.move_to_end(entry, last=False)

    def first(self) -> Entry:
        """Return the oldest entry of the running task, or else of all. Raises ``ValueError`` if there is none."""
        task = _running_task()
        own = self._of_task.get(task, ()) if task is not None else ()
        return oldest(entry for entries in (own, self._all) for entry in entries if not entry.is_leaving)

    def remove(self, entry: Entry) -> None:
        """Remove an entry: it is done, or rejected."""
        del self._all[entry]
        if entry.own is not None:
            del entry.own[entry]


def _running_task() -> asyncio.Task[Any] | None:
    """Return the task that runs; None outside a task, with or without an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class Errand(NamedTuple):
    """A call for the thread that a task awaits: a rejection, or a requeue."""

    call: Callable[[], int]
    landing: Landing[int]
    entry: Entry | None = None
    """Item that the call rejects."""


class Taken(NamedTuple):
    """An item that was taken, and the session that holds it."""

    data: bytes
    hold: Session[bytes]
    entry: Entry | None
    """None for the next item that this object has put: its entry is known."""


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
    errands: list[Errand]
    codec: codecs.Codec[Any]
    expected: Sequence[bytes]
    """Items that this object has put and that are at hand, in the order in which they are taken."""


class Found(NamedTuple):
    """The result of a piece of work."""

    save_errors: Sequence[Exception | None]
    """For each of ``Work.entries``, why it could not be saved; None if it is saved."""
    undone: list[Session[bytes]]
    """Sessions of ``Work.done`` that could not be flushed."""
    done_error: Exception | None
    """Why they could not be flushed."""
    taken: list[Taken]
    take_error: BaseException | None
    ready: int
    """Number of items that are still in the persistent queue, and not on hold."""
    ran: list[int | BaseException]
    """Results of the errands."""


class Opened(NamedTuple):
    """An open queue, and the consumer that it is read for."""

    core: PersistentQueue[bytes]
    consumer: Consumer
    is_only_consumer: Callable[[], bool]
    """Returns whether the queue has no other consumer; it waits for no lock."""


def opened(opening: Callable[[], PersistentQueue[bytes]], subscription: str | None) -> Opened:
    """Open the queue and its subscription. If it has no such consumer, close it and raise the error."""
    core = opening()
    try:
        consumer = consumer_of(core, subscription)
        consumer.stored()
        return Opened(core, consumer, consumer.source.session()._is_only_consumer)
    except BaseException:
        core.close()
        raise


def reject(hold: Session[bytes], data: bytes, reason: str, retry: bool, delay_seconds: float | None) -> int:
    """Reject the item that the session holds, durably. Runs in the thread."""
    hold.reject(data, reason, retry=retry, delay_seconds=delay_seconds)
    hold.flush()
    return 1


def _run(errand: Errand) -> int | BaseException:
    try:
        return errand.call()
    except BaseException as error:  # of ``retry_delay_seconds`` or a codec: it is for the task that waits
        return error


def _entry_of(data: bytes, codec: codecs.Codec[Any], hold: Session[bytes]) -> Entry:
    """Return the entry of an item that the session holds. If the codec cannot open it for now, release it, and raise
    the error of the codec. A ``SystemExit``, for example, is also for the task that gets the item."""
    try:
        return Entry(data, codec, hold)
    except UNOPENED:
        hold._return_unopened(1)
        raise
    except BaseException:
        hold.rollback()
        raise


def _save_in_parts(
    core: PersistentQueue[bytes], putting: Session[bytes], entries: Sequence[Entry]
) -> Sequence[Exception | None]:
    """Save, in order, the entries that fit, of those that do not fit together. Return the error of each one, or None.

    Nothing is saved behind an entry that no ``put`` awaits and that does not fit: it is saved later, in its order.
    """
    errors: list[Exception | None] = [None] * len(entries)
    middle = len(entries) // 2
    parts = deque([(0, middle), (middle, len(entries))])
    while parts:
        start, stop = parts.popleft()
        putting.enqueue_many([entry.data for entry in entries[start:stop]])
        saved = core.flush_all([putting])[0]
        putting.rollback()
        if not isinstance(saved, Exception):
            continue
        if isinstance(saved, QueueFullError) and stop - start > 1:
            middle = (start + stop) // 2
            parts.extendleft([(middle, stop), (start, middle)])
            continue
        errors[start:stop] = [saved] * (stop - start)
        is_about_one = isinstance(saved, QueueFullError) and saved.limit != "max_items"
        if not is_about_one or any(entry.saved is None for entry in entries[start:stop]):
            errors[start:] = [saved] * (len(entries) - start)
            break
    return errors


def work_on(opened: Opened, work: Work) -> Found:
    """Save, consume, run the errands, and take. Runs in the thread."""
    core, (source, stored), _ = opened
    save_errors: Sequence[Exception | None] = [None] * len(work.entries)
    done_error: Exception | None = None
    undone: list[Session[bytes]] = []
    taken: list[Taken] = []
    take_error: BaseException | None = None
    ready = 0
    try:
        with core.session("aio.Queue") as putting:
            putting.enqueue_many([entry.data for entry in work.entries])
            *consumed, saved = core.flush_all([*work.done, putting])  # in this order: consumed items make room
            putting.rollback()  # a later piece of work saves refused items again
            if isinstance(saved, Exception):
                save_errors = [saved] * len(work.entries)
            if isinstance(saved, QueueFullError) and len(work.entries) > 1:
                save_errors = _save_in_parts(core, putting, work.entries)
        for hold, each in zip(work.done, consumed, strict=True):
            if isinstance(each, Exception):
                undone.append(hold)
                done_error = each
    except Exception as error:
        save_errors, done_error = [error] * len(work.entries), error
        undone = work.done
    ran = list(map(_run, work.errands))
    size_bytes, expected = 0, iter(work.expected)
    following = next(expected, None)
    try:
        while len(taken) < work.most_items and size_bytes < work.most_bytes:
            hold = source.session("aio.Queue")
            data = hold.dequeue()
            if data is None:
                break
            if data == following:
                entry, following = None, next(expected, None)
            else:
                entry = _entry_of(data, work.codec, hold)
            taken.append(Taken(data, hold, entry))
            size_bytes += len(data)
        ready = stored()
    except BaseException as error:  # of a codec: nothing above would tell it to the task that waits
        take_error = error
        with suppress(Exception):
            ready = stored()
    return Found(save_errors, undone, done_error, taken, take_error, ready, ran)

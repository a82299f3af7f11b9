"""A session: buffers enqueues and dequeues until ``flush`` makes them one transaction."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import index
from threading import get_ident
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar, overload

from .codecs import T
from .core.availability import LANE_ITEMS, Taken
from .core.block import ITEM_BYTES_MAX
from .core.intervals import Intervals, Run, append_run, last_of, within
from .core.items import Buffer, as_bytes, checked_marker, chunks, too_large
from .core.page_cache import ITEM_OVERHEAD_BYTES
from .engine.reader import Reader
from .engine.segment_use import Hold
from .engine.transaction import SPILL_BYTES, Transaction
from .errors import (
    ClosedError,
    CodecError,
    PersistentQueueError,
    SessionInUseError,
    SubscriptionNotFoundError,
    UnflushedWarning,
)
from .runtime.open_queue import OpenQueue
from .runtime.retries import Retries, Trial
from .system.signal_shield import shielded
from .system.uncopyable import Uncopyable

R = TypeVar("R")
_LONGEST_SECONDS = 1e9
"""Thirty years; an integer of any length is a timeout, too, but no time."""
_FREE, _BUSY, _TORN = 0, 1, 2
"""Of a session: no call is under way; one is; one was interrupted, and what it has left is still to be seen to."""
Together: TypeAlias = "Callable[[Session[Any], tuple[str, int] | None, float | None], bool]"
"""A flush of several sessions, with the marker of one of them."""


class Session(Uncopyable, Generic[T]):
    """One transaction after the other on a queue; made by ``PersistentQueue.session()``, or by that of one of its
    subscriptions, and used in a ``with`` block.

    What is enqueued is invisible until ``flush``, also to this session. What is dequeued is on hold: no other session
    gets it. Leaving the block without a flush gives dequeued items back to the front of the queue, in their old order,
    and drops what was enqueued. If that was not said by ``rollback`` or ``close``, and no exception leaves the block,
    there is an ``UnflushedWarning``, which Python hides by default.

    A session is for one thread at a time, and raises ``SessionInUseError`` in any other; any number of sessions run in
    parallel. A call in the middle of another one of the same queue and thread, by a signal handler for instance, raises
    ``ReentrantUseError``. What a signal handler raises ends the call: its effect is whole, or there is none.

    All methods but ``rollback`` and ``close`` raise ``ClosedError`` once the session or its queue is closed, and
    ``BrokenQueueError`` once a sync failed; ``dequeue`` and ``dequeue_many`` raise ``SubscriptionNotFoundError`` where
    the subscription was removed, and so does a ``flush`` of what was dequeued from it.
    """

    __slots__ = (
        "__weakref__",
        "_busy",
        "_commit",
        "_discard",
        "_lane",
        "_open_queue",
        "_queue",
        "_reader",
        "_spill_bytes",
        "_taken",
        "_takes",
        "_together",
        "_transaction",
        "_trial",
        "name",
    )

    _elsewhere = "get another one from queue.session() in the process that has opened the queue, or use a Producer"

    def __init__(
        self,
        group: OpenQueue,
        spill_bytes: int = SPILL_BYTES,
        name: str = "",
        queue: object = None,
        reader: Reader | None = None,
        retries: Retries | None = None,
    ) -> None:
        self._open_queue = group
        self._reader = reader = group.store.subscriptions.plain if reader is None else reader
        """Of the subscription that it dequeues from; None where the queue has none without a name."""
        self._taken: list[Taken] = []
        """Its items from the lane (see ``ready``), in order. ``_note`` joins them to the runs of the transaction."""
        self._lane: deque[Taken] = deque() if reader is None else reader.ready.lane
        self._takes: Iterator[None] = map(self._taken.append, iter(self._lane.popleft, None))
        """Each ``next`` takes one item. That is one call of C code: the item is either in the lane or in ``_taken``."""
        self._queue = queue
        """Kept, so that a queue which its user drops closes no file that a session is writing to."""
        self.name = name
        """What ``PersistentQueue.explain`` calls it."""
        self._spill_bytes = spill_bytes
        self._busy = _FREE
        """Whether a call is under way, or was interrupted. It is tested and set without a call in between, so that of
        two threads, or of a call and what interrupts it, one alone finds the session free."""
        self._transaction: Transaction | None = self._new()
        self._trial = Trial(retries) if retries is not None else None
        """What it does with items that may fail; None in a queue that does not count their attempts."""
        self._commit = group.commit if self._trial is None else self._trial.commit
        self._discard = group.discard if self._trial is None else self._trial.discard
        self._together: Together | None = None
        """What flushes it with sessions of other queues, if it belongs to these."""

    def __enter__(self) -> Session[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unflushed = self.unflushed() if kind is None else None
        try:
            if error is not None and self._trial is not None and self._transaction is not None:
                self._trial.fail(self._transaction, self._reader, error)
        finally:  # also interrupted
            self.close()
        if unflushed is not None:
            warnings.warn(unflushed, UnflushedWarning, stacklevel=2, source=self)

    def __del__(self) -> None:
        transaction = getattr(self, "_transaction", None)
        if transaction is not None and (self._taken or transaction.runs or transaction.items or transaction.pieces):
            self._note(transaction)
            if self._open_queue.closed is None:
                message = "a session was dropped with work that was not flushed"
                warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            self._open_queue.abandon(transaction)

    @property
    def closed(self) -> bool:
        """Whether the session was closed, by its user or with its queue."""
        return self._transaction is None or self._open_queue.closed is not None

    @overload
    def enqueue(self: Session[bytes], item: Buffer) -> None: ...

    @overload
    def enqueue(self, item: T) -> None: ...

    def enqueue(self, item: Any) -> None:
        """Buffer an item, any bytes-like object of up to 4 GiB - 1 bytes; its content is taken now.

        Nothing is durable before ``flush``. Raises ``TypeError``, ``ItemTooLargeError``, and ``ResourceError`` or
        ``QueueFullError`` where the session outgrew the memory and could not spill, also with ``full="block"``; the
        item is then not in the session.
        """
        data = item if type(item) is bytes else as_bytes(item)
        length_bytes = len(data)
        if length_bytes > ITEM_BYTES_MAX:
            raise too_large(length_bytes)
        if self._busy:
            self._begin()
        self._busy = _BUSY
        try:
            transaction, group = self._transaction, self._open_queue
            if transaction is None or group.closed is not None or group.store.broken is not None:
                transaction = self._open()
            cost_bytes = transaction.cost_bytes + length_bytes + ITEM_OVERHEAD_BYTES
            if cost_bytes > self._spill_bytes and transaction.items:
                group.spill(transaction)
                cost_bytes = length_bytes + ITEM_OVERHEAD_BYTES
            # Nothing interrupts that before the item is there.
            transaction.cost_bytes = cost_bytes
            transaction.items.append(data)
        finally:
            self._busy = _FREE

    @overload
    def enqueue_many(self: Session[bytes], items: Iterable[Buffer]) -> None: ...

    @overload
    def enqueue_many(self, items: Iterable[T]) -> None: ...

    def enqueue_many(self, items: Iterable[Any]) -> None:
        """Buffer items, in order. Like ``enqueue`` for each of them, at a fraction of its cost.

        A list or tuple is checked whole before any of it is buffered; of another iterable what came before the item
        that raised stays in the session.
        """
        for chunk in chunks(items):  # which may call the session itself
            data: list[bytes] = chunk if set(map(type, chunk)) <= {bytes} else list(map(as_bytes, chunk))
            size_bytes = sum(map(len, data))
            cost_bytes = size_bytes + ITEM_OVERHEAD_BYTES * len(data)
            if size_bytes > ITEM_BYTES_MAX and (largest := max(map(len, data))) > ITEM_BYTES_MAX:
                raise too_large(largest)
            if self._busy:
                self._begin()
            self._busy = _BUSY
            try:
                transaction = self._open()
                if transaction.cost_bytes + cost_bytes > self._spill_bytes:
                    self._enqueue_large(transaction, data)
                else:
                    buffered = transaction.items
                    # From here on without a call: nothing interrupts that.
                    buffered += data
                    transaction.cost_bytes += cost_bytes
            finally:
                self._busy = _FREE

    def dequeue(self, timeout: float | None = 0.0) -> T | None:
        """The first ready item, which is on hold from now on; None when there is none within ``timeout`` seconds.

        ``timeout=None`` waits for ever. Waiting costs no CPU and ends at once when another session's flush, or
        rollback, brings an item. Raises ``CorruptionError`` once for each damaged block: its items are set aside, and
        the next call goes on behind them. Raises ``WrongKeyError`` and ``MissingExtraError`` for what cannot be opened
        for now, and stays ready. Where there is no item it raises that, once, for each damaged file that
        another process has published, and ``QueueFullError`` for one that can never be adopted.

        In a queue with ``max_attempts`` the delivery is durable before the item is returned, for which it raises what
        ``flush`` raises. The last attempt of an item is made alone: a session that holds something gets None, at once,
        while such an item is next, and one that holds such an item does until it has flushed or rolled back.
        """
        if timeout:
            timeout = checked_timeout(timeout)
        if self._busy:
            self._begin()
        self._busy = _BUSY
        try:
            transaction, group = self._transaction, self._open_queue
            if transaction is None or group.closed is not None or group.store.broken is not None:
                transaction = self._open()
            inside = group.inside
            if inside and (0 in inside or get_ident() in inside):
                group.check_outermost()
            item: Any = None
            taken = self._taken
            if self._lane and len(taken) < LANE_ITEMS:
                try:
                    next(self._takes)
                except IndexError as error:
                    _require_no_handlers(error)
                else:
                    item = taken[-1][1]
            if item is None:
                item = self._take_first(transaction, timeout)
                if item is None:
                    self._busy = _FREE
                    return None
            if not transaction.since_seconds:
                transaction.since_seconds = group.now()
            # From here on without a call: what was taken is given to the caller.
            transaction.given += 1
            self._busy = _FREE
        except BaseException:
            self._end_badly()
            raise
        else:
            return item  # type: ignore[no-any-return]  # bytes, where there is no codec

    def dequeue_many(self, max_items: int, timeout: float | None = 0.0) -> list[T]:
        """Up to ``max_items`` ready items, in order; the list is empty when there are none within ``timeout`` seconds.

        Waits for the first item only. In a queue that counts attempts an item that was delivered before, and not
        consumed, comes alone, and a list ends before such a one: so a bad item does not take the others with it.
        Otherwise like ``dequeue``.
        """
        if index(max_items) < 0:
            raise ValueError(f"max_items must not be negative, got {max_items}")
        timeout = checked_timeout(timeout)
        if self._busy:
            self._begin()
        self._busy = _BUSY
        try:
            transaction = self._open()
            items: list[Any] = self._take(transaction, max_items, timeout) if max_items else []
            count = len(items)
            if items and not transaction.since_seconds:
                transaction.since_seconds = self._open_queue.now()
            # From here on without a call: what was taken is given to the caller.
            transaction.given += count
            self._busy = _FREE
        except BaseException:
            self._end_badly()
            raise
        else:
            return items

    def enqueue_cached(self, item: Any) -> bool:
        """Like ``enqueue``, unless the session would have to write ahead of its flush: then it is False, and the item
        is not in it. Never waits for a disk, so that an event loop may call it."""
        data = item if type(item) is bytes else as_bytes(item)
        size_bytes = len(data)
        if size_bytes > ITEM_BYTES_MAX:
            raise too_large(size_bytes)
        if self._busy:
            self._begin()
        self._busy = _BUSY
        try:
            transaction = self._open()
            items, cost_bytes = transaction.items, transaction.cost_bytes + size_bytes + ITEM_OVERHEAD_BYTES
            if items and cost_bytes > self._spill_bytes:
                return False
            # From here on without a call: nothing interrupts that.
            items += (data,)
            transaction.cost_bytes = cost_bytes
            return True
        finally:
            self._busy = _FREE

    def dequeue_cached(self, max_items: int) -> list[T]:
        """Like ``dequeue_many``, as far as it needs neither to read nor to look for what others have published.

        Never waits for a disk, so that an event loop may call it.
        """
        if self._busy:
            self._begin()
        self._busy = _BUSY
        try:
            transaction, reader = self._open(), self._consumer()
            items: list[Any] = self._open_queue.around(partial(reader.take_cached, max_items, transaction.runs))
            count = len(items)
            if items and not transaction.since_seconds:
                transaction.since_seconds = self._open_queue.now()
            # From here on without a call: what was taken is given to the caller.
            transaction.given += count
            self._busy = _FREE
        except BaseException:
            self._end_badly()
            raise
        else:
            return items

    def put_back(self, count: int = 1) -> None:
        """Give back the last ``count`` items that were dequeued since the last flush: to the front, in their old order.

        Raises ``ValueError`` where there are not so many. Never waits for a disk.
        """
        if self._busy:
            self._begin()
        self._busy = _BUSY
        try:
            if not 0 <= index(count) <= sum(run[1] for run in self._open().runs):
                raise ValueError(f"count must be from 0 to the items that were dequeued, got {count}")
            self._give_back(count)
            self._busy = _FREE
        except BaseException:
            self._end_badly()
            raise

    def flush(self, marker: tuple[str, int] | None = None, timeout: float | None = None) -> bool:
        """Make everything since the last flush one atomic transaction: durable on return, and visible to others.

        With ``marker=(name, version)`` the transaction also records that ``name`` has reached ``version``. If it had
        before, nothing is committed, the session is rolled back, and the answer is False; otherwise it is True. That is
        how work that is repeated after a crash is done once.

        Where a limit leaves no room for what it enqueues: with ``full="block"`` it waits, up to ``timeout`` seconds (0
        not at all, None for ever), behind those who waited before, until somebody else has dequeued enough and flushed;
        waiting costs no CPU. What this session has dequeued makes room for what it enqueues, not before: one that holds
        all there is and enqueues more than that waits for nobody, so give it a timeout. With ``full="raise"`` nothing
        waits, and a ``timeout`` above 0 is a ``ValueError``.

        Raises ``QueueFullError`` (a limit) and ``ResourceError``: nothing was committed, the session keeps its
        operations, flush again after making room. Raises ``BrokenQueueError``: it is unknown whether it was committed;
        reopen the queue. Raises ``InvalidTransactionError``: nothing was committed, roll the session back. Interrupted,
        by a ``KeyboardInterrupt`` for instance, it may be flushed again: if it was committed, the session is empty; if
        not, it keeps its operations.

        A session of a ``transaction`` over several queues is flushed with the others of it (see there).
        """
        if self._together is not None:
            return self._together(self, marker, timeout)
        if self._busy:
            self._begin()
        self._busy = _BUSY
        try:
            transaction, group = self._transaction, self._open_queue
            if transaction is None or group.closed is not None or group.store.broken is not None:
                transaction = self._open()
            if timeout is not None:
                timeout = checked_timeout(timeout)
                if timeout and not group.blocks:
                    raise ValueError(f'a timeout of {timeout} seconds needs a queue with full="block"')
            if marker is not None:
                transaction.marker = checked_marker(marker)
            elif not (transaction.items or self._taken or transaction.runs or transaction.pieces):
                self._busy = _FREE
                return True
            if self._taken:
                self._note(transaction)
            self._commit(transaction, timeout)
            was_committed = self._finish(transaction)
            self._busy = _FREE
        except BaseException:
            self._end_badly()
            raise
        else:
            return was_committed

    def give_up(self) -> None:
        """Have a ``flush`` of this session that waits for room, in another thread, wait no longer: it raises
        ``QueueFullError``, and the session keeps its operations. The next one does, if none waits. For any thread."""
        transaction = self._transaction
        if transaction is not None:
            self._open_queue.give_up(transaction)

    def reject(
        self, item: T | CodecError, reason: str = "", *, retry: bool = True, delay_seconds: float | None = None
    ) -> None:
        """Say of an item that this session holds that it has failed: the first that equals it, behind the one that was
        rejected last if there is one.

        The next ``flush`` does not consume it with the others. It comes again, in its old place, at once or after
        ``delay_seconds`` (by default ``retry_delay_seconds`` of the queue); or, if its attempts are used up, or not to
        ``retry``, it is moved to the dead letters with this reason, in the same transaction as all else that the
        session has done. Without a flush nothing was rejected. A flush that moves something to the dead letters waits
        for no room, as that of a transaction over several queues.

        Raises ``ValueError`` where the session holds no such item that it has not rejected yet, for a delay that cannot
        be waited, where the queue was opened without ``max_attempts``, ``dead_letter`` and ``retry_delay_seconds``, and
        for ``retry=False`` without ``dead_letter``.

        An item that the codec could not decode is rejected by its ``CodecError``, whose text is the default reason.
        """
        if self._busy:
            self._begin()
        self._busy = _BUSY
        try:
            self._reject(item, reason, retry, delay_seconds)
        finally:
            self._busy = _FREE

    def _reject(self, item: T | CodecError, reason: str, retry: bool, delay_seconds: float | None) -> None:
        transaction = self._open()
        if self._trial is None:
            needs = "max_attempts=, dead_letter= or retry_delay_seconds="
            raise ValueError(f"this queue does not count attempts: open it with {needs} to reject items")
        if isinstance(item, CodecError):
            reason = reason or str(item)
        self._trial.reject(transaction, self._consumer(), self._meaning(item), reason, retry, delay_seconds)

    def undecodable(self, codec: object, data: bytes, reason: Exception) -> CodecError:
        """Return the error for the item that was dequeued last, which its codec refuses, and count it.

        For a face that decodes by itself what it has dequeued.
        """
        transaction, group, last = self._transaction, self._open_queue, self._taken[-1:]
        group.count_undecodable()
        runs = transaction.runs if transaction is not None else []
        sequence = last[0][0] if last else sum(runs[-1]) - 1 if runs else None
        return CodecError("decode", codec, data, reason, group.store.directory, sequence)

    def rollback(self) -> None:
        """Give back what was dequeued, drop what was enqueued, since the last flush. The session can be used on.

        With ``retry_delay_seconds`` what is given back comes again when these are over.
        """
        if self._busy:
            self._begin()
        self._busy = _BUSY
        try:
            self._roll_back(self._new())
        finally:
            self._busy = _FREE

    def close(self) -> None:
        """Roll back what was not flushed, and end the session. Closing again does nothing."""
        if self._transaction is None:
            return
        if self._busy:
            self._begin()
        self._busy = _BUSY
        try:
            self._roll_back(None)
        finally:
            self._busy = _FREE

    def unflushed(self) -> str | None:
        """Return the text of an ``UnflushedWarning``; None if a rollback would drop nothing."""
        transaction, group = self._transaction, self._open_queue
        if transaction is None or group.closed is not None or group.store.broken is not None:
            return None
        enqueued, dequeued = transaction.count, sum(count for _, count in self._runs_of(transaction))
        if not (enqueued or dequeued):
            return None
        return (
            f"{group.store.directory}: the block of the session {self.name!r} ended without a flush: {enqueued} "
            f"enqueued items are dropped, {dequeued} dequeued items are given back: call flush(), or rollback() if "
            "this is meant"
        )

    def keeps(self) -> Hold | None:
        """What it has dequeued and not flushed, or written ahead of its flush; None if nothing. For any thread."""
        transaction = self._transaction
        runs = self._runs_of(transaction) if transaction is not None else []
        if transaction is None or not (runs or transaction.pieces):
            return None
        seconds = self._open_queue.now() - transaction.since_seconds
        return Hold(self.name, seconds, runs, list(transaction.pieces))

    @property
    def keeps_since(self) -> float | None:
        """Since when, by the group's clock, it ``keeps`` something; None if it does not. For any thread."""
        transaction = self._transaction
        keeps = transaction is not None and (self._taken or transaction.runs or transaction.pieces)
        return transaction.since_seconds if transaction is not None and keeps else None

    def _begin(self) -> None:
        """See to what an interrupted call has left. Raises ``SessionInUseError`` if one is under way."""
        if self._busy == _TORN:
            self._end_badly()
        if self._busy:
            raise SessionInUseError(
                "the session is in the middle of another call, of another thread or of the code that this one "
                "interrupts; nothing was done: use one session for each thread"
            )

    def _end_badly(self) -> None:
        """Behind a call that raised: begin a new transaction if this one was settled, and give back what was taken for
        the caller and not returned. If that is interrupted, the next call of the session does it first."""
        self._busy = _TORN
        transaction = self._transaction
        if transaction is not None:
            if transaction.settled:
                self._finish(transaction)
            else:
                if self._taken:
                    self._note(transaction)
                if transaction.runs:
                    self._open_queue.put_back(transaction, sum(run[1] for run in transaction.runs) - transaction.given)
        self._busy = _FREE

    def _roll_back(self, following: Transaction | None) -> None:
        """Discard what the session has done; the ``following`` transaction comes next."""
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, following
            try:
                self._note(transaction)
                self._discard(transaction)
            except BaseException:
                # A finalizer's way: whatever is left is discarded before the next call of the queue.
                self._note(transaction)
                self._open_queue.abandon(transaction)
                raise

    def _take(self, transaction: Transaction, max_items: int, timeout: float | None) -> list[bytes]:
        """Hold items; their runs are added to the transaction's, also if this is interrupted behind that."""
        if self._trial is None:
            return self._open_queue.take(self._consumer(), max_items, timeout, transaction.runs)
        return self._trial.take(transaction, self._consumer(), max_items, timeout)

    def _take_first(self, transaction: Transaction, timeout: float | None) -> Any:
        """Fill the lane, and return the first item; None if there is none in time."""
        if self._taken:
            self._note(transaction)
        self._open_queue.fill(self._reader or self._consumer())
        if self._lane:
            try:
                next(self._takes)
            except IndexError as error:
                _require_no_handlers(error)
            else:
                return self._taken[-1][1]
        items = self._take(transaction, 1, timeout)
        return items[0] if items else None

    def _note(self, transaction: Transaction) -> None:
        """Join the items from the lane to the runs of the transaction. It may be called again after an interruption."""
        runs, taken = transaction.runs, self._taken
        if len(taken) == 1 and not runs:
            alone = ((taken[0][0], 1),)
            # From here on without a call: nothing interrupts that.
            runs[:] = alone
            del taken[:]
        while taken:
            first, count = taken[0][0], len(taken)
            if taken[-1][0] >= first + count:  # other sessions have taken some in between
                count = next(at for at, (sequence, _) in enumerate(taken) if sequence != first + at)
            at, last = append_run(runs, first, count) if runs else (0, ((first, count),))
            noted = slice(count)
            # From here on without a call: nothing interrupts that.
            runs[at:] = last
            del taken[noted]

    def _runs_of(self, transaction: Transaction) -> list[Run]:
        """The runs that it holds; for any thread."""
        if not self._taken:
            return transaction.runs.copy()
        taken = Intervals((sequence, 1) for sequence, _ in self._taken.copy())
        runs = transaction.runs.copy()  # behind the other copy: items that are noted meanwhile are in both
        for first, count in runs:
            for each in within(taken.runs(), first, first + count):
                taken.remove(*each)
        return [*runs, *taken]

    def _meaning(self, item: object) -> Callable[[int, bytes], bool]:
        """Return the test for the held item that the caller means, by its sequence and bytes."""
        if isinstance(item, CodecError) and item.sequence is not None:
            wanted, is_here = item.sequence, item.path == self._open_queue.store.directory
            return lambda sequence, _: is_here and sequence == wanted
        return lambda _, raw: self._matches(raw, item)

    def _matches(self, raw: bytes, item: object) -> bool:
        """Whether this is the item that its user means, who has it as ``dequeue`` gave it to him."""
        return raw == item

    def _finish(self, transaction: Transaction) -> bool:
        """It is settled, and what comes next is another one; whether it was committed."""
        if transaction.skipped:
            self._discard(transaction)
        self._transaction = self._new()
        return not transaction.skipped

    def _give_back(self, count: int) -> None:
        """Give the last items that were dequeued back to the front of the queue."""
        transaction = self._transaction
        if count and transaction is not None:
            self._note(transaction)
            if self._trial is not None:
                self._trial.forget(last_of(transaction.runs, count))
            # Less than there are in ``runs``: what is left of it is given back, in whatever way this ends.
            transaction.given -= count
            self._open_queue.put_back(transaction, count)
            if not transaction.runs and not transaction.pieces:
                transaction.since_seconds = 0.0

    def _new(self) -> Transaction:
        return Transaction(self._reader.ready if self._reader is not None else None)

    def _consumer(self) -> Reader:
        if self._reader is None:
            raise SubscriptionNotFoundError("", self._open_queue.store.subscriptions.names())
        return self._reader

    def _open(self) -> Transaction:
        """The transaction, complete in its runs. Raises ``ClosedError`` and ``BrokenQueueError``."""
        if self._transaction is None or self._open_queue.closed is not None:
            raise ClosedError(self._open_queue.closed or "the session is closed: get another one from queue.session()")
        if self._open_queue.store.broken is not None:
            self._open_queue.store.check()
        if self._taken:
            self._note(self._transaction)
        return self._transaction

    def _enqueue_large(self, transaction: Transaction, items: list[bytes]) -> None:
        """Buffer more than fits, spilling as often as it takes."""
        start = 0
        while start < len(items):
            room_bytes = self._spill_bytes - transaction.cost_bytes
            stop, part_bytes = start, 0
            while stop < len(items):
                part_bytes += len(items[stop]) + ITEM_OVERHEAD_BYTES
                if part_bytes > room_bytes and stop > start:
                    break
                stop += 1
            transaction.add(items[start:stop])
            start = stop
            if start < len(items):
                self._open_queue.spill(transaction)


def _require_no_handlers(error: IndexError) -> None:
    """Raise the error again if a signal handler has raised it. The lane raises it where other threads were quicker."""
    if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
        raise error


def flush_all(
    group: OpenQueue, sessions: Sequence[Session[Any]], markers: Sequence[tuple[str, int] | None]
) -> list[bool | Exception]:
    """What ``PersistentQueue.flush_all`` does."""
    _require_apart(group, sessions)
    return exclusively(sessions, partial(_flush_all, group, sessions, markers))


def _flush_all(
    group: OpenQueue, sessions: Sequence[Session[Any]], markers: Sequence[tuple[str, int] | None]
) -> list[bool | Exception]:
    found: list[bool | Exception] = [True] * len(sessions)
    works: dict[int, Transaction] = {}
    for number, session in enumerate(sessions):
        marker = markers[number] if markers else None
        try:
            if session._trial is not None and session._trial.rejects:  # what it gives up goes to another queue
                session._busy = _FREE
                found[number] = session.flush(marker, 0.0)
                session._busy = _BUSY
                continue
            work = session._open()
            if marker is not None:
                work.marker = checked_marker(marker)
        except (PersistentQueueError, TypeError, ValueError) as error:
            found[number] = error
        else:
            if not work.is_empty:
                works[number] = work
    try:
        group.commit_all(list(works.values()))
    except PersistentQueueError as error:
        for work in works.values():
            work.error = work.error or error
    finally:  # also interrupted: those that are settled begin anew, the others keep their operations
        for number, work in works.items():
            failure, work.error = work.error, None
            if work.settled:
                found[number] = sessions[number]._finish(work)
            elif isinstance(failure, Exception):
                found[number] = failure
    return found


def exclusively(sessions: Sequence[Session[Any]], call: Callable[[], R]) -> R:
    """Make the call while the sessions refuse others. Raises ``SessionInUseError`` if one is in another call."""
    taken: list[Session[Any]] = []
    try:
        for session in sessions:
            if session._busy:
                session._begin()
            # From here on without a call: an interruption finds it free, or taken.
            session._busy = _BUSY
            taken += (session,)
        result = call()
        _end_all(taken)
    except BaseException:
        shielded(partial(_end_all, taken))
        raise
    else:
        return result


def _end_all(sessions: Iterable[Session[Any]]) -> None:
    for session in sessions:
        session._end_badly()


def _require_apart(group: OpenQueue, sessions: Sequence[Session[Any]]) -> None:
    """Raise ``ValueError`` where these are not different sessions of this queue alone."""
    if len(set(map(id, sessions))) < len(sessions):
        raise ValueError("the same session twice in flush_all")
    if any(session._open_queue is not group for session in sessions):
        raise ValueError("a session of another queue in flush_all")
    if any(session._together is not None for session in sessions):
        raise ValueError("a session of a transaction over several queues in flush_all: call its own flush")


def checked_timeout(timeout: float | None) -> float | None:
    """The timeout, or the longest that can be added to a time. Raises ``ValueError`` for one that cannot be waited."""
    if timeout is None:
        return None
    if not timeout >= 0:
        raise ValueError(f"timeout must be None or at least 0 seconds, got {timeout}")
    return min(timeout, _LONGEST_SECONDS)

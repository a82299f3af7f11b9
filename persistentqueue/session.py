"""The class ``Session``: it buffers enqueues and dequeues until ``flush`` commits them as one transaction."""

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
"""Longest timeout in seconds, about thirty years. A longer one is cut to it: not every number can be added to a time.
"""
_FREE, _BUSY, _TORN = 0, 1, 2
"""States of a session: no call is under way; one is; or one was interrupted and its cleanup is still to be done."""
Together: TypeAlias = "Callable[[Session[Any], tuple[str, int] | None, float | None], bool]"
"""Function that flushes several sessions as one transaction. Its arguments are the session that was asked to flush, the
marker and the timeout."""


class Session(Uncopyable, Generic[T]):
    """A series of transactions on a queue: a session buffers enqueues and dequeues until ``flush`` commits them.

    ``PersistentQueue.session`` and ``Subscription.session`` make sessions. Use a session in a ``with`` block::

        with queue.session() as session:
            item = session.dequeue()
            session.enqueue(b"result")
            session.flush()

    Enqueued items are invisible until ``flush``, also to this session. Dequeued items are on hold: no other session
    gets them.

    If the block ends without a flush, the session rolls back. Dequeued items go back to the front of the queue, in
    their old order, and enqueued items are dropped. Python then issues an ``UnflushedWarning``, which it hides by
    default. There is no warning after ``rollback`` or ``close``, or if an exception leaves the block.

    If an ``Exception`` leaves the block, held items that have no delivery attempts left become dead letters. This needs
    a queue with ``max_attempts``.

    Durability: nothing is durable before ``flush`` returns.

    Threads: a session is for one thread at a time, and any number of sessions run in parallel. A call during another
    call of the session raises ``SessionInUseError``.

    A call that needs the queue while the same thread is in another call of that queue raises ``ReentrantUseError``. A
    signal handler can make such a call, for example. An error that a signal handler raises ends the interrupted call.
    The effect of that call is then complete, or there is none.

    Every method that enqueues, dequeues, rejects or flushes raises ``ClosedError`` after the session or its queue was
    closed. It raises ``BrokenQueueError`` after a sync or a write of the log has failed. If the subscription was
    removed, each dequeue raises ``SubscriptionNotFoundError``. A ``flush`` of items that were dequeued from it raises
    that error as well.

    A session cannot be copied, pickled or sent to another process.
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
        """Reader of the subscription that the session dequeues from; None if the queue has only named subscriptions."""
        self._taken: list[Taken] = []
        """Items that were taken from the lane (see ``availability``), in order. ``_note`` joins them to the runs of the
        transaction."""
        self._lane: deque[Taken] = deque() if reader is None else reader.ready.lane
        self._takes: Iterator[None] = map(self._taken.append, iter(self._lane.popleft, None))
        """Each ``next`` moves one item from the lane to ``_taken``. That is one call of C code, so an interruption
        finds the item in one of the two."""
        self._queue = queue
        """The queue. The reference keeps it alive: a queue that its user drops must close no file that a session is
        writing."""
        self.name = name
        """Name of the session in ``PersistentQueue.explain``."""
        self._spill_bytes = spill_bytes
        self._busy = _FREE
        """One of ``_FREE``, ``_BUSY`` and ``_TORN``. A call tests and sets it without a call in between. So only one of
        two threads finds the session free. That also holds for a call and the code that interrupts it."""
        self._transaction: Transaction | None = self._new()
        self._trial = Trial(retries) if retries is not None else None
        """Handles delivery attempts and rejections; None in a queue that does not count attempts."""
        self._commit = group.commit if self._trial is None else self._trial.commit
        self._discard = group.discard if self._trial is None else self._trial.discard
        self._together: Together | None = None
        """Flushes this session with the sessions of other queues; None if it belongs to no transaction over several
        queues."""

    def __enter__(self) -> Session[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unflushed = self.unflushed() if kind is None else None
        try:
            if error is not None and self._trial is not None and self._transaction is not None:
                self._trial.fail(self._transaction, self._reader, error)
        finally:  # an interruption must not leave the session open
            self.close()
        if unflushed is not None:
            warnings.warn(unflushed, UnflushedWarning, stacklevel=2, source=self)

    def __del__(self) -> None:
        transaction = getattr(self, "_transaction", None)
        if transaction is not None and (self._taken or transaction.runs or transaction.items or transaction.pieces):
            self._note(transaction)
            if self._open_queue.closed is None:
                message = (
                    "a session was dropped with work that was not flushed, and is rolled back: use the session in a "
                    "with block, or call close()"
                )
                warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            self._open_queue.abandon(transaction)

    @property
    def closed(self) -> bool:
        """True if the session or its queue was closed.

        For any thread.
        """
        return self._transaction is None or self._open_queue.closed is not None

    @overload
    def enqueue(self: Session[bytes], item: Buffer) -> None: ...

    @overload
    def enqueue(self, item: T) -> None: ...

    def enqueue(self, item: Any) -> None:
        """Buffer an item until the next flush.

        The content of the item is copied at once. The session spills the buffered items if they would take more than 4
        MiB of memory with the new one. To spill is to write them to segments ahead of the flush.

        Args:
            item: Any bytes-like object, from 0 to 4 GiB - 1 bytes.

        Raises:
            TypeError: If the item is not a bytes-like object.
            ItemTooLargeError: If the item is longer than 4 GiB - 1 bytes.
            ResourceError: If the session must spill and the operating system lacks something for that, such as disk
                space. The item is then not in the session.
            QueueFullError: If the session must spill and a limit leaves no room, also with ``full="block"``. The item
                is then not in the session.
            ClosedError: If the session or its queue is closed.
            BrokenQueueError: If a sync or a write of the log has failed before: close the queue and open it again.
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the session must spill, and the call interrupts another call of the same queue in the
                same thread.

        Nothing is durable before ``flush`` returns. For one thread at a time.
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
            # No interruption comes between these steps: the cost counts only items that are there.
            transaction.cost_bytes = cost_bytes
            transaction.items.append(data)
        finally:
            self._busy = _FREE

    @overload
    def enqueue_many(self: Session[bytes], items: Iterable[Buffer]) -> None: ...

    @overload
    def enqueue_many(self, items: Iterable[T]) -> None: ...

    def enqueue_many(self, items: Iterable[Any]) -> None:
        """Buffer several items, in order, until the next flush.

        The effect is that of one ``enqueue`` for each item, at a fraction of its cost. Items of a list or a tuple are
        all checked before any of them is buffered. Other iterables are read, checked and buffered in chunks of 8,192
        items.

        Args:
            items: An iterable of bytes-like objects, each from 0 to 4 GiB - 1 bytes.

        Raises:
            TypeError: If ``items`` is not iterable, or an item is not a bytes-like object. The chunk with that item is
                not buffered. Chunks before it stay in the session.
            ItemTooLargeError: If an item is longer than 4 GiB - 1 bytes. The chunk with that item is not buffered.
                Chunks before it stay in the session.
            ResourceError: If the session must spill and the operating system lacks something for that, such as disk
                space. Items that are already buffered stay in the session.
            QueueFullError: If the session must spill and a limit leaves no room, also with ``full="block"``. Items that
                are already buffered stay in the session.
            ClosedError: If the session or its queue is closed.
            BrokenQueueError: If a sync or a write of the log has failed before: close the queue and open it again.
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the session must spill, and the call interrupts another call of the same queue in the
                same thread.

        Nothing is durable before ``flush`` returns. For one thread at a time.
        """
        for chunk in chunks(items):  # the iterable may call the session itself
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
                    # No call from here on, so no interruption in between.
                    buffered += data
                    transaction.cost_bytes += cost_bytes
            finally:
                self._busy = _FREE

    def dequeue(self, timeout: float | None = 0.0) -> T | None:
        """Hold the first ready item and return it.

        Waiting uses no processor time. It ends at once when a flush or a rollback of another session makes an item
        ready.

        A queue that was opened with ``dead_letter`` or ``retry_delay_seconds`` counts delivery attempts. There each
        attempt is durable before its item is returned, so this method also raises the errors of ``flush``. The last
        attempt of an item is made alone. While such an item is next, a session that holds anything gets None at once. A
        session that holds such an item gets None at once until it flushes or rolls back.

        Args:
            timeout: Seconds to wait for an item, at least 0. The default 0 does not wait; None waits for ever.

        Returns:
            The item; None if no item became ready within the timeout.

        Raises:
            ValueError: If the timeout is negative or not a number.
            CorruptionError: If a block is damaged. It is raised once for each such block, and its items are set aside.
                The next call continues behind them.
            MemoryShortageError: If a block takes more memory than the process may have. It is raised once for each such
                block, and its items are set aside until the queue is opened again.
            WrongKeyError: If the key that a block needs was not given. The items stay ready.
            MissingExtraError: If an optional package that a block needs is not installed. The items stay ready.
            ResourceError: If the operating system lacks something that the call needs, such as file descriptors. The
                items stay ready.
            OSError: If the device cannot be read. The items stay ready.
            QueueFullError: If there is no item, and a published file can never be adopted because of a limit.
            SubscriptionNotFoundError: If the subscription was removed, or the queue has only named subscriptions.
            ClosedError: If the session or its queue is closed.
            BrokenQueueError: If a sync or a write of the log has failed before: close the queue and open it again.
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the call interrupts another call of the same queue in the same thread.

        If there is no item, each call raises the error of one published file that is damaged or cannot be read, once
        for each file.

        The item stays on hold until ``flush`` consumes it durably, or ``rollback`` releases it. For one thread at a
        time.
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
            # No call from here on, so no interruption: the item that was taken reaches the caller.
            transaction.given += 1
            self._busy = _FREE
        except BaseException:
            self._end_badly()
            raise
        else:
            return item  # type: ignore[no-any-return]  # bytes, since there is no codec

    def dequeue_many(self, max_items: int, timeout: float | None = 0.0) -> list[T]:
        """Hold up to ``max_items`` ready items and return them, in order.

        The call waits for the first item only. The rules of ``dequeue`` about waiting and about the last delivery
        attempt apply.

        In a queue that counts delivery attempts, an item that was delivered before and not consumed comes alone. A list
        ends before such an item, so a bad item does not fail the others.

        Args:
            max_items: Highest number of items to return, at least 0. With 0 the list is empty.
            timeout: Seconds to wait for the first item, at least 0. The default 0 does not wait; None waits for ever.

        Returns:
            The items; an empty list if no item became ready within the timeout.

        Raises:
            TypeError: If ``max_items`` is not an integer.
            ValueError: If the timeout is negative or not a number, or if ``max_items`` is negative.
            CorruptionError: If a block is damaged. It is raised once for each such block, and its items are set aside.
                The next call continues behind them.
            MemoryShortageError: If a block takes more memory than the process may have. It is raised once for each such
                block, and its items are set aside until the queue is opened again.
            WrongKeyError: If the key that a block needs was not given. The items stay ready.
            MissingExtraError: If an optional package that a block needs is not installed. The items stay ready.
            ResourceError: If the operating system lacks something that the call needs, such as file descriptors. The
                items stay ready.
            OSError: If the device cannot be read. The items stay ready.
            QueueFullError: If there is no item, and a published file can never be adopted because of a limit.
            SubscriptionNotFoundError: If the subscription was removed, or the queue has only named subscriptions.
            ClosedError: If the session or its queue is closed.
            BrokenQueueError: If a sync or a write of the log has failed before: close the queue and open it again.
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the call interrupts another call of the same queue in the same thread.

        If there is no item, each call raises the error of one published file that is damaged or cannot be read, once
        for each file. In a queue that counts delivery attempts, this method also raises the errors of ``flush``.

        The items stay on hold until ``flush`` consumes them durably, or ``rollback`` releases them. For one thread at a
        time.
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
            # No call from here on, so no interruption: the items that were taken reach the caller.
            transaction.given += count
            self._busy = _FREE
        except BaseException:
            self._end_badly()
            raise
        else:
            return items

    def enqueue_cached(self, item: Any) -> bool:
        """Buffer an item, unless the session would first have to spill.

        The call never waits for a disk, so an event loop may make it.

        Args:
            item: Any bytes-like object, from 0 to 4 GiB - 1 bytes. Its content is copied at once.

        Returns:
            True if the item is buffered. False if the session would have to spill first: the item is then not in the
            session.

        Raises:
            TypeError: If the item is not a bytes-like object.
            ItemTooLargeError: If the item is longer than 4 GiB - 1 bytes.
            ClosedError: If the session or its queue is closed.
            BrokenQueueError: If a sync or a write of the log has failed before: close the queue and open it again.
            SessionInUseError: If another call of the session is under way.

        Nothing is durable before ``flush`` returns. For one thread at a time.
        """
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
            # No call from here on, so no interruption in between.
            items += (data,)
            transaction.cost_bytes = cost_bytes
            return True
        finally:
            self._busy = _FREE

    def dequeue_cached(self, max_items: int) -> list[T]:
        """Hold up to ``max_items`` ready items that are in memory and return them, in order.

        The call reads no file and does not look for published files. It never waits for a disk, so an event loop may
        make it. In a queue that counts delivery attempts the list is always empty, because each delivery must be logged
        first.

        Args:
            max_items: Highest number of items to return, at least 0.

        Returns:
            The items. The list is empty if there is no ready item, or if the first ready item is not in memory.

        Raises:
            SubscriptionNotFoundError: If the queue has only named subscriptions.
            ClosedError: If the session or its queue is closed.
            BrokenQueueError: If a sync or a write of the log has failed before: close the queue and open it again.
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the call interrupts another call of the same queue in the same thread.

        The items stay on hold until ``flush`` consumes them durably, or ``rollback`` releases them. For one thread at a
        time.
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
            # No call from here on, so no interruption: the items that were taken reach the caller.
            transaction.given += count
            self._busy = _FREE
        except BaseException:
            self._end_badly()
            raise
        else:
            return items

    def put_back(self, count: int = 1) -> None:
        """Release the items that were dequeued last.

        The items are ready again, in their old place and order. The call never waits for a disk.

        Args:
            count: Number of items to release, from 0 to the number of items dequeued since the last flush. The default
                is 1.

        Raises:
            TypeError: If ``count`` is not an integer.
            ValueError: If ``count`` is negative, or larger than the number of items that the session holds.
            ClosedError: If the session or its queue is closed.
            BrokenQueueError: If a sync or a write of the log has failed before: close the queue and open it again.
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the call interrupts another call of the same queue in the same thread.

        Nothing becomes durable by this call. For one thread at a time.
        """
        if self._busy:
            self._begin()
        self._busy = _BUSY
        try:
            if not 0 <= index(count) <= sum(run[1] for run in self._open().runs):
                raise ValueError(f"count must be from 0 to the number of held items, got {count}")
            self._give_back(count)
            self._busy = _FREE
        except BaseException:
            self._end_badly()
            raise

    def flush(self, marker: tuple[str, int] | None = None, timeout: float | None = None) -> bool:
        """Commit everything since the last flush as one atomic transaction.

        The transaction contains the enqueued items, the consumption of the dequeued items, the rejections and the
        marker. Other sessions see the enqueued items from then on.

        A marker makes repeated work take effect once: work that is repeated after a crash passes the same marker, and
        is then not committed again.

        If a limit leaves no room for the enqueued items, a queue with ``full="block"`` waits for it. The flush waits
        behind those that waited before, until another session has dequeued enough and flushed. Waiting uses no
        processor time. What this session has dequeued makes room for its own items only in its own commit. A session
        that holds all items and enqueues more than it holds should pass a timeout: no other session can then make room.

        Two kinds of flush never wait for room: one that moves rejected items to a dead-letter queue, and one of a
        transaction over several queues. The latter flushes all of its sessions (see ``transaction``).

        Args:
            marker: A tuple ``(name, version)`` to record with the transaction; None (the default) records nothing. The
                name has 1 to 65,535 bytes in UTF-8, and the version is from 0 to 2**64 - 1.
            timeout: Seconds to wait for room, at least 0. 0 does not wait; None (the default) waits for ever. Without
                ``full="block"`` the flush never waits, and a value above 0 is an error.

        Returns:
            True if the transaction was committed, or if there was nothing to commit. False if the marker ``name`` had
            reached ``version`` before: nothing is committed, and the session is rolled back.

        Raises:
            QueueFullError: If a limit leaves no room. Nothing was committed, and the session keeps its operations. Make
                room, then flush again.
            ResourceError: If the operating system lacks something, such as disk space. Nothing was committed, and the
                session keeps its operations. Flush again later.
            InvalidTransactionError: If the transaction contradicts the queue. Nothing was committed: roll the session
                back.
            SubscriptionNotFoundError: If the subscription that the items were dequeued from was removed. Nothing was
                committed.
            BrokenQueueError: If a sync or a write of the log fails, or has failed before. It is unknown whether this
                flush is committed: close the queue and open it again.
            ValueError: If the timeout is negative or not a number, or above 0 without ``full="block"``, or if the
                marker is out of range.
            TypeError: If the marker is not a tuple of a string and an integer.
            ClosedError: If the session or its queue is closed.
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the call interrupts another call of the same queue in the same thread.

        On return the transaction is durable. With ``sync=False`` a power cut may still take the latest flushes, in
        order from the last. If the flush is interrupted, by a ``KeyboardInterrupt`` for example, it may be repeated. If
        the transaction was committed then, the session is empty; if not, it keeps its operations.

        For one thread at a time.
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
        """End the wait of a ``flush`` for room, in another thread.

        The waiting flush raises ``QueueFullError``, and the session keeps its operations. If no flush waits, the next
        flush of the same transaction raises that error instead of waiting.

        Nothing becomes durable by this call. For any thread.
        """
        transaction = self._transaction
        if transaction is not None:
            self._open_queue.give_up(transaction)

    def reject(
        self, item: T | CodecError, reason: str = "", *, retry: bool = True, delay_seconds: float | None = None
    ) -> None:
        """Mark a held item as failed: the first equal item behind the one that was rejected last, else the first equal
        item.

        The next ``flush`` does not consume the item with the others. With ``retry`` the item is ready again in its old
        place, at once or after a delay. Without ``retry``, or if its delivery attempts are used up, the item becomes a
        dead letter with this reason. All of that is part of the transaction that the flush commits. A flush that moves
        items to the dead letters does not wait for room.

        The queue must have been opened with ``dead_letter`` or ``retry_delay_seconds``.

        Args:
            item: The item as ``dequeue`` returned it. For an item that the codec could not decode, its ``CodecError``.
            reason: Why the item failed, for its dead letter. The default is empty; for a ``CodecError`` it is the text
                of that error.
            retry: True (the default) to deliver the item again if it has attempts left. False to make it a dead letter.
            delay_seconds: Seconds until the item is ready again, from 0 to ten years. None (the default) takes
                ``retry_delay_seconds`` of the queue.

        Raises:
            ValueError: If the session holds no such item that it has not rejected yet. If the delay is out of range. If
                the queue does not count attempts. If ``retry`` is False and the queue has no dead letters.
            TypeError: If the reason is not a string.
            CorruptionError: If the block of a held item cannot be read any more.
            SubscriptionNotFoundError: If the queue has only named subscriptions.
            ClosedError: If the session or its queue is closed.
            BrokenQueueError: If a sync or a write of the log has failed before: close the queue and open it again.
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the call interrupts another call of the same queue in the same thread.

        An error that a callable ``retry_delay_seconds`` raises comes out as it is. Nothing is durable before ``flush``
        returns: a ``rollback`` drops the rejections. For one thread at a time.
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
        """Return the error for the item that was dequeued last and that its codec refuses, and count it in the
        statistics.

        For interfaces that decode by themselves the items that they dequeue.

        Args:
            codec: The codec that refuses the item.
            data: The bytes of the item.
            reason: The error that the codec has raised.

        Returns:
            A ``CodecError`` with the bytes, the directory of the queue, and the sequence of the item if it is known.

        Raises:
            ReentrantUseError: If the call interrupts another call of the same queue in the same thread.

        Nothing becomes durable by this call. For the thread that has dequeued the item.
        """
        transaction, group, last = self._transaction, self._open_queue, self._taken[-1:]
        group.count_undecodable()
        runs = transaction.runs if transaction is not None else []
        sequence = last[0][0] if last else sum(runs[-1]) - 1 if runs else None
        return CodecError("decode", codec, data, reason, group.store.directory, sequence)

    def rollback(self) -> None:
        """Drop what was enqueued and release what was dequeued since the last flush.

        The session can be used afterwards. With ``retry_delay_seconds`` the released items are ready again when that
        delay is over.

        Raises:
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the call interrupts another call of the same queue in the same thread.

        An error that a callable ``retry_delay_seconds`` raises comes out as it is; the items are released all the same.
        Only the delays, if any, become durable. For one thread at a time.
        """
        if self._busy:
            self._begin()
        self._busy = _BUSY
        try:
            self._roll_back(self._new())
        finally:
            self._busy = _FREE

    def close(self) -> None:
        """Roll back what was not flushed, and end the session.

        Closing again does nothing.

        Raises:
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the call interrupts another call of the same queue in the same thread.

        An error that a callable ``retry_delay_seconds`` raises comes out as it is; the items are released all the same.
        Only the delays, if any, become durable. For one thread at a time.
        """
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
        """Return the text of an ``UnflushedWarning``.

        Returns:
            The text. None if a rollback would drop nothing, or if the session or its queue is closed or broken.

        Nothing becomes durable by this call. For one thread at a time.
        """
        transaction, group = self._transaction, self._open_queue
        if transaction is None or group.closed is not None or group.store.broken is not None:
            return None
        enqueued, dequeued = transaction.count, sum(count for _, count in self._runs_of(transaction))
        if not (enqueued or dequeued):
            return None
        return (
            f"{group.store.directory}: the block of the session {self.name!r} ended without a flush: {enqueued} "
            f"enqueued items are dropped, {dequeued} dequeued items are given back: call flush(), or "
            "rollback() if that is intended"
        )

    def keeps(self) -> Hold | None:
        """Return what the session has dequeued or spilled since its last flush.

        Returns:
            The name of the session, the seconds since it began to keep anything, the runs on hold, and the written
            pieces of segments. None if it keeps nothing.

        Nothing becomes durable by this call. For any thread.
        """
        transaction = self._transaction
        runs = self._runs_of(transaction) if transaction is not None else []
        if transaction is None or not (runs or transaction.pieces):
            return None
        seconds = self._open_queue.now() - transaction.since_seconds
        return Hold(self.name, seconds, runs, list(transaction.pieces))

    @property
    def keeps_since(self) -> float | None:
        """Time at which the session began to keep what ``keeps`` returns, in seconds of ``time.monotonic``; None if it
        keeps nothing.

        For any thread.
        """
        transaction = self._transaction
        keeps = transaction is not None and (self._taken or transaction.runs or transaction.pieces)
        return transaction.since_seconds if transaction is not None and keeps else None

    def _begin(self) -> None:
        """Clean up after an interrupted call. Raises ``SessionInUseError`` if another call is under way."""
        if self._busy == _TORN:
            self._end_badly()
        if self._busy:
            raise SessionInUseError(
                "the session is in the middle of another call, made by another thread or by the code that this call "
                "interrupts; nothing was done: use one session for each thread"
            )

    def _end_badly(self) -> None:
        """Clean up after a call that raised.

        If the transaction was settled, a new one begins. Items that were taken and not returned to the caller are
        released. If this is interrupted, the next call of the session does it first.
        """
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
        """Discard the transaction of the session and put ``following`` in its place."""
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, following
            try:
                self._note(transaction)
                self._discard(transaction)
            except BaseException:
                # As a finalizer does: the next call of the queue discards the rest.
                self._note(transaction)
                self._open_queue.abandon(transaction)
                raise

    def _take(self, transaction: Transaction, max_items: int, timeout: float | None) -> list[bytes]:
        """Hold items and return them. Their runs are in the transaction, even if an interruption comes before the
        return."""
        if self._trial is None:
            return self._open_queue.take(self._consumer(), max_items, timeout, transaction.runs)
        return self._trial.take(transaction, self._consumer(), max_items, timeout)

    def _take_first(self, transaction: Transaction, timeout: float | None) -> Any:
        """Fill the lane and return the first item; None if there is no item in time."""
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
        """Join the items from the lane to the runs of the transaction. After an interruption it may be called again."""
        runs, taken = transaction.runs, self._taken
        if len(taken) == 1 and not runs:
            alone = ((taken[0][0], 1),)
            # No call from here on, so no interruption in between.
            runs[:] = alone
            del taken[:]
        while taken:
            first, count = taken[0][0], len(taken)
            if taken[-1][0] >= first + count:  # other sessions have taken items in between
                count = next(at for at, (sequence, _) in enumerate(taken) if sequence != first + at)
            at, last = append_run(runs, first, count) if runs else (0, ((first, count),))
            noted = slice(count)
            # No call from here on, so no interruption in between.
            runs[at:] = last
            del taken[noted]

    def _runs_of(self, transaction: Transaction) -> list[Run]:
        """Return the runs that the transaction holds, with the items from the lane. For any thread."""
        if not self._taken:
            return transaction.runs.copy()
        taken = Intervals((sequence, 1) for sequence, _ in self._taken.copy())
        runs = transaction.runs.copy()  # copied second: items that are noted in between are in both copies
        for first, count in runs:
            for each in within(taken.runs(), first, first + count):
                taken.remove(*each)
        return [*runs, *taken]

    def _meaning(self, item: object) -> Callable[[int, bytes], bool]:
        """Return a test for the held item that the caller means. Its arguments are the sequence and the bytes of a held
        item."""
        if isinstance(item, CodecError) and item.sequence is not None:
            wanted, is_here = item.sequence, item.path == self._open_queue.store.directory
            return lambda sequence, _: is_here and sequence == wanted
        return lambda _, raw: self._matches(raw, item)

    def _matches(self, raw: bytes, item: object) -> bool:
        """Return True if ``raw`` are the bytes of ``item``, which has the form that ``dequeue`` returned."""
        return raw == item

    def _finish(self, transaction: Transaction) -> bool:
        """Begin a new transaction behind a settled one; return True if the settled one was committed."""
        if transaction.skipped:
            self._discard(transaction)
        self._transaction = self._new()
        return not transaction.skipped

    def _give_back(self, count: int) -> None:
        """Release the last ``count`` items that were dequeued, to the front of the queue."""
        transaction = self._transaction
        if count and transaction is not None:
            self._note(transaction)
            if self._trial is not None:
                self._trial.forget(last_of(transaction.runs, count))
            # Now lower than the count in ``runs``: however this ends, the surplus is released.
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
        """Return the transaction, after ``_note``. Raises ``ClosedError`` and ``BrokenQueueError``."""
        if self._transaction is None or self._open_queue.closed is not None:
            raise ClosedError(self._open_queue.closed or "the session is closed: get another one from queue.session()")
        if self._open_queue.store.broken is not None:
            self._open_queue.store.check()
        if self._taken:
            self._note(self._transaction)
        return self._transaction

    def _enqueue_large(self, transaction: Transaction, items: list[bytes]) -> None:
        """Buffer items that exceed the memory of the session, and spill as often as necessary."""
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
    """Raise the error again if a signal handler has raised it. The lane itself raises it if other threads have emptied
    it."""
    if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
        raise error


def flush_all(
    group: OpenQueue, sessions: Sequence[Session[Any]], markers: Sequence[tuple[str, int] | None]
) -> list[bool | Exception]:
    """Flush the sessions as ``PersistentQueue.flush_all`` promises."""
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
            if session._trial is not None and session._trial.rejects:  # dead letters go to another queue
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
    finally:  # also after an interruption: settled sessions begin anew, the others keep their operations
        for number, work in works.items():
            failure, work.error = work.error, None
            if work.settled:
                found[number] = sessions[number]._finish(work)
            elif isinstance(failure, Exception):
                found[number] = failure
    return found


def exclusively(sessions: Sequence[Session[Any]], call: Callable[[], R]) -> R:
    """Make the call while the sessions refuse other calls. Raises ``SessionInUseError`` if a session is in another
    call."""
    taken: list[Session[Any]] = []
    try:
        for session in sessions:
            if session._busy:
                session._begin()
            # No call from here on: an interruption finds the session free, or busy and in the list.
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
    """Raise ``ValueError`` unless these are different sessions of this queue alone."""
    if len(set(map(id, sessions))) < len(sessions):
        raise ValueError("flush_all got the same session twice: pass each session once")
    if any(session._open_queue is not group for session in sessions):
        raise ValueError("flush_all got a session of another queue: pass only sessions of this queue")
    if any(session._together is not None for session in sessions):
        raise ValueError("flush_all got a session of a transaction over several queues: call flush() of that session")


def checked_timeout(timeout: float | None) -> float | None:
    """Return the timeout, cut to the longest that can be added to a time. Raises ``ValueError`` if it is negative or
    not a number."""
    if timeout is None:
        return None
    if not timeout >= 0:
        raise ValueError(f"timeout must be None or at least 0 seconds, got {timeout}")
    return min(timeout, _LONGEST_SECONDS)

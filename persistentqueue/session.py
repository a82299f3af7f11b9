"""The class ``Session``: it buffers enqueues and dequeues until ``flush`` commits them as one transaction."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Any, Literal, overload

from .codecs import T
from .core.availability import LANE_ITEMS
from .core.block import ITEM_BYTES_MAX, MIXED, uniform_bytes
from .core.items import (
    Buffer,
    are_bytes,
    as_bytes,
    checked_count,
    checked_held,
    checked_marker,
    checked_timeout,
    checked_truth,
    chunks,
    too_large,
)
from .core.page_cache import ITEM_OVERHEAD_BYTES
from .errors import CodecError, PrecedingFlushError, UnflushedWarning
from .interrupts.call_guard import BUSY, FREE, TORN
from .runtime.pipeline import Ticket, done
from .runtime.session_state import SessionState, fail_held, require_no_handlers


class Session(SessionState[T]):
    """A series of transactions on a queue: a session buffers enqueues and dequeues until ``flush`` commits them.

    ``PersistentQueue.session`` and ``Subscription.session`` make sessions. Use a session in a ``with`` block::

        with queue.session() as session:
            item = session.dequeue()
            session.enqueue(b"result")
            session.flush()

    Enqueued items are invisible until ``flush``, also to this session. Dequeued items are on hold: no other session
    gets them.

    If the block ends without a flush, the session rolls back. Dequeued items go back to the front of the queue, in
    their old order, and enqueued items are dropped. Python then shows an ``UnflushedWarning``. There is no warning
    after ``rollback`` or ``close``, or if an exception leaves the block. The close of the queue ends its sessions in
    the same way, and warns only of enqueued items. The garbage collection of a session warns of held items as well, by
    a ``ResourceWarning``.

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

    __slots__ = ()

    def __enter__(self) -> Session[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unflushed = self._unflushed() if kind is None else None
        try:
            if error is not None:
                fail_held(self, error)
        finally:  # an interruption must not leave the session open
            try:
                self.close()
            except PrecedingFlushError:
                if error is None:  # the error of the block comes first
                    raise
        if unflushed is not None:
            warnings.warn(unflushed, UnflushedWarning, stacklevel=2)

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
            item: Any bytes-like object of at least one dimension, from 0 to 4 GiB - 1 bytes.

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
        self._busy = BUSY
        try:
            transaction, open_queue = self._transaction, self._open_queue
            if transaction is None or not open_queue.is_usable:
                transaction = self._open()
            cost_bytes = transaction.cost_bytes + length_bytes + ITEM_OVERHEAD_BYTES
            if cost_bytes > self._spill_bytes and transaction.items:
                open_queue.spill(transaction)
                cost_bytes = length_bytes + ITEM_OVERHEAD_BYTES
            # No interruption comes between these steps: the cost counts only items that are there.
            transaction.cost_bytes = cost_bytes
            transaction.items.append(data)
        finally:
            self._busy = FREE

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
            items: An iterable of bytes-like objects, each from 0 to 4 GiB - 1 bytes. A mapping is refused: pass its
                ``values()``. A set has no order of its own: pass ``sorted(items)`` if the order matters.

        Raises:
            TypeError: If ``items`` is not iterable or is a mapping, or an item is not a bytes-like object. The chunk
                with that item is not buffered. Chunks before it stay in the session.
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
            if len(chunk) == 1:  # a series is measured, which takes longer than to add one item
                Session.enqueue(self, chunk[0])
                continue
            data: list[bytes] = chunk if are_bytes(chunk) else list(map(as_bytes, chunk))
            sizes = list(map(len, data))
            each_bytes = uniform_bytes(sizes)
            size_bytes = sum(sizes) if each_bytes == MIXED else each_bytes * len(sizes)
            cost_bytes = size_bytes + ITEM_OVERHEAD_BYTES * len(data)
            if size_bytes > ITEM_BYTES_MAX and (largest := max(sizes)) > ITEM_BYTES_MAX:
                raise too_large(largest)
            if self._busy:
                self._begin()
            self._busy = BUSY
            try:
                transaction = self._open()
                if transaction.cost_bytes + cost_bytes > self._spill_bytes:
                    self._enqueue_large(transaction, data)
                else:
                    transaction.add_measured(data, cost_bytes, each_bytes)
            finally:
                self._busy = FREE

    def dequeue(self, timeout: float | None = 0.0) -> T | None:
        """Hold the first ready item and return it, decoded by the codec of the queue, if any.

        Waiting uses no processor time. It ends at once when a flush or a rollback of another session makes an item
        ready.

        A queue that was opened with ``dead_letter`` or ``retry_delay_seconds`` counts delivery attempts. There each
        attempt is durable before its item is returned, so this method also raises the errors of ``flush``. An
        item on its last attempt is delivered alone: to a session that holds nothing. Until that session has flushed or
        rolled back, its calls return None at once. So do those of other sessions that hold items, while it is next.

        Args:
            timeout: Seconds to wait for an item, at least 0. The default 0 does not wait; None waits for ever.

        Returns:
            The item; None if no item became ready within the timeout. If items may be None themselves, call
            ``dequeue_many(1)``.

        Raises:
            ValueError: If the timeout is negative or not a number.
            CodecError: If the codec cannot decode the item. The item is on hold all the same.
            CorruptionError: If a block is damaged. It is raised once for each such block, and its items are set aside.
                The next call continues behind them.
            MemoryShortageError: If a block takes more memory than the process may have. It is raised once for each such
                block, and its items are set aside until the queue is opened again.
            WrongKeyError: If the key that a block or an item needs was not given. The items stay ready.
            MissingExtraError: If an optional package that they need is not installed. The items stay ready.
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
        if timeout or type(timeout) is not float:  # the default needs no check
            timeout = checked_timeout(timeout)
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            transaction, open_queue = self._transaction, self._open_queue
            if transaction is None or not open_queue.is_usable or open_queue.inside:
                transaction = self._open_outermost()
            item: Any = None
            taken = self._taken
            if self._lane and len(taken) < LANE_ITEMS:
                try:
                    next(self._takes)
                except IndexError as error:
                    require_no_handlers(error)
                else:
                    item = taken[-1][1]
            if item is None and (item := self._take_first(transaction, timeout)) is None:
                self._busy = FREE
                return None
            if not transaction.since_seconds:
                transaction.since_seconds = open_queue.now()
            if self._codec is not None:
                item = self._decoded([item])[0]
            # No call from here on, so no interruption: the item that was taken reaches the caller.
            transaction.given += 1
            self._busy = FREE
        except CodecError:  # the caller gets it in place of the item, which stays on hold
            transaction.given += 1  # type: ignore[union-attr]  # it is there when an item is decoded
            self._busy = FREE
            raise
        except BaseException:
            self._busy = TORN
            self._end_badly()
            raise
        else:
            return item  # type: ignore[no-any-return]

    def dequeue_many(self, max_items: int, timeout: float | None = 0.0) -> list[T]:
        """Hold up to ``max_items`` ready items and return them, in order, decoded by the codec of the queue, if any.

        The call waits for the first item only. The rules of ``dequeue`` about waiting and about the last delivery
        attempt apply.

        In a queue that counts delivery attempts, an item that was delivered before and not consumed comes alone. A list
        ends before such an item, so a bad item does not fail the others. A list also ends before an item that cannot be
        read or decoded; the next call raises the error.

        Args:
            max_items: Highest number of items to return, at least 0. With 0 the list is empty.
            timeout: Seconds to wait for the first item, at least 0. The default 0 does not wait; None waits for ever.

        Returns:
            The items; an empty list if no item became ready within the timeout.

        Raises:
            TypeError: If ``max_items`` is not an integer.
            ValueError: If the timeout is negative or not a number, or if ``max_items`` is negative.
            CodecError: If the codec cannot decode the first item. That item is on hold all the same, and no other one.
            CorruptionError: If a block is damaged. It is raised once for each such block, and its items are set aside.
                The next call continues behind them.
            MemoryShortageError: If a block takes more memory than the process may have. It is raised once for each such
                block, and its items are set aside until the queue is opened again.
            WrongKeyError: If the key that a block or an item needs was not given. The items stay ready.
            MissingExtraError: If an optional package that they need is not installed. The items stay ready.
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
        if type(max_items) is not int or max_items < 0:
            max_items = checked_count("max_items", max_items)
        timeout = checked_timeout(timeout)
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            transaction = self._open()
            items: list[Any] = self._take(transaction, max_items, timeout) if max_items else []
            if items and not transaction.since_seconds:
                transaction.since_seconds = self._open_queue.now()
            if self._codec is not None:
                items = self._decoded(items)
            count = len(items)
            # No call from here on, so no interruption: the items that were taken reach the caller.
            transaction.given += count
            self._busy = FREE
        except CodecError:  # the caller gets it in place of the first item, which stays on hold
            transaction.given += 1
            self._busy = FREE
            raise
        except BaseException:
            self._busy = TORN
            self._end_badly()
            raise
        else:
            return items

    def _enqueue_cached(self, item: Any) -> bool:
        """Buffer an item as ``enqueue`` does, unless the session would first have to spill; return True if it is
        buffered.

        The call never waits for a disk, so an event loop may make it. Raises the errors of ``enqueue`` that do not come
        from a spill.
        """
        data = item if type(item) is bytes else as_bytes(item)
        size_bytes = len(data)
        if size_bytes > ITEM_BYTES_MAX:
            raise too_large(size_bytes)
        if self._busy:
            self._begin()
        self._busy = BUSY
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
            self._busy = FREE

    def dequeue_cached(self, max_items: int) -> list[T]:
        """Hold up to ``max_items`` ready items that are in memory and return them, in order, decoded as by ``dequeue``.

        The call reads no file and does not look for published files. It never waits for a disk, so an event loop may
        make it. In a queue that counts delivery attempts the list is always empty, because each delivery must be logged
        first.

        Args:
            max_items: Highest number of items to return, at least 0.

        Returns:
            The items. The list is empty if there is no ready item, or if the first ready item is not in memory.

        Raises:
            TypeError, ValueError: If ``max_items`` is no whole number, or negative.
            CodecError: If the codec cannot decode the first item. That item is on hold all the same, and no other one.
            WrongKeyError, MissingExtraError: If the codec lacks a key or a package for the first item. It stays ready.
            SubscriptionNotFoundError: If the queue has only named subscriptions.
            ClosedError: If the session or its queue is closed.
            BrokenQueueError: If a sync or a write of the log has failed before: close the queue and open it again.
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the call interrupts another call of the same queue in the same thread.

        The items stay on hold until ``flush`` consumes them durably, or ``rollback`` releases them. For one thread at a
        time.
        """
        if type(max_items) is not int or max_items < 0:
            max_items = checked_count("max_items", max_items)
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            transaction, reader = self._open(), self._consumer()
            items: list[Any] = self._open_queue.around(partial(reader.take_cached, max_items, transaction.runs))
            if items and not transaction.since_seconds:
                transaction.since_seconds = self._open_queue.now()
            if self._codec is not None:
                items = self._decoded(items)
            count = len(items)
            # No call from here on, so no interruption: the items that were taken reach the caller.
            transaction.given += count
            self._busy = FREE
        except CodecError:  # the caller gets it in place of the first item, which stays on hold
            transaction.given += 1
            self._busy = FREE
            raise
        except BaseException:
            self._busy = TORN
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
        self._busy = BUSY
        try:
            number = checked_held(count, self._open().given)
            self._give_back(number, number)
            self._busy = FREE
        except BaseException:
            self._busy = TORN
            self._end_badly()
            raise

    @overload
    def flush(
        self, marker: tuple[str, int] | None = None, timeout: float | None = None, *, wait: Literal[True] = True
    ) -> bool: ...

    @overload
    def flush(
        self, marker: tuple[str, int] | None = None, timeout: float | None = None, *, wait: Literal[False]
    ) -> Ticket: ...

    @overload
    def flush(
        self, marker: tuple[str, int] | None = None, timeout: float | None = None, *, wait: bool
    ) -> bool | Ticket: ...

    def flush(
        self, marker: tuple[str, int] | None = None, timeout: float | None = None, *, wait: bool = True
    ) -> bool | Ticket:
        """Commit everything since the last flush as one atomic transaction::

            with queue.session() as session:
                session.enqueue(b"one")
                session.flush()  # durable, and visible to other sessions

        The transaction contains the enqueued items, the rejections, the marker, and the consumption of every item that
        the session holds. After work that has failed, call ``rollback`` or ``reject`` first, or its item is consumed.

        Args:
            marker: A tuple ``(name, version)`` to record with the transaction; None (the default) records nothing. The
                name has 1 to 65,535 bytes in UTF-8, and the version is from 0 to 2**64 - 1.
            timeout: Seconds to wait for room, at least 0. 0 does not wait; None (the default) waits for ever. Without
                ``full="block"`` the flush never waits, and a value above 0 is an error. The time does not bound the
                wait for tickets of the session that wait for room themselves.
            wait: True (the default) to return when the transaction is durable, behind all tickets of the session. False
                to return a ticket.

        Returns:
            True if the transaction was committed, or if there was nothing to commit. False if the marker ``name`` had
            reached ``version`` before: nothing is committed, and the session is rolled back. With ``wait=False`` a
            ``Ticket`` that gets this result.

        Raises:
            QueueFullError: If a limit leaves no room. Nothing was committed, and the session keeps its operations. Make
                room, then flush again.
            ResourceError: If the operating system lacks something, such as disk space. Nothing was committed, and the
                session keeps its operations. Flush again later.
            PrecedingFlushError: If an earlier flush with ``wait=False`` failed, and the session was not rolled back
                since. Nothing was committed.
            InvalidTransactionError: If the transaction contradicts the queue. Nothing was committed: roll the session
                back.
            SubscriptionNotFoundError: If the subscription that the items were dequeued from was removed. Nothing was
                committed.
            BrokenQueueError: If a sync or a write of the log fails, or has failed before. It is unknown whether this
                flush is committed: close the queue and open it again.
            ValueError: If the timeout is negative or not a number, or above 0 without ``full="block"``, or if the
                marker is out of range. Or with ``wait=False`` in a transaction over several queues.
            TypeError: If the marker is not a tuple of a string and an integer, or ``wait`` is not True or False.
            ClosedError: If the session or its queue is closed.
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the call interrupts another call of the same queue in the same thread.

        On return, or once the ticket has its result, the transaction is durable. A crash before that leaves the first
        tickets of the session, in order, and none behind a missing one. With ``sync=False`` a power cut may still take
        the latest flushes, in order from the last. If the flush is interrupted, by a ``KeyboardInterrupt`` for example,
        it may be repeated. If the transaction was committed or handed over then, the session is empty; if not, it keeps
        its operations.

        Marker: it makes repeated work take effect once. Work that is repeated after a crash passes the same marker, and
        is then not committed again.

        Room: if a limit leaves no room for the enqueued items, a queue with ``full="block"`` waits for it. The flush
        waits behind those that waited before, until another session has dequeued enough and flushed. Waiting uses no
        processor time. Items that this session has dequeued make room for its own items only in its own commit. A
        session that holds all items and enqueues more than it holds should pass a timeout: no other session can then
        make room. Two kinds of flush never wait for room: one that moves rejected items to a dead-letter queue, and one
        of a transaction over several queues. The latter flushes all of its sessions (see ``transaction``).

        Tickets: with ``wait=False`` the session goes on with its next transaction. A thread of the session commits in
        order, many flushes with one sync. If 500 flushes or 4 MiB of items wait for it, the call waits for it. A flush
        with rejected items is committed before the call returns. If a flush fails, nothing of it is committed, and
        nothing of the flushes behind it. The items that they have dequeued stay on hold until ``rollback``. Leaving the
        ``with`` block, ``close`` and ``PersistentQueue.close`` wait for all tickets.

        For one thread at a time.
        """
        if self._together is not None:
            return self._together.flush(self, marker, timeout, wait)
        if wait is not True and not checked_truth("wait", wait):
            return self._begin_flush(marker, timeout)
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            transaction, open_queue = self._transaction, self._open_queue
            if transaction is None or not open_queue.is_usable:
                transaction = self._open()
            if self._pipeline is not None:
                self._pipeline.settle()
            if timeout is not None:
                timeout = self._checked_wait(timeout)
            # That of a refused flush counts no more.
            transaction.marker = None if marker is None else checked_marker(marker)
            if marker is None and not (transaction.items or self._taken or transaction.runs or transaction.pieces):
                self._busy = FREE
                return True
            if self._taken:
                self._note(transaction)
            self._queue_commit(transaction, timeout)
            was_committed = self._finish(transaction)
            self._busy = FREE
        except BaseException:
            self._busy = TORN
            self._end_badly()
            raise
        else:
            return was_committed

    def _begin_flush(self, marker: tuple[str, int] | None, timeout: float | None) -> Ticket:
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            transaction = self._open()
            timeout = self._checked_wait(timeout)
            transaction.marker = None if marker is None else checked_marker(marker)
            ticket = self._hand_over(transaction, timeout)
            if ticket is None:
                self._queue_commit(transaction, timeout)
                ticket = done(self._finish(transaction))
            self._busy = FREE
        except BaseException:
            self._busy = TORN
            self._end_badly()
            raise
        else:
            return ticket

    def _checked_wait(self, timeout: float | None) -> float | None:
        """Return the timeout of a flush as ``checked_timeout`` does. Raises ``ValueError`` also if the queue would not
        wait."""
        seconds = checked_timeout(timeout)
        if seconds and not self._open_queue.blocks:
            raise ValueError(f'a timeout of {seconds} seconds needs a queue with full="block"')
        return seconds

    def give_up(self) -> None:
        """End the wait of a ``flush`` for room, in another thread.

        The waiting flush raises ``QueueFullError``, and the session keeps its operations. If no flush waits, the next
        flush of the same transaction raises that error instead of waiting.

        Nothing becomes durable by this call. For any thread.
        """
        transaction = self._transaction
        if transaction is not None:
            self._open_queue.give_up(transaction)
        if self._pipeline is not None:
            self._pipeline.give_up()

    def reject(
        self, item: T | CodecError, reason: str = "", *, retry: bool = True, delay_seconds: float | None = None
    ) -> None:
        """Mark a held item as failed: the first equal item behind the one that was rejected last, else the first equal
        item. One that the codec encodes alike is preferred, so that 1, 1.0 and True are not confused.

        The next ``flush`` does not consume the item with the others. With ``retry`` the item is ready again in its old
        place, at once or after a delay. Without ``retry``, or if its delivery attempts are used up, the item becomes a
        dead letter with this reason. All of that is part of the transaction that the flush commits. A flush that moves
        items to the dead letters does not wait for room.

        The queue must have been opened with ``dead_letter`` or ``retry_delay_seconds``.

        Args:
            item: The item as ``dequeue`` returned it. For an item that the codec could not decode, its ``CodecError``.
            reason: Why the item failed, for its dead letter. The default is empty; for a ``CodecError`` it is the text
                of that error without its advice.
            retry: True (the default) to deliver the item again if it has attempts left. False to make it a dead letter.
            delay_seconds: Seconds until the item is ready again, from 0 to ten years. None (the default) takes
                ``retry_delay_seconds`` of the queue.

        Raises:
            NotHeldError: If the session holds no such item that it has not rejected yet; also a ``ValueError``.
            ValueError: If the delay is out of range. If the queue does not count attempts. If ``retry`` is False and
                the queue has no dead letters.
            TypeError: If the reason is not a string.
            CorruptionError: If the block of a held item cannot be read any more.
            SubscriptionNotFoundError: If the item is gone with its subscription, or the queue has only named
                subscriptions.
            ClosedError: If the session or its queue is closed.
            BrokenQueueError: If a sync or a write of the log has failed before: close the queue and open it again.
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the call interrupts another call of the same queue in the same thread.

        An error that a callable ``retry_delay_seconds`` raises comes out as it is. Nothing is durable before ``flush``
        returns: a ``rollback`` drops the rejections. For one thread at a time.
        """
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            transaction = self._open()
            if self._trial is None:
                needs = "max_attempts=, dead_letter= or retry_delay_seconds="
                raise ValueError(f"this queue does not count attempts: open it with {needs} to reject items")
            if isinstance(item, CodecError):
                reason = reason or item.problem
            self._trial.reject(transaction, self._consumer(), self._meaning(item), reason, retry, delay_seconds)
        finally:
            self._busy = FREE

    def extend(self) -> None:
        """Do nothing: in the process that owns the queue, a session holds its items for as long as it lives.

        It stands for ``WorkerSession.extend``, so that code runs in the owner and in the workers. For any thread.
        """

    def rollback(self) -> None:
        """Drop what was enqueued and release what was dequeued since the last flush.

        The session can be used afterwards. With ``retry_delay_seconds`` the released items are ready again when that
        delay is over. Flushes with ``wait=False`` are not rolled back: the call waits for their end. It releases what
        failed ones have dequeued, and forgets their error.

        Raises:
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the call interrupts another call of the same queue in the same thread.

        An error that a callable ``retry_delay_seconds`` raises comes out as it is; the items are released all the same.
        Only the delays, if any, become durable. For one thread at a time.
        """
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            if self._pipeline is not None:
                self._pipeline.forgive()
            self._roll_back(self._new())
        finally:
            self._busy = FREE

    def close(self) -> None:
        """Roll back what was not flushed, and end the session, after all its flushes with ``wait=False``.

        Closing again does nothing.

        Raises:
            PrecedingFlushError: If a flush with ``wait=False`` failed, and the session was not rolled back since. The
                session is closed nevertheless.
            SessionInUseError: If another call of the session is under way.
            ReentrantUseError: If the call interrupts another call of the same queue in the same thread.

        An error that a callable ``retry_delay_seconds`` raises comes out as it is; the items are released all the same.
        Only the delays, if any, become durable. For one thread at a time.
        """
        if self._transaction is None:
            return
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            pipeline = self._pipeline
            if pipeline is not None:
                pipeline.drain()
                pipeline.release()
            try:
                self._roll_back(None)
            finally:
                if pipeline is not None:
                    pipeline.end()
                    pipeline.join()
            if pipeline is not None and pipeline.failure is not None:
                raise pipeline.failure
        finally:
            self._busy = FREE

"""An open queue: group commit and waiting, the thin layer of threads around the store.

A flush lines up in ``group_commit``: one thread at a time commits for all that came meanwhile. No thread is started
here, but for the jobs of ``background``.

Locks, in the order in which a thread may take them:

- ``_compacting`` is held over a compaction, and over everything else that maintenance writes.
- ``writing`` of the group commit is held over the writes of a commit.
- ``_reading``, which the readers of the store share, is held over a read of a file.
- ``giving_back`` is held while retired segments are deleted.
- The lock of a memory budget.
- ``mutex`` guards all memory. It is held briefly, never over a write or a sync.

A signal handler may raise between any two instructions of the main thread. So every change of files, or of memory in
several steps, is a shielded call, and the locks are taken inside that call. The short ways of a commit and of a dequeue
do without a shielded call. They are written so that an interruption finds nothing done, or something that is finished
then.

With ``full="block"``, a transaction that finds no room waits in a line, in the order in which it came. The first one
tries again whenever items were dequeued or released. It then commits like any other and leaves the line, and the next
one is first.

A transaction that only enqueues lines up behind those that wait. A transaction that also dequeues is tried first: it
may free the space that the others need. A transaction over several queues is tried first as well: it must not wait here
while others wait for it in another queue.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Any, TypeVar

from ..core.availability import Availability
from ..core.intervals import Run, count_of, last_of, without
from ..core.state import StateError
from ..engine.context import Guards
from ..engine.inbox import LOOK_NAMES, STEP_NAMES
from ..engine.reader import CountedAvailability, Reader
from ..engine.store import Store
from ..engine.transaction import Transaction
from ..errors import (
    CorruptionError,
    MemoryShortageError,
    PersistentQueueError,
    QueueDeletedError,
    QueueFullError,
    QueueLockedError,
    ResourceError,
    SubscriptionNotFoundError,
)
from ..interrupts.call_guard import outermost, whole
from ..interrupts.locks import Lock
from ..interrupts.signal_shield import is_exposed
from ..measuring.stalls import stalled
from ..storage.publication import LATEST
from ..system.disk import DISK, Disk
from ..system.event_log import LOGGER
from ..system.path_errors import faults
from ..system.wakeup import LONGEST_SECONDS
from .closing import ClosableQueue
from .group_commit import GroupCommit
from .waiting import ItemWaiters, Waiter

T = TypeVar("T")
OpenStore = Callable[[Guards], Store]
"""Opens a store with the guards of its owner."""
_SETTLED = attrgetter("settled")
_now = time.monotonic
get_ident = threading.get_ident
_UNCOUNTED = 256
"""Transactions, or reads, after which the samples are added to the histograms, unless a call asks for them earlier."""
_LOOK_SECONDS = 0.001
"""Minimum interval between looks at the inbox by threads that commit, in seconds: each look is a system call."""
_POLL_SECONDS = 0.01
"""Pause between attempts of an opening that waits for the lock, in seconds."""


class OpenQueue(ClosableQueue):
    """The part of a queue that all its sessions share: the store, and the order in which threads use it. For any number
    of threads."""

    def __init__(
        self,
        open_store: OpenStore,
        lock_timeout_seconds: float = 0.0,
        keep: Callable[[OpenQueue], object] | None = None,
        disk: Disk = DISK,
    ) -> None:
        """Open the store, and wait for its lock up to the timeout.

        ``keep`` gets this object before the store is opened, so that no interruption loses an open store.
        """
        super().__init__()
        self._group_commit = GroupCommit(
            self.mutex, self.check_closed, self._write, partial(self.meters.note_stall, "writer")
        )
        self.writing = self._group_commit.writing
        self.is_usable = False
        """True if the queue is open and not broken: a single test on the way of each item."""
        self._abandoned: list[Transaction] = []
        self.after_commit: Callable[[], None] = lambda: None
        """Called after a commit (see ``maintenance``)."""
        self.maintenance_is_due = False
        """True if maintenance is scheduled but has not started."""
        self._note_flush = self.meters.flush_seconds.note
        self._note_write = self.meters.group_size.note, self.meters.commit_seconds.note
        self._counts_at = _UNCOUNTED
        """Transaction count at which the samples are next added to the histograms."""
        self._reading = Lock()
        if keep is not None:
            keep(self)
        try:
            self._open_store(open_store, lock_timeout_seconds, disk)
            self._waiters = ItemWaiters(self.mutex, self._store.inbox.watched)
            """Threads that wait for an item."""
            self._give_back_soon()
            self.recall()
            self.closed = None
            self.is_usable = True
            self._store.dependent = self
            if self._store.broken is not None:
                self.is_usable = False
        except BaseException as error:
            if hasattr(self, "_store"):
                self.shielded(self._store.close)
            if isinstance(error, CorruptionError):  # behind the close: an interruption of this must not keep the lock
                LOGGER.error("%s", error)
            raise

    def _open_store(self, open_store: OpenStore, timeout_seconds: float, disk: Disk) -> None:
        """Open the store by a shielded call. Only the wait for the lock may be interrupted."""

        def attempt() -> None:
            """Open the store, if its lock is free."""
            self._store = store = open_store(Guards(self.mutex, self._reading, self.shielded, self.meters.note_stall))
            self.directory = store.directory

        deadline = disk.monotonic() + timeout_seconds
        while True:
            try:
                self.shielded(attempt)
            except QueueLockedError:
                if disk.monotonic() >= deadline:
                    raise
                disk.sleep(_POLL_SECONDS)
            else:
                return

    @staticmethod
    def now() -> float:
        """Return a time in seconds, of which only differences mean anything."""
        return _now()

    def commit(self, transaction: Transaction, timeout_seconds: float | None = None) -> None:
        """Commit the transaction, in a group with others that wait; durable on return.

        If the queue ``blocks``, it waits for room up to the timeout (None: for ever). Raises ``ResourceError`` and
        ``QueueFullError`` (nothing of it was committed), and ``BrokenQueueError`` (the outcome is unknown).
        """
        thread, inside = get_ident(), self.inside
        if inside and (0 in inside or thread in inside):
            self.check_outermost()
        # The steps of ``outermost``, inline: the decorator would take longer.
        inside[thread] = None
        try:
            began = _now()
            if self._room_waiters.taken and transaction.enqueues and not transaction.runs:
                self._wait_for_room(transaction, timeout_seconds, None)
            else:
                try:
                    self._commit(self._group_commit.commit, transaction)
                except QueueFullError as error:
                    if error.lasting or not self.blocks:
                        raise
                    self._wait_for_room(transaction, timeout_seconds, error)
            self._note_flush(_now() - began)
        except QueueFullError:
            if transaction.origin is None:  # that of a worker counts when the worker gets it: it may wait for room
                self.count_refused(1)
            raise
        finally:
            del inside[thread]

    @outermost
    def commit_all(self, transactions: Sequence[Transaction]) -> None:
        """Commit the transactions in one group, each as a transaction of its own, without waiting for room.

        A transaction that finds no room has a ``QueueFullError``. A transaction that only enqueues has one as well if
        other threads wait for room. On return each is settled and durable, or has its ``error``. Raises
        ``ClosedError``.
        """
        began = _now()
        limits, behind, going = self._store.limits, list[Transaction](), transactions
        if self._room_waiters.taken:
            behind = [each for each in transactions if each.enqueues and not each.runs]
            going = [each for each in transactions if each not in behind]
        try:
            if going:
                self._commit(self._group_commit.commit_all, going)
        finally:
            if behind or not all(map(_SETTLED, going)):
                with self.mutex:
                    for each in behind:
                        each.error = limits.refuse_for_ever(each) or limits.refuse(each, limits.nearest)
                full = [each for each in transactions if isinstance(each.error, QueueFullError)]
                self.count_refused(sum(each.origin is None for each in full))
        seconds = _now() - began
        for each in transactions:
            if each.settled:
                self._note_flush(seconds)

    def _end_interrupted(self, what: Transaction | Sequence[Transaction]) -> None:
        """Give up what an interrupted commit has not given up itself, since the stack had no room, and tell all."""
        self._group_commit.withdraw([what] if isinstance(what, Transaction) else what)
        self._tell_all()

    def _commit(self, commit: Callable[[Any], bool], what: Transaction | Sequence[Transaction]) -> None:
        """Commit ``what`` by ``commit``, if there is room. The thread that has led the group calls ``follow_up`` for
        the whole group."""
        try:
            # Waiting for a leader takes longer than a shield does.
            if self._group_commit.leader is not None and is_exposed():
                has_led = self.shielded(partial(commit, what))
            else:
                has_led = commit(what)
        except PersistentQueueError:
            if self.closed is None:
                self.follow_up()
            raise
        except BaseException:  # interrupted, perhaps behind a commit that no waiter was told of
            self.surely(partial(self._end_interrupted, what))
            raise
        if has_led:
            self.follow_up()

    def follow_up(self) -> None:
        """Do what follows a commit: look at the inbox, delete retired segments, schedule maintenance, balance the
        memory budget.

        It also follows a commit that found no room. That commit may have trimmed the log, and there may be room to be
        made.
        """
        adopter = self._store.adopter
        now = adopter.monotonic()
        if now >= adopter.passing_seconds and not self.writing.locked():
            adopter.passing_seconds = now + _LOOK_SECONDS
            self._look_by_the_way()
        if self._store.generations.retired:
            self._give_back_soon()
        if not self.maintenance_is_due:
            self.shielded(self.after_commit)
        share = self._share
        if share is not None and share.is_due():
            self.shielded(share.budget.balance)
        if self.transactions >= self._counts_at:
            self._counts_at = self.transactions + _UNCOUNTED
            with self.mutex:
                self.meters.count()

    def _write(self, group: Sequence[Transaction]) -> None:
        """Commit the group, and wake the threads that wait for its items, or for room."""
        self.check_closed()
        store, waiters = self._store, self._waiters
        before, began = store.state.next_sequence, _now()
        try:
            store.commit(group)
        finally:
            if waiters.keeper is not None or waiters.sleeping or self._room_waiters.taken:
                self._tell_of(group, store.state.next_sequence - before)
        settled = sum(map(_SETTLED, group))
        if settled:
            self.groups += 1
            self.transactions += settled
            note_size, note_seconds = self._note_write
            note_size(settled)
            note_seconds(_now() - began)

    def _tell_of(self, group: Sequence[Transaction], enqueued: int) -> None:
        """Wake the threads that wait for items that the group has enqueued, or for room. Wake all of them if the queue
        is broken."""
        is_broken = self._store.broken is not None
        with self.mutex:
            if is_broken:
                self._waiters.wake_all()
            else:
                self._wake(enqueued)
            if is_broken or any(each.runs and each.settled for each in group):
                self._room_waiters.tell_first()

    def _wake(self, count: int) -> None:
        """Wake waiters for ``count`` items that were enqueued or released. The mutex is held."""
        if len(self._store.subscriptions) == 1:
            self._waiters.wake(count)
        elif count:  # each item is for many subscriptions, and waiters are not kept by subscription
            self._waiters.wake_all()

    def take_part(self, transaction: Transaction, turns: ExitStack) -> Store:
        """Let the caller commit this transaction together with transactions of other queues, while no other thread
        commits here.

        When ``turns`` ends, so does the turn of this transaction, and the waiting threads are told. The caller must
        call ``follow_up`` when the transaction is over in all queues. Raises ``ClosedError``.
        """
        came = _now()
        self.writing.acquire()  # released at the end of the turn
        try:
            self.check()
            turns.callback(self._end_turn, transaction, came, _now(), self._store.state.next_sequence)
        except BaseException:
            self.writing.release()
            raise
        return self._store

    def _end_turn(self, transaction: Transaction, came: float, began: float, before: int) -> None:
        store, waiters = self._store, self._waiters
        try:
            if waiters.keeper is not None or waiters.sleeping or self._room_waiters.taken:
                self._tell_of([transaction], store.state.next_sequence - before)  # all of them, if it is broken
            self.transactions += transaction.settled
            if transaction.committed:
                self.groups += 1
                self.meters.group_size.note(1)
                self.meters.commit_seconds.note(_now() - began)
            if isinstance(transaction.error, QueueFullError):
                self.count_refused(1)
        finally:
            self.writing.release()
        if transaction.settled:
            self._note_flush(_now() - came)

    @whole
    def spill(self, transaction: Transaction) -> None:
        """Write the items of the transaction to segments, ahead of its commit. Raises ``ResourceError`` and
        ``QueueFullError``."""
        with self.alone():
            self._store.spill(transaction)
        transaction.since_seconds = transaction.since_seconds or self.now()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the write lock for a write beside the commits. Raises ``ClosedError``."""
        with self.writing:
            self.check()
            try:
                yield
            finally:
                if self._store.broken is not None:
                    self._tell_all()

    def take(self, reader: Reader, max_items: int, timeout_seconds: float | None, runs: list[Run]) -> list[bytes]:
        """Hold up to ``max_items`` items, return them, and append their runs to ``runs``.

        Waits for the first item up to the timeout (None: for ever). After an interruption ``runs`` may contain runs
        that were not returned. The caller has checked that the queue is open and not broken. Raises
        ``CorruptionError``, and ``SubscriptionNotFoundError`` if the subscription of the reader was removed.
        """
        thread, inside = get_ident(), self.inside
        if inside and (0 in inside or thread in inside):
            self.check_outermost()
        # The steps of ``outermost``, inline: the decorator would take longer.
        inside[thread] = None
        try:
            deadline = None if timeout_seconds is None else _now() + timeout_seconds
            taken = self._take_now(reader, max_items, deadline, runs)
            if not taken and timeout_seconds != 0:
                taken = self._wait_for_items(reader, max_items, deadline, runs)
        except (CorruptionError, MemoryShortageError):
            self._room_waiters.tell()  # items that cannot be read do not count for ``max_items``
            raise
        except BaseException:  # perhaps woken for an item: another thread must take it
            self.surely(partial(self.pass_on, reader))
            raise
        else:
            return taken
        finally:
            del inside[thread]

    def fill(self, reader: Reader) -> None:
        """Fill the lane (see ``Reader.fill``). The caller has checked that this thread is in no other call."""
        thread, inside = get_ident(), self.inside
        # The steps of ``outermost``, inline: the decorator would take longer.
        inside[thread] = None
        try:
            reader.fill()
        finally:
            del inside[thread]

    def pass_on(self, reader: Reader) -> None:
        """Wake another waiting thread, if there is an item for it."""
        with self.mutex:
            if len(reader.ready):
                self._wake(1)

    def _take_now(self, reader: Reader, max_items: int, deadline: float | None, runs: list[Run]) -> list[bytes]:
        """Hold ready items, without sleeping. If there are none, adopt published files until the deadline, and try
        again.

        If there is still no item, raises ``CorruptionError`` for a damaged published file, or ``QueueFullError`` for
        one that never fits, once for each file.
        """
        if reader.ready.is_closed:
            raise self.removed(reader.ready)
        reads, began = reader.page_reads, _now()
        taken = self._take_from(reader, max_items, runs)
        if reader.page_reads > reads:
            meter = self.meters.read_seconds
            meter.note(_now() - began)
            if len(meter) >= _UNCOUNTED:  # no flush may come that counts
                with self.mutex:
                    meter.count()
        if not taken and max_items and self._look_for(reader, deadline):
            taken = self._take_from(reader, max_items, runs)
        if not taken and self._store.inbox.damage:
            raise self._store.inbox.damage.popleft()
        return taken

    def _take_from(self, reader: Reader, max_items: int, runs: list[Run]) -> list[bytes]:
        try:
            return reader.take(max_items, runs, self.shielded)[1]
        except StateError:
            if not reader.ready.is_closed:
                raise
            # Another thread has removed the subscription while this one waited to read a file.
            raise self.removed(reader.ready) from None

    def removed(self, ready: Availability) -> SubscriptionNotFoundError:
        """Return the error for a call of a subscription that was removed."""
        return SubscriptionNotFoundError(self.directory, ready.name, self._store.subscriptions.names())

    def _look_by_the_way(self, insists: bool = False) -> None:
        """Call ``_look``, and ignore errors of the inbox except ``QueueDeletedError``: they must not fail an unrelated
        commit."""
        try:
            self._look(insists)
        except QueueDeletedError:
            raise
        except faults(PersistentQueueError, OSError):
            pass

    def _look_for(self, reader: Reader, deadline: float | None) -> bool:
        """Adopt published files, step by step, until this reader has an item or the deadline is over. Make one step in
        any case.

        Returns True if there may have been published files. Raises the errors of ``Inbox.adopt``.
        """
        has_looked = False
        is_waiting = deadline is None or _now() < deadline
        while self._look(insists=True, most=STEP_NAMES if is_waiting else LOOK_NAMES):
            has_looked = True
            with self.mutex:
                is_there = bool(len(reader.ready))
            if is_there or not self._store.inbox.is_cut or (deadline is not None and _now() >= deadline):
                break
        return has_looked

    def _look(self, insists: bool = False, most: int = LOOK_NAMES) -> bool:
        """Adopt some published files, if there may be any. Return True if there may be any.

        Other threads may write between two such steps. Raises the errors of ``Inbox.adopt``.
        """
        if not insists and self.writing.locked():
            return False  # a flush must not wait for another writer: a later flush looks
        if not self._store.inbox.has_news(insists):
            if self._store.inbox.is_gone:
                with self.alone():
                    self._store.need_directory()
            return False
        self.shielded(partial(self._adopt_published, insists, most))
        return True

    def _adopt_published(self, insists: bool, most: int) -> None:
        with self.alone():
            state = self._store.state
            before, gone = state.next_sequence, state.gone_count
            try:
                self._store.adopter.adopt(insists, most)
            finally:
                with self.mutex:
                    self._wake(state.next_sequence - before)
                    if state.gone_count > gone:
                        self._room_waiters.tell_first()

    def _wait_for_items(self, reader: Reader, max_items: int, deadline: float | None, runs: list[Run]) -> list[bytes]:
        while self._sleep(reader, deadline):
            taken = self._take_now(reader, max_items, deadline, runs)
            if taken:
                return taken
        return []

    def _sleep(self, reader: Reader, deadline: float | None, stop: Callable[[], bool] = bool) -> bool:
        """Sleep until there may be something for this reader, or earlier. Return False if the time is over or ``stop``
        returned a true value."""
        is_over = False

        def must_wait() -> float | None:
            """Return the seconds to sleep; None if there is nothing to wait for any more."""
            nonlocal is_over
            if len(reader.ready) or reader.ready.is_closed:
                return None
            self.check_closed()
            self._store.check()
            left = None if deadline is None else deadline - _now()
            is_over = (left is not None and left <= 0) or stop()
            if is_over:
                return None
            left = reader.until_due(left)
            return LONGEST_SECONDS if left is None else left

        self._waiters.wait(must_wait, self.outside)
        if is_over:
            return False
        self.check_usable()
        return True

    @outermost
    def wait(self, reader: Reader, timeout_seconds: float | None, stop: Callable[[], bool]) -> bool:
        """Wait until this reader has an item, or a published file has an error to report. Nothing is held.

        Returns True if there is one, or if the subscription was removed. ``stop`` is called before each sleep, with the
        mutex held.
        """
        deadline = None if timeout_seconds is None else _now() + timeout_seconds
        while True:
            with self.mutex:
                is_there = bool(len(reader.ready))
            if not is_there:
                self._look_for(reader, deadline)
            with self.mutex:
                if len(reader.ready) or reader.ready.is_closed or self._store.inbox.damage:
                    self._waiters.wake(1)  # this thread was woken and takes nothing: pass it on
                    return True
            if not self._sleep(reader, deadline, stop):
                return False

    def enlist(self, reader: Reader, waiter: Waiter) -> float:
        """Let ``waiter`` stand in the line of those that wait for an item, unless ``has_item``: then it stays told.

        Returns the seconds until a delayed item is ready; ``inf`` if there is none.
        """
        with self.mutex:
            if len(reader.ready) or self.has_news(reader):
                return 0.0
            waiter.is_told = False
            self._waiters.enlist(waiter)
            left_seconds = reader.until_due(None)
            return inf if left_seconds is None else left_seconds

    def dismiss(self, waiter: Waiter) -> None:
        """Let ``waiter`` leave the line, and another one be told in its place."""
        with self.mutex:
            self._waiters.dismiss(waiter)

    @outermost
    def adopt_news(self) -> None:
        """Adopt some published files, if there may be any, and wake waiters for their items."""
        self._look_by_the_way(insists=True)

    @outermost
    def wake(self) -> None:
        """Wake all threads that wait for an item, so that each looks again."""
        with self.mutex:
            self._waiters.wake_all()

    @whole
    def subscribe(self, name: str, start: str) -> Reader:
        """Return the subscription of this name. If it is new, it begins at ``start`` and is durable. Raises
        ``ResourceError`` and ``BrokenQueueError``."""
        with self.alone():
            state = self._store.state
            if state.number_of(name) is None:
                self._store.subscribe(name, LATEST if start == "latest" else 0)
                self._room_waiters.tell()  # the first subscription of all may begin behind items, which are gone then
            return self._store.subscriptions.find(name)

    @whole
    def unsubscribe(self, name: str) -> None:
        """Remove the subscription; durable on return. Raises ``SubscriptionNotFoundError``, and the errors of
        ``subscribe``."""
        with self.alone():
            try:
                self._store.unsubscribe(self._store.subscriptions.find(name).ready.number)
            finally:
                with self.mutex:
                    self._waiters.wake_all()
                    self._room_waiters.tell_first()
        with suppress(ResourceError):  # then a later trim frees the segments that only this subscription needed
            self._trim()

    def discard(self, transaction: Transaction) -> None:
        """Release what the transaction holds, drop what it enqueues, and wake threads that wait for an item."""
        if self.closed is not None:
            return
        if transaction.runs or transaction.pieces:
            try:
                self._discard_whole(transaction)
            except RecursionError:
                self.abandon(transaction)
                raise
        else:
            transaction.items = []

    @outermost
    def _discard_whole(self, transaction: Transaction) -> None:
        wrote = bool(transaction.pieces)
        self.shielded(partial(self._discard, transaction))
        if wrote:
            self.give_back_spilled()
            self._room_waiters.tell()

    def consume_ready(self) -> int:
        """Consume all ready items of the plain queue in one transaction; return their number. Raises the errors of
        ``PersistentQueue.clear``."""
        ready = self.need_plain().ready
        transaction = Transaction(ready)
        try:
            self.look(lambda: ready.hold(len(ready), transaction.runs))
            count = count_of(transaction.runs)
            if count:
                self.commit(transaction)
        except BaseException:
            self.discard(transaction)
            raise
        return count

    def put_back(self, transaction: Transaction, count: int) -> None:
        """Release the last ``count`` sequences that the transaction holds, with their rejections, and wake threads that
        wait for an item."""
        if count > 0 and self.closed is None and transaction.ready is not None and not transaction.is_invalid:
            self._put_back(transaction.ready, transaction, count)

    @whole
    def _put_back(self, ready: Availability, transaction: Transaction, count: int) -> None:
        if transaction.rejections:
            for first, length in last_of(transaction.runs, count):
                for sequence in range(first, first + length):
                    transaction.rejections.pop(sequence, None)
        with self.mutex:
            ready.give_back(transaction.runs, count)
            self.counts.given_back += count
            self._wake(count)

    def _discard(self, transaction: Transaction) -> None:
        """Release what the transaction holds, unless it was committed, and wake threads that wait for an item."""
        count = 0 if transaction.committed else count_of(transaction.runs)
        self._store.discard(transaction)
        if count:
            with self.mutex:
                self.counts.given_back += count
                self._wake(count)

    @whole
    def release_later(
        self, ready: CountedAvailability, later: list[tuple[int, int, float]], transaction: Transaction | None = None
    ) -> None:
        """Release held runs, each after its number of seconds, and empty the list.

        They leave the transaction, if one is given. An interruption finds all of that done, or nothing of it. Wakes
        the waiting threads: their sleep may have to be shorter.
        """
        if not later:
            return
        by_seconds: dict[float, list[Run]] = {}
        for first, count, seconds in later:
            by_seconds.setdefault(seconds, []).append((first, count))
        if transaction is not None:
            transaction.runs = without(transaction.runs, chain.from_iterable(by_seconds.values()))
        with self.mutex:
            for seconds, runs in by_seconds.items():
                if seconds:
                    ready.postpone(runs, seconds)
                else:
                    ready.release(runs)
                self.counts.given_back += count_of(runs)
            later.clear()
            self._waiters.wake_all()

    def abandon(self, transaction: Transaction) -> None:
        """Discard the transaction from a finalizer, which may run while its own thread holds the mutex, or where the
        stack is full."""
        self._abandoned += (transaction,)  # no call, for which the stack may have no room
        if self.closed is not None:
            return
        try:
            if self.mutex.acquire(blocking=False):
                self.mutex.release()
                self._discard_abandoned()
                return
        except RecursionError:  # a new thread has an empty stack
            pass
        # If another thread holds the mutex, a consumer may wait for these items, and no other call may come.
        with suppress(RuntimeError):  # no more threads: a later call discards it
            _thread.start_new_thread(self._discard_abandoned, ())

    def check(self) -> None:
        """Raise ``ClosedError`` if the queue is closed. Discard what dropped sessions have left behind."""
        self.check_closed()
        if self._abandoned and not self.mutex.locked():
            self._discard_abandoned()

    def check_usable(self) -> None:
        """Raise ``BrokenQueueError`` if the queue is broken, after ``check``."""
        self.check()
        self._store.check()

    def _discard_abandoned(self) -> None:
        """Discard the transactions that dropped sessions have left behind."""
        if self._abandoned:
            self.shielded(self._discard_each_abandoned)

    def _discard_each_abandoned(self) -> None:
        with suppress(IndexError):  # another thread has taken the last one
            while self._abandoned:
                transaction = self._abandoned.pop()
                try:
                    self._discard(transaction)
                except RecursionError:
                    self._abandoned.append(transaction)
                    raise
                self._room_waiters.tell()

    def _tell_all(self) -> None:
        """Wake all waiting threads: the queue is broken, or an interruption came before they were told."""
        with self.mutex:
            self._waiters.wake_all()
        self._room_waiters.tell()

    def _wait_for_room(
        self, transaction: Transaction, timeout_seconds: float | None, error: QueueFullError | None
    ) -> None:
        """Commit the transaction when it is its turn and there is room.

        ``error`` is the refusal of an earlier attempt; None if there was none.
        """
        limits = self._store.limits
        with self.mutex:
            lasting = limits.refuse_for_ever(transaction)
        if lasting is not None:
            raise lasting

        def refuse() -> QueueFullError:
            """Return the error for a wait that is over without any attempt. The mutex is held."""
            return error or limits.refuse(transaction, limits.nearest)

        def check() -> None:
            """Raise the error that ends the wait, if it ends: the queue is closed, or the transaction gives up."""
            self.check()
            if transaction.gives_up:
                transaction.gives_up = False
                raise refuse()

        with stalled(_now, self.meters.note_stall, "room"):
            self._room_waiters.wait(
                lambda: self._commit(self._group_commit.commit, transaction),
                refuse,
                check,
                self._look_by_the_way,
                timeout_seconds,
                self.outside,
            )

    @outermost
    def give_up(self, transaction: Transaction) -> None:
        """End the wait of the transaction for room. If it does not wait yet, it is refused when it would."""
        with self.mutex:
            transaction.gives_up = True
            self._room_waiters.wake_all()

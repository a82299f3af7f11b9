"""Group commit, and waiting: the thin layer of threads around the store.

Who flushes stands in a ``line``, of which one at a time commits for all who came meanwhile. No thread is started here,
but for ``maintenance``.

Locks, in the order in which they may be taken: ``_compacting`` (held over a compaction, and over what else maintenance
writes), the line's ``writing`` (held over the writes of a commit), the store's ``reading`` (held over a read),
``giving_back`` (held while retired segments are deleted), that of a memory budget, ``mutex`` (guards all memory, held
briefly, never over a write or a sync).

A signal handler may raise between any two instructions of the main thread. What changes files, or memory in several
steps, is therefore made by ``shielded``, which the locks are taken in; the short ways of a commit and a dequeue are
written so that an interruption finds nothing done, or something that is finished then.

With ``full="block"``, who finds no room takes a seat, in the order of coming. The first one tries again whenever
something was dequeued or given back, commits like anybody else, and leaves; then it is the next one's turn. Who only
enqueues sits down behind those who wait; who dequeues as well tries first, since he may be whom they wait for. So does
who takes part in a transaction over several queues: he may not wait here while others wait for him there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import TypeVar

from ..core.availability import Availability
from ..core.intervals import Run
from ..engine.adoption import LOOK_NAMES, STEP_NAMES
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
from ..storage.publication import LATEST
from ..system.disk import DISK, Disk
from ..system.event_log import telling
from ..system.signal_shield import Shielded, is_exposed
from ..system.wakeup import LONGEST_SECONDS
from .background import BACKGROUND
from .call_guard import CallGuard, outermost
from .group_commit import GroupCommit
from .memory_budget import MemoryBudget, Share
from .metrics import Meters
from .waiting import ItemWaiters, RoomWaiters

T = TypeVar("T")
OpenStore = Callable[[threading.Lock, threading.Lock, Shielded], Store]
"""Opens a store: with the mutex, the lock of readers, and what makes calls that must not be interrupted."""
_SETTLED = attrgetter("settled")
_now = time.monotonic
get_ident = threading.get_ident
_AT_ONCE_BYTES = 1024 * 1024
"""Retired segments up to this size in all are deleted before a flush returns; it takes less than a sync. More of them
are left to maintenance."""
_UNCOUNTED = 256
"""What was measured is counted after so many transactions, or when somebody looks."""
_LOOK_SECONDS = 0.001
"""A thread that commits looks no sooner than so long after another one that did: it is a call of the system."""
_POLL_SECONDS = 0.01
"""How long an opening that waits for the lock pauses before it tries again."""


def _nothing() -> None:
    pass


def _never() -> bool:
    return False


class OpenQueue(CallGuard):
    """What all sessions of a queue share: the store, and who may use it when. For any number of threads."""

    store: Store

    def __init__(
        self,
        open_store: OpenStore,
        lock_timeout_seconds: float = 0.0,
        keep: Callable[[OpenQueue], object] | None = None,
        disk: Disk = DISK,
    ) -> None:
        """Open the store, waiting for its lock; ``keep`` gets the group before: no interruption loses an open store."""
        super().__init__()
        self._group_commit = GroupCommit(self.mutex, self.check_closed, self._write)
        self.writing = self._group_commit.writing
        self._abandoned: list[Transaction] = []
        self._room_waiters = RoomWaiters(self.mutex)
        """Who waits for room."""
        self.refused = 0
        """How many transactions were told that the queue is full."""
        self.given_back = 0
        """How many items came back from sessions that had dequeued them."""
        self.rejected = self.dead = 0
        """How many items were rejected, and how many were moved to the dead letters."""
        self.undecodable = 0
        """How often a codec refused an item that was dequeued."""
        self.after_commit: Callable[[], None] = _nothing
        """Told of a commit; see ``upkeep``."""
        self.maintenance_is_due = False
        """Whether it was told, and did not begin yet."""
        self.groups = self.transactions = 0
        self.meters = meters = Meters()
        self._note_flush = meters.flush_seconds.note
        self._note_write = meters.group_size.note, meters.commit_seconds.note
        self._counts_at = _UNCOUNTED
        """With so many transactions what was measured will be counted."""
        self._reading = threading.Lock()
        self.giving_back = threading.Lock()
        self._is_disowned = False
        self._is_giving_back_due = False
        """Whether it will give back what was retired."""
        self._compacting = threading.Lock()
        self._share: Share | None = None
        """What the queue has of a memory budget, if it has joined one."""
        if keep is not None:
            keep(self)
        try:
            with telling():
                self._open_store(open_store, lock_timeout_seconds, disk)
            self._waiters = ItemWaiters(self.mutex, self.store.adopter.watched)
            """The threads that wait for an item."""
            self._give_back_soon()
            self.closed = None
        except BaseException:
            if hasattr(self, "store"):
                self.shielded(self.store.close)
            raise

    def _open_store(self, open_store: OpenStore, timeout_seconds: float, disk: Disk) -> None:
        """Open the store, which no signal handler interrupts; waiting for the lock may be interrupted."""

        def attempt() -> None:
            self.store = open_store(self.mutex, self._reading, self.shielded)

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

    @property
    def directory(self) -> str:
        """Of the queue."""
        return self.store.directory

    @property
    def waiting_for_room(self) -> int:
        """How many transactions wait for room."""
        return len(self._room_waiters.taken)

    @property
    def blocks(self) -> bool:
        """Whether a transaction that finds no room waits for it."""
        return self.store.settings.full == "block"

    @staticmethod
    def now() -> float:
        """A time in seconds, of which only differences mean anything."""
        return _now()

    def commit(self, transaction: Transaction, timeout_seconds: float | None = None) -> None:
        """Commit it, together with others that wait; durable on return. Waits for room, if the queue ``blocks``, up to
        the timeout (None: for ever).

        Raises ``DiskFullError`` and ``QueueFullError`` (nothing of it was committed) and ``BrokenQueueError`` (nobody
        knows).
        """
        thread, inside = get_ident(), self.inside
        if inside and (0 in inside or thread in inside):
            self.check_outermost()
        # As in ``outermost``, which would take longer.
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
            with self.mutex:
                self.refused += 1
            raise
        finally:
            del inside[thread]

    @outermost
    def commit_all(self, transactions: Sequence[Transaction]) -> None:
        """Commit them, each for itself, in one group. Nobody waits for room: a limit is an error, and so are those who
        wait for room for whoever only enqueues.

        On return each is settled, and durable, or has its ``error``. Raises ``ClosedError``.
        """
        began = _now()
        limits = self.store.limits
        behind = [each for each in transactions if self._room_waiters.taken and each.enqueues and not each.runs]
        going = [each for each in transactions if each not in behind]
        try:
            if going:
                self._commit(self._group_commit.commit_all, going)
        finally:
            for each in behind:
                each.error = limits.refuse_for_ever(each) or limits.refuse(each, limits.nearest)
            with self.mutex:
                self.refused += sum(isinstance(each.error, QueueFullError) for each in transactions)
        seconds = _now() - began
        for each in transactions:
            if each.settled:
                self._note_flush(seconds)

    def _commit(self, commit: Callable[[T], bool], what: T) -> None:
        """Commit it, if there is room. The thread that has led the group follows up, for all of it."""
        try:
            # To wait for a leader takes longer than to hand the call to another thread.
            if self._group_commit.leader is not None and is_exposed():
                has_led = self.shielded(partial(commit, what))
            else:
                has_led = commit(what)
        except PersistentQueueError:
            if self.closed is None:
                self.follow_up()
            raise
        except BaseException:  # interrupted, maybe behind a commit of which it told nobody
            self.shielded(self._tell_all)
            raise
        if has_led:
            self.follow_up()

    def follow_up(self) -> None:
        """See to what comes behind a commit, also one that found no room: it may have trimmed, and there may be room to
        be made."""
        adopter = self.store.adopter
        now = adopter.monotonic()
        if now >= adopter.passing_seconds and not self.writing.locked():
            adopter.passing_seconds = now + _LOOK_SECONDS
            self._look_by_the_way()
        if self.store.generations.retired:
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
        """Commit the group, and wake whoever waits for an item of it, or for room."""
        self.check_closed()
        store, waiters = self.store, self._waiters
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
        """Wake those who wait for what the group has enqueued, or for room; all of them where the queue is broken."""
        is_broken = self.store.broken is not None
        with self.mutex:
            if is_broken:
                self._waiters.wake_all()
            else:
                self._wake(enqueued)
            if is_broken or any(each.runs and each.settled for each in group):
                self._room_waiters.tell_first()

    def _wake(self, count: int) -> None:
        """There are so many items more for those who wait, or one of them came back; the mutex is held."""
        if len(self.store.subscriptions) == 1:
            self._waiters.wake(count)
        elif count:  # each is for many, or for some of whom nobody knows where they sleep
            self._waiters.wake_all()

    @contextmanager
    def taking_part(self, transaction: Transaction) -> Iterator[Store]:
        """While nobody else commits here the caller does, this transaction with those of other queues; then those who
        wait for what came of it are told. He is to ``follow_up`` when all of it is over. Raises ``ClosedError``."""
        came = _now()
        with self.alone():
            before, began = self.store.state.next_sequence, _now()
            try:
                yield self.store
            finally:
                self._tell_of([transaction], self.store.state.next_sequence - before)
                self.transactions += transaction.settled
                if transaction.committed:
                    self.groups += 1
                    self.meters.group_size.note(1)
                    self.meters.commit_seconds.note(_now() - began)
                with self.mutex:
                    self.refused += isinstance(transaction.error, QueueFullError)
        if transaction.settled:
            self._note_flush(_now() - came)

    @outermost
    def spill(self, transaction: Transaction) -> None:
        """Write its items to the segments ahead of its commit. Raises ``DiskFullError``."""
        self.shielded(partial(self._spill, transaction))

    def _spill(self, transaction: Transaction) -> None:
        with self.alone():
            self.store.spill(transaction)
        transaction.since_seconds = transaction.since_seconds or self.now()

    @outermost
    def trim(self) -> None:
        """Begin a new generation of the log and delete drained segments."""
        self.shielded(self._trim)

    def _trim(self) -> None:
        with self.alone():
            self.store.trim()
        self._give_back()
        self._room_waiters.tell()

    @contextmanager
    def keeping_files(self) -> Iterator[None]:
        """Nobody closes the files meanwhile, also if the queue is dropped, since maintenance does not keep it."""
        try:
            with self._compacting:
                yield
        finally:
            if self._is_disowned:
                self.store.release()

    @outermost
    def resize(self, memory_bytes: int | MemoryBudget | None, segment_bytes: int | None) -> None:
        """Change these bounds, of which None stays as it is; what exceeds that of the memory goes at once."""
        self.shielded(partial(self._resize, memory_bytes, segment_bytes))

    def _resize(self, memory_bytes: int | MemoryBudget | None, segment_bytes: int | None) -> None:
        with self.writing:
            self.check()
            if memory_bytes is not None:
                self._leave_budget()
                if isinstance(memory_bytes, MemoryBudget):
                    self._share = memory_bytes.join(self.store.state, self.store.pages, self.mutex)
                else:
                    with self.mutex:
                        self.store.pages.resize(memory_bytes)
            if segment_bytes is not None:
                self.store.segments.resize(segment_bytes)

    def _leave_budget(self) -> None:
        if self._share is not None:
            self._share.budget.leave(self._share)
            self._share = None

    def give_back(self) -> None:
        """Delete retired segments."""
        self.shielded(self._give_back)

    def _give_back(self) -> None:
        with self.giving_back:
            was_any = bool(self.store.generations.retired)
            self.store.give_back()
        if was_any:
            self._room_waiters.tell()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Write something beside the commits."""
        with self.writing:
            self.check()
            try:
                yield
            finally:
                if self.store.broken is not None:
                    self._tell_all()

    def _give_back_soon(self) -> None:
        retired_bytes = sum(size_bytes for _, size_bytes in tuple(self.store.generations.retired))
        if retired_bytes <= _AT_ONCE_BYTES and not self.giving_back.locked():
            if retired_bytes:
                self.give_back()
        elif not self._is_giving_back_due:
            self.shielded(self._give_back_later)

    def _give_back_later(self) -> None:
        self._is_giving_back_due = True
        BACKGROUND.submit(self._give_back_by_itself)

    def _give_back_by_itself(self) -> None:
        self._is_giving_back_due = False
        self.give_back()

    def take(self, reader: Reader, max_items: int, timeout_seconds: float | None, runs: list[Run]) -> list[bytes]:
        """Hold up to ``max_items`` items, waiting for the first one up to the timeout (None: for ever), and append
        their runs to ``runs``. An interruption may leave some there that are not returned.

        The caller has seen that the queue is open and not broken. Raises ``CorruptionError``, and
        ``SubscriptionNotFoundError`` where the reader's was removed.
        """
        thread, inside = get_ident(), self.inside
        if inside and (0 in inside or thread in inside):
            self.check_outermost()
        # As in ``outermost``, which would take longer.
        inside[thread] = None
        try:
            deadline = None if timeout_seconds is None else _now() + timeout_seconds
            taken = self._take_now(reader, max_items, deadline, runs)
            if not taken and timeout_seconds != 0:
                taken = self._wait_for_items(reader, max_items, deadline, runs)
        except (CorruptionError, MemoryShortageError):
            self._room_waiters.tell()  # what cannot be read counts no more
            raise
        except BaseException:  # maybe woken for an item, which another thread is to take then
            self.shielded(partial(self._pass_on, reader))
            raise
        else:
            return taken
        finally:
            del inside[thread]

    def fill(self, reader: Reader) -> None:
        """Fill the lane (see ``Reader.fill``). The caller has looked whether this thread is in another call."""
        thread, inside = get_ident(), self.inside
        # As in ``outermost``, which would take longer.
        inside[thread] = None
        try:
            reader.fill()
        finally:
            del inside[thread]

    def _pass_on(self, reader: Reader) -> None:
        """Wake another thread that waits, if there is an item for it."""
        with self.mutex:
            if len(reader.ready):
                self._wake(1)

    def _take_now(self, reader: Reader, max_items: int, deadline: float | None, runs: list[Run]) -> list[bytes]:
        """Hold what is there, also what other processes have published, as much of that as is adopted by the deadline.
        Raises ``CorruptionError`` for what is not right with that, and ``QueueFullError`` for what never fits, once for
        each file."""
        if reader.ready.is_closed:
            raise SubscriptionNotFoundError(reader.ready.name, self.store.subscriptions.names())
        reads, began = reader.page_reads, _now()
        _, taken = reader.take(max_items, runs, self.shielded)
        if reader.page_reads > reads:
            self.meters.read_seconds.note(_now() - began)
            with self.mutex:
                self.meters.read_seconds.count()
        if not taken and max_items and self._look_for(reader, deadline):
            _, taken = reader.take(max_items, runs, self.shielded)
        if not taken and self.store.adopter.damage:
            raise self.store.adopter.damage.popleft()
        return taken

    def _look_by_the_way(self) -> None:
        """The same, for who has committed, or waits to: what is wrong with an inbox is nothing that failed there."""
        try:
            self._look()
        except QueueDeletedError:
            raise
        except (PersistentQueueError, OSError):
            pass

    def _look_for(self, reader: Reader, deadline: float | None) -> bool:
        """Adopt what other processes have published, step by step, until there is something for this reader, or the
        deadline is over, but one step in any case; whether there may be anything. Raises like ``adopt``."""
        has_looked = False
        is_waiting = deadline is None or _now() < deadline
        while self._look(insists=True, most=STEP_NAMES if is_waiting else LOOK_NAMES):
            has_looked = True
            with self.mutex:
                is_there = bool(len(reader.ready))
            if is_there or not self.store.inbox.is_cut or (deadline is not None and _now() >= deadline):
                break
        return has_looked

    def _look(self, insists: bool = False, most: int = LOOK_NAMES) -> bool:
        """Adopt some of what other processes have published, if there may be any; whether there may. Others who write
        come in between two such steps. Raises like ``adopt``."""
        if not insists and self.writing.locked():
            return False  # a flush waits for nobody who writes meanwhile: another one looks
        if not self.store.adopter.has_news(insists):
            if self.store.adopter.is_gone:
                with self.alone():
                    self.store.need_directory()
            return False
        self.shielded(partial(self._adopt_published, insists, most))
        return True

    def _adopt_published(self, insists: bool, most: int) -> None:
        with self.alone():
            state = self.store.state
            before, gone = state.next_sequence, state.gone_count
            try:
                self.store.inbox.adopt(insists, most)
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

    def _sleep(self, reader: Reader, deadline: float | None, stop: Callable[[], bool] = _never) -> bool:
        """Until something may have come for this reader, or before; whether it may: else it is to stop, or too late."""
        is_over = False

        def must_wait() -> float | None:
            nonlocal is_over
            if len(reader.ready) or reader.ready.is_closed:
                return None
            self.check_closed()
            self.store.check()
            left = None if deadline is None else deadline - _now()
            is_over = (left is not None and left <= 0) or stop()
            if is_over:
                return None
            left = reader.until_due(left)
            return LONGEST_SECONDS if left is None else left

        self._waiters.wait(must_wait, self.outside)
        if is_over:
            return False
        self.check()
        self.store.check()
        return True

    @outermost
    def wait(self, reader: Reader, timeout_seconds: float | None, stop: Callable[[], bool]) -> bool:
        """Until there is something for this reader, an item or what is wrong with a publication, without holding it;
        whether there is. ``stop`` is asked before each sleep, with the mutex held."""
        deadline = None if timeout_seconds is None else _now() + timeout_seconds
        while True:
            with self.mutex:
                is_there = bool(len(reader.ready))
            if not is_there:
                self._look_for(reader, deadline)
            with self.mutex:
                if len(reader.ready) or reader.ready.is_closed or self.store.adopter.damage:
                    self._waiters.wake(1)  # who was told, and takes nothing, tells another one
                    return True
            if not self._sleep(reader, deadline, stop):
                return False

    @outermost
    def wake(self) -> None:
        """Whoever waits for an item looks once more."""
        with self.mutex:
            self._waiters.wake_all()

    @outermost
    def count_undecodable(self) -> None:
        """Count an item that its codec refuses."""
        with self.mutex:
            self.undecodable += 1

    @outermost
    def subscribe(self, name: str, start: str) -> Reader:
        """The subscription of this name, which begins at the ``start`` if it is new; it is durable. Raises
        ``DiskFullError``, ``BrokenQueueError``."""
        return self.shielded(partial(self._subscribe, name, start))

    def _subscribe(self, name: str, start: str) -> Reader:
        with self.alone():
            state = self.store.state
            if state.number_of(name) is None:
                self.store.subscribe(name, LATEST if start == "latest" else 0)
            return self.store.subscriptions.find(name)

    @outermost
    def unsubscribe(self, name: str) -> None:
        """Remove the subscription; durable on return. Raises ``SubscriptionNotFoundError``, and like ``subscribe``."""
        self.shielded(partial(self._unsubscribe, name))

    def _unsubscribe(self, name: str) -> None:
        with self.alone():
            try:
                self.store.unsubscribe(self.store.subscriptions.find(name).ready.number)
            finally:
                with self.mutex:
                    self._waiters.wake_all()
        with suppress(ResourceError):  # what only it needed goes with a later trim then
            self._trim()

    def browse(self, reader: Reader) -> Iterator[tuple[int, list[bytes]]]:
        """The items that are ready for this reader, in lists, in order, without holding them; each list with the
        sequence of its first item."""
        batches = reader.browse_numbered(self.shielded)
        while True:
            self.check()
            self.store.check()
            batch = self._next(batches)
            if batch is None:
                return
            yield batch

    @outermost
    def _next(self, batches: Iterator[tuple[int, list[bytes]]]) -> tuple[int, list[bytes]] | None:
        try:
            return next(batches, None)
        except (CorruptionError, MemoryShortageError):
            self._room_waiters.tell()
            raise

    def discard(self, transaction: Transaction) -> None:
        """Give back what it holds and forget the rest; wakes whoever waits for an item."""
        if self.closed is not None:
            return
        if transaction.runs or transaction.pieces:
            self._discard_whole(transaction)
        else:
            transaction.items = []

    @outermost
    def _discard_whole(self, transaction: Transaction) -> None:
        wrote = bool(transaction.pieces)
        self.shielded(partial(self._discard, transaction))
        if wrote:
            self._room_waiters.tell()

    def put_back(self, transaction: Transaction, count: int) -> None:
        """Give back the last ``count`` sequences that the transaction holds; wakes threads that wait for an item."""
        if count > 0 and self.closed is None and transaction.ready is not None and not transaction.is_invalid:
            self._put_back_whole(transaction.ready, transaction.runs, count)

    @outermost
    def _put_back_whole(self, ready: Availability, runs: list[Run], count: int) -> None:
        self.shielded(partial(self._put_back, ready, runs, count))

    def _put_back(self, ready: Availability, runs: list[Run], count: int) -> None:
        with self.mutex:
            ready.give_back(runs, count)
            self.given_back += count
            self._wake(count)

    def _discard(self, transaction: Transaction) -> None:
        """Give back what it holds, if it was not committed, and tell who waits for an item."""
        count = 0 if transaction.committed else sum(run[1] for run in transaction.runs)
        self.store.discard(transaction)
        if count:
            with self.mutex:
                self.given_back += count
                self._wake(count)

    @outermost
    def postpone(self, ready: CountedAvailability, runs: Sequence[Run], seconds: float) -> None:
        """Give back what was held, but not before so many seconds are over; who waits is to know how long that is."""
        self.shielded(partial(self._postpone, ready, runs, seconds))

    def _postpone(self, ready: CountedAvailability, runs: Sequence[Run], seconds: float) -> None:
        with self.mutex:
            ready.postpone(runs, seconds)
            self.given_back += sum(run[1] for run in runs)
            self._waiters.wake_all()

    def abandon(self, transaction: Transaction) -> None:
        """Like ``discard``, from a finalizer, which may run while this very thread holds the mutex."""
        self._abandoned.append(transaction)
        if self.closed is None and self.mutex.acquire(blocking=False):
            self.mutex.release()
            self._adopt()

    def close(self, reason: str) -> None:
        """Let nobody in any more, wake those who wait, then close the store; closing again does nothing."""
        if self._is_disowned:  # by a forked child, for instance, where the mutex may be held for ever
            return
        self._close_whole(reason)

    @outermost
    def _close_whole(self, reason: str) -> None:
        self.shielded(partial(self._close, reason))

    def _close(self, reason: str) -> None:
        with self.mutex:
            if self.closed is not None:
                return
            self.closed = reason
            self._waiters.close()
            self._room_waiters.wake_all()
        BACKGROUND.forget(self)
        with self._compacting, self.writing, self._reading, self.giving_back:
            try:
                self.store.close()
            finally:
                self._leave_budget()

    def disown(self, reason: str, alone: bool = False) -> None:
        """Close the files without a lock or a write: in a forked child, ``alone``, or when nobody is left to do so."""
        if self.closed is None:
            self.closed = reason
            BACKGROUND.forget(self)
            self._is_disowned = True  # first, so that a compaction that is about to end sees it
            if alone:
                self.store.release()
            elif self._compacting.acquire(blocking=False):
                self.store.release()
                self._compacting.release()
            self._waiters.abandon()
            if self._share is not None:
                self._share.abandon()

    def check(self) -> None:
        """Raise ``ClosedError`` if the queue is closed."""
        self.check_closed()
        if self._abandoned and not self.mutex.locked():
            self._adopt()

    def _adopt(self) -> None:
        """Discard what dropped sessions left behind."""
        if self._abandoned:
            self.shielded(self._adopt_abandoned)

    def _adopt_abandoned(self) -> None:
        while self._abandoned:
            self._discard(self._abandoned.pop())
            self._room_waiters.tell()

    def tell_of_room(self) -> None:
        """There may be room for who waits for it."""
        self._room_waiters.tell()

    def _tell_all(self) -> None:
        """Whoever waits, for an item or for room, is to look: the queue is broken, or he was not told what there is."""
        with self.mutex:
            self._waiters.wake_all()
        self._room_waiters.tell()

    def _wait_for_room(
        self, transaction: Transaction, timeout_seconds: float | None, error: QueueFullError | None
    ) -> None:
        """Commit it when it is its turn and there is room; ``error`` says what there was none of, if it has tried."""
        limits = self.store.limits
        lasting = limits.refuse_for_ever(transaction)
        if lasting is not None:
            raise lasting

        def refuse() -> QueueFullError:
            """What it hears that has waited in vain, and never tried."""
            return error or limits.refuse(transaction, limits.nearest)

        def check() -> None:
            """Raise what ends the waiting: that the queue is closed, or that the transaction waits no longer."""
            self.check()
            if transaction.gives_up:
                transaction.gives_up = False
                raise refuse()

        self._room_waiters.wait(
            lambda: self._commit(self._group_commit.commit, transaction),
            refuse,
            check,
            self._look_by_the_way,
            timeout_seconds,
            self.outside,
        )

    def give_up(self, transaction: Transaction) -> None:
        """It waits for room no longer, and if it has not begun to, it will not: then it is refused."""
        with self.mutex:
            transaction.gives_up = True
            self._room_waiters.wake_all()

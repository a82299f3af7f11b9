"""The store: the only place where log, segments, state and pages meet. Opens, commits, trims, closes.

The write order of a commit is at the top of ``commit``, that of a trim at the top of ``generations``.

A failed sync, and a failed write of the log, break the store: what is on disk is unknown, and every call raises
``BrokenQueueError`` until recovery has looked. Anything that fails before is taken back.

Threads: the store starts none. ``spill``, ``commit``, ``trim``, ``rest`` and ``close`` are for one thread at a time
(the writer); the readers of ``subscriptions`` and ``give_back`` are for any thread, beside it. ``mutex`` guards the
memory and is never held over a write or a sync.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from ..core.encryption import PLAIN
from ..core.frame import SEALED
from ..core.header import HEADER_BYTES
from ..core.operations import RESOLUTION_BYTES, Operation, Participant, SubscriptionClosed, encode_transaction
from ..core.state import State, Unfolding
from ..errors import (
    BrokenQueueError,
    DiskFullError,
    PersistentQueueError,
    QueueDeletedError,
    QueueNotFoundError,
    ResourceError,
    SubscriptionNotFoundError,
    TooManyFilesError,
    unless_lacking,
)
from ..storage.locations import DATA_DIRECTORY, INBOX_DIRECTORY, LOG_DIRECTORY, Places
from ..storage.lock import Lock
from ..storage.log import Log, read_log
from ..storage.pool import Pool
from ..storage.segment_files import SEGMENT_BYTES_FIRST, Segments
from ..system.disk import LACKING, NO_SPACE, Disk, StatResult
from ..system.event_log import LOGGER
from ..system.quota import OverLimitError, Quota
from ..system.signal_shield import Shielded, T, call_once, is_interruption
from .admission import Limits
from .adoption import Adopter, Inbox
from .commit import Committer, Written
from .compaction import HOLE_ITEMS, Compactor, Copy
from .reader import Guard, Reader
from .subscriptions import Subscriptions
from .transaction import Settings, Transaction
from .trim import LOG_BYTES_MAX, Generations

_LOGS_PER_LIMIT = 16
"""``max_disk_bytes`` is at least so many times what a log grows to with the rate of commits, or a frame with blocks."""
_DRAINED_SEGMENTS_MAX = 16
_DRAINED_SEGMENTS_WORTH = 2
_DRAINED_SEGMENTS_PART = 8


@dataclass(frozen=True)
class RecoveryReport:
    """What opening found. Where it is ``clean`` there was nothing to recover, at most leftovers to sweep."""

    clean: bool = True
    """The queue was new, or closed cleanly."""
    generation: int = 0
    """The generation of the log that was read; 0 for a new queue."""
    transactions: int = 0
    """Committed transactions that were read after the log's checkpoint."""
    torn_bytes: int = 0
    """Bytes of a group that was being written when the owner ended, and that was dropped: at most so many."""
    missing_bytes: int = 0
    """How much shorter the log is than it was made: something cut it. What was beyond is gone."""
    lost_transactions: int = 0
    """Transactions of a ``sync=False`` log whose blocks were not on disk; they, and those after them, were dropped."""
    redone_bytes: int = 0
    """Bytes of small transactions that were written from the log to the segments once more."""
    swept: tuple[str, ...] = ()
    """Leftovers that nothing refers to and that were deleted, relative to the queue's directory, or to the place of its
    segments."""
    set_aside: tuple[str, ...] = ()
    """Files that may hold something and that nothing refers to; renamed to ``*.damaged``."""
    resolved: bool | None = None
    """Whether a transaction over several queues was committed that was in doubt; None: there was none."""


NOTHING_FOUND = RecoveryReport()
"""What there is to say of a new queue."""


class Store:
    """An open queue. ``opening.open_store`` makes one."""

    def __init__(
        self,
        disk: Disk,
        places: Places,
        settings: Settings,
        lock: Lock,
        state: State,
        mutex: Guard,
        reading: Guard,
        shielded: Shielded = call_once,
    ) -> None:
        self._shielded = shielded
        self.quota = Quota(disk, settings.max_disk_bytes, settings.min_free_bytes, mutex)
        log_bytes_max = LOG_BYTES_MAX
        if settings.max_disk_bytes is not None:
            # So that neither the log nor what is kept for it to grow takes much of what there is.
            part_bytes = settings.max_disk_bytes // _LOGS_PER_LIMIT
            if settings.inline_bytes > part_bytes:
                settings = replace(settings, inline_bytes=part_bytes)
            log_bytes_max = part_bytes
        disk = self.quota.disk
        self.places = places
        self.directory = places.directory
        self.settings = settings
        self.state = state
        self.recovery = NOTHING_FOUND
        self.disk = disk
        self.lock = lock
        self._mutex = mutex
        self.pool = Pool(disk, places.pool_directory(settings.shared_pool), settings.pool_max_bytes)
        pool = self.pool if settings.pool_max_bytes else None
        arguments = (state.next_segment, mutex, pool, settings.wipe, settings.envelopes or PLAIN, self.shielded)
        self.segments = Segments(disk, places.path(DATA_DIRECTORY), settings.segment_bytes, *arguments)
        self.subscriptions = Subscriptions(disk, settings, state, self.segments, mutex, reading)
        self.pages = self.subscriptions.pages
        self.limits = Limits(disk, self.directory, settings, self.subscriptions, state, self.quota)
        self.committer = Committer(
            disk,
            settings,
            state,
            self.pages,
            self.segments,
            mutex,
            self.limits,
            self._make_room,
            self._rebuild,
            self.shielded,
        )
        self.adopter = Adopter(disk, self.places.path(INBOX_DIRECTORY), self.segments, self.quota)
        self.compactor = Compactor(disk, state, self.subscriptions, self.segments, mutex)
        self.generations = Generations(
            disk,
            places,
            settings,
            log_bytes_max,
            state,
            self.segments,
            self.subscriptions,
            self.limits,
            self.quota,
            mutex,
            self.break_off,
        )
        self.inbox = Inbox(self, mutex, settings.sync)
        self.broken: BaseException | None = None
        """What failed, once a sync or a write of the log did."""

    # --- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Trim, seal, give back, close the files, free the lock.

        Everything committed is durable on return, whatever ``sync`` is. What sessions hold or have written ahead is
        rolled back by that. Raises what ``trim`` raises, after everything was closed.
        """
        try:
            if self.broken is None:
                self.segments.unpin_all()
                self.segments.drop_unlogged()
                if self.generations.log is not None:
                    self.trim(SEALED)
                self.give_back()
        finally:
            self.abandon()
            self.lock.release()

    def abandon(self) -> None:
        """Close the files, but for the lock, and write nothing; as after a crash, recovery will follow."""
        self.generations.close()
        self.segments.close()
        self.pages.clear()

    def release(self) -> None:
        """Free the lock; for an owner that may not write any more, such as a forked child."""
        self.abandon()
        self.lock.release()

    def need_directory(self) -> None:
        """Raise ``QueueDeletedError``, from now on always, if the queue's directory was deleted."""
        if self.broken is None and self.lock.is_deleted():
            raise self.break_off(FileNotFoundError(errno.ENOENT, "the directory was deleted", self.directory))

    def is_in(self, found: StatResult) -> bool:
        """Return whether this is the queue's directory, whatever its name."""
        return self.lock.is_on(found)

    def need_name(self) -> None:
        """Raise ``QueueNotFoundError`` if the queue's directory has another name than it was opened by."""
        if not self.lock.is_named():
            raise QueueNotFoundError(
                f"{self.directory}: the queue is open, and its directory was renamed or deleted meanwhile: name the "
                "directory that it is in now"
            )

    def check(self) -> None:
        """Raise ``BrokenQueueError`` if a sync or a write of the log failed."""
        if isinstance(self.broken, QueueDeletedError):
            raise QueueDeletedError(self.directory) from self.broken.__cause__
        if self.broken is not None:
            raise BrokenQueueError(
                f"{self.directory}: an earlier sync or log write failed ({self.broken!r}): close the queue and open "
                "it again, recovery will tell what is durable"
            ) from self.broken

    # --- writing: one thread at a time -------------------------------------------------------------------------------

    def spill(self, transaction: Transaction) -> None:
        """Write the transaction's items to the segments ahead of its commit, so that they leave the memory.

        Nothing is durable or visible yet. Raises ``ResourceError``; the items are then still in memory.
        """
        self.check()
        try:
            self.committer.spill_blocks(transaction)
        except OSError as error:
            raise self.break_off(error) from error
        except BaseException as error:
            self.broken = error
            raise
        if transaction.error is not None:
            failure, transaction.error = transaction.error, None
            raise failure
        with self._mutex:
            self.segments.pin_pieces(transaction.staged)
        transaction.pieces = [*transaction.pieces, *(piece._replace(blocks=[]) for piece in transaction.staged)]
        transaction.staged = ()
        transaction.items = []
        transaction.cost_bytes = 0

    def discard(self, transaction: Transaction) -> None:
        """Give back what the transaction holds, to the front of the queue, and forget what it wanted to enqueue; not if
        it was committed, and its session interrupted before it knew."""
        if transaction.committed:
            return
        with self._mutex:
            if transaction.ready is not None and not transaction.is_invalid:
                transaction.ready.release(transaction.runs)
            self.segments.unpin(piece.segment for piece in transaction.pieces)
        transaction.runs, transaction.pieces, transaction.items = [], (), []

    def commit(self, group: Sequence[Transaction]) -> None:
        """Commit the transactions as one group, in order: each is durable on return, or has its ``error`` set.

        A transaction whose marker was reached before is ``skipped``. Raises ``BrokenQueueError`` when the outcome is
        unknown. The write order is at the top of ``commit``.
        """
        if self.broken is not None:
            self.check()
        try:
            if self.generations.settling is not None:
                self.shielded(partial(self._commit_long, group))
            elif not self.committer.commit_short(group, self.generations.log):
                self._commit_long(group)
            self.trim_if_worth()
        except BaseException as error:
            if not is_interruption(error) or self.broken is not None:
                self.doubt(error)
            elif not isinstance(error, PersistentQueueError):
                self.shielded(partial(self.committer.take_back, group))
            raise

    def _commit_long(self, group: Sequence[Transaction]) -> None:
        committer = self.committer
        admitted, inline = committer.write_blocks(group)
        if admitted and committer.sync_blocks(admitted, inline):
            self.log_group(admitted, inline)
        committer.come_again(group)

    def log_group(self, group: Sequence[Transaction], inline: bool) -> None:
        """The steps of a commit from the frame on, for a group whose blocks are written, as durable as they must be."""
        written, log = self.make_frame(group, inline), self.generations.log
        if written is None or log is None:
            return
        if self.generations.settling is None and not group[0].published:
            self.committer.commit_frame(log, written)
        else:  # of which nothing is interrupted
            self.write_frame(written)
            self.adopter.rename(group)
            self.committer.apply(group, written.operations)

    def make_frame(
        self,
        group: Sequence[Transaction],
        inline: bool,
        before: Sequence[Operation] = (),
        behind: Sequence[Operation] = (),
    ) -> Written | None:
        """The frame of a group, with these operations ``before`` those of the first transaction, not to be applied, and
        ``behind`` those of the last; there is room for it in the log. None if there is none, which the group hears."""
        operations = self.committer.number(group, inline)
        operations[-1] += behind
        first = [*before, *operations[0]]
        body = b"".join(map(encode_transaction, [first, *operations[1:]]))
        log, enqueues = self.generations.log, any(transaction.enqueues for transaction in group)
        most_bytes = len(body) + (RESOLUTION_BYTES if self.generations.settling is not None else 0)
        if log is None or not log.has_room(most_bytes, enqueues):
            log = self.shielded(partial(self._roll_log, most_bytes, group, enqueues))
        if log is None:
            return None
        resolutions = self.generations.first_operations()
        if resolutions:
            first[:0] = resolutions
            body = b"".join(map(encode_transaction, [first, *operations[1:]]))
        return Written(group, operations, body, len(first) + sum(map(len, operations[1:])))

    def write_frame(self, written: Written) -> None:
        """Write it to the log, durably."""
        log = self.generations.log
        assert log is not None
        self.committer.write_frame(log, written.body, len(written.operations), written.count)
        self.generations.tell_settled()

    def forget(self, transaction: bytes, name: Participant) -> None:
        """This participant has settled what was decided here (see ``several``). For any thread."""
        with self._mutex:
            self.state.forget(transaction, name)

    def subscribe(self, name: str, first: int) -> None:
        """Let another one consume, from the sequence ``first`` on, of what is not gone; durable on return.

        Raises ``ResourceError`` and ``BrokenQueueError``.
        """
        self._log_alone(self.state.next_subscription(name, first))

    def unsubscribe(self, number: int) -> None:
        """Let one who consumes go, and with him what only he needed; durable on return. Raises like ``subscribe``."""
        self._log_alone(SubscriptionClosed(number))

    def _log_alone(self, operation: Operation) -> None:
        """Commit one operation. Raises ``ResourceError`` and ``BrokenQueueError``."""
        self.check()
        transaction = Transaction()
        transaction.operations = [operation]
        try:
            self.log_group([transaction], inline=False)
            with self._mutex:
                self.subscriptions.follow()
        except BaseException as error:
            self.doubt(error)
            raise
        if transaction.error is not None:
            raise transaction.error

    def begin_compaction(
        self, below: float, settled_only: bool, hole_items: int = HOLE_ITEMS, before: int | None = None
    ) -> Copy | None:
        """Begin a compaction, as ``Compactor.begin`` does; None where there is nothing to be compacted."""
        self.check()
        self.need_directory()
        return self.compactor.begin(below, settled_only, hole_items, before)

    def end_compaction(self, copy: Copy) -> None:
        """End it in any case: let go of sources and target, which is deleted if surely nothing was committed."""
        self.compactor.end(copy, self.broken is None)

    def trim(self, flags: int = 0, extra_bytes: int = 0, keep_old: bool = False, enqueues: bool = False) -> None:
        """Begin a new generation of the log, as ``Generations.trim`` does, once more if that gives back what it lacks.

        Raises what that raises.
        """
        self.check()
        trim = partial(self.generations.trim, flags, extra_bytes, keep_old, enqueues)
        try:
            self.shielded(trim)
        except ResourceError as error:
            if not self.shielded(partial(self._frees_some, error)):
                raise
            self.shielded(trim)

    def give_back(self) -> None:
        """Give the files of retired segments to the pool, or delete them. What fails is swept by the next opening."""
        self.generations.give_back()

    def tidy(self) -> None:
        """Give up what only a busy queue needs: segments that are drained, also the one that is written on if it is
        larger than a first one, or to be wiped; the length that the log has grown by; memory to write from. Drafts that
        producers have left behind are deleted.

        Raises ``ResourceError`` (nothing is lost) and ``BrokenQueueError``.
        """
        self.check()
        self.need_directory()
        with unless_lacking(self.adopter.directory, "to look for drafts", "then tidy up again"):
            self.adopter.sweep()
        drained, current = self._drained(True), self.segments.current
        if current is not None and current.number in drained:
            self.segments.let_go()
        if drained or self.generations.has_grown or self.generations.settling is not None:
            self.generations.trim_short(tightly=True)
        self.generations.write_deferred()
        if self.generations.log is not None:
            self.generations.log.rest()

    def fill_pool(self) -> Iterator[int]:
        """Clean the pool, then make files up to its lower bound, as large as the next segment; yields their lengths.

        As far as the limits of the queue allow. For any thread. Raises ``ResourceError``, ``OSError``.
        """
        if self.settings.pool_max_bytes:
            self.need_directory()
            with unless_lacking(self.pool.directory, "to look into the pool", "then fill it again"):
                self.pool.clean()
            try:
                yield from self.pool.fill(self.settings.pool_min_bytes, self.segments.next_bytes)
            except DiskFullError as error:
                if not isinstance(error.__cause__, OverLimitError):
                    raise

    def _roll_log(self, body_bytes: int, group: Sequence[Transaction], enqueues: bool) -> Log | None:
        """A log with room for a frame of this size; None if there is no room for one, which the group then hears.

        Those who only dequeue are then committed without the others. Raises ``BrokenQueueError``.
        """
        self.generations.resize()
        try:
            self.trim(extra_bytes=body_bytes, enqueues=enqueues)
            log = self.generations.log
            if log is not None and not log.has_room(body_bytes, enqueues):
                path, shortage = self.places.path(LOG_DIRECTORY), self.generations.shortage
                if shortage is not None and shortage.errno in LACKING - NO_SPACE:
                    with unless_lacking(path, "to keep a spare log"):
                        raise shortage
                reason = "what room there is, is for dequeueing"
                raise DiskFullError(path, errno.ENOSPC, reason) from self.quota.refusal
        except ResourceError as error:
            refused = [transaction for transaction in group if transaction.enqueues or not enqueues]
            for transaction in refused:
                transaction.error, transaction.staged = self.limits.explain(transaction, error), ()
            if len(refused) < len(group) and not group[0].published:  # which keeps its order
                self._commit_long([transaction for transaction in group if not transaction.enqueues])
            return None
        return log

    def _frees_some(self, error: ResourceError) -> bool:
        """Give back what no trim needs of what the system lacks: files that only reading needs, those of the pool.

        Whether there were any.
        """
        if isinstance(error, TooManyFilesError):
            return self.segments.close_idle()
        if not isinstance(error, DiskFullError) or isinstance(error.__cause__, OverLimitError):
            return False
        was_any = bool(self.generations.retired)
        self.give_back()
        return self._shrink_pool(0) or was_any

    def _make_room(self, refusal: OSError) -> bool:
        """Give back what a full disk holds for nothing: the pool, drained segments, a log longer than it has to be.

        Whether there was any of that. Raises ``BrokenQueueError``.
        """
        # What a shared pool holds does not count for a limit of this queue's own.
        most_bytes = self.pool.max_bytes if self.settings.shared_pool and isinstance(refusal, OverLimitError) else 0
        made = self.segments.drop_unlogged() or bool(self.generations.retired)
        made |= self._shrink_pool(most_bytes)
        is_limited = self.settings.max_disk_bytes is not None
        is_long = self.generations.has_grown or (is_limited and self.generations.is_long)
        drained = self._drained()
        if not made and not drained and not is_long:
            return False
        before_bytes = self.generations.file_bytes
        with suppress(ResourceError):
            self.generations.trim_short(tightly=is_limited)
            # What the checkpoint needs stays: to be asked for it again and again would never end.
            made = made or bool(drained) or self.generations.file_bytes < before_bytes
        self.give_back()
        self._shrink_pool(most_bytes)
        return made

    def _shrink_pool(self, most_bytes: int) -> bool:
        """Give back what the pool has beyond that; whether there was any that could be had."""
        with suppress(OSError):
            return self.pool.shrink(most_bytes) > 0
        return False

    def trim_if_worth(self) -> None:
        """Trim if what is drained is worth it."""
        if len(self.state.drained) > _DRAINED_SEGMENTS_WORTH and self._is_worth_trimming():
            # What was committed is durable, so a trim that finds no room must not make it look failed.
            with suppress(PersistentQueueError):
                self.trim()

    def _is_worth_trimming(self) -> bool:
        """Whether the drained segments, of which there are some, are worth a trim."""
        waiting = self._drained()
        waiting_bytes = sum(self.state.segments[number].end for number in waiting)
        youngest_bytes = self.segments.next_bytes - HEADER_BYTES
        # A checkpoint costs what there is: of many segments it takes a part, or all of them would cost their square.
        many = max(_DRAINED_SEGMENTS_MAX, len(self.state.segments) // _DRAINED_SEGMENTS_PART)
        return len(waiting) >= many or waiting_bytes >= _DRAINED_SEGMENTS_WORTH * youngest_bytes

    def _drained(self, is_idle: bool = False) -> set[int]:
        """The segments that a trim would retire; when ``is_idle``, the one that is written on, too, if it has grown."""
        current = self.segments.current
        if current is not None and is_idle and (self.settings.wipe or current.capacity_bytes > SEGMENT_BYTES_FIRST):
            current = None
        with self._mutex:
            return self.state.drained - self.segments.pinned - ({current.number} if current is not None else set())

    @property
    def reader(self) -> Reader:
        """The plain queue's. Raises ``SubscriptionNotFoundError`` where it has no such subscription."""
        reader = self.subscriptions.plain
        if reader is None:
            raise SubscriptionNotFoundError("", self.subscriptions.names())
        return reader

    @property
    def syncs(self) -> int:
        """How many syncs there were: of segments, of names, of the log."""
        return self.segments.syncs + self.committer.syncs + 2 * self.generations.trims

    # --- helpers -----------------------------------------------------------------------------------------------------

    def shielded(self, call: Callable[[], T]) -> T:
        """Make the call, which no signal handler interrupts. What ends it all the same, but for an error of the disk or
        one that says itself what became of it, breaks the store."""

        def call_or_break() -> T:
            try:
                return call()
            except (PersistentQueueError, OSError):
                raise
            except BaseException as error:
                self.doubt(error)
                raise

        return self._shielded(call_or_break)

    def _rebuild(self) -> None:
        """Make the state what the log says, since a change of it was interrupted; the mutex is held.

        Raises ``CorruptionError`` and ``OSError``.
        """
        assert self.generations.path is not None
        replay = read_log(self.disk, self.generations.path)
        state, unfolding = State.restore(replay.checkpoint, replay.supplement), Unfolding()
        for group in replay.frames[1:]:
            for operation in unfolding.counting(group):
                state.apply(operation)
        self.state.become(state)

    def doubt(self, error: BaseException) -> None:
        """Break the store for what ended a commit anywhere between its first write and its last change in memory, since
        only recovery can tell; but not for what says so itself, or that nothing was committed."""
        if isinstance(error, PersistentQueueError) or error is self.broken:
            return
        if isinstance(error, OSError):
            raise self.break_off(error) from error
        self.broken = error
        LOGGER.error("%s: whether a flush is durable is unknown, since it was interrupted: %r", self.directory, error)

    def break_off(self, error: OSError) -> BrokenQueueError:
        """Break the store for an error of the disk, and return what its callers are to be told."""
        if isinstance(error, FileNotFoundError) and self.lock.is_deleted():
            self.broken = gone = QueueDeletedError(self.directory)
            LOGGER.error("%s", gone)
            return gone
        self.broken = error
        broken = BrokenQueueError(
            f"{self.directory}: a sync or a log write failed ({error}): whether this flush is durable is unknown; "
            "close the queue and open it again, recovery will tell"
        )
        LOGGER.error("%s", broken)
        return broken

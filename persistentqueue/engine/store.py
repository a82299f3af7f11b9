"""The store: the only module that joins the log, the segments, the state and the page cache of one queue.

``opening.open_store`` opens a store. The store then commits, trims and closes. The write order of a commit is at the
top of the module ``commit``. The write order of a trim is at the top of the module ``trim``.

A failed sync or a failed write of the log breaks the store: it is unknown what is on disk. Then every call raises
``BrokenQueueError`` until the queue is opened again and recovered. Anything that fails earlier is undone.

Threads: the store starts none. ``spill``, ``commit``, ``trim``, ``tidy`` and ``close`` are for one thread at a time,
the writer. ``give_back`` and the readers of ``subscriptions`` are for any thread, beside the writer. ``mutex`` guards
the memory and is never held over a write or a sync.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ..core.encryption import PLAIN
from ..core.frame import SEALED
from ..core.header import HEADER_BYTES
from ..core.operations import Operation, Participant, SubscriptionClosed, encode_transaction
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
)
from ..interrupts.signal_shield import T, is_interruption
from ..measuring.stalls import stalled
from ..storage.locations import DATA_DIRECTORY, LOG_DIRECTORY, Places
from ..storage.lock import Lock
from ..storage.log import Log
from ..storage.log_reader import read_log
from ..storage.pool import Pool
from ..storage.segment_files import SEGMENT_BYTES_FIRST, Segments
from ..system.disk import NO_SPACE, Disk, StatResult, basename
from ..system.event_log import LOGGER
from ..system.path_errors import faults, lacking, suppress, unless_lacking
from ..system.quota import OverLimitError, Quota
from .admission import Limits
from .adoption import Adopter
from .commit import Committer, Written
from .compaction import HOLE_ITEMS, Compactor, Copy
from .context import Context, Guards, Settings
from .inbox import Inbox
from .reader import Reader
from .subscriptions import Subscriptions
from .transaction import Transaction
from .trim import Generations

_DRAINED_SEGMENTS_MAX = 16
"""Number of drained segments that is worth a trim, in a queue of few segments."""
_DRAINED_SEGMENTS_WORTH = 2
"""Bytes of drained segments that are worth a trim, in lengths of the next segment. Fewer segments never are."""
_DRAINED_SEGMENTS_PART = 8
"""Divisor: in a queue of many segments, this part of them must be drained to be worth a trim."""
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
"""Errors of a directory that this process may not write to. The next opening would meet them again."""
_PERMIT = "let this process write to all directories of the queue, by their owner, mode or mount; then "


@dataclass(frozen=True)
class RecoveryReport:
    """The findings of an opening. It never changes.

    If ``clean`` is True, there was nothing to recover: opening had at most leftover files to sweep or to set aside.
    Paths of files are relative to the queue's directory, or to the location of its segments.
    """

    clean: bool = True
    """Whether the queue was new, or was closed cleanly."""
    generation: int = 0
    """Generation of the log that was read; 0 for a new queue."""
    transactions: int = 0
    """Number of committed transactions that were read after the log's checkpoint."""
    torn_bytes: int = 0
    """Upper bound of the bytes of an unfinished group that was dropped: it was written when the owner ended."""
    missing_bytes: int = 0
    """Bytes by which the log is shorter than it was made. Something cut it, and what was there is lost."""
    lost_transactions: int = 0
    """Number of transactions that were dropped because blocks were not on disk: the first such one, and all behind it.

    Only a queue with ``sync=False`` can lose them."""
    redone_bytes: int = 0
    """Bytes of blocks of small transactions that were written again, from the log to the segments."""
    swept: tuple[str, ...] = ()
    """Paths of leftover files that nothing referred to, and that were deleted."""
    set_aside: tuple[str, ...] = ()
    """Paths of files that were renamed to ``*.damaged``: files that nothing refers to and that may hold data.

    It has the log, too, if ``torn_bytes``, ``missing_bytes`` or ``lost_transactions`` is not 0."""
    resolved: bool | None = None
    """Whether a transaction over several queues that was in doubt is committed; None if there was none in doubt."""


def _encode_body(first: Sequence[Operation], operations: Sequence[Sequence[Operation]]) -> bytes:
    """Return the body of a frame, in which the operations ``first`` stand before those of the first transaction."""
    return b"".join(map(encode_transaction, [[*first, *operations[0]], *operations[1:]]))


class Dependent(Protocol):
    """The user of a store. It must know at once when the store is broken."""

    is_usable: bool
    """False from the moment on when the store is broken."""


class Store:
    """An open queue. ``opening.open_store`` makes one."""

    def __init__(
        self, disk: Disk, places: Places, settings: Settings, lock: Lock, state: State, guards: Guards
    ) -> None:
        self._shielded = guards.shielded
        self._mutex = guards.mutex
        self._note_stall = guards.note_stall
        self.quota = Quota(disk, settings.max_disk_bytes, settings.min_free_bytes, guards.mutex)
        self.disk = disk = self.quota.disk
        self.places = places
        self.directory = places.directory
        self.name = basename(places.directory)
        self.settings = settings
        self.state = state
        self.recovery = RecoveryReport()
        self.lock = lock
        self.pool = Pool(disk, places.pool_directory(settings.shared_pool), settings.pool_max_bytes)
        self.segments = Segments(
            disk,
            places.path(DATA_DIRECTORY),
            segment_bytes=settings.segment_bytes,
            next_number=state.next_segment,
            mutex=guards.mutex,
            pool=self.pool if settings.pool_max_bytes else None,
            wipe=settings.wipe,
            envelopes=settings.envelopes or PLAIN,
            shielded=self.shielded,
            note_stall=guards.note_stall,
        )
        guards = guards._replace(shielded=self.shielded)
        self.context = context = Context(disk, places, settings, state, self.quota, guards)
        """Values that the parts of the store share."""
        self.subscriptions = Subscriptions(context, self.segments)
        self.pages = self.subscriptions.pages
        self.limits = Limits(context, self.subscriptions)
        self.committer = Committer(
            context, self.segments, self.pages, self.limits, make_room=self.make_room, rebuild=self._rebuild
        )
        self.inbox = Inbox(context, self.segments)
        self.compactor = Compactor(context, self.segments, self.subscriptions)
        self.generations = Generations(context, self.segments, self.subscriptions, self.limits, to_break=self.break_off)
        self.adopter = Adopter(context, self)
        self.broken: BaseException | None = None
        """Error that broke the store; None while it works. Only ``fail`` sets it."""
        self.dependent: Dependent | None = None
        """The open queue above the store; None if there is none. ``fail`` marks it."""

    # --- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Trim and seal the log, give back retired segments, close the files, and free the lock.

        On return, everything committed is durable, whatever ``sync`` is. Items that sessions hold or have spilled are
        rolled back. Raises the errors of ``trim``, after everything was closed.
        """
        try:
            if self.broken is None:
                self.segments.unpin_all()
                if self._names_unlogged():  # first: a crash must not find a frame that names what is deleted
                    self.trim()
                self.segments.drop_unlogged()
                if self.generations.log is not None:
                    self.trim(SEALED)
                self.give_back()
        finally:
            self.release()

    def abandon(self) -> None:
        """Close all files but the lock, and write nothing. The next opening recovers, as after a crash."""
        self.pages.clear()
        try:
            self.generations.close()
        finally:
            self.segments.close()

    def release(self) -> None:
        """Close the files and free the lock, for an owner that may not write any more, such as a forked child."""
        try:
            self.abandon()
        finally:
            self.lock.release()

    def need_directory(self) -> None:
        """Raise ``QueueDeletedError`` if the queue's directory was deleted. This breaks the store."""
        if self.broken is None and self.lock.is_deleted():
            raise self.break_off(FileNotFoundError(errno.ENOENT, "the directory was deleted", self.directory))

    def is_in(self, found: StatResult) -> bool:
        """Return whether ``found`` is the queue's directory, whatever its name is."""
        return self.lock.is_on(found)

    def need_name(self) -> None:
        """Raise ``QueueNotFoundError`` if the queue's directory has another name than it was opened by."""
        if not self.lock.is_named():
            raise QueueNotFoundError(
                f"{self.directory}: the queue is open, but its directory was renamed or deleted meanwhile: use the "
                "name that the directory has now"
            )

    def check(self) -> None:
        """Raise ``BrokenQueueError`` if the store is broken, or ``QueueDeletedError`` if its directory was deleted."""
        if isinstance(self.broken, QueueDeletedError):
            raise QueueDeletedError(self.directory) from self.broken.__cause__
        if self.broken is not None:
            was_interrupted = is_interruption(self.broken) and not isinstance(self.broken, PersistentQueueError)
            earlier = "call was interrupted" if was_interrupted else "sync or log write failed"
            raise BrokenQueueError(
                f"{self.directory}: an earlier {earlier} ({self.broken!r}): close the queue and open "
                "it again, recovery will tell what is durable"
            ) from self.broken

    # --- writing: one thread at a time -------------------------------------------------------------------------------

    def spill(self, transaction: Transaction) -> None:
        """Write the transaction's items to the segments before its commit, and drop them from memory.

        Nothing is durable or visible yet. Raises ``BrokenQueueError``, and ``ResourceError``: the items are then still
        in memory.
        """
        self.check()
        try:
            self.committer.spill_blocks(transaction)
        except faults(OSError) as error:
            raise self.break_off(error) from error
        except BaseException:  # a lack of memory, which says nothing of the disk: the items are still in memory
            self.committer.take_back([transaction])
            raise
        with self._mutex:
            self.segments.pin_pieces(transaction.staged)
            self.segments.touched = set()
        if transaction.error is not None:
            failure, transaction.error = transaction.error, None
            raise failure
        transaction.pieces = [*transaction.pieces, *(piece._replace(blocks=[]) for piece in transaction.staged)]
        transaction.staged = ()
        transaction.items = []
        transaction.cost_bytes = transaction.uniform_items = 0

    def discard(self, transaction: Transaction) -> None:
        """Release the items that the transaction holds, and drop the items that it wanted to enqueue.

        Do nothing if the transaction was committed: an interruption may have kept its session from noticing.
        """
        if transaction.committed:
            return
        with self._mutex:
            if transaction.ready is not None and not transaction.is_invalid:
                transaction.ready.release(transaction.runs)
            self.segments.unpin(piece.segment for piece in transaction.pieces)
        transaction.runs, transaction.pieces, transaction.items = [], (), []

    def commit(self, group: Sequence[Transaction]) -> None:
        """Commit the transactions as one group, in order. On return, each is durable or has its ``error`` set.

        A transaction whose marker was recorded before is ``skipped``. With ``sync=False``, a commit survives a power
        cut only from the next trim on. Raises ``BrokenQueueError`` if the outcome is unknown. The write order is at the
        top of the module ``commit``.
        """
        if self.broken is not None:
            self.check()
        try:
            if self.generations.settling is not None:
                self.shielded(partial(self._commit_long, group))
            elif not self.committer.commit_short(group, self.generations.log):
                self._commit_long(group)
                if self.segments.has_many_unsynced:  # a short commit begins no segment
                    self._trim_behind_commit()
            if self.generations.growth_bytes:
                self.generations.grow_spare()
            self.trim_if_worth()
        except BaseException as error:
            if not is_interruption(error) or self.broken is not None or self.committer.is_unfinished:
                self.doubt(error)
            elif not isinstance(error, PersistentQueueError):
                self.shielded(partial(self.committer.take_back, group))
            raise

    def _commit_long(self, group: Sequence[Transaction]) -> None:
        committer = self.committer
        admitted, inline = committer.write_blocks(committer.admit(group))
        if admitted and committer.sync_blocks(admitted, inline):
            self.log_group(admitted, inline)
        committer.come_again(group)
        self.segments.touched = set()  # of a group that was refused, the blocks are dead bytes

    def log_group(self, group: Sequence[Transaction], inline: bool) -> None:
        """Do the steps of a commit from the frame on. The group's blocks are already as durable as they must be."""
        written, log = self.make_frame(group, inline), self.generations.log
        if written is None or log is None:
            return
        if self.generations.settling is None and not group[0].published:
            self.committer.commit_frame(log, written)
        else:  # the caller makes this a shielded call, so that no interruption parts these steps
            self.write_frame(written)
            self.inbox.rename(group)
            self.committer.apply(group, written.operations)

    def make_frame(
        self,
        group: Sequence[Transaction],
        inline: bool,
        before: Sequence[Operation] = (),
        behind: Sequence[Operation] = (),
    ) -> Written | None:
        """Make the frame of a group, and room for it in the log.

        The operations ``before`` stand before those of the first transaction, and are not applied. The operations
        ``behind`` are added to those of the last transaction. Return None if the log is full; each refused transaction
        then has its ``error`` set.
        """
        operations = self.committer.number(group, inline)
        operations[-1] += behind
        first = [*self.generations.first_operations(), *before]
        body = _encode_body(first, operations)
        log, enqueues = self.generations.log, any(transaction.enqueues for transaction in group)
        if log is None or not log.has_room(len(body), enqueues):
            with stalled(self.disk.monotonic, self._note_stall, "trim"):
                log = self.shielded(partial(self._roll_log, len(body), group, enqueues))
            if log is None:
                return None
            first = [*self.generations.first_operations(), *before]  # a trim settles what was prepared
            body = _encode_body(first, operations)
        return Written(group, operations, (body, len(operations), len(first) + sum(map(len, operations))))

    def write_frame(self, written: Written) -> None:
        """Write the frame to the log, durably."""
        log = self.generations.log
        assert log is not None
        self.committer.write_frame(log, written)
        self.generations.tell_settled()

    def forget(self, transaction: bytes, name: Participant) -> None:
        """Forget a decision for the participant ``name``, which has settled it (see ``two_phase``). For any thread."""
        with self._mutex:
            self.state.forget(transaction, name)

    def subscribe(self, name: str, first: int) -> None:
        """Add the subscription ``name``, which gets the items from the sequence ``first`` on; durable on return.

        Items that are gone already are left out. Raises ``ResourceError`` and ``BrokenQueueError``.
        """
        self._log_alone(self.state.next_subscription(name, first))

    def unsubscribe(self, number: int) -> None:
        """Remove a subscription, and the items that only it needed; durable on return.

        Raises ``ResourceError`` and ``BrokenQueueError``.
        """
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
        """Begin a compaction with ``Compactor.begin``; return None if there is nothing to compact.

        If there is no room for the target, make room and try once more. Maintenance leaves that to ``tidy``: it would
        make room each second.
        """
        self.check()
        self.need_directory()
        begin = partial(self.compactor.begin, below, settled_only, hole_items, before)
        try:
            return begin()
        except DiskFullError as error:
            refusal = error.__cause__
            if settled_only or not isinstance(refusal, OSError) or not self.make_room(refusal):
                raise
        return begin()

    def end_compaction(self, copy: Copy) -> None:
        """End a compaction, whatever its result: release its sources and its target.

        The target is deleted if it is certain that nothing was committed.
        """
        self.compactor.end(copy, self.broken is None)

    def trim(self, flags: int = 0, extra_bytes: int = 0, keep_old: bool = False, enqueues: bool = False) -> None:
        """Begin a new generation of the log with ``Generations.trim``, and raise its errors.

        If a resource is lacking, give back the part of it that no trim needs, and try once more.
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
        """Give the files of retired segments to the pool, or delete them. The next opening sweeps those that fail."""
        self.generations.give_back()

    def tidy(self) -> None:
        """Give up the space and memory that only a busy queue needs, and delete drafts that producers have left behind.

        The queue gives up drained segments, the length that the log has grown by, and the memory that the log is
        written from. Segments that hold only blocks of rollbacks are given up, too. So is a drained current segment if
        it is larger than a first one, or is to be wiped. Raises ``ResourceError`` (nothing is lost) and
        ``BrokenQueueError``.
        """
        self.check()
        self.need_directory()
        with unless_lacking(self.inbox.directory, "to look for drafts", "then tidy up again"):
            self.inbox.sweep()
        drained, current = self._drained(True), self.segments.current
        if current is not None and current.number in drained:
            self.segments.let_go()
        if drained or self.generations.has_grown or self.generations.settling is not None:
            self.generations.trim_short(tightly=True)
        self.retire_unlogged()
        self.generations.write_deferred()
        if self.generations.log is not None:
            self.generations.log.rest()

    def fill_pool(self) -> Iterator[int]:
        """Clean the pool, then make files in it up to its lower bound, and yield the length of each.

        Each file is as large as the next segment. It stops at the limits of the queue. For any thread. Raises
        ``ResourceError`` and ``OSError``.
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
        """Trim, and return a log with room for a frame of this size; None if there is no room for one.

        Then the transactions that enqueue have their ``error`` set, and those that only dequeue are committed without
        them. If not even these have room, all have their ``error`` set. Raises ``BrokenQueueError``.
        """
        self.generations.resize()
        try:
            self.trim(extra_bytes=body_bytes, enqueues=enqueues)
            log = self.generations.log
            if log is not None and not log.has_room(body_bytes, enqueues):
                path, shortage = self.places.path(LOG_DIRECTORY), self.generations.shortage
                if shortage is not None and shortage.errno not in NO_SPACE:
                    raise lacking(shortage, path, "to keep a spare log") or self.break_off(shortage) from shortage
                reason = "the room that is left is reserved for dequeueing"
                raise DiskFullError(path, errno.ENOSPC, reason) from self.quota.refusal
        except ResourceError as error:
            refused = [transaction for transaction in group if transaction.enqueues or not enqueues]
            for transaction in refused:
                transaction.error, transaction.staged = self.limits.explain(transaction, error), ()
            if len(refused) < len(group) and not group[0].published:  # published transactions keep their order
                self._commit_long([transaction for transaction in group if not transaction.enqueues])
            return None
        return log

    def _frees_some(self, error: ResourceError) -> bool:
        """Give back the part of a lacking resource that no trim needs, and return whether there was any.

        If file descriptors are lacking, these are files that only reading needs. If space is lacking, these are retired
        segments and the files of the pool.
        """
        if isinstance(error, TooManyFilesError):
            return self.segments.close_idle()
        if not isinstance(error, DiskFullError) or isinstance(error.__cause__, OverLimitError):
            return False
        was_any = bool(self.generations.retired)
        self.give_back()
        return self._shrink_pool(0) or was_any

    def make_room(self, refusal: OSError) -> bool:
        """Give back space on a full disk, and return whether there was any to give back. Raises ``BrokenQueueError``.

        These are the files of the pool, drained segments, and the length of a log that is longer than it must be.
        """
        # A limit of this queue does not count the files of a shared pool, so deleting them makes no room.
        most_bytes = self.pool.max_bytes if self.settings.shared_pool and isinstance(refusal, OverLimitError) else 0
        settles = self._names_unlogged()
        made = (not settles and self.segments.drop_unlogged()) or bool(self.generations.retired)
        made |= self._shrink_pool(most_bytes)
        is_limited = self.settings.max_disk_bytes is not None
        is_long = self.generations.has_grown or (is_limited and self.generations.is_long)
        drained = self._drained()
        if not made and not drained and not is_long and not settles:
            return False
        before_bytes = self.generations.file_bytes
        with suppress(ResourceError):
            self.generations.trim_short(tightly=is_limited)
            # A log that its checkpoint makes long stays long. It is no gain: to report it as one would never end.
            made = made or bool(drained) or self.generations.file_bytes < before_bytes
            made |= settles and self.segments.drop_unlogged()
        self.give_back()
        self._shrink_pool(most_bytes)
        return made

    def retire_unlogged(self) -> None:
        """Retire the segments that hold only blocks of rollbacks, for ``give_back``.

        If a prepared frame names them, the next trim must come first.
        """
        if not self._names_unlogged():
            dropped = self.segments.retire_unlogged()
            self.generations.retired.extend((created.number, created.capacity_bytes) for created in dropped)

    def _names_unlogged(self) -> bool:
        """Return whether a prepared frame names segments that no other frame does: its transaction was aborted, and the
        log does not say so yet. Until a trim, these segments may not be deleted."""
        return self.generations.settling is not None and bool(self.segments.unlogged)

    def _shrink_pool(self, most_bytes: int) -> bool:
        """Shrink the pool to ``most_bytes``; return whether that has given back any space."""
        with suppress(OSError):
            return self.pool.shrink(most_bytes) > 0
        return False

    def trim_if_worth(self) -> None:
        """Trim if the drained segments are worth it."""
        if len(self.state.drained) > _DRAINED_SEGMENTS_WORTH and self._is_worth_trimming():
            self._trim_behind_commit()

    def _trim_behind_commit(self) -> None:
        """Trim. The group is committed and durable, so a trim that finds no room must not make it look failed."""
        with suppress(PersistentQueueError), stalled(self.disk.monotonic, self._note_stall, "trim"):
            self.trim()

    def _is_worth_trimming(self) -> bool:
        """Return whether the drained segments are worth a trim, by their number or their bytes."""
        waiting = self._drained()
        waiting_bytes = sum(self.state.segments[number].end for number in waiting)
        youngest_bytes = self.segments.next_bytes - HEADER_BYTES
        # A checkpoint costs as much as all segments. With a fixed number, draining many segments would cost the square
        # of their number; with a part of them, it does not.
        many = max(_DRAINED_SEGMENTS_MAX, len(self.state.segments) // _DRAINED_SEGMENTS_PART)
        return len(waiting) >= many or waiting_bytes >= _DRAINED_SEGMENTS_WORTH * youngest_bytes

    def _drained(self, is_idle: bool = False) -> set[int]:
        """Return the drained segments that a trim would retire.

        If ``is_idle``, this includes a drained current segment that is larger than a first one, or is to be wiped.
        """
        current = self.segments.current
        if current is not None and is_idle and (self.settings.wipe or current.capacity_bytes > SEGMENT_BYTES_FIRST):
            current = None
        with self._mutex:
            return self.state.drained - self.segments.pinned - ({current.number} if current is not None else set())

    @property
    def reader(self) -> Reader:
        """Reader of the plain queue. Raises ``SubscriptionNotFoundError`` if the queue has only named subscriptions."""
        reader = self.subscriptions.plain
        if reader is None:
            raise SubscriptionNotFoundError(self.directory, "", self.subscriptions.names())
        return reader

    @property
    def syncs(self) -> int:
        """Number of syncs: of segments, of names, and of the log."""
        return self.segments.syncs + self.committer.syncs + 2 * self.generations.trims

    # --- helpers -----------------------------------------------------------------------------------------------------

    def shielded(self, call: Callable[[], T]) -> T:
        """Make a shielded call, and return its result.

        Any error of the call but ``PersistentQueueError`` and ``OSError`` breaks the store. These two state the outcome
        themselves, or are handled by the caller.
        """

        def call_or_break() -> T:
            """Make the call, and break the store for an error that the caller does not handle."""
            try:
                return call()
            except faults(PersistentQueueError, OSError):
                raise
            except BaseException as error:
                self.doubt(error)
                raise

        return self._shielded(call_or_break)

    def _rebuild(self) -> None:
        """Rebuild the state from the log, after a change of the state was interrupted. The caller holds the mutex.

        Raises ``BrokenQueueError`` and ``OSError`` if the log cannot be read.
        """
        assert self.generations.path is not None
        try:
            replay = read_log(self.disk, self.generations.path)
        except PersistentQueueError as error:  # it says that nothing happened, but the frame is written
            raise self.break_off(error) from error
        state, unfolding = State.restore(replay.checkpoint, replay.supplement), Unfolding()
        for group in replay.frames[1:]:
            state.apply_all(unfolding.counting(group))
        self.state.become(state)

    def fail(self, error: BaseException) -> None:
        """Break the store for this error: from now on every call raises ``BrokenQueueError``."""
        # No call between these steps, so no interruption leaves a dependent that takes the store for usable.
        self.broken = error
        if self.dependent is not None:
            self.dependent.is_usable = False

    def doubt(self, error: BaseException) -> None:
        """Break the store for an error that ended a commit after its first write: only recovery can find the outcome.

        Do nothing for a ``PersistentQueueError``, which states the outcome itself. For an error of the system, raise
        ``BrokenQueueError``.
        """
        if isinstance(error, PersistentQueueError) or error is self.broken:
            return
        if isinstance(error, OSError) and not is_interruption(error):
            raise self.break_off(error) from error
        self.fail(error)
        LOGGER.error(
            "%s: whether a flush is durable is unknown, since it was interrupted (%r): close the queue and open it "
            "again, recovery will tell",
            self.directory,
            error,
        )

    def break_off(self, error: OSError | PersistentQueueError) -> BrokenQueueError:
        """Break the store for an error of the disk, or of reading the log, and return the error to raise."""
        if isinstance(error, FileNotFoundError) and self.lock.is_deleted():
            gone = QueueDeletedError(self.directory)
            self.fail(gone)
            LOGGER.error("%s", gone)
            return gone
        first = _PERMIT if isinstance(error, OSError) and error.errno in _DENIED else ""
        self.fail(error)
        broken = BrokenQueueError(
            f"{self.directory}: a sync or a log write failed ({error}): whether this flush is durable is unknown; "
            f"{first}close the queue and open it again, recovery will tell"
        )
        LOGGER.error("%s", broken)
        return broken

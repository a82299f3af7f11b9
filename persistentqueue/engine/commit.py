"""How a group of transactions becomes durable, then visible: the steps of a commit.

The write order (the numbers are those of the failpoints, ``commit.1`` …):

1. Write the items that the group enqueues as blocks, behind the last block of the current segment. If the segment is
   full, begin a new one. The blocks of a small group may be deferred: they stay in memory until more have come. *A
   crash leaves dead bytes that no frame names.*
2. A large group exceeds ``inline_bytes`` or was spilled: sync its segments. For a small group, put the bytes of the
   blocks into the frame as well. In both cases, make the names and headers of new segments durable. *A crash leaves
   dead bytes that no frame names.*
3. Write the frame with one durable call. **This is the commit point.** *A crash before the end of this write leaves a
   torn tail, which recovery drops. A crash after it leaves the whole group; recovery writes the blocks of a small group
   again, from the frame.*
4. Apply the operations to the state in memory. From here on waiters may see the items.

The transactions of a group share blocks, and adjacent runs are joined. A shared block or run is attributed to the first
transaction that contributed to it.

The long way takes any group through these steps. The short way is for a group whose transactions together enqueue one
small block, or only consume items. Such groups are the most common, and after a sync the caches of the processor are
cold, so that each line costs twice as much. So the short way does without most of the loops and the objects. It takes
the same steps and writes the same bytes (a test compares them). Only runs that come in any order and join to one are
written as that one.

A signal handler may raise an error between any two steps, or within one. Before step 3 this leaves dead bytes, as a
crash does, and the group may be committed again. From the beginning of step 3 on, the group is committed all the same:
the frame is written again, with the same bytes at the same place, and the state in memory is rebuilt from the log. Then
the error is raised.

If a step raises ``OSError``, only recovery can find what is durable. A transaction that merely lacks room has its
``error`` set instead. Everything here is for one thread at a time. ``mutex`` guards the memory and is never held over a
write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from ..core.block import BLOCK_BYTES, BLOCK_HEADER_BYTES, LENGTH_BYTES, MIXED, combine_checksums
from ..core.intervals import Intervals, Run, joined
from ..core.operations import (
    COUNT_BYTES,
    LONE_ENQUEUE_BYTES,
    Dequeue,
    Enqueue,
    Flushed,
    MarkerSet,
    Operation,
    SegmentCreated,
    dequeues,
    encode_dequeues,
    encode_lone_dequeue,
    encode_lone_enqueue,
    encode_rest,
)
from ..core.page_cache import ITEM_OVERHEAD_BYTES, Pages
from ..core.state import StateError
from ..errors import InvalidTransactionError, ResourceError, SubscriptionNotFoundError
from ..interrupts.signal_shield import is_interruption
from ..measuring.stalls import stalled
from ..storage.log import Log
from ..storage.segment_files import DEFERRED_BYTES, Segments
from ..system.disk import LACKING, NO_FILES, NO_SPACE
from ..system.path_errors import faults, lacking
from .admission import Limits, Tally
from .context import Context
from .transaction import Transaction

_LENGTH_BYTES = attrgetter("length_bytes")
_ORIGIN = attrgetter("origin")


class Written(NamedTuple):
    """A group that is ready for its frame: its blocks are as durable as they must be, and the log has room."""

    group: Sequence[Transaction]
    operations: list[list[Operation]]
    """Operations to apply to the state, one list for each transaction."""
    frame: tuple[bytes, int, int]
    """Body of the frame, and its numbers of transactions and of operations."""


class _Tail(NamedTuple):
    """The part of a frame behind its only block: the flushes of workers, and the other transactions."""

    rest: bytes
    own: int
    """Number of operations of the first transaction."""
    all: int
    """Number of operations of all transactions."""
    flushes: Sequence[tuple[bytes, int]]


_NO_FLUSHES: Sequence[tuple[bytes, int]] = ()
_NO_TAIL = _Tail(b"", 1, 1, _NO_FLUSHES)


def _tail_of(group: Sequence[Transaction]) -> _Tail:
    """Return the tail of the frame of this group, whose only block belongs to its first transaction."""
    origins = list(map(_ORIGIN, group))
    if origins.count(None) == len(origins):
        return _Tail(bytes(COUNT_BYTES * (len(origins) - 1)), 1, 1, _NO_FLUSHES)
    flushes = [origin for origin in origins if origin is not None]
    return _Tail(encode_rest(origins), 1 + (origins[0] is not None), 1 + len(flushes), flushes)


def _runs_of(group: Sequence[Transaction]) -> list[list[Run]]:
    """Return the runs that each transaction of the group consumes. A run is joined to the one before it if they touch,
    also over the border of two transactions. If the flush of a worker is logged between them, it is not."""
    result: list[list[Run]] = []
    last, end = [(0, 0)], -1
    for transaction in group:
        its_runs: list[Run] = []
        for first, count in transaction.runs:
            if first == end:
                last[-1] = last[-1][0], last[-1][1] + count
            else:
                its_runs.append((first, count))
                last = its_runs
            end = first + count
        if transaction.origin is not None and last is its_runs:
            end = -1
        result.append(its_runs)
    return result


def _encode_runs(
    group: Sequence[Transaction], subscription: int, runs: Sequence[Run]
) -> tuple[bytes, int, Sequence[tuple[bytes, int]]]:
    """Return the body of the frame of a group that consumes these runs, its number of operations, and its flushes of
    workers."""
    origins = list(map(_ORIGIN, group))
    flushes = [origin for origin in origins if origin is not None]
    if len(runs) == 1 and not flushes:
        return encode_lone_dequeue(subscription, *runs[0], len(group)), 1, _NO_FLUSHES
    theirs = _runs_of(group) if len(group) > 1 else [group[0].runs]
    return encode_dequeues(subscription, theirs, origins), sum(map(len, theirs)) + len(flushes), flushes


class Committer:
    """The steps of a commit."""

    def __init__(
        self,
        context: Context,
        segments: Segments,
        pages: Pages,
        limits: Limits,
        *,
        make_room: Callable[[OSError], bool],
        rebuild: Callable[[], None],
    ) -> None:
        self._disk = context.disk
        self._settings = context.settings
        self._state = context.state
        self._mutex = context.guards.mutex
        self._shielded = context.guards.shielded
        self._note_stall = context.guards.note_stall
        self._segments = segments
        self._pages = pages
        self._limits = limits
        self._counted = limits if (limits.max_items, limits.max_bytes) != (None, None) else None
        self._block_bytes = BLOCK_HEADER_BYTES + segments.envelopes.most_bytes
        self._inline_bytes = limits.inline_bytes
        self._short_bytes = min(self._inline_bytes, BLOCK_BYTES)
        self._make_room = make_room
        """Gives back space when the disk is full. Takes the error; returns whether trying again is worth it."""
        self._rebuild = rebuild
        """Rebuilds the state in memory from the log, with the mutex held."""
        self.syncs = 0
        """Number of frames that were written durably."""
        self.enqueued_bytes = 0
        """Bytes of all blocks that were committed."""
        self.is_unfinished = False
        """True from an error behind the beginning of step 3 on, until the commit is complete. If it stays true, what
        should complete the commit has failed, and the state in memory may be half changed."""

    # --- the long way ------------------------------------------------------------------------------------------------

    def write_blocks(self, group: Sequence[Transaction]) -> tuple[Sequence[Transaction], bool]:
        """Do step 1 for transactions that ``admit`` has returned.

        Return those to commit, and whether they are a small group. The others have their ``error`` set.
        """
        self._disk.failpoint("commit.1 write blocks")
        self._segments.touched = set()
        if not any(transaction.items or transaction.pieces for transaction in group):
            return group, True
        return self._write_blocks(group, self._disk.time_ns(), may_defer=True)

    def come_again(self, group: Sequence[Transaction]) -> None:
        """Reset each skipped transaction whose marker was not recorded.

        A marker of the same group made it skipped, but the transaction with that marker was refused. So the skipped
        transaction was not tried at all.
        """
        for transaction in group:
            if transaction.skipped and transaction.marker is not None:
                name, version = transaction.marker
                if version > self._state.markers.get(name, -1):
                    transaction.skipped = transaction.settled = False

    def spill_blocks(self, transaction: Transaction) -> None:
        """Do step 1 ahead of time, for a transaction that is committed later."""
        self._segments.touched = set()
        self._write_blocks([transaction], self._disk.time_ns(), may_defer=False)

    def sync_blocks(self, group: Sequence[Transaction], inline: bool) -> bool:
        """Do step 2. Return False if the operating system lacked a resource before a sync.

        Then each transaction of the group has its ``error`` set, and its blocks are dead bytes.
        """
        self._disk.failpoint("commit.2 sync blocks")
        if not self._settings.sync or (inline and not self._segments.new):
            return True
        try:
            with stalled(self._disk.monotonic, self._note_stall, "sync"):
                if inline:
                    self._segments.sync_new()
                else:
                    self._segments.sync()
        except ResourceError as error:
            for transaction in group:
                transaction.error, transaction.staged = error, ()
            return False
        return True

    def number(self, group: Sequence[Transaction], inline: bool) -> list[list[Operation]]:
        """Return the operations of each transaction, with its items numbered from the next sequence on."""
        sequence = self._state.next_sequence
        result: list[list[Operation]] = []
        unlogged: list[Operation] = list(self._segments.unlogged)
        runs: list[Operation] = []
        for transaction in group:
            operations, unlogged = [*unlogged, *transaction.adoptions], []
            for piece in (*transaction.pieces, *transaction.staged):
                number, offset, length_bytes, count, ordinal, checksum, blocks = piece
                content = b"".join(blocks) if inline else None
                operations.append(Enqueue(sequence, count, number, offset, length_bytes, ordinal, checksum, content))
                sequence += count
            if transaction.runs:
                subscription = transaction.ready.number if transaction.ready is not None else 0
                consumed, last = dequeues(subscription, transaction.runs), runs[-1] if runs else None
                first, count = transaction.runs[0]
                if isinstance(last, Dequeue) and (last.subscription, last.first + last.count) == (subscription, first):
                    runs[-1] = last._replace(count=last.count + count)
                    del consumed[0]
                if consumed:
                    runs = operations
                    runs += consumed
            if transaction.marker is not None:
                operations.append(MarkerSet(*transaction.marker))
            if transaction.origin is not None:
                operations.append(Flushed(*transaction.origin))
            operations += transaction.operations
            result.append(operations)
        return result

    def take_back(self, group: Sequence[Transaction]) -> None:
        """Undo the steps of a group that was interrupted before its frame, so that it can be committed again.

        Blocks that were already written become dead bytes, like those of a rolled-back session.
        """
        self._segments.unstage()
        self._segments.touched = set()
        for transaction in group:
            if not transaction.settled:
                transaction.staged = ()
        self.come_again(group)

    def write_frame(self, log: Log, written: Written) -> None:
        """Do step 3, with a log that has room."""
        self._disk.failpoint("commit.3 write frame")
        log.append(*written.frame)
        self.syncs += self._settings.sync

    def commit_frame(self, log: Log, written: Written) -> None:
        """Do steps 3 and 4, with a log that has room. An interruption is raised after both are done."""
        group, before = written.group, log.number
        self._disk.failpoint("commit.3 write frame")
        try:
            log.append(*written.frame)
            self.syncs += self._settings.sync
            self.apply(group, written.operations)
        except BaseException as error:
            self.is_unfinished = True
            self._finish(error, group, partial(log.append_again, before, *written.frame))
            raise

    def apply(self, group: Sequence[Transaction], operations: list[list[Operation]]) -> None:
        """Do step 4."""
        self._disk.failpoint("commit.4 apply")
        self._segments.unlogged, self._segments.touched = [], set()
        with self._mutex:
            if any(transaction.pieces for transaction in group):  # unpinning must not be interrupted: pins are counted
                self._shielded(partial(self._apply, group, operations))
                return
            try:
                self._apply(group, operations)
            except BaseException:
                self._shielded(partial(self._settle, group))  # before another thread sees a partial change
                raise

    def _apply(self, group: Sequence[Transaction], operations: list[list[Operation]]) -> None:
        sequence = self._state.next_sequence
        for transaction, its_operations in zip(group, operations, strict=True):
            self._state.apply_all(its_operations)
            self.enqueued_bytes += sum(map(_LENGTH_BYTES, (*transaction.pieces, *transaction.staged)))
            if transaction.pieces:
                sequence += sum(piece.count for piece in transaction.pieces)
                self._segments.unpin(piece.segment for piece in transaction.pieces)
            if transaction.items:
                self._pages.append(sequence, transaction.items, transaction.cost_bytes)
                sequence += len(transaction.items)
        self._pages.drop_below(self._state.gone.frontier)
        for transaction in group:
            transaction.settled = True

    def _settle(self, group: Sequence[Transaction]) -> None:
        """Do an interrupted step 4 again, from the log. The caller holds the mutex."""
        self._rebuild()
        self._pages.clear()
        for transaction in group:
            transaction.settled = True

    def _finish(self, error: BaseException, group: Sequence[Transaction], append_again: Callable[[], None]) -> None:
        """Complete steps 3 and 4 after an interruption; do nothing after a failure of the disk."""
        if not is_interruption(error):
            return

        def finish() -> None:
            """Unless step 4 is done, write the frame again, release the pins of the group, and do it from the log."""
            if not all(transaction.settled for transaction in group):
                append_again()
                self._segments.unlogged, self._segments.touched = [], set()
                with self._mutex:
                    for transaction in group:
                        self._segments.unpin(piece.segment for piece in transaction.pieces)
                    self._settle(group)
            self.is_unfinished = False

        self._shielded(finish)

    # --- the short way -----------------------------------------------------------------------------------------------

    def commit_short(self, group: Sequence[Transaction], log: Log | None) -> bool:
        """Do all steps for a group that is small enough, and return True. Raises ``OSError``.

        Return False and do nothing if the group needs the long way, or something else must come first.
        """
        if log is None or self._segments.unlogged or (self._segments.new and self._settings.sync):
            return False
        first = group[0]
        items, runs, cost_bytes = first.items, first.runs, first.cost_bytes
        if first.pieces or first.marker is not None or first.operations or not (items or runs):
            return False  # the block or the run of the whole group is attributed to the first transaction
        if len(group) > 1:
            items, runs = items.copy(), runs.copy()
            for transaction in group[1:]:
                if transaction.pieces or transaction.marker is not None or transaction.operations:
                    return False
                cost_bytes += transaction.cost_bytes
                items += transaction.items
                if transaction.runs:
                    if transaction.ready is not first.ready:
                        return False
                    runs += transaction.runs
        is_alone = len(group) == 1 and first.origin is None
        if runs:
            return not items and self._commit_runs(group, is_alone, runs, log)
        return self._commit_block(group, items, cost_bytes, _NO_TAIL if is_alone else _tail_of(group), log)

    def _commit_block(
        self, group: Sequence[Transaction], items: list[bytes], cost_bytes: int, tail: _Tail, log: Log
    ) -> bool:
        segment, count = self._segments.current, len(items)
        payload_bytes = cost_bytes - ITEM_OVERHEAD_BYTES * count
        room_bytes = self._block_bytes + LENGTH_BYTES * count + payload_bytes
        if (
            segment is None
            or room_bytes > self._short_bytes  # this bounds the items, too: fewer than BLOCK_ITEMS
            or segment.deferred_bytes + room_bytes > DEFERRED_BYTES
            or not segment.has_room(0, room_bytes)
            or (self._counted is not None and not self._counted.fits(count, room_bytes))
            or not log.has_room(LONE_ENQUEUE_BYTES + room_bytes + len(tail.rest), True)
        ):
            return False
        disk, state, number, offset, ordinal = self._disk, self._state, segment.number, segment.end, segment.ordinal
        first = state.next_sequence
        disk.failpoint("commit.1 write blocks")
        each_bytes = group[0].each_bytes if count > 1 and len(group) == 1 else MIXED
        blocks, length_bytes, checksum = self._segments.encode(
            items, segment.salt, offset, ordinal, disk.time_ns(), (), each_bytes
        )
        segment.defer(blocks, length_bytes, count)
        disk.failpoint("commit.2 sync blocks")
        checksum = combine_checksums(0, checksum)
        rest, own, operations, flushes = tail
        body = encode_lone_enqueue(own, first, count, number, offset, length_bytes, ordinal, checksum, blocks, rest)
        before = log.number
        disk.failpoint("commit.3 write frame")
        try:
            log.append(body, len(group), operations)
            self.syncs += self._settings.sync
            disk.failpoint("commit.4 apply")
            with self._mutex:
                try:
                    state.enqueue(first, count, number, offset, length_bytes, ordinal)
                    self.enqueued_bytes += length_bytes
                    self._pages.append(first, items, cost_bytes)
                    for connection, flush in flushes:
                        state.note_flush(connection, flush)
                    for transaction in group:
                        transaction.settled = True
                except BaseException:
                    self._shielded(partial(self._settle, group))  # before another thread sees a partial change
                    raise
        except BaseException as error:
            self.is_unfinished = True
            self._finish(error, group, partial(log.append_again, before, body, len(group), operations))
            raise
        return True

    def _commit_runs(self, group: Sequence[Transaction], is_alone: bool, runs: list[Run], log: Log) -> bool:
        ready = group[0].ready
        if ready is None or ready.is_closed:
            return False
        if len(runs) > 1:  # the transactions of several threads come in any order
            one = joined(runs)
            runs = [one] if one is not None else runs
        disk, state, subscription = self._disk, self._state, ready.number
        if not state.are_unconsumed(subscription, runs):
            return False  # the long way finds which transaction is invalid
        (first, count), is_one = runs[0], len(runs) == 1
        if is_alone and is_one:
            body, operations, flushes = encode_lone_dequeue(subscription, first, count, 1), 1, _NO_FLUSHES
        else:
            body, operations, flushes = _encode_runs(group, subscription, runs)
        if not log.has_room(len(body), False):
            return False
        before = log.number
        disk.failpoint("commit.1 write blocks")
        disk.failpoint("commit.2 sync blocks")
        disk.failpoint("commit.3 write frame")
        try:
            log.append(body, len(group), operations)
            self.syncs += self._settings.sync
            disk.failpoint("commit.4 apply")
            with self._mutex:
                try:
                    if is_one:
                        state.consume(subscription, first, count)
                    else:
                        state.consume_all(subscription, Intervals(runs))
                    self._pages.drop_below(state.gone.frontier)
                    for connection, flush in flushes:
                        state.note_flush(connection, flush)
                    for transaction in group:
                        transaction.settled = True
                except BaseException:
                    self._shielded(partial(self._settle, group))  # before another thread sees a partial change
                    raise
        except BaseException as error:
            self.is_unfinished = True
            self._finish(error, group, partial(log.append_again, before, body, len(group), operations))
            raise
        return True

    # --- helpers -----------------------------------------------------------------------------------------------------

    def admit(self, group: Sequence[Transaction]) -> Sequence[Transaction]:
        """Return the transactions of the group to commit; each other one is skipped, or has its ``error`` set."""
        versions: dict[str, int] = {}
        consumed: dict[int, Intervals] = {}
        kept = []
        tally = Tally(self._counted) if self._counted is not None else None
        for transaction in group:
            if transaction.marker is not None:
                name, version = transaction.marker
                recorded = versions.get(name, self._state.markers.get(name))
                if recorded is not None and version <= recorded:
                    transaction.skipped = transaction.settled = True
                    continue
            ready = transaction.ready
            if ready is not None and ready.is_closed and (transaction.runs or transaction.operations):
                transaction.error = SubscriptionNotFoundError(self._limits.directory, ready.name)
                continue
            if (transaction.runs or transaction.operations) and not self._is_valid(transaction, consumed):
                continue
            if tally is not None and not tally.admit(transaction):
                continue
            if transaction.marker is not None:
                versions[name] = version
            kept.append(transaction)
        return kept

    def _is_valid(self, transaction: Transaction, consumed: dict[int, Intervals]) -> bool:
        """Return whether the state accepts the transaction's runs and operations; if not, set its ``error``.

        ``consumed`` has the sequences that other transactions of the group consume, by subscription. The transaction
        adds its own. A frame that the state refuses must never be written: its log could not be opened any more.
        """
        number = transaction.ready.number if transaction.ready is not None else 0
        taken = consumed.setdefault(number, Intervals())
        try:
            self._check_runs(number, transaction.runs, taken)
            if transaction.operations:
                created = {each.number for each in transaction.operations if isinstance(each, SegmentCreated)}
                for operation in transaction.operations:
                    self._state.check(operation, created)
        except StateError as error:
            transaction.is_invalid = True
            transaction.error = InvalidTransactionError(self._limits.directory, *error.args)
            return False
        taken.add_all(transaction.runs)
        return True

    def _check_runs(self, number: int, runs: Sequence[Run], taken: Intervals) -> None:
        """Raise ``StateError`` unless this subscription can consume these runs, and none of them is ``taken``."""
        if not runs:
            return
        if self._state.are_unconsumed(number, runs) and not (taken.size and taken.common(Intervals(runs)).size):
            return
        seen = taken.copy()
        for first, count in runs:  # pragma: no branch - one of them is wrong
            self._state.check_unconsumed(number, first, count)
            if seen.overlap(first, first + count):
                raise StateError(
                    "sequences that no other transaction of the group consumes", f"{count} from {first} again"
                )
            seen.add(first, count)

    def _write_blocks(
        self, group: Sequence[Transaction], time_ns: int, may_defer: bool, is_first: bool = True
    ) -> tuple[Sequence[Transaction], bool]:
        for transaction in group:
            transaction.staged = ()  # an earlier try, in a group with refused transactions, may have set it
        next_number = self._segments.next_number
        try:
            kept_bytes = self._inline_bytes if may_defer else 0
            for first, items, payload_bytes, each_bytes in _batches(group):
                first.staged = self._segments.stage(items, payload_bytes, time_ns, kept_bytes, each_bytes)
            staged_bytes = sum(piece.length_bytes for transaction in group for piece in transaction.staged)
            was_spilled = any(transaction.pieces for transaction in group)
            is_small = may_defer and not was_spilled and staged_bytes <= self._inline_bytes
            self._segments.write(may_defer=is_small)
        except faults(OSError) as error:
            self._segments.unstage()
            if error.errno not in LACKING:
                raise
            # First drop the segments of this try, so that they do not count as room that was made. They may go to the
            # pool, so that each try finds room to make. Therefore room is made only once.
            self._shielded(partial(self._segments.drop_tried, next_number))
            if is_first:
                self._segments.touched = set()  # no segment needs to stay for the blocks of this try
                if self._shielded(partial(self._frees_some, error)):
                    return self._write_blocks(group, time_ns, may_defer, is_first=False)
            if error.errno in NO_SPACE and not self._segments.shrinks:
                self._segments.shrinks = True
                try:
                    return self._write_blocks(group, time_ns, may_defer, is_first=False)
                finally:
                    self._segments.shrinks = False
            if len(group) > 1:  # one transaction that is too large must not fail the others
                alone = [self._write_blocks([each], time_ns, False, is_first=False)[0] for each in group]
                return [transaction for fitting in alone for transaction in fitting], False
            lack = lacking(error, self._segments.directory, "for a segment's blocks")
            assert lack is not None
            lack.__cause__ = error
            group[0].staged = ()
            group[0].error = self._limits.explain(group[0], lack)
            return [], False
        return group, is_small

    def _frees_some(self, refusal: OSError) -> bool:
        """Give back disk space or file descriptors, whichever ``refusal`` reports as lacking; return if any were."""
        if refusal.errno in NO_SPACE:
            return self._make_room(refusal)
        return refusal.errno in NO_FILES and self._segments.close_idle()


def _batches(group: Sequence[Transaction]) -> Iterator[tuple[Transaction, list[bytes], int, int]]:
    """Yield the items between spilled pieces together: their first transaction, the items, their payload bytes, and
    the length of each or ``MIXED``."""
    batch: list[Transaction] = []
    for transaction in [*group, None]:
        if batch and (transaction is None or transaction.pieces):
            if len(batch) == 1:
                yield batch[0], batch[0].items, batch[0].payload_bytes, batch[0].each_bytes
            else:
                items = [item for each in batch for item in each.items]
                yield batch[0], items, sum(each.payload_bytes for each in batch), MIXED
            batch = []
        if transaction is not None and transaction.items:
            batch.append(transaction)

"""Trims: how a new generation of the transaction log begins, and which files it makes superfluous.

The write order of a trim (``trim.1`` …):

1. Write the deferred blocks, and sync the segments with blocks that only the log has made durable so far.
2. Write a header and a checkpoint of the state into the spare.
3. Sync the spare. Steps 3 to 5 are in ``Log.publish``.
4. Rename it to the next generation: **the commit point of a trim**.
5. Sync the directory. *A crash before the end of this step leaves either generation, and both describe the same state.*
   The directory is opened before step 3, so that after step 4 nothing but a sync can fail. If there is no room for the
   name, nothing has changed.
6. The old generation becomes the spare. Segments that the checkpoint does not name are retired. *A crash leaves files
   that the next opening sweeps.* If an old generation cannot be renamed, the next trim renames or deletes it.
7. Retired segments go to the pool or are deleted, a large one step by step. ``give_back`` does this, maybe later and in
   another thread. *A crash leaves files that the next opening sweeps.*

No flush waits until a longer log is written. A trim takes the spare as long as it is. If the next log is to be longer,
``grow_spare`` writes some zeros after each commit, twice as many as the log has got since. So the spare is long enough
before the log is full. *A crash leaves a spare of some length, and the next log begins with that.*

Threads: ``trim`` and ``grow_spare`` are for the writer. ``give_back`` is for any thread, also during a trim. ``mutex``
guards the memory and is never held over a write or a sync.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ..core.frame import DOUBTED, FRAME_HEADER_BYTES, SEALED, SYNCED
from ..core.header import Header
from ..core.operations import Operation, Resolution, SegmentRow, encode_transaction
from ..errors import BrokenQueueError, ClosedError
from ..measuring.stalls import stalled
from ..storage.inbox_limits import CHECKPOINTS_PER_LOG, ENQUEUES_PER_LOG
from ..storage.layout import delete_file, set_aside
from ..storage.locations import DATA_DIRECTORY, LOG_DIRECTORY
from ..storage.log import OVERHEAD_BYTES, Log, log_name
from ..storage.log_reader import Replay
from ..storage.pool import Spare
from ..storage.segment_files import Segments
from ..system.disk import NO_SPACE, join
from ..system.files import sync_directory
from ..system.path_errors import faults, lacking, suppress
from .admission import Limits
from .context import Context
from .subscriptions import Subscriptions

LOG_BYTES_MAX = 64 * 1024 * 1024
"""Length up to which a log grows with the rate of commits."""
LOG_BYTES_FREE = 4 * 1024 * 1024
"""Length that a log may grow to with segments of any size."""
SEGMENTS_PER_LOG = 4
"""Length up to which a longer log grows, in segments. Small segments are chosen for little space beside the items."""
_GROUPS_PER_LOG = (2048, 8192)
"""Least and largest number of groups in a log of the right length.

If a log is full with fewer groups, the next one is twice as long, so that trims stay cheap compared with the groups. If
it is full with more, the next one is half as long, so that opening after a crash stays quick."""
_BYTES_PER_TURN = 1024 * 1024
"""Length of a log that one turn justifies: a log of ``n`` times this length is full ``n`` times before it is doubled.

The zeros of a longer log cost writes in proportion to its length, and each of its turns saves one trim. So a log is
doubled only after its trims have cost about as much as the zeros will."""
_GROWTH_PACE = 2
"""Bytes that the spare gets for each byte that the log has got, while it is to become longer."""
_GROWTH_STEP_BYTES = 512 * 1024
"""Bytes that are worth a step. After a large frame the step is longer."""
_GROWTH_STEPS = 8
"""Least number of steps. Otherwise a short log might be full before the first step."""
_LOG_SLACK = 2
"""Factor by which a log and its spare may be longer than wanted, while there is room on the disk."""


class Settling:
    """A transaction over several queues that the log has as prepared.

    It is settled by a frame with its resolution, or by a checkpoint of the state that followed."""

    def __init__(self, transaction: bytes, settled: Callable[[], None]) -> None:
        self.transaction = transaction
        self.committed: bool | None = None
        """Outcome of the transaction; None while it is unknown."""
        self.settled = settled
        """Called when this log durably has the outcome, so that it needs the coordinator no longer."""


class Generations:
    """The log of a store: its current generation and its spare.

    ``to_break`` is called with an error after which it is unknown what is on disk. It returns the error to raise.
    """

    def __init__(
        self,
        context: Context,
        segments: Segments,
        subscriptions: Subscriptions,
        limits: Limits,
        *,
        to_break: Callable[[OSError], BrokenQueueError],
    ) -> None:
        self._disk = context.disk
        self._places = context.places
        self._settings = settings = context.settings
        self._state = context.state
        self._quota = context.quota
        self._mutex = context.guards.mutex
        self._note_stall = context.guards.note_stall
        self._segments = segments
        self._subscriptions = subscriptions
        self._limits = limits
        self._to_break = to_break
        grown_bytes = min(max(SEGMENTS_PER_LOG * settings.segment_bytes, LOG_BYTES_FREE), LOG_BYTES_MAX)
        self._log_bytes_max = max(limits.bounded_bytes(grown_bytes), settings.log_bytes)
        self.spare = Spare(context.disk, context.places.spare_directory)
        self.log: Log | None = None
        """Log that frames are written to; None before the first commit after a clean close."""
        self.path: str | None = None
        """Path of the current generation."""
        self.number = 0
        """Number of the current generation; 0 before there is one."""
        self.shortage: OSError | None = None
        """Error that kept the spare shorter than the log; None if there was none.

        If the spare is shorter, a smaller part of the log is for frames that enqueue."""
        self.settling: Settling | None = None
        """Prepared transaction that the log has no resolution of; None if there is none."""
        self.trims = 0
        """Number of trims since the queue was opened."""
        self._leftover: dict[str, bool] = {}
        """Superseded logs that could not be renamed, each with whether to set it aside instead of using it again."""
        self.retired: deque[tuple[int, int]] = deque()
        """Numbers and sizes of the segments that ``give_back`` will delete or give to the pool."""
        self._last_frame = 0
        self._found_bytes = (0, 0)
        self._next_bytes = self._wanted_bytes = settings.log_bytes
        self._needed_bytes = settings.log_bytes
        """Least length of the present log and of its spare."""
        self._slack = _LOG_SLACK
        self.growth_bytes = 0
        """Bytes by which ``grow_spare`` is to make the spare longer."""
        self._turns = 0
        """Number of logs in a row that were full at the present length, with few groups."""
        self._spare_bytes = 0
        """Length of the spare; 0 before the first trim."""
        self._grown_at = 0
        """Offset in the log at which the spare grew last."""

    def follow(self, replay: Replay) -> None:
        """Continue behind the generation that recovery has read."""
        self.number, self._last_frame = replay.header.number, replay.last_number
        self.path = replay.file
        self._found_bytes = replay.end, replay.header.size_bytes - replay.missing_bytes

    @property
    def log_bytes(self) -> tuple[int, int]:
        """Bytes of the log that are used, and bytes of its file."""
        return (self.log.end, self.log.capacity_bytes) if self.log is not None else self._found_bytes

    @property
    def has_grown(self) -> bool:
        """Whether the next log is to be longer than the setting ``log_bytes``."""
        return self._next_bytes > self._settings.log_bytes

    @property
    def is_long(self) -> bool:
        """Whether the log and its spare together are longer than wanted."""
        return self.file_bytes > 2 * self._wanted_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes that the log and its spare take."""
        return self.spare.size_bytes() + self.log_bytes[1]

    def first_operations(self) -> list[Operation]:
        """Return the operations that the next frame must begin with: the resolution of a prepared transaction, if any.

        Raises ``BrokenQueueError`` if the outcome of that transaction is unknown.
        """
        settling = self.settling
        if settling is None:
            return []
        if settling.committed is None:
            raise self._to_break(InterruptedError("a transaction over several queues was interrupted"))
        return [Resolution(settling.transaction, settling.committed)]

    def tell_settled(self) -> None:
        """Note that the log now durably has the outcome of the prepared transaction, if there is one."""
        settling, self.settling = self.settling, None
        if settling is not None:
            settling.settled()

    def close(self) -> None:
        """Close the log's file, and write nothing. The next opening sweeps the retired segments."""
        self.retired.clear()
        log, self.log = self.log, None
        if log is not None:
            log.close()

    def trim(self, flags: int = 0, extra_bytes: int = 0, keep_old: bool = False, enqueues: bool = False) -> None:
        """Begin a new generation of the log with a checkpoint, and retire the segments that nothing needs any more.

        On return, everything committed is durable, whatever ``sync`` is. The new log gets room for a frame of
        ``extra_bytes``. If that frame ``enqueues``, the log does not exceed the limits on the disk for it. ``flags``
        are written to the header of the log. With ``keep_old``, the old log is set aside.

        Raises ``ResourceError`` (nothing has changed) and ``BrokenQueueError``. The write order is at the top of this
        file.
        """
        self._disk.failpoint("trim.1 sync blocks")
        self.first_operations()
        self._settle_leftovers()
        self.write_deferred()
        self._sync_segments()
        self._disk.failpoint("trim.2 write generation")
        old, old_path, closing = self.log, self.path, bool(flags & SEALED)
        with self._mutex:
            current = self._current_row(closing)
            kept = self._segments.pinned
            drained = [n for n in self._state.drained if n not in kept and (current is None or n != current.number)]
            checkpoint = self._state.checkpoint(self._disk.time_ns(), current, kept)
            operations = [checkpoint, *self._state.supplement()]
        mode = flags | (SYNCED if self._settings.sync else 0) | (DOUBTED if keep_old else 0)
        number = self._last_frame if old is None else old.number
        log = self._write_generation(
            operations, mode, number + 1, extra_bytes=extra_bytes, enqueues=enqueues, keep_old=keep_old
        )
        try:
            log.publish(self.spare.path)
        except BaseException as error:
            log.close()
            if isinstance(error, faults(OSError)):
                raise self._to_break(error) from error
            raise  # also a ResourceError: only the spare was written, so that nothing has changed
        self.log, self.path = log, log.path
        self.number += 1
        self.trims += 1
        self.tell_settled()
        if old is not None:
            log.inherit(old)
            old.close()
        self._disk.failpoint("trim.6 retire")
        self._retire(old_path, drained, keep_old)
        # Make the spare now, while there is room: the next trim needs it on a full disk.
        most_bytes = max(self._slack * self._wanted_bytes, log.capacity_bytes)
        self._change_spare(log, partial(self.spare.fill, min(self._needed_bytes, log.capacity_bytes), most_bytes))
        self._quota.reserve_bytes = self._limits.reserve_bytes(log.capacity_bytes)

    def grow_spare(self) -> None:
        """Make the spare longer by a step, if one is due. Without room for it, the spare keeps its length."""
        log = self.log
        if log is not None:
            due_bytes = min(_GROWTH_PACE * (log.end - self._grown_at), self.growth_bytes)
            if due_bytes >= min(_GROWTH_STEP_BYTES, log.capacity_bytes // _GROWTH_STEPS, self.growth_bytes):
                with stalled(self._disk.monotonic, self._note_stall, "spare"):
                    self._change_spare(log, partial(self.spare.fill, self._spare_bytes + due_bytes))

    def _change_spare(self, log: Log, make: Callable[[], int]) -> None:
        """Change the length of the spare by ``make``, which returns it."""
        try:
            self._spare_bytes, self.shortage = make(), None
        except faults(OSError) as error:
            # A new error: that which was raised would keep the objects of its callers alive.
            self._spare_bytes, self.shortage = 0, OSError(error.errno, error.strerror, error.filename)
            with suppress(OSError):  # if not even this can be known, the next frame that enqueues begins with a trim
                self._spare_bytes = self.spare.size_bytes()
            if error.errno in NO_SPACE:
                self._next_bytes = self._settings.log_bytes
        # The next checkpoint must have room for everything that this log enqueues, and leave room for frames that
        # dequeue. On a full disk, that checkpoint can only be written to the spare.
        log.enqueue_bytes_max = int(ENQUEUES_PER_LOG * min(log.capacity_bytes, self._spare_bytes))
        wanted_bytes = max(log.capacity_bytes, self._next_bytes) if self.shortage is None else 0
        self.growth_bytes, self._grown_at = max(wanted_bytes - self._spare_bytes, 0), log.end

    def trim_short(self, tightly: bool) -> None:
        """Trim, and give back the length that the log has grown by. Raises the errors of ``trim``.

        With ``tightly``, the log and the spare are cut to the wanted length; otherwise they may stay twice as long.
        """
        self._next_bytes, self._slack = self._settings.log_bytes, 1 if tightly else _LOG_SLACK
        try:
            self.trim()
        finally:
            self._slack = _LOG_SLACK

    def resize(self) -> None:
        """Choose the length of the next log by the number of groups in the full one."""
        if self.log is not None:
            fewest, most = _GROUPS_PER_LOG
            if self.growth_bytes or self.log.capacity_bytes < self._next_bytes:
                return  # the log has not yet got the length that was chosen before
            self._turns = self._turns + 1 if self.log.groups < fewest else 0
            if self._turns and self._turns * _BYTES_PER_TURN >= self.log.capacity_bytes:
                self._next_bytes, self._turns = min(2 * self._next_bytes, self._log_bytes_max), 0
            elif self.log.groups > most:
                self._next_bytes = max(self._next_bytes // 2, self._settings.log_bytes)

    def write_deferred(self) -> None:
        """Write the deferred blocks. Raises ``ResourceError`` and ``BrokenQueueError``."""
        with self._explaining("for the deferred blocks of a segment"):
            self._segments.write()

    def _sync_segments(self) -> None:
        """Do the second half of step 1. Raises ``ResourceError`` only for calls before a sync."""
        with self._explaining("for the names of adopted files"):
            self._segments.name_adopted()
        try:
            self._segments.sync()
        except faults(OSError) as error:
            raise self._to_break(error) from error

    @contextmanager
    def _explaining(self, purpose: str) -> Iterator[None]:
        """Raise ``ResourceError`` if the system lacks a resource; break the store for any other ``OSError``."""
        try:
            yield
        except faults(OSError) as error:
            raise lacking(error, self._places.path(DATA_DIRECTORY), purpose) or self._to_break(error) from error

    def _settle_leftovers(self) -> None:
        """Rename or delete the superseded logs that could not be renamed before: a spare needs their room."""
        for path, is_kept in list(self._leftover.items()):
            with suppress(OSError):
                try:
                    self._rename_old(path, is_kept)
                except faults(OSError):
                    if is_kept:
                        raise
                    delete_file(self._disk, path, self._settings.wipe)
                del self._leftover[path]

    def find_spare(self, superseded: Sequence[str]) -> str | None:
        """Make the last of the ``superseded`` logs the spare if the spare is missing; return its path, or None.

        A crash may have left that log under its old name, and on a full disk there is no room for another file.
        """
        if not self.spare.size_bytes():
            for path in superseded[-1:]:
                with suppress(OSError):
                    self.spare.give(path, self._settings.wipe)
                    return path
        return None

    def make_spare(self) -> None:
        """Make a spare if it is missing. Do nothing if there is no room for one."""
        if not self.spare.size_bytes():
            with suppress(OSError):
                self.spare.fill(self._settings.log_bytes)

    def _rename_old(self, path: str, is_kept: bool) -> None:
        """Set a superseded log aside, durably, or make it the spare. Raises ``OSError``."""
        if is_kept:
            with suppress(FileNotFoundError):  # it was set aside before, and only the sync has failed
                set_aside(self._disk, path)
            # The generation after the current one does not record the doubt, so the new name must be durable first.
            sync_directory(self._disk, self._places.path(LOG_DIRECTORY))
        else:
            self.spare.give(path, self._settings.wipe)

    @property
    def retired_bytes(self) -> int:
        """Bytes of the retired segments. For any thread, while another one may delete them."""
        found_bytes = 0
        # By index: without a GIL, an iteration or a copy would raise if the other thread deletes one meanwhile.
        with suppress(IndexError):
            for at in range(len(self.retired)):
                found_bytes += self.retired[at][1]
        return found_bytes

    def give_back(self) -> None:
        """Give the files of retired segments to the pool, or delete them. The next opening sweeps those that fail."""
        while self.retired:
            self._disk.failpoint("trim.7 give back segment")
            with suppress(OSError, IndexError, ClosedError):  # of the last two: another thread abandons the store
                self._segments.delete(self.retired.popleft()[0])

    def _write_generation(
        self, operations: list[Operation], mode: int, number: int, *, extra_bytes: int, enqueues: bool, keep_old: bool
    ) -> Log:
        """Do step 2 of a trim; return the log, which is not published yet. Raises the errors of ``trim``."""
        path = join(self._places.path(LOG_DIRECTORY), log_name(self.number + 1))
        body = encode_transaction(operations)
        checkpoint_bytes = len(body) + OVERHEAD_BYTES
        self._needed_bytes = max(self._settings.log_bytes, CHECKPOINTS_PER_LOG * checkpoint_bytes + 2 * extra_bytes)
        self._wanted_bytes = max(self._next_bytes, self._needed_bytes)
        wanted_bytes = max(min(self._wanted_bytes, self._spare_bytes), self._needed_bytes)
        least_bytes = checkpoint_bytes + FRAME_HEADER_BYTES + extra_bytes
        least, most_bytes = (int(least_bytes / ENQUEUES_PER_LOG) + 1, least_bytes), self._slack * self._wanted_bytes
        self._quota.refused = None
        try:
            fd, size_bytes = self.spare.open_fitting(wanted_bytes, most_bytes, least, enqueues, self._quota)
            if keep_old:  # the old log does not become the next spare, so leave room for another one
                try:
                    size_bytes = self.spare.leave_room(fd, size_bytes, least_bytes)
                except BaseException:
                    self._disk.close(fd)
                    raise
            if size_bytes < wanted_bytes:
                self._next_bytes = self._settings.log_bytes
            header = Header(mode, self.number + 1, 0, self._disk.time_ns(), size_bytes)
            return Log.begin(self._disk, fd, self.spare.path, path, header, number, body, len(operations))
        except faults(OSError) as error:
            lack = lacking(error, path, "for a new generation of the log")
            if lack is None:
                raise self._to_break(error) from error
            if error.errno in NO_SPACE:
                self._next_bytes = self._settings.log_bytes
            raise lack from error

    def _current_row(self, closing: bool) -> SegmentRow | None:
        """Return the current segment for the checkpoint; None if there is none to continue in.

        At a clean close, return it only if it has live items.
        """
        current = self._segments.current
        info = self._state.segments.get(current.number) if current is not None else None
        if current is None or info is None or (closing and not info.live):
            return None
        # After a clean close, the next owner continues behind the last block in the file. Before that, the file may
        # already have blocks of a group whose frame follows this checkpoint: use the end of the last logged block.
        at = current if closing else info
        return SegmentRow(current.number, current.salt, current.capacity_bytes, at.end, at.ordinal)

    def _retire(self, old_path: str | None, drained: list[int], keep_old: bool) -> None:
        """Do step 6: give up the old log and the drained segments, which the new generation does not need."""
        if old_path is not None:
            try:
                self._rename_old(old_path, keep_old)
            except faults(OSError):
                self._leftover[old_path] = keep_old
        for number in drained:
            size_bytes = self._state.segments[number].end
            with self._mutex:
                self._state.retire(number)
                self._subscriptions.forget(number)
            with suppress(OSError):
                self._segments.retire(number)
            self.retired.append((number, size_bytes))

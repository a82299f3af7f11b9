"""The generations of the transaction log: how a new one begins, and what it makes superfluous.

The write order of a trim (``trim.1`` …), which begins a new generation of the log:

1. Write the blocks that stayed in memory, and sync the segments with blocks that only the log made durable so far.
2. Write a header and a checkpoint of the state into the spare file. 3. Sync it. 4. Rename it to the next generation:
   **the commit point of a trim**. 5. Sync the directory. *A crash before 5 leaves either generation, and both say the
   same.* The directory is opened before 3, so that behind 4 nothing but a sync can fail. If there is no room for the
   name, nothing has changed.
6. The old generation becomes the spare; segments that the checkpoint does not name are retired. *A crash leaves files
   that the next opening sweeps.* An old generation that cannot be renamed is renamed, or deleted, by the next trim.
7. Retired segments go to the pool, or are deleted, in ``give_back``, which may come later and from another thread. *A
   crash leaves the same.*

Threads: ``trim`` is for the thread that writes; ``give_back`` is for any thread, beside it. ``mutex`` guards the memory
and is never held over a write or a sync.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ..core.frame import DOUBTED, FRAME_HEADER_BYTES, SEALED, SYNCED
from ..core.header import Header
from ..core.operations import Operation, Resolution, SegmentRow, encode_transaction
from ..core.state import State
from ..errors import BrokenQueueError, lacking
from ..storage.layout import delete_file, set_aside
from ..storage.locations import DATA_DIRECTORY, LOG_DIRECTORY, Places
from ..storage.log import OVERHEAD_BYTES, Log, Replay, log_name
from ..storage.pool import Spare
from ..storage.segment_files import Segments
from ..system.disk import NO_SPACE, Disk, join, sync_directory
from ..system.quota import Quota
from .admission import Limits
from .reader import Guard
from .subscriptions import Subscriptions
from .transaction import Settings

LOG_BYTES_MAX = 64 * 1024 * 1024
_GROUPS_PER_LOG = (2048, 8192)
"""A log that fills with fewer groups is doubled, so that a trim stays cheap beside them; with more it is halved, so
that opening after a crash stays quick."""
_CHECKPOINTS_PER_LOG = 4
"""A log is at least so many times as long as its checkpoint, so that writing checkpoints stays a small part."""
_ENQUEUES_PER_LOG = 0.7
"""The part of a log for frames that enqueue: what takes 78 bytes there, a new segment with an extent, takes 104 in a
checkpoint, and then a frame that dequeues must fit behind it."""
_LOG_SLACK = 2
"""So many times as long as it should be a log may stay, and its spare, as long as there is room."""


class Settling:
    """A transaction over several queues that stands in the log, prepared, until a frame says what became of it, or a
    checkpoint is made of the state that followed."""

    def __init__(self, transaction: bytes, settled: Callable[[], None]) -> None:
        self.transaction = transaction
        self.committed: bool | None = None
        """What became of it; None as long as nobody knows."""
        self.settled = settled
        """Called when the log needs no other to tell what became of it."""


class Generations:
    """The log of a store, the generation that it is in, and its spare. ``to_break`` is told of what nobody knows the
    outcome of, and says what to raise."""

    def __init__(
        self,
        disk: Disk,
        places: Places,
        settings: Settings,
        log_bytes_max: int,
        state: State,
        segments: Segments,
        subscriptions: Subscriptions,
        limits: Limits,
        quota: Quota,
        mutex: Guard,
        to_break: Callable[[OSError], BrokenQueueError],
    ) -> None:
        self._disk = disk
        self._places = places
        self._settings = settings
        self._state = state
        self._segments = segments
        self._subscriptions = subscriptions
        self._limits = limits
        self._quota = quota
        self._mutex = mutex
        self._to_break = to_break
        self._log_bytes_max = max(min(LOG_BYTES_MAX, log_bytes_max), settings.log_bytes)
        self.spare = Spare(disk, places.spare_directory)
        self.log: Log | None = None
        """What is written to; None before the first commit after a clean close."""
        self.path: str | None = None
        """Of the log that counts."""
        self.number = 0
        """Of the generation; 0 before there is one."""
        self.shortage: OSError | None = None
        """Why the spare is shorter than the log, if it is: then only a part of the log is for enqueueing."""
        self.settling: Settling | None = None
        self.trims = 0
        self._leftover: dict[str, bool] = {}
        """Logs that are superseded, and had no room for their new name; whether to keep them aside."""
        self.retired: deque[tuple[int, int]] = deque()
        """The numbers and the sizes of the segments that ``give_back`` will delete."""
        self._last_frame = 0
        self._found_bytes = (0, 0)
        self._next_bytes = self._wanted_bytes = settings.log_bytes
        self._slack = _LOG_SLACK

    def follow(self, replay: Replay) -> None:
        """Go on behind the generation that was read."""
        self.number, self._last_frame = replay.header.number, replay.last_number
        self.path = replay.file
        self._found_bytes = replay.end, replay.header.size_bytes - replay.missing_bytes

    @property
    def log_bytes(self) -> tuple[int, int]:
        """The bytes of the log that are used, and the bytes of its file."""
        return (self.log.end, self.log.capacity_bytes) if self.log is not None else self._found_bytes

    @property
    def has_grown(self) -> bool:
        """Whether the log is to be longer than it was at first."""
        return self._next_bytes > self._settings.log_bytes

    @property
    def is_long(self) -> bool:
        """Whether the log and its spare take more than both were meant to."""
        return self.file_bytes > 2 * self._wanted_bytes

    @property
    def file_bytes(self) -> int:
        """What the log and its spare take."""
        return self.spare.size_bytes() + self.log_bytes[1]

    def first_operations(self) -> list[Operation]:
        """What the next frame has to begin with. Raises ``BrokenQueueError`` where nobody knows."""
        settling = self.settling
        if settling is None:
            return []
        if settling.committed is None:
            raise self._to_break(InterruptedError("a transaction over several queues was interrupted"))
        return [Resolution(settling.transaction, settling.committed)]

    def tell_settled(self) -> None:
        """The log carries durably what became of what was prepared."""
        settling, self.settling = self.settling, None
        if settling is not None:
            settling.settled()

    def close(self) -> None:
        """Close the log's file, and write nothing; what was to be given back is the next opening's."""
        self.retired.clear()
        if self.log is not None:
            self.log.close()
            self.log = None

    def trim(self, flags: int = 0, extra_bytes: int = 0, keep_old: bool = False, enqueues: bool = False) -> None:
        """Begin a new generation of the log with a checkpoint, and retire the segments that nobody needs any more.

        Afterwards everything committed is durable, whatever ``sync`` is. Room is left for a frame of ``extra_bytes``,
        which ``enqueues``, and for which the limits on the disk are not stretched, or does not.
        Raises ``ResourceError`` (nothing changed) and ``BrokenQueueError``. The write order is at the top of this file.
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
        log = self._write_generation(operations, mode, number + 1, extra_bytes, enqueues, keep_old)
        try:
            log.publish(self.spare.path)
        except BaseException as error:
            log.close()
            if isinstance(error, OSError):
                raise self._to_break(error) from error
            raise  # also a ResourceError: what was written stands in the spare, and nothing has changed
        self.log, self.path = log, log.path
        self.number += 1
        self.trims += 1
        self.tell_settled()
        if old is not None:
            old.close()
        self._disk.failpoint("trim.6 retire")
        self._retire(old_path, drained, keep_old)
        try:  # while there is room, so that the next trim finds a spare when there is none
            most_bytes = max(self._slack * self._wanted_bytes, log.capacity_bytes)
            spare_bytes, self.shortage = self.spare.fill(log.capacity_bytes, most_bytes), None
        except OSError as error:
            spare_bytes, self.shortage = self.spare.size_bytes(), error
        # What a log enqueues must fit into the checkpoint that follows it, and leave room for frames that dequeue: on a
        # full disk there is nothing but the spare to write it to.
        log.enqueue_bytes_max = int(_ENQUEUES_PER_LOG * min(log.capacity_bytes, spare_bytes))
        self._quota.reserve_bytes = self._limits.reserve_bytes(log.capacity_bytes)

    def trim_short(self, tightly: bool) -> None:
        """Trim, and let the log be as short as it can be, and the spare too, if ``tightly``. Raises like ``trim``."""
        self._next_bytes, self._slack = self._settings.log_bytes, 1 if tightly else _LOG_SLACK
        try:
            self.trim()
        finally:
            self._slack = _LOG_SLACK

    def resize(self) -> None:
        """Let the next log be longer, or shorter, by how many groups the full one took."""
        if self.log is not None:
            fewest, most = _GROUPS_PER_LOG
            if self.log.groups < fewest:
                self._next_bytes = min(2 * self._next_bytes, self._log_bytes_max)
            elif self.log.groups > most:
                self._next_bytes = max(self._next_bytes // 2, self._settings.log_bytes)

    def write_deferred(self) -> None:
        """Write the blocks that stayed in memory. Raises ``ResourceError`` and ``BrokenQueueError``."""
        with self._explaining("for what a group left"):
            self._segments.write()

    def _sync_segments(self) -> None:
        """Step 1 of a trim, the end of it. Raises ``ResourceError`` only for calls before a sync."""
        with self._explaining("for the names of what was adopted"):
            self._segments.name_adopted()
        try:
            self._segments.sync()
        except OSError as error:
            raise self._to_break(error) from error

    @contextmanager
    def _explaining(self, purpose: str) -> Iterator[None]:
        """Raise ``ResourceError`` for what the system lacks for segments, and break the store for all else."""
        try:
            yield
        except OSError as error:
            raise lacking(error, self._places.path(DATA_DIRECTORY), purpose) or self._to_break(error) from error

    def _settle_leftovers(self) -> None:
        """Rename logs that could not be renamed when they were superseded, or delete them: a spare needs their room."""
        for path, is_kept in list(self._leftover.items()):
            with suppress(OSError):
                try:
                    self._rename_old(path, is_kept)
                except OSError:
                    if is_kept:
                        raise
                    delete_file(self._disk, path, self._settings.wipe)
                del self._leftover[path]

    def find_spare(self, superseded: Sequence[str]) -> str | None:
        """Make one of these logs, which are ``superseded``, the spare, if that is lost; which one.

        A crash may have left the last log under its old name, and on a full disk there is no room for another file.
        """
        if not self.spare.size_bytes():
            for path in superseded[-1:]:
                with suppress(OSError):
                    self.spare.give(path, self._settings.wipe)
                    return path
        return None

    def make_spare(self) -> None:
        """Make a spare, if it is lost, while there may be room for one."""
        if not self.spare.size_bytes():
            with suppress(OSError):
                self.spare.fill(self._settings.log_bytes)

    def _rename_old(self, path: str, is_kept: bool) -> None:
        """Keep a log that is superseded aside, durably, or make it the spare. Raises ``OSError``."""
        if is_kept:
            set_aside(self._disk, path)
            # Before a generation that does not tell.
            sync_directory(self._disk, self._places.path(LOG_DIRECTORY))
        else:
            self.spare.give(path, self._settings.wipe)

    def give_back(self) -> None:
        """Give the files of retired segments to the pool, or delete them. What fails is swept by the next opening."""
        while self.retired:
            self._disk.failpoint("trim.7 give back segment")
            with suppress(OSError, IndexError):  # the store is being abandoned meanwhile
                self._segments.delete(self.retired.popleft()[0])

    def _write_generation(
        self, operations: list[Operation], mode: int, number: int, extra_bytes: int, enqueues: bool, keep_old: bool
    ) -> Log:
        """Step 2 of a trim: the log, not yet published. Raises like ``trim``."""
        path = join(self._places.path(LOG_DIRECTORY), log_name(self.number + 1))
        body = encode_transaction(operations)
        checkpoint_bytes = len(body) + OVERHEAD_BYTES
        wanted_bytes = max(self._next_bytes, _CHECKPOINTS_PER_LOG * checkpoint_bytes + 2 * extra_bytes)
        least_bytes = checkpoint_bytes + FRAME_HEADER_BYTES + extra_bytes
        least, most_bytes = (int(least_bytes / _ENQUEUES_PER_LOG) + 1, least_bytes), self._slack * wanted_bytes
        self._quota.refusal, self._wanted_bytes = None, wanted_bytes
        try:
            fd, size_bytes = self.spare.open_fitting(wanted_bytes, most_bytes, least, enqueues, self._quota)
            if keep_old:  # the old log does not become the next spare
                try:
                    size_bytes = self.spare.leave_room(fd, size_bytes, least_bytes)
                except BaseException:
                    self._disk.close(fd)
                    raise
            if size_bytes < wanted_bytes:
                self._next_bytes = self._settings.log_bytes
            header = Header(mode, self.number + 1, 0, self._disk.time_ns(), size_bytes)
            return Log.begin(self._disk, fd, self.spare.path, path, header, number, body, len(operations))
        except OSError as error:
            lack = lacking(error, path, "for a new generation of the log")
            if lack is None:
                raise self._to_break(error) from error
            if error.errno in NO_SPACE:
                self._next_bytes = self._settings.log_bytes
            raise lack from error

    def _current_row(self, closing: bool) -> SegmentRow | None:
        """The segment to write on in; at a clean close only if it holds items."""
        current = self._segments.current
        info = self._state.segments.get(current.number) if current is not None else None
        if current is None or info is None or (closing and not info.live):
            return None
        # Only a clean close writes on behind the last block in the file; before, a group may be on its way there whose
        # frame follows this checkpoint.
        at = current if closing else info
        return SegmentRow(current.number, current.salt, current.capacity_bytes, at.end, at.ordinal)

    def _retire(self, old_path: str | None, drained: list[int], keep_old: bool) -> None:
        """Give up what the new generation made superfluous."""
        if old_path is not None:
            try:
                self._rename_old(old_path, keep_old)
            except OSError:
                self._leftover[old_path] = keep_old
        for number in drained:
            size_bytes = self._state.segments[number].end
            with self._mutex:
                self._state.retire(number)
                self._subscriptions.forget(number)
            with suppress(OSError):
                self._segments.retire(number)
            self.retired.append((number, size_bytes))

"""Maintenance of one queue: work that no caller waits for. Compaction, filling the pool, and tidying up an idle queue.

It is done by hand, or in the background thread (see ``background``). It takes the locks of ``open_queue``, in the order
given there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import NamedTuple

from ..engine.compaction import Copy
from ..engine.transaction import Transaction
from ..errors import BrokenQueueError, ClosedError, PersistentQueueError
from ..system.disk import basename
from ..system.event_log import LOGGER
from ..system.path_errors import faults
from ..system.progress import SILENT, Meter, Progress, metering
from .background import BACKGROUND
from .open_queue import OpenQueue

MAINTENANCE_SECONDS = 1.0
"""Seconds after a commit until maintenance is due, at most."""
IDLE_SECONDS = 10.0
"""Seconds without a commit until the queue gives up what only a busy queue needs."""
_PAUSE_SECONDS = 0.05
"""Longest sleep of a pausing compaction, in seconds. After each sleep it checks that the queue is still open."""


class Compacted(NamedTuple):
    """The result of ``PersistentQueue.compact``.

    When ``compact`` returns it, the compaction is durable. The tuple never changes, so any thread may use it.
    """

    segments: int
    """Number of segments that were emptied."""
    copied_bytes: int
    """Bytes of blocks that were written for that."""


class Maintained(NamedTuple):
    """The result of ``PersistentQueue.maintain``.

    When ``maintain`` returns it, the compaction is committed. The tuple never changes, so any thread may use it.
    """

    compacted_segments: int
    """Number of segments that were emptied."""
    copied_bytes: int
    """Bytes of blocks that were written for that."""
    pooled_bytes: int
    """Bytes of the files that were made for the pool."""


class Maintenance:
    """The maintenance of one queue. For any number of threads."""

    def __init__(self, open_queue: OpenQueue) -> None:
        self._open_queue = open_queue
        self._is_tidy_due = False
        """True if tidying up is scheduled."""
        self._sample_seconds = 0.0
        """Time of ``OpenQueue.now`` at which a long compaction takes the next sample."""
        self._failures: set[tuple[type, int | None]] = set()
        """Causes of failures that were logged since maintenance succeeded last: the type and the error number."""
        open_queue.after_commit = self.maintain_soon

    def compact_now(self, below: float, progress: Progress, bytes_per_second: float) -> Compacted:
        """Compact for a caller of ``PersistentQueue.compact``, then trim. Raises its errors."""
        open_queue = self._open_queue
        with metering(progress, f"compact {basename(open_queue.directory)}") as meter:
            meter.expect(open_queue.sparse_bytes(below))
            compacted = self.compact(below, False, meter, bytes_per_second)
            open_queue.trim()  # also deletes drained segments if nothing was compacted
        return compacted

    def compact(
        self,
        below: float,
        settled_only: bool,
        meter: Meter = SILENT,
        bytes_per_second: float = inf,
    ) -> Compacted:
        """Copy the live items of sparse segments together, commit that, and delete the segments.

        This is repeated until none of the sparse segments is left that existed at the beginning. On average it copies
        at most ``bytes_per_second``. ``meter`` counts the copied bytes. Raises ``ResourceError``, ``BrokenQueueError``,
        ``ClosedError``, ``OSError``, and ``ReentrantUseError`` for a call of what ``meter`` reports to.
        """
        with self._open_queue.compacting():
            self._sample()
            return self._compact(below, settled_only, meter, bytes_per_second)

    def _compact(self, below: float, settled_only: bool, meter: Meter, bytes_per_second: float) -> Compacted:
        segments = copied_bytes = 0
        before, began = self._open_queue.next_segment, self._open_queue.now()
        copy: Copy | None = None

        def begin() -> None:
            """Begin a copy, if any segment is sparse."""
            nonlocal copy
            copy = self._open_queue.begin_compaction(below, settled_only, before)

        def end() -> None:
            """End the copy that was begun, if any."""
            nonlocal copy
            if copy is not None:
                self._open_queue.end_compaction(copy)
                copy = None

        while True:
            try:
                self._open_queue.around(partial(self._open_queue.shielded, begin))
                if copy is None:
                    return Compacted(segments, copied_bytes)
                resumed, groups, counted_bytes = self._open_queue.now(), self._open_queue.groups, 0
                while self._open_queue.around(copy.step):  # it takes the mutex
                    self._open_queue.check()
                    if self._open_queue.now() >= self._sample_seconds:
                        self._sample()
                    meter.advance(copy.copied_bytes - counted_bytes)
                    counted_bytes = copy.copied_bytes
                    # Other threads commit, and waited for the interpreter meanwhile: leave it to them for longer.
                    for_others = 3 * self._open_queue.now() - 2 * resumed if groups != self._open_queue.groups else 0.0
                    self._pause(max(for_others, began + (copied_bytes + copy.copied_bytes) / bytes_per_second))
                    resumed, groups = self._open_queue.now(), self._open_queue.groups
                transaction = Transaction()
                transaction.operations = copy.finish()
                meter.advance(copy.copied_bytes - counted_bytes)
                if transaction.operations:
                    self._open_queue.commit(transaction)
                    segments += len(copy.done)
                    copied_bytes += copy.copied_bytes
                self._open_queue.around(partial(self._open_queue.shielded, end))
            except BaseException:
                self._open_queue.around(partial(self._open_queue.shielded, end))
                raise
            self._open_queue.trim()

    def _sample(self) -> None:
        """Take a sample of the queue (see ``InspectedQueue.sample``)."""
        self._sample_seconds = self._open_queue.now() + MAINTENANCE_SECONDS
        self._open_queue.around(partial(self._open_queue.shielded, self._open_queue.sample))

    def _pause(self, until: float) -> None:
        """Sleep until that time of ``OpenQueue.now``. Raises ``ClosedError`` soon after the queue was closed."""
        while (left_seconds := until - self._open_queue.now()) > 0:
            time.sleep(min(left_seconds, _PAUSE_SECONDS))
            self._open_queue.check()

    def maintain(self) -> Maintained:
        """Give up what only a busy queue needs, compact sparse segments, and fill the pool. Raises the errors of
        ``compact``."""
        self._open_queue.tidy()
        return self._maintain(inf)

    def _maintain(self, bytes_per_second: float) -> Maintained:
        self._open_queue.look(self._open_queue.meters.count)  # a queue that refuses all flushes counts none by itself
        self._open_queue.give_back()
        compacted = self.compact(self._open_queue.settings.compact_below, True, SILENT, bytes_per_second)
        return Maintained(compacted.segments, compacted.copied_bytes, sum(self._open_queue.fill_pool()))

    def maintain_soon(self) -> None:
        """Schedule maintenance in the background thread."""
        self._open_queue.maintenance_is_due = True  # first: the job may have begun when ``submit`` returns
        if not BACKGROUND.submit(self._maintain_by_itself, MAINTENANCE_SECONDS, self._open_queue):
            self._open_queue.maintenance_is_due = False  # a later flush tries again

    def _maintain_by_itself(self) -> None:
        self._open_queue.maintenance_is_due = False
        with self._by_itself():
            self._open_queue.check_usable()
            try:
                self._maintain(self._open_queue.settings.compact_bytes_per_second)
            finally:  # on a full disk the maintenance fails, and tidying is the step that gives space back
                if not self._is_tidy_due:
                    self._tidy_soon()

    @contextmanager
    def _by_itself(self) -> Iterator[None]:
        """Log a failure of background maintenance, once for each cause until it succeeds: it comes again, and may fail
        every second.

        A broken or closed queue is not logged, because its callers and the log know of it already.
        """
        try:
            yield
            self._failures.clear()  # a cause that comes back later is logged again
        except (BrokenQueueError, ClosedError):
            pass
        except faults(PersistentQueueError, OSError) as error:
            cause = type(error), getattr(error, "errno", None)
            if cause not in self._failures:
                self._failures.add(cause)
                LOGGER.warning("%s: maintenance failed, and is tried again: %s", self._open_queue.directory, error)

    def _tidy_soon(self) -> None:
        self._is_tidy_due = True
        tidy = partial(self._tidy_by_itself, self._open_queue.groups)
        if not BACKGROUND.submit(tidy, IDLE_SECONDS, self._open_queue):
            self._is_tidy_due = False

    def _tidy_by_itself(self, groups: int) -> None:
        self._is_tidy_due = False
        with self._by_itself():
            self._open_queue.check_usable()
            if groups == self._open_queue.groups:
                self._open_queue.tidy()
            else:
                self._tidy_soon()
                self._open_queue.sweep_if_due()

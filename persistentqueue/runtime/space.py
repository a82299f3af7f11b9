"""The space that an open queue takes, beside its commits: trims, compactions, the pool, retired segments, memory."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from ..engine.compaction import Copy, share
from ..engine.store import Store
from ..errors import ReentrantUseError
from ..interrupts.call_guard import CallGuard, outermost, whole
from ..interrupts.locks import Lock
from .background import BACKGROUND
from .memory_budget import MemoryBudget, Share
from .waiting import RoomWaiters

_AT_ONCE_BYTES = 1024 * 1024
"""Retired segments up to this total size are deleted before a flush returns, which takes less than a sync. The
background thread deletes more of them."""


class SpaceKeeper(CallGuard):
    """The part of an open queue that makes room, and gives space back. For any number of threads."""

    _store: Store
    writing: threading.Lock
    """Held over the writes of a commit."""

    def __init__(self) -> None:
        super().__init__()
        self._room_waiters = RoomWaiters(self.mutex)
        """The transactions that wait for room."""
        self.giving_back = Lock()
        self._compacting = Lock()
        self._compactors: dict[int, None] = {}
        """Threads in a compaction, from before they take ``_compacting`` until they have freed it."""
        self._is_disowned = False
        self._is_giving_back_due = False
        """True if the deletion of retired segments is scheduled but has not started."""
        self._share: Share | None = None
        """The share of the queue in a memory budget; None if it has joined none."""

    @abstractmethod
    def alone(self) -> AbstractContextManager[None]:
        """Write something beside the commits."""

    @abstractmethod
    def check(self) -> None:
        """Raise ``ClosedError`` if the queue is closed."""

    @whole
    def trim(self) -> None:
        """Begin a new generation of the log, and delete drained segments and those of rollbacks."""
        self._trim()

    def _trim(self) -> None:
        with self.alone():
            self._store.trim()
            self._store.retire_unlogged()  # behind the trim: a prepared frame may have named them
        self._give_back()
        self._room_waiters.tell()

    def give_back_spilled(self) -> None:
        """Give back the segments that hold only blocks of rollbacks, unless another thread writes.

        Then they stay until a trim, or until a frame names them.
        """
        self.shielded(self._retire_unlogged)
        if self._store.generations.retired:
            self._give_back_soon()

    def _retire_unlogged(self) -> None:
        if self.writing.acquire(blocking=False):
            try:
                if self.closed is None and self._store.broken is None:
                    self._store.retire_unlogged()
            finally:
                self.writing.release()

    @property
    def next_segment(self) -> int:
        """Number that the next segment will get."""
        return self._store.state.next_segment

    def begin_compaction(self, below: float, settled_only: bool, before: int) -> Copy | None:
        """Begin a compaction of segments before this number (see ``Store.begin_compaction``), within a shielded call.

        Raises the errors of the store, and ``ClosedError``.
        """
        with self.writing:
            self.check()
            return self._store.begin_compaction(below, settled_only, before=before)

    def end_compaction(self, copy: Copy) -> None:
        """End a compaction, whatever its result, within a shielded call."""
        with self.writing:
            self._store.end_compaction(copy)
        self._room_waiters.tell()

    def tidy(self) -> None:
        """Give up the space and memory that only a busy queue needs. Raises ``ResourceError``, ``BrokenQueueError`` and
        ``ClosedError``."""
        self.check_not_compacting()  # here: a shielded call may be made by another thread
        self._tidy()

    @whole
    def _tidy(self) -> None:
        generation = self._store.generations.number
        with self.keeping_files(), self.alone():
            self._store.tidy()
        self._give_back()
        if generation != self._store.generations.number:
            self._room_waiters.tell()

    def sweep_if_due(self) -> None:
        """Delete drafts that producers have left behind, if it is time for that. Raises ``ClosedError``."""
        with self.alone():
            self._store.inbox.sweep_if_due()

    def fill_pool(self) -> Iterator[int]:
        """Fill the pool, and yield the length of each file. A thread that closes the queue or gives files back waits
        for one file at most."""
        made: int | None = 0
        files = self._store.fill_pool()
        while made is not None:
            yield made
            made = self.around(partial(self.shielded, partial(self._make_file, files)))

    def _make_file(self, files: Iterator[int]) -> int | None:
        with self.giving_back:
            self.check()
            return next(files, None)

    @outermost
    def sparse_bytes(self, below: float) -> int:
        """Return the live bytes of the segments of which a share less than ``below`` is live."""
        with self.mutex:
            return sum(each.live_bytes for each in self._store.state.segments.values() if share(each) < below)

    @contextmanager
    def compacting(self) -> Iterator[None]:
        """Keep the files open, as ``keeping_files``, while the block runs, which may call functions of the user."""
        self.check_not_compacting()
        thread, compactors = threading.get_ident(), self._compactors
        # No call here or in ``finally``, so no interruption between this step and the next.
        compactors[thread] = None
        try:
            with self.keeping_files():
                yield
        finally:
            del compactors[thread]

    def check_not_compacting(self) -> None:
        """Raise ``ReentrantUseError`` if this thread is in a compaction, whose end the caller would wait for."""
        if threading.get_ident() in self._compactors:
            raise ReentrantUseError(
                f"{self.directory}: compacted, maintained or closed by the progress= of a compaction, which would wait "
                "for itself: raise an error to end the compaction, and make this call after it"
            )

    @contextmanager
    def keeping_files(self) -> Iterator[None]:
        """Keep the files open while the block runs, even if the queue is dropped meanwhile: maintenance does not keep
        the queue alive."""
        try:
            with self._compacting:
                yield
        finally:
            if self._is_disowned:
                self._store.release()

    @whole
    def resize(self, memory_bytes: int | MemoryBudget | None, segment_bytes: int | None) -> None:
        """Change these bounds; None leaves a bound as it is. Pages that exceed the memory bound are dropped at once."""
        with self.writing:
            self.check()
            if memory_bytes is not None:
                self._leave_budget()
                if isinstance(memory_bytes, MemoryBudget):
                    self._share = memory_bytes.join(self._store.state, self._store.pages, self.mutex)
                else:
                    with self.mutex:
                        self._store.pages.resize(memory_bytes)
            if segment_bytes is not None:
                self._store.segments.resize(segment_bytes)

    def _leave_budget(self) -> None:
        if self._share is not None:
            self._share.budget.leave(self._share)
            self._share = None

    def give_back(self) -> None:
        """Delete retired segments."""
        self.shielded(self._give_back)

    def _give_back(self) -> None:
        with self.giving_back:
            was_any = bool(self._store.generations.retired)
            self._store.give_back()
        if was_any:
            self._room_waiters.tell()

    def _give_back_soon(self) -> None:
        retired_bytes = self._store.generations.retired_bytes
        if retired_bytes <= _AT_ONCE_BYTES and not self.giving_back.locked():
            if retired_bytes:
                self.give_back()
        elif not self._is_giving_back_due:
            self.shielded(self._give_back_later)

    def _give_back_later(self) -> None:
        self._is_giving_back_due = True
        if not BACKGROUND.submit(self._give_back_by_itself):
            self._give_back_by_itself()  # in the flush: without a thread, the files would stay until the close

    def _give_back_by_itself(self) -> None:
        self._is_giving_back_due = False
        self.give_back()

    def flush_of(self, connection: bytes) -> int | None:
        """Return the number of the last flush of this connection; None if none is recorded."""
        return self.look(lambda: self._store.state.flushes.get(connection))

    def forget_flushes(self, connection: bytes) -> None:
        """Forget the flushes of this connection: no process can ask for them. The next trim makes this durable."""
        self.look(lambda: self._store.state.flushes.pop(connection, None))

    def inherit_flushes(self, most: int, some_lost: bytes) -> None:
        """Forget the oldest connections of dead owners, if there are more than ``most``, and record ``some_lost``."""

        def forget() -> None:
            """Look at the records."""
            flushes = self._store.state.flushes
            surplus = list(flushes)[: max(len(flushes) - most, 0)]
            for connection in surplus:
                del flushes[connection]
            if surplus:
                flushes[some_lost] = 1

        self.look(forget)

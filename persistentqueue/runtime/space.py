"""The space that an open queue takes, beside its commits: trims, the deletion of retired segments, its memory."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from ..engine.store import Store
from .background import BACKGROUND
from .call_guard import CallGuard, outermost
from .memory_budget import MemoryBudget, Share
from .waiting import RoomWaiters

_AT_ONCE_BYTES = 1024 * 1024
"""Retired segments up to this total size are deleted before a flush returns, which takes less than a sync. The
background thread deletes more of them."""


class SpaceKeeper(CallGuard):
    """The part of an open queue that gives space back. For any number of threads."""

    store: Store
    writing: threading.Lock
    """Held over the writes of a commit."""

    def __init__(self) -> None:
        super().__init__()
        self._room_waiters = RoomWaiters(self.mutex)
        """The transactions that wait for room."""
        self.giving_back = threading.Lock()
        self._compacting = threading.Lock()
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
        """Keep the files open while the block runs, even if the queue is dropped meanwhile: maintenance does not keep
        the queue alive."""
        try:
            with self._compacting:
                yield
        finally:
            if self._is_disowned:
                self.store.release()

    @outermost
    def resize(self, memory_bytes: int | MemoryBudget | None, segment_bytes: int | None) -> None:
        """Change these bounds; None leaves a bound as it is. Pages that exceed the memory bound are dropped at once."""
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

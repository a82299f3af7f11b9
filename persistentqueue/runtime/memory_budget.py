"""A memory budget: one bound on memory that many queues share. This module decides the share of each queue.

Half of a budget is split evenly, half in proportion to depth: the bytes of each queue's live blocks. So every queue has
some memory. A queue alone has all of it, and a deep queue among idle ones has most of it. Shares are whole numbers of
bytes and never add up to more than the budget: shares shrink before others grow.

Shares are computed anew when a queue joins or leaves. They are also computed anew when the depth of a queue has changed
by an eighth. This applies only to a queue with more live bytes than its share, now or before the change. A queue that
fits into its share triggers nothing, so many small queues cost nothing.

Threads: everything is for any thread, and no thread is started. The lock of a budget is taken before the mutex of a
queue, never after it. A queue leaves without any lock if it is dropped, or in a forked child. A signal handler may use
one queue while the code that it interrupts holds the mutex of another one. So ``balance`` waits for a mutex only for a
moment, and is due again then.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

from ..core.page_cache import Pages
from ..core.state import State
from ..interrupts.locks import Lock
from ..interrupts.members import Members
from ..pickling import Uncopyable
from ..system.disk import after_fork_in_child

_BUDGETS: Members[MemoryBudget] = Members()
_PATIENCE_SECONDS = 0.01
"""Longest wait for the mutex of a queue whose share changes, in seconds."""
_CHANGE = 8
"""A depth has changed enough if it has changed by one part in so many."""


class MemoryBudget(Uncopyable):
    """A bound on the memory for items that several queues of one process share.

    Pass the budget as ``memory_bytes`` to each queue. ``PersistentQueue.resize`` lets an open queue join or leave it::

        budget = MemoryBudget(256 * 1024 * 1024)
        orders = PersistentQueue("queues", "orders", memory_bytes=budget)
        mails = PersistentQueue("queues", "mails", memory_bytes=budget)

    Half of the budget is split evenly, half in proportion to the live bytes of each queue.

    Args:
        total_bytes: Bytes of memory for the items of all these queues together, at least 0.

    Raises:
        TypeError: If ``total_bytes`` is not an integer.
        ValueError: If ``total_bytes`` is negative.

    A budget is not durable: each opening of a queue names its budget again. For any number of queues and threads of one
    process. A budget cannot be copied, pickled or sent to another process.
    """

    _elsewhere = "pass its total_bytes, and make another MemoryBudget there"
    _lock: threading.Lock
    _shares: list[weakref.ref[Share]]
    is_due: bool
    """True if a queue has left without a lock, so that the shares must be computed anew."""

    def __init__(self, total_bytes: int) -> None:
        if not isinstance(total_bytes, int):
            raise TypeError(f"total_bytes must be a whole number, not {total_bytes!r}")
        if total_bytes < 0:
            raise ValueError(f"total_bytes must be at least 0, got {total_bytes}")
        self._total_bytes = total_bytes
        self._begin_anew()
        _BUDGETS.add(self)

    def __repr__(self) -> str:
        return f"MemoryBudget({self._total_bytes})"

    @property
    def total_bytes(self) -> int:
        """Bytes that the items of all queues together may take."""
        return self._total_bytes

    def join(self, state: State, pages: Pages, mutex: threading.Lock) -> Share:
        """Make a share for a queue.

        The pages of the queue, and those of the other queues, are reduced to their shares at once. Queues call this
        method; user code has no need to.

        Args:
            state: The state of the queue, which tells its depth.
            pages: The page cache of the queue, which is resized.
            mutex: The mutex of the queue. The caller must not hold it.

        Returns:
            The share of the queue.

        Nothing becomes durable by this call. For any thread.
        """
        share = Share(self, state, pages, mutex)
        with self._lock:
            share.give_up()
            self._shares.append(weakref.ref(share))
            self._balance()
        return share

    def leave(self, share: Share) -> None:
        """Take a share back and give it to the other queues.

        The page cache that had the share keeps nothing any more. Queues call this method; user code has no need to.

        Args:
            share: The share that ``join`` returned.

        Nothing becomes durable by this call. For any thread that does not hold the mutex of a queue.
        """
        with self._lock:
            share.is_left = True
            share.give_up()
            self._balance()

    def balance(self) -> None:
        """Compute the shares anew.

        A queue with a smaller share drops the exceeding pages from memory at once. If the mutex of a queue is not free,
        the rest is left to the next commit of any of them. Queues call this method; user code has no need to.

        Nothing becomes durable by this call. For any thread that does not hold the mutex of a queue.
        """
        with self._lock:
            self._balance()

    def _balance(self) -> None:
        self.is_due = False
        shares = [share for each in self._shares if (share := each()) is not None and not share.is_left]
        self._shares = [weakref.ref(share) for share in shares]
        sizes = split(self._total_bytes, [share.look() for share in shares])
        for size_bytes, share in sorted(zip(sizes, shares, strict=True), key=lambda pair: pair[0] - pair[1].size_bytes):
            if not share.resize(size_bytes):  # those behind it get more only when this one has given it up
                self.is_due = True
                return

    def _begin_anew(self) -> None:
        # Also in a forked child: the lock may be taken there for ever, and the queues belong to the parent.
        self._lock = Lock()
        self._shares = []
        self.is_due = False


class Share:
    """The share of one queue in a memory budget."""

    def __init__(self, budget: MemoryBudget, state: State, pages: Pages, mutex: threading.Lock) -> None:
        self.budget = budget
        self.is_left = False
        """True if the queue has left the budget."""
        self._state = state
        self._pages = pages
        self._mutex = mutex
        self._depth_bytes = 0
        """Depth of the queue when the shares were last computed."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the share."""
        return self._pages.memory_bytes

    def resize(self, size_bytes: int) -> bool:
        """Change the share, and return True; return False if the mutex of the queue is not free. For the budget."""
        if size_bytes != self._pages.memory_bytes:
            if not self._mutex.acquire(timeout=_PATIENCE_SECONDS):
                return False
            try:
                self._pages.resize(size_bytes)
            finally:
                self._mutex.release()
        return True

    def give_up(self) -> None:
        """Reduce the share to nothing. For the budget."""
        with self._mutex:
            self._pages.resize(0)

    def look(self) -> int:
        """Return the depth of the queue and remember it. For the budget, which computes the shares anew."""
        self._depth_bytes = self._state.live_bytes
        return self._depth_bytes

    def is_due(self) -> bool:
        """Return True if the shares must be computed anew: the depth of the queue has changed enough to matter."""
        was_bytes, now_bytes, size_bytes = self._depth_bytes, self._state.live_bytes, self._pages.memory_bytes
        has_flowed = max(was_bytes, now_bytes) > size_bytes
        has_changed = _CHANGE * abs(now_bytes - was_bytes) > max(was_bytes, size_bytes)
        return (has_flowed and has_changed) or self.budget.is_due

    def abandon(self) -> None:
        """Leave without a lock, with pages that are already empty. The next queue that computes the shares anew sees
        it."""
        self.is_left = self.budget.is_due = True


def split(total_bytes: int, depths: Sequence[int]) -> list[int]:
    """Return the shares of queues of these depths: half split evenly, half by depth; all of it evenly if all queues are
    empty."""
    equal_bytes = total_bytes // 2
    rest_bytes, depth_bytes = total_bytes - equal_bytes, sum(depths)
    if depth_bytes == 0:
        return [total_bytes // len(depths) for _ in depths]
    return [equal_bytes // len(depths) + rest_bytes * depth // depth_bytes for depth in depths]


def _begin_all_anew() -> None:
    for budget in _BUDGETS:
        budget._begin_anew()


after_fork_in_child(_begin_all_anew)

"""One bound on memory for many queues: who has how much of it.

Half of a budget is shared equally, half by depth: the bytes of each queue's live blocks. So every queue has some room,
a queue alone has all of it, and a deep one among idle ones has most. Shares are whole numbers of bytes, and never add
up to more than the budget: those that shrink let go before others grow.

Shares change when a queue joins or leaves, and when one that has more than its share, or had, has become deeper or
shallower by an eighth. A queue that fits into its share tells nobody, so that many small ones cost nothing.

Threads: everything is for any thread, and none is started. The lock of a budget is taken before the mutex of a queue,
never after it. A queue that is dropped, or whose process was forked, leaves without any lock.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

from ..core.page_cache import Pages
from ..core.state import State
from ..engine.reader import Guard
from ..system.disk import after_fork_in_child
from ..system.uncopyable import Uncopyable

_BUDGETS: weakref.WeakSet[MemoryBudget] = weakref.WeakSet()
_CHANGE = 8
"""A depth has changed enough when it has by one part of so many."""


class MemoryBudget(Uncopyable):
    """``total_bytes`` of memory for the items of all queues that are opened with ``memory_bytes=`` this budget.

    For any number of queues and threads of one process. Raises ``ValueError`` below 0, and ``TypeError``.
    """

    _elsewhere = "pass its total_bytes, and make another MemoryBudget there"
    _lock: threading.Lock
    _shares: list[weakref.ref[Share]]
    is_due: bool
    """Whether somebody left and could not say so to the others."""

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
        """What all queues together may take."""
        return self._total_bytes

    def join(self, state: State, pages: Pages, mutex: Guard) -> Share:
        """A share for the pages of a queue. What they held beyond it is let go, and so is what others held."""
        share = Share(self, state, pages, mutex)
        with self._lock:
            share.resize(0)
            self._shares.append(weakref.ref(share))
            self._balance()
        return share

    def leave(self, share: Share) -> None:
        """Take a share back, and give it to the others. The pages that had it hold nothing any more."""
        with self._lock:
            share.is_left = True
            share.resize(0)
            self._balance()

    def balance(self) -> None:
        """Share anew. What exceeds a share that became smaller is let go at once."""
        with self._lock:
            self._balance()

    def _balance(self) -> None:
        self.is_due = False
        shares = [share for each in self._shares if (share := each()) is not None and not share.is_left]
        self._shares = [weakref.ref(share) for share in shares]
        sizes = split(self._total_bytes, [share.look() for share in shares])
        for size_bytes, share in sorted(zip(sizes, shares, strict=True), key=lambda pair: pair[0] - pair[1].size_bytes):
            share.resize(size_bytes)

    def _begin_anew(self) -> None:
        # Also in a forked child, which may find the lock taken for ever, and whose queues are its parent's.
        self._lock = threading.Lock()
        self._shares = []
        self.is_due = False


class Share:
    """What one queue has of a budget."""

    def __init__(self, budget: MemoryBudget, state: State, pages: Pages, mutex: Guard) -> None:
        self.budget = budget
        self.is_left = False
        """Whether its queue has left the budget."""
        self._state = state
        self._pages = pages
        self._mutex = mutex
        self._depth_bytes = 0
        """How deep the queue was when the budget was last shared."""

    @property
    def size_bytes(self) -> int:
        """How much it is."""
        return self._pages.memory_bytes

    def resize(self, size_bytes: int) -> None:
        """Change it; for the budget."""
        if size_bytes != self._pages.memory_bytes:
            with self._mutex:
                self._pages.resize(size_bytes)

    def look(self) -> int:
        """How deep the queue is, for the budget, which is shared anew."""
        self._depth_bytes = self._state.live_bytes
        return self._depth_bytes

    def is_due(self) -> bool:
        """Whether the budget is to be shared anew: the queue's depth has changed so much that it matters."""
        was_bytes, now_bytes, size_bytes = self._depth_bytes, self._state.live_bytes, self._pages.memory_bytes
        has_flowed = max(was_bytes, now_bytes) > size_bytes
        has_changed = _CHANGE * abs(now_bytes - was_bytes) > max(was_bytes, size_bytes)
        return (has_flowed and has_changed) or self.budget.is_due

    def abandon(self) -> None:
        """Leave without a lock, the pages being empty already; the next who shares anew will see it."""
        self.is_left = self.budget.is_due = True


def split(total_bytes: int, depths: Sequence[int]) -> list[int]:
    """The shares of queues of these depths: half equally, half by depth, equally where all are empty."""
    equal_bytes = total_bytes // 2
    rest_bytes, depth_bytes = total_bytes - equal_bytes, sum(depths)
    if depth_bytes == 0:
        return [total_bytes // len(depths) for _ in depths]
    return [equal_bytes // len(depths) + rest_bytes * depth // depth_bytes for depth in depths]


def _begin_all_anew() -> None:
    for budget in list(_BUDGETS):
        budget._begin_anew()


after_fork_in_child(_begin_all_anew)

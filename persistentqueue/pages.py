"""The page cache: runs of items in memory, bounded in bytes. Pure data, not synchronized.

A page is a run of consecutive items. Pages come from two sides: the head, read ahead of the consumer, and the tail,
just written, so that a consumer close behind a producer reads no file. A queue is consumed from the front, so the page
that is needed last is the one with the highest sequences: when the bound is reached the tail is not kept any more (the
queue has flowed to disk), and what the consumer has already passed goes first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

ITEM_OVERHEAD_BYTES = 48
"""What an item costs beside its payload: the header of a ``bytes`` object, its terminator, and its place in a list."""
TAIL_PAGE_BYTES = 256 * 1024
"""Small transactions share a page up to this size."""


class Page:
    """The items ``first … end - 1``, and what they cost."""

    __slots__ = ("cost_bytes", "first", "items")

    def __init__(self, first: int, items: list[bytes], cost_bytes: int) -> None:
        self.first = first
        self.items = items
        self.cost_bytes = cost_bytes

    @property
    def end(self) -> int:
        """The sequence behind the last item."""
        return self.first + len(self.items)


def cost(items: Sequence[bytes]) -> int:
    """The bytes that the items take in memory."""
    return sum(map(len, items)) + ITEM_OVERHEAD_BYTES * len(items)


class Pages:
    """Disjoint pages in order of their sequences, never more than ``memory_bytes`` of them."""

    __slots__ = ("_firsts", "_pages", "cost_bytes", "memory_bytes")

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self.cost_bytes = 0
        self._firsts: list[int] = []
        self._pages: list[Page] = []

    def __len__(self) -> int:
        return len(self._pages)

    def find(self, sequence: int) -> Page | None:
        """The page that holds the sequence."""
        at = bisect_right(self._firsts, sequence) - 1
        if at >= 0 and sequence < self._pages[at].end:
            return self._pages[at]
        return None

    def append(self, first: int, items: list[bytes], cost_bytes: int) -> None:
        """Keep what was just enqueued, if there is room. ``first`` is above every page."""
        if self.cost_bytes + cost_bytes > self.memory_bytes:
            return
        self.cost_bytes += cost_bytes
        if self._pages:
            last = self._pages[-1]
            if last.first + len(last.items) == first and last.cost_bytes + cost_bytes <= TAIL_PAGE_BYTES:
                last.items += items
                last.cost_bytes += cost_bytes
                return
        self._firsts.append(first)
        self._pages.append(Page(first, items, cost_bytes))

    def insert(self, page: Page, sequence: int, position: int) -> None:
        """Keep a page that was read for ``sequence``, by a consumer who reads on at ``position``, if there is room.

        Of what is in memory already, a second copy is not kept.
        """
        at = bisect_right(self._firsts, sequence)
        low = max(page.first, self._pages[at - 1].end) if at else page.first
        high = min(page.end, self._firsts[at]) if at < len(self._firsts) else page.end
        if (low, high) != (page.first, page.end):
            items = page.items[low - page.first : high - page.first]
            page = Page(low, items, cost(items))
        self._make_room(page.cost_bytes, position)
        if self.cost_bytes + page.cost_bytes > self.memory_bytes:
            return
        at = bisect_right(self._firsts, page.first)
        self._firsts.insert(at, page.first)
        self._pages.insert(at, page)
        self.cost_bytes += page.cost_bytes

    def drop_below(self, frontier: int) -> None:
        """Let go of the pages that nobody will read again."""
        count = 0
        for page in self._pages:
            if page.end > frontier:
                break
            self.cost_bytes -= page.cost_bytes
            count += 1
        if count:
            del self._pages[:count], self._firsts[:count]

    def clear(self) -> None:
        """Let go of everything."""
        self._firsts.clear()
        self._pages.clear()
        self.cost_bytes = 0

    def _make_room(self, cost_bytes: int, position: int) -> None:
        while self._pages and self.cost_bytes + cost_bytes > self.memory_bytes:
            # What the consumer has passed comes back only if a session rolls back; else the farthest is needed last.
            at = 0 if self._pages[0].end <= position else len(self._pages) - 1
            self.cost_bytes -= self._pages[at].cost_bytes
            del self._pages[at], self._firsts[at]

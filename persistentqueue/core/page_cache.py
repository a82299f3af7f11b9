"""The page cache: runs of items in memory, bounded in bytes. Pure data, not synchronized.

A page is a run of consecutive items. Pages come from two sides. The head is read ahead of the consumer. The tail was
just written, so that a consumer close behind a producer reads no file. The bound holds at every moment, over all pages.
If there is no room, pages are dropped in this order:

1. Pages that the consumers have passed. Such a page is read again only if a session rolls back.
2. For items that were just written: the page in the middle. The lower half of the pages waits for the consumers, and
   never makes room for younger items. The upper half slides along with the producers. (The queue has flowed to disk.)
   The first page stays, even if it is the only one. So a producer and a consumer that are far apart do not force each
   other to read.
3. For items that are being read: the farthest page, because it is needed last. A page that is needed before the new one
   is never dropped.

If a page does not fit as a whole, the part that the consumer needs next is kept. So each item is read about once on its
way through the queue, whatever the bound. A bound below the size of a block makes the queue read that block again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import islice

ITEM_OVERHEAD_BYTES = 48
"""Memory of an item beside its payload: the header of a ``bytes`` object, its terminator, and its entry in a list."""
TAIL_PAGE_BYTES = 256 * 1024
"""Small transactions share a page up to this size, or up to an eighth of the bound."""


class Page:
    """The items ``first … end - 1``, and their cost. Items are only added, at the end."""

    __slots__ = ("cost_bytes", "end", "first", "items")

    def __init__(self, first: int, items: list[bytes], cost_bytes: int) -> None:
        self.first = first
        self.items = items
        self.end = first + len(items)
        """The sequence behind the last item."""
        self.cost_bytes = cost_bytes


NO_PAGE = Page(0, [], 0)
"""A page that holds no item."""


def cost(items: Sequence[bytes]) -> int:
    """Return the bytes that the items take in memory."""
    return sum(map(len, items)) + ITEM_OVERHEAD_BYTES * len(items)


class Pages:
    """Disjoint pages in the order of their sequences, which never cost more than ``memory_bytes``.

    ``front`` returns the lowest sequence that may be requested next. All pages below it were passed.
    """

    __slots__ = ("_firsts", "_front", "_pages", "cost_bytes", "latest", "memory_bytes")

    def __init__(self, memory_bytes: int, front: Callable[[], int] = lambda: 0) -> None:
        self.memory_bytes = memory_bytes
        self.cost_bytes = 0
        self._front = front
        self._firsts: list[int] = []
        self._pages: list[Page] = []
        self.latest = NO_PAGE
        """Page in which the reader found the latest item. The reader sets it, and dropping pages resets it."""

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def read_ahead_bytes(self) -> int:
        """Upper bound on the cost of the items that are read ahead of a consumer. The other half is for the tail."""
        return self.memory_bytes // 2

    def find(self, sequence: int) -> Page | None:
        """Return the page that holds the sequence; None if there is none."""
        at = bisect_right(self._firsts, sequence) - 1
        if at >= 0 and sequence < self._pages[at].end:
            return self._pages[at]
        return None

    def next_after(self, sequence: int) -> int | None:
        """Return the first sequence of the next page that begins behind ``sequence``; None if there is none."""
        at = bisect_right(self._firsts, sequence)
        return self._firsts[at] if at < len(self._firsts) else None

    def runs(self) -> list[tuple[int, int]]:
        """Return, for each page, its first sequence and the sequence behind its last one."""
        return [(page.first, page.end) for page in self._pages]

    def append(self, first: int, items: list[bytes], cost_bytes: int) -> None:
        """Keep items that were just enqueued, as far as there is room. ``first`` is above every page."""
        if self.cost_bytes + cost_bytes > self.memory_bytes:
            if cost_bytes > self.memory_bytes // 2:
                items, cost_bytes = _fitting(items, 0, self.memory_bytes // 2)
            self._make_room(cost_bytes, None)
            if self.cost_bytes + cost_bytes > self.memory_bytes:
                items, cost_bytes = _fitting(items, 0, self.memory_bytes - self.cost_bytes)
            if not items:
                return
        self.cost_bytes += cost_bytes
        if self._pages:
            last = self._pages[-1]
            if last.end == first:
                shared_bytes = last.cost_bytes + cost_bytes
                if shared_bytes <= TAIL_PAGE_BYTES and shared_bytes <= self.memory_bytes >> 3:
                    end = first + len(items)
                    # No calls from here on, so no signal handler runs between these steps.
                    last.items += items
                    last.end, last.cost_bytes = end, shared_bytes
                    return
        self._firsts.append(first)
        self._pages.append(Page(first, items.copy(), cost_bytes))  # a copy, because the list belongs to a session

    def insert(self, page: Page, sequence: int, wanted: int, displaces: bool = True) -> int:
        """Keep a page that was read for ``sequence``, as far as there is room; the consumer continues at ``wanted``.

        If ``displaces`` is true, other pages make room. Items that are in memory already are not kept twice. Returns
        the end of what is kept: no item of the page from ``wanted`` up to there is missing.
        """
        at = bisect_right(self._firsts, sequence)
        low = max(page.first, self._pages[at - 1].end) if at else page.first
        high = min(page.end, self._firsts[at]) if at < len(self._firsts) else page.end
        if (low, high) != (page.first, page.end):
            items = page.items[low - page.first : high - page.first]
            page = Page(low, items, cost(items))
        if displaces:
            page = _part(page, wanted, self.memory_bytes)
            self._make_room(page.cost_bytes, page.first)
        page = _part(page, wanted, self.memory_bytes - self.cost_bytes)
        if page.items:
            at = bisect_right(self._firsts, page.first)
            self._firsts.insert(at, page.first)
            self._pages.insert(at, page)
            self.cost_bytes += page.cost_bytes
        return page.end

    def drop_below(self, frontier: int) -> None:
        """Drop the pages that no consumer reads again."""
        count = 0
        for page in self._pages:
            if page.end > frontier:
                break
            self.cost_bytes -= page.cost_bytes
            count += 1
        if count:
            self.latest = NO_PAGE
            del self._pages[:count], self._firsts[:count]

    def resize(self, memory_bytes: int) -> None:
        """Change the bound, and drop what exceeds it at once."""
        self.memory_bytes = memory_bytes
        self._make_room(0, None)
        for page in self._pages[: self.cost_bytes > memory_bytes]:  # then only the first page is left
            start = max(self._front() - page.first, 0)
            items, cost_bytes = _fitting(page.items, start, memory_bytes)
            self.clear()
            if items:
                self.append(page.first + start, items, cost_bytes)

    def clear(self) -> None:
        """Drop all pages. A finalizer may call it between any two steps of another call."""
        self._firsts, self._pages, self.latest = [], [], NO_PAGE
        self.cost_bytes = 0

    def _make_room(self, cost_bytes: int, first: int | None) -> None:
        """Drop pages for a page that begins at ``first``, or for the tail if it is None, until there is enough room."""
        front, pages, firsts = self._front(), self._pages, self._firsts
        while pages and self.cost_bytes + cost_bytes > self.memory_bytes:
            count = len(pages)
            if pages[0].end <= front:
                at = 0
            elif first is None:
                at = (count + 1) // 2
            else:
                at = count - 1 if firsts[-1] > first else count
            if at == count:
                break
            self.latest = NO_PAGE
            self.cost_bytes -= pages[at].cost_bytes
            del pages[at], firsts[at]


def _part(page: Page, wanted: int, room_bytes: int) -> Page:
    """Return the page if it fits, else as much of it, from ``wanted`` on, as fits."""
    if page.cost_bytes <= room_bytes:
        return page
    first = min(max(page.first, wanted), page.end)
    items, cost_bytes = _fitting(page.items, first - page.first, room_bytes)
    return Page(first, items, cost_bytes)


def _fitting(items: list[bytes], start: int, room_bytes: int) -> tuple[list[bytes], int]:
    """Return the items from ``start`` on that fit, and their cost."""
    cost_bytes, stop = 0, start
    for item in islice(items, start, None):
        if cost_bytes + len(item) + ITEM_OVERHEAD_BYTES > room_bytes:
            break
        cost_bytes += len(item) + ITEM_OVERHEAD_BYTES
        stop += 1
    return items[start:stop], cost_bytes

"""The page cache: runs of items in memory, bounded in bytes. Pure data, not synchronized.

A page is a run of consecutive items. Pages come from two sides: the head, read ahead of the consumer, and the tail,
just written, so that a consumer close behind a producer reads no file. The bound holds at every moment, over all pages.
What must go when there is no room, in this order:

1. What the consumers have passed: it comes back only if a session rolls back.
2. For what was just written: the page in the middle. The lower half of the pages waits for the consumers and is never
   given up for younger items; the upper half slides along with the producers. (The queue has flowed to disk.) The first
   page stays, even if it is the only one, so that a producer and a consumer far apart do not take turns reading.
3. For what is being read: the farthest page, since it is needed last; never one that is needed before.

What does not fit as a whole is kept in part, from where the consumer goes on. Each item is so read about once on its
way through the queue, whatever the bound; a bound below the size of a block makes that block be read again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import islice

ITEM_OVERHEAD_BYTES = 48
"""What an item costs beside its payload: the header of a ``bytes`` object, its terminator, and its place in a list."""
TAIL_PAGE_BYTES = 256 * 1024
"""Small transactions share a page up to this size, or up to an eighth of the bound."""


class Page:
    """The items ``first … end - 1``, and what they cost. Items are only ever added, at its end."""

    __slots__ = ("cost_bytes", "end", "first", "items")

    def __init__(self, first: int, items: list[bytes], cost_bytes: int) -> None:
        self.first = first
        self.items = items
        self.end = first + len(items)
        """The sequence behind the last item."""
        self.cost_bytes = cost_bytes


_NONE = Page(0, [], 0)


def cost(items: Sequence[bytes]) -> int:
    """The bytes that the items take in memory."""
    return sum(map(len, items)) + ITEM_OVERHEAD_BYTES * len(items)


class Pages:
    """Disjoint pages in order of their sequences, never more than ``memory_bytes`` of them.

    ``front`` tells the lowest sequence that may be asked for next: pages below it were passed.
    """

    __slots__ = ("_firsts", "_front", "_pages", "cost_bytes", "latest", "memory_bytes")

    def __init__(self, memory_bytes: int, front: Callable[[], int] = lambda: 0) -> None:
        self.memory_bytes = memory_bytes
        self.cost_bytes = 0
        self._front = front
        self._firsts: list[int] = []
        self._pages: list[Page] = []
        self.latest = _NONE
        """Where a reader found the latest one, by his word, as long as it is kept."""

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def read_ahead_bytes(self) -> int:
        """How much may be read ahead of a consumer, as a cost: the other half is for the tail."""
        return self.memory_bytes // 2

    def find(self, sequence: int) -> Page | None:
        """The page that holds the sequence."""
        at = bisect_right(self._firsts, sequence) - 1
        if at >= 0 and sequence < self._pages[at].end:
            return self._pages[at]
        return None

    def next_after(self, sequence: int) -> int | None:
        """Where the first page begins that begins behind the sequence; None if none does."""
        at = bisect_right(self._firsts, sequence)
        return self._firsts[at] if at < len(self._firsts) else None

    def runs(self) -> list[tuple[int, int]]:
        """The first sequence of each page, and the one behind its last."""
        return [(page.first, page.end) for page in self._pages]

    def append(self, first: int, items: list[bytes], cost_bytes: int) -> None:
        """Keep what was just enqueued, as far as there is room. ``first`` is above every page."""
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
                    # From here on without a call: nothing interrupts that.
                    last.items += items
                    last.end, last.cost_bytes = end, shared_bytes
                    return
        self._firsts.append(first)
        self._pages.append(Page(first, items.copy(), cost_bytes))  # the list of a transaction is its session's

    def insert(self, page: Page, sequence: int, wanted: int, displaces: bool = True) -> int:
        """Keep a page that was read for ``sequence``, where a consumer goes on at ``wanted``, as far as there is room.

        With ``displaces`` others make room. Returns the sequence up to which no part of the page is missing from
        ``wanted`` on. Of what is in memory already, a second copy is not kept.
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
        """Let go of the pages that nobody will read again."""
        count = 0
        for page in self._pages:
            if page.end > frontier:
                break
            self.cost_bytes -= page.cost_bytes
            count += 1
        if count:
            self.latest = _NONE
            del self._pages[:count], self._firsts[:count]

    def resize(self, memory_bytes: int) -> None:
        """Change the bound; what exceeds it goes at once."""
        self.memory_bytes = memory_bytes
        self._make_room(0, None)
        for page in self._pages[: self.cost_bytes > memory_bytes]:  # it is one page, the first
            start = max(self._front() - page.first, 0)
            items, cost_bytes = _fitting(page.items, start, memory_bytes)
            self.clear()
            if items:
                self.append(page.first + start, items, cost_bytes)

    def clear(self) -> None:
        """Let go of everything. May come between any two steps of another call, from a finalizer."""
        self._firsts, self._pages, self.latest = [], [], _NONE
        self.cost_bytes = 0

    def _make_room(self, cost_bytes: int, first: int | None) -> None:
        """Let go of what may go for a page that begins at ``first``, or for the tail, until there is so much room."""
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
            self.latest = _NONE
            self.cost_bytes -= pages[at].cost_bytes
            del pages[at], firsts[at]


def _part(page: Page, wanted: int, room_bytes: int) -> Page:
    """The page, if it fits, else from ``wanted`` on as much of it as fits."""
    if page.cost_bytes <= room_bytes:
        return page
    first = min(max(page.first, wanted), page.end)
    items, cost_bytes = _fitting(page.items, first - page.first, room_bytes)
    return Page(first, items, cost_bytes)


def _fitting(items: list[bytes], start: int, room_bytes: int) -> tuple[list[bytes], int]:
    """The items from ``start`` on that fit, and what they cost."""
    cost_bytes, stop = 0, start
    for item in islice(items, start, None):
        if cost_bytes + len(item) + ITEM_OVERHEAD_BYTES > room_bytes:
            break
        cost_bytes += len(item) + ITEM_OVERHEAD_BYTES
        stop += 1
    return items[start:stop], cost_bytes

"""The page cache: which pages it keeps, which ones it drops, and its bound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import PersistentQueue
from persistentqueue.core.page_cache import ITEM_OVERHEAD_BYTES, TAIL_PAGE_BYTES, Page, Pages, cost
from persistentqueue.system.disk import DISK
from tests.support.disks import call_on
from tests.support.queues import put

ITEM = b"x" * (100 - ITEM_OVERHEAD_BYTES)  # costs 100 bytes in all


def page(first: int, count: int) -> Page:
    """Return a page that costs 100 bytes an item."""
    items = [ITEM] * count
    return Page(first, items, cost(items))


def append(pages: Pages, first: int, count: int) -> None:
    """Append items to the tail, as a commit does."""
    pages.append(first, [ITEM] * count, 100 * count)


def kept(pages: Pages) -> list[tuple[int, int]]:
    """Return the first sequence and the end of each page."""
    return [(each.first, each.end) for each in pages._pages]


def test_small_transactions_share_a_page() -> None:
    """Small transactions share the last page while it is small and no sequence is missing in between."""
    pages = Pages(10_000_000)
    for first in range(5):
        append(pages, first, 1)
    append(pages, 7, 1)
    assert kept(pages) == [(0, 5), (7, 8)]
    append(pages, 8, TAIL_PAGE_BYTES // 100)
    assert len(kept(pages)) == 3
    assert pages.cost_bytes == 100 * (6 + TAIL_PAGE_BYTES // 100)


def test_the_middle_is_let_go() -> None:
    """When the bound is reached, the lower half of the pages stays, and the upper half slides along with the tail."""
    pages = Pages(1000)
    for first in range(20):
        append(pages, first, 1)
    assert kept(pages) == [(n, n + 1) for n in (0, 1, 2, 3, 4, 15, 16, 17, 18, 19)]
    assert pages.cost_bytes == 1000


def test_the_first_page_stays() -> None:
    """The first page stays, even alone: items that are written then are kept only as far as there is room beside it."""
    pages = Pages(1000)
    append(pages, 0, 8)
    append(pages, 8, 3)
    append(pages, 20, 3)
    assert kept(pages) == [(0, 8), (20, 22)]
    assert pages.cost_bytes == 1000


def test_a_large_transaction_is_kept_in_part() -> None:
    """If a transaction larger than half of the bound does not fit, only its beginning is kept; the head stays."""
    pages = Pages(1000)
    append(pages, 0, 3)
    append(pages, 3, 30)
    assert kept(pages) == [(0, 3), (3, 8)]
    assert pages.cost_bytes == 800


def test_an_item_larger_than_the_bound_displaces_nothing() -> None:
    """An item that cannot be kept at all displaces no page, whether it is written or read."""
    pages = Pages(1000)
    append(pages, 0, 5)
    pages.append(5, [bytes(1000)], 1000 + ITEM_OVERHEAD_BYTES)
    append(pages, 6, 2)
    assert pages.insert(Page(5, [bytes(1000)], 1000 + ITEM_OVERHEAD_BYTES), 5, 5) == 5
    assert kept(pages) == [(0, 5), (6, 8)]


def test_the_list_of_a_transaction_is_not_touched() -> None:
    """Items that are added to a page later do not appear in the list that the page was begun with."""
    pages, items = Pages(100_000), [ITEM]
    pages.append(0, items, 100)
    append(pages, 1, 1)
    assert (kept(pages), items) == ([(0, 2)], [ITEM])


def test_head_displaces_the_farthest() -> None:
    """A page that is read for the consumer displaces the page that is needed last."""
    pages = Pages(1000)
    append(pages, 50, 4)
    append(pages, 80, 6)
    assert pages.insert(page(0, 5), 0, 0) == 5
    assert kept(pages) == [(0, 5), (50, 54)]


def test_what_is_needed_before_is_not_displaced() -> None:
    """A page that is read displaces only pages that are needed after it."""
    pages = Pages(1000)
    append(pages, 0, 8)
    assert pages.insert(page(10, 5), 10, 10) == 12
    assert kept(pages) == [(0, 8), (10, 12)]


def test_who_browses_displaces_nothing() -> None:
    """A page that is read for browsing displaces nothing, and is kept as far as there is free room."""
    pages = Pages(1000, lambda: 100)
    append(pages, 50, 4)
    append(pages, 80, 4)
    assert pages.insert(page(0, 5), 0, 0, displaces=False) == 2
    assert kept(pages) == [(0, 2), (50, 54), (80, 84)]


@pytest.mark.parametrize("way", ["append", "insert"])
def test_what_the_consumers_have_passed_goes_first(way: str) -> None:
    """Pages that the consumers have passed are the first to be dropped, for written and for read items."""
    pages = Pages(1000, lambda: 5)
    append(pages, 0, 5)
    append(pages, 20, 5)
    if way == "append":
        append(pages, 40, 5)
        assert kept(pages) == [(20, 25), (40, 45)]
    else:
        pages.insert(page(10, 5), 10, 10)
        assert kept(pages) == [(10, 15), (20, 25)]


def test_page_larger_than_the_bound_is_kept_in_part() -> None:
    """Of a page larger than the bound, as much is kept as fits, from the consumer's next item on."""
    pages = Pages(1000, lambda: 5)
    append(pages, 0, 5)
    assert pages.insert(page(10, 13), 10, 12) == 22
    assert kept(pages) == [(12, 22)]
    assert pages.cost_bytes == 1000


@pytest.mark.parametrize("front", [0, 2, 4])
def test_a_smaller_bound_lets_go_at_once(front: int) -> None:
    """A smaller bound drops passed pages first, then the middle, then part of the first page; a larger bound makes
    room."""
    pages = Pages(1000, lambda: front)
    append(pages, 0, 4)
    append(pages, 10, 3)
    append(pages, 20, 3)
    pages.resize(750)
    assert kept(pages) == ([(0, 4), (10, 13)] if front < 4 else [(10, 13), (20, 23)])
    pages.resize(199)
    assert kept(pages) == [(front, front + 1) if front < 4 else (10, 11)]
    pages.resize(0)
    assert (kept(pages), pages.cost_bytes) == ([], 0)
    pages.resize(500)
    append(pages, 30, 5)
    assert kept(pages) == [(30, 35)]


def test_nothing_is_kept_twice() -> None:
    """Of a page that was read, only the items that are not in memory yet are kept."""
    pages = Pages(100_000)
    append(pages, 10, 5)
    append(pages, 30, 5)
    pages.insert(page(12, 20), 20, 0)
    assert kept(pages) == [(10, 15), (15, 30), (30, 35)]
    pages.insert(page(0, 40), 36, 0)
    assert kept(pages)[-1] == (35, 40)
    pages.insert(page(0, 40), 3, 0)
    assert kept(pages)[0] == (0, 10)
    assert pages.cost_bytes == 100 * 40


def test_find_and_drop() -> None:
    """``find`` finds each sequence in its page; ``drop_below`` drops the pages below the frontier, and keeps one that
    it cuts."""
    pages = Pages(100_000)
    append(pages, 10, 5)
    append(pages, 20, 5)
    assert [pages.find(n) is not None for n in (9, 10, 14, 15, 19, 20, 24, 25)] == [0, 1, 1, 0, 0, 1, 1, 0]
    pages.drop_below(15)
    pages.drop_below(22)
    assert kept(pages) == [(20, 25)]
    pages.drop_below(30)
    assert (kept(pages), pages.cost_bytes) == ([], 0)
    append(pages, 40, 1)
    pages.clear()
    assert (kept(pages), pages.cost_bytes) == ([], 0)


def test_read_ahead_is_kept_and_what_is_taken_whole_is_not(tmp_path: Path) -> None:
    """One read serves the dequeues that follow, and a large item that is handed out whole leaves no copy behind."""
    reads = [0]

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        reads[0] += 1
        return DISK.pread(fd, length_bytes, offset)

    for _ in range(2):
        with call_on(replace(DISK, pread=pread), PersistentQueue, tmp_path) as queue:
            if len(queue) == 0:
                put(queue, *[b"%d" % n for n in range(1000)])
                put(queue, b"x" * 600_000, b"y" * 600_000)
                continue
            before = reads[0]
            with queue.session() as session:
                for n in range(1000):
                    assert session.dequeue() == b"%d" % n
                assert reads[0] - before < 10
                assert queue.stats().cached_bytes > 40_000
                session.flush()
                assert session.dequeue() == b"x" * 600_000
                assert session.dequeue() == b"y" * 600_000
                assert queue.stats().cached_bytes < 700_000  # the first of them was read ahead
                session.rollback()

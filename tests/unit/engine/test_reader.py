"""The reader: more items than memory, at every size around the bounds, and limits that its predecessors had.

Some tests are named after such limits. Those of the Qpid C++ broker's paged queue are a message larger than a page,
``foreach`` and crude eviction. Those of the Qpid Java broker's flow to disk are the front that is read again,
restoring, and the amount that has flowed.
"""

from __future__ import annotations

import tempfile
import threading
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistentqueue import ClosedError, PersistentQueue
from persistentqueue.core.block import BLOCK_BYTES, encode_block
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.core.page_cache import ITEM_OVERHEAD_BYTES, Page, Pages, cost
from persistentqueue.storage.segment import NO_BOUND, READ_AHEAD_BYTES, Ahead, Segment
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import IN_CACHE, crash, drain, put, put_each

ITEM_BYTES = 1000


class Reads:
    """A disk that counts the reads and their bytes."""

    def __init__(self) -> None:
        self.count = self.size_bytes = 0
        self.disk = replace(IN_CACHE, pread=self._pread)

    def _pread(self, fd: int, length_bytes: int, offset: int) -> bytes:
        data = DISK.pread(fd, length_bytes, offset)
        self.count += 1
        self.size_bytes += len(data)
        return data


def numbered(*bounds: int) -> list[bytes]:
    """Return items of 1,000 bytes, each with a number."""
    return [b"%d " % number + bytes(ITEM_BYTES - len(b"%d " % number)) for number in range(*bounds)]


def kept(queue: PersistentQueue) -> list[tuple[int, int]]:
    """Return the first sequence and the end of each page."""
    assert queue._open_queue is not None
    return queue._open_queue._store.pages.runs()


def dequeue_each(queue: PersistentQueue, count: int) -> list[bytes | None]:
    """Dequeue so many times. After each dequeue, flush and assert that the page cache is within its bound."""
    found = []
    with queue.session() as session:
        for _ in range(count):
            found.append(session.dequeue())
            session.flush()
            stats = queue.stats()
            assert stats.cached_bytes <= stats.memory_bytes
    return found


# --- the bound --------------------------------------------------------------------------------------------------------

SIZES = st.lists(st.integers(0, 400), min_size=1, max_size=12)


@given(
    st.integers(0, 3000),
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), SIZES, st.booleans()),
            st.tuples(st.just("read"), st.integers(0, 60), st.integers(1, 30)),
            st.tuples(st.just("browse"), st.integers(0, 60), st.integers(1, 30)),
            st.tuples(st.just("pass"), st.integers(0, 20), st.just(0)),
            st.tuples(st.just("consume"), st.integers(0, 20), st.just(0)),
            st.tuples(st.just("resize"), st.integers(0, 3000), st.just(0)),
        ),
        max_size=60,
    ),
)
def test_bound_is_never_exceeded(memory_bytes: int, steps: list[tuple[str, Any, Any]]) -> None:
    """After any steps the page cache is within its bound, counts what its pages cost, and finds the right items."""
    items: list[bytes] = []
    front = frontier = 0
    pages = Pages(memory_bytes, lambda: front)
    for kind, one, other in steps:
        if kind == "append":
            new = [b"%d." % len(items) + bytes(size) for size in one]
            if other:  # like a spilled block, which is never offered to the cache
                items += new
                continue
            pages.append(len(items), new, cost(new))
            items += new
        elif kind in {"read", "browse"} and one < len(items) and pages.find(one) is None:
            first = max(one - 3, 0)
            page = Page(first, items[first : one + other], cost(items[first : one + other]))
            end = pages.insert(page, one, one + 1, displaces=kind == "read")
            found = pages.find(end - 1)
            assert first <= end <= page.end
            assert end <= one + 1 or (found is not None and found.end >= end)
        elif kind == "pass":
            front = min(front + one, len(items))
        elif kind == "consume":
            front = frontier = min(frontier + one, len(items))
            pages.drop_below(frontier)
        elif kind == "resize":
            memory_bytes = one
            pages.resize(one)
        assert pages.memory_bytes == memory_bytes
        assert pages.cost_bytes == sum(cost(page.items) for page in pages._pages) <= memory_bytes
        runs = pages.runs()
        assert all(a[1] <= b[0] for a, b in pairwise(runs))
        assert all(page.items == items[page.first : page.end] != [] for page in pages._pages)
        assert pages._firsts == [page.first for page in pages._pages]
        kept = {sequence for low, high in runs for sequence in range(low, high)}
        for sequence in {one if isinstance(one, int) else 0, front, *kept}:
            found = pages.find(sequence)
            assert (found is not None) == (sequence in kept)
            assert found is None or found.items[sequence - found.first] == items[sequence]
        # otherwise it would keep a dropped page in memory
        assert not pages.latest.items or pages.latest in pages._pages


@settings(max_examples=40)
@given(
    st.sampled_from([0, 100, 1000, 5000, 30_000]),
    st.lists(
        st.tuples(
            st.sampled_from(["put", "take", "hold", "hold one by one", "roll back", "browse", "reopen"]),
            st.integers(1, 40),
        ),
        max_size=25,
    ),
)
def test_content_is_right_and_the_bound_holds_whatever_is_done(memory_bytes: int, steps: list[tuple[str, int]]) -> None:
    """A queue with a bound below its load answers like a list, and is within the bound after each step."""
    with tempfile.TemporaryDirectory() as directory:
        open_again = partial(call_on, IN_CACHE, PersistentQueue, directory, memory_bytes=memory_bytes)
        queue = open_again()
        model: list[bytes] = []
        held: list[bytes] = []
        number = 0
        session = queue.session()
        for kind, count in steps:
            if kind == "put":
                new = numbered(number, number + count)
                number += count
                put(queue, *new)
                model += new
            elif kind == "take":
                with queue.transaction() as other:
                    assert other.dequeue_many(count) == model[:count]
                del model[:count]
            elif kind == "hold":
                assert session.dequeue_many(count) == model[:count]
                held += model[:count]
                del model[:count]
            elif kind == "hold one by one":
                for item in model[:count]:
                    assert session.dequeue() == item
                held += model[:count]
                del model[:count]
            elif kind == "roll back":
                session.rollback()
                model, held = sorted(held + model, key=lambda item: int(item.split()[0])), []
            elif kind == "browse":
                assert list(islice(queue.browse(), count)) == model[:count]
            else:
                queue.close()
                queue, held, model = open_again(), [], sorted(held + model, key=lambda item: int(item.split()[0]))
                session = queue.session()
            stats = queue.stats()
            assert stats.cached_bytes <= memory_bytes
            assert stats.flowed is (stats.cached < len(model))
        assert list(queue.browse()) == model
        session.close()
        assert drain(queue) == sorted(held + model, key=lambda item: int(item.split()[0]))
        queue.close()


# --- sizes around the bounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", range(-4, 2))
@pytest.mark.parametrize("bound", ["block", "memory", "half of the memory", "nothing"])
@pytest.mark.parametrize("size_bytes", [1000, BLOCK_BYTES, READ_AHEAD_BYTES])
def test_items_at_every_size_around_the_boundary(
    open_queue: QueueFactory, size_bytes: int, bound: str, delta: int
) -> None:
    """Items from four bytes below a bound to one byte above it come out unchanged when browsed, rolled back and
    dequeued."""
    fits_bytes = size_bytes + ITEM_OVERHEAD_BYTES
    memory_bytes = {"block": 1 << 26, "memory": fits_bytes, "half of the memory": 2 * fits_bytes, "nothing": 0}[bound]
    items = [b"a", bytes(size_bytes + delta), b"b", bytes([1]) * (size_bytes + delta), b"c"]
    queue = open_queue(memory_bytes=memory_bytes, disk=IN_CACHE)
    put_each(queue, items[:2])
    put(queue, *items[2:])
    for _ in range(2):
        assert list(queue.browse()) == items
        with queue.session() as session:
            assert [session.dequeue() for _ in items] == items
            session.rollback()
        stats = queue.stats()
        assert stats.cached_bytes <= memory_bytes
        assert (stats.ready, stats.held) == (5, 0)
        crash(queue)
        queue = open_queue(memory_bytes=memory_bytes, disk=IN_CACHE)
    assert dequeue_each(queue, 6) == [*items, None]


def test_an_item_that_just_fits_is_kept(open_queue: QueueFactory) -> None:
    """The bound is exact: an item that costs all of it is kept, and one that costs a byte more is not."""
    queue = open_queue(memory_bytes=ITEM_BYTES + ITEM_OVERHEAD_BYTES)
    put(queue, bytes(ITEM_BYTES))
    assert (queue.stats().cached, queue.stats().flowed) == (1, False)
    drain(queue)
    put(queue, bytes(ITEM_BYTES + 1))
    assert (queue.stats().cached, queue.stats().flowed) == (0, True)
    assert drain(queue) == [bytes(ITEM_BYTES + 1)]


@pytest.mark.parametrize("memory_bytes", [0, 10_000, 300_000, 800_000])
def test_a_bound_below_a_block_does_not_read_it_for_each_item(open_queue: QueueFactory, memory_bytes: int) -> None:
    """If a block does not fit in the memory, single dequeues share one read of it as far as the memory allows."""
    items = [b"%099d" % number + b"." for number in range(9000)]
    with open_queue() as queue:
        put(queue, *items)
    reads = Reads()
    queue = open_queue(memory_bytes=memory_bytes, disk=reads.disk)
    reads.size_bytes = 0
    assert dequeue_each(queue, 600) == items[:600]
    items_per_read = max(memory_bytes // (100 + ITEM_OVERHEAD_BYTES), 1)
    page_reads = queue.stats().page_reads
    assert page_reads <= 600 // items_per_read + 1
    assert reads.size_bytes <= page_reads * (BLOCK_BYTES + 50_000)


# --- head and tail ----------------------------------------------------------------------------------------------------


def test_head_and_tail_are_kept(open_queue: QueueFactory) -> None:
    """A queue that outgrows its memory keeps the items that come out next and those that came in last."""
    queue = open_queue(memory_bytes=100_000, disk=IN_CACHE)
    put_each(queue, numbered(1000))
    runs = kept(queue)
    assert (runs[0][0], runs[-1][1]) == (0, 1000)
    assert 85 <= queue.stats().cached <= 95
    assert sum(end - first for first, end in runs if end < 500) >= 40


def test_held_items_make_room_for_the_tail(open_queue: QueueFactory) -> None:
    """An item that is held for long does not keep a close consumer from finding every item in memory."""
    queue = open_queue(memory_bytes=20_000, disk=IN_CACHE)
    put(queue, b"held")
    with queue.session() as session:
        assert session.dequeue() == b"held"
        for item in numbered(200):
            put(queue, item)
            assert dequeue_each(queue, 1) == [item]
        assert queue.stats().page_reads == 0
        session.rollback()


def test_oscillation_reads_each_item_about_once(open_queue: QueueFactory) -> None:
    """A queue that is filled and drained around its bound, again and again, reads each item about once on its way
    out."""
    reads = Reads()
    queue = open_queue(memory_bytes=50_000, disk=reads.disk)
    items = numbered(3000)
    at = out = 0
    for more, less in [(60, 20), (30, 40), (50, 60), (20, 40), (100, 50), (10, 60)] * 10:
        put_each(queue, items[at : at + more])
        at += more
        assert dequeue_each(queue, less) == items[out : out + less]
        out += less
    assert out == at
    assert reads.size_bytes <= 1.3 * ITEM_BYTES * at


def test_producer_and_consumer_far_apart_read_each_item_about_once(open_queue: QueueFactory) -> None:
    """A backlog larger than memory is read about once, with one item in and one out at a time: pages read ahead are
    kept until they are dequeued."""
    reads = Reads()
    queue = open_queue(memory_bytes=50_000, disk=reads.disk)
    items = numbered(900)
    put_each(queue, items[:400])
    for at in range(500):
        put(queue, items[400 + at])
        assert dequeue_each(queue, 1) == [items[at]]
    assert reads.size_bytes <= 1.3 * ITEM_BYTES * 500
    assert queue.stats().page_reads <= 500 // 20
    assert queue.stats().flowed


def test_it_comes_back_by_itself(open_queue: QueueFactory) -> None:
    """Once the backlog fits in the memory again, items that are enqueued from then on are not read from a file."""
    queue = open_queue(memory_bytes=50_000, disk=IN_CACHE)
    put_each(queue, numbered(300))
    assert queue.stats().flowed
    assert dequeue_each(queue, 300) == numbered(300)
    page_reads = queue.stats().page_reads
    put_each(queue, numbered(30))
    assert not queue.stats().flowed
    assert dequeue_each(queue, 30) == numbered(30)
    assert queue.stats().page_reads == page_reads


def test_released_items_come_back_after_they_were_let_go(open_queue: QueueFactory) -> None:
    """Released items come out first and in their order, even if their pages were dropped meanwhile."""
    queue = open_queue(memory_bytes=20_000, disk=IN_CACHE)
    items = numbered(200)
    put_each(queue, items)
    with queue.session() as session:
        assert session.dequeue_many(50) == items[:50]
        assert dequeue_each(queue, 100) == items[50:150]
        assert all(first >= 50 for first, _ in kept(queue))
        session.rollback()
    assert dequeue_each(queue, 101) == [*items[:50], *items[150:], None]


def test_rolled_back_items_count(open_queue: QueueFactory) -> None:
    """The page cache stays within its bound, however much is dequeued and rolled back."""
    queue = open_queue(memory_bytes=20_000, disk=IN_CACHE)
    items = numbered(100)
    put(queue, *items)
    for count in (1, 30, 99, 100, 5):
        with queue.session() as session:
            assert [session.dequeue() for _ in range(count)] == items[:count]
            assert queue.stats().cached_bytes <= 20_000
            session.rollback()
        assert queue.stats().cached_bytes <= 20_000
    assert drain(queue) == items


# --- browsing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_bytes", [0, 50_000])
def test_browse_of_more_than_memory_stays_within_the_bound(open_queue: QueueFactory, memory_bytes: int) -> None:
    """A browse yields all items in order, reads each block about once, and drops no page of the consumer."""
    reads = Reads()
    queue = open_queue(memory_bytes=memory_bytes, disk=reads.disk)
    items = numbered(600)
    for at in range(0, 600, 10):
        put(queue, *items[at : at + 10])
    before = kept(queue)
    for _ in range(2):
        reads.size_bytes = 0
        for expected, item in zip(items, queue.browse(), strict=True):
            assert item == expected
            assert queue.stats().cached_bytes <= memory_bytes
        assert reads.size_bytes <= 1.7 * ITEM_BYTES * 600  # 4 KiB more for the header of each block
    assert set(before) <= set(kept(queue))
    assert queue.stats().page_hits == 0


def test_browse_keeps_its_page_while_others_consume(open_queue: QueueFactory) -> None:
    """A browse while a consumer dequeues everything yields items in order, and ends."""
    queue = open_queue(memory_bytes=10_000, disk=IN_CACHE)
    items = numbered(100)
    put(queue, *items)
    browsed = queue.browse()
    assert list(islice(browsed, 3)) == items[:3]
    assert drain(queue) == items
    rest = list(browsed)
    assert rest == items[3 : 3 + len(rest)]
    assert len(rest) < 100


def test_peeking_again_and_again_reads_once(open_queue: QueueFactory) -> None:
    """The next item stays in memory when it is peeked at, even if the memory is full of later items."""
    queue = open_queue(memory_bytes=20_000, disk=IN_CACHE)
    put_each(queue, numbered(100))
    assert dequeue_each(queue, 20) == numbered(20)
    before = queue.stats().page_reads
    for _ in range(10):
        assert queue.peek(2) == numbered(20, 22)
    assert queue.stats().page_reads <= before + 1
    assert dequeue_each(queue, 2) == numbered(20, 22)
    assert queue.stats().page_reads <= before + 1


# --- named after the limits of the predecessors -----------------------------------------------------------------------


def test_qpid_oversize_message(open_queue: QueueFactory) -> None:
    """An item larger than a page, a block and all of the memory can be enqueued, browsed, released and dequeued."""
    queue = open_queue(memory_bytes=100_000, disk=IN_CACHE)
    items = [b"before", bytes(3_000_000), b"behind"]
    put_each(queue, items)
    assert queue.stats().cached == 2
    assert list(queue.browse()) == items
    with queue.session() as session:
        assert [session.dequeue() for _ in items] == items
        session.rollback()
    assert dequeue_each(queue, 4) == [*items, None]


def test_qpid_foreach(open_queue: QueueFactory) -> None:
    """A browse of a paged queue yields every item, also those that are not in memory, and consumes none."""
    queue = open_queue(memory_bytes=5000, disk=IN_CACHE)
    put_each(queue, numbered(100))
    assert queue.stats().cached < 10
    assert list(queue.browse()) == numbered(100)
    assert len(queue) == 100


@pytest.mark.parametrize("spare_items", [0, 1])
def test_qpid_crude_eviction(open_queue: QueueFactory, spare_items: int) -> None:
    """With room for one page, a producer and a consumer far apart do not load and drop it for each item."""
    cost_bytes = ITEM_BYTES + ITEM_OVERHEAD_BYTES
    queue = open_queue(memory_bytes=(10 + spare_items) * cost_bytes, disk=IN_CACHE)
    items = numbered(400)
    for at in range(0, 200, 10):
        put(queue, *items[at : at + 10])
    for at in range(200):
        put(queue, items[200 + at])
        assert dequeue_each(queue, 1) == [items[at]]
    assert queue.stats().page_reads <= 200 // 10 + 1


def test_qpid_bound_does_not_drift(open_queue: QueueFactory) -> None:
    """Items that were consumed without being in memory do not count as freed. The cost is that of the kept pages, and 0
    when there are none."""
    queue = open_queue(memory_bytes=20_000, disk=IN_CACHE)
    for _ in range(5):
        put_each(queue, numbered(100))
        assert queue.clear() == 100
        assert (queue.stats().cached_bytes, queue.stats().pages) == (0, 0)
    put_each(queue, numbered(10))
    assert queue.stats().cached_bytes == 10 * (ITEM_BYTES + ITEM_OVERHEAD_BYTES)


def test_java_front_stays_in_memory_when_the_queue_flows(open_queue: QueueFactory) -> None:
    """The items that come out next are not dropped: the first half of the memory is served without a read."""
    queue = open_queue(memory_bytes=100_000, disk=IN_CACHE)
    put_each(queue, numbered(500))
    assert dequeue_each(queue, 40) == numbered(40)
    assert queue.stats().page_reads == 0


def test_java_restores_ahead_of_the_consumer(open_queue: QueueFactory) -> None:
    """One read restores many items, so that a draining consumer finds nearly all of them in memory."""
    with open_queue() as queue:
        put_each(queue, numbered(500))
    queue = open_queue(memory_bytes=100_000, disk=IN_CACHE)
    assert dequeue_each(queue, 500) == numbered(500)
    stats = queue.stats()
    assert stats.page_reads <= 500 * (ITEM_BYTES + ITEM_OVERHEAD_BYTES) // 50_000 + 2
    assert stats.page_hits == 500 - stats.page_reads


def test_java_amount_flowed_is_visible(open_queue: QueueFactory) -> None:
    """The statistics count exactly how many items are in memory, and so how many are only on disk."""
    queue = open_queue(memory_bytes=10 * (ITEM_BYTES + ITEM_OVERHEAD_BYTES), disk=IN_CACHE)
    put_each(queue, numbered(10))
    assert (queue.stats().cached, queue.stats().flowed) == (10, False)
    put_each(queue, numbered(20))
    stats = queue.stats()
    assert (stats.ready - stats.cached, stats.flowed) == (20, True)
    with queue.session() as session:
        session.dequeue_many(5)  # held items are not ready
        assert (queue.stats().ready, queue.stats().cached) == (25, 5)
        session.rollback()
    assert (queue.stats().ready, queue.stats().cached) == (30, 10)


def test_java_limit_lowered_and_raised(open_queue: QueueFactory) -> None:
    """A lower bound drops pages at once, and a higher one fills as items are read and written. Neither loses an
    item."""
    queue = open_queue(memory_bytes=100_000, disk=IN_CACHE)
    put_each(queue, numbered(80))
    queue.resize(memory_bytes=10_000)
    stats = queue.stats()
    assert (stats.memory_bytes, stats.flowed) == (10_000, True)
    assert 8_000 < stats.cached_bytes <= 10_000
    assert kept(queue)[0][0] == 0
    queue.resize(memory_bytes=200_000)
    assert queue.peek(80) == numbered(80)
    put_each(queue, numbered(80, 100))
    assert (queue.stats().cached, queue.stats().flowed) == (100, False)
    queue.resize(memory_bytes=0)
    assert (queue.stats().cached_bytes, queue.stats().pages) == (0, 0)
    assert drain(queue) == numbered(100)


# --- resizing ---------------------------------------------------------------------------------------------------------


def test_segment_size_changes_on_a_live_queue(open_queue: QueueFactory) -> None:
    """The current segment is finished with its old size, and the next segments have the new one, smaller or larger."""
    queue = open_queue(segment_bytes=10_000, disk=IN_CACHE)
    for segment_bytes, segments in ((10_000, 4), (3000, 14), (100_000, 2)):
        queue.resize(segment_bytes=segment_bytes)
        put_each(queue, numbered(1))  # this item may still fit in the old segment
        before = queue.stats().segments
        put_each(queue, numbered(30))
        assert segments - 2 <= queue.stats().segments - before <= segments + 2
    queue.resize()
    assert len(drain(queue)) == 93


@pytest.mark.parametrize("setting", ["memory_bytes", "segment_bytes"])
def test_resizing_refuses_what_the_constructor_refuses(open_queue: QueueFactory, setting: str) -> None:
    """A value below the minimum is refused by its name, and a closed queue cannot be resized."""
    queue = open_queue()
    with pytest.raises(ValueError, match=f"{setting} must be at least"):
        queue.resize(**{setting: -1})
    queue.close()
    with pytest.raises(ClosedError):
        queue.resize(memory_bytes=0)


def test_resizing_while_others_use_the_queue(open_queue: QueueFactory) -> None:
    """Threads that enqueue and dequeue get all items in order while the bounds change."""
    queue = open_queue(disk=IN_CACHE)
    found: list[bytes | None] = []

    def consume() -> None:
        with queue.session() as session:
            for _ in range(300):
                found.append(session.dequeue(timeout=60))
                session.flush()

    threads = [threading.Thread(target=put_each, args=(queue, numbered(300))), threading.Thread(target=consume)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for memory_bytes in (0, 1_000_000, 3000):
            queue.resize(memory_bytes=memory_bytes, segment_bytes=memory_bytes + 5000)
            assert queue.stats().cached_bytes <= memory_bytes
    assert found == numbered(300)


# --- finding the place where a read continues -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes",
    [[500] * 20_000, [50, 3000, 700] * 2000, [70_000] * 100, [10] * 500 + [3_000_000] * 4 + [10] * 500],
    ids=["small", "mixed", "large", "small and huge"],
)
def test_a_block_amid_many_is_found_by_few_reads(tmp_path: Path, sizes: list[int]) -> None:
    """A read from the middle of a segment finds its block by bisection, without reading all blocks before it."""
    reads = Reads()
    segment = Segment.create(reads.disk, str(tmp_path / "segment"), 1, 20_000_000)
    for number, size in enumerate(sizes):
        item = b"%d " % number + bytes(size - 6)
        blocks, length_bytes, _ = encode_block([item, b"x"], segment.salt, segment.end, segment.ordinal, 0)
        segment.write(blocks, length_bytes, 2)
    for number in {0, 1, 2, 100, len(sizes) // 3, len(sizes) // 2 + 1, len(sizes) - 2, len(sizes) - 1} & set(
        range(len(sizes))
    ):
        reads.size_bytes, wanted = 0, 2 * number + 1
        ahead = Ahead(wanted + 1, NO_BOUND.stop, 0)
        loaded = segment.load(HEADER_BYTES, 0, segment.end, segment.ordinal, wanted, ahead)
        assert (loaded.ordinal, loaded.damage, loaded.items[0].split()[0]) == (2 * number, None, b"%d" % number)
        assert reads.size_bytes <= READ_AHEAD_BYTES + READ_AHEAD_BYTES // 2 + 4 * max(sizes)
    segment.close()

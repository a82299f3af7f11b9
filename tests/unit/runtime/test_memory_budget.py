"""A memory budget that queues share: how it is split, when it is split anew, and that it is never exceeded."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue import MemoryBudget, PersistentQueue
from persistentqueue.core.page_cache import Pages
from persistentqueue.runtime.memory_budget import split
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import IN_CACHE, crash, drain, put

TOTAL_BYTES = 100_000
ITEM = bytes(1000)


def shares(*queues: PersistentQueue) -> list[int]:
    """Return the memory that each queue may use for pages."""
    return [queue.stats().memory_bytes for queue in queues]


@contextmanager
def watched(*queues: PersistentQueue) -> Iterator[list[int]]:
    """Yield a list that gets the sum of all bounds of pages whenever one of them changes."""
    own = {
        id(queue._open_queue._store.pages): queue._open_queue._store.pages
        for queue in queues
        if queue._open_queue is not None
    }
    sums: list[int] = []
    resize = Pages.resize

    def noted(self: Pages, memory_bytes: int) -> None:
        resize(self, memory_bytes)
        own[id(self)] = self
        sums.append(sum(pages.memory_bytes for pages in own.values()))
        assert self.cost_bytes <= memory_bytes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pages, "resize", noted)
        yield sums


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**15), min_size=1, max_size=20))
def test_shares_never_add_up_to_more_than_the_budget(total_bytes: int, depths: list[int]) -> None:
    """At any depths the shares add up to the budget, but for a remainder of division, and to no more."""
    sizes = split(total_bytes, depths)
    assert 0 <= total_bytes - sum(sizes) <= 2 * len(depths)
    assert min(sizes) >= total_bytes // 2 // len(depths)


def test_sharing_is_half_equal_and_half_by_depth() -> None:
    """By the rule of Qpid's Java broker, half of the budget is split equally, and half by depth.

    A queue alone, and queues of equal depth, share all of it.
    """
    assert split(1000, [0, 100, 300]) == [166, 166 + 125, 166 + 375]
    assert split(1000, [7]) == [1000]
    assert split(1000, [0]) == [1000]
    assert split(1000, [0, 0, 0, 0]) == [250] * 4
    assert split(0, [5, 5]) == [0, 0]


def test_queues_share_a_budget_equally_and_by_depth(open_queue: QueueFactory) -> None:
    """A deep queue has its equal part of one half of the budget, and all of the other half if the others are empty."""
    budget = MemoryBudget(TOTAL_BYTES)
    assert (budget.total_bytes, repr(budget)) == (TOTAL_BYTES, "MemoryBudget(100000)")
    deep, *idle = [open_queue(name, memory_bytes=budget) for name in "abcde"]
    assert shares(deep, *idle) == [TOTAL_BYTES // 5] * 5
    put(deep, *[ITEM] * 100)
    assert shares(deep, *idle) == [TOTAL_BYTES // 10 + TOTAL_BYTES // 2] + [TOTAL_BYTES // 10] * 4
    assert drain(deep) == [ITEM] * 100
    assert shares(deep, *idle) == [TOTAL_BYTES // 5] * 5


def test_a_queue_alone_has_all_of_the_budget(open_queue: QueueFactory) -> None:
    """A queue alone has all of the budget, until another queue joins, and again when that queue has left, in any
    way."""
    budget = MemoryBudget(TOTAL_BYTES)
    first = open_queue("a", memory_bytes=budget)
    assert shares(first) == [TOTAL_BYTES]
    put(first, *[ITEM] * 50)
    assert first.stats().cached == 50
    second = open_queue("b", memory_bytes=budget)
    assert shares(first, second) == [TOTAL_BYTES * 3 // 4, TOTAL_BYTES // 4]
    second.close()
    assert shares(first) == [TOTAL_BYTES]
    second = open_queue("b", memory_bytes=budget)
    second.resize(memory_bytes=500)
    assert shares(first, second) == [TOTAL_BYTES, 500]
    second.resize(memory_bytes=budget)
    assert shares(first, second) == [TOTAL_BYTES * 3 // 4, TOTAL_BYTES // 4]


def test_a_share_that_shrinks_lets_go_at_once(open_queue: QueueFactory) -> None:
    """When a queue joins, the other queues drop what exceeds their new shares before it gets its own."""
    budget = MemoryBudget(TOTAL_BYTES)
    first = open_queue("a", memory_bytes=budget)
    put(first, *[ITEM] * 90)
    with watched(first) as sums:
        second = open_queue("b", memory_bytes=budget)
    assert max(sums) <= TOTAL_BYTES
    assert first.stats().cached_bytes <= first.stats().memory_bytes == TOTAL_BYTES * 3 // 4
    assert first.stats().flowed
    assert drain(first) == [ITEM] * 90
    assert drain(second) == []


def test_small_changes_do_not_share_anew(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that fits into its share causes no new split; a deep one does when its depth has changed by an eighth."""
    budget = MemoryBudget(TOTAL_BYTES)
    small, deep = open_queue("a", memory_bytes=budget), open_queue("b", memory_bytes=budget)
    balances: list[int] = []
    balance = MemoryBudget.balance

    def counted(self: MemoryBudget) -> None:
        balances.append(1)
        balance(self)

    monkeypatch.setattr(MemoryBudget, "balance", counted)
    for _ in range(20):
        put(small, *[ITEM] * 40)
        drain(small)
    assert balances == []
    put(deep, *[ITEM] * 400)
    assert len(balances) == 1
    for _ in range(45):
        put(deep, ITEM)
    assert len(balances) == 1
    for _ in range(10):
        put(deep, ITEM)
    assert len(balances) == 2


def test_a_dropped_queue_leaves_its_share(tmp_path: Path) -> None:
    """A queue that was dropped without ``close`` leaves its share to the others, at the latest when one of them
    commits."""
    budget = MemoryBudget(TOTAL_BYTES)
    with PersistentQueue(tmp_path, "a", memory_bytes=budget) as first:
        second = PersistentQueue(tmp_path, "b", memory_bytes=budget)
        put(second, *[ITEM] * 500)
        with pytest.warns(ResourceWarning, match="dropped without close"):
            del second
            gc.collect()
        put(first, ITEM)
        assert shares(first) == [TOTAL_BYTES]


def test_a_killed_queue_keeps_no_memory_for_its_sessions(open_queue: QueueFactory) -> None:
    """A queue that was given up keeps no page and no share, even if a session still refers to it."""
    budget = MemoryBudget(TOTAL_BYTES)
    first, second = open_queue("a", memory_bytes=budget), open_queue("b", memory_bytes=budget)
    put(second, ITEM)
    session = second.session()
    crash(second)
    assert second._open_queue is not None
    assert second._open_queue._store.pages.cost_bytes == 0
    put(first, ITEM)
    assert shares(first) == [TOTAL_BYTES]
    session.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_the_budget_to_itself(open_queue: QueueFactory, tmp_path: Path) -> None:
    """A child that was forked while the budget was locked can use it for queues of its own."""
    budget = MemoryBudget(TOTAL_BYTES)
    parent = open_queue("a", memory_bytes=budget)
    with budget._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of a fork beside threads
        child = os.fork()
        if not child:
            code = 1
            try:
                with PersistentQueue(tmp_path, "b", memory_bytes=budget) as queue:
                    code = 0 if shares(queue) == [TOTAL_BYTES] else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert shares(parent) == [TOTAL_BYTES]


def test_a_mutex_that_is_held_delays_the_shares(open_queue: QueueFactory) -> None:
    """A commit of one queue waits for no other one that is in the middle of a call: its share changes later.

    A signal handler may use a queue while the code that it interrupts holds the mutex of another one.
    """
    budget = MemoryBudget(TOTAL_BYTES)
    deep, other = (open_queue(name=name, memory_bytes=budget) for name in ("deep", "other"))
    with watched(deep, other) as sums:
        with other._open().mutex:
            put(deep, *[ITEM] * 200)
            assert shares(deep) == [TOTAL_BYTES // 2]
        put(deep, ITEM)
        assert shares(deep, other) == [TOTAL_BYTES * 3 // 4, TOTAL_BYTES // 4]
        assert max(sums) <= TOTAL_BYTES


def test_resizing_checks_like_the_constructor(open_queue: QueueFactory) -> None:
    """A budget below 0 or of a wrong type is refused, and a queue that refuses one setting changes none."""
    with pytest.raises(ValueError, match="total_bytes must be at least 0, got -1"):
        MemoryBudget(-1)
    queue = open_queue()
    with pytest.raises(ValueError, match="segment_bytes must be at least 1, got 0"):
        queue.resize(memory_bytes=MemoryBudget(10), segment_bytes=0)
    for wrong in ("5", 5.0, b""):
        with pytest.raises(TypeError, match="total_bytes must be a whole number"):
            MemoryBudget(wrong)  # type: ignore[arg-type]
        for setting in ("memory_bytes", "segment_bytes"):
            with pytest.raises(TypeError, match=f"{setting} must be a whole number"):
                queue.resize(**{setting: wrong})  # type: ignore[arg-type]
    assert shares(queue) == [64 * 1024 * 1024]
    put(queue, b"x")


def test_many_threads_and_queues_stay_within_the_budget(tmp_path: Path) -> None:
    """Queues that fill, drain, open and close at the same time never exceed the budget, and lose no item."""
    budget = MemoryBudget(TOTAL_BYTES)
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for turn in range(6):
                with call_on(IN_CACHE, PersistentQueue, tmp_path, name, memory_bytes=budget) as queue:
                    count = 15 * (turn + 1)
                    for number in range(count):
                        put(queue, b"%d" % number + bytes(1000))
                    assert [int(item[:-1000]) for item in drain(queue)] == list(range(count))
        except BaseException as error:
            failures.append(error)

    with watched() as sums:
        run_all([lambda name=name: work(name) for name in "abcd"])  # type: ignore[misc]
    assert not failures
    assert max(sums) <= TOTAL_BYTES


def run_all(bodies: list[Callable[[], None]]) -> None:
    """Run the bodies at the same time."""
    threads = [threading.Thread(target=body, daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"


def test_hundreds_of_named_queues_share_a_budget(tmp_path: Path) -> None:
    """However many queues share a budget, the memory of all of them stays within it."""
    budget = MemoryBudget(TOTAL_BYTES)
    with ExitStack() as stack:
        queues = [
            stack.enter_context(call_on(IN_CACHE, PersistentQueue, tmp_path, f"q{n}", memory_bytes=budget))
            for n in range(200)
        ]
        for number, queue in enumerate(queues):
            put(queue, *[bytes(100)] * (number % 7))
        kept = [queue._open_queue._store.pages for queue in queues if queue._open_queue is not None]
        assert sum(pages.memory_bytes for pages in kept) <= TOTAL_BYTES
        assert all(pages.cost_bytes <= pages.memory_bytes for pages in kept)
        assert [len(drain(queue)) for queue in queues] == [number % 7 for number in range(200)]

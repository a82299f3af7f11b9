"""Calls on a queue with many gaps: other threads wait for them, so they take no step of Python for each gap."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

import pytest

from persistentqueue import PersistentQueue, Session, Subscription, View
from persistentqueue.engine.transaction import Transaction
from persistentqueue.runtime import retries
from persistentqueue.runtime.open_queue import OpenQueue
from persistentqueue.runtime.session_state import hold_again
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, put

GAPS = 2000
MANY = 600
"""Calls of Python functions that a call may make, in any queue."""


def calls_in(call: Callable[[], object]) -> int:
    """Return the number of calls of Python functions in this thread, in steps of the call."""
    count = 0

    def note(frame: FrameType, event: str, what: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


def item(number: int) -> bytes:
    """Return the item with this number."""
    return b"%d" % number


EVEN = [item(number) for number in range(0, 2 * GAPS, 2)]


@pytest.fixture
def queue(open_queue: QueueFactory) -> PersistentQueue:
    """Return a queue of which a subscription has consumed nothing, and another one every other item."""
    queue = open_queue()
    for name in ("behind", "gaps"):
        queue.subscribe(name)
    put(queue, *(item(number) for number in range(2 * GAPS)))
    return queue


def make_gaps(source: PersistentQueue | Subscription) -> Session:
    """Consume the odd items, and return a session that holds the even ones."""
    kept = source.session()
    with source.session() as consumed:
        for _ in range(GAPS):
            kept.dequeue(), consumed.dequeue()
        consumed.flush()
    return kept


def test_rollbacks_and_dequeues(queue: PersistentQueue) -> None:
    """A rollback, and a dequeue of what it has released. The items come in their order, also between ready ones."""
    kept = make_gaps(queue)
    assert calls_in(kept.rollback) < MANY
    assert calls_in(lambda: kept.dequeue_many(GAPS)) < MANY
    kept.rollback()
    with queue.session() as other:
        for _ in range(GAPS // 2):
            kept.dequeue(), other.dequeue()
        other.rollback()
        assert calls_in(kept.rollback) < MANY
        assert other.dequeue_many(2 * GAPS) == EVEN
        other.flush()


@pytest.mark.parametrize("enqueues", [False, True])
def test_flushes(queue: PersistentQueue, open_queue: QueueFactory, enqueues: bool) -> None:
    """A flush of many runs, alone or with items, and the opening that reads it from the log."""
    kept = make_gaps(queue)
    if enqueues:
        kept.enqueue(b"more")
    assert calls_in(kept.flush) < MANY
    crash(queue)
    assert drain(open_queue()) == ([b"more"] if enqueues else [])


def test_clears(queue: PersistentQueue) -> None:
    """``clear`` consumes all gaps at once."""
    make_gaps(queue).close()
    assert calls_in(queue.clear) < MANY
    assert drain(queue) == []


@pytest.mark.parametrize("removed", ["behind", "gaps"])
def test_removed_subscriptions(queue: PersistentQueue, removed: str) -> None:
    """The removal of a subscription, whether the gaps are its own or those of the others."""
    make_gaps(queue.subscribe("gaps")).close()
    make_gaps(queue).close()
    assert calls_in(lambda: queue.unsubscribe(removed)) < MANY
    assert queue.explain()[0].live == (GAPS if removed == "behind" else 2 * GAPS)
    (rest,) = queue.subscriptions()
    assert calls_in(lambda: queue.unsubscribe(rest)) < MANY
    assert queue.explain()[0].live == GAPS
    assert drain(queue) == EVEN


def test_trims(queue: PersistentQueue, open_queue: QueueFactory) -> None:
    """A trim writes what each subscription has consumed, and the next opening reads it."""
    make_gaps(queue.subscribe("gaps")).close()
    make_gaps(queue).close()
    assert calls_in(queue._open().trim) < MANY
    queue.close()
    queue = open_queue()
    for source, left in ((queue.subscribe("behind"), 2 * GAPS), (queue.subscribe("gaps"), GAPS), (queue, GAPS)):
        with source.session() as session:
            items = session.dequeue_many(3 * GAPS)
            session.flush()
        assert len(items) == left
        assert set(items) >= set(EVEN)


def test_counts_by_segment(queue: PersistentQueue) -> None:
    """``explain``, and the first look of another process, which restores the state and counts what is left. The calls
    of a look are many in any queue."""
    make_gaps(queue).close()
    assert calls_in(queue.explain) < MANY
    queue.close()
    assert calls_in(View(queue.path, queue.name).look) < GAPS


@pytest.mark.parametrize(("step_runs", "commits"), [(1024, 2), (1, 4)])
def test_delays(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch, step_runs: int, commits: int) -> None:
    """A rollback logs the delays of many runs in several commits, but not in many, and the items are ready again at
    once."""
    monkeypatch.setattr(retries, "_STEP_RUNS", step_runs)
    monkeypatch.setattr(retries, "_STEPS", 4)
    queue = open_queue(retry_delay_seconds=100)
    put(queue, *(item(number) for number in range(2 * GAPS)))
    ready = queue._open().need_plain().ready
    commit, sizes = OpenQueue.commit, list[int]()

    def noted(open_queue: OpenQueue, transaction: Transaction, timeout_seconds: float | None = None) -> None:
        sizes.append(len(transaction.operations))
        commit(open_queue, transaction, timeout_seconds)

    with queue.session() as kept:
        runs = [(number, 1) for number in range(0, 2 * GAPS, 2)]
        assert calls_in(lambda: hold_again(kept, runs)) < MANY
        monkeypatch.setattr(OpenQueue, "commit", noted)
        kept.rollback()
        assert (sum(sizes), len(sizes)) == (GAPS, commits)
        assert (len(ready.delayed), len(ready)) == (GAPS, GAPS)
        monkeypatch.setattr(ready, "_disk", replace(queue._open().disk, monotonic=lambda: 1e9))
        assert calls_in(lambda: len(ready)) < MANY
        assert (len(ready.delayed), len(ready)) == (0, 2 * GAPS)

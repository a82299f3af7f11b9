"""``explain``: why a data file exists, which sessions keep it, and for how long."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistentqueue import CorruptionError, Holder, PersistentQueue, Session
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.core.intervals import Intervals, Run
from persistentqueue.core.operations import ExtentRow
from persistentqueue.core.state import Extent
from persistentqueue.engine import segment_use
from persistentqueue.engine.segment_use import Hold
from persistentqueue.engine.transaction import Transaction
from persistentqueue.runtime import pipeline as pipeline_module
from persistentqueue.runtime.open_queue import OpenQueue
from persistentqueue.runtime.pipeline import Pipeline, Ticket
from persistentqueue.runtime.session_state import hold_of
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import IN_CACHE, drain, flip, put, put_each, segment_files, wait_for

TEN: dict[str, Any] = {"segment_bytes": 1500 + HEADER_BYTES, "memory_bytes": 0, "disk": IN_CACHE}
"""Settings whose segments are full after ten items of 100 bytes, each put by itself."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the time that sessions see, and return it in a list of one element that the test may set."""
    time = [1000.0]
    monkeypatch.setattr(OpenQueue, "now", lambda *_: time[0])
    return time


def test_who_keeps_a_segment_and_for_how_long(open_queue: QueueFactory, clock: list[float]) -> None:
    """Each segment reports its live items, and for each session how many items it holds, the longest hold first."""
    queue = open_queue(**TEN)
    put_each(queue, [bytes(100)] * 35)
    with queue.session("slow") as slow, queue.session("quick") as quick:
        slow.dequeue()
        clock[0] += 86_400
        with queue.transaction() as session:
            session.dequeue_many(10)
        slow.dequeue()
        quick.dequeue_many(2)
        clock[0] += 60
        first, second, third, fourth = queue.explain()
        quick.rollback()
        slow.rollback()
    assert (first.live, first.ready, first.held) == (1, 0, 1)
    assert first.holders == (Holder("slow", 1, 0, 86_460.0),)
    assert (second.live, second.ready, second.held) == (9, 6, 3)
    assert second.holders == (Holder("slow", 1, 0, 86_460.0), Holder("quick", 2, 0, 60.0))
    assert (third.live, third.ready, third.holders, third.is_current) == (10, 10, (), False)
    assert (fourth.live, fourth.ready, fourth.is_current) == (5, 5, True)
    assert str(first) == (
        f"segment {first.number}, {first.live_bytes} of {first.size_bytes:,} bytes live: 'slow' holds 1 for 86,460.0 s"
    )
    assert "6 ready; 'slow' holds 1 for 86,460.0 s; 'quick' holds 2 for 60.0 s" in str(second)
    assert str(fourth).endswith("bytes live: 5 ready; new items are written to it")


def test_the_mutex_is_free_while_the_items_are_counted(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``explain`` and ``stats`` hold the mutex only to copy what they need: with many gaps, no flush waits for them."""
    queue = open_queue()
    put(queue, *[b"x"] * 100)
    mutex, free = queue._open().mutex, []

    def looking(call: Any) -> Any:
        def looked(*args: Any) -> Any:
            free.append(mutex.acquire(blocking=False))
            mutex.release()
            return call(*args)

        return looked

    with queue.session() as kept, queue.session() as consumed:
        for _ in range(40):
            kept.dequeue(), consumed.dequeue()
        consumed.flush()
        monkeypatch.setattr(segment_use, "_per_segment", looking(segment_use._per_segment))
        monkeypatch.setattr(Intervals, "overlap", looking(Intervals.overlap))
        (use,) = queue.explain()
        counted = len(free)
        cached = queue.stats().cached
        kept.rollback()
    assert (use.live, use.ready, use.held, [holder.items for holder in use.holders]) == (60, 20, 40, [40])
    assert cached == 20
    assert 4 <= counted < len(free)
    assert all(free)


def test_held_items_that_are_gone_count_for_no_segment() -> None:
    """Items that a flush has just consumed, and that its session still holds, are counted in no segment."""
    extents = [Extent(ExtentRow(first, 5, 7, HEADER_BYTES, 100, 0, 5, 100)) for first in (10, 20)]
    for runs, count in (([(0, 3), (16, 2), (30, 1)], 0), ([(0, 12), (16, 5)], 3), ([(8, 30)], 10)):
        assert segment_use._per_segment(extents, Intervals(runs)) == ({7: count} if count else {})


def test_a_new_subscription_takes_no_step_for_each_gap(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subscription copies the gaps of the queue as arrays: other threads wait for it only briefly."""
    queue = open_queue()
    put(queue, *[b"%d" % number for number in range(200)])
    with queue.session() as kept, queue.session() as consumed:
        for _ in range(80):
            kept.dequeue(), consumed.dequeue()
        consumed.flush()
        added: list[Run] = []
        add = Intervals.add

        def adding(intervals: Intervals, first: int, count: int) -> None:
            added.append((first, count))
            add(intervals, first, count)

        monkeypatch.setattr(Intervals, "add", adding)
        subscription = queue.subscribe("audit")
        assert len(added) < 5
        kept.rollback()
    with subscription.session() as session:
        left = [*range(0, 160, 2), *range(160, 200)]
        assert session.dequeue_many(200) == [b"%d" % number for number in left]
        session.flush()


def test_a_flush_that_is_handed_over_meanwhile_counts_once(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The items of a flush count once while it moves into the pipeline, and while it is committed with others."""
    queue, found = open_queue(), list[tuple[int, list[int]]]()
    put(queue, *[b"%d" % number for number in range(30)])

    def look(pipeline: Pipeline) -> list[Transaction]:
        monkeypatch.setattr(Pipeline, "left", left)
        hand_over = threading.Thread(target=partial(session.flush, wait=False))
        hand_over.start()
        hand_over.join()
        return left(pipeline)

    def committed(ticket: Ticket, outcome: bool) -> None:
        explain()
        succeed(ticket, outcome)

    def explain() -> None:
        (use,) = queue.explain()
        found.append((use.held, [holder.items for holder in use.holders]))

    left, succeed = Pipeline.left, pipeline_module._succeed
    with queue.session() as session:
        with queue._open().writing:
            session.enqueue(b"the next flushes wait for this one")
            session.flush(wait=False)
            pipeline = session._pipeline
            assert pipeline is not None
            wait_for(lambda: not pipeline.waiting)
            session.dequeue_many(10)
            monkeypatch.setattr(Pipeline, "left", look)
            explain()
            session.dequeue_many(5), session.flush(wait=False)
            session.dequeue_many(1)
            explain()
            monkeypatch.setattr(pipeline_module, "_succeed", committed)
        session.rollback()  # waits for its flushes
    assert found == [(10, [10]), (16, [16]), (16, [16]), (1, [1]), (1, [1])]


def test_sizes_are_those_of_the_files(open_queue: QueueFactory, directory: Path) -> None:
    """``size_bytes`` is the length of the file, or 0 if the file is missing."""
    queue = open_queue(**TEN)
    put_each(queue, [bytes(100)] * 35)
    files = segment_files(directory)
    assert [use.size_bytes for use in queue.explain()] == [file.stat().st_size for file in files]
    assert [f"{use.number:012}.seg" for use in queue.explain()] == [file.name for file in files]
    moved = files[0].rename(directory / "elsewhere")
    assert queue.explain()[0].size_bytes == 0
    moved.rename(files[0])


def test_a_session_that_writes_ahead_keeps_what_it_writes_to(open_queue: QueueFactory, clock: list[float]) -> None:
    """A session that spills keeps the segments that it has written to, even one that no commit has named or that holds
    no live item."""
    queue = open_queue(**TEN)
    put(queue, bytes(100))
    with queue.session("loader") as loader:
        loader._spill_bytes = 1
        loader.enqueue_many([bytes(600)] * 4)
        drain(queue)
        clock[0] += 5
        old, new = queue.explain()
        assert old.holders == (Holder("loader", 0, 2, 5.0),)
        assert new.holders == (Holder("loader", 0, 1, 5.0),)
        assert (old.live, new.live, old.is_pinned, new.is_pinned) == (0, 0, True, True)
        assert "'loader' has spilled 2 for 5.0 s" in str(old)
        loader.dequeue()
        loader.rollback()
        clock[0] += 5
    assert [use.holders for use in queue.explain()] == [()] * len(queue.explain())


def test_the_time_begins_anew_with_each_flush(open_queue: QueueFactory, clock: list[float]) -> None:
    """A session's time counts from the first item that its current transaction holds. A dequeue that finds nothing does
    not begin it."""
    queue = open_queue()
    put(queue, b"one", b"two", b"three")
    with queue.session() as session:
        assert session.dequeue() == b"one"
        clock[0] += 10
        assert session.dequeue() == b"two"
        session.flush()
        clock[0] += 10
        assert hold_of(session) is None
        assert session.dequeue_many(2) == [b"three"]
        clock[0] += 1
        (use,) = queue.explain()
        assert use.holders == (Holder("MainThread", 1, 0, 1.0),)
        session.rollback()
        drain(queue)
        assert session.dequeue() is None
        clock[0] += 10
        put(queue, b"four")
        assert session.dequeue_many(1) == [b"four"]
        keeps = hold_of(session)
        assert keeps is not None
        assert keeps.seconds == 0.0
        session.rollback()
    assert hold_of(session) is None


def test_a_session_has_the_name_of_its_thread(open_queue: QueueFactory) -> None:
    """A session without a name of its own has the name of its thread. A closed session is not listed."""
    queue = open_queue()
    put(queue, *[b"x"] * 3)
    sessions: list[Session] = []

    def work() -> None:
        sessions.append(queue.session())
        sessions[0].dequeue()

    thread = threading.Thread(target=work, name="worker 7")
    thread.start()
    thread.join()
    with queue.transaction("another") as session:
        session.dequeue()
        assert [holder.session for holder in queue.explain()[0].holders] == ["worker 7", "another"]
    sessions.pop().close()
    assert queue.explain()[0].holders == ()


def test_no_item_leaves_the_lane_between_two_counts(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each item is ready or held by a named session, while threads dequeue without the mutex. ``explain`` called those
    held by no known session which a thread took behind the look at its session."""
    queue = open_queue()
    put(queue, *[b"x"] * 10)

    def look(session: Session) -> Hold | None:
        hold = hold_of(session)
        if session._lane:  # as another thread takes from it
            next(session._takes)
        return hold

    monkeypatch.setattr("persistentqueue.queue.hold_of", look)
    with queue.session("worker") as session:
        session.dequeue()
        (use,) = queue.explain()
        assert (use.ready, use.held, [holder.items for holder in use.holders]) == (9, 1, [1])
        assert len(session.dequeue_many(9)) == 9
        session.flush()


def test_what_is_drained_goes_with_the_next_trim(open_queue: QueueFactory) -> None:
    """A drained segment is reported as one that the next trim retires, and that trim retires it."""
    queue = open_queue(**TEN)
    put_each(queue, [bytes(100)] * 20)
    with queue.transaction() as session:
        session.dequeue_many(10)
    first, second = queue.explain()
    assert str(first).endswith("bytes live: it is drained, and the next trim retires it")
    queue.trim()
    assert [use.number for use in queue.explain()] == [second.number]


@pytest.mark.damages
def test_damaged_items_are_counted_apart(open_queue: QueueFactory, directory: Path) -> None:
    """A damaged item that was set aside keeps its segment, and ``explain`` counts it separately."""
    queue = open_queue(**TEN)
    put_each(queue, [bytes(100)] * 20)
    queue.close()
    flip(segment_files(directory)[0], HEADER_BYTES + 60)
    queue = open_queue(**TEN)
    with queue.transaction() as session:
        with pytest.raises(CorruptionError):
            session.dequeue()
        assert session.dequeue_many(3) == [bytes(100)] * 3
    first = queue.explain()[0]
    assert (first.live, first.ready, first.damaged) == (7, 6, 1)
    assert "6 ready; 1 damaged" in str(first)


@pytest.mark.usefixtures("reports_each_step")
def test_a_compaction_pins_what_it_copies(open_queue: QueueFactory) -> None:
    """While a compaction is at work, its sources are reported as being compacted."""
    queue = open_queue(**TEN)
    put_each(queue, [bytes(100)] * 30)
    with queue.session("keeper") as keeper:
        for _ in range(2):
            keeper.dequeue()
            with queue.transaction() as session:
                session.dequeue_many(9)
        keeper.rollback()
    seen: list[str] = []
    queue.compact(progress=lambda *_: seen.append(str(queue.explain()[0])))
    assert seen[-1].endswith("1 ready; it is being compacted")


def add_up(queue: PersistentQueue) -> None:
    """Assert that the sums over the segments of ``explain`` equal the numbers of ``stats``."""
    uses, stats = queue.explain(), queue.stats()
    assert sum(use.ready for use in uses) == stats.ready == len(queue)
    assert sum(use.held for use in uses) == stats.held
    assert sum(use.live for use in uses) == stats.ready + stats.held + stats.damaged
    assert sum(use.live_bytes for use in uses) == stats.live_bytes
    assert all(sum(holder.items for holder in use.holders) == use.held for use in uses)


@given(st.lists(st.tuples(st.sampled_from("edfrct"), st.integers(0, 2), st.integers(1, 12)), max_size=40))
@settings(max_examples=60)
def test_it_adds_up(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]) -> None:
    """The numbers of ``explain`` add up to those of ``stats`` after any program of sessions, compactions and trims."""
    with call_on(
        IN_CACHE, PersistentQueue, tmp_path_factory.mktemp("explain"), segment_bytes=300, memory_bytes=0
    ) as queue:
        sessions = [queue.session(str(number)) for number in range(3)]
        for what, number, count in steps:
            session = sessions[number]
            if what == "e":
                session.enqueue_many([bytes(10 * number)] * count)
            elif what == "d":
                session.dequeue_many(count)
            elif what == "f":
                session.flush()
            elif what == "r":
                session.rollback()
            elif what == "c":
                queue.compact(below=count / 12)
            else:
                queue.trim()
            add_up(queue)
        for session in sessions:
            session.rollback()

"""Limits on items and bytes: which transactions are admitted, which are refused, and with which errors."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import PersistentQueue, QueueFullError
from persistentqueue.core.block import BLOCK_BYTES, BLOCK_HEADER_BYTES, BLOCK_ITEMS, LENGTH_BYTES
from persistentqueue.engine.admission import measure_bytes
from persistentqueue.engine.commit import Committer
from tests.conftest import QueueFactory
from tests.crash.disk import SimulatedDisk
from tests.support.limits import SECONDS, consume, content, files_bytes, opened, spilling, take, transaction, waits
from tests.support.queues import IN_CACHE, crash, drain, put, put_each, segment_files, spilling_session

KIB, MIB = 1024, 1024 * 1024


# --- how many items ---------------------------------------------------------------------------------------------------


def test_max_items(open_queue: QueueFactory) -> None:
    """A full queue refuses a flush with the reason, and the queue and the session keep their items. Once there is room,
    the flush succeeds."""
    queue = open_queue(max_items=3)
    put(queue, b"a", b"b")
    with queue.session() as session:
        session.enqueue_many([b"c", b"d"])
        for _ in range(2):
            with pytest.raises(QueueFullError, match=r"max_items=3 .* 2 more, the queue holds 2; .* dequeue") as caught:
                session.flush()
        error = caught.value
        assert (error.limit, error.most, error.holds, error.asked, error.lasting) == ("max_items", 3, 2, 2, False)
        assert str(error).startswith(error.path)
        assert list(queue.browse()) == [b"a", b"b"]
        with queue.transaction() as consumer:
            assert consumer.dequeue() == b"a"
        session.flush()
    stats = queue.stats()
    assert (stats.fill, stats.refused, stats.waiting, stats.transactions) == (1.0, 2, 0, 3)
    assert drain(queue) == [b"b", b"c", b"d"]
    assert queue.stats().fill == 0.0


def test_items_on_hold_count(open_queue: QueueFactory) -> None:
    """Held items count for ``max_items`` until their dequeue is flushed, and after a rollback as well."""
    queue = open_queue(max_items=2)
    put(queue, b"a", b"b")
    with queue.session() as holder:
        assert holder.dequeue_many(2) == [b"a", b"b"]
        with pytest.raises(QueueFullError):
            put(queue, b"c")
        holder.rollback()
    with pytest.raises(QueueFullError):
        put(queue, b"c")
    assert drain(queue) == [b"a", b"b"]
    put(queue, b"c")


def test_what_is_taken_makes_room_for_what_is_put(open_queue: QueueFactory) -> None:
    """At the limit, a transaction can enqueue as many items as it dequeues, and not one more."""
    queue = open_queue(max_items=3)
    put(queue, b"a", b"b", b"c")
    with queue.transaction() as session:
        assert session.dequeue_many(2) == [b"a", b"b"]
        session.enqueue_many([b"A", b"B"])
    with queue.session() as session:
        session.dequeue()
        session.enqueue_many([b"C", b"D"])
        with pytest.raises(QueueFullError):
            session.flush()
        session.rollback()
    assert drain(queue) == [b"c", b"A", b"B"]


def test_lower_limit_than_before(open_queue: QueueFactory, directory: Path) -> None:
    """A queue above its new, lower limits opens and delivers its items, and refuses each flush that would make it
    fuller."""
    queue = open_queue(segment_bytes=KIB)
    put_each(queue, [b"%03d" % n * 100 for n in range(200)])
    queue.close()
    queue = open_queue(max_items=10, max_bytes=2 * KIB, max_disk_bytes=5 * MIB, segment_bytes=KIB)
    assert queue.stats().fill >= 20.0
    with pytest.raises(QueueFullError):
        put(queue, b"x")
    with queue.transaction() as session:
        assert session.dequeue_many(5)[0] == b"000" * 100
        session.enqueue(b"y")
    crash(queue)
    queue = open_queue(max_disk_bytes=5 * 4096, log_bytes=4096)
    with pytest.raises(QueueFullError):
        put(queue, b"x")
    for n in range(5, 200):
        with queue.transaction() as session:
            assert session.dequeue() == b"%03d" % n * 100
    assert drain(queue) == [b"y"]
    put(queue, b"x")
    assert files_bytes(directory) < 5 * MIB


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_full_queue_is_emptied_behind_a_refusal(open_queue: QueueFactory, comes_first: bool) -> None:
    """A full queue can be emptied and closed, also if the segment that it goes on in was cut when a spill left it."""
    small: dict[str, Any] = {"segment_bytes": 65_536, "log_bytes": 4096}
    items = [b"%d" % n * 1000 for n in range(9)]
    queue = open_queue(**small)
    put(queue, *items)
    queue.close()
    queue = open_queue(**small)
    with spilling_session(queue, 1) as session:
        session.enqueue_many([b"x" * 100_000, b"y"])
        session.rollback()
    queue.close()
    queue = open_queue(**small, max_disk_bytes=5 * 4096)
    with queue.session() as session:
        if comes_first:
            assert session.dequeue() == items[0]
            session.flush()
        with pytest.raises(QueueFullError):
            put(queue, b"z")
        assert session.dequeue_many(9) == items[comes_first:]
        session.flush()
    queue.trim()
    queue.close()
    assert drain(open_queue()) == []


def test_damaged_items_do_not_count(open_queue: QueueFactory, directory: Path) -> None:
    """Damaged items do not count for ``max_items``, since no consumer could take them away."""
    queue = open_queue(max_items=2, memory_bytes=0)
    put(queue, b"a" * 1000)
    put(queue, b"b")
    queue.trim()
    path = segment_files(directory)[0]
    data = path.read_bytes()
    path.write_bytes(data.replace(b"aaaa", b"bbbb", 1))
    with queue.session() as session, pytest.raises(Exception, match="damaged"):
        session.dequeue()
    put(queue, b"c")
    path.write_bytes(data)
    assert drain(queue) == [b"b", b"c"]


# --- how many bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [0, 1, 100, 3000, 300_000])
def test_max_bytes(open_queue: QueueFactory, size_bytes: int) -> None:
    """The live bytes reach the limit and never exceed it, and they fall when items are consumed."""
    most = 20 * (size_bytes + BLOCK_HEADER_BYTES + LENGTH_BYTES)
    queue = open_queue(max_bytes=most)
    with queue.session() as session:
        for _ in range(2):
            for _ in range(20):
                session.enqueue(bytes(size_bytes))
                session.flush()
                assert queue.stats().live_bytes <= most
            session.enqueue(bytes(size_bytes))
            with pytest.raises(QueueFullError) as caught:
                session.flush()
            error = caught.value
            assert (error.limit, error.most, error.holds) == ("max_bytes", most, most)
            assert error.asked == BLOCK_HEADER_BYTES + LENGTH_BYTES + size_bytes
            assert queue.stats().fill == 1.0
            session.rollback()
            assert len(drain(queue)) == 20
            assert queue.stats().live_bytes == 0


def test_measure_is_what_blocks_take_at_most() -> None:
    """Blocks of any items, alone and in a group, take no more than ``measure_bytes``, and not much less."""
    draw = random.Random(7)
    with opened(SimulatedDisk().disk, sync=False, log_bytes=MIB) as store:
        for _ in range(40):
            group = []
            for _ in range(draw.choice([1, 1, 3])):
                sizes = draw.choice([[0], [20], range(50), [BLOCK_BYTES // 2, 1], [BLOCK_BYTES, 5]])
                items = [bytes(draw.choice(sizes)) for _ in range(draw.choice([1, 10, 30]))]
                group.append(transaction(*items))
            group.append(transaction(*[b""] * draw.choice([1, BLOCK_ITEMS + 1])))
            measured = sum(map(measure_bytes, group))
            before = store.state.live_bytes
            store.commit(group)
            assert store.state.live_bytes - before <= measured
            assert measured <= 2 * (store.state.live_bytes - before) + LENGTH_BYTES * 2 * BLOCK_ITEMS
            store.commit([take(store, 10**6)])


def test_bytes_taken_make_room_for_bytes_put() -> None:
    """At ``max_bytes``, a transaction can enqueue as many bytes as it consumes, over several segments and out of
    order."""
    with opened(SimulatedDisk().disk, segment_bytes=500, max_bytes=10_000, log_bytes=4096) as store:
        while True:
            one = transaction(b"x" * 150)
            store.commit([one])
            if one.error is not None:
                break
        held, mixed = take(store, 2), take(store, 20)
        mixed.add([b"y" * 150] * 20)
        store.commit([mixed])
        assert mixed.settled
        assert store.state.live_bytes <= 10_000
        while True:
            one = transaction(b"x" * 150)
            store.commit([one])
            if one.error is not None:
                break
        more = take(store, 1)
        more.add([b"z" * 500])
        store.commit([more])
        assert isinstance(more.error, QueueFullError)
        store.commit([held])
        more.error = None
        store.commit([more])
        assert more.settled


# --- groups -----------------------------------------------------------------------------------------------------------


def test_each_member_of_a_group_is_judged_alone() -> None:
    """The transactions of a group that find room are committed in order, and only the others are refused."""
    with opened(SimulatedDisk().disk, max_items=4, log_bytes=4096) as store:
        store.commit([transaction(b"a", b"b")])
        consumer = take(store, 1)
        group = [transaction(b"1", b"2", b"3"), transaction(b"c", b"d"), transaction(b"4"), consumer, transaction(b"e")]
        store.commit(group)
        assert [each.settled for each in group] == [False, True, False, True, True]
        assert [each.error is not None for each in group] == [True, False, True, False, False]
        assert content(store) == [b"b", b"c", b"d", b"e"]
        for each in group[::2][:2]:
            each.error = None
        store.commit([take(store, 4)])
        store.commit(group[::2][:2])
        assert content(store) == [b"1", b"2", b"3", b"4"]


def test_who_only_dequeues_is_never_refused() -> None:
    """A transaction that only dequeues is committed even if the queue is far over its limits and the rest of its group
    is refused."""
    machine = SimulatedDisk()
    with opened(machine.disk, log_bytes=4096) as store:
        store.commit([transaction(*[b"x" * 100] * 50)])
    with opened(machine.disk, log_bytes=4096, max_items=1, max_bytes=1) as store:
        first, second = take(store, 10), take(store, 10)
        group = [transaction(b"a"), first, transaction(b"b"), second]
        store.commit(group)
        assert first.settled and second.settled
        assert [isinstance(each.error, QueueFullError) for each in group] == [True, False, True, False]
        assert len(store.reader.ready) == 30


def test_marker_of_who_is_refused() -> None:
    """The marker of a refused transaction does not keep others of its group from setting that marker."""
    with opened(SimulatedDisk().disk, max_items=3, log_bytes=4096) as store:
        large, small = transaction(*[b"1"] * 4, marker=("m", 7)), transaction(b"a", marker=("m", 5))
        store.commit([large, small])
        assert isinstance(large.error, QueueFullError) and large.error.lasting
        assert small.settled and not small.skipped
        assert store.state.markers == {"m": 5}
        again, older = transaction(b"b", marker=("m", 7)), transaction(b"c", marker=("m", 5))
        store.commit([again, older])
        assert again.settled and not again.skipped and older.skipped
        assert content(store) == [b"a", b"b"]


def test_marker_of_who_finds_no_room_on_the_disk() -> None:
    """A transaction is not taken for done if the transaction that reached its marker, in its group, then found no room
    on the disk."""
    with opened(SimulatedDisk().disk, max_disk_bytes=40_000, log_bytes=4096, inline_bytes=0) as store:
        large, small = transaction(bytes(30_000), marker=("m", 7)), transaction(b"a", marker=("m", 5))
        store.commit([large, small])
        assert isinstance(large.error, QueueFullError) and large.error.limit == "max_disk_bytes"
        assert (small.settled, small.skipped, small.error) == (False, False, None)
        store.commit([small])
        assert (small.settled, small.skipped) == (True, False)
        assert store.state.markers == {"m": 5}


def refused_marker(queue: PersistentQueue, first: int, drains: bool) -> QueueFullError:
    """Enqueue one item with each of many markers, and drain the queue after each if it ``drains``; return the error of
    the first one that is refused."""
    timeout = SECONDS if drains and queue._open().blocks else 0.0
    with queue.session() as session:
        with pytest.raises(QueueFullError) as caught:
            for number in count(first):
                session.enqueue(b"x")
                session.flush(timeout=timeout, marker=(f"{number:0100}", 1))
                if drains:
                    drain(queue)
        session.rollback()
    return caught.value


@pytest.mark.parametrize("full", ["raise", "block"])
def test_markers_that_leave_no_room(open_queue: QueueFactory, full: str) -> None:
    """If markers have filled ``max_disk_bytes``, a dequeue may still help. If no item is left, none can: the error says
    so, names the markers, and comes at once, also from a queue that waits for room."""
    queue = open_queue(max_disk_bytes=400 * KIB, log_bytes=16 * KIB, sync=False, full=full, disk=IN_CACHE)
    error = refused_marker(queue, 0, drains=False)
    assert (error.limit, error.lasting) == ("max_disk_bytes", False)
    assert str(error).endswith("nothing was committed: dequeue, then flush again")
    markers = len(drain(queue))
    error = refused_marker(queue, markers, drains=True)
    assert error.lasting
    assert f"the queue's {len(queue._open()._store.state.markers):,} markers leave no room for items" in str(error)
    assert "no dequeue frees them: raise the limit, then flush again" in str(error)


def test_markers_that_leave_no_room_for_ever() -> None:
    """A transaction for which the markers leave no room in the shortest log is refused for ever, with items or not."""
    with opened(max_disk_bytes=400 * KIB, log_bytes=16 * KIB) as store:
        put_one = transaction(b"x")
        assert store.limits.refuse_for_ever(put_one) is None
        store.state.markers.update({f"{number:0100}": 1 for number in range(700)})
        refused = store.limits.refuse_for_ever(put_one)
        assert refused is not None and refused.lasting and "700 markers" in str(refused)
        store.state.markers.clear()
        large = store.limits.refuse_for_ever(transaction(bytes(400 * KIB)))
        assert large is not None and "never fits: flush less at once" in str(large)


def test_short_way_is_taken_where_there_is_room(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as there is room, groups of a queue with limits take the short way."""
    taken: list[bool] = []
    commit_short = Committer.commit_short

    def watched(self: Committer, *arguments: Any) -> bool:
        taken.append(commit_short(self, *arguments))
        return taken[-1]

    monkeypatch.setattr(Committer, "commit_short", watched)
    queue = open_queue(max_items=4, max_bytes=10_000)
    put(queue, b"makes the segment")
    put_each(queue, [b"a", b"b", b"c"])
    with pytest.raises(QueueFullError):
        put(queue, b"d")
    with queue.transaction() as session:
        session.dequeue()
    put(queue, b"d")
    assert taken == [False, True, True, True, False, True, True]
    with queue.transaction() as session:
        session.dequeue()
    with pytest.raises(QueueFullError):
        put(queue, bytes(10_001))
    assert taken[-1] is False


# --- spilled sessions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [{"max_items": 20}, {"max_bytes": 12_000}], ids=str)
def test_what_was_spilled_counts(open_queue: QueueFactory, limit: dict[str, int]) -> None:
    """Spilled items count for the limits like those in memory. After a refusal they are kept for the next flush."""
    queue = open_queue(**limit)
    put(queue, *[b"x" * 500] * 10)
    items = [b"%02d" % n * 250 for n in range(20)]
    with spilling(queue) as session:
        session.enqueue_many(items)
        transaction = session._transaction
        assert transaction is not None and transaction.pieces and transaction.items
        with pytest.raises(QueueFullError) as caught:
            session.flush()
        assert not caught.value.lasting
        assert len(drain(queue)) == 10
        session.flush()
    assert drain(queue) == items


def test_spilling_at_the_limit_of_the_disk(open_queue: QueueFactory, directory: Path) -> None:
    """A session that cannot spill raises ``QueueFullError`` at once. A rollback gives its spilled segments back as
    room."""
    queue = open_queue(max_disk_bytes=100_000, log_bytes=4096, segment_bytes=8 * KIB, full="block")
    for _ in range(5):
        with spilling(queue) as session:
            with pytest.raises(QueueFullError, match="max_disk_bytes"):
                for n in range(1000):
                    session.enqueue(b"%04d" % n * 250)
            assert n > 50
            assert files_bytes(directory) <= 100_000
            session.rollback()
    for _ in range(3):
        with spilling(queue) as session:
            session.enqueue_many([b"%04d" % n * 250 for n in range(50)])
            session.flush()
        assert drain(queue) == [b"%04d" % n * 250 for n in range(50)]


def test_what_was_spilled_is_no_room(open_queue: QueueFactory) -> None:
    """A flush that finds the disk full leaves the segments that another session has spilled to."""
    queue = open_queue(max_disk_bytes=100_000, log_bytes=4096, segment_bytes=8 * KIB)
    items = [b"%04d" % n * 250 for n in range(50)]
    with spilling(queue) as session:
        session.enqueue_many(items)
        with pytest.raises(QueueFullError, match="max_disk_bytes"):
            put(queue, b"x" * 60_000)
        session.flush()
    assert drain(queue) == items


# --- settings and statistics ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit_bytes", range(700 * KIB, 1600 * KIB, 30 * KIB))
@pytest.mark.parametrize("size_bytes", [28 * KIB, 46 * KIB, 60 * KIB])
def test_an_item_in_the_log_fits_beside_the_first_segment(
    open_queue: QueueFactory, limit_bytes: int, size_bytes: int
) -> None:
    """Below ``max_disk_bytes``, an item that is short enough for the log fits into an empty queue, whatever its first
    segment takes."""
    queue = open_queue(max_disk_bytes=limit_bytes, log_bytes=64 * KIB, disk=IN_CACHE)
    for _ in range(3):
        put(queue, bytes(size_bytes))
        assert drain(queue) == [bytes(size_bytes)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_items": 0}, "max_items must be at least 1, got 0"),
        ({"max_bytes": 0}, "max_bytes must be at least 1"),
        ({"max_disk_bytes": 5 * MIB - 1}, f"max_disk_bytes must be at least {5 * MIB}"),
        ({"max_disk_bytes": 20_000, "log_bytes": 4096}, "max_disk_bytes must be at least 20480"),
        ({"min_free_bytes": -1}, "min_free_bytes must be at least 0"),
        ({"full": "drop"}, "'drop'"),
    ],
)
def test_settings_that_make_no_sense(open_queue: QueueFactory, settings: dict[str, Any], said: str) -> None:
    """A limit that is too low, or an unknown ``full``, raises ``ValueError`` at the opening."""
    with pytest.raises(ValueError, match=said):
        open_queue(**settings)


def test_fill_is_that_of_the_nearest_limit(open_queue: QueueFactory) -> None:
    """``stats().fill`` is the used part of the limit that the queue is closest to."""
    queue = open_queue(max_items=100, max_bytes=1000, max_disk_bytes=50 * MIB)
    assert 0.16 < queue.stats().fill < 0.17  # the log, its spare, and the reserve for their growth
    put(queue, *[b"x"] * 20)
    assert queue.stats().fill == 0.2
    put(queue, bytes(500))
    assert 0.6 < queue.stats().fill < 0.7


# --- limits that the predecessors lacked ------------------------------------------------------------------------------


def test_no_journal_limit(open_queue: QueueFactory, directory: Path) -> None:
    """``max_disk_bytes`` bounds all files of a queue; the linearstore's journals had no bound."""
    queue = open_queue(max_disk_bytes=6 * MIB)
    with pytest.raises(QueueFullError, match="max_disk_bytes"):
        put_each(queue, [bytes(50_000)] * 1000)
    assert 30 < len(queue) < 120
    assert 3 * MIB < files_bytes(directory) <= 6 * MIB


def test_reject_and_producer_flow_control(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """The Java broker's two policies exist: ``full="raise"`` is ``REJECT``, and ``full="block"`` stops producers until
    consumers catch up."""
    rejecting, controlling = open_queue("rejecting", max_items=1), open_queue("controlling", max_items=1, full="block")
    for queue in (rejecting, controlling):
        put(queue, b"a")
    with pytest.raises(QueueFullError):
        put(rejecting, b"b")
    producer = threads.submit(put, controlling, b"b")
    waits(controlling)
    assert consume(controlling) == [b"a"]
    producer.result(SECONDS)
    assert consume(controlling) == [b"b"]


def test_maxsize_raises_an_error_of_our_own(open_queue: QueueFactory) -> None:
    """A queue at ``max_items`` raises an error of this package that says what to do, and keeps the transaction.
    litequeue's maximum was a trigger that raised another library's ``IntegrityError``."""
    queue = open_queue(max_items=1)
    with queue.session() as session:
        session.enqueue_many([b"a", b"b"])
        with pytest.raises(QueueFullError, match="flush again") as caught:
            session.flush()
        assert type(caught.value).__module__ == "persistentqueue.errors"
        session.rollback()
        session.enqueue(b"a")
        session.flush()
    assert drain(queue) == [b"a"]


@pytest.mark.parametrize("name", ["segment_bytes", "memory_bytes", "inline_bytes", "log_bytes", "pool_min_bytes"])
def test_item_4_a_size_that_no_file_has(tmp_path: Path, name: str) -> None:
    """A size above 2**63 - 1 is refused before any file is made, instead of writing until the disk is full."""
    settings: dict[str, Any] = {name: 10**400}
    with pytest.raises(ValueError, match=f"{name} must be at most"):
        PersistentQueue(tmp_path, "orders", **settings)
    assert not list(tmp_path.iterdir())

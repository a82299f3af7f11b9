"""Limits: what a full queue refuses, who waits for room and who is let by, and that no file outgrows its limit."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    DiskFullError,
    PersistentQueue,
    QueueFullError,
    Session,
    check,
)
from persistentqueue.block import BLOCK_BYTES, BLOCK_HEADER_BYTES, BLOCK_ITEMS, LENGTH_BYTES
from persistentqueue.commit import Committer
from persistentqueue.disk import CREATE, CREATE_NEW, DISK, DSYNC, READ, Disk
from persistentqueue.limits import LOGS_LEAST, measure_bytes
from persistentqueue.quota import OverLimitError, Quota
from persistentqueue.store import Store
from persistentqueue.transaction import Settings, Transaction

from .conftest import OpenQueue
from .crash.disk import SimulatedDisk
from .support import IN_CACHE, crash, drain, put, put_each, segment_files, tmpfs
from .test_group import Interruption, wait_for

SECONDS = 30.0  # a limit for what should take milliseconds
KIB, MIB = 1024, 1024 * 1024
_FREE = nullcontext()


def transaction(*items: bytes, marker: tuple[str, int] | None = None) -> Transaction:
    """What enqueues these items."""
    result = Transaction()
    result.items, result.payload_bytes, result.marker = list(items), sum(map(len, items)), marker
    return result


def take(store: Store, count: int) -> Transaction:
    """What dequeues so many items."""
    result = Transaction()
    result.runs = store.reader.take(count)[0]
    return result


def content(store: Store) -> list[bytes]:
    """The ready items."""
    return [item for batch in store.reader.browse() for item in batch]


@contextmanager
def opened(disk: Disk = IN_CACHE, directory: str = "/queues/q", **settings: Any) -> Iterator[Store]:
    """A store without threads."""
    store = Store.open(disk, directory, Settings(**settings), True, 0.0, _FREE, _FREE)
    try:
        yield store
    finally:
        store.close()


def files_bytes(directory: Path) -> int:
    """What all files of a queue take, but for the lock's."""
    return sum(path.stat().st_size for part in ("log", "data", "pool") for path in (directory / part).iterdir())


def waits(queue: PersistentQueue, count: int = 1) -> None:
    """Until so many flushes wait for room."""
    wait_for(lambda: queue.stats().waiting == count)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that are gone when the test ends."""
    with ThreadPoolExecutor(16) as threads:
        yield threads


# --- how many items --------------------------------------------------------------------------------------------------


def test_max_items(open_queue: OpenQueue) -> None:
    """A full queue refuses a flush, says why, keeps what it has and what the session has, and takes it when there is
    room."""
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


def test_items_on_hold_count(open_queue: OpenQueue) -> None:
    """What a session holds is in the queue until it is flushed; and again after a rollback."""
    queue = open_queue(max_items=2)
    put(queue, b"a", b"b")
    with queue.session() as holder:
        assert holder.dequeue_many(2) == [b"a", b"b"]
        with pytest.raises(QueueFullError):
            put(queue, b"c")
    with pytest.raises(QueueFullError):
        put(queue, b"c")
    assert drain(queue) == [b"a", b"b"]
    put(queue, b"c")


def test_what_is_taken_makes_room_for_what_is_put(open_queue: OpenQueue) -> None:
    """At the limit as many can be enqueued as the same transaction dequeues, and not one more."""
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
    assert drain(queue) == [b"c", b"A", b"B"]


def test_lower_limit_than_before(open_queue: OpenQueue, directory: Path) -> None:
    """A queue that holds more than it may now opens, gives what it has, and lets nobody in who makes it fuller."""
    queue = open_queue(segment_bytes=KIB)
    put_each(queue, [b"%03d" % n * 100 for n in range(200)])
    queue.close()
    queue = open_queue(max_items=10, max_bytes=2 * KIB, max_disk_bytes=5 * MIB, segment_bytes=KIB)
    assert queue.stats().fill == 20.0 or queue.stats().fill > 20.0
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


def test_damaged_items_do_not_count(open_queue: OpenQueue, directory: Path) -> None:
    """Items that cannot be read take nobody's place, since nobody could take them away."""
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


# --- how many bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [0, 1, 100, 3000, 300_000])
def test_max_bytes(open_queue: OpenQueue, size_bytes: int) -> None:
    """The live bytes never exceed the limit, come near it, and fall when items are consumed."""
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
    """Whatever the items are, alone and in a group, they take no more than they were measured at, and not much less."""
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
    """At the limit of bytes a transaction may put what it takes, over several segments, out of order."""
    with opened(SimulatedDisk().disk, segment_bytes=500, max_bytes=10_000, log_bytes=4096) as store:
        while True:
            one = transaction(b"x" * 150)
            store.commit([one])
            if one.error is not None:
                break
        held, mixed = take(store, 2), take(store, 20)
        mixed.items, mixed.payload_bytes = [b"y" * 150] * 20, 3000
        store.commit([mixed])
        assert mixed.settled
        assert store.state.live_bytes <= 10_000
        while True:
            one = transaction(b"x" * 150)
            store.commit([one])
            if one.error is not None:
                break
        more = take(store, 1)
        more.items, more.payload_bytes = [b"z" * 500], 500
        store.commit([more])
        assert isinstance(more.error, QueueFullError)
        store.commit([held])
        more.error = None
        store.commit([more])
        assert more.settled


# --- groups ----------------------------------------------------------------------------------------------------------


def test_each_member_of_a_group_is_judged_alone() -> None:
    """Of a group those who find room are committed, in order; who does not, and only he, is refused."""
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
    """Also when the queue is far over its limits, in a group of whom all others are refused."""
    machine = SimulatedDisk()
    with opened(machine.disk, log_bytes=4096) as store:
        store.commit([transaction(*[b"x" * 100] * 50)])
    with opened(machine.disk, log_bytes=4096, max_items=1, max_bytes=1) as store:
        first, second = take(store, 10), take(store, 10)
        group = [transaction(b"a"), first, transaction(b"b"), second]
        store.commit(group)
        assert first.settled and second.settled
        assert [isinstance(each.error, QueueFullError) for each in group] == [True, False, True, False]
        assert len(store.ready) == 30


def test_marker_of_who_is_refused() -> None:
    """A marker that a refused transaction would have set keeps nobody of its group from setting it."""
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
    """Who was passed over for one of its group, which then had no room on the disk, is not taken for done."""
    with opened(SimulatedDisk().disk, max_disk_bytes=40_000, log_bytes=4096, inline_bytes=0) as store:
        large, small = transaction(bytes(30_000), marker=("m", 7)), transaction(b"a", marker=("m", 5))
        store.commit([large, small])
        assert isinstance(large.error, QueueFullError) and large.error.limit == "max_disk_bytes"
        assert (small.settled, small.skipped, small.error) == (False, False, None)
        store.commit([small])
        assert (small.settled, small.skipped) == (True, False)
        assert store.state.markers == {"m": 5}


def test_short_way_is_taken_where_there_is_room(open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits cost the short way nothing but a look, as long as there is room."""
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


# --- sessions that spilled -------------------------------------------------------------------------------------------


def spilling(queue: PersistentQueue) -> Session:
    """A session that keeps little in memory."""
    session = queue.session()
    session._spill_bytes = 2000
    return session


@pytest.mark.parametrize("limit", [{"max_items": 20}, {"max_bytes": 12_000}], ids=str)
def test_what_was_spilled_counts(open_queue: OpenQueue, limit: dict[str, int]) -> None:
    """Items that a session wrote ahead count like those in memory; refused, they are there for the next flush."""
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


def test_spilling_at_the_limit_of_the_disk(open_queue: OpenQueue, directory: Path) -> None:
    """A session that cannot write ahead hears so at once; what it wrote is room again as soon as it gives up."""
    queue = open_queue(max_disk_bytes=100_000, log_bytes=4096, segment_bytes=8 * KIB, full="block")
    for _ in range(5):
        with spilling(queue) as session:
            with pytest.raises(QueueFullError, match="max_disk_bytes"):
                for n in range(1000):
                    session.enqueue(b"%04d" % n * 250)
            assert n > 50
            assert files_bytes(directory) <= 100_000
    for _ in range(3):
        with spilling(queue) as session:
            session.enqueue_many([b"%04d" % n * 250 for n in range(50)])
            session.flush()
        assert drain(queue) == [b"%04d" % n * 250 for n in range(50)]


# --- how much of the disk --------------------------------------------------------------------------------------------


class Watch:
    """Looks at what the files take at each call of the disk."""

    def __init__(self, most_bytes: int) -> None:
        self.machine = SimulatedDisk()
        self.machine.on_tick = self._look
        self._most_bytes = most_bytes
        self.peak_bytes = 0

    def _look(self) -> None:
        found = sum(
            len(self.machine.inodes[number].cache)
            for path, number in self.machine.names.items()
            if number > 0 and not path.endswith("/lock")
        )
        self.peak_bytes = max(self.peak_bytes, found)
        assert found <= self._most_bytes


@pytest.mark.parametrize("log_bytes", [4096, 20_000])
@pytest.mark.parametrize("segment_bytes", [700, 30_000, 64 * MIB])
@pytest.mark.parametrize("size_bytes", [1, 100, 2000, 20_000])
def test_files_never_exceed_max_disk_bytes(log_bytes: int, segment_bytes: int, size_bytes: int) -> None:
    """Whatever is enqueued, held, consumed in any order, spilled and rolled back, at no call do the files take more;
    consuming is never refused, and a queue that was drained takes as much again."""
    most = LOGS_LEAST * log_bytes + 150_000
    watch, draw = Watch(most), random.Random(log_bytes + segment_bytes + size_bytes)
    settings: dict[str, Any] = {
        "max_disk_bytes": most,
        "log_bytes": log_bytes,
        "segment_bytes": segment_bytes,
        "inline_bytes": 3000,
    }
    counts = []
    with opened(watch.machine.disk, sync=draw.random() < 0.5, **settings) as store:
        for _ in range(3):
            expected: list[bytes] = []
            held: list[tuple[Transaction, list[bytes]]] = []
            refused = count = 0
            while refused < 5 and count < 3000:
                items = [(b"%d " % count).ljust(size_bytes, b".") for _ in range(draw.choice([1, 1, 5]))]
                one = transaction(*items)
                if draw.random() < 0.1:
                    try:
                        store.spill(one)
                    except QueueFullError:
                        store.discard(one)
                        continue
                if draw.random() < 0.05:
                    store.discard(one)
                    continue
                store.commit([one])
                if one.settled:
                    expected += items
                    count += len(items)
                else:
                    assert isinstance(one.error, QueueFullError) and one.error.limit == "max_disk_bytes", one.error
                    assert one.error.holds <= most + 2 * store.log_bytes()[1]
                    store.discard(one)
                    refused += 1
                if draw.random() < 0.05 and len(held) < 20:
                    run = take(store, draw.choice([1, 2]))
                    held.append((run, content(store)))
            counts.append(count)
            assert watch.peak_bytes > most // 2
            draw.shuffle(held)
            for run, _ in held:
                store.commit([run])
                assert run.settled, run.error
            while len(store.ready):
                run = take(store, draw.choice([1, 3]))
                store.commit([run])
                assert run.settled, run.error
    assert min(counts) >= 0.5 * counts[0] and counts[0] * size_bytes >= (30_000 if size_bytes > 1 else 300)


def test_quota_counts_what_is_there(open_queue: OpenQueue, directory: Path) -> None:
    """What the queue believes to take of the disk is what its files take, whatever it did."""
    settings = {"max_disk_bytes": 400_000, "log_bytes": 4096, "segment_bytes": 10_000}
    queue = open_queue(**settings)
    group = queue._group
    assert group is not None
    draw = random.Random(3)
    for n in range(400):
        with queue.session() as session:
            session.enqueue(b"%d" % n * draw.choice([1, 100, 5000]))
            session.dequeue_many(draw.choice([0, 1, 3]))
            try:
                session.flush()
            except QueueFullError:
                drain(queue)
        if n % 50 == 0:
            (crash if n % 100 else PersistentQueue.close)(queue)
            queue = open_queue(**settings)
            group = queue._group
            assert group is not None
        queue.trim()  # and what was retired is deleted
        assert group.store._quota.used_bytes == queue.stats().disk_bytes == files_bytes(directory)


def test_transaction_larger_than_the_disk(open_queue: OpenQueue, directory: Path) -> None:
    """What can never fit is refused at once, also by a queue that blocks; what it tried to write is room again."""
    queue = open_queue(max_disk_bytes=200_000, log_bytes=4096, full="block")
    for _ in range(3):
        with pytest.raises(QueueFullError, match="never fits: flush less at once") as caught:
            put(queue, *[bytes(10_000)] * 30)
        assert caught.value.lasting and caught.value.asked > 300_000
        put(queue, bytes(100_000))
        assert files_bytes(directory) <= 200_000
        drain(queue)


def test_smaller_segment_at_the_limit(open_queue: OpenQueue, directory: Path) -> None:
    """Where a whole segment would exceed the limit, a smaller one is made, as long as it holds the transaction."""
    queue = open_queue(max_disk_bytes=5 * MIB + 500 * KIB)
    put(queue, bytes(900 * KIB))
    put(queue, bytes(400 * KIB))
    sizes = [path.stat().st_size for path in segment_files(directory)]
    assert len(sizes) == 2 and 400 * KIB <= sizes[1] < MIB


def test_drained_segments_go_before_a_smaller_one_is_made(open_queue: OpenQueue, directory: Path) -> None:
    """At the limit what is drained is given back first, so that segments keep their size."""
    queue = open_queue(max_disk_bytes=8 * MIB, segment_bytes=MIB, memory_bytes=0)
    for n in range(40):
        put(queue, bytes(900 * KIB))
        if n >= 3:
            with queue.transaction() as session:
                session.dequeue()
        assert min(path.stat().st_size for path in segment_files(directory)) >= 900 * KIB


def test_log_does_not_take_the_room_of_the_items(open_queue: OpenQueue) -> None:
    """However many commits there are, the log of a limited queue stays a small part of it."""
    queue = open_queue(max_disk_bytes=128 * KIB, log_bytes=4096, disk=IN_CACHE)
    for _ in range(2000):
        put(queue, b"x" * 50)
        drain(queue)
    assert queue.stats().log_capacity_bytes <= 8 * KIB


def test_log_grows_for_who_dequeues_out_of_order() -> None:
    """What is kept for the log lets it grow for a state that out-of-order dequeues make large, within the limit."""
    most = 400_000
    watch = Watch(most)
    with opened(watch.machine.disk, max_disk_bytes=most, log_bytes=4096, sync=False) as store:
        store.commit([transaction(*[b"%06d" % n for n in range(1000)])])
        while True:
            one = transaction(bytes(2000))
            store.commit([one])
            if one.error is not None:
                break
        before = store.log_bytes()[1]
        runs = [take(store, 1) for _ in range(1000)]
        for run in runs[1::2]:
            store.commit([run])
            assert run.settled, run.error
        assert store.log_bytes()[1] > before
        for run in runs[::2]:
            store.commit([run])
            assert run.settled, run.error


def test_log_that_may_grow_no_more() -> None:
    """Beyond what was kept for it the log does not grow: who then would need more of it is told which limit that is."""
    most = LOGS_LEAST * 4096 + 60_000
    watch = Watch(most)
    with opened(watch.machine.disk, max_disk_bytes=most, log_bytes=4096, sync=False) as store:
        store.commit([transaction(*[b"%d" % n for n in range(6000)])])
        while True:
            one = transaction(bytes(2000))
            store.commit([one])
            if one.error is not None:
                break
        runs = [take(store, 1) for _ in range(6000)]
        refused = 0
        for run in runs[1::2]:
            store.commit([run])
            if run.error is not None:
                assert isinstance(run.error, QueueFullError) and run.error.limit == "max_disk_bytes"
                refused += 1
                store.discard(run)
        assert 0 < refused < 3000
        left = [item for run in (runs[::2], [run for run in runs[1::2] if not run.settled]) for item in run]
        assert len(left) == 3000 + refused
        with pytest.raises(DiskFullError):
            store.trim(extra_bytes=100_000)
        store.abandon()
    watch._most_bytes = 2 * most
    with opened(watch.machine.disk, max_disk_bytes=2 * most, log_bytes=4096, sync=False) as store:
        for _ in left:
            one = take(store, 1)
            store.commit([one])
            assert one.settled, one.error


def test_rolled_back_blocks_are_given_back_at_the_limit() -> None:
    """A disk full of what sessions wrote ahead and gave up is not full."""
    machine = SimulatedDisk()
    with opened(machine.disk, max_disk_bytes=100_000, log_bytes=4096, segment_bytes=5000) as store:
        kept, dropped = transaction(bytes(4000)), []
        store.spill(kept)
        while True:
            dropped.append(transaction(bytes(4000)))
            try:
                store.spill(dropped[-1])
            except QueueFullError:
                break
        for each in dropped:
            store.discard(each)
        large = transaction(*[b"x" * 4000] * 15)
        store.commit([large])
        assert large.settled
        store.commit([kept])
        assert kept.settled
        assert content(store) == [b"x" * 4000] * 15 + [bytes(4000)]


def test_unlogged_segment_that_cannot_be_deleted() -> None:
    """What cannot be deleted is left for the next opening to sweep."""
    machine = SimulatedDisk()

    def unlink(path: str) -> None:
        if len(machine.inodes[machine.names[path]].cache) > 4000:
            raise OSError(errno.EIO, "no", path)
        machine.unlink(path)

    with opened(
        replace(machine.disk, unlink=unlink), max_disk_bytes=60_000, log_bytes=4096, segment_bytes=5000
    ) as store:
        for _ in range(20):
            one = transaction(bytes(4000))
            try:
                store.spill(one)
            except QueueFullError:
                break
            store.discard(one)
        else:
            pytest.fail("it never was full")
    with opened(machine.disk) as store:
        assert store.recovery.swept


def test_who_is_written_alone_keeps_what_others_wrote() -> None:
    """When a group does not fit and each is tried alone, what one wrote to a drained segment is not given back for the
    next."""
    machine = SimulatedDisk()
    with opened(machine.disk, log_bytes=4096, segment_bytes=1000, max_disk_bytes=40_000, inline_bytes=0) as store:
        store.commit([transaction(b"a" * 300)])
        store.commit([take(store, 1)])
        group = [transaction(b"b" * 300), transaction(bytes(30_000)), transaction(b"c" * 300)]
        store.commit(group)
        assert [each.settled for each in group] == [True, False, True]
        store.give_back()
        store.abandon()
        store._lock.release()
    with opened(machine.disk, log_bytes=4096) as store:
        assert content(store) == [b"b" * 300, b"c" * 300]


def test_trim_in_the_middle_of_a_commit_keeps_what_the_group_wrote() -> None:
    """A drained segment that a large group began in, before it rolled on, is not retired by the trim that makes room in
    the log for its frame."""
    for fill in range(80):
        machine = SimulatedDisk()
        with opened(machine.disk, segment_bytes=MIB, inline_bytes=0, log_bytes=4096) as store:
            store.commit([transaction(b"a" * 100)])
            for n in range(fill):
                store.commit([transaction(marker=("m", n))])
            store.commit([take(store, 1)])
            store.commit([transaction(*[b"x" * 100_000] * 15)])
            store.give_back()
            store.pages.clear()
            assert content(store) == [b"x" * 100_000] * 15


# --- the low-disk guard ----------------------------------------------------------------------------------------------


class Shared:
    """A disk that others fill and empty."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.disk = replace(DISK, free_bytes=lambda path: self.free_bytes)


def test_min_free_bytes(open_queue: OpenQueue, directory: Path) -> None:
    """Below the guard no file grows for enqueues; dequeueing and trimming go on; above it all is as before."""
    shared = Shared(MIB)
    queue = open_queue(disk=shared.disk, min_free_bytes=100 * KIB, log_bytes=4096, segment_bytes=10_000)
    items = [b"%03d" % n * 500 for n in range(100)]
    put_each(queue, items[:50])
    shared.free_bytes = 100 * KIB + 500
    size = files_bytes(directory)
    with queue.session() as session:
        session.enqueue_many(items[50:])
        with pytest.raises(QueueFullError, match=r"min_free_bytes=102400 .* file system has 102900 free") as caught:
            session.flush()
        error = caught.value
        assert (error.limit, error.most, error.holds, error.lasting) == ("min_free_bytes", 100 * KIB, 102_900, True)
        assert error.asked > 50 * 1500
        assert files_bytes(directory) <= size + 500
        queue.trim()
        for n in range(50):
            with queue.transaction() as consumer:
                assert consumer.dequeue() == items[n]
        shared.free_bytes = MIB
        session.flush()
    assert drain(queue) == items[50:]


def test_nobody_waits_for_the_file_system(open_queue: OpenQueue) -> None:
    """Who would have to make room is not known to the queue, so a flush is refused at once, also with "block"."""
    shared = Shared(MIB)
    queue = open_queue(disk=shared.disk, min_free_bytes=2 * MIB, full="block")
    with pytest.raises(QueueFullError, match="free space there"):
        put(queue, b"x")
    assert queue.stats().fill == 0.0
    shared.free_bytes = 4 * MIB
    put(queue, b"x")


def test_log_grows_below_the_guard_for_dequeues() -> None:
    """The guard does not keep the log from growing for a state that dequeues make large."""
    machine = SimulatedDisk()
    with opened(machine.disk, min_free_bytes=1000, log_bytes=4096, sync=False) as store:
        store.commit([transaction(*[b"%d" % n for n in range(2000)])])
        machine.free_bytes = 0
        runs = [take(store, 1) for _ in range(2000)]
        for run in runs[1::2]:
            store.commit([run])
            assert run.settled, run.error
        one = transaction(*[b"x" * 100] * 3000)
        store.commit([one])
        assert isinstance(one.error, QueueFullError) and one.error.limit == "min_free_bytes"


# --- waiting ---------------------------------------------------------------------------------------------------------


def flush(queue: PersistentQueue, *items: bytes, timeout: float | None = None) -> None:
    """Enqueue and flush."""
    with queue.session() as session:
        session.enqueue_many(items)
        session.flush(timeout=timeout)


def consume(queue: PersistentQueue, count: int = 1) -> list[bytes]:
    """Dequeue and flush."""
    with queue.transaction() as session:
        return session.dequeue_many(count)


def test_flush_waits_for_room(open_queue: OpenQueue, pool: ThreadPoolExecutor) -> None:
    """A flush that finds no room ends as soon as a dequeue was committed, and not before."""
    queue = open_queue(max_items=2, full="block")
    put(queue, b"a", b"b")
    waiting = pool.submit(flush, queue, b"c")
    waits(queue)
    with queue.session() as session:
        assert session.dequeue() == b"a"
        session.rollback()
        assert session.dequeue() == b"a"
        assert not waiting.done() and queue.stats().waiting == 1
        session.flush()
    waiting.result(SECONDS)
    assert drain(queue) == [b"b", b"c"]
    assert queue.stats().refused == 0


@pytest.mark.parametrize("timeout", [0, 0.0, 0.01])
def test_timeout(open_queue: OpenQueue, timeout: float) -> None:
    """Who waited long enough, or does not wait at all, is refused, and can flush the same session later."""
    queue = open_queue(max_items=1, full="block")
    put(queue, b"a")
    with queue.session() as session:
        session.enqueue(b"b")
        for _ in range(2):
            with pytest.raises(QueueFullError) as caught:
                session.flush(timeout=timeout)
            assert (caught.value.holds, caught.value.asked) == (1, 1)
        assert queue.stats().waiting == 0 and queue.stats().refused == 2
        assert consume(queue) == [b"a"]
        session.flush(timeout=timeout)
    assert drain(queue) == [b"b"]


def test_timeouts_that_make_no_sense(open_queue: OpenQueue) -> None:
    """A time below 0 is refused, and so is any time to wait in a queue that never does."""
    blocking, raising = open_queue(max_items=1, full="block"), open_queue("other", max_items=1)
    with blocking.session() as session, pytest.raises(ValueError, match="at least 0"):
        session.flush(timeout=-1)
    with raising.session() as session:
        with pytest.raises(ValueError, match='needs a queue with full="block"'):
            session.flush(timeout=1.5)
        session.enqueue(b"x")
        session.flush(timeout=0)
    assert drain(raising) == [b"x"]


def test_first_come_first_served(open_queue: OpenQueue, pool: ThreadPoolExecutor) -> None:
    """Writers get room in the order in which they came; a small one does not overtake a large one that waits."""
    queue = open_queue(max_items=4, full="block")
    put(queue, b"a", b"b", b"c", b"d")
    waiting: list[Future[None]] = []
    for n, count in enumerate([1, 4, 1, 2, 1]):
        waiting.append(pool.submit(flush, queue, *[b"%d" % n] * count))
        waits(queue, n + 1)
    taken: list[bytes] = []
    while len(taken) < 13:
        with queue.session() as session:
            item = session.dequeue(timeout=SECONDS)
            assert item is not None
            taken.append(item)
            session.flush()
    for each in waiting:
        each.result(SECONDS)
    assert b"".join(taken) == b"abcd" + b"0" + b"1111" + b"2" + b"33" + b"4"


def test_who_does_not_wait_overtakes_nobody(open_queue: OpenQueue, pool: ThreadPoolExecutor) -> None:
    """While a large one waits, a small one for which there would be room is refused when its time is up."""
    queue = open_queue(max_items=4, full="block")
    put(queue, b"a", b"b", b"c")
    large = pool.submit(flush, queue, b"1", b"2", b"3")
    waits(queue)
    for timeout in (0, 0.01):
        with pytest.raises(QueueFullError) as caught:
            flush(queue, b"x", timeout=timeout)
        assert (caught.value.limit, caught.value.holds, caught.value.asked) == ("max_items", 3, 1)
    with pytest.raises(QueueFullError, match="never fits"):
        flush(queue, *[b"x"] * 5)
    consume(queue, 2)
    large.result(SECONDS)
    assert drain(queue) == [b"c", b"1", b"2", b"3"]


def test_who_gives_up_lets_the_next_one_try(open_queue: OpenQueue, pool: ThreadPoolExecutor) -> None:
    """When a large one ends waiting, a small one behind it, for which there is room, goes on at once."""
    queue = open_queue(max_items=4, full="block")
    put(queue, b"a", b"b", b"c")
    large = pool.submit(flush, queue, b"1", b"2", timeout=0.5)
    waits(queue)
    flush(queue, b"x", timeout=SECONDS)
    with pytest.raises(QueueFullError):
        large.result(SECONDS)
    assert drain(queue) == [b"a", b"b", b"c", b"x"]


def test_queue_full_blocks_dequeues(open_queue: OpenQueue, pool: ThreadPoolExecutor) -> None:
    """The legacy store's full journal had no room for a dequeue. Here consumers are let by, however many wait, and
    those who answer what they take as well."""
    queue = open_queue(max_items=2, full="block")
    put(queue, b"a", b"b")
    waiting = [pool.submit(flush, queue, b"%d" % n) for n in range(8)]
    waits(queue, 8)
    with queue.session() as worker:
        assert worker.dequeue() == b"a"
        worker.enqueue(b"A")
        worker.flush(timeout=0)
    assert queue.stats().waiting == 8
    seen: list[bytes] = []
    while len(seen) < 10:
        seen += consume(queue)
    for each in waiting:
        each.result(SECONDS)
    assert seen[:2] == [b"b", b"A"] and sorted(seen[2:]) == [b"%d" % n for n in range(8)]


def test_session_that_waits_for_itself(open_queue: OpenQueue, pool: ThreadPoolExecutor) -> None:
    """One that enqueues more than it dequeued waits for others, up to its timeout, and stops nobody."""
    queue = open_queue(max_items=2, full="block")
    put(queue, b"a", b"b")
    with queue.session() as session:
        assert session.dequeue() == b"a"
        session.enqueue_many([b"c", b"d"])
        with pytest.raises(QueueFullError):
            session.flush(timeout=0.01)

        def wait() -> None:
            session.flush()

        waiting = pool.submit(wait)
        waits(queue)
        assert consume(queue) == [b"b"]
        waiting.result(SECONDS)
    assert drain(queue) == [b"c", b"d"]


def test_marker_reached_meanwhile(open_queue: OpenQueue, pool: ThreadPoolExecutor) -> None:
    """Who waits for room, and whose marker somebody else reaches, is told so when it is his turn."""
    queue = open_queue(max_items=1, full="block")
    put(queue, b"a")

    def work(item: bytes) -> bool:
        with queue.session() as session:
            session.enqueue(item)
            return session.flush(marker=("m", 1))

    first = pool.submit(work, b"first")
    waits(queue)
    second = pool.submit(work, b"second")
    waits(queue, 2)
    assert consume(queue) == [b"a"]
    assert first.result(SECONDS) is True
    assert second.result(SECONDS) is False
    assert drain(queue) == [b"first"]


def test_closing_wakes_who_waits(open_queue: OpenQueue, pool: ThreadPoolExecutor) -> None:
    """All who wait for room hear that the queue was closed; nothing of theirs is in it."""
    queue = open_queue(max_items=1, full="block")
    put(queue, b"a")
    waiting = [pool.submit(flush, queue, b"x") for _ in range(5)]
    waits(queue, 5)
    queue.close()
    for each in waiting:
        with pytest.raises(ClosedError):
            each.result(SECONDS)
    assert drain(open_queue()) == [b"a"]


@pytest.mark.parametrize("how", ["commit", "trim"])
def test_breaking_wakes_who_waits(open_queue: OpenQueue, pool: ThreadPoolExecutor, how: str) -> None:
    """All who wait for room hear that the queue is broken."""
    failing = [False]

    def fail(call: Callable[..., Any]) -> Callable[..., Any]:
        def door(*arguments: Any) -> Any:
            if failing[0] and (call is DISK.fdatasync or arguments[-1] == DSYNC):
                raise OSError(errno.EIO, "Input/output error")
            return call(*arguments)

        return door

    disk = replace(DISK, fdatasync=fail(DISK.fdatasync), pwritev=fail(DISK.pwritev))
    queue = open_queue(max_items=1, full="block", disk=disk)
    put(queue, b"a")
    waiting = [pool.submit(flush, queue, b"x") for _ in range(3)]
    waits(queue, 3)
    failing[0] = True
    with pytest.raises(BrokenQueueError):
        queue.trim() if how == "trim" else consume(queue)
    for each in waiting:
        with pytest.raises(BrokenQueueError):
            each.result(SECONDS)


def test_interrupted_while_it_waits(
    open_queue: OpenQueue, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is interrupted while he waits leaves the line, keeps his session, and lets the next one try."""
    queue = open_queue(max_items=2, full="block")
    put(queue, b"a")
    group = queue._group
    assert group is not None
    behind: list[Future[None]] = []
    wait, this_thread = threading.Condition.wait, threading.get_ident()

    def interrupted(condition: threading.Condition, timeout: float | None = None) -> bool:
        if condition not in group._seats or threading.get_ident() != this_thread:
            return wait(condition, timeout)
        condition.release()
        try:
            behind.append(pool.submit(flush, queue, b"b"))
            waits(queue, 2)
        finally:
            condition.acquire()
        raise Interruption

    with queue.session() as session:
        session.enqueue_many([b"c", b"d"])
        with monkeypatch.context() as patch, pytest.raises(Interruption):
            patch.setattr(threading.Condition, "wait", interrupted)
            session.flush()
        behind[0].result(SECONDS)
        assert drain(queue) == [b"a", b"b"]
        session.flush()
    assert drain(queue) == [b"c", b"d"]


@pytest.mark.parametrize("limit", [{"max_items": 7}, {"max_bytes": 1000}, {"max_disk_bytes": 60_000}], ids=str)
def test_producers_and_consumers_at_the_limit(open_queue: OpenQueue, directory: Path, limit: dict[str, int]) -> None:
    """Many producers that wait and a few consumers: all comes out once, each producer's in order, the limit holds."""
    queue = open_queue(full="block", log_bytes=4096, segment_bytes=4000, disk=IN_CACHE, **limit)
    count = 60
    produced, seen = [], list[bytes]()

    def produce(number: int) -> None:
        with queue.session() as session:
            for n in range(count):
                session.enqueue((b"%d %d " % (number, n)).ljust(3000 if "max_disk_bytes" in limit else 10, b"."))
                if n % 3:
                    session.flush(timeout=SECONDS)

    def consume_all() -> None:
        with queue.session() as session:
            while item := session.dequeue(timeout=SECONDS):
                if item.startswith(b"stop"):
                    session.flush()
                    return
                if len(seen) % 5 == 2:
                    session.rollback()
                    item = session.dequeue(timeout=SECONDS)
                    assert item is not None and not item.startswith(b"stop")
                stats = queue.stats()
                assert stats.ready + stats.held <= limit.get("max_items", 10**9)
                assert stats.live_bytes <= limit.get("max_bytes", 10**9)
                assert stats.disk_bytes <= limit.get("max_disk_bytes", 10**9)
                session.flush()
                seen.append(item)

    with ThreadPoolExecutor(8) as threads:
        producers = [threads.submit(produce, number) for number in range(4)]
        consumer = threads.submit(consume_all)
        for each in producers:
            each.result(4 * SECONDS)
        flush(queue, b"stop", timeout=SECONDS)
        consumer.result(4 * SECONDS)
    for number in range(4):
        own = [item for item in seen if item.startswith(b"%d " % number)]
        produced += own
        assert [int(item.split()[1]) for item in own] == list(range(count))
    assert len(produced) == len(seen) == 4 * count


@pytest.mark.parametrize("how", ["dequeues", "rollback", "trim"])
def test_waiting_for_the_disk(open_queue: OpenQueue, pool: ThreadPoolExecutor, how: str) -> None:
    """Who waits for room on the disk gets it when dequeues drained a segment, when somebody gave up what he had written
    ahead, and when a trim gave a segment back."""
    queue = open_queue(max_disk_bytes=100_000, log_bytes=4096, segment_bytes=10_000, full="block")
    items = [b"%d" % n * 4000 for n in range(10)]
    blocked = b"x" * (30_000 if how == "trim" else 20_000)
    if how == "rollback":
        session = spilling(queue)
        with pytest.raises(QueueFullError):
            while True:
                session.enqueue(bytes(4000))
    else:
        with pytest.raises(QueueFullError):
            while True:
                flush(queue, items[0], timeout=0)
    waiting = pool.submit(flush, queue, blocked)
    waits(queue)
    if how == "rollback":
        session.close()
    elif how == "dequeues":
        while not waiting.done():
            consume(queue)
    else:
        with queue.session() as holder:
            group = queue._group
            assert group is not None
            assert holder.dequeue_many(100) and holder._transaction is not None
            drained, holder._transaction = holder._transaction, Transaction()
            with group._writing:  # past the group, so that nobody is told
                group.store.commit([drained])
            assert not waiting.done()
            queue.trim()
    waiting.result(SECONDS)
    assert drain(queue)[-1] == blocked


def test_given_back_behind_the_flush_wakes_who_waits(
    open_queue: OpenQueue, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who found no room because segments were just being deleted by another thread tries again when they are."""
    began, allowed = threading.Event(), threading.Event()

    def unlink(path: str) -> None:
        if path.endswith("1.seg"):
            began.set()
            assert allowed.wait(SECONDS)
        DISK.unlink(path)

    disk = replace(DISK, unlink=unlink)
    queue = open_queue(max_disk_bytes=5 * MIB, log_bytes=4096, segment_bytes=3 * MIB, full="block", disk=disk)
    put(queue, bytes(3 * MIB))
    put(queue, b"small")

    def delete() -> None:
        consume(queue)
        queue.trim()

    deleting = pool.submit(delete)
    assert began.wait(SECONDS)
    waiting = pool.submit(flush, queue, bytes(4 * MIB))
    waits(queue)
    allowed.set()
    deleting.result(SECONDS)
    waiting.result(SECONDS)
    assert [len(item) for item in drain(queue)] == [5, 4 * MIB]


# --- settings and statistics -----------------------------------------------------------------------------------------


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
def test_settings_that_make_no_sense(open_queue: OpenQueue, settings: dict[str, Any], said: str) -> None:
    """A limit that nothing could be done with is refused before anything is made."""
    with pytest.raises(ValueError, match=said):
        open_queue(**settings)


def test_fill_is_that_of_the_nearest_limit(open_queue: OpenQueue) -> None:
    """``stats().fill`` tells how near the queue is to what will refuse it."""
    queue = open_queue(max_items=100, max_bytes=1000, max_disk_bytes=50 * MIB)
    assert 0.16 < queue.stats().fill < 0.17  # the log, its spare, and what is kept for them to grow
    put(queue, *[b"x"] * 20)
    assert queue.stats().fill == 0.2
    put(queue, bytes(500))
    assert 0.6 < queue.stats().fill < 0.7


# --- the door --------------------------------------------------------------------------------------------------------


def test_quota_follows_files(tmp_path: Path) -> None:
    """Files count as long as they are, whatever they are called, until they are deleted; those elsewhere do not."""
    (tmp_path / "old").write_bytes(bytes(10))
    (tmp_path / "sub").mkdir()
    quota = Quota(DISK, 100, 0)
    quota.learn([str(tmp_path)])
    disk, path, other = quota.disk, str(tmp_path / "a"), str(tmp_path / "b")
    base = quota.used_bytes
    quota._most_bytes = 100 + base - 10
    fd = disk.open(path, CREATE_NEW, 0o600)
    assert disk.pwritev(fd, [bytes(50), bytes(10)], 0, 0) == 60
    assert disk.pwritev(fd, [bytes(10)], 5, 0) == 10
    disk.rename(path, other)
    disk.fallocate(fd, 0, 80)
    disk.fallocate(fd, 0, 10)
    assert quota.used_bytes == base + 80
    for call in (
        lambda: disk.fallocate(fd, 80, 11),
        lambda: disk.ftruncate(fd, 91),
        lambda: disk.pwritev(fd, [b"x"], 90, 0),
    ):
        with pytest.raises(OverLimitError, match="max_disk_bytes"):
            call()
    disk.ftruncate(fd, 90)
    assert quota.used_bytes == base + 90 and quota.refusal is not None
    disk.ftruncate(fd, 20)
    disk.close(fd)
    fd = disk.open(str(tmp_path / "old"), READ, 0)
    disk.close(fd)
    elsewhere = disk.open(str(tmp_path / "sub" / "c"), CREATE, 0o600)
    disk.fallocate(elsewhere, 0, 1000)
    disk.ftruncate(elsewhere, 2000)
    disk.close(elsewhere)
    disk.rename(str(tmp_path / "sub" / "c"), str(tmp_path / "sub" / "d"))
    assert quota.used_bytes == base + 20
    disk.unlink(other)
    assert quota.used_bytes == base
    disk.unlink(str(tmp_path / "sub" / "d"))


def test_quota_after_a_call_that_failed(tmp_path: Path) -> None:
    """A file counts as long as a failed call left it."""

    def fail(fd: int, offset: int, length_bytes: int) -> None:
        DISK.ftruncate(fd, 7)
        raise OSError(errno.ENOSPC, "no room")

    quota = Quota(replace(DISK, fallocate=fail), 100, 0)
    quota.learn([str(tmp_path)])
    fd = quota.disk.open(str(tmp_path / "a"), CREATE_NEW, 0o600)
    with pytest.raises(OSError, match="no room"):
        quota.disk.fallocate(fd, 0, 50)
    assert quota.used_bytes == 7
    quota.disk.close(fd)


def test_no_quota_no_door() -> None:
    """Without limits the queue has the very disk that it was given."""
    quota = Quota(DISK, None, 0)
    quota.learn(["nowhere"])
    assert quota.disk is DISK and quota.used_bytes == 0


def test_file_that_vanishes_while_it_is_counted(tmp_path: Path) -> None:
    """A file that another process deletes while the directory is read does not count."""
    quota = Quota(replace(DISK, listdir=lambda path: ["gone"]), 100, 0)
    quota.learn([str(tmp_path)])
    assert quota.used_bytes == 0


def test_free_bytes(tmp_path: Path) -> None:
    """What the disk says to have free is what the system says."""
    found = os.statvfs(tmp_path)
    assert abs(DISK.free_bytes(str(tmp_path)) - found.f_bavail * found.f_frsize) < 1 << 30
    machine = SimulatedDisk()
    machine.free_bytes = 77
    assert machine.disk.free_bytes("/queues") == 77
    assert machine.kill(lambda _: 0).disk.free_bytes("/queues") == 77


# --- a real disk that is full ----------------------------------------------------------------------------------------

TMPFS_BYTES = 64 * MIB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    with tmpfs(tmp_path / "small", TMPFS_BYTES) as path:
        yield path


def fill_up(queue: PersistentQueue, size_bytes: int, per_flush: int) -> list[int]:
    """Flush until there is no room; the numbers of the items that were acknowledged."""
    done: list[int] = []
    with queue.session() as session:
        while True:
            numbers = range(len(done), len(done) + per_flush)
            try:
                session.enqueue_many([(b"%d " % n).ljust(size_bytes, b".") for n in numbers])
                session.flush(timeout=0)
            except (QueueFullError, DiskFullError):
                return done
            done += numbers


@pytest.mark.parametrize(("size_bytes", "per_flush"), [(100, 500), (5000, 1), (100_000, 1), (100_000, 90)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_disk_bytes": 40 * MIB},
        {"min_free_bytes": 20 * MIB},
        {"max_bytes": 30 * MIB, "full": "block"},
        {"max_disk_bytes": 50 * MIB, "min_free_bytes": 20 * MIB, "segment_bytes": 2 * MIB},
    ],
    ids=str,
)
def test_disk_never_fills(small_disk: Path, settings: dict[str, Any], size_bytes: int, per_flush: int) -> None:
    """Enqueued until there is no room: with a limit or the low-disk guard the file system is not full; all that was
    acknowledged comes out, the space is free again, and as much fits once more, also after the queue was reopened."""
    path, counts = small_disk / "queue", []
    for end in (crash, PersistentQueue.close, PersistentQueue.close):
        queue = PersistentQueue(path, **settings)
        try:
            done = fill_up(queue, size_bytes, per_flush)
            assert DISK.free_bytes(str(small_disk)) >= settings.get("min_free_bytes", 0)
            assert files_bytes(path) <= settings.get("max_disk_bytes", TMPFS_BYTES)
            end(queue)
            queue = PersistentQueue(path, **settings)
            seen: list[int] = []
            while items := consume(queue, 700):
                seen += [int(item.split()[0]) for item in items]
            assert seen == done
            counts.append(len(done))
        finally:
            queue.close()
        assert DISK.free_bytes(str(small_disk)) > TMPFS_BYTES - 9 * MIB
    most = min(settings.get("max_disk_bytes", 64 * MIB), 64 * MIB - settings.get("min_free_bytes", 0), 44 * MIB)
    assert min(counts) * size_bytes > most // 2 and min(counts) > 0.9 * max(counts)
    assert check(path).ok


# --- what the predecessors lacked ------------------------------------------------------------------------------------


def test_no_journal_limit(open_queue: OpenQueue, directory: Path) -> None:
    """The linearstore's journals took whatever there was. Here one number bounds all files of a queue."""
    queue = open_queue(max_disk_bytes=6 * MIB)
    with pytest.raises(QueueFullError, match="max_disk_bytes"):
        put_each(queue, [bytes(50_000)] * 1000)
    assert 30 < len(queue) < 120
    assert 3 * MIB < files_bytes(directory) <= 6 * MIB


def test_reject_and_producer_flow_control(open_queue: OpenQueue, pool: ThreadPoolExecutor) -> None:
    """The Java broker's two policies: ``REJECT`` is "raise", stopping producers until consumers catch up is "block"."""
    rejecting, controlling = open_queue("rejecting", max_items=1), open_queue("controlling", max_items=1, full="block")
    for queue in (rejecting, controlling):
        put(queue, b"a")
    with pytest.raises(QueueFullError):
        put(rejecting, b"b")
    producer = pool.submit(put, controlling, b"b")
    waits(controlling)
    assert consume(controlling) == [b"a"]
    producer.result(SECONDS)
    assert consume(controlling) == [b"b"]


def test_maxsize_raises_an_error_of_our_own(open_queue: OpenQueue) -> None:
    """litequeue's maximum was a trigger that raised another library's ``IntegrityError``; here it is an error of this
    package, which says what to do, and the transaction is still there."""
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

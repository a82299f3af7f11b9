"""Compaction of unreadable segments, on a disk that fails, behind a log that lacks a frame, and beside threads."""

from __future__ import annotations

import errno
import gc
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    CorruptionError,
    DiskFullError,
    PersistentQueue,
    QueueLockedError,
    check,
    repair,
)
from persistentqueue.core.block import BLOCK_HEADER_BYTES
from persistentqueue.core.frame import FRAME_HEADER_BYTES, decode_frame
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.core.operations import Compaction, Dequeue, Enqueue, Move, Operation, encode_transaction
from persistentqueue.core.state import State, StateError
from persistentqueue.engine.store import Store
from persistentqueue.recovery.check import _check_state
from persistentqueue.runtime.open_queue import OpenQueue
from persistentqueue.storage.log_reader import decode_log
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.crash.disk import SimulatedDisk
from tests.durability.test_campaigns import enqueuing, opened
from tests.support.disks import call_on
from tests.support.queues import IN_CACHE, crash, drain, flip, put, put_each, segment_files, wait_for
from tests.unit.core.test_formats import SALT, encode, forge_frame
from tests.unit.core.test_state import enqueue, rows, segment, state_of
from tests.unit.runtime.test_open_queue import SECONDS

from .test_compaction import (
    LITTLE,
    SMALL,
    commit_copy,
    compact_store,
    consume,
    filled,
    items_in,
    keep_only,
    numbered,
    sources,
    sparse,
)

# --- unreadable segments ---------------------------------------------------------------------------------------------


@pytest.mark.damages
@pytest.mark.parametrize("damage", ["block", "header", "file", "block behind what lives", "block of consumed items"])
def test_damaged_source_is_left_alone(open_queue: QueueFactory, directory: Path, damage: str) -> None:
    """A source that cannot be read stays where it is. Its error is raised once, and all intact items are delivered,
    moved or not."""
    queue = open_queue(**LITTLE)
    items = numbered(40, 100)
    put_each(queue, items)
    queue.close()
    path = segment_files(directory)[1]
    queue = open_queue(**LITTLE)
    first = 6
    left = keep_only(queue, {*items[first::12], *items[first + 4 :: 12], *items[36:]})
    queue.close()
    queue = open_queue(**LITTLE)
    block_bytes = BLOCK_HEADER_BYTES + 4 + 100
    if damage == "file":
        path.unlink()
    elif damage == "header":
        flip(path, 30)
    else:
        at = {"block": 0, "block behind what lives": 4, "block of consumed items": 1}[damage]
        flip(path, HEADER_BYTES + at * block_bytes + 60)
    segments = len(segment_files(directory)) + (damage == "file")
    alone = damage != "block of consumed items"
    compacted = queue.compact(below=0.5)
    assert queue.compact(below=0.5) == (0, 0)
    assert (f"{2:012d}.seg" in [each.name for each in segment_files(directory)]) == (alone and damage != "file")
    assert compacted.segments == segments - 1 - alone
    heard, taken = [], list[bytes]()
    with queue.session() as session:
        for _ in range(4):
            try:
                taken += session.dequeue_many(100)
            except CorruptionError as error:
                heard.append(error)
        session.flush()
    lost = {"block": [items[6]], "block behind what lives": [items[10]], "file": [items[6], items[10]]}.get(damage, [])
    assert [error.file for error in heard] == [str(path)] * (alone)
    assert taken == [item for item in left if item not in lost]
    assert queue.stats().damaged == len(lost)


@pytest.mark.damages
def test_damage_that_was_heard_of_before(open_queue: QueueFactory, directory: Path) -> None:
    """A damaged header that a consumer has met does not prevent a compaction: the data in the log is enough."""
    queue = open_queue(**LITTLE)
    left = sparse(queue)
    queue.close()
    flip(segment_files(directory)[0], 30)
    queue = open_queue(**LITTLE)
    with pytest.raises(CorruptionError):
        queue.peek()
    assert queue.compact().segments == 6
    assert list(queue.browse()) == left


# --- a disk that fails -----------------------------------------------------------------------------------------------


class Failing:
    """A fault of a simulated disk: it counts the calls from now on, and lets the n-th fail."""

    def __init__(self, disk: SimulatedDisk, at: int | None, code: int) -> None:
        self.at, self.code, self.calls, self.failed = at, code, 0, ("", "")
        disk.fault = self.fault

    def fault(self, call: str, path: str) -> OSError | int | None:
        """Return the error of this call, or None; for ``SimulatedDisk.fault``."""
        if call.startswith("short"):
            return None
        self.calls += 1
        if self.calls != self.at:
            return None
        self.failed = (call, path)
        return OSError(self.code, "injected", path)


def on_simulated(disk: SimulatedDisk) -> PersistentQueue:
    """Return a queue on the simulated disk."""

    def ftruncate(fd: int, size_bytes: int) -> None:
        disk._may_fail("ftruncate", disk.descriptors[fd][1])
        disk.ftruncate(fd, size_bytes)

    door = replace(disk.disk, ftruncate=ftruncate)
    return call_on(
        door, PersistentQueue, "/queues", "q", segment_bytes=1000 + HEADER_BYTES, memory_bytes=0, log_bytes=4096
    )


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
def test_every_call_of_a_compaction_failing_once(code: int) -> None:
    """Whichever call fails before the commit, the error is raised, the queue stays as it was, and no file is left
    behind. A source that cannot be read stays, and no other source stays because of it."""
    outcomes = set()
    calls = None
    at = 0
    while calls is None or at <= calls:
        disk = SimulatedDisk()
        queue = on_simulated(disk)
        left = sparse(queue)
        queue.trim()
        before = {name for name in disk.names if name.endswith(".seg")}
        failing = Failing(disk, at or None, code)
        error: Exception | None = None
        try:
            queue.compact()
        except (BrokenQueueError, DiskFullError, OSError) as failure:
            error = failure
        disk.fault = None
        if not at:
            calls = failing.calls
            assert error is None
        at += 1
        call, path = failing.failed
        if call == "pread":
            assert error is None
            # A read ahead that fails with EIO is made again for the wanted block alone, and then the source is copied.
            left_files = len([name for name in disk.names if name.endswith(".seg")])
            assert left_files == 3 or (left_files, code) == (2, errno.EIO)
        outcomes.add((call, path.split("/")[-2] if path else "", type(error).__name__))
        if isinstance(error, BrokenQueueError):
            assert "/log" in path or "pool" in path
            queue.close()
            queue = on_simulated(disk)
        elif error is not None:
            assert isinstance(error, DiskFullError) == (code != errno.EIO and call != "fdatasync")
            assert list(queue.browse()) == left
            put(queue, b"more")
            left.append(b"more")
            queue.trim()
            after = {name for name in disk.names if name.endswith(".seg")}
            assert after == before or len(after) == 2
            assert queue.compact().segments == (6 if after == before else 0)
        assert list(queue.browse()) == left
        queue.close()
        report = call_on(disk.disk, check, "/queues", "q")
        assert report.ok, report.problems
        assert report.items == len(left)
    full = "DiskFullError" if code != errno.EIO else "OSError"
    assert ("pread", "data", "NoneType") in outcomes
    data = {(call, error) for call, part, error in outcomes if part == "data"}
    assert {("open", full), ("fallocate", full), ("pwritev", full), ("overwrite", full)} <= data
    assert {("ftruncate", full), ("fdatasync", "OSError")} <= data
    assert ("fsync", "q", full) in outcomes  # the name of the target
    assert ("pwritev dsync", "pool", "BrokenQueueError") in outcomes  # the frame, in the former spare


def near_its_limit(open_queue: QueueFactory, most: int) -> PersistentQueue:
    """Return a queue with items that a compaction of two segments would bring together, and with a drained segment."""
    queue = open_queue(log_bytes=4096, segment_bytes=1000, max_disk_bytes=most)
    put_each(queue, [bytes(400)] * 8)
    with queue.session() as holder:
        with queue.transaction() as session:
            for number in range(8):
                (holder if number in {0, 2} else session).dequeue()
        holder.rollback()
    assert queue._open()._store.state.drained == {3, 4}  # the last one is the current segment
    return queue


@pytest.mark.parametrize("is_full", [False, True], ids=["limit", "disk"])
def test_a_compaction_makes_room_for_its_target(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """If there is no room for the target, a compaction by hand makes room and tries again; maintenance does not."""
    queue = near_its_limit(open_queue, 10**6)
    store = queue._open()._store
    least_bytes = store.quota.used_bytes + store.quota.reserve_bytes

    def fallocate(fd: int, offset: int, length_bytes: int) -> None:
        """Find no room as long as there is a drained segment."""
        if 3 in store.state.drained:
            raise OSError(errno.ENOSPC, "injected")
        DISK.fallocate(fd, offset, length_bytes)

    if is_full:
        monkeypatch.setattr(store.quota, "_disk", replace(DISK, fallocate=fallocate))
    else:
        monkeypatch.setattr(store.quota, "_most_bytes", least_bytes + 100)
    with pytest.raises(DiskFullError):
        queue._maintenance.compact(0.9, settled_only=True)
    assert queue.compact(below=0.9).segments == 2
    assert drain(queue) == [bytes(400)] * 2


def test_a_compaction_at_a_limit_names_it(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a limit of the queue leaves no room for the target, the error names the limit, and nothing has changed."""
    queue = near_its_limit(open_queue, 10**6)
    queue.trim()
    monkeypatch.setattr(queue._open()._store.quota, "_most_bytes", 10_000)
    with pytest.raises(
        DiskFullError,
        match=r"max_disk_bytes leaves no room to compact to; .*: dequeue items or change max_disk_bytes, then",
    ) as caught:
        queue.compact(below=0.9)
    assert caught.value.remedy == "dequeue items or change max_disk_bytes"
    assert drain(queue) == [bytes(400)] * 2


@pytest.mark.parametrize("sync_failure", ["ext4", "btrfs", "ext4 data=journal"])
def test_failed_sync_of_the_target_breaks_nothing(sync_failure: str) -> None:
    """A sync that fails before the commit ends the compaction and breaks nothing: no frame refers to the target yet."""
    disk = SimulatedDisk()
    disk.sync_failure = sync_failure
    queue = on_simulated(disk)
    left = sparse(queue)
    disk.fault = lambda call, path: OSError(errno.EIO, "") if (call, path[-7:]) == ("fdatasync", "008.seg") else None
    if sync_failure == "ext4 data=journal":
        assert queue.compact().segments == 6  # only the next sync would report this failure, and there is none
    else:
        with pytest.raises(OSError, match="Input/output"):
            queue.compact()
    disk.fault = None
    put(queue, b"more")
    assert list(queue.browse()) == [*left, b"more"]
    queue.compact()
    assert list(queue.browse()) == [*left, b"more"]
    queue.close()


def test_others_do_not_sync_the_target() -> None:
    """A trim or a large flush during a compaction does not sync the target, and so cannot fail because of it."""
    disk = SimulatedDisk()
    store = filled(disk, numbered(16), replace(SMALL, inline_bytes=10))
    consume(store, {n for n in range(15) if n % 5})
    copy = store.begin_compaction(0.9, False)
    assert copy is not None
    while copy.step():
        pass
    target = store.segments.path(copy.target.number)
    disk.fault = lambda call, path: OSError(errno.EIO, "") if (call, path) == ("fdatasync", target) else None
    store.commit([enqueuing(b"large" * 20)])
    store.trim()
    disk.fault = None
    assert sources(commit_copy(store, copy)) == [1, 2, 3]
    left = [*(numbered(16)[n] for n in (0, 5, 10, 15)), b"large" * 20]
    assert items_in(store) == left
    chance = random.Random(2)
    assert {tuple(items_in(opened(disk.cut_power(chance.randrange), SMALL))) for _ in range(20)} == {tuple(left)}


# --- the state, and the format ---------------------------------------------------------------------------------------


def moved(first: int, count: int, number: int, offset: int, live: int | None = None) -> Move:
    """Return a move of so many items, to 100 bytes."""
    return Move(first, count, number, offset, 100, first, 0, count if live is None else live)


def gappy() -> State:
    """Return a state: sequences 0 to 9 in segment 1, of which 2 to 6 are consumed, 10 to 14 in segment 2, and segment 3
    empty."""
    operations = (segment(1), segment(2), segment(3), enqueue(0, 10, 1, 64, 0), enqueue(10, 5, 2, 64, 0))
    return state_of(*operations, Dequeue(0, 2, 5))


def test_what_a_compaction_adds_up_to() -> None:
    """After a compaction, the moves hold the unconsumed items with the bytes of their copies, and the sources are
    drained."""
    state = gappy()
    state.apply(Compaction([1], [moved(0, 2, 3, 64), moved(7, 3, 3, 164)]))
    assert list(_check_state(state)) == []
    assert [(e.first, e.count, e.segment, e.live) for e in state.extents] == [(0, 2, 3, 2), (7, 3, 3, 3), (10, 5, 2, 5)]
    assert (state.drained, state.segments[1].live, state.live_bytes) == ({1}, 0, 300)
    assert (state.segments[3].live, state.segments[3].end, state.segments[3].ordinal) == (5, 264, 10)
    assert (state.find(8).segment, state.find(12).segment) == (3, 2)
    assert State.restore(state.checkpoint(0, None, ())).checkpoint(0, None, ()) == state.checkpoint(0, None, ())


def test_what_was_consumed_since_does_not_move() -> None:
    """A move of which a part was consumed meanwhile holds the rest, and one that was consumed as a whole holds
    nothing."""
    state = gappy()
    state.apply(Dequeue(0, 0, 2))
    state.apply(Dequeue(0, 9, 1))
    state.apply(Compaction([1], [moved(0, 2, 3, 64), moved(7, 3, 3, 164)]))
    assert list(_check_state(state)) == []
    assert rows(state) == [(7, 3, 2), (10, 5, 5)]
    assert (state.segments[3].live_bytes, state.segments[3].end) == (66, 264)


def test_a_filled_hole_counts_as_consumed() -> None:
    """A move with a hole counts the copied live items, and they share all of its bytes."""
    state = gappy()
    state.apply(Compaction([1], [moved(0, 10, 3, 64, live=5)]))
    assert list(_check_state(state)) == []
    assert (rows(state)[0], state.segments[3].live_bytes) == ((0, 10, 5), 100)
    state.apply(Dequeue(0, 7, 3))
    assert state.segments[3].live_bytes == 40


@pytest.mark.parametrize(
    "compaction",
    [
        Compaction([1], []),  # its live items would be gone
        Compaction([1], [moved(0, 2, 3, 64)]),
        Compaction([1, 7], [moved(0, 2, 3, 64), moved(7, 3, 3, 164)]),  # an unknown source
        Compaction([1], [moved(0, 2, 7, 64), moved(7, 3, 3, 164)]),  # an unknown target
        Compaction([1], [moved(0, 2, 1, 64), moved(7, 3, 3, 164)]),  # a target that is a source
        Compaction([1], [moved(0, 2, 3, 63), moved(7, 3, 3, 164)]),  # an offset in the header
        Compaction([1], [moved(0, 2, 3, 64, live=0), moved(7, 3, 3, 164)]),  # no live item
        Compaction([1], [moved(0, 2, 3, 64, live=3), moved(7, 3, 3, 164)]),  # more live items than there are
        Compaction([1], [moved(0, 10, 3, 64, live=4)]),  # fewer live items than there are
        Compaction([1], [moved(0, 2, 3, 64), moved(7, 9, 3, 164)]),  # sequences that do not exist yet
        Compaction([1], [moved(0, 2, 3, 64), moved(0, 3, 3, 164)]),  # some items twice
        Compaction([1], [moved(0, 5, 3, 64), moved(4, 6, 3, 164, live=3)]),  # an overlap of consumed items
        Compaction([1], [moved(0, 2, 3, 64), moved(7, 1, 3, 164), moved(10, 2, 3, 264)]),  # items of another segment
        Compaction([3], [moved(10, 1, 3, 164)]),
        Compaction([], [moved(10, 1, 3, 164)]),
    ],
    ids=str,
)
def test_compaction_that_contradicts_the_state(compaction: Compaction) -> None:
    """A compaction that contradicts the state raises ``StateError``: a valid checksum is not enough."""
    with pytest.raises(StateError):
        gappy().apply(compaction)


def test_unconsumed_runs() -> None:
    """``unconsumed`` returns exactly the unconsumed items of any range, and ``live_between`` counts them."""
    state = gappy()
    state.apply(Dequeue(0, 0, 1))
    state.apply(Dequeue(0, 9, 1))
    left = {1, 7, 8, *range(10, 15)}
    for first in range(16):
        for end in range(first, 16):
            found = [n for start, count in state.gone.unconsumed(first, end) for n in range(start, start + count)]
            assert found == sorted(left & set(range(first, end)))
            assert state.gone.live_between(first, end) == len(found)


NUMBERS = st.integers(0, 2**64 - 1)
MOVES = st.builds(Move, *[NUMBERS] * 8)


@given(st.lists(NUMBERS, max_size=5), st.lists(MOVES, max_size=5))
def test_frame_round_trip(numbers: list[int], moves: list[Move]) -> None:
    """A compaction is decoded from its frame as it was encoded, beside other operations."""
    transactions: list[list[Operation]] = [[Compaction(numbers, moves), Dequeue(0, 1, 2)], [Compaction([], [])]]
    data = bytes(64) + encode(transactions)
    assert decode_frame(data, 64, SALT, "file").transactions == transactions


@given(st.lists(NUMBERS, max_size=3), st.lists(MOVES, min_size=1, max_size=2), st.data())
def test_frame_that_is_too_short(numbers: list[int], moves: list[Move], data: st.DataObject) -> None:
    """The counts in a frame are checked against its length, even if its checksum is right."""
    body = encode_transaction([Compaction(numbers, moves)])
    cut = body[: data.draw(st.integers(5, len(body) - 1))]
    with pytest.raises(CorruptionError):
        decode_frame(forge_frame(cut, 1, 1), 64, SALT, "file")


# --- a log that lacks a frame ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hole_items", [0, 64])
def test_repair_with_a_lost_frame_around_a_compaction(hole_items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever frame is damaged, a repair keeps each item of the other frames once. A move that cannot be applied
    leaves its items in the sources."""
    monkeypatch.setattr(Store, "_is_worth_trimming", lambda store: False)
    settings = replace(SMALL, log_bytes=1 << 16)
    disk = SimulatedDisk()
    store = filled(disk, numbered(14), settings)
    consume(store, {1, 2, 3})
    consume(store, {5, 6, 8})
    assert sources(compact_store(store, 0.9, hole_items)) == [1, 2]
    consume(store, {0, 7})
    store.commit([enqueuing(b"after")])
    assert sources(compact_store(store, 0.9, hole_items)) == [4]  # moved items move again
    consume(store, {13})
    whole = items_in(store)
    store.release()
    log = max(name for name in disk.names if name.endswith(".log"))
    frames = decode_log(bytes(disk.inodes[disk.names[log]].cache), log).frames
    everything = [operation for frame in frames for done in frame.transactions for operation in done]
    assert sum(isinstance(operation, Compaction) for operation in everything) == 2
    items = [*numbered(14), b"after"]
    for frame in frames[1:-1]:
        damaged = disk.kill(lambda _: 0)
        damaged.inodes[damaged.names[log]].cache[frame.offset + FRAME_HEADER_BYTES + 5] ^= 1
        report = call_on(damaged.disk, repair, "/queues", "q")
        found = items_in(opened(damaged, settings))
        operations = [operation for done in frame.transactions for operation in done]
        lost = {n for o in operations if isinstance(o, Enqueue) for n in range(o.first, o.first + o.count)}
        again = {n for o in operations if isinstance(o, Dequeue) for n in range(o.first, o.first + o.count)}
        expected = [item for n, item in enumerate(items) if n not in lost and (item in whole or n in again)]
        assert found == expected, (frame, report)
        assert call_on(damaged.disk, check, "/queues", "q").ok


@pytest.mark.parametrize("hole_items", [0, 64])
def test_repair_without_a_log_after_a_compaction(hole_items: int) -> None:
    """A repair without a log makes no items of those that a compaction left out. An empty item is still an item."""
    disk = SimulatedDisk()
    items = numbered(14)
    items[6] = b""
    store = filled(disk, items)
    consume(store, {1, 2, 3, 5, 8})
    assert sources(compact_store(store, 1.1, hole_items))
    left = items_in(store)
    store.close()
    for name in [name for name in disk.names if name.endswith(".log")]:
        disk.unlink(name)
    report = call_on(disk.disk, repair, "/queues", "q")
    assert report.without_log
    found = items_in(opened(disk))
    again = [item for item in found if item not in left]  # without the log it is unknown that these were consumed
    assert sorted(found) == sorted(left + again)
    assert set(again) <= {items[5], items[8]}
    assert found.count(b"") == 1


# --- threads ---------------------------------------------------------------------------------------------------------


class Stop:
    """A failpoint that stops the first thread that reaches it, until the thread may go on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reached, self.go_on = threading.Event(), threading.Event()

    def failpoint(self, name: str) -> None:
        """Stop the thread if this is the failpoint; for ``Disk.failpoint``."""
        if name == self.name and not self.reached.is_set():
            self.reached.set()
            assert self.go_on.wait(SECONDS)


POINTS = ["compact.1 make target", "compact.2 copy", "compact.3 sync target", "compact.4 commit"]


@pytest.mark.parametrize("point", POINTS[1:])
def test_closing_while_it_is_compacted(open_queue: QueueFactory, directory: Path, point: str) -> None:
    """``close`` waits for the compaction, which gives up. All items stay as they were, and the target is deleted."""
    stop = Stop(point)
    queue = open_queue(segment_bytes=1000, disk=replace(IN_CACHE, failpoint=stop.failpoint))
    left = sparse(queue)
    queue.trim()
    before = segment_files(directory)
    with ThreadPoolExecutor(2) as pool:
        compacting = pool.submit(queue.compact)
        assert stop.reached.wait(SECONDS)
        closing = pool.submit(queue.close)
        wait_for(lambda: queue.closed)
        stop.go_on.set()
        with pytest.raises(ClosedError):
            compacting.result(SECONDS)
        closing.result(SECONDS)
    assert segment_files(directory) == before
    queue = open_queue(**LITTLE)
    assert queue.recovery.clean
    assert drain(queue) == left


@pytest.mark.parametrize("point", POINTS[1:])
def test_dropped_while_it_is_compacted(open_queue: QueueFactory, directory: Path, point: str) -> None:
    """Dropping the queue waits for no compaction, and closes no file under it. Then the compaction gives up, and the
    lock is free."""
    stop = Stop(point)
    options: dict[str, Any] = {"segment_bytes": 1000}
    disk = replace(IN_CACHE, failpoint=stop.failpoint)
    queue = call_on(disk, PersistentQueue, directory.parent, directory.name, **options)
    left = sparse(queue)
    with ThreadPoolExecutor(1) as pool:
        # As in maintenance, which keeps no reference to the queue.
        compacting = pool.submit(queue._maintenance.compact, 0.5, False)
        assert stop.reached.wait(SECONDS)
        with pytest.warns(ResourceWarning, match="dropped without close"):
            del queue
            gc.collect()
        with pytest.raises(QueueLockedError):
            open_queue()
        stop.go_on.set()
        with pytest.raises(ClosedError):
            compacting.result(SECONDS)
    assert drain(open_queue(**LITTLE)) == left


def test_two_compactions_at_once(open_queue: QueueFactory) -> None:
    """A second compaction waits for the first, and finds nothing left to do."""
    stop = Stop("compact.2 copy")
    queue = open_queue(segment_bytes=1000, disk=replace(IN_CACHE, failpoint=stop.failpoint))
    left = sparse(queue)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(queue.compact)
        assert stop.reached.wait(SECONDS)
        second = pool.submit(queue.compact)
        put(queue, b"meanwhile")
        assert not second.done()
        stop.go_on.set()
        assert (first.result(SECONDS).segments, second.result(SECONDS)) == (6, (0, 0))
    assert drain(queue) == [*left, b"meanwhile"]


@pytest.mark.parametrize("point", POINTS[1:])
def test_sessions_go_on_at_every_step(open_queue: QueueFactory, point: str) -> None:
    """At every step of a compaction, sessions enqueue, dequeue, roll back, spill and trim without waiting for it."""
    stop = Stop(point)
    queue = open_queue(segment_bytes=1000, memory_bytes=0, disk=replace(IN_CACHE, failpoint=stop.failpoint))
    left = sparse(queue)
    with ThreadPoolExecutor(1) as pool:
        compacting = pool.submit(queue.compact)
        assert stop.reached.wait(SECONDS)
        with queue.session() as one, queue.session() as two:
            two._spill_bytes = 1
            assert one.dequeue_many(2) == left[:2]
            assert two.dequeue_many(2) == left[2:4]
            two.enqueue_many([b"spilled", b"too"])
            one.flush()
            two.rollback()
            two.enqueue_many([b"spilled", b"too"])
            assert list(queue.browse()) == left[2:]
            queue.trim()
            stop.go_on.set()
            assert compacting.result(SECONDS).segments >= 4
            two.flush()
    crash(queue)
    assert drain(open_queue(**LITTLE)) == [*left[2:], b"spilled", b"too"]


def test_progress(open_queue: QueueFactory) -> None:
    """``progress`` is called about once per MiB, with rising numbers. An error that it raises ends the compaction, and
    items that were not moved stay."""
    queue = open_queue(segment_bytes=8 << 20, memory_bytes=0, disk=IN_CACHE)
    items = [bytes([n]) * 300_000 for n in range(40)]
    put(queue, *items)
    put(queue, b"x" * (8 << 20))
    left = keep_only(queue, {*items[::2], b"x" * (8 << 20)})
    told: list[int] = []

    class EnoughError(Exception):
        pass

    def enough(copied_bytes: int, _: int | None) -> None:
        told.append(copied_bytes)
        if copied_bytes > 2 << 20:
            raise EnoughError

    before = queue.stats()
    with pytest.raises(EnoughError):
        queue.compact(below=0.9, progress=enough)
    queue.trim()
    assert queue.stats().segments == before.segments
    told.clear()
    compacted = queue.compact(below=0.9, progress=lambda done, _: told.append(done))
    assert sorted(told) == told
    assert max(b - a for a, b in pairwise([*told, compacted.copied_bytes])) <= (1 << 20) + 600_000
    assert list(queue.browse()) == left


class Clock:
    """A clock that advances only while a thread sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds, self.naps = 1000.0, list[float]()
        monkeypatch.setattr(OpenQueue, "now", lambda *_: self.seconds)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.seconds += seconds


@pytest.mark.parametrize("rate", [1000, Decimal(1000), None], ids=["by hand", "with a decimal", "by itself"])
def test_no_more_bytes_per_second(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch, rate: Any) -> None:
    """A compaction takes as long as its bytes take at the given rate. It sleeps in short naps, so that ``close`` need
    not wait."""
    queue = open_queue(**LITTLE, compact_bytes_per_second=1000)
    keeper = queue.session()
    left = sparse(queue)
    keeper.dequeue_many(6)
    clock = Clock(monkeypatch)
    if rate is not None:
        copied_bytes = queue.compact(bytes_per_second=rate).copied_bytes
    else:
        copied_bytes = queue._maintenance._maintain(1000).copied_bytes
    assert copied_bytes > 700
    assert clock.seconds - 1000 == pytest.approx(copied_bytes / 1000, abs=0.2)
    assert max(clock.naps) <= 0.05
    keeper.close()
    assert drain(queue) == left


@pytest.mark.usefixtures("reports_each_step")
def test_closing_in_a_pause(open_queue: QueueFactory, directory: Path) -> None:
    """A compaction that pauses gives up soon after the queue is closed."""
    queue = open_queue(**LITTLE)
    left = sparse(queue)
    told = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        compacting = pool.submit(queue.compact, bytes_per_second=0.001, progress=lambda *_: told.set())
        assert told.wait(SECONDS)
        queue.close()
        with pytest.raises(ClosedError):
            compacting.result(SECONDS)
    assert drain(open_queue(**LITTLE)) == left


def test_a_rate_must_be_one(open_queue: QueueFactory, tmp_path: Path) -> None:
    """A rate of 0, which would never end, and a share above 1 raise ``ValueError``."""
    with pytest.raises(ValueError, match="bytes_per_second must be more than 0, got 0"):
        open_queue().compact(bytes_per_second=0)
    with pytest.raises(ValueError, match=r"compact_below must be a share from 0 to 1, got 1\.5"):
        open_queue(compact_below=1.5)
    with pytest.raises(ValueError, match="compact_bytes_per_second must be at least 1, got 0"):
        PersistentQueue(tmp_path / "other", compact_bytes_per_second=0)


@pytest.mark.parametrize("options", [LITTLE, {**LITTLE, "inline_bytes": 0, "log_bytes": 4096}], ids=["", "data first"])
def test_traffic_while_it_is_compacted(open_queue: QueueFactory, options: dict[str, Any]) -> None:
    """With threads that enqueue, dequeue, hold and roll back beside a constant compaction, the content equals that of a
    model."""
    queue = open_queue(**options)
    put(queue, *numbered(300))
    enqueued: list[list[bytes]] = [numbered(300)]
    consumed: list[list[bytes]] = []
    running = [3]

    def work(number: int) -> None:
        chance, mine, taken = random.Random(number), list[bytes](), list[bytes]()
        enqueued.append(mine)
        consumed.append(taken)
        slow = queue.session()
        slow.dequeue_many(1)
        for n in range(60):
            with queue.session() as session:
                items = [b"%d %d %d" % (number, n, at) for at in range(chance.randrange(9))]
                session.enqueue_many(items)
                found = session.dequeue_many(chance.randrange(8))
                if chance.random() < 0.7:
                    session.flush()
                    mine += items
                    taken += found
                session.rollback()
            if chance.random() < 0.3:
                slow.rollback()
                slow.dequeue_many(2)
        slow.close()
        running[0] -= 1

    def compact_all() -> int:
        count = 0
        while running[0]:
            count += queue.compact(below=0.9).segments
        return count

    with ThreadPoolExecutor(4) as pool:
        compacting = pool.submit(compact_all)
        for each in [pool.submit(work, number) for number in range(3)]:
            each.result(SECONDS)
        assert compacting.result(SECONDS) > 0
    gone = {item for taken in consumed for item in taken}
    assert len(gone) == sum(map(len, consumed))
    crash(queue)
    left = drain(open_queue(**options))
    assert sorted(left) == sorted(item for mine in enqueued for item in mine if item not in gone)
    for mine in enqueued:
        assert [item for item in left if item in set(mine)] == [item for item in mine if item not in gone]

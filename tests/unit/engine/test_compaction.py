"""Compaction: what is moved stays what it was, what is not moved stays where it is, and no failure costs anything."""

from __future__ import annotations

import errno
import gc
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
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
from persistentqueue.core.block import BLOCK_BYTES, BLOCK_HEADER_BYTES
from persistentqueue.core.frame import FRAME_HEADER_BYTES, decode_frame
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.core.intervals import join_runs
from persistentqueue.core.operations import Compaction, Dequeue, Enqueue, Move, Operation, encode_transaction
from persistentqueue.core.state import State, StateError
from persistentqueue.engine import compaction
from persistentqueue.engine.compaction import Copy
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Settings, Transaction
from persistentqueue.recovery.check import _check_state
from persistentqueue.runtime.open_queue import OpenQueue
from persistentqueue.storage.log import replay
from tests.conftest import QueueFactory
from tests.crash.disk import SimulatedDisk
from tests.crash.explorer import content_of
from tests.durability.test_campaigns import enqueuing, opened
from tests.support.queues import IN_CACHE, crash, drain, flip, log_file, put, put_each, segment_files, wait_for
from tests.unit.core.test_formats import SALT, encode, forge_frame
from tests.unit.core.test_state import enqueue, rows, segment, state_of
from tests.unit.runtime.test_open_queue import SECONDS

SMALL = Settings(segment_bytes=400 + HEADER_BYTES, log_bytes=4096, memory_bytes=0)
LITTLE: dict[str, Any] = {"segment_bytes": 1000 + HEADER_BYTES, "memory_bytes": 0, "disk": IN_CACHE}


# --- helpers: the store ----------------------------------------------------------------------------------------------


def numbered(count: int, size_bytes: int = 20) -> list[bytes]:
    """So many items that tell where they stood."""
    return [(b"%d " % n).ljust(size_bytes, b".") for n in range(count)]


def filled(disk: SimulatedDisk, items: Iterable[bytes], settings: Settings = SMALL) -> Store:
    """A store with these items, each committed by itself."""
    store = opened(disk, settings)
    for item in items:
        store.commit([enqueuing(item)])
    return store


def consume(store: Store, sequences: Collection[int], taken: int = 2**62) -> None:
    """Consume these items of the first ones that are ``taken``, and give the others back."""
    ready = store.reader.ready
    rest, doomed = Transaction(ready), Transaction(ready)
    runs, _ = store.reader.take(taken)
    for first, count in runs:
        for sequence in range(first, first + count):
            join_runs((doomed if sequence in sequences else rest).runs, [(sequence, 1)])
    assert sum(run[1] for run in doomed.runs) == len(sequences)
    store.commit([doomed])
    store.discard(rest)


def commit_copy(store: Store, copy: Copy) -> Compaction | None:
    """Commit what was copied, as a queue does; what that was."""
    transaction = Transaction()
    transaction.operations = copy.finish()
    if transaction.operations:
        store.commit([transaction])
        assert transaction.settled
    store.end_compaction(copy)
    operations: list[Operation | None] = [*transaction.operations]
    compaction = operations[-1] if operations else None
    assert compaction is None or isinstance(compaction, Compaction)
    return compaction


def compact_store(store: Store, below: float = 1.1, hole_items: int = 64) -> Compaction | None:
    """One compaction from begin to end; what was committed."""
    copy = store.begin_compaction(below, False, hole_items)
    if copy is None:
        return None
    while copy.step():
        pass
    return commit_copy(store, copy)


def sources(compaction: Compaction | None) -> list[int]:
    """The segments that it emptied; none if there was none."""
    return compaction.sources if compaction is not None else []


def items_in(store: Store) -> list[bytes]:
    """All ready items."""
    return list(content_of(store).items)


def segments_of(store: Store) -> list[int]:
    """The segments that hold something."""
    return sorted(number for number, info in store.state.segments.items() if info.live)


# --- helpers: the queue ----------------------------------------------------------------------------------------------


def keep_only(queue: PersistentQueue, kept: Collection[bytes]) -> list[bytes]:
    """Consume all items but these; what is left."""
    items = list(queue.browse())
    with queue.session() as consumer, queue.session() as keeper:
        for is_kept, group in groupby(items, key=lambda item: item in kept):
            its = list(group)
            assert (keeper if is_kept else consumer).dequeue_many(len(its)) == its
        consumer.flush()
        keeper.rollback()
    return [item for item in items if item in kept]


def sparse(queue: PersistentQueue, segments: int = 6, per_segment: int = 10) -> list[bytes]:
    """Make that many segments, each with one item left; these items."""
    items = numbered(segments * per_segment, 1000 // per_segment)
    for at in range(0, len(items), per_segment):
        put(queue, *items[at : at + per_segment])
    put(queue, b"current" * 100)
    return keep_only(queue, {*items[per_segment // 2 :: per_segment], b"current" * 100})


# --- what is moved ---------------------------------------------------------------------------------------------------


def test_one_item_no_longer_keeps_a_file(open_queue: QueueFactory, directory: Path) -> None:
    """What lives in sparse segments is together in one, in its order and as it was, and their files are gone."""
    queue = open_queue(**LITTLE)
    left = sparse(queue)
    queue.trim()
    assert len(segment_files(directory)) == 7
    before = queue.stats()
    compacted = queue.compact()
    after = queue.stats()
    assert (compacted.segments, after.segments, len(segment_files(directory))) == (6, 2, 2)
    assert 6 * 100 < compacted.copied_bytes < 6 * 200
    assert after.disk_bytes < before.disk_bytes - 4000
    assert (after.ready, after.enqueued, after.dequeued) == (before.ready, before.enqueued, before.dequeued)
    assert list(queue.browse()) == left
    assert drain(queue) == left


@pytest.mark.parametrize("end", [PersistentQueue.close, crash], ids=["closed", "crashed"])
def test_reopened_after_a_compaction(open_queue: QueueFactory, directory: Path, end: Callable[[Any], None]) -> None:
    """What was moved is there after a clean close and after a crash, in place, and may be consumed and added to."""
    queue = open_queue(**LITTLE)
    left = sparse(queue)
    queue.compact()
    put(queue, b"behind")
    end(queue)
    assert check(directory).ok
    queue = open_queue(**LITTLE)
    assert queue.recovery.clean == (end is PersistentQueue.close)
    assert list(queue.browse()) == [*left, b"behind"]
    with queue.transaction() as session:
        assert session.dequeue_many(3) == left[:3]
    end(queue)
    assert drain(open_queue(**LITTLE)) == [*left[3:], b"behind"]


def test_compaction_in_the_log(open_queue: QueueFactory, directory: Path) -> None:
    """A crash before the log was trimmed replays the compaction from its frame, over enqueues that the log carries."""
    queue = open_queue(**LITTLE)
    left = sparse(queue)
    store = queue._open_queue.store  # type: ignore[union-attr]
    assert compact_store(store, 0.3) is not None
    crash(queue)
    frames = replay(log_file(directory).read_bytes(), log_file(directory).name).frames
    operations = [operation for frame in frames for done in frame.transactions for operation in done]
    assert sum(isinstance(operation, Compaction) for operation in operations) == 1
    assert check(directory).ok
    queue = open_queue(**LITTLE)
    assert list(queue.browse()) == left
    assert queue.stats().segments == 2


def test_without_syncs(open_queue: QueueFactory) -> None:
    """A queue that does not sync its flushes is compacted like any other."""
    queue = open_queue(**LITTLE, sync=False)
    left = sparse(queue)
    assert queue.compact().segments == 6
    crash(queue)
    queue = open_queue(**LITTLE, sync=False)
    assert queue.recovery.lost_transactions == 0
    assert list(queue.browse()) == left


def test_what_was_moved_is_durable_without_syncs() -> None:
    """A log that is not synced may keep a compaction and lose what came before it; never does it name what is lost."""
    settings = replace(SMALL, sync=False)
    disk = SimulatedDisk()
    store = filled(disk, numbered(12), settings)
    consume(store, set(range(12)) - {0, 5, 9})
    store.trim()
    left = items_in(store)
    assert compact_store(store) is not None
    chance = random.Random(3)
    for _ in range(300):
        crashed = disk.cut_power(chance.randrange)
        assert items_in(opened(crashed, settings)) == left


def test_large_items(open_queue: QueueFactory) -> None:
    """Items larger than a block, and blocks full of middling ones, come out as they were."""
    queue = open_queue(segment_bytes=1 << 20, memory_bytes=0, disk=IN_CACHE)
    chance = random.Random(1)
    items = [chance.randbytes(chance.choice([300 * 1024, BLOCK_BYTES + 1, 50_000, 10])) for _ in range(40)]
    for at in range(0, len(items), 4):
        put(queue, *items[at : at + 4])
    put(queue, b"last" * 100_000)
    left = keep_only(queue, set(items[::5]) | {b"last" * 100_000})
    compacted = queue.compact(below=1)
    assert compacted.segments > 2
    assert sum(map(len, left[:-1])) < compacted.copied_bytes < sum(map(len, left[:-1])) + 2000
    assert list(queue.browse()) == left


def test_a_run_of_many_blocks_is_one_move() -> None:
    """However many blocks it takes, what follows each other is one extent."""
    store = opened(SimulatedDisk(), replace(SMALL, segment_bytes=1 << 20))
    items = numbered(40, 30_000)
    for at in range(0, 40, 4):
        store.commit([enqueuing(*items[at : at + 4])])
    consume(store, {0, 1})
    compaction = compact_store(store, 0.99)
    assert compaction is not None
    assert [(move.first, move.count, move.live) for move in compaction.moves] == [(2, 30, 30)]
    assert len(store.state.extents) == 2
    assert items_in(store) == items[2:]


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=30), min_size=8, max_size=40), st.data())
def test_anything_is_moved_as_it_was(items: list[bytes], data: st.DataObject) -> None:
    """Whatever is in the queue and whatever of it was consumed, before and after: it is all there, once, in order."""
    store = filled(SimulatedDisk(), items, replace(SMALL, segment_bytes=data.draw(st.sampled_from([60, 200, 600]))))
    everything = set(range(len(items)))
    early = data.draw(st.sets(st.sampled_from(sorted(everything)), min_size=1))
    consume(store, early)
    copy = store.begin_compaction(data.draw(st.sampled_from([0.5, 1.1])), False, data.draw(st.sampled_from([0, 1, 64])))
    late: set[int] = set()
    if copy is not None:
        for _ in range(data.draw(st.integers(0, 12))):
            copy.step()
        if everything - early:
            late = data.draw(st.sets(st.sampled_from(sorted(everything - early))))
            consume(store, late)
        commit_copy(store, copy)
    assert items_in(store) == [item for n, item in enumerate(items) if n not in early | late]
    assert store.state.gone_count == len(early | late)
    store.close()


# --- what is left alone ----------------------------------------------------------------------------------------------


def test_below_is_a_share(open_queue: QueueFactory, directory: Path) -> None:
    """With 0 nothing is sparse, with 1 all that is not full; segments that are full, and the current one, stay."""
    queue = open_queue(**LITTLE)
    items = numbered(40, 100)
    for at in range(0, 40, 10):
        put(queue, *items[at : at + 10])
    put(queue, b"current")
    keep_only(queue, {*items[:9], *items[10:20], items[29], *items[30:35], b"current"})
    left = list(queue.browse())
    assert queue.compact(below=0) == (0, 0)
    assert queue.compact(below=0.05) == (0, 0)
    assert queue.compact(below=0.3).segments == 1  # 29
    names = [path.name for path in segment_files(directory)]
    assert names == [f"{n:012d}.seg" for n in (1, 2, 4, 5, 6)]
    assert queue.compact(below=1).segments == 3  # 0 to 8, 30 to 34, and what 29 was moved to, which is full and small
    assert queue.compact(below=1) == (0, 0)
    assert f"{2:012d}.seg" in [path.name for path in segment_files(directory)]
    assert list(queue.browse()) == left
    for below in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="a share from 0 to 1"):
            queue.compact(below=below)


def test_nothing_to_compact(open_queue: QueueFactory) -> None:
    """An empty queue, and one that was only written, are as they were; what was committed is durable."""
    queue = open_queue(**LITTLE)
    assert queue.compact(below=1) == (0, 0)
    put(queue, b"x")
    generation = queue.stats().generation
    assert queue.compact(below=1) == (0, 0)
    assert queue.stats().generation == generation + 1
    queue.close()
    with pytest.raises(ClosedError):
        queue.compact()


def test_what_a_session_spilled_into_stays() -> None:
    """A segment with uncommitted blocks is no source; what is committed to it later is there, and then it may be."""
    store = filled(SimulatedDisk(), [b"first"])
    spilled = enqueuing(b"spilled")
    store.spill(spilled)
    for item in numbered(8, 300):
        store.commit([enqueuing(item)])
    consume(store, range(2, 8))
    assert spilled.pieces[0].segment == 1
    assert sources(compact_store(store)) == [2]
    store.commit([spilled])
    assert sources(compact_store(store)) == [1]
    assert items_in(store) == [b"first", numbered(8, 300)[0], numbered(8, 300)[7], b"spilled"]


@pytest.mark.parametrize(("taken", "expected"), [(15, [1, 2, 3]), (12, [1, 2]), (5, [1]), (4, []), (0, [])])
def test_settled_only(taken: int, expected: list[int]) -> None:
    """What is yet to be handed out for the first time is about to be drained anyway, and is left alone on request."""
    store = filled(SimulatedDisk(), numbered(30))
    if taken:
        consume(store, {n for n in range(taken) if n % 5}, taken)
    copy = store.begin_compaction(0.9, True)
    assert [info.number for info in copy._left[::-1]] == expected if copy is not None else not expected
    if copy is not None:
        store.end_compaction(copy)


# --- holes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hole_items", "expected"),
    [
        (0, [(0, 1, 1), (2, 1, 1), (5, 2, 2), (70, 1, 1)]),
        (1, [(0, 3, 2), (5, 2, 2), (70, 1, 1)]),
        (2, [(0, 7, 4), (70, 1, 1)]),
        (62, [(0, 7, 4), (70, 1, 1)]),
        (63, [(0, 71, 5)]),
    ],
)
def test_small_holes_are_filled(hole_items: int, expected: list[tuple[int, int, int]]) -> None:
    """Up to so many consumed items between two live ones leave a hole that is never served; more are not moved."""
    disk = SimulatedDisk()
    store = opened(disk, replace(SMALL, segment_bytes=4000))
    items = numbered(80)
    store.commit([enqueuing(*items)])
    store.commit([enqueuing(b"current" * 600)])
    consume(store, set(range(80)) - {0, 2, 5, 6, 70})
    compaction = compact_store(store, hole_items=hole_items)
    assert compaction is not None
    assert [(move.first, move.count, move.live) for move in compaction.moves] == expected
    left = [items[n] for n in (0, 2, 5, 6, 70)] + [b"current" * 600]
    assert items_in(store) == left
    assert items_in(opened(disk.kill(lambda _: 0), SMALL)) == left
    assert store.state.gone_count == 75
    runs, taken = store.reader.take(2**62)
    assert (taken, sum(count for _, count in runs)) == (left, 6)


@pytest.mark.parametrize("when", ["never", "before", "while it is copied", "after"])
def test_a_hole_is_not_filled_over_what_lives_elsewhere(when: str) -> None:
    """Between two items of a segment there may be one of another, where a session spilled; it is never covered."""
    disk = SimulatedDisk()
    store = filled(disk, [b"a"])
    spilled = enqueuing(b"c")
    store.spill(spilled)
    store.commit([enqueuing(b"b" * 400)])
    store.commit([spilled])
    store.commit([enqueuing(b"d" * 400)])
    assert [(extent.first, extent.segment) for extent in store.state.extents] == [(0, 1), (1, 2), (2, 1), (3, 3)]
    if when == "before":
        consume(store, [1])
    copy = store.begin_compaction(1.1, False)
    assert copy is not None
    assert copy.step()
    assert copy.step()
    if when == "while it is copied":
        consume(store, [1])
    while copy.step():
        pass
    if when == "after":
        consume(store, [1])
    compaction = commit_copy(store, copy)
    assert compaction is not None
    moves = [(move.first, move.count, move.live) for move in compaction.moves]
    assert compaction.sources == [1]
    assert moves == ([(0, 3, 2)] if when in {"before", "while it is copied"} else [(0, 1, 1), (2, 1, 1)])
    left = [b"a", b"b" * 400, b"c", b"d" * 400]
    if when != "never":
        left.remove(b"b" * 400)
    assert items_in(store) == left
    assert items_in(opened(disk.kill(lambda _: 0), SMALL)) == left


def test_holes_between_extents_and_blocks() -> None:
    """What was consumed at the end of one extent and at the beginning of the next is one hole; so is a whole extent."""
    disk = SimulatedDisk()
    store = opened(disk, replace(SMALL, segment_bytes=2000))
    items = numbered(30)
    for at in range(0, 30, 3):
        store.commit([enqueuing(*items[at : at + 3])])
        store.spill(spill := enqueuing(b"rolled back"))
        store.discard(spill)
    store.commit([enqueuing(b"current" * 300)])
    consume(store, set(range(30)) - {1, 4, 12, 29})
    assert len(store.state.extents) == 5
    compaction = compact_store(store)
    assert compaction is not None
    assert [(move.first, move.count, move.live) for move in compaction.moves] == [(1, 29, 4)]
    assert items_in(store) == [items[n] for n in (1, 4, 12, 29)] + [b"current" * 300]


# --- several sources, one target -------------------------------------------------------------------------------------


def test_target_is_no_larger_than_a_segment(open_queue: QueueFactory, directory: Path) -> None:
    """What does not fit one target goes to the next; none is larger than a segment."""
    queue = open_queue(**LITTLE)
    items = numbered(160, 100)
    for at in range(0, 160, 8):
        put(queue, *items[at : at + 8])
    put(queue, b"current" * 100)
    left = keep_only(queue, {*items[::4], b"current" * 100})
    assert queue.compact().segments == 20
    sizes = [path.stat().st_size for path in segment_files(directory)][1:]
    assert 5 <= len(sizes) <= 7
    assert max(sizes) <= 1000 + HEADER_BYTES
    assert list(queue.browse()) == left


def test_a_source_that_does_not_fit_after_all() -> None:
    """A source is given up where it does not fit: by average it was small, and what lives is the largest item of it."""
    disk = SimulatedDisk()
    store = opened(disk, replace(SMALL, segment_bytes=1000))
    large = [b"%d" % n * 700 for n in range(3)]
    for item in large:
        store.commit([enqueuing(*numbered(8, 10), item)])
    store.commit([enqueuing(b"current" * 140)])
    consume(store, {n for n in range(27) if n % 9 != 8})
    left = items_in(store)
    found = []
    while (compaction := compact_store(store, 0.3)) is not None:
        found.append(compaction.sources)
        target = compaction.moves[0].segment
        assert len(disk.inodes[disk.names[store.segments.path(target)]].cache) <= 1000 + HEADER_BYTES
    assert found == [[1], [2], [3]]
    assert items_in(store) == left
    assert items_in(opened(disk.kill(lambda _: 0), SMALL)) == left


def test_one_source_larger_than_a_segment_was_meant_to_be(open_queue: QueueFactory) -> None:
    """With a smaller setting than the one that a segment was written with, it is compacted all the same."""
    queue = open_queue(segment_bytes=100_000, disk=IN_CACHE)
    items = numbered(1500)
    put(queue, *items)
    put(queue, bytes(100_000))
    keep_only(queue, {*items[::2], bytes(100_000)})
    queue.close()
    queue = open_queue(segment_bytes=1000, disk=IN_CACHE)
    assert queue.compact(below=0.9).segments == 1
    assert list(queue.browse()) == [*items[::2], bytes(100_000)]


def test_no_further_source_is_begun_after_many_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moves make the frame: after so many the rest is left to the next compaction."""
    monkeypatch.setattr(compaction, "MOVES_MAX", 2)
    store = filled(SimulatedDisk(), numbered(31), replace(SMALL, segment_bytes=4000))
    for item in numbered(3, 4000):
        store.commit([enqueuing(item)])
    store = filled(SimulatedDisk(), numbered(21))
    consume(store, {n for n in range(20) if n % 5})
    assert [sources(compact_store(store, 0.9, hole_items=0)) for _ in range(3)] == [[1, 2], [3, 4], []]
    assert items_in(store) == [item for n, item in enumerate(numbered(21)) if n % 5 == 0]


def test_a_source_that_is_drained_meanwhile() -> None:
    """Sources that are drained before they are copied, while they are, or after, are given up like any others."""
    for at in range(6):
        store = filled(SimulatedDisk(), numbered(16))
        consume(store, {n for n in range(15) if n % 5 not in {1, 3}})
        copy = store.begin_compaction(0.9, False)
        assert copy is not None
        for _ in range(at):
            copy.step()
        consume(store, {1, 3, 6, 8})
        store.trim()
        store.give_back()
        while copy.step():
            pass
        compaction = commit_copy(store, copy)
        assert sources(compaction) == [[], [], [1], [1], [1], [1, 2]][at]
        store.trim()
        assert segments_of(store) == sorted(store.state.segments) == [3, 4]
        assert items_in(store) == [numbered(16)[n] for n in (11, 13, 15)]


def test_all_sources_drained_meanwhile() -> None:
    """Where nothing is left to be moved nothing is committed, or the target is drained at once; no file is left."""
    for at in range(4):
        disk = SimulatedDisk()
        store = filled(disk, numbered(11))
        consume(store, {n for n in range(10) if n % 5 != 1})
        copy = store.begin_compaction(0.9, False)
        assert copy is not None
        for _ in range(at):
            copy.step()
        consume(store, {1, 6})
        while copy.step():
            pass
        compaction = commit_copy(store, copy)
        assert (compaction is None) == (at < 2)
        store.trim()
        store.give_back()
        assert sorted(store.state.segments) == [3]
        assert [name for name in disk.names if name.endswith(".seg")] == [store.segments.path(3)]
        assert items_in(store) == numbered(11)[10:]


def test_rolled_back_while_it_is_moved(open_queue: QueueFactory) -> None:
    """What a session holds is moved like what nobody holds; rolled back it comes out first, committed it is gone."""
    queue = open_queue(**LITTLE)
    left = sparse(queue)
    with queue.session() as one, queue.session() as two:
        assert one.dequeue_many(2) == left[:2]
        assert two.dequeue_many(2) == left[2:4]

        def flush(_: int) -> None:
            one.flush()

        assert queue.compact(progress=flush).segments == 4
        assert queue.stats().held == 2
        two.rollback()
        assert list(queue.browse()) == left[2:]
    crash(queue)
    assert drain(open_queue(**LITTLE)) == left[2:]


def test_one_round_under_traffic(open_queue: QueueFactory) -> None:
    """What was moved is not moved again because somebody consumes of it meanwhile: compaction comes to an end."""
    queue = open_queue(**LITTLE)
    left = sparse(queue, segments=6, per_segment=20)
    calls: list[int] = []

    def take(copied_bytes: int) -> None:
        if not calls or copied_bytes > calls[-1]:
            with queue.transaction() as session:  # of what was copied just now, so that the target is never full
                session.dequeue()
        calls.append(copied_bytes)

    assert queue.compact(below=1, progress=take).segments <= 6
    assert max(calls) < 2 * sum(map(len, left))


def test_room_that_it_takes(open_queue: QueueFactory, directory: Path) -> None:
    """However much is moved, beside what was there before it takes the room of a segment and of the log."""
    queue = open_queue(**LITTLE, log_bytes=4096)
    items = numbered(400, 100)
    for at in range(0, 400, 8):
        put(queue, *items[at : at + 8])
    put(queue, b"current" * 100)
    keep_only(queue, {*items[::4], b"current" * 100})
    queue.trim()

    def data_bytes() -> int:
        return sum(path.stat().st_size for path in segment_files(directory))

    before, most = data_bytes(), [0]

    def look(_: int) -> None:
        most[0] = max(most[0], data_bytes())

    assert queue.compact(progress=look).segments == 50
    assert most[0] <= before + 1000 + HEADER_BYTES
    assert data_bytes() < before / 2


# --- what cannot be read ---------------------------------------------------------------------------------------------


@pytest.mark.damages
@pytest.mark.parametrize("damage", ["block", "header", "file", "block behind what lives", "block of consumed items"])
def test_damaged_source_is_left_alone(open_queue: QueueFactory, directory: Path, damage: str) -> None:
    """What cannot be read stays where it is; who dequeues hears of it, once, and gets what is intact, moved or not."""
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
    """A header that a consumer has met is not in the way: the log's word for it is enough."""
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
    """Counts the calls of a simulated disk from now on, and lets the n-th fail."""

    def __init__(self, disk: SimulatedDisk, at: int | None, code: int) -> None:
        self.at, self.code, self.calls, self.failed = at, code, 0, ("", "")
        disk.fault = self.fault

    def fault(self, call: str, path: str) -> OSError | int | None:
        """For ``SimulatedDisk.fault``."""
        if call.startswith("short"):
            return None
        self.calls += 1
        if self.calls != self.at:
            return None
        self.failed = (call, path)
        return OSError(self.code, "injected", path)


def on_simulated(disk: SimulatedDisk) -> PersistentQueue:
    """A queue on it."""

    def ftruncate(fd: int, size_bytes: int) -> None:
        disk._may_fail("ftruncate", disk.descriptors[fd][1])
        disk.ftruncate(fd, size_bytes)

    door = replace(disk.disk, ftruncate=ftruncate)
    return PersistentQueue("/queues", "q", disk=door, segment_bytes=1000 + HEADER_BYTES, memory_bytes=0, log_bytes=4096)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
def test_every_call_of_a_compaction_failing_once(code: int) -> None:
    """Whichever call fails before the commit: one is told, the queue goes on as it was, and no file is left of it. A
    source that cannot be read stays, and no other because of it."""
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
            assert len([name for name in disk.names if name.endswith(".seg")]) == 3
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
        report = check("/queues", "q", disk=disk.disk)
        assert report.ok, report.problems
        assert report.items == len(left)
    full = "DiskFullError" if code != errno.EIO else "OSError"
    assert ("pread", "data", "NoneType") in outcomes
    data = {(call, error) for call, part, error in outcomes if part == "data"}
    assert {("open", full), ("fallocate", full), ("pwritev", full), ("overwrite", full)} <= data
    assert {("ftruncate", full), ("fdatasync", "OSError")} <= data
    assert ("fsync", "q", full) in outcomes  # the name of the target
    assert ("pwritev dsync", "pool", "BrokenQueueError") in outcomes  # the frame, in what was the spare


@pytest.mark.parametrize("sync_failure", ["ext4", "btrfs", "ext4 data=journal"])
def test_failed_sync_of_the_target_breaks_nothing(sync_failure: str) -> None:
    """A sync that fails before the commit costs the compaction, and not the queue: nothing refers to the target yet."""
    disk = SimulatedDisk()
    disk.sync_failure = sync_failure
    queue = on_simulated(disk)
    left = sparse(queue)
    disk.fault = lambda call, path: OSError(errno.EIO, "") if (call, path[-7:]) == ("fdatasync", "008.seg") else None
    if sync_failure == "ext4 data=journal":
        assert queue.compact().segments == 6  # a failure that the next sync reports, and there is none
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
    """A trim, or a large flush, meanwhile neither waits for a sync of the target nor hears that one failed."""
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
    """A move of so many items to 100 bytes."""
    return Move(first, count, number, offset, 100, first, 0, count if live is None else live)


def gappy() -> State:
    """Sequences 0 to 9 in segment 1, of which 2 to 6 are consumed, 10 to 14 in segment 2, and nothing in segment 3."""
    operations = (segment(1), segment(2), segment(3), enqueue(0, 10, 1, 64, 0), enqueue(10, 5, 2, 64, 0))
    return state_of(*operations, Dequeue(0, 2, 5))


def test_what_a_compaction_adds_up_to() -> None:
    """The moves hold what is unconsumed, by the bytes that they were copied with; the sources are drained."""
    state = gappy()
    state.apply(Compaction([1], [moved(0, 2, 3, 64), moved(7, 3, 3, 164)]))
    assert list(_check_state(state)) == []
    assert [(e.first, e.count, e.segment, e.live) for e in state.extents] == [(0, 2, 3, 2), (7, 3, 3, 3), (10, 5, 2, 5)]
    assert (state.drained, state.segments[1].live, state.live_bytes) == ({1}, 0, 300)
    assert (state.segments[3].live, state.segments[3].end, state.segments[3].ordinal) == (5, 264, 10)
    assert (state.find(8).segment, state.find(12).segment) == (3, 2)
    assert State.restore(state.checkpoint(0, None, ())).checkpoint(0, None, ()) == state.checkpoint(0, None, ())


def test_what_was_consumed_since_does_not_move() -> None:
    """A move of which a part was consumed since holds the rest; one of which all was consumed holds nothing."""
    state = gappy()
    state.apply(Dequeue(0, 0, 2))
    state.apply(Dequeue(0, 9, 1))
    state.apply(Compaction([1], [moved(0, 2, 3, 64), moved(7, 3, 3, 164)]))
    assert list(_check_state(state)) == []
    assert rows(state) == [(7, 3, 2), (10, 5, 5)]
    assert (state.segments[3].live_bytes, state.segments[3].end) == (66, 264)


def test_a_filled_hole_counts_as_consumed() -> None:
    """A move with a hole has the live items that were copied, and their share of its bytes is all of it."""
    state = gappy()
    state.apply(Compaction([1], [moved(0, 10, 3, 64, live=5)]))
    assert list(_check_state(state)) == []
    assert (rows(state)[0], state.segments[3].live_bytes) == ((0, 10, 5), 100)
    state.apply(Dequeue(0, 7, 3))
    assert state.segments[3].live_bytes == 40


@pytest.mark.parametrize(
    "compaction",
    [
        Compaction([1], []),  # what lives in it would be gone
        Compaction([1], [moved(0, 2, 3, 64)]),
        Compaction([1, 7], [moved(0, 2, 3, 64), moved(7, 3, 3, 164)]),  # an unknown source
        Compaction([1], [moved(0, 2, 7, 64), moved(7, 3, 3, 164)]),  # an unknown target
        Compaction([1], [moved(0, 2, 1, 64), moved(7, 3, 3, 164)]),  # a target that goes
        Compaction([1], [moved(0, 2, 3, 63), moved(7, 3, 3, 164)]),  # in the header
        Compaction([1], [moved(0, 2, 3, 64, live=0), moved(7, 3, 3, 164)]),  # nothing was copied
        Compaction([1], [moved(0, 2, 3, 64, live=3), moved(7, 3, 3, 164)]),  # more than there is
        Compaction([1], [moved(0, 10, 3, 64, live=4)]),  # fewer than live: one of them is a hole
        Compaction([1], [moved(0, 2, 3, 64), moved(7, 9, 3, 164)]),  # sequences that nobody has yet
        Compaction([1], [moved(0, 2, 3, 64), moved(0, 3, 3, 164)]),  # something twice
        Compaction([1], [moved(0, 5, 3, 64), moved(4, 6, 3, 164, live=3)]),  # overlapping, where it is consumed
        Compaction([1], [moved(0, 2, 3, 64), moved(7, 1, 3, 164), moved(10, 2, 3, 264)]),  # of another segment
        Compaction([3], [moved(10, 1, 3, 164)]),
        Compaction([], [moved(10, 1, 3, 164)]),
    ],
    ids=str,
)
def test_compaction_that_contradicts_the_state(compaction: Compaction) -> None:
    """What cannot be is refused, whatever its checksum says."""
    with pytest.raises(StateError):
        gappy().apply(compaction)


def test_unconsumed_runs() -> None:
    """The runs that are not consumed, in any range."""
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
    """A compaction comes back from its frame as it was, beside other operations."""
    transactions: list[list[Operation]] = [[Compaction(numbers, moves), Dequeue(0, 1, 2)], [Compaction([], [])]]
    data = bytes(64) + encode(transactions)
    assert decode_frame(data, 64, SALT, "file").transactions == transactions


@given(st.lists(NUMBERS, max_size=3), st.lists(MOVES, min_size=1, max_size=2), st.data())
def test_frame_that_is_too_short(numbers: list[int], moves: list[Move], data: st.DataObject) -> None:
    """Counts are checked against what is there, also where the checksum is right."""
    body = encode_transaction([Compaction(numbers, moves)])
    cut = body[: data.draw(st.integers(5, len(body) - 1))]
    with pytest.raises(CorruptionError):
        decode_frame(forge_frame(cut, 1, 1), 64, SALT, "file")


# --- a log that lacks a frame ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hole_items", [0, 64])
def test_repair_with_a_lost_frame_around_a_compaction(hole_items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever frame is damaged, each item but its own is there once: what cannot be applied stays in its sources."""
    monkeypatch.setattr(Store, "_is_worth_trimming", lambda store: False)
    settings = replace(SMALL, log_bytes=1 << 16)
    disk = SimulatedDisk()
    store = filled(disk, numbered(14), settings)
    consume(store, {1, 2, 3})
    consume(store, {5, 6, 8})
    assert sources(compact_store(store, 0.9, hole_items)) == [1, 2]
    consume(store, {0, 7})
    store.commit([enqueuing(b"after")])
    assert sources(compact_store(store, 0.9, hole_items)) == [4]  # what was moved moves again
    consume(store, {13})
    whole = items_in(store)
    store.release()
    log = max(name for name in disk.names if name.endswith(".log"))
    frames = replay(bytes(disk.inodes[disk.names[log]].cache), log).frames
    everything = [operation for frame in frames for done in frame.transactions for operation in done]
    assert sum(isinstance(operation, Compaction) for operation in everything) == 2
    dequeued = [(o.first, o.count) for o in everything if isinstance(o, Dequeue)]
    items = [*numbered(14), b"after"]
    for frame in frames[1:-1]:
        damaged = disk.kill(lambda _: 0)
        damaged.inodes[damaged.names[log]].cache[frame.offset + FRAME_HEADER_BYTES + 5] ^= 1
        report = repair("/queues", "q", disk=damaged.disk)
        found = items_in(opened(damaged, settings))
        operations = [operation for done in frame.transactions for operation in done]
        lost = {n for o in operations if isinstance(o, Enqueue) for n in range(o.first, o.first + o.count)}
        again = {n for o in operations if isinstance(o, Dequeue) for n in range(o.first, o.first + o.count)}
        for first, count in dequeued:  # what was consumed together with what is lost comes again as well
            again |= set(range(first, first + count)) if lost & set(range(first, first + count)) else set()
        expected = [item for n, item in enumerate(items) if n not in lost and (item in whole or n in again)]
        assert found == expected, (frame, report)
        assert check("/queues", "q", disk=damaged.disk).ok


@pytest.mark.parametrize("hole_items", [0, 64])
def test_repair_without_a_log_after_a_compaction(hole_items: int) -> None:
    """What was left out of the copies is no item, also where nothing but the segments tells; an empty one is."""
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
    report = repair("/queues", "q", disk=disk.disk)
    assert report.without_log
    found = items_in(opened(disk))
    again = [item for item in found if item not in left]  # nobody can tell that these were consumed
    assert sorted(found) == sorted(left + again)
    assert set(again) <= {items[5], items[8]}
    assert found.count(b"") == 1


# --- threads ---------------------------------------------------------------------------------------------------------


class Stop:
    """Stops who comes to a failpoint, once, until it is told to go on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reached, self.go_on = threading.Event(), threading.Event()

    def failpoint(self, name: str) -> None:
        """The disk's failpoint."""
        if name == self.name and not self.reached.is_set():
            self.reached.set()
            assert self.go_on.wait(SECONDS)


POINTS = ["compact.1 make target", "compact.2 copy", "compact.3 sync target", "compact.4 commit"]


@pytest.mark.parametrize("point", POINTS[1:])
def test_closing_while_it_is_compacted(open_queue: QueueFactory, directory: Path, point: str) -> None:
    """Closing waits for the compaction, which gives up; all is as it was, and the target is gone."""
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
    """Nobody waits, no file is closed under the compaction's hands; then it gives up, and the lock is free."""
    stop = Stop(point)
    options: dict[str, Any] = {"segment_bytes": 1000, "disk": replace(IN_CACHE, failpoint=stop.failpoint)}
    queue = PersistentQueue(directory.parent, directory.name, **options)
    left = sparse(queue)
    with ThreadPoolExecutor(1) as pool:
        # As maintenance does, which has no hold on the queue.
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
    """The second one waits for the first, and finds nothing left."""
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
    """Wherever a compaction is, others enqueue, dequeue, roll back, spill and trim; nobody waits for it."""
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
    """It is told of each mebibyte, in order; what it raises ends the compaction, and what was not moved stays."""
    queue = open_queue(segment_bytes=8 << 20, memory_bytes=0, disk=IN_CACHE)
    items = [bytes([n]) * 300_000 for n in range(40)]
    put(queue, *items)
    put(queue, b"x" * (8 << 20))
    left = keep_only(queue, {*items[::2], b"x" * (8 << 20)})
    told: list[int] = []

    class EnoughError(Exception):
        pass

    def enough(copied_bytes: int) -> None:
        told.append(copied_bytes)
        if copied_bytes > 2 << 20:
            raise EnoughError

    before = queue.stats()
    with pytest.raises(EnoughError):
        queue.compact(below=0.9, progress=enough)
    queue.trim()
    assert queue.stats().segments == before.segments
    told.clear()
    compacted = queue.compact(below=0.9, progress=told.append)
    assert sorted(told) == told
    assert max(b - a for a, b in pairwise([*told, compacted.copied_bytes])) <= (1 << 20) + 600_000
    assert list(queue.browse()) == left


class Clock:
    """A time that passes only where a group sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds, self.naps = 1000.0, list[float]()
        monkeypatch.setattr(OpenQueue, "now", lambda *_: self.seconds)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.seconds += seconds


@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "by itself"])
def test_no_more_bytes_per_second(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch, by_hand: bool) -> None:
    """It takes as long as what it copies takes at the rate asked for, in naps, so that closing need not wait."""
    queue = open_queue(**LITTLE, compact_bytes_per_second=1000)
    keeper = queue.session()
    left = sparse(queue)
    keeper.dequeue_many(6)
    clock = Clock(monkeypatch)
    if by_hand:
        copied_bytes = queue.compact(bytes_per_second=1000).copied_bytes
    else:
        copied_bytes = queue._maintenance._maintain(1000).copied_bytes
    assert copied_bytes > 700
    assert clock.seconds - 1000 == pytest.approx(copied_bytes / 1000, abs=0.2)
    assert max(clock.naps) <= 0.05
    keeper.close()
    assert drain(queue) == left


def test_closing_in_a_pause(open_queue: QueueFactory, directory: Path) -> None:
    """A compaction that pauses gives up soon after the queue is closed."""
    queue = open_queue(**LITTLE)
    left = sparse(queue)
    told = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        compacting = pool.submit(queue.compact, bytes_per_second=0.001, progress=lambda _: told.set())
        assert told.wait(SECONDS)
        queue.close()
        with pytest.raises(ClosedError):
            compacting.result(SECONDS)
    assert drain(open_queue(**LITTLE)) == left


def test_a_rate_must_be_one(open_queue: QueueFactory, tmp_path: Path) -> None:
    """Nothing per second would never end."""
    with pytest.raises(ValueError, match="bytes_per_second must be more than 0, got 0"):
        open_queue().compact(bytes_per_second=0)
    with pytest.raises(ValueError, match=r"compact_below must be a share from 0 to 1, got 1\.5"):
        open_queue(compact_below=1.5)
    with pytest.raises(ValueError, match="compact_bytes_per_second must be at least 1, got 0"):
        PersistentQueue(tmp_path / "other", compact_bytes_per_second=0)


@pytest.mark.parametrize("options", [LITTLE, {**LITTLE, "inline_bytes": 0, "log_bytes": 4096}], ids=["", "data first"])
def test_traffic_while_it_is_compacted(open_queue: QueueFactory, options: dict[str, Any]) -> None:
    """Threads enqueue, dequeue, hold and roll back, and one compacts all the time: content equals a model's."""
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

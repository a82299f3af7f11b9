"""Compaction: moved items keep their content and order, other segments stay unchanged, and no failure loses an item."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistentqueue import (
    ClosedError,
    PersistentQueue,
    View,
    check,
)
from persistentqueue.core.block import BLOCK_BYTES
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.core.intervals import join_runs
from persistentqueue.core.operations import Compaction, Operation
from persistentqueue.core.state import Extent
from persistentqueue.engine import compaction
from persistentqueue.engine.compaction import Copy
from persistentqueue.engine.context import Settings
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Transaction
from persistentqueue.storage.log_reader import decode_log
from persistentqueue.storage.segment_files import OPEN_FILES
from tests.conftest import QueueFactory
from tests.crash.disk import SimulatedDisk
from tests.crash.explorer import content_of
from tests.durability.test_campaigns import enqueuing, opened
from tests.support.queues import IN_CACHE, crash, drain, log_file, put, segment_files

SMALL = Settings(segment_bytes=400 + HEADER_BYTES, log_bytes=4096, memory_bytes=0)
LITTLE: dict[str, Any] = {"segment_bytes": 1000 + HEADER_BYTES, "memory_bytes": 0, "disk": IN_CACHE}


# --- helpers: the store ----------------------------------------------------------------------------------------------


def numbered(count: int, size_bytes: int = 20) -> list[bytes]:
    """Return so many items, each of which begins with its position."""
    return [(b"%d " % n).ljust(size_bytes, b".") for n in range(count)]


def filled(disk: SimulatedDisk, items: Iterable[bytes], settings: Settings = SMALL) -> Store:
    """Return a store with these items, each committed by itself."""
    store = opened(disk, settings)
    for item in items:
        store.commit([enqueuing(item)])
    return store


def consume(store: Store, sequences: Collection[int], taken: int = 2**62) -> None:
    """Reserve the first ``taken`` items, consume those with the given ``sequences``, and release the others."""
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
    """Commit the copy as a queue does. Return the ``Compaction`` that was committed, or None."""
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
    """Run one compaction from begin to end. Return the ``Compaction`` that was committed, or None."""
    copy = store.begin_compaction(below, False, hole_items)
    if copy is None:
        return None
    while copy.step():
        pass
    return commit_copy(store, copy)


def sources(compaction: Compaction | None) -> list[int]:
    """Return the numbers of the segments that the compaction emptied; none if there was no compaction."""
    return compaction.sources if compaction is not None else []


def items_in(store: Store) -> list[bytes]:
    """Return all ready items."""
    return list(content_of(store).items)


def segments_of(store: Store) -> list[int]:
    """Return the numbers of the segments with live items."""
    return sorted(number for number, info in store.state.segments.items() if info.live)


# --- helpers: the queue ----------------------------------------------------------------------------------------------


def keep_only(queue: PersistentQueue, kept: Collection[bytes]) -> list[bytes]:
    """Consume all items except these, and return the items that are left."""
    items = list(queue.browse())
    with queue.session() as consumer, queue.session() as keeper:
        for is_kept, group in groupby(items, key=lambda item: item in kept):
            its = list(group)
            assert (keeper if is_kept else consumer).dequeue_many(len(its)) == its
        consumer.flush()
        keeper.rollback()
    return [item for item in items if item in kept]


def sparse(queue: PersistentQueue, segments: int = 6, per_segment: int = 10) -> list[bytes]:
    """Fill so many segments, of which each keeps one item, and a current segment. Return the items that are left."""
    items = numbered(segments * per_segment, 1000 // per_segment)
    for at in range(0, len(items), per_segment):
        put(queue, *items[at : at + per_segment])
    put(queue, b"current" * 100)
    return keep_only(queue, {*items[per_segment // 2 :: per_segment], b"current" * 100})


# --- moved items -----------------------------------------------------------------------------------------------------


def test_one_item_no_longer_keeps_a_file(open_queue: QueueFactory, directory: Path) -> None:
    """A compaction collects the live items of sparse segments in one segment, unchanged and in order, and deletes the
    old files."""
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


def test_moved_items_keep_their_age(open_queue: QueueFactory, directory: Path) -> None:
    """A compaction makes no item younger: a copied block has the time of its oldest item."""
    now_ns = iter(range(10**18, 2 * 10**18, 10**9))
    queue = open_queue(**{**LITTLE, "disk": replace(IN_CACHE, time_ns=lambda: next(now_ns))})
    sparse(queue)
    view = View(directory)
    before = {item.sequence: item.time_ns for item in view.browse()}
    assert queue.compact().segments == 6
    after = {item.sequence: item.time_ns for item in view.browse()}
    assert all(after[sequence] <= time_ns for sequence, time_ns in before.items())
    assert (min(after.values()), max(after.values())) == (min(before.values()), max(before.values()))
    assert sorted(after) == sorted(before) and list(after.values()) == sorted(after.values())


@pytest.mark.parametrize("end", [PersistentQueue.close, crash], ids=["closed", "crashed"])
def test_reopened_after_a_compaction(open_queue: QueueFactory, directory: Path, end: Callable[[Any], None]) -> None:
    """After a clean close and after a crash, moved items are in their places. They can be consumed, and items can be
    added."""
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
    """After a crash before a trim, recovery replays the compaction from its frame, over enqueues that the log
    contains."""
    queue = open_queue(**LITTLE)
    left = sparse(queue)
    store = queue._open_queue._store  # type: ignore[union-attr]
    assert compact_store(store, 0.3) is not None
    crash(queue)
    frames = decode_log(log_file(directory).read_bytes(), log_file(directory).name).frames
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
    """After a power cut, a log that is not synced may have kept a compaction and lost earlier frames. It never names
    moved items that are lost."""
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
    """Items larger than a block, and blocks full of medium-sized items, keep their content."""
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
    """Consecutive items become one move and one extent, however many blocks they take."""
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


@pytest.mark.unwatched
@settings(max_examples=60)
@given(st.lists(st.binary(max_size=30), min_size=8, max_size=40), st.data())
def test_anything_is_moved_as_it_was(items: list[bytes], data: st.DataObject) -> None:
    """After any items, and any consumption before and during a compaction, each remaining item is there once and in
    order."""
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


# --- segments that are left alone ------------------------------------------------------------------------------------


def test_below_is_a_share(open_queue: QueueFactory, directory: Path) -> None:
    """With ``below=0`` no segment is sparse; with 1 each segment that is not full is. Full segments and the current one
    stay."""
    queue = open_queue(**LITTLE)
    items = numbered(40, 100)
    for at in range(0, 40, 10):
        put(queue, *items[at : at + 10])
    put(queue, b"current")
    keep_only(queue, {*items[:9], *items[10:20], items[29], *items[30:35], b"current"})
    left = list(queue.browse())
    assert queue.compact(below=0) == (0, 0)
    assert queue.compact(below=0.05) == (0, 0)
    assert queue.compact(below=0.3).segments == 1  # the segment of item 29
    names = [path.name for path in segment_files(directory)]
    assert names == [f"{n:012d}.seg" for n in (1, 2, 4, 5, 6)]
    assert queue.compact(below=1).segments == 3  # 0 to 8, 30 to 34, and the copy of 29, which is full but small
    assert queue.compact(below=1) == (0, 0)
    assert f"{2:012d}.seg" in [path.name for path in segment_files(directory)]
    assert list(queue.browse()) == left
    for below in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="a share from 0 to 1"):
            queue.compact(below=below)


def test_nothing_to_compact(open_queue: QueueFactory) -> None:
    """A compaction leaves an empty queue, and one without sparse segments, unchanged. It still makes all commits
    durable."""
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
    """A segment with uncommitted blocks of a session is no source. Once they are committed, it may be one."""
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
    """With ``settled_only``, items that were never handed out keep their segment from being a source: it is about to be
    drained anyway."""
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
    """Up to ``hole_items`` consumed items between two live ones are covered by one move, and never delivered. A larger
    hole divides the move."""
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
    """A move does not cover a live item of another segment, which lies between two items of its source because a
    session spilled."""
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
    """Consumed items at the end of one extent and at the beginning of the next are one hole, which may include whole
    extents."""
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
    """Items that do not fit in one target go to the next, and no target is larger than a segment."""
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
    """A source is left to the next compaction if its live items do not fit: its average item was small, but its live
    item is the largest."""
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
    """A segment that is larger than the present setting of ``segment_bytes`` is compacted all the same."""
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
    """After ``MOVES_MAX`` moves, which bound the frame, the other sources are left to the next compaction."""
    monkeypatch.setattr(compaction, "MOVES_MAX", 2)
    store = filled(SimulatedDisk(), numbered(31), replace(SMALL, segment_bytes=4000))
    for item in numbered(3, 4000):
        store.commit([enqueuing(item)])
    store = filled(SimulatedDisk(), numbered(21))
    consume(store, {n for n in range(20) if n % 5})
    assert [sources(compact_store(store, 0.9, hole_items=0)) for _ in range(3)] == [[1, 2], [3, 4], []]
    assert items_in(store) == [item for n, item in enumerate(numbered(21)) if n % 5 == 0]


def test_a_source_that_is_drained_meanwhile() -> None:
    """A source that is drained before, while or after it is copied is retired like any other."""
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


def test_many_sources_need_few_descriptors() -> None:
    """A compaction keeps few files of its sources open, and looks at each extent few times."""
    segments = 3 * OPEN_FILES
    store = filled(SimulatedDisk(), numbered(5 * segments + 1))
    consume(store, {n for n in range(5 * segments) if n % 5})
    store.segments.resize(64 * 1024)  # so that one target has room for all of them
    visited = 0

    class Visited(list[Extent]):
        def __iter__(self) -> Iterator[Extent]:
            nonlocal visited
            visited += len(self)
            return super().__iter__()

    store.state.extents = Visited(store.state.extents)
    copy = store.begin_compaction(0.9, False)
    assert copy is not None
    while copy.step():
        assert len(store.segments._open) < 2 * OPEN_FILES
    assert len(copy.done) == segments
    assert visited < 5 * segments
    compaction = commit_copy(store, copy)
    assert len(sources(compaction)) == segments
    store.trim()
    assert len(items_in(store)) == segments + 1


def test_all_sources_drained_meanwhile() -> None:
    """If all sources are drained meanwhile, the compaction commits nothing or its target is drained at once. No file of
    it is left."""
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


@pytest.mark.usefixtures("reports_each_step")
def test_rolled_back_while_it_is_moved(open_queue: QueueFactory) -> None:
    """Held items are moved like others. After a rollback they come out first, and after a flush they are gone."""
    queue = open_queue(**LITTLE)
    left = sparse(queue)
    with queue.session() as one, queue.session() as two:
        assert one.dequeue_many(2) == left[:2]
        assert two.dequeue_many(2) == left[2:4]

        def flush(*_: object) -> None:
            one.flush()

        assert queue.compact(progress=flush).segments == 4
        assert queue.stats().held == 2
        two.rollback()
        assert list(queue.browse()) == left[2:]
    crash(queue)
    assert drain(open_queue(**LITTLE)) == left[2:]


@pytest.mark.usefixtures("reports_each_step")
def test_one_round_under_traffic(open_queue: QueueFactory) -> None:
    """A compaction ends although sessions consume moved items meanwhile: it does not move those items again."""
    queue = open_queue(**LITTLE)
    left = sparse(queue, segments=6, per_segment=20)
    calls: list[int] = []

    def take(copied_bytes: int, _: int | None) -> None:
        if not calls or copied_bytes > calls[-1]:
            with queue.transaction() as session:  # a moved item, so that the target is never full
                session.dequeue()
        calls.append(copied_bytes)

    assert queue.compact(below=1, progress=take).segments <= 6
    assert max(calls) < 2 * sum(map(len, left))


@pytest.mark.usefixtures("reports_each_step")
def test_room_that_it_takes(open_queue: QueueFactory, directory: Path) -> None:
    """A compaction of many segments takes room for at most one segment more, apart from the log."""
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

    def look(*_: object) -> None:
        most[0] = max(most[0], data_bytes())

    assert queue.compact(progress=look).segments == 50
    assert most[0] <= before + 1000 + HEADER_BYTES
    assert data_bytes() < before / 2

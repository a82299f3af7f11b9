"""Splits: the items of a queue are read in parts, beside its owner and without the lock."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import random
import shutil
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import CorruptionError, Encryption, PersistentQueue, QueueNotFoundError, WrongKeyError, move_data
from persistentqueue.core.encryption import PLAIN
from persistentqueue.core.frame import LOG_MAGIC, Frame
from persistentqueue.core.header import HEADER_BYTES, decode_header, encode_header
from persistentqueue.core.intervals import Run
from persistentqueue.core.state import Extent
from persistentqueue.interprocess import splits as splits_module
from persistentqueue.interprocess.splits import (
    GoneError,
    Onlooker,
    Split,
    find_behind,
    look,
    partition,
    plan,
    read,
    read_columns,
)
from persistentqueue.recovery.replay import Recovered
from persistentqueue.storage.locations import Places
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import crash, drain, flip, log_file, put, put_each, segment_files

from .test_multi_writer import LISTS
from .test_multi_writer import publish as publish_manifest
from .test_producer import publish

EVERYTHING: Run = (0, 2**62)


def planned(directory: Path, *runs: Run, disk: Disk = DISK) -> list[Split]:
    """Return the splits of these sequences, or of everything."""
    places, recovered = look(disk, str(directory))
    return plan(disk, places, recovered, runs or (EVERYTHING,))


def items_of(directory: Path, splits: list[Split], **options: Any) -> dict[int, bytes]:
    """Return the items of these splits, by their sequences."""
    found: dict[int, bytes] = {}
    for split in splits:
        for part in read(DISK, str(directory), split, **options):
            for sequence, item in enumerate(part.items, part.first):
                assert sequence not in found
                found[sequence] = item
    assert list(found) == sorted(found)
    return found


def items(count: int, length_bytes: int = 0) -> list[bytes]:
    return [b"%d" % number + bytes(length_bytes) for number in range(count)]


def fill(queue: PersistentQueue) -> None:
    """Put sixty items of five kilobytes, six in each block."""
    for start in range(0, 60, 6):
        put(queue, *items(60, 5000)[start : start + 6])


def test_everything_is_read_beside_the_owner(open_queue: QueueFactory, directory: Path) -> None:
    """Items of small flushes, which only the log has so far, and of large flushes are read in order beside the
    owner."""
    queue = open_queue(segment_bytes=200_000)
    expected: list[bytes] = []
    for number in range(40):
        some = [b"%d %d" % (number, n) + bytes(1000 * (number % 3)) for n in range(1 + 100 * (number % 4 == 0))]
        put(queue, *some)
        expected += some
    assert len(segment_files(directory)) > 3
    splits = planned(directory)
    assert any(split.blocks for split in splits)
    found = items_of(directory, splits)
    assert list(found.values()) == expected
    assert list(found) == list(range(len(expected)))
    assert sum(split.items for split in splits) == len(expected)
    assert len(queue) == len(expected)


def test_what_the_log_carries_is_taken_along_only_where_it_has_to_be(open_queue: QueueFactory, directory: Path) -> None:
    """A split carries the blocks that its file does not have yet; once they are written there, it carries none."""
    queue = open_queue()
    put_each(queue, items(50))
    (split,) = planned(directory)
    assert split.blocks is not None
    queue.trim()
    (split,) = planned(directory)
    assert split.blocks is None
    put_each(queue, items(50))
    before, behind = planned(directory)
    assert (before.blocks, before.items, behind.items) == (None, 50, 50)
    assert list(items_of(directory, [before, behind]).values()) == items(50) * 2
    queue.close()
    (split,) = planned(directory)
    assert (split.blocks, split.items) == (None, 100)


def test_a_segment_that_was_never_written(directory: Path) -> None:
    """If a segment file is missing after a crash, the log has all items that were flushed."""
    queue = PersistentQueue(directory)
    put(queue, *LISTS[0])
    put(queue, *LISTS[1])
    crash(queue)
    whole = segment_files(directory)[0].read_bytes()
    segment_files(directory)[0].unlink()
    assert list(items_of(directory, planned(directory)).values()) == [b"a", b"b", b"c"]
    segment_files(directory) or (directory / "data" / "000000000001.seg").write_bytes(whole)


def test_what_is_well_is_not_passed_over(open_queue: QueueFactory, directory: Path) -> None:
    """``find_behind`` refuses to pass over a first block that can be read."""
    with open_queue() as queue:
        put(queue, *items(3))
    (split,) = planned(directory)
    with pytest.raises(CorruptionError, match="expected the damage"):
        find_behind(DISK, split, PLAIN)


def test_what_is_consumed_is_left_out(open_queue: QueueFactory, directory: Path) -> None:
    """Exactly the items that are not consumed are read, including those on hold."""
    queue = open_queue(memory_bytes=0)
    put(queue, *items(100))
    with queue.session() as first, queue.session() as second:
        assert len(first.dequeue_many(10)) == 10
        assert len(second.dequeue_many(20)) == 20
        second.flush()
        assert list(items_of(directory, planned(directory))) == [*range(10), *range(30, 100)]
        first.flush()
    assert list(items_of(directory, planned(directory))) == list(range(30, 100))
    drain(queue)
    assert planned(directory) == []


def test_some_of_the_sequences(open_queue: QueueFactory, directory: Path) -> None:
    """Each item of the requested runs is read once; runs beyond the queue are empty."""
    queue = open_queue(segment_bytes=100_000)
    put(queue, *items(100, 5000))
    for runs in ([(0, 1)], [(99, 5)], [(17, 3), (40, 30)], [(200, 5)]):
        wanted = [n for first, count in runs for n in range(first, first + count) if n < 100]
        assert list(items_of(directory, planned(directory, *runs))) == wanted


@pytest.mark.parametrize("slack", [0.0, 0.25])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 20, 10_000])
def test_partitions_are_about_as_large_as_each_other(
    open_queue: QueueFactory, directory: Path, count: int, slack: float
) -> None:
    """Large extents are cut and small ones are grouped, with or without gaps; together the partitions have every item
    once, in order."""
    queue = open_queue(segment_bytes=100_000)
    fill(queue)
    with queue.session() as session:
        for number in range(40):
            session.dequeue()
            if number % 2:
                session.flush()
            else:
                session.rollback()
    for number in range(30):
        put(queue, b"small %d" % number)
    splits = planned(directory)
    groups = partition(splits, count, slack)
    assert items_of(directory, [split for group in groups for split in group]) == items_of(directory, splits)
    assert all(split.items for group in groups for split in group)
    assert sum(map(len, groups)) <= len(splits) + len(groups) - 1  # a split is cut only where a group ends
    items, sizes = sum(each.items for each in splits), [sum(each.length_bytes for each in group) for group in groups]
    if count == 1:
        assert groups == [splits]
    elif count <= 20:
        largest_bytes = max(-(-each.length_bytes // each.items) for each in splits)
        assert len(groups) == count
        # With the slack, the groups before the last ones may have taken less. Sizes are rounded down.
        assert max(sizes) <= (1 + 2 * slack) * sum(sizes) / count + largest_bytes + len(splits)
    else:
        assert count > items >= len(groups) > items / 2


@pytest.mark.parametrize("count", range(1, 14))
def test_gaps_are_cut_like_anything_else(count: int) -> None:
    """If a split with gaps is cut, its parts have the same sequences in order, in about equal numbers."""
    runs = ((0, 3), (10, 4), (19, 6))
    split = Split(("file",), 1, 2, 64, 64 + 2500, 0, 25, 0, runs, None)
    groups = partition([split], count)
    cut = [part for group in groups for part in group]
    assert len(cut) == len(groups) == count
    assert [n for part in cut for first, count in part.runs for n in range(first, first + count)] == [
        n for first, count in runs for n in range(first, first + count)
    ]
    assert max(part.items for part in cut) - min(part.items for part in cut) <= 1


def test_segments_of_about_the_right_size_are_not_cut() -> None:
    """With a slack, splits that are nearly as long as a partition are partitions. Without one, all are as long."""
    sizes = [10, 20, 90, 95, 104, 99, 98]
    splits = [Split(("file",), n, 2, 0, size * 10**6, 0, size, 0, ((0, size),), None) for n, size in enumerate(sizes)]
    assert partition(splits, 5, 0.25) == [splits[:3], *([split] for split in splits[3:])]
    sizes = [sum(split.items for split in group) for group in partition(splits, 5)]
    assert len(sizes) == 5 and max(sizes) - min(sizes) <= 1


def test_more_partitions_than_items_cost_nothing(open_queue: QueueFactory, directory: Path) -> None:
    """A number of partitions far above that of the items costs neither memory nor time."""
    put(open_queue(), *[b"item"] * 10)
    splits = planned(directory)
    tracemalloc.start()
    try:
        groups = partition(splits, 10**6)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert groups == partition(splits, 10) == partition(splits, 2**63)


def test_no_splits_are_no_partitions() -> None:
    """Without splits there are no groups, however many were asked for."""
    assert partition([], 3) == []


def test_blocks_that_were_written_ahead(open_queue: QueueFactory, directory: Path) -> None:
    """Blocks that a session has spilled come in the order of the commits, behind items that were committed before."""
    queue = open_queue()
    large = [b"%d" % number + bytes(1024 * 1024) for number in range(20)]
    with queue.session() as session:
        session.enqueue_many(large)
        put(queue, b"small")
        put(queue, b"another")
        session.flush()
    put(queue, b"last")
    splits = planned(directory)
    assert list(items_of(directory, splits).values()) == [b"small", b"another", *large, b"last"]
    assert planned(directory, (0, 2)) + planned(directory, (2, 20)) + planned(directory, (22, 1)) == splits


def test_the_time_of_a_block(open_queue: QueueFactory, directory: Path) -> None:
    """Each item comes with the time at which its block was written."""
    clocks = iter(range(10**15, 10**18, 10**9))
    queue = open_queue(disk=replace(DISK, time_ns=lambda: next(clocks)))
    put(queue, b"a")
    put(queue, b"b")
    times = [found.time_ns for split in planned(directory) for found in read(DISK, str(directory), split)]
    assert 10**15 <= times[0] < times[1] < next(clocks)


def test_published_and_adopted_and_not_renamed(directory: Path) -> None:
    """Files that a killed owner has adopted and not renamed are read under their old names, and after the renames under
    the new ones."""

    def failpoint(name: str) -> None:
        if name == "adopt.3 rename":
            raise KeyboardInterrupt

    queue = call_on(replace(DISK, failpoint=failpoint), PersistentQueue, directory)
    publish(directory, b"x")
    publish_manifest(directory, *LISTS)
    with pytest.raises(KeyboardInterrupt), queue.session() as session:
        session.dequeue()
    crash(queue)
    splits = planned(directory)
    expected = [b"x", *(item for some in LISTS for item in some)]
    assert list(items_of(directory, splits).values()) == expected
    PersistentQueue(directory).close()
    assert list(items_of(directory, splits).values()) == expected


# --- changes meanwhile -----------------------------------------------------------------------------------------------


def test_consumed_since_it_was_planned(open_queue: QueueFactory, directory: Path) -> None:
    """Items that were consumed after planning are still read while their file is there.

    Then they raise ``GoneError``, or are left out with ``skips``.
    """
    queue = open_queue(segment_bytes=100_000)
    fill(queue)
    splits = planned(directory)
    with queue.session() as session:
        assert len(session.dequeue_many(50)) == 50
        session.flush()
    queue.trim()
    assert len(segment_files(directory)) < 3
    with pytest.raises(GoneError, match=r"consumed meanwhile.*read again") as caught:
        items_of(directory, splits)
    assert 0 < caught.value.missing < 50
    left = list(items_of(directory, splits, skips=True))
    assert left[-10:] == list(range(50, 60))
    assert len(left) < 30


def test_consumed_while_it_is_read(open_queue: QueueFactory, directory: Path) -> None:
    """A file that is retired or reused while it is read yields neither wrong items nor damage."""
    queue = open_queue(segment_bytes=100_000, pool_max_bytes=10**7)
    fill(queue)
    (split, *_) = planned(directory)
    reading = read(DISK, str(directory), split)
    assert next(reading).items == items(6, 5000)
    drain(queue)
    queue.trim()
    assert queue.stats().pool_files > 0
    for _ in range(10):
        put(queue, *[b"other" * 1000] * 6)
    assert queue.stats().pool_files == 0
    assert not Path(split.paths[0]).exists()
    with pytest.raises(GoneError):
        for found in reading:
            assert set(found.items) <= set(items(60, 5000))
    drain(queue)


@pytest.mark.parametrize("wipe", [False, True])
def test_consumed_while_its_file_is_deleted(open_queue: QueueFactory, directory: Path, wipe: bool) -> None:
    """A retired file that still has its name, but is shortened or overwritten already, holds items that are gone."""
    splits: list[Split] = []
    missing: list[int] = []

    def look_at(fd: int) -> None:
        if splits and not missing and os.path.samestat(os.fstat(fd), os.stat(splits[0].paths[0])):
            with pytest.raises(GoneError) as caught:
                items_of(directory, splits)
            missing.append(caught.value.missing)
            items_of(directory, splits, skips=True)

    def ftruncate(fd: int, length_bytes: int) -> None:
        DISK.ftruncate(fd, length_bytes)
        look_at(fd)

    def fdatasync(fd: int) -> None:
        DISK.fdatasync(fd)
        if wipe:
            look_at(fd)

    disk = replace(DISK, ftruncate=ftruncate, fdatasync=fdatasync)
    queue = open_queue(segment_bytes=8 * 1024 * 1024, inline_bytes=0, wipe=wipe, disk=disk)
    put_each(queue, items(12, 1024 * 1024))
    splits += [split for split in planned(directory) if split.items > 2][:1]
    drain(queue)
    queue.trim()
    assert missing == [splits[0].items if wipe else 1]


def test_compacted_since_it_was_planned(open_queue: QueueFactory, directory: Path) -> None:
    """Items that were compacted after planning are read at their new place."""
    queue = open_queue(segment_bytes=100_000)
    fill(queue)
    with queue.session() as session:
        for _ in range(60):
            session.dequeue()
        session.rollback()
        keep = queue.session()
        for number in range(60):
            (keep if number % 10 == 0 else session).dequeue()
        session.flush()
        keep.close()
    splits = planned(directory)
    expected = items_of(directory, splits)
    assert list(expected) == list(range(0, 60, 10))
    before = set(segment_files(directory))
    assert queue.compact(below=1.0).segments
    queue.trim()
    assert len(before & set(segment_files(directory))) <= 1  # the current one stays
    assert items_of(directory, splits) == expected


def test_columns_are_the_items(open_queue: QueueFactory, directory: Path) -> None:
    """Columns tell the items that ``read`` reads, block by block: of the log, of segments, and with holes."""
    queue = open_queue(segment_bytes=60_000)
    fill(queue)
    with queue.session() as session, queue.session() as keep:
        for number in range(30):
            (keep if number % 3 else session).dequeue()
        session.flush()
        keep.rollback()
    assert queue.compact(below=1.0).segments
    put_each(queue, items(3))
    with queue.session() as session, queue.session() as keep:
        for number in range(20):
            (keep if number % 2 else session).dequeue()
        session.flush()
        keep.rollback()
    splits = planned(directory)
    assert any(len(split.runs) > 1 for split in splits)
    expected = items_of(directory, splits)
    found: dict[int, bytes] = {}
    for split in splits:
        for run in read_columns(DISK, str(directory), split):
            assert run.columns is not None
            sizes = list(run.columns.sizes())
            begin = sum(sizes[: run.start])
            for sequence, size_bytes in enumerate(sizes[run.start : run.start + run.count], run.first):
                found[sequence] = bytes(run.columns.payload[begin : begin + size_bytes])
                begin += size_bytes
    assert found == expected
    headers = [run for split in splits for run in read_columns(DISK, str(directory), split, has_values=False)]
    assert [run.columns for run in headers] == [None] * len(headers)
    assert [at for run in headers for at in range(run.first, run.first + run.count)] == list(expected)


def test_headers_are_read_without_the_bodies(tmp_path: Path) -> None:
    """Without values, a read takes a fiftieth of the bytes at most, and no key; so do blocks whose time is not wanted.

    A damaged body is then not found.
    """
    with PersistentQueue(tmp_path, "q", encryption=Encryption("k", lambda key_id: bytes(16))) as queue:
        put(queue, *[os.urandom(1000)] * 9000)
    directory = tmp_path / "q"
    read_bytes = [0]

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        data = DISK.pread(fd, length_bytes, offset)
        read_bytes[0] += len(data)
        return data

    disk = replace(DISK, pread=pread)
    splits = planned(directory)
    for options in ({"has_values": False}, {"is_wanted": lambda time_ns: time_ns == 0}):
        read_bytes[0] = 0
        runs = [run for split in splits for run in read_columns(disk, str(directory), split, **options)]
        assert sum(run.count for run in runs) == (9000 if "has_values" in options else 0)
        assert read_bytes[0] < 9000 * 1000 // 50
    with pytest.raises(WrongKeyError):
        list(read_columns(DISK, str(directory), splits[0]))


def test_moved_since_it_was_planned(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan stays valid when the segments are moved, unless the items have moved too often."""
    with PersistentQueue(directory) as queue:
        put(queue, *items(10, 100))
    splits = planned(directory)
    move_data(directory, data_path=tmp_path / "elsewhere")
    assert list(items_of(directory, splits).values()) == items(10, 100)
    monkeypatch.setattr(splits_module, "_RELOCATIONS", 0)
    with pytest.raises(CorruptionError):
        items_of(directory, splits)


def test_another_queue_by_the_same_name(directory: Path) -> None:
    """A plan never yields items of another queue, even if its files have the same names."""
    with PersistentQueue(directory) as queue:
        put(queue, *items(10, 100))
    splits = planned(directory)
    for file in directory.rglob("*"):
        if file.is_file():
            file.unlink()
    with PersistentQueue(directory) as queue:
        put(queue, b"other")
    with pytest.raises(GoneError):
        items_of(directory, splits)


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.damages
@pytest.mark.parametrize("at", [0, 30, 80, 5000])
def test_damage_is_told_of(directory: Path, at: int) -> None:
    """A flipped byte in a header or an item raises an error with file and offset, and never yields an item."""
    with PersistentQueue(directory) as queue:
        put(queue, *items(10, 1000))
    splits = planned(directory)
    (file,) = segment_files(directory)
    flip(file, at)
    for skips in (False, True):
        with pytest.raises(CorruptionError, match=f"{file}: damaged at offset"):
            items_of(directory, splits, skips=skips)


@pytest.mark.damages
def test_fewer_items_than_the_log_says(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that end before the planned items do are damage, if a log that is read again still has these items."""
    with PersistentQueue(directory) as queue:
        put(queue, *items(10, 1000))
    (split,) = planned(directory)
    split = split._replace(end_ordinal=11, runs=((0, 11),))
    with pytest.raises(GoneError):
        items_of(directory, [split])
    monkeypatch.setattr("persistentqueue.interprocess.splits.plan", lambda *_: [split._replace(runs=((10, 1),))])
    with pytest.raises(CorruptionError, match="items up to 11"):
        items_of(directory, [split])


@pytest.mark.damages
def test_damage_between_the_items(open_queue: QueueFactory, directory: Path) -> None:
    """A damaged header of a consumed block costs none of the items before and behind it."""
    with open_queue(segment_bytes=10**6) as queue:
        fill(queue)
        with queue.session() as first, queue.session() as second:
            first.dequeue_many(6)
            second.dequeue_many(6)
            second.flush()
            first.rollback()
    (split,) = planned(directory)
    assert split.runs == ((0, 6), (12, 48))
    (file,) = segment_files(directory)
    flip(file, file.read_bytes().index(b"6" + bytes(5000)) - 40)
    assert list(items_of(directory, [split])) == [*range(6), *range(12, 60)]


def test_a_log_that_is_replaced_meanwhile(directory: Path) -> None:
    """A look is repeated if the owner replaces the log meanwhile, but not for ever."""
    with PersistentQueue(directory) as queue:
        put(queue, *items(3))
    looks = [0]

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        looks[0] += 1
        if looks[0] % 2:
            raise FileNotFoundError(errno.ENOENT, "trimmed meanwhile")
        return DISK.pread(fd, length_bytes, offset)

    places, recovered = look(replace(DISK, pread=pread), str(directory))
    assert len(plan(DISK, places, recovered, [EVERYTHING])) == 1
    with pytest.raises(CorruptionError):
        look(replace(DISK, pread=lambda *_: b""), str(directory))


@pytest.mark.parametrize("seed", range(6))
def test_whatever_was_consumed(open_queue: QueueFactory, directory: Path, seed: int) -> None:
    """Beside an owner that enqueues, dequeues out of order, trims and compacts, exactly the unconsumed items are
    read."""
    chance = random.Random(seed)
    queue = open_queue(segment_bytes=chance.choice([2000, 100_000]), log_bytes=chance.choice([4096, 1 << 20]))
    expected: dict[int, bytes] = {}
    number = 0
    for _ in range(60):
        step = chance.random()
        if step < 0.5:
            some = [
                b"%d" % n + bytes(chance.choice([0, 10, 700])) for n in range(number, number + chance.choice([1, 9]))
            ]
            put(queue, *some)
            expected |= dict(enumerate(some, number))
            number += len(some)
        elif step < 0.9:
            with queue.session() as holder, queue.session() as session:
                holder.dequeue_many(chance.randrange(4))
                for item in session.dequeue_many(chance.randrange(12)):
                    del expected[int(item.rstrip(b"\0"))]
                session.flush()
                holder.rollback()
        else:
            queue.trim() if chance.random() < 0.5 else queue.compact()
        assert items_of(directory, planned(directory)) == expected


# --- beside a quicker owner ------------------------------------------------------------------------------------------


def test_a_log_that_is_cut_while_it_is_read(directory: Path, open_queue: QueueFactory) -> None:
    """If the owner supersedes and cuts a log while it is read, the next log is read, and nothing is missing."""
    queue = open_queue(log_bytes=4096)
    put_each(queue, items(300, 50))
    cut: list[int] = []

    def fstat(fd: int) -> os.stat_result:
        found = os.fstat(fd)
        if not cut and os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
            queue.trim()
            cut.append(fd)
            os.truncate(f"/proc/self/fd/{fd}", 2000)
        return found

    assert look(replace(DISK, fstat=fstat), str(directory))[1].state.next_sequence == 300
    assert cut


def test_an_owner_who_begins_logs_again_and_again(directory: Path, open_queue: QueueFactory) -> None:
    """A look that never gets to the end of a log raises ``TimeoutError`` after a while."""
    queue = open_queue()

    def fstat(fd: int) -> os.stat_result:
        queue.trim()
        return os.fstat(fd)

    with pytest.raises(TimeoutError, match="look again"):
        look(replace(DISK, fstat=fstat), str(directory))


@pytest.mark.parametrize("sync", [True, False])
def test_an_adoption_between_a_look_and_a_read(directory: Path, sync: bool) -> None:
    """An adopted file that is renamed between a look and a read is found under either name.

    Nothing seems damaged, and nothing is lost if the queue does not sync.
    """
    killed = killed_before_the_rename(directory, sync)
    (published,) = (directory / "inbox").iterdir()
    renamed: list[str] = []

    def opens(path: str, flags: int, mode: int) -> int:
        if path == str(published) and not renamed:
            renamed.append(path)
            published.rename(directory / "data" / "000000000002.seg")
        return DISK.open(path, flags, mode)

    disk = replace(DISK, open=opens)
    splits = planned(directory, disk=disk)
    found = [item for split in splits for part in read(disk, str(directory), split) for item in part.items]
    assert found == [b"0", b"1", b"2"]
    assert renamed
    crash(killed)


def killed_before_the_rename(directory: Path, sync: bool) -> PersistentQueue:
    """Return a queue that has adopted a file by its log, and was interrupted before the rename."""

    def failpoint(name: str) -> None:
        if name == "adopt.3 rename":
            raise KeyboardInterrupt

    queue = call_on(replace(DISK, failpoint=failpoint), PersistentQueue, directory, sync=sync)
    put(queue, b"0")
    publish(directory, b"1", b"2")
    with pytest.raises(KeyboardInterrupt), queue.session() as session:
        session.dequeue()
        session.dequeue()
    return queue


def test_an_extent_is_planned_once(open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan looks at the blocks that the log carries once for each extent, and not once for each gap."""
    queue = open_queue()
    put_each(queue, items(200))
    with queue.session() as kept, queue.session() as consumed:
        for _ in range(100):
            kept.dequeue(), consumed.dequeue()
        consumed.flush()
        planned_extents: list[Extent] = []
        plan_extent = splits_module._plan_extent

        def planning(places: Places, recovered: Recovered, extent: Extent, *rest: Any) -> Iterator[Split]:
            planned_extents.append(extent)
            return plan_extent(places, recovered, extent, *rest)

        monkeypatch.setattr(splits_module, "_plan_extent", planning)
        (split,) = planned(directory, *[(sequence, 1) for sequence in range(0, 200, 2)])
        assert len(planned_extents) == 1
        assert [sequence for sequence, _ in split.runs] == list(range(0, 200, 2))
        assert list(items_of(directory, [split])) == list(range(0, 200, 2))
        kept.rollback()


def test_many_gaps(directory: Path) -> None:
    """Reading the rest of a split takes time in proportion to its gaps, and not to their square."""
    with PersistentQueue(directory) as queue:
        put(queue, *items(40_000))
    (split,) = planned(directory)
    odd = split._replace(runs=tuple((sequence, 1) for sequence in range(1, 40_000, 2)))
    assert list(items_of(directory, [odd])) == list(range(1, 40_000, 2))


def test_a_file_system_that_is_read_only(directory: Path) -> None:
    """Looking, planning and reading open no file for writing."""
    with PersistentQueue(directory) as queue:
        put(queue, *items(3))

    def opens(path: str, flags: int, mode: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "Read-only file system")
        return DISK.open(path, flags, mode)

    disk = replace(DISK, open=opens)
    (split,) = planned(directory, disk=disk)
    assert [found.items for found in read(disk, str(directory), split)] == [items(3)]


# --- looking again and again -----------------------------------------------------------------------------------------


class Counting:
    """A disk that counts the calls, and the bytes that are read."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.read_bytes = 0
        names = ("open", "pread", "fdatasync", "fsync", "listdir", "fstat", "lstat")
        self.disk = replace(DISK, **{name: self._door(name) for name in names})

    def _door(self, name: str) -> Any:
        def door(*arguments: Any) -> Any:
            self.calls.append(name)
            found = getattr(DISK, name)(*arguments)
            self.read_bytes += len(found) if name == "pread" else 0
            return found

        return door

    def told(self) -> tuple[list[str], int]:
        """Return the calls and bytes since the last call of ``told``."""
        told, self.calls, self.read_bytes = (self.calls, self.read_bytes), [], 0
        return told


def test_looking_again_costs_little_where_nothing_is_new(open_queue: QueueFactory, directory: Path) -> None:
    """A further look reads and syncs nothing that was looked at before, and sees anything new at once."""
    queue = open_queue()
    put_each(queue, items(500))
    counting = Counting()
    onlooker = Onlooker(counting.disk, str(directory))
    found = onlooker.look()
    assert counting.told()[1] > 500 * 60
    assert onlooker.look(durably=True) is found
    assert {"fdatasync", "fsync"} <= set(counting.told()[0])
    for durably in (True, False, True):
        assert onlooker.look(durably) is found
        calls, read_bytes = counting.told()
        assert not {"fdatasync", "fsync"} & set(calls)
        assert len(calls) < 8
        assert read_bytes < 100
    put(queue, b"new")
    assert onlooker.look(durably=True)[1].state.next_sequence == 501
    assert "fdatasync" in counting.told()[0]
    queue.trim()
    put(queue, b"newer")
    assert onlooker.look()[1].state.next_sequence == 502
    queue.close()
    assert onlooker.look()[1].replay.sealed
    with PersistentQueue(directory) as again:
        again.clear()
    assert onlooker.look()[1].state.gone_count == 502


def test_looking_again_at_a_log_of_an_older_version(directory: Path) -> None:
    """A log of version 1 that has not changed is not read again."""
    with PersistentQueue(directory) as queue:
        put(queue, b"a")
    path = log_file(directory)
    data = path.read_bytes()
    older = encode_header(LOG_MAGIC, decode_header(data, LOG_MAGIC, str(path)), version=1)
    path.write_bytes(older + data[HEADER_BYTES:])
    onlooker = Onlooker(DISK, str(directory))
    assert onlooker.look() is onlooker.look()


def test_looking_again_at_another_queue_of_the_same_name(directory: Path, tmp_path: Path) -> None:
    """A queue that was deleted, made again or moved is not mistaken for what it was."""
    onlooker = Onlooker(DISK, str(directory))
    with pytest.raises(QueueNotFoundError):
        onlooker.look()
    queue = PersistentQueue(directory)
    put(queue, b"a")
    assert onlooker.look()[1].state.next_sequence == 1
    number = onlooker.look()[1].replay.header.number
    crash(queue)
    shutil.rmtree(directory)
    with pytest.raises(QueueNotFoundError):
        onlooker.look()
    queue = PersistentQueue(directory)
    assert onlooker.look()[1].state.next_sequence == 0
    assert onlooker.look()[1].replay.header.number == number
    queue.close()
    move_data(directory, data_path=tmp_path / "elsewhere")
    places, recovered = onlooker.look()
    assert places.place.path == str(tmp_path / "elsewhere")
    assert onlooker.look() == (places, recovered)


def test_looking_again_behind_what_was_half_written(directory: Path) -> None:
    """A frame that was met while it was being written is seen when it is whole.

    A log that is superseded while it is synced is looked at again.
    """
    queue = PersistentQueue(directory)
    put(queue, b"a")
    log = log_file(directory)
    before = log.read_bytes()
    put(queue, b"b")
    whole = log.read_bytes()
    end = look(DISK, str(directory))[1].replay.end
    log.write_bytes(whole[: end - 5] + before[end - 5 :])
    onlooker = Onlooker(DISK, str(directory))
    recovered = onlooker.look()[1]
    assert (recovered.state.next_sequence, bool(recovered.replay.torn_bytes)) == (1, True)
    log.write_bytes(whole)
    assert onlooker.look()[1].state.next_sequence == 2
    crash(queue)

    def fdatasync(fd: int) -> None:
        raise FileNotFoundError(errno.ENOENT, "superseded meanwhile")

    failing = Onlooker(replace(DISK, fdatasync=fdatasync), str(directory))
    failing.look()
    with pytest.raises(FileNotFoundError):
        failing.look(durably=True)
    assert failing.look()[1].state.next_sequence == 2


def test_runs_of_one_block_are_one_split(directory: Path, open_queue: QueueFactory) -> None:
    """Sequences with gaps between them, which one block holds, are planned as one split: the block is read once."""
    put(open_queue(), *items(9))
    runs = [(0, 2), (4, 1), (7, 2)]
    (split,) = planned(directory, *runs)
    assert list(split.runs) == runs
    assert list(items_of(directory, [split])) == [0, 1, 4, 7, 8]


def test_an_onlooker_keeps_no_frames(directory: Path, open_queue: QueueFactory) -> None:
    """An ``Onlooker`` keeps no frame of the log until its next look: a decoded log takes several times its size."""
    queue = open_queue()
    put_each(queue, items(100))
    onlooker = Onlooker(DISK, str(directory))
    gc.collect()
    before = count_frames()
    found = onlooker.look()
    assert found[1].transactions == 100
    assert count_frames() == before
    assert onlooker.look(durably=True) is found


def count_frames() -> int:
    """Return the number of decoded frames that are in memory."""
    return sum(isinstance(each, Frame) for each in gc.get_objects())


def test_an_onlooker_travels_light(directory: Path) -> None:
    """A pickled ``Onlooker`` carries nothing of what it has seen, and sees it in the other process."""
    with PersistentQueue(directory) as queue:
        put_each(queue, items(500))
        onlooker = Onlooker(DISK, str(directory))
        onlooker.look()
        sent = pickle.dumps(onlooker)
        assert len(sent) < 2000
        assert pickle.loads(sent).look()[1].state.next_sequence == 500

"""Limits on the disk space of a queue: ``max_disk_bytes``, and the bytes that must stay free."""

from __future__ import annotations

import errno
import gc
import os
import random
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import DiskFullError, PersistentQueue, QueueFullError
from persistentqueue.engine.transaction import Transaction
from persistentqueue.storage.inbox_limits import LOGS_LEAST
from persistentqueue.storage.layout import open_pool
from persistentqueue.system.disk import CREATE, CREATE_NEW, DISK, READ
from persistentqueue.system.quota import OverLimitError, Quota
from tests.conftest import QueueFactory
from tests.crash.disk import SimulatedDisk
from tests.support.limits import content, files_bytes, opened, take, transaction
from tests.support.queues import IN_CACHE, crash, drain, put, put_each, segment_files

KIB, MIB = 1024, 1024 * 1024


# --- the limit of the queue ------------------------------------------------------------------------------------------


class Watch:
    """A simulated disk that checks the size of all files at each call."""

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


@pytest.mark.parametrize(
    ("log_bytes", "segment_bytes", "size_bytes"),
    [
        (4096, 700, 100),
        (4096, 30_000, 1),
        (4096, 30_000, 20_000),
        (4096, 64 * MIB, 2000),
        (20_000, 700, 2000),
        (20_000, 30_000, 100),
        (20_000, 64 * MIB, 20_000),
    ],
)
def test_files_never_exceed_max_disk_bytes(log_bytes: int, segment_bytes: int, size_bytes: int) -> None:
    """The files never exceed ``max_disk_bytes`` at any call of the disk, for any enqueues, holds, spills and rollbacks.

    Dequeues are never refused, and a drained queue takes as many items again.
    """
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
                    assert one.error.holds <= most + 2 * store.generations.log_bytes[1]
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
            while len(store.reader.ready):
                run = take(store, draw.choice([1, 3]))
                store.commit([run])
                assert run.settled, run.error
    assert min(counts) >= 0.5 * counts[0] and counts[0] * size_bytes >= (30_000 if size_bytes > 1 else 300)


def test_quota_counts_what_is_there(open_queue: QueueFactory, directory: Path) -> None:
    """The disk space that the queue counts is what its files take, after any calls."""
    settings = {"max_disk_bytes": 400_000, "log_bytes": 4096, "segment_bytes": 10_000}
    queue = open_queue(**settings)
    group = queue._open_queue
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
            group = queue._open_queue
            assert group is not None
        queue.trim()  # also deletes retired segments
        assert group._store.quota.used_bytes == queue.stats().disk_bytes == files_bytes(directory)


def test_transaction_larger_than_the_disk(open_queue: QueueFactory, directory: Path) -> None:
    """A transaction that can never fit is refused at once, even with ``full="block"``, and its written bytes are
    freed."""
    queue = open_queue(max_disk_bytes=200_000, log_bytes=4096, full="block")
    for _ in range(3):
        with pytest.raises(QueueFullError, match="never fits: flush less at once") as caught:
            put(queue, *[bytes(10_000)] * 30)
        assert caught.value.lasting and caught.value.asked > 300_000
        put(queue, bytes(100_000))
        assert files_bytes(directory) <= 200_000
        drain(queue)


def test_smaller_segment_at_the_limit(open_queue: QueueFactory, directory: Path) -> None:
    """If a whole segment would exceed the limit, a smaller one is made, as long as it holds the transaction."""
    queue = open_queue(max_disk_bytes=5 * MIB + 500 * KIB)
    put(queue, bytes(900 * KIB))
    put(queue, bytes(400 * KIB))
    sizes = [path.stat().st_size for path in segment_files(directory)]
    assert len(sizes) == 2 and 400 * KIB <= sizes[1] < MIB


def test_drained_segments_go_before_a_smaller_one_is_made(open_queue: QueueFactory, directory: Path) -> None:
    """At the limit drained segments are given back first, so that segments keep their size."""
    queue = open_queue(max_disk_bytes=8 * MIB, segment_bytes=MIB, memory_bytes=0)
    for n in range(40):
        put(queue, bytes(900 * KIB))
        if n >= 3:
            with queue.transaction() as session:
                session.dequeue()
        assert min(path.stat().st_size for path in segment_files(directory)) >= 900 * KIB


def test_log_does_not_take_the_room_of_the_items(open_queue: QueueFactory) -> None:
    """However many commits there are, the log of a limited queue stays a small part of its limit."""
    queue = open_queue(max_disk_bytes=128 * KIB, log_bytes=4096, disk=IN_CACHE)
    for _ in range(2000):
        put(queue, b"x" * 50)
        drain(queue)
    assert queue.stats().log_capacity_bytes <= 8 * KIB


def test_log_grows_for_who_dequeues_out_of_order() -> None:
    """Space is kept so that the log can grow, within the limit, for a state that out-of-order dequeues make large."""
    most = 400_000
    watch = Watch(most)
    with opened(watch.machine.disk, max_disk_bytes=most, log_bytes=4096, sync=False) as store:
        store.commit([transaction(*[b"%06d" % n for n in range(1000)])])
        while True:
            one = transaction(bytes(2000))
            store.commit([one])
            if one.error is not None:
                break
        before = store.generations.log_bytes[1]
        runs = [take(store, 1) for _ in range(1000)]
        for run in runs[1::2]:
            store.commit([run])
            assert run.settled, run.error
        assert store.generations.log_bytes[1] > before
        for run in runs[::2]:
            store.commit([run])
            assert run.settled, run.error


@pytest.mark.unwatched
def test_gaps_that_take_more_than_is_kept_do_not_end_dequeueing(open_queue: QueueFactory) -> None:
    """Dequeues go on when their gaps take more space in the log than the limit has left.

    When the gaps are gone, the files are within the limit again.
    """
    queue = open_queue(log_bytes=4096, segment_bytes=4096, max_disk_bytes=5 * 4096, disk=IN_CACHE)
    with pytest.raises(QueueFullError):
        while True:
            put(queue, *[b"x"] * 50)
    items = len(queue)
    most_bytes = 0
    with queue.session() as keeper, queue.session() as session:
        while keeper.dequeue() is not None:
            session.dequeue()
            session.flush()
            most_bytes = max(most_bytes, queue.stats().disk_bytes)
        assert most_bytes > 5 * 4096
        assert queue.stats().held == items // 2
        with pytest.raises(QueueFullError):
            put(queue, b"x")
        keeper.flush()
    queue.trim()
    assert queue.stats().disk_bytes <= 4 * 4096
    put(queue, b"x")
    assert queue.stats().fill <= 1


def test_rolled_back_blocks_are_given_back_at_the_limit() -> None:
    """Spilled blocks of rolled-back sessions are given back at the limit."""
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
    """A segment that cannot be deleted is left for the next opening to sweep."""
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
    """If a group does not fit and its transactions are tried one by one, a segment that one has written to is not
    retired."""
    machine = SimulatedDisk()
    with opened(machine.disk, log_bytes=4096, segment_bytes=1000, max_disk_bytes=40_000, inline_bytes=0) as store:
        store.commit([transaction(b"a" * 300)])
        store.commit([take(store, 1)])
        group = [transaction(b"b" * 300), transaction(bytes(30_000)), transaction(b"c" * 300)]
        store.commit(group)
        assert [each.settled for each in group] == [True, False, True]
        store.give_back()
        store.abandon()
        store.lock.release()
    with opened(machine.disk, log_bytes=4096) as store:
        assert content(store) == [b"b" * 300, b"c" * 300]


def test_trim_in_the_middle_of_a_commit_keeps_what_the_group_wrote() -> None:
    """A drained segment that a large group has begun to write to is kept by the trim that makes room for its frame."""
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


# --- the low-disk guard -----------------------------------------------------------------------------------------------


class Shared:
    """A disk whose free space is set by the test."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.disk = replace(DISK, free_bytes=lambda path: self.free_bytes)


def test_min_free_bytes(open_queue: QueueFactory, directory: Path) -> None:
    """Below ``min_free_bytes`` no file grows for enqueues, while dequeues and trims go on.

    Above it, enqueues go on as before.
    """
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


def test_nobody_waits_for_the_file_system(open_queue: QueueFactory) -> None:
    """A flush that lacks free space on the disk is refused at once, even with ``full="block"``.

    The queue cannot know what would free that space.
    """
    shared = Shared(MIB)
    queue = open_queue(disk=shared.disk, min_free_bytes=2 * MIB, full="block")
    with pytest.raises(QueueFullError, match="free space there"):
        put(queue, b"x")
    assert queue.stats().fill == 0.0
    shared.free_bytes = 4 * MIB
    put(queue, b"x")


def test_no_flush_waits_for_files_that_were_set_aside(open_queue: QueueFactory, directory: Path) -> None:
    """Files that were set aside count for the limit, and no dequeue removes them. So a flush that finds no room beside
    them is refused at once, also if the queue is set to wait. It waited for ever."""
    open_queue().close()
    kept = directory / "data" / "000000000001.seg.damaged"
    kept.write_bytes(bytes(8 * MIB))
    queue = open_queue(max_disk_bytes=12 * MIB, full="block")
    with queue.session() as session:
        session.enqueue(bytes(2 * MIB))
        with pytest.raises(
            QueueFullError, match=rf"set aside \(\.damaged\) take {8 * MIB} bytes: move them away"
        ) as refused:
            session.flush(timeout=30)
        assert refused.value.lasting
        session.rollback()
    queue.close()
    kept.unlink()
    put(open_queue(max_disk_bytes=12 * MIB, full="block"), bytes(2 * MIB))


def test_log_grows_below_the_guard_for_dequeues() -> None:
    """``min_free_bytes`` does not keep the log from growing for a state that dequeues make large."""
    machine = SimulatedDisk()
    with opened(machine.disk, min_free_bytes=1000, log_bytes=4096, sync=False, inline_bytes=0) as store:
        store.commit([transaction(*[b"%d" % n for n in range(2000)])])
        machine.free_bytes = 0
        runs = [take(store, 1) for _ in range(2000)]
        for run in runs[1::2]:
            store.commit([run])
            assert run.settled, run.error
        one = transaction(*[b"x" * 100] * 3000)
        store.commit([one])
        assert isinstance(one.error, QueueFullError) and one.error.limit == "min_free_bytes"


# --- the disk with a quota -------------------------------------------------------------------------------------------


def test_quota_follows_files(tmp_path: Path) -> None:
    """Files count with their length, under any name, until they are deleted; files elsewhere do not count."""
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
    """After a failed call a file counts with the length that the call has left."""

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
    """Without limits the queue uses the very disk that it was given."""
    quota = Quota(DISK, None, 0)
    quota.learn(["nowhere"])
    assert quota.disk is DISK and quota.used_bytes == 0


def test_file_that_vanishes_while_it_is_counted(tmp_path: Path) -> None:
    """A file that another process deletes while the directory is read does not count."""
    quota = Quota(replace(DISK, listdir=lambda path: ["gone"]), 100, 0)
    quota.learn([str(tmp_path)])
    assert quota.used_bytes == 0


def test_free_bytes(tmp_path: Path) -> None:
    """``free_bytes`` is the number that the system gives."""
    found = os.statvfs(tmp_path)
    assert abs(DISK.free_bytes(str(tmp_path)) - found.f_bavail * found.f_frsize) < 1 << 30
    machine = SimulatedDisk()
    machine.free_bytes = 77
    assert machine.disk.free_bytes("/queues") == 77
    assert machine.kill(lambda _: 0).disk.free_bytes("/queues") == 77


def test_a_limit_ends_the_filling_of_the_pool_and_a_full_disk_is_told() -> None:
    """The pool is filled as far as the queue's own limit allows; a disk without room raises ``DiskFullError``."""
    machine = SimulatedDisk()
    pool: dict[str, Any] = {"pool_min_bytes": MIB, "pool_max_bytes": MIB}
    with opened(machine.disk, max_disk_bytes=400 * KIB, log_bytes=4096, segment_bytes=50 * KIB, **pool) as store:
        assert 0 < sum(store.fill_pool()) < 400 * KIB
        store.pool.shrink(0)
        machine.fault = lambda _, path: OSError(errno.ENOSPC, "injected") if path.endswith(".part") else None
        with pytest.raises(DiskFullError, match="then fill it again"):
            sum(store.fill_pool())
        machine.fault = None


def test_files_of_a_pool_that_others_filled_count_once_they_are_taken(
    open_queue: QueueFactory, directory: Path
) -> None:
    """Files of a shared pool do not count; a segment made of one counts, and stays within the limit."""
    list(open_pool(directory.parent, None, shared=True, max_bytes=MIB).fill(MIB, 50 * KIB))
    settings: dict[str, Any] = {"max_disk_bytes": 400 * KIB, "log_bytes": 4096, "segment_bytes": 50 * KIB}
    queue = open_queue(directory.name, **settings, shared_pool=True, pool_max_bytes=MIB)
    with pytest.raises(QueueFullError):
        put_each(queue, [bytes(40 * KIB)] * 20)
    taken = queue.stats().pool_taken
    assert taken >= 5
    assert sum(path.stat().st_size for path in segment_files(directory)) <= 400 * KIB
    assert len(drain(queue)) >= taken


def test_a_group_that_fills_many_segments_is_refused_once(open_queue: QueueFactory) -> None:
    """If a group fills many segments and finds no more room, they are deleted, and do not count as room that was
    made."""
    for more_bytes in range(0, 700 * KIB, 70 * KIB):
        most = 2 * MIB + more_bytes
        queue = open_queue(f"q{more_bytes}", max_disk_bytes=most, log_bytes=4096, segment_bytes=KIB, disk=IN_CACHE)
        accepted = 0
        with queue.session() as session:
            while True:
                session.enqueue_many([bytes([accepted]) * 100 * KIB] * 6)
                try:
                    session.flush()
                except QueueFullError:
                    break
                accepted += 1
            session.rollback()
        stats = queue.stats()
        assert accepted and stats.enqueued == stats.ready == 6 * accepted
        queue.trim()
        assert queue.stats().disk_bytes == sum(files_in_use(queue))
        assert drain(queue) == [bytes([n]) * 100 * KIB for n in range(accepted) for _ in range(6)]


def files_in_use(queue: PersistentQueue) -> tuple[int, ...]:
    """Return the bytes of the files, as the queue counts them."""
    stats = queue.stats()
    return stats.data_bytes, stats.log_capacity_bytes, stats.spare_bytes, stats.pool_bytes


class Local:
    """An object of the caller."""


def test_a_refusal_keeps_no_object_of_its_caller(open_queue: QueueFactory) -> None:
    """After a flush that a limit refused, the queue keeps no object of the caller alive."""
    queue = open_queue(log_bytes=4096, max_disk_bytes=300_000)

    def refused() -> weakref.ref[Local]:
        """Flush more than there is room for, with an object."""
        local = Local()
        with pytest.raises(QueueFullError):
            put(queue, bytes(500_000))
        return weakref.ref(local)

    left = refused()
    gc.collect()
    assert left() is None
    assert queue._open()._store.quota.refused is not None


def test_a_lack_of_room_for_the_spare_keeps_no_object_of_its_caller(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a trim without room for the next spare, the queue keeps no object of the caller alive."""
    queue = open_queue()
    put(queue, b"x")
    generations = queue._open()._store.generations

    def fill(_least_bytes: int, _most_bytes: int | None = None) -> int:
        """Find no room."""
        raise OSError(errno.ENOSPC, "injected")

    def trimmed() -> weakref.ref[Local]:
        """Trim, with an object."""
        local = Local()
        queue.trim()
        return weakref.ref(local)

    monkeypatch.setattr(generations.spare, "fill", fill)
    left = trimmed()
    gc.collect()
    assert left() is None
    assert generations.shortage is not None and generations.shortage.errno == errno.ENOSPC

"""Features that Qpid's linearstore with its Empty File Pool was said to lack, each as a promise of this queue.

Its partitions never really spanned devices: ``test_locations`` tests locations on other media.
``test_kahadb_compaction`` tests that one orphan no longer keeps a whole file.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import QueueFullError
from persistentqueue.system.disk import Buffers
from tests.conftest import QueueFactory
from tests.support.queues import IN_CACHE, bytes_of, drain, put, put_each, segment_files

KIB = 1024


def on_disk(directory: Path) -> int:
    """Return the bytes of all files of a queue, except that of the lock."""
    return bytes_of(path for path in directory.rglob("*") if path.name != "lock")


def test_no_utility_that_keeps_the_pool_filled(open_queue: QueueFactory, tmp_path: Path, directory: Path) -> None:
    """A command beside the owner, and maintenance, both fill the pool, and new segments are made of its files."""
    queue = open_queue(segment_bytes=8 * KIB, pool_min_bytes=40 * KIB, pool_max_bytes=80 * KIB)
    command = [sys.executable, "-m", "persistentqueue", "pool", "fill", str(tmp_path / "queues"), "orders"]
    size_bytes = 8 * KIB
    subprocess.run([*command, "--bytes", str(20 * KIB), "--file-bytes", str(size_bytes)], check=True)
    assert queue.stats().pool_bytes == 2 * size_bytes
    assert queue.maintain().pooled_bytes == 3 * size_bytes
    made = {path.stat().st_ino for path in (directory / "pool").glob("*.free") if path.name != "log.free"}
    put_each(queue, [bytes(KIB)] * 30)
    assert queue.stats().pool_taken == 5 == len(segment_files(directory))
    assert {path.stat().st_ino for path in segment_files(directory)} == made


def test_files_that_come_back_only_at_recovery(open_queue: QueueFactory, directory: Path) -> None:
    """A drained file is back in the pool after a trim of the running queue, wherever it stands."""
    queue = open_queue(segment_bytes=8 * KIB, pool_max_bytes=80 * KIB)
    put_each(queue, [bytes(KIB)] * 40)
    with queue.session() as first:
        assert first.dequeue() == bytes(KIB)
        with queue.transaction() as session:
            session.dequeue_many(20)
        queue.trim()
        assert queue.stats().pool_files == 2  # behind the first segment, which holds a held item
        names = [path.name for path in segment_files(directory)]
        assert names[0] == "000000000001.seg"
        first.rollback()


def test_no_limit_of_the_journals_size(open_queue: QueueFactory, directory: Path) -> None:
    """One limit bounds all files of a queue together. At the limit dequeues go on, and make room."""
    queue = open_queue(segment_bytes=8 * KIB, log_bytes=4 * KIB, max_disk_bytes=64 * KIB)
    put_each(queue, [bytes(KIB)] * 10)
    with pytest.raises(QueueFullError, match="max_disk_bytes"):
        put_each(queue, [bytes(KIB)] * 1000)
    assert on_disk(directory) <= 64 * KIB
    assert len(drain(queue)) >= 10
    put(queue, bytes(KIB))


def test_no_statistics(open_queue: QueueFactory, directory: Path) -> None:
    """The statistics tell the bytes of the files, the live bytes and the files taken from the pool, and ``explain``
    lists each segment."""
    queue = open_queue(segment_bytes=8 * KIB, pool_max_bytes=80 * KIB)
    put_each(queue, [bytes(KIB)] * 40)
    with queue.transaction() as session:
        session.dequeue_many(16)
    queue.trim()
    put_each(queue, [bytes(KIB)] * 8)
    stats = queue.stats()
    assert stats.disk_bytes == on_disk(directory)
    assert 32 * KIB < stats.live_bytes < 34 * KIB
    assert stats.pool_taken >= 1
    assert stats.segments == len(segment_files(directory)) == len(queue.explain())
    assert sum(use.live for use in queue.explain()) == 32


def test_switching_the_file_size_on_the_fly(open_queue: QueueFactory, directory: Path) -> None:
    """The next segment of the running queue has the new size. Files of both sizes are read, pooled and taken again."""
    queue = open_queue(segment_bytes=4 * KIB, pool_max_bytes=200 * KIB)
    put_each(queue, [bytes(KIB)] * 9)
    queue.resize(segment_bytes=32 * KIB)
    put_each(queue, [bytes(KIB)] * 60)
    sizes = {path.stat().st_size for path in segment_files(directory)}
    assert min(sizes) <= 4 * KIB
    assert max(sizes) > 24 * KIB
    assert drain(queue) == [bytes(KIB)] * 69
    queue.trim()
    pooled = {path.stat().st_size for path in (directory / "pool").glob("*.free") if path.name != "log.free"}
    assert pooled <= sizes
    put_each(queue, [bytes(KIB)] * 60)
    assert queue.stats().pool_taken >= 1
    assert drain(queue) == [bytes(KIB)] * 60


def test_sizing_by_guess(open_queue: QueueFactory, directory: Path) -> None:
    """A queue with default sizes takes what its items need, and gives it back when it is idle.

    No user has to guess how many files of which size are needed: one user's guess took 1 TB instead of 50 GB.
    """
    queue = open_queue(disk=IN_CACHE)
    put(queue, b"one")
    assert on_disk(directory) <= 3 * KIB * KIB
    put_each(queue, [bytes(1_000_000)] * 20)
    assert on_disk(directory) <= 2 * 20_000_000 + 3 * KIB * KIB
    assert len(drain(queue)) == 21
    queue.maintain()
    assert on_disk(directory) <= 3 * KIB * KIB


def test_the_unknown_cost_of_overwriting(open_queue: QueueFactory, directory: Path) -> None:
    """With ``wipe``, each byte of a drained segment or an old log is overwritten once, and no payload is left."""
    written_bytes = 0

    def pwritev(fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        nonlocal written_bytes
        written_bytes += sum(map(len, buffers))
        return IN_CACHE.pwritev(fd, buffers, offset, flags)

    queue = open_queue(wipe=True, segment_bytes=64 * KIB, disk=replace(IN_CACHE, pwritev=pwritev))
    put_each(queue, [b"secret" * 1000] * 20)
    segments_bytes = sum(path.stat().st_size for path in segment_files(directory))
    log_bytes = sum(path.stat().st_size for path in (directory / "log").iterdir())
    assert len(drain(queue)) == 20
    written_bytes = 0
    queue.maintain()
    others_bytes = KIB + 8 * KIB  # a frame of the new log; the samples in the lock file
    assert 20 * 6000 <= written_bytes <= segments_bytes + log_bytes + others_bytes
    assert [path for path in directory.rglob("*.seg") if b"secret" in path.read_bytes()] == []

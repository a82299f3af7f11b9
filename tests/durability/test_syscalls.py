"""The real disk under failures: system calls that fail, and file systems without room.

The full campaign is a command: ``python -m tests.crash syscalls``.
"""

from __future__ import annotations

import errno
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from persistentqueue import DiskFullError, PersistentQueue, check
from persistentqueue.system.disk import CREATE_NEW, DISK
from tests.crash.kills import in_a_process_of_its_own
from tests.crash.syscalls import SyscallsUnavailable, all_cases, need_strace, run_injections
from tests.support.queues import crash, drain, tmpfs

FIRST, RUNS = 1000, 40
TMPFS_BYTES = 64 * 1024
ITEMS_MAX = 400
"""Number of items after which a queue is no longer filled.

A limit on the length of files does not limit their number, so a queue may never be full.
"""
ITEM_BYTES = [1, 100, 5 * 1024, 70 * 1024]
SEGMENT_BYTES = [1000, 16 * 1024, 64 * 1024 * 1024]
LOG_BYTES = 4096
BETWEEN = ["reopened", "trimmed", "left alone"]
"""Steps between draining a full queue and filling it again."""


# --- calls that fail -------------------------------------------------------------------------------------------------


def test_failing_system_calls() -> None:
    """If any system call fails, or is the last one, the queue reports it and keeps every acknowledged item."""
    try:
        report = run_injections(FIRST, RUNS)
    except SyscallsUnavailable as reason:
        pytest.skip(str(reason))
    assert report.runs == RUNS == report.per_phase.total()
    assert report.kills and report.errors and report.acknowledged > RUNS
    assert f"{RUNS} system calls answered" in str(report)


def test_lock_that_fails(tmp_path: Path) -> None:
    """If a lock fails for another reason than an owner, it raises ``OSError``, which opening documents."""
    fd = DISK.open(str(tmp_path / "lock"), CREATE_NEW, 0o600)
    DISK.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        DISK.lock(fd)


def test_cases_are_complete() -> None:
    """Every kind of call that a queue makes is among the cases, in every phase of its life, always in one order."""
    try:
        in_a_process_of_its_own(need_strace)
    except SyscallsUnavailable as reason:
        pytest.skip(str(reason))
    cases = in_a_process_of_its_own(all_cases)
    assert cases == in_a_process_of_its_own(all_cases)
    assert {"open", "enqueue", "flush", "dequeue", "roll", "trim", "close", "recover"} <= {each.phase for each in cases}
    calls = {each.call for each in cases}
    assert {"openat", "close", "pread64", "fdatasync", "fsync", "ftruncate", "fallocate", "flock"} <= calls
    for kind in ("rename", "unlink", "pwritev"):
        assert any(call.startswith(kind) for call in calls), kind
    assert len(cases) > 1000


# --- no room ---------------------------------------------------------------------------------------------------------


def numbered(number: int, size_bytes: int) -> bytes:
    """Return an item of that size; it differs from its neighbours if it is long enough."""
    return (b"%d " % number).ljust(size_bytes, b".")[:size_bytes]


def fill(queue: PersistentQueue, size_bytes: int) -> list[bytes]:
    """Flush items one by one until there is no room; return the acknowledged ones. The last one must fail twice."""
    done: list[bytes] = []
    with queue.session() as session:
        while len(done) < ITEMS_MAX:
            item = numbered(len(done), size_bytes)
            session.enqueue(item)
            try:
                session.flush()
            except DiskFullError:
                with pytest.raises(DiskFullError) as caught:
                    session.flush()
                assert caught.value.errno in {errno.ENOSPC, errno.EFBIG}
                session.rollback()
                break
            done.append(item)
    return done


def survive(path: Path, size_bytes: int, segment_bytes: int, between: str) -> list[int]:
    """Fill the queue, take one item, drain it, and do the step ``between``, three times; return the numbers of items.

    Nothing may be lost, doubled or reordered, and dequeueing must work while there is no room.
    """

    def opened() -> PersistentQueue:
        return PersistentQueue(path, segment_bytes=segment_bytes, log_bytes=LOG_BYTES)

    counts = []
    queue = opened()
    try:
        for end in (crash, PersistentQueue.close, crash):
            items = fill(queue, size_bytes)
            assert list(queue.browse()) == items
            report = check(path)
            assert report.ok and report.items == len(items), report.problems
            if between == "reopened":
                end(queue)
                queue = opened()
            with queue.transaction() as session:
                assert session.dequeue_many(1) == items[:1]
            assert drain(queue) == items[1:]
            if between == "trimmed":
                queue.trim()
            counts.append(len(items))
    finally:
        queue.close()
    assert check(path).ok
    return counts


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 64 KiB."""
    with tmpfs(tmp_path / "small", TMPFS_BYTES) as path:
        yield path


@contextmanager
def short_files(size_bytes: int) -> Iterator[None]:
    """Limit the length of this process's files: a write beyond the limit is short, and then fails with ``EFBIG``."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("segment_bytes", SEGMENT_BYTES)
@pytest.mark.parametrize("size_bytes", ITEM_BYTES)
def test_full_file_system(small_disk: Path, size_bytes: int, segment_bytes: int, between: str) -> None:
    """A queue that filled its file system keeps every acknowledged item, and can be dequeued."""
    counts = survive(small_disk / "queue", size_bytes, segment_bytes, between)
    assert (counts[0] > 0) == (size_bytes < TMPFS_BYTES)


@pytest.mark.parametrize("between", BETWEEN)
def test_room_comes_back(small_disk: Path, between: str) -> None:
    """A queue that filled its file system and was drained takes at least half as many items again."""
    too_few = {}
    for size_bytes, segment_bytes in product(ITEM_BYTES, SEGMENT_BYTES):
        counts = survive(small_disk / "queue", size_bytes, segment_bytes, between)
        if min(counts) < counts[0] // 2:
            too_few[size_bytes, segment_bytes] = counts
        shutil.rmtree(small_disk / "queue")
    assert not too_few


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("limit_bytes", [4096, 8192])
@pytest.mark.parametrize("size_bytes", ITEM_BYTES[1:])
def test_limit_on_files(tmp_path: Path, size_bytes: int, limit_bytes: int, between: str) -> None:
    """A queue whose files may not grow keeps every acknowledged item, can be dequeued, and takes items again."""
    with short_files(limit_bytes):
        counts = survive(tmp_path / "queue", size_bytes, SEGMENT_BYTES[-1], between)
    assert (counts[0] > 0) == (size_bytes + 128 < limit_bytes)
    assert min(counts) >= counts[0] // 2, counts


def test_log_that_cannot_grow(tmp_path: Path) -> None:
    """A queue with more segments than its log has room for refuses to enqueue before it refuses to dequeue."""
    with short_files(4096):
        survive(tmp_path / "queue", 1, SEGMENT_BYTES[-1], "trimmed")


@pytest.mark.parametrize("limit_bytes", [0, 50, 70, 200, 3000])
def test_no_room_for_a_queue(tmp_path: Path, limit_bytes: int) -> None:
    """Opening a queue without room for it raises ``DiskFullError``; it can be made as soon as there is room."""
    path = tmp_path / "queue"
    with short_files(limit_bytes), pytest.raises(DiskFullError):
        PersistentQueue(path, log_bytes=LOG_BYTES)
    with PersistentQueue(path, log_bytes=LOG_BYTES) as queue:
        assert fill(queue, 1)

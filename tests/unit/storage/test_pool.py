"""The pool of empty files: which files it takes in, hands out and does not trust, and how files are wiped."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import DiskFullError, PersistentQueue, QueueNotFoundError, check, delete_queue
from persistentqueue.cli import main
from persistentqueue.storage.layout import open_pool
from persistentqueue.storage.pool import Empty, Pool, parse_pool_name
from persistentqueue.system.disk import DISK, Buffers
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, put, put_each, segment_files

KIB = 1024
SECRET = b"to be forgotten " * 8


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    """Return an empty pool of up to 10 KiB."""
    return Pool(DISK, str(tmp_path), 10 * KIB)


def sizes(pool: Pool) -> list[int]:
    """Return the lengths of the files in the pool."""
    return [each.size_bytes for each in pool.files()]


def empty(pool: Pool, size_bytes: int, number: int = 1) -> Path:
    """Put a sound file into the pool; return its path."""
    path = Path(pool.directory) / f"{size_bytes:012d}-{number:016x}.free"
    path.write_bytes(bytes(size_bytes))
    return path


def made(tmp_path: Path, size_bytes: int, name: str = "retired") -> str:
    """Write a file outside of the pool; return its path."""
    path = tmp_path / name
    path.write_bytes(b"x" * size_bytes)
    return str(path)


def files_in(directory: Path) -> dict[Path, int]:
    """Return all files below the directory, except for the lock, with their lengths."""
    return {path: path.stat().st_size for path in directory.rglob("*") if path.is_file() and path.name != "lock"}


def test_the_largest_file_within_the_bounds_is_taken(pool: Pool, tmp_path: Path) -> None:
    """``take`` takes the largest file within the bounds, and leaves files that are too large or too small."""
    for size_bytes in (100, 200, 300, 400):
        empty(pool, size_bytes)
    assert pool.take(str(tmp_path / "mine"), 150, 350) == 300
    assert (tmp_path / "mine").stat().st_size == 300
    assert sizes(pool) == [100, 200, 400]
    assert pool.take(str(tmp_path / "other"), 500, 600) is None
    assert not (tmp_path / "other").exists()
    assert pool.taken == 1


def test_what_is_given_is_there_to_be_taken(pool: Pool, tmp_path: Path) -> None:
    """A file that was given gets a name of its own, and can be taken."""
    assert pool.give(made(tmp_path, 300))
    assert pool.give(made(tmp_path, 300))
    assert sizes(pool) == [300, 300]
    assert pool.take(str(tmp_path / "mine"), 300, 300) == 300


def test_the_upper_bound_holds(pool: Pool, tmp_path: Path) -> None:
    """Smaller files make room for a larger one, which is more useful; a file that does not fit is not taken in."""
    assert [pool.give(made(tmp_path, 3 * KIB)) for _ in range(4)] == [True, True, True, False]
    assert pool.give(made(tmp_path, 8 * KIB))
    assert sizes(pool) == [8 * KIB]
    assert not pool.give(made(tmp_path, 11 * KIB))
    assert not pool.give(made(tmp_path, 0))


def test_fill_goes_up_to_the_lower_bound_and_never_over_the_upper_one(pool: Pool) -> None:
    """``fill`` makes files up to the lower bound and not above the upper one; a second call finds nothing to do."""
    assert list(pool.fill(5 * KIB, 2 * KIB)) == [2 * KIB] * 3
    assert list(pool.fill(5 * KIB, 2 * KIB)) == []
    assert list(pool.fill(100 * KIB, 2 * KIB)) == [2 * KIB] * 2
    assert sizes(pool) == [2 * KIB] * 5


def test_what_fill_made_was_written(pool: Pool) -> None:
    """The blocks of a file that ``fill`` made are allocated, so that a write to it changes no map of blocks."""
    (size_bytes,) = pool.fill(1, 8 * KIB)
    (file,) = Path(pool.directory).iterdir()
    assert file.stat().st_blocks * 512 >= size_bytes
    assert file.stat().st_mode & 0o777 == 0o600


def test_shrink_gives_back_the_largest_first(pool: Pool) -> None:
    """``shrink`` deletes the largest files first, down to the given bound."""
    for size_bytes in (100, 200, 300):
        empty(pool, size_bytes)
    assert pool.shrink(350) == 300
    assert sizes(pool) == [100, 200]
    assert pool.shrink(0) == 300
    assert sizes(pool) == []


def test_a_file_with_another_name_is_never_taken(pool: Pool, tmp_path: Path) -> None:
    """A pooled file with a second name is not taken: after a power cut it may be a live segment.

    Only the name in the pool is removed.
    """
    file = empty(pool, 300)
    live = tmp_path / "live.seg"
    os.link(file, live)
    assert pool.take(str(tmp_path / "mine"), 100, 400) is None
    assert live.stat().st_nlink == 1
    assert not pool.files()


@pytest.mark.parametrize("kind", ["shorter", "longer", "link", "directory"])
def test_junk_with_a_name_of_ours_is_not_taken_but_cleaned(pool: Pool, tmp_path: Path, kind: str) -> None:
    """A file of a wrong size, a link or a directory under a name of the pool is not taken.

    ``clean`` deletes the file or the link, and the target of a link stays as it is.
    """
    path, target = Path(pool.directory) / f"{300:012d}-{1:016x}.free", tmp_path / "target"
    target.write_bytes(bytes(300))
    if kind == "link":
        path.symlink_to(target)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_bytes(bytes(299 if kind == "shorter" else 301))
    assert kind == "directory" or pool.clean() == [path.name]
    if kind == "directory":
        assert pool.clean() == []
        path.rmdir()
    assert target.stat().st_size == 300
    assert not pool.files()


@pytest.mark.parametrize("kind", ["shorter", "link", "forbidden"])
def test_junk_is_removed_when_it_would_be_taken(tmp_path: Path, kind: str) -> None:
    """``take`` removes a file that it cannot use, even if ``clean`` was not called before.

    Such a file may belong to another user: it may be renamed, but not written to.
    """

    def forbid(path: str, flags: int, mode: int) -> int:
        if kind == "forbidden":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return DISK.open(path, flags, mode)

    pool = Pool(replace(DISK, open=forbid), str(tmp_path), 10 * KIB)
    path, target = Path(pool.directory) / f"{300:012d}-{1:016x}.free", tmp_path / "target"
    target.write_bytes(bytes(300))
    path.symlink_to(target) if kind == "link" else path.write_bytes(bytes(299 if kind == "shorter" else 300))
    assert pool.take(str(tmp_path / "mine"), 100, 400) is None
    assert not pool.files()
    assert target.exists()


def test_a_file_that_another_user_fills_stays(tmp_path: Path) -> None:
    """A file in the making that this process may not open does not fail ``clean``: another user may be filling it."""

    def forbid(path: str, flags: int, mode: int) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    pool = Pool(replace(DISK, open=forbid), str(tmp_path), 10 * KIB)
    part = Path(pool.directory) / f"{300:012d}-{1:016x}.part"
    part.write_bytes(bytes(100))
    assert pool.clean() == []
    part.unlink()


def test_what_cannot_be_deleted_gives_nothing_back(pool: Pool, tmp_path: Path) -> None:
    """A directory under a name of the pool makes no room, so that no call asks for its room for ever."""
    (tmp_path / f"{9 * KIB:012d}-{1:016x}.free").mkdir()
    empty(pool, 500)
    assert pool.shrink(0) == 500
    assert pool.shrink(0) == 0
    assert not pool.give(made(tmp_path, 9 * KIB + 1))


@pytest.mark.parametrize("kind", ["directory", "forbidden"])
def test_a_pool_that_cannot_be_used_breaks_no_flush(open_queue: QueueFactory, directory: Path, kind: str) -> None:
    """If the pool has a directory under a name of its own, or cannot be listed, flushes make new segments instead."""
    forbidden = [kind == "forbidden"]

    def listdir(path: str) -> list[str]:
        if forbidden[0] and path.endswith("pool"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return DISK.listdir(path)

    disk = replace(DISK, listdir=listdir)
    queue = open_queue(segment_bytes=8 * KIB, pool_max_bytes=100 * KIB, disk=disk)
    if kind == "directory":
        (directory / "pool" / f"{8 * KIB:012d}-{1:016x}.free").mkdir()
    items = [b"%d" % n * KIB for n in range(10)]
    put_each(queue, items)
    assert drain(queue) == items
    forbidden[0] = False


def test_files_of_others_are_left_alone(pool: Pool) -> None:
    """Files with foreign names are left alone."""
    other = Path(pool.directory) / "notes.free"
    other.write_bytes(b"mine")
    assert pool.clean() == []
    assert pool.shrink(0) == 0
    assert other.read_bytes() == b"mine"
    assert parse_pool_name(other.name) is None


def test_a_half_made_file_goes_unless_somebody_is_at_it(pool: Pool) -> None:
    """A partial file of a killed process is deleted; the lock on it shows whether a process is still filling the
    pool."""
    filling = pool.fill(4 * KIB, 2 * KIB)
    parts: list[Path] = []

    def pwritev(fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        parts.extend(Path(pool.directory).glob("*.part"))
        assert Pool(DISK, pool.directory, 0).clean() == []
        return DISK.pwritev(fd, buffers, offset, flags)

    pool._disk = replace(DISK, pwritev=pwritev)
    next(filling)
    assert len(parts) == 1
    pool._disk = DISK
    parts[0].write_bytes(b"left by a process that was killed")
    assert pool.clean() == [parts[0].name]
    assert sizes(pool) == [2 * KIB]


def test_a_full_disk_leaves_no_half_of_a_file(pool: Pool) -> None:
    """A full disk raises ``DiskFullError`` and leaves no partial file."""

    def refuse(fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    pool._disk = replace(DISK, pwritev=refuse)
    with pytest.raises(DiskFullError, match=rf"{pool.directory}: no room .* then fill it again"):
        next(pool.fill(4 * KIB, 2 * KIB))
    assert os.listdir(pool.directory) == []


def test_another_process_may_be_faster(pool: Pool, tmp_path: Path) -> None:
    """If a file is gone when it is to be taken, another process has taken it, and the next file is used."""
    for size_bytes in (100, 200):
        empty(pool, size_bytes)

    def rename(source: str, target: str) -> None:
        if "000200-" in source:
            os.unlink(source)
        DISK.rename(source, target)

    pool._disk = replace(DISK, rename=rename)
    assert pool.take(str(tmp_path / "mine"), 50, 300) == 100
    assert Pool(DISK, str(tmp_path / "nowhere"), 100).files() == []


# --- in a queue


def test_drained_segments_are_written_to_again(open_queue: QueueFactory, directory: Path) -> None:
    """A queue with a pool reuses its files, and stays within the bound of the pool."""
    queue = open_queue(segment_bytes=8 * KIB, pool_max_bytes=100 * KIB)
    for _ in range(10):
        put_each(queue, [bytes(KIB)] * 20)
        assert len(drain(queue)) == 20
        queue.trim()
    stats = queue.stats()
    assert stats.pool_taken > 10
    assert stats.pool_bytes == sum(
        size for path, size in files_in(directory / "pool").items() if "log" not in path.name
    )
    assert stats.pool_bytes <= 100 * KIB
    assert len({path.stat().st_ino for path in (directory / "pool").iterdir()}) == stats.pool_files + 1


def test_without_a_pool_drained_segments_are_deleted(open_queue: QueueFactory, directory: Path) -> None:
    """By default the pool keeps no segment."""
    queue = open_queue(segment_bytes=8 * KIB)
    put_each(queue, [bytes(KIB)] * 20)
    drain(queue)
    queue.trim()
    assert (queue.stats().pool_files, queue.stats().pool_taken) == (0, 0)
    assert [path.name for path in (directory / "pool").iterdir()] == ["log.free"]


def test_every_file_is_in_use_or_in_the_pool(open_queue: QueueFactory, directory: Path) -> None:
    """The files in the directory are exactly those that ``stats`` counts, to the byte: nothing leaks."""
    queue = open_queue(segment_bytes=8 * KIB, pool_max_bytes=64 * KIB, log_bytes=8 * KIB)
    for round_ in range(30):
        put_each(queue, [bytes(97 * (round_ + 1))] * 10)
        with queue.transaction() as session:
            session.dequeue_many(7)
    queue.trim()
    stats = queue.stats()
    found = files_in(directory)
    assert sum(found.values()) == stats.disk_bytes
    assert len(found) == stats.segments + stats.pool_files + 2  # with the log and its spare
    queue.close()
    assert check(str(directory)).leftovers == ()


def test_the_size_of_segments_can_change_between_runs(open_queue: QueueFactory) -> None:
    """If segments are larger in the pool than they may be now, they are not used; smaller ones are used down to a
    half."""
    queue = open_queue(segment_bytes=32 * KIB, pool_max_bytes=200 * KIB)
    put_each(queue, [bytes(KIB)] * 100)
    drain(queue)
    queue.close()
    queue = open_queue(segment_bytes=8 * KIB, pool_max_bytes=200 * KIB)
    assert queue.stats().pool_files
    put_each(queue, [bytes(KIB)] * 20)
    assert queue.stats().pool_taken == 0
    drain(queue)
    queue.close()
    queue = open_queue(segment_bytes=12 * KIB, pool_max_bytes=200 * KIB)
    put_each(queue, [bytes(KIB)] * 30)
    assert queue.stats().pool_taken


def test_maintenance_fills_the_pool_to_its_minimum(open_queue: QueueFactory) -> None:
    """``maintain`` fills the pool to its minimum with files of the size of the next segment, once."""
    queue = open_queue(segment_bytes=8 * KIB, pool_min_bytes=20 * KIB, pool_max_bytes=40 * KIB)
    assert queue.stats().pool_files == 0
    assert queue.maintain().pooled_bytes == 3 * 8 * KIB
    assert queue.maintain().pooled_bytes == 0
    put_each(queue, [bytes(KIB)] * 10)
    assert queue.stats().pool_taken == 2


def test_two_queues_can_share_a_pool(open_queue: QueueFactory, tmp_path: Path) -> None:
    """Two queues with a shared pool use each other's drained segments."""
    settings = {"segment_bytes": 8 * KIB, "pool_max_bytes": 100 * KIB, "shared_pool": True}
    first, second = open_queue("first", **settings), open_queue("second", **settings)
    put_each(first, [bytes(KIB)] * 40)
    drain(first)
    first.trim()
    pooled = first.stats().pool_files
    assert pooled > 3
    assert second.stats().pool_files == pooled
    put_each(second, [bytes(KIB)] * 20)
    assert second.stats().pool_taken > 0
    assert first.stats().pool_files == pooled - second.stats().pool_taken
    assert (tmp_path / "queues" / ".pool").is_dir()


def test_a_queue_that_begins_to_share_a_pool_gives_up_its_own(open_queue: QueueFactory, directory: Path) -> None:
    """The files of its own pool do not count for its limits when a queue has begun to use a shared pool.

    They were never taken or deleted again. So an empty queue refused each item, with the advice to dequeue.
    """
    own = {"segment_bytes": 8 * KIB, "log_bytes": 4 * KIB}
    queue = open_queue(**own, pool_min_bytes=40 * KIB)
    assert queue.maintain().pooled_bytes == 40 * KIB
    queue.close()
    (directory / "pool" / f"{KIB:012d}-{0:016x}.part").write_bytes(b"of a killed process")
    queue = open_queue(**own, pool_min_bytes=8 * KIB, shared_pool=True, max_disk_bytes=32 * KIB)
    assert [path.name for path in (directory / "pool").iterdir()] == ["log.free"]
    put(queue, bytes(KIB))
    assert drain(queue) == [bytes(KIB)]


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSPC])
def test_a_pool_that_takes_no_file_keeps_none(open_queue: QueueFactory, directory: Path, code: int) -> None:
    """A drained segment is deleted if the pool cannot take it, for instance since it is on another file system.

    It stayed until the next opening.
    """

    def rename(source: str, target: str) -> None:
        if str(target).endswith(".free") and Path(target).name != "log.free":
            raise OSError(code, os.strerror(code), target)
        DISK.rename(source, target)

    disk = replace(DISK, rename=rename)
    queue = open_queue(segment_bytes=8 * KIB, pool_max_bytes=100 * KIB, shared_pool=True, disk=disk)
    put_each(queue, [bytes(KIB)] * 40)
    drain(queue)
    queue.trim()
    assert len(segment_files(directory)) <= 1
    assert queue.stats().pool_files == 0


def test_a_pool_writes_no_file_that_has_no_room(tmp_path: Path) -> None:
    """A file that the free space cannot take is not begun. Maintenance filled the disk with a part of it each second,
    and deleted that part again."""
    free_bytes = 25 * KIB

    def pwritev(fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        nonlocal free_bytes
        free_bytes -= sum(map(len, buffers))
        assert free_bytes > 0
        return DISK.pwritev(fd, buffers, offset, flags)

    pool = Pool(replace(DISK, pwritev=pwritev, free_bytes=lambda _: free_bytes), str(tmp_path), 100 * KIB)
    made = pool.fill(100 * KIB, 10 * KIB)
    assert [next(made), next(made)] == [10 * KIB, 10 * KIB]
    with pytest.raises(DiskFullError, match="no room to fill the pool"):
        next(made)
    assert free_bytes == 5 * KIB and sizes(pool) == [10 * KIB, 10 * KIB]


def test_a_drained_segment_is_deleted_without_a_descriptor(open_queue: QueueFactory, directory: Path) -> None:
    """Without a free descriptor, the pool cannot learn if it may have a drained segment, which is then deleted. It
    stayed until the next opening."""
    is_short = False

    def open_file(path: str, flags: int, mode: int) -> int:
        if is_short and path.endswith(".seg"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return DISK.open(path, flags, mode)

    queue = open_queue(segment_bytes=8 * KIB, pool_max_bytes=100 * KIB, disk=replace(DISK, open=open_file))
    put_each(queue, [bytes(KIB)] * 12)
    before = segment_files(directory)
    is_short = True
    drain(queue)
    queue.trim()
    assert len(before) == 2 and not before[0].exists()


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_opening_takes_the_second_name_of_its_segment(open_queue: QueueFactory, path: Path, is_clean: bool) -> None:
    """If a power cut has brought back the name in the shared pool of a segment, the next opening removes that name.

    Otherwise another queue could take the file once the first queue's directory is deleted, while its owner writes.
    """
    settings = {"segment_bytes": 8 * KIB, "pool_max_bytes": 100 * KIB, "shared_pool": True}
    queue = open_queue("first", **settings)
    put(queue, bytes(KIB))
    queue.close() if is_clean else crash(queue)
    segment = segment_files(path / "first")[0]
    second = path / ".pool" / f"{segment.stat().st_size:012d}-{0:016x}.free"
    os.link(segment, second)
    queue = open_queue("first", **settings)
    assert not second.exists() and segment.stat().st_nlink == 1
    assert drain(queue) == [bytes(KIB)]


def test_deleting_a_queue_deletes_its_pool(open_queue: QueueFactory, directory: Path, tmp_path: Path) -> None:
    """Deleting a queue deletes its pool with it."""
    queue = open_queue(segment_bytes=8 * KIB, pool_min_bytes=40 * KIB)
    queue.maintain()
    queue.close()
    delete_queue(tmp_path / "queues", "orders")
    assert not directory.exists()


def test_a_bound_below_the_other_is_refused(open_queue: QueueFactory) -> None:
    """A ``pool_max_bytes`` below ``pool_min_bytes`` is refused."""
    with pytest.raises(ValueError, match="pool_max_bytes must be at least pool_min_bytes, 5, got 4"):
        open_queue(pool_min_bytes=5, pool_max_bytes=4)


def test_a_crash_while_a_file_changes_hands_loses_nothing(open_queue: QueueFactory, directory: Path) -> None:
    """A segment from the pool that no frame names is swept after a crash, and committed items are there."""
    queue = open_queue(segment_bytes=8 * KIB, pool_min_bytes=40 * KIB)
    queue.maintain()
    put(queue, bytes(6 * KIB))
    session = queue.session()
    session._spill_bytes = 1
    session.enqueue_many([bytes(6 * KIB)] * 3)
    crash(queue)
    session.close()
    queue = open_queue(segment_bytes=8 * KIB, pool_min_bytes=40 * KIB)
    assert drain(queue) == [bytes(6 * KIB)]
    queue.trim()
    assert len(segment_files(directory)) <= 1


# --- wiping


def holding(directory: Path, secret: bytes = SECRET) -> list[str]:
    """Return the names of the files in which the secret can be read."""
    return sorted(path.name for path in files_in(directory) if secret in path.read_bytes())


@pytest.mark.parametrize("pool_max_bytes", [0, 100 * KIB])
def test_what_was_dequeued_is_wiped(open_queue: QueueFactory, directory: Path, pool_max_bytes: int) -> None:
    """Once its segment is given back, no file holds a dequeued item any more: no pooled file, log or spare."""
    queue = open_queue(segment_bytes=4 * KIB, wipe=True, pool_max_bytes=pool_max_bytes)
    put_each(queue, [SECRET] * 100)
    assert len(drain(queue)) == 100
    queue.trim()
    assert holding(directory) == [segment_files(directory)[-1].name]  # the current segment
    assert bool(queue.stats().pool_files) == bool(pool_max_bytes)
    put(queue, b"another")
    queue.close()
    assert holding(directory) == [segment_files(directory)[0].name]  # it has a live item
    queue = open_queue(segment_bytes=4 * KIB, wipe=True)
    assert drain(queue) == [b"another"]
    queue.close()
    assert holding(directory) == []


def test_without_wiping_it_can_be_read(open_queue: QueueFactory, directory: Path) -> None:
    """Without ``wipe`` the secret is found, so that the test above would notice it."""
    queue = open_queue(segment_bytes=4 * KIB, pool_max_bytes=100 * KIB)
    put_each(queue, [SECRET] * 100)
    drain(queue)
    queue.trim()
    assert any(name.endswith(".free") for name in holding(directory))


def test_nothing_is_wiped_before_its_dequeue_is_durable(open_queue: QueueFactory, directory: Path) -> None:
    """Items that are only on hold are not wiped, and come back after a crash."""
    queue = open_queue(segment_bytes=4 * KIB, wipe=True, pool_max_bytes=100 * KIB)
    put_each(queue, [SECRET] * 20)
    session = queue.session()
    assert len(session.dequeue_many(20)) == 20
    queue.trim()
    crash(queue)
    session.close()
    queue = open_queue(wipe=True)
    assert drain(queue) == [SECRET] * 20


def test_what_a_crash_left_is_wiped_by_the_next_opening(open_queue: QueueFactory, directory: Path) -> None:
    """A segment that a crash left behind is overwritten before the next opening sweeps it."""
    queue = open_queue(segment_bytes=4 * KIB, wipe=True)
    put(queue, SECRET)
    crash(queue)
    leftover = directory / "data" / f"{99:012d}.seg"
    leftover.write_bytes(segment_files(directory)[0].read_bytes())
    with leftover.open("rb") as raw:
        queue = open_queue(segment_bytes=4 * KIB, wipe=True)
        assert not leftover.exists()
        assert SECRET not in raw.read()
    assert drain(queue) == [SECRET]


def test_a_file_with_another_name_is_not_wiped(open_queue: QueueFactory, directory: Path) -> None:
    """A file with a second name is not wiped, since that name may still need it."""
    queue = open_queue(segment_bytes=4 * KIB, wipe=True)
    put_each(queue, [SECRET] * 40)
    segment = segment_files(directory)[0]
    other = directory / "other"
    os.link(segment, other)
    drain(queue)
    queue.trim()
    assert not segment.exists()
    assert SECRET in other.read_bytes()


# --- the command line


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m persistentqueue pool`` with these arguments."""
    command = [sys.executable, "-m", "persistentqueue", "pool", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_pool_is_filled_from_outside_while_the_queue_is_in_use(open_queue: QueueFactory, tmp_path: Path) -> None:
    """``pool fill`` fills the pool of a queue in use, with the utility that Qpid's linearstore never had."""
    queue = open_queue(segment_bytes=8 * KIB, pool_max_bytes=100 * KIB)
    done = run("fill", str(tmp_path / "queues"), "orders", "--bytes", "30000", "--file-bytes", str(8 * KIB))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "3 files, 24.0 KiB"
    put_each(queue, [bytes(KIB)] * 20)
    assert queue.stats().pool_taken == queue.stats().segments == 3
    assert run("clear", str(tmp_path / "queues"), "orders").stdout.splitlines()[-1] == "0 files, 0 bytes"


def test_the_shared_pool_can_be_filled_before_there_is_a_queue(tmp_path: Path) -> None:
    """The shared pool can be filled before there is a queue: names of queues cannot begin with a dot."""
    done = run("fill", str(tmp_path), "--shared", "--bytes", "1000", "--file-bytes", "500")
    assert done.stdout.splitlines() == ["made: 500 bytes"] * 2 + ["2 files, 1,000 bytes"]
    assert run("show", str(tmp_path), "--shared").stdout.splitlines() == ["2 files, 1,000 bytes"]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (["--file-bytes", "0"], "pool: --file-bytes: expected"),
        (["--file-bytes", "-1"], "pool: --file-bytes: expected"),
        (["--bytes", "1000000000000"], "pool: --bytes: expected"),
        (["--bytes", "much"], "pool: --bytes: expected"),
        (["--bytes", "100", "--file-bytes", "101"], "--bytes is 100, less than one file with --file-bytes 101"),
    ],
)
def test_sizes_that_a_pool_cannot_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sizes: list[str], said: str
) -> None:
    """Sizes that a pool cannot have are refused by name, and no file is made."""
    assert main(["pool", "fill", str(tmp_path), "--shared", *sizes]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_no_queue_there_is_no_pool(tmp_path: Path) -> None:
    """``pool show`` for a queue that does not exist fails, and makes nothing."""
    done = run("show", str(tmp_path), "nobody")
    assert done.returncode == 2
    assert "QueueNotFoundError" in done.stderr
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(QueueNotFoundError):
        open_pool(tmp_path, "nobody", shared=False, max_bytes=0)


@pytest.mark.parametrize("action", ["show", "clear"])
def test_a_mistyped_path_is_no_empty_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str) -> None:
    """``pool show`` and ``pool clear`` of a shared pool need a directory, and make none."""
    (tmp_path / "file").write_bytes(b"")
    for name, kind in (("none", "PathMissingError"), ("file", "PathNotADirectoryError")):
        assert main(["pool", action, str(tmp_path / name), "--shared"]) == 2
        assert capsys.readouterr().err.startswith(f"{kind}: {tmp_path / name}: ")
    assert main(["pool", action, str(tmp_path), "--shared"]) == 0
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.fixture(autouse=True)
def no_half_made_files(tmp_path: Path) -> Iterator[None]:
    """Check after each test that no partial file is left in a pool."""
    yield
    assert not list(tmp_path.rglob("*.part"))


def test_files_are_listed_smallest_first(pool: Pool) -> None:
    """Files are listed by size, then by name."""
    first, second = empty(pool, 200, 2), empty(pool, 200, 1)
    third = empty(pool, 100)
    assert pool.files() == [Empty(100, third.name), Empty(200, second.name), Empty(200, first.name)]
    assert pool.size_bytes() == 500


def test_a_queue_stays_usable_when_its_pool_cannot_be_made(tmp_path: Path) -> None:
    """If a foreign file stands in the place of the pool, the opening is refused, and changes nothing."""
    (tmp_path / ".pool").write_bytes(b"mine")
    with pytest.raises(NotADirectoryError):
        PersistentQueue(tmp_path, "orders", shared_pool=True)
    assert (tmp_path / ".pool").read_bytes() == b"mine"

"""An error that passes is not taken for a fact: no descriptor, no memory, a network disk that times out.

A file that cannot be read now may be there. So nothing is deleted, accepted, forgotten or counted as absent for such an
error: the call raises, and the same call succeeds later.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    CopiedQueueError,
    DataPathError,
    MemoryShortageError,
    NetworkDiskError,
    PersistentQueue,
    Producer,
    QueueFullError,
    QueueNotFoundError,
    ResourceError,
    View,
    check,
    move_data,
)
from persistentqueue.interprocess.multi_writer import PartWriter, publish_parts
from persistentqueue.system.disk import DISK, READ, Buffers, Disk, StatResult
from tests.support.disks import call_on, disk_with
from tests.support.queues import crash, drain, flip, log_file, put, put_each

PASSING = (OSError, ResourceError)
CODES = pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.EMFILE, errno.ENOMEM])


def failure(code: int, path: str = "") -> OSError:
    """Return the error of a call of the operating system."""
    return OSError(code, os.strerror(code), path)


def path_of(fd: int) -> str:
    """Return the path of an open file."""
    return os.readlink(f"/proc/self/fd/{fd}")


def unopened(wanted: Callable[[str], bool], code: int, disk: Disk = DISK) -> Disk:
    """Return a disk on which the files of these paths cannot be opened."""

    def opened(path: str, flags: int, mode: int) -> int:
        if wanted(str(path)):
            raise failure(code, str(path))
        return disk.open(path, flags, mode)

    return replace(disk, open=opened)


def short_of_memory(part: str) -> Disk:
    """Return a disk on which the memory is too short for what stands behind the header of one file, once."""
    armed = [True]

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        if armed[0] and part in path_of(fd) and offset > 64:
            armed[0] = False
            raise MemoryError
        return DISK.pread(fd, length_bytes, offset)

    return replace(DISK, pread=pread)


# --- copies and locations --------------------------------------------------------------------------------------------


@pytest.fixture
def queues(tmp_path: Path) -> Path:
    """Make a queue ``q`` with segments at another location, a backup of its directory, and more segments; return the
    path above. The directory is in the archive, and the backup has its place."""
    path, media = tmp_path / "queues", tmp_path / "media"
    with PersistentQueue(path, "q", data_path=media, segment_bytes=4096) as queue:
        put(queue, b"old")
    shutil.copytree(path / "q", tmp_path / "backup")
    for number in range(3):
        with PersistentQueue(path, "q", segment_bytes=4096) as queue:
            put(queue, b"%d" % number * 3000)
    (tmp_path / "archive").mkdir()
    (path / "q").rename(tmp_path / "archive" / "q")
    shutil.copytree(tmp_path / "backup", path / "q")
    return path


def need_original(queues: Path) -> None:
    """Put the archived directory back in its place: it has all of its items."""
    shutil.rmtree(queues / "q")
    (queues.parent / "archive" / "q").rename(queues / "q")
    shutil.rmtree(queues.parent / "backup")
    report = check(queues, "q")
    assert (report.ok, report.items) == (True, 4)


@CODES
def test_a_lock_file_that_cannot_be_read_now_is_no_original(queues: Path, code: int) -> None:
    """If the inode in the lock file cannot be read, an opening of a copy is refused, and the next one is, too."""

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        if path_of(fd).endswith("/q/lock") and offset == 0:
            raise failure(code)
        return DISK.pread(fd, length_bytes, offset)

    with pytest.raises(PASSING):
        call_on(replace(DISK, pread=pread), PersistentQueue, queues, "q")
    with pytest.raises(DataPathError):
        PersistentQueue(queues, "q")
    need_original(queues)


def test_a_lock_file_that_cannot_be_written_keeps_its_inode(queues: Path) -> None:
    """If there is no room for the text of the lock file, the recorded inode stays, and a copy is still one."""

    def pwritev(fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        if path_of(fd).endswith("/q/lock"):
            raise failure(errno.ENOSPC)
        return DISK.pwritev(fd, buffers, offset, flags)

    with pytest.raises(DataPathError):
        call_on(replace(DISK, pwritev=pwritev), PersistentQueue, queues, "q")
    with pytest.raises(DataPathError):
        PersistentQueue(queues, "q")
    need_original(queues)


def test_a_lock_file_has_one_text(tmp_path: Path) -> None:
    """A text that is shorter than the one before it leaves nothing of that behind."""
    PersistentQueue(tmp_path, "q").close()
    lock = tmp_path / "q" / "lock"
    longer = lock.read_text().replace('"host": "', '"host": "a-longer-name-')
    lock.write_text(longer)
    PersistentQueue(tmp_path, "q").close()
    assert "longer" not in lock.read_text()
    assert lock.read_text() == lock.read_text().strip()


def need_sound(path: Path, name: str) -> None:
    """Raise ``DataPathError`` if ``check`` finds a problem."""
    if problems := check(path, name).problems:
        raise DataPathError(str(path), "no problem", str(problems), "")


@CODES
@pytest.mark.parametrize("call", [need_sound, Producer, lambda path, name: View(path, name).look()])
def test_a_copy_whose_lock_file_cannot_be_opened_now(queues: Path, call: Callable[..., Any], code: int) -> None:
    """Calls beside the owner see no segments of the original if they cannot tell that a directory is a copy."""
    with pytest.raises(PASSING):
        call_on(unopened(lambda path: path.endswith("/q/lock"), code), call, queues, "q")
    with pytest.raises(DataPathError):
        call(queues, "q")
    need_original(queues)


@CODES
def test_a_location_is_not_swept_if_its_queue_cannot_be_told(tmp_path: Path, code: int) -> None:
    """A copy that was made during a move records the location that its original moves to. It sweeps nothing there if
    it cannot tell that it is a copy."""
    path, media = tmp_path / "queues", tmp_path / "media"
    with PersistentQueue(path, "q") as queue:
        put(queue, b"precious")

    def failpoint(name: str) -> None:
        if name == "move.4 switch":
            shutil.copytree(path / "q", tmp_path / "backup")

    call_on(replace(DISK, failpoint=failpoint), move_data, path, "q", data_path=media)
    (path / "q").rename(tmp_path / "original")
    (tmp_path / "backup").rename(path / "q")

    def opened(path: str, flags: int, mode: int) -> int:
        if str(path).endswith("/q/lock") and flags == READ:
            raise failure(code, str(path))
        return DISK.open(path, flags, mode)

    with suppress(*PASSING), call_on(replace(DISK, open=opened), PersistentQueue, path, "q"):
        pass
    shutil.rmtree(path / "q")
    (tmp_path / "original").rename(path / "q")
    report = check(path, "q")
    assert (report.ok, report.items) == (True, 1)


@pytest.mark.parametrize("where", ["lstat", "open"])
@CODES
def test_a_copy_takes_no_location_whose_queue_cannot_be_seen_now(tmp_path: Path, where: str, code: int) -> None:
    """A copy with ``data_path`` takes the location of its original only if that is gone, not if it cannot be seen."""
    path, media = tmp_path / "queues", tmp_path / "media"
    with PersistentQueue(path, "q", data_path=media, segment_bytes=4096) as queue:
        put(queue, b"old")
    (tmp_path / "other").mkdir()
    shutil.copytree(path / "q", tmp_path / "other" / "copy")
    with PersistentQueue(path, "q") as queue:
        put(queue, b"new" * 3000)

    def lstat(seen: str) -> StatResult:
        if seen == str(path / "q"):
            raise failure(code, seen)
        return DISK.lstat(seen)

    disk = unopened(lambda seen: seen == str(path / "q" / "data.path"), code)
    with pytest.raises(PASSING):
        call_on(
            replace(DISK, lstat=lstat) if where == "lstat" else disk,
            PersistentQueue,
            tmp_path / "other" / "copy",
            data_path=media / "q",
        )
    shutil.rmtree(tmp_path / "other")
    with PersistentQueue(path, "q") as queue:
        assert queue.peek(2) == [b"old", b"new" * 3000]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EINTR, errno.ETIMEDOUT])
def test_a_location_that_cannot_be_locked_now_has_one_owner(tmp_path: Path, code: int) -> None:
    """Only a file system that locks no directories goes without the lock of a location."""
    path, media = tmp_path / "queues", tmp_path / "media"

    def lock(fd: int) -> bool:
        if path_of(fd) == str(media / "q"):
            raise failure(code)
        return DISK.lock(fd)

    with PersistentQueue(path, "q", data_path=media) as queue:
        put(queue, b"one")
    with pytest.raises(OSError, match=os.strerror(code)):
        call_on(replace(DISK, lock=lock), PersistentQueue, path, "q")
    with PersistentQueue(path, "q") as queue:
        assert queue.peek() == [b"one"]


@CODES
@pytest.mark.parametrize("where", ["log", "parent"])
def test_a_copy_beside_an_original_that_cannot_be_read_now(tmp_path: Path, where: str, code: int) -> None:
    """If the log of a neighbour cannot be read, or the parent not be listed, a copy does not become an original."""
    with PersistentQueue(tmp_path, "q") as queue:
        put(queue, b"1")
    shutil.copytree(tmp_path / "q", tmp_path / "copy")

    def listdir(path: str) -> list[str]:
        if str(path) == str(tmp_path):
            raise failure(code, path)
        return DISK.listdir(path)

    disk = unopened(lambda path: "/q/log/" in path, code) if where == "log" else replace(DISK, listdir=listdir)
    with pytest.raises(PASSING):
        call_on(disk, PersistentQueue, tmp_path, "copy")
    with pytest.raises(CopiedQueueError):
        PersistentQueue(tmp_path, "copy")
    shutil.rmtree(tmp_path / "copy")


@CODES
def test_a_network_disk_is_not_accepted_for_an_error(tmp_path: Path, code: int) -> None:
    """If the table of mounts cannot be read now, an opening raises, and the next one still refuses the network disk."""
    (tmp_path / "mounted").mkdir()
    disk = disk_with(tmp_path, "nfs4", tmp_path / "mounted")
    with pytest.raises(PASSING):
        call_on(
            unopened(lambda path: path == "/proc/self/mountinfo", code, disk), PersistentQueue, tmp_path / "mounted"
        )
    with pytest.raises(NetworkDiskError):
        call_on(disk, PersistentQueue, tmp_path / "mounted")


def test_a_queue_with_the_name_of_a_small_file(tmp_path: Path) -> None:
    """A directory ``queue.id`` that cannot be listed now is no damaged file of that name."""
    PersistentQueue(tmp_path, "queue.id").close()

    def listdir(path: str) -> list[str]:
        if str(path).endswith("/queue.id"):
            raise failure(errno.EMFILE, path)
        return DISK.listdir(path)

    with pytest.raises(PASSING):
        call_on(replace(DISK, listdir=listdir), lambda: View(tmp_path).look())
    with pytest.raises(QueueNotFoundError):
        View(tmp_path).look()


# --- published files -------------------------------------------------------------------------------------------------


@CODES
def test_limits_that_cannot_be_read_now_are_no_limits(tmp_path: Path, code: int) -> None:
    """A producer, and an opening that keeps the recorded limits, raise if they cannot read them. A limit that is taken
    back is gone all the same."""
    disk = unopened(lambda path: path.endswith("/queue.limits"), code)
    PersistentQueue(tmp_path, "q", max_items=10).close()
    with call_on(disk, Producer, tmp_path, "q") as producer:
        producer.enqueue_many([b"x"] * 25)
        with pytest.raises(PASSING):
            producer.flush()
        producer.rollback()
    with pytest.raises(PASSING):
        call_on(disk, PersistentQueue, tmp_path, "q", keep_limits=True)
    call_on(disk, PersistentQueue, tmp_path, "q").close()
    assert not (tmp_path / "q" / "queue.limits").exists()


def test_a_file_that_memory_is_too_short_for_counts_later(tmp_path: Path) -> None:
    """A published file that memory was too short for is counted against the limits when it can be read."""
    PersistentQueue(tmp_path, "q", max_items=10).close()
    with Producer(tmp_path, "q") as one:
        one.enqueue_many([b"x"] * 9)
        one.flush()
    with call_on(short_of_memory("/inbox/"), Producer, tmp_path, "q") as two:
        two.enqueue_many([b"y"] * 2)
        with pytest.raises(MemoryShortageError):
            two.flush()
        with pytest.raises(QueueFullError):
            two.flush()
        two.rollback()


def test_a_version_in_a_file_that_memory_is_too_short_for(tmp_path: Path) -> None:
    """A version of a marker that cannot be read now is not forgotten: the same version is published once."""
    PersistentQueue(tmp_path, "q").close()
    with Producer(tmp_path, "q") as one:
        one.enqueue(b"x")
        assert one.flush(("app", 5))
    with call_on(short_of_memory("/inbox/"), Producer, tmp_path, "q") as two:
        two.enqueue(b"x")
        with pytest.raises(MemoryShortageError):
            two.flush(("app", 5))
        assert not two.flush(("app", 5))
    with PersistentQueue(tmp_path, "q") as queue:
        assert queue.peek(9) == [b"x"]


@pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.EIO])
@pytest.mark.parametrize("is_seen", [True, False])
def test_a_rename_that_failed_may_have_happened(tmp_path: Path, code: int, is_seen: bool) -> None:
    """Over a network, a rename that raises may have happened: the producer does not publish its items once more."""
    PersistentQueue(tmp_path, "q").close()

    def rename(source: str, target: str) -> None:
        DISK.rename(source, target)
        if "/inbox/" in str(target):
            raise failure(code, source)

    def lstat(path: str) -> StatResult:
        if not is_seen and "/inbox/" in str(path) and str(path).endswith(".seg"):
            raise failure(code, path)
        return DISK.lstat(path)

    with call_on(replace(DISK, rename=rename, lstat=lstat), Producer, tmp_path, "q") as producer:
        producer.enqueue(b"once")
        with pytest.raises(BrokenQueueError, match="a sync or a rename failed"):
            producer.flush()
        assert producer.flush()
    with PersistentQueue(tmp_path, "q") as queue:
        assert queue.peek(9) == [b"once"]


def test_a_rename_that_did_not_happen(tmp_path: Path) -> None:
    """A rename that failed, and surely did not happen, leaves the items for the next flush."""
    PersistentQueue(tmp_path, "q").close()
    armed = [True]

    def rename(source: str, target: str) -> None:
        if armed[0] and "/inbox/" in str(target):
            armed[0] = False
            raise failure(errno.ETIMEDOUT, source)
        DISK.rename(source, target)

    with call_on(replace(DISK, rename=rename), Producer, tmp_path, "q") as producer:
        producer.enqueue(b"once")
        with pytest.raises(OSError, match="timed out"):
            producer.flush()
        assert producer.flush()
    with PersistentQueue(tmp_path, "q") as queue:
        assert queue.peek(9) == [b"once"]


def test_a_draft_is_dropped_if_the_inbox_cannot_be_listed(tmp_path: Path) -> None:
    """Parts whose manifest cannot be begun leave no file that this process holds: the fixtures find it otherwise."""
    PersistentQueue(tmp_path, "q").close()
    writer = PartWriter(tmp_path, "q")
    writer.write([b"x"])
    part = writer.end()
    assert part is not None
    inbox = tmp_path / "q" / "inbox"

    def listdir(path: str) -> list[str]:
        found = DISK.listdir(path)
        if str(path) == str(inbox) and any(name.endswith(".tmp") for name in found):
            raise failure(errno.ETIMEDOUT, path)
        return found

    with pytest.raises(PASSING):
        call_on(replace(DISK, listdir=listdir), publish_parts, tmp_path, "q", [part])
    assert not list(inbox.glob("*.tmp"))
    assert publish_parts(tmp_path, "q", [part])


@CODES
def test_check_raises_for_a_published_file_that_cannot_be_opened_now(tmp_path: Path, code: int) -> None:
    """``check`` reports no problem of a published file that it cannot read now."""
    PersistentQueue(tmp_path, "q").close()
    with Producer(tmp_path, "q") as producer:
        producer.enqueue(b"x")
        producer.flush()
    with pytest.raises(PASSING):
        call_on(unopened(lambda path: "/inbox/" in path, code), check, tmp_path, "q")
    assert check(tmp_path, "q").ok


def test_an_orphan_that_memory_is_too_short_for_is_not_set_aside(tmp_path: Path) -> None:
    """A power cut took the frame of an adoption. If memory is too short for the file, the opening raises, and the next
    one gives the file back to the inbox."""
    queue = PersistentQueue(tmp_path, "q")
    put(queue, b"own")
    before = log_file(tmp_path / "q").read_bytes()
    with Producer(tmp_path, "q") as producer:
        producer.enqueue(b"published")
        producer.flush()
    with queue.session() as session:
        assert [session.dequeue_many(9), session.dequeue_many(9)] == [[b"own"], [b"published"]]
        session.rollback()
    crash(queue)
    log_file(tmp_path / "q").write_bytes(before)
    with pytest.raises(MemoryShortageError):
        call_on(short_of_memory("000000000002.seg"), PersistentQueue, tmp_path, "q")
    with PersistentQueue(tmp_path, "q") as queue:
        assert not queue.recovery.set_aside
        assert drain(queue) == [b"own", b"published"]


# --- segments and logs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.ESTALE, errno.EMFILE])
def test_a_read_that_fails_now_is_no_damage(tmp_path: Path, code: int) -> None:
    """A compaction whose read fails now raises. It reports no damage, and the next one copies the segment."""
    armed = [False]

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        if armed[0] and path_of(fd).endswith("1.seg"):
            armed[0] = False
            raise failure(code)
        return DISK.pread(fd, length_bytes, offset)

    options: dict[str, Any] = {"segment_bytes": 65536, "compact_below": 0.0, "memory_bytes": 0}
    with call_on(replace(DISK, pread=pread), PersistentQueue, tmp_path, "q", **options) as queue:
        put_each(queue, [b"%03d" % number * 300 for number in range(200)])
        with queue.session() as holding, queue.session() as session:
            for _ in range(10):
                holding.dequeue()
                session.dequeue_many(19)
                session.flush()
            armed[0] = True
            with pytest.raises(PASSING):
                queue.compact(below=0.5)
            assert queue.compact(below=0.5).segments
            assert not queue.stats().damage_found
            holding.rollback()


def test_a_log_that_was_set_aside_is_synced_later(tmp_path: Path) -> None:
    """If the new name of a log that was set aside cannot be synced now, the next trim syncs it before its own."""
    queue = PersistentQueue(tmp_path, "q")
    put(queue, b"1")
    put(queue, b"2")
    crash(queue)
    log = log_file(tmp_path / "q")
    flip(log, len(log.read_bytes().rstrip(b"\0")) - 40)
    events: list[str] = []
    armed = [False]

    def rename(source: str, target: str) -> None:
        DISK.rename(source, target)
        events.append(os.path.basename(target))
        armed[0] = target.endswith(".damaged")

    def opened(path: str, flags: int, mode: int) -> int:
        if armed[0] and str(path).endswith("log"):
            armed[0] = False
            raise failure(errno.EMFILE, path)
        return DISK.open(path, flags, mode)

    def fsync(fd: int) -> None:
        DISK.fsync(fd)
        events.extend(["synced"] * path_of(fd).endswith("/log"))

    with call_on(replace(DISK, rename=rename, open=opened, fsync=fsync), PersistentQueue, tmp_path, "q") as queue:
        aside = next(name for name in events if name.endswith(".damaged"))
        del events[: events.index(aside)]
        queue.trim()
        names = [name for name in events if name.endswith(".log")]
        assert events.index("synced") < events.index(names[0])

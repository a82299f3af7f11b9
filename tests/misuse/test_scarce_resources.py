"""Rows 12 and 21: the system lacks descriptors, memory or room for a name. Then nothing is committed, and no queue is
broken."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from persistentqueue import (
    BrokenQueueError,
    DiskFullError,
    OutOfMemoryError,
    PersistentQueue,
    Producer,
    ResourceError,
    TooManyFilesError,
    check,
    delete_queue,
)
from persistentqueue.storage.log_reader import decode_log
from persistentqueue.system.disk import DSYNC, Buffers, Disk
from persistentqueue.system.path_errors import lacking
from tests.conftest import QueueFactory
from tests.crash.disk import SimulatedDisk
from tests.support.disks import call_on
from tests.support.queues import IN_CACHE, crash, drain, put, put_each

T = TypeVar("T")
DESCRIPTORS = frozenset({"open", "create", "listdir"})
"""Calls that need a descriptor."""
NAMES = frozenset({"create", "rename", "mkdir"})
"""Calls that make a name, for which a directory may have to grow."""
MEMORY = DESCRIPTORS | NAMES | {"pwritev", "fallocate"}
"""Calls for which the system may have no memory, except syncs and durable writes."""
LACKS = [
    pytest.param(DESCRIPTORS, errno.EMFILE, TooManyFilesError, id="EMFILE"),
    pytest.param(MEMORY, errno.ENOMEM, OutOfMemoryError, id="ENOMEM"),
    pytest.param(NAMES, errno.ENOSPC, DiskFullError, id="ENOSPC of a name"),
]


class Scarce:
    """A simulated disk whose n-th call of some kinds fails. If ``lasting``, all later ones fail, too, until
    ``heal``."""

    def __init__(self, kinds: frozenset[str], at: int, code: int, lasting: bool) -> None:
        self.simulated = SimulatedDisk()
        self.calls = 0
        self.failed = ""
        self._kinds, self._at, self._code, self._lasting = kinds, at, code, lasting
        self._healed = False
        door = self.simulated.disk
        self.sound = door
        self.disk = replace(
            door,
            open=self._open,
            open_direct=lambda _path: None,
            listdir=self._guarded("listdir", door.listdir),
            rename=self._guarded("rename", door.rename),
            mkdir=self._guarded("mkdir", door.mkdir),
            fallocate=self._guarded("fallocate", door.fallocate),
            pwritev=self._pwritev,
        )

    def heal(self) -> None:
        """Let no call fail from now on."""
        self._healed = True

    def _guarded(self, kind: str, call: Callable[..., T]) -> Callable[..., T]:
        def door(*arguments: Any) -> T:
            self._call(kind, str(arguments[0]))
            return call(*arguments)

        return door

    def _open(self, path: str, flags: int, mode: int) -> int:
        makes = flags & os.O_CREAT and path not in self.simulated.names
        self._call("create" if makes else "open", path)
        return self.sound.open(path, flags, mode)

    def _pwritev(self, fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        if not flags & DSYNC:
            self._call("pwritev", str(fd))
        return self.sound.pwritev(fd, buffers, offset, flags)

    def _call(self, kind: str, path: str) -> None:
        if kind not in self._kinds:
            return
        self.calls += 1
        if not self._healed and (self.calls == self._at or (self._lasting and self.calls > self._at)):
            self.failed = self.failed or f"{kind} {path}"
            raise OSError(self._code, os.strerror(self._code), path)


@pytest.mark.parametrize(
    ("code", "lack"),
    [
        (errno.ENOSPC, DiskFullError),
        (errno.EDQUOT, DiskFullError),
        (errno.EFBIG, DiskFullError),
        (errno.EMFILE, TooManyFilesError),
        (errno.ENFILE, TooManyFilesError),
        (errno.ENOMEM, OutOfMemoryError),
        (errno.EIO, None),
        (errno.EACCES, None),
    ],
)
def test_row_12_one_error_for_each_thing_to_do(code: int, lack: type[ResourceError] | None) -> None:
    """Each lack of the system has a named error with path, number and remedy; other errors of the system have none."""
    error = lacking(OSError(code, os.strerror(code)), "/q/data", "for a segment", "then flush again")
    assert type(error) is (lack or type(None))
    if error is not None:
        assert (error.path, error.errno) == ("/q/data", code)
        assert str(error).startswith("/q/data: ")
        assert str(error).endswith(f"nothing was committed: {error.remedy}, then flush again")
        assert ("ulimit -f" in error.remedy, "quota" in error.remedy) == (code == errno.EFBIG, code == errno.EDQUOT)


class Few:
    """The real disk of a process that may have ``most`` files of a queue open at a time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open: set[int] = set()
        self.refused = 0
        self.disk = replace(IN_CACHE, open=self._open, close_file=self._close, open_direct=lambda _path: None)

    def _open(self, path: str, flags: int, mode: int) -> int:
        if len(self.open) >= self.most:
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        fd = IN_CACHE.open(path, flags, mode)
        self.open.add(fd)
        return fd

    def _close(self, fd: int) -> None:
        self.open.discard(fd)
        IN_CACHE.close(fd)


def test_row_12_files_that_only_reading_needs_give_way(open_queue: QueueFactory) -> None:
    """An owner that may open few files closes cold segments to open others, to begin a new one, and to trim."""
    few = Few(100)
    settings = {"disk": few.disk, "segment_bytes": 4096, "inline_bytes": 0, "memory_bytes": 0, "log_bytes": 4096}
    queue = open_queue(**settings)
    items = [b"%d" % number * 500 for number in range(80)]
    put_each(queue, items)
    needs: Callable[[], None]
    for needs in (partial(put, queue, *items[:30]), queue.trim):
        assert len(list(queue.browse())) >= 80
        few.most, before = len(few.open), few.refused
        needs()
        assert few.refused > before
        few.most = 100
    queue.close()
    queue = open_queue(**settings)
    few.most, before = len(few.open) + 3, few.refused
    assert list(queue.browse()) == [*items, *items[:30]]
    assert few.refused > before
    few.most = 100


_CHILD = """
import os, resource, sys
from persistentqueue import PersistentQueue, TooManyFilesError

queue = PersistentQueue(sys.argv[1], inline_bytes=0, segment_bytes=4096, memory_bytes=0)
for _ in range(20):
    with queue.transaction() as session:
        session.enqueue(b"cold" * 300)
queue.close()
queue = PersistentQueue(sys.argv[1], inline_bytes=0, segment_bytes=4096, memory_bytes=0)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
fillers = []
def fill():
    try:
        while True:
            fillers.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
def told(call):
    fill()
    try:
        call()
    except TooManyFilesError as error:
        os.close(fillers.pop()); os.close(fillers.pop()); os.close(fillers.pop()); os.close(fillers.pop())
        return error.errno
    return 0
session = queue.session()
numbers = [told(session.dequeue)]
assert session.dequeue() == b"cold" * 300
session.enqueue_many([b"more" * 300] * 20)
numbers.append(told(session.flush))
assert session.flush()
fill()
try:
    PersistentQueue(sys.argv[1] + ".other")
except TooManyFilesError as error:
    numbers.append(error.errno)
for filler in fillers:
    os.close(filler)
assert len(list(queue.browse())) == 39
session.close()
queue.close()
print(numbers)
"""


def test_row_12_a_process_without_descriptors(tmp_path: Path) -> None:
    """In a process at its limit of open files, a read, a large flush and an opening raise ``TooManyFilesError``. The
    queue goes on afterwards."""
    command = [sys.executable, "-W", "error", "-c", _CHILD, str(tmp_path / "q")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == f"{[errno.EMFILE] * 3}\n"
    report = check(tmp_path / "q")
    assert (report.problems, report.items) == ((), 39)


def test_row_12_a_compaction_without_memory_to_read() -> None:
    """A compaction without memory to read a segment raises ``OutOfMemoryError``. The segment is not taken for damaged,
    and is compacted later."""
    simulated = SimulatedDisk()
    settings = {"segment_bytes": 600, "memory_bytes": 0, "log_bytes": 4096}
    with call_on(simulated.disk, PersistentQueue, "/queues", "q", **settings) as queue:
        put_each(queue, [b"%d" % number * 100 for number in range(20)])
        with queue.session() as session:
            items = session.dequeue_many(9)
            session.put_back(1)
            assert session.flush()
        code = errno.ENOMEM
        simulated.fault = lambda call, path: OSError(code, os.strerror(code), path) if call == "pread" else None
        with pytest.raises(OutOfMemoryError, match="then compact again"):
            queue.compact(below=1.0)
        simulated.fault = None
        assert queue.stats().damage_found == 0
        assert queue.compact(below=1.0).segments > 0
        assert drain(queue)[0] == items[-1]


# --- row 21: no room for a name, and no room for a spare -------------------------------------------------------------


class Small(Scarce):
    """A simulated disk with a limit of bytes, which holds as soon as ``fill`` has been called."""

    def __init__(self) -> None:
        super().__init__(frozenset(), 0, 0, lasting=False)
        self.most_bytes: int | None = None
        self.refuses: Callable[[str], bool] = lambda target: False
        self.disk = replace(
            self.disk,
            pwritev=self._write,
            fallocate=self._reserve,
            rename=self._rename,
        )

    @property
    def used_bytes(self) -> int:
        """Bytes that all files take."""
        return sum(len(inode.cache) for inode in self.simulated.inodes.values() if inode.links)

    def fill(self) -> None:
        """Leave no room for another byte."""
        self.most_bytes = self.used_bytes

    def _grow(self, fd: int, end: int) -> None:
        more_bytes = end - self.sound.fstat(fd).st_size
        if self.most_bytes is not None and more_bytes > 0 and self.used_bytes + more_bytes > self.most_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _write(self, fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        self._grow(fd, offset + sum(map(len, buffers)))
        return self.sound.pwritev(fd, buffers, offset, flags)

    def _reserve(self, fd: int, offset: int, length_bytes: int) -> None:
        self._grow(fd, offset + length_bytes)
        self.sound.fallocate(fd, offset, length_bytes)

    def _rename(self, source: str, target: str) -> None:
        if self.refuses(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)
        self.sound.rename(source, target)


ITEMS = 400
LOG, SPARE = "/queues/q/log", "/queues/q/pool/log.free"


def on_small_disk(small: Small, **settings: Any) -> PersistentQueue:
    """Return a queue on the disk, with a log that ``ITEMS`` dequeues fill several times."""
    return call_on(small.disk, PersistentQueue, "/queues", "q", log_bytes=4096, segment_bytes=1 << 20, **settings)


def put_many(queue: PersistentQueue) -> None:
    """Enqueue the items with four flushes."""
    for first in range(0, ITEMS, 100):
        put(queue, *(b"%d" % number for number in range(first, first + 100)))


def drained_one_by_one(queue: PersistentQueue) -> bool:
    """Dequeue each item, in order, with a flush of its own, and return whether the queue is empty then."""
    with queue.session() as session:
        for number in range(ITEMS):
            assert session.dequeue() == b"%d" % number
            assert session.flush()
    return len(queue) == 0


def logs_of(small: Small) -> list[str]:
    """Return the names in the log's directory, in order."""
    return sorted(small.sound.listdir(LOG))


def tear(small: Small) -> None:
    """Write bytes that are no frame behind the last frame of the log."""
    path = f"{LOG}/{logs_of(small)[-1]}"
    inode = small.simulated.inodes[small.simulated.names[path]]
    end = decode_log(bytes(inode.cache), path).end
    for content in (inode.cache, inode.durable):
        content[end : end + 8] = b"torn...."


@pytest.mark.damages
def test_row_21_a_torn_log_is_kept_on_a_full_disk() -> None:
    """A torn log that is kept aside leaves no spare on a full disk, and all dequeues go on."""
    small = Small()
    queue = on_small_disk(small)
    put_many(queue)
    crash(queue)
    tear(small)
    small.fill()
    with on_small_disk(small) as queue:
        assert queue.recovery.torn_bytes > 0
        assert [name for name in logs_of(small) if name.endswith(".damaged")]
        assert drained_one_by_one(queue)


@pytest.mark.parametrize("ends", [crash, PersistentQueue.close], ids=["crashed", "closed"])
def test_row_21_the_last_log_becomes_the_spare(ends: Callable[[PersistentQueue], None]) -> None:
    """A spare that a power cut gave back its name as a log becomes the spare again, also on a full disk."""
    small = Small()
    queue = on_small_disk(small)
    put_many(queue)
    ends(queue)
    number = int(logs_of(small)[-1].removesuffix(".log"))
    small.sound.rename(SPARE, f"{LOG}/{number - 1:012d}.log")
    small.fill()
    with on_small_disk(small) as queue:
        assert SPARE in small.simulated.names
        assert drained_one_by_one(queue)


@pytest.mark.parametrize("ends", [crash, PersistentQueue.close], ids=["crashed", "closed"])
def test_row_21_the_pool_makes_room_for_a_lost_spare(ends: Callable[[PersistentQueue], None]) -> None:
    """If the spare is lost and the disk is full, files of the pool are deleted, so that the queue opens and dequeues go
    on."""
    small = Small()
    settings = {"pool_min_bytes": 20_000, "pool_max_bytes": 4 << 20}
    queue = on_small_disk(small, **settings)
    put_many(queue)
    queue.maintain()
    ends(queue)
    small.sound.unlink(SPARE)
    small.fill()
    with on_small_disk(small, **settings) as queue:
        assert drained_one_by_one(queue)


def test_row_21_a_lost_spare_is_made_while_there_is_room() -> None:
    """An opening that finds no spare makes one, so that a disk that fills up later stops no dequeue."""
    small = Small()
    queue = on_small_disk(small)
    put_many(queue)
    queue.close()
    small.sound.unlink(SPARE)
    with on_small_disk(small) as queue:
        small.fill()
        assert drained_one_by_one(queue)


def test_row_21_the_old_log_finds_no_room_for_its_name() -> None:
    """If the old log cannot be renamed to the spare, its room is used as a spare, and dequeues go on."""
    small = Small()
    with on_small_disk(small) as queue:
        put_many(queue)
        small.refuses = lambda target: target == SPARE
        small.fill()
        assert drained_one_by_one(queue)
    assert len(logs_of(small)) <= 2


def test_row_21_a_log_finds_no_room_for_its_name() -> None:
    """If the next log cannot be named, the flush commits nothing, and no queue is broken. Dequeues go on in the last
    log."""
    small = Small()
    with on_small_disk(small, inline_bytes=300) as queue:
        put_many(queue)
        small.refuses = lambda target: target.startswith(LOG)
        with queue.session() as session:
            session.enqueue(b"x" * 200)
            with pytest.raises(DiskFullError, match="for the name of a generation"):
                while session.flush():
                    session.enqueue(b"x" * 200)
            before = len(queue)
            with queue.session() as consumer:
                assert consumer.dequeue() == b"0"
                assert consumer.flush()
                assert [consumer.dequeue(), consumer.flush()] == [b"1", True]
            with pytest.raises(DiskFullError):
                queue.trim()
            assert (len(queue), queue.stats().broken) == (before - 2, False)
            small.refuses = lambda target: False
            assert session.flush()
        assert len(queue) == before - 1


@pytest.mark.parametrize("ends", [crash, PersistentQueue.close], ids=["crashed", "closed"])
def test_row_21_what_is_adopted_finds_no_room_for_its_name(ends: Callable[[PersistentQueue], None]) -> None:
    """A published file that cannot be renamed to a segment is adopted all the same, once, also over a crash."""
    small = Small()
    queue = on_small_disk(small)
    small.refuses = lambda target: "/data/" in target
    with call_on(small.disk, Producer, "/queues", "q") as producer:
        for item in (b"one", b"two", b"three"):
            producer.enqueue(item)
            producer.flush()
    with queue.session() as session:
        assert [session.dequeue(), session.dequeue()] == [b"one", b"two"]
        session.flush()
    assert len(queue) == 1
    assert len(small.sound.listdir("/queues/q/inbox")) == 3
    with pytest.raises(DiskFullError, match="for the names of adopted files"):
        queue.trim()
    with call_on(small.disk, Producer, "/queues", "q") as producer:
        producer.enqueue(b"four")
        producer.flush()
    with queue.session() as session:
        assert [session.dequeue(), session.dequeue(), session.dequeue(timeout=0)] == [b"three", b"four", None]
        session.rollback()
    small.refuses = lambda target: False
    if ends is not crash:
        queue.trim()
        assert small.sound.listdir("/queues/q/inbox") == []
    ends(queue)
    with on_small_disk(small) as queue:
        assert drain(queue) == [b"three", b"four"]
        assert len(queue) == 0
    assert small.sound.listdir("/queues/q/inbox") == []
    assert call_on(small.sound, check, "/queues/q").ok


@pytest.mark.parametrize("written_ahead", [False, True], ids=["in memory", "written ahead"])
def test_row_21_a_producer_finds_no_room_for_a_name(written_ahead: bool) -> None:
    """A producer whose file cannot be named keeps its items, including spilled ones, and publishes them once."""
    small = Small()
    with on_small_disk(small) as queue:
        small.refuses = lambda target: target.endswith(".seg")
        with call_on(small.disk, Producer, "/queues", "q") as producer:
            producer.enqueue_many([b"one", b"two"])
            if written_ahead:
                producer._spill()
            for pending in (2, 3):
                with pytest.raises(DiskFullError, match="then flush again"):
                    producer.flush(marker=("m", 1))
                assert producer.pending == pending
                if pending == 2:
                    producer.enqueue(b"three")
            small.refuses = lambda target: False
            assert producer.flush(marker=("m", 1))
            assert not producer.flush(marker=("m", 1))
        assert drain(queue) == [b"one", b"two", b"three"]
        assert len(queue) == 0


def test_row_21_a_directory_that_cannot_be_made_or_deleted() -> None:
    """Without room for a directory or a lock, an opening and a deletion raise ``DiskFullError``, and succeed when there
    is room."""
    for kind in ("mkdir", "create", "rename"):
        at = 0
        while True:
            at += 1
            scarce = Scarce(frozenset({kind}), at, errno.ENOSPC, lasting=True)
            failed = 0
            for call in (
                lambda disk=scarce.disk: call_on(disk, PersistentQueue, "/queues", "q").close(),
                lambda disk=scarce.disk: call_on(disk, delete_queue, "/queues", "q"),
            ):
                try:
                    call()  # type: ignore[no-untyped-call]
                except DiskFullError as error:
                    failed += error.errno == errno.ENOSPC
                    scarce.heal()
                    call()  # type: ignore[no-untyped-call]
            assert failed == bool(scarce.failed)
            assert scarce.simulated.names.keys() <= {"/", "/queues"}
            if not scarce.failed:
                break
        assert at > 1


def test_row_21_a_sync_that_finds_no_room_breaks_the_queue() -> None:
    """An error of a sync, whatever its number, leaves it unknown what is durable, and breaks the queue."""
    for code in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
        simulated = SimulatedDisk()
        armed: list[int] = []

        def sync(fd: int, disk: Disk = simulated.disk, armed: list[int] = armed, code: int = code) -> None:
            if armed:
                raise OSError(code, os.strerror(code))
            disk.fdatasync(fd)

        queue = call_on(replace(simulated.disk, fdatasync=sync), PersistentQueue, "/queues", "q", inline_bytes=0)
        armed.append(1)
        with pytest.raises(BrokenQueueError):
            put(queue, b"item")
        queue.close()

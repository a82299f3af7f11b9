"""The store from inside: trims, growing logs and segments, full disks, and each call of the disk failing once."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import BrokenQueueError, DiskFullError, PersistentQueue, Producer, check
from persistentqueue.engine.transaction import Transaction
from persistentqueue.engine.trim import LOG_BYTES_MAX
from persistentqueue.interprocess.producer import Versions
from persistentqueue.storage.segment_files import OPEN_FILES, SEGMENT_BYTES_FIRST
from persistentqueue.system.disk import DISK, DSYNC, Disk
from tests.conftest import QueueFactory
from tests.crash.disk import SimulatedDisk
from tests.crash.explorer import DIRECTORY
from tests.durability.test_campaigns import SYNCED, enqueuing, opened, take
from tests.support.disks import call_on
from tests.support.queues import IN_CACHE, crash, drain, log_file, put, put_each, segment_files, spilling_session


def test_log_is_trimmed_by_itself(open_queue: QueueFactory) -> None:
    """However many commits there were, the log stays within its capacity, and an opening replays no more than that."""
    queue = open_queue(log_bytes=4096)
    for n in range(300):
        put(queue, b"%d" % n)
        assert drain(queue) == [b"%d" % n]
    stats = queue.stats()
    assert stats.generation > 3
    assert stats.log_bytes <= stats.log_capacity_bytes
    crash(queue)
    queue = open_queue()
    assert queue.recovery.transactions < 600
    assert (queue.stats().enqueued, queue.stats().dequeued, len(queue)) == (300, 300, 0)


def test_opening_without_room_to_skip_what_is_published(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue opens even if there is no room to record that a published transaction is skipped, since its marker came
    before."""
    queue = open_queue(sync=False)
    with Producer(directory) as one, Producer(directory) as other:
        monkeypatch.setattr(Versions, "is_reached", lambda *_: False)
        one.enqueue(b"one")
        one.flush(("app", 1))
        assert drain(queue) == [b"one"]
        queue.close()
        other.enqueue(b"other")
        other.flush(("app", 1))
    is_full: list[str] = []
    steps = ["adopt.1 read"]

    def refuse(call: Callable[..., Any]) -> Callable[..., Any]:
        def door(*arguments: Any) -> Any:
            if is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return call(*arguments)

        return door

    disk = replace(
        DISK,
        pwritev=refuse(DISK.pwritev),
        fallocate=refuse(DISK.fallocate),
        failpoint=lambda name: is_full.append(steps.pop()) if name in steps else None,
    )
    queue = open_queue(sync=False, disk=disk)
    assert is_full
    is_full.clear()
    assert drain(queue) == []
    assert queue.marker("app") == 1


def test_log_grows_with_few_groups_and_shrinks_with_many(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that fills with few groups is doubled, up to a bound, and a log that takes many is halved."""
    queue = open_queue(log_bytes=4096, disk=IN_CACHE)
    put_each(queue, [b"x" * 500] * 100)
    assert queue.stats().log_capacity_bytes > 16_384
    monkeypatch.setattr("persistentqueue.engine.trim._GROUPS_PER_LOG", (1, 20))
    put_each(queue, [b"x"] * 2000)
    assert queue.stats().log_capacity_bytes <= 16_384
    assert LOG_BYTES_MAX == 64 * 1024 * 1024


def test_small_segments_have_a_small_log(open_queue: QueueFactory) -> None:
    """With small segments, a busy queue keeps at most 4 MiB of log and 4 MiB of spare, or four segments of each."""
    for segment_bytes, most_bytes in ((1 << 20, 4 << 20), (2 << 20, 8 << 20)):
        queue = open_queue(str(segment_bytes), segment_bytes=segment_bytes, disk=IN_CACHE)
        with queue.session() as session:
            for _ in range(400):
                session.enqueue(b"x" * 100_000)
                session.flush()
        stats = queue.stats()
        assert most_bytes // 2 < stats.log_capacity_bytes <= most_bytes >= stats.spare_bytes
        queue.clear()
        queue.trim()


def test_large_group_gets_a_log_that_takes_it(open_queue: QueueFactory) -> None:
    """A frame larger than the log begins a generation that has room for it."""
    queue = open_queue(log_bytes=4096, inline_bytes=1 << 20)
    put(queue, *[b"x" * 100] * 5000)
    assert queue.stats().log_capacity_bytes > 500_000
    crash(queue)
    assert len(drain(open_queue())) == 5000


def test_checkpoint_fits_its_log(open_queue: QueueFactory) -> None:
    """A checkpoint with many gaps fits: the log grows with its checkpoint."""
    queue = open_queue(log_bytes=4096, segment_bytes=20_000, disk=IN_CACHE)
    put(queue, *[b"%d" % n for n in range(2000)])
    sessions = []
    for _ in range(1000):
        one, two = queue.session(), queue.session()
        assert len(one.dequeue_many(1)) == len(two.dequeue_many(1)) == 1
        one.flush()
        sessions.append(two)
    queue.trim()
    assert queue.stats().log_capacity_bytes > 4 * 16 * 1000
    crash(queue)
    queue = open_queue()
    assert drain(queue) == [b"%d" % n for n in range(1, 2000, 2)]


def test_segments_grow_from_small_to_the_setting(open_queue: QueueFactory, directory: Path) -> None:
    """The first segment is small. Each next one is sized by the one before, up to ``segment_bytes``."""
    queue = open_queue(segment_bytes=4 << 20, disk=IN_CACHE)
    for _ in range(200):
        put(queue, bytes(60_000))
    sizes = [round(path.stat().st_size / (1 << 20), 1) for path in segment_files(directory)]
    assert sizes == [0.9, 1.8, 3.7, 4.0, 4.0]


def test_segment_size_is_followed_after_reopening(open_queue: QueueFactory, directory: Path) -> None:
    """After a reopening, segments grow from the size that was reached, up to the new ``segment_bytes``."""
    queue = open_queue(segment_bytes=4 << 20, disk=IN_CACHE)
    for _ in range(8):
        put(queue, b"x" * (1 << 20))
    crash(queue)
    queue = open_queue(segment_bytes=2 << 20, disk=IN_CACHE)
    put(queue, b"y")
    assert segment_files(directory)[-1].stat().st_size >> 20 == 2


def test_sealed_segments_keep_no_room(open_queue: QueueFactory, directory: Path) -> None:
    """A segment that a crash left gives back the room behind its last block when the queue is opened."""
    queue = open_queue(disk=IN_CACHE)
    put(queue, b"x" * 100)
    assert segment_files(directory)[0].stat().st_size == SEGMENT_BYTES_FIRST
    crash(queue)
    queue = open_queue(disk=IN_CACHE)
    assert segment_files(directory)[0].stat().st_size < 300


def test_drained_segments_go_wherever_they_stand(open_queue: QueueFactory, directory: Path) -> None:
    """One held item keeps only its own segment; drained segments before and behind it are deleted."""
    queue = open_queue(segment_bytes=200)
    put_each(queue, [b"%02d" % n + bytes(60) for n in range(60)])
    count = len(segment_files(directory))
    with queue.session() as session, queue.session() as holder:
        session.dequeue_many(30)
        assert holder.dequeue_many(1)[0].startswith(b"30")
        session.dequeue_many(29)
        session.flush()
        queue.trim()
        assert count == 60
        assert len(segment_files(directory)) <= 2
        crash(queue)
    assert [item[:2] for item in drain(open_queue())] == [b"30"]


def test_drained_segments_go_by_themselves(open_queue: QueueFactory, directory: Path) -> None:
    """A consumer that keeps up keeps the disk usage small, without any call of ``trim``."""
    queue = open_queue(segment_bytes=1000, disk=IN_CACHE)
    for n in range(300):
        put(queue, bytes(400))
        drain(queue)
        assert len(segment_files(directory)) < 20, n


def test_many_segments_need_few_descriptors(open_queue: QueueFactory, directory: Path) -> None:
    """At most ``OPEN_FILES`` segments and the current one are open, however many segments there are."""
    queue = open_queue(segment_bytes=10, memory_bytes=0, disk=IN_CACHE)
    put_each(queue, [b"%d" % n for n in range(3 * OPEN_FILES)])
    assert list(queue.browse()) == [b"%d" % n for n in range(3 * OPEN_FILES)]
    group = queue._open_queue
    assert group is not None
    queue.trim()
    assert list(queue.browse()) == [b"%d" % n for n in range(3 * OPEN_FILES)]
    assert len(group._store.segments._open) <= OPEN_FILES + 1


def test_opening_reads_the_log_only(open_queue: QueueFactory) -> None:
    """Opening a queue of many items reads only its log, after a clean close and after a crash."""
    put(queue := open_queue(disk=IN_CACHE), *[bytes(100)] * 50_000)
    for end in (PersistentQueue.close, crash):
        end(queue)
        read = [0]

        def pread(fd: int, length: int, offset: int, read: list[int] = read) -> bytes:
            data = DISK.pread(fd, length, offset)
            read[0] += len(data)
            return data

        queue = open_queue(disk=replace(IN_CACHE, pread=pread))
        assert read[0] < 1_200_000
        assert len(queue) == 50_000


def test_cost_of_a_commit_does_not_grow_with_the_queue(open_queue: QueueFactory) -> None:
    """A commit makes the same number of writes with 10 items in the queue and with 100,000."""
    calls = [0]

    def pwritev(*arguments: Any) -> int:
        calls[0] += 1
        return IN_CACHE.pwritev(*arguments)

    queue = open_queue(disk=replace(IN_CACHE, pwritev=pwritev))
    counts = []
    for many in (10, 100_000):
        put(queue, *[b"x"] * many)
        before = calls[0]
        for _ in range(100):
            put(queue, b"y")
            with queue.transaction() as session:
                session.dequeue()
        counts.append(calls[0] - before)
    assert counts == [200, 200]


# --- a full disk -----------------------------------------------------------------------------------------------------


class FullDisk:
    """A disk that takes so many new bytes, and no more. Bytes that were written before can be written again."""

    def __init__(self, left_bytes: int, code: int = errno.ENOSPC) -> None:
        self.left_bytes = left_bytes
        self.code = code
        self.sizes: dict[int, int] = {}

    def _take(self, fd: int, end: int) -> None:
        size = DISK.fstat(fd).st_size
        if end > size:
            if end - size > self.left_bytes:
                raise OSError(self.code, "no room")
            self.left_bytes -= end - size

    def pwritev(self, fd: int, buffers: Any, offset: int, flags: int) -> int:
        self._take(fd, offset + sum(map(len, buffers)))
        return DISK.pwritev(fd, buffers, offset, 0)

    def fallocate(self, fd: int, offset: int, length: int) -> None:
        self._take(fd, offset + length)
        DISK.fallocate(fd, offset, length)

    @property
    def disk(self) -> Disk:
        """The ``Disk`` with this bound."""
        return replace(IN_CACHE, pwritev=self.pwritev, fallocate=self.fallocate)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk(open_queue: QueueFactory, code: int) -> None:
    """A flush that finds no room raises ``DiskFullError``, keeps its operations, and succeeds once there is room.
    Dequeues go on meanwhile."""
    full = FullDisk(200_000, code)
    queue = open_queue(disk=full.disk, segment_bytes=20_000, log_bytes=4096)
    items = [b"%03d" % n * 100 for n in range(1000)]
    done = 0
    with queue.session() as session:
        with pytest.raises(DiskFullError, match="flush again") as caught:
            for item in items:
                session.enqueue(item)
                session.flush()
                done += 1
        assert caught.value.errno == code
        assert 150 < done < 1000
        for _ in range(3):
            with pytest.raises(DiskFullError):
                session.flush()
        assert len(queue) == done
        with queue.transaction() as consumer:  # frees segments, and needs no room
            assert consumer.dequeue_many(done // 2) == items[: done // 2]
        for n in range(done // 2, done):
            with queue.transaction() as consumer:
                assert consumer.dequeue() == items[n]
        full.left_bytes = 10**9
        session.flush()
        assert drain(queue) == [items[done]]


def test_full_disk_at_every_limit(tmp_path: Path) -> None:
    """Whichever write takes the disk's last byte, the acknowledged items come out, and nothing else."""
    for left_bytes in range(9_000, 16_000, 101):
        full = FullDisk(left_bytes)
        path = tmp_path / str(left_bytes)
        acknowledged: list[bytes] = []
        refused = 0
        try:
            queue = call_on(full.disk, PersistentQueue, path, segment_bytes=300, log_bytes=4096, inline_bytes=150)
        except DiskFullError:
            assert left_bytes < 9_600
            continue
        with queue:
            for n in range(60):
                item = b"%02d" % n * (1 + n % 40 * 3)
                try:
                    put(queue, item)
                    acknowledged.append(item)
                except DiskFullError:
                    refused += 1
                if n == 30:
                    with queue.transaction() as session:
                        assert session.dequeue_many(3) == acknowledged[:3]
            assert list(queue.browse()) == acknowledged[3:]
            full.left_bytes = 10**9
        report = check(path)
        assert report.ok, report.problems
        assert report.items == len(acknowledged) - 3
        assert refused or left_bytes > 13_000


def test_spilling_onto_a_full_disk(open_queue: QueueFactory) -> None:
    """A session that cannot spill raises ``DiskFullError`` and keeps its items. The item that did not fit is not among
    them."""
    full = FullDisk(100_000)
    queue = open_queue(disk=full.disk, segment_bytes=1 << 20, log_bytes=4096)
    full.left_bytes = 4000
    with queue.session() as session:
        session._spill_bytes = 10_000
        for n in range(9):
            session.enqueue(b"%d" % n * 1000)
        with pytest.raises(DiskFullError):
            session.enqueue(b"9" * 5000)
        full.left_bytes = 1 << 30
        session.enqueue(b"last")
        session.flush()
    assert drain(queue) == [*(b"%d" % n * 1000 for n in range(9)), b"last"]


def test_opening_on_a_full_disk(tmp_path: Path) -> None:
    """Making a queue without room raises ``DiskFullError``. A crashed queue opens without room, since its spare file
    exists."""
    with pytest.raises(DiskFullError, match="no room"):
        call_on(FullDisk(5000).disk, PersistentQueue, tmp_path / "new")
    put_each(queue := PersistentQueue(tmp_path / "old", log_bytes=4096), [b"a", b"b"])
    crash(queue)
    with call_on(FullDisk(0).disk, PersistentQueue, tmp_path / "old", log_bytes=4096) as queue:
        assert drain(queue) == [b"a", b"b"]


def test_small_segment_where_a_large_one_has_no_room(open_queue: QueueFactory, directory: Path) -> None:
    """If there is no room for a whole segment, a smaller one is made that holds the items to be written."""
    full = FullDisk(3 << 20)
    queue = open_queue(disk=full.disk)
    full.left_bytes = 5000
    put(queue, b"x" * 4000)
    assert segment_files(directory)[0].stat().st_size < 5000


# --- failing calls ---------------------------------------------------------------------------------------------------

FAILING = ["open", "pwritev", "fdatasync", "fsync", "ftruncate", "fallocate", "rename", "unlink", "fstat"]


class FailingDisk:
    """A disk that counts the calls that change something, and lets the n-th fail."""

    def __init__(self, n: int | None, code: int) -> None:
        self.left = n
        self.code = code
        self.calls = 0
        self.failed: tuple[str, int] | None = None

    def _wrap(self, name: str) -> Any:
        call = getattr(DISK, name)

        def wrapped(*arguments: Any) -> Any:
            self.calls += 1
            if self.left is not None and self.calls == self.left:
                self.failed = (name, arguments[3] if name == "pwritev" else 0)
                raise OSError(self.code, f"{name} fails")
            return call(*arguments)

        return wrapped

    @property
    def disk(self) -> Disk:
        """The ``Disk`` that counts and fails."""
        assert {field.name for field in fields(DISK)} >= set(FAILING)
        return replace(DISK, **{name: self._wrap(name) for name in FAILING})


def work(queue: PersistentQueue, done: list[bytes], taken: list[bytes]) -> None:
    """Make commits of every kind, and add the acknowledged items to ``done`` and ``taken``."""
    for n in range(8):
        items = [b"%d" % n * (1 + 200 * (n % 3))] * (n % 2 + 1)
        put(queue, *items)
        done += items
        if n % 3 == 2:
            with queue.session() as session:
                found = session.dequeue_many(2)
                session.flush()
                taken += found
    queue.trim()


@pytest.mark.unwatched
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_every_call_failing_once(tmp_path: Path, code: int) -> None:
    """Whichever call fails, all acknowledged items are there afterwards, and at most the one failed flush as well."""
    settings: dict[str, Any] = {"segment_bytes": 500, "log_bytes": 4096, "inline_bytes": 300}
    counting = FailingDisk(None, code)
    with call_on(counting.disk, PersistentQueue, tmp_path / "count", **settings) as queue:
        opening = counting.calls
        work(queue, [], [])
    assert counting.calls > 60
    outcomes = set()
    for n in range(opening + 1, counting.calls + 1):
        path = tmp_path / str(n)
        failing = FailingDisk(n, code)
        done: list[bytes] = []
        taken: list[bytes] = []
        error: Exception | None = None
        queue = call_on(failing.disk, PersistentQueue, path, **settings)
        try:
            work(queue, done, taken)
        except (BrokenQueueError, DiskFullError, OSError) as failure:
            error = failure
        outcomes.add(type(error).__name__)
        try:
            if isinstance(error, BrokenQueueError):
                with pytest.raises(BrokenQueueError):
                    put(queue, b"after")
        finally:
            try:
                queue.close()
            except (BrokenQueueError, DiskFullError, OSError) as failure:
                outcomes.add("close: " + type(failure).__name__)
        if failing.failed is not None and failing.failed in {("fdatasync", 0), ("fsync", 0), ("pwritev", DSYNC)}:
            assert outcomes & {"BrokenQueueError", "close: BrokenQueueError"}
        with PersistentQueue(path) as queue:
            found = drain(queue)
        expected = done[len(taken) :]
        assert taken == done[: len(taken)]
        assert found[: len(expected)] == expected or found == expected[2:], (n, failing.failed)
        assert len(found) <= len(expected) + 2
    assert {"BrokenQueueError"} <= outcomes


def test_failed_frame_write_is_never_repeated(open_queue: QueueFactory) -> None:
    """After a failed write of the log, every call raises ``BrokenQueueError`` without another write until the queue is
    opened again."""
    failing = [False]
    writes = [0]

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        writes[0] += 1
        if flags and failing[0]:
            DISK.pwritev(fd, buffers, offset, flags)  # the data reaches the disk all the same
            raise OSError(errno.EIO, "Input/output error")
        return DISK.pwritev(fd, buffers, offset, flags)

    queue = open_queue(disk=replace(DISK, pwritev=pwritev))
    put(queue, b"a")
    failing[0] = True
    with queue.session() as session:
        session.enqueue(b"b")
        with pytest.raises(BrokenQueueError, match="unknown"):
            session.flush()
        count = writes[0]
        for call in (session.flush, session.dequeue, queue.trim, lambda: list(queue.browse()), queue.clear):
            with pytest.raises(BrokenQueueError, match="open it again"):
                call()
        with pytest.raises(BrokenQueueError):
            put(queue, b"c")
    queue.close()
    assert writes[0] == count
    assert drain(open_queue()) == [b"a", b"b"]


def test_an_interrupted_spill_leaves_its_items_in_the_session(open_queue: QueueFactory) -> None:
    """An interruption in the middle of a spill breaks nothing: the next call writes the blocks again."""

    class InterruptionError(BaseException):
        pass

    armed = [False]

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if armed[0]:
            raise InterruptionError
        return DISK.pwritev(fd, buffers, offset, flags)

    queue = open_queue(disk=replace(DISK, pwritev=pwritev))
    put(queue, b"a")
    with queue.session() as session:
        session._spill_bytes = 1
        session.enqueue(b"x")
        armed[0] = True
        with pytest.raises(InterruptionError):
            session.enqueue(b"y")
        armed[0] = False
        session.enqueue(b"z")
        session.flush()
    crash(queue)
    assert drain(open_queue()) == [b"a", b"x", b"z"]


@pytest.mark.parametrize("name", ["data", "pool", "lock"])
def test_a_file_that_cannot_be_closed_keeps_no_lock(open_queue: QueueFactory, name: str) -> None:
    """If the close of a segment, of the log or of the lock fails, ``close`` ends well, since all is durable; the lock
    is free."""
    paths: dict[int, str] = {}
    failing = [False]

    def open_file(path: str, flags: int, mode: int) -> int:
        fd = DISK.open(path, flags, mode)
        paths[fd] = path
        return fd

    def close(fd: int) -> None:
        DISK.close(fd)
        if failing[0] and f"/{name}" in paths.get(fd, ""):
            raise OSError(errno.EIO, "Input/output error", paths[fd])

    queue = open_queue(disk=replace(DISK, open=open_file, close_file=close))
    put(queue, bytes(100_000))
    failing[0] = True
    queue.close()
    queue.close()
    assert drain(open_queue()) == [bytes(100_000)]


def test_clear_that_fails_gives_everything_back(open_queue: QueueFactory) -> None:
    """If ``clear`` finds no room for its frame, all items are ready again."""
    failing = [False]

    def open_(path: str, flags: int, mode: int) -> int:
        if failing[0] and path.endswith(".free"):
            raise OSError(errno.ENOSPC, "no room")
        return DISK.open(path, flags, mode)

    queue = open_queue(disk=replace(DISK, open=open_))
    put(queue, b"a", b"b")
    queue.close()
    queue = open_queue(disk=replace(DISK, open=open_))
    failing[0] = True
    with pytest.raises(DiskFullError):
        queue.clear()
    assert (len(queue), queue.stats().held) == (2, 0)
    failing[0] = False
    assert queue.clear() == 2


def test_log_is_named_by_its_generation(open_queue: QueueFactory, directory: Path) -> None:
    """Each trim renames the spare to the next generation, and the old log to the spare."""
    queue = open_queue()
    put(queue, b"a")
    assert log_file(directory).name == "000000000001.log"
    queue.trim()
    assert [path.name for path in (directory / "log").iterdir()] == ["000000000002.log"]
    assert (directory / "pool" / "log.free").stat().st_size == log_file(directory).stat().st_size


def test_log_that_cannot_grow_refuses_items_before_it_refuses_to_give_any() -> None:
    """If the log cannot grow, transactions of a group that only dequeue are committed until the queue is empty, and
    enqueues are refused."""
    disk = SimulatedDisk()
    store = opened(disk, replace(SYNCED, segment_bytes=10))
    growing = ("pwritev", f"{DIRECTORY}/pool/log.free")
    disk.fault = lambda *what: OSError(errno.ENOSPC, "injected") if what == growing else None
    refused: BaseException | None = None
    while refused is None:
        for _ in range(2):
            store.commit([enqueuing(b"an item")])
        putting, taking = enqueuing(b"another"), take(store)
        store.commit([putting, taking])
        assert taking.settled
        refused = putting.error
    assert isinstance(refused, DiskFullError)
    while (taking := take(store)).runs:
        store.commit([taking])
        assert taking.settled
    assert len(store.state.gone.consumed) == 0 < store.state.gone.frontier


def test_refused_items_stay_out_when_others_of_their_group_are_committed() -> None:
    """A transaction that only dequeues and stands first in its group does not enqueue the items of refused transactions
    behind it."""
    disk = SimulatedDisk()
    store = opened(disk, replace(SYNCED, segment_bytes=10))
    growing = ("pwritev", f"{DIRECTORY}/pool/log.free")
    disk.fault = lambda *what: OSError(errno.ENOSPC, "injected") if what == growing else None
    putting, tried = enqueuing(b"another"), []
    while putting.error is None:
        tried += [enqueuing(b"an item"), enqueuing(b"an item")]
        for alone in tried[-2:]:
            store.commit([alone])
        taking, putting = take(store), enqueuing(b"another")
        tried.append(putting)
        store.commit([taking, putting])
        assert taking.settled
    assert store.state.next_sequence == sum(each.settled for each in tried)


def test_group_that_finds_no_room_is_refused_at_once() -> None:
    """Transactions of a group that enqueue share their blocks: they are refused together, not each after a trim of its
    own."""
    disk = SimulatedDisk()
    steps: list[str] = []
    store = opened(disk, replace(SYNCED, segment_bytes=10), failpoint=steps.append)
    store.commit([enqueuing(b"an item")])
    growing = ("pwritev", f"{DIRECTORY}/pool/log.free")
    disk.fault = lambda *what: OSError(errno.ENOSPC, "injected") if what == growing else None
    group: list[Transaction] = []
    while not any(transaction.error for transaction in group):
        group = [*(enqueuing(b"an item") for _ in range(8)), take(store)]
        steps.clear()
        store.commit(group)
    assert [transaction.error is None for transaction in group] == [False] * 8 + [True]
    assert steps.count("trim.2 write generation") <= 2


def test_stats_add_up_to_the_files(open_queue: QueueFactory, directory: Path) -> None:
    """Each file except the lock is counted in exactly one figure, at work, after a spill, when drained, when just
    reopened, and with a pool."""
    settings: dict[str, Any] = {"segment_bytes": 64 * 1024, "log_bytes": 4096, "pool_max_bytes": 256 * 1024}

    def check_stats(queue: PersistentQueue) -> None:
        stats = queue.stats()
        parts = (stats.data_bytes, stats.log_capacity_bytes, stats.spare_bytes, stats.pool_bytes)
        files = [path for path in directory.rglob("*") if path.is_file() and path.name != "lock"]
        assert sum(parts) == stats.disk_bytes == sum(path.stat().st_size for path in files)
        assert stats.log_bytes <= stats.log_capacity_bytes

    queue = open_queue(**settings, disk=IN_CACHE)
    check_stats(queue)
    put_each(queue, [bytes([n]) * 5000 for n in range(40)])
    check_stats(queue)
    with spilling_session(queue, 10_000) as ahead:
        for _ in range(30):
            ahead.enqueue(bytes(5000))
        check_stats(queue)
        assert queue.stats().data_bytes > 70 * 5000
        ahead.rollback()
    drain(queue)
    queue.trim()
    check_stats(queue)
    assert queue.stats().pool_bytes > 0
    put(queue, b"left")
    queue.close()
    queue = open_queue(**settings, disk=IN_CACHE)
    assert queue.stats().log_bytes > 0
    check_stats(queue)


@pytest.mark.parametrize("sync", [True, False])
def test_maintenance_lets_memory_go(open_queue: QueueFactory, sync: bool) -> None:
    """Maintenance writes deferred blocks and frees the log's memory. Later commits are as durable as before."""
    queue = open_queue(sync=sync)
    queue.maintain()
    for start in range(0, 40, 8):
        put_each(queue, [b"%d" % n * 500 for n in range(start, start + 8)])
        queue.maintain()
        store = queue._open()._store
        assert store.segments.current is not None and store.generations.log is not None
        assert store.segments.current.deferred_bytes == 0
        assert store.generations.log._direct is None or store.generations.log._direct._memory is None
    put(queue, b"last")
    crash(queue)
    queue = open_queue()
    assert drain(queue) == [*(b"%d" % n * 500 for n in range(40)), b"last"]
    queue.close()
    queue = open_queue()
    queue.maintain()  # no frame was written yet


def test_many_small_segments_are_retired_a_part_at_a_time(directory: Path) -> None:
    """A trim waits for an eighth of the segments to be drained, since its checkpoint costs more with each segment. So a
    backlog of small publications is consumed in time proportional to its length."""
    PersistentQueue(directory).close()
    with Producer(directory) as producer:
        for number in range(600):
            producer.enqueue(b"%d" % number)
            producer.flush()
    with PersistentQueue(directory) as queue, queue.session() as session:
        before = queue.stats().generation
        most = 0
        while session.dequeue() is not None:
            session.flush()
            most = max(most, len(queue._open()._store.state.drained))
        assert queue.stats().generation - before < 25
        assert most <= 600 // 8 + 1
        assert len(segment_files(directory)) < 20

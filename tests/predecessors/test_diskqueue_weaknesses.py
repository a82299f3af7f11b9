"""The weaknesses 6.1 to 6.14 that a review of DiskQueue found, each with a test that this queue does not have it."""

from __future__ import annotations

import errno
import gc
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from persistentqueue import (
    ClosedError,
    CorruptionError,
    PersistentQueue,
    QueueLockedError,
    Session,
    UnflushedWarning,
    check,
    delete_queue,
)
from persistentqueue.core.frame import decode_frame, encode_frame
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.core.operations import Enqueue, encode_transaction
from persistentqueue.system.disk import DISK, Buffers, Disk
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, flip, log_file, put, put_each, segment_files, spilling_session

ENDS = pytest.mark.parametrize("end", [PersistentQueue.close, crash])
STEPS = (
    "commit.1 write blocks",
    "commit.2 sync blocks",
    "commit.3 write frame",
    "commit.4 apply",
    "trim.1 sync blocks",
    "trim.2 write generation",
    "trim.3 sync generation",
    "trim.4 rename generation",
    "trim.5 sync names",
    "trim.6 retire",
)
"""Steps of a commit and of the trim after it. Before the last step both generations exist."""


class Crashed(BaseException):
    """The end of the process."""


def at_step(step: str, act: Callable[[], Any], disk: Disk = DISK) -> Disk:
    """Return a disk that calls ``act`` whenever the step comes next."""

    def failpoint(name: str) -> None:
        if name == step:
            act()

    return replace(disk, failpoint=failpoint)


class Mortal:
    """A disk that simulates the end of the process before the step ``last``."""

    def __init__(self) -> None:
        self.last: str | None = None
        self.disk = replace(DISK, failpoint=self._reach)

    def _reach(self, step: str) -> None:
        if step == self.last:
            raise Crashed


def forbid(*_: Any) -> NoReturn:
    """Fail the test; in place of calls that must not be made."""
    raise AssertionError("this must not happen")


@pytest.mark.parametrize("step", STEPS[:-1])
@pytest.mark.parametrize("settings", [{}, {"inline_bytes": 0}, {"segment_bytes": 10}], ids=["inline", "large", "rolls"])
def test_6_1_no_step_of_a_commit_or_trim_loses_all(
    open_queue: QueueFactory, step: str, settings: dict[str, int]
) -> None:
    """At whatever step a commit or a trim ends, one complete generation exists, with all acknowledged items."""
    mortal = Mortal()
    queue = open_queue(disk=mortal.disk, **settings)
    put_each(queue, [b"a", b"b"])
    mortal.last = step
    with pytest.raises(Crashed):
        put(queue, b"c")
        queue.trim()
    crash(queue)
    queue = open_queue(**settings)
    written = step not in STEPS[:3]
    assert drain(queue) == [b"a", b"b", b"c"][: 3 if written else 2]
    assert queue.recovery.torn_bytes == 0


def test_6_2_live_file_deleted_during_roll(open_queue: QueueFactory, directory: Path) -> None:
    """A segment that a session has spilled to is kept, even if all its committed items are consumed and the log is
    trimmed."""
    queue = open_queue(segment_bytes=HEADER_BYTES + 300)
    put(queue, b"a" * 100)
    with spilling_session(queue, 100) as producer:
        for item in (b"b" * 50, b"c" * 100, b"d" * 100):  # b goes behind a, and c to a segment of its own
            producer.enqueue(item)
        assert drain(queue) == [b"a" * 100]
        queue.trim()
        assert [path.stem for path in segment_files(directory)] == ["000000000001", "000000000002"]
        producer.flush()
    crash(queue)
    queue = open_queue()
    assert drain(queue) == [b"b" * 50, b"c" * 100, b"d" * 100]
    queue.close()
    assert segment_files(directory) == []


@ENDS
def test_6_3_second_session_writes_to_the_right_file(
    open_queue: QueueFactory, directory: Path, end: Callable[[PersistentQueue], None]
) -> None:
    """Sessions that were opened before a roll write behind it, and overwrite nothing."""
    queue = open_queue(segment_bytes=300, memory_bytes=0)
    with spilling_session(queue, 1) as first, spilling_session(queue, 1) as second:
        for number in range(20):
            first.enqueue(b"first %d" % number)
            second.enqueue(b"second %d" % number)
            if number % 3 == 0:
                second.flush()
            if number % 4 == 0:
                first.flush()
        first.flush()
        second.flush()
    assert len(segment_files(directory)) > 5
    end(queue)
    found = drain(open_queue(memory_bytes=0))
    for name in (b"first", b"second"):
        assert [item for item in found if item.startswith(name)] == [b"%s %d" % (name, n) for n in range(20)]
    assert len(found) == 40


@pytest.mark.parametrize("settings", [{}, {"inline_bytes": 0}], ids=["inline", "large"])
def test_6_4_write_head_follows_from_the_log(open_queue: QueueFactory, settings: dict[str, int]) -> None:
    """After a crash right behind the commit point, the next enqueue goes behind the committed items."""
    expected = []
    for life in range(4):
        mortal = Mortal()
        queue = open_queue(disk=mortal.disk, **settings)
        put(queue, b"acknowledged %d" % life)
        mortal.last = "commit.4 apply"
        with pytest.raises(Crashed):
            put(queue, b"durable %d" % life)
        crash(queue)
        expected += [b"acknowledged %d" % life, b"durable %d" % life]
    assert drain(open_queue(memory_bytes=0)) == expected


@pytest.mark.parametrize("step", [step for step in STEPS if step.startswith("trim")])
def test_6_5_trim_sees_one_state(open_queue: QueueFactory, step: str) -> None:
    """Items that are dequeued and released in the middle of a trim are neither lost nor duplicated nor moved."""
    sessions: list[Session] = []
    found: list[bytes | None] = []

    def act() -> None:
        if len(sessions) == 2:
            keeping, returning = sessions
            found.append(keeping.dequeue())
            returning.dequeue_many(2)
            returning.rollback()

    def act_elsewhere() -> None:
        other = threading.Thread(target=act)
        other.start()
        other.join()

    queue = open_queue(disk=at_step(step, act_elsewhere))
    put_each(queue, [b"%d" % number for number in range(10)])
    sessions += [queue.session(), queue.session()]
    assert sessions[0].dequeue() == b"0"
    queue.trim()
    queue.trim()
    assert found == [b"1", b"2"]
    crash(queue)
    sessions[0].close()
    sessions[1].close()
    queue = open_queue()
    assert (queue.recovery.torn_bytes, drain(queue)) == (0, [b"%d" % number for number in range(10)])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["pwritev", "fdatasync", "rename", "unlink"])
def test_6_6_a_trim_that_fails_does_not_fail_the_flush_before_it(
    open_queue: QueueFactory, call: str, code: int
) -> None:
    """If the trim after a commit fails, the flush has succeeded all the same, and its effect is there once."""
    armed = trimming = failed = False
    real = getattr(DISK, call)

    def failpoint(name: str) -> None:
        nonlocal trimming
        trimming = armed and name.startswith("trim")

    def fail(*arguments: Any) -> Any:
        nonlocal failed
        if trimming:
            failed = True
            raise OSError(code, os.strerror(code))
        return real(*arguments)

    queue = open_queue(segment_bytes=10, disk=replace(DISK, failpoint=failpoint, **{call: fail}))
    numbers = [b"%d" % number for number in range(40)]
    put(queue, numbers[0])
    armed = True
    found: list[bytes | None] = []
    with queue.session() as session:
        while not failed:  # until drained segments make a trim worthwhile
            found.append(session.dequeue())
            session.enqueue(numbers[len(found)])
            assert session.flush()
    crash(queue)
    flushed = len(found)
    assert found == numbers[:flushed]
    assert drain(open_queue()) == [numbers[flushed]]


@pytest.mark.damages
@pytest.mark.parametrize("first", [False, True], ids=["one block", "all"])
def test_6_7_lost_writes_are_not_items(open_queue: QueueFactory, directory: Path, first: bool) -> None:
    """Zeros in the place of a block, as a lost write leaves them, raise an error and are never delivered."""
    with open_queue() as queue:
        put_each(queue, [b"\0" * 100, b"\0" * 100])
    (segment,) = segment_files(directory)
    with segment.open("r+b") as file:
        file.seek(0 if first else 64 + 148)
        file.write(bytes(64 + 2 * 148))
    found: list[bytes] = []
    raised = 0
    with open_queue() as queue, queue.session() as session:
        while True:
            try:
                item = session.dequeue()
            except CorruptionError:
                raised += 1
                continue
            if item is None:
                break
            found.append(item)
        assert queue.stats().damaged == 2 - len(found)
        session.rollback()
    assert found == ([] if first else [b"\0" * 100])
    assert raised >= 1


@ENDS
def test_6_8_an_empty_item_spares_its_neighbours(
    open_queue: QueueFactory, end: Callable[[PersistentQueue], None]
) -> None:
    """Empty items at the head do not affect the items behind them, and each is an item of its own."""
    queue = open_queue()
    put(queue, b"", b"", b"a", b"", b"bcd")
    end(queue)
    queue = open_queue()
    with queue.session() as first, queue.session() as second:
        assert (first.dequeue(), second.dequeue()) == (b"", b"")
        assert (len(queue), queue.stats().held) == (3, 2)
        first.rollback()
        assert second.dequeue_many(9) == [b"", b"a", b"", b"bcd"]
        second.rollback()


def test_6_9_a_failed_read_applies_nothing_twice(open_queue: QueueFactory, directory: Path) -> None:
    """An opening whose read fails raises and changes nothing. A later opening finds each item once."""
    queue = open_queue()
    put_each(queue, [b"%d" % number for number in range(10)])
    crash(queue)

    def fail(*_: Any) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    logs = {path: path.read_bytes() for path in (directory / "log").iterdir()}
    for _ in range(3):
        with pytest.raises(CorruptionError, match=os.strerror(errno.EIO)):
            open_queue(disk=replace(DISK, pread=fail, rename=forbid, unlink=forbid, sleep=forbid))
    assert {path: path.read_bytes() for path in (directory / "log").iterdir()} == logs
    short = replace(DISK, pread=lambda fd, length_bytes, offset: os.pread(fd, min(length_bytes, 7), offset))
    queue = open_queue(disk=short)
    assert queue.recovery.transactions == 10
    assert drain(queue) == [b"%d" % number for number in range(10)]


@pytest.mark.damages
def test_6_10_damage_is_neither_fatal_nor_discarded(open_queue: QueueFactory, directory: Path) -> None:
    """A damaged block does not stop the queue, a damaged log is never overwritten, and no call sleeps because of
    either."""
    awake = replace(DISK, sleep=forbid)
    with open_queue() as queue:
        put_each(queue, [b"one", b"two", b"three"])
    flip(segment_files(directory)[0], 64 + 44 + 4)
    queue = open_queue(disk=awake)
    with queue.session() as session:
        with pytest.raises(CorruptionError):
            session.dequeue()
        assert [session.dequeue(), session.dequeue(), session.dequeue()] == [b"two", b"three", None]
        session.flush()
    queue.close()
    flip(log_file(directory), 80)
    before = log_file(directory).read_bytes()
    with pytest.raises(CorruptionError):
        open_queue(disk=awake)
    assert log_file(directory).read_bytes() == before


def test_6_11_a_commit_costs_one_sync(open_queue: QueueFactory) -> None:
    """A small commit is one durable write to the log, whatever the length of the queue."""
    calls: Counter[str] = Counter()

    def pwritev(fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        calls["durable" if flags else "write"] += 1
        return DISK.pwritev(fd, buffers, offset, flags)

    counted = ("fsync", "fdatasync", "rename", "unlink", "open")
    counters: dict[str, Any] = {name: _counting(calls, name) for name in counted}
    queue = open_queue(disk=replace(DISK, pwritev=pwritev, **counters))
    put(queue, *[b"x"] * 10_000)
    for _ in range(50):
        calls.clear()
        put(queue, b"y")
        assert calls == {"durable": 1}


def _counting(calls: Counter[str], name: str) -> Callable[..., Any]:
    real = getattr(DISK, name)

    def counted(*arguments: Any) -> Any:
        calls[name] += 1
        return real(*arguments)

    return counted


def test_6_11_queues_and_consumers_do_not_wait_for_a_sync(open_queue: QueueFactory) -> None:
    """While one queue waits for its disk, its consumers dequeue, and another queue commits."""
    entered, release = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        assert release.wait(60)

    slow = open_queue("slow", disk=at_step("commit.3 write frame", lambda: hang() if armed else None))
    other = open_queue("other")
    armed = False
    put(slow, b"a", b"b")
    armed = True
    producer = threading.Thread(target=put, args=(slow, b"c"), daemon=True)
    producer.start()
    try:
        assert entered.wait(60)
        with slow.session() as session:
            assert session.dequeue() == b"a"
            session.rollback()
        put(other, b"d")
        assert drain(other) == [b"d"]
        with open_queue("third") as third:
            put(third, b"e")
        assert producer.is_alive()
    finally:
        release.set()
        producer.join(60)
    armed = False
    assert drain(slow) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"7892475904500000",
        b"\xff" * 16,
        b"null",
        b'{"pid": null}',
        b'{"pid": %d, "host": "%s", "since": "2001-01-01T00:00:00+00:00"}'
        % (os.getpid(), socket.gethostname().encode()),
        b'{"pid": 1, "host": "container", "since": "2001-01-01T00:00:00+00:00"}',
        b"junk" * 100_000,
    ],
    ids=["empty", "short", "legacy", "binary", "null", "no pid", "own pid", "pid 1", "long"],
)
def test_6_12_only_the_kernel_judges_the_lock(open_queue: QueueFactory, directory: Path, content: bytes) -> None:
    """A free queue opens and a second opening is refused, regardless of the content of the lock file. The file is never
    replaced."""
    open_queue().close()
    lock = directory / "lock"
    number = lock.stat().st_ino
    lock.write_bytes(content)
    with open_queue():
        lock.write_bytes(content)
        with pytest.raises(QueueLockedError):
            open_queue()
    assert lock.stat().st_ino == number


@pytest.mark.damages
def test_6_13_waiting_for_the_lock_hides_no_other_error(open_queue: QueueFactory, directory: Path) -> None:
    """With ``lock_timeout``, a damaged queue is reported at once as damaged, and not as locked."""
    open_queue().close()
    log_file(directory).write_bytes(b"junk")
    with pytest.raises(CorruptionError):
        open_queue(lock_timeout=3600, disk=replace(DISK, sleep=forbid))


def test_6_13_nothing_is_not_an_item(open_queue: QueueFactory) -> None:
    """None cannot be enqueued, and an empty item differs from no item."""
    with open_queue().session() as session:
        nothing: Any = None
        for enqueue in (session.enqueue, lambda item: session.enqueue_many([b"a", item])):
            with pytest.raises(TypeError):
                enqueue(nothing)
        assert session.flush()
        session.enqueue(b"")
        session.flush()
        assert [session.dequeue(), session.dequeue()] == [b"", None]
        session.rollback()


def test_6_13_deleting_needs_the_lock_and_is_complete(open_queue: QueueFactory, tmp_path: Path) -> None:
    """An open queue cannot be deleted. A deleted queue has no items in memory or on disk, even after another
    ``close``."""
    queue = open_queue()
    put(queue, b"a")
    with pytest.raises(QueueLockedError):
        delete_queue(tmp_path / "queues", "orders")
    assert len(queue) == 1
    queue.close()
    delete_queue(tmp_path / "queues", "orders")
    queue.close()
    assert not (tmp_path / "queues" / "orders").exists()
    assert drain(open_queue()) == []


def test_6_13_closing_the_queue_ends_its_sessions(open_queue: QueueFactory) -> None:
    """A session of a closed queue raises ``ClosedError``, and its held items are ready again after a reopening."""
    queue = open_queue()
    put(queue, b"a")
    session = queue.session()
    assert session.dequeue() == b"a"
    session.enqueue(b"b")
    with pytest.warns(UnflushedWarning):
        queue.close()
    for call in (session.dequeue, session.flush, lambda: session.enqueue(b"c"), queue.session, queue.trim):
        with pytest.raises(ClosedError):
            call()
    session.close()
    assert drain(open_queue()) == [b"a"]


def test_6_13_a_finalizer_writes_nothing(open_queue: QueueFactory, tmp_path: Path, directory: Path) -> None:
    """A queue that is dropped without ``close`` warns, writes nothing, and frees its lock. The next opening recovers
    it."""
    writing: dict[str, Any] = dict.fromkeys(("pwritev", "fdatasync", "fsync", "rename", "unlink", "ftruncate"), forbid)
    queue = PersistentQueue(tmp_path / "queues", "orders")
    put(queue, b"a")
    store = queue._open()._store
    for part in (store, store.segments, store.generations.spare, store.lock, store.generations.log):
        part._disk = replace(DISK, **writing)  # type: ignore[union-attr]
    with pytest.warns(ResourceWarning, match="dropped without close"):
        del queue, store, part
        gc.collect()
    queue = open_queue()
    assert (queue.recovery.clean, drain(queue)) == (False, [b"a"])


def test_6_13_settings_belong_to_one_queue(open_queue: QueueFactory, tmp_path: Path) -> None:
    """The settings of one queue change nothing for another queue in the same process."""
    small, usual = open_queue("small", segment_bytes=10, memory_bytes=0), open_queue("usual")
    for queue in (small, usual):
        put_each(queue, [b"a", b"b", b"c"])
    assert [small.stats().segments, usual.stats().segments] == [3, 1]
    assert small.stats().cached_bytes == 0 < usual.stats().cached_bytes


@ENDS
def test_6_14_files_beyond_32_bits(open_queue: QueueFactory, end: Callable[[PersistentQueue], None]) -> None:
    """Offsets beyond 4 GiB, and segment numbers beyond 32 bits, are written, recovered and read like any others."""
    queue = open_queue(memory_bytes=0)
    put(queue, b"low")
    segments = queue._open()._store.segments
    assert segments.current is not None
    segments.write()
    segments.current.end = 5 * 2**32 + 1  # a hole, which takes no disk space
    segments.current.capacity_bytes = 2**40
    segments.next_number = 2**33
    put(queue, b"high")
    segments.current.capacity_bytes = 0
    put(queue, b"high number")
    assert sorted(queue._open()._store.state.segments) == [1, 2**33]
    end(queue)
    queue = open_queue(memory_bytes=0)
    assert drain(queue) == [b"low", b"high", b"high number"]


def test_6_14_the_log_counts_in_64_bits() -> None:
    """Sequences, offsets and lengths of 64 bits pass through a frame unchanged."""
    operation = Enqueue(2**63, 2**62, 2**61, 2**60, 2**59, 2**58, 2**32 - 1)
    body = encode_transaction([operation])
    header, _ = encode_frame(body, 7, 0, 2**63, 0, 1, 1)
    frame = decode_frame(header + body, 0, 7, "log")
    assert (frame.number, frame.transactions) == (2**63, [[operation]])


@ENDS
def test_6_14_a_rollback_leaves_no_file(
    open_queue: QueueFactory, directory: Path, end: Callable[[PersistentQueue], None]
) -> None:
    """Segments that hold only spilled items of a rollback are deleted by the close or the next opening, and are not
    counted."""
    queue = open_queue(segment_bytes=300)
    with spilling_session(queue, 100) as session:
        session.enqueue_many([b"x" * 100] * 20)
        assert len(segment_files(directory)) > 5
        session.rollback()
    assert queue.stats().live_bytes == 0
    end(queue)
    with open_queue() as queue:
        assert len(queue) == 0
        assert segment_files(directory) == []
    assert check(directory).leftovers == ()


@ENDS
def test_6_14_orphans_are_swept(
    open_queue: QueueFactory, directory: Path, end: Callable[[PersistentQueue], None]
) -> None:
    """A segment and a generation that nothing refers to are deleted by the next opening, which reports them."""
    queue = open_queue()
    put(queue, b"a")
    older = log_file(directory).read_bytes()
    queue.trim()
    end(queue)
    orphans = (directory / "data" / "000000000077.seg", directory / "log" / "000000000001.log")
    for orphan, content in zip(orphans, (segment_files(directory)[0].read_bytes(), older), strict=True):
        orphan.write_bytes(content)
    queue = open_queue()
    assert sorted(queue.recovery.swept) == ["data/000000000077.seg", "log/000000000001.log"]
    assert not any(orphan.exists() for orphan in orphans)
    assert drain(queue) == [b"a"]

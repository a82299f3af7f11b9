"""Crashes of producers and owners, and queues that are moved, deleted or repaired while producers publish."""

from __future__ import annotations

import errno
import gc
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    ClosedError,
    CorruptionError,
    DataPathError,
    PersistentQueue,
    Producer,
    check,
    delete_queue,
    move_data,
    repair,
)
from persistentqueue.core.block import SEGMENT_MAGIC
from persistentqueue.core.frame import encode_frame
from persistentqueue.core.header import decode_header
from persistentqueue.core.operations import Adoption, Dequeue, Enqueue, MarkerSet, Operation, encode_transaction
from persistentqueue.engine.transaction import Transaction
from persistentqueue.interprocess.producer import Versions, explained
from persistentqueue.storage.publication import read_publication
from persistentqueue.system.disk import DISK
from persistentqueue.system.wakeup import Wakeup, _watch
from tests.conftest import QueueFactory
from tests.support.disks import call_on, using_disk
from tests.support.queues import crash, drain, log_file, put, wait_for

from .test_producer import inbox, publish

# --- crashes, moves, deletion, repair --------------------------------------------------------------------------------


def test_adopted_and_not_renamed(directory: Path) -> None:
    """If the owner is killed between the frame and the renames of an adoption, ``check`` counts the files as segments.

    The next opening renames them.
    """

    def failpoint(name: str) -> None:
        if name == "adopt.3 rename":
            raise KeyboardInterrupt

    queue = call_on(replace(DISK, failpoint=failpoint), PersistentQueue, directory)
    put(queue, b"x")
    publish(directory, b"a", b"b")
    with pytest.raises(KeyboardInterrupt), queue.session() as session:
        session.dequeue_many(3)
        session.dequeue()
    crash(queue)
    assert len(inbox(directory)) == 1
    report = check(directory)
    assert (report.ok, report.items, report.published) == (True, 3, 0)
    with PersistentQueue(directory) as queue:
        assert inbox(directory) == []
        assert drain(queue) == [b"x", b"a", b"b"]


def test_repair_keeps_what_is_published(directory: Path) -> None:
    """A queue whose log is lost is repaired with the files that were adopted and those that were not."""
    queue = PersistentQueue(directory)
    publish(directory, b"adopted")
    put(queue, b"own")
    assert len(queue) == 2
    crash(queue)
    publish(directory, b"waiting")
    for log in (directory / "log").glob("*.log"):
        log.write_bytes(bytes(log.stat().st_size))
    report = repair(directory)
    assert report.without_log
    with PersistentQueue(directory) as queue:
        assert b"adopted" in (items := drain(queue))
        assert b"waiting" in items


def test_moving_takes_it_along(directory: Path, tmp_path: Path) -> None:
    """A move takes published files along; a producer that was about to publish must enqueue its items once more."""
    with Producer(directory) as producer, Producer(directory) as other:
        producer.enqueue(b"a")
        producer.flush()
        other.enqueue_many([bytes(1024 * 1024)] * 6)
        moved = move_data(directory, data_path=tmp_path / "elsewhere")
        assert moved.files == 1
        producer.enqueue(b"b")
        producer.flush()
        with pytest.raises(DataPathError, match="enqueue it once more"):
            other.flush()
        other.enqueue(b"c")
        other.flush()
    assert len(inbox(tmp_path / "elsewhere")) == 3
    assert not (directory / "inbox").exists()
    with PersistentQueue(directory) as queue:
        assert drain(queue) == [b"a", b"b", b"c"]
    move_data(directory, data_path=None)
    publish(directory, b"d")
    with PersistentQueue(directory) as queue:
        assert drain(queue) == [b"d"]


@pytest.mark.parametrize("count", [1, 6])
def test_another_queue_takes_the_location_that_was_left(directory: Path, tmp_path: Path, count: int) -> None:
    """A producer publishes into no other queue that has taken the location which its own queue has left."""
    PersistentQueue(directory, data_path=tmp_path / "media").close()
    item = bytes(1024 * 1024)
    with Producer(directory) as producer:
        producer.enqueue(b"a")
        producer.flush()
        move_data(directory, data_path=tmp_path / "elsewhere")
        with PersistentQueue(tmp_path / "other", data_path=tmp_path / "media") as other:
            producer.enqueue_many([item] * count)  # several are spilled
            producer.flush()
            assert drain(other) == []
    with PersistentQueue(directory) as queue:
        assert drain(queue) == [b"a", *[item] * count]


class Killed(BaseException):
    """Simulated end of the process: unlike an interrupt, it undoes nothing."""


def test_a_move_that_is_cut_short_opens_the_inbox_again(directory: Path, tmp_path: Path) -> None:
    """While segments are moved, no producer can publish; after a move that is killed, none can until the next
    opening, as the error says."""

    def failpoint(name: str) -> None:
        if name == "move.4 switch":
            raise Killed

    with Producer(directory) as producer:
        producer.enqueue(b"a")
        producer.flush()
        with pytest.raises(Killed):
            call_on(replace(DISK, failpoint=failpoint), move_data, directory, data_path=tmp_path / "elsewhere")
        producer.enqueue(b"b")
        with pytest.raises(DataPathError, match=r"cut short: open the queue once, then flush again$"):
            producer.flush()
        with PersistentQueue(directory) as queue:
            assert drain(queue) == [b"a"]
            producer.enqueue(b"c")
            producer.flush()
            assert drain(queue) == [b"b", b"c"]


def test_deleting_takes_it_along(directory: Path, tmp_path: Path) -> None:
    """Deleting a queue deletes what was published for it, wherever its segments are."""
    for data_path in (None, tmp_path / "elsewhere"):
        PersistentQueue(directory, data_path=data_path).close()
        publish(directory, b"a")
        delete_queue(directory)
        assert not (directory / "inbox").exists()
        assert not (tmp_path / "elsewhere" / "inbox").exists()


def test_published_files_are_private_and_tell_what_they_are(directory: Path) -> None:
    """A published file has mode 0600, and holds its own name, its count of items and its marker."""
    publish(directory, b"a", b"bc", marker=("app", 7))
    (name,) = inbox(directory)
    path = directory / "inbox" / name
    assert path.stat().st_mode & 0o777 == 0o600
    publication = read_publication(DISK, str(path))
    assert (publication.name, publication.own.count, publication.marker) == (name, 2, ("app", 7))
    assert publication.own.capacity_bytes == path.stat().st_size - 64


def test_an_adoption_that_a_power_cut_took(directory: Path) -> None:
    """If the frame of an adoption is lost and the new names are not, the files are published once more.

    So no producer loses what it reported as durable.
    """
    with PersistentQueue(directory) as queue:
        put(queue, b"own")
    queue = PersistentQueue(directory)
    put(queue, b"other")
    log = log_file(directory)
    before = log.read_bytes()
    for item in (b"a", b"b"):
        publish(directory, item)
    assert queue.peek(4) == [b"own", b"other"]
    with queue.session() as session:
        assert len(session.dequeue_many(4)) == 2
        assert session.dequeue_many(4) == [b"a", b"b"]
        session.rollback()
    crash(queue)
    assert inbox(directory) == []
    log.write_bytes(before)
    with PersistentQueue(directory) as queue:
        assert queue.recovery.set_aside == ()
        assert drain(queue) == [b"own", b"other", b"a", b"b"]


def test_a_draft_that_cannot_be_locked(directory: Path) -> None:
    """A producer that cannot lock its file leaves none behind."""

    def lock(fd: int) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    PersistentQueue(directory).close()
    with call_on(replace(DISK, lock=lock), Producer, directory) as producer:
        producer.enqueue(b"a")
        with pytest.raises(OSError, match="No locks"):
            producer.flush()
        producer.rollback()
    assert inbox(directory) == []


@pytest.mark.damages
@pytest.mark.parametrize(
    "operations",
    [
        [],
        [MarkerSet("app", 1)],
        [Adoption(0, 0, 0, "{name}")],
        [Adoption(0, 0, 0, "../elsewhere"), MarkerSet("app", 1)],
        [Adoption(0, 0, 0, "{name}"), Enqueue(1, 1, 0, 64, 44, 0, 0)],
        [Adoption(0, 0, 0, "{name}"), Enqueue(0, 0, 0, 64, 44, 0, 0)],
        [Adoption(0, 0, 0, "{name}"), Enqueue(0, 1, 0, 64, 44, 0, 0), Dequeue(0, 0, 1)],
    ],
)
def test_a_frame_that_says_something_else(
    open_queue: QueueFactory, directory: Path, operations: list[Operation]
) -> None:
    """A frame with a correct checksum that is not a publication's is refused."""
    queue = open_queue()
    publish(directory, b"x")
    (name,) = inbox(directory)
    path = directory / "inbox" / name
    data = path.read_bytes()
    header = decode_header(data, SEGMENT_MAGIC, name)
    named = [
        each._replace(name=each.name.format(name=name)) if isinstance(each, Adoption) else each for each in operations
    ]
    body = encode_transaction(named)
    frame, _ = encode_frame(body, header.salt, 0, 1, 0, 1, len(named))
    path.write_bytes(data[: header.size_bytes] + frame + body)
    with queue.session() as session, pytest.raises(CorruptionError, match="enqueues"):
        session.dequeue()
    assert inbox(directory) == [f"{name}.damaged"]


@pytest.mark.damages
@pytest.mark.parametrize("length_bytes", [0, 63, 64, 120, 200])
def test_a_published_file_that_was_cut(open_queue: QueueFactory, directory: Path, length_bytes: int) -> None:
    """A published file that was cut short is reported as damaged, wherever the cut is."""
    queue = open_queue()
    publish(directory, b"x")
    (name,) = inbox(directory)
    os.truncate(directory / "inbox" / name, length_bytes)
    with queue.session() as session, pytest.raises(CorruptionError, match=name):
        session.dequeue()


def test_markers_while_the_log_is_trimmed(open_queue: QueueFactory, directory: Path) -> None:
    """A producer that reads the log while its owner replaces it looks again."""
    queue = open_queue()
    with queue.session() as session:
        session.flush(("app", 5))
    looks = [0]

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        looks[0] += 1
        if looks[0] == 2:
            raise FileNotFoundError(errno.ENOENT, "trimmed meanwhile")
        return DISK.pread(fd, length_bytes, offset)

    with call_on(replace(DISK, pread=pread), Producer, directory) as producer:
        looks[0] = 0
        producer.enqueue(b"x")
        assert not producer.flush(("app", 5))
        assert producer.flush(("app", 6))
    with Producer(directory) as producer:
        assert not producer.flush(("app", 6))
        assert producer.flush(("other", 1))
        assert not producer.flush(("other", 1))
    assert drain(queue) == []
    assert (queue.marker("app"), queue.marker("other")) == (6, 1)


def test_markers_of_a_log_that_cannot_be_read(directory: Path) -> None:
    """If the log cannot be read, the producer publishes, and the owner decides about the marker.

    Drafts of other producers do not count.
    """
    with PersistentQueue(directory) as queue:
        put(queue, b"x")
    failing = [False]

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        if failing[0]:
            raise FileNotFoundError(errno.ENOENT, "trimmed meanwhile")
        return DISK.pread(fd, length_bytes, offset)

    with Producer(directory) as other, call_on(replace(DISK, pread=pread), Producer, directory) as producer:
        other.enqueue_many([bytes(1024 * 1024)] * 6)
        failing[0] = True
        assert producer.flush(("app", 5))
        failing[0] = False
        other.rollback()
    with PersistentQueue(directory) as queue:
        assert queue.marker("app") == 5
        assert drain(queue) == [b"x"]


def test_closing_wakes_who_listens(open_queue: QueueFactory) -> None:
    """Closing a queue ends the wait of every waiter, including the one that listens for other processes.

    No wake-up is left open.
    """
    queue = open_queue()
    with ThreadPoolExecutor(3) as pool, queue.session() as session, queue.session() as other:
        waiting = [pool.submit(each.dequeue, None) for each in (session, other)]
        wait_for(lambda: queue._open_queue is not None and queue._open_queue._waiters.count == 2)
        group = queue._open_queue
        assert group is not None
        wait_for(lambda: group._waiters.keeper is not None)
        queue.close()
        for each in waiting:
            with pytest.raises(ClosedError):
                each.result(60)
    assert group._waiters._bell is None


@pytest.mark.parametrize("lacks", ["inotify", "eventfd"])
def test_where_the_system_has_less(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """Without ``inotify`` a waiter looks every 50 ms; without ``eventfd`` a pipe takes its place."""
    if lacks == "inotify":
        monkeypatch.setattr("persistentqueue.system.wakeup._watch", lambda directory: -1)
    else:
        monkeypatch.delattr(os, "eventfd")
    queue = open_queue()
    with ThreadPoolExecutor(1) as pool, queue.session() as session:
        for puts in (lambda: publish(directory, b"x"), lambda: put(queue, b"x")):
            waiting = pool.submit(session.dequeue, 60)
            wait_for(lambda: queue._open_queue is not None and queue._open_queue._waiters.keeper is not None)
            puts()
            assert waiting.result(60) == b"x"
            session.flush()


def test_a_directory_that_cannot_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up that has nothing to watch returns every 50 ms."""
    bell = Wakeup(-1)
    bell.ring()
    bell.wait(60)
    begun = time.monotonic()
    bell.wait(60)
    assert time.monotonic() - begun >= 0.04
    bell.close()
    assert _watch(-1) == -1
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())  # a system without ``inotify``
    fd = os.open(tmp_path, os.O_RDONLY)
    assert _watch(fd) == -1
    os.close(fd)


def test_what_cannot_be_read_stays(directory: Path) -> None:
    """A file that the owner cannot read for now breaks nothing: earlier files are adopted.

    A dequeue that finds no other item raises the error until the file can be read.
    """
    unreadable: list[str] = []

    def opens(path: str, flags: int, mode: int) -> int:
        if os.path.basename(path) in unreadable:
            raise OSError(errno.EIO, "Input/output error", path)
        return DISK.open(path, flags, mode)

    disk = replace(DISK, open=opens)
    with call_on(disk, PersistentQueue, directory) as queue:
        for item in (b"a", b"b", b"c"):
            publish(directory, item)
        unreadable.append(inbox(directory)[1])
        with queue.session() as session:
            assert session.dequeue() == b"a"
            for _ in range(2):
                with pytest.raises(OSError, match=unreadable[0]):
                    session.dequeue()
            session.flush()
            put(queue, b"own")
            assert session.dequeue() == b"own"
            session.flush()
    with call_on(disk, PersistentQueue, directory) as queue:
        assert queue.stats().published == 2
        unreadable.clear()
        assert drain(queue) == [b"b", b"c"]
        assert queue.stats().published == 0


def test_a_dropped_queue_leaves_no_bell(directory: Path) -> None:
    """A dropped queue leaves no descriptor of its wake-up; the fixture of all tests checks that."""
    queue = PersistentQueue(directory)
    with queue.session() as session:
        for _ in range(2):
            assert session.dequeue(timeout=0.01) is None
    with pytest.warns(ResourceWarning):
        del session, queue
        gc.collect()


def test_a_queue_that_does_not_sync(directory: Path) -> None:
    """A file that is published for a queue with ``sync=False`` is adopted once, and its items survive a kill."""
    queue = PersistentQueue(directory, sync=False)
    publish(directory, b"a", marker=("app", 1))
    assert queue.peek() == []
    with queue.session() as session:
        assert session.dequeue() == b"a"
        session.rollback()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Versions, "is_reached", lambda *_: False)
        publish(directory, b"again", marker=("app", 1))
        publish(directory, marker=("other", 1))
    generation = queue.stats().generation
    with queue.session() as session:
        assert session.dequeue_many(9) == [b"a"]
        assert session.dequeue() is None
        session.rollback()
    # Before the files are deleted, a trim makes the markers durable that they stand for.
    assert queue.stats().generation > generation
    assert inbox(directory) == []
    publish(directory, b"b")
    with queue.session() as session:
        assert session.dequeue_many(9) == [b"a"]
        assert session.dequeue() == b"b"
        session.rollback()
    crash(queue)
    with PersistentQueue(directory) as queue:
        assert not queue.recovery.clean
        assert drain(queue) == [b"a", b"b"]
        assert (queue.marker("app"), queue.marker("other")) == (1, 1)


def test_a_full_queue_looks_no_further(open_queue: QueueFactory, directory: Path) -> None:
    """While a limit leaves no room for a published file, flushes do not read it again and again."""
    queue = open_queue(max_items=2)
    put(queue, b"a", b"b")
    publish(directory, b"c")
    group = queue._open()
    assert group._store.adopter.adopt() == 0
    reads: list[str] = []

    def begin(*_: object) -> list[Transaction]:
        reads.append("read")
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group._store.inbox, "begin", begin)
        assert group._store.adopter.adopt() == 0
        assert reads == []
        assert group._store.adopter.adopt(insists=True) == 0
        assert reads == ["read"]
    with queue.session() as session:
        assert session.dequeue_many(2) == [b"a", b"b"]
        session.flush()
    group._store.adopter.adopt()
    assert len(queue) == 1
    assert drain(queue) == [b"c"]


@pytest.mark.parametrize("call", ["lstat", "listdir"])
def test_a_look_that_fails_fails_no_flush(directory: Path, call: str) -> None:
    """If the inbox cannot be read, a flush succeeds all the same, and a dequeue that finds no other item raises the
    error."""
    failing = [False]

    def fails(path: str) -> Any:
        if failing[0] and path.endswith("inbox"):
            raise OSError(errno.EIO, "Input/output error", path)
        return getattr(DISK, call)(path)

    times = iter(range(0, 10**15, 10**9))  # each call is late enough to look again
    doors: dict[str, Any] = {call: fails, "time_ns": lambda: next(times)}
    disk = replace(DISK, **doors)
    with call_on(disk, PersistentQueue, directory) as queue:
        failing[0] = True
        put(queue, b"a", b"b")
        assert len(queue) == 2
        with queue.session() as session:
            assert session.dequeue_many(2) == [b"a", b"b"]
            with pytest.raises(OSError, match="inbox"):
                session.dequeue()
            session.flush()
        failing[0] = False
        assert drain(queue) == []


@pytest.mark.parametrize("wipe", [False, True])
def test_what_was_published_is_not_written_to_again(open_queue: QueueFactory, directory: Path, wipe: bool) -> None:
    """A drained file that was published does not go to the pool: without a new header it would seem to wait for
    adoption."""
    queue = open_queue(pool_max_bytes=1 << 24, wipe=wipe)
    put(queue, b"own" * 1000)
    for _ in range(3):
        publish(directory, bytes(100_000))
    assert len(drain(queue)) == 1
    assert len(drain(queue)) == 3
    queue.trim()
    stats = queue.stats()
    assert (stats.pool_files, stats.segments) == (0, 1)
    assert len(os.listdir(directory / "data")) == 1


@pytest.mark.damages
def test_a_damaged_file_does_not_go_to_the_pool(open_queue: QueueFactory, directory: Path) -> None:
    """A drained file without a valid header does not go to the pool, since it may have been published."""
    queue = open_queue(pool_max_bytes=1 << 24, segment_bytes=100_000, memory_bytes=0)
    put(queue, bytes(90_000))
    put(queue, bytes(90_000))
    assert len(drain(queue)) == 2
    path = min((directory / "data").glob("*.seg"))
    path.write_bytes(b"?" * 64 + path.read_bytes()[64:])
    queue.trim()
    assert queue.stats().pool_files == 0
    assert not path.exists()


def test_a_link_in_the_place_of_a_segment_is_deleted(open_queue: QueueFactory, directory: Path) -> None:
    """A drained segment that another program has replaced by a link is deleted, and its target is not touched."""
    queue = open_queue(pool_max_bytes=1 << 24, segment_bytes=100_000)
    put(queue, bytes(90_000))
    put(queue, bytes(90_000))
    path, target = min((directory / "data").glob("*.seg")), directory.parent / "target"
    path.rename(target)
    path.symlink_to(target)
    size_bytes = target.stat().st_size
    assert len(drain(queue)) == 2
    queue.trim()
    assert not path.is_symlink()
    assert target.stat().st_size == size_bytes


def test_a_location_that_cannot_be_listed(tmp_path: Path) -> None:
    """If the directory of a missing inbox cannot be listed, the error does not claim that a move was cut short."""

    def listdir(path: str) -> list[str]:
        raise OSError(errno.EIO, "Input/output error", path)

    with using_disk(replace(DISK, listdir=listdir)):
        error = explained(FileNotFoundError(), str(tmp_path), str(tmp_path / "inbox"), None, "", "flush again")
    assert isinstance(error, DataPathError) and "since the segments are being moved, or were moved" in str(error)

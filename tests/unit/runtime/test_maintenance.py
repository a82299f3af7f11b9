"""Maintenance: how space is given back after the flush that freed it, and which calls wait for that."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue, _PySimpleQueue  # type: ignore[attr-defined]
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    DiskFullError,
    PersistentQueue,
    QueueFullError,
    QueueLockedError,
    Session,
)
from persistentqueue.core.block import BLOCK_HEADER_BYTES, LENGTH_BYTES
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.engine.compaction import SMALL_SEGMENTS
from persistentqueue.runtime import maintenance
from persistentqueue.runtime.background import BACKGROUND, THREAD_NAME, BackgroundThread
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import crash, drain, is_idle, log_file, put, put_each, segment_files, wait_for

SECONDS = 30.0  # a limit for calls that should take milliseconds
MIB = 1024 * 1024


class Deletions:
    """A disk on which no segment is deleted before it is allowed."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.allowed = threading.Event()
        self.threads: list[str] = []
        self.disk = replace(DISK, unlink=self._unlink)

    def _unlink(self, path: str) -> None:
        if path.endswith(".seg"):
            self.threads.append(threading.current_thread().name)
            self.began.set()
            assert self.allowed.wait(SECONDS)
        DISK.unlink(path)


def test_no_flush_waits_for_large_files_to_be_deleted(open_queue: QueueFactory, directory: Path) -> None:
    """The flush that drains large segments returns before they are deleted, and the queue goes on meanwhile."""
    deletions = Deletions()
    queue = open_queue(segment_bytes=MIB, disk=deletions.disk)
    put(queue, *[bytes(MIB)] * 20)
    assert len(drain(queue)) == 20
    assert deletions.began.wait(SECONDS)
    put(queue, b"meanwhile")
    assert drain(queue) == [b"meanwhile"]
    assert len(segment_files(directory)) >= 20
    deletions.allowed.set()
    assert is_idle()
    assert len(segment_files(directory)) <= 2
    assert set(deletions.threads) == {THREAD_NAME}


def test_small_files_are_deleted_at_once(open_queue: QueueFactory, directory: Path) -> None:
    """Small drained segments are deleted in a shielded call before the flush returns: that is faster than
    maintenance."""
    deletions = Deletions()
    deletions.allowed.set()
    queue = open_queue(segment_bytes=100, disk=deletions.disk)
    put_each(queue, [bytes(100)] * 20)
    assert len(segment_files(directory)) == 20
    drain(queue)
    assert len(segment_files(directory)) <= 2
    assert set(deletions.threads) == {threading.current_thread().name}


def test_nobody_waits_for_more_than_a_file_of_the_pool(open_queue: QueueFactory, directory: Path) -> None:
    """While the pool is filled, flushes go on, and ``close`` waits only for the file that is being made."""
    began, allowed = threading.Event(), threading.Event()
    filler: list[int] = []

    def fdatasync(fd: int) -> None:
        if threading.get_ident() in filler:
            began.set()
            assert allowed.wait(SECONDS)
        DISK.fdatasync(fd)

    def fill() -> None:
        filler.append(threading.get_ident())
        queue.maintain()

    disk = replace(DISK, fdatasync=fdatasync)
    queue = open_queue(segment_bytes=10_000, pool_min_bytes=100_000, pool_max_bytes=100_000, disk=disk)
    with ThreadPoolExecutor(1) as pool:
        filling = pool.submit(fill)
        assert began.wait(SECONDS)
        put_each(queue, [bytes(1000)] * 300)
        assert len(drain(queue)) == 300
        assert queue.stats().segments <= 1
        closing = threading.Timer(0.0, queue.close)
        closing.start()
        wait_for(lambda: queue.closed)
        allowed.set()
        with pytest.raises(ClosedError):
            filling.result(SECONDS)
        closing.join(SECONDS)
    assert not list((directory / "pool").glob("*.part"))
    assert len(segment_files(directory)) == 0


def test_closing_waits_until_all_is_given_back(open_queue: QueueFactory, directory: Path) -> None:
    """``close`` returns when maintenance has finished with the files of the queue, and no drained segment is left."""
    deletions = Deletions()
    queue = open_queue(segment_bytes=MIB, disk=deletions.disk)
    put(queue, *[bytes(MIB)] * 20)
    drain(queue)
    assert deletions.began.wait(SECONDS)
    closer = threading.Thread(target=queue.close)
    closer.start()
    closer.join(0.05)  # a ``close`` that does not wait would nearly always return within this time
    assert closer.is_alive()
    deletions.allowed.set()
    closer.join(SECONDS)
    assert not closer.is_alive()
    assert segment_files(directory) == []
    assert len(deletions.threads) == 20


@pytest.mark.parametrize("step", ["__init__", "start"])  # the first one fails in a subinterpreter
def test_without_a_thread_a_flush_gives_back(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """If no thread can be started, a flush that drains segments deletes them before it returns."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, step, fail)
    queue = open_queue(segment_bytes=MIB)
    put(queue, *[bytes(MIB)] * 20)
    assert len(segment_files(directory)) == 20
    drain(queue)
    assert len(segment_files(directory)) <= 1
    assert is_idle()
    queue.close()
    assert segment_files(directory) == []


@pytest.mark.maintained
def test_a_thread_that_could_not_start_is_tried_again(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no thread can be started for a job, the next occasion tries again."""

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", 3600.0)
    queue = open_queue()
    opened, own = queue._open(), queue._maintenance
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        put(queue, b"1")
        own._tidy_soon()
        opened._give_back_later()
        assert (opened.maintenance_is_due, own._is_tidy_due, opened._is_giving_back_due) == (False, False, False)
    put(queue, b"2")
    assert opened.maintenance_is_due


def test_trim_returns_when_all_is_given_back(open_queue: QueueFactory, directory: Path) -> None:
    """``trim`` deletes drained segments of any size before it returns."""
    queue = open_queue(segment_bytes=MIB)
    put(queue, *[bytes(MIB)] * 2)
    assert len(drain(queue)) == 2
    assert len(segment_files(directory)) == 2
    queue.trim()
    assert len(segment_files(directory)) <= 1


@pytest.mark.parametrize("is_torn", [False, True])
def test_what_a_crash_left_undeleted_is_swept(
    open_queue: QueueFactory, directory: Path, tmp_path: Path, is_torn: bool
) -> None:
    """Retired segments that a crash left are swept, and not set aside as evidence, even if the log ends in a torn
    tail."""
    deletions = Deletions()
    queue = open_queue(segment_bytes=MIB, disk=deletions.disk)
    put(queue, *[bytes(MIB)] * 20)
    drain(queue)
    put(queue, b"stays")
    assert deletions.began.wait(SECONDS)
    crashed, log_bytes = shutil.copytree(directory, tmp_path / "crashed"), queue.stats().log_bytes
    deletions.allowed.set()
    assert len(segment_files(crashed)) >= 20
    if is_torn:
        with log_file(crashed).open("r+b") as file:
            file.seek(log_bytes)
            file.write(b"torn")
    queue = open_queue(None, path=crashed)
    assert bool(queue.recovery.torn_bytes) == is_torn
    assert len([name for name in queue.recovery.swept if name.endswith(".seg")]) >= 19
    assert not [name for name in queue.recovery.set_aside if name.endswith(".seg")]
    assert len(segment_files(crashed)) <= 2
    assert drain(queue) == [b"stays"]


def test_the_thread_lives_only_while_there_is_work() -> None:
    """The first job starts the thread, the last job ends it, and a later job starts another; jobs are done in order."""
    maintenance = BackgroundThread()
    gate = threading.Event()
    done: list[int] = []

    def job(number: int) -> Callable[[], None]:
        def work() -> None:
            assert gate.wait(SECONDS)
            done.append(number)

        return work

    for round_ in range(3):
        before = set(threading.enumerate())
        for number in range(10):
            maintenance.submit(job(10 * round_ + number))
        (thread,) = set(threading.enumerate()) - before
        gate.set()
        thread.join(SECONDS)
        assert not thread.is_alive()
        gate.clear()
    assert done == list(range(30))


def test_what_is_due_later_is_done_later_or_forgotten() -> None:
    """A job that is due does not wait behind a later one, and the thread ends when all remaining jobs are forgotten."""
    maintenance, owner = BackgroundThread(), object()
    did, before = threading.Event(), set(threading.enumerate())
    maintenance.submit(lambda: pytest.fail("done an hour early"), 3600.0, owner)
    (thread,) = set(threading.enumerate()) - before
    maintenance.submit(did.set)
    assert did.wait(SECONDS)
    assert thread.is_alive()
    maintenance.forget(did)
    again = threading.Event()
    maintenance.submit(again.set)
    assert again.wait(SECONDS)
    assert thread.is_alive()
    maintenance.forget(owner)
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_a_job_that_fails_is_heard_of_and_others_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a job is passed to ``threading.excepthook``. The thread goes on with the jobs that it has, and with
    later ones."""
    heard: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: heard.append((args.exc_type, args.thread.name)))
    maintenance, before = BackgroundThread(), set(threading.enumerate())
    gate, did, did_later = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        assert gate.wait(SECONDS)

    def fail() -> None:
        raise LookupError

    maintenance.submit(hold)
    maintenance.submit(fail)
    maintenance.submit(did.set)  # the thread has it when the job before it begins
    (thread,) = set(threading.enumerate()) - before
    gate.set()
    assert did.wait(SECONDS)
    assert heard == [(LookupError, THREAD_NAME)]
    thread.join(SECONDS)
    maintenance.submit(did_later.set)
    assert did_later.wait(SECONDS)


def test_a_finalizer_may_forget_wherever_it_interrupts_its_thread() -> None:
    """A finalizer may call ``forget`` while its own thread submits a job, or ends: the call does not block."""
    maintenance, owner = BackgroundThread(), object()
    before = set(threading.enumerate())
    maintenance.submit(lambda: None, 3600.0, owner)
    (thread,) = set(threading.enumerate()) - before
    with maintenance._starting:
        maintenance.forget(owner)
    thread.join(SECONDS)
    assert not thread.is_alive()
    maintenance.forget(owner)
    assert maintenance._inbox.empty()


@pytest.mark.parametrize("kind", [SimpleQueue, _PySimpleQueue])
def test_a_job_that_is_due_waits_for_nothing(kind: Any) -> None:
    """The thread never waits with a timeout of 0, which may block for ever in some versions of Python.

    A look that does not wait has no timeout: the class that older versions of gevent put in place of ``SimpleQueue``
    refuses one.
    """
    waits: list[tuple[bool, float | None]] = []

    class Inbox(kind):  # type: ignore[misc]
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            waits.append((block, timeout))
            return super().get(block, timeout)

    maintenance, before = BackgroundThread(), set(threading.enumerate())
    maintenance._inbox = Inbox()
    soon, later = threading.Event(), threading.Event()
    maintenance.submit(later.set, 0.01)
    maintenance.submit(soon.set)
    assert soon.wait(SECONDS) and later.wait(SECONDS)
    for thread in set(threading.enumerate()) - before:
        thread.join(SECONDS)
    assert waits and all(timeout for block, timeout in waits if block)


def sparse(queue: PersistentQueue) -> Session:
    """Return a session that holds one item in each of 20 segments; the other items of these segments are consumed."""
    put_each(queue, [bytes(100)] * 200)
    keeper = queue.session()
    for _ in range(20):
        keeper.dequeue()
        with queue.transaction() as session:
            session.dequeue_many(9)
    return keeper


@pytest.mark.maintained
def test_maintenance_comes_by_itself(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a commit sparse segments are compacted and the pool is filled, without a call of ``maintain``."""
    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", 0.0)
    monkeypatch.setattr(maintenance, "IDLE_SECONDS", 0.0)
    queue = open_queue(segment_bytes=1400, pool_min_bytes=3000, pool_max_bytes=9000)
    keeper = sparse(queue)
    assert is_idle()
    stats = queue.stats()
    # Maintenance ran while the segments became sparse, a few at a time. Each time its copy may be just as full as a
    # segment that is left alone.
    most_full = int(20 * (BLOCK_HEADER_BYTES + LENGTH_BYTES + 100) / (0.3 * (1400 - HEADER_BYTES)))
    most_segments = most_full + SMALL_SEGMENTS + 1
    assert most_segments < 20
    assert (stats.held, stats.segments <= most_segments, stats.pool_bytes >= 3000) == (20, True, True)
    keeper.rollback()
    assert drain(queue) == [bytes(100)] * 20


@pytest.mark.maintained
def test_a_refused_flush_is_followed_by_maintenance(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that was refused for want of room makes maintenance due, like a committed one: it may make room."""
    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", 3600.0)
    with open_queue() as before:
        put(before, b"a")
    queue = open_queue(max_items=1)
    assert not queue._open().maintenance_is_due
    with pytest.raises(QueueFullError):
        put(queue, b"b")
    assert queue._open().maintenance_is_due


def test_maintenance_counts_the_times_of_refused_flushes(open_queue: QueueFactory) -> None:
    """The memory that refused flushes take for their statistics is freed by maintenance, without a commit."""
    queue = open_queue(max_items=1, full="block")
    put(queue, b"a")
    with queue.session() as session:
        session.enqueue(b"b")
        for _ in range(20):
            with pytest.raises(QueueFullError):
                session.flush(timeout=0)
        session.rollback()
    meter = queue._open().meters.stall_seconds["room"]
    assert len(meter._noted) == 20
    queue.maintain()
    assert (len(meter._noted), queue.stats().stall_seconds["room"].count) == (0, 20)


@pytest.mark.maintained
def test_an_idle_queue_gives_up_what_only_a_busy_one_needs(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle queue gives up its drained current segment if that has grown, and the bytes by which its log has
    grown."""
    queue = open_queue(log_bytes=4096)
    for _ in range(3):
        put_each(queue, [bytes(50)] * 500)
        put(queue, *[bytes(MIB)] * 4)
        drain(queue)
    before = queue.stats()
    assert before.log_capacity_bytes > 4096
    assert before.disk_bytes > 4 * MIB
    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", 0.0)
    monkeypatch.setattr(maintenance, "IDLE_SECONDS", 0.0)
    put(queue, b"the last one")
    assert drain(queue) == [b"the last one"]
    assert is_idle()
    assert segment_files(directory) == []
    assert queue.stats().disk_bytes <= 3 * 4096
    put(queue, b"goes on")
    assert queue.stats().disk_bytes <= 2 * MIB
    assert is_idle()  # a running maintenance would keep the lock until its end
    crash(queue)
    assert drain(open_queue()) == [b"goes on"]


@pytest.mark.maintained
def test_a_busy_queue_keeps_what_it_needs(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """While there are commits, tidying is put off again and again."""
    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", 3600.0)
    monkeypatch.setattr(maintenance, "IDLE_SECONDS", 0.0)
    queue = open_queue()
    put(queue, *[bytes(MIB)] * 4)
    drain(queue)
    own = queue._maintenance
    own._is_tidy_due = True
    jobs: list[Callable[[], None]] = []

    def submit(job: Callable[[], None], _seconds: float, _owner: object) -> bool:
        jobs.append(job)
        return True

    monkeypatch.setattr(BACKGROUND, "submit", submit)
    own._tidy_by_itself(queue._open().groups - 1)
    own._maintain_by_itself()
    assert (len(jobs), queue.stats().segments > 0) == (1, True)
    jobs.pop()()
    assert (jobs, queue.stats().segments) == ([], 0)


@pytest.mark.maintained
def test_a_failed_maintenance_lets_an_idle_queue_tidy_up(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If maintenance fails, as it does on a full disk, the tidying of the idle queue is due all the same."""
    monkeypatch.setattr(maintenance, "IDLE_SECONDS", 0.0)
    queue = open_queue()
    jobs: list[Callable[[], None]] = []
    put(queue, b"x")
    own = queue._maintenance
    assert is_idle()
    own._is_tidy_due = False

    def submit(job: Callable[[], None], _seconds: float, _owner: object) -> bool:
        jobs.append(job)
        return True

    def fail(_bytes_per_second: float) -> None:
        raise DiskFullError(str(directory), errno.ENOSPC, "no room to compact to")

    monkeypatch.setattr(BACKGROUND, "submit", submit)
    monkeypatch.setattr(own, "_maintain", fail)
    own._maintain_by_itself()
    assert "maintenance failed" in caplog.text
    assert len(jobs) == 1


def test_what_is_on_its_way_keeps_the_segment(open_queue: QueueFactory) -> None:
    """A segment without live items stays while a session has spilled items to it."""
    queue = open_queue()
    put(queue, *[bytes(MIB)] * 2)
    with queue.session() as loader:
        loader._spill_bytes = 1
        loader.enqueue_many([b"ahead"] * 3)
        assert len(drain(queue)) == 2
        queue.maintain()
        loader.flush()
    assert drain(queue) == [b"ahead"] * 3


def test_by_hand_it_is_done_at_once(open_queue: QueueFactory) -> None:
    """``maintain`` returns what it did, and a second call finds nothing to do."""
    queue = open_queue(segment_bytes=1400, pool_min_bytes=3000, pool_max_bytes=9000)
    keeper = sparse(queue)
    assert queue.maintain().compacted_segments > 15
    assert queue.stats().pool_bytes >= 3000
    assert queue.maintain() == (0, 0, 0)
    keeper.close()


def test_what_is_about_to_be_drained_is_not_compacted(open_queue: QueueFactory) -> None:
    """Maintenance does not compact segments that a consumer is about to drain; ``compact`` does."""
    queue = open_queue(segment_bytes=1400)
    put_each(queue, [bytes(100)] * 40)
    with queue.transaction() as session:
        session.dequeue_many(8)
    assert queue.maintain().compacted_segments == 0
    assert queue.compact(below=0.5).segments == 1


@pytest.mark.maintained
@pytest.mark.parametrize("how", ["closed", "dropped", "killed"])
def test_a_queue_that_is_gone_keeps_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Maintenance that is due for a queue is not done after the queue was closed, dropped or killed, and its thread
    ends."""
    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", 3600.0)
    queue = PersistentQueue(tmp_path / "gone")
    put(queue, b"an item")
    assert any(thread.name == THREAD_NAME for thread in threading.enumerate())
    if how == "closed":
        queue.close()
    elif how == "killed":
        crash(queue)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del queue
        gc.collect()
    assert is_idle()


@pytest.mark.maintained
def test_dropped_while_it_is_tidied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a queue is dropped while it is tidied, its files and its lock are released when maintenance has finished."""
    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", 0.0)
    monkeypatch.setattr(maintenance, "IDLE_SECONDS", 0.0)
    reached, go_on, armed = threading.Event(), threading.Event(), threading.Lock()
    armed.acquire()

    def failpoint(name: str) -> None:
        # It must not stop here while the queue is in use: it would block the writes that the loop below waits for.
        is_it = name.startswith("trim.2") and threading.current_thread().name == THREAD_NAME
        if is_it and armed.acquire(blocking=False):
            reached.set()
            assert go_on.wait(SECONDS)

    queue = call_on(replace(DISK, failpoint=failpoint), PersistentQueue, tmp_path / "q", log_bytes=4096)
    while True:
        put(queue, *[bytes(MIB)] * 4)
        drain(queue)
        armed.release()
        if reached.wait(0.1) or not armed.acquire(blocking=False):
            break  # otherwise the queue was tidied before
    assert reached.wait(SECONDS)
    with pytest.warns(ResourceWarning, match="without close"):
        del queue
        gc.collect()
    with pytest.raises(QueueLockedError):
        PersistentQueue(tmp_path / "q")
    go_on.set()
    assert is_idle()
    with PersistentQueue(tmp_path / "q") as queue:
        assert len(queue) == 0


@pytest.mark.maintained
def test_maintenance_meets_a_broken_queue(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance leaves a broken queue alone without an error, and the next flush raises the error."""
    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", 0.0)

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "injected")

    def sync(fd: int) -> None:
        (fail if failing else DISK.fdatasync)(fd)

    failing: list[bool] = []
    queue = open_queue(disk=replace(DISK, fdatasync=sync), inline_bytes=0)
    failing.append(True)
    with pytest.raises(BrokenQueueError):
        put(queue, b"an item")
    assert is_idle()
    with pytest.raises(BrokenQueueError):
        put(queue, b"an item")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_maintenance_of_its_own(open_queue: QueueFactory, directory: Path, tmp_path: Path) -> None:
    """A child that is forked while its parent deletes segments leaves those alone, and has its own deleted."""
    deletions = Deletions()
    queue = open_queue(segment_bytes=MIB, disk=deletions.disk)
    put(queue, *[bytes(MIB)] * 20)
    drain(queue)
    assert deletions.began.wait(SECONDS)
    before = segment_files(directory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since 3.12 Python warns of a fork beside threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            own = PersistentQueue(tmp_path / "child", segment_bytes=MIB)
            put(own, *[bytes(MIB)] * 20)
            drain(own)
            if is_idle() and len(segment_files(tmp_path / "child")) <= 2:
                own.close()
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert segment_files(directory) == before
    deletions.allowed.set()

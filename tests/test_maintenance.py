"""Giving space back behind the flush that made it free: who waits for it, and who does not."""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import PersistentQueue
from persistentqueue.disk import DISK
from persistentqueue.maintenance import MAINTENANCE, THREAD_NAME, Maintenance

from .conftest import OpenQueue
from .support import drain, log_file, put, put_each, segment_files

SECONDS = 30.0  # a limit for what should take milliseconds
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


def is_idle() -> bool:
    """Whether no maintenance goes on; waits for what does."""
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join(SECONDS)
    return not MAINTENANCE._is_running and not MAINTENANCE._jobs


def test_no_flush_waits_for_large_files_to_be_deleted(open_queue: OpenQueue, directory: Path) -> None:
    """The flush that drains large segments returns before they are deleted, and the queue goes on; then they go."""
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


def test_small_files_are_deleted_at_once(open_queue: OpenQueue, directory: Path) -> None:
    """What is deleted faster than a thread is started needs none."""
    deletions = Deletions()
    deletions.allowed.set()
    queue = open_queue(segment_bytes=100, disk=deletions.disk)
    put_each(queue, [bytes(100)] * 20)
    assert len(segment_files(directory)) == 20
    drain(queue)
    assert len(segment_files(directory)) <= 2
    assert set(deletions.threads) == {threading.current_thread().name}


def test_closing_waits_until_all_is_given_back(open_queue: OpenQueue, directory: Path) -> None:
    """``close`` returns when maintenance has let go of the queue's files, and nothing drained is left."""
    deletions = Deletions()
    queue = open_queue(segment_bytes=MIB, disk=deletions.disk)
    put(queue, *[bytes(MIB)] * 20)
    drain(queue)
    assert deletions.began.wait(SECONDS)
    closer = threading.Thread(target=queue.close)
    closer.start()
    closer.join(0.05)  # a wrong close would return within that, nearly always; a right one never does
    assert closer.is_alive()
    deletions.allowed.set()
    closer.join(SECONDS)
    assert not closer.is_alive()
    assert segment_files(directory) == []
    assert len(deletions.threads) == 20


def test_without_a_thread_closing_gives_back(
    open_queue: OpenQueue, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no thread can be started, flushing goes on, and the files go when the queue is closed."""

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    queue = open_queue(segment_bytes=MIB)
    put(queue, *[bytes(MIB)] * 20)
    drain(queue)
    assert len(segment_files(directory)) == 20
    assert is_idle()
    queue.close()
    assert segment_files(directory) == []


def test_trim_returns_when_all_is_given_back(open_queue: OpenQueue, directory: Path) -> None:
    """``trim`` called by hand deletes before it returns, whatever the size."""
    queue = open_queue(segment_bytes=MIB)
    put(queue, *[bytes(MIB)] * 2)
    assert len(drain(queue)) == 2
    assert len(segment_files(directory)) == 2
    queue.trim()
    assert len(segment_files(directory)) <= 1


@pytest.mark.parametrize("is_torn", [False, True])
def test_what_a_crash_left_undeleted_is_swept(
    open_queue: OpenQueue, directory: Path, tmp_path: Path, is_torn: bool
) -> None:
    """Retired segments that a crash left are swept, not kept as evidence, also where the log ends torn."""
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
    """The first job starts the thread, the last one ends it, and the next one starts another; jobs go in order."""
    maintenance = Maintenance()
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_maintenance_of_its_own(open_queue: OpenQueue, directory: Path, tmp_path: Path) -> None:
    """A child that is forked while its parent deletes leaves the parent's files alone, and has its own deleted."""
    deletions = Deletions()
    queue = open_queue(segment_bytes=MIB, disk=deletions.disk)
    put(queue, *[bytes(MIB)] * 20)
    drain(queue)
    assert deletions.began.wait(SECONDS)
    before = segment_files(directory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: forking beside threads is what is tested
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

"""Helpers of several test files: crash a queue, enqueue items, dequeue them, damage files."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from stat import S_ISREG
from typing import Any

import pytest

from persistentqueue import CorruptionError, PersistentQueue, Session
from persistentqueue.runtime.background import BACKGROUND, THREAD_NAME
from persistentqueue.runtime.session_state import SessionParts
from persistentqueue.system.disk import DISK, Disk

IN_CACHE = replace(
    DISK,
    open_direct=lambda path: None,
    fdatasync=lambda fd: None,
    fsync=lambda fd: None,
    start_sync=lambda fd, offset, length_bytes: None,
    pwritev=lambda fd, buffers, offset, flags: DISK.pwritev(fd, buffers, offset, 0),
)
"""Disk without its syncs, for tests that open a thousand directories and cut no power."""


def receive_signals() -> None:
    """Undo the settings of the parent process that ignore or block signals on which tests depend.

    A shell without job control, and so ``nohup make test &``, starts a process with SIGINT ignored. Children inherit
    that, and Python then raises no ``KeyboardInterrupt``. A supervisor that ignores SIGCHLD hides the status of every
    child. SIGHUP stays as it is. Call this function in the main thread.
    """
    for number, default in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
        (signal.SIGCHLD, signal.SIG_DFL),
    ):
        if signal.getsignal(number) in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(number, default)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM})


def put(queue: PersistentQueue, *items: bytes) -> None:
    """Enqueue the items in one flush."""
    with queue.transaction() as session:
        session.enqueue_many(items)


def put_each(queue: PersistentQueue, items: Iterable[bytes]) -> None:
    """Enqueue the items with one flush each."""
    with queue.session() as session:
        for item in items:
            session.enqueue(item)
            session.flush()


def spilling_session(queue: PersistentQueue, spill_bytes: int) -> Session[bytes]:
    """Make a session of the queue that spills from this number of bytes on."""
    return Session(SessionParts(queue._open(), spill_bytes=spill_bytes))


def drain(queue: PersistentQueue) -> list[bytes]:
    """Dequeue everything in one flush."""
    with queue.transaction() as session:
        return session.dequeue_many(2**62)


def crash(queue: PersistentQueue[Any]) -> None:
    """End the queue like ``kill -9`` ends its process: files closed, lock freed, nothing written."""
    group = queue._open_queue
    assert group is not None
    group.disown("crashed by a test")


def log_file(directory: Path) -> Path:
    """Return the log of the highest generation."""
    return max((directory / "log").glob("*.log"))


def segment_files(directory: Path) -> list[Path]:
    """Return the segments, oldest first."""
    return sorted((directory / "data").glob("*.seg"))


def bytes_of(paths: Iterable[Path]) -> int:
    """Return the bytes of the files among these paths. The background thread may delete some of them meanwhile."""
    found = 0
    for path in paths:
        with suppress(FileNotFoundError):
            stat = path.lstat()
            found += stat.st_size if S_ISREG(stat.st_mode) else 0
    return found


def traits(path: Path) -> tuple[int, ...]:
    """Return the result of ``lstat`` without the time of the last read, which reading a link may change."""
    found = os.lstat(path)
    return found.st_mode, found.st_ino, found.st_nlink, found.st_uid, found.st_gid, found.st_size, found.st_mtime_ns


def flip(path: Path, offset: int, mask: int = 1) -> None:
    """Flip bits of one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail the test after a minute."""
    waiting = threading.Event()
    for _ in range(60_000):
        if condition():
            return
        waiting.wait(0.001)
    pytest.fail("it never came to be")


def is_idle() -> bool:
    """Wait until the background thread has ended; return whether nothing is due any more."""
    with BACKGROUND._starting:  # without the lock, a thread might be found that is not started, and cannot be joined
        threads = [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]
    for thread in threads:
        thread.join(30.0)
    return not BACKGROUND._is_running and BACKGROUND._inbox.empty()


@contextmanager
def tmpfs(path: Path, size_bytes: int) -> Iterator[Path]:
    """Yield a file system of this size at ``path``; skip the test if none can be mounted."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a file system, with mount")
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def without_descriptors() -> tuple[Disk, list[bool]]:
    """Return a disk, and a list: while the list is ``[True]``, the disk has no descriptor to list a directory with."""
    failing = [False]

    def listdir(path: str) -> list[str]:
        if failing[0]:
            raise OSError(errno.EMFILE, "failed by a test")
        return DISK.listdir(path)

    return replace(DISK, listdir=listdir), failing


@contextmanager
def interruptible() -> Iterator[None]:
    """Let processes that are started in the block handle SIGINT by default, even if this one ignores it.

    After an ``exec``, a handled signal is back at its default, but an ignored one stays ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if before is signal.SIG_IGN:
            signal.signal(signal.SIGINT, before)


def survivors(queue: PersistentQueue, *, consume: bool = True) -> tuple[list[bytes], list[CorruptionError]]:
    """Dequeue to the end, and flush each item if it is to be consumed; return the items, and the errors between
    them."""
    items: list[bytes] = []
    errors: list[CorruptionError] = []
    with queue.session() as session:
        while True:
            try:
                item = session.dequeue()
            except CorruptionError as error:
                errors.append(error)
                assert len(errors) < 100, "the queue is stuck at its damage"
                continue
            if item is None:
                session.flush() if consume else session.rollback()
                return items, errors
            items.append(item)
            if consume:
                session.flush()

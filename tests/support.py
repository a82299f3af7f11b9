"""What several test files share: crashing a queue, putting items in, taking them out, damaging files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from persistentqueue import PersistentQueue
from persistentqueue.disk import DISK

IN_CACHE = replace(
    DISK,
    open_direct=lambda path: None,
    fdatasync=lambda fd: None,
    fsync=lambda fd: None,
    start_sync=lambda fd, offset, length_bytes: None,
    pwritev=lambda fd, buffers, offset, flags: DISK.pwritev(fd, buffers, offset, 0),
)
"""The disk without its syncs: for tests that open a thousand directories and cut no power."""


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


def drain(queue: PersistentQueue) -> list[bytes]:
    """Dequeue everything in one flush."""
    with queue.transaction() as session:
        return session.dequeue_many(2**62)


def crash(queue: PersistentQueue) -> None:
    """End the queue as ``kill -9`` ends its process: files closed, lock freed, nothing written."""
    group = queue._group
    assert group is not None
    group.disown("crashed by a test")


def log_file(directory: Path) -> Path:
    """The log of the highest generation."""
    return max((directory / "log").glob("*.log"))


def segment_files(directory: Path) -> list[Path]:
    """The segments, oldest first."""
    return sorted((directory / "data").glob("*.seg"))


def flip(path: Path, offset: int, mask: int = 1) -> None:
    """Flip bits of one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ mask]))

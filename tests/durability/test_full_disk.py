"""A real disk that is filled by enqueueing, with and without limits, and then drained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import DiskFullError, PersistentQueue, QueueFullError, check
from persistentqueue.system.disk import DISK
from tests.support.limits import consume, files_bytes
from tests.support.queues import crash, tmpfs

MIB = 1024 * 1024


TMPFS_BYTES = 64 * MIB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 64 MiB."""
    with tmpfs(tmp_path / "small", TMPFS_BYTES) as path:
        yield path


def fill_up(queue: PersistentQueue, size_bytes: int, per_flush: int) -> list[int]:
    """Flush until there is no room; return the numbers of the acknowledged items."""
    done: list[int] = []
    with queue.session() as session:
        while True:
            numbers = range(len(done), len(done) + per_flush)
            try:
                session.enqueue_many([(b"%d " % n).ljust(size_bytes, b".") for n in numbers])
                session.flush(timeout=0)
            except (QueueFullError, DiskFullError):
                session.rollback()
                return done
            done += numbers


@pytest.mark.parametrize(("size_bytes", "per_flush"), [(5000, 1), (100_000, 90)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_disk_bytes": 40 * MIB},
        {"min_free_bytes": 20 * MIB},
        {"max_bytes": 30 * MIB, "full": "block"},
        {"max_disk_bytes": 50 * MIB, "min_free_bytes": 20 * MIB, "segment_bytes": 2 * MIB},
    ],
    ids=str,
)
def test_disk_never_fills(small_disk: Path, settings: dict[str, Any], size_bytes: int, per_flush: int) -> None:
    """With a limit or the low-disk guard, enqueueing never fills the file system.

    All acknowledged items come out, the space is free again, and about as many items fit once more, even after a
    reopening.
    """
    path, counts = small_disk / "queue", []
    for end in (crash, PersistentQueue.close, PersistentQueue.close):
        queue = PersistentQueue(path, **settings)
        try:
            done = fill_up(queue, size_bytes, per_flush)
            assert DISK.free_bytes(str(small_disk)) >= settings.get("min_free_bytes", 0)
            assert files_bytes(path) <= settings.get("max_disk_bytes", TMPFS_BYTES)
            end(queue)
            queue = PersistentQueue(path, **settings)
            seen: list[int] = []
            while items := consume(queue, 700):
                seen += [int(item.split()[0]) for item in items]
            assert seen == done
            counts.append(len(done))
        finally:
            queue.close()
        assert DISK.free_bytes(str(small_disk)) > TMPFS_BYTES - 9 * MIB
    most = min(settings.get("max_disk_bytes", 64 * MIB), 64 * MIB - settings.get("min_free_bytes", 0), 44 * MIB)
    assert min(counts) * size_bytes > most // 2 and min(counts) > 0.9 * max(counts)
    assert check(path).ok

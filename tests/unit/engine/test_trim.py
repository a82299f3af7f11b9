"""Generations of the log: their lengths, and a trim that fails."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from persistentqueue import (
    BrokenQueueError,
)
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import drain, put, put_each


def test_log_that_fills_at_the_right_pace_keeps_its_size(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that takes neither too few groups nor too many keeps its length in later generations."""
    monkeypatch.setattr("persistentqueue.engine.trim._GROUPS_PER_LOG", (1, 10**6))
    queue = open_queue(log_bytes=8192)
    for n in range(200):
        put(queue, b"%d" % n)
    assert queue.stats().generation > 2
    assert queue.stats().log_capacity_bytes == 8192


def test_full_log_whose_trim_breaks(open_queue: QueueFactory) -> None:
    """A flush breaks the queue and raises ``BrokenQueueError`` if it needs a new generation of the log whose sync
    fails."""
    failing = [False]

    def fdatasync(fd: int) -> None:
        if failing[0]:
            raise OSError(errno.EIO, "Input/output error")
        DISK.fdatasync(fd)

    queue = open_queue(log_bytes=4096, disk=replace(DISK, fdatasync=fdatasync))
    put(queue, b"x" * 2000)
    failing[0] = True
    with pytest.raises(BrokenQueueError):
        put_each(queue, [b"x" * 2000] * 3)
    failing[0] = False
    queue.close()
    assert set(drain(open_queue())) == {b"x" * 2000}

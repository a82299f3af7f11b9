"""Transactions that are larger than a segment, or than what a session keeps in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
)
from persistentqueue import session as session_module
from persistentqueue.engine.transaction import SPILL_BYTES
from persistentqueue.storage.segment_files import Segments
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, put, segment_files


def test_transaction_over_several_segments(open_queue: QueueFactory, directory: Path) -> None:
    """A transaction whose blocks do not fit one segment goes on in the next ones."""
    queue = open_queue(segment_bytes=600_000)
    items = [bytes([n]) * 150_000 for n in range(20)]
    put(queue, *items)
    assert len(segment_files(directory)) > 4
    assert list(queue.browse()) == items
    crash(queue)
    assert drain(open_queue()) == items


def test_items_that_are_too_large(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """``enqueue`` and ``enqueue_many`` refuse an item above the maximum, and nothing of the refused call is
    buffered."""
    monkeypatch.setattr(session_module, "ITEM_BYTES_MAX", 10)
    monkeypatch.setattr("persistentqueue.core.items.ITEM_BYTES_MAX", 10)
    queue = open_queue()
    with queue.session() as session:
        with pytest.raises(ValueError, match="exceeds the maximum of 10 bytes"):
            session.enqueue(b"x" * 11)
        with pytest.raises(ValueError, match="of 12 bytes exceeds"):
            session.enqueue_many([b"y", b"x" * 12])
        session.enqueue_many([b"x" * 10] * 2)
        session.flush()
    assert drain(queue) == [b"x" * 10] * 2


def test_spill_that_breaks(open_queue: QueueFactory) -> None:
    """A device error while a session spills breaks the queue."""
    failing = [False]

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if failing[0]:
            raise OSError(5, "Input/output error")
        return DISK.pwritev(fd, buffers, offset, flags)

    queue = open_queue(disk=replace(DISK, pwritev=pwritev))
    with queue.session() as session:
        session._spill_bytes = 1
        session.enqueue(b"x")
        failing[0] = True
        with pytest.raises(BrokenQueueError):
            session.enqueue(b"y")


def test_a_spill_without_memory_breaks_nothing(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory is too short to spill, ``enqueue_many`` raises ``MemoryError``. The items before it can be flushed."""
    queue = open_queue()
    stage = Segments.stage
    with queue.session() as session:
        session.enqueue(b"first")

        def fail(*_: object) -> None:
            raise MemoryError

        monkeypatch.setattr(Segments, "stage", fail)
        with pytest.raises(MemoryError):
            session.enqueue_many([bytes(SPILL_BYTES)] * 2)
        monkeypatch.setattr(Segments, "stage", stage)
        session.flush()
    assert drain(queue)[0] == b"first"

"""Reads beside other threads: items consumed, files closed and calls interrupted during a read."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from persistentqueue import (
    ClosedError,
)
from persistentqueue.core.state import StateError
from persistentqueue.storage import segment_files as segments_module
from persistentqueue.storage.segment import READ_AHEAD_BYTES
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import put, put_each
from tests.unit.runtime.test_open_queue import Interruption


def test_reading_stops_after_enough(open_queue: QueueFactory) -> None:
    """One read returns at most ``READ_AHEAD_BYTES``, and the next read goes on behind it."""
    queue = open_queue(memory_bytes=2 * READ_AHEAD_BYTES)
    items = [bytes([n]) * 200_000 for n in range(12)] + [b"end"]
    put(queue, *items)
    put(queue, *items)
    batches = [batch for _, batch in queue._open_queue._store.reader.browse()]  # type: ignore[union-attr]
    assert [item for batch in batches for item in batch] == items * 2
    assert all(sum(map(len, batch)) <= READ_AHEAD_BYTES for batch in batches)
    assert 3 < len(batches) < 9


def test_consumed_between_a_look_and_its_read(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browse whose next item is consumed just before it is read goes on with the items that are ready then."""
    queue = open_queue(memory_bytes=0)
    put_each(queue, [b"a", b"b"])
    reader = queue._open_queue._store.reader  # type: ignore[union-attr]
    page = type(reader)._page
    raised = [False]

    def consumed(self: Any, sequence: int, **cursors: Any) -> Any:
        if not raised[0]:
            raised[0] = True
            raise StateError("an extent", "none")
        return page(self, sequence, **cursors)

    monkeypatch.setattr(type(reader), "_page", consumed)
    assert list(queue.browse()) == [b"a", b"b"]


def test_reading_while_the_files_are_closed(open_queue: QueueFactory) -> None:
    """A read that began just before the queue was closed raises ``ClosedError`` and returns no other file's bytes."""
    queue = open_queue(memory_bytes=0)
    put(queue, b"a")
    reader = queue._open_queue._store.reader  # type: ignore[union-attr]
    queue.close()
    with pytest.raises(ClosedError, match="while it was read"):
        reader._page(0)


def test_a_read_that_is_interrupted_loses_no_file(open_queue: QueueFactory) -> None:
    """An interruption at any point of a segment's look-up keeps the segment open. Later reads find its unwritten blocks
    in memory, and the next trim can sync them."""
    points = 0

    def interrupt(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal points
        if event in {"call", "c_return"} and Path(frame.f_code.co_filename) == Path(segments_module.__file__):
            points -= 1
            if not points:
                raise Interruption

    queue = open_queue(memory_bytes=0)
    put(queue, b"a", b"b")
    group = queue._open()
    (segment,) = group._store.segments._open.values()
    for number in range(1, 100):
        points = number
        before = sys.getprofile()
        sys.setprofile(interrupt)
        try:
            # The reader is called in this thread: the queue's own calls hand a read to a thread that is never
            # interrupted.
            assert list(chain.from_iterable(items for _, items in group._store.reader.browse())) == [b"a", b"b"]
        except Interruption:
            continue
        finally:
            sys.setprofile(before)
            assert list(group._store.segments._open.values()) == [segment]
        break
    assert 5 < number < 99


def test_retired_while_counted(open_queue: QueueFactory) -> None:
    """A segment whose file disappears while the statistics are made is not counted."""

    def lstat(path: str) -> Any:
        if gone[0] and path.endswith(".seg"):
            raise FileNotFoundError(path)
        return DISK.lstat(path)

    gone = [False]
    queue = open_queue(disk=replace(DISK, lstat=lstat), log_bytes=4096)
    put(queue, b"x")
    gone[0] = True
    assert queue.stats().disk_bytes == 8192

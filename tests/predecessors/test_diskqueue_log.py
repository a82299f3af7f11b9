"""The scenarios of DiskQueue's ``TransactionLogTests``, for this queue; a number is that of the scenario.

This queue differs on purpose. A log that is cut in its header or checkpoint is refused, since no crash can leave such a
log. One that is cut behind them opens with an exact prefix of the commits, and the cut is reported. Bytes that this log
did not write at this place are never believed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from persistentqueue import CorruptionError, PersistentQueue
from persistentqueue.core.block import BLOCK_MAGIC
from persistentqueue.core.frame import END, FRAME_HEADER_BYTES, FRAME_MAGIC
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.storage.log_reader import read_log
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, log_file, put, put_each, segment_files

from .test_diskqueue_scenarios import EMPTY_LOG_BYTES, dequeue_each, dequeue_held, digits


def test_log_01_closing_trims_the_log(open_queue: QueueFactory, directory: Path) -> None:
    """A log of commits that cancel each other out is as short as an empty queue's after a close."""
    queue = open_queue()
    put_each(queue, digits(10))
    dequeue_each(queue, 10)
    used_bytes = queue.stats().log_bytes
    queue.close()
    assert read_log(DISK, str(log_file(directory))).end == EMPTY_LOG_BYTES < used_bytes


def test_log_02_and_03_held_items_count_again_after_reopening(open_queue: QueueFactory) -> None:
    """Ten items that were dequeued without a flush are ten items after a reopening, and no more."""
    with open_queue() as queue:
        put_each(queue, digits(10))
        assert dequeue_held(queue, 11) == [*digits(10), None]
    queue = open_queue()
    assert len(queue) == 10
    assert dequeue_each(queue, 11) == [*digits(10), None]


def test_log_04_the_log_shrinks_while_open(open_queue: QueueFactory) -> None:
    """The log is trimmed when it fills, so that its length does not grow with the number of commits."""
    queue = open_queue(log_bytes=4096)
    lengths = []
    with queue.session() as session:
        for item in digits(200):
            session.enqueue(item)
            session.flush()
            assert session.dequeue() == item
            session.flush()
            lengths.append(queue.stats().log_bytes)
    stats = queue.stats()
    assert stats.generation > 2
    assert any(after < before for before, after in pairwise(lengths))
    assert max(lengths) <= stats.log_capacity_bytes


@pytest.mark.damages
def test_log_05_a_cut_tail_costs_the_last_commit(open_queue: QueueFactory, directory: Path) -> None:
    """A log of twenty commits that lacks its last five bytes has nineteen commits, and the missing bytes are
    reported."""
    queue = open_queue()
    put_each(queue, digits(20))
    end = queue.stats().log_bytes
    crash(queue)
    log = log_file(directory)
    size_bytes = log.stat().st_size
    os.truncate(log, end - 5)
    queue = open_queue()
    assert (queue.recovery.transactions, queue.recovery.missing_bytes) == (19, size_bytes - end + 5)
    assert queue.recovery.torn_bytes > 0
    assert queue.recovery.set_aside == (f"log/{log.name}",)
    assert dequeue_each(queue, 20) == [*digits(19), None]


@pytest.mark.damages
@pytest.mark.parametrize("length_bytes", [5, 100, EMPTY_LOG_BYTES - 1, 368])
@pytest.mark.parametrize("end", [PersistentQueue.close, crash])
def test_log_06_to_08_a_log_cut_where_no_crash_can_is_refused(
    open_queue: QueueFactory, directory: Path, length_bytes: int, end: Callable[[PersistentQueue], None]
) -> None:
    """A log that is cut in its header or checkpoint, or a sealed one that is cut anywhere in use, is refused and stays
    unchanged."""
    queue = open_queue()
    with queue.session() as session:
        session.enqueue_many(digits(10))
        session.flush(marker=("a name so long that the checkpoint is longer than the cuts" * 5, 1))
    queue.trim()
    end(queue)
    log = log_file(directory)
    assert read_log(DISK, str(log)).frames[0].end > 368
    os.truncate(log, length_bytes)
    cut = log.read_bytes()
    with pytest.raises(CorruptionError) as caught:
        open_queue()
    assert (caught.value.file, caught.value.offset) == (str(log), 0 if length_bytes < HEADER_BYTES else HEADER_BYTES)
    assert [path.read_bytes() for path in sorted((directory / "log").iterdir())] == [cut]


@pytest.mark.parametrize(
    "items",
    [[b""] * 20, [b"", *[b"\1"] * 19], [*[b"\1"] * 19, b""], [FRAME_MAGIC] * 20, [BLOCK_MAGIC] * 20, [END] * 20],
    ids=["09 empty", "12 empty first", "13 empty last", "10 frame magic", "11 block magic", "end mark"],
)
@pytest.mark.parametrize("settings", [{}, {"inline_bytes": 0}, {"segment_bytes": 10}], ids=["inline", "large", "rolls"])
@pytest.mark.parametrize("end", [PersistentQueue.close, crash])
def test_log_09_to_13_no_payload_confuses_the_log(
    open_queue: QueueFactory, items: list[bytes], settings: dict[str, int], end: Callable[[PersistentQueue], None]
) -> None:
    """Empty items, and items that equal the marks of the format, are unchanged after a close and after a crash."""
    queue = open_queue(**settings)
    put_each(queue, items)
    end(queue)
    queue = open_queue(**settings)
    assert queue.recovery.torn_bytes == 0
    assert dequeue_each(queue, 21) == [*items, None]


def test_log_10_a_payload_of_the_queues_own_files_is_a_payload(open_queue: QueueFactory, directory: Path) -> None:
    """Items that are copies of the log and the segment that they are written to are unchanged after a crash."""
    queue = open_queue(log_bytes=4096, segment_bytes=4096)
    put(queue, b"one")
    copies = [log_file(directory).read_bytes(), segment_files(directory)[0].read_bytes()]
    put_each(queue, copies)
    crash(queue)
    assert drain(open_queue()) == [b"one", *copies]


def _append_copy(log: bytes, end: int) -> bytes:
    return log[:end] + log[:end] + log[: end // 2]


def _append_spoilt_copy(log: bytes, end: int) -> bytes:
    return log[:end] + log[: end - FRAME_HEADER_BYTES] + log[:FRAME_HEADER_BYTES]


def _append_last_frame(log: bytes, end: int) -> bytes:
    return log[:end] + log[log.rindex(FRAME_MAGIC, 0, end) : end] + log[end:]


@pytest.mark.damages
@pytest.mark.parametrize("append", [_append_copy, _append_spoilt_copy, _append_last_frame], ids=["14", "15", "frame"])
def test_log_14_and_15_a_copied_commit_does_not_count_twice(
    open_queue: QueueFactory, directory: Path, append: Callable[[bytes, int], bytes]
) -> None:
    """Bytes of a commit at a place where they were not written are reported, and never count as a second commit."""
    queue = open_queue()
    put(queue, *digits(5))
    end = queue.stats().log_bytes
    crash(queue)
    log = log_file(directory)
    log.write_bytes(append(log.read_bytes(), end))
    queue = open_queue()
    assert queue.recovery.torn_bytes > 0
    assert dequeue_each(queue, 6) == [*digits(5), None]


@pytest.mark.damages
def test_log_16_a_refused_log_is_not_rewritten(open_queue: QueueFactory, directory: Path) -> None:
    """Opening a log that was cut to five bytes fails and does not change it, however often it is tried."""
    with open_queue() as queue:
        put(queue, b"a")
    os.truncate(log_file(directory), 5)
    for _ in range(2):
        with pytest.raises(CorruptionError):
            open_queue()
    assert log_file(directory).stat().st_size == 5


@pytest.mark.damages
def test_log_17_life_goes_on_behind_a_cut(open_queue: QueueFactory, directory: Path) -> None:
    """Items that are enqueued after a cut tail follow the recovered ones, and no others come out."""
    queue = open_queue()
    put_each(queue, digits(20))
    end = queue.stats().log_bytes
    crash(queue)
    os.truncate(log_file(directory), end - 5)
    with open_queue() as queue:
        put_each(queue, digits(20, 40))
    assert dequeue_each(open_queue(), 40) == [*digits(19), *digits(20, 40), None]

"""``check``: the inspection of a state and of its blocks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import CorruptionError, PersistentQueue, Producer, QueueNotFoundError, check, repair
from persistentqueue.core.block import BLOCK_HEADER_BYTES, encode_block
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.core.operations import (
    Checkpoint,
    ExtentRow,
    SegmentRow,
    encode_transaction,
)
from persistentqueue.core.state import State
from persistentqueue.interprocess.multi_writer import PartWriter, publish_parts
from persistentqueue.recovery.check import _check_state
from persistentqueue.storage.log_reader import read_log
from persistentqueue.storage.segment import Segment
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.disks import call_on, using_disk
from tests.support.queues import crash, drain, flip, log_file, put, put_each, segment_files
from tests.unit.storage.test_log import forge_log

SALT = 77
EMPTY = Checkpoint(0, 0, 1, 0, 0, [], [], [], [])


def test_state_that_does_not_add_up() -> None:
    """The inspection reports each broken invariant of the state."""
    row = ExtentRow(0, 4, 1, 64, 100, 0, 4, 100)
    state = State.restore(EMPTY._replace(next_sequence=4, segments=[SegmentRow(1, 1, 1, 164, 4)], extents=[row]))
    assert list(_check_state(state)) == []
    state.extents[0].live = 3
    assert len(list(_check_state(state))) == 3
    state.extents[0].live = 4
    state.extents.append(state.extents[0])
    problems = list(_check_state(state))
    assert any("overlaps" in problem for problem in problems)
    assert any("8 live" in problem for problem in problems)
    state.extents.pop()
    state.gone.frontier = 4
    assert any("0 items that are not gone" in problem for problem in _check_state(state))


def test_check_lists_the_inbox_few_times(open_queue: QueueFactory, directory: Path) -> None:
    """A check lists the inbox as often for many published files as for one."""
    open_queue().close()
    listings: list[str] = []

    def listdir(path: str) -> list[str]:
        listings.append(path)
        return DISK.listdir(path)

    counts: list[int] = []
    with Producer(directory) as producer:
        for published in (1, 30):
            for _ in range(published):
                producer.enqueue(b"item")
                producer.flush()
            listings.clear()
            report = call_on(replace(DISK, listdir=listdir), check, directory)
            assert (report.ok, report.published) == (True, sum((1, 30)[: len(counts) + 1]))
            counts.append(len(listings))
    assert counts[0] == counts[1]


@pytest.mark.damages
def test_check_counts_items(open_queue: QueueFactory, directory: Path) -> None:
    """An extent that counts more items than its blocks hold is reported as a problem."""
    path = directory.parent / "forged"
    segment_row = SegmentRow(1, SALT, 1000, 200, 2)
    blocks = encode_block([b"a", b"b"], SALT, HEADER_BYTES, 0, 0)
    extent = ExtentRow(0, 3, 1, HEADER_BYTES, blocks.length_bytes, 0, 3, 100)
    forge_log(path, encode_transaction([EMPTY._replace(next_sequence=3, segments=[segment_row], extents=[extent])]))
    (path / "data").mkdir()
    segment = Segment.create(DISK, str(path / "data" / "000000000001.seg"), 1, 1000, salt=SALT)
    segment.write(blocks.buffers, blocks.length_bytes, 2)
    segment.close()
    assert any("expected 3 items, found 2" in problem for problem in check(path).problems)
    assert BLOCK_HEADER_BYTES == 44


@pytest.mark.damages
@pytest.mark.parametrize("inline_bytes", [0, 4096])
def test_check_reads_on_behind_damage(open_queue: QueueFactory, directory: Path, inline_bytes: int) -> None:
    """Each damaged block is a problem of its own, with an intact or a damaged header. The items of all others count."""
    queue = open_queue(inline_bytes=inline_bytes)
    put_each(queue, [b"%d" % number * 50 for number in range(10)])
    with queue.transaction() as session:
        session.dequeue_many(2)
    queue.close()
    (segment,) = segment_files(directory)
    content = segment.read_bytes()
    places = [content.index(b"%d" % number * 50) for number in (1, 3, 6, 9)]
    for place in places[:3]:
        flip(segment, place + 5)
    flip(segment, places[3] - 30)  # in the header
    report = check(directory.parent, directory.name)
    assert [str(segment) in problem for problem in report.problems] == [True] * 4
    assert report.items == 5  # ten without the two that are consumed, and without three that are damaged


def test_deleted_meanwhile(open_queue: QueueFactory, directory: Path) -> None:
    """A queue that is deleted during the call is no queue any more."""
    open_queue().close()
    looks = 0

    def listdir(path: str) -> list[str]:
        nonlocal looks
        if path.endswith("/log"):
            looks += 1
            if looks > 1:
                raise FileNotFoundError(path)
        return DISK.listdir(path)

    with using_disk(replace(DISK, listdir=listdir)), pytest.raises(QueueNotFoundError, match="no queue here to check"):
        check(directory)


@pytest.mark.damages
def test_a_change_of_the_owner_is_no_problem(open_queue: QueueFactory, directory: Path) -> None:
    """A segment that its owner deletes between the reading of the log and that of the segment is not missing. Damage
    that stays is a problem, also of an open queue, and is read twice."""
    queue = open_queue(segment_bytes=4096, inline_bytes=0)
    put_each(queue, [b"%d" % number * 900 for number in range(20)])
    first = segment_files(directory)[0]
    consumed: list[list[bytes]] = []

    def opened(path: str, flags: int, mode: int) -> int:
        if path == str(first) and not consumed:
            consumed.append(drain(queue)[:10])
            queue.trim()
            assert not first.exists()
        return DISK.open(path, flags, mode)

    report = call_on(replace(DISK, open=opened), check, directory)
    assert consumed and report.problems == ()
    put_each(queue, [b"damaged"])
    (segment,) = (file for file in segment_files(directory) if b"damaged" in file.read_bytes())
    flip(segment, segment.read_bytes().index(b"damaged"))
    reads: list[str] = []

    def counted(path: str, flags: int, mode: int) -> int:
        reads.append(path)
        return DISK.open(path, flags, mode)

    assert len(call_on(replace(DISK, open=counted), check, directory).problems) == 1
    assert reads.count(str(segment)) == 2
    queue.close()


@pytest.mark.parametrize("lives", [1, 2])
def test_an_owner_that_closes_meanwhile(open_queue: QueueFactory, directory: Path, lives: int) -> None:
    """A change of an owner that closes the queue during the check is no problem. The owner may also have opened it
    meanwhile."""
    queues = [open_queue(segment_bytes=4096, inline_bytes=0)]
    put_each(queues[0], [b"%d" % number * 900 for number in range(20)])
    first = segment_files(directory)[0]
    if lives == 2:
        queues.pop().close()

    def opened(path: str, flags: int, mode: int) -> int:
        if path == str(first) and first.exists():
            queue = queues.pop() if queues else call_on(DISK, PersistentQueue, directory)
            drain(queue)
            queue.trim()
            queue.close()
        return DISK.open(path, flags, mode)

    report = call_on(replace(DISK, open=opened), check, directory)
    assert not first.exists() and report.problems == ()


@pytest.mark.damages
@pytest.mark.parametrize("length", ["at a frame", "in a frame"])
def test_a_log_that_was_cut(open_queue: QueueFactory, directory: Path, length: str) -> None:
    """A log that is shorter than it was made is a problem: flushes may be lost."""
    queue = open_queue()
    put_each(queue, [b"%d" % number for number in range(10)])
    crash(queue)
    log = log_file(directory)
    ends = [frame.end for frame in read_log(DISK, str(log)).frames]
    os.truncate(log, ends[5] + 10 * (length == "in a frame"))
    report = check(directory)
    (problem,) = report.problems
    assert f"{log}: damaged at offset {log.stat().st_size}: expected a log of 1048576 bytes" in problem
    assert (report.items, report.transactions, report.torn_bytes > 0) == (5, 5, length == "in a frame")
    repaired = repair(directory)
    assert (repaired.problems, repaired.items, repaired.kept) == ((problem,), 5, (f"log/{log.name}.damaged",))
    assert check(directory).ok


def test_the_log_of_a_living_owner_is_never_short(open_queue: QueueFactory, directory: Path) -> None:
    """At each step of an owner that trims, and makes its log longer and shorter, its log has the length that it was
    made with."""
    checked: list[str] = []

    def failpoint(name: str) -> None:
        if log_exists():
            assert check(directory).problems == ()
            checked.append(name)

    def ftruncate(fd: int, size_bytes: int) -> None:
        failpoint("truncate")
        DISK.ftruncate(fd, size_bytes)
        failpoint("truncate")

    def log_exists() -> bool:
        return any((directory / "log").glob("*.log"))

    queue = open_queue(disk=replace(DISK, failpoint=failpoint, ftruncate=ftruncate), log_bytes=4096, memory_bytes=2**20)
    for number in range(200):
        put(queue, b"%d" % number * 100)
    queue.trim()
    drain(queue)
    queue.close()
    assert {"trim.2 write generation", "trim.4 rename generation", "trim.6 retire", "truncate"} <= set(checked)


@pytest.mark.damages
@pytest.mark.parametrize("damage", ["longer", "shorter", "renamed"])
def test_what_its_owner_would_not_adopt(open_queue: QueueFactory, directory: Path, damage: str) -> None:
    """A part of another length than its manifest says is a problem, and so is a published file with another name. The
    owner adopts neither."""
    open_queue().close()
    writer = PartWriter(directory)
    writer.write([b"a", b"b"])
    publish_parts(directory, None, [part for part in [writer.end()] if part is not None])
    inbox = directory / "inbox"
    (part,), (manifest,) = inbox.glob("*.part"), inbox.glob("*.seg")
    assert (check(directory).ok, check(directory).published) == (True, 2)
    if damage == "renamed":
        manifest.rename(manifest.with_name(f"{1:016x}-{2:016x}.seg"))
    else:
        os.truncate(part, part.stat().st_size + (1 if damage == "longer" else -1))
    report = check(directory)
    assert len(report.problems) == 1 and report.published == 0
    with open_queue() as queue, pytest.raises(CorruptionError), queue.session() as session:
        session.dequeue_many(2)

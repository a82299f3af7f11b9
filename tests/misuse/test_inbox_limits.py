"""Timeouts and limits of a queue whose inbox is full of publications: both hold, however many there are."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import (
    CorruptionError,
    Encryption,
    Options,
    PersistentQueue,
    Producer,
    QueueFullError,
    check,
    delete_queue,
    repair,
)
from persistentqueue.core.checksum import crc32
from persistentqueue.engine.inbox import LOOK_NAMES, STEP_NAMES
from persistentqueue.interprocess.multi_writer import PartWriter, publish_parts
from persistentqueue.runtime import open_queue as runtime_of_queue
from persistentqueue.storage.inbox_limits import read_limits
from persistentqueue.storage.locations import write_fields
from persistentqueue.storage.publication import Part
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.limits import KIB, MIB
from tests.support.queues import bytes_of, drain

PUBLISHED = 2 * LOOK_NAMES + STEP_NAMES


def publish_many(directory: Path, count: int) -> None:
    """Make ``count`` flushes of one producer, without their syncs."""
    with call_on(replace(DISK, fdatasync=lambda fd: None, fsync=lambda fd: None), Producer, directory) as producer:
        for number in range(count):
            producer.enqueue(b"%d" % number)
            producer.flush()


def counting() -> tuple[Disk, list[str]]:
    """Return a disk, and the list of the files that it renames out of an inbox."""
    renamed: list[str] = []

    def rename(source: str, target: str) -> None:
        if source.endswith(".seg"):
            renamed.append(source)
        DISK.rename(source, target)

    return replace(DISK, rename=rename), renamed


# --- row 24: what waits in the inbox, and how long that takes --------------------------------------------------------


@pytest.mark.unwatched
def test_row_24_who_does_not_wait_adopts_a_bounded_part(open_queue: QueueFactory, directory: Path) -> None:
    """``dequeue()`` adopts a bounded part of the publications, a flush adopts another, and all items come in order."""
    disk, renamed = counting()
    queue = open_queue(disk=disk)
    publish_many(directory, PUBLISHED)
    found: list[bytes] = []
    with queue.session() as session:
        item = session.dequeue()
        assert item == b"0" and 0 < len(renamed) <= LOOK_NAMES
        found.append(item)
        before = len(renamed)
        session.flush()
        assert len(renamed) - before <= LOOK_NAMES
    while items := drain(queue):
        found += items
    assert found == [b"%d" % number for number in range(PUBLISHED)]
    assert len(renamed) == PUBLISHED


@pytest.mark.unwatched
@pytest.mark.parametrize("timeout", [60.0, None])
def test_row_24_an_item_is_returned_once_it_is_there(
    open_queue: QueueFactory, directory: Path, timeout: float | None
) -> None:
    """A waiting ``dequeue`` returns the first item after one step of the adoption, and leaves the rest to later
    calls."""
    disk, renamed = counting()
    queue = open_queue(disk=disk)
    publish_many(directory, PUBLISHED)
    with queue.transaction() as session:
        assert session.dequeue(timeout=timeout) == b"0"
        assert 0 < len(renamed) <= STEP_NAMES
    for _ in range(8):
        drain(queue)
    assert len(renamed) == PUBLISHED


@pytest.mark.damages
def test_row_24_a_time_out_ends_the_adoption(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adoption ends with the step in which the timeout is over. The next call goes on with the names that were listed
    then."""
    now, listed = [0.0], [0]

    def lstat(path: str) -> os.stat_result:
        if path.endswith(".seg"):
            now[0] += 0.05 / STEP_NAMES  # by this clock a step takes half of the timeout
        return DISK.lstat(path)

    def listdir(path: str) -> list[str]:
        listed[0] += path.endswith("inbox")
        return DISK.listdir(path)

    disk, renamed = counting()
    queue = open_queue(disk=replace(disk, lstat=lstat, listdir=listdir))
    monkeypatch.setattr(runtime_of_queue, "_now", lambda: now[0])
    for number in range(PUBLISHED):
        (directory / "inbox" / f"{1 + number:016x}-{number:016x}.seg").touch()
    publish_many(directory, 1)
    store = queue._open()._store
    with queue.transaction() as session:
        for call in range(1, 4):
            began = now[0]
            with pytest.raises(CorruptionError):
                session.dequeue(timeout=0.1)
            assert now[0] - began <= 2 * 0.1
            assert len(renamed) <= 3 * STEP_NAMES * call
        assert listed[0] <= 4 and store.inbox.left
        store.inbox.damage.clear()
        found = None
        for _ in range(PUBLISHED // STEP_NAMES + 1):
            with suppress(CorruptionError):
                found = found or session.dequeue(timeout=0.1)
            store.inbox.damage.clear()
        assert found == b"0"
    assert listed[0] <= 6


@pytest.mark.parametrize("limit", ["max_items", "max_bytes"])
def test_row_24_what_waits_is_limited(open_queue: QueueFactory, directory: Path, limit: str) -> None:
    """If no owner adopts, a producer is refused at the limits of the queue, and keeps its items. It goes on after the
    publications were consumed, or without limits."""
    open_queue(**{limit: 10 if limit == "max_items" else 10 * 149}).close()
    with Producer(directory) as producer:
        for _ in range(10):
            producer.enqueue(b"x" * 101)
            producer.flush()
        producer.enqueue(b"last")
        for _ in range(2):
            with pytest.raises(QueueFullError, match=f"{limit}=") as caught:
                producer.flush()
            assert not caught.value.lasting and producer.pending == 1
        queue = open_queue(**{limit: 10 if limit == "max_items" else 10 * 149})
        assert len(drain(queue)) == 10
        assert producer.flush()
        assert drain(queue) == [b"last"]
        producer.enqueue_many([b"x" * 151] * 11)
        with pytest.raises(QueueFullError) as caught:
            producer.flush()
        assert caught.value.lasting
        queue.close()
        open_queue().close()
        assert producer.flush()
    assert not (directory / "queue.limits").exists()


@pytest.mark.parametrize("before", [{"max_items": 10_000}, {"max_bytes": 2**30}])
def test_limits_that_an_opening_has_lowered_count_at_once(
    open_queue: QueueFactory, directory: Path, before: dict[str, int]
) -> None:
    """A producer that has found much room follows the limits of a later opening at its next flush. It publishes nothing
    that its owner could never adopt."""
    open_queue(**before).close()
    with Producer(directory) as producer:
        producer.enqueue(b"first")
        assert producer.flush()
        queue = open_queue(max_items=5)
        producer.enqueue_many([b"x"] * 100)
        with pytest.raises(QueueFullError, match="max_items=5") as caught:
            producer.flush()
        assert caught.value.lasting
        producer.rollback()
        assert drain(queue) == [b"first"]
        producer.enqueue(b"second")
        assert producer.flush()
        assert drain(queue) == [b"second"]


@pytest.mark.parametrize(
    ("limits", "encrypts", "items"),
    [
        ({"max_bytes": 1000}, True, [bytes(940)]),
        ({"max_bytes": 44 + 4 * 1000 + 1000 * 1000}, False, [bytes(1000)] * 1000),
        ({"max_disk_bytes": 6 * 1024 * 1024}, False, [bytes(2_500_000)]),
        ({"max_disk_bytes": 16 * 1024 * 1024}, False, [bytes(1024)] * 13_000),
    ],
    ids=["envelopes", "several blocks", "the reserve", "spilled before"],
)
def test_row_24_what_never_fits_is_not_published(
    open_queue: QueueFactory, directory: Path, limits: dict[str, int], encrypts: bool, items: list[bytes]
) -> None:
    """A producer refuses what its owner could never adopt, as a session does. The next flush is adopted."""
    encryption = Encryption("k", lambda _: bytes(32)) if encrypts else None
    queue = open_queue(encryption=encryption, **limits)
    with Producer(directory, encryption=encryption) as producer, queue.session() as session:
        for flushes in (producer, session):
            with pytest.raises(QueueFullError) as caught:
                flushes.enqueue_many(items)
                flushes.flush()
            if flushes is producer:
                assert caught.value.lasting
            flushes.rollback()
        producer.enqueue(b"small")
        assert producer.flush()
        assert session.dequeue(timeout=10.0) == b"small"
        session.flush()


def test_row_24_parts_that_never_fit_are_not_published(open_queue: QueueFactory, directory: Path) -> None:
    """Parts that are small enough for ``max_disk_bytes`` one by one are refused together."""
    queue, parts = open_queue(max_disk_bytes=16 * 1024 * 1024), list[Part]()
    for _ in range(4):
        writer = PartWriter(directory)
        writer.write([bytes(1024 * 1024)] * 2)
        part = writer.end()
        assert part is not None
        parts.append(part)
    with pytest.raises(QueueFullError, match="max_disk_bytes=") as caught:
        publish_parts(directory, None, parts * 2)
    assert caught.value.lasting
    assert publish_parts(directory, None, parts)
    assert len(drain(queue)) == 8


def test_an_opening_can_keep_the_limits(open_queue: QueueFactory, directory: Path) -> None:
    """With ``keep_limits``, an opening has the limits that the last one recorded, and its log fits into them. They
    stay recorded, also behind a repair. Numbers that no option can be are no limits."""
    limits = {"max_items": 3, "max_bytes": 1000, "max_disk_bytes": 6 * 4096}
    open_queue(log_bytes=4096, **limits).close()
    recorded = read_limits(DISK, str(directory))
    assert recorded == {**limits, "log_bytes": 4096}
    repair(directory)
    for _ in range(2):
        with open_queue(keep_limits=True) as queue, queue.session() as session:
            session.enqueue_many([b"x"] * 4)
            with pytest.raises(QueueFullError, match="max_items=3"):
                session.flush()
            settings = queue._open()._store.settings
            assert (settings.log_bytes, settings.max_bytes, settings.max_disk_bytes) == (4096, 1000, 6 * 4096)
            session.rollback()
        assert read_limits(DISK, str(directory)) == recorded
    for damaged in ({"max_items": 0, "max_bytes": -1, "max_disk_bytes": 2**70}, {"max_items": True}):
        write_fields(DISK, str(directory / "queue.limits"), {"limits": damaged}, 0o644)
        with open_queue(keep_limits=True) as queue:
            assert queue.stats().fill == 0.0
    write_fields(DISK, str(directory / "queue.limits"), {"limits": {"max_disk_bytes": 5 * 4096}}, 0o644)
    with open_queue(keep_limits=True) as queue:  # as an older version recorded it, without the length of the log
        assert queue._open()._store.settings.log_bytes == 4096
    with pytest.raises(ValueError, match="keep_limits keeps the limits of an earlier opening: omit it, or max_bytes"):
        Options(keep_limits=True, max_bytes=1)


def test_a_dead_letter_queue_keeps_its_limits(open_queue: QueueFactory, directory: Path) -> None:
    """A dead-letter queue that is opened by its name keeps the limits that its own opening has recorded."""
    with PersistentQueue(directory.parent, "graves", max_items=1):
        pass
    queue = open_queue(dead_letter="graves")
    with queue.transaction() as session:
        session.enqueue_many([b"one", b"two"])
    with queue.session() as session:
        for item in session.dequeue_many(2):
            session.reject(item, retry=False)
        with pytest.raises(QueueFullError, match="max_items=1"):
            session.flush()
        session.rollback()
    queue.close()
    assert read_limits(DISK, str(directory.parent / "graves"))["max_items"] == 1


@pytest.mark.parametrize("limit", ["max_items", "max_bytes"])
def test_row_24_parts_that_wait_are_limited(open_queue: QueueFactory, directory: Path, limit: str) -> None:
    """A manifest is refused at the limits of the queue; its parts stay, and can be published when there is room."""
    open_queue(**{limit: 10 if limit == "max_items" else 1200}).close()
    parts: list[Part] = []
    for number in range(3):
        writer = PartWriter(directory)
        writer.write([b"%d" % number + b"x" * 100] * 4)
        part = writer.end()
        assert part is not None
        parts.append(part)
    for number, part in enumerate(parts[:2]):
        assert publish_parts(directory, None, [part], ("app", number))
    with pytest.raises(QueueFullError, match=f"{limit}=") as caught:
        publish_parts(directory, None, parts[2:], ("app", 2))
    assert not caught.value.lasting
    queue = open_queue(**{limit: 10 if limit == "max_items" else 1200})
    assert len(drain(queue)) == 8
    assert publish_parts(directory, None, parts[2:], ("app", 2))
    assert drain(queue) == [b"2" + b"x" * 100] * 4


def test_row_24_parts_are_on_the_disk(open_queue: QueueFactory, directory: Path) -> None:
    """A part is not written beyond ``max_disk_bytes``; a part that is dropped leaves its room to the next one."""
    most = 24 * 1024 * 1024
    open_queue(max_disk_bytes=most).close()
    for _ in range(2):
        writer = PartWriter(directory)
        with pytest.raises(QueueFullError, match="max_disk_bytes="):
            for _ in range(40):
                writer.write([b"x" * 1024] * 1024)
                assert bytes_of(directory.rglob("*")) <= most
        writer.drop()


def test_what_is_spilled_is_on_the_disk(open_queue: QueueFactory, directory: Path) -> None:
    """A producer spills nothing beyond ``max_disk_bytes``, and keeps the items before. After a rollback it goes on."""
    most = 16 * 1024 * 1024
    queue = open_queue(max_disk_bytes=most)
    with Producer(directory) as producer:
        before = 0
        with pytest.raises(QueueFullError, match="max_disk_bytes=") as caught:
            for _ in range(40):
                producer.enqueue_many([bytes(1024)] * 1024)
                before = producer.pending
        assert caught.value.lasting and producer.pending >= before > 4096
        assert bytes_of(directory.rglob("*")) <= most
        with pytest.raises(QueueFullError, match="max_disk_bytes="):
            producer.enqueue(bytes(5 * 1024 * 1024))
        producer.rollback()
        producer.enqueue(b"small")
        assert producer.flush()
    assert drain(queue) == [b"small"]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_producer_knows_the_markers(open_queue: QueueFactory, directory: Path, is_open: bool) -> None:
    """If markers leave no room in ``max_disk_bytes``, the error of a producer says so, and is lasting. If items and
    markers do, a dequeue may help."""
    queue = open_queue(max_disk_bytes=400 * KIB, log_bytes=16 * KIB, sync=False)
    with queue.session() as session, Producer(directory) as producer:
        session.enqueue(bytes(160 * KIB))
        session.flush()
        producer.enqueue(bytes(160 * KIB))
        with pytest.raises(QueueFullError, match=r"max_disk_bytes=.*: dequeue, then flush again") as caught:
            producer.flush()
        assert not caught.value.lasting
        for number in range(700):
            session.flush(marker=(f"{number:0100}", 1))
        if not is_open:
            queue.close()
        with pytest.raises(QueueFullError, match="the queue's 700 markers leave no room for items") as caught:
            producer.flush()
        assert caught.value.lasting
        producer.rollback()


@pytest.mark.damages
def test_a_producer_knows_the_files_that_were_set_aside(open_queue: QueueFactory, directory: Path) -> None:
    """A producer's error names files that were set aside if only they leave no room."""
    open_queue(max_disk_bytes=8 * MIB).close()
    (directory / "data" / "9.damaged").write_bytes(bytes(6 * MIB))
    with Producer(directory) as producer:
        producer.enqueue(bytes(MIB))
        with pytest.raises(QueueFullError, match=r"files that were set aside \(.damaged\) take .* move them") as caught:
            producer.flush()
        assert caught.value.lasting

        producer.rollback()


def test_row_24_the_inbox_is_on_the_disk(open_queue: QueueFactory, directory: Path) -> None:
    """Publications count for ``max_disk_bytes`` with all other files. A flush beyond it is refused, also if a part of
    it was spilled, however many producers there are."""
    most = 8 * 1024 * 1024
    open_queue(max_disk_bytes=most).close()
    published, refused = 0, list[str]()
    for number in range(40):
        with Producer(directory) as producer:
            try:
                producer.enqueue_many([b"x" * 1024] * (6000 if number % 4 == 3 else 600))
                published += producer.flush()
            except QueueFullError as error:
                refused.append(error.limit)
            producer.rollback()
        sizes = bytes_of(directory.rglob("*"))
        assert sizes <= most
    assert published and set(refused) == {"max_disk_bytes"}
    delete_queue(directory)
    assert not (directory / "queue.limits").exists()


@pytest.mark.parametrize("text", [b"", b"[" * 5000, b"\xff\n00000000\n", b"{}\n%08x\n" % crc32(b"{}")])
def test_row_24_damaged_limits_are_none(open_queue: QueueFactory, directory: Path, text: bytes) -> None:
    """A record of the limits that cannot be read does not stop a producer, and the next opening writes it anew."""
    open_queue(max_items=1).close()
    (directory / "queue.limits").write_bytes(text)
    assert read_limits(DISK, str(directory)) == {}
    with Producer(directory) as producer:
        producer.enqueue_many([b"a", b"b"])
        assert producer.flush()
    queue = open_queue(max_items=5)
    assert read_limits(DISK, str(directory)) == {"max_items": 5, "log_bytes": Options().log_bytes}
    assert drain(queue) == [b"a", b"b"]


@pytest.mark.damages
@pytest.mark.parametrize("text", [b"garbage", b"{}\n%08x\n" % crc32(b"{}")])
def test_damaged_limits_are_a_problem(open_queue: QueueFactory, directory: Path, text: bytes) -> None:
    """``check`` and ``repair`` report a record of the limits that cannot be read, with what helps: an opening, also one
    without limits. Then no problem is left."""
    limits: dict[str, int]
    for limits in ({"max_items": 1}, {}):
        open_queue(max_items=1).close()
        (directory / "queue.limits").write_bytes(text)
        (problem,) = check(directory).problems
        assert "queue.limits: damaged" in problem and "until the program of the queue opens it" in problem
        assert repair(directory).problems == (problem,)
        open_queue(**limits).close()
        assert read_limits(DISK, str(directory)).get("max_items") == limits.get("max_items")
        assert check(directory).ok


def test_limits_that_this_process_may_not_read(open_queue: QueueFactory, directory: Path) -> None:
    """A record of the limits that this process may not read is no problem of the queue."""

    def refusing(path: str, flags: int, mode: int) -> int:
        if path.endswith("queue.limits"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return DISK.open(path, flags, mode)

    open_queue(max_items=1).close()
    assert call_on(replace(DISK, open=refusing), check, directory).ok

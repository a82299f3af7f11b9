"""Views: a queue is read from outside, with or without an owner, and nothing on the disk shows it."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pytest

from persistentqueue import (
    ClosedError,
    CorruptionError,
    Encryption,
    InvalidNameError,
    PathDeniedError,
    PersistentQueue,
    Producer,
    QueueNotFoundError,
    SubscriptionNotFoundError,
    View,
    ViewedItem,
    WrongKeyError,
    connect,
    delete_queue,
    move_data,
)
from persistentqueue.core.block import BLOCK_MAGIC
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.core.intervals import Run
from persistentqueue.interprocess import snapshot_view
from persistentqueue.interprocess.splits import Split, plan
from persistentqueue.recovery.replay import Recovered
from persistentqueue.runtime.maintenance import Maintenance
from persistentqueue.storage.locations import Places
from persistentqueue.storage.lock import is_held, read_owner
from persistentqueue.system import files
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.durability.test_processes import Child
from tests.support.disks import call_on
from tests.support.queues import crash, drain, flip, put, put_each, segment_files
from tests.unit.engine.test_two_phase import move
from tests.unit.recovery.test_in_doubt import in_doubt


class Entry(NamedTuple):
    """A file or directory as it is on the disk."""

    size_bytes: int
    mtime_ns: int
    mode: int
    inode: int
    content: bytes


def entries(root: Path) -> dict[str, Entry]:
    """Return all files and directories below ``root``, with every byte."""
    found = {}
    for directory, names, others in os.walk(root):
        for name in [*names, *others]:
            path = Path(directory, name)
            stat = path.lstat()
            content = path.read_bytes() if name in others else b""
            found[str(path)] = Entry(stat.st_size, stat.st_mtime_ns, stat.st_mode, stat.st_ino, content)
    return found


def data_of(found: list[ViewedItem] | Iterator[ViewedItem]) -> list[bytes]:
    """Return the data of the items."""
    return [item.data for item in found]


def items(count: int, length_bytes: int = 0) -> list[bytes]:
    return [b"%d" % number + bytes(length_bytes) for number in range(count)]


def fill(queue: PersistentQueue) -> None:
    """Put items into some segments, by large and small flushes, and consume some of them out of order."""
    for start in range(0, 600, 60):
        put(queue, *items(600, 1000)[start : start + 60])
    put_each(queue, [b"small %d" % number for number in range(10)])
    with queue.session() as slow, queue.session() as quick:
        slow.dequeue_many(5)
        quick.dequeue_many(200)
        quick.flush()
        slow.rollback()


def test_a_snapshot_agrees_with_the_owner(open_queue: QueueFactory, directory: Path) -> None:
    """A snapshot agrees with the owner's ``stats``, and for each segment with its ``explain``."""
    queue = open_queue(segment_bytes=100_000, pool_max_bytes=200_000)
    fill(queue)
    queue.trim()
    put(queue, b"last")
    seen, stats = View(directory).look(), queue.stats()
    same: tuple[str, ...] = (
        "enqueued",
        "dequeued",
        "live_bytes",
        "disk_bytes",
        "data_bytes",
        "log_bytes",
        "log_capacity_bytes",
    )
    same += ("spare_bytes", "pool_files", "pool_bytes", "generation", "published")
    assert {name: getattr(seen, name) for name in same} == {name: getattr(stats, name) for name in same}
    assert seen.pool_files > 0
    assert seen.depth == stats.ready == 411
    assert seen.identity == queue.identity
    assert (seen.directory, seen.data_path) == (str(directory), queue.data_path)
    uses = {use.number: use for use in queue.explain()}
    for segment in seen.segments:
        use = uses[segment.number]
        assert segment[1:4] == (use.size_bytes, use.live_bytes, use.live)
        assert segment.left == (("", use.live),)
        assert segment.is_youngest == use.is_current
    assert len(seen.segments) == len(uses) > 3


def test_the_view_of_an_open_queue_is_of_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view of an open queue stays with its directory when the process changes its own; it outlives the queue."""
    monkeypatch.chdir(tmp_path)
    with PersistentQueue("queues", "orders") as queue:
        put(queue, b"a")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        view = queue.view()
        assert data_of(view.peek()) == [b"a"]
    assert view.look().is_sealed
    with pytest.raises(ClosedError):
        queue.view()


def test_holes_and_what_was_overtaken(open_queue: QueueFactory, directory: Path) -> None:
    """A snapshot has the runs that are left, and counts those items as overtaken behind which others were consumed."""
    queue = open_queue()
    view = View(directory)
    assert view.look().runs == ()
    assert (view.look().depth, view.look().gaps, view.look().oldest_ns) == (0, 0, None)
    put(queue, *items(10))
    before = view.look()
    assert (before.runs, before.overtaken, before.gaps) == (((0, 10),), 0, 0)
    with queue.session() as slow, queue.session() as quick:
        slow.dequeue_many(2)
        quick.dequeue_many(3)
        quick.flush()
        seen = view.look()
        assert (seen.runs, seen.overtaken, seen.gaps, seen.depth) == (((0, 2), (5, 5)), 2, 1, 7)
        assert seen.consumed_since(before) == [(2, 3)]
        quick.dequeue_many(5)
        quick.flush()
        later = view.look()
        assert (later.runs, later.overtaken, later.gaps) == (((0, 2),), 2, 1)
        assert later.consumed_since(before) == [(2, 8)]
        assert later.consumed_since(seen) == [(5, 5)]
        assert before.consumed_since(before) == []
        slow.rollback()


def test_the_oldest_item_has_the_time_of_its_block(open_queue: QueueFactory, directory: Path) -> None:
    """The oldest item has the time of its flush; when it is consumed, the next item is the oldest."""
    queue = open_queue()
    view = View(directory)
    begin = DISK.time_ns()
    put(queue, b"a")
    between = DISK.time_ns()
    put(queue, b"b")
    end = DISK.time_ns()
    first = view.look().oldest_ns
    assert first is not None
    assert begin <= first <= between
    with queue.transaction() as session:
        session.dequeue()
    second = view.look().oldest_ns
    assert second is not None
    assert between <= second <= end
    assert view.times_of([0, 1, 7]) == {1: second}


def test_the_oldest_item_after_a_restore(open_queue: QueueFactory, directory: Path, tmp_path: Path) -> None:
    """After a backup was restored, a sequence may be another item: the view reads its time again."""
    view, backup = View(directory), tmp_path / "backup"
    open_queue().close()
    shutil.copytree(directory, backup)
    queue = open_queue()
    put(queue, b"before")
    before_ns = view.look().oldest_ns
    queue.close()
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)
    put(open_queue(), b"behind")
    seen = view.look()
    assert seen.runs == ((0, 1),) and seen.oldest_ns == View(directory).look().oldest_ns != before_ns


def test_a_file_that_is_missing_has_no_size(open_queue: QueueFactory, directory: Path) -> None:
    """If a segment file is missing after a crash, its size is 0, and the log has all items that were flushed."""
    queue = open_queue()
    put(queue, b"a")
    crash(queue)
    segment_files(directory)[0].unlink()
    seen = View(directory).look()
    assert [segment.size_bytes for segment in seen.segments] == [0]
    assert data_of(View(directory).browse()) == [b"a"]
    open_queue().close()


def test_a_file_that_was_adopted_and_has_its_old_name(open_queue: QueueFactory, directory: Path) -> None:
    """An adopted file that was not renamed yet is counted, and is read under its old name."""

    def rename(source: str, target: str) -> None:
        if "/inbox/" in source and "/data/" in target:
            raise RuntimeError
        DISK.rename(source, target)

    queue = open_queue(disk=replace(DISK, rename=rename))
    with Producer(directory, create=False) as producer:
        producer.enqueue(b"published")
        producer.flush()
    with queue.session() as session, pytest.raises(RuntimeError):
        session.dequeue()
    seen = View(directory).look()
    assert data_of(View(directory).browse()) == [b"published"]
    assert [segment.live for segment in seen.segments if segment.live] == [1]
    assert min(segment.size_bytes for segment in seen.segments if segment.live) > 0
    crash(queue)
    open_queue().close()


def test_items_are_seen_in_their_order_with_what_the_log_carries(open_queue: QueueFactory, directory: Path) -> None:
    """``browse`` and ``peek`` return the items that are left, on hold or not, with their sequences, and consume
    nothing."""
    queue = open_queue(segment_bytes=100_000)
    fill(queue)
    expected = items(600, 1000)[:5] + items(600, 1000)[205:] + [b"small %d" % number for number in range(10)]
    view = View(directory)
    with queue.session() as session:
        session.dequeue_many(50)
        seen = list(view.browse())
        assert data_of(seen) == expected
        assert [item.sequence for item in seen] == [*range(5), *range(205, 610)]
        assert all(a.time_ns <= b.time_ns for a, b in pairwise(seen))
        session.rollback()
    assert data_of(view.peek(7)) == expected[:7]
    assert view.peek(0) == []
    assert data_of(view.peek()) == expected[:1]
    with pytest.raises(ValueError, match="n must be at least 0, got -1"):
        view.peek(-1)
    assert drain(queue) == expected


def test_subscriptions_have_their_own_view(open_queue: QueueFactory, directory: Path) -> None:
    """A view shows what each subscription has left; without a name, a queue with ``fan_out`` shows what any of them has
    left."""
    queue = open_queue(fan_out=True)
    put(queue, *items(10))
    one, two = queue.subscribe("one"), queue.subscribe("two")
    with one.transaction() as session:
        session.dequeue_many(7)
    with two.transaction() as session:
        session.dequeue_many(2)
    view = View(directory)
    seen = view.look()
    assert (seen.subscriptions, seen.depth, seen.fan_out) == ((("one", 3), ("two", 8)), 8, True)
    assert seen.segments[0].left == (("one", 3), ("two", 8))
    assert data_of(view.browse("one")) == items(10)[7:]
    assert data_of(view.browse("two")) == data_of(view.browse()) == items(10)[2:]
    with pytest.raises(SubscriptionNotFoundError, match="'one', 'two'"):
        view.browse("three")


def test_who_owns_it(open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot shows whether a process owns the queue, which process it is, and whether the queue was closed
    cleanly."""
    queue = open_queue()
    view, lock = View(directory), str(directory / "lock")
    seen = view.look()
    assert (seen.is_owned, seen.is_sealed, seen.owner) == (True, False, read_owner(DISK, lock))
    assert seen.owner is not None
    assert seen.owner.pid == os.getpid()
    queue.close()
    seen = view.look()
    assert (seen.is_owned, seen.is_sealed) == (False, True)
    again = open_queue()
    put(again, b"a")
    crash(again)
    seen = view.look()
    assert (seen.is_owned, seen.is_sealed, seen.transactions) == (False, False, 1)
    (directory / "lock").unlink()
    assert view.look().is_owned is False
    assert view.look().owner is None
    open_queue().close()


def test_locks_that_the_system_shows(tmp_path: Path) -> None:
    """A lock is recognised by its file, or by the process that signed it if the file system shows another device.

    The answer is None if the system shows no locks, or if the owner had another host name: its container hides it.
    """
    path = tmp_path / "lock"
    path.write_text('{"pid": 4711, "host": "here", "since": "now"}')
    shown = tmp_path / "locks"

    def opened(name: str, flags: int, mode: int) -> int:
        return DISK.open(str(shown) if name == "/proc/locks" else name, flags, mode)

    disk = replace(DISK, open=opened, gethostname=lambda: "here")
    assert is_held(disk, str(path)) is None
    stat = path.stat()
    device = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}"
    for line, held in (
        ("", False),
        ("garbage", False),
        (f"1: FLOCK  ADVISORY  WRITE 1 {device}:{stat.st_ino} 0 EOF", True),
        (f"1: FLOCK  ADVISORY  WRITE 1 {device}:{stat.st_ino + 1} 0 EOF", False),
        (f"1: POSIX  ADVISORY  WRITE 1 {device}:{stat.st_ino} 0 EOF", False),
        (f"1: FLOCK  ADVISORY  WRITE 1 ff:ff:{stat.st_ino} 0 EOF", False),
        (f"1: FLOCK  ADVISORY  WRITE 4711 ff:ff:{stat.st_ino} 0 EOF", True),
    ):
        shown.write_text(f"{line}\n")
        assert is_held(disk, str(path)) is held, line
        elsewhere = replace(disk, gethostname=lambda: "there")
        assert is_held(elsewhere, str(path)) is (held or None), line
    assert is_held(disk, str(tmp_path / "nothing")) is False


def test_a_lock_that_slips_through_is_seen(tmp_path: Path) -> None:
    """The system shows locks page by page, so a lock that one listing lacks is held if the next listing has it."""
    path, shown = tmp_path / "lock", tmp_path / "locks"
    path.touch()
    stat = path.stat()
    line = f"1: FLOCK ADVISORY WRITE 1 {os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino} 0 EOF"
    listings = iter(["", line])

    def listed(name: str, flags: int, mode: int) -> int:
        if name == "/proc/locks":
            shown.write_text(next(listings))
            name = str(shown)
        return DISK.open(name, flags, mode)

    assert is_held(replace(DISK, open=listed), str(path)) is True
    assert list(listings) == []


def test_nothing_on_disk_tells_of_a_look(open_queue: QueueFactory, directory: Path, tmp_path: Path) -> None:
    """A look leaves all files and directories as they are, in bytes, sizes and times, whether the queue is owned or has
    crashed."""
    queue = open_queue(segment_bytes=100_000)
    fill(queue)
    with Producer(directory) as producer:
        producer.enqueue(b"published")
        producer.flush()

    def look() -> None:
        before = entries(tmp_path)
        view = View(directory)
        seen = view.look()
        assert seen.published == 1
        assert len(list(view.browse())) == seen.depth == 410
        view.times_of([seen.runs[0][0]])
        assert entries(tmp_path) == before

    look()
    crash(queue)
    (directory / "lock").unlink()
    look()
    shutil.rmtree(directory / "inbox")
    open_queue().close()


def test_a_queue_that_is_not_there(tmp_path: Path) -> None:
    """A look at a queue that does not exist raises an error, and makes nothing."""
    view = View(tmp_path / "nothing")
    assert repr(view) == f"View({str(tmp_path / 'nothing')!r})"
    with pytest.raises(QueueNotFoundError):
        view.look()
    with pytest.raises(InvalidNameError):
        View(tmp_path, "../other")
    assert list(tmp_path.iterdir()) == []


def test_another_queue_of_the_same_name(tmp_path: Path) -> None:
    """The view of a deleted queue does not serve the items of a queue that was made in its place."""
    with PersistentQueue(tmp_path, "a") as queue:
        put(queue, b"old")
    view = View(tmp_path, "a")
    browsing = view.browse()
    delete_queue(tmp_path, "a")
    with PersistentQueue(tmp_path, "a") as queue:
        put(queue, b"new")
        with pytest.raises(QueueNotFoundError, match="another"):
            next(browsing)
        with pytest.raises(QueueNotFoundError, match="another"):
            view.look()
        assert data_of(View(tmp_path, "a").peek()) == [b"new"]


def test_browsing_begins_with_a_sequence(open_queue: QueueFactory, directory: Path) -> None:
    """``browse`` begins with the requested sequence, or with the first one behind it that is left."""
    queue = open_queue(inline_bytes=0)
    put(queue, b"0", b"1", b"2")
    put(queue, b"3", b"4")
    with queue.session() as session:
        assert session.dequeue() == b"0"
        session.flush()
    view, sequences = View(directory), [1, 2, 3, 4]
    for first in range(7):
        found = [item.sequence for item in view.browse(first=first)]
        assert found == [sequence for sequence in sequences if sequence >= first]
    for wrong, error in ((-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="first must be"):
            view.browse(first=wrong)  # type: ignore[arg-type]


def test_what_is_consumed_while_it_is_browsed(open_queue: QueueFactory, directory: Path) -> None:
    """Items that are consumed during a ``browse`` are left out once their file is gone.

    The items that stay come in order, even if they were compacted meanwhile.
    """
    queue = open_queue(segment_bytes=50_000)
    put(queue, b"held")
    for start in range(0, 600, 20):
        put(queue, *items(600, 1000)[start : start + 20])
    browsing = View(directory).browse()
    found = [next(browsing)]
    with queue.session() as slow, queue.session() as quick:
        assert slow.dequeue() == b"held"
        quick.dequeue_many(400)
        quick.flush()
        queue.compact(below=1.0)
        found += list(browsing)
        assert found[0].data == b"held"
        sequences = [item.sequence for item in found]
        assert sequences == sorted(set(sequences))
        assert set(range(401, 601)) <= set(sequences)
        assert all(item.data == items(600, 1000)[item.sequence - 1] for item in found[1:])
        slow.rollback()
    assert len(found) < 601


def test_what_is_moved_while_it_is_browsed(open_queue: QueueFactory, directory: Path, tmp_path: Path) -> None:
    """A ``browse`` finds the segments at their new place if they are moved meanwhile."""
    with open_queue(segment_bytes=50_000) as queue:
        for start in range(0, 200, 20):
            put(queue, *items(200, 1000)[start : start + 20])
    browsing = View(directory).browse()
    found = [next(browsing)]
    move_data(directory, data_path=tmp_path / "media")
    found += browsing
    assert data_of(found) == items(200, 1000)
    assert View(directory).look().data_path == str(tmp_path / "media")


def test_what_is_encrypted_needs_the_key_and_its_age_does_not(open_queue: QueueFactory, directory: Path) -> None:
    """Items of an encrypted queue need the key, or a view of the open queue; depth and ages need no key."""
    encryption = Encryption("key", lambda _: bytes(range(32)))
    queue = open_queue(compression="zstd", encryption=encryption)
    put(queue, *[b"secret" * 100] * 5)
    for view in (View(directory, encryption=encryption), queue.view()):
        assert data_of(view.browse()) == [b"secret" * 100] * 5
    stranger = View(directory)
    seen = stranger.look()
    assert seen.depth == 5
    assert stranger.times_of([0, 3]) == {0: seen.oldest_ns, 3: seen.oldest_ns}
    with pytest.raises(WrongKeyError):
        stranger.peek()
    queue.close()
    queue = open_queue("plain", compression="zstd")
    put(queue, b"a" * 10_000)
    assert data_of(View(directory.parent, "plain").peek()) == data_of(queue.view().peek()) == [b"a" * 10_000]


@pytest.mark.damages
def test_damage_is_told_and_nothing_wrong_is_served(open_queue: QueueFactory, directory: Path) -> None:
    """``browse`` returns the items before a damaged block, then raises an error with its offset.

    The header of a block tells the age of its items, also without its body. If the header is damaged, the age is None.
    """
    with open_queue(segment_bytes=100_000) as queue:
        for start in range(0, 60, 20):
            put(queue, *items(60, 1000)[start : start + 20])
    flip(segment_files(directory)[0], 30_000)
    view = View(directory)
    found: list[ViewedItem] = []
    with pytest.raises(CorruptionError) as damage:
        found.extend(view.browse())
    assert data_of(found) == items(60, 1000)[:20]
    assert damage.value.offset > 0
    assert list(View(directory).times_of([0, 5, 30, 50, 59])) == [0, 5, 30, 50, 59]
    flip(segment_files(directory)[0], HEADER_BYTES + 5)
    seen = View(directory).look()
    assert (seen.depth, seen.oldest_ns) == (60, None)
    assert list(View(directory).times_of([0, 5, 30, 50, 59])) == [30, 50, 59]
    assert View(directory).times_of([0]) == {}


@pytest.mark.damages
def test_what_lies_behind_damage_is_seen_where_that_is_asked_for(open_queue: QueueFactory, directory: Path) -> None:
    """With ``damaged``, ``browse`` goes on behind damage, as the owner does.

    A damaged block costs its own items; a missing file costs all of its items.
    """
    with open_queue(segment_bytes=30_000) as queue:
        for start in range(0, 60, 5):
            put(queue, *items(60, 1000)[start : start + 5])
        with queue.transaction() as session:
            session.dequeue_many(12)
    files = segment_files(directory)
    data = files[0].read_bytes()
    headers = [at for at in range(len(data)) if data.startswith(BLOCK_MAGIC, at)]
    for at in (headers[0] + 5, headers[3] + 5, headers[4] + 100):
        flip(files[0], at)
    files[1].unlink()
    lost: list[Run] = []
    problems: list[CorruptionError] = []

    def damaged(error: CorruptionError, runs: Sequence[Run]) -> None:
        problems.append(error)
        lost.extend(runs)

    found = list(View(directory).browse(damaged=damaged))
    assert [error.offset for error in problems] == [headers[3], headers[4], 0]
    gone = {sequence for first, count in lost for sequence in range(first, first + count)}
    assert lost[:2] == [(15, 5), (20, 5)]
    assert [item.sequence for item in found] == [n for n in range(12, 60) if n not in gone]
    with open_queue() as queue:
        handed_out = []
        while len(queue):
            with suppress(CorruptionError), queue.transaction() as session:
                handed_out += session.dequeue_many(100)
    assert data_of(found) == handed_out == [items(60, 1000)[item.sequence] for item in found]


@pytest.fixture
def gaps(open_queue: QueueFactory, directory: Path) -> Iterator[int]:
    """Make a queue of one block whose items are consumed at every second place; return the number of items."""
    many = 4000
    with open_queue() as queue:
        put(queue, *items(many))
        with queue.session() as kept, queue.session() as consumed:
            for _ in range(many // 2):
                kept.dequeue(), consumed.dequeue()
            consumed.flush()
            kept.rollback()
        queue.trim()  # from now on the block is only in its segment
        yield many


def test_the_first_items_cost_no_more_with_many_gaps(
    gaps: int, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``peek`` plans to read about as many runs as it needs. ``browse`` yields all items, and plans a few times."""
    planned: list[int] = []

    def counting(disk: Disk, places: Places, recovered: Recovered, runs: list[Run]) -> list[Split]:
        planned.append(len(runs))
        return plan(disk, places, recovered, runs)

    monkeypatch.setattr(snapshot_view, "plan", counting)
    view, wanted = View(directory), [item for number, item in enumerate(items(gaps)) if number % 2 == 0]
    assert data_of(view.peek(10)) == wanted[:10]
    assert sum(planned) < 100
    planned.clear()
    assert data_of(view.browse()) == wanted
    assert sum(planned) == gaps // 2
    assert len(planned) < 5


@pytest.mark.damages
def test_a_damaged_block_with_many_gaps_is_told_once(gaps: int, directory: Path) -> None:
    """A damaged block with more gaps than one step of a browse plans is told once, with all that it costs."""
    flip(segment_files(directory)[0], 200)
    told: list[Sequence[Run]] = []
    assert not list(View(directory).browse(damaged=lambda _, runs: told.append(runs)))
    assert told == [[(number, 1) for number in range(0, gaps, 2)]]


@pytest.mark.damages
def test_a_damaged_header_that_nobody_needs_is_passed_over(open_queue: QueueFactory, directory: Path) -> None:
    """A damaged header of a consumed block is passed over, and the items behind it are seen."""
    with open_queue() as queue:
        for n in range(3):
            put(queue, b"%d" % n)
        with queue.transaction() as session:
            session.dequeue_many(2)
    flip(segment_files(directory)[0], 64 + 5)
    assert data_of(View(directory).browse()) == [b"2"]


def test_an_age_that_cannot_be_read_is_none(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a data file cannot be read, its ages are None, and the rest of the snapshot can be seen."""
    with open_queue() as queue:
        put(queue, b"item")

    def refuse(*_: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr("persistentqueue.interprocess.splits.Segment.open_to_read", refuse)
    view = View(directory)
    assert (view.look().depth, view.look().oldest_ns, view.times_of([0])) == (1, None, {})
    with pytest.raises(PermissionError):
        view.peek()


def test_a_part_that_may_not_be_read_is_a_named_error(open_queue: QueueFactory, directory: Path) -> None:
    """If a process may read the log, and not the inbox or a segment, a look or a browse raises ``PathDeniedError`` with
    that path."""
    with open_queue() as queue:
        put(queue, b"item")

    def listdir(path: str) -> list[str]:
        if path.endswith("inbox"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return DISK.listdir(path)

    def opened(path: str, flags: int, mode: int) -> int:
        if path.endswith(".seg"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return DISK.open(path, flags, mode)

    with pytest.raises(PathDeniedError, match="/inbox: Permission denied: change its owner or its mode"):
        call_on(replace(DISK, listdir=listdir), View, directory).look()
    with pytest.raises(PathDeniedError, match=r"\.seg: Permission denied: change its owner or its mode"):
        call_on(replace(DISK, open=opened), View, directory).peek()


def test_arguments_of_the_wrong_type_are_named(open_queue: QueueFactory, directory: Path) -> None:
    """A timeout or a sequence of the wrong type is an error that names it, and never the answer "no owner serves"."""
    open_queue(serve=True)
    view = View(directory)
    for wrong in (True, "1"):
        with pytest.raises(TypeError, match="timeout must be None or a number of seconds"):
            view.connections(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout must be more than 0"):
        view.connections(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a sequence must be a whole number, not 0\.5"):
        view.times_of([0.5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="a sequence must be at least 0"):
        view.times_of([-1])
    assert view.connections(timeout=float("inf")) == []


def test_the_oldest_item_has_an_age_beside_a_busy_consumer(open_queue: QueueFactory, directory: Path) -> None:
    """If the first item is consumed during a look, the snapshot still has the time at which it was written."""
    queue = open_queue()
    put_each(queue, [b"1", b"2", b"3"])
    first_ns = View(directory).look().oldest_ns
    assert first_ns is not None

    def consume() -> int:
        """Consume an item while a view looks, and return the time of the look."""
        with queue.transaction() as session:
            session.dequeue()
        return DISK.time_ns()

    seen = call_on(replace(DISK, time_ns=consume), View, directory).look()
    assert (seen.runs, seen.oldest_ns) == (((0, 3),), first_ns)


def test_the_oldest_item_has_an_age_if_its_file_is_deleted(open_queue: QueueFactory, directory: Path) -> None:
    """If the first item is consumed during a look, and its file deleted, the snapshot is of another look."""
    queue = open_queue(segment_bytes=1 << 20)
    for _ in range(3):
        put_each(queue, [bytes(900_000)])

    times: list[int] = []

    def consume() -> int:
        """Consume the item of the first file while a view looks for the first time."""
        if not times:
            with queue.transaction() as session:
                session.dequeue()
            queue.maintain()
        times.append(DISK.time_ns())
        return times[-1]

    first = directory / "data" / f"{View(directory).look().segments[0].number:012}.seg"
    assert first.exists()
    seen = call_on(replace(DISK, time_ns=consume), View, directory).look()
    assert not first.exists()
    assert (seen.runs, len(times)) == (((1, 2),), 2)
    assert seen.oldest_ns is not None


@pytest.mark.parametrize("decided", [False, True])
def test_a_transaction_in_doubt_is_asked_for(open_queue: QueueFactory, tmp_path: Path, decided: bool) -> None:
    """After a kill within a transaction over two queues, a snapshot has its items if it was decided.

    Otherwise the snapshot is without them, and names the queue that knows the outcome.
    """
    a, _ = in_doubt(open_queue, decided)
    crash(a)
    view = View(tmp_path / "queues", "b")
    seen = view.look()
    assert (seen.in_doubt, seen.depth) == (("", 1) if decided else ("a", 0))
    assert [item.data for item in view.peek()] == [b"1"][: seen.depth]
    for name in "ab":
        open_queue(name)


def test_a_view_shows_a_transaction_over_two_queues_at_once(open_queue: QueueFactory, tmp_path: Path) -> None:
    """A view of each queue shows the transaction when it is committed, also through the owner, and before the queues
    flush again."""
    a, b = open_queue("a"), open_queue("b")
    put(a, b"1", b"2")
    views = [View(tmp_path / "queues", name) for name in "ab"] + [a.view(), b.view()]
    assert [view.look().depth for view in views] == [2, 0, 2, 0]
    for moved in (1, 2):
        move(a, b)
        assert [view.look().depth for view in views] == [2 - moved, moved] * 2
        assert {view.look().in_doubt for view in views} == {""}


def test_a_view_sees_the_decision_behind_the_prepare(open_queue: QueueFactory, tmp_path: Path) -> None:
    """A view that has looked between the prepare and the decision shows the transaction when it is decided."""
    view, seen = View(tmp_path / "queues", "b"), []

    def decide(step: str) -> None:
        """Look just before the decision."""
        if step == "several.3 decide":
            seen.append((view.look().in_doubt, view.look().depth))

    a, b = open_queue("a", disk=replace(DISK, failpoint=decide)), open_queue("b")
    put(a, b"1")
    move(a, b)
    assert seen == [("a", 0)]
    assert (view.look().in_doubt, view.look().depth) == ("", 1)


def test_a_coordinator_that_cannot_be_believed_says_nothing(open_queue: QueueFactory, tmp_path: Path) -> None:
    """If the coordinator is missing, or another queue has its name, a snapshot is without the transaction."""
    a, _ = in_doubt(open_queue, True)
    crash(a)
    queues = tmp_path / "queues"
    (queues / "a").rename(tmp_path / "away")
    assert View(queues, "b").look().in_doubt == "a"
    with PersistentQueue(queues, "a") as other:
        put(other, b"1")
    assert View(queues, "b").look().in_doubt == "a"
    delete_queue(queues, "a")
    (tmp_path / "away").rename(queues / "a")
    assert View(queues, "b").look().in_doubt == ""
    for name in "ab":
        open_queue(name)


def rest_alone() -> None:
    """Turn off maintenance in this process, so that a queue at rest stays as it is."""
    Maintenance.maintain_soon = lambda self: None  # type: ignore[method-assign]


def owner_body(pipe: Connection, path: str, seed: int) -> None:
    """Own the queue until told to end: enqueue numbered items, dequeue, hold, release, compact and trim."""
    rest_alone()
    rng = random.Random(seed)
    number = 0
    with PersistentQueue(path, segment_bytes=60_000, memory_bytes=100_000) as queue, queue.session() as slow:
        put(queue, *(b"%d" % n + bytes(500) for n in range(400)))
        number = 400
        slow.dequeue_many(3)
        pipe.send("begun")
        while not pipe.poll(0):
            with queue.transaction() as session:
                count = rng.randrange(1, 60)
                session.enqueue_many(b"%d" % n + bytes(500) for n in range(number, number + count))
                number += count
            with queue.transaction() as session:
                session.dequeue_many(rng.randrange(0, 60))
            if rng.random() < 0.2:
                queue.compact(below=0.9)
            if rng.random() < 0.1:
                queue.trim()
        pipe.recv()
        pipe.send((number, len(queue)))
        pipe.recv()


def test_beside_another_process_that_works(tmp_path: Path) -> None:
    """Each look is of one moment, and each item is the one with its sequence, while the owner is at work."""
    path = tmp_path / "queue"
    with Child(owner_body, str(path), 7) as child:
        assert child.hear() == "begun"
        view = View(path)
        enqueued = browsed = looks = 0
        while looks < 40 or browsed <= 1000:
            looks += 1
            seen = view.look()
            assert seen.is_owned
            assert seen.owner is not None
            assert seen.owner.pid == child.process.pid
            assert seen.enqueued >= enqueued
            assert seen.depth == seen.enqueued - seen.dequeued == sum(count for _, count in seen.runs)
            enqueued = seen.enqueued
            last = -1
            for item in view.browse():
                assert item.sequence > last
                last = item.sequence
                assert item.data == b"%d" % last + bytes(500)
                browsed += 1
        child.tell("end")
        number, _ = child.hear()
        seen = view.look()
        assert seen.enqueued == number
        before = entries(path)
        assert sum(1 for _ in view.browse()) == view.look().depth
        assert entries(path) == before
        child.tell("close")
        child.finish()
    assert view.look().is_sealed


def crashed_body(pipe: Connection, path: str) -> None:
    """Own the queue until killed."""
    with PersistentQueue(path) as queue:
        put(queue, b"one")
        pipe.send("begun")
        pipe.recv()


def test_an_owner_who_was_killed(tmp_path: Path) -> None:
    """After its owner was killed, a queue is shown as neither owned nor closed, with all flushed items, and without a
    recovery."""
    path = tmp_path / "queue"
    with Child(crashed_body, str(path)) as child:
        assert child.hear() == "begun"
        child.kill()
    before = entries(path)
    seen = View(path).look()
    assert (seen.is_owned, seen.is_sealed, seen.depth) == (False, False, 1)
    assert data_of(View(path).peek()) == [b"one"]
    assert entries(path) == before


def test_who_is_connected(open_queue: QueueFactory, directory: Path) -> None:
    """A view asks an owner that serves for the sessions of other processes. It gets no answer without such an
    owner, and makes no file in both cases."""
    with open_queue(serve=True) as queue:
        put(queue, b"one")
        view, before = View(directory), sorted(os.listdir(directory))
        assert view.connections(timeout=60.0) == []
        assert sorted(os.listdir(directory)) == before
        with connect(directory.parent, directory.name, serve="never") as shared, shared.session("mailer") as session:
            assert session.dequeue() == b"one"
            before = sorted(os.listdir(directory))
            assert [(each.session, each.held) for each in view.connections(timeout=60.0) or []] == [("mailer", 1)]
            session.rollback()
        assert sorted(os.listdir(directory)) == before
        with pytest.raises(ValueError, match="timeout must be more than 0"):
            view.connections(0)
    assert view.connections() is None


def test_a_segment_that_is_cut_meanwhile(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the owner deletes large segments in steps, a ``View`` yields no wrong item and reports no damage."""
    monkeypatch.setattr(files, "UNLINK_STEP_BYTES", 1000)
    items = [b"%d" % number + b"x" * 300 for number in range(200)]
    begun: list[tuple[Iterator[ViewedItem], list[ViewedItem]]] = []
    cuts = 0

    def cut(fd: int, size_bytes: int) -> None:
        nonlocal cuts
        DISK.ftruncate(fd, size_bytes)
        cuts += 1
        for browsing, seen in begun:
            seen.extend(islice(browsing, 1))

    queue = open_queue(segment_bytes=20_000, disk=replace(DISK, ftruncate=cut))
    put_each(queue, items)
    for count in (1, 11, 41):
        browsing = View(directory).browse()
        begun.append((browsing, list(islice(browsing, count))))
    assert drain(queue) == items
    queue.trim()
    assert cuts > 20
    for browsing, seen in begun:
        seen.extend(browsing)
        assert all(each.data == items[each.sequence] for each in seen)
        assert [each.sequence for each in seen] == sorted({each.sequence for each in seen})

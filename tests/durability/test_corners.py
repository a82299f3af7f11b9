"""The corners that no ordinary program reaches: forged files, races, interruptions at the worst moment."""

from __future__ import annotations

import errno
import shutil
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any
from zlib import crc32

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    CorruptionError,
    DiskFullError,
    PersistentQueue,
    QueueLockedError,
)
from persistentqueue import session as session_module
from persistentqueue.core.block import BLOCK_HEADER_BYTES, encode_block
from persistentqueue.core.frame import LOG_MAGIC, SYNCED, encode_frame
from persistentqueue.core.header import HEADER_BYTES, Header, encode_header, seed
from persistentqueue.core.operations import (
    Checkpoint,
    Dequeue,
    Enqueue,
    ExtentRow,
    SegmentCreated,
    SegmentRow,
    encode_transaction,
)
from persistentqueue.core.state import State, StateError
from persistentqueue.recovery.check import _check_state
from persistentqueue.runtime.group_commit import _Member
from persistentqueue.storage import segment_files as segments_module
from persistentqueue.storage.lock import Lock
from persistentqueue.storage.segment import READ_AHEAD_BYTES, Segment
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, put, put_each, segment_files, wait_for
from tests.unit.runtime.test_open_queue import Gate, Interruption

SALT = 77
EMPTY = Checkpoint(0, 0, 1, 0, 0, [], [], [], [])


def forge_log(path: Path, *bodies: bytes, numbers: list[int] | None = None, flags: int = SYNCED) -> None:
    """A queue whose log has these frames, each with a right checksum."""
    (path / "log").mkdir(parents=True)
    data = encode_header(LOG_MAGIC, Header(flags, 1, SALT, 0, 0))
    previous = 0
    for n, body in enumerate(bodies):
        count = struct.unpack_from("<I", body)[0] if body else 0
        number = numbers[n] if numbers else n + 1
        start, checksum = encode_frame(body, SALT, len(data), number, previous, 1 if body else 0, count)
        data += start + body
        previous = checksum
    (path / "log" / "000000000001.log").write_bytes(data + bytes(100))


@pytest.mark.damages
@pytest.mark.parametrize(
    ("bodies", "numbers", "expected"),
    [
        ([b""], None, "a checkpoint"),
        ([encode_transaction([])], None, "a checkpoint"),
        ([encode_transaction([Dequeue(0, 0, 1)])], None, "a checkpoint"),
        ([encode_transaction([EMPTY._replace(frontier=5)])], None, "extents with -5 live items"),
        ([encode_transaction([EMPTY]), encode_transaction([Dequeue(0, 0, 1)])], None, "not consumed"),
        ([encode_transaction([EMPTY]), encode_transaction([EMPTY])], None, "operation of a transaction"),
        ([encode_transaction([EMPTY]), encode_transaction([])], [1, 3], "frame 2"),
    ],
)
def test_forged_logs(tmp_path: Path, bodies: list[bytes], numbers: list[int] | None, expected: str) -> None:
    """A log whose checksums are right and whose content cannot be is refused, naming where."""
    forge_log(tmp_path / "q", *bodies, numbers=numbers)
    with pytest.raises(CorruptionError, match=expected) as caught:
        PersistentQueue(tmp_path / "q")
    assert caught.value.file.endswith("000000000001.log")
    assert caught.value.offset >= HEADER_BYTES


def test_block_of_an_older_attempt_cannot_stand_in(tmp_path: Path) -> None:
    """With ``sync=False``, a valid block that is not the one the frame names ends the log there."""
    path = tmp_path / "q"
    blocks = encode_block([b"old"], SALT, HEADER_BYTES, 0, 0)
    enqueue = Enqueue(0, 1, 1, HEADER_BYTES, blocks.length_bytes, 0, 12345)
    created = SegmentCreated(1, SALT, 1000)
    forge_log(path, encode_transaction([EMPTY]), encode_transaction([created, enqueue]), flags=0)
    (path / "data").mkdir()
    segment = Segment.recreate(DISK, str(path / "data" / "000000000001.seg"), 1, SALT, 1000)
    segment.write(blocks.buffers, blocks.length_bytes, 1)
    segment.close()
    (path / "pool").mkdir()
    with PersistentQueue(path) as queue:
        assert queue.recovery.lost_transactions == 1
        assert drain(queue) == []


@pytest.mark.damages
def test_segments_that_were_swapped(open_queue: QueueFactory, directory: Path) -> None:
    """A segment under another's name is reported, and none of its items is served for the other's."""
    queue = open_queue(segment_bytes=10)
    put_each(queue, [b"a", b"b"])
    queue.close()
    one, two = segment_files(directory)
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    queue = open_queue(memory_bytes=0)
    errors = []
    with queue.session() as session:
        for _ in range(5):
            try:
                assert session.dequeue() is None
            except CorruptionError as error:
                errors.append(str(error))
    assert any("segment 1 with salt" in error for error in errors)
    assert queue.stats().damaged == 2


def forge_header(salt: int, offset: int, count: int, ordinal: int, body_bytes: int) -> bytes:
    """A block header with a right checksum."""
    fields = struct.pack("<4sIIIQQQ", b"PQBk", 1, count, 0, ordinal, body_bytes, 0)
    return fields + struct.pack("<I", crc32(fields, seed(salt, offset)))


@pytest.mark.parametrize(
    ("count", "ordinal", "body_bytes"), [(1, 9, 5), (1, 0, 10_000), (7, 0, 5)], ids=["ordinal", "length", "count"]
)
def test_block_header_outside_its_extent(tmp_path: Path, count: int, ordinal: int, body_bytes: int) -> None:
    """A valid header that does not fit where it stands is damage, and what is behind it is found."""
    segment = Segment.create(DISK, str(tmp_path / "s"), 1, 4096)
    bad = forge_header(segment.salt, HEADER_BYTES, count, ordinal, body_bytes) + bytes(5)
    behind = HEADER_BYTES + len(bad)
    good = encode_block([b"c", b"d"], segment.salt, behind, 1, 0)
    far = encode_block([b"x"], segment.salt, behind + good.length_bytes, 9, 0)
    segment.write([bad, *good.buffers, *far.buffers], len(bad) + good.length_bytes + far.length_bytes, 3)
    end = behind + good.length_bytes
    loaded = segment.load(HEADER_BYTES, 0, end, 3, 0)
    assert (loaded.damage is not None, loaded.next_ordinal, loaded.lost) == (True, 0, 1)
    loaded = segment.load(HEADER_BYTES, 0, end, 3, 1)
    assert (loaded.ordinal, loaded.items, loaded.damage) == (1, [b"c", b"d"], None)
    segment.close()


def test_damage_that_hides_everything_behind_it(tmp_path: Path) -> None:
    """Without a valid header behind the damage, all that is behind it in the extent is lost."""
    segment = Segment.create(DISK, str(tmp_path / "s"), 1, 4096)
    outside = encode_block([b"x"], segment.salt, 200, 9, 0)
    segment.write([bytes(136), *outside.buffers], 136 + outside.length_bytes, 3)
    loaded = segment.load(HEADER_BYTES, 0, 1000, 3, 0)
    assert loaded.lost == 3
    assert segment.load(HEADER_BYTES, 0, 2**60, 3, 0).lost == 3  # without looking at what is not there
    segment.close()


def test_reading_stops_after_enough(open_queue: QueueFactory) -> None:
    """One reading takes about so much, and the next goes on behind it."""
    queue = open_queue(memory_bytes=2 * READ_AHEAD_BYTES)
    items = [bytes([n]) * 200_000 for n in range(12)] + [b"end"]
    put(queue, *items)
    put(queue, *items)
    batches = list(queue._open_queue.store.reader.browse())  # type: ignore[union-attr]
    assert [item for batch in batches for item in batch] == items * 2
    assert all(sum(map(len, batch)) <= READ_AHEAD_BYTES for batch in batches)
    assert 3 < len(batches) < 9


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
    """The limit holds for bytes as it does for other objects, and nothing of the call is buffered."""
    monkeypatch.setattr(session_module, "ITEM_BYTES_MAX", 10)
    monkeypatch.setattr("persistentqueue.core.items.ITEM_BYTES_MAX", 10)
    queue = open_queue()
    with queue.session() as session:
        with pytest.raises(ValueError, match="exceeds the 10"):
            session.enqueue(b"x" * 11)
        with pytest.raises(ValueError, match="of 12 bytes exceeds"):
            session.enqueue_many([b"y", b"x" * 12])
        session.enqueue_many([b"x" * 10] * 2)
        session.flush()
    assert drain(queue) == [b"x" * 10] * 2


def test_log_that_fills_at_the_right_pace_keeps_its_size(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that takes neither few groups nor many stays as long as it is."""
    monkeypatch.setattr("persistentqueue.engine.trim._GROUPS_PER_LOG", (1, 10**6))
    queue = open_queue(log_bytes=8192)
    for n in range(200):
        put(queue, b"%d" % n)
    assert queue.stats().generation > 2
    assert queue.stats().log_capacity_bytes == 8192


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


def test_opening_where_nothing_can_be_made(tmp_path: Path) -> None:
    """When the disk is too full for a directory, or for the spare file, opening says so and leaves no lock behind."""

    def refuse(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with pytest.raises(DiskFullError, match="then open it"):
        PersistentQueue(tmp_path / "q", disk=replace(DISK, mkdir=refuse))
    opened = [0]

    def open_(path: str, flags: int, mode: int) -> int:
        opened[0] += path.endswith(".free")
        if opened[0] >= 3:
            refuse()
        return DISK.open(path, flags, mode)

    with pytest.raises(DiskFullError):
        PersistentQueue(tmp_path / "q", disk=replace(DISK, open=open_))
    opened[0] = 2
    with pytest.raises(DiskFullError):
        PersistentQueue(tmp_path / "r", disk=replace(DISK, open=open_))
    PersistentQueue(tmp_path / "q").close()


def test_consumed_between_a_look_and_its_read(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser whose next item is consumed just before it is read goes on with what is ready then."""
    queue = open_queue(memory_bytes=0)
    put_each(queue, [b"a", b"b"])
    reader = queue._open_queue.store.reader  # type: ignore[union-attr]
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
    """Who passed the gate just before the queue was closed gets ClosedError, not another file's bytes."""
    queue = open_queue(memory_bytes=0)
    put(queue, b"a")
    reader = queue._open_queue.store.reader  # type: ignore[union-attr]
    queue.close()
    with pytest.raises(ClosedError, match="while it was read"):
        reader._page(0)


def test_a_read_that_is_interrupted_loses_no_file(open_queue: QueueFactory) -> None:
    """Wherever an interruption comes while a segment is looked up, what was not written to its file yet is read from
    memory by whoever comes next, and is synced by the next trim."""
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
    (segment,) = group.store.segments._open.values()
    for number in range(1, 100):
        points = number
        before = sys.getprofile()
        sys.setprofile(interrupt)
        try:
            # In this thread: the queue's own calls leave a read to one that is never interrupted.
            assert list(chain.from_iterable(group.store.reader.browse())) == [b"a", b"b"]
        except Interruption:
            continue
        finally:
            sys.setprofile(before)
            assert list(group.store.segments._open.values()) == [segment]
        break
    assert 5 < number < 99


def test_disowning_twice(tmp_path: Path) -> None:
    """A queue that was disowned is closed; disowning or closing it again does nothing, and waits for no lock, which
    nobody may be left to let go of."""
    queue = PersistentQueue(tmp_path / "q")
    crash(queue)
    crash(queue)
    with queue._open_queue.mutex:  # type: ignore[union-attr]
        queue.close()
    with pytest.raises(ClosedError, match="crashed by a test"):
        len(queue)


@pytest.mark.parametrize("is_heir", [False, True])
def test_interrupted_when_its_turn_comes(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch, is_heir: bool
) -> None:
    """Who was taken along is committed, and who was to lead is not, and hands on to the next."""
    gate = Gate()
    queue = open_queue(disk=replace(DISK, failpoint=gate.failpoint))

    class Turn:
        """A lock whose waiting is interrupted just when it has ended."""

        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.calls = 0

        def acquire(self) -> None:
            self.calls += 1
            self.lock.acquire()
            if self.calls == 2:
                raise Interruption

        def release(self) -> None:
            self.lock.release()

    original = _Member.__init__

    def init(member: Any, transactions: Any) -> None:
        original(member, transactions)
        if transactions[0].items == [b"interrupted"]:
            member.turn = Turn()
            member.turn.acquire()

    monkeypatch.setattr(_Member, "__init__", init)
    group = queue._open_queue
    assert group is not None
    gate.armed = True
    items = [b"interrupted", b"other"] if is_heir else [b"other", b"interrupted"]
    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(put, queue, b"leader")
        assert gate.reached.wait(30)
        results = {items[0]: pool.submit(put, queue, items[0])}
        wait_for(lambda: len(group._group_commit) == 1)
        results[items[1]] = pool.submit(put, queue, items[1])
        wait_for(lambda: len(group._group_commit) == 2)
        gate.go_on.set()
        leader.result(30)
        results[b"other"].result(30)
        with pytest.raises(Interruption):
            results[b"interrupted"].result(30)
    assert drain(queue) == [b"leader", b"other"] + ([] if is_heir else [b"interrupted"])


def test_lock_that_cannot_be_signed_or_read(tmp_path: Path) -> None:
    """A full disk keeps nobody from the lock; an owner that could not sign is one that has not named itself."""

    def refuse(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    lock = Lock(replace(DISK, pwritev=refuse), str(tmp_path / "lock"))
    lock.acquire(0)
    other = Lock(DISK, str(tmp_path / "lock"))
    with pytest.raises(QueueLockedError, match="has not named itself") as caught:
        other.acquire(0.03)
    assert (caught.value.pid, caught.value.host, caught.value.since) == (None, None, None)
    lock.release()
    lock.release()
    other.acquire(0)
    other.release()


def test_lock_file_that_lost_its_name(tmp_path: Path) -> None:
    """A lock on a file whose name is gone, or is another file's, is no lock: it is taken again."""
    calls = [0]

    def lstat(path: str) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise FileNotFoundError(path)
        return DISK.lstat(path)

    lock = Lock(replace(DISK, lstat=lstat), str(tmp_path / "lock"))
    lock.acquire(1)
    lock.release()
    assert calls[0] == 3  # of the file twice, and of its directory


def test_retired_while_counted(open_queue: QueueFactory) -> None:
    """A file that goes while the statistics are made is not counted."""

    def lstat(path: str) -> Any:
        if gone[0] and path.endswith(".seg"):
            raise FileNotFoundError(path)
        return DISK.lstat(path)

    gone = [False]
    queue = open_queue(disk=replace(DISK, lstat=lstat), log_bytes=4096)
    put(queue, b"x")
    gone[0] = True
    assert queue.stats().disk_bytes == 8192


def test_leftover_that_goes_meanwhile(tmp_path: Path) -> None:
    """A retired segment that its former owner deletes while the next one opens is no reason not to open."""
    path = tmp_path / "queue"
    put(queue := PersistentQueue(path), b"x")
    crash(queue)
    spare = path / "data" / "000000000000.seg"
    shutil.copyfile(segment_files(path)[0], spare)

    def open_(name: str, flags: int, mode: int) -> int:
        if name == str(spare):
            spare.unlink(missing_ok=True)
        return DISK.open(name, flags, mode)

    with PersistentQueue(path, disk=replace(DISK, open=open_)) as queue:
        assert drain(queue) == [b"x"]


def test_full_log_whose_trim_breaks(open_queue: QueueFactory) -> None:
    """A flush that needs a new generation of the log, whose sync fails, breaks the queue and says so."""
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


def test_state_that_does_not_add_up() -> None:
    """The inspection finds each invariant of the state broken."""
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


@pytest.mark.damages
def test_check_counts_items(open_queue: QueueFactory, directory: Path) -> None:
    """An extent that promises another number of items than its blocks hold is a problem."""
    from persistentqueue import check

    path = directory.parent / "forged"
    segment_row = SegmentRow(1, SALT, 1000, 200, 2)
    blocks = encode_block([b"a", b"b"], SALT, HEADER_BYTES, 0, 0)
    extent = ExtentRow(0, 3, 1, HEADER_BYTES, blocks.length_bytes, 0, 3, 100)
    forge_log(path, encode_transaction([EMPTY._replace(next_sequence=3, segments=[segment_row], extents=[extent])]))
    (path / "data").mkdir()
    segment = Segment.recreate(DISK, str(path / "data" / "000000000001.seg"), 1, SALT, 1000)
    segment.write(blocks.buffers, blocks.length_bytes, 2)
    segment.close()
    assert any("expected 3 items, found 2" in problem for problem in check(path).problems)
    assert BLOCK_HEADER_BYTES == 44

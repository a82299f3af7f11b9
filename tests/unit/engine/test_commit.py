"""The ways of a commit: short or long, past the page cache or through it, written at once or deferred.

The page cache is that of the operating system.
"""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from persistentqueue import BrokenQueueError, DiskFullError, InvalidTransactionError, PersistentQueue
from persistentqueue.core.intervals import join_runs
from persistentqueue.engine.commit import Committer
from persistentqueue.engine.context import Settings
from persistentqueue.engine.transaction import Transaction
from persistentqueue.recovery.opening import open_store
from persistentqueue.storage.log import DirectAppender
from persistentqueue.storage.log_reader import decode_log
from persistentqueue.storage.segment_files import DEFERRED_BYTES
from persistentqueue.system.disk import DISK, PAGE_BYTES, WRITE, Disk
from tests.conftest import QueueFactory
from tests.support.queues import IN_CACHE, crash, drain, log_file, put, put_each, segment_files

THROUGH_CACHE = replace(DISK, open_direct=lambda path: None)
TRANSACTION = st.tuples(
    st.lists(st.binary(max_size=40), max_size=4),
    st.integers(0, 4),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.sampled_from([0, 0, 1, 2]),
)
"""Items to enqueue, number of items to dequeue, version of a marker, and connection of a worker; 0 stands for none."""
GROUPS = st.lists(st.lists(TRANSACTION, min_size=1, max_size=4), max_size=20)
Groups: TypeAlias = list[list[tuple[list[bytes], int, int, int]]]


def _deterministic(disk: Disk) -> Disk:
    """Return the disk with salts that are equal in every run, and with a clock that stands still."""
    salts = count(1)
    return replace(disk, urandom=lambda size: next(salts).to_bytes(size, "little"), time_ns=lambda: 7)


def _run(path: Path, disk: Disk, groups: Groups, **settings: Any) -> dict[str, bytes]:
    """Commit the groups to a new store that then crashes. Return the bytes of its files, except those of the lock and
    the spare."""
    settings = {"log_bytes": 4096, "segment_bytes": 600, **settings}
    store = open_store(_deterministic(disk), str(path), Settings(**settings), create=True)
    numbers = count(1)
    flushes: dict[bytes, int] = {}
    for group in groups:
        transactions = []
        for items, takes, version, connection in group:
            transaction = Transaction(store.reader.ready)
            transaction.add(items)
            transaction.runs = store.reader.take(takes)[0]
            transaction.marker = ("m", version) if version else None
            if connection:
                transaction.origin = bytes([connection]) * 16, next(numbers)
            transactions.append(transaction)
        store.commit(transactions)
        assert all(transaction.settled for transaction in transactions)
        for transaction in transactions:
            if transaction.skipped:
                store.discard(transaction)
            elif transaction.origin is not None:
                flushes |= [transaction.origin]
    assert store.state.flushes == flushes
    expected = [item for _, batch in store.reader.browse() for item in batch]
    store.release()
    files = [file for part in ("log", "data") for file in (path / part).iterdir()]
    content = {str(file.relative_to(path)): file.read_bytes() for file in files}
    reopened = open_store(_deterministic(DISK), str(path), Settings(), create=False)
    assert reopened.state.flushes == flushes
    reopened.release()
    with PersistentQueue(path) as queue:
        assert list(queue.browse()) == expected
    return content


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory for a test with many examples, each of which removes the files that it made."""
    return tmp_path_factory.mktemp("scratch")


@pytest.mark.unwatched
@settings(max_examples=60)
@given(groups=GROUPS, inline_bytes=st.sampled_from([0, 100, 65536]))
@example(groups=[[([], 0, 0, 0)], [([], 0, 0, 0), ([b""], 0, 0, 0)], [([], 0, 0, 0), ([], 1, 0, 0)]], inline_bytes=100)
@example(groups=[[([b"a"] * 4, 0, 0, 1)], [([], 1, 0, 1), ([], 1, 0, 2), ([], 1, 0, 0)]], inline_bytes=65536)
@example(groups=[[([b"a"], 0, 0, 0)], [([b"b"], 0, 0, 1), ([b"c"], 0, 0, 2), ([], 0, 0, 0)]], inline_bytes=65536)
@example(groups=[[([b"a"] * 4, 0, 0, 0)], [([], 1, 0, 0), ([], 1, 0, 1), ([], 1, 0, 0)]], inline_bytes=65536)
@example(groups=[[([b"a"] * 4, 0, 0, 0)], [([], 1, 0, 0), ([], 0, 0, 1), ([], 1, 0, 0)]], inline_bytes=65536)
def test_short_way_writes_the_bytes_of_the_long_way(scratch: Path, groups: Groups, inline_bytes: int) -> None:
    """After any program the log and the segments are equal, whether short groups took the short way or the long way. So
    are the flushes of workers that are known."""
    try:
        short = _run(scratch / "short", IN_CACHE, groups, inline_bytes=inline_bytes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Committer, "commit_short", lambda *_: False)
            assert _run(scratch / "long", IN_CACHE, groups, inline_bytes=inline_bytes) == short
    finally:
        for name in ("short", "long"):
            shutil.rmtree(scratch / name, ignore_errors=True)


def _consume(
    path: Path, order: list[int], owners: list[int], connections: list[int]
) -> tuple[dict[bytes, int], list[bytes]]:
    """Consume these of eight items by one group, each in the transaction of its owner; return the flushes of workers,
    and the items that an opening finds."""
    store = open_store(_deterministic(IN_CACHE), str(path), Settings(), create=True)
    filled = Transaction()
    filled.add([b"%d" % number for number in range(8)])
    store.commit([filled])
    store.reader.take(8)
    group = [Transaction(store.reader.ready) for _ in connections]
    for sequence, owner in zip(order, owners, strict=False):
        join_runs(group[owner].runs, [(sequence, 1)])
    for each, connection in zip(group, connections, strict=True):
        each.origin = (bytes([connection]) * 16, 1) if connection else None
    store.commit(group)
    flushes = store.state.flushes
    store.release()
    reopened = open_store(_deterministic(DISK), str(path), Settings(), create=False)
    assert reopened.state.flushes == flushes
    left = [item for _, batch in reopened.reader.browse() for item in batch]
    reopened.release()
    return flushes, left


@settings(max_examples=40)
@given(
    order=st.permutations(range(8)),
    owners=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    connections=st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
def test_items_are_consumed_in_any_order(
    scratch: Path, order: list[int], owners: list[int], connections: list[int]
) -> None:
    """In whatever order a group has taken its items, both ways consume them, and record the same flushes of workers."""
    try:
        short = _consume(scratch / "short", order, owners, connections)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Committer, "commit_short", lambda *_: False)
            assert _consume(scratch / "long", order, owners, connections) == short
        consumed = order[: len(owners)]
        assert short[1] == [b"%d" % number for number in range(8) if number not in consumed]
    finally:
        for name in ("short", "long"):
            shutil.rmtree(scratch / name, ignore_errors=True)


def test_short_way_is_taken(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group takes the short way if it enqueues one block, or only consumes items. A group with both, or with a
    marker, takes the long way."""
    taken: list[bool] = []
    commit_short = Committer.commit_short

    def watched(self: Committer, *arguments: Any) -> bool:
        taken.append(commit_short(self, *arguments))
        return taken[-1]

    monkeypatch.setattr(Committer, "commit_short", watched)
    queue = open_queue()
    put(queue, b"first")  # makes the segment, which is not short
    put(queue, b"a", b"b", b"c", b"x", b"y", b"z")
    with queue.session() as session, queue.session() as other:
        for _ in range(2):
            session.dequeue()
            session.flush()
        other.dequeue()
        session.dequeue()
        other.rollback()
        session.dequeue()
        session.flush()  # two runs in the wrong order, which join to one
        session.dequeue()
        other.dequeue()
        session.dequeue()
        session.flush()  # two runs with a gap
        other.flush()
        session.enqueue(b"d")
        session.flush(marker=("m", 1))
        session.enqueue(b"e")
        session.dequeue()
        session.flush()
    assert taken == [False, True, True, True, True, True, True, False, False]
    assert drain(queue) == [b"e"]


def test_a_group_consumes_each_item_once(tmp_path: Path) -> None:
    """If two transactions of a group claim one item, the second is refused, and nothing else is: not in the short way
    either."""
    store = open_store(DISK, str(tmp_path), Settings(), create=True)
    filled = Transaction()
    filled.add([b"a", b"b", b"c", b"d"])
    store.commit([filled])
    group = [Transaction(store.reader.ready) for _ in range(3)]
    for number, (each, runs) in enumerate(zip(group, ([(0, 1), (2, 1)], [(2, 1)], [(3, 1)]), strict=True)):
        store.reader.ready.hold(1)
        each.runs, each.origin = runs, (bytes([number]) * 16, 1)
    store.reader.ready.hold(1)
    store.commit(group)
    assert [type(each.error) for each in group] == [type(None), InvalidTransactionError, type(None)]
    assert store.state.flushes == {bytes(16): 1, bytes([2]) * 16: 1}
    store.release()
    with PersistentQueue(tmp_path) as queue:
        assert drain(queue) == [b"b"]


# --- past the page cache ---------------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.one_of(st.integers(1, 300), st.integers(3000, 9000), st.just(300_000)), max_size=12),
    begin=st.integers(0, 9000),
)
def test_direct_appends_leave_what_writes_would(scratch: Path, sizes: list[int], begin: int) -> None:
    """After any appends the file holds exactly these bytes, then zeros, and nothing behind its capacity."""
    path = scratch / "appended"
    path.write_bytes(b"o" * begin + b"?" * (4 * PAGE_BYTES))
    capacity_bytes = path.stat().st_size
    fd = DISK.open(str(path), WRITE, 0)
    appender = DirectAppender(DISK, str(path), b"o" * (begin % PAGE_BYTES))
    offset, expected = begin, b"o" * begin
    try:
        for number, size in enumerate(sizes):
            data = bytes([65 + number]) * size + bytes(8)
            if not appender.append(data, offset, offset + size, capacity_bytes):
                DISK.pwritev(fd, [data], offset, 0)
            offset += size
            expected += data[:size]
    finally:
        appender.close()
        DISK.close(fd)
    written = path.read_bytes()
    assert written[: offset + 8] == expected + (bytes(8) if sizes else b"?" * 8)
    assert set(written[offset + 8 :]) <= {0, ord("?")}
    assert len(written) <= max(capacity_bytes, offset + 8)
    path.unlink()


def test_direct_and_cached_logs_are_equal(tmp_path: Path) -> None:
    """A log that is written past the page cache has the frames of one that is written through it."""
    groups = [[([b"%d" % number * (number % 50)], number % 2, 0, 0)] for number in range(300)]
    direct, cached = (_run(tmp_path / name, disk, groups) for name, disk in (("d", DISK), ("c", THROUGH_CACHE)))
    assert direct.keys() == cached.keys()
    for name, content in direct.items():
        is_log = name.startswith("log")
        end = decode_log(content, name).end if is_log else len(content)  # the rest of a page may be zeros
        assert content[:end] == cached[name][:end]


def test_direct_writes_are_used_where_they_can(open_queue: QueueFactory, tmp_path: Path) -> None:
    """Frames are written as whole pages if the file system allows direct writes. If it refuses a write or the opening,
    frames keep their length."""
    sizes: Counter[bool] = Counter()

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if flags:
            sizes[sum(map(len, buffers)) % PAGE_BYTES == 0] += 1
        return DISK.pwritev(fd, buffers, offset, flags)

    def refuse(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if flags and sum(map(len, buffers)) % PAGE_BYTES == 0:
            raise OSError(errno.EINVAL, "Invalid argument")
        return pwritev(fd, buffers, offset, flags)

    (tmp_path / "probe").touch()
    probe = DISK.open_direct(str(tmp_path / "probe"))
    if probe is None:
        pytest.skip("no direct writes on this file system")
    DISK.close(probe)
    put_each(open_queue("direct", disk=replace(DISK, pwritev=pwritev)), [b"x"] * 10)
    assert sizes == {True: 10}
    sizes.clear()
    put_each(open_queue("refused", disk=replace(DISK, pwritev=refuse)), [b"x"] * 10)
    assert sizes == {False: 10}
    put_each(open_queue("cached", disk=replace(THROUGH_CACHE, pwritev=pwritev)), [b"x"] * 10)
    assert sizes == {False: 20}


# --- deferred blocks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deferred", [1, 7, 300], ids=["one", "some", "more than are deferred"])
def test_deferred_blocks_are_read_from_memory(open_queue: QueueFactory, directory: Path, deferred: int) -> None:
    """Items whose blocks are still deferred can be read, together with items whose blocks are in the file."""
    queue = open_queue(memory_bytes=0)
    items = [b"%d" % number * 1500 for number in range(deferred + 40)]
    put(queue, *items[:20])
    with queue.session() as session:
        session.enqueue_many([b"x" * 140_000])  # a large group writes all deferred blocks
        session.flush()
    put_each(queue, items[20:])
    with queue.session() as session:
        assert session.dequeue_many(20) == items[:20]
        assert session.dequeue() == b"x" * 140_000
        for item in items[20:]:
            assert session.dequeue() == item
        session.rollback()
    assert list(queue.browse()) == [*items[:20], b"x" * 140_000, *items[20:]]


def test_deferred_bytes_are_bounded(open_queue: QueueFactory, directory: Path) -> None:
    """The deferred bytes of small groups are bounded by ``DEFERRED_BYTES``, and a trim writes all of them to the
    segment."""
    queue = open_queue()
    store = queue._open()._store
    most = 0
    for _ in range(400):
        put(queue, b"x" * 2000)
        assert store.segments.current is not None
        most = max(most, store.segments.current.deferred_bytes)
    assert DEFERRED_BYTES // 2 < most <= DEFERRED_BYTES
    queue.trim()
    assert segment_files(directory)[0].read_bytes().count(b"x" * 2000) == 400


def test_full_disk_keeps_deferred_blocks(open_queue: QueueFactory) -> None:
    """A trim that finds no disk space for the deferred blocks raises ``DiskFullError`` and loses nothing. It succeeds
    once there is space."""
    full = [False]

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if full[0] and not flags:
            raise OSError(errno.ENOSPC, "No space left on device")
        return DISK.pwritev(fd, buffers, offset, flags)

    queue = open_queue(memory_bytes=0, disk=replace(DISK, pwritev=pwritev))
    put_each(queue, [b"1", b"2", b"3"])
    full[0] = True
    with pytest.raises(DiskFullError, match="free some space"):
        queue.trim()
    assert list(queue.browse()) == [b"1", b"2", b"3"]
    with queue.transaction() as session:
        assert session.dequeue() == b"1"
    full[0] = False
    queue.trim()
    assert drain(queue) == [b"2", b"3"]


def test_failed_write_of_deferred_blocks_breaks(open_queue: QueueFactory, directory: Path) -> None:
    """An input/output error while deferred blocks are written breaks the queue. The next opening restores them from the
    log."""
    failing = [False]

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if failing[0] and not flags:
            raise OSError(errno.EIO, "Input/output error")
        return DISK.pwritev(fd, buffers, offset, flags)

    queue = open_queue(disk=replace(DISK, pwritev=pwritev))
    put_each(queue, [b"1", b"2"])
    failing[0] = True
    with pytest.raises(BrokenQueueError, match="Input/output"):
        queue.trim()
    crash(queue)
    assert b"PQBk" not in segment_files(directory)[0].read_bytes()
    assert log_file(directory).read_bytes().count(b"PQBk") == 2
    assert drain(open_queue()) == [b"1", b"2"]


# --- large groups ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inline_bytes", [0, 4 << 20], ids=["in segments", "in the log"])
def test_large_groups_are_written_in_parts(open_queue: QueueFactory, inline_bytes: int) -> None:
    """Blocks of a large group go to the device while the next ones are encoded, unless the log carries them."""
    sizes: list[int] = []

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        written_bytes = DISK.pwritev(fd, buffers, offset, flags)
        sizes.append(written_bytes)
        return written_bytes

    queue = open_queue(disk=replace(IN_CACHE, pwritev=pwritev), inline_bytes=inline_bytes, log_bytes=8 << 20)
    items = [b"%07d" % number * 100 for number in range(2000)]
    put(queue, b"first")
    sizes.clear()
    put(queue, *items)
    parts = [size for size in sizes if size > 10_000]
    if inline_bytes:
        assert sum(parts) > 2 * 1_400_000 and max(parts) > 1_400_000
    else:
        assert len(parts) == 6 and max(parts) < 300_000
    crash(queue)
    queue = open_queue()
    assert drain(queue) == [b"first", *items]


def test_a_large_group_that_finds_no_space(open_queue: QueueFactory) -> None:
    """A disk that is full after some parts of a large group refuses the whole group. The queue goes on."""
    left = [10]

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= sum(map(len, buffers)) > 100_000
        return DISK.pwritev(fd, buffers, offset, flags)

    queue = open_queue(disk=replace(DISK, pwritev=pwritev))
    put(queue, b"first")
    left[0] = 3
    items = [b"%07d" % number * 100 for number in range(2000)]
    with queue.session() as session:
        session.enqueue_many(items)
        with pytest.raises(DiskFullError):
            session.flush()
        left[0] = 100
        session.flush()
    crash(queue)
    assert drain(open_queue()) == [b"first", *items]

"""Scenarios C to G, K and L of DiskQueue: leftovers, rolls, stale files, empty items, depth, and many threads.

Scenarios A and I (damage) are in ``test_diskqueue_damage``, B (a kill at every step) in ``test_diskqueue_kills``, and H
(a failing disk) in ``test_diskqueue_failing_disk``. Scenario J is in ``test_processes``.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import CorruptionError, PersistentQueue, Session, check
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, log_file, put, put_each, segment_files, spilling_session

ENDS = pytest.mark.parametrize("end", [PersistentQueue.close, crash])
CALLS = ("open", "pwritev", "fdatasync", "fsync", "fallocate", "ftruncate", "rename", "unlink", "mkdir")


def digits(*bounds: int) -> list[bytes]:
    """Return the numbers of ``range(*bounds)`` as items."""
    return [b"%d" % number for number in range(*bounds)]


# --- C: leftovers -----------------------------------------------------------------------------------------------------

FOREIGN = (
    "log/000000000001.log.old_copy",
    "log/000000000001.log.damaged",
    "log/notes.txt",
    "data/000000000050.seg.damaged",
    "data/data_dc_1234",
    "pool/log.free.tmp",
    "transaction.log",
    "meta.state",
)
"""Leftovers of DiskQueue, files that an earlier opening set aside, and files of other programs."""


@ENDS
def test_c_leftovers_of_every_kind(
    open_queue: QueueFactory, directory: Path, end: Callable[[PersistentQueue], None]
) -> None:
    """With leftovers of every kind in place no item is lost. Orphans are swept, and foreign files stay."""
    queue = open_queue(segment_bytes=10)
    put_each(queue, digits(5))
    older = log_file(directory).read_bytes()
    queue.trim()
    end(queue)
    orphans = [directory / "data" / "000000000050.seg", directory / "log" / "000000000001.log"]
    shutil.copyfile(segment_files(directory)[0], orphans[0])
    orphans[1].write_bytes(older)
    for name in FOREIGN:
        (directory / name).write_bytes(b"foreign")
    (directory / "pool" / "log.free").write_bytes(b"short")
    (directory / "lock").write_bytes(b"junk")
    queue = open_queue(segment_bytes=10)
    assert sorted(queue.recovery.swept) == ["data/000000000050.seg", "log/000000000001.log"]
    put_each(queue, digits(5, 10))
    end(queue)
    assert drain(open_queue()) == digits(10)
    assert not any(orphan.exists() for orphan in orphans)
    assert {(directory / name).read_bytes() for name in FOREIGN} == {b"foreign"}


@pytest.mark.damages
def test_c_an_earlier_find_is_not_overwritten(open_queue: QueueFactory, directory: Path) -> None:
    """A file that is set aside does not replace an earlier one that was set aside under its name."""
    finds = [b"the first find", b"the second find"]
    for find in finds:
        queue = open_queue(inline_bytes=0)
        put(queue, b"a")
        end = queue.stats().log_bytes
        crash(queue)
        with log_file(directory).open("r+b") as log:
            log.seek(end)
            log.write(b"torn")
        (directory / "data" / "000000000077.seg").write_bytes(find)
        queue = open_queue()
        assert queue.recovery.set_aside
        queue.close()
    assert sorted(path.read_bytes() for path in (directory / "data").glob("*77*")) == finds


@ENDS
def test_c_a_stray_name_of_deletion_deletes_nothing(
    open_queue: QueueFactory, directory: Path, end: Callable[[PersistentQueue], None]
) -> None:
    """As long as there is a log, a directory with the name of a deletion does not make the queue count as deleted."""
    queue = open_queue(segment_bytes=10)
    put_each(queue, digits(5))
    end(queue)
    (directory / "deleted").mkdir()
    assert drain(open_queue()) == digits(5)


# --- D and E: rolls ---------------------------------------------------------------------------------------------------


@ENDS
@pytest.mark.parametrize("step", ["commit.2 sync blocks", "commit.3 write frame", "commit.4 apply"])
def test_d_consumer_drains_a_file_between_roll_and_commit(
    open_queue: QueueFactory, step: str, end: Callable[[PersistentQueue], None]
) -> None:
    """A consumer that drains a file after a producer has rolled, and before it commits, gets none of the producer's
    items."""
    armed = False
    consumed: list[bytes] = []
    held = threading.Event()

    def consume() -> None:
        with queue.session() as session:
            consumed.extend(session.dequeue_many(10))
            held.set()
            session.flush()

    consumer = threading.Thread(target=consume, daemon=True)

    def failpoint(name: str) -> None:
        nonlocal armed
        if armed and name == step:
            armed = False
            consumer.start()
            assert held.wait(60)

    queue = open_queue(segment_bytes=100, memory_bytes=0, disk=replace(DISK, failpoint=failpoint))
    put(queue, b"committed")
    armed = True
    put(queue, b"p" * 80)
    consumer.join(60)
    assert not consumer.is_alive()
    assert consumed == [b"committed"]
    queue.trim()
    assert queue.peek() == [b"p" * 80]
    put(queue, b"later")
    end(queue)
    assert drain(open_queue()) == [b"p" * 80, b"later"]


@ENDS
def test_e_two_sessions_write_across_rolls(
    open_queue: QueueFactory, directory: Path, end: Callable[[PersistentQueue], None]
) -> None:
    """Two sessions that write at once over many files keep all their items, each in its own order."""
    queue = open_queue(segment_bytes=500, memory_bytes=0)
    start = threading.Barrier(2, timeout=60)

    def produce(name: int) -> None:
        with spilling_session(queue, 200) as session:
            start.wait()
            for number in range(100):
                session.enqueue(b"%d %d" % (name, number))
                if number % (name + 3) == 0:
                    session.flush()
            session.flush()

    producers = [threading.Thread(target=produce, args=(name,), daemon=True) for name in range(2)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join(60)
    assert len(segment_files(directory)) > 5
    end(queue)
    found = drain(open_queue(memory_bytes=0))
    for name in range(2):
        assert [item for item in found if item.startswith(b"%d " % name)] == [b"%d %d" % (name, n) for n in range(100)]
    assert len(found) == 200


# --- F: other files than log and segments -----------------------------------------------------------------------------


def _remove(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _put_back(path: Path) -> None:
    shutil.copyfile(path.with_suffix(".older"), path)


@ENDS
@pytest.mark.parametrize("spoil", [_remove, _empty, _shorten, _put_back])
@pytest.mark.parametrize("name", ["pool/log.free", "lock"])
def test_f_spoilt_files_overwrite_nothing(
    open_queue: QueueFactory,
    directory: Path,
    tmp_path: Path,
    name: str,
    spoil: Callable[[Path], None],
    end: Callable[[PersistentQueue], None],
) -> None:
    """Only the log and the segments say where to write: any other file may be stale, short or missing."""
    queue = open_queue()
    put(queue, b"a")
    path = directory / name
    shutil.copyfile(path, path.with_suffix(".older"))
    put_each(queue, [b"b", b"c"])
    queue.trim()
    end(queue)
    spoil(path)
    path.with_suffix(".older").unlink()
    queue = open_queue(memory_bytes=0)
    put(queue, b"d")
    end(queue)
    queue = open_queue(memory_bytes=0)
    queue.trim()
    assert drain(queue) == [b"a", b"b", b"c", b"d"]


@pytest.mark.damages
def test_f_a_stale_log_is_refused(open_queue: QueueFactory, directory: Path) -> None:
    """An older generation under a newer name is refused."""
    queue = open_queue()
    put(queue, b"a")
    older = log_file(directory).read_bytes()
    queue.close()
    newer = directory / "log" / "000000000009.log"
    newer.write_bytes(older)
    with pytest.raises(CorruptionError) as caught:
        open_queue()
    assert caught.value.file == str(newer)
    newer.unlink()
    assert drain(open_queue()) == [b"a"]


@ENDS
def test_f_a_copy_without_its_empty_directories(
    open_queue: QueueFactory, directory: Path, end: Callable[[PersistentQueue], None]
) -> None:
    """A queue that was restored from a copy without its empty data directory and its pool opens and works."""
    queue = open_queue()
    put(queue, b"a")
    assert drain(queue) == [b"a"]
    queue.close()
    if end is crash:
        queue = open_queue()
        put(queue, b"b")
        assert drain(queue) == [b"b"]
        queue.trim()
        crash(queue)
        shutil.rmtree(directory / "data")
        shutil.rmtree(directory / "pool")
    else:
        (directory / "data").rmdir()
        shutil.rmtree(directory / "pool")
    queue = open_queue()
    put(queue, b"c")
    end(queue)
    assert drain(open_queue()) == [b"c"]


# --- G: empty items ---------------------------------------------------------------------------------------------------


@ENDS
@pytest.mark.parametrize("settings", [{}, {"inline_bytes": 0, "memory_bytes": 0}, {"segment_bytes": 10}])
def test_g_empty_items_among_others(
    open_queue: QueueFactory, settings: dict[str, int], end: Callable[[PersistentQueue], None]
) -> None:
    """Empty items keep their number and their places through rollbacks and restarts."""
    items = [b"", b"a", b"", b"", b"bcd", b""]
    queue = open_queue(**settings)
    put(queue, *items)
    put_each(queue, items)
    end(queue)
    queue = open_queue(**settings)
    with queue.session() as session:
        assert [session.dequeue() for _ in range(4)] == items[:4]
        session.rollback()
        assert session.dequeue_many(100) == items * 2
        session.rollback()
    assert drain(queue) == items * 2


# --- K: depth ---------------------------------------------------------------------------------------------------------


def test_k_cost_is_independent_of_depth(open_queue: QueueFactory) -> None:
    """A commit, an opening and the log cost as much at a depth of 100,000 as at a depth of ten. Memory stays within its
    bound."""
    calls: Counter[str] = Counter()
    read_bytes = 0

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(DISK, name)

        def call(*arguments: Any) -> Any:
            calls[name] += 1
            return real(*arguments)

        return call

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        nonlocal read_bytes
        data = DISK.pread(fd, length_bytes, offset)
        calls["pread"] += 1
        read_bytes += len(data)
        return data

    doors: dict[str, Any] = {name: counted(name) for name in CALLS}
    settings = {"memory_bytes": 16 << 20, "disk": replace(DISK, pread=pread, **doors)}
    costs = []
    for name, depth in (("shallow", 10), ("deep", 100_000)):
        queue = open_queue(name, **settings)
        with queue.session() as session:
            for start in range(0, depth, 10_000):
                session.enqueue_many([b"%06d" % number for number in range(start, min(start + 10_000, depth))])
                session.flush()
        queue.close()
        read_bytes = 0
        queue = open_queue(name, **settings)
        opening_bytes = read_bytes
        assert len(queue) == depth
        per_commit = set()
        with queue.session() as session:
            session.enqueue(b"the first use of the files")
            session.dequeue()
            session.flush()
            for _ in range(20):
                before = calls.copy()
                session.enqueue(b"x")
                session.flush()
                session.dequeue()
                session.flush()
                per_commit.add(frozenset((calls - before).items()))
        queue.trim()
        stats = queue.stats()
        assert stats.cached_bytes <= 16 << 20
        costs.append((opening_bytes, per_commit, stats.log_bytes))
        queue.close()
    assert costs[0] == costs[1]


# --- L: dequeues beside commits and trims -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_l_crash_while_others_dequeue_commit_and_trim(open_queue: QueueFactory, directory: Path, seed: int) -> None:
    """With threads that dequeue, hold, roll back, commit and trim, the log that a crash leaves contains exactly the
    flushed work."""
    queue = open_queue(segment_bytes=400, log_bytes=4096, memory_bytes=1000)
    put(queue, *digits(100))
    consumed: list[bytes] = []
    produced: list[bytes] = []
    keepers: list[Session] = []
    start = threading.Barrier(4, timeout=60)

    def consume() -> None:
        start.wait()
        for number in range(60):
            with queue.session() as session:
                items = session.dequeue_many(1 + (number + seed) % 3)
                if number % 3:
                    session.flush()
                    consumed.extend(items)
                session.rollback()

    def hold() -> None:
        start.wait()
        for _ in range(20):
            keepers.append(queue.session())
            keepers[-1].dequeue()

    def produce() -> None:
        start.wait()
        for item in digits(1000, 1060):
            put(queue, item)
            produced.append(item)

    def trim() -> None:
        start.wait()
        for _ in range(20):
            queue.trim()

    threads = [threading.Thread(target=body, daemon=True) for body in (consume, hold, produce, trim)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    crash(queue)
    for session in keepers:
        session.close()
    report = check(directory)
    assert (report.problems, report.torn_bytes) == ((), 0)
    queue = open_queue()
    assert queue.recovery.torn_bytes == 0
    left = drain(queue)
    assert left == sorted(left, key=int)
    assert sorted([*consumed, *left], key=int) == [*digits(100), *produced]
    assert produced == digits(1000, 1060)

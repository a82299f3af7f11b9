"""The counts and times that ``stats()`` returns for a queue at work."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import PersistentQueue, QueueFullError, transaction
from persistentqueue.core.block import BLOCK_HEADER_BYTES, LENGTH_BYTES
from persistentqueue.runtime.open_queue import _UNCOUNTED
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import drain, put, put_each, wait_for
from tests.unit.engine.test_adoption import look, publish
from tests.unit.engine.test_compaction import LITTLE, sparse
from tests.unit.runtime.test_open_queue import SECONDS, Gate


def test_flushes_are_measured(open_queue: QueueFactory) -> None:
    """Each flush that commits is in ``flush_seconds``, and each group is in ``commit_seconds`` and ``group_size``. A
    flush that is refused or has nothing to commit is in none of them."""
    queue = open_queue(max_items=3)
    put_each(queue, [b"a", b"b", b"c"])
    with queue.session() as session:
        session.flush()
        session.enqueue(b"d")
        with pytest.raises(QueueFullError):
            session.flush()
        session.rollback()
    drain(queue)
    stats = queue.stats()
    assert (stats.flush_seconds.count, stats.commit_seconds.count) == (4, 4)
    assert (stats.group_size.count, stats.group_size.sum) == (4, 4) == (stats.groups, stats.transactions)
    assert 0 < stats.commit_seconds.sum < stats.flush_seconds.sum


def test_a_group_is_one_commit_of_many_flushes(open_queue: QueueFactory) -> None:
    """Flushes that share a sync are one group, and the time of each flush includes the wait for it."""
    gate = Gate()
    queue = open_queue(disk=replace(DISK, failpoint=gate.failpoint))
    before = queue.stats()
    gate.armed = True
    with ThreadPoolExecutor(20) as pool:
        pool.submit(put, queue, b"first")
        assert gate.reached.wait(SECONDS)
        for _ in range(19):
            pool.submit(put, queue, b"x")
        group = queue._open_queue
        assert group is not None
        wait_for(lambda: len(group._group_commit) == 19)
        gate.go_on.set()
    after = queue.stats()
    sizes = after.group_size - before.group_size
    assert (sizes.count, sizes.sum, sizes.quantile(0.5), sizes.quantile(1)) == (2, 20, 1, 20)
    assert (after.flush_seconds - before.flush_seconds).count == 20
    assert (after.commit_seconds - before.commit_seconds).count == 2


def test_what_is_measured_takes_no_memory(open_queue: QueueFactory) -> None:
    """Samples are added to the histograms after some hundred transactions, even if ``stats()`` is never called."""
    queue = open_queue()
    put_each(queue, [b"x"] * _UNCOUNTED)
    meters = queue._open().meters
    assert len(meters.flush_seconds._noted) <= 1
    put(queue, b"x")
    assert queue.stats().flush_seconds.count == _UNCOUNTED + 1


def test_what_is_measured_of_several_queues_takes_no_memory(open_queue: QueueFactory) -> None:
    """Samples are added to the histograms even if a queue has only transactions over several queues."""
    queues = [open_queue(name) for name in ("a", "b")]
    for _ in range(_UNCOUNTED):
        with transaction(*queues) as sessions:
            for session in sessions:
                session.enqueue(b"x")
    for queue in queues:
        meters = queue._open().meters
        assert not any(meter._noted for meter in meters.all())
        assert queue.stats().flush_seconds.count == _UNCOUNTED


def test_a_transaction_over_several_queues_is_measured_in_each(open_queue: QueueFactory) -> None:
    """A transaction over several queues counts as one flush and one group in each queue. A repetition that its marker
    skips is no group."""
    first, second = open_queue("a"), open_queue("b")
    for _ in range(2):
        with transaction(first, second) as (one, other):
            one.enqueue(b"x")
            other.enqueue(b"x")
            one.flush(marker=("m", 1))
    for queue in (first, second):
        stats = queue.stats()
        assert (stats.flush_seconds.count, stats.commit_seconds.count, stats.group_size.sum) == (2, 1, 1)
        assert (stats.groups, stats.transactions) == (1, 2)


def test_reads_from_files_are_measured(open_queue: QueueFactory) -> None:
    """A dequeue that reads from a file is in ``read_seconds``; a dequeue that finds its items in memory is not."""
    queue = open_queue()
    put(queue, *[b"x"] * 10)
    drain(queue)
    assert queue.stats().read_seconds.count == 0
    put(queue, *[b"x"] * 10)
    queue.close()
    queue = open_queue()
    drain(queue)
    assert queue.stats().read_seconds.count == queue.stats().page_reads == 1


def test_reads_without_a_flush_keep_no_memory(open_queue: QueueFactory) -> None:
    """The samples of reads are counted many at once, also if no flush follows."""
    queue = open_queue(memory_bytes=0)
    put_each(queue, [b"x"] * 2 * _UNCOUNTED)
    with queue.session() as session:
        for _ in range(2 * _UNCOUNTED - 1):
            session.dequeue()
        meter = queue._open().meters.read_seconds
        assert 0 < len(meter) < _UNCOUNTED
        assert queue.stats().read_seconds.count == queue.stats().page_reads > _UNCOUNTED
        assert len(meter) == 0
        session.rollback()


@pytest.mark.parametrize("inline_bytes", [0, 128 * 1024])
def test_enqueued_bytes(open_queue: QueueFactory, directory: Path, inline_bytes: int) -> None:
    """``enqueued_bytes`` counts the bytes of the blocks of small and large groups, of spilled items and of adopted
    files."""
    queue = open_queue(inline_bytes=inline_bytes)
    one = BLOCK_HEADER_BYTES + LENGTH_BYTES + 1
    put(queue, b"x")
    assert queue.stats().enqueued_bytes == one
    drain(queue)
    publish(directory, b"x")
    look(queue)
    assert (queue.stats().enqueued_bytes, queue.stats().adopted) == (2 * one, 1)
    with queue.transaction() as session:
        session.enqueue_many([bytes(2**20)] * 6)
    assert queue.stats().enqueued_bytes - 2 * one == 6 * (2**20 + BLOCK_HEADER_BYTES + LENGTH_BYTES)
    queue.close()
    assert open_queue().stats().enqueued_bytes == 0


def test_what_comes_back_is_counted(open_queue: QueueFactory) -> None:
    """``given_back`` counts the items that a session releases by a rollback, or because it is dropped."""
    queue = open_queue()
    put(queue, *[b"x"] * 10)
    with queue.session() as session:
        session.dequeue_many(2)
        session.rollback()
        session.dequeue_many(3)
        session.rollback()
    assert queue.stats().given_back == 5
    session = queue.session()
    session.dequeue()
    with pytest.warns(ResourceWarning, match="not flushed"):
        del session
        gc.collect()
    assert queue.stats().given_back == 6


def test_a_dropped_session_wakes_who_waits(open_queue: QueueFactory) -> None:
    """An item that a dropped session held goes to a waiting consumer at once."""
    queue = open_queue()
    put(queue, b"x")
    dropped = queue.session()
    dropped.dequeue()

    def take() -> bytes | None:
        with queue.transaction() as session:
            return session.dequeue(timeout=SECONDS)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(take)
        wait_for(lambda: queue._open()._waiters.count == 1)
        with pytest.warns(ResourceWarning, match="not flushed"):
            del dropped
            gc.collect()
        assert waiting.result(SECONDS / 3) == b"x"


def test_a_session_that_is_dropped_beside_a_call_wakes_who_waits(open_queue: QueueFactory) -> None:
    """An item of a session that is dropped while another thread is in a call goes to a waiting consumer, too."""
    queue = open_queue()
    put(queue, b"x")
    dropped = queue.session()
    dropped.dequeue()
    with ThreadPoolExecutor(1) as pool, queue.session() as session:
        waiting = pool.submit(session.dequeue, SECONDS)
        wait_for(lambda: queue._open()._waiters.count == 1)
        with queue._open().mutex, pytest.warns(ResourceWarning, match="not flushed"):
            del dropped
            gc.collect()
        assert waiting.result(SECONDS / 3) == b"x"
        session.flush()


def test_who_holds_for_how_long(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """``stats()`` counts the open sessions, and tells for how long the longest holding session has held items."""
    queue = open_queue()
    put(queue, b"a", b"b")
    now = [100.0]
    monkeypatch.setattr(type(queue._open()), "now", staticmethod(lambda: now[0]))
    with queue.session() as first, queue.session() as second:
        assert (queue.stats().sessions, queue.stats().held_seconds) == (2, 0)
        first.dequeue()
        now[0] += 5
        second.dequeue()
        now[0] += 2
        assert queue.stats().held_seconds == 7
        first.rollback()
        assert queue.stats().held_seconds == 2
        second.rollback()
    assert (queue.stats().sessions, queue.stats().held_seconds) == (0, 0)


def test_how_long_a_failed_ticket_holds(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """``stats()`` and ``explain()`` tell for how long a flush that failed has held its items, until the rollback."""
    queue = open_queue(max_items=1, full="block")
    put(queue, b"a")
    now = [100.0]
    monkeypatch.setattr(type(queue._open()), "now", staticmethod(lambda: now[0]))
    with queue.session() as session:
        session.dequeue()
        session.enqueue_many([b"b", b"c"])
        assert isinstance(session.flush(wait=False).exception(SECONDS), QueueFullError)
        now[0] += 7
        assert (queue.stats().held, queue.stats().held_seconds) == (1, 7)
        ((holder,),) = [use.holders for use in queue.explain()]
        assert holder.seconds == 7
        session.rollback()
    assert (queue.stats().held, queue.stats().held_seconds) == (0, 0)


@pytest.mark.usefixtures("reports_each_step")
def test_compactions_are_counted(open_queue: QueueFactory) -> None:
    """A compaction counts the segments that it emptied and the bytes that it copied. If it is given up, it counts its
    bytes and no segment."""
    queue = open_queue(**LITTLE)
    sparse(queue)

    def stop(copied_bytes: int, _: int | None) -> None:
        if copied_bytes:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        queue.compact(progress=stop)
    given_up = queue.stats()
    assert given_up.compacted_segments == 0 < given_up.copied_bytes
    done = queue.compact()
    stats = queue.stats()
    assert (stats.compacted_segments, stats.copied_bytes - given_up.copied_bytes) == done


def test_a_queue_that_is_well_is_not_broken(open_queue: QueueFactory) -> None:
    """Without a failure ``stats()`` shows no damage and no broken queue, and its text shows readable histograms."""
    queue = open_queue()
    put(queue, b"x")
    stats = queue.stats()
    assert not stats.broken and stats.damage_found == 0
    assert "group_size         1 on average" in repr(stats)
    assert repr(stats.group_size) == "Histogram(1 values, mean 1, half <= 1, 99% <= 1, all <= 1)"


def test_stalls_are_measured_by_their_cause(open_queue: QueueFactory) -> None:
    """Each thing that a flush waits for beside its own frame is in ``stall_seconds``, under its cause."""
    queue = open_queue(log_bytes=8192, segment_bytes=4000, inline_bytes=3000)
    assert not any(histogram.count for histogram in queue.stats().stall_seconds.values())
    put(queue, b"x")
    quiet = queue.stats().stall_seconds
    put_each(queue, [b"y" * 10] * 10)
    assert [each.count for each in queue.stats().stall_seconds.values()] == [each.count for each in quiet.values()]
    put_each(queue, [b"x" * 1000] * 30)
    put(queue, *[b"x" * 1000] * 10)
    stalls = queue.stats().stall_seconds
    found = {cause for cause, histogram in stalls.items() if histogram.count}
    assert found == {"trim", "spare", "segment", "sync"} and all(stalls[cause].sum > 0 for cause in found)
    text = str(queue.stats())
    assert "stall: trim" in text and "stall: room" not in text
    assert max(map(len, text.splitlines())) <= 80


class Heard:
    """A lock that tells when a thread is about to wait for it."""

    def __init__(self, lock: threading.Lock) -> None:
        self.lock, self.is_asked = lock, threading.Event()
        self.locked = lock.locked

    def __enter__(self) -> None:
        self.is_asked.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_waiting_for_others_is_a_stall(open_queue: QueueFactory) -> None:
    """A flush that waits for another writer, or for room, is in ``stall_seconds`` with all of that time."""
    queue = open_queue(max_items=1, full="block")
    with ThreadPoolExecutor(1) as threads:
        writing = Heard(queue._open().writing)
        queue._open()._group_commit.writing = writing  # type: ignore[assignment]
        with writing.lock:
            flush = threads.submit(put, queue, b"a")
            assert writing.is_asked.wait(SECONDS)
        flush.result(SECONDS)
        assert queue.stats().stall_seconds["writer"].count == 1
        flush = threads.submit(put, queue, b"b")
        wait_for(lambda: queue.stats().waiting == 1)
        assert drain(queue) == [b"a"]
        flush.result(SECONDS)
    room = queue.stats().stall_seconds["room"]
    assert room.count == 1 and room.sum > 0


def test_a_look_waits_for_no_flush(open_queue: QueueFactory) -> None:
    """``stats()`` answers while a flush waits for the disk."""
    gate = Gate()
    queue: PersistentQueue = open_queue(disk=replace(DISK, failpoint=gate.failpoint))
    gate.armed = True
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(put, queue, b"x")
        assert gate.reached.wait(SECONDS)
        assert queue.stats().flush_seconds.count == 0
        assert not flushing.done()
        gate.go_on.set()
    assert queue.stats().flush_seconds.count == 1

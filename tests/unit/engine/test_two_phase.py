"""One transaction over several queues: it commits in all or in none, whatever fails and whichever process is killed."""

from __future__ import annotations

import errno
import inspect
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, permutations
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    DiskFullError,
    InvalidNameError,
    PersistentQueue,
    Producer,
    QueueFullError,
    SubscriptionNotFoundError,
    UnflushedWarning,
    check,
    transaction,
)
from persistentqueue.core.operations import Decision, Prepare, Resolution
from persistentqueue.storage.log_reader import read_log
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.support.limits import SECONDS
from tests.support.queues import crash, drain, log_file, put, put_each, tmpfs, wait_for

STEPS = ("several.1 write ahead", "several.2 prepare", "several.3 decide", "several.4 apply")


def move(*queues: PersistentQueue) -> None:
    """Move an item from the first queue to each of the others."""
    with transaction(*queues) as (source, *targets):
        item = source.dequeue()
        assert item is not None
        for target in targets:
            target.enqueue(item)


def contents(*queues: PersistentQueue) -> list[list[bytes]]:
    """Return the ready items of each queue."""
    return [list(queue.browse()) for queue in queues]


def decisions(queue: PersistentQueue) -> list[set[str]]:
    """Return, for each decision that the queue remembers, the names of the participants that may ask for it."""
    decided = queue._open()._store.state.decisions.values()
    return [{participant.name for participant in participants} for participants in decided]


def operations(path: Path, name: str) -> list[Any]:
    """Return the operations of the log since its checkpoint."""
    frames = read_log(DISK, str(log_file(path / name))).frames[1:]
    return [each for frame in frames for done in frame.transactions for each in done]


def failing(step: str, error: BaseException, number: int = 1) -> Disk:
    """Return a disk on which the step raises the error when it is reached for the ``number``-th time."""
    left = [number]

    def failpoint(name: str) -> None:
        left[0] -= name == step
        if name == step and left[0] == 0:
            raise error

    return replace(DISK, failpoint=failpoint)


# --- promises --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", list(permutations("abc")), ids="".join)
def test_committed_in_all(open_queue: QueueFactory, names: tuple[str, ...]) -> None:
    """When the block ends, the work of the sessions is committed in all queues, in whatever order they are given."""
    queues = [open_queue(name) for name in names]
    put(queues[0], b"1", b"2")
    move(*queues)
    assert contents(*queues) == [[b"2"], [b"1"], [b"1"]]
    for queue in queues:
        queue.close()
    assert contents(*[open_queue(name) for name in names]) == [[b"2"], [b"1"], [b"1"]]


def test_rolled_back_in_all(open_queue: QueueFactory) -> None:
    """An exception in the block releases the dequeued items and drops the enqueued ones in all queues, and is
    raised."""
    source, target = open_queue("source"), open_queue("target")
    put(source, b"1", b"2")
    with pytest.raises(ZeroDivisionError), transaction(source, target) as (a, b):
        b.enqueue(a.dequeue() or b"")
        raise ZeroDivisionError
    assert contents(source, target) == [[b"1", b"2"], []]
    with pytest.raises(ClosedError):
        a.dequeue()


def test_a_rollback_concerns_its_own_session(open_queue: QueueFactory) -> None:
    """``rollback`` of one session undoes its own work alone; that of each session undoes the transaction."""
    source, target = open_queue("source"), open_queue("target")
    put(source, b"a")
    with transaction(source, target) as (taking, putting):
        putting.enqueue(taking.dequeue() or b"")
        taking.rollback()
        putting.rollback()
    assert contents(source, target) == [[b"a"], []]
    with transaction(source, target) as (taking, putting):
        putting.enqueue(taking.dequeue() or b"")
        taking.rollback()
    assert contents(source, target) == [[b"a"], [b"a"]]


def test_both_are_one_frame_each(open_queue: QueueFactory, path: Path) -> None:
    """The queue whose name sorts first decides, and the other prepares. The next frame of the other contains the
    resolution."""
    a, b = open_queue("a"), open_queue("b")
    put(a, b"1", b"2")
    move(a, b)
    prepare, decision = operations(path, "b")[0], operations(path, "a")[-1]
    assert isinstance(prepare, Prepare)
    assert prepare.coordinator == "a"
    assert decision == Decision(prepare.transaction, ("b",), (bytes.fromhex(b.identity),))
    assert read_log(DISK, str(log_file(path / "a"))).last_number == prepare.number
    assert (check(path, "a").in_doubt, check(path, "b").in_doubt) == ("", "a")
    put(b, b"next")
    assert Resolution(prepare.transaction, True) in operations(path, "b")
    assert check(path, "b").in_doubt == ""


def test_one_queue_is_plain(open_queue: QueueFactory, path: Path) -> None:
    """A transaction over one queue, and one over several with work in one only, is an ordinary commit."""
    a, b = open_queue("a"), open_queue("b")
    with transaction(a) as (alone,):
        alone.enqueue(b"1")
    with transaction(a, b) as (_, other):
        other.enqueue(b"2")
        assert other.flush(marker=("m", 1)) is True
    with transaction(a, b):
        pass
    assert contents(a, b) == [[b"1"], [b"2"]]
    said = operations(path, "a") + operations(path, "b")
    assert not any(isinstance(each, Prepare | Decision | Resolution) for each in said)
    assert b.marker("m") == 1


def test_many_queues_need_few_frames(tmp_path: Path) -> None:
    """A transaction needs few frames of the interpreter for each of its queues: it can be over many of them."""
    count, before, depth = 30, sys.getrecursionlimit(), len(inspect.stack(0))
    queues = [PersistentQueue(tmp_path, f"q{number:02}") for number in range(count)]
    with transaction(*queues) as sessions:
        for session in sessions:
            session.enqueue(b"x")
        sys.setrecursionlimit(depth + 6 * count + 80)
        try:
            sessions[0].flush()
        finally:
            sys.setrecursionlimit(before)
    for queue in queues:
        assert drain(queue) == [b"x"]
        queue.close()


def test_flush_in_the_block(open_queue: QueueFactory) -> None:
    """A flush of one session commits the work of all. Later work belongs to another transaction."""
    a, b = open_queue("a"), open_queue("b")
    put(a, b"1", b"2", b"3")
    with pytest.raises(ZeroDivisionError), transaction(a, b) as (source, target):
        for _ in range(2):
            target.enqueue(source.dequeue() or b"")
            assert target.flush() is True
        target.enqueue(source.dequeue() or b"")
        raise ZeroDivisionError
    assert contents(a, b) == [[b"3"], [b"1", b"2"]]


def test_marker_that_was_reached(open_queue: QueueFactory) -> None:
    """If one of the queues has reached the marker, nothing is committed in any, and the dequeued items are released."""
    a, b = open_queue("a"), open_queue("b")
    put(a, b"1", b"2")
    with transaction(a, b) as (source, target):
        for expected in (True, False):
            target.enqueue(source.dequeue() or b"")
            assert target.flush(marker=("job", 7)) is expected
        assert source.dequeue() == b"2"
        source.rollback()
    assert contents(a, b) == [[b"2"], [b"1"]]
    assert (a.marker("job"), b.marker("job")) == (None, 7)
    put(b, b"more")


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        (lambda open_queue, queue: [queue], "the same queue twice"),
        (lambda open_queue, queue: [open_queue("x", path=Path(queue.path) / "below")], "beside each other"),
        (lambda open_queue, queue: [open_queue("x", sync=False)], "sync=False"),
        (lambda open_queue, queue: [open_queue(None, path=Path(queue.path) / "no name")], "cannot be a queue's name"),
    ],
    ids=["twice", "elsewhere", "unsynced", "odd name"],
)
def test_queues_that_do_not_go_together(
    open_queue: QueueFactory, others: Callable[[QueueFactory, PersistentQueue], list[PersistentQueue]], problem: str
) -> None:
    """A combination of queues that cannot commit together is refused before the block begins, with the reason."""
    queue = open_queue("a")
    with pytest.raises(ValueError, match=problem), transaction(queue, *others(open_queue, queue)):
        pytest.fail("the block was entered")
    assert issubclass(InvalidNameError, ValueError)
    assert not queue._sessions or all(session.closed for session in queue._sessions)


def test_without_queues_and_with_closed_ones(open_queue: QueueFactory) -> None:
    """A transaction over no queue raises ``ValueError``. A queue that is closed before or in the block makes it raise
    ``ClosedError``."""
    with pytest.raises(ValueError, match="needs a queue"), transaction():
        pytest.fail("the block was entered")
    a, b, c = (open_queue(name) for name in "abc")
    c.close()
    with pytest.raises(ClosedError), transaction(a, c):
        pytest.fail("the block was entered")
    with pytest.raises(ClosedError), transaction(a, b) as (one, other):
        one.enqueue(b"1")
        other.enqueue(b"2")
        with pytest.warns(UnflushedWarning, match="1 enqueued item is dropped"):
            b.close()
    assert contents(a, open_queue("b")) == [[], []]


# --- limits, full disks, threads -------------------------------------------------------------------------------------


def test_limit_of_one_refuses_all(open_queue: QueueFactory) -> None:
    """If one queue has no room, the flush is refused at once and nothing is committed in any. The sessions can flush
    again."""
    a, b = open_queue("a"), open_queue("b", max_items=1, full="block")
    put(a, b"1")
    put(b, b"full")
    with transaction(a, b) as (source, target):
        target.enqueue(source.dequeue() or b"")
        with pytest.raises(QueueFullError, match="max_items=1"):
            target.flush()
        with pytest.raises(ValueError, match="never waits for room"):
            target.flush(timeout=1.0)
        with pytest.raises(ValueError, match="at least 0"):
            target.flush(timeout=-1.0)
        assert contents(a, b) == [[], [b"full"]]
        assert drain(b) == [b"full"]
    assert contents(a, b) == [[], [b"1"]]
    assert (a.stats().refused, b.stats().refused) == (0, 1)
    assert (a.stats().transactions, b.stats().transactions) == (2, 3)


@pytest.mark.parametrize("full", ["a", "b"])
def test_full_disk_of_one_refuses_all(open_queue: QueueFactory, full: str) -> None:
    """If the disk of one queue is full, be it the coordinator or the participant, nothing is committed in any. Once
    there is room, the sessions can flush again."""
    is_full = [False]

    def refuse(call: Callable[..., Any]) -> Callable[..., Any]:
        def door(*arguments: Any) -> Any:
            if is_full[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            return call(*arguments)

        return door

    disk = replace(DISK, pwritev=refuse(DISK.pwritev), fallocate=refuse(DISK.fallocate))
    queues = {name: open_queue(name, disk=disk if name == full else DISK, inline_bytes=0) for name in "ab"}
    put(queues["a"], b"1")
    for queue in queues.values():
        queue.trim()
    is_full[0] = True
    with transaction(*queues.values()) as (a, b):
        b.enqueue(a.dequeue() or b"")
        a.enqueue(b"new" * 1000)
        b.enqueue(b"new" * 1000)
        with pytest.raises(DiskFullError):
            a.flush()
        assert contents(*queues.values()) == [[], []]
        is_full[0] = False
    assert contents(*queues.values()) == [[b"new" * 1000], [b"1", b"new" * 1000]]


def test_full_log_of_one_refuses_all(tmp_path: Path) -> None:
    """If the log of one queue cannot grow for its part, nothing is prepared or committed in any."""
    small: dict[str, Any] = {"log_bytes": 4096, "inline_bytes": 1 << 20}
    with (
        tmpfs(tmp_path / "small", 1 << 20) as root,
        PersistentQueue(root, "a", **small) as a,
        PersistentQueue(root, "b", **small) as b,
    ):
        put(a, b"1")
        with transaction(a, b) as (source, target):
            target.enqueue(source.dequeue() or b"")
            target.enqueue(b"x" * (400 << 10))
            with pytest.raises(DiskFullError):
                target.flush()
            assert contents(a, b) == [[], []]
            target.rollback()
            target.enqueue(b"1")
        assert contents(a, b) == [[], [b"1"]]


def test_who_waits_is_woken(open_queue: QueueFactory) -> None:
    """Consumers that wait for an item in any of the queues get it when the transaction commits."""
    a, b = open_queue("a"), open_queue("b")
    with ThreadPoolExecutor(2) as pool:
        sessions = [a.session(), b.session()]
        waiting = [pool.submit(session.dequeue, SECONDS) for session in sessions]
        wait_for(lambda: a._open()._waiters.count + b._open()._waiters.count == 2)
        with transaction(b, a) as (one, other):
            one.enqueue(b"b")
            other.enqueue(b"a")
        assert [each.result(SECONDS) for each in waiting] == [b"a", b"b"]
        for session in sessions:
            session.close()


def test_who_waits_for_room_is_told(open_queue: QueueFactory) -> None:
    """A writer that waits for room in a queue gets it when a transaction over several queues takes an item out."""
    a, b = open_queue("a", max_items=1, full="block"), open_queue("b")
    put(a, b"1")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(put, a, b"2")
        wait_for(lambda: a.stats().waiting == 1)
        move(a, b)
        waiting.result(SECONDS)
    assert contents(a, b) == [[b"2"], [b"1"]]


def test_many_threads_in_a_circle(open_queue: QueueFactory) -> None:
    """Threads that move items between the same queues in all directions wait for each other, but never for ever."""
    queues = [open_queue(name, log_bytes=4096) for name in "abc"]
    for queue in queues:
        put(queue, *[f"{queue.name}{number}".encode() for number in range(40)])
    start = threading.Barrier(6)

    def work(pair: tuple[PersistentQueue, ...]) -> None:
        start.wait(SECONDS)
        for _ in range(30):
            with transaction(*pair) as (source, target):
                target.enqueue_many(source.dequeue_many(1))
            put(pair[0], b"")
            with pair[0].session() as alone:
                assert alone.dequeue() is not None
                alone.rollback()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, permutations(queues, 2)))
    everything = sorted(filter(None, chain.from_iterable(contents(*queues))))
    assert everything == sorted(f"{name}{number}".encode() for name in "abc" for number in range(40))


# --- decisions that are remembered -----------------------------------------------------------------------------------


def test_decision_is_forgotten(open_queue: QueueFactory) -> None:
    """The coordinator remembers a decision until each participant has settled it by a frame, a trim or its closing."""
    a, b, c, d = (open_queue(name) for name in "abcd")
    put(a, b"1")
    move(a, b, c, d)
    assert decisions(a) == [{"b", "c", "d"}]
    put(b, b"next")
    assert decisions(a) == [{"c", "d"}]
    c.trim()
    assert decisions(a) == [{"d"}]
    d.close()
    assert decisions(a) == []


def test_idle_queue_settles(open_queue: QueueFactory) -> None:
    """The maintenance of an idle participant settles the decision, too."""
    a, b = open_queue("a"), open_queue("b")
    put(a, b"1")
    move(a, b)
    b.maintain()
    assert decisions(a) == []


def test_next_transaction_settles_the_last(open_queue: QueueFactory) -> None:
    """A coordinator remembers at most one decision for each participant, however many there were."""
    a, b, c = (open_queue(name) for name in "abc")
    put(a, *[b"%d" % number for number in range(9)])
    for _ in range(3):
        move(a, c)
        assert decisions(a) == [{"c"}]
        move(a, b, c)
        assert decisions(a) == [{"b", "c"}]
        move(a, b)
        assert decisions(a) == [{"c"}, {"b"}]
        move(b, c)
        assert (decisions(a), decisions(b)) == ([], [{"c"}])


def test_decision_outlives_the_trims_of_who_decided(open_queue: QueueFactory, path: Path) -> None:
    """A decision that a participant may have to ask for survives trims and reopenings of the coordinator."""
    a, b = open_queue("a"), open_queue("b")
    put(a, b"1", b"2")
    move(a, b)
    crash(b)
    a.trim()
    put(a, b"3")
    a.trim()
    a.close()
    a = open_queue("a")
    a.trim()
    assert decisions(a) == [{"b"}]
    a.close()
    b = open_queue("b")
    assert (b.recovery.resolved, contents(b)) == (True, [[b"1"]])
    b.close()
    assert decisions(open_queue("a")) == []


def test_subscription_stands_for_its_queue(open_queue: QueueFactory) -> None:
    """A subscription takes part in place of its queue, and the other consumers keep the item. If the subscription was
    removed, the transaction is refused."""
    a, b = open_queue("a"), open_queue("b")
    billing = a.subscribe("billing")
    put(a, b"1", b"2")
    with transaction(billing, b) as (source, target):
        target.enqueue(source.dequeue() or b"")
    assert contents(a, b) == [[b"1", b"2"], [b"1"]]
    with pytest.raises(ValueError, match="twice"), transaction(billing, a):
        pytest.fail("the block was entered")
    crash(b)
    crash(a)
    b, a = open_queue("b"), open_queue("a")
    billing = a.subscribe("billing")
    assert (contents(a, b), list(billing.browse())) == ([[b"1", b"2"], [b"1"]], [b"2"])
    with pytest.raises(SubscriptionNotFoundError), transaction(billing, b) as (source, target):
        target.enqueue(source.dequeue() or b"")
        a.unsubscribe("billing")
    assert contents(a, b) == [[b"1", b"2"], [b"1"]]


def test_everything_else_goes_on(open_queue: QueueFactory, path: Path) -> None:
    """Spilled sessions, large items, producers, compaction, trims and markers work together with such transactions."""
    small = {"segment_bytes": 4096, "log_bytes": 4096, "memory_bytes": 0, "inline_bytes": 500}
    a, b = open_queue("a", **small), open_queue("b", **small)
    put(a, *[b"%d" % number * 400 for number in range(50)])
    for number in range(20):
        with transaction(a, b) as (source, target):
            target._spill_bytes = 1000
            target.enqueue_many(source.dequeue_many(2))
            target.enqueue(b"large" * 1000)
        with Producer(path, "b") as producer:
            producer.enqueue(b"from outside")
            producer.flush(marker=("outside", number))
        if number % 5 == 0:
            b.compact(below=1.0)
            a.trim()
    crash(b)
    crash(a)
    b = open_queue("b", **small)
    a = open_queue("a", **small)
    assert [item[:1] for item in a.browse()] == [b"4"] * 10
    found = list(b.browse())
    assert [item for item in found if len(item) < 1000 and item != b"from outside"] == [
        b"%d" % number * 400 for number in range(40)
    ]
    assert (found.count(b"large" * 1000), found.count(b"from outside"), b.marker("outside")) == (20, 20, 19)


# --- faults at every step --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("injected"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("step", STEPS)
def test_fault_at_every_step(open_queue: QueueFactory, step: str, error: BaseException) -> None:
    """A fault before the decision costs nothing. From then on the queues are broken, and recovery decides.

    In each case the transaction is committed in all queues or in none.
    """
    a, b, c = open_queue("a", disk=failing(step, error)), open_queue("b"), open_queue("c")
    put(a, b"1", b"2")
    with pytest.raises(type(error)):
        move(a, b, c)
    if step in STEPS[:2]:
        assert contents(a, b, c) == [[b"1", b"2"], [], []]
        move(a, b, c)
        put(b, b"next")
        assert contents(a, b, c) == [[b"2"], [b"1", b"next"], [b"1"]]
        return
    for queue in (a, b, c):
        with pytest.raises(BrokenQueueError):
            put(queue, b"no")
        with pytest.raises(BrokenQueueError):
            queue.trim()
        queue.close()
    c, a, b = (open_queue(name) for name in "cab")
    is_decided = step == STEPS[3]
    assert c.recovery.resolved is is_decided
    assert contents(a, b, c) == ([[b"2"], [b"1"], [b"1"]] if is_decided else [[b"1", b"2"], [], []])


@pytest.mark.parametrize(
    ("failing_queue", "broken", "committed"),
    [("b", {"b"}, False), ("c", {"c"}, False), ("a", {"a", "b", "c"}, None)],
    ids=["first prepare", "second prepare", "decision"],
)
def test_frame_that_fails(
    open_queue: QueueFactory, failing_queue: str, broken: set[str], committed: bool | None
) -> None:
    """A prepare that fails breaks only its own queue. A decision that fails breaks all, since its outcome is
    unknown."""
    armed = [False]

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if armed[0] and flags:
            raise OSError(errno.EIO, "injected")
        return DISK.pwritev(fd, buffers, offset, flags)

    disk = replace(DISK, pwritev=pwritev, open_direct=lambda path: None)
    queues = {name: open_queue(name, disk=disk if name == failing_queue else DISK) for name in "abc"}
    put(queues["a"], b"1", b"2")
    armed[0] = True
    with pytest.raises(BrokenQueueError):
        move(*queues.values())
    armed[0] = False
    for name, queue in queues.items():
        if name in broken:
            with pytest.raises(BrokenQueueError):
                put(queue, b"no")
            queue.close()
        else:
            put(queue, b"yes")
    queues = {name: open_queue(name) if queue.closed else queue for name, queue in queues.items()}
    found = [[item for item in queue.browse() if item != b"yes"] for queue in queues.values()]
    assert found == [[b"1", b"2"], [], []]


@pytest.mark.parametrize("end", [PersistentQueue.close, PersistentQueue.trim, PersistentQueue.maintain])
def test_the_segment_of_an_aborted_part_goes_behind_the_resolution(
    open_queue: QueueFactory, end: Callable[[PersistentQueue], object]
) -> None:
    """A queue that was prepared in vain deletes the segment of that frame only when its log says that it is void."""
    changes: list[str] = []

    def rename(source: str, target: str) -> None:
        DISK.rename(source, target)
        changes.append(Path(target).suffix)

    def unlink(path: str) -> None:
        changes.append(Path(path).suffix)
        DISK.unlink(path)

    def pwritev(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if flags:
            raise OSError(errno.EIO, "injected")
        return DISK.pwritev(fd, buffers, offset, flags)

    a, b = open_queue("a"), open_queue("b", disk=replace(DISK, rename=rename, unlink=unlink))
    c = open_queue("c", disk=replace(DISK, pwritev=pwritev, open_direct=lambda path: None))
    put(a, b"1", b"2")
    with pytest.raises(BrokenQueueError):
        move(a, b, c)
    c.close()
    changes.clear()
    with b.session() as session:
        session._spill_bytes = 1
        session.enqueue_many([b"3", b"4"])
        session.rollback()
    assert changes == []
    end(b)
    assert changes.index(".log") < changes.index(".seg")
    b.close()
    assert contents(a, open_queue("b"), open_queue("c")) == [[b"1", b"2"], [], []]


def test_blocks_that_cannot_be_made_durable(open_queue: QueueFactory) -> None:
    """A sync that fails before anything is prepared breaks only its own queue, and nothing is committed."""
    armed = [False]

    def fdatasync(fd: int) -> None:
        if armed[0]:
            raise OSError(errno.EIO, "injected")
        DISK.fdatasync(fd)

    a, b = open_queue("a"), open_queue("b", inline_bytes=0, disk=replace(DISK, fdatasync=fdatasync))
    put(a, b"1", b"2")
    armed[0] = True
    with pytest.raises(BrokenQueueError):
        move(a, b)
    armed[0] = False
    b.close()
    move(a, b := open_queue("b"))
    assert contents(a, b) == [[b"2"], [b"1"]]


@pytest.mark.parametrize("step", ["commit.1 write blocks", "commit.2 sync blocks"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()], ids=["interrupt", "memory"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_interrupted_while_blocks_are_written(
    open_queue: QueueFactory, step: str, error: BaseException, name: str
) -> None:
    """An interruption, or a lack of memory, while blocks are written breaks no queue, as in any commit. The sessions
    keep their operations."""
    armed = [False]

    def failpoint(reached: str) -> None:
        if armed[0] and reached == step:
            armed[0] = False
            raise error

    disk = replace(DISK, failpoint=failpoint)
    a, b = (open_queue(each, disk=disk if each == name else DISK) for each in "ab")
    put(a, b"1", b"2")
    with transaction(a, b) as (source, target):
        target.enqueue(source.dequeue() or b"")
        source.enqueue(b"3")
        armed[0] = True
        with pytest.raises(type(error)):
            source.flush()
        assert contents(a, b) == [[b"2"], []]
    put(b, b"yes")
    assert contents(a, b) == [[b"2", b"3"], [b"1", b"yes"]]


def test_interrupted_before_it_knows(open_queue: QueueFactory) -> None:
    """A participant that was interrupted before it learned the outcome of its prepare is broken at its next write."""
    a, b = open_queue("a"), open_queue("b")
    put(a, b"1")
    move(a, b)
    settling = b._open()._store.generations.settling
    assert settling is not None
    settling.committed = None
    with pytest.raises(BrokenQueueError, match="interrupted"):
        put(b, b"no")
    b.close()
    b = open_queue("b")
    assert (b.recovery.resolved, contents(a, b)) == (True, [[], [b"1"]])


def test_trim_behind_it_that_fails(open_queue: QueueFactory) -> None:
    """If the trim that follows a commit is interrupted, the transaction stays committed and the queue is broken."""
    error = [False]

    def failpoint(name: str) -> None:
        if error[0] and name.startswith("trim.2"):
            raise KeyboardInterrupt

    settings = {"segment_bytes": 100, "inline_bytes": 0, "memory_bytes": 0}
    a, b = open_queue("a", disk=replace(DISK, failpoint=failpoint), **settings), open_queue("b")
    put_each(a, [b"%d" % number * 50 for number in range(40)])
    error[0] = True
    with pytest.raises(KeyboardInterrupt), transaction(a, b) as (source, target):
        target.enqueue_many(source.dequeue_many(40))
    error[0] = False
    with pytest.raises(BrokenQueueError):
        put(a, b"no")
    assert len(b) == 40
    a.close()
    assert len(open_queue("a")) == 0


@pytest.mark.parametrize("other", [3, None, "orders", object])
def test_item_4_a_transaction_over_no_queue(open_queue: QueueFactory, other: Any) -> None:
    """``transaction`` refuses an object that is not a queue with a ``TypeError`` that says so."""
    queue = open_queue()
    with pytest.raises(TypeError, match="open queues and subscriptions"):
        transaction(queue, other)

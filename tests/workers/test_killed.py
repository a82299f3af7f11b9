"""Real processes that share a queue are killed, stopped, and run out of disk space or descriptors; the others go on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

from persistentqueue import PersistentQueue, QueueLockedError, View
from tests.support.queues import tmpfs, wait_for
from tests.support.worker_processes import AFTER_ANSWER, BEFORE_ANSWER, CallError, Colleague

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and signals")
BOUND_SECONDS = 20.0
"""Bound on each measured time: a machine under load may take long, but nothing waits for a timeout of a minute."""
ROUNDS = 5

Start = Callable[..., Colleague]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a process; the first one is the owner."""
    made: list[Colleague] = []

    def begin(path: Path = tmp_path, waits: bool = True, **settings: object) -> Colleague:
        made.append(Colleague(path, **settings))
        if waits:
            made[-1].result()
        return made[-1]

    yield begin
    for each in made:
        each.__exit__(None, None, None)


def put(process: Colleague, *items: bytes) -> None:
    """Enqueue the items in one flush of the process."""
    process.call("enqueue_many", items)
    assert process.call("flush") is True


def test_items_of_a_killed_worker_are_with_another_one(start: Start) -> None:
    """A worker that waits gets the items of a killed worker, in order; the median time is printed."""
    owner, waiting = start(), start()
    seconds = []
    for number in range(ROUNDS):
        victim = start()
        put(owner, b"%d a" % number, b"%d b" % number, b"%d c" % number)
        assert victim.call("dequeue_many", 2) == [b"%d a" % number, b"%d b" % number]
        assert waiting.call("dequeue") == b"%d c" % number
        waiting.begin("dequeue_many", 2, timeout=None)
        assert waiting.is_silent(0.05)
        killed = victim.kill()
        assert waiting.result() == [b"%d a" % number, b"%d b" % number]
        seconds.append(waiting.answered - killed)
        assert waiting.call("flush") is True
    print(f"a worker was killed: its items are with another one after {1000 * median(seconds):.1f} ms")
    assert max(seconds) < BOUND_SECONDS


def test_workers_that_wait_outlive_the_owner(start: Start) -> None:
    """After a kill of the owner, workers that wait for an item go on waiting, and get one from the next owner."""
    seconds = []
    for number in range(ROUNDS):
        owner, producer, *waiting = start(), start(), start(), start()
        for each in waiting:
            each.begin("dequeue", timeout=None)
        assert all(each.is_silent(0.05) for each in waiting)
        killed = owner.kill()
        put(producer, b"%d a" % number)
        seconds.append(producer.answered - killed)
        put(producer, b"%d b" % number)
        assert sorted(each.result() for each in waiting) == [b"%d a" % number, b"%d b" % number]
        for each in (*waiting, producer):
            assert each.call("flush") is True
        for each in (*waiting, producer):
            each.kill()
    print(f"the owner was killed: the next flush is durable after {1000 * median(seconds):.1f} ms")
    assert max(seconds) < BOUND_SECONDS


def test_held_items_are_back_after_the_owner_was_killed(start: Start) -> None:
    """Sessions that held items raise ``SessionLostError`` at their next call, and the items come in their order."""
    owner, first, second = start(), start(), start()
    put(owner, *(b"%d" % number for number in range(6)))
    assert first.call("dequeue_many", 2) == [b"0", b"1"]
    assert second.call("dequeue_many", 2) == [b"2", b"3"]
    second.call("enqueue", b"dropped")
    owner.kill()
    for each, call, arguments in ((first, "dequeue", ()), (second, "flush", ())):
        with pytest.raises(CallError, match=r"SessionLostError.*held 2 items"):
            each.call(call, *arguments)
    assert first.call("peek", 9) == [b"%d" % number for number in range(6)]
    assert first.call("dequeue_many", 9) == [b"%d" % number for number in range(6)]
    assert first.call("flush") is True


STEPS = {
    "commit.1 write blocks": False,
    "commit.2 sync blocks": False,
    "commit.3 write frame": False,
    "commit.4 apply": True,
    BEFORE_ANSWER: True,
    AFTER_ANSWER: True,
}
"""Places of a flush at which the owner is killed, each with whether the flush is committed by then."""


@pytest.mark.parametrize("holds", [False, True], ids=["enqueues", "holds"])
@pytest.mark.parametrize("step", STEPS)
def test_flush_tells_the_truth_if_the_owner_is_killed_in_it(start: Start, step: str, holds: bool) -> None:
    """A flush returns True if and only if it was committed. One that only enqueues is done again by itself."""
    owner, worker = start(inline_bytes=0), start(inline_bytes=0)
    put(owner, b"old")
    if holds:
        assert worker.call("dequeue") == b"old"
    worker.call("enqueue_many", [b"new", b"newer"])
    owner.call("arm", step)
    if holds and not STEPS[step]:
        with pytest.raises(CallError, match="SessionLostError"):
            worker.call("flush")
    else:
        assert worker.call("flush") is True
    owner.wait_for_death()
    new = [b"new", b"newer"] if STEPS[step] or not holds else []
    assert worker.call("peek", 9) == [b"old"] * (not (holds and STEPS[step])) + new
    worker.call("enqueue", b"next")
    assert worker.call("flush") is True


@pytest.mark.parametrize("step", STEPS)
def test_marker_is_recorded_once_if_the_owner_is_killed(start: Start, step: str) -> None:
    """A flush with a marker is committed once, also if the owner is killed in it and the flush is done again."""
    owner, worker = start(inline_bytes=0), start(inline_bytes=0)
    worker.call("enqueue", b"once")
    owner.call("arm", step)
    assert worker.call("flush", marker=("m", 1)) is True
    owner.wait_for_death()
    worker.call("enqueue", b"twice")
    assert worker.call("flush", marker=("m", 1)) is False
    assert worker.call("peek", 9) == [b"once"]


def test_stopped_worker_loses_what_it_holds(start: Start) -> None:
    """With ``hold_seconds`` the items of a stopped worker go back; its late flush raises ``HoldLostError``."""
    owner, worker, other = start(), start(hold_seconds=3), start()
    put(owner, b"a")
    assert worker.call("dequeue") == b"a"
    worker.call("enqueue", b"late")
    worker.stop()
    assert other.call("dequeue", timeout=60) == b"a"
    assert other.call("flush") is True
    worker.go_on()
    with pytest.raises(CallError, match="HoldLostError"):
        worker.call("flush")
    worker.call("rollback")
    assert worker.call("length") == 0
    put(worker, b"c")
    assert worker.call("dequeue") == b"c"
    assert worker.call("flush") is True


def test_stopped_owner_stays_the_owner(start: Start, tmp_path: Path) -> None:
    """No other process takes the lock of a stopped owner. Calls of workers wait, and are answered when it goes on."""
    owner, worker = start(), start()
    owner.stop()
    worker.call("enqueue", b"a")
    worker.begin("flush")
    joining = start(waits=False)
    assert worker.is_silent()
    assert joining.is_silent()
    with pytest.raises(QueueLockedError) as caught:
        PersistentQueue(tmp_path)
    assert caught.value.pid == owner.pid
    owner.go_on()
    assert worker.result() is True
    assert joining.result() is False
    assert owner.call("owns") is True
    assert joining.call("dequeue") == b"a"


def test_owners_that_close_disturb_nobody(start: Start, tmp_path: Path) -> None:
    """While owners close one after the other, workers at work see no error, whether they hold items or not."""
    processes = [start() for _ in range(5)]
    workers = processes[2:]
    for number, each in enumerate(workers):
        each.begin("hammer", number % 2)
    others = len(workers)

    def are_at_work() -> bool:
        """Return whether all workers, but perhaps one that is the owner, have flushed, and have connected to it."""
        return sum(each.flushes > 0 for each in View(tmp_path).connections(60.0) or ()) >= others

    for owner in processes[:2]:
        wait_for(are_at_work)
        owner.call("close queue")
        others = len(workers) - 1
    wait_for(are_at_work)
    for each in workers:
        each.begin("owns")  # ends the work
    found = [each.result() for each in workers]
    assert [errors for _, errors in found] == [[]] * len(workers)
    assert min(flushes for flushes, _ in found) > 0
    assert sum(each.result() for each in workers) <= 1


def test_full_disk_of_the_owner(start: Start, tmp_path: Path) -> None:
    """A worker gets ``DiskFullError`` while the disk is full. After room was made, its flush is committed."""
    with tmpfs(tmp_path / "small", 3 << 20) as small:
        owner = start(small, log_bytes=65536, segment_bytes=262144)
        worker = start(small, log_bytes=65536, segment_bytes=262144)
        flushed = 0
        with pytest.raises(CallError, match="DiskFullError"):
            while True:
                worker.call("enqueue", b"%04d" % flushed * 20_000)
                worker.call("flush")
                flushed += 1
        assert flushed > 5
        assert worker.call("length") == flushed
        assert len(owner.call("dequeue_many", 3)) == 3
        assert owner.call("flush") is True
        taken = len(worker.call("dequeue_many", 1000))
        assert taken == flushed - 3
        assert worker.call("flush") is True  # with the item that did not fit before
        assert owner.call("length") == 1
        for each in (worker, owner):
            each.kill()


def test_owner_without_descriptors(start: Start) -> None:
    """While the owner has no free descriptor, a new worker waits, and the owner logs one warning."""
    owner, worker = start(), start()
    put(worker, b"a")
    before = owner.call("limit", 3)
    opened = 0
    while True:
        worker.begin("open another")
        while worker.is_silent(0.05):
            if owner.call("logged"):
                break
        else:
            assert worker.result() is True
            opened += 1
            continue
        break
    assert opened >= 1
    assert owner.call("length") == 1 + opened
    owner.call("set limit", before)
    assert worker.result() is True
    assert worker.call("length") == 2 + opened
    assert ["a worker has to wait" in text for text in owner.call("logged")] == [True]


def test_a_wait_for_a_descriptor_ends(start: Start) -> None:
    """If the owner has no free descriptor for as long as ``lock_timeout``, a new worker is told, and the owner works
    on."""
    owner, worker = start(), start(lock_timeout=0.5)
    put(worker, b"a")
    before = owner.call("limit", 3)
    with pytest.raises(CallError, match=r"TooManyFilesError.*at the owner of the queue"):
        while True:
            worker.call("open another")
    assert owner.call("length") >= 2
    owner.call("set limit", before)
    assert worker.call("open another") is True
    assert ["a worker has to wait" in text for text in owner.call("logged")] == [True]


def test_new_worker_waits_for_a_descriptor(start: Start) -> None:
    """A worker that found no descriptor at the owner gets in when another worker ends."""
    owner, leaving = start(), start()
    put(leaving, b"a")
    owner.call("limit", 0)
    joining = start(waits=False)
    assert joining.is_silent(0.5)
    leaving.kill()
    assert joining.result() is False
    assert joining.call("peek", 9) == [b"a"]


def test_fork_of_a_worker(start: Start) -> None:
    """A forked child connects anew. The session of its parent keeps its items, and its flush is committed."""
    owner, worker = start(), start()
    put(owner, b"a", b"b", b"c")
    assert worker.call("dequeue") == b"a"
    assert worker.call("use in a fork") == [b"of the child: 2"]
    worker.call("enqueue", b"d")
    assert worker.call("flush") is True
    assert owner.call("peek", 9) == [b"of the child: 2", b"d"]


def test_stopped_reader_holds_nobody_up(start: Start) -> None:
    """A worker that is stopped while a long answer is on its way to it holds no other worker up."""
    owner, worker, slow = start(), start(), start()
    put(owner, *(bytes(100_000) for _ in range(30)))
    slow.begin("dequeue_many", 30, timeout=None)
    slow.stop()
    began = time.monotonic()
    for number in range(20):
        put(worker, b"%d" % number)
    assert time.monotonic() - began < BOUND_SECONDS
    slow.go_on()
    assert len(slow.result()) == 30
    assert slow.call("flush") is True
    assert worker.call("length") == 20


_UNFLUSHED = """
import sys
from persistentqueue import connect

queue = connect(sys.argv[1])
session = queue.session("unflushed")
session.enqueue(b"an item")
"""


def test_a_loss_at_the_end_of_the_owner_points_to_no_line(tmp_path: Path) -> None:
    """The warning of an item that is not flushed when the owner ends names no source line of the package."""
    done = subprocess.run(
        [sys.executable, "-c", _UNFLUSHED, str(tmp_path / "queue")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    place, _, said = done.stderr.partition(": ")
    assert place in {"sys:1", "<sys>:0"}, "of Python up to 3.13, and later"
    assert said.startswith(f"UnflushedWarning: {tmp_path / 'queue'}: the session 'unflushed' ")
    assert done.stderr.count("\n") == 1

"""Dead letters and delays of a queue that counts delivery attempts."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from persistentqueue import (
    ClosedError,
    CorruptionError,
    Encryption,
    PersistentQueue,
    QueueFullError,
    QueueLockedError,
    aio,
    check,
    compat,
    repair,
)
from persistentqueue.core.operations import Delayed, Delivered
from persistentqueue.runtime.retries import DELAY_SECONDS_MAX
from persistentqueue.storage.log_reader import read_log
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, flip, log_file, put, wait_for

from .test_retries import DEAD, Clock, fail, letters, taken

# --- dead letters -----


def test_requeue_brings_them_back(open_queue: QueueFactory) -> None:
    """``requeue`` puts dead letters at the end of their queue, in order, with all their attempts ahead of them."""
    queue = open_queue(**DEAD)
    put(queue, *[b"%d" % number for number in range(4)])
    with queue.session() as session:
        for item in session.dequeue_many(3):
            session.reject(item, retry=False)
        session.flush()
    assert (queue.requeue(0), queue.requeue(2), list(queue.browse())) == (0, 2, [b"3", b"0", b"1"])
    assert (queue.requeue(), queue.requeue(), len(queue.dead_letters)) == (1, 0, 0)
    assert drain(queue) == [b"3", b"0", b"1", b"2"]
    with pytest.raises(ValueError, match="max_items must be at least 0"):
        queue.requeue(-1)
    put(queue, b"4")
    assert [fail(queue, ValueError()) for _ in range(3)] == [[b"4"]] * 3
    assert queue.requeue() == 1
    assert [fail(queue, ValueError("again")) for _ in range(3)] == [[b"4"]] * 3
    assert letters(queue) == [(b"4", 3, "ValueError: again")]


def test_a_shared_queue_of_dead_letters(open_queue: QueueFactory) -> None:
    """Several queues may share a dead-letter queue: each takes back its own items, and all others stay, in order."""
    dead = open_queue("dead")
    queues = [open_queue(name, dead_letter=dead) for name in ("a", "b")]
    for number in range(600):
        put(queues[number % 2], b"%d" % number)
        with queues[number % 2].transaction() as session:
            session.reject(session.dequeue() or b"", retry=False)
        if number % 200 == 0:
            put(dead, b"foreign %d" % number)
    a, b = queues
    assert a.requeue() == 300
    assert drain(a) == [b"%d" % number for number in range(0, 600, 2)]
    assert [each for each in dead.browse() if each.startswith(b"foreign")] == [b"foreign %d" % n for n in (0, 200, 400)]
    assert len(dead) == 303
    a.close()
    assert not dead.closed
    assert b.requeue(299) == 299
    assert len(dead) == 4


def test_requeue_of_more_than_memory(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A requeue of many items spills them, and a requeue that fails changes nothing."""
    monkeypatch.setattr("persistentqueue.runtime.retries.SPILL_BYTES", 1000)
    dead = open_queue("dead")
    queue = open_queue(dead_letter=dead, max_items=50)
    put(queue, *[b"%d" % number * 100 for number in range(50)])
    with queue.transaction() as session:
        for item in session.dequeue_many(50):
            session.reject(item, retry=False)
    put(queue, b"one")
    with pytest.raises(QueueFullError):
        queue.requeue()
    assert (len(dead), len(queue)) == (50, 1)
    assert drain(queue) == [b"one"]
    assert queue.requeue() == 50
    assert drain(queue) == [b"%d" % number * 100 for number in range(50)]


def test_settings_that_do_not_go_together(open_queue: QueueFactory, tmp_path: Path) -> None:
    """Settings that cannot work are refused at the opening, with a message that says what to do, and no queue stays
    open."""
    for settings, error, message in (
        ({"max_attempts": 3}, ValueError, "max_attempts needs dead_letter="),
        ({"max_attempts": 0, "dead_letter": "dead"}, ValueError, "at least 1"),
        ({"max_attempts": True, "dead_letter": "dead"}, TypeError, "a whole number"),
        ({"dead_letter": "dead", "sync": False}, ValueError, "needs sync=True"),
        ({"dead_letter": "orders"}, ValueError, "to another queue, not to itself"),
        ({"dead_letter": 7}, TypeError, "a queue's name, or an open queue"),
        ({"dead_letter": "no/name"}, ValueError, "no/name"),
        ({"retry_delay_seconds": -1}, ValueError, "a delay must be"),
        ({"retry_delay_seconds": "1"}, TypeError, "a number"),
    ):
        with pytest.raises(error, match=message):
            open_queue(**settings)
    elsewhere = open_queue("dead", path=tmp_path / "elsewhere")
    unsynced, fan_out = open_queue("unsynced", sync=False), open_queue("fan-out", fan_out=True)
    for dead, message in (
        (elsewhere, "beside each other"),
        (unsynced, "open it with sync=True"),
        (fan_out, "without fan_out"),
    ):
        with pytest.raises(ValueError, match=message):
            open_queue(dead_letter=dead)
    secret = Encryption("k", lambda _key_id: bytes(32))
    with pytest.raises(ValueError, match="whose items are encrypted: open it with encryption=, too"):
        open_queue("secret", dead_letter=open_queue("plain"), encryption=secret)
    queue = open_queue(dead_letter="dead")
    with pytest.raises(QueueLockedError):
        open_queue("other", dead_letter="dead")
    queue.close()
    elsewhere.close()
    with pytest.raises(ClosedError):
        open_queue(dead_letter=elsewhere)


def test_they_are_opened_and_closed_with_their_queue(open_queue: QueueFactory, tmp_path: Path) -> None:
    """A dead-letter queue that is given by name stands beside its queue, and is opened and closed with it.

    This holds for a queue without a name, too.
    """
    queue = open_queue(None, path=tmp_path / "queues", dead_letter="dead")
    assert (tmp_path / "dead" / "lock").exists()
    queue.close()
    assert queue.dead_letters.closed
    assert check(tmp_path / "dead").sealed


def test_dead_letters_that_were_closed(open_queue: QueueFactory) -> None:
    """If the dead-letter queue was closed before, items to give up stay in their queue, and the error names the closed
    queue."""
    dead = open_queue("dead")
    queue = open_queue(max_attempts=1, dead_letter=dead)
    put(queue, b"item")
    dead.close()
    assert fail(queue, ValueError("row")) == [b"item"]
    with queue.session() as session:
        for again in (session.dequeue, queue.requeue):
            with pytest.raises(ClosedError, match="/dead: the queue is closed: open it again"):
                again()
    assert (len(queue), queue.stats().held) == (1, 0)


def test_what_is_encrypted_stays_so(open_queue: QueueFactory, tmp_path: Path) -> None:
    """An encrypted item stays encrypted when it is given up, and so does the reason."""
    secret = Encryption("k", lambda _key_id: bytes(32))
    queue = open_queue(dead_letter="dead", encryption=secret, compression="zstd")
    put(queue, b"top secret")
    with queue.transaction() as session:
        session.reject(session.dequeue() or b"", "much too secret", retry=False)
    assert letters(queue) == [(b"top secret", 1, "much too secret")]
    queue.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]


def test_a_requeue_that_fails_holds_nothing(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a requeue finds no room while it spills, all dead letters are there as before, and none is on hold."""
    monkeypatch.setattr("persistentqueue.runtime.retries.SPILL_BYTES", 1000)
    queue = open_queue(dead_letter="dead", max_disk_bytes=200_000, log_bytes=16_384)
    put(queue.dead_letters, b"foreign")
    for _ in range(10):
        put(queue, *[b"x" * 1000] * 10)
        with queue.transaction() as session:
            for item in session.dequeue_many(10):
                session.reject(item, retry=False)
    put(queue, bytes(60_000))
    with pytest.raises(QueueFullError):
        queue.requeue()
    assert (len(queue.dead_letters), queue.dead_letters.stats().held) == (101, 0)
    assert next(queue.dead_letters.browse()) == b"foreign"
    drain(queue)
    assert queue.requeue() == 100
    assert (list(queue.dead_letters.browse()), drain(queue)) == ([b"foreign"], [b"x" * 1000] * 100)


def test_stats_and_explain(open_queue: QueueFactory) -> None:
    """``stats`` counts delayed, rejected and dead items, and ``explain`` counts the delayed items of a segment."""
    clock = Clock()
    queue = open_queue(disk=clock.disk, retry_delay_seconds=5, **DEAD)
    put(queue, b"a", b"b", b"c")
    with queue.session() as session:
        session.dequeue_many(2)
        session.reject(b"a")
        session.reject(b"b", retry=False)
        session.flush()
    stats = queue.stats()
    assert (stats.ready, stats.held, stats.delayed, stats.rejected, stats.dead) == (1, 0, 1, 2, 1)
    (use,) = queue.explain()
    assert "1 ready; 1 delayed;" in str(use)


# --- delays -----


def test_others_overtake_what_is_delayed(open_queue: QueueFactory) -> None:
    """A rejected item is ready only after its delay: that of the setting, of a callable for its attempts, or of
    ``reject``."""
    clock = Clock()
    queue = open_queue(disk=clock.disk, retry_delay_seconds=lambda attempts: 10.0 * attempts)
    put(queue, *b"abcd"[:0], b"a", b"b", b"c", b"d")
    with queue.session() as session:
        session.dequeue_many(3)
        session.reject(b"a")
        session.reject(b"b", delay_seconds=30)
        session.reject(b"c", delay_seconds=0)
        session.flush()
        assert (len(queue), list(queue.browse())) == (2, [b"c", b"d"])
        clock.go_on(10)
        assert (queue.peek(9), len(queue)) == ([b"a", b"c", b"d"], 3)
        assert session.dequeue() == b"a"
        session.rollback()
        clock.go_on(19)
        assert list(queue.browse()) == [b"c", b"d"]
        clock.go_on(1)
        assert [taken(session) for _ in range(4)] == [[b"a"], [b"b"], [b"c"], [b"d"]]


def test_a_delay_of_a_callable_ends_at_ten_years(open_queue: QueueFactory) -> None:
    """A callable may grow for ever: a delay of more than ten years is one of ten years."""
    clock = Clock()
    queue = open_queue(disk=clock.disk, retry_delay_seconds=lambda attempts: 2.0 ** (40 * attempts))
    put(queue, b"a")
    with queue.session() as session:
        assert session.dequeue() == b"a"
        session.rollback()
    assert queue.stats().delayed == 1
    clock.go_on(DELAY_SECONDS_MAX)
    assert queue.peek() == [b"a"]


def test_a_batch_is_delayed_as_one(open_queue: QueueFactory) -> None:
    """Adjacent items that are rejected with the same delay are one run in the log and in memory."""
    queue = open_queue(retry_delay_seconds=600)
    put(queue, *[b"%d" % number for number in range(100)])
    with queue.session() as session:
        for item in session.dequeue_many(100):
            number = int(item)
            session.reject(item, delay_seconds=0 if number == 70 else 30 if number >= 50 else None)
        session.flush()
    assert len(queue._open()._store.state.attempts[0].delays) == 3
    stats = queue.stats()
    assert (stats.ready, stats.held, stats.delayed, stats.rejected, stats.dead) == (1, 0, 99, 100, 0)


def test_clear_takes_what_is_due(open_queue: QueueFactory) -> None:
    """``clear`` consumes rejected items that are due, even before another call has noticed; items that are not due
    stay."""
    clock = Clock()
    queue = open_queue(disk=clock.disk, retry_delay_seconds=5)
    put(queue, b"a", b"b", b"c")
    with queue.session() as session:
        session.dequeue_many(2)
        session.reject(b"a", delay_seconds=60)
        session.reject(b"b")
        session.flush()
    clock.go_on(5)
    assert queue.clear() == 2
    assert (len(queue), queue.stats().delayed) == (0, 1)
    clock.go_on(55)
    assert list(queue.browse()) == [b"a"]


@pytest.mark.parametrize("end", [PersistentQueue.close, crash])
def test_a_delay_survives_a_restart(open_queue: QueueFactory, end: Callable[..., None]) -> None:
    """The time at which an item is due survives a restart, in the log.

    If the clock was set back, an item waits no longer than its delay.
    """
    clock = Clock()
    settings = {"disk": clock.disk, "retry_delay_seconds": 60}
    queue = open_queue(**settings)
    put(queue, b"a", b"b", b"c")
    fail(queue, ValueError(), 2)
    with queue.session() as session:
        session.dequeue()
        session.reject(b"c", delay_seconds=600)
        session.flush()
    clock.go_on(20)
    end(queue)
    queue = open_queue(**settings)
    assert (len(queue), queue.stats().delayed) == (0, 3)
    clock.go_on(39)
    assert len(queue) == 0
    clock.go_on(1)
    assert list(queue.browse()) == [b"a", b"b"]
    put(queue, b"d")
    assert list(queue.browse()) == [b"a", b"b", b"d"]
    queue.close()
    clock.wall_ns -= 10**15
    queue = open_queue(**settings)
    assert len(queue) == 1
    clock.go_on(60)
    assert len(queue) == 3
    clock.go_on(540)
    assert len(queue) == 4
    queue.close()
    clock.wall_ns += 10**16
    queue = open_queue(**settings)
    assert [each for each in queue._open()._store.state.supplement() if isinstance(each, Delayed)]
    with queue.session() as session:
        assert [taken(session) for _ in range(4)] == [[b"a"], [b"b"], [b"c"], [b"d"]]
    assert queue._open()._store.state.attempts == {}


def test_who_waits_wakes_when_it_is_due(open_queue: QueueFactory) -> None:
    """A waiter gets a delayed item when it is due, even if the delay began during the wait."""
    queue = open_queue(retry_delay_seconds=0.05)
    put(queue, b"a")
    fail(queue, ValueError())
    with queue.session() as session:
        assert session.dequeue(timeout=60.0) == b"a"
        found: list[bytes | None] = []
        waiter = threading.Thread(target=lambda: found.append(wait_for_one(queue)))
        waiter.start()
        wait_for(lambda: queue._open()._waiters.count == 1)
        session.rollback()
        waiter.join()
    assert found == [b"a"]


def wait_for_one(queue: PersistentQueue[bytes]) -> bytes | None:
    """Wait without a timeout for an item; return it."""
    with queue.transaction() as session:
        return session.dequeue(timeout=None)


def test_a_timeout_that_ends_before(open_queue: QueueFactory) -> None:
    """A wait that is shorter than the delay ends without an item."""
    queue = open_queue(retry_delay_seconds=600)
    put(queue, b"a")
    fail(queue, ValueError())
    with queue.session() as session:
        assert session.dequeue(timeout=0.01) is None
    assert queue.stats().delayed == 1


@pytest.mark.parametrize("kind", [float, Decimal])
def test_a_delay_that_cannot_be_made(open_queue: QueueFactory, kind: Callable[[str], float]) -> None:
    """If the setting makes an invalid delay, the error is raised, and the item is ready again at once."""
    queue = open_queue(retry_delay_seconds=lambda attempts: kind("nan"))
    put(queue, b"a")
    with queue.session() as session:
        session.dequeue()
        with pytest.raises(ValueError, match="a delay must be"):
            session.rollback()
    assert len(queue) == 1


def test_what_has_no_attempts_left_is_not_delayed(open_queue: QueueFactory) -> None:
    """An item without attempts left is not delayed: the next dequeue gives it up."""
    queue = open_queue(max_attempts=1, dead_letter="dead", retry_delay_seconds=600)
    put(queue, b"a")
    with queue.session() as session:
        session.dequeue()
        session.rollback()
    assert queue.stats().delayed == 0
    assert drain(queue) == []
    assert len(letters(queue)) == 1


def test_a_queue_that_ends_delays_nothing(open_queue: QueueFactory) -> None:
    """A session that is closed with its queue, or after it, releases its items without a delay and without an error."""
    queue = open_queue(retry_delay_seconds=600)
    put(queue, b"a")
    with queue.session() as session:
        session.dequeue()
        queue.close()
    with open_queue(retry_delay_seconds=600) as queue:
        assert len(queue) == 1


def test_a_delay_that_cannot_be_logged(open_queue: QueueFactory) -> None:
    """If the log is broken, a delay holds as long as the queue is open."""
    broken: list[bool] = []

    def failpoint(name: str) -> None:
        if broken and name.startswith("commit.3"):
            raise OSError(errno.EIO, "no")

    queue = open_queue(disk=replace(DISK, failpoint=failpoint), retry_delay_seconds=600)
    put(queue, b"a")
    with queue.session() as session:
        session.dequeue()
        broken.append(True)
        session.rollback()
    assert queue.stats().delayed == 1
    crash(queue)


# --- beside others -----


def test_many_threads(open_queue: QueueFactory) -> None:
    """With threads that fail, reject and wait, each item is consumed once or is dead.

    No item is delivered more often than ``max_attempts`` allows.
    """
    queue = open_queue(retry_delay_seconds=0.001, log_bytes=8192, segment_bytes=3000, **DEAD)
    numbers = range(150)
    put(queue, *[b"%d" % number for number in numbers])
    done: list[bytes] = []
    had: list[bytes] = []

    def work(chance: Random) -> None:
        while True:
            with suppress(ValueError), queue.session() as session:
                items = session.dequeue_many(chance.choice((1, 3, 10)), timeout=0.05)
                if not items:
                    if len(done) + len(queue.dead_letters) == len(numbers):
                        return
                    continue
                had.extend(items)
                if chance.random() < 0.3:
                    raise ValueError
                bad = [item for item in items if int(item) % 7 == 0]
                for item in bad:
                    session.reject(item, "sevens are bad", retry=chance.random() < 0.9)
                session.flush()
                done.extend(item for item in items if item not in bad)

    threads = [threading.Thread(target=work, args=(Random(seed),)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, done + [item for item, *_ in letters(queue)])) == list(numbers)
    assert max(map(had.count, had)) <= 3
    assert queue._open()._store.state.attempts == {}


def test_a_damaged_log_is_repaired(open_queue: QueueFactory, directory: Path) -> None:
    """Counts of deliveries that a repair can read go on; lost ones count for nothing."""
    queue = open_queue(**DEAD)
    put(queue, b"a", b"b", b"c")
    fail(queue, ValueError(), 2)
    frames = read_log(DISK, str(log_file(directory))).frames
    put(queue, b"d")
    with queue.session() as session:
        assert session.dequeue() == b"a"
        session.rollback()
    crash(queue.dead_letters)
    crash(queue)
    flip(log_file(directory), frames[-1].offset + 40)
    with pytest.raises(CorruptionError):
        open_queue(**DEAD)
    assert repair(directory.parent, "orders").items == 4
    queue = open_queue(**DEAD)
    assert [each for each in queue._open()._store.state.supplement() if isinstance(each, Delivered)] == [
        Delivered(0, 0, 1, 1)
    ]
    assert list(queue.browse()) == [b"a", b"b", b"c", b"d"]


def test_flushed_with_other_sessions(open_queue: QueueFactory) -> None:
    """``flush_all`` flushes the rejections of each session; an item that was put back is not rejected."""
    queue = open_queue(**DEAD)
    put(queue, b"a", b"b", b"c", b"d")
    with queue.session() as one, queue.session() as other, queue.session() as third:
        one.dequeue_many(2)
        other.dequeue()
        third.dequeue()
        one.reject(b"a", "bad", retry=False)
        other.reject(b"c")
        third.reject(b"d", retry=False)
        third.put_back()
        third.enqueue(b"e")
        assert queue.flush_all([one, other, third]) == [True, True, True]
    assert list(queue.browse()) == [b"c", b"d", b"e"]
    assert letters(queue) == [(b"a", 1, "bad")]


def test_who_waits_for_others(open_queue: QueueFactory) -> None:
    """``wait`` ends when an item is due, and not before."""
    for delay_seconds, timeout_seconds, is_there in ((0.02, None, True), (600.0, 0.01, False)):
        queue = open_queue(f"{timeout_seconds}", retry_delay_seconds=delay_seconds)
        put(queue, b"a")
        fail(queue, ValueError())
        assert queue.wait(timeout_seconds) is is_there


@pytest.mark.parametrize("setting", [{"max_attempts": 3}, {"dead_letter": "dead"}, {"retry_delay_seconds": 1}])
def test_they_are_not_for_a_class_that_consumes_at_once(tmp_path: Path, setting: dict[str, Any]) -> None:
    """``FifoQueue``, whose ``pop`` consumes at once, refuses these settings before anything is opened."""
    with pytest.raises(ValueError, match="which consumes an item when it returns it"):
        compat.FifoQueue(tmp_path, **setting)
    for made in (aio.PersistentQueue, aio.Queue, compat.Queue):
        with pytest.raises(ValueError, match="max_attempts needs dead_letter"):
            made(tmp_path, max_attempts=3)
    assert list(tmp_path.iterdir()) == []


def test_other_settings_are_for_all_faces(tmp_path: Path) -> None:
    """The queues of the standard library accept other settings."""
    with compat.Queue(tmp_path / "queue", max_items=10) as queue:
        queue.put(1)
        assert queue.get() == 1
        queue.task_done()

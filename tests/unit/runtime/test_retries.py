"""Retries and dead letters: what fails is counted, comes again, alone and later, and is given up, whatever crashes."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    CorruptionError,
    DeadLetter,
    Encryption,
    PersistentQueue,
    QueueFullError,
    QueueLockedError,
    Session,
    SubscriptionNotFoundError,
    aio,
    check,
    compat,
    repair,
    transaction,
)
from persistentqueue.codecs import JSON
from persistentqueue.core.operations import Delayed, Delivered
from persistentqueue.storage.log import read_log
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, flip, log_file, put, segment_files, wait_for

DEAD: dict[str, Any] = {"max_attempts": 3, "dead_letter": "orders.dead"}
DEADLY = """
import os, signal, sys
from persistentqueue import PersistentQueue
with PersistentQueue(sys.argv[1], "orders", max_attempts=3, dead_letter="orders.dead") as queue:
    with queue.session() as session:
        while items := session.dequeue_many(int(sys.argv[2])):
            for item in items:
                if item == b"poison":
                    os.kill(os.getpid(), signal.SIGKILL)
            session.flush()
            print(*(item.decode() for item in items), sep="\\n", flush=True)
"""


class Clock:
    """A disk whose clocks stand still until they are told."""

    def __init__(self) -> None:
        self.wall_ns, self.seconds = 10**18, 50.0
        self.disk = replace(DISK, time_ns=lambda: self.wall_ns, monotonic=lambda: self.seconds)

    def go_on(self, seconds: float) -> None:
        """Let both go on."""
        self.wall_ns += int(seconds * 1e9)
        self.seconds += seconds


def letters(queue: PersistentQueue[Any]) -> list[tuple[bytes, int, str]]:
    """The dead letters: the item, how often it was delivered, and why it was given up."""
    found = [DeadLetter.decode(envelope) for envelope in queue.dead_letters.browse()]
    return [(letter.item, letter.attempts, letter.reason) for letter in found]


def fail(queue: PersistentQueue[Any], error: BaseException, many: int = 1) -> list[Any]:
    """Dequeue so many in a session whose block is left by this error; what they were."""
    items: list[Any] = []
    with pytest.raises(type(error)), queue.session() as session:
        items = session.dequeue_many(many)
        raise error
    return items


def taken(session: Session[bytes], many: int = 100) -> list[bytes]:
    """What a session is given, and flushes."""
    items = session.dequeue_many(many)
    session.flush()
    return items


def failing(step: str, error: BaseException) -> Disk:
    """A disk on which a step fails whenever it is taken."""

    def failpoint(name: str) -> None:
        if name == step:
            raise error

    return replace(DISK, failpoint=failpoint)


# --- attempts -----


@pytest.mark.parametrize("end", [PersistentQueue.close, crash])
def test_attempts_are_counted_over_rollbacks_and_restarts(open_queue: QueueFactory, end: Callable[..., None]) -> None:
    """Whoever rolls back, and however the process ends: the third delivery is the last one."""
    queue = open_queue(**DEAD)
    put(queue, b"bad", b"good")
    with queue.session() as session:
        assert session.dequeue() == b"bad"
        session.rollback()
        assert session.dequeue() == b"bad"
        session.rollback()
    queue.trim()
    if end is crash:
        crash(queue.dead_letters)
    end(queue)
    queue = open_queue(**DEAD)
    with queue.session() as session:
        assert session.dequeue() == b"bad"
        session.rollback()
    with queue.session() as session:
        assert session.dequeue() == b"good"
        session.flush()
    never = "delivered 3 times, never flushed: each time the process ended, or the session was rolled back"
    assert letters(queue) == [(b"bad", 3, never)]
    assert len(queue) == 0


def test_the_exception_is_the_reason(open_queue: QueueFactory) -> None:
    """What leaves the block of a session with an item that has no attempts left says why it was given up, at once."""
    queue = open_queue(**DEAD)
    put(queue, b"bad", b"good")
    for left in (2, 2, 1):
        assert fail(queue, ValueError("bad row")) == [b"bad"]
        assert len(queue) == left
    assert letters(queue) == [(b"bad", 3, "ValueError: bad row")]
    assert queue.stats().dead == 1


def test_no_short_way_passes_by_the_count(open_queue: QueueFactory) -> None:
    """Where deliveries are counted none is made that is not logged: ``dequeue_cached`` leaves all to ``dequeue``."""
    queue = open_queue(**DEAD)
    put(queue, b"a", b"b", b"c")
    for attempt in range(3):
        with queue.session() as session:
            assert session.dequeue_cached(2) == []
            assert session.dequeue() == b"a"
            assert queue._open().store.state.times(0, 0) == attempt + 1
            session.rollback()
    with queue.session() as session:
        assert session.dequeue_many(2) == [b"b", b"c"]
        session.flush()
    assert queue.stats().dead == 1
    assert len(queue) == 0


def test_the_exception_is_the_reason_in_any_transaction(open_queue: QueueFactory) -> None:
    """So it does in a transaction, over one queue or over several; what was enqueued there is dropped."""
    queue, other = open_queue(max_attempts=1, dead_letter="dead"), open_queue("other")
    put(queue, b"one", b"two")
    with pytest.raises(OSError), queue.transaction() as session:
        session.enqueue(session.dequeue() or b"")
        raise OSError("no")
    with pytest.raises(KeyError), transaction(queue, other) as (source, target):
        target.enqueue(source.dequeue() or b"")
        raise KeyError("row")
    assert letters(queue) == [(b"one", 1, "OSError: no"), (b"two", 1, "KeyError: 'row'")]
    assert len(queue) == len(other) == 0


def test_an_interruption_is_no_reason(open_queue: QueueFactory) -> None:
    """Who presses Ctrl-C says nothing of the item: it is given up when it would be delivered once more."""
    queue = open_queue(max_attempts=1, dead_letter="dead")
    put(queue, b"item")
    fail(queue, KeyboardInterrupt())
    assert (len(queue), letters(queue)) == (1, [])
    assert drain(queue) == []
    assert letters(queue)[0][2].startswith("delivered 1 times, never flushed")


def test_interrupted_while_it_is_given_up(open_queue: QueueFactory) -> None:
    """Who presses Ctrl-C while an exception moves an item to the dead letters leaves nothing on hold: the session is
    closed all the same."""
    pressed: list[bool] = []

    def failpoint(name: str) -> None:
        if name == "several.1 write ahead" and not pressed:
            pressed.append(True)
            raise KeyboardInterrupt

    queue = open_queue(disk=replace(DISK, failpoint=failpoint), max_attempts=1, dead_letter="dead")
    put(queue, b"item")
    with pytest.raises(KeyboardInterrupt), queue.session() as session:
        session.dequeue()
        raise ValueError("row")
    assert session.closed
    assert (len(queue), queue.stats().held, letters(queue)) == (1, 0, [])


def test_interrupted_beside_its_burial(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it comes, the item is here, to be delivered or buried, or there: never given back when it is there."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    queue = open_queue(max_attempts=1, dead_letter="dead")
    put(queue, b"item")
    monkeypatch.setattr("persistentqueue.runtime.retries.without", interrupted)
    with pytest.raises(KeyboardInterrupt), queue.session() as session:
        session.dequeue()
        raise ValueError("row")
    assert (len(queue) + len(letters(queue)), queue.stats().held) == (1, 0)


def test_a_broken_queue_puts_nothing_off(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an interruption in the middle of a change has left in memory is not looked at: who rolls back, or fails,
    gives back what he holds, and hears nothing of it."""

    def half(*_: object) -> None:
        raise IndexError("half a change")

    queue = open_queue(retry_delay_seconds=60)
    put(queue, b"item")
    session = queue.session()
    session.dequeue()
    queue._open().store.broken = KeyboardInterrupt()
    monkeypatch.setattr("persistentqueue.core.delivery_counts.Runs.pieces", half)
    with pytest.raises(ValueError, match="row"), session:
        raise ValueError("row")
    stats = queue.stats()
    assert (stats.ready, stats.held, stats.delayed) == (1, 0, 0)
    crash(queue)


def test_a_batch_does_not_share_the_fate_of_one(open_queue: QueueFactory) -> None:
    """What was delivered before comes alone, in its place; the others of the batch go through, in order."""
    queue = open_queue(**DEAD)
    put(queue, *[b"%d" % number for number in range(5)])
    assert len(fail(queue, ValueError("3"), 4)) == 4
    with queue.session() as session:
        assert [taken(session) for _ in range(3)] == [[b"0"], [b"1"], [b"2"]]
    for _ in range(2):
        assert fail(queue, ValueError("3"), 4) == [b"3"]
    put(queue, b"5")
    with queue.session() as session:
        assert taken(session) == [b"4", b"5"]
    assert letters(queue) == [(b"3", 3, "ValueError: 3")]


def test_a_batch_ends_before_what_was_delivered(open_queue: QueueFactory) -> None:
    """What is ready around such an item comes in batches, what another session holds is passed over."""
    queue = open_queue(**DEAD)
    put(queue, *[b"%d" % number for number in range(6)])
    with queue.session() as session, queue.session() as other:
        assert session.dequeue_many(2) == [b"0", b"1"]
        assert other.dequeue_many(2) == [b"2", b"3"]
        session.rollback()
        assert session.dequeue_many(9) == [b"0"]
        assert session.dequeue_many(9) == [b"1"]
        assert session.dequeue_many(9) == [b"4", b"5"]
        other.rollback()
        assert session.dequeue_many(9) == [b"2"]
        session.flush()
        assert taken(other) == [b"3"]
        assert taken(other) == []


def test_the_last_attempt_is_made_alone(open_queue: QueueFactory) -> None:
    """Who holds something is not given what has one attempt left, and who has that gets nothing else, and waits for
    nothing: so nothing is given up with it."""
    queue = open_queue(max_attempts=2, dead_letter="dead")
    put(queue, b"a", b"b", b"c")
    fail(queue, ValueError(), 2)
    with queue.session() as session:
        assert session.dequeue() == b"a"
        assert session.dequeue(timeout=None) is None
        session.flush()
        with queue.session() as other:
            assert other.dequeue() == b"b"
            assert session.dequeue() == b"c"
            assert other.dequeue(timeout=None) is None
            session.flush()
            put(queue, b"d")
            assert session.dequeue() == b"d"
            other.rollback()
            session.flush()
    assert drain(queue) == []
    assert [item for item, *_ in letters(queue)] == [b"b"]


def test_who_holds_something_gets_no_last_attempt(open_queue: QueueFactory) -> None:
    """It is given back at once, to whoever holds nothing."""
    queue = open_queue(max_attempts=2, dead_letter="dead")
    put(queue, b"a", b"b")
    with queue.session() as session, queue.session() as other:
        assert (other.dequeue(), session.dequeue()) == (b"a", b"b")
        other.rollback()
        assert session.dequeue(timeout=None) is None
        assert other.dequeue() == b"a"
        other.flush()
        session.flush()


def test_one_attempt_means_one_at_a_time(open_queue: QueueFactory) -> None:
    """With max_attempts=1 the first attempt is the last one, and each is made alone."""
    queue = open_queue(max_attempts=1, dead_letter="dead")
    put(queue, b"a", b"b")
    assert fail(queue, ValueError(), 10) == [b"a"]
    assert drain(queue) == [b"b"]


def test_each_subscription_counts_for_itself(open_queue: QueueFactory) -> None:
    """What one subscription gives up it alone has consumed; the letter says whose it is."""
    queue = open_queue(**DEAD)
    audit = queue.subscribe("audit")
    put(queue, b"item")
    for _ in range(3):
        with pytest.raises(ValueError), audit.session() as session:
            assert session.dequeue() == b"item"
            raise ValueError
    assert (len(audit), len(queue)) == (0, 1)
    (letter,) = map(DeadLetter.decode, queue.dead_letters.browse())
    assert (letter.queue, letter.subscription, letter.sequence, letter.attempts) == ("orders", "audit", 0, 3)
    assert drain(queue) == [b"item"]
    with audit.session() as session:
        queue.unsubscribe("audit")
        with pytest.raises(SubscriptionNotFoundError):
            session.dequeue()


def test_a_subscription_that_goes_meanwhile(open_queue: QueueFactory) -> None:
    """Who is removed between holding an item and its delivery hears it; nothing is logged of him."""
    step = threading.Event()

    def failpoint(name: str) -> None:
        if name.startswith("commit.1") and step.is_set():
            step.clear()
            audit._reader.ready.close()

    queue = open_queue(disk=replace(DISK, failpoint=failpoint), **DEAD)
    audit = queue.subscribe("audit")
    put(queue, b"item")
    step.set()
    with audit.session() as session, pytest.raises(SubscriptionNotFoundError):
        session.dequeue()


def test_nothing_is_logged_without_the_settings(open_queue: QueueFactory, directory: Path) -> None:
    """A queue that counts nothing logs no deliveries; what another opening has counted is kept, and goes with it."""
    queue = open_queue(**DEAD)
    put(queue, b"a", b"b")
    fail(queue, ValueError(), 2)
    queue.close()
    queue = open_queue()
    size_bytes = queue.stats().log_bytes
    fail(queue, ValueError(), 2)
    assert queue.stats().log_bytes == size_bytes
    queue.close()
    first = read_log(DISK, str(log_file(directory))).supplement
    assert [each for each in first if isinstance(each, Delivered)] == [Delivered(0, 0, 2, 1)]
    queue = open_queue()
    assert drain(queue) == [b"a", b"b"]
    queue.close()
    assert not [each for each in read_log(DISK, str(log_file(directory))).supplement if isinstance(each, Delivered)]


@pytest.mark.parametrize("many", [1, 100])
def test_a_process_that_kills_itself(tmp_path: Path, many: int) -> None:
    """Who is killed by an item, and started again, has it three times; all others are consumed once, in order."""
    with PersistentQueue(tmp_path, "orders") as queue:
        put(queue, *[b"%d" % number if number != 7 else b"poison" for number in range(20)])
    printed, kills = "", 0
    while True:
        command = [sys.executable, "-c", DEADLY, str(tmp_path), str(many)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        printed += done.stdout
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        kills += 1
    assert kills == 3
    assert [int(line) for line in printed.split()] == [number for number in range(20) if number != 7]
    with PersistentQueue(tmp_path, "orders", **DEAD) as queue:
        assert [(item, times) for item, times, _ in letters(queue)] == [(b"poison", 3)]
        assert queue.requeue() == 1
        assert drain(queue) == [b"poison"]


def test_an_interrupted_delivery_gives_back(open_queue: QueueFactory) -> None:
    """Where the log cannot be written, nothing is handed out; where the interruption came behind that, it is counted
    and comes again."""
    queue = open_queue(**DEAD)
    put(queue, b"item")
    queue.close()
    queue = open_queue(disk=failing("commit.3 write frame", OSError(errno.EIO, "no")), **DEAD)
    with queue.session() as session, pytest.raises(BrokenQueueError):
        session.dequeue()
    assert queue.stats().held == 0
    crash(queue.dead_letters)
    crash(queue)
    queue = open_queue(disk=failing("commit.4 apply", KeyboardInterrupt()), **DEAD)
    with queue.session() as session, pytest.raises(KeyboardInterrupt):
        session.dequeue()
    crash(queue.dead_letters)
    crash(queue)
    queue = open_queue(**DEAD)
    assert fail(queue, ValueError()) == [b"item"]
    assert fail(queue, ValueError("2")) == [b"item"]
    assert letters(queue) == [(b"item", 3, "ValueError: 2")]


# --- reject -----


def test_what_is_rejected_comes_again(open_queue: QueueFactory) -> None:
    """It comes again, in its place, when the others are consumed; nothing is rejected without a flush."""
    queue = open_queue(**DEAD)
    put(queue, b"a", b"b", b"c")
    with queue.session() as session:
        session.dequeue_many(3)
        session.reject(b"b", "not now")
        session.rollback()
        session.flush()
        assert len(queue) == 3
        for _ in range(3):
            session.dequeue()
        session.reject(b"b", "not now")
        session.flush()
        assert queue.stats().rejected == 1
        assert list(queue.browse()) == [b"b"]
        assert session.dequeue() == b"b"
        session.reject(bytearray(b"b"), "never")  # type: ignore[arg-type]  # what equals it is meant
        session.flush()
    assert (len(queue), queue.stats().held) == (0, 0)
    assert letters(queue) == [(b"b", 3, "never")]


def test_what_is_not_to_be_tried_again(open_queue: QueueFactory) -> None:
    """retry=False gives it up at once, in the transaction that does what else the session has done."""
    queue = open_queue(dead_letter="dead")
    put(queue, b"a", b"b", b"c")
    with queue.session() as session:
        session.dequeue_many(3)
        session.enqueue(b"d")
        session.reject(b"b", "broken", retry=False)
        assert session.flush(marker=("done", 1)) is True
    assert letters(queue) == [(b"b", 1, "broken")]
    assert (list(queue.browse()), queue.marker("done")) == ([b"d"], 1)
    for _ in range(9):  # without max_attempts none are used up
        fail(queue, ValueError())
    assert len(queue) == 1


def test_all_that_it_holds_is_rejected(open_queue: QueueFactory) -> None:
    """Then there is nothing to commit, and all comes again."""
    queue = open_queue(**DEAD)
    put(queue, b"a", b"b")
    with queue.session() as session:
        for item in session.dequeue_many(2):
            session.reject(item)
        assert session.flush() is True
        assert list(queue.browse()) == [b"a", b"b"]


def test_equal_items_are_rejected_one_by_one(open_queue: QueueFactory) -> None:
    """The first that equals it is meant, then the next, until there is none left."""
    queue = open_queue(**DEAD)
    put(queue, b"a", b"b", b"a")
    with queue.session() as session:
        session.dequeue_many(3)
        for number in range(2):
            session.reject(b"a", f"{number}", retry=False)
        with pytest.raises(ValueError, match="no such item, or has rejected all of them"):
            session.reject(b"a")
        session.flush()
    assert letters(queue) == [(b"a", 1, "0"), (b"a", 1, "1")]


def test_who_goes_through_a_batch_rejects_in_its_order(open_queue: QueueFactory) -> None:
    """Of items that are equal the one that fails is behind what was rejected before; where there is none, before it."""
    queue = open_queue(**DEAD)
    put(queue, b"same", b"other", b"same", b"first")
    with queue.transaction() as session:
        first, *_ = session.dequeue_many(4)
        session.reject(b"other")
        session.reject(b"same", "the third", retry=False)
        session.reject(first, "the first", retry=False)
        session.reject(b"first")
    assert [reason for *_, reason in letters(queue)] == ["the first", "the third"]
    assert queue.peek(9) == [b"other", b"first"]


def test_wrong_rejections_say_what_to_do(open_queue: QueueFactory) -> None:
    """What cannot be is refused before anything is changed."""
    plain, late = open_queue("plain"), open_queue("late", retry_delay_seconds=1)
    for queue in (plain, late):
        put(queue, b"a")
    with plain.session() as session, pytest.raises(ValueError, match="open it with max_attempts=, dead_letter= or"):
        session.reject(b"a")
    with late.session() as session:
        with pytest.raises(ValueError, match="no such item"):
            session.reject(b"a")
        session.dequeue()
        with pytest.raises(ValueError, match="open the queue with dead_letter="):
            session.reject(b"a", retry=False)
        with pytest.raises(TypeError, match="a reason must be text"):
            session.reject(b"a", ValueError("bad"))  # type: ignore[arg-type]
        for delay in (-1.0, float("inf"), float("nan"), 1e12):
            with pytest.raises(ValueError, match="a delay must be from 0 to"):
                session.reject(b"a", delay_seconds=delay)
        session.flush()
    with pytest.raises(ClosedError):
        session.reject(b"a")
    with pytest.raises(ValueError, match="opened without dead_letter=: it has no dead letters"):
        late.requeue()


def test_a_flush_that_fails_keeps_rejections(open_queue: QueueFactory) -> None:
    """Where the dead letters have no room, nothing was committed, and the session can flush again."""
    dead = open_queue("dead", max_items=1)
    queue = open_queue(max_attempts=3, dead_letter=dead)
    put(dead, b"other")
    put(queue, b"a", b"b", b"c")
    with queue.session() as session:
        session.dequeue_many(3)
        session.reject(b"a", "bad", retry=False)
        session.reject(b"b")
        for _ in range(2):
            with pytest.raises(QueueFullError):
                session.flush()
            assert (queue.stats().held, queue.stats().rejected) == (3, 0)
        assert drain(dead) == [b"other"]
        session.flush()
    assert (list(queue.browse()), letters(queue)) == ([b"b"], [(b"a", 1, "bad")])
    put(dead, b"other") if not len(dead) else None
    assert fail(queue, ValueError()) == [b"b"]
    assert fail(queue, ValueError()) == [b"b"]  # the last time: there is no room for it, and it stays
    assert list(queue.browse()) == [b"b"]
    with queue.session() as session, pytest.raises(QueueFullError):
        session.dequeue()
    assert queue.stats().held == 0
    drain(dead)
    assert drain(queue) == []
    assert [item for item, *_ in letters(queue)] == [b"b"]


def test_what_cannot_be_given_up_keeps_nobody_up(open_queue: QueueFactory) -> None:
    """Where the dead letters have no room, others overtake what has no attempts left, also to make room; who finds
    nothing else hears why, at once. It stays in its place, and is moved when there is room."""
    dead = open_queue("dead", max_items=1)
    queue = open_queue(max_attempts=1, dead_letter=dead)
    put(dead, b"other")
    put(queue, b"a", b"b", b"c", b"d")
    for item in (b"a", b"b", b"c"):
        assert fail(queue, ValueError("row")) == [item]
    refused = dead.stats().refused
    with queue.session() as session:
        assert session.dequeue() == b"d"
        assert (dead.stats().refused, queue.stats().held) == (refused + 1, 1)
        session.flush()
        with pytest.raises(QueueFullError):
            session.dequeue(timeout=None)
        assert (list(queue.browse()), queue.stats().held) == ([b"a", b"b", b"c"], 0)
        put(queue, b"e")
        assert drain(dead) == [b"other"]
        assert session.dequeue() == b"e"
        assert (list(queue.browse()), [item for item, *_ in letters(queue)]) == ([b"b", b"c"], [b"a"])
        session.rollback()


def test_a_marker_that_was_reached(open_queue: QueueFactory) -> None:
    """Work that was done before rejects nothing: the session is rolled back."""
    queue = open_queue(**DEAD)
    with queue.session() as session:
        session.enqueue_many([b"a", b"b"])
        session.flush(marker=("m", 1))
        session.dequeue_many(2)
        session.reject(b"a", retry=False)
        session.reject(b"b")
        assert session.flush(marker=("m", 1)) is False
    assert (len(queue), letters(queue), queue.stats().rejected) == (2, [], 0)


@pytest.mark.parametrize("step", ["several.1 write ahead", "several.2 prepare", "several.3 decide", "several.4 apply"])
def test_a_crash_moves_it_as_a_whole(open_queue: QueueFactory, step: str) -> None:
    """Wherever the process ends, the item is here, or there, with all else that its transaction has done."""
    queue = open_queue(disk=failing(step, KeyboardInterrupt()), **DEAD)
    put(queue, b"a", b"b", b"c")
    with queue.session() as session:
        session.dequeue_many(3)
        session.reject(b"a", "bad", retry=False)
        session.reject(b"b")
        session.enqueue(b"d")
        with pytest.raises(KeyboardInterrupt):
            session.flush()
        session.rollback()
    crash(queue.dead_letters)
    crash(queue)
    queue = open_queue(**DEAD)
    if step == "several.4 apply":
        assert (list(queue.browse()), letters(queue)) == ([b"b", b"d"], [(b"a", 1, "bad")])
    else:
        assert (list(queue.browse()), letters(queue)) == ([b"a", b"b", b"c"], [])


def test_rejected_in_a_transaction_over_several(open_queue: QueueFactory) -> None:
    """Sessions of several queues reject in the transaction of all, also where the dead letters are one of them."""
    queue, other = open_queue(**DEAD), open_queue("other", dead_letter="other.dead")
    put(queue, b"a", b"b", b"c")
    put(other, b"x")
    with transaction(queue, other, queue.dead_letters) as (source, target, dead):
        source.dequeue_many(3)
        source.reject(b"a", "bad", retry=False)
        source.reject(b"b")
        target.dequeue()
        target.reject(b"x")
        dead.enqueue(b"by hand")
    assert (list(queue.browse()), list(other.browse())) == ([b"b"], [b"x"])
    by_hand, letter = queue.dead_letters.browse()
    assert (by_hand, DeadLetter.decode(letter).item) == (b"by hand", b"a")
    with transaction(queue, other) as (source, target):  # nothing is left of one, and something of the other
        source.dequeue()
        source.reject(b"b")
        target.enqueue(b"y")
    assert (list(queue.browse()), list(other.browse())) == ([b"b"], [b"x", b"y"])
    full = open_queue("full", max_items=1)
    put(full, b"1")
    with pytest.raises(QueueFullError), transaction(queue, full, queue.dead_letters) as (source, target, dead):
        source.dequeue()
        source.reject(b"b", "bad", retry=False)
        target.enqueue(b"2")
        dead.enqueue(b"more")
        with pytest.raises(QueueFullError):
            source.flush()
        assert dead._transaction is not None
        assert dead._transaction.items == [b"more"]
        raise QueueFullError("", "max_items", 1, 1, 1, False)
    assert len(queue.dead_letters) == 3  # its attempts were used up


def test_rejected_by_a_typed_session(open_queue: QueueFactory) -> None:
    """An item is named as it was dequeued; what could not be decoded, by its bytes."""
    queue: Any = open_queue(codec=JSON, **DEAD)
    with queue.transaction() as session:
        session.enqueue_many([{"n": 1}, {"n": 2}])
    with queue.session() as session:
        session.dequeue_many(2)
        session.reject({"n": 2}, "even", retry=False)
        session.flush()
    assert [json.loads(item) for item, *_ in letters(queue)] == [{"n": 2}]
    queue.close()
    raw = open_queue()
    put(raw, b"\xff")
    raw.close()
    queue = open_queue(codec=JSON, **DEAD)
    with queue.session() as session:
        with pytest.raises(ValueError):
            session.dequeue()
        with pytest.raises(ValueError, match="no such item"):
            session.reject(object())
        session.reject(b"\xff", retry=False)
        session.flush()
    assert letters(queue)[1][0] == b"\xff"


@pytest.mark.damages
def test_what_cannot_be_read_any_more(open_queue: QueueFactory, directory: Path) -> None:
    """Who rejects what was damaged meanwhile hears it; what an exception leaves stays for the next."""
    queue = open_queue(max_attempts=1, dead_letter="dead", memory_bytes=0, inline_bytes=0)
    put(queue, b"item" * 100)
    with pytest.raises(CorruptionError), queue.session() as session:
        session.dequeue()
        flip(segment_files(directory)[0], 200)
        session.reject(b"item" * 100)
    assert letters(queue) == []


# --- dead letters -----


def test_requeue_brings_them_back(open_queue: QueueFactory) -> None:
    """Dead letters come back to the end of their queue, in their order, with all their attempts before them."""
    queue = open_queue(**DEAD)
    put(queue, *[b"%d" % number for number in range(4)])
    with queue.session() as session:
        for item in session.dequeue_many(3):
            session.reject(item, retry=False)
        session.flush()
    assert (queue.requeue(0), queue.requeue(2), list(queue.browse())) == (0, 2, [b"3", b"0", b"1"])
    assert (queue.requeue(), queue.requeue(), len(queue.dead_letters)) == (1, 0, 0)
    assert drain(queue) == [b"3", b"0", b"1", b"2"]
    with pytest.raises(ValueError, match="max_items must not be negative"):
        queue.requeue(-1)
    put(queue, b"4")
    assert [fail(queue, ValueError()) for _ in range(3)] == [[b"4"]] * 3
    assert queue.requeue() == 1
    assert [fail(queue, ValueError("again")) for _ in range(3)] == [[b"4"]] * 3
    assert letters(queue) == [(b"4", 3, "ValueError: again")]


def test_a_shared_queue_of_dead_letters(open_queue: QueueFactory) -> None:
    """Several queues may have one; each takes back its own, and all else stays, in order."""
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
    """What is brought back is written ahead where there is much of it; one that fails changes nothing."""
    monkeypatch.setattr("persistentqueue.runtime.requeue.SPILL_BYTES", 1000)
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
    """What cannot work is refused when the queue is opened, which is closed then, and says what to do."""
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
    """The queue of the dead letters stands beside the other one, also where that has no name."""
    queue = open_queue(None, path=tmp_path / "queues", dead_letter="dead")
    assert (tmp_path / "dead" / "lock").exists()
    queue.close()
    assert queue.dead_letters.closed
    assert check(tmp_path / "dead").sealed


def test_dead_letters_that_were_closed(open_queue: QueueFactory) -> None:
    """Where their queue was closed before, what is given up stays where it is, and the error says which queue it is."""
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
    """Nothing of an encrypted item lies in clear because it was given up."""
    secret = Encryption("k", lambda _key_id: bytes(32))
    queue = open_queue(dead_letter="dead", encryption=secret, compression="zstd")
    put(queue, b"top secret")
    with queue.transaction() as session:
        session.reject(session.dequeue() or b"", "much too secret", retry=False)
    assert letters(queue) == [(b"top secret", 1, "much too secret")]
    queue.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]


def test_a_requeue_that_fails_holds_nothing(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what is brought back finds no room while it is written ahead, all dead letters are there as before, also
    those that were not looked at yet."""
    monkeypatch.setattr("persistentqueue.runtime.requeue.SPILL_BYTES", 1000)
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
    """What is delayed, was rejected, or is dead, is told; what is delayed keeps its file."""
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
    """An item is not ready before its time, by the setting, what it makes of the attempts, or what reject says."""
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


def test_a_batch_is_delayed_as_one(open_queue: QueueFactory) -> None:
    """Neighbours that are rejected together are one run in the log and in memory, for each delay; each comes again."""
    queue = open_queue(retry_delay_seconds=600)
    put(queue, *[b"%d" % number for number in range(100)])
    with queue.session() as session:
        for item in session.dequeue_many(100):
            number = int(item)
            session.reject(item, delay_seconds=0 if number == 70 else 30 if number >= 50 else None)
        session.flush()
    assert len(queue._open().store.state.attempts[0].delays) == 3
    stats = queue.stats()
    assert (stats.ready, stats.held, stats.delayed, stats.rejected, stats.dead) == (1, 0, 99, 100, 0)


def test_clear_takes_what_is_due(open_queue: QueueFactory) -> None:
    """What came back and is due is cleared as well, though nobody has looked since; what is not due yet stays."""
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
    """When it is due stands in the log; a clock that was set back holds it no longer than the delay."""
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
    assert [each for each in queue._open().store.state.supplement() if isinstance(each, Delayed)]
    with queue.session() as session:
        assert [taken(session) for _ in range(4)] == [[b"a"], [b"b"], [b"c"], [b"d"]]
    assert queue._open().store.state.attempts == {}


def test_who_waits_wakes_when_it_is_due(open_queue: QueueFactory) -> None:
    """Who waits for ever, or for a while, gets it when its time has come, also if that was set while he waited."""
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
    """An item, whenever it comes."""
    with queue.transaction() as session:
        return session.dequeue(timeout=None)


def test_a_timeout_that_ends_before(open_queue: QueueFactory) -> None:
    """Who waits less than it takes gets nothing."""
    queue = open_queue(retry_delay_seconds=600)
    put(queue, b"a")
    fail(queue, ValueError())
    with queue.session() as session:
        assert session.dequeue(timeout=0.01) is None
    assert queue.stats().delayed == 1


def test_a_delay_that_cannot_be_made(open_queue: QueueFactory) -> None:
    """What the setting raises is raised, and the item comes again at once."""
    queue = open_queue(retry_delay_seconds=lambda attempts: float("nan"))
    put(queue, b"a")
    with queue.session() as session:
        session.dequeue()
        with pytest.raises(ValueError, match="a delay must be"):
            session.rollback()
    assert len(queue) == 1


def test_what_has_no_attempts_left_is_not_delayed(open_queue: QueueFactory) -> None:
    """There is nothing to wait for: who dequeues next finds it given up."""
    queue = open_queue(max_attempts=1, dead_letter="dead", retry_delay_seconds=600)
    put(queue, b"a")
    with queue.session() as session:
        session.dequeue()
        session.rollback()
    assert queue.stats().delayed == 0
    assert drain(queue) == []
    assert len(letters(queue)) == 1


def test_a_queue_that_ends_delays_nothing(open_queue: QueueFactory) -> None:
    """A session that is closed with its queue, or after it, gives back without a word."""
    queue = open_queue(retry_delay_seconds=600)
    put(queue, b"a")
    with queue.session() as session:
        session.dequeue()
        queue.close()
    with open_queue(retry_delay_seconds=600) as queue:
        assert len(queue) == 1


def test_a_delay_that_cannot_be_logged(open_queue: QueueFactory) -> None:
    """Where the log is broken the item waits as long as the queue is open."""
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
    """Whoever fails, rejects or waits meanwhile: each item is consumed once, or dead, and nobody has it once more than
    it may be had."""
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
    assert queue._open().store.state.attempts == {}


def test_a_damaged_log_is_repaired(open_queue: QueueFactory, directory: Path) -> None:
    """What a repair has of a log with deliveries goes on as it was counted; what was lost counts for nothing."""
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
    assert [each for each in queue._open().store.state.supplement() if isinstance(each, Delivered)] == [
        Delivered(0, 0, 1, 1)
    ]
    assert list(queue.browse()) == [b"a", b"b", b"c", b"d"]


def test_flushed_with_other_sessions(open_queue: QueueFactory) -> None:
    """Of sessions that are flushed at once those that reject something do so; what was put back is not rejected."""
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
    """``wait`` ends when something is due, and not before."""
    for delay_seconds, timeout_seconds, is_there in ((0.02, None, True), (600.0, 0.01, False)):
        queue = open_queue(f"{timeout_seconds}", retry_delay_seconds=delay_seconds)
        put(queue, b"a")
        fail(queue, ValueError())
        assert queue.wait(timeout_seconds) is is_there


@pytest.mark.parametrize("setting", [{"max_attempts": 3}, {"dead_letter": "dead"}, {"retry_delay_seconds": 1}])
def test_they_are_not_for_faces_that_take_ahead(tmp_path: Path, setting: dict[str, Any]) -> None:
    """What a face takes ahead would count as delivered: it says so before anything is opened."""
    for made in (aio.PersistentQueue, aio.Queue, compat.Queue, compat.FifoQueue):
        with pytest.raises(ValueError, match="which takes items ahead: use persistentqueue"):
            made(tmp_path, **setting)
    assert list(tmp_path.iterdir()) == []


def test_other_settings_are_for_all_faces(tmp_path: Path) -> None:
    """Only those settings are refused."""
    with compat.Queue(tmp_path / "queue", max_items=10) as queue:
        queue.put(1)
        assert queue.get() == 1
        queue.task_done()

"""Retries and dead letters: a failed item is counted, comes again, alone and later, and is given up, in spite of
crashes."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    CodecError,
    CorruptionError,
    DeadLetter,
    DiskFullError,
    ItemTooLargeError,
    PersistentQueue,
    QueueFullError,
    Session,
    SubscriptionNotFoundError,
    Ticket,
    connect,
    transaction,
)
from persistentqueue.codecs import JSON
from persistentqueue.core.intervals import Run
from persistentqueue.core.operations import Delivered
from persistentqueue.engine.transaction import Transaction
from persistentqueue.runtime import retries
from persistentqueue.storage.log_reader import read_log
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, flip, log_file, put, segment_files

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
    """A disk whose clocks stand still except for ``go_on``."""

    def __init__(self) -> None:
        self.wall_ns, self.seconds = 10**18, 50.0
        self.disk = replace(DISK, time_ns=lambda: self.wall_ns, monotonic=lambda: self.seconds)

    def go_on(self, seconds: float) -> None:
        """Move both clocks on."""
        self.wall_ns += int(seconds * 1e9)
        self.seconds += seconds


def letters(queue: PersistentQueue[Any]) -> list[tuple[bytes, int, str]]:
    """Return the item, the number of deliveries and the reason of each dead letter."""
    found = [DeadLetter.decode(envelope) for envelope in queue.dead_letters.browse()]
    return [(letter.item, letter.attempts, letter.reason) for letter in found]


def fail(queue: PersistentQueue[Any], error: BaseException, many: int = 1) -> list[Any]:
    """Dequeue this many items in a session whose block is left by this error; return the items."""
    items: list[Any] = []
    with pytest.raises(type(error)), queue.session() as session:
        items = session.dequeue_many(many)
        raise error
    return items


def taken(session: Session[bytes], many: int = 100) -> list[bytes]:
    """Dequeue items and flush; return the items."""
    items = session.dequeue_many(many)
    session.flush()
    return items


def failing(step: str, error: BaseException) -> Disk:
    """Return a disk on which a step fails whenever it is taken."""

    def failpoint(name: str) -> None:
        if name == step:
            raise error

    return replace(DISK, failpoint=failpoint)


# --- attempts -----


@pytest.mark.parametrize("end", [PersistentQueue.close, crash])
def test_attempts_are_counted_over_rollbacks_and_restarts(open_queue: QueueFactory, end: Callable[..., None]) -> None:
    """The third delivery is the last one, over rollbacks, trims and restarts, after a close or a crash."""
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
    """If an exception leaves the block of a session, its item without attempts left is given up at once.

    The exception is the reason.
    """
    queue = open_queue(**DEAD)
    put(queue, b"bad", b"good")
    for left in (2, 2, 1):
        assert fail(queue, ValueError("bad row")) == [b"bad"]
        assert len(queue) == left
    assert letters(queue) == [(b"bad", 3, "ValueError: bad row")]
    assert queue.stats().dead == 1


def test_no_short_way_passes_by_the_count(open_queue: QueueFactory) -> None:
    """While deliveries are counted, each one is logged: ``dequeue_cached`` returns nothing, and leaves all items to
    ``dequeue``."""
    queue = open_queue(**DEAD)
    put(queue, b"a", b"b", b"c")
    for attempt in range(3):
        with queue.session() as session:
            assert session.dequeue_cached(2) == []
            assert session.dequeue() == b"a"
            assert queue._open()._store.state.times(0, 0) == attempt + 1
            session.rollback()
    with queue.session() as session:
        assert session.dequeue_many(2) == [b"b", b"c"]
        session.flush()
    assert queue.stats().dead == 1
    assert len(queue) == 0


def test_the_exception_is_the_reason_in_any_transaction(open_queue: QueueFactory) -> None:
    """An exception that leaves a transaction over one queue or several is the reason, too; items enqueued there are
    dropped."""
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
    """A ``KeyboardInterrupt`` is no reason: the item is given up when it would be delivered once more."""
    queue = open_queue(max_attempts=1, dead_letter="dead")
    put(queue, b"item")
    fail(queue, KeyboardInterrupt())
    assert (len(queue), letters(queue)) == (1, [])
    assert drain(queue) == []
    assert letters(queue)[0][2].startswith("delivered 1 time, never flushed")


def test_interrupted_while_it_is_given_up(open_queue: QueueFactory) -> None:
    """An interruption while an exception moves an item to the dead letters leaves nothing on hold, and closes the
    session."""
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
    """If that move is interrupted, the item is in one of the two queues, and never in both."""

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
    """A session of a broken queue that fails or is rolled back releases its items without a delay and without an error.

    It does not look at state in memory that an interruption has left half changed.
    """

    def half(*_: object) -> None:
        raise IndexError("half a change")

    queue = open_queue(retry_delay_seconds=60)
    put(queue, b"item")
    session = queue.session()
    session.dequeue()
    queue._open()._store.fail(KeyboardInterrupt())
    monkeypatch.setattr("persistentqueue.core.delivery_counts.Runs.pieces", half)
    with pytest.raises(ValueError, match="row"), session:
        raise ValueError("row")
    stats = queue.stats()
    assert (stats.ready, stats.held, stats.delayed) == (1, 0, 0)
    crash(queue)


def test_a_batch_does_not_share_the_fate_of_one(open_queue: QueueFactory) -> None:
    """Items of a failed batch come alone and in their place; the good ones are consumed, and only the bad one fails
    again."""
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
    """A batch ends before an item that was delivered before, and passes over items that another session holds."""
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
    """A session that holds something does not get an item with one attempt left.

    A session that holds such an item gets nothing else, and does not wait; so no other item is given up with it.
    """
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
    """An item with one attempt left is released at once, for a session that holds nothing."""
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
    """With ``max_attempts=1`` the first attempt is the last one, and each is made alone."""
    queue = open_queue(max_attempts=1, dead_letter="dead")
    put(queue, b"a", b"b")
    assert fail(queue, ValueError(), 10) == [b"a"]
    assert drain(queue) == [b"b"]


def test_each_subscription_counts_for_itself(open_queue: QueueFactory) -> None:
    """An item that one subscription gives up is consumed for that one alone, and its dead letter names the
    subscription."""
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


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize(("before", "behind"), [([], [1, 2]), ([1], [2])])
def test_items_behind_one_that_cannot_be_decoded_are_not_tried(
    open_queue: QueueFactory, directory: Path, served: bool, before: list[int], behind: list[int]
) -> None:
    """A list that ends at an item that the codec refuses costs no attempt of the items that were not returned.

    They come together next.
    """
    with open_queue() as plain:
        put(plain, *(b"%d" % each for each in before), b"{", *(b"%d" % each for each in behind))
    queue = open_queue(codec=JSON, serve=served, max_attempts=2, dead_letter="orders.dead")
    shared = connect(directory, codec=JSON, serve="never") if served else nullcontext(queue)
    with shared as source, source.session() as session:
        if before:
            assert session.dequeue_many(9) == before
            session.flush()
        with pytest.raises(CodecError) as caught:
            session.dequeue_many(9)
        session.reject(caught.value, retry=False)
        session.flush()
        assert session.dequeue_many(9) == behind
        session.rollback()
        assert session.dequeue() == behind[0]  # its second attempt
        session.flush()
    assert [attempts for _, attempts, _ in letters(queue)] == [1]


def test_a_rejection_for_a_removed_subscription(open_queue: QueueFactory) -> None:
    """An item that is gone with its subscription cannot be rejected: ``reject`` says that the subscription was
    removed."""
    queue = open_queue("orders", fan_out=True, memory_bytes=0, **DEAD)
    audit = queue.subscribe("audit")
    queue.subscribe("other", "latest")
    put(queue, b"a")
    with queue.subscribe("other").transaction() as session:
        assert session.dequeue() == b"a"
    with audit.session() as session:
        assert session.dequeue() == b"a"
        queue.unsubscribe("audit")
        with pytest.raises(SubscriptionNotFoundError, match="'audit'"):
            session.reject(b"a")
        session.rollback()


def test_a_flush_of_rejections_for_a_removed_subscription(open_queue: QueueFactory) -> None:
    """A flush raises ``SubscriptionNotFoundError`` also if it only rejects items, to be ready again at once. A marker
    that was reached comes first, as in other flushes."""
    queue = open_queue("orders", **DEAD)
    audit = queue.subscribe("audit")
    put(queue, b"a", b"b")
    with audit.session() as session:
        for item in session.dequeue_many(2):
            session.reject(item)
        queue.unsubscribe("audit")
        with pytest.raises(SubscriptionNotFoundError, match="'audit'"):
            session.flush()
        with queue.session() as other:
            other.flush(("m", 1))
        assert session.flush(("m", 1)) is False
    assert (queue.stats().rejected, drain(queue)) == (0, [b"a", b"b"])


def test_a_subscription_that_goes_meanwhile(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a subscription is removed between hold and delivery, the dequeue raises ``SubscriptionNotFoundError``."""
    queue = open_queue(**DEAD)
    audit = queue.subscribe("audit")
    put(queue, b"item")
    commit = queue._open().commit

    def remove_and_commit(transaction: Transaction) -> None:
        audit._reader.ready.close()
        commit(transaction)

    monkeypatch.setattr(queue._open(), "commit", remove_and_commit)
    with audit.session() as session, pytest.raises(SubscriptionNotFoundError):
        session.dequeue()


def test_nothing_is_logged_without_the_settings(open_queue: QueueFactory, directory: Path) -> None:
    """A queue that counts nothing logs no deliveries; counts of an earlier opening stay until their items are
    consumed."""
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
    """An item that kills its process is delivered three times; all others are consumed once, in order."""
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
    """If a delivery cannot be logged, no item is handed out.

    If a delivery is interrupted after it was logged, it counts, and the item comes again.
    """
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
    """A rejected item comes again, in its place, when the others are consumed; without a flush nothing is rejected."""
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
        session.reject(bytearray(b"b"), "never")  # type: ignore[arg-type]  # an equal item is meant
        session.flush()
    assert (len(queue), queue.stats().held) == (0, 0)
    assert letters(queue) == [(b"b", 3, "never")]


def test_what_is_not_to_be_tried_again(open_queue: QueueFactory) -> None:
    """``retry=False`` gives an item up at once, in the transaction with all other work of the session."""
    queue = open_queue(dead_letter="dead")
    put(queue, b"a", b"b", b"c")
    with queue.session() as session:
        session.dequeue_many(3)
        session.enqueue(b"d")
        session.reject(b"b", "broken", retry=False)
        assert session.flush(marker=("done", 1)) is True
    assert letters(queue) == [(b"b", 1, "broken")]
    assert (list(queue.browse()), queue.marker("done")) == ([b"d"], 1)
    for _ in range(9):  # without max_attempts no attempts are used up
        fail(queue, ValueError())
    assert len(queue) == 1


def test_all_that_it_holds_is_rejected(open_queue: QueueFactory) -> None:
    """If a session rejects all that it holds, its flush succeeds, and all items come again."""
    queue = open_queue(**DEAD)
    put(queue, b"a", b"b")
    with queue.session() as session:
        for item in session.dequeue_many(2):
            session.reject(item)
        assert session.flush() is True
        assert list(queue.browse()) == [b"a", b"b"]


def test_equal_items_are_rejected_one_by_one(open_queue: QueueFactory) -> None:
    """A rejection means the first equal item that is not rejected yet; if none is left, it is refused."""
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
    """A rejection means the first equal item behind the one that was rejected last; if there is none, one before it."""
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


class Visited(list[Run]):
    """Runs that count how many of them are looked at."""

    visits = 0

    def __iter__(self) -> Iterator[Run]:
        self.visits += len(self)
        return super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        self.visits += 1
        return super().__getitem__(at)


def test_runs_are_visited_few_times(open_queue: QueueFactory) -> None:
    """A delivery looks at few of the runs that a session holds, and a loop of rejections looks few times at each of
    them. It goes on behind the last rejection, and then from the beginning."""
    queue = open_queue(**DEAD)
    put(queue, *(b"%d" % (number // 4) for number in range(400)))
    with queue.session() as session, queue.session() as other:
        for _ in range(199):
            session.dequeue()
            other.dequeue()
        assert session._transaction is not None
        session._transaction.runs = runs = Visited(session._transaction.runs)
        assert session.dequeue() == b"99"
        assert session._transaction.runs is runs
        assert (len(runs), runs.visits < 20) == (200, True)
        order = [*range(100, 200), *range(100)]
        for place in order:
            session.reject(b"%d" % (place // 2), f"{place}", retry=False)
        assert runs.visits < 20 * len(runs)
        session.flush()
        other.rollback()
    assert letters(queue) == [(b"%d" % (place // 2), 1, f"{place}") for place in range(200)]


def test_put_back_visits_few_runs(open_queue: QueueFactory) -> None:
    """``put_back`` looks at the runs that it releases, and not at the others that the session holds."""
    queue = open_queue(**DEAD)
    put(queue, *(b"%d" % number for number in range(400)))
    with queue.session() as session, queue.session() as other:
        for _ in range(200):
            session.dequeue()
            other.dequeue()
        assert session._transaction is not None
        session._transaction.runs = runs = Visited(session._transaction.runs)
        for _ in range(100):
            session.put_back()
        assert session._transaction.runs is runs
        assert (len(runs), runs.visits < 20 * 100) == (100, True)
        session.flush()
        other.flush()
    assert [int(item) for item in queue.peek(400)] == list(range(200, 400, 2))


def test_rejections_end_with_the_hold(open_queue: QueueFactory) -> None:
    """An item that is put back is no longer rejected. The items that stay held are."""
    queue = open_queue(**DEAD)
    put(queue, b"a", b"b", b"c")
    with queue.session() as session:
        for item in session.dequeue_many(3):
            session.reject(item, retry=False)
        session.put_back(2)
        session.flush()
    assert [item for item, *_ in letters(queue)] == [b"a"]
    assert queue.peek(9) == [b"b", b"c"]


def test_a_skipped_flush_drops_its_rejections(open_queue: QueueFactory) -> None:
    """The rejections of a flush whose marker is recorded already are dropped with it, and its items are ready again."""
    queue = open_queue(**DEAD)
    put(queue, b"a")
    with queue.session() as session:
        assert session.flush(marker=("m", 1))
        assert session.dequeue() == b"a"
        session.reject(b"a", retry=False)
        assert not session.flush(marker=("m", 1))
        assert session.dequeue() == b"a"
        session.flush()
    assert letters(queue) == []
    assert len(queue) == 0


def test_wrong_rejections_say_what_to_do(open_queue: QueueFactory) -> None:
    """A rejection that makes no sense is refused before anything is changed, with a message that says what to do."""
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
        with pytest.raises(TypeError, match=r"not ValueError\('bad'\): pass repr\(error\)"):
            session.reject(b"a", ValueError("bad"))  # type: ignore[arg-type]
        delays: list[Any] = [-1.0, float("inf"), float("nan"), 1e12, Decimal(-1), Decimal("NaN")]
        for delay in delays:
            with pytest.raises(ValueError, match="a delay must be from 0 to"):
                session.reject(b"a", delay_seconds=delay)
        refused: list[Any] = ["1", True, []]
        for wrong in refused:
            with pytest.raises(TypeError, match="a delay must be a number of seconds, not "):
                session.reject(b"a", delay_seconds=wrong)
        session.flush()
    with pytest.raises(ClosedError):
        session.reject(b"a")
    with pytest.raises(ValueError, match="has no dead letters: open it again with dead_letter="):
        late.requeue()


@pytest.mark.parametrize("retry", [True, False])
def test_a_dead_letter_asks_for_no_delay(open_queue: QueueFactory, retry: bool) -> None:
    """A rejection that makes a dead letter does not call ``retry_delay_seconds``, which need not know that attempt."""
    delays = [0.0]
    attempts = 2 if retry else 1
    queue = open_queue("orders", **DEAD | {"max_attempts": 2}, retry_delay_seconds=lambda times: delays[times - 1])
    put(queue, b"a")
    if not retry:
        delays.clear()
    for _ in range(attempts):
        with queue.transaction() as session:
            session.reject(session.dequeue() or b"", "the reason", retry=retry)
    assert [reason for *_, reason in letters(queue)] == ["the reason"]


@pytest.mark.parametrize("found", [None, "1"])
def test_a_delay_that_is_no_number_is_named(open_queue: QueueFactory, found: Any) -> None:
    """If ``retry_delay_seconds`` returns no number, the error names the option, the value and the attempt."""
    queue = open_queue("orders", retry_delay_seconds=lambda _: found)
    put(queue, b"a")
    with queue.session() as session:
        session.dequeue()
        with pytest.raises(TypeError, match=f"retry_delay_seconds returned {found!r} for attempt 1: let it return"):
            session.rollback()
    assert queue.peek() == [b"a"]


@pytest.mark.parametrize("delay", [Decimal("0.5"), Fraction(1, 2), "float32"], ids=["decimal", "fraction", "numpy"])
def test_a_delay_may_be_any_number(open_queue: QueueFactory, delay: Any) -> None:
    """A delay may be of each type of numbers, in ``reject`` and as the result of ``retry_delay_seconds``."""
    if isinstance(delay, str):
        delay = getattr(pytest.importorskip("numpy"), delay)(0.5)
    clock = Clock()
    for name, setting in ("given", 600), ("called", lambda _: delay):
        queue = open_queue(name, disk=clock.disk, retry_delay_seconds=setting)
        put(queue, b"a", b"b")
        with queue.session() as session:
            session.dequeue_many(2)
            session.reject(b"a", delay_seconds=delay if name == "given" else None)
            session.reject(b"b", delay_seconds=delay if name == "given" else None)
            session.flush()
            clock.go_on(0.25)
            assert (len(queue), queue.stats().delayed) == (0, 2)
            clock.go_on(0.25)
            assert session.dequeue_many(2) == [b"a"]
            session.rollback()
            assert queue.peek() == [b"b"]
        queue.close()


def test_a_flush_that_fails_keeps_rejections(open_queue: QueueFactory) -> None:
    """If the dead letters have no room, nothing is committed, and the session can flush again."""
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
    assert fail(queue, ValueError()) == [b"b"]  # the last attempt: there is no room to give it up, and it stays
    assert list(queue.browse()) == [b"b"]
    with queue.session() as session, pytest.raises(QueueFullError):
        session.dequeue()
    assert queue.stats().held == 0
    drain(dead)
    assert drain(queue) == []
    assert [item for item, *_ in letters(queue)] == [b"b"]


def test_what_cannot_be_given_up_keeps_nobody_up(open_queue: QueueFactory) -> None:
    """If the dead letters have no room, other items overtake an item without attempts left.

    A dequeue that finds no other item raises ``QueueFullError`` at once. The item stays in its place until there is
    room.
    """
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


def test_an_item_without_room_for_its_envelope(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that is too large for an envelope is neither lost nor in the way: it stays, and others overtake it."""
    monkeypatch.setattr(retries, "ITEM_BYTES_MAX", 1000)
    large, small = bytes(990), b"small"
    queue = open_queue(**DEAD | {"max_attempts": 1})
    put(queue, large, small)
    with queue.session() as session:
        assert session.dequeue() == large
        session.reject(large, retry=False)
        for _ in range(2):
            with pytest.raises(ItemTooLargeError, match="item 0, of 990 bytes, is too large for a dead letter"):
                session.flush()
        session.rollback()
        assert session.dequeue() == small
        session.flush()
        with pytest.raises(ItemTooLargeError, match="open the queue without max_attempts"):
            session.dequeue()
    assert (queue.peek(), letters(queue)) == ([large], [])
    queue.close()
    assert drain(open_queue()) == [large]


def test_a_marker_that_was_reached(open_queue: QueueFactory) -> None:
    """A flush whose marker was reached before rejects nothing: the session is rolled back."""
    queue = open_queue(**DEAD)
    with queue.session() as session:
        session.enqueue_many([b"a", b"b"])
        session.flush(marker=("m", 1))
        session.dequeue_many(2)
        session.reject(b"a", retry=False)
        session.reject(b"b")
        assert session.flush(marker=("m", 1)) is False
    assert (len(queue), letters(queue), queue.stats().rejected) == (2, [], 0)


@pytest.mark.parametrize("wait", [True, False])
def test_a_marker_that_was_reached_delays_as_a_rollback(open_queue: QueueFactory, wait: bool) -> None:
    """The items of a flush whose marker was reached before are ready again when the delay is over."""
    clock = Clock()
    queue = open_queue(disk=clock.disk, retry_delay_seconds=5.0)
    with queue.session() as session:
        session.enqueue(b"a")
        session.flush(marker=("m", 1))
        assert session.dequeue() == b"a"
        flushed = session.flush(("m", 1), wait=wait)
        assert (flushed.result(60) if isinstance(flushed, Ticket) else flushed) is False
        assert (session.dequeue(), queue.stats().delayed) == (None, 1)
        clock.go_on(5.0)
        assert session.dequeue() == b"a"
        session.flush()


@pytest.mark.parametrize("step", ["commit.3 write frame", "commit.4 apply"])
def test_an_interrupted_rollback_delays_what_it_releases(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Items whose delay was being logged when their rollback was interrupted are ready again when it is over."""
    clock = Clock()
    queue = open_queue(disk=clock.disk, retry_delay_seconds=5.0)
    put(queue, b"a", b"b")
    with queue.session() as session:
        assert session.dequeue_many(2) == [b"a", b"b"]
        with monkeypatch.context() as interrupted, pytest.raises(KeyboardInterrupt):
            interrupted.setattr(queue._open()._store.committer, "_disk", failing(step, KeyboardInterrupt()))
            session.rollback()
        assert (session.dequeue(), queue.stats().delayed) == (None, 2)
        clock.go_on(5.0)
        assert taken(session) == [b"a"]


@pytest.mark.parametrize("face", ["flush", "ticket", "flush_all", "several", "worker"])
def test_a_marker_that_was_reached_in_spite_of_a_delay_that_raises(
    open_queue: QueueFactory, directory: Path, face: str
) -> None:
    """A flush whose marker was reached before returns False, and its items are ready, if their delay cannot be
    computed."""

    def refuse(_: int) -> float:
        raise KeyError("no such delay")

    queue = open_queue(retry_delay_seconds=refuse, serve=face == "worker")
    other = open_queue("other")
    put(queue, b"a")
    with ExitStack() as stack:
        session: Any
        if face == "several":
            session, _ = stack.enter_context(transaction(queue, other))
        else:
            source = stack.enter_context(connect(directory, serve="never")) if face == "worker" else queue
            session = stack.enter_context(source.session())
        for is_new in (True, False):
            if not is_new:
                assert session.dequeue() == b"a"
            if face == "ticket":
                assert session.flush(("m", 1), wait=False).result(60) is is_new
            elif face == "flush_all":
                assert queue.flush_all([session], [("m", 1)]) == [is_new]
            else:
                assert session.flush(("m", 1)) is is_new
        assert session.dequeue() == b"a"
        session.flush()


@pytest.mark.parametrize("step", ["several.1 write ahead", "several.2 prepare", "several.3 decide", "several.4 apply"])
def test_a_crash_moves_it_as_a_whole(open_queue: QueueFactory, step: str) -> None:
    """Wherever the process ends, the transaction with the rejection took effect in both queues, or in neither."""
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
    """Sessions of several queues reject in their common transaction, even if the dead letters take part in it."""
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
    with transaction(queue, other) as (source, target):  # the first session has nothing left, the second has
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
    assert len(queue.dead_letters) == 3  # the item has used up its attempts


def test_a_letter_that_found_no_room_in_another_queue_is_never_committed(open_queue: QueueFactory) -> None:
    """A dead letter goes with its transaction, also if its queue has written it before another queue failed.

    The session of the dead-letter queue goes on, and its next flush commits its own work alone.
    """
    is_full = [False]

    def fallocate(*arguments: int) -> None:
        if is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        DISK.fallocate(*arguments)

    queue, other = open_queue(**DEAD), open_queue("other", inline_bytes=0, disk=replace(DISK, fallocate=fallocate))
    put(queue, b"a")
    put(queue.dead_letters, b"by hand")
    with transaction(queue, other, queue.dead_letters) as (source, target, dead):
        assert dead.dequeue() == b"by hand"
        assert source.dequeue() == b"a"
        source.reject(b"a", "bad", retry=False)
        target.enqueue(b"no room")
        is_full[0] = True
        with pytest.raises(DiskFullError):
            dead.flush()
        source.rollback()
        target.rollback()
        assert dead.flush(marker=("done", 1)) is True
    assert (list(queue.browse()), list(queue.dead_letters.browse())) == ([b"a"], [])


def test_rejected_by_a_typed_session(open_queue: QueueFactory) -> None:
    """A typed session rejects an item by its value, and an item that could not be decoded by its bytes."""
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
    """Rejecting an item that was damaged meanwhile raises ``CorruptionError``, and makes no dead letter."""
    queue = open_queue(max_attempts=1, dead_letter="dead", memory_bytes=0, inline_bytes=0)
    put(queue, b"item" * 100)
    with pytest.raises(CorruptionError), queue.session() as session:
        session.dequeue()
        flip(segment_files(directory)[0], 200)
        session.reject(b"item" * 100)
    assert letters(queue) == []

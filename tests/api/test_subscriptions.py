"""Several consumers of one queue: each gets every item, which is stored once and kept until all have consumed it."""

from __future__ import annotations

import errno
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    CorruptionError,
    DiskFullError,
    PersistentQueue,
    QueueFullError,
    SubscriptionNotFoundError,
    check,
    repair,
)
from persistentqueue.cli import main
from persistentqueue.core.availability import Availability
from persistentqueue.core.frame import decode_frame, encode_frame
from persistentqueue.core.intervals import Cursor, Intervals
from persistentqueue.core.operations import (
    Dequeue,
    ExtentRow,
    Operation,
    SegmentRow,
    SubscriptionClosed,
    SubscriptionOpened,
    encode_transaction,
)
from persistentqueue.core.state import State, StateError
from persistentqueue.engine.admission import Limits
from persistentqueue.engine.trim import Generations
from persistentqueue.options import Start
from persistentqueue.runtime.waiting import Place
from persistentqueue.subscription import Subscription
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import crash, drain, flip, log_file, put, put_each, segment_files, wait_for
from tests.unit.interprocess.test_producer import publish


def take(subscription: Subscription, count: int = 2**40) -> list[bytes]:
    """Dequeue up to ``count`` items, and flush."""
    with subscription.transaction() as session:
        return session.dequeue_many(count)


def numbers(*count: int) -> list[bytes]:
    """Return the numbers of a range as items."""
    return [b"%d" % n for n in range(*count)]


# --- each gets all ---------------------------------------------------------------------------------------------------


def test_each_gets_every_item(open_queue: QueueFactory) -> None:
    """Two subscriptions and the plain queue get the same items, each at its own pace; each holds and rolls back
    independently."""
    queue = open_queue()
    billing, audit = queue.subscribe("billing"), queue.subscribe("audit")
    put(queue, *numbers(10))
    assert take(billing, 7) == numbers(7)
    with audit.session() as one, audit.session() as other:
        assert one.dequeue_many(3) == numbers(3)
        assert other.dequeue_many(3) == numbers(3, 6)
        other.flush()
        one.rollback()
        assert one.dequeue() == b"0"
        one.rollback()
    assert drain(queue) == numbers(10)
    assert (len(queue), len(billing), len(audit)) == (0, 3, 7)
    assert list(audit.browse()) == [b"0", b"1", b"2", *numbers(6, 10)]
    assert take(billing) == numbers(7, 10)
    assert take(audit) == [b"0", b"1", b"2", *numbers(6, 10)]
    assert queue.stats().dequeued == 10
    assert repr(billing) == "<subscription 'billing'>"
    assert bool(billing)


def test_it_is_as_far_as_it_was_when_the_queue_is_opened_again(open_queue: QueueFactory) -> None:
    """Items that a subscription has consumed, in any order, stay consumed after a clean close, a crash and a trim."""
    queue = open_queue()
    first = queue.subscribe("first")
    put(queue, *numbers(10))
    second = queue.subscribe("second", start="latest")
    put(queue, *numbers(10, 20))
    with first.session() as session, first.session() as holder:
        assert holder.dequeue() == b"0"
        assert session.dequeue_many(4) == numbers(1, 5)
        session.flush()
        holder.rollback()
    assert take(second, 5) == numbers(10, 15)
    for end in (PersistentQueue.close, crash, PersistentQueue.trim):
        end(queue)
        if queue.closed:
            queue = open_queue()
        assert queue.subscriptions() == ["first", "second"]
        first, second = queue.subscribe("first"), queue.subscribe("second", start="earliest")
        assert list(first.browse()) == [b"0", *numbers(5, 20)]
        assert list(second.browse()) == numbers(15, 20)
        assert list(queue.browse()) == numbers(20)


def test_earliest_is_what_the_queue_still_holds(open_queue: QueueFactory) -> None:
    """A new subscription gets the items that some consumer still needs, in order, also behind gaps. With ``latest`` it
    gets none of them."""
    queue = open_queue()
    put(queue, *numbers(10))
    with queue.session() as session, queue.session() as holder:
        assert holder.dequeue_many(2) == numbers(2)
        assert session.dequeue_many(3) == numbers(2, 5)
        session.flush()
        holder.rollback()
    early, late = queue.subscribe("early"), queue.subscribe("late", start="latest")
    assert list(early.browse()) == [*numbers(2), *numbers(5, 10)]
    assert list(late.browse()) == []
    assert queue.subscribe("late", start="earliest").name == "late"
    assert len(queue.subscribe("late")) == 0
    put(queue, b"new")
    assert take(late) == [b"new"]


def test_space_comes_back_when_nobody_needs_it(open_queue: QueueFactory, directory: Path) -> None:
    """A segment is kept until the slowest subscription has passed it, and is then deleted."""
    queue = open_queue(segment_bytes=500)
    slow = queue.subscribe("slow")
    put_each(queue, [bytes(100)] * 40)
    full = len(segment_files(directory))
    assert full >= 10
    drain(queue)
    queue.trim()
    assert len(segment_files(directory)) == full
    take(slow, 30)
    queue.trim()
    assert len(segment_files(directory)) < full / 2
    take(slow)
    queue.trim()
    assert len(segment_files(directory)) == 1


def test_removing_gives_back_what_only_it_kept(open_queue: QueueFactory, directory: Path) -> None:
    """A removed subscription keeps no segment and is not listed. Its sessions raise ``SubscriptionNotFoundError``."""
    queue = open_queue(segment_bytes=500)
    slow, quick = queue.subscribe("slow"), queue.subscribe("quick")
    put_each(queue, [bytes(100)] * 40)
    take(quick)
    drain(queue)
    with slow.session() as session:
        assert len(session.dequeue_many(3)) == 3
        queue.unsubscribe("slow")
        assert slow.removed
        assert len(slow) == 0
        with pytest.raises(SubscriptionNotFoundError, match="'slow'"):
            session.dequeue()
        with pytest.raises(SubscriptionNotFoundError, match="'slow'"):
            session.flush()
        session.rollback()
        session.enqueue(b"still goes")
        session.flush()
    assert queue.subscriptions() == ["quick"]
    assert len(segment_files(directory)) == 1
    assert queue.stats().dequeued == 40
    with pytest.raises(SubscriptionNotFoundError, match="existing: 'quick'") as raised:
        queue.unsubscribe("slow")
    assert raised.value.subscription == "slow"
    with pytest.raises(ValueError, match="a subscription has a name of 1 to 65,535 bytes in UTF-8, not ''"):
        queue.unsubscribe("")
    assert take(queue.subscribe("slow")) == [b"still goes"]
    crash(queue)
    queue = open_queue()
    assert queue.subscriptions() == ["quick", "slow"]
    assert (len(queue), len(queue.subscribe("quick")), len(queue.subscribe("slow"))) == (1, 1, 0)


def test_who_waits_for_a_removed_one_is_told(open_queue: QueueFactory) -> None:
    """A ``dequeue`` that waits raises ``SubscriptionNotFoundError`` when its subscription is removed."""
    queue = open_queue()
    with ThreadPoolExecutor(1) as pool, queue.subscribe("a").session() as session:
        waiting = pool.submit(session.dequeue, None)
        wait_for(lambda: queue._open()._waiters.count == 1)
        queue.unsubscribe("a")
        with pytest.raises(SubscriptionNotFoundError):
            waiting.result(60)


def test_who_reads_for_a_removed_one_is_told(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """A dequeue that waits for the read of another one raises ``SubscriptionNotFoundError`` if its own is removed."""
    queue = open_queue(fan_out=True, memory_bytes=0, segment_bytes=64 * 1024)
    subscription = queue.subscribe("a")
    session = subscription.session()
    put(queue, bytes(40_000))
    queue.subscribe("b", "latest")  # it needs later items only
    put(queue, bytes(40_000))  # in another segment
    with queue._open()._reading:
        found = threads.submit(session.dequeue)
        wait_for(lambda: len(subscription) == 1)
        queue.unsubscribe("a")
    with pytest.raises(SubscriptionNotFoundError, match="'a'"):
        found.result(60)
    session.close()


def test_all_who_wait_are_woken(open_queue: QueueFactory) -> None:
    """One item wakes a waiting consumer of each subscription, and a rollback wakes a consumer of its own
    subscription."""
    queue = open_queue()
    subscriptions = [queue.subscribe(name) for name in "abc"]
    sessions = [each.session() for each in subscriptions]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(session.dequeue, 60) for session in sessions]
        wait_for(lambda: queue._open()._waiters.count == 3)
        put(queue, b"x")
        assert [each.result(60) for each in waiting] == [b"x"] * 3
        with subscriptions[1].session() as other, subscriptions[0].session() as idle:
            waiting = [pool.submit(idle.dequeue, 60), pool.submit(other.dequeue, 60)]
            wait_for(lambda: queue._open()._waiters.count == 2)
            sessions[1].rollback()
            assert waiting[1].result(60) == b"x"
            put(queue, b"y")
            assert waiting[0].result(60) == b"y"
            idle.rollback()
            other.rollback()
    for session in sessions:
        session.close()


# --- fan-out ---------------------------------------------------------------------------------------------------------


def test_pure_fan_out(open_queue: QueueFactory, directory: Path) -> None:
    """A queue with ``fan_out`` has no plain queue: an item goes when all subscriptions have consumed it, and stays
    while there are none. The setting stays, whether it is given again or not."""
    queue = open_queue(fan_out=True)
    put(queue, *numbers(5))
    with queue.session() as session:
        with pytest.raises(SubscriptionNotFoundError, match="made with fan_out, so only subscriptions read it"):
            session.dequeue()
        with pytest.raises(SubscriptionNotFoundError, match=r"call queue\.subscribe\(name\)"):
            session.dequeue_many(3, timeout=None)
    for fails in (queue.clear, queue.peek, lambda: len(queue)):
        with pytest.raises(SubscriptionNotFoundError):
            fails()
    assert (queue.stats().ready, queue.stats().dequeued) == (5, 0)
    crash(queue)
    queue = open_queue()
    a = queue.subscribe("a")
    assert take(a, 3) == numbers(3)
    assert queue.stats().dequeued == 3
    b = queue.subscribe("b")
    assert take(b) == numbers(3, 5)
    assert queue.stats().dequeued == 3
    queue.unsubscribe("a")
    assert queue.stats().dequeued == 5
    put(queue, b"kept")
    queue.unsubscribe("b")
    queue.close()
    queue = open_queue(fan_out=True)
    assert queue.subscriptions() == []
    assert queue.stats().ready == 1
    late = queue.subscribe("late", start="latest")
    assert (queue.stats().dequeued, len(late)) == (6, 0)


def test_a_session_knows_the_only_consumer(open_queue: QueueFactory) -> None:
    """A session knows whether its queue has no other consumer: then nothing else gets what it consumes."""
    queue = open_queue()
    with queue.session() as plain:
        assert plain._is_only_consumer()
        audit = queue.subscribe("audit")
        with audit.session() as auditing:
            assert not plain._is_only_consumer() and not auditing._is_only_consumer()
        queue.unsubscribe("audit")
        assert plain._is_only_consumer()
    other = open_queue("other", fan_out=True)
    with other.subscribe("audit").session() as auditing:
        assert auditing._is_only_consumer()
        other.subscribe("mails")
        assert not auditing._is_only_consumer()


def test_explain_of_a_queue_with_fan_out(open_queue: QueueFactory) -> None:
    """``explain`` names the sessions of subscriptions that hold items, also where there is no plain queue."""
    queue = open_queue(fan_out=True)
    reader = queue.subscribe("reader")
    put(queue, b"1", b"2")
    with reader.session("mailer") as session:
        assert session.dequeue() == b"1"
        (use,) = queue.explain()
        assert [(holder.session, holder.items) for holder in use.holders] == [("mailer", 1)]
        session.rollback()
        assert queue.explain()[0].holders == ()


def test_fan_out_is_for_new_queues(open_queue: QueueFactory) -> None:
    """A queue that has a plain queue keeps it: a later opening with ``fan_out`` is refused."""
    queue = open_queue()
    queue.close()
    with pytest.raises(ValueError, match="made without fan_out"):
        open_queue(fan_out=True)
    open_queue().close()


# --- limits, explanations, damage ------------------------------------------------------------------------------------


def test_limits_count_until_all_have_it(open_queue: QueueFactory) -> None:
    """A limit counts an item until all subscriptions have consumed it, so that only the last consumer makes room."""
    queue = open_queue(max_items=3)
    a, b = queue.subscribe("a"), queue.subscribe("b")
    queue.subscribe("c", start="latest")
    put(queue, *numbers(3))
    take(a)
    drain(queue)
    with pytest.raises(QueueFullError):
        put(queue, b"x")
    with b.session() as session:
        session.dequeue()
        session.enqueue(b"x")
        with pytest.raises(QueueFullError):  # "c" has not consumed it
            session.flush()
        queue.unsubscribe("c")
        session.flush()
    assert list(b.browse()) == [b"1", b"2", b"x"]


def test_a_blocked_flush_goes_on_when_the_last_one_has_it(open_queue: QueueFactory) -> None:
    """With ``full="block"`` a flush waits until all subscriptions have consumed enough, or the subscription that keeps
    the items is removed."""
    queue = open_queue(max_items=2, full="block")
    a = queue.subscribe("a")
    put(queue, *numbers(2))
    drain(queue)
    with ThreadPoolExecutor(1) as pool:
        for make_room in (lambda: take(a), lambda: queue.unsubscribe("a")):
            waiting = pool.submit(put, queue, *numbers(2))
            wait_for(lambda: queue.stats().waiting == 1)
            make_room()
            waiting.result(60)
            drain(queue)


def test_a_blocked_flush_goes_on_when_the_first_one_begins_behind_the_items(open_queue: QueueFactory) -> None:
    """In a queue with only named subscriptions, a first one that begins with the next item makes room for a flush."""
    queue = open_queue(fan_out=True, max_items=2, full="block")
    put(queue, *numbers(2))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(put, queue, b"new")
        wait_for(lambda: queue.stats().waiting == 1)
        subscription = queue.subscribe("a", "latest")
        waiting.result(60)
    assert take(subscription) == [b"new"]


def test_a_blocked_flush_goes_on_when_the_trim_behind_a_removal_has_no_room(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no new log has room behind a removal, the items of the subscription are gone all the same: a flush that waits
    for their room goes on."""
    queue = open_queue(max_items=2, full="block")
    queue.subscribe("a")
    put(queue, *numbers(2))
    drain(queue)

    def refuse(*_: object) -> None:
        raise DiskFullError("log", errno.ENOSPC, "no space left on device")

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(put, queue, b"new")
        wait_for(lambda: queue.stats().waiting == 1)
        with monkeypatch.context() as patch:
            patch.setattr(Generations, "trim", refuse)
            queue.unsubscribe("a")
        waiting.result(60)
    assert drain(queue) == [b"new"]


def test_limits_are_looked_at_while_subscriptions_stay(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that finds no room counts the items while no other thread can add or remove a subscription."""
    queue = open_queue(max_items=1, full="block")
    put(queue, b"1")
    refuse, mutex, were_held = Limits.refuse_for_ever, queue._open().mutex, []

    def noted(*arguments: Any) -> QueueFullError | None:
        were_held.append(mutex.locked())
        return refuse(*arguments)

    monkeypatch.setattr(Limits, "refuse_for_ever", noted)
    with queue.session() as session, queue.session() as other:
        for each in (session, other):
            each.enqueue(b"2")
        with pytest.raises(QueueFullError):
            session.flush(timeout=0)
        waiting = Place()
        queue._open()._room_waiters.taken.append(waiting)
        assert isinstance(queue.flush_all([other])[0], QueueFullError)
        queue._open()._room_waiters.taken.remove(waiting)
        session.rollback()
        other.rollback()
    assert were_held == [True, True]


def test_a_segment_tells_for_whom_it_is_kept(open_queue: QueueFactory) -> None:
    """``explain`` names the subscriptions that have not consumed all of a segment."""
    queue = open_queue()
    a = queue.subscribe("a")
    queue.subscribe("b")
    put(queue, *numbers(9))
    take(a, 4)
    drain(queue)
    (use,) = queue.explain()
    assert (use.live, use.ready, use.held, use.subscribed) == (9, 0, 0, (("a", 5), ("b", 9)))
    assert "live: 5 for the subscription 'a'; 9 for the subscription 'b'; new items are written to it" in str(use)


def test_each_hears_of_damage(directory: Path, open_queue: QueueFactory) -> None:
    """Each subscription gets the error of a damaged block once, and goes on behind it. A limit does not count the items
    that no consumer can read."""
    queue = open_queue()
    put(queue, b"lost")
    put(queue, *numbers(2))
    queue.subscribe("a")
    queue.close()
    flip(segment_files(directory)[0], 64 + 40)
    queue = open_queue(max_items=3)
    a = queue.subscribe("a")
    for consumer in (queue, a):
        with consumer.session() as session:
            with pytest.raises(CorruptionError):
                session.dequeue()
            assert session.dequeue_many(9) == numbers(2)
            session.rollback()
    damaged = queue._open()._store.subscriptions
    assert damaged.damaged_count == 1
    put(queue, b"new")
    with pytest.raises(QueueFullError):
        put(queue, b"one too many")
    flip(segment_files(directory)[0], 64 + 40)  # so that the test ends with a sound queue


@pytest.mark.damages
def test_repair_keeps_subscriptions(directory: Path, open_queue: QueueFactory) -> None:
    """Items that a repair finds lost are lost for all subscriptions. Items that a subscription has consumed stay
    consumed."""
    queue = open_queue(segment_bytes=1000)
    a = queue.subscribe("a")
    put_each(queue, [b"%03d" % n + bytes(200) for n in range(12)])
    with a.session() as session, a.session() as holder:
        holder.dequeue()
        session.dequeue_many(3)
        session.flush()
        holder.rollback()
    drain(queue)
    queue.close()
    flip(segment_files(directory)[2], 64 + 40)
    report = repair(directory)
    assert report.lost
    assert not report.without_log
    queue = open_queue()
    lost = {n for first, count in report.lost for n in range(first, first + count)}
    left = [int(item[:3]) for item in queue.subscribe("a").browse()]
    assert left == [n for n in [0, *range(4, 12)] if n not in lost]
    assert len(queue) == 0


@pytest.mark.damages
def test_a_log_that_contradicts_itself(directory: Path, open_queue: QueueFactory) -> None:
    """Without a log ``repair`` takes the items from the blocks, for the plain queue; the subscriptions are lost."""
    queue = open_queue()
    queue.subscribe("a")
    put(queue, *numbers(3))
    queue.close()
    log_file(directory).write_bytes(b"nothing")
    assert repair(directory).without_log
    queue = open_queue()
    assert queue.subscriptions() == []
    assert drain(queue) == numbers(3)


@pytest.mark.damages
@pytest.mark.parametrize("way", ["at once", "later", "by the command"])
def test_fan_out_after_a_repair_without_a_log(directory: Path, open_queue: QueueFactory, way: str) -> None:
    """With ``fan_out=True``, ``repair`` makes a queue without a plain consumer. It keeps all items, also published
    ones, until there are subscriptions, each of which gets them."""
    queue = open_queue(fan_out=True, segment_bytes=1000)
    queue.subscribe("a")
    put_each(queue, [b"%03d" % n + bytes(200) for n in range(12)])
    queue.close()
    publish(directory, b"published")
    log_file(directory).write_bytes(b"nothing")
    if way != "at once":
        assert repair(directory).without_log
        with pytest.raises(ValueError, match=r"repaired without its log.*repair --fan-out"):
            open_queue(fan_out=True)
    if way == "by the command":
        assert main(["repair", str(directory), "--fan-out"]) == 0
    else:
        report = repair(directory, fan_out=True)
        assert (report.items, report.without_log, report.lost) == (13, way == "at once", ())
    for fan_out in (True, False):
        queue = open_queue(fan_out=fan_out)
        queue.trim()
        queue.compact(below=1.0)
        assert (queue.subscriptions(), queue.stats().ready) == ([], 13)
        queue.close()
    assert check(directory).ok
    assert repair(directory, fan_out=True).items == 13
    queue = open_queue(fan_out=True)
    for name in ("a", "b"):
        assert [item[:3] for item in queue.subscribe(name).browse()] == [*(b"%03d" % n for n in range(12)), b"pub"]
    assert len(take(queue.subscribe("a"))) == 13
    assert queue.stats().ready == 13
    queue.unsubscribe("a")
    assert len(take(queue.subscribe("b"))) == 13
    assert queue.stats().ready == 0


def test_a_repair_drops_no_consumer_with_items(directory: Path, open_queue: QueueFactory) -> None:
    """A queue with a plain consumer and a subscription keeps both: ``repair`` refuses ``fan_out=True``."""
    queue = open_queue()
    subscription = queue.subscribe("a")
    put(queue, *numbers(3))
    assert take(subscription) == numbers(3)
    queue.close()
    with pytest.raises(ValueError, match="has subscriptions beside its plain consumer"):
        repair(directory, fan_out=True)
    assert main(["repair", str(directory), "--fan-out"]) == 2
    queue = open_queue()
    assert queue.subscriptions() == ["a"]
    assert drain(queue) == numbers(3)


@pytest.mark.parametrize("name", ["", "x" * 65_536, b"bytes", None])
def test_names_that_cannot_be(open_queue: QueueFactory, name: object) -> None:
    """A name for a subscription must be text that is not empty and fits into a frame."""
    with pytest.raises((ValueError, TypeError), match="name"):
        open_queue().subscribe(name)  # type: ignore[arg-type]


def test_starts_that_cannot_be(open_queue: QueueFactory) -> None:
    """A start other than ``earliest`` and ``latest`` is refused."""
    with pytest.raises(ValueError, match="earliest"):
        open_queue().subscribe("a", start="now")  # type: ignore[arg-type]


# --- against a model -------------------------------------------------------------------------------------------------


@pytest.mark.unwatched
@pytest.mark.parametrize("seed", range(9))
def test_random_programs(directory: Path, seed: int) -> None:
    """After random enqueues, dequeues, rollbacks, subscriptions, closings and crashes, each subscription has the items
    of a model. The queue keeps exactly the items that some consumer needs."""
    chance = random.Random(seed)
    fan_out = seed % 3 == 0
    settings: dict[str, Any] = {"segment_bytes": 400, "log_bytes": 4096, "memory_bytes": 3000}
    queue = PersistentQueue(directory, fan_out=fan_out, **settings)
    model: dict[str, list[bytes]] = {} if fan_out else {"": []}
    items: list[bytes] = []
    kept: set[bytes] = set()
    for _ in range(150):
        name = chance.choice(sorted(model)) if model else ""
        step = chance.random()
        if step < 0.35:
            new = [b"%d " % n + bytes(chance.choice([0, 30, 300])) for n in range(len(items), len(items) + 5)]
            put(queue, *new)
            items += new
            kept.update(new)
            for left in model.values():
                left.extend(new)
        elif step < 0.75 and model:
            consumer = queue.subscribe(name) if name else queue
            with consumer.session() as keeper, consumer.session() as session:
                count = chance.randrange(8)
                held = keeper.dequeue_many(chance.randrange(3))
                taken = session.dequeue_many(count)
                assert held + taken == model[name][: len(held) + count]
                session.flush()
                model[name] = held + model[name][len(held) + len(taken) :]
                keeper.rollback()
        elif step < 0.82:
            name = chance.choice("abcd")
            start: Start = chance.choice(["earliest", "latest"])
            if name not in model:
                model[name] = [item for item in items if item in kept] if start == "earliest" else []
            queue.subscribe(name, start=start)
        elif step < 0.88 and name:
            queue.unsubscribe(name)
            del model[name]
        elif step < 0.94:
            queue.trim()
        else:
            crash(queue) if chance.random() < 0.5 else queue.close()
            assert check(directory).ok
            queue = PersistentQueue(directory, **settings)
        if model:  # without a consumer, every item is kept
            kept = {item for left in model.values() for item in left}
        assert queue.stats().enqueued - queue.stats().dequeued == len(kept)
        assert {*queue.subscriptions()} == {*model} - {""}
        for name, left in model.items():
            consumer = queue.subscribe(name) if name else queue
            assert (list(consumer.browse()), len(consumer)) == (left, len(left))
    queue.close()


def _consume(state: State, count: int) -> None:
    """Enqueue the next ``count`` sequences of a state with at most one consumer, and let them go."""
    state.gone.consume(state.next_sequence, count)
    state.next_sequence += count


def test_what_a_checkpoint_says_comes_back() -> None:
    """Random states of subscriptions are equal after a checkpoint with its supplement is restored."""
    chance = random.Random(7)
    for _ in range(200):
        state = State()
        _consume(state, chance.randrange(5))
        state.apply(SubscriptionClosed(0)) if chance.random() < 0.3 else None
        for number in range(1, chance.randrange(4)):
            state.apply(SubscriptionOpened(number, chance.randrange(state.next_sequence + 1), f"s{number}"))
        _consume(state, 30) if not state.subscriptions else None
        restored = State.restore(state.checkpoint(0, None, ()), state.supplement())
        assert restored.supplement() == state.supplement()
        assert {n: (c.name, c.frontier, c.consumed.runs()) for n, c in restored.subscriptions.items()} == {
            n: (c.name, c.frontier, c.consumed.runs()) for n, c in state.subscriptions.items()
        }


# --- what contradicts itself -----------------------------------------------------------------------------------------


def test_operations_that_cannot_be() -> None:
    """The state refuses a second subscription with a number or a name, a start in the future, and operations on an
    unknown subscription. It refuses a supplement that contradicts its checkpoint."""
    wrongs: list[Operation] = [
        SubscriptionOpened(0, 0, "a"),
        SubscriptionOpened(2, 0, "known"),
        SubscriptionOpened(2, 1, "a"),
        SubscriptionClosed(2),
        Dequeue(2, 0, 1),
    ]
    for wrong in wrongs:
        state = State()
        state.apply(SubscriptionOpened(1, 0, "known"))
        with pytest.raises(StateError):
            state.apply(wrong)
    empty = State().checkpoint(0, None, ())
    supplements: list[list[Operation]] = [
        [SubscriptionOpened(0, 1, "")],
        [SubscriptionOpened(0, 0, ""), Dequeue(0, 2, 1)],
        [Dequeue(0, 0, 1)],
        [empty],
    ]
    for supplement in supplements:
        with pytest.raises(StateError):
            State.restore(empty, supplement)
    state = State()
    _consume(state, 3)
    checkpoint = state.checkpoint(0, None, ())._replace(frontier=1, consumed=[(2, 1)])
    row = ExtentRow(1, 1, 1, 64, 100, 0, 1, 100)
    checkpoint = checkpoint._replace(segments=[SegmentRow(1, 1, 1000, 164, 1)], extents=[row])
    assert State.restore(checkpoint, [SubscriptionOpened(1, 1, "a")]).gone_count == 2
    with pytest.raises(StateError, match="in common"):
        State.restore(checkpoint, [SubscriptionOpened(1, 2, "a")])


def test_a_name_that_is_no_text() -> None:
    """A frame is damaged if it has a subscription whose name is not UTF-8."""
    body = encode_transaction([SubscriptionOpened(1, 0, "xx")]).replace(b"xx", b"\xff\xff")
    frame, _ = encode_frame(body, 7, 0, 1, 0, 1, 1)
    with pytest.raises(CorruptionError, match="UTF-8"):
        decode_frame(frame + body, 0, 7, "log")


@pytest.mark.parametrize("call", ["subscribe", "unsubscribe"])
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()], ids=repr)
def test_a_disk_that_fails(directory: Path, call: str, error: BaseException) -> None:
    """A log without room neither adds nor removes a subscription. If the write of the log fails, the outcome is unknown
    until the next opening."""
    failing: list[BaseException] = []

    def pwritev(*arguments: Any) -> int:
        if failing:
            raise failing[0]
        return DISK.pwritev(*arguments)

    disk = replace(DISK, pwritev=pwritev, open_direct=lambda path: None)
    queue = call_on(disk, PersistentQueue, directory)
    change = (lambda: queue.subscribe("b")) if call == "subscribe" else (lambda: queue.unsubscribe("a"))
    queue.subscribe("a")
    store = queue._open()._store
    with pytest.MonkeyPatch.context() as patch:
        full = DiskFullError(str(directory), 28, "no room")

        def trim(**_: object) -> None:
            raise full

        patch.setattr(store, "trim", trim)
        patch.setattr(store.generations.log, "has_room", lambda *_: False)
        with pytest.raises(DiskFullError):
            change()
    assert queue.subscriptions() == ["a"]
    failing.append(error)
    with pytest.raises(BrokenQueueError if isinstance(error, OSError) else KeyboardInterrupt):
        change()
    failing.clear()
    with pytest.raises(BrokenQueueError):
        change()
    queue.close()
    with PersistentQueue(directory) as queue:
        assert queue.subscriptions() in (["a"], ["a", "b"], [])
        put(queue, b"x")
        assert all(take(queue.subscribe(name)) == [b"x"] for name in queue.subscriptions())


def test_a_cursor_counts_what_it_passed() -> None:
    """``done_of`` and ``unconsumed`` split any run into consumed and unconsumed parts. ``overlaps`` tells whether there
    is a consumed part."""
    chance = random.Random(3)
    for _ in range(300):
        members = {n for n in range(40) if chance.random() < 0.5}
        cursor = Cursor()
        for n in chance.sample(sorted(members), len(members)):
            cursor.consume(n, 1)
        assert cursor.count == len(members)
        first, end = sorted([chance.randrange(41), chance.randrange(41)])
        done = [n for start, count in cursor.done_of(Intervals().rest(first, end)) for n in range(start, start + count)]
        left = [n for start, count in cursor.unconsumed(first, end) for n in range(start, start + count)]
        assert done == [n for n in range(first, end) if n in members]
        assert left == [n for n in range(first, end) if n not in members]
        assert cursor.overlaps(first, end) == bool(done) or first == end
        assert cursor.live_between(first, end) == len(left)
        copy = cursor.copy("x")
        assert copy.consume_rest(first, end) == cursor.unconsumed(first, end)
        assert copy.unconsumed(first, end) == []


def test_ready_begins_where_the_cursor_is() -> None:
    """Ready items of a subscription begin at the first sequence that its cursor has not passed."""
    state = State()
    _consume(state, 4)
    state.apply(SubscriptionOpened(1, 0, "a"))
    assert Availability(state, 1).position == 4
    assert Availability(state, 1).name == "a"


def test_many_threads_on_many_subscriptions(open_queue: QueueFactory) -> None:
    """Each of three subscriptions, with two consuming threads each, gets every item once while four threads enqueue."""
    queue = open_queue(segment_bytes=20_000)
    names = ["a", "b", "c"]
    subscriptions = {name: queue.subscribe(name) for name in names}
    queue.clear()
    got: dict[str, list[bytes]] = {name: [] for name in names}
    lock = threading.Lock()

    def produce(who: int) -> None:
        with queue.session() as session:
            for n in range(200):
                session.enqueue(b"%d-%d" % (who, n))
                if n % 7 == 6:
                    session.flush()
            session.flush()

    def consume(name: str) -> None:
        with subscriptions[name].session() as session:
            while True:
                with lock:
                    if len(got[name]) >= 800:
                        return
                items = session.dequeue_many(9, timeout=0.05)
                session.flush()
                with lock:
                    got[name] += items

    with ThreadPoolExecutor(10) as pool:
        for task in [pool.submit(consume, name) for name in names * 2] + [pool.submit(produce, n) for n in range(4)]:
            task.result(120)
    expected = sorted(b"%d-%d" % (who, n) for who in range(4) for n in range(200))
    for name in names:
        assert sorted(got[name]) == expected
    assert len(queue) == 800


# --- browsing while others consume -----------------------------------------------------------------------------------


def test_browsing_all_of_what_is_consumed_meanwhile(open_queue: QueueFactory) -> None:
    """``browse_all`` returns the items that some consumer still needs, and skips items that are consumed meanwhile in
    any order."""
    queue = open_queue(memory_bytes=0)
    put_each(queue, [b"%d" % number for number in range(9)])
    browsing = queue.browse_all()
    assert next(browsing) == b"0"
    with queue.session() as one, queue.session() as other:
        for session, count in ((one, 3), (other, 2), (one, 2)):
            assert len(session.dequeue_many(count)) == count
        one.flush()
        put(queue, b"9")
        assert list(browsing) == [b"3", b"4", b"7", b"8", b"9"]
        assert list(queue.browse_all()) == [b"3", b"4", b"7", b"8", b"9"]
        assert len(queue._open()._store.subscriptions.of_all().ready) == 5
        other.flush()
    assert list(queue.browse_all()) == [b"7", b"8", b"9"]
    browsing = queue.browse_all()
    assert next(browsing) == b"7"
    drain(queue)
    assert list(browsing) == []


def test_browsing_a_subscription_that_is_removed(open_queue: QueueFactory) -> None:
    """Browsing a subscription ends after its removal, at the latest behind the items that were read before."""
    queue = open_queue(memory_bytes=0)
    subscription = queue.subscribe("b")
    put_each(queue, [b"0", b"1", b"2"])
    browsing = subscription.browse()
    assert next(browsing) == b"0"
    queue.unsubscribe("b")
    assert list(browsing) == []
    drain(queue)
    assert list(subscription.browse()) == []


@pytest.mark.parametrize("kind", ["all", "removed"])
def test_a_read_that_comes_behind_a_close(open_queue: QueueFactory, kind: str) -> None:
    """Browsing that goes on after the queue was closed opens none of its files again."""
    queue = open_queue(memory_bytes=0)
    subscription = queue.subscribe("b")
    put(queue, *[bytes(5000)] * 10)
    group = queue._open()
    reader = group._store.subscriptions.of_all() if kind == "all" else subscription._reader
    queue.unsubscribe("b")
    batches = reader.browse()
    queue.close()
    with pytest.raises(ClosedError) if kind == "all" else nullcontext():
        assert next(batches, None) is None

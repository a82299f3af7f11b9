"""Availability: items come out once, in order, and are counted, also from the lane, which needs no mutex."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from persistentqueue import PersistentQueue, Session, SubscriptionNotFoundError
from persistentqueue.core.availability import LANE_ITEMS, Availability, Taken
from persistentqueue.core.intervals import Intervals, Run
from persistentqueue.runtime.session_state import hold_of
from tests.conftest import QueueFactory
from tests.support.queues import drain, interruptible, put

SECONDS = 60
ITEMS = [b"%d" % number for number in range(200)]


def ready_of(queue: PersistentQueue) -> Availability:
    """Return the ready items of the queue's plain subscription."""
    reader = queue._open()._store.subscriptions.plain
    assert reader is not None
    return reader.ready


def fill(queue: PersistentQueue, session: Session[bytes]) -> deque[Taken]:
    """Put ``ITEMS`` into the queue, and dequeue three of them: then the lane is not empty. Return the lane."""
    put(queue, *ITEMS)
    assert [session.dequeue() for _ in range(3)] == ITEMS[:3]
    lane = ready_of(queue).lane
    assert lane[0] == (3, ITEMS[3])
    return lane


def test_items_come_once_and_in_order(open_queue: QueueFactory) -> None:
    """Items come in order, the lane grows up to its bound, and each flush consumes the items that were dequeued."""
    queue, sizes = open_queue(), set()
    put(queue, *ITEMS)
    with queue.session() as session:
        for number, item in enumerate(ITEMS):
            assert session.dequeue() == item
            sizes.add(len(ready_of(queue).lane))
            if number % 50 == 49:
                session.flush()
                assert len(queue) == queue.stats().ready == len(ITEMS) - number - 1
                assert queue.stats().held == 0
        assert session.dequeue() is None
    assert max(sizes) == LANE_ITEMS - 1  # the dequeue that fills the lane takes one item at once


@pytest.mark.parametrize("how", ["many", "clear", "browse", "peek", "explain", "stats", "length", "cached"])
def test_whoever_looks_or_takes_sees_the_lane(how: str, open_queue: QueueFactory) -> None:
    """Items in the lane are ready: other sessions take them, browsing shows them, and every count includes them."""
    queue = open_queue()
    with queue.session() as session, queue.session("other") as other:
        fill(queue, session)
        if how == "many":
            assert other.dequeue_many(2) == ITEMS[3:5]
            assert session.dequeue() == ITEMS[5]
        elif how == "cached":
            assert other.dequeue_cached(2) == ITEMS[3:5]
            assert session.dequeue() == ITEMS[5]
        elif how == "clear":
            assert queue.clear() == len(ITEMS) - 3
            assert session.dequeue() is None
        elif how == "browse":
            assert list(queue.browse()) == ITEMS[3:]
        elif how == "peek":
            assert queue.peek() == ITEMS[3:4]
        elif how == "explain":
            (use,) = queue.explain()
            assert (use.ready, [holder.items for holder in use.holders]) == (len(ITEMS) - 3, [3])
        elif how == "stats":
            assert (queue.stats().ready, queue.stats().held) == (len(ITEMS) - 3, 3)
            assert (queue.stats().page_hits, queue.stats().cached) == (3, len(ITEMS) - 3)
        else:
            assert len(queue) == len(ITEMS) - 3
        session.rollback()
        other.rollback()


@pytest.mark.parametrize("how", ["rollback", "put_back", "close"])
def test_what_comes_back_comes_first(how: str, open_queue: QueueFactory) -> None:
    """Items that another session gives back come before the items in the lane."""
    queue = open_queue()
    with queue.session() as session:
        other = queue.session()
        put(queue, *ITEMS)
        assert other.dequeue_many(2) == ITEMS[:2]
        assert [session.dequeue() for _ in range(3)] == ITEMS[2:5]
        assert ready_of(queue).lane
        if how == "put_back":
            other.put_back(1)
            assert [session.dequeue() for _ in range(3)] == [ITEMS[1], *ITEMS[5:7]]
        else:
            getattr(other, how)()
            assert [session.dequeue() for _ in range(4)] == [*ITEMS[:2], *ITEMS[5:7]]
        other.close()
        session.rollback()
    assert drain(queue) == ITEMS


def test_an_item_that_is_noted_meanwhile_is_kept_once(open_queue: QueueFactory) -> None:
    """A look at what a session keeps counts an item once, also if its thread notes the item during the look."""

    class Noted(list[Taken]):
        """Items that are noted behind the copy."""

        def copy(self) -> list[Taken]:
            copied = list(self)
            session._note(session._open())
            return copied

    queue = open_queue()
    session = queue.session()
    fill(queue, session)
    session._taken = Noted(session._taken)
    hold = hold_of(session)
    assert hold is not None
    assert sum(count for _, count in hold.runs) == 3
    session.close()


def test_what_came_from_the_lane_is_given_back(open_queue: QueueFactory) -> None:
    """A rollback, ``put_back`` and the end of a session give back the items that came from the lane."""
    queue = open_queue()
    session = queue.session()
    fill(queue, session)
    assert hold_of(session) is not None
    assert "3 dequeued items" in str(session._unflushed())
    session.put_back(2)
    assert session.dequeue_many(2) == ITEMS[1:3]
    session.rollback()
    fill_again = [session.dequeue() for _ in range(10)]
    assert fill_again == ITEMS[:10]
    session.close()
    with pytest.warns(ResourceWarning, match="was dropped with items that it has dequeued"):
        dropped = queue.session()
        assert [dropped.dequeue() for _ in range(5)] == ITEMS[:5]
        del dropped
    assert drain(queue) == ITEMS


def test_sessions_that_take_turns(open_queue: QueueFactory) -> None:
    """Each item is consumed by the flush of the session that took it, also when sessions take items in turns."""
    queue = open_queue()
    put(queue, *ITEMS)
    sessions = [queue.session(str(number)) for number in range(3)]
    for number, item in enumerate(ITEMS[:150]):
        assert sessions[number % 3].dequeue() == item
        assert all(len(session._taken) <= LANE_ITEMS for session in sessions)
    (use,) = queue.explain()
    assert [holder.items for holder in use.holders] == [50, 50, 50]
    sessions[0].flush()
    assert sessions[1].dequeue_many(1) == ITEMS[150:151]
    sessions[1].rollback()
    sessions[2].flush()
    left = [item for number, item in enumerate(ITEMS) if number >= 150 or number % 3 == 1]
    assert drain(queue) == left
    for session in sessions:
        session.close()


def test_large_items_do_not_stand_in_the_lane(open_queue: QueueFactory) -> None:
    """The lane holds at most 64 KiB of items, so that ``memory_bytes`` bounds the memory of a queue."""
    queue = open_queue()
    put(queue, *[bytes(40_000)] * 4)
    with queue.session() as session:
        for _ in range(4):
            assert session.dequeue() == bytes(40_000)
            assert len(ready_of(queue).lane) <= 1
        session.flush()


def test_a_subscription_that_goes_takes_its_lane_along(open_queue: QueueFactory) -> None:
    """A dequeue from a subscription that was removed raises its error, even with items in the lane."""
    queue = open_queue(fan_out=True)
    audit = queue.subscribe("audit")
    with queue.transaction() as session:
        session.enqueue_many(ITEMS)
    with audit.session() as session:
        assert [session.dequeue() for _ in range(3)] == ITEMS[:3]
        assert audit._reader.ready.lane
        queue.unsubscribe("audit")
        with pytest.raises(SubscriptionNotFoundError):
            session.dequeue()
        session.rollback()


def test_a_handler_that_raises_index_error_ends_the_call(open_queue: QueueFactory) -> None:
    """An ``IndexError`` from a signal handler is not mistaken for an empty lane: it ends the dequeue, which then has no
    effect."""
    queue = open_queue()
    with interruptible(), queue.session() as session:
        fill(queue, session)

        class Signalling(deque[Taken]):
            def popleft(self) -> Taken:
                signal.raise_signal(signal.SIGALRM)
                raise AssertionError

        def refuse(*_: object) -> None:
            raise IndexError("from a handler")

        before = signal.signal(signal.SIGALRM, refuse)
        try:
            session._takes = map(session._taken.append, iter(Signalling().popleft, None))
            with pytest.raises(IndexError, match="from a handler"):
                session.dequeue()
        finally:
            signal.signal(signal.SIGALRM, before)
        assert queue.stats().held == 3
        session._takes = map(session._taken.append, iter(ready_of(queue).lane.popleft, None))
        assert session.dequeue() == ITEMS[3]
        session.rollback()


def test_others_may_be_quicker(open_queue: QueueFactory) -> None:
    """If other threads empty the lane after a session has looked at it, the dequeue still returns the next item."""
    queue = open_queue()
    with queue.session() as session:
        fill(queue, session)
        ready = ready_of(queue)
        behind, taken = ready.lane[-1][0] + 1, list(ready.lane)

        class Emptied(deque[Taken]):
            def __bool__(self) -> bool:
                return True

        lane, ready.lane, session._lane = ready.lane, Emptied(), Emptied()
        assert ready.position == behind
        session._takes = map(session._taken.append, iter(session._lane.popleft, None))
        ready.lane = lane
        assert session.dequeue() == taken[0][1]
        session.rollback()


def test_a_recall_that_was_interrupted_goes_on(open_queue: QueueFactory) -> None:
    """After an interrupted recall all its items are ready, and the next recall finishes it."""
    queue = open_queue()
    with queue.session() as session:
        lane, ready = fill(queue, session), ready_of(queue)
        ready._recalled.append(lane.pop())
        while lane:
            ready._recalled.append(lane.pop())
        assert (ready.position, len(ready), ready.held) == (3, len(ITEMS) - 3, 3)
        assert session.dequeue() == ITEMS[3]
        assert not ready._recalled
        session.rollback()
    assert drain(queue) == ITEMS


def _sequences(runs: list[Run]) -> set[int]:
    """Return the sequences of these runs."""
    return {at for first, count in runs for at in range(first, first + count)}


def test_items_are_held_again_by_their_sequences(open_queue: QueueFactory) -> None:
    """Exactly the wanted runs are held: in the lane, behind it, or released before. If one of them is not ready, none
    is held. The others come out in order, and what is released comes back in its place."""
    chance, queue = random.Random(0), open_queue()
    put(queue, *ITEMS)
    ready = ready_of(queue)
    for _ in range(60):
        with queue.session() as session, queue.session() as other:
            for _ in range(chance.randrange(9)):
                chance.choice((session, other)).dequeue_many(chance.randrange(1, 40))
                chance.choice((session, other)).rollback()
            session.dequeue()
            free = _sequences(ready.members().runs())
            runs: list[Run] = []
            while len(runs) < 4:
                runs.append(((sum(runs[-1]) if runs else 0) + chance.randrange(30), chance.randrange(1, 12)))
            wanted = _sequences(runs)
            chance.shuffle(runs)
            is_ready = wanted <= free
            assert ready.hold_again(runs) is is_ready
            assert _sequences(ready.members().runs()) == (free - wanted if is_ready else free)
            assert not ready.hold_again([(len(ITEMS) - 1, 2)])
            if is_ready:
                assert not ready.hold_again(runs[:1])
                ready.release(runs)
            assert other.dequeue_many(len(ITEMS)) == [ITEMS[at] for at in sorted(free)]
            other.rollback()
            session.rollback()
    assert drain(queue) == ITEMS


def test_threads_that_take_one_by_one(open_queue: QueueFactory, threads: ThreadPoolExecutor) -> None:
    """Concurrent consumers that dequeue single items and lists, put items back and read counts get each item exactly
    once."""
    queue, total, workers = open_queue(), 6000, 4
    got: Counter[int] = Counter()
    adding, numbers, done = threading.Lock(), count(), threading.Event()

    def produce() -> None:
        with queue.session() as session:
            for number in numbers:
                if number >= total:
                    return
                session.enqueue(b"%d" % number)
                if number % 40 == 0 or number == total - 1:
                    session.flush()

    def consume(seed: int) -> None:
        random_numbers, mine = random.Random(seed), []
        with queue.session() as session:
            while not done.is_set():
                item = session.dequeue(0.01)
                mine += [int(item)] if item is not None else []
                turn = random_numbers.random()
                if turn < 0.03:
                    session.rollback()
                    mine = []
                elif turn < 0.05:
                    mine += map(int, session.dequeue_many(7))
                elif turn < 0.07 and mine:
                    session.put_back(1)
                    mine.pop()
                elif turn < 0.09:
                    assert 0 <= len(queue) <= total
                    assert queue.stats().held >= len(mine)
                elif turn < 0.14:
                    session.flush()
                    with adding:
                        got.update(mine)
                        if got.total() >= total:
                            done.set()
                    mine = []
            session.flush()
            with adding:
                got.update(mine)

    calls: list[Callable[[], None]] = [produce, *(lambda seed=seed: consume(seed) for seed in range(workers))]
    for future in [threads.submit(call) for call in calls]:
        future.result(SECONDS)
    assert got == Counter(range(total))
    assert len(queue) == queue.stats().held == 0


def test_delayed_runs_are_visited_few_times(open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of an opening grows with the number of delayed runs, and not with its square."""
    delayed, visited = 300, 0
    queue = open_queue(retry_delay_seconds=3600.0)
    put(queue, *(b"%d" % number for number in range(2 * delayed)))
    with queue.session() as session:
        for item in session.dequeue_many(2 * delayed)[::2]:
            session.reject(item)
        session.flush()
    queue.close()

    def visiting(call: Callable[..., list[Run]]) -> Callable[..., list[Run]]:
        def counted(*arguments: object) -> list[Run]:
            nonlocal visited
            runs = call(*arguments)
            visited += len(runs)
            return runs

        return counted

    for name in ("runs", "between"):
        monkeypatch.setattr(Intervals, name, visiting(getattr(Intervals, name)))
    queue = open_queue(retry_delay_seconds=3600.0)
    assert queue.stats().delayed == delayed
    assert delayed <= visited < 20 * delayed


def test_no_run_is_held_or_given_back(open_queue: QueueFactory) -> None:
    """A call about no runs, or about more than are held, changes nothing."""
    queue = open_queue()
    put(queue, *ITEMS)
    ready, runs = ready_of(queue), [(0, 3)]
    assert ready.hold_again([])
    assert ready.hold(3) == runs
    ready.give_back(runs, 0)
    with pytest.raises(AssertionError, match="4 sequences are given back, and 3 are held"):
        ready.give_back(runs, 4)
    assert runs == [(0, 3)]
    assert not ready.hold_again([(0, 1)])
    ready.give_back(runs, 3)
    assert runs == [] and ready.hold_again([(0, 1)])
    ready.release([(0, 1)])
    assert drain(queue) == ITEMS

"""Threads that share a queue, a session, a ticket or a directory, and run at once.

On a free-threaded Python the threads really run at once. On others they change after nearly each instruction.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from persistentqueue import (
    ClosedError,
    PersistentQueue,
    PrecedingFlushError,
    Producer,
    Session,
    SessionInUseError,
    Ticket,
    View,
)
from persistentqueue.compat import Queue
from persistentqueue.core.page_cache import ITEM_OVERHEAD_BYTES
from persistentqueue.system.disk import DISK, Root
from tests.conftest import QueueFactory
from tests.support.queues import IN_CACHE, drain, put
from tests.support.threads import SECONDS, at_once

ROUNDS = 2000


def tried(call: Callable[[bytes], object], name: str, rounds: int = ROUNDS) -> list[bytes]:
    """Make the call with items of this name. Return those of the calls that were not refused."""
    done = []
    for number in range(rounds):
        item = f"{name} {number}".encode()
        with suppress(SessionInUseError):
            call(item)
            done.append(item)
    return done


# --- objects for one thread at a time --------------------------------------------------------------------------------


def test_threads_fill_one_session(open_queue: QueueFactory) -> None:
    """Several threads enqueue by one session at once: each call is done whole or refused, and none is done halfway."""
    queue = open_queue(disk=IN_CACHE)
    with queue.session() as session:
        done = at_once(*(partial(tried, session.enqueue, name) for name in "abcd"))
        items = [item for each in done for item in each]
        transaction = session._transaction
        assert transaction is not None
        assert transaction.cost_bytes == sum(len(item) + ITEM_OVERHEAD_BYTES for item in items)
        session.flush()
    assert Counter(drain(queue)) == Counter(items)


def test_threads_fill_one_producer(open_queue: QueueFactory, path: Path) -> None:
    """Several threads enqueue by one producer at once: each call is done whole or refused."""
    queue = open_queue(disk=IN_CACHE)
    with Producer(path, "orders") as producer:
        done = at_once(*(partial(tried, producer.enqueue, name) for name in "abcd"))
        items = [item for each in done for item in each]
        assert producer.pending == len(items)
        producer.flush()
    assert Counter(drain(queue)) == Counter(items)


def test_threads_dequeue_by_one_session(open_queue: QueueFactory) -> None:
    """Several threads dequeue by one session at once: each item comes to one of them, and a flush consumes all."""
    queue = open_queue(disk=IN_CACHE)
    items = [str(number).encode() for number in range(ROUNDS)]
    put(queue, *items)
    got: list[bytes] = []

    def dequeue() -> None:
        while True:
            with suppress(SessionInUseError):
                item = session.dequeue()
                if item is None:
                    return
                got.append(item)

    with queue.session() as session:
        at_once(*[dequeue] * 4)
        assert Counter(got) == Counter(items)
        assert session._transaction is not None
        session.flush()
    assert queue.stats().held == len(queue) == 0


# --- one queue, many sessions ----------------------------------------------------------------------------------------


def produce(queue: PersistentQueue, name: str, rounds: int, wait: bool) -> list[bytes]:
    """Enqueue items in order, with a flush for each, and return them. Each ticket must end well."""
    items, tickets = [], []
    with queue.session() as session:
        for number in range(rounds):
            items.append(f"{name} {number}".encode())
            session.enqueue(items[-1])
            if wait:
                session.flush()
            else:
                tickets.append(session.flush(wait=False))
    assert all(ticket.result(SECONDS) for ticket in tickets)
    return items


def consume(queue: PersistentQueue, is_over: threading.Event, wait: bool) -> list[bytes]:
    """Dequeue items and consume them, with a flush for some, until no more come; roll some back in between."""
    got: list[bytes] = []
    with queue.session() as session:
        for number in count():
            ended = is_over.is_set()
            some = [item for item in (session.dequeue(), session.dequeue()) if item is not None]
            if number % 7 == 0:
                session.rollback()
                continue
            session.flush(wait=wait)
            got += some
            if ended and not some and not len(queue):
                return got
    raise AssertionError


def test_each_item_comes_once_and_in_order(open_queue: QueueFactory) -> None:
    """Threads with sessions of their own enqueue, dequeue, flush in both ways and roll back: each item comes once."""
    queue = open_queue(disk=IN_CACHE)
    is_over, others = threading.Event(), [None] * 3

    def produced(name: str, wait: bool) -> list[bytes]:
        try:
            return produce(queue, name, 400, wait)
        finally:
            try:
                others.pop()  # one call of C: on a free-threaded Python, no two threads get the same
            except IndexError:
                is_over.set()

    *put_in, a, b, c = at_once(
        *(partial(produced, name, wait) for name, wait in (("a", True), ("b", True), ("c", False), ("d", False))),
        *(partial(consume, queue, is_over, wait) for wait in (True, True, False)),
    )
    items = [item for each in put_in for item in each]
    assert Counter(a + b + c) == Counter(items)
    stats = queue.stats()
    assert (stats.enqueued, stats.dequeued, stats.ready, stats.held) == (1600, 1600, 0, 0)
    # The histogram has each flush that wrote: no note of a thread was lost.
    assert stats.transactions >= 800


def test_items_of_one_session_keep_their_order(open_queue: QueueFactory) -> None:
    """Two sessions hand flushes over at once, and one thread reads along: the items of each session stay in order."""
    queue = open_queue(disk=IN_CACHE)

    def read() -> list[bytes]:
        got: list[bytes] = []
        with queue.session() as session:
            while len(got) < 1000:
                item = session.dequeue(SECONDS)
                assert item is not None
                got.append(item)
                if len(got) % 50 == 0:
                    session.flush()
        return got

    a, b, got = at_once(partial(produce, queue, "a", 500, False), partial(produce, queue, "b", 500, False), read)
    assert [item for item in got if item.startswith(b"a")] == a
    assert [item for item in got if item.startswith(b"b")] == b


def test_looks_while_sessions_come_and_go(open_queue: QueueFactory, path: Path) -> None:
    """Statistics, explanations and views succeed while other threads make sessions and drop them."""
    queue = open_queue(disk=IN_CACHE)
    is_over = threading.Event()

    def come_and_go() -> None:
        for number in range(200):
            session = queue.session()
            session.enqueue(b"%d" % number)
            session.flush(wait=number % 3 > 0)
            session.dequeue()
            session.rollback()
            del session

    def look() -> None:
        while not is_over.wait(0.001):  # a thread that never pauses would keep the mutex for itself
            assert queue.stats().enqueued <= 600
            queue.explain()
            assert View(path, "orders").look().depth <= 600

    def work() -> None:
        try:
            at_once(*[come_and_go] * 3)
        finally:
            is_over.set()

    at_once(work, look, look)
    assert len(queue) == 600


def test_pipelines_come_and_go_while_others_sync(open_queue: QueueFactory) -> None:
    """A sync waits for all flushes that were handed over before it, while other threads begin and end pipelines."""
    queue = open_queue(disk=IN_CACHE)

    def hand_over() -> int:
        for number in range(150):
            with queue.session() as session:
                session.enqueue(b"%d" % number)
                ticket = session.flush(wait=False)
                queue.sync()
                assert ticket.done()
        return 150

    assert sum(at_once(*[hand_over] * 4)) == 600
    assert len(queue) == 600


@pytest.mark.filterwarnings("ignore::persistentqueue.UnflushedWarning")
def test_a_close_while_others_work(open_queue: QueueFactory) -> None:
    """A queue is closed while threads work: each is refused, and all that was acknowledged is durable."""
    expected = 0
    for _ in range(8):
        queue = open_queue(disk=IN_CACHE)
        assert len(queue) == expected
        expected += sum(at_once(*worked_until_close(queue)))
    assert len(open_queue(disk=IN_CACHE)) == expected


def worked_until_close(queue: PersistentQueue) -> list[Callable[[], int]]:
    """Return calls for threads that enqueue, and one that closes the queue then. Each returns what was acknowledged."""
    begun = threading.Semaphore(0)

    def work(wait: bool) -> int:
        done, tickets = 0, list[Ticket]()
        with suppress(ClosedError, PrecedingFlushError):
            session = queue.session()
            while True:
                session.enqueue(b"x")
                begun.release()
                if wait:
                    session.flush()
                    done += 1
                else:
                    tickets.append(session.flush(wait=False))
        return done + sum(ticket.exception(SECONDS) is None for ticket in tickets)

    def close() -> int:
        for _ in range(40):
            assert begun.acquire(timeout=SECONDS)
        queue.close()
        return 0

    return [partial(work, True), partial(work, False), partial(work, True), close]


# --- faces -----------------------------------------------------------------------------------------------------------


def test_queue_of_the_standard_library(tmp_path: Path) -> None:
    """Threads put and get by one ``compat.Queue`` with few places: each item comes once, and ``join`` ends."""
    with Queue[int](tmp_path / "queue", maxsize=5, sync=False) as queue:

        def put_some(first: int) -> list[int]:
            for number in range(first, first + 150):
                queue.put(number)
                assert queue.qsize() <= 5
            return []

        def get_some() -> list[int]:
            got = []
            for _ in range(150):
                got.append(queue.get(timeout=SECONDS))
                queue.task_done()
            return got

        got = at_once(partial(put_some, 0), partial(put_some, 1000), get_some, get_some)
        queue.join()
        assert queue.unfinished_tasks == queue.qsize() == 0
    assert sorted(number for each in got for number in each) == [*range(150), *range(1000, 1150)]


# --- tickets and descriptors -----------------------------------------------------------------------------------------


def test_each_callback_is_called_once(open_queue: QueueFactory) -> None:
    """Threads add callbacks to tickets, and wait for them, while the flushes end: each callback is called once."""
    queue = open_queue(disk=IN_CACHE)
    called: list[int] = []
    tickets: list[Ticket] = []

    def hand_over(session: Session) -> int:
        for number in range(800):
            session.enqueue(b"%d" % number)
            tickets.append(session.flush(wait=False))
        return 0

    def watch(first: int) -> int:
        def note(number: int, _: Future[bool]) -> None:
            called.append(number)

        for number in range(800):
            while len(tickets) <= number:
                pass
            tickets[number].add_done_callback(partial(note, first + number))
            if number % 5 == 0:
                assert tickets[number].result(SECONDS)
        return 0

    with queue.session() as session:
        at_once(partial(hand_over, session), partial(watch, 0), partial(watch, 1000))
    assert Counter(called) == Counter([*range(800), *range(1000, 1800)])


def test_a_descriptor_is_closed_once(tmp_path: Path) -> None:
    """Threads end their calls below a directory while another thread closes it: its descriptor is closed once."""
    closed: list[int] = []
    disk = replace(DISK, close_file=closed.append)
    found = DISK.lstat(str(tmp_path))

    def use(root: Root) -> None:
        with suppress(ClosedError), root:
            pass

    for number in range(ROUNDS // 4):
        root = Root(disk, str(tmp_path), number, found)
        at_once(partial(use, root), root.close, partial(use, root))
    assert closed == list(range(ROUNDS // 4))

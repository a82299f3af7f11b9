"""Compaction against weaknesses of its predecessors: ActiveMQ (AMQ-3978), the journal of Artemis, and the linearstore.

A journal file was deleted only when nothing in it was needed, so that a few slow messages kept every file. The
acknowledgements of one file were in the next, and kept chains of files. Compacting those lost outcomes (AMQ-7067).
Artemis lost records that were added during a compaction (ARTEMIS-2053, -1114). Its tests let each operation come
before, during and after a compaction, and so do these.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import PersistentQueue
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.engine.compaction import Copy
from persistentqueue.engine.context import Settings
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Transaction
from tests.conftest import QueueFactory
from tests.crash.disk import SimulatedDisk
from tests.durability.test_campaigns import enqueuing, opened
from tests.support.queues import IN_CACHE, crash, drain, put, segment_files
from tests.unit.engine.test_compaction import commit_copy, items_in

LITTLE: dict[str, Any] = {"segment_bytes": 4000, "log_bytes": 4096, "disk": IN_CACHE}


def live_bytes(directory: Path) -> int:
    """Return the bytes of the data files."""
    return sum(path.stat().st_size for path in segment_files(directory))


def fill(queue: PersistentQueue, segments: int, per_segment: int) -> list[bytes]:
    """Fill so many segments, and one more with zeros. Return the items of the former."""
    items = [(b"%d " % n).ljust(4000 // per_segment - 4, b".") for n in range(segments * per_segment)]
    for at in range(0, len(items), per_segment):
        put(queue, *items[at : at + per_segment])
    put(queue, bytes(4000))
    return items


# --- orphans ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_bytes", [0, 1 << 26])
def test_orphans(open_queue: QueueFactory, directory: Path, memory_bytes: int) -> None:
    """If one held item per file is all that is left, a compaction shrinks the disk usage to these items, and they
    survive."""
    queue = open_queue(**LITTLE, memory_bytes=memory_bytes)
    items = fill(queue, 30, 100)
    with queue.session() as slow, queue.session() as fast:
        for _ in range(30):
            assert slow.dequeue() is not None
            assert len(fast.dequeue_many(99)) == 99
        assert fast.dequeue() == bytes(4000)
        fast.flush()
        queue.trim()
        assert len(segment_files(directory)) == 31
        assert queue.compact().segments == 30
        assert live_bytes(directory) <= 2 * 4000 + 2 * HEADER_BYTES
        slow.rollback()
    queue.close()
    queue = open_queue(**LITTLE)
    assert drain(queue) == items[::100]


def test_item_in_doubt_does_not_pin_the_disk(open_queue: QueueFactory, directory: Path) -> None:
    """One held item among 10^5 consumed ones costs at most one segment, and comes back after a rollback."""
    queue = open_queue(segment_bytes=200_000, disk=IN_CACHE)
    items = [b"%06d" % n for n in range(100_000)]
    for at in range(0, 100_000, 5000):
        put(queue, *items[at : at + 5000])
    assert len(segment_files(directory)) == 4
    with queue.session() as doubtful, queue.session() as consumer:
        assert consumer.dequeue_many(50_000) == items[:50_000]
        assert doubtful.dequeue() == items[50_000]
        assert consumer.dequeue_many(100_000) == items[50_001:]
        consumer.flush()
        assert queue.compact(below=1).segments == 1
        put(queue, b"next")
        queue.trim()
        assert [path.stat().st_size for path in segment_files(directory)][-1] < 200
        assert len(segment_files(directory)) <= 2
        assert (queue.stats().held, queue.stats().live_bytes) == (1, 2 * 48 + 10)
        doubtful.rollback()
    assert drain(queue) == [items[50_000], b"next"]


# --- chains ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compacts", [False, True])
def test_chain(open_queue: QueueFactory, directory: Path, compacts: bool) -> None:
    """Each file's items are consumed by transactions in the next file. Once the first item is consumed, all files are
    deleted, and no item comes back."""
    queue = open_queue(**LITTLE)
    slow = queue.session()
    ballast = [bytes(350)] * 9
    put(queue, b"slow", *ballast)
    assert slow.dequeue() == b"slow"
    for number in range(1, 11):
        with queue.transaction() as session:
            session.enqueue_many([b"%d" % number, *ballast])
            assert len(session.dequeue_many(11)) == 9 + (number > 1)
        assert len(queue) == 10
        if compacts:
            queue.compact()
            assert len(segment_files(directory)) <= 4
        if number % 3 == 0:
            slow.close()
            (crash if number % 2 else PersistentQueue.close)(queue)
            queue = open_queue(**LITTLE)
            assert len(queue) == 11
            slow = queue.session()
            assert slow.dequeue() == b"slow"
    slow.flush()
    slow.close()
    assert drain(queue) == [b"10", *ballast]
    crash(queue)
    queue = open_queue(**LITTLE)
    assert (len(queue), queue.stats().enqueued, queue.stats().dequeued) == (0, 110, 110)
    queue.trim()
    assert len(segment_files(directory)) <= 1


# --- out of order ----------------------------------------------------------------------------------------------------


def reverse(count: int) -> Sequence[int]:
    return range(count)[::-1]


def shuffled(count: int) -> Sequence[int]:
    return random.Random(count).sample(range(count), count)


def middle_first(count: int) -> Sequence[int]:
    return sorted(range(count), key=lambda n: abs(n - count // 2))


def every_other(count: int) -> Sequence[int]:
    return [*range(0, count, 2), *range(1, count, 2)]


@pytest.mark.parametrize(
    "order", [range, reverse, shuffled, middle_first, every_other], ids=lambda order: order.__name__
)
@pytest.mark.parametrize("compacts", [False, True])
def test_completion_in_any_order(
    open_queue: QueueFactory, directory: Path, order: Callable[[int], Sequence[int]], compacts: bool
) -> None:
    """Sessions that hold parts of the queue complete in any order. Files in the middle are deleted, and few bytes
    remain at the end."""
    queue = open_queue(**LITTLE, memory_bytes=0)
    items = fill(queue, 20, 40)
    with ExitStack() as stack:
        sessions = [stack.enter_context(queue.session()) for _ in range(80)]
        for number, session in enumerate(sessions):
            assert session.dequeue_many(10) == items[number * 10 : number * 10 + 10]
        for done, number in enumerate(order(80)[:70], 1):
            sessions[number].flush()
            if compacts and done % 10 == 0:
                queue.compact(below=0.6)
                # In each segment more than six tenths are live, except in the last copy and the current segment.
                assert live_bytes(directory) <= (80 - done) * 1000 / 0.6 + 2 * 4200
        assert queue.stats().held == 100
        for session in sessions:
            session.rollback()
    left = [item for number in sorted(order(80)[70:]) for item in items[number * 10 : number * 10 + 10]]
    assert [*queue.peek(100), bytes(4000)] == [*left, bytes(4000)]
    queue.compact(below=1)
    assert live_bytes(directory) <= 100 * 110 + 4500
    crash(queue)
    queue = open_queue(**LITTLE)
    assert drain(queue) == [*left, bytes(4000)]
    queue.trim()
    assert len(segment_files(directory)) <= 1


# --- a compaction between any operations -----------------------------------------------------------------------------


class _Program:
    """A queue of a few segments, a program with every kind of operation on it, and the expected content."""

    def __init__(self, disk: SimulatedDisk, settings: Settings) -> None:
        self.store: Store = opened(disk, settings)
        self.content: list[bytes] = []
        self.held: dict[str, tuple[Transaction, list[bytes]]] = {}
        self.spilled: list[Transaction] = []
        for n in range(16):
            self.put(b"%d" % n)
        self.hold("gaps", 1)
        for at in range(4):
            self.hold(f"first {at}", 3)
            self.commit(f"first {at}")
            self.hold(f"gap {at}", 1)
        self.rest: list[Callable[[], None]] = [
            lambda: self.put(b"new", b"ones"),
            lambda: self.commit("gap 1"),
            lambda: self.spill(b"spilled" * 10, b"later"),
            lambda: self.rollback("gap 2"),
            self.commit_spilled,
            lambda: self.hold("last", 2),
            self.trim,
            lambda: self.commit("last"),
            lambda: self.rollback("gaps"),
        ]

    def put(self, *items: bytes) -> None:
        self.store.commit([enqueuing(*items)])
        self.content += items

    def hold(self, name: str, count: int) -> None:
        transaction = Transaction(self.store.reader.ready)
        transaction.runs, items = self.store.reader.take(count)
        held = [item for _, its in self.held.values() for item in its]
        assert items == [item for item in self.content if item not in held][:count]
        self.held[name] = (transaction, items)

    def commit(self, name: str) -> None:
        transaction, items = self.held.pop(name)
        self.store.commit([transaction])
        self.content = [item for item in self.content if item not in items]

    def rollback(self, name: str) -> None:
        self.store.discard(self.held.pop(name)[0])

    def spill(self, *items: bytes) -> None:
        self.spilled.append(enqueuing(items[0]))
        self.store.spill(self.spilled[0])
        self.spilled[0].add(items[1:2])

    def commit_spilled(self) -> None:
        transaction = self.spilled.pop()
        self.store.commit([transaction])
        self.content += [b"spilled" * 10, b"later"]

    def trim(self) -> None:
        self.store.trim()
        self.store.give_back()

    def ready(self) -> list[bytes]:
        held = [item for _, its in self.held.values() for item in its]
        return [item for item in self.content if item not in held]


SETTINGS = [Settings(segment_bytes=HEADER_BYTES + size, log_bytes=2000, memory_bytes=0) for size in (110, 200)]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: str(settings.segment_bytes))
def test_compaction_between_any_operations(settings: Settings) -> None:
    """Whichever operations come before the begin, the copy and the commit of a compaction, the content equals a
    model's. This holds at the commit and after a crash."""
    steps, compactions = 9, 0
    for begin, step, commit in combinations_with_replacement(range(steps + 1), 3):
        disk = SimulatedDisk()
        program = _Program(disk, settings)
        copy: Copy | None = None
        for at in range(steps + 1):
            if at == begin:
                copy = program.store.begin_compaction(0.9, False, 64 * (step % 2))
            if at == step and copy is not None:
                for _ in range(3):
                    copy.step()
            if at == commit and copy is not None:
                while copy.step():
                    pass
                compactions += commit_copy(program.store, copy) is not None
            if at < steps:
                program.rest[at]()
            if at == commit:
                assert items_in(program.store) == program.ready(), (begin, step, commit, at)
        after = opened(disk.kill(lambda _: 0), settings)
        assert items_in(after) == program.content, (begin, step, commit)
    assert compactions > 200


@pytest.mark.parametrize("hole_items", [0, 64])
def test_rolled_back_and_compacted_again(hole_items: int) -> None:
    """Repeated compactions, each over the moves of the one before and with consumers in between, lose no item."""
    disk, chance = SimulatedDisk(), random.Random(hole_items)
    settings = replace(SETTINGS[1], log_bytes=4096)
    store = opened(disk, settings)
    content = [b"%d" % n for n in range(120)]
    for item in content:
        store.commit([enqueuing(item)])
    for _ in range(30):
        transactions = [Transaction(store.reader.ready) for _ in range(9)]
        taken: list[list[bytes]] = []
        for transaction in transactions:
            transaction.runs, items = store.reader.take(chance.randrange(1, 9))
            taken.append(items)
        gone = chance.randrange(9)
        store.commit([transactions.pop(gone)])
        content = [item for item in content if item not in taken[gone]]
        copy = store.begin_compaction(0.8, False, hole_items)
        if copy is not None:
            while copy.step():
                pass
            commit_copy(store, copy)
        for transaction in chance.sample(transactions, len(transactions)):
            store.discard(transaction)
        assert items_in(store) == content
        store.trim()
        store.give_back()
        assert items_in(opened(disk.kill(lambda _: 0), settings)) == content
    names = [name for name in disk.names if name.endswith(".seg")]
    assert len(names) <= 3 + len(content) // 2

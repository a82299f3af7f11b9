"""Publications that fail half way, and the order of markers among producers and the owner."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    CorruptionError,
    DiskFullError,
    ItemTooLargeError,
    PersistentQueue,
    Producer,
    QueueLockedError,
)
from persistentqueue.core.page_cache import ITEM_OVERHEAD_BYTES
from persistentqueue.engine.inbox import ADOPTED_MAX
from persistentqueue.engine.transaction import SPILL_BYTES
from persistentqueue.storage.layout import find_generations
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.crash.disk import SimulatedDisk
from tests.support.disks import call_on
from tests.support.queues import crash, drain, log_file, put, wait_for

from .test_producer import inbox, publish

# --- failures half way -----------------------------------------------------------------------------------------------


class Stumbling:
    """A disk on which the ``at``-th call that changes anything fails, or is interrupted, if it is within
    ``stumbles``."""

    CALLS = ("open", "pwritev", "ftruncate", "fdatasync", "rename", "fsync", "close_file", "lock")

    def __init__(self, at: int, errno_or_none: int | None) -> None:
        self._left, self._errno, self._is_on = at, errno_or_none, False
        self.has_failed = False
        doors: dict[str, Any] = {name: self._door(getattr(DISK, name)) for name in self.CALLS}
        self.disk = replace(DISK, **doors)

    @contextmanager
    def stumbles(self) -> Iterator[None]:
        """Allow the failure only in this context."""
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    def _door(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def door(*arguments: Any) -> Any:
            # An interruption right behind ``open`` leaks the descriptor, in any program of Python.
            if not self._is_on or (self._errno is None and real is DISK.open):
                return real(*arguments)
            self._left -= 1
            if self._left:
                return real(*arguments)
            self._is_on, self.has_failed = False, True
            if self._errno is None:
                real(*arguments)  # a signal handler runs behind the call
                raise KeyboardInterrupt
            if real is DISK.close_file:
                real(*arguments)  # the descriptor is closed all the same
            elif real is DISK.pwritev:  # a part is written
                fd, buffers, offset, flags = arguments
                data = b"".join(buffers)
                real(fd, [data[: len(data) // 2]], offset, flags)
            raise OSError(self._errno, os.strerror(self._errno))

        return door


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, None], ids=["full", "broken", "interrupted"])
@pytest.mark.parametrize("ahead", [0, 6], ids=["in memory", "written ahead"])
def test_whatever_fails_a_transaction_comes_once_or_not_at_all(tmp_path: Path, error: int | None, ahead: int) -> None:
    """If a flush fails anywhere, the producer has kept the whole transaction, or dropped it, or published it.

    A further flush, with a shorter marker, publishes a kept transaction once and unchanged, and the producer goes on.
    """
    items = [bytes([n]) * 1024 * 1024 for n in range(ahead)] + [b"x" * 600_000, b"y" * 600_000, b"z"]
    outcomes = set()
    for at in range(1, 40):
        stumbling = Stumbling(at, error)
        directory = tmp_path / f"{at}"
        with PersistentQueue(directory) as queue, call_on(stumbling.disk, Producer, directory) as producer:
            producer.enqueue_many(items)
            try:
                with stumbling.stumbles():
                    producer.flush(marker=("a long name" * 1000, 1))
            except (BrokenQueueError, KeyboardInterrupt, OSError, DiskFullError) as raised:
                told = type(raised).__name__
            else:
                told = "nothing"
            kept = producer.pending
            assert kept in {0, len(items)}
            producer.flush(marker=("short", 1))
            producer.enqueue(b"goes on")
            producer.flush()
            found = drain(queue) + drain(queue)
            assert found in ([*items, b"goes on"], [b"goes on"])
            if kept or told in {"nothing", "BrokenQueueError"}:
                assert len(found) == len(items) + 1
            if told == "DiskFullError":
                assert kept
            outcomes.add((told, bool(kept), len(found) > 1))
        assert inbox(directory) == []
        shutil.rmtree(directory)
        if not stumbling.has_failed:
            break
    assert ("nothing", False, True) in outcomes
    assert not stumbling.has_failed
    assert len(outcomes) > 1


def test_waiting_for_very_long(open_queue: QueueFactory) -> None:
    """A timeout may be as long as a month, or infinite."""
    queue = open_queue()
    for seconds in (30 * 86_400.0, 1e12, float("inf")):
        with ThreadPoolExecutor(1) as pool, queue.session() as session:
            waiting = pool.submit(session.dequeue, seconds)
            wait_for(lambda: queue._open()._waiters.keeper is not None)
            put(queue, b"x")
            assert waiting.result(60) == b"x"
            session.flush()


def test_waiting_without_a_descriptor_left(
    open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter that gets no descriptor for a wake-up waits all the same, and looks every 50 ms."""

    def no_more(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "eventfd", no_more)
    queue = open_queue()
    with ThreadPoolExecutor(2) as pool, queue.session() as session:
        for puts in (lambda: publish(directory, b"x"), lambda: put(queue, b"x")):
            waiting = pool.submit(session.dequeue, 60)
            wait_for(lambda: queue._open()._waiters.count == 1)
            puts()
            assert waiting.result(60) == b"x"
            session.flush()


@pytest.mark.damages
def test_an_adoption_that_a_power_cut_took_of_a_damaged_file(directory: Path) -> None:
    """A damaged file that would go back to the inbox is set aside instead, and the queue opens."""
    queue = PersistentQueue(directory)
    put(queue, b"own")
    log = log_file(directory)
    before = log.read_bytes()
    publish(directory, b"a")
    with queue.session() as session:
        assert session.dequeue_many(2) == [b"own"]
        assert session.dequeue() == b"a"
        session.rollback()
    crash(queue)
    log.write_bytes(before)
    segment = max((directory / "data").glob("*.seg"))
    segment.write_bytes(segment.read_bytes()[:-1] + b"?")
    with PersistentQueue(directory) as queue:
        assert queue.recovery.set_aside == (f"data/{segment.name}",)
        assert drain(queue) == [b"own"]
    assert (directory / "data" / f"{segment.name}.damaged").exists()


def test_a_queue_that_is_just_being_made(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that makes a queue at the same time as its owner does not wait until the owner closes it."""
    with PersistentQueue(directory):
        looks = iter([[], *[find_generations(DISK, str(directory))] * 9])
        monkeypatch.setattr("persistentqueue.interprocess.producer.find_generations", lambda *_: next(looks))
        Producer(directory).close()
    assert len(list(looks)) == 7  # one try found the lock taken; then ``_create`` and the producer look once each


def test_a_queue_that_is_never_made(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that waits for a queue which another process never finishes making is told the id of that process."""
    monkeypatch.setattr("persistentqueue.interprocess.producer._CREATION_TRIES", 2)
    monkeypatch.setattr("persistentqueue.interprocess.producer._TRY_SECONDS", 0.001)
    with PersistentQueue(directory):
        monkeypatch.setattr("persistentqueue.interprocess.producer.find_generations", lambda *_: [])
        with pytest.raises(QueueLockedError, match=str(os.getpid())):
            Producer(directory)


def test_what_somebody_takes_away(open_queue: QueueFactory, directory: Path) -> None:
    """A published file that is gone when its turn comes is passed over."""
    queue = open_queue(max_items=3)
    put(queue, b"a", b"b")
    for item in (b"c", b"d", b"e"):
        publish(directory, item)
    with queue.session() as session:
        assert session.dequeue_many(9) == [b"a", b"b"]
        assert session.dequeue() == b"c"  # the others were listed, but there is no room for them
        (directory / "inbox" / inbox(directory)[0]).unlink()
        session.flush()
    assert drain(queue) == [b"e"]


@pytest.mark.damages
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_set_aside(open_queue: QueueFactory, directory: Path, make: Callable[[Path], None]) -> None:
    """A directory, a pipe and a link with the name of a publication are reported once, and do not stop the adoption of
    other files."""
    queue = open_queue()
    publish(directory, b"a")
    (name,) = inbox(directory)
    make(directory / "inbox" / name.replace(".seg", ".tmp"))
    make(directory / "inbox" / f"{0:016x}-{1:016x}.seg")
    assert drain(queue) == [b"a"]
    with queue.session() as session:
        with pytest.raises(CorruptionError, match="expected a regular file"):
            session.dequeue()
        assert session.dequeue() is None
    queue.close()
    assert drain(open_queue()) == []
    assert sorted(inbox(directory))[0].endswith(".damaged")


@pytest.mark.unwatched
def test_a_large_inbox_is_listed_a_few_times(directory: Path) -> None:
    """Adopting ten frames of publications takes a few listings of the inbox, and not some for each frame."""
    listings = [0]

    def listdir(path: str) -> list[str]:
        listings[0] += path.endswith("inbox")
        return DISK.listdir(path)

    PersistentQueue(directory).close()
    with call_on(replace(DISK, fdatasync=lambda fd: None, fsync=lambda fd: None), Producer, directory) as producer:
        for number in range(10 * ADOPTED_MAX):
            producer.enqueue(b"%d" % number)
            producer.flush()
    with call_on(replace(DISK, listdir=listdir), PersistentQueue, directory) as queue:
        assert len(queue) == 10 * ADOPTED_MAX
        assert listings[0] <= 6
        assert drain(queue) == [b"%d" % number for number in range(10 * ADOPTED_MAX)]


# --- the order of markers --------------------------------------------------------------------------------------------


def test_a_version_comes_before_the_next_whatever_the_clock_says(open_queue: QueueFactory, directory: Path) -> None:
    """The next version of a marker is published behind the one before it, even if the clock of its producer is
    behind."""
    queue = open_queue()
    ahead = replace(DISK, time_ns=lambda: DISK.time_ns() + 3600 * 10**9)
    publish(directory, b"41", marker=("app", 41), disk=ahead)
    publish(directory, b"42", marker=("app", 42))
    publish(directory, b"43", marker=("app", 43))
    assert drain(queue) == [b"41", b"42", b"43"]
    assert queue.marker("app") == 43


def test_a_listing_that_misses_what_came_before(directory: Path) -> None:
    """If a listing has a later publication and lacks an earlier one of another producer, the owner lists once more."""
    PersistentQueue(directory).close()
    answers: list[list[str]] = []

    def listdir(path: str) -> list[str]:
        return answers.pop(0) if path.endswith("inbox") and answers else DISK.listdir(path)

    publish(directory, b"43", marker=("app", 43))
    publish(directory, b"44", marker=("app", 44))
    first, second = inbox(directory)
    answers += [[first, second], [second]]  # to sweep, then to adopt
    with call_on(replace(DISK, listdir=listdir), PersistentQueue, directory) as queue:
        assert drain(queue) == [b"43", b"44"]
        assert queue.marker("app") == 44


def test_a_version_is_reached_only_durably(tmp_path: Path) -> None:
    """A producer reports a marker in the owner's log as reached only when its frame is durable.

    The owner may not have synced that frame yet.
    """
    machine = SimulatedDisk()
    queue = call_on(machine.disk, PersistentQueue, "/queues", "a")
    for number in range(2):
        put(queue, b"%d" % number)
    answers: list[bool] = []
    after: list[SimulatedDisk] = []

    store = queue._open()._store

    def tick() -> None:
        log = machine.inodes[machine.names[store.generations.path or ""]]
        if not answers and log.pending:
            answers.append(True)
            with call_on(machine.disk, Producer, "/queues", "a") as producer:
                producer.enqueue(b"2")
                answers[:] = [producer.flush(marker=("app", 2))]
            after.append(machine.cut_power(lambda _: 0))

    machine.on_tick = tick
    with queue.session() as session:
        session.enqueue(b"2")
        session.flush(marker=("app", 2))
    machine.on_tick = lambda: None
    queue.close()
    assert answers == [False]
    with call_on(after[0].disk, PersistentQueue, "/queues", "a") as queue:
        assert queue.marker("app") == 2
        assert drain(queue) == [b"0", b"1", b"2"]


def test_what_waits_is_read_once(directory: Path) -> None:
    """However many flushes of a producer wait to be adopted, each waiting file is read once."""
    PersistentQueue(directory).close()
    opened: list[str] = []

    def opens(path: str, flags: int, mode: int) -> int:
        opened.append(path)
        return DISK.open(path, flags, mode)

    with call_on(replace(DISK, open=opens), Producer, directory) as producer, Producer(directory) as other:
        for number in range(60):
            producer.enqueue(b"%d" % number)
            assert producer.flush(("app", 2 * number))
            assert other.flush(("other", number))
            assert not producer.flush(("other", number))
            assert not producer.flush(("app", 2 * number))
    published = [path for path in opened if path.endswith(".seg")]
    assert len(published) == len(set(published)) == 120
    with PersistentQueue(directory) as queue:
        assert drain(queue) == [b"%d" % number for number in range(60)]


def test_what_was_read_and_is_adopted_is_in_the_log(open_queue: QueueFactory, directory: Path) -> None:
    """A version that a producer has seen waiting stays reached when the owner has adopted it.

    It is not reached if the file has left the inbox without an adoption.
    """
    queue = open_queue()
    with Producer(directory) as producer:
        for version in range(3):
            publish(directory, b"%d" % version, marker=("app", version))
            assert not producer.flush(("app", version))
            assert drain(queue) == [b"%d" % version]
            assert not producer.flush(("app", version))
        publish(directory, b"3", marker=("app", 3))
        assert not producer.flush(("app", 3))
        (directory / "inbox" / inbox(directory)[0]).unlink()
        producer.enqueue(b"3")
        assert producer.flush(("app", 3))
    assert drain(queue) == [b"3"]


@pytest.mark.damages
def test_what_is_listed_beside_published_files(directory: Path) -> None:
    """Foreign, missing and damaged files in the inbox count for no version; the log of an unsynced queue counts."""
    queue = PersistentQueue(directory, sync=False)
    with queue.session() as session:
        session.flush(marker=("app", 1))
    answers = [["a stranger", f"{1:016x}-{1:016x}.seg", f"{2:016x}-{2:016x}.seg"]]
    (directory / "inbox" / answers[0][2]).write_bytes(b"nothing of ours")

    def listdir(path: str) -> list[str]:
        return answers.pop() if answers and path.endswith("inbox") else DISK.listdir(path)

    with call_on(replace(DISK, listdir=listdir), Producer, directory) as producer:
        assert not producer.flush(("app", 1))
        assert producer.flush(("app", 2))
    assert queue.marker("app") == 1
    crash(queue)


@pytest.mark.parametrize("seed", range(5))
def test_many_at_once_are_buffered_as_one_by_one(open_queue: QueueFactory, directory: Path, seed: int) -> None:
    """However many items come at once, at most ``SPILL_BYTES`` of them or one item are in memory, and all come out
    unchanged."""
    chance = random.Random(seed)
    queue = open_queue()
    put_in: list[bytes] = []
    with Producer(directory) as producer:
        for _ in range(3):
            length_bytes = chance.choice([0, 10, 100_000, SPILL_BYTES // 2, SPILL_BYTES])
            count = chance.randrange(1, 3 + 2 * SPILL_BYTES // (length_bytes + ITEM_OVERHEAD_BYTES))
            some = [bytes(length_bytes)] * count
            put_in += some
            producer.enqueue_many(some)
            if chance.random() < 0.5:
                producer.enqueue(b"one")
                put_in.append(b"one")
            batch = producer._batch
            assert batch.payload_bytes == sum(map(len, batch.items))
            assert len(batch.items) == 1 or batch.payload_bytes + ITEM_OVERHEAD_BYTES * len(batch.items) <= SPILL_BYTES
            assert producer.pending == len(put_in)
        producer.flush()
    assert drain(queue) == put_in


def test_many_at_once_of_which_one_is_too_large(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one item of a list is too large, no item of the list is buffered."""
    PersistentQueue(directory).close()
    monkeypatch.setattr("persistentqueue.core.items.ITEM_BYTES_MAX", 10)
    with Producer(directory) as producer:
        producer.enqueue(b"before")
        with pytest.raises(ItemTooLargeError):
            producer.enqueue_many([b"good", bytes(11), b"good"])
        producer.enqueue_many([b"short"] * 3)
        assert producer.pending == 4
        producer.rollback()

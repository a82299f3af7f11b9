"""Real processes that produce while the owner is killed: nothing is lost or doubled, each producer's order is kept."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from persistentqueue import PersistentQueue, Producer, check
from tests.predecessors.test_diskqueue_kills import Deadly
from tests.support.disks import call_on
from tests.support.queues import IN_CACHE, drain, wait_for

from .test_processes import Child, Forks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs signals")

PRODUCERS = 4
ITEMS = 100_000
PER_FLUSH = 40
LIFE_SECONDS = 1.0
KILLS_LEAST = 3
_STEP = "consumed"


def produce(pipe: Connection, directory: Path, number: int) -> None:
    """Publish all items of one producer, some in each flush."""
    pipe.send("begins")
    with Producer(directory) as producer:
        for start in range(0, ITEMS, PER_FLUSH):
            producer.enqueue_many([b"%d %d" % (number, n) for n in range(start, start + PER_FLUSH)])
            producer.flush()
    pipe.send("done")


def consume(pipe: Connection, directory: Path, results: Path) -> None:
    """Take items without end, and write them to numbered files; the marker has the number of the last file that
    counts."""
    with PersistentQueue(directory, lock_timeout=60) as queue, queue.session() as session:
        pipe.send("begins")
        step = queue.marker(_STEP)
        step = -1 if step is None else step
        while True:
            items = session.dequeue_many(1000, timeout=60)
            step += 1
            (results / f"{step}").write_bytes(b"\n".join(items))
            session.flush(marker=(_STEP, step))


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """Yield one fork server for all tests."""
    server = Forks()
    with server:
        yield server


def publish_and_die(ledger: int, directory: Path, last: int, half: bool) -> None:
    """Publish three times under a disk that kills; the ledger gets each acknowledged flush, and the number of steps."""
    deadly = Deadly(last, half)
    with call_on(deadly.disk, Producer, directory, create=False) as producer:
        for number in range(3):
            producer.enqueue_many([b"%d %d" % (number, n) for n in range(2)])
            if number == 1:
                producer._spill()
                producer.enqueue(b"spilled")
            producer.flush()
            os.write(ledger, b"%d\n" % number)
    os.write(ledger, b"%d steps\n" % deadly.steps)


@pytest.mark.parametrize("half", [False, True], ids=["between calls", "within a write"])
def test_a_producer_is_killed_at_every_step(
    tmp_path: Path, forks: Forks, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a producer is killed at any step, the owner gets all acknowledged flushes, and the one under way whole or
    not.

    Files that the producer leaves behind are swept.
    """
    monkeypatch.setattr("persistentqueue.engine.inbox.DRAFT_SECONDS_KEPT", 0.0)
    flushes = [[b"0 0", b"0 1"], [b"1 0", b"1 1", b"spilled"], [b"2 0", b"2 1"]]
    with PersistentQueue(tmp_path / "whole") as queue:
        ledger, code = forks.run(publish_and_die, tmp_path / "whole", 10**9, half)
        assert (code, ledger[:3]) == (0, [b"0", b"1", b"2"])
        assert drain(queue) == list(chain.from_iterable(flushes))
    steps = int(ledger[3].split()[0])
    assert steps > 6
    halves = 0
    for last in range(1, steps + 1):
        directory = tmp_path / f"{last}"
        with call_on(IN_CACHE, PersistentQueue, directory) as queue:
            ledger, code = forks.run(publish_and_die, directory, last, half)
            assert code == -signal.SIGKILL
            found, done = drain(queue), len(ledger)
            assert found in (list(chain.from_iterable(flushes[:done])), list(chain.from_iterable(flushes[: done + 1])))
            halves += len(os.listdir(directory / "inbox"))
            queue._open()._store.tidy()
            assert os.listdir(directory / "inbox") == []
    assert halves


def test_many_produce_while_the_consumer_is_killed(tmp_path: Path) -> None:
    """Four processes publish 100,000 items each, while their consumer is killed every second: each item arrives
    once."""
    directory, results = tmp_path / "queue", tmp_path / "results"
    results.mkdir()
    PersistentQueue(directory).close()
    producers = [Child(produce, directory, number) for number in range(PRODUCERS)]
    kills = 0
    try:
        for child in producers:
            assert child.hear() == "begins"
        working = set(producers)
        while working or kills < KILLS_LEAST:
            with Child(consume, directory, results) as consumer:
                assert consumer.hear() == "begins"
                wait_for((results / "1").exists)  # written behind the first flush of the first consumer
                end = time.monotonic() + LIFE_SECONDS
                while time.monotonic() < end:
                    consumer.pipe.poll(0.01)  # a wait: the consumer sends nothing more
                    working -= {child for child in working if child.pipe.poll() and child.hear() == "done"}
            kills += 1
    finally:
        for child in producers:
            child.__exit__(None, None, None)
    assert check(directory).ok
    with PersistentQueue(directory) as queue, queue.transaction() as session:
        steps = queue.marker(_STEP)
        left = session.dequeue_many(PRODUCERS * ITEMS)
    assert steps is not None
    taken = chain.from_iterable((results / f"{step}").read_bytes().split(b"\n") for step in range(steps + 1))
    seen: dict[bytes, list[int]] = {}
    for item in chain(taken, left):
        name, _, n = item.partition(b" ")
        seen.setdefault(name, []).append(int(n))
    assert sorted(seen) == [b"%d" % number for number in range(PRODUCERS)]
    assert all(numbers == list(range(ITEMS)) for numbers in seen.values())
    assert os.listdir(directory / "inbox") == []

"""Real processes that produce while the owner is killed: nothing is lost or doubled, each producer's order is kept."""

from __future__ import annotations

import os
import time
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from persistentqueue import PersistentQueue, Producer, check

from .test_processes import Child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs signals")

PRODUCERS = 4
ITEMS = 100_000
PER_FLUSH = 40
LIFE_SECONDS = 1.0
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
    """Take what there is, and write it to a file of which the marker tells whether it counts; for ever."""
    with PersistentQueue(directory, lock_timeout=60) as queue, queue.session() as session:
        pipe.send("begins")
        step = queue.marker(_STEP)
        step = -1 if step is None else step
        while True:
            items = session.dequeue_many(1000, timeout=60)
            step += 1
            (results / f"{step}").write_bytes(b"\n".join(items))
            session.flush(marker=(_STEP, step))


def test_many_produce_while_the_consumer_is_killed(tmp_path: Path) -> None:
    """Four processes publish 100,000 items each; who consumes them is killed every second, and starts again."""
    directory, results = tmp_path / "queue", tmp_path / "results"
    results.mkdir()
    PersistentQueue(directory).close()
    producers = [Child(produce, directory, number) for number in range(PRODUCERS)]
    kills = 0
    try:
        for child in producers:
            assert child.hear() == "begins"
        working = set(producers)
        while working:
            with Child(consume, directory, results) as consumer:
                assert consumer.hear() == "begins"
                end = time.monotonic() + LIFE_SECONDS
                while working and time.monotonic() < end:
                    working -= {child for child in working if child.pipe.poll(0.01) and child.hear() == "done"}
            kills += 1
    finally:
        for child in producers:
            child.__exit__(None, None, None)
    assert kills >= 2
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

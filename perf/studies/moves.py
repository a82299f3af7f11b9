"""Moves from one queue to another: taken and put in one transaction over both, or in a flush of each.

The two flushes put first, and take after, so that nothing is lost; killed in between, the item is there twice. What the
one transaction costs beside that is what this figure is of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median

from persistentqueue import PersistentQueue, transaction

from ..harness import Row, met, spread
from ..workloads import random_items

BAR = 0.7
"""Times the rate of two flushes."""


def together(source: PersistentQueue, target: PersistentQueue, count: int, batch: int) -> None:
    """Move so many batches, each in one transaction."""
    with transaction(source, target) as (taking, putting):
        for _ in range(count):
            putting.enqueue_many(taking.dequeue_many(batch))
            putting.flush()


def apart(source: PersistentQueue, target: PersistentQueue, count: int, batch: int) -> None:
    """The same, each in two flushes."""
    with source.session() as taking, target.session() as putting:
        for _ in range(count):
            putting.enqueue_many(taking.dequeue_many(batch))
            putting.flush()
            taking.flush()


_WAYS: Mapping[str, Callable[[PersistentQueue, PersistentQueue, int, int], None]] = {
    "together": together,
    "apart": apart,
}


def rates(directory: Path, count: int, batch: int, rounds: int) -> dict[str, list[float]]:
    """The items a second of each way, round by round, in turn; each moves them there, and the next round back."""
    found: dict[str, list[float]] = {way: [] for way in _WAYS}
    queues = {way: [PersistentQueue(directory, f"{way}-{end}") for end in ("a", "b")] for way in _WAYS}
    try:
        for pair in queues.values():
            with pair[0].transaction() as session:
                session.enqueue_many(random_items(count * batch, 100))
        for number in range(rounds):
            for way in list(_WAYS)[:: 1 if number % 2 else -1]:
                source, target = queues[way][:: -1 if number % 2 else 1]
                start = time.perf_counter()
                _WAYS[way](source, target, count, batch)
                found[way].append(count * batch / (time.perf_counter() - start))
                assert (len(source), len(target)) == (0, count * batch)
    finally:
        for pair in queues.values():
            for queue in pair:
                queue.close()
    return found


def rows(directory: Path, count: int, rounds: int) -> Iterator[Row]:
    """The lines of the table: one item at a time, and a hundred."""
    for batch in (1, 100):
        found = rates(directory / str(batch), count, batch, rounds)
        ratios = [one / two for one, two in zip(found["together"], found["apart"], strict=True)]
        yield Row(
            f"Moves from queue to queue, {batch} item{'s' * (batch > 1)} of 100 B in one transaction over both",
            f"{median(found['together']):,.0f} items/s",
            f"{median(found['apart']):,.0f} in two flushes",
            spread(ratios),
            f"{BAR:g} ×",
            met(median(ratios) >= BAR),
        )

"""Moves from one queue to another: in one transaction over both queues, or in one flush of each queue.

Of the two flushes the put comes first, so that no item is lost. A crash between the two flushes leaves the item in both
queues. The figure is the cost of the one transaction beside the two flushes.
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
"""Least ratio to the rate of two flushes."""


def together(source: PersistentQueue, target: PersistentQueue, count: int, batch: int) -> None:
    """Move ``count`` batches, each in one transaction over both queues."""
    with transaction(source, target) as (taking, putting):
        for _ in range(count):
            putting.enqueue_many(taking.dequeue_many(batch))
            putting.flush()


def apart(source: PersistentQueue, target: PersistentQueue, count: int, batch: int) -> None:
    """Move ``count`` batches, each in two flushes."""
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
    """Return the items per second of each way, round by round. The ways take turns.

    Each round moves all items, and the next round moves them back.
    """
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
    """Yield the lines of the table: one item at a time, and a hundred."""
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

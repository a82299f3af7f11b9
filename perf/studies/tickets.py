"""Flushes that one thread does not wait for (``flush(wait=False)``), beside flushes that it waits for.

Both take turns, round after round, each in a queue that stays open. A round of tickets ends when all of them are done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from persistentqueue import PersistentQueue

from ..harness import Row, met, spread

RATIO_BAR = 15.0
WAYS = ("in", "out")
TICKETS_PER_FLUSH = 10
"""Tickets for each flush that is waited for, so that both take about as long."""
_ITEM = b"x" * 100


def rates(directory: Path, count: int, rounds: int) -> dict[tuple[str, bool], list[float]]:
    """Return the flushes per second of each round, by the way and by whether they were waited for.

    Each round makes ``count`` flushes that are waited for, and ten times as many that are not.
    """
    found: dict[tuple[str, bool], list[float]] = {(way, waits): [] for way in WAYS for waits in (True, False)}
    with PersistentQueue(directory / "waiting") as waiting, PersistentQueue(directory / "tickets") as tickets:
        for number in range(rounds):
            for waits in (True, False)[:: 1 if number % 2 else -1]:
                queue, flushes = (waiting, count) if waits else (tickets, TICKETS_PER_FLUSH * count)
                for way in WAYS:
                    found[way, waits].append(flushes / _seconds(queue, way, flushes, waits=waits))
    return found


def _seconds(queue: PersistentQueue, way: str, flushes: int, *, waits: bool) -> float:
    """Return the seconds until this number of flushes, of one item each, is durable."""
    begun = time.perf_counter()
    with queue.session() as session:
        for _ in range(flushes):
            if way == "in":
                session.enqueue(_ITEM)
            else:
                assert session.dequeue() is not None
            session.flush(wait=waits)
    return time.perf_counter() - begun


def rows(directory: Path, count: int, rounds: int) -> Iterator[Row]:
    """Yield the lines of the table."""
    found = rates(directory, count, rounds)
    for way in WAYS:
        ratios = [ours / other for ours, other in zip(found[way, False], found[way, True], strict=True)]
        yield Row(
            f"One item of 100 B per flush that is not waited for, {way}",
            f"{median(found[way, False]):,.0f} flushes/s",
            f"{median(found[way, True]):,.0f} that are waited for",
            f"{spread(ratios)} × flushes that are waited for",
            f"{RATIO_BAR:g} × flushes that are waited for",
            met(median(ratios) >= RATIO_BAR),
        )

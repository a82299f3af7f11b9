"""``python -m perf.studies.attempts``: what it costs to count attempts, beside the same queue that does not.

A delivery is logged, durably, before the items are handed out, so that a step that dequeues and flushes has two durable
writes instead of one. Each round takes the same items, of 100 B, out of both, in turn, so many in a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from persistentqueue import PersistentQueue

from .. import harness

HEADINGS = ("items in a step", "plain", "counted", "times plain")
_WAYS: dict[str, dict[str, Any]] = {"plain": {}, "counted": {"max_attempts": 5, "dead_letter": "dead"}}


def measure(directory: Path, steps: int, many: int, rounds: int) -> dict[str, list[float]]:
    """The steps a second of each way, round by round, with so many items in each."""
    found: dict[str, list[float]] = {way: [] for way in _WAYS}
    for number in range(rounds):
        for way in list(_WAYS)[:: 1 if number % 2 else -1]:
            with PersistentQueue(directory, way, **_WAYS[way]) as queue, queue.session() as session:
                session.enqueue_many([bytes(100)] * (many * steps))
                session.flush()
                start = time.perf_counter()
                for _ in range(steps):
                    assert len(session.dequeue_many(many)) == many
                    session.flush()
                found[way].append(steps / (time.perf_counter() - start))
    return found


def rows(directory: Path, steps: int, rounds: int) -> Iterator[tuple[str, ...]]:
    """A line for each size of a step, as soon as it is known."""
    for many in (1, 100, 1_000):
        found = measure(directory / str(many), steps, many, rounds)
        shares = [one / other for one, other in zip(found["counted"], found["plain"], strict=True)]
        rates = [f"{many * median(found[way]):,.0f} items/s" for way in _WAYS]
        yield (f"{many:,}", *rates, harness.spread(shares))


def main() -> None:
    """Measure, and print each line."""
    parser = harness.parser("perf.studies.attempts", __doc__, rounds=7)
    parser.add_argument("--steps", type=harness.at_least_one, default=500, help="in each round (500)")
    options = parser.parse_args()
    print(harness.table_head(HEADINGS, HEADINGS[:1]))
    with harness.asked_for(options.directory) as directory:
        for row in rows(directory, options.steps, options.rounds):
            print(harness.table_line(row), flush=True)


if __name__ == "__main__":
    main()

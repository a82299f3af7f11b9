"""``python -m perf.studies.attempts``: measures the cost of counting delivery attempts.

A queue that counts attempts logs each delivery durably before it returns the items. A step that dequeues and flushes
then has two durable writes instead of one. Each round takes items of 100 B from a queue that counts and from one that
does not, in turn. All steps of a round have the same number of items.
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
    """Return the steps per second of each way, round by round, with ``many`` items in each step."""
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
    """Yield a line for each number of items in a step, as soon as it is known."""
    for many in (1, 100, 1_000):
        found = measure(directory / str(many), steps, many, rounds)
        shares = [one / other for one, other in zip(found["counted"], found["plain"], strict=True)]
        rates = [f"{many * median(found[way]):,.0f} items/s" for way in _WAYS]
        yield (f"{many:,}", *rates, harness.spread(shares))


def main() -> None:
    """Measure, and print each line as soon as it is known."""
    parser = harness.parser("perf.studies.attempts", __doc__, rounds=7)
    parser.add_argument("--steps", type=harness.at_least_one, default=500, help="steps in each round (500)")
    options = parser.parse_args()
    print(harness.table_head(HEADINGS, HEADINGS[:1]))
    with harness.asked_for(options.directory) as directory:
        for row in rows(directory, options.steps, options.rounds):
            print(harness.table_line(row), flush=True)


if __name__ == "__main__":
    main()

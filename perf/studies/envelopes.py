"""``python -m perf.studies.envelopes``: measures rates and disk use with compression and encryption.

The items are lines of a log in JSON, of 150 to 200 bytes, all different. Each round puts and takes them once in each
way, in turn. The queue is opened again for the takes, with a memory limit of 0, so that all items are read from files.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from persistentqueue import Encryption, PersistentQueue

from .. import harness

_ENCRYPTION = Encryption("perf", {"perf": os.urandom(32)}.__getitem__)
WAYS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "compressed": {"compression": "zstd"},
    "encrypted": {"encryption": _ENCRYPTION},
    "both": {"compression": "zstd", "encryption": _ENCRYPTION},
}
HEADINGS = ("what", "in", "times plain", "out", "times plain", "of the bytes")


class Round(NamedTuple):
    """One round of one way: megabytes of items per second, in and out, and the bytes of their blocks on disk."""

    put: float
    taken: float
    live_bytes: int


def lines(count: int) -> list[bytes]:
    """Return log lines like those of a service, identical in each run."""
    draw = random.Random(20081114)
    words = [draw.choice("bcdfgklmnprst") + draw.choice("aeiou") + draw.choice("lmnrst") * 2 for _ in range(300)]
    return [
        json.dumps(
            {
                "time": 1_700_000_000_000 + number * 17 + draw.randrange(17),
                "level": draw.choice(["INFO", "INFO", "INFO", "WARNING"]),
                "host": f"node-{draw.randrange(40):02}",
                "user": draw.randrange(10**6),
                "message": " ".join(draw.choices(words, k=12)),
                "seconds": round(draw.expovariate(10), 4),
            }
        ).encode()
        for number in range(count)
    ]


def measure(directory: Path, items: list[bytes], batch: int, rounds: int) -> dict[str, list[Round]]:
    """Return the measurement of each way, round by round, with ``batch`` items in each flush."""
    megabytes = sum(map(len, items)) / 1e6
    found: dict[str, list[Round]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in list(WAYS)[:: 1 if number % 2 else -1]:
            with PersistentQueue(directory, way, **WAYS[way]) as queue, queue.session() as session:
                start = time.perf_counter()
                for at in range(0, len(items), batch):
                    session.enqueue_many(items[at : at + batch])
                    session.flush()
                put = megabytes / (time.perf_counter() - start)
                live_bytes = queue.stats().live_bytes
            with PersistentQueue(directory, way, memory_bytes=0, **WAYS[way]) as queue, queue.session() as session:
                start, taken = time.perf_counter(), 0
                while some := session.dequeue_many(batch):
                    session.flush()
                    taken += len(some)
                out = megabytes / (time.perf_counter() - start)
            assert taken == len(items)
            found[way].append(Round(put, out, live_bytes))
    return found


def rows(found: Mapping[str, list[Round]], what: str) -> Iterator[tuple[str, ...]]:
    """Yield a line for each way."""
    plain = found["plain"]
    for way, its in found.items():
        puts = [one.put / other.put for one, other in zip(its, plain, strict=True)]
        takes = [one.taken / other.taken for one, other in zip(its, plain, strict=True)]
        yield (
            f"{what}, {way}",
            f"{median(each.put for each in its):,.1f} MB/s",
            harness.spread(puts),
            f"{median(each.taken for each in its):,.1f} MB/s",
            harness.spread(takes),
            f"{its[0].live_bytes / plain[0].live_bytes:.2f}",
        )


def main() -> None:
    """Measure, and print each line as soon as it is known."""
    parser = harness.parser("perf.studies.envelopes", __doc__, rounds=5)
    parser.add_argument("--items", type=harness.at_least_one, default=100_000, help="items in each round (100,000)")
    options = parser.parse_args()
    items = lines(options.items)
    print(harness.table_head(HEADINGS, ("what",)))
    with harness.asked_for(options.directory) as directory:
        for batch, part in ((1, items[: max(len(items) // 20, 1)]), (1_000, items)):
            found = measure(directory / str(batch), part, batch, options.rounds)
            what = f"{batch:,} line{'s' * (batch > 1)} in a flush"
            print("".join(f"{harness.table_line(row)}\n" for row in rows(found, what)), end="", flush=True)


if __name__ == "__main__":
    main()

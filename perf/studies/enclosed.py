"""``python -m perf.studies.enclosed``: measures the time and the bytes that ``codecs.Enclosed`` adds to an item.

The items are lines of a log as JSON objects, all different. Each round encodes and decodes all of them in each way, in
turn. No queue takes part: the time is that of the process that has the codec.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, NamedTuple

from persistentqueue import Encryption
from persistentqueue.codecs import JSON, Codec, Enclosed

from .. import harness
from .envelopes import lines

_ENCRYPTION = Encryption("perf", {"perf": os.urandom(32)}.__getitem__)
WAYS: Mapping[str, Codec[Any]] = {
    "JSON": JSON,
    "in an envelope": Enclosed(JSON),
    "compressed": Enclosed(JSON, compression="zstd"),
    "encrypted": Enclosed(JSON, encryption=_ENCRYPTION),
    "both": Enclosed(JSON, compression="zstd", encryption=_ENCRYPTION),
}
HEADINGS = ("what", "encode", "times JSON", "decode", "times JSON", "bytes of an item")


class Round(NamedTuple):
    """One round of one way: microseconds per item, and bytes per item."""

    encode: float
    decode: float
    item_bytes: float


def measure(count: int, rounds: int) -> dict[str, list[Round]]:
    """Return the measurement of each way, round by round, with ``count`` items in each."""
    items = [json.loads(line) for line in lines(count)]
    found: dict[str, list[Round]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in list(WAYS)[:: 1 if number % 2 else -1]:
            codec = WAYS[way]
            start = time.perf_counter()
            encoded = list(map(codec.encode, items))
            between = time.perf_counter()
            decoded = list(map(codec.decode, encoded))
            end = time.perf_counter()
            assert decoded == items
            microseconds = 1e6 / count
            size_bytes = sum(map(len, encoded)) / count
            found[way].append(Round((between - start) * microseconds, (end - between) * microseconds, size_bytes))
    return found


def rows(found: Mapping[str, list[Round]]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each way."""
    plain = found["JSON"]
    for way, its in found.items():
        encodes = [one.encode / other.encode for one, other in zip(its, plain, strict=True)]
        decodes = [one.decode / other.decode for one, other in zip(its, plain, strict=True)]
        yield (
            way,
            f"{median(each.encode for each in its):.1f} µs",
            harness.spread(encodes),
            f"{median(each.decode for each in its):.1f} µs",
            harness.spread(decodes),
            f"{its[0].item_bytes:.0f}",
        )


def main() -> None:
    """Measure, and print the table."""
    parser = harness.parser("perf.studies.enclosed", __doc__, rounds=9)
    parser.add_argument("--items", type=harness.at_least_one, default=20_000, help="items in each round (20,000)")
    options = parser.parse_args()
    print(harness.table_head(HEADINGS, HEADINGS[:1]))
    for row in rows(measure(options.items, options.rounds)):
        print(harness.table_line(row))


if __name__ == "__main__":
    main()

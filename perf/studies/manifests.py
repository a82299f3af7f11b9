"""``python -m perf.studies.manifests``: measures the driver's step of a write, by the number of parts.

Each part has one item, as a task of a job would write it. Making the parts is not measured. The driver's step is
``publish_parts`` alone: it checks that each part exists, writes the manifest and syncs it. Then an owner that is at
work adopts the parts: it reads the manifest, looks for the parts, writes one frame and renames each file. At the end
all items are taken and compared, in order.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from persistentqueue import PersistentQueue
from persistentqueue.interprocess.multi_writer import PartWriter, publish_parts
from persistentqueue.storage.publication import Part

from .. import harness
from ..harness import Row
from ..report import programs

COUNTS = (1, 10, 100, 1_000, 10_000)
BAR = 1.25
"""Largest ratio of the time per part to that in a manifest with a tenth of the parts. 1 means linear growth."""


def _part(directory: Path, number: int) -> Part:
    writer = PartWriter(directory)
    writer.write([b"%d" % number])
    part = writer.end()
    assert part is not None
    return part


def once(directory: Path, count: int) -> tuple[float, float]:
    """Return the seconds to publish this number of parts, and the seconds to adopt them."""
    with PersistentQueue(directory) as queue:
        parts = [_part(directory, number) for number in range(count)]
        begun = time.perf_counter()
        assert publish_parts(directory, None, parts, ("job", 1))
        published = time.perf_counter()
        with queue.transaction() as session:
            first = session.dequeue()  # the owner scans the inbox
            adopted = time.perf_counter()
            found = [first, *session.dequeue_many(count)]
        assert found == [b"%d" % number for number in range(count)]
    shutil.rmtree(directory)
    return published - begun, adopted - published


def rows(directory: Path, counts: tuple[int, ...], rounds: int) -> Iterator[Row]:
    """Yield a line for each number of parts. The bar limits the growth of the time to publish a part."""
    found: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
    for which in programs.in_turn(len(counts), rounds):
        found[counts[which]].append(once(directory / "queue", counts[which]))
    before: list[float] | None = None
    for count in counts:
        published, adopted = ([pair[way] for pair in found[count]] for way in (0, 1))
        each = [seconds / count for seconds in published]
        ratio = bar = met = ""
        if before is not None:
            ratios = [one / other for one, other in zip(each, before, strict=True)]
            ratio = f"{harness.spread(ratios)} × a part of a tenth as many"
            bar, met = f"{BAR:g} × at most", harness.met(median(ratios) <= BAR)
        yield Row(
            f"{count:,} parts published, and adopted",
            f"{median(published) * 1e3:.1f} ms, {median(adopted) * 1e3:.1f} ms; "
            f"a part {median(each) * 1e6:,.0f} µs, {median(adopted) / count * 1e6:,.0f} µs",
            "",
            ratio,
            bar,
            met,
        )
        before = each


def main() -> None:
    """Measure and print the table. With ``--results``, also write JSON."""
    parser = programs.parser("manifests", __doc__)
    parser.add_argument(
        "--most", type=harness.at_least_one, default=COUNTS[-1], help=f"largest number of parts ({COUNTS[-1]})"
    )
    parser.add_argument("--rounds", type=harness.at_least_one, default=3, help="rounds of each number of parts (3)")
    options = parser.parse_args()
    counts = tuple(count for count in COUNTS if count <= options.most)
    programs.run("manifests", options, lambda directory: rows(directory, counts, options.rounds))


if __name__ == "__main__":
    main()

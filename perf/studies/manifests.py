"""``python -m perf.studies.manifests``: what the driver's step of a write takes, by how many parts it publishes.

The parts are tiny, of one item, as the tasks of a job would have written them; making them is not measured. The
driver's step is ``publish_parts`` alone: it looks whether each part is there, writes the manifest and syncs it. Then an
owner who is at work adopts it: he reads the manifest, looks for the parts, writes one frame and renames each file. In
the end all items are taken out, in their order.
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
"""What a part may cost to publish, × what it costs in a manifest of a tenth as many: at 1 the whole grows in line."""


def _part(directory: Path, number: int) -> Part:
    writer = PartWriter(directory)
    writer.write([b"%d" % number])
    part = writer.end()
    assert part is not None
    return part


def once(directory: Path, count: int) -> tuple[float, float]:
    """The seconds to publish so many parts, and those to adopt them."""
    with PersistentQueue(directory) as queue:
        parts = [_part(directory, number) for number in range(count)]
        begun = time.perf_counter()
        assert publish_parts(directory, None, parts, ("job", 1))
        published = time.perf_counter()
        with queue.transaction() as session:
            first = session.dequeue()  # the owner looks
            adopted = time.perf_counter()
            found = [first, *session.dequeue_many(count)]
        assert found == [b"%d" % number for number in range(count)]
    shutil.rmtree(directory)
    return published - begun, adopted - published


def rows(directory: Path, counts: tuple[int, ...], rounds: int) -> Iterator[Row]:
    """A line for each number of parts; the bar is that what it costs to publish a part does not grow."""
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
    """Run it, print the table, and write JSON where ``--results`` says."""
    parser = programs.parser("manifests", __doc__)
    parser.add_argument("--most", type=harness.at_least_one, default=COUNTS[-1], help=f"parts ({COUNTS[-1]})")
    parser.add_argument("--rounds", type=harness.at_least_one, default=3, help="of each (3)")
    options = parser.parse_args()
    counts = tuple(count for count in COUNTS if count <= options.most)
    programs.run("manifests", options, lambda directory: rows(directory, counts, options.rounds))


if __name__ == "__main__":
    main()

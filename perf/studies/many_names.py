"""``python -m perf.studies.many_names``: measures a directory of a hundred thousand named queues, beside a thousand.

Each queue is made with the shortest files, gets one item, and is closed. Then the directory is listed, and a thousand
of its queues are opened and stay open. Each gives back its item. Openings in the two directories take turns.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

from persistentqueue import Options, PersistentQueue, list_queues

from .. import harness
from .churn import descriptors_below
from .idle import DESCRIPTORS

HEADINGS = ("", "many names", "a thousand names", "ratio")
FEW = 1_000
_SHORT = Options(segment_bytes=4096, log_bytes=4096)


def fill(directory: Path, count: int) -> float:
    """Make this number of queues with an item in each; return the seconds for each queue."""
    begun = time.perf_counter()
    for number in range(count):
        with PersistentQueue(directory, f"queue-{number}", options=_SHORT) as queue, queue.transaction() as session:
            session.enqueue(b"%d" % number)
    return (time.perf_counter() - begun) / count


def listing(directory: Path, count: int) -> float:
    """List the queues, check their number, and return the seconds."""
    begun = time.perf_counter()
    found = list_queues(directory)
    seconds = time.perf_counter() - begun
    assert len(found) == count
    return seconds


def openings(directories: dict[Path, int], opened: int) -> tuple[dict[Path, list[float]], float]:
    """Open this number of queues of each directory, in turn, and keep them open; return the seconds of each opening,
    and the descriptors for each queue."""
    found: dict[Path, list[float]] = {directory: [] for directory in directories}
    with ExitStack() as stack:
        queues = []
        for step in range(opened):
            for directory, count in directories.items():
                number = step * count // opened
                begun = time.perf_counter()
                queue = stack.enter_context(PersistentQueue(directory, f"queue-{number}", options=_SHORT))
                found[directory].append(time.perf_counter() - begun)
                queues.append((queue, number))
        descriptors = sum(len(descriptors_below(directory)) for directory in directories) / len(queues)
        for queue, number in queues:
            with queue.transaction() as session:
                assert session.dequeue() == b"%d" % number
    return found, descriptors


def rows(directory: Path, count: int, opened: int) -> Iterator[tuple[str, ...]]:
    """Yield the lines of the table, as soon as each is known."""
    many, few = directory / "many", directory / "few"
    sizes = {many: count, few: min(FEW, count)}
    yield _line("to make and close a queue, ms", [fill(each, sizes[each]) for each in sizes])
    for what in ("to list all names, ms", "again, ms"):
        yield _line(what, [listing(each, sizes[each]) for each in sizes])
    opened = min(opened, *sizes.values())
    found, descriptors = openings(sizes, opened)
    ways: dict[str, Callable[[list[float]], float]] = {
        "half": median,
        "99 in 100": lambda all_: quantiles(all_, n=100)[98],
    }
    for name, of in ways.items():
        yield _line(f"to open one of {opened:,} that stay open, ms: {name}", [of(each) for each in found.values()])
    yield (f"descriptors of an open queue, with {2 * opened:,} open", f"{descriptors:.1f}", "", "")


def _line(what: str, seconds: list[float]) -> tuple[str, ...]:
    many, few = seconds
    return what, f"{1e3 * many:,.2f}", f"{1e3 * few:,.2f}", f"{many / few:.2f}"


def main() -> None:
    """Measure, and print each line as soon as it is known."""
    parser = harness.parser("perf.studies.many_names", __doc__, rounds=1)
    parser.add_argument("--queues", type=harness.at_least_one, default=100_000, help="queues to make (100,000)")
    parser.add_argument("--opened", type=harness.at_least_one, default=FEW, help="queues to open (1,000)")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    print(harness.table_head(HEADINGS, HEADINGS[:1]))
    with harness.asked_for(options.directory) as directory:
        for row in rows(directory, options.queues, options.opened):
            print(harness.table_line(row), flush=True)


if __name__ == "__main__":
    main()

"""Runs the contenders of a workload in turn and compares them.

All run in one process, on one disk, so that noise affects all contenders alike.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from .contenders import Lane
from .contenders.peers import is_there
from .workloads import Entry, Workload

ROOT = Path(__file__).parent.parent
"""The directory of the repository, from which ``python -m perf`` can be called."""
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}
_WARM_FLUSHES = 20


class Measured(NamedTuple):
    """The measurement of one contender: the duration of each round and of each flush, in seconds.

    Each round puts ``items`` items and takes as many.
    """

    items: int
    put_seconds: list[float]
    take_seconds: list[float]
    put_flushes: array[float]
    take_flushes: array[float]

    def rates(self, way: str) -> list[float]:
        """Return the items per second of each round."""
        put = self.put_seconds if "in" in way else [0.0] * len(self.put_seconds)
        take = self.take_seconds if "out" in way else [0.0] * len(self.take_seconds)
        return [self.items / (one + other) for one, other in zip(put, take, strict=True)]

    def flush_seconds(self, way: str) -> list[float]:
        """Return the seconds of each flush, sorted."""
        return sorted([*(self.put_flushes if "in" in way else ()), *(self.take_flushes if "out" in way else ())])


@contextmanager
def workspace(above: Path, *, memory: bool = False) -> Iterator[Path]:
    """Create a directory for the files of one run, and delete it at the end.

    Raises ``ValueError`` if ``above`` is kept in memory, because such a run says nothing about a disk. With ``memory``
    any directory is accepted.
    """
    if not memory:
        _refuse_memory(above)
    with tempfile.TemporaryDirectory(prefix=".perf-", dir=above) as directory:
        yield Path(directory)


@contextmanager
def asked_for(above: Path) -> Iterator[Path]:
    """Create a workspace for a program. If ``above`` cannot be used, print one line and exit."""
    if not above.is_dir():
        raise SystemExit(f"{above} is not a directory: choose an existing one with --directory")
    try:
        _refuse_memory(above)
    except ValueError as error:
        raise SystemExit(f"{error} with --directory") from None
    with workspace(above) as directory:
        yield directory


def _refuse_memory(above: Path) -> None:
    """Raise ``ValueError`` if the directory is kept in memory."""
    if file_system(above) in _MEMORY_FILE_SYSTEMS:
        raise ValueError(f"{above} is kept in memory: choose a directory on a disk")


def parser(program: str, doc: str | None, rounds: int | None = None) -> argparse.ArgumentParser:
    """Return a parser with the options of all programs: the directory and, if a default is given, the rounds."""
    made = argparse.ArgumentParser(prog=f"python -m {program}", description=doc)
    made.add_argument(
        "--directory", type=Path, default=Path(), help="a directory on the disk to measure (the current directory)"
    )
    if rounds is not None:
        made.add_argument("--rounds", type=at_least_one, default=rounds, help=f"rounds of each measurement ({rounds})")
    return made


def at_least_one(text: str) -> int:
    """Convert an argument to a number. Raises ``ValueError`` if it is less than one."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def run(workload: Workload, directory: Path, rounds: int) -> dict[str, Measured]:
    """Let the contenders put and take in turn, for this number of rounds, each in a directory of its own.

    Each round reverses the order. A contender that is not installed is left out.
    """
    with ExitStack() as stack:
        runners = {}
        for name, entry in workload.entries.items():
            if is_there(entry.contender):
                runners[name] = Runner(workload, entry, directory / workload.name / name.replace(" ", "-"))
                runners[name].begin(stack)
        for number in range(rounds):
            for runner in list(runners.values())[:: 1 if number % 2 else -1]:
                runner.round()
        for runner in runners.values():
            runner.end()
    return {name: runner.measured for name, runner in runners.items()}


class Runner:
    """Runs one contender in one workload."""

    def __init__(self, workload: Workload, entry: Entry, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._workload, self._entry, self._directory = workload, entry, directory
        self._items = workload.items()
        self._flushes = max(round(workload.flushes * entry.part / entry.threads), 1)
        self._take_batch = workload.take_batch or workload.batch
        flushes = self._flushes * entry.threads
        self._takes = max(self._flushes * workload.batch // self._take_batch, 1)
        self.measured = Measured(flushes * workload.batch, [], [], array("d"), array("d"))
        self._lanes: Sequence[Lane] = ()
        self._pool = ThreadPoolExecutor(entry.threads) if entry.threads > 1 else None

    def begin(self, stack: ExitStack) -> None:
        """Open the contender, warm it up, and put the flushes that the workload wants ahead."""
        if self._pool is not None:
            stack.enter_context(self._pool)
        if self._workload.restarts:
            return
        self._lanes = stack.enter_context(self._entry.contender.open(self._directory, self._entry.threads))
        for lane in self._lanes:
            for _ in range(min(_WARM_FLUSHES, self._flushes)):
                lane.put(self._items)
                self._look(lane.take(self._workload.batch), self._workload.batch)
            for _ in range(self._workload.ahead):
                lane.put(self._items)

    def end(self) -> None:
        """Take the items that were put ahead, so that the contender is empty at the end."""
        for lane in self._lanes:
            for _ in range(self._workload.ahead):
                self._look(lane.take(self._workload.batch), self._workload.batch)

    def round(self) -> None:
        """Run one round: put all flushes and take them."""
        if self._workload.in_turn:
            self.measured.put_seconds.append(self.in_turn())
            self.measured.take_seconds.append(0.0)
        else:
            self.measured.put_seconds.append(self._opened(self.put))
            self.measured.take_seconds.append(self._opened(self.take))

    def put(self) -> float:
        """Put all flushes and return the seconds."""
        return self._share(self._put)

    def take(self) -> float:
        """Take all flushes and return the seconds."""
        return self._share(self._take)

    def in_turn(self) -> float:
        """Put each flush and take it at once. Return the seconds of all."""
        return self._share(self._put_and_take)

    def _opened(self, work: Callable[[], float]) -> float:
        """Do the work and return its seconds. If the workload restarts, they include opening and closing."""
        if not self._workload.restarts:
            return work()
        start = time.perf_counter()
        with self._entry.contender.open(self._directory, self._entry.threads) as self._lanes:
            work()
        self._lanes = ()
        return time.perf_counter() - start

    def _share(self, work: Callable[[Lane], None]) -> float:
        """Do the work in all threads at once and return the seconds. A single thread is the calling one."""
        start = time.perf_counter()
        if self._pool is None:
            work(self._lanes[0])
        else:
            list(self._pool.map(work, self._lanes))
        return time.perf_counter() - start

    def _put(self, lane: Lane) -> None:
        put, items, clock, found = lane.put, self._items, time.perf_counter, array("d")
        for _ in range(self._flushes):
            start = clock()
            put(items)
            found.append(clock() - start)
        self.measured.put_flushes.extend(found)

    def _take(self, lane: Lane) -> None:
        take, count, clock, found, taken = lane.take, self._take_batch, time.perf_counter, array("d"), None
        for _ in range(self._takes):
            start = clock()
            taken = take(count)
            found.append(clock() - start)
        self._look(taken, count)
        self.measured.take_flushes.extend(found)

    def _put_and_take(self, lane: Lane) -> None:
        items, clock, found, taken = self._items, time.perf_counter, array("d"), None
        for _ in range(self._flushes):
            start = clock()
            lane.put(items)
            taken = lane.take(self._take_batch)
            found.append(clock() - start)
        self._look(taken, self._take_batch)
        self.measured.put_flushes.extend(found)

    def _look(self, taken: Sequence[bytes] | None, count: int) -> None:
        """Raise ``AssertionError`` unless the items taken are as many as expected and end with the item put last."""
        if taken is not None and (len(taken) != count or taken[-1] != self._items[-1]):
            raise AssertionError(
                f"{self._entry.contender.name} took {len(taken)} items instead of {count}, or the last item differs"
            )


def ratios(measured: Mapping[str, Measured], way: str, ours: str, other: str) -> list[float]:
    """Return our rate divided by the rate of the other contender, for each round."""
    pairs = zip(measured[ours].rates(way), measured[other].rates(way), strict=True)
    return [one / beside for one, beside in pairs]


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the value below which this part of the ordered values lies."""
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


class Row(NamedTuple):
    """A line of the table of bars, as text."""

    what: str
    ours: str
    beside: str
    ratio: str
    bar: str
    met: str


HEADINGS = Row("what", "ours", "beside", "ratio", "bar", "met?")


def bar_rows(workload: Workload, measured: Mapping[str, Measured]) -> Iterator[Row]:
    """Yield a line for each direction of the workload that has a bar."""
    ours = next(iter(workload.entries))
    for way, all_bars in workload.bars.items():
        bars = {name: bar for name, bar in all_bars.items() if name in measured}
        if not bars:
            continue
        found = {name: ratios(measured, way, ours, name) for name in bars}
        yield Row(
            f"{workload.what}, {way}",
            rate(measured[ours], way),
            " · ".join(f"{name} {rate(measured[name], way)}" for name in bars),
            " · ".join(f"{spread(found[name])} × {name}" for name in bars),
            " · ".join(f"{bar:g} × {name}" for name, bar in bars.items()),
            met(all(median(found[name]) >= bar for name, bar in bars.items())),
        )


def rate(measured: Measured, way: str) -> str:
    """Return the median rate as text."""
    return f"{median(measured.rates(way)):,.0f}/s"


def met(is_met: bool) -> str:
    """Return the text of a line's last cell."""
    return "yes" if is_met else "**no**"


def table_line(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def table_head(headings: Sequence[str] = HEADINGS, left: Sequence[str] = ("what", "ratio", "bar", "met?")) -> str:
    """Return the first two lines of a Markdown table. Columns that are not in ``left`` are right-aligned."""
    rule = "|".join("---" if heading in left else "---:" for heading in headings)
    return f"{table_line(headings)}\n|{rule}|"


def spread(found: Sequence[float]) -> str:
    """Return the median of the ratios as text, and in parentheses the two quartiles."""
    ordered = sorted(found)
    quarter = len(ordered) // 4
    return f"{median(ordered):.2f} ({ordered[quarter]:.2f}–{ordered[-1 - quarter]:.2f})"


def file_system(directory: Path) -> str:
    """Return the type of the file system, or an empty string if the system does not tell it."""
    device = os.stat(directory).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for mount in mounts:
        fields, _, behind = mount.partition(" - ")
        if fields.split()[2] == wanted:
            return behind.split()[0]
    return ""

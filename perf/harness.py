"""Runs what contends in turn and compares it: in one run, on one disk, so that noise hits all alike."""

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
"""Where ``python -m perf…`` can be called."""
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}
_WARM_FLUSHES = 20


class Measured(NamedTuple):
    """What one contender did: ``items`` in and as many out in each round, how long each round took, and each flush."""

    items: int
    put_seconds: list[float]
    take_seconds: list[float]
    put_flushes: array[float]
    take_flushes: array[float]

    def rates(self, way: str) -> list[float]:
        """The items per second, round by round."""
        put = self.put_seconds if "in" in way else [0.0] * len(self.put_seconds)
        take = self.take_seconds if "out" in way else [0.0] * len(self.take_seconds)
        return [self.items / (one + other) for one, other in zip(put, take, strict=True)]

    def flush_seconds(self, way: str) -> list[float]:
        """What the single flushes took, sorted."""
        return sorted([*(self.put_flushes if "in" in way else ()), *(self.take_flushes if "out" in way else ())])


@contextmanager
def workspace(above: Path, *, memory: bool = False) -> Iterator[Path]:
    """A directory for the files of one run, deleted at its end.

    Raises ``ValueError`` where ``above`` is kept in memory, which says nothing of a disk, unless ``memory``.
    """
    if not memory:
        _refuse_memory(above)
    with tempfile.TemporaryDirectory(prefix=".perf-", dir=above) as directory:
        yield Path(directory)


@contextmanager
def asked_for(above: Path) -> Iterator[Path]:
    """The same, for a program: what is wrong with what its user asked for ends it with a line."""
    if not above.is_dir():
        raise SystemExit(f"{above} is no directory")
    try:
        _refuse_memory(above)
    except ValueError as error:
        raise SystemExit(f"{error} with --directory") from None
    with workspace(above) as directory:
        yield directory


def _refuse_memory(above: Path) -> None:
    """Raises ``ValueError`` where it is kept in memory."""
    if file_system(above) in _MEMORY_FILE_SYSTEMS:
        raise ValueError(f"{above} is kept in memory: choose a directory on a disk")


def parser(program: str, doc: str | None, rounds: int | None = None) -> argparse.ArgumentParser:
    """The options that all programs have: where to measure, and how many rounds, unless that is not asked."""
    made = argparse.ArgumentParser(prog=f"python -m {program}", description=doc)
    made.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure (the current one)")
    if rounds is not None:
        made.add_argument("--rounds", type=at_least_one, default=rounds, help=f"of each ({rounds})")
    return made


def at_least_one(text: str) -> int:
    """A number of rounds. Raises ``ValueError``."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def run(workload: Workload, directory: Path, rounds: int) -> dict[str, Measured]:
    """Let the contenders put and take in turn, so many times, the order turning round; each in its own directory.

    Those whose needs are not installed are left out.
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
    """One contender in one workload."""

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
        """Open it, warm it up, and put what is to be ahead."""
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
        """Take what was put ahead, so that it ends empty."""
        for lane in self._lanes:
            for _ in range(self._workload.ahead):
                self._look(lane.take(self._workload.batch), self._workload.batch)

    def round(self) -> None:
        """Put and take once."""
        if self._workload.in_turn:
            self.measured.put_seconds.append(self.in_turn())
            self.measured.take_seconds.append(0.0)
        else:
            self.measured.put_seconds.append(self._opened(self.put))
            self.measured.take_seconds.append(self._opened(self.take))

    def put(self) -> float:
        """Put all flushes; the seconds that took."""
        return self._share(self._put)

    def take(self) -> float:
        """Take all flushes; the seconds that took."""
        return self._share(self._take)

    def in_turn(self) -> float:
        """Take each flush right after it was put; the seconds that took."""
        return self._share(self._put_and_take)

    def _opened(self, work: Callable[[], float]) -> float:
        """The seconds that it took, with those of a restart if there are any."""
        if not self._workload.restarts:
            return work()
        start = time.perf_counter()
        with self._entry.contender.open(self._directory, self._entry.threads) as self._lanes:
            work()
        self._lanes = ()
        return time.perf_counter() - start

    def _share(self, work: Callable[[Lane], None]) -> float:
        """Have it done by each thread at once, the caller being the only one if it is one; the seconds it takes."""
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
        """What was taken is what was put."""
        if taken is not None and (len(taken) != count or taken[-1] != self._items[-1]):
            raise AssertionError(f"{self._entry.contender.name} took {len(taken)} items of {count}, or others")


def ratios(measured: Mapping[str, Measured], way: str, ours: str, other: str) -> list[float]:
    """How many times the rate of the other one ours was, round by round."""
    pairs = zip(measured[ours].rates(way), measured[other].rates(way), strict=True)
    return [one / beside for one, beside in pairs]


def percentile(ordered: Sequence[float], part: float) -> float:
    """The value below which this part of them lies."""
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


class Row(NamedTuple):
    """A line of the table of bars, as it is printed."""

    what: str
    ours: str
    beside: str
    ratio: str
    bar: str
    met: str


HEADINGS = Row("what", "ours", "beside", "ratio", "bar", "met?")


def bar_rows(workload: Workload, measured: Mapping[str, Measured]) -> Iterator[Row]:
    """A line for each way of a workload that has a bar."""
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
    """The median of its rates."""
    return f"{median(measured.rates(way)):,.0f}/s"


def met(is_met: bool) -> str:
    """The last cell of a line."""
    return "yes" if is_met else "**no**"


def table_line(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def table_head(headings: Sequence[str] = HEADINGS, left: Sequence[str] = ("what", "ratio", "bar", "met?")) -> str:
    """The first two lines of a Markdown table; figures stand on the right."""
    rule = "|".join("---" if heading in left else "---:" for heading in headings)
    return f"{table_line(headings)}\n|{rule}|"


def spread(found: Sequence[float]) -> str:
    """The median of the rounds' ratios, and between which two the middle half of them lies."""
    ordered = sorted(found)
    quarter = len(ordered) // 4
    return f"{median(ordered):.2f} ({ordered[quarter]:.2f}–{ordered[-1 - quarter]:.2f})"


def file_system(directory: Path) -> str:
    """The type of the file system; empty where the system does not tell."""
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

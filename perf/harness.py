"""Runs what contends in turn and compares it: in one run, on one disk, so that noise hits all alike."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from .workloads import Sizes, Workload

_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}


class Row(NamedTuple):
    """A line of the table, as it is printed."""

    what: str
    ours: str
    bare: str
    sqlite: str
    ratio: str
    bar: str
    met: str


HEADINGS = Row("what", "ours", "bare disk", "SQLite", "ratio", "bar", "met?")


class Times(NamedTuple):
    """What one contender did: ``amount`` in and as much out, and the seconds that took, round by round."""

    amount: float
    put_seconds: list[float]
    take_seconds: list[float]

    def rates(self, way: str) -> list[float]:
        """The amount per second, round by round."""
        put = self.put_seconds if "in" in way else [0.0] * len(self.put_seconds)
        take = self.take_seconds if "out" in way else [0.0] * len(self.take_seconds)
        return [self.amount / (one + other) for one, other in zip(put, take, strict=True)]


@contextmanager
def workspace(above: Path, *, memory: bool = False) -> Iterator[Path]:
    """A directory for the files of one run, deleted at its end.

    Raises ``ValueError`` where ``above`` is kept in memory, which says nothing of a disk, unless ``memory``.
    """
    if not memory and _file_system(above) in _MEMORY_FILE_SYSTEMS:
        raise ValueError(f"{above} is kept in memory: choose a directory on a disk")
    with tempfile.TemporaryDirectory(prefix=".perf-", dir=above) as directory:
        yield Path(directory)


def run(workload: Workload, directory: Path, sizes: Sizes, rounds: int) -> dict[str, Times]:
    """Let the contenders put and take in turn, so many times, the order turning round; each in its own directory."""
    with ExitStack() as stack:
        contenders = {}
        times = {}
        for name, make in workload.contenders.items():
            own = directory / workload.name / name
            own.mkdir(parents=True)
            contenders[name] = stack.enter_context(make(own, sizes))
            times[name] = Times(contenders[name].amount, [], [])
        for number in range(rounds):
            for name in list(contenders)[:: 1 if number % 2 else -1]:
                contender = contenders[name]
                contender.prepare()
                start = time.perf_counter()
                contender.put()
                middle = time.perf_counter()
                contender.take()
                end = time.perf_counter()
                times[name].put_seconds.append(middle - start)
                times[name].take_seconds.append(end - middle)
    return times


def rows(workload: Workload, times: Mapping[str, Times]) -> Iterator[Row]:
    """The lines of a workload."""
    for way, bars in workload.bars.items():
        of = {name: contender.rates(way) for name, contender in times.items()}
        shown = {name: f"{median(found):,.0f} {workload.unit}" for name, found in of.items()}
        ratios = {name: [ours / theirs for ours, theirs in zip(of["ours"], of[name], strict=True)] for name in of}
        others = [name for name in of if name != "ours"]
        yield Row(
            f"{workload.what}, {way}",
            shown["ours"],
            shown.get("bare", ""),
            shown.get("SQLite", ""),
            " · ".join(f"{spread(ratios[name])} × {name}" for name in others),
            " · ".join(f"{bar:g} × {name}" for name, bar in bars.items()),
            met(all(median(ratios[name]) >= bar for name, bar in bars.items())) if bars else "",
        )


def met(is_met: bool) -> str:
    """The last cell of a line."""
    return "yes" if is_met else "**no**"


def table_line(row: Row) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(row)} |"


def table_head() -> str:
    """The first two lines of a Markdown table; figures stand on the right."""
    return f"{table_line(HEADINGS)}\n|---|---:|---:|---:|---|---|---|"


def spread(ratios: list[float]) -> str:
    """The median of the rounds' ratios, and between which two the middle half of them lies."""
    ordered = sorted(ratios)
    quarter = len(ordered) // 4
    return f"{median(ordered):.2f} ({ordered[quarter]:.2f}–{ordered[-1 - quarter]:.2f})"


def _file_system(directory: Path) -> str:
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

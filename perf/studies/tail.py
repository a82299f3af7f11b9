"""The tail: how long the slowest flushes take, of a load that goes on.

The contenders take turns, slice by slice, each in files that stay open. At full load, each flush follows the one
before. At half load, a flush is due at even intervals, twice as long as the mean at full load. Its time then begins
when it was due: a stall also counts for the flushes that wait behind it. A load that only puts is emptied after each
slice, without being timed.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ..contenders import BARE, OURS_MANY, SQLITE, Contender, Lane
from ..contenders.peers import LMDB, is_there
from ..harness import Row, met, percentile
from ..workloads import ITEMS

PARTS = {"half": 0.5, "99 %": 0.99, "99.9 %": 0.999, "99.99 %": 0.9999, "longest": 1.0}
WAYS = ("full", "half")
"""Loads of a contender: ``half`` needs the rate that ``full`` has found."""
LONGEST_BAR = 2.0
BEYOND_BARE_MS_BAR = 15.0
HALF_BAR = 3.0
CONTENDERS = (OURS_MANY, BARE, SQLITE, LMDB)


class Load(NamedTuple):
    """A load: ``batch`` items of 100 B per flush. With ``in_turn``, each flush is taken right after it was put."""

    batch: int
    in_turn: bool
    bars: bool
    """Whether the half and the 99.9 % are bounded; else only the longest flush is."""

    @property
    def what(self) -> str:
        """The load as the table names it."""
        return f"{self.batch:,} × 100 B per flush, {'in and out in turn' if self.in_turn else 'in'}"


LOADS = (Load(1, True, False), Load(100, False, True), Load(1_000, False, True), Load(1_000, True, True))


class Times(NamedTuple):
    """The seconds of each flush at full and at half load. With ``in_turn``, puts and takes are flushes alike."""

    full: array[float]
    half: array[float]


class _Runner:
    """One contender under one load."""

    def __init__(self, lane: Lane, load: Load) -> None:
        self._lane, self._load, self._items = lane, load, ITEMS[: load.batch]
        self.times = Times(array("d"), array("d"))
        self._pair_seconds = 0.0

    def full(self, seconds: float) -> None:
        """Flush as fast as possible for this long."""
        clock, put, take, found = time.perf_counter, self._lane.put, self._lane.take, self.times.full
        begun = start = clock()
        flushes = 0
        while start < begun + seconds:
            put(self._items)
            found.append((middle := clock()) - start)
            if self._load.in_turn:
                take(self._load.batch)
                found.append(clock() - middle)
            flushes += 1
            start = clock()
        self._pair_seconds = (clock() - begun) / flushes
        self._empty(flushes)

    def half(self, seconds: float) -> None:
        """Flush at half of the rate that ``full`` has found, for this long."""
        clock, put, take, found = time.perf_counter, self._lane.put, self._lane.take, self.times.half
        interval, due, flushes = 2 * self._pair_seconds, clock(), 0
        end = due + seconds
        while due < end:
            if (wait := due - clock()) > 0:
                time.sleep(wait)
            start = due if wait <= 0 else clock()  # a sleep that ends late is not the contender's
            put(self._items)
            found.append((middle := clock()) - start)
            if self._load.in_turn:
                take(self._load.batch)
                found.append(clock() - middle)
            due += interval
            flushes += 1
        self._empty(flushes)

    def _empty(self, flushes: int) -> None:
        if not self._load.in_turn:
            for _ in range(flushes):
                self._lane.take(self._load.batch)


def measure(
    directory: Path,
    load: Load,
    seconds: float,
    slices: int,
    contenders: Sequence[Contender] = CONTENDERS,
    ways: Sequence[str] = WAYS,
) -> dict[str, Times]:
    """Return the times of each contender: ``seconds`` in each of the ways, in this number of slices."""
    with ExitStack() as stack:
        runners: dict[str, _Runner] = {}
        for contender in filter(is_there, contenders):
            place = directory / contender.name.replace(" ", "-")
            place.mkdir(parents=True)
            (lane,) = stack.enter_context(contender.open(place, 1))
            runners[contender.name] = _Runner(lane, load)
        for number in range(slices):
            for runner in list(runners.values())[:: 1 if number % 2 else -1]:
                for way in ways:
                    getattr(runner, way)(seconds / slices)
    return {name: runner.times for name, runner in runners.items()}


def parts_of(directory: Path, seconds: float, contender: Contender) -> dict[str, float]:
    """Return the parts of the table for one contender under each load, at full load, in seconds."""
    found: dict[str, float] = {}
    for number, load in enumerate(LOADS):
        times = measure(directory / str(number), load, seconds, 1, [contender], ways=("full",))[contender.name]
        parts = parts_ms(times.full)
        found |= {f"{load.what}, {part}": parts[part] / 1e3 for part in ("half", "99 %", "99.9 %", "longest")}
    return found


def parts_ms(seconds: array[float]) -> dict[str, float]:
    """Return the parts of the table, in milliseconds."""
    ordered = sorted(seconds)
    return {name: 1e3 * percentile(ordered, part) for name, part in PARTS.items()}


def _row(load: Load, how: str, found: dict[str, dict[str, float]]) -> Row:
    ours, sqlite, bare = found[OURS_MANY.name], found[SQLITE.name], found[BARE.name]
    longest = min(LONGEST_BAR * sqlite["longest"], bare["longest"] + BEYOND_BARE_MS_BAR)
    is_met, bar = ours["longest"] <= longest, f"longest {LONGEST_BAR:g} × {SQLITE.name}, {BEYOND_BARE_MS_BAR:g} ms"
    if load.bars:
        is_met &= ours["99 %"] <= HALF_BAR * ours["half"] and ours["99.9 %"] <= sqlite["99.9 %"]
        bar = f"99 % {HALF_BAR:g} × half, 99.9 % 1 × {SQLITE.name}, {bar} beyond {BARE.name}"
    return Row(
        f"{load.what}, {how} load",
        _text(ours),
        " · ".join(f"{name} {_text(parts)}" for name, parts in found.items() if name != OURS_MANY.name),
        f"{ours['99.9 %'] / sqlite['99.9 %']:.2f}, {ours['longest'] / sqlite['longest']:.2f} × {SQLITE.name}",
        bar,
        met(is_met),
    )


def _text(parts: dict[str, float]) -> str:
    return f"{' / '.join(f'{value:.2f}' for value in parts.values())} ms"


def rows(directory: Path, seconds: float, slices: int) -> Iterator[Row]:
    """Yield a line for each load, at full and at half: half, 99, 99.9 and 99.99 in 100, and the longest flush.

    The ratios are those of 99.9 in 100, and of the longest.
    """
    for load in LOADS:
        times = measure(directory / f"{load.batch}-{load.in_turn}", load, seconds, slices)
        for how in WAYS:
            yield _row(load, how, {name: parts_ms(getattr(each, how)) for name, each in times.items()})

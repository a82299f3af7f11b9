"""Charts as numbers: the map of segments, the curves over time, and the bars. Nothing is drawn here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import chain, groupby, pairwise
from types import MappingProxyType
from typing import NamedTuple, Protocol

SPARSE = 0.3
"""Live share of a data file below which it is compacted, unless the queue was opened with another ``compact_below``."""
BARS = "▁▂▃▄▅▆▇█"


class Level(NamedTuple):
    """A class of data files by their live share. The glyph alone identifies it, and so does the colour alone."""

    key: str
    glyph: str
    colour: str
    """The colour on a terminal, as rich names it."""
    words: str
    least: float
    """The lowest live share of the class."""


MANY_DEAD = 0.6
"""Live share below which ``report`` lists a data file among the worst."""
FULL = Level("full", "█", "green", "90 % or more lives", 0.9)
MOST = Level("most", "▓", "cyan", "60 to 90 %", MANY_DEAD)
HALF = Level("half", "▒", "yellow", "30 to 60 %", SPARSE)
LITTLE = Level("little", "░", "red", "less than 30 %: sparse", 0.0)
NOTHING = Level("nothing", "·", "bright_black", "nothing: drained", 0.0)
YOUNGEST = Level("youngest", "▸", "bright_blue", "being written", 1.0)
LEVELS = (FULL, MOST, HALF, LITTLE, NOTHING, YOUNGEST)


class SegmentShare(NamedTuple):
    """The sizes of a segment; ``Stats.shares`` has them."""

    number: int
    """Number of the segment."""
    size_bytes: int
    """Bytes of its file."""
    live_bytes: int
    """Bytes that its live items take. For a block that is partly consumed, this is computed from the average item."""
    live: int
    """Number of its live items: at least one subscription has not consumed them."""
    is_youngest: bool
    """Whether it is the youngest segment."""


class Shared(Protocol):
    """Any object with the fields of a ``SegmentShare``."""

    @property
    def number(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def live_bytes(self) -> int: ...
    @property
    def live(self) -> int: ...
    @property
    def is_youngest(self) -> bool: ...


class Tile(NamedTuple):
    """One piece of the map: neighbouring data files, from the number ``first`` to ``last``."""

    first: int
    last: int
    files: int
    size_bytes: int
    live_bytes: int
    live: int
    level: Level
    keeper: str
    """The sessions that are known to keep files of the tile, in words; empty without any."""

    @property
    def share(self) -> float:
        """The live share of the files' bytes, from 0 to 1."""
        return min(self.live_bytes / self.size_bytes, 1.0) if self.size_bytes else 0.0


def share_of(segment: Shared) -> float:
    """Return the live share of a data file's bytes, from 0 to 1."""
    return min(segment.live_bytes / segment.size_bytes, 1.0) if segment.size_bytes else 0.0


def is_sparse(segment: Shared) -> bool:
    """Return whether compaction would take this data file. The youngest is never sparse: it is not full yet."""
    return segment.live > 0 and share_of(segment) < SPARSE and not segment.is_youngest


def level_of(share: float, live: int, is_youngest: bool) -> Level:
    """Return the class of data files with this live share and this number of live items."""
    if is_youngest:
        return YOUNGEST
    if not live:
        return NOTHING
    return next(level for level in (FULL, MOST, HALF, LITTLE) if share >= level.least)


def tiles(segments: Sequence[Shared], most: int, keepers: Mapping[int, str] = MappingProxyType({})) -> list[Tile]:
    """Return the map of the segments, in at most ``most`` tiles.

    Neighbours of one class share a tile, if the same sessions keep them. If there are still too many tiles, neighbours
    of any class share one. The youngest segment always has a tile of its own.
    """

    def kind(segment: Shared) -> tuple[Level, str]:
        """Return what the segments of a tile have in common."""
        return level_of(share_of(segment), segment.live, segment.is_youngest), keepers.get(segment.number, "")

    runs = [list(run) for _, run in groupby(segments, kind)]
    if len(runs) > most:
        youngest = [run for run in runs if run[0].is_youngest]
        others = [run for run in runs if not run[0].is_youngest]
        each = -(-len(others) // max(most - len(youngest), 1))
        joined = [list(chain(*others[at : at + each])) for at in range(0, len(others), each)]
        runs = sorted([*joined, *youngest], key=lambda run: run[0].number)
    return [_tile(run, keepers) for run in runs]


def _tile(run: Sequence[Shared], keepers: Mapping[int, str]) -> Tile:
    size_bytes, live_bytes = sum(each.size_bytes for each in run), sum(each.live_bytes for each in run)
    live = sum(each.live for each in run)
    level = level_of(live_bytes / size_bytes if size_bytes else 0.0, live, run[0].is_youngest)
    who = dict.fromkeys(keepers[each.number] for each in run if each.number in keepers)
    return Tile(run[0].number, run[-1].number, len(run), size_bytes, live_bytes, live, level, "; ".join(who))


class Curves(NamedTuple):
    """The past of a queue in equal steps of time: one value for each step, the oldest first."""

    seconds: float
    """Length of the time, in seconds."""
    depths: tuple[int, ...]
    """Items left at the end of each step."""
    in_per_second: tuple[float, ...]
    out_per_second: tuple[float, ...]

    @property
    def step_seconds(self) -> float:
        """Length of a step, in seconds."""
        return self.seconds / len(self.depths)


def curves(samples: Sequence[tuple[int, int, int, int]], seconds: float, steps: int) -> Curves | None:
    """Return the curves of the last ``seconds`` before the last sample; None if the samples cover no time.

    A sample is a time in nanoseconds, the items enqueued and dequeued until then, and the live bytes. Values between
    two samples are interpolated. If the samples begin later, the curves are shorter.
    """
    if len(samples) < 2:
        return None
    times = [sample[0] for sample in samples]
    begin, end = max(times[0], times[-1] - int(seconds * 1e9)), times[-1]

    def at(time_ns: float) -> tuple[float, float]:
        """Return the items enqueued and dequeued until this time."""
        place = max(bisect_left(times, time_ns), 1)
        before, after = samples[place - 1], samples[place]
        part = (time_ns - before[0]) / (after[0] - before[0])
        return before[1] + (after[1] - before[1]) * part, before[2] + (after[2] - before[2]) * part

    step_ns = (end - begin) / steps
    points = [at(min(begin + step_ns * step, end)) for step in range(steps + 1)]
    ins, outs = (
        tuple((late[which] - early[which]) * 1e9 / step_ns for early, late in pairwise(points)) for which in (0, 1)
    )
    return Curves((end - begin) / 1e9, tuple(round(came - went) for came, went in points[1:]), ins, outs)


WINDOWS = (60.0, 3600.0, 48 * 3600.0)
"""Times that curves cover, in seconds."""
STEPS = 60
"""Steps of the curves."""


def windows(samples: Sequence[tuple[int, int, int, int]]) -> list[Curves]:
    """Return the curves of each window in which the samples say more than in the shorter one."""
    found: list[Curves] = []
    for seconds in WINDOWS:
        curve = curves(samples, seconds, STEPS)
        if curve is not None and (not found or curve.seconds > 1.5 * found[-1].seconds):
            found.append(curve)
    return found


def sparkline(values: Sequence[float]) -> str:
    """Return the values as a line of bars, scaled from 0 to the highest value."""
    highest = max(values, default=0)
    if highest <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[min(int(value / highest * len(BARS)), len(BARS) - 1)] for value in values)


def portions(amounts: Sequence[float], width: int) -> list[int]:
    """Divide ``width`` places among the amounts, in proportion; each amount above 0 gets at least one, if possible."""
    total = sum(amounts)
    if total <= 0:
        return [0] * len(amounts)
    exact = [amount / total * width for amount in amounts]
    places = [max(int(each), 1 if each > 0 else 0) for each in exact]
    while sum(places) > width:
        places[max(range(len(places)), key=lambda at: (places[at] > 1, places[at] - exact[at]))] -= 1
    while sum(places) < width:
        places[max(range(len(places)), key=lambda at: exact[at] - places[at])] += 1
    return places


def positions(runs: Sequence[tuple[int, int]], most: int) -> list[int]:
    """Return up to ``most`` sequences of these runs, evenly spread, from the first one to the last."""
    depth = sum(count for _, count in runs)
    if not depth:
        return []
    wanted = sorted({at * (depth - 1) // max(most - 1, 1) for at in range(most)})
    found, before, each = [], 0, iter(wanted)
    at = next(each, None)
    for first, count in runs:
        while at is not None and at < before + count:
            found.append(first + at - before)
            at = next(each, None)
        before += count
    return found

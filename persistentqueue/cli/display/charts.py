"""What ``top`` and ``report`` draw, worked out: pure functions from numbers to what a picture shows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from persistentqueue import SegmentSnapshot

SPARSE = 0.3
"""Below this share compaction gathers what lives, unless a queue was opened with another ``compact_below``."""
BARS = "▁▂▃▄▅▆▇█"


class Level(NamedTuple):
    """A class of data files, by how much of them lives. It is told by the glyph alone, and by the colour alone."""

    key: str
    glyph: str
    colour: str
    """Of a terminal."""
    words: str
    least: float
    """From which share on."""


MANY_DEAD = 0.6
"""Below this share a file is worth a look."""
FULL = Level("full", "█", "green", "90 % or more lives", 0.9)
MOST = Level("most", "▓", "cyan", "60 to 90 %", MANY_DEAD)
HALF = Level("half", "▒", "yellow", "30 to 60 %", SPARSE)
LITTLE = Level("little", "░", "red", "less than 30 %: sparse", 0.0)
NOTHING = Level("nothing", "·", "bright_black", "nothing: about to go", 0.0)
YOUNGEST = Level("youngest", "▸", "bright_blue", "being written", 1.0)
LEVELS = (FULL, MOST, HALF, LITTLE, NOTHING, YOUNGEST)


class Tile(NamedTuple):
    """Data files beside each other, from the number ``first`` to ``last``, as one piece of the map."""

    first: int
    last: int
    files: int
    size_bytes: int
    live_bytes: int
    live: int
    level: Level
    is_held: bool
    """Whether a session keeps one of them, as far as is known."""

    @property
    def share(self) -> float:
        """How much of them lives."""
        return min(self.live_bytes / self.size_bytes, 1.0) if self.size_bytes else 0.0


def share_of(segment: SegmentSnapshot) -> float:
    """How much of a data file lives."""
    return min(segment.live_bytes / segment.size_bytes, 1.0) if segment.size_bytes else 0.0


def is_sparse(segment: SegmentSnapshot) -> bool:
    """Whether so little of it lives that compaction would gather it; the youngest is not full yet."""
    return segment.live > 0 and share_of(segment) < SPARSE and not segment.is_youngest


def level_of(share: float, live: int, is_youngest: bool) -> Level:
    """The class of files of which this share lives, so many items."""
    if is_youngest:
        return YOUNGEST
    if not live:
        return NOTHING
    return next(level for level in (FULL, MOST, HALF, LITTLE) if share >= level.least)


def tiles(segments: Sequence[SegmentSnapshot], most: int, held: Collection[int] = ()) -> list[Tile]:
    """The map of the segments, in at most so many tiles: neighbours share one where there are more of them. The one
    that is being written has a tile of its own."""
    youngest = [segment for segment in segments if segment.is_youngest]
    others = [segment for segment in segments if not segment.is_youngest]
    each = -(-len(others) // max(most - len(youngest), 1)) or 1
    groups = [others[at : at + each] for at in range(0, len(others), each)] + [[segment] for segment in youngest]
    found = []
    for group in sorted(groups, key=lambda group: group[0].number):
        size_bytes, live_bytes = (sum(getattr(one, what) for one in group) for what in ("size_bytes", "live_bytes"))
        live = sum(segment.live for segment in group)
        level = level_of(live_bytes / size_bytes if size_bytes else 0.0, live, group[0].is_youngest)
        is_held = any(segment.number in held for segment in group)
        first, last = group[0].number, group[-1].number
        found.append(Tile(first, last, len(group), size_bytes, live_bytes, live, level, is_held))
    return found


def sparkline(values: Sequence[float]) -> str:
    """The values as bars, from 0 to the highest of them."""
    highest = max(values, default=0)
    if highest <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[min(int(value / highest * len(BARS)), len(BARS) - 1)] for value in values)


def portions(amounts: Sequence[float], width: int) -> list[int]:
    """How many of ``width`` places each amount gets, all of them together; what is there at all gets one, if it can."""
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
    """Up to so many of the sequences in these runs, evenly spread: the first and the last are among them."""
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

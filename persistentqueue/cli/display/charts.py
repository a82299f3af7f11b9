"""The charts of ``top`` and ``report`` as numbers: pure functions, without any drawing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from persistentqueue import SegmentSnapshot

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


class Tile(NamedTuple):
    """One piece of the map: neighbouring data files, from the number ``first`` to ``last``."""

    first: int
    last: int
    files: int
    size_bytes: int
    live_bytes: int
    live: int
    level: Level
    is_held: bool
    """True if a session is known to keep one of the files."""

    @property
    def share(self) -> float:
        """The live share of the files' bytes, from 0 to 1."""
        return min(self.live_bytes / self.size_bytes, 1.0) if self.size_bytes else 0.0


def share_of(segment: SegmentSnapshot) -> float:
    """Return the live share of a data file's bytes, from 0 to 1."""
    return min(segment.live_bytes / segment.size_bytes, 1.0) if segment.size_bytes else 0.0


def is_sparse(segment: SegmentSnapshot) -> bool:
    """Return whether compaction would take this data file. The youngest is never sparse: it is not full yet."""
    return segment.live > 0 and share_of(segment) < SPARSE and not segment.is_youngest


def level_of(share: float, live: int, is_youngest: bool) -> Level:
    """Return the class of data files with this live share and this number of live items."""
    if is_youngest:
        return YOUNGEST
    if not live:
        return NOTHING
    return next(level for level in (FULL, MOST, HALF, LITTLE) if share >= level.least)


def tiles(segments: Sequence[SegmentSnapshot], most: int, held: Collection[int] = ()) -> list[Tile]:
    """Return the map of the segments, in at most ``most`` tiles.

    If there are more segments, neighbours share a tile. The youngest segment has a tile of its own. A tile that
    contains a number of ``held`` is marked.
    """
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

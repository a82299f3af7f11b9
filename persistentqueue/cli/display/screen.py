"""The picture of ``top``, drawn for a terminal. It can be read without its colours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from math import ceil

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from persistentqueue import Connection
from persistentqueue.drawing.charts import (
    LEVELS,
    STEPS,
    Tile,
    curves,
    is_sparse,
    portions,
    share_of,
    sparkline,
    tiles,
)
from persistentqueue.drawing.text import many, printable, rate_text, share_text, size_text, span_text

from ..summary import Finding, Part, Sight, age_of, disk_parts, findings, owner_text, process_text, state_text
from .watch import Watched

_COLUMNS = (
    ("queue", 0),
    ("left", 0),
    ("overtaken", 96),
    ("in/s", 0),
    ("out/s", 0),
    ("oldest waits", 0),
    ("consumed waited: half / max", 120),
    ("disk", 64),
    ("owner's memory", 136),
    ("owner", 80),
)
"""The columns of the table, each with the least width of a terminal that shows it."""
_TEXTS = (0, 9)
TILES = 480
"""Most tiles in the map."""
_ROW = 60
_REPEATED = 12
"""Most files of one class that are drawn one by one."""
_MARGIN = 20
"""Columns of the terminal to the left and right of a picture."""
_LEAST_STEPS = 10
"""Least steps of a curve, on a terminal that is too narrow for more."""
_LEAST_ROWS = 3
"""Least queues in the table of a terminal that is too low for more."""
_BAR = 40
_WORST = 3
_OF_CONNECTION = (("process", 0), ("thread", 70), ("session", 0), ("held", 0), ("for", 0), ("now", 50), ("flushes", 90))
"""The columns of the table of connections, each with the least width of a picture that shows it."""
_CONNECTED = 12
"""Most connections in the table of a queue."""


def draw(
    path: str, queues: Sequence[Watched], is_chosen: bool, interval: float, width: int, height: int | None = None
) -> RenderableType:
    """Draw all queues in a table, and one of them in detail: the first if it was chosen, else the deepest.

    With the ``height`` of a terminal, the table has about a third of its lines, and the errors have about a sixth.
    """
    now = datetime.now().astimezone().strftime("%H:%M:%S")
    title = Text.assemble(
        ("persistentqueue top", "bold"), f"  {printable(path)}  {now}  every {interval:g} s  ", ("Ctrl-C ends", "dim")
    )
    seen = [queue for queue in queues if queue.snapshot is not None]
    chosen = (seen[0] if is_chosen else max(seen, key=_depth)) if seen else None
    most = max(height // 3, _LEAST_ROWS) if height is not None else sys.maxsize
    listed, rest = _fitting(queues, chosen, most)
    parts: list[RenderableType] = [title, "", _table(listed, width)]
    if rest:
        left = sum(map(_depth, rest))
        parts.append(Text(f"and {many(len(rest), 'other')}, with {many(left, 'item')} left", "dim"))
    parts += _errors(queues, most // 2, width)
    if chosen is not None:
        large = _large(chosen, chosen.sight(), interval, width - _MARGIN)
        parts += ["", Panel(large, title=f"queue {chosen.name}", title_align="left", padding=(0, 1))]
    return Group(*parts)


def _depth(queue: Watched) -> int:
    return queue.snapshot.depth if queue.snapshot is not None else 0


def _fitting(queues: Sequence[Watched], chosen: Watched | None, most: int) -> tuple[list[Watched], list[Watched]]:
    """Return the chosen queue, those that fail and the deepest, at most so many, in their order; and all others."""
    first = sorted(queues, key=lambda queue: (queue is not chosen, queue.snapshot is not None, -_depth(queue)))[:most]
    names = {queue.name for queue in first}
    return [each for each in queues if each.name in names], [each for each in queues if each.name not in names]


def _errors(queues: Sequence[Watched], most: int, width: int) -> list[Text]:
    """Draw the errors of queues, in at most so many lines, or the first one alone. Tell the number of the others."""
    found = [
        Text(f"{each.name}: {printable(each.error)}", style="red", overflow="fold") for each in queues if each.error
    ]
    ends = accumulate(ceil(text.cell_len / max(width, 1)) for text in found)
    shown = max(sum(end <= most for end in ends), 1)
    others = len(found) - shown
    rest = [Text(f"and {many(others, 'other queue fails', 'other queues fail')}", "red")] if others > 0 else []
    return found[:shown] + rest


def _table(queues: Sequence[Watched], width: int) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    shown = [at for at, (_, least) in enumerate(_COLUMNS) if width >= least]
    for at in shown:
        table.add_column(
            _COLUMNS[at][0],
            justify="left" if at in _TEXTS else "right",
            no_wrap=True,
            max_width=width // 4 if not at else None,  # a long name leaves the numbers their space
        )
    for queue in queues:
        cells = _row(queue)
        table.add_row(*(cells[at] for at in shown))
    return table


def _row(queue: Watched) -> list[str]:
    seen, pace = queue.snapshot, queue.pace
    if seen is None:
        return [queue.name, *["?"] * (len(_COLUMNS) - 1)]
    waited = span_text(pace.waited_half_seconds)
    if pace.waited_longest_seconds is not None:
        waited += f" / {span_text(pace.waited_longest_seconds)}"
    return [
        queue.name,
        f"{seen.depth:,}",
        f"{seen.overtaken:,}",
        rate_text(pace.in_per_second),
        rate_text(pace.out_per_second),
        span_text(age_of(seen)),
        waited,
        size_text(seen.disk_bytes),
        size_text(queue.resident_bytes) if queue.resident_bytes is not None else "-",
        owner_text(seen),
    ]


def _large(queue: Watched, sight: Sight, interval: float, width: int) -> RenderableType:
    seen = sight.snapshot
    grid = Table.grid(padding=(0, 2, 1, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    depth = Text(f"{many(seen.depth, 'item')} left, {size_text(seen.live_bytes)}")
    if queue.resident_bytes is not None and seen.live_bytes > queue.resident_bytes:
        depth.append(
            f": more than the owner's whole memory, {size_text(queue.resident_bytes)}, so most is on disk only"
        )
    past = curves(sight.history, STEPS * interval, max(min(STEPS, width), _LEAST_STEPS))
    if past is not None:
        most = f"{max(past.depths):,} at most in the last {span_text(past.seconds)}"
        depth.append("\n").append(_curve(past.depths, "cyan", most, width))
    grid.add_row("backlog", depth)
    if past is not None:
        for name, rates, colour in (("in/s", past.in_per_second, "green"), ("out/s", past.out_per_second, "magenta")):
            grid.add_row(name, _curve(rates, colour, f"{rate_text(max(rates))} at most", width))
    if sight.ages:
        waits = f"from the first, {span_text(sight.ages[0])}, to the last, {span_text(sight.ages[-1])}"
        grid.add_row("waiting", _curve(sight.ages, "yellow", waits, width))
    if sight.connections:
        grid.add_row("connections", _connections(sight.connections, width))
    grid.add_row("data files", _map(sight, width))
    for at, finding in enumerate(findings(sight)):
        grid.add_row("findings" if not at else "", _finding(finding))
    grid.add_row("disk", _disk(disk_parts(seen), seen.disk_bytes, width))
    return grid


def _curve(values: Sequence[float], colour: str, caption: str, width: int) -> Text:
    """Draw a curve, with its caption behind it, or below it if the two are wider than the picture."""
    gap = "  " if len(values) + len(caption) + 2 <= width else "\n"
    return Text.assemble((sparkline(values), colour), (f"{gap}{caption}", "dim"))


def _connections(connections: Sequence[Connection], width: int) -> RenderableType:
    """Draw the sessions of other processes, the longest hold first."""
    waiting = sum(each.waits for each in connections)
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    shown = [at for at, (_, least) in enumerate(_OF_CONNECTION) if width >= least]
    for at in shown:
        heading = _OF_CONNECTION[at][0]
        table.add_column(heading, overflow="fold", justify="right" if heading in {"held", "for", "flushes"} else "left")
    for each in connections[:_CONNECTED]:
        session = each.session + (f" of {each.subscription}" if each.subscription else "")
        held_for = span_text(each.seconds) if each.seconds else "-"
        texts = [process_text(each), printable(each.thread), printable(session), f"{each.held:,}", held_for]
        texts += [state_text(each), f"{each.flushes:,}"]
        table.add_row(*(texts[at] for at in shown))
    more = len(connections) - _CONNECTED
    rest = [Text(f"and {many(more, 'other')}", "dim")] if more > 0 else []
    return Group(Text(f"{many(len(connections), 'session')} of other processes, {waiting:,} waiting"), table, *rest)


def _disk(parts: Sequence[Part], disk_bytes: int, width: int) -> Text:
    bar, there = Text(), [part for part in parts if part.size_bytes]
    for part, places in zip(there, portions([part.size_bytes for part in there], _BAR), strict=True):
        bar.append(part.glyph * places, style=part.colour)
    bar.append(f"  {size_text(disk_bytes)}")
    entries = [(part.glyph, part.colour, f"{part.what} {size_text(part.size_bytes)}") for part in there]
    _add_legend(bar, entries, width)
    return bar


def _map(sight: Sight, width: int) -> Text:
    """Draw a character for each data file, a count for many neighbours of one class, a legend, and the worst files."""
    seen = sight.snapshot
    found = tiles(seen.segments, TILES)
    text = Text(f"{many(len(seen.segments), 'file')}, the oldest first")
    digits = len(f"{found[-1].first}") if found else 1
    for row in _rows(found, min(_ROW, max(width - digits - 1, 1))):
        text.append("\n").append(f"{row[0].first:>{digits}} ", "dim")
        for tile in row:
            text.append(_glyphs(tile), tile.level.colour)
    used = [level for level in LEVELS if any(tile.level == level for tile in found)]
    _add_legend(text, [(level.glyph, level.colour, level.words) for level in used], width)
    for segment in sorted((each for each in seen.segments if is_sparse(each)), key=share_of)[:_WORST]:
        size = f"{share_text(share_of(segment))} of {size_text(segment.size_bytes)} lives"
        text.append(f"\nsegment {segment.number}: {size}, {many(segment.live, 'item')}")
    return text


def _glyphs(tile: Tile) -> str:
    """Return a character for each file of the tile; for many files, a character and their number."""
    return tile.level.glyph * tile.files if tile.files <= _REPEATED else f"{tile.level.glyph}\xd7{tile.files} "


def _rows(tiles: Sequence[Tile], width: int) -> list[list[Tile]]:
    """Return the tiles in rows of at most ``width`` characters."""
    rows: list[list[Tile]] = []
    room = 0
    for tile in tiles:
        length = len(_glyphs(tile))
        if length > room or not rows:
            rows.append([])
            room = width
        rows[-1].append(tile)
        room -= length
    return rows


def _add_legend(text: Text, entries: Sequence[tuple[str, str, str]], width: int) -> None:
    """Explain the glyphs of a picture below it; an entry is never broken over two lines."""
    room = 0
    for glyph, colour, words in entries:
        length = len(words) + 5
        text.append("\n" if length > room else "   ").append(glyph, colour).append(f" {words}", "dim")
        room = (width if length > room else room) - length


def _finding(finding: Finding) -> Text:
    mark = ("! ", "bold red") if finding.is_urgent else ("• ", "dim")
    return Text.assemble(mark, finding.what, " ", (finding.advice, "dim"))

"""Charts and tables as HTML with inline SVG, which scales with its page and needs no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .charts import LEVELS, YOUNGEST, Curves, Level, Tile
from .text import many, rate_text, share_text, size_text, span_text

_WIDTH = 600
_FLAT = f'class="wide" preserveAspectRatio="none" role="img" viewBox="0 0 {_WIDTH}'
_TILE_WIDTH, _TILE_HEIGHT, _RUN_WIDTH = 28, 40, 120
_LEAST = 2
"""Least height or width of a shape, so that the smallest amount is visible."""

NOTEBOOK = "persistentqueue-stats"
"""Class of the element that holds pictures in a notebook."""
NOTEBOOK_STYLE = " ".join(
    f".{NOTEBOOK} {selector} {{ {rules} }}"
    for selector, rules in {
        ".map": "display: flex; flex-wrap: wrap; gap: 4px; margin: 6px 0",
        ".map text": "font: 10px sans-serif; fill: currentColor",
        ".map .times": "font-weight: bold",
        ".legend": "display: flex; flex-wrap: wrap; gap: 2px 16px; margin-bottom: 6px",
        ".axis": "display: flex; justify-content: space-between",
        ".small, .dim, .legend": "font-size: 85%; opacity: .8",
        ".wide": "display: block; width: 100%; max-width: 640px",
        ".legend span": "display: inline-flex; align-items: center; gap: 6px",
        ".columns": "display: flex; flex-wrap: wrap; gap: 8px 32px; align-items: start",
        "th, td": "text-align: left; padding: 1px 12px 1px 0",
        ".depth": "shape-rendering: crispEdges",
        "figure": "margin: 6px 0; max-width: 640px",
        ".full": "fill: #2f9e5c",
        ".most": "fill: #3a93b5",
        ".half": "fill: #c58a12",
        ".little": "fill: #d9534a",
        ".nothing": "fill: #98a2ae",
        ".youngest, .depth, .log": "fill: #5b7fe0",
        ".tile-back": "fill: currentColor; opacity: .12",
        ".line-in": "fill: none; stroke: #3a93b5; stroke-width: 2",
        ".line-out": "fill: none; stroke: #c58a12; stroke-width: 2",
    }.items()
)
"""Style of pictures in a notebook. Its colours can be seen on light and on dark pages: a notebook has its own theme."""


def rect(key: str, x: float, y: float, width: float, height: float, title: str = "") -> str:
    """Return a rectangle of a class of the style sheet; a browser shows ``title`` under the pointer."""
    box = f'<rect class="{key}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f"{box}><title>{escape(title)}</title></rect>" if title else f"{box}/>"


def picture(shapes: str, height: int, label: str) -> str:
    """Return shapes as a picture as wide as its page. ``label`` is its text for screen readers."""
    return f'<svg {_FLAT} {height}" height="{height}"><title>{escape(label)}</title>{shapes}</svg>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table. The first column holds text, the others hold numbers; all cells are HTML."""

    def row(cells: Sequence[str], tag: str) -> str:
        """Return a row of these cells."""
        kinds = ["", *[' class="n"'] * (len(cells) - 1)]
        return (
            "<tr>" + "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)) + "</tr>"
        )

    return f"<table>{row(headings, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"


def bar(parts: Sequence[tuple[str, str, int]], unit: str) -> str:
    """Return amounts as one bar with a legend. A part is its class, its text and its amount."""
    total, at, rects, legend = sum(amount for _, _, amount in parts) or 1, 0.0, "", ""
    for key, what, amount in parts:
        if amount:
            width = amount / total * _WIDTH
            shown = size_text(amount) if unit == "bytes" else f"{amount:,}"
            label = f"{what}: {shown}, {share_text(amount / total)}"
            rects += rect(key, at, 0, max(width, _LEAST), 26, label)
            legend += f'<span><svg width="12" height="12">{rect(key, 0, 0, 12, 12)}</svg>{escape(label)}</span>'
            at += width
    words = ", ".join(what for _, what, amount in parts if amount)
    return f'{picture(rects, 26, f"Shares: {words}")}<div class="legend">{legend}</div>'


def share_bar(share: float) -> str:
    """Return a share as a thin bar."""
    return picture(rect("live", 0, 0, share * _WIDTH, 8), 8, share_text(share))


def columns(counts: Sequence[int], titles: Sequence[str], label: str) -> str:
    """Return the counts of a histogram as columns, each with its title."""
    highest, width = max(counts), _WIDTH / len(counts)
    shapes = ""
    for at, (count, title) in enumerate(zip(counts, titles, strict=True)):
        if count:
            height = max(count / highest * 40, _LEAST)
            shapes += rect("log", at * width, 40 - height, width - 2, height, title)
    return picture(shapes, 40, label)


def age_chart(ages: Sequence[float]) -> str:
    """Return the waiting times of items, in seconds, as bars from the first item to the last."""
    highest, width = max(ages) or 1.0, _WIDTH / len(ages)
    bars = ""
    for at, age in enumerate(ages):
        height = max(age / highest * 100, _LEAST)
        bars += rect("age", at * width, 100 - height, width - 2, height, span_text(age))
    chart = picture(bars, 100, f"Waiting times, {span_text(max(ages))} at most")
    return (
        f'<p class="dim small">highest bar: {span_text(max(ages))}</p>{chart}'
        f"{_axis(f'first in the queue: {span_text(ages[0])}', f'last: {span_text(ages[-1])}')}"
    )


def depth_chart(curves: Curves) -> str:
    """Return the items left over time, as columns."""
    highest, width = max(curves.depths) or 1, _WIDTH / len(curves.depths)
    shapes = ""
    for at, depth in enumerate(curves.depths):
        if depth:
            height = max(depth / highest * 80, _LEAST)
            when = f"{many(depth, 'item')} left {_ago(curves, at)}"
            shapes += rect("depth", at * width, 80 - height, width + 0.3, height, when)
    label = f"Items left: {curves.depths[-1]:,} now, {max(curves.depths):,} at most"
    return f'<figure><figcaption class="small">{label}</figcaption>{picture(shapes, 80, label)}{_past(curves)}</figure>'


def rate_chart(curves: Curves) -> str:
    """Return the items that came and went per second, as two lines."""
    kinds = (("in", "enqueued", curves.in_per_second), ("out", "consumed", curves.out_per_second))
    highest = max(*curves.in_per_second, *curves.out_per_second) or 1.0
    shapes, words, legend = "", [], ""
    for key, what, rates in kinds:
        width = _WIDTH / len(rates)
        points = " ".join(f"{(at + 0.5) * width:.1f},{78 - rate / highest * 76:.1f}" for at, rate in enumerate(rates))
        shapes += f'<polyline class="line-{key}" points="{points}" vector-effect="non-scaling-stroke"/>'
        words.append(f"{what} {rate_text(rates[-1])}/s now, {rate_text(max(rates))}/s at most")
        legend += f'<span><svg width="16" height="10"><path class="line-{key}" d="M0 5H16"/></svg>{words[-1]}</span>'
    chart = picture(shapes, 80, "; ".join(words))
    return f'<figure><figcaption class="legend">{legend}</figcaption>{chart}{_past(curves)}</figure>'


def _ago(curves: Curves, at: int) -> str:
    seconds = curves.seconds - (at + 1) * curves.step_seconds
    return f"{span_text(seconds)} ago" if seconds > curves.step_seconds / 2 else "now"


def _past(curves: Curves) -> str:
    return _axis(f"{span_text(curves.seconds)} ago", "now")


def _axis(left: str, right: str) -> str:
    return f'<div class="axis dim small"><span>{left}</span><span>{right}</span></div>'


def segment_map(tiles: Sequence[Tile]) -> str:
    """Return the data files as tiles, each filled up to its live share, with a legend."""
    used = [level for level in LEVELS if any(tile.level == level for tile in tiles)]
    legend = "".join(f"<span>{_example(level)}{escape(level.words)}</span>" for level in used)
    if any(tile.keeper for tile in tiles):
        legend += f'<span><svg width="16" height="20">{rect("held", 2, 2, 12, 16)}</svg>kept by a session</span>'
    counts = [(level.words, sum(tile.files for tile in tiles if tile.level == level)) for level in used]
    label = "Data files by live share: " + ", ".join(f"{count:,} {words}" for words, count in counts)
    shapes = "".join(map(_tile, tiles))
    return f'<div class="map" role="img" aria-label="{escape(label)}">{shapes}</div><div class="legend">{legend}</div>'


def _tile(tile: Tile) -> str:
    names = f"segment {tile.first}" if tile.files == 1 else f"{tile.files:,} segments, {tile.first} to {tile.last}"
    title = f"{names}: {share_text(tile.share)} of {size_text(tile.size_bytes)} lives, {many(tile.live, 'item')}"
    title += "; being written" if tile.level is YOUNGEST else ""
    title += f"; kept by {tile.keeper}" if tile.keeper else ""
    # A run of files is wider than one file, and has its length in it: a thousand files need no thousand tiles.
    width = _TILE_WIDTH if tile.files == 1 else min(2 * _TILE_WIDTH + 4 * (tile.files.bit_length() - 2), _RUN_WIDTH)
    height = max(_TILE_HEIGHT * tile.share, _LEAST)
    shapes = rect("tile-back", 1, 1, width, _TILE_HEIGHT)
    shapes += rect(tile.level.key, 1, 1 + _TILE_HEIGHT - height, width, height)
    shapes += rect("held", 1, 1, width, _TILE_HEIGHT) if tile.keeper else ""
    middle = f'x="{width / 2 + 1:g}" text-anchor="middle"'
    label = f"{tile.first}"
    if tile.files > 1:
        label += f"\u2013{tile.last}"
        shapes += f'<text class="times" {middle} y="25">\xd7{tile.files:,}</text>'
    shapes += f'<text {middle} y="53">{label}</text>'
    return f'<svg width="{width + 2}" height="{_TILE_HEIGHT + 16}"><title>{escape(title)}</title>{shapes}</svg>'


def _example(level: Level) -> str:
    height = max(18 * level.least, _LEAST)
    shapes = rect("tile-back", 1, 1, 14, 18) + rect(level.key, 1, 19 - height, 14, height)
    return f'<svg width="16" height="20">{shapes}</svg>'


def notebook(parts: Iterable[str]) -> str:
    """Return pictures and tables as an element that a notebook shows."""
    return f'<div class="{NOTEBOOK}"><style>{NOTEBOOK_STYLE}</style>{"".join(parts)}</div>'

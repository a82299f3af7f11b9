"""The charts of ``report`` as HTML with inline SVG, which scales with its page: pure functions from numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ..formatting import many, share_text, size_text, span_text
from .charts import LEVELS, YOUNGEST, Level, Tile

_WIDTH = 600
_FLAT = f'class="wide" preserveAspectRatio="none" role="img" viewBox="0 0 {_WIDTH}'
_TILE_WIDTH, _TILE_HEIGHT = 28, 40
_LEAST = 2
"""Least height or width of a shape, so that the smallest amount is visible."""


def rect(key: str, x: float, y: float, width: float, height: float, title: str = "") -> str:
    """Return a rectangle of a class of the style sheet; a browser shows ``title`` under the pointer."""
    box = f'<rect class="{key}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f"{box}><title>{escape(title)}</title></rect>" if title else f"{box}/>"


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
    return f'<svg {_FLAT} 26" height="26">{rects}</svg><div class="legend">{legend}</div>'


def share_bar(share: float) -> str:
    """Return a share as a thin bar."""
    return f'<svg {_FLAT} 8" height="8">{rect("live", 0, 0, share * _WIDTH, 8)}</svg>'


def columns(counts: Sequence[int], titles: Sequence[str]) -> str:
    """Return the counts of a histogram as columns, each with its title."""
    highest, width = max(counts), _WIDTH / len(counts)
    shapes = ""
    for at, (count, title) in enumerate(zip(counts, titles, strict=True)):
        if count:
            height = max(count / highest * 40, _LEAST)
            shapes += rect("log", at * width, 40 - height, width - 2, height, title)
    return f'<svg {_FLAT} 40" height="40">{shapes}</svg>'


def age_chart(ages: Sequence[float]) -> str:
    """Return the waiting times of items, in seconds, as bars from the first item to the last."""
    highest, width = max(ages) or 1.0, _WIDTH / len(ages)
    bars = ""
    for at, age in enumerate(ages):
        height = max(age / highest * 100, _LEAST)
        bars += rect("age", at * width, 100 - height, width - 2, height, span_text(age))
    return (
        f'<p class="dim small">highest bar: {span_text(max(ages))}</p><svg {_FLAT} 100" height="110">{bars}</svg>'
        f'<div class="axis dim small"><span>first in the queue: {span_text(ages[0])}</span>'
        f"<span>last: {span_text(ages[-1])}</span></div>"
    )


def segment_map(tiles: Sequence[Tile]) -> str:
    """Return the data files as tiles, each filled up to its live share, with a legend."""
    used = [level for level in LEVELS if any(tile.level == level for tile in tiles)]
    legend = "".join(f"<span>{_example(level)}{escape(level.words)}</span>" for level in used)
    if any(tile.is_held for tile in tiles):
        legend += f'<span><svg width="16" height="20">{rect("held", 2, 2, 12, 16)}</svg>kept by a session</span>'
    return f'<div class="map">{"".join(map(_tile, tiles))}</div><div class="legend">{legend}</div>'


def _tile(tile: Tile) -> str:
    is_one = tile.files == 1
    names = f"segment {tile.first}" if is_one else f"segments {tile.first} to {tile.last}"
    title = f"{names}: {share_text(tile.share)} of {size_text(tile.size_bytes)} lives, {many(tile.live, 'item')}"
    title += "; being written" if tile.level is YOUNGEST else ""
    height = max(_TILE_HEIGHT * tile.share, _LEAST)
    shapes = rect("tile-back", 1, 1, _TILE_WIDTH, _TILE_HEIGHT)
    shapes += rect(tile.level.key, 1, 1 + _TILE_HEIGHT - height, _TILE_WIDTH, height)
    shapes += rect("held", 1, 1, _TILE_WIDTH, _TILE_HEIGHT) if tile.is_held else ""
    label = f'<text x="15" y="53" text-anchor="middle">{tile.first}</text>'
    return (
        f'<svg width="{_TILE_WIDTH + 2}" height="{_TILE_HEIGHT + 16}" role="img"><title>{escape(title)}</title>'
        f"{shapes}{label}</svg>"
    )


def _example(level: Level) -> str:
    height = max(18 * level.least, _LEAST)
    shapes = rect("tile-back", 1, 1, 14, 18) + rect(level.key, 1, 19 - height, 14, height)
    return f'<svg width="16" height="20">{shapes}</svg>'

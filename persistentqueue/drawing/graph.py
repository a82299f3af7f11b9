"""Directed graphs without circles: boxes in rows, with arrows from top to bottom, as Mermaid and as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _LINE_HEIGHT, _PADDING = 190, 17, 8
_LETTER_WIDTH = 7.5
"""Width of a letter of a title, at most, except for texts of many wide letters."""
_GAP_X, _GAP_Y, _MARGIN, _HEAD = 24, 30, 6, 7


class Box(NamedTuple):
    """A node of a graph."""

    key: str
    """Its name, by which arrows find it."""
    lines: tuple[str, ...]
    """Its text; the first line is a title."""
    kind: str = "plain"
    """Its class of the style sheet."""
    is_round: bool = False


Arrow = tuple[str, str]
"""The keys of two boxes, from the first to the second."""

GRAPH_STYLE = " ".join(
    f".graph{selector} {{ {rules} }}"
    for selector, rules in {
        "": "display: block; max-width: 100%; height: auto; margin: 6px auto",
        " text": "font: 12px system-ui, sans-serif; fill: currentColor",
        " .title": "font-weight: 600",
        " .arrow": "fill: none; stroke: currentColor; stroke-opacity: .45; stroke-width: 1.5",
        " .head": "fill: currentColor; fill-opacity: .45",
        " .plain": "fill: #98a2ae; fill-opacity: .12; stroke: #98a2ae; stroke-width: 1.2",
        " .busy": "fill: #2f9e5c; fill-opacity: .22; stroke: #2f9e5c; stroke-width: 1.2",
        " .waits": "fill: #5b7fe0; fill-opacity: .18; stroke: #5b7fe0; stroke-width: 1.2",
        " .full": "fill: #c58a12; fill-opacity: .22; stroke: #c58a12; stroke-width: 1.2",
        " .wrong": "fill: #d9534a; fill-opacity: .22; stroke: #d9534a; stroke-width: 1.2",
    }.items()
)
"""Style of the classes of ``svg``. Its colours can be seen on light and on dark pages."""


def ranked(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> list[list[Box]]:
    """Return the boxes in rows: each box below all boxes that lead to it, and near to them."""
    above: dict[str, list[str]] = {box.key: [] for box in boxes}
    for one, other in arrows:
        above[other].append(one)
    ranks: dict[str, int] = {}

    def rank(key: str) -> int:
        """Return the row of a box: one more than the lowest row of the boxes that lead to it."""
        if key not in ranks:
            ranks[key] = max((rank(each) + 1 for each in above[key]), default=0)
        return ranks[key]

    rows: list[list[Box]] = [[] for _ in range(max((rank(box.key) for box in boxes), default=-1) + 1)]
    for box in boxes:
        rows[ranks[box.key]].append(box)
    places: dict[str, float] = {}
    for row in rows:
        row.sort(key=lambda box: sum(places[key] for key in above[box.key]) / max(len(above[box.key]), 1))
        places |= {box.key: number - (len(row) - 1) / 2 for number, box in enumerate(row)}
    return rows


def svg(boxes: Sequence[Box], arrows: Sequence[Arrow], label: str) -> str:
    """Return the graph as a picture. ``label`` is its text for screen readers."""
    rows = ranked(boxes, arrows)
    box_width = _box_width(boxes)
    width = max((len(row) * (box_width + _GAP_X) - _GAP_X for row in rows), default=0) + 2 * _MARGIN
    tops: dict[str, tuple[float, float]] = {}
    bottoms: dict[str, tuple[float, float]] = {}
    shapes, y = "", float(_MARGIN)
    for row in rows:
        row_height = max(_height(box) for box in row)
        x = (width - len(row) * (box_width + _GAP_X) + _GAP_X) / 2
        for box in row:
            top = y + (row_height - _height(box)) / 2
            tops[box.key] = x + box_width / 2, top
            bottoms[box.key] = x + box_width / 2, top + _height(box)
            shapes += _shape(box, x, top, box_width)
            x += box_width + _GAP_X
        y += row_height + _GAP_Y
    lines = "".join(_line(*bottoms[one], *tops[other]) for one, other in arrows)
    height = y - _GAP_Y + _MARGIN if rows else 2 * _MARGIN
    size = f'width="{width}" height="{height:g}" viewBox="0 0 {width} {height:g}"'
    return f'<svg class="graph" role="img" {size}><title>{escape(label)}</title>{lines}{shapes}</svg>'


def _height(box: Box) -> int:
    return len(box.lines) * _LINE_HEIGHT + 2 * _PADDING


def _box_width(boxes: Sequence[Box]) -> int:
    """Return the width of all boxes: the usual one, or that of the longest line."""
    letters = max((len(line) for box in boxes for line in box.lines), default=0)
    return max(_WIDTH, round(letters * _LETTER_WIDTH) + 2 * _PADDING)


def _shape(box: Box, x: float, y: float, width: int) -> str:
    height = _height(box)
    rounding = f'rx="{height / 2 if box.is_round else 4:g}"'
    found = f'<rect class="{box.kind}" x="{x:g}" y="{y:g}" width="{width}" height="{height}" {rounding}/>'
    for number, line in enumerate(box.lines):
        key = "" if number else ' class="title"'
        at = f'x="{x + width / 2:g}" y="{y + _PADDING + (number + 0.75) * _LINE_HEIGHT:g}"'
        found += f'<text{key} {at} text-anchor="middle">{escape(line)}</text>'
    return found


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    y2 -= _HEAD
    bend = (y2 - y1) / 2
    path = f"M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}"
    return f'<path class="arrow" d="{path}"/><path class="head" d="M{x2 - 4:g} {y2:g}h8l-4 {_HEAD}z"/>'


def mermaid(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> str:
    """Return the graph in the language Mermaid, which many documents and web pages draw."""
    names = {box.key: f"n{number}" for number, box in enumerate(boxes)}
    lines = ["flowchart TD"]
    for box in boxes:
        text = "<br/>".join(escape(line) for line in box.lines)
        left, right = ("([", "])") if box.is_round else ("[", "]")
        lines.append(f'    {names[box.key]}{left}"{text}"{right}')
    lines += [f"    {names[one]} --> {names[other]}" for one, other in arrows]
    return "\n".join(lines) + "\n"

"""Directed graphs without circles: boxes in columns, with arrows, as text, as Mermaid and as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _LINE, _GAP_X, _GAP_Y, _MARGIN = 168, 17, 46, 18, 6
_PADDING = 9


class Box(NamedTuple):
    """A node of a graph: its key, its lines of text, the first one a title, and its class of the style sheet."""

    key: str
    lines: tuple[str, ...]
    kind: str = "box"
    is_round: bool = False


Arrow = tuple[str, str]
"""The keys of two boxes, from the first to the second."""

GRAPH_STYLE = {
    ".graph": "display: block; max-width: 100%; height: auto; margin: 6px 0",
    ".graph text": "font: 12px system-ui, sans-serif; fill: currentColor",
    ".graph .title": "font-weight: 600",
    ".graph .arrow": "fill: none; stroke: currentColor; stroke-opacity: .45; stroke-width: 1.5",
    ".graph .head": "fill: currentColor; fill-opacity: .45",
    ".graph rect": "fill: #98a2ae; fill-opacity: .12; stroke: #98a2ae; stroke-width: 1.2",
    ".graph .busy": "fill: #2f9e5c; fill-opacity: .22; stroke: #2f9e5c",
    ".graph .waits": "fill: #5b7fe0; fill-opacity: .18; stroke: #5b7fe0",
    ".graph .held": "fill: #c58a12; fill-opacity: .22; stroke: #c58a12; stroke-dasharray: none",
    ".graph .wrong": "fill: #d9534a; fill-opacity: .22; stroke: #d9534a",
}
"""Rules for the classes of ``svg``. Their colours can be seen on light and on dark pages."""


def columns(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> list[list[Box]]:
    """Return the boxes in columns: each one behind all boxes that lead to it, and near to them."""
    above: dict[str, list[str]] = {box.key: [] for box in boxes}
    for one, other in arrows:
        above[other].append(one)
    ranks: dict[str, int] = {}

    def rank(key: str) -> int:
        if key not in ranks:
            ranks[key] = max((rank(each) + 1 for each in above[key]), default=0)
        return ranks[key]

    found: list[list[Box]] = [[] for _ in range(max((rank(box.key) for box in boxes), default=-1) + 1)]
    for box in boxes:
        found[ranks[box.key]].append(box)
    places: dict[str, float] = {}
    for column in found:
        column.sort(key=lambda box: sum(places[key] for key in above[box.key]) / max(len(above[box.key]), 1))
        places |= {box.key: number - len(column) / 2 for number, box in enumerate(column)}
    return found


def svg(boxes: Sequence[Box], arrows: Sequence[Arrow], label: str) -> str:
    """Return the graph as a picture, from left to right. ``label`` is its text for screen readers."""
    layout = columns(boxes, arrows)
    heights = {box.key: len(box.lines) * _LINE + 2 * _PADDING for box in boxes}
    tall = [sum(heights[box.key] + _GAP_Y for box in column) - _GAP_Y for column in layout]
    height = max(tall, default=0) + 2 * _MARGIN
    width = len(layout) * (_WIDTH + _GAP_X) - _GAP_X + 2 * _MARGIN
    places: dict[str, tuple[float, float]] = {}
    shapes = ""
    for number, (column, its_height) in enumerate(zip(layout, tall, strict=True)):
        x, y = _MARGIN + number * (_WIDTH + _GAP_X), (height - its_height) / 2
        for box in column:
            places[box.key] = x, y + heights[box.key] / 2
            shapes += _box(box, x, y, heights[box.key])
            y += heights[box.key] + _GAP_Y
    lines = "".join(_arrow(places[one], places[other]) for one, other in arrows)
    size = f'width="{width}" height="{height:g}" viewBox="0 0 {width} {height:g}"'
    return f'<svg class="graph" role="img" {size}><title>{escape(label)}</title>{lines}{shapes}</svg>'


def _box(box: Box, x: float, y: float, height: float) -> str:
    round_ = height / 2 if box.is_round else 4
    shape = f'<rect class="{box.kind}" x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{height:g}" rx="{round_:g}"/>'
    texts = ""
    for number, line in enumerate(box.lines):
        key = ' class="title"' if number == 0 else ""
        at = f'x="{x + _WIDTH / 2:g}" y="{y + _PADDING + (number + 0.75) * _LINE:g}"'
        texts += f'<text{key} {at} text-anchor="middle">{escape(line)}</text>'
    return shape + texts


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    x1, y1, x2, y2 = start[0] + _WIDTH, start[1], end[0] - 7, end[1]
    bend = max((x2 - x1) / 2, 20)
    path = f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
    head = f'<path class="head" d="M{x2:g} {y2 - 4:g}l7 4l-7 4z"/>'
    return f'<path class="arrow" d="{path}"/>{head}'


def mermaid(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> str:
    """Return the graph in the language Mermaid, which many documents and web pages draw."""
    names = {box.key: f"n{number}" for number, box in enumerate(boxes)}
    lines = ["flowchart LR"]
    for box in boxes:
        text = "<br/>".join(escape(line).replace('"', "&quot;") for line in box.lines)
        left, right = ("([", "])") if box.is_round else ("[", "]")
        lines.append(f'    {names[box.key]}{left}"{text}"{right}')
    lines += [f"    {names[one]} --> {names[other]}" for one, other in arrows]
    return "\n".join(lines) + "\n"

"""The picture of a pipeline, as values, as text and as HTML: its stages, and the DataFrames that wait at its edges."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape
from typing import NamedTuple

from persistentqueue.drawing.graph import GRAPH_STYLE, Arrow, Box, mermaid, svg
from persistentqueue.drawing.style import STYLE
from persistentqueue.drawing.svg import notebook, table
from persistentqueue.drawing.text import many, rate_text, size_text, span_text

from .graph import StageDefinition

_KINDS = {"running": "busy", "ready": "waits", "blocked": "full", "failed": "wrong"}


class EdgeStats(NamedTuple):
    """The DataFrames that wait at an edge, at one moment."""

    name: str
    """Name of the edge."""
    waiting: int
    """DataFrames that wait for the consumer that has most, without those that it is taking."""
    waiting_bytes: int
    """Bytes of the payloads that any consumer has still to take, or is taking."""
    oldest_seconds: float
    """Seconds for which the oldest of them has been there; 0.0 if there is none."""
    in_per_minute: float
    """DataFrames that came in the last minute, or per minute if the queue is younger."""
    out_per_minute: float
    """DataFrames that the last one of their consumers took in the last minute, or per minute if it is younger."""


class StageStats(NamedTuple):
    """The state of a stage, at one moment."""

    name: str
    """Name of the stage."""
    sources: tuple[str, ...]
    """Names of the edges that it takes from."""
    targets: tuple[str, ...]
    """Names of the edges that it puts to."""
    state: str
    """``running``, ``ready``, ``blocked`` by a full target, ``failed`` at its last attempt, ``idle`` without input, or
    ``scheduled`` without a source."""
    runs: int
    """Inputs that it has consumed since the pipeline was made. 0 for a stage without a source."""
    letters: int
    """Inputs that it gave up."""
    seconds: float | None
    """Seconds of its last attempt; None if this process made none."""


def shape(stages: Sequence[StageDefinition], edges: Sequence[str]) -> str:
    """Return the picture of a pipeline that is not open, for a notebook: its stages and edges, without their states."""
    if not stages:
        return notebook(["<p>The pipeline has no stage: define one with @pipeline.stage(…)</p>"])
    boxes = [Box(f"edge {edge}", (edge,), is_round=True) for edge in edges]
    boxes += [Box(f"stage {stage.name}", (stage.name,)) for stage in stages]
    label = f"{many(len(stages), 'stage')}, {many(len(edges), 'edge')}"
    return notebook([f"<style>{GRAPH_STYLE}</style>", svg(boxes, _arrows(stages), label)])


class PipelineStats(NamedTuple):
    """A pipeline at one moment: ``Pipeline.stats`` returns it, and ``print`` shows it. It never changes."""

    stages: tuple[StageStats, ...]
    """The stages, in the order of their definition."""
    edges: tuple[EdgeStats, ...]
    """The edges, in the order in which the stages name them."""

    def __str__(self) -> str:
        """Return the lines of ``Pipeline.explain``."""
        edges = _rows(_EDGES, [_cells(edge) for edge in self.edges])
        stages = _rows(_STAGES, [_stage_cells(stage) for stage in self.stages])
        return "\n".join([*map(_line, self.stages), "", *edges, "", *stages])

    def mermaid(self) -> str:
        """Return the graph in the language Mermaid."""
        return mermaid(self._boxes(), _arrows(self.stages))

    def svg(self) -> str:
        """Return the graph as an SVG element, without a style."""
        waiting = sum(edge.waiting for edge in self.edges)
        label = (
            f"{many(len(self.stages), 'stage')}, {many(len(self.edges), 'edge')}, {many(waiting, 'DataFrame')} waiting"
        )
        return svg(self._boxes(), _arrows(self.stages), label)

    def _repr_html_(self) -> str:
        return notebook([f"<style>{GRAPH_STYLE}</style>", self.svg()])

    def page(self, title: str) -> str:
        """Return a page of HTML with the picture and both tables; it loads nothing from elsewhere."""
        now = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
        edges = table(_EDGES, (list(map(escape, _cells(edge))) for edge in self.edges))
        stages = table(_STAGES, (list(map(escape, _stage_cells(stage))) for stage in self.stages))
        cards = (("", self.svg()), ("Edges", edges), ("Stages", stages))
        body = "".join(f'<section class="card"><h3>{heading}</h3>{content}</section>' for heading, content in cards)
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>pipeline {escape(title)}</title><style>{STYLE}{GRAPH_STYLE}</style></head><body><main>"
            f'<h1>Pipeline {escape(title)}</h1><p class="dim">The state at {now}. Make it again to see another one.</p>'
            f"{body}</main></body></html>\n"
        )

    def _boxes(self) -> list[Box]:
        boxes = []
        for edge in self.edges:
            lines = [
                edge.name,
                f"{edge.waiting:,} waiting" + (f", {size_text(edge.waiting_bytes)}" if edge.waiting_bytes else ""),
            ]
            if edge.oldest_seconds:
                lines.append(f"oldest {span_text(edge.oldest_seconds)}")
            if edge.in_per_minute or edge.out_per_minute:
                lines.append(f"{rate_text(edge.in_per_minute)}/min in, {rate_text(edge.out_per_minute)}/min out")
            boxes.append(Box(f"edge {edge.name}", tuple(lines), "waits" if edge.waiting else "plain", is_round=True))
        for stage in self.stages:
            lines = [stage.name, stage.state + (f", {stage.runs:,} taken" if stage.runs else "")]
            if stage.letters:
                lines.append(f"{many(stage.letters, 'dead letter')}")
            kind = "wrong" if stage.letters else _KINDS.get(stage.state, "plain")
            boxes.append(Box(f"stage {stage.name}", tuple(lines), kind))
        return boxes


def _arrows(stages: Sequence[StageDefinition | StageStats]) -> list[Arrow]:
    arrows: list[Arrow] = []
    for stage in stages:
        arrows += [(f"edge {edge}", f"stage {stage.name}") for edge in stage.sources]
        arrows += [(f"stage {stage.name}", f"edge {edge}") for edge in stage.targets]
    return arrows


_EDGES = ("edge", "waiting", "bytes", "oldest", "in/min", "out/min")
_STAGES = ("stage", "state", "taken", "dead letters", "last attempt")


def _line(stage: StageStats) -> str:
    left = f"{', '.join(stage.sources)} ──▶ " if stage.sources else ""
    right = f" ──▶ {', '.join(stage.targets)}" if stage.targets else ""
    return f"{left}[{stage.name}]{right}"


def _cells(edge: EdgeStats) -> list[str]:
    oldest = span_text(edge.oldest_seconds) if edge.oldest_seconds else "-"
    rates = rate_text(edge.in_per_minute), rate_text(edge.out_per_minute)
    return [
        edge.name,
        f"{edge.waiting:,}",
        size_text(edge.waiting_bytes) if edge.waiting_bytes else "-",
        oldest,
        *rates,
    ]


def _stage_cells(stage: StageStats) -> list[str]:
    return [stage.name, stage.state, f"{stage.runs:,}", f"{stage.letters:,}", span_text(stage.seconds)]


def _rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as lines: the first column to the left, the others to the right."""
    cells = [list(headings), *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        first, *others = zip(row, widths, strict=True)
        lines.append(f"{first[0]:<{first[1]}}" + "".join(f"  {text:>{width}}" for text, width in others))
    return lines

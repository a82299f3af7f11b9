"""The graph of a pipeline: its stages, the edges between them, and all checks of definitions. No Spark, no queues."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from persistentqueue import PersistentQueueError
from persistentqueue.core.items import checked_marker
from persistentqueue.interrupts.locks import Lock

Marker = tuple[str, int]
Delay = float | Callable[[int], float]
"""Seconds until a stage is tried again: a number, or a function from the number of its failures to seconds."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


class PipelineDefinitionError(PersistentQueueError, ValueError):
    """A stage or an edge of a pipeline is not defined, or contradicts the others: correct the program."""


@dataclass(frozen=True)
class StageDefinition:
    """A stage: a function, the edges that it takes its DataFrames from, and the edges that it puts its results to."""

    name: str
    function: Callable[..., Any]
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    max_attempts: int | None = None
    retry_delay: Delay = 0.0
    max_waiting: int | None = None
    max_waiting_bytes: int | None = None
    every_seconds: float | None = None
    marker: Marker | Callable[[], Marker] | None = None

    @property
    def period_ns(self) -> int | None:
        """The period of the schedule in nanoseconds; None without one."""
        return None if self.every_seconds is None else max(round(self.every_seconds * 1e9), 1)

    def retry_seconds(self, failures: int) -> float:
        """Return the seconds to the next attempt after this number of failures. Raises ``ValueError``."""
        seconds = self.retry_delay(failures) if callable(self.retry_delay) else self.retry_delay
        return _checked_number(self.name, "retry_delay_seconds", seconds)

    def check(self) -> None:
        """Raise ``PipelineDefinitionError`` if a part of the definition is out of range or contradicts another one."""
        for what, names in (("source", self.sources), ("target", self.targets)):
            for edge in names:
                _check_name(edge, f"stage {self.name!r}: its {what}")
            if len(set(names)) < len(names):
                raise PipelineDefinitionError(f"stage {self.name!r}: a {what} is named twice in {', '.join(names)}")
        for what, number in (
            ("max_attempts", self.max_attempts),
            ("max_waiting", self.max_waiting),
            ("max_waiting_bytes", self.max_waiting_bytes),
        ):
            if number is not None and (type(number) is not int or number < 1):
                raise PipelineDefinitionError(f"stage {self.name!r}: {what} must be a number from 1, not {number!r}")
        if self.marker is not None and not callable(self.marker):
            _check_marker(self.name, self.marker)
        if not callable(self.retry_delay):
            _checked_number(self.name, "retry_delay_seconds", self.retry_delay)
        if self.every_seconds is not None and _checked_number(self.name, "every", self.every_seconds) <= 0:
            raise PipelineDefinitionError(f"stage {self.name!r}: every must be more than 0 seconds")
        if self.sources:
            if self.every_seconds is not None or self.marker is not None:
                raise PipelineDefinitionError(
                    f"stage {self.name!r}: every= and marker= are for a stage without a source, but it has "
                    f"{', '.join(self.sources)}: such a stage runs when all its sources have a DataFrame"
                )
        elif not self.targets:
            raise PipelineDefinitionError(f"stage {self.name!r} has neither a source nor a target: name one")
        elif self.every_seconds is None and self.marker is None:
            raise PipelineDefinitionError(
                f"stage {self.name!r} has no source, so that each run would put its DataFrame again: pass marker= or "
                "every="
            )


class Graph:
    """The stages of a pipeline in the order of their definition, and the edges that they name.

    For one thread at a time. After the first use of the pipeline only ``claim`` changes it, which is for any thread.
    """

    def __init__(self) -> None:
        self.stages: dict[str, StageDefinition] = {}
        self._claiming = Lock()
        self._markers: dict[tuple[str, str], str] = {}
        """For each edge and name of a marker, the stage that records it there."""

    @property
    def edges(self) -> list[str]:
        """Names of the edges, in the order in which the stages name them."""
        return list(dict.fromkeys(name for stage in self for name in (*stage.sources, *stage.targets)))

    def __iter__(self) -> Iterator[StageDefinition]:
        return iter(self.stages.values())

    def add(self, stage: StageDefinition) -> None:
        """Add a stage. Raises ``PipelineDefinitionError``; then the graph is unchanged."""
        _check_name(stage.name, "a stage's name")
        if stage.name in self.stages:
            raise PipelineDefinitionError(
                f"there is a stage {stage.name!r} already: give this one another name, with name="
            )
        stage.check()
        circle = self._path(stage.targets, set(stage.sources), set())
        if circle:
            raise PipelineDefinitionError(
                f"stage {stage.name!r} closes a circle, {' > '.join([*circle, stage.name, circle[0]])}: let no stage "
                "take what comes from its own results"
            )
        if isinstance(stage.marker, tuple):
            self.claim(stage, stage.marker)
        self.stages[stage.name] = stage

    def claim(self, stage: StageDefinition, marker: Marker) -> None:
        """Note that a stage records markers of this name. Raises ``PipelineDefinitionError``; then nothing is noted.

        An edge remembers one version for each name. So of two stages with one name, one would never run.
        """
        places = [(edge, name) for edge in stage.targets for name in marker[:1]]
        with self._claiming:
            for edge, name in places:
                other = self._markers.get((edge, name), stage.name)
                if other != stage.name:
                    raise PipelineDefinitionError(
                        f"stages {other!r} and {stage.name!r} have the marker {name!r} at edge {edge!r}, so that only "
                        "one of them would run: give the stage that has not run a marker of another name"
                    )
            self._markers.update(dict.fromkeys(places, stage.name))

    def readers(self, edge: str) -> list[str]:
        """Return the names of the stages that take from an edge."""
        return [stage.name for stage in self if edge in stage.sources]

    def require_edge(self, edge: str) -> None:
        """Raise ``PipelineDefinitionError`` unless a stage names the edge."""
        if edge not in self.edges:
            raise PipelineDefinitionError(
                f"no stage names an edge {edge!r}: the edges are {', '.join(self.edges) or 'none'}"
            )

    def require_stage(self, stage: str) -> StageDefinition:
        """Return the stage of this name. Raises ``PipelineDefinitionError``."""
        if stage not in self.stages:
            raise PipelineDefinitionError(
                f"there is no stage {stage!r}: the stages are {', '.join(self.stages) or 'none'}"
            )
        return self.stages[stage]

    def downstream_first(self) -> list[StageDefinition]:
        """Return the stages, each one behind all stages that take what it puts."""
        found: dict[str, StageDefinition] = {}

        def visit(stage: StageDefinition) -> None:
            """Add the stage behind all stages that take what it puts."""
            for other in self:
                if stage.name not in found and set(stage.targets) & set(other.sources):
                    visit(other)
            found.setdefault(stage.name, stage)

        for stage in self:
            visit(stage)
        return list(found.values())

    def _path(self, edges: Sequence[str], wanted: set[str], seen: set[str]) -> list[str]:
        """Return edges and stages, by turns, from one of these edges to a wanted edge; none if there is no way.

        No way leads on from the edges in ``seen``, to which this search adds its own.
        """
        for edge in edges:
            if edge in wanted:
                return [edge]
            if edge in seen:
                continue
            seen.add(edge)
            for reader in self.readers(edge):
                rest = self._path(self.stages[reader].targets, wanted, seen)
                if rest:
                    return [edge, reader, *rest]
        return []


def _check_name(name: object, what: str) -> None:
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise PipelineDefinitionError(
            f"{what} must have 1 to 40 of A-Z a-z 0-9 _ -, beginning with a letter or a digit, not {name!r}"
        )


def _check_marker(stage: str, marker: object) -> None:
    try:
        checked_marker(marker, "marker")
    except (TypeError, ValueError) as error:
        raise PipelineDefinitionError(f"stage {stage!r}: {error}") from error


def _checked_number(stage: str, what: str, seconds: object) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not (isfinite(seconds) and seconds >= 0):
        raise PipelineDefinitionError(f"stage {stage!r}: {what} must be a number of seconds from 0, not {seconds!r}")
    return float(seconds)

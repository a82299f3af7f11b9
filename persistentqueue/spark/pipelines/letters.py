"""Letters: each has the inputs that a stage gave up, and the last error. No Spark, no queues.

A letter is the item of a queue of its stage. Its manifests keep the payloads of the inputs.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from .. import stages
from ..stages import Manifest, NotAStageError
from .graph import PipelineDefinitionError, StageDefinition

_FORMAT = "persistentqueue stage letter 1"
_TEXT_CHARACTERS_MAX = 16_000
_JAVA = re.compile(r"\s*\n(?:\s+at [\w.$/<>]+\(|\s*JVM stacktrace:|\s*Driver stacktrace:).*", re.DOTALL)
"""The stack traces of Java, which Spark adds behind the text of an error."""
_END_LINES = 3
"""Last lines of the text of an error that a brief one has: Spark ends the traceback of a task by the error in it."""


class Input(NamedTuple):
    """A DataFrame that waits at an edge, as a stage gets it."""

    edge: str
    """Name of the edge."""
    manifest: Manifest
    """Its description, which names its payload."""


@dataclass(frozen=True)
class StageLetter:
    """The inputs of a stage that failed at each attempt, and its last error. Objects never change.

    The payloads of the inputs are kept until ``Pipeline.requeue`` or ``Pipeline.discard``.
    """

    stage: str
    """Name of the stage."""
    inputs: tuple[Input, ...]
    """One DataFrame of each source; none for a stage without a source."""
    error: str
    """Name of the type of the last error; empty if none was recorded: each attempt ended the process, or the disk was
    full."""
    message: str
    """Text of the last error. If it has more than 16,000 characters, its end is cut."""
    traceback: str
    """Traceback of the last error. If it has more than 16,000 characters, its beginning is cut."""
    attempts: int
    """Number of attempts."""
    time: datetime
    """Time at which the stage gave the inputs up, in UTC."""

    def encode(self) -> bytes:
        """Return the item that carries this letter in a queue."""
        plain = {"inputs": _plain(self.inputs), "time": self.time.isoformat()}
        return json.dumps({"format": _FORMAT} | vars(self) | plain, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, item: bytes) -> StageLetter:
        """Return the letter that an item carries. Raises ``NotAStageError``."""
        try:
            fields = json.loads(item)
            if fields.pop("format") != _FORMAT:
                raise ValueError("unknown format")
            inputs, time = _inputs(fields.pop("inputs")), datetime.fromisoformat(fields.pop("time"))
            return cls(inputs=inputs, time=time, **fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise NotAStageError(f"an item is no letter of a stage ({error!r}): keep other items out") from error


class Failure(NamedTuple):
    """The last error of a stage. It is kept until the next error of the stage."""

    run: str
    """The run of the stage that failed: the name of its lead, and the number of the run there."""
    error: str
    message: str
    traceback: str

    def encode(self) -> bytes:
        """Return the item that carries this failure in a queue."""
        return json.dumps(self, separators=(",", ":")).encode()


NO_FAILURE = Failure(
    "",
    "",
    "no error was recorded: each attempt ended the process, or the disk was too full for the record",
    "",
)


def failure_of(run: str, error: BaseException) -> Failure:
    """Return the failure of a run by an error."""
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Failure(run, type(error).__name__, str(error)[:_TEXT_CHARACTERS_MAX], lines[-_TEXT_CHARACTERS_MAX:])


def brief(error: object) -> str:
    """Return the text of an error in one line: its first and last lines, without the stack traces of Java."""
    lines = [line.strip() for line in _JAVA.sub("", str(error)).splitlines() if line.strip()]
    if len(lines) > 1 + _END_LINES:
        lines[1:-_END_LINES] = ["…"]
    return " ".join(lines)


def decode_failure(item: bytes) -> Failure:
    """Return the failure that an item carries. Raises ``NotAStageError``."""
    try:
        return Failure(*json.loads(item))
    except (ValueError, TypeError) as error:
        raise NotAStageError(f"an item is no failure of a stage ({error!r}): keep other items out") from error


def need_sources(stage: StageDefinition, inputs: Sequence[Input], otherwise: str) -> None:
    """Raise ``PipelineDefinitionError`` if the stage has other sources than the stage that gave these inputs up.

    ``otherwise`` says what the user can do instead of restoring the sources.
    """
    found = tuple(each.edge for each in inputs)
    if found != stage.sources:
        raise PipelineDefinitionError(
            f"stage {stage.name!r} gave up inputs of {', '.join(found) or 'no edge'}, but now it takes from "
            f"{', '.join(stage.sources) or 'no edge'}: restore its sources, or {otherwise}"
        )


def encode_inputs(inputs: Sequence[Input]) -> bytes:
    """Return the item that gives a stage these inputs once more."""
    return json.dumps(_plain(inputs), separators=(",", ":")).encode()


def decode_inputs(item: bytes) -> tuple[Input, ...]:
    """Return the inputs that an item of ``encode_inputs`` carries. Raises ``NotAStageError``."""
    try:
        return _inputs(json.loads(item))
    except (ValueError, TypeError) as error:
        raise NotAStageError(f"an item has no inputs of a stage ({error!r}): keep other items out") from error


def _plain(inputs: Sequence[Input]) -> list[Any]:
    return [[each.edge, json.loads(stages.encode(each.manifest))] for each in inputs]


def _inputs(plain: list[Any]) -> tuple[Input, ...]:
    return tuple(Input(edge, stages.decode(json.dumps(manifest).encode())) for edge, manifest in plain)

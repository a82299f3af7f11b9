"""Pipelines of stages, on a stand-in for Spark: the attempts that do not count, and the errors of those that do."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

import pandas
import pytest
from pyspark.sql import SparkSession

from persistentqueue import BrokenQueueError, ClosedError, PersistentQueue
from persistentqueue.spark import Pipeline, SparkStoppedError, StageFailedError, StageResultError
from persistentqueue.spark.pipelines import stage as stage_module
from persistentqueue.spark.sessions import has_stopped
from tests.support.pipelines import Flow, StandIn, echo, noted, take, waiting


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let Spark have stopped while the list has a value."""
    found: list[bool] = []
    monkeypatch.setattr(stage_module, "has_stopped", lambda _: bool(found))
    return found


def working(flow: Flow, work: Callable[[Any], Any], **options: Any) -> Pipeline:
    """Return a pipeline whose stage "work" takes from "a" and puts to "b"; two DataFrames wait."""
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="work", **options)(work)
    for number in (1, 2):
        pipeline.put("a", flow.rows(number), marker=("numbers", number))
    return pipeline


# --- Spark has stopped


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, [(2, 0)] * 3),
        ({"max_attempts": 1}, [(2, 0), (1, 1), (0, 2)]),
        ({"max_attempts": 2}, [(2, 0), (2, 0), (1, 1)]),
    ],
    ids=str,
)
def test_a_stop_of_spark_ends_the_run(
    flow: Flow, stopped: list[bool], options: dict[str, Any], left: list[tuple[int, int]]
) -> None:
    """If Spark stops, the run ends with its error, and all inputs wait. The attempt counts: an input that stops Spark
    each time is given up by the run after its last attempt."""

    def work(_: Any) -> NoReturn:
        stopped.append(True)
        raise ConnectionRefusedError("no Java")

    for waits, letters in left:
        pipeline = working(flow, work, **options)
        if not waits:
            assert pipeline.run(until="drained")
            assert len(pipeline.dead_letters("work")) == letters
            break
        with pytest.raises(StageFailedError) as found:
            pipeline.run(until="drained")
        words = "stage 'work' failed, SparkStoppedError: Spark has stopped (ConnectionRefusedError: no Java): nothing"
        assert str(found.value) == f"{words} was consumed: make a new session, and run the pipeline again with it"
        cause = found.value.__cause__
        assert isinstance(cause, SparkStoppedError)
        assert isinstance(cause.__cause__, ConnectionRefusedError)
        assert [each.state for each in pipeline.stats().stages] == ["failed"]
        assert (waiting(pipeline)["a"], len(pipeline.dead_letters("work"))) == (waits, letters)
        stopped.clear()
    else:
        assert working(flow, echo, **options).run(until="drained")


def test_no_attempt_begins_without_spark(flow: Flow, stopped: list[bool]) -> None:
    """If Spark has stopped before an attempt, the run ends, no function is called, and no attempt counts."""
    calls: list[Any] = []
    pipeline = working(flow, lambda frame: noted(calls, frame, frame), max_attempts=1)
    stopped.append(True)
    for _ in range(2):
        with pytest.raises(StageFailedError, match="SparkStoppedError: Spark has stopped: nothing"):
            pipeline.run(until="drained")
    stopped.clear()
    assert calls == []
    assert pipeline.run(until="drained")
    assert take(pipeline, "b") == [[1], [2]]


def test_a_function_makes_another_session_when_spark_has_stopped(flow: Flow, stopped: list[bool]) -> None:
    """If a function makes the session, the run after a stop of Spark calls it again, in the same open pipeline."""
    sessions: list[StandIn] = []

    def session() -> Any:
        sessions.append(StandIn())
        return sessions[-1]

    def work(frame: Any) -> Any:
        if len(sessions) == 1:
            stopped.append(True)
            raise ConnectionRefusedError("no Java")
        return frame

    with Pipeline(session, flow.root) as pipeline:
        pipeline.stage(source="a", target="b", name="work")(work)
        pipeline.put("a", flow.rows(1))
        with pytest.raises(StageFailedError, match="SparkStoppedError"):
            pipeline.run(until="drained")
        stopped.clear()
        for _ in range(2):
            assert pipeline.run(until="drained")
        assert (len(sessions), take(pipeline, "b")) == (2, [[1]])


def test_a_session_that_cannot_be_made_costs_no_input(flow: Flow) -> None:
    """If the function that makes the session fails, the run ends, and no attempt counts."""
    pipeline = working(flow, echo, max_attempts=1)
    pipeline.close()
    flaws = [OSError("no Java")]

    def session() -> Any:
        if flaws:
            raise flaws.pop()
        return flow.spark

    with Pipeline(session, flow.root) as pipeline:
        pipeline.stage(source="a", target="b", name="work", max_attempts=1)(echo)
        with pytest.raises(StageFailedError, match="OSError: no Java"):
            pipeline.run(until="drained")
        assert pipeline.run(until="drained")
        assert take(pipeline, "b") == [[1], [2]]


class Classic(SparkSession):
    """A classic session whose Java gives an answer, or raises an error."""

    def __init__(self, answer: bool | Exception) -> None:
        self._answer = answer

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - Spark's name
        return self

    @property
    def _jsc(self) -> Any:
        return self

    @_jsc.setter
    def _jsc(self, _: Any) -> None:
        pass

    def sc(self) -> Any:
        return self

    def isStopped(self) -> bool:  # noqa: N802 - Spark's name
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class Connected:
    """A session of Spark Connect whose server gives an answer, or raises an error."""

    __module__ = "pyspark.sql.connect.session"
    version = "4.3.0"
    """The version of the server, which PySpark asks for once."""

    def __init__(self, answer: str | Exception) -> None:
        self._answer = answer

    @property
    def conf(self) -> Connected:
        return self

    def get(self, name: str, default: str) -> str:
        """Return the answer of the server to a question for a setting."""
        assert (name, default) == ("spark.app.name", "")
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        (object.__new__(Classic), True),
        (Connected("a name"), False),
        (Connected(""), False),
        (Connected(OSError("no server")), True),
        (object(), False),
    ],
    ids=["classic without its context", "connect", "connect without a name", "connect without a server", "a stand-in"],
)
def test_a_session_that_answers_has_not_stopped(session: Any, expected: bool) -> None:
    """A session has stopped if its Java or its server says so, or does not answer."""
    assert has_stopped(session) is expected


@pytest.mark.parametrize(("answer", "expected"), [(False, False), (True, True), (OSError("no Java"), True)])
def test_a_context_that_has_stopped(answer: Any, expected: bool) -> None:
    """A classic session has stopped if its context has, or if Java does not answer."""
    session = object.__new__(Classic)
    session.__init__(answer)  # type: ignore[misc]
    assert has_stopped(session) is expected


# --- errors that are no fault of the inputs


def test_a_wrong_result_costs_no_attempt(flow: Flow) -> None:
    """A stage that returned something else gets the same inputs when it is corrected, however often it was wrong."""
    for _ in range(3):
        pipeline = working(flow, lambda _: None, max_attempts=1)
        with pytest.raises(StageResultError):
            pipeline.run(until="drained")
        assert [each.state for each in pipeline.stats().stages] == ["failed"]
    pipeline = working(flow, echo, max_attempts=1)
    assert pipeline.run(until="drained")
    assert (take(pipeline, "b"), pipeline.dead_letters("work")) == ([[1], [2]], [])


@pytest.mark.parametrize("error", [ClosedError("my queue is closed"), BrokenQueueError("my queue is broken")], ids=str)
def test_a_closed_queue_of_the_function_is_its_fault(flow: Flow, error: Exception) -> None:
    """If a queue of the function is closed or broken, the attempt fails as by any other error."""

    def work(_: Any) -> NoReturn:
        raise error

    pipeline = working(flow, work, max_attempts=2)
    assert pipeline.run(until="drained")
    found = [(each.error, each.message, each.attempts) for each in pipeline.dead_letters("work")]
    assert found == [(type(error).__name__, str(error), 2)] * 2


def test_a_closed_pipeline_costs_no_attempt(flow: Flow, caplog: pytest.LogCaptureFixture) -> None:
    """If a queue of the pipeline is closed meanwhile, the run ends with that error, and the inputs wait."""
    caplog.set_level(logging.ERROR)
    pipeline = working(flow, lambda _: pipeline.close(), max_attempts=1)
    with pytest.raises(ClosedError):
        pipeline.run(until="drained")
    assert waiting(working(flow, echo, max_attempts=1)) == {"a": 2}


def test_a_broken_queue_of_the_pipeline_ends_the_run(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a queue of the pipeline is broken, the run ends with that error, also with ``max_attempts``."""
    patches: list[pytest.MonkeyPatch] = []

    def work(_: Any) -> NoReturn:
        stats = PersistentQueue.stats
        patches[0].setattr(PersistentQueue, "stats", lambda queue: replace(stats(queue), broken=True))
        raise BrokenQueueError("injected")

    pipeline = working(flow, work, max_attempts=2)
    with monkeypatch.context() as patch, pytest.raises(BrokenQueueError, match="injected"):
        patches.append(patch)
        pipeline.run(until="drained")
    assert (waiting(pipeline), pipeline.dead_letters("work")) == ({"a": 2}, [])


def test_an_error_that_ends_the_run_is_recorded(flow: Flow) -> None:
    """An attempt that raises a ``BaseException``, such as a cancelled task, counts, and the letter has its error."""

    def work(_: Any) -> NoReturn:
        raise asyncio.CancelledError("timeout of a request")

    for _ in range(2):
        pipeline = working(flow, work, max_attempts=2)
        with pytest.raises(asyncio.CancelledError):
            pipeline.run(until="drained")
        assert [each.state for each in pipeline.stats().stages] == ["failed"]
    pipeline = working(flow, echo, max_attempts=2)
    assert pipeline.run(until="drained")
    (letter,) = pipeline.dead_letters("work")
    assert (letter.error, letter.message) == ("CancelledError", "timeout of a request")
    assert take(pipeline, "b") == [[2]]


# --- results that are no DataFrames of Spark


def test_a_dataframe_of_pandas_is_named(flow: Flow) -> None:
    """A DataFrame of pandas is refused with its module, and with the method that converts it."""
    words = r"an object of type pandas\.\S*DataFrame \(convert it by spark\.createDataFrame\)"
    frame = pandas.DataFrame({"value": [1]})
    pipeline = working(flow, lambda _: frame)
    with pytest.raises(StageResultError, match=f"a DataFrame for edge 'b', not {words}: nothing was consumed"):
        pipeline.run(until="drained")
    with pytest.raises(TypeError, match=f"a stage is a DataFrame of Spark, not {words}"):
        pipeline.put("a", frame)


def test_a_failed_run_keeps_nothing_of_the_function(flow: Flow) -> None:
    """When the error of a run is dropped, so are the objects of the function that has failed, at once."""
    left: list[weakref.ref[Any]] = []

    def work(_: Any) -> NoReturn:
        large = {1}
        left.append(weakref.ref(large))
        raise OSError(f"a fault of the stage, {large}")

    pipeline = working(flow, work)
    gc.disable()
    try:
        with suppress(StageFailedError):
            pipeline.run(until="drained")
        assert [each() for each in left] == [None]
    finally:
        gc.enable()


# --- schedules and full targets


@pytest.mark.parametrize("options", [{"every": 86400.0}, {"marker": ("once", 1)}, {"marker": lambda: ("once", 1)}])
def test_a_full_target_holds_back_only_what_is_due(flow: Flow, options: dict[str, Any]) -> None:
    """A drained run with a full target is drained if the marker of the scheduled stage is recorded already."""
    pipeline = flow.make()
    pipeline.stage(target="a", name="source", max_waiting=1, **options)(lambda: flow.rows(1))
    for _ in range(2):
        assert pipeline.run(until="drained")
        assert [each.state for each in pipeline.stats().stages] == ["scheduled"]
    assert waiting(pipeline) == {"a": 1}


def test_a_scheduled_stage_that_is_due_is_blocked(flow: Flow) -> None:
    """A scheduled stage with a full target is blocked, and runs when the target has room."""
    pipeline = flow.make()
    pipeline.stage(target="a", name="source", max_waiting=1, marker=("once", 1))(lambda: flow.rows(1))
    pipeline.put("a", flow.rows(0))
    for _ in range(2):
        assert not pipeline.run(until="drained")
        assert [each.state for each in pipeline.stats().stages] == ["blocked"]
    assert take(pipeline, "a") == [[0]]
    assert [each.state for each in pipeline.stats().stages] == ["ready"]
    assert pipeline.run(until="drained")
    assert take(pipeline, "a") == [[1]]


def test_a_marker_that_is_recorded_meanwhile_ends_a_block(flow: Flow) -> None:
    """A scheduled stage is blocked no more when another thread puts a DataFrame with its marker: nothing is due."""
    pipeline = flow.make()
    pipeline.stage(target="a", name="source", max_waiting=1, marker=lambda: ("once", 1))(lambda: flow.rows(1))
    pipeline.put("a", flow.rows(0))
    states: list[str] = []

    def until() -> bool:
        """Put the DataFrame as soon as the stage is blocked, and end the run when it is not, or 20 looks later."""
        states.extend(each.state for each in pipeline.stats().stages)
        if states[-1] == "blocked":
            pipeline.put("a", flow.rows(1), marker=("once", 1))
        return ("blocked" in states and states[-1] == "scheduled") or len(states) == 20

    assert not pipeline.run(until="drained")
    assert pipeline.run(until=until)
    assert states[-1] == "scheduled"
    assert pipeline.run(until="drained")
    assert take(pipeline, "a") == [[0], [1]]

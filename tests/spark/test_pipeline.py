"""Pipelines of stages, on a stand-in for Spark: definition, transactions, failures, letters, back-pressure, the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import DiskFullError, NetworkDiskError, QueueLockedError
from persistentqueue.spark import Pipeline, PipelineDefinitionError, StageFailedError, StageHandoff
from persistentqueue.spark.pipelines import stage
from persistentqueue.spark.pipelines.edge import Edge
from persistentqueue.spark.pipelines.graph import Graph
from tests.support.disks import disk_with, using_disk
from tests.support.pipelines import Flow, echo, noted, take, waiting

# --- definition


def test_a_directory_on_a_network_file_system(flow: Flow, tmp_path: Path) -> None:
    """A pipeline there is refused; with ``network_disk=True`` it runs, and has letters, also when it opens again."""
    with using_disk(disk_with(tmp_path, "nfs4", tmp_path)):
        for options in ({}, {"network_disk": True}, {"network_disk": True}):
            pipeline = flow.make(**options)
            pipeline.stage(source="a", target="b", name="bad", max_attempts=1)(failing)
            if not options:
                with pytest.raises(NetworkDiskError, match="nfs4"):
                    pipeline.stats()
                continue
            pipeline.put("a", flow.rows(1))
            pipeline.run(until="drained")
        assert len(pipeline.dead_letters("bad")) == 2


def failing(_: Any) -> Any:
    """Fail."""
    raise ValueError("no such flight")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"source": "a", "target": "b", "name": "one"}, "a stage 'one' already"),
        ({"source": "b", "target": "a"}, "closes a circle, a > one > b > echo > a"),
        ({"source": "c", "target": "c"}, "closes a circle"),
        ({"source": "a b"}, "its source must have"),
        ({"source": "a", "target": "b.letters"}, "its target must have"),
        ({"source": ["a", "a"]}, "a source is named twice in a, a"),
        ({"source": "a", "name": "x" * 41}, "a stage's name must have"),
        ({"source": "a", "name": ""}, "a stage's name must have"),
        ({}, "neither a source nor a target"),
        ({"target": "a"}, "pass marker= or every="),
        ({"source": {"a", "b"}}, "stage 'echo': source must be a name, or a list or tuple of names, not {"),
        ({"source": None}, "source must be a name, or a list"),
        ({"source": "a", "target": 7}, "target must be a name, or a list"),
        ({"target": "a", "marker": "m"}, r"stage 'echo': marker must be a name and a version, \(str, int\), not 'm'"),
        ({"target": "a", "marker": ["m", 1]}, "marker must be a name and a version"),
        ({"target": "a", "marker": ("m", "1")}, "marker must be a name and a version"),
        ({"target": "a", "marker": ("m", -1)}, "marker must be a name of 1 to 65,535 bytes in UTF-8 and a version"),
        ({"target": "a", "marker": ("", 1)}, "marker must be a name of 1 to 65,535 bytes"),
        ({"source": "a", "every": 5}, "are for a stage without a source, but it has a"),
        ({"source": "a", "marker": ("m", 1)}, "are for a stage without a source"),
        ({"target": "a", "every": 0}, "more than 0 seconds"),
        ({"target": "a", "every": float("nan")}, "every must be a number of seconds"),
        ({"source": "a", "max_attempts": 0}, "max_attempts must be a number from 1, not 0"),
        ({"source": "a", "max_waiting": True}, "max_waiting must be"),
        ({"source": "a", "max_waiting_bytes": 1.5}, "max_waiting_bytes must be"),
        ({"source": "a", "retry_delay_seconds": -1}, "retry_delay_seconds must be"),
    ],
)
def test_a_wrong_definition_is_refused(flow: Flow, arguments: dict[str, Any], words: str) -> None:
    """A definition that contradicts itself or others names the stage and the reason, and makes no file."""
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="one")(echo)
    with pytest.raises(PipelineDefinitionError, match=words):
        pipeline.stage(**arguments)(echo)
    assert not flow.root.exists()


def test_each_edge_is_searched_once_for_circles(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage before many forks that join again is defined without a search of each of the ways behind it."""
    pipeline, forks, searched = flow.make(), 12, 0
    readers = Graph.readers

    def counted(graph: Graph, edge: str) -> list[str]:
        nonlocal searched
        searched += 1
        return readers(graph, edge)

    monkeypatch.setattr(Graph, "readers", counted)
    for at in reversed(range(forks)):
        pipeline.stage(source=[f"b{at}", f"c{at}"], target=f"a{at + 1}", name=f"join{at}")(echo)
        searched = 0
        pipeline.stage(source=f"a{at}", target=[f"b{at}", f"c{at}"], name=f"fork{at}")(echo)
    assert searched == 3 * forks
    with pytest.raises(PipelineDefinitionError, match="closes a circle"):
        pipeline.stage(source=f"a{forks}", target="a0")(echo)


def test_a_decorator_without_brackets_is_refused(flow: Flow) -> None:
    """The error says that the decorator must be called, and names the function."""
    with pytest.raises(PipelineDefinitionError, match=r"stage 'echo': .*: call the decorator, as in @pipeline.stage\("):
        flow.make().stage(echo)


def test_unknown_names_are_refused(flow: Flow) -> None:
    """A call with an edge or a stage that the pipeline does not have names those that it has."""
    pipeline = flow.make()
    with pytest.raises(PipelineDefinitionError, match="has no stage"):
        pipeline.run(until="drained")
    pipeline.stage(source="a", target="b")(echo)
    edge_calls: list[Callable[[], object]] = [
        lambda: pipeline.put("c", flow.rows()),
        lambda: pipeline.take("c").__enter__(),
    ]
    for edge_call in edge_calls:
        with pytest.raises(PipelineDefinitionError, match="no stage names an edge 'c': the edges are a, b"):
            edge_call()
    stage_calls: list[Callable[[str], object]] = [pipeline.dead_letters, pipeline.requeue, pipeline.discard]
    for stage_call in stage_calls:
        with pytest.raises(PipelineDefinitionError, match="no stage 'c': the stages are echo"):
            stage_call("c")
    with pytest.raises(PipelineDefinitionError, match="stage 'echo' takes its DataFrames"):
        pipeline.take("a").__enter__()


def test_a_stage_after_the_first_use_is_refused(flow: Flow) -> None:
    """Once the queues are open, the graph stays as it is."""
    pipeline = flow.make()
    assert pipeline.stage(source="a", target="b")(echo) is echo
    pipeline.stats()
    with pytest.raises(PipelineDefinitionError, match="the pipeline is open"):
        pipeline.stage(source="b")(echo)
    for name in ("echo", "gone"):
        with pytest.raises(PipelineDefinitionError, match="cannot be forgotten"):
            pipeline.forget(name)


@pytest.mark.parametrize(
    ("until", "parallel"), [("dry", 1), (-1, 1), (float("nan"), 1), ("drained", 0), ("drained", 1.5)]
)
def test_wrong_arguments_of_a_run_are_refused(flow: Flow, until: Any, parallel: Any) -> None:
    """``run`` checks its arguments before it opens a queue."""
    with pytest.raises(ValueError, match="must be"):
        flow.make().run(until=until, parallel=parallel)


def test_one_process_owns_a_pipeline(flow: Flow) -> None:
    """A pipeline that is open cannot be opened again, and a failed opening leaves nothing open."""
    first, second = (Pipeline(None, flow.root) for _ in range(2))
    for pipeline in (first, second):
        pipeline.stage(source="a", target="b")(echo)
    first.stats()
    with pytest.raises(QueueLockedError):
        second.stats()
    first.close()
    first.close()
    assert second.stats().edges[0].name == "a"
    second.close()


def test_a_queue_of_another_program_is_no_edge(flow: Flow) -> None:
    """A queue with a consumer that no stage is cannot be an edge."""
    with StageHandoff(flow.spark, flow.root, "a") as handoff:  # type: ignore[arg-type]
        handoff.put(flow.rows(1))
    pipeline = flow.make()
    pipeline.stage(source="a", target="b")(echo)
    with pytest.raises(ValueError, match="flow/a: this queue was made without fan_out"):
        pipeline.stats()
    with StageHandoff(flow.spark, flow.root, "a") as handoff:  # type: ignore[arg-type]
        assert len(list(handoff.waiting())) == 1


@pytest.mark.parametrize(("path", "error"), [("", ValueError), (None, TypeError), (b"flow", TypeError)])
def test_a_wrong_path_is_refused(path: Any, error: type[Exception]) -> None:
    """A path that is empty or none is refused by its name, before anything is defined."""
    with pytest.raises(error, match="path"):
        Pipeline(None, path)


@pytest.mark.parametrize("root", [None, "payloads"])
def test_a_relative_path_is_that_of_the_definition(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str | None
) -> None:
    """A pipeline stays at the paths that it had when it was made, if the process changes its working directory."""
    monkeypatch.chdir(tmp_path)
    pipeline = Pipeline(flow.spark, "flow", root)  # type: ignore[arg-type]
    pipeline.stage(source="a", target="b", name="work", max_attempts=1)(lambda _: None.no_frame)  # type: ignore[attr-defined]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    for _ in range(2):
        with pipeline:
            pipeline.put("a", flow.rows(1))
            pipeline.run(until="drained")
        monkeypatch.chdir(tmp_path)
    with pipeline:
        assert len(pipeline.dead_letters("work")) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({"elsewhere", "flow", root or "flow"})
    assert list((tmp_path / "elsewhere").iterdir()) == []


# --- runs


def test_fan_out_fan_in_and_two_readers(flow: Flow) -> None:
    """A tuple and a dict go to several targets; two sources come as two arguments; two readers get each DataFrame.

    At the end, no payload is left but those that wait.
    """
    pipeline, seen = flow.make(), []

    @pipeline.stage(source="raw", target=["small", "large"])
    def split(frame: Any) -> Any:
        return flow.rows(min(frame.values)), flow.rows(max(frame.values))

    @pipeline.stage(source=["large", "small"], target=("first", "second"))
    def swap(large: Any, small: Any) -> Any:
        return {"second": small, "first": large}

    @pipeline.stage(source="raw", name="look")
    def sink(frame: Any) -> None:
        seen.append(sorted(frame.values))

    for number in range(3):
        assert pipeline.put("raw", flow.rows(number, number + 10))
    assert pipeline.run(until="drained", parallel=3)
    assert seen == [[0, 10], [1, 11], [2, 12]]
    assert flow.payloads() == {"first": 3, "second": 3}
    assert take(pipeline, "first") == [[10], [11], [12]]
    assert take(pipeline, "second") == [[0], [1], [2]]
    assert flow.payloads() == {}
    assert [each.runs for each in pipeline.stats().stages] == [3, 3, 3]


def test_fan_in_waits_for_each_source(flow: Flow) -> None:
    """Without a DataFrame of each source a stage does not run, and takes nothing."""
    pipeline = flow.make()

    @pipeline.stage(source=["a", "b"], target="c")
    def both(a: Any, b: Any) -> Any:
        return flow.rows(*a.values, *b.values)

    pipeline.put("a", flow.rows(1))
    pipeline.put("a", flow.rows(2))
    assert pipeline.run(until="drained")
    assert waiting(pipeline) == {"a": 2}
    pipeline.put("b", flow.rows(10))
    assert pipeline.run(until="drained")
    assert (waiting(pipeline), take(pipeline, "c")) == ({"a": 1, "c": 1}, [[1, 10]])
    assert flow.payloads() == {"a": 1}


def test_two_stages_write_to_one_edge(flow: Flow) -> None:
    """The results of several stages wait at one edge."""
    pipeline = flow.make()
    for name in ("one", "two"):
        pipeline.stage(source=name, target="all", name=f"copy-{name}")(echo)
    pipeline.put("one", flow.rows(1))
    pipeline.put("two", flow.rows(2))
    pipeline.run(until="drained")
    assert sorted(take(pipeline, "all")) == [[1], [2]]


def test_a_marker_lets_a_source_run_once(flow: Flow) -> None:
    """A stage without a source runs once for each version of its marker, also after the pipeline was opened again.

    A function may give the marker. A marker that was put to the edge counts, too.
    """
    calls: list[str] = []
    for version, expected in ((1, ["first", "second"]), (1, []), (2, ["second"])):
        pipeline = flow.make()
        pipeline.stage(target="a", marker=("first", 1), name="first")(lambda: noted(calls, "first", flow.rows(1)))

        def marker(version: int = version) -> tuple[str, int]:
            return "second", version

        pipeline.stage(target="a", marker=marker, name="second")(lambda: noted(calls, "second", flow.rows(2)))
        calls.clear()
        assert pipeline.run(until="drained")
        assert sorted(calls) == expected
        pipeline.close()
    pipeline = flow.make()
    pipeline.stage(target="a", marker=("third", 7), name="third")(lambda: pytest.fail("it ran"))
    pipeline.put("a", flow.rows(4), marker=("third", 7))
    assert pipeline.run(until="drained")
    assert sorted(take(pipeline, "a")) == [[1], [2], [2], [4]]


@pytest.mark.parametrize("targets", [["b", "a"], ["b"], ["c", "b"]], ids="".join)
def test_a_source_with_other_targets_does_not_run_again(flow: Flow, targets: list[str]) -> None:
    """A stage without a source does not run again when its targets come in another order, go, or come."""
    pipeline = flow.make()
    pipeline.stage(target=["a", "b"], marker=("m", 1), name="both")(lambda: (flow.rows(1), flow.rows(2)))
    assert pipeline.run(until="drained")
    pipeline = flow.make()
    pipeline.stage(target=targets, marker=("m", 1), name="both")(lambda: pytest.fail("it ran"))
    assert pipeline.run(until="drained")
    assert pipeline.stats().edges[targets.index("b")].waiting == 1


def test_a_marker_of_one_target_counts_for_all(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker that only one target has recorded, as by an older version, is recorded in the other ones, too.

    A target that has no space for the record gets it later.
    """
    errors = [DiskFullError("here", 28, "injected")]
    record = Edge.record

    def record_later(edge: Edge, marker: tuple[str, int]) -> None:
        if errors:
            raise errors.pop()
        record(edge, marker)

    monkeypatch.setattr(Edge, "record", record_later)
    for targets in (["b", "a"], ["b", "a"], ["b"]):
        pipeline = flow.make()
        pipeline.stage(target=targets, marker=("m", 1), name="both")(lambda: pytest.fail("it ran"))
        if "a" in targets:
            pipeline.put("a", flow.rows(1), marker=("m", 1))
        assert pipeline.run(until="drained")
    assert (errors, waiting(pipeline)) == ([], {})


def test_a_marker_belongs_to_one_stage(flow: Flow) -> None:
    """Two stages without a source cannot have one name of markers at one edge, since one of them would never run.

    A name that a function gives is refused when the function gives it.
    """
    pipeline, made = flow.make(), flow.rows(1)
    pipeline.stage(target=["a", "b"], marker=("m", 1), name="one")(lambda: (made, made))
    pipeline.stage(target="c", marker=("m", 1), name="elsewhere")(lambda: made)
    with pytest.raises(PipelineDefinitionError, match="stages 'one' and 'two' have the marker 'm' at edge 'b', so"):
        pipeline.stage(target=["d", "b"], marker=("m", 2), name="two")(lambda: (made, made))
    pipeline.stage(target="a", marker=lambda: ("m", 1), name="three")(lambda: made)
    with pytest.raises(StageFailedError, match="stages 'one' and 'three' have the marker 'm' at edge 'a', so"):
        pipeline.run(until="drained")
    assert list(pipeline._graph.stages) == ["one", "elsewhere", "three"]


def test_a_marker_that_another_thread_puts_meanwhile(flow: Flow) -> None:
    """If the marker of a stage is recorded while its function runs, the result is dropped with its payload."""
    pipeline = flow.make()

    @pipeline.stage(target="a", marker=("m", 1))
    def slow() -> Any:
        pipeline.put("a", flow.rows(1), marker=("m", 1))
        return flow.rows(2)

    assert pipeline.run(until="drained")
    assert flow.payloads() == {"a": 1}
    assert take(pipeline, "a") == [[1]]


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([(1000, 60, 1), (1019, 60, 0), (1081, 60, 1), (1010, 60, 0)], id="once in each period"),
        pytest.param(
            [(7000, 60, 1), (7100, 3600, 0), (7201, 3600, 1), (7202, 60, 0), (7260, 60, 1)], id="another period"
        ),
    ],
)
def test_a_schedule_runs_once_in_each_period(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, runs: list[tuple[int, int, int]]
) -> None:
    """A stage with ``every`` runs once in each period of the clock, also after the pipeline was opened again.

    If ``every`` changes, it runs again when a period of the new length begins.
    """
    expected = []
    for now, every, number in runs:
        monkeypatch.setattr("persistentqueue.spark.pipelines.stage.time.time_ns", lambda now=now: now * 10**9)
        pipeline = flow.make()
        pipeline.stage(target="a", every=every, name="tick")(lambda now=now: flow.rows(now))
        assert pipeline.run(until="drained")
        expected += [[now]] * number
        pipeline.close()
    pipeline = flow.make()
    pipeline.stage(target="a", every=60, name="tick")(lambda: pytest.fail("it ran"))
    assert take(pipeline, "a") == expected


def test_a_schedule_follows_the_clock_of_the_system(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A period that begins while the stage runs, or while the machine sleeps, is not left out."""
    now, ticks, looks = [59], [], [0]
    monkeypatch.setattr("persistentqueue.spark.pipelines.stage.time.time_ns", lambda: now[0] * 10**9)
    pipeline = flow.make()

    @pipeline.stage(target="a", every=60)
    def tick() -> Any:
        ticks.append(now[0])
        now[0] += 2
        return flow.rows(1)

    def is_over() -> bool:
        """Let the machine sleep for an hour behind the second tick, and end behind the next one, or after 20 looks."""
        looks[0] += 1
        now[0] += 3600 * (len(ticks) == 2)
        return len(ticks) >= 3 or looks[0] == 20

    assert pipeline.run(until=lambda: len(ticks) >= 2)
    assert ticks == [59, 61]
    assert pipeline.run(until=is_over)
    assert ticks == [59, 61, 3663]


def test_a_run_until_drained_ends_beside_a_stage_that_is_always_due(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``until="drained"``, periods that begin while their stage runs are left to the next run: else a stage that
    takes longer than its period would keep the run from its end."""
    now, ticks = [59], []
    monkeypatch.setattr("persistentqueue.spark.pipelines.stage.time.time_ns", lambda: now[0] * 10**9)
    pipeline = flow.make()

    @pipeline.stage(target="a", every=60)
    def tick() -> Any:
        ticks.append(now[0])
        now[0] += 100
        return flow.rows(1)

    assert pipeline.run(until="drained")
    assert ticks == [59]
    assert pipeline.run(until="drained")
    assert ticks == [59, 159]


def test_a_schedule_runs_again_in_one_run(flow: Flow) -> None:
    """In a run without an end, a schedule runs in one period after the other."""
    ticks: list[int] = []
    pipeline = flow.make()
    pipeline.stage(target="a", every=0.05, name="tick")(lambda: noted(ticks, 1, flow.rows(1)))
    assert pipeline.run(until=lambda: len(ticks) >= 3)
    assert len(take(pipeline, "a")) >= 3


def test_parallel_stages_run_at_the_same_time_within_the_bound(flow: Flow) -> None:
    """With ``parallel=2``, two of three stages run at the same time, and never more."""
    pipeline, meeting = flow.make(), threading.Barrier(2, timeout=60)
    running, most, lock = 0, 0, threading.Lock()

    def work(frame: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if frame.values != [3]:
            meeting.wait()
        with lock:
            running -= 1
        return frame

    for number in (3, 2, 1):  # the first one of equals runs first: the last one is alone
        pipeline.stage(source=f"a{number}", target=f"b{number}", name=f"work{number}")(work)
    pipeline.put("a1", flow.rows(1))
    pipeline.put("a2", flow.rows(2))
    pipeline.put("a3", flow.rows(3))
    assert pipeline.run(until="drained", parallel=2)
    assert most == 2
    assert [take(pipeline, f"b{number}") for number in (1, 2, 3)] == [[[1]], [[2]], [[3]]]


def test_progress_names_the_stage(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """``progress`` is called with the name of the stage."""
    pipeline, seen = flow.make(), []
    pipeline.stage(source="a", target="b")(echo)
    pipeline.put("a", flow.rows(1))

    class reporting:  # noqa: N801
        def __init__(self, spark: Any, report: Callable[[Any], None] | None) -> None:
            self.report = report

        def __enter__(self) -> None:
            if self.report is not None:
                self.report((1, 2))

        def __exit__(self, *exception: object) -> None:
            pass

    monkeypatch.setattr(stage, "reporting", reporting)
    pipeline.run(until="drained", progress=lambda name, found: seen.append((name, found)))
    assert seen == [("echo", (1, 2))]


def test_a_notebook_shows_a_pipeline_without_opening_it(flow: Flow) -> None:
    """The picture of a pipeline opens and makes nothing: it shows the stages, and their states if it is open."""
    pipeline = flow.make()
    assert "The pipeline has no stage" in pipeline._repr_html_()
    pipeline.stage(source="a", target="b", name="work")(echo)
    picture = pipeline._repr_html_()
    assert [picture.count(f">{name}</text>") for name in ("a", "work", "b")] == [1, 1, 1]
    assert "waiting" not in picture
    assert not flow.root.exists()
    pipeline.put("a", flow.rows(1))
    assert "1 waiting" in pipeline._repr_html_()

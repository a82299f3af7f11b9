"""Damage in the queue of a hand-off, or of a pipeline, on a stand-in for Spark: it costs its own manifests alone."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import pytest

from persistentqueue import ClosedError, CorruptionError, PersistentQueue, repair
from persistentqueue.spark import Pipeline, PipelineDefinitionError, StageFailedError, StageHandoff, stages
from persistentqueue.spark import handoff as handoffs
from persistentqueue.spark.pipelines.store import Store
from tests.support.pipelines import Flow, Rows, StandIn, echo, take, waiting


def damage(queue: Path) -> None:
    """Change a byte of the first item of a closed queue."""
    (segment,) = (queue / "data").iterdir()
    at = segment.read_bytes().index(b"persistentqueue stage")
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"X")


def names(payloads: Path) -> list[str]:
    """Return the suffixes of the payloads."""
    return sorted(name.partition(".")[2] for name in os.listdir(payloads))


def put(root: Path, *numbers: int, **options: Any) -> None:
    """Hand over a DataFrame for each number."""
    with StageHandoff(StandIn(), root, "h", **options) as handoff:  # type: ignore[arg-type]
        if options:
            handoff.subscribe("one")
            handoff.subscribe("two")
        for number in numbers:
            handoff.put(Rows(StandIn(), [number]))


def taken(handoff: StageHandoff, subscription: str | None = None) -> list[Any]:
    """Take all stages; an error of damage has the place of its stage."""
    found: list[Any] = []
    while True:
        try:
            with handoff.take(subscription=subscription) as stage:
                if stage is None:
                    return found
                found.append(stage.df.collect()[0][0])
        except CorruptionError:
            found.append("damage")


@pytest.mark.damages
def test_a_damaged_manifest_costs_its_own_stage(tmp_path: Path) -> None:
    """A hand-off with a damaged manifest opens and keeps all payloads; ``take`` raises once, and goes on behind it."""
    put(tmp_path, 1, 2, 3)
    damage(tmp_path / "h")
    for _ in range(2):
        with StageHandoff(StandIn(), tmp_path, "h"):  # type: ignore[arg-type]
            assert names(tmp_path / "h+payload") == ["", "", ""]
    with StageHandoff(StandIn(), tmp_path, "h") as handoff:  # type: ignore[arg-type]
        assert taken(handoff) == ["damage", 2, 3]


@pytest.mark.damages
def test_a_damaged_manifest_of_several_consumers(tmp_path: Path) -> None:
    """Each subscription gets the error once, and all stages behind it; their payloads stay while damage is there."""
    put(tmp_path, 1, 2, 3, fan_out=True)
    damage(tmp_path / "h")
    with StageHandoff(StandIn(), tmp_path, "h") as handoff:  # type: ignore[arg-type]
        assert taken(handoff, "one") == ["damage", 2, 3]
        assert taken(handoff, "two") == ["damage", 2, 3]
        assert names(tmp_path / "h+payload") == ["", "", ""]
    with StageHandoff(StandIn(), tmp_path, "h") as handoff:  # type: ignore[arg-type]
        handoff.unsubscribe("one")
        assert taken(handoff, "two") == ["damage"]


def test_a_repair_keeps_the_payload_of_a_lost_manifest(tmp_path: Path) -> None:
    """The opening behind a repair adds ``.lost`` to the name of a payload whose manifest was lost, and deletes none.

    Without the files that the repair has kept, it removes what a killed put has left, as usual.
    """
    put(tmp_path, 1, 2)
    damage(tmp_path / "h")
    assert repair(tmp_path, "h").lost == ((0, 1),)
    with StageHandoff(StandIn(), tmp_path, "h") as handoff:  # type: ignore[arg-type]
        assert names(tmp_path / "h+payload") == ["", "lost"]
        assert taken(handoff) == [2]
    assert names(tmp_path / "h+payload") == ["lost"]
    (lost,) = (tmp_path / "h+payload").iterdir()
    for file in tmp_path.glob("h/*/*.damaged"):
        file.unlink()
    lost.rename(lost.with_suffix(""))
    put(tmp_path)
    assert names(tmp_path / "h+payload") == []


@pytest.mark.parametrize("error", [PermissionError("no right"), OSError("the file system does not rename it")], ids=str)
def test_a_payload_that_cannot_be_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: OSError
) -> None:
    """An opening that cannot rename such payloads warns of each one and keeps it; the next opening tries again."""

    def refuse(*_: object) -> NoReturn:
        raise error

    put(tmp_path, 1, 2, 3)
    for _ in range(2):
        damage(tmp_path / "h")
    assert repair(tmp_path, "h").lost == ((0, 2),)
    with monkeypatch.context() as patch:
        patch.setattr("persistentqueue.spark.payload._Local.set_aside", refuse)
        put(tmp_path)
    assert names(tmp_path / "h+payload") == ["", "", ""]
    warnings = [each.getMessage() for each in caplog.records if each.name == "persistentqueue.spark"]
    assert [f"{tmp_path / 'h+payload'}/stage-" in each and str(error) in each for each in warnings] == [True, True]
    put(tmp_path)
    assert names(tmp_path / "h+payload") == ["", "lost", "lost"]


@pytest.mark.damages
@pytest.mark.parametrize("options", [{}, {"max_attempts": 1}], ids=str)
def test_a_damaged_edge_costs_its_own_input(flow: Flow, options: dict[str, Any]) -> None:
    """A pipeline with a damaged manifest opens, shows itself, and gives none of the inputs behind it up.

    The first run ends with the damage. The next one takes the inputs behind it.
    """
    for is_damaged in (False, True):
        pipeline = flow.make()
        pipeline.stage(source="a", target="b", name="work", max_waiting_bytes=10**6, **options)(echo)
        if not is_damaged:
            for number in range(3):
                pipeline.put("a", flow.rows(number))
            flow.close()
            damage(flow.root / "a")
    assert pipeline.stats().edges[0].waiting_bytes > 0
    with pytest.raises(StageFailedError, match=r"CorruptionError: .* damaged at offset"):
        pipeline.run(until="drained")
    assert pipeline.run(until="drained")
    assert pipeline.dead_letters("work") == []
    assert take(pipeline, "b") == [[1], [2]]
    assert flow.payloads() == {"a": 3}


@pytest.mark.damages
def test_inputs_behind_damage_are_not_left_silently(flow: Flow) -> None:
    """A pipeline without an edge where inputs wait is refused, also if the first of them is damaged."""
    pipeline = flow.make()
    pipeline.stage(source="old", target="b", name="work")(echo)
    for number in range(2):
        pipeline.put("old", flow.rows(number))
    flow.close()
    damage(flow.root / "old")
    pipeline = flow.make()
    pipeline.stage(source="new", target="b", name="work")(echo)
    with pytest.raises(PipelineDefinitionError, match="edge 'old' keeps"):
        pipeline.run(until="drained")


def fail(_: Any) -> NoReturn:
    raise ValueError("a flaw")


def flawed(flow: Flow) -> Pipeline:
    """Return a pipeline whose stage gives its inputs up."""
    pipeline = flow.make()
    pipeline.stage(source="a", target="b", name="work", max_attempts=1)(fail)
    return pipeline


def test_a_repair_of_letters_keeps_the_payloads_of_the_lost_ones(flow: Flow) -> None:
    """A payload that only a lost letter has named gets ``.lost`` behind its name."""
    pipeline = flawed(flow)
    for number in range(2):
        pipeline.put("a", flow.rows(number))
    assert pipeline.run(until="drained")
    flow.close()
    damage(flow.root / "work.letters")
    assert waiting(flawed(flow)) == {}
    assert names(flow.root / "a+payload") == ["", ""]
    flow.close()
    assert repair(flow.root, "work.letters").lost == ((0, 1),)
    assert len(flawed(flow).dead_letters("work")) == 1
    assert names(flow.root / "a+payload") == ["", "lost"]


# --- payloads that nothing needs


def test_a_closed_handoff_runs_no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put to a closed hand-off runs no job. If it is closed meanwhile, the payload is removed."""
    spark = StandIn()
    handoff = StageHandoff(spark, tmp_path, "h")  # type: ignore[arg-type]
    write = stages.write

    def write_and_close(*arguments: Any, **named: Any) -> Any:
        manifest = write(*arguments, **named)
        handoff.close()
        return manifest

    monkeypatch.setattr(handoffs, "write", write_and_close)
    for _ in range(2):
        with pytest.raises(ClosedError, match="the queue is closed"):
            handoff.put(Rows(spark, [1]))
        assert (spark.writes, os.listdir(tmp_path / "h+payload")) == (1, [])


def test_letters_of_an_edge_that_is_gone_are_discarded_with_their_payloads(flow: Flow) -> None:
    """``discard`` removes the payloads of letters also at an edge that the pipeline lacks, if it can be opened."""
    for is_open in (False, True):
        pipeline = flawed(flow)
        pipeline.put("a", flow.rows(1))
        assert pipeline.run(until="drained")
        pipeline = flow.make()
        pipeline.stage(source="c", target="b", name="other")(echo)
        pipeline.stats()
        if is_open:
            with StageHandoff(flow.spark, flow.root, "a"):  # type: ignore[arg-type]
                assert pipeline.discard("work") == 1
            assert flow.payloads() == {"a": 1}
        else:
            assert pipeline.discard("work") == 1
            assert flow.payloads() == {}
    assert waiting(flawed(flow)) == flow.payloads() == {}


@pytest.mark.parametrize("is_open", [False, True])
def test_letters_that_appear_beside_an_open_pipeline_keep_their_payloads(flow: Flow, is_open: bool) -> None:
    """``discard`` removes no payload that letters need whose queue was not there when the pipeline was opened."""
    pipeline = flow.make()
    for name in ("one", "two"):
        pipeline.stage(source="a", target="b", name=name, max_attempts=1)(fail)
    pipeline.put("a", flow.rows(1))
    assert pipeline.run(until="drained")
    pipeline = flow.make()
    letters, elsewhere = flow.root / "two.letters", flow.root.parent / "two.letters"
    letters.rename(elsewhere)
    pipeline.stage(source="c", target="b", name="other")(echo)
    pipeline.stats()
    elsewhere.rename(letters)
    with PersistentQueue(flow.root, "two.letters") if is_open else nullcontext():
        assert pipeline.discard("one") == 1
    assert flow.payloads() == {"a": 1}


def test_letters_of_a_pipeline_that_ends_while_another_one_is_opened(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline that is opened while another one makes its first letter and ends has this letter, with its payload."""
    ending, opening = flawed(flow), Pipeline(flow.spark, flow.root)  # type: ignore[arg-type]
    ending.put("a", flow.rows(1))
    leave = Store._leave_inputs

    def end(store: Store, forgotten: Any) -> None:
        leave(store, forgotten)
        ending.run(until="drained")
        ending.close()

    monkeypatch.setattr(Store, "_leave_inputs", end)
    opening.stage(source="a", target="b", name="work")(echo)
    with opening:
        assert len(opening.dead_letters("work")) == 1
        assert flow.payloads() == {"a": 1}
        assert opening.requeue("work") == 1
        assert opening.run(until="drained")
        assert take(opening, "b") == [[1]]

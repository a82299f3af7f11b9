"""Tests of the programs of the section "Spark": their measurements at small sizes, and their tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .. import harness
from ..harness import ROOT, Row
from ..report import programs
from ..studies import manifests, pipelines, planning, soak, spark_rows, stages, streams, typed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

is_rehearsal = pytest.mark.skipif(
    not os.environ.get("EVERY_PLACE"), reason="a rehearsal of make perf: make kills has it"
)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Start one local Spark for all tests of this file. A session that existed before is not stopped."""
    from pyspark.sql import SparkSession

    from persistentqueue.spark import local_session

    is_ours = SparkSession.getActiveSession() is None
    session = local_session("perf")
    yield session
    if is_ours:
        session.stop()


@pytest.mark.parametrize("name", programs.NAMES)
def test_the_document_has_the_table_of_the_results(name: str) -> None:
    """The document contains the table of the committed results, or empty markers if there are none."""
    document = (ROOT / "perf" / "results" / "spark.md").read_text(encoding="utf-8")
    path = ROOT / "perf" / "results" / f"{name}.json"
    if path.exists():
        assert programs.table(name, json.loads(path.read_text(encoding="utf-8"))) in document
    assert document.index(f"<!-- {name} -->\n") < document.index(f"<!-- end of {name} -->\n")


def test_a_line_is_judged_by_the_first_it_is_compared_with() -> None:
    """The bar limits the median ratio to the first of the others, from below or from above."""
    ours, others = [1.0, 3.0, 2.0], {"one": [2.0, 6.0, 1.0], "two": [1.0, 1.0, 1.0]}
    assert programs.compared("what", "ms", ours, others, 0.5, True).met == "yes"
    line = programs.compared("what", "ms", ours, others, 0.4, False)
    assert line == Row(
        "what",
        "2 ms",
        "one 2 ms · two 1 ms",
        "0.50 (0.50–2.00) × one · 2.00 (1.00–3.00) × two",
        "0.4 × one at most",
        "**no**",
    )
    assert programs.compared("what", "ms", ours, others, None, True)[-2:] == ("", "")


def test_everybody_has_as_many_turns() -> None:
    """The order of the contenders is reversed in each round."""
    assert list(programs.in_turn(3, 2)) == [2, 1, 0, 0, 1, 2]


def test_manifests_are_measured(tmp_path: Path) -> None:
    """There is a line for each number of parts, and a bar on each line except the first."""
    lines = list(manifests.rows(tmp_path, (1, 10), 1))
    assert [line.bar for line in lines] == ["", f"{manifests.BAR:g} × at most"]


def test_planning_is_measured(tmp_path: Path) -> None:
    """There is a line with the owner at work and a line without an owner."""
    lines = list(planning.rows(tmp_path, tmp_path, 50, 1))
    assert [line.what.rpartition(", ")[2] for line in lines] == ["beside the owner", "without an owner"]


def test_growth_is_told() -> None:
    """Steady growth is reported in spite of one outlier, and a constant value has growth 0."""
    samples = [soak.Sample(10.0 * n, 100.0 + n, 5.0, 2, 9.0, 0.0, 2.0, 9.0, n) for n in range(10)]
    samples[4] = samples[4]._replace(user_mib=1000.0)
    assert soak.grown(samples, "user_mib") == pytest.approx(9.0)
    assert soak.grown(samples, "worker_mib") == soak.grown(samples[:1], "user_mib") == 0.0


@pytest.mark.spark
@is_rehearsal
def test_stages_beside_parquet(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hand-off and plain Parquet take turns. Only the line of both directions has a bar, and bar 0 is not met."""
    monkeypatch.setattr(stages, "BAR", 0.0)
    put, take, both = stages.rows(spark, tmp_path, 1000, 1)
    assert "put" in put.what and "take" in take.what and not put.met
    assert (both.bar, both.met) == ("0 × at most", harness.met(False))
    block = programs.table("stages", {"command": "python -m perf.studies.stages", "rows": [put, take, both]})
    assert block.startswith("<!-- stages -->\n") and block.endswith("<!-- end of stages -->")
    assert block.count("× Parquet") == 3


@pytest.mark.spark
@is_rehearsal
def test_a_pipeline_beside_parquet(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that does nothing and plain Parquet take turns; a look for work is measured. Bar 0 is not met."""
    monkeypatch.setattr(pipelines, "BAR", 0.0)
    monkeypatch.setattr(pipelines, "LOOK_MS_BAR", 0.0)
    stage, look = pipelines.rows(spark, tmp_path, 1000, 1, 3)
    assert "does nothing" in stage.what and "without work" in look.what
    assert [line.met for line in (stage, look)] == [harness.met(False)] * 2
    assert list(tmp_path.glob("*/*+payload/*")) == []


@pytest.mark.spark
@is_rehearsal
def test_rows_beside_files(spark: SparkSession, tmp_path: Path) -> None:
    """Each format returns all rows for each number of partitions. Four of the nine steps have a bar."""
    found = spark_rows.measure(spark, tmp_path, 800, 1, (1, 2))
    lines = list(spark_rows.lines(found, 800))
    has_bar = [True, False, True, True, False, False, True, False, False]
    assert [line.met != "" for line in lines] == [each for each in has_bar for _ in range(2)] + [False] * 2


@pytest.mark.spark
@is_rehearsal
def test_a_part_of_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    """There are two lines on a count, and lines on the bytes and on the time for each column that can be filtered."""
    lines = list(spark_rows.filtered(spark, tmp_path, 20_000, 1))
    assert [line.what.split("by ")[1] for line in lines] == [
        "rows=blocks, in 1 task: time",
        "rows=blocks, without Spark: time",
        "offset: bytes read",
        "offset: time",
        "timestamp: bytes read",
        "timestamp: time",
    ]
    assert [line.met != "" for line in lines] == [False, False, True, False, True, False]


@pytest.mark.spark
@is_rehearsal
def test_typed_rows_beside_values(spark: SparkSession, tmp_path: Path) -> None:
    """Each format returns its rows. Only the lines of Arrow have a bar."""
    found = typed_rows.measure(spark, tmp_path, 800, 1, (1, 2))
    lines = list(typed_rows.lines(found, 800))
    assert [line.met != "" for line in lines] == [True] * 4 + [False] * 8


@pytest.mark.spark
@is_rehearsal
def test_batches_beside_files(spark: SparkSession, tmp_path: Path) -> None:
    """There is a line with an owner, a line without one, and a line for each step of a batch."""
    found = streams.measure(spark, tmp_path, 1, 10, 1, 1)
    lines = list(streams.lines(found, 10))
    assert len(lines) == 2 + len(streams.STEPS) - 1
    assert {line.bar for line in lines[:2]} == {"1.25 × Parquet at most"}
    assert all(batch["triggerExecution"] > 0 for rounds in found.values() for batch in rounds)


@pytest.mark.spark
@is_rehearsal
def test_a_soak_ends_with_each_item_once(spark: SparkSession, tmp_path: Path) -> None:
    """A soak of two seconds moves items, takes samples, and yields all lines."""
    work = soak.Soak(spark, tmp_path)
    work.run(2.0, 0.5, 200.0)
    assert work.taken > 0 and len(work.samples) > 1
    assert work.samples[-1].java_mib > work.samples[-1].worker_mib > 0
    assert work.samples[-1].workers > 1
    assert [line.what.split()[0] for line in soak.lines(work) if line.bar] == [
        "Memory",
        "Memory",
        "latestOffset",
        "Files",
    ]
    assert [line.met != "" for line in soak.lines(work)] == [True, True, True, False, False, True, True]

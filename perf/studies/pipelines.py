"""``python -m perf.studies.pipelines``: measures a stage that does nothing beside Spark alone, and the look for work.

The stage takes a DataFrame from one edge and puts it to the next. Beside it, Spark reads a Parquet file and writes its
rows to another one, with ``spark.read.parquet`` and ``df.write.parquet``. Both ways copy the same rows, in turns, with
one Spark and the same number of tasks. The run of the pipeline includes all it does: it holds the input, syncs and
measures each file, commits over both queues, and removes the input.

A look for work is a run of a drained pipeline of ten stages: it looks at all of them and ends. Beside it,
ten hand-offs are asked for a DataFrame and have none.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from .. import harness
from ..harness import Row
from ..report import programs
from .stages import frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 10_000_000
BAR = 1.2
LOOK_MS_BAR = 5.0
STAGES, LOOKS = 10, 200


def _plain(spark: SparkSession, directory: Path, rows: int) -> float:
    source, target = (f"file://{directory / name}" for name in ("source", "target"))
    frame(spark, rows).write.parquet(source)
    begun = time.perf_counter()
    spark.read.parquet(source).write.parquet(target)
    seconds = time.perf_counter() - begun
    for name in ("source", "target"):
        shutil.rmtree(directory / name)
    return seconds


def _stage(spark: SparkSession, directory: Path, rows: int) -> float:
    from persistentqueue.spark import Pipeline

    pipeline = Pipeline(spark, directory / "pipeline")
    pipeline.stage(source="source", target="target", name="nothing")(lambda df: df)
    with pipeline:
        pipeline.put("source", frame(spark, rows))
        begun = time.perf_counter()
        assert pipeline.run(until="drained")
        seconds = time.perf_counter() - begun
        (edge,) = [edge for edge in pipeline.stats().edges if edge.waiting]
        assert edge.name == "target"
        with pipeline.take("target") as taken:
            assert taken is not None
            assert taken.manifest.rows == rows
    shutil.rmtree(directory / "pipeline")
    return seconds


def _looks(directory: Path, count: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each look of a pipeline, and of each look at as many hand-offs."""
    from persistentqueue.spark import Pipeline, StageHandoff

    pipeline = Pipeline(None, directory / "looks")
    for number in range(STAGES):
        pipeline.stage(source=f"edge-{number}", target=f"edge-{number + 1}", name=f"nothing-{number}")(lambda df: df)
    ours, others = [], []
    with pipeline, ExitStack() as opened:
        handoffs = [opened.enter_context(StageHandoff(None, directory, f"queue-{number}")) for number in range(STAGES)]
        pipeline.run(until="drained")
        for _ in range(count):
            begun = time.perf_counter()
            pipeline.run(until="drained")
            looked = time.perf_counter()
            for handoff in handoffs:
                with handoff.take() as taken:
                    assert taken is None
            ours.append(looked - begun)
            others.append(time.perf_counter() - looked)
    return ours, others


def rows(spark: SparkSession, directory: Path, count: int, rounds: int, looks: int) -> Iterator[Row]:
    """Yield a line for a stage that does nothing, and a line for the look for work."""
    directory = directory.resolve()
    ways = (_stage, _plain)
    for way in ways:  # Java compiles the code while it runs
        way(spark, directory, max(count // 10, 1000))
    found: list[list[float]] = [[], []]
    for which in programs.in_turn(len(ways), rounds):
        found[which].append(ways[which](spark, directory, count))
    ratios = [one / other for one, other in zip(*found, strict=True)]
    ours, plain = (f"{median(seconds):.2f} s" for seconds in found)
    yield Row(
        f"{count:,} rows: a stage that does nothing",
        ours,
        f"Parquet {plain}",
        f"{harness.spread(ratios)} × Parquet",
        f"{BAR:g} × at most",
        harness.met(median(ratios) <= BAR),
    )
    mine, theirs = _looks(directory, looks)
    ratios = [one / other for one, other in zip(mine, theirs, strict=True)]
    yield Row(
        f"a look at {STAGES} stages without work",
        f"{median(mine) * 1e3:.2f} ms",
        f"{STAGES} hand-offs {median(theirs) * 1e3:.2f} ms",
        f"{harness.spread(ratios)} × {STAGES} hand-offs",
        f"{LOOK_MS_BAR:g} ms at most",
        harness.met(median(mine) * 1e3 <= LOOK_MS_BAR),
    )


def main() -> None:
    """Measure and print the table. With ``--results``, also write JSON."""
    parser = programs.parser("pipelines", __doc__)
    parser.add_argument("--rows", type=harness.at_least_one, default=ROWS, help=f"rows of a DataFrame ({ROWS})")
    parser.add_argument("--rounds", type=harness.at_least_one, default=5, help="rounds of each way (5)")
    parser.add_argument("--looks", type=harness.at_least_one, default=LOOKS, help=f"looks for work ({LOOKS})")
    options = parser.parse_args()
    programs.run_on_spark(
        "pipelines",
        options,
        lambda spark, directory: rows(spark, directory, options.rows, options.rounds, options.looks),
    )


if __name__ == "__main__":
    main()

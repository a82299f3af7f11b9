"""``python -m perf.studies.stages``: measures a hand-off of whole DataFrames beside plain Parquet.

Both ways write the same rows and read them back once, in turns, with one Spark and the same number of tasks. Plain
Parquet uses ``df.write.parquet`` and ``spark.read.parquet``. The hand-off uses ``put`` and ``take``. ``put`` also syncs
and measures every file and directory, and commits the manifest. ``take`` also checks the files and removes them. The
rows that are read are discarded.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from .. import harness
from ..harness import Row
from ..report import programs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 10_000_000
BAR = 1.2


def frame(spark: SparkSession, rows: int) -> DataFrame:
    """Return rows of a number, a fraction and a text. The tasks that write the rows also make them."""
    columns = ("id", "rand(7) AS fraction", "concat('carrier ', id % 1000) AS name")
    return spark.range(0, rows, 1, 4).selectExpr(*columns)


def _plain(spark: SparkSession, directory: Path, rows: int) -> tuple[float, float]:
    payload = f"file://{directory / 'plain'}"
    begun = time.perf_counter()
    frame(spark, rows).write.parquet(payload)
    written = time.perf_counter()
    programs.drop(spark.read.parquet(payload))
    read = time.perf_counter()
    shutil.rmtree(directory / "plain")
    return written - begun, read - written


def _handed_over(spark: SparkSession, directory: Path, rows: int) -> tuple[float, float]:
    from persistentqueue.spark import StageHandoff

    with StageHandoff(spark, directory, "stages") as handoff:
        begun = time.perf_counter()
        handoff.put(frame(spark, rows))
        written = time.perf_counter()
        with handoff.take() as stage:
            assert stage is not None
            assert stage.manifest.rows == rows
            programs.drop(stage.df)
        return written - begun, time.perf_counter() - written


def rows(spark: SparkSession, directory: Path, count: int, rounds: int) -> Iterator[Row]:
    """Yield a line for writing, a line for reading, and a line for both."""
    directory = directory.resolve()
    ways = (_handed_over, _plain)
    for way in ways:  # Java compiles the code while it runs
        way(spark, directory, max(count // 10, 1000))
    found: list[list[tuple[float, float]]] = [[], []]
    for which in programs.in_turn(len(ways), rounds):
        found[which].append(ways[which](spark, directory, count))
    for what, pick in (("put, beside a write", 0), ("take, beside a read", 1), ("put and take, beside both", None)):
        ours, plain = ([sum(seconds) if pick is None else seconds[pick] for seconds in each_way] for each_way in found)
        ratios = [one / other for one, other in zip(ours, plain, strict=True)]
        bar = f"{BAR:g} × at most" if pick is None else ""
        met = harness.met(median(ratios) <= BAR) if pick is None else ""
        ours_text, plain_text = (f"{median(seconds):.2f} s" for seconds in (ours, plain))
        ratio = f"{harness.spread(ratios)} × Parquet"
        yield Row(f"{count:,} rows: {what}", ours_text, f"Parquet {plain_text}", ratio, bar, met)


def main() -> None:
    """Measure and print the table. With ``--results``, also write JSON."""
    parser = programs.parser("stages", __doc__)
    parser.add_argument("--rows", type=harness.at_least_one, default=ROWS, help=f"rows of a DataFrame ({ROWS})")
    parser.add_argument("--rounds", type=harness.at_least_one, default=5, help="rounds of each way (5)")
    options = parser.parse_args()
    programs.run_on_spark(
        "stages", options, lambda spark, directory: rows(spark, directory, options.rows, options.rounds)
    )


if __name__ == "__main__":
    main()

"""``python -m perf.studies.spark_rows``: what the data source takes for each row, beside Spark's own files.

All write the same rows, one column ``value`` of 100 B, and read that column back once, in turns, by one Spark with
eight threads: ours by the format ``persistentqueue``, Spark's own as Parquet and as text. Ours syncs each file that it
writes, checks each block that it reads, and has what is published adopted before it is read, within the time of
reading. Spark's own syncs nothing. What is read is dropped. As many tasks write, and read, as there are partitions.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from .. import harness
from ..harness import Row
from ..report import programs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2_000_000
BAR = 0.5
PARTITIONS = (1, 2, 4, 8)
FORMS = ("persistentqueue", "parquet", "text")
Rounds = dict[tuple[str, int], list[tuple[float, float]]]
"""The rows a second of each round, in and out, by format and partitions."""


def frame(spark: SparkSession, rows: int, partitions: int, form: str) -> DataFrame:
    """So many rows, made where they are written: digits that do not compress well."""
    digits = ", ".join(f"hex(xxhash64(id, {n}))" for n in range(7))
    value = f"substring(concat({digits}), 1, 100)"
    return spark.range(0, rows, 1, partitions).selectExpr(
        f"{value} AS value" if form == "text" else f"CAST({value} AS binary) AS value"
    )


def once(
    spark: SparkSession, directory: Path, rows: int, partitions: int, form: str, checks: bool = False
) -> tuple[float, float]:
    """Write and read them; the rows a second of both. What ``checks`` looks at them once more."""
    place = directory / form
    spark.conf.set("spark.sql.leafNodeDefaultParallelism", partitions)  # into how many partitions files are cut
    written = frame(spark, rows, partitions, form).write.format(form).mode("append")
    begun = time.perf_counter()
    written.save(str(place))
    middle = time.perf_counter()
    read = spark.read.format(form)
    if form == "persistentqueue":
        read = read.option("minPartitions", partitions)
    read_frame = read.load(str(place)).select("value")
    programs.drop(read_frame)
    done = time.perf_counter()
    if checks:
        assert read_frame.rdd.getNumPartitions() in (partitions, partitions + 1)
        assert read_frame.count() == rows
    shutil.rmtree(place)
    return rows / (middle - begun), rows / (done - middle)


def measure(
    spark: SparkSession, directory: Path, rows: int, rounds: int, partitions: Sequence[int] = PARTITIONS
) -> Rounds:
    """All of them, in turn; before that a tenth of the rows warms up Spark, and is checked."""
    from persistentqueue.spark import register

    register(spark)
    for form in FORMS:
        once(spark, directory, max(rows // 10, 100), max(partitions), form, checks=True)
    ways = [(form, count) for count in partitions for form in FORMS]
    found: Rounds = {way: [] for way in ways}
    for which in programs.in_turn(len(ways), rounds):
        form, count = ways[which]
        found[ways[which]].append(once(spark, directory, rows, count, form))
    return found


def lines(found: Rounds, rows: int) -> Iterator[Row]:
    """A line for each number of partitions, in and out, with its bar; and how each scales."""
    counts = sorted({partitions for _, partitions in found})
    for way, what in enumerate(("written", "read")):
        for partitions in counts:
            ours, parquet, text = ([pair[way] for pair in found[form, partitions]] for form in FORMS)
            others = {"Parquet": parquet, "text": text}
            said = f"{rows:,} rows {what} in {partitions} partition{'s' * (partitions > 1)}"
            yield programs.compared(said, "rows/s", ours, others, BAR, True)
    for way, what in enumerate(("written", "read")):
        scales = []
        for form in FORMS:
            least = [pair[way] for pair in found[form, counts[0]]]
            ratios = [
                median(pair[way] / one for pair, one in zip(found[form, n], least, strict=True)) for n in counts[1:]
            ]
            scales.append(", ".join(f"{ratio:.2f}" for ratio in ratios))
        ours_text, *rest = scales
        others_text = f"Parquet {rest[0]} · text {rest[1]}"
        said = f"{what} in {', '.join(map(str, counts[1:]))} partitions, × in one"
        yield Row(said, f"{ours_text} ×", others_text, others_text, "", "")


def main() -> None:
    """Run it, print the table, and write JSON where ``--results`` says."""
    parser = programs.parser("spark_rows", __doc__)
    parser.add_argument("--rows", type=harness.at_least_one, default=ROWS, help=f"of a DataFrame ({ROWS})")
    parser.add_argument("--rounds", type=harness.at_least_one, default=5, help="of each (5)")
    options = parser.parse_args()

    def rows(spark: SparkSession, directory: Path) -> Iterator[Row]:
        yield from lines(measure(spark, directory, options.rows, options.rounds), options.rows)

    programs.run_on_spark("spark_rows", options, rows, spark_master="local[8]")


if __name__ == "__main__":
    main()

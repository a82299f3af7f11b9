"""``python -m perf.studies.spark_rows``: measures the data source, row by row, beside Spark's own files.

Three formats write rows of one column, ``value`` of 100 B, and read them back once. They take turns, in one Spark with
eight threads. The number of tasks that write, and that read, is the number of partitions: 1 to 8. The rows that are
read are discarded.

The format ``persistentqueue`` syncs each file that it writes and checks each block that it reads. The published files
are adopted before the read, and the time of reading includes this. Spark's Parquet and text formats sync nothing.
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
"""The rows per second of each round, in and out, by format and number of partitions."""


def frame(spark: SparkSession, rows: int, partitions: int, form: str) -> DataFrame:
    """Return rows of digits that do not compress well. The tasks that write the rows also make them."""
    digits = ", ".join(f"hex(xxhash64(id, {n}))" for n in range(7))
    value = f"substring(concat({digits}), 1, 100)"
    return spark.range(0, rows, 1, partitions).selectExpr(
        f"{value} AS value" if form == "text" else f"CAST({value} AS binary) AS value"
    )


def once(
    spark: SparkSession, directory: Path, rows: int, partitions: int, form: str, checks: bool = False
) -> tuple[float, float]:
    """Write and read the rows, and return the rows per second of both. With ``checks``, count the rows again."""
    place = directory / form
    spark.conf.set(
        "spark.sql.leafNodeDefaultParallelism", partitions
    )  # the number of partitions that files are split into
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
    """Measure all formats and numbers of partitions in turn. A tenth of the rows, which is checked, warms up Spark."""
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
    """Yield a line with a bar for each direction and number of partitions, and then the lines on scaling."""
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
    """Measure and print the table. With ``--results``, also write JSON."""
    parser = programs.parser("spark_rows", __doc__)
    parser.add_argument("--rows", type=harness.at_least_one, default=ROWS, help=f"rows of a DataFrame ({ROWS})")
    parser.add_argument(
        "--rounds", type=harness.at_least_one, default=5, help="rounds of each format and number of partitions (5)"
    )
    options = parser.parse_args()

    def rows(spark: SparkSession, directory: Path) -> Iterator[Row]:
        yield from lines(measure(spark, directory, options.rows, options.rounds), options.rows)

    programs.run_on_spark("spark_rows", options, rows, spark_master="local[8]")


if __name__ == "__main__":
    main()

"""``python -m perf.studies.typed_rows``: measures typed rows of the data source beside the column ``value``.

A row has 100 B in both: a number, a time and a fraction of 8 B each, and a text of 72 B with its offset; or one value.
The text and the value are digits, which the tasks make. The ways take turns, in one Spark with eight threads. The
published files are adopted before the first read, and the time of that read includes this. The rows that are read are
discarded.

``avro`` and ``json`` encode each row in Python. They have a part of the rows, and no bar.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import harness
from ..harness import Row
from ..report import programs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2_000_000
PARTITIONS = (1, 2)
FORMATS = ("value", "arrow", "avro", "json")
TEXT_BYTES, VALUE_BYTES = 72, 100
SLOW_PART = 20
"""Divisor of the rows of the formats that encode each row in Python."""
BAR = 0.8
Rounds = dict[tuple[str, str, int], list[float]]
"""The rows per second of each round, by the step, the format, and the number of partitions."""


def frame(spark: SparkSession, rows: int, partitions: int, form: str) -> DataFrame:
    """Return rows of digits that do not compress well. The tasks that write the rows also make them."""

    def digits(size_bytes: int) -> str:
        made = ", ".join(f"hex(xxhash64(id, {n}))" for n in range(-(-size_bytes // 16)))
        return f"substring(concat({made}), 1, {size_bytes})"

    frame = spark.range(0, rows, 1, partitions)
    if form == "value":
        return frame.selectExpr(f"CAST({digits(VALUE_BYTES)} AS binary) AS value")
    return frame.selectExpr(
        "id", "timestamp_micros(id * 1000) AS at", "id / 7.0D AS delay", f"{digits(TEXT_BYTES)} AS name"
    )


def once(
    spark: SparkSession, directory: Path, rows: int, partitions: int, form: str, checks: bool = False
) -> dict[str, float]:
    """Write and read the rows, and return the rows per second of each step. With ``checks``, compare the rows."""
    place = directory / form
    options = {"format": form, "minPartitions": str(partitions)} | ({"columns": "value"} if form == "value" else {})
    made = frame(spark, rows, partitions, form)

    def read() -> DataFrame:
        return spark.read.format("persistentqueue").options(**options).load(str(place))

    begun = time.perf_counter()
    made.write.format("persistentqueue").mode("append").option("format", form).save(str(place))
    written = time.perf_counter()
    programs.drop(read())
    found = {"written": rows / (written - begun), "read": rows / (time.perf_counter() - written)}
    if checks:
        assert read().exceptAll(made).count() == made.exceptAll(read()).count() == 0
    shutil.rmtree(place)
    return found


def measure(
    spark: SparkSession, directory: Path, rows: int, rounds: int, partitions: Sequence[int] = PARTITIONS
) -> Rounds:
    """Measure all formats and numbers of partitions in turn. A few rows, which are compared, warm up Spark."""
    from persistentqueue.spark import register

    register(spark)
    for form in FORMATS:
        once(spark, directory, max(rows // 100, 100), max(partitions), form, checks=True)
    ways = [(form, count) for count in partitions for form in FORMATS]
    found: Rounds = {}
    for which in programs.in_turn(len(ways), rounds):
        form, count = ways[which]
        part = max(rows // SLOW_PART, 100) if form in {"avro", "json"} else rows
        for step, rate in once(spark, directory, part, count, form).items():
            found.setdefault((step, form, count), []).append(rate)
    return found


def lines(found: Rounds, rows: int) -> Iterator[Row]:
    """Yield a line for each step and format, with a bar for Arrow."""
    for form in FORMATS[1:]:
        for step in ("written", "read"):
            for count in sorted({count for _, _, count in found}):
                said = f"{rows if form == 'arrow' else max(rows // SLOW_PART, 100):,} rows"
                what = f"{said} with columns {step} as {form} in {count} partition{'s' * (count > 1)}"
                beside = {"value": found[step, "value", count]}
                bar = BAR if form == "arrow" else None
                yield programs.compared(what, "rows/s", found[step, form, count], beside, bar, True)


def main() -> None:
    """Measure and print the table. With ``--results``, also write JSON."""
    parser = programs.parser("typed_rows", __doc__)
    parser.add_argument("--rows", type=harness.at_least_one, default=ROWS, help=f"rows of a DataFrame ({ROWS})")
    parser.add_argument("--rounds", type=harness.at_least_one, default=5, help="rounds of each format (5)")
    options = parser.parse_args()

    def rows(spark: SparkSession, directory: Path) -> Iterator[Row]:
        yield from lines(measure(spark, directory, options.rows, options.rounds), options.rows)

    programs.run_on_spark("typed_rows", options, rows, spark_master="local[8]")


if __name__ == "__main__":
    main()

"""``python -m perf.studies.spark_rows``: measures the data source, row by row, beside Spark's own files.

Three formats write rows of one column, ``value`` of 100 B, and read them back. They take turns, in one Spark with eight
threads. The number of tasks that write, and that read, is the number of partitions: 1 to 8. The rows that are read are
discarded. The data source reads the same column as the files (``columns=value``), and then all of its columns.

The format ``persistentqueue`` syncs each file that it writes and checks each block that it reads. The published files
are adopted before the first read, and the time of that read includes this. Spark's Parquet and text formats sync
nothing.

Java and Python's workers talk over Unix sockets (Spark 4.1 and later), unless ``--tcp`` is given. Spark's own formats
use no Python, and no such sockets.

The *floor* is a Python data source that yields one batch of such rows, made before, again and again. It tells what
Spark itself takes to get rows from Python: with such batches, no Python data source is much faster. A floor of one row
for each task is counted, too: no count of a Python data source is much faster. Rows that are written to the floor are
dropped: no write of a Python data source is faster.

Filters: a queue of ``--filtered`` rows is read as a whole, and then one row in a hundred of it, by offset and by time.
The bytes are those that the reader takes from files, counted in this process. The rows are also counted by the headers
of their blocks: by Spark, and by the same reader in this process, without Spark.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from .. import harness
from ..harness import Row
from ..report import programs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2_000_000
FILTERED = 10_000_000
ITEM_BYTES = 100
FLOOR_ROWS = 2_500
PARTITIONS = (1, 2, 4, 8)
FORMS = ("persistentqueue", "parquet", "text")
WRITE_BAR, READ_BAR, TEXT_BAR, COUNT_BAR, BYTES_BAR = 1.2, 1.0, 0.6, 5.0, 0.02
WRITTEN_BESIDE = {"Parquet": "write parquet", "text": "write text", "the floor": "write floor"}
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
Rounds = dict[tuple[str, int], list[float]]
"""The rows per second of each round, by what was done and the number of partitions."""


def frame(spark: SparkSession, rows: int, partitions: int, form: str) -> DataFrame:
    """Return rows of digits that do not compress well. The tasks that write the rows also make them."""
    digits = ", ".join(f"hex(xxhash64(id, {n}))" for n in range(7))
    value = f"substring(concat({digits}), 1, {ITEM_BYTES})"
    return spark.range(0, rows, 1, partitions).selectExpr(
        f"{value} AS value" if form == "text" else f"CAST({value} AS binary) AS value"
    )


def register(spark: SparkSession) -> None:
    """Register the data source, and the one that is the floor."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        InputPartition,
        WriterCommitMessage,
    )

    from persistentqueue.spark import register as register_ours

    class Reader(DataSourceReader):  # in here, so that Spark's workers need not import this module
        def __init__(self, options: dict[str, str]) -> None:
            self._rows = [int(options["rows"]) // int(options["partitions"])] * int(options["partitions"])

        def partitions(self) -> list[InputPartition]:
            return list(map(InputPartition, self._rows))

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow as pa

            made = pa.array([os.urandom(ITEM_BYTES) for _ in range(min(FLOOR_ROWS, partition.value))], pa.binary())
            batch = pa.record_batch([made], names=["value"])
            for _ in range(partition.value // len(made)):
                yield batch

    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Floor(DataSource):
        @classmethod
        def name(cls) -> str:
            return "floor"

        def schema(self) -> str:
            return "value binary"

        def reader(self, schema: object) -> DataSourceReader:  # noqa: ARG002 - Spark names it
            return Reader(dict(self.options))

        def writer(self, schema: object, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002 - Spark names them
            return Writer()

    register_ours(spark)
    spark.dataSource.register(Floor)


def once(
    spark: SparkSession, directory: Path, rows: int, partitions: int, form: str, checks: bool = False
) -> dict[str, float]:
    """Write and read the rows, and return the rows per second of each step. With ``checks``, count the rows again."""
    place = directory / form
    spark.conf.set(
        "spark.sql.leafNodeDefaultParallelism", partitions
    )  # the number of partitions that files are split into
    found: dict[str, float] = {}

    def timed(what: str, work: Callable[[], object]) -> None:
        begun = time.perf_counter()
        work()
        found[what] = rows / (time.perf_counter() - begun)

    def read(**options: str) -> DataFrame:
        chosen = options | ({"minPartitions": str(partitions)} if form == "persistentqueue" else {})
        return spark.read.format(form).options(**chosen).load(str(place))

    def floor(rows: int) -> DataFrame:
        return spark.read.format("floor").options(rows=rows, partitions=partitions).load()

    timed(
        f"write {form}", lambda: frame(spark, rows, partitions, form).write.format(form).mode("append").save(str(place))
    )
    if form == "persistentqueue":
        made = frame(spark, rows, partitions, form)
        timed("write floor", lambda: made.write.format("floor").mode("append").save())
        timed("read values", lambda: programs.drop(read(columns="value")))
        timed("read all", lambda: programs.drop(read()))
        timed("read floor", lambda: programs.drop(floor(rows)))
        timed("count floor", lambda: floor(partitions).count())
        timed("count offsets", lambda: read(columns="offset").count())
        timed("sum blocks", lambda: read(rows="blocks").agg({"items": "sum"}).collect())
    else:
        timed(f"read {form}", lambda: programs.drop(read()))
    if checks:
        assert read().rdd.getNumPartitions() in (partitions, partitions + 1)
        assert read().count() == rows
        if form == "persistentqueue":
            assert read(rows="blocks").agg({"items": "sum"}).collect()[0][0] == read(columns="offset").count() == rows
    shutil.rmtree(place)
    return found


def measure(
    spark: SparkSession, directory: Path, rows: int, rounds: int, partitions: Sequence[int] = PARTITIONS
) -> Rounds:
    """Measure all formats and numbers of partitions in turn. A tenth of the rows, which is checked, warms up Spark."""
    register(spark)
    for form in FORMS:
        once(spark, directory, max(rows // 10, 100), max(partitions), form, checks=True)
    ways = [(form, count) for count in partitions for form in FORMS]
    found: Rounds = {}
    for which in programs.in_turn(len(ways), rounds):
        form, count = ways[which]
        for what, rate in once(spark, directory, rows, count, form).items():
            found.setdefault((what, count), []).append(rate)
    return found


def lines(found: Rounds, rows: int) -> Iterator[Row]:
    """Yield a line with a bar for each step and number of partitions, and then the lines on scaling."""
    counts = sorted({partitions for _, partitions in found})
    for ours, what, others, bar in (
        ("write persistentqueue", "written", WRITTEN_BESIDE, WRITE_BAR),
        ("write floor", "written to the floor", {"Parquet": "write parquet"}, None),
        ("read values", "read", {"Parquet": "read parquet", "the floor": "read floor"}, READ_BAR),
        ("read values", "read", {"text": "read text"}, TEXT_BAR),
        ("read floor", "read from the floor", {"text": "read text", "Parquet": "read parquet"}, None),
        ("read all", "read with offset and timestamp", {"Parquet": "read parquet", "text": "read text"}, None),
        ("sum blocks", "counted by rows=blocks", {"reading them": "read all", "the floor": "count floor"}, COUNT_BAR),
        ("count offsets", "counted by columns=offset", {"reading them": "read all"}, None),
        ("count floor", "in the time of a count of the floor", {"reading them": "read all"}, None),
    ):
        for partitions in counts:
            said = f"{rows:,} rows {what} in {partitions} partition{'s' * (partitions > 1)}"
            beside = {name: found[other, partitions] for name, other in others.items()}
            yield programs.compared(said, "rows/s", found[ours, partitions], beside, bar, True)
    for what, ours in (("write", "persistentqueue"), ("read", "values")):
        scales = []
        for form in (ours, "parquet", "text"):
            least = found[f"{what} {form}", counts[0]]
            rates = [found[f"{what} {form}", count] for count in counts[1:]]
            ratios = [median(rate / one for rate, one in zip(each, least, strict=True)) for each in rates]
            scales.append(", ".join(f"{ratio:.2f}" for ratio in ratios))
        others_text = f"Parquet {scales[1]} · text {scales[2]}"
        said = f"{what} in {', '.join(map(str, counts[1:]))} partitions, × in one"
        yield Row(said, f"{scales[0]} ×", others_text, others_text, "", "")


def filtered(spark: SparkSession, directory: Path, rows: int, rounds: int) -> Iterator[Row]:
    """Read one row in a hundred by offset and by time; yield a line on the bytes and one on the time of each.

    Yield lines on a count of the rows, too: by Spark, and by the reader alone in this process.
    """
    from pyspark.sql import functions as F  # noqa: N812

    from persistentqueue import PersistentQueue

    register(spark)
    with PersistentQueue(directory, "filtered") as queue, queue.session() as session:
        for _ in range(100):
            session.enqueue_many([os.urandom(ITEM_BYTES // 2).hex().encode()] * (rows // 100))
            session.flush()

    def read(**options: str) -> DataFrame:
        return spark.read.format("persistentqueue").options(queue="filtered", **options).load(str(directory))

    # Spark collects times without a zone, and pushes filters that have one.
    moments = [row.timestamp.astimezone() for row in read(rows="blocks").orderBy("offset").collect()]
    low, high = rows // 2 + rows // 200, rows // 2 + rows // 200 + rows // 100
    early, late = moments[len(moments) // 2], moments[len(moments) // 2 + len(moments) // 100]
    conditions = {
        "offset": (F.col("offset") >= low) & (F.col("offset") < high),
        "timestamp": (F.col("timestamp") >= F.lit(early)) & (F.col("timestamp") < F.lit(late)),
    }
    taken = {
        "offset": bytes_of(directory, {"offset": (low, high)}),
        "timestamp": bytes_of(directory, {"timestamp": (early, late)}),
    }
    whole_bytes = sum(path.stat().st_size for path in (directory / "filtered" / "data").iterdir())

    def read_some(name: str) -> None:
        programs.drop(read().where(conditions[name]))

    works: dict[str, Callable[[], object]] = {
        "whole": lambda: programs.drop(read()),
        "counted": lambda: read(rows="blocks").agg({"items": "sum"}).collect(),
        "alone": lambda: count_alone(directory, rows),
        **{name: partial(read_some, name) for name in conditions},
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    spark.conf.set(PUSHDOWN, "true")
    try:
        for _ in range(rounds + 1):
            for name, work in works.items():
                begun = time.perf_counter()
                work()
                times[name].append((time.perf_counter() - begun) * 1000)
    finally:
        spark.conf.unset(PUSHDOWN)
    whole = {"a full read": times["whole"][1:]}
    counted = f"{rows:,} rows counted by rows=blocks"
    tasks = count_alone(directory, rows)
    yield programs.compared(
        f"{counted}, in {tasks} task{'s' * (tasks > 1)}: time", "ms", times["counted"][1:], whole, None, False
    )
    yield programs.compared(f"{counted}, without Spark: time", "ms", times["alone"][1:], whole, None, False)
    for name, read_bytes in taken.items():
        said = f"1 % of {rows:,} rows, by {name}"
        share = read_bytes / whole_bytes
        yield Row(
            f"{said}: bytes read",
            f"{read_bytes:,} of {whole_bytes:,}",
            "",
            f"{share:.4f} × all bytes",
            f"{BYTES_BAR:g} × all bytes at most",
            harness.met(share <= BYTES_BAR),
        )
        yield programs.compared(
            f"{said}: time", "ms", times[name][1:], {"a full read": times["whole"][1:]}, None, False
        )


def count_alone(directory: Path, rows: int) -> int:
    """Count the rows as the tasks of Spark do, in this process; return the number of tasks."""
    from persistentqueue.spark import partition_reader, source
    from persistentqueue.spark.options import BLOCK_COLUMNS, read_options

    options = read_options({"path": str(directory), "queue": "filtered", "rows": "blocks"})
    reader = source.BatchReader(options, partition_reader.schema_of(BLOCK_COLUMNS))
    tasks = reader.partitions()
    assert rows == sum(sum(batch["items"].to_pylist()) for each in tasks for batch in reader.read(each))
    return len(tasks)


def bytes_of(directory: Path, bounds: dict[str, tuple[Any, Any]]) -> int:
    """Return the bytes that the tasks of a filtered read take from files, all of them run in this process."""
    from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

    from persistentqueue.spark import partition_reader, source
    from persistentqueue.spark.options import read_options
    from persistentqueue.system.disk import DISK

    read_bytes = 0

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        nonlocal read_bytes
        data = DISK.pread(fd, length_bytes, offset)
        read_bytes += len(data)
        return data

    options = read_options({"path": str(directory), "queue": "filtered"})
    reader = source.FilteringReader(options, partition_reader.SCHEMA)
    (column, (low, high)) = next(iter(bounds.items()))
    assert list(reader.pushFilters([GreaterThanOrEqual((column,), low), LessThan((column,), high)])) == []
    with patch.object(partition_reader, "DISK", replace(DISK, pread=pread)):
        for each in reader.partitions():
            for _ in reader.read(each):
                pass
    return read_bytes


def main() -> None:
    """Measure and print the table. With ``--results``, also write JSON."""
    parser = programs.parser("spark_rows", __doc__)
    parser.add_argument("--rows", type=harness.at_least_one, default=ROWS, help=f"rows of a DataFrame ({ROWS})")
    parser.add_argument(
        "--filtered",
        type=harness.at_least_one,
        default=FILTERED,
        help=f"rows of the queue that is filtered ({FILTERED})",
    )
    parser.add_argument(
        "--rounds", type=harness.at_least_one, default=5, help="rounds of each format and number of partitions (5)"
    )
    parser.add_argument("--tcp", action="store_true", help="connect Java and Python's workers over TCP")
    options = parser.parse_args()
    settings = {"spark.master": "local[8]", UNIX_SOCKETS: str(not options.tcp).lower()}

    def rows(spark: SparkSession, directory: Path) -> Iterator[Row]:
        yield from lines(measure(spark, directory, options.rows, options.rounds), options.rows)
        yield from filtered(spark, directory, options.filtered, options.rounds)

    programs.run_on_spark("spark_rows", options, rows, **settings)


if __name__ == "__main__":
    main()

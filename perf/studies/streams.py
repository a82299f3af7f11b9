"""``python -m perf.studies.streams``: measures micro-batches from queue to queue beside files to files, with one Spark.

All input exists before a query starts. Every batch has the same number of rows, and the batches run without a pause.
The first batches do not count. Our query reads one queue and writes another. In one way this process owns both queues,
as a process that enqueues or consumes would. In the other way they have no owner, so that the planner opens the queue
to adopt the published files. Spark's own queries read and write a directory of Parquet or text files, one file for
each batch.

The times are those that Spark reports in the query's progress: the whole batch (``triggerExecution``), and its steps.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from persistentqueue import PersistentQueue

from .. import harness
from ..harness import Row
from ..report import programs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, BATCHES, WARM = 1000, 40, 8
BAR = 1.25
STEPS = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets", "triggerExecution")
Batch = dict[str, float]
"""Milliseconds of each step of a batch."""


def items(batch: int, rows: int) -> list[bytes]:
    """Return the items of a batch, of 100 B each."""
    return [(b"%d %d " % (batch, row)).ljust(100, b".") for row in range(rows)]


def _run(frame: DataFrame, form: str, directory: Path, batches: int, **options: str) -> list[Batch]:
    """Run the query over all of its input, and return its batches."""
    writer = frame.writeStream.format(form).option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.options(**options).start(str(directory / "out" if "queue" not in options else directory))
    try:
        query.processAllAvailable()
        progress: list[Any] = [each for each in query.recentProgress if each["numInputRows"]]
    finally:
        query.stop()
    assert len(progress) == batches, f"{len(progress)} batches were run instead of {batches}"
    return [dict(each["durationMs"]) for each in progress]


def _queues(spark: SparkSession, directory: Path, batches: int, rows: int, owned: bool) -> list[Batch]:
    with ExitStack() as stack:
        queues = [PersistentQueue(directory, name) for name in ("in", "out")]
        with queues[0].subscribe("spark").session():  # the subscription must exist before the items
            pass
        for batch in range(batches):
            with queues[0].transaction() as session:
                session.enqueue_many(items(batch, rows))
        for queue in queues:
            if owned:
                stack.enter_context(queue)
            else:
                queue.close()
        chosen = {"queue": "in", "subscription": "spark", "maxOffsetsPerTrigger": str(rows)}
        frame = spark.readStream.format("persistentqueue").options(**chosen).load(str(directory)).select("value")
        found = _run(frame, "persistentqueue", directory, batches, queue="out")
    with PersistentQueue(directory, "out") as queue, queue.transaction() as session:
        assert len(session.dequeue_many(batches * rows + 1)) == batches * rows
    return found


def _owned(spark: SparkSession, directory: Path, batches: int, rows: int) -> list[Batch]:
    return _queues(spark, directory, batches, rows, True)


def _unowned(spark: SparkSession, directory: Path, batches: int, rows: int) -> list[Batch]:
    return _queues(spark, directory, batches, rows, False)


def _parquet(spark: SparkSession, directory: Path, batches: int, rows: int) -> list[Batch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (directory / "in").mkdir()
    for batch in range(batches):
        table = pa.table({"value": pa.array(items(batch, rows), pa.binary())})
        pq.write_table(table, directory / "in" / f"{batch:05}.parquet")
    return _files(spark, "parquet", directory, batches, rows)


def _text(spark: SparkSession, directory: Path, batches: int, rows: int) -> list[Batch]:
    (directory / "in").mkdir()
    for batch in range(batches):
        (directory / "in" / f"{batch:05}.txt").write_bytes(b"\n".join(items(batch, rows)) + b"\n")
    return _files(spark, "text", directory, batches, rows)


def _files(spark: SparkSession, form: str, directory: Path, batches: int, rows: int) -> list[Batch]:
    reader = spark.readStream.format(form).schema("value " + ("binary" if form == "parquet" else "string"))
    frame = reader.option("maxFilesPerTrigger", 1).load(str(directory / "in"))
    found = _run(frame, form, directory, batches)
    assert spark.read.format(form).load(str(directory / "out")).count() == batches * rows
    return found


WAYS: dict[str, Callable[[SparkSession, Path, int, int], list[Batch]]] = {
    "owned": _owned,
    "unowned": _unowned,
    "Parquet": _parquet,
    "text": _text,
}


def measure(
    spark: SparkSession, directory: Path, batches: int, rows: int, rounds: int, warm: int
) -> dict[str, list[Batch]]:
    """Return the median batch of each way and round, step by step."""
    from persistentqueue.spark import register

    register(spark)
    found: dict[str, list[Batch]] = {name: [] for name in WAYS}
    names = list(WAYS)
    for which in programs.in_turn(len(WAYS), rounds):
        name = names[which]
        place = directory / name
        place.mkdir()
        batched = WAYS[name](spark, place, warm + batches, rows)[warm:]
        found[name].append({step: median(each.get(step, 0.0) for each in batched) for step in STEPS})
        shutil.rmtree(place)
    return found


def lines(found: dict[str, list[Batch]], rows: int) -> Iterator[Row]:
    """Yield a line with a bar for each of our ways, and a line without a bar for each step."""
    whole = {name: [each["triggerExecution"] for each in rounds] for name, rounds in found.items()}
    files = {name: whole[name] for name in ("Parquet", "text")}
    for name, what in (("owned", "its owner at work"), ("unowned", "without an owner")):
        yield programs.compared(
            f"A batch of {rows:,} rows from queue to queue, {what}", "ms", whole[name], files, BAR, False
        )
    for step in STEPS[:-1]:
        middle = {name: median(each[step] for each in rounds) for name, rounds in found.items()}
        ours, unowned, *others = (f"{each:.0f} ms" for each in middle.values())
        beside = f"Parquet {others[0]} · text {others[1]}"
        yield Row(f"of which {step}", f"{ours}; without an owner {unowned}", beside, beside, "", "")


def main() -> None:
    """Measure and print the table. With ``--results``, also write JSON."""
    parser = programs.parser("streams", __doc__)
    parser.add_argument("--rows", type=harness.at_least_one, default=ROWS, help=f"rows of a batch ({ROWS})")
    parser.add_argument("--batches", type=harness.at_least_one, default=BATCHES, help=f"batches of a query ({BATCHES})")
    parser.add_argument("--rounds", type=harness.at_least_one, default=5, help="rounds of each way (5)")
    options = parser.parse_args()

    def rows(spark: SparkSession, directory: Path) -> Iterator[Row]:
        found = measure(spark, directory, options.batches, options.rows, options.rounds, WARM)
        yield from lines(found, options.rows)

    programs.run_on_spark("streams", options, rows, spark_sql_streaming_numRecentProgressUpdates="10000")


if __name__ == "__main__":
    main()

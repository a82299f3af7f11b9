"""Spark jobs whose tasks run twice: ``python -m tests.support.spark_cluster ROOT MASTER JAVA_HOME``.

Each job writes the numbers below ``ITEMS``, or moves them from queue to queue. The name of its directory determines the
fate of first attempts. In a "retry" job, the first attempt of each task fails when its part is whole. In a
"speculation" job, the first attempt of one task stops there until Spark kills it, since another attempt has written
equal rows. No attempt ends before the first attempt of its task has written its part, even on a slow machine.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from persistentqueue import PersistentQueue
from persistentqueue.spark import acknowledge, local_session, writer
from persistentqueue.spark.options import Place
from persistentqueue.spark.source import QueueDataSource

ITEMS, TASKS = 100, 2
JOBS = ("batch-retry", "stream-retry", "batch-speculation", "stream-speculation")
_STANDSTILL_SECONDS = 120
_LOOK_SECONDS = 0.05


def stumble(place: Place) -> None:
    """Let the first attempt of a task fail or stop, after its part is whole."""
    context = TaskContext.get()
    assert context is not None
    root = Path(place.path)
    (root / f"wrote-{context.partitionId()}-{context.attemptNumber()}").touch()
    if context.attemptNumber() > 0:
        wait_for_file(root / f"wrote-{context.partitionId()}-0")  # otherwise that attempt may be killed before
        return
    if root.name.endswith("retry"):
        raise RuntimeError("the first attempt fails")
    if context.partitionId() == 0:
        threading.Event().wait(_STANDSTILL_SECONDS)  # Spark kills it before that time is over


def wait_for_file(path: Path) -> None:
    """Return when the file exists; raise ``TimeoutError`` if it takes too long."""
    began = time.monotonic()
    while not path.exists():
        if time.monotonic() > began + _STANDSTILL_SECONDS:
            raise TimeoutError(f"{path}: not there after {_STANDSTILL_SECONDS} seconds")
        threading.Event().wait(_LOOK_SECONDS)


class BatchWriter(writer.BatchWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> writer.Message:
        message = super().write(iterator)
        stumble(self._options.place)
        return message


class StreamWriter(writer.StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> writer.Message:
        message = super().write(iterator)
        stumble(self._options.place)
        return message


class StumblingSource(QueueDataSource):
    """The data source, with tasks whose first attempts fail or stop."""

    @classmethod
    def name(cls) -> str:
        return "stumbling"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer = super().writer(schema, overwrite)
        writer.__class__ = BatchWriter
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = StreamWriter
        return writer


def run(spark: SparkSession, root: Path) -> None:
    """Run one of the jobs."""
    root.mkdir()
    if root.name.startswith("batch"):
        frame = spark.range(ITEMS, numPartitions=TASKS).selectExpr("CAST(id AS STRING) AS value")
        frame.write.format("stumbling").mode("append").option("queue", "out").save(str(root))
        return
    with PersistentQueue(root, "in", fan_out=True) as queue, queue.transaction() as session:
        session.enqueue_many(b"%d" % number for number in range(ITEMS))
    source = spark.readStream.format("stumbling").options(queue="in", subscription="spark", minPartitions=TASKS)
    writer = source.load(str(root)).select("value").writeStream.format("stumbling").option("queue", "out")
    writer = writer.option("checkpointLocation", str(root / "checkpoint")).trigger(availableNow=True)
    query = writer.start(str(root))
    query.awaitTermination()
    acknowledge(query)


def main(root: Path, master: str, java_home: str) -> None:
    settings = {
        "spark.master": master,
        "spark.executorEnv.JAVA_HOME": java_home,
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.01",
    }
    spark = local_session("attempts", settings)
    spark.dataSource.register(StumblingSource)
    for job in JOBS:
        run(spark, root / job)
    spark.stop()


if __name__ == "__main__":
    # Not this module, which is ``__main__``: the processes of Spark could not import it by name.
    importlib.import_module("tests.support.spark_cluster").main(Path(sys.argv[1]), *sys.argv[2:])

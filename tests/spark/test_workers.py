"""Care of the connector for the processes of Spark in which it runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from persistentqueue.spark import register
from persistentqueue.spark.workers import settle

pytestmark = pytest.mark.spark


def _frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([gc.get_freeze_count()] * len(batch), pa.int64())], ["frozen"])


def test_a_worker_is_settled_once(spark: SparkSession, tmp_path: Path) -> None:
    """A worker of Spark that wrote to a queue no longer searches its imported objects for garbage after each task.

    Another process is left unchanged.
    """
    before = gc.get_freeze_count()
    settle()
    assert gc.get_freeze_count() <= before  # an object that was exempt may go meanwhile
    register(spark)
    for _ in range(2):
        values = spark.range(0, 8, 1, 2).selectExpr("CAST(id AS string) AS value")
        values.write.format("persistentqueue").mode("append").save(str(tmp_path))
    counts = {row.frozen for row in spark.range(0, 8, 1, 2).mapInArrow(_frozen, "frozen long").collect()}
    assert max(counts) > 10_000

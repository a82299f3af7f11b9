"""A stand-in for Spark, for tests of pipelines: DataFrames of one column of numbers, as Parquet files, without Java.

``Numbers`` has the same operations on both, so that a test can run one pipeline on the stand-in and on Spark.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from persistentqueue.spark import Pipeline

SCHEMA = StructType([StructField("value", LongType())])
_FILES = 2
"""Files of each payload."""


class Rows(DataFrame):
    """A DataFrame of the stand-in: its rows are in memory."""

    def __new__(cls, *_: Any) -> Rows:
        return object.__new__(cls)

    def __init__(self, spark: StandIn, values: Iterable[int]) -> None:
        self._spark = spark
        self.values = list(values)

    @property
    def schema(self) -> StructType:
        return SCHEMA

    @property
    def sparkSession(self) -> Any:  # noqa: N802 - Spark's name
        return self._spark

    @property
    def write(self) -> Any:
        return _Writer(self)

    def collect(self) -> Any:
        return [(value,) for value in self.values]


class _Writer:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def mode(self, mode: str) -> _Writer:
        assert mode == "append"
        return self

    def parquet(self, address: str) -> None:
        spark = self._rows.sparkSession
        spark.writes += 1
        if spark.writes == spark.fail_at:
            raise OSError("no write")
        for number in range(_FILES):
            table = pyarrow.table({"value": pyarrow.array(self._rows.values[number::_FILES], pyarrow.int64())})
            pyarrow.parquet.write_table(table, Path(address.removeprefix("file://"), f"part-{number}.parquet"))


class StandIn:
    """The session of the stand-in, which reads Parquet files as ``spark.read`` does."""

    def __init__(self) -> None:
        self.conf = {"spark.master": "local"}
        self.writes = 0
        """Number of payloads that were written or have failed."""
        self.fail_at = 0
        """Number of the write that fails; 0 for none."""

    @property
    def read(self) -> StandIn:
        return self

    def options(self, **_: object) -> StandIn:
        return self

    def schema(self, schema: StructType) -> StandIn:
        assert [field.name for field in schema] == ["value"]
        return self

    def parquet(self, *addresses: str) -> Rows:
        # From memory: a thread of Arrow may keep a file open for a moment behind the call that reads it.
        files = [Path(address.removeprefix("file://")).read_bytes() for address in addresses]
        tables = [pyarrow.parquet.read_table(pyarrow.BufferReader(file)) for file in files]
        return Rows(self, pyarrow.concat_tables(tables)["value"].to_pylist())


class Numbers:
    """Operations on DataFrames of numbers, of Spark or of the stand-in."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._is_stand_in = isinstance(spark, StandIn)

    def make(self, values: range) -> Any:
        """Return a DataFrame of these values."""
        if self._is_stand_in:
            return Rows(self._spark, values)
        return self._spark.range(values.start, values.stop, values.step, 1).withColumnRenamed("id", "value")

    def where(self, frame: Any, divisor: int, rest: int) -> Any:
        """Return the rows whose value leaves this rest."""
        if self._is_stand_in:
            return Rows(self._spark, (value for value in frame.values if value % divisor == rest))
        return frame.where(f"pmod(value, {divisor}) = {rest}")

    def scale(self, frame: Any, factor: int, shift: int) -> Any:
        """Return the rows with each value multiplied, and then shifted."""
        if self._is_stand_in:
            return Rows(self._spark, (value * factor + shift for value in frame.values))
        return frame.selectExpr(f"value * {factor} + {shift} AS value")

    def union(self, one: Any, other: Any) -> Any:
        """Return the rows of both."""
        return Rows(self._spark, one.values + other.values) if self._is_stand_in else one.unionAll(other)

    def total(self, frame: Any) -> Any:
        """Return one row: the sum of the values."""
        if self._is_stand_in:
            return Rows(self._spark, [sum(frame.values)])
        return frame.groupBy().agg({"value": "sum"}).toDF("value")


class Flow:
    """Pipelines in one directory, of which one is open at a time, on a stand-in."""

    def __init__(self, root: Path) -> None:
        self.root = root / "flow"
        self.spark = StandIn()
        self._made: list[Pipeline] = []

    def make(self, **options: Any) -> Pipeline:
        """Close the pipelines that were made before, and return a new one, without stages."""
        self.close()
        self._made.append(Pipeline(self.spark, self.root, **options))  # type: ignore[arg-type]
        return self._made[-1]

    def close(self) -> None:
        """Close the pipelines."""
        for pipeline in self._made:
            pipeline.close()

    def rows(self, *values: int) -> Any:
        """Return a DataFrame."""
        return Rows(self.spark, values)

    def payloads(self) -> dict[str, int]:
        """Return the number of payloads of each edge that has any."""
        found = {path.name.removesuffix("+payload"): len(list(path.iterdir())) for path in self.root.glob("*+payload")}
        return {name: count for name, count in found.items() if count}


def take(pipeline: Pipeline, edge: str) -> list[list[int]]:
    """Take all DataFrames of a last edge, and return their sorted values."""
    found: list[list[int]] = []
    while True:
        with pipeline.take(edge) as taken:
            if taken is None:
                return found
            found.append(sorted(value for (value,) in taken.df.collect()))


def waiting(pipeline: Pipeline) -> dict[str, int]:
    """Return the number of DataFrames that wait at each edge at which any does."""
    return {edge.name: edge.waiting for edge in pipeline.stats().edges if edge.waiting}


def noted(notes: list[Any], note: Any, frame: Any = None) -> Any:
    """Append a note, and return the DataFrame."""
    notes.append(note)
    return frame


def echo(frame: Any) -> Any:
    """Return the DataFrame: the stage that does nothing."""
    return frame


def interrupt_twice(caplog: pytest.LogCaptureFixture, may_end: threading.Event) -> None:
    """Interrupt the run of the stage that calls this, and again when the first signal is handled, so that the run ends
    at once. Then wait until ``may_end`` is set: the stage outlives its run."""
    os.kill(os.getpid(), signal.SIGINT)
    while "ends after the running stages" not in caplog.text:
        assert not may_end.wait(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    assert may_end.wait(60)

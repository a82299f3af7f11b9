"""The data source ``persistentqueue``: queues that Spark reads and writes.

::

    register(spark)
    frame.select("value").write.format("persistentqueue").mode("append").option("queue", "orders").save("queues")
    spark.read.format("persistentqueue").option("queue", "orders").load("queues")       # value, offset, timestamp

A batch read browses: it shows what nobody has consumed when it is planned, and consumes nothing. The driver's side
plans, tasks read the blocks beside the owner, without his lock, and check each of them. Spark may run a plan more than
once, and later: what was consumed since then, and is not there any more, is an error, or is left out
(``failOnDataLoss``). ``offset`` is an item's place in the queue, which is no other's; ``timestamp`` is when its block
was written, by whoever enqueued it, or by a compaction.

What is published and not adopted yet has no place in the queue. If nobody owns the queue the planner adopts it, by
opening the queue for a moment, with no limits; else the owner does, whenever he looks, and until then it is not shown.

All callbacks run in processes of Spark's, never in the one that started the job; an object made for one of them is
pickled for the next. So none of them keeps anything open.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampType

from persistentqueue import PersistentQueue, PersistentQueueError
from persistentqueue.disk import DISK
from persistentqueue.parts import count_published
from persistentqueue.splits import Found, Split, look, partition, plan, read

from .options import Place, ReadOptions, read_options
from .sink import batch_writer, stream_writer

SCHEMA = StructType(
    [StructField("value", BinaryType()), StructField("offset", LongType()), StructField("timestamp", TimestampType())]
)
PARTITION_BYTES = 64 * 1024 * 1024
"""What one task reads, about, unless more partitions are asked for."""
_ARROW_SCHEMA = pa.schema([("value", pa.binary()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC"))])
_BATCH_ROWS, _BATCH_BYTES = 10_000, 4 * 1024 * 1024
_VALUE_BYTES_MAX = 2**31 - 64
"""The longest that Java can hold."""


class QueueDataSource(DataSource):
    """The data source; its options are in ``options``."""

    @classmethod
    def name(cls) -> str:
        """What it is registered as."""
        return "persistentqueue"

    def schema(self) -> StructType:
        """What a read yields, of any queue."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read. Raises ``ValueError`` for options that are not known or make no sense."""
        return BatchReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write; see ``sink``."""
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """A streaming write; see ``sink``."""
        return stream_writer(self.options, schema, overwrite)


def register(spark: SparkSession) -> None:
    """Let this session know the format ``persistentqueue``. Registering again does nothing more."""
    spark.dataSource.register(QueueDataSource)


class BatchReader(DataSourceReader):
    """Shows what the queue holds."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if schema != SCHEMA:
            raise ValueError(f"persistentqueue reads {SCHEMA.simpleString()}, not {schema.simpleString()}")
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Plan. Raises ``QueueNotFoundError``, ``DataMissingError``, ``CorruptionError`` and ``OSError``."""
        options, directory = self._options, self._options.place.directory
        _adopt(options.place)
        places, recovered = look(DISK, directory)
        end = recovered.state.next_sequence if options.end is None else options.end
        runs = [(options.start, end - options.start)] if options.start < end else []
        return partitions(plan(DISK, places, recovered, runs), options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the rows. Raises ``CorruptionError``, ``GoneError`` and ``OSError``."""
        splits = partition.value or []  # Spark makes one partition of none
        return batches(self._options.place, splits, not self._options.fail_on_data_loss)


def partitions(splits: list[Split], least: int) -> list[InputPartition]:
    """The splits as Spark's partitions, in order: at least about so many, where there is enough."""
    total_bytes = sum(split.length_bytes for split in splits)
    most_bytes = max(min(PARTITION_BYTES, -(-total_bytes // least)), 1)
    return [InputPartition(group) for group in partition(splits, most_bytes)]


def batches(place: Place, splits: list[Split], skips: bool) -> Iterator[pa.RecordBatch]:
    """The items of the splits as rows, a few mebibytes at a time. Raises what ``splits.read`` raises."""
    some: list[Found] = []
    rows = size_bytes = 0
    for split in splits:
        for found in read(DISK, place.directory, split, skips):
            some.append(found)
            rows += len(found.items)
            size_bytes += sum(map(len, found.items))
            if rows >= _BATCH_ROWS or size_bytes >= _BATCH_BYTES:
                yield _batch(some, rows)
                some, rows, size_bytes = [], 0, 0
    if some:
        yield _batch(some, rows)


def _batch(some: list[Found], rows: int) -> pa.RecordBatch:
    items = [item for found in some for item in found.items]
    ends = np.zeros(rows + 1, np.int64)
    np.cumsum(np.fromiter(map(len, items), np.int64, rows), out=ends[1:])
    if ends[-1] > _VALUE_BYTES_MAX:
        raise ValueError(f"an item near offset {some[-1].first} exceeds the {_VALUE_BYTES_MAX} bytes that Spark holds")
    counts = [len(found.items) for found in some]
    offsets = np.concatenate([np.arange(each.first, each.first + len(each.items), dtype=np.int64) for each in some])
    times = np.repeat(np.array([each.time_ns // 1000 for each in some], np.int64), counts)
    columns = [
        _column(pa.binary(), rows, ends.astype(np.int32), b"".join(items)),
        _column(pa.int64(), rows, offsets),
        _column(pa.timestamp("us", tz="UTC"), rows, times),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW_SCHEMA)


def _column(kind: pa.DataType, rows: int, *buffers: Any) -> pa.Array:
    """A column of what lies in memory as Arrow wants it."""
    return pa.Array.from_buffers(kind, rows, [None, *map(pa.py_buffer, buffers)])


def _adopt(place: Place) -> None:
    """Let what is published come into the queue, if there is any and nobody owns it."""
    with suppress(PersistentQueueError, OSError):
        if count_published(place.path, place.queue):
            PersistentQueue(place.path, place.queue, create=False).close()

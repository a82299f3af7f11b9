"""The common parts of batch and streaming reads: splits become partitions, and items become rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampType

from persistentqueue import PersistentQueue, PersistentQueueError
from persistentqueue.interprocess import Found, Split, count_published, partition, read
from persistentqueue.system.disk import DISK

from .options import Place
from .workers import settle

SCHEMA = StructType(
    [StructField("value", BinaryType()), StructField("offset", LongType()), StructField("timestamp", TimestampType())]
)
PARTITION_BYTES = 64 * 1024 * 1024
"""Approximate number of bytes that one task reads, unless the options ask for more partitions."""
_ARROW_SCHEMA = pa.schema([("value", pa.binary()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC"))])
_BATCH_ROWS, _BATCH_BYTES = 10_000, 4 * 1024 * 1024
_VALUE_BYTES_MAX = 2**31 - 64
"""The longest array of bytes that Java can hold."""


def partitions(splits: list[Split], least: int) -> list[InputPartition]:
    """Return the splits as partitions of Spark, in order: about ``least`` of them or more, if there are enough bytes.

    Without splits, return one partition without any: versions of Spark differ in what they make of an empty list.
    """
    total_bytes = sum(split.length_bytes for split in splits)
    most_bytes = max(min(PARTITION_BYTES, -(-total_bytes // least)), 1)
    return [InputPartition(group) for group in partition(splits, most_bytes)] or [InputPartition([])]


def batches(place: Place, splits: list[Split], skips: bool) -> Iterator[pa.RecordBatch]:
    """Yield the items of the splits as rows, a few mebibytes at a time. Raises what ``splits.read`` raises."""
    settle()
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
        raise ValueError(
            f"an item near offset {some[-1].first} exceeds the {_VALUE_BYTES_MAX} bytes that Spark can hold: "
            "consume it without Spark"
        )
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
    """Return a column from buffers in the layout of Arrow, without a null."""
    return pa.Array.from_buffers(kind, rows, [None, *map(pa.py_buffer, buffers)])


def adopt(place: Place) -> None:
    """Open the queue for a moment, so that it adopts published transactions; do nothing if there are none.

    If another process owns the queue, it adopts them itself, so that every error is ignored here.
    """
    with suppress(PersistentQueueError, OSError):
        if count_published(place.path, place.queue):
            PersistentQueue(place.path, place.queue, create=False).close()

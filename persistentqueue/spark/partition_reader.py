"""The common parts of batch and streaming reads: splits become partitions, and blocks become rows in Arrow's layout.

No step touches an item by itself. A block stores the lengths of its items, and their payloads back to back. Arrow
stores the ends of the values, and the values back to back. So the payload of a block becomes a column as it lies there,
and a cumulative sum makes the ends of the lengths. Several small blocks are joined to one batch.

Typed rows are batches already, or are decoded one by one (see ``rows``). The rows of small items are joined, too.

Without the column ``value``, only the headers of blocks are read. Spark tells a Python data source neither which
columns a query needs nor that it only counts: Spark's ``PythonScan`` prunes no columns. So the options choose the
columns, and Spark's own functions then work on what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampType

from persistentqueue import Options, PersistentQueue, PersistentQueueError
from persistentqueue.interprocess import Columns, FoundRun, Split, list_published, partition, read_columns
from persistentqueue.rows import SchemaMismatchError
from persistentqueue.rows.codec import RowBatches
from persistentqueue.rows.registry import Registry
from persistentqueue.rows.schema import Schema, need_readable, schema_from_json
from persistentqueue.system.disk import DISK

from .options import ITEM_COLUMNS, Place, Reading
from .workers import settle

_KINDS = {
    "value": (BinaryType(), pa.binary()),
    "offset": (LongType(), pa.int64()),
    "items": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
}
PARTITION_BYTES, PARTITION_BYTES_MAX = 64 * 1024 * 1024, 128 * 1024 * 1024
"""Approximate maximum of bytes that one task reads: by default, and if the options ask for a number of partitions.

More tasks use more cores, but two tasks for each core take longer than one. So a number is kept if it can be. Spark's
own files have the second maximum, too (``spark.sql.files.maxPartitionBytes``)."""
_SLACK = 0.25
"""Part by which a partition may be longer or shorter by default, so that segments are not cut.

A number that was asked for is that of the cores, perhaps, and then the largest partition decides."""
_BATCH_ROWS, _BATCH_BYTES = 10_000, 256 * 1024
"""Bounds of a batch of several blocks. A full block is a batch of its own, and its payload is not copied."""
_VALUE_BYTES_MAX = 2**31 - 64
"""The longest array of bytes that Java can hold."""
_LENGTH = np.dtype("<u4")


def schema_of(columns: Sequence[str]) -> StructType:
    """Return the schema of rows with these columns."""
    return StructType([StructField(name, _KINDS[name][0]) for name in columns])


SCHEMA = schema_of(ITEM_COLUMNS)


def registered_schema(place: Place, format_name: str, columns: Sequence[str]) -> StructType:
    """Return the schema of typed rows: these columns of the newest schema of the queue, or all of them.

    Raises ``SchemaNotFoundError``, ``SchemaMismatchError`` for another format, and ``ValueError`` for an unknown name.
    """
    newest = Registry(place.path, place.queue).newest()
    need_format(place, newest.format, format_name)
    found = {column.name: column for column in newest.schema.columns}
    unknown = [name for name in columns if name not in found]
    if unknown:
        raise ValueError(f"columns: the rows have no column {unknown[0]!r}: they have {', '.join(found)}")
    return StructType.fromJson(Schema(tuple(found[name] for name in columns or found)).to_json())


def rows_to_read(options: Reading, schema: StructType) -> RowBatches | None:
    """Return what reads typed rows with this schema; None if the items are read as they are.

    Raises ``ValueError`` for another schema than that of the items, or of the option ``columns``. Raises
    ``SchemaMismatchError`` if the rows of the queue cannot be read with this schema.
    """
    place, columns = options.place, options.columns
    if options.format == "value":
        if schema != schema_of(columns):
            expected, found = schema_of(columns).simpleString(), schema.simpleString()
            raise ValueError(
                f"persistentqueue reads {expected}, not {found}: give no schema, but the names in the option columns"
            )
        return None
    if columns and tuple(schema.fieldNames()) != columns:
        raise ValueError(f"the schema has the columns {', '.join(schema.fieldNames())}: leave the option columns out")
    registry, wanted = Registry(place.path, place.queue), schema_from_json(schema.jsonValue())
    for registered in registry.all()[-1:]:
        need_format(place, registered.format, options.format)
        need_readable(place.directory, registered.schema, wanted)
    return RowBatches(registry, options.format, None, wanted)


def need_format(place: Place, stored: str, asked: str) -> None:
    """Raise ``SchemaMismatchError`` if the rows of the queue are stored in another format than the options ask for."""
    if stored != asked:
        raise SchemaMismatchError(place.directory, None, stored, asked, f"set the option format to {stored}")


def partitions(splits: list[Split], least: int) -> list[InputPartition]:
    """Return the splits as partitions of Spark of about equal size, in order: ``least`` of them or more, if not 0.

    There are fewer if items are few and long. Without splits, return one partition without any: versions of Spark
    differ in what they make of an empty list.
    """
    total_bytes = sum(split.length_bytes for split in splits)
    most_bytes, slack = (PARTITION_BYTES_MAX, 0.0) if least else (PARTITION_BYTES, _SLACK)
    groups = partition(splits, max(least, -(-total_bytes // most_bytes), 1), slack)
    return list(map(InputPartition, groups)) or [InputPartition([])]


def batches(
    options: Reading, splits: list[Split], typed: RowBatches | None, is_wanted: Callable[[int], bool] = lambda _: True
) -> Iterator[pa.RecordBatch]:
    """Yield the items of the splits as rows, about a block at a time: with the columns of the options, or typed rows.

    Args:
        options: The options of the read.
        splits: The splits.
        typed: Converts the items to typed rows; None if the items are read as they are.
        is_wanted: Whether the blocks of this time, in nanoseconds since the epoch, are read. Default: All are.

    Raises what ``splits.read`` raises, and ``CodecError`` for an item that is no row.
    """
    settle()
    rows = _Rows(options, typed)
    directory, skips = options.place.directory, not options.fail_on_data_loss
    for split in splits:
        for run in read_columns(DISK, directory, split, skips, has_values=rows.has_values, is_wanted=is_wanted):
            part = rows.cut(run)
            if rows.count and rows.size_bytes + len(part.payload) > _BATCH_BYTES:
                yield from rows.take()
            rows.add(run, part)
            if rows.count >= _BATCH_ROWS:
                yield from rows.take()
    if rows.count:
        yield from rows.take()


def _as_one(batches: list[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Return the rows as one batch; a single batch is not copied."""
    if len(batches) == 1:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


class _Rows:
    """Runs of items that become one batch."""

    def __init__(self, options: Reading, typed: RowBatches | None) -> None:
        self._options, self._typed = options, typed
        self.has_values = typed is not None or "value" in options.columns
        self._cut: tuple[Columns | None, npt.NDArray[np.int64]] = None, np.zeros(0, np.int64)
        """The last block that was cut, and the ends of its items: a block may have many runs."""
        self._clear()

    def cut(self, run: FoundRun) -> Columns:
        """Return the items of the run; empty columns if they were not read. Raises ``ValueError`` for a huge item."""
        columns, start, stop = run.columns, run.start, run.start + run.count
        if columns is None:
            return _NONE
        if len(columns.payload) > _VALUE_BYTES_MAX:  # then it is a single item
            raise ValueError(
                f"an item near offset {run.first} exceeds the {_VALUE_BYTES_MAX} bytes that Spark can hold: "
                "consume it without Spark"
            )
        if run.count == len(columns):
            return columns
        if self._cut[0] is not columns:
            self._cut = columns, _ends(columns.lengths, np.int64)
        begin, end = self._cut[1][[start, stop]].tolist()
        step = _LENGTH.itemsize
        return Columns(columns.lengths[step * start : step * stop], columns.payload[begin:end])

    def add(self, run: FoundRun, part: Columns) -> None:
        """Add a run, with the items that ``cut`` has returned."""
        self._runs.append(run)
        self._parts.append(part)
        self.count += 1 if self._options.by_block else run.count
        self.size_bytes += len(part.payload)

    def take(self) -> Iterable[pa.RecordBatch]:
        """Return all that was added as one batch, and forget it."""
        if self._typed is not None:
            items = chain.from_iterable(map(_items, self._parts))
            sequences = chain.from_iterable(range(run.first, run.first + run.count) for run in self._runs)
            found = _as_one(self._typed.batch_of(list(items), sequences))
        else:
            schema = pa.schema([(name, _KINDS[name][1]) for name in self._options.columns])
            columns = [self._column(field.name, field.type) for field in schema]
            found = [pa.RecordBatch.from_arrays(columns, schema=schema)]
        self._clear()
        return found

    def _column(self, name: str, kind: pa.DataType) -> pa.Array:
        if name == "value":
            ends = _ends(_joined([part.lengths for part in self._parts]), np.int32)
            return _array(kind, self.count, ends, _joined([part.payload for part in self._parts]))
        counts = np.array([run.count for run in self._runs], np.int64)
        if name == "items":
            return _array(kind, self.count, counts)
        firsts = np.array([run.first if name == "offset" else run.time_ns // 1000 for run in self._runs], np.int64)
        if self._options.by_block:
            return _array(kind, self.count, firsts)
        if name == "offset":  # in each run, the sequences count up with the rows
            return _array(
                kind, self.count, np.repeat(firsts - counts.cumsum() + counts, counts) + np.arange(self.count)
            )
        return _array(kind, self.count, np.repeat(firsts, counts))

    def _clear(self) -> None:
        self._runs: list[FoundRun] = []
        self._parts: list[Columns] = []
        self.count = self.size_bytes = 0


_NONE = Columns(b"", b"")


def _items(part: Columns) -> list[memoryview]:
    payload = memoryview(part.payload)
    return [payload[begin:end] for begin, end in pairwise(_ends(part.lengths, np.int64).tolist())]


def _ends(lengths: bytes | memoryview, kind: type[Any]) -> npt.NDArray[Any]:
    """Return where each of the items begins, and where the last one ends."""
    sizes = np.frombuffer(lengths, _LENGTH)
    ends = np.zeros(len(sizes) + 1, kind)
    np.cumsum(sizes, dtype=kind, out=ends[1:])
    return ends


def _joined(parts: Sequence[bytes | memoryview]) -> bytes | memoryview:
    """Return the parts back to back; a single one is not copied."""
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _array(kind: pa.DataType, rows: int, *buffers: Any) -> pa.Array:
    """Return a column from buffers in the layout of Arrow, without a null."""
    return pa.Array.from_buffers(kind, rows, [None, *map(pa.py_buffer, buffers)])


def adopt(place: Place) -> None:
    """Open the queue for a moment, so that it adopts published transactions; do nothing if there are none.

    If another process owns the queue, it adopts them itself, so that every error is ignored here.
    """
    options = Options(create=False, keep_limits=True, wipe=True, network_disk=place.network_disk)
    with suppress(PersistentQueueError, OSError):
        if list_published(place.path, place.queue):
            PersistentQueue(place.path, place.queue, options=options).close()

"""Writes of the data source: each task writes a part, and the driver's side publishes one manifest of all parts.

No code here takes the queue's lock, or waits for it: the process that started the job may own the queue, and is blocked
until Spark is done. The owner, now or later, adopts the manifest as one transaction.

The promises of Spark, and the handling of each case:

- Attempts of a task may run twice, side by side, and may be killed anywhere. Each attempt writes a part of its own, and
  only the parts whose messages Spark has accepted count.
- A commit may succeed although its answer is lost. Spark then calls abort with the messages of all tasks, and nothing
  is deleted.
- If a message is missing in an abort, Spark never reached the commit. The parts of the other messages are deleted.
- The owner sweeps each part that stays without a manifest for a week.
- A streaming query repeats a batch if it does not know whether the batch was committed. The marker consists of the id
  of the query and the number of the batch, so that the repeated batch adds nothing. It repeats only the last one. An
  earlier one is an error, since it comes from an older copy of the checkpoint, and can have other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from persistentqueue import (
    BrokenQueueError,
    Producer,
)
from persistentqueue.interprocess import (
    Columns,
    Part,
    PartWriter,
    publish_parts,
    published_version,
    remove_parts,
    wrong_keys,
)
from persistentqueue.rows.codec import RowBatches, register_rows
from persistentqueue.rows.registry import Registry
from persistentqueue.rows.schema import Column, Schema, schema_from_json, with_nulls
from persistentqueue.system.disk import DISK

from .options import Place, WriteOptions, stream_write_options, write_options
from .partition_reader import need_format
from .workers import QUERY_ID, need_next, settle

_ArrowStreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)
"""The base of the stream writer, which gets Arrow batches; up to Spark 4.0 it gets rows."""
_BATCH_ROWS = 10_000
"""Rows of Spark 4.0 that become one batch of typed rows."""


@dataclass
class Message(WriterCommitMessage):
    """The message of a task to the commit."""

    part: Part | None
    """The part that the task wrote; None if it had no rows."""
    query: str | None
    """The id of the streaming query; None in a batch job."""


class _Writer:
    """The common part of the writers: their tasks."""

    def __init__(self, options: WriteOptions, rows: RowBatches | None = None) -> None:
        self._options, self._rows = options, rows

    def write(self, iterator: Iterator[Any]) -> Message:
        """Write a part, in a task."""
        return _write(self._options.place, iterator, self._rows)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Appends the rows of one job as one transaction."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the parts durably; if their marker was reached before, they add nothing."""
        place, parts = self._options.place, _parts(messages)
        with _dropping(place, parts):
            publish_parts(place.path, place.queue, parts, self._options.marker)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the parts if they are known not to be published."""
        _abort(self._options.place, messages)


class StreamWriter(_Writer, _ArrowStreamWriter):  # type: ignore[misc]
    """Appends the rows of a micro-batch as one transaction, and only once if the batch is repeated."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the parts durably, unless the batch was published before.

        Raises ``OldCheckpointError`` if a later batch of the query was published before.
        """
        queries = {message.query for message in messages if isinstance(message, Message)}
        query = queries.pop() if len(queries) == 1 else None
        if query is None:
            raise RuntimeError(
                "Spark has not told its tasks the id of their query: nothing was published, because a repeated batch "
                "could not be recognized"
            )
        parts = _parts(messages)
        if parts:  # an empty batch may be repeated, so it needs no marker
            place, name = self._options.place, f"spark:{query}"
            with _dropping(place, parts):
                need_next(place.directory, query, batchId, published_version(place.path, place.queue, name))
                publish_parts(place.path, place.queue, parts, (name, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's name
        """Delete the parts if they are known not to be published."""
        _abort(self._options.place, messages)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Return the writer of a job, and make the queue if it does not exist.

    Raises ``ValueError``, ``TypeError`` and what ``Producer`` raises. For typed rows, it registers their schema first,
    and raises ``SchemaMismatchError`` if the schema of the queue may not change so.
    """
    chosen = write_options(options)
    return BatchWriter(chosen, _check(schema, overwrite, chosen))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer of a streaming query, and make the queue if it does not exist. Raises like ``batch_writer``."""
    chosen = stream_write_options(options)
    return StreamWriter(chosen, _check(schema, overwrite, chosen))


def _check(schema: StructType, overwrite: bool, options: WriteOptions) -> RowBatches | None:
    """Return what writes typed rows of this schema, which it registers; None if the items are the values."""
    settle()
    place = options.place
    if overwrite:
        raise ValueError(
            "persistentqueue only appends; only consumers take items out: use mode('append') or outputMode('append')"
        )
    _need_clear_items(place)
    if options.format != "value":
        registry = Registry(place.path, place.queue, place.network_disk)
        registered = register_rows(registry, options.format, _as_rows(schema, registry))
        return RowBatches(registry, options.format, registered.number, registered.schema)
    found = [(field.name, field.dataType) for field in schema.fields]
    if len(found) != 1 or found[0][0].lower() != "value" or not isinstance(found[0][1], BinaryType | StringType):
        raise TypeError(
            "persistentqueue writes exactly one column, named value, of type binary or string; the columns here are "
            f"{', '.join(f'{name} {kind.simpleString()}' for name, kind in found)}: select one such column, for "
            "instance by selectExpr('to_json(struct(*)) AS value'), or write all columns with option('format', 'arrow')"
        )
    Producer(place.path, place.queue, network_disk=place.network_disk).close()
    for registered in Registry(place.path, place.queue, place.network_disk).all()[-1:]:
        need_format(place, registered.format, options.format)  # plain values would fail each read of the rows
    return None


def _need_clear_items(place: Place) -> None:
    """Raise ``ValueError`` if the oldest or the newest item is encrypted: Spark has no key, and writes in the clear.

    An item that cannot be read, or that is consumed meanwhile, refuses nothing.
    """
    for error in wrong_keys(DISK, place.directory):
        raise ValueError(
            f"{place.directory}: the queue has items encrypted with the key {error.key_id!r}, but Spark has no key, "
            "and would write in the clear: write to another queue, or encrypt each value by codecs.Enclosed, in a "
            "queue that is opened without encryption="
        ) from error


def _as_rows(schema: StructType, registry: Registry) -> Schema:
    """Return the schema of a frame, with nulls allowed everywhere: Spark often knows by chance that there are none.

    A column that has no null in the newest schema of the queue keeps this, if Spark knows that there is none.
    """
    found = schema_from_json(schema.jsonValue())
    known = [column for each in registry.all()[-1:] for column in each.schema.columns]
    return Schema(
        tuple(
            column if column in known else Column(column.name, with_nulls(column.kind), nullable=True)
            for column in found.columns
        )
    )


def _write(place: Place, rows: Iterable[Any], typed: RowBatches | None = None) -> Message:
    """Write a part of these rows, or Arrow batches of rows, as values or as typed rows.

    After any error, also one of Spark's iterator, no file is left.
    """
    settle()
    writer = PartWriter(place.path, place.queue)
    try:
        for each in rows if typed is None else _in_batches(rows, typed):
            if typed is not None:
                writer.write(typed.items_of(each))
            elif isinstance(each, pa.RecordBatch):
                writer.write_columns(_columns(each))
            else:
                writer.write([_as_bytes(each[0])])
        context = TaskContext.get()
        return Message(writer.end(), context.getLocalProperty(QUERY_ID) if context is not None else None)
    except BaseException:
        writer.drop()
        raise


def _in_batches(rows: Iterable[Any], typed: RowBatches) -> Iterator[pa.RecordBatch]:
    """Yield the batches of Arrow; rows of Spark 4.0 are collected to batches."""
    for kind, group in groupby(rows, type):
        if issubclass(kind, pa.RecordBatch):
            yield from group
        else:
            while some := list(islice(group, _BATCH_ROWS)):
                yield typed.batch_from(row.asDict(recursive=True) for row in some)


def _columns(batch: pa.RecordBatch) -> Columns:
    """Return the values as the columns of a block: of Arrow's buffers, only the ends of the values are converted."""
    column = batch.column(0)
    if column.null_count:
        raise _null()
    _, ends, payload = column.buffers()
    if not len(column):
        return Columns(b"", b"")
    is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    kind = np.dtype("<i8" if is_large else "<i4")
    found = np.frombuffer(ends, kind, len(column) + 1, column.offset * kind.itemsize)
    view = memoryview(payload if payload is not None else b"")
    return Columns(np.diff(found).astype("<u4").tobytes(), view[int(found[0]) : int(found[-1])])


def _as_bytes(value: bytes | bytearray | str | None) -> bytes:
    if value is None:
        raise _null()
    return value.encode() if isinstance(value, str) else bytes(value)


def _null() -> ValueError:
    return ValueError("a value is null, but an item cannot be null: filter with where('value IS NOT NULL')")


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    return [message.part for message in messages if isinstance(message, Message) and message.part is not None]


@contextmanager
def _dropping(place: Place, parts: list[Part]) -> Iterator[None]:
    """Delete the parts behind an error of the block, unless it is unknown whether they are published."""
    settle()
    try:
        yield
    except BrokenQueueError:
        raise
    except Exception:
        remove_parts(place.path, place.queue, parts)
        raise


def _abort(place: Place, messages: Sequence[WriterCommitMessage | None]) -> None:
    if None in messages:
        remove_parts(place.path, place.queue, _parts(messages))

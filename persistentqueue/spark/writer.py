"""Writing to a queue from Spark: each task writes a part, and the driver's side publishes one manifest of them all.

Nothing here takes the queue's lock, or waits for it: the process that started the job may own the queue, and is blocked
until Spark is done. The owner, now or later, adopts the manifest as one transaction.

What Spark promises, and what is made of it. Attempts of a task may run twice, one beside the other, and be killed
anywhere: each writes a part of its own, and only those count whose messages Spark accepted. A commit may have happened
though it failed: Spark then tells to abort with the messages of all tasks, and nothing is deleted. If a message is
missing, Spark never came to the commit, and the parts of the others go. What nobody deletes is swept by the owner after
a week. A streaming query repeats a batch when it does not know whether it was committed: the marker, of its id and the
number of the batch, makes that nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from persistentqueue import BrokenQueueError, Producer
from persistentqueue.interprocess import Part, PartWriter, publish_parts, remove_parts

from .options import Place, WriteOptions, stream_write_options, write_options
from .workers import QUERY_ID, settle

_HAS_ARROW_STREAMS = hasattr(datasource, "DataSourceStreamArrowWriter")
"""From Spark 4.1 on."""


@dataclass
class Message(WriterCommitMessage):
    """What a task tells whoever commits: its part, if it had any rows, and its query, if it is one of a stream."""

    part: Part | None
    query: str | None


class BatchWriter(DataSourceArrowWriter):
    """Appends the rows of one job, as one transaction."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """In a task: write a part."""
        return _write(self._options.place, map(_values, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the parts: durable on return. With a marker that was reached before they are none."""
        _publish(self._options.place, _parts(messages), self._options.marker)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what surely is not published."""
        _abort(self._options.place, messages)


class _StreamWriter:
    """Appends the rows of a micro-batch, as one transaction, once however often the batch is run."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the parts, unless the batch was published before: durable on return."""
        queries = {message.query for message in messages if isinstance(message, Message)}
        query = queries.pop() if len(queries) == 1 else None
        if query is None:
            raise RuntimeError("Spark does not tell its tasks the id of their query, by which batches are told apart")
        parts = _parts(messages)
        if parts:  # of nothing there is nothing to be repeated
            _publish(self._options.place, parts, (f"spark:{query}", batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's name
        """Delete what surely is not published."""
        _abort(self._options.place, messages)


class RowStreamWriter(_StreamWriter, DataSourceStreamWriter):
    """For Spark 4.0, which hands over rows."""

    def write(self, iterator: Iterator[Any]) -> Message:
        """In a task: write a part."""
        return _write(self._options.place, ([_as_bytes(row[0])] for row in iterator))


if _HAS_ARROW_STREAMS:

    class ArrowStreamWriter(_StreamWriter, datasource.DataSourceStreamArrowWriter):
        """For Spark 4.1 and later."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
            """In a task: write a part."""
            return _write(self._options.place, map(_values, iterator))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of a job; the queue is made if it is not there. Raises ``ValueError``, ``TypeError`` and what
    ``Producer`` raises."""
    chosen = write_options(options)
    _check(schema, overwrite, chosen.place)
    return BatchWriter(chosen)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """The writer of a micro-batch; the queue is made if it is not there. Raises like ``batch_writer``."""
    chosen = stream_write_options(options)
    _check(schema, overwrite, chosen.place)
    return ArrowStreamWriter(chosen) if _HAS_ARROW_STREAMS else RowStreamWriter(chosen)


def _check(schema: StructType, overwrite: bool, place: Place) -> None:
    settle()
    if overwrite:
        raise ValueError(
            "persistentqueue only appends, only consumers take items out: use mode('append'), or outputMode('append')"
        )
    found = [(field.name, field.dataType) for field in schema.fields]
    if len(found) != 1 or found[0][0].lower() != "value" or not isinstance(found[0][1], BinaryType | StringType):
        raise TypeError(
            "persistentqueue writes one column, named value, of type binary or string, and nothing else; here are "
            f"{', '.join(f'{name} {kind.simpleString()}' for name, kind in found)}: select that one, for instance "
            "selectExpr('to_json(struct(*)) AS value')"
        )
    Producer(place.path, place.queue).close()


def _write(place: Place, batches: Iterable[Sequence[bytes]]) -> Message:
    """Write a part of these items. Whatever fails, also Spark's end of the stream, leaves no file."""
    settle()
    writer = PartWriter(place.path, place.queue)
    try:
        for batch in batches:
            writer.write(batch)
        context = TaskContext.get()
        return Message(writer.end(), context.getLocalProperty(QUERY_ID) if context is not None else None)
    except BaseException:
        writer.drop()
        raise


def _values(batch: pa.RecordBatch) -> list[bytes]:
    column = batch.column(0)
    if column.null_count:
        raise _null()
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    values: list[bytes] = column.to_pylist()
    return values


def _as_bytes(value: bytes | bytearray | str | None) -> bytes:
    if value is None:
        raise _null()
    return value.encode() if isinstance(value, str) else bytes(value)


def _null() -> ValueError:
    return ValueError("a value is null, and an item cannot be: leave such rows out, with where('value IS NOT NULL')")


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    return [message.part for message in messages if isinstance(message, Message) and message.part is not None]


def _publish(place: Place, parts: list[Part], marker: tuple[str, int] | None) -> None:
    settle()
    try:
        publish_parts(place.path, place.queue, parts, marker)
    except BrokenQueueError:  # nobody knows whether it is published
        raise
    except Exception:
        remove_parts(place.path, place.queue, parts)
        raise


def _abort(place: Place, messages: Sequence[WriterCommitMessage | None]) -> None:
    if None in messages:
        remove_parts(place.path, place.queue, _parts(messages))

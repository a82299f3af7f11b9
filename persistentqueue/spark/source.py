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

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from persistentqueue.interprocess import look, plan
from persistentqueue.system.disk import DISK

from .options import ReadOptions, read_options
from .partition_reader import SCHEMA, adopt, batches, partitions
from .stream import stream_reader
from .writer import batch_writer, stream_writer


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

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A streaming read; see ``stream``."""
        return stream_reader(self.options, schema)

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
        adopt(options.place)
        places, recovered = look(DISK, directory)
        end = recovered.state.next_sequence if options.end is None else options.end
        runs = [(options.start, end - options.start)] if options.start < end else []
        return partitions(plan(DISK, places, recovered, runs), options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the rows. Raises ``CorruptionError``, ``GoneError``, ``MissingExtraError`` (compressed),
        ``WrongKeyError`` (encrypted) and ``OSError``."""
        return batches(self._options.place, partition.value, not self._options.fail_on_data_loss)

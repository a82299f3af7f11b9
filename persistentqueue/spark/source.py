"""The data source ``persistentqueue``: Spark reads the items of a queue as rows, and writes rows as items.

::

    register(spark)
    frame.select("value").write.format("persistentqueue").mode("append").option("queue", "orders").save("queues")
    spark.read.format("persistentqueue").option("queue", "orders").load("queues")       # value, offset, timestamp

A batch read browses: it shows the items that are not consumed when it is planned, and consumes none. The planner runs
on the driver's side. The tasks read the blocks without the lock, while the owner works, and check each of them. Spark
may run a plan later, and more than once. If an item was consumed meanwhile, and is not there any more, the read fails,
or leaves it out (``failOnDataLoss``). ``offset`` is the sequence of an item, which no other item of the queue has.
``timestamp`` is the time at which its block was written. A block that a compaction has made has the time of its oldest
item.

A published transaction that is not adopted yet has no place in the queue, and is not shown. If the queue has no owner,
the planner opens it for a moment, under the recorded limits, and so adopts the transaction. Otherwise the owner adopts
it when it next looks at its inbox.

All callbacks run in processes of Spark, never in the process that started the job. An object that is made for one
callback is pickled for the next, so that none of them keeps anything open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

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

from persistentqueue.interprocess import Onlooker, plan
from persistentqueue.system.disk import DISK

from .filters import Conditions, is_pushing, pushed
from .options import ReadOptions, chosen_columns, format_of, place_of, read_options
from .partition_reader import adopt, batches, partitions, registered_schema, rows_to_read, schema_of
from .sessions import active
from .stream import stream_reader
from .workers import settle
from .writer import batch_writer, stream_writer


class QueueDataSource(DataSource):
    """The data source ``persistentqueue``, in Spark 4.0 and later. An unknown option raises ``ValueError``.

    Options of all reads and writes:

    - ``path``: The directory of queues, or a queue's own directory. Required. It may be a ``file:`` address. A relative
      path starts in the directory in which the driver's Java was started.
    - ``queue``: The name of the queue in ``path``. Default: ``path`` is the queue's own directory.
    - ``networkDisk``: ``true`` accepts a queue on a network file system, for tries: see ``NetworkDiskError``. Default:
      ``false``.
    - ``format``: ``value``, the default, reads and writes items as they are. ``arrow``, ``avro`` and ``json`` read and
      write typed rows (see ``rows``), whose schemas the queue keeps. A write registers the schema of the frame before
      any task runs, with columns that can be null. A read yields the columns of the newest schema, or those of
      ``.schema(…)``. Then ``columns`` is a list of columns of the rows. An item of ``arrow`` is a batch of rows, so
      that options of offsets count batches.

    Options of ``read``:

    - ``startingOffsets``: ``earliest``, the default, or the first offset to read.
    - ``endingOffsets``: ``latest``, the default, or the first offset not to read.
    - ``minPartitions``: The approximate number of partitions. There are more if one would have over 128 MiB. Default:
      one for each 64 MiB.
    - ``failOnDataLoss``: ``true``, the default: a read fails if an item that was planned is gone. ``false``: it leaves
      the item out.
    - ``columns``: The columns to read, with commas between them. Default: ``value,offset,timestamp``. Spark does not
      tell a Python data source which columns a query needs. So ``columns=offset`` makes a ``count()`` cheaper: without
      ``value``, only the headers of blocks are read. Then damage in a body is not found, and no key is needed.
    - ``rows``: ``items``, the default, or ``blocks``: a row for the consecutive items of each block, with the columns
      ``offset`` (of the first item), ``items`` (their number) and ``timestamp``. The sum of ``items`` is the number of
      items, without a row for each.

    Spark 4.1 and later push filters on ``offset`` and ``timestamp`` down to a batch read of items, if
    ``spark.sql.python.filterPushdown.enabled`` is true: segments and blocks without such items are not read.

    Options of ``readStream``, which has ``minPartitions``, ``failOnDataLoss`` and ``columns`` as well:

    - ``subscription``: The name of this consumer of the queue. Required.
    - ``startingOffsets``: The beginning of a new query whose subscription does not exist yet: ``earliest``, the
      default, ``latest``, or an offset. An offset beyond the end of the queue fails the query.
    - ``maxOffsetsPerTrigger``: Most items in one micro-batch, above 0. Default: no limit.
    - ``maxBytesPerTrigger``: Approximate limit of the bytes in one micro-batch, above 0. A batch has one item at least.
      Default: no limit.

    Options of ``write``; ``writeStream`` has no further ones:

    - ``txnAppId`` and ``txnVersion``: The name of the writer, and a number that grows from write to write. A job with
      the name and the number of an earlier one adds nothing. Default: each job adds its rows.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "persistentqueue"

    def schema(self) -> StructType:
        """Return the schema of the rows that a read with these options yields: for typed rows, that of the queue.

        Raises ``ValueError``, and for typed rows ``SchemaNotFoundError`` and ``SchemaMismatchError``.
        """
        settle()
        columns, name = chosen_columns(self.options), format_of(self.options)
        return schema_of(columns) if name == "value" else registered_schema(place_of(self.options), name, columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch. Raises ``ValueError`` for an unknown option or value, or another schema."""
        options = read_options(self.options)
        # A column of typed rows may be named offset, too: no filter of theirs is taken over.
        filters = is_pushing() and not options.by_block and options.format == "value"
        return (FilteringReader if filters else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream, which ``stream`` describes."""
        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch, which ``writer`` describes."""
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return the writer of a stream, which ``writer`` describes."""
        return stream_writer(self.options, schema, overwrite)


def register(spark: SparkSession) -> None:
    """Register the format ``persistentqueue`` with a session; a second call has no effect.

    The options of the format are described at ``QueueDataSource`` in ``persistentqueue.spark.source``.

    Classic Spark finds the format only in a thread that has an active session. So each thread of the program that uses
    the format calls this function first. If the thread has no active session, ``spark`` becomes the active one. Stages
    of a pipeline and functions of ``foreachBatch`` need no call.

    Args:
        spark: The session whose ``read``, ``write``, ``readStream`` and ``writeStream`` then know the format.
    """
    with active(spark):
        spark.dataSource.register(QueueDataSource)


class BatchReader(DataSourceReader):
    """Reads the items of a queue without consuming them."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._rows = rows_to_read(options, schema)
        self._options = options
        self._conditions = Conditions()

    def partitions(self) -> list[InputPartition]:
        """Plan the read, and return its partitions.

        Raises ``QueueNotFoundError``, ``DataMissingError``, ``CorruptionError`` and ``OSError``.
        """
        settle()
        options, directory = self._options, self._options.place.directory
        adopt(options.place)
        places, recovered = Onlooker(DISK, directory, asks=True).look()
        end = recovered.state.next_sequence if options.end is None else options.end
        ranges = [(max(low, options.start), min(high, end)) for low, high in self._conditions.offsets]
        runs = [(low, high - low) for low, high in ranges if low < high]
        return partitions(plan(DISK, places, recovered, runs), options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, in a task.

        Raises ``CorruptionError``, ``GoneError``, ``MissingExtraError`` (compressed), ``WrongKeyError`` (encrypted),
        ``CodecError`` (an item that is no row) and ``OSError``.
        """
        return batches(self._options, partition.value, self._rows, self._conditions.lets_through)


class FilteringReader(BatchReader):
    """A reader that leaves out what Spark's filters on ``offset`` and ``timestamp`` leave out."""

    def pushFilters(self, filters: Iterable[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        """Take over the filters that ``filters`` describes, and return the others."""
        self._conditions, left = pushed(filters)
        return left

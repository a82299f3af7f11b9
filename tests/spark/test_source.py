"""The data source: Spark writes to queues and reads them, beside their owners, exactly once."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType

from persistentqueue import CorruptionError, Encryption, InvalidNameError, PersistentQueue, check
from persistentqueue.engine.inbox import PART_SECONDS_KEPT
from persistentqueue.errors import BrokenQueueError
from persistentqueue.interprocess import Split
from persistentqueue.spark import partition_reader, register
from persistentqueue.spark import writer as writers
from persistentqueue.spark.options import read_options, stream_write_options, write_options
from persistentqueue.spark.partition_reader import SCHEMA, partitions
from persistentqueue.spark.source import QueueDataSource
from persistentqueue.storage.publication import is_part, is_published
from tests.support.queues import drain, flip, put, segment_files
from tests.support.spark_modes import IS_CONNECT, after_first_task

pytestmark = pytest.mark.spark


def append(frame: DataFrame, root: Path, queue: str = "q", name: str = "persistentqueue", **options: str | int) -> None:
    """Write the frame to the queue."""
    frame.write.format(name).mode("append").options(queue=queue, **options).save(str(root))


def load(spark: SparkSession, root: Path, queue: str = "q", **options: str | int) -> DataFrame:
    """Return a frame of the queue's content."""
    return spark.read.format("persistentqueue").options(queue=queue, **options).load(str(root))


def values(spark: SparkSession, *numbers: int) -> DataFrame:
    """Return a frame of these numbers, as texts, in two partitions, in order."""
    return spark.range(len(numbers), numPartitions=2).select(
        F.element_at(F.array(*map(F.lit, numbers)), (F.col("id") + 1).cast("int")).cast("string").alias("value")
    )


def failing(spark: SparkSession) -> DataFrame:
    """Return a frame that no job can compute."""
    return spark.range(1).select(F.raise_error(F.lit("the job ran")).cast("string").alias("value"))


def count_partitions(frame: DataFrame) -> int:
    """Return the number of partitions with a row."""
    return frame.select(F.spark_partition_id()).distinct().count()


def inbox(root: Path, queue: str = "q") -> list[str]:
    return sorted(os.listdir(root / queue / "inbox"))


def taken(root: Path, queue: str = "q") -> list[bytes]:
    """Open the queue, and take all items."""
    with PersistentQueue(str(root), queue) as opened:
        return drain(opened)


def sweep(root: Path) -> None:
    """Let the files in the inbox grow old, and let the owner open the queue: then none is left."""
    old = time.time() - PART_SECONDS_KEPT - 60
    for name in inbox(root):
        os.utime(root / "q" / "inbox" / name, (old, old))
    PersistentQueue(str(root), "q").close()
    assert inbox(root) == []


# --- there and back --------------------------------------------------------------------------------------------------


def test_there_and_back(spark: SparkSession, tmp_path: Path) -> None:
    """Text or bytes that Spark writes come out of the queue in the order of the partitions.

    Spark reads them in the order of the offsets, with the time of their writing, and consumes nothing.
    """
    began = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=1)
    append(values(spark, *range(10)), tmp_path)
    append(values(spark, 10, 11).select(F.col("value").cast("binary").alias("VALUE")), tmp_path)
    frame = load(spark, tmp_path)
    assert frame.schema == SCHEMA
    rows = frame.collect()
    assert [(bytes(row.value), row.offset) for row in rows] == [(b"%d" % n, n) for n in range(12)]
    times = [row.timestamp.replace(tzinfo=datetime.timezone.utc) for row in rows]
    assert all(began <= at <= datetime.datetime.now(datetime.timezone.utc) for at in times)
    assert taken(tmp_path) == [b"%d" % n for n in range(12)]
    assert load(spark, tmp_path).collect() == []


def test_beside_an_owner(spark: SparkSession, tmp_path: Path) -> None:
    """While a process owns the queue, Spark writes at once, and reads the content of the log.

    Each write is a transaction that the owner's next dequeue gets.
    """
    with PersistentQueue(str(tmp_path), "q") as queue, queue.session() as session:
        put(queue, b"small")  # only the log has it
        put(queue, bytes(500_000), b"large")
        session.enqueue(b"not flushed")
        append(values(spark, 1, 2), tmp_path)
        read = [bytes(row.value) for row in load(spark, tmp_path).collect()]
        assert read == [b"small", bytes(500_000), b"large"]
        session.rollback()
        assert session.dequeue_many(3) == read
        assert session.dequeue_many(9) == [b"1", b"2"]
        assert load(spark, tmp_path).count() == 5
        session.flush()
        assert load(spark, tmp_path).count() == 0


@pytest.mark.skipif(IS_CONNECT, reason="a session of Spark Connect has no sessions beside it, and no active one")
def test_each_session_may_have_the_format(spark: SparkSession, tmp_path: Path) -> None:
    """A second session registers the format, also again, and uses it. The active session of the thread stays."""
    before, other = SparkSession.getActiveSession(), spark.newSession()
    register(other)
    register(other)
    append(values(other, 1, 2), tmp_path)
    assert load(other, tmp_path).count() == 2
    assert before is not None and SparkSession.getActiveSession() is before


def test_a_thread_that_registers_writes(spark: SparkSession, tmp_path: Path) -> None:
    """A thread without an active session uses the format when it has registered it."""

    def work() -> int:
        register(spark)
        append(values(spark, 1, 2), tmp_path)
        return load(spark, tmp_path).count()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result(300) == 2


@pytest.mark.parametrize(("asked", "found"), [(0, 4), (1, 2), (2, 2), (3, 3), (8, 8)])
def test_partitions_of_many_bytes(asked: int, found: int) -> None:
    """A read of 200 MiB has a partition for each 64 MiB, or as many as requested, if none has more than 128 MiB."""
    split = Split(("file",), 1, 2, 64, 64 + 200 * 1024 * 1024, 0, 2000, 0, ((0, 2000),), None)
    assert len(partitions([split], asked)) == found


def test_partitions_and_offsets(spark: SparkSession, tmp_path: Path) -> None:
    """A read has as many partitions as requested, and only the requested offsets."""
    with PersistentQueue(str(tmp_path), "q") as queue:
        put(queue, *(b"%d" % n for n in range(1000)))
    frame = load(spark, tmp_path, minPartitions=4)
    assert count_partitions(frame) == 4
    assert [row.offset for row in frame.collect()] == list(range(1000))
    some = load(spark, tmp_path, startingOffsets=10, endingOffsets=20)
    assert [row.offset for row in some.collect()] == list(range(10, 20))
    assert count_partitions(some) == 1
    assert load(spark, tmp_path, startingOffsets=2000).count() == 0


def test_batches_are_of_bounded_size(tmp_path: Path) -> None:
    """A partition of any size, consumed in any way, comes in batches of a few mebibytes."""
    with PersistentQueue(str(tmp_path), "q") as queue:
        put(queue, *(bytes(100_000) for _ in range(200)))
        put(queue, *(b"%d" % n for n in range(25_000)))
        with queue.session() as session:
            for number in range(30):
                session.dequeue()
                if number % 2:
                    session.flush()
                else:
                    session.rollback()
    offsets: list[int] = []
    for batch in read_all(tmp_path):
        assert batch.nbytes < 6 * 1024 * 1024
        offsets += batch.column(1).to_pylist()
    assert offsets == list(range(15, 25_200))


def test_an_item_that_spark_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that is longer than Java allows raises an error."""
    with PersistentQueue(str(tmp_path), "q") as queue:
        put(queue, bytes(2000))
    monkeypatch.setattr(partition_reader, "_VALUE_BYTES_MAX", 1000)
    reader = QueueDataSource({"path": str(tmp_path / "q")}).reader(SCHEMA)
    with pytest.raises(ValueError, match="near offset 0"):
        list(reader.read(reader.partitions()[0]))


# --- refused writes and reads ----------------------------------------------------------------------------------------


def test_what_cannot_be_written_is_refused_before_the_job(spark: SparkSession, tmp_path: Path) -> None:
    """If a frame cannot be written, no task runs, and no queue is made."""
    writer = failing(spark).withColumnRenamed("value", "item").write.format("persistentqueue").mode("append")
    with pytest.raises(PySparkException, match="one column, named value"):
        writer.option("queue", "q").save(str(tmp_path / "queues"))
    assert not (tmp_path / "queues").exists()


@pytest.mark.parametrize(
    ("columns", "overwrite", "options", "error", "match"),
    [
        ({"value": StringType(), "key": IntegerType()}, False, {}, TypeError, "here are value string, key int"),
        ({"value": IntegerType()}, False, {}, TypeError, "here are value int"),
        ({"value": StringType()}, True, {}, ValueError, "only appends"),
        (
            {"value": StringType()},
            False,
            {"valuee": "x"},
            ValueError,
            "has no option valuee: it has path, queue, networkDisk, txnAppId",
        ),
        ({"value": StringType()}, False, {"txnAppId": "me"}, ValueError, "belong together"),
        ({"value": StringType()}, False, {"queue": "../q"}, InvalidNameError, "cannot be a queue's name"),
    ],
)
def test_what_cannot_be_written(
    tmp_path: Path,
    columns: dict[str, DataType],
    overwrite: bool,
    options: dict[str, str],
    error: type[Exception],
    match: str,
) -> None:
    """A wrong column, type, mode or option raises an error that names it, and no queue is made."""
    source = QueueDataSource({"path": str(tmp_path / "queues"), "queue": "q"} | options)
    with pytest.raises(error, match=match):
        source.writer(StructType([StructField(*column) for column in columns.items()]), overwrite)
    assert not (tmp_path / "queues").exists()


def test_options_that_make_no_sense() -> None:
    """The error for a wrong option says which values are allowed."""
    for options, match in (
        ({}, "needs a path.* A table of a catalog does not pass its path: use load"),
        ({"path": "p", "startingOffsets": "latest"}, "startingOffsets is earliest or"),
        ({"path": "p", "endingOffsets": "earliest"}, "endingOffsets is latest or"),
        ({"path": "p", "endingOffsets": "-1"}, "endingOffsets is latest or"),
        ({"path": "p", "minPartitions": "many"}, "minPartitions is a number"),
        ({"path": "p", "failOnDataLoss": "maybe"}, "true or false"),
        ({"path": "p", "txnAppId": "x"}, "read of persistentqueue has no option txnappid"),
    ):
        with pytest.raises(ValueError, match=match):
            read_options(options)
    with pytest.raises(ValueError, match="txnVersion is a number"):
        write_options({"path": "p", "txnAppId": "x", "txnVersion": "1.5"})
    for app, version in (("x", 2**64), ("é" * 32_768, 1)):
        with pytest.raises(ValueError, match="txnAppId and txnVersion must be a name of 1 to 65,535 bytes") as caught:
            write_options({"path": "p", "txnAppId": app, "txnVersion": str(version)})
        assert len(str(caught.value)) < 500
    assert write_options({"path": "p", "txnAppId": "x", "txnVersion": str(2**64 - 1)}).marker == ("x", 2**64 - 1)
    with pytest.raises(ValueError, match="writeStream of persistentqueue has no option txnappid"):
        stream_write_options({"path": "p", "txnAppId": "x"})
    assert stream_write_options({"path": "p", "checkpointLocation": "c"}).place.directory == os.path.abspath("p")


@pytest.mark.parametrize("stream", [False, True], ids=["batch", "stream"])
def test_no_name_leads_out_of_the_directory(tmp_path: Path, stream: bool) -> None:
    """A name that no queue can have is refused by reads as by writes, also if there is a queue at that path."""
    PersistentQueue(str(tmp_path), "q").close()
    options = {"path": str(tmp_path / "queues"), "queue": "../q"}
    with pytest.raises(InvalidNameError, match="cannot be a queue's name"):
        if stream:
            QueueDataSource(options | {"subscription": "s"}).streamReader(SCHEMA)
        else:
            QueueDataSource(options).reader(SCHEMA)


@pytest.mark.parametrize("chosen", ["value", "json"])
@pytest.mark.parametrize("encrypted", ["0", "2"])
def test_clear_items_beside_encrypted_ones_are_refused(tmp_path: Path, chosen: str, encrypted: str) -> None:
    """If the oldest or the newest item is encrypted, a write is refused before any task, and the error says what to do.

    When the encrypted items are consumed, the write is accepted.
    """
    key = Encryption("k", lambda _: bytes(16))
    for number in "012":
        with PersistentQueue(tmp_path, "q", encryption=key if number == encrypted else None) as queue:
            put(queue, number.encode())
    source = QueueDataSource({"path": str(tmp_path), "queue": "q", "format": chosen})
    for write in (source.writer, source.streamWriter):
        with pytest.raises(
            ValueError, match=r"q: the queue has items encrypted with the key 'k', but .*codecs\.Enclosed"
        ):
            write(TEXTS, False)
    assert not (tmp_path / "q" / "schemas").exists()
    with PersistentQueue(tmp_path, "q", encryption=key) as queue:
        assert len(drain(queue)) == 3
    source.writer(TEXTS, False)


@pytest.mark.parametrize("path", ["file:///a b/q", "file:/a b/q", "FILE://localhost/a b/q", "/a b/q"])
def test_a_path_may_be_a_local_address(path: str) -> None:
    """A local address of a file stands for the path in it."""
    assert read_options({"path": path}).place.directory == "/a b/q"


@pytest.mark.parametrize("path", ["s3a://bucket/q", "hdfs://bucket", "file://elsewhere/q"])
def test_an_address_elsewhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """An address that is not local raises an error, and no directory of that name is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="on a local file system"):
        QueueDataSource({"path": path}).writer(TEXTS, False)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read(spark: SparkSession, tmp_path: Path) -> None:
    """Reading a queue that does not exist does not make it, and no other columns are read."""
    with pytest.raises(PySparkException, match="no queue here"):
        load(spark, tmp_path / "nowhere").count()
    assert not (tmp_path / "nowhere").exists()
    other = StructType([StructField("value", StringType()), StructField("offset", LongType())])
    with pytest.raises(ValueError, match="persistentqueue reads struct<value:binary,offset:bigint,timestamp"):
        QueueDataSource({"path": str(tmp_path)}).reader(other)


@pytest.mark.damages
def test_damage_is_told_of(spark: SparkSession, tmp_path: Path) -> None:
    """A byte that flipped since it was written raises an error that names the file, and yields no row."""
    with PersistentQueue(str(tmp_path), "q") as queue:
        put(queue, *(b"%d" % n for n in range(100_000)))
    frame = load(spark, tmp_path)
    assert frame.count() == 100_000
    flip(segment_files(tmp_path / "q")[0], 300_000)
    with pytest.raises(PySparkException, match=r"data/\d+\.seg: damaged at offset"):
        frame.count()


def test_what_is_compressed_is_read_and_what_is_encrypted_is_told_of(spark: SparkSession, tmp_path: Path) -> None:
    """Compressed blocks are read; an encrypted block raises an error that says so, and yields no row."""
    with PersistentQueue(str(tmp_path), "q", compression="zstd") as queue:
        put(queue, *[b"%09d" % n for n in range(10_000)])
        assert queue.stats().live_bytes < 90_000
    assert [bytes(row.value) for row in load(spark, tmp_path).collect()] == [b"%09d" % n for n in range(10_000)]
    with PersistentQueue(str(tmp_path), "q", encryption=Encryption("k", lambda key_id: bytes(32))) as queue:
        put(queue, b"secret")
    with pytest.raises(PySparkException, match=r"data/\d+\.seg: the block at offset \d+ is encrypted with the key 'k'"):
        load(spark, tmp_path).collect()


@pytest.mark.skipif(IS_CONNECT, reason="Spark Connect has no RDD, and plans a frame again for each action")
def test_what_was_consumed_since_it_was_planned(spark: SparkSession, tmp_path: Path) -> None:
    """If Spark runs a plan again, items consumed meanwhile raise an error, or are left out if that is requested."""
    with PersistentQueue(str(tmp_path), "q", segment_bytes=100_000) as queue:
        for number in range(10):
            put(queue, b"%d" % number + bytes(60_000))
        strict, lenient = (load(spark, tmp_path, failOnDataLoss=strictly).rdd for strictly in ("true", "false"))
        assert strict.count() == lenient.count() == 10  # a frame may be planned again, an RDD is not
        with queue.session() as session:
            assert len(session.dequeue_many(8)) == 8
            session.flush()
        queue.trim()
        with pytest.raises((PySparkException, Py4JError), match="consumed meanwhile"):
            strict.count()
        assert [row.offset for row in lenient.collect()][-2:] == [8, 9]
        assert 2 <= lenient.count() < 10


# --- exactly once ----------------------------------------------------------------------------------------------------


def test_a_marker_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    """A repeated job with equal txnAppId and txnVersion adds nothing, if the first one is pending or adopted."""
    for number in range(2):
        append(values(spark, number), tmp_path, txnAppId="nightly", txnVersion=7)
    assert taken(tmp_path) == [b"0"]
    append(values(spark, 2), tmp_path, txnAppId="nightly", txnVersion=7)
    append(spark.range(0).selectExpr("'' AS value"), tmp_path, txnAppId="nightly", txnVersion=8)
    with PersistentQueue(str(tmp_path), "q") as queue:
        assert drain(queue) == []
        assert queue.marker("nightly") == 8
    assert inbox(tmp_path) == []


def test_a_task_that_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    """If a task is tried again, each row comes once, and unused parts are swept when they are old.

    The writer of the first attempt may see a normal end of its rows before Spark ends it.
    """

    def stumble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt")

    long = spark.range(20_000, numPartitions=2).selectExpr("lpad(id, 100, '0') AS value")
    append(long.mapInArrow(stumble, "value string"), tmp_path)
    assert taken(tmp_path) == [b"%0100d" % n for n in range(20_000)]
    sweep(tmp_path)


def sabotaged(base: type[QueueDataSource], name: str, **methods: Any) -> type[QueueDataSource]:
    """Return the data source under another name, with a changed batch writer."""

    class Sabotaged(base):  # type: ignore[misc,valid-type]
        @classmethod
        def name(cls) -> str:
            return name

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            writer = super().writer(schema, overwrite)
            return type("Writer", (type(writer),), methods)(writer._options)  # type: ignore[no-any-return]

    return Sabotaged


def test_an_attempt_that_is_killed_when_its_part_is_whole(spark: SparkSession, tmp_path: Path) -> None:
    """If an attempt is killed after its part is whole, the rows come once, and the unused part is swept when it is
    old."""

    def write(self: Any, iterator: Iterator[pa.RecordBatch]) -> Any:
        message = writers.BatchWriter.write(self, iterator)
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("killed, as far as anybody can tell")
        return message

    spark.dataSource.register(sabotaged(QueueDataSource, "killed", write=write))
    append(values(spark, *range(10)), tmp_path, name="killed")
    assert len([name for name in inbox(tmp_path) if is_part(name)]) == 4
    assert taken(tmp_path) == [b"%d" % n for n in range(10)]
    assert len(inbox(tmp_path)) == 2
    sweep(tmp_path)


def test_a_commit_that_raises_though_it_is_durable(spark: SparkSession, tmp_path: Path) -> None:
    """If a commit raises although it is durable, the job fails, but its data stays, and a repeated job adds nothing."""

    def commit(self: Any, messages: Any) -> None:
        writers.BatchWriter.commit(self, messages)
        raise RuntimeError("the answer was lost")

    spark.dataSource.register(sabotaged(QueueDataSource, "doubtful", commit=commit))
    with pytest.raises(PySparkException, match="the answer was lost"):
        append(values(spark, 1, 2), tmp_path, name="doubtful", txnAppId="app", txnVersion=1)
    assert len(inbox(tmp_path)) == 3
    append(values(spark, 1, 2), tmp_path, txnAppId="app", txnVersion=1)
    assert len(inbox(tmp_path)) == 3
    assert taken(tmp_path) == [b"1", b"2"]


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """If a task fails for good, nothing is published, and the parts of the job's other tasks are deleted."""
    is_other_done = tmp_path / "done"

    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while batch.column(0).to_pylist() == ["2"] and not is_other_done.exists():
                time.sleep(0.01)
            if batch.column(0).to_pylist() == ["2"]:
                raise RuntimeError("the job ran")
            yield batch

    left: list[str] = []

    def tell() -> None:
        left.extend(inbox(tmp_path))
        is_other_done.touch()

    with after_first_task(spark, tell), pytest.raises(PySparkException, match="the job ran"):
        append(values(spark, 1, 2).mapInArrow(fails, "value string"), tmp_path)
    assert sum(map(is_part, left)) == 1
    assert [name for name in inbox(tmp_path) if is_part(name) or is_published(name)] == []
    with pytest.raises(PySparkException, match="a value is null"):
        append(spark.sql("SELECT CAST(NULL AS STRING) AS value"), tmp_path)
    assert taken(tmp_path) == []


def test_row_24_a_job_beyond_the_limits_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A job whose rows exceed a limit of the queue fails with an error that names the limit, and leaves nothing.

    A job that fits can be written afterwards.
    """
    PersistentQueue(str(tmp_path), "q", max_items=3).close()
    with pytest.raises(PySparkException, match="max_items=3"):
        append(values(spark, 1, 2, 3, 4), tmp_path)
    assert [name for name in inbox(tmp_path) if is_part(name) or is_published(name)] == []
    append(values(spark, 5, 6), tmp_path)
    with PersistentQueue(str(tmp_path), "q", max_items=3) as opened:
        assert drain(opened) == [b"5", b"6"]


# --- streams ---------------------------------------------------------------------------------------------------------


def stream(spark: SparkSession, root: Path, mode: str = "append", **options: str) -> None:
    """Run a query that writes each new line of the files in ``root/in`` to the queue, one file in each batch."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(root / "in"))
    frame = lines if mode == "append" else lines.groupBy("value").count().select("value")
    writer = (
        frame.writeStream.format("persistentqueue").outputMode(mode).queryName("lines").options(queue="q", **options)
    )
    query = writer.trigger(availableNow=True).option("checkpointLocation", str(root / "checkpoint")).start(str(root))
    assert query.awaitTermination(120)


def test_a_stream_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    """Each batch of a stream is one transaction; a repeated batch adds nothing, and neither does one without rows.

    Spark repeats a batch after its commit log was rolled back; the first one may be adopted or still waiting.
    """
    (tmp_path / "in").mkdir()
    for name, text in (("1", "a\nb\n"), ("2", ""), ("3", "c\n")):
        (tmp_path / "in" / name).write_text(text)
    stream(spark, tmp_path)
    published = inbox(tmp_path)
    assert sum(map(is_published, published)) == 2

    def roll_back() -> None:
        (tmp_path / "checkpoint" / "commits" / "2").unlink()
        (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink()

    roll_back()
    stream(spark, tmp_path)
    assert inbox(tmp_path) == published
    assert sorted(taken(tmp_path)) == [b"a", b"b", b"c"]
    roll_back()
    (tmp_path / "in" / "4").write_text("d\n")
    stream(spark, tmp_path)
    with PersistentQueue(str(tmp_path), "q") as queue:
        assert drain(queue) == [b"d"]
        (marker,) = queue._open()._store.state.markers
        assert marker.startswith("spark:")
    assert inbox(tmp_path) == []


def test_a_stream_of_another_mode_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A query whose batches replace each other is refused."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1").write_text("a\n")
    with pytest.raises(StreamingQueryException, match="only appends"):
        stream(spark, tmp_path, mode="complete")
    assert not (tmp_path / "q").exists()


# --- the writers by themselves ---------------------------------------------------------------------------------------


TEXT = pa.string()
TEXTS = StructType([StructField("value", StringType())])


def batch_writer(root: Path, **options: str) -> writers.BatchWriter:
    writer = QueueDataSource({"path": str(root), "queue": "q"} | options).writer(TEXTS, False)
    assert isinstance(writer, writers.BatchWriter)
    return writer


def record(*texts: str, kind: pa.DataType = TEXT) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch([pa.array([text], kind)], names=["value"]) for text in texts])


def read_all(root: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches that a read of the queue yields, partition by partition."""
    reader = QueueDataSource({"path": str(root), "queue": "q"}).reader(SCHEMA)
    for partition in reader.partitions():
        yield from reader.read(partition)


def test_messages_of_all_tasks_are_never_deleted(tmp_path: Path) -> None:
    """Abort deletes only the parts of a job that never came to its commit, as a missing message shows.

    It never deletes published files.
    """
    writer = batch_writer(tmp_path)
    messages: list[Any] = [writer.write(record("a", "b")), writer.write(record("c", kind=pa.large_string()))]
    writer.abort(messages)
    assert len(inbox(tmp_path)) == 2
    writer.abort([messages[0], None])
    assert inbox(tmp_path) == [messages[1].part.name]
    writer.commit([messages[1], writer.write(iter([]))])
    writer.abort([*messages, None])
    assert len(inbox(tmp_path)) == 2
    assert taken(tmp_path) == [b"c"]


def test_a_commit_that_surely_failed_cleans_up(tmp_path: Path) -> None:
    """A part that is missing, for example on another machine's disk, fails the job, and the other parts are deleted."""
    writer = batch_writer(tmp_path)
    messages: list[Any] = [writer.write(record("a")), writer.write(record("b"))]
    (tmp_path / "q" / "inbox" / messages[0].part.name).unlink()
    with pytest.raises(CorruptionError, match="must see the files"):
        writer.commit(messages)
    assert inbox(tmp_path) == []


def test_a_commit_of_which_nobody_knows_keeps_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If only the last sync of a commit failed, it may be published, so nothing is deleted."""

    def fails(*_: object, **__: object) -> None:
        raise BrokenQueueError("injected")

    writer = batch_writer(tmp_path)
    messages: list[Any] = [writer.write(record("a"))]
    monkeypatch.setattr(writers, "publish_parts", fails)
    with pytest.raises(BrokenQueueError):
        writer.commit(messages)
    assert len(inbox(tmp_path)) == 1


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    """After any end of a failed task, its files are deleted, spilled ones included."""
    writer = batch_writer(tmp_path)

    def rows() -> Iterator[pa.RecordBatch]:
        yield from record("x" * 3_000_000, "y" * 3_000_000)
        assert len(inbox(tmp_path)) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writer.write(rows())
    assert inbox(tmp_path) == []


def test_rows_of_spark_4_0(tmp_path: Path) -> None:
    """A stream writer that gets rows, as from Spark 4.0, writes them like batches, with an equal marker."""
    writer: Any = QueueDataSource({"path": str(tmp_path), "queue": "q"}).streamWriter(TEXTS, False)
    message = writer.write(iter([("größer",), (bytearray(b"\0"),), (b"x",)]))
    with pytest.raises(ValueError, match="null"):
        writer.write(iter([(None,)]))
    with pytest.raises(RuntimeError, match="id of their query"):
        writer.commit([message], 0)
    message.query = "id"
    writer.commit([message], 3)
    writer.commit([message], 3)
    writer.abort([message], 3)
    with PersistentQueue(str(tmp_path), "q") as queue:
        assert drain(queue) == ["größer".encode(), b"\0", b"x"]
        assert queue.marker("spark:id") == 3
    writer.commit([message], 3)
    assert inbox(tmp_path) == []


def test_nobody_waits_for_the_lock(tmp_path: Path) -> None:
    """A write and a read of a queue finish while another process owns it."""
    with PersistentQueue(str(tmp_path), "q") as queue:
        put(queue, b"x")
        writer = batch_writer(tmp_path)
        writer.commit([writer.write(record("a"))])
        assert sum(batch.num_rows for batch in read_all(tmp_path)) == 1
        assert len(inbox(tmp_path)) == 2
        assert drain(queue) == [b"x"]
        assert drain(queue) == [b"a"]
    assert check(str(tmp_path), "q").ok

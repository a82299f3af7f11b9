"""The rows of the data source: their columns, their bytes, and the part of a queue that a read touches."""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as spark_datasource
from pyspark.sql import functions as F  # noqa: N812

from persistentqueue import Encryption, PersistentQueue, Producer, transaction
from persistentqueue.core.block import BLOCK_BYTES
from persistentqueue.interprocess import PartWriter
from persistentqueue.spark import filters, partition_reader
from persistentqueue.spark import writer as writers
from persistentqueue.spark.options import Place
from persistentqueue.spark.partition_reader import SCHEMA, adopt, schema_of
from persistentqueue.spark.source import BatchReader, FilteringReader, QueueDataSource
from persistentqueue.system.disk import DISK
from tests.support.disks import using_disk
from tests.support.queues import put, segment_files

pytestmark = pytest.mark.spark
pushes = pytest.mark.skipif(not hasattr(spark_datasource, "EqualTo"), reason="Spark 4.0 pushes no filters down")
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def load(spark: SparkSession, root: Path, **options: str | int) -> DataFrame:
    """Return a frame of the queue's content."""
    return spark.read.format("persistentqueue").options(queue="q", **options).load(str(root))


def reader_of(root: Path, kind: type[BatchReader] = BatchReader, **options: str) -> BatchReader:
    """Return the reader of the queue with these options, in this process."""
    source = QueueDataSource({"path": str(root), "queue": "q"} | options)
    found = source.reader(source.schema())
    assert type(found) is BatchReader
    return kind(found._options, source.schema())


def rows_of(reader: BatchReader) -> list[dict[str, Any]]:
    """Return the rows of all partitions."""
    return [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]


@contextmanager
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the bytes that the data source reads from files, in this process."""
    found = [0]

    def pread(fd: int, length_bytes: int, offset: int) -> bytes:
        data = DISK.pread(fd, length_bytes, offset)
        found[0] += len(data)
        return data

    with monkeypatch.context() as patch:
        patch.setattr(partition_reader, "DISK", replace(DISK, pread=pread))
        yield found


# --- columns ---------------------------------------------------------------------------------------------------------


def test_only_chosen_columns_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """The option ``columns`` chooses the columns and their order; without ``value`` no key is needed."""
    with PersistentQueue(tmp_path, "q", encryption=Encryption("k", lambda key_id: bytes(16))) as queue:
        put(queue, *[b"%d" % n for n in range(100)])
    frame = load(spark, tmp_path, columns="Timestamp, offset")
    assert frame.columns == ["timestamp", "offset"]
    assert [row.offset for row in frame.collect()] == list(range(100))
    assert load(spark, tmp_path, columns="offset").count() == 100
    with pytest.raises(PySparkException, match="encrypted with the key 'k'"):
        load(spark, tmp_path).count()


def test_spark_asks_for_all_columns(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark prunes no columns of a Python data source: it reads the values to count rows. So the option exists."""
    with PersistentQueue(tmp_path, "q") as queue:
        put(queue, b"x")
    load(spark, tmp_path).agg(F.count(F.lit(1))).explain(extended=True)
    plan = capsys.readouterr().out.partition("Optimized Logical Plan")[2].partition("Physical Plan")[0]
    (relation,) = [line for line in plan.splitlines() if "RelationV2" in line]
    assert all(f"{name}#" in relation for name in SCHEMA.fieldNames())


def test_rows_of_blocks(spark: SparkSession, tmp_path: Path) -> None:
    """With ``rows=blocks``, a row stands for the consecutive items of a block that are not consumed."""
    with PersistentQueue(tmp_path, "q") as queue:
        put(queue, *[b"%d" % n for n in range(100)])
        put(queue, *[b"%d" % n for n in range(50)])
        with queue.session() as session, queue.session() as keep:
            for number in range(40):
                (keep if number < 30 else session).dequeue()
            session.flush()
            keep.rollback()
        frame = load(spark, tmp_path, rows="blocks")
        assert frame.schema == schema_of(("offset", "items", "timestamp"))
        assert [(row.offset, row["items"]) for row in frame.collect()] == [(0, 30), (40, 60), (100, 50)]
        whole = load(spark, tmp_path)
        assert [row[0] for row in frame.agg(F.sum("items")).collect()] == [whole.count()] == [140]
        starts = {row.timestamp for row in frame.collect()}
        assert starts == {row.timestamp for row in whole.collect()}
    sums = load(spark, tmp_path, rows="blocks", columns="items", startingOffsets=10, endingOffsets=50).collect()
    assert [tuple(row) for row in sums] == [(20,), (10,)]


def test_columns_that_make_no_sense(tmp_path: Path) -> None:
    """The error for wrong columns says which ones there are."""
    for options, match in (
        ({"columns": "value,key"}, "some of value, offset, timestamp, with commas, not 'value,key'"),
        ({"columns": "offset,offset"}, "columns is a list"),
        ({"columns": ""}, "columns is a list"),
        ({"rows": "blocks", "columns": "value"}, "some of offset, items, timestamp"),
        ({"rows": "pages"}, "rows is items or blocks, not 'pages'"),
    ):
        with pytest.raises(ValueError, match=match):
            QueueDataSource({"path": str(tmp_path)} | options).schema()
    source = QueueDataSource({"path": str(tmp_path), "subscription": "s", "columns": "offset"})
    with pytest.raises(ValueError, match="the names in the option columns"):
        source.streamReader(SCHEMA)
    assert source.streamReader(source.schema()) is not None


# --- the layout of Arrow ---------------------------------------------------------------------------------------------


def test_a_full_block_is_a_batch_without_a_copy(tmp_path: Path) -> None:
    """The payload of a full block is the column: Arrow's buffer is the body that was read, behind the lengths."""
    items = [os.urandom(100) for _ in range(20_000)]
    with PersistentQueue(tmp_path, "q") as queue:
        put(queue, *items)
        put(queue, *items[:7])
    reader = reader_of(tmp_path)
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]
    assert b"".join(batch.column(0).buffers()[2].to_pybytes() for batch in batches) == b"".join(items + items[:7])
    sizes = [batch.num_rows for batch in batches]
    assert sizes[:-1] == [BLOCK_BYTES // 100] * (len(sizes) - 1)
    joined: list[int] = []

    def join(parts: Any) -> Any:
        joined.append(len(parts))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_reader, "_joined", join)
        rows_of(reader)
    assert joined[:-2] == [1] * (len(joined) - 2)
    assert joined[-2:] == [2, 2]


def test_small_blocks_and_single_items_are_joined(tmp_path: Path) -> None:
    """Blocks of one item, cut blocks and blocks with empty items come out in order, some thousand rows at a time."""
    expected = {}
    with PersistentQueue(tmp_path, "q") as queue:
        for number in range(300):
            put(queue, *[b"%d" % number * (n % 3) for n in range(1 + number % 5)])
        with queue.session() as session, queue.session() as keep:
            for number in range(600):
                (keep if number % 2 else session).dequeue()
            session.flush()
            keep.rollback()
        expected = {row["offset"]: row["value"] for row in rows_of(reader_of(tmp_path))}
        assert list(expected) == [*range(1, 600, 2), *range(600, 900)]
        with queue.session() as session:
            assert list(expected.values()) == session.dequeue_many(1000)
            session.rollback()


# --- the bytes of a write --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_a_write_makes_the_file_that_the_items_make(tmp_path: Path, kind: pa.DataType) -> None:
    """Batches of Spark give the same file, byte for byte, that ``PartWriter`` writes for the items one by one."""
    chance = random.Random(5)
    column = [chance.randbytes(chance.choice((0, 3, 40, 900))).hex() for _ in range(30_000)]
    whole = pa.array(column, pa.string()).cast(kind)
    ends = [0, 0, 1, 9_000, 9_000, 19_000, 30_000]
    batches = [pa.record_batch([whole.slice(start, end - start)], ["value"]) for start, end in pairwise(ends)]
    PersistentQueue(tmp_path, "q").close()

    def file_of(write: Any) -> bytes:
        clock, dice = count(1_800_000_000_000_000_000), random.Random(7)
        with using_disk(replace(DISK, time_ns=lambda: next(clock), urandom=dice.randbytes)):
            part = write()
        path = tmp_path / "q" / "inbox" / part.name
        data: bytes = path.read_bytes()
        path.unlink()
        return data

    def one_by_one() -> Any:
        writer = PartWriter(tmp_path, "q")
        for batch in batches:
            writer.write([text.encode() for text in column[: batch.num_rows]])
            del column[: batch.num_rows]
        return writer.end()

    found = file_of(lambda: writers._write(Place(str(tmp_path), "q"), iter(batches)).part)
    assert file_of(one_by_one) == found


@pytest.mark.parametrize("values", [[None], ["a", None], [None, "b"]], ids=str)
def test_a_null_is_refused(tmp_path: Path, values: list[str | None]) -> None:
    """A null anywhere in a batch raises an error that says how to filter, and leaves no file."""
    PersistentQueue(tmp_path, "q").close()
    batch = pa.record_batch([pa.array(values, pa.string())], ["value"])
    with pytest.raises(ValueError, match="filter with where"):
        writers._write(Place(str(tmp_path), "q"), iter([batch]))
    assert os.listdir(tmp_path / "q" / "inbox") == []


# --- filters ---------------------------------------------------------------------------------------------------------


@pushes
def test_filters_become_ranges() -> None:
    """Conditions on offsets and times become ranges; everything else is left to Spark."""
    kinds = spark_datasource
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    at = int(moment.timestamp()) * 1_000_000
    offset, timestamp = ("offset",), ("timestamp",)
    left = [
        kinds.EqualTo(("value",), b"x"),
        kinds.Not(kinds.EqualTo(offset, 3)),
        kinds.IsNull(offset),
        kinds.EqualTo(timestamp, moment.replace(tzinfo=None)),
        kinds.In(offset, (1, "2")),
        kinds.GreaterThan(offset, 1.5),
    ]
    taken = [
        kinds.GreaterThanOrEqual(offset, 10),
        kinds.LessThanOrEqual(offset, 20),
        kinds.In(offset, (25, 12, None, 12, 14, 20)),
        kinds.IsNotNull(offset),
        kinds.GreaterThan(timestamp, moment),
        kinds.LessThan(timestamp, moment + datetime.timedelta(microseconds=9)),
    ]
    found, unsupported = filters.pushed(left + taken)
    assert unsupported == left
    assert found.offsets == ((12, 13), (14, 15), (20, 21))
    assert found.times == ((at + 1, at + 9),)
    assert found.lets_through((at + 1) * 1000)
    assert found.lets_through((at + 8) * 1000 + 999)
    assert not found.lets_through(at * 1000 + 999)
    assert not found.lets_through((at + 9) * 1000)
    assert filters.pushed([kinds.EqualNullSafe(offset, 3), kinds.EqualTo(offset, 4)])[0].offsets == ()
    assert filters.pushed([])[0] == filters.Conditions()


@pushes
def test_spark_pushes_filters_down(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With Spark's setting, filters on offset and timestamp are left to the source, and give the same rows.

    Without the setting, nothing is pushed, and no error is raised.
    """
    with PersistentQueue(tmp_path, "q") as queue:
        for start in range(0, 300, 100):
            put(queue, *[b"%d" % n for n in range(start, start + 100)])
    moments = sorted({row.timestamp for row in load(spark, tmp_path).collect()})
    assert len(moments) == 3
    conditions = [
        (F.col("offset") > 290) | (F.col("offset") < 5),
        (F.col("offset") >= 150) & (F.col("offset") < 160),
        F.col("offset").isin(3, 99, 250, 1000),
        F.col("timestamp") == F.lit(moments[1]),
        (F.col("timestamp") > F.lit(moments[0])) & (F.col("value") != F.lit(b"170")) & (F.col("offset") < 175),
    ]

    def answers() -> list[list[Any]]:
        return [load(spark, tmp_path).where(each).collect() for each in conditions]

    def has_filter(condition: Any) -> bool:
        load(spark, tmp_path).where(condition).explain()
        plan = capsys.readouterr().out.splitlines()
        return any(line.lstrip("+-* :(0123456789)").startswith("Filter") for line in plan)

    expected = answers()
    assert list(map(len, expected)) == [14, 10, 3, 100, 74]
    assert all(map(has_filter, conditions))
    spark.conf.set(PUSHDOWN, "true")
    try:
        assert answers() == expected
        assert list(map(has_filter, conditions)) == [True, False, False, False, True]
        assert load(spark, tmp_path, rows="blocks").where("offset > 0").count() == 2
        assert load(spark, tmp_path).count() == 300
    finally:
        spark.conf.unset(PUSHDOWN)


@pushes
@pytest.mark.parametrize("column", ["offset", "timestamp"])
def test_a_hundredth_of_the_rows_touches_two_hundredths_of_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """A filter that lets 1 % of the rows through makes a read take 2 % of the bytes at most."""
    rows, parts, size_bytes = 1_000_000, 100, 200
    item = bytes(size_bytes)
    with PersistentQueue(tmp_path, "q", segment_bytes=16 * 1024 * 1024) as queue, queue.session() as session:
        for _ in range(parts):
            session.enqueue_many([item] * (rows // parts))
            session.flush()
    stored_bytes = sum(path.stat().st_size for path in segment_files(tmp_path / "q"))
    assert stored_bytes > rows * size_bytes
    low, high = rows // 2, rows // 2 + rows // parts
    bounds: list[Any] = [low, high]
    if column == "timestamp":
        moments = {row["offset"]: row["timestamp"] for row in rows_of(reader_of(tmp_path, rows="blocks"))}
        bounds = [moments[low], moments[high]]
    else:
        low, high = bounds = [low + 5_000, high + 5_000]  # within the blocks of two flushes
    kinds = spark_datasource
    conditions = [kinds.GreaterThanOrEqual((column,), bounds[0]), kinds.LessThan((column,), bounds[1])]
    reader = reader_of(tmp_path, FilteringReader)
    assert isinstance(reader, FilteringReader)
    assert list(reader.pushFilters(conditions)) == []
    with reading(monkeypatch) as read_bytes:
        offsets = [row["offset"] for row in rows_of(reader)]
    assert offsets == list(range(low, high))
    assert read_bytes[0] <= stored_bytes * 2 // 100


def test_a_read_shows_a_transaction_over_two_queues_at_once(tmp_path: Path) -> None:
    """A batch read has the items of a committed transaction over two queues, also before the queues flush again."""
    with PersistentQueue(tmp_path, "a") as a, PersistentQueue(tmp_path, "q") as q:
        put(q, b"1")
        with transaction(a, q) as (one, other):
            one.enqueue(b"2")
            other.enqueue(b"2")
        assert [row["value"] for row in rows_of(reader_of(tmp_path))] == [b"1", b"2"]


def test_a_read_keeps_the_limits_of_the_queue(tmp_path: Path) -> None:
    """A read of a queue without an owner adopts what is published, under the limits that its program has set."""
    PersistentQueue(tmp_path, "q", max_items=2).close()
    for number in range(2):
        with Producer(tmp_path, "q") as producer:
            producer.enqueue_many([b"%d" % number] * 2)
            producer.flush()
            adopt(Place(str(tmp_path), "q"))
    with PersistentQueue(tmp_path, "q", keep_limits=True) as queue:
        assert (len(queue), queue.stats().published, queue.stats().fill) == (2, 1, 1.0)
        assert queue.clear() == 2

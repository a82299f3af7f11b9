"""Typed rows of the data source: columns that Spark writes and reads, changes of schemas, streams, and bad items."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from persistentqueue import CodecError, PersistentQueue
from persistentqueue.interprocess import publish_parts
from persistentqueue.rows import RowCodec, SchemaMismatchError, SchemaNotFoundError
from persistentqueue.rows.registry import Registry
from persistentqueue.spark import acknowledge
from persistentqueue.spark import writer as writers
from persistentqueue.spark.source import BatchReader, FilteringReader, QueueDataSource
from tests.support.queues import put

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]  # types of Spark need a session, too
FORMATS = ("arrow", "avro", "json")
KINDS = """id bigint, small smallint, tiny tinyint, n int, f float, d double, yes boolean, text string, raw binary,
    day date, at timestamp, local timestamp_ntz, price decimal(12,3), list array<string>,
    names map<string,bigint>, inner struct<x: int, y: array<date>>"""
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.timezone.utc)
ROW = {
    "id": 2**62,
    "small": -(2**15),
    "tiny": 127,
    "n": -5,
    "f": 0.5,
    "d": 1e300,
    "yes": True,
    "text": "é",
    "raw": b"\0\xff",
    "day": dt.date(2026, 1, 2),
    "at": MOMENT,
    "local": dt.datetime(2026, 1, 2, 3, 4, 5, 6),
    "price": Decimal("12.500"),
    "list": ["a", None],
    "names": {"a": 1, "b": None},
    "inner": {"x": 1, "y": [dt.date(2026, 1, 2)]},
}
NOTHING: dict[str, Any] = dict.fromkeys(ROW)


def columns(ddl: str) -> StructType:
    """Return a schema of Spark."""
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


def save(frame: DataFrame, root: Path, format_name: str, **options: str) -> None:
    """Append the rows of a frame to the queue."""
    writer = frame.write.format("persistentqueue").mode("append")
    writer.options(queue="q", format=format_name, **options).save(str(root))


def load(spark: SparkSession, root: Path, format_name: str, **options: str) -> DataFrame:
    """Return a frame of the queue's rows."""
    return (
        spark.read.format("persistentqueue").options(**{"queue": "q", "format": format_name} | options).load(str(root))
    )


def python_rows(root: Path) -> list[dict[str, Any]]:
    """Dequeue all rows, as Python sees them."""
    codec = RowCodec(root, "q")
    found: list[dict[str, Any]] = []
    with PersistentQueue(root, "q", codec=codec) as queue, queue.session() as session:
        while items := session.dequeue_many(100):
            for item in items:
                found += item.to_pylist(maps_as_pydicts="strict") if codec.format == "arrow" else [item]
        session.flush()
    return found


def source(root: Path, **options: str) -> QueueDataSource:
    """Return the data source with these options, in this process."""
    return QueueDataSource({"path": str(root), "queue": "q"} | options)


@pytest.mark.parametrize("format_name", FORMATS)
def test_each_type_there_and_back(spark: SparkSession, tmp_path: Path, format_name: str) -> None:
    """Rows with columns of each type, and with nulls, come back equal in Spark, and Python sees equal values."""
    frame = spark.createDataFrame([Row(**ROW), Row(**NOTHING)], KINDS)
    save(frame.repartition(2), tmp_path, format_name)
    found = load(spark, tmp_path, format_name)
    assert found.schema.simpleString() == frame.schema.simpleString()
    assert sorted(map(repr, found.collect())) == sorted(map(repr, frame.collect()))
    assert sorted(python_rows(tmp_path), key=str) == sorted([ROW, NOTHING], key=str)


def test_columns_may_be_added(spark: SparkSession, tmp_path: Path) -> None:
    """A frame with more columns is accepted: earlier rows have nulls there. A frame with the earlier ones is, too."""
    old = spark.range(3).selectExpr("id", "CAST(id AS string) AS name")
    save(old, tmp_path, "arrow")
    save(old.selectExpr("id * 2.0D AS twice", "name", "id"), tmp_path, "arrow", txnAppId="later", txnVersion="1")
    save(old.selectExpr("id", "name", "0.0D AS twice"), tmp_path, "arrow", txnAppId="later", txnVersion="1")
    save(old.where("id = 1"), tmp_path, "arrow")
    found = load(spark, tmp_path, "arrow")
    assert found.columns == ["id", "name", "twice"]
    twice = [
        (0, "0", None),
        (1, "1", None),
        (2, "2", None),
        (0, "0", 0.0),
        (1, "1", 2.0),
        (2, "2", 4.0),
        (1, "1", None),
    ]
    assert [tuple(row) for row in found.collect()] == twice
    assert load(spark, tmp_path, "arrow", columns="twice, id").columns == ["twice", "id"]
    assert load(spark, tmp_path, "arrow", columns="twice").agg(F.sum("twice")).collect()[0][0] == 6.0
    narrow = spark.read.format("persistentqueue").options(queue="q", format="arrow").schema("name string, more int")
    assert {tuple(row) for row in narrow.load(str(tmp_path)).collect()} == {(str(n), None) for n in range(3)}
    with pytest.raises(
        PySparkException, match="'name' of the rows does not fit: the queue has string, the rows have long"
    ):
        save(spark.range(1).selectExpr("id", "id AS name"), tmp_path, "arrow")
    assert [list(each.schema.by_name()) for each in Registry(tmp_path, "q").all()] == [
        ["id", "name"],
        ["id", "name", "twice"],
    ]


@pytest.mark.parametrize(
    ("kinds", "column", "old", "new"),
    [
        ("id bigint not null", "name", "string", "no such column"),
        ("id int, name string", "id", "long not null", "integer"),
        ("id bigint, name string", "id", "long not null", "long"),
        ("id bigint not null, name int", "name", "string", "integer"),
        ("id bigint not null, name string, NAME string", "name", "", ""),
    ],
)
def test_other_changes_are_refused_before_any_task(tmp_path: Path, kinds: str, column: str, old: str, new: str) -> None:
    """A writer is refused by the name of the column, with both types, and registers nothing."""
    RowCodec(tmp_path, "q", format="avro", schema={"id": "long not null", "name": "string"})
    schema = columns(kinds)
    error: type[Exception] = SchemaMismatchError if old else ValueError
    for write in (source(tmp_path, format="avro").writer, source(tmp_path, format="avro").streamWriter):
        with pytest.raises(error, match=f"'{column}'") as caught:
            write(schema, False)
        if old:
            assert (getattr(caught.value, "old", ""), getattr(caught.value, "new", "")) == (old, new)
    assert len(Registry(tmp_path, "q").all()) == 1
    # Spark knows that there is no null, or a new column can be null: both are accepted.
    fitting = columns("name string not null, id bigint not null, new int not null")
    source(tmp_path, format="avro").writer(fitting, False)
    assert RowCodec(tmp_path, "q").columns == {"id": "long not null", "name": "string", "new": "integer"}


def test_nulls_that_spark_knows_by_chance(tmp_path: Path) -> None:
    """Frames whose lists, maps and structs have no nulls by chance have the schema of those that may have them."""
    for ddl in ("a array<struct<x: int not null>>", "a array<struct<x: int>>"):
        schema = columns(ddl)
        kind: Any = schema["a"].dataType
        kind.containsNull = "not null" not in ddl
        source(tmp_path, format="arrow").writer(schema, False)
    codec = RowCodec(tmp_path, "q")
    assert (codec.number, codec.columns) == (1, {"a": "array<struct<x:integer>>"})


def test_what_cannot_be_read_or_written(tmp_path: Path) -> None:
    """The error for a missing or other schema, another format or a type says what to do, before any task."""
    PersistentQueue(tmp_path, "q").close()
    with pytest.raises(SchemaNotFoundError, match="write rows first, or give the schema"):
        source(tmp_path, format="json").schema()
    with pytest.raises(ValueError, match=r"'v' has the type .interval"):
        source(tmp_path, format="json").writer(columns("v interval day"), False)
    wanted = columns("id bigint, name string")
    source(tmp_path, format="json").reader(wanted)  # rows of other programs, which register nothing
    RowCodec(tmp_path, "q", format="json", schema={"id": "long"})
    with pytest.raises(SchemaMismatchError, match="has json, the rows have avro: set the option format to json"):
        source(tmp_path, format="avro").schema()
    for kind in ("writer", "streamWriter"):
        with pytest.raises(SchemaMismatchError, match="has json, the rows have value: set the option format to json"):
            getattr(source(tmp_path), kind)(columns("value binary"), False)
    with pytest.raises(SchemaMismatchError, match=r"'id' of the rows.*read it as long"):
        source(tmp_path, format="json").reader(columns("id int"))
    with pytest.raises(SchemaMismatchError, match=r"'ID' of the rows .*: name it 'id'"):
        source(tmp_path, format="json").reader(columns("ID bigint"))
    with pytest.raises(ValueError, match="no column 'x': they have id"):
        source(tmp_path, format="json", columns="id,x").schema()
    with pytest.raises(ValueError, match="leave the option columns out"):
        source(tmp_path, format="json", columns="id").reader(wanted)
    for options, match in (
        ({"format": "xml"}, "format is value, arrow, avro, json, not 'xml'"),
        ({"format": "json", "rows": "blocks"}, "leave the option format out"),
        ({"format": "json", "columns": "id,id"}, "columns is a list"),
        ({"format": "json", "columns": ""}, "columns is a list"),
    ):
        with pytest.raises(ValueError, match=match):
            source(tmp_path, **options).schema()


@pytest.mark.parametrize("format_name", ["arrow", "json"])
def test_a_collation_is_that_of_the_reader(spark: SparkSession, tmp_path: Path, format_name: str) -> None:
    """The queue keeps no collation of a column: a read has plain strings, unless its schema gives them a collation."""
    save(spark.sql("SELECT collate('a', 'UTF8_LCASE') AS name"), tmp_path, format_name)
    assert load(spark, tmp_path, format_name).where("name = 'A'").count() == 0
    reader = spark.read.format("persistentqueue").options(queue="q", format=format_name)
    rows = reader.schema("name string COLLATE UTF8_LCASE").load(str(tmp_path))
    assert rows.where("name = 'A'").count() == 1


@pytest.mark.parametrize("format_name", ["arrow", "json"])
def test_a_stream_of_typed_rows(spark: SparkSession, tmp_path: Path, format_name: str) -> None:
    """A query reads and writes typed rows, each once; it goes on with its columns when the queue gets more of them."""
    codec = RowCodec(tmp_path, "q", format=format_name, schema={"id": "long"})

    def run() -> None:
        reader = spark.readStream.format("persistentqueue").options(queue="q", format=format_name, subscription="s")
        squares = reader.load(str(tmp_path)).selectExpr("id", "id * id AS square")
        writer = squares.writeStream.format("persistentqueue").options(queue="squares", format="avro")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query = writer.start(str(tmp_path))
        query.awaitTermination()
        acknowledge(query)

    with PersistentQueue(tmp_path, "q", codec=codec) as queue, queue.session() as session:
        session.enqueue([{"id": 1}, {"id": 2}] if format_name == "arrow" else {"id": 2})
        session.flush()
    run()
    later = RowCodec(tmp_path, "q", schema={"id": "long", "name": "string"})
    with PersistentQueue(tmp_path, "q", codec=later) as queue, queue.session() as session:
        session.enqueue([{"id": 3, "name": "x"}] if format_name == "arrow" else {"id": 3, "name": "x"})
        session.flush()
    run()
    found = load(spark, tmp_path, "avro", queue="squares").orderBy("id").collect()
    assert [tuple(row) for row in found] == [(1, 1), (2, 4), (3, 9)][format_name != "arrow" :]


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_bad_item_is_named_by_its_offset(tmp_path: Path, format_name: str) -> None:
    """An item that is no row raises an error with the queue and the offset."""
    codec = RowCodec(tmp_path, "q", format=format_name, schema={"id": "long"})
    good = codec.encode([{"id": 1}] if format_name == "arrow" else {"id": 1})
    with PersistentQueue(tmp_path, "q") as queue:
        put(queue, good, good, b"no row", good)
    reader = source(tmp_path, format=format_name).reader(source(tmp_path, format=format_name).schema())
    with pytest.raises(CodecError, match=r"q: item 2: .* cannot decode"):
        list(reader.read(reader.partitions()[0]))


def test_a_bad_item_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reports the offset of the item, and shows rows of other programs that are no more than JSON."""
    with PersistentQueue(tmp_path, "q") as queue:
        put(queue, b'{"id": 1}', b'{"id": 2, "more": 5}', b"{}")
        rows = spark.read.format("persistentqueue").options(queue="q", format="json").schema("id bigint")
        assert [row.id for row in rows.load(str(tmp_path)).collect()] == [1, 2, None]
        put(queue, b"no row")
        with pytest.raises(PySparkException, match="item 3: JsonRows cannot decode 6 bytes"):
            rows.load(str(tmp_path)).collect()


def test_small_items_are_joined(tmp_path: Path) -> None:
    """Small batches become one batch; a large one stays as it is, and is not copied."""
    codec = RowCodec(tmp_path, "q", format="arrow", schema={"id": "long"})
    with PersistentQueue(tmp_path, "q", codec=codec) as queue:
        items: list[Any] = [[{"id": n}] for n in range(100)]
        items += [pa.record_batch({"id": pa.array(some)}) for some in (range(100, 100_000), [100_000])]
        put(queue, *items)
    found = source(tmp_path, format="arrow")
    reader = found.reader(found.schema())
    batches = list(reader.read(reader.partitions()[0]))
    assert [value for batch in batches for value in batch.column(0).to_pylist()] == list(range(100_001))
    assert len(batches) <= 3 and {batch.schema.names[0] for batch in batches} == {"id"}


def test_rows_of_spark_4_0(tmp_path: Path) -> None:
    """Before Spark 4.1 a stream passes rows: they become batches, and their moments have the zone of the process."""
    kinds = columns("at timestamp, names map<string,int>")
    writer = source(tmp_path, format="arrow").streamWriter(kinds, False)
    local = MOMENT.astimezone().replace(tzinfo=None)
    typed: Any = writer
    message = writers._write(
        typed._options.place, iter([Row(at=local, names={"a": 1}), Row(at=None, names=None)]), typed._rows
    )
    assert message.part is not None and message.part.count == 1
    publish_parts(str(tmp_path), "q", [message.part])
    assert python_rows(tmp_path) == [{"at": MOMENT, "names": {"a": 1}}, {"at": None, "names": None}]


def test_a_column_named_offset_is_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Filters on columns of typed rows are left to Spark, whatever the columns are named."""
    RowCodec(tmp_path, "q", format="json", schema={"offset": "long"})
    monkeypatch.setattr("persistentqueue.spark.source.is_pushing", lambda: True)
    found = source(tmp_path, format="json")
    assert type(found.reader(found.schema())) is BatchReader
    assert type(source(tmp_path).reader(source(tmp_path).schema())) is FilteringReader

"""Rows in the three formats: there and back, by earlier and later schemas, and values that do not fit."""

from __future__ import annotations

import datetime as dt
import json
import math
import pickle
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persistentqueue import (
    CodecError,
    MissingExtraError,
    PersistentQueue,
    Producer,
    QueueNotFoundError,
    aio,
    compat,
    connect,
    delete_queue,
)
from persistentqueue.codecs import Enclosed
from persistentqueue.rows import RowCodec, SchemaMismatchError, SchemaNotFoundError, arrow_rows, avro_rows
from persistentqueue.rows.arrow_rows import arrow_schema, schema_from_arrow
from persistentqueue.rows.codec import RowBatches
from persistentqueue.rows.registry import Registry
from persistentqueue.rows.schema import Schema, schema_from_types

FORMATS = ("arrow", "avro", "json")
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "byte": st.integers(-(2**7), 2**7 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    "binary": st.binary(max_size=5),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(dt.timezone.utc)),
    "timestamp_ntz": st.datetimes(),
    "decimal(12,3)": st.decimals(-(10**8), 10**8, places=3),
}


def nest(inner: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Return pairs of a type with other types in it, and a strategy for its values."""

    def array(pair: tuple[Any, Any]) -> tuple[Any, Any]:
        kind, values = pair
        return {"type": "array", "elementType": kind, "containsNull": True}, st.lists(st.none() | values, max_size=3)

    def mapping(pair: tuple[Any, Any]) -> tuple[Any, Any]:
        kind, values = pair
        made = {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": True}
        return made, st.dictionaries(PRIMITIVES["string"], st.none() | values, max_size=3)

    def struct(pairs: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        fields = [{"name": f"f{n}", "type": kind, "nullable": True} for n, (kind, _) in enumerate(pairs)]
        return (
            {"type": "struct", "fields": fields},
            st.fixed_dictionaries({f"f{n}": st.none() | values for n, (_, values) in enumerate(pairs)}),
        )

    return inner.map(array) | inner.map(mapping) | st.lists(inner, min_size=1, max_size=2).map(struct)


KINDS: st.SearchStrategy[tuple[Any, Any]] = st.recursive(
    st.sampled_from(sorted(PRIMITIVES.items())), nest, max_leaves=3
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the types of columns, and rows that have them."""
    pairs = draw(st.lists(KINDS, min_size=1, max_size=4))
    row = {f"c{n}": st.none() | values for n, (_, values) in enumerate(pairs)}
    rows = draw(st.lists(st.fixed_dictionaries(row), min_size=1, max_size=4))
    return {f"c{n}": kind for n, (kind, _) in enumerate(pairs)}, rows


def taken(codec: RowCodec, items: list[bytes]) -> list[dict[str, Any]]:
    """Return the rows in these items."""
    found: list[dict[str, Any]] = []
    for item in items:
        row = codec.decode(item)
        found += row.to_pylist(maps_as_pydicts="strict") if codec.format == "arrow" else [row]
    return found


def put(codec: RowCodec, rows: list[dict[str, Any]]) -> list[bytes]:
    """Return these rows as items."""
    return [codec.encode(rows)] if codec.format == "arrow" else list(map(codec.encode, rows))


@pytest.mark.parametrize("format_name", FORMATS)
def test_rows_there_and_back(format_name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each row of any types comes back equal: by its own schema, and by a later one with a null in the new column."""

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(tables())
    def check(table: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
        types, rows = table
        root = tmp_path_factory.mktemp("rows")
        codec = RowCodec(root, "q", format=format_name, schema=types)
        items = put(codec, rows)
        assert taken(codec, items) == rows
        later = RowCodec(root, "q", schema={"added": "string", **types})
        assert later.number == 2
        assert taken(later, items) == [row | {"added": None} for row in rows]
        # A program with the earlier schema reads rows of the later one, without the column that it does not know.
        assert taken(codec, put(later, [row | {"added": "x"} for row in rows])) == rows
        batches = RowBatches(Registry(root, "q"), format_name, 2, Registry(root, "q").schema(2))
        (batch,) = batches.batch_of(items, range(len(items)))
        assert batch.schema == arrow_schema(Registry(root, "q").schema(2))
        assert taken(later, batches.items_of(batch)) == [row | {"added": None} for row in rows]

    check()


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_value_of_each_type(format_name: str, tmp_path: Path) -> None:
    """A value of each type comes back equal, and so does the absence of one."""
    moment = dt.datetime(2026, 1, 31, 12, 0, 0, 5)
    values = [True, -(2**7), 2**15 - 1, -5, 2**62, 0.5, 1e300, "é", b"\0\xff", dt.date(2026, 1, 31)]
    values += [moment.replace(tzinfo=dt.timezone.utc), moment, Decimal("-12.500")]
    row = dict(zip((f"c{n}" for n in range(len(values))), values, strict=True))
    codec = RowCodec(tmp_path, "q", format=format_name, schema=dict(zip(row, PRIMITIVES, strict=True)))
    assert taken(codec, put(codec, [row, dict.fromkeys(row)])) == [row, dict.fromkeys(row)]


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_queue_of_rows(format_name: str, tmp_path: Path) -> None:
    """A queue and a producer with the codec have the same rows; another process needs no schema for that."""
    codec = RowCodec(tmp_path, "q", format=format_name, schema={"id": "long not null", "name": "string"})
    row: Any = {"id": 7, "name": None} if format_name != "arrow" else [{"id": 7}, {"id": 8, "name": "x"}]
    with PersistentQueue(tmp_path, "q", codec=codec) as queue, queue.session() as session:
        session.enqueue(row)
        session.flush()
        with Producer(tmp_path, "q", codec=pickle.loads(pickle.dumps(codec))) as producer:
            producer.enqueue(row)
            producer.flush()
        other = RowCodec(tmp_path, "q")
        assert (other.format, other.number, other.columns) == (
            format_name,
            1,
            {"id": "long not null", "name": "string"},
        )
        found = session.dequeue_many(1) + session.dequeue_many(1)
        assert len(found) == 2
        for each in found:
            assert (each.to_pylist() if format_name == "arrow" else each) == (
                row if format_name != "arrow" else [{"id": 7, "name": None}, {"id": 8, "name": "x"}]
            )
        session.rollback()
    assert repr(other) == f"<RowCodec of {tmp_path / 'q'}, {format_name}, schema 1>"


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"n": 2**31}, "the column 'n': expected integer, found 2147483648"),
        ({"n": True}, "the column 'n': expected integer, found True"),
        ({"n": None}, "the column 'n' is null or missing"),
        ({}, "the column 'n' is null or missing"),
        ({"n": 1, "s": b"x"}, "the column 's': expected string"),
        ({"n": 1, "d": Decimal("1.234")}, r"the column 'd': expected decimal\(5,2\)"),
        ({"n": 1, "d": Decimal("1234")}, "the column 'd'"),
        ({"n": 1, "d": Decimal("NaN")}, "the column 'd'"),
        ({"n": 1, "t": dt.datetime(2026, 1, 1)}, "the column 't': expected timestamp with a time zone, found"),
        ({"n": 1, "t": "2026-01-01"}, "the column 't': expected timestamp, found '2026-01-01'"),
        (
            {"n": 1, "z": dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)},
            "the column 'z': expected timestamp_ntz without a time zone, found",
        ),
        ({"n": 1, "y": dt.datetime(2026, 1, 1)}, "the column 'y': expected date"),
        ({"n": 1, "l": "abc"}, "the column 'l': expected array<long>"),
        ({"n": 1, "l": ["a"]}, "the column 'l.element': expected long"),
        ({"n": 1, "m": [1]}, "the column 'm': expected map<string,long>"),
        ({"n": 1, "s": "a\ud800"}, "the column 's': expected string, found 'a.ud800': UTF-8 has no half"),
        ({"n": 1, "m": {"\udfff": 1}}, "the column 'm.key': expected string"),
        ({"n": 1, "f": 1e39}, r"the column 'f': expected float, found 1e\+39, which 32 bits cannot hold: use double"),
        ({"n": 1, "f": 10**40}, "the column 'f': expected float, found 1000.*, which 32 bits cannot hold: use double"),
        ({"n": 1, "f": 10**400}, "the column 'f': expected float, found 1000.*, which 32 bits cannot hold: use double"),
        ({"n": 1, "m": {1: 1}}, "the column 'm.key': expected string"),
        ({"n": 1, "o": 5}, "o: expected an object with the columns"),
        ({"n": 1, "o": {"y": 5}}, "no column 'o.y'"),
        ({"n": 1, "more": 5}, "no column 'more': register a schema that has it"),
    ],
)
def test_values_that_do_not_fit(format_name: str, row: dict[str, Any], named: str, tmp_path: Path) -> None:
    """A value of another type, a null without permission, and an unknown column are refused by the column's name."""
    codec = RowCodec(
        tmp_path,
        "q",
        format=format_name,
        schema={
            "n": "integer not null",
            "s": "string",
            "f": "float",
            "d": "decimal(5,2)",
            "t": "timestamp",
            "z": "timestamp_ntz",
            "y": "date",
            "l": {"type": "array", "elementType": "long"},
            "m": {"type": "map", "keyType": "string", "valueType": "long"},
            "o": {"type": "struct", "fields": [{"name": "x", "type": "long"}]},
        },
    )
    with PersistentQueue(tmp_path, "q", codec=codec) as queue, queue.session() as session:
        with pytest.raises(CodecError, match=named):
            session.enqueue(row if format_name != "arrow" else [row])
        session.flush()
        assert len(queue) == 0


def test_json_is_bare_text_that_anything_writes(tmp_path: Path) -> None:
    """An item of JSON is one object in UTF-8; rows of other programs may lack columns, or have more."""
    inner = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True}]}
    array = {"type": "array", "elementType": inner}
    nested = RowCodec(tmp_path, "nested", format="json", schema={"s": inner, "l": array})
    assert nested.decode(b'{"s": {"x": 1, "y": 2}, "l": [{"y": 2}]}') == {"s": {"x": 1}, "l": [{"x": None}]}
    codec = RowCodec(tmp_path, "q", format="json", schema={"id": "long not null", "f": "double", "d": "decimal(5,2)"})
    assert codec.encode({"id": 1, "f": math.inf, "d": Decimal("1.50")}) == b'{"id":1,"f":"Infinity","d":"1.50"}'
    assert codec.decode(b' {"id": 2, "other": [1]} ') == {"id": 2, "f": None, "d": None}
    assert codec.decode(b'{"id": 2, "f": 1, "d": 1.5}') == {"id": 2, "f": 1.0, "d": Decimal("1.5")}
    assert math.isnan(codec.decode(json.dumps({"id": 2, "f": "NaN"}).encode())["f"])
    for bad in (
        b"",
        b"[1]",
        b"{",
        b'{"id": "x"}',
        b'{"f": 1}',
        b'{"id": 1, "f": "x"}',
        b'{"id": 1, "d": "x"}',
        b"\xff",
    ):
        with pytest.raises((ValueError, TypeError)):
            codec.decode(bad)


def test_a_number_of_json_is_an_exact_decimal(tmp_path: Path) -> None:
    """A decimal that another program wrote as a number keeps all its digits, in a list as well."""
    kind = {"type": "array", "elementType": "decimal(38,28)"}
    codec = RowCodec(tmp_path, "q", format="json", schema={"d": "decimal(20,2)", "l": kind, "f": "double", "i": "long"})
    row = codec.decode(b'{"d": 12345678901234567.89, "l": [1.1000000000000000000000000001, 2, 1e2], "f": 0.1}')
    numbers = [Decimal("1.1000000000000000000000000001"), Decimal(2), Decimal(100)]
    assert row == {"d": Decimal("12345678901234567.89"), "l": numbers, "f": 0.1, "i": None}
    assert type(row["f"]) is float
    assert codec.decode(b'{"d": 1.5000}')["d"] == Decimal("1.5"), "zeros behind the scale are no digits"
    for bad, named in (
        (b'{"d": 1.501}', r"the column 'd': expected decimal\(20,2\)"),
        (b'{"d": 1e30}', "the column 'd'"),
        (b'{"i": 1.0}', "the column 'i': expected long, found 1.0"),
    ):
        with pytest.raises(ValueError, match=named):
            codec.decode(bad)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_zero_with_an_exponent_is_zero(tmp_path: Path, format_name: str) -> None:
    """A decimal that is zero is stored and becomes a batch of Arrow, whatever its exponent is."""
    schema = schema_from_types({"d": "decimal(3,1)"})
    codec = RowCodec(tmp_path, "q", format=format_name, schema=schema)
    row = {"d": Decimal("0E+5")}
    items = [codec.encode([row] if format_name == "arrow" else row)]
    if format_name == "json":
        items.append(b'{"d": "0E+5"}')  # of another program
    for item in items:
        (batch,) = RowBatches(Registry(tmp_path, "q"), format_name, None, schema).batch_of([item], [0])
        assert batch.to_pylist() == [{"d": 0}]


def test_the_rejected_batch_is_not_another_one_with_nan(tmp_path: Path) -> None:
    """``reject`` takes the batch of rows that is passed, and not the first one that has NaN, too."""
    batches = [[{"x": math.nan, "y": number}] for number in range(3)]
    codec = RowCodec(tmp_path, "q", format="arrow", schema={"x": "double", "y": "long"})
    with PersistentQueue(tmp_path, "q", codec=codec, max_attempts=9, dead_letter="dead") as queue:
        with queue.transaction() as session:
            session.enqueue_many(batches)
        with queue.session() as session:
            session.reject(session.dequeue_many(3)[1])
            session.flush()
        with queue.transaction() as session:
            assert [batch.column("y").to_pylist() for batch in session.dequeue_many(3)] == [[1]]


def test_half_of_a_character_in_json(tmp_path: Path) -> None:
    """A row of JSON with a lone surrogate raises an error with its sequence and its column, for Arrow's batches too."""
    registry = Registry(tmp_path, "q")
    schema = registry.register("json", schema_from_types({"s": "string"})).schema
    with pytest.raises(CodecError, match=r"item 7: .*the column 's': expected string, found '.ud800'"):
        RowBatches(registry, "json", None, schema).batch_of([b'{"s": "\\ud800"}'], [7])
    (batch,) = RowBatches(registry, "json", None, schema).batch_of([b'{"s": "\\ud83d\\ude00"}'], [8])
    assert batch.to_pylist() == [{"s": "\U0001f600"}]


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_moment_that_utc_has_in_another_year(format_name: str, tmp_path: Path) -> None:
    """A timestamp outside of the years 1 to 9999 in UTC is refused when it is written, since no read could have it."""
    codec = RowCodec(tmp_path, "q", format=format_name, schema={"t": "timestamp"})
    west, east = (dt.timezone(dt.timedelta(hours=hours)) for hours in (-5, 5))
    for moment in (dt.datetime(9999, 12, 31, 23, tzinfo=west), dt.datetime(1, 1, 1, tzinfo=east)):
        with pytest.raises(ValueError, match="the column 't': expected a timestamp in the years 1 to 9999 in UTC"):
            codec.encode({"t": moment} if format_name != "arrow" else [{"t": moment}])
    moment = dt.datetime(2026, 1, 1, tzinfo=west)
    data = codec.encode({"t": moment} if format_name != "arrow" else [{"t": moment}])
    assert taken(codec, [data]) == [{"t": moment}]


NOT_UTF8 = pa.StringArray.from_buffers(2, *pa.array([b"a", b"a\xff"]).buffers()[1:])
"""Texts as Spark makes them of binary values without a check."""


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("place", ["plain", "large", "list", "required"])
def test_text_that_is_not_utf8(format_name: str, place: str, tmp_path: Path) -> None:
    """A batch with a text that is not UTF-8 is refused by the column, since no read would accept it."""
    texts = {
        "plain": NOT_UTF8,
        "large": NOT_UTF8.cast(pa.large_string()),
        "list": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), NOT_UTF8),
        "required": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), NOT_UTF8),
    }[place]
    batch = pa.record_batch({"id": pa.array([1, 2]), "name": texts})
    registry = Registry(tmp_path, "q")
    schema = schema_from_arrow(batch.schema)
    if place == "required":
        required = {"type": "array", "elementType": "string", "containsNull": False}
        schema = schema_from_types({"id": "long", "name": required})
    registered = registry.register(format_name, schema)
    batches = RowBatches(registry, format_name, registered.number, registered.schema)
    with pytest.raises(ValueError, match=r"the column 'name': .*: it is not UTF-8: cast it to binary"):
        batches.items_of(batch)
    assert batches.items_of(batch.slice(0, 1)), "only the rows of a slice count"


def test_texts_in_json_that_are_no_values(tmp_path: Path) -> None:
    """Text that is no date, no moment with a zone or no Base64 is refused by the column's name."""
    types = {"b": "binary", "y": "date", "t": "timestamp", "z": "timestamp_ntz"}
    codec = RowCodec(tmp_path, "q", format="json", schema=types)
    row = codec.decode(b'{"t": "2026-01-01T02:00:00+02:00"}')
    assert row["t"] == dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    for name, text in (
        ("b", "%"),
        ("y", "x"),
        ("t", "2026-01-01T00:00:00"),
        ("z", "2026-01-01T00:00:00+00:00"),
        ("b", 1),
    ):
        with pytest.raises(ValueError, match=f"the column '{name}'"):
            codec.decode(json.dumps({name: text}).encode())


def test_any_number_of_digits_of_a_second(tmp_path: Path) -> None:
    """A moment in JSON has any number of digits behind the second. Those below a microsecond are cut."""
    codec = RowCodec(tmp_path, "q", format="json", schema={"t": "timestamp", "z": "timestamp_ntz"})
    for digits in ("5", "50", "500", "500000", "5000009", "500000999"):
        text = f"2026-01-31T12:00:00.{digits}"
        row = codec.decode(json.dumps({"t": f"{text}Z", "z": text}).encode())
        assert row["z"] == dt.datetime(2026, 1, 31, 12, 0, 0, 500_000)
        assert row["t"] == row["z"].replace(tzinfo=dt.timezone.utc)


@pytest.mark.parametrize("format_name", ["arrow", "avro"])
def test_items_that_are_no_rows(format_name: str, tmp_path: Path) -> None:
    """An item without a number, of an unknown schema, cut short, or with more behind it raises an error with its
    sequence."""
    codec = RowCodec(tmp_path, "q", format=format_name, schema={"s": "string", "n": "long"})
    row = {"s": "abc", "n": 1}
    good = codec.encode(row if format_name == "avro" else [row])
    bad = [b"", b"\1\0", b"\2" + good[1:], good[:-1] if format_name == "avro" else good[: len(good) // 2]]
    bad += [good + b"x"] if format_name == "avro" else [good[:20] + b"\xff" * 8 + good[28:]]
    with PersistentQueue(tmp_path, "q") as queue, queue.session() as session:
        session.enqueue_many(bad)
        session.flush()
    with PersistentQueue(tmp_path, "q", codec=codec) as queue, queue.session() as session:
        for sequence in range(len(bad)):
            with pytest.raises(CodecError, match=f"item {sequence}: RowCodec cannot decode") as caught:
                session.dequeue()
            assert isinstance(caught.value.__cause__, SchemaNotFoundError) == (sequence == 2)
        session.flush()


def test_offsets_in_a_batch_are_checked(tmp_path: Path) -> None:
    """A batch whose offsets lead out of its buffers is refused, and not read."""
    codec = RowCodec(tmp_path, "q", format="arrow", schema={"s": "string"})
    good = codec.encode([{"s": "abcd"}, {"s": "efgh"}])
    offsets = b"".join(n.to_bytes(4, "little") for n in (0, 4, 8))
    assert good.count(offsets) == 1
    for wrong in ((0, 4, 2**30), (0, 8, 4), (0, -4 % 2**32, 8)):
        with pytest.raises(pa.ArrowInvalid):
            codec.decode(good.replace(offsets, b"".join(n.to_bytes(4, "little") for n in wrong)))


def test_batches_of_arrow(tmp_path: Path) -> None:
    """A batch may have its columns in any order, large offsets or another zone; other types are refused by name."""
    types = {"id": "long not null", "t": "timestamp", "l": {"type": "array", "elementType": "string"}}
    codec = RowCodec(tmp_path, "q", format="arrow", schema=types)
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    batch = pa.record_batch(
        {
            "l": pa.array([["a"]], pa.large_list(pa.large_string())),
            "t": pa.array([moment], pa.timestamp("us", "Europe/Berlin")),
            "id": pa.array([1], pa.int64()),
        }
    )
    decoded = codec.decode(codec.encode(batch))
    assert decoded.to_pylist() == [{"id": 1, "t": moment, "l": ["a"]}]
    assert decoded.schema.names == ["id", "t", "l"]
    assert codec.decode(codec.encode(batch.slice(0, 0))).num_rows == 0
    assert codec.decode(codec.encode(batch.select(["id"]))).to_pylist() == [{"id": 1, "t": None, "l": None}]
    for wrong, named in (
        (pa.record_batch({"id": pa.array([1], pa.int32())}), "'id': expected long not null, found integer"),
        (pa.record_batch({"id": pa.array([None], pa.int64())}), "'id' has nulls"),
        (pa.record_batch({"t": pa.array([None], pa.timestamp("us", "UTC"))}), "'id' has nulls"),
        (pa.record_batch({"id": pa.array([1]), "x": pa.array([1])}), "no column 'x'"),
        (pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"]), "'id' is there twice: rename"),
        (
            pa.record_batch({"id": pa.array([1]), "t": pa.array([1], pa.timestamp("ns"))}),
            r"'t'.*timestamp\[ns\] of Arrow",
        ),
    ):
        with pytest.raises(ValueError, match=named):
            codec.encode(wrong)
    for nothing in (7, "text", {"id": 1}):
        with pytest.raises(TypeError, match="RecordBatch, or a list of rows"):
            codec.encode(nothing)


def test_a_batch_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that Java could not hold is refused when it is written."""
    codec = RowCodec(tmp_path, "q", format="arrow", schema={"id": "long"})
    monkeypatch.setattr(arrow_rows, "_ITEM_BYTES_MAX", 100)
    with pytest.raises(ValueError, match="use batches of fewer rows"):
        codec.encode([{"id": n} for n in range(100)])


def test_schemas_of_arrow() -> None:
    """The types of rows are types of Arrow and back; other types of Arrow are refused by name."""
    types: dict[str, Any] = {name.partition("(")[0]: name for name in PRIMITIVES}
    inner = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": False}]}
    types |= {"a": {"type": "array", "elementType": inner}, "m": {"type": "map", "keyType": "long", "valueType": inner}}
    schema = schema_from_types(types)
    assert schema_from_arrow(arrow_schema(schema)) == schema
    with pytest.raises(ValueError, match="'u' has the type 'uint8 of Arrow'"):
        schema_from_arrow(pa.schema({"u": pa.uint8()}))


def test_schemas_as_callers_give_them(tmp_path: Path) -> None:
    """A schema may be a dictionary of types, a serialized one, or one of Arrow. Anything else is refused."""
    for schema in ({"id": "long"}, schema_from_types({"id": "long"}).to_json(), pa.schema({"id": pa.int64()})):
        assert RowCodec(tmp_path, "q", format="json", schema=schema).number == 1
    assert RowCodec(tmp_path, "q", schema=Schema(schema_from_types({"id": "long"}).columns)).number == 1
    with pytest.raises(TypeError, match="names and types"):
        RowCodec(tmp_path, "q", schema=7)
    with pytest.raises(ValueError, match="format of rows is arrow, avro, json, not 'x'"):
        RowCodec(tmp_path, "q", format="x")
    with pytest.raises(ValueError, match="have the format json, not avro"):
        RowCodec(tmp_path, "q", format="avro")
    with pytest.raises(ValueError, match="pass format= with the schema"):
        RowCodec(tmp_path, "new", schema={"id": "long"})
    with pytest.raises(SchemaMismatchError, match="'id'"):
        RowCodec(tmp_path, "q", schema={"id": "string"})


def test_packages_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its package, a format names the extra; JSON needs none."""
    for name, module, function in (("avro", "fastavro", avro_rows.fastavro), ("arrow", "pyarrow", arrow_rows.pyarrow)):
        function.cache_clear()
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(MissingExtraError, match=rf"persistentqueue\[{name}\]"):
                RowCodec(tmp_path, name, format=name, schema={"id": "long"})
            assert not (tmp_path / name).exists(), "nothing is registered that this process cannot write"
            assert RowCodec(tmp_path, "json", format="json", schema={"id": "long"}).number == 1
        function.cache_clear()


@pytest.mark.parametrize("format_name", FORMATS)
def test_batches_for_a_reader(format_name: str, tmp_path: Path) -> None:
    """A task that only reads needs no schema to write, and may be another process. It chooses and adds columns."""
    kind = {"type": "struct", "fields": [{"name": "x", "type": {"type": "array", "elementType": "long"}}]}
    codec = RowCodec(tmp_path, "q", format=format_name, schema={"id": "long", "s": kind, "m": "date"})
    rows: list[dict[str, Any]] = [{"id": 1, "s": {"x": [1, None]}, "m": None}, {"id": 2, "s": None, "m": None}]
    items = put(codec, rows)
    wanted = schema_from_types({"s": kind, "more": "string"})
    batches = pickle.loads(pickle.dumps(RowBatches(Registry(tmp_path, "q"), format_name, None, wanted)))
    found = [row for batch in batches.batch_of(items, range(len(items))) for row in batch.to_pylist()]
    assert found == [{"s": row["s"], "more": None} for row in rows]


def test_unknown_types_of_arrow_in_a_batch(tmp_path: Path) -> None:
    """A batch with lists of another type is refused, with the type as text."""
    codec = RowCodec(tmp_path, "q", format="arrow", schema={"id": {"type": "array", "elementType": "long"}})
    with pytest.raises(ValueError, match="expected array<long>, found array<integer>: cast it"):
        codec.encode(pa.record_batch({"id": pa.array([[1]], pa.list_(pa.int32()))}))


def test_nulls_in_batches_where_none_may_be(tmp_path: Path) -> None:
    """A null in a list, a map or a struct without nulls is refused, also in a batch whose type would allow it."""
    item = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": False}]}
    types = {
        "l": {"type": "array", "elementType": "long", "containsNull": False},
        "m": {"type": "map", "keyType": "string", "valueType": item, "valueContainsNull": False},
    }
    codec = RowCodec(tmp_path, "q", format="arrow", schema=types)
    struct = pa.struct({"x": pa.int64()})
    kinds = {"l": pa.list_(pa.int64()), "m": pa.map_(pa.string(), struct)}

    def batch(**values: Any) -> pa.RecordBatch:
        return pa.record_batch({name: pa.array([value], kinds[name]) for name, value in values.items()})

    row = {"l": [1], "m": [("k", {"x": 1})]}
    assert codec.decode(codec.encode(batch(**row))).to_pylist() == [row]
    for wrong, named in (
        ({"l": [None]}, "'l.element' is null"),
        ({"m": [("k", None)]}, "'m.value' is null"),
        ({"m": [("k", {"x": None})]}, "'m.value.x' is null"),
    ):
        with pytest.raises(ValueError, match=named):
            codec.encode(batch(**wrong))


def test_a_stored_batch_with_nulls_where_none_may_be(tmp_path: Path) -> None:
    """A batch of another program with a null in a column without nulls is no row."""
    codec = RowCodec(tmp_path, "q", format="arrow", schema={"id": "long not null"})
    for values in ([1], [None]):
        data = (
            codec.encode([{"id": 1}])[:4]
            + pa.record_batch({"id": pa.array(values, pa.int64())}).serialize().to_pybytes()
        )
        if values == [1]:
            assert codec.decode(data).num_rows == 1
        else:
            with pytest.raises(ValueError, match="'id' has nulls"):
                codec.decode(data)


STRICT = pa.struct([pa.field("x", pa.int64(), nullable=False)])
STRICT_LIST = pa.list_(pa.field("element", pa.int64(), nullable=False))
STRICT_MAP = pa.map_(pa.string(), pa.field("value", STRICT_LIST, nullable=False))


@pytest.mark.parametrize(
    ("kind", "wrong", "right", "named"),
    [
        (STRICT_LIST, [1, None], [1, 2], "'c.element' has nulls: expected long not null"),
        (STRICT, {"x": None}, {"x": 1}, "'c.x' has nulls: expected long not null"),
        (STRICT_MAP, [("k", None)], [("k", [1])], r"'c.value' has nulls: expected array<long not null> not null"),
        (STRICT_MAP, [("k", [None])], [("k", [1])], "'c.value.element' has nulls"),
        (pa.list_(pa.field("element", STRICT)), [None, {"x": None}], [None, {"x": 1}], "'c.element.x' has nulls"),
    ],
    ids=str,
)
def test_nulls_in_batches_of_the_exact_type(
    kind: pa.DataType, wrong: Any, right: Any, named: str, tmp_path: Path
) -> None:
    """A null in a list, a map or a struct without nulls is refused, also if the batch has the type of its column: Arrow
    does not check it. A stored batch with such a null is no row."""
    codec = RowCodec(tmp_path, "q", format="arrow", schema=pa.schema([pa.field("c", kind)]))
    for values in ([wrong], [right, wrong], [None, right, wrong]):
        batch = pa.record_batch([pa.array(values, kind)], names=["c"])
        with pytest.raises(ValueError, match=named):
            codec.encode(batch)
        with pytest.raises(ValueError, match=named):
            codec.decode(b"\1\0\0\0" + batch.serialize().to_pybytes())
        without = batch.slice(0, len(values) - 1)
        assert codec.decode(codec.encode(without)).to_pylist() == without.to_pylist()


def test_values_below_a_null_are_none(tmp_path: Path) -> None:
    """A null list, map or struct may have a null below it, where Arrow stores any values."""
    mask, ends = pa.array([True, False]), pa.array([0, 1, 2], pa.int32())
    lists = pa.ListArray.from_arrays(ends, pa.array([None, 1]), type=STRICT_LIST, mask=mask)
    structs = pa.StructArray.from_arrays([pa.array([None, 1])], fields=[STRICT.field(0)], mask=mask)
    batch = pa.record_batch([lists, structs], names=["l", "s"])
    codec = RowCodec(tmp_path, "q", format="arrow", schema=batch.schema)
    rows = [{"l": None, "s": None}, {"l": [1], "s": {"x": 1}}]
    assert codec.decode(codec.encode(batch)).to_pylist() == rows


def test_a_later_column_with_values_that_may_not_be_null(tmp_path: Path) -> None:
    """A batch of an earlier schema has null in a later column, whose lists may have no null in them."""
    item = RowCodec(tmp_path, "q", format="arrow", schema={"id": "long"}).encode([{"id": 1}])
    later = RowCodec(tmp_path, "q", schema=pa.schema({"id": pa.int64(), "l": STRICT_LIST}))
    assert later.decode(item).to_pylist() == [{"id": 1, "l": None}]


def test_maps_in_other_types(tmp_path: Path) -> None:
    """Maps in lists, maps and structs come back, also without a value."""
    inner = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
    types = {
        "a": {"type": "array", "elementType": inner},
        "m": {"type": "map", "keyType": "string", "valueType": inner},
        "s": {"type": "struct", "fields": [{"name": "x", "type": inner}, {"name": "y", "type": "long"}]},
    }
    codec = RowCodec(tmp_path, "q", format="arrow", schema=types)
    row = {"a": [{"k": 1}, None], "m": {"k": {"l": None}}, "s": {"x": {"k": 1}, "y": 2}}
    assert taken(codec, put(codec, [row, dict.fromkeys(row)])) == [row, dict.fromkeys(row)]


@pytest.mark.parametrize("format_name", ["avro", "json"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.date32(), 3_000_000),
        (pa.date32(), -1_000_000),
        (pa.timestamp("us", "UTC"), 2**62),
        (pa.timestamp("us"), -(2**62)),
        (pa.list_(pa.date32()), [2**31 - 1]),
    ],
    ids=str,
)
def test_times_that_python_cannot_have(format_name: str, kind: pa.DataType, value: Any, tmp_path: Path) -> None:
    """A date or time outside of the years 1 to 9999 is refused by the column, and the error names the other format."""
    batch = pa.record_batch({"id": pa.array([1]), "due": pa.array([value], kind)})
    schema = schema_from_arrow(batch.schema)
    registry = Registry(tmp_path, "q")
    registry.register(format_name, schema)
    with pytest.raises(
        ValueError,
        match=r"the column 'due': .*: Python has the years 1 to 9999: .* another queue, with the format arrow",
    ):
        RowBatches(registry, format_name, 1, schema).items_of(batch)
    (item,) = RowBatches(registry, "arrow", 1, schema).items_of(batch)
    assert item


def test_moments_of_rows_without_a_zone(tmp_path: Path) -> None:
    """Rows of Spark 4.0 have moments without a zone, which are those of the process."""
    registry = Registry(tmp_path, "q")
    schema = registry.register("json", schema_from_types({"t": "timestamp", "n": "long"})).schema
    local = dt.datetime(2026, 1, 1, 12)
    batch = RowBatches(registry, "json", 1, schema).batch_from([{"t": local, "n": 1}, {"t": None}])
    assert batch.to_pylist() == [{"t": local.astimezone(dt.timezone.utc), "n": 1}, {"t": None, "n": None}]
    assert RowBatches(registry, "json", 1, schema).items_of(batch.slice(0, 0)) == []


# --- queues that were made anew --------------------------------------------------------------------------------------


def one(codec: RowCodec, **row: Any) -> Any:
    """Return what an item of the codec's format is for this row."""
    return [row] if codec.format == "arrow" else row


def rows_in(path: Path, codec: Any) -> list[dict[str, Any]]:
    """Return the rows of the queue "q", which are no batches."""
    with PersistentQueue(path, "q", codec=codec) as queue:
        return list(queue.browse())


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize(
    ("types", "named"),
    [
        ({"pieces": "long", "price": "long"}, "'price'.* the queue has pieces long, the rows have price long"),
        ({"price": "long"}, "'pieces'.* the queue has no such column, the rows have pieces long"),
        ({"price": "long", "pieces": "long", "n": "long"}, "'n'.* the queue has n long, the rows have no such column"),
    ],
)
def test_a_codec_of_a_queue_that_was_made_anew(
    format_name: str, types: dict[str, str], named: str, tmp_path: Path
) -> None:
    """A codec whose number has another schema now opens nothing: its rows would be read with wrong values."""
    mine = RowCodec(tmp_path, "q", format=format_name, schema={"price": "long", "pieces": "long"})
    pickled, enclosed = pickle.dumps(mine), Enclosed(mine)
    delete_queue(tmp_path, "q")
    theirs = RowCodec(tmp_path, "q", format=format_name, schema=types)
    calls: list[Callable[[], object]] = [
        lambda: Producer(tmp_path, "q", codec=mine),
        lambda: PersistentQueue(tmp_path, "q", codec=mine),
        lambda: PersistentQueue(tmp_path, "q", codec=enclosed),
        lambda: connect(tmp_path, "q", codec=mine),
        lambda: pickle.loads(pickled),
    ]
    for call in calls:
        with pytest.raises(SchemaMismatchError, match=f"{named}: the queue was made anew"):
            call()
    assert rows_in(tmp_path, theirs) == []


def test_a_codec_of_a_queue_with_another_format(tmp_path: Path) -> None:
    """A codec opens nothing if the queue was made anew with rows of another format."""
    mine = RowCodec(tmp_path, "q", format="avro", schema={"id": "long"})
    delete_queue(tmp_path, "q")
    RowCodec(tmp_path, "q", format="json", schema={"id": "long"})
    with pytest.raises(SchemaMismatchError, match="the format of the rows does not fit: the queue has json"):
        PersistentQueue(tmp_path, "q", codec=mine)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_codec_of_another_queue(format_name: str, tmp_path: Path) -> None:
    """A codec opens no queue with other schemas than those of its own queue: the rows would be read with wrong values.

    It opens one with equal schemas, and none without schemas: codecs of several queues might meet there.
    """
    mine = RowCodec(tmp_path, "mine", format=format_name, schema={"price": "long"})
    PersistentQueue(tmp_path, "plain").close()
    for name in ("plain", "new"):
        with pytest.raises(SchemaMismatchError, match=rf"{name}: .* has 0 schemas, .* schema 1: it is .*mine: make"):
            PersistentQueue(tmp_path, name, codec=mine)
    assert not (tmp_path / "new").exists()
    with PersistentQueue(tmp_path, "plain") as queue, queue.transaction() as session:  # as earlier versions did
        session.enqueue(data := mine.encode(one(mine, price=1)))
    with pytest.raises(SchemaMismatchError, match="Rows that wait there: open it without a codec, and call decode of"):
        PersistentQueue(tmp_path, "plain", codec=mine)
    with PersistentQueue(tmp_path, "plain") as queue:
        assert mine.decode(queue.peek()[0]) == mine.decode(data)
    RowCodec(tmp_path, "equal", format=format_name, schema={"price": "long"})
    PersistentQueue(tmp_path, "equal", codec=mine).close()
    theirs = RowCodec(tmp_path, "theirs", format=format_name, schema={"pieces": "long"})
    calls: list[Callable[[], object]] = [
        lambda: Producer(tmp_path, "theirs", codec=mine),
        lambda: PersistentQueue(tmp_path, "theirs", codec=mine),
        lambda: PersistentQueue(tmp_path, "theirs", codec=Enclosed(mine)),
        lambda: connect(tmp_path, "theirs", codec=mine),
        lambda: aio.Queue(tmp_path / "theirs", codec=mine),
        lambda: compat.Queue(tmp_path / "theirs", codec=mine),
    ]
    for call in calls:
        with pytest.raises(
            SchemaMismatchError, match=r"theirs: the column 'price' .*: it is the RowCodec of .*mine: make"
        ):
            call()
    later = RowCodec(tmp_path, "mine", format=format_name, schema={"price": "long", "name": "string"})
    with pytest.raises(SchemaMismatchError, match=r"equal: .* the queue has 1 schema, the rows have schema 2: it is"):
        PersistentQueue(tmp_path, "equal", codec=later)
    with PersistentQueue(tmp_path, "theirs", codec=theirs) as queue:
        assert list(queue.browse()) == []


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_codec_of_a_queue_that_was_moved(format_name: str, tmp_path: Path) -> None:
    """The codec of a queue that was moved or deleted opens no other queue, not even the moved one: its rows would get
    numbers of schemas that another queue gave. It makes no queue in the old place."""
    RowCodec(tmp_path, "q", format=format_name, schema={"id": "long"})
    mine = RowCodec(tmp_path, "q", schema={"id": "long", "n": "long"})
    RowCodec(tmp_path, "theirs", format=format_name, schema={"pieces": "long"})
    (tmp_path / "q").rename(tmp_path / "moved")
    for name in ("moved", "theirs", "new"):
        with pytest.raises(
            SchemaMismatchError, match=rf"q: .* has 0 schemas, .* 2: the queue was moved .* RowCodec for .*{name}$"
        ):
            PersistentQueue(tmp_path, name, codec=mine)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved", "theirs"]


@pytest.mark.parametrize(("own", "opened"), [("link", "real"), ("real", "link")])
def test_a_queue_that_is_made_anew_by_another_of_its_paths(own: str, opened: str, tmp_path: Path) -> None:
    """The codec of a queue that was deleted registers its schema again, also if a link leads to the opened queue."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    codec = RowCodec(tmp_path / own, "q", format="json", schema={"id": "long"})
    delete_queue(tmp_path / own, "q")
    with PersistentQueue(tmp_path / opened, "q", codec=codec) as queue, queue.transaction() as session:
        session.enqueue({"id": 1})
    assert RowCodec(tmp_path / "real", "q").columns == {"id": "long"}


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_pickled_codec_of_a_queue_that_was_deleted(format_name: str, tmp_path: Path) -> None:
    """A codec that was pickled before its queue was deleted registers its schema again, like the codec itself."""
    pickled = pickle.dumps(RowCodec(tmp_path, "q", format=format_name, schema={"id": "long"}))
    delete_queue(tmp_path, "q")
    mine = pickle.loads(pickled)
    with PersistentQueue(tmp_path, "q", codec=mine) as queue, queue.transaction() as session:
        session.enqueue(one(mine, id=1))
    assert RowCodec(tmp_path, "q").columns == {"id": "long"}


@pytest.mark.parametrize("format_name", FORMATS)
def test_rows_of_the_schema_that_took_the_number_of_a_lost_one(format_name: str, tmp_path: Path) -> None:
    """A codec whose schema the queue has lost reads rows with the schema that has its number now."""
    mine = RowCodec(tmp_path, "q", format=format_name, schema={"price": "long"})
    delete_queue(tmp_path, "q")
    with PersistentQueue(tmp_path, "q", codec=mine) as queue:
        theirs = RowCodec(tmp_path, "q", format=format_name, schema={"pieces": "long"})
        with Producer(tmp_path, "q", codec=theirs) as producer:
            producer.enqueue(one(theirs, pieces=7))
            producer.flush()
        with queue.session() as session:
            (item,) = session.dequeue_many(1, timeout=60.0)
            assert (item if format_name != "arrow" else item.to_pylist()[0]) == {"price": None}
            session.flush()


def test_a_row_after_the_queue_was_moved(tmp_path: Path) -> None:
    """A row whose schema has to be registered again is refused if the queue is gone. No queue is made for it."""
    codec = RowCodec(tmp_path, "q", format="json", schema={"id": "long"})
    delete_queue(tmp_path, "q")
    with Producer(tmp_path, "q", codec=codec) as producer:
        (tmp_path / "q").rename(tmp_path / "moved")
        with pytest.raises(CodecError, match="no queue here for these rows: if it was moved, make a RowCodec at"):
            producer.enqueue({"id": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_schema_is_registered_again(format_name: str, tmp_path: Path) -> None:
    """A queue that was made anew by an opening gets the schema of its codec with the first row, and not before. It may
    have another number then."""
    RowCodec(tmp_path, "q", format=format_name, schema={"id": "long"})
    mine = RowCodec(tmp_path, "q", schema={"id": "long", "n": "long"})
    assert mine.number == 2
    delete_queue(tmp_path, "q")
    with pytest.raises(QueueNotFoundError):
        PersistentQueue(tmp_path, "q", codec=mine, create=False)
    with PersistentQueue(tmp_path, "q", codec=mine, fan_out=True) as queue:
        subscription = queue.subscribe("s")
        with pytest.raises(SchemaNotFoundError):
            RowCodec(tmp_path, "q")
        with queue.session() as session:
            session.enqueue(one(mine, id=1, n=2))
            session.flush()
        assert (mine.number, RowCodec(tmp_path, "q").columns) == (1, {"id": "long", "n": "long"})
        (item,) = subscription.browse()
        assert (item if format_name != "arrow" else item.to_pylist()[0]) == {"id": 1, "n": 2}


def test_a_schema_that_the_queue_does_not_take_again(tmp_path: Path) -> None:
    """A row is refused if the queue was made anew with fewer schemas, which do not fit that of the codec."""
    RowCodec(tmp_path, "q", format="avro", schema={"id": "long"})
    mine = RowCodec(tmp_path, "q", schema={"id": "long", "n": "long"})
    delete_queue(tmp_path, "q")
    RowCodec(tmp_path, "q", format="avro", schema={"id": "string"})
    with Producer(tmp_path, "q", codec=mine) as producer, pytest.raises(CodecError, match="the column 'id'"):
        producer.enqueue({"id": 1, "n": 2})


@pytest.mark.damages
def test_schemas_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    """A damaged schema does not keep a codec from its queue that knows the schema."""
    codec = RowCodec(tmp_path, "q", format="avro", schema={"id": "long"})
    (tmp_path / "q" / "schemas" / "000001.schema").write_bytes(b"damaged")
    with PersistentQueue(tmp_path, "q", codec=codec) as queue, queue.transaction() as session:
        session.enqueue({"id": 1})
    assert rows_in(tmp_path, codec) == [{"id": 1}]

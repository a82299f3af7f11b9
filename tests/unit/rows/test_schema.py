"""Schemas of rows: their types, and the changes that a schema may have."""

from __future__ import annotations

from typing import Any

import pytest

from persistentqueue.rows import SchemaMismatchError
from persistentqueue.rows.schema import (
    Schema,
    evolved,
    kind_text,
    need_readable,
    schema_from_json,
    schema_from_types,
)

INNER = {"type": "struct", "fields": [{"name": "x", "type": "short", "nullable": False, "metadata": {"comment": "c"}}]}
LIST = {"type": "array", "elementType": INNER, "containsNull": False}
MAP = {"type": "map", "keyType": "string", "valueType": LIST, "valueContainsNull": True}


def of(**types: Any) -> Schema:
    """Return a schema with these columns."""
    return schema_from_types(types)


class Name(str):
    """The name of a column, which counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()

    def lower(self) -> Name:
        """Return the name as it is."""
        return self


def test_names_are_compared_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of a schema, of a change and of a read compare each name few times, and not with all others."""
    monkeypatch.setattr(Name, "compared", 0)
    old, new = (schema_from_types({Name(f"c{number}"): "long" for number in range(count)}) for count in (300, 400))
    assert evolved("q", old, new) == new
    need_readable("q", new, old)
    need_readable("q", old, new)
    assert 0 < Name.compared < 20 * 400


def test_types_there_and_back() -> None:
    """A schema keeps all types through its serialization, without metadata, and shows them as text."""
    schema = of(id="long not null", price="decimal(10,2)", map=MAP)
    assert schema_from_json(schema.to_json()) == schema
    assert [column.text() for column in schema.columns] == [
        "long not null",
        "decimal(10,2)",
        "map<string,array<struct<x:short not null> not null>>",
    ]
    assert "metadata" not in str(schema.to_json())
    assert kind_text("date") == "date"


@pytest.mark.parametrize(
    ("types", "named"),
    [
        ({"a": "interval"}, "'a' has the type 'interval'"),
        ({"a": "decimal(39,2)"}, r"'a' has the type 'decimal\(39,2\)'"),
        ({"a": "decimal(3,4)"}, "decimal"),
        ({"a": {"type": "array", "elementType": "void"}}, "'a.element' has the type 'void'"),
        ({"a": {"type": "map", "keyType": "string", "valueType": 7}}, "'a.value'"),
        ({"a": {"type": "struct", "fields": []}}, "'a'"),
        ({"a": {"type": "struct", "fields": [{"name": "x", "type": "uint8"}]}}, "'a.x' has the type 'uint8'"),
        ({"a": {"type": "udt"}}, "'a'"),
        ({"a": "long", "A": "long"}, "'a' is there twice"),
        ({"": "long"}, "a column has a name"),
        ({}, "at least one column"),
    ],
)
def test_types_that_rows_cannot_have(types: dict[str, Any], named: str) -> None:
    """A schema with an unknown type, or a name that is there twice, is refused by the name of the column."""
    with pytest.raises((TypeError, ValueError), match=named):
        schema_from_types(types)


def test_a_schema_is_a_struct() -> None:
    """Anything else than a struct is no schema."""
    with pytest.raises(TypeError, match="type struct"):
        schema_from_json({"type": "array"})


OLD = of(id="long not null", name="string", at="timestamp")


def test_columns_that_can_be_null_may_be_added_anywhere() -> None:
    """New columns come behind the old ones, which keep their order."""
    new = of(new="string", at="timestamp", name="string", other=LIST, id="long not null")
    assert list(evolved("q", OLD, new).by_name()) == ["id", "name", "at", "new", "other"]


@pytest.mark.parametrize(
    ("changes", "column", "old", "new"),
    [
        ({"name": None}, "name", "string", "no such column"),
        ({"id": "integer not null"}, "id", "long not null", "integer not null"),
        ({"at": "timestamp_ntz"}, "at", "timestamp", "timestamp_ntz"),
        ({"name": "string not null"}, "name", "string", "string not null"),
        ({"id": "long"}, "id", "long not null", "long"),
        ({"new": "long not null"}, "new", "no such column", "long not null"),
    ],
)
def test_other_changes_are_refused_by_name(changes: dict[str, Any], column: str, old: str, new: str) -> None:
    """A column that is removed, retyped, newly without nulls or with them, or added without nulls is named."""
    types = {each.name: each.text() for each in OLD.columns} | changes
    with pytest.raises(SchemaMismatchError) as caught:
        evolved("q", OLD, schema_from_types({name: kind for name, kind in types.items() if kind is not None}))
    error = caught.value
    assert (error.path, error.column, error.old, error.new) == ("q", column, old, new)
    assert f"the column {column!r}" in str(error) and str(error).startswith("q: ")


def test_a_name_that_differs_in_case_is_refused() -> None:
    """Spark does not tell names by their case, so the columns of rows need the names that the queue has.

    That holds for a writer, which would add a column, and for a reader, which would get nulls.
    """
    old = of(id="long", name="string")
    for call in (evolved, need_readable):
        with pytest.raises(SchemaMismatchError, match=r"'ID'.*'id', which differs in case, .*: name it 'id'") as caught:
            call("q", old, of(ID="long", name="string"))
        assert caught.value.column == "ID"
    assert list(of(straße="long", strasse="long").by_name()) == ["straße", "strasse"], "two names, also for Spark"
    with pytest.raises(SchemaMismatchError, match=r"'ID'.*'id', which differs in case"):
        evolved("q", old, Schema((*old.columns, *of(ID="long").columns)))


def test_fields_in_a_struct_never_change() -> None:
    """A new field in a struct changes the type of its column."""
    more = {"type": "struct", "fields": [*INNER["fields"], {"name": "y", "type": "long"}]}
    with pytest.raises(SchemaMismatchError, match="struct<x:short not null>, the rows have struct<x:short not null,y:"):
        evolved("q", of(a=INNER), of(a=more))


def test_columns_that_a_reader_may_want() -> None:
    """A reader may want some columns, or more that can be null, but no column of another type."""
    need_readable("q", OLD, of(name="string", more="long"))
    need_readable("q", OLD, of(id="long"))
    for wanted, column in (
        ({"more": "long not null"}, "more"),
        ({"id": "string"}, "id"),
        ({"name": "string not null"}, "name"),
    ):
        with pytest.raises(SchemaMismatchError) as caught:
            need_readable("q", OLD, schema_from_types(wanted))
        assert caught.value.column == column

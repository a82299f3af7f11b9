"""Schemas of rows: their columns, the types of these, and the changes that a schema may have. Pure values.

A schema is serialized like one of Delta Lake or Spark: ``{"type": "struct", "fields": [{"name": "id", "type": "long",
"nullable": true}]}``. Metadata of columns is left out. The types:

- ``boolean``, ``byte``, ``short``, ``integer``, ``long``, ``float``, ``double``, ``string``, ``binary``, ``date``;
- ``timestamp``, a moment in UTC, and ``timestamp_ntz``, a date and time without a zone, both in microseconds;
- ``decimal(precision,scale)``, with a precision of 1 to 38 and a scale of 0 to the precision;
- ``{"type": "array", "elementType": …, "containsNull": …}``;
- ``{"type": "map", "keyType": …, "valueType": …, "valueContainsNull": …}``;
- ``{"type": "struct", "fields": […]}``.

A later schema has all columns of the earlier one, with their types, and new columns that can be null. The type of a
column never changes, and neither does a field in a ``struct``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Union

from .errors import SchemaMismatchError

Kind = Union[str, "dict[str, Any]"]
"""The type of a column, as the values of JSON."""
INTEGER_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
"""Bits of the types of whole numbers."""
PRIMITIVES = frozenset(
    {*INTEGER_BITS, "boolean", "float", "double", "string", "binary", "date", "timestamp", "timestamp_ntz"}
)
_DECIMAL = re.compile(r"decimal\(([0-9]{1,2}),([0-9]{1,2})\)", re.ASCII)
_PRECISION_MAX = 38
_NOT_NULL = " not null"
_OTHER_QUEUE = "or write these rows to another queue"


class Column(NamedTuple):
    """A column of rows."""

    name: str
    kind: Kind
    nullable: bool = True

    def text(self) -> str:
        """Return the type of the column as text, for an error."""
        return kind_text(self.kind) + ("" if self.nullable else _NOT_NULL)


class Schema(NamedTuple):
    """The columns of rows, in their order."""

    columns: tuple[Column, ...]

    def by_name(self) -> dict[str, Column]:
        """Return the columns by their names."""
        return {column.name: column for column in self.columns}

    def to_json(self) -> dict[str, Any]:
        """Return the serialization of the schema, as the values of JSON."""
        return kind_of("struct", self.columns)


def schema_from_json(value: Any) -> Schema:
    """Return the schema with this serialization. Raises ``TypeError`` and ``ValueError``, which name the column."""
    if not isinstance(value, Mapping) or value.get("type") != "struct":
        raise TypeError(f"a schema is a type struct with fields, not {value!r}")
    return _checked(_column(field, "") for field in value["fields"])


def schema_from_types(types: Mapping[str, Any]) -> Schema:
    """Return the schema with these columns: each name with its type. ``not null`` may follow a type that is text.

    Raises ``TypeError`` and ``ValueError``, which name the column.
    """
    columns = []
    for name, kind in types.items():
        is_required = isinstance(kind, str) and kind.endswith(_NOT_NULL)
        plain = kind.removesuffix(_NOT_NULL) if is_required else kind
        columns.append(_column({"name": name, "type": plain, "nullable": not is_required}, ""))
    return _checked(columns)


def _checked(columns: Any) -> Schema:
    """Return the schema of these columns. Raises ``ValueError`` without any, and for names that differ by case only."""
    found = tuple(columns)
    if not found:
        raise ValueError("a schema needs at least one column")
    _need_distinct([column.name for column in found], "")
    return Schema(found)


def _need_distinct(names: Sequence[str], where: str) -> None:
    times = Counter(map(str.lower, names))
    twice = next((name for name in names if times[name.lower()] > 1), None)
    if twice is not None:
        raise ValueError(f"the column {where + twice!r} is there twice, perhaps in another case: rename one of them")


def _column(field: Any, above: str) -> Column:
    if not isinstance(field, Mapping) or not isinstance(field.get("name"), str) or not field["name"]:
        raise TypeError(f"a column has a name and a type, not {field!r}")
    where = above + field["name"]
    return Column(field["name"], _kind(field.get("type"), where), bool(field.get("nullable", True)))


def _kind(kind: Any, where: str) -> Kind:
    """Return the type without metadata. Raises ``ValueError``, with the column's name, for one that is not known."""
    if isinstance(kind, str):
        found = _DECIMAL.fullmatch(kind)
        if kind in PRIMITIVES or (found is not None and int(found[2]) <= int(found[1]) <= _PRECISION_MAX):
            return kind
    elif isinstance(kind, Mapping):
        if kind.get("type") == "array":
            element = _kind(kind.get("elementType"), f"{where}.element")
            return kind_of("array", [Column("element", element, bool(kind.get("containsNull", True)))])
        if kind.get("type") == "map":
            key, value = _kind(kind.get("keyType"), f"{where}.key"), _kind(kind.get("valueType"), f"{where}.value")
            contains = bool(kind.get("valueContainsNull", True))
            return kind_of("map", [Column("key", key, False), Column("value", value, contains)])
        if kind.get("type") == "struct" and kind.get("fields"):
            columns = [_column(field, f"{where}.") for field in kind["fields"]]
            _need_distinct([column.name for column in columns], f"{where}.")
            return kind_of("struct", columns)
    raise ValueError(
        f"the column {where!r} has the type {kind!r}, which rows cannot have: cast it to one of the types "
        f"{', '.join(sorted(PRIMITIVES))}, decimal(p,s), array, map or struct"
    )


def decimal_of(kind: Kind) -> tuple[int, int] | None:
    """Return the precision and the scale of a type; None if it is no decimal."""
    found = _DECIMAL.fullmatch(kind) if isinstance(kind, str) else None
    return (int(found[1]), int(found[2])) if found is not None else None


def kind_of(name: str, parts: Sequence[Column]) -> dict[str, Any]:
    """Return the array, map or struct with these parts, which are those of ``parts_of``."""
    if name == "array":
        (element,) = parts
        return {"type": name, "elementType": element.kind, "containsNull": element.nullable}
    if name == "map":
        key, value = parts
        return {"type": name, "keyType": key.kind, "valueType": value.kind, "valueContainsNull": value.nullable}
    return {"type": name, "fields": [{"name": part, "type": kind, "nullable": null} for part, kind, null in parts]}


def parts_of(kind: Kind) -> list[Column]:
    """Return the types in a type, as columns, and no further ones in these.

    They are the element of an array, the key and the value of a map, and the fields of a struct.
    """
    if isinstance(kind, str):
        return []
    if kind["type"] == "array":
        return [Column("element", kind["elementType"], kind["containsNull"])]
    if kind["type"] == "map":
        return [Column("key", kind["keyType"], False), Column("value", kind["valueType"], kind["valueContainsNull"])]
    return [Column(field["name"], field["type"], field["nullable"]) for field in kind["fields"]]


def kind_text(kind: Kind) -> str:
    """Return a type as short text, such as ``array<long>``."""
    if isinstance(kind, str):
        return kind
    parts = parts_of(kind)
    if kind["type"] == "array":
        return f"array<{parts[0].text()}>"
    if kind["type"] == "map":
        return f"map<{kind_text(parts[0].kind)},{parts[1].text()}>"
    return f"struct<{','.join(f'{each.name}:{each.text()}' for each in parts)}>"


def with_nulls(kind: Kind) -> Kind:
    """Return the type with nulls allowed everywhere in it."""
    if isinstance(kind, str):
        return kind
    return kind_of(kind["type"], [Column(part.name, with_nulls(part.kind)) for part in parts_of(kind)])


def evolved(path: str, old: Schema, new: Schema) -> Schema:
    """Return the new schema with the columns of the old one first, if it only adds columns that can be null.

    Raises ``SchemaMismatchError`` otherwise. ``path`` is the directory of the queue, for the error.
    """
    earlier, later = old.by_name(), new.by_name()
    added = [column for column in new.columns if column.name not in earlier]
    _need_new_names(path, old, added)
    for column in old.columns:
        found = later.get(column.name)
        if found is None:
            advice = f"add the column to the rows, as null if there is no value, {_OTHER_QUEUE}"
            raise SchemaMismatchError(path, column.name, column.text(), "no such column", advice)
        if found.kind != column.kind:
            advice = f"cast the column to {kind_text(column.kind)}, add it under another name, {_OTHER_QUEUE}"
            raise SchemaMismatchError(path, column.name, column.text(), found.text(), advice)
        if column.nullable and not found.nullable:
            advice = f"declare that the column can be null, since it can be so in earlier rows, {_OTHER_QUEUE}"
            raise SchemaMismatchError(path, column.name, column.text(), found.text(), advice)
        if found.nullable and not column.nullable:
            advice = f"replace the nulls, and declare that the column has none, {_OTHER_QUEUE}"
            raise SchemaMismatchError(path, column.name, column.text(), found.text(), advice)
    for column in added:
        if not column.nullable:
            advice = f"declare that the column can be null, since earlier rows do not have it, {_OTHER_QUEUE}"
            raise SchemaMismatchError(path, column.name, "no such column", column.text(), advice)
    return Schema((*old.columns, *added))


def _need_new_names(path: str, stored: Schema, columns: Iterable[Column]) -> None:
    """Raise ``SchemaMismatchError`` if the name of a column is that of a stored one, in another case."""
    folded = {each.name.lower(): each.name for each in stored.columns}
    for column in columns:
        other = folded.get(column.name.lower())
        if other is not None:
            advice = f"name it {other!r}"
            raise SchemaMismatchError(path, column.name, f"{other!r}, which differs in case", column.text(), advice)


def need_readable(path: str, stored: Schema, wanted: Schema) -> None:
    """Raise ``SchemaMismatchError`` unless rows of the stored schema can be read with the wanted columns.

    A wanted column that is not stored is null in each row. Stored columns that are not wanted are left out.
    """
    known = stored.by_name()
    _need_new_names(path, stored, (column for column in wanted.columns if column.name not in known))
    for column in wanted.columns:
        found = known.get(column.name)
        if found is None:
            if not column.nullable:
                advice = "leave the column out, or declare that it can be null"
                raise SchemaMismatchError(path, column.name, "no such column", column.text(), advice)
        elif found.kind != column.kind or (found.nullable and not column.nullable):
            advice = f"read it as {found.text()}, and cast it then"
            raise SchemaMismatchError(path, column.name, found.text(), column.text(), advice)

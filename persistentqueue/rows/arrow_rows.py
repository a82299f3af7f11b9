"""Rows in Arrow: an item is the number of its schema, and one record batch of any number of rows.

::

    offset  bytes  field
         0      4  number     of the schema, u32, little-endian
         4         batch      an encapsulated message of Arrow's IPC format: a RecordBatch, without its schema

The schema of the batch follows from the schema of the rows: a field for each column, in its order. Texts, bytes, lists
and maps have offsets of 32 bits. A ``timestamp`` is in microseconds with the zone UTC.

So sequences, limits and offsets count batches, and not rows. A batch is checked when it is read: no offset in it can
lead outside of it. Columns that it does not have are null, and columns that are not wanted are left out. No value is
copied or converted for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError
from .avro_rows import NUMBER, number_of
from .registry import Registry
from .schema import Column, Kind, Schema, decimal_of, kind_of, kind_text, parts_of, schema_from_json, with_nulls
from .values import check_value_in_utc, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

_ITEM_BYTES_MAX = 2**31 - 64
_NOT_UTF8 = "it is not UTF-8: cast it to binary"
_KINDS = {
    "bool": "boolean",
    "int8": "byte",
    "int16": "short",
    "int32": "integer",
    "int64": "long",
    "float": "float",
    "double": "double",
    "large_string": "string",
    "large_binary": "binary",
    "string": "string",
    "binary": "binary",
    "date32[day]": "date",
}
"""Types of columns, by the names that Arrow has for them."""
_ARROW_NAMES = {kind: name for name, kind in _KINDS.items()}
"""The last name that Arrow has for each type."""


@cache
def pyarrow() -> Any:
    """Return the package that encodes Arrow. Raises ``MissingExtraError``."""
    try:
        import pyarrow as found  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise MissingExtraError("rows in Arrow", "arrow") from error
    return found


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the schema of batches with these columns. Raises ``MissingExtraError``."""
    return pyarrow().schema(_arrow_fields(schema.columns))


def arrow_type(kind: Kind) -> pa.DataType:
    """Return the type of a column in Arrow. Raises ``MissingExtraError``."""
    arrow = pyarrow()
    decimal = decimal_of(kind)
    if decimal is not None:
        return arrow.decimal128(*decimal)
    if isinstance(kind, str):
        if kind in _ARROW_NAMES:
            return arrow.type_for_alias(_ARROW_NAMES[kind])
        return arrow.timestamp("us", "UTC" if kind == "timestamp" else None)
    fields = _arrow_fields(parts_of(kind))
    if kind["type"] == "struct":
        return arrow.struct(fields)
    return (arrow.list_ if kind["type"] == "array" else arrow.map_)(*fields)


def _arrow_fields(columns: Iterable[Column]) -> list[pa.Field]:
    return [pyarrow().field(name, arrow_type(kind), nullable) for name, kind, nullable in columns]


def schema_from_arrow(schema: pa.Schema) -> Schema:
    """Return the schema of rows that these batches have. Raises ``ValueError``, which names the column."""
    return schema_from_json(kind_of("struct", list(map(_column, schema))))


def _column(field: pa.Field) -> Column:
    return Column(field.name, _kind(field.type), field.nullable)


def _kind(kind: pa.DataType) -> Any:
    """Return the type of a column of rows; the name of Arrow's type if rows cannot have it."""
    types = pyarrow().types
    if types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_timestamp(kind) and kind.unit == "us":
        return "timestamp" if kind.tz is not None else "timestamp_ntz"
    if types.is_list(kind) or types.is_large_list(kind):
        return kind_of("array", [_column(kind.value_field)])
    if types.is_map(kind):
        return kind_of("map", [_column(kind.key_field), _column(kind.item_field)])
    if types.is_struct(kind):
        return kind_of("struct", [_column(kind.field(at)) for at in range(kind.num_fields)])
    return _KINDS.get(str(kind), f"{kind} of Arrow")


class ArrowRows:
    """Converts batches of rows to items and back."""

    def __init__(self, registry: Registry, number: int | None, wanted: Schema) -> None:
        self._arrow = pyarrow()
        self._registry = registry
        self._wanted = arrow_schema(wanted)
        self._required = _with_needs(wanted)
        self._schemas: dict[int, Any] = {}
        self._number = number
        if number is not None:
            self._written = registry.schema(number)
            self._target = arrow_schema(self._written)
            self._needed = _with_needs(self._written)
            self._checked = rows_of(self._written, check_value_in_utc)

    def encode(self, rows: Any) -> bytes:
        """Return a batch, or an iterable of rows, as an item. Raises ``ValueError``, which names the column."""
        assert self._number is not None
        if not isinstance(rows, self._arrow.RecordBatch):
            rows = batch_of_rows(map(self._checked, _listed(rows)), self._written)
        data = self._conformed(rows).serialize()
        stored = self._arrow.ipc.read_record_batch(data, self._target)
        for name, array in zip(self._target.names, stored, strict=True):
            _need_valid(array, name)
        for name, kind, nullable in self._needed:
            _need_values(stored.column(name), kind, nullable, name)
        if len(data) > _ITEM_BYTES_MAX:
            raise ValueError(f"a batch of {rows.num_rows} rows takes {len(data)} bytes: use batches of fewer rows")
        return b"".join((NUMBER.pack(self._number), data))

    def decode(self, data: bytes | memoryview) -> pa.RecordBatch:
        """Return the batch in an item. Raises ``SchemaNotFoundError``, and Arrow's ``ValueError`` and others."""
        number = number_of(data)
        if number not in self._schemas:
            self._schemas[number] = arrow_schema(self._registry.schema(number))
        message = self._arrow.py_buffer(data).slice(NUMBER.size)
        batch = self._arrow.ipc.read_record_batch(message, self._schemas[number])
        batch.validate(full=True)
        for name, kind, nullable in self._required:
            if name in batch.schema.names:
                _need_values(batch.column(name), kind, nullable, name)
        if self._schemas[number] is self._wanted or self._schemas[number].equals(self._wanted):
            return batch
        stored, count = batch.schema, batch.num_rows
        columns = [
            batch.column(field.name) if field.name in stored.names else self._arrow.nulls(count, field.type)
            for field in self._wanted
        ]
        return self._arrow.RecordBatch.from_arrays(columns, schema=self._wanted)

    def _conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the columns of its schema, in their order. Raises ``ValueError``."""
        unknown = [name for name in batch.schema.names if name not in self._target.names]
        if unknown:
            raise ValueError(f"the schema has no column {unknown[0]!r}: register a schema that has it")
        twice = next((name for name in batch.schema.names if batch.schema.get_field_index(name) < 0), None)
        if twice is not None:
            raise ValueError(f"the column {twice!r} is there twice: rename or drop one of them")
        columns = []
        for column, field in zip(self._written.columns, self._target, strict=True):
            at = batch.schema.get_field_index(column.name)
            array = batch.column(at) if at >= 0 else self._arrow.nulls(batch.num_rows, field.type)
            if at >= 0 and array.type != field.type:
                found = _kind(array.type)
                if with_nulls(found) != with_nulls(column.kind):
                    text = found if isinstance(found, str) else kind_text(found)
                    raise ValueError(f"the column {column.name!r}: expected {column.text()}, found {text}: cast it")
                if found != column.kind != with_nulls(column.kind):  # there may be nulls where none may be
                    alone = Schema((column,))
                    rows = ({column.name: value} for value in python_values(array, column.name))
                    array = batch_of_rows(map(rows_of(alone, check_value_in_utc), rows), alone).column(0)
                else:
                    array = array.cast(field.type)
            columns.append(array)
        return self._arrow.RecordBatch.from_arrays(columns, schema=self._target)


def python_values(array: pa.Array, name: str) -> list[Any]:
    """Return the values of a column. Raises ``ValueError``, with its name, for text, and ``OverflowError``."""
    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError as error:
        raise ValueError(f"the column {name!r}: {error}: {_NOT_UTF8}") from error
    return values


def _need_valid(array: pa.Array, name: str) -> None:
    """Raise ``ValueError``, with the column's name, for a stored array that no read would accept."""
    try:
        array.validate(full=True)
    except ValueError as error:
        advice = _NOT_UTF8 if "UTF8" in str(error) else "correct the values"
        raise ValueError(f"the column {name!r}: {error}: {advice}") from error


def _with_needs(schema: Schema) -> list[Column]:
    """Return the columns that may not be null, or not everywhere in their values."""
    return [column for column in schema.columns if not column.nullable or column.kind != with_nulls(column.kind)]


def _need_values(array: pa.Array, kind: Kind, nullable: bool, where: str) -> None:
    """Raise ``ValueError``, with the column at ``where``, for a null in a place that may have none.

    Arrow stores any values below a null. These are no values.
    """
    if array.null_count and not nullable:
        raise ValueError(f"the column {where!r} has nulls: expected {kind_text(kind)} not null")
    if isinstance(kind, str) or kind == with_nulls(kind):
        return
    array = array.drop_null()
    if kind["type"] == "array":
        inner = [array.flatten()]
    elif kind["type"] == "map":
        first, last = (array.offsets[0].as_py(), array.offsets[-1].as_py()) if len(array) else (0, 0)
        inner = [each.slice(first, last - first) for each in (array.keys, array.items)]
    else:
        inner = array.flatten()
    for part, values in zip(parts_of(kind), inner, strict=True):
        _need_values(values, part.kind, part.nullable, f"{where}.{part.name}")


def _listed(rows: Any) -> Iterable[Any]:
    if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable):
        raise TypeError(f"an item is a RecordBatch, or a list of rows, not a {type(rows).__name__}")
    return rows


def batch_of_rows(rows: Iterable[dict[str, Any]], schema: Schema) -> pa.RecordBatch:
    """Return rows that were checked as a batch. Raises ``MissingExtraError``."""
    found = list(rows)
    pairs = {name: kind for name, kind, _ in schema.columns if _has_map(kind)}
    if pairs:  # before version 20, PyArrow takes no dictionary for a map
        found = [row | {name: _with_pairs(row[name], kind) for name, kind in pairs.items()} for row in found]
    batch: pa.RecordBatch = pyarrow().RecordBatch.from_pylist(found, schema=arrow_schema(schema))
    return batch


def _has_map(kind: Kind) -> bool:
    return isinstance(kind, dict) and (kind["type"] == "map" or any(_has_map(part.kind) for part in parts_of(kind)))


def _with_pairs(value: Any, kind: Any) -> Any:
    if value is None or not _has_map(kind):
        return value
    parts = parts_of(kind)
    if kind["type"] == "array":
        return [_with_pairs(each, parts[0].kind) for each in value]
    if kind["type"] == "map":
        return [(key, _with_pairs(each, parts[1].kind)) for key, each in value.items()]
    return {part.name: _with_pairs(value[part.name], part.kind) for part in parts}

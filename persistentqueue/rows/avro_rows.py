"""Rows in Avro: an item is the number of its schema, and one record in Avro's binary encoding, without a header.

::

    offset  bytes  field
         0      4  number     of the schema, u32, little-endian
         4         record     Avro 1.11, binary encoding

The schema of the record follows from the schema of the rows: a record ``row``, with a field for each column. A column
that can be null is a union of ``null`` and its type, with the default null. Structs are records, whose namespace is the
place of the column. ``byte`` and ``short`` are ``int``. Dates, times and decimals are Avro's logical types ``date``,
``timestamp-micros``, ``local-timestamp-micros`` and ``decimal`` in ``bytes``.

A record is read by the rules of Avro: columns that it does not have are null, and columns that are not wanted are left
out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import cache
from io import BytesIO
from types import ModuleType
from typing import Any

from ..errors import MissingExtraError
from .registry import Registry
from .schema import Column, Kind, Schema, decimal_of, parts_of
from .values import check_value_in_utc, rows_of

NUMBER = struct.Struct("<I")
"""The number of the schema that begins an item."""
_TYPES: dict[str, Any] = {
    "byte": "int",
    "short": "int",
    "integer": "int",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}

_CONTENTS = {"array": "items", "map": "values"}


@cache
def fastavro() -> ModuleType:
    """Return the package that encodes Avro. Raises ``MissingExtraError``."""
    try:
        import fastavro as found  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise MissingExtraError("rows in Avro", "avro") from error
    return found


def avro_schema(schema: Schema) -> dict[str, Any]:
    """Return the schema of records with these columns, as the values of JSON."""
    return _record("row", "", schema.columns)


def _record(name: str, namespace: str, columns: Iterable[Column]) -> dict[str, Any]:
    inside = f"{namespace}.{name}" if namespace else name
    fields: list[dict[str, Any]] = []
    for column in columns:
        kind = _type(column.kind, column.nullable, column.name, inside)
        fields.append({"name": column.name, "type": kind} | ({"default": None} if column.nullable else {}))
    return {"type": "record", "name": name, "namespace": namespace, "fields": fields}


def _type(kind: Kind, nullable: bool, name: str, namespace: str) -> Any:
    found: Any
    decimal, inside = decimal_of(kind), f"{namespace}.{name}"
    if decimal is not None:
        found = {"type": "bytes", "logicalType": "decimal", "precision": decimal[0], "scale": decimal[1]}
    elif isinstance(kind, str):
        found = _TYPES.get(kind, kind)
    elif kind["type"] == "struct":
        found = _record(name, namespace, parts_of(kind))
    else:  # the key of a map is text
        last = parts_of(kind)[-1]
        found = {"type": kind["type"], _CONTENTS[kind["type"]]: _type(last.kind, last.nullable, last.name, inside)}
    return ["null", found] if nullable else found


class AvroRows:
    """Converts rows to Avro and back."""

    def __init__(self, registry: Registry, number: int | None, wanted: Schema) -> None:
        self._avro = fastavro()
        self._registry = registry
        self._parsed: dict[int, Any] = {}
        self._wanted = self._avro.parse_schema(avro_schema(wanted))
        self._number = number
        if number is not None:
            self._checked = rows_of(registry.schema(number), check_value_in_utc)
            self._schema_of(number)

    def encode(self, row: Any) -> bytes:
        """Return a row as an item. Raises ``ValueError``, which names the column."""
        assert self._number is not None
        file = BytesIO()
        file.write(NUMBER.pack(self._number))
        self._avro.schemaless_writer(file, self._parsed[self._number], self._checked(row))
        return file.getvalue()

    def decode(self, data: bytes) -> dict[str, Any]:
        """Return the row in an item. Raises ``SchemaNotFoundError``, ``ValueError`` and others."""
        number = number_of(data)
        file = BytesIO(data)
        file.seek(NUMBER.size)
        row: dict[str, Any] = self._avro.schemaless_reader(file, self._schema_of(number), self._wanted)
        if file.tell() != len(data):
            raise ValueError(f"expected a record of {len(data) - NUMBER.size} bytes, found one of {file.tell()}")
        return row

    def _schema_of(self, number: int) -> Any:
        if number not in self._parsed:
            self._parsed[number] = self._avro.parse_schema(avro_schema(self._registry.schema(number)))
        return self._parsed[number]


def number_of(data: bytes | memoryview) -> int:
    """Return the number of the schema that begins an item. Raises ``ValueError`` for an item without one."""
    if len(data) < NUMBER.size:
        raise ValueError(f"expected the number of a schema in {NUMBER.size} bytes, found {len(data)} bytes")
    number: int = NUMBER.unpack_from(data)[0]
    return number

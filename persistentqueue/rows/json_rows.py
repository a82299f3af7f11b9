"""Rows in JSON: an item is one row, as the bare text of one object in UTF-8. Any program can read and write it.

The item does not say which schema it has. A column that is missing is null, and one that the schema does not have is
left out. So are the fields of a struct. ``values`` lists the values of JSON for each type.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from .schema import Kind, Schema, decimal_of, parts_of
from .values import from_json, known_rows_of, rows_of, to_json

_DECODER = json.JSONDecoder(parse_float=Decimal)


class JsonRows:
    """Converts rows to JSON and back."""

    def __init__(self, written: Schema | None, wanted: Schema) -> None:
        self._checked = None if written is None else rows_of(written, to_json)
        self._read = known_rows_of(wanted, from_json)
        self._parsed = _exact if any(_has_decimals(column.kind) for column in wanted.columns) else json.loads

    def encode(self, row: Any) -> bytes:
        """Return a row as an item. Raises ``ValueError``, which names the column."""
        assert self._checked is not None
        return json.dumps(self._checked(row), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def decode(self, data: bytes) -> dict[str, Any]:
        """Return the row in an item. Raises ``ValueError``."""
        return self._read(self._parsed(data))


def _exact(data: bytes) -> Any:
    """Return a value of JSON like ``json.loads``, with all digits of a number that has a fraction."""
    return _DECODER.decode(data.decode(json.detect_encoding(data), "surrogatepass"))


def _has_decimals(kind: Kind) -> bool:
    return decimal_of(kind) is not None or any(_has_decimals(part.kind) for part in parts_of(kind))

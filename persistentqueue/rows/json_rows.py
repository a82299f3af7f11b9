"""Rows in JSON: an item is one row, as the bare text of one object in UTF-8. Any program can read and write it.

The item does not say which schema it has. A column that is missing is null, and one that the schema does not have is
left out. ``values`` lists the values of JSON for each type.
"""

from __future__ import annotations

import json
from typing import Any

from .schema import Schema
from .values import from_json, known_rows_of, rows_of, to_json


class JsonRows:
    """Converts rows to JSON and back."""

    def __init__(self, written: Schema | None, wanted: Schema) -> None:
        self._checked = None if written is None else rows_of(written, to_json)
        self._read = known_rows_of(wanted, from_json)

    def encode(self, row: Any) -> bytes:
        """Return a row as an item. Raises ``ValueError``, which names the column."""
        assert self._checked is not None
        return json.dumps(self._checked(row), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def decode(self, data: bytes) -> dict[str, Any]:
        """Return the row in an item. Raises ``ValueError``."""
        return self._read(json.loads(data))

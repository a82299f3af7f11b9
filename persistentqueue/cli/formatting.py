"""Items and times, as the command line prints them: as text and as JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from persistentqueue.drawing.text import many, printable


def lost_text(first: int, count: int) -> str:
    """Return the line that says which items are lost."""
    return f"lost: {many(count, 'item')}, sequences {first} to {first + count - 1}"


def time_text(time_ns: int) -> str:
    """Return a time in ISO 8601, in UTC, with microseconds."""
    return datetime.fromtimestamp(time_ns / 1e9, timezone.utc).isoformat(timespec="microseconds")


def item_json(data: bytes) -> dict[str, str]:
    """Return an item as a JSON object: as ``text`` if it is UTF-8, else as ``base64``."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def item_of(document: Any) -> bytes:
    """Return the item that a line of a dump describes. Raises ``ValueError`` if the line describes none."""
    if not isinstance(document, Mapping) or len({"text", "base64"} & document.keys()) != 1:
        raise ValueError('expected {"text": …} or {"base64": …}')
    kind = "text" if "text" in document else "base64"
    value = document[kind]
    if not isinstance(value, str):
        raise ValueError(  # noqa: TRY004 - callers catch one error for any wrong line
            f'expected text as the value of "{kind}", found {type(value).__name__}'
        )
    return value.encode() if kind == "text" else base64.b64decode(value, validate=True)


def item_text(data: bytes, width: int) -> str:
    """Return the beginning of an item in at most ``width`` characters, for a table."""
    text = printable(data[: 4 * width].decode(errors="backslashreplace"))
    return text if len(text) <= width and len(data) <= 4 * width else text[: width - 1] + "…"

"""Sizes, time spans and items, as the command line prints them: as text and as JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_SPANS = ((86400, "d"), (3600, "h"), (60, "min"))
_LEAST_SECONDS = 1e-3


def size_text(size_bytes: int) -> str:
    """Return a number of bytes with its unit, such as ``3.2 MiB``."""
    amount, unit = float(size_bytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:,.0f} {_UNITS[unit]}" if not unit or amount >= 100 else f"{amount:.1f} {_UNITS[unit]}"


def span_text(seconds: float | None) -> str:
    """Return a time span, such as ``3 h 20 min``; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < _LEAST_SECONDS:
        return "< 1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    at = next(at for at, (length, _) in enumerate(_SPANS) if whole >= length)
    length, name = _SPANS[at]
    smaller, its_name = _SPANS[at + 1] if at + 1 < len(_SPANS) else (1, "s")
    rest = whole % length // smaller
    return f"{whole // length} {name}" + (f" {rest} {its_name}" if rest else "")


def bound_text(seconds: float, last: float) -> str:
    """Return an upper bound of a time, such as ``200 µs``; ``> 50 s`` if it exceeds ``last``, the highest bound."""
    if seconds > last:
        return f"> {span_text(last)}"
    return f"{seconds * 1e6:.0f} \N{MICRO SIGN}s" if seconds < _LEAST_SECONDS else span_text(seconds)


def rate_text(per_second: float | None) -> str:
    """Return a rate per second; a dash if it is not known yet."""
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == int(per_second) else f"{per_second:.1f}"


def share_text(share: float) -> str:
    """Return a share in percent: ``0 %`` only for nothing, ``100 %`` only for the whole."""
    if 0 < share < 0.01:
        return "< 1 %"
    return "> 99 %" if 0.99 < share < 1 else f"{share:.0%}".replace("%", " %")


def many(count: int, what: str, plural: str = "") -> str:
    """Return a count with its noun, in the singular or the plural: ``1 item``, ``2 items``."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def lost_text(first: int, count: int) -> str:
    """Return the line that says which items are lost."""
    return f"lost: {count} items, sequences {first} to {first + count - 1}"


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


def printable(text: str) -> str:
    """Return the text with each unprintable character escaped, so that a terminal obeys none of them."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def item_text(data: bytes, width: int) -> str:
    """Return the beginning of an item in at most ``width`` characters, for a table."""
    text = printable(data[: 4 * width].decode(errors="backslashreplace"))
    return text if len(text) <= width and len(data) <= 4 * width else text[: width - 1] + "…"

"""How the command line writes sizes, spans of time and items, for people and as JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_SPANS = ((86400, "d"), (3600, "h"), (60, "min"))
_LEAST_SECONDS = 1e-3


def size_text(size_bytes: int) -> str:
    """A number of bytes, such as ``3.2 MiB``."""
    amount, unit = float(size_bytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:,.0f} {_UNITS[unit]}" if not unit or amount >= 100 else f"{amount:.1f} {_UNITS[unit]}"


def span_text(seconds: float | None) -> str:
    """A span of time, such as ``3 h 20 min``; a dash for none."""
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
    """What a time does not exceed, such as ``200 µs``; or that it exceeds the ``last`` bound that there is."""
    if seconds > last:
        return f"> {span_text(last)}"
    return f"{seconds * 1e6:.0f} \N{MICRO SIGN}s" if seconds < _LEAST_SECONDS else span_text(seconds)


def rate_text(per_second: float | None) -> str:
    """So many a second; a dash where nobody knows yet."""
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == int(per_second) else f"{per_second:.1f}"


def share_text(share: float) -> str:
    """A share in percent; never 0 % of something, nor 100 % of a part."""
    if 0 < share < 0.01:
        return "< 1 %"
    return "> 99 %" if 0.99 < share < 1 else f"{share:.0%}".replace("%", " %")


def many(count: int, what: str, plural: str = "") -> str:
    """``1 item``, ``2 items``."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def lost_text(first: int, count: int) -> str:
    """Which items are lost."""
    return f"lost: {count} items, sequences {first} to {first + count - 1}"


def time_text(time_ns: int) -> str:
    """ISO 8601, UTC, to the microsecond."""
    return datetime.fromtimestamp(time_ns / 1e9, timezone.utc).isoformat(timespec="microseconds")


def item_json(data: bytes) -> dict[str, str]:
    """An item as JSON has it: as text where it is UTF-8, else in base64."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def item_of(document: Any) -> bytes:
    """The item that a line of a dump stands for. Raises ``ValueError`` for what is none."""
    if not isinstance(document, Mapping) or len({"text", "base64"} & document.keys()) != 1:
        raise ValueError('expected {"text": …} or {"base64": …}')
    kind = "text" if "text" in document else "base64"
    value = document[kind]
    if not isinstance(value, str):
        raise ValueError(  # noqa: TRY004 - like everything that a line can have wrong
            f'expected text as the value of "{kind}", found {type(value).__name__}'
        )
    return value.encode() if kind == "text" else base64.b64decode(value, validate=True)


def printable(text: str) -> str:
    """The text, of which nothing reaches a terminal as a command."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def item_text(data: bytes, width: int) -> str:
    """The beginning of an item in so many characters, for a table."""
    text = printable(data[: 4 * width].decode(errors="backslashreplace"))
    return text if len(text) <= width and len(data) <= 4 * width else text[: width - 1] + "…"

"""Sizes, time spans, rates, shares and counts, as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_SPANS = ((86400, "d"), (3600, "h"), (60, "min"))
_LEAST_SECONDS = 1e-3


def size_text(size_bytes: int) -> str:
    """Return a number of bytes with its unit, such as ``3.2 MiB``."""
    if size_bytes == 1:
        return "1 byte"
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
    return f"{seconds * 1e6:.0f} \xb5s" if seconds < _LEAST_SECONDS else span_text(seconds)


def rate_text(per_second: float | None) -> str:
    """Return a rate per second; a dash if it is not known yet."""
    if per_second is None:
        return "-"
    if 0 < per_second < 0.05:
        return "< 0.1"
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == int(per_second) else f"{per_second:.1f}"


def share_text(share: float) -> str:
    """Return a share in percent: ``0 %`` only for nothing, ``100 %`` only for the whole."""
    if 0 < share < 0.01:
        return "< 1 %"
    return "> 99 %" if 0.99 < share < 1 else f"{share:.0%}".replace("%", " %")


def many(count: int, what: str, plural: str = "") -> str:
    """Return a count with its noun, in the singular or the plural: ``1 item``, ``2 items``."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return names and values as lines of two columns, read from the top to the bottom of each."""
    half = -(-len(rows) // 2)
    cells = [f"  {name:<18} {value:>12}" for name, value in rows]
    return [left + (f"  {right}" if right else "") for left, right in zip_longest(cells[:half], cells[half:])]


def printable(text: str) -> str:
    """Return the text with each character escaped that a terminal obeys or cannot show."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)

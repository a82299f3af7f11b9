"""Filters that Spark pushes down to a batch read: conditions on ``offset`` and ``timestamp`` become ranges.

Spark 4.1 and later push filters if ``spark.sql.python.filterPushdown.enabled`` is true. It is false by default, and a
reader that has ``pushFilters`` is then an error. Spark passes no configuration to the reader, but it pushes filters in
a process with a module of its own: ``is_pushing`` recognizes this process.

A range of offsets leaves out segments and blocks when the read is planned. A range of timestamps leaves out blocks when
a task has read their headers, since the times of blocks need not increase. Both are exact, so that Spark does not check
these conditions again. All others are left to Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"
_LEAST, _MOST = -(2**64), 2**64
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
Range = tuple[int, int]
"""A number, and the number above it that does not belong to the range any more."""
ALL: tuple[Range, ...] = ((_LEAST, _MOST),)


def is_pushing() -> bool:
    """Return whether Spark started this process to push filters down."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(spec, "name", None) == _PUSHING


@dataclass(frozen=True)
class Conditions:
    """The values that the pushed filters let through: ascending ranges that do not overlap."""

    offsets: tuple[Range, ...] = ALL
    times: tuple[Range, ...] = ALL
    """In microseconds since the epoch, as Spark counts them."""

    def lets_through(self, time_ns: int) -> bool:
        """Return whether blocks of this time, in nanoseconds, have wanted rows."""
        return any(first <= time_ns // 1000 < end for first, end in self.times)


def pushed(filters: Iterable[Any]) -> tuple[Conditions, list[Any]]:
    """Return the conditions that these filters make together, and the filters that are left to Spark."""
    offsets, times = ALL, ALL
    left: list[Any] = []
    for each in filters:
        ranges = _ranges(each)
        if ranges is None:
            left.append(each)
        elif each.attribute == ("offset",):
            offsets = _both(offsets, ranges)
        else:
            times = _both(times, ranges)
    return Conditions(offsets, times), left


def _ranges(condition: Any) -> tuple[Range, ...] | None:
    """Return the numbers that a filter of Spark lets through; None if this is no condition on such a column."""
    number = _NUMBERS.get(getattr(condition, "attribute", None))
    kind = type(condition).__name__
    if number is None:
        return None
    if kind == "IsNotNull":  # no column has a null
        return ALL
    if kind == "In":
        found = [number(value) for value in condition.value if value is not None]
        known = sorted({each for each in found if each is not None})
        return tuple((each, each + 1) for each in known) if None not in found else None
    at = number(getattr(condition, "value", None))
    if at is None:
        return None
    return {
        "EqualTo": ((at, at + 1),),
        "EqualNullSafe": ((at, at + 1),),
        "GreaterThan": ((at + 1, _MOST),),
        "GreaterThanOrEqual": ((at, _MOST),),
        "LessThan": ((_LEAST, at),),
        "LessThanOrEqual": ((_LEAST, at + 1),),
    }.get(kind)


def _both(some: Sequence[Range], others: Sequence[Range]) -> tuple[Range, ...]:
    """Return the numbers that lie in both."""
    found = ((max(one[0], other[0]), min(one[1], other[1])) for one in some for other in others)
    return tuple((first, end) for first, end in found if first < end)


def _as_offset(value: object) -> int | None:
    return value if type(value) is int else None


def _as_microseconds(value: object) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(microseconds=1)


_NUMBERS: dict[Any, Callable[[object], int | None]] = {("offset",): _as_offset, ("timestamp",): _as_microseconds}

"""The values of rows as Python objects: each is checked against the type of its column, and converted to JSON and back.

::

    type                          Python                     JSON
    boolean, string               bool, str                  itself
    byte, short, integer, long    int of 8, 16, 32, 64 bits  a number
    float, double                 float, int                 a number, "NaN", "Infinity", "-Infinity"
    decimal(p,s)                  Decimal                    "12.50"; a number is read, too
    binary                        bytes                      Base64
    date                          date                       "2026-01-31"
    timestamp                     datetime with a zone       "2026-01-31T12:00:00.5Z", in UTC
    timestamp_ntz                 datetime without a zone    "2026-01-31T12:00:00.5"
    array, struct                 list, dict                 an array, an object
    map with keys of type string  dict                       an object

A column that is missing, or that is None, is null.
"""

from __future__ import annotations

import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from math import isfinite
from typing import Any

from .schema import INTEGER_BITS, Column, Kind, Schema, decimal_of, kind_text, parts_of

Convert = Callable[[Any], Any]
Leaf = Callable[[Any, str], Any]
"""Callable that checks and converts a value of a type without types in it. It raises ``ValueError`` and others."""
_PAIR = 2
_FRACTION = re.compile(r"\.(\d+)")
"""Digits behind the second."""
_EXACT = Context(prec=38, traps=[Inexact, InvalidOperation])
"""Rounds no decimal: a number that would need it raises an error."""
_UNUSUAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_PLAIN_TYPES: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "string": (str,),
    "binary": (bytes, bytearray, memoryview),
    "float": (float, int),
    "double": (float, int),
}


def rows_of(schema: Schema, leaf: Leaf) -> Callable[[Any], dict[str, Any]]:
    """Return a function that checks and converts a row.

    It raises ``ValueError`` or ``TypeError``, which names the column.

    A value that may be null becomes None if the row does not have it. Columns that the schema does not have are an
    error.
    """
    return _struct(schema.columns, leaf, "", True)


def known_rows_of(schema: Schema, leaf: Leaf) -> Callable[[Any], dict[str, Any]]:
    """Return a function like that of ``rows_of`` that leaves out columns, also fields of a struct, that the schema does
    not have."""
    return _struct(schema.columns, leaf, "", False)


def check_value(value: Any, kind: str) -> Any:
    """Return a value that Python has, if it is of this type."""
    if kind in INTEGER_BITS:
        half = 1 << (INTEGER_BITS[kind] - 1)
        if type(value) is int and -half <= value < half:
            return value
    elif decimal_of(kind) is not None:
        return _decimal(value, kind)
    elif kind == "date":
        if isinstance(value, date) and not isinstance(value, datetime):
            return value
    elif kind in {"timestamp", "timestamp_ntz"}:
        if isinstance(value, datetime):
            if (value.utcoffset() is not None) == (kind == "timestamp"):
                return value
            zone = "with a time zone" if kind == "timestamp" else "without a time zone"
            raise ValueError(f"expected {kind} {zone}, found {value!r}")
    elif type(value) in _PLAIN_TYPES[kind]:
        check = _CHECKS.get(kind)
        return value if check is None else check(value)
    raise _unfit(value, kind)


def check_value_in_utc(value: Any, kind: str) -> Any:
    """Return a value like ``check_value``; a timestamp in UTC, in which Python must have it, too."""
    value = check_value(value, kind)
    return _in_utc(value) if kind == "timestamp" else value


def to_json(value: Any, kind: str) -> Any:
    """Return the value of JSON for a value that Python has."""
    value = check_value(value, kind)
    if isinstance(value, Decimal):
        return str(value)
    write = _TO_TEXT.get(kind)
    return value if write is None else write(value)


def from_json(value: Any, kind: str) -> Any:
    """Return the value that Python has for a value of JSON. A number with a fraction may be a ``Decimal``."""
    if type(value) is Decimal:
        return _decimal(_of_number(value, kind), kind) if decimal_of(kind) else check_value(float(value), kind)
    if decimal_of(kind) is not None:
        return _decimal(Decimal(str(value)), kind) if type(value) in {str, int, float} else check_value(value, kind)
    read = _FROM_TEXT.get(kind) if isinstance(value, str) else None
    return check_value(value if read is None else read(value), kind)


def _of_number(number: Decimal, kind: str) -> Decimal:
    """Return a number of JSON without zeros beyond the scale of its column; unchanged if other digits are there."""
    _, scale = decimal_of(kind) or (0, 0)
    try:
        return number.quantize(Decimal((0, (1,), -scale)), context=_EXACT)
    except ArithmeticError:
        return number


def _text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"expected string, found {value!r}: UTF-8 has no half of a surrogate pair") from error
    return value


def _float(value: float) -> float:
    try:
        struct.pack("<f", float(value))
    except OverflowError as error:
        raise ValueError(f"expected float, found {value!r}, which 32 bits cannot hold: use double") from error
    return float(value)


def _in_utc(value: datetime) -> datetime:
    if value.tzinfo is timezone.utc:
        return value
    try:
        return value.astimezone(timezone.utc)
    except OverflowError as error:
        raise ValueError(f"expected a timestamp in the years 1 to 9999 in UTC, found {value!r}") from error


_CHECKS: dict[str, Convert] = {"string": _text, "binary": bytes, "float": _float, "double": float}
"""Checks and conversions of values that have the right type in Python."""


def _number_to_json(value: float) -> float | str:
    return value if isfinite(value) else str(value).replace("nan", "NaN").replace("inf", "Infinity")


def _moment(text: str) -> datetime:
    found = _local(text.replace("Z", "+00:00"))
    return found if found.tzinfo is None else found.astimezone(timezone.utc)


def _local(text: str) -> datetime:
    """Return the moment of a text in ISO 8601. Digits below a microsecond are cut."""
    # Python 3.10 takes three or six digits of a second, and no other number of them.
    return datetime.fromisoformat(_FRACTION.sub(lambda found: f".{found[1]:0<6.6}", text, count=1))


_TO_TEXT: dict[str, Convert] = {
    "binary": lambda value: b64encode(value).decode(),
    "float": _number_to_json,
    "double": _number_to_json,
    "date": date.isoformat,
    "timestamp": lambda value: _in_utc(value).replace(tzinfo=None).isoformat() + "Z",
    "timestamp_ntz": datetime.isoformat,
}
_FROM_TEXT: dict[str, Convert] = {
    "binary": partial(b64decode, validate=True),
    "float": _UNUSUAL.__getitem__,
    "double": _UNUSUAL.__getitem__,
    "date": date.fromisoformat,
    "timestamp": _moment,
    "timestamp_ntz": _local,
}


def _decimal(value: Any, kind: str) -> Decimal:
    precision, scale = decimal_of(kind) or (0, 0)
    if isinstance(value, Decimal) and value.is_finite():
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        if not value and exponent > 0:
            return Decimal(0)  # Arrow counts the zeros of 0E+5 as digits
        if exponent >= -scale and (not value or len(digits) + exponent <= precision - scale):
            return value
    raise _unfit(value, kind)


def _unfit(value: Any, kind: Kind) -> ValueError:
    return ValueError(f"expected {kind_text(kind)}, found {value!r}")


def _convert(kind: Kind, leaf: Leaf, where: str, is_strict: bool) -> Convert:
    if isinstance(kind, str):
        return partial(_leaf, kind, leaf, where)
    parts = parts_of(kind)
    if kind["type"] == "array":
        return partial(_array, _nullable(parts[0], leaf, f"{where}.", is_strict), kind, where)
    if kind["type"] == "map":
        key = _convert(parts[0].kind, leaf, f"{where}.key", is_strict)
        return partial(_map, key, _nullable(parts[1], leaf, f"{where}.", is_strict), kind, where)
    return _struct(parts, leaf, f"{where}.", is_strict)


def _nullable(column: Column, leaf: Leaf, above: str, is_strict: bool) -> Convert:
    where = above + column.name
    convert = _convert(column.kind, leaf, where, is_strict)

    def checked(value: Any) -> Any:
        """Return the value, converted; None only where the column is nullable."""
        if value is not None:
            return convert(value)
        if not column.nullable:
            raise ValueError(f"the column {where!r} is null or missing: expected {column.text()}")
        return None

    return checked


def _leaf(kind: str, leaf: Leaf, where: str, value: Any) -> Any:
    try:
        return leaf(value, kind)
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise ValueError(f"the column {where!r}: {error}") from error


def _array(element: Convert, kind: Kind, where: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"the column {where!r}: {_unfit(value, kind)}")
    return list(map(element, value))


def _map(key: Convert, value_of: Convert, kind: Kind, where: str, value: Any) -> dict[Any, Any]:
    if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == _PAIR for pair in value):
        value = dict(value)  # Arrow makes pairs of a map
    if not isinstance(value, Mapping):
        raise TypeError(f"the column {where!r}: {_unfit(value, kind)}")
    return {key(name): value_of(each) for name, each in value.items()}


def _struct(columns: Sequence[Column], leaf: Leaf, above: str, is_strict: bool) -> Convert:
    parts = [(each.name, _nullable(each, leaf, above, is_strict)) for each in columns]
    names = frozenset(name for name, _ in parts)

    def convert(row: Any) -> dict[str, Any]:
        """Return the row with each value converted, in the order of the columns."""
        if not isinstance(row, Mapping):
            raise TypeError(f"{above[:-1] or 'a row'}: expected an object with the columns {sorted(names)}")
        if is_strict and not names.issuperset(row):
            unknown = sorted(map(str, set(row) - names))
            raise ValueError(f"the schema has no column {above + unknown[0]!r}: register a schema that has it")
        return {name: part(row.get(name)) for name, part in parts}

    return convert

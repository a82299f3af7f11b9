"""The fields of what a log says, taken from its bytes: never beyond the end of what they stand in."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

_Made = TypeVar("_Made")


class FieldError(Exception):
    """Internal: what is wrong with the bytes of a frame. Arguments: expected, found."""


def fixed(make: Callable[..., _Made], fields: struct.Struct) -> Callable[[bytes, int, int], tuple[_Made, int]]:
    """What decodes an operation that is just these fields, behind its kind."""
    return lambda data, at, end: (make(*unpack(fields, data, at, end)[1:]), at + fields.size)


def unpack(fields: struct.Struct, data: bytes, at: int, end: int) -> tuple[Any, ...]:
    """The fields that stand there. Raises ``FieldError``."""
    if at + fields.size > end:
        raise FieldError(f"{fields.size} bytes of an operation", f"{end - at} bytes")
    return fields.unpack_from(data, at)


def take(data: bytes, at: int, length_bytes: int, end: int) -> tuple[bytes, int]:
    """So many bytes, and where the next ones are. Raises ``FieldError``."""
    if at + length_bytes > end:
        raise FieldError(f"{length_bytes} bytes of an operation", f"{end - at} bytes")
    return data[at : at + length_bytes], at + length_bytes

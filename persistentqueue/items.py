"""What users hand over: items and markers, checked before anything is buffered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from .block import ITEM_BYTES_MAX
from .errors import ItemTooLargeError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    Buffer: TypeAlias = ReadableBuffer
else:
    Buffer = object

_CHUNK_ITEMS = 8192
_VERSION_MAX = 2**64 - 1
_NAME_BYTES_MAX = 2**16 - 1


def chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    """A list or a tuple as a whole, anything else in parts."""
    if isinstance(items, list | tuple):
        yield list(items)
        return
    iterator = iter(items)
    while chunk := list(islice(iterator, _CHUNK_ITEMS)):
        yield chunk


def as_bytes(item: Buffer) -> bytes:
    """The item as it is now. Raises ``TypeError``, ``ItemTooLargeError``."""
    try:
        view = memoryview(item)
    except TypeError:
        raise TypeError(f"an item must be a bytes-like object, not {type(item).__name__}") from None
    if view.nbytes > ITEM_BYTES_MAX:
        raise too_large(view.nbytes)
    return view.tobytes()


def too_large(size_bytes: int) -> ItemTooLargeError:
    """What to raise for an item of so many bytes."""
    return ItemTooLargeError(f"an item of {size_bytes} bytes exceeds the {ITEM_BYTES_MAX} that an item may have")


def checked_marker(marker: tuple[str, int]) -> tuple[str, int]:
    """The marker, if it can be recorded. Raises ``TypeError``, ``ValueError``."""
    name, version = marker
    if not isinstance(name, str) or not isinstance(version, int):  # type: ignore[redundant-expr]
        raise TypeError(f"a marker is a name and a version, (str, int), not {marker!r}")
    if not 0 <= version <= _VERSION_MAX or not 0 < len(name.encode()) <= _NAME_BYTES_MAX:
        raise ValueError(f"a marker has a name of 1 to 65,535 bytes and a version from 0 to 2**64 - 1, not {marker!r}")
    return name, version

"""Checks of what callers pass in: items, markers, names, counts and timeouts; and the batches of producers and workers.

Every value is checked before anything is buffered.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, islice
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from ..errors import ItemTooLargeError
from .block import ITEM_BYTES_MAX, LENGTH_BYTES, MIXED, Columns, Stored, uniform_bytes
from .page_cache import ITEM_OVERHEAD_BYTES

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    Buffer: TypeAlias = ReadableBuffer
else:
    Buffer = object

_CHUNK_ITEMS = 8192
_VERSION_MAX = 2**64 - 1
_MARKER_FIELDS = 2
_NAME_BYTES_MAX = 2**16 - 1
_SHOWN_CHARACTERS_MAX = 200
"""Characters of a marker in an error."""
_OBJECTS = ("O", "<O", ">O")
"""Formats of buffers that have references to objects."""
_LONGEST_SECONDS = 1e9
"""Longest wait, in seconds: 31 years."""


def chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield a list or a tuple as a whole, and any other iterable in parts. Raises the ``TypeError`` of
    ``need_several``."""
    if isinstance(items, list | tuple):
        yield list(items)
        return
    need_several(items)
    iterator = iter(items)
    while chunk := list(islice(iterator, _CHUNK_ITEMS)):
        yield chunk


def need_several(items: Iterable[Any], call: str = "enqueue_many", call_for_one: str = "enqueue") -> None:
    """Raise ``TypeError`` for what is no series of items, though it can be iterated: the characters or bytes of one
    item would become items, and the values of a mapping would be lost."""
    if isinstance(items, bytes | bytearray | memoryview | str):
        raise TypeError(f"{call} takes several items, not {type(items).__name__}: use {call_for_one} for one item")
    if isinstance(items, Mapping):
        raise TypeError(
            f"{call} takes several items, not the mapping {type(items).__name__}: pass its values(), or list() of it "
            f"for its keys, or use {call_for_one} for one item"
        )


def are_bytes(chunk: list[Any]) -> TypeGuard[list[bytes]]:
    """Return whether all items are ``bytes`` and of no other type, so that none of them needs a copy."""
    return list(map(type, chunk)).count(bytes) == len(chunk)


def checked_count(name: str, count: object, least: int = 0) -> int:
    """Return the number of items that a caller asks for, cut to what a list can have. Raises ``TypeError`` and
    ``ValueError`` with the name of the argument; ``least`` is the lowest number."""
    try:
        number = None if isinstance(count, bool) else index(count)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be a whole number, not {count!r}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return min(number, sys.maxsize)


def checked_held(count: int, held: int) -> int:
    """Return the number of items to release, of those that are held. Raises ``TypeError`` and ``ValueError``."""
    number = checked_count("count", count)
    if number > held:
        raise ValueError(f"count must be at most the number of held items, {held}, got {number}")
    return number


def checked_timeout(timeout: float | None) -> float | None:
    """Return the timeout, cut to the longest that can be added to a time. Raises ``ValueError`` if it is negative or
    NaN, and ``TypeError`` if it is no number."""
    if timeout is None:
        return None
    try:
        is_possible = timeout >= 0
    except TypeError:
        is_possible = None
    except ArithmeticError:  # of a Decimal that is not a number
        is_possible = False
    if is_possible is None or isinstance(timeout, bool):  # get(True) of queue.Queue waits, and not for a second
        raise TypeError(f"timeout must be None or a number of seconds, not {timeout!r}")
    if not is_possible:
        raise ValueError(f"timeout must be None or at least 0 seconds, got {timeout}")
    return float(min(timeout, _LONGEST_SECONDS))  # a Decimal cannot be added to a time


def checked_stop(stop: Callable[[], bool]) -> Callable[[], bool]:
    """Return the function that ends a wait. Raises ``TypeError`` if it is none, before the wait comes to call it."""
    if not callable(stop):
        raise TypeError(f"stop must be a function, such as event.is_set, not {stop!r}")
    return stop


def checked_lock_timeout(timeout: object) -> float:
    """Return the seconds to wait for a lock, cut to the longest that can be added to a time. Raises ``TypeError`` and
    ``ValueError``, with the words of an opening."""
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise TypeError(f"lock_timeout must be a number, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"lock_timeout must be at least 0, got {timeout}")
    return float(min(timeout, _LONGEST_SECONDS))


def checked_truth(name: str, value: object) -> bool:
    """Return the value of an argument that is True or False. Raises ``TypeError``, with its name, for any other."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def as_bytes(item: Buffer) -> bytes:
    """Return the current bytes of the item. Raises ``TypeError``, ``ItemTooLargeError``."""
    try:
        view = memoryview(item)
    except TypeError:
        advice = "encode it, or open the queue with a codec for such items"
        if isinstance(item, str):
            advice = "encode it, or open the queue with codec=codecs.TEXT"
        elif isinstance(item, dict | int | float | None):
            advice = "open the queue with codec=codecs.JSON"
        elif isinstance(item, list | tuple):
            advice = "use enqueue_many for several items, or open the queue with codec=codecs.JSON"
        raise TypeError(f"an item must be a bytes-like object, not {type(item).__name__}: {advice}") from None
    if not (view.ndim or isinstance(item, bytes)) or view.format in _OBJECTS:
        raise TypeError(_not_bytes(item, view))
    if view.nbytes > ITEM_BYTES_MAX:
        raise too_large(view.nbytes)
    return view.tobytes()


def _not_bytes(item: object, view: memoryview) -> str:
    """Return the message for a buffer that is no sequence of bytes: a single value, such as a ``numpy.int64``, or
    references to objects, which mean nothing in another process."""
    kind = type(item).__name__
    if view.ndim:
        return f"an item must be a bytes-like object, not references to objects in this {kind}: pass their values"
    advice = "encode it, or open the queue with codec=codecs.TEXT"
    if not isinstance(item, str):
        advice = "pass Python's own number with codec=codecs.JSON, or memoryview(item).tobytes() for its memory"
    return f"an item must be a bytes-like object, not the single value of this {kind}: {advice}"


def too_large(size_bytes: int) -> ItemTooLargeError:
    """Return the error for an item of ``size_bytes`` bytes."""
    return ItemTooLargeError(f"an item of {size_bytes} bytes exceeds the maximum of {ITEM_BYTES_MAX} bytes: split it")


class Alike(list[bytes]):
    """Items that were measured, and have the same length each: they need not be measured again. It is not changed."""

    __slots__ = ("each_bytes",)

    def __init__(self, items: Iterable[bytes], each_bytes: int) -> None:
        super().__init__(items)
        self.each_bytes = each_bytes


class Batch:
    """Items in memory that wait to be written or sent: at most ``most_bytes`` by their cost, or a single item.

    ``refuse`` makes the error for an item of more than ``item_bytes_max``, of its length. By default, these are the
    maximum of an item, and its error.
    """

    __slots__ = ("_each_bytes", "_item_bytes_max", "_most_bytes", "_refuse", "items", "payload_bytes")

    def __init__(
        self,
        most_bytes: int,
        item_bytes_max: int | None = None,
        refuse: Callable[[int], ItemTooLargeError] = too_large,
    ) -> None:
        self._most_bytes, self._refuse = most_bytes, refuse
        self._item_bytes_max = ITEM_BYTES_MAX if item_bytes_max is None else item_bytes_max
        self.items: list[bytes] = []
        self.payload_bytes = 0
        self._each_bytes = MIXED
        """Length of each of ``items``, if there are any; ``MIXED`` if it is not known."""

    @property
    def measured(self) -> list[bytes]:
        """The items, as ``Alike`` if they are known to have one length."""
        return self.items if self._each_bytes == MIXED else Alike(self.items, self._each_bytes)

    def add(self, item: bytes, spill: Callable[[], None]) -> None:
        """Add one item. ``spill`` is called first if the item does not fit, as in ``extend``."""
        size_bytes = len(item)
        if size_bytes > self._item_bytes_max:
            raise self._refuse(size_bytes)
        if self.items and self._cost_bytes(1, size_bytes) > self._most_bytes:
            spill()
        self._each_bytes = MIXED
        self.items.append(item)
        self.payload_bytes += size_bytes

    def extend(self, items: list[bytes], spill: Callable[[], None]) -> None:
        """Add the items, in order. Before the batch exceeds its bound, call ``spill``, which writes the batch and
        clears it.

        Raises ``ItemTooLargeError``; then no item is added. An error of ``spill`` is passed on. Then the items that it
        was to make room for, and those behind them, are not added.
        """
        sizes = list(map(len, items))
        each_bytes = uniform_bytes(sizes)
        size_bytes = sum(sizes) if each_bytes == MIXED else each_bytes * len(sizes)
        if size_bytes > self._item_bytes_max and (longest_bytes := max(sizes)) > self._item_bytes_max:
            raise self._refuse(longest_bytes)
        if self._cost_bytes(len(items), size_bytes) <= self._most_bytes:
            # No call in these steps, so no interruption in between.
            self._each_bytes = each_bytes if not self.items or self._each_bytes == each_bytes else MIXED
            self.items += items
            self.payload_bytes += size_bytes
            return
        ends = list(accumulate(sizes, initial=0))
        self._each_bytes = MIXED
        for start, stop in fitting_parts(ends, self._most_bytes, self._cost_bytes, spill):
            self.items += items[start:stop]
            self.payload_bytes += ends[stop] - ends[start]

    def clear(self) -> None:
        """Remove all items."""
        self.items, self.payload_bytes, self._each_bytes = [], 0, MIXED

    def _cost_bytes(self, count: int = 0, size_bytes: int = 0) -> int:
        """Return the cost of the batch with ``count`` more items of ``size_bytes`` bytes in all."""
        return self.payload_bytes + size_bytes + ITEM_OVERHEAD_BYTES * (len(self.items) + count)


class ColumnBatch:
    """Columns of items in memory that wait to be written to a file, bounded like the same items in a ``Batch``."""

    __slots__ = ("_lengths", "_most_bytes", "_payloads", "count", "payload_bytes")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.clear()

    def extend(self, columns: Columns, spill: Callable[[], None]) -> None:
        """Add the items, in order, and call ``spill`` exactly where ``Batch.extend`` calls it.

        Raises ``ValueError`` if the lengths are not those of the payload; then no item is added.
        """
        size_bytes = len(columns.payload)
        if len(columns.lengths) % LENGTH_BYTES or columns.payload_bytes() != size_bytes:
            raise ValueError(f"a payload of {size_bytes} bytes needs lengths, as u32, that add up to it")
        if self._cost_bytes(len(columns), size_bytes) <= self._most_bytes:
            self._add(columns.lengths, columns.payload)
            return
        lengths, payload = memoryview(columns.lengths), memoryview(columns.payload)
        ends = list(accumulate(columns.sizes(), initial=0))
        for start, stop in fitting_parts(ends, self._most_bytes, self._cost_bytes, spill):
            self._add(lengths[LENGTH_BYTES * start : LENGTH_BYTES * stop], payload[ends[start] : ends[stop]])

    def joined(self) -> Columns:
        """Return all items."""
        return Columns(b"".join(self._lengths), b"".join(self._payloads))

    def clear(self) -> None:
        """Remove all items."""
        self._lengths: list[Stored] = []
        self._payloads: list[Stored] = []
        self.count = self.payload_bytes = 0

    def _add(self, lengths: Stored, payload: Stored) -> None:
        self._lengths.append(lengths)
        self._payloads.append(payload)
        self.count += len(lengths) // LENGTH_BYTES
        self.payload_bytes += len(payload)

    def _cost_bytes(self, count: int = 0, size_bytes: int = 0) -> int:
        """Return the cost of the batch with ``count`` more items of ``size_bytes`` bytes in all."""
        return self.payload_bytes + size_bytes + ITEM_OVERHEAD_BYTES * (self.count + count)


def fitting_parts(
    ends: list[int], most_bytes: int, cost_bytes: Callable[[], int], spill: Callable[[], None]
) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each part of items to add to memory that may cost at most ``most_bytes``.

    ``ends`` are the cumulated lengths of the items, from 0 on. ``cost_bytes`` returns what the memory costs now. If
    not even the next item fits, ``spill`` is called, which empties the memory. A single item fits in any case.
    """
    start = 0
    while start < len(ends) - 1:
        now_bytes = cost_bytes()
        most = most_bytes - now_bytes + ends[start] + ITEM_OVERHEAD_BYTES * start
        places = range(start + 1, len(ends))
        stop = start + bisect_right(places, most, key=lambda at: ends[at] + ITEM_OVERHEAD_BYTES * at)
        if stop == start and now_bytes:
            spill()
            continue
        stop = max(stop, start + 1)
        yield start, stop
        start = stop


def checked_marker(marker: object, what: str = "a marker") -> tuple[str, int]:
    """Return the marker if it can be recorded. Raises ``TypeError`` and ``ValueError``, which begin with ``what``."""
    name, version = marker if isinstance(marker, tuple) and len(marker) == _MARKER_FIELDS else (None, None)
    if not isinstance(name, str) or not isinstance(version, int) or isinstance(version, bool):
        raise TypeError(f"{what} must be a name and a version, (str, int), not {_shown(marker)}")
    if not 0 <= version <= _VERSION_MAX or not 0 < _length_bytes(name) <= _NAME_BYTES_MAX:
        possible = "a name of 1 to 65,535 bytes in UTF-8 and a version from 0 to 2**64 - 1"
        raise ValueError(f"{what} must be {possible}, not {_shown(marker)}")
    return name, version


def checked_text(what: str, value: str, kind: str = "text") -> str:
    """Return an argument that is text. Raises ``TypeError``, which says what it is, for any other."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be {kind}, not {value!r}")
    return value


def checked_session_name(name: str) -> str:
    """Return the name that a caller gives to a session. Raises ``TypeError``."""
    return checked_text("a session's name", name, "text or None")


def checked_name(name: str) -> str:
    """Return the name if a subscription can have it. Raises ``TypeError``, ``ValueError``."""
    checked_text("a subscription's name", name)
    if not 0 < _length_bytes(name) <= _NAME_BYTES_MAX:
        raise ValueError(f"a subscription has a name of 1 to 65,535 bytes in UTF-8, not {name!r}")
    return name


def _shown(marker: object) -> str:
    try:
        shown = repr(marker)
    except ValueError:  # Python refuses to print a number of very many digits
        return f"this {type(marker).__name__}, with a number too long to be shown"
    return shown if len(shown) <= _SHOWN_CHARACTERS_MAX else f"{shown[:_SHOWN_CHARACTERS_MAX]} ..."


def _length_bytes(name: str) -> int:
    """Return the length of the name in UTF-8; 0 for a name with lone surrogates, which UTF-8 cannot encode."""
    try:
        return len(name.encode())
    except UnicodeEncodeError:
        return 0

"""``LifoDiskQueue`` of queuelib: one file with a count, then the items, each of them before its length."""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .errors import SourceDamagedError
from .source import Damaged, Source

_FIELD_BYTES = 4
"""Length of the count and of each length, in bytes."""
_STEP_BYTES = 1024 * 1024
"""Bytes that are read at once."""


class Stack(Source):
    """The items of a ``LifoDiskQueue``: from the newest one, as its owner would pop them, or from the oldest one."""

    kind = "queuelib LifoDiskQueue"

    def __init__(self, path: Path, newest_first: bool) -> None:
        self.path = str(path)
        self._file, self._newest_first = path, newest_first

    def files(self) -> list[Path]:
        """Return the one file of the stack."""
        return [self._file]

    def items(self, damaged: Damaged) -> Iterator[bytes]:
        """Yield the items from the newest one, or from the oldest one, as the caller chose."""
        with self._file.open("rb") as file:
            head, found = file.read(_FIELD_BYTES), 0
            if len(head) < _FIELD_BYTES:
                damaged(SourceDamagedError(self.path, 0, f"a count of {_FIELD_BYTES} bytes", f"{len(head)} bytes"))
                return
            if self._newest_first:
                for item in self._backwards(file, damaged):
                    found += 1
                    yield item
            else:
                lengths = array("Q", map(len, self._backwards(file, damaged)))
                found = len(lengths)
                # Behind damage, the oldest items have no known place: then the lengths do not reach the first item.
                file.seek(-sum(lengths) - _FIELD_BYTES * found, io.SEEK_END)
                for length_bytes in reversed(lengths):
                    yield file.read(length_bytes)
                    file.seek(_FIELD_BYTES, io.SEEK_CUR)
            count = int.from_bytes(head, "big")
            if count != found:
                damaged(SourceDamagedError(self.path, 0, f"a count of {found}, as there are items", f"{count}"))

    def _backwards(self, file: BinaryIO, damaged: Damaged) -> Iterator[bytes]:
        """Yield the items from the last one in the file to the first one."""
        end = file.seek(0, io.SEEK_END)
        data, start = b"", end  # the bytes from ``start`` to ``end`` are in memory
        while end > _FIELD_BYTES:
            if end - start < _FIELD_BYTES:
                data, start = _before(file, end, _STEP_BYTES)
            length_bytes = int.from_bytes(data[max(end - start - _FIELD_BYTES, 0) : end - start], "big")
            size_bytes, room_bytes = length_bytes + _FIELD_BYTES, end - _FIELD_BYTES
            if room_bytes < _FIELD_BYTES or size_bytes > room_bytes:
                found = f"a length of {length_bytes} and {room_bytes} bytes of items"
                damaged(SourceDamagedError(self.path, end, "the end of an item and its length", found))
                return
            if end - start < size_bytes:
                data, start = _before(file, end, max(_STEP_BYTES, size_bytes))
            end -= size_bytes
            yield data[end - start : end - start + length_bytes]


def _before(file: BinaryIO, end: int, size_bytes: int) -> tuple[bytes, int]:
    """Return up to ``size_bytes`` bytes before ``end``, without the count, and where they start."""
    start = max(end - size_bytes, _FIELD_BYTES)
    file.seek(start)
    return file.read(end - start), start

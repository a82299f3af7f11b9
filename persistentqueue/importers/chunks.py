"""FIFO queues in chunk files: ``Queue`` of persist-queue, and ``FifoDiskQueue`` of queuelib.

::

    info, info.json   the positions of both ends: number of a chunk, items before, and (tail, persist-queue) offset
    q00000            the first chunk: up to ``chunksize`` items, one after the other
    q00001            the next one

queuelib and the serializers for MessagePack and CBOR put the length before each item, in 4 bytes. JSON ends each item
with a line feed. A pickle ends itself: see ``_pickle``.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from persistentqueue import MissingExtraError
from persistentqueue.codecs import MessagePack
from persistentqueue.drawing.text import many

from .errors import SourceDamagedError, SourceError
from .source import Damaged, Source

_INFO_BYTES_MAX = 64 * 1024
_BUFFER_BYTES = 256 * 1024
_LENGTH_BYTES = 4
_PROTO, _FRAME, _STOP = 0x80, 0x95, 0x2E
"""Opcodes of a pickle."""
_STOP_PROTO = bytes([_STOP, _PROTO])
_FRAME_FIELD_BYTES = 9
"""Length of the opcode ``FRAME`` with the length of the frame."""
_FRAMED_BYTES = 11
"""Length of the beginning of a pickle with a frame: ``PROTO``, its number, ``FRAME``, and the length of the frame."""
_CHUNK = re.compile(r"q([0-9]{5}|[1-9][0-9]{5,})")
"""Name of the file of a chunk."""


class CutError(Exception):
    """An item does not end where it should; the text says what was found."""


class Framing(NamedTuple):
    """The way in which a chunk delimits its items."""

    read: Callable[[BinaryIO, int], bytes]
    """``read(file, left_bytes)``: return the next item. Raises ``CutError``."""
    around_bytes: int
    """Bytes that an item takes beside its own."""


def _prefixed(order: Any, file: BinaryIO, left_bytes: int) -> bytes:
    """Return an item behind its length."""
    length_bytes = int.from_bytes(file.read(_LENGTH_BYTES), order)
    if length_bytes > left_bytes - _LENGTH_BYTES:
        raise CutError(f"a length of {length_bytes} with {many(max(left_bytes - _LENGTH_BYTES, 0), 'byte')} left")
    return file.read(length_bytes)


def _line(file: BinaryIO, left_bytes: int) -> bytes:
    """Return an item before its line feed."""
    line = file.readline(left_bytes)
    if not line.endswith(b"\n"):
        raise CutError(many(len(line), "byte") + " without a line feed")
    return line[:-1]


def _pickle(file: BinaryIO, left_bytes: int) -> bytes:
    """Return one pickle.

    Most pickles have one frame. A frame that ends with ``STOP`` is the last one if ``PROTO`` or the end of the file
    follows: between two frames of one pickle there is never a ``PROTO``. All other pickles are read by their opcodes.
    Nothing is unpickled.
    """
    data = head = file.read(min(_FRAMED_BYTES, left_bytes))
    if len(head) == _FRAMED_BYTES and (head[0], head[2]) == (_PROTO, _FRAME):
        length_bytes = int.from_bytes(head[3:], "little")
        if length_bytes <= left_bytes - _FRAMED_BYTES:
            is_last = length_bytes == left_bytes - _FRAMED_BYTES
            data = head + file.read(length_bytes if is_last else length_bytes + 1)
            if is_last and data[-1] == _STOP:
                return data
            if data[-2:] == _STOP_PROTO:
                file.seek(-1, io.SEEK_CUR)
                return data[:-1]
    start = file.seek(-len(data), io.SEEK_CUR)
    try:
        length_bytes = _end_by_opcodes(file) - start
    except (ValueError, OverflowError, MemoryError, EOFError, LookupError) as error:
        raise CutError(f"no pickle: {error}") from None
    if length_bytes > left_bytes:
        raise CutError(f"a pickle of {length_bytes} bytes with {many(left_bytes, 'byte')} left")
    file.seek(start)
    return file.read(length_bytes)


def _end_by_opcodes(file: BinaryIO) -> int:
    """Return the offset behind the pickle that begins here. Raises ``ValueError`` if its frames have other ends."""
    frame_end: int | None = None
    for opcode, argument, at in pickletools.genops(file):
        if frame_end is not None and at is not None and at >= frame_end:
            if at > frame_end:
                break
            frame_end = None
        if opcode.name == "FRAME" and at is not None:
            frame_end = at + _FRAME_FIELD_BYTES + int(argument or 0)
    end = file.tell()
    if frame_end not in {None, end}:
        raise ValueError(f"its frame ends at offset {frame_end}, and its opcodes at {end}")
    return end


_FRAMINGS = {
    "": Framing(partial(_prefixed, "big"), _LENGTH_BYTES),
    "pickle": Framing(_pickle, 0),
    "json": Framing(_line, 1),
    "msgpack": Framing(partial(_prefixed, "little"), _LENGTH_BYTES),
    "cbor2": Framing(partial(_prefixed, "little"), _LENGTH_BYTES),
}
"""Framing of each serializer of persist-queue, and of queuelib, which has none."""


class Chunks(Source):
    """The items between the two ends of a queue in chunk files."""

    def __init__(self, directory: Path, kind: str, info_path: Path, info: Any, serializer: str = "") -> None:
        self.path, self.kind, self.serializer = str(directory), kind, serializer or None
        self._directory, self._info = directory, info_path
        self._framing = _FRAMINGS[serializer]
        try:
            self._chunk_items, self._count = int(info["chunksize"]), int(info["size"])
            tail, head = list(map(int, info["tail"])), list(map(int, info["head"]))
            self._first, self._taken, self._offset = tail
            self._last, self._last_items = head[:2]
            self._end = head[2] if serializer else None
        except (TypeError, ValueError, LookupError, OverflowError) as error:
            raise _bad_info(self._info, f"{type(error).__name__}: {error}") from None
        if self._chunk_items < 1 or min(*tail, *head) < 0 or max(self._taken, self._last_items) >= self._chunk_items:
            raise _bad_info(self._info, f"impossible positions, {info}")

    def files(self) -> list[Path]:
        """Return the file with the positions, and the chunks between the two ends that exist."""
        return [self._info, *map(self._chunk, self._numbers())]

    def items(self, damaged: Damaged) -> Iterator[bytes]:
        """Yield the items between the two ends, oldest first."""
        between = self._items_in(self._first, self._last + 1)
        if between != self._count:
            damaged(SourceDamagedError(str(self._info), 0, f"a size of {between}", f"{self._count}"))
        due = self._first
        for number in self._numbers():
            yield from self._items_from(due, number, damaged)
            yield from self._items_from(number, number + 1, damaged)
            due = number + 1
        yield from self._items_from(due, self._last + 1, damaged)

    def _numbers(self) -> list[int]:
        """Return the numbers of the chunks between the two ends that exist, in order.

        The positions may be damaged, and name more chunks than can be tried.
        """
        found = (match for path in self._directory.iterdir() if (match := _CHUNK.fullmatch(path.name)) is not None)
        return sorted(number for match in found if self._first <= (number := int(match[1])) <= self._last)

    def _items_in(self, first: int, end: int) -> int:
        """Return how many items the chunks from ``first`` up to ``end`` have between the two ends of the queue."""
        begin = max(first * self._chunk_items, self._first * self._chunk_items + self._taken)
        return min(end * self._chunk_items, self._last * self._chunk_items + self._last_items) - begin

    def _items_from(self, first: int, end: int, damaged: Damaged) -> Iterator[bytes]:
        """Yield the items of a chunk, or report the chunks from ``first`` up to ``end`` as missing."""
        if first >= end:
            return
        start = self._offset if first == self._first else 0
        stop = self._end if first == self._last else None
        yield from self._items_of(self._chunk(first), start, stop, self._items_in(first, end), damaged)

    def _chunk(self, number: int) -> Path:
        return self._directory / f"q{number:05d}"

    def _items_of(self, path: Path, at: int, end: int | None, count: int, damaged: Damaged) -> Iterator[bytes]:
        """Yield the items of one chunk. ``end`` is the offset of its end; None means that of the file."""
        read, around_bytes = self._framing
        try:
            file = path.open("rb", buffering=_BUFFER_BYTES)
        except FileNotFoundError:
            if count:
                damaged(SourceDamagedError(str(path), 0, many(count, "item") + " from this chunk on", "no file"))
            return
        with file:
            size_bytes = file.seek(0, io.SEEK_END)
            end = size_bytes if end is None else min(end, size_bytes)
            file.seek(at)
            for left in range(count, 0, -1):
                try:
                    item = read(file, max(end - at, 0))
                except CutError as cut:
                    damaged(SourceDamagedError(str(path), at, many(left, "more item"), str(cut)))
                    return
                at += len(item) + around_bytes
                yield item
            if at != end:
                damaged(SourceDamagedError(str(path), at, "the end of the chunk", many(end - at, "more byte")))


def persist_queue_chunks(directory: Path) -> Chunks:
    """Return the source of a ``Queue`` or an ``AsyncQueue`` of persist-queue. Raises ``SourceError``."""
    path = directory / "info"
    data = _read_info(path)
    serializer, info = _decoded(path, data)
    return Chunks(directory, "persist-queue Queue", path, info, serializer)


def queuelib_chunks(directory: Path) -> Chunks:
    """Return the source of a ``FifoDiskQueue`` of queuelib. Raises ``SourceError``."""
    path = directory / "info.json"
    try:
        info = json.loads(_read_info(path))
    except (ValueError, RecursionError) as error:
        raise _bad_info(path, str(error)) from None
    return Chunks(directory, "queuelib FifoDiskQueue", path, info)


def _read_info(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_INFO_BYTES_MAX + 1)
    if len(data) > _INFO_BYTES_MAX:
        raise _bad_info(path, f"more than {_INFO_BYTES_MAX} bytes")
    return data


def _bad_info(path: Path, found: str) -> SourceError:
    return SourceError(str(path), "the positions of a queue", found, "mend the file, or name another source")


class _PlainUnpickler(pickle._Unpickler):
    """An unpickler of numbers, text, lists and dictionaries: it finds no classes, and so runs no code.

    It is the one in Python: nine bytes can make the one in C allocate gigabytes, for the memo of a pickle.
    """

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a pickle of {module}.{name}")


def _decoded(path: Path, data: bytes) -> tuple[str, Any]:
    """Return the serializer of persist-queue that has written these bytes, and what they say."""
    try:
        if int.from_bytes(data[:_LENGTH_BYTES], "little") == len(data) - _LENGTH_BYTES:
            return _decoded_map(path, data[_LENGTH_BYTES:])
        if data[:1] == b"{":
            return "json", json.loads(data)
        return "pickle", _PlainUnpickler(io.BytesIO(data)).load()
    except (MissingExtraError, SourceError):
        raise
    except Exception as error:  # of a serializer, over bytes of any kind
        raise _bad_info(path, f"{len(data)} bytes of an unknown serializer: {error}") from None


def _decoded_map(path: Path, data: bytes) -> tuple[str, Any]:
    """Return what a map of four entries says, in MessagePack or CBOR."""
    if data[:1] == b"\x84":
        return "msgpack", MessagePack().decode(data)
    try:
        import cbor2  # noqa: PLC0415 - an optional package
    except ImportError:
        needs = "pip install cbor2, which also decodes the items"
        raise SourceError(str(path), "the package cbor2", "that it is not installed", needs) from None
    return "cbor2", cbor2.loads(data)

"""The handover from an owner that leaves to the next one: the items that sessions of other processes hold.

A session of a worker whose work is nothing but held items can go on at the next owner, in these steps:

1. Each session locks a byte of the file ``.holds`` before it takes its first item (see ``byte_locks``). Its *place* is
   the first 62 bits of the connection's id. The kernel frees the byte when the process ends.
2. The owner that leaves writes the holds of those sessions to the file, when it takes no message any more. *A crash
   before leaves holds that are over. A crash behind it leaves the queue as the file has it.*
3. The next owner that serves reads the file, and empties it before anything else may take an item. It holds the same
   items again, if they are ready and the place of their session is locked.
4. A session that connects again learns how many of its items are held. If it has more, it is lost.
5. An owner looks at the places of sessions that have not come back, every ``LOOK_SECONDS``. When a place is free, the
   items go back.

Nothing is synced. A power cut ends all processes, and so all holds::

    offset  bytes  field
         0      8  magic     ``PQ-HOLDS``
         8      4  length    bytes of the JSON array, 4 MiB at most
        12      4  checksum  CRC-32 of it
        16         sessions  an object for each of them, with the fields of ``KeptHold``; the id in hex digits

All integers are little-endian. A file that is empty, torn or malformed has no holds.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from stat import S_ISREG
from typing import Any, Final, NamedTuple

from ..core.checksum import crc32
from ..core.intervals import Run
from ..errors import PersistentQueueError
from ..storage.layout import HOLDS_NAME
from ..system.byte_locks import is_locked
from ..system.disk import WRITE, Disk, join
from ..system.event_log import LOGGER
from ..system.files import read_all, write_all
from ..system.path_errors import faults
from .protocol import CONNECTION_BYTES, JSON_BYTES_MAX

LOOK_SECONDS: Final = 0.05
"""Time between two looks at the places of sessions that have not come back, in seconds."""
_MAGIC = b"PQ-HOLDS"
_HEADER = struct.Struct("<8sII")
_PLACE_BYTES, _PLACE_SHIFT = 8, 2
_SEQUENCE_MAX = 2**63


class KeptHold(NamedTuple):
    """The items that a session of a worker holds, and what described its connection."""

    connection: bytes
    process: int
    process_name: str
    thread: str
    name: str
    subscription: str
    hold_seconds: float | None
    runs: Sequence[Run]

    @property
    def held(self) -> int:
        """Number of the items."""
        return sum(count for _, count in self.runs)


class Handover:
    """The way from one owner to the next. For the thread that opens the queue, then for that of its server."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = join(directory, HOLDS_NAME)

    def present(self, connections: Iterable[bytes]) -> set[bytes]:
        """Return those of these connections whose sessions still exist, and can come back: their places are locked.

        If that cannot be seen now, all of them are returned.
        """
        asked = set(connections)
        try:
            with _opened(self._disk, self._path) as fd:
                return {each for each in asked if is_locked(fd, place_of(each))}
        except FileNotFoundError:
            return set()
        except faults(OSError, PersistentQueueError):  # no descriptor is free, for example
            return asked

    def leave(self, holds: Sequence[KeptHold]) -> set[bytes]:
        """Write the holds that the file has room for, not durably; return their connections. All others are over."""
        fitting = fitting_holds(holds)
        if len(fitting) < len(holds):
            lack = "%s: the file has no room for the holds of %d sessions of workers, which have lost them"
            LOGGER.warning(lack, self._path, len(holds) - len(fitting))
        if not fitting:
            return set()
        try:
            data = encode_holds(fitting)
            with _opened(self._disk, self._path) as fd:
                write_all(self._disk, fd, [data], len(data), 0)
        except faults(OSError, ValueError, PersistentQueueError) as error:  # a full disk, for example: then it is torn
            LOGGER.warning("%s: the holds of workers could not be left to the next owner: %s", self._path, error)
            return set()
        return {hold.connection for hold in fitting}

    def take(self) -> list[KeptHold]:
        """Return the holds in the file, and empty it. If that fails, return none: no hold is taken twice."""
        try:
            with _opened(self._disk, self._path) as fd:
                size_bytes = min(self._disk.fstat(fd).st_size, _HEADER.size + JSON_BYTES_MAX)
                data = read_all(self._disk, fd, size_bytes, 0) if size_bytes else b""
                if data:
                    self._disk.ftruncate(fd, 0)
        except FileNotFoundError:
            return []
        except faults(OSError, PersistentQueueError) as error:
            LOGGER.warning("%s: what the last owner has left could not be taken: %s", self._path, error)
            return []
        return decode_holds(data)


@contextmanager
def _opened(disk: Disk, path: str) -> Iterator[int]:
    """Open the file for the length of a block. Raises ``OSError``: ``FileNotFoundError`` if it is no plain file."""
    found = disk.lstat(path)
    if not S_ISREG(found.st_mode) or found.st_nlink != 1:  # to write to it may hurt something else
        raise FileNotFoundError(path)
    with disk.opened(path, WRITE) as fd:
        yield fd


def place_of(connection: bytes) -> int:
    """Return the offset of the byte that the session of this connection locks."""
    return int.from_bytes(connection[:_PLACE_BYTES], "big") >> _PLACE_SHIFT


def fitting_holds(holds: Sequence[KeptHold]) -> list[KeptHold]:
    """Return the holds that the file has room for. Those of the most runs are left out if there are too many."""
    fitting, left_bytes = [], JSON_BYTES_MAX
    for hold in sorted(holds, key=lambda hold: len(hold.runs)):
        left_bytes -= len(_json(hold)) + len("[]")  # or a comma
        if left_bytes < 0:
            break
        fitting.append(hold)
    return fitting


def _json(hold: KeptHold) -> str:
    return json.dumps({**hold._asdict(), "connection": hold.connection.hex()}, separators=(",", ":"))


def encode_holds(holds: Sequence[KeptHold]) -> bytes:
    """Return the bytes of the file with these holds, for which it has room."""
    data = f"[{','.join(map(_json, holds))}]".encode()
    return _HEADER.pack(_MAGIC, len(data), crc32(data)) + data


def decode_holds(data: bytes) -> list[KeptHold]:
    """Return the holds in these bytes of the file. Those of a torn or malformed file are none."""
    if len(data) < _HEADER.size:
        return []
    magic, length_bytes, checksum = _HEADER.unpack_from(data)
    body = data[_HEADER.size : _HEADER.size + length_bytes]
    if magic != _MAGIC or len(body) != length_bytes or crc32(body) != checksum:
        return []
    try:
        return [_hold(**fields) for fields in json.loads(body)]
    except (ValueError, TypeError, RecursionError):
        return []


def _hold(
    *,
    connection: str,
    process: int,
    process_name: str,
    thread: str,
    name: str,
    subscription: str,
    hold_seconds: Any,
    runs: list[list[int]],
    **_further: Any,
) -> KeptHold:
    """Return the hold of these fields. Raises ``ValueError`` and ``TypeError`` if they are not what they must be."""
    found = bytes.fromhex(connection)
    texts, pairs = (process_name, thread, name, subscription), [(first, count) for first, count in runs]
    numbers = [process, *(number for pair in pairs for number in pair)]
    if not all(type(text) is str for text in texts) or not all(type(number) is int for number in numbers):
        raise TypeError("a field of another type")
    if len(found) != CONNECTION_BYTES or not pairs:
        raise ValueError("no connection, or no items")
    if not all(0 <= first < first + count < _SEQUENCE_MAX for first, count in pairs):
        raise ValueError("sequences that no queue has")
    if hold_seconds is not None and not (isinstance(hold_seconds, int | float) and hold_seconds > 0):
        raise ValueError("a time that no hold has")
    return KeptHold(found, process, *texts, hold_seconds, pairs)

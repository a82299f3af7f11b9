"""The limits of a queue, for those who publish while nobody adopts: what waits in the inbox is bounded, too.

The owner records ``max_items``, ``max_bytes`` and ``max_disk_bytes`` at each opening in ``queue.limits``, in the format
of ``place``'s files; without limits there is no such file. A producer that finds it is refused where what waits in the
inbox would exceed ``max_items`` or ``max_bytes``, or the files of the queue with the inbox ``max_disk_bytes``. So the
queue and its inbox hold at most twice the first two, and a producer never exceeds the last one.

A producer looks at the inbox before each flush, unless what it has published since the last look is a small part of
the room that there was. Several producers at once may exceed a limit by what each of them publishes at that moment.
A part counts for ``max_disk_bytes`` while it is written, and for the others when a manifest is to name it; see
``parts``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from ..core.block import BLOCK_HEADER_BYTES, LENGTH_BYTES
from ..core.header import HEADER_BYTES
from ..errors import CorruptionError, MemoryShortageError, PersistentQueueError, QueueFullError, UnsupportedFormatError
from ..storage.layout import names_in, sizes_in
from ..storage.locations import LIMITS_NAME, Places, read_fields, remove_file, write_fields
from ..storage.publication import is_published, read_publication
from ..system.disk import Disk, dirname, join
from .transaction import Settings

LIMITS = ("max_items", "max_bytes", "max_disk_bytes")
_PART = 64
"""Without a look a producer publishes one part in so many of the room that there was."""


class Load(NamedTuple):
    """What counts for the limits, in their order."""

    items: int
    length_bytes: int
    size_bytes: int


def load_of(count: int, payload_bytes: int) -> Load:
    """Return what so many items count for, published in a file of their own."""
    length_bytes = BLOCK_HEADER_BYTES + LENGTH_BYTES * count + payload_bytes if count else 0
    return Load(count, length_bytes, HEADER_BYTES + length_bytes)


def record_limits(disk: Disk, directory: str, settings: Settings) -> None:
    """Record the limits of the queue in this directory, if others are recorded. Never raises ``OSError``: they are
    recorded for those who publish, and kept by the owner in any case."""
    limits = {name: value for name in LIMITS if (value := getattr(settings, name)) is not None}
    path = join(directory, LIMITS_NAME)
    with suppress(OSError):
        if limits != read_limits(disk, directory):
            if limits:
                write_fields(disk, path, {"limits": limits}, 0o644)
            else:
                remove_file(disk, path)


def read_limits(disk: Disk, directory: str) -> dict[str, int]:
    """The limits that are recorded; none where that cannot be read."""
    with suppress(PersistentQueueError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        fields = read_fields(disk, join(directory, LIMITS_NAME))
        if fields is not None:
            return {name: value for name, value in fields["limits"].items() if name in LIMITS and type(value) is int}
    return {}


class Bounds:
    """What one producer knows of the room in a queue. For one thread at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._known: dict[str, Load] = {}
        self._room = Load(0, 0, 0)
        """How much may be published before the next look."""

    def check(self, inbox: str, asked: Load) -> None:
        """Count what is about to be published, if there is room. Raises ``QueueFullError``: nothing was published."""
        limits = read_limits(self._disk, self._directory)
        if not limits:
            return
        if any(more > room for more, room in zip(asked, self._room, strict=True)):
            held = self._look(inbox, "max_disk_bytes" in limits)
            room = []
            for name, holds, more in zip(LIMITS, held, asked, strict=True):
                most = limits.get(name)
                if most is None:
                    room.append(2**63)
                    continue
                if holds + more > most:
                    raise QueueFullError(self._directory, name, most, holds, more, more > most)
                room.append((most - holds - more) // _PART)
            self._room = Load(*room)
        else:
            self._room = Load(*(room - more for more, room in zip(asked, self._room, strict=True)))

    def _look(self, inbox: str, counts_files: bool) -> Load:
        """What waits in the inbox, of which each file is read once; and the size of all files of the queue."""
        known, self._known = self._known, {}
        for name in filter(is_published, names_in(self._disk, inbox)):
            self._known[name] = known[name] if name in known else self._measure(join(inbox, name))
        size_bytes = 0
        if counts_files:
            places = Places(self._directory)
            parts = dict.fromkeys(
                [*places.parts(), *(join(dirname(inbox), part) for part in ("data", "inbox", "pool"))]
            )
            size_bytes = sum(sum(sizes_in(self._disk, part).values()) for part in parts)
        return Load(
            sum(load.items for load in self._known.values()),
            sum(load.length_bytes for load in self._known.values()),
            size_bytes,
        )

    def _measure(self, path: str) -> Load:
        unreadable = (CorruptionError, UnsupportedFormatError, MemoryShortageError, FileNotFoundError, PermissionError)
        with suppress(*unreadable):  # the owner sets it aside, or has adopted it
            publication = read_publication(self._disk, path)
            return Load(publication.items, sum(file.length_bytes for file in publication.files), 0)
        return Load(0, 0, 0)

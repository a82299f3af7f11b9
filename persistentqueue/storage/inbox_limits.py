"""Limits for producers: they bound the inbox while no owner adopts.

At each opening the owner records ``max_items``, ``max_bytes`` and ``max_disk_bytes`` in ``queue.limits``, with
``log_bytes``, in the format of the files in ``locations``. Without limits there is no such file. An opening with
``keep_limits`` records nothing: the recorded limits count for it. If the file is there, a producer is refused in three
cases:

- The published files in the inbox would exceed ``max_items`` or ``max_bytes``.
- The files of the queue, with the inbox, would exceed ``max_disk_bytes``.
- The flush would not even fit into the empty queue. The owner could never adopt it, or what was published behind it.

So the queue and its inbox together hold at most twice ``max_items`` and ``max_bytes``. A producer never exceeds
``max_disk_bytes``.

A producer looks at the inbox before each flush, unless it has published little since the last look: less than a small
part of the room that it found. It also looks if an opening has recorded other limits since then. Several producers at
once may exceed a limit by what each of them publishes at that moment. A part, and what a producer spills, counts for
``max_disk_bytes`` while it is written. A part counts for the other limits when a manifest is about to name it (see
``multi_writer``). Spilled items count for them at the flush.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ..core.block import most_block_bytes
from ..core.header import HEADER_BYTES
from ..core.operations import MarkerSet, encode_marker
from ..core.state import State
from ..drawing.text import many
from ..errors import CorruptionError, PersistentQueueError, QueueFullError, UnsupportedFormatError
from ..system.disk import Disk, dirname, join
from ..system.path_errors import suppress, unless_lacking
from .layout import DAMAGED_SUFFIX, names_in, sizes_in
from .locations import LIMITS_NAME, Place, Places, read_fields, remove_file, write_fields
from .publication import is_published, read_publication

LIMITS = ("max_items", "max_bytes", "max_disk_bytes")
LOGS_LEAST = 5
"""Least ratio of ``max_disk_bytes`` to ``log_bytes``: for the log, its spare, the reserve for both, and items."""
CHECKPOINTS_PER_LOG = 4
"""Least length of a log, in lengths of its checkpoint. It keeps the cost of checkpoints small."""
ENQUEUES_PER_LOG = 0.7
"""Part of a log that frames with enqueues may fill.

A new segment with an extent takes 78 bytes in a frame and 104 in the next checkpoint. Behind that checkpoint there must
be room for a frame that dequeues."""
_RESERVED = 8
"""Divisor of ``max_disk_bytes``: this part is reserved for the log and its spare to grow."""
_LOG_BYTES = "log_bytes"
"""The name of the recorded length of a log. Older versions did not record it."""
_ADVICE = "producers and tools have no limit until the program of the queue opens it, which writes this file anew"
_PART = 64
"""Divisor of the room that a look has found: a producer publishes this part of it before it looks again."""


class Load(NamedTuple):
    """The amounts that count for the limits, in the order of ``LIMITS``."""

    items: int
    length_bytes: int
    size_bytes: int


def load_of(count: int, payload_bytes: int, envelope_bytes: int) -> Load:
    """Return an upper bound of the load of ``count`` items that are published in a file of their own."""
    length_bytes = most_block_bytes(count, payload_bytes, envelope_bytes)
    return Load(count, length_bytes, HEADER_BYTES + length_bytes)


def reserve_bytes(log_bytes: int, max_disk_bytes: int | None) -> int:
    """Return the bytes that only dequeues may use, for a log of this length and its spare to grow."""
    return max(2 * log_bytes, (max_disk_bytes or 0) // _RESERVED)


def empty_bytes(log_bytes: int, max_disk_bytes: int | None) -> int:
    """Return the bytes of ``max_disk_bytes`` that an empty queue takes, without a segment."""
    return 2 * log_bytes + reserve_bytes(log_bytes, max_disk_bytes)


def marker_bytes(markers: Mapping[str, int]) -> int:
    """Return the bytes of these markers in a checkpoint."""
    return sum(len(encode_marker(MarkerSet(*each))) for each in markers.items())


class Unfreed(NamedTuple):
    """The part of a queue that no dequeue frees."""

    log_bytes: int
    """Initial length of a log."""
    markers: int
    """Number of markers."""
    marker_bytes: int
    """Their bytes in a checkpoint."""
    aside_bytes: int
    """Bytes of files that were set aside."""

    def beside(self, asked: int, most: int, is_wanted: bool = False) -> tuple[int, str]:
        """Return the bytes that stay if all items are consumed, beside ``asked`` bytes of a segment with its header.

        Also return the advice, if markers or files that were set aside leave no room for the segment in ``most`` bytes;
        else an empty text. The log has the least length with the markers, or the length that it gets if it
        ``is_wanted``. A log can be shorter than it should be, so a queue with items may still take more. In an empty
        queue, only its markers can be what has left no room.
        """
        parts = CHECKPOINTS_PER_LOG if is_wanted else 1 / ENQUEUES_PER_LOG
        log_bytes = max(self.log_bytes, int(parts * self.marker_bytes))
        empty, marked = (empty_bytes(each, most) + self.aside_bytes for each in (self.log_bytes, log_bytes))
        advice = ""
        if asked + empty <= most < asked + marked:
            empty = marked
            advice = (
                f"the queue's {many(self.markers, 'marker')} leave no room for items, and no dequeue frees them: raise "
                "the limit, then flush again, and use fewer names of markers"
            )
        elif asked + empty - self.aside_bytes <= most < asked + empty:
            advice = (
                f"files that were set aside ({DAMAGED_SUFFIX}) take {self.aside_bytes} bytes: move them away, and open "
                "the queue again, or raise the limit"
            )
        return empty, advice


def record_limits(disk: Disk, directory: str, settings: Mapping[str, Any]) -> None:
    """Record the limits among the settings of the queue in this directory, if the recorded ones differ.

    Never raises ``OSError``: only producers need the record, and the owner enforces its limits in any case.
    """
    limits = {name: value for name in LIMITS if (value := settings[name]) is not None}
    if limits:
        limits[_LOG_BYTES] = settings[_LOG_BYTES]
    path = join(directory, LIMITS_NAME)
    with suppress(OSError):
        recorded: dict[str, int] | None = None
        with suppress(OSError, CorruptionError, UnsupportedFormatError):  # then it is written, or removed, anyway
            recorded = _read(disk, directory)
        if limits != recorded:
            if limits:
                write_fields(disk, path, {"limits": limits}, 0o644)
            else:
                remove_file(disk, path)


def read_limits(disk: Disk, directory: str) -> dict[str, int]:
    """Return the recorded limits, and ``log_bytes``; an empty dictionary if there is no record, or a damaged one.

    A number that no option can be counts as not recorded: a person may have edited the file. Raises ``OSError``.
    """
    with suppress(CorruptionError, UnsupportedFormatError, PermissionError):
        return _read(disk, directory)
    return {}


def check_limits(disk: Disk, directory: str) -> Iterator[PersistentQueueError]:
    """Yield an error if the record of the limits cannot be read. Raises ``OSError``."""
    try:
        _read(disk, directory)
    except (CorruptionError, UnsupportedFormatError) as problem:
        yield problem
    except PermissionError:  # of another user; producers of this one have no limits either
        pass


def _read(disk: Disk, directory: str) -> dict[str, int]:
    """Return what ``read_limits`` does. Raises ``CorruptionError`` and ``UnsupportedFormatError``, too."""
    path = join(directory, LIMITS_NAME)
    try:
        fields = read_fields(disk, path, _ADVICE) or {"limits": {}}
        names = (*LIMITS, _LOG_BYTES)
        found = {name: value for name, value in fields["limits"].items() if name in names and type(value) is int}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:  # a program of others wrote it
        raise CorruptionError(path, 0, "limits", repr(error), _ADVICE) from None
    return {name: value for name, value in found.items() if 0 < value < 2**63}


def kept_limits(disk: Disk, directory: str) -> dict[str, Any]:
    """Return the recorded limits as settings of an opening, with a ``log_bytes`` that ``max_disk_bytes`` allows."""
    limits = read_limits(disk, directory)
    log_bytes, disk_bytes = limits.pop(_LOG_BYTES, None), limits.get("max_disk_bytes")
    if disk_bytes is None:
        return limits
    most_bytes = disk_bytes // LOGS_LEAST
    return {**limits, _LOG_BYTES: most_bytes if log_bytes is None else min(log_bytes, most_bytes)}


class Bounds:
    """The room of a queue, as one producer knows it. For one thread at a time."""

    def __init__(self, disk: Disk, directory: str, look: Callable[[], State]) -> None:
        self._disk = disk
        self._directory = directory
        self._look_at_log = look
        """Returns the state of the queue by its log."""
        self._known: dict[str, Load] = {}
        self._limits: dict[str, int] = {}
        """Limits of the last look."""
        self._room = Load(0, 0, 0)
        """Load that may be published before the next look."""
        self._aside_bytes = 0
        """Bytes of files that were set aside, by the last look."""

    def check(self, inbox: str, asked: Load, written_bytes: int = 0) -> None:
        """Count the load that is about to be published, beside files of ``written_bytes`` that it belongs to.

        Raises ``QueueFullError`` if it does not fit. Then nothing was counted or published. Raises ``ResourceError``
        and ``OSError`` if the limits cannot be read now, and ``MemoryShortageError`` for a published file.
        """
        with unless_lacking(self._directory, "to read its limits"):
            limits = read_limits(self._disk, self._directory)
        if not limits:
            return
        most_bytes = limits.get("max_disk_bytes")
        whole_bytes = asked.size_bytes + written_bytes
        if most_bytes is not None:
            whole_bytes += empty_bytes(limits.get(_LOG_BYTES, 0), most_bytes)
        fits = limits == self._limits and (most_bytes is None or whole_bytes <= most_bytes)
        if fits and not any(more > room for more, room in zip(asked, self._room, strict=True)):
            self._room = Load(*(room - more for more, room in zip(asked, self._room, strict=True)))
            return
        held = self._look(inbox, most_bytes is not None)
        whole = asked._replace(size_bytes=whole_bytes)
        room = []
        for name, holds, more, least in zip(LIMITS, held, asked, whole, strict=True):
            most = limits.get(name)
            if most is None:
                room.append(2**63)
                continue
            if holds + more > most or least > most:
                full = QueueFullError(self._directory, name, most, holds, more, least > most)
                raise self._unfreed(full, asked.size_bytes + written_bytes, limits.get(_LOG_BYTES, 0))
            room.append((most - holds - more) // _PART)
        self._limits, self._room = limits, Load(*room)

    def _unfreed(self, full: QueueFullError, asked: int, log_bytes: int) -> QueueFullError:
        """Return the error, for ``asked`` bytes: lasting if markers or files that were set aside are the cause."""
        if full.limit == "max_disk_bytes" and not full.lasting:
            with suppress(PersistentQueueError, OSError):  # the log of another user, or one that is damaged
                markers = self._look_at_log().markers
                unfreed = Unfreed(log_bytes, len(markers), marker_bytes(markers), self._aside_bytes)
                least, advice = unfreed.beside(asked, full.most)
                return QueueFullError(
                    full.path, full.limit, full.most, full.holds, full.asked, asked + least > full.most, advice
                )
        return full

    def check_ahead(self, inbox: str, asked: Load, written_bytes: int) -> None:
        """Count a load that is about to be written before its publication, and raise what ``check`` raises.

        Only the size of its file counts now. The items and their bytes count when they are published.
        """
        self.check(inbox, asked._replace(items=0, length_bytes=0), written_bytes)

    def _look(self, inbox: str, counts_files: bool) -> Load:
        """Return the load of the inbox, and the size of all files of the queue if ``counts_files``.

        Each file of the inbox is read once, also over several calls.
        """
        known, self._known = self._known, {}
        for name in filter(is_published, names_in(self._disk, inbox)):
            self._known[name] = known[name] if name in known else self._measure(join(inbox, name))
        size_bytes = 0
        if counts_files:
            parts = Places(self._directory, Place(dirname(inbox), "")).parts()  # the inbox is beside the segments
            sizes = [file for part in dict.fromkeys(parts) for file in sizes_in(self._disk, part).items()]
            size_bytes = sum(size for _, size in sizes)
            self._aside_bytes = sum(size for name, size in sizes if name.endswith(DAMAGED_SUFFIX))
        return Load(
            sum(load.items for load in self._known.values()),
            sum(load.length_bytes for load in self._known.values()),
            size_bytes,
        )

    def _measure(self, path: str) -> Load:
        unreadable = (CorruptionError, UnsupportedFormatError, FileNotFoundError, PermissionError)
        with suppress(*unreadable):  # such a file is the owner's matter, or it was adopted meanwhile: it counts nothing
            publication = read_publication(self._disk, path)
            return Load(publication.items, sum(file.length_bytes for file in publication.files), 0)
        return Load(0, 0, 0)

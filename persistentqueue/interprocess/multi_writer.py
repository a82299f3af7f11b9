"""A transaction that many processes write together: each of them a part, and one the manifest of all.

``publication`` has the format. The parts may be written in any number, by whoever sees the queue's directory under the
same path, more than once each: the manifest says which of them count. Until it is published nothing of them is the
queue's; from then on all of it is, durably, whether anybody owns the queue or not.

Manifests with a marker of one name come in the order in which they were published, also if that was done by different
processes: the marker's name makes their producer's. For them a later version would else hide the earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256

from ..core.encryption import Encryption, Envelopes
from ..core.header import HEADER_BYTES
from ..core.items import Batch, checked_marker
from ..engine.inbox_limits import Bounds, Load, load_of
from ..engine.transaction import SPILL_BYTES
from ..errors import CorruptionError, PersistentQueueError
from ..storage.layout import names_in, queue_directory
from ..storage.publication import SUFFIX, Draft, Part, is_published, parse_name, read_publication, time_behind
from ..system.disk import DISK, Disk, StrPath, abspath, join, sync_directory
from ..system.trust import need_regular
from .producer import Versions, explained, find_inbox

PART_SECONDS_MAX = 6 * 86400.0
"""An older part is not published: a day later its owner may sweep it."""
_AGAIN = "write it once more"


class ExpiredPartError(PersistentQueueError):
    """A part is too old to be published, since it may be swept: write it again. Nothing was published."""


class PartWriter:
    """Writes one part for the queue at ``path`` and ``name``, which is there. For one thread at a time.

    ``compression`` and ``encryption`` are those of ``PersistentQueue``. Raises ``QueueNotFoundError``,
    ``InvalidNameError``, ``DataMissingError``, ``MissingExtraError``, ``WrongKeyError`` and ``OSError``.
    """

    def __init__(
        self,
        path: StrPath,
        name: str | None = None,
        *,
        compression: str | None = None,
        encryption: Encryption | None = None,
        disk: Disk = DISK,
    ) -> None:
        self._disk = disk
        self._encode = Envelopes(compression, encryption).encoder(disk)
        self._directory = abspath(queue_directory(path, name))  # the process may change its directory meanwhile
        self._inbox = find_inbox(disk, self._directory)
        self._bounds = Bounds(disk, self._directory)
        self._draft: Draft | None = None
        self._batch = Batch(SPILL_BYTES)

    def write(self, items: Sequence[bytes]) -> None:
        """Write the items behind those before, keeping at most ``SPILL_BYTES`` of them in memory, or one.

        Raises ``ItemTooLargeError``, ``QueueFullError`` (the files of the queue would exceed ``max_disk_bytes``),
        ``ResourceError`` and ``OSError``; the part is then only to be dropped.
        """
        self._batch.extend(list(items), self._spill)

    def end(self) -> Part | None:
        """Make the part durable, with its name; None, and no file, if nothing was written. Raises like ``write``."""
        if self._batch.items:
            self._spill()
        if self._draft is None:
            return None
        with self._explaining():
            return self._draft.end_part(self._disk.time_ns())

    def drop(self) -> None:
        """Delete what was written, also a part that has ended, if no manifest was to name it. Never raises
        ``OSError``."""
        if self._draft is not None:
            self._draft.drop()
        self._draft = None
        self._batch.clear()

    def _spill(self) -> None:
        more = load_of(len(self._batch.items), self._batch.payload_bytes)
        # Items and their bytes count when the part is published.
        self._bounds.check(self._inbox, more._replace(items=0, length_bytes=0))
        with self._explaining():
            if self._draft is None:
                producer, time_ns = self._disk.urandom(8).hex(), self._disk.time_ns()
                self._draft = Draft(self._disk, self._inbox, producer, time_ns, self._encode)
            self._draft.write(self._batch.items, self._batch.payload_bytes, self._disk.time_ns())
        self._batch.clear()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise explained(error, self._directory, self._inbox, None, "this part", _AGAIN) from error


def publish_parts(
    path: StrPath, name: str | None, parts: Sequence[Part], marker: tuple[str, int] | None = None, *, disk: Disk = DISK
) -> bool:
    """Publish the items of these parts, in their order, as one atomic transaction: durable on return.

    False if it is known here that the marker was reached before: nothing is published then, and the parts are deleted,
    unless it was they that reached it. Where it is not, the owner knows, and drops them when he adopts the manifest: to
    replay his log each time would cost more. Nothing is done without parts and marker.

    Raises ``BrokenQueueError``: whether it is durable is unknown. In all other cases nothing is published:
    ``CorruptionError`` (a part is missing or is not as it was written, on a storage of its own for instance),
    ``QueueFullError`` (the queue has limits, and more waits in its inbox than they allow), ``ExpiredPartError``,
    ``ResourceError``, ``DataPathError`` (the segments are being moved), ``QueueNotFoundError``, ``OSError``, and
    ``ValueError`` or ``TypeError`` for what is no marker.
    """
    directory = abspath(queue_directory(path, name))
    inbox = find_inbox(disk, directory)
    producer = disk.urandom(8).hex()
    if marker is not None:
        marker = checked_marker(marker)
        producer = sha256(marker[0].encode()).hexdigest()[:16]
        if _is_waiting(disk, inbox, producer, *marker):
            remove_parts(path, name, parts, disk=disk)
            return False
    elif not parts:
        return True
    try:
        for part in parts:
            _need_part(disk, join(inbox, part.name), part)
    except CorruptionError:
        if marker is not None and Versions(disk, directory).is_reached(inbox, *marker):
            # It was they, and they were adopted.
            remove_parts(path, name, parts, disk=disk)
            return False
        raise
    count, length_bytes = sum(part.count for part in parts), sum(part.length_bytes for part in parts)
    Bounds(disk, directory).check(inbox, Load(count, length_bytes, 0))  # the files are there already
    draft: Draft | None = None
    try:
        draft, time_ns = _begin_manifest(disk, inbox, producer)
        draft.publish(marker, time_ns, parts)
    except OSError as error:
        raise explained(error, directory, inbox, draft, "this transaction", _AGAIN) from error
    else:
        return True
    finally:
        if draft is not None:
            draft.drop()  # nothing that is published


def remove_parts(path: StrPath, name: str | None, parts: Iterable[Part], *, disk: Disk = DISK) -> None:
    """Delete these parts, unless a manifest has them, or may; nobody may be about to publish one. Never raises
    ``OSError``, nor anything else: what stays is swept when it is old."""
    with suppress(OSError, PersistentQueueError):
        inbox = find_inbox(disk, queue_directory(path, name))
        manifests = []
        for each in filter(is_published, names_in(disk, inbox)):
            with suppress(FileNotFoundError):  # adopted meanwhile, and before it its parts
                manifests.append(read_publication(disk, join(inbox, each)))
        named = {part.name for manifest in manifests for part in manifest.parts}
        for part in parts:
            if part.name not in named:
                with suppress(FileNotFoundError):
                    disk.unlink(join(inbox, part.name))


def count_published(path: StrPath, name: str | None, *, disk: Disk = DISK) -> int:
    """How many transactions wait in the inbox. Raises ``QueueNotFoundError`` and ``DataMissingError``."""
    return sum(map(is_published, names_in(disk, find_inbox(disk, queue_directory(path, name)))))


def _need_part(disk: Disk, path: str, part: Part) -> None:
    size_bytes = HEADER_BYTES + part.capacity_bytes
    consequence = "nothing was published; whoever writes parts must see the files of the queue, and no copies of them"
    try:
        found_bytes, time_ns = need_regular(disk, path), disk.lstat(path).st_mtime_ns
    except FileNotFoundError:
        raise CorruptionError(path, 0, f"a part of {size_bytes} bytes", "no file", consequence) from None
    if found_bytes != size_bytes:
        raise CorruptionError(path, 0, f"a part of {size_bytes} bytes", f"{found_bytes} bytes", consequence)
    seconds = (disk.time_ns() - time_ns) / 1e9
    if seconds > PART_SECONDS_MAX:
        days, most = seconds / 86400, PART_SECONDS_MAX / 86400
        raise ExpiredPartError(f"{path}: written {days:.1f} days ago, and published within {most:.0f}: write it again")


def _is_waiting(disk: Disk, inbox: str, producer: str, name: str, version: int) -> bool:
    """Whether the youngest publication of this producer with a marker of this name has reached the version."""
    for _, published in sorted(_published_by(disk, inbox, producer), reverse=True):
        with suppress(CorruptionError, FileNotFoundError):
            marker = read_publication(disk, join(inbox, published)).marker
            if marker is not None and marker[0] == name:
                if marker[1] >= version:
                    sync_directory(disk, inbox)  # whoever published it may have been killed before he did
                return marker[1] >= version
    return False


def _published_by(disk: Disk, inbox: str, producer: str) -> Iterator[tuple[int, str]]:
    """The times and the names of what this producer has published, and what waits to be adopted."""
    for name in filter(is_published, names_in(disk, inbox)):
        parsed = parse_name(name)
        if parsed is not None and parsed.producer == producer:
            yield parsed.time_ns, name


def _begin_manifest(disk: Disk, inbox: str, producer: str) -> tuple[Draft, int]:
    """The draft of a manifest, and the time to publish it under, behind those of the same producer."""
    time_ns = disk.time_ns() - 1
    while True:
        last = max((name for _, name in _published_by(disk, inbox, producer)), default="")
        time_ns = time_behind(disk, inbox, last, time_ns)
        try:
            draft = Draft(disk, inbox, producer, time_ns)
        except FileExistsError:  # somebody else publishes one, or was killed before he did
            continue
        # Who has this draft has the time, unless it was taken between the listing and the draft.
        if f"{time_ns:016x}-{producer}{SUFFIX}" not in names_in(disk, inbox):
            return draft, time_ns
        draft.drop()

"""A transaction that many processes write together: each process writes a part, and one process publishes the manifest.

``publication`` describes the format. Any number of parts may be written, by any process that sees the queue's
directory under the same path. A part may be written more than once: the manifest says which parts count. Before the
manifest is published, nothing of them belongs to the queue. From then on all of it does, durably, whether the queue is
owned or not.

Manifests with a marker of one name are ordered as they were published, also if different processes published them: the
producer in their file names is derived from the marker's name. Without this order, a later version could hide an
earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from ..core.block import Columns
from ..core.encryption import Compression, Encryption, Envelopes
from ..core.header import HEADER_BYTES
from ..core.items import Batch, ColumnBatch, checked_marker
from ..engine.transaction import SPILL_BYTES
from ..errors import ClosedError, CorruptionError, PersistentQueueError
from ..storage.inbox_limits import Bounds, Load, load_of
from ..storage.layout import names_in
from ..storage.publication import SUFFIX, Draft, Part, is_published, parse_name, read_publication, time_behind
from ..system.disk import Disk, StrPath, current_disk, join
from ..system.files import sync_directory
from ..system.path_errors import faults, suppress
from ..system.trust import need_regular
from .producer import Versions, explained, located, need_same_key
from .splits import look

PART_SECONDS_MAX = 6 * 86400.0
"""Maximum age of a part that can be published, in seconds. One day later the owner may sweep the part."""
_AGAIN = "write it once more"


class ExpiredPartError(PersistentQueueError):
    """A part is too old to be published, since the owner may sweep it. Nothing was published: write the part again."""


class PartWriter:
    """A writer of one part for an existing queue.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None, the default, means the queue that lies in ``path`` itself.
        compression: ``"zstd"`` or None, the default, as for ``PersistentQueue``.
        encryption: The key of the queue, or None, the default, as for ``PersistentQueue``.

    Raises:
        QueueNotFoundError: There is no queue at the path.
        InvalidNameError: The name cannot be a queue's.
        DataMissingError: The location of the segments is not there.
        DataPathError: The directory is the location of another queue's segments.
        InboxAccessError: This process may not publish for this queue.
        CorruptionError: The queue's files that name its locations are damaged.
        MissingExtraError: A package that the compression or the encryption needs is not installed.
        WrongKeyError: The encryption has no key, or another one than the queue has under this id.
        TypeError: ``path``, ``name`` or ``encryption`` has the wrong type.
        ValueError: ``compression`` is not one of its values.
        OSError: The queue cannot be read for another reason.

    The part is durable when ``end`` has returned. It belongs to the queue when ``publish_parts`` has published it. A
    writer is for one thread at a time.
    """

    def __init__(
        self,
        path: StrPath,
        name: str | None = None,
        *,
        compression: Compression | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        disk = current_disk()
        self._disk, self._forks = disk, disk.forks()
        envelopes = Envelopes(compression, encryption)
        self._encode, self._envelope_bytes = envelopes.encoder(disk), envelopes.most_bytes
        _, self._directory, self._inbox = located(path, name)
        if encryption is not None:
            need_same_key(disk, self._directory, envelopes, encryption.key_id)
        self._bounds = Bounds(disk, self._directory, Versions(disk, self._directory).state)
        self._draft: Draft | None = None
        self._batch = Batch(SPILL_BYTES)
        self._columns = ColumnBatch(SPILL_BYTES)

    def write(self, items: Sequence[bytes]) -> None:
        """Write the items behind the ones that were written before.

        At most ``SPILL_BYTES`` (4 MiB) of items stay in memory, or one larger item.

        Args:
            items: The items, in their order. Each has at most 4 GiB - 1 bytes.

        Raises:
            ClosedError: The writer belongs to the parent process.
            ItemTooLargeError: An item is too long. None of the items was taken.
            QueueFullError: The files of the queue would exceed ``max_disk_bytes``.
            DataPathError: The segments are being moved.
            ResourceError: The operating system lacks disk space, descriptors or memory.
            OSError: The part cannot be written for another reason.

        Nothing is durable before ``end``. After an error the part can only be dropped.
        """
        self._check()
        if self._columns.count:
            self._spill()
        self._batch.extend(list(items), self._spill)

    def write_columns(self, columns: Columns) -> None:
        """Write the items of these columns behind the ones that were written before.

        The file gets the same bytes as from ``write`` with these items, without an object for each of them. At most
        ``SPILL_BYTES`` (4 MiB) of items stay in memory, or one larger item.

        Args:
            columns: The items, in their order. Their bytes must not change before ``end``.

        Raises:
            ValueError: The lengths do not add up to the payload. None of the items was taken.
            PersistentQueueError, OSError: On the conditions that ``write`` names.

        Nothing is durable before ``end``. After an error the part can only be dropped.
        """
        self._check()
        if self._batch.items:
            self._spill()
        self._columns.extend(columns, self._spill)

    def end(self) -> Part | None:
        """Make the part durable under its name.

        Returns:
            The part, to be passed to ``publish_parts``. None if nothing was written: then there is no file.

        Raises:
            ClosedError: The writer belongs to the parent process.
            QueueFullError: The files of the queue would exceed ``max_disk_bytes``.
            DataPathError: The segments are being moved.
            ResourceError: The operating system lacks disk space, descriptors or memory.
            OSError: The part cannot be written for another reason.

        On return, the part is durable, but not yet a part of the queue. After an error the part can only be dropped.
        """
        self._check()
        if self._batch.items or self._columns.count:
            self._spill()
        if self._draft is None:
            return None
        with self._explaining():
            return self._draft.end_part(self._disk.time_ns())

    def drop(self) -> None:
        """Delete what was written, also a part that has ended.

        No manifest may name the part, now or later. The call never raises ``OSError``.
        """
        if self._draft is not None and self._forks == self._disk.forks():  # else it is the parent's
            self._draft.drop()
        self._draft = None
        self._batch.clear()
        self._columns.clear()

    def _check(self) -> None:
        if self._forks != self._disk.forks():
            raise ClosedError(
                f"{self._directory}: the writer belongs to the parent process: make another one in this process"
            )

    def _spill(self) -> None:
        """Write what is in memory: items or columns, never both."""
        items, columns = self._batch, self._columns
        count, payload_bytes = len(items.items) + columns.count, items.payload_bytes + columns.payload_bytes
        more = load_of(count, payload_bytes, self._envelope_bytes)
        written_bytes = self._draft.length_bytes if self._draft is not None else 0
        self._bounds.check_ahead(self._inbox, more, written_bytes)
        with self._explaining():
            if self._draft is None:
                producer, time_ns = self._disk.urandom(8).hex(), self._disk.time_ns()
                self._draft = Draft(self._disk, self._inbox, producer, time_ns, self._encode)
            if columns.count:
                self._draft.write_columns(columns.joined(), self._disk.time_ns())
            else:
                self._draft.write(items.items, items.payload_bytes, self._disk.time_ns())
        items.clear()
        columns.clear()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except faults(OSError) as error:
            is_gone = self._draft is not None and self._draft.is_gone
            raise explained(error, self._directory, self._inbox, None, "this part", _AGAIN, is_gone) from error


def publish_parts(
    path: StrPath, name: str | None, parts: Sequence[Part], marker: tuple[str, int] | None = None
) -> bool:
    """Publish the items of these parts, in their order, as one atomic transaction.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None means the queue that lies in ``path`` itself.
        parts: The parts, in the order of their items. Without parts and without a marker, the call does nothing.
        marker: A name and a version, to commit repeated work once. Default: None.

    Returns:
        False if this process knows that the marker was reached before. Nothing is published then. The parts are
        deleted, unless they are those that reached it. True otherwise. The owner may still find that the marker was
        reached before. It then drops the parts when it adopts the manifest. To search the owner's log at each call
        would cost too much.

    Raises:
        BrokenQueueError: A sync failed. Whether the transaction is durable is unknown. After all other errors, nothing
            is published.
        CorruptionError: A part is missing, or is not as it was written: for instance, the process that wrote it used
            other storage.
        ExpiredPartError: A part is older than ``PART_SECONDS_MAX`` (six days).
        TooManyPartsError: The manifest would be too long.
        QueueFullError: The queue has limits, and its inbox would exceed them.
        DataPathError: The segments are being moved.
        QueueNotFoundError: There is no queue at the path.
        InvalidNameError: The name cannot be a queue's.
        DataMissingError: The location of the segments is not there.
        InboxAccessError: This process may not publish for this queue.
        ResourceError: The operating system lacks disk space, descriptors or memory.
        TypeError: ``path``, ``name`` or ``marker`` has the wrong type.
        ValueError: The name or the version of the marker is out of range.
        OSError: A file cannot be read or written for another reason.

    On return, the transaction is durable. Any number of threads and processes may call it at the same time.
    """
    disk, directory, inbox = located(path, name)
    marker = None if marker is None else checked_marker(marker)
    producer, versions = _producer_of(disk, marker), Versions(disk, directory)
    if marker is not None:
        waiting = _waiting_version(disk, inbox, producer, marker[0])
        if waiting is not None and waiting >= marker[1]:
            sync_directory(disk, inbox)  # its producer may have been killed before this sync
            remove_parts(path, name, parts)
            return False
    elif not parts:
        return True
    try:
        for part in parts:
            _need_part(disk, join(inbox, part.name), part)
    except (CorruptionError, ExpiredPartError):
        if marker is not None and versions.is_reached(inbox, *marker):
            # These parts reached the marker, and the owner has adopted them.
            remove_parts(path, name, parts)
            return False
        raise
    count, length_bytes = sum(part.count for part in parts), sum(part.length_bytes for part in parts)
    # The files already exist, so they add no bytes.
    bounds = Bounds(disk, directory, versions.state)
    bounds.check(inbox, Load(count, length_bytes, 0), length_bytes + HEADER_BYTES * len(parts))
    draft: Draft | None = None
    try:
        draft, time_ns = _begin_manifest(disk, inbox, producer)
        draft.publish(marker, time_ns, parts)
    except faults(OSError) as error:
        raise explained(error, directory, inbox, draft, "this transaction", _AGAIN) from error
    else:
        return True
    finally:
        if draft is not None:
            draft.drop()  # deletes nothing that is published


def published_version(path: StrPath, name: str | None, marker: str) -> int | None:
    """Return the last version of a marker that ``publish_parts`` has published, whether it is adopted or not.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None means the queue that lies in ``path`` itself.
        marker: The name of the marker.

    Returns:
        The version; None if none is found. If the log cannot be read now, only what waits to be adopted counts.

    It raises what ``is_reached`` raises. The answer need not be durable. Any number of threads and processes may call
    it at the same time.
    """
    disk, directory, inbox = located(path, name)
    found = [_waiting_version(disk, inbox, _producer_of(disk, (marker, 0)), marker)]
    with suppress(CorruptionError, FileNotFoundError, PermissionError):
        found.append(look(disk, directory)[1].state.markers.get(marker))
    return max((version for version in found if version is not None), default=None)


def _producer_of(disk: Disk, marker: tuple[str, int] | None) -> str:
    """Return the name of a manifest's producer: the same one for each transaction with a marker of the same name."""
    from hashlib import sha256  # noqa: PLC0415 - it takes milliseconds to load, and few programs come here

    return disk.urandom(8).hex() if marker is None else sha256(marker[0].encode()).hexdigest()[:16]


def remove_parts(path: StrPath, name: str | None, parts: Iterable[Part]) -> None:
    """Delete these parts, except those that a manifest names or may name.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None means the queue that lies in ``path`` itself.
        parts: The parts. No process may be about to publish one of them.

    The call raises no error of the file system and no error of this package. A part that stays is swept when it is
    old. The deletion is not durable on return. Any number of threads and processes may call it at the same time.
    """
    with suppress(OSError, PersistentQueueError):
        disk, _, inbox = located(path, name)
        manifests = []
        for each in filter(is_published, names_in(disk, inbox)):
            with suppress(FileNotFoundError):  # the owner has adopted it in the meantime, after its parts
                manifests.append(read_publication(disk, join(inbox, each)))
        named = {part.name for manifest in manifests for part in manifest.parts}
        for part in parts:
            if part.name not in named:
                with suppress(FileNotFoundError):
                    disk.unlink(join(inbox, part.name))


def list_published(path: StrPath, name: str | None) -> list[str]:
    """Return the names of the published files that the owner has not adopted, requests among them, in no order.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None means the queue that lies in ``path`` itself.

    Raises:
        QueueNotFoundError: There is no queue at the path.
        InvalidNameError: The name cannot be a queue's.
        DataMissingError: The location of the segments is not there.
        InboxAccessError: This process may not publish for this queue.
        OSError: The inbox cannot be read for another reason.

    The call only reads. Any number of threads and processes may call it at the same time.
    """
    disk, _, inbox = located(path, name)
    return list(filter(is_published, names_in(disk, inbox)))


def _need_part(disk: Disk, path: str, part: Part) -> None:
    """Raise ``CorruptionError`` if the part is not as it was written, and ``ExpiredPartError`` if it is too old."""
    size_bytes = HEADER_BYTES + part.capacity_bytes
    consequence = "nothing was published: each writer of a part must see the files of the queue itself, and no copies"
    try:
        found_bytes, time_ns = need_regular(disk, path), disk.lstat(path).st_mtime_ns
    except FileNotFoundError:
        parsed = parse_name(part.name)
        _need_young(disk, path, parsed.time_ns if parsed is not None else disk.time_ns())  # the owner deletes old ones
        raise CorruptionError(path, 0, f"a part of {size_bytes} bytes", "no file", consequence) from None
    if found_bytes != size_bytes:
        raise CorruptionError(path, 0, f"a part of {size_bytes} bytes", f"{found_bytes} bytes", consequence)
    _need_young(disk, path, time_ns)


def _need_young(disk: Disk, path: str, time_ns: int) -> None:
    seconds = (disk.time_ns() - time_ns) / 1e9
    if seconds > PART_SECONDS_MAX:
        days, most = seconds / 86400, PART_SECONDS_MAX / 86400
        raise ExpiredPartError(
            f"{path}: the part was written {days:.1f} days ago, and must be published within {most:.0f} days: write it "
            "again"
        )


def _waiting_version(disk: Disk, inbox: str, producer: str, name: str) -> int | None:
    """Return the version in the youngest publication of this producer with a marker of this name, if there is one."""
    for _, published in sorted(_published_by(disk, inbox, producer), reverse=True):
        with suppress(CorruptionError, FileNotFoundError):
            marker = read_publication(disk, join(inbox, published)).marker
            if marker is not None and marker[0] == name:
                return marker[1]
    return None


def _published_by(disk: Disk, inbox: str, producer: str) -> Iterator[tuple[int, str]]:
    """Yield the times and the names of the files that this producer has published and that wait to be adopted."""
    for name in filter(is_published, names_in(disk, inbox)):
        parsed = parse_name(name)
        if parsed is not None and parsed.producer == producer:
            yield parsed.time_ns, name


def _begin_manifest(disk: Disk, inbox: str, producer: str) -> tuple[Draft, int]:
    """Return the draft of a manifest, and the time to publish it under, which is above all times of this producer."""
    time_ns = disk.time_ns() - 1
    while True:
        last = max((name for _, name in _published_by(disk, inbox, producer)), default="")
        time_ns = time_behind(disk, inbox, last, time_ns)
        try:
            draft = Draft(disk, inbox, producer, time_ns)
        except FileExistsError:  # another process is publishing a manifest, or was killed before it did
            continue
        # The owner of this draft owns its time, unless another process took it between the listing and the draft.
        is_free = False
        try:
            is_free = f"{time_ns:016x}-{producer}{SUFFIX}" not in names_in(disk, inbox)
        finally:
            if not is_free:
                draft.drop()
        if is_free:
            return draft, time_ns

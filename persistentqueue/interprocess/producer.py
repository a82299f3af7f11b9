"""The producer: a process that enqueues without owning the queue, beside the owner and other producers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Generic, overload

from ..codecs import BYTES, Codec, T, checked_codec, encode
from ..core.encryption import Compression, Encryption, Envelopes
from ..core.items import Batch, Buffer, are_bytes, as_bytes, checked_marker, chunks
from ..core.state import State
from ..drawing.text import many
from ..engine.context import Settings
from ..engine.transaction import SPILL_BYTES
from ..errors import (
    BrokenQueueError,
    ClosedError,
    CorruptionError,
    DataPathError,
    InboxAccessError,
    PersistentQueueError,
    QueueLockedError,
    QueueNotFoundError,
    ResourceError,
    SessionInUseError,
    UnflushedWarning,
    UnsupportedFormatError,
)
from ..interrupts.call_guard import BUSY, FREE, Exclusive
from ..interrupts.signal_shield import shielded
from ..options import Unnamed
from ..recovery.mounts import need_local
from ..recovery.opening import open_store
from ..storage.inbox_access import is_shared, publication_mode
from ..storage.inbox_limits import Bounds, Load, load_of
from ..storage.layout import MAKE_FIRST, bears, believed, find_generations, names_in, no_queue, queue_directory
from ..storage.locations import CLOSED_DIRECTORY, INBOX_DIRECTORY, LOG_DIRECTORY, OWN, Place, read_places
from ..storage.lock import LOCK_NAME, is_held
from ..storage.publication import Draft, is_published, read_publication, time_behind
from ..storage.relocation import need_data, need_own_location
from ..system.disk import LACKING, Disk, StrPath, abspath, current_disk, dirname, join
from ..system.files import sync_directory
from ..system.path_errors import OUT_OF_REACH, faults, lacking, naming_paths, suppress, unless_lacking
from ..system.trust import need_trusted
from .splits import Onlooker, wrong_keys

_CREATION_TRIES, _TRY_SECONDS = 100, 0.1


class Producer(Exclusive, Generic[T]):
    """A handle that enqueues items into a queue without its lock, whether another process owns the queue or not.

    Any number of producers, in any processes of this machine, work beside the owner and each other. Each flush is one
    atomic transaction in a file of its own, in the inbox. The flushes of one producer keep their order.

    The owner adopts the file without copying it:

    - when it opens the queue;
    - after its own flushes, at most once in a millisecond;
    - when a consumer finds nothing else to dequeue;
    - at once, while a consumer waits, or while the owner serves (``serve=True``).

    Items are invisible until ``flush``. If the ``with`` block ends without a flush, they are dropped with an
    ``UnflushedWarning``. Published items count for the limits of the queue once they are adopted. If the limits leave
    no room, they wait in the inbox. The same limits bound what waits there (see ``inbox_limits``), also while the
    queue is not owned: a flush beyond them raises ``QueueFullError``.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. Without a name, the queue that lies in ``path`` itself. It is not made in a
            directory that holds named queues: None asks for it there, too.
        codec: Converts items to bytes, as for ``PersistentQueue``. The default ``codecs.BYTES`` takes bytes-like
            objects.
        create: Whether to make the queue, in its own directory, if it does not exist. Default: True.
        compression: ``"zstd"`` or None, the default, as for ``PersistentQueue``. It applies to what this producer
            writes.
        encryption: The key of the queue, or None, the default, as for ``PersistentQueue``. It applies to what this
            producer writes.
        trust: Whether to accept a queue that another user has prepared or may write to. Default: False. A queue whose
            user shares it with a group (see ``inbox_access``) is accepted in any case.
        network_disk: Whether to accept a queue on a network file system. Default: False.

    Raises:
        QueueNotFoundError: There is no queue at the path, and ``create`` is False.
        QueueLockedError: Another process began to make the queue more than ten seconds ago, and has not finished.
        InvalidNameError: The name cannot be a queue's.
        DataMissingError: The location of the segments is not there.
        DataPathError: The directory is the location of another queue's segments.
        CorruptionError: The queue's files that name its locations are damaged, or its log is missing.
        InboxAccessError: The queue belongs to another user, and is not shared with a group.
        UntrustedError: Another user has prepared the queue or may write to it, and ``trust`` is False.
        NetworkDiskError: The queue is on a network file system, and ``network_disk`` is False.
        MissingExtraError: A package that the compression or the encryption needs is not installed.
        WrongKeyError: The encryption has no key, or another one than the queue has under this id.
        ResourceError: The operating system lacks disk space, descriptors or memory.
        UnusablePathError: The operating system refuses the path.
        TypeError: ``path``, ``name``, ``codec`` or ``encryption`` has the wrong type.
        ValueError: ``compression`` is not one of its values.
        OSError: The queue cannot be read for another reason.

    When ``flush`` returns, its items are durable. A producer is for one thread at a time: a call of another thread
    during a call raises ``SessionInUseError``. A forked child cannot use it. Example::

        with Producer("queues", "orders") as producer:
            producer.enqueue(b"one")
            producer.flush()
    """

    __slots__ = (
        "__weakref__",
        "_batch",
        "_bounds",
        "_codec",
        "_directory",
        "_disk",
        "_draft",
        "_encode",
        "_envelope_bytes",
        "_forks",
        "_id",
        "_inbox",
        "_place",
        "_time_ns",
        "_versions",
    )

    _elsewhere = "pass its path, and make another Producer there"

    def __init__(
        self,
        path: StrPath,
        name: str | Unnamed | None = Unnamed.NO_NAME,
        *,
        codec: Codec[T] = BYTES,  # type: ignore[assignment] # where it is left out, T is bytes
        create: bool = True,
        compression: Compression | None = None,
        encryption: Encryption | None = None,
        trust: bool = False,
        network_disk: bool = False,
    ) -> None:
        disk = current_disk()
        super().__init__()
        self._draft: Draft | None = None
        self._batch = Batch(SPILL_BYTES)
        self._time_ns = 0
        self._disk = disk
        envelopes = Envelopes(compression, encryption)
        self._encode, self._envelope_bytes = envelopes.encoder(disk), envelopes.most_bytes
        self._forks: int | None = disk.forks()
        self._id = disk.urandom(8).hex()
        needs_name, name = isinstance(name, Unnamed), None if isinstance(name, Unnamed) else name
        self._directory = abspath(queue_directory(path, name))  # absolute: the process may change its working directory
        self._codec = checked_codec(codec, self._directory)
        need = unless_lacking(self._directory, "to find the queue's inbox", "then make the producer")
        with naming_paths(self._directory), need:
            if not network_disk:
                need_local(disk, self._directory)
            if create:
                _create(disk, self._directory, Settings(trust=trust, network_disk=network_disk), needs_name)
            self._inbox, self._place = _find_inbox(disk, self._directory)
            try:
                if not network_disk:
                    need_local(disk, self._inbox)
                if not trust and not is_shared(disk, self._inbox):
                    roots = dict.fromkeys((self._directory, dirname(self._inbox)))
                    need_trusted(disk, chain.from_iterable(believed(disk, root) for root in roots))
            except FileNotFoundError as error:
                raise explained(error, self._directory, self._inbox, None, "", "make the producer again") from error
            if encryption is not None:
                need_same_key(disk, self._directory, envelopes, encryption.key_id)
        self._versions = Versions(disk, self._directory)
        self._bounds = Bounds(disk, self._directory, self._versions.state)

    def __repr__(self) -> str:
        return f"Producer({getattr(self, '_directory', '?')!r})"  # a debugger may ask before the constructor ends

    def __enter__(self) -> Producer[T]:
        """Return the producer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the producer; warn with ``UnflushedWarning`` if the block ended without an exception and items were not
        flushed."""
        dropped = self.pending if kind is None and self._forks == self._disk.forks() else 0
        self.close()
        if dropped:
            warnings.warn(self._lost("ended", dropped), UnflushedWarning, stacklevel=2)

    def __del__(self) -> None:
        """Warn with ``UnflushedWarning`` if items were not flushed, and close the producer."""
        forks: int | None = getattr(self, "_forks", None)  # missing if the constructor raised
        if forks is not None and forks == self._disk.forks() and self.pending:
            try:
                warnings.warn(self._lost("was dropped", self.pending), UnflushedWarning, stacklevel=2)
            finally:  # also if the warning is raised as an error
                self.close()

    def _lost(self, how: str, count: int) -> str:
        """Return the text of an ``UnflushedWarning``: the producer has ended in this way, and its work is lost."""
        return (
            f"{self._directory}: a producer {how} without a flush: {many(count, 'item is', 'items are')} dropped: call "
            "flush(), or rollback() if that is intended"
        )

    @property
    def closed(self) -> bool:
        """Whether the producer was closed."""
        return self._forks is None

    @property
    def pending(self) -> int:
        """Number of items that wait for the next flush."""
        return len(self._batch.items) + (self._draft.count if self._draft is not None else 0)

    @overload
    def enqueue(self: Producer[bytes], item: Buffer) -> None: ...

    @overload
    def enqueue(self, item: T) -> None: ...

    def enqueue(self, item: Any) -> None:
        """Buffer an item for the next flush.

        The content of the item is copied during the call. When the buffered items take more than 4 MiB of memory, the
        producer spills them to a draft in the inbox.

        Args:
            item: An item that the codec can encode; with the default codec a bytes-like object. Its bytes are at most
                4 GiB - 1.

        Raises:
            TypeError: The item is not a bytes-like object, and the codec is the default one.
            CodecError: The codec cannot encode the item.
            ItemTooLargeError: The item has more than 4 GiB - 1 bytes.
            ClosedError: The producer was closed, or belongs to the parent process.
            SessionInUseError: Another call of the producer has not ended.
            QueueFullError: The items exceed the memory of the producer, and the files of the queue would exceed
                ``max_disk_bytes``.
            ResourceError: The items exceed the memory of the producer, and the operating system lacks what the spill
                needs.
            DataPathError: The items could not be spilled, since the segments are being moved.
            QueueNotFoundError: The items could not be spilled, since the queue was deleted.
            OSError: The items could not be spilled for another reason.

        After an error the item is not buffered. ``pending`` says whether the items before it still are. Nothing is
        durable before ``flush``. A producer is for one thread at a time.
        """
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            self._check()
            if self._codec is not BYTES:
                item = encode(self._codec, item, self._directory)
            data = item if type(item) is bytes else as_bytes(item)
            self._batch.add(data, self._spill)
        finally:
            self._busy = FREE

    @overload
    def enqueue_many(self: Producer[bytes], items: Iterable[Buffer]) -> None: ...

    @overload
    def enqueue_many(self, items: Iterable[T]) -> None: ...

    def enqueue_many(self, items: Iterable[Any]) -> None:
        """Buffer items for the next flush, in their order.

        The result is that of ``enqueue`` for each item, at a fraction of the cost.

        Args:
            items: The items. A list or a tuple is checked whole before any item is buffered. Of another iterable, the
                items before the one that raised may stay buffered.

        Raises:
            TypeError: ``items`` is a mapping or a single item. Or an item is not a bytes-like object, and the codec is
                the default one.
            CodecError: The codec cannot encode an item.
            ItemTooLargeError: An item has more than 4 GiB - 1 bytes.
            ClosedError: The producer was closed, or belongs to the parent process.
            SessionInUseError: Another call of the producer has not ended.
            QueueFullError: A spill would exceed ``max_disk_bytes``. The items that were buffered before stay buffered.
            ResourceError: The operating system lacks what a spill needs. The items that were buffered before stay
                buffered.
            DataPathError: The items could not be spilled, since the segments are being moved.
            QueueNotFoundError: The items could not be spilled, since the queue was deleted.
            OSError: The items could not be spilled for another reason.

        Nothing is durable before ``flush``. A producer is for one thread at a time.
        """
        for chunk in chunks(items):  # the iterable may call the producer itself
            if self._busy:
                self._begin()
            self._busy = BUSY
            try:
                self._check()
                if self._codec is not BYTES:
                    chunk = [encode(self._codec, item, self._directory) for item in chunk]  # noqa: PLW2901 - as bytes
                data = chunk if are_bytes(chunk) else list(map(as_bytes, chunk))
                self._batch.extend(data, self._spill)
            finally:
                self._busy = FREE

    def flush(self, marker: tuple[str, int] | None = None) -> bool:
        """Publish everything since the last flush as one atomic transaction.

        With a marker, work that is repeated is committed once, whichever process repeats it. When the owner adopts the
        transaction, it records that the marker's name has reached this version. If the name had reached the version
        before, the owner drops the transaction.

        Args:
            marker: A name and a version, ``(str, int)``. The name has 1 to 65,535 bytes in UTF-8, the version is from
                0 to 2**64 - 1. Default: None. Without a marker and without items, the call does nothing.

        Returns:
            False if the log, or what waits in the inbox, already shows that the marker was reached. Nothing is
            published then, and the items are dropped. True otherwise.

        Raises:
            BrokenQueueError: A sync failed. Whether the transaction is durable is unknown, and the producer is empty.
                After all other errors, nothing is published.
            QueueFullError: The files in the inbox would exceed a limit of the queue. The producer keeps its items:
                flush again.
            ResourceError: The operating system lacks disk space, descriptors or memory. The producer keeps its items:
                flush again.
            DataPathError: The segments are being moved. The producer keeps its items, unless it had spilled some.
            QueueNotFoundError: The queue was deleted.
            CorruptionError: A file in the inbox has this marker and the last possible time. The producer keeps its
                items.
            DataMissingError: The location of the segments is not there.
            InboxAccessError: This process may not publish for this queue any more.
            ClosedError: The producer was closed, or belongs to the parent process.
            SessionInUseError: Another call of the producer has not ended.
            TypeError: ``marker`` is not a tuple of a text and an int.
            ValueError: The name or the version of the marker is out of range.
            OSError: The transaction cannot be written for another reason. The producer keeps its items, unless it had
                spilled some.

        An error that drops the items leaves ``pending`` at 0. If the call is interrupted, by a ``KeyboardInterrupt``
        for instance, and the producer is empty, the transaction may have been published: a marker makes the repetition
        safe.

        On return, the transaction is durable. A producer is for one thread at a time.
        """
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            with naming_paths(self._inbox):
                return self._flush(marker)
        finally:
            self._busy = FREE

    def _flush(self, marker: tuple[str, int] | None) -> bool:
        self._check()
        self._look_again()
        behind = ""
        if marker is not None:
            marker = checked_marker(marker)
            with unless_lacking(self._inbox, "to look for the marker"):
                is_reached = self._versions.is_reached(self._inbox, *marker)
            if is_reached:
                self._roll_back()
                return False
            behind = self._versions.latest
        elif not self.pending:
            return True
        if self._draft is not None and self._batch.items:
            self._spill()
        draft, empty = self._draft, Batch(SPILL_BYTES)
        spilled_bytes = draft.length_bytes if draft is not None else 0
        load = Load(draft.count, spilled_bytes, 0) if draft is not None else self._buffered
        self._bounds.check(self._inbox, load, spilled_bytes)
        try:
            if draft is None:
                draft = self._begin_draft()
                if self._batch.items:
                    self._write(draft)
            draft.publish(marker, self._next_time_ns(behind))
        except faults(OSError) as error:
            raise self._failure(draft, error) from error
        except BaseException as interruption:
            self._fall_back(draft, interruption)
            raise
        self._draft, self._batch = None, empty  # no call, so no interruption that leaves published items here
        return True

    def rollback(self) -> None:
        """Drop what was enqueued since the last flush.

        Raises:
            SessionInUseError: Another call of the producer has not ended.
            ClosedError: The producer was made before a fork.

        The producer can be used afterwards. Nothing that was flushed is affected. A producer is for one thread at a
        time.
        """
        if self._busy:
            self._begin()
        self._busy = BUSY
        try:
            if self._forks is not None:
                self._check()  # a child must not delete what its parent has spilled
            self._roll_back()
        finally:
            self._busy = FREE

    def _in_use(self) -> SessionInUseError:
        return SessionInUseError(
            "another call of this producer has not ended: it runs in another thread, or in the code that this call "
            "interrupts; nothing was done: use one producer for each thread"
        )

    def _roll_back(self) -> None:
        shielded(self._drop_all)  # an interruption leaves no part of the items, and no draft

    def _drop_all(self) -> None:
        self._batch.clear()
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.drop()

    def close(self) -> None:
        """Drop what was not flushed, and close the producer.

        Raises:
            SessionInUseError: Another call of the producer has not ended.

        A second call does nothing. Nothing that was flushed is affected. A producer is for one thread at a time.
        """
        if self._forks == self._disk.forks():
            self.rollback()
        self._forks, self._draft = None, None  # in a forked child, the draft is the parent's

    def _check(self) -> None:
        if self._forks is None:
            raise ClosedError(f"{self._directory}: the producer is closed: make another one")
        if self._forks != self._disk.forks():
            raise ClosedError(
                f"{self._directory}: the producer belongs to the parent process: make another one in this process"
            )

    def _spill(self) -> None:
        """Write the items in memory to the draft, before the flush. Raises like ``flush``."""
        with naming_paths(self._inbox):
            self._write_ahead()

    def _write_ahead(self) -> None:
        self._look_again()
        draft = self._draft
        self._bounds.check_ahead(self._inbox, self._buffered, draft.length_bytes if draft is not None else 0)
        try:
            if draft is None:
                draft = self._draft = self._begin_draft()
            shielded(partial(self._move, draft))
        except faults(OSError) as error:
            raise self._failure(draft, error) from error

    @property
    def _buffered(self) -> Load:
        """An upper bound of the load of the items in memory."""
        return load_of(len(self._batch.items), self._batch.payload_bytes, self._envelope_bytes)

    def _move(self, draft: Draft) -> None:
        """Move the items in memory to the draft: all of them, or none if this raises."""
        self._write(draft)
        self._batch.clear()

    def _write(self, draft: Draft) -> None:
        draft.write(self._batch.items, self._batch.payload_bytes, self._disk.time_ns())

    def _fall_back(self, draft: Draft | None, error: BaseException) -> None:
        """Keep the items that can be flushed again after the draft could not be written or published; drop the
        others."""
        if draft is None:
            return
        is_ahead = draft is self._draft
        is_lack = isinstance(error, OSError) and error.errno in LACKING
        if draft.is_published or (is_ahead and not (draft.is_intact and is_lack)):
            self._roll_back()
        if not is_ahead:
            draft.drop()  # its items are still in memory

    def _failure(self, draft: Draft | None, error: OSError) -> Exception:
        """Fall back, and return the error to raise: it tells whether the items are kept or were dropped."""
        before, is_gone = self.pending, draft is not None and draft.is_gone
        self._fall_back(draft, error)
        is_kept = self.pending == before
        advice = "flush again" if is_kept else "enqueue it once more"
        raised = explained(error, self._directory, self._inbox, draft, "this flush", advice, is_gone)
        if isinstance(raised, DataPathError):
            self._inbox, self._place = _find_inbox(self._disk, self._directory)
        return error if isinstance(raised, ResourceError) and not is_kept else raised

    def _look_again(self) -> None:
        """Find the inbox again if the queue was deleted, or if the segments have left their location, which another
        queue may have taken.

        A deletion that was cut short leaves the inbox, which the next opening sweeps.
        """
        with unless_lacking(self._inbox, "to find the queue's inbox"):
            has_left = self._place != OWN and self._draft is None and not bears(self._disk, self._place)
            if has_left or not self._has_log():
                self._inbox, self._place = _find_inbox(self._disk, self._directory)

    def _has_log(self) -> bool:
        """Return whether the queue's directory has the one of a log; False also if this process may not enter it."""
        try:
            self._disk.lstat(join(self._directory, LOG_DIRECTORY))
        except OUT_OF_REACH:
            return False
        return True

    def _begin_draft(self) -> Draft:
        try:
            return Draft(self._disk, self._inbox, self._id, self._next_time_ns(), self._encode)
        except FileNotFoundError:  # the segments were moved, or the queue was deleted
            self._inbox, self._place = _find_inbox(self._disk, self._directory)
            return Draft(self._disk, self._inbox, self._id, self._next_time_ns(), self._encode)

    def _next_time_ns(self, behind: str = "") -> int:
        """Return a time above the last one, even if the clock was set back, since the times make the order.

        Raises ``CorruptionError``.
        """
        self._time_ns = time_behind(self._disk, self._inbox, behind, self._time_ns)
        return self._time_ns


def need_same_key(disk: Disk, directory: str, envelopes: Envelopes, key_id: str) -> None:
    """Raise ``WrongKeyError`` if the first or the last item of the queue has another key under this id.

    An owner could not read the items that are published with it, and would deliver none behind them. Segments that this
    user may not read tell nothing. Raises ``OSError``.
    """
    for error in wrong_keys(disk, directory, envelopes):
        if error.key_id == key_id:
            raise error


def explained(
    error: OSError,
    directory: str,
    inbox: str,
    draft: Draft | None,
    what: str,
    advice: str,
    is_gone: bool = False,
) -> OSError | PersistentQueueError:
    """Return the error to raise for an ``OSError`` of a publication in this inbox, with the ``advice`` what to do.

    ``is_gone`` says whether the file of the draft was gone from the inbox.
    """
    if draft is not None and draft.is_published:
        return BrokenQueueError(
            f"{inbox}: a sync or a rename failed ({error}): whether {what} is durable is unknown: repeat it with its "
            "marker, or see first what the queue holds"
        )
    if isinstance(error, FileNotFoundError) and is_gone:
        return QueueNotFoundError(
            f"{directory}: a file that this process has begun is gone from {inbox}, since the queue was deleted and "
            "made again, or by another program: make another producer, and enqueue the items there"
        )
    if isinstance(error, FileNotFoundError):
        found = "none, since the segments are being moved, or were moved, or the queue was deleted and made again"
        if _is_left_closed(current_disk(), directory, inbox):
            found = "a closed one, while no process moves the segments: a move may have been cut short"
            advice = f"open the queue once, then {advice}"
        return DataPathError(directory, f"an inbox at {inbox}", found, advice)
    return lacking(error, inbox, "to publish", f"then {advice}") or error


def _is_left_closed(disk: Disk, directory: str, inbox: str) -> bool:
    """Return whether the inbox is closed, as during a move, and the queue in this directory is surely not locked."""
    with suppress(OSError):
        is_closed = CLOSED_DIRECTORY in names_in(disk, dirname(inbox))
        return is_closed and is_held(disk, join(directory, LOCK_NAME)) is False
    return False


def located(path: StrPath, name: str | None) -> tuple[Disk, str, str]:
    """Return the disk, the directory of this queue, and its inbox. Raises the errors of ``_find_inbox``."""
    disk = current_disk()
    directory = abspath(queue_directory(path, name))  # absolute: the process may change its working directory
    return disk, directory, _find_inbox(disk, directory)[0]


def _find_inbox(disk: Disk, directory: str) -> tuple[str, Place]:
    """Return the inbox of the queue in this directory, and its location.

    Raises ``QueueNotFoundError``, ``DataMissingError``, ``DataPathError`` for a copy without segments of its own, and
    ``InboxAccessError`` if this process may not publish there.
    """
    try:
        if not find_generations(disk, directory):
            raise no_queue(disk, directory, "to publish to", MAKE_FIRST)
        places = read_places(disk, directory)
        need_own_location(disk, places)
        inbox = places.path(INBOX_DIRECTORY)
        try:
            publication_mode(disk, inbox)
        except FileNotFoundError:  # the segments are being moved, or their location is not recorded
            with suppress(FileNotFoundError, PermissionError):  # another user may not read the log
                need_data(disk, places)
    except InboxAccessError:
        raise
    except PermissionError as error:
        raise InboxAccessError(directory, f"this process may not enter or read it ({error.strerror})") from error
    return inbox, places.place


def is_reached(path: StrPath, name: str | None, marker: tuple[str, int]) -> bool:
    """Return whether a marker has surely reached its version: a flush with it would publish nothing.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None means the queue that lies in ``path`` itself.
        marker: The name and the version.

    Raises:
        QueueNotFoundError: There is no queue at the path.
        InvalidNameError: The name cannot be a queue's.
        DataMissingError: The location of the segments is not there.
        InboxAccessError: This process may not publish for this queue.
        TypeError: ``path``, ``name`` or ``marker`` has the wrong type.
        ValueError: The name or the version of the marker is out of range.
        OSError: The queue cannot be read for another reason.

    The answer True is durable, except from a queue that is not synced. Any number of threads and processes may call it
    at the same time.
    """
    disk, directory, inbox = located(path, name)
    return Versions(disk, directory).is_reached(inbox, *checked_marker(marker))


def reached_version(path: StrPath, name: str | None, marker: str) -> int | None:
    """Return the highest version that a marker has surely reached, by the inbox or by the log; None without any.

    Args:
        path: The directory that holds the queue.
        name: The name of the queue. None means the queue that lies in ``path`` itself.
        marker: The name of the marker.

    It raises what ``is_reached`` and ``look`` raise. The answer is durable, except from a queue that is not synced. Any
    number of threads and processes may call it at the same time.
    """
    disk, directory, inbox = located(path, name)
    return Versions(disk, directory).reached(inbox, checked_marker((marker, 0))[0])


class Versions:
    """The versions that the markers of a queue are known to have reached, for a caller that asks again and again.

    Each file in the inbox is read once, since it never changes.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._onlooker = Onlooker(disk, directory)
        self._published: dict[str, tuple[str, int] | None] = {}
        self.latest = ""
        """Last name in the inbox of a file with the marker name that was asked for. A new version must be published
        behind it, also if the clock of its producer was ahead: otherwise the owner would adopt the later version first,
        and drop the earlier one."""

    def state(self) -> State:
        """Return the state of the queue by its log. Raises the errors of ``Onlooker.look``."""
        return self._onlooker.look()[1].state

    def is_reached(self, inbox: str, name: str, version: int) -> bool:
        """Return whether a marker of this name has surely reached the version, by the files in the inbox or by the log.

        The log is read after the inbox: a file that is adopted meanwhile is in the log before it leaves the inbox. The
        answer True is durable, except from the log of a queue that is not synced. Raises ``OSError``.
        """
        known = self._known(inbox, name)
        self.latest = max(known, default="")
        if max(known.values(), default=-1) >= version:
            sync_directory(self._disk, inbox)  # its producer may have been killed before this sync
            return True
        with suppress(CorruptionError, FileNotFoundError, PermissionError):  # the owner decides at the adoption
            recovered = self._onlooker.look()[1]
            if recovered.state.markers.get(name, -1) >= version:
                if recovered.replay.synced:  # the owner may not have synced the frame yet, or was killed before
                    self._onlooker.look(durably=True)
                return True
        return False

    def reached(self, inbox: str, name: str) -> int | None:
        """Return the highest version that a marker of this name has surely reached; None if there is none.

        The answer is durable, as that of ``is_reached``. Raises what the look at the log raises, and ``OSError``.
        """
        known = self._known(inbox, name)
        version = max([self.state().markers.get(name, -1), *known.values()])
        if version < 0:
            return None
        self.is_reached(inbox, name, version)  # makes it durable
        return version

    def _known(self, inbox: str, name: str) -> dict[str, int]:
        """Return the files in the inbox that have a marker of this name, and its version in each."""
        self._read_new(inbox)
        return {published: found[1] for published, found in self._published.items() if found and found[0] == name}

    def _read_new(self, inbox: str) -> None:
        known, self._published = self._published, {}
        for published in names_in(self._disk, inbox):
            if published in known:
                self._published[published] = known[published]
            elif is_published(published):
                self._published[published] = self._marker_of(inbox, published)

    def _marker_of(self, inbox: str, published: str) -> tuple[str, int] | None:
        # If the file was adopted meanwhile, the log shows its marker. If it cannot be read, the owner sets it aside.
        unreadable = (FileNotFoundError, PermissionError, CorruptionError, UnsupportedFormatError)
        with suppress(*unreadable):
            return read_publication(self._disk, join(inbox, published)).marker
        return None


def _create(disk: Disk, directory: str, settings: Settings, needs_name: bool) -> None:
    """Make the queue, unless it exists or another process makes it meanwhile. Raises ``QueueLockedError``, and with
    ``needs_name`` ``InvalidNameError`` in a directory that holds named queues."""
    tries = 0
    while not _is_made(disk, directory):
        try:
            open_store(
                disk, directory, settings, create=True, lock_timeout_seconds=_TRY_SECONDS, needs_name=needs_name
            ).close()
        except QueueLockedError:
            tries += 1
            if tries == _CREATION_TRIES:
                raise


def _is_made(disk: Disk, directory: str) -> bool:
    """Return whether the queue exists, or may not be looked into: ``_find_inbox`` reports the latter."""
    try:
        return bool(find_generations(disk, directory))
    except PermissionError:
        return True

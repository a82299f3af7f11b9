"""Enqueueing without owning the queue: a producer in any process, beside the owner and other producers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from itertools import chain
from types import TracebackType
from typing import Any, Generic, cast, overload

from ..codecs import BYTES, Codec, T, checked_codec, encode
from ..core.encryption import Encryption, Envelopes
from ..core.items import Batch, Buffer, as_bytes, checked_marker, chunks
from ..engine.inbox_limits import Bounds, Load, load_of
from ..engine.transaction import SPILL_BYTES, Settings
from ..errors import (
    BrokenQueueError,
    ClosedError,
    CorruptionError,
    DataPathError,
    InboxAccessError,
    MemoryShortageError,
    PersistentQueueError,
    QueueLockedError,
    QueueNotFoundError,
    ResourceError,
    SessionInUseError,
    UnflushedWarning,
    UnsupportedFormatError,
    lacking,
    naming_paths,
    unless_lacking,
)
from ..recovery.opening import open_store
from ..storage.inbox_access import is_shared, publication_mode
from ..storage.layout import believed, find_generations, names_in, queue_directory
from ..storage.locations import INBOX_DIRECTORY, read_places
from ..storage.publication import Draft, is_published, read_publication, time_behind
from ..system.disk import DISK, LACKING, Disk, StrPath, abspath, dirname, join, sync_directory
from ..system.trust import need_trusted
from ..system.uncopyable import Uncopyable
from .splits import Onlooker

_CREATION_TRIES, _TRY_SECONDS = 100, 0.1


class Producer(Uncopyable, Generic[T]):
    """Puts items into a queue that another process owns, or nobody for now, without its lock.

    ``path``, ``name`` and ``codec`` are those of ``PersistentQueue``. Any number of producers, in any processes of this
    machine, work beside the owner and each other. Each flush is one atomic transaction in a file of its own, which the
    owner makes a part of the queue, without copying it: when he opens it, behind his flushes, though not more often
    than once in a millisecond, when he finds nothing else to dequeue, and at once while he waits. The flushes of one
    producer come in their order.

    What is enqueued is invisible until ``flush``; leaving the ``with`` block without one drops it, with an
    ``UnflushedWarning`` (see there). What is published counts for the limits of the queue once it is adopted; where
    they leave no room it waits. What waits is bounded by the same limits (see ``bounds``), also while nobody owns the
    queue: a flush beyond them raises ``QueueFullError``.

    ``compression`` and ``encryption`` are those of ``PersistentQueue``, for what this producer writes.

    A producer is for one thread at a time, and raises ``SessionInUseError`` in any other. It is not for a forked child.
    With ``create`` a queue that is not there is made, in its own directory. A queue that another user has prepared, or
    may write to, is refused with ``UntrustedError``, unless ``trust`` accepts it, or its user shares it with a group
    (see ``sharing``). Raises
    ``QueueNotFoundError``, ``InvalidNameError``, ``DataMissingError``, ``QueueLockedError`` (somebody has begun to make
    it, ten seconds ago), ``InboxAccessError`` (the queue is another user's and is not shared), ``ResourceError``,
    ``MissingExtraError``, ``WrongKeyError``, ``UnusablePathError`` and ``OSError``.
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
        "_id",
        "_inbox",
        "_is_busy",
        "_pid",
        "_time_ns",
        "_versions",
    )

    _elsewhere = "pass its path, and make another Producer there"

    def __init__(
        self,
        path: StrPath,
        name: str | None = None,
        *,
        codec: Codec[T] = cast(Any, BYTES),  # noqa: B008 - a constant
        create: bool = True,
        compression: str | None = None,
        encryption: Encryption | None = None,
        trust: bool = False,
        disk: Disk = DISK,
    ) -> None:
        self._is_busy = False
        """Whether a call is under way. It is tested and set without a call in between, so that of two threads, or of a
        call and what interrupts it, one alone finds the producer free."""
        self._draft: Draft | None = None
        self._batch = Batch(SPILL_BYTES)
        self._codec = checked_codec(codec)
        self._time_ns = 0
        self._disk = disk
        self._encode = Envelopes(compression, encryption).encoder(disk)
        self._pid: int | None = disk.getpid()
        self._id = disk.urandom(8).hex()
        self._directory = abspath(queue_directory(path, name))  # the process may change its directory meanwhile
        need = unless_lacking(self._directory, "to find the queue's inbox", "then make the producer")
        with naming_paths(self._directory), need:
            if create:
                _create(disk, self._directory, trust)
            self._inbox = find_inbox(disk, self._directory)
            if not trust and not is_shared(disk, self._inbox):
                roots = dict.fromkeys((self._directory, dirname(self._inbox)))
                need_trusted(disk, chain.from_iterable(believed(disk, root) for root in roots))
        self._versions = Versions(disk, self._directory)
        self._bounds = Bounds(disk, self._directory)

    def __enter__(self) -> Producer[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        dropped = self.pending if kind is None and self._pid == self._disk.getpid() else 0
        self.close()
        if dropped:
            message = f"{self._directory}: the block of a producer ended without a flush: {dropped} items are dropped"
            advice = "call flush(), or rollback() if this is meant"
            warnings.warn(f"{message}: {advice}", UnflushedWarning, stacklevel=2, source=self)

    def __del__(self) -> None:
        pid: int | None = getattr(self, "_pid", None)  # nothing is there of one that could not be made
        if pid is not None and pid == self._disk.getpid() and self.pending:
            message = "a producer was dropped with items that were not flushed"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            self.close()

    @property
    def closed(self) -> bool:
        """Whether the producer was closed."""
        return self._pid is None

    @property
    def pending(self) -> int:
        """How many items wait for the next flush."""
        return len(self._batch.items) + (self._draft.count if self._draft is not None else 0)

    @overload
    def enqueue(self: Producer[bytes], item: Buffer) -> None: ...

    @overload
    def enqueue(self, item: T) -> None: ...

    def enqueue(self, item: Any) -> None:
        """Buffer an item, any bytes-like object of up to 4 GiB - 1 bytes; its content is taken now.

        Nothing is durable before ``flush``. Raises ``TypeError``, ``ItemTooLargeError``, ``ClosedError``, and
        ``ResourceError`` or ``OSError`` where the producer outgrew the memory and could not write ahead; the item is
        then not taken.
        """
        if self._is_busy:
            raise _in_use()
        self._is_busy = True
        try:
            self._check()
            if self._codec is not BYTES:
                item = encode(self._codec, item, self._directory)
            data = item if type(item) is bytes else as_bytes(item)
            self._batch.add(data, self._spill)
        finally:
            self._is_busy = False

    @overload
    def enqueue_many(self: Producer[bytes], items: Iterable[Buffer]) -> None: ...

    @overload
    def enqueue_many(self, items: Iterable[T]) -> None: ...

    def enqueue_many(self, items: Iterable[Any]) -> None:
        """Buffer items, in order. Like ``enqueue`` for each of them, at a fraction of its cost.

        A list or a tuple is checked whole before any of it is buffered; of another iterable what came before the item
        that raised may stay buffered. Where there was no room to write ahead, what came before stays.
        """
        for chunk in chunks(items):  # which may call the producer itself
            if self._is_busy:
                raise _in_use()
            self._is_busy = True
            try:
                self._check()
                if self._codec is not BYTES:
                    chunk = [encode(self._codec, item, self._directory) for item in chunk]  # noqa: PLW2901 - as bytes
                data = chunk if set(map(type, chunk)) <= {bytes} else list(map(as_bytes, chunk))
                self._batch.extend(data, self._spill)
            finally:
                self._is_busy = False

    def flush(self, marker: tuple[str, int] | None = None) -> bool:
        """Publish everything since the last flush as one atomic transaction: durable on return.

        With ``marker=(name, version)`` the owner records that ``name`` has reached ``version`` when he adopts it, and
        drops it if ``name`` had before: work that is repeated is done once, whoever repeats it. The answer is False,
        and nothing is published, if that is known here already, from the log or from what else is published.

        Raises ``BrokenQueueError``: whether it is durable is unknown, and the producer is empty. In all other cases
        nothing is published. ``QueueFullError`` (what waits has reached a limit of the queue), ``ResourceError``,
        ``OSError``, and ``DataPathError`` (the queue's segments are being moved): the producer keeps its items, flush
        again; but where so much was enqueued that a part was written ahead, only ``QueueFullError`` and
        ``ResourceError`` leave it as it was, and ``pending`` tells that the items were dropped. Raises
        ``QueueNotFoundError``: the queue was deleted. Raises ``CorruptionError``: a file in the inbox has this marker
        and the last of all times; the producer keeps its items. Interrupted, by a ``KeyboardInterrupt`` for instance,
        an empty producer may have published it: a marker tells.
        """
        if self._is_busy:
            raise _in_use()
        self._is_busy = True
        try:
            return self._flush(marker)
        finally:
            self._is_busy = False

    def _flush(self, marker: tuple[str, int] | None) -> bool:
        self._check()
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
        draft, before = self._draft, self.pending
        self._bounds.check(self._inbox, self._load())
        try:
            if draft is None:
                draft = self._begin()
                if self._batch.items:
                    self._write(draft)
            draft.publish(marker, self._next_time_ns(behind))
        except OSError as error:
            self._fall_back(draft, error)
            raise self._explained(draft, error, self.pending == before) from error
        except BaseException as interruption:
            self._fall_back(draft, interruption)
            raise
        self._draft = None
        self._batch.clear()
        return True

    def rollback(self) -> None:
        """Drop what was enqueued since the last flush. The producer can be used on."""
        if self._is_busy:
            raise _in_use()
        self._is_busy = True
        try:
            self._roll_back()
        finally:
            self._is_busy = False

    def _roll_back(self) -> None:
        self._batch.clear()
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.drop()

    def close(self) -> None:
        """Drop what was not flushed, and end the producer. Closing again does nothing."""
        if self._pid == self._disk.getpid():
            self.rollback()
        self._pid = None

    def _check(self) -> None:
        if self._pid is None:
            raise ClosedError("the producer is closed: make another one")
        if self._pid != self._disk.getpid():
            raise ClosedError("the producer belongs to the parent of this process: make another one here")

    def _spill(self) -> None:
        """Write what is in memory to the draft, ahead of the flush. Raises like it."""
        draft = self._draft
        try:
            if draft is None:
                draft = self._draft = self._begin()
            before = draft.count
            try:
                self._write(draft)
            finally:  # all of them, or none
                self._batch.drop(draft.count - before)
        except OSError as error:
            self._fall_back(draft, error)
            raise self._explained(draft, error, self.pending > 0) from error

    def _load(self) -> Load:
        """What the next flush would publish, at most, beside what was written ahead, which is in the inbox."""
        count, payload_bytes = len(self._batch.items), self._batch.payload_bytes
        ahead = self._draft
        if ahead is not None:
            return Load(ahead.count, ahead.length_bytes, 0)
        return load_of(count, payload_bytes)

    def _write(self, draft: Draft) -> None:
        draft.write(self._batch.items, self._batch.payload_bytes, self._disk.time_ns())

    def _fall_back(self, draft: Draft | None, error: BaseException) -> None:
        """Keep what can be flushed again, where the draft could not be published or written to."""
        if draft is None:
            return
        is_ahead = draft is self._draft
        if draft.is_published or (is_ahead and not (draft.is_intact and _is_lacking(error))):
            self._roll_back()
        if not is_ahead:
            draft.drop()  # what it was made of is in memory

    def _explained(self, draft: Draft | None, error: OSError, is_kept: bool) -> Exception:
        """What to raise for it, where what was to be flushed ``is_kept``, or was dropped."""
        advice = "flush again" if is_kept else "enqueue it once more"
        raised = explained(error, self._directory, self._inbox, draft, "this flush", advice)
        if isinstance(raised, DataPathError):
            self._inbox = find_inbox(self._disk, self._directory)
        return error if isinstance(raised, ResourceError) and not is_kept else raised

    def _begin(self) -> Draft:
        try:
            return Draft(self._disk, self._inbox, self._id, self._next_time_ns(), self._encode)
        except FileNotFoundError:
            self._inbox = find_inbox(self._disk, self._directory)  # the segments were moved, or the queue deleted
            return Draft(self._disk, self._inbox, self._id, self._next_time_ns(), self._encode)

    def _next_time_ns(self, behind: str = "") -> int:
        """One above the last, also where the clock was set back: it makes the order. Raises ``CorruptionError``."""
        self._time_ns = time_behind(self._disk, self._inbox, behind, self._time_ns)
        return self._time_ns


def _in_use() -> SessionInUseError:
    return SessionInUseError(
        "the producer is in the middle of another call, of another thread or of the code that this one interrupts; "
        "nothing was done: use one producer for each thread"
    )


def explained(
    error: OSError, directory: str, inbox: str, draft: Draft | None, what: str, advice: str
) -> OSError | PersistentQueueError:
    """What to raise for an error of who publishes in this inbox, so that it tells him what he can do about it."""
    if draft is not None and draft.is_published:
        return BrokenQueueError(f"{inbox}: a sync failed ({error}): whether {what} is durable is unknown")
    if isinstance(error, FileNotFoundError):
        found = "none: the segments are being moved, or were"
        return DataPathError(directory, f"an inbox at {inbox}", found, advice)
    return lacking(error, inbox, "to publish", f"then {advice}") or error


def find_inbox(disk: Disk, directory: str) -> str:
    """The inbox of the queue in this directory. Raises ``QueueNotFoundError`` and ``DataMissingError``, and
    ``InboxAccessError`` where this process may not publish."""
    try:
        if not find_generations(disk, directory):
            raise QueueNotFoundError(f"{directory}: no queue here to produce for")
        inbox = read_places(disk, directory).path(INBOX_DIRECTORY)
        with suppress(FileNotFoundError):  # the segments are being moved
            publication_mode(disk, inbox)
    except InboxAccessError:
        raise
    except PermissionError as error:
        raise InboxAccessError(directory, f"it is not to be entered or read ({error.strerror})") from error
    return inbox


class Versions:
    """What the markers of a queue are known to have reached, for who asks again and again: what waits in the inbox is
    read once, since it never changes."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._onlooker = Onlooker(disk, directory)
        self._published: dict[str, tuple[str, int] | None] = {}
        self.latest = ""
        """The last name in the inbox of what has a marker of the name that was asked for; what is published for a
        version must come behind what was for the one before, also where another's clock was ahead: it would be passed
        over."""

    def is_reached(self, inbox: str, name: str, version: int) -> bool:
        """Whether a marker of this name has surely reached the version: by what waits in the queue's inbox, or by its
        log, which is looked at behind it: what is adopted meanwhile is in there before it leaves.

        Durably, but for the log of a queue that is not synced. Raises ``OSError``.
        """
        self._read_new(inbox)
        known = {published: found[1] for published, found in self._published.items() if found and found[0] == name}
        self.latest = max(known, default="")
        if max(known.values(), default=-1) >= version:
            sync_directory(self._disk, inbox)  # whoever published it may have been killed before he did
            return True
        with suppress(CorruptionError, FileNotFoundError, PermissionError):  # the owner will tell
            recovered = self._onlooker.look()[1]
            if recovered.state.markers.get(name, -1) >= version:
                if recovered.replay.synced:  # an owner may be about to do so, or was killed before
                    self._onlooker.look(durably=True)
                return True
        return False

    def _read_new(self, inbox: str) -> None:
        known, self._published = self._published, {}
        for published in names_in(self._disk, inbox):
            if published in known:
                self._published[published] = known[published]
            elif is_published(published):
                self._published[published] = self._marker_of(inbox, published)

    def _marker_of(self, inbox: str, published: str) -> tuple[str, int] | None:
        # Where it was adopted meanwhile the log tells; what cannot be read the owner sets aside.
        unreadable = (FileNotFoundError, PermissionError, CorruptionError, UnsupportedFormatError, MemoryShortageError)
        with suppress(*unreadable):
            return read_publication(self._disk, join(inbox, published)).marker
        return None


def _create(disk: Disk, directory: str, trust: bool) -> None:
    """Make the queue, unless it is there, or somebody else makes it meanwhile. Raises ``QueueLockedError``."""
    free, tries = nullcontext(), 0
    while not _is_made(disk, directory):
        try:
            open_store(disk, directory, Settings(trust=trust), True, _TRY_SECONDS, free, free).close()
        except QueueLockedError:
            tries += 1
            if tries == _CREATION_TRIES:
                raise


def _is_made(disk: Disk, directory: str) -> bool:
    """Whether the queue is there, or is not to be looked into, which ``find_inbox`` tells."""
    try:
        return bool(find_generations(disk, directory))
    except PermissionError:
        return True


def _is_lacking(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in LACKING

"""``PersistentQueue``: what people import."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf
from types import TracebackType
from typing import Any, Generic, cast

from .codecs import BYTES, Codec, T, checked_codec, decode_each
from .core.encryption import Encryption, Envelopes
from .core.items import checked_name
from .engine.reader import Reader
from .engine.segment_use import SegmentUse, explain
from .engine.settings import check_settings, check_some
from .engine.store import RecoveryReport, Store
from .engine.transaction import Settings, Transaction
from .errors import CorruptionError, MissingExtraError, SubscriptionNotFoundError, WrongKeyError, naming_paths
from .interprocess.snapshot_view import View
from .recovery.opening import Others, announce, open_store
from .runtime.maintenance import Compacted, Maintained, Maintenance
from .runtime.memory_budget import MemoryBudget
from .runtime.multi_queue import introduce, require_neighbours
from .runtime.open_queue import OpenQueue
from .runtime.requeue import requeue
from .runtime.retries import Delay, Retries, counts_attempts, require_fitting
from .session import Session, checked_timeout, flush_all
from .stats import Stats, look
from .storage.layout import place_path, queue_directory
from .subscription import Subscription
from .system.disk import DISK, Disk, StrPath, abspath, after_fork_in_child, basename, dirname, fspath
from .system.signal_shield import Shielded
from .system.uncopyable import Uncopyable, uncopyable_block
from .typed import TypedSession

_OPEN: weakref.WeakSet[PersistentQueue[Any]] = weakref.WeakSet()


class PersistentQueue(Uncopyable, Generic[T]):
    """A queue in a directory on disk: ACID, for one process at a time, for any number of its threads.

    Its items are bytes, or what a ``codec`` makes of bytes: a ``PersistentQueue[str]`` with ``codec=codecs.TEXT``.

    ``PersistentQueue(path, name)`` opens the queue in ``path/name``, or in ``path`` itself without a name, makes it if
    it is not there (unless ``create=False``), and takes its lock, waiting for it up to ``lock_timeout`` seconds. What
    was committed before is durable on return, whatever crashed in between; ``recovery`` tells what was found.

    - ``codec``: what makes items of bytes, and bytes of items (bytes as they are; see ``codecs``). What it refuses
      raises ``CodecError``, for that item only. The queue does not remember it.
    - ``data_path``: where a new queue gets its segments, on other media than its log: in ``data_path/name``, or in
      ``data_path`` itself without a name. The queue remembers it, as an absolute path, so that later openings need not
      say it. A place that is not there, since its disk is not mounted, is never taken for an empty one. ``move_data``
      moves the segments of a closed queue. Where a disk is mounted elsewhere than before, an opening that says so
      changes what is remembered.
    - ``sync=False``: no sync on a flush. The queue is as atomic as ever and survives the death of its process, but a
      power cut may take the latest flushes, in order from the last. Closing, and trimming the log, still sync.
    - ``segment_bytes``: the size that data files grow to (64 MiB; the first has 960 KiB, so that a small queue takes
      3 MiB in all). A block that does not fit, of one large item for instance, has a file of its own size.
    - ``memory_bytes``: what the items kept in memory may take (64 MiB), however many are queued; or the
      ``MemoryBudget`` that the queue shares with others.
    - ``inline_bytes``: groups of transactions up to this size are committed with one sync instead of two (128 KiB).
    - ``log_bytes``: the size that the transaction log starts with (1 MiB); it grows with the rate of commits.
    - ``pool_min_bytes``, ``pool_max_bytes``: how much of its drained files a queue keeps to write to again, which is
      quicker than to make new ones (nothing; at most the minimum). Maintenance makes files up to the minimum.
    - ``shared_pool``: whether all queues of ``path`` that say so keep these files together.
    - ``wipe``: whether what was dequeued durably is overwritten when its file is given back. It is in the log until
      that is trimmed. A device, or a file system that copies on write, may keep old copies.
    - ``fan_out``: whether a new queue has no consumer but its subscriptions, so that what all of them have consumed
      goes; until there is one, nothing goes. Later openings need not say it.
    - ``compact_below``: a segment of which less than this part lives is compacted by maintenance (0.3; 0: never).
    - ``compact_bytes_per_second``: what it copies at most meanwhile (16 MiB). Other queues of the process, whose turn
      it is then, wait; ``compact`` and ``maintain``, called by hand, do not.
    - ``max_items``: how many items the queue may hold, those on hold included (no limit).
    - ``max_bytes``: what their blocks may take, as ``stats().live_bytes`` counts (no limit). A transaction is taken for
      what its blocks have at most: 44 bytes for each, 4 for each item, and the items; where they are encrypted, 49
      more for each, and the id of the key.
    - ``max_disk_bytes``: what all files of the queue may take (no limit); at least five times ``log_bytes``. An eighth
      is kept, or as much as log and spare log have, for both to grow for those who dequeue. They alone may exceed it,
      where so many small items were dequeued out of order that the gaps take more than that: dequeueing goes on.
    - ``min_free_bytes``: enqueues take no more of the file system when less than this would be left free (0: off).
      Dequeueing goes on. It is looked at where files are made or grow: on the log's file system for the log, on the
      segments' for segments.
    - ``full``: ``"raise"`` raises ``QueueFullError`` where a limit leaves no room; ``"block"`` lets ``flush`` wait for
      it. Nobody waits for ``min_free_bytes``, which others have to make room for, nor for what can never fit.
    - ``trust``: whether a directory is opened that another user has prepared, or may write to (no: ``UntrustedError``).
      What belongs to this user or to root, and what a group may write to, needs no such word.
    - ``max_attempts``: how often an item is delivered, by a session of the queue or of each of its subscriptions, over
      rollbacks and restarts (no limit, and nothing is counted). One that was delivered so often, and not consumed, is
      moved to the dead letters. Each call that dequeues is then a durable write of the log.
    - ``dead_letter``: the name of the queue beside this one that gets them, which is opened and closed with this one,
      or an open queue, which several may share. Needed for ``max_attempts``; alone it is for what ``reject`` gives up.
    - ``retry_delay_seconds``: how long an item waits that was rejected, or given back, before it comes again (0); or
      what makes that of how often it was delivered, ``lambda attempts: 2.0**attempts`` for instance.
    - ``compression``: ``"zstd"`` compresses each block that it makes smaller (None; needs the extra ``compression``).
    - ``encryption``: the ``Encryption`` of each block that is written, and of those that are there (None; needs the
      extra ``encryption``).

    Maintenance goes on in one thread of the process, about a second after a commit; ``maintain`` does it at once.

    A forked child cannot use its parent's queue: all calls raise ``ClosedError`` there. Use it in a ``with`` block, or
    call ``close``; a queue that is dropped instead, with all its sessions, frees its lock with a ``ResourceWarning``,
    and the next opening recovers, as after a crash.

    Raises ``QueueLockedError``, ``UntrustedError``, ``CopiedQueueError``, ``QueueNotFoundError``, ``InvalidNameError``,
    ``DataPathError`` (the segments are not at ``data_path``, or what is there is not this queue's),
    ``DataMissingError`` (the place of the segments is not there), ``CorruptionError``, ``UnsupportedFormatError``,
    ``ResourceError``, ``InDoubtError`` (another queue knows what became of a transaction over both, and does not tell),
    ``BrokenQueueError`` where a sync fails while opening (try again), ``MissingExtraError`` and ``WrongKeyError``
    before anything was done, ``UnusablePathError`` if the operating
    system refuses a path, and ``OSError`` if it fails otherwise.
    """

    _elsewhere = "pass its path, and open a Producer there to enqueue, or a View to look"
    _open_queue: OpenQueue | None = None
    _retries: Retries | None = None
    _dead_letters: PersistentQueue[bytes] | None = None
    _owns_dead_letters = False

    def __init__(
        self,
        path: StrPath,
        name: str | None = None,
        *,
        codec: Codec[T] = cast(Any, BYTES),  # noqa: B008 - a constant
        data_path: StrPath | None = None,
        sync: bool = True,
        create: bool = True,
        lock_timeout: float = 0.0,
        segment_bytes: int = Settings.segment_bytes,
        memory_bytes: int | MemoryBudget = Settings.memory_bytes,
        inline_bytes: int = Settings.inline_bytes,
        log_bytes: int = Settings.log_bytes,
        pool_min_bytes: int = Settings.pool_min_bytes,
        pool_max_bytes: int | None = None,
        shared_pool: bool = Settings.shared_pool,
        wipe: bool = Settings.wipe,
        fan_out: bool = Settings.fan_out,
        compact_below: float = Settings.compact_below,
        compact_bytes_per_second: int = Settings.compact_bytes_per_second,
        max_items: int | None = None,
        max_bytes: int | None = None,
        max_disk_bytes: int | None = None,
        min_free_bytes: int = 0,
        full: str = "raise",
        trust: bool = False,
        max_attempts: int | None = None,
        dead_letter: str | PersistentQueue[Any] | None = None,
        retry_delay_seconds: Delay = 0.0,
        compression: str | None = None,
        encryption: Encryption | None = None,
        disk: Disk = DISK,
    ) -> None:
        self._codec, self._sessions = checked_codec(codec), weakref.WeakSet[Session[T]]()
        directory = abspath(queue_directory(path, name))  # the process may change its directory while the queue is open
        place = None if data_path is None else place_path(directory, name, data_path)
        settings = Settings(
            sync=sync,
            segment_bytes=segment_bytes,
            memory_bytes=0 if isinstance(memory_bytes, MemoryBudget) else memory_bytes,
            inline_bytes=inline_bytes,
            log_bytes=log_bytes,
            pool_min_bytes=pool_min_bytes,
            pool_max_bytes=pool_min_bytes if pool_max_bytes is None else pool_max_bytes,
            shared_pool=shared_pool,
            wipe=wipe,
            fan_out=fan_out,
            compact_below=compact_below,
            compact_bytes_per_second=compact_bytes_per_second,
            max_items=max_items,
            max_bytes=max_bytes,
            max_disk_bytes=max_disk_bytes,
            min_free_bytes=min_free_bytes,
            full=full,
            trust=trust,
            counts_attempts=counts_attempts(max_attempts, dead_letter is not None, retry_delay_seconds, sync),
        )
        check_settings(settings, lock_timeout)
        settings = replace(settings, envelopes=Envelopes(compression, encryption, threading.Lock()))
        self._path, self._name, self._disk = fspath(path), name, disk
        opening = partial(open_store, disk, directory, settings, create, 0.0, data_path=place)
        try:
            group = self._open_group(opening, lock_timeout, memory_bytes)
            self._try_key(encryption)
            if settings.counts_attempts:
                self._retries = Retries(disk, group, max_attempts, retry_delay_seconds)
                self._bury_in(dead_letter, lock_timeout=lock_timeout, compression=compression, encryption=encryption)
        except BaseException:
            self._undo_opening()
            raise

    def _undo_opening(self) -> None:
        """Close what an opening that raised has opened."""
        if self._open_queue is not None and self._open_queue.closed is None:
            self.close()

    def _open_group(
        self, opening: Callable[..., Store], lock_timeout: float, memory_bytes: int | MemoryBudget
    ) -> OpenQueue:
        """Open the store, waiting for its lock; ``_group`` is set before, so that no interruption loses an open one."""

        def open_store(mutex: threading.Lock, reading: threading.Lock, shielded: Shielded) -> Store:
            return opening(mutex, reading, others=Others(_is_sound, announce), shielded=shielded)

        with naming_paths(self._path):
            group = OpenQueue(open_store, lock_timeout, partial(setattr, self, "_open_queue"), self._disk)
        self._maintenance = Maintenance(group)
        if isinstance(memory_bytes, MemoryBudget):
            group.resize(memory_bytes, None)
        _OPEN.add(self)
        announce(group.directory, self.recovery)
        return group

    def __enter__(self) -> PersistentQueue[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        group = getattr(self, "_open_queue", None)
        if group is not None and group.closed is None:
            try:
                warnings.warn(f"{self!r} was dropped without close()", ResourceWarning, stacklevel=2, source=self)
            finally:  # also where warnings are errors
                # No writes here: a finalizer may run anywhere. The next opening recovers, as after a crash.
                group.disown("the queue was dropped without close()")

    def __repr__(self) -> str:
        return (
            f"PersistentQueue({self._path!r}, {self._name!r})" if self._open_queue is not None else "PersistentQueue(?)"
        )

    def __len__(self) -> int:
        """How many items may be dequeued now."""
        group = self._open()
        return group.look(lambda: len(group.store.reader.ready))

    def __bool__(self) -> bool:
        """A queue is true also when it is empty."""
        return True

    @property
    def path(self) -> str:
        """The path that the queue was opened with."""
        return self._path

    @property
    def name(self) -> str | None:
        """The name that the queue was opened with."""
        return self._name

    @property
    def data_path(self) -> str:
        """The directory that the segments are in ``data`` of: the queue's own, or the absolute path of another."""
        assert self._open_queue is not None
        return self._open_queue.store.places.data_root

    @property
    def identity(self) -> str:
        """Which queue this is, in hex digits: drawn when it was made, in its log for ever; only a copy has the same."""
        return self._open().store.state.identity.hex()

    @property
    def closed(self) -> bool:
        """Whether the queue was closed."""
        return self._open_queue is None or self._open_queue.closed is not None

    @property
    def recovery(self) -> RecoveryReport:
        """What opening found, and did about it."""
        assert self._open_queue is not None
        return self._open_queue.store.recovery

    def session(self, name: str | None = None) -> Session[T]:
        """A new session: enqueue and dequeue through it, ``flush`` it, use it in a ``with`` block.

        ``explain`` calls it by its name, which need not be its alone; by default it is the calling thread's.
        """
        return self._session(name, None)

    def _session(self, name: str | None, reader: Reader | None) -> Session[T]:
        group = self._open()
        name = threading.current_thread().name if name is None else name
        session: Session[T]
        if self._codec is BYTES:
            session = Session(group, name=name, queue=self, reader=reader, retries=self._retries)
        else:
            session = TypedSession(self._codec, group, name=name, queue=self, reader=reader, retries=self._retries)
        group.look(lambda: self._sessions.add(session))
        return session

    @uncopyable_block
    def transaction(self, name: str | None = None) -> Iterator[Session[T]]:
        """A session that is flushed when the block ends well, and rolled back when it raises."""
        with self.session(name) as session:
            yield session
            session.flush()

    def flush_all(
        self, sessions: Sequence[Session[T]], markers: Sequence[tuple[str, int] | None] = ()
    ) -> list[bool | Exception]:
        """Flush sessions of this queue, each with its own transaction, all in one group, so that they share one sync;
        ``markers`` has what ``Session.flush`` takes as ``marker``, for each of them, or is empty.

        For each session what its ``flush`` would have returned, durable on return, or the error it would have raised;
        one that is refused costs the others nothing. Nobody waits for room, also with ``full="block"``: what
        finds none, or would overtake others that wait for it, has a ``QueueFullError``, to be flushed again.

        One thread calls it for all sessions, which are nobody else's meanwhile. Interrupted, each of them is as after
        an interrupted ``flush``. Raises ``TypeError`` for an object that is no session. Raises ``ValueError`` for a
        session that is there twice, or of another queue, or of a transaction over several queues.
        """
        group = self._open()
        if not all(isinstance(session, Session) for session in sessions):
            raise TypeError(f"flush_all takes sessions of this queue, not {sessions!r}")
        if markers and len(markers) != len(sessions):
            raise ValueError(f"{len(markers)} markers for {len(sessions)} sessions")
        return flush_all(group, sessions, markers)

    def wait(self, timeout: float | None = None, *, stop: Callable[[], bool] = bool) -> bool:
        """Wait until there is something to dequeue, from whomever, up to ``timeout`` seconds (None: for ever); whether
        there is. Nothing is taken: somebody else may be quicker.

        For who waits on behalf of others, an event loop for instance. It ends also when ``stop()`` is true, which is
        asked before each sleep, and after each ``wake``; it must return at once and call nothing of the queue. Costs no
        CPU. Raises ``ClosedError`` and ``BrokenQueueError``, and ``SubscriptionNotFoundError`` in a queue that has no
        consumer but its subscriptions.
        """
        group = self._open()
        reader = group.store.subscriptions.plain
        if reader is None:
            raise SubscriptionNotFoundError("", self.subscriptions())
        return group.wait(reader, checked_timeout(timeout), stop)

    def wake(self) -> None:
        """Have those who are in ``wait``, of the queue or a subscription, ask whether they are to stop.

        Raises ``ReentrantUseError`` in ``stop`` itself, and in what else interrupts a call of the queue.
        """
        if self._open_queue is not None:
            self._open_queue.wake()

    def subscribe(self, name: str, start: str = "earliest") -> Subscription[T]:
        """The subscription of this name, which is made if it is not there: then it gets, with ``"earliest"``, whatever
        the queue still holds, and with ``"latest"`` what is enqueued from now on.

        Beside it the plain ``session()`` goes on as a consumer of its own, which keeps what it has not consumed; a
        queue that was made with ``fan_out`` has none. Durable on return. Raises ``ResourceError``,
        ``BrokenQueueError``, and ``ValueError`` for a name that is empty or longer than 65,535 bytes.
        """
        checked_name(name)
        if start not in {"earliest", "latest"}:
            raise ValueError(f'start must be "earliest" or "latest", got {start!r}')
        group = self._open()
        return Subscription(group, group.subscribe(name, start), self._codec, self._session)

    def subscriptions(self) -> list[str]:
        """The names of the subscriptions, the oldest first."""
        group = self._open()
        return group.look(group.store.subscriptions.names)

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription, and give back what only it has kept. Its sessions go on, without what they held.

        Durable on return. Raises ``SubscriptionNotFoundError``, ``ResourceError`` and ``BrokenQueueError``.
        """
        self._open().unsubscribe(name)

    def browse(self) -> Iterator[T]:
        """Iterate over the ready items, in order, without consuming or holding them.

        Reads as it goes, so that a queue larger than memory can be browsed. What is enqueued, dequeued or rolled back
        meanwhile may be seen or not; what is ready throughout is seen once. Raises ``CorruptionError`` like
        ``dequeue``, and ``CodecError`` in the turn of an item that cannot be decoded: the next one comes behind it.
        """
        group = self._open()
        return decode_each(self._codec, group.browse(group.store.reader), group.store.directory)

    def browse_all(self) -> Iterator[T]:
        """Like ``browse``, over what anybody has still to consume: of any subscription, on hold or not."""
        group = self._open()
        reader = group.look(group.store.subscriptions.of_all)
        return decode_each(self._codec, group.browse(reader), group.store.directory)

    def peek(self, n: int = 1) -> list[T]:
        """The first ``n`` ready items, or as many as there are, without consuming or holding them."""
        if n < 0:
            raise ValueError(f"n must not be negative, got {n}")
        return list(islice(self.browse(), n))

    def marker(self, name: str) -> int | None:
        """The version that the marker has reached (see ``Session.flush``); None if it was never set."""
        group = self._open()
        return group.look(lambda: group.store.state.markers.get(name))

    def clear(self) -> int:
        """Consume all ready items as one transaction, durable on return; how many there were.

        What sessions hold is theirs. Raises what ``Session.flush`` raises.
        """
        group = self._open()
        ready = group.store.reader.ready
        transaction = Transaction(ready)
        try:
            group.look(lambda: ready.hold(len(ready), transaction.runs))
            count = sum(run[1] for run in transaction.runs)
            if count:
                group.commit(transaction)
        except BaseException:
            group.discard(transaction)
            raise
        return count

    @property
    def dead_letters(self) -> PersistentQueue[bytes]:
        """The queue of the dead letters, each of them an envelope (see ``DeadLetter``). Raises ``ValueError`` where the
        queue was opened without ``dead_letter``."""
        if self._dead_letters is None:
            raise ValueError(f"{self!r} was opened without dead_letter=: it has no dead letters")
        return self._dead_letters

    def requeue(self, max_items: int | None = None) -> int:
        """Move up to ``max_items`` dead letters that came from this queue (None: all) to its end, out of their
        envelopes, in one transaction; how many there were. Durable on return.

        Their attempts are counted anew, and every subscription gets them. Those that another queue has put there, and
        what is no dead letter, stay, in their order. Raises ``ValueError`` without ``dead_letter``, what
        ``Session.flush`` raises, and ``CorruptionError`` like ``dequeue``; then nothing was moved.
        """
        if max_items is not None and max_items < 0:
            raise ValueError(f"max_items must not be negative, got {max_items}")
        group, dead = self._open(), self.dead_letters._open()
        for each in (group, dead):
            each.store.check()
        return requeue(group, dead, max_items)

    def trim(self) -> None:
        """Shorten the log to what is live and delete drained segments now; it is done by itself when it is worth it.

        Everything committed is durable on return, whatever ``sync`` is. Raises ``ResourceError``, ``BrokenQueueError``.
        """
        self._open().trim()

    def compact(
        self,
        *,
        below: float = Settings.compact_below,
        progress: Callable[[int], None] | None = None,
        bytes_per_second: float = inf,
    ) -> Compacted:
        """Copy what lives in sparse segments, of which less than ``below`` (a share of their bytes) lives, to new ones,
        and delete the old ones; sessions go on meanwhile.

        ``progress`` is called with the bytes copied so far, at least once for each mebibyte; it may raise, which ends
        the compaction, and must not close or compact the queue. With ``bytes_per_second`` it pauses so that it copies
        no more than that, on average. The extra room that it takes is at most one segment, and the log. On return
        everything committed is durable. Segments that are damaged, or that the device cannot read, are left as they
        are. Raises ``ResourceError`` (what was compacted so far stays so) and ``BrokenQueueError``; ``OSError`` where a
        segment cannot be written, which leaves the queue as it was.
        """
        if not 0 <= below <= 1:
            raise ValueError(f"below must be a share from 0 to 1, got {below}")
        if not bytes_per_second > 0:
            raise ValueError(f"bytes_per_second must be more than 0, got {bytes_per_second}")
        group = self._open()
        compacted = self._maintenance.compact(below, False, progress, bytes_per_second)
        group.trim()  # also where there was nothing to compact, drained segments go
        return compacted

    def maintain(self) -> Maintained:
        """Do now what is done by itself: about a second after a commit compact segments of which little lives, and fill
        the pool up to its minimum; when there was no commit for ten seconds delete drained segments, also the one that
        is written on, if it has grown, shorten the log, and let go of memory that only a busy queue needs.

        Segments whose items are about to be dequeued for the first time are not compacted, since they will be drained
        (``compact`` does not make that difference). Raises like ``compact``.
        """
        self._open()
        return self._maintenance.maintain()

    def resize(self, *, memory_bytes: int | MemoryBudget | None = None, segment_bytes: int | None = None) -> None:
        """Change settings of the open queue, for any thread and while others use it; None leaves one as it is.

        Of the items in memory, those that a smaller ``memory_bytes`` has no room for are let go before this returns.
        With a ``MemoryBudget`` the queue joins it, with a number it leaves the one that it had joined.
        ``segment_bytes`` counts from the next data file on. Nothing on disk changes; the next opening has its own
        settings. Raises ``TypeError`` and ``ValueError`` like the constructor; then nothing changed.
        """
        group = self._open()
        chosen = {"memory_bytes": memory_bytes, "segment_bytes": segment_bytes}
        check_some({name: value for name, value in chosen.items() if not isinstance(value, MemoryBudget | None)})
        group.resize(memory_bytes, segment_bytes)

    def view(self) -> View:
        """A look at the queue as it is on the disk, which outlives it, and is for any other process, too.

        Raises ``QueueNotFoundError`` if the queue's directory has another name than the one it was opened by.
        """
        store = self._open().store
        store.need_name()
        view = View(store.directory, disk=self._disk)
        view.envelopes = store.settings.envelopes or view.envelopes
        return view

    def explain(self) -> list[SegmentUse]:
        """Why each data file is there, the oldest first: how much of it lives, how many of its items are ready, held or
        damaged, and which sessions keep it, and for how long. Printed, each says it in a line.

        Costs a look at each segment and each gap, and at the files.
        """
        group = self._open()
        store = group.store

        def look() -> list[SegmentUse]:
            current, pinned = store.segments.current, store.segments.pinned
            holds = [hold for session in self._sessions if (hold := session.keeps()) is not None]
            number = current.number if current is not None else None
            return explain(store.state, store.subscriptions, number, pinned, holds)

        uses = group.look(look)
        return [use._replace(size_bytes=max(store.segments.file_bytes(use.number), 0)) for use in uses]

    def stats(self) -> Stats:
        """The queue at this moment, and what was measured since it was opened. Costs a look into its directories, and
        waits for no flush. Raises ``TooManyFilesError`` where there is no descriptor to look with."""
        return look(self._open(), self._sessions)

    def close(self) -> None:
        """End open sessions by rollback, trim and seal the log, free the lock. Closing again does nothing.

        Everything committed is durable on return, whatever ``sync`` is. Whoever waits in ``dequeue`` or ``flush`` gets
        ``ClosedError``. Raises ``ResourceError`` or ``BrokenQueueError`` when sealing fails; the queue is closed all
        the same, its lock free, and the next opening recovers. The queue of its dead letters is closed as well, if it
        was opened with this one.
        """
        try:
            if self._open_queue is not None:
                self._open_queue.close(f"{self._open_queue.store.directory}: the queue is closed: open it again")
                _OPEN.discard(self)
        finally:
            if self._owns_dead_letters and self._dead_letters is not None:
                self._dead_letters.close()

    def _bury_in(self, dead_letter: str | PersistentQueue[Any] | None, **settings: Any) -> None:
        """Have what is given up go there, to a queue that is opened with these settings if only its name is given; what
        it raises closes this one. Raises what opening raises, and ``ValueError`` for one that cannot have them."""
        if dead_letter is None:
            return
        try:
            store = self._open().store
            if dead_letter == basename(store.directory):
                raise ValueError(f"{store.directory}: its dead letters must go to another queue, not to itself")
            if isinstance(dead_letter, str):
                settings |= {"memory_bytes": 0, "wipe": store.settings.wipe, "disk": self._disk}
                settings["trust"] = store.settings.trust
                dead_letter = PersistentQueue(dirname(store.directory), dead_letter, **settings)
                self._owns_dead_letters = True
            elif not isinstance(dead_letter, PersistentQueue):
                raise TypeError(f"dead_letter must be a queue's name, or an open queue, not {dead_letter!r}")
            self._dead_letters = dead_letter
            dead = dead_letter._open()
            require_neighbours([store.directory, dead.store.directory])
            introduce([self._open(), dead])
            require_fitting(store, dead.store)
            assert self._retries is not None
            self._retries.dead = dead
        except BaseException:
            self.close()
            raise

    def _try_key(self, encryption: Encryption | None) -> None:
        """Raise ``WrongKeyError`` where the first block that is left names this key, and was encrypted with another:
        what is written with that nobody could read any more. The queue is closed then."""
        if encryption is None:
            return
        group = self._open()
        reader = group.look(group.store.subscriptions.of_all)
        try:
            with suppress(CorruptionError, MissingExtraError):  # whoever dequeues it is told
                next(reader.browse(), None)
        except WrongKeyError as error:
            if error.key_id == encryption.key_id:
                self.close()
                raise

    def _open(self) -> OpenQueue:
        assert self._open_queue is not None
        self._open_queue.check()
        self._open_queue.check_outermost()
        return self._open_queue


def _is_sound(directory: str) -> bool:
    """Whether the queue in this directory is open in this process, and not broken."""
    while True:
        with suppress(RuntimeError):  # another thread has opened one, or closed one, meanwhile
            stores = [queue._open_queue.store for queue in _OPEN if queue._open_queue is not None and not queue.closed]
            return any(store.directory == directory and store.broken is None for store in stores)


def _disown_all(*_: Any) -> None:
    # The lock lives as long as any process has its descriptor open: a child must not keep it for a dead parent.
    for queue in list(_OPEN):
        if queue._open_queue is not None:
            queue._open_queue.disown(
                "the queue belongs to the parent process: open it in the child after the parent closed it", alone=True
            )


after_fork_in_child(_disown_all)

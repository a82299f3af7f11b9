"""``PersistentQueue``: what people import."""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from types import TracebackType
from typing import Any

from .directory import DATA_DIRECTORY, LOG_DIRECTORY, POOL_DIRECTORY, names_in, queue_directory
from .disk import DISK, Disk, StrPath, after_fork_in_child, fspath, join
from .group import Compacted, Group
from .recovery import RecoveryReport
from .session import Session
from .store import Store
from .transaction import Settings, Transaction

_LOGGER = logging.getLogger("persistentqueue")
_OPEN: weakref.WeakSet[PersistentQueue] = weakref.WeakSet()


@dataclass(frozen=True)
class Stats:
    """A queue at one moment; see ``PersistentQueue.stats``."""

    ready: int
    """Items that may be dequeued now."""
    held: int
    """Items that sessions have dequeued and not flushed."""
    damaged: int
    """Items that were set aside since the queue was opened, because their block could not be read."""
    enqueued: int
    """Items enqueued since the queue was made."""
    dequeued: int
    """Items dequeued, and flushed, since the queue was made."""
    live_bytes: int
    """Bytes of the blocks that hold ready, held and damaged items; of a block that is partly consumed, by average."""
    disk_bytes: int
    """Bytes of all files of the queue: segments, log, spare log."""
    segments: int
    """Data files that are in use."""
    log_bytes: int
    """Bytes of the transaction log that are used."""
    log_capacity_bytes: int
    """Bytes of the transaction log's file."""
    generation: int
    """Of the log: how often it was trimmed since the queue was made."""
    cached_bytes: int
    """What the items in memory take; at most ``memory_bytes``."""
    groups: int
    """Groups of transactions committed since the queue was opened, each with one write of the log."""
    transactions: int
    """Transactions committed, or skipped for their marker, since the queue was opened."""
    syncs: int
    """Syncs of files and directories since the queue was opened, a durable write counting as one."""


class PersistentQueue:
    """A queue of bytes in a directory on disk: ACID, for one process at a time, for any number of its threads.

    ``PersistentQueue(path, name)`` opens the queue in ``path/name``, or in ``path`` itself without a name, makes it if
    it is not there (unless ``create=False``), and takes its lock, waiting for it up to ``lock_timeout`` seconds. What
    was committed before is durable on return, whatever crashed in between; ``recovery`` tells what was found.

    - ``sync=False``: no sync on a flush. The queue is as atomic as ever and survives the death of its process, but a
      power cut may take the latest flushes, in order from the last. Closing, and trimming the log, still sync.
    - ``segment_bytes``: the size that data files grow to (64 MiB; the first is smaller).
    - ``memory_bytes``: what the items kept in memory may take (64 MiB), however many are queued.
    - ``inline_bytes``: groups of transactions up to this size are committed with one sync instead of two (64 KiB).
    - ``log_bytes``: the size that the transaction log starts with (1 MiB); it grows with the rate of commits.

    A forked child cannot use its parent's queue: all calls raise ``ClosedError`` there. Use it in a ``with`` block, or
    call ``close``; a queue that is dropped instead frees its lock with a ``ResourceWarning``, and the next opening
    recovers, as after a crash.

    Raises ``QueueLockedError``, ``QueueNotFoundError``, ``InvalidNameError``, ``CorruptionError``,
    ``UnsupportedFormatError``, ``DiskFullError``, ``BrokenQueueError`` where a sync fails while opening (try again),
    and ``OSError`` where the directory cannot be used.
    """

    def __init__(
        self,
        path: StrPath,
        name: str | None = None,
        *,
        sync: bool = True,
        create: bool = True,
        lock_timeout: float = 0.0,
        segment_bytes: int = Settings.segment_bytes,
        memory_bytes: int = Settings.memory_bytes,
        inline_bytes: int = Settings.inline_bytes,
        log_bytes: int = Settings.log_bytes,
        disk: Disk = DISK,
    ) -> None:
        self._group: Group | None = None
        directory = queue_directory(path, name)
        if not lock_timeout >= 0:
            raise ValueError(f"lock_timeout must be at least 0 seconds, got {lock_timeout}")
        settings = Settings(sync, segment_bytes, memory_bytes, inline_bytes, log_bytes)
        for setting, least in (("segment_bytes", 1), ("memory_bytes", 0), ("inline_bytes", 0), ("log_bytes", 4096)):
            if getattr(settings, setting) < least:
                raise ValueError(f"{setting} must be at least {least}, got {getattr(settings, setting)}")
        self._path = fspath(path)
        self._name = name
        self._disk = disk

        def open_store(mutex: threading.Lock, reading: threading.Lock) -> Store:
            return Store.open(disk, directory, settings, create, lock_timeout, mutex, reading)

        self._group = Group(open_store)
        _OPEN.add(self)
        _report(directory, self.recovery)

    def __enter__(self) -> PersistentQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        group = getattr(self, "_group", None)
        if group is not None and group.closed is None:
            warnings.warn(f"{self!r} was dropped without close()", ResourceWarning, stacklevel=2, source=self)
            # No writes here: a finalizer may run anywhere. The next opening recovers, as after a crash.
            group.disown("the queue was dropped without close()")

    def __repr__(self) -> str:
        return f"PersistentQueue({self._path!r}, {self._name!r})" if self._group is not None else "PersistentQueue(?)"

    def __len__(self) -> int:
        """How many items may be dequeued now."""
        group = self._open()
        with group.mutex:
            return len(group.store.ready)

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
    def closed(self) -> bool:
        """Whether the queue was closed."""
        return self._group is None or self._group.closed is not None

    @property
    def recovery(self) -> RecoveryReport:
        """What opening found, and did about it."""
        assert self._group is not None
        return self._group.store.recovery

    def session(self) -> Session:
        """A new session: enqueue and dequeue through it, ``flush`` it, use it in a ``with`` block."""
        return Session(self._open())

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that is flushed when the block ends well, and rolled back when it raises."""
        with self.session() as session:
            yield session
            session.flush()

    def browse(self) -> Iterator[bytes]:
        """Iterate over the ready items, in order, without consuming or holding them.

        Reads as it goes, so that a queue larger than memory can be browsed. What is enqueued, dequeued or rolled back
        meanwhile may be seen or not; what is ready throughout is seen once. Raises ``CorruptionError`` like
        ``dequeue``.
        """
        return chain.from_iterable(self._open().browse())

    def peek(self, n: int = 1) -> list[bytes]:
        """The first ``n`` ready items, or as many as there are, without consuming or holding them."""
        if n < 0:
            raise ValueError(f"n must not be negative, got {n}")
        return list(islice(self.browse(), n))

    def marker(self, name: str) -> int | None:
        """The version that the marker has reached (see ``Session.flush``); None if it was never set."""
        group = self._open()
        with group.mutex:
            return group.store.state.markers.get(name)

    def clear(self) -> int:
        """Consume all ready items as one transaction, durable on return; how many there were.

        What sessions hold is theirs. Raises what ``Session.flush`` raises.
        """
        group = self._open()
        transaction = Transaction()
        with group.mutex:
            transaction.runs = group.store.ready.hold(group.store.state.next_sequence)
        count = sum(run[1] for run in transaction.runs)
        if count:
            try:
                group.commit(transaction)
            except BaseException:
                group.discard(transaction)
                raise
        return count

    def trim(self) -> None:
        """Shorten the log to what is live and delete drained segments now; it is done by itself when it is worth it.

        Everything committed is durable on return, whatever ``sync`` is. Raises ``DiskFullError``, ``BrokenQueueError``.
        """
        self._open().trim()

    def compact(self, *, below: float = 0.3, progress: Callable[[int], None] | None = None) -> Compacted:
        """Copy what lives in sparse segments, of which less than ``below`` (a share of their bytes) lives, to new ones,
        and delete the old ones; sessions go on meanwhile.

        ``progress`` is called with the bytes copied so far, at least once for each mebibyte; it may raise, which ends
        the compaction, and must not close or compact the queue. The extra room that it takes is at most one segment,
        and the log. On return everything committed is durable. Damaged segments are left
        as they are. Raises ``DiskFullError`` (what was compacted so far stays so) and ``BrokenQueueError``; ``OSError``
        where a segment cannot be written, which leaves the queue as it was.
        """
        if not 0 <= below <= 1:
            raise ValueError(f"below must be a share from 0 to 1, got {below}")
        group = self._open()
        compacted = group.compact(below, False, progress)
        group.trim()
        return compacted

    def stats(self) -> Stats:
        """The queue at this moment. Costs a look into its directories."""
        group = self._open()
        store = group.store
        disk_bytes = 0
        for part in (LOG_DIRECTORY, DATA_DIRECTORY, POOL_DIRECTORY):
            for name in names_in(self._disk, store.directory, part):
                try:
                    disk_bytes += self._disk.lstat(join(store.directory, part, name)).st_size
                except FileNotFoundError:  # retired meanwhile
                    continue
        with group.mutex:
            log_bytes, log_capacity_bytes = store.log_bytes()
            return Stats(
                ready=len(store.ready),
                held=store.ready.held,
                damaged=len(store.ready.damaged),
                enqueued=store.state.next_sequence,
                dequeued=store.state.consumed_count,
                live_bytes=store.state.live_bytes,
                disk_bytes=disk_bytes,
                segments=len(store.state.segments),
                log_bytes=log_bytes,
                log_capacity_bytes=log_capacity_bytes,
                generation=store.generation,
                cached_bytes=store.pages.cost_bytes,
                groups=group.groups,
                transactions=group.transactions,
                syncs=store.syncs,
            )

    def close(self) -> None:
        """End open sessions by rollback, trim and seal the log, free the lock. Closing again does nothing.

        Everything committed is durable on return, whatever ``sync`` is. Whoever waits in ``dequeue`` gets
        ``ClosedError``. Raises ``DiskFullError`` or ``BrokenQueueError`` when sealing fails; the queue is closed all
        the same, its lock free, and the next opening recovers.
        """
        if self._group is not None:
            self._group.close("the queue is closed: open it again")
            _OPEN.discard(self)

    def _open(self) -> Group:
        assert self._group is not None
        self._group.check()
        return self._group


def _report(directory: str, report: RecoveryReport) -> None:
    if report.clean:
        return
    _LOGGER.info("%s: recovered %s", directory, report)
    if report.torn_bytes or report.missing_bytes or report.lost_transactions or report.set_aside:
        _LOGGER.warning(
            "%s: the log ended in up to %d torn bytes and %d missing ones, %d transactions without data; set aside: %s",
            directory,
            report.torn_bytes,
            report.missing_bytes,
            report.lost_transactions,
            ", ".join(report.set_aside) or "nothing",
        )


def _disown_all(*_: Any) -> None:
    # The lock lives as long as any process has its descriptor open: a child must not keep it for a dead parent.
    for queue in list(_OPEN):
        if queue._group is not None:
            queue._group.disown(
                "the queue belongs to the parent process: open it in the child after the parent closed it"
            )


after_fork_in_child(_disown_all)

"""``PersistentQueue``: opens a queue in a directory, makes its sessions and subscriptions, and manages its files."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from .codecs import BYTES, Codec, T, checked_codec, decode_each
from .core.encryption import Envelopes
from .core.items import (
    checked_count,
    checked_name,
    checked_session_name,
    checked_stop,
    checked_text,
    checked_timeout,
    checked_truth,
)
from .engine.context import Settings
from .engine.reader import Reader
from .engine.segment_use import SegmentUse
from .engine.store import RecoveryReport
from .errors import UnflushedWarning
from .interprocess.snapshot_view import View, view_of
from .interrupts.members import Members
from .options import (
    OptionArguments,
    Options,
    Start,
    Unnamed,
    check_numbers,
    checked_compaction,
    chosen_options,
    for_dead_letters,
    settings_of,
)
from .pickling import IN_CHILD, Uncopyable
from .recovery.opening import announce, open_store
from .runtime.inspection import Stats
from .runtime.maintenance import Compacted, Maintained, Maintenance
from .runtime.memory_budget import MemoryBudget
from .runtime.multi_queue import introduce, require_neighbours
from .runtime.open_queue import OpenQueue, OpenStore
from .runtime.retries import Retries, requeue, require_fitting
from .runtime.session_state import SessionParts, flush_all, held_seconds, hold_of, losses
from .session import Session
from .storage.layout import place_path, queue_directory
from .subscription import Consumer, Subscription
from .system.disk import StrPath, abspath, after_fork_in_child, basename, current_disk, dirname, fspath
from .system.path_errors import naming_paths
from .system.progress import Progress, metering
from .typed import TypedSession

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .serving.connections import Connection
    from .serving.server import Server

_OPEN: Members[PersistentQueue[Any]] = Members()


class PersistentQueue(Uncopyable, Consumer[Session[T]], Generic[T]):
    """An embedded, persistent FIFO queue in a directory on disk, with ACID transactions.

    One process at a time owns the queue; any number of its threads may use it::

        with PersistentQueue("queues", "orders") as queue:
            with queue.transaction() as session:
                session.enqueue(b"one")  # durable when the block has ended
            with queue.transaction() as session:
                item = session.dequeue()  # consumed when the block has ended

    The constructor takes the lock of the queue, recovers what a crash has left, and opens the queue. It makes a queue
    that does not exist. On return, everything that was committed before is durable; see ``recovery``.

    Args:
        path: Directory of the queue, or, if ``name`` is given, the directory above it. Missing directories are made.
            A leading ``~`` is not expanded: pass ``Path("~/queues").expanduser()``.
        name: Name of the queue: 1 to 64 of ``A-Z a-z 0-9 . _ -``, not beginning with a dot. Default: no name.
            Then a new queue is refused if ``path`` holds named queues; ``name=None`` makes it also there.
        codec: Converts items to bytes and back (see ``codecs``). Default ``codecs.BYTES``: items are bytes, unchanged.
            The queue does not store the codec: pass it at every opening.
        data_path: Directory for the segments of a new queue, on other media than the log: ``data_path/name``, or
            ``data_path`` itself without a name. Default None: the queue's own directory, or the recorded location.
            The queue records it as an absolute path. If its disk is mounted elsewhere now, pass the new path.
            A missing location is never taken for an empty one. A copied queue needs the path of its own segments, once.
            ``move_data`` moves the segments of a closed queue.
        sync: Whether each flush syncs before it returns. Default True. If False, a flush survives the death of the
            process. A power cut may then take the latest flushes, from the last one backwards. Closing and trims sync.
        create: Whether a queue that does not exist is made. Default True. That of ``dead_letter`` is made in any case.
        lock_timeout: Seconds to wait for the lock if another owner holds it. Default 0.0: no wait. At least 0.
        grace_seconds: Longest time that ``close`` of a served queue waits for sessions of other processes that hold
            items: they can flush them, and get no others. Then the next owner holds them. Default 1.0; at least 0.
        segment_bytes: Size in bytes that a data file grows to. Default 64 MiB; at least 1. The first file has at most
            960 KiB, so that a small queue takes 3 MiB in all. A larger block gets a file of its own size.
        memory_bytes: Upper bound in bytes for the items in memory, however many are queued. Default 64 MiB; at least
            0. Or a ``MemoryBudget`` that several queues share.
        inline_bytes: Size in bytes up to which a group is committed with one sync instead of two. Default 128 KiB; at
            least 0. With ``max_disk_bytes``, at most a sixteenth of it and 45 % of ``log_bytes`` take effect.
        log_bytes: Initial size of the log in bytes. Default 1 MiB; at least 4096. It grows with the rate of commits: up
            to 4 MiB, or up to four segments, but at most 64 MiB.
        pool_min_bytes: Bytes of empty files that maintenance makes ahead for new segments. Default 0; at least 0.
        pool_max_bytes: Bytes of drained files that the queue keeps and writes to again, which is quicker than to make
            new ones. Default None: equal to ``pool_min_bytes``; at least that.
        shared_pool: Whether all queues beside each other that set this share one pool. Default False.
        wipe: Whether a drained file is overwritten before it is deleted or used again. Default False. Consumed items
            stay in the log until the next trim. A device, or a copy-on-write file system, may keep old copies.
        fan_out: Whether a new queue has no consumers except its subscriptions. Default False. Then an item is deleted
            when all of them have consumed it; without any, nothing is deleted. The queue records this.
        compact_below: Share of live bytes below which maintenance compacts a segment. Default 0.3; 0 (never) to 1.
        compact_bytes_per_second: Upper bound in bytes per second for the copying of maintenance. Default 16 MiB; at
            least 1. The maintenance of other queues waits meanwhile. ``compact`` and ``maintain`` ignore it.
        max_items: Upper bound for the number of items, held ones included. Default None: no limit; at least 1.
        max_bytes: Upper bound in bytes for the blocks, as ``stats().live_bytes`` counts. Default None: no limit; at
            least 1. Admission uses an upper bound: 44 bytes per block, 4 bytes per item, and the payload.
            Encryption adds 49 bytes and the key id per block.
        max_disk_bytes: Upper bound in bytes for all files of the queue. Default None: no limit; at least five times
            ``log_bytes``. An eighth of it is reserved for the log and its spare, or their size if that is larger.
            So consumers can go on. Log and spare alone may exceed the limit: when many small items are consumed out of
            order, and the gaps need more.
        keep_limits: Whether the limits above are those that the last opening set, for tools. Default False.
        min_free_bytes: Bytes of the file system that enqueues leave free. Default 0: off; at least 0. It is checked
            when a file is made or grows: for the log on its file system, for segments on theirs. Dequeuing goes on.
        full: The behaviour of ``flush`` if a limit leaves no room: ``"raise"`` (default) raises ``QueueFullError``,
            ``"block"`` waits for room. ``min_free_bytes``, and what can never fit, raise at once in both cases.
        trust: Whether to open a directory that another user has prepared or may write to. Default False. This user,
            root, and a group with the right to write are trusted in any case.
        network_disk: Whether to open a queue on a network file system. Default False: two owners could write there.
        max_attempts: Deliveries of an item, per subscription, over rollbacks and restarts, before it becomes a dead
            letter. Default None: no limit; at least 1. Needs ``dead_letter``. With this, ``dead_letter`` or
            ``retry_delay_seconds``, each call that dequeues writes to the log, as durably as a flush.
        dead_letter: Queue for dead letters: the name of a queue beside this one, which is opened and closed with this
            one, or an open queue, which several queues may share. Default None. Needs ``sync=True``. Without
            ``max_attempts``, it gets only what ``Session.reject`` gives up.
        retry_delay_seconds: Seconds until an item is ready again after it was rejected or released, at most ten years.
            Default 0.0. Or a callable from deliveries to seconds, such as ``lambda attempts: 2.0**attempts``.
        compression: ``"zstd"`` compresses each block that becomes smaller. Default None. Needs the extra
            ``compression``.
        encryption: The ``Encryption`` of new and existing blocks. Default None. Needs the extra ``encryption``.
        options: The options above as one value. A keyword argument has precedence over its field. Default None.
        progress: How to report the bytes of the log, and of published files, that the opening handles (see
            ``Progress``). Default None: not at all. If the callable raises, the opening ends as by a crash: the lock is
            free, and the next opening does the same work. The callable cannot open the queue: its lock is held.
        serve: Whether a thread serves the queue to other processes, which ``connect``. Such a queue stays open until
            ``close``, also if the program drops it. Default False.

    Raises:
        TypeError, ValueError: A setting has the wrong type or range, or contradicts another one or the queue.
        QueueLockedError: Another owner holds the lock, longer than ``lock_timeout``.
        QueueNotFoundError: There is no queue, and ``create`` is False.
        InvalidNameError: ``name`` is not valid, or is used by a queue without a name, such as ``log``. Or no name was
            passed, and ``path`` holds named queues.
        UntrustedError: Another user has prepared the directory, or may write to it, and ``trust`` is False.
        NetworkDiskError: The directory is on a network file system, and ``network_disk`` is False.
        CopiedQueueError: The queue has the identity of a queue beside it: one is a copy of the other.
        ForeignQueueError: There is no queue, and the directory has files of persist-queue or queuelib.
        DataPathError: The segments are not at ``data_path``, or something else is there.
        DataMissingError: The recorded location of the segments is missing, or the record of it is.
        CorruptionError, UnsupportedFormatError: A file is damaged, or was written by a newer version.
        InDoubtError: Another queue stores the outcome of a transaction over both, and it cannot be read.
        MissingExtraError, WrongKeyError: A package or the key is missing, or the key is wrong: nothing was written.
        ResourceError, BrokenQueueError: Disk, memory or file descriptors are short, or a sync failed. Try again.
        UnusablePathError, OSError: The operating system refuses a path, or fails otherwise.

    Maintenance runs in one thread of the process, about a second after a commit; ``maintain`` runs it at once. Close
    the queue with a ``with`` block or ``close``. A queue that is dropped instead, with all its sessions, frees its lock
    with a ``ResourceWarning``. The next opening then recovers, as after a crash. After ``close``, and in a forked
    child, methods raise ``ClosedError``. A re-entrant call raises ``ReentrantUseError``.
    """

    _elsewhere = "pass its path, and open a Producer there to enqueue, or a View to look; or pass a queue of connect()"
    _in_child = IN_CHILD
    _open_queue: OpenQueue | None = None
    _retries: Retries | None = None
    _dead_letters: PersistentQueue[bytes] | None = None
    _owns_dead_letters = False
    _server: Server | None = None

    def __init__(
        self,
        path: StrPath,
        name: str | Unnamed | None = Unnamed.NO_NAME,
        *,
        codec: Codec[T] = BYTES,  # type: ignore[assignment] # where it is left out, T is bytes
        options: Options | None = None,
        progress: Progress = None,
        serve: bool = False,
        **arguments: Unpack[OptionArguments],
    ) -> None:
        needs_name, name = isinstance(name, Unnamed), None if isinstance(name, Unnamed) else name
        directory = abspath(queue_directory(path, name))  # the working directory may change while the queue is open
        self._codec, self._sessions = checked_codec(codec, directory), Members[Session[T]]()
        chosen, serve = chosen_options(options, arguments), checked_truth("serve", serve)
        if chosen.dead_letter == basename(directory):  # before anything is made
            raise ValueError(f"{directory}: its dead letters must go to another queue, not to itself")
        place = None if chosen.data_path is None else place_path(directory, name, chosen.data_path)
        settings = settings_of(chosen)
        self._path, self._name, self._disk = fspath(path), name, current_disk()
        opening = partial(
            open_store,
            self._disk,
            directory,
            settings,
            create=chosen.create,
            needs_name=needs_name,
            data_path=place,
            is_sound=_is_sound,
        )
        try:
            with metering(progress, f"open {basename(directory)}") as meter:
                opening = partial(opening, meter=meter)
                open_queue = self._open_store(opening, chosen.lock_timeout, chosen.memory_bytes)
            self._open().check_key(chosen.encryption)
            if settings.counts_attempts:
                self._retries = Retries(self._disk, open_queue, chosen.max_attempts, chosen.retry_delay_seconds)
                self._bury_in(chosen, serve)
            if serve:
                self._serve(chosen)
        except BaseException:
            if not self.closed:
                self.close()
            raise

    def _open_store(self, opening: OpenStore, lock_timeout: float, memory_bytes: int | MemoryBudget) -> OpenQueue:
        """Open the store, and wait for its lock up to ``lock_timeout`` seconds.

        ``OpenQueue`` sets ``_open_queue`` before it opens the store, so that an interruption cannot lose an open store.
        """
        with naming_paths(self._path):
            open_queue = OpenQueue(opening, lock_timeout, partial(setattr, self, "_open_queue"), self._disk)
        self._maintenance = Maintenance(open_queue)
        if isinstance(memory_bytes, MemoryBudget):
            open_queue.resize(memory_bytes, None)
        _OPEN.add(self)
        announce(open_queue.directory, self.recovery)
        return open_queue

    def __enter__(self) -> PersistentQueue[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = self._close()
        for loss in lost if kind is None else ():  # else the error tells it
            warnings.warn(loss, UnflushedWarning, stacklevel=2)

    def __del__(self) -> None:
        open_queue = getattr(self, "_open_queue", None)
        if open_queue is not None and open_queue.closed is None:
            try:
                warnings.warn(f"{self!r} was dropped without close()", ResourceWarning, stacklevel=2, source=self)
            finally:  # also if the warning is raised as an error
                # No writes here: a finalizer may run at any point. The next opening recovers, as after a crash.
                open_queue.disown(f"{open_queue.directory}: the queue was dropped without close()")

    def __repr__(self) -> str:
        if self._open_queue is None:
            return "PersistentQueue(?)"
        made = f"PersistentQueue({self._path!r}, {self._name!r})"
        if self._open_queue.closed is not None:
            return f"<closed {made}>"
        return made if self._open_queue.is_usable else f"<broken {made}>"

    def __len__(self) -> int:
        """Return the number of ready items.

        Raises:
            SubscriptionNotFoundError: The queue was made with ``fan_out``.
        """
        open_queue = self._open()
        return open_queue.look(open_queue.need_plain().ready.__len__)

    def __bool__(self) -> bool:
        """Return True, also for an empty queue."""
        return True

    @property
    def path(self) -> str:
        """Path that the queue was opened with."""
        return self._path

    @property
    def name(self) -> str | None:
        """Name that the queue was opened with; None without a name."""
        return self._name

    @property
    def data_path(self) -> str:
        """Directory that has the segments in its ``data``: the queue's own, or the absolute path of another one."""
        assert self._open_queue is not None
        return self._open_queue.data_root

    @property
    def identity(self) -> str:
        """Identity of the queue in hex digits: drawn when the queue was made, and shared only by copies."""
        return self._open().identity.hex()

    @property
    def closed(self) -> bool:
        """True if the queue is closed."""
        return self._open_queue is None or self._open_queue.closed is not None

    @property
    def recovery(self) -> RecoveryReport:
        """Report of what the opening found and recovered."""
        assert self._open_queue is not None
        return self._open_queue.recovery

    def session(self, name: str | None = None) -> Session[T]:
        """Return a new session for enqueues and dequeues.

        Use it in a ``with`` block, in one thread at a time. Nothing is durable before ``Session.flush``.

        Args:
            name: Name of the session in ``explain``; need not be unique. Default None: the name of the calling thread.

        Raises:
            TypeError, ClosedError: ``name`` is no text, or the queue is closed.
        """
        return self._session(name, None)

    def _serve(self, options: Options) -> None:
        from .serving.calls import make_server  # noqa: PLC0415  late: other queues need no sockets

        session = partial(self._session, make=Session)  # the worker has the codec: its items are bytes here
        self._server = make_server(self, self._open(), session, options)
        self._server.start()  # if it fails, or is interrupted, the close finds the server

    def _session(
        self, name: str | None, reader: Reader | None, make: Callable[[SessionParts], Session[T]] | None = None
    ) -> Session[T]:
        open_queue = self._open()
        name = threading.current_thread().name if name is None else checked_session_name(name)
        make = make or (Session if self._codec is BYTES else partial(TypedSession, self._codec))
        session = make(SessionParts(open_queue, name, reader, self._retries, self))
        open_queue.look(lambda: self._sessions.add(session))
        return session

    def flush_all(
        self, sessions: Sequence[Session[T]], markers: Sequence[tuple[str, int] | None] = ()
    ) -> list[bool | Exception]:
        """Flush several sessions of this queue in one group, so that they share one sync.

        Each session has a transaction of its own: if one is refused, the others are committed. No session waits for
        room, also with ``full="block"``. A session that finds no room, or would overtake one that waits, gets
        ``QueueFullError``.

        Args:
            sessions: Different sessions of this queue. Only the calling thread may use them meanwhile.
            markers: For each session, the ``marker`` of ``Session.flush`` or None. Default: empty, no markers.

        Returns:
            For each session, what its ``flush`` would return, durable on return, or the exception that it would raise.
            After an interruption, each session is as after an interrupted ``flush``.

        Raises:
            TypeError: An object is not a session.
            ValueError: A session occurs twice, belongs to another queue or to a transaction over several queues, or the
                number of markers is wrong.
            SessionInUseError: A session is in another call.
            ClosedError: The queue is closed.
        """
        open_queue = self._open()
        if not all(isinstance(session, Session) for session in sessions):
            raise TypeError(f"flush_all takes sessions of this queue, not {sessions!r}")
        if markers and len(markers) != len(sessions):
            raise ValueError(f"flush_all needs a marker or None for each session: {len(sessions)}, not {len(markers)}")
        return flush_all(open_queue, sessions, markers)

    def wait(self, timeout: float | None = None, *, stop: Callable[[], bool] = bool) -> bool:
        """Wait until an item is ready, without holding it.

        For code that waits on behalf of others, such as an event loop. Any thread may call it; waiting costs no CPU.
        Another consumer may take the item first. Items of other processes end the wait, too.

        Args:
            timeout: Seconds to wait; at least 0. Default None: no limit.
            stop: Called before each sleep and after each ``wake``; the wait ends when it returns True. It must return
                at once and must not call the queue. Default ``bool``: never stop.

        Returns:
            True if an item is ready, or the next dequeue raises an error. False after a timeout or a stop.

        Raises:
            TypeError, ValueError: ``timeout`` or ``stop`` is not valid.
            ClosedError, BrokenQueueError: The queue is closed or broken.
            SubscriptionNotFoundError: The queue was made with ``fan_out``.
        """
        open_queue = self._open()
        return open_queue.wait(open_queue.need_plain(), checked_timeout(timeout), checked_stop(stop))

    def wake(self) -> None:
        """Make each ``wait`` of the queue and its subscriptions call its ``stop`` again.

        Raises:
            ReentrantUseError: It was called inside ``stop``, or inside another call of the queue in the same thread.
        """
        if self._open_queue is not None:
            self._open_queue.wake()

    def subscribe(self, name: str, start: Start = "earliest") -> Subscription[T]:
        """Return the subscription of this name; make it if it does not exist.

        A new subscription is durable on return. The plain ``session()`` remains a consumer of its own, unless the queue
        was made with ``fan_out``.

        Args:
            name: Name of the subscription, 1 to 65,535 bytes in UTF-8.
            start: Where a new subscription begins: ``"earliest"`` (default) with the oldest item that the queue still
                has, ``"latest"`` with the next item that is enqueued.

        Raises:
            TypeError, ValueError: ``name`` or ``start`` is not valid.
            ResourceError: Nothing was changed. Call again after the system has room.
            BrokenQueueError, ClosedError: The queue is broken or closed.
        """
        checked_name(name)
        if start not in ("earliest", "latest"):
            raise ValueError(f'start must be "earliest" or "latest", got {start!r}')
        open_queue = self._open()
        return Subscription(open_queue, open_queue.subscribe(name, start), self._codec, self._session)

    def subscriptions(self) -> list[str]:
        """Return the names of the subscriptions, oldest first."""
        return self._open().subscription_names()

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription, and the items that only it still needed; durable on return.

        Its open sessions no longer hold their items, and can still enqueue.

        Args:
            name: Name of the subscription.

        Raises:
            TypeError, ValueError, SubscriptionNotFoundError: ``name`` is not valid, or no subscription has it.
            ResourceError: Nothing was changed. Call again after the system has room.
            BrokenQueueError, ClosedError: The queue is broken or closed.
        """
        self._open().unsubscribe(checked_name(name))

    def browse(self, *, progress: Progress = None) -> Iterator[T]:
        """Return an iterator over the ready items, in order, without holding or consuming them.

        It reads in steps, so that a queue larger than memory can be browsed. An item that is ready throughout is
        returned once. An item that is enqueued, dequeued or released meanwhile may or may not be returned.

        Args:
            progress: How to report the number of items that were returned (see ``Progress``). Default None: not at all.
                The iterator reports between two items, and holds no lock: the callable may use the queue. If it raises,
                the iteration ends, and nothing was changed.

        Raises:
            TypeError, MissingExtraError: ``progress`` has another type than ``Progress``, or is True without tqdm.
            SubscriptionNotFoundError: The queue was made with ``fan_out``.
            CodecError: In the turn of an item that cannot be decoded. The iterator then goes on with the next item.
            CorruptionError, MemoryShortageError: A block cannot be read. Its items are set aside: browse again.
            WrongKeyError, MissingExtraError: A block cannot be opened for now. Its items stay ready.
            ClosedError, BrokenQueueError: The queue is closed or broken.
        """
        open_queue = self._open()
        return decode_each(self._codec, open_queue.browse(open_queue.need_plain(), progress), open_queue.directory)

    def browse_all(self, *, progress: Progress = None) -> Iterator[T]:
        """Return an iterator over the items that any subscription has not consumed, held ones included.

        Its rules are those of ``browse``, except that a queue that was made with ``fan_out`` can be browsed, too.

        Args:
            progress: How to report the number of items that were returned, as in ``browse``. Default None: not at all.
        """
        open_queue = self._open()
        return decode_each(self._codec, open_queue.browse(open_queue.of_all(), progress), open_queue.directory)

    def peek(self, n: int = 1) -> list[T]:
        """Return the first ready items, in order, without holding or consuming them.

        Args:
            n: Upper bound for the number of items; at least 0. Default 1.

        Returns:
            Up to ``n`` items; an empty list if none is ready.

        Raises:
            TypeError, ValueError: ``n`` is no whole number, or negative.
            PersistentQueueError: An item cannot be read; see ``browse``.
        """
        return list(islice(self.browse(), checked_count("n", n)))

    def marker(self, name: str) -> int | None:
        """Return the version that a marker has reached (see ``Session.flush``), or None if it was never set.

        Args:
            name: Name of the marker, without its version. Anything but text raises ``TypeError``.
        """
        return self._open().marker(checked_text("a marker's name", name))

    def clear(self) -> int:
        """Consume all ready items in one transaction, durable on return.

        Items that sessions hold are not consumed.

        Returns:
            The number of consumed items.

        Raises:
            SubscriptionNotFoundError: The queue was made with ``fan_out``.
            ResourceError: Nothing was consumed. Call again after the system has room.
            BrokenQueueError: It is unknown whether the items were consumed. Open the queue again.
        """
        return self._open().consume_ready()

    @property
    def dead_letters(self) -> PersistentQueue[bytes]:
        """The dead-letter queue. Its items are envelopes (see ``DeadLetter``).

        Raises:
            ValueError: The queue was opened without ``dead_letter``.
        """
        if self._dead_letters is None:
            raise ValueError(f"{self!r} has no dead letters: open it again with dead_letter=")
        return self._dead_letters

    def requeue(self, max_items: int | None = None) -> int:
        """Move dead letters that came from this queue back to its end, in one transaction, durable on return.

        The items leave their envelopes, their deliveries are counted from 0, and every subscription gets them. Dead
        letters of other queues, and items that are not dead letters, stay in their order.

        Args:
            max_items: Upper bound for the number of moved items; at least 0. Default None: no limit.

        Returns:
            The number of moved items.

        Raises:
            ValueError: ``max_items`` is negative, or the queue was opened without ``dead_letter``.
            CorruptionError: A dead letter cannot be read. Nothing was moved.
            ResourceError, QueueFullError: There is no room. Nothing was moved.
            BrokenQueueError: A sync failed. It is unknown whether the items were moved.
        """
        most = None if max_items is None else checked_count("max_items", max_items)
        open_queue, dead = self._open(), self.dead_letters._open()
        for each in (open_queue, dead):
            each.check_usable()
        return requeue(open_queue, dead, most)

    def sync(self) -> None:
        """Wait until everything flushed before this call is durable, also by ``Session.flush(wait=False)``.

        With ``sync=False`` it trims as well, which makes everything durable that was committed.

        Raises:
            PrecedingFlushError: A flush with ``wait=False`` failed, and its session was not rolled back since. All
                other flushes before this call have ended.
            ReentrantUseError: Called by a callback of a ticket.
            ResourceError, BrokenQueueError, ClosedError: See ``trim``.
        """
        open_queue = self._open()
        open_queue.settle()
        if not open_queue.settings.sync:
            open_queue.trim()

    def trim(self) -> None:
        """Begin a new generation of the log, and delete drained segments, now instead of when it is worth it.

        Everything committed is durable on return, whatever ``sync`` is.

        Raises:
            ResourceError: The system has no room for the new generation. Nothing was changed.
            BrokenQueueError, ClosedError: The queue is broken or closed.
        """
        self._open().trim()

    def compact(
        self,
        *,
        below: float = Settings.compact_below,
        progress: Progress = None,
        bytes_per_second: float = inf,
    ) -> Compacted:
        """Copy the live items of sparse segments to new segments, and delete the old ones.

        Sessions go on meanwhile. It takes room for at most one segment, and the log. On return, everything committed is
        durable. A segment stays if it is damaged, unreadable, or encrypted with a key that this queue was not given.

        Args:
            below: Share of live bytes below which a segment is sparse, 0 to 1. Default 0.3.
            progress: How to report the bytes that were copied (see ``Progress``). Default None: not at all. If the
                callable raises, the compaction ends. Segments that were compacted before stay compacted, and the others
                are as they were. The callable may use the queue. If it compacts, maintains or closes the queue, it gets
                ``ReentrantUseError``.
            bytes_per_second: Upper bound for the average rate of copying; more than 0. Default ``inf``.

        Returns:
            The number of segments that were emptied, and the bytes copied.

        Raises:
            ValueError: ``below`` or ``bytes_per_second`` is out of range.
            TypeError: ``below`` or ``bytes_per_second`` is no number.
            TypeError, MissingExtraError: ``progress`` has another type than ``Progress``, or is True without tqdm.
            ResourceError: The disk, or a limit on it, has no room. Segments that were compacted before stay compacted.
            OSError: A segment cannot be written. The queue is unchanged.
            BrokenQueueError, ClosedError: The queue is broken, or was closed meanwhile.
        """
        share, rate = checked_compaction(below, bytes_per_second)
        self._open()
        return self._maintenance.compact_now(share, progress, rate)

    def maintain(self) -> Maintained:
        """Run now what maintenance does by itself, and return what it did.

        About a second after a commit, maintenance compacts sparse segments, and fills the pool to ``pool_min_bytes``.
        After ten seconds without a commit, it also deletes drained segments, shortens the log, and frees memory that
        only a busy queue needs. The segment that is written to is deleted as well if it is drained and has grown.

        A segment with items that are about to be dequeued for the first time is not compacted: it will be drained soon.
        ``compact`` makes no such exception.

        Returns:
            The number of segments that were emptied, the bytes copied, and the bytes of the files made for the pool.

        Raises:
            ResourceError, BrokenQueueError, ClosedError, OSError: On the conditions that ``compact`` names.
        """
        self._open()
        return self._maintenance.maintain()

    def resize(self, *, memory_bytes: int | MemoryBudget | None = None, segment_bytes: int | None = None) -> None:
        """Change settings of the open queue, for all its threads.

        Nothing on disk changes: the next opening has its own settings.

        Args:
            memory_bytes: Upper bound in bytes for the items in memory, at least 0; items beyond it are dropped from
                memory before this returns. Or a ``MemoryBudget`` that the queue joins; a number leaves the budget that
                it has. Default None: no change.
            segment_bytes: Size in bytes of data files, from the next one on; at least 1. Default None: no change.

        Raises:
            TypeError, ValueError: A setting has the wrong type or range. Nothing was changed.
            ClosedError: The queue is closed.
        """
        open_queue = self._open()
        chosen = {"memory_bytes": memory_bytes, "segment_bytes": segment_bytes}
        check_numbers({name: value for name, value in chosen.items() if value is not None})
        open_queue.resize(memory_bytes, segment_bytes)

    def view(self) -> View:
        """Return a view of the queue as it is on disk.

        The view remains usable after ``close``. Other processes can make one, too.

        Raises:
            QueueNotFoundError: The directory of the queue was renamed after the opening.
            ClosedError: The queue is closed.
        """
        open_queue = self._open()
        open_queue.need_name()
        return view_of(self._disk, open_queue.directory, open_queue.settings.envelopes or Envelopes())

    def explain(self) -> list[SegmentUse]:
        """Return why each data file exists, oldest first.

        It visits each segment, each gap and each data file. Each result also prints as one line.

        Returns:
            For each segment, its live bytes, its ready, held and damaged items, and the sessions that keep it.
        """
        return self._open().explain(lambda: [hold for each in self._sessions if (hold := hold_of(each)) is not None])

    def connections(self) -> list[Connection]:
        """Return the sessions of other processes that are connected, with what each one holds, and for how long.

        It waits for no process. The sessions of this process are not in the list.

        Returns:
            The connections, the longest hold first, at most 1,000; an empty list if the queue does not serve.

        Raises:
            ClosedError: The queue is closed.
        """
        self._open()
        return self._server.connections() if self._server is not None else []

    def stats(self) -> Stats:
        """Return the state of the queue at this moment, and what was measured since it was opened.

        It lists the directories of the queue, and waits for no flush.

        Raises:
            TooManyFilesError: No file descriptor is free to list a directory.
            ClosedError: The queue is closed.
        """
        return self._open().stats(lambda: [held_seconds(each) for each in self._sessions if not each.closed])

    def close(self) -> None:
        """Roll back open sessions, trim and seal the log, and free the lock.

        Everything committed is durable on return, whatever ``sync`` is. A second call waits for the first, and does
        nothing. A ``dequeue`` or ``flush`` that waits raises ``ClosedError``. A dead-letter queue opened by name is
        closed, too. Items that a session has not flushed cause an ``UnflushedWarning``. Other processes have
        ``grace_seconds`` to flush what they hold; a signal handler that raises ends this time. For any thread.

        Raises:
            ResourceError, BrokenQueueError: The log could not be sealed. The queue is closed, its lock is free, and the
                next opening recovers.
            ReentrantUseError: The thread is in another call of the queue, which stays open: a signal handler made this.
        """
        for loss in self._close():
            warnings.warn(loss, UnflushedWarning, stacklevel=2)

    def _close(self) -> list[str]:
        """Close the queue; return the texts of the warnings."""
        if (open_queue := self._open_queue) is None:
            return []
        open_queue.check_closable()  # first: a close that is refused must leave the sessions of workers alone
        lost: list[str] = []
        try:
            if self._server is not None:
                self._server.stop()
        finally:  # Ctrl-C ends the grace of workers, and no more
            try:
                reason = f"{open_queue.directory}: the queue is closed: open it again"
                open_queue.close(reason, lambda: lost.extend(losses(self._sessions)))
                _OPEN.discard(self)
            finally:
                if self._owns_dead_letters and self._dead_letters is not None:
                    lost += self._dead_letters._close()
        return lost

    def _bury_in(self, options: Options, serve: bool) -> None:
        """Set the dead-letter queue; open it if the options have its name. On an error, close this queue.

        Raises what the opening raises, and ``ValueError`` if that queue cannot take the dead letters of this one.
        """
        dead_letter = options.dead_letter
        if dead_letter is None:
            return
        try:
            open_queue = self._open()
            if isinstance(dead_letter, str):
                parent, name, shared = dirname(open_queue.directory), dead_letter, for_dead_letters(options)
                dead_letter = PersistentQueue.__new__(PersistentQueue)
                self._dead_letters, self._owns_dead_letters = dead_letter, True  # first: no interruption must lose it
                PersistentQueue.__init__(dead_letter, parent, name, options=shared, serve=serve)
            elif not isinstance(dead_letter, PersistentQueue):
                raise TypeError(f"dead_letter must be a queue's name, or an open queue, not {dead_letter!r}")
            self._dead_letters, dead = dead_letter, dead_letter._open()
            require_neighbours(open_queue.directory, dead.directory)
            introduce([open_queue, dead])
            require_fitting(open_queue, dead)
            assert self._retries is not None
            self._retries.dead = dead
        except BaseException:
            self.close()
            raise

    def _open(self) -> OpenQueue:
        assert self._open_queue is not None
        self._open_queue.check()
        self._open_queue.check_outermost()
        return self._open_queue


def _is_sound(directory: str) -> bool:
    """Return whether this process has the queue in this directory open and not broken."""
    open_queues = [each for queue in _OPEN if (each := queue._open_queue) is not None]
    return any(each.is_usable and each.directory == directory for each in open_queues)


def _disown_all(*_: Any) -> None:
    # The lock is held as long as any process has its descriptor open: a child must not hold it for a dead parent.
    for queue in _OPEN:
        if (open_queue := queue._open_queue) is not None:
            open_queue.disown(f"{open_queue.directory}: {queue._in_child}", alone=True)


after_fork_in_child(_disown_all)

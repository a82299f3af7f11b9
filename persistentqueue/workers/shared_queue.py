"""``SharedQueue``: a queue that any number of processes use, while one of them owns it and serves the others."""

from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from math import inf
from types import TracebackType
from typing import Any, Generic, NamedTuple, cast

from ..codecs import BYTES, Codec, T, decode_each
from ..core.items import (
    checked_count,
    checked_name,
    checked_session_name,
    checked_stop,
    checked_text,
    checked_timeout,
    checked_truth,
)
from ..engine.context import Settings
from ..engine.segment_use import SegmentUse
from ..errors import (
    ClosedError,
    PersistentQueueError,
    SubscriptionNotFoundError,
    UnflushedWarning,
)
from ..interprocess.snapshot_view import View
from ..interrupts.locks import RLock
from ..interrupts.members import Members
from ..options import Options, Start, Unnamed, check_numbers, checked_compaction, for_dead_letters
from ..runtime.inspection import Stats
from ..runtime.maintenance import Compacted, Maintained
from ..runtime.memory_budget import MemoryBudget
from ..serving.connections import Connection
from ..serving.errors import decode_error
from ..serving.protocol import (
    Browse,
    Failed,
    Take,
    Taken,
)
from ..session import Session
from ..storage.layout import HOLDS_NAME
from ..subscription import Consumer
from ..system.byte_locks import LockFile
from ..system.disk import StrPath, after_fork_in_child, dirname
from ..system.path_errors import suppress
from .common_owner import gather
from .link import Attached, Link, LinkLostError, milliseconds
from .owner import Owner, Serving
from .presence import Presence
from .worker_session import WorkerSession

_OPEN: Members[SharedQueue[Any]] = Members()
_LONGEST_SECONDS = 1e9
"""Longest ``hold_seconds``: the owner takes no longer one."""


class Sizes(NamedTuple):
    """Numbers of items of a shared queue, or of a subscription of it."""

    unheld: int
    """Items that no session of any process holds: the ready ones, and those that wait for their retry."""
    unconsumed: int
    """Items that are not consumed: the unheld ones, and those that sessions hold."""


class SharedQueue(Consumer[Session[T] | WorkerSession[T]], Generic[T]):
    """A queue that any number of processes use; ``connect`` makes it.

    It has the interface of ``PersistentQueue``, whichever process owns the queue, except ``flush_all``, ``recovery``
    and the parameter ``progress``. Where this process is the owner, its
    sessions are those of ``PersistentQueue``. Elsewhere each session is a ``WorkerSession``.

    If the owner ends, the next call finds another one, or makes this process the owner. Calls that only waited go on.
    If the queue is gone, or another one has its path, such a call raises ``QueueNotFoundError``, even if the queue was
    made again: connect again.

    A shared queue can be pickled, for ``multiprocessing`` and ``concurrent.futures``: it becomes a connection in the
    other process. It can be used after a fork. Sessions belong to their process.

    Durability: as ``PersistentQueue`` describes. Threads: for any number of threads. A call in the middle of another
    call in the same thread, by a signal handler for example, may raise ``ReentrantUseError``.
    """

    def __init__(
        self,
        path: StrPath,
        name: str | Unnamed | None,
        codec: Codec[T],
        options: Options,
        serve: Serving,
        hold_seconds: float | None,
        prefetch: bool = False,
        has_local_sessions: bool = True,
    ) -> None:
        if serve not in {"auto", "never"}:
            raise ValueError(f'serve must be "auto" or "never", got {serve!r}')
        hold_seconds = _checked_hold(hold_seconds)
        if checked_truth("prefetch", prefetch) and hold_seconds is not None:
            raise ValueError(
                "prefetch and hold_seconds exclude each other: the time of an item would run out before its dequeue"
            )
        self._hold_seconds, self._prefetch = hold_seconds, prefetch
        self._has_local_sessions = has_local_sessions
        """Whether the sessions are those of ``PersistentQueue`` while this process owns the queue."""
        self._owner = Owner(path, name, codec, options, serve)
        self._codec = self._owner.codec
        self._begin_anew()
        _OPEN.add(self)

    def _begin_anew(self) -> None:
        self._sessions = Members[WorkerSession[T]]()
        self._dead_letters: SharedQueue[bytes] | None = None
        self._guard = RLock()
        """Held while the dead-letter queue is connected."""
        self._waiting: set[Link] = set()
        """Connections of threads in ``wait``."""
        self._locks = LockFile(self._owner.directory, HOLDS_NAME)
        """Locks of the sessions: see ``presence``."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes the queue again in another process, where it connects at its first use."""
        settings = (self._codec, self._owner.options, self._owner.serve, self._hold_seconds, self._prefetch)
        return type(self), (self._owner.path, self._owner.name, *settings, self._has_local_sessions)

    def __enter__(self) -> SharedQueue[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = self._close()
        for loss in lost if kind is None else ():  # else the error tells it
            warnings.warn(loss, UnflushedWarning, stacklevel=2)

    def __repr__(self) -> str:
        role = "closed " if self._owner.closed else "owned " if self.owns else ""
        return f"<{role}shared queue in {self._owner.directory!r}>"

    def __len__(self) -> int:
        """Return the number of ready items."""
        return int(self._owner.call("__len__"))

    def __bool__(self) -> bool:
        """Return True, also for an empty queue."""
        return True

    @property
    def path(self) -> str:
        """Path that the queue was connected with, as an absolute one."""
        return self._owner.path

    @property
    def name(self) -> str | None:
        """Name of the queue; None without a name."""
        return None if isinstance(self._owner.name, Unnamed) else self._owner.name

    @property
    def closed(self) -> bool:
        """True if ``close`` was called."""
        return self._owner.closed

    @property
    def owns(self) -> bool:
        """True if this process owns the queue now."""
        return self._owner.owns

    def open(self) -> None:
        """Find the owner of the queue, or own it. On an error, close the queue. Raises the errors of ``connect``."""
        try:
            self._owner.reach(self._owner.calling())[0].close()
            if not self.owns:
                gather(self._owner.disk, self._owner.directory)
        except BaseException:
            self.close()
            raise

    # --- sessions ----------------------------------------------------------------------------------------------------

    def session(self, name: str | None = None) -> Session[T] | WorkerSession[T]:
        """Return a new session for enqueues and dequeues, as ``PersistentQueue.session`` does.

        Args:
            name: Name of the session in ``explain``. Default None: the name of the calling thread.

        Raises:
            ClosedError: The queue is closed.
        """
        return self._session(name, "")

    def _session(self, name: str | None, subscription: str) -> Session[T] | WorkerSession[T]:
        self._owner.check()
        here = self._owner.here() if self._has_local_sessions else None
        if here is not None:
            try:
                return here.subscription(subscription).session(name) if subscription else here.session(name)
            except ClosedError:  # another thread gives the queue up, unless it closes it
                self._owner.check()
        return self._session_at_owner(name, subscription)

    def _session_at_owner(self, name: str | None, subscription: str) -> WorkerSession[T]:
        """Return a session that reaches the owner through the socket, also if this process is the owner."""
        name = threading.current_thread().name if name is None else checked_session_name(name)
        hello = {"name": name, "subscription": subscription, "hold_seconds": self._hold_seconds}
        owner, attach = self._owner, partial(self._attach, hello)
        connection = owner.new_id()
        presence = Presence(self._locks, connection)
        session = WorkerSession(
            owner.directory, name, self._codec, connection, attach, presence, owner.disk.monotonic, self._prefetch
        )
        self._sessions.add(session)
        return session

    def _attach(self, hello: dict[str, Any], connection: bytes, stop: Callable[[], bool]) -> Attached:
        link, facts = self._owner.reach({**hello, "connection": connection.hex()}, stop=stop)
        return Attached(link, bool(facts.get("counts")), int(facts.get("kept", 0)))

    def subscribe(self, name: str, start: Start = "earliest") -> SharedSubscription[T]:
        """Return the subscription of this name; make it if it does not exist. See ``PersistentQueue.subscribe``.

        Args:
            name: Name of the subscription, 1 to 65,535 bytes in UTF-8.
            start: Where a new subscription begins: ``"earliest"`` (default) or ``"latest"``.
        """
        self._owner.call("subscribe", name=checked_name(name), start=start)
        return SharedSubscription(self, name)

    def handle(self) -> SharedQueue[T]:
        """Return the queue for another process: pickled, or inherited by a fork, it becomes a connection there.

        Nothing becomes durable by this call. For any thread.
        """
        again: SharedQueue[T] = self.__reduce__()[0](*self.__reduce__()[1])
        return again

    # --- other calls -------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """Identity of the queue in hex digits; see ``PersistentQueue.identity``."""
        return str(self._owner.fact("identity"))

    @property
    def data_path(self) -> str:
        """Directory that has the segments in its ``data``; see ``PersistentQueue.data_path``."""
        return str(self._owner.fact("data_path"))

    def subscriptions(self) -> list[str]:
        """Return the names of the subscriptions, oldest first."""
        return list(self._owner.call("subscriptions"))

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription; see ``PersistentQueue.unsubscribe``.

        Args:
            name: Name of the subscription.
        """
        self._owner.call("unsubscribe", name=checked_text("a subscription's name", name))

    def marker(self, name: str) -> int | None:
        """Return the version that a marker has reached; None if it was never set.

        Args:
            name: Name of the marker.
        """
        return cast("int | None", self._owner.call("marker", name=checked_text("a marker's name", name)))

    def clear(self) -> int:
        """Consume all ready items in one transaction, durable on return, and return their number."""
        return int(self._owner.call("clear"))

    def requeue(self, max_items: int | None = None) -> int:
        """Move dead letters back to this queue, durable on return; see ``PersistentQueue.requeue``.

        Args:
            max_items: Upper bound for the number of moved items; at least 0. Default None: no limit.
        """
        most = None if max_items is None else checked_count("max_items", max_items)
        return int(self._owner.call("requeue", max_items=most))

    def sync(self) -> None:
        """Wait until everything flushed before this call is durable; see ``PersistentQueue.sync``."""
        self._owner.call("sync")

    def trim(self) -> None:
        """Begin a new generation of the log, and delete drained segments; see ``PersistentQueue.trim``."""
        self._owner.call("trim")

    def compact(self, *, below: float = Settings.compact_below, bytes_per_second: float = inf) -> Compacted:
        """Copy the live items of sparse segments to new segments; see ``PersistentQueue.compact``.

        Args:
            below: Share of live bytes below which a segment is sparse, 0 to 1. Default 0.3.
            bytes_per_second: Upper bound for the average rate of copying; more than 0. Default ``inf``.
        """
        share, rate = checked_compaction(below, bytes_per_second)
        return cast(Compacted, self._owner.call("compact", below=share, bytes_per_second=rate))

    def maintain(self) -> Maintained:
        """Run now what maintenance does by itself; see ``PersistentQueue.maintain``."""
        return cast(Maintained, self._owner.call("maintain"))

    def resize(self, *, memory_bytes: int | None = None, segment_bytes: int | None = None) -> None:
        """Change settings of the open queue at its owner; see ``PersistentQueue.resize``.

        Args:
            memory_bytes: Upper bound in bytes for the items in memory; at least 0. Default None: no change.
            segment_bytes: Size in bytes of data files, from the next one on; at least 1. Default None: no change.

        Raises:
            TypeError, ValueError: A setting has the wrong type or range. A queue can join a ``MemoryBudget`` only in
                the process that owns it.
        """
        budget: object = memory_bytes
        if isinstance(budget, MemoryBudget) and self._owner.here() is None:
            raise TypeError("memory_bytes must be a whole number here: a MemoryBudget is for the process of the owner")
        chosen = {"memory_bytes": memory_bytes, "segment_bytes": segment_bytes}
        check_numbers({name: value for name, value in chosen.items() if value is not None})
        self._owner.call("resize", memory_bytes=memory_bytes, segment_bytes=segment_bytes)

    def explain(self) -> list[SegmentUse]:
        """Return why each data file exists; see ``PersistentQueue.explain``."""
        return list(self._owner.call("explain"))

    def connections(self) -> list[Connection]:
        """Return the sessions of all processes but the owner; see ``PersistentQueue.connections``."""
        return list(self._owner.call("connections"))

    def stats(self) -> Stats:
        """Return the state of the queue at its owner; see ``PersistentQueue.stats``."""
        return cast(Stats, self._owner.call("stats"))

    def view(self) -> View:
        """Return a view of the queue as it is on disk; see ``PersistentQueue.view``."""
        return self._owner.view()

    def browse(self) -> Iterator[T]:
        """Return an iterator over the ready items, in order, without holding them; see ``PersistentQueue.browse``."""
        return self._browse("", 0)

    def browse_all(self) -> Iterator[T]:
        """Return an iterator over the items that any subscription has not consumed, held ones included."""
        return self._browse("", 1)

    def _browse(self, subscription: str, which: int) -> Iterator[T]:
        here = self._owner.here()
        if here is not None:
            if subscription:
                return here.subscription(subscription).browse()
            return here.browse_all() if which else here.browse()
        return decode_each(self._codec, self._batches(subscription, which), self._owner.directory)

    def _batches(self, subscription: str, which: int) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the items in batches. Raises ``ClosedError`` if the owner ends meanwhile."""
        hello = {"name": "browse", "connection": self._owner.new_id().hex(), "subscription": subscription}
        link, _ = self._owner.reach(hello)
        try:
            while True:
                answer = link.call(Browse(which))
                link.end()
                if isinstance(answer, Failed):
                    raise decode_error(answer.fields)
                if not (isinstance(answer, Taken) and answer.items):
                    return
                yield 0, list(answer.items)
        except LinkLostError:
            raise ClosedError(
                f"{self._owner.directory}: the owner has ended while the queue was browsed: browse again"
            ) from None
        finally:
            link.close()

    def peek(self, n: int = 1) -> list[T]:
        """Return the first ready items, in order, without holding or consuming them; see ``PersistentQueue.peek``.

        Args:
            n: Upper bound for the number of items; at least 0. Default 1.
        """
        most = checked_count("n", n)
        if not most:
            self.sizes()  # an iterator of which nothing is taken asks no owner, which may refuse the call
        return list(islice(self.browse(), most))

    def sizes(self) -> Sizes:
        """Return the numbers of items that no session holds, and of those that are not consumed.

        Both count for all processes, at one moment. Nothing becomes durable by this call. For any thread.
        """
        return self._sizes("")

    def _sizes(self, subscription: str) -> Sizes:
        self._owner.check()
        return Sizes(*self._owner.call_owner("sizes_of", name=subscription))

    def wait(self, timeout: float | None = None, *, stop: Callable[[], bool] = bool) -> bool:
        """Wait until an item is ready, without holding it; return False if there is none in time.

        Args:
            timeout: Seconds to wait; at least 0. Default None: no limit.
            stop: Called before each sleep and after each ``wake``; the wait ends when it returns True. It must return
                at once and must not call the queue. Default ``bool``: never stop.

        Raises:
            ClosedError: If the queue is closed, also during the wait.
        """
        return self._wait("", checked_timeout(timeout), checked_stop(stop))

    def wake(self) -> None:
        """Make each ``wait`` of this process call its ``stop`` again. For any thread."""
        for link in self._waiting.copy():
            link.wait_no_more()

    def _wait(self, subscription: str, timeout: float | None, stop: Callable[[], bool]) -> bool:
        self._owner.check()
        hello = {"name": "wait", "connection": self._owner.new_id().hex(), "subscription": subscription}
        now = self._owner.disk.monotonic
        deadline = None if timeout is None else now() + timeout
        while True:
            seconds = None if deadline is None else max(deadline - now(), 0.0)
            try:
                link, _ = self._owner.reach(hello, stop=stop)
            except PersistentQueueError:
                if stop():
                    return False
                raise
            try:
                self._waiting.add(link)
                if stop():
                    return False
                self._owner.check()
                answer = link.call(Take(0, milliseconds(seconds)))
            except LinkLostError:
                continue
            finally:
                self._waiting.discard(link)
                link.close()
            if isinstance(answer, Failed):
                raise decode_error(answer.fields)
            if isinstance(answer, Taken) and answer.more:
                return True
            if seconds is not None and now() >= cast(float, deadline):
                return False

    @property
    def dead_letters(self) -> SharedQueue[bytes]:
        """The dead-letter queue. Its items are envelopes (see ``DeadLetter``). It is closed with this queue.

        Raises:
            ValueError: ``connect`` got no name of a dead-letter queue.
            ClosedError: The queue is closed.
        """
        with self._guard:
            self._owner.check()
            if self._dead_letters is None or self._dead_letters.closed:
                queue = self.make_dead_letters()
                queue.open()
                self._dead_letters = queue
                if self._owner.closed:  # meanwhile, by another thread
                    queue.close()
            return self._dead_letters

    def make_dead_letters(self) -> SharedQueue[bytes]:
        """Return a dead-letter queue that connects at its first call, for a caller that closes it.

        Raises what ``dead_letters`` raises. Nothing becomes durable by this call. For any thread.
        """
        self._owner.check()
        name = self._owner.options.dead_letter
        if name is None or not isinstance(name, str):
            raise ValueError(f"{self!r} has no dead letters that it knows by name: connect again with dead_letter=")
        shared, parent = for_dead_letters(self._owner.options), dirname(self._owner.directory)
        return SharedQueue(parent, name, BYTES, shared, "never", None, has_local_sessions=self._has_local_sessions)

    def close(self) -> None:
        """Roll back the sessions of this process. If it owns the queue, close it: another process takes over.

        Everything committed is durable on return. Any thread may call it; closing again does nothing, but waits for
        another thread that is closing the queue. A ``flush`` of another thread that has begun tells its outcome, but
        waits for no more room. It raises ``OutcomeUnknownError`` if the owner, which may be this process, ends before
        it has answered. A session with enqueued items that it has not flushed causes an ``UnflushedWarning``. If this
        process owns the queue, the sessions of other processes have ``grace_seconds`` to flush what they hold.

        Raises:
            ResourceError, BrokenQueueError: The log could not be sealed. The next owner recovers.
            ReentrantUseError: This process owns the queue, and the thread is in another call of it: nothing is closed.
        """
        for loss in self._close():
            warnings.warn(loss, UnflushedWarning, stacklevel=2)

    def _close(self) -> list[str]:
        """Close the queue; return the texts of the warnings."""
        self._owner.check_closable()
        self._owner.refuse()
        _OPEN.discard(self)
        lost = self._end_sessions(self._owner.closed_text())
        self._locks = LockFile(self._owner.directory, HOLDS_NAME)  # the last session that ends closes the other one
        for link in self._waiting.copy():
            link.cut()
        self._owner.end_control()
        dead_letters, self._dead_letters = self._dead_letters, None
        try:
            if dead_letters is not None:
                lost += dead_letters._close()
        finally:  # this process must not stay the owner
            lost += self._owner.close_owner()
        return lost

    def _end_sessions(self, why_closed: str | None = None, *, only_lossy: bool = False) -> list[str]:
        """End the sessions, whose later calls say ``why_closed``; return the texts of the warnings.

        With ``only_lossy``, the sessions without a warning go on.
        """
        ending = [each for each in self._sessions if not only_lossy or each.loss() is not None]
        # First: an item that the end of one session releases must not come to a call of another one.
        lost = [text for session in ending if (text := session.refuse(why_closed)) is not None]
        for session in ending:
            session.end()
        return lost

    def _end_with_process(self) -> None:
        """Close the queue if this process owns it. Daemon threads that look for an owner get no error: they wait on.

        Without another thread of the program, no session can flush any more: nothing waits for what they hold.
        """
        program = [each for each in threading.enumerate() if not each.name.startswith("persistentqueue-")]
        lost = self._end_sessions(self._owner.closed_text(), only_lossy=program != [threading.current_thread()])
        for loss in lost + self._owner.end_with_process():
            warnings.warn(loss, UnflushedWarning, stacklevel=3)  # behind ``_close_owned``: no line of the package


class SharedSubscription(Consumer[Session[T] | WorkerSession[T]], Generic[T]):
    """One named consumer of a shared queue; ``SharedQueue.subscribe`` makes it. See ``Subscription``.

    Durability and threads: as ``Subscription`` describes.
    """

    _what = "subscription"

    def __init__(self, queue: SharedQueue[T], name: str) -> None:
        self._queue = queue
        self.name = name
        """Name of the subscription."""

    def __repr__(self) -> str:
        return f"<shared subscription {self.name!r}>"

    def __len__(self) -> int:
        """Return the number of items that the subscription can dequeue now; 0 if it was removed."""
        try:
            return int(self._queue._owner.call_owner("subscription_length", name=self.name))
        except SubscriptionNotFoundError:
            return 0

    def __bool__(self) -> bool:
        """Return True, also if there is nothing to dequeue."""
        return True

    @property
    def removed(self) -> bool:
        """True if the subscription was removed."""
        return self.name not in self._queue.subscriptions()

    def session(self, name: str | None = None) -> Session[T] | WorkerSession[T]:
        """Return a new session that dequeues for this subscription; see ``Subscription.session``.

        Args:
            name: Name of the session in ``explain``. Default None: the name of the calling thread.

        If the subscription was removed, this call or the first call of the session raises
        ``SubscriptionNotFoundError``.
        """
        return self._queue._session(name, self.name)

    def sizes(self) -> Sizes:
        """Return the numbers of items that no session holds, and of those that the subscription has not consumed."""
        return self._queue._sizes(self.name)

    def wait(self, timeout: float | None = None, *, stop: Callable[[], bool] = bool) -> bool:
        """Wait until there is something to dequeue, without taking it; see ``Subscription.wait``.

        Args:
            timeout: Seconds to wait; at least 0. Default None: no limit.
            stop: Called before each sleep and after each ``wake`` of the queue; the wait ends when it returns True.
                Default ``bool``: never stop.
        """
        try:
            return self._queue._wait(self.name, checked_timeout(timeout), checked_stop(stop))
        except SubscriptionNotFoundError:  # the next dequeue raises it
            return True

    def browse(self) -> Iterator[T]:
        """Return an iterator over the items that can be dequeued, in order; see ``Subscription.browse``."""
        return self._queue._browse(self.name, 0)


def session_at_owner(consumer: SharedQueue[T] | SharedSubscription[T], name: str | None) -> WorkerSession[T]:
    """Return a session that reaches the owner through the socket, also if this process is the owner."""
    if isinstance(consumer, SharedSubscription):
        return consumer._queue._session_at_owner(name, consumer.name)
    return consumer._session_at_owner(name, "")


def _checked_hold(seconds: float | None) -> float | None:
    """Return ``hold_seconds`` as a float, which a message can carry. Raises ``TypeError`` and ``ValueError``."""
    if seconds is None:
        return None
    try:
        length = None if isinstance(seconds, bool) else float(max(0, min(seconds, _LONGEST_SECONDS)))
    except TypeError:
        length = None
    if length is None:
        raise TypeError(f"hold_seconds must be None or a number of seconds, not {seconds!r}")
    if not length > 0:
        raise ValueError(f"hold_seconds must be more than 0, got {seconds}")
    return length


@atexit.register
def _close_owned() -> None:
    """Close the queues that this process owns, so that another process takes over a sealed log."""
    for queue in _OPEN:
        queue._owner.refuse_others()
    for queue in _OPEN:
        if queue.owns:
            with suppress(Exception):  # the process ends: the next owner recovers
                queue._end_with_process()


def _forget_parent() -> None:
    for queue in _OPEN:
        queue._locks.abandon()
        queue._end_sessions()
        queue._owner.begin_anew()
        queue._begin_anew()


after_fork_in_child(_forget_parent)

"""``SharedQueue``: a queue that any number of processes use, while one of them owns it and serves the others."""

from __future__ import annotations

import atexit
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf
from types import TracebackType
from typing import Any, Generic, Literal, NamedTuple, cast

from ..codecs import BYTES, Codec, T, checked_codec, decode_each
from ..core.items import checked_count, checked_timeout
from ..engine.segment_use import SegmentUse
from ..engine.settings import Settings
from ..errors import (
    ClosedError,
    PersistentQueueError,
    QueueLockedError,
    QueueNotFoundError,
    ResourceError,
    SubscriptionNotFoundError,
    UnflushedWarning,
    naming_paths,
    unless_lacking,
)
from ..interprocess.snapshot_view import View
from ..misplaced_calls import MisplacedCalls
from ..options import Options, Start, Unnamed, for_dead_letters
from ..queue import PersistentQueue
from ..runtime.inspection import Stats
from ..runtime.maintenance import Compacted, Maintained
from ..serving.connections import Connection
from ..serving.errors import NotServedError, OutcomeUnknownError, RefusedError, decode_error
from ..serving.protocol import (
    CALLS_ONLY,
    CONNECTION_BYTES,
    VERSION,
    Browse,
    Call,
    Failed,
    Hello,
    Message,
    Result,
    Take,
    Taken,
)
from ..serving.values import decode_value
from ..session import Session
from ..storage.layout import SOCKET_NAME, holds_queue, queue_directory
from ..subscription import Subscription
from ..system.call_guard import CallGuard
from ..system.disk import CURRENT_DISK, StrPath, abspath, after_fork_in_child, current_disk, dirname
from ..system.uncopyable import uncopyable_block
from .link import Link, LinkLostError, milliseconds
from .worker_session import WorkerSession

Serving = Literal["auto", "never"]
"""Whether a process may own the queue."""
_ONCE = frozenset({"clear", "requeue"})
"""Calls that must not be repeated: the owner that has ended may have made them."""
_POLL_SECONDS = 0.005
"""Pause between two looks for an owner, in seconds. Only a process that has none looks."""
_OPEN: weakref.WeakSet[SharedQueue[Any]] = weakref.WeakSet()


class Sizes(NamedTuple):
    """Numbers of items of a shared queue, or of a subscription of it."""

    unheld: int
    """Items that no session of any process holds: the ready ones, and those that wait for their retry."""
    unconsumed: int
    """Items that are not consumed: the unheld ones, and those that sessions hold."""


class _OwnedQueue(PersistentQueue[T]):
    """The queue in the process that owns it. It is closed by itself when a sync has failed: the next owner recovers."""

    def __init__(
        self, made: list[_OwnedQueue[T]], path: str, name: str | Unnamed | None, codec: Codec[T], options: Options
    ) -> None:
        """Open the queue, and append it to ``made``: an interruption of the caller must not lose a served queue."""
        self._made = made
        super().__init__(path, name, codec=codec, options=options, lock_timeout=0.0, serve=True)

    def _serve(self) -> None:
        super()._serve()
        self._made.append(self)
        if self._server is not None:
            self._server.on_failure = self._fail

    def _fail(self) -> None:
        with suppress(PersistentQueueError):  # a broken queue says so
            self.close()

    def subscription(self, name: str) -> Subscription[T]:
        """Return an existing subscription. Raises ``SubscriptionNotFoundError``."""
        open_queue = self._open()
        return Subscription(open_queue, open_queue.reader_named(name), self._codec, self._session)


class SharedQueue(MisplacedCalls, Generic[T]):
    """A queue that any number of processes use; ``connect`` makes it.

    It has the interface of ``PersistentQueue``, whichever process owns the queue. Where this process is the owner, its
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
        if hold_seconds is not None and not hold_seconds > 0:
            raise ValueError(f"hold_seconds must be more than 0, got {hold_seconds}")
        if prefetch and hold_seconds is not None:
            raise ValueError(
                "prefetch and hold_seconds exclude each other: the time of an item would run out before its dequeue"
            )
        # Absolute: this process, or one that gets the handle, may own the queue from another working directory.
        self._path, self._name = abspath(path), name
        if options.data_path is not None:
            options = replace(options, data_path=abspath(options.data_path, "data_path"))
        # A pickled ``BYTES`` is another object.
        self._codec = BYTES if type(codec) is type(BYTES) else checked_codec(codec)
        self._options, self._serve = options, serve
        self._hold_seconds, self._prefetch = hold_seconds, prefetch
        self._has_local_sessions = has_local_sessions
        """Whether the sessions are those of ``PersistentQueue`` while this process owns the queue."""
        self._directory = abspath(queue_directory(path, None if isinstance(name, Unnamed) else name))
        self._disk = current_disk()
        self._identity = ""
        """Identity of the queue of the first connection: no call goes to another queue that has its path now."""
        self._begin_anew()
        self._closed = False
        _OPEN.add(self)

    def _begin_anew(self) -> None:
        self._guard = threading.RLock()
        self._owning = threading.RLock()
        """Held while the owner is opened or closed."""
        self._owner: _OwnedQueue[T] | None = None
        self._sessions = weakref.WeakSet[WorkerSession[T]]()
        self._control: Link | None = None
        self._controlling = CallGuard()
        """One call through ``_control`` at a time. Code that interrupts such a call may make no other one."""
        self._controlling.directory = self._directory
        self._dead_letters: SharedQueue[bytes] | None = None
        self._waiting: set[Link] = set()
        """Connections of threads in ``wait``."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes the queue again in another process, where it connects at its first use."""
        settings = (self._codec, self._options, self._serve, self._hold_seconds, self._prefetch)
        return type(self), (self._path, self._name, *settings, self._has_local_sessions)

    def __enter__(self) -> SharedQueue[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = self._close()
        for loss in lost if kind is None else ():  # else the error tells it
            warnings.warn(loss, UnflushedWarning, stacklevel=2)

    def __repr__(self) -> str:
        role = "closed " if self._closed else "owned " if self.owns else ""
        return f"<{role}shared queue in {self._directory!r}>"

    def __len__(self) -> int:
        """Return the number of ready items."""
        return int(self._call("__len__"))

    def __bool__(self) -> bool:
        """Return True, also for an empty queue."""
        return True

    @property
    def path(self) -> str:
        """Path that the queue was connected with, as an absolute one."""
        return self._path

    @property
    def name(self) -> str | None:
        """Name of the queue; None without a name."""
        return None if isinstance(self._name, Unnamed) else self._name

    @property
    def closed(self) -> bool:
        """True if ``close`` was called."""
        return self._closed

    @property
    def owns(self) -> bool:
        """True if this process owns the queue now."""
        return self._owned() is not None

    def _owned(self) -> _OwnedQueue[T] | None:
        owner = self._owner
        return owner if owner is not None and not owner.closed else None

    # --- the owner ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find the owner of the queue, or own it. On an error, close the queue. Raises the errors of ``connect``."""
        try:
            self._reach(self._calling())[0].close()
        except BaseException:
            self.close()
            raise

    def _new_id(self) -> bytes:
        return self._disk.urandom(CONNECTION_BYTES)

    def _calling(self) -> dict[str, Any]:
        """Return the hello of a connection that only makes calls."""
        return {"name": "calls", "role": CALLS_ONLY, "connection": self._new_id().hex()}

    def _reach(self, hello: dict[str, Any], since_seconds: float | None = None) -> tuple[Link, dict[str, Any]]:
        """Return a connection to the owner, and its welcome. If there is no owner, this process becomes it.

        ``lock_timeout`` counts from the given time, or from now. Threads wait one after the other, so the last one has
        waited before: it tries once more.
        """
        thread = threading.current_thread().name
        hello = {"versions": [VERSION, VERSION], "process": self._disk.getpid(), "thread": thread, **hello}
        since_seconds = self._disk.monotonic() if since_seconds is None else since_seconds
        with self._guard:
            pid: int | None = None
            lack: ResourceError | None = None
            while True:
                if self._closed:
                    raise ClosedError(self._closed_text())
                try:
                    found = self._connect(hello)
                    if found is not None:
                        self._recognize(found[0].close, found[1].get("identity"))
                        return found
                except LinkLostError:
                    pass
                except ResourceError as error:  # here or at the owner, perhaps only for a moment
                    lack = error
                if self._serve != "never" and self._owned() is None:
                    try:
                        self._own()
                        continue
                    except QueueLockedError as error:
                        pid = error.pid
                if self._disk.monotonic() >= since_seconds + self._options.lock_timeout:
                    if lack is not None:
                        raise lack
                    pid = self._owner_pid() if pid is None else pid
                    raise NotServedError(self._directory, pid, exists=self._exists())
                self._disk.sleep(_POLL_SECONDS)

    def _recognize(self, close: Callable[[], None], identity: object) -> None:
        """Note the identity of the first queue. Close another one, and raise ``QueueNotFoundError``."""
        if not self._identity:
            self._identity = str(identity or "")
        elif identity != self._identity:
            close()
            raise QueueNotFoundError(
                f"{self._directory}: the queue that was connected is gone, and another one is here: connect again"
            )

    def _owner_pid(self) -> int | None:
        """Return the process id of the owner, as its lock has it; None if there is no owner."""
        with suppress(PersistentQueueError, OSError):  # the caller raises an error in any case
            seen = self.view().look()
            return seen.owner.pid if seen.is_owned and seen.owner is not None else None
        return None

    def _exists(self) -> bool:
        """Return False if there is no queue. A directory that cannot be listed may have one."""
        with suppress(OSError):
            return holds_queue(self._disk, self._directory)
        return True

    def _own(self) -> None:
        """Make this process the owner. Raises ``QueueLockedError`` if another one is faster.

        Only the first connection may make the queue: a later one raises ``QueueNotFoundError``.

        If a sync fails, the queue closes by itself. The next owner recovers, and tells the workers what is committed.
        """
        with self._owning:
            if self.closed:  # by another thread: it waits for no owner behind this
                return
            options = replace(self._options, create=False) if self._identity else self._options
            made: list[_OwnedQueue[T]] = []
            try:
                owner = self._opened(made, options)
                if self._identity and not owner.closed:
                    self._recognize(owner.close, owner.identity)
                self._owner = owner
            except BaseException:
                for each in made:
                    each.close()
                raise
            if self._closed:  # by a signal handler of this thread
                self._close_owner()

    def _opened(self, made: list[_OwnedQueue[T]], options: Options) -> _OwnedQueue[T]:
        """Open the queue as its owner, and append it to ``made``. Raises the errors of ``_own``."""
        chosen = CURRENT_DISK.set(self._disk)  # that of ``connect``, whichever thread takes over
        try:
            return _OwnedQueue(made, self._path, self._name, self._codec, options)
        except QueueNotFoundError as error:
            if not self._identity:
                raise
            raise QueueNotFoundError(
                f"{self._directory}: the queue that was connected is gone: bring it back, or connect again"
            ) from error
        finally:
            CURRENT_DISK.reset(chosen)

    def _connect(self, hello: dict[str, Any]) -> tuple[Link, dict[str, Any]] | None:
        from ..system import sockets  # noqa: PLC0415  late: a process that only owns queues needs none of it

        with naming_paths(self._directory), unless_lacking(self._directory, "to connect", "then connect again"):
            connection = sockets.connect(self._directory, SOCKET_NAME)
        if connection is None:
            return None
        link = Link(connection)
        try:
            with naming_paths(self._directory):
                found = self._disk.lstat(self._directory)
            if not sockets.is_believed(connection, found):
                raise RefusedError(self._directory, "it belongs to another user")
            answer = link.call(Hello({**hello, "process_name": sockets.process_name()}))
            link.end()
            if isinstance(answer, Failed):
                raise decode_error(answer.fields)
        except BaseException:
            link.close()
            raise
        return link, dict(answer.fields)  # type: ignore[union-attr]

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
        self._check()
        owner = self._owned() if self._has_local_sessions else None
        if owner is not None:
            return owner.subscription(subscription).session(name) if subscription else owner.session(name)
        name = threading.current_thread().name if name is None else name
        hello = {"name": name, "subscription": subscription, "hold_seconds": self._hold_seconds}
        attach = partial(self._attach, hello)
        session = WorkerSession(
            self._directory, name, self._codec, self._new_id(), attach, self._disk.monotonic, self._prefetch
        )
        self._sessions.add(session)
        return session

    def _attach(self, hello: dict[str, Any], connection: bytes) -> tuple[Link, bool]:
        link, facts = self._reach({**hello, "connection": connection.hex()})
        return link, bool(facts.get("counts"))

    @uncopyable_block
    def transaction(self, name: str | None = None) -> Iterator[Session[T] | WorkerSession[T]]:
        """Return a ``with`` block that is one transaction: flushed if the block ends well, rolled back if it raises.

        Args:
            name: Name of the session in ``explain``. Default None: the name of the calling thread.

        Yields:
            A new session. Its work is durable when the block has ended.
        """
        with self.session(name) as session:
            yield session
            session.flush()

    def subscribe(self, name: str, start: Start = "earliest") -> SharedSubscription[T]:
        """Return the subscription of this name; make it if it does not exist. See ``PersistentQueue.subscribe``."""
        self._call("subscribe", name=name, start=start)
        return SharedSubscription(self, name)

    def handle(self) -> SharedQueue[T]:
        """Return the queue for another process: pickled, or inherited by a fork, it becomes a connection there.

        Nothing becomes durable by this call. For any thread.
        """
        again: SharedQueue[T] = self.__reduce__()[0](*self.__reduce__()[1])
        return again

    # --- other calls -------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(self._closed_text())

    def _call(self, call: str, **arguments: Any) -> Any:
        """Make a call of the queue at its owner. Raises the errors of the call."""
        self._check()
        owner = self._owned()
        if owner is not None:
            return getattr(owner, call)(**arguments)
        return self._call_owner(call, **arguments)

    def _call_owner(self, call: str, **arguments: Any) -> Any:
        """Make a call through the socket, also if this process is the owner. Raises ``ReentrantUseError``."""

        since_seconds = self._disk.monotonic()

        def ask() -> Any:
            """Ask owners until one of them answers."""
            nonlocal since_seconds
            while True:
                try:
                    answer = self._ask(Call({"call": call, "arguments": arguments}), since_seconds)
                except LinkLostError:
                    if call in _ONCE:
                        raise OutcomeUnknownError(self._directory, f"which was to {call} the queue") from None
                    since_seconds = self._disk.monotonic()
                    continue
                if isinstance(answer, Failed):
                    raise decode_error(answer.fields)
                assert isinstance(answer, Result)
                return decode_value(answer.fields.get("result"))

        return self._controlling.look(ask)

    def _ask(self, message: Message, since_seconds: float) -> Message:
        link, self._control = self._control, None
        if link is None or link.is_lost:
            link, _ = self._reach(self._calling(), since_seconds)
        answer = link.call(message)
        link.end()
        self._control = link  # only now: a call that was interrupted ends its connection
        if self._closed:  # meanwhile, by another thread
            self._end_control()
        return answer

    def _end_control(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            control.close()

    @property
    def identity(self) -> str:
        """Identity of the queue in hex digits; see ``PersistentQueue.identity``."""
        return str(self._fact("identity"))

    @property
    def data_path(self) -> str:
        """Directory that has the segments in its ``data``; see ``PersistentQueue.data_path``."""
        return str(self._fact("data_path"))

    def _fact(self, name: str) -> object:
        owner = self._owned()
        if owner is not None:
            return getattr(owner, name)
        link, facts = self._reach(self._calling())
        link.close()
        return facts.get(name)

    def subscriptions(self) -> list[str]:
        """Return the names of the subscriptions, oldest first."""
        return list(self._call("subscriptions"))

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription; see ``PersistentQueue.unsubscribe``."""
        self._call("unsubscribe", name=name)

    def marker(self, name: str) -> int | None:
        """Return the version that a marker has reached; None if it was never set."""
        return cast("int | None", self._call("marker", name=name))

    def clear(self) -> int:
        """Consume all ready items in one transaction, durable on return, and return their number."""
        return int(self._call("clear"))

    def requeue(self, max_items: int | None = None) -> int:
        """Move dead letters back to this queue, durable on return; see ``PersistentQueue.requeue``."""
        return int(self._call("requeue", max_items=max_items))

    def sync(self) -> None:
        """Wait until everything flushed before this call is durable; see ``PersistentQueue.sync``."""
        self._call("sync")

    def trim(self) -> None:
        """Begin a new generation of the log, and delete drained segments; see ``PersistentQueue.trim``."""
        self._call("trim")

    def compact(self, *, below: float = Settings.compact_below, bytes_per_second: float = inf) -> Compacted:
        """Copy the live items of sparse segments to new segments; see ``PersistentQueue.compact``."""
        return cast(Compacted, self._call("compact", below=below, bytes_per_second=bytes_per_second))

    def maintain(self) -> Maintained:
        """Run now what maintenance does by itself; see ``PersistentQueue.maintain``."""
        return cast(Maintained, self._call("maintain"))

    def resize(self, *, memory_bytes: int | None = None, segment_bytes: int | None = None) -> None:
        """Change settings of the open queue at its owner; see ``PersistentQueue.resize``."""
        self._call("resize", memory_bytes=memory_bytes, segment_bytes=segment_bytes)

    def explain(self) -> list[SegmentUse]:
        """Return why each data file exists; see ``PersistentQueue.explain``."""
        return list(self._call("explain"))

    def connections(self) -> list[Connection]:
        """Return the sessions of all processes but the owner; see ``PersistentQueue.connections``."""
        return list(self._call("connections"))

    def stats(self) -> Stats:
        """Return the state of the queue at its owner; see ``PersistentQueue.stats``."""
        return cast(Stats, self._call("stats"))

    def view(self) -> View:
        """Return a view of the queue as it is on disk; see ``PersistentQueue.view``."""
        self._check()
        return View(self._path, self.name, encryption=self._options.encryption)

    def browse(self) -> Iterator[T]:
        """Return an iterator over the ready items, in order, without holding them; see ``PersistentQueue.browse``."""
        return self._browse("", 0)

    def browse_all(self) -> Iterator[T]:
        """Return an iterator over the items that any subscription has not consumed, held ones included."""
        return self._browse("", 1)

    def _browse(self, subscription: str, which: int) -> Iterator[T]:
        owner = self._owned()
        if owner is not None:
            if subscription:
                return owner.subscription(subscription).browse()
            return owner.browse_all() if which else owner.browse()
        return decode_each(self._codec, self._batches(subscription, which), self._directory)

    def _batches(self, subscription: str, which: int) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the items in batches. Raises ``ClosedError`` if the owner ends meanwhile."""
        link, _ = self._reach({"name": "browse", "connection": self._new_id().hex(), "subscription": subscription})
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
                f"{self._directory}: the owner has ended while the queue was browsed: browse again"
            ) from None
        finally:
            link.close()

    def peek(self, n: int = 1) -> list[T]:
        """Return the first ready items, in order, without holding or consuming them; see ``PersistentQueue.peek``."""
        return list(islice(self.browse(), checked_count("n", n)))

    def sizes(self) -> Sizes:
        """Return the numbers of items that no session holds, and of those that are not consumed.

        Both count for all processes, at one moment. Nothing becomes durable by this call. For any thread.
        """
        return self._sizes("")

    def _sizes(self, subscription: str) -> Sizes:
        self._check()
        return Sizes(*self._call_owner("sizes_of", name=subscription))

    def wait(self, timeout: float | None = None, *, stop: Callable[[], bool] = bool) -> bool:
        """Wait until an item is ready, without holding it; return False if there is none in time.

        Args:
            timeout: Seconds to wait; at least 0. Default None: no limit.
            stop: Called before each sleep and after each ``wake``; the wait ends when it returns True. It must return
                at once and must not call the queue. Default ``bool``: never stop.

        Raises:
            ClosedError: If the queue is closed, also during the wait.
        """
        return self._wait("", checked_timeout(timeout), stop)

    def wake(self) -> None:
        """Make each ``wait`` of this process call its ``stop`` again. For any thread."""
        for link in self._waiting.copy():
            link.wait_no_more()

    def _wait(self, subscription: str, timeout: float | None, stop: Callable[[], bool]) -> bool:
        self._check()
        hello = {"name": "wait", "connection": self._new_id().hex(), "subscription": subscription}
        deadline = None if timeout is None else self._disk.monotonic() + timeout
        while True:
            seconds = None if deadline is None else max(deadline - self._disk.monotonic(), 0.0)
            link, _ = self._reach(hello)
            self._waiting.add(link)
            try:
                if stop():
                    return False
                self._check()
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
            if seconds is not None and self._disk.monotonic() >= cast(float, deadline):
                return False

    @property
    def dead_letters(self) -> SharedQueue[bytes]:
        """The dead-letter queue. Its items are envelopes (see ``DeadLetter``). It is closed with this queue.

        Raises:
            ValueError: ``connect`` got no name of a dead-letter queue.
            ClosedError: The queue is closed.
        """
        with self._guard:
            self._check()
            if self._dead_letters is None or self._dead_letters.closed:
                queue = self.make_dead_letters()
                queue.open()
                self._dead_letters = queue
                if self._closed:  # meanwhile, by another thread
                    queue.close()
            return self._dead_letters

    def make_dead_letters(self) -> SharedQueue[bytes]:
        """Return a dead-letter queue that connects at its first call, for a caller that closes it.

        Raises what ``dead_letters`` raises. Nothing becomes durable by this call. For any thread.
        """
        self._check()
        name = self._options.dead_letter
        if name is None or not isinstance(name, str):
            raise ValueError(f"{self!r} has no dead letters that it knows by name: connect again with dead_letter=")
        shared, parent = for_dead_letters(self._options), dirname(self._directory)
        return SharedQueue(parent, name, BYTES, shared, "never", None, has_local_sessions=self._has_local_sessions)

    def close(self) -> None:
        """Roll back the sessions of this process. If it owns the queue, close it: another process takes over.

        Everything committed is durable on return. Any thread may call it; closing again does nothing, but waits for
        another thread that is closing the queue. A session with enqueued items that it has not flushed causes an
        ``UnflushedWarning``.

        Raises:
            ResourceError, BrokenQueueError: The log could not be sealed. The next owner recovers.
        """
        for loss in self._close():
            warnings.warn(loss, UnflushedWarning, stacklevel=2)

    def _close(self) -> list[str]:
        """Close the queue; return the texts of the warnings."""
        self._closed = True
        _OPEN.discard(self)
        lost = self._end_sessions(self._closed_text())
        for link in self._waiting.copy():
            link.cut()
        self._end_control()
        dead_letters, self._dead_letters = self._dead_letters, None
        try:
            if dead_letters is not None:
                lost += dead_letters._close()
        finally:  # this process must not stay the owner
            lost += self._close_owner()
        return lost

    def _close_owner(self) -> list[str]:
        with self._owning:
            owner = self._owner
        # Without the lock: a close that waited for it, inside the close of another queue, might wait for ever.
        lost = owner._close() if owner is not None else []
        self._owner = None  # last: until then, other closes wait in the owner for the end of this one
        return lost

    def _closed_text(self) -> str:
        return f"{self._directory}: the queue is closed: connect again"

    def _end_sessions(self, why_closed: str | None = None) -> list[str]:
        """End the sessions, whose later calls say ``why_closed``; return the texts of the warnings."""
        while True:
            with suppress(RuntimeError):  # the set changed: another thread has made a session
                return [text for session in list(self._sessions) if (text := session.end(why_closed)) is not None]


class SharedSubscription(Generic[T]):
    """One named consumer of a shared queue; ``SharedQueue.subscribe`` makes it. See ``Subscription``.

    Durability and threads: as ``Subscription`` describes.
    """

    def __init__(self, queue: SharedQueue[T], name: str) -> None:
        self._queue = queue
        self.name = name
        """Name of the subscription."""

    def __repr__(self) -> str:
        return f"<shared subscription {self.name!r}>"

    def __len__(self) -> int:
        """Return the number of items that the subscription can dequeue now; 0 if it was removed."""
        try:
            return int(self._queue._call_owner("subscription_length", name=self.name))
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

        If the subscription was removed, this call or the first call of the session raises
        ``SubscriptionNotFoundError``.
        """
        return self._queue._session(name, self.name)

    @uncopyable_block
    def transaction(self, name: str | None = None) -> Iterator[Session[T] | WorkerSession[T]]:
        """Return a ``with`` block that is one transaction; see ``Subscription.transaction``."""
        with self.session(name) as session:
            yield session
            session.flush()

    def sizes(self) -> Sizes:
        """Return the numbers of items that no session holds, and of those that the subscription has not consumed."""
        return self._queue._sizes(self.name)

    def wait(self, timeout: float | None = None, *, stop: Callable[[], bool] = bool) -> bool:
        """Wait until there is something to dequeue, without taking it; see ``Subscription.wait``."""
        try:
            return self._queue._wait(self.name, checked_timeout(timeout), stop)
        except SubscriptionNotFoundError:  # the next dequeue raises it
            return True

    def browse(self) -> Iterator[T]:
        """Return an iterator over the items that can be dequeued, in order; see ``Subscription.browse``."""
        return self._queue._browse(self.name, 0)


@atexit.register
def _close_owned() -> None:
    """Close the queues that this process owns, so that another process takes over a sealed log."""
    for queue in list(_OPEN):
        if queue.owns:
            with suppress(Exception):  # the process ends: the next owner recovers
                queue.close()


def _forget_parent() -> None:
    for queue in list(_OPEN):
        queue._end_sessions()
        queue._begin_anew()


after_fork_in_child(_forget_parent)

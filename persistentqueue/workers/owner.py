"""The owner of a shared queue, as one process sees it: it finds the owner, or owns the queue itself.

``SharedQueue`` adds the calls of users. If the owner ends, the next call finds another one, or makes this process the
owner. A call goes to the owner over a socket, or directly if this process is it.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Generic, Literal

from ..codecs import Codec, T, checked_codec
from ..engine.reader import Reader
from ..errors import (
    ClosedError,
    NotServedError,
    OtherOptionsWarning,
    OutcomeUnknownError,
    PersistentQueueError,
    QueueLockedError,
    QueueNotFoundError,
    RefusedError,
    ResourceError,
    SubscriptionNotFoundError,
)
from ..interprocess.snapshot_view import View
from ..interrupts.call_guard import CallGuard
from ..interrupts.locks import RLock
from ..interrupts.members import Members
from ..options import Options, Unnamed, without_effect
from ..queue import PersistentQueue
from ..runtime.session_state import SessionParts
from ..serving.calls import CONNECTED
from ..serving.errors import decode_error
from ..serving.protocol import CALLS_ONLY, CONNECTION_BYTES, VERSION, Call, Failed, Hello, Message, Result
from ..serving.values import decode_value
from ..session import Session
from ..storage.layout import SOCKET_NAME, holds_queue, queue_directory
from ..storage.lock import LOCK_NAME, is_held_here
from ..subscription import Subscription
from ..system import sockets
from ..system.disk import CURRENT_DISK, StrPath, abspath, current_disk, dirname, join, realpath
from ..system.path_errors import naming_paths, suppress, unless_lacking
from .common_owner import Candidacy, give_up_dead_letters
from .link import Link, LinkLostError

Serving = Literal["auto", "never"]
"""Whether a process may own the queue."""
_ONCE = frozenset({"clear", "requeue"})
"""Calls that must not be repeated: the owner that has ended may have made them."""
_LONG = frozenset({"compact", "maintain"})
"""Calls with a connection of their own: no other call waits until they have ended."""
_LAST_SECONDS = 1.0
"""Longest wait for threads that look for the owner, when the process ends."""
_POLL_SECONDS = 0.005
"""Pause between two looks for an owner, in seconds. Only a process that has none looks.

A thread gives the others their turn for half of it. So many threads look at most twice as often as one."""
_OF_CONNECT = 5
"""Stack level of the caller of ``connect``, for a warning of ``reach``."""


class _Stop(threading.local):
    """Of each thread on its own. A context would also reach the tasks and threads that a codec starts in a call."""

    asked: Callable[[], bool] = bool
    """Ends each look for an owner in this thread when it returns True: a cancelled call of ``aio`` waits no longer."""


STOP: Final = _Stop()


class _OwnedQueue(PersistentQueue[T]):
    """The queue in the process that owns it. It is closed by itself when a sync has failed: the next owner recovers."""

    # Only sessions and iterators of a shared queue end by a fork: the queue itself connects in the child.
    _in_child = "this belongs to the parent process: get a session of the connected queue in the child"
    is_given_up = False
    """True while this process gives the queue up: no session of this process begins there."""

    def __init__(
        self, made: list[_OwnedQueue[T]], path: str, name: str | Unnamed | None, codec: Codec[T], options: Options
    ) -> None:
        """Open the queue, and append it to ``made``: an interruption of the caller must not lose a served queue."""
        self._made = made
        self._own_sessions = Members[Session[T]]()
        super().__init__(path, name, codec=codec, options=options, lock_timeout=0.0, serve=True)

    def _serve(self, options: Options) -> None:
        super()._serve(options)
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

    def _session(
        self, name: str | None, reader: Reader | None, make: Callable[[SessionParts], Session[T]] | None = None
    ) -> Session[T]:
        session = super()._session(name, reader, make)
        if make is None:  # else it is that of a worker
            self._own_sessions.add(session)
            if self.is_given_up:  # looked at last: ``give_up``, which sets it first, may not have seen the session
                session.close()
                raise ClosedError(f"{self.path}: the queue goes to another process: begin the session there")
        return session

    @property
    def has_sessions(self) -> bool:
        """Whether this process has sessions of the queue, beside those of workers."""
        return any(not session.closed for session in self._own_sessions)

    def check_closable(self) -> None:
        """Raise ``ReentrantUseError`` if a close by this thread would wait for a call of the same thread."""
        if self._open_queue is not None:
            self._open_queue.check_closable()

    def end(self) -> list[str]:
        """Close the queue; return the texts of the warnings."""
        return self._close()


class Owner(Generic[T]):
    """The way of one process to the owner of a queue, for any number of threads.

    Only one queue is ever reached: ``QueueNotFoundError`` tells that it is gone, or that another one has its path.
    """

    def __init__(
        self, path: StrPath, name: str | Unnamed | None, codec: Codec[T], options: Options, serve: Serving
    ) -> None:
        # Absolute: this process, or one that gets the handle, may own the queue from another working directory.
        self.path, self.name = abspath(path), name
        if options.data_path is not None:
            options = replace(options, data_path=abspath(options.data_path, "data_path"))
        self.directory = abspath(queue_directory(path, None if isinstance(name, Unnamed) else name))
        dead_letter = options.dead_letter
        self.dead_letters = join(dirname(self.directory), dead_letter) if isinstance(dead_letter, str) else ""
        self.codec, self.options, self.serve = checked_codec(codec, self.directory), options, serve
        self.disk = current_disk()
        self._closed = self._ends = False
        self._identity = ""
        """Identity of the queue of the first connection: no call goes to another queue that has its path now."""
        self._without_effect: list[str] = []
        """Options of which this process was warned."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget the owner and the connection. In a forked child: both belong to the parent."""
        self._guard = RLock()
        self._owning = RLock()
        """Held while the owner is opened or closed."""
        self._here: _OwnedQueue[T] | None = None
        self._control: list[Link] = []
        """The connection for calls. A thread takes it out, so that no other thread uses or closes it meanwhile."""
        self._controlling = CallGuard()
        """One call through ``_control`` at a time. Code that interrupts such a call may make no other one."""
        self._controlling.directory = self.directory

    @property
    def closed(self) -> bool:
        """True from the beginning of the close on: no call finds an owner any more."""
        return self._closed

    def here(self) -> _OwnedQueue[T] | None:
        """Return the queue if this process owns it now; else None."""
        here = self._here
        return here if here is not None and not here.closed and not here.is_given_up else None

    @property
    def is_leaving(self) -> bool:
        """True from the beginning of the close on, or of the end of the process."""
        return self._closed or self._ends

    @property
    def owns(self) -> bool:
        """Whether this process owns the queue now."""
        return self.here() is not None

    def own_here(self) -> bool:
        """Make this process the owner, if no process is; return whether it owns the queue now. Raises the errors of
        ``PersistentQueue``."""
        with self._owning:
            if not (self.owns or self.is_leaving):
                with suppress(QueueLockedError):
                    self._own()
            return self.owns

    def give_up(self) -> None:
        """Close the queue at its owner, this process, unless the process has sessions of it. The next call finds the
        next owner. Raises the errors of ``close``."""
        owner, is_used = self.here(), True
        if owner is None:
            return
        owner.is_given_up = True  # first: a session that begins now ends at once
        try:
            is_used = owner.has_sessions
            if not is_used:
                owner.end()
        finally:
            try:
                if not is_used:  # again: an interruption may have ended the close half-way
                    owner.end()
            finally:
                owner.is_given_up = False
        with self._owning:
            if self._here is owner and owner.closed:
                self._here = None  # last: until then, other closes wait in the owner for the end of this one

    def check(self) -> None:
        """Raise ``ClosedError`` if the queue is closed."""
        if self.closed:
            raise ClosedError(self.closed_text())

    def closed_text(self) -> str:
        """Return the text of a ``ClosedError``."""
        return f"{self.directory}: the queue is closed: connect again"

    # --- the owner ---------------------------------------------------------------------------------------------------

    def new_id(self) -> bytes:
        """Return the id of a new connection."""
        return self.disk.urandom(CONNECTION_BYTES)

    def calling(self) -> dict[str, Any]:
        """Return the hello of a connection that only makes calls."""
        return {"name": "calls", "role": CALLS_ONLY, "connection": self.new_id().hex()}

    def reach(
        self, hello: dict[str, Any], since_seconds: float | None = None, stop: Callable[[], bool] = bool
    ) -> tuple[Link, dict[str, Any]]:
        """Return a connection to the owner, and its welcome. If there is no owner, this process becomes it.

        ``lock_timeout`` counts from the given time, or from now. It is over at once when ``stop`` or ``STOP.asked``
        returns True. Threads look one at a time, so the last one may have waited before: it looks once more.
        This last look owns the queue without a question to others.
        """
        thread = threading.current_thread().name
        hello = {"versions": [VERSION, VERSION], "process": self.disk.getpid(), "thread": thread, **hello}
        since_seconds = self.disk.monotonic() if since_seconds is None else since_seconds
        locked: QueueLockedError | None = None
        lack: ResourceError | None = None
        candidacy = Candidacy(self.disk, self.directory, self.dead_letters)
        while True:
            with self._guard:
                is_last = self.disk.monotonic() >= since_seconds + self.options.lock_timeout
                if self.closed:
                    raise ClosedError(self.closed_text())
                try:
                    found = self._connect(hello)
                    if found is not None:
                        link, facts = found
                        try:
                            self._recognize(facts.get("identity"))
                            self._compare_options(facts.get("options"))
                        except BaseException:  # an interruption, too
                            link.close()
                            raise
                        return found
                except LinkLostError:
                    pass
                except ResourceError as error:  # here or at the owner, perhaps only for a moment
                    lack = error
                if self.serve != "never" and not self.owns and (is_last or candidacy.may_own()):
                    try:
                        self._own()
                        continue
                    except QueueLockedError as error:
                        locked = error
                if is_last or stop() or STOP.asked():
                    raise lack or self._not_served(locked)
                self.disk.sleep(_POLL_SECONDS / 2)
            self.disk.sleep(_POLL_SECONDS / 2)  # another thread looks, or learns that it shall stop

    def _not_served(self, locked: QueueLockedError | None) -> PersistentQueueError:
        """Return the error of a look for the owner that has found none, but perhaps this holder of the lock."""
        exists = self._exists()
        if self._identity and not exists:
            return self._gone()
        pid, host = (locked.pid, locked.host) if locked is not None else self._locked_by()
        if locked is not None and dirname(locked.path) != self.directory:
            return NotServedError(self.directory, pid, taken=dirname(locked.path))
        is_here = is_held_here(self.disk, join(self.directory, LOCK_NAME), pid, host)
        return NotServedError(self.directory, pid, exists=exists, is_here=is_here)

    def _recognize(self, identity: object) -> None:
        """Note the identity of the first queue. Raises ``QueueNotFoundError`` for another one."""
        if not self._identity:
            self._identity = str(identity or "")
            if self.serve != "never":
                CONNECTED.add(self)
        elif identity != self._identity:
            raise QueueNotFoundError(
                f"{self.directory}: the queue that was connected is gone, and another one is here: connect again"
            )

    def _compare_options(self, owners: object) -> None:
        """Warn, once for each set of them, of options that this process relies on and the owner has otherwise."""
        options = self.options
        if options.data_path is not None:  # the owner tells the location of this queue's own segments
            name = None if isinstance(self.name, Unnamed) else self.name
            options = replace(options, data_path=realpath(queue_directory(options.data_path, name)))
        found = without_effect(options, owners) if isinstance(owners, dict) else []
        if found and found != self._without_effect:
            self._without_effect = found
            warnings.warn(
                f"{self.directory}: these options of this process have no effect, since another process owns the "
                f"queue: {', '.join(found)}: open the queue with the same options in all processes",
                OtherOptionsWarning,
                stacklevel=_OF_CONNECT,
            )

    def view(self) -> View:
        """Return a view of the queue as it is on disk. Raises ``ClosedError``."""
        self.check()
        name = None if isinstance(self.name, Unnamed) else self.name
        return View(self.path, name, encryption=self.options.encryption)

    def _locked_by(self) -> tuple[int | None, str | None]:
        """Return the process id and the host of the owner, as its lock has them; None for each if there is no owner."""
        with suppress(PersistentQueueError, OSError):  # the caller raises an error in any case
            seen = self.view().look()
            return seen.owner[:2] if seen.is_owned and seen.owner is not None else (None, None)
        return None, None

    def _exists(self) -> bool:
        """Return False if there is no queue. A directory that cannot be listed may have one."""
        with suppress(OSError):
            return holds_queue(self.disk, self.directory)
        return True

    def _gone(self) -> QueueNotFoundError:
        return QueueNotFoundError(
            f"{self.directory}: the queue that was connected is gone: bring it back, or connect again"
        )

    def _own(self) -> None:
        """Make this process the owner. Raises ``QueueLockedError`` if another one is faster.

        Only the first connection may make the queue: a later one raises ``QueueNotFoundError``.

        If a sync fails, the queue closes by itself. The next owner recovers, and tells the workers what is committed.
        """
        with self._owning:
            if self.closed:  # by another thread: it waits for no owner behind this
                return
            options = replace(self.options, create=False) if self._identity else self.options
            give_up_dead_letters(self.dead_letters)
            made: list[_OwnedQueue[T]] = []
            try:
                owner = self._opened(made, options)
                if self._identity and not owner.closed:
                    self._recognize(owner.identity)
                self._here = owner
            except BaseException:
                for each in made:
                    each.close()
                raise
            if self._closed:  # by a signal handler of this thread
                self.close_owner()

    def _opened(self, made: list[_OwnedQueue[T]], options: Options) -> _OwnedQueue[T]:
        """Open the queue as its owner, and append it to ``made``. Raises the errors of ``_own``."""
        chosen = CURRENT_DISK.set(self.disk)  # that of ``connect``, whichever thread takes over
        try:
            return _OwnedQueue(made, self.path, self.name, self.codec, options)
        except QueueNotFoundError as error:
            if not self._identity:
                raise
            raise self._gone() from error
        finally:
            CURRENT_DISK.reset(chosen)

    def _connect(self, hello: dict[str, Any]) -> tuple[Link, dict[str, Any]] | None:
        with naming_paths(self.directory), unless_lacking(self.directory, "to connect", "then connect again"):
            connection = sockets.connect(self.directory, SOCKET_NAME)
        if connection is None:
            return None
        link = Link(connection, self.directory)
        try:
            with naming_paths(self.directory):
                found = self.disk.lstat(self.directory)
            if not sockets.is_believed(connection, found):
                raise RefusedError(self.directory, "it belongs to another user")
            answer = link.call(Hello({**hello, "process_name": sockets.process_name()}))
            link.end()
            if isinstance(answer, Failed):
                raise decode_error(answer.fields)
        except BaseException:
            link.close()
            raise
        return link, dict(answer.fields)  # type: ignore[union-attr]

    # --- calls -------------------------------------------------------------------------------------------------------

    def call(self, call: str, **arguments: Any) -> Any:
        """Make a call of the queue at its owner. Raises the errors of the call."""
        self.check()
        owner = self.here()
        if owner is not None:
            try:
                return getattr(owner, call)(**arguments)
            except ClosedError:  # another thread gives the queue up, unless it closes it
                if call in _ONCE:
                    raise
                self.check()
        return self.call_owner(call, **arguments)

    def call_owner(self, call: str, **arguments: Any) -> Any:
        """Make a call through the socket, also if this process is the owner. Raises ``ReentrantUseError``."""
        since_seconds = self.disk.monotonic()
        is_repeated, is_long = False, call in _LONG

        def ask() -> Any:
            """Ask owners until one of them answers."""
            nonlocal since_seconds, is_repeated
            while True:
                try:
                    answer = self._ask(Call({"call": call, "arguments": arguments}), since_seconds, is_long)
                except LinkLostError as lost:
                    if call in _ONCE and lost.was_sent:
                        raise OutcomeUnknownError(self.directory, f"which was to {call} the queue") from None
                    since_seconds, is_repeated = self.disk.monotonic(), is_repeated or lost.was_sent
                    continue
                if isinstance(answer, Failed):
                    error = decode_error(answer.fields)
                    if is_repeated and call == "unsubscribe" and isinstance(error, SubscriptionNotFoundError):
                        return None  # the owner that has ended has removed it
                    raise error
                assert isinstance(answer, Result)
                return decode_value(answer.fields.get("result"))

        return self._controlling.around(ask) if is_long else self._controlling.look(ask)

    def _ask(self, message: Message, since_seconds: float, is_long: bool) -> Message:
        link = None if is_long else self._take_control()
        if link is None or link.is_lost:
            link, _ = self.reach(self.calling(), since_seconds)
        try:
            answer = link.call(message)
            link.end()
        except BaseException:  # a call that was interrupted ends its connection
            link.close()
            raise
        if is_long:
            link.close()
            return answer
        self._control.append(link)
        if self.closed:  # meanwhile, by another thread
            self.end_control()
        return answer

    def fact(self, name: str) -> object:
        """Return what the welcome of an owner says of the queue: ``identity`` or ``data_path``."""
        owner = self.here()
        if owner is not None:
            return getattr(owner, name)
        link, facts = self.reach(self.calling())
        link.close()
        return facts.get(name)

    # --- the end -----------------------------------------------------------------------------------------------------

    def check_closable(self) -> None:
        """Raise ``ReentrantUseError`` if this process owns the queue, and this thread is in one of its calls."""
        here = self._here
        if here is not None:
            here.check_closable()

    def refuse(self) -> None:
        """Refuse new calls: the close begins."""
        self._closed = True

    def refuse_others(self) -> None:
        """Own the queue for no other process any more: this one ends."""
        self._ends = True

    def end_control(self) -> None:
        """End the connection for calls."""
        control = self._take_control()
        if control is not None:
            control.close()

    def _take_control(self) -> Link | None:
        try:
            return self._control.pop()
        except IndexError:
            return None

    def close_owner(self) -> list[str]:
        """Close the queue if this process owns it; return the texts of the warnings."""
        with self._owning:
            owner = self._here
        # Without the lock: a close that waited for it, inside the close of another queue, might wait for ever.
        lost = owner.end() if owner is not None else []
        self._here = None  # last: until then, other closes wait in the owner for the end of this one
        return lost

    def end_with_process(self) -> list[str]:
        """Close the queue if this process owns it, at the end of the process; return the texts of the warnings.

        The threads that find no owner now wait for this thread. They are daemons, which end with the process: with an
        error, Python would print their traceback.
        """
        self._guard.acquire(timeout=_LAST_SECONDS)
        return self.close_owner()

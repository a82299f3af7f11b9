"""The thread that serves a queue to workers: it moves bytes between their sockets and the ``service``.

The thread sleeps in one call of the kernel. It wakes when a worker sends something, and when a wait is over. A thread
of this process that has an item for a worker wakes it, and so does a file that another process publishes. So an idle
server takes no processor time, with any number of connections.

If a worker does not read its answers, the server does not read from it either. So each connection keeps at most one
message in each direction in memory. Bytes that no worker sends end that connection alone.

When the queue closes, the sessions of workers get ``grace_seconds`` to flush what they hold: see ``service``. Then
their connections end, and they look for the next owner. Queues that close together wait for each other: see
``departure``.

If the process has no file descriptors left, new workers are told so, with a descriptor that is kept for this moment.
They come again until their ``lock_timeout`` is over. Without that descriptor, too, the server looks again every
``RETRY_SECONDS``.
"""

from __future__ import annotations

import selectors
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from math import inf

from ..errors import PersistentQueueError, RefusedError
from ..interrupts.locks import Lock
from ..interrupts.members import Members
from ..interrupts.signal_shield import shielded
from ..runtime.closing import Ending
from ..storage.layout import SOCKET_NAME
from ..system.disk import after_fork_in_child, join
from ..system.event_log import LOGGER
from ..system.path_errors import lacking, unless_lacking, unless_no_thread
from ..system.sockets import NO_SIGNAL, Socket, is_believed, listen, spare
from ..system.wakeup import POLL_SECONDS, Wakeup
from .client import Client
from .connections import Connection, connections_of, count_connections
from .departure import Departure
from .errors import encode_error
from .protocol import FIRST_CALL, Failed, ProtocolError, encode
from .service import OwnerFailedError, Served, Service

THREAD_NAME = "persistentqueue-serve"
CALL_THREAD_NAME = "persistentqueue-call"
RETRY_SECONDS = 0.05
"""Time between two attempts to accept a connection without a free file descriptor, in seconds."""
_RECEIVE_BYTES = 256 * 1024
_LONGEST_SECONDS = 3600.0


class _Peer:
    """One accepted connection: its socket, and what is left to send."""

    __slots__ = ("client", "left", "socket")

    def __init__(self, connection: Socket, client: Client) -> None:
        self.socket = connection
        self.client = client
        self.left: bytes | memoryview = b""


class Server:
    """The server of one queue. ``start`` and ``stop`` are for the thread that opens and closes the queue."""

    def __init__(self, served: Served, grace_seconds: float) -> None:
        """``grace_seconds`` bounds the wait of ``stop`` for sessions that can still finish their work."""
        self._served = served
        self._grace_seconds = grace_seconds
        self.directory, self._disk = served.open_queue.directory, served.open_queue.disk
        self._selector = selectors.DefaultSelector()
        self._listener: Socket | None = None
        self._bell: Wakeup | None = None
        self._ringing = Lock()
        """Held while the wake-up is used by another thread, or closed."""
        self._service = Service(served, self._ring, self._apart)
        self._thread: threading.Thread | None = None
        self._peers: set[_Peer] = set()
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        """Bytes that were received last: a new object of that size for each call would take longer than the call."""
        self._leaves_by = inf
        """Time by which the sessions of workers end, once the close has begun."""
        self._end = Ending()
        """End of the thread."""
        self._is_stopping = False
        self._is_closed = False
        self.on_failure: Callable[[], object] = lambda: None
        """Called by the thread when it has ended, because a sync or a write of the log has failed."""
        self._spare: Socket | None = None
        """Descriptor that is given up to tell a worker that no other one is free."""
        self._is_short = False
        """True while no descriptor is free."""
        self._accepts_at = inf
        """Time at which to accept connections again; ``inf`` while nothing is in the way."""
        self._departure: Departure | None = None
        """The servers that leave together with this one, from the beginning of the close on; None before."""

    def start(self) -> None:
        """Take the socket of the queue, and serve. Raises ``ResourceError`` and ``OSError``; then call ``stop``."""
        shielded(self._inherit)
        with unless_lacking(self.directory, "to serve the queue", "then open it again"):
            self._served.open_queue.shielded(self._begin)

    def _inherit(self) -> None:
        """Hold what the last owner has left. Shielded: ``stop`` finds the holds, which are in no file any more."""
        self._service.inherit()
        self._served.open_queue.counts.connected = partial(
            count_connections, self._service.clients, self._service.blocked
        )

    def _begin(self) -> None:
        """Take all descriptors, and start the thread. Shielded: ``stop`` finds each of them after an interruption."""
        with self._served.open_queue.watched() as inbox:
            self._bell = Wakeup(inbox)
        self._listener = listen(self.directory, SOCKET_NAME)
        self._spare = spare()
        self._selector.register(self._listener, selectors.EVENT_READ)
        for fd in self._bell.descriptors:
            self._selector.register(fd, selectors.EVENT_READ)
        _SERVERS.add(self)
        advice = "then open it again; a subinterpreter can only connect to an owner elsewhere"
        with unless_no_thread(self.directory, "to serve the queue", advice):
            thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            thread.start()
            self._thread = thread  # if it could not start, there is no end to wait for

    def _apart(self, call: Callable[[], None]) -> None:
        """Make a slow call in a thread of its own, so that other workers do not wait for it. Raises
        ``NoThreadError``."""
        with unless_no_thread(self.directory, "at the owner of the queue, for this call", "then make it again"):
            threading.Thread(target=call, name=CALL_THREAD_NAME, daemon=True).start()

    @property
    def is_running(self) -> bool:
        """Whether the thread serves workers, and was not told to end."""
        return self._thread is not None and not self._end.has_come and self._departure is None

    def connections(self) -> list[Connection]:
        """Return the connections, those that hold for longest first. For any thread."""
        return connections_of(self._served.open_queue, self._service.clients)

    def stop(self) -> None:
        """Let workers finish what they hold, answer what has come, and end all sessions. They look for another owner.

        An interruption ends the wait for the workers, and the sessions. Calling it again does nothing, or finishes a
        call that was interrupted.
        """
        if self._is_closed:
            return
        try:
            self._give_grace()
        finally:
            self._stop()

    def _give_grace(self) -> None:
        """Wait until no worker has work that it can still finish, or ``grace_seconds`` are over."""
        if self._thread is not None and self._thread is not threading.current_thread():
            if self._departure is None:
                _leave_together([self])
            self._end.wait()

    def _begin_to_leave(self, departure: Departure) -> None:
        self._leaves_by = min(self._leaves_by, self._served.now() + self._grace_seconds)
        self._departure = departure  # last: the thread looks at it
        self._ring()
        if self._end.has_come:  # the thread has ended meanwhile, perhaps without a look at the departure
            departure.drop(self)

    def _stop(self) -> None:
        self._is_stopping = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._ring()
            # Shielded: after an interrupted join, Python up to 3.12 takes a running thread for one that has ended. So
            # it does after an interrupted ``is_alive``, which is not called here.
            self._served.open_queue.shielded(self._thread.join)
        elif self._thread is None:
            shielded(self._service.hand_over)  # the thread did not start, and the service has the holds that were left
        # Shielded: a descriptor must be closed once, since another thread may have its number then.
        self._served.open_queue.shielded(self._close)
        self._is_closed = True

    def _ring(self) -> None:
        """Wake the thread, unless it has ended: then its descriptors may be those of others. For any thread."""
        with self._ringing:
            if self._bell is not None:
                self._bell.ring()

    def _close(self) -> None:
        _SERVERS.discard(self)
        for each in (self._listener, self._spare):
            if each is not None:
                each.close()
        for peer in self._peers:
            peer.socket.close()
        self._peers = set()
        self._departure = None  # it has this server: no cycle
        self._selector.close()
        with self._ringing:
            bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()

    def client_of(self, connection: bytes) -> Client:
        """Return the connection with this id. Raises ``PersistentQueueError`` if it has ended. For any thread."""
        for client in list(self._service.clients):
            if client.id == connection:
                return client
        raise PersistentQueueError(f"{self.directory}: a session of the transaction has lost its connection")

    def note_flush(self, client: Client, number: int) -> None:
        """Note that a flush of the connection was committed together with others. For any thread."""
        self._service.note_flush(client, number)

    def abandon(self) -> None:
        """Close all descriptors without a word, in a forked child: they belong to the parent."""
        self._is_stopping, self._is_closed, self._thread = True, True, None
        self._ringing = Lock()  # the parent may have held it
        self._close()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._bell is not None
        SERVING[threading.get_ident()] = self.directory
        service, bell, now = self._service, self._bell, self._served.now
        due = now()  # the first turn looks at the sessions that the last owner has left
        try:
            while not self._is_stopping and not self._may_leave():
                left_seconds = min(due, self._accepts_at, self._leaves_by) - now()
                if not bell.watches and service.waits:
                    self._look()
                    left_seconds = min(left_seconds, POLL_SECONDS)
                self._take(max(min(left_seconds, _LONGEST_SECONDS), 0.0))
                if self._accepts_at <= now():
                    self._accept()
                if service.may_gather:
                    self._take(0.0)
                due = service.turn()
                self._answer()
            self._leave()
        except BaseException as error:
            if not isinstance(error, OwnerFailedError):  # the store has logged that
                LOGGER.exception("%s: the thread that serves workers has failed", self.directory)
            self._is_stopping = True
            self._end_all()  # no worker may wait for an answer that never comes
            self.on_failure()
        finally:
            self._end.come()  # first: see ``_begin_to_leave``
            del SERVING[threading.get_ident()]
            if self._departure is not None:
                self._departure.drop(self)

    def _may_leave(self) -> bool:
        """Return whether the close has begun, and workers have finished, or have had their time."""
        if self._departure is None:
            return False
        may_end = self._departure.may_end(self, self._service.may_leave())
        return may_end or self._served.now() >= self._leaves_by

    def _take(self, most_seconds: float) -> None:
        """Wait for the next event, if none has come, and take all that have come."""
        found = self._selector.select(most_seconds)
        if found and self._departure is not None and not self._departure.may_take(self):
            return
        for key, events in found:
            peer = key.data
            if peer is not None:
                self._receive(peer) if events & selectors.EVENT_READ else self._send(peer)
            elif key.fileobj is self._listener:
                self._accept()
            else:
                self._hear(key.fd)

    def _leave(self) -> None:
        """Do what workers have asked for until now, then end their sessions.

        If none of them has work left, no message is taken any more: an answered *put* would be lost.
        """
        for key, _ in self._selector.select(0) if not self._service.may_leave() else ():
            if key.data is not None:
                self._receive(key.data)
        self._service.turn()
        self._answer()
        self._service.hand_over()
        self._end_all()

    def _end_all(self) -> None:
        """Give up the name of the socket, and end all sessions of workers. The queue still has its lock.

        No worker may wait for an answer that never comes, so an error of one connection ends the others as well.
        """
        with suppress(
            OSError, PersistentQueueError
        ):  # in the directory that is held: another queue may have its name by now
            self._disk.unlink(join(self.directory, SOCKET_NAME))
        self._service.leave()
        if self._listener is not None:
            self._listener.close()
        for peer in list(self._peers):
            with suppress(Exception):
                self._drop(peer, may_return=False)

    def _hear(self, fd: int) -> None:
        """Take a wake-up. If it may come from a published file, look at the inbox: for those that wait, and for readers
        in other processes, which see only what is adopted."""
        assert self._bell is not None
        is_file = self._bell.take(fd)
        if fd not in self._bell.descriptors:  # the system has ended the watch
            self._selector.unregister(fd)
        if is_file:
            self._look()

    def _look(self) -> None:
        with suppress(PersistentQueueError, OSError):  # those that take raise it
            self._served.open_queue.adopt_news()

    def _accept(self) -> None:
        assert self._listener is not None
        if self._accepts_at < inf:
            self._accepts_at = inf
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._keep_spare()
        while True:
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:  # no descriptor is free
                if not self._is_short:
                    LOGGER.warning("%s: a worker has to wait: %s", self.directory, error)
                self._is_short = True
                if self._turn_away(error):
                    return
                self._selector.unregister(self._listener)
                self._accepts_at = self._served.now() + RETRY_SECONDS
                return
            self._is_short = False
            try:
                is_one_of_us = is_believed(connection, self._disk.lstat(self.directory))
            except (OSError, PersistentQueueError):  # the worker has gone, or the queue was closed
                connection.close()
                continue
            if not is_one_of_us:
                LOGGER.warning("%s: a process of another user was refused", self.directory)
                _refuse(connection, RefusedError(self.directory, "this process runs as another user"))
                continue
            connection.setblocking(False)
            client = self._service.connect()
            peer = client.peer = _Peer(connection, client)
            self._peers.add(peer)
            self._selector.register(connection, selectors.EVENT_READ, peer)

    def _turn_away(self, error: OSError) -> bool:
        """Tell those that wait that no descriptor is free, and end their connections. Return False if that cannot be
        done."""
        lack = lacking(
            error, self.directory, "at the owner of the queue, to serve another process", "then connect again"
        )
        while lack is not None and self._spare is not None:
            kept, self._spare = self._spare, None
            kept.close()
            try:
                assert self._listener is not None
                connection, _ = self._listener.accept()
            except BlockingIOError:  # there are no more of them
                self._keep_spare()
                return self._spare is not None
            except OSError:  # another thread has taken the descriptor
                return False
            _refuse(connection, lack)
            self._keep_spare()
        return False

    def _keep_spare(self) -> None:
        with suppress(OSError):
            self._spare = self._spare or spare()

    def _receive(self, peer: _Peer) -> None:
        try:
            count = peer.socket.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self._drop(peer, may_return=True)
            return
        try:
            self._service.receive(peer.client, bytes(self._buffer[:count]))
        except ProtocolError as error:
            LOGGER.warning("%s: a connection was ended, for it sent %s", self.directory, error)
            self._drop(peer, may_return=True)
        except Exception:  # a bug, which must not end the other connections
            LOGGER.exception("%s: a connection was ended, for its call has failed", self.directory)
            self._drop(peer, may_return=True)

    def _answer(self) -> None:
        """Send all answers. A worker that has not read the last one gets the rest when it reads."""
        for client in self._service.take_answered():
            peer = client.peer
            if isinstance(peer, _Peer) and peer in self._peers and not peer.left:
                self._send(peer)

    def _send(self, peer: _Peer) -> None:
        out, left = peer.client.out, peer.left
        data = out[0] if len(out) == 1 and not left else b"".join((left, *out)) if out else left
        out.clear()
        try:
            sent = peer.socket.send(data, NO_SIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(peer, may_return=True)
            return
        if sent == len(data) and not left:
            return
        # A view: to copy the rest of a long answer for each part that the system takes would cost its square.
        was_left, peer.left = bool(left), memoryview(data)[sent:] if sent < len(data) else b""
        if was_left != bool(peer.left):
            events = selectors.EVENT_WRITE if peer.left else selectors.EVENT_READ
            self._selector.modify(peer.socket, events, peer)

    def _drop(self, peer: _Peer, *, may_return: bool) -> None:
        if peer in self._peers:
            self._peers.remove(peer)
            self._selector.unregister(peer.socket)
            peer.socket.close()
            self._service.disconnect(peer.client, may_return=may_return)


def _refuse(connection: Socket, error: PersistentQueueError) -> None:
    """Tell the worker why it is not served, and end its connection."""
    with suppress(OSError):
        connection.setblocking(False)
        connection.send(encode(Failed(encode_error(error)), FIRST_CALL), NO_SIGNAL)
    connection.close()


def leave_together(directories: Iterable[str]) -> None:
    """Begin the end of the servers of the queues in these directories, as far as this process has them.

    Each stays until no worker has work at any of them, or its time is over. The close of each queue must follow, which
    waits for that.
    """
    found = map(server_of, directories)
    _leave_together([server for server in found if server is not None])


def _leave_together(servers: Iterable[Server]) -> None:
    running = [server for server in servers if server.is_running]
    departure = Departure({server: server._ring for server in running})
    for server in running:
        server._begin_to_leave(departure)


_SERVERS: Members[Server] = Members()
SERVING: dict[int, str] = {}
"""The directory of the queue that each thread of a server serves, by the thread's identifier."""


def server_of(directory: str) -> Server | None:
    """Return the server of the queue in this directory, if this process has it."""
    return next((server for server in _SERVERS if server.directory == directory), None)


def _abandon_all() -> None:
    SERVING.clear()  # the threads are gone, and others may get their identifiers
    for server in _SERVERS:
        server.abandon()


after_fork_in_child(_abandon_all)

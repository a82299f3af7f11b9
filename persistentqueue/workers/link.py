"""One connection of a worker to the owner of a queue: a call, and its answer. For one thread at a time.

A signal handler may raise between any two instructions. So each step that moves bytes is one call of C code that also
notes what was moved: an interruption finds a call that was not sent, one that was sent in part, or one whose answer is
to come. ``settle`` finishes such a call.
"""

from __future__ import annotations

from math import ceil
from threading import get_ident
from typing import NamedTuple

from ..errors import ItemTooLargeError, PersistentQueueError, ReentrantUseError
from ..interrupts.locks import RLock
from ..interrupts.members import Members
from ..serving.protocol import (
    FIRST_CALL,
    FOR_EVER,
    FROM_OWNER,
    ITEM_BYTES_MAX,
    Cancel,
    End,
    Flush,
    Incoming,
    Message,
    ProtocolError,
    Take,
    encode,
)
from ..serving.server import SERVING
from ..system.disk import after_fork_in_child
from ..system.path_errors import faults, suppress
from ..system.sockets import NO_SIGNAL, Socket, cut

_RECEIVE_BYTES = 64 * 1024


class LinkLostError(Exception):
    """Internal error: the owner has ended the connection, or has ended itself."""

    was_sent = False
    """True if the owner may have the message of the call."""


class Going(NamedTuple):
    """A call that was begun: the number, the message, its bytes, how many of them were sent, and what was received."""

    call: int
    message: Message
    data: bytes
    sent: list[int]
    received: list[bytes]


class Attached(NamedTuple):
    """A connection of a session to the present owner, and what its welcome says."""

    link: Link
    counts: bool
    """Whether the owner counts delivery attempts."""
    kept: int
    """Number of items that the owner holds for the session since an earlier owner has left."""


class Link:
    """A connection to the owner, for one thread at a time. ``give_up``, ``wait_no_more`` and ``cut`` are for any
    thread."""

    def __init__(self, connection: Socket, directory: str) -> None:
        self._directory = directory
        self._socket = connection
        self._calls = FIRST_CALL - 1
        self.going: Going | None = None
        """The call that was begun and whose effect the caller has not noted; None if there is none."""
        self.is_lost = False
        self._gives_up = -1
        """Call whose wait shall end."""
        self._waits_no_more = False
        """True if the wait of each call shall end at once."""
        self._cancelling = RLock()
        """Held while another thread sends a cancel: no message may begin in the middle of it."""
        _LINKS.add(self)

    def call(self, message: Message, *before: bytes) -> Message:
        """Send a message, and return its answer. ``end`` must follow when its effect was noted.

        ``before`` are messages without an answer, which are sent first. Raises ``LinkLostError``. Raises
        ``ReentrantUseError`` in the thread that would have to answer, where a handler of ``logging`` has called.
        """
        if SERVING.get(get_ident()) == self._directory:
            raise ReentrantUseError(
                f"{self._directory}: called by a log handler in the thread that serves this queue, which would wait "
                "for itself: make this call in another thread"
            )
        self._calls = call = (self._calls + 1) & 0xFFFFFFFF
        data = encode(message, call)
        with self._cancelling:  # a cancel of the last call is sent whole
            pass
        # One step, so an interruption finds no call, or all that ``settle`` needs.
        self.going = Going(call, message, b"".join((*before, data)) if before else data, [], [])
        return self._finish(self.going)

    def end(self) -> None:
        """Forget the call: its effect was noted. Code that must not be interrupted here sets ``going`` to None."""
        self.going = None

    def settle(self) -> tuple[Message, Message] | None:
        """Finish a call that was interrupted; return its message and its answer, or None if it was never made.

        A wait for an item or for room ends at once. Call ``end`` when the answer was taken. Raises ``LinkLostError``,
        also if the interruption came while that error was made.
        """
        if self.is_lost:
            raise LinkLostError
        going = self.going
        if going is None:
            return None
        if not going.sent and not going.received:
            self.going = None
            return None
        if isinstance(going.message, Take | Flush):
            self._gives_up = going.call
        return going.message, self._finish(going)

    def give_up(self) -> None:
        """End the wait of the call that is under way, in another thread."""
        with self._cancelling:
            going = self.going
            if going is None:
                return
            self._gives_up = going.call
            # No message may be in the middle of another: if this one is still being sent, ``_finish`` ends the wait.
            if sum(going.sent) == len(going.data):
                self._cancel(going)

    def wait_no_more(self) -> None:
        """End the wait of the call that is under way, and of each later one. For any thread."""
        self._waits_no_more = True
        self.give_up()

    def _cancel(self, going: Going) -> None:
        with suppress(OSError):  # the thread that waits finds it, too
            self._socket.send(encode(Cancel(), going.call), NO_SIGNAL)

    def part(self) -> None:
        """Say that the worker will not ask for the outcome of its flushes, and end the connection."""
        try:
            if not self.is_lost and self.going is None:
                with suppress(OSError):
                    self._socket.send(encode(End(), 0), NO_SIGNAL)
        finally:
            self.close()

    def cut(self) -> None:
        """End the connection, also for a thread that waits for an answer. For any thread."""
        cut(self._socket)

    def close(self) -> None:
        """End the connection: the owner rolls its session back."""
        self.is_lost = True
        _LINKS.discard(self)
        self._socket.close()

    def _finish(self, going: Going) -> Message:
        self._pump(going)
        if self._waits_no_more or self._gives_up == going.call:
            self._cancel(going)
        received, need_bytes = going.received, 0
        while True:
            if received and (not need_bytes or sum(map(len, received)) >= need_bytes):
                need_bytes, answer = _answer(b"".join(received), going.call)
                if answer is not None:
                    return answer
            try:
                # One call of C code: an interruption comes before the bytes, or finds them in the list.
                next(map(received.append, map(self._socket.recv, (_RECEIVE_BYTES,))))
            except faults(OSError) as error:
                raise self._lost(bool(going.sent)) from error
            if not received[-1]:
                raise self._lost(bool(going.sent))

    def _pump(self, going: Going) -> None:
        """Send what is left of the call."""
        data, sent = going.data, going.sent
        while (done := sum(sent)) < len(data):
            rest = memoryview(data)[done:] if done else data
            try:
                next(map(sent.append, map(self._socket.send, (rest,), (NO_SIGNAL,))))
            except BrokenPipeError:  # the owner has ended the connection, perhaps with an answer
                return
            except faults(OSError) as error:
                raise self._lost(bool(going.sent)) from error

    def _lost(self, was_sent: bool = True) -> LinkLostError:
        # No call in these two steps: a call whose answer never comes is not taken for one that was not sent.
        self.is_lost = True
        self.going = None
        self.close()
        error = LinkLostError()
        error.was_sent = was_sent
        return error


def _answer(data: bytes, call: int) -> tuple[int, Message | None]:
    """Return the answer to this call in the bytes received; else None, and the bytes that a further look needs."""
    incoming = Incoming(FROM_OWNER)
    try:
        messages = incoming.feed(data)
    except ProtocolError as error:
        raise PersistentQueueError(
            f"the owner of the queue has sent {error}: use one version of the package"
        ) from error
    for number, message in messages:
        if number == call:
            return 0, message
    return incoming.need_bytes, None


_LINKS: Members[Link] = Members()


def _close_all() -> None:
    # The parent has the same sockets: to close the child's copies ends no connection.
    for link in _LINKS:
        link._cancelling = RLock()  # another thread of the parent may have held it
        link.close()


after_fork_in_child(_close_all)


def milliseconds(seconds: float | None) -> int:
    """Return the wait as a message has it."""
    return FOR_EVER if seconds is None else min(ceil(1000 * seconds), FOR_EVER - 1)


def too_large(size_bytes: int) -> ItemTooLargeError:
    """Return the error for an item of ``size_bytes`` bytes, which no message has room for."""
    return ItemTooLargeError(
        f"an item of {size_bytes} bytes exceeds the maximum of a worker, {ITEM_BYTES_MAX} bytes: split it, or "
        "enqueue it in the process that owns the queue"
    )

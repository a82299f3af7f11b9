"""A question to the owner of a queue, over the socket on which it serves: without its lock, and with a bounded wait."""

from __future__ import annotations

from typing import Any

from ..errors import PersistentQueueError
from ..serving.protocol import (
    CALLS_ONLY,
    CONNECTION_BYTES,
    FROM_OWNER,
    VERSION,
    Call,
    Failed,
    Hello,
    Incoming,
    Message,
    Result,
    Welcome,
    encode,
)
from ..serving.values import decode_value
from ..storage.layout import SOCKET_NAME
from ..system.disk import Disk
from ..system.path_errors import suppress
from ..system.sockets import NO_SIGNAL, Socket, connect, is_believed

_RECEIVE_BYTES = 64 * 1024


def ask(disk: Disk, directory: str, call: str, timeout_seconds: float, refusal: Any = None, /, **arguments: Any) -> Any:
    """Return the answer of the owner to a call, or ``refusal`` for an error; None if it gives none.

    There is none if no owner serves the queue to this process, or if it is silent for ``timeout_seconds``.
    """
    # An owner of another version may send what this one does not know.
    with suppress(OSError, PersistentQueueError, LookupError, TypeError, ValueError):
        connection = connect(directory, SOCKET_NAME, timeout_seconds)
        if connection is not None:
            with connection:
                if is_believed(connection, disk.lstat(directory)):
                    return _ask(disk, connection, Call({"call": call, "arguments": arguments}), refusal)
    return None


def _ask(disk: Disk, connection: Socket, call: Call, refusal: Any) -> Any:
    hello = {
        "versions": [VERSION, VERSION],
        "connection": disk.urandom(CONNECTION_BYTES).hex(),
        "process": disk.getpid(),
        "name": "look",
        "role": CALLS_ONLY,
    }
    incoming = Incoming(FROM_OWNER)
    if not isinstance(_answer(connection, incoming, Hello(hello)), Welcome):
        return None
    answer = _answer(connection, incoming, call)
    if isinstance(answer, Result):
        return decode_value(answer.fields.get("result"))
    return refusal if isinstance(answer, Failed) else None


def _answer(connection: Socket, incoming: Incoming, message: Message) -> Message | None:
    """Send a message, and return its answer; None if the owner ends the connection."""
    connection.sendall(encode(message, 1), NO_SIGNAL)
    while data := connection.recv(_RECEIVE_BYTES):
        for _, answer in incoming.feed(data):
            return answer
    return None

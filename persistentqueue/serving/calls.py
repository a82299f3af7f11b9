"""The calls of a queue that a worker may make beside those of its session, and the start of a server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ..errors import PersistentQueueError
from ..runtime.open_queue import OpenQueue
from ..session import Session
from ..system.disk import current_disk
from .protocol import VERSION
from .server import Server
from .service import Served
from .values import encode_value

CALLS: Final = frozenset(
    {
        "__len__",
        "clear",
        "compact",
        "explain",
        "maintain",
        "marker",
        "requeue",
        "resize",
        "stats",
        "subscribe",
        "subscriptions",
        "sync",
        "trim",
        "unsubscribe",
    }
)
"""Names of the methods of ``PersistentQueue`` that a worker may call."""


def make_call(queue: object, open_queue: OpenQueue, name: str, arguments: dict[str, Any]) -> Any:
    """Make this call of the queue, and return its result as a json. Raises the errors of the call."""
    if name == "subscription_length":
        reader = open_queue.reader_named(**arguments)
        return open_queue.look(lambda: len(reader.ready))
    if name not in CALLS:
        raise PersistentQueueError(f"the owner of the queue knows no call {name!r}: use one version of the package")
    result = getattr(queue, name)(**arguments)
    return None if name == "subscribe" else encode_value(result)


def serve(
    queue: object, open_queue: OpenQueue, session: Callable[[str, str], Session[bytes]], facts: dict[str, Any]
) -> Server:
    """Serve an open queue to workers, and return the server. Raises ``OSError``."""
    facts = {"version": VERSION, "identity": open_queue.identity.hex(), **facts}
    server = Server(Served(open_queue, session, partial(make_call, queue, open_queue), facts, current_disk().monotonic))
    try:
        server.start()
    except BaseException:
        server.stop()
        raise
    return server

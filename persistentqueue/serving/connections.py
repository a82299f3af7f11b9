"""The connections of an owner, as users see them: which process holds what, for how long, and whether it waits.

Any thread may ask, while the thread of the server adds and removes connections. ``set.copy`` is one call of C code that
runs no code of Python, so the set does not change meanwhile. Each field of a connection is read once. The mutex of the
open queue is held, so what a session holds does not change either.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from typing import Final, NamedTuple

from ..drawing.text import printable
from ..runtime.open_queue import OpenQueue
from ..runtime.session_state import hold_of
from .client import Client

LISTED_MAX: Final = 1000
"""Most connections in one list, so that it fits into one message."""


class Connection(NamedTuple):
    """A session of another process, as the owner of the queue sees it: an entry of ``PersistentQueue.connections``.

    The values describe the moment of that call. Texts are cut to 64 characters: they come from the other process.
    ``str()`` gives one line. The tuple never changes, so any thread may use it.
    """

    process: int
    """Process id of the other process, as it described itself."""
    process_name: str
    """Name of its program, or the name that ``multiprocessing`` gave it; empty if it has none."""
    thread: str
    """Name of the thread that used the session first."""
    session: str
    """Name that the session was given; without one, the name of that thread."""
    subscription: str
    """Subscription that it dequeues from; empty for the plain queue."""
    held: int
    """Number of items that the session has dequeued and not flushed."""
    seconds: float
    """Seconds since the session's transaction began to hold items or to spill; 0.0 if it does neither."""
    waits: bool
    """Whether the session waits for an item."""
    is_lost: bool
    """Whether its items went back because of ``hold_seconds``, and it was not rolled back since."""
    flushes: int
    """Number of flushes of the session, with those to earlier owners."""

    def __str__(self) -> str:
        deeds = [f"holds {self.held:,} for {self.seconds:,.1f} s"] if self.held else []
        deeds += ["waits for an item"] if self.waits else []
        deeds += ["has lost its items by hold_seconds"] if self.is_lost else []
        program, thread = printable(self.process_name), printable(self.thread)
        who = f"process {self.process}" + (f" ({program})" if program else "")
        whom = f" of the subscription {self.subscription!r}" if self.subscription else ""
        return f"{who}, thread {thread}, session {self.session!r}{whom}: {', '.join(deeds) or 'idle'}"


def connections_of(open_queue: OpenQueue, clients: set[Client]) -> list[Connection]:
    """Return those of these connections that have a session, the longest hold first, at most ``LISTED_MAX``. For any
    thread."""
    found = open_queue.look(lambda: list(map(_seen, _with_session(clients))))
    return nsmallest(LISTED_MAX, found, key=lambda each: (-each.seconds, each.process, each.thread, each.session))


def count_connections(clients: set[Client], blocked: Sequence[Client]) -> tuple[int, int, int]:
    """Return three numbers: of connections that have a session, of those that wait for an item, and of ``blocked``
    ones. The flush of a blocked one waits for room. For any thread."""
    chosen = _with_session(clients)
    return len(chosen), sum(client.waits is not None for client in chosen), len(blocked)


def _with_session(clients: set[Client]) -> list[Client]:
    return [client for client in clients.copy() if not client.only_calls]


def _seen(client: Client) -> Connection:
    """Return the connection at this moment. The mutex is held."""
    session = client.session
    hold = hold_of(session) if session is not None else None
    return Connection(
        client.process,
        client.process_name,
        client.thread,
        client.name,
        client.subscription,
        sum(count for _, count in hold.runs) if hold is not None else 0,
        hold.seconds if hold is not None else 0.0,
        client.waits is not None,
        client.is_lost,
        client.number,
    )

"""The calls of a queue that a worker may make beside those of its session, and the making of a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from ..engine.reader import Reader
from ..errors import PersistentQueueError, SessionInUseError
from ..interrupts.members import Members
from ..options import Options, counts_deliveries, relied_on
from ..runtime.open_queue import OpenQueue
from ..runtime.session_state import flush_jointly
from ..session import Session
from ..storage.inbox_limits import LIMITS
from ..system.disk import current_disk, realpath
from .handover import Handover
from .protocol import VERSION
from .server import Server, server_of
from .service import Served, session_for
from .values import encode_value

CALLS: Final = frozenset(
    {
        "__len__",
        "clear",
        "compact",
        "connections",
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
OWN_NEIGHBOUR: Final = "own_neighbour"
"""Name of the call that asks a process to own another queue as well, that of the argument ``directory``."""
CONNECTED_TEXT, LEAVING_TEXT, UNKNOWN_TEXT = "connected", "leaving", "unknown"
"""Its answers: the process is connected to the queue, was so until now, or is not. The first one owns it, if no other
process does."""


class Connected(Protocol):
    """A queue that this process is connected to."""

    directory: str
    dead_letters: str
    """Directory of its dead letters; empty without such a name."""

    @property
    def is_leaving(self) -> bool:
        """True from the beginning of its close on, or of the end of the process."""

    @property
    def owns(self) -> bool:
        """Whether this process owns the queue now."""

    def own_here(self) -> bool:
        """Make this process the owner, if no process is; return whether it owns the queue now."""

    def give_up(self) -> None:
        """Close the queue at its owner, this process, unless the process has sessions of it."""


CONNECTED: Final[Members[Connected]] = Members()
"""The queues that this process is connected to and may own."""


class NoCommonOwnerError(ValueError):
    """This process does not own all queues of a transaction, at least for now. Workers get it as a ``ValueError`` with
    the same attribute."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.needs_common_owner = True


def make_call(queue: object, open_queue: OpenQueue, name: str, arguments: dict[str, Any]) -> Any:
    """Make this call of the queue, and return its result as a json. Raises the errors of the call."""
    if name == "subscription_length":
        reader = open_queue.reader_named(**arguments)
        return open_queue.look(lambda: len(reader.ready))
    if name == "sizes_of":
        return list(open_queue.sizes_of(_reader(open_queue, **arguments)))
    if name == "flush_jointly":
        return _flush_jointly(**arguments)
    if name == OWN_NEIGHBOUR:
        return _own_neighbour(**arguments)
    if name not in CALLS:
        raise PersistentQueueError(f"the owner of the queue knows no call {name!r}: use one version of the package")
    result = getattr(queue, name)(**arguments)
    return None if name == "subscribe" else encode_value(result)


def _reader(open_queue: OpenQueue, name: str) -> Reader:
    """Return the reader of this subscription, or the plain one for an empty name. Raises
    ``SubscriptionNotFoundError``."""
    return open_queue.reader_named(name) if name else open_queue.need_plain()


def _own_neighbour(directory: str) -> str:
    """Make this process the owner of this queue, if it is connected to it and no process is. Raises the errors of
    ``PersistentQueue``."""
    found = [each for each in CONNECTED if each.directory == directory]
    staying = [each for each in found if not each.is_leaving]
    if any(each.own_here() for each in staying) or staying:
        return CONNECTED_TEXT
    return LEAVING_TEXT if found else UNKNOWN_TEXT


def _flush_jointly(parts: Sequence[tuple[str, str, int]], marker: tuple[str, int] | None) -> bool:
    """Flush the sessions of several connections of one worker as one transaction over their queues.

    Each part has the directory of the queue, the id of the connection, and the number of its flush. The marker is for
    the first. Raises the errors of ``flush``, and ``NoCommonOwnerError`` if this process does not own one of the
    queues.
    """
    found = []
    for directory, connection, number in parts:
        if type(number) is not int:
            raise ValueError(f"{directory}: expected the number of a flush, got {number!r}")
        server = server_of(directory)
        if server is None:
            raise NoCommonOwnerError(
                f"{directory}: the process that owns {parts[0][0]} does not own this queue: a transaction needs one "
                "owner: connect to both queues in each process, or let the command serve own both"
            )
        found.append((server, server.client_of(bytes.fromhex(connection)), number))
    if not found:
        raise ValueError("a transaction over several queues needs a session, got none")

    def sessions() -> list[Session[bytes]]:
        """Return the sessions, unless a hold has ended or a number is an old one."""
        return [session_for(server.directory, client, number) for server, client, number in found]

    origins = [(client.id, number) for _, client, number in found]
    try:  # they are asked for again when no other thread can end a hold any more
        committed = flush_jointly(sessions(), origins, None if marker is None else (marker[0], marker[1]), sessions)
    except SessionInUseError:
        sessions()  # the end of a hold is the use
        raise
    for server, client, number in found:
        server.note_flush(client, number)
    return committed


def make_server(
    queue: object, open_queue: OpenQueue, session: Callable[[str, Reader | None], Session[Any]], options: Options
) -> Server:
    """Return the server of ``queue``, an open ``PersistentQueue``, for its owner to start and to stop.

    ``session`` makes a session without a codec, by its name and the reader of its subscription, if any.
    """

    def session_of_worker(name: str, subscription: str) -> Session[bytes]:
        """Return a session of this name, for a subscription, or without one for an empty text."""
        return session(name, open_queue.reader_named(subscription) if subscription else None)

    recorded = {name: getattr(open_queue.settings, name) for name in LIMITS} | {
        "fan_out": open_queue.plain is None,
        "data_path": realpath(open_queue.data_root),  # as workers compare it: either may come through a link
    }
    facts = {
        "version": VERSION,
        "identity": open_queue.identity.hex(),
        "data_path": open_queue.data_root,
        "counts": counts_deliveries(options),
        "options": relied_on(options) | recorded,
    }
    call = partial(make_call, queue, open_queue)
    handover = Handover(open_queue.disk, open_queue.directory)
    now = current_disk().monotonic
    return Server(Served(open_queue, session_of_worker, call, facts, now, handover), options.grace_seconds)

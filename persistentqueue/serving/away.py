"""The connections that are away: sessions of an earlier owner that hold items, and have not come back yet.

``handover`` describes the way of a hold from one owner to the next. For one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf

from ..core.intervals import Run
from ..errors import PersistentQueueError, SessionInUseError
from ..runtime.session_state import held_alone, hold_again, let_go, reader_of
from ..session import Session
from .client import HOLD_SECONDS_MAX, Client, text
from .handover import LOOK_SECONDS, Handover, KeptHold


class Away:
    """The connections that are away."""

    def __init__(
        self, handover: Handover, session: Callable[[str, str], Session[bytes]], now: Callable[[], float]
    ) -> None:
        """``session`` and ``now`` are those of ``Served``."""
        self._handover, self._session, self._now = handover, session, now
        self.clients: set[Client] = set()
        self.looks_at = inf
        """Time of the next look at them; ``inf`` if there are none."""

    def inherit(self, answered: list[Client]) -> set[Client]:
        """Hold what the last owner has left, and return its connections, which have this list of answered ones."""
        left = self._handover.take()
        present = self._handover.present([hold.connection for hold in left])
        for hold in left:
            with suppress(PersistentQueueError):  # a subscription that was removed, for example
                if hold.connection in present:
                    self._hold_again(hold, Client(answered))
        if self.clients:
            self.looks_at = self._now() + LOOK_SECONDS
        return self.clients.copy()

    def _hold_again(self, hold: KeptHold, client: Client) -> None:
        client.id, client.process, client.process_name = hold.connection, hold.process, text(hold.process_name)
        client.name, client.thread, client.subscription = map(text, (hold.name, hold.thread, hold.subscription))
        session = self._session(client.session_name, hold.subscription)
        if not hold_again(session, hold.runs):
            session.close()
            return
        client.session, client.reader = session, reader_of(session)
        client.is_away, client.kept = True, hold.held
        if hold.hold_seconds is not None:
            client.hold_seconds = float(min(hold.hold_seconds, HOLD_SECONDS_MAX))
        self.clients.add(client)

    def of(self, connection: bytes, subscription: str) -> Client | None:
        """Return the connection with this id, if its session dequeues from this subscription; else None."""
        for each in self.clients:
            if each.id == connection and _subscription_of(each) == subscription:
                return each
        return None

    def gone(self, now: float) -> list[Client]:
        """Return the connections that will not come back, if it is time to look; else none."""
        if now < self.looks_at:
            return []
        present = self._handover.present([client.id for client in self.clients])
        self.looks_at = now + LOOK_SECONDS if present else inf
        return [client for client in self.clients if client.id not in present]


def hand_over(handover: Handover, clients: Collection[Client]) -> None:
    """Leave the held items of these connections to the next owner, as far as their sessions can go on there.

    These items are not released here: nothing else takes them until the queue is closed.
    """
    held = {client.id: hold for client in clients if (hold := _hold_of(client)) is not None}
    present = handover.present(held)
    left = handover.leave([held[each] for each in present])
    for client in clients:
        if client.id in left and client.session is not None:
            with suppress(SessionInUseError):  # another thread flushes it: the next owner finds the items consumed
                let_go(client.session)


def _hold_of(client: Client) -> KeptHold | None:
    """Return what the session holds, if that is all its work; else None.

    A worker makes a flush again that is under way, with all of its items. So it does not count.
    """
    runs: list[Run] = []
    if client.session is not None and not client.is_busy and not client.is_lost:
        with suppress(SessionInUseError):  # another thread flushes it
            runs = held_alone(client.session, may_enqueue=client.flush is not None)
    if not runs:
        return None
    described = (client.process, client.process_name, client.thread, client.name, _subscription_of(client))
    return KeptHold(client.id, *described, client.hold_seconds, runs)


def _subscription_of(client: Client) -> str:
    """Return the whole name of the subscription that the session dequeues from."""
    return client.reader.ready.name if client.reader is not None else ""

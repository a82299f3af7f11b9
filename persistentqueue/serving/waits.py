"""The connections that wait for an item: they are served in the order in which they came. No sockets, threads or clock.

All connections that wait on one reader have one place in the line of the open queue, among the threads that wait (see
``waiting``). When the queue tells the place, the service makes a turn. Then ``serve`` hands ready items to the first
connections of the line, and the place enters the line of the queue again for the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from ..engine.reader import Reader
from ..runtime.open_queue import OpenQueue
from .client import Client
from .protocol import Taken

_SPARE: Final = 64
"""Entries of waits that have ended, beside two for each connection, that a list of waits keeps."""


class Waits:
    """The waits of all connections to one queue. For one thread at a time; only ``Place.tell`` is for any thread."""

    def __init__(
        self, open_queue: OpenQueue, ring: Callable[[], object], hand_out: Callable[[Client, int], bool]
    ) -> None:
        """``ring`` makes the owner's thread call ``serve`` soon. ``hand_out`` gives items to a connection that waits,
        and answers its call. It returns False if the connection must wait on."""
        self._queue = open_queue
        self._ring = ring
        self._hand_out = hand_out
        self._places: dict[Reader, Place] = {}
        """Places by their reader. A number is no key: a later subscription may get that of a removed one."""
        self._due: list[tuple[float, int, Client, int]] = []
        """Heap of deadlines: time, a counter, the connection and its call. Entries of calls that ended are ignored."""
        self._count = 0

    def __bool__(self) -> bool:
        """Return whether a connection waits for an item."""
        return any(place.line for place in self._places.values())

    def has(self, reader: Reader) -> bool:
        """Return whether a connection waits on this reader."""
        place = self._places.get(reader)
        return place is not None and bool(place.line)

    def add(self, client: Client, call: int, reader: Reader, deadline: float, connections: int) -> None:
        """Let the connection wait in this call, behind all others of its reader. There are so many ``connections``."""
        place = self._places.get(reader)
        if place is None:
            place = self._places[reader] = Place(reader, self._ring)
        if len(place.line) > _SPARE + 2 * connections:
            place.line = deque(each for each in place.line if _waits_in(*each))
        place.line.append((client, call))
        if len(self._due) > _SPARE + 2 * connections:
            self._due = [each for each in self._due if _waits_in(*each[2:])]
            heapify(self._due)
        if deadline < inf:
            self._count += 1
            heappush(self._due, (deadline, self._count, client, call))

    def serve(self, now: float) -> float:
        """Hand out ready items, and end the waits that are over. Return when a delay or a wait is over next; ``inf`` if
        there is none."""
        next_due = inf
        for reader, place in list(self._places.items()):
            next_due = min(next_due, self._serve(place, now))
            if reader.ready.is_closed and not place.line:  # the subscription was removed
                self._queue.dismiss(place)
                del self._places[reader]
        return min(next_due, self._end(now)) if self._due else next_due

    def serve_one(self, reader: Reader, now: float) -> None:
        """Hand ready items to the connections that wait on this reader, of which there are some."""
        self._serve(self._places[reader], now)

    def let_go(self, chosen: Callable[[Client], bool]) -> None:
        """Forget the waits of these connections. They get no answer."""
        for place in self._places.values():
            place.line = deque(each for each in place.line if not chosen(each[0]))
        self._due = [each for each in self._due if not chosen(each[2])]
        heapify(self._due)

    def leave(self) -> None:
        """Leave the line of the queue: nothing is served any more."""
        for place in self._places.values():
            self._queue.dismiss(place)

    def _serve(self, place: Place, now: float) -> float:
        """Hand out items, and line up with the queue for the rest. Return the time at which a delay is over."""
        line, next_due = place.line, inf
        while line:
            client, call = line[0]
            if not _waits_in(client, call):
                line.popleft()
            elif not place.is_told and now < place.due:  # it stands in the line of the queue, which tells it
                next_due = place.due
                break
            elif self._queue.has_item(place.reader):
                if self._hand_out(client, call):
                    line.popleft()
            else:
                place.due = now + self._queue.enlist(place.reader, place)
        if not line and place.was_told:
            place.was_told = False
            self._queue.pass_on(place.reader)
        return next_due

    def _end(self, now: float) -> float:
        """Answer the connections whose wait is over. Return the time at which the next wait is over."""
        due = self._due
        while due and (due[0][0] <= now or not _waits_in(*due[0][2:])):
            _, _, client, call = heappop(due)
            if _waits_in(client, call):
                client.waits = None
                client.answer(call, Taken(0, ()))
        return due[0][0] if due else inf


class Place:
    """The place of all connections that wait on one reader, in the line of the open queue's waiters."""

    __slots__ = ("due", "is_told", "line", "reader", "ring", "was_told")

    def __init__(self, reader: Reader, ring: Callable[[], object]) -> None:
        self.reader = reader
        self.ring = ring
        self.line: deque[tuple[Client, int]] = deque()
        """Connections that wait, each with its call, in the order in which they came."""
        self.is_told = True
        """True if the place stands in no line: it was told, or has not entered."""
        self.was_told = False
        """True if the place was told, and perhaps has taken nothing: another waiter must then be told."""
        self.due = inf
        """Time at which a delayed item is ready; ``inf`` if there was none when the place entered the line."""

    def tell(self) -> None:
        """Wake the service: there may be an item. The mutex of the open queue is held."""
        self.is_told = self.was_told = True
        self.ring()


def _waits_in(client: Client, call: int) -> bool:
    """Return whether the connection still waits for an item in this call."""
    return client.waits is not None and client.waits[0] == call

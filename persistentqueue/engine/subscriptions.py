"""Those who consume a queue: for each subscription a reader, and what he may dequeue now.

They share the page cache, and the segments. Changed by the thread that writes, with the mutex; to look takes the mutex
as well. The plain queue is subscription 0, unless it has none.
"""

from __future__ import annotations

from ..core.availability import Availability, Remaining
from ..core.page_cache import Pages
from ..core.state import State
from ..errors import SubscriptionNotFoundError
from ..storage.segment_files import Segments
from ..system.disk import Disk
from .reader import CountedAvailability, CountedReader, Guard, Reader
from .transaction import Settings


class Subscriptions:
    """The readers of all subscriptions of a state."""

    def __init__(
        self, disk: Disk, settings: Settings, state: State, segments: Segments, mutex: Guard, reading: Guard
    ) -> None:
        self._disk = disk
        self._counts = settings.counts_attempts
        self._state = state
        self._segments = segments
        self._mutex = mutex
        self._reading = reading
        self.pages = Pages(settings.memory_bytes, self.front)
        self._readers = {number: self._consumer(number) for number in state.subscriptions}
        self._past_hits = self._past_reads = 0
        """What those did who are not there any more."""

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def plain(self) -> Reader | None:
        """The plain queue's; None if it has none."""
        return self._readers.get(0)

    def find(self, name: str) -> Reader:
        """The one with this name. Raises ``SubscriptionNotFoundError``."""
        number = self._state.number_of(name)
        if not number:
            raise SubscriptionNotFoundError(name, self.names())
        return self._readers[number]

    def names(self) -> list[str]:
        """Of all of them but the plain queue's, the oldest first."""
        return [cursor.name for number, cursor in sorted(self._state.subscriptions.items()) if number]

    def follow(self) -> None:
        """The state has others now."""
        for number in self._state.subscriptions.keys() - self._readers.keys():
            self._readers[number] = self._consumer(number)
        for number in self._readers.keys() - self._state.subscriptions.keys():
            reader = self._readers.pop(number)
            reader.ready.close()
            self._past_hits += reader.page_hits
            self._past_reads += reader.page_reads

    def of_all(self) -> Reader:
        """A reader of what anybody may still dequeue, for who only looks."""
        return self._reader(Remaining(self._state))

    def front(self) -> int:
        """The lowest sequence that anybody may ask for next."""
        if len(self._readers) == 1:
            (reader,) = self._readers.values()
            return reader.ready.front()
        return min((reader.ready.front() for reader in self._readers.values()), default=0)

    @property
    def position(self) -> int:
        """From here on somebody was never given anything."""
        return min((reader.ready.position for reader in self._readers.values()), default=0)

    @property
    def damaged_count(self) -> int:
        """How many items are left that nobody can take away, since those who have not could not read them."""
        readies = [reader.ready for reader in self._readers.values()]
        if not any(len(ready.damaged) for ready in readies):
            return 0
        if len(readies) == 1:
            return len(readies[0].damaged)
        lost = self._state.gone.unconsumed(0, self._state.next_sequence)
        for ready in readies:
            passed = self._state.subscriptions[ready.number].copy()
            for first, count in ready.damaged:
                passed.consume_rest(first, first + count)
            lost = passed.done_of(lost)
        return sum(count for _, count in lost)

    @property
    def page_hits(self) -> int:
        """How often a page that was asked for was in memory."""
        return self._past_hits + sum(reader.page_hits for reader in self._readers.values())

    @property
    def page_reads(self) -> int:
        """How often it was read from a file, also by those who browse."""
        return self._past_reads + sum(reader.page_reads for reader in self._readers.values())

    def forget(self, number: int) -> None:
        """Forget where reading of a segment stopped, since it is retired."""
        for reader in self._readers.values():
            reader.forget(number)

    def _consumer(self, number: int) -> Reader:
        if not self._counts:
            return self._reader(Availability(self._state, number))
        ready = CountedAvailability(self._disk, self._state, number)
        return CountedReader(self._state, ready, self._segments, self.pages, self._mutex, self._reading)

    def _reader(self, ready: Availability) -> Reader:
        return Reader(self._state, ready, self._segments, self.pages, self._mutex, self._reading)

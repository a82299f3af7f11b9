"""The subscriptions of an open queue: for each one a reader, and the items that it may hand out now.

All readers share the page cache and the segments. Only the writer changes this, with the mutex. Every other thread
needs the mutex to read it. The plain queue is subscription 0; a queue may have only named subscriptions instead.
"""

from __future__ import annotations

from ..core.availability import Availability, Remaining
from ..core.page_cache import Pages
from ..errors import SubscriptionNotFoundError
from ..storage.segment_files import Segments
from .context import Context
from .reader import CountedAvailability, CountedReader, Reader


class Subscriptions:
    """The readers of all subscriptions in a state."""

    def __init__(self, context: Context, segments: Segments) -> None:
        self._context = context
        self._state = context.state
        self._segments = segments
        self.pages = Pages(context.settings.memory_bytes, self.front)
        self._readers = {number: self._consumer(number) for number in context.state.subscriptions}
        self._past_hits = self._past_reads = 0
        """Page hits and page reads of the subscriptions that were removed."""

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def plain(self) -> Reader | None:
        """Reader of the plain queue; None if the queue has only named subscriptions."""
        return self._readers.get(0)

    def find(self, name: str) -> Reader:
        """Return the reader of the subscription ``name``. Raises ``SubscriptionNotFoundError``."""
        number = self._state.number_of(name)
        if not number:
            raise SubscriptionNotFoundError(self._context.places.directory, name, self.names())
        return self._readers[number]

    def has_only(self, reader: Reader) -> bool:
        """Return whether this is the only reader. Without the mutex: all of them are seen in one step."""
        return list(self._readers.values()) == [reader]

    def names(self) -> list[str]:
        """Return the names of all subscriptions but the plain queue's, the oldest first."""
        return [cursor.name for number, cursor in sorted(self._state.subscriptions.items()) if number]

    def follow(self) -> None:
        """Add and remove readers, so that they are those of the subscriptions in the state."""
        for number in self._state.subscriptions.keys() - self._readers.keys():
            self._readers[number] = self._consumer(number)
        for number in self._readers.keys() - self._state.subscriptions.keys():
            reader = self._readers.pop(number)
            reader.ready.close()
            self._past_hits += reader.page_hits
            self._past_reads += reader.page_reads

    def of_all(self) -> Reader:
        """Return a reader of all items that at least one subscription has not consumed, only for browsing."""
        return self._reader(Remaining(self._state))

    def front(self) -> int:
        """Return the lowest sequence that any subscription may hand out next."""
        if len(self._readers) == 1:
            (reader,) = self._readers.values()
            return reader.ready.front()
        return min((reader.ready.front() for reader in self._readers.values()), default=0)

    @property
    def position(self) -> int:
        """Lowest sequence that at least one subscription has never handed out."""
        return min((reader.ready.position for reader in self._readers.values()), default=0)

    @property
    def damaged_count(self) -> int:
        """Number of items that stay because they could not be read.

        Each subscription that has not consumed such an item has set it aside.
        """
        readies = [reader.ready for reader in self._readers.values()]
        if not any(len(ready.damaged) for ready in readies):
            return 0
        if len(readies) == 1:
            return len(readies[0].damaged)
        lost = self._state.gone.rest(0, self._state.next_sequence)
        for ready in readies:
            passed = self._state.subscriptions[ready.number].copy()
            for first, count in ready.damaged:
                passed.consume_rest(first, first + count)
            lost = passed.done_of(lost)
        return lost.size

    @property
    def page_hits(self) -> int:
        """Number of lookups that found their page in memory."""
        return self._past_hits + sum(reader.page_hits for reader in self._readers.values())

    @property
    def page_reads(self) -> int:
        """Number of pages that were read from files, for dequeues and for browsing."""
        return self._past_reads + sum(reader.page_reads for reader in self._readers.values())

    def forget(self, number: int) -> None:
        """Drop the read positions in a segment that is retired."""
        for reader in self._readers.values():
            reader.forget(number)

    def _consumer(self, number: int) -> Reader:
        if not self._context.settings.counts_attempts:
            return self._reader(Availability(self._state, number))
        ready = CountedAvailability(self._context, number)
        return CountedReader(self._context, ready, self._segments, self.pages)

    def _reader(self, ready: Availability) -> Reader:
        return Reader(self._context, ready, self._segments, self.pages)

"""A subscription: one of several who consume a queue, each all of it. Made by ``PersistentQueue.subscribe``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic

from .codecs import Codec, T, decode_each
from .engine.reader import Reader
from .runtime.open_queue import OpenQueue
from .session import Session, checked_timeout
from .system.uncopyable import Uncopyable, uncopyable_block


class Subscription(Uncopyable, Generic[T]):
    """One consumer of a queue, by its name, beside the others: each gets every item, which is stored once.

    What it has consumed, and where it stands, is durable, and is the same in any process that opens the queue later.
    Its sessions hold, flush and roll back for it alone; they enqueue like any other. An item is kept as long as any
    subscription has not consumed it. For any number of threads.
    """

    _elsewhere = "pass its name, and call queue.subscribe(name) in the process that has opened the queue"

    def __init__(
        self, group: OpenQueue, reader: Reader, codec: Codec[T], session: Callable[[str | None, Reader], Session[T]]
    ) -> None:
        self._open_queue = group
        self._reader = reader
        self._codec = codec
        self._session = session

    def __repr__(self) -> str:
        return f"<subscription {self.name!r}>"

    def __len__(self) -> int:
        """How many items it may dequeue now."""
        self._open_queue.check()
        return self._open_queue.look(lambda: 0 if self.removed else len(self._reader.ready))

    def __bool__(self) -> bool:
        """It is true also when it has nothing to dequeue."""
        return True

    @property
    def name(self) -> str:
        """The name that it was made with."""
        return self._reader.ready.name

    @property
    def removed(self) -> bool:
        """Whether it was removed by ``PersistentQueue.unsubscribe``."""
        return self._reader.ready.is_closed

    def session(self, name: str | None = None) -> Session[T]:
        """A new session that dequeues for this subscription; otherwise like ``PersistentQueue.session``."""
        return self._session(name, self._reader)

    @uncopyable_block
    def transaction(self, name: str | None = None) -> Iterator[Session[T]]:
        """A session that is flushed when the block ends well, and rolled back when it raises."""
        with self.session(name) as session:
            yield session
            session.flush()

    def wait(self, timeout: float | None = None, *, stop: Callable[[], bool] = bool) -> bool:
        """Wait until there is something to dequeue; see ``PersistentQueue.wait``."""
        self._open_queue.check()
        return self._open_queue.wait(self._reader, checked_timeout(timeout), stop)

    def browse(self) -> Iterator[T]:
        """Iterate over what it may dequeue, in order, without holding it; see ``PersistentQueue.browse``."""
        return decode_each(self._codec, self._open_queue.browse(self._reader), self._open_queue.store.directory)

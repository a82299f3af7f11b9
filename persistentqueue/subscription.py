"""The classes ``Consumer``, the base of queues and subscriptions, and ``Subscription``: one of several consumers of a
queue, each of which gets every item."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from .codecs import Codec, T, decode_each
from .core.items import checked_stop, checked_timeout
from .engine.reader import Reader
from .misplaced_calls import MisplacedCalls
from .pickling import Uncopyable, UncopyableBlock
from .runtime.open_queue import OpenQueue
from .session import Session
from .system.progress import Progress

S = TypeVar("S")


class Consumer(MisplacedCalls, Generic[S]):
    """A queue or a subscription, which makes sessions of the type ``S``."""

    __slots__ = ()

    @abstractmethod
    def session(self, name: str | None = None) -> S:
        """Return a new session."""

    def transaction(self, name: str | None = None) -> AbstractContextManager[S]:
        """Return a ``with`` block that is one transaction: flushed if the block ends well, rolled back if it raises.

        Args:
            name: Name of the session in ``explain``. Default None: the name of the calling thread.

        Yields:
            A new session. Its work is durable when the block has ended. It is also rolled back if its flush raises.

        Raises:
            TypeError: ``name`` is no text.
            ClosedError: The queue is closed.
            ReentrantUseError: The call interrupts another call of the queue in the same thread.
            PersistentQueueError: The flush failed; see ``Session.flush``.

        For one thread at a time.
        """
        return UncopyableBlock(_transaction, (self.session, name), {})


def _transaction(make_session: Callable[[str | None], Any], name: str | None) -> Generator[Any, None, None]:
    with make_session(name) as session:
        yield session
        session.flush()


class Subscription(Uncopyable, Consumer[Session[T]], Generic[T]):
    """One named consumer of a queue. Each subscription gets every item, and the item is stored once.

    ``PersistentQueue.subscribe`` makes subscriptions::

        billing = queue.subscribe("billing")
        with billing.transaction() as session:
            item = session.dequeue()

    Durability: the position of the subscription is durable. Any process that opens the queue later finds the same
    position. The queue keeps an item until every subscription has consumed it.

    Its sessions hold, flush and roll back for this subscription alone. They enqueue like the sessions of the queue.

    Threads: for any number of threads. A subscription cannot be copied, pickled or sent to another process.
    """

    _what = "subscription"
    _elsewhere = "pass its name, and call queue.subscribe(name) in the process that has opened the queue"

    def __init__(
        self,
        open_queue: OpenQueue,
        reader: Reader,
        codec: Codec[T],
        session: Callable[[str | None, Reader], Session[T]],
    ) -> None:
        self._open_queue = open_queue
        self._reader = reader
        self._codec = codec
        self._session = session

    def __repr__(self) -> str:
        return f"<subscription {self.name!r}>"

    def __len__(self) -> int:
        """Return the number of items that the subscription can dequeue now; 0 if it was removed.

        Raises:
            ClosedError: If the queue is closed.
            ReentrantUseError: If the call interrupts another call of the queue in the same thread.

        For any thread.
        """
        self._open_queue.check()
        return self._open_queue.look(lambda: 0 if self.removed else len(self._reader.ready))

    def __bool__(self) -> bool:
        """Return True, also if there is nothing to dequeue."""
        return True

    @property
    def name(self) -> str:
        """Name of the subscription, as ``PersistentQueue.subscribe`` got it."""
        return self._reader.ready.name

    @property
    def removed(self) -> bool:
        """True if ``PersistentQueue.unsubscribe`` has removed the subscription."""
        return self._reader.ready.is_closed

    def session(self, name: str | None = None) -> Session[T]:
        """Make a session that dequeues for this subscription.

        Args:
            name: Name of the session in ``PersistentQueue.explain``; several sessions may share one. The default is the
                name of the calling thread.

        Returns:
            A new session. Use it in a ``with`` block.

        Raises:
            TypeError: If the name is no text.
            ClosedError: If the queue is closed.
            ReentrantUseError: If the call interrupts another call of the queue in the same thread.

        After the subscription was removed, each dequeue of the session raises ``SubscriptionNotFoundError``. Nothing
        becomes durable by this call. For any thread; the session is for one thread at a time.
        """
        return self._session(name, self._reader)

    def wait(self, timeout: float | None = None, *, stop: Callable[[], bool] = bool) -> bool:
        """Wait until there is something to dequeue, without taking it.

        Another session may take the item first. Waiting uses no processor time. ``PersistentQueue.wait`` waits for the
        plain queue instead.

        Args:
            timeout: Seconds to wait, at least 0. 0 does not wait; None (the default) waits for ever.
            stop: Function that is called before each sleep and after each ``PersistentQueue.wake``. If it returns a
                true value, the wait ends. It must return at once and must not call the queue. The default never ends
                the wait.

        Returns:
            True if there is an item. True also if a published file has an error to report, or if the subscription was
            removed: the next dequeue raises that. False if the time is over or ``stop`` has ended the wait.

        Raises:
            TypeError, ValueError: If the timeout is negative or not a number, or ``stop`` is not a function.
            ClosedError: If the queue is closed, also during the wait.
            BrokenQueueError: If a sync or a write of the log has failed.
            ReentrantUseError: If the call interrupts another call of the queue in the same thread.
            ResourceError: If the operating system lacks something that is needed to look for published files.

        Nothing becomes durable by the wait itself. For any thread.
        """
        self._open_queue.check()
        return self._open_queue.wait(self._reader, checked_timeout(timeout), checked_stop(stop))

    def browse(self, *, progress: Progress = None) -> Iterator[T]:
        """Iterate over the ready items of the subscription, in order, without holding or consuming them.

        The iterator reads the items step by step, so a queue larger than memory can be browsed. An item that is
        enqueued, dequeued or rolled back meanwhile may be missing. An item that is ready throughout comes exactly once.

        Args:
            progress: How to report the number of items that were returned (see ``Progress``). Default None: not at all.
                The iterator reports between two items, and holds no lock: the callable may use the queue. If it raises,
                the iteration ends, and nothing was changed.

        Yields:
            The items.

        Raises:
            CorruptionError: If a block is damaged. Its items are set aside.
            MemoryShortageError: If a block takes more memory than the process may have. Its items are set aside until
                the queue is opened again.
            WrongKeyError: If the key that a block needs was not given.
            MissingExtraError: If an optional package that a block, or ``progress=True``, needs is not installed.
            TypeError: If ``progress`` has another type than ``Progress``.
            CodecError: If the codec refuses an item. The next step of the iterator continues behind it.
            ClosedError: If the queue is closed.
            BrokenQueueError: If a sync or a write of the log has failed.
            ReentrantUseError: If a step interrupts another call of the queue in the same thread.

        Nothing becomes durable by browsing. An iterator is for one thread at a time; any number of iterators may run.
        """
        return decode_each(self._codec, self._open_queue.browse(self._reader, progress), self._open_queue.directory)

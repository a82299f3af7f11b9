"""Errors of calls: an item, an argument, or the order of the calls is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from .base import PersistentQueueError


class SubscriptionNotFoundError(PersistentQueueError, LookupError):
    """The queue has no subscription of this name, or only subscriptions read it, since it was made with ``fan_out``.

    Nothing was committed. Use an existing name, or make the subscription by ``queue.subscribe(name)``.

    Attributes:
        path: The path of the queue.
        subscription: The name; empty for the plain queue.
    """

    def __init__(self, path: str, subscription: str, others: Sequence[str] = (), owner: str = "queue") -> None:
        there = f"existing: {', '.join(map(repr, others))}" if others else "it may have been removed"
        what = f"the queue has no subscription {subscription!r}; {there}: create one with {owner}.subscribe(name)"
        if subscription in others:
            what = f"the subscription {subscription!r} was removed; another has its name: call {owner}.subscribe(name)"
        plain = f"only subscriptions read it{f' ({there})' if others else ''}: call {owner}.subscribe(name)"
        super().__init__(f"{path}: {what if subscription else f'the queue was made with fan_out, so {plain}'}")
        self.path: str = path
        self.subscription: str = subscription


class DeadLetterError(PersistentQueueError, ValueError):
    """The bytes are not a dead letter: another program has put them into the queue of dead letters.

    Raised by ``DeadLetter.decode``. Nothing was changed. Leave the item in its queue, or consume it to drop it.

    Attributes:
        expected: The expected content, as text.
        found: The content that was found, as text.
    """

    def __init__(self, expected: str, found: str) -> None:
        self.expected: str = expected
        self.found: str = found
        super().__init__(
            f"not a dead letter: expected {expected}, found {found}: leave the item in its queue, or consume it to "
            "drop it"
        )


class ItemTooLargeError(PersistentQueueError, ValueError):
    """An item is longer than 4 GiB - 1 bytes, or too long for a worker process (see ``connect``), or a dead letter.

    The call that raised this error changed nothing. Split the item. If it is in the queue already, dequeue it in the
    process that owns the queue, without ``max_attempts``.
    """


class NotHeldError(PersistentQueueError, ValueError):
    """The session of a ``reject`` does not hold the item, or it has rejected it already.

    Nothing was changed. Another session may hold an equal item. Pass each item once, as ``dequeue`` has returned it.
    """

    def __init__(
        self, text: str = "the session holds no such item, or has rejected all of them: pass an item that it holds"
    ) -> None:
        super().__init__(text)


class CodecError(PersistentQueueError, ValueError):
    """The codec of the queue could not encode an item, or could not decode the bytes of one.

    The queue and its other items stay usable. An item that could not be encoded is not enqueued. An item that could not
    be decoded is on hold in the session that dequeued it. To continue after such an item, choose one:

    - ``session.reject(error, retry=False)`` and ``flush`` move it to the dead letters (see ``Session.reject``).
    - ``flush`` alone consumes it, with everything else that the session holds. The item is then skipped.
    - ``rollback`` releases it. The item is unchanged: open the queue with another codec, such as ``codecs.BYTES``, to
      read it.

    If ``__cause__`` is a ``MemoryError``, the item may be intact. ``rollback``, or ``reject`` with ``retry=True``,
    gives it back for a later try. With ``max_attempts``, an item that never fits becomes a dead letter in the end.

    Attributes:
        item: The object that could not be encoded, or the bytes that could not be decoded.
        path: The directory of the queue; None if unknown.
        sequence: The sequence of a stored item; None if unknown.
        problem: The text without the advice at its end.
        __cause__: The error of the codec.
    """

    def __init__(
        self,
        action: str,
        codec: object,
        item: object,
        reason: Exception,
        path: str | None = None,
        sequence: int | None = None,
        advice: str = "",
    ) -> None:
        self.item: object = item
        self.path: str | None = path
        self.sequence: int | None = sequence
        what = f"{len(item)} byte{'s' * (len(item) != 1)}" if isinstance(item, bytes) else f"a {type(item).__name__}"
        where = (f"{path}: " if path is not None else "") + (f"item {sequence}: " if sequence is not None else "")
        why = f"{type(reason).__name__}: {reason}" if str(reason) else type(reason).__name__  # as of a MemoryError
        self.problem: str = f"{where}{type(codec).__name__.lstrip('_')} cannot {action} {what}: {why}"
        super().__init__(f"{self.problem}: {advice}" if advice else self.problem)


class MissingExtraError(PersistentQueueError, ImportError):
    """An optional package is not installed.

    Raised by the first call that needs the package. Install it with ``pip install 'persistentqueue[extra]'``.

    Attributes:
        extra: The name of the extra that installs the package.
    """

    def __init__(self, what: str, extra: str, instead: str = "") -> None:
        self.extra: str = extra
        install = f"pip install 'persistentqueue[{extra}]'" + (f", or {instead}" if instead else "")
        super().__init__(f"{what} needs a package that is not installed: {install}")


class SessionInUseError(PersistentQueueError):
    """A session, or a producer, was called during another call of the same object.

    The other call runs in another thread. Or code that interrupts the other call made this one, such as a signal
    handler or a finalizer. This call has done nothing, and the other one continues. Use one session, or one producer,
    for each thread.
    """


class ReentrantUseError(PersistentQueueError):
    """A re-entrant call: a queue was called inside another call of the same queue and thread.

    The caller is code that interrupts the outer call: a signal handler, a finalizer, a handler of ``logging``, or the
    callable that gives a key. Or it is the ``progress`` of a compaction that compacts, maintains or closes the queue.
    This call has done nothing, and the outer one continues. Make the call after the outer one has ended.
    """


class InvalidTransactionError(PersistentQueueError):
    """A transaction contradicts the state of the queue. For example, it consumes an item that is already consumed.

    Raised by a commit. Nothing of the transaction was written, and other transactions are not affected. Roll the
    session back. The items that it held are not released, because its list of them cannot be trusted. They are ready
    again when the queue is next opened.

    Attributes:
        path: The directory of the queue.
        expected: The requirement of the state of the queue, as text.
        found: The content of the transaction, as text.
    """

    def __init__(self, path: str, expected: str, found: str) -> None:
        self.path: str = path
        self.expected: str = expected
        self.found: str = found
        super().__init__(
            f"{path}: the transaction contradicts the queue: expected {expected}, found {found}; nothing of it was "
            "committed: roll the session back"
        )


class ClosedError(PersistentQueueError):
    """The queue, the session or the producer was closed, or belongs to the parent of a forked process.

    The call has done nothing. Open the queue again, or get a new session or producer in this process.
    """


class PrecedingFlushError(PersistentQueueError):
    """An earlier flush of the session failed, so nothing of this one was committed.

    ``Session.flush(wait=False)`` lets a session go on before its flushes have ended. If one of them fails, all that
    follow fail, so that the queue never has a later one without an earlier one. Each call of ``flush`` raises this
    error until ``rollback`` was called: then do the work from the first failed flush on again. ``__cause__`` is the
    error of that flush.

    Attributes:
        path: The directory of the queue.
        failure: The error of the first flush that failed.
    """

    def __init__(self, path: str, failure: BaseException) -> None:
        self.path: str = path
        self.failure: BaseException = failure
        super().__init__(
            f"{path}: an earlier flush of this session failed ({type(failure).__name__}: {failure}), and nothing since "
            "was committed: call rollback(), then do the work from that flush on again"
        )


class UnflushedWarning(RuntimeWarning):
    """A session, a producer or an ``aio.Queue`` ended with work that was not flushed, and no exception says so.

    Its ``with`` block ended, its queue was closed, or the last reference to it was dropped. The work is lost, even if
    a filter turns the warning into an error. Call ``flush`` before. To drop the work without a warning, call
    ``rollback`` or ``close`` of the session. There is no warning if an exception leaves the block.

    Python shows it once for each place in a program. To raise it, call ``simplefilter("error", UnflushedWarning)``.
    """

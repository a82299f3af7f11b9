"""The function ``transaction``: sessions of several queues, flushed as one atomic transaction."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .errors import SubscriptionNotFoundError
from .pickling import UncopyableBlock
from .runtime.session_state import flush_together
from .session import Session
from .subscription import Consumer

if TYPE_CHECKING:
    from .workers.worker_session import WorkerSession

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


@overload
def transaction(a: Consumer[A], /, *, name: str | None = None) -> AbstractContextManager[tuple[A]]: ...


@overload
def transaction(
    a: Consumer[A], b: Consumer[B], /, *, name: str | None = None
) -> AbstractContextManager[tuple[A, B]]: ...


@overload
def transaction(
    a: Consumer[A], b: Consumer[B], c: Consumer[C], /, *, name: str | None = None
) -> AbstractContextManager[tuple[A, B, C]]: ...


@overload
def transaction(*queues: Consumer[A], name: str | None = None) -> AbstractContextManager[tuple[A, ...]]: ...


@overload  # of several types of items
def transaction(
    *queues: Consumer[Session[Any]], name: str | None = None
) -> AbstractContextManager[tuple[Session[Any], ...]]: ...


@overload
def transaction(
    *queues: Consumer[Session[Any] | WorkerSession[Any]], name: str | None = None
) -> AbstractContextManager[tuple[Session[Any] | WorkerSession[Any], ...]]: ...


def transaction(*queues: Any, name: str | None = None) -> AbstractContextManager[tuple[Any, ...]]:
    """Make a session of each queue, for a ``with`` block that flushes all of them as one transaction.

    The sessions are flushed together at the end of the block, and rolled back if the block raises::

        with transaction(source, target) as (a, b):
            b.enqueue(work(a.dequeue()))

    With one queue the transaction behaves as ``PersistentQueue.transaction`` does. Several queues must be opened with
    ``sync=True``. Their directories must be different and have the same parent; queues that are named in one directory
    do.

    ``flush`` of any session flushes all of them, and the block may call it. Its ``marker`` is recorded in the queue of
    the session that was asked. If the marker was reached before, nothing is committed in any queue. All sessions are
    then rolled back, and ``flush`` returns False.

    ``rollback`` of a session undoes the work of this session alone. The end of the block still flushes the others. To
    undo all of it, raise an error in the block, or roll back each session.

    A transaction over several queues never waits for room, also with ``full="block"``: it raises ``QueueFullError``
    instead. It is tried before the transactions that wait for room. During the flush no other transaction commits in
    any of these queues. The flush takes as many syncs as one flush of each queue. Other threads may see the result in
    one queue a moment earlier than in the next.

    Queues that ``connect`` has opened can take part, too, and their subscriptions. One process must own all of them.

    Args:
        *queues: Open queues of this process, or subscriptions in place of their queues. At least one; no queue twice.
            Or shared queues and their subscriptions.
        name: Name of the sessions in ``PersistentQueue.explain``. The default is the name of the calling thread.

    Yields:
        A tuple of sessions, in the order of the arguments.

    Raises:
        TypeError: If an argument is neither a queue nor a subscription.
        ValueError: If there is no queue, or one of several queues has ``sync=False``. If a queue comes twice, or two
            directories have different parents. Or if several processes own the queues for two seconds.
        ClosedError: If one of the queues is closed.
        ResourceError: If the operating system lacks something, such as disk space (``DiskFullError``). Nothing was
            committed in any queue, and the sessions keep their operations.
        QueueFullError: If a limit leaves no room. Nothing was committed in any queue, and the sessions keep their
            operations.
        BrokenQueueError: If a sync or a write of a log fails. Either nothing was committed, or it is unknown whether
            the transaction was committed.
        QueueNotFoundError: If the directory of a queue was moved away. Nothing was committed.

    Errors of the block come out as they are. The end of the block also raises the other errors of ``Session.flush``.

    After the block, or after a ``flush``, the transaction is durable in all queues. A crash at any time leaves it
    committed in all queues or in none.

    After a ``BrokenQueueError`` close all queues that are broken before any of them is opened again. A broken queue
    that is still open cannot tell the other queues the outcome.

    After a crash, opening one queue may briefly open another one, to ask for the outcome of a transaction over both. An
    attempt to open that other queue at this moment with ``lock_timeout=0`` may raise ``QueueLockedError``. This does
    not happen for a queue that was closed cleanly.

    The sessions are for one thread at a time.
    """
    if not queues:
        raise ValueError("a transaction needs a queue: pass at least one open queue or subscription")
    for queue in queues:
        if not isinstance(queue, Consumer):
            raise TypeError(f"a transaction takes open queues and subscriptions, not {queue!r}")
    return UncopyableBlock(_transaction, (queues, name), {})


def _join(sessions: Sequence[Any]) -> None:
    """Let the sessions be flushed together, by this process or by the process that owns their queues."""
    if all(isinstance(session, Session) for session in sessions):
        flush_together(sessions)
        return
    from .workers import worker_state  # noqa: PLC0415  late: other programs need no sockets

    away = sum(not isinstance(session, Session) for session in sessions)
    if away < len(sessions):
        raise ValueError(
            f"a transaction needs queues that are opened alike, and that have one owner, but {away} of {len(sessions)} "
            "are reached through their owner, by connect: open all by PersistentQueue, or all by connect; in that case "
            "connect to all before the first session, or let the command serve own all"
        )
    worker_state.flush_together(sessions)


def _transaction(queues: Sequence[Any], name: str | None) -> Generator[tuple[Any, ...], None, None]:
    with ExitStack() as stack:
        sessions = _enter(stack, queues, name)
        if _are_mixed(sessions):
            stack.close()
            sessions = _agree(stack, queues, sessions, name)
        if len(sessions) > 1:
            _join(sessions)
        yield sessions
        sessions[0].flush()


def _enter(stack: ExitStack, queues: Sequence[Any], name: str | None) -> tuple[Any, ...]:
    return tuple(stack.enter_context(queue.session(name)) for queue in queues)


def _are_mixed(sessions: Sequence[Any]) -> bool:
    """Return whether this process owns the queues of some sessions, and reaches others through their owner."""
    return len({isinstance(session, Session) for session in sessions}) > 1


def _agree(stack: ExitStack, queues: Sequence[Any], sessions: Sequence[Any], name: str | None) -> tuple[Any, ...]:
    """Let one process own all queues, if that is possible within ``CHANGE_SECONDS``: this one owns some of them. Return
    sessions of them.

    The dead letters of a queue have the same owner. Only through its socket this process reaches them as other
    processes do, and with them their queue.
    """
    from .system.disk import current_disk  # noqa: PLC0415  late: other programs need no sockets
    from .workers import SharedQueue, SharedSubscription, common_owner, session_at_owner  # noqa: PLC0415

    if not all(isinstance(queue, SharedQueue | SharedSubscription) for queue in queues):
        return _enter(stack, queues, name)  # a ``PersistentQueue`` stays here, so no other process would own all
    disk = current_disk()
    ends_at = disk.monotonic() + common_owner.CHANGE_SECONDS
    while True:
        away = [session.directory for session in sessions if not isinstance(session, Session)]
        if all(map(common_owner.is_owned_here, away)):
            return tuple(stack.enter_context(session_at_owner(queue, name)) for queue in queues)
        for directory in away:
            common_owner.gather(disk, directory, ends_at - disk.monotonic())
        for queue in queues:
            with suppress(SubscriptionNotFoundError):  # ``fan_out``: there is no length without a subscription
                len(queue)  # each call finds an owner: perhaps this process is to own the others, too
        sessions = _enter(stack, queues, name)
        if not _are_mixed(sessions) or disk.monotonic() >= ends_at:
            return sessions
        stack.close()
        disk.sleep(common_owner.ASKING_SECONDS)  # the other owner was stopped, for example

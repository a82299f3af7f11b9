"""``transaction``: sessions of several queues of this process, flushed as one atomic transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, TypeVar, overload

from .core.items import checked_marker
from .queue import PersistentQueue
from .runtime.multi_queue import introduce, require_neighbours
from .runtime.retries import commit_tried
from .session import Session, checked_timeout, exclusively
from .subscription import Subscription
from .system.disk import basename
from .system.uncopyable import uncopyable_block

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


@overload
def transaction(
    a: PersistentQueue[A] | Subscription[A], /, *, name: str | None = None
) -> AbstractContextManager[tuple[Session[A]]]: ...


@overload
def transaction(
    a: PersistentQueue[A] | Subscription[A], b: PersistentQueue[B] | Subscription[B], /, *, name: str | None = None
) -> AbstractContextManager[tuple[Session[A], Session[B]]]: ...


@overload
def transaction(
    a: PersistentQueue[A] | Subscription[A],
    b: PersistentQueue[B] | Subscription[B],
    c: PersistentQueue[C] | Subscription[C],
    /,
    *,
    name: str | None = None,
) -> AbstractContextManager[tuple[Session[A], Session[B], Session[C]]]: ...


@overload
def transaction(
    *queues: PersistentQueue[Any] | Subscription[Any], name: str | None = None
) -> AbstractContextManager[tuple[Session[Any], ...]]: ...


def transaction(*queues: PersistentQueue[Any] | Subscription[Any], name: str | None = None) -> Any:
    """A session of each queue, flushed as one transaction when the block ends well, and rolled back when it raises::

        with transaction(source, target) as (a, b):
            b.enqueue(work(a.dequeue()))

    Whatever crashes when, what the sessions did is committed in all queues or in none; durable on return. A
    subscription may stand for its queue. One queue alone is as with ``PersistentQueue.transaction``.

    ``flush`` of any of the sessions is one of all, and may be called in the block. With a ``marker``, which is recorded
    in the queue of the session that is asked, nothing is committed in any if it was reached before, all sessions are
    rolled back, and the answer is False. It waits for no room, also with ``full="block"``: it raises, as with
    ``full="raise"``, and tries before those who wait.

    For queues with ``sync=True`` in directories beside each other, such as those that are named in one directory. While
    it is flushed nobody else commits in any of them; it takes as many syncs as a flush of each. Others may see what is
    committed in one queue a moment before they see it in the next.

    Raises ``TypeError`` for an object that is no queue or subscription. Raises ``ValueError`` for queues that cannot be
    in one transaction, ``ClosedError``, what the block raises, and what
    ``Session.flush`` raises: ``DiskFullError`` and ``QueueFullError`` mean that nothing was committed anywhere, and
    that the sessions keep their operations. ``BrokenQueueError``: it is unknown whether it was committed, or nothing
    was, and a sync has failed. Close all of them that are broken before you open any again: one that is not closed yet
    may not tell the others what became of it.

    After a crash, opening one may open another, to ask it what became of a transaction over both, unless that was
    closed cleanly: who opens that one just then with ``lock_timeout=0`` may get ``QueueLockedError``.
    """
    if not queues:
        raise ValueError("a transaction needs a queue")
    for queue in queues:
        if not isinstance(queue, PersistentQueue | Subscription):
            raise TypeError(f"a transaction is over open queues and subscriptions, not over {queue!r}")
    return _transaction(queues, name)


@uncopyable_block
def _transaction(
    queues: Sequence[PersistentQueue[Any] | Subscription[Any]], name: str | None
) -> Iterator[tuple[Session[Any], ...]]:
    with ExitStack() as stack:
        sessions = tuple(stack.enter_context(queue.session(name)) for queue in queues)
        if len(sessions) > 1:
            joint = _Joint(sessions)
            for session in sessions:
                session._together = joint.flush
        yield sessions
        sessions[0].flush()


class _Joint:
    """Sessions of several queues that are flushed together. For one thread at a time."""

    def __init__(self, sessions: Sequence[Session[Any]]) -> None:
        self._sessions = sorted(sessions, key=lambda session: basename(session._open_queue.store.directory))
        require_neighbours([session._open_queue.store.directory for session in sessions])
        introduce([session._open_queue for session in sessions])
        for session in sessions:
            if not session._open_queue.store.settings.sync:
                raise ValueError(
                    f"{session._open_queue.store.directory}: opened with sync=False: a power cut could take its part "
                    "of a transaction over several queues, and leave the others: open it with sync=True"
                )

    def flush(self, asked: Session[Any], marker: tuple[str, int] | None, timeout: float | None) -> bool:
        """What ``Session.flush`` does, for all of them."""
        if checked_timeout(timeout):
            raise ValueError(f"a transaction over several queues waits for no room, not for {timeout} seconds")
        return exclusively(self._sessions, partial(self._flush, asked, marker))

    def _flush(self, asked: Session[Any], marker: tuple[str, int] | None) -> bool:
        works = [(session, session._open()) for session in self._sessions]
        for session, work in works:
            work.marker = checked_marker(marker) if session is asked and marker is not None else None
        busy = [(each, work) for each, work in works if work.enqueues or work.runs or work.marker is not None]
        if not busy:
            return True
        try:
            commit_tried([(session._open_queue, work, session._trial) for session, work in busy], 0.0)
        finally:
            for session, work in busy:
                if work.settled:  # also interrupted behind the commit: what comes next is another transaction
                    session._finish(work)
        return not busy[0][1].skipped

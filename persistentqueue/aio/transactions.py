"""The function ``transaction``: sessions of several queues of one event loop, flushed as one atomic transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from functools import partial
from typing import Any, TypeVar, overload

import persistentqueue
from persistentqueue.pickling import UncopyableAsyncBlock

from .calls import Consumer
from .futures import Job, launch, over, session_name
from .persistent_queue import Part, PersistentQueue, Subscription
from .session import Session
from .shared_queue import ConnectedQueue, ConnectedSubscription
from .shared_session import ConnectedSession

A = TypeVar("A", bound=Session[Any] | ConnectedSession[Any])
B = TypeVar("B", bound=Session[Any] | ConnectedSession[Any])
C = TypeVar("C", bound=Session[Any] | ConnectedSession[Any])


@overload
def transaction(a: Consumer[A], /, *, name: str | None = None) -> AbstractAsyncContextManager[tuple[A]]: ...


@overload
def transaction(
    a: Consumer[A], b: Consumer[B], /, *, name: str | None = None
) -> AbstractAsyncContextManager[tuple[A, B]]: ...


@overload
def transaction(
    a: Consumer[A], b: Consumer[B], c: Consumer[C], /, *, name: str | None = None
) -> AbstractAsyncContextManager[tuple[A, B, C]]: ...


@overload
def transaction(*queues: Consumer[A], name: str | None = None) -> AbstractAsyncContextManager[tuple[A, ...]]: ...


@overload  # of several types of items
def transaction(
    *queues: Consumer[Session[Any]], name: str | None = None
) -> AbstractAsyncContextManager[tuple[Session[Any], ...]]: ...


@overload
def transaction(
    *queues: Consumer[ConnectedSession[Any]], name: str | None = None
) -> AbstractAsyncContextManager[tuple[ConnectedSession[Any], ...]]: ...


def transaction(*queues: Any, name: str | None = None) -> AbstractAsyncContextManager[tuple[Any, ...]]:
    """Make a session of each queue, for an ``async with`` block that flushes all of them as one transaction.

    The sessions are flushed together at the end of the block, and rolled back if the block raises::

        async with aio.transaction(source, target) as (a, b):
            await b.enqueue(work(await a.dequeue()))

    With one queue the transaction behaves as ``PersistentQueue.transaction`` does. Several queues follow the rules of
    ``persistentqueue.transaction`` about directories, ``sync=True``, markers, room and broken queues. ``flush`` of any
    session flushes all of them. ``rollback`` of a session undoes the work of this session alone: to undo all of it,
    raise an error in the block, or roll back each session.

    Queues that ``aio.connect`` has opened can take part, too, and their subscriptions. One process must own all of
    them, and they do not mix with queues that ``aio.PersistentQueue`` has opened.

    A cancellation in the block rolls all sessions back. A cancelled flush, also that of the end of the block, ends when
    the transaction is durable or refused in all queues. Then ``CancelledError`` is raised. A flush of connected queues
    looks for no owner any more: if theirs has ended, the transaction may be committed nevertheless.

    Args:
        *queues: Open queues of this event loop, or subscriptions in place of their queues. At least one; no queue
            twice. Or connected queues and their subscriptions.
        name: Name of the sessions in ``PersistentQueue.explain``. The default is the name of the running task.

    Yields:
        A tuple of sessions, in the order of the arguments.

    Raises:
        TypeError: If an argument is neither a queue nor a subscription of ``aio``.
        ValueError: If there is no queue, or one of several queues has ``sync=False``. If a queue comes twice, or two
            directories have different parents. If several processes own the queues for two seconds, or only some of the
            queues are connected.
        ClosedError: If one of the queues is not open.
        RuntimeError: If a queue belongs to another event loop.
        QueueFullError, ResourceError: If there is no room. Nothing was committed in any queue.
        BrokenQueueError: If a sync or a write of a log fails. Either nothing was committed, or it is unknown whether
            the transaction was committed.
        QueueNotFoundError: If the directory of a queue was moved away. Nothing was committed.

    Errors of the block come out as they are. After the block, or after a ``flush``, the transaction is durable in all
    queues. A crash at any time leaves it committed in all queues or in none. The sessions are for one task at a time.
    """
    if not queues:
        raise ValueError("a transaction needs a queue: pass at least one open queue or subscription")
    connected = [isinstance(queue, ConnectedQueue | ConnectedSubscription) for queue in queues]
    for queue, is_connected in zip(queues, connected, strict=True):
        if not (is_connected or isinstance(queue, PersistentQueue | Subscription)):
            raise TypeError(f"a transaction takes open queues and subscriptions of aio, not {queue!r}")
    if any(connected) and not all(connected):
        raise ValueError(
            f"a transaction needs queues that are opened alike, but aio.connect has opened {sum(connected)} of "
            f"{len(connected)}: open all of them by aio.connect, or all by aio.PersistentQueue"
        )
    if len(queues) == 1:
        return UncopyableAsyncBlock(_alone, (queues[0], name), {})
    return UncopyableAsyncBlock(_connected if all(connected) else _together, (queues, name), {})


async def _alone(queue: Any, name: str | None) -> AsyncGenerator[tuple[Any], None]:
    async with queue.transaction(name) as session:
        yield (session,)


async def _together(
    queues: Sequence[PersistentQueue[Any] | Subscription[Any]], name: str | None
) -> AsyncGenerator[tuple[Session[Any], ...], None]:
    parts = [queue.part() for queue in queues]
    block = persistentqueue.transaction(*(part.core for part in parts), name=session_name(name))
    cores = block.__enter__()
    try:
        yield tuple(
            Session(part.host, core, part.watch, part.core.__len__, is_joint=True)
            for core, part in zip(cores, parts, strict=True)
        )
    except BaseException as error:
        await _end(parts, block, error)
        raise
    await _end(parts, block, None)


async def _connected(
    queues: Sequence[ConnectedQueue[Any] | ConnectedSubscription[Any]], name: str | None
) -> AsyncGenerator[tuple[ConnectedSession[Any], ...], None]:
    block = persistentqueue.transaction(*(queue.core for queue in queues), name=session_name(name))
    cores = block.__enter__()
    sessions = tuple(queue.session_of(core) for queue, core in zip(queues, cores, strict=True))
    async with AsyncExitStack() as stack:
        for session in sessions:
            stack.push_async_callback(session.leave)
        try:
            yield sessions
        except BaseException as error:
            await sessions[0].make(partial(block.__exit__, type(error), error, error.__traceback__))
            raise
        await sessions[0].make(partial(block.__exit__, None, None, None))


async def _end(parts: Sequence[Part], block: AbstractContextManager[object], error: BaseException | None) -> None:
    """End the synchronous block in a thread of a queue that is open; if none is, in a thread of the event loop."""
    found = (None, None, None) if error is None else (type(error), error, error.__traceback__)
    end = partial(block.__exit__, *found)
    loop = asyncio.get_running_loop()
    submit: Callable[[Job], object] = partial(loop.run_in_executor, None)
    host = next((part.host for part in parts if not part.host.closed), None)
    await over(launch(loop, submit, end) if host is None else host.in_thread(end))

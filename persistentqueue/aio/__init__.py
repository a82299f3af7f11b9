"""The queue for ``asyncio``: no call blocks the event loop for a disk operation.

``PersistentQueue`` and its sessions have the methods of the synchronous classes. Those that use the disk are
coroutines::

    from persistentqueue import aio

    async with aio.PersistentQueue("queues", "orders") as queue, queue.session() as session:
        await session.enqueue(b"one")
        await session.flush()

``transaction(a, b)`` is one atomic transaction over several queues. ``connect`` opens a queue that any number of
processes use. ``Queue`` is an ``asyncio.Queue`` with its items on disk.

Flushes of many tasks share one sync, made by one thread (``flush_batcher``). One thread waits for items for all tasks
(``item_waiter``). These threads exist only while they have something to do (``futures``).

A cancellation waits for the call that a thread has begun, as long as the disk takes. Then ``CancelledError`` is raised.
Each method describes the state of the session after that.
"""

from .persistent_queue import PersistentQueue, Subscription
from .session import Session
from .shared_queue import ConnectedQueue, ConnectedSubscription, Connecting, connect
from .shared_session import ConnectedSession
from .standard_queue import Queue, QueueShutDown
from .transactions import transaction

__all__ = [
    "PersistentQueue",
    "Session",
    "Subscription",
    "connect",
    "ConnectedQueue",
    "ConnectedSession",
    "Connecting",
    "ConnectedSubscription",
    "Queue",
    "QueueShutDown",
    "transaction",
]

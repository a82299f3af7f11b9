"""The queue for ``asyncio``: nothing here keeps the event loop waiting for a disk.

``PersistentQueue`` and its sessions have the methods of the core, to be awaited::

    from persistentqueue import aio

    async with aio.PersistentQueue("queues", "orders") as queue, queue.session() as session:
        await session.enqueue(b"one")
        await session.flush()

``Queue`` is an ``asyncio.Queue`` whose items are on disk. Flushes of many tasks share one sync, by one thread that
takes all who have come (``flushes``); tasks that wait for items have one thread that waits for all of them (``watch``).
These threads are there only while there is something to do for them (``threads``).

Cancellation: what a thread has begun is waited for, which takes as long as the disk does; then ``CancelledError`` is
raised, and the session is in a state that its method describes.
"""

from .persistent_queue import PersistentQueue, Subscription
from .session import Session
from .standard_queue import Queue, QueueShutDown

__all__ = ["PersistentQueue", "Session", "Subscription", "Queue", "QueueShutDown"]

"""Interfaces of other queues on a persistent queue: ``queue.Queue`` of the standard library, and the FIFO of queuelib.

``Queue`` has every method of ``queue.Queue`` of Python 3.13, on each Python version that this package supports. It is
a subclass of ``queue.Queue``. An item is durable when ``put`` returns. An item that ``get`` returned is on hold until
its ``task_done`` returns: then it is durably consumed. After a crash, items on hold are ready again::

    from persistentqueue.compat import Queue

    with Queue("queues/orders") as queue:
        queue.put({"order": 42})
        order = queue.get()
        queue.task_done()

With ``shared=True`` any number of processes use one ``Queue``, as ``persistentqueue.connect`` describes::

    with Queue("queues/orders", shared=True) as queue:
        multiprocessing.Process(target=work, args=(queue,)).start()

``FifoQueue`` has the ``push``, ``pop`` and ``peek`` of queuelib. For Scrapy see ``persistentqueue.scrapy``.
"""

from __future__ import annotations

from queue import Empty, Full

from persistentqueue import codecs as codecs  # so that one import has all that a program needs

from .fifo import FifoQueue
from .standard_queue import Queue, ShutDown

__all__ = ["Queue", "FifoQueue", "Empty", "Full", "ShutDown"]

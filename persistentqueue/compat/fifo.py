"""The FIFO of queuelib, on a persistent queue."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from persistentqueue import PersistentQueue, PersistentQueueError, Progress, delete_queue
from persistentqueue.options import Options, PlainOptionArguments
from persistentqueue.system.disk import DISK, StrPath, abspath, join

from ..faces.refusals import UncopyableFace, face_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class FifoQueue(UncopyableFace):
    """A FIFO of bytes with the methods of queuelib's ``FifoDiskQueue``, each of them durable on return::

        with FifoQueue("queues/urls") as queue:
            queue.push(b"one")
            queue.pop()

    For one thread at a time. A queue that is empty when it is closed is deleted, as in queuelib. Therefore, no other
    process should publish to it.

    Args:
        path: Directory of the queue; made if it does not exist.
        options: Options as one value. A keyword argument has precedence over its field. Default None.
        progress: How to report what the opening handles, as in ``PersistentQueue``. Default None: not at all.
        **arguments: Keyword arguments of ``PersistentQueue``, except ``max_attempts``, ``dead_letter`` and
            ``retry_delay_seconds``: ``pop`` consumes its item at once, so no attempt can fail.

    Raises:
        TypeError, ValueError: An option has the wrong type or range, or counts deliveries.
        PersistentQueueError, OSError: The queue cannot be opened; see ``PersistentQueue``.

    Every method raises ``ClosedError`` after ``close``, and ``BrokenQueueError`` after a failed sync.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        options: Options | None = None,
        progress: Progress = None,
        **arguments: Unpack[PlainOptionArguments],
    ) -> None:
        self._path = abspath(path)  # close() deletes it; the working directory may change before
        chosen = face_options(options, arguments, "compat.FifoQueue")
        self._persistent = PersistentQueue(self._path, options=chosen, progress=progress)
        self._session = self._persistent.session()

    def __repr__(self) -> str:
        return f"FifoQueue({self._path!r})"

    def __enter__(self) -> FifoQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of items in the queue."""
        return len(self._persistent)

    def push(self, item: bytes) -> None:
        """Append an item, durable on return.

        Args:
            item: The item, as bytes.

        Raises:
            TypeError: ``item`` is not bytes. It is not in the queue.
            ResourceError, QueueFullError: There is no room. The item is not in the queue.
            BrokenQueueError: A sync failed. It is unknown whether the item is in the queue.
        """
        if not isinstance(item, bytes):
            raise TypeError(f"a FifoQueue takes bytes, not {type(item).__name__}: encode the item first")
        try:
            self._session.enqueue(item)
            self._session.flush()
        finally:
            self._session.rollback()

    def pop(self) -> bytes | None:
        """Consume and return the first item, or return None if there is none. Durable on return.

        Raises:
            CorruptionError: A block is damaged; raised once per block. Its items are set aside.
            ResourceError: The system has no room. The item remains in the queue.
            BrokenQueueError: A sync failed. It is unknown whether the item is consumed.
        """
        try:
            item = self._session.dequeue()
            self._session.flush()
        finally:
            self._session.rollback()
        return item

    def peek(self) -> bytes | None:
        """Return the first item without consuming it, or None if there is none.

        Raises:
            CorruptionError: A block is damaged; raised once per block. Its items are set aside.
        """
        try:
            return self._session.dequeue()
        finally:
            self._session.rollback()

    def clear(self) -> None:
        """Consume all items, durable on return.

        Raises:
            ResourceError: The system has no room. Nothing was consumed.
            BrokenQueueError: A sync failed. It is unknown whether the items are consumed.
        """
        self._persistent.clear()

    def close(self) -> None:
        """Close the queue, and delete it if it is empty. Closing again does nothing.

        A queue is not empty while an item cannot be read, a published file waits, or a file is kept as ``*.damaged``.
        A queue with subscriptions stays, since they get later items, and one with markers, since they tell an import
        what the queue has had.

        Raises:
            ResourceError, BrokenQueueError: The log could not be sealed. The queue is closed, and the next opening
                recovers.
            PersistentQueueError, OSError: The empty queue cannot be deleted.
        """
        if self._persistent.closed:
            return
        is_empty = False
        with suppress(PersistentQueueError, OSError, MemoryError):  # close it whatever the error is
            seen = self._persistent.view().look()
            is_used = seen.depth or seen.published or seen.markers or seen.subscriptions
            is_empty = not (is_used or self._keeps_damaged())
        self._persistent.close()
        if is_empty:
            delete_queue(self._path)
            with suppress(OSError):  # other files are in the directory
                DISK.rmdir(self._path)

    def _keeps_damaged(self) -> bool:
        """Return whether a file was set aside: it has the only copy of what could not be read."""
        for folder in (".", *DISK.listdir(self._path)):
            with suppress(NotADirectoryError):
                if any(name.endswith(".damaged") for name in DISK.listdir(join(self._path, folder))):
                    return True
        return False

"""Errors of worker processes, which use a queue that another process owns."""

from __future__ import annotations

from ..drawing.text import printable
from .base import PersistentQueueError


class SessionLostError(PersistentQueueError):
    """The work of this session is lost: the owner of the queue was killed, or did not hand it over to the next one.

    The items that the session had dequeued are back in the queue, at their old places. Those that it had enqueued are
    dropped. A flush that was under way was not committed, and never will be. The session begins anew by itself: do the
    work again.

    Attributes:
        path: The path of the queue.
    """

    def __init__(self, path: str, what: str) -> None:
        self.path: str = path
        super().__init__(
            f"{path}: the owner of the queue ended, {what}: dequeued items are back in the queue, and nothing was "
            "committed: do the work since the last flush again"
        )


class OutcomeUnknownError(SessionLostError):
    """The owner of the queue ended during a flush, and no later owner knows whether that flush was committed.

    There are two causes: this process has closed the queue meanwhile, or more than 4,096 sessions of other workers were
    lost since. ``SharedQueue.clear`` and ``requeue`` raise it, too, if the owner ended during the call. Look into the
    queue, or repeat the work with a marker.

    Attributes:
        path: The path of the queue.
    """

    def __init__(self, path: str, what: str) -> None:
        self.path: str = path
        PersistentQueueError.__init__(
            self,
            f"{path}: the owner of the queue ended in the middle of a transaction, {what}: whether it was committed is "
            "unknown: look into the queue, or do the work again with a marker",
        )


class HoldLostError(PersistentQueueError):
    """The session held items for longer than ``hold_seconds``, so the owner has given them to others.

    Nothing was committed. Roll the session back, then go on. To keep items for longer, call ``extend`` in time.

    Attributes:
        path: The path of the queue.
        hold_seconds: The time that the session may hold items, in seconds.
    """

    def __init__(self, path: str, hold_seconds: float) -> None:
        self.path: str = path
        self.hold_seconds: float = hold_seconds
        super().__init__(
            f"{path}: the session held items for longer than hold_seconds={hold_seconds}, and they are back in the "
            "queue; nothing was committed: call rollback(), and extend() in time when work takes long"
        )


class NotServedError(PersistentQueueError):
    """No owner serves the queue to this process, and this process cannot own it.

    Raised when ``connect``, or a call of a queue or a session, has waited for ``lock_timeout`` seconds. The call has
    changed nothing, with one exception: if the owner ended during a ``flush``, the next owner will know whether it was
    committed. Then call ``flush`` of the same session once more. Open the queue with ``serve=True`` in the process that
    owns it, or start an owner with ``connect`` or ``persistentqueue serve``.

    Attributes:
        path: The path of the queue.
        pid: The process id of the owner that does not serve; None if there is no owner. With ``taken``, the id of the
            process that has that queue open.
        in_doubt: True if a flush was under way, whose outcome is unknown until an owner serves.
        is_here: True if this process itself owns the queue without serving it.
        taken: The path of the dead-letter queue, if that is open elsewhere; else empty.
    """

    def __init__(
        self,
        path: str,
        pid: int | None,
        in_doubt: bool = False,
        exists: bool = True,
        is_here: bool = False,
        taken: str = "",
    ) -> None:
        self.path: str = path
        self.pid: int | None = pid
        self.in_doubt: bool = in_doubt
        self.is_here: bool = is_here
        self.taken: str = taken
        problem = "the queue is not served: no process owns it" if exists else "there is no queue yet to connect to"
        way = 'by connect() without serve="never" or by the command persistentqueue serve'
        action = f"start an owner, {way}{'' if exists else ', which makes the queue'}"
        if taken:
            problem = f"this process cannot own the queue: its dead-letter queue {taken} is open in process {pid}"
            action = (
                "name another one, or pass the open queue as dead_letter, or close it there, or connect to it there "
                'with serve="never"'
            )
        elif is_here:
            problem = f"the queue is not served: this process, {pid}, has it open without serve=True"
            action = "use the queue object that is open, in any number of threads, or open it with serve=True"
        elif pid is not None:
            problem = f"the queue is not served: process {pid} owns it without serve=True"
            action = f"open it with serve=True in that process, or end that process and {action}"
        outcome = (
            "; whether the flush that was under way is committed is unknown until then: call flush() of this session "
            "again, which tells it"
        )
        super().__init__(f"{path}: {problem}: {action}{outcome if in_doubt else ''}")


class RefusedError(PersistentQueueError):
    """The owner of the queue refuses this process, or does not understand it.

    Nothing was changed. Run the process as the user that owns the queue, or upgrade the older of the two programs.

    Attributes:
        path: The path of the queue.
    """

    def __init__(self, path: str, why: str) -> None:
        self.path: str = path
        super().__init__(
            f"{path}: the owner of the queue refuses the connection: {printable(why)}: run as the user that owns the "
            "queue, or upgrade the older of the two programs"
        )


class OtherOptionsWarning(UserWarning):
    """A process has connected to a queue whose owner has other options, which are the ones that count.

    The text names the options that have no effect: limits, attempts and dead letters, ``sync``, ``wipe``, ``fan_out``,
    ``data_path``, compression and encryption of the files. Open the queue with the same options in all processes, and
    pass those of the queue to ``persistentqueue serve`` as well. It is told once, and again if a later owner differs in
    another way.
    """

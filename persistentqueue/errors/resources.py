"""Errors of resources: a call needs more than the system has, or than a limit of the queue allows."""

from __future__ import annotations

import errno

from .base import PersistentQueueError

_REMEDIES = {
    errno.EDQUOT: "free some space, or raise the quota",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
}
"""Remedies for error numbers; the other numbers have that of their class."""


class ResourceError(PersistentQueueError):
    """The operating system lacks a resource that the call needs.

    Nothing was committed, and the queue is not broken. The session keeps its operations: flush it again when the
    resource is available. This is the base class of ``DiskFullError``, ``TooManyFilesError``, ``OutOfMemoryError`` and
    ``NoThreadError``.

    Attributes:
        path: The file or directory of the call that failed.
        errno: The error number of the operating system.
        lacks: The missing resource, for the message.
        remedy: The action that the caller can take, for the message.
        errnos: The error numbers that a class stands for.
    """

    lacks: str = "nothing left"
    remedy: str = "free some of it"
    errnos: frozenset[int] = frozenset()

    def __init__(
        self, path: str, errno: int, reason: str, advice: str = "then flush again", remedy: str | None = None
    ) -> None:
        self.path: str = path
        self.errno: int = errno
        self.remedy = remedy or _REMEDIES.get(errno, self.remedy)
        super().__init__(f"{path}: {reason}; nothing was committed: {self.remedy}, {advice}")


class DiskFullError(ResourceError):
    """The disk has no space for the data.

    Nothing was committed. The session keeps its operations: free some space, then flush it again. Dequeueing still
    works. ``errno`` is ``ENOSPC``, ``EDQUOT`` or ``EFBIG``. The attributes are those of ``ResourceError``.
    """

    lacks = "no room"
    remedy = "free some space"
    errnos: frozenset[int] = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class TooManyFilesError(ResourceError):
    """The process, or the machine, has too many files open.

    Nothing was committed, and the queue is not broken. The session keeps its operations: close files or raise the
    limit, then flush it again. If a dequeue raises this error, the items stay ready, in their order. ``errno`` is
    ``EMFILE`` for the process and ``ENFILE`` for the machine. The attributes are those of ``ResourceError``.
    """

    lacks = "too many files are open"
    remedy = "close files, or raise the limit (ulimit -n)"
    errnos: frozenset[int] = frozenset({errno.EMFILE, errno.ENFILE})


class OutOfMemoryError(ResourceError, MemoryError):
    """The operating system has no memory for a call that wrote nothing.

    Nothing was committed. The session keeps its operations: free some memory, then flush it again. ``errno`` is
    ``ENOMEM``. The attributes are those of ``ResourceError``. A ``MemoryError`` of Python itself is another class.
    """

    lacks = "no memory"
    remedy = "free some memory"
    errnos: frozenset[int] = frozenset({errno.ENOMEM})


class NoThreadError(ResourceError, RuntimeError):
    """The process cannot have another thread, which serves the queue or makes the call of a worker.

    It has too many, or this is a subinterpreter: Python allows no such threads there. A subinterpreter can connect to
    an owner elsewhere. ``errno`` is ``EAGAIN``. The attributes are those of ``ResourceError``.
    """

    lacks = "no further thread"
    remedy = "end some threads, or raise the limit (ulimit -u)"
    errnos: frozenset[int] = frozenset({errno.EAGAIN})


class QueueFullError(PersistentQueueError):
    """A limit leaves no room for the items that a transaction enqueues.

    Nothing of the transaction was committed. The session keeps its operations: dequeue some items, then flush it again.
    Dequeueing still works, with two exceptions. A consumer that finds nothing else gets this error if the dead-letter
    queue is full. It also gets the error, once, for a published file that never fits.

    Attributes:
        path: The directory of the queue, the published file, or for ``min_free_bytes`` a directory of the full disk.
        limit: The setting: ``max_items``, ``max_bytes``, ``max_disk_bytes`` or ``min_free_bytes``.
        most: The value of the setting.
        holds: The amount that the queue holds. For ``min_free_bytes``, the free bytes of the file system.
        asked: The amount that the transaction would add, in items or bytes.
        lasting: True if no dequeue can help. The call then raises at once, even if the queue is set to wait for room.
    """

    def __init__(
        self, path: str, limit: str, most: int, holds: int, asked: int, lasting: bool, advice: str = ""
    ) -> None:
        self.path: str = path
        self.limit: str = limit
        self.most: int = most
        self.holds: int = holds
        self.asked: int = asked
        self.lasting: bool = lasting
        found = f"the queue holds {holds}"
        if limit == "min_free_bytes":
            found, advice = f"the file system has {holds} free", "free space there, then flush again"
        elif lasting:
            advice = advice or "it never fits: flush less at once or raise the limit, then flush again"
        else:
            advice = "dequeue, then flush again"
            if limit in {"max_items", "max_bytes"} and holds + asked <= most:
                found += ", and other flushes come before this one"
        text = f"{limit}={most} leaves no room for {asked} more, {found}; nothing was committed: {advice}"
        super().__init__(f"{path}: {text}")


class MemoryShortageError(PersistentQueueError, MemoryError):
    """A block, a log or a published file needs more memory than this process can get.

    Nothing is lost. Raised by dequeueing, only the items of that block are set aside. The error is raised once, and the
    following calls deliver the later items. The next opening of the queue has the items again. Open the queue in a
    process with more memory.

    Attributes:
        file: The path of the file.
        offset: The position of the data, in bytes from the start of the file.
        needed_bytes: The least amount of memory that is needed.
    """

    def __init__(self, file: str, offset: int, needed_bytes: int) -> None:
        self.file: str = file
        self.offset: int = offset
        self.needed_bytes: int = needed_bytes
        super().__init__(
            f"{file}: the data at offset {offset} needs at least {needed_bytes} bytes of memory, and this process has "
            "less; nothing is lost: open the queue in a process with more memory"
        )

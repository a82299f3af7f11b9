"""All errors of the package: one class for each action that a caller can take.

::

    PersistentQueueError
    ├── QueueLockedError         another owner has the queue open: wait, or close the queue there
    ├── UntrustedError           another user may have prepared the files: inspect and repair them, or pass trust=True
    ├── NetworkDiskError         the files are on a network file system: use a local disk, or pass network_disk=True
    ├── CopiedQueueError         a copy of a neighbouring queue: move one of them, or give the copy a new identity
    ├── ForeignQueueError        files of another queue package are there: import their items, or name another path
    ├── QueueNotFoundError       no queue at the path                 (also a FileNotFoundError): check the path
    ├── UnusablePathError        the system refuses the path: make it usable, or name another (also an OSError)
    │   ├── PathDeniedError          this process has no permission   (also a PermissionError)
    │   ├── PathMissingError         it does not exist and cannot be made (also a FileNotFoundError)
    │   ├── PathNotADirectoryError   a file or a link is there        (also a NotADirectoryError)
    │   └── PathIsADirectoryError    a directory is there             (also an IsADirectoryError)
    ├── SubscriptionNotFoundError  the queue has no such subscription (also a LookupError): subscribe, or name another
    ├── DeadLetterError          the bytes are not a dead letter      (also a ValueError): leave them, or drop them
    ├── InvalidNameError         the queue cannot have this name      (also a ValueError): choose another
    ├── ItemTooLargeError        the item exceeds 4 GiB - 1 bytes     (also a ValueError): split it
    ├── CodecError               the codec refuses this item: reject it, or consume it by a flush (also a ValueError)
    ├── MissingExtraError        an optional package is missing: install it  (also an ImportError)
    ├── SessionInUseError        the session is in another call: use one session for each thread
    ├── ReentrantUseError        a re-entrant call: make it later, after the call that it interrupts
    ├── InvalidTransactionError  the transaction contradicts the queue, nothing was committed: roll it back
    ├── ClosedError              closed, or inherited by a fork: open the queue, or a session, again
    ├── ResourceError            the system lacks a resource, nothing was committed: flush the same session again later
    │   ├── DiskFullError        … when there is free space
    │   ├── TooManyFilesError    … when files are closed, or the limit of open files is higher
    │   ├── OutOfMemoryError     … when there is free memory          (also a MemoryError)
    │   └── NoThreadError        no thread to serve the queue (also a RuntimeError): end some, or serve it elsewhere
    ├── PrecedingFlushError      a flush before this one failed: roll the session back, then do that work again
    ├── QueueFullError           a limit is reached, nothing was committed: dequeue, then flush the same session again
    ├── DataPathError            the segments cannot be at this path: name the right one, or move the segments
    ├── DataMissingError         the location of the segments is missing: mount it, name its new path, or repair
    ├── InDoubtError             another queue stores the outcome of a transaction: make that queue readable, then open
    ├── BrokenQueueError         a sync or a log write failed, the outcome is unknown: reopen, recovery decides
    │   └── QueueDeletedError    the directory of the open queue was deleted, and its items with it: close the queue
    ├── WrongKeyError            encrypted items stay ready, in order: open the queue, or make its codec, with the key
    ├── InboxAccessError         the queue of another user, not shared (also a PermissionError): share it with a group
    ├── CorruptionError          bytes on disk differ from the bytes written: see file, offset, expected, found
    ├── MemoryShortageError      a block exceeds the memory (also a MemoryError): open the queue with more memory
    ├── SessionLostError         the owner ended, and nothing was committed: do the work since the last flush again
    │   └── OutcomeUnknownError      … and whether a flush was committed is unknown: look, or repeat it with a marker
    ├── HoldLostError            the items were held for too long and are back in the queue: roll the session back
    ├── NotServedError           no owner serves the queue: open it with serve=True, or start an owner
    ├── RefusedError             the owner refuses this process: run as its user, or upgrade the older program
    └── UnsupportedFormatError   written by a newer version: upgrade persistentqueue

    ``persistentqueue.spark`` adds ``NotAStageError``, ``PayloadLostError`` (bring the file back, or skip the stage),
    ``JavaNotFoundError`` and ``SparkConnectError``; its pipelines ``PipelineDefinitionError``, ``StageFailedError`` and
    ``StageResultError``. A Spark job may also report ``GoneError`` (read again), ``DataLossError`` (check what happened
    to the subscription), ``ExpiredPartError`` (write again) and ``TooManyPartsError`` (use fewer parts).
    ``persistentqueue.importers`` adds ``SourceError`` (name another source) and its subclasses:
    ``SourceDamagedError`` (mend the source, or skip what is damaged), ``SourceInUseError`` (stop its owner) and
    ``SourceChangedError`` (pass ``again=True``). It also adds ``ImportMismatchError`` (check the disk).
    ``persistentqueue.rows`` adds ``SchemaMismatchError`` (change the rows) and ``SchemaNotFoundError`` (give a schema).

``UnflushedWarning`` is a ``RuntimeWarning``, and ``OtherOptionsWarning`` a ``UserWarning``. They are raised as errors
only if a filter of ``warnings`` says so.

A call can also raise:

- ``TypeError`` and ``ValueError`` for invalid arguments, before anything is written. ``aio`` raises ``RuntimeError``
  for a session that two tasks use, for an object of another event loop, and without a thread.
- ``OSError`` for a failure of the operating system that no class above describes: a device that cannot be written
  (``EIO``), or too many open files (``EMFILE``) in a call that does not say ``TooManyFilesError``. A failed sync, or a
  failed write of the log, is always a ``BrokenQueueError``.
- ``MemoryError`` and ``KeyboardInterrupt``.
- The errors of the caller's own functions: ``progress``, ``stop`` and ``retry_delay_seconds``. Two kinds are wrapped.
  Each ``Exception`` of a codec becomes a ``CodecError``, including ``RecursionError`` and ``MemoryError``, but not
  ``WrongKeyError`` and ``MissingExtraError``. Each ``Exception`` of ``Encryption.key`` becomes a ``WrongKeyError``.
- The errors of an emulated interface: ``Empty``, ``Full`` and ``ShutDown`` in ``compat``; ``QueueEmpty``, ``QueueFull``
  and ``QueueShutDown`` in ``aio.Queue``; the errors of Spark and Scrapy.
"""

from __future__ import annotations

import errno as _errno
from collections.abc import Sequence
from typing import Any

from .drawing.text import ADVICE, printable
from .pickling import portable, rebuilt


class PersistentQueueError(Exception):
    """Base class of all errors that this package defines.

    Each error keeps its message and its attributes through ``pickle``, ``copy.copy`` and ``copy.deepcopy``. So it
    reaches the parent of a process pool. An attribute that cannot be pickled arrives there as its ``repr``.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what rebuilds the error without its constructor, whose arguments are not in ``args``."""
        reduced: Any = super().__reduce__()
        _, arguments, *state = reduced
        attributes = [{name: portable(value) for name, value in each.items()} for each in state if each]
        return (rebuilt, (type(self), *arguments), *attributes)

    def __copy__(self) -> PersistentQueueError:
        """Return a copy that shares the attributes, also those that cannot be pickled."""
        reduced: Any = super().__reduce__()
        _, arguments, *_ = reduced
        copied = rebuilt(type(self), *arguments)
        copied.__dict__.update(self.__dict__)
        return copied


class QueueLockedError(PersistentQueueError):
    """Another owner, in this or another process, has the queue open.

    Raised when a call needs the lock of the queue and cannot get it within ``lock_timeout``. Nothing was changed. Close
    the queue there, or wait longer.

    The lock itself is held by the kernel. The attributes describe the owner as it described itself in the lock file,
    and serve the message only. Each of ``pid``, ``host`` and ``since`` is None if the file does not say.

    Attributes:
        path: The path of the lock file.
        pid: The process id of the owner.
        host: The host name of the owner.
        since: The time when the owner took the lock, as ISO 8601 in UTC.
    """

    def __init__(self, path: str, pid: int | None, host: str | None, since: str | None, advice: str = "") -> None:
        self.path: str = path
        self.pid: int | None = pid
        self.host: str | None = host
        self.since: str | None = since
        owner = "an owner that has not named itself"
        if pid is not None:
            owner = f"process {pid} on {printable(str(host))} since {printable(str(since))}"
        advice = advice or "close it there, wait with lock_timeout=, or let all processes use it by connect()"
        super().__init__(f"{path}: the queue is open in {owner}: {advice}")


class UntrustedError(PersistentQueueError):
    """Another user may have prepared this directory, or a file in it.

    Raised before the file is used. Nothing was changed. Inspect the file and correct its owner and mode, or
    pass ``trust=True``, which accepts foreign owners and modes. A lock that is not a plain file, or that has several
    names, is never accepted.

    Attributes:
        path: The directory or the file.
        expected: The expected owner, mode or kind of file, as text.
        found: The owner, mode or kind that the file has, as text.
        advice: The action that helps, as text.
    """

    def __init__(self, path: str, expected: str, found: str, advice: str) -> None:
        self.path: str = path
        self.expected: str = expected
        self.found: str = found
        self.advice: str = advice
        super().__init__(f"{path}: expected {expected}, found {found}: {advice}")


class NetworkDiskError(PersistentQueueError):
    """The directory is on a network file system, whose locks can end while their owner lives.

    Raised before anything is written. Use a directory on a local disk: ``connect`` shares it with the processes of its
    machine. Or pass ``network_disk=True``, if a second owner is impossible for other reasons.

    Attributes:
        path: The directory, or the first of its parents that exists.
        found: The type of the file system, such as ``nfs4`` or ``fuse.sshfs``.
    """

    def __init__(self, path: str, found: str) -> None:
        self.path: str = path
        self.found: str = found
        super().__init__(
            f"{path}: expected a local file system, found {found}, whose locks can end while their owner lives: use a "
            "directory on a local disk, or accept the risk of two owners with network_disk=True"
        )


class CopiedQueueError(PersistentQueueError):
    """This queue and a neighbouring queue have the same identity, so one of them is a copy of the other.

    Raised by opening a queue, because the log of one queue could be taken for that of the other. Nothing was lost. Move
    one of them to another parent directory, or give the copy a new identity with ``repair(…, renew=True)``.

    Attributes:
        path: The directory of the queue that was opened.
        other: The directory of the neighbour with the same identity.
    """

    def __init__(self, path: str, other: str) -> None:
        self.path: str = path
        self.other: str = other
        super().__init__(
            f"{path}: expected a queue with its own identity, found the identity of {other}: one is a copy of the "
            "other: move one of them to another parent directory, or run repair --renew on the copy"
        )


class ForeignQueueError(PersistentQueueError):
    """The directory holds the files of a queue of another package: persist-queue or queuelib.

    Raised by opening a new queue there. Nothing was written. Give the new queue a directory of its own, and copy the
    items with ``persistentqueue.importers.import_queue``, which changes nothing in the old directory.

    Attributes:
        path: The directory.
        origin: The package that made the files: ``"persist-queue"`` or ``"queuelib"``.
        found: The names of its files, as text.
    """

    def __init__(self, path: str, origin: str, found: str) -> None:
        self.path: str = path
        self.origin: str = origin
        self.found: str = found
        super().__init__(
            f"{path}: expected an empty directory or one of persistentqueue, found {printable(found)} of {origin}; "
            "nothing was written: choose another directory, and copy the items with "
            f"persistentqueue.importers.import_queue(…, origin={origin!r}); see docs/howto/coming_from.md"
        )


class QueueNotFoundError(PersistentQueueError, FileNotFoundError):
    """There is no queue at the path.

    Raised by opening a queue with ``create=False``. Also raised by calls that need an existing queue: check, repair,
    move, delete, ``View``, ``Producer``, and a queue whose directory was renamed. Check the path, or make the queue.
    """


class UnusablePathError(PersistentQueueError, OSError):
    """The operating system refuses a path when a queue is opened, inspected, repaired, moved or deleted.

    Committed data is unchanged. Make the path usable, or name another. Each subclass is also the matching built-in
    error, so that ``except PermissionError`` catches it.

    Attributes:
        errno: The error number of the original ``OSError``.
        strerror: The text of the original ``OSError``.
        filename: The path that was refused.
    """

    def __str__(self) -> str:
        """Return the path, the reason of the operating system, and what to do."""
        return f"{self.filename}: {self.strerror}: {ADVICE.get(self.errno or 0, 'make the path usable')}"

    @property
    def path(self) -> str:
        """The path that was refused."""
        return str(self.filename)


class PathDeniedError(UnusablePathError, PermissionError):
    """This process has no permission to use the path.

    Change the owner or the mode of the path, or run as its owner. The attributes are those of ``UnusablePathError``.
    """


class PathMissingError(UnusablePathError, FileNotFoundError):
    """The path does not exist and cannot be made.

    Make its parent directory, or give a path on a writable file system. The attributes are those of
    ``UnusablePathError``.
    """


class PathNotADirectoryError(UnusablePathError, NotADirectoryError):
    """The path must be a directory, and is a file or a link.

    Give the path of a directory. The attributes are those of ``UnusablePathError``.
    """


class PathIsADirectoryError(UnusablePathError, IsADirectoryError):
    """The path must be a file, and is a directory.

    Move the directory away. The attributes are those of ``UnusablePathError``.
    """


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


class InvalidNameError(PersistentQueueError, ValueError):
    """The queue cannot have this name.

    A name has 1 to 64 characters of ``A-Z a-z 0-9 . _ -`` and does not begin with a dot. A queue without a name keeps
    its parts, such as ``log``, in its directory. The error is also raised when a queue name equals the name of such a
    part. Another cause is a directory of named queues for which no name was passed. Choose another name, or path.
    """


class ItemTooLargeError(PersistentQueueError, ValueError):
    """An item is longer than 4 GiB - 1 bytes, or too long for a worker process (see ``connect``), or a dead letter.

    The call that raised this error changed nothing. Split the item. If it is in the queue already, dequeue it in the
    process that owns the queue, without ``max_attempts``.
    """


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
        if remedy is not None:
            self.remedy = remedy
        super().__init__(f"{path}: {reason}; nothing was committed: {self.remedy}, {advice}")


class DiskFullError(ResourceError):
    """The disk has no space for the data.

    Nothing was committed. The session keeps its operations: free some space, then flush it again. Dequeueing still
    works. ``errno`` is ``ENOSPC``, ``EDQUOT`` or ``EFBIG``. The attributes are those of ``ResourceError``.
    """

    lacks = "no room"
    remedy = "free some space"
    errnos: frozenset[int] = frozenset({_errno.ENOSPC, _errno.EDQUOT, _errno.EFBIG})


class TooManyFilesError(ResourceError):
    """The process, or the machine, has too many files open.

    Nothing was committed, and the queue is not broken. The session keeps its operations: close files or raise the
    limit, then flush it again. If a dequeue raises this error, the items stay ready, in their order. ``errno`` is
    ``EMFILE`` for the process and ``ENFILE`` for the machine. The attributes are those of ``ResourceError``.
    """

    lacks = "too many files are open"
    remedy = "close files, or raise the limit (ulimit -n)"
    errnos: frozenset[int] = frozenset({_errno.EMFILE, _errno.ENFILE})


class OutOfMemoryError(ResourceError, MemoryError):
    """The operating system has no memory for a call that wrote nothing.

    Nothing was committed. The session keeps its operations: free some memory, then flush it again. ``errno`` is
    ``ENOMEM``. The attributes are those of ``ResourceError``. A ``MemoryError`` of Python itself is another class.
    """

    lacks = "no memory"
    remedy = "free some memory"
    errnos: frozenset[int] = frozenset({_errno.ENOMEM})


class NoThreadError(ResourceError, RuntimeError):
    """The process cannot have another thread, which serves the queue or makes the call of a worker.

    It has too many, or this is a subinterpreter: Python allows no such threads there. A subinterpreter can connect to
    an owner elsewhere. ``errno`` is ``EAGAIN``. The attributes are those of ``ResourceError``.
    """

    lacks = "no further thread"
    remedy = "end some threads, or raise the limit (ulimit -u)"
    errnos: frozenset[int] = frozenset({_errno.EAGAIN})


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


class DataPathError(PersistentQueueError):
    """The queue cannot have its segments at this path.

    Either they are elsewhere, or the files at the path are not those of this queue. Or the directory was copied, so the
    segments may belong to the original. Nothing was changed, and no segment was made. Name the right ``data_path``, or
    move the segments.

    Attributes:
        path: The directory of the queue.
        expected: The kind of file that must be at the path, as text.
        found: The kind of file that is there, as text.
        problem: The text without the advice at its end.
    """

    def __init__(self, path: str, expected: str, found: str, advice: str) -> None:
        self.path: str = path
        self.expected: str = expected
        self.found: str = found
        self.problem: str = f"{path}: expected {expected}, found {found}"
        super().__init__(f"{self.problem}: {advice}")


class DataMissingError(PersistentQueueError):
    """The recorded location of the segments does not exist, or belongs to another queue; or the record is missing.

    The usual cause is a disk that is not mounted. Nothing was made, swept or set aside. Mount the disk, or open the
    queue with ``data_path`` set to the new path of the location. If ``data.path`` is missing, restore or repair it. If
    the segments are lost for good, the message says what is left to do.

    Attributes:
        path: The directory of the queue.
        place: The recorded location of its segments; ``path`` if there is no record.
        expected: The id that the location must have; empty if there is no record.
        found: The id that was found there; None if there is none.
        problem: The text without the advice at its end.
    """

    def __init__(self, path: str, place: str, expected: str, found: str | None, why: str, advice: str) -> None:
        self.path: str = path
        self.place: str = place
        self.expected: str = expected
        self.found: str | None = found
        self.problem: str = f"{path}: {why}"
        super().__init__(f"{self.problem}: {advice}")


class InDoubtError(PersistentQueueError):
    """A crash interrupted a transaction over several queues, and its outcome is not available.

    The coordinator is the queue whose log stores the outcome. Nothing was changed: the affected items are neither
    dropped nor served. Make the coordinator available as the message says, then open this queue again.

    Deleting a queue raises this error if a neighbour still needs an outcome from it. ``path`` is then the neighbour.

    Attributes:
        path: The directory of the queue that is in doubt.
        transaction: The id of the transaction, 16 bytes.
        coordinator: The directory of the coordinator.
        lost: True if the outcome cannot be read any more. Then ``repair`` may decide without the coordinator.
    """

    def __init__(self, path: str, transaction: bytes, coordinator: str, reason: str, lost: bool = False) -> None:
        self.path: str = path
        self.transaction: bytes = transaction
        self.coordinator: str = coordinator
        self.lost: bool = lost
        super().__init__(
            f"{path}: the outcome of the transaction {transaction.hex()} over several queues is in the log of "
            f"{coordinator}: {reason}"
        )


class BrokenQueueError(PersistentQueueError):
    """A sync or a write of the transaction log failed, so it is unknown whether the last flush is durable.

    A failed sync is never retried, because the kernel may have dropped the data that it had to write. Every later call
    raises this error. Close the queue and open it again: recovery decides what was committed.

    A producer raises this error if its sync fails after it has published a file.
    """


class QueueDeletedError(BrokenQueueError):
    """The directory of an open queue was deleted, and its items with it, also the items of the last flushes.

    The owner notices it at the next call that looks into the directory; a flush looks once in a millisecond. Every
    later call raises this error until the queue is closed. A new queue under the old name is a different queue, and is
    not touched. A directory that was only renamed raises nothing: the queue continues in it.

    Attributes:
        directory: The directory of the queue.
    """

    def __init__(self, directory: str) -> None:
        self.directory: str = directory
        super().__init__(
            f"{directory}: the queue's directory was deleted while the queue was open, and its items with it: close "
            "the queue, and open it again to make a new one"
        )


class WrongKeyError(PersistentQueueError):
    """The key with this ``key_id`` was not given, or differs from the key that encrypted a block or an item.

    This is not damage. The items are neither lost nor set aside. They stay ready, in their order, and are delivered to
    a process that has the key. (A ``MissingExtraError`` that dequeueing raises leaves the items ready, too.)

    Attributes:
        key_id: The id of the key.
        file: The file with the encrypted block; None for the key to write with, and for an item of a codec.
        offset: The position of the block, in bytes from the start of the file; None without a ``file``.
    """

    def __init__(self, key_id: str, problem: str, file: str | None = None, offset: int | None = None) -> None:
        self.key_id: str = key_id
        self.file: str | None = file
        self.offset: int | None = offset
        where = f"{file}: the block at offset {offset} is encrypted with the key" if file is not None else "the key"
        super().__init__(
            f"{where} {key_id!r}: {problem}; nothing is lost or set aside: pass an encryption=Encryption(key_id, key) "
            "whose key(key_id) returns this key"
        )


class CorruptionError(PersistentQueueError):
    """Bytes on disk differ from the bytes that were written, or the device cannot read them (``EIO``).

    Raised by opening, nothing was changed: check and repair the queue. Raised by dequeueing, only the items of the
    damaged block are set aside. The error is raised once, and the following calls deliver the later items.

    Attributes:
        file: The path of the damaged file.
        offset: The position of the damage, in bytes from the start of the file.
        expected: The content that should be there, as text.
        found: The content that is there, as text.
        damage: The text of the error without its advice.
    """

    def __init__(self, file: str, offset: int, expected: str, found: str, consequence: str = "") -> None:
        self.file: str = file
        self.offset: int = offset
        self.expected: str = expected
        self.found: str = found
        self.damage: str = f"{file}: damaged at offset {offset}: expected {expected}, found {found}"
        super().__init__(f"{self.damage}; {consequence}" if consequence else self.damage)


class InboxAccessError(PersistentQueueError, PermissionError):
    """This process may not publish to the inbox, or the owner could not read what it publishes.

    Raised by a producer. Nothing was published. The queue belongs to another user. Publish as that user, or let that
    user share the queue with a group. The message names the commands.

    Attributes:
        path: The directory that this process may not use: the inbox, or the queue's.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path: str = path
        super().__init__(
            f"{path}: {reason}: publish as the user of the queue, or have that user share it with a group: chgrp GROUP "
            "the queue's directory, log and inbox, chmod 750 the first two, chmod 2770 the inbox"
        )


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


class UnsupportedFormatError(PersistentQueueError):
    """The file has a newer format than this version can read.

    Nothing was changed. Upgrade persistentqueue.

    Attributes:
        file: The path of the file.
        found: The format version of the file.
        supported: The highest format version that this release reads.
    """

    def __init__(self, file: str, found: int, supported: int) -> None:
        self.file: str = file
        self.found: int = found
        self.supported: int = supported
        super().__init__(
            f"{file}: written in format version {found}, this release reads up to version {supported}: "
            "upgrade persistentqueue"
        )


class UnflushedWarning(RuntimeWarning):
    """A session, a producer or an ``aio.Queue`` ended with work that was not flushed, and no exception says so.

    Its ``with`` block ended, its queue was closed, or the last reference to it was dropped. The work is lost, even if
    a filter turns the warning into an error. Call ``flush`` before. To drop the work without a warning, call
    ``rollback`` or ``close`` of the session. There is no warning if an exception leaves the block.

    Python shows it once for each place in a program. To raise it, call ``simplefilter("error", UnflushedWarning)``.
    """

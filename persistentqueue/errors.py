"""Everything that can go wrong, one class for each thing a caller can do about it.

::

    PersistentQueueError
    ├── QueueLockedError         another owner has the queue: wait, or stop that owner
    ├── UntrustedError           another user may have prepared what is there: look at it, mend it, or say trust=True
    ├── CopiedQueueError         a copy of an open queue: close one of them, or give the copy an identity of its own
    ├── QueueNotFoundError       no queue there and ``create=False``  (also a FileNotFoundError)
    ├── UnusablePathError        the system refuses the path: make it usable, or name another (also an OSError)
    │   ├── PathDeniedError          this process may not use it      (also a PermissionError)
    │   ├── PathMissingError         it cannot be made                (also a FileNotFoundError)
    │   ├── PathNotADirectoryError   a file or a link is there        (also a NotADirectoryError)
    │   └── PathIsADirectoryError    a directory is there             (also an IsADirectoryError)
    ├── SubscriptionNotFoundError  the queue has no such subscription (also a LookupError)
    ├── DeadLetterError          the item is no dead letter's envelope (also a ValueError): leave it, or drop it
    ├── InvalidNameError         the name cannot be a queue's          (also a ValueError)
    ├── ItemTooLargeError        the item exceeds 4 GiB - 1            (also a ValueError)
    ├── CodecError               the codec refuses this item: reject it, or skip it by a flush (also a ValueError)
    ├── MissingExtraError        an optional package is not there: install it  (also an ImportError)
    ├── SessionInUseError        the session is in another call: one session for each thread
    ├── ReentrantUseError        the call interrupts one of the same queue: make it later, from outside of that
    ├── InvalidTransactionError  what it dequeues is not its own to consume: nothing was committed, roll it back
    ├── ClosedError              you closed it (or forked): open the queue, or a session, again
    ├── ResourceError            the system lacks something, nothing was committed: flush the same session again later
    │   ├── DiskFullError        … once space is free
    │   ├── TooManyFilesError    … once files are closed, or more may be open
    │   └── OutOfMemoryError     … once memory is free                 (also a MemoryError)
    ├── QueueFullError           a limit was reached, nothing was committed: dequeue, then flush the same session again
    ├── DataPathError            the segments are, or would be, elsewhere than was asked: name that, or move them
    ├── DataMissingError         the segments' place is not there: mount it, or name where it is now
    ├── InDoubtError             another queue knows what became of a transaction over both: bring that one, then open
    ├── BrokenQueueError         a sync or a log write failed, the outcome is unknown: reopen, recovery decides
    │   └── QueueDeletedError    the open queue's directory was deleted, and its items with it: close the queue
    ├── WrongKeyError            what is encrypted stays, ready and in order: open the queue with the key
    ├── InboxAccessError         another user's queue, not shared with a group (also a PermissionError): share it
    ├── CorruptionError          bytes on disk are not what was written: see file, offset, expected, found
    ├── MemoryShortageError      a block takes more memory than there is (also a MemoryError): open the queue with more
    └── UnsupportedFormatError   written by a newer version: upgrade persistentqueue

    (``persistentqueue.spark`` adds ``NotAStageError``, ``PayloadLostError``: bring the file back or skip the stage, and
    ``JavaNotFoundError``. A Spark job may report ``GoneError``: read again, ``DataLossError``: look what became of the
    subscription, ``ExpiredPartError``: write again, and ``TooManyPartsError``: use fewer parts.)

``UnflushedWarning``, a ``ResourceWarning``, is no error unless a filter of ``warnings`` makes it one.

What else may come out of a call:

- ``TypeError`` and ``ValueError`` for arguments that are wrong in themselves, before anything is written;
  ``RuntimeError`` in ``aio``, for a session of two tasks or an object of another event loop.
- ``OSError`` if the operating system fails for a reason that is not the queue's: a device that cannot be read
  (``EIO``), or too many open files (``EMFILE``). An error of a sync, or of a write of the log, is a
  ``BrokenQueueError``.
- ``MemoryError``, ``KeyboardInterrupt``, and the errors of the caller's own functions: of a ``progress``, a ``stop``, a
  ``retry_delay_seconds``. An ``Exception`` of a codec is a ``CodecError``, also a ``RecursionError`` or
  ``MemoryError``; one of an ``Encryption.key`` is a ``WrongKeyError``.
- Those of the interface that a face has: ``Empty``, ``Full`` and ``ShutDown`` of ``compat``, ``QueueEmpty``,
  ``QueueFull`` and ``QueueShutDown`` of ``aio.Queue``, and the errors of Spark and Scrapy.
"""

from __future__ import annotations

import errno as _errno
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

_PLAIN: Final = frozenset({str, bytes, int, float, bool, type(None)})
"""Types of attributes that need no test: every pickle takes them."""
_ADVICE: Final = {
    _errno.ENOTDIR: "give the path of a directory, no file and no link to one",
    _errno.EISDIR: "move the directory away, a file belongs there",
    _errno.EACCES: "change its owner or its mode, or run as its owner",
    _errno.EPERM: "change its owner or its mode, or run as its owner",
    _errno.EROFS: "mount the file system for writing, or look at the queue by a View",
    _errno.ENAMETOOLONG: "give a shorter path",
    _errno.ELOOP: "remove the symbolic links that lead to each other",
    _errno.ENOENT: "make its parent, or give a path on a file system that can be written",
}
"""What to do about an error of the operating system that is about the path of a queue."""


class PersistentQueueError(Exception):
    """The base of every error that this package raises on its own account.

    Each error survives ``pickle``, ``copy.copy`` and ``copy.deepcopy`` with its message and its attributes, so that it
    reaches the parent of a process pool. An attribute that cannot be pickled arrives there as its ``repr``.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what rebuilds the error without its constructor, whose arguments are not in ``args``."""
        reduced: Any = super().__reduce__()
        _, arguments, *state = reduced
        attributes = [{name: _portable(value) for name, value in each.items()} for each in state if each]
        return (_rebuilt, (type(self), *arguments), *attributes)

    def __copy__(self) -> PersistentQueueError:
        """Return a copy that shares the attributes, also those that cannot be pickled."""
        reduced: Any = super().__reduce__()
        _, arguments, *_ = reduced
        copied = _rebuilt(type(self), *arguments)
        copied.__dict__.update(self.__dict__)
        return copied


def printable(text: str) -> str:
    """Return the text with what a terminal would obey, or cannot show, escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class QueueLockedError(PersistentQueueError):
    """Another owner, in this or another process, has the queue open.

    ``pid``, ``host`` and ``since`` (ISO 8601, UTC) describe the owner as it described itself in the lock file; each
    is ``None`` where the file does not tell. They are for the message only: the lock itself is held by the kernel.
    """

    def __init__(self, path: str, pid: int | None, host: str | None, since: str | None) -> None:
        self.path, self.pid, self.host, self.since = path, pid, host, since
        owner = "an owner that has not named itself"
        if pid is not None:
            owner = f"process {pid} on {printable(str(host))} since {printable(str(since))}"
        super().__init__(f"{path}: the queue is open in {owner}; close it there, or wait with lock_timeout=")


class UntrustedError(PersistentQueueError):
    """Another user may have prepared this directory, or a file in it, so it is not believed. Nothing was changed.

    ``path`` is the directory or the file; ``expected`` and ``found`` are texts. ``trust=True`` accepts foreign owners
    and modes. A lock that is no plain file, or that has other names, is never accepted.
    """

    def __init__(self, path: str, expected: str, found: str, advice: str) -> None:
        self.path, self.expected, self.found, self.advice = path, expected, found, advice
        super().__init__(f"{path}: expected {expected}, found {found}: {advice}")


class CopiedQueueError(PersistentQueueError):
    """The queue is a copy of one beside it, or that one is a copy of this one: both have one identity.

    What is said of one queue would be believed of the other. Nothing was lost. ``path`` and ``other`` are the two
    directories. ``repair(…, renew=True)`` gives the copy an identity of its own.
    """

    def __init__(self, path: str, other: str) -> None:
        self.path, self.other = path, other
        super().__init__(
            f"{path}: expected a queue with an identity of its own, found that of {other}: one is a copy of the "
            "other: put one of them elsewhere, or run repair --renew on the copy"
        )


class QueueNotFoundError(PersistentQueueError, FileNotFoundError):
    """There is no queue at the path, and ``create=False`` forbids making one."""


class UnusablePathError(PersistentQueueError, OSError):
    """The operating system refuses a path when a queue is opened, inspected, repaired, moved or deleted.

    What was committed is as it was. ``errno``, ``strerror`` and ``filename`` are those of the ``OSError`` that it came
    from. Its subclass is of the same built-in kind, so that an ``except PermissionError`` finds it.
    """

    def __str__(self) -> str:
        """Return the path, the reason of the operating system, and what to do."""
        return f"{self.filename}: {self.strerror}: {_ADVICE.get(self.errno or 0, 'make the path usable')}"

    @property
    def path(self) -> str:
        """The path that was refused."""
        return str(self.filename)


class PathDeniedError(UnusablePathError, PermissionError):
    """This process may not use the path."""


class PathMissingError(UnusablePathError, FileNotFoundError):
    """The path is not there, and cannot be made."""


class PathNotADirectoryError(UnusablePathError, NotADirectoryError):
    """A file, or a link, is in the place of a directory."""


class PathIsADirectoryError(UnusablePathError, IsADirectoryError):
    """A directory is in the place of a file."""


class SubscriptionNotFoundError(PersistentQueueError, LookupError):
    """The queue has no subscription of this name, or not any more; or, by ``fan_out``, none that needs no name.

    Nothing was committed. ``subscription`` is the name, empty for the plain queue.
    """

    def __init__(self, subscription: str, others: Sequence[str] = ()) -> None:
        what = f"no subscription {subscription!r}" if subscription else "no subscription by default"
        there = f"only {', '.join(map(repr, others))}" if others else "and it may have been removed"
        super().__init__(f"{what} of this queue, {there}: make one by queue.subscribe(name)")
        self.subscription = subscription


class DeadLetterError(PersistentQueueError, ValueError):
    """The bytes are no dead letter's envelope: somebody else has put them into that queue. Nothing was changed."""

    def __init__(self, expected: str, found: str) -> None:
        self.expected, self.found = expected, found
        super().__init__(f"no dead letter: expected {expected}, found {found}")


class InvalidNameError(PersistentQueueError, ValueError):
    """The name cannot be a queue's: 1 to 64 of ``A-Z a-z 0-9 . _ -``, not beginning with a dot.

    Also raised for a name that a queue without a name has for one of its parts in the same directory, such as ``log``.
    """


class ItemTooLargeError(PersistentQueueError, ValueError):
    """An item is longer than 4 GiB - 1 bytes. Nothing of the call that raised this was buffered."""


class CodecError(PersistentQueueError, ValueError):
    """The codec of the queue could not encode an item, or decode the bytes of one. The queue and its other items are as
    usable as before.

    ``item`` is the object that was to be encoded, or the bytes that were to be decoded. ``path`` is the directory of
    the queue, and ``sequence`` the number of a stored item; each is None if it is not known. ``__cause__`` is the error
    of the codec. An item that could not be encoded is not enqueued.

    An item that could not be decoded is on hold in the session that dequeued it, like any other. To go on behind it:

    - ``session.reject(error, retry=False)`` and ``flush`` move it to the dead letters (see ``Session.reject``);
    - ``flush`` alone consumes it, with all else that the session holds: that skips it;
    - ``rollback`` gives it back: another opening, with ``codecs.BYTES`` for instance, has it as it is.
    """

    def __init__(
        self,
        action: str,
        codec: object,
        item: object,
        reason: Exception,
        path: str | None = None,
        sequence: int | None = None,
    ) -> None:
        self.item, self.path, self.sequence = item, path, sequence
        what = f"{len(item)} bytes" if isinstance(item, bytes) else f"a {type(item).__name__}"
        name = type(codec).__name__.lstrip("_")
        where = f"{path}: " if path is not None else ""
        which = f"item {sequence}: " if sequence is not None else ""
        super().__init__(f"{where}{which}{name} cannot {action} {what}: {type(reason).__name__}: {reason}")


class MissingExtraError(PersistentQueueError, ImportError):
    """An optional package is not installed. ``extra`` brings it, by ``pip install 'persistentqueue[extra]'``."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{what} needs a package that is not installed: pip install 'persistentqueue[{extra}]'")


class SessionInUseError(PersistentQueueError):
    """A session, or a producer, was called while another call of it had not ended: by another thread, or by code that
    the other call runs, such as a signal handler or a finalizer.

    The call has done nothing, and the other one goes on. Both are for one thread at a time: give each its own.
    """


class ReentrantUseError(PersistentQueueError):
    """A queue was called by code that runs in the middle of another call of the queue, in the same thread: a signal
    handler, a finalizer, a handler of ``logging``, or the callable that gives a key.

    The call has done nothing, and the other one goes on. Note what is to be done, and do it when that one has ended.
    """


class InvalidTransactionError(PersistentQueueError):
    """A transaction contradicts the state of the queue: it consumes what is consumed, for instance.

    Nothing of it was written, and other transactions are not affected. ``expected`` and ``found`` say what is wrong.
    Roll the session back: what it held is not given back, since that cannot be believed, and is ready when the queue is
    opened again.
    """

    def __init__(self, path: str, expected: str, found: str) -> None:
        self.path, self.expected, self.found = path, expected, found
        super().__init__(
            f"{path}: the transaction contradicts the queue: expected {expected}, found {found}; nothing of it was "
            "committed: roll the session back"
        )


class ClosedError(PersistentQueueError):
    """The queue or the session was closed by its user, or belongs to the parent of a forked process."""


class ResourceError(PersistentQueueError):
    """The operating system lacks something that the call needs. Nothing was committed, and the queue is not broken.

    The session keeps its operations and can flush again. ``path`` is the file or directory of the call that failed,
    ``errno`` the operating system's error number.
    """

    lacks = "nothing left"
    """What there is not, for the message."""
    remedy = "free some of it"
    """What the caller can do, for the message."""
    errnos: frozenset[int] = frozenset()
    """The error numbers that the operating system tells it with."""

    def __init__(self, path: str, errno: int, reason: str, advice: str = "then flush again") -> None:
        self.path, self.errno = path, errno
        super().__init__(f"{path}: {reason}; nothing was committed: {self.remedy}, {advice}")


class DiskFullError(ResourceError):
    """There was no room for the data. Nothing was committed, the session keeps its operations and can flush again.

    ``errno`` is the operating system's: ``ENOSPC``, ``EDQUOT`` or ``EFBIG``. Dequeueing still works.
    """

    lacks = "no room"
    remedy = "free some space"
    errnos = frozenset({_errno.ENOSPC, _errno.EDQUOT, _errno.EFBIG})


class TooManyFilesError(ResourceError):
    """The process, or the machine, has too many files open. Nothing was committed, and the queue is not broken.

    The session keeps its operations and can flush again. ``errno`` is the operating system's: ``EMFILE`` for the
    process, ``ENFILE`` for the machine. Raised by dequeueing, the items stay ready, in their order.
    """

    lacks = "too many files are open"
    remedy = "close files, or raise the limit (ulimit -n)"
    errnos = frozenset({_errno.EMFILE, _errno.ENFILE})


class OutOfMemoryError(ResourceError, MemoryError):
    """The operating system has no memory for a call that wrote nothing. Nothing was committed; flush again.

    The session keeps its operations. ``errno`` is ``ENOMEM``. A ``MemoryError`` of Python's own is another one.
    """

    lacks = "no memory"
    remedy = "free some memory"
    errnos = frozenset({_errno.ENOMEM})


def lacking(error: OSError, path: str, purpose: str, advice: str = "then flush again") -> ResourceError | None:
    """Return the error that says what the operating system lacks; None if ``error`` says something else.

    Args:
        error: What a call raised before anything was committed.
        path: The file or directory that the call was for.
        purpose: What the call was for, such as "to open the queue".
        advice: What to do once the resource is there.
    """
    for kind in (DiskFullError, TooManyFilesError, OutOfMemoryError):
        if error.errno in kind.errnos:
            return kind(path, error.errno, f"{kind.lacks} {purpose}", advice)
    return None


@contextmanager
def unless_lacking(path: str, purpose: str, advice: str = "then flush again") -> Iterator[None]:
    """Raise ``ResourceError``, as ``lacking`` makes it, for an ``OSError`` of the block that tells of one."""
    try:
        yield
    except OSError as error:
        lack = lacking(error, path, purpose, advice)
        if lack is None:
            raise
        raise lack from error


class QueueFullError(PersistentQueueError):
    """A limit leaves no room for what a transaction enqueues. Nothing of it was committed, the session keeps its
    operations and can flush again. Dequeueing still works.

    ``limit`` is the setting (``max_items``, ``max_bytes``, ``max_disk_bytes`` or ``min_free_bytes``), ``most`` its
    value, ``holds`` what the queue holds of that (what the file system has free, for ``min_free_bytes``), and ``asked``
    what the transaction would add, in items or bytes. ``lasting``: no dequeue helps, so nobody waits for one.
    """

    def __init__(self, path: str, limit: str, most: int, holds: int, asked: int, lasting: bool) -> None:
        self.path, self.limit, self.most = path, limit, most
        self.holds, self.asked, self.lasting = holds, asked, lasting
        if limit == "min_free_bytes":
            found, advice = f"the file system has {holds} free", "free space there"
        elif lasting:
            found, advice = f"the queue holds {holds}", "it never fits: flush less at once or raise the limit"
        else:
            found, advice = f"the queue holds {holds}", "dequeue"
        super().__init__(
            f"{path}: {limit}={most} leaves no room for {asked} more, {found}; nothing was committed: {advice}, then "
            "flush again"
        )


class DataPathError(PersistentQueueError):
    """The ``data_path`` cannot be this queue's: its segments are elsewhere, or what is there is not its own.

    Nothing was changed, and no segment made. ``path`` is the queue's directory; ``expected`` and ``found`` are texts.
    """

    def __init__(self, path: str, expected: str, found: str, advice: str) -> None:
        self.path, self.expected, self.found = path, expected, found
        super().__init__(f"{path}: expected {expected}, found {found}: {advice}")


class DataMissingError(PersistentQueueError):
    """The recorded place of the segments is not there, or is another's: a disk that is not mounted, most likely.

    Nothing was made, swept or set aside. ``path`` is the queue's directory, ``place`` where its segments should be,
    ``expected`` the id of that place, and ``found`` the one that it bears, None if it bears none.
    """

    def __init__(self, path: str, place: str, expected: str, found: tuple[str, str] | None) -> None:
        self.path, self.place, self.expected = path, place, expected
        self.found = found[0] if found is not None else None
        what = f"that of {found[1]}, {found[0]}" if found is not None else "none"
        super().__init__(
            f"{path}: its segments are at {place}: expected a queue.id there with {expected}, found {what}: mount what "
            "belongs there, or open the queue with data_path= where that is mounted now"
        )


class InDoubtError(PersistentQueueError):
    """A transaction over several queues ended in a crash, and the queue that knows what became of it does not tell.

    Nothing was changed: what may have been committed is neither dropped nor served. ``path`` is the directory of the
    queue that is in doubt, ``coordinator`` that of the one which knows, ``transaction`` the name of the transaction.
    ``lost``: the one which knows is not there, and ``repair`` may decide without it.
    """

    def __init__(self, path: str, transaction: bytes, coordinator: str, reason: str, lost: bool = False) -> None:
        self.path, self.transaction, self.coordinator, self.lost = path, transaction, coordinator, lost
        super().__init__(
            f"{path}: whether the transaction {transaction.hex()} over several queues is committed stands in the log "
            f"of {coordinator}: {reason}"
        )


class BrokenQueueError(PersistentQueueError):
    """A sync or a write of the transaction log failed: whether the last flush is durable is unknown.

    A failed sync is never retried, since the kernel may have dropped the data that it was to write. Every call
    raises this until the queue is closed and opened again; recovery then tells what was committed.
    """


class QueueDeletedError(BrokenQueueError):
    """The directory of an open queue was deleted: its items are gone, also those that the last flushes enqueued.

    The owner notices it at the next call that looks into the directory; a flush looks once in a millisecond. From then
    on every call raises this, until the queue is closed. A new queue under the old name is another one, and untouched.
    A directory that was only renamed raises nothing: the queue goes on where it is.
    """

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.directory = directory

    def __str__(self) -> str:
        return (
            f"{self.directory}: the queue's directory was deleted while the queue was open, and its items with it: "
            "close the queue, and open it again to make a new one"
        )


class WrongKeyError(PersistentQueueError):
    """The key with this ``key_id`` was not given, or is not the one that a block was encrypted with.

    That is no damage: its items are neither lost nor set aside. They stay ready, and come in their place once the queue
    is opened with the key. (The same goes for a ``MissingExtraError`` that dequeueing raises.) ``file`` and ``offset``
    say which block; None where the key is that to write with.
    """

    def __init__(self, key_id: str, problem: str, file: str | None = None, offset: int | None = None) -> None:
        self.key_id, self.file, self.offset = key_id, file, offset
        where = f"{file}: the block at offset {offset} is encrypted with the key" if file is not None else "the key"
        super().__init__(
            f"{where} {key_id!r}: {problem}; nothing is lost or set aside: open the queue with an "
            "encryption=Encryption(key_id, key) whose key(key_id) gives this key"
        )


class CorruptionError(PersistentQueueError):
    """Bytes on disk are not the ones that were written.

    ``file`` and ``offset`` (bytes from its start) say where, ``expected`` and ``found`` say what. Raised by opening,
    nothing was changed. Raised by dequeueing, the items of that one block are set aside, once, and what lies behind
    them comes out of the following calls.
    """

    def __init__(self, file: str, offset: int, expected: str, found: str, consequence: str = "") -> None:
        self.file, self.offset, self.expected, self.found = file, offset, expected, found
        message = f"{file}: damaged at offset {offset}: expected {expected}, found {found}"
        super().__init__(f"{message}; {consequence}" if consequence else message)


class InboxAccessError(PersistentQueueError, PermissionError):
    """This process may not publish here, or its owner could not read what it publishes. Nothing was published.

    ``path`` is the directory. The queue is another user's: that user shares it with a group, as ``sharing`` tells.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(
            f"{path}: {reason}: publish as the user of the queue, or have that user share it with a group: chgrp GROUP "
            "the queue's directory, log and inbox, chmod 750 the first two, chmod 2770 the inbox"
        )


class MemoryShortageError(PersistentQueueError, MemoryError):
    """A block, or a published file, takes more memory than this process may have. Nothing is lost.

    Raised by dequeueing, the items of that one block are set aside, once, and what lies behind them comes out of the
    following calls; the next opening of the queue has them again. ``file`` and ``offset`` (bytes from its start) say
    where, and ``needed_bytes`` what it takes at least.
    """

    def __init__(self, file: str, offset: int, needed_bytes: int) -> None:
        self.file, self.offset, self.needed_bytes = file, offset, needed_bytes
        super().__init__(
            f"{file}: what stands at offset {offset} takes {needed_bytes} bytes of memory at least, and this process "
            "has less left; nothing is lost: open the queue in a process that has more"
        )


class UnsupportedFormatError(PersistentQueueError):
    """The file was written in a newer format than this version reads. ``found`` and ``supported`` are the versions."""

    def __init__(self, file: str, found: int, supported: int) -> None:
        self.file, self.found, self.supported = file, found, supported
        super().__init__(
            f"{file}: written in format version {found}, this release reads up to version {supported}: "
            "upgrade persistentqueue"
        )


class UnflushedWarning(ResourceWarning):
    """A ``with`` block of a session or a producer ended well, with work that was neither flushed nor rolled back.

    The work is lost: the session is rolled back and closed, also if a filter turns the warning into an error. Python
    hides it by default, as each ``ResourceWarning``. ``python -W error::ResourceWarning`` shows it as an error, and so
    does ``warnings.simplefilter("error", UnflushedWarning)``. A ``rollback`` before the end of the block, or a
    ``close``, says that the work is to be dropped. There is no warning if an exception leaves the block.
    """


@contextmanager
def naming_paths(path: str = "the queue's directory") -> Iterator[None]:
    """Raise ``UnusablePathError`` for an ``OSError`` whose meaning is known; ``path`` is for one that names no file."""
    try:
        yield
    except PersistentQueueError:
        raise
    except OSError as error:
        if error.errno not in _ADVICE:
            raise
        kind = next((kind for kind in UnusablePathError.__subclasses__() if isinstance(error, kind.__bases__[1])), None)
        raise (kind or UnusablePathError)(error.errno, error.strerror, error.filename or path) from error


def _rebuilt(kind: type[PersistentQueueError], *arguments: Any) -> PersistentQueueError:
    """Return an error of this kind with these ``args``, as the built-in class that it descends from makes one."""
    # What makes an object of two built-in kinds is that of its first layout, and Python refuses the other one.
    error: PersistentQueueError = (kind.__base__ or kind).__new__(kind, *arguments)
    built_in: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    built_in.__init__(error, *arguments)  # an ``OSError`` or ``ImportError`` keeps more than ``args``
    return error


def _portable(value: object) -> object:
    """Return the value if it can be pickled, else its ``repr``."""
    if type(value) in _PLAIN:
        return value
    # Code of the caller runs in both: whatever it raises must not hide the error that is under way.
    try:
        pickle.dumps(value)
    except Exception:
        try:
            return repr(value)
        except Exception:
            return f"a {type(value).__name__}"
    return value

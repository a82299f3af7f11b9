"""Everything that can go wrong, one class for each thing a caller can do about it.

::

    PersistentQueueError
    ├── QueueLockedError         another owner has the queue: wait, or stop that owner
    ├── UntrustedError           another user may have prepared what is there: look at it, mend it, or say trust=True
    ├── CopiedQueueError         a copy of an open queue: close one of them, or give the copy an identity of its own
    ├── QueueNotFoundError       no queue there and ``create=False``  (also a FileNotFoundError)
    ├── SubscriptionNotFoundError  the queue has no such subscription (also a LookupError)
    ├── DeadLetterError          the item is no dead letter's envelope (also a ValueError): leave it, or drop it
    ├── InvalidNameError         the name cannot be a queue's          (also a ValueError)
    ├── ItemTooLargeError        the item exceeds 4 GiB - 1            (also a ValueError)
    ├── CodecError               the codec refuses this item: see the error it came from (also a ValueError)
    ├── MissingExtraError        an optional package is not there: install it  (also an ImportError)
    ├── ClosedError              you closed it (or forked): open the queue, or a session, again
    ├── DiskFullError            nothing was committed: free space, then flush the same session again
    ├── QueueFullError           a limit was reached, nothing was committed: dequeue, then flush the same session again
    ├── DataPathError            the segments are, or would be, elsewhere than was asked: name that, or move them
    ├── DataMissingError         the segments' place is not there: mount it, or name where it is now
    ├── InDoubtError             another queue knows what became of a transaction over both: bring that one, then open
    ├── BrokenQueueError         a sync or a log write failed, the outcome is unknown: reopen, recovery decides
    ├── WrongKeyError            what is encrypted stays, ready and in order: open the queue with the key
    ├── CorruptionError          bytes on disk are not what was written: see file, offset, expected, found
    └── UnsupportedFormatError   written by a newer version: upgrade persistentqueue

    (``persistentqueue.spark`` adds ``NotAStageError`` and ``JavaNotFoundError``; in what Spark reports of a job there
    may be ``GoneError``: read again, ``DataLossError``: see what became of the subscription, ``ExpiredPartError``:
    write again, and ``TooManyPartsError``: in fewer parts.)

``TypeError`` and ``ValueError`` are raised for arguments that are wrong in themselves, before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence


class PersistentQueueError(Exception):
    """The base of every error that this package raises on its own account."""


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
    """The queue is a copy of one beside it that this process has open: both have one identity.

    What is said of one queue would be believed of the other. Nothing was lost. ``path`` and ``other`` are the two
    directories. ``repair(…, renew=True)`` gives the copy an identity of its own.
    """

    def __init__(self, path: str, other: str) -> None:
        self.path, self.other = path, other
        super().__init__(
            f"{path}: expected a queue with an identity of its own, found that of {other}, which is open: one is a "
            "copy of the other: close that one, or run repair --renew on the copy while it is closed"
        )


class QueueNotFoundError(PersistentQueueError, FileNotFoundError):
    """There is no queue at the path, and ``create=False`` forbids making one."""


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

    ``item`` is what was to be encoded, or the bytes that were to be decoded; ``__cause__`` is what the codec raised.
    What could not be encoded is not enqueued. What could not be decoded is on hold in the session that dequeued it:
    ``flush`` consumes it, ``rollback`` gives it back; opened with ``codecs.BYTES`` the queue has it as it is.
    """

    def __init__(self, action: str, codec: object, item: object, reason: Exception) -> None:
        self.item = item
        what = f"{len(item)} bytes" if isinstance(item, bytes) else f"a {type(item).__name__}"
        name = type(codec).__name__.lstrip("_")
        super().__init__(f"{name} cannot {action} {what}: {type(reason).__name__}: {reason}")


class MissingExtraError(PersistentQueueError, ImportError):
    """An optional package is not installed. ``extra`` brings it, by ``pip install 'persistentqueue[extra]'``."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{what} needs a package that is not installed: pip install 'persistentqueue[{extra}]'")


class ClosedError(PersistentQueueError):
    """The queue or the session was closed by its user, or belongs to the parent of a forked process."""


class DiskFullError(PersistentQueueError):
    """There was no room for the data. Nothing was committed, the session keeps its operations and can flush again.

    ``errno`` is the operating system's: ``ENOSPC``, ``EDQUOT`` or ``EFBIG``. Dequeueing still works.
    """

    def __init__(self, path: str, errno: int, reason: str, advice: str = "then flush again") -> None:
        self.path, self.errno = path, errno
        super().__init__(f"{path}: {reason}; nothing was committed: free some space, {advice}")


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


class UnsupportedFormatError(PersistentQueueError):
    """The file was written in a newer format than this version reads. ``found`` and ``supported`` are the versions."""

    def __init__(self, file: str, found: int, supported: int) -> None:
        self.file, self.found, self.supported = file, found, supported
        super().__init__(
            f"{file}: written in format version {found}, this release reads up to version {supported}: "
            "upgrade persistentqueue"
        )

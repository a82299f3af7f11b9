"""Errors of openings: the queue at a path cannot be used by this process, or there is none."""

from __future__ import annotations

from ..drawing.text import printable
from .base import PersistentQueueError


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


class InvalidNameError(PersistentQueueError, ValueError):
    """The queue cannot have this name.

    A name has 1 to 64 characters of ``A-Z a-z 0-9 . _ -`` and does not begin with a dot. A queue without a name keeps
    its parts, such as ``log``, in its directory. The error is also raised when a queue name equals the name of such a
    part. Another cause is a directory of named queues for which no name was passed. Choose another name, or path.
    """


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

"""Errors of data: it is not durable, damaged, deleted, or encrypted with another key."""

from __future__ import annotations

from .base import PersistentQueueError


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

"""The errors of an import: one class for each action that the caller can take."""

from __future__ import annotations

from persistentqueue import PersistentQueueError
from persistentqueue.drawing.text import many


class SourceError(PersistentQueueError):
    """The source is not what the caller named, or holds something that cannot be imported.

    Nothing was imported by this call, and the source is unchanged. Name another source, as the message says.

    Attributes:
        path: The path of the source.
        expected: The content that an import needs, as text.
        found: The content that was found, as text.
        problem: The text of the error without advice.
    """

    def __init__(self, path: str, expected: str, found: str, advice: str) -> None:
        self.path: str = path
        self.expected: str = expected
        self.found: str = found
        self.problem: str = f"{path}: expected {expected}, found {found}"
        super().__init__(f"{self.problem}: {advice}")


class SourceDamagedError(SourceError):
    """A part of the source cannot be read.

    Raised before any item is imported by this call. Mend the source, or pass ``skip_damaged=True``: the import then
    takes all other items, and ``Imported.damaged`` has these errors.

    Attributes:
        path: The path of the damaged file.
        offset: The position of the damage, in bytes from the start of the file; for a table, the number of rows before.
        expected: The content that should be there, as text.
        found: The content that is there, as text.
        problem: The text of the error without advice.
    """

    def __init__(self, path: str, offset: int, expected: str, found: str, unit: str = "offset") -> None:
        super().__init__(
            f"{path}: damaged at {unit} {offset}",
            expected,
            found,
            "mend the source, or pass skip_damaged=True to import all other items",
        )
        self.path: str = path
        self.offset: int = offset


class SourceInUseError(SourceError):
    """Another program has the source open, or has changed it during the import.

    Stop its owner, then import again. The queue keeps the batches that this call has already committed.
    """


class SourceChangedError(SourceError):
    """The queue has had other items from this path, or these items from another path.

    The import cannot tell which items of the source are in the queue already. Nothing was imported by this call. Pass
    ``again=True`` to import all items of the source.
    """


class ImportMismatchError(PersistentQueueError):
    """The items that the queue has stored are not those that were read from the source.

    The source is unchanged. Check the queue and the disk, then import into another queue.

    Attributes:
        path: The directory of the queue.
        expected: The number of items that this call has imported.
        found: The number of these items that the queue has, in their order, before the first difference.
    """

    def __init__(self, path: str, expected: int, found: int) -> None:
        self.path: str = path
        self.expected: int = expected
        self.found: int = found
        super().__init__(
            f"{path}: expected the imported {many(expected, 'item')}, found the first {found} of them: check the "
            "disk and the queue, and import into another queue"
        )

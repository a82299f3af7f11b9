"""The errors of typed rows: schemas that do not fit, and schemas that are missing."""

from __future__ import annotations

from ..errors import PersistentQueueError


class SchemaMismatchError(PersistentQueueError, ValueError):
    """Rows do not fit the schema of the queue, and the schema cannot change in this way.

    Nothing was written. A later schema may only add columns that can be null. Change the rows as the message says, or
    write them to another queue. A write that failed keeps the schema that it has registered: the message tells whether
    the queue had an item since. If it had none, ``delete_queue`` makes room for another schema.

    Attributes:
        path: The directory of the queue.
        column: The name of the column; None if the format of the rows is another one.
        old: The type that the queue has, as text, or its format.
        new: The type or the format of the rows, as text.
    """

    def __init__(self, path: str, column: str | None, old: str, new: str, advice: str) -> None:
        self.path: str = path
        self.column: str | None = column
        self.old: str = old
        self.new: str = new
        what = "the format" if column is None else f"the column {column!r}"
        super().__init__(f"{path}: {what} of the rows does not fit: the queue has {old}, the rows have {new}: {advice}")


class SchemaNotFoundError(PersistentQueueError, LookupError):
    """The queue has no such schema.

    Raised for a queue without any schema: write rows to it first, or register a schema. Raised for an item whose
    number no schema has: the item is of another queue, or the directory ``schemas`` is from an older copy.

    Attributes:
        path: The directory of the queue.
        number: The number of the schema; None if the queue has no schema at all.
    """

    def __init__(self, path: str, number: int | None = None, last: int = 0) -> None:
        self.path: str = path
        self.number: int | None = number
        if number is None:
            reason = "the queue has no schema of rows: write rows first, or give the schema of the rows"
        else:
            reason = (
                f"an item has the schema {number}, and the queue has the schemas 1 to {last}: restore the directory "
                "schemas, or consume the item as bytes"
            )
        super().__init__(f"{path}: {reason}")

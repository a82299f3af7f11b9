"""Importers: copy the items of persist-queue, of queuelib or of a SQLite table into a queue, each of them once.

The items are the bytes that the source stored. Nothing is unpickled, and nothing in the source changes::

    from persistentqueue.importers import import_queue

    done = import_queue("work", "queues", "work", origin="persist-queue")
    print(done.added, "items of a", done.kind)

An import that was killed goes on where it stopped when it is called again.
"""

from .errors import ImportMismatchError, SourceChangedError, SourceDamagedError, SourceError, SourceInUseError
from .transfer import Imported, import_queue

__all__ = [
    "import_queue",
    "Imported",
    "SourceError",
    "SourceDamagedError",
    "SourceInUseError",
    "SourceChangedError",
    "ImportMismatchError",
]

"""An embedded, ACID, persistent queue: a directory on disk, without a server.

Sessions buffer enqueues and dequeues; ``flush()`` makes them one atomic, durable transaction::

    from persistentqueue import PersistentQueue

    with PersistentQueue("queues", "orders") as queue:
        with queue.session() as session:
            session.enqueue(b"one")
            session.flush()

The promises:

- *Atomic*: a flush is visible and durable as a whole, or not at all.
- *Consistent*: after any crash the queue is the effect of the acknowledged flushes.
- *Isolated*: a dequeued item is held for one session. Without a flush it is ready again, in its old place.
- *Durable*: when ``flush()`` returns, the data survives a power cut.
- *Never a wrong byte*: every byte that is served was checked.
- *Bounded*: memory by a setting, disk by the live data, the log by the size of the state.

One process owns a queue at a time, with any number of threads. Items are bytes, up to 4 GiB - 1 each.
"""

from .system.startup import leave_on_interrupt as _leave_on_interrupt

_leave_on_interrupt()  # before the imports, which take a while

# ruff: noqa: E402
import typing as _typing

from .core.dead_letter import DeadLetter
from .core.encryption import Encryption
from .drawing.charts import SegmentShare
from .engine.segment_use import Holder, SegmentUse
from .engine.store import RecoveryReport
from .errors import (
    BrokenQueueError,
    ClosedError,
    CodecError,
    CopiedQueueError,
    CorruptionError,
    DataMissingError,
    DataPathError,
    DeadLetterError,
    DiskFullError,
    ForeignQueueError,
    HoldLostError,
    InboxAccessError,
    InDoubtError,
    InvalidNameError,
    InvalidTransactionError,
    ItemTooLargeError,
    MemoryShortageError,
    MissingExtraError,
    NetworkDiskError,
    NotHeldError,
    NoThreadError,
    NotServedError,
    OtherOptionsWarning,
    OutcomeUnknownError,
    OutOfMemoryError,
    PathDeniedError,
    PathIsADirectoryError,
    PathMissingError,
    PathNotADirectoryError,
    PersistentQueueError,
    PrecedingFlushError,
    QueueDeletedError,
    QueueFullError,
    QueueLockedError,
    QueueNotFoundError,
    ReentrantUseError,
    RefusedError,
    ResourceError,
    SessionInUseError,
    SessionLostError,
    SubscriptionNotFoundError,
    TooManyFilesError,
    UnflushedWarning,
    UnsupportedFormatError,
    UntrustedError,
    UnusablePathError,
    WrongKeyError,
)
from .interprocess.producer import Producer
from .interprocess.snapshot_view import SegmentSnapshot, Snapshot, View, ViewedItem
from .measuring.metrics import Histogram, Sample
from .options import OptionArguments, Options
from .queue import PersistentQueue
from .recovery.catalog import delete_queue, list_queues
from .recovery.check import CheckReport, RepairReport, check, repair
from .runtime.inspection import Stats
from .runtime.maintenance import Compacted, Maintained
from .runtime.memory_budget import MemoryBudget
from .runtime.pipeline import Ticket
from .session import Session
from .storage.lock import Owner
from .storage.relocation import Moved, move_data
from .subscription import Subscription
from .system.progress import Progress
from .transactions import transaction

__all__ = [
    "PersistentQueue",
    "Session",
    "Ticket",
    "Subscription",
    "transaction",
    "connect",
    "Producer",
    "View",
    "ViewedItem",
    "Snapshot",
    "SegmentSnapshot",
    "Owner",
    "Options",
    "OptionArguments",
    "MemoryBudget",
    "Progress",
    "MemoryShortageError",
    "DeadLetter",
    "Encryption",
    "Stats",
    "Histogram",
    "Sample",
    "SegmentShare",
    "RecoveryReport",
    "Compacted",
    "Maintained",
    "SegmentUse",
    "Holder",
    "Connection",
    "Moved",
    "CheckReport",
    "RepairReport",
    "check",
    "repair",
    "list_queues",
    "delete_queue",
    "move_data",
    "PersistentQueueError",
    "QueueLockedError",
    "UntrustedError",
    "CopiedQueueError",
    "ForeignQueueError",
    "QueueNotFoundError",
    "UnusablePathError",
    "PathDeniedError",
    "PathMissingError",
    "PathNotADirectoryError",
    "PathIsADirectoryError",
    "SubscriptionNotFoundError",
    "InvalidNameError",
    "ItemTooLargeError",
    "NotHeldError",
    "CodecError",
    "MissingExtraError",
    "NetworkDiskError",
    "ClosedError",
    "SessionInUseError",
    "ReentrantUseError",
    "InvalidTransactionError",
    "ResourceError",
    "DiskFullError",
    "TooManyFilesError",
    "OutOfMemoryError",
    "NoThreadError",
    "QueueDeletedError",
    "PrecedingFlushError",
    "QueueFullError",
    "DataPathError",
    "DeadLetterError",
    "DataMissingError",
    "InDoubtError",
    "InboxAccessError",
    "BrokenQueueError",
    "WrongKeyError",
    "CorruptionError",
    "UnsupportedFormatError",
    "SessionLostError",
    "OtherOptionsWarning",
    "OutcomeUnknownError",
    "HoldLostError",
    "NotServedError",
    "RefusedError",
    "UnflushedWarning",
]
if _typing.TYPE_CHECKING:
    from .serving.connections import Connection
    from .workers import connect
else:  # a type checker that sees ``__getattr__`` takes each misspelled name for one of the package

    def __getattr__(name):
        """Import ``connect`` and ``Connection`` when they are asked for: other programs need no sockets."""
        if name == "connect":
            from .workers import connect  # noqa: PLC0415

            return connect
        if name == "Connection":
            from .serving.connections import Connection  # noqa: PLC0415

            return Connection
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        """Return the names of the module, with those that are not imported yet: for ``help`` and for completion."""
        return sorted({*globals(), *__all__})


__version__ = "0.2.0.dev0"

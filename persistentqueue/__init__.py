"""An embedded, ACID, persistent queue: a directory on disk, trusted like SQLite and faster than it.

Sessions buffer enqueues and dequeues; ``flush()`` makes them one atomic, durable transaction::

    from persistentqueue import PersistentQueue

    with PersistentQueue("queues", "orders") as queue:
        with queue.session() as session:
            session.enqueue(b"one")
            session.flush()

Promised: *atomic* (a flush is visible and durable as a whole, or not at all), *consistent* (after any crash the queue
is the effect of the acknowledged flushes), *isolated* (what is dequeued is on hold for one session; without a flush it
goes back to the front), *durable* (when ``flush()`` returns, the data survives a power cut), *never a wrong byte* (all
that is served was checked), *bounded* (memory by a setting, disk by the live data, the log by the size of the state).

One process owns a queue at a time, with any number of threads. Items are bytes, up to 4 GiB - 1 each.

The rooms, from the ground up: ``errors``, ``checksum``, ``insist``, ``stationary``, ``starting`` · ``disk``,
``intervals``, ``header``, ``bell``, ``fields``, ``codecs``, ``meters``, ``logger`` · ``pact``, ``delivery``, ``trust``,
``block`` and ``frame`` (the formats), ``pages``, ``direct``, ``quota``, ``roots``, ``cursor``, ``attempts``,
``shield``, ``calls`` · ``envelope`` · ``items``, ``deadletter``, ``state``, ``segment``, ``log``, ``pool``, ``spare``,
``lock``, ``place``, ``sharing`` · ``publication``, ``ready``, ``doubt`` · ``segments``, ``directory`` · ``reader``,
``recovery``, ``transaction``, ``move`` · ``counting`` · ``subscriptions`` · ``limits``, ``bounds``, ``explain``,
``splits`` · ``settings``, ``commit``, ``compact``, ``generations``, ``adopt`` (step by step), ``salvage``, ``mend`` ·
``inbox`` · ``store`` · ``opening``, ``catalog`` · ``fsck``, ``several`` · ``maintenance``, ``memory``, ``line``, ``waiters``, ``seats`` ·
``group`` (threads), ``producer`` · ``joint``, ``upkeep``, ``stats``, ``parts``, ``remote``, ``view`` · ``retries`` ·
``session`` · ``requeue``, ``subscription``, ``typed`` · ``queue`` · ``together`` · ``aio``, ``compat``, ``scrapy``,
``spark``, ``prometheus`` (metrics), ``cli`` and ``__main__`` (the command line).
"""

from .starting import leave_on_interrupt as _leave_on_interrupt

_leave_on_interrupt()  # before the imports, which take a while

# ruff: noqa: E402
from .catalog import delete_queue, list_queues
from .deadletter import DeadLetter
from .envelope import Encryption
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
    InboxAccessError,
    InDoubtError,
    InvalidNameError,
    InvalidTransactionError,
    ItemTooLargeError,
    MemoryShortageError,
    MissingExtraError,
    OutOfMemoryError,
    PathDeniedError,
    PathIsADirectoryError,
    PathMissingError,
    PathNotADirectoryError,
    PersistentQueueError,
    QueueDeletedError,
    QueueFullError,
    QueueLockedError,
    QueueNotFoundError,
    ReentrantUseError,
    ResourceError,
    SessionInUseError,
    SubscriptionNotFoundError,
    TooManyFilesError,
    UnflushedWarning,
    UnsupportedFormatError,
    UntrustedError,
    UnusablePathError,
    WrongKeyError,
)
from .explain import Holder, SegmentUse
from .fsck import CheckReport, RepairReport, check, repair
from .lock import Owner
from .memory import MemoryBudget
from .meters import Histogram
from .move import Moved, move_data
from .producer import Producer
from .queue import PersistentQueue
from .session import Session
from .stats import Stats
from .store import RecoveryReport
from .subscription import Subscription
from .together import transaction
from .upkeep import Compacted, Maintained
from .view import SegmentSnapshot, Snapshot, View, ViewedItem

__all__ = [
    "PersistentQueue",
    "Session",
    "Subscription",
    "transaction",
    "Producer",
    "View",
    "ViewedItem",
    "Snapshot",
    "SegmentSnapshot",
    "Owner",
    "MemoryBudget",
    "MemoryShortageError",
    "DeadLetter",
    "Encryption",
    "Stats",
    "Histogram",
    "RecoveryReport",
    "Compacted",
    "Maintained",
    "SegmentUse",
    "Holder",
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
    "QueueNotFoundError",
    "UnusablePathError",
    "PathDeniedError",
    "PathMissingError",
    "PathNotADirectoryError",
    "PathIsADirectoryError",
    "SubscriptionNotFoundError",
    "InvalidNameError",
    "ItemTooLargeError",
    "CodecError",
    "MissingExtraError",
    "ClosedError",
    "SessionInUseError",
    "ReentrantUseError",
    "InvalidTransactionError",
    "ResourceError",
    "DiskFullError",
    "TooManyFilesError",
    "OutOfMemoryError",
    "QueueDeletedError",
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
    "UnflushedWarning",
]
__version__ = "0.1.0"

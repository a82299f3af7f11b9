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
    ├── NotHeldError             not dequeued, or rejected already    (also a ValueError): reject what the session holds
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
    ``JavaNotFoundError``, ``SparkConnectError``, ``SparkStoppedError`` (make a new session) and ``OldCheckpointError``
    (use the latest checkpoint); its pipelines ``PipelineDefinitionError``, ``StageFailedError`` and
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

from .base import PersistentQueueError
from .calls import (
    ClosedError,
    CodecError,
    DeadLetterError,
    InvalidTransactionError,
    ItemTooLargeError,
    MissingExtraError,
    NotHeldError,
    PrecedingFlushError,
    ReentrantUseError,
    SessionInUseError,
    SubscriptionNotFoundError,
    UnflushedWarning,
)
from .data import BrokenQueueError, CorruptionError, QueueDeletedError, WrongKeyError
from .openings import (
    CopiedQueueError,
    DataMissingError,
    DataPathError,
    ForeignQueueError,
    InboxAccessError,
    InDoubtError,
    InvalidNameError,
    NetworkDiskError,
    QueueLockedError,
    QueueNotFoundError,
    UnsupportedFormatError,
    UntrustedError,
)
from .paths import PathDeniedError, PathIsADirectoryError, PathMissingError, PathNotADirectoryError, UnusablePathError
from .resources import (
    DiskFullError,
    MemoryShortageError,
    NoThreadError,
    OutOfMemoryError,
    QueueFullError,
    ResourceError,
    TooManyFilesError,
)
from .workers import (
    HoldLostError,
    NotServedError,
    OtherOptionsWarning,
    OutcomeUnknownError,
    RefusedError,
    SessionLostError,
)

__all__ = [
    "PersistentQueueError",
    "UnusablePathError",
    "PathDeniedError",
    "PathMissingError",
    "PathNotADirectoryError",
    "PathIsADirectoryError",
    "QueueLockedError",
    "UntrustedError",
    "NetworkDiskError",
    "CopiedQueueError",
    "ForeignQueueError",
    "QueueNotFoundError",
    "InvalidNameError",
    "DataPathError",
    "DataMissingError",
    "InDoubtError",
    "InboxAccessError",
    "UnsupportedFormatError",
    "SubscriptionNotFoundError",
    "DeadLetterError",
    "ItemTooLargeError",
    "NotHeldError",
    "CodecError",
    "MissingExtraError",
    "SessionInUseError",
    "ReentrantUseError",
    "InvalidTransactionError",
    "ClosedError",
    "PrecedingFlushError",
    "UnflushedWarning",
    "ResourceError",
    "DiskFullError",
    "TooManyFilesError",
    "OutOfMemoryError",
    "NoThreadError",
    "QueueFullError",
    "MemoryShortageError",
    "BrokenQueueError",
    "QueueDeletedError",
    "WrongKeyError",
    "CorruptionError",
    "SessionLostError",
    "OutcomeUnknownError",
    "HoldLostError",
    "NotServedError",
    "RefusedError",
    "OtherOptionsWarning",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # as users import them: in tracebacks, and in pickles of any version

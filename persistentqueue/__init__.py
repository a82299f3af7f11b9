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

The modules, from the ground up (made by ``python -m tests.project.modules``):

- ``drawing/`` Numbers as text, charts and tables, for terminals and HTML pages. Pure functions: no files, threads or
  clock. ``text``, ``charts``, ``style``, ``svg``, ``graph``.
- ``persistentqueue/`` Errors: public, and imported by all others. ``pickling``, ``errors``.
- ``measuring/`` Measurements of a queue at work: histograms, samples over time, causes of stalls. No files, threads or
  clock. ``stalls``, ``metrics``.
- ``core/`` Pure data and formats: bytes, sets of sequences, and the state that they add up to. No files, threads or
  clock. ``checksum``, ``intervals``, ``page_cache``, ``dead_letter``, ``header``, ``operations``, ``block``, ``frame``,
  ``delivery_counts``, ``encryption``, ``items``, ``state``, ``availability``.
- ``system/`` The operating system: access to the disk, sockets, forks, and the rights of other users. ``progress``,
  ``path_errors``, ``disk``, ``files``, ``event_log``, ``startup``, ``wakeup``, ``directory_handles``, ``quota``,
  ``bad_pages``, ``trust``, ``sockets``, ``byte_locks``.
- ``interrupts/`` Interruptions: signal handlers in the middle of a call, and calls of several threads at once.
  ``locks``, ``members``, ``signal_shield``, ``call_guard``.
- ``codecs/`` Codecs: the conversion between the objects of a typed queue and the bytes that the queue stores.
  ``enclosed_item``, ``held_items``.
- ``storage/`` One module for each kind of file: segments, the log, the pool of empty files, the lock, and published
  files. ``inbox_access``, ``locations``, ``schema_files``, ``lock``, ``log``, ``log_reader``, ``pool``, ``segment``,
  ``publication``, ``segment_files``, ``layout``, ``inbox_limits``, ``relocation``.
- ``engine/`` The engine of one queue, without threads of its own: commits, reading, trims, compaction, and adoption.
  ``transaction``, ``context``, ``reader``, ``subscriptions``, ``admission``, ``compaction``, ``segment_use``,
  ``commit``, ``trim``, ``inbox``, ``adoption``, ``store``, ``two_phase``.
- ``recovery/`` Opening and repair: from a directory to an open store, and the salvage of data from a damaged queue.
  ``mounts``, ``in_doubt``, ``location_repair``, ``catalog``, ``replay``, ``opening``, ``lost_adoptions``, ``salvage``,
  ``check``.
- ``runtime/`` Threads around one engine, or around several: group commit, waiting, maintenance, retries.
  ``background``, ``group_commit``, ``memory_budget``, ``waiting``, ``space``, ``inspection``, ``pipeline``,
  ``closing``, ``open_queue``, ``maintenance``, ``multi_queue``, ``retries``, ``session_state``.
- ``persistentqueue/`` Options and sessions: public. ``options``, ``misplaced_calls``, ``session``, ``subscription``,
  ``typed``.
- ``serving/`` The owner's side of worker processes: it serves its queue to them over a socket in the queue's directory.
  ``errors``, ``protocol``, ``handover``, ``client``, ``away``, ``waits``, ``portion``, ``service``, ``connections``,
  ``values``, ``departure``, ``server``, ``calls``.
- ``interprocess/`` Operations of other processes than the owner, without the lock of the queue: enqueue, consume and
  look. ``splits``, ``questions``, ``snapshot_view``, ``producer``, ``consumer_requests``, ``multi_writer``.
- ``rows/`` Typed rows: items that have columns, with the schemas that the queue keeps. ``errors``, ``schema``,
  ``values``, ``registry``, ``json_rows``, ``avro_rows``, ``arrow_rows``, ``codec``.
- ``persistentqueue/`` The queue of one owner: public. ``queue``.
- ``workers/`` The side of the worker processes: queues that another process owns, their sessions, and the take-over of
  an owner. ``link``, ``presence``, ``worker_state``, ``worker_session``, ``common_owner``, ``owner``, ``shared_queue``,
  ``connecting``.
- ``persistentqueue/`` What people import. ``transactions``.
- ``faces/`` The common part of ``compat`` and ``aio``: the rules of the standard library's queues, and refusals.
  ``lifecycle``, ``refusals``.
- ``importers/`` Importers: copy the items of persist-queue, of queuelib or of a SQLite table into a queue, each of them
  once. ``errors``, ``source``, ``chunks``, ``stacks``, ``tables``, ``recognition``, ``transfer``.
- ``persistentqueue/`` Other interfaces to a queue, each in one module. ``prometheus``, ``scrapy``.
- ``airflow/`` The provider for Airflow 3: a hook, a trigger, a sensor, an operator, and the scheme of message queues.
  ``waiting``, ``hook``, ``trigger``, ``sensor``, ``operator``, ``message_queue``.
- ``compat/`` Interfaces of other queues on a persistent queue: ``queue.Queue`` of the standard library, and the FIFO of
  queuelib. ``json_codec``, ``missing_attributes``, ``mutex``, ``standard_queue``, ``fifo``.
- ``aio/`` The queue for ``asyncio``: no call blocks the event loop for a disk operation. ``futures``,
  ``shared_session``, ``opening``, ``loop_bound``, ``flush_batcher``, ``item_waiter``, ``standard_queue_worker``,
  ``session``, ``calls``, ``shared_queue``, ``persistent_queue``, ``transactions``, ``standard_queue``.
- ``spark/`` Queues between Spark jobs, and between Spark and other programs: a hand-off of DataFrames, and a data
  source. ``sessions``, ``java``, ``options``, ``payload``, ``progress``, ``workers``, ``stages``, ``handoff``,
  ``partition_reader``, ``writer``, ``stream``, ``filters``, ``source``, ``pipelines/__init__``, ``pipelines/graph``,
  ``pipelines/letters``, ``pipelines/edge``, ``pipelines/store``, ``pipelines/stage``, ``pipelines/scheduler``,
  ``pipelines/picture``, ``pipelines/pipeline``.
- ``cli/`` The command line: ``persistentqueue``, or ``python -m persistentqueue``. ``bench``, ``formatting``,
  ``streams``, ``files``, ``parser``, ``display/__init__``, ``display/console``, ``output``, ``app``, ``summary``,
  ``display/report``, ``display/watch``, ``display/screen``, ``display/top``, ``maintenance_verbs``, ``write_verbs``,
  ``read_verbs``, ``workers/__init__``, ``workers/signals``, ``workers/function``, ``workers/loop``, ``workers/crew``,
  ``workers/verbs``, ``verbs``.
- ``persistentqueue/`` The command ``python -m persistentqueue``. ``__main__``.
"""

from .system.startup import leave_on_interrupt as _leave_on_interrupt

_leave_on_interrupt()  # before the imports, which take a while

# ruff: noqa: E402
import typing as _typing

from . import errors as _errors
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
    InboxAccessError,
    InDoubtError,
    InvalidNameError,
    InvalidTransactionError,
    ItemTooLargeError,
    MemoryShortageError,
    MissingExtraError,
    NetworkDiskError,
    NoThreadError,
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
from .serving.errors import (
    HoldLostError,
    NotServedError,
    OtherOptionsWarning,
    OutcomeUnknownError,
    RefusedError,
    SessionLostError,
)
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
for _kind in (HoldLostError, NotServedError, OtherOptionsWarning, OutcomeUnknownError, RefusedError, SessionLostError):
    setattr(_errors, _kind.__name__, _kind)  # its documentation lists them, and it cannot import them
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

"""How full a queue may be: which transactions of a group are admitted, and what the others hear.

Counted is what is not gone, that is, consumed by all subscriptions, on hold or not; ``max_items`` leaves out what could
not be read, since nobody could take it away. A transaction is measured before it is written: each of its blocks with
its header, its envelope, and a length for each item, which is what they take at most; what it dequeues counts by
average, as ``stats().live_bytes`` does, if it is then gone. One that adds no more than it takes away is always
admitted. ``max_disk_bytes`` and ``min_free_bytes`` are ``quota``'s to watch; here is what is said of them.
"""

from __future__ import annotations

from ..core.block import BLOCK_BYTES, BLOCK_HEADER_BYTES, BLOCK_ITEMS, LENGTH_BYTES, PIECE_BYTES, TAG_BYTES
from ..core.header import HEADER_BYTES
from ..core.state import State
from ..errors import QueueFullError, ResourceError
from ..system.disk import Disk
from ..system.quota import OverLimitError, Quota
from .subscriptions import Subscriptions
from .transaction import Settings, Transaction

LOGS_LEAST = 5
"""``max_disk_bytes`` is so many times ``log_bytes`` at least: the log, its spare, what is kept for both, and items."""
_RESERVED = 8
"""One part in so many of ``max_disk_bytes`` is kept for the log and its spare to grow."""


def measure_bytes(transaction: Transaction, envelope_bytes: int = 0) -> int:
    """What the blocks of the transaction take at most, each with an envelope of at most so many bytes."""
    count, payload_bytes = len(transaction.items), transaction.payload_bytes
    # Of two blocks in a row, one is full of items, or both together have more bytes than one may have.
    blocks = min(count, 1 + 2 * (count // BLOCK_ITEMS + payload_bytes // BLOCK_BYTES))
    pieces_bytes = sum(piece.length_bytes for piece in transaction.pieces)
    body_bytes = LENGTH_BYTES * count + payload_bytes
    if envelope_bytes:
        body_bytes += envelope_bytes * blocks + TAG_BYTES * (body_bytes // PIECE_BYTES)
    return pieces_bytes + BLOCK_HEADER_BYTES * blocks + body_bytes


class Limits:
    """The limits of one queue. What changes the state, or a file, is for the thread that writes."""

    def __init__(
        self, disk: Disk, directory: str, settings: Settings, subscriptions: Subscriptions, state: State, quota: Quota
    ) -> None:
        self._disk = disk
        self.directory = directory
        self._settings = settings
        self.state = state
        self._subscriptions = subscriptions
        self._quota = quota
        self.envelope_bytes = settings.envelopes.most_bytes if settings.envelopes is not None else 0
        self.max_items, self.max_bytes = settings.max_items, settings.max_bytes

    @property
    def items(self) -> int:
        """How many items the queue holds that somebody can take, or has taken and not flushed."""
        return self.state.next_sequence - self.state.gone_count - self._subscriptions.damaged_count

    def fits(self, count: int, length_bytes: int) -> bool:
        """Whether there is room for so many items more, in so many bytes of blocks."""
        return (self.max_items is None or self.items + count <= self.max_items) and (
            self.max_bytes is None or self.state.live_bytes + length_bytes <= self.max_bytes
        )

    @property
    def nearest(self) -> str:
        """The limit that is nearest, of those that there are."""
        return max(self._fills())[1]

    @property
    def fill(self) -> float:
        """How full the queue is by the limit that is nearest: 0.0 without limits, 1.0 at one."""
        return max(self._fills(), default=(0.0, ""))[0]

    def reserve_bytes(self, log_bytes: int) -> int:
        """What is kept of the disk for a log of this length, and its spare, to grow for those who dequeue."""
        return max(2 * log_bytes, (self._settings.max_disk_bytes or 0) // _RESERVED)

    def refuse(self, transaction: Transaction, limit: str, directory: str = "") -> QueueFullError:
        """What the transaction hears that this limit leaves no room for; ``directory`` of a file that had to grow."""
        most: int = getattr(self._settings, limit)
        asked = transaction.count if limit == "max_items" else measure_bytes(transaction, self.envelope_bytes)
        if limit == "max_items":
            holds, least = self.items, 0
        elif limit == "max_bytes":
            holds, least = self.state.live_bytes, 0
        elif limit == "max_disk_bytes":
            holds, least = self._disk_bytes, self._least_bytes
        else:  # who makes room there are others, whom nobody could wait for
            holds, least = self._disk.free_bytes(directory), most
        path = directory if limit == "min_free_bytes" else self.directory
        return QueueFullError(path, limit, most, holds, asked, asked + least > most)

    def refuse_for_ever(self, transaction: Transaction) -> QueueFullError | None:
        """What the transaction hears if it does not even fit into an empty queue."""
        for limit in ("max_items", "max_bytes", "max_disk_bytes"):
            if getattr(self._settings, limit) is not None and (error := self.refuse(transaction, limit)).lasting:
                return error
        return None

    def explain(self, transaction: Transaction, error: ResourceError) -> ResourceError | QueueFullError:
        """What the transaction hears where there was no room: the same, or which limit it was."""
        cause = error.__cause__
        return self.refuse(transaction, cause.limit, cause.directory) if isinstance(cause, OverLimitError) else error

    def _fills(self) -> list[tuple[float, str]]:
        held = (
            ("max_items", self.max_items, self.items),
            ("max_bytes", self.max_bytes, self.state.live_bytes),
            ("max_disk_bytes", self._settings.max_disk_bytes, self._disk_bytes),
        )
        return [(holds / most, limit) for limit, most, holds in held if most is not None]

    @property
    def _disk_bytes(self) -> int:
        """What the files take, and what is kept for the log to grow."""
        return self._quota.used_bytes + self._quota.reserve_bytes

    @property
    def _least_bytes(self) -> int:
        """What an empty queue takes of the disk, with a segment that has no block yet."""
        log_bytes = self._settings.log_bytes
        return 2 * log_bytes + self.reserve_bytes(log_bytes) + HEADER_BYTES


class Tally:
    """What a queue would hold after the transactions of a group that were admitted so far."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._items = limits.items
        self._bytes = limits.state.live_bytes

    def admit(self, transaction: Transaction) -> bool:
        """Whether there is room for the transaction, which is counted then; else its ``error`` is set."""
        limits, count = self._limits, transaction.count
        ready, runs = transaction.ready, transaction.runs
        freed = list(limits.state.would_free(ready.number, runs)) if runs and ready is not None else []
        more_items = count - sum(run[1] for run in freed)
        more_bytes = (measure_bytes(transaction, limits.envelope_bytes) if count else 0) - (
            limits.state.share_bytes(freed) if limits.max_bytes is not None else 0
        )
        for limit, most, holds, more in (
            ("max_items", limits.max_items, self._items, more_items),
            ("max_bytes", limits.max_bytes, self._bytes, more_bytes),
        ):
            if count and most is not None and more > 0 and holds + more > most:
                transaction.error = limits.refuse(transaction, limit)
                return False
        self._items += more_items
        self._bytes += more_bytes
        return True

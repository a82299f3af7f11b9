"""Admission: which transactions of a group fit into the limits, and the error for each one that does not.

An item counts for the limits until it is *gone*, that is, until all subscriptions have consumed it. Held items count,
too. ``max_items`` does not count items that could not be read, since no consumer could remove them.

A transaction is measured before it is written, by an upper bound: each block with its header and its envelope, and a
length for each item. The bytes that a transaction frees are estimated by average, as in ``stats().live_bytes``. It
frees an item if the item is gone once the transaction has consumed it. A transaction that adds no more than it frees
is always admitted.

The module ``quota`` enforces ``max_disk_bytes`` and ``min_free_bytes``. This module only makes the errors for them.
"""

from __future__ import annotations

from ..core.block import most_block_bytes
from ..core.header import HEADER_BYTES
from ..core.intervals import count_of
from ..errors import QueueFullError, ResourceError
from ..storage.inbox_limits import CHECKPOINTS_PER_LOG, ENQUEUES_PER_LOG, Unfreed, marker_bytes, reserve_bytes
from ..storage.layout import DAMAGED_SUFFIX
from ..system.quota import OverLimitError
from .context import Context
from .subscriptions import Subscriptions
from .transaction import Transaction

_LOGS_PER_LIMIT = 16
"""Divisor of ``max_disk_bytes``: a log that grows with the rate of commits, or a frame with blocks, stays below this
part."""
_INLINE = ENQUEUES_PER_LOG - 1 / CHECKPOINTS_PER_LOG
"""Part of a log that is free for a frame with blocks, behind the longest checkpoint that does not make the log grow."""


def measure_bytes(transaction: Transaction, envelope_bytes: int = 0) -> int:
    """Return an upper bound of the bytes of the transaction's blocks, each with an envelope of ``envelope_bytes``."""
    pieces_bytes = sum(piece.length_bytes for piece in transaction.pieces)
    return pieces_bytes + most_block_bytes(len(transaction.items), transaction.payload_bytes, envelope_bytes)


class Limits:
    """The limits of one queue, and how much of each it uses.

    It changes nothing itself. Only the writer, with the mutex, changes the state that it reads. A result that another
    thread computes without the mutex may be outdated.
    """

    def __init__(self, context: Context, subscriptions: Subscriptions) -> None:
        self._disk = context.disk
        self.directory = context.places.directory
        self._settings = settings = context.settings
        self.state = context.state
        self._subscriptions = subscriptions
        self._quota = context.quota
        self.envelope_bytes = settings.envelopes.most_bytes if settings.envelopes is not None else 0
        self.max_items, self.max_bytes = settings.max_items, settings.max_bytes
        self._markers = (0, 0)
        """Number of markers, and their bytes in a checkpoint: those are computed again when the number has changed."""

    @property
    def items(self) -> int:
        """Number of items that count for ``max_items``: neither gone nor unreadable. Held items count."""
        return self.state.next_sequence - self.state.gone_count - self._subscriptions.damaged_count

    def fits(self, count: int, length_bytes: int) -> bool:
        """Return whether ``count`` more items fit, in blocks of ``length_bytes``."""
        return (self.max_items is None or self.items + count <= self.max_items) and (
            self.max_bytes is None or self.state.live_bytes + length_bytes <= self.max_bytes
        )

    @property
    def nearest(self) -> str:
        """Name of the limit that the queue is closest to. At least one limit must be set."""
        return max(self._fills())[1]

    @property
    def fill(self) -> float:
        """Used part of the limit that the queue is closest to: 0.0 without limits, 1.0 at a limit."""
        return max(self._fills(), default=(0.0, ""))[0]

    def reserve_bytes(self, log_bytes: int) -> int:
        """Return the bytes of the quota that only dequeues may use, for a log of this length and its spare to grow."""
        return reserve_bytes(log_bytes, self._settings.max_disk_bytes)

    def bounded_bytes(self, log_bytes: int) -> int:
        """Return this length of a log or of a frame with blocks, or a part of ``max_disk_bytes`` if that is less.

        Neither the log nor the reserve for it to grow may take much of the limit.
        """
        most_bytes = self._settings.max_disk_bytes
        return log_bytes if most_bytes is None else min(log_bytes, most_bytes // _LOGS_PER_LIMIT)

    @property
    def inline_bytes(self) -> int:
        """Most bytes of a group's blocks in its frame.

        With ``max_disk_bytes``, a log of the first length has room for them: where segments have taken the room, no log
        can grow.
        """
        settings = self._settings
        if settings.max_disk_bytes is None:
            return settings.inline_bytes
        return min(self.bounded_bytes(settings.inline_bytes), int(_INLINE * settings.log_bytes))

    def refuse(
        self, transaction: Transaction, limit: str, directory: str = "", has_failed: bool = False
    ) -> QueueFullError:
        """Return the error for a transaction that ``limit`` leaves no room for.

        For ``min_free_bytes``, ``directory`` is the one of the file that could not grow. ``has_failed`` tells that the
        transaction was tried just now.
        """
        most: int = getattr(self._settings, limit)
        advice = ""
        asked = transaction.count if limit == "max_items" else measure_bytes(transaction, self.envelope_bytes)
        if limit == "max_items":
            holds, least = self.items, 0
        elif limit == "max_bytes":
            holds, least = self.state.live_bytes, 0
        elif limit == "max_disk_bytes":
            holds = self._disk_bytes
            least, advice = self._lasting_bytes(asked, most, has_failed)
        else:  # min_free_bytes: only other programs free that space, and no wake-up would tell of it; so it is lasting
            holds, least = self._disk.free_bytes(directory), most
        path = directory if limit == "min_free_bytes" else self.directory
        return QueueFullError(path, limit, most, holds, asked, asked + least > most, advice)

    def refuse_for_ever(self, transaction: Transaction) -> QueueFullError | None:
        """Return the error for a transaction that does not even fit into an empty queue; None if it does fit."""
        for limit in ("max_items", "max_bytes", "max_disk_bytes"):
            if getattr(self._settings, limit) is not None and (error := self.refuse(transaction, limit)).lasting:
                return error
        return None

    def explain(self, transaction: Transaction, error: ResourceError) -> ResourceError | QueueFullError:
        """Return the error for a transaction that found no room.

        It is ``QueueFullError`` if a limit of the queue caused ``error``, and ``error`` itself otherwise.
        """
        cause = error.__cause__
        if not isinstance(cause, OverLimitError):
            return error
        return self.refuse(transaction, cause.limit, cause.directory, has_failed=True)

    def _fills(self) -> list[tuple[float, str]]:
        held = (
            ("max_items", self.max_items, self.items),
            ("max_bytes", self.max_bytes, self.state.live_bytes),
            ("max_disk_bytes", self._settings.max_disk_bytes, self._disk_bytes),
        )
        return [(holds / most, limit) for limit, most, holds in held if most is not None]

    @property
    def _disk_bytes(self) -> int:
        """Bytes that the files take, and the reserve for the log to grow."""
        return self._quota.used_bytes + self._quota.reserve_bytes

    def _lasting_bytes(self, asked: int, most: int, has_failed: bool) -> tuple[int, str]:
        """Return what ``Unfreed.beside`` does for a segment without a block yet."""
        markers, is_empty = self.state.markers, self.state.next_sequence == self.state.gone_count
        if self._markers[0] != len(markers):  # no marker is ever removed
            self._markers = len(markers), marker_bytes(markers)
        unfreed = Unfreed(self._settings.log_bytes, *self._markers, self._quota.bytes_of(DAMAGED_SUFFIX))
        least, advice = unfreed.beside(asked + HEADER_BYTES, most, is_wanted=has_failed and is_empty)
        return least + HEADER_BYTES, advice


class Tally:
    """The items and bytes that a queue would hold after the transactions of a group that were admitted so far."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._items = limits.items
        self._bytes = limits.state.live_bytes

    def admit(self, transaction: Transaction) -> bool:
        """Count the transaction and return True if it fits; otherwise set its ``error`` and return False."""
        limits, count = self._limits, transaction.count
        ready, runs = transaction.ready, transaction.runs
        freed = list(limits.state.would_free(ready.number, runs)) if runs and ready is not None else []
        more_items = count - count_of(freed)
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

"""The transaction, which a session hands to the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core.availability import Availability
from ..core.block import MIXED
from ..core.intervals import Run
from ..core.operations import Adoption, Operation
from ..core.page_cache import ITEM_OVERHEAD_BYTES, cost
from ..storage.publication import Request
from ..storage.segment_files import Piece

SPILL_BYTES = 4 * 1024 * 1024
"""Bytes of items that a session keeps in memory before it spills them."""


class Rejection(NamedTuple):
    """The rejection of an item that a session holds."""

    sequence: int
    item: bytes
    reason: str
    retry: bool
    delay_seconds: float


class Transaction:
    """The changes that one flush commits, a published file, or other operations.

    A session's transaction has items to enqueue, in memory (``items``) or spilled (``pieces``). It also has ``runs`` to
    consume, which its subscription (``ready``) has handed out.
    """

    __slots__ = (
        "adoptions",
        "cost_bytes",
        "error",
        "given",
        "gives_up",
        "is_invalid",
        "items",
        "marker",
        "operations",
        "origin",
        "pieces",
        "published",
        "ready",
        "rejections",
        "request",
        "runs",
        "settled",
        "since_seconds",
        "skipped",
        "staged",
        "uniform_bytes",
        "uniform_items",
    )

    uniform_bytes: int  # without a value until it is needed: most transactions have one item

    def __init__(self, ready: Availability | None = None) -> None:
        self.ready = ready
        self.items: list[bytes] = []
        self.cost_bytes = 0
        """Bytes that ``items`` take in memory, each with ``ITEM_OVERHEAD_BYTES``. Change both together."""
        self.uniform_items = 0
        """So many ``items``, the first ones, have ``uniform_bytes`` each: they need not be measured again."""
        self.pieces: Sequence[Piece] = ()
        self.runs: list[Run] = []
        self.given = 0
        """Number of sequences in ``runs`` whose items the session has returned to its caller."""
        self.rejections: dict[int, Rejection] = {}
        """Rejections of held items by sequence, in the order in which they were made. The engine does not read them."""
        self.is_invalid = False
        """True if the transaction contradicts the state. Then ``runs`` is wrong, and nothing of it is released."""
        self.marker: tuple[str, int] | None = None
        self.origin: tuple[bytes, int] | None = None
        """Connection and number of a worker's flush, to record with it; None for other transactions."""
        self.operations: Sequence[Operation] = ()
        """Other operations: results of a compaction, changes of subscriptions, or records of deliveries."""
        self.published = ""
        """Name of the published file that the transaction comes from; empty if it comes from a session."""
        self.adoptions: Sequence[Adoption] = ()
        """Operations that make segments of the published files."""
        self.request: Request | None = None
        """Published request; None if the published file is no request."""
        self.staged: Sequence[Piece] = ()
        self.since_seconds = 0.0
        """Time, by the clock of the open queue, when the transaction began to hold items or to spill.

        0.0 if it does neither."""
        self.error: BaseException | None = None
        self.gives_up = False
        """True if the transaction must not wait for room any longer."""
        self.settled = False
        """True if the transaction was committed or skipped. If it is False and ``error`` is None, nothing was tried."""
        self.skipped = False
        """True if the marker was recorded before, so that nothing was committed."""

    @property
    def enqueues(self) -> bool:
        """Whether the transaction has items to enqueue, in memory or spilled."""
        return bool(self.items or self.pieces)

    @property
    def committed(self) -> bool:
        """Whether the whole transaction was committed: it is settled, and was not skipped."""
        return self.settled and not self.skipped

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.enqueues or self.runs or self.operations or self.marker is not None)

    @property
    def count(self) -> int:
        """Number of items that the transaction enqueues."""
        return len(self.items) + sum(piece.count for piece in self.pieces)

    @property
    def payload_bytes(self) -> int:
        """Payload bytes of ``items``, without spilled items."""
        return self.cost_bytes - ITEM_OVERHEAD_BYTES * len(self.items)

    @property
    def each_bytes(self) -> int:
        """Length of each of ``items``; ``MIXED`` if they are not known to have one length."""
        return self.uniform_bytes if 0 < self.uniform_items == len(self.items) else MIXED

    def add(self, items: Sequence[bytes]) -> None:
        """Add items to enqueue."""
        self.add_measured(items, cost(items), MIXED)

    def add_measured(self, items: Sequence[bytes], cost_bytes: int, each_bytes: int) -> None:
        """Add items to enqueue, of which the cost is known. Each has ``each_bytes``, or their lengths are ``MIXED``."""
        buffered, behind = self.items, slice(len(self.items), None)
        goes_on = not buffered or self.each_bytes == each_bytes
        uniform_items = len(buffered) + len(items) if goes_on and each_bytes != MIXED else 0
        # No call from here on: without a call, no signal handler can interrupt these statements.
        buffered[behind] = items  # unlike +=, this is as quick for a subclass of list
        self.cost_bytes += cost_bytes
        if uniform_items:
            self.uniform_bytes = each_bytes
        self.uniform_items = uniform_items

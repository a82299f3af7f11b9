"""What a session hands to the store, and what an owner may choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.availability import Availability
from ..core.encryption import Envelopes
from ..core.intervals import Run
from ..core.operations import Adoption, Operation
from ..core.page_cache import ITEM_OVERHEAD_BYTES, cost
from ..storage.publication import Request
from ..storage.segment_files import Piece

SPILL_BYTES = 4 * 1024 * 1024
"""What a session keeps in memory before it writes blocks ahead of its flush."""


@dataclass(frozen=True)
class Settings:
    """What an owner may choose; in bytes where the name says so."""

    sync: bool = True
    segment_bytes: int = 64 * 1024 * 1024
    memory_bytes: int = 64 * 1024 * 1024
    inline_bytes: int = 128 * 1024
    log_bytes: int = 1024 * 1024
    pool_min_bytes: int = 0
    pool_max_bytes: int = 0
    shared_pool: bool = False
    wipe: bool = False
    fan_out: bool = False
    compact_below: float = 0.3
    compact_bytes_per_second: int = 16 * 1024 * 1024
    max_items: int | None = None
    max_bytes: int | None = None
    max_disk_bytes: int | None = None
    min_free_bytes: int = 0
    full: str = "raise"
    """What a flush does that a limit leaves no room for: ``"raise"``, or ``"block"`` until there is."""
    trust: bool = False
    """Whether what another user has prepared is opened (see ``trust``)."""
    counts_attempts: bool = False
    """Whether deliveries are counted (see ``retries``)."""
    envelopes: Envelopes | None = None
    """How blocks are compressed and encrypted, and opened; None: not, and without any key."""


class Transaction:
    """What a session wants to commit: items to enqueue, written before (``pieces``) or in memory, and runs to
    consume, of what its subscription has ``ready``; or what another process has published; or other operations."""

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
        "pieces",
        "published",
        "ready",
        "request",
        "runs",
        "settled",
        "since_seconds",
        "skipped",
        "staged",
    )

    def __init__(self, ready: Availability | None = None) -> None:
        self.ready = ready
        self.items: list[bytes] = []
        self.cost_bytes = 0
        """Bytes that ``items`` take in memory, each with ``ITEM_OVERHEAD_BYTES``; to be changed with them."""
        self.pieces: Sequence[Piece] = ()
        self.runs: list[Run] = []
        self.given = 0
        """Number of sequences in ``runs`` that were given to the caller of its session."""
        self.is_invalid = False
        """True if it contradicts the state. Then ``runs`` is not to be believed, and nothing of it is given back."""
        self.marker: tuple[str, int] | None = None
        self.operations: Sequence[Operation] = ()
        """Its other operations: results of a compaction, changes of subscriptions, or records of deliveries."""
        self.published = ""
        """The name of the file that another process published it in."""
        self.adoptions: Sequence[Adoption] = ()
        """The operations that make a segment of that file."""
        self.request: Request | None = None
        """The published request, if nothing was published to enqueue."""
        self.staged: Sequence[Piece] = ()
        self.since_seconds = 0.0
        """When, by its group's clock, it began to hold items, or to write ahead; 0.0 if it does neither."""
        self.error: BaseException | None = None
        self.gives_up = False
        """True if it shall wait for room no longer."""
        self.settled = False
        """True if it was committed, or skipped. If it is not and has no ``error``, nothing was tried."""
        self.skipped = False
        """True if the marker said that this was committed before, so that nothing was done."""

    @property
    def enqueues(self) -> bool:
        """Whether it puts anything into the queue, in memory or written before."""
        return bool(self.items or self.pieces)

    @property
    def committed(self) -> bool:
        """Whether all of it was done: it was settled, and not skipped."""
        return self.settled and not self.skipped

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.enqueues or self.runs or self.operations or self.marker is not None)

    @property
    def count(self) -> int:
        """How many items it enqueues."""
        return len(self.items) + sum(piece.count for piece in self.pieces)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the items in memory alone."""
        return self.cost_bytes - ITEM_OVERHEAD_BYTES * len(self.items)

    def add(self, items: Sequence[bytes]) -> None:
        """Enqueue these items as well."""
        cost_bytes = cost(items)
        # From here on without a call: nothing interrupts that.
        self.items += items
        self.cost_bytes += cost_bytes

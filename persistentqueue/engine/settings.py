"""The settings of an owner: the options of an opening, as far as the engine needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core.encryption import Envelopes

Full = Literal["raise", "block"]


@dataclass(frozen=True)
class Settings:
    """The settings of an owner. A name that ends in ``_bytes`` is a number of bytes."""

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
    keep_limits: bool = False
    """Whether the three limits are the recorded ones (see ``inbox_limits``); an opening then records none."""
    min_free_bytes: int = 0
    full: Full = "raise"
    """Reaction of a flush that a limit leaves no room for: ``"raise"`` an error, or ``"block"`` until there is room."""
    trust: bool = False
    """Whether to open a queue that another user has prepared (see ``trust``)."""
    network_disk: bool = False
    """Whether to open a queue on a network file system (see ``mounts``)."""
    counts_attempts: bool = False
    """Whether to count delivery attempts (see ``retries``)."""
    envelopes: Envelopes | None = None
    """Compression and encryption of blocks; None: blocks are neither compressed nor encrypted, and there is no key."""

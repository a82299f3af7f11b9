"""The context: the values that all parts of one open store share, among them the settings and the guards of its owner.

The owner makes the ``Settings``, from the options of an opening as far as the engine needs them, and the ``Guards``.
The store makes the ``Context`` and hands it to each part. A part takes besides only the parts that it works with.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..core.encryption import Envelopes
from ..core.state import State
from ..interrupts.signal_shield import Shielded, call_once
from ..measuring.stalls import Note, unnoted
from ..storage.locations import Places
from ..system.disk import Disk
from ..system.quota import Quota

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


Guard = AbstractContextManager[object]


class Guards(NamedTuple):
    """The guards of an owner: they keep its threads apart, and its signal handlers out.

    The defaults are for an owner that has one thread and no signal handlers.
    """

    mutex: Guard = nullcontext()
    """Guard of all memory. It is never held over a write or a sync."""
    reading: Guard = nullcontext()
    """Guard that readers hold over a read of a file."""
    shielded: Shielded = call_once
    """Function that makes calls which no signal handler may interrupt."""
    note_stall: Note = unnoted
    """Function that takes the stalls of flushes (see ``stalls``)."""


UNGUARDED = Guards()
"""Guards for one thread without signal handlers."""


class Context(NamedTuple):
    """The values that all parts of one open store share. They stay the same while the store is open."""

    disk: Disk
    """Interface to the operating system. It counts what the files take, and enforces the quota."""
    places: Places
    settings: Settings
    state: State
    """State in memory: the result of the log. Only the writer changes it, with the mutex."""
    quota: Quota
    guards: Guards
    """The owner's guards. A shielded call that fails unexpectedly breaks the store, too."""

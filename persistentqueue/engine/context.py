"""The context: the values that all parts of one open store share.

The owner makes the ``Guards``, and the store makes the ``Context`` and hands it to each part. A part takes besides only
the parts that it works with.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from ..core.state import State
from ..measuring.stalls import Note, unnoted
from ..storage.locations import Places
from ..system.disk import Disk
from ..system.quota import Quota
from ..system.signal_shield import Shielded, call_once
from .settings import Settings

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

"""Stalls: the times that a flush spends with other things than the durable write of its own frame, each by its cause.

They are rare, so that measuring them costs an ordinary flush nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

CAUSES = ("trim", "spare", "segment", "sync", "writer", "room")
"""Causes of stalls:

- ``trim``: the next generation of the log, which a flush begins if the log is full or drained segments are worth it.
- ``spare``: a step that makes the spare longer.
- ``segment``: a new segment.
- ``sync``: the syncs of segments before the frame of a large group, or of a new segment.
- ``writer``: another writer, such as a compaction or an adoption.
- ``room``: room below a limit, with ``full="block"``.
"""
Note = Callable[[str, float], None]
"""Takes a cause and its seconds."""


def unnoted(_cause: str, _seconds: float) -> None:
    """Take a stall, and do nothing."""


@contextmanager
def stalled(monotonic: Callable[[], float], note: Note, cause: str) -> Iterator[None]:
    """Note how long the block takes, also if it raises."""
    began = monotonic()
    try:
        yield
    finally:
        note(cause, monotonic() - began)

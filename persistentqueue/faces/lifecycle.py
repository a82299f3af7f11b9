"""The life of a queue of the standard library: its items are put, got and done, until a shutdown. Pure data.

``compat.Queue`` and ``aio.Queue`` keep these rules, one for threads and one for tasks. Each of them stores the items,
lets its callers wait, and raises its own errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
    """Type of the items of a queue of the standard library: any, unless its codec says otherwise."""
else:
    from typing import TypeVar

    T = TypeVar("T")

H = TypeVar("H")


class Lifecycle:
    """The state of one queue beyond its stored items. Not synchronized."""

    __slots__ = ("is_drained", "is_shutdown", "undone")

    def __init__(self) -> None:
        self.undone = 0
        """Number of items that were got and are not done."""
        self.is_shutdown = False
        self.is_drained = False
        """True after an immediate shutdown, and when a queue that was shut down has ended: it then counts as empty."""

    def shut_down(self, immediate: bool) -> None:
        """Record a shutdown. A later one cannot take back that the queue is drained."""
        self.is_shutdown = True
        self.is_drained = self.is_drained or bool(immediate)  # any value, as in the standard library

    def size(self, stored: int) -> int:
        """Return the number of items in a queue that stores this many, without those that were got."""
        return 0 if self.is_drained else stored

    def unfinished(self, stored: int) -> int:
        """Return the number of items for which ``join`` waits: those in the queue, and those that are not done."""
        return self.size(stored) + self.undone


def oldest(got: Iterable[H]) -> H:
    """Return the first of what was got and is not done. Raises ``ValueError`` if there is none."""
    for each in got:
        return each
    raise ValueError("task_done() called too many times")

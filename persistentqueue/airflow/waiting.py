"""The items that wait for one consumer of a queue, found by looks from outside: no lock is taken, nothing is held.

A look that finds nothing new costs some system calls. It may be made by any process that may read the queue's files,
whether the queue is owned or not. It never adopts the transactions that producers have published: it counts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from persistentqueue import PersistentQueueError, QueueNotFoundError, View
from persistentqueue.interprocess import is_published, read_publication
from persistentqueue.storage.layout import names_in
from persistentqueue.storage.locations import CLOSED_DIRECTORY, INBOX_DIRECTORY
from persistentqueue.system.disk import DISK


def checked_least(min_items: object) -> int:
    """Return the least number of items. Raises ``TypeError`` if it is no integer, ``ValueError`` if it is below 1."""
    if not isinstance(min_items, int) or isinstance(min_items, bool):
        raise TypeError(f"min_items must be a whole number, not {min_items!r}")
    if min_items < 1:
        raise ValueError(f"min_items must be at least 1, got {min_items}")
    return min_items


class Waiting(NamedTuple):
    """The items and transactions that wait for a consumer at one moment."""

    items: int
    """Items that the consumer has not consumed, on hold or not."""
    published: int
    """Transactions with items that producers have published and no owner has adopted yet. Their items are not among
    ``items``."""
    enqueued: int
    """Items enqueued since the queue was made. This number only grows."""


class Watch:
    """Looks at a queue for one consumer, and reports what no earlier look has reported. For one thread at a time.

    Args:
        path: The directory of queues, or a queue's own directory.
        name: The name of the queue in ``path``; None for ``path`` itself.
        subscription: The subscription that consumes; empty for the plain queue.
        min_items: The least number of items to report. A published transaction counts as one item.
        repeat_seconds: The time after which items that still wait are reported once more; None for never.
    """

    def __init__(
        self, path: str, name: str | None, subscription: str, min_items: int, repeat_seconds: float | None = None
    ) -> None:
        self._place = (path, name)
        self._subscription = subscription
        self._min_items = min_items
        self._repeat_seconds = repeat_seconds
        self._view: View | None = None
        self._told: Waiting | None = None
        """The items of the last report; None before a report, and after the queue was replaced."""
        self._told_seconds = 0.0
        self._told_names: frozenset[str] = frozenset()
        """Names of the publications of the last report."""
        self._has_items: dict[str, bool] = {}
        """Whether each publication that waited at the last look has items. Requests and markers have none."""

    def look(self) -> Waiting | None:
        """Return what waits now, if it is enough; None if it is not, or if there is no queue or subscription yet.

        Raises what ``View.look`` raises, except for ``QueueNotFoundError``.
        """
        found = self._find()
        return found if found is not None and found.items + found.published >= self._min_items else None

    def news(self, now_seconds: float) -> Waiting | None:
        """Return what waits now, if it is enough and new, or was reported ``repeat_seconds`` ago; otherwise None.

        It is new if items were enqueued, or transactions were published, since the last report.

        Args:
            now_seconds: The current time on a clock that never goes back.
        """
        found, told = self.look(), self._told
        if found is None:
            return None
        names = frozenset(name for name, has_items in self._has_items.items() if has_items)
        if told is not None:
            is_new = found.enqueued > told.enqueued or not names <= self._told_names
            is_due = self._repeat_seconds is not None and now_seconds - self._told_seconds >= self._repeat_seconds
            if not (is_new or is_due):
                return None
        self._told, self._told_seconds, self._told_names = found, now_seconds, names
        return found

    def event(self, found: Waiting) -> dict[str, Any]:
        """Return the event that reports these items: it can be written as JSON, and is equal in all processes."""
        path, name = self._place
        return {"path": path, "name": name, "subscription": self._subscription, **found._asdict()}

    def _find(self) -> Waiting | None:
        try:
            if self._view is None:
                self._view = View(*self._place)
            seen = self._view.look()
        except QueueNotFoundError:
            # A View refuses a queue that was made anew: the next look takes another View, and reports afresh.
            self._view = self._told = None
            return None
        self._has_items = dict(self._publications(seen.data_path)) if seen.published else {}
        items = dict(seen.subscriptions).get(self._subscription) if self._subscription else seen.depth
        return Waiting(items, sum(self._has_items.values()), seen.enqueued) if items is not None else None

    def _publications(self, root: str) -> Iterator[tuple[str, bool]]:
        """Yield the name of each publication that waits, and whether it has items. Each file is read once.

        A file that cannot be read may have items.
        """
        for directory in (f"{root}/{INBOX_DIRECTORY}", f"{root}/{CLOSED_DIRECTORY}"):
            for name in filter(is_published, names_in(DISK, directory)):
                has_items = self._has_items.get(name)
                if has_items is None:
                    has_items = True
                    with suppress(PersistentQueueError, OSError):
                        try:
                            has_items = read_publication(DISK, f"{directory}/{name}").items > 0
                        except FileNotFoundError:  # an owner has just adopted it
                            continue
                yield name, has_items

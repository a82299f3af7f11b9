"""The trigger: an event when items wait in a queue. It looks, and consumes nothing.

An event says that items wait; the task that it starts consumes them. Each item is reported by one event at least,
unless it is consumed before. After a restart of the triggerer, waiting items are reported once more. So a task must
accept that nothing waits any more.

The files are read in a thread, so that the event loop of the triggerer never waits for a disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk import BaseHook
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from .hook import DEFAULT_CONNECTION, place_of
from .waiting import Watch, checked_least


class QueueTrigger(BaseEventTrigger):  # type: ignore[misc]
    """Yields an event when items wait, when more of them come, and when they still wait after some time.

    The payload of an event has the fields ``path``, ``name`` and ``subscription`` of the queue. It also has ``items``,
    the number of items that wait; ``published``, the number of files that wait for an owner; and ``enqueued``, the
    number of items since the queue was made. A queue or a subscription that does not exist yet is waited for.

    Args:
        name: The name of the queue. With None, the default, that of the connection.
        path: The directory of queues, or a queue's own directory. With None, the default, that of the connection.
        conn_id: The id of the connection, which is read if there is no ``path``. Default: ``persistentqueue_default``.
        subscription: The subscription that consumes. The default ``""`` is the plain queue.
        min_items: The least number of items to report, at least 1. Default: 1.
        poll_seconds: Seconds between two looks, above 0. Default: 1.
        repeat_seconds: Seconds after which items that still wait are reported once more, above 0; None for never.
            Default: 600. So items that a task has left, or given back when it failed, are not forgotten.

    Raises:
        TypeError: ``min_items`` is no integer.
        ValueError: A number is out of its range.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        path: str | None = None,
        conn_id: str = DEFAULT_CONNECTION,
        subscription: str = "",
        min_items: int = 1,
        poll_seconds: float = 1.0,
        repeat_seconds: float | None = 600.0,
    ) -> None:
        super().__init__()
        for field, seconds in (("poll_seconds", poll_seconds), ("repeat_seconds", repeat_seconds)):
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{field} must be above 0, got {seconds}")
        self._arguments: dict[str, Any] = {
            "name": name,
            "path": path,
            "conn_id": conn_id,
            "subscription": subscription,
            "min_items": checked_least(min_items),
            "poll_seconds": poll_seconds,
            "repeat_seconds": repeat_seconds,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the name of this class and the arguments, from which Airflow makes this trigger in the triggerer."""
        return f"{__name__}.QueueTrigger", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the events, without an end.

        Raises what ``View.look`` raises, except for ``QueueNotFoundError``; and for the connection what ``place_of``
        raises.
        """
        chosen, loop = self._arguments, asyncio.get_running_loop()
        path, name = chosen["path"], chosen["name"]
        if path is None:
            path, name, _ = place_of(await BaseHook.aget_connection(chosen["conn_id"]), name)
        watch = Watch(path, name, chosen["subscription"], chosen["min_items"], chosen["repeat_seconds"])
        while True:
            found = await asyncio.to_thread(watch.news, loop.time())
            if found is not None:
                yield TriggerEvent(watch.event(found))
            await asyncio.sleep(chosen["poll_seconds"])

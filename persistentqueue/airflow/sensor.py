"""The sensor: a task that waits until items wait in a queue. It looks, and consumes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk.bases.sensor import BaseSensorOperator, PokeReturnValue

from .hook import DEFAULT_CONNECTION, QueueHook
from .trigger import QueueTrigger
from .waiting import Watch, checked_least


class QueueSensor(BaseSensorOperator):  # type: ignore[misc]
    """Succeeds when enough items wait in a queue, and returns the payload of an event of ``QueueTrigger``.

    Another consumer may take the items before the next task does: that task must accept that nothing waits any more.

    Args:
        name: The name of the queue, a template. With None, the default, that of the connection.
        path: The directory of queues, or a queue's own directory, a template. With None, the default, that of the
            connection.
        conn_id: The id of the connection. Default: ``persistentqueue_default``.
        subscription: The subscription that consumes, a template. The default ``""`` is the plain queue.
        min_items: The least number of items, at least 1. A transaction that no owner has adopted yet counts as one.
            Default: 1.
        deferrable: True, the default, if the triggerer waits, so that no worker does. False for a wait in the worker,
            by ``mode``.
        poke_interval: The time between two looks, in seconds or as a ``timedelta``, above 0. Default: 5 seconds.
        **arguments: The arguments of all sensors, such as ``timeout``.

    Raises:
        TypeError: ``min_items`` is no integer.
        ValueError: ``min_items`` is below 1.
    """

    template_fields: Sequence[str] = ("name", "path", "subscription")

    def __init__(
        self,
        *,
        name: str | None = None,
        path: str | None = None,
        conn_id: str = DEFAULT_CONNECTION,
        subscription: str = "",
        min_items: int = 1,
        deferrable: bool = True,
        poke_interval: float | timedelta = 5.0,
        **arguments: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **arguments)
        self.name = name
        self.path = path
        self.conn_id = conn_id
        self.subscription = subscription
        self.min_items = checked_least(min_items)
        self.deferrable = deferrable

    def poke(self, context: Any) -> PokeReturnValue:  # noqa: ARG002 - Airflow's parameter
        """Look at the queue once."""
        place = QueueHook(self.conn_id, self.name, path=self.path).place
        watch = Watch(place.path, place.name, self.subscription, self.min_items)
        found = watch.look()
        return PokeReturnValue(found is not None, watch.event(found) if found is not None else None)

    def execute(self, context: Any) -> Any:
        """Wait, in the triggerer or here, and return the payload of the event."""
        if not self.deferrable:
            return super().execute(context)
        found = self.poke(context)
        if found:
            return found.xcom_value
        trigger = QueueTrigger(
            self.name,
            path=self.path,
            conn_id=self.conn_id,
            subscription=self.subscription,
            min_items=self.min_items,
            poll_seconds=self.poke_interval,
        )
        return self.defer(
            trigger=trigger, method_name=self.execute_complete.__name__, timeout=timedelta(seconds=self.timeout)
        )

    def execute_complete(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - Airflow's names
        """Return the payload of the event, which the trigger has sent."""
        return event

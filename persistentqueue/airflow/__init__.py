"""The provider for Airflow 3: a hook, a trigger, a sensor, an operator, and the scheme of message queues.

The trigger and the sensor only look: they take no lock, hold no item, and consume nothing. A task consumes, by a
session of the hook's queue. So an event may come once too often, but no item is lost or taken twice::

    from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
    from airflow.sdk import Asset, AssetWatcher, dag, task
    from persistentqueue.airflow.hook import QueueHook

    trigger = MessageQueueTrigger(scheme="persistentqueue", name="orders")
    orders = Asset("orders", watchers=[AssetWatcher(name="orders", trigger=trigger)])

    @dag(schedule=[orders])
    def invoices():
        @task
        def work():
            with QueueHook(name="orders").connect() as queue:
                while True:
                    with queue.transaction() as session:
                        if (order := session.dequeue()) is None:
                            return
                        ...

        work()

    invoices()

The classes are in the modules ``hook``, ``trigger``, ``sensor`` and ``operator``. They need
``pip install 'persistentqueue[airflow]'``. Airflow imports this module while it starts, so that it imports nothing.
"""

from __future__ import annotations

from typing import Any

__all__ = ["get_provider_info"]

_NAME = "persistentqueue"


def get_provider_info() -> dict[str, Any]:
    """Return what Airflow shows of this provider, and the names of its classes.

    Returns:
        The fields that Airflow's schema of providers has.
    """

    def modules(name: str) -> list[dict[str, Any]]:
        return [{"integration-name": _NAME, "python-modules": [f"persistentqueue.airflow.{name}"]}]

    hook = {"connection-type": _NAME, "hook-class-name": "persistentqueue.airflow.hook.QueueHook"}
    return {
        "package-name": "persistentqueue",
        "name": _NAME,
        "description": "Embedded, ACID, persistent queues: directories on the disk of the workers.",
        "integrations": [{"integration-name": _NAME, "tags": ["software"]}],
        "hooks": modules("hook"),
        "triggers": modules("trigger"),
        "sensors": modules("sensor"),
        "operators": modules("operator"),
        "connection-types": [hook],
        "queues": ["persistentqueue.airflow.message_queue.QueueProvider"],
    }

"""The scheme ``persistentqueue`` of Airflow's message queues: ``MessageQueueTrigger`` finds the trigger by it."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

from .trigger import QueueTrigger


class QueueProvider(BaseMessageQueueProvider):  # type: ignore[misc]
    """Gives ``MessageQueueTrigger(scheme="persistentqueue", …)`` a ``QueueTrigger`` with its other arguments.

    A queue may also be an address, such as ``persistentqueue:///data/queues/orders``: its path is the directory of the
    queue. Airflow has deprecated addresses.
    """

    scheme = "persistentqueue"

    def queue_matches(self, queue: str) -> bool:
        """Return whether an address names a queue of this provider."""
        return urlsplit(queue).scheme == self.scheme

    def trigger_class(self) -> type[QueueTrigger]:
        """Return the class of the trigger."""
        return QueueTrigger

    def trigger_kwargs(self, queue: str, **arguments: Any) -> dict[str, Any]:  # noqa: ARG002 - Airflow's parameters
        """Return the arguments that an address stands for."""
        return {"path": unquote(urlsplit(queue).path)}

"""The refusals of the queues of ``compat`` and ``aio``: of copies, and of settings that count deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from persistentqueue.system.uncopyable import Uncopyable


class UncopyableFace(Uncopyable):
    """A base class for queues of one path, which another process reaches by a ``Producer``."""

    _elsewhere = "pass its path, and open a Producer there, with the codec that the queue has"


def refuse_retries(settings: Mapping[str, Any], face: str) -> None:
    """Raise ``ValueError`` if the settings count delivery attempts, which ``face`` does not support.

    Such an interface dequeues items ahead of its users, so that these items would count as delivered.
    """
    chosen = [name for name in ("max_attempts", "dead_letter", "retry_delay_seconds") if settings.get(name)]
    if chosen:
        raise ValueError(
            f"{chosen[0]} cannot be used with {face}, which takes items ahead of its users, so that they count as "
            "delivered: use persistentqueue.PersistentQueue"
        )

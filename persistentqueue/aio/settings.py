"""Which settings of a queue are not for an event loop."""

from __future__ import annotations

from collections.abc import Mapping

_RETRIES = ("max_attempts", "dead_letter", "retry_delay_seconds")


def need_no_retries(settings: Mapping[str, object]) -> None:
    """Raise ``ValueError`` for a queue that is to count attempts: a rollback then writes to the log, and what is taken
    ahead would count as delivered."""
    chosen = [name for name in _RETRIES if settings.get(name)]
    if chosen:
        raise ValueError(f"{chosen[0]} is not for asyncio: use persistentqueue.PersistentQueue, in a thread")

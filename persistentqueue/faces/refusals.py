"""The refusals of the queues of ``compat`` and ``aio``: of copies, and of options that count deliveries."""

from __future__ import annotations

from persistentqueue.options import Options
from persistentqueue.system.uncopyable import Uncopyable


class UncopyableFace(Uncopyable):
    """A base class for queues of one path, which another process reaches by a ``Producer``."""

    _elsewhere = "pass its path, and open a Producer there, with the codec that the queue has"


def require_no_retries(options: Options, face: str) -> None:
    """Raise ``ValueError`` if the options count delivery attempts, which ``face`` does not support.

    Such an interface dequeues items ahead of its users, so that these items would count as delivered.
    """
    counting = [name for name in ("max_attempts", "dead_letter", "retry_delay_seconds") if getattr(options, name)]
    if counting:
        raise ValueError(
            f"{counting[0]} cannot be used with {face}, which takes items ahead of its users, so that they count as "
            "delivered: use persistentqueue.PersistentQueue"
        )

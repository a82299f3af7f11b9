"""The refusals of the queues of ``compat`` and ``aio``: of copies, and of options that count deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from persistentqueue.options import Options, chosen_options
from persistentqueue.system.uncopyable import Uncopyable


class UncopyableFace(Uncopyable):
    """A base class for queues of one path, which another process reaches by a ``Producer``."""

    _elsewhere = "pass its path, and open a Producer there, with the codec that the queue has"


def face_options(options: Options | None, arguments: Mapping[str, Any], face: str) -> Options:
    """Return the chosen options for an interface that counts no delivery attempts.

    Such an interface dequeues items ahead of its users, so that these items would count as delivered. Raises
    ``ValueError`` for options that count deliveries, and the errors of ``chosen_options``.
    """
    for name in ("max_attempts", "dead_letter", "retry_delay_seconds"):
        if arguments.get(name, getattr(options, name, None)):
            raise ValueError(
                f"{name} cannot be used with {face}, which takes items ahead of its users, so that they count as "
                "delivered: use persistentqueue.PersistentQueue"
            )
    return chosen_options(options, arguments)

"""The common parts of the queues of ``compat`` and ``aio``: refusals, and the consumer that such a queue reads for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from persistentqueue import PersistentQueue, Subscription
from persistentqueue.codecs import T
from persistentqueue.options import Options, chosen_options
from persistentqueue.pickling import Uncopyable


class UncopyableFace(Uncopyable):
    """A base class for queues of one path, which another process reaches by a ``Producer``."""

    _elsewhere = "pass its path, and open a Producer there, with the codec that the queue has"


def face_options(options: Options | None, arguments: Mapping[str, Any], face: str) -> Options:
    """Return the chosen options for an interface that counts no delivery attempts.

    Such an interface consumes an item when it returns it, so no attempt can fail. Raises ``ValueError`` for options
    that count deliveries, and the errors of ``chosen_options``.
    """
    for name in ("max_attempts", "dead_letter", "retry_delay_seconds"):
        if arguments.get(name, getattr(options, name, None)):
            raise ValueError(
                f"{name} cannot be used with {face}, which consumes an item when it returns it, so that no attempt "
                "can fail: use persistentqueue.compat.Queue or persistentqueue.PersistentQueue"
            )
    return chosen_options(options, arguments)


def need_maxsize(maxsize: object) -> None:
    """Raise ``TypeError`` if this is no ``maxsize``; a path and a name were passed, as other openings take them."""
    if isinstance(maxsize, str) or hasattr(maxsize, "__fspath__"):
        raise TypeError(
            f"maxsize must be a whole number, not {maxsize!r}: the path of this queue is one argument, such as "
            '"queues/orders"'
        )


class Consumer(NamedTuple):
    """The consumer that a queue of the standard library reads for."""

    source: PersistentQueue[Any] | Subscription[Any]
    """The persistent queue itself, or the subscription."""
    stored: Callable[[], int]
    """Returns the number of items that no session holds, delayed ones included."""


def consumer_of(core: PersistentQueue[T], subscription: str | None) -> Consumer:
    """Return the plain queue, or its subscription of this name, which is made if it does not exist.

    Raises the errors of ``PersistentQueue.subscribe``.
    """
    source = core if subscription is None else core.subscribe(subscription)
    session = source.session()
    return Consumer(source, session._unheld if session._counts_attempts() else source.__len__)

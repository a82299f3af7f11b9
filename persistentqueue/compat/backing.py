"""The persistent queue beneath a ``Queue``: one that this process owns alone, or one that it shares with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from persistentqueue import PersistentQueue, Subscription
from persistentqueue.workers import SharedQueue, SharedSubscription

from ..faces.refusals import consumer_of


class Backing(NamedTuple):
    """The persistent queue beneath a ``Queue``, and the consumer that the queue reads for."""

    core: PersistentQueue[Any]
    """The queue. A ``SharedQueue`` has the methods of it that a ``Queue`` calls."""
    source: PersistentQueue[Any] | Subscription[Any]
    """The queue itself, or the subscription."""
    stored: Callable[[], int]
    """Returns the number of items that no session holds, delayed ones included."""
    unfinished: Callable[[], int] | None = None
    """Returns the number of items that are not consumed, held ones of all processes included. None if this process owns
    the queue alone: then it knows which items are held."""


def owned(core: PersistentQueue[Any], subscription: str | None) -> Backing:
    """Return the backing of a queue that this process owns alone. Raises the errors of ``subscribe``."""
    return Backing(core, *consumer_of(core, subscription))


def shared(core: SharedQueue[Any], subscription: str | None) -> Backing:
    """Return the backing of a queue that any number of processes share. Nothing is opened."""
    source: SharedQueue[Any] | SharedSubscription[Any] = core
    if subscription is not None:
        source = SharedSubscription(core, subscription)

    def stored() -> int:
        return source.sizes().unheld

    def unfinished() -> int:
        return source.sizes().unconsumed

    return Backing(cast(Any, core), cast(Any, source), stored, unfinished)

"""Calls that a queue or a subscription does not have, such as those of its sessions: an error shows the right call."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

_CALLS = {
    "enqueue": "session.enqueue(item)",
    "enqueue_many": "session.enqueue_many(items)",
    "dequeue": "session.dequeue()",
    "dequeue_many": "session.dequeue_many(max_items)",
    "put": "session.enqueue(item)",
    "get": "session.dequeue()",
    "flush": "session.enqueue(item); the end of the block flushes",
    "commit": "session.enqueue(item); the end of the block commits",
    "ack": "session.dequeue(); the end of the block acknowledges",
    "task_done": "session.dequeue(); the end of the block acknowledges",
}
"""Names of calls that only a session has, or no object, and the calls of a session in their place."""


class MisplacedCalls:
    """A base class of queues and subscriptions: a call of a session, or a loop, raises an error with the call to make.

    Python calls ``__getattr__`` only for an attribute that is missing. Type checkers do not see these methods, so that
    they report the mistake by themselves.
    """

    __slots__ = ()
    _what: ClassVar[str] = "queue"
    """The object: a queue or a subscription."""
    _with: ClassVar[str] = "with"
    """Words that begin the block of a transaction."""
    _await: ClassVar[str] = ""
    """Word before a call of a session, with the space behind it; empty for a plain call."""

    if not TYPE_CHECKING:

        def __iter__(self):
            """Raise ``TypeError``, with the two calls that the loop could mean."""
            raise TypeError(
                f"a {self._what} is not iterable: loop over {self._what}.browse() to look at the items, or call "
                "session.dequeue() to consume them"
            )

        def __getattr__(self, name):
            """Raise ``AttributeError``: for a call of a session with its place, for any other name as Python does."""
            if name not in _CALLS:
                return super().__getattribute__(name)
            # Without the object, Python does not suggest a similar name, such as ``requeue`` for ``enqueue``.
            raise AttributeError(
                f"a {self._what} has no {name}(): use a session: {self._with} {self._what}.transaction() as session: "
                f"{self._await}{_CALLS[name]}",
                name=name,
                obj=None,
            )

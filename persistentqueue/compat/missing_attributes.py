"""Attributes of ``queue.Queue`` that a persistent queue lacks: the error names the call to make instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

_INSTEAD = {
    "queue": "its items are on disk: call queue.persistent.clear() to remove them, or loop over "
    "queue.persistent.browse() to look at them",
    "not_empty": "items come from other processes, too: call queue.get(timeout=seconds), or "
    "queue.persistent.wait(seconds) to wait for an item without getting it",
}
"""Names of attributes of ``queue.Queue``, and what to use in their place."""


class MissingAttributes:
    """A base class of queues: an attribute that only the standard library has raises an error with advice.

    Python calls ``__getattr__`` only for an attribute that is missing: a subclass may set one of them.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """Raise ``AttributeError``: with advice for these attributes, for any other name as Python does."""
            if name not in _INSTEAD:
                return super().__getattribute__(name)
            raise AttributeError(f"a persistent queue has no {name}: {_INSTEAD[name]}", name=name, obj=None)

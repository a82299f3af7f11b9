"""The base class of all errors of the package."""

from __future__ import annotations

from typing import Any

from ..pickling import portable, rebuilt


class PersistentQueueError(Exception):
    """Base class of all errors that this package defines.

    Each error keeps its message and its attributes through ``pickle``, ``copy.copy`` and ``copy.deepcopy``. So it
    reaches the parent of a process pool. An attribute that cannot be pickled arrives there as its ``repr``.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what rebuilds the error without its constructor, whose arguments are not in ``args``."""
        reduced: Any = super().__reduce__()
        _, arguments, *state = reduced
        attributes = [{name: portable(value) for name, value in each.items()} for each in state if each]
        return (rebuilt, (type(self), *arguments), *attributes)

    def __copy__(self) -> PersistentQueueError:
        """Return a copy that shares the attributes, also those that cannot be pickled."""
        reduced: Any = super().__reduce__()
        _, arguments, *_ = reduced
        copied = rebuilt(type(self), *arguments)
        copied.__dict__.update(self.__dict__)
        return copied

"""Weak sets for any number of threads, whose members leave when their users drop them.

A ``weakref.WeakSet`` is written in Python. A thread that drops a member removes it while another thread goes through
the set, and that thread gets a ``RuntimeError``. On a free-threaded Python this happens often. Here each change and
each look is one call of C.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class Members(Generic[T]):
    """Objects that stay in the set as long as other code keeps them. For any number of threads."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: set[ref[T]] = set()

    def __iter__(self) -> Iterator[T]:
        """Yield the members of the beginning that are still there."""
        for each in self._members.copy():
            member = each()
            if member is not None:
                yield member

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self._members)

    def add(self, member: T) -> None:
        """Add an object, which leaves the set when it is dropped."""
        self._members.add(ref(member, self._members.discard))

    def discard(self, member: T) -> None:
        """Remove an object, if it is a member."""
        self._members.discard(ref(member))

    def clear(self) -> None:
        """Remove all objects."""
        self._members.clear()

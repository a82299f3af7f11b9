"""Content of a queue, as the models of the campaigns see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

SUBSCRIBES = "subscribes"
"""Style of programs whose queues have several subscriptions, which are added and removed."""
Left = tuple[bytes, ...]


class Content(NamedTuple):
    """Content of a queue, and how many publications of one life are in it."""

    items: Left = ()
    """Items of the plain queue."""
    markers: tuple[tuple[str, int], ...] = ()
    adopted: int = 0
    others: tuple[tuple[str, Left], ...] = ()
    """Name and items of each subscription, sorted by name."""
    nobody: Left | None = None
    """Items that are kept while there is no subscription, with ``fan_out``; None without ``fan_out``."""

    @property
    def kept(self) -> set[bytes]:
        """Items that the queue keeps, for a subscription or for the first one to come."""
        return {*self.items, *(self.nobody or ()), *(item for _, left in self.others for item in left)}

    @property
    def names(self) -> list[str]:
        """Names of the subscriptions; the name of the plain queue is empty."""
        return [*([""] if self.nobody is None else []), *(name for name, _ in self.others)]

    def of(self, name: str) -> Left:
        """Return the items that the subscription has not consumed."""
        return dict(self.others)[name] if name else self.items

    def put(self, items: Iterable[bytes]) -> Content:
        """Return the content with ``items`` at the end."""
        new = tuple(items)
        others = tuple((name, left + new) for name, left in self.others)
        if self.nobody is None:
            return self._replace(items=self.items + new, others=others)
        return self._replace(others=others, nobody=() if others else self.nobody + new)

    def take(self, name: str, items: Iterable[bytes]) -> Content:
        """Return the content after the subscription ``name`` has consumed ``items``."""
        gone = set(items)
        left = tuple(item for item in self.of(name) if item not in gone)
        assert len(left) + len(gone) == len(self.of(name))
        if not name:
            return self._replace(items=left)
        return self._replace(others=tuple((each, left if each == name else its) for each, its in self.others))

    def subscribe(self, name: str, order: Iterable[bytes], start: str) -> Content:
        """Return the content with one more subscription. ``order`` has all items that ever were, in the order of the
        queue."""
        kept = self.kept
        left = tuple(item for item in order if item in kept) if start == "earliest" else ()
        others = tuple(sorted([*self.others, (name, left)]))
        return self._replace(others=others, nobody=None if self.nobody is None else ())

    def unsubscribe(self, name: str) -> Content:
        """Return the content without the subscription."""
        others = tuple(each for each in self.others if each[0] != name)
        alone = self.nobody is not None and not others
        return self._replace(others=others, nobody=self.of(name) if alone else self.nobody)

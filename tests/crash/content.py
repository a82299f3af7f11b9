"""What a queue holds, as the models of the campaigns see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

SUBSCRIBES = "subscribes"
"""The style of programs whose queues have several consumers, who come and go."""
Left = tuple[bytes, ...]


class Content(NamedTuple):
    """What a queue holds, and how many of a life's publications came into it."""

    items: Left = ()
    """For the plain queue."""
    markers: tuple[tuple[str, int], ...] = ()
    adopted: int = 0
    others: tuple[tuple[str, Left], ...] = ()
    """For each subscription, by name."""
    nobody: Left | None = None
    """With ``fan_out`` what is kept while there is no subscription; None without."""

    @property
    def kept(self) -> set[bytes]:
        """What anybody needs."""
        return {*self.items, *(self.nobody or ()), *(item for _, left in self.others for item in left)}

    @property
    def names(self) -> list[str]:
        """Of those who consume; the plain queue's is empty."""
        return [*([""] if self.nobody is None else []), *(name for name, _ in self.others)]

    def of(self, name: str) -> Left:
        """What one of them has before him."""
        return dict(self.others)[name] if name else self.items

    def put(self, items: Iterable[bytes]) -> Content:
        """With these at the end."""
        new = tuple(items)
        others = tuple((name, left + new) for name, left in self.others)
        if self.nobody is None:
            return self._replace(items=self.items + new, others=others)
        return self._replace(others=others, nobody=() if others else self.nobody + new)

    def take(self, name: str, items: Iterable[bytes]) -> Content:
        """Without these, for one who consumes."""
        gone = set(items)
        left = tuple(item for item in self.of(name) if item not in gone)
        assert len(left) + len(gone) == len(self.of(name))
        if not name:
            return self._replace(items=left)
        return self._replace(others=tuple((each, left if each == name else its) for each, its in self.others))

    def subscribe(self, name: str, order: Iterable[bytes], start: str) -> Content:
        """With one more who consumes; ``order`` is that of all items that ever were."""
        kept = self.kept
        left = tuple(item for item in order if item in kept) if start == "earliest" else ()
        others = tuple(sorted([*self.others, (name, left)]))
        return self._replace(others=others, nobody=None if self.nobody is None else ())

    def unsubscribe(self, name: str) -> Content:
        """With one less."""
        others = tuple(each for each in self.others if each[0] != name)
        alone = self.nobody is not None and not others
        return self._replace(others=others, nobody=self.of(name) if alone else self.nobody)

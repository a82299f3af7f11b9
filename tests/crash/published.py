"""Other processes that publish, for the explorer: between the owner's calls, and in the middle of them.

They publish one after the other, and an owner adopts in that order. So the content of a queue follows from its owner's
work, and from the number of this life's publications that are in it. Every opening adopts all publications. Some
publications come in parts, with a manifest; parts without a manifest never enter the queue.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from persistentqueue.storage.publication import LATEST, Draft, Part, Request

from .content import Content
from .disk import SimulatedDisk

PUBLISHES = "publishes"
"""Style of programs beside which other processes publish."""
INTRUSION_ODDS = 0.01
PUBLISHED_MAX = 60
"""Upper bound of publications in one life; an owner whose writes are all short would never finish adopting."""
_PRODUCERS = ("0" * 16, "f" * 16)


class Published(NamedTuple):
    """A publication: the items, and an optional marker; or a request, and the items that it declares consumed."""

    items: tuple[bytes, ...]
    marker: tuple[str, int] | None
    request: Request | None = None


def adopting(content: Content, published: list[Published], held: Iterable[tuple[str, bytes]] = ()) -> Content:
    """Return the content after the owner has adopted all of these that are not in it yet.

    ``held`` are the items that the owner's sessions hold.
    """
    markers, keeps = dict(content.markers), set(held)
    for each in published[content.adopted :]:
        if each.request is not None:
            name, _, end = each.request
            if not end and name not in content.names:
                content = content.subscribe(name, (), "latest")
            elif end and name in content.names:
                done = set(each.items)
                left = [item for item in content.of(name) if item in done and (name, item) not in keeps]
                content = content.take(name, left)
            continue
        if each.marker is not None:
            if each.marker[1] <= markers.get(each.marker[0], -1):
                continue
            markers[each.marker[0]] = each.marker[1]
        content = content.put(each.items)
    return content._replace(markers=tuple(sorted(markers.items())), adopted=len(published))


class Others:
    """Other processes of one life. ``numbers`` never come twice, in any life."""

    def __init__(self, draw: random.Random, numbers: Iterator[int]) -> None:
        self._random = draw
        self._numbers = numbers
        self.inbox = ""
        """Directory in which they publish; "" while they cannot."""
        self.published: list[Published] = []
        """Publications that the owner of this life has to adopt, or has adopted, in order."""
        self.held: list[tuple[str, bytes]] = []
        """Items that the owner's sessions hold while it adopts.

        A request leaves them to the sessions, unless it is adopted later.
        """
        self.under_way: list[Published] = []
        """Publications under way: a crash may leave them or not."""

    def found(self, contents: Iterable[Content]) -> list[Content]:
        """Return the contents that the next opening may find if a crash left one of ``contents``."""
        some = []
        for content in contents:
            some += [adopting(content, self.published, held) for held in ([], self.held)[: 1 + bool(self.held)]]
        if self.under_way:
            some += [adopting(content, [*self.published, *self.under_way]) for content in some]
        return [content._replace(adopted=0) for content in some]

    def publish(self, disk: SimulatedDisk) -> None:
        """Publish a transaction, in one file or in parts. In some cases, stop after the draft, or after the parts."""
        marker = (self._random.choice("mn"), self._random.randrange(6)) if self._random.random() < 0.3 else None
        parts: list[Part] = []
        if self._random.random() < 0.4:
            pieces = [self._items([1, 1, 3, 20]) for _ in range(self._random.randint(1, 4))]
            items = tuple(chain.from_iterable(pieces))
            parts = [self._written(disk, piece).end_part(next(self._numbers)) for piece in pieces]
            draft = self._written(disk, ())
        else:
            items = self._items([0, 1, 1, 3, 20])
            draft = self._written(disk, items)
        if (not items and marker is None) or self._random.random() < 0.1:
            draft.drop()
            return
        self.under_way = [Published(items, marker)]
        draft.publish(marker, next(self._numbers), parts)
        self.published += self.under_way
        self.under_way = []

    def ask(self, disk: SimulatedDisk, content: Content, next_sequence: int) -> None:
        """Request a subscription, or request that one has consumed all items in the queue now, which are
        ``content``."""
        name = self._random.choice("abc")
        if name in content.names and next_sequence:
            request, items = Request(name, 0, next_sequence), tuple(content.kept)
        else:
            request, items = Request(name, LATEST), ()
        draft = self._written(disk, ())
        self.under_way = [Published(items, None, request)]
        draft.ask(request, next(self._numbers))
        self.published += self.under_way
        self.under_way = []

    def _written(self, disk: SimulatedDisk, items: tuple[bytes, ...]) -> Draft:
        draft = Draft(disk.disk, self.inbox, self._random.choice(_PRODUCERS), next(self._numbers))
        for start in range(0, len(items), 7):
            some = items[start : start + 7]
            draft.write(some, sum(map(len, some)), 0)
        return draft

    def is_next(self) -> bool:
        """Return if one of them publishes in the middle of a call of the owner."""
        can = bool(self.inbox) and not self.under_way and len(self.published) < PUBLISHED_MAX
        return can and self._random.random() < INTRUSION_ODDS

    def _items(self, counts: list[int]) -> tuple[bytes, ...]:
        return tuple(self._item() for _ in range(self._random.choice(counts)))

    def _item(self) -> bytes:
        return (b"p%d " % next(self._numbers)).ljust(self._random.choice((0, 0, 10, 100, 600)), b".")

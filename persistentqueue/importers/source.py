"""``Source``: the interface of everything that items are imported from; ``Choice``: the part that a caller asks for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from .errors import SourceDamagedError

Damaged = Callable[[SourceDamagedError], None]
"""Receives each part of a source that cannot be read. If it returns, the reader goes on behind that part."""


class Choice(NamedTuple):
    """The part of a source, and the order, that the caller asks for. None leaves it to the source."""

    table: str | None
    column: str | None
    order: str | None
    states: Collection[str]
    newest_first: bool | None


class Source(ABC):
    """An ordered series of items in files that another package has made."""

    path: str
    """Absolute path of the source, for messages and markers."""
    kind: str
    """Package and class of the source, such as ``"queuelib FifoDiskQueue"``."""
    part: str = ""
    """Name of a table, where one file has several sources."""
    serializer: str | None = None
    """Serializer of persist-queue; empty if its files do not name it, and None for items that are only bytes."""

    @abstractmethod
    def items(self, damaged: Damaged) -> Iterator[bytes]:
        """Yield the items in order, from the first one on, without holding more than a few of them in memory."""

    @abstractmethod
    def files(self) -> list[Path]:
        """Return the files that hold the items. An import expects that they do not change."""

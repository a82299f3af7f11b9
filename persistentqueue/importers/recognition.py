"""From a path to its source: which kind of queue the files there are of, by their names and contents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from .chunks import persist_queue_chunks, queuelib_chunks
from .errors import SourceError
from .source import Choice, Damaged, Source
from .stacks import Stack
from .tables import any_table, opened, persist_queue_table, queuelib_table

Origin = Literal["persist-queue", "queuelib", "sqlite"]
"""Package that has made a source; ``"sqlite"`` for any table."""
_MAGIC = b"SQLite format 3\0"
_PRIORITY = re.compile(r"(-?[0-9]+)s?")
"""Name of the queue of one priority, as Scrapy gives them; the queues of start requests end with s."""


class Priorities(Source):
    """The queues of a ``PriorityQueue`` of queuelib, one after the other, from the lowest number on."""

    kind = "queuelib PriorityQueue"

    def __init__(self, directory: Path, parts: list[Source]) -> None:
        self.path, self._parts = str(directory), parts

    def files(self) -> list[Path]:
        """Return the files of all queues."""
        return [file for part in self._parts for file in part.files()]

    def items(self, damaged: Damaged) -> Iterator[bytes]:
        """Yield the items of each queue, one queue after the other."""
        for part in self._parts:
            yield from part.items(damaged)


@contextmanager
def open_source(path: Path, origin: Origin, choice: Choice) -> Iterator[Source]:
    """Yield the source at an absolute path. Raises ``SourceError`` and ``SourceInUseError``."""
    if not path.exists():
        raise SourceError(str(path), f"a queue of {origin}", "nothing", "name the path of an existing queue")
    if choice.table is None and origin == "queuelib" and not _is_database(path):
        yield _queuelib_files(path, choice.newest_first)
        return
    if choice.table is None and origin == "persist-queue" and (path / "info").is_file():
        _need_oldest_first(path, choice.newest_first)
        yield persist_queue_chunks(path)
        return
    database = path / "data.db" if origin == "persist-queue" and path.is_dir() else path
    if not _is_database(database):
        found = "no database" if origin == "sqlite" else f"neither {path}/info nor {path}/data.db"
        raise SourceError(str(path), f"a queue of {origin}", found, "name its directory, or the file of its database")
    database = database.resolve()  # the journals lie beside the target of a link
    with opened(database) as connection:
        if origin == "persist-queue":
            yield persist_queue_table(database, connection, choice)
        elif origin == "queuelib":
            yield queuelib_table(database, connection, choice)
        else:
            yield any_table(database, connection, choice)


def _queuelib_files(path: Path, newest_first: bool | None) -> Source:
    """Return the source of the queue of queuelib at a path that is no database."""
    if path.is_file():
        return Stack(path, newest_first is not False)
    if not path.is_dir():
        raise SourceError(str(path), "a queue of queuelib", "neither a file nor a directory", "name another path")
    if (path / "info.json").is_file():
        _need_oldest_first(path, newest_first)
        return queuelib_chunks(path)
    names = sorted(each.name for each in path.iterdir() if each.name != "active.json")
    if not names or any(re.fullmatch(r"q[0-9]{5,}", name) for name in names):
        found = f"{names[0]!r} without info.json, which queuelib writes when it is closed" if names else "nothing"
        raise SourceError(str(path), "a queue of queuelib", found, "open and close it with queuelib first")
    numbers = {name: int(match.group(1)) for name in names if (match := _PRIORITY.fullmatch(name)) is not None}
    if len(numbers) < len(names):
        others = ", ".join(repr(name) for name in names if name not in numbers)
        raise SourceError(
            str(path), "a queue of queuelib, or one for each priority", f"{others}", "import each queue by its own path"
        )
    ordered = sorted(names, key=lambda name: (numbers[name], not name.endswith("s"), name))
    return Priorities(path, [_priority(path / name, newest_first) for name in ordered])


def _priority(path: Path, newest_first: bool | None) -> Source:
    """Return the source of the queue of one priority."""
    if _is_database(path) or (path.is_dir() and not (path / "info.json").is_file()):
        expected = "a FifoDiskQueue or a LifoDiskQueue of queuelib"
        raise SourceError(str(path), expected, "another kind", "import each queue by its own path")
    return _queuelib_files(path, newest_first)


def _need_oldest_first(path: Path, newest_first: bool | None) -> None:
    """Raise ``SourceError`` if the newest item is to come first: chunks are read from their beginning only."""
    if newest_first:
        raise SourceError(str(path), "a stack or a database", "a FIFO of chunks", "import it without newest_first=True")


def _is_database(path: Path) -> bool:
    """Return whether the path is a file that begins like a database of SQLite."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC

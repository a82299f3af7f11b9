"""The transfer of a source's items into a queue: each of them once, and verified.

1. Read the source to its end: count its items, and compute their checksum. *Nothing is written before.*
2. Look for markers of this source in the queue: they say how many of its items the queue has had. The checksum finds
   that of an import which was cut short, also if the source was moved since.
3. Read the source again, and commit its items batch by batch. Each batch is one transaction with the marker
   ``import <checksum> <path>``, whose version is the number of items so far. *A crash leaves whole batches, and the
   marker that belongs to them.*
4. Read the items back from the disk, and compare them with the source, byte by byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from persistentqueue import PersistentQueue, Progress, QueueFullError
from persistentqueue.drawing.text import many
from persistentqueue.options import OptionArguments, Options, Unnamed, chosen_options
from persistentqueue.system.disk import StrPath
from persistentqueue.system.progress import Meter, metering

from .errors import ImportMismatchError, SourceChangedError, SourceDamagedError, SourceError, SourceInUseError
from .recognition import Origin, open_source
from .source import Choice, Source
from .tables import ACK_STATES

if TYPE_CHECKING:
    from typing_extensions import Unpack

BATCH_ITEMS = 8192
BATCH_BYTES = 2 * 1024 * 1024
"""Upper bounds of a batch; an item that is larger is a batch of its own."""
_MARKER = "import "


@dataclass(frozen=True)
class Imported:
    """The outcome of an import.

    Attributes:
        kind: Package and class of the source, such as ``"persist-queue SQLiteAckQueue"``.
        codec: Codec that reads the items: ``"UNSAFE_PICKLE"``, ``"JSON"``, ``"MessagePack"``, ``"cbor2"`` (a codec of
            your own), or ``"BYTES"`` for any other bytes. A table of persist-queue does not name it: there it is
            guessed from the first item.
        count: Number of items of the source.
        checksum: SHA-256 of all items of the source, in hex digits. Each item is hashed behind its length in decimal
            digits and a colon, and before a comma.
        added: Number of items that this call has added: ``count`` without those of former calls. 0 says that the
            source was imported before.
        damaged: Errors of the parts that were skipped; empty unless ``skip_damaged`` was set.
    """

    kind: str
    codec: str
    count: int
    checksum: str
    added: int
    damaged: tuple[SourceDamagedError, ...]


def import_queue(
    source: StrPath,
    path: StrPath,
    name: str | Unnamed | None = Unnamed.NO_NAME,
    *,
    origin: Origin,
    table: str | None = None,
    column: str | None = None,
    order: str | None = None,
    states: Collection[str] = ("inited", "ready", "unack"),
    newest_first: bool | None = None,
    skip_damaged: bool = False,
    again: bool = False,
    progress: Progress = None,
    options: Options | None = None,
    **arguments: Unpack[OptionArguments],
) -> Imported:
    """Copy the items of another queue, or of a SQLite table, into a queue, in the order in which its owner would take
    them::

        import_queue("work", "queues", "work", origin="persist-queue")

    The items are the bytes that the source stored: nothing is unpickled or encoded. So the call takes no ``codec``, and
    its queue is not served. A later opening passes the codec that the result names. The source is only read. Stop its
    owner first, also one in this process, for good. A change of the source during the import is an error, but the
    import notices it only at its end.

    The batches record markers in the queue. So a call after a kill goes on where the killed one stopped, and a call
    after a finished one adds nothing. Consumers may have taken items in between.

    Args:
        source: Directory of the other queue, or its file. For persist-queue in SQLite: the directory with ``data.db``,
            or the database.
        path: Directory of the queue, or, if ``name`` is given, the directory above it. It is made if it is missing.
        name: Name of the queue. Default: no name; see ``PersistentQueue``.
        origin: The package of the source: ``"persist-queue"``, ``"queuelib"``, or ``"sqlite"`` for any table.
        table: Table to import, if a database has several. Default None: the only one.
        column: For ``"sqlite"``, the column of the items: bytes, or text, which becomes UTF-8. Default None: litequeue.
        order: For ``"sqlite"``, the column that orders the items. Default None: litequeue.
        states: For ack queues of persist-queue, the states of the items to import: any of ``"inited"``, ``"ready"``,
            ``"unack"``, ``"acked"`` and ``"ack_failed"``. Default: the first three, which its next owner would get.
        newest_first: Whether to import the newest item first. Default None: as the kind says; last in, first out for
            ``FILO…`` and ``LifoDiskQueue``. Pass True for a ``LifoSQLiteQueue``, whose table does not say it.
        skip_damaged: Whether to import all other items if a part cannot be read. Default False: an error, before
            anything is imported.
        again: Whether to import the source also if the queue has had its items. Default False.
        progress: How to report the number of items that the queue has (see ``Progress``), after each batch. Default
            None: not at all. If the callable raises, the import ends, and the same call goes on there later.
        options: Options of the opening of the queue, as one value. Default None.
        **arguments: The fields of ``Options`` as keyword arguments, for the opening of the queue.

    Returns:
        Count, checksum, kind and codec of the source, and the number of items that this call has added.

    Raises:
        TypeError, ValueError: An argument is not valid. ``codec`` and ``serve`` are no options. Nothing was written.
        SourceError: The source is none of ``origin``, or cannot be told from others.
        SourceDamagedError: A part of the source cannot be read, and ``skip_damaged`` is False. Nothing was imported.
        SourceInUseError: Another process has the source open, or has changed it during the call.
        SourceChangedError: The queue has had other items of this source, or these items from another path.
        ImportMismatchError: The stored items differ from those of the source.
        MissingExtraError: The file queue of persist-queue used MessagePack, and msgspec is not installed.
        QueueFullError: A limit of the queue leaves no room. Make room, then call again.
        PersistentQueueError, OSError: The queue cannot be opened or written; see ``PersistentQueue``.

    Each batch is durable when ``progress`` is called, and all items are on return. The stored items are then compared
    with the source, without those that were in the queue before. Memory is bounded by two batches of 2 MiB and the
    largest item. A database with a journal beside it is copied to the directory for temporary files first. Any thread
    may call it; no other object may have the queue open.
    """
    choice = _checked_choice(origin, Choice(table, column, order, states, newest_first))
    chosen = chosen_options(options, arguments)  # a codec would encode the items once more
    with (
        metering(progress, f"import {Path(source).name}", " items") as meter,
        open_source(Path(source).resolve(), origin, choice) as found,
    ):
        survey = _survey(found, skip_damaged)
        with PersistentQueue(path, name, options=chosen) as queue:
            return _Transfer(found, survey, queue, meter).run(again)


def _checked_choice(origin: Origin, choice: Choice) -> Choice:
    """Return the choice, if it is one for this origin. Raises ``ValueError``."""
    if origin not in get_args(Origin):
        raise ValueError(f"origin must be one of {', '.join(map(repr, get_args(Origin)))}, not {origin!r}")
    if isinstance(choice.states, str) or not choice.states or not set(choice.states) <= ACK_STATES.keys():
        raise ValueError(f"states must be some of {', '.join(map(repr, ACK_STATES))}, not {choice.states!r}")
    if origin != "sqlite" and (choice.column is not None or choice.order is not None):
        raise ValueError(f"column= and order= are for tables of sqlite, not for {origin!r}, whose columns are known")
    return choice


@dataclass(frozen=True)
class _Survey:
    """The first reading of a source."""

    count: int
    checksum: str
    first: bytes
    damaged: tuple[SourceDamagedError, ...]
    files: list[tuple[int, int, int] | None]


def _survey(source: Source, skip_damaged: bool) -> _Survey:
    """Read the source to its end. Raises ``SourceDamagedError`` and ``SourceInUseError``."""
    damaged: list[SourceDamagedError] = []
    files, count, first, digest = _traits(source), 0, b"", hashlib.sha256()
    for batch in batches(source.items(damaged.append if skip_damaged else _raise)):
        first = first if count else batch[0]
        count += len(batch)
        digest.update(_hashed(batch))
    _need_unchanged(source, files, "nothing was imported")
    return _Survey(count, digest.hexdigest(), first, tuple(damaged), files)


class _Transfer:
    """One import into an open queue."""

    def __init__(self, source: Source, survey: _Survey, queue: PersistentQueue[Any], meter: Meter) -> None:
        self._source, self._survey, self._queue, self._meter = source, survey, queue, meter

    def run(self, again: bool) -> Imported:
        """Import the items that the queue has not had, verify them, and return the outcome."""
        survey = self._survey
        before = self._queue.view().look()
        marker = self._marker(before.markers, again)
        had = before.markers.get(marker, 0)
        self._copy(marker, had)
        if had < survey.count:
            self._verify(had, before.enqueued)
        codec = codec_of(self._source, survey.first)
        return Imported(self._source.kind, codec, survey.count, survey.checksum, survey.count - had, survey.damaged)

    def _marker(self, markers: Mapping[str, int], again: bool) -> str:
        """Return the name of the marker of this import. Raises ``SourceChangedError``."""
        source, count = self._source, self._survey.count
        place = ascii(f"{source.path}#{source.part}" if source.part else source.path)
        name, number = f"{_MARKER}{self._survey.checksum} {place}", 1
        if again:
            while (self._queue.marker(_numbered(name, number)) or 0) >= max(count, 1):
                number += 1
            return _numbered(name, number)
        if name in markers:
            return name
        of_these = f"{_MARKER}{self._survey.checksum} "
        cut_short = (each for each, had in markers.items() if each.startswith(of_these) and had < count)
        if (moved := next(cut_short, None)) is not None:  # the source was moved since
            return moved
        for each in markers:
            checksum, _, other = each.removeprefix(_MARKER).partition(" ") if each.startswith(_MARKER) else ("", "", "")
            if other.startswith(place):  # a number follows for a repeated import
                raise SourceChangedError(
                    source.path,
                    f"the items that were imported from there before, {checksum}",
                    self._survey.checksum,
                    "pass again=True to import all items that it has now",
                )
            if checksum == self._survey.checksum and count:
                raise SourceChangedError(
                    source.path,
                    "items that the queue has not had",
                    f"the {many(count, 'item')} that it has had from {other}",
                    "pass again=True to import them once more, if this is another source",
                )
        return name

    def _copy(self, marker: str, had: int) -> None:
        """Commit the items behind the first ``had`` ones, batch by batch. Raises ``SourceInUseError``."""
        survey, done, digest, most = self._survey, 0, hashlib.sha256(), BATCH_ITEMS
        self._meter.expect(survey.count)
        self._meter.advance(had, 0)
        if had >= survey.count:
            return
        with self._queue.session("import") as session:
            for batch in batches(self._source.items(_ignore)):
                digest.update(_hashed(batch))
                done += len(batch)
                while had < done:
                    part = batch[len(batch) - (done - had) :][:most]
                    session.enqueue_many(part)
                    try:
                        session.flush((marker, had + len(part)), timeout=0.0)
                    except QueueFullError as full:
                        if not full.lasting or len(part) == 1:
                            raise
                        session.rollback()
                        most = len(part) // 2  # so many never fit; fewer may
                        continue
                    self._meter.advance(len(part), BATCH_BYTES)
                    had += len(part)
        if (done, digest.hexdigest()) != (survey.count, survey.checksum):
            raise _changed(self._source, many(done, "item is", "items are") + " imported")
        _need_unchanged(self._source, survey.files, many(done, "item is", "items are") + " imported")

    def _verify(self, had: int, first: int) -> None:
        """Compare the items of the source behind the first ``had`` ones with those on disk from sequence ``first`` on.

        Items of a ``Producer`` may stand between them. Older items are not read: they may be many, and their damage
        is no matter of the import. Raises ``ImportMismatchError``.
        """
        wanted, found = islice(self._source.items(_ignore), had, None), 0
        item = next(wanted, None)
        for stored in self._queue.view().browse(first=first):
            if item is None:
                return
            if stored.data == item:
                found += 1
                item = next(wanted, None)
        if item is not None:
            directory = Path(self._queue.path, self._queue.name or "")
            raise ImportMismatchError(str(directory), self._survey.count - had, found)


def batches(items: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the items in lists of bounded size, none of them empty."""
    batch: list[bytes] = []
    size_bytes = 0
    for item in items:
        batch.append(item)
        size_bytes += len(item)
        if len(batch) == BATCH_ITEMS or size_bytes >= BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def codec_of(source: Source, first: bytes) -> str:
    """Return the name of the codec that reads the items, by their serializer, or as the first item looks."""
    named = {"pickle": "UNSAFE_PICKLE", "json": "JSON", "msgpack": "MessagePack", "cbor2": "cbor2"}
    if source.serializer is None:
        return "BYTES"
    if source.serializer:
        return named[source.serializer]
    if first[:1] == b"\x80" and first[-1:] == b".":
        return "UNSAFE_PICKLE"
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return "BYTES"
    return "JSON"


def _hashed(batch: list[bytes]) -> bytes:
    """Return the bytes of which the checksum is made."""
    return b"".join([b"%d:%b," % (len(item), item) for item in batch])


def _numbered(name: str, number: int) -> str:
    """Return the name of the marker of the first import of a source, or of a repeated one."""
    return name if number == 1 else f"{name} {number}"


def _raise(error: SourceDamagedError) -> None:
    raise error


def _ignore(_: SourceDamagedError) -> None:
    """Skip a part that the first reading has reported."""


def _traits(source: Source) -> list[tuple[int, int, int] | None]:
    """Return what changes with each file of the source: its inode, size and time; None for a missing file."""
    found: list[tuple[int, int, int] | None] = []
    for path in source.files():
        try:
            at = path.stat()
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((at.st_ino, at.st_size, at.st_mtime_ns))
    return found


def _need_unchanged(source: Source, before: list[tuple[int, int, int] | None], outcome: str) -> None:
    if _traits(source) != before:
        raise _changed(source, outcome)


def _changed(source: Source, outcome: str) -> SourceError:
    expected = "files that do not change during the import"
    return SourceInUseError(source.path, expected, f"other files at its end; {outcome}", "stop the owner of the source")

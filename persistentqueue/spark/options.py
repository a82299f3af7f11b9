"""The options of the data source, which are checked before any task runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from persistentqueue.core.items import checked_marker
from persistentqueue.interprocess import LATEST
from persistentqueue.storage.layout import queue_directory

FORMATS = ("value", "arrow", "avro", "json")
"""The formats of items: bytes in the column ``value``, or typed rows."""
_PLACE = ("path", "queue", "networkDisk")
_READING = (*_PLACE, "startingOffsets", "endingOffsets", "minPartitions", "failOnDataLoss", "columns", "rows", "format")
_STREAMING = (
    *_PLACE,
    "subscription",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "columns",
    "format",
)
ITEM_COLUMNS = ("value", "offset", "timestamp")
"""The columns of rows that stand for one item each, in their order."""
BLOCK_COLUMNS = ("offset", "items", "timestamp")
"""The columns of rows that stand for consecutive items of one block."""
_WRITING = (*_PLACE, "txnAppId", "txnVersion", "format")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)(?://([^/]*))?(/.*)?", re.DOTALL)
_SPARKS_OWN = {"checkpointlocation", "queryname"}
"""Options that are meant for Spark itself, which passes them on with the others."""


@dataclass(frozen=True)
class Place:
    """The queue that a read or a write is about."""

    path: str
    """The absolute path, because each task has a working directory of its own. A relative path in the options starts in
    the directory in which the driver's Java was started."""
    queue: str | None
    """The name of the queue in ``path``; None if ``path`` is the queue's own directory."""
    network_disk: bool = False
    """Whether the queue may be on a network file system."""

    @property
    def directory(self) -> str:
        """The directory of the queue."""
        return os.path.join(self.path, self.queue) if self.queue is not None else self.path


@dataclass(frozen=True)
class Reading:
    """The options that all reads share."""

    place: Place
    min_partitions: int
    fail_on_data_loss: bool
    """If true, a read fails when an item that it has to read is gone; if false, it continues without the item."""
    columns: tuple[str, ...]
    """The columns; of typed rows, none stands for all."""
    by_block: bool
    """If true, a row stands for consecutive items of one block; never in a stream."""
    format: str


@dataclass(frozen=True)
class ReadOptions(Reading):
    """The options of a batch read."""

    start: int
    """The first sequence to read."""
    end: int | None
    """The first sequence not to read; None reads up to the end of the queue."""


@dataclass(frozen=True)
class StreamOptions(Reading):
    """The options of a streaming read."""

    subscription: str
    start: int
    """The first sequence of a new query, or ``LATEST``."""
    max_rows: int | None
    """Most items in one micro-batch; None is no limit."""
    max_bytes: int | None
    """Approximate limit of the bytes in one micro-batch; None is no limit."""


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write."""

    place: Place
    marker: tuple[str, int] | None = None
    """The marker that makes a repeated job a single transaction; None if the options name none."""
    format: str = "value"


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a batch read. Raises ``ValueError`` for an unknown option or value."""
    start, end = options.get("startingOffsets", "earliest"), options.get("endingOffsets", "latest")
    return ReadOptions(
        *_reading(options, _READING, "read"),
        0 if start == "earliest" else _number("startingOffsets", start, "earliest or the first offset to read"),
        None if end == "latest" else _number("endingOffsets", end, "latest or the first offset not to read"),
    )


def stream_read_options(options: Mapping[str, str]) -> StreamOptions:
    """Return the options of a streaming read. Raises ``ValueError`` for an unknown option or value."""
    shared = _reading(options, _STREAMING, "readStream")
    subscription, start = options.get("subscription"), options.get("startingOffsets", "earliest")
    if not subscription:
        raise ValueError("readStream of persistentqueue needs a subscription: the name of this consumer")
    starts = {"earliest": 0, "latest": LATEST}
    return StreamOptions(
        *shared,
        subscription,
        starts[start] if start in starts else _number("startingOffsets", start, "earliest, latest or an offset"),
        _most("maxOffsetsPerTrigger", options.get("maxOffsetsPerTrigger")),
        _most("maxBytesPerTrigger", options.get("maxBytesPerTrigger")),
    )


def _reading(
    options: Mapping[str, str], known: tuple[str, ...], what: str
) -> tuple[Place, int, bool, tuple[str, ...], bool, str]:
    """Return the fields of ``Reading``. Raises ``ValueError`` for an unknown option or value."""
    return (
        _place(options, known, what),
        _number("minPartitions", options.get("minPartitions", "0"), "a number"),
        _truth("failOnDataLoss", options.get("failOnDataLoss", "true")),
        chosen_columns(options),
        _is_by_block(options),
        format_of(options),
    )


def place_of(options: Mapping[str, str]) -> Place:
    """Return the queue that the options of a batch read or of a streaming read name. Raises ``ValueError``."""
    return _place(options, (*_READING, *_STREAMING), "read")


def format_of(options: Mapping[str, str]) -> str:
    """Return the format of the items. Raises ``ValueError`` for an unknown one."""
    found = options.get("format", "value")
    if found.lower() not in FORMATS:
        raise ValueError(f"format is {', '.join(FORMATS)}, not {found!r}")
    return found.lower()


def chosen_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns of a read with these options; none if all columns of typed rows are read.

    Raises ``ValueError`` for an unknown or repeated name.
    """
    if format_of(options) != "value":
        return _chosen_of_rows(options)
    known = BLOCK_COLUMNS if _is_by_block(options) else ITEM_COLUMNS
    text = options.get("columns")
    names = known if text is None else tuple(name.strip().lower() for name in text.split(","))
    if not set(names) <= set(known) or len(set(names)) < len(names):
        raise ValueError(f"columns is a list of some of {', '.join(known)}, with commas, not {text!r}")
    return names


def _chosen_of_rows(options: Mapping[str, str]) -> tuple[str, ...]:
    if _is_by_block(options):
        raise ValueError("rows=blocks counts items, and has no columns of typed rows: leave the option format out")
    text = options.get("columns")
    names = () if text is None else tuple(name.strip() for name in text.split(","))
    if len(set(names)) < len(names) or "" in names:
        raise ValueError(f"columns is a list of some of the columns of the rows, with commas, not {text!r}")
    return names


def _is_by_block(options: Mapping[str, str]) -> bool:
    rows = options.get("rows", "items")
    if rows not in {"items", "blocks"}:
        raise ValueError(f"rows is items or blocks, not {rows!r}")
    return rows == "blocks"


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Return the options of a batch write. Raises ``ValueError`` for an unknown option or value."""
    place = _place(options, _WRITING, "write")
    chosen = format_of(options)
    app, version = options.get("txnAppId"), options.get("txnVersion")
    if app is None and version is None:
        return WriteOptions(place, None, chosen)
    if not app or version is None:
        raise ValueError("txnAppId and txnVersion belong together: give the writer's name and the number of its write")
    number = _number("txnVersion", version, "a number that grows from write to write")
    return WriteOptions(place, checked_marker((app, number), "txnAppId and txnVersion"), chosen)


def stream_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Return the options of a streaming write, which needs no marker, because Spark numbers its batches.

    Raises ``ValueError`` for an unknown option or value.
    """
    return WriteOptions(_place(options, (*_PLACE, "format"), "writeStream"), None, format_of(options))


def _place(options: Mapping[str, str], known: tuple[str, ...], what: str) -> Place:
    """Return the queue that the options name.

    Raises ``ValueError`` without a path, and for an unknown option, and ``InvalidNameError``.
    """
    unknown = sorted({name.lower() for name in options} - {name.lower() for name in known} - _SPARKS_OWN)
    if unknown:
        raise ValueError(f"{what} of persistentqueue has no option {', '.join(unknown)}: it has {', '.join(known)}")
    path = options.get("path")
    if not path:
        raise ValueError(
            f"{what} of persistentqueue needs a path: the queue's directory, or its parent with the option queue. A "
            "table of a catalog does not pass its path: use load(path), or CREATE TEMPORARY VIEW with the option path"
        )
    accepts = _truth("networkDisk", options.get("networkDisk", "false"))
    place = Place(os.path.abspath(_local(path)), options.get("queue"), accepts)
    queue_directory(place.path, place.queue)  # a name such as ../q would lead to a queue elsewhere
    return place


def local_path(address: str) -> str | None:
    """Return the path in an address with the scheme ``file``, and a plain path unchanged; None for another address.

    ``file:/x``, ``file:///x`` and ``file://localhost/x`` stand for ``/x``, as for Spark.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return address
    scheme, host, path = found.groups()
    return path if scheme.lower() == "file" and host in {None, "", "localhost"} else None


def _local(address: str) -> str:
    """Return the path in a local address. Raises ``ValueError`` for another scheme, and for another host."""
    path = local_path(address)
    if not path:
        raise ValueError(
            f"a queue must be on a local file system, or a mounted one: expected a path, found {address!r}"
        )
    return path


def _number(name: str, text: str, meaning: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise ValueError(f"{name} is {meaning}, not {text!r}")


def _most(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    most = _number(name, text, "a number above 0")
    if not most:
        raise ValueError(f"{name} is a number above 0, not 0")
    return most


def _truth(name: str, text: str) -> bool:
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    raise ValueError(f"{name} is true or false, not {text!r}")

"""The options of the data source: what users may say, checked before any task runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from persistentqueue.interprocess import LATEST

_PLACE = ("path", "queue")
_READING = (*_PLACE, "startingOffsets", "endingOffsets", "minPartitions", "failOnDataLoss")
_STREAMING = (
    *_PLACE,
    "subscription",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
)
_WRITING = (*_PLACE, "txnAppId", "txnVersion")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)(?://([^/]*))?(/.*)?", re.DOTALL)
_SPARKS_OWN = {"checkpointlocation", "queryname"}
"""What Spark itself is told by options, which it hands over with the others."""


@dataclass(frozen=True)
class Place:
    """Which queue: as for ``PersistentQueue``, but the path is absolute, since tasks have a directory of their own; a
    relative one began in that of Spark's driver, which is where its Java was started."""

    path: str
    queue: str | None

    @property
    def directory(self) -> str:
        """The directory of the queue."""
        return os.path.join(self.path, self.queue) if self.queue is not None else self.path


@dataclass(frozen=True)
class ReadOptions:
    """What a batch read is told. The offsets are sequences; ``None`` is all there is."""

    place: Place
    start: int = 0
    end: int | None = None
    min_partitions: int = 1
    fail_on_data_loss: bool = True


@dataclass(frozen=True)
class StreamOptions:
    """What a streaming read is told; ``start`` is a sequence, or ``LATEST``, and ``None`` no limit."""

    place: Place
    subscription: str
    start: int = 0
    max_rows: int | None = None
    max_bytes: int | None = None
    min_partitions: int = 1
    fail_on_data_loss: bool = True


@dataclass(frozen=True)
class WriteOptions:
    """What a write is told."""

    place: Place
    marker: tuple[str, int] | None = None


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a batch read. Raises ``ValueError``."""
    place = _place(options, _READING, "read")
    start, end = options.get("startingOffsets", "earliest"), options.get("endingOffsets", "latest")
    return ReadOptions(
        place,
        0 if start == "earliest" else _number("startingOffsets", start, "earliest or an offset, the first to be read"),
        None if end == "latest" else _number("endingOffsets", end, "latest or an offset, the first not to be read"),
        max(_number("minPartitions", options.get("minPartitions", "1"), "a number"), 1),
        _truth("failOnDataLoss", options.get("failOnDataLoss", "true")),
    )


def stream_read_options(options: Mapping[str, str]) -> StreamOptions:
    """The options of a streaming read. Raises ``ValueError``."""
    place = _place(options, _STREAMING, "readStream")
    subscription, start = options.get("subscription"), options.get("startingOffsets", "earliest")
    if not subscription:
        raise ValueError("readStream of persistentqueue needs a subscription: the name of this consumer of the queue")
    starts = {"earliest": 0, "latest": LATEST}
    return StreamOptions(
        place,
        subscription,
        starts[start] if start in starts else _number("startingOffsets", start, "earliest, latest or an offset"),
        _most("maxOffsetsPerTrigger", options.get("maxOffsetsPerTrigger")),
        _most("maxBytesPerTrigger", options.get("maxBytesPerTrigger")),
        max(_number("minPartitions", options.get("minPartitions", "1"), "a number"), 1),
        _truth("failOnDataLoss", options.get("failOnDataLoss", "true")),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a batch write. Raises ``ValueError``."""
    place = _place(options, _WRITING, "write")
    app, version = options.get("txnAppId"), options.get("txnVersion")
    if app is None and version is None:
        return WriteOptions(place)
    if not app or version is None:
        raise ValueError("txnAppId and txnVersion belong together: who writes, and which of his writes it is")
    return WriteOptions(place, (app, _number("txnVersion", version, "a number that grows from write to write")))


def stream_write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a streaming write, whose transactions Spark numbers itself. Raises ``ValueError``."""
    return WriteOptions(_place(options, _PLACE, "writeStream"))


def _place(options: Mapping[str, str], known: tuple[str, ...], what: str) -> Place:
    """Which queue. Raises ``ValueError`` where that is not said, and for what else is said and not known."""
    unknown = sorted({name.lower() for name in options} - {name.lower() for name in known} - _SPARKS_OWN)
    if unknown:
        raise ValueError(f"{what} of persistentqueue has no option {', '.join(unknown)}: it has {', '.join(known)}")
    path = options.get("path")
    if not path:
        raise ValueError(
            f"{what} of persistentqueue needs a path: that of the queue, or of the queues, and which queue"
        )
    return Place(os.path.abspath(_local(path)), options.get("queue"))


def _local(path: str) -> str:
    """The path in a local address, or what is none."""
    address = _ADDRESS.fullmatch(path)
    if address is None:
        return path
    scheme, host, local = address.groups()
    if scheme.lower() != "file" or host not in {None, "", "localhost"} or not local:
        raise ValueError(f"a queue lies on a local file system, or one that is mounted, under a path, not at {path!r}")
    return str(local)


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

"""Queues of persist-queue and queuelib, made by these packages: the sources of imports."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import queuelib
from persistqueue import (
    FILOSQLiteAckQueue,
    FILOSQLiteQueue,
    PriorityQueue,
    Queue,
    SQLiteAckQueue,
    SQLiteQueue,
    UniqueAckQ,
    UniqueQ,
)
from persistqueue.serializers import cbor2 as cbor2_serializer
from persistqueue.serializers import json as json_serializer
from persistqueue.serializers import pickle as pickle_serializer
from queuelib.queue import FifoSQLiteQueue, LifoSQLiteQueue


class Kind(NamedTuple):
    """A kind of queue of another package."""

    name: str
    origin: Any
    make: Callable[[Path, Iterable[Any]], None]
    """``make(path, items)``: make the queue with these items, and close it."""
    newest_first: bool = False
    codec: str = "UNSAFE_PICKLE"
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """Arguments of ``import_queue`` that the kind needs."""
    needs: str = ""
    """Optional package that the kind needs."""

    @property
    def is_missing(self) -> bool:
        """True if the package that the kind needs is not installed."""
        return bool(self.needs) and find_spec(self.needs) is None


def make_chunks(serializer: Any, path: Path, items: Iterable[Any]) -> None:
    """Make a ``Queue`` of persist-queue. It saves its positions once, which is its slowest step."""
    queue = Queue(str(path), chunksize=10_000, serializer=serializer)
    with patch.object(queue, "_saveinfo"):
        for item in items:
            queue.put(item)
    queue._saveinfo()
    close_chunks(queue)


def close_chunks(queue: Any) -> None:
    """Close the files of a ``Queue`` of persist-queue, which has no method for it."""
    queue.headf.close()
    queue.tailf.close()


def make_table(kind: Any, path: Path, items: Iterable[Any], **options: Any) -> None:
    """Make a queue of persist-queue in SQLite: by its own statements, in one transaction."""
    queue = kind(str(path), **options)
    width = queue._sql_insert.count("?") - 1
    more = (1.5,) if width == 1 else (1.5, 0)
    with queue._putter as connection:
        connection.executemany(queue._sql_insert, ((queue._serializer.dumps(item), *more) for item in items))
    queue.close()


def make_msgpack(path: Path, items: Iterable[Any]) -> None:
    """Make a ``Queue`` of persist-queue with MessagePack."""
    from persistqueue.serializers import msgpack

    make_chunks(msgpack, path, items)


def make_async_table(name: str, path: Path, items: Iterable[Any]) -> None:
    """Make an asynchronous queue of persist-queue in SQLite."""
    from persistqueue import async_sqlqueue

    async def fill() -> None:
        async with getattr(async_sqlqueue, name)(str(path), auto_commit=False) as queue:
            for item in items:
                await queue.put(item)
            await queue.task_done()

    asyncio.run(fill())


def make_async_chunks(path: Path, items: Iterable[Any]) -> None:
    """Make an ``AsyncQueue`` of persist-queue."""
    from persistqueue import async_queue

    kind: Any = async_queue.AsyncQueue

    async def fill() -> None:
        async with kind(str(path)) as queue:
            for item in items:
                await queue.put(item)

    asyncio.run(fill())


def make_queuelib(kind: Any, path: Path, items: Iterable[bytes], **options: Any) -> None:
    """Make a disk queue of queuelib."""
    queue = kind(str(path), **options)
    for item in items:
        queue.push(item)
    queue.close()


def make_queuelib_table(kind: Any, path: Path, items: Iterable[bytes]) -> None:
    """Make a queue of queuelib in SQLite: by its own statement, in one transaction."""
    queue = kind(str(path))
    with queue._db as connection:
        connection.executemany(queue._sql_push, ((item,) for item in items))
    queue.close()


def make_priorities(path: Path, items: Iterable[bytes]) -> None:
    """Make a ``PriorityQueue`` of queuelib whose items are popped in this order: its three priorities in turn."""
    path.mkdir()
    factory: Any = lambda priority: queuelib.FifoDiskQueue(str(path / str(priority)))  # noqa: E731
    queue = queuelib.PriorityQueue(factory)
    all_items = list(items)
    third = len(all_items) // 3 + 1
    for at, item in enumerate(all_items):
        queue.push(item, (-10, 0, 5)[at // third])
    queue.close()


def _persist(name: str, kind: Any, **options: Any) -> Kind:
    return Kind(name, "persist-queue", lambda path, items: make_table(kind, path, items), **options)


def _chunked(name: str, serializer: Any, codec: str) -> Kind:
    return Kind(name, "persist-queue", lambda path, items: make_chunks(serializer, path, items), codec=codec)


def _asynchronous(name: str, **options: Any) -> Kind:
    def make(path: Path, items: Iterable[Any]) -> None:
        make_async_table(name, path, items)

    return Kind(name, "persist-queue", make, needs="aiosqlite", **options)


def _lib(name: str, make: Callable[..., None], kind: Any, **options: Any) -> Kind:
    return Kind(name, "queuelib", lambda path, items: make(kind, path, items), codec="BYTES", **options)


KINDS = [
    _chunked("Queue-pickle", pickle_serializer, "UNSAFE_PICKLE"),
    _chunked("Queue-json", json_serializer, "JSON"),
    _chunked("Queue-cbor2", cbor2_serializer, "cbor2"),
    Kind("Queue-msgpack", "persist-queue", make_msgpack, codec="MessagePack", needs="msgpack"),
    _persist("SQLiteQueue", SQLiteQueue),
    _persist("FILOSQLiteQueue", FILOSQLiteQueue, newest_first=True),
    Kind(
        "UniqueQ",
        "persist-queue",
        lambda path, items: make_table(UniqueQ, path, items, serializer=json_serializer),
        codec="JSON",
    ),
    _persist("PriorityQueue", PriorityQueue),
    _persist("SQLiteAckQueue", SQLiteAckQueue),
    _persist("FILOSQLiteAckQueue", FILOSQLiteAckQueue, newest_first=True),
    Kind(
        "UniqueAckQ",
        "persist-queue",
        lambda path, items: make_table(UniqueAckQ, path, items, serializer=json_serializer),
        codec="JSON",
    ),
    Kind("AsyncQueue", "persist-queue", make_async_chunks, needs="aiofiles"),
    _asynchronous("AsyncSQLiteQueue"),
    _asynchronous("AsyncFILOSQLiteQueue", newest_first=True),
    _lib("FifoDiskQueue", make_queuelib, queuelib.FifoDiskQueue),
    _lib("LifoDiskQueue", make_queuelib, queuelib.LifoDiskQueue, newest_first=True),
    _lib("FifoSQLiteQueue", make_queuelib_table, FifoSQLiteQueue),
    _lib(
        "LifoSQLiteQueue",
        make_queuelib_table,
        LifoSQLiteQueue,
        newest_first=True,
        options={"newest_first": True},
    ),
    Kind("PriorityQueue-queuelib", "queuelib", make_priorities, codec="BYTES"),
]


def traits_of(path: Path) -> dict[str, tuple[str, int]]:
    """Return the hash and the time of each file at or below a path."""
    files = [each for each in [path, *path.parent.glob(f"{path.name}-*"), *path.rglob("*")] if each.is_file()]
    return {
        str(each): (hashlib.sha256(each.read_bytes()).hexdigest(), each.stat().st_mtime_ns) for each in sorted(files)
    }

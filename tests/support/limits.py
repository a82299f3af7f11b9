"""Helpers of the tests of limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from persistentqueue import PersistentQueue, Session
from persistentqueue.engine.context import Settings
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Transaction
from persistentqueue.recovery.opening import open_store
from persistentqueue.system.disk import Disk

from .queues import IN_CACHE, bytes_of, wait_for

SECONDS = 30.0  # a limit for work that should take milliseconds
KIB, MIB = 1024, 1024 * 1024


def transaction(*items: bytes, marker: tuple[str, int] | None = None) -> Transaction:
    """Return a transaction that enqueues these items."""
    result = Transaction()
    result.marker = marker
    result.add(items)
    return result


def take(store: Store, count: int) -> Transaction:
    """Return a transaction that dequeues ``count`` items."""
    result = Transaction(store.reader.ready)
    result.runs = store.reader.take(count)[0]
    return result


def content(store: Store) -> list[bytes]:
    """Return the ready items."""
    return [item for _, batch in store.reader.browse() for item in batch]


@contextmanager
def opened(disk: Disk = IN_CACHE, directory: str = "/queues/q", **settings: Any) -> Iterator[Store]:
    """Yield a store without threads, and close it."""
    store = open_store(disk, directory, Settings(**settings), create=True)
    try:
        yield store
    finally:
        store.close()


def files_bytes(directory: Path) -> int:
    """Return the bytes of all files of a queue, without the lock file."""
    return bytes_of(path for part in ("log", "data", "pool") for path in (directory / part).iterdir())


def waits(queue: PersistentQueue, count: int = 1) -> None:
    """Wait until ``count`` flushes wait for room."""
    wait_for(lambda: queue.stats().waiting == count)


def spilling(queue: PersistentQueue) -> Session:
    """Return a session that keeps little in memory."""
    session = queue.session()
    session._spill_bytes = 2000
    return session


def flush(queue: PersistentQueue, *items: bytes, timeout: float | None = None) -> None:
    """Enqueue and flush the items."""
    with queue.session() as session:
        session.enqueue_many(items)
        session.flush(timeout=timeout)


def consume(queue: PersistentQueue, count: int = 1) -> list[bytes]:
    """Dequeue ``count`` items, and flush."""
    with queue.transaction() as session:
        return session.dequeue_many(count)

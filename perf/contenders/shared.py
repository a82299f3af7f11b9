"""The contenders that several processes share: each process joins one queue and gets a ``Hand``. Each flush is durable.

- ``OURS``: ``persistentqueue.connect``. The first process to join becomes the owner, and works too.
- ``OURS_SERVED``: ``persistentqueue.connect`` beside ``python -m persistentqueue serve``, an owner that only serves.
- ``OURS_AHEAD``: ``OURS_SERVED``, and each process connects with ``prefetch=True``.
- ``LOCAL``: one session of a ``PersistentQueue``, for one process. It is what the others are compared with.
- ``SQLITE``: one table, WAL, ``synchronous=FULL``. A take is ``BEGIN IMMEDIATE``, ``SELECT``, ``DELETE``, ``COMMIT``. A
  process that finds the table locked waits in SQLite's busy time-out: it sleeps for up to a tenth of a second. The
  process that has just committed asks again at once, so few of many processes work.
- ``LITEQUEUE``: a ``LiteQueue`` with ``synchronous=FULL``. ``pop`` and ``done`` have a transaction each. It
  sorts all queued items for each item that it takes, so its rate out falls with the number of items.
- ``HUEY``: its ``SqliteStorage`` with ``fsync=True``. A take deletes the item before it returns it.
- ``REDIS``: ``RPUSH``, ``LPOP`` and ``BLPOP``, ``appendfsync always``. A take deletes the item before it returns it.
- ``BEANSTALKD``: ``-b`` and ``-f0``. A take reserves and deletes.
- ``FLOOR``: a server in Python that only makes durable what it receives (see ``floor``).
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from persistentqueue import PersistentQueue, SessionLostError, View, connect
from persistentqueue.workers import SharedQueue

from . import sqlite
from .floor import Client, floor_server
from .peers import beanstalkd_server, missing, redis_server

BUSY_SECONDS = 60.0
POLL_SECONDS = 0.001
"""Pause of a consumer that can only look again, since its library does not wait for items."""
_START_SECONDS = 10.0
_SERVE = ("-m", "persistentqueue", "serve")


def _cannot() -> NoReturn:
    raise NotImplementedError("this contender cannot hold an item")


class Hand(NamedTuple):
    """The calls of one process. ``put``, ``take`` and ``consume`` are a flush each.

    ``take`` returns as many items as asked for, or fewer if there are no more. ``hold`` waits for an item and returns
    it before it is consumed. ``consume`` consumes that item.
    """

    put: Callable[[Sequence[bytes]], object]
    take: Callable[[int], Sequence[bytes]]
    hold: Callable[[], bytes] = _cannot
    consume: Callable[[], object] = _cannot


class Place(NamedTuple):
    """The address at which processes join, and the process id of a server of its own, if there is one."""

    address: str
    server: int | None = None


class Shared(NamedTuple):
    """A contender that several processes share.

    ``serve`` prepares an existing directory and runs a server, if the contender has one. Each process calls ``join``
    with the address. Both are functions of a module, because they are sent to other processes.
    """

    name: str
    serve: Callable[[Path], AbstractContextManager[Place]]
    join: Callable[[str], AbstractContextManager[Hand]]
    needs: tuple[str, ...] = ()
    is_apart: bool = False
    """Whether the owner of the queue is a process of its own, which only serves."""

    def reason(self) -> str:
        """Return why this contender cannot be measured here. The text is empty if it can be."""
        return ", ".join(f"{needed} is not installed" for needed in missing(self.needs))


# --- the queue -------------------------------------------------------------------------------------------------------


class _Worker:
    """A session that is opened again when the owner was lost, and the items that it held with it."""

    def __init__(self, queue: PersistentQueue | SharedQueue) -> None:
        self._queue = queue
        self.session = queue.session()

    def put(self, items: Sequence[bytes]) -> None:
        if len(items) == 1:
            self.session.enqueue(items[0])
        else:
            self.session.enqueue_many(items)
        self.session.flush()

    def take(self, count: int) -> Sequence[bytes]:
        if count > 1:
            taken = self.session.dequeue_many(count)
        else:
            item = self.session.dequeue()
            taken = [] if item is None else [item]
        if taken:
            self.session.flush()
        return taken

    def hold(self) -> bytes:
        while True:
            try:
                item = self.session.dequeue(timeout=None)
            except SessionLostError:
                self.session.close()
                self.session = self._queue.session()
                continue
            assert item is not None
            return item

    def consume(self) -> None:
        self.session.flush()

    def hand(self) -> Hand:
        return Hand(self.put, self.take, self.hold, self.consume)


@contextmanager
def _created(directory: Path) -> Iterator[Place]:
    """Create the queue, and leave it without an owner."""
    PersistentQueue(directory).close()
    yield Place(str(directory))


@contextmanager
def _served(directory: Path) -> Iterator[Place]:
    """Run an owner that only serves, in a process of its own, and yield when it owns the queue."""
    PersistentQueue(directory).close()
    process = subprocess.Popen([sys.executable, *_SERVE, str(directory)], stdout=subprocess.DEVNULL)
    try:
        deadline, view = time.monotonic() + _START_SECONDS, View(directory)
        while not view.look().is_owned:
            if time.monotonic() > deadline or process.poll() is not None:
                raise TimeoutError(f"{' '.join(_SERVE)} does not own {directory} after {_START_SECONDS:g} s")
            time.sleep(0.01)
        yield Place(str(directory), process.pid)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        process.wait()


@contextmanager
def connected(address: str, prefetch: bool = False) -> Iterator[Hand]:
    """Connect to the queue, or own it if no process owns it."""
    with connect(address, prefetch=prefetch) as queue:
        worker = _Worker(queue)
        try:
            yield worker.hand()
        finally:
            worker.session.close()


@contextmanager
def _local(address: str) -> Iterator[Hand]:
    """Open the queue in this process, which serves no other one."""
    with PersistentQueue(address) as queue:
        worker = _Worker(queue)
        try:
            yield worker.hand()
        finally:
            worker.session.close()


# --- files -----------------------------------------------------------------------------------------------------------


@contextmanager
def _sqlite_file(directory: Path) -> Iterator[Place]:
    with sqlite("FULL")(directory, 1):
        yield Place(str(directory / "0.sqlite"))


@contextmanager
def _sqlite(address: str) -> Iterator[Hand]:
    """Connect to the table. A process that holds an item has the transaction open that deletes it."""
    connection = sqlite3.connect(address, isolation_level=None, timeout=BUSY_SECONDS)
    connection.execute("PRAGMA synchronous=FULL")

    def put(items: Sequence[bytes]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO queue (item) VALUES (?)", [(item,) for item in items])
        connection.execute("COMMIT")

    def begin(count: int) -> Sequence[bytes]:
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute("SELECT id, item FROM queue ORDER BY id LIMIT ?", (count,)).fetchall()
        if rows:
            connection.execute("DELETE FROM queue WHERE id <= ?", (rows[-1][0],))
        return [item for _, item in rows]

    def commit() -> None:
        connection.execute("COMMIT")

    def take(count: int) -> Sequence[bytes]:
        taken = begin(count)
        commit()
        return taken

    def hold() -> bytes:
        while True:
            if connection.execute("SELECT id FROM queue LIMIT 1").fetchone():  # without the lock for writing
                for item in begin(1):
                    return item
                commit()
            time.sleep(POLL_SECONDS)

    with closing(connection):
        yield Hand(put, take, hold, commit)


@contextmanager
def _litequeue_file(directory: Path) -> Iterator[Place]:
    with _litequeue(str(directory / "queue.sqlite")):
        yield Place(str(directory / "queue.sqlite"))


@contextmanager
def _litequeue(address: str) -> Iterator[Hand]:
    import litequeue as library

    queue = library.LiteQueue(address, timeout=BUSY_SECONDS)
    queue.conn.execute("PRAGMA synchronous=FULL")

    def put(items: Sequence[bytes]) -> None:
        with queue.transaction(mode="IMMEDIATE"):
            for item in items:
                queue.put(item)

    def take(count: int) -> Sequence[bytes]:
        taken: list[bytes] = []
        while len(taken) < count and (message := queue.pop()) is not None:
            queue.done(message.message_id)
            taken.append(message.data)
        return taken

    with closing(queue):
        yield Hand(put, take)


@contextmanager
def _huey_file(directory: Path) -> Iterator[Place]:
    with _huey(str(directory / "huey.db")):
        yield Place(str(directory / "huey.db"))


@contextmanager
def _huey(address: str) -> Iterator[Hand]:
    from huey.storage import SqliteStorage

    storage = SqliteStorage(filename=address, strict_fifo=True, fsync=True, timeout=BUSY_SECONDS)
    with closing(storage):
        yield _one_by_one(storage.enqueue, storage.dequeue)


def _one_by_one(put: Callable[[bytes], object], take: Callable[[], bytes | None]) -> Hand:
    """Return a hand that makes one call for each item. ``take`` returns None if there is no item."""

    def put_all(items: Sequence[bytes]) -> None:
        for item in items:
            put(item)

    def take_all(count: int) -> Sequence[bytes]:
        taken: list[bytes] = []
        while len(taken) < count and (item := take()) is not None:
            taken.append(item)
        return taken

    return Hand(put_all, take_all)


# --- servers ---------------------------------------------------------------------------------------------------------


@contextmanager
def _redis_place(directory: Path) -> Iterator[Place]:
    with redis_server(directory) as address:
        yield Place(address)


@contextmanager
def _redis(address: str) -> Iterator[Hand]:
    import redis as library

    with library.Redis(unix_socket_path=address) as connection:

        def put(items: Sequence[bytes]) -> None:
            connection.rpush("queue", *items)

        def take(count: int) -> Sequence[bytes]:
            taken: list[bytes] | None = connection.lpop("queue", count)
            return taken or []

        def hold() -> bytes:
            item: bytes = connection.blpop("queue")[1]
            return item

        yield Hand(put, take, hold, lambda: None)


@contextmanager
def _beanstalkd_place(directory: Path) -> Iterator[Place]:
    with beanstalkd_server(directory) as address:
        yield Place(address)


@contextmanager
def _beanstalkd(address: str) -> Iterator[Hand]:
    import greenstalk as library

    client = library.Client(address, encoding=None)
    held: list[Any] = []

    def take() -> bytes | None:
        try:
            job = client.reserve(timeout=0)
        except library.TimedOutError:
            return None
        client.delete(job)
        body: bytes = job.body
        return body

    def hold() -> bytes:
        held.append(client.reserve())
        body: bytes = held[-1].body
        return body

    with closing(client):
        yield _one_by_one(client.put, take)._replace(hold=hold, consume=lambda: client.delete(held.pop()))


@contextmanager
def _floor_place(directory: Path) -> Iterator[Place]:
    with floor_server(directory) as (address, server):
        yield Place(address, server)


@contextmanager
def _floor(address: str) -> Iterator[Hand]:
    with closing(Client(address)) as client:
        yield Hand(client.put, client.take)


OURS = Shared("ours", _created, connected)
OURS_SERVED = Shared("ours, serve", _served, connected, is_apart=True)
OURS_AHEAD = Shared("ours, prefetch", _served, partial(connected, prefetch=True), is_apart=True)
LOCAL = Shared("one local session", _created, _local)
SQLITE = Shared("SQLite FULL", _sqlite_file, _sqlite)
LITEQUEUE = Shared("litequeue FULL", _litequeue_file, _litequeue, ("litequeue",))
HUEY = Shared("huey", _huey_file, _huey, ("huey",))
REDIS = Shared("Redis", _redis_place, _redis, ("redis", "redis-server"))
BEANSTALKD = Shared("beanstalkd", _beanstalkd_place, _beanstalkd, ("greenstalk", "beanstalkd"))
FLOOR = Shared("the floor", _floor_place, _floor)

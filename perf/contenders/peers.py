"""The other libraries, used as their documentation says, with their default settings unless this text names others.

A library that is not installed is left out, and the table says so. ``pip install '.[peers]'`` installs them, except
Redis and beanstalkd, which are programs of the system. A library without transactions over many items gets one call
for each item.

The number of syncs was counted, not taken from the documentation. ``counts`` counts again in each run.

- ``LMDB``: one write transaction per flush, ``sync=True``. The keys are numbers.
- ``persist-queue``: ``SQLiteQueue`` commits each call. ``SQLiteAckQueue`` also commits each acknowledgement. The file
  ``Queue`` syncs a file when it is full. With ``autosave`` it does the same, and each ``get`` also writes the read
  position, without a sync. The acknowledgement, or ``task_done``, is part of a take.
- ``queuelib``: ``FifoSQLiteQueue`` uses a rollback journal. ``FifoDiskQueue`` never syncs.
- ``litequeue``: WAL and ``synchronous=NORMAL``. The calls of ``put`` share a transaction; each ``pop`` has its own.
  ``done`` is part of a take.
- ``diskcache``: ``Deque``, WAL and ``synchronous=NORMAL``. A flush is a transaction.
- ``huey``: its ``SqliteStorage``.
- ``Redis``: ``appendonly yes``, ``appendfsync always``, a local socket. ``RPUSH`` and ``LPOP`` of many items.
- ``beanstalkd``: ``-b`` and ``-f0``, a local socket. A take reserves and deletes.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

from . import Contender, Durability, Lane, Opener

_MAP_BYTES = 1 << 36
_START_SECONDS = 10.0
_JOB_BYTES = 2 * 1024 * 1024


def is_there(contender: Contender) -> bool:
    """Return whether all modules and programs that the contender needs are installed."""
    return not missing(contender.needs)


def missing(needs: Sequence[str]) -> list[str]:
    """Return those of the needed modules and programs that are not installed."""
    return [needed for needed in needs if not (shutil.which(needed) or _is_module(needed))]


def _one_by_one(put: Callable[[bytes], object], take: Callable[[], bytes]) -> Lane:
    """Return a lane that makes one call for each item."""

    def put_all(items: Sequence[bytes]) -> None:
        for item in items:
            put(item)

    return Lane(put_all, lambda count: [take() for _ in range(count)])


def _is_module(name: str) -> bool:
    return name.isidentifier() and importlib.util.find_spec(name) is not None


# --- in the process --------------------------------------------------------------------------------------------------


@contextmanager
def lmdb(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
    """Open one environment. A writer waits for the previous writer."""
    import lmdb as library

    with library.open(str(directory), map_size=_MAP_BYTES) as environment:
        with environment.begin() as reading:
            cursor = reading.cursor()
            last = int.from_bytes(cursor.key(), "big") if cursor.last() else 0

        def put(items: Sequence[bytes]) -> None:
            nonlocal last
            with environment.begin(write=True) as transaction:
                for item in items:
                    last += 1
                    transaction.put(last.to_bytes(8, "big"), item, append=True)

        def take(count: int) -> Sequence[bytes]:
            taken = []
            with environment.begin(write=True) as transaction:
                cursor = transaction.cursor()
                cursor.first()
                for _ in range(count):
                    taken.append(cursor.value())
                    cursor.delete()
            return taken

        yield [Lane(put, take)] * threads


def persist_queue(kind: str, **settings: Any) -> Opener:
    """Return an opener of persist-queue's ``SQLiteQueue``, ``SQLiteAckQueue`` or ``Queue``."""
    settings = settings if kind == "Queue" else {"multithreading": True, "auto_commit": True}

    @contextmanager
    def opened(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
        import persistqueue as library

        queue = getattr(library, kind)(str(directory / "queue"), **settings)

        def take() -> bytes:
            item: bytes = queue.get()
            if kind == "SQLiteAckQueue":
                queue.ack(item)
            elif kind == "Queue":
                queue.task_done()
            return item

        try:
            yield [_one_by_one(queue.put, take)] * threads
        finally:
            if kind == "Queue":
                queue.headf.close()
                queue.tailf.close()
            else:
                queue.close()

    return opened


def queuelib(kind: str) -> Opener:
    """Return an opener of queuelib's ``FifoSQLiteQueue`` or ``FifoDiskQueue``, for one thread."""

    @contextmanager
    def opened(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
        from queuelib import queue as library

        with closing(getattr(library, kind)(str(directory / "queue"))) as queue:
            yield [_one_by_one(queue.push, queue.pop)] * threads

    return opened


@contextmanager
def litequeue(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
    """Open a ``LiteQueue``, for one thread."""
    import litequeue as library

    queue = library.LiteQueue(str(directory / "queue.sqlite"))

    def put(items: Sequence[bytes]) -> None:
        if len(items) == 1:
            queue.put(items[0])
            return
        with queue.transaction():
            for item in items:
                queue.put(item)

    def take(count: int) -> Sequence[bytes]:
        taken = []
        for _ in range(count):
            message = queue.pop()
            queue.done(message.message_id)
            taken.append(message.data)
        return taken

    with closing(queue):
        yield [Lane(put, take)] * threads


@contextmanager
def diskcache(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
    """Open a ``Deque``."""
    import diskcache as library

    queue = library.Deque(directory=str(directory / "queue"))

    def put(items: Sequence[bytes]) -> None:
        with queue.transact():
            queue.extend(items)

    def take(count: int) -> Sequence[bytes]:
        with queue.transact():
            return [queue.popleft() for _ in range(count)]

    with closing(queue.cache):
        yield [Lane(put, take)] * threads


@contextmanager
def huey(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
    """Open the storage in which huey, a task queue, keeps its tasks."""
    from huey.storage import SqliteStorage

    storage = SqliteStorage(filename=str(directory / "huey.db"), strict_fifo=True)
    with closing(storage):
        yield [_one_by_one(storage.enqueue, storage.dequeue)] * threads


# --- over a socket ---------------------------------------------------------------------------------------------------


@contextmanager
def _server(command: Callable[[str], Sequence[str]]) -> Iterator[str]:
    """Start a server on a local socket, and yield the address of the socket when the server listens."""
    with (
        tempfile.TemporaryDirectory() as directory
    ):  # a temporary directory: the name of a socket has at most 107 bytes
        address = os.path.join(directory, "socket")
        process = subprocess.Popen(command(address), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + _START_SECONDS
            while True:
                try:
                    with socket.socket(socket.AF_UNIX) as probe:
                        probe.connect(address)
                    break
                except OSError:
                    if time.monotonic() > deadline or process.poll() is not None:
                        raise
                    time.sleep(0.01)
            yield address
        finally:
            process.terminate()
            process.wait()


def redis_server(directory: Path) -> AbstractContextManager[str]:
    """Start a Redis server that syncs each command, and yield its address."""

    def command(address: str) -> Sequence[str]:
        safe = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        return ["redis-server", "--port", "0", "--unixsocket", address, "--dir", str(directory.absolute()), *safe]

    return _server(command)


@contextmanager
def redis(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
    """Open a list of a Redis server."""
    import redis as library

    with redis_server(directory) as address, library.Redis(unix_socket_path=address) as connection:

        def put(items: Sequence[bytes]) -> None:
            connection.rpush("queue", *items)

        def take(count: int) -> Sequence[bytes]:
            taken: list[bytes] = connection.lpop("queue", count)
            return taken

        yield [Lane(put, take)] * threads


def beanstalkd_server(directory: Path) -> AbstractContextManager[str]:
    """Start a beanstalkd server that syncs each command, and yield its address."""

    def command(address: str) -> Sequence[str]:
        return ["beanstalkd", "-b", str(directory), "-f0", "-l", f"unix:{address}", "-z", str(_JOB_BYTES)]

    return _server(command)


@contextmanager
def beanstalkd(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
    """Open a tube of a beanstalkd server, with a client for each thread."""
    import greenstalk as library

    def lane(client: Any) -> Lane:
        def take() -> bytes:
            job = client.reserve()
            client.delete(job)
            body: bytes = job.body
            return body

        return _one_by_one(client.put, take)

    with beanstalkd_server(directory) as address:
        clients = [library.Client(address, encoding=None) for _ in range(threads)]
        try:
            yield [lane(client) for client in clients]
        finally:
            for client in clients:
                client.close()


LMDB = Contender("LMDB", Durability.EACH, lmdb, ("lmdb",))
REDIS = Contender("Redis", Durability.EACH, redis, ("redis", "redis-server"))
BEANSTALKD = Contender("beanstalkd", Durability.EACH, beanstalkd, ("greenstalk", "beanstalkd"))
HUEY = Contender("huey", Durability.EACH, huey, ("huey",))
QUEUELIB_SQLITE = Contender("queuelib SQLite", Durability.EACH, queuelib("FifoSQLiteQueue"), ("queuelib",))
PERSIST_QUEUE_SQLITE = Contender(
    "persist-queue SQLite", Durability.EACH, persist_queue("SQLiteQueue"), ("persistqueue",)
)
PERSIST_QUEUE_ACK = Contender("persist-queue ack", Durability.EACH, persist_queue("SQLiteAckQueue"), ("persistqueue",))
PERSIST_QUEUE = Contender("persist-queue file", Durability.SOME, persist_queue("Queue"), ("persistqueue",))
PERSIST_QUEUE_AUTOSAVE = Contender(
    "persist-queue file, autosave", Durability.SOME, persist_queue("Queue", autosave=True), ("persistqueue",)
)
LITEQUEUE = Contender("litequeue", Durability.SOME, litequeue, ("litequeue",))
DISKCACHE = Contender("diskcache", Durability.SOME, diskcache, ("diskcache",))
QUEUELIB = Contender("queuelib file", Durability.NEVER, queuelib("FifoDiskQueue"), ("queuelib",))

PYTHON_PEERS = (PERSIST_QUEUE_SQLITE, PERSIST_QUEUE_ACK, HUEY, QUEUELIB_SQLITE)
SERVERS = (REDIS, BEANSTALKD)
UNSYNCED_PEERS = (PERSIST_QUEUE, LITEQUEUE, DISKCACHE)

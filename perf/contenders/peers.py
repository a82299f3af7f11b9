"""The other libraries, as their documentation tells to use them, with their own defaults but for what is said here.

Each is left out, with a note, where what it needs is not installed (``pip install '.[peers]'``; Redis and beanstalkd
are programs of the system). Those without transactions of many items get one call for each item.

Who syncs how often was counted, not believed: ``counts`` does so again in each run.

- ``LMDB``: one write transaction per flush, ``sync=True``; the keys are numbers.
- ``persist-queue``: ``SQLiteQueue`` commits each call, ``SQLiteAckQueue`` each acknowledgement as well; the file
  ``Queue`` syncs a file when it is full, also with ``autosave``, which only writes down how far it was read with each
  ``get``. To acknowledge, or ``task_done``, is part of a take.
- ``queuelib``: ``FifoSQLiteQueue`` has a journal that is rolled back, ``FifoDiskQueue`` never syncs.
- ``litequeue``: WAL and ``synchronous=NORMAL``; ``put`` shares a transaction, ``pop`` brings its own; ``done`` is part
  of a take.
- ``diskcache``: ``Deque``, WAL and ``synchronous=NORMAL``; a flush is a transaction.
- ``huey``: its ``SqliteStorage``.
- ``Redis``: ``appendonly yes``, ``appendfsync always``, a local socket; ``RPUSH`` of many and ``LPOP`` of many.
- ``beanstalkd``: ``-b`` and ``-f0``, a local socket; a take reserves and deletes.
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
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from . import Contender, Durability, Lane, Opener

_MAP_BYTES = 1 << 36
_START_SECONDS = 10.0
_JOB_BYTES = 2 * 1024 * 1024


def is_there(contender: Contender) -> bool:
    """Whether what it needs is installed."""
    return all(shutil.which(needed) or _is_module(needed) for needed in contender.needs)


def _one_by_one(put: Callable[[bytes], object], take: Callable[[], bytes]) -> Lane:
    """A lane of calls for one item each."""

    def put_all(items: Sequence[bytes]) -> None:
        for item in items:
            put(item)

    return Lane(put_all, lambda count: [take() for _ in range(count)])


def _is_module(name: str) -> bool:
    return name.isidentifier() and importlib.util.find_spec(name) is not None


# --- in the process --------------------------------------------------------------------------------------------------


@contextmanager
def lmdb(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
    """One environment; whoever writes waits for the one who does."""
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
    """``SQLiteQueue``, ``SQLiteAckQueue``, or ``Queue``."""
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
    """``FifoSQLiteQueue`` or ``FifoDiskQueue``; for one thread."""

    @contextmanager
    def opened(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
        from queuelib import queue as library

        with closing(getattr(library, kind)(str(directory / "queue"))) as queue:
            yield [_one_by_one(queue.push, queue.pop)] * threads

    return opened


@contextmanager
def litequeue(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
    """For one thread."""
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
    """A ``Deque``."""
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
    """What a task queue keeps its tasks in."""
    from huey.storage import SqliteStorage

    storage = SqliteStorage(filename=str(directory / "huey.db"), strict_fifo=True)
    with closing(storage):
        yield [_one_by_one(storage.enqueue, storage.dequeue)] * threads


# --- over a socket ---------------------------------------------------------------------------------------------------


@contextmanager
def _server(command: Callable[[str], Sequence[str]]) -> Iterator[str]:
    """Start a server on a local socket, whose address it yields once somebody listens."""
    with tempfile.TemporaryDirectory() as directory:  # the name of a socket may have 107 bytes
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


@contextmanager
def redis(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
    """A list."""
    import redis as library

    def command(address: str) -> Sequence[str]:
        safe = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        return ["redis-server", "--port", "0", "--unixsocket", address, "--dir", str(directory.absolute()), *safe]

    with _server(command) as address, library.Redis(unix_socket_path=address) as connection:

        def put(items: Sequence[bytes]) -> None:
            connection.rpush("queue", *items)

        def take(count: int) -> Sequence[bytes]:
            taken: list[bytes] = connection.lpop("queue", count)
            return taken

        yield [Lane(put, take)] * threads


@contextmanager
def beanstalkd(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
    """A tube; a client for each thread."""
    import greenstalk as library

    def command(address: str) -> Sequence[str]:
        return ["beanstalkd", "-b", str(directory), "-f0", "-l", f"unix:{address}", "-z", str(_JOB_BYTES)]

    def lane(client: Any) -> Lane:
        def take() -> bytes:
            job = client.reserve()
            client.delete(job)
            body: bytes = job.body
            return body

        return _one_by_one(client.put, take)

    with _server(command) as address:
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

"""The contenders: the queue, the bare disk, SQLite and other libraries, all behind the same two calls.

A contender is opened in a directory of its own and gives a ``Lane`` to each thread. Each ``put`` and each ``take`` is
one flush. The contender's ``Durability`` says what a flush promises on return. A table compares only contenders of
one durability.

- ``queue``: this package. ``face``: its ``compat.Queue``.
- ``bare``: the same payloads, with one durable call per flush (``pwritev`` with ``RWF_DSYNC``), at consecutive offsets
  of a file that is allocated and written. It keeps no order and no checksum, and it reserves no space for other
  writers: no contender can be much faster. A take of a batch reads and checksums the batch. Then it writes a record of
  100 B with the same durable call. A take of one item writes only the record.
- ``sqlite``: a table in WAL mode, one transaction per flush, with ``synchronous=FULL`` or ``NORMAL``.

``peers`` has the other libraries.
"""

from __future__ import annotations

import enum
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from persistentqueue import PersistentQueue, Session, codecs, compat
from persistentqueue.core.checksum import crc32

_BARE_FILE_BYTES = 2 * 1024 * 1024
_RECORD_BYTES = 100
_PAGE_BYTES = 4096
_BUSY_SECONDS = 60.0


class Durability(enum.Enum):
    """The promise of a contender when a flush returns."""

    EACH = "synced by each flush"
    SOME = "synced now and then"
    NEVER = "never synced"


class Lane(NamedTuple):
    """The two calls of one thread. Each call is one flush.

    ``put`` enqueues the given items. ``take`` dequeues that number of items and returns them; on return they are
    consumed. The bare disk has no items, so that its ``take`` returns None.
    """

    put: Callable[[Sequence[bytes]], None]
    take: Callable[[int], Sequence[bytes] | None]


Opener = Callable[[Path, int], AbstractContextManager[Sequence[Lane]]]
"""Opens the contender's files in a directory, or creates them, for a number of threads."""


class Contender(NamedTuple):
    """A contender. ``open`` expects an existing directory.

    ``needs`` names the modules and programs that must be installed.
    """

    name: str
    durability: Durability
    open: Opener
    needs: tuple[str, ...] = ()


# --- the queue -------------------------------------------------------------------------------------------------------


def _many(session: Session) -> Lane:
    def put(items: Sequence[bytes]) -> None:
        session.enqueue_many(items)
        session.flush()

    def take(count: int) -> Sequence[bytes]:
        taken = session.dequeue_many(count)
        session.flush()
        return taken

    return Lane(put, take)


def _plain(session: Session) -> Lane:
    def put(items: Sequence[bytes]) -> None:
        for item in items:
            session.enqueue(item)
        session.flush()

    def take(count: int) -> Sequence[bytes]:
        taken = [session.dequeue() for _ in range(count)]
        session.flush()
        return [item for item in taken if item is not None]

    return Lane(put, take)


def queue(*, many: bool, **settings: Any) -> Opener:
    """Return an opener of the queue. With ``many``, one call has all items of a flush; without it, one call each."""

    @contextmanager
    def opened(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
        with PersistentQueue(directory, **settings) as queue, ExitStack() as stack:
            sessions = [stack.enter_context(queue.session()) for _ in range(threads)]
            yield [(_many if many else _plain)(session) for session in sessions]

    return opened


@contextmanager
def several_queues(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
    """Open a named queue for each thread."""
    with ExitStack() as stack:
        queues = [stack.enter_context(PersistentQueue(directory, f"q{number}")) for number in range(threads)]
        yield [_plain(stack.enter_context(queue.session())) for queue in queues]


def face(**settings: Any) -> Opener:
    """Return an opener of ``compat.Queue``. A take is a ``get`` and its ``task_done``.

    The items are pickled, because persist-queue pickles its items.
    """

    @contextmanager
    def opened(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
        with compat.Queue[bytes](directory, codec=codecs.UNSAFE_PICKLE, **settings) as queue:

            def put(items: Sequence[bytes]) -> None:
                for item in items:
                    queue.put(item)

            def take(count: int) -> Sequence[bytes]:
                taken = []
                for _ in range(count):
                    taken.append(queue.get())
                    queue.task_done()
                return taken

            yield [Lane(put, take)] * threads

    return opened


# --- the bare disk ---------------------------------------------------------------------------------------------------


class _BareLane:
    """The file of one thread: payloads in its first part, records of takes in its last part."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self._bytes = 0
        self._at = 0
        self._record_at = 0
        self._put: deque[tuple[int, int]] = deque()
        self._grow(0)

    def _grow(self, length_bytes: int) -> None:
        """Enlarge the first part so that it has room for at least two payloads of this length, and write all pages."""
        self._bytes = max(_BARE_FILE_BYTES, 2 * length_bytes)
        # Page by page: after one large write the page cache holds larger pieces, and would write such a piece whole.
        for at in range(0, self._bytes + _BARE_FILE_BYTES, _PAGE_BYTES):
            os.pwrite(self.fd, bytes(_PAGE_BYTES), at)
        os.fsync(self.fd)

    def put(self, items: Sequence[bytes]) -> None:
        data = items[0] if len(items) == 1 else b"".join(items)
        if 2 * len(data) > self._bytes:
            self._grow(len(data))
        if self._at + len(data) > self._bytes:
            self._at = 0
        os.pwritev(self.fd, [data], self._at, os.RWF_DSYNC)
        self._put.append((self._at, len(data)))
        self._at += len(data)

    def take(self, count: int) -> None:
        if count > 1:
            at, length_bytes = self._put.popleft()
            crc32(os.pread(self.fd, length_bytes, at))
        os.pwritev(self.fd, [bytes(_RECORD_BYTES)], self._bytes + self._record_at, os.RWF_DSYNC)
        self._record_at = (self._record_at + _RECORD_BYTES) % (_BARE_FILE_BYTES - _RECORD_BYTES)


@contextmanager
def bare(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
    """Open a file for each thread. A take may only follow a put since the file was opened."""
    lanes = [_BareLane(directory / f"{thread}.bin") for thread in range(threads)]
    try:
        yield [Lane(lane.put, lane.take) for lane in lanes]
    finally:
        for lane in lanes:
            os.close(lane.fd)


# --- SQLite ----------------------------------------------------------------------------------------------------------


class _SqliteLane:
    """One connection to a database file."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self.connection = sqlite3.connect(
            path, isolation_level=None, timeout=_BUSY_SECONDS, check_same_thread=False, cached_statements=16
        )
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute(f"PRAGMA synchronous={synchronous}")
        self.connection.execute("CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, item BLOB NOT NULL)")

    def put(self, items: Sequence[bytes]) -> None:
        execute = self.connection.execute
        if len(items) == 1:  # a single INSERT is a transaction
            execute("INSERT INTO queue (item) VALUES (?)", (items[0],))
            return
        execute("BEGIN IMMEDIATE")
        self.connection.executemany("INSERT INTO queue (item) VALUES (?)", [(item,) for item in items])
        execute("COMMIT")

    def take(self, count: int) -> Sequence[bytes]:
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        rows = execute("SELECT id, item FROM queue ORDER BY id LIMIT ?", (count,)).fetchall()
        execute("DELETE FROM queue WHERE id <= ?", (rows[-1][0],))
        execute("COMMIT")
        return [item for _, item in rows]


def sqlite(synchronous: str, *, apart: bool = False) -> Opener:
    """Return an opener of a connection for each thread. All share one table; with ``apart`` each has its own."""

    @contextmanager
    def opened(directory: Path, threads: int) -> Iterator[Sequence[Lane]]:
        names = [f"{thread if apart else 0}.sqlite" for thread in range(threads)]
        lanes = [_SqliteLane(directory / name, synchronous) for name in names]
        try:
            yield [Lane(lane.put, lane.take) for lane in lanes]
        finally:
            for lane in lanes:
                lane.connection.close()

    return opened


OURS = Contender("ours", Durability.EACH, queue(many=False))
OURS_MANY = Contender("ours", Durability.EACH, queue(many=True))
OURS_UNSYNCED = Contender("ours, sync=False", Durability.SOME, queue(many=False, sync=False))
OURS_COMPAT = Contender("ours, queue.Queue", Durability.EACH, face())
OURS_COMPAT_UNSYNCED = Contender("ours, queue.Queue, sync=False", Durability.SOME, face(sync=False))
OURS_APART = Contender("ours", Durability.EACH, several_queues)
BARE = Contender("bare disk", Durability.EACH, bare)
SQLITE = Contender("SQLite FULL", Durability.EACH, sqlite("FULL"))
SQLITE_APART = Contender("SQLite FULL", Durability.EACH, sqlite("FULL", apart=True))
SQLITE_NORMAL = Contender("SQLite NORMAL", Durability.SOME, sqlite("NORMAL"))

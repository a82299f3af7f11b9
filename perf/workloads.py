"""The workloads: what is timed, for the queue, for the bare disk, and for SQLite.

Each puts a fixed number of items and takes them all out again, timed apart, so that it begins and ends empty:

- ``single``   one item of 100 B per flush, one thread
- ``threads``  the same, shared by eight threads
- ``batch``    1,000 items of 100 B per flush, with ``enqueue_many`` and ``dequeue_many``; more than the queue keeps in
  memory, so that most of them are read from its files
- ``plain``    the same with one call per item
- ``large``    the seed's own test: 5,000 items of 512 KiB to 1 MiB in one flush, closed, reopened, read and compared

The others promise what the queue promises. The bare disk writes the same payloads, each flush with one durable call
(``pwritev`` with ``RWF_DSYNC``) at consecutive offsets of a file that is allocated and written; for a dequeue, which
has to be durable too, a record of 100 B. It keeps no order, no checksum and no space for anybody else. SQLite keeps a
table in WAL mode with ``synchronous=FULL``, one transaction per flush.
"""

from __future__ import annotations

import os
import random
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

from persistentqueue import PersistentQueue

BATCH = 1_000
THREADS = 8
ITEM_BYTES = 100
_BARE_FILE_BYTES = 2 * 1024 * 1024
_RANDOM = random.Random(20081114)
ITEMS = [_RANDOM.randbytes(ITEM_BYTES) for _ in range(BATCH)]


class Sizes(NamedTuple):
    """How much a run does: flushes of one item, flushes of a batch, large items, the items of a full queue, and of one
    that is far larger than memory."""

    singles: int
    batches: int
    large: int
    backlog: int
    flood: int

    def scaled(self, scale: float) -> Sizes:
        """These sizes times ``scale``, none of them below what shows anything."""
        return Sizes(*(max(round(size * scale), least) for size, least in zip(self, SMOKE, strict=True)))


SMOKE = Sizes(singles=16, batches=2, large=3, backlog=10_000, flood=200_000)
REAL = Sizes(singles=4_000, batches=1_000, large=5_000, backlog=10_000_000, flood=100_000_000)


class Contender(NamedTuple):
    """``put`` puts ``amount`` of the workload's unit, durably; ``take`` takes as much out again, durably.

    ``prepare`` comes before both and is not timed.
    """

    amount: float
    put: Callable[[], None]
    take: Callable[[], None]
    prepare: Callable[[], None] = lambda: None


Factory = Callable[[Path, Sizes], AbstractContextManager[Contender]]
"""Makes a contender that works in a directory of its own."""


class Workload(NamedTuple):
    """Who contends, the queue being ``ours``, and how many times whom it must reach ``in``, ``out``, ``in and out``."""

    name: str
    what: str
    unit: str
    contenders: Mapping[str, Factory]
    bars: Mapping[str, Mapping[str, float]]


# --- the queue -------------------------------------------------------------------------------------------------------


@contextmanager
def queue(
    directory: Path, sizes: Sizes, *, batch: int = 1, threads: int = 1, many: bool = False
) -> Iterator[Contender]:
    """The queue, with ``batch`` items per flush, by one call with ``many``, else by one call for each of them."""
    flushes = _flushes(sizes, batch, threads)
    items = ITEMS[:batch]
    with PersistentQueue(directory) as queue:

        def put(_: int) -> None:
            with queue.session() as session:
                for _ in range(flushes):
                    if many:
                        session.enqueue_many(items)
                    else:
                        for item in items:
                            session.enqueue(item)
                    session.flush()

        def take(_: int) -> None:
            with queue.session() as session:
                for _ in range(flushes):
                    taken = session.dequeue_many(batch) if many else [session.dequeue() for _ in items]
                    assert len(taken) == batch and taken[-1] is not None
                    session.flush()

        yield Contender(flushes * batch * threads, partial(_share, threads, put), partial(_share, threads, take))
        assert len(queue) == 0


@contextmanager
def queue_large(directory: Path, sizes: Sizes) -> Iterator[Contender]:
    """The queue, with large items, closed after they were put and reopened before they are taken."""
    with ExitStack() as opened:

        def put() -> None:
            with PersistentQueue(directory) as queue, queue.transaction() as session:
                for item in _large(sizes.large):
                    session.enqueue(item)

        def take() -> None:
            queue = opened.enter_context(PersistentQueue(directory))
            with queue.transaction() as session:
                for item in _large(sizes.large):
                    assert session.dequeue() == item
                assert session.dequeue() is None

        yield Contender(_large_megabytes(sizes.large), put, take, partial(_rehearse, put, take, opened.close))


# --- the bare disk ---------------------------------------------------------------------------------------------------


@contextmanager
def bare(directory: Path, sizes: Sizes, *, batch: int = 1, threads: int = 1) -> Iterator[Contender]:
    """One durable write per flush, with a file for each thread; a batch is read and checksummed before its record."""
    flushes = _flushes(sizes, batch, threads)
    payload, record = b"".join(ITEMS[:batch]), ITEMS[0]
    dsync = os.RWF_DSYNC
    files = [_written_file(directory / f"{thread}.bin") for thread in range(threads)]

    def write(data: bytes, thread: int) -> None:
        fd = files[thread]
        for at in islice(cycle(range(0, _BARE_FILE_BYTES - len(data) + 1, len(data))), flushes):
            os.pwritev(fd, [data], at, dsync)

    def read(thread: int) -> None:
        fd = files[thread]
        payloads = range(0, _BARE_FILE_BYTES - len(payload) + 1, len(payload))
        for at, record_at in islice(zip(cycle(payloads), cycle(range(0, len(payload), len(record)))), flushes):
            zlib.crc32(os.pread(fd, len(payload), at))
            os.pwritev(fd, [record], record_at, dsync)

    put = partial(_share, threads, partial(write, payload))
    take = partial(_share, threads, partial(write, record) if batch == 1 else read)
    yield Contender(flushes * batch * threads, put, take)
    for fd in files:
        os.close(fd)


@contextmanager
def bare_large(directory: Path, sizes: Sizes) -> Iterator[Contender]:
    """The same buffers written one after the other to a new file, one ``fdatasync`` at the end; read, checksummed and
    compared.

    Like the queue it reads right after it wrote, so that both read what the system still has in memory.
    """
    path = directory / "large.bin"

    def put() -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        for item in _large(sizes.large):
            assert os.write(fd, item) == len(item)
        os.fdatasync(fd)
        os.close(fd)

    def take() -> None:
        fd = os.open(path, os.O_RDONLY)
        for item in _large(sizes.large):
            found = os.read(fd, len(item))
            zlib.crc32(found)
            assert found == item
        os.close(fd)

    def delete() -> None:
        path.unlink(missing_ok=True)

    yield Contender(_large_megabytes(sizes.large), put, take, partial(_rehearse, put, take, delete))


def _written_file(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.pwrite(fd, bytes(_BARE_FILE_BYTES), 0)
    os.fsync(fd)
    return fd


# --- SQLite ----------------------------------------------------------------------------------------------------------


@contextmanager
def sqlite(directory: Path, sizes: Sizes, *, batch: int = 1) -> Iterator[Contender]:
    """A table in WAL mode, ``synchronous=FULL``, one transaction per flush; a single insert is one by itself."""
    flushes = _flushes(sizes, batch, 1)
    rows = [(item,) for item in ITEMS[:batch]]
    connection = sqlite3.connect(directory / "queue.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY, item BLOB NOT NULL)")

    def put() -> None:
        for _ in range(flushes):
            if batch == 1:
                connection.execute("INSERT INTO queue (item) VALUES (?)", rows[0])
            else:
                connection.execute("BEGIN")
                connection.executemany("INSERT INTO queue (item) VALUES (?)", rows)
                connection.execute("COMMIT")

    def take() -> None:
        for _ in range(flushes):
            connection.execute("BEGIN")
            taken = connection.execute("SELECT id, item FROM queue ORDER BY id LIMIT ?", (batch,)).fetchall()
            assert len(taken) == batch
            connection.execute("DELETE FROM queue WHERE id <= ?", (taken[-1][0],))
            connection.execute("COMMIT")

    yield Contender(flushes * batch, put, take)
    connection.close()


# --- what they share -------------------------------------------------------------------------------------------------


def _flushes(sizes: Sizes, batch: int, threads: int) -> int:
    """How often each thread flushes in one run."""
    return sizes.batches if batch > 1 else sizes.singles // threads


def _share(threads: int, work: Callable[[int], None]) -> None:
    """Have ``work`` done by each of so many threads at once, the caller being the only one if it is one."""
    if threads == 1:
        work(0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))


def _large(count: int) -> Iterator[bytes]:
    """So many items of 512 KiB to 1 MiB: 61 of them again and again, made once, so that nobody is timed making them."""
    if not _LARGE:
        sizes = (_RANDOM.randint(512 * 1024, 1024 * 1024) for _ in range(61))
        _LARGE.extend(_RANDOM.randbytes(size) for size in sizes)
    return islice(cycle(_LARGE), count)


def _rehearse(put: Callable[[], None], take: Callable[[], None], delete: Callable[[], None]) -> None:
    """Do the same once before it is timed, so that each finds the memory as it left it itself.

    A virtual machine gives free memory back to its host. To take it again for the system's copy of a file may cost more
    than to write the file to the disk, and would be charged to whoever comes first.
    """
    delete()
    put()
    take()
    delete()


def _large_megabytes(count: int) -> float:
    return sum(map(len, _large(count))) / 1e6


_LARGE: list[bytes] = []


_SINGLE_BARS = {"bare": 0.8, "SQLite": 1.0}
_THREADS_BARS = {"one thread": 2.5}
_BATCH_BARS = {"SQLite": 2.0}

WORKLOADS = (
    Workload(
        "single",
        "One 100 B item per flush",
        "items/s",
        {"ours": queue, "bare": bare, "SQLite": sqlite},
        {"in": _SINGLE_BARS, "out": _SINGLE_BARS},
    ),
    Workload(
        "threads",
        f"The same, {THREADS} threads",
        "items/s",
        {"ours": partial(queue, threads=THREADS), "one thread": queue, "bare": partial(bare, threads=THREADS)},
        {"in": _THREADS_BARS, "out": _THREADS_BARS},
    ),
    Workload(
        "batch",
        "1,000 × 100 B per flush",
        "items/s",
        {
            "ours": partial(queue, batch=BATCH, many=True),
            "bare": partial(bare, batch=BATCH),
            "SQLite": partial(sqlite, batch=BATCH),
        },
        {"in": _BATCH_BARS, "out": _BATCH_BARS},
    ),
    Workload(
        "plain",
        "The same, one call per item",
        "items/s",
        {
            "ours": partial(queue, batch=BATCH),
            "bare": partial(bare, batch=BATCH),
            "SQLite": partial(sqlite, batch=BATCH),
        },
        {"in": {"SQLite": 1.0}, "out": {}},
    ),
    Workload(
        "large",
        "512 KiB to 1 MiB, 5,000 items",
        "MB/s",
        {"ours": queue_large, "bare": bare_large},
        {"in": {}, "out": {}, "in and out": {"bare": 0.8}},
    ),
)

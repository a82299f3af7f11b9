"""Nothing that others put into an inbox, and nothing that a producer's process does, can hurt a queue."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from persistentqueue import PersistentQueue, Producer, aio, check, compat
from persistentqueue.directory import open_pool
from persistentqueue.disk import DISK
from persistentqueue.parts import PartWriter
from persistentqueue.splits import Onlooker, look, plan, read

from .conftest import OpenQueue
from .support import drain, put

RELATIVE = "queues"


@pytest.fixture
def two_homes(tmp_path: Path, open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two directories with a queue of one name each; the process is in the first one. The second one's directory."""
    for home in ("here", "there"):
        open_queue(path=tmp_path / home / RELATIVE, segment_bytes=2**20).close()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "there"


def held(home: Path) -> list[bytes]:
    """What the queue below this directory holds."""
    with PersistentQueue(home / RELATIVE, "orders") as queue:
        return drain(queue)


# --- row 7: a relative path means what it meant at first -----------------------------------------------------------------


def test_row_07_relative_path_of_a_producer(two_homes: Path) -> None:
    """A producer with a relative path publishes into its queue, also with a marker, wherever its process goes."""
    with Producer(RELATIVE, "orders") as producer:
        os.chdir(two_homes)
        producer.enqueue(b"one")
        assert producer.flush()
        producer.enqueue(b"two")
        assert producer.flush(marker=("loader", 1))
        producer.enqueue(b"two again")
        assert not producer.flush(marker=("loader", 1))
    assert (held(two_homes), held(two_homes.parent / "here")) == ([], [b"one", b"two"])


def test_row_07_relative_path_of_a_part(two_homes: Path) -> None:
    """A part is written for the queue that its path named when its writer was made."""
    writer = PartWriter(RELATIVE, "orders")
    os.chdir(two_homes)
    writer.write([b"one"])
    part = writer.end()
    assert part is not None
    assert (two_homes.parent / "here" / RELATIVE / "orders" / "inbox" / part.name).exists()
    writer.drop()


def test_row_07_relative_path_of_who_looks(two_homes: Path) -> None:
    """Who looks on again and again, and who reads a split elsewhere, read the queue that was named at first."""
    with PersistentQueue(RELATIVE, "orders") as queue:
        put(queue, b"one")
    onlooker, relative = Onlooker(DISK, f"{RELATIVE}/orders"), f"{RELATIVE}/orders"
    places, recovered = look(DISK, relative)
    (split,) = plan(DISK, places, recovered, [(0, 1)])
    os.chdir(two_homes)
    assert onlooker.look()[1].state.next_sequence == 1
    assert [found.items for found in read(DISK, relative, split)] == [[b"one"]]


@pytest.mark.parametrize("shared", [False, True])
def test_row_07_relative_path_of_a_pool(two_homes: Path, shared: bool) -> None:
    """A pool is filled where its path was when it was opened."""
    pool = open_pool(RELATIVE, None if shared else "orders", shared=shared, max_bytes=2**20)
    os.chdir(two_homes)
    assert sum(pool.fill(2**16, 2**16)) > 0
    place = Path(RELATIVE, ".pool") if shared else Path(RELATIVE, "orders", "pool")
    assert [file.suffix for file in (two_homes.parent / "here" / place).iterdir() if file.name != "log.free"] == [".free"]
    assert not list((two_homes / place).glob("*-*.free"))


def test_row_07_relative_path_of_queuelibs_queue(two_homes: Path) -> None:
    """A ``FifoQueue`` that is empty when it is closed deletes its own directory, and no other of that name."""
    fifo = compat.FifoQueue(f"{RELATIVE}/orders")
    os.chdir(two_homes)
    fifo.close()
    assert not (two_homes.parent / "here" / RELATIVE / "orders").exists()
    assert check(two_homes / RELATIVE / "orders").ok


@pytest.mark.parametrize("kind", ["queue", "standard"])
def test_row_07_relative_path_of_what_is_awaited(two_homes: Path, kind: str) -> None:
    """A queue of ``aio`` opens what its path, and its ``data_path``, named when it was made."""

    async def use() -> None:
        if kind == "queue":
            queue = aio.PersistentQueue("new", data_path="media")
            os.chdir(two_homes)
            async with queue:
                pass
        else:
            standard: aio.Queue[int] = aio.Queue("new", data_path="media")
            os.chdir(two_homes)
            async with standard:
                pass

    asyncio.run(use())
    assert sorted(os.listdir(two_homes)) == [RELATIVE]
    assert {"media", "new"} <= set(os.listdir(two_homes.parent / "here"))

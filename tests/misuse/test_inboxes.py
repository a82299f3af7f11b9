"""Hostile files in an inbox, and relative paths in a process that changes its directory: neither can hurt a queue."""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from persistentqueue import CorruptionError, PersistentQueue, Producer, UnsupportedFormatError, aio, check, compat
from persistentqueue.core.block import SEGMENT_MAGIC
from persistentqueue.core.header import HEADER_BYTES, VERSION, decode_header, encode_header
from persistentqueue.core.operations import Adoption, Enqueue, MarkerSet
from persistentqueue.interprocess.multi_writer import PartWriter, publish_parts
from persistentqueue.interprocess.splits import Onlooker, look, plan, read
from persistentqueue.storage.layout import open_pool
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.hostile import aside, consume_in_little_memory, forge, hostile_name, innocent
from tests.support.queues import drain, put

RELATIVE = "queues"


@pytest.fixture
def two_homes(tmp_path: Path, open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make two directories with a queue of one name each, enter the first one, and return the second one."""
    for home in ("here", "there"):
        open_queue(path=tmp_path / home / RELATIVE, segment_bytes=2**20).close()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "there"


def held(home: Path) -> list[bytes]:
    """Dequeue the items of the queue below this directory, and return them."""
    with PersistentQueue(home / RELATIVE, "orders") as queue:
        return drain(queue)


# --- row 7: a relative path means what it meant at first -------------------------------------------------------------


def test_row_07_relative_path_of_a_producer(two_homes: Path) -> None:
    """A producer with a relative path publishes into its queue, also with a marker, after its process has changed its
    directory."""
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
    """An onlooker that looks again, and the reader of a split, read the queue that their relative path named at
    first."""
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
    """A pool is filled at the place that its path named when it was opened."""
    pool = open_pool(RELATIVE, None if shared else "orders", shared=shared, max_bytes=2**20)
    os.chdir(two_homes)
    assert sum(pool.fill(2**16, 2**16)) > 0
    place = Path(RELATIVE, ".pool") if shared else Path(RELATIVE, "orders", "pool")
    assert [file.suffix for file in (two_homes.parent / "here" / place).iterdir() if file.name != "log.free"] == [
        ".free"
    ]
    assert not list((two_homes / place).glob("*-*.free"))


def test_row_07_relative_path_of_queuelibs_queue(two_homes: Path) -> None:
    """A ``FifoQueue`` that is empty when it is closed deletes its own directory, and no other directory of that
    name."""
    fifo = compat.FifoQueue(f"{RELATIVE}/orders")
    os.chdir(two_homes)
    fifo.close()
    assert not (two_homes.parent / "here" / RELATIVE / "orders").exists()
    assert check(two_homes / RELATIVE / "orders").ok


@pytest.mark.parametrize("kind", ["queue", "standard"])
def test_row_07_relative_path_of_what_is_awaited(two_homes: Path, kind: str) -> None:
    """A queue of ``aio`` opens the directories that its path and its ``data_path`` named when it was made."""

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


# --- row 10: hostile files in the inbox ------------------------------------------------------------------------------


@pytest.mark.damages
def test_row_10_a_file_of_holes(attacked: Path, directory: Path) -> None:
    """A sparse file of 8 TiB that claims 2^50 items is set aside at once, and the publication behind it is adopted."""
    name, length_bytes, count = hostile_name(), 2**43 - 4096, 2**50
    forge(
        attacked / name,
        [Adoption(0, 5, length_bytes, name), Enqueue(0, count, 0, 64, length_bytes, 0, 9)],
        length_bytes,
    )
    assert (attacked / name).stat().st_size > 2**42
    assert not check(directory).ok
    found = consume_in_little_memory(directory, 1)
    assert found == ([b"innocent, with a marker"], ["CorruptionError"])
    assert aside(attacked) == [f"{name}.damaged"]
    (attacked / aside(attacked)[0]).unlink()


@pytest.mark.damages
def test_row_10_a_part_of_holes(attacked: Path, directory: Path) -> None:
    """A manifest with a part that is a sparse file is set aside."""
    name, part, length_bytes = hostile_name(), hostile_name(1, ".part"), 2**41
    forge(attacked / part, [Adoption(0, 6, length_bytes, part), Enqueue(0, 7, 0, 64, length_bytes, 0, 9)], length_bytes)
    capacity_bytes = (attacked / part).stat().st_size - 64
    parts = [Adoption(0, 6, capacity_bytes, part), Enqueue(0, 7, 0, 64, length_bytes, 0, 9)]
    forge(attacked / name, [Adoption(0, 5, 0, name), *parts])
    found = consume_in_little_memory(directory, 1)
    assert found == ([b"innocent, with a marker"], ["CorruptionError"])
    assert aside(attacked) == [f"{name}.damaged"]


@pytest.mark.parametrize("suffix", [".tmp", ".seg", ".part"])
@pytest.mark.parametrize("first", ["f" * 16, "8" + "0" * 15, "7" + "f" * 15])
@pytest.mark.damages
def test_row_10_names_of_extreme_times(attacked: Path, directory: Path, first: str, suffix: str) -> None:
    """A file whose name has an extreme time does not keep a producer from publishing with a marker."""
    (attacked / f"{first}-{0:016x}{suffix}").touch()
    found = consume_in_little_memory(directory, 1)
    assert found.items == [b"innocent, with a marker"]


@pytest.mark.damages
def test_row_10_a_marker_at_the_end_of_time(attacked: Path, directory: Path) -> None:
    """A marker whose last publication has the greatest possible time is refused with an error, and nothing is published
    or lost. After the owner has adopted that publication, the next one is accepted."""
    name = f"7{'f' * 15}-{0:016x}.seg"
    forge(attacked / name, [Adoption(0, 5, 0, name), MarkerSet("app", 1)])
    with Producer(directory) as producer:
        producer.enqueue(b"item")
        with pytest.raises(CorruptionError, match=f"{name}.*open the queue"):
            producer.flush(marker=("app", 2))
        assert producer.pending == 1
        producer.flush(marker=("other", 2))
        writer = PartWriter(directory)
        writer.write([b"part"])
        part = writer.end()
        assert part is not None
        PersistentQueue(directory).close()
        producer.enqueue(b"behind it")
        assert producer.flush(marker=("app", 2))
        own = f"7{'f' * 15}-{sha256(b'app').hexdigest()[:16]}.seg"
        forge(attacked / own, [Adoption(0, 5, 0, own), MarkerSet("app", 3)])
        with pytest.raises(CorruptionError, match=own):
            publish_parts(directory, None, [part], ("app", 4))
    with PersistentQueue(directory) as queue:
        assert publish_parts(directory, None, [part], ("app", 4))
        assert (drain(queue), drain(queue)) == ([b"item", b"behind it"], [b"part"])


@pytest.mark.damages
def test_row_10_what_is_no_file(attacked: Path, directory: Path) -> None:
    """Directories, links, pipes and devices in the inbox are set aside. Drafts and parts of these kinds do not hinder
    anything."""
    target = directory.parent / "target"
    target.write_bytes(b"theirs")
    for number, suffix in enumerate((".seg", ".part", ".tmp")):
        paths = [attacked / hostile_name(10 * number + kind, suffix) for kind in range(6)]
        paths[0].mkdir()
        (paths[0] / "full").touch()
        paths[1].symlink_to(target)
        paths[2].symlink_to("nowhere")
        os.mkfifo(paths[3])
        os.link(target, paths[4])
        if os.geteuid() == 0:
            os.mknod(paths[5], 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
        for path in paths:
            if path.exists() or path.is_symlink():
                with suppress(OSError):
                    os.utime(path, (1, 1), follow_symlinks=False)
    found = consume_in_little_memory(directory, 1)
    assert found.items == [b"innocent, with a marker"]
    kinds = 6 if os.geteuid() == 0 else 5
    assert found.errors == ["CorruptionError"] * kinds
    assert len(aside(attacked)) == kinds
    assert target.read_bytes() == b"theirs"


@pytest.mark.damages
def test_row_10_of_a_newer_format(attacked: Path, directory: Path) -> None:
    """A file of a newer format raises one error, and is adopted when it can be read. Later files of its producer wait
    with it; those of other producers are adopted."""
    with Producer(directory) as producer:
        for item in (b"one", b"two"):
            producer.enqueue(item)
            producer.flush()
    innocent(directory)
    first = min(attacked.iterdir())
    whole = first.read_bytes()
    header = encode_header(SEGMENT_MAGIC, decode_header(whole, SEGMENT_MAGIC, "x"), VERSION + 1)
    first.write_bytes(header + whole[HEADER_BYTES:])
    found = consume_in_little_memory(directory, 2)
    assert found == ([b"innocent", b"innocent, with a marker"], ["UnsupportedFormatError"])
    with PersistentQueue(directory) as queue:
        with pytest.raises(UnsupportedFormatError):
            drain(queue)
        assert drain(queue) == []
        first.write_bytes(whole)
        assert drain(queue) == [b"one", b"two"]


def test_row_10_who_publishes_older_and_older_names(open_queue: QueueFactory, directory: Path) -> None:
    """A listing ends however fast another process publishes older names, and the files that were there are adopted."""
    open_queue().close()
    inbox, listings = directory / "inbox", [0]
    for number in (50, 60):
        name = f"{number:016x}-{number:016x}.seg"
        forge(inbox / name, [Adoption(0, 5, 0, name), MarkerSet(f"{number}", 1)])

    def listdir(path: str) -> list[str]:
        found = os.listdir(path)
        if path == str(inbox) and listings[0] < 1000:
            listings[0] += 1
            name = f"{10**6 - listings[0]:016x}-{7:016x}.seg"
            forge(inbox / f"{2**62 - listings[0]:016x}-{7:016x}.tmp", [Adoption(0, 5, 0, name)])
            name = f"{2**60 - listings[0]:016x}-{listings[0]:016x}.seg"
            forge(inbox / name, [Adoption(0, 5, 0, name), MarkerSet(name, 1)])
            return os.listdir(path)
        return found

    queue = open_queue(disk=replace(DISK, listdir=listdir))
    assert listings[0] < 50
    assert queue.marker("50") == queue.marker("60") == 1
    listings[0] = 1000
    drain(queue)
    for path in inbox.glob("*.tmp"):
        path.unlink()


def test_row_10_what_is_set_aside_is_counted_not_listed(attacked: Path, directory: Path) -> None:
    """Setting a file aside takes a few calls, however many files were set aside under its name before."""
    name = hostile_name()
    for number in ["", *(f".{2**power}" for power in range(1, 20)), *(f".{n}" for n in range(3, 400))]:
        (attacked / f"{name}{number}.damaged").touch()
    (attacked / name).touch()
    calls: list[str] = []

    def lstat(path: str) -> os.stat_result:
        calls.append(path)
        return os.lstat(path)

    with call_on(replace(DISK, lstat=lstat), PersistentQueue, directory) as queue:
        assert len(calls) < 150
        assert queue.stats().damage_found == 1
    for path in attacked.iterdir():
        path.unlink()

"""Nothing that others put into an inbox, and nothing that a producer's process does, can hurt a queue."""

from __future__ import annotations

import ast
import asyncio
import os
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import persistentqueue
from persistentqueue import CorruptionError, PersistentQueue, Producer, UnsupportedFormatError, aio, check, compat
from persistentqueue.adopt import TOLD_MAX
from persistentqueue.block import SEGMENT_MAGIC
from persistentqueue.directory import open_pool
from persistentqueue.disk import DISK
from persistentqueue.frame import Adoption, Enqueue, MarkerSet, SubscriptionClosed, encode_frame, encode_transaction
from persistentqueue.header import HEADER_BYTES, VERSION, Header, decode_header, encode_header
from persistentqueue.parts import PartWriter, publish_parts
from persistentqueue.segment import PUBLISHED
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


# --- row 7: a relative path means what it meant at first -------------------------------------------------------------


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
    assert [file.suffix for file in (two_homes.parent / "here" / place).iterdir() if file.name != "log.free"] == [
        ".free"
    ]
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


# --- row 10: hostile files in the inbox ------------------------------------------------------------------------------

LIMITED = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (512 * 2**20,) * 2)
sys.path.insert(0, sys.argv[2])
import logging
logging.disable(logging.CRITICAL)
from persistentqueue import PersistentQueue, PersistentQueueError, Producer
began, errors, items = time.process_time(), [], []
with Producer(sys.argv[1]) as producer:
    producer.enqueue(b"innocent, with a marker")
    assert producer.flush(marker=("innocent", 1))
    producer.enqueue(b"once more")
    assert not producer.flush(marker=("innocent", 1))
with PersistentQueue(sys.argv[1]) as queue, queue.session() as session:
    while len(items) < int(sys.argv[3]):
        try:
            item = session.dequeue(timeout=9)
            assert item is not None, (items, errors)
            items.append(item if len(item) < 100 else b"%d bytes" % len(item))
        except PersistentQueueError as error:
            errors.append(type(error).__name__)
    while True:
        try:
            if session.dequeue() is None:
                break
        except PersistentQueueError as error:
            errors.append(type(error).__name__)
    session.flush()
print(repr((items, errors, time.process_time() - began)))
"""


class Outcome(NamedTuple):
    """What a process of little memory got out of a queue, and what was raised."""

    items: list[bytes]
    errors: list[str]


def consume_in_little_memory(directory: Path, count: int) -> Outcome:
    """Publish an item, open the queue, and dequeue ``count`` items and what else there is, in 512 MiB and ten seconds
    of a processor, by a child process."""
    root = Path(persistentqueue.__file__).parent.parent
    command = [sys.executable, "-c", LIMITED, str(directory), str(root), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    items, errors, seconds = ast.literal_eval(done.stdout)
    assert seconds < 10
    return Outcome(items, errors)


def innocent(directory: Path, item: bytes = b"innocent") -> None:
    """Publish an item as anybody does."""
    with Producer(directory) as producer:
        producer.enqueue(item)
        producer.flush()


def hostile_name(number: int = 0, suffix: str = ".seg") -> str:
    """A name that comes before all others that count."""
    return f"{1 + number:016x}-{number:016x}{suffix}"


def forge(path: Path, operations: list[Any], length_bytes: int = 0, body: bytes | None = None, salt: int = 5) -> None:
    """Write a published file whose checksums fit: blocks of zeros, as holes, then a frame with these operations."""
    body = encode_transaction(operations) if body is None else body
    transactions = 1 if operations else len(body) // 4
    frame, _ = encode_frame(body, salt, 0, 1, 0, transactions, len(operations))
    end = HEADER_BYTES + length_bytes
    with path.open("wb") as file:
        file.write(encode_header(SEGMENT_MAGIC, Header(0, PUBLISHED, salt, 0, end)))
        file.truncate(end)
        file.seek(end)
        file.write(frame + body)


@pytest.fixture
def attacked(open_queue: OpenQueue, directory: Path) -> Path:
    """The inbox of a queue that nobody owns for now."""
    open_queue().close()
    return directory / "inbox"


def aside(inbox: Path) -> list[str]:
    """What was set aside in it."""
    return sorted(path.name for path in inbox.iterdir() if path.name.endswith(".damaged"))


@pytest.mark.damages
def test_row_10_a_file_of_holes(attacked: Path, directory: Path) -> None:
    """A sparse file of 8 TiB that claims 2^50 items is set aside at once, and what is behind it goes on."""
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


@pytest.mark.damages
@pytest.mark.parametrize("kind", ["transactions", "operations", "parts"])
def test_row_10_empty_transactions(attacked: Path, directory: Path, kind: str) -> None:
    """Sixty megabytes of transactions, of operations, or of parts that are not there, in one published file are no
    more than that in memory, and are set aside."""
    name, size_bytes = hostile_name(), 60 * 10**6
    if kind == "transactions":
        forge(attacked / name, [], body=bytes(size_bytes))
    elif kind == "operations":
        one = encode_transaction([SubscriptionClosed(1)])[4:]
        count = size_bytes // len(one)
        forge(attacked / name, [SubscriptionClosed(1)] * 2, body=count.to_bytes(4, "little") + one * count)
    else:
        names = [hostile_name(number, ".part") for number in range(1, 440_000)]
        files = [(Adoption(0, 5, 100, part), Enqueue(0, 1, 0, 64, 60, 0, 9)) for part in names]
        forge(attacked / name, [Adoption(0, 5, 0, name), *chain.from_iterable(files)])
        del files
    assert (attacked / name).stat().st_size > 50 * 10**6
    found = consume_in_little_memory(directory, 1)
    assert found == ([b"innocent, with a marker"], ["CorruptionError"])
    assert aside(attacked) == [f"{name}.damaged"]


@pytest.mark.damages
def test_row_10_very_many_empty_files(attacked: Path, directory: Path) -> None:
    """A hundred thousand empty files are set aside, with an error each in the log and some of them raised, and what is
    behind them goes on."""
    for number in range(100_000):
        os.close(os.open(attacked / hostile_name(number), os.O_WRONLY | os.O_CREAT, 0o600))
    found = consume_in_little_memory(directory, 1)
    assert found.items == [b"innocent, with a marker"]
    assert set(found.errors) == {"CorruptionError"} and len(found.errors) == TOLD_MAX
    assert len(aside(attacked)) == 100_000
    shutil.rmtree(attacked)
    attacked.mkdir(0o700)


@pytest.mark.parametrize("suffix", [".tmp", ".seg", ".part"])
@pytest.mark.parametrize("first", ["f" * 16, "8" + "0" * 15, "7" + "f" * 15])
@pytest.mark.damages
def test_row_10_names_of_extreme_times(attacked: Path, directory: Path, first: str, suffix: str) -> None:
    """A file whose name tells the end of all times keeps no producer from publishing with a marker."""
    (attacked / f"{first}-{0:016x}{suffix}").touch()
    found = consume_in_little_memory(directory, 1)
    assert found.items == [b"innocent, with a marker"]


@pytest.mark.damages
def test_row_10_a_marker_at_the_end_of_time(attacked: Path, directory: Path) -> None:
    """Behind a publication that stands at the end of all times no other one of its marker can stand: that is said, and
    nothing is published or lost; once the owner has adopted it, the next one goes."""
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
def test_row_10_a_block_that_becomes_a_gibibyte(attacked: Path, directory: Path) -> None:
    """An item of a gibibyte in 32 KiB, which the process has no memory for, is told by name and set aside; what is
    behind it goes on, and the next opening has it again."""
    pytest.importorskip("zstandard")
    with Producer(directory, compression="zstd") as producer:
        producer.enqueue(bytes(2**30))
        producer.flush()
    (file,) = attacked.iterdir()
    assert file.stat().st_size < 10**5
    found = consume_in_little_memory(directory, 1)
    assert found == ([b"innocent, with a marker"], ["MemoryShortageError"])
    with PersistentQueue(directory) as queue, queue.session() as session:
        item = session.dequeue()
        assert item is not None and len(item) == 2**30
        session.rollback()


@pytest.mark.damages
def test_row_10_what_is_no_file(attacked: Path, directory: Path) -> None:
    """Directories, links, pipes, sockets and devices in the inbox are set aside, and drafts and parts of such a kind
    keep nobody from anything."""
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
    """A file of a newer format is told once; what its producer has published behind it waits with it, and that of the
    others goes on; it is adopted once it can be read."""
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


def test_row_10_who_publishes_older_and_older_names(open_queue: OpenQueue, directory: Path) -> None:
    """A listing ends however fast somebody publishes what is older, and keeps the order of each producer."""
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
    """To set a file aside takes a few calls, however much was set aside before under its name."""
    name = hostile_name()
    for number in ["", *(f".{2**power}" for power in range(1, 20)), *(f".{n}" for n in range(3, 400))]:
        (attacked / f"{name}{number}.damaged").touch()
    (attacked / name).touch()
    calls: list[str] = []

    def lstat(path: str) -> os.stat_result:
        calls.append(path)
        return os.lstat(path)

    with PersistentQueue(directory, disk=replace(DISK, lstat=lstat)) as queue:
        assert len(calls) < 150
        assert queue.stats().damage_found == 1
    for path in attacked.iterdir():
        path.unlink()

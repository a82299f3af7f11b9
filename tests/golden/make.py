"""Make the golden queues of this tree's format: ``python -m tests.golden.make DIRECTORY``.

A golden queue is a small directory that an older tree has written. Every later tree must open it, and find the content
that is described beside it. So the directories under ``tests/golden`` are never made again: a new format version gets
new ones in addition. Two runs make equal bytes. Clock, salts, host and paths are fixed by a ``Disk`` of its own, and
the inodes in lock files are left out.

A case ``c`` has ``c/``, with queues in ``queues/`` and sometimes segments in ``media/``, and ``c.json``:

- ``directories``: all directories, since Git keeps no empty one. Git keeps no modes either: a copy of a case needs
  directories of mode 0700 and files of mode 0600 to be opened.
- ``queues``: the content of each, in the fields of ``Queue``. Items are text, encoded in UTF-8.

``SHA256SUMS`` has the digest of each file when it was made.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from persistentqueue import Encryption, PersistentQueue, Producer, Session, transaction
from persistentqueue.interprocess.consumer_requests import request_subscription
from persistentqueue.interprocess.multi_writer import PartWriter, publish_parts
from persistentqueue.runtime.maintenance import Maintenance
from persistentqueue.runtime.session_state import SessionParts, flush_all
from persistentqueue.storage.log_reader import decode_log
from persistentqueue.system.disk import DISK, Disk
from tests.support.disks import call_on

ROOT = "/golden"
"""Directory of the queues, as they see it."""
QUEUES, MEDIA = f"{ROOT}/queues", f"{ROOT}/media"
TINY: dict[str, Any] = {"log_bytes": 4096, "segment_bytes": 1024, "memory_bytes": 0}
"""Settings that keep files small."""
KEYS = {"old": bytes(range(16)), "new": bytes(range(32))}
SUMS = "SHA256SUMS"
_BEGAN_NS, _TICK_NS = 1_700_000_000 * 10**9, 10**6


class StopError(BaseException):
    """The end of the process."""


@dataclass
class Queue:
    """Content of a golden queue, once it is opened."""

    items: list[str]
    """Items that the plain queue has left, in order."""
    subscriptions: dict[str, list[str]] = field(default_factory=dict)
    """Items that each subscription has left."""
    markers: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    """Number of deliveries of items that were not consumed, by sequence."""
    flushes: dict[str, int] = field(default_factory=dict)
    """Number of the last flush of each connection that may ask for it, by its id in hex digits."""
    dead_letters: list[list[Any]] = field(default_factory=list)
    """Dead letters, if it is a dead-letter queue: item, reason, number of deliveries."""
    waiting: int = 0
    """Number of the last items that wait in the inbox until the opening."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings to open it with, beside those in the fields below."""
    keys: dict[str, str] = field(default_factory=dict)
    """Keys of its encryption, in hex digits; the last one encrypts."""
    dead_letter: str = ""
    """Name of its dead-letter queue."""
    is_sealed: bool = False
    """True if it was closed cleanly."""
    is_torn: bool = False
    """True if the end of its log is torn."""
    in_doubt: str = ""
    """Name of the queue that stores the outcome of its last transaction."""
    is_elsewhere: bool = False
    """True if its segments are in ``media``."""


class Maker:
    """A directory, seen as ``ROOT``, and a machine on which nothing is random."""

    def __init__(self, scratch: Path, seed: str) -> None:
        self.scratch = scratch
        self._now_ns = _BEGAN_NS
        self._random = random.Random(seed)
        self.stops_at = ""
        """Name of the step before which the process ends."""
        real = self.real
        self.disk: Disk = replace(
            DISK,
            fdatasync=lambda _fd: None,
            fsync=lambda _fd: None,
            start_sync=lambda _fd, _offset, _length_bytes: None,
            pwritev=lambda fd, buffers, offset, _flags: DISK.pwritev(fd, buffers, offset, 0),
            open=lambda path, flags, mode: DISK.open(real(path), flags, mode),
            open_direct=lambda _path: None,
            rename=lambda source, target: DISK.rename(real(source), real(target)),
            unlink=lambda path: DISK.unlink(real(path)),
            mkdir=lambda path, mode: DISK.mkdir(real(path), mode),
            rmdir=lambda path: DISK.rmdir(real(path)),
            listdir=lambda path: sorted(DISK.listdir(real(path))),
            lstat=lambda path: DISK.lstat(real(path)),
            free_bytes=lambda _path: 1 << 40,
            urandom=self._random.randbytes,
            time_ns=self._tick,
            monotonic=lambda: self._tick() / 10**9,
            getpid=lambda: 1,
            gethostname=lambda: "golden",
            failpoint=self._step,
        )
        os.makedirs(real(QUEUES))

    def real(self, path: str) -> str:
        """Return the place of a path on this machine."""
        return f"{self.scratch}{path}"

    def _tick(self) -> int:
        self._now_ns += _TICK_NS
        return self._now_ns

    def _step(self, name: str) -> None:
        if name == self.stops_at:
            raise StopError(name)

    def open(self, name: str | None, path: str = QUEUES, **settings: Any) -> PersistentQueue:
        """Open a queue with small files."""
        return call_on(self.disk, PersistentQueue, path, name, **TINY | settings)

    def log_of(self, name: str) -> Path:
        """Return the log of the highest generation."""
        return max(Path(self.real(f"{QUEUES}/{name}/log")).glob("*.log"))


def put(queue: PersistentQueue, *items: str, marker: tuple[str, int] | None = None) -> None:
    """Enqueue the items in one flush."""
    with queue.session() as session:
        session.enqueue_many([item.encode() for item in items])
        session.flush(marker=marker)


def take(queue: Any, count: int) -> None:
    """Consume ``count`` items."""
    with queue.session() as session:
        assert len(session.dequeue_many(count)) == count
        session.flush()


def crash(*queues: PersistentQueue) -> None:
    """End the queues like ``kill -9`` ends their process."""
    for queue in queues:
        group = queue._open_queue
        assert group is not None
        group.disown("crashed by the maker of golden queues")


def names(first: int, end: int, length: int = 0) -> list[str]:
    """Return items that contain their number."""
    return [f"item {number} ".ljust(length, ".") for number in range(first, end)]


# --- the cases -------------------------------------------------------------------------------------------------------


def plain(maker: Maker) -> dict[str, Queue]:
    """Make a killed queue with items in the log and in segments, some of them consumed, also out of order."""
    queue = maker.open("orders")
    for number in range(12):
        put(queue, *names(2 * number, 2 * number + 2, 60))
    take(queue, 3)
    with queue.session() as held, queue.session() as session:
        held.dequeue()
        session.dequeue_many(2)
        session.flush()
        held.rollback()
        session.rollback()
    crash(queue)
    return {"orders": Queue([names(3, 4, 60)[0], *names(6, 24, 60)])}


def nameless(maker: Maker) -> dict[str, Queue]:
    """Make a killed queue without a name: the directory itself is the queue.

    It has an empty item, and one with letters beyond ASCII.
    """
    queue = maker.open(None)
    put(queue, "", "ü ☃ 字", "end")
    crash(queue)
    return {"": Queue(["", "ü ☃ 字", "end"])}


def sealed(maker: Maker) -> dict[str, Queue]:
    """Make a queue that was closed cleanly, and opened once before that."""
    with maker.open("orders") as queue:
        for number in range(6):
            put(queue, *names(3 * number, 3 * number + 3, 100))
        take(queue, 4)
    with maker.open("orders") as queue:
        put(queue, *names(18, 20))
    return {"orders": Queue([*names(4, 18, 100), *names(18, 20)], is_sealed=True)}


def emptied(maker: Maker) -> dict[str, Queue]:
    """Make a queue that was closed cleanly, with nothing left."""
    with maker.open("orders") as queue:
        put(queue, *names(0, 9, 200))
        take(queue, 9)
    return {"orders": Queue([], is_sealed=True)}


def torn(maker: Maker) -> dict[str, Queue]:
    """Make a queue that was killed in the middle of a write of the log, half of which is there."""
    queue = maker.open("orders")
    put(queue, *names(0, 5))
    log = maker.log_of("orders")
    end = decode_log(log.read_bytes(), str(log)).end
    put(queue, *names(5, 9))
    crash(queue)
    data = bytearray(log.read_bytes())
    half = (end + decode_log(bytes(data), str(log)).end) // 2
    data[half:] = bytes(len(data) - half)
    log.write_bytes(data)
    for segment in Path(maker.real(f"{QUEUES}/orders/data")).glob("*.seg"):  # the blocks were not written that far
        content = segment.read_bytes()
        segment.write_bytes(content[: content.rfind(b"item 4")].ljust(len(content), b"\0"))
    return {"orders": Queue(names(0, 5), is_torn=True)}


def unsynced(maker: Maker) -> dict[str, Queue]:
    """Make a killed queue with ``sync=False``."""
    queue = maker.open("orders", sync=False, inline_bytes=100)
    for number in range(5):
        put(queue, *names(4 * number, 4 * number + 4, 80))
    take(queue, 2)
    crash(queue)
    return {"orders": Queue(names(2, 20, 80), settings={"sync": False})}


def spilled(maker: Maker) -> dict[str, Queue]:
    """Make a killed queue with transactions that were spilled before their flushes, one of them never flushed."""
    queue = maker.open("orders", inline_bytes=0)
    for flushed in (True, False):
        with Session(SessionParts(queue._open(), spill_bytes=600)) as session:
            for item in names(0, 20, 150):
                session.enqueue(item.encode())
            if flushed:
                session.flush()
            session.rollback()
    put(queue, "behind it")
    crash(queue)
    return {"orders": Queue([*names(0, 20, 150), "behind it"])}


def compressed(maker: Maker) -> dict[str, Queue]:
    """Make a killed queue with blocks that are compressed, among others."""
    queue = maker.open("orders", compression="zstd")
    put(queue, *names(0, 30, 200))
    put(queue, "short")
    take(queue, 10)
    crash(queue)
    return {"orders": Queue([*names(10, 30, 200), "short"])}


def encrypted(maker: Maker) -> dict[str, Queue]:
    """Make a queue that was closed and later killed, with blocks encrypted with two keys, compressed or not."""
    keys = KEYS.__getitem__
    with maker.open("orders", encryption=Encryption("old", keys)) as queue:
        put(queue, *names(0, 4))
    queue = maker.open("orders", encryption=Encryption("new", keys), compression="zstd")
    put(queue, *names(4, 24, 100))
    take(queue, 1)
    crash(queue)
    hexadecimal = {key_id: key.hex() for key_id, key in KEYS.items()}
    return {"orders": Queue([*names(1, 4), *names(4, 24, 100)], keys=hexadecimal)}


def subscriptions(maker: Maker) -> dict[str, Queue]:
    """Make two killed queues: one with consumers at different places, and one without a plain queue.

    The first one has a late subscription and one that was removed.
    """
    queue = maker.open("orders")
    put(queue, *names(0, 6, 100))
    first, removed = queue.subscribe("first"), queue.subscribe("removed")
    take(first, 4)
    take(removed, 1)
    take(queue, 2)
    late = queue.subscribe("late", start="latest")
    put(queue, *names(6, 9, 100))
    take(late, 1)
    queue.unsubscribe("removed")
    fan_out = maker.open("events", fan_out=True)
    fan_out.subscribe("a")
    put(fan_out, *names(0, 3))
    fan_out.subscribe("b", start="latest")
    put(fan_out, *names(3, 5))
    take(fan_out.subscribe("a"), 1)
    crash(queue, fan_out)
    left = {"first": names(4, 9, 100), "late": names(7, 9, 100)}
    return {
        "orders": Queue(names(2, 9, 100), left),
        "events": Queue([], {"a": names(1, 5), "b": names(3, 5)}, settings={"fan_out": True}),
    }


def markers(maker: Maker) -> dict[str, Queue]:
    """Make a killed queue with markers in the checkpoint and after it."""
    queue = maker.open("orders")
    put(queue, "one", marker=("batches", 1))
    put(queue, marker=("ü", 2**63 - 1))
    queue.trim()
    put(queue, "seven", marker=("batches", 7))
    put(queue, "again", marker=("batches", 7))
    crash(queue)
    return {"orders": Queue(["one", "seven"], markers={"batches": 7, "ü": 2**63 - 1})}


def attempts(maker: Maker) -> dict[str, Queue]:
    """Make a killed queue with items that failed, one that was rejected for good, and one that was held."""
    dead = maker.open("dead")
    queue = maker.open("orders", max_attempts=3, dead_letter=dead, retry_delay_seconds=60.0)
    put(queue, "fails", "is given up", "was on hold", "is new")
    with queue.session() as session:
        session.reject(session.dequeue() or b"", "not now")
        session.flush()
    with queue.session() as session:
        session.reject(session.dequeue() or b"", "never", retry=False)
        session.flush()
    held = queue.session()
    assert held.dequeue() == b"was on hold"
    crash(queue, dead)
    held.close()
    left = ["fails", "was on hold", "is new"]
    settings = {"max_attempts": 3}
    return {
        "orders": Queue(left, attempts={"0": 1, "2": 1}, settings=settings, dead_letter="dead"),
        "dead": Queue([], dead_letters=[["is given up", "never", 1]]),
    }


def several(maker: Maker) -> dict[str, Queue]:
    """Make two queues, killed after the decision of a transaction over both, before the second one got it."""
    source, target = maker.open("a"), maker.open("b")
    put(source, *names(0, 4))
    with transaction(source, target) as (taken, given):
        given.enqueue(b"done " + (taken.dequeue() or b""))
    maker.stops_at = "several.4 apply"
    try:
        with transaction(source, target) as (taken, given):
            given.enqueue(b"done " + (taken.dequeue() or b""))
            taken.flush(marker=("moved", 2))
    except StopError:
        crash(source, target)
    return {
        "a": Queue(names(2, 4), markers={"moved": 2}),
        "b": Queue([f"done {item}" for item in names(0, 2)], in_doubt="a"),
    }


def _publish(maker: Maker) -> None:
    """Publish everything that other processes can: two transactions, a manifest of two parts, a request to
    subscribe."""
    with call_on(maker.disk, Producer, QUEUES, "orders") as producer:
        for number in (1, 2):
            producer.enqueue(b"published %d" % number)
            producer.flush(marker=("producer", number))
    parts = []
    for items in ([b"part 1, one", b"part 1, two"], [b"part 2"]):
        writer = call_on(maker.disk, PartWriter, QUEUES, "orders")
        writer.write(items)
        part = writer.end()
        assert part is not None
        parts.append(part)
    assert call_on(maker.disk, publish_parts, QUEUES, "orders", parts, ("stage", 1))
    call_on(maker.disk, request_subscription, QUEUES, "orders", "asked", 0)


_PUBLISHED = ["published 1", "published 2", "part 1, one", "part 1, two", "part 2"]
_REACHED = {"producer": 2, "stage": 1}


def published(maker: Maker) -> dict[str, Queue]:
    """Make a queue that was closed cleanly, with publications of other processes that were not adopted."""
    with maker.open("orders") as queue:
        put(queue, "enqueued")
    _publish(maker)
    items = ["enqueued", *_PUBLISHED]
    return {"orders": Queue(items, {"asked": items}, _REACHED, waiting=len(_PUBLISHED), is_sealed=True)}


def adopted(maker: Maker) -> dict[str, Queue]:
    """Make a queue that was killed after the frame that adopts publications, before their files had the new names."""
    queue = maker.open("orders")
    put(queue, "enqueued")
    _publish(maker)
    maker.stops_at = "adopt.3 rename"
    try:
        queue._open()._look(insists=True)
    except StopError:
        crash(queue)
    items = ["enqueued", *_PUBLISHED]
    return {"orders": Queue(items, {"asked": items}, _REACHED)}


def compacted(maker: Maker) -> dict[str, Queue]:
    """Make a queue that was killed after a compaction: blocks with holes at consumed items."""
    queue = maker.open("orders")
    for number in range(12):
        put(queue, *names(5 * number, 5 * number + 5, 40))
    with queue.session() as kept, queue.session() as session:
        for _ in range(10):
            kept.dequeue()
            session.dequeue_many(3)
        session.flush()
        queue.trim()
        assert queue.compact(below=1.0).segments > 0
        kept.rollback()
        session.rollback()
    crash(queue)
    left = [names(4 * number, 4 * number + 1, 40)[0] for number in range(10)]
    return {"orders": Queue([*left, *names(40, 60, 40)])}


def moved(maker: Maker) -> dict[str, Queue]:
    """Make a killed queue with its segments on other media."""
    queue = maker.open("orders", data_path=MEDIA)
    for number in range(4):
        put(queue, *names(4 * number, 4 * number + 4, 100))
    take(queue, 5)
    crash(queue)
    return {"orders": Queue(names(5, 16, 100), is_elsewhere=True)}


def pooled(maker: Maker) -> dict[str, Queue]:
    """Make a queue that was closed cleanly, with a segment made of a pool file, and other files in the pool."""
    with maker.open("orders", pool_min_bytes=3000) as queue:
        queue.maintain()
        put(queue, *names(0, 12, 150))
        put(queue, *names(12, 24, 150))
        take(queue, 18)
    return {"orders": Queue(names(18, 24, 150), is_sealed=True, settings={"pool_min_bytes": 3000})}


def flushes(maker: Maker) -> dict[str, Queue]:
    """Make a killed queue with flushes of workers, in the checkpoint and after it, and one that is forgotten."""
    queue = maker.open("orders")
    first, second, forgotten = b"1" * 16, b"2" * 16, b"3" * 16
    open_queue = queue._open()
    with queue.session() as session:
        for number, connection in ((1, first), (1, forgotten), (2, second), (2, first)):
            session.enqueue(b"%d of %d" % (number, connection[0] - ord("0")))
            flush_all(open_queue, [session], [], [(connection, number)])
            if connection == second:
                open_queue.forget_flushes(forgotten)
                queue.trim()
        session.dequeue()
        flush_all(open_queue, [session], [], [(first, 3)])
    crash(queue)
    left = ["1 of 3", "2 of 2", "2 of 1"]
    return {"orders": Queue(left, flushes={first.hex(): 3, second.hex(): 2})}


CASES: tuple[Callable[[Maker], dict[str, Queue]], ...] = (
    plain,
    nameless,
    sealed,
    emptied,
    torn,
    unsynced,
    spilled,
    compressed,
    encrypted,
    subscriptions,
    markers,
    attempts,
    several,
    published,
    adopted,
    compacted,
    moved,
    pooled,
    flushes,
)


def make(directory: Path, case: Callable[[Maker], dict[str, Queue]]) -> None:
    """Make one case in the directory."""
    root = directory / case.__name__
    os.makedirs(root)
    scratch = directory / f".{case.__name__}"
    queues = case(Maker(scratch, case.__name__))
    made = scratch / ROOT.strip("/")
    for part in sorted(made.iterdir()):
        part.rename(root / part.name)
    made.rmdir()
    scratch.rmdir()
    directories = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir())
    contents = {"directories": directories, "queues": {name: asdict(queue) for name, queue in queues.items()}}
    text = json.dumps(contents, indent=1, sort_keys=True, ensure_ascii=False)
    (directory / f"{case.__name__}.json").write_text(f"{text}\n", encoding="utf-8")


def sums(directory: Path) -> str:
    """Return the digest of each file in a directory, in the format of ``sha256sum -c``."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != SUMS)
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(directory).as_posix()}\n" for path in files
    )


def make_all(directory: Path) -> None:
    """Make all cases in a directory that does not exist yet."""
    os.makedirs(directory)
    with_maintenance, Maintenance.maintain_soon = Maintenance.maintain_soon, lambda self: None  # type: ignore[method-assign]
    try:
        for case in CASES:
            make(directory, case)
    finally:
        Maintenance.maintain_soon = with_maintenance  # type: ignore[method-assign]
    for lock in directory.rglob("lock"):  # Git keeps no inodes either
        lock.write_bytes(re.sub(rb'"inode": "\w+"', b'"inode": ""', lock.read_bytes()))
    (directory / SUMS).write_text(sums(directory))


if __name__ == "__main__":
    make_all(Path(sys.argv[1]))
    assert threading.active_count() == 1

"""Compressed and encrypted queues: the items that come out, the content of the files, and the settings."""

from __future__ import annotations

import errno
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import persistentqueue
from persistentqueue import (
    CorruptionError,
    DiskFullError,
    Encryption,
    MissingExtraError,
    PersistentQueue,
    PersistentQueueError,
    Producer,
    QueueFullError,
    View,
    WrongKeyError,
    check,
    repair,
)
from persistentqueue.core import encryption as core_encryption
from persistentqueue.core.block import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    Envelope,
    encode_block,
    encode_envelope,
)
from persistentqueue.core.encryption import Envelopes
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.interprocess.multi_writer import PartWriter, publish_parts
from persistentqueue.interprocess.splits import look, plan, read
from persistentqueue.system.disk import DISK, Buffers
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import crash, drain, flip, is_idle, log_file, put, put_each, segment_files
from tests.unit.core.test_encryption import (
    KEYS,
    LOST,
    ONE,
    OTHER,
    SALT,
    SECRET,
    TEXT,
    THREE,
    TWO,
    WAYS,
    decode,
    envelope_of,
    ways,
)

# --- queues ----------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "compressed": {"compression": "zstd"},
    "encrypted": {"encryption": ONE},
    "both": {"compression": "zstd", "encryption": ONE},
}


def items_of(queue: PersistentQueue) -> list[bytes]:
    """Return the ready items without consuming them."""
    return list(queue.browse())


@ways
def test_all_that_is_enqueued_comes_out(open_queue: QueueFactory, way: str) -> None:
    """Small, large and spilled items come out in order, from memory and from disk, after a crash and after a
    restart."""
    queue = open_queue(memory_bytes=100_000, **SETTINGS[way])
    small = [TEXT + b"%d" % n for n in range(300)]
    put_each(queue, small[:50])
    put(queue, *small[50:])
    large = [b"%d" % n + TEXT * 30_000 for n in range(3)]
    put(queue, *large)
    put(queue, b"", *[b""] * 70_000)
    expected = [*small, *large, *[b""] * 70_001]
    assert items_of(queue) == expected
    crash(queue)
    queue = open_queue(memory_bytes=0, **SETTINGS[way])
    assert items_of(queue) == expected
    queue.close()
    queue = open_queue(**SETTINGS[way])
    with queue.transaction() as session:
        assert session.dequeue_many(200) == expected[:200]
    assert drain(queue) == expected[200:]


def test_compression_takes_less_of_the_disk(open_queue: QueueFactory) -> None:
    """By the queue's own count, compressed text takes less than a quarter of the bytes of plain text."""
    plain, compressed = open_queue("plain"), open_queue("compressed", compression="zstd")
    for queue in (plain, compressed):
        put(queue, *[TEXT + b"%d" % n for n in range(20_000)])
    assert compressed.stats().live_bytes < plain.stats().live_bytes / 4


def test_memory_is_counted_as_it_was(open_queue: QueueFactory) -> None:
    """``memory_bytes`` bounds the bytes of the items themselves, however few they take on disk."""
    queue = open_queue(memory_bytes=1_000_000, compression="zstd")
    for n in range(40):
        put(queue, *[b"%d" % n + bytes(100_000)] * 3)
    queue.close()
    queue = open_queue(memory_bytes=1_000_000, compression="zstd")
    with queue.transaction() as session:
        for n in range(120):
            assert session.dequeue() == b"%d" % (n // 3) + bytes(100_000)
            stats = queue.stats()
            assert stats.cached_bytes <= 1_000_000 and stats.cached <= 10


@ways
def test_limits_hold(open_queue: QueueFactory, way: str) -> None:
    """The admission estimate of a transaction is never less than the bytes of its blocks, so ``max_bytes`` holds."""
    queue = open_queue(max_bytes=10_000, **SETTINGS[way])
    count = 0
    while True:
        try:
            put(queue, os.urandom(50 + count % 60))
        except PersistentQueueError:
            break
        count += 1
        assert queue.stats().live_bytes <= 10_000
    assert count > 50
    drain(queue)


def test_an_envelope_counts_for_the_limits(open_queue: QueueFactory) -> None:
    """An item that fits only without the bytes that encryption adds is refused; with that much more room it is
    accepted."""
    item = os.urandom(100)
    plain_bytes = encode_block([item], SALT, 640, 17, 99).length_bytes
    with pytest.raises(QueueFullError, match=f"max_bytes={plain_bytes}"):
        put(open_queue("a", max_bytes=plain_bytes, encryption=ONE), item)
    most_bytes = WAYS["encrypted"].most_bytes
    queue = open_queue("b", max_bytes=plain_bytes + most_bytes, encryption=ONE)
    put(queue, item)
    assert queue.stats().live_bytes == plain_bytes + most_bytes


@contextmanager
def without(monkeypatch: pytest.MonkeyPatch, module: str) -> Iterator[None]:
    """Make the import of a library fail until the context ends."""
    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if name == module or name.startswith(module + ".")]:
            patch.setitem(sys.modules, name, None)
        patch.setitem(sys.modules, module, None)
        yield


EXTRAS = [("compressed", "zstandard", "compression"), ("encrypted", "cryptography", "encryption")]


@pytest.mark.parametrize(("way", "module", "extra"), EXTRAS)
def test_missing_extra(
    open_queue: QueueFactory, directory: Path, way: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting whose library is not installed raises an error with the command that installs it, and nothing is
    made."""
    with without(monkeypatch, module):
        for make in (open_queue, lambda **settings: Producer(directory, **settings)):
            with pytest.raises(MissingExtraError, match=rf"pip install 'persistentqueue\[{extra}\]'") as caught:
                make(**SETTINGS[way])
            assert caught.value.extra == extra
        assert not directory.exists()


@pytest.mark.parametrize(("way", "module", "extra"), EXTRAS)
def test_missing_extra_at_a_block(
    open_queue: QueueFactory, directory: Path, way: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items that need a missing library stay ready, and new items can be enqueued. With the library, all items come out
    in order."""
    queue = open_queue(**SETTINGS[way])
    put(queue, TEXT * 9, TEXT * 8)
    queue.close()
    queue = open_queue()
    put(queue, b"behind")
    with without(monkeypatch, module):
        for _ in range(2):
            with pytest.raises(MissingExtraError) as caught, queue.session() as session:
                session.dequeue()
            assert extra in str(caught.value) and str(segment_files(directory)[0]) in str(caught.value)
            assert "offset 64" in str(caught.value)
        with pytest.raises(MissingExtraError):
            queue.peek()
    stats = queue.stats()
    assert (stats.ready, stats.held, stats.damaged) == (3, 0, 0)
    queue.close()
    assert drain(open_queue(**SETTINGS[way])) == [TEXT * 9, TEXT * 8, b"behind"]


@pytest.mark.parametrize(
    ("encryption", "problem"),
    [
        (None, "no key was given"),
        (LOST, r"key\(\) raised KeyError"),
        (
            Encryption("new", lambda key_id: bytes(16) if key_id == "new" else b"short"),
            "returned 5 bytes, not 16, 24 or 32",
        ),
    ],
    ids=["none", "unknown", "short"],
)
def test_wrong_key(open_queue: QueueFactory, directory: Path, encryption: Encryption | None, problem: str) -> None:
    """A wrong or missing key is not damage: the error names the block and the remedy, and new items can be enqueued.
    With the key, all items come out in order."""
    queue = open_queue(encryption=ONE)
    put(queue, b"a", b"b")
    put(queue, b"c")
    queue.close()
    queue = open_queue(encryption=encryption)
    put(queue, b"d")
    for _ in range(2):
        with queue.session() as session:
            for take in (session.dequeue, lambda: session.dequeue_many(9)):
                with pytest.raises(WrongKeyError, match=problem) as caught:
                    take()
        error = caught.value
        assert (error.file, error.offset, error.key_id) == (str(segment_files(directory)[0]), 64, "one")
        assert f"{error.file}: the block at offset 64 is encrypted with the key 'one'" in str(error)
        assert "pass an encryption=Encryption(key_id, key)" in str(error)
    with pytest.raises(WrongKeyError, match=problem):
        queue.peek()
    assert queue.compact(below=1.0).segments == 0
    assert queue.maintain().compacted_segments == 0
    stats = queue.stats()
    assert (stats.ready, stats.held, stats.damaged) == (4, 0, 0)
    queue.close()
    assert check(directory).items == 4
    keys = KEYS | {"new": bytes(16)}
    assert drain(open_queue(encryption=Encryption("one", keys.__getitem__))) == [b"a", b"b", b"c", b"d"]


def test_one_name_for_two_keys(open_queue: QueueFactory) -> None:
    """While a block needs the old key, an opening with another key of the same id is refused at once and writes
    nothing."""
    queue = open_queue(encryption=ONE)
    put(queue, b"a", b"b")
    queue.close()
    for _ in range(2):
        with pytest.raises(WrongKeyError, match="another key was given, or the block was changed"):
            open_queue(encryption=OTHER)
    queue = open_queue(encryption=ONE)
    put(queue, b"c")
    assert drain(queue) == [b"a", b"b", b"c"]
    queue.close()
    queue = open_queue(encryption=OTHER)  # no block needs the old key any more
    put(queue, b"d")
    assert drain(queue) == [b"d"]


def test_one_name_for_two_keys_during_a_rotation(open_queue: QueueFactory) -> None:
    """While the first blocks need the old key, another key under the id of the new one is refused as well."""
    keys = KEYS | {"new": bytes(32)}
    for key_id, items in (("one", [b"a"]), ("new", [b"b", b"c"])):
        with open_queue(encryption=Encryption(key_id, keys.__getitem__)) as queue:
            put(queue, *items)
    new = Encryption("new", keys.__getitem__)
    with open_queue(encryption=new) as queue, queue.session() as session, queue.session() as other:
        assert session.dequeue_many(2) == [b"a", b"b"]
        assert other.dequeue() == b"c"
        other.flush()  # the last item that remains is before the last one of its block
        session.rollback()
    with pytest.raises(WrongKeyError, match="another key was given, or the block was changed"):
        open_queue(encryption=Encryption("new", (keys | {"new": bytes(range(32))}).__getitem__))
    with open_queue(encryption=new) as queue:
        assert drain(queue) == [b"a", b"b"]


def test_what_can_be_opened_comes_out_first(open_queue: QueueFactory) -> None:
    """``dequeue_many`` returns the items before a block that has no key; the next call raises ``WrongKeyError``."""
    queue = open_queue()
    put(queue, b"a")
    put(queue, *[b"b"] * 3)
    queue.close()
    queue = open_queue(encryption=ONE)
    put(queue, b"c")
    queue.close()
    for settings in ({}, {"memory_bytes": 0}):
        queue = open_queue(**settings)
        with queue.session() as session:
            assert session.dequeue_many(9) == [b"a", b"b", b"b", b"b"]
            with pytest.raises(WrongKeyError):
                session.dequeue_many(9)
            session.rollback()
        assert len(queue) == 5
        queue.close()


def test_what_lies_in_another_segment_comes_out_first(open_queue: QueueFactory) -> None:
    """``dequeue_many`` returns the readable items of several segments before a segment without a key raises
    ``WrongKeyError``."""
    queue = open_queue(segment_bytes=1)
    put(queue, b"a" * 100)
    put(queue, b"b" * 100)
    queue.close()
    queue = open_queue(segment_bytes=1, encryption=ONE)
    put(queue, b"c" * 100)
    queue.close()
    queue = open_queue(memory_bytes=0)
    with queue.session() as session:
        assert session.dequeue_many(9) == [b"a" * 100, b"b" * 100]
        with pytest.raises(WrongKeyError):
            session.dequeue()
        session.rollback()


def test_compaction_without_the_key_leaves_it_alone(open_queue: QueueFactory) -> None:
    """A compaction leaves segments alone if it has no key for them, and compacts the others. With the key it compacts
    the rest."""
    rows = [b"%d" % n + bytes(300) for n in range(48)]
    for encryption, some in ((ONE, rows[:24]), (None, rows[24:])):
        queue = open_queue(segment_bytes=2000, encryption=encryption)
        put_each(queue, some)
        queue.close()
    queue = open_queue(segment_bytes=2000, encryption=ONE)
    keeping, taking = queue.session(), queue.session()
    for n in range(48):
        (taking if n % 2 else keeping).dequeue()
    taking.flush()
    keeping.rollback()
    queue.close()
    queue = open_queue(segment_bytes=2000)
    before = queue.stats().segments
    assert 0 < queue.compact(below=1.0).segments < before
    assert queue.compact(below=1.0).segments == queue.maintain().compacted_segments == 0
    with pytest.raises(WrongKeyError):
        queue.peek()
    assert (len(queue), queue.stats().damaged) == (24, 0)
    queue.close()
    queue = open_queue(segment_bytes=2000, encryption=ONE)
    assert queue.compact(below=1.0).segments > 0
    assert drain(queue) == rows[::2]


def test_clear_needs_no_key(open_queue: QueueFactory) -> None:
    """``clear`` consumes items whose key is lost, so that the queue can go on."""
    queue = open_queue(encryption=ONE)
    put(queue, b"a")
    queue.close()
    queue = open_queue(encryption=TWO)
    put(queue, b"b")
    assert queue.clear() == 2


def test_keys_are_asked_for_once(open_queue: QueueFactory) -> None:
    """Each key is asked for once per opening, even if several threads read. An opening asks for the write key and for
    the key of the first block."""
    asked: list[str] = []

    def key(key_id: str) -> bytes:
        # Several threads may ask for a key at the same time: the guard must be held.
        assert not len(asked) or asked[0] != "three" or key_id == "one" or guard.locked()
        asked.append(key_id)
        return KEYS[key_id]

    for key_id in ("one", "two"):
        queue = open_queue(encryption=Encryption(key_id, key))
        put_each(queue, [b"x" * 200] * 3)
        queue.close()
    assert asked == ["one", "two", "one"]
    asked.clear()
    queue = open_queue(memory_bytes=0, encryption=Encryption("three", key))
    assert asked == ["three", "one"]
    assert queue._open_queue is not None
    guard: Any = queue._open_queue._store.segments.envelopes._guard
    threads = [threading.Thread(target=items_of, args=[queue]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drain(queue)
    assert asked == ["three", "one", "two"]


def test_a_key_that_could_not_be_had_is_asked_for_again(open_queue: QueueFactory) -> None:
    """A key that could not be had is asked for again by the next call."""
    away = [True]

    def key(key_id: str) -> bytes:
        if key_id == "one" and away:
            raise TimeoutError("the keeper of keys does not answer")
        return KEYS[key_id]

    queue = open_queue(encryption=ONE)
    put(queue, b"a")
    queue.close()
    queue = open_queue(encryption=Encryption("two", key))
    with pytest.raises(WrongKeyError, match="does not answer") as caught:
        drain(queue)
    assert isinstance(caught.value.__cause__, TimeoutError)
    away.clear()
    assert drain(queue) == [b"a"]


def test_keys_are_rotated(open_queue: QueueFactory, directory: Path) -> None:
    """Items that were written under three successive keys all come out. A compaction writes its copies under the newest
    key, after which the old keys are not needed."""
    rows = []
    for number, encryption in enumerate((ONE, TWO, THREE)):
        queue = open_queue(segment_bytes=2000, encryption=encryption)
        rows += [b"%d %d " % (number, n) + os.urandom(150) for n in range(30)]
        put_each(queue, rows[-30:])
        queue.close()
    assert key_ids(directory) == {b"one", b"two", b"three"}
    queue = open_queue(segment_bytes=2000, encryption=THREE)
    assert items_of(queue) == rows
    with queue.session() as session:
        taken = session.dequeue_many(90)
        session.rollback()
        kept = [item for n, item in enumerate(taken) if n % 5]
        # Consume every fifth item, so that each segment is partly consumed.
        sessions = [queue.session() for _ in taken]
        for other, item in zip(sessions, taken, strict=True):
            assert other.dequeue() == item
        for other in sessions[::5]:
            other.flush()
        for other in sessions:
            other.close()
    compacted = queue.compact(below=1.0)
    assert compacted.segments > 10
    assert key_ids(directory) == {b"three"}
    assert items_of(queue) == kept
    queue.close()
    assert drain(open_queue(encryption=Encryption("three", {"three": KEYS["three"]}.__getitem__))) == kept


def key_ids(directory: Path) -> set[bytes]:
    """Return the key ids that the blocks in the segments name."""
    names = [bytes([len(name)]) + name.encode() for name in ("one", "two", "three")]
    data = b"".join(path.read_bytes() for path in segment_files(directory))
    return {name[1:] for name in names if name in data}


@ways
def test_compaction_with_holes(open_queue: QueueFactory, way: str) -> None:
    """A compaction encodes the live items of partly consumed blocks anew, with holes, and all of them come out."""
    queue = open_queue(segment_bytes=20_000, **SETTINGS[way])
    for start in range(0, 3000, 100):
        put(queue, *[TEXT * 3 + b"%d" % n for n in range(start, start + 100)])
    sessions = [queue.session() for _ in range(2)]
    kept = []
    for n in range(3000):
        item = sessions[n % 7 == 0].dequeue()
        if n % 7 == 0:
            kept.append(item)
    sessions[0].flush()
    sessions[1].rollback()
    assert queue.compact(below=1.0).segments
    assert items_of(queue) == kept
    queue.close()
    assert drain(open_queue(**SETTINGS[way])) == kept


def test_settings_change_from_opening_to_opening(open_queue: QueueFactory) -> None:
    """Compression and encryption may change at each opening: each block records its own kind."""
    expected = []
    for number, settings in enumerate([{}, *SETTINGS.values(), {}]):
        queue = open_queue(**settings)
        expected += [b"%d" % number + TEXT * 5, b"%d" % number]
        put(queue, *expected[-2:])
        queue.close()
    assert drain(open_queue(encryption=TWO)) == expected


# --- what lies on the disk -------------------------------------------------------------------------------------------


def files_of(directory: Path) -> dict[Path, bytes]:
    """Return the content of each file below the directory."""
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_no_secret_is_on_the_disk(open_queue: QueueFactory, directory: Path, compression: str | None) -> None:
    """No file contains an item in clear, whichever way the item took: the log, the segments, the inbox, the pool and
    the spare log."""
    settings: dict[str, Any] = {"compression": compression, "encryption": ONE}
    number = iter(range(10**6))

    def secrets(count: int, size_bytes: int = 0) -> list[bytes]:
        return [(SECRET + b"%d" % next(number)).ljust(size_bytes, b".") for _ in range(count)]

    def need_none() -> None:
        assert is_idle()  # else the background thread deletes files while they are read
        assert not [path for path, data in files_of(directory).items() if SECRET in data]

    queue = open_queue(segment_bytes=100_000, memory_bytes=0, pool_max_bytes=10**6, **settings)
    put_each(queue, secrets(20))  # inline
    need_none()
    put(queue, *secrets(2000, 200))  # large
    put(queue, *secrets(2, 400_000))
    with queue.session() as session:  # spilled, and rolled back
        session.enqueue_many(secrets(100, 100_000))
        session.rollback()
    need_none()
    queue.close()
    queue = open_queue(segment_bytes=100_000, memory_bytes=0, pool_max_bytes=10**6, **settings)
    keeping, taking = queue.session(), queue.session()
    for n in range(1000):
        (taking if n % 10 else keeping).dequeue()
    taking.flush()
    keeping.rollback()
    assert queue.compact(below=1.0).segments
    need_none()
    with Producer(directory, **settings) as producer:
        producer.enqueue_many(secrets(10))
        producer.flush()
        producer.enqueue_many(secrets(100, 100_000))
        producer.flush()
    need_none()
    assert len(drain(queue)) + len(drain(queue)) == 1122 + 110
    put(queue, *secrets(10))
    queue.trim()
    need_none()
    crash(queue)
    queue = open_queue(**settings)
    need_none()
    assert len(items_of(queue)) == 10


def test_the_search_for_secrets_finds_them(open_queue: QueueFactory, directory: Path) -> None:
    """Without encryption the search finds the secret in the log."""
    put(open_queue(), SECRET)
    assert [path.suffix for path, data in files_of(directory).items() if SECRET in data] == [".log"]


# --- nonces ----------------------------------------------------------------------------------------------------------


class Nonces:
    """Salts and counters with which something was encrypted in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used: list[tuple[bytes, int]] = []

        def noting(each: Envelope) -> bytes:
            self.used.append((each.salt, each.counter))
            return encode_envelope(each)

        monkeypatch.setattr(core_encryption, "encode_envelope", noting)

    def need_unique(self) -> None:
        """Raise unless there is a pair of salt and counter, and each pair was used once."""
        assert len(set(self.used)) == len(self.used) > 0


def test_no_nonce_is_used_twice(open_queue: QueueFactory, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No nonce is used twice: not by a retry on a full disk, a rollback, a compaction, a publication or another
    opening."""
    nonces = Nonces(monkeypatch)
    full = [False]

    def pwritev(fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        if full[0] and flags == 0 and sum(map(len, buffers)) > 5000:
            raise OSError(errno.ENOSPC, "full")
        return DISK.pwritev(fd, buffers, offset, flags)

    disk = replace(DISK, pwritev=pwritev)
    for opening in range(3):
        queue = open_queue(segment_bytes=20_000, memory_bytes=100_000, encryption=ONE, disk=disk)
        put_each(queue, [TEXT] * 20)
        before = len(nonces.used)
        full[0] = opening == 0
        with queue.session() as session:
            session.enqueue_many([TEXT * 100] * 60)
            if opening == 0:
                with pytest.raises(DiskFullError):
                    session.flush()
                full[0] = False
                assert len(nonces.used) > before
            session.flush()
        with queue.session() as session:
            session.enqueue_many([TEXT * 1000] * 30)  # spilled
            session.rollback()
        with queue.session() as session, queue.session() as other:
            for _ in range(10):
                session.dequeue()
                other.dequeue()
            session.flush()
            other.rollback()
        assert queue.compact(below=1.0).segments
        with Producer(directory, encryption=ONE) as producer:
            producer.enqueue_many([TEXT * 1000] * 300)
            producer.flush()
            producer.enqueue(TEXT)
            producer.rollback()
            producer.enqueue(TEXT)
            producer.flush()
        writer = PartWriter(directory, encryption=ONE)
        writer.write([TEXT])
        part = writer.end()
        assert part is not None and publish_parts(directory, None, [part])
        crash(queue) if opening == 1 else queue.close()
    salts = {salt for salt, _ in nonces.used}
    assert len(salts) >= 3 * 4
    nonces.need_unique()
    assert items_of(open_queue(encryption=ONE))


@pytest.mark.parametrize("kind", [Producer, PartWriter])
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_producer_with_another_key_of_a_known_id(
    open_queue: QueueFactory, directory: Path, place: str, kind: Callable[..., Any]
) -> None:
    """A producer, or the writer of a part, is refused if its key differs from the queue's of the same id.

    A key of another id is accepted, and so is any key if this user may not read the segments.
    """
    Producer(directory, encryption=OTHER).close()  # nothing tells the key yet
    with open_queue(encryption=ONE if place == "first" else TWO) as queue:
        put(queue, b"1")
    with open_queue(encryption=TWO if place == "first" else ONE) as queue:
        put(queue, b"2")

    def opened(path: str, flags: int, mode: int) -> int:
        if "/data/" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return DISK.open(path, flags, mode)

    with pytest.raises(WrongKeyError, match="its checksum is correct"):
        kind(directory, encryption=OTHER)
    kind(directory, encryption=THREE)
    call_on(replace(DISK, open=opened), kind, directory, encryption=OTHER)
    with Producer(directory, encryption=ONE) as producer:
        producer.enqueue(b"3")
        producer.flush()
    assert items_of(open_queue(encryption=ONE)) == [b"1", b"2", b"3"]


def test_a_producer_with_another_key_beside_items_of_a_subscription(open_queue: QueueFactory, directory: Path) -> None:
    """A producer is refused also if only a subscription has items left that tell the key."""
    with open_queue(encryption=ONE) as queue:
        queue.subscribe("slow")
        put(queue, b"1")
        queue.clear()
    with pytest.raises(WrongKeyError, match="its checksum is correct"):
        Producer(directory, encryption=OTHER)


@pytest.mark.damages
@pytest.mark.parametrize("place", [0, -1])
def test_a_producer_with_another_key_beside_a_damaged_item(
    open_queue: QueueFactory, directory: Path, place: int
) -> None:
    """A producer is refused also if the oldest or the newest item is damaged: the other one tells the key."""
    with open_queue(encryption=ONE) as queue:
        put(queue, b"1")
        put(queue, b"2")
    (segment,) = segment_files(directory)
    data = segment.read_bytes()
    flip(segment, [data.index(BLOCK_MAGIC), data.rindex(BLOCK_MAGIC)][place])
    with pytest.raises(WrongKeyError, match="its checksum is correct"):
        Producer(directory, encryption=OTHER)


def test_a_forked_child_draws_a_salt_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child draws its own salt, also for an encoder that its parent began to use."""
    family = [(1, 0), (1, 2), (2, 3)]  # a grandchild with the process id of its grandparent, and its child
    now = iter([process for process in family for _ in range(2)])
    pid, forks = 0, 0

    def getpid() -> int:
        nonlocal pid, forks
        pid, forks = next(now)
        return pid

    encode = Envelopes(None, ONE).encoder(replace(DISK, getpid=getpid, forks=lambda: forks))
    data = [b"".join(encode([TEXT], SALT, 640, 17, 99).buffers) for _ in range(6)]
    found = [envelope_of(each) for each in data]
    assert [each.counter for each in found] == [0, 1] * 3
    assert [each.salt for each in found[::2]] == [each.salt for each in found[1::2]]
    assert len({each.salt for each in found}) == 3
    assert all(decode(each, WAYS["encrypted"]) == [TEXT] for each in data)


def test_salts_come_through_the_door() -> None:
    """Salts are drawn through the disk, so that the replay of a crash draws the same ones."""
    encode = Envelopes(None, ONE).encoder(replace(DISK, urandom=lambda size_bytes: b"s" * size_bytes))
    first = b"".join(encode([TEXT], SALT, 640, 17, 99).buffers)
    encode = Envelopes(None, ONE).encoder(replace(DISK, urandom=lambda size_bytes: b"s" * size_bytes))
    assert b"".join(encode([TEXT], SALT, 640, 17, 99).buffers) == first
    assert envelope_of(first).salt == b"s" * 16


# --- others ----------------------------------------------------------------------------------------------------------


@ways
def test_producers_and_parts(open_queue: QueueFactory, directory: Path, way: str) -> None:
    """The owner adopts compressed or encrypted publications without a key. An opening with the settings returns their
    items in order."""
    open_queue().close()
    with Producer(directory, **SETTINGS[way]) as producer:
        producer.enqueue(TEXT * 9)
        producer.flush()
        producer.enqueue_many([TEXT * 40_000] * 5)
        producer.flush()
    writer = PartWriter(directory, **SETTINGS[way])
    writer.write([TEXT * 7] * 2)
    part = writer.end()
    assert part is not None and publish_parts(directory, None, [part])
    assert check(directory).published == 8
    queue = open_queue()
    assert len(queue) == 8
    queue.close()
    assert drain(open_queue(**SETTINGS[way])) == [TEXT * 9, *[TEXT * 40_000] * 5, TEXT * 7, TEXT * 7]


def test_who_reads_beside_the_owner(open_queue: QueueFactory, directory: Path) -> None:
    """A reader without the lock reads compressed items from the segments and from the log. For encrypted items it
    raises ``WrongKeyError``."""
    queue = open_queue(compression="zstd")
    put(queue, *[TEXT * 50] * 3)
    put(queue, *[TEXT * 10_000] * 3)

    def found() -> list[bytes]:
        places, recovered = look(DISK, str(directory))
        splits = plan(DISK, places, recovered, [(0, recovered.state.next_sequence)])
        return [item for split in splits for each in read(DISK, str(directory), split) for item in each.items]

    assert found() == [*[TEXT * 50] * 3, *[TEXT * 10_000] * 3]
    queue.close()
    queue = open_queue(encryption=ONE)
    put(queue, b"z")
    with pytest.raises(WrongKeyError, match="no key was given"):
        found()
    assert len(queue) == 7


@ways
@pytest.mark.damages
def test_check_and_repair_need_neither_key_nor_library(
    open_queue: QueueFactory, directory: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``check`` and ``repair`` find and cut out damage by checksums alone. Without a log, items that a block records as
    a hole stay consumed."""
    queue = open_queue(segment_bytes=20_000, **SETTINGS[way])
    rows = [[TEXT * 3 + os.urandom(20) + b"%d" % n for n in range(start, start + 20)] for start in range(0, 200, 20)]
    for row in rows:
        put(queue, *row)
    queue.close()
    path = segment_files(directory)[0]
    first_bytes = struct.unpack_from("<Q", path.read_bytes(), HEADER_BYTES + 24)[0] + BLOCK_HEADER_BYTES
    flip(path, HEADER_BYTES + first_bytes + 200)
    with without(monkeypatch, "zstandard"), without(monkeypatch, "cryptography"):
        report = check(directory)
        assert len(report.problems) == 1 and str(HEADER_BYTES + first_bytes) in report.problems[0]
        repaired = repair(directory)
        assert (repaired.items, repaired.lost) == (180, ((20, 20),))
        assert check(directory).ok
    queue = open_queue(segment_bytes=20_000, **SETTINGS[way])
    left = [item for n, row in enumerate(rows) if n != 1 for item in row]
    assert items_of(queue) == left
    keeping, taking = queue.session(), queue.session()
    for n in range(180):
        (taking if n % 3 else keeping).dequeue()
    taking.flush()
    keeping.rollback()
    assert queue.compact(below=1.0).segments
    kept = items_of(queue)
    assert kept == left[::3]
    queue.close()
    log = log_file(directory)
    log.write_bytes(log.read_bytes()[:HEADER_BYTES] + bytes(1000))
    with without(monkeypatch, "zstandard"), without(monkeypatch, "cryptography"):
        repaired = repair(directory)
        assert repaired.without_log and repaired.items >= 60
    assert [item for item in drain(open_queue(**SETTINGS[way])) if item in kept] == kept


@pytest.mark.damages
def test_damage_behind_an_envelope_costs_its_own_items(open_queue: QueueFactory, directory: Path) -> None:
    """Damage in an encrypted block costs only the items of that block: the error is raised once, and later items come
    out."""
    queue = open_queue(memory_bytes=0, encryption=ONE, compression="zstd")
    for n in range(3):
        put(queue, *[b"%d" % n + TEXT * 2000] * 300)
    queue.close()
    flip(segment_files(directory)[0], HEADER_BYTES + BLOCK_HEADER_BYTES + 3)  # the raw length: it now claims gigabytes
    queue = open_queue(memory_bytes=0, encryption=ONE)
    with queue.transaction() as session:
        with pytest.raises(CorruptionError):
            session.dequeue()
        left = session.dequeue_many(10**6)
    assert left[-600:] == [b"1" + TEXT * 2000] * 300 + [b"2" + TEXT * 2000] * 300
    assert queue.stats().damaged == 900 - len(left)


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"compression": "lz4"}, ValueError, 'compression must be None or "zstd"'),
        ({"compression": True}, ValueError, "compression must be"),
        ({"encryption": b"key"}, TypeError, "encryption must be None or an Encryption"),
        ({"encryption": Encryption("a", lambda key_id: b"short")}, WrongKeyError, "returned 5 bytes, not 16, 24 or 32"),
        ({"encryption": Encryption("a", lambda key_id: "x" * 16)}, WrongKeyError, "returned str"),  # type: ignore[arg-type, return-value]
        ({"encryption": Encryption("a", KEYS.__getitem__)}, WrongKeyError, "the key 'a': key.. raised KeyError"),
    ],
)
def test_settings_that_are_wrong(
    open_queue: QueueFactory, directory: Path, settings: dict[str, object], error: type[Exception], message: str
) -> None:
    """Wrong values for ``compression`` and ``encryption`` are refused before anything is made."""
    with pytest.raises(error, match=message):
        open_queue(**settings)
    assert not directory.exists()


def test_key_ids() -> None:
    """A key id is any text of 1 to 255 bytes."""
    for right in ("k", "k" * 255, "schlüssel"):
        way = Envelopes(None, Encryption(right, lambda key_id: bytes(24)))
        data = b"".join(way.encoder(DISK)([TEXT], SALT, 640, 17, 99).buffers)
        assert decode(data, way) == [TEXT]
        assert len(data) == encode_block([TEXT], SALT, 640, 17, 99).length_bytes + way.most_bytes
        assert envelope_of(data).key_id == right
    for wrong in ("", "k" * 256, "ü" * 128, "\udc80"):
        with pytest.raises(ValueError, match="key_id must be 1 to 255 bytes"):
            Encryption(wrong, KEYS.__getitem__)
    with pytest.raises(TypeError, match="key_id must be text, not b'k'"):
        Encryption(b"k", KEYS.__getitem__)  # type: ignore[arg-type]


def test_a_key_is_never_shown() -> None:
    """A key in place of the function is refused at once, without its bytes, and the ``repr`` has no key."""
    with pytest.raises(TypeError, match=r"key must be a function .*, not an object of type bytes$"):
        Encryption("k", b"x" * 32)  # type: ignore[arg-type]
    keys = {"k": b"x" * 32}
    assert repr(Encryption("k", keys.__getitem__)) == "Encryption(key_id='k')"


def test_libraries_are_imported_by_who_needs_them() -> None:
    """Neither the package nor a queue without compression and encryption imports the optional libraries."""
    code = (
        "import sys, tempfile\n"
        "sys.modules.update(zstandard=None, cryptography=None)\n"
        "import persistentqueue\n"
        "with tempfile.TemporaryDirectory() as path, persistentqueue.PersistentQueue(path) as queue:\n"
        "    with queue.transaction() as session: session.enqueue(b'x')\n"
        "    assert queue.peek() == [b'x']\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_compression_without_memory_raises_memory_error(
    open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If zstd gets no memory, ``flush`` raises ``MemoryError``, and the session can flush its items later."""
    zstandard = pytest.importorskip("zstandard")
    compressor, is_short = zstandard.ZstdCompressor(), [True]

    class Short:
        """A compressor that has no memory for its first call."""

        def __init__(self, level: int) -> None:
            pass

        def compress(self, data: bytes) -> bytes:
            if is_short.pop():
                raise zstandard.ZstdError("cannot compress: Allocation error : not enough memory")
            compressed: bytes = compressor.compress(data)
            return compressed

    monkeypatch.setattr(zstandard, "ZstdCompressor", Short)
    queue = open_queue(compression="zstd")
    with queue.session() as session:
        session.enqueue(TEXT)
        with pytest.raises(MemoryError, match=r"zstd cannot compress .* not enough memory"):
            session.flush()
        is_short.append(False)
        session.flush()
    assert drain(queue) == [TEXT]


def test_only_one_room_imports_the_libraries() -> None:
    """Only one module of the package imports ``zstandard`` and ``cryptography``."""
    rooms = Path(persistentqueue.__file__).parent.rglob("*.py")
    importing = re.compile(r"^\s*(import|from) (zstandard|cryptography)\b", re.MULTILINE)
    assert [room.name for room in rooms if importing.search(room.read_text())] == ["encryption.py"]


def test_a_producer_refuses_wrong_settings(directory: Path) -> None:
    """A producer, a part and a view refuse an unknown compression, and an encryption that is none."""
    PersistentQueue(directory).close()
    for kind in (Producer, PartWriter):
        with pytest.raises(ValueError, match=r"compression must be None or \"zstd\", got 'gzip'"):
            kind(directory, compression="gzip")  # type: ignore[arg-type]
    calls: list[Callable[..., object]] = [Producer, PartWriter, View]
    for call in calls:
        with pytest.raises(TypeError, match="encryption must be None or an Encryption, not 'key'"):
            call(directory, encryption="key")

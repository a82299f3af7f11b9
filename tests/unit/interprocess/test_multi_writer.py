"""Manifests: transactions that many processes write in parts, and that are published and adopted as one."""

from __future__ import annotations

import errno
import os
import random
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    CorruptionError,
    DataPathError,
    DiskFullError,
    ItemTooLargeError,
    PersistentQueue,
    Producer,
    QueueFullError,
    QueueNotFoundError,
    check,
    delete_queue,
    move_data,
    repair,
)
from persistentqueue.core.block import SEGMENT_MAGIC, Columns
from persistentqueue.core.frame import encode_frame
from persistentqueue.core.header import HEADER_BYTES, VERSION, decode_header, encode_header
from persistentqueue.core.operations import Adoption, Enqueue, MarkerSet, Operation, encode_transaction
from persistentqueue.engine.inbox import ADOPTED_MAX, PART_SECONDS_KEPT
from persistentqueue.engine.transaction import SPILL_BYTES
from persistentqueue.errors import UnsupportedFormatError
from persistentqueue.interprocess import multi_writer as room
from persistentqueue.interprocess.multi_writer import (
    PART_SECONDS_MAX,
    ExpiredPartError,
    PartWriter,
    list_published,
    publish_parts,
    published_version,
    remove_parts,
)
from persistentqueue.storage.layout import names_in
from persistentqueue.storage.publication import Draft, Part, is_part, is_published, read_publication
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import IN_CACHE, crash, drain, flip, log_file, put

LISTS = ([b"a", b"b"], [b"c"], [b"d", b"e", b"f"])
ALL = [item for items in LISTS for item in items]


def write(directory: Path, *lists: Sequence[bytes], disk: Disk = DISK) -> list[Part]:
    """Write a part for each list of items; return the parts."""
    parts = []
    for items in lists:
        writer = call_on(disk, PartWriter, directory)
        writer.write(items)
        part = writer.end()
        assert part is not None
        parts.append(part)
    return parts


def publish(directory: Path, *lists: Sequence[bytes], marker: tuple[str, int] | None = None) -> list[Part]:
    """Publish a manifest of such parts; return the parts."""
    parts = write(directory, *lists)
    assert publish_parts(directory, None, parts, marker)
    return parts


def inbox(directory: Path) -> list[str]:
    """Return the names in the inbox, in order."""
    return sorted(os.listdir(directory / "inbox"))


def grow_old(path: Path, seconds: float) -> None:
    """Make the file look as if it was written this many seconds ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.fixture
def made(directory: Path) -> Path:
    """Return the directory of a new queue that is not open."""
    PersistentQueue(directory).close()
    return directory


# --- the promises ----------------------------------------------------------------------------------------------------


def test_parts_come_out_of_an_open_queue_as_one(open_queue: QueueFactory, directory: Path) -> None:
    """Parts are invisible until their manifest is published; then their items come once, in the order of the manifest.

    The files of the parts become segments of the queue; that of the manifest goes with the next trim.
    """
    queue = open_queue()
    put(queue, b"own")
    parts = write(directory, *LISTS)
    assert all(map(is_part, inbox(directory)))
    assert len(queue) == 1
    assert drain(queue) == [b"own"]
    assert publish_parts(directory.parent, directory.name, [parts[2], parts[0], parts[1]])
    assert (queue.stats().published, len(list_published(directory, None))) == (1, 1)
    with queue.session() as session:
        items = session.dequeue_many(99)
        assert items == [b"d", b"e", b"f", b"a", b"b", b"c"]
        assert inbox(directory) == []
        queue.trim()
        assert queue.stats().segments == 3 + 1
        session.flush()
    assert drain(queue) == []


def test_nobody_need_own_the_queue(made: Path) -> None:
    """Without an owner, the next opening adopts what manifests and producers have published, in the order of
    publication."""
    with Producer(made) as producer:
        producer.enqueue(b"first")
        producer.flush()
        publish(made, *LISTS, marker=("app", 1))
        producer.enqueue(b"last")
        producer.flush()
    report = check(made)
    assert (report.ok, report.published, report.leftovers) == (True, len(ALL) + 2, ())
    with PersistentQueue(made) as queue:
        assert queue.marker("app") == 1
        assert drain(queue) == [b"first", *ALL, b"last"]


def test_parts_without_a_manifest_are_nothing(open_queue: QueueFactory, directory: Path) -> None:
    """Parts that no manifest names are neither published nor a problem nor left over; deleting the queue deletes
    them."""
    queue = open_queue()
    write(directory, *LISTS)
    assert drain(queue) == []
    assert queue.stats().published == 0
    queue.close()
    open_queue().close()
    report = check(directory)
    assert (report.ok, report.published, report.leftovers) == (True, 0, ())
    assert len(inbox(directory)) == 3
    delete_queue(directory)
    assert not (directory / "inbox").exists()


def test_a_marker_is_reached_once(open_queue: QueueFactory, directory: Path) -> None:
    """A marker is reached once: a repeated publication is refused, or dropped by the owner, and its own parts are
    deleted.

    Parts that a counted manifest names stay, even if they are published again.
    """
    queue = open_queue()
    parts = publish(directory, *LISTS, marker=("app", 7))
    waiting = inbox(directory)
    again = write(directory, [b"again"])
    assert not publish_parts(directory, None, again, ("app", 7))
    assert not publish_parts(directory, None, parts, ("app", 7))
    assert inbox(directory) == waiting
    assert drain(queue) == ALL
    again = write(directory, [b"again"])
    assert not publish_parts(directory, None, [*parts, *again], ("app", 7))
    assert inbox(directory) == []
    again = write(directory, [b"again"])
    publish_parts(directory, None, again, ("app", 6))
    assert drain(queue) == []
    assert inbox(directory) == []
    assert publish_parts(directory, None, [], ("app", 8))
    assert drain(queue) == []
    assert queue.marker("app") == 8
    assert publish_parts(directory, None, [])  # nothing to publish
    assert inbox(directory) == []


@pytest.mark.parametrize("sync", [True, False])
def test_what_is_skipped_goes_with_its_parts(open_queue: QueueFactory, directory: Path, sync: bool) -> None:
    """If two publishers of a marker do not see each other, the owner adopts the first manifest and deletes the second,
    with its parts."""
    queue = open_queue(sync=sync)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "_waiting_version", lambda *_: None)
        publish(directory, [b"one"], [b"two"], marker=("app", 1))
        publish(directory, [b"three"], [b"four"], marker=("app", 1))
        publish(directory, marker=("app", 1))
    assert drain(queue) == [b"one", b"two"]
    assert drain(queue) == []
    assert inbox(directory) == []


def test_what_is_skipped_and_cannot_be_deleted_is_swept(directory: Path) -> None:
    """Parts that could not be deleted with their skipped manifest are swept when they are old."""

    def fails(path: str) -> None:
        if is_part(os.path.basename(path)):
            raise PermissionError(errno.EPERM, "Operation not permitted", path)
        DISK.unlink(path)

    with call_on(replace(DISK, unlink=fails), PersistentQueue, directory) as queue:
        with queue.session() as session:
            session.flush(("app", 1))
        publish(directory, [b"x"], marker=("app", 1))
        assert drain(queue) == []
    (left,) = inbox(directory)
    assert is_part(left)
    grow_old(directory / "inbox" / left, PART_SECONDS_KEPT + 60)
    PersistentQueue(directory).close()
    assert inbox(directory) == []


def test_manifests_with_one_marker_come_in_their_order(made: Path) -> None:
    """Manifests with one marker come in the order of their versions, even if the clock goes back between their
    publishers.

    So a later version hides no earlier one.
    """
    now_ns = time.time_ns()
    clocks = iter([now_ns + 10**12] * 2 + [now_ns] * 9)  # the second value is for the age of the part
    for version in range(3):
        parts = write(made, [b"%d" % version])
        assert call_on(replace(DISK, time_ns=lambda: next(clocks)), publish_parts, made, None, parts, ("app", version))
    with PersistentQueue(made) as queue:
        assert drain(queue) == [b"0", b"1", b"2"]
        assert queue.marker("app") == 2


def test_the_version_that_was_published(made: Path) -> None:
    """The last version of a marker is found while its manifest waits, when it is adopted, and beside an older manifest.

    If the log cannot be read, the manifest that waits tells it.
    """
    assert published_version(made, None, "app") is None
    for version in (2, 3):
        publish(made, [b"x"], marker=("app", version))
        assert published_version(made, None, "app") == version
    PersistentQueue(made).close()
    assert published_version(made, None, "app") == 3
    publish(made, [b"x"], marker=("app", 1))
    assert published_version(made, None, "app") == 3
    assert published_version(made, None, "other") is None
    flip(log_file(made), 0)
    assert published_version(made, None, "app") == 1
    flip(log_file(made), 0)


def test_two_markers_whose_names_make_the_same_producer(made: Path) -> None:
    """Publications of another marker do not count for this one, even if both names make the same producer."""
    publish(made, [b"x"], marker=("app", 1))
    (first,) = filter(is_published, inbox(made))
    other = Draft(DISK, str(made / "inbox"), first[17:33], time.time_ns())
    other.publish(("other", 9), time.time_ns())
    assert not publish_parts(made, None, [], ("app", 1))
    assert publish_parts(made, None, [], ("app", 2))
    with PersistentQueue(made) as queue:
        assert (queue.marker("app"), queue.marker("other"), drain(queue)) == (2, 9, [b"x"])


def test_two_that_publish_at_the_same_moment(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher does not take the name of another one that is about to publish, or that published while it looked."""
    disk = replace(DISK, time_ns=lambda: 10**18)
    assert call_on(disk, publish_parts, made, None, [], ("app", 1))
    (first,) = inbox(made)
    producer = first[17:33]
    abandoned = Draft(disk, str(made / "inbox"), producer, 10**18 + 1)
    early, real = iter([False, True]), names_in  # the first listing is too early to show the other name
    monkeypatch.setattr(room, "names_in", lambda disk, path: [] if next(early, False) else real(disk, path))
    assert call_on(disk, publish_parts, made, None, [], ("app", 2))
    names = [name for name in inbox(made) if is_published(name)]
    assert names == [first, f"{10**18 + 2:016x}-{producer}.seg"]
    abandoned.drop()
    with PersistentQueue(made) as queue:
        assert queue.marker("app") == 2


@pytest.mark.unwatched
def test_a_manifest_of_very_many(open_queue: QueueFactory, directory: Path) -> None:
    """A manifest may name more parts than a usual frame or the usual length of the log takes."""
    queue = open_queue(log_bytes=64 * 1024)
    count = 6 * ADOPTED_MAX
    parts = write(directory, *([b"%d" % number] for number in range(count)), disk=IN_CACHE)
    assert publish_parts(directory, None, parts)
    with Producer(directory) as producer:
        producer.enqueue(b"last")
        producer.flush()
    assert drain(queue) == [*(b"%d" % number for number in range(count)), b"last"]


# --- writing ---------------------------------------------------------------------------------------------------------


def test_a_part_of_any_size(open_queue: QueueFactory, directory: Path) -> None:
    """A part may have any size: its writer keeps at most ``SPILL_BYTES`` in memory, and the items come out
    unchanged."""
    queue = open_queue()
    items = [os.urandom(300 * 1024) + b"%d" % n for n in range(3 * SPILL_BYTES // (300 * 1024))] + [b"", b"last"]
    writer = PartWriter(directory)
    for item in items:
        writer.write([item])
        assert writer._batch.payload_bytes <= SPILL_BYTES
    part = writer.end()
    assert part is not None
    assert part.count == len(items)
    assert read_publication(DISK, str(directory / "inbox" / part.name)).own == part
    assert (directory / "inbox" / part.name).stat().st_mode & 0o777 == 0o600
    publish_parts(directory, None, [part])
    assert drain(queue) == items


def columns_of(items: Sequence[bytes]) -> Columns:
    """Return the items as columns."""
    return Columns(struct.pack(f"<{len(items)}I", *map(len, items)), b"".join(items))


@pytest.mark.parametrize(
    "lists",
    [
        [[b"a", b"", b"bc"], [], [b"d"]],
        [[b"x" * 100] * 10_000] * 6,
        [[os.urandom(n % 900) for n in range(9000)], [b""] * 70_000, [bytes(6_000_000), b"last"]],
        [[bytes(300_000)] * 40],
    ],
    ids=("few", "equally long", "of many lengths", "large"),
)
def test_columns_make_the_file_that_items_make(
    made: Path, monkeypatch: pytest.MonkeyPatch, lists: list[list[bytes]]
) -> None:
    """Columns are written byte for byte like their items, also if both come in turn."""

    def file_of(*adds: str) -> bytes:
        clock, chance = count(1_800_000_000_000_000_000), random.Random(7)
        disk = replace(DISK, time_ns=lambda: next(clock), urandom=chance.randbytes)
        writer = call_on(disk, PartWriter, made)
        for add, items in zip(cycle(adds), lists, strict=False):
            getattr(writer, add)(columns_of(items) if add == "write_columns" else items)
        part = writer.end()
        assert part is not None
        data = (made / "inbox" / part.name).read_bytes()
        writer.drop()
        return data

    expected = file_of("write")
    assert file_of("write_columns") == expected
    if sum(map(len, lists)) < 100:
        monkeypatch.setattr(room, "SPILL_BYTES", 0)  # each item is then a block of its own
        assert file_of("write", "write_columns") == file_of("write_columns", "write") == file_of("write")


def test_columns_whose_lengths_are_wrong(made: Path) -> None:
    """Columns whose lengths do not add up to the payload are refused, and what came before is kept."""
    writer = PartWriter(made)
    writer.write_columns(columns_of([b"a", b"bc"]))
    for wrong in (Columns(b"\1\0\0\0", b"ab"), Columns(b"\1\0\0\0\1\0\0\0", b"a"), Columns(b"\1\0\0", b"a")):
        with pytest.raises(ValueError, match="lengths, as u32, that add up to it"):
            writer.write_columns(wrong)
    part = writer.end()
    assert part is not None
    assert part.count == 2
    writer.drop()
    assert inbox(made) == []


def test_a_part_of_nothing(made: Path) -> None:
    """A writer without items leaves no file."""
    writer = PartWriter(made)
    writer.write([])
    assert writer.end() is None
    writer.drop()
    assert inbox(made) == []


@pytest.mark.parametrize("until", ["memory", "draft", "end"])
def test_who_drops_leaves_nothing(made: Path, until: str) -> None:
    """A part that is dropped is gone, even after its end; dropping it twice does nothing."""
    writer = PartWriter(made)
    writer.write([b"x"] if until == "memory" else [bytes(SPILL_BYTES), b"x"])
    if until == "end":
        assert writer.end() is not None
    assert len(inbox(made)) == (until != "memory")
    writer.drop()
    writer.drop()
    assert inbox(made) == []


@pytest.mark.parametrize(
    ("call", "error", "expected"),
    [
        ("pwritev", errno.ENOSPC, DiskFullError),
        ("fdatasync", errno.EIO, OSError),
        ("rename", errno.ENOENT, DataPathError),
        ("fsync", errno.EIO, OSError),
    ],
)
def test_a_part_that_fails(made: Path, call: str, error: int, expected: type[Exception]) -> None:
    """A part that fails raises an error that fits the failure, and leaves no file."""

    def fails(*arguments: Any) -> Any:
        raise OSError(error, os.strerror(error))

    writer = call_on(replace(DISK, **{call: fails}), PartWriter, made)
    writer.write([b"x"])
    with pytest.raises(expected):
        writer.end()
    writer.drop()
    assert inbox(made) == []


def test_what_cannot_be_written(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that is too large and a queue that does not exist are refused."""
    monkeypatch.setattr("persistentqueue.core.items.ITEM_BYTES_MAX", 10)
    with pytest.raises(ItemTooLargeError):
        PartWriter(made).write([bytes(11)])
    for call in (PartWriter, lambda path: publish_parts(path, None, []), lambda path: list_published(path, None)):
        with pytest.raises(QueueNotFoundError):
            call(made / "nowhere")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("call", ["write", "write_columns", "end", "drop"])
def test_a_forked_child_leaves_the_part_of_its_parent(made: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a forked child a writer refuses calls, and the part that the parent goes on with has only its items."""
    writer, items = PartWriter(made), [b"p" * 100_000] * 60
    writer.write(items)
    pid = os.fork()
    if not pid:  # pragma: no cover - another process
        status = 1
        try:
            arguments = {"write": ([b"c" * 100_000] * 60,), "write_columns": (Columns(b"", b""),)}.get(call, ())
            getattr(writer, call)(*arguments)
            status = int(call != "drop")
        except ClosedError:
            status = int(call == "drop")
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    with monkeypatch.context() as patched, pytest.raises(ClosedError, match="parent process"):
        patched.setattr(writer, "_forks", writer._forks + 1)
        writer.end()
    writer.write(items)
    part = writer.end()
    assert part is not None
    assert publish_parts(made, None, [part])
    with PersistentQueue(made) as queue:
        assert drain(queue) == items * 2


# --- publishing ------------------------------------------------------------------------------------------------------


def test_parts_that_are_not_there_are_not_published(made: Path) -> None:
    """A publisher checks each part first: if one is missing, expired or of another size, nothing is published."""
    parts = write(made, *LISTS)
    path = made / "inbox" / parts[1].name
    whole = path.read_bytes()
    for damage, match in (
        (path.unlink, "no file.*must see the files"),
        (lambda: path.write_bytes(whole[:-1]), f"expected a part of {len(whole)} bytes, found {len(whole) - 1}"),
    ):
        damage()
        with pytest.raises(CorruptionError, match=match):
            publish_parts(made, None, parts)
    path.write_bytes(whole)
    grow_old(path, PART_SECONDS_MAX + 3600)
    with pytest.raises(ExpiredPartError, match=r"6\.0 days ago.*write it again"):
        publish_parts(made, None, parts)
    swept = parts[0]._replace(name=f"{1:016x}{parts[0].name[16:]}")
    with pytest.raises(ExpiredPartError, match="write it again"):
        publish_parts(made, None, [swept])
    grow_old(path, PART_SECONDS_MAX - 3600)
    assert publish_parts(made, None, parts)
    with PersistentQueue(made) as queue:
        assert drain(queue) == ALL
        with queue.session() as session:
            session.flush(marker=("done", 1))
    assert not publish_parts(made, None, [swept], ("done", 1))  # it was published with this marker, long ago


@pytest.mark.parametrize(
    ("call", "error", "expected"),
    [
        ("pwritev", errno.ENOSPC, DiskFullError),
        ("pwritev", errno.EIO, OSError),
        ("rename", errno.ENOENT, DataPathError),
        ("fsync", errno.EIO, BrokenQueueError),
    ],
)
def test_a_publication_that_fails(made: Path, call: str, error: int, expected: type[Exception]) -> None:
    """A publication that fails changes nothing and can be repeated, unless the last sync fails: then the outcome is
    unknown."""

    def fails(*arguments: Any) -> Any:
        raise OSError(error, os.strerror(error))

    parts = write(made, *LISTS)
    with pytest.raises(expected):
        call_on(replace(DISK, **{call: fails}), publish_parts, made, None, parts, ("app", 1))
    is_unknown = expected is BrokenQueueError
    assert len(inbox(made)) == 3 + is_unknown
    assert publish_parts(made, None, parts, ("app", 1)) is not is_unknown
    with PersistentQueue(made) as queue:
        assert drain(queue) == ALL


def test_parts_are_removed_unless_they_are_published(open_queue: QueueFactory, directory: Path) -> None:
    """``remove_parts`` deletes parts, except those that a manifest names or may name."""
    queue = open_queue()
    named, unnamed = publish(directory, *LISTS), write(directory, [b"x"], [b"y"])
    remove_parts(directory, None, [*named, *unnamed])
    remove_parts(directory, None, unnamed)
    assert len(inbox(directory)) == 1 + 3
    assert drain(queue) == ALL
    remove_parts(directory, None, named)
    parts = write(directory, [b"x"])
    publish(directory, [b"newer"])
    manifest = next(path for path in (directory / "inbox").iterdir() if is_published(path.name))
    whole = manifest.read_bytes()
    manifest.write_bytes(b"?" + whole[1:])
    remove_parts(directory, None, parts)  # keeps the parts, without an error
    assert len(inbox(directory)) == 3
    manifest.write_bytes(whole)
    remove_parts(directory, None, parts)
    assert drain(queue) == [b"newer"]


# --- damage and leftovers --------------------------------------------------------------------------------------------


@pytest.mark.damages
@pytest.mark.parametrize("harm", ["missing", "short", "pipe"])
def test_a_manifest_without_its_parts_is_set_aside(open_queue: QueueFactory, directory: Path, harm: str) -> None:
    """A manifest with a missing or invalid part is reported once, and none of it is adopted.

    Its other parts stay, and the files behind it are adopted.
    """
    queue = open_queue()
    parts = publish(directory, *LISTS)
    publish(directory, [b"next"])
    path = directory / "inbox" / parts[1].name
    whole = path.read_bytes()
    path.unlink()
    if harm == "short":
        path.write_bytes(whole[:-1])
    elif harm == "pipe":
        os.mkfifo(path)
    assert not check(directory).ok or harm == "short"  # the blocks of a short part are whole
    assert drain(queue) == [b"next"]
    with queue.session() as session:
        with pytest.raises(CorruptionError, match="a regular file" if harm == "pipe" else parts[1].name):
            session.dequeue()
        assert session.dequeue() is None
    names = inbox(directory)
    assert sum(name.endswith(".seg.damaged") for name in names) == 1
    assert {parts[0].name, parts[2].name} <= set(names)


@pytest.mark.damages
def test_damage_within_a_part(open_queue: QueueFactory, directory: Path) -> None:
    """Damage in the blocks of a part is found by ``check`` and by a dequeue of these items; the other items come
    out."""
    queue = open_queue()
    parts = publish(directory, *LISTS)
    flip(directory / "inbox" / parts[1].name, 70)
    assert not check(directory).ok
    with queue.session() as session:
        assert session.dequeue_many(9) == [b"a", b"b"]
        with pytest.raises(CorruptionError):
            session.dequeue()
        assert session.dequeue_many(9) == [b"d", b"e", b"f"]
        session.rollback()


def _named(parts: list[Part]) -> list[Operation]:
    return [
        operation
        for part in parts
        for operation in (
            Adoption(0, part.salt, part.capacity_bytes, part.name),
            Enqueue(0, part.count, 0, HEADER_BYTES, part.length_bytes, 0, part.checksum),
        )
    ]


@pytest.mark.damages
@pytest.mark.parametrize(
    "change",
    [
        lambda own, parts: [own, *_named(parts), *_named(parts)],
        lambda own, parts: [own, *_named([parts[0]._replace(name=own.name)])],
        lambda own, parts: [own, *_named([parts[0]._replace(name="../" + parts[0].name)])],
        lambda own, parts: [own, *_named([parts[0]._replace(capacity_bytes=1)])],
        lambda own, parts: [own, _named(parts)[0]],
        lambda own, parts: [own, MarkerSet("app", 1), *_named(parts)],
        lambda own, parts: [own._replace(salt=own.salt ^ 1), *_named(parts)],
        lambda own, parts: [*_named(parts), own],
        lambda own, parts: [_named(parts)[1], own],
        lambda own, parts: [own._replace(name=parts[0].name), *_named(parts)],
        lambda own, parts: [own._replace(name=parts[0].name)],
    ],
)
def test_a_manifest_that_says_something_else(
    open_queue: QueueFactory, directory: Path, change: Callable[[Adoption, list[Part]], list[Operation]]
) -> None:
    """A frame with a correct checksum that is not a manifest's is refused, and nothing is adopted."""
    queue = open_queue()
    parts = publish(directory, [b"x"])
    path = next(path for path in (directory / "inbox").iterdir() if is_published(path.name))
    header = decode_header(path.read_bytes(), SEGMENT_MAGIC, path.name)
    operations = change(Adoption(0, header.salt, 0, path.name), parts)
    body = encode_transaction(operations)
    frame, _ = encode_frame(body, header.salt, 0, 1, 0, 1, len(operations))
    path.write_bytes(path.read_bytes()[:HEADER_BYTES] + frame + body)
    with queue.session() as session, pytest.raises(CorruptionError, match="or parts"):
        session.dequeue()
    assert inbox(directory) == sorted([f"{path.name}.damaged", parts[0].name])


def test_old_parts_are_swept(directory: Path) -> None:
    """Opening and maintenance delete old parts that no manifest names."""
    with PersistentQueue(directory, max_items=1) as queue:
        put(queue, b"full")
        named = publish(directory, [b"x"])
        old, young, later = write(directory, [b"old"], [b"young"], [b"later"])
        for part in (*named, old):
            grow_old(directory / "inbox" / part.name, PART_SECONDS_KEPT + 60)
        grow_old(directory / "inbox" / young.name, PART_SECONDS_KEPT - 3600)
        assert old.name in inbox(directory)
        queue.maintain()
        assert [name for name in inbox(directory) if is_part(name)] == [named[0].name, young.name, later.name]
    grow_old(directory / "inbox" / later.name, PART_SECONDS_KEPT + 60)
    with PersistentQueue(directory) as queue:
        assert inbox(directory) == [young.name]
        assert drain(queue) == [b"full", b"x"]


def test_nothing_is_swept_where_a_manifest_may_name_it(open_queue: QueueFactory, directory: Path) -> None:
    """Old parts stay while a published file cannot be read or was set aside, since it may name them."""
    queue = open_queue()
    parts = publish(directory, [b"x"])
    path = directory / "inbox" / parts[0].name
    grow_old(path, PART_SECONDS_KEPT + 60)
    manifest = next(each for each in path.parent.iterdir() if is_published(each.name))
    whole = manifest.read_bytes()
    newer = encode_header(SEGMENT_MAGIC, decode_header(whole, SEGMENT_MAGIC, "x"), VERSION + 1)
    manifest.write_bytes(newer + whole[HEADER_BYTES:])
    queue.maintain()
    assert path.exists()
    with queue.session() as session, pytest.raises(UnsupportedFormatError):
        session.dequeue()
    aside = manifest.with_name(f"{manifest.name}.damaged")
    manifest.rename(aside)
    queue.maintain()
    assert path.exists()
    aside.unlink()
    queue.maintain()
    assert not path.exists()


# --- limits ----------------------------------------------------------------------------------------------------------


def test_where_limits_leave_no_room_all_of_it_waits(open_queue: QueueFactory, directory: Path) -> None:
    """If a limit of items or of the disk leaves no room for a manifest, all of it waits with its parts."""
    queue = open_queue(max_items=6)
    put(queue, b"x")
    publish(directory, *LISTS)
    with queue.session() as session:
        assert session.dequeue_many(9) == [b"x"]
        assert session.dequeue() is None
        assert len(inbox(directory)) == 4
        session.flush()
        assert session.dequeue_many(9) == ALL
        session.flush()
    other = open_queue("other", max_disk_bytes=8 * 1024 * 1024)
    room_of = directory.parent / "other"
    (room_of / "queue.limits").unlink()  # as if the producer knew of no limit
    publish(room_of, *([bytes(1024 * 1024)] for _ in range(4)))
    with other.session() as session:
        with pytest.raises(QueueFullError, match=r"max_disk_bytes=8388608 .* never fits"):  # reported once
            session.dequeue()
        assert session.dequeue() is None
        assert len(inbox(room_of)) == 5
        assert other._open_queue is not None
        before = other._open_queue._store.quota.used_bytes
        assert before < 4 * 1024 * 1024
    put(other, b"y")
    assert drain(other) == [b"y"]
    for name in inbox(room_of):
        (room_of / "inbox" / name).unlink()


# --- crashes, moves, repair ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("renamed", range(4))
def test_killed_among_the_renames(directory: Path, renamed: int) -> None:
    """An owner that is killed between the renames of an adoption has adopted all of its files."""
    left = [renamed]

    def failpoint(name: str) -> None:
        if name == "adopt.3 rename":
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1

    queue = call_on(replace(DISK, failpoint=failpoint), PersistentQueue, directory)
    put(queue, b"x")
    publish(directory, *LISTS, marker=("app", 1))
    with pytest.raises(KeyboardInterrupt), queue.session() as session:
        session.dequeue_many(3)
        session.dequeue()
    crash(queue)
    names = inbox(directory)
    assert len(names) == 4 - renamed
    assert any(map(is_published, names))
    report = check(directory)
    assert (report.ok, report.items, report.published) == (True, 7, 0)
    with PersistentQueue(directory) as queue:
        assert inbox(directory) == []
        assert queue.marker("app") == 1
        assert drain(queue) == [b"x", *ALL]


@pytest.mark.parametrize("renamed", range(5))
def test_an_adoption_that_a_power_cut_took(directory: Path, renamed: int) -> None:
    """If the frame of an adoption is lost and some of the new names are not, the whole manifest is published once
    more."""
    PersistentQueue(directory).close()
    queue = PersistentQueue(directory)
    put(queue, b"own")
    before = log_file(directory).read_bytes()
    publish(directory, *LISTS)
    names = {path.read_bytes(): path.name for path in (directory / "inbox").iterdir()}
    with queue.session() as session:
        assert session.dequeue_many(9) == [b"own"]
        assert session.dequeue_many(9) == ALL
        session.rollback()
    crash(queue)
    log_file(directory).write_bytes(before)
    published = [path for path in sorted((directory / "data").iterdir()) if path.read_bytes() in names]
    assert len(published) == 4
    for path in published[renamed:]:
        path.rename(directory / "inbox" / names[path.read_bytes()])
    assert check(directory).ok
    with PersistentQueue(directory) as queue:
        assert queue.recovery.set_aside == ()
        assert drain(queue) == [b"own", *ALL]


def test_moving_takes_parts_along(made: Path, tmp_path: Path) -> None:
    """A move takes published files along, and parts that wait for their manifest."""
    publish(made, *LISTS)
    parts = write(made, [b"g"])
    move_data(made, data_path=tmp_path / "elsewhere")
    publish_parts(made, None, parts)
    assert len(inbox(tmp_path / "elsewhere")) == 4 + 2
    with PersistentQueue(made) as queue:
        assert drain(queue) == [*ALL, b"g"]
    write(made, [b"h"])
    delete_queue(made)
    assert not (tmp_path / "elsewhere" / "inbox").exists()


def test_repair_keeps_manifests(directory: Path) -> None:
    """A queue whose log is lost is repaired with the manifests that were adopted and those that wait."""
    queue = PersistentQueue(directory)
    publish(directory, [b"adopted"], [b"too"])
    assert queue.peek(2) == []
    put(queue, bytes(200_000))  # more than the log takes inline
    crash(queue)
    publish(directory, [b"waiting"], [b"also"])
    for log in (directory / "log").glob("*.log"):
        log.write_bytes(bytes(log.stat().st_size))
    assert repair(directory).without_log
    with PersistentQueue(directory) as queue:
        assert set(drain(queue)) == {b"adopted", b"too", bytes(200_000), b"waiting", b"also"}


@pytest.mark.parametrize(("error", "raised"), [(errno.ENOSPC, DiskFullError), (errno.ENOENT, DataPathError)])
def test_a_manifest_that_cannot_be_begun(made: Path, error: int, raised: type[Exception]) -> None:
    """A manifest that finds no room or no inbox fails with the advice to write it once more, and its parts stay."""
    writer = PartWriter(made)
    writer.write([b"x"])
    part = writer.end()
    assert part is not None

    def opens(path: str, flags: int, mode: int) -> int:
        if path.endswith(".tmp"):
            raise OSError(error, os.strerror(error))
        return DISK.open(path, flags, mode)

    with pytest.raises(raised, match="write it once more"):
        call_on(replace(DISK, open=opens), publish_parts, made, None, [part])
    assert inbox(made) == [part.name]
    assert publish_parts(made, None, [part])

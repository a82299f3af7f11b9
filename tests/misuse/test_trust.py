"""Hostile lock files, directories that another user has prepared, names that collide, arguments of the wrong shape."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import Producer, View, check, delete_queue, list_queues, move_data, repair, transaction
from persistentqueue.errors import CorruptionError, DataPathError, InvalidNameError, QueueLockedError, UntrustedError
from persistentqueue.interprocess.multi_writer import publish_parts
from persistentqueue.storage.layout import PART_NAMES
from persistentqueue.storage.lock import Lock, is_held, read_owner
from persistentqueue.system.disk import DISK, StatResult
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, log_file, put, put_each, segment_files, traits

ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\n\x7f\x9b\ud800"
"""Characters that must not reach a terminal."""


# --- Row 11: what is in the place of a lock, or in a lock -------------------------------------------------------------


def link(path: Path) -> None:
    """Make the path a second name of another file."""
    other = path.parent.parent / "precious"
    other.write_bytes(b"precious")
    os.link(other, path)


def symlink(path: Path) -> None:
    """Make the path a symbolic link to another file."""
    other = path.parent.parent / "precious"
    other.write_bytes(b"precious")
    path.symlink_to(other)


def bind(path: Path) -> None:
    """Make a socket at the path, by its relative name, since names of sockets are short."""
    above = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(above)


def device(path: Path) -> None:
    """Make a device at the path, as only root can."""
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
    except OSError as error:
        pytest.skip(f"no device can be made here: {error}")


PLANTED = [link, symlink, os.mkfifo, os.mkdir, bind, device]


@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize("is_there", [True, False])
def test_row_11_no_lock_is_taken_through_what_is_planted(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, plant: Callable[[Path], object], is_there: bool
) -> None:
    """A lock that is another name of a file, or not a plain file, raises a named error in each call that takes it.
    Nothing is written through it, and the queue opens when it is gone."""
    if is_there:
        queue = open_queue()
        put(queue, b"kept")
        queue.close()
        (directory / "lock").unlink()
    else:
        directory.mkdir(parents=True)
    plant(directory / "lock")
    before = traits(directory / "lock")
    calls: list[Callable[[], object]] = [open_queue]
    if is_there:
        calls += [
            lambda: delete_queue(directory),
            lambda: move_data(directory, data_path=tmp_path / "data"),
            lambda: repair(directory),
        ]
    for call in calls:
        with pytest.raises(UntrustedError, match=r"expected .*plain file.* found") as caught:
            call()
        assert caught.value.path == str(directory / "lock")
    assert traits(directory / "lock") == before
    if (tmp_path / "queues" / "precious").exists():
        assert (tmp_path / "queues" / "precious").read_bytes() == b"precious"
    if is_there:
        assert View(directory).look().owner is None, "what it says is nobody's"
    (directory / "lock").rmdir() if plant is os.mkdir else (directory / "lock").unlink()
    assert drain(open_queue()) == ([b"kept"] if is_there else [])


def test_row_11_what_is_planted_in_the_last_moment(tmp_path: Path) -> None:
    """A second name that the lock file gets between its opening and its signing is noticed, and nothing is written."""
    path = tmp_path / "lock"
    path.write_bytes(b"precious")

    def lock(fd: int) -> bool:
        os.link(path, tmp_path / "other")
        return DISK.lock(fd)

    with pytest.raises(UntrustedError, match="2 names"):
        Lock(replace(DISK, lock=lock), str(path)).acquire(0.0)
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize("kind", ["symlink", "directory"])
def test_row_11_what_is_planted_before_it_is_opened(tmp_path: Path, kind: str) -> None:
    """A link or a directory that takes the lock's place after the first look raises ``UntrustedError``, too."""
    path = tmp_path / "lock"

    def lstat(name: str) -> StatResult:
        try:
            return DISK.lstat(name)
        except FileNotFoundError:
            path.mkdir() if kind == "directory" else path.symlink_to(tmp_path / "other")
            raise

    with pytest.raises(UntrustedError, match="plain file"):
        Lock(replace(DISK, lstat=lstat), str(path)).acquire(0.0)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 4096,
        b'{"pid":' * 512,
        b'{"pid": Infinity, "host": "h", "since": "s"}',
        b'{"pid": NaN, "host": "h", "since": "s"}',
        b'{"pid": 1e999, "host": "h", "since": "s"}',
        b'{"pid": 1.5, "host": "h", "since": "s"}',
        b'{"pid": true, "host": "h", "since": "s"}',
        b'{"pid": 0, "host": "h", "since": "s"}',
        b'{"pid": -1, "host": "h", "since": "s"}',
        b'{"pid": "7", "host": "h", "since": "s"}',
        b'{"pid": %d, "host": "h", "since": "s"}' % 10**4000,
        b'{"pid": 4294967296, "host": "h", "since": "s"}',
        b'{"pid": 7, "host": ["h"], "since": "s"}',
        b'{"pid": 7, "host": "h", "since": 8}',
        b'{"pid": 7, "host": "h"}',
        b'["pid", "host", "since"]',
        b'"' + bytes(range(128, 256)) + b'"',
        b"\xff\xfe{\x00",
        b"",
        b"null",
    ],
)
def test_row_11_nonsense_in_a_lock_is_an_unknown_owner(
    directory: Path, open_queue: QueueFactory, content: bytes
) -> None:
    """A second opening raises ``QueueLockedError`` and a look finds no known owner, whatever a held lock file
    contains."""
    with open_queue() as queue:
        put(queue, b"item")
        (directory / "lock").write_bytes(content)
        with pytest.raises(QueueLockedError, match="an owner that has not named itself") as caught:
            open_queue()
        assert (caught.value.pid, caught.value.host, caught.value.since) == (None, None, None)
        seen = View(directory).look()
        assert seen.owner is None
        assert seen.is_owned in {True, None}
        assert drain(queue) == [b"item"]


def test_row_11_no_control_characters_in_any_message(directory: Path, open_queue: QueueFactory) -> None:
    """Values from a lock file are printable and of bounded length in each message and each look."""
    with open_queue():
        signed = {"pid": 7, "host": ESCAPES + "h" * 2000, "since": ESCAPES}
        (directory / "lock").write_bytes(json.dumps(signed).encode())
        with pytest.raises(QueueLockedError) as caught:
            open_queue()
        owner = View(directory).look().owner
    assert owner is not None
    assert (owner.pid, caught.value.pid) == (7, 7)
    for text in (owner.host, owner.since, str(caught.value.host), str(caught.value.since), str(caught.value)):
        assert text.isprintable()
        assert len(text) < 1000
    assert "\\x1b" in owner.host
    assert QueueLockedError("q", 1, ESCAPES, ESCAPES).args[0].isprintable(), "whoever makes one"


def test_row_11_a_look_opens_nothing_but_a_plain_file(tmp_path: Path) -> None:
    """A look for the owner opens no pipe: only a plain file is opened."""
    os.mkfifo(tmp_path / "lock")
    opened: list[str] = []

    def watched(path: str, flags: int, mode: int) -> int:
        opened.append(path)
        return DISK.open(path, flags, mode)

    disk = replace(DISK, open=watched)
    assert read_owner(disk, str(tmp_path / "lock")) is None
    assert is_held(disk, str(tmp_path / "lock")) in {False, None}
    assert str(tmp_path / "lock") not in opened


# --- Row 17: names that collide, arguments of the wrong shape, clocks, and what is no file ----------------------------


@pytest.mark.parametrize("name", sorted(PART_NAMES))
def test_row_17_a_queue_named_like_a_part_beside_the_nameless_one(
    tmp_path: Path, open_queue: QueueFactory, name: str
) -> None:
    """Beside a queue without a name, a queue named like a part of it is refused: by name, by path, and by a producer.
    The nameless queue is unchanged."""
    queue = open_queue(None)
    put(queue, b"kept")
    queue.close()
    before = sorted(path for path in (tmp_path / "queues").rglob("*"))
    calls: list[Callable[[], object]] = [
        lambda: open_queue(name),
        lambda: open_queue(None, path=tmp_path / "queues" / name),
        lambda: Producer(tmp_path / "queues", name),
    ]
    for call in calls:
        with pytest.raises(InvalidNameError, match=f"'{name}' is a part of it"):
            call()
    assert sorted(path for path in (tmp_path / "queues").rglob("*")) == before
    assert drain(open_queue(None)) == [b"kept"]


@pytest.mark.parametrize("name", sorted(PART_NAMES))
def test_row_17_a_nameless_queue_around_one_named_like_a_part(
    tmp_path: Path, open_queue: QueueFactory, name: str
) -> None:
    """A queue named like a part stays usable if there is no nameless queue, and no nameless queue can be made around
    it."""
    put(open_queue(name), b"kept")
    with pytest.raises(QueueLockedError):
        open_queue(name)
    with pytest.raises(InvalidNameError, match=f"a queue named '{name}'"):
        open_queue(None)
    with pytest.raises(InvalidNameError):
        Producer(tmp_path / "queues")
    put(open_queue("other"), b"unharmed")
    with open_queue(name + "x"):
        pass


def test_row_17_a_place_named_like_a_part_of_a_place(tmp_path: Path, open_queue: QueueFactory) -> None:
    """The location of a queue named ``data`` is not within that of a nameless queue, and not around it."""
    place = tmp_path / "place"
    open_queue(None, path=tmp_path / "one", data_path=place)
    with pytest.raises(DataPathError, match="location of its own"):
        open_queue("data", path=tmp_path / "two", data_path=place)
    open_queue("data", path=tmp_path / "three", data_path=tmp_path / "other")
    with pytest.raises(DataPathError, match="location of its own"):
        open_queue(None, path=tmp_path / "four", data_path=tmp_path / "other")
    with pytest.raises(InvalidNameError):
        open_queue("data", path=place)


MARKERS: list[tuple[object, type[Exception]]] = [
    (["name", 1], TypeError),
    (("name",), TypeError),
    (("name", 1, 2), TypeError),
    ((), TypeError),
    ("ab", TypeError),
    (7, TypeError),
    ({"name": 1}, TypeError),
    ((b"name", 1), TypeError),
    (("name", "1"), TypeError),
    (("name", 1.0), TypeError),
    (("name", None), TypeError),
    (("name", True), TypeError),
    (("\ud800", 1), ValueError),
    (("", 1), ValueError),
    (("é" * 32768, 1), ValueError),
    (("name", -1), ValueError),
    (("name", 2**64), ValueError),
    (("name", 10**5000), ValueError),
]


@pytest.mark.parametrize(("marker", "kind"), MARKERS)
def test_row_17_a_marker_of_the_wrong_shape(
    open_queue: QueueFactory, directory: Path, marker: Any, kind: type[Exception]
) -> None:
    """An invalid marker is refused by the call that gets it, with the expected shape. The buffered items stay, and can
    be flushed."""
    queue, other = open_queue(), open_queue("other")
    with queue.session() as session:
        session.enqueue(b"item")
        with pytest.raises(kind, match="a marker must be a name"):
            session.flush(marker=marker)
        (error,) = queue.flush_all([session], [marker])
        assert isinstance(error, kind)
        assert session.flush()
    with Producer(directory) as producer:
        producer.enqueue(b"item")
        with pytest.raises(kind, match="a marker"):
            producer.flush(marker=marker)
        assert producer.flush()
    with pytest.raises(kind, match="a marker"):
        publish_parts(directory, None, [], marker)
    with transaction(queue, other) as (one, two):
        one.enqueue(b"item")
        two.enqueue(b"item")
        with pytest.raises(kind, match="a marker"):
            one.flush(marker=marker)
    assert drain(queue) + drain(queue) == [b"item"] * 3  # either call adopts the publication
    assert drain(other) == [b"item"]


def test_row_17_a_name_that_has_no_bytes(open_queue: QueueFactory) -> None:
    """A subscription's name with a lone surrogate raises a ``ValueError`` that says which names are valid."""
    with pytest.raises(ValueError, match="a subscription has a name of 1 to 65,535 bytes in UTF-8"):
        open_queue().subscribe("\ud800")


def test_row_17_a_clock_before_1970(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock set before 1970, all calls that write a time work. The queue is made, flushed, published to,
    adopted, retried, compacted, moved, looked at and repaired."""
    monkeypatch.setattr("persistentqueue.system.disk._clock_ns", lambda: -(10**18))
    with open_queue(dead_letter="dead", max_attempts=2, retry_delay_seconds=0.0) as queue:
        put(queue, b"one", b"two", b"three")
        with Producer(directory) as producer:
            producer.enqueue(b"four")
            producer.flush(marker=("m", 1))
            producer.enqueue(b"five")
            producer.flush(marker=("m", 2))
        with queue.session() as session:
            item = session.dequeue()
            assert item is not None
            session.reject(item)
            session.flush()
        for _ in range(2):
            with queue.session() as session:
                session.dequeue()
                session.rollback()
        queue.compact(below=1.0)
        queue.maintain()
        assert View(directory).look().time_ns == 0
        seen = [found.time_ns for found in View(directory).browse()]
        assert set(seen) == {0}
        queue.stats()
    move_data(directory, data_path=tmp_path / "place")
    assert repair(directory).problems == ()
    with open_queue() as queue:
        assert sorted(drain(queue) + drain(open_queue("dead"))) >= [b"five", b"four", b"three"]


@pytest.mark.damages
@pytest.mark.parametrize("plant", PLANTED[1:])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_row_17_what_is_no_file_in_the_place_of_a_log(
    directory: Path, open_queue: QueueFactory, plant: Callable[[Path], object], is_sealed: bool
) -> None:
    """If the newest log is not a plain file, each reader names that as damage. ``repair`` sets it aside, reports it,
    and uses the log before it."""
    queue = open_queue()
    put(queue, b"kept", b"too")
    queue.close() if is_sealed else crash(queue)
    planted = directory / "log" / f"{int(log_file(directory).stem) + 1:012d}.log"
    plant(planted)
    calls: list[Callable[[], object]] = [open_queue, View(directory).look]
    for call in calls:
        with pytest.raises(CorruptionError, match="expected a regular file") as caught:
            call()
        assert caught.value.file == str(planted)
    assert "expected a regular file" in check(directory).problems[0]
    report = repair(directory)
    assert "expected a regular file" in report.problems[0]
    assert not report.without_log
    assert os.path.lexists(f"{planted}.damaged")
    assert drain(open_queue()) == [b"kept", b"too"]


@pytest.mark.damages
@pytest.mark.parametrize("plant", PLANTED[1:])
def test_row_17_nothing_but_what_is_no_log(
    directory: Path, open_queue: QueueFactory, plant: Callable[[Path], object]
) -> None:
    """If the only log is not a plain file, ``repair`` makes an empty queue, and reports the damage."""
    (directory / "log").mkdir(parents=True)
    plant(directory / "log" / "000000000001.log")
    with pytest.raises(CorruptionError, match="expected a regular file"):
        open_queue()
    report = repair(directory)
    assert "expected a regular file" in report.problems[0]
    assert drain(open_queue()) == []


@pytest.mark.damages
@pytest.mark.parametrize("plant", PLANTED[1:])
def test_row_17_what_is_no_file_in_the_place_of_a_segment(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, plant: Callable[[Path], object]
) -> None:
    """If a segment is not a plain file, only its items are damaged, and nothing of it is copied. ``repair`` sets it
    aside."""
    queue = open_queue(segment_bytes=1 << 20)
    put_each(queue, [b"%d" % number * 300_000 for number in range(6)])
    queue.close()
    first = segment_files(directory)[0]
    first.unlink()
    plant(first)
    with pytest.raises(CorruptionError, match=r"expected a regular file, found .*nothing was moved"):
        move_data(directory, data_path=tmp_path / "place")
    assert any("expected a regular file" in problem for problem in check(directory).problems)
    queue = open_queue()
    with queue.session() as session:
        with pytest.raises(CorruptionError, match="expected a regular file") as caught:
            session.dequeue()
        assert caught.value.file == str(first)
        served = [session.dequeue() for _ in range(3)]
        session.rollback()
    assert served == [b"%d" % number * 300_000 for number in range(3, 6)], "it costs the items of that file, once"
    queue.close()
    report = repair(directory)
    assert any("expected a regular file" in problem for problem in report.problems)
    assert f"data/{first.name}.damaged" in report.kept
    assert drain(open_queue()) == served


@pytest.mark.damages
@pytest.mark.parametrize("plant", PLANTED[1:])
def test_row_17_what_is_no_file_in_the_place_of_a_spare_or_a_pooled_file(
    directory: Path, open_queue: QueueFactory, plant: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    """A spare log that is not a plain file is set aside and reported, and such a pooled file is never used. The queue
    works, and can be deleted."""
    pool = {"pool_min_bytes": 1 << 20, "pool_max_bytes": 4 << 20}
    queue = open_queue(**pool)
    put(queue, b"kept")
    queue.close()
    (directory / "pool" / "log.free").unlink()
    plant(directory / "pool" / "log.free")
    for name in ("000001048576-0123456789abcdef.free", "000001048576-0123456789abcdef.part"):
        plant(directory / "pool" / name)
    queue = open_queue(segment_bytes=1 << 20, **pool)
    put_each(queue, [b"x" * 300_000] * 8)
    queue.maintain()
    assert len(drain(queue)) == 9
    queue.close()
    assert "renamed to" in caplog.text
    assert [path for path in (directory / "pool").iterdir() if path.name.startswith("log.free.")]
    with open_queue() as queue:
        assert drain(queue) == []
    delete_queue(directory)
    assert list_queues(directory.parent) == []


@pytest.mark.damages
@pytest.mark.parametrize("plant", PLANTED[1:])
def test_row_17_what_is_no_file_in_an_inbox(
    directory: Path, open_queue: QueueFactory, plant: Callable[[Path], object]
) -> None:
    """If a file in an inbox is not a plain file, it is set aside, and a publication beside it is adopted."""
    open_queue().close()
    with Producer(directory) as producer:
        producer.enqueue(b"good")
        producer.flush()
    planted = directory / "inbox" / "0000000000000001-0000000000000001.seg"
    plant(planted)
    queue = open_queue()
    assert drain(queue) == [b"good"]
    assert os.path.lexists(f"{planted}.damaged")


@pytest.mark.damages
@pytest.mark.parametrize("plant", PLANTED[1:])
@pytest.mark.parametrize("name", ["data.path", "queue.id"])
def test_row_17_what_is_no_file_in_the_place_of_a_record(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, plant: Callable[[Path], object], name: str
) -> None:
    """If ``data.path`` or ``queue.id`` is not a plain file, that is named as damage."""
    with open_queue(data_path=tmp_path / "place") as queue:
        put(queue, b"kept")
    record = directory / name if name == "data.path" else tmp_path / "place" / "orders" / name
    content = record.read_bytes()
    record.unlink()
    plant(record)
    with pytest.raises(CorruptionError, match="expected a regular file"):
        open_queue()
    record.rmdir() if plant is os.mkdir else record.unlink()
    record.write_bytes(content)
    assert drain(open_queue()) == [b"kept"]

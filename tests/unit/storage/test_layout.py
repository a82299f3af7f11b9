"""Queues in a directory: listing, deletion whole and cut short, ``check``, links and relative paths."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    CorruptionError,
    InvalidNameError,
    PathMissingError,
    PathNotADirectoryError,
    PersistentQueue,
    Producer,
    QueueLockedError,
    QueueNotFoundError,
    View,
    aio,
    check,
    compat,
    connect,
    delete_queue,
    list_queues,
    move_data,
    repair,
)
from persistentqueue.cli.summary import made_note
from persistentqueue.engine.transaction import SPILL_BYTES
from persistentqueue.interprocess.consumer_requests import request_subscription
from persistentqueue.interprocess.multi_writer import list_published
from persistentqueue.storage.log_reader import LISTINGS_MAX
from persistentqueue.storage.publication import Draft
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.support.disks import call_on, using_disk
from tests.support.queues import crash, drain, flip, log_file, put, put_each


def test_queues_are_listed_by_name(open_queue: QueueFactory, tmp_path: Path) -> None:
    """Every queue under the path is listed, open or closed, and nothing else. A path that is missing is an error."""
    root = tmp_path / "queues"
    with pytest.raises(PathMissingError, match="queues"):
        list_queues(root)
    root.mkdir()
    assert list_queues(root) == []
    (root / "file").touch()
    with pytest.raises(PathNotADirectoryError):
        list_queues(root / "file")
    for name in ("b", "a", "c.d"):
        open_queue(name)
    open_queue("a2").close()
    (root / "foreign").mkdir()
    (root / "file").write_text("")
    (root / ".hidden").mkdir()
    (root / "latest").symlink_to("a")  # which no opening accepts
    (root / "loop").symlink_to("loop")
    (root / "foreign" / "log").symlink_to("log")
    assert list_queues(root) == ["a", "a2", "b", "c.d"]
    with pytest.raises(InvalidNameError, match="named queues: "):
        PersistentQueue(root)
    (root / "foreign" / "log").unlink()  # the check after the test looks into all directories


def test_queues_of_one_directory_are_independent(open_queue: QueueFactory) -> None:
    """Several named queues are open at the same time, each with its own items."""
    queues = {name: open_queue(name) for name in "abc"}
    for name, queue in queues.items():
        put(queue, name.encode())
    for name, queue in queues.items():
        assert drain(queue) == [name.encode()]


def test_delete(open_queue: QueueFactory, tmp_path: Path) -> None:
    """A deleted queue is gone with all its files, and its name can be used again."""
    put(open_queue(), b"x" * 1000)
    root = tmp_path / "queues"
    with pytest.raises(QueueLockedError):
        delete_queue(root, "orders")
    queue = open_queue("other")
    put(queue, b"y")
    with PersistentQueue(root, "third") as third:
        put(third, b"z")
    delete_queue(root, "third")
    assert list_queues(root) == ["orders", "other"]
    assert not (root / "third").exists()
    with pytest.raises(QueueNotFoundError):
        delete_queue(root, "third")
    with pytest.raises(InvalidNameError):
        delete_queue(root, "..")
    assert len(open_queue("third")) == 0


def test_delete_leaves_what_is_not_the_queues(tmp_path: Path) -> None:
    """``delete_queue`` leaves foreign files where they are, and the directories that hold them."""
    with PersistentQueue(tmp_path, "q") as queue:
        put(queue, b"x")
    keep = [tmp_path / "q" / name for name in ("notes.txt", "data/mine.bin", "log/000000000001.log.bak", "pool/x")]
    for path in keep:
        path.write_text("mine")
    (tmp_path / "q" / "data" / "000000000009.seg.damaged").write_text("set aside by a recovery")
    delete_queue(tmp_path, "q")
    left = {path for path in (tmp_path / "q").rglob("*") if path.is_file()}
    assert left == set(keep)
    assert list_queues(tmp_path) == []
    with PersistentQueue(tmp_path, "q") as queue:
        assert len(queue) == 0


def test_delete_a_queue_without_a_name(tmp_path: Path) -> None:
    """If a queue without a name is deleted, its directory stays."""
    with PersistentQueue(tmp_path / "plain") as queue:
        put(queue, b"x")
    delete_queue(tmp_path / "plain")
    assert list((tmp_path / "plain").iterdir()) == []


class DeathError(BaseException):
    """The death of the process at this call."""


@pytest.mark.parametrize("call", range(1, 12))
@pytest.mark.parametrize("then", ["open", "delete"])
def test_delete_cut_short(tmp_path: Path, call: int, then: str) -> None:
    """A deletion that dies anywhere leaves the whole queue or none, and the next opening or deletion finishes it."""
    queue = PersistentQueue(tmp_path, "q", segment_bytes=100, log_bytes=4096)
    put_each(queue, [b"x" * 60] * 4)
    queue.close()
    left = [call]

    def dying(path: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise DeathError
        DISK.unlink(path)

    def dying_rename(source: str, target: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise DeathError
        DISK.rename(source, target)

    try:
        call_on(replace(DISK, unlink=dying, rename=dying_rename), delete_queue, tmp_path, "q")
    except DeathError:
        pass
    else:
        assert call > 7
        return
    if call == 1:
        with PersistentQueue(tmp_path, "q") as queue:
            assert len(queue) == 4
    elif then == "open":
        with PersistentQueue(tmp_path, "q") as queue:
            assert len(queue) == 0
            put(queue, b"new")
        assert check(tmp_path, "q").leftovers == ()
    else:
        assert list_queues(tmp_path) == []
        delete_queue(tmp_path, "q")
        with pytest.raises(QueueNotFoundError):
            delete_queue(tmp_path, "q")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("timeout", "what"),
    [
        (float("nan"), "lock_timeout must be at least 0, got nan"),
        (-1, "lock_timeout must be at least 0, got -1"),
        (True, "lock_timeout must be a number, not True"),
        ("1", "lock_timeout must be a number, not '1'"),
        (None, "lock_timeout must be a number, not None"),
    ],
)
def test_a_timeout_for_the_lock_is_checked(open_queue: QueueFactory, tmp_path: Path, timeout: Any, what: str) -> None:
    """Each call that waits for a lock refuses a timeout that is none, with the words of an opening."""
    put(open_queue(), b"x")
    queues = tmp_path / "queues"
    for call in (PersistentQueue, delete_queue, partial(move_data, data_path=tmp_path / "data")):
        with pytest.raises((TypeError, ValueError), match=f"^{what}$"):
            call(queues, "orders", lock_timeout=timeout)
    assert list_queues(queues) == ["orders"]


def test_a_lock_file_of_another_program_stays(tmp_path: Path) -> None:
    """A directory with only a file named ``lock``, in which no owner of a queue has signed, is not deleted."""
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "lock").write_text("12345\n")
    with pytest.raises(QueueNotFoundError):
        delete_queue(tmp_path, "q")
    assert (tmp_path / "q" / "lock").read_text() == "12345\n"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_delete_beside_a_producer_that_publishes(tmp_path: Path, elsewhere: bool) -> None:
    """A producer that publishes in the middle of a deletion neither stops it nor leaves a file behind it."""
    media = tmp_path / "media" if elsewhere else None
    PersistentQueue(tmp_path, "q", data_path=media).close()
    inbox = (media or tmp_path) / "q" / "inbox"
    draft = Draft(DISK, str(inbox), "0" * 16, 1)
    draft.write([b"x"], 1, 1)

    def listdir(path: str) -> list[str]:
        found = DISK.listdir(path)
        if any(name.endswith(".tmp") for name in found):
            with suppress(FileNotFoundError):
                draft.publish(None, 1)
        return found

    call_on(replace(DISK, listdir=listdir), delete_queue, tmp_path, "q")
    draft.drop()
    assert not (tmp_path / "q").exists()
    assert not inbox.parent.exists()


def test_delete_beside_a_closed_inbox_of_other_files(tmp_path: Path) -> None:
    """A deletion leaves files of another program in an inbox that an interrupted move has closed, and deletes the
    published files in both inboxes."""
    PersistentQueue(tmp_path, "q").close()
    for name in ("inbox", "inbox.closed"):
        (tmp_path / "q" / name).mkdir(exist_ok=True)
        (tmp_path / "q" / name / f"{1:016x}-{2:016x}.seg").touch()
    (tmp_path / "q" / "inbox.closed" / "notes").touch()
    delete_queue(tmp_path, "q")
    assert sorted(path.name for path in (tmp_path / "q").rglob("*")) == ["inbox.closed", "notes"]


@pytest.mark.parametrize("spilled", [False, True])
def test_a_deletion_that_was_cut_short_leaves_no_queue_for_producers(tmp_path: Path, spilled: bool) -> None:
    """A producer publishes nothing into a queue whose deletion has begun: the next opening would delete it."""
    PersistentQueue(tmp_path, "q").close()
    with Producer(tmp_path, "q") as producer:
        producer.enqueue_many([bytes(SPILL_BYTES)] * (1 + spilled))
        (tmp_path / "q" / "log").rename(tmp_path / "q" / "deleted")
        with pytest.raises(QueueNotFoundError):
            producer.flush()
        assert producer.pending
        producer.rollback()
    with PersistentQueue(tmp_path, "q") as queue:
        assert drain(queue) == []


def test_a_directory_named_deleted_makes_no_queue(tmp_path: Path) -> None:
    """A directory of something else that has a directory ``deleted`` is no queue, and is left as it is."""
    (tmp_path / "deleted").mkdir()
    (tmp_path / "deleted" / "photo").touch()
    for name in ("a", "lock"):
        (tmp_path / name).touch()
        with pytest.raises(QueueNotFoundError):
            delete_queue(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "deleted", "lock", "photo"]


def test_waiting_for_a_queue_that_is_deleted(tmp_path: Path) -> None:
    """If a queue is deleted while an opening waits for its lock, the opening makes a new queue, with a lock that
    counts."""
    with PersistentQueue(tmp_path, "q") as queue:
        put(queue, b"old")
    deleted: list[bool] = []

    def lock(fd: int) -> bool:
        if not deleted:
            deleted.append(True)
            delete_queue(tmp_path, "q")
        return DISK.lock(fd)

    with call_on(replace(DISK, lock=lock), PersistentQueue, tmp_path, "q", lock_timeout=5) as queue:
        assert len(queue) == 0
        put(queue, b"new")
        with pytest.raises(QueueLockedError):
            PersistentQueue(tmp_path, "q")
    with PersistentQueue(tmp_path, "q") as queue:
        assert drain(queue) == [b"new"]


# --- listings that are not atomic ------------------------------------------------------------------------------------


def _missing(path: Path, misses: int, names: frozenset[str] | None = None) -> Disk:
    """Return a disk whose first listings of the directory miss these names, or all: they change meanwhile."""
    left = [misses]

    def listdir(name: str) -> list[str]:
        found = DISK.listdir(name)
        if str(name) != str(path) or left[0] == 0:
            return found
        left[0] -= 1
        return [each for each in found if names is not None and each not in names]

    return replace(DISK, listdir=listdir)


LOOKS: dict[str, Callable[[Path], object]] = {
    "view": lambda path: View(path).look().enqueued == 1,
    "check": lambda path: check(path).ok,
    "list": lambda path: list_queues(path.parent) == ["q"],
    "publish": lambda path: Producer(path).close(),
    "open": lambda path: PersistentQueue(path, create=False).close(),
    "move": lambda path: move_data(path, data_path=path.parent / "elsewhere").target.endswith("elsewhere"),
    "repair": lambda path: not repair(path).problems,
    "delete": delete_queue,
}
"""Calls that look for a queue without its lock; each raises an error, or returns False, if it finds none."""


@pytest.mark.parametrize("consumed", [False, True])
@pytest.mark.parametrize("call", LOOKS)
def test_a_listing_that_misses_the_turn_of_the_log(tmp_path: Path, call: str, consumed: bool) -> None:
    """During a turn of the log, listings may show neither the old log nor the new one. The queue is found all the same,
    with segments or without."""
    path = tmp_path / "q"
    with PersistentQueue(path) as queue:
        put(queue, b"x")
        if consumed:
            drain(queue)
            queue.trim()
    assert call_on(_missing(path / "log", LISTINGS_MAX - 1), LOOKS[call], path) is not False


def test_a_listing_that_misses_the_start_of_a_deletion(tmp_path: Path) -> None:
    """If a listing shows neither ``log`` nor ``deleted``, since one was renamed to the other, no segment is taken for
    that of a damaged queue."""
    path = tmp_path / "q"
    with PersistentQueue(path) as queue:
        put(queue, b"x")
    (path / "log").rename(path / "deleted")
    for call in (lambda: View(path).look(), lambda: check(path), lambda: PersistentQueue(path, create=False)):
        with pytest.raises(QueueNotFoundError):
            call_on(_missing(path, 1, frozenset({"deleted"})), call)
    call_on(_missing(path, 1, frozenset({"deleted"})), delete_queue, path)
    assert list(path.iterdir()) == []


def test_a_listing_that_misses_the_creation_of_a_queue(tmp_path: Path) -> None:
    """If another process makes the queue between two listings, its segments are not taken for those of a damaged
    queue."""
    path = tmp_path / "q"
    listings: list[str] = []

    def listdir(name: str) -> list[str]:
        listings.append(name)
        if name == str(path) and listings.count(name) == 2:  # the first one looks for foreign files
            with PersistentQueue(path) as queue:
                put(queue, b"x")
        return DISK.listdir(name)

    path.mkdir()
    with call_on(replace(DISK, listdir=listdir), PersistentQueue, path, create=False) as queue:
        assert drain(queue) == [b"x"]


@pytest.mark.damages
def test_segments_without_a_log_stay_damage(tmp_path: Path) -> None:
    """If no listing shows a log, the queue is damaged; without a segment, there is none."""
    path = tmp_path / "q"
    with PersistentQueue(path) as queue:
        put(queue, b"x")
    with pytest.raises(CorruptionError, match="expected a log"):
        call_on(_missing(path / "log", -1), PersistentQueue, path, create=False)
    for segment in (path / "data").iterdir():
        segment.unlink()
    with pytest.raises(QueueNotFoundError):
        call_on(_missing(path / "log", -1), PersistentQueue, path, create=False)


# --- check -----------------------------------------------------------------------------------------------------------


def test_check_of_a_queue_that_is_well(open_queue: QueueFactory, directory: Path) -> None:
    """``check`` finds nothing wrong with an open, a crashed and a closed queue, and counts the items that it read."""
    queue = open_queue(segment_bytes=500)
    put_each(queue, [b"x" * 100] * 20)
    put(queue, b"y" * 100_000)
    with queue.transaction() as session:
        session.dequeue_many(3)
    report = check(directory)
    assert (report.ok, report.sealed, report.items, report.transactions) == (True, False, 18, 22)
    crash(queue)
    assert check(directory).items == 18
    open_queue().close()
    report = check(directory)
    assert (report.ok, report.sealed, report.items, report.transactions, report.leftovers) == (True, True, 18, 0, ())


def test_check_changes_nothing(open_queue: QueueFactory, directory: Path) -> None:
    """``check`` leaves every byte of a crashed queue as it was."""
    queue = open_queue()
    put_each(queue, [b"x", b"y"])
    crash(queue)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    check(directory)
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_check_where_nothing_is(tmp_path: Path) -> None:
    """``check`` of a directory without a queue is refused."""
    with pytest.raises(QueueNotFoundError):
        check(tmp_path)


@pytest.mark.damages
def test_check_names_what_is_wrong(open_queue: QueueFactory, directory: Path) -> None:
    """``check`` names each damage, with file and offset."""
    queue = open_queue(segment_bytes=500)
    put_each(queue, [b"x" * 100] * 20)
    queue.close()
    segment = directory / "data" / "000000000002.seg"
    flip(segment, 130)
    (directory / "data" / "000000000003.seg").unlink()
    report = check(directory)
    assert len(report.problems) == 2
    assert f"{segment}: damaged at offset 64" in report.problems[0]
    assert "no file" in report.problems[1]
    assert not report.ok
    flip(log_file(directory), 100)
    report = check(directory)
    assert (len(report.problems), report.items) == (1, 0)
    with pytest.raises(CorruptionError):
        open_queue()


@pytest.mark.parametrize("part", ["path", "above", "data_path"])
def test_a_queue_where_a_link_leads(tmp_path: Path, part: str) -> None:
    """Only a queue's own directories and files must be no links: /tmp is a link on macOS, /var/run on Linux."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    path = {"path": tmp_path / "link", "above": tmp_path / "link" / "a" / "b", "data_path": tmp_path / "real"}[part]
    place = tmp_path / "link" / "media" if part == "data_path" else None
    with PersistentQueue(path, "q", data_path=place) as queue:
        put(queue, b"x")
    if part == "data_path":
        move_data(path, "q", data_path=tmp_path / "link" / "archive")
    with PersistentQueue(path, "q") as queue:
        assert drain(queue) == [b"x"]
    delete_queue(path, "q")
    (tmp_path / "real" / "q").symlink_to("../link")
    with pytest.raises(NotADirectoryError, match="a file or a link"):
        PersistentQueue(path if part == "path" else tmp_path / "real", "q")


def test_the_process_may_go_elsewhere(
    open_queue: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that was opened by a relative path stays where it is when the process changes its directory.

    Another queue at that path stays as it is.
    """
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    with PersistentQueue("queues", "orders") as other:
        put(other, b"of the other")
    monkeypatch.chdir(tmp_path)
    queue = open_queue(path="queues", segment_bytes=1000, log_bytes=4096)
    monkeypatch.chdir(tmp_path / "else")
    items = [b"%d" % n * 100 for n in range(100)]
    put_each(queue, items)
    queue.trim()
    queue.close()
    with PersistentQueue("queues", "orders") as other:
        assert drain(other) == [b"of the other"]
    assert drain(open_queue()) == items


def test_an_error_names_the_queues_beside(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A call for a directory that holds named queues, and is none, names them and tells to choose one."""
    for name in "abcdefg":
        open_queue(name).close()
    root = tmp_path / "queues"
    calls: list[Callable[[Path], object]] = [
        check,
        repair,
        delete_queue,
        lambda path: PersistentQueue(path, create=False),
        lambda path: View(path).look(),
        lambda path: Producer(path, create=False),
        lambda path: move_data(path, data_path=None),
    ]
    for call in calls:
        with pytest.raises(QueueNotFoundError, match="name one of the queues in this directory: a, b, c, d, e, …"):
            call(root)
    assert sorted(path.name for path in root.iterdir()) == list("abcdefg")
    with pytest.raises(QueueNotFoundError) as caught:
        check(root / "a" / "log")
    assert "name one" not in str(caught.value)


def test_a_name_that_was_forgotten(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A queue without a name is made beside named ones on purpose only; then it opens as any other."""
    for name in "ab":
        open_queue(name).close()
    root = tmp_path / "queues"
    makers: list[Callable[[Path], object]] = [PersistentQueue, Producer, compat.Queue, compat.FifoQueue]
    for make in makers:
        with pytest.raises(InvalidNameError, match=r"named queues: a, b: name one of them, .*name=None"):
            make(root)
        assert sorted(path.name for path in root.iterdir()) == ["a", "b"]
    Producer(root, name=None).close()
    Producer(root).close()
    with PersistentQueue(root) as queue:
        assert (queue.name, len(queue)) == (None, 0)
    PersistentQueue(tmp_path / "elsewhere").close()
    assert "= NO_NAME" in str(signature(PersistentQueue))


def test_what_cannot_be_read_is_no_named_queue(tmp_path: Path, open_queue: QueueFactory) -> None:
    """A queue without a name is made beside a directory that this process may not read, and named ones still count."""

    def listdir(path: str) -> list[str]:
        if "secret" in path:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return DISK.listdir(path)

    (tmp_path / "alone" / "secret").mkdir(parents=True)
    open_queue("a").close()
    (tmp_path / "queues" / "secret").mkdir()
    with using_disk(replace(DISK, listdir=listdir)):
        PersistentQueue(tmp_path / "alone").close()
        with pytest.raises(InvalidNameError, match="named queues: a:"):
            PersistentQueue(tmp_path / "queues")
        assert list_queues(tmp_path / "queues") == ["a"]


def test_a_name_that_was_forgotten_in_aio(tmp_path: Path, open_queue: QueueFactory) -> None:
    """The queues of ``aio`` refuse and accept the same."""
    open_queue("a").close()
    root = tmp_path / "queues"

    async def opened(queue: aio.PersistentQueue[bytes]) -> str | None:
        async with queue:
            return queue.name

    with pytest.raises(InvalidNameError, match="named queues: a:"):
        asyncio.run(opened(aio.PersistentQueue(root)))
    assert asyncio.run(opened(aio.PersistentQueue(root, name=None))) is None


def test_a_path_through_a_link_is_one_path_for_all_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind a link, each call takes ``..`` as text, so all of them reach the queue that an opening has made."""
    (tmp_path / "releases" / "42").mkdir(parents=True)
    (tmp_path / "current").symlink_to("releases/42")
    path = tmp_path / "current" / ".." / "queues"
    with PersistentQueue(path, "a") as queue:
        put(queue, b"item")
    with Producer(path, "a") as producer:
        producer.enqueue(b"published")
        producer.flush()
    assert list_queues(path) == list_queues(tmp_path / "queues") == ["a"]
    assert (check(path, "a").items, View(path, "a").look().published, len(list_published(path, "a"))) == (1, 1, 1)
    assert repair(path, "a").items == 2
    request_subscription(path, "a", "spark", 0)
    with connect(path, "a") as shared:
        assert (shared.peek(2), shared.subscriptions()) == ([b"item", b"published"], ["spark"])
    made_note(str(path), "a", as_json=False)()
    assert capsys.readouterr().err == ""
    delete_queue(path, "a")
    assert list_queues(path) == []
    assert not (tmp_path / "releases" / "queues").exists()

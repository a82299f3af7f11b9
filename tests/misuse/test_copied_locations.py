"""Row 20: copies of a queue whose segments are on other media, and moves and backups that were cut short.

The original keeps its items, whichever copy is opened, moved or deleted.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from stat import S_ISDIR

import pytest

from persistentqueue import (
    CopiedQueueError,
    DataPathError,
    DiskFullError,
    PersistentQueue,
    Producer,
    View,
    check,
    delete_queue,
    move_data,
    repair,
)
from persistentqueue.storage.locations import read_record
from persistentqueue.storage.lock import LOCK_NAME, Lock
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import put
from tests.unit.engine.test_two_phase import contents

LARGE = [bytes([65 + n]) * 300_000 for n in range(5)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the directory of the queues."""
    return tmp_path / "queues"


@pytest.fixture
def media(tmp_path: Path) -> Path:
    """Return the directory of their segments."""
    return tmp_path / "media"


@pytest.fixture
def backup(tmp_path: Path, path: Path, media: Path, open_queue: QueueFactory) -> Iterator[Path]:
    """Make a queue "a" with its segments on other media, and an older copy of its directory; yield the path above."""
    with open_queue("a", data_path=media) as a:
        put(a, b"old")
    shutil.copytree(path / "a", tmp_path / "backup" / "a")
    with open_queue("a") as a:
        put(a, *LARGE)
    yield tmp_path / "backup"
    shutil.rmtree(tmp_path / "backup")


@pytest.fixture
def stopped_copy(tmp_path: Path, path: Path, media: Path, open_queue: QueueFactory) -> Path:
    """Move the segments of a queue "a", and return the path above a copy that was made during the move."""
    copies = tmp_path / "snapshot"
    with open_queue("a") as a:
        put(a, *LARGE)

    def copy(*_: object) -> None:
        if not copies.exists():
            shutil.copytree(path / "a", copies / "a")

    move_data(path, "a", data_path=media, progress=copy)
    return copies


def need_original(open_queue: QueueFactory, *items: bytes) -> None:
    """Check that the queue "a" has these items."""
    with open_queue("a") as a:
        assert contents(a) == [list(items)]


# --- copies of a queue's directory -----------------------------------------------------------------------------------


def test_a_location_has_one_owner(backup: Path, path: Path, media: Path, open_queue: QueueFactory) -> None:
    """While a queue is open, no opening, repair, move or deletion of a copy without a lock gets at its segments."""
    (backup / "a" / "lock").unlink()
    calls: list[Callable[[], object]] = [
        lambda: open_queue("a", path=backup),
        lambda: open_queue("a", path=backup, data_path=media),
        lambda: repair(backup, "a", renew=True),
        lambda: move_data(backup, "a", data_path=None),
        lambda: delete_queue(backup, "a"),
    ]
    with open_queue("a"):
        (path / "a").rename(path / "aside")  # so that only the lock tells of the owner
        for call in calls:
            with pytest.raises(DataPathError, match=f"no other owner at the location {media / 'a'}, .*copy the segm"):
                call()
        (path / "aside").rename(path / "a")
    need_original(open_queue, b"old", *LARGE)


def test_a_repair_ties_no_queue_to_the_location_of_an_owner(
    backup: Path, path: Path, media: Path, open_queue: QueueFactory
) -> None:
    """A repair of ``data.path`` is refused while the queue that has the location is open."""
    (backup / "a" / "data.path").write_bytes(b"damaged")
    with open_queue("a"), pytest.raises(DataPathError):
        repair(backup, "a", data_path=media)
    need_original(open_queue, b"old", *LARGE)


def test_a_new_queue_takes_no_location_that_is_locked(path: Path, media: Path) -> None:
    """A new queue, and a move, are refused at a location that another owner has locked."""
    (media / "a").mkdir(parents=True)
    PersistentQueue(path, "b").close()
    (media / "b").symlink_to("a")
    lock = Lock(DISK, str(media / LOCK_NAME))
    assert lock.hold_location(str(media / "a")) and lock.hold_location(str(media / "b"))
    with pytest.raises(DataPathError, match="no other owner"):
        PersistentQueue(path, "a", data_path=media)
    with pytest.raises(DataPathError, match="no other owner"):
        move_data(path / "b", data_path=media / "a")
    lock.release()
    PersistentQueue(path, "a", data_path=media).close()


def test_a_file_system_that_locks_no_directories(path: Path, media: Path) -> None:
    """A queue opens at a location whose directory cannot be locked."""

    def lock(fd: int) -> bool:
        if S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(9, os.strerror(9))
        return DISK.lock(fd)

    call_on(replace(DISK, lock=lock), PersistentQueue, path, "a", data_path=media).close()


def test_a_renamed_original_keeps_its_segments(backup: Path, path: Path, media: Path, open_queue: QueueFactory) -> None:
    """A queue that was renamed, and opened since, keeps its segments if a backup is restored under its old name."""
    (media / "a" / "queue.id").chmod(0o640)
    (path / "a").rename(path / "renamed")
    open_queue("renamed").close()
    assert (media / "a" / "queue.id").stat().st_mode & 0o777 == 0o640, "as producers of its group need it"
    shutil.copytree(backup / "a", path / "a")
    for data_path in (None, media):
        with pytest.raises(DataPathError):
            open_queue("a", data_path=data_path)
    with open_queue("renamed") as renamed:
        assert contents(renamed) == [[b"old", *LARGE]]
    shutil.rmtree(path / "a")


def test_a_renamed_queue_opens_on_a_full_disk(backup: Path, path: Path, open_queue: QueueFactory) -> None:
    """If the location has no room for the new name of its queue, the queue opens."""
    (path / "a").rename(path / "renamed")

    def open_(name: str, flags: int, mode: int) -> int:
        if name.endswith("queue.id.new"):
            raise OSError(28, os.strerror(28), name)
        return DISK.open(name, flags, mode)

    with open_queue("renamed", disk=replace(DISK, open=open_)) as renamed:
        assert len(renamed) == 1 + len(LARGE)


def test_a_refused_opening_changes_no_id(backup: Path, path: Path, media: Path, open_queue: QueueFactory) -> None:
    """A copy with segments of its own that is refused beside its original leaves its location as it was."""
    for root in (path, media):
        shutil.copytree(root / "a", root / "copy")
    before = (media / "copy" / "queue.id").read_bytes()
    with pytest.raises(CopiedQueueError):
        open_queue("copy", data_path=media)
    assert (media / "copy" / "queue.id").read_bytes() == before
    shutil.rmtree(path / "copy")


def test_an_original_whose_medium_is_away_has_not_left(
    backup: Path, path: Path, media: Path, tmp_path: Path, open_queue: QueueFactory
) -> None:
    """A copy is not given the segments of an original that records them at a path where they are not mounted now."""
    media.rename(tmp_path / "elsewhere")
    with pytest.raises(DataPathError, match="copy the segments, too"):
        open_queue("a", path=backup, data_path=tmp_path / "elsewhere")
    with open_queue("a", data_path=tmp_path / "elsewhere") as a:
        assert contents(a) == [[b"old", *LARGE]]


@pytest.mark.damages
@pytest.mark.parametrize("content", [b"damaged", None])
def test_an_original_that_records_nothing(
    backup: Path, path: Path, media: Path, open_queue: QueueFactory, content: bytes | None
) -> None:
    """A copy is given the segments if no queue at the original's path records them any more. A damaged record is no
    such proof."""
    record = path / "a" / "data.path"
    record.unlink() if content is None else record.write_bytes(content)
    if content is None:
        PersistentQueue(backup, "a", data_path=media).close()
    else:
        with pytest.raises(DataPathError, match="remove its directory by hand"):
            open_queue("a", path=backup, data_path=media)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_copy_without_its_lock(backup: Path, open_queue: QueueFactory, is_open: bool) -> None:
    """A copy without the lock file is refused while its original is there, open or not."""
    (backup / "a" / "lock").unlink()
    a = open_queue("a")
    if not is_open:
        a.close()
    for call in (lambda: open_queue("a", path=backup), lambda: Producer(backup, "a")):
        with pytest.raises(DataPathError, match="copy the segments, too"):
            call()
    a.close()
    need_original(open_queue, b"old", *LARGE)


def test_a_view_of_a_copy_shows_no_items_of_the_original(backup: Path, open_queue: QueueFactory) -> None:
    """``View`` refuses a copy without segments of its own, as ``check`` does."""
    with pytest.raises(DataPathError, match="copy the segments, too"):
        View(backup, "a").look()
    need_original(open_queue, b"old", *LARGE)


def test_a_copy_is_removed_by_hand(backup: Path, open_queue: QueueFactory) -> None:
    """The deletion of a copy without segments says how to get rid of the copy alone."""
    with pytest.raises(DataPathError, match="to delete only the copy, remove its directory by hand"):
        delete_queue(backup, "a")
    need_original(open_queue, b"old", *LARGE)


# --- copies that were made during a move -----------------------------------------------------------------------------


def open_and_close(path: Path) -> None:
    """Open the queue "a" in this directory, and close it."""
    PersistentQueue(path, "a").close()


@pytest.mark.parametrize("call", [open_and_close, lambda path: delete_queue(path, "a")])
@pytest.mark.parametrize("has_lock", [True, False])
def test_a_copy_from_the_middle_of_a_move(
    stopped_copy: Path, open_queue: QueueFactory, call: Callable[[Path], None], has_lock: bool
) -> None:
    """A copy that was made during a move sweeps nothing at the location to which its original has moved."""
    if not has_lock:
        (stopped_copy / "a" / "lock").unlink()
    call(stopped_copy)
    if (stopped_copy / "a").exists():
        assert read_record(DISK, str(stopped_copy / "a")).others == ()
    need_original(open_queue, *LARGE)


def test_a_copy_moves_there_and_back(stopped_copy: Path, tmp_path: Path, open_queue: QueueFactory) -> None:
    """A copy that was never opened is moved, and leaves nothing behind."""
    for target in (tmp_path / "one", tmp_path / "two", None):
        assert move_data(stopped_copy, "a", data_path=target).left == ()
    assert not list((tmp_path / "one").iterdir()) + list((tmp_path / "two").iterdir())
    with open_queue("a", path=stopped_copy) as copy:
        assert contents(copy) == [LARGE]
    need_original(open_queue, *LARGE)


# --- moves that were cut short, and what else is left behind ----------------------------------------------------------


def publish(path: Path, item: bytes) -> None:
    """Publish an item for the queue "a"."""
    with Producer(path, "a") as producer:
        producer.enqueue(item)
        producer.flush()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_an_interrupted_move_opens_the_inbox(
    path: Path, media: Path, open_queue: QueueFactory, error: type[BaseException]
) -> None:
    """A move that an interrupt ends leaves the inbox open, and nothing at its target."""
    with open_queue("a") as a:
        put(a, b"1")

    def failpoint(name: str) -> None:
        if name.startswith("move.4"):
            raise error

    with pytest.raises(error):
        call_on(replace(DISK, failpoint=failpoint), move_data, path, "a", data_path=media)
    assert list((media / "a").iterdir()) == []
    publish(path, b"2")
    need_original(open_queue, b"1", b"2")


@pytest.mark.parametrize("full", ["queues/a/data.path.new", "media/a/queue.id.new"])
def test_a_full_disk_is_named(path: Path, media: Path, open_queue: QueueFactory, full: str) -> None:
    """A move that finds no room names the directory that has none."""
    with open_queue("a") as a:
        put(a, b"1")

    def open_(name: str, flags: int, mode: int) -> int:
        if name.endswith(full):
            raise OSError(28, os.strerror(28), name)
        return DISK.open(name, flags, mode)

    with pytest.raises(DiskFullError) as caught:
        call_on(replace(DISK, open=open_), move_data, path, "a", data_path=media)
    assert caught.value.path == str(path.parent / full.rpartition("/")[0])
    assert str(caught.value).endswith("then move again")


@pytest.mark.parametrize(
    "call",
    [
        open_and_close,
        lambda path: repair(path, "a"),
        lambda path: move_data(path, "a", data_path=path.parent / "media"),
    ],
)
def test_two_inboxes_become_one(path: Path, open_queue: QueueFactory, call: Callable[[Path], object]) -> None:
    """A copy with an open and a closed inbox, from two moments of a move, has all published items once."""
    open_and_close(path)
    publish(path, b"1")
    shutil.copytree(path / "a" / "inbox", path / "a" / "inbox.closed")
    (published,) = (path / "a" / "inbox.closed").iterdir()
    (path / "a" / "inbox" / published.name).write_bytes(published.read_bytes()[:10])
    publish(path, b"2")
    call(path)
    assert not (path / "a" / "inbox.closed").exists()
    need_original(open_queue, b"1", b"2")


def test_a_foreign_file_in_a_closed_inbox(path: Path, open_queue: QueueFactory) -> None:
    """A directory in a closed inbox stays where it is, and the queue opens."""
    open_and_close(path)
    (path / "a" / "inbox.closed" / "foreign").mkdir(parents=True)
    for _ in range(2):
        open_and_close(path)
    assert check(path, "a").ok


def test_the_socket_of_a_killed_owner_is_removed(path: Path) -> None:
    """An opening removes the socket of an owner that was killed, and no other file of that name."""
    open_and_close(path)
    (path / "a" / ".socket.new").write_bytes(b"a file of somebody")
    with closing(socket.socket(socket.AF_UNIX)) as server:
        here = Path.cwd()
        os.chdir(path / "a")  # the name of a socket is short
        try:
            server.bind(".socket")
        finally:
            os.chdir(here)
    open_and_close(path)
    assert {".socket", ".socket.new"} & set(os.listdir(path / "a")) == {".socket.new"}

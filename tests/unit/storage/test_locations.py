"""Segments at another location than the log: where they are, what is refused, and moves.

The tests are named after the limits that the partitions of Qpid's linearstore had, which never fully worked: one file
system for all of a queue, no way to move, and partitions that are missing, full, or another broker's.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from persistentqueue import (
    CorruptionError,
    DataMissingError,
    DataPathError,
    DiskFullError,
    PersistentQueue,
    QueueFullError,
    QueueLockedError,
    QueueNotFoundError,
    UnsupportedFormatError,
    check,
    delete_queue,
    list_queues,
    move_data,
    repair,
)
from persistentqueue.cli import main
from persistentqueue.engine.context import Settings
from persistentqueue.engine.store import Store
from persistentqueue.recovery.opening import open_store
from persistentqueue.storage.layout import open_pool
from persistentqueue.storage.locations import OWN, Place, Places, read_record, write_fields, write_places
from persistentqueue.storage.log_reader import read_log
from persistentqueue.storage.relocation import need_data
from persistentqueue.system.disk import DISK
from tests.crash.disk import Crash, SimulatedDisk
from tests.crash.explorer import DIRECTORY, Explorer, content_of
from tests.support.disks import call_on
from tests.support.limits import transaction
from tests.support.queues import crash, drain, flip, log_file, put, put_each, segment_files, tmpfs

KIB, MIB = 1024, 1024 * 1024
ITEMS = [b"%03d" % n * 50 for n in range(30)]
SMALL: dict[str, Any] = {"segment_bytes": 1000}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the directory of the queues."""
    return tmp_path / "queues"


@pytest.fixture
def media(tmp_path: Path) -> Path:
    """Return the directory for their segments."""
    return tmp_path / "media"


def fill(root: Path, name: str | None = "q", items: list[bytes] = ITEMS, **settings: Any) -> None:
    """Make a queue with these items, in many segments, and a marker; close it."""
    with PersistentQueue(root, name, **{**SMALL, **settings}) as queue:
        put_each(queue, items)
        with queue.session() as session:
            assert session.flush(marker=("reports", 7))


def content(root: Path, name: str | None = "q", **settings: Any) -> list[bytes]:
    """Return the items of the queue, which must have its marker, without consuming any."""
    with PersistentQueue(root, name, create=False, **settings) as queue:
        assert queue.marker("reports") == 7
        return list(queue.browse())


def tree(*directories: Path) -> dict[str, bytes]:
    """Return all files and their bytes, except for locks, since their owners sign them."""
    files = (path for each in directories for path in each.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path): path.read_bytes() for path in files}


# --- the places of the files -----------------------------------------------------------------------------------------


def test_segments_are_elsewhere(root: Path, media: Path) -> None:
    """Segments are under ``data_path``, while log, lock and spare stay; an opening without ``data_path`` finds them."""
    with PersistentQueue(root, "q", data_path=media, **SMALL) as queue:
        put_each(queue, ITEMS)
        assert queue.data_path == str(media / "q")
        assert queue.stats().disk_bytes == sum(
            path.stat().st_size
            for path in (*root.rglob("*"), *media.rglob("*"))
            if path.is_file() and path.name not in {"lock", "data.path", "queue.id"}
        )
    assert segment_files(media / "q") and not segment_files(root / "q")
    assert sorted(path.name for path in (root / "q").iterdir()) == ["data.path", "lock", "log", "pool"]
    assert [path.name for path in (root / "q" / "pool").iterdir()] == ["log.free"]
    assert list_queues(root) == ["q"] and list_queues(media) == []
    with PersistentQueue(root, "q") as queue:
        assert drain(queue) == ITEMS


def test_relative_path_is_recorded_as_an_absolute_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative ``data_path`` is recorded as an absolute one, so that an opening from another directory finds the
    segments."""
    monkeypatch.chdir(tmp_path)
    fill(Path("queues"), data_path="media")
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert content(tmp_path / "queues") == ITEMS
    assert content(tmp_path / "queues", data_path="../media") == ITEMS


def test_queue_without_a_name(root: Path, media: Path) -> None:
    """The segments of a queue without a name are in ``data_path`` itself, which stays when the queue is deleted."""
    fill(root, None, data_path=media)
    assert segment_files(media)
    assert content(root, None) == ITEMS
    delete_queue(root)
    assert list(media.iterdir()) == []


def test_data_path_of_the_queue_itself_is_none(root: Path) -> None:
    """A ``data_path`` that is the queue's own place records nothing."""
    fill(root, data_path=root)
    assert not (root / "q" / "data.path").exists()
    assert content(root, data_path=root) == ITEMS


def test_named_queues_share_a_data_path(root: Path, media: Path) -> None:
    """Named queues have their segments side by side under a common ``data_path``, with a shared pool beside them."""
    settings: dict[str, Any] = {"data_path": media, "shared_pool": True, "pool_max_bytes": MIB, **SMALL}
    for name in "ab":
        with PersistentQueue(root, name, **settings) as queue:
            put_each(queue, [name.encode() + item for item in ITEMS])
            assert drain(queue) == [name.encode() + item for item in ITEMS]
    assert list((media / ".pool").glob("*.free")) and not (root / ".pool").exists()
    assert (
        open_pool(root, "a", shared=True, max_bytes=MIB).files()
        == open_pool(media, None, shared=True, max_bytes=MIB).files()
    )
    with PersistentQueue(root, "b", **settings) as queue:
        put_each(queue, ITEMS)
        assert queue.stats().pool_taken > 0
    delete_queue(root, "a")
    assert not (media / "a").exists()
    with PersistentQueue(root, "b") as queue:
        assert drain(queue) == ITEMS


def test_pool_recycles_elsewhere(root: Path, media: Path) -> None:
    """Drained segments go to a pool at the location of the segments, and are used again from there."""
    with PersistentQueue(root, "q", data_path=media, pool_min_bytes=4000, **SMALL) as queue:
        for _ in range(3):
            put_each(queue, ITEMS)
            assert drain(queue) == ITEMS
            queue.maintain()
        stats = queue.stats()
        assert stats.pool_taken > 0 and stats.pool_files > 0
        assert len(list((media / "q" / "pool").glob("*.free"))) == stats.pool_files
    assert main(["pool", "clear", str(root), "q"]) == 0
    assert not list((media / "q" / "pool").glob("*.free"))


def test_existing_queue_costs_no_call_more(root: Path) -> None:
    """A queue with its segments inside is opened without a call for the files that record another location."""
    fill(root)
    opened: list[str] = []

    def open_(path: str, flags: int, mode: int) -> int:
        opened.append(path)
        return DISK.open(path, flags, mode)

    call_on(replace(DISK, open=open_), PersistentQueue, root, "q").close()
    asked = [path for path in opened if path.endswith(("data.path", "queue.id"))]
    assert opened and not asked


# --- recorded and given paths ----------------------------------------------------------------------------------------


def test_another_data_path_is_refused(root: Path, media: Path, tmp_path: Path) -> None:
    """A ``data_path`` other than the recorded one is refused by an error that names both, and the command to move.

    Nothing is made.
    """
    fill(root, data_path=media)
    before = tree(root, media)
    with pytest.raises(DataPathError, match=f"{tmp_path}/new/q.*{media}/q.*persistentqueue move PATH"):
        PersistentQueue(root, "q", data_path=tmp_path / "new")
    with pytest.raises(DataPathError, match=f"the queue's own directory.*{media}/q"):
        PersistentQueue(root, "q", data_path=root)
    fill(root, "inside")
    with pytest.raises(DataPathError, match=f"{media}/inside.*in its own directory"):
        PersistentQueue(root, "inside", data_path=media)
    assert tree(root / "q", media) == before
    assert content(root, data_path=media) == content(root, "inside") == ITEMS


def test_another_name_of_the_place_is_the_place(root: Path, media: Path, tmp_path: Path) -> None:
    """A path that leads to the recorded location through a link is accepted; a copy of the location is not."""
    fill(root, data_path=media)
    (tmp_path / "link").symlink_to(media)
    assert content(root, data_path=tmp_path / "link") == ITEMS
    shutil.copytree(media, tmp_path / "copy")
    with pytest.raises(DataPathError):
        PersistentQueue(root, "q", data_path=tmp_path / "copy")


def test_place_that_is_mounted_elsewhere(root: Path, media: Path, tmp_path: Path) -> None:
    """A location that was mounted elsewhere is recorded anew if an opening names it, since it has the id."""
    fill(root, data_path=media)
    media.rename(tmp_path / "mnt")
    with pytest.raises(DataMissingError):
        PersistentQueue(root, "q", data_path=tmp_path / "wrong")
    assert content(root, data_path=tmp_path / "mnt") == ITEMS
    assert content(root) == ITEMS


@pytest.fixture
def strict_umask() -> Iterator[None]:
    """Take all rights of others from new files."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.parametrize("mode", [0o640, 0o600])
@pytest.mark.usefixtures("strict_umask")
def test_rights_of_a_group_stay(root: Path, media: Path, tmp_path: Path, mode: int) -> None:
    """If a group may read the two files of a location, it may read those that replace them; otherwise it may not."""
    fill(root, data_path=media)
    (root / "q" / "data.path").chmod(mode)
    (media / "q" / "queue.id").chmod(mode)
    (root / "q").rename(root / "r")
    (media / "q").rename(media / "r")
    media.rename(tmp_path / "mnt")
    assert content(root, "r", data_path=tmp_path / "mnt") == ITEMS
    place, claim = root / "r" / "data.path", tmp_path / "mnt" / "r" / "queue.id"
    assert str(tmp_path / "mnt") in place.read_text() and str(root / "r") in claim.read_text()
    assert [file.stat().st_mode & 0o777 for file in (place, claim)] == [mode] * 2


@pytest.mark.parametrize("is_member", [True, False])
def test_another_group_gets_no_rights(tmp_path: Path, is_member: bool) -> None:
    """A file that replaces one gets its group, if that group may read it. If the user is not in the group any more,
    no group may read the new file."""
    calls: list[tuple[int, int]] = []

    def fchown(fd: int, uid: int, gid: int) -> None:
        assert os.fstat(fd).st_mode & 0o077 == 0
        calls.append((uid, gid))
        if not is_member:
            raise PermissionError(errno.EPERM, "Operation not permitted")

    def fstat(fd: int) -> os.stat_result:
        found = list(os.fstat(fd))
        found[stat.ST_GID] += 1
        return os.stat_result(found)

    disk, path = replace(DISK, fchown=fchown, fstat=fstat), tmp_path / "fields"
    write_fields(disk, str(path), {"n": 1})
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    write_fields(disk, str(path), {"n": 2})
    assert calls == [(-1, path.stat().st_gid)]
    assert path.stat().st_mode & 0o777 == (0o640 if is_member else 0o600)


def test_place_is_no_queue(root: Path, media: Path) -> None:
    """Opening the location of segments as a queue is refused by an error that names their queue."""
    fill(root, data_path=media)
    with pytest.raises(DataPathError, match=f"the location of the segments of {root}/q"):
        PersistentQueue(media, "q")
    assert content(root) == ITEMS


@pytest.mark.damages
@pytest.mark.parametrize("meanwhile", ["moved", "deleted", "nothing"])
def test_data_that_leaves_meanwhile(root: Path, meanwhile: str) -> None:
    """A reader that finds no ``data`` does not take a queue that is moved or deleted meanwhile for a damaged one."""
    fill(root)
    directory = root / "q"
    looks: list[list[str]] = []

    def listdir(path: str) -> list[str]:
        """List the directory; after the first look, another process has gone on."""
        names = DISK.listdir(path)
        if Path(path) == directory and not looks:
            looks.append(names)
            names.remove("data")
            if meanwhile == "moved":
                (directory / "data.path").touch()
            elif meanwhile == "deleted":
                (directory / "log").rename(directory / "deleted")
        return names

    disk, places = replace(DISK, listdir=listdir), Places(str(directory))
    replay = read_log(DISK, str(log_file(directory)))
    if meanwhile == "nothing":
        with pytest.raises(DataMissingError):
            need_data(disk, places, replay)
    else:
        need_data(disk, places, replay)
    assert looks


# --- a place that is not there, or not ours --------------------------------------------------------------------------


def refused(root: Path, media: Path, **expected: object) -> None:
    """Check that every call reports the missing location, and makes, sweeps and sets aside nothing."""
    before = tree(root, media)
    for call in (PersistentQueue, delete_queue, repair):
        with pytest.raises(DataMissingError, match=f"{media}/q.*mount") as caught:
            call(root, "q")
        assert caught.value.place == str(media / "q")
        assert caught.value.found == expected["found"]
    with pytest.raises(DataMissingError):
        move_data(root, "q", data_path=None)
    with pytest.raises(DataMissingError):
        open_pool(root, "q", shared=False, max_bytes=0)
    (problem,) = check(root, "q").problems
    assert str(media / "q") in problem
    assert tree(root, media) == before


@pytest.mark.damages
@pytest.mark.parametrize("mounted", [True, False])
def test_missing_place(root: Path, media: Path, tmp_path: Path, mounted: bool) -> None:
    """A location that is not mounted is not mistaken for an empty one, whether its directory is empty or missing."""
    fill(root, data_path=media)
    media.rename(tmp_path / "away")
    if mounted:
        media.mkdir()
    refused(root, media, found=None)
    assert media.exists() == mounted and not (media / "q").exists()
    if mounted:
        media.rmdir()
    (tmp_path / "away").rename(media)
    assert content(root) == ITEMS


@pytest.mark.damages
def test_foreign_place(root: Path, media: Path, tmp_path: Path) -> None:
    """Another queue's location, found at the recorded path, is left alone."""
    fill(root, data_path=media)
    fill(tmp_path / "others", data_path=tmp_path / "theirs")
    media.rename(tmp_path / "away")
    (tmp_path / "theirs").rename(media)
    refused(root, media, found=read_record(DISK, str(tmp_path / "others" / "q")).place.id)


@pytest.mark.damages
def test_record_that_is_damaged(root: Path, media: Path) -> None:
    """A flipped bit in ``data.path`` or in ``queue.id`` is damage; a newer version raises
    ``UnsupportedFormatError``."""
    fill(root, data_path=media)
    for path in (root / "q" / "data.path", media / "q" / "queue.id"):
        whole = path.read_bytes()
        for offset in range(len(whole)):
            flip(path, offset)
            with pytest.raises(CorruptionError, match=path.name):
                PersistentQueue(root, "q")
            path.write_bytes(whole)
    line = b'{"version": 2}'
    (root / "q" / "data.path").write_bytes(b"%s\n%08x\n" % (line, zlib.crc32(line)))
    with pytest.raises(UnsupportedFormatError):
        PersistentQueue(root, "q")


@pytest.mark.damages
def test_places_that_are_taken(root: Path, media: Path, tmp_path: Path) -> None:
    """No location of another queue, directory of a queue or unknown segments can be taken, by a new queue or by a
    move."""
    fill(root, data_path=media)
    fill(tmp_path / "theirs")
    (tmp_path / "found" / "q" / "data").mkdir(parents=True)
    (tmp_path / "found" / "q" / "data" / "000000000001.seg").write_bytes(b"whose?")
    fill(tmp_path / "ours")
    targets = {media: f"of {root}/q", tmp_path / "theirs": "own directory", tmp_path / "found": "no queue.id"}
    for target, what in targets.items():
        before = tree(target)
        with pytest.raises(DataPathError, match=what):
            PersistentQueue(tmp_path / "new", "q", data_path=target)
        with pytest.raises(DataPathError, match=what):
            move_data(tmp_path / "ours", "q", data_path=target)
        assert tree(target) == before
    assert content(tmp_path / "ours") == content(root) == ITEMS


# --- moving ----------------------------------------------------------------------------------------------------------


def test_move_there_and_back(root: Path, media: Path, tmp_path: Path) -> None:
    """A move takes items, markers and files that were set aside along; foreign files stay where they are."""
    fill(root, pool_min_bytes=2000)
    aside = "data/000000000099.seg.damaged"
    mine = [root / "q" / "data" / "mine.txt", media / "q" / "mine.txt"]
    (root / "q" / aside).write_bytes(b"evidence")
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    for target in (media, tmp_path / "far" / "away", media, None, media, None):
        moved = move_data(root, "q", data_path=target)
        there = (target or root) / "q"
        assert (moved.target, moved.left) == (str(there), ())
        assert moved.files == len(segment_files(there)) + 1
        assert moved.copied_bytes == sum(path.stat().st_size for path in (there / "data").glob("*.seg*"))
        assert (there / aside).read_bytes() == b"evidence"
        assert content(root) == ITEMS
        assert check(root, "q").ok
        others = {root / "q", media / "q", tmp_path / "far" / "away" / "q"} - {there}
        assert not [path for other in others for path in (*other.rglob("*.seg*"), *other.rglob("queue.id"))]
    assert all(path.read_text() == "mine" for path in mine)
    assert not (tmp_path / "far" / "away" / "q").exists()
    assert not (root / "q" / "data.path").exists()


def test_move_to_where_it_is(root: Path, media: Path) -> None:
    """A move to the present location copies nothing."""
    fill(root, data_path=media)
    before = tree(root, media)
    moved = move_data(root, "q", data_path=media)
    assert (moved.source, moved.target, moved.files) == (str(media / "q"), str(media / "q"), 0)
    assert tree(root, media) == before


def test_move_of_what_cannot_be_moved(root: Path, media: Path) -> None:
    """A queue that is open or does not exist is not moved."""
    fill(root)
    with PersistentQueue(root, "q"), pytest.raises(QueueLockedError):
        move_data(root, "q", data_path=media)
    with pytest.raises(QueueNotFoundError):
        move_data(root, "nobody", data_path=media)
    delete_queue(root, "q")
    with pytest.raises(QueueNotFoundError):
        move_data(root, "q", data_path=media)
    assert not media.exists()


def test_move_after_a_crash(root: Path, media: Path) -> None:
    """A queue whose owner was killed is moved as it is, and recovers at its new location."""
    queue = PersistentQueue(root, "q", **SMALL)
    put_each(queue, ITEMS)
    crash(queue)
    move_data(root, "q", data_path=media)
    with PersistentQueue(root, "q") as queue:
        assert not queue.recovery.clean
        assert drain(queue) == ITEMS


def dies(disk: SimulatedDisk, at: int, work: Callable[[], object]) -> bool:
    """Do the work; return whether it died at the ``at``-th call of the disk that changes something."""
    last = disk.ticks + at

    def on_tick() -> None:
        if disk.ticks == last:
            raise Crash

    disk.on_tick = on_tick
    try:
        work()
    except Crash:
        return True
    finally:
        disk.on_tick = None
    return False


@pytest.mark.parametrize("way", ["there", "on", "back"])
def test_move_interrupted_at_every_call(way: str) -> None:
    """After a kill or a power cut at any call of a move, all items are at one location, and nothing is at the other."""
    source, target = {"there": (None, "/other"), "on": ("/other", "/third"), "back": ("/other", None)}[way]

    def opened(disk: SimulatedDisk) -> Store:
        place = f"{source}/q" if source and not disk.names.get(DIRECTORY) else None
        settings = Settings(segment_bytes=300, log_bytes=700)
        return open_store(disk.disk, DIRECTORY, settings, create=True, data_path=place)

    filled = SimulatedDisk()
    store = opened(filled)
    for item in ITEMS:
        store.commit([transaction(item)])
    store.close()
    chance, at = Random(way), 0
    while True:
        at += 1
        disk = filled.kill(chance.randrange)
        if not dies(disk, at, partial(call_on, disk.disk, move_data, "/queues", "q", data_path=target)):
            assert at > 40
            return
        for crashed in (disk.kill(chance.randrange), *(disk.cut_power(chance.randrange) for _ in range(6))):
            if chance.random() < 0.3:
                call_on(crashed.disk, move_data, "/queues", "q", data_path=chance.choice([source, target]))
            store = opened(crashed)
            assert list(content_of(store).items) == ITEMS
            store.close()
            segments = {path.rpartition("/data/")[0] for path in crashed.names if path.endswith(".seg")}
            assert segments == {store.places.data_root}
            assert store.places.others == ()


def test_random_programs_move() -> None:
    """Random programs keep their promises if segments are moved between their lives, and disks are not always
    mounted."""
    for seed in range(3):
        Explorer(seed, style="moves").run()


@pytest.mark.parametrize("call", range(1, 40))
def test_full_target_anywhere(call: int) -> None:
    """A move that finds no room leaves the queue as it was and nothing at the target, and can be tried again."""
    disk = SimulatedDisk()
    settings = Settings(segment_bytes=300, log_bytes=700)
    store = open_store(disk.disk, DIRECTORY, settings, create=True)
    for item in ITEMS:
        store.commit([transaction(item)])
    store.close()
    left = [call]

    def fault(name: str, path: str) -> OSError | None:
        if name not in {"open", "pwritev", "mkdir", "rename"} or path.endswith("lock"):
            return None
        left[0] -= 1
        return OSError(errno.ENOSPC, "No space left on device", path) if left[0] <= 0 else None

    disk.fault = fault
    with pytest.raises(DiskFullError, match="move again"):
        call_on(disk.disk, move_data, "/queues", "q", data_path="/other")
    disk.fault = None
    assert not [path for path in disk.names if path.startswith("/other") and path.endswith(".seg")]
    assert read_record(disk.disk, DIRECTORY).place == OWN
    call_on(disk.disk, move_data, "/queues", "q", data_path="/other")
    store = open_store(disk.disk, DIRECTORY, settings, create=False)
    assert list(content_of(store).items) == ITEMS
    store.close()


@pytest.mark.parametrize("step", ["move.1", "move.2", "move.3", "move.4", "move.5"])
@pytest.mark.parametrize("then", ["open", "move", "check"])
def test_move_that_dies(root: Path, media: Path, step: str, then: str) -> None:
    """The next opening or move sweeps the files that an interrupted move has left; ``check`` names them."""
    fill(root)

    class KilledError(BaseException):
        pass

    def failpoint(name: str) -> None:
        if name.startswith(step):
            raise KilledError

    with pytest.raises(KilledError):
        call_on(replace(DISK, failpoint=failpoint), move_data, root, "q", data_path=media)
    if then == "check":
        leftovers = [name for name in check(root, "q").leftovers if name.endswith(".seg")]
        assert bool(leftovers) == (step in {"move.4", "move.5"})
    if then == "move":
        move_data(root, "q", data_path=media)
    assert content(root) == ITEMS
    place = root if step != "move.5" and then != "move" else media
    assert [path.parents[2] for path in (*root.rglob("*.seg"), *media.rglob("*.seg"))] == [place] * len(
        segment_files(place / "q")
    )


def test_old_place_that_cannot_be_swept(
    root: Path, media: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An old location that is missing when it is to be swept stays recorded, is reported, and is swept later."""
    fill(root, data_path=media)
    fill(root, "r", data_path=media)

    def failpoint(name: str) -> None:
        if name.startswith("move.5"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_on(replace(DISK, failpoint=failpoint), move_data, root, "q", data_path=tmp_path / "new")
    media.rename(tmp_path / "away")
    assert main(["move", str(root), "q", "--data-path", str(tmp_path / "new")]) == 1
    assert f"left: {media}/q is missing, or could not be swept" in capsys.readouterr().out
    assert content(root) == ITEMS
    assert segment_files(tmp_path / "away" / "q")
    (tmp_path / "away").rename(media)
    assert content(root) == content(root, "r") == ITEMS
    assert not segment_files(media / "q") and read_record(DISK, str(root / "q")).others == ()


def test_old_place_while_the_disk_of_the_log_is_full(root: Path, media: Path) -> None:
    """If the sweep of an old location cannot be recorded for want of room, the queue opens, and a later opening records
    it."""
    fill(root, data_path=media)

    def failpoint(name: str) -> None:
        if name.startswith("move.5"):
            raise KeyboardInterrupt

    def open_(path: str, flags: int, mode: int) -> int:
        if path.endswith("data.path.new"):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return DISK.open(path, flags, mode)

    with pytest.raises(KeyboardInterrupt):
        call_on(replace(DISK, failpoint=failpoint), move_data, root, "q", data_path=media.parent / "new")
    assert call_on(replace(DISK, open=open_), content, root) == ITEMS
    assert not segment_files(media / "q") and (media / "q" / "queue.id").exists()
    assert content(root) == ITEMS
    assert not (media / "q" / "queue.id").exists()


def test_other_place_that_became_another_queues(root: Path, media: Path) -> None:
    """A recorded old location that has another id is forgotten and left alone."""
    fill(root)
    fill(root, "r", data_path=media)
    write_places(DISK, Places(str(root / "q"), others=(Place(str(media / "r"), "0" * 32),)))
    assert content(root) == content(root, "r") == ITEMS
    assert not (root / "q" / "data.path").exists()


# --- beginnings and ends ---------------------------------------------------------------------------------------------


def test_new_queue_interrupted_at_every_call() -> None:
    """A new queue with its segments elsewhere can be opened there after a crash at any call of its making."""

    def opened(disk: SimulatedDisk, data_path: str = "/other/q") -> Store:
        return open_store(disk.disk, DIRECTORY, Settings(), create=True, data_path=data_path)

    def make(disk: SimulatedDisk) -> None:
        opened(disk).close()

    chance, at = Random(0), 0
    while True:
        at += 1
        disk = SimulatedDisk()
        if not dies(disk, at, partial(make, disk)):
            assert at > 20
            return
        for crashed in (disk.kill(chance.randrange), *(disk.cut_power(chance.randrange) for _ in range(5))):
            store = opened(crashed)
            assert store.places.data_root == "/other/q"
            store.commit([transaction(b"one")])
            cut = crashed.cut_power(chance.randrange)
            assert content_of(opened(cut)).items == (b"one",)


def test_new_queue_may_still_choose(root: Path, media: Path, tmp_path: Path) -> None:
    """If a new queue was killed before it existed, the next opening may choose another location for its segments."""

    def failpoint(name: str) -> None:
        raise KeyboardInterrupt(name)

    with suppress(KeyboardInterrupt):
        call_on(replace(DISK, failpoint=failpoint), PersistentQueue, root, "q", data_path=media)
    assert (media / "q" / "queue.id").exists()
    fill(root, data_path=tmp_path / "new")
    assert content(root) == ITEMS
    assert not (media / "q" / "queue.id").exists()
    with suppress(KeyboardInterrupt):
        call_on(replace(DISK, failpoint=failpoint), PersistentQueue, root, "r", data_path=media)
    fill(root, "r", data_path=root)
    assert segment_files(root / "r") and not (root / "r" / "data.path").exists()


def test_log_that_is_gone(root: Path, media: Path) -> None:
    """Segments at a location, without the log of their queue, are damage, like segments beside the log."""
    fill(root, data_path=media)
    shutil.move(root / "q" / "log", root / "log")
    with pytest.raises(CorruptionError, match="a log, since there is"):
        PersistentQueue(root, "q")
    shutil.move(root / "log", root / "q" / "log")


@pytest.mark.parametrize("then", ["open", "delete"])
def test_deletion_interrupted_at_every_call(then: str) -> None:
    """A deletion that is cut short leaves the whole queue or none, and its location can be taken again."""
    chance, at = Random(then), 0
    settings = Settings(segment_bytes=300, log_bytes=700)

    def opened(disk: SimulatedDisk) -> Store:
        return open_store(disk.disk, DIRECTORY, settings, create=True, data_path="/other/q")

    filled = SimulatedDisk()
    store = opened(filled)
    for item in ITEMS:
        store.commit([transaction(item)])
    store.close()
    while True:
        at += 1
        disk = filled.kill(chance.randrange)
        if not dies(disk, at, partial(call_on, disk.disk, delete_queue, "/queues", "q")):
            assert at > 20
            assert not [path for path in disk.names if path.startswith("/other/")]
            return
        for crashed in (disk.kill(chance.randrange), *(disk.cut_power(chance.randrange) for _ in range(5))):
            if then == "delete":
                with suppress(QueueNotFoundError):
                    call_on(crashed.disk, delete_queue, "/queues", "q")
            store = opened(crashed)
            assert list(content_of(store).items) in ([[]] if then == "delete" else [[], ITEMS])
            store.close()


def test_deletion_elsewhere_leaves_what_is_not_the_queues(root: Path, media: Path) -> None:
    """A deletion leaves foreign files at the location, and their directories; the location can be taken again."""
    fill(root, data_path=media, pool_min_bytes=2000)
    mine = media / "q" / "data" / "mine.txt"
    mine.write_text("mine")
    delete_queue(root, "q")
    assert [path for path in media.rglob("*") if path.is_file()] == [mine]
    assert list_queues(root) == []
    fill(root, data_path=media)
    assert content(root) == ITEMS


@pytest.mark.damages
def test_check_and_repair_elsewhere(root: Path, media: Path) -> None:
    """Damage at the location of the segments is found and repaired there, with and without a log that can be used."""
    fill(root, data_path=media)
    (media / "q" / "data" / "stray").write_text("not ours")
    assert check(root, "q").leftovers == ("data/stray",)
    with pytest.raises(DataPathError, match="open that queue instead"):
        check(media, "q")
    segment = segment_files(media / "q")[0]
    flip(segment, segment.stat().st_size - 100)
    (problem,) = check(root, "q").problems
    assert str(segment) in problem
    report = repair(root, "q")
    assert sum(count for _, count in report.lost) == len(ITEMS) - report.items > 0
    assert any(name.startswith("data/") for name in report.kept)
    assert check(root, "q").ok
    flip(log_file(root / "q"), 70)
    assert repair(root, "q").without_log
    assert check(root, "q").ok
    with PersistentQueue(root, "q") as queue:
        assert len(drain(queue)) == report.items


# --- two file systems ------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield the path of another file system, of 4 MiB."""
    with tmpfs(tmp_path / "small", 4 * MIB) as path:
        yield path


def test_queue_over_two_file_systems(root: Path, small_disk: Path) -> None:
    """A queue with log and segments on two file systems works: roll, reuse, crash, recovery, close, and move back."""
    for end in (crash, PersistentQueue.close):
        with PersistentQueue(root, "q", data_path=small_disk, pool_max_bytes=10_000, **SMALL) as queue:
            assert os.stat(queue.data_path).st_dev != os.stat(root / "q" / "log").st_dev
            put_each(queue, ITEMS)
            assert drain(queue) == ITEMS
            queue.trim()
            put_each(queue, ITEMS)
            assert queue.stats().pool_taken > 0
            end(queue)
        with PersistentQueue(root, "q") as queue:
            assert queue.recovery.clean == (end is not crash)
            assert drain(queue) == ITEMS
            put(queue, *ITEMS, b"last")
            assert drain(queue) == [*ITEMS, b"last"]
    with PersistentQueue(root, "q") as queue:
        put_each(queue, ITEMS)
    move_data(root, "q", data_path=None)
    assert not list(small_disk.rglob("*.seg"))
    with PersistentQueue(root, "q") as queue:
        assert drain(queue) == ITEMS


def test_full_target(root: Path, small_disk: Path) -> None:
    """A move to a disk that is too small leaves the queue where it was, and gives the room there back."""
    fill(root, items=[b"x" * 100_000] * 60)
    before = tree(root)
    with pytest.raises(DiskFullError, match="move again"):
        move_data(root, "q", data_path=small_disk)
    assert tree(root) == before
    assert not list(small_disk.rglob("*.seg"))
    assert DISK.free_bytes(str(small_disk)) > 3.9 * MIB


def test_full_data_disk(root: Path, small_disk: Path) -> None:
    """If the disk of the segments is full, enqueues are refused, and dequeues go on."""
    with PersistentQueue(root, "q", data_path=small_disk, segment_bytes=MIB) as queue:
        count = 0
        with queue.session() as session:
            with pytest.raises(DiskFullError, match=str(small_disk)):
                while True:
                    session.enqueue(b"x" * 100_000)
                    session.flush()
                    count += 1
            assert len(drain(queue)) == count
            session.flush()
    move_data(root, "q", data_path=None)
    with PersistentQueue(root, "q") as queue:
        assert drain(queue) == [b"x" * 100_000]


def test_limits_count_both_places(root: Path, media: Path) -> None:
    """``max_disk_bytes`` counts the segments elsewhere; ``min_free_bytes`` looks at the file system of the file that
    grows."""
    with PersistentQueue(root, "q", data_path=media, max_disk_bytes=100 * KIB, log_bytes=8192, **SMALL) as queue:
        with pytest.raises(QueueFullError, match="max_disk_bytes"):
            put_each(queue, [b"x" * 900] * 200)
        assert sum(path.stat().st_size for path in media.rglob("*.seg")) > 30 * KIB
        assert queue.stats().disk_bytes <= 100 * KIB
    free = {str(media): 5000, str(root): MIB}
    disk = replace(DISK, free_bytes=lambda path: free[next(each for each in free if path.startswith(each))])
    with call_on(disk, PersistentQueue, root, "r", data_path=media, min_free_bytes=4000, inline_bytes=0) as queue:
        with pytest.raises(QueueFullError, match=f"{media}/r/data: .* file system has 5000 free"):
            put(queue, b"x" * 3000)
        free[str(media)] = MIB
        put(queue, b"x" * 3000)


# --- the command -----------------------------------------------------------------------------------------------------


def test_command_line(root: Path, media: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``move`` moves the named queues there and back, and reports it; a move that fails has status 2."""
    fill(root, "a")
    fill(root, "b")
    assert main(["move", str(root), "a", "b", "--data-path", str(media)]) == 0
    out = capsys.readouterr().out
    assert f"from {root}/a to {media}/a" in out and f"from {root}/b to {media}/b" in out
    assert content(root, "a") == content(root, "b") == ITEMS
    assert main(["move", str(root), "a", "--back"]) == 0
    assert main(["move", str(root / "b"), "--data-path", str(media / "a")]) == 0
    assert segment_files(root / "a") and segment_files(media / "a")
    assert main(["move", str(root), "nobody", "--back"]) == 2
    assert "QueueNotFoundError" in capsys.readouterr().err
    assert content(root, "a") == content(root, "b") == ITEMS

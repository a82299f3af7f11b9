"""Row 23: ``repair`` mends the link between a queue and the location of its segments, or says what it needs."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import PersistentQueue, Producer, View, check, delete_queue, move_data, repair
from persistentqueue.errors import (
    CorruptionError,
    DataMissingError,
    DataPathError,
    QueueLockedError,
    QueueNotFoundError,
)
from persistentqueue.storage.locations import read_places, read_record, renew_id
from persistentqueue.storage.relocation import need_own_location
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, flip, log_file, put, spilling_session

ITEMS = [b"%d" % number * 200_000 for number in range(3)]


@pytest.fixture
def place(tmp_path: Path, open_queue: QueueFactory) -> Path:
    """Return the location of the segments of a closed queue with items."""
    with open_queue(data_path=tmp_path / "place") as queue:
        put(queue, *ITEMS)
    return tmp_path / "place" / "orders"


@pytest.mark.parametrize("damage", ["flip", "empty"])
def test_row_23_a_damaged_data_path(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, place: Path, damage: str
) -> None:
    """``repair`` writes a damaged ``data.path`` anew if the location is named, and keeps the damaged file. Without a
    name, or with a location that lacks the segments, it says what it needs."""
    record = directory / "data.path"
    flip(record, 20) if damage == "flip" else record.write_bytes(b"")
    with pytest.raises(CorruptionError):
        open_queue()
    with pytest.raises(DataPathError, match="repair --data-path DIR"):
        repair(directory)
    with pytest.raises(DataPathError, match="expected segments of this queue in"):
        repair(directory, data_path=tmp_path / "elsewhere")
    report = repair(directory.parent, "orders", data_path=tmp_path / "place")
    assert "data.path: damaged" in report.problems[0]
    assert report.kept == ("data.path.damaged",)
    assert (report.items, report.lost) == (3, ())
    with open_queue() as queue:
        assert Path(queue.data_path) == place
        assert drain(queue) == ITEMS


@pytest.mark.parametrize("has_name", [False, True])
def test_row_23_the_advice_names_the_directory(directory: Path, place: Path, has_name: bool) -> None:
    """The errors of an opening, and of a repair, name the ``data_path`` that helps, also for a queue with a name. They
    named the directory of the segments, to which a repair then added the name."""
    flip(directory / "data.path", 20)
    at = (directory.parent, "orders") if has_name else (directory, None)
    advice = "the directory that holds the segments, or its parent directory if the call has the queue's name"
    for call in (PersistentQueue, repair):
        with pytest.raises((CorruptionError, DataPathError), match=advice):
            call(*at)
    assert repair(*at, data_path=place.parent if has_name else place).items == 3


@pytest.mark.parametrize("thing", ["pipe", "holes"])
@pytest.mark.parametrize("name", ["data.path", "queue.id"])
def test_row_23_what_is_no_small_file(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, place: Path, thing: str, name: str
) -> None:
    """A pipe or a sparse file in the place of ``data.path`` or ``queue.id`` is set aside, and never copied."""
    path = (directory if name == "data.path" else place) / name
    path.unlink()
    if thing == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, 2**40)
    report = repair(directory.parent, "orders", data_path=tmp_path / "place")
    assert report.kept == (f"{name}.damaged",)
    kept = path.with_name(f"{name}.damaged").lstat()
    assert kept.st_blocks == 0
    with open_queue() as queue:
        assert drain(queue) == ITEMS


def test_row_23_a_damaged_data_path_of_a_queue_that_is_at_home(directory: Path, open_queue: QueueFactory) -> None:
    """If the segments are in the queue's own directory, ``repair`` sets a damaged ``data.path`` aside without a named
    location."""
    with open_queue() as queue:
        put(queue, *ITEMS)
    (directory / "data.path").write_bytes(b"{}")
    with pytest.raises(CorruptionError):
        open_queue()
    assert repair(directory).kept == ("data.path.damaged",)
    assert not (directory / "data.path").exists()
    assert drain(open_queue()) == ITEMS


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("is_crashed", [True, False])
def test_row_23_a_lost_or_damaged_id(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, place: Path, is_lost: bool, is_crashed: bool
) -> None:
    """A location whose ``queue.id`` is lost or damaged gets it back, because it holds the segments that the log
    names."""
    if is_crashed:
        queue = open_queue()
        put(queue, b"more")
        crash(queue)
    before = (place / "queue.id").read_bytes()
    if is_lost:
        (place / "queue.id").unlink()
    else:
        flip(place / "queue.id", 12)
    with pytest.raises((CorruptionError, DataMissingError)):
        open_queue()
    report = repair(directory)
    assert report.problems
    assert (place / "queue.id").read_bytes() == before
    assert report.kept == (() if is_lost else ("queue.id.damaged",))
    assert drain(open_queue()) == ITEMS + [b"more"] * is_crashed


def test_row_23_both_are_lost(tmp_path: Path, directory: Path, open_queue: QueueFactory, place: Path) -> None:
    """If ``data.path`` is damaged and ``queue.id`` is lost, the segments themselves tell to which queue they belong."""
    flip(directory / "data.path", 20)
    (place / "queue.id").unlink()
    repair(directory.parent, "orders", data_path=tmp_path / "place")
    assert drain(open_queue()) == ITEMS


def test_a_deletion_takes_what_a_repair_has_kept(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, place: Path
) -> None:
    """``delete_queue`` deletes the damaged ``data.path`` and ``queue.id`` that a repair has set aside, with the
    directories. A directory of such a name stays."""
    for file in (directory / "data.path", place / "queue.id"):
        flip(file, 20)
    report = repair(directory.parent, "orders", data_path=tmp_path / "place")
    assert sorted(report.kept) == ["data.path.damaged", "queue.id.damaged"]
    (directory / "data.path.2.damaged").mkdir()
    delete_queue(directory.parent, "orders")
    assert [*directory.iterdir()] == [directory / "data.path.2.damaged"]
    assert not place.exists()


def test_row_23_a_place_that_is_not_there(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, place: Path
) -> None:
    """A location that is not there is not damage: ``repair`` makes nothing there, and says what is needed."""
    shutil.move(place, tmp_path / "unmounted")
    with pytest.raises(DataMissingError, match="mount the disk that belongs there"):
        repair(directory)
    assert not place.exists()
    shutil.move(tmp_path / "unmounted", place)
    assert repair(directory).problems == ()
    assert drain(open_queue()) == ITEMS


@pytest.mark.damages
@pytest.mark.parametrize("end", ["closed", "crashed", "unsynced"])
def test_row_23_a_lost_data_path(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, place: Path, end: str
) -> None:
    """A queue whose ``data.path`` is lost is no empty queue: each call refuses it, and changes nothing. ``repair``
    brings all items back if the location is named."""
    items = ITEMS
    if end != "closed":
        queue = open_queue(sync=end == "crashed")
        put(queue, *ITEMS)
        crash(queue)
        items = ITEMS * 2
    record = (directory / "data.path").read_bytes()
    (directory / "data.path").unlink()
    before = sorted(tmp_path.rglob("*"))
    for call in (
        open_queue,
        lambda: open_queue(data_path=tmp_path / "place"),
        lambda: View(directory).look(),
        lambda: Producer(directory, create=False),
        lambda: move_data(directory, data_path=tmp_path / "new"),
        lambda: repair(directory),
    ):
        with pytest.raises(DataMissingError, match=r"restore data\.path, or run repair with the data_path=") as caught:
            call()
        assert (caught.value.place, caught.value.found) == (str(directory), None)
    with pytest.raises(DataPathError, match="expected segments of this queue in"):
        repair(directory, data_path=directory)
    report = check(directory)
    assert "restore data.path" in report.problems[0]
    assert sorted(tmp_path.rglob("*")) == before
    repaired = repair(directory.parent, "orders", data_path=tmp_path / "place")
    assert "no location of its segments is recorded" in repaired.problems[0]
    assert (repaired.items, repaired.lost, repaired.kept) == (len(items), (), ())
    assert (directory / "data.path").read_bytes() == record
    with open_queue() as queue:
        assert Path(queue.data_path) == place
        assert drain(queue) == items


@pytest.mark.damages
def test_row_23_a_lost_data_path_and_a_damaged_log(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, place: Path
) -> None:
    """If the log is damaged, and names no segment any more, a queue without ``data`` still needs its location."""
    (directory / "data.path").unlink()
    flip(log_file(directory), 70)
    with pytest.raises(DataPathError, match="repair --data-path DIR; if the segments are lost for good, remove"):
        repair(directory)
    with pytest.raises(CorruptionError):
        move_data(directory, data_path=tmp_path / "new")
    report = repair(directory.parent, "orders", data_path=tmp_path / "place")
    assert (report.items, report.lost, report.without_log) == (3, (), True)
    assert drain(open_queue()) == ITEMS


@pytest.mark.damages
def test_row_23_lost_segments(directory: Path, open_queue: QueueFactory) -> None:
    """A queue at home whose ``data`` was deleted is refused, until a new ``data`` says that all items are lost."""
    with open_queue() as queue:
        put(queue, *ITEMS)
    shutil.rmtree(directory / "data")
    with pytest.raises(DataMissingError, match="if the segments are lost for good, make the directory data"):
        open_queue()
    (directory / "data").mkdir()
    assert repair(directory).lost == ((0, 3),)
    assert drain(open_queue()) == []


@pytest.mark.damages
@pytest.mark.parametrize("is_opened", [False, True])
def test_row_23_a_lost_data_path_of_a_queue_without_segments(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, is_opened: bool
) -> None:
    """``repair`` ties a queue with a lost ``data.path`` and no segments to the location that names it, also after an
    opening without it. A move there would delete what is published there, so it is refused."""
    open_queue(data_path=tmp_path / "place").close()
    publish(directory.parent, "orders", b"published")
    (directory / "data.path").unlink()
    if is_opened:
        open_queue().close()
    with pytest.raises(DataPathError, match="omit data_path="):
        open_queue(data_path=tmp_path / "place")
    with pytest.raises(DataPathError, match=r"another data_path, or first move what is in its inbox to"):
        move_data(directory.parent, "orders", data_path=tmp_path / "place")
    report = repair(directory.parent, "orders", data_path=tmp_path / "place")
    assert (report.items, report.kept) == (1, ()) and "names this queue" in report.problems[0]
    with open_queue() as queue:
        assert queue.data_path == str(tmp_path / "place" / "orders")
        assert drain(queue) == [b"published"]


def test_row_23_a_location_with_published_files_is_not_free(
    tmp_path: Path, directory: Path, open_queue: QueueFactory
) -> None:
    """A location that has lost its ``queue.id`` stays another queue's while published files wait there. A move to it
    deleted them."""
    open_queue("other", data_path=tmp_path / "place").close()
    publish(directory.parent, "other", b"published")
    (tmp_path / "place" / "other" / "queue.id").rename(tmp_path / "id")
    open_queue().close()
    with pytest.raises(DataPathError, match="expected nothing of another queue in"):
        move_data(directory, data_path=tmp_path / "place" / "other")
    (tmp_path / "id").rename(tmp_path / "place" / "other" / "queue.id")
    assert drain(open_queue("other")) == [b"published"]


@pytest.mark.damages
@pytest.mark.parametrize("items", [[], ITEMS])
def test_row_23_a_location_whose_queue_is_gone(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, items: list[bytes]
) -> None:
    """The advice about a location whose queue is gone brings back what is there. A repair finds no queue without a
    segment, and a move stays refused while segments are there."""
    with open_queue(data_path=tmp_path / "place") as queue:
        put(queue, *items)
    publish(directory.parent, "orders", b"published")
    shutil.rmtree(directory)
    place, advice = tmp_path / "place" / "orders", "run repair there" if items else "open that directory as a queue"
    with pytest.raises(DataPathError, match=f"remove queue.id there, then {advice}$"):
        open_queue(data_path=tmp_path / "place")
    open_queue().close()
    with pytest.raises(DataPathError, match="choose another data_path$" if items else "to the inbox of this queue$"):
        move_data(directory.parent, "orders", data_path=tmp_path / "place")
    (place / "queue.id").unlink()
    if items:
        assert repair(place).items == len(items) + 1
    with PersistentQueue(place) as queue:
        assert drain(queue) == [*items, b"published"]


@pytest.mark.damages
@pytest.mark.parametrize("lost", ["location", "record and location", "damaged record", "location and log", "id"])
def test_row_23_a_location_that_is_gone_for_good(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, place: Path, lost: str
) -> None:
    """If the segments are lost for good, the errors of ``repair`` say what ends that, whatever ``data_path`` is given.
    So do those of openings, moves and deletions that do not name a repair. Their advice led in a circle."""
    if lost == "id":
        (place / "queue.id").unlink()
        shutil.rmtree(place / "data")
    else:
        shutil.rmtree(place)
    if lost == "record and location":
        (directory / "data.path").unlink()
    elif lost == "damaged record":
        flip(directory / "data.path", 5)
    elif lost == "location and log":
        flip(log_file(directory), 70)
    (tmp_path / "new" / "orders").mkdir(parents=True)
    for data_path in (None, tmp_path / "place", tmp_path / "new", directory.parent):
        with pytest.raises(
            (DataMissingError, DataPathError), match=r"if the segments are lost for good, .*make the dir"
        ):
            repair(directory.parent, "orders", data_path=data_path)
    for call in (open_queue, lambda: move_data(directory, data_path=tmp_path / "new"), lambda: delete_queue(directory)):
        if lost != "record and location" or call is open_queue:
            with pytest.raises(
                (DataMissingError, CorruptionError), match=r"lost for good|run repair|repair --data-path"
            ):
                call()
    (directory / "data.path").unlink(missing_ok=True)
    (directory / "data").mkdir()
    report = repair(directory)
    assert report.items == 0 and (lost == "location and log" or report.lost == ((0, 3),))
    with open_queue() as queue:
        assert drain(queue) == []


@pytest.mark.damages
def test_row_23_neither_log_nor_record(tmp_path: Path, directory: Path, open_queue: QueueFactory, place: Path) -> None:
    """If both the log and ``data.path`` are lost, ``repair`` believes a location that names the queue. It found no
    queue."""
    shutil.rmtree(directory / "log")
    (directory / "data.path").unlink()
    with pytest.raises(DataPathError, match=r"bring back what is there, remove queue\.id there, then run repair there"):
        open_queue(data_path=tmp_path / "place")
    with pytest.raises(QueueNotFoundError):
        repair(directory.parent, "gone", data_path=tmp_path / "place")
    report = repair(directory.parent, "orders", data_path=tmp_path / "place")
    assert (report.items, report.without_log) == (3, True)
    with open_queue() as queue:
        assert Path(queue.data_path) == place
        assert drain(queue) == ITEMS


@pytest.mark.damages
def test_row_23_a_report_gives_no_advice(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, place: Path
) -> None:
    """The report of a repair that has found the segments does not advise to mount the disk, or to go on without."""
    shutil.move(place.parent, tmp_path / "mounted")
    (tmp_path / "mounted" / "orders" / "queue.id").unlink()
    (problem,) = repair(directory.parent, "orders", data_path=tmp_path / "mounted").problems
    assert problem.endswith("found none") and "its segments are at" in problem
    assert drain(open_queue()) == ITEMS


@pytest.mark.damages
def test_row_23_a_queue_that_is_gone_for_good(tmp_path: Path, directory: Path, place: Path) -> None:
    """If only the location of a queue is left, the errors there say how a repair brings back its items."""
    shutil.rmtree(directory)
    for call in (PersistentQueue, repair):
        with pytest.raises(DataPathError, match=r"if it is gone for good, remove queue\.id, then run repair"):
            call(place)
    (place / "queue.id").unlink()
    report = repair(place)
    assert (report.items, report.without_log) == (3, True)
    with PersistentQueue(place) as queue:
        assert drain(queue) == ITEMS


@pytest.mark.parametrize("call", ["open", "check", "move", "repair"])
def test_row_23_a_copy_without_empty_directories(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, call: str
) -> None:
    """A queue without a segment needs no ``data``, so a copy that lacks the empty directories is as good as it."""
    open_queue().close()
    for part in ("data", "inbox", "pool"):
        shutil.rmtree(directory / part)
    if call == "check":
        assert check(directory).ok
    elif call == "move":
        move_data(directory, data_path=tmp_path / "new")
    elif call == "repair":
        assert repair(directory).problems == ()
    queue = open_queue()
    put(queue, *ITEMS)
    assert drain(queue) == ITEMS


def test_row_23_the_place_of_another_queue(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, place: Path
) -> None:
    """Segments of another queue are never tied to this one, and neither is a location with the id of another queue."""
    with open_queue("other", data_path=tmp_path / "place") as queue:
        put(queue, *ITEMS)
    other = tmp_path / "place" / "other"
    flip(directory / "data.path", 20)
    with pytest.raises(DataPathError, match="expected segments of this queue in"):
        repair(directory, data_path=other)
    shutil.copy(other / "queue.id", place / "queue.id")
    with pytest.raises(DataPathError, match="if that queue is gone, remove"):
        repair(directory, data_path=place)
    (place / "queue.id").unlink()
    assert repair(directory, data_path=place).items == 3
    assert drain(open_queue()) == ITEMS
    assert drain(open_queue("other")) == ITEMS


def test_row_23_an_owner_is_not_disturbed(directory: Path, open_queue: QueueFactory, place: Path) -> None:
    """``repair`` mends nothing while an owner has the queue open."""
    queue = open_queue()
    content = (place / "queue.id").read_bytes()
    (place / "queue.id").unlink()
    with pytest.raises(QueueLockedError):
        repair(directory)
    assert not (place / "queue.id").exists()
    (place / "queue.id").write_bytes(content)
    assert drain(queue) == ITEMS


def test_row_23_a_stray_id(tmp_path: Path, directory: Path, open_queue: QueueFactory, place: Path) -> None:
    """A ``queue.id`` that no queue records is set aside by ``repair``, after which a queue can be made there. The id of
    a location in use stays."""
    with open_queue("gone", data_path=tmp_path / "other") as queue:
        put(queue)
    shutil.rmtree(directory.parent / "gone")
    left = tmp_path / "other" / "gone"
    shutil.rmtree(left / "data")
    with pytest.raises(DataPathError, match="the location of the segments of"):
        open_queue(None, path=left)
    report = repair(left)
    assert "set aside" in report.problems[0]
    assert report.kept == ("queue.id.damaged",)
    open_queue(None, path=left).close()
    with pytest.raises(DataPathError):
        repair(place)
    assert check(directory).ok


# --- records that were exchanged -------------------------------------------------------------------------------------


def files_below(path: Path) -> dict[Path, bytes]:
    """Return the content of each file below the path, but for the locks."""
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "lock"}


def exchange(path: Path) -> None:
    """Exchange the records of the queues "a" and "b"."""
    (path / "a" / "data.path").rename(path / "kept")
    (path / "b" / "data.path").rename(path / "a" / "data.path")
    (path / "kept").rename(path / "b" / "data.path")


def publish(path: Path, name: str, item: bytes) -> None:
    """Publish an item for the queue of this name."""
    with Producer(path, name) as producer:
        producer.enqueue(item)
        producer.flush()


@pytest.mark.parametrize("is_crashed", [True, False])
def test_records_that_were_exchanged(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, is_crashed: bool
) -> None:
    """If two records were exchanged, each call refuses the segments of the neighbour, and changes none of them.
    ``repair`` brings both queues back if the locations are named."""
    path, media = directory.parent, tmp_path / "media"
    for name in ("b", "a"):  # "a" is open when it crashes
        queue = open_queue(name, data_path=media, segment_bytes=8192)
        for item in ITEMS:
            put(queue, name.encode() + item)
        if is_crashed:
            crash(queue)
        else:
            queue.close()
    exchange(path)
    before = files_below(path) | files_below(media)
    for call in (
        lambda: open_queue("a"),
        lambda: open_queue("a", data_path=media / "b"),
        lambda: View(path, "a").look(),
        lambda: Producer(path, "a", create=False),
        lambda: move_data(path, "a", data_path=tmp_path / "new"),
        lambda: delete_queue(path, "a"),
        lambda: repair(path, "a"),
    ):
        with pytest.raises(DataPathError):
            call()
    (problem,) = check(path, "a").problems
    assert "if data.path of the two queues was exchanged, restore it" in problem
    assert files_below(path) | files_below(media) == before
    for name in "ab":
        assert repair(path, name, data_path=media).items == 3
        with open_queue(name) as queue:
            assert Path(queue.data_path) == media / name
            assert drain(queue) == [name.encode() + item for item in ITEMS]


def test_a_record_of_a_neighbour_without_segments(tmp_path: Path, directory: Path, open_queue: QueueFactory) -> None:
    """An empty queue that records the location of an empty neighbour does not adopt what waits there."""
    path, media = directory.parent, tmp_path / "media"
    for name in ("a", "b"):
        open_queue(name, data_path=media).close()
    publish(path, "b", b"an item of b")
    exchange(path)
    with pytest.raises(DataPathError, match="segments of its own"):
        open_queue("a")
    exchange(path)
    assert drain(open_queue("b")) == [b"an item of b"]


@pytest.mark.damages
def test_a_damaged_log_is_no_proof(tmp_path: Path, directory: Path, open_queue: QueueFactory) -> None:
    """A queue whose log cannot be read does not get the location of a neighbour."""
    path, media = directory.parent, tmp_path / "media"
    for name in ("a", "b"):
        with open_queue(name, data_path=media) as queue:
            put(queue, *ITEMS)
    exchange(path)
    flip(log_file(path / "a"), 70)
    with pytest.raises(DataPathError, match="segments of its own"):
        repair(path, "a")
    repair(path, "b", data_path=media)
    assert drain(open_queue("b")) == ITEMS
    shutil.rmtree(path / "a")


@pytest.mark.parametrize("has_media", [True, False])
def test_a_queue_that_was_renamed_and_replaced(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, has_media: bool
) -> None:
    """A renamed queue opens, although another one was made in its old directory: that one has its own location."""
    path = directory.parent
    open_queue("a", data_path=tmp_path / "media").close()
    publish(path, "a", b"published")
    (path / "a").rename(path / "renamed")
    open_queue("a", data_path=tmp_path / "other" if has_media else None).close()
    assert drain(open_queue("renamed")) == [b"published"]


@pytest.mark.parametrize("items", [ITEMS, []])
def test_a_neighbour_that_is_out_of_reach(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, items: list[bytes]
) -> None:
    """If the other queue cannot be read, a location that names it needs a segment of this queue, or no file at all."""
    path = directory.parent
    with open_queue("a", data_path=tmp_path / "media") as queue:
        put(queue, *items)
    (path / "a").rename(path / "renamed")
    open_queue("a").close()

    def listdir(name: str) -> list[str]:
        if name == str(path / "a" / "log"):
            raise PermissionError(13, "failed by a test", name)
        return DISK.listdir(name)

    with open_queue("renamed", disk=replace(DISK, listdir=listdir)) as queue:
        assert drain(queue) == items


@pytest.mark.parametrize("is_killed", [True, False])
def test_the_location_of_a_renamed_queue_is_not_swept(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, is_killed: bool
) -> None:
    """At a location that names another directory, and that nothing proves to be this queue's, an opening deletes no
    segment. It sets aside what nothing refers to, also if an opening was killed before that one."""
    open_queue(data_path=tmp_path / "media").close()
    with open_queue("other") as other:
        put(other, *ITEMS)
    data = tmp_path / "media" / "orders" / "data"
    shutil.copy(directory.with_name("other") / "data" / "000000000001.seg", data / "000000000099.seg")
    directory.rename(directory.with_name("renamed"))

    class Killed(BaseException):
        """The end of a process that is killed."""

    def rename(source: str, target: str) -> None:
        if target.endswith("queue.id"):
            raise Killed
        DISK.rename(source, target)

    if is_killed:
        with pytest.raises(Killed):
            open_queue("renamed", disk=replace(DISK, rename=rename))
    with open_queue("renamed") as queue:
        assert queue.recovery.swept == ()
    assert [file.name for file in data.iterdir()] == ["000000000099.seg.damaged"]
    (data / "000000000099.seg.damaged").rename(data / "000000000099.seg")
    with open_queue("renamed") as queue:  # the location names this directory now
        assert queue.recovery.swept == ("data/000000000099.seg",)


@pytest.mark.parametrize("items", [ITEMS, []])
@pytest.mark.parametrize("is_replaced", [True, False])
def test_what_a_killed_owner_has_left_is_swept_after_a_rename(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, items: list[bytes], is_replaced: bool
) -> None:
    """A queue that is renamed after each crash does not keep the segments that only rollbacks have written to."""
    data = tmp_path / "media" / "orders" / "data"
    with open_queue(data_path=tmp_path / "media") as queue:
        put(queue, *items)
    name = "orders"
    for number in range(3):
        queue = open_queue(name)
        session = spilling_session(queue, 100_000)
        for _ in range(20):
            session.enqueue(bytes(90_000))
        crash(queue)
        session.rollback()
        before = len(list(data.iterdir()))
        assert before > 1
        directory.with_name(name).rename(directory.with_name(f"renamed-{number}"))
        if is_replaced:
            open_queue(name).close()
        name = f"renamed-{number}"
    with open_queue(name) as queue:
        assert len(queue.recovery.swept) == before - bool(items)
        assert queue.recovery.set_aside == ()
        assert drain(queue) == items


@pytest.mark.damages
@pytest.mark.parametrize("is_sealed", [True, False])
def test_an_adoption_of_a_neighbour_is_not_repeated(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, is_sealed: bool
) -> None:
    """At a location that nothing proves to be this queue's, an opening sets aside published files that were adopted.
    It does not adopt them again."""
    path, media = directory.parent, tmp_path / "media"
    queue = open_queue("a", data_path=media)
    if is_sealed:
        queue.close()
        queue = open_queue("a")
    crash(queue)
    with open_queue("b", data_path=media) as queue:
        put(queue, *ITEMS)
        drain(queue)
    publish(path, "b", b"an item of b")
    open_queue("b").close()  # adopts it
    exchange(path)
    (path / "b").rename(tmp_path / "away")
    with open_queue("a") as queue:
        assert queue.stats().ready == 0
        assert queue.recovery.swept == ()
    assert [file.suffix for file in (media / "b" / "data").iterdir()] == [".damaged"]


def test_records_that_were_exchanged_while_a_neighbour_is_missing(
    tmp_path: Path, directory: Path, open_queue: QueueFactory
) -> None:
    """A queue does not take the segments of a neighbour whose directory is not there. When it is there, ``repair``
    brings both back."""
    path, media = directory.parent, tmp_path / "media"
    for name in ("a", "b"):
        with open_queue(name, data_path=media) as queue:
            put(queue, *(name.encode() + item for item in ITEMS))
    exchange(path)
    (path / "b").rename(tmp_path / "away")
    before = files_below(media)
    for call in (
        lambda: open_queue("a"),
        lambda: View(path, "a").look(),
        lambda: Producer(path, "a", create=False),
        lambda: repair(path, "a"),
    ):
        with pytest.raises(DataPathError, match="move away what it has left at the location"):
            call()
    assert files_below(media) == before
    (tmp_path / "away").rename(path / "b")
    for name in "ab":
        assert repair(path, name, data_path=media).items == 3
        assert drain(open_queue(name)) == [name.encode() + item for item in ITEMS]


@pytest.mark.parametrize("accepted", ["a", "b", "ab"])
def test_exchanged_records_that_were_accepted(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, accepted: str
) -> None:
    """``repair`` undoes an exchange that an older version has accepted: then a location names the wrong queue."""
    path, media = directory.parent, tmp_path / "media"
    for name in ("a", "b"):
        with open_queue(name, data_path=media) as queue:
            put(queue, *(name.encode() + item for item in ITEMS))
    exchange(path)
    for name in accepted:
        renew_id(DISK, str(path / name), read_record(DISK, str(path / name)).place)
    for name in ("a", "b"):
        report = repair(path, name, data_path=media)
        assert (report.items, report.lost, len(report.problems)) == (3, (), 1)
    for name in ("a", "b"):
        assert drain(open_queue(name)) == [name.encode() + item for item in ITEMS]


@pytest.mark.damages
@pytest.mark.parametrize("is_older", [True, False])
def test_a_segment_without_its_header_contradicts_nothing(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, is_older: bool
) -> None:
    """A renamed queue opens after a power cut that took the header of its segment, and brought back an older one. Its
    items are in the log."""
    data = tmp_path / "media" / "orders" / "data"
    with open_queue(data_path=tmp_path / "media") as queue:
        put(queue, b"first")
        kept = (data / "000000000001.seg").read_bytes()
        drain(queue)
    queue = open_queue()
    put(queue, b"second")
    crash(queue)
    (segment,) = data.iterdir()
    segment.write_bytes(bytes(segment.stat().st_size))
    if is_older:
        (data / "000000000001.seg").write_bytes(kept)
    directory.rename(directory.with_name("renamed"))
    assert drain(open_queue("renamed")) == [b"second"]


def test_repair_reads_no_id_of_the_working_directory(
    tmp_path: Path, directory: Path, open_queue: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ``queue.id`` in the working directory does not make ``repair`` tie a healthy queue to an empty location."""
    open_queue().close()
    publish(directory.parent, "orders", b"waits")
    (tmp_path / "place").mkdir()
    (tmp_path / "queue.id").write_bytes(b"damaged")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataPathError, match="them in its own directory"):
        repair(directory, data_path=tmp_path / "place")
    assert drain(open_queue()) == [b"waits"]


def test_a_producer_that_may_not_read_the_log(tmp_path: Path, directory: Path, place: Path) -> None:
    """A producer that may not read the log, such as one of another user, finds the location of a renamed queue."""
    renamed = directory.with_name("renamed")
    directory.rename(renamed)

    def listdir(name: str) -> list[str]:
        if name == str(renamed / "log"):
            raise PermissionError(13, "failed by a test", name)
        return DISK.listdir(name)

    need_own_location(replace(DISK, listdir=listdir), read_places(DISK, str(renamed)))


def test_files_that_no_log_names(tmp_path: Path, directory: Path, open_queue: QueueFactory, place: Path) -> None:
    """``repair`` ties no queue without a segment to a location that holds segments and names no queue."""
    open_queue("other").close()
    other = directory.with_name("other")
    (other / "data.path").write_bytes(b"damaged")
    (place / "queue.id").unlink()
    with pytest.raises(DataPathError, match="expected segments of this queue in"):
        repair(other, data_path=place)
    (other / "data.path").unlink()
    assert repair(directory).items == 3
    assert drain(open_queue()) == ITEMS

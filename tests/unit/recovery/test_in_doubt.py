"""A queue in doubt: whom it asks, what it believes, and what becomes of it where nobody knows."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import (
    BrokenQueueError,
    CorruptionError,
    InDoubtError,
    PersistentQueue,
    Producer,
    QueueLockedError,
    check,
    delete_queue,
    repair,
    transaction,
)
from persistentqueue.core.frame import Frame, decode_frame
from persistentqueue.core.operations import (
    Checkpoint,
    Decision,
    Dequeue,
    Enqueue,
    Identity,
    Operation,
    Participant,
    Prepare,
    Resolution,
    encode_operation,
    encode_transaction,
)
from persistentqueue.core.state import Prepared, State, StateError, Unfolding
from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Settings
from persistentqueue.interprocess.splits import look
from persistentqueue.recovery.in_doubt import find_unsettled, forget_settled, read_newest
from persistentqueue.recovery.opening import open_store
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.queues import crash, flip, log_file, put, put_each, segment_files
from tests.unit.core.test_formats import SALT, forge_frame
from tests.unit.engine.test_two_phase import contents, decisions, failing, move

NAME, OTHER = b"0123456789abcdef", b"fedcba9876543210"
ENQUEUE = Enqueue(0, 1, 1, 64, 10, 0, 0)
PATIENT = replace(DISK, sleep=lambda seconds: None)
"""A disk on which a second of asking again takes none."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where ``open_queue`` makes its queues."""
    return tmp_path / "queues"


def named(name: str) -> Participant:
    """A participant that an older log knows by its name alone."""
    return Participant(name, b"")


def elsewhere(path: Path, name: str) -> Store:
    """The queue, opened as by another process, which knows nothing of the queues that this one owns."""
    return open_store(PATIENT, str(path / name), Settings(), True, 0.0, nullcontext(), nullcontext())


def items(store: Store) -> list[bytes]:
    """What it holds; it is given up then, as by a process that is killed."""
    found = [item for batch in store.reader.browse() for item in batch]
    store.release()
    return found


def in_doubt(open_queue: QueueFactory, decided: bool) -> tuple[PersistentQueue, PersistentQueue]:
    """Two queues, a and b, with an item that was moved from one to the other, and the second given up in doubt.

    The first is broken if nothing was ``decided``."""
    a, b = open_queue("a", disk=DISK if decided else failing("several.3 decide", RuntimeError())), open_queue("b")
    put(a, b"1")
    if decided:
        move(a, b)
    else:
        with pytest.raises(RuntimeError):
            move(a, b)
    crash(b)
    return a, b


# --- asking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decided", [False, True])
@pytest.mark.parametrize("first", ["a", "b"])
def test_both_are_reopened(open_queue: QueueFactory, decided: bool, first: str) -> None:
    """Whichever is opened first, both have it or none; the report says that there was a doubt."""
    a, _ = in_doubt(open_queue, decided)
    crash(a)
    queues = {name: open_queue(name) for name in (first, "ab".replace(first, ""))}
    assert contents(queues["a"], queues["b"]) == ([[], [b"1"]] if decided else [[b"1"], []])
    assert queues["b"].recovery.resolved is decided
    assert queues["a"].recovery.resolved is None


def test_check_finds_nothing_in_a_cut_short_opening(open_queue: QueueFactory, path: Path) -> None:
    """An opening that is killed before it has settled the doubt has cut nothing off that the log still names."""
    a, b = open_queue("a", disk=failing("several.3 decide", RuntimeError())), open_queue("b")
    put(a, b"1", b"x" * 500_000)  # too large for the log
    put(b, b"2")
    with pytest.raises(RuntimeError), transaction(a, b) as (taking, giving):
        giving.enqueue_many(taking.dequeue_many(2))
    crash(a)
    crash(b)
    with pytest.raises(RuntimeError):  # the first two trims are those of the one that is asked, opened and closed
        open_queue("b", disk=failing("trim.3 sync generation", RuntimeError(), 3))
    report = check(path, "b")
    assert (report.problems, report.in_doubt, report.items) == ((), "a", 1)
    b = open_queue("b")
    assert b.recovery.resolved is False
    assert contents(b) == [[b"2"]]
    (segment,) = segment_files(path / "b")
    assert segment.stat().st_size < 4096


def test_who_is_asked_has_to_ask(open_queue: QueueFactory) -> None:
    """The coordinator may be in doubt itself: each asks the one before."""
    a, b, c, d = (open_queue(name) for name in "abcd")
    put(a, b"1")
    put(b, b"2")
    put(c, b"3")
    for pair in ((c, d), (b, c), (a, b)):
        move(*pair)
    for queue in (a, b, c, d):
        crash(queue)
    d, c, b, a = (open_queue(name) for name in "dcba")
    assert contents(a, b, c, d) == [[], [b"1"], [b"2"], [b"3"]]
    assert [queue.recovery.resolved for queue in (a, b, c, d)] == [None, None, None, True]


@pytest.mark.damages
def test_who_is_asked_has_to_ask_an_open_one(open_queue: QueueFactory, path: Path) -> None:
    """The same where the last one that is asked is open in this process, and where it is missing."""
    a, b, c = (open_queue(name) for name in "abc")
    put(a, b"1")
    put(b, b"2")
    move(b, c)
    move(a, b)
    b.trim()
    put(a, b"3")
    move(a, b)
    crash(b)
    crash(c)
    shutil.copytree(path, copy := path.with_name("copy"))
    c = open_queue("c")
    assert contents(a, open_queue("b"), c) == [[], [b"1", b"3"], [b"2"]]
    shutil.rmtree(copy / "a")
    for call in (lambda: open_queue("c", path=copy), lambda: repair(copy, "c")):
        with pytest.raises(InDoubtError, match="that one is in doubt itself") as caught:
            call()
        assert not caught.value.lost
    repair(copy, "b")
    assert contents(open_queue("c", path=copy)) == [[b"2"]]


def test_open_coordinator_of_this_process_knows(open_queue: QueueFactory) -> None:
    """Where this process owns the coordinator, what its log says last counts."""
    a, _ = in_doubt(open_queue, True)
    b = open_queue("b")
    assert (b.recovery.resolved, contents(a, b)) == (True, [[], [b"1"]])


def test_what_was_not_decided_by_who_goes_on(open_queue: QueueFactory) -> None:
    """The same where nothing was decided, and the coordinator is sound: the other failed, and was opened again."""
    a, b, c = open_queue("a"), open_queue("b"), open_queue("c", disk=failing("commit.3 write frame", RuntimeError(), 1))
    put(a, b"1")
    with pytest.raises(RuntimeError):
        move(a, b, c)
    crash(b)
    assert (open_queue("b").recovery.resolved, contents(a)) == (False, [[b"1"]])


def test_broken_coordinator_is_not_believed(open_queue: QueueFactory) -> None:
    """A coordinator that is broken, and not closed yet, may have in the page cache what is not on the disk."""
    a, b = open_queue("a", disk=failing("several.4 apply", RuntimeError())), open_queue("b")
    put(a, b"1")
    with pytest.raises(RuntimeError):
        move(a, b)
    b.close()
    with pytest.raises(InDoubtError, match="flush something there, or close it") as caught:
        open_queue("b", disk=PATIENT)
    assert not caught.value.lost
    assert caught.value.coordinator == str(Path(a.path) / "a")
    with pytest.raises(BrokenQueueError):
        put(a, b"2")
    a.close()
    b = open_queue("b")
    assert contents(open_queue("a"), b) == [[], [b"1"]]


@pytest.mark.parametrize("decided", [False, True])
def test_owner_elsewhere_that_goes_on(open_queue: QueueFactory, path: Path, decided: bool) -> None:
    """What an owner elsewhere wrote last may not be durable; once he has written something else, it is certain."""
    a, b, c = open_queue("a"), open_queue("b"), open_queue("c", disk=failing("commit.3 write frame", RuntimeError(), 1))
    put(a, b"1")
    if decided:
        move(a, b)
    else:
        with pytest.raises(RuntimeError):
            move(a, b, c)
    crash(b)
    with pytest.raises(InDoubtError, match="flush something there"):
        elsewhere(path, "b")
    put(a, b"2")
    assert items(elsewhere(path, "b")) == ([b"1"] if decided else [])


@pytest.mark.parametrize("decided", [False, True])
def test_owner_elsewhere_who_came_later(open_queue: QueueFactory, path: Path, decided: bool) -> None:
    """Who opened the coordinator after the crash has made durable what it says, in a log that begins with it."""
    crash(in_doubt(open_queue, decided)[0])
    a = open_queue("a")
    assert items(elsewhere(path, "b")) == ([b"1"] if decided else [])
    with pytest.raises(QueueLockedError):
        elsewhere(path, "a")
    assert contents(a) == [[] if decided else [b"1"]]


def test_owner_who_ends_meanwhile(open_queue: QueueFactory, path: Path) -> None:
    """Who asks while the owner of the coordinator is about to end asks again when he has."""
    a, _ = in_doubt(open_queue, True)
    asked: list[float] = []

    def sleep(seconds: float) -> None:
        asked.append(seconds)
        if len(asked) == 3:
            crash(a)

    store = open_store(replace(DISK, sleep=sleep), str(path / "b"), Settings(), True, 0.0, nullcontext(), nullcontext())
    assert (items(store), len(asked)) == ([b"1"], 3)


def test_log_that_is_trimmed_meanwhile(open_queue: QueueFactory, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that was trimmed while it was read is read once more, since what was read may have been overwritten."""
    a = open_queue("a")
    before = read_newest(DISK, str(path / "a"))
    looks: list[str] = []

    def listdir(directory: str) -> list[str]:
        looks.append(directory)
        if len(looks) in {2, 3}:
            a.trim()
        return DISK.listdir(directory)

    newest = read_newest(replace(DISK, listdir=listdir), str(path / "a"))
    assert before is not None
    assert newest is not None
    assert newest.header.number == before.header.number + 2
    assert len(looks) == 4
    always = iter(range(10**6))
    assert read_newest(replace(DISK, listdir=lambda _: [f"{next(always) + 1:012d}.log"]), str(path / "a")) is None
    a.close()
    shutil.rmtree(path / "a" / "log")
    (path / "a" / "log").mkdir()
    assert read_newest(DISK, str(path / "a")) is None
    shutil.rmtree(path / "a")


def test_owned_log_that_cannot_be_read(open_queue: QueueFactory, path: Path) -> None:
    """What an owner writes meanwhile may look damaged: it is read again, and who asks hears of it at last."""
    a, _ = in_doubt(open_queue, True)
    put(a, b"2")
    log = str(log_file(path / "a"))

    def spoil(left: int) -> Callable[[int, int, int], bytes]:
        reads = [left]

        def pread(fd: int, length_bytes: int, offset: int) -> bytes:
            data = DISK.pread(fd, length_bytes, offset)
            if length_bytes > 4096 and data.startswith(b"PQ-LOG") and a_salt in data[:64]:
                reads[0] -= 1
                return data if reads[0] < 0 else b"\0" * len(data)
            return data

        return pread

    a_salt = Path(log).read_bytes()[24:32]
    disk = replace(PATIENT, pread=spoil(3))
    store = open_store(disk, str(path / "b"), Settings(), True, 0.0, nullcontext(), nullcontext())
    store.release()
    move(a, c := open_queue("c"))
    crash(c)
    disk = replace(PATIENT, pread=spoil(1000))
    with pytest.raises(InDoubtError, match="cannot be read"):
        open_store(disk, str(path / "c"), Settings(), True, 0.0, nullcontext(), nullcontext())


def test_full_disk_while_asking(open_queue: QueueFactory, path: Path) -> None:
    """A disk on which the coordinator can be recovered, and not closed, is no reason not to know."""
    a, b = open_queue("a", log_bytes=4096), open_queue("b", log_bytes=4096)
    put(a, b"1")
    move(a, b)
    for queue in (a, b):
        crash(queue)
    renames: list[str] = []

    def rename(source: str, target: str) -> None:
        if target.endswith(".log"):
            renames.append(target)
            if len(renames) in {2, 3}:  # the seal of a, which is tried once more when its drained segment has gone
                raise OSError(errno.ENOSPC, "No space left on device")
        DISK.rename(source, target)

    b = open_queue("b", log_bytes=4096, disk=replace(DISK, rename=rename))
    assert (b.recovery.resolved, len(renames)) == (True, 4)


def test_coordinator_of_another_kind(open_queue: QueueFactory) -> None:
    """A queue with subscriptions only may have to ask one without."""
    a, b = open_queue("a"), open_queue("b", fan_out=True)
    b.subscribe("s")
    put(a, b"1")
    move(a, b)
    crash(b)
    crash(a)
    b = open_queue("b", fan_out=True)
    assert (b.recovery.resolved, list(b.subscribe("s").browse())) == (True, [b"1"])


def test_coordinator_that_was_closed_is_not_opened(open_queue: QueueFactory, path: Path) -> None:
    """A coordinator that was closed cleanly is asked without its lock, and without its segments, whose disk is away."""
    a, b = open_queue("a", data_path=path.parent / "elsewhere"), open_queue("b")
    put(a, b"1")
    move(a, b)
    crash(b)
    a.close()
    (path.parent / "elsewhere").rename(path.parent / "unmounted")
    assert contents(open_queue("b")) == [[b"1"]]
    (path.parent / "unmounted").rename(path.parent / "elsewhere")


def test_coordinator_that_is_asked_is_wiped(open_queue: QueueFactory, path: Path) -> None:
    """What goes when a coordinator is recovered to be asked, is overwritten before, as it may have to be."""
    a, b = open_queue("a", wipe=True, inline_bytes=0), open_queue("b")
    put(a, b"secret" * 100)
    with transaction(a, b) as (source, target):
        source.dequeue()
        target.enqueue(b"1")
    crash(b)
    crash(a)
    with open(segment_files(path / "a")[0], "rb") as segment:
        open_queue("b")
        assert segment_files(path / "a") == []
        assert b"secret" not in segment.read()


def test_coordinator_that_is_asked_keeps_its_limits(open_queue: QueueFactory, path: Path) -> None:
    """Who recovers a coordinator to ask it adopts nothing there, since he does not know how much it may hold."""
    a, b = open_queue("a", max_items=2), open_queue("b")
    put(a, b"1", b"2")
    move(a, b)
    crash(b)
    crash(a)
    with Producer(path, "a") as producer:
        producer.enqueue_many([b"3", b"4"])
        producer.flush()
    open_queue("b")
    a = open_queue("a", max_items=2)
    assert (contents(a), a.stats().published) == ([[b"2"]], 1)


@pytest.mark.damages
def test_coordinator_that_is_asked_has_something_to_say(
    open_queue: QueueFactory, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is found in a coordinator that is recovered to be asked is told, as by an opening of its own."""
    a, _ = in_doubt(open_queue, True)
    put(a, b"2")
    crash(a)
    log = log_file(path / "a")
    flip(log, log.read_bytes().rindex(b"PQFr") + 40)
    open_queue("b")
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any(f"{path / 'a'}: the log ended in up to" in each for each in told)


# --- nobody knows ----------------------------------------------------------------------------------------------------


@pytest.mark.damages
def test_coordinator_is_missing(open_queue: QueueFactory, path: Path) -> None:
    """Without the coordinator nothing is opened and nothing dropped; with it, all is there."""
    a, _ = in_doubt(open_queue, True)
    a.close()
    (path / "a").rename(path / "away")
    before = {file: file.read_bytes() for file in (path / "b").rglob("*") if file.is_file() and file.name != "lock"}
    for _ in range(2):
        with pytest.raises(InDoubtError, match=r"/a: there is no queue: bring it back, or run repair") as caught:
            open_queue("b")
    assert caught.value.lost
    assert {file: file.read_bytes() for file in before} == before
    report = check(path, "b")
    assert (report.ok, report.in_doubt) == (False, "a")
    assert "there is no such queue beside it" in report.problems[0]
    (path / "away").rename(path / "a")
    assert check(path, "b").ok
    assert contents(open_queue("b")) == [[b"1"]]


@pytest.mark.damages
def test_repair_without_coordinator(open_queue: QueueFactory, path: Path) -> None:
    """``repair`` drops what nobody knows of any more, says so, and keeps the log that says what it was."""
    a, _ = in_doubt(open_queue, True)
    a.close()
    shutil.rmtree(path / "a")
    log = log_file(path / "b").read_bytes()
    report = repair(path, "b")
    assert "it is dropped" in report.problems[0]
    assert any((path / "b" / name).read_bytes() == log for name in report.kept)
    assert report.items == 0
    assert check(path, "b").ok
    put(open_queue("b"), b"2")


def test_repair_asks(open_queue: QueueFactory, path: Path) -> None:
    """``repair`` asks like any opening; what is known is no problem."""
    crash(in_doubt(open_queue, True)[0])
    assert repair(path, "b").problems == ()
    assert contents(open_queue("b")) == [[b"1"]]


@pytest.mark.damages
def test_coordinator_is_older(open_queue: QueueFactory, path: Path) -> None:
    """A coordinator from an old copy is not believed, since it cannot know."""
    a = open_queue("a")
    a.close()
    shutil.copytree(path / "a", path / "copy")
    a = open_queue("a")
    put_each(a, [b"1", b"2", b"3"])
    move(a, b := open_queue("b"))
    crash(b)
    a.close()
    shutil.rmtree(path / "a")
    (path / "copy").rename(path / "a")
    with pytest.raises(InDoubtError, match="it ends before") as caught:
        open_queue("b")
    assert caught.value.lost
    assert repair(path, "b").items == 0


@pytest.mark.damages
def test_another_queue_has_the_name(open_queue: QueueFactory, path: Path) -> None:
    """A queue that was made anew under the name of the one which knows is not believed, however far its log goes."""
    a, _ = in_doubt(open_queue, True)
    a.close()
    (path / "a").rename(path / "away")
    a = open_queue("a")
    put_each(a, [b"new"] * 5)
    for _ in range(2):
        with pytest.raises(InDoubtError, match="another queue has that name") as caught:
            open_queue("b")
        assert caught.value.lost
        a.close()
    delete_queue(path, "a")
    (path / "away").rename(path / "a")
    assert contents(open_queue("b"), open_queue("a")) == [[b"1"], []]


@pytest.mark.damages
def test_coordinator_that_was_made_of_blocks(open_queue: QueueFactory, path: Path) -> None:
    """A coordinator whose log is lost knows nothing any more, also when it was repaired and goes on."""
    a, _ = in_doubt(open_queue, True)
    put(a, b"2")
    a.close()
    log = log_file(path / "a")
    log.write_bytes(bytes(log.stat().st_size))
    assert repair(path, "a").without_log
    put_each(open_queue("a"), [b"3"] * 5)
    with pytest.raises(InDoubtError, match="another queue has that name") as caught:
        open_queue("b")
    assert caught.value.lost


def identity(path: Path, name: str) -> str:
    """That of the queue, read beside its owner."""
    return look(DISK, str(path / name))[1].identity


def test_identity_stays(open_queue: QueueFactory, path: Path) -> None:
    """A queue has one identity, whatever becomes of it, and one that is made anew has another."""
    a, b = open_queue("a"), open_queue("b")
    found = identity(path, "a")
    assert len(found) == 32
    assert identity(path, "b") not in {found, ""}
    put(a, b"1")
    a.trim()
    a.close()
    flip(log_file(path / "a"), 400)
    open_queue("a").close()
    (path / "a").rename(path / "c")
    repair(path, "c")
    repaired = open_queue("c")
    assert repaired.identity == found
    put(repaired, b"2")
    assert identity(path, "c") == found
    b.close()
    before = identity(path, "b")
    delete_queue(path, "b")
    open_queue("b")
    assert identity(path, "b") != before


def test_logs_without_identities(open_queue: QueueFactory, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written before queues had identities opens as it did, and gets one with its next log."""
    with monkeypatch.context() as patch:
        patch.setattr("persistentqueue.core.state.Identity", None)
        patch.setattr(State, "identity", property(lambda state: b"", lambda state, value: None), raising=False)
        a, _ = in_doubt(open_queue, True)
        crash(a)
    assert identity(path, "a") == identity(path, "b") == ""
    assert check(path, "b").in_doubt == "a"
    b = open_queue("b")
    assert contents(b, open_queue("a")) == [[b"1"], []]
    assert len(identity(path, "a")) == 32
    assert b.recovery.resolved is True


@pytest.mark.damages
def test_queue_that_took_the_name(open_queue: QueueFactory, path: Path) -> None:
    """A queue in doubt that was given the name of the one which knows does not ask itself."""
    a, _ = in_doubt(open_queue, True)
    a.close()
    (path / "a").rename(path / "away")
    (path / "b").rename(path / "a")
    with pytest.raises(InDoubtError, match="this queue itself"):
        open_queue("a")
    (path / "a").rename(path / "b")
    (path / "away").rename(path / "a")
    assert contents(open_queue("b")) == [[b"1"]]


@pytest.mark.damages
def test_coordinator_is_damaged(open_queue: QueueFactory, path: Path) -> None:
    """A damaged coordinator is to be repaired first, also for who would repair the other; then it knows."""
    a, _ = in_doubt(open_queue, True)
    put(a, b"2")
    crash(a)
    flip(log_file(path / "a"), 70)
    for call in (lambda: open_queue("b"), lambda: repair(path, "b")):
        with pytest.raises(InDoubtError, match="repair that one first") as caught:
            call()
        assert isinstance(caught.value.__cause__, CorruptionError)
    flip(log_file(path / "a"), 70)
    flip(log_file(path / "a"), log_file(path / "a").read_bytes().rindex(b"PQFr") + 40)
    repair(path, "a")
    assert contents(open_queue("b")) == [[b"1"]]


@pytest.mark.damages
def test_deletion_of_who_has_to_be_asked(open_queue: QueueFactory, path: Path) -> None:
    """A queue is not deleted as long as another one may have to ask it."""
    a, _ = in_doubt(open_queue, True)
    put(a, b"2")
    crash(a)
    for _ in range(2):
        flip(log_file(path / "a"), log_file(path / "a").read_bytes().index(b"PQFr") + 40)
        with pytest.raises(InDoubtError, match="not deleted: first open the other"):
            delete_queue(path, "a")
    (path / "notes").write_text("no queue")
    (path / "odd" / "log").mkdir(parents=True)
    (path / "odd" / "log" / "000000000001.log").write_text("no log")
    b = open_queue("b")
    put(b, b"2")
    b.close()
    delete_queue(path, "a")
    delete_queue(path, "b")


def test_deletion_syncs_nothing_of_its_neighbours(open_queue: QueueFactory, path: Path) -> None:
    """A queue is deleted with as many syncs, however many are beside it: their logs have names that are durable."""
    for name in "abc":
        put(open_queue(name), b"1")
    open_queue("d").close()
    synced: list[int] = []

    def fsync(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        DISK.fsync(fd)

    delete_queue(path, "d", disk=replace(DISK, fsync=fsync))
    assert not set(synced) & {(path / name / "log").stat().st_ino for name in "abc"}


def test_neighbours_with_long_logs(open_queue: QueueFactory, path: Path) -> None:
    """Whether a neighbour has to ask is found at the end of its log, however long that is."""
    a, b = open_queue("a"), open_queue("b")
    put(a, b"1")
    put(b, b"long" * 20_000)
    put(b, b"long" * 20_000)
    move(a, b)
    move(b, c := open_queue("c"))
    crash(c)
    crash(b)
    a.close()
    found = find_unsettled(DISK, str(path / "a"), ["c", "a", "b", "d"])
    assert found is not None
    assert found[0] == str(path / "b")
    open_queue("b").close()
    assert find_unsettled(DISK, str(path / "a"), ["c", "a", "b", "d"]) is None


# --- remembering -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_may_come_back(open_queue: QueueFactory, path: Path) -> None:
    """A coordinator goes on remembering for a participant whose log is not there, or that it cannot read."""
    a, b, c = (open_queue(name) for name in "abc")
    put(a, b"1")
    move(a, b, c)
    for queue in (c, b, a):
        queue.close()
    (path / "b" / "log").rename(path / "away")
    (path / "x" / "log").mkdir(parents=True)
    state = State()
    state.decide(NAME, [named("b"), named("c")])
    state.decide(OTHER, [named("x")])
    forget_settled(DISK, str(path / "a"), state, 7)
    assert state.decisions == {NAME: {named("b")}, OTHER: {named("x")}}
    (path / "away").rename(path / "b" / "log")
    forget_settled(DISK, str(path / "a"), state, 7)
    assert state.decisions == {OTHER: {named("x")}}
    assert state.forgotten == 0


def test_participants_that_were_deleted(open_queue: QueueFactory, path: Path) -> None:
    """A coordinator does not remember for ever what only deleted queues could have asked for."""
    for number in range(3):
        b = open_queue(name := f"b{number}")
        with PersistentQueue(path, "a") as a, transaction(a, b) as (one, other):
            one.enqueue(b"1")
            other.enqueue(b"2")
        b.close()
        delete_queue(path, name)
    assert decisions(open_queue("a")) == []


@pytest.mark.damages
@pytest.mark.parametrize("trims", [False, True])
def test_participant_that_comes_back(open_queue: QueueFactory, path: Path, trims: bool) -> None:
    """A participant that was away when its decision was forgotten does not take that for none: it hears that nobody
    knows, as long as the log of the coordinator does not say it still."""
    a, _ = in_doubt(open_queue, True)
    a.close()
    (path / "b").rename(path.parent / "away")
    a = open_queue("a")
    assert decisions(a) == []
    if trims:
        for number in range(3):
            put(a, b"%d" % number)
            a.trim()
        a.close()
        assert decisions(open_queue("a")) == []
    (path.parent / "away").rename(path / "b")
    if trims:
        with pytest.raises(InDoubtError, match="has forgotten it: run repair on this queue") as caught:
            open_queue("b")
        assert caught.value.lost
        assert repair(path, "b").items == 0
    else:
        assert contents(open_queue("b")) == [[b"1"]]


def test_participant_of_another_name(open_queue: QueueFactory, path: Path) -> None:
    """A participant that was given another name is not forgotten as long as it is in doubt."""
    a, _ = in_doubt(open_queue, True)
    a.close()
    (path / "b").rename(path / "z")
    a = open_queue("a")
    put(a, b"2")
    a.trim()
    assert (contents(a, open_queue("z")), decisions(a)) == ([[b"2"], [b"1"]], [{"b"}])
    a.close()
    assert decisions(open_queue("a")) == []


def test_nothing_is_forgotten_while_somebody_is_in_doubt(open_queue: QueueFactory, path: Path) -> None:
    """What deleted queues could have asked for is remembered until none that is there is in doubt, since of that the
    coordinator could not say any more that it was not committed."""
    a, b, c = open_queue("a"), open_queue("b"), open_queue("c", disk=failing("commit.3 write frame", RuntimeError(), 2))
    put(a, b"1", b"2")
    move(a, b)
    put(b, b"settled")
    put(b, b"durably")
    d = open_queue("d")
    move(a, d)
    with pytest.raises(RuntimeError):
        with transaction(a, b, c) as (one, other, last):
            one.enqueue(b"3")
            other.enqueue(b"3")
            last.enqueue(b"3")
            last.flush()
        put(c, b"4")
    for queue in (a, b, c):
        crash(queue)
    d.close()
    a.close()
    delete_queue(path, "d")
    state = open_queue("a")._open().store.state
    names = {each.name for asking in state.decisions.values() for each in asking}
    assert "d" in names
    assert state.forgotten == 0


def test_resolution_that_may_be_lost(open_queue: QueueFactory, path: Path) -> None:
    """A resolution that stands last in a log may be in the page cache only: it is remembered until another follows."""
    a, b = open_queue("a"), open_queue("b")
    put(a, b"1")
    move(a, b)
    name = next(iter(a._open().store.state.decisions))
    put(b, b"2")
    state = State()
    state.decide(name, [named("b")])
    forget_settled(DISK, str(path / "a"), state, 7)
    assert state.decisions == {name: {named("b")}}
    put(b, b"3")
    forget_settled(DISK, str(path / "a"), state, 7)
    assert state.decisions == {}


def test_many_decisions_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction looks at the decisions for its own participants, however many others are remembered."""
    state = State()
    for number in range(100):
        state.decide(b"%016d" % number, [Participant(f"b{number}", OTHER)])
    forgotten: list[Participant] = []
    monkeypatch.setattr(State, "forget", lambda self, transaction, name: forgotten.append(name))
    state.decide(NAME, [Participant("b7", OTHER), Participant("c", OTHER), Participant("b8", NAME)])
    assert forgotten == [Participant("b7", OTHER)]


def test_decisions_that_contradict_each_other() -> None:
    """A decision for nobody, one that is taken twice, and what else may not stand there, are refused."""
    state = State()
    state.apply(Decision(NAME, ("b",)))
    for wrong in (Decision(NAME, ("c",)), Decision(OTHER, ()), Prepare(NAME, 1, "a"), Resolution(NAME, True)):
        with pytest.raises(StateError):
            state.apply(wrong)
    empty = Checkpoint(0, 0, 1, 0, 0, [], [], [], [])
    assert State.restore(empty, state.supplement()).decisions == {NAME: {Participant("b", b"")}}
    for supplement in (
        [Decision(NAME, ("b",))] * 2,
        [Decision(NAME, ("b",)), Decision(OTHER, ("b", "c"))],
        [Dequeue(0, 0, 1)],
    ):
        with pytest.raises(StateError):
            State.restore(empty, supplement)
    state.forget(OTHER, Participant("b", b""))
    assert state.decisions == {NAME: {Participant("b", b"")}}


# --- what counts -----------------------------------------------------------------------------------------------------


def frame(*transactions: list[Operation]) -> Frame:
    """A frame with these."""
    return Frame(64, 100, 2, 0, 0, list(transactions))


def test_what_counts() -> None:
    """What was prepared counts from the frame on that says so, before the rest of it, and what was aborted never."""
    unfolding = Unfolding()
    assert unfolding.counting(frame([Dequeue(0, 0, 1)], [])) == [Dequeue(0, 0, 1)]
    assert unfolding.counting(frame([Prepare(NAME, 1, "a"), ENQUEUE])) == []
    assert [unfolding.prepared] == [Prepared(Prepare(NAME, 1, "a"), [ENQUEUE])]
    again: list[Operation] = [Resolution(NAME, True), Prepare(OTHER, 2, "a"), Dequeue(0, 1, 1)]
    assert unfolding.counting(frame(again)) == [ENQUEUE]
    assert unfolding.counting(frame([Resolution(OTHER, False)], [Dequeue(0, 2, 1)])) == [Dequeue(0, 2, 1)]
    assert [unfolding.prepared, unfolding.aborted] == [None, 1]


@pytest.mark.parametrize(
    "transactions",
    [[[]], [[Dequeue(0, 0, 1)]], [[Resolution(OTHER, True)]], [[Resolution(NAME, True), Prepare(OTHER, 2, "a")], []]],
    ids=["nothing", "no resolution", "another's", "not alone"],
)
def test_log_that_goes_on_without_saying(transactions: list[list[Operation]]) -> None:
    """A log that goes on behind a prepare, and does not say what became of it, contradicts itself."""
    unfolding = Unfolding()
    unfolding.counting(frame([Prepare(NAME, 1, "a"), ENQUEUE]))
    with pytest.raises(StateError, match="the outcome of the transaction"):
        unfolding.counting(frame(*transactions))


@pytest.mark.parametrize(("first", "counts"), [(0, False), (1, True)])
def test_what_counts_where_frames_are_lost(first: int, counts: bool) -> None:
    """Where it is lost what became of a transaction, the next item's number tells whether it counts."""
    unfolding = Unfolding()
    unfolding.counting_anyway(frame([Prepare(NAME, 1, "a"), ENQUEUE]), 0)
    following = ENQUEUE._replace(first=first)
    assert unfolding.counting_anyway(frame([following]), 0) == ([ENQUEUE, following] if counts else [following])
    stray: list[Operation] = [Resolution(NAME, True), Dequeue(0, 0, 1)]
    assert Unfolding().counting_anyway(frame(stray), 0) == stray
    unfolding.counting_anyway(frame([Prepare(NAME, 1, "a"), ENQUEUE]), 0)
    assert unfolding.counting_anyway(frame([Resolution(OTHER, True), Dequeue(0, 0, 1)]), 0) == [Dequeue(0, 0, 1)]


def append(path: Path, *operations: Operation) -> int:
    """Let the queue's owner write a frame that he never would, and be killed; the number of the frame."""
    queue = PersistentQueue(path)
    queue.trim()
    log = queue._open().store.generations.log
    assert log is not None
    log.append(encode_transaction(operations), 1, len(operations))
    crash(queue)
    return log.number


@pytest.mark.damages
def test_prepare_that_contradicts_the_queue(open_queue: QueueFactory, path: Path) -> None:
    """What is in doubt, and cannot be committed, is damage where it is committed; ``check`` says so before."""
    a, b = open_queue("a"), open_queue("b")
    put(a, b"1")
    for queue in (a, b):
        queue.close()
    number = append(path / "a", Decision(NAME, ("b",)))
    append(path / "b", Prepare(NAME, number, "a"), Dequeue(0, 7, 1))
    report = check(path, "b")
    assert (report.in_doubt, report.ok) == ("a", False)
    with pytest.raises(CorruptionError, match="sequences of 0 to 0"):
        open_queue("b")
    assert any("sequences of 0 to 0" in problem for problem in repair(path, "b").problems)
    put(open_queue("b"), b"2")


@pytest.mark.damages
@pytest.mark.parametrize("kind", ["prepare", "resolution", "both"])
def test_repair_of_a_log_with_prepares(open_queue: QueueFactory, path: Path, kind: str) -> None:
    """Where frames of a transaction over several queues are lost, nothing beside them is, and nothing comes twice."""
    a, b = open_queue("a", inline_bytes=0), open_queue("b", inline_bytes=0)
    put_each(a, [b"1", b"2", b"3"])
    put(b, b"first")
    move(a, b)
    put(b, b"second")
    put(b, b"third")
    crash(b)
    a.close()
    log = log_file(path / "b")
    data = log.read_bytes()
    starts = [at for at in range(len(data)) if data.startswith(b"PQFr", at)]
    for number in {"prepare": [2], "resolution": [3], "both": [2, 3]}[kind]:
        flip(log, starts[number] + 50)
    with pytest.raises(CorruptionError):
        open_queue("b")
    report = repair(path, "b")
    found = contents(open_queue("b"))[0]
    expected = {
        "prepare": ([b"first", b"second", b"third"], ((1, 1),)),
        "resolution": ([b"first", b"1", b"third"], ((2, 1),)),
        "both": ([b"first", b"third"], ((1, 2),)),
    }
    assert (found, report.lost) == expected[kind]


@pytest.mark.damages
def test_repair_of_a_log_that_ends_in_doubt(open_queue: QueueFactory, path: Path) -> None:
    """A damaged log that ends in doubt is repaired with what the coordinator says."""
    a, b = open_queue("a"), open_queue("b", inline_bytes=0)
    put(a, b"1")
    put_each(b, [b"x", b"y"])
    move(a, b)
    crash(b)
    a.close()
    log = log_file(path / "b")
    data = log.read_bytes()
    flip(log, [at for at in range(len(data)) if data.startswith(b"PQFr", at)][1] + 50)
    repair(path, "b")
    assert contents(open_queue("b"))[0][-1:] == [b"1"]


@pytest.mark.damages
def test_check_reads_what_is_in_doubt(open_queue: QueueFactory, path: Path) -> None:
    """``check`` reads the blocks that would count, and finds nothing superfluous in them."""
    a, b = open_queue("a"), open_queue("b", inline_bytes=0)
    with transaction(a, b) as (source, target):
        source.enqueue(b"1")
        target.enqueue(b"in doubt" * 100)
    crash(b)
    report = check(path, "b")
    assert (report.ok, report.items, report.in_doubt, report.leftovers) == (True, 0, "a", ())
    flip(segment_files(path / "b")[0], 64 + 200)
    report = check(path, "b")
    assert (report.ok, len(report.problems)) == (False, 1)
    a.close()


def test_settled_by_whoever_opens(open_queue: QueueFactory, path: Path) -> None:
    """An opening that is cut short anywhere leaves the doubt, or has settled it; the next one finds the same."""
    a, _ = in_doubt(open_queue, True)
    crash(a)

    class Killed(BaseException):
        pass

    steps: list[str] = []
    while True:
        left = [len(steps) + 1]

        def failpoint(name: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                steps.append(name)
                raise Killed

        try:
            b = PersistentQueue(path, "b", disk=replace(DISK, failpoint=failpoint))
        except Killed:
            continue
        break
    assert {"doubt.1 recover coordinator", "doubt.2 read coordinator", "trim.4 rename generation"} <= set(steps)
    assert contents(b) == [[b"1"]]
    crash(b)


def test_names_lead_nowhere_else() -> None:
    """Names that cannot be a neighbour's are damage in a log, not a way out of the directory."""
    for operation in (
        Prepare(NAME, 7, "a"),
        Prepare(NAME, 7, "a", OTHER),
        Identity(NAME, 7),
        Decision(NAME, ("b", "c" * 64)),
        Decision(NAME, ("b", "c" * 64), (NAME, OTHER)),
        Resolution(NAME, False),
    ):
        body = encode_transaction([operation])
        assert decode_frame(forge_frame(body, 1, 1), 64, SALT, "file").transactions == [[operation]]
    for name in (b"", b".", b"..", b"a/b", b"\xff", b"a\0"):
        forged = b"\1\0\0\0" + encode_operation(Prepare(NAME, 7, ""))[:-1] + bytes([len(name)]) + name
        with pytest.raises(CorruptionError, match="the name of a queue beside this one"):
            decode_frame(forge_frame(forged, 1, 1), 64, SALT, "file")


def test_decisions_stay(open_queue: QueueFactory, path: Path) -> None:
    """A clean close keeps what somebody may have to ask."""
    a, _ = in_doubt(open_queue, True)
    a.close()
    a = open_queue("a")
    assert (a.recovery.clean, decisions(a)) == (True, [{"b"}])

"""A queue in doubt: which queue it asks, which answers it believes, and what happens if the outcome is unknown."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import (
    BrokenQueueError,
    CorruptionError,
    InDoubtError,
    MemoryShortageError,
    PersistentQueue,
    Producer,
    QueueLockedError,
    ResourceError,
    check,
    delete_queue,
    repair,
    transaction,
)
from persistentqueue.core.operations import (
    Enqueue,
    Participant,
)
from persistentqueue.core.state import State
from persistentqueue.engine.context import Settings
from persistentqueue.engine.store import Store
from persistentqueue.interprocess.splits import look
from persistentqueue.recovery import in_doubt as in_doubt_module
from persistentqueue.recovery.in_doubt import find_unsettled
from persistentqueue.recovery.opening import open_store
from persistentqueue.storage.log_reader import NEIGHBOUR, Policy, Replay, read_log, read_newest
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import crash, flip, log_file, put, put_each, segment_files
from tests.unit.engine.test_two_phase import contents, failing, move

NAME, OTHER = b"0123456789abcdef", b"fedcba9876543210"
ENQUEUE = Enqueue(0, 1, 1, 64, 10, 0, 0)
PATIENT = replace(DISK, sleep=lambda seconds: None)
"""A disk on which asking again for a second takes no time."""


def named(name: str) -> Participant:
    """Return a participant that an older log knows by its name alone."""
    return Participant(name, b"")


def elsewhere(path: Path, name: str) -> Store:
    """Open the queue as another process does, which knows nothing of the queues that this process owns. Return its
    store."""
    return open_store(PATIENT, str(path / name), Settings(), create=True)


def items(store: Store) -> list[bytes]:
    """Return the items of the store, and give it up, as a killed process does."""
    found = [item for _, batch in store.reader.browse() for item in batch]
    store.release()
    return found


def in_doubt(open_queue: QueueFactory, decided: bool) -> tuple[PersistentQueue, PersistentQueue]:
    """Return two queues, a and b, with an item that was moved from a to b, of which b was given up in doubt.

    If nothing was ``decided``, a is broken.
    """
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
    """Whichever queue is opened first, both have committed the transaction or neither has. The report tells that b was
    in doubt."""
    a, _ = in_doubt(open_queue, decided)
    crash(a)
    queues = {name: open_queue(name) for name in (first, "ab".replace(first, ""))}
    assert contents(queues["a"], queues["b"]) == ([[], [b"1"]] if decided else [[b"1"], []])
    assert queues["b"].recovery.resolved is decided
    assert queues["a"].recovery.resolved is None


def test_check_finds_nothing_in_a_cut_short_opening(open_queue: QueueFactory, path: Path) -> None:
    """If an opening is killed before it has settled a transaction in doubt, it has cut nothing off that the log still
    names."""
    a, b = open_queue("a", disk=failing("several.3 decide", RuntimeError())), open_queue("b")
    put(a, b"1", b"x" * 500_000)  # too large for the log
    put(b, b"2")
    with pytest.raises(RuntimeError), transaction(a, b) as (taking, giving):
        giving.enqueue_many(taking.dequeue_many(2))
    crash(a)
    crash(b)
    with pytest.raises(RuntimeError):  # the first two trims belong to the coordinator, which is opened and closed
        open_queue("b", disk=failing("trim.3 sync generation", RuntimeError(), 3))
    report = check(path, "b")
    assert (report.problems, report.in_doubt, report.items) == ((), "a", 1)
    b = open_queue("b")
    assert b.recovery.resolved is False
    assert contents(b) == [[b"2"]]
    (segment,) = segment_files(path / "b")
    assert segment.stat().st_size < 4096


def test_who_is_asked_has_to_ask(open_queue: QueueFactory) -> None:
    """A coordinator that is itself in doubt asks its own coordinator first, and so on."""
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
    """A coordinator in doubt may ask a queue that is open in this process. If that queue is missing, ``InDoubtError``
    is raised."""
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
        with pytest.raises(InDoubtError, match="that queue is itself in doubt") as caught:
            call()
        assert not caught.value.lost
    repair(copy, "b")
    assert contents(open_queue("c", path=copy)) == [[b"2"]]


def test_open_coordinator_of_this_process_knows(open_queue: QueueFactory) -> None:
    """If this process owns the coordinator, even the last frame of its log is believed."""
    a, _ = in_doubt(open_queue, True)
    b = open_queue("b")
    assert (b.recovery.resolved, contents(a, b)) == (True, [[], [b"1"]])


def test_what_was_not_decided_by_who_goes_on(open_queue: QueueFactory) -> None:
    """If nothing was decided and the coordinator of this process is sound, the transaction is not committed."""
    a, b, c = open_queue("a"), open_queue("b"), open_queue("c", disk=failing("commit.3 write frame", RuntimeError(), 1))
    put(a, b"1")
    with pytest.raises(RuntimeError):
        move(a, b, c)
    crash(b)
    assert (open_queue("b").recovery.resolved, contents(a)) == (False, [[b"1"]])


def test_broken_coordinator_is_not_believed(open_queue: QueueFactory) -> None:
    """A broken coordinator that is not closed yet is not believed: its last frame may be only in the operating system's
    page cache."""
    a, b = open_queue("a", disk=failing("several.4 apply", RuntimeError())), open_queue("b")
    put(a, b"1")
    with pytest.raises(RuntimeError):
        move(a, b)
    b.close()
    with pytest.raises(InDoubtError, match="flush something in that queue, or close it") as caught:
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
    """The last frame of an owner elsewhere may not be durable. The answer is certain once that owner has written
    another frame."""
    a, b, c = open_queue("a"), open_queue("b"), open_queue("c", disk=failing("commit.3 write frame", RuntimeError(), 1))
    put(a, b"1")
    if decided:
        move(a, b)
    else:
        with pytest.raises(RuntimeError):
            move(a, b, c)
    crash(b)
    with pytest.raises(InDoubtError, match="flush something in that queue"):
        elsewhere(path, "b")
    put(a, b"2")
    assert items(elsewhere(path, "b")) == ([b"1"] if decided else [])


@pytest.mark.parametrize("decided", [False, True])
def test_owner_elsewhere_who_came_later(open_queue: QueueFactory, path: Path, decided: bool) -> None:
    """An owner elsewhere that opened the coordinator after the crash is believed: it has made the outcome durable in a
    new log."""
    crash(in_doubt(open_queue, decided)[0])
    a = open_queue("a")
    assert items(elsewhere(path, "b")) == ([b"1"] if decided else [])
    with pytest.raises(QueueLockedError):
        elsewhere(path, "a")
    assert contents(a) == [[] if decided else [b"1"]]


def test_owner_who_ends_meanwhile(open_queue: QueueFactory, path: Path) -> None:
    """If the owner of the coordinator is about to end, the question is repeated until it has ended."""
    a, _ = in_doubt(open_queue, True)
    asked: list[float] = []

    def sleep(seconds: float) -> None:
        asked.append(seconds)
        if len(asked) == 3:
            crash(a)

    store = open_store(replace(DISK, sleep=sleep), str(path / "b"), Settings(), create=True)
    assert (items(store), len(asked)) == ([b"1"], 3)


def test_log_that_is_trimmed_meanwhile(open_queue: QueueFactory, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that was trimmed while it was read is read again, since it may have been overwritten."""
    a = open_queue("a")
    before = read_newest(DISK, str(path / "a"), NEIGHBOUR)
    looks: list[str] = []

    def listdir(directory: str) -> list[str]:
        looks.append(directory)
        if len(looks) in {2, 3}:
            a.trim()
        return DISK.listdir(directory)

    newest = read_newest(replace(DISK, listdir=listdir), str(path / "a"), NEIGHBOUR)
    assert before is not None
    assert newest is not None
    assert newest.header.number == before.header.number + 2
    assert len(looks) == 4
    always = iter(range(10**6))
    restless = replace(DISK, listdir=lambda _: [f"{next(always) + 1:012d}.log"])
    assert read_newest(restless, str(path / "a"), NEIGHBOUR) is None
    a.close()
    shutil.rmtree(path / "a" / "log")
    (path / "a" / "log").mkdir()
    assert read_newest(DISK, str(path / "a"), NEIGHBOUR) is None
    shutil.rmtree(path / "a")


def test_owned_log_that_cannot_be_read(open_queue: QueueFactory, path: Path) -> None:
    """The log of a running owner that looks damaged is read again. If it stays so, ``InDoubtError`` is raised."""
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
    store = open_store(disk, str(path / "b"), Settings(), create=True)
    store.release()
    move(a, c := open_queue("c"))
    crash(c)
    disk = replace(PATIENT, pread=spoil(1000))
    with pytest.raises(InDoubtError, match="cannot be read"):
        open_store(disk, str(path / "c"), Settings(), create=True)


def test_full_disk_while_asking(open_queue: QueueFactory, path: Path) -> None:
    """If the disk is too full to close the recovered coordinator, its answer still counts."""
    a, b = open_queue("a", log_bytes=4096), open_queue("b", log_bytes=4096)
    put(a, b"1")
    move(a, b)
    for queue in (a, b):
        crash(queue)
    renames: list[str] = []

    def rename(source: str, target: str) -> None:
        if target.endswith(".log"):
            renames.append(target)
            if len(renames) in {2, 3}:  # the seal of a, which is tried again when its drained segment is deleted
                raise OSError(errno.ENOSPC, "No space left on device")
        DISK.rename(source, target)

    b = open_queue("b", log_bytes=4096, disk=replace(DISK, rename=rename))
    assert (b.recovery.resolved, len(renames)) == (True, 4)


def test_coordinator_of_another_kind(open_queue: QueueFactory) -> None:
    """A queue that only has named subscriptions may ask a coordinator that has none."""
    a, b = open_queue("a"), open_queue("b", fan_out=True)
    b.subscribe("s")
    put(a, b"1")
    move(a, b)
    crash(b)
    crash(a)
    b = open_queue("b", fan_out=True)
    assert (b.recovery.resolved, list(b.subscribe("s").browse())) == (True, [b"1"])


def test_coordinator_that_was_closed_is_not_opened(open_queue: QueueFactory, path: Path) -> None:
    """A coordinator that was closed cleanly is asked without its lock, and without its segments, whose medium may be
    away."""
    a, b = open_queue("a", data_path=path.parent / "elsewhere"), open_queue("b")
    put(a, b"1")
    move(a, b)
    crash(b)
    a.close()
    (path.parent / "elsewhere").rename(path.parent / "unmounted")
    assert contents(open_queue("b")) == [[b"1"]]
    (path.parent / "unmounted").rename(path.parent / "elsewhere")


def test_coordinator_that_is_asked_is_wiped(open_queue: QueueFactory, path: Path) -> None:
    """A coordinator with ``wipe=True`` that is opened to be asked overwrites its drained segments before they are
    deleted."""
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
    """A coordinator that is opened to be asked adopts nothing, since its limits are unknown to the asking queue."""
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
    """Damage in a coordinator that is opened to be asked is logged, as by an opening of its own."""
    a, _ = in_doubt(open_queue, True)
    put(a, b"2")
    crash(a)
    log = log_file(path / "a")
    flip(log, log.read_bytes().rindex(b"PQFr") + 40)
    open_queue("b")
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any(f"{path / 'a'}: the log ended in up to" in each for each in told)


# --- unknown outcomes ------------------------------------------------------------------------------------------------


@pytest.mark.damages
def test_coordinator_is_missing(open_queue: QueueFactory, path: Path) -> None:
    """If the coordinator is missing, the queue does not open and drops nothing. Once it is back, all items are
    there."""
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
    assert "there is no such queue beside this one" in report.problems[0]
    (path / "away").rename(path / "a")
    assert check(path, "b").ok
    assert contents(open_queue("b")) == [[b"1"]]


@pytest.mark.damages
def test_repair_without_coordinator(open_queue: QueueFactory, path: Path) -> None:
    """Without the coordinator, ``repair`` drops the transaction, reports it, and keeps the log that contains it."""
    a, _ = in_doubt(open_queue, True)
    a.close()
    shutil.rmtree(path / "a")
    log = log_file(path / "b").read_bytes()
    report = repair(path, "b")
    assert "the transaction was dropped" in report.problems[0]
    assert any((path / "b" / name).read_bytes() == log for name in report.kept)
    assert report.items == 0
    assert check(path, "b").ok
    put(open_queue("b"), b"2")


def test_repair_asks(open_queue: QueueFactory, path: Path) -> None:
    """``repair`` asks the coordinator as an opening does, and a known outcome is no problem."""
    crash(in_doubt(open_queue, True)[0])
    assert repair(path, "b").problems == ()
    assert contents(open_queue("b")) == [[b"1"]]


@pytest.mark.damages
@pytest.mark.parametrize("decided", [False, True])
def test_repair_asks_behind_a_lost_frame(open_queue: QueueFactory, path: Path, decided: bool) -> None:
    """The items of a transaction in doubt stay in their place behind those of a lost frame, which are lost. They were
    lost from both queues."""
    a, b = open_queue("a", disk=DISK if decided else failing("several.3 decide", RuntimeError())), open_queue("b")
    put(a, b"moved")
    put_each(b, [b"first", b"second"])
    if decided:
        move(a, b)
    else:
        with pytest.raises(RuntimeError):
            move(a, b)
    crash(b)
    crash(a)
    flip(log_file(path / "b"), read_log(DISK, str(log_file(path / "b"))).frames[2].offset + 60)
    report = repair(path, "b")
    assert report.lost == ((1, 1),) and not [problem for problem in report.problems if "sequence" in problem]
    assert contents(open_queue("b")) == [[b"first", b"moved"] if decided else [b"first"]]
    assert contents(open_queue("a")) == [[] if decided else [b"moved"]]


@pytest.mark.damages
def test_coordinator_is_older(open_queue: QueueFactory, path: Path) -> None:
    """A coordinator that was restored from an old copy is not believed, since its log ends before the decision."""
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
    with pytest.raises(InDoubtError, match="that log ends too early") as caught:
        open_queue("b")
    assert caught.value.lost
    assert repair(path, "b").items == 0


@pytest.mark.damages
def test_another_queue_has_the_name(open_queue: QueueFactory, path: Path) -> None:
    """A new queue with the name of the coordinator is not believed, however long its log is."""
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
    """A coordinator that was repaired without its log is not believed, even after further commits."""
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
    """Return the identity of the queue, read beside its owner."""
    return look(DISK, str(path / name))[1].identity


def test_identity_stays(open_queue: QueueFactory, path: Path) -> None:
    """A queue keeps its identity through trims, repairs and renames, and a new queue of its name gets another one."""
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
    """A log from before queues had identities opens as it did, and the queue gets an identity with its next
    generation."""
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
    """A queue in doubt that was renamed to the name of its coordinator does not ask itself."""
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
    """A damaged coordinator must be repaired first, even for a repair of the queue in doubt. Then it gives the
    answer."""
    a, _ = in_doubt(open_queue, True)
    put(a, b"2")
    crash(a)
    flip(log_file(path / "a"), 70)
    for call in (lambda: open_queue("b"), lambda: repair(path, "b")):
        with pytest.raises(InDoubtError, match="repair it first") as caught:
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
        with pytest.raises(InDoubtError, match="not deleted while this one may ask it"):
            delete_queue(path, "a")
    (path / "notes").write_text("no queue")
    (path / "odd" / "log").mkdir(parents=True)
    (path / "odd" / "log" / "000000000001.log").write_text("no log")
    b = open_queue("b")
    put(b, b"2")
    b.close()
    delete_queue(path, "a")
    delete_queue(path, "b")


@pytest.mark.damages
def test_renewal_of_who_has_to_be_asked(open_queue: QueueFactory, path: Path) -> None:
    """A queue gets no new identity as long as another one may have to ask it."""
    crash(in_doubt(open_queue, True)[0])
    with pytest.raises(InDoubtError, match="no new identity while this one may ask it: open this one") as caught:
        repair(path, "a", renew=True)
    assert caught.value.path == str(path / "b")
    b = open_queue("b")
    assert contents(b) == [[b"1"]]
    b.close()
    assert repair(path, "a", renew=True).problems == ()


def test_deletion_syncs_nothing_of_its_neighbours(open_queue: QueueFactory, path: Path) -> None:
    """The deletion of a queue syncs no log directory of its neighbours, since the names of their logs are durable."""
    for name in "abc":
        put(open_queue(name), b"1")
    open_queue("d").close()
    synced: list[int] = []

    def fsync(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        DISK.fsync(fd)

    call_on(replace(DISK, fsync=fsync), delete_queue, path, "d")
    assert not set(synced) & {(path / name / "log").stat().st_ino for name in "abc"}


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.ETIMEDOUT])
def test_deletion_beside_a_neighbour_that_cannot_be_read_for_now(
    open_queue: QueueFactory, path: Path, code: int
) -> None:
    """If the log of a neighbour cannot be read for now, a deletion raises and deletes nothing: the neighbour may have
    to ask."""
    a, _ = in_doubt(open_queue, True)
    a.close()

    def open_(opened: str, flags: int, mode: int) -> int:
        if "/b/log/" in opened:
            raise OSError(code, os.strerror(code), opened)
        return DISK.open(opened, flags, mode)

    with pytest.raises((OSError, ResourceError), match=r"/b/log/|delete it again"):
        call_on(replace(DISK, open=open_), delete_queue, path, "a")
    assert contents(open_queue("b")) == [[b"1"]]


def test_deletion_beside_a_neighbour_whose_log_has_no_room_in_memory(
    open_queue: QueueFactory, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this process has too little memory for the log of a neighbour, a deletion deletes nothing."""
    a, _ = in_doubt(open_queue, True)
    a.close()

    def read(disk: Disk, directory: str, policy: Policy) -> Replay | None:
        if directory.endswith("/b"):
            raise MemoryShortageError(directory, 0, 1 << 40)
        return read_newest(disk, directory, policy)

    with monkeypatch.context() as patched:
        patched.setattr(in_doubt_module, "read_newest", read)
        with pytest.raises(MemoryShortageError):
            delete_queue(path, "a")
    assert contents(open_queue("b")) == [[b"1"]]


@pytest.mark.parametrize("kind", ["file", "link in a circle", "other log"])
def test_deletion_beside_what_is_no_queue(open_queue: QueueFactory, path: Path, kind: str) -> None:
    """A queue can be deleted beside a file, a link or a directory of another program."""
    open_queue("a").close()
    if kind == "file":
        (path / "b").write_bytes(b"")
    elif kind == "link in a circle":
        (path / "b").symlink_to("b")
    else:
        (path / "b" / "log").mkdir(parents=True)
        (path / "b" / "log" / "0.log").write_bytes(b"by another program")
    delete_queue(path, "a")
    assert not (path / "a").exists()


def test_neighbours_with_long_logs(open_queue: QueueFactory, path: Path) -> None:
    """The end of a neighbour's log tells whether that neighbour may have to ask, however long its log is."""
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


@pytest.mark.damages
def test_a_parent_that_cannot_be_listed(open_queue: QueueFactory, path: Path) -> None:
    """A coordinator opens without permission to list its parent. It keeps its decisions about what it does not find."""

    def listdir(name: str) -> list[str]:
        if Path(name) == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return DISK.listdir(name)

    a, b = open_queue("a"), open_queue("b")
    put(a, b"1")
    move(a, b)
    crash(a)
    crash(b)
    shutil.rmtree(path / "b")
    a = open_queue("a", disk=replace(DISK, listdir=listdir))
    assert a._open()._store.state.asked_for
    a.close()
    assert not open_queue("a")._open()._store.state.asked_for


def test_a_deletion_below_a_parent_that_cannot_be_listed(open_queue: QueueFactory, path: Path) -> None:
    """Without the right to list the parent directory, such as that of all homes, a user can delete a queue there."""
    put(queue := open_queue("a"), b"1")
    queue.close()

    def listdir(name: str) -> list[str]:
        if Path(name) == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return DISK.listdir(name)

    call_on(replace(DISK, listdir=listdir), delete_queue, path, "a")
    assert list(path.iterdir()) == []

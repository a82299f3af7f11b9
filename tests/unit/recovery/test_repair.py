"""``repair`` and its command line: all intact items are kept in their order, and all damage is reported."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
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
    PersistentQueueError,
    Producer,
    QueueLockedError,
    QueueNotFoundError,
    View,
    check,
    delete_queue,
    move_data,
    repair,
)
from persistentqueue.cli import main
from persistentqueue.core.block import BLOCK_MAGIC
from persistentqueue.core.operations import Adoption, SegmentCreated
from persistentqueue.core.state import State, StateError
from persistentqueue.recovery.replay import Recovered
from persistentqueue.recovery.salvage import Salvaged, _skip
from persistentqueue.system.disk import DISK
from tests.crash.disk import SimulatedDisk
from tests.crash.explorer import DIRECTORY, content_of
from tests.durability.test_campaigns import SYNCED, enqueuing, opened, take
from tests.support.disks import call_on
from tests.support.queues import crash, drain, flip, log_file, put, put_each, segment_files

from .test_replay import replay_of

ITEMS = [b"%03d " % number * 50 for number in range(60)]
SETTINGS = {"segment_bytes": 4096, "inline_bytes": 0, "log_bytes": 65536}

pytestmark = pytest.mark.damages


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a queue with 60 items in several segments, closed cleanly, and return its path."""
    with PersistentQueue(tmp_path / "queue", **SETTINGS) as queue:  # type: ignore[arg-type]
        put_each(queue, ITEMS)
    return tmp_path / "queue"


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """Make such a queue, of which five items were consumed and whose owner was killed, and return its path."""
    queue = PersistentQueue(tmp_path / "queue", **SETTINGS)  # type: ignore[arg-type]
    put_each(queue, ITEMS)
    with queue.transaction() as session:
        session.dequeue_many(5)
    crash(queue)
    return tmp_path / "queue"


def taken_out(path: Path) -> list[bytes]:
    """Drain the repaired queue and return its items. Assert that ``check`` finds no problem, before and after."""
    assert check(path).ok
    with PersistentQueue(path) as queue:
        assert queue.recovery.clean
        items = drain(queue)
    assert check(path).ok
    return items


@pytest.mark.parametrize("step", ["open", "pwritev"])
def test_a_full_disk_names_the_repair(crashed: Path, step: str) -> None:
    """On a full disk the error of ``repair`` names the repair, and a later repair completes it."""
    flip(segment_files(crashed)[0], 100)

    def refuse(*arguments: Any) -> Any:
        if step == "open" and not arguments[1] & os.O_CREAT:
            return DISK.open(*arguments)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DiskFullError, match=r"no room to repair the queue; .*free some space, then repair it again$"):
        call_on(replace(DISK, **{step: refuse}), repair, crashed)
    assert repair(crashed).problems
    assert taken_out(crashed)


def test_a_check_writes_to_nothing(crashed: Path) -> None:
    """``check`` opens no file for writing, so that permission to read a queue is enough to check it."""
    with Producer(crashed) as producer:
        producer.enqueue(b"published")
        producer.flush()

    def open_to_read(path: str, flags: int, mode: int) -> int:
        assert flags & os.O_ACCMODE == os.O_RDONLY
        return DISK.open(path, flags, mode)

    report = call_on(replace(DISK, open=open_to_read), check, crashed)
    assert (report.problems, report.items, report.published) == ((), 55, 1)


def test_a_check_while_the_owner_trims(tmp_path: Path) -> None:
    """A check reads the new log if the owner replaces the log in the middle, and so finds no problem."""
    queue = PersistentQueue(tmp_path / "queue", log_bytes=4096)
    put(queue, b"one")
    trims = 0

    def trim_then_open(path: str, flags: int, mode: int) -> int:
        nonlocal trims
        if path.endswith(".log") and trims < 3:
            trims += 1
            queue.trim()
        return DISK.open(path, flags, mode)

    with queue:
        report = call_on(replace(DISK, open=trim_then_open), check, tmp_path / "queue")
        assert (report.problems, report.items, trims) == ((), 1, 3)


def test_nothing_to_repair(path: Path) -> None:
    """A repair of a queue without damage keeps all items and sets no file aside."""
    report = repair(path)
    assert (report.problems, report.items, report.lost, report.kept) == ((), 60, (), ())
    assert taken_out(path) == ITEMS


def test_crashed_queue_is_just_opened(crashed: Path) -> None:
    """A repair of a queue that was not closed recovers it, as an opening does."""
    report = repair(crashed)
    assert (report.problems, report.items, report.lost) == ((), 55, ())
    assert taken_out(crashed) == ITEMS[5:]


@pytest.mark.parametrize("offset", [70, 130], ids=["header", "body"])
def test_damaged_block(path: Path, offset: int) -> None:
    """A damaged block costs only its own items, and a copy of its file is kept."""
    damaged = segment_files(path)[1]
    content = bytearray(damaged.read_bytes())
    flip(damaged, offset)
    report = repair(path)
    (first, count), *more = report.lost
    assert (count, more, report.items, report.without_log) == (1, [], 59, False)
    assert taken_out(path) == ITEMS[:first] + ITEMS[first + 1 :]
    copy = path / "data" / f"{damaged.name}.damaged"
    content[offset] ^= 1
    assert copy.read_bytes() == content
    assert f"data/{copy.name}" in report.kept


def test_missing_segment(path: Path) -> None:
    """A segment that is missing costs the items that it held."""
    segment_files(path)[2].unlink()
    report = repair(path)
    ((first, count),) = report.lost
    assert count > 5
    assert taken_out(path) == ITEMS[:first] + ITEMS[first + count :]


def test_damage_in_the_middle_of_a_log(crashed: Path) -> None:
    """Frames behind the damage are applied, and the sequences of the items in the lost frame are reported."""
    log = log_file(crashed)
    flip(log, replay_of(crashed).frames[30].offset + 50)
    with pytest.raises(CorruptionError):
        PersistentQueue(crashed)
    report = repair(crashed)
    assert report.lost == ((29, 1),)
    assert "damaged at offset" in report.problems[0]
    assert report.kept == (f"log/{log.name}.damaged",)
    assert taken_out(crashed) == ITEMS[5:29] + ITEMS[30:]


@pytest.fixture
def unsynced(tmp_path: Path) -> Path:
    """Make a queue with ``sync=False``, as ``crashed`` is else, and return its path."""
    queue = PersistentQueue(tmp_path / "queue", sync=False, **SETTINGS)  # type: ignore[arg-type]
    put_each(queue, ITEMS)
    with queue.transaction() as session:
        session.dequeue_many(5)
    crash(queue)
    return tmp_path / "queue"


def test_transactions_that_have_lost_their_blocks(unsynced: Path) -> None:
    """With ``sync=False``, ``check`` reports the transactions that an opening drops: the first one whose blocks are
    damaged, and all behind it. A repair drops only the first one, and reports it with its items."""
    frame, segment = replay_of(unsynced).frames[17], segment_files(unsynced)[1]
    flip(segment, 100)
    report = check(unsynced)
    assert not report.ok and report.items == 16
    assert f"{log_file(unsynced)}: damaged at offset {frame.offset}" in report.problems[0]
    assert "an opening drops the 45 transactions from there on, and a repair keeps" in report.problems[0]
    repaired = repair(unsynced)
    assert (repaired.items, repaired.lost) == (54, ((16, 1),))
    assert f"frame {frame.number} at {frame.offset} was dropped, with 1 transaction" in repaired.problems[0]
    assert [problem for problem in repaired.problems if report.problems[0].startswith(f"{problem}; ")]
    assert f"data/{segment.name}.damaged" in repaired.kept
    assert repair(unsynced).problems == ()
    assert taken_out(unsynced) == ITEMS[5:16] + ITEMS[17:]


@pytest.mark.parametrize("is_blank", [False, True], ids=["invalid", "never written"])
def test_transactions_behind_a_lost_frame(unsynced: Path, is_blank: bool) -> None:
    """With ``sync=False``, ``check`` reports, and an opening counts, the transactions behind an invalid frame, or
    behind one that never reached the disk. A repair keeps them."""
    frame = replay_of(unsynced).frames[17]
    if is_blank:
        content = log_file(unsynced).read_bytes()
        log_file(unsynced).write_bytes(content[: frame.offset] + bytes(frame.end - frame.offset) + content[frame.end :])
    else:
        flip(log_file(unsynced), frame.offset + 20)
    shutil.copytree(unsynced, opened_first := unsynced.parent / "another" / "queue")
    with PersistentQueue(opened_first) as queue:
        assert queue.recovery.lost_transactions == 44  # nothing tells the number of those in the invalid frame
        assert drain(queue) == ITEMS[:16]
    (problem,) = check(unsynced).problems
    assert f"damaged at offset {frame.offset}: expected a valid frame, since others follow" in problem
    assert "an opening drops the 44 transactions from there on" in problem
    repaired = repair(unsynced)
    assert (repaired.items, repaired.lost) == (54, ((16, 1),))
    assert [each for each in repaired.problems if problem.startswith(f"{each}; ")]
    assert taken_out(unsynced) == ITEMS[5:16] + ITEMS[17:]


def test_a_damaged_header_loses_no_transaction(unsynced: Path) -> None:
    """With ``sync=False``, a segment with a damaged header keeps its blocks: a repair writes the header again."""
    flip(segment_files(unsynced)[1], 20)
    report = repair(unsynced)
    assert report.problems and (report.items, report.lost) == (55, ())
    assert taken_out(unsynced) == ITEMS[5:]


def test_a_lost_frame_takes_its_dequeues_along(tmp_path: Path) -> None:
    """With ``sync=False``, a repair drops a transaction without all of its blocks as a whole: its dequeues, too."""
    path = tmp_path / "queue"
    queue = PersistentQueue(path, sync=False, **SETTINGS)  # type: ignore[arg-type]
    put(queue, *ITEMS[:10])
    with queue.transaction() as session:
        session.dequeue_many(3)
        session.enqueue_many(ITEMS[10:12])
    put(queue, ITEMS[12])
    crash(queue)
    (segment,) = segment_files(path)
    flip(segment, segment.read_bytes().index(ITEMS[11]) + 9)
    assert repair(path).lost == ((10, 2),)
    assert taken_out(path) == [*ITEMS[:10], ITEMS[12]]


def test_a_lost_frame_that_made_a_segment(tmp_path: Path) -> None:
    """With ``sync=False``, blocks of later frames are kept if the frame that made their segment lacks a block, or is
    invalid itself."""
    path = tmp_path / "queue"
    put_each(queue := PersistentQueue(path, sync=False, **SETTINGS), ITEMS)  # type: ignore[arg-type]
    crash(queue)
    made = [
        number for number, frame in enumerate(replay_of(path).frames) if "SegmentCreated" in str(frame.transactions)
    ]
    segment, number = segment_files(path)[1], made[1]
    for damaged, offset in ((segment, 100), (log_file(path), replay_of(path).frames[number].offset + 20)):
        shutil.copytree(path, damaged_path := tmp_path / damaged.name / "queue")
        flip(damaged_path / damaged.relative_to(path), offset)
        assert repair(damaged_path).lost == ((number - 1, 1),)
        assert taken_out(damaged_path) == ITEMS[: number - 1] + ITEMS[number:]


def test_blocks_of_a_lost_frame_in_a_drained_segment_are_kept(tmp_path: Path) -> None:
    """The blocks of a lost frame stay in a file if their segment is drained otherwise. A repair deleted it, although it
    promises to delete nothing."""
    queue = PersistentQueue(path := tmp_path / "queue", **SETTINGS)  # type: ignore[arg-type]
    put_each(queue, ITEMS[:2])
    with queue.session() as held, queue.transaction() as consumed:
        assert [held.dequeue(), consumed.dequeue()] == ITEMS[:2]
        held.rollback()
    crash(queue)
    (segment,) = segment_files(path)
    flip(log_file(path), replay_of(path).frames[1].offset + 40)
    report = repair(path)
    assert (report.items, report.lost) == (0, ((0, 1),))
    assert f"data/{segment.name}.damaged" in report.kept
    assert ITEMS[0] in segment.with_name(f"{segment.name}.damaged").read_bytes()
    assert repair(path).kept == ()


def test_lost_dequeue_comes_again(tmp_path: Path) -> None:
    """Items that a lost frame consumed come out again: no item is lost because its dequeue is unknown."""
    path = tmp_path / "queue"
    queue = PersistentQueue(path, **SETTINGS)  # type: ignore[arg-type]
    put(queue, *ITEMS[:10])
    with queue.transaction() as session:
        session.dequeue_many(3)
    put(queue, *ITEMS[10:12])
    crash(queue)
    flip(log_file(path), replay_of(path).frames[2].offset + 40)
    assert repair(path).lost == ()
    assert taken_out(path) == ITEMS[:12]


def test_a_dequeue_of_lost_items_and_others_counts(tmp_path: Path) -> None:
    """An intact frame that consumed items of a lost frame, and others, has consumed the others. They came out again."""
    path = tmp_path / "queue"
    queue = PersistentQueue(path, **SETTINGS, retry_delay_seconds=1.0)  # type: ignore[arg-type]
    for start in range(0, 20, 5):
        put(queue, *ITEMS[start : start + 5])
    with queue.transaction() as session:
        assert session.dequeue_many(18) == ITEMS[:18]  # logged as deliveries, then as a dequeue
    crash(queue)
    flip(log_file(path), replay_of(path).frames[2].offset + 50)
    report = repair(path)
    assert (report.items, report.lost) == (2, ())
    assert not [problem for problem in report.problems if "contradicts" in problem]
    assert taken_out(path) == ITEMS[18:20]


def test_a_dequeue_behind_the_last_frame_with_items_counts(tmp_path: Path) -> None:
    """An intact frame has consumed what it names, also if the items behind it were enqueued by a lost frame, and no
    later frame enqueues. The items before came out again, and the next items got numbers of the lost ones."""
    path = tmp_path / "queue"
    queue = PersistentQueue(path, **SETTINGS)  # type: ignore[arg-type]
    put(queue, *ITEMS[:5])
    put(queue, *ITEMS[5:10])
    with queue.transaction() as session:
        assert session.dequeue_many(8) == ITEMS[:8]
    crash(queue)
    flip(log_file(path), replay_of(path).frames[2].offset + 50)
    report = repair(path)
    assert (report.items, report.lost) == (0, ())
    assert not [problem for problem in report.problems if "contradicts" in problem]
    assert taken_out(path) == []


def test_lost_items_that_each_subscription_has_consumed_are_not_lost(tmp_path: Path) -> None:
    """The report names the items of a lost frame that some subscription still needs, and none that all have consumed.
    It named those that were consumed later, too."""
    path = tmp_path / "queue"
    queue = PersistentQueue(path, **SETTINGS, fan_out=True)  # type: ignore[arg-type]
    for name in ("a", "b"):
        queue.subscribe(name)
    for start in (0, 5, 10):
        put(queue, *ITEMS[start : start + 5])
    for name, most in (("a", 12), ("b", 7)):
        with queue.subscribe(name).transaction() as session:
            session.dequeue_many(most)
    crash(queue)
    flip(log_file(path), replay_of(path).frames[4].offset + 50)
    report = repair(path)
    assert (report.items, report.lost) == (5, ((7, 3),))
    assert not [problem for problem in report.problems if "contradicts" in problem]
    with PersistentQueue(path) as queue:
        for name, first in (("a", 12), ("b", 10)):
            with queue.subscribe(name).transaction() as session:
                assert session.dequeue_many(99) == ITEMS[first:15]


def test_a_gap_that_no_queue_can_have(path: Path) -> None:
    """A forged frame behind 2**63 lost sequences or more is refused: their numbers would not fit into a log."""
    with pytest.raises(StateError, match=r"fewer than"):
        _skip(Salvaged(Recovered(State(), replay_of(path))), 2**63)


@pytest.mark.parametrize("sync", [False, True])
def test_a_subscription_behind_lost_items_stays(tmp_path: Path, sync: bool) -> None:
    """A subscription stays that begins behind the items of a lost frame. It was lost, and its items with it."""
    path = tmp_path / "queue"
    queue = PersistentQueue(path, sync=sync, **SETTINGS)  # type: ignore[arg-type]
    put(queue, *ITEMS[:5])
    put(queue, *ITEMS[5:10])
    queue.subscribe("late", start="latest")
    put(queue, *ITEMS[10:15])
    crash(queue)
    flip(log_file(path), replay_of(path).frames[2].offset + 50)
    report = repair(path)
    assert (report.items, report.lost) == (10, ((5, 5),))
    assert not [problem for problem in report.problems if "contradicts" in problem]
    with PersistentQueue(path) as queue, queue.subscribe("late").transaction() as session:
        assert session.dequeue_many(99) == ITEMS[10:15]


@pytest.mark.parametrize("offset", [20, 80], ids=["header", "checkpoint"])
@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
def test_log_of_no_use(path: Path, offset: int, gone: bool) -> None:
    """Without a usable log, a repair keeps all blocks whose checksums are right."""
    log = log_file(path)
    log.unlink() if gone else flip(log, offset)
    with pytest.raises(CorruptionError):
        PersistentQueue(path)
    report = repair(path)
    assert (report.items, report.without_log) == (60, True)
    assert gone or f"log/{log.name}.damaged" in report.kept
    assert taken_out(path) == ITEMS


@pytest.mark.parametrize("damage", ["header", "checkpoint", "cut", "no log"])
def test_a_damaged_log_names_the_way_out(path: Path, damage: str) -> None:
    """The error of an opening names the repair. The report of the repair does not advise to run a repair."""
    log = log_file(path)
    if damage == "no log":
        log.unlink()
    elif damage == "cut":
        log.write_bytes(log.read_bytes()[:100])
    else:
        flip(log, 20 if damage == "header" else 80)
    with pytest.raises(CorruptionError, match=r"nothing was changed: .* copy the directory, then run repair$"):
        PersistentQueue(path)
    problem = repair(path).problems[0]
    assert "damaged at offset" in problem and "run repair" not in problem


@pytest.mark.parametrize(
    "call",
    [
        partial(PersistentQueue, create=False),
        Producer,
        lambda path: View(path).look(),
        delete_queue,
        partial(move_data, data_path=None),
    ],
    ids=["open", "publish", "view", "delete", "move"],
)
def test_each_call_names_the_way_out_of_a_log_that_is_gone(path: Path, call: Callable[[Path], Any]) -> None:
    """Each call that needs a queue, and ``check``, names the repair if there are segments and no log."""
    log_file(path).unlink()
    with pytest.raises(CorruptionError, match=r"nothing was changed: .* copy the directory, then run repair$"):
        call(path)
    assert check(path).problems[0].endswith("then run repair")


def test_repair_needs_the_lock(path: Path, tmp_path: Path) -> None:
    """A repair of a queue in use raises ``QueueLockedError``, and one of a missing queue ``QueueNotFoundError``."""
    with PersistentQueue(path), pytest.raises(QueueLockedError):
        repair(path)
    with pytest.raises(QueueNotFoundError):
        repair(tmp_path / "nothing")


def test_command_line(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``check`` and ``repair`` print what they found, and their exit status tells whether all was well."""
    assert main(["check", str(path)]) == 0
    assert "60 items read and checked; closed cleanly; 0 problems" in capsys.readouterr().out
    flip(segment_files(path)[0], 130)
    assert main(["check", str(path.parent), path.name]) == 1
    assert "damaged at offset 64" in capsys.readouterr().out
    assert main(["repair", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "lost: 1 item, sequences 0 to 0" in printed
    assert "kept: data/000000000001.seg.damaged" in printed
    assert "59 items in the queue" in printed
    assert main(["repair", str(path)]) == 0
    assert main(["check", str(tmp_path / "nothing")]) == 2
    assert "QueueNotFoundError" in capsys.readouterr().err
    command = [sys.executable, "-m", "persistentqueue", "check", str(path)]
    assert "59 items" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_gap_behind_what_was_consumed(tmp_path: Path) -> None:
    """A lost frame behind a drained queue leaves only a gap in the sequences."""
    path = tmp_path / "queue"
    queue = PersistentQueue(path, **SETTINGS)  # type: ignore[arg-type]
    put(queue, b"a")
    assert drain(queue) == [b"a"]
    put_each(queue, [b"b", b"c"])
    crash(queue)
    flip(log_file(path), replay_of(path).frames[3].offset + 40)
    assert repair(path).lost == ((1, 1),)
    assert taken_out(path) == [b"c"]


def test_lost_frame_that_made_a_segment(crashed: Path) -> None:
    """A segment whose creation was in the lost frame is recognized by its own header."""
    frames = replay_of(crashed).frames[1:]
    at = next(at for at, frame in enumerate(frames) if at and isinstance(frame.transactions[0][0], SegmentCreated))
    flip(log_file(crashed), frames[at].offset + 40)
    assert repair(crashed).lost == ((at, 1),)
    assert taken_out(crashed) == ITEMS[5:at] + ITEMS[at + 1 :]


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("how", ["beside the log", "no file", "carried", "carried, no file"])
def test_lost_frame_and_segment(tmp_path: Path, how: str, sync: bool) -> None:
    """If the header of that segment is damaged as well, each block of an intact frame is kept: the blocks tell a salt
    that is as good as the lost one. They were lost, although the log had them."""
    path = tmp_path / "queue"
    inline_bytes = 65536 if how.startswith("carried") else 0
    queue = PersistentQueue(path, sync=sync, **SETTINGS | {"inline_bytes": inline_bytes})  # type: ignore[arg-type]
    put_each(queue, ITEMS)
    crash(queue)
    frames = replay_of(path).frames[1:]
    made = [at for at, frame in enumerate(frames) if isinstance(frame.transactions[0][0], SegmentCreated)]
    flip(log_file(path), frames[made[1]].offset + 40)
    segment = segment_files(path)[1]
    segment.unlink() if how.endswith("no file") else flip(segment, 20)
    report = repair(path)
    if how == "no file":
        assert report.lost == ((made[1], made[2] - made[1]),)
        return
    assert report.lost == ((made[1], 1),)
    assert ("data/000000000002.seg.damaged" in report.kept) is (how == "beside the log" or (sync and how == "carried"))
    assert taken_out(path) == ITEMS[: made[1]] + ITEMS[made[1] + 1 :]


def test_lost_frame_and_segment_and_block(crashed: Path) -> None:
    """A damaged block tells no salt: its items are lost, and the blocks behind it are kept."""
    frames = replay_of(crashed).frames[1:]
    made = [at for at, frame in enumerate(frames) if isinstance(frame.transactions[0][0], SegmentCreated)]
    flip(log_file(crashed), frames[made[1]].offset + 40)
    segment = segment_files(crashed)[1]
    content = segment.read_bytes()
    second = content.index(BLOCK_MAGIC, content.index(BLOCK_MAGIC) + 1)
    flip(segment, 20)
    flip(segment, second + 60)
    report = repair(crashed)
    assert report.lost == ((made[1], 2),)
    assert "contradicts the state" in report.problems[0]
    assert taken_out(crashed) == ITEMS[5 : made[1]] + ITEMS[made[1] + 2 :]


def test_neither_log_nor_header(path: Path) -> None:
    """Without a log, a segment with a damaged header keeps its items: its first block tells a salt that is as good.

    The items were set aside with the segment.
    """
    log_file(path).unlink()
    segments = segment_files(path)
    flip(segments[0], 20)
    (path / "data" / "notes.txt").write_text("not the queue's")
    report = repair(path)
    assert str(segments[0]) in report.problems[0]
    assert f"data/{segments[0].name}.damaged" in report.kept
    assert taken_out(path) == ITEMS


@pytest.mark.parametrize("content", [b"", b"damaged", bytes(5000)])
def test_neither_log_nor_header_nor_block(path: Path, content: bytes) -> None:
    """A segment whose first block is damaged, too, is set aside. The items of the other segments are kept."""
    log_file(path).unlink()
    segments = segment_files(path)
    segments[0].write_bytes(content)
    report = repair(path)
    assert str(segments[0]) in report.problems[0]
    assert f"data/{segments[0].name}.damaged" in report.kept
    items = taken_out(path)
    assert items == ITEMS[-len(items) :]
    assert 40 < len(items) < 60


@pytest.mark.parametrize("place", ["first", "last", "header of the last", "all of the last"])
def test_neither_log_nor_block(path: Path, place: str) -> None:
    """Without a log, a damaged block is reported, and a copy of its segment is kept."""
    log_file(path).unlink()
    segment = segment_files(path)[1]
    content = segment.read_bytes()
    end, last = len(content.rstrip(b"\0")), content.rindex(BLOCK_MAGIC)
    if place == "all of the last":
        segment.write_bytes(content[:last] + b"x" * (end - last) + content[end:])
    else:
        flip(segment, {"first": 70, "last": end - 1, "header of the last": last + 9}[place])
    report = repair(path)
    (problem, *_) = report.problems
    assert problem.startswith(f"{segment}: no block between ") and problem.endswith(" is intact")
    assert (len(report.problems), report.items, report.lost) == (2, 59, ())
    assert f"data/{segment.name}.damaged" in report.kept
    assert len(segment.with_name(f"{segment.name}.damaged").read_bytes()) == len(content)
    items = taken_out(path)
    assert len(items) == 59
    assert items == [item for item in ITEMS if item in items]


@pytest.mark.parametrize("kind", ["adopted", "recycled"])
def test_neither_log_nor_damage(tmp_path: Path, kind: str) -> None:
    """Without a log, the frame of an adopted file, and the old blocks in a file from the pool, are no damage."""
    path = tmp_path / "queue"
    with PersistentQueue(path, pool_max_bytes=2**20, **SETTINGS) as queue:  # type: ignore[arg-type]
        if kind == "adopted":
            with Producer(path) as producer:
                producer.enqueue_many(ITEMS[:3])
                producer.flush()
            assert queue.wait(0.0)
        else:
            put_each(queue, ITEMS)
            queue.clear()
            queue.trim()
            queue.maintain()
            put_each(queue, ITEMS[:10])
            crash(queue)  # a close would cut the last file
    log_file(path).unlink()
    blocks = sum(each.read_bytes().count(BLOCK_MAGIC) for each in segment_files(path))
    report = repair(path)
    assert (len(report.problems), report.kept) == (1, ())
    if kind == "adopted":
        assert taken_out(path) == ITEMS[:3]
    else:
        assert blocks > report.items >= 10
        assert taken_out(path)[-10:] == ITEMS[:10]


@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
def test_neither_log_nor_any_block_of_a_segment(path: Path, place: int) -> None:
    """Without a log, a segment whose blocks are all damaged is reported and set aside, and not deleted."""
    log_file(path).unlink()
    segment = segment_files(path)[place]
    damaged = bytearray(segment.read_bytes())
    damaged[64:] = bytes(byte ^ 0x55 for byte in damaged[64:])
    segment.write_bytes(damaged)
    report = repair(path)
    assert report.problems[0] == f"{segment}: no block between 64 and {len(damaged)} is intact"
    assert f"data/{segment.name}.damaged" in report.kept
    assert segment.with_name(f"{segment.name}.damaged").read_bytes() == damaged
    items = taken_out(path)
    assert 40 < len(items) < 60
    assert items == (ITEMS[: len(items)] if place else ITEMS[-len(items) :])


def test_log_and_its_name_are_gone(path: Path) -> None:
    """A log whose name is that of another generation is not used: the queue is rebuilt from its segments."""
    log = log_file(path)
    log.rename(log.with_name("000000000099.log"))
    report = repair(path)
    assert (report.items, report.without_log) == (60, True)
    assert taken_out(path) == ITEMS


@pytest.mark.parametrize("before", ["closed", "killed"])
def test_damaged_header_of_a_segment(tmp_path: Path, before: str) -> None:
    """The damaged header of a segment is written again from the data in the log. It used to make ``repair`` itself
    fail."""
    queue = PersistentQueue(tmp_path / "queue")
    put_each(queue, ITEMS)
    queue.close() if before == "closed" else crash(queue)
    flip(segment_files(tmp_path / "queue")[0], 3)
    report = repair(tmp_path / "queue")
    assert (report.items, report.lost, len(report.problems)) == (60, (), 1)
    assert any(name.endswith(".seg.damaged") for name in report.kept)
    assert taken_out(tmp_path / "queue") == ITEMS


def test_damaged_block_of_consumed_items(path: Path) -> None:
    """A damaged block of consumed items costs nothing, and ``check`` finds no problem after the repair."""
    with PersistentQueue(path) as queue, queue.transaction() as session:
        assert session.dequeue_many(5) == ITEMS[:5]
    flip(segment_files(path)[0], 300)
    assert not check(path).ok
    report = repair(path)
    assert (report.items, report.lost, len(report.problems)) == (55, (), 1)
    assert taken_out(path) == ITEMS[5:]


def damage(disk: SimulatedDisk, ending: str, offset: int) -> bytes:
    """Flip a bit of the file, as if it had reached the device as a whole. Return the content of the file."""
    inode = disk.inodes[next(number for name, number in disk.names.items() if name.endswith(ending))]
    inode.cache[offset] ^= 1
    inode.durable, inode.pending = bytearray(inode.cache), []
    return bytes(inode.cache)


@pytest.mark.parametrize(
    ("ending", "offset", "inline_bytes", "left"),
    [(".log", 20, 0, 12), (".log", 600, 999, 9), ("2.seg", 20, 999, 10), ("2.seg", 20, 0, 10), ("2.seg", 70, 0, 9)],
    ids=["log's header", "frame", "header of carried blocks", "header", "block"],
)
@pytest.mark.parametrize("how", ["kill", "power cut"])
def test_repair_that_is_cut_short(ending: str, offset: int, inline_bytes: int, left: int, how: str) -> None:
    """A repair may be cut short at any call, by a kill or a power cut. The next one keeps the same items, and the
    evidence."""
    disk = SimulatedDisk()
    store = opened(disk, replace(SYNCED, segment_bytes=300, log_bytes=4096, inline_bytes=inline_bytes))
    for number in range(12):
        store.commit([enqueuing(b"item %d" % number * (1 + 9 * (number % 3)))])
    store.commit([take(store)])
    store.commit([take(store)])
    store.release()
    evidence = damage(disk, ending, offset)
    cut_short: list[SimulatedDisk] = []
    chance = Random(offset)

    def crash_copies() -> None:
        for _ in range(1 if how == "kill" else 3):
            killed = disk.kill(chance.randrange)
            cut_short.append(killed if how == "kill" else killed.cut_power(chance.randrange))

    disk.on_tick = crash_copies
    report = call_on(disk.disk, repair, DIRECTORY)
    disk.on_tick = None
    assert (report.items, len(report.problems) > 0) == (left, True)
    items = content_of(opened(disk)).items
    for crashed in cut_short:
        call_on(crashed.disk, repair, DIRECTORY)
        assert call_on(crashed.disk, check, DIRECTORY).ok
        assert content_of(opened(crashed)).items == items
        kept = [crashed.inodes[number] for name, number in crashed.names.items() if name.endswith(".damaged")]
        assert evidence in [bytes(inode.cache) for inode in kept]
    assert len(cut_short) >= 20


def test_a_repair_that_fails_leaves_no_further_copies(path: Path, tmp_path: Path) -> None:
    """A repair that a full disk has cut short at any call leaves no part of a copy. The next one uses the copies that
    are there: it keeps as many files, and reports them all."""
    for segment in segment_files(path)[:2]:
        flip(segment, 300)
    fails_at, calls = 0, count(1)

    def failing(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if next(calls) == fails_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return getattr(DISK, name)(*arguments)

        return call

    names = ("pwritev", "fallocate", "fdatasync", "fsync", "rename")
    disk = replace(DISK, **{name: failing(name) for name in names})
    expected = call_on(disk, repair, shutil.copytree(path, tmp_path / "0" / "queue")).kept
    assert len([name for name in expected if name.startswith("data/")]) == 2
    for fails_at in range(1, next(calls)):
        calls, copy = count(1), shutil.copytree(path, tmp_path / str(fails_at) / "queue")
        with suppress(OSError, PersistentQueueError):
            call_on(disk, repair, copy)
        sizes = {name.stat().st_size for name in copy.glob("data/*.damaged")}
        assert sizes <= {each.stat().st_size for each in segment_files(copy)}
        report = repair(copy)
        assert report.kept == expected or not report.lost  # its new log was complete before
        assert {str(name.relative_to(copy)) for name in copy.rglob("*.damaged")} == {*expected}


def far(tmp_path: Path, name: str, *, adopted: bool) -> Path:
    """Make a queue whose segments are elsewhere, with three published items, and flip a bit in ``data.path``.

    Its owner is killed behind the adoption, or closes the queue before the items come. Return its directory.
    """
    queue = PersistentQueue(tmp_path / "queues", name, data_path=tmp_path / "media")
    if not adopted:
        queue.close()
    with Producer(tmp_path / "queues", name) as producer:
        producer.enqueue_many([b"0", b"1", b"2"])
        producer.flush()
    if adopted:
        with queue.session() as session:
            assert session.dequeue(timeout=10.0) == b"0"
            session.rollback()
        crash(queue)
    flip(tmp_path / "queues" / name / "data.path", 5)
    return tmp_path / "queues" / name


@pytest.mark.parametrize("adopted", [False, True], ids=["published", "adopted"])
def test_a_repair_ties_a_queue_to_no_place_without_its_items(tmp_path: Path, adopted: bool) -> None:
    """If ``data.path`` is damaged, a repair needs the location: the own directory, which was never one, is refused.

    This holds although the log names no segment that the owner has made. With the location, no item is lost.
    """
    path = far(tmp_path, "q", adopted=adopted)
    with pytest.raises(DataPathError, match="name the directory that holds the segments"):
        repair(path)
    assert repair(path.parent, "q", data_path=tmp_path / "media").lost == ()
    with PersistentQueue(path) as queue:
        assert drain(queue) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("lost", ["damaged", "gone", "both damaged"])
def test_a_repair_believes_the_location_that_it_is_told(tmp_path: Path, lost: str) -> None:
    """A queue without segments, whose ``queue.id`` is damaged or gone beside published files, is tied to the location
    that the caller names. It is refused while there is a segment, which may be that of another queue, but not for one
    that was set aside."""
    path, media = far(tmp_path, "q", adopted=False), tmp_path / "media" / "q"
    if lost != "both damaged":
        flip(path / "data.path", 5)  # back to what it was
    (media / "data").mkdir(exist_ok=True)
    (media / "data" / "000000000008.seg.damaged").write_bytes(b"set aside")
    (media / "data" / "000000000009.seg").write_bytes(b"perhaps of another queue")
    (media / "queue.id").unlink() if lost == "gone" else (media / "queue.id").write_bytes(b"damaged")
    with pytest.raises((DataPathError, DataMissingError), match="data_path="):
        repair(path)
    with pytest.raises(DataPathError, match="expected segments of this queue in"):
        repair(path.parent, "q", data_path=tmp_path / "media")
    (media / "data" / "000000000009.seg").unlink()
    report = repair(path.parent, "q", data_path=tmp_path / "media")
    assert report.problems and (report.items, report.lost) == (3, ())
    assert taken_out(path) == [b"0", b"1", b"2"]


def test_a_repair_ties_a_queue_to_no_location_of_another_one(tmp_path: Path) -> None:
    """A location whose ``queue.id`` names another queue is refused, also if the log names no segment."""
    path = far(tmp_path, "q", adopted=False)
    far(tmp_path / "other", "q", adopted=False)
    with pytest.raises(DataPathError, match="name the directory that holds the segments"):
        repair(path.parent, "q", data_path=tmp_path / "other" / "media")


@pytest.mark.parametrize("has_log", [False, True])
def test_a_damaged_id_where_no_segments_are(tmp_path: Path, has_log: bool) -> None:
    """A damaged ``queue.id`` in a directory with a log does not matter.

    In a directory with neither a log nor segments, a repair sets it aside, so that a queue can be made there.
    """
    path = tmp_path / "queue"
    if has_log:
        PersistentQueue(path).close()
    else:
        path.mkdir()
    (path / "queue.id").write_bytes(b"damaged")
    report = repair(path)
    assert (report.kept, len(report.problems)) == (((), 0) if has_log else (("queue.id.damaged",), 1))
    PersistentQueue(path).close()


def test_a_repair_finds_an_adopted_file_that_was_not_renamed(tmp_path: Path) -> None:
    """A file that a frame has adopted shows the location also before its rename; a directory without it is refused."""
    path = far(tmp_path, "q", adopted=True)
    media = tmp_path / "media" / "q"
    (name,) = os.listdir(media / "data")
    adoption = next(
        each
        for frame in replay_of(path).frames
        for transaction in frame.transactions
        for each in transaction
        if isinstance(each, Adoption)
    )
    (media / "data" / name).rename(media / "inbox" / adoption.name)
    (tmp_path / "wrong" / "q" / "data").mkdir(parents=True)
    with pytest.raises(DataPathError, match="segments of this queue"):
        repair(path.parent, "q", data_path=tmp_path / "wrong")
    assert repair(path.parent, "q", data_path=tmp_path / "media").lost == ()
    with PersistentQueue(path) as queue:
        assert drain(queue) == [b"0", b"1", b"2"]


# --- published files --------------------------------------------------------------------------------------------------


def publish(path: Path, *items: bytes) -> list[Path]:
    """Publish each item in a file of its own, and return the files in their order."""
    with Producer(path) as producer:
        for item in items:
            producer.enqueue(item)
            producer.flush()
    return sorted((path / "inbox").iterdir())


def test_damage_in_a_published_file(path: Path) -> None:
    """A repair that adopts a damaged file reports its loss: the queue has no damage afterwards."""
    files = publish(path, b"first" * 100, b"second" * 100, b"third" * 100)
    flip(files[1], 200)
    (problem,) = check(path).problems
    assert str(files[1]) in problem
    report = repair(path)
    assert (report.items, report.lost) == (62, ((61, 1),))
    assert any("no intact block holds the sequences 61 to 61" in problem for problem in report.problems)
    assert any(name.startswith("data/") for name in report.kept)
    assert taken_out(path) == [*ITEMS, b"first" * 100, b"third" * 100]
    assert repair(path).problems == ()


def test_damage_before_and_in_a_published_file(path: Path) -> None:
    """The report has the losses of the queue itself, and those of the files that were adopted."""
    flip(segment_files(path)[1], 130)
    (file,) = publish(path, b"published" * 100)
    flip(file, 200)
    report = repair(path)
    (first, _), last = report.lost
    assert (last, report.items) == ((60, 1), 59)
    assert taken_out(path) == ITEMS[:first] + ITEMS[first + 1 :]


def test_damage_that_another_owner_holds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process opens the queue before the adopted damage is repaired, the report still has the damage."""

    def refuse(*_: object) -> None:
        raise QueueLockedError(str(path), None, None, None)

    (file,) = publish(path, b"published" * 100)
    flip(file, 200)
    monkeypatch.setattr("persistentqueue.recovery.check._salvage_adopted", refuse)
    report = repair(path)
    assert (len(report.problems), report.lost, report.items) == (1, (), 60)
    monkeypatch.undo()
    assert repair(path).lost == ((60, 1),)


def test_damage_in_a_published_file_without_room(tmp_path: Path) -> None:
    """A damaged file that stays in the inbox, since a limit leaves no room for it, is a problem of the report."""
    with PersistentQueue(tmp_path / "queue", max_items=1) as queue:
        put(queue, b"only")
    (file,) = publish(tmp_path / "queue", b"published" * 100)
    flip(file, 200)
    report = repair(tmp_path / "queue")
    assert (len(report.problems), report.lost, report.items) == (1, (), 1)
    assert file.exists() and str(file) in report.problems[0]

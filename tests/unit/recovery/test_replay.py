"""Openings after a crash or damage: one driver, and a table of damages."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    CorruptionError,
    DiskFullError,
    PersistentQueue,
    Producer,
    UnsupportedFormatError,
    check,
)
from persistentqueue.core import header as header_format
from persistentqueue.core.frame import LOG_MAGIC, Frame, find_frame
from persistentqueue.core.header import HEADER_BYTES, decode_header, encode_header
from persistentqueue.storage import log_reader
from persistentqueue.storage.log_reader import Replay, read_log
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import IN_CACHE, crash, drain, flip, log_file, put, put_each, segment_files, survivors

ITEMS = [b"item %d" % n for n in range(20)]


def reopen(path: Path, **settings: Any) -> tuple[PersistentQueue, list[bytes]]:
    """Open the queue, and return it with all items, which are dequeued."""
    queue = call_on(IN_CACHE, PersistentQueue, path, **settings)
    return queue, drain(queue)


def replay_of(path: Path) -> Replay:
    """Return the replay of the log in the directory."""
    return read_log(DISK, str(log_file(path)))


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """Make a queue whose owner crashed after 20 small commits, and return its path."""
    path = tmp_path / "crashed"
    put_each(queue := PersistentQueue(path, log_bytes=8192, segment_bytes=4096), ITEMS)
    crash(queue)
    return path


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """Make a queue that was closed cleanly with 20 items in it, and return its path."""
    path = tmp_path / "sealed"
    with PersistentQueue(path, log_bytes=8192, segment_bytes=4096) as queue:
        put_each(queue, ITEMS)
    return path


def test_crashed_queue_opens_with_everything(crashed: Path) -> None:
    """After a crash all acknowledged items are there, and the report says what was read."""
    queue, items = reopen(crashed)
    with queue:
        assert items == ITEMS
        report = queue.recovery
        assert (report.clean, report.transactions, report.torn_bytes, report.missing_bytes) == (False, 20, 0, 0)
        assert report.redone_bytes > 0
        assert report.swept == report.set_aside == ()


def test_recovery_does_not_need_the_page_cache(crashed: Path) -> None:
    """Small transactions are recovered from the log alone, even if their segment never reached the disk."""
    (segment,) = segment_files(crashed)
    with segment.open("r+b") as file:
        file.truncate(HEADER_BYTES)
    queue, items = reopen(crashed)
    queue.close()
    assert items == ITEMS


def test_segment_that_vanished_is_made_again_from_the_log(crashed: Path) -> None:
    """Small transactions are recovered from the log even if the whole file of their segment is gone."""
    (segment,) = segment_files(crashed)
    segment.unlink()
    queue, items = reopen(crashed)
    queue.close()
    assert items == ITEMS


def test_recovery_run_twice_or_cut_short_gives_the_same(crashed: Path, tmp_path: Path) -> None:
    """A recovery that dies at any step and runs again finds the same items."""

    class DeathError(BaseException):
        pass

    steps: list[str] = []
    with call_on(
        replace(DISK, failpoint=steps.append), PersistentQueue, shutil.copytree(crashed, tmp_path / "count" / "queue")
    ):
        count = len(steps)
    assert count >= 6
    for n in range(count):
        path = shutil.copytree(crashed, tmp_path / f"dies{n}" / "queue")
        left = [n]

        def failpoint(name: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise DeathError

        with pytest.raises(DeathError):
            call_on(replace(DISK, failpoint=failpoint), PersistentQueue, path)
        queue, items = reopen(path)
        queue.close()
        assert items == ITEMS


@pytest.mark.unwatched
def test_log_cut_at_every_byte(crashed: Path, tmp_path: Path) -> None:
    """An unsealed log that is cut behind its checkpoint opens with an exact prefix of its commits, and the cut is
    reported."""
    replay = replay_of(crashed)
    ends = [frame.end for frame in replay.frames[1:]]
    near = {end + near for end in ends for near in (-1, 0, 1, 8)}
    for length in sorted({*range(replay.frames[0].end, replay.end + 20, 13), *near}):
        path = shutil.copytree(crashed, tmp_path / f"cut{length}" / "queue")
        with log_file(path).open("r+b") as file:
            file.truncate(length)
        queue, items = reopen(path)
        with queue:
            assert items == ITEMS[: sum(end <= length for end in ends)]
            assert queue.recovery.missing_bytes == 8192 - length
            assert queue.recovery.torn_bytes == (
                0 if length in ends or length == ends[0] else queue.recovery.torn_bytes
            )
            assert any(name.endswith(".log") for name in queue.recovery.set_aside)
        assert len(list((path / "log").glob("*.damaged"))) == 1
        shutil.rmtree(path)


@pytest.mark.damages
def test_log_cut_before_its_first_commit(crashed: Path) -> None:
    """A log that is cut inside its header or checkpoint is refused: no crash leaves such a log."""
    for length in range(replay_of(crashed).frames[0].end - 1, -1, -1):
        with log_file(crashed).open("r+b") as file:
            file.truncate(length)
        with pytest.raises(CorruptionError) as caught:
            PersistentQueue(crashed)
        assert caught.value.file == str(log_file(crashed))


@pytest.mark.damages
def test_sealed_log_cut_or_flipped(sealed: Path) -> None:
    """A sealed log that is cut in its used part, or has a bit flipped there, is refused and stays unchanged."""
    log = log_file(sealed)
    data = log.read_bytes()
    end = replay_of(sealed).end
    for length in range(0, end, 7):
        log.write_bytes(data[:length])
        with pytest.raises(CorruptionError):
            PersistentQueue(sealed)
        assert log.read_bytes() == data[:length]
    for offset in range(end):
        log.write_bytes(data)
        flip(log, offset, 1 << offset % 8)
        with pytest.raises(CorruptionError) as caught:
            PersistentQueue(sealed)
        assert (caught.value.file, caught.value.offset) == (str(log), 0 if offset < HEADER_BYTES else HEADER_BYTES)


def test_unused_space_is_of_no_interest(sealed: Path) -> None:
    """Damage behind the end of a sealed log, or the loss of that space, changes nothing."""
    log = log_file(sealed)
    flip(log, replay_of(sealed).end + 100)
    with log.open("r+b") as file:
        file.truncate(replay_of(sealed).end + 200)
    queue, items = reopen(sealed)
    queue.close()
    assert items == ITEMS


@pytest.mark.unwatched
@pytest.mark.damages
def test_damage_before_valid_frames_is_refused(crashed: Path) -> None:
    """An invalid frame before a valid one is damage to acknowledged data: the opening is refused."""
    replay = replay_of(crashed)
    log = log_file(crashed)
    data = log.read_bytes()
    last = replay.frames[-1]
    for offset in range(HEADER_BYTES, last.offset, 3):
        log.write_bytes(data)
        flip(log, offset, 0x10)
        with pytest.raises(CorruptionError, match="damaged at offset"):
            PersistentQueue(crashed)
    assert not check(crashed).ok
    with pytest.raises(CorruptionError, match=r"frame \d+ at offset"):
        flip(log, offset, 0x10)
        flip(log, replay.frames[5].offset + 3)
        PersistentQueue(crashed)


@pytest.mark.unwatched
def test_damage_to_the_last_frame_is_reported_as_torn(crashed: Path, tmp_path: Path) -> None:
    """Damage to the last frame of an unsealed log looks like a torn write: the frame is dropped and reported, and the
    log is kept aside."""
    last = replay_of(crashed).frames[-1]
    for offset in range(last.offset, last.end):
        path = shutil.copytree(crashed, tmp_path / "torn" / "queue")
        flip(log_file(path), offset, 0x80)
        before = log_file(path)
        evidence = before.read_bytes()
        queue, items = reopen(path)
        with queue:
            assert items == ITEMS[:-1]
            assert queue.recovery.torn_bytes > 0
        assert before.with_name(before.name + ".damaged").read_bytes() == evidence
        shutil.rmtree(path)


@pytest.mark.damages
def test_missing_frame_breaks_the_chain(crashed: Path) -> None:
    """Frames are chained and bound to their place: behind a removed frame the log ends, and a frame in another's place
    is refused."""
    replay = replay_of(crashed)
    log = log_file(crashed)
    data = log.read_bytes()
    one, two = replay.frames[5], replay.frames[6]
    log.write_bytes(data[: one.offset] + data[two.offset :])
    queue = PersistentQueue(shutil.copytree(crashed, crashed.parent / "moved" / "queue"))
    with queue:
        assert drain(queue) == ITEMS[:4]  # moved frames are not valid in their new place, so the log ends there
        assert queue.recovery.torn_bytes > 0
    forged = bytearray(data)
    forged[two.offset : two.end] = data[one.offset : one.end]
    log.write_bytes(bytes(forged))
    with pytest.raises(CorruptionError):
        PersistentQueue(crashed)


@pytest.mark.damages
def test_older_log_under_a_younger_name(crashed: Path) -> None:
    """A log that was renamed to another generation is refused."""
    log = log_file(crashed)
    log.rename(log.with_name("000000000009.log"))
    with pytest.raises(CorruptionError, match="named by"):
        PersistentQueue(crashed)


@pytest.mark.damages
def test_log_that_is_gone(crashed: Path) -> None:
    """Segments without a log are not taken for a new queue: the opening is refused."""
    log_file(crashed).unlink()
    with pytest.raises(CorruptionError, match="expected a log"):
        PersistentQueue(crashed)
    assert not check(crashed).ok


def test_newer_format(sealed: Path) -> None:
    """A newer format raises an error that names both versions, and the file stays unchanged."""
    log = log_file(sealed)
    data = log.read_bytes()
    header = decode_header(data, LOG_MAGIC, "")
    version = header_format.VERSION
    newer = encode_header(LOG_MAGIC, header, version=version + 1) + data[HEADER_BYTES:]
    log.write_bytes(newer)
    with pytest.raises(UnsupportedFormatError, match=rf"format version {version + 1}, .* up to version {version}"):
        PersistentQueue(sealed)
    assert log.read_bytes() == newer
    log.write_bytes(data)


def test_lower_generations_and_orphans_are_swept(crashed: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Leftovers of a crash that nothing refers to are deleted and reported, and foreign files stay."""
    older = log_file(crashed).read_bytes()
    with PersistentQueue(crashed, log_bytes=8192) as queue:
        crash(queue)
    log_file(crashed).with_name("000000000001.log").write_bytes(older)
    (segment,) = segment_files(crashed)
    shutil.copy(segment, segment.with_name("000000000007.seg"))
    (crashed / "data" / "notes.txt").write_text("mine")
    assert set(check(crashed).leftovers) == {"log/000000000001.log", "data/000000000007.seg", "data/notes.txt"}
    with caplog.at_level(logging.INFO, "persistentqueue"):
        queue, items = reopen(crashed)
    with queue:
        assert items == ITEMS
        assert queue.recovery.swept == ("log/000000000001.log", "data/000000000007.seg")
    assert sorted(path.name for path in (crashed / "data").iterdir()) == ["notes.txt"]
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_orphans_that_are_no_segments(crashed: Path) -> None:
    """An orphan whose beginning never reached the disk is swept, and one with other content is set aside."""
    (crashed / "data" / "000000000007.seg").write_bytes(bytes(100))
    (crashed / "data" / "000000000008.seg").write_bytes(b"junk" * 100)
    queue, items = reopen(crashed)
    with queue:
        assert (items, queue.recovery.swept) == (ITEMS, ("data/000000000007.seg",))
        assert queue.recovery.set_aside == ("data/000000000008.seg",)


def test_log_that_was_overwritten_as_a_spare_is_swept(crashed: Path) -> None:
    """A superseded log is swept whatever it contains. One that a power cut had mixed used to be set aside as
    evidence."""
    older = log_file(crashed).read_bytes()
    with PersistentQueue(crashed, log_bytes=8192) as queue:
        crash(queue)
    mixed = older[: replay_of(crashed).end - 10] + bytes(100)
    log_file(crashed).with_name("000000000001.log").write_bytes(mixed)
    queue, items = reopen(crashed)
    with queue:
        assert (items, queue.recovery.set_aside) == (ITEMS, ())
        assert queue.recovery.swept == ("log/000000000001.log",)


def test_orphans_of_a_torn_log_are_set_aside(crashed: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the log ends in a torn tail, an unknown segment is evidence: it is renamed and reported, not deleted."""
    (segment,) = segment_files(crashed)
    shutil.copy(segment, segment.with_name("000000000007.seg"))
    flip(log_file(crashed), replay_of(crashed).frames[-1].offset)
    with caplog.at_level(logging.INFO, "persistentqueue"):
        queue, items = reopen(crashed)
    with queue:
        assert items == ITEMS[:-1]
        assert queue.recovery.set_aside == ("data/000000000007.seg", "log/000000000001.log")
    assert (crashed / "data" / "000000000007.seg.damaged").exists()
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


@pytest.fixture
def drained(tmp_path: Path) -> Path:
    """Make a queue whose owner was killed behind a flush of ``kept`` to a drained segment, and return its path."""
    put(queue := PersistentQueue(tmp_path / "drained", inline_bytes=0), b"consumed")
    drain(queue)
    put(queue, b"kept")
    crash(queue)
    return tmp_path / "drained"


def test_a_drained_segment_of_a_torn_log_is_set_aside(drained: Path) -> None:
    """If the log ends in a torn tail, blocks behind the end of a drained segment are evidence, too: the trim of the
    opening deleted their file."""
    (segment,) = segment_files(drained)
    content = segment.read_bytes()
    flip(log_file(drained), replay_of(drained).frames[3].offset + 40)
    assert f"data/{segment.name}" in check(drained).leftovers
    with PersistentQueue(drained) as queue:
        assert f"data/{segment.name}" in queue.recovery.set_aside
    assert segment.with_name(f"{segment.name}.damaged").read_bytes() == content


@pytest.mark.parametrize("sync", [True, False])
def test_an_opening_that_sets_a_drained_segment_aside_may_be_cut_short(tmp_path: Path, sync: bool) -> None:
    """An opening that ends before its checkpoint, on a full disk for example, leaves each frame with its blocks.
    Without syncs, a frame that lacks them would be dropped, with all behind it."""

    def failpoint(name: str) -> None:
        if name == "trim.2 write generation":
            raise OSError(errno.ENOSPC, "planted")

    put(queue := PersistentQueue(path := tmp_path / "queue", inline_bytes=0, sync=sync), b"consumed")
    drain(queue)
    with queue.session() as session:
        session.flush(marker=("marker", 7))
    put(queue, b"torn")
    crash(queue)
    (segment,) = segment_files(path)
    flip(log_file(path), replay_of(path).frames[-1].offset + 40)
    with pytest.raises(DiskFullError):
        call_on(replace(DISK, failpoint=failpoint), PersistentQueue, path)
    with PersistentQueue(path) as queue:
        assert (queue.recovery.lost_transactions, queue.marker("marker")) == (0, 7)
    assert b"torn" in segment.with_name(f"{segment.name}.damaged").read_bytes()


@pytest.mark.parametrize("damage", ["header", "none behind", "published"])
def test_drained_segments_of_a_torn_log(drained: Path, damage: str) -> None:
    """A drained segment of a torn log is set aside if it cannot be read. It is deleted if it has no other block, or if
    it was published, since nothing is appended to such a file."""
    if damage == "published":
        with Producer(drained) as producer:
            producer.enqueue(b"published")
            producer.flush()
        drain(queue := PersistentQueue(drained))
        put(queue, b"torn")
        crash(queue)
    word = b"published" if damage == "published" else b"consumed"
    (segment,) = (path for path in segment_files(drained) if word in path.read_bytes())
    content = segment.read_bytes()
    flip(log_file(drained), replay_of(drained).frames[-1].offset + 40)
    if damage == "header":
        flip(segment, 20)
    elif damage == "none behind":
        segment.write_bytes(content[: content.index(word) + len(word)])
    with PersistentQueue(drained) as queue:
        assert (f"data/{segment.name}" in queue.recovery.set_aside) == (damage == "header")
    assert not segment.exists()


def test_payloads_that_copy_the_log(tmp_path: Path) -> None:
    """Items that contain copies of the log's own frames are plain data, even in a torn tail."""
    path = tmp_path / "copies"
    put_each(queue := PersistentQueue(path, log_bytes=65536), ITEMS[:3])
    frames = log_file(path).read_bytes()[: replay_of(path).end]
    put_each(queue, [frames, frames[HEADER_BYTES:]])
    crash(queue)
    last = replay_of(path).frames[-1]
    flip(log_file(path), last.offset + 9)  # the frame's number; the rest of the frame is a copy of valid frames
    queue, items = reopen(path)
    queue.close()
    assert items == [*ITEMS[:3], frames]


def test_recycled_log_hides_its_former_life(tmp_path: Path) -> None:
    """Frames of an older generation that a recycled file still contains are never read."""
    path = tmp_path / "recycled"
    items = [item * 200 for item in ITEMS]  # many pages, since a new generation overwrites the rest of its first page
    through_cache = replace(DISK, open_direct=lambda path: None)  # a direct write overwrites the rest of its page
    queue = call_on(through_cache, PersistentQueue, path, log_bytes=65536)
    for n in range(10, 0, -2):
        put_each(queue, items[:n])
        queue.trim()
    last = b"of another length" * 300
    put_each(queue, [last])
    crash(queue)
    replay = replay_of(path)
    assert log_file(path).read_bytes()[replay.end + 8 :].count(b"PQFr") > 0
    assert replay.torn_bytes == 0
    queue, found = reopen(path)
    queue.close()
    assert found == [*(item for n in (10, 8, 6, 4, 2) for item in items[:n]), last]


@pytest.mark.parametrize("damage", ["flipped", "gone", "cut", "no header"])
def test_unsynced_log_ends_where_blocks_are_missing(tmp_path: Path, damage: str) -> None:
    """With ``sync=False`` the queue opens with the prefix of commits whose blocks are all there, and reports the number
    of the lost ones."""
    path = tmp_path / "unsynced"
    put_each(queue := PersistentQueue(path, sync=False, segment_bytes=200, inline_bytes=0), ITEMS)
    crash(queue)
    segment = segment_files(path)[2]
    if damage == "flipped":
        flip(segment, 70)
    elif damage == "gone":
        segment.unlink()
    elif damage == "cut":
        with segment.open("r+b") as file:
            file.truncate(80)
    else:
        flip(segment, 3)
    queue, items = reopen(path, sync=False)
    with queue:
        assert 0 < len(items) < len(ITEMS)
        assert items == ITEMS[: len(items)]
        assert queue.recovery.lost_transactions == len(ITEMS) - len(items)
        assert queue.recovery.set_aside
        put(queue, b"on")
        assert drain(queue) == [b"on"]


@pytest.mark.parametrize("lost", ["file", "header"])
def test_unsynced_log_carries_small_groups(tmp_path: Path, lost: str) -> None:
    """With ``sync=False`` the small groups whose blocks the log contains are there, whatever a power cut took of their
    segment."""
    path = tmp_path / "unsynced"
    put_each(queue := PersistentQueue(path, sync=False, segment_bytes=200), ITEMS)
    crash(queue)
    segment = segment_files(path)[2]
    if lost == "file":
        segment.unlink()
    else:
        segment.write_bytes(bytes(64) + segment.read_bytes()[64:])
    queue, items = reopen(path, sync=False)
    with queue:
        assert items == ITEMS
        assert queue.recovery.lost_transactions == 0


def test_unsynced_log_may_lose_frames_in_any_order(tmp_path: Path) -> None:
    """With ``sync=False`` a missing frame before a valid one ends the log. The queue opens; ``check`` reports it."""
    path = tmp_path / "unsynced"
    put_each(queue := PersistentQueue(path, sync=False), ITEMS)
    crash(queue)
    flip(log_file(path), replay_of(path).frames[4].offset + 20)
    (problem,) = check(path).problems
    assert "expected a valid frame, since others follow, found an invalid one" in problem
    queue, items = reopen(path)
    with queue:
        assert items == ITEMS[:3]
        assert queue.recovery.torn_bytes > 0


@pytest.mark.parametrize("sync", [True, False])
def test_the_end_of_a_log_is_searched_once(tmp_path: Path, sync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is searched once for frames behind its end: a search of 32 MiB takes 10 ms or more, also in a look."""
    put(queue := PersistentQueue(tmp_path / "queue", sync=sync), b"x")
    crash(queue)
    searches: list[int] = []

    def find(data: bytes, start: int, salt: int, file: str) -> Frame | None:
        searches.append(start)
        return find_frame(data, start, salt, file)

    monkeypatch.setattr(log_reader, "find_frame", find)
    assert [replay_of(tmp_path / "queue").end] == searches


# --- damaged segments ------------------------------------------------------------------------------------------------


def make_blocks(path: Path, **settings: Any) -> tuple[list[bytes], Path]:
    """Make a queue with ten blocks of three items each in one segment. Return the items and the path of the segment."""
    items = [b"%02d" % n + b"-" * (n % 4) for n in range(30)]
    with PersistentQueue(path, log_bytes=4096, segment_bytes=4096, **settings) as queue:
        for n in range(0, 30, 3):
            put(queue, *items[n : n + 3])
    (segment,) = segment_files(path)
    return items, segment


@pytest.mark.unwatched
@pytest.mark.damages
def test_every_byte_of_a_segment(tmp_path: Path) -> None:
    """A flipped bit costs only the items of its own block and is raised once. All other items come out, in order."""
    items, segment = make_blocks(tmp_path / "original")
    used = replay_of(tmp_path / "original").checkpoint.segments[0].end
    lost_counts = set()
    for offset in range(0, used, 3):
        path = shutil.copytree(tmp_path / "original", tmp_path / "flipped" / "queue")
        flip(path / "data" / segment.name, offset, 1 << offset % 8)
        with call_on(IN_CACHE, PersistentQueue, path) as queue:
            found, errors = survivors(queue)
            assert len(errors) == 1, offset
            assert errors[0].file == str(path / "data" / segment.name)
            assert abs(errors[0].offset - offset) < 100
            lost = [item for item in items if item not in found]
            assert [item for item in items if item in found] == found
            assert lost == ([] if offset < HEADER_BYTES else items[items.index(lost[0]) :][:3])
            assert queue.stats().damaged == len(lost)
            lost_counts.add(len(lost))
        shutil.rmtree(path)
    assert lost_counts == {0, 3}


@pytest.mark.damages
@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (lambda path: path.unlink(), set(range(30))),
        (lambda path: path.write_bytes(b""), set(range(30))),
        (lambda path: path.write_bytes(path.read_bytes()[:130]), None),
        (lambda path: path.write_bytes(path.read_bytes()[:64] + bytes(path.stat().st_size - 64)), set(range(30))),
    ],
    ids=["gone", "empty", "cut", "zeros"],
)
def test_segment_that_is_gone_or_cut(tmp_path: Path, damage: Callable[[Path], None], lost: set[int] | None) -> None:
    """The items of a lost or cut file are reported as damaged, and items that are enqueued later come out."""
    items, segment = make_blocks(tmp_path / "q")
    damage(segment)
    with PersistentQueue(tmp_path / "q") as queue:
        put(queue, b"behind")
        found, errors = survivors(queue)
        assert 1 <= len(errors) <= 2
        assert found[-1] == b"behind"
        gone = {n for n, item in enumerate(items) if item not in found}
        assert gone == (set(range(3, 30)) if lost is None else lost)
        assert queue.stats().damaged == len(gone)


@pytest.mark.damages
@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
def test_damage_among_many(tmp_path: Path, memory_bytes: int) -> None:
    """A large dequeue first returns the items before the damage, then raises once, then continues behind it."""
    items, segment = make_blocks(tmp_path / "q")
    data = segment.read_bytes()
    second = data.index(b"PQBk", data.index(b"PQBk") + 1)
    flip(segment, second + 50)
    with PersistentQueue(tmp_path / "q", memory_bytes=memory_bytes) as queue, queue.session() as session:
        assert session.dequeue_many(100) == items[:3]
        with pytest.raises(CorruptionError):
            session.dequeue_many(100)
        assert session.dequeue_many(100) == items[6:]
        session.flush()
        assert queue.stats().damaged == 3
        assert len(queue) == 0
    with PersistentQueue(tmp_path / "q") as queue:
        assert queue.stats().ready == 3  # neither consumed nor delivered: the damage is met again, and kept
        assert survivors(queue)[0] == []


@pytest.mark.damages
def test_browsing_damage(tmp_path: Path) -> None:
    """A browse raises at a damaged block once, and another browse continues behind it."""
    items, segment = make_blocks(tmp_path / "q")
    flip(segment, HEADER_BYTES + 46)
    with PersistentQueue(tmp_path / "q", memory_bytes=0) as queue:
        with pytest.raises(CorruptionError):
            list(queue.browse())
        assert list(queue.browse()) == items[3:]
        assert len(queue) == 27


@pytest.mark.damages
def test_two_damages_in_one_segment(tmp_path: Path) -> None:
    """Several damaged headers cost exactly their own blocks: the ordinals of the blocks behind them tell which."""
    items, segment = make_blocks(tmp_path / "q", memory_bytes=0)
    data = segment.read_bytes()
    starts = [n for n in range(len(data)) if data.startswith(b"PQBk", n)]
    for block in (0, 3, 4, 9):
        flip(segment, starts[block] + 8)
    with PersistentQueue(tmp_path / "q", memory_bytes=0) as queue:
        found, errors = survivors(queue)
    assert found == items[3:9] + items[15:27]
    assert len(errors) == 3  # blocks 3 and 4 are one damage: neither header can be believed


@pytest.mark.damages
def test_block_that_another_one_replaced(tmp_path: Path) -> None:
    """A block that is copied over another of the same length, or into another segment, is never delivered."""
    with PersistentQueue(tmp_path / "q", segment_bytes=HEADER_BYTES + 120) as queue:
        put_each(queue, [b"aa", b"bb", b"cc", b"dd"])
    one, two = segment_files(tmp_path / "q")
    data = bytearray(one.read_bytes())
    first, second = data.index(b"PQBk"), data.rindex(b"PQBk")
    length = second - first
    data[second : second + length] = data[first : first + length]
    one.write_bytes(bytes(data))
    two.write_bytes(two.read_bytes()[:64] + bytes(data[first : first + length]) + two.read_bytes()[64 + length :])
    with PersistentQueue(tmp_path / "q") as queue:
        found, errors = survivors(queue)
    assert found == [b"aa", b"dd"]
    assert len(errors) == 2


def test_read_error_gives_everything_back(open_queue: QueueFactory) -> None:
    """If a read fails, nothing is held: the operating system's error is raised, and the next call tries again.

    Only ``EIO`` is damage: see ``test_bad_pages``.
    """
    failing = [False]

    def pread(fd: int, length: int, offset: int) -> bytes:
        if failing[0]:
            raise OSError(errno.ETIMEDOUT, "Connection timed out")
        return DISK.pread(fd, length, offset)

    queue = open_queue(disk=replace(DISK, pread=pread), memory_bytes=0, inline_bytes=0)
    put(queue, *ITEMS)
    with queue.session() as session:
        failing[0] = True
        with pytest.raises(OSError, match="timed out"):
            session.dequeue_many(5)
        failing[0] = False
        assert queue.stats().held == 0
        assert session.dequeue_many(100) == ITEMS
        session.rollback()


@pytest.mark.damages
def test_damaged_header_behind_a_whole_segment(tmp_path: Path) -> None:
    """A read over several segments that meets a damaged header in its middle raises an error. It used to pass over the
    header."""
    items = [b"%03d " % number * 50 for number in range(60)]
    with PersistentQueue(tmp_path / "q", segment_bytes=4096) as queue:
        put_each(queue, items)
    first, second = segment_files(tmp_path / "q")[:2]
    flip(second, 3)
    with PersistentQueue(tmp_path / "q") as queue, queue.session() as session:
        with pytest.raises(CorruptionError) as caught:
            session.dequeue_many(1000)
        assert (caught.value.file, caught.value.offset) == (str(second), 0)
        assert session.dequeue_many(1000) == items  # all items are intact
        assert first.exists()
        session.rollback()


def test_a_sync_that_fails_while_opening(directory: Path) -> None:
    """Data that an owner left in the operating system's page cache is not delivered if it cannot be made durable at the
    opening."""
    queue = PersistentQueue(directory, sync=False)
    put(queue, bytes(500_000))
    crash(queue)

    def fdatasync(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(BrokenQueueError):
        call_on(replace(DISK, fdatasync=fdatasync), PersistentQueue, directory, sync=False)
    with PersistentQueue(directory) as queue:
        assert drain(queue) == [bytes(500_000)]

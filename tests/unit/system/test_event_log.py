"""Messages to the program's log: recovery at INFO, remains of a crash at WARNING, damage at ERROR, each once."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import BrokenQueueError, CorruptionError, PersistentQueue, check, repair
from persistentqueue.core.header import HEADER_BYTES
from persistentqueue.system.disk import DISK, Disk
from tests.conftest import QueueFactory
from tests.support.queues import crash, drain, flip, log_file, put, put_each, segment_files
from tests.unit.engine.test_adoption import inbox, look, publish
from tests.unit.engine.test_compaction import LITTLE, sparse
from tests.unit.runtime.test_open_queue import Interruption

Heard = Callable[[], list[tuple[str, str]]]


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> Heard:
    """Return a function that returns the levels and messages logged since its last call."""
    caplog.set_level(logging.DEBUG)

    def hear() -> list[tuple[str, str]]:
        assert {record.name for record in caplog.records} <= {"persistentqueue"}
        found = [(record.levelname, record.getMessage()) for record in caplog.records]
        caplog.clear()
        return found

    return hear


def failing(name: str, error: BaseException, armed: list[bool]) -> Disk:
    """Return a disk on which this call fails once it is armed."""

    def call(*arguments: Any) -> Any:
        if armed:
            raise error
        return getattr(DISK, name)(*arguments)

    return replace(DISK, open_direct=lambda path: None, **{name: call})


# --- silence, and recovery -------------------------------------------------------------------------------------------


def test_a_queue_that_is_well_is_silent(open_queue: QueueFactory, directory: Path, heard: Heard) -> None:
    """Making, using, maintaining, closing and reopening a sound queue logs nothing."""
    queue = open_queue(**LITTLE)
    sparse(queue)
    queue.compact()
    queue.maintain()
    publish(directory, b"x")
    assert drain(queue)
    queue.close()
    open_queue().close()
    assert heard() == []


def test_recovery_is_reported_at_info(open_queue: QueueFactory, directory: Path, heard: Heard) -> None:
    """After a crash the report of the recovery is logged at INFO, and nothing above that level."""
    queue = open_queue()
    put(queue, b"a")
    crash(queue)
    queue = open_queue()
    assert heard() == [("INFO", f"{directory}: recovered {queue.recovery}")]


def test_a_torn_tail_is_no_damage(open_queue: QueueFactory, directory: Path, heard: Heard) -> None:
    """A torn tail is dropped with a WARNING that names the file in which it is kept."""
    queue = open_queue()
    put_each(queue, [b"a", b"b"])
    log = log_file(directory)
    end = queue.stats().log_bytes
    crash(queue)
    flip(log, end - 1)
    assert drain(open_queue()) == [b"a"]
    (info, _), (level, text) = heard()
    assert (info, level) == ("INFO", "WARNING")
    assert f"{directory}: the log ended in up to" in text and log.name in text


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.damages
def test_a_log_that_was_cut_is_damage(open_queue: QueueFactory, directory: Path, heard: Heard) -> None:
    """A log that was cut short is damage and logged at ERROR: no crash makes a log shorter."""
    queue = open_queue()
    put(queue, b"a")
    end = queue.stats().log_bytes
    crash(queue)
    with log_file(directory).open("r+b") as file:
        file.truncate(end)
    open_queue()
    assert [level for level, _ in heard()] == ["INFO", "ERROR"]


@pytest.mark.damages
def test_a_log_that_cannot_be_read(open_queue: QueueFactory, directory: Path, heard: Heard) -> None:
    """An opening that fails for damage logs the error that it raises; ``check`` and ``repair`` log nothing."""
    put(queue := open_queue(), b"a")
    queue.close()
    flip(log_file(directory), HEADER_BYTES + 5)
    with pytest.raises(CorruptionError) as caught:
        open_queue()
    assert heard() == [("ERROR", str(caught.value))]
    assert f"{log_file(directory)}: damaged at offset {HEADER_BYTES}" in str(caught.value)
    assert not check(directory).ok
    repair(directory)
    assert heard() == []


@pytest.mark.damages
def test_a_file_that_is_moved_aside(open_queue: QueueFactory, directory: Path, heard: Heard) -> None:
    """An unreadable file that nothing refers to is named at ERROR when it is set aside, with or without a crash."""
    for end in (PersistentQueue.close, crash):
        queue = open_queue()
        put(queue, b"x")
        end(queue)
        stray = directory / "data" / "000000000099.seg"
        stray.write_bytes(b"junk" * 100)
        queue = open_queue()
        assert [text for level, text in heard() if level == "ERROR"] == [
            f"{directory}: nothing refers to data/{stray.name}, which may hold items: renamed to *.damaged"
        ]
        queue.close()


@pytest.mark.damages
def test_a_block_that_cannot_be_read(open_queue: QueueFactory, directory: Path, heard: Heard) -> None:
    """Damage is logged once, with file and offset, however many consumers meet it; ``stats`` counts it once."""
    queue = open_queue()
    queue.subscribe("other")
    put(queue, b"damaged" * 10)
    put(queue, b"whole")
    queue.close()
    (segment,) = segment_files(directory)
    flip(segment, HEADER_BYTES + 60)
    queue = open_queue()
    for consumer in (queue, queue.subscribe("other")):
        with consumer.session() as session:
            with pytest.raises(CorruptionError) as caught:
                session.dequeue()
            assert session.dequeue() == b"whole"
            session.rollback()
    with pytest.raises(CorruptionError):
        list(queue.browse_all())
    assert heard() == [("ERROR", str(caught.value))]
    assert f"{segment}: damaged at offset {HEADER_BYTES}" in str(caught.value)
    assert (queue.stats().damage_found, queue.stats().damaged) == (1, 1)


@pytest.mark.damages
@pytest.mark.parametrize("at", [30, HEADER_BYTES + 60], ids=["header", "block"])
def test_a_compaction_that_meets_damage(open_queue: QueueFactory, directory: Path, heard: Heard, at: int) -> None:
    """Damage that a compaction meets is logged at once, and the dequeue that meets it later logs nothing."""
    queue = open_queue(**LITTLE)
    sparse(queue)
    queue.close()
    flip(segment_files(directory)[0], at)
    queue = open_queue(**LITTLE)
    queue.compact()
    ((level, text),) = heard()
    assert level == "ERROR" and str(segment_files(directory)[0]) in text
    with pytest.raises(CorruptionError, match="damaged at offset"):
        drain(queue)
    assert heard() == []
    assert queue.stats().damage_found == 1


@pytest.mark.damages
def test_a_publication_that_does_not_check_out(open_queue: QueueFactory, directory: Path, heard: Heard) -> None:
    """A damaged publication is logged and counted when it is set aside."""
    queue = open_queue()
    publish(directory, b"x")
    (name,) = inbox(directory)
    flip(directory / "inbox" / name, 20)
    look(queue)
    ((level, text),) = heard()
    assert level == "ERROR" and f"{directory / 'inbox' / name}: damaged at offset 0" in text
    assert queue.stats().damage_found == 1


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_sync_that_fails(open_queue: QueueFactory, directory: Path, heard: Heard) -> None:
    """A queue that breaks logs this once, with its path and the failure, and not at each later call."""
    armed: list[bool] = []
    queue = open_queue(disk=failing("pwritev", OSError(errno.EIO, "Input/output error"), armed))
    put(queue, b"a")
    armed.append(True)
    for _ in range(3):
        with pytest.raises(BrokenQueueError):
            put(queue, b"b")
    assert queue.stats().broken
    queue.close()
    ((level, text),) = heard()
    assert level == "ERROR" and text.startswith(f"{directory}: a sync or a log write failed ([Errno 5]")


def test_an_interrupted_commit(open_queue: QueueFactory, directory: Path, heard: Heard) -> None:
    """A queue that breaks because a commit was interrupted logs this once, too."""
    armed: list[bool] = []
    queue = open_queue(disk=failing("pwritev", Interruption(), armed))
    put(queue, b"a")
    armed.append(True)
    with pytest.raises(Interruption):
        put(queue, b"b")
    ((level, text),) = heard()
    assert level == "ERROR" and text.startswith(f"{directory}: whether a flush is durable is unknown")


def test_maintenance_that_fails(open_queue: QueueFactory, directory: Path, heard: Heard) -> None:
    """A failure of maintenance is logged at WARNING, once for each cause, although maintenance is tried again."""
    armed: list[bool] = []
    error = OSError(errno.EACCES, "Permission denied")
    queue = open_queue(pool_min_bytes=1, pool_max_bytes=2**20, disk=failing("listdir", error, armed))
    put(queue, b"a")
    armed.append(True)
    own = queue._maintenance
    for _ in range(3):
        own._maintain_by_itself()
    assert heard() == [("WARNING", f"{directory}: maintenance failed, and is tried again: {error}")]
    error.errno = errno.EIO
    own._tidy_by_itself(queue._open().groups)
    assert [level for level, _ in heard()] == ["WARNING"]
    armed.clear()
    queue.close()
    own._maintain_by_itself()
    assert heard() == []

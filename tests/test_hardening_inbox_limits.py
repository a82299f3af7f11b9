"""However much others have published while nobody adopted, a time-out holds, and so do the limits."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from persistentqueue import CorruptionError, Producer, group
from persistentqueue.adopt import LOOK_NAMES, STEP_NAMES
from persistentqueue.disk import DISK, Disk

from .conftest import OpenQueue
from .support import drain

PUBLISHED = 3 * LOOK_NAMES


def publish_many(directory: Path, count: int) -> None:
    """So many flushes of one producer, without their syncs."""
    with Producer(directory, disk=replace(DISK, fdatasync=lambda fd: None, fsync=lambda fd: None)) as producer:
        for number in range(count):
            producer.enqueue(b"%d" % number)
            producer.flush()


def counting() -> tuple[Disk, list[str]]:
    """A disk, and what is renamed with it out of an inbox."""
    renamed: list[str] = []

    def rename(source: str, target: str) -> None:
        if source.endswith(".seg"):
            renamed.append(source)
        DISK.rename(source, target)

    return replace(DISK, rename=rename), renamed


# --- row 24: what waits in the inbox, and how long that takes --------------------------------------------------------


def test_row_24_who_does_not_wait_adopts_a_bounded_part(open_queue: OpenQueue, directory: Path) -> None:
    """``dequeue()`` adopts a bounded part of what was published, flushes another, and all comes in its order."""
    disk, renamed = counting()
    queue = open_queue(disk=disk)
    publish_many(directory, PUBLISHED)
    found: list[bytes] = []
    with queue.session() as session:
        item = session.dequeue()
        assert item == b"0" and 0 < len(renamed) <= LOOK_NAMES
        found.append(item)
        before = len(renamed)
        session.flush()
        assert len(renamed) - before <= LOOK_NAMES
    while items := drain(queue):
        found += items
    assert found == [b"%d" % number for number in range(PUBLISHED)]
    assert len(renamed) == PUBLISHED


@pytest.mark.parametrize("timeout", [60.0, None])
def test_row_24_an_item_is_returned_once_it_is_there(
    open_queue: OpenQueue, directory: Path, timeout: float | None
) -> None:
    """Who waits is given the first item after one step, and leaves the rest to later calls."""
    disk, renamed = counting()
    queue = open_queue(disk=disk)
    publish_many(directory, PUBLISHED)
    with queue.transaction() as session:
        assert session.dequeue(timeout=timeout) == b"0"
        assert 0 < len(renamed) <= STEP_NAMES
    for _ in range(8):
        drain(queue)
    assert len(renamed) == PUBLISHED


@pytest.mark.damages
def test_row_24_a_time_out_ends_the_adoption(
    open_queue: OpenQueue, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever waits in the inbox, adopting it ends with the step in which the time is over, and the next call goes on
    with what was listed then."""
    now, listed = [0.0], [0]

    def lstat(path: str) -> os.stat_result:
        if path.endswith(".seg"):
            now[0] += 0.05 / STEP_NAMES  # a step takes half of the time, by this clock
        return DISK.lstat(path)

    def listdir(path: str) -> list[str]:
        listed[0] += path.endswith("inbox")
        return DISK.listdir(path)

    disk, renamed = counting()
    queue = open_queue(disk=replace(disk, lstat=lstat, listdir=listdir))
    monkeypatch.setattr(group, "_now", lambda: now[0])
    for number in range(PUBLISHED):
        (directory / "inbox" / f"{1 + number:016x}-{number:016x}.seg").touch()
    publish_many(directory, 1)
    store = queue._open().store
    with queue.transaction() as session:
        for call in range(1, 4):
            began = now[0]
            with pytest.raises(CorruptionError):
                session.dequeue(timeout=0.1)
            assert now[0] - began <= 2 * 0.1
            assert len(renamed) <= 3 * STEP_NAMES * call
        assert listed[0] <= 4 and store.adopter.left
        store.adopter.damage.clear()
        found = None
        for _ in range(PUBLISHED // STEP_NAMES + 1):
            with suppress(CorruptionError):
                found = found or session.dequeue(timeout=0.1)
            store.adopter.damage.clear()
        assert found == b"0"
    assert listed[0] <= 6

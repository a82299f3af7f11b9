"""Closes of files that fail, each in turn, as on NFS: the descriptor is gone, and an error comes back."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from persistentqueue import (
    BrokenQueueError,
    DiskFullError,
    PersistentQueue,
    Producer,
    check,
    delete_queue,
    move_data,
    repair,
    transaction,
)
from persistentqueue.system.disk import DISK
from tests.crash.disk import SimulatedDisk
from tests.support.disks import using_disk
from tests.support.queues import crash, put_each

PATH, MEDIA, SPARE = "/queues", "/media", "/log.free"
CODES = (errno.EIO, errno.EINTR, errno.ENOSPC, errno.EDQUOT)
ITEMS = [b"%4d" % number * 100 for number in range(40)]
Program = Callable[[SimulatedDisk], None]


class FailingClose:
    """A fault of a simulated disk: the close with this number fails, counted from 1."""

    def __init__(self, number: int) -> None:
        self._left, self._code = number, CODES[number % len(CODES)]
        self.path = ""
        """The file whose close has failed."""

    def __call__(self, call: str, path: str) -> OSError | None:
        self._left -= call == "close"
        if call != "close" or self._left or self.path:
            return None
        self.path = path
        if path.endswith(SPARE) and self._code == errno.EIO:
            self._code = errno.EINTR  # with EIO its zeros are lost: see ``test_a_spare_that_has_lost_its_zeros``
        return OSError(self._code, "injected")  # as ``os.close`` raises it: without a path


def opened(name: str = "q", **settings: Any) -> PersistentQueue:
    """Open a queue whose segments, log and memory are small."""
    small = {"segment_bytes": 4096, "log_bytes": 4096, "pool_max_bytes": 20_000, "memory_bytes": 0}
    return PersistentQueue(PATH, name, **(small | settings))


def take(queue: PersistentQueue, most: int = 100) -> list[bytes]:
    """Dequeue up to so many items, and flush."""
    with queue.transaction() as session:
        return session.dequeue_many(most)


def _live(_: SimulatedDisk) -> None:
    queue = opened()
    put_each(queue, ITEMS)
    assert take(queue, 10) == ITEMS[:10]
    queue.trim()
    queue.close()
    queue.close()
    queue = opened()
    put_each(queue, [b"more"])
    assert take(queue) == [*ITEMS[10:], b"more"]
    queue.maintain()
    queue.close()
    with opened() as queue:
        assert take(queue) == []


def _bounded(_: SimulatedDisk) -> None:
    settings: dict[str, Any] = {"max_disk_bytes": 200_000, "wipe": True, "inline_bytes": 0, "pool_min_bytes": 8192}
    for first in range(0, len(ITEMS), 10):
        with opened(**settings) as queue:
            put_each(queue, ITEMS[first : first + 10])
            queue.maintain()
            assert take(queue) == ITEMS[first : first + 10]


def _unsynced(_: SimulatedDisk) -> None:
    with opened(sync=False) as queue:
        put_each(queue, ITEMS)
        queue.sync()
        assert take(queue, 39) == ITEMS[:39]
    with opened(sync=False) as queue:
        assert take(queue) == ITEMS[39:]


def _compact(_: SimulatedDisk) -> None:
    with opened() as queue:
        put_each(queue, ITEMS)
        with queue.session() as session, queue.session() as keeper:
            kept = []
            for _number in range(10):
                kept += keeper.dequeue_many(1)
                session.dequeue_many(3)
            session.flush()
            keeper.rollback()
        assert queue.peek(100) == kept
        assert queue.compact().segments > 0
        assert queue.peek(100) == kept
        assert queue.clear() == 10
        put_each(queue, [b"x"])
    with opened() as queue:
        assert take(queue) == [b"x"]


def _recover(disk: SimulatedDisk) -> None:
    with disk.undisturbed():
        queue = opened()
        put_each(queue, ITEMS)
        crash(queue)
    with opened() as queue:
        assert take(queue, 7) == ITEMS[:7]
        with disk.undisturbed():
            crash(queue)
    with opened() as queue:
        assert take(queue) == ITEMS[7:]


def _redo(disk: SimulatedDisk) -> None:
    with disk.undisturbed():
        queue = opened()
        put_each(queue, [b"small", b"items"])
        crash(queue)
        disk.unlink(next(name for name in disk.names if name.endswith(".seg")))
    with opened() as queue:
        assert take(queue) == [b"small", b"items"]


def _publish(disk: SimulatedDisk) -> None:
    with Producer(PATH, "q") as producer:
        for item in ITEMS[:3]:
            producer.enqueue(item)
            assert producer.flush(("m", int(item[:4])))
        assert not producer.flush(("m", 1))
        producer.enqueue(b"dropped")
        producer.rollback()
    with opened() as queue:
        assert take(queue) == ITEMS[:3]
        with Producer(PATH, "q") as producer:
            producer.enqueue_many(ITEMS[3:])
            producer.flush()
        assert queue.wait(0)
        assert take(queue) == ITEMS[3:]
        queue.maintain()
    with opened() as queue:
        assert take(queue) == []


def _several(_: SimulatedDisk) -> None:
    with opened("a") as source, opened("b") as target:
        put_each(source, ITEMS[:5])
        with transaction(source, target) as (out, into):
            into.enqueue_many(out.dequeue_many(3))
    with opened("b") as target, opened("a") as source:
        assert (take(source), take(target)) == (ITEMS[3:5], ITEMS[:3])


def _in_doubt(disk: SimulatedDisk) -> None:
    with disk.undisturbed():
        source, target = opened("a"), opened("b")
        put_each(source, ITEMS[:5])
        with transaction(source, target) as (out, into):
            into.enqueue_many(out.dequeue_many(3))
        for queue in (source, target):
            crash(queue)
    with opened("b") as target:
        assert take(target) == ITEMS[:3]
    with opened("a") as source:
        assert take(source) == ITEMS[3:5]


def _look(_: SimulatedDisk) -> None:
    with opened() as queue:
        put_each(queue, ITEMS)
        assert list(queue.browse()) == ITEMS
        assert [each.data for each in queue.view().browse()] == ITEMS
        queue.explain()
        queue.stats()
    assert check(PATH, "q").ok


def _repair(disk: SimulatedDisk) -> None:
    with disk.undisturbed(), opened() as queue:
        put_each(queue, ITEMS)
    segment = min(name for name in disk.names if name.endswith(".seg"))
    number = disk.names[segment]
    disk.inodes[number].cache[0] ^= 1
    assert not check(PATH, "q").ok
    assert repair(PATH, "q").lost == ()
    assert check(PATH, "q").ok
    with opened() as queue:
        assert take(queue) == ITEMS


def _renew(disk: SimulatedDisk) -> None:
    with disk.undisturbed(), opened() as queue:
        put_each(queue, ITEMS)
    log = next(name for name in disk.names if name.endswith(".log"))
    disk.unlink(log)
    repair(PATH, "q")
    with opened() as queue:
        assert take(queue) == ITEMS


def _move(_: SimulatedDisk) -> None:
    with opened(data_path=MEDIA) as queue:
        put_each(queue, ITEMS)
    move_data(PATH, "q", data_path=None)
    move_data(PATH, "q", data_path=f"{MEDIA}/other")
    with opened() as queue:
        assert take(queue) == ITEMS
    delete_queue(PATH, "q")


def _delete(_: SimulatedDisk) -> None:
    with opened() as queue:
        put_each(queue, ITEMS)
    delete_queue(PATH, "q")
    with opened() as queue:
        assert take(queue) == []


PROGRAMS = (
    *(_live, _bounded, _unsynced, _compact, _recover, _redo, _publish, _several, _in_doubt, _look, _repair, _renew),
    *(_move, _delete),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__.strip("_"))
def test_whichever_close_fails(program: Program) -> None:
    """Whichever close fails, each call succeeds, each item comes once, and no descriptor and no lock stays."""
    for number in count(1):
        disk = SimulatedDisk((PATH, MEDIA))
        disk.fault = fault = FailingClose(number)
        with using_disk(disk.disk):
            try:
                program(disk)
            except DiskFullError:  # a new queue, whose spare has found no room
                assert fault.path.endswith(SPARE)
                program(disk)
        assert not disk.descriptors, fault.path
        assert not disk.locked, fault.path
        if not fault.path:
            break
    assert number > 5


def test_a_spare_that_has_lost_its_zeros() -> None:
    """If a close reports that the zeros of the spare are lost, at most the queue breaks, and no acknowledged item goes.

    The next sync of that file reports it again, as Linux does.
    """
    disk = SimulatedDisk((PATH,))
    with using_disk(disk.disk):
        disk.fault = lambda call, path: OSError(errno.EIO, "") if call == "close" and path.endswith(SPARE) else None
        queue = opened(log_bytes=65536)
        disk.fault = None
        put_each(queue, ITEMS[:9])
        with pytest.raises(BrokenQueueError):
            queue.trim()
        queue.close()
        for crashed in (disk, disk.cut_power(lambda _: 0)):
            with using_disk(crashed.disk), opened() as queue:
                assert take(queue) == ITEMS[:9]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def test_a_spare_that_has_found_no_room(code: int) -> None:
    """If only the close of the spare tells that there is no room, ``DiskFullError`` tells it, and the lock is free."""
    disk = SimulatedDisk((PATH,))
    with using_disk(disk.disk):
        disk.fault = lambda call, path: OSError(code, "") if call == "close" and path.endswith(SPARE) else None
        with pytest.raises(DiskFullError):
            opened()
        assert not disk.descriptors
        disk.fault = None
        with opened() as queue:
            put_each(queue, ITEMS)
            assert take(queue) == ITEMS


def test_a_queue_that_broke_closes_with_its_own_error() -> None:
    """If a sync fails, and then every close, the error of the sync is told, and the queue can be opened again."""
    disk = SimulatedDisk((PATH,))
    failing = {"fdatasync": errno.EIO, "close": errno.EINTR}
    with using_disk(disk.disk):
        queue = opened()
        put_each(queue, ITEMS)
        disk.fault = lambda call, path: OSError(failing[call], call, path) if call in failing else None
        with pytest.raises(BrokenQueueError, match=r"\.seg"):
            queue.trim()
        queue.close()
        assert not disk.descriptors
        disk.fault = None
        with opened() as queue:
            assert take(queue) == ITEMS


def test_a_descriptor_is_closed_once() -> None:
    """A file that is read no more is closed once, even if its close fails: its number may be another file's."""
    disk = SimulatedDisk((PATH,))
    with using_disk(disk.disk), opened() as queue:
        put_each(queue, ITEMS)
        disk.fault = lambda call, path: OSError(errno.EIO, call, path) if call == "close" else None
        segments = queue._open()._store.segments
        assert segments.close_idle()
        assert not segments.close_idle()
        disk.fault = None
        assert take(queue) == ITEMS


def test_a_file_that_was_closed_before_is_told() -> None:
    """A close of a descriptor that is not open raises: that is a bug, and no answer of a file system."""
    reader, writer = os.pipe()
    os.close(writer)
    DISK.close(reader)
    with pytest.raises(OSError, match="Bad file descriptor"):
        DISK.close(reader)

"""Scenario H of DiskQueue: a disk whose n-th call fails, for every n, and the outcome of the flush under way."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import BrokenQueueError, DiskFullError, PersistentQueue, Session, check
from persistentqueue.system.disk import DISK, Buffers, Disk
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import IN_CACHE, crash, drain, put, put_each, spilling_session

CHANGING = ("open", "pwritev", "fdatasync", "fsync", "fallocate", "ftruncate", "rename", "unlink", "mkdir")
"""Calls that change something; ``open`` counts only if it may make a file."""


class Faulty:
    """A disk without syncs whose n-th changing call fails. If ``lasting``, all later calls fail until ``heal``.

    With ``half``, a failing write writes half of its bytes first.
    """

    def __init__(self, at: int, code: int, lasting: bool, half: bool) -> None:
        self.calls = 0
        self.failed = ""
        self._at, self._code, self._lasting, self._half = at, code, lasting, half
        self._healed = False
        doors: dict[str, Any] = {name: self._door(name) for name in CHANGING}
        self.disk: Disk = replace(IN_CACHE, **doors)

    def heal(self) -> None:
        """Let no further call fail."""
        self._healed = True

    def _door(self, name: str) -> Callable[..., Any]:
        real = getattr(IN_CACHE, name)

        def door(*arguments: Any) -> Any:
            if name == "open" and not arguments[1] & os.O_CREAT:
                return real(*arguments)
            self.calls += 1
            if not self._healed and (self.calls == self._at or (self._lasting and self.calls > self._at)):
                self.failed = self.failed or name
                if name == "pwritev" and self._half:
                    half_write(real, *arguments)
                raise OSError(self._code, os.strerror(self._code))
            return real(*arguments)

        return door


def half_write(write: Callable[..., int], fd: int, buffers: Buffers, offset: int, flags: int) -> None:
    """Write the first half of the bytes."""
    data = b"".join(buffers)
    write(fd, [data[: len(data) // 2]], offset, flags)


@dataclass
class Witness:
    """A queue on a faulty disk that is driven step by step, and the items that must be ready."""

    path: Path
    settings: dict[str, int]
    faulty: Faulty
    ready: list[bytes]

    def run(self) -> str:
        """Run the whole story, and return its outcome."""
        try:
            queue = call_on(self.faulty.disk, PersistentQueue, self.path, **self.settings)
        except (DiskFullError, BrokenQueueError, OSError):
            return self.reopen([self.ready], "not opened")
        try:
            for number in range(6):
                outcome = self.step(queue, number)
                if outcome is not None:
                    return outcome
            queue.close()
        except (DiskFullError, BrokenQueueError):
            assert queue.closed
            return self.reopen([self.ready], "not closed")
        finally:
            queue.close()
        return self.reopen([self.ready], "well")

    def step(self, queue: PersistentQueue, number: int) -> str | None:
        """Run one transaction and, at odd steps, a trim. Return None to go on, or the outcome."""
        items = [b"%d-%d" % (number, place) * 20 for place in range(1 + number % 3)]
        with spilling_session(queue, self.settings.get("inline_bytes", 1 << 20) + 100) as session:
            before = list(self.ready)
            taken = session.dequeue_many(number % 3)
            after = [*before[len(taken) :], *items]
            assert taken == before[: len(taken)]
            try:
                while items:
                    try:
                        session.enqueue(items[0])
                    except DiskFullError:
                        self.faulty.heal()
                        continue
                    del items[0]
                try:
                    session.flush()
                except DiskFullError:
                    assert list(queue.browse()) == before[len(taken) :]
                    assert (len(queue), queue.stats().held) == (len(before) - len(taken), len(taken))
                    self.faulty.heal()
                    session.flush()
            except BrokenQueueError:
                self.assert_broken(queue, session)
                queue.close()
                return self.reopen([before, after], "broken")
        self.ready = after
        try:
            assert list(queue.browse()) == after  # raises if the trim after the flush failed
            if number % 2:
                try:
                    queue.trim()
                except DiskFullError:
                    self.faulty.heal()
                    queue.trim()
        except BrokenQueueError:
            self.assert_broken(queue, queue.session())
            queue.close()
            return self.reopen([after], "broken")
        return None

    def assert_broken(self, queue: PersistentQueue, session: Session) -> None:
        """Assert that every call raises without a further call of the disk, although the disk works again."""
        self.faulty.heal()
        calls = self.faulty.calls
        for call in (
            session.flush,
            session.dequeue,
            lambda: session.dequeue_many(3),
            lambda: session.flush(marker=("m", 1)),
            queue.peek,
            queue.trim,
            lambda: put(queue, b"more"),
        ):
            with pytest.raises(BrokenQueueError):
                call()
        session.close()
        assert self.faulty.calls == calls

    def reopen(self, allowed: list[list[bytes]], outcome: str) -> str:
        """Open the queue again. Assert that it is in an allowed state, works, and leaves a consistent directory. Return
        ``outcome``."""
        with call_on(IN_CACHE, PersistentQueue, self.path, **self.settings) as queue:
            found = list(queue.browse())
            assert found in allowed
            put(queue, b"the next life")
            assert drain(queue) == [*found, b"the next life"]
        report = check(self.path)
        assert (report.problems, report.items) == ((), 0)
        return outcome


@pytest.mark.parametrize(
    ("code", "half", "lasting"),
    [(errno.ENOSPC, False, False), (errno.ENOSPC, True, True), (errno.EIO, False, True), (errno.EIO, True, False)],
    ids=["full for once", "full for long, half written", "broken for long", "broken for once, half written"],
)
@pytest.mark.parametrize(
    "settings",
    [{}, {"inline_bytes": 0}, {"segment_bytes": 10}, {"segment_bytes": 150, "inline_bytes": 0}],
    ids=["inline", "large and spilled", "rolls", "large, spilled and rolls"],
)
def test_h_every_call_fails(tmp_path: Path, settings: dict[str, int], code: int, half: bool, lasting: bool) -> None:
    """Whichever call fails, and however, a flush succeeds, can be repeated, or breaks the queue. It is never half
    done."""
    settings = {"log_bytes": 4096, **settings}
    outcomes: Counter[str] = Counter()
    at = 0
    while True:
        at += 1
        faulty = Faulty(at, code, lasting, half)
        root = tmp_path / f"{at}"
        try:
            outcome = Witness(root, settings, faulty, []).run()
        except BaseException as error:
            error.args = (*error.args, f"call {at}, of {faulty.failed}, failed")
            raise
        shutil.rmtree(root)
        if not faulty.failed:
            break
        outcomes[outcome] += 1
    assert outcome == "well"
    assert outcomes["broken"] > 0
    assert outcomes["not opened"] > 0
    assert code == errno.EIO or outcomes["well"] > 0


@pytest.mark.parametrize("call", [lambda session: session.enqueue(b"b"), lambda session: session.enqueue_many([b"b"])])
def test_h_a_broken_queue_takes_no_items(open_queue: QueueFactory, call: Callable[[Session], None]) -> None:
    """Once a sync has failed, a session refuses to buffer an item that it could never flush."""

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    armed = False
    queue = open_queue(inline_bytes=0, disk=replace(DISK, fdatasync=lambda fd: fail() if armed else DISK.fdatasync(fd)))
    armed = True
    with pytest.raises(BrokenQueueError):
        put(queue, b"b")
    with queue.session() as session, pytest.raises(BrokenQueueError):
        call(session)


def test_h_short_writes_are_completed(open_queue: QueueFactory) -> None:
    """Writes that take a few bytes at a time change only the number of calls."""

    def write_a_little(fd: int, buffers: Buffers, offset: int, flags: int) -> int:
        return DISK.pwritev(fd, [b"".join(buffers)[:1000]], offset, 0)

    settings = {"log_bytes": 4096, "disk": replace(DISK, pwritev=write_a_little)}
    queue = open_queue(**settings)
    items = [b"%d" % number * 700 for number in range(10)]
    put_each(queue, items)
    crash(queue)
    assert drain(open_queue(**settings)) == items

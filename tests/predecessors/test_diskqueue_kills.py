"""Scenario B of DiskQueue, and the five probes of the peers: a real ``kill -9`` at every step.

A child process runs a story: commits, trims, rolls, a close, a deletion. For every n, it is killed before the n-th
step. A step is a failpoint, or a call that changes a file or a name. Each acknowledged flush is recorded in a ledger
outside. The next process must find exactly these flushes, and the one under way as a whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import (
    CorruptionError,
    PersistentQueue,
    QueueLockedError,
    QueueNotFoundError,
    check,
    delete_queue,
    list_queues,
)
from persistentqueue.system.disk import Buffers, Disk
from tests.conftest import QueueFactory
from tests.durability.test_processes import Forks
from tests.support.disks import call_on
from tests.support.queues import IN_CACHE, crash, drain, flip, log_file, put, put_each, segment_files, spilling_session

CHANGING = ("pwritev", "fallocate", "ftruncate", "rename", "unlink", "mkdir", "rmdir")
"""Calls that change what the next process finds. A sync does not, as long as the power stays on."""
NAME = "orders"
DONE, ENOUGH = b"done", 10_000


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """Yield one server of child processes for all tests."""
    server = Forks()
    with server:
        yield server


@dataclass(frozen=True)
class Story:
    """The program of a child. Each step is ``(items to enqueue, number to dequeue)`` for one flush, or ``"trim"``."""

    steps: tuple[tuple[tuple[bytes, ...], int] | str, ...] = ()
    settings: dict[str, int] = field(default_factory=dict)
    spill_bytes: int = 1 << 20
    deletes: bool = False

    def states(self, ready: list[bytes]) -> list[list[bytes]]:
        """Return the ready items after each number of steps, if ``ready`` are the first ones."""
        states = [list(ready)]
        for step in self.steps:
            items, count = ((), 0) if isinstance(step, str) else step
            states.append([*states[-1][count:], *items])
        return states

    def open(self, root: Path, disk: Disk = IN_CACHE) -> PersistentQueue:
        """Open the queue of the story."""
        return call_on(disk, PersistentQueue, root, NAME, **self.settings)


class Deadly:
    """A disk that kills its process before the ``last`` step; with ``half``, in the middle of a write."""

    def __init__(self, last: int, half: bool) -> None:
        self.steps = 0
        self._last, self._half = last, half
        self._changed = True
        doors: dict[str, Any] = {name: self._door(name) for name in CHANGING}
        self.disk = replace(IN_CACHE, failpoint=self._failpoint, **doors)

    def _failpoint(self, _name: str) -> None:
        if not self._half:
            self._step()
            self._changed = False

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self._last:
            os.kill(os.getpid(), signal.SIGKILL)

    def _door(self, name: str) -> Callable[..., Any]:
        real = getattr(IN_CACHE, name)

        def door(*arguments: Any) -> Any:
            if not self._half and self._changed:  # otherwise the last failpoint was this step
                self._step()
            self._changed = True
            return real(*arguments)

        def write(fd: int, buffers: Buffers, offset: int, flags: int) -> Any:
            if self.steps + 1 == self._last:
                data = b"".join(buffers)
                real(fd, [data[: len(data) // 2]], offset, flags)
            self._step()
            return real(fd, buffers, offset, flags)

        return write if self._half and name == "pwritev" else door


def live(ledger: int, root: Path, story: Story, last: int, half: bool) -> None:
    """Run the story on a deadly disk. The ledger records the opening, every step, the close, and the number of
    steps."""
    deadly = Deadly(last, half)
    queue = story.open(root, deadly.disk)
    os.write(ledger, b"open\n")
    with spilling_session(queue, story.spill_bytes) as session:
        for step in story.steps:
            if isinstance(step, str):
                queue.trim()
            else:
                items, count = step
                session.enqueue_many(items)
                session.dequeue_many(count)
                session.flush()
            os.write(ledger, DONE + b"\n")
    queue.close()
    os.write(ledger, b"closed\n")
    if story.deletes:
        call_on(deadly.disk, delete_queue, root, NAME)
    os.write(ledger, b"%d\n" % deadly.steps)


def count_steps(forks: Forks, root: Path, story: Story, half: bool) -> int:
    """Return the number of steps of the story without a kill."""
    ledger, code = forks.run(live, root, story, ENOUGH, half)
    assert code == 0
    return int(ledger[-1])


def work_on(root: Path, ready: list[bytes], story: Story) -> None:
    """Do a thousand more operations on the recovered queue, in twenty flushes, and assert their results."""
    items = [b"later %d" % number for number in range(500)]
    with story.open(root) as queue:
        assert queue.recovery.clean
        with queue.session() as session:
            for start in range(0, 500, 50):
                session.enqueue_many(items[start : start + 50])
                session.flush()
            found: list[bytes] = []
            while part := session.dequeue_many(50):
                session.flush()
                found += part
        assert found == [*ready, *items]


def bulk(count: int, length_bytes: int) -> tuple[bytes, ...]:
    """Return items of about one length, all different."""
    return tuple(b"%d " % number + b"x" * length_bytes for number in range(count))


BOTH_WAYS: tuple[tuple[tuple[bytes, ...], int] | str, ...] = (
    ((b"a",), 0),
    ((b"b", b"", b"c"), 1),
    ((), 2),
    "trim",
    ((b"d" * 50,), 1),
    ((b"e", b"f"), 0),
    "trim",
    ((b"g",), 2),
)
SMALL_FILES = {"log_bytes": 4096, "segment_bytes": 4096}
STORIES = {
    "small": Story(BOTH_WAYS, SMALL_FILES),
    "large": Story(BOTH_WAYS, {**SMALL_FILES, "inline_bytes": 0}),
    "rolls": Story(BOTH_WAYS, {**SMALL_FILES, "segment_bytes": 10}),
    "large and rolls": Story(BOTH_WAYS, {**SMALL_FILES, "segment_bytes": 10, "inline_bytes": 0}),
    "spilled": Story(
        ((bulk(4, 100), 0), (bulk(3, 90), 4), (bulk(2, 80), 1)), {**SMALL_FILES, "segment_bytes": 250}, spill_bytes=200
    ),
    "log is full": Story(((bulk(1, 1500), 0),) * 3 + ((bulk(1, 1700), 2),) * 2, SMALL_FILES),
}


@pytest.mark.parametrize("half", [False, True], ids=["between calls", "within a write"])
@pytest.mark.parametrize("name", STORIES)
def test_b_killed_at_every_step(tmp_path: Path, forks: Forks, name: str, half: bool) -> None:
    """Wherever the process is killed, the acknowledged flushes are there, and the flush under way is there as a whole
    or not at all. The queue then works on."""
    story = STORIES[name]
    states = story.states([])
    steps = count_steps(forks, tmp_path / "whole", story, half)
    assert steps > (10 if half else 40)
    torn = 0
    for last in range(1, steps + 1):
        root = tmp_path / f"{last}"
        ledger, code = forks.run(live, root, story, last, half)
        assert code == -signal.SIGKILL
        acknowledged = ledger.count(DONE)
        with story.open(root) as queue:
            found = list(queue.browse())
            torn += queue.recovery.torn_bytes > 0
            assert half or not queue.recovery.torn_bytes
        assert found in states[acknowledged : acknowledged + 2], f"killed before step {last}"
        work_on(root, found, story)
        report = check(root, NAME)
        assert (report.problems, report.items) == ((), 0)
        shutil.rmtree(root)
    assert bool(torn) == half


def torn_end(queue: PersistentQueue) -> None:
    """Crash the queue, and write the beginning of a frame behind the last one."""
    end = queue.stats().log_bytes
    log = queue._open()._store.generations.path
    assert log is not None
    crash(queue)
    with open(log, "r+b") as file:
        file.seek(end)
        file.write(b"PQFr, and then the power went")


ENDINGS: dict[str, Callable[[PersistentQueue], None]] = {
    "closed": PersistentQueue.close,
    "crashed": crash,
    "torn": torn_end,
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", ["small", "large and rolls"])
def test_b_killed_at_every_step_of_an_opening(tmp_path: Path, forks: Forks, name: str, ending: str) -> None:
    """An opening that is killed at any step leaves a queue with unchanged content."""
    story = replace(STORIES[name], steps=(((b"more",), 1),))
    prepared = tmp_path / "prepared"
    queue = story.open(prepared)
    put_each(queue, [b"a", b"b"])
    queue.trim()
    put(queue, b"c", b"d")
    ENDINGS[ending](queue)
    (prepared / NAME / "data" / "000000000099.seg").write_bytes(b"an orphan")
    shutil.copytree(prepared, tmp_path / "whole")
    states = story.states([b"a", b"b", b"c", b"d"])
    for last in range(1, count_steps(forks, tmp_path / "whole", story, False) + 1):
        root = tmp_path / f"{last}"
        shutil.copytree(prepared, root)
        ledger, code = forks.run(live, root, story, last, False)
        assert code == -signal.SIGKILL
        acknowledged = ledger.count(DONE)
        with story.open(root) as queue:
            found = list(queue.browse())
        assert found in states[acknowledged : acknowledged + 2], f"killed before step {last}"
        work_on(root, found, story)
        shutil.rmtree(root)


def test_b_evidence_survives_a_killed_opening(tmp_path: Path, forks: Forks) -> None:
    """Evidence that a killed opening set aside is not deleted by the next opening."""
    story = Story(settings=SMALL_FILES)
    prepared = tmp_path / "prepared"
    queue = story.open(prepared)
    put_each(queue, [b"a", b"b"])
    torn_end(queue)
    (prepared / NAME / "data" / "000000000099.seg").write_bytes(b"may hold something")
    torn = log_file(prepared / NAME).read_bytes()
    shutil.copytree(prepared, tmp_path / "whole")
    lost = []
    for last in range(1, count_steps(forks, tmp_path / "whole", story, False) + 1):
        root = tmp_path / f"{last}"
        shutil.copytree(prepared, root)
        forks.run(live, root, story, last, False)
        with story.open(root) as queue:
            assert list(queue.browse()) == [b"a", b"b"]
        files = {path.read_bytes() for path in (root / NAME).rglob("*") if path.is_file()}
        if not {torn, b"may hold something"} <= files:
            lost.append(last)
    assert lost == []


@pytest.mark.parametrize("segment_bytes", [10, 4096])
def test_b_killed_at_every_step_of_a_deletion(tmp_path: Path, forks: Forks, segment_bytes: int) -> None:
    """A deletion that is killed at any step has happened, or not. If it has, no item comes back, and a new queue is
    empty."""
    story = Story((((b"a",), 0), ((b"b",), 0)), {**SMALL_FILES, "segment_bytes": segment_bytes}, deletes=True)
    whole = tmp_path / "whole"
    steps = count_steps(forks, whole, story, False)
    assert list(whole.iterdir()) == []
    before = count_steps(forks, tmp_path / "kept", replace(story, deletes=False), False)
    outcomes = set()
    for last in range(before + 1, steps + 1):
        root = tmp_path / f"{last}"
        ledger, code = forks.run(live, root, story, last, False)
        assert (code, ledger[-1]) == (-signal.SIGKILL, b"closed")
        outcomes.add(existed := list_queues(root) == [NAME])
        if not existed:
            with pytest.raises(QueueNotFoundError):
                PersistentQueue(root, NAME, create=False)
            with suppress(QueueNotFoundError):  # it finishes what was killed, if anything is left
                delete_queue(root, NAME)
            with pytest.raises(QueueNotFoundError):
                delete_queue(root, NAME)
        with story.open(root) as queue:
            assert list(queue.browse()) == ([b"a", b"b"] if existed else [])
            put(queue, b"new")
            assert drain(queue)[-1] == b"new"
        delete_queue(root, NAME)
        assert list(root.iterdir()) == []
    assert outcomes == {True, False}


# --- The five probes --------------------------------------------------------------------------------------------------


def push_and_die(ledger: int, root: Path, count: int, take: int) -> None:
    """Flush so many items, dequeue some without a flush, and kill the process."""
    queue = PersistentQueue(root, NAME)
    put_each(queue, [b"%d" % number for number in range(count)])
    with queue.session() as session:
        for _ in range(take):
            os.write(ledger, (session.dequeue() or b"nothing") + b"\n")
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("take", [0, 2], ids=["probe 1", "probe 2"])
def test_probe_1_and_2_killed_after_five(tmp_path: Path, forks: Forks, take: int) -> None:
    """After a kill, five flushed items are there in order, including those that were dequeued without a flush."""
    ledger, code = forks.run(push_and_die, tmp_path, 5, take)
    assert (ledger, code) == ([b"0", b"1"][:take], -signal.SIGKILL)
    with PersistentQueue(tmp_path, NAME) as queue:
        assert drain(queue) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.damages
@pytest.mark.parametrize("place", range(12))
def test_probe_3_a_flipped_byte_of_a_payload(open_queue: QueueFactory, directory: Path, place: int) -> None:
    """A payload with one flipped byte raises an error that names its place, and the damaged value is never returned."""
    with open_queue() as queue:
        put(queue, b"twelve bytes")
        put(queue, b"behind")
    (segment,) = segment_files(directory)
    flip(segment, segment.read_bytes().index(b"twelve bytes") + place)
    with open_queue().session() as session:
        with pytest.raises(CorruptionError, match="damaged at offset 64") as caught:
            session.dequeue()
        assert caught.value.file == str(segment)
        assert session.dequeue() == b"behind"
        session.rollback()


@pytest.mark.damages
@pytest.mark.parametrize("name", ["log", "data", "pool", "lock"])
@pytest.mark.parametrize("end", [PersistentQueue.close, crash])
def test_probe_4_a_file_of_no_length(
    open_queue: QueueFactory, directory: Path, name: str, end: Callable[[PersistentQueue], None]
) -> None:
    """A file that a power cut left empty raises an error that names it, or costs nothing."""
    queue = open_queue(inline_bytes=0)
    put(queue, b"a", b"b")
    end(queue)
    path = directory / "lock" if name == "lock" else next((directory / name).iterdir())
    os.truncate(path, 0)
    if name == "log":
        with pytest.raises(CorruptionError) as caught:
            open_queue()
    else:
        queue = open_queue()
        if name != "data":
            assert drain(queue) == [b"a", b"b"]
            return
        with pytest.raises(CorruptionError) as caught, queue.session() as session:
            session.dequeue()
    assert caught.value.file == str(path)


def test_probe_5_two_owners_on_one_path(open_queue: QueueFactory) -> None:
    """A second owner is refused, so that no item is lost because two owners write to one path."""
    queue = open_queue()
    put_each(queue, [b"a", b"b"])
    for _ in range(3):
        with pytest.raises(QueueLockedError):
            open_queue()
    put(queue, b"c")
    queue.close()
    assert drain(open_queue()) == [b"a", b"b", b"c"]

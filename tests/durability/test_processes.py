"""Real processes: the owner of a queue, processes that wait for the lock, and the queue after one was killed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import pytest

from persistentqueue import ClosedError, PersistentQueue, QueueLockedError, check, delete_queue
from persistentqueue.system.disk import DISK
from tests.conftest import QueueFactory
from tests.support.disks import call_on
from tests.support.queues import IN_CACHE, drain, put, spilling_session

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and signals")

SPAWN = multiprocessing.get_context("spawn")
TIMEOUT_SECONDS = 60
"""Time that a process may take for any step before the test fails."""


class Child:
    """A process that runs a function of a test module, and a pipe to it. It is killed at the end, if it still runs."""

    def __init__(self, body: Callable[..., None], *arguments: object) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=body, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.pipe.close()
        self.process.close()

    def hear(self) -> Any:
        """Return its next message."""
        return hear(self.pipe)

    def tell(self, message: object) -> None:
        """Send it a message."""
        self.pipe.send(message)

    def kill(self) -> None:
        """Send ``kill -9``, and wait until the process is gone."""
        self.process.kill()
        self.process.join()

    def finish(self) -> None:
        """Wait until the process has ended without an error."""
        self.process.join(TIMEOUT_SECONDS)
        assert self.process.exitcode == 0


def hear(pipe: Connection) -> Any:
    """Return the next message; fail if none comes."""
    assert pipe.poll(TIMEOUT_SECONDS), "the other process is silent"
    return pipe.recv()


class Forks(Child):
    """A small process without threads that forks others on request: a new process in a millisecond or two."""

    def __init__(self) -> None:
        super().__init__(serve_forks)

    def run(self, body: Callable[..., None], *arguments: object, kill_after: int = 0) -> tuple[list[bytes], int]:
        """Run ``body(ledger, *arguments)`` in a process; return the lines that it wrote to the ledger, and its exit
        code.

        With ``kill_after``, the process is killed as soon as the ledger has that number of lines.
        """
        self.tell((body, arguments, kill_after))
        ledger, code = self.hear()
        return ledger.splitlines(), code


def serve_forks(pipe: Connection) -> None:
    """Fork the processes of ``Forks`` on request."""
    import portalocker  # noqa: F401 - here, or each fork imports it when it opens its first queue

    gc.freeze()  # so that a fork copies few pages
    with suppress(EOFError):
        while True:
            body, arguments, kill_after = pipe.recv()
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                _run_and_exit(body, write, arguments)
            os.close(write)
            ledger = b""
            while chunk := os.read(read, 1 << 16):
                ledger += chunk
                if 0 < kill_after <= ledger.count(b"\n"):
                    os.kill(pid, signal.SIGKILL)
                    kill_after = 0
            os.close(read)
            _, status = os.waitpid(pid, 0)
            pipe.send((ledger, os.waitstatus_to_exitcode(status)))


def _run_and_exit(body: Callable[..., None], ledger: int, arguments: tuple[object, ...]) -> NoReturn:
    code = 1
    try:
        body(ledger, *arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """Yield one fork server for all tests."""
    server = Forks()
    with server:
        yield server


def forbid(*_: Any) -> NoReturn:
    """Raise an error: this function must not be called."""
    raise AssertionError("this must not happen")


# --- two processes and one lock ---------------------------------------------------------------------------------------


def hold(pipe: Connection, path: Path) -> None:
    """Own the queue until a message comes."""
    with PersistentQueue(path) as queue:
        put(queue, b"held")
        pipe.send(os.getpid())
        pipe.recv()


def test_second_process_is_refused_at_once(tmp_path: Path) -> None:
    """Opening a queue that another process owns raises at once, with the owner's process, host and time of opening."""
    before = datetime.now(timezone.utc).replace(microsecond=0)
    with Child(hold, tmp_path) as owner:
        pid = owner.hear()
        for call in (PersistentQueue, delete_queue):
            with pytest.raises(QueueLockedError) as caught:
                call_on(replace(DISK, sleep=forbid), call, tmp_path)
            assert (caught.value.pid, caught.value.host) == (pid, socket.gethostname())
            assert before <= datetime.fromisoformat(str(caught.value.since)) <= datetime.now(timezone.utc)
            assert f"process {pid} on" in str(caught.value)
        owner.tell("let go")
        owner.finish()
    with PersistentQueue(tmp_path) as queue:
        assert queue.recovery.clean
        assert drain(queue) == [b"held"]


def test_waiting_for_the_lock_gets_it(tmp_path: Path) -> None:
    """With ``lock_timeout`` an opening waits until the owner has closed, and then has everything that it flushed."""
    told: list[float] = []
    with Child(hold, tmp_path) as owner:
        owner.hear()

        def sleep(seconds: float) -> None:
            if not told:
                owner.tell("let go")
            told.append(seconds)
            time.sleep(seconds)

        with call_on(replace(DISK, sleep=sleep), PersistentQueue, tmp_path, lock_timeout=TIMEOUT_SECONDS) as queue:
            assert drain(queue) == [b"held"]
        owner.finish()
    assert told


def test_waiting_for_the_lock_ends(tmp_path: Path) -> None:
    """With ``lock_timeout`` an opening gives up when the time is over, and not before; the owner is not disturbed."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    with Child(hold, tmp_path) as owner:
        pid = owner.hear()
        with pytest.raises(QueueLockedError) as caught:
            call_on(replace(DISK, sleep=sleep, monotonic=lambda: now), PersistentQueue, tmp_path, lock_timeout=5)
        assert caught.value.pid == pid
        assert 5 <= now < 6
        owner.tell("let go")
        owner.finish()


def own_and_die(ledger: int, path: Path) -> None:
    """Own the queue, flush an item, enqueue another, and be killed."""
    queue = PersistentQueue(path)
    with queue.session() as session:
        session.enqueue(b"acknowledged")
        session.flush()
        session.enqueue(b"never flushed")
        os.kill(os.getpid(), signal.SIGKILL)


def test_killed_owner_leaves_no_lock(tmp_path: Path, forks: Forks) -> None:
    """A queue whose owner was killed opens at once, with everything that was flushed and nothing else."""
    for count in range(1, 4):
        _, code = forks.run(own_and_die, tmp_path)
        assert code == -signal.SIGKILL
        with call_on(replace(DISK, sleep=forbid), PersistentQueue, tmp_path) as queue:
            assert not queue.recovery.clean
            assert queue.peek(9) == [b"acknowledged"] * count


@pytest.mark.parametrize(
    "owner",
    [b"", b"78924759045", b"\0" * 16, b"[]", b'{"pid": "x"}', b'{"pid": 1, "host": "h", "since": "s"}', b"ours"],
    ids=["empty", "digits", "zeros", "list", "text pid", "pid 1", "reused pid"],
)
def test_text_of_the_lock_file_means_nothing(tmp_path: Path, forks: Forks, owner: bytes) -> None:
    """A queue opens with any text in the lock file of a killed owner, even with a process number that is in use
    again."""
    forks.run(own_and_die, tmp_path)
    if owner == b"ours":
        owner = b'{"pid": %d, "host": "%s", "since": "s"}' % (os.getpid(), socket.gethostname().encode())
    (tmp_path / "lock").write_bytes(owner)
    with call_on(replace(DISK, sleep=forbid), PersistentQueue, tmp_path) as queue:
        assert drain(queue) == [b"acknowledged"]


@pytest.mark.parametrize("content", [b"", b"junk"])
def test_owner_without_a_name_is_an_owner(tmp_path: Path, content: bytes) -> None:
    """A held lock refuses an opening even if its file names no owner."""
    with Child(hold, tmp_path) as owner:
        owner.hear()
        (tmp_path / "lock").write_bytes(content)
        with pytest.raises(QueueLockedError, match="has not named itself") as caught:
            PersistentQueue(tmp_path)
        assert (caught.value.pid, caught.value.host, caught.value.since) == (None, None, None)


def fork_and_wait(pipe: Connection, of_child: Connection, path: Path) -> None:
    """Own the queue, fork a child that tries to use it and stays alive, and continue to use it."""
    queue = PersistentQueue(path)
    put(queue, b"a", b"b")
    session = queue.session()
    session.dequeue()
    if os.fork() == 0:
        refused = []
        calls: tuple[Callable[[], object], ...] = (
            queue.session,
            queue.trim,
            queue.clear,
            queue.peek,
            queue.stats,
            lambda: len(queue),
            lambda: queue.marker("m"),
            lambda: session.enqueue(b"c"),
            session.dequeue,
            session.flush,
        )
        for call in calls:
            try:
                call()
            except ClosedError:
                refused.append(True)
            else:
                refused.append(False)
        session.close()
        queue.close()
        of_child.send(refused)
        of_child.recv()
        of_child.send("still here")
        of_child.recv()
        os._exit(0)
    pipe.send("forked")
    pipe.recv()
    session.flush()
    put(queue, b"d")
    pipe.send("flushed")
    signal.pause()


def test_forked_child_neither_uses_nor_keeps_the_queue(tmp_path: Path) -> None:
    """A forked child gets ``ClosedError``, disturbs nothing, and does not keep the lock after its parent's death."""
    pipe, theirs = SPAWN.Pipe()
    with pipe, Child(fork_and_wait, theirs, tmp_path) as parent:
        theirs.close()
        assert parent.hear() == "forked"
        assert hear(pipe) == [True] * 10
        with pytest.raises(QueueLockedError) as caught:
            PersistentQueue(tmp_path)
        assert caught.value.pid == parent.process.pid
        parent.tell("go on")
        assert parent.hear() == "flushed"
        parent.kill()
        with call_on(replace(DISK, sleep=forbid), PersistentQueue, tmp_path) as queue:
            pipe.send("are you there")
            assert hear(pipe) == "still here"
            assert drain(queue) == [b"b", b"d"]
        pipe.send("end")
        assert pipe.poll(TIMEOUT_SECONDS)
        with pytest.raises(EOFError):
            pipe.recv()


# --- taking turns -----------------------------------------------------------------------------------------------------


def produce(pipe: Connection, path: Path, name: int, turns: int) -> None:
    """Open the queue for every turn, and flush three items."""
    for turn in range(turns):
        with PersistentQueue(path, lock_timeout=TIMEOUT_SECONDS) as queue:
            put(queue, *(b"%d %d" % (name, 3 * turn + place) for place in range(3)))
    pipe.send("done")


def consume(pipe: Connection, path: Path, order: Path) -> None:
    """Open the queue for every turn, consume some items, and record them while the queue is open."""
    fd = os.open(order, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    items = [b""]
    while True:
        last = pipe.poll(0 if items else 0.01)
        with PersistentQueue(path, lock_timeout=TIMEOUT_SECONDS) as queue:
            with queue.transaction() as session:
                items = session.dequeue_many(5)
            os.write(fd, b"".join(item + b"\n" for item in items))
        if last and not items:
            break
    os.close(fd)


@pytest.mark.parametrize(("producers", "consumers", "turns"), [(1, 1, 10), (3, 2, 10)])
def test_processes_take_turns(tmp_path: Path, producers: int, consumers: int, turns: int) -> None:
    """Producers and consumers in processes of their own lose and double nothing, and keep each producer's order."""
    path, order = tmp_path / "queue", tmp_path / "order"
    children = [Child(produce, path, name, turns) for name in range(producers)]
    readers = [Child(consume, path, order) for _ in range(consumers)]
    try:
        for child in children:
            assert child.hear() == "done"
            child.finish()
        for reader in readers:
            reader.tell("no more will come")
        for reader in readers:
            reader.finish()
    finally:
        for child in children + readers:
            child.__exit__(None, None, None)
    found = [tuple(map(int, line.split())) for line in order.read_bytes().splitlines()]
    for name in range(producers):
        assert [number for producer, number in found if producer == name] == list(range(3 * turns))
    assert len(found) == producers * 3 * turns


# --- kill -9, over and over -------------------------------------------------------------------------------------------


def numbered(number: int) -> bytes:
    """Return the item of this number: of various lengths, and different from all others."""
    return b"%d " % number + b"x" * (number * 37 % 300)


def keep_writing(ledger: int, path: Path, tail: int, seed: int) -> None:
    """Enqueue from number ``tail`` on, and dequeue, until killed. Record each flush before and after it."""
    chance = random.Random(seed)
    settings = {"log_bytes": 4096, "segment_bytes": 2000, "inline_bytes": chance.choice([0, 1000, 65536])}
    queue = call_on(IN_CACHE, PersistentQueue, path, **settings)
    with spilling_session(queue, chance.choice([500, 100_000])) as session:
        while True:
            count = chance.randrange(8)
            session.enqueue_many([numbered(number) for number in range(tail, tail + count)])
            taken = len(session.dequeue_many(chance.randrange(8)))
            if chance.random() < 0.2:
                session.rollback()
                continue
            os.write(ledger, b"%d %d\n" % (count, taken))
            session.flush()
            os.write(ledger, b"done\n")
            tail += count


def test_kill_9_over_and_over(tmp_path: Path, forks: Forks) -> None:
    """After any number of kills, the queue has the items that the outside ledger records as acknowledged, in order."""
    path = tmp_path / "queue"
    chance = random.Random(9)
    head = tail = flushes = 0
    for life in range(50):
        ledger, code = forks.run(keep_writing, path, tail, life, kill_after=chance.randrange(1, 80))
        assert code == -signal.SIGKILL
        pending = (0, 0)
        for line in ledger:
            if line == b"done":
                head, tail, pending = head + pending[1], tail + pending[0], (0, 0)
                flushes += 1
            else:
                count, taken = line.split()
                pending = int(count), int(taken)
        with call_on(IN_CACHE, PersistentQueue, path) as queue:
            assert queue.recovery.torn_bytes == 0
            found = list(queue.browse())
            allowed = [(head, tail), (head + pending[1], tail + pending[0])]
            assert found in [[numbered(number) for number in range(*state)] for state in allowed]
            tail = queue.stats().enqueued
            head = tail - len(found)
        report = check(path)
        assert (report.problems, report.leftovers, report.items) == ((), (), tail - head)
    assert flushes > 500


def open_and_report(ledger: int, path: Path) -> None:
    """Open the queue, and write its items to the ledger."""
    with PersistentQueue(path) as queue:
        for item in drain(queue):
            os.write(ledger, item + b"\n")


def test_another_process_reads_what_this_one_closed(open_queue: QueueFactory, directory: Path, forks: Forks) -> None:
    """A queue passes from process to process by closing and opening."""
    with open_queue() as queue:
        put(queue, b"a", b"b")
    assert forks.run(open_and_report, directory) == ([b"a", b"b"], 0)
    assert len(open_queue()) == 0

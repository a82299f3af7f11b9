"""``kill -9``, thousands of times: a process that works on a queue is killed at any moment, and the next one compares.

A server forks one child for each life, so that a life costs milliseconds. The child opens the queue, reports the state
that it found, and flushes without end. It reports the state before each flush and after it. All reports go to a pipe
that outlives it, the ledger. The child is killed from outside after up to 4 ms, or kills itself at a failpoint. The
next child must find the state that was last acknowledged, or that state with the whole flush that was under way. A
state that an opening has served stays. Power cuts are tested in ``cuts``.

In every fourth life the session does not wait for its flushes. Then the next child may also find the last acknowledged
state with the first ones of the flushes under way, in order.

Item number ``n`` of a queue has content that follows from ``n``, and items leave in order. So two numbers describe a
state.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import select
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

import portalocker  # noqa: F401 - before the children are forked, or each of them imports it in its first opening

from persistentqueue import PersistentQueue, PersistentQueueError, Ticket, check
from persistentqueue.system.disk import DISK, Disk
from tests.support.disks import call_on

_LIVES_PER_QUEUE = 200
_LIVES_PER_CLOSING = 25
_DELAY_SECONDS_MAX = 0.004
_STEPS_MAX = 60
_ITEMS_MAX = 60
_PATIENCE_SECONDS = 20.0
"""Time after which a child that has not ended is considered to hang."""
_MEMORY_FILES = "/dev/shm"

P = ParamSpec("P")
T = TypeVar("T")


class Range(NamedTuple):
    """Content of a queue: the items from ``first`` up to, and without, ``next``."""

    first: int = 0
    next: int = 0


class Report(NamedTuple):
    """Result of a campaign without a violation."""

    kills: int
    at_failpoints: int
    """Number of kills at a failpoint; the others came at any moment."""
    acknowledged: int
    """Number of flushes that returned."""
    under_way: int
    """Number of kills in the middle of a flush."""
    kept: int
    """Number of flushes under way that were found as a whole; the others were not found at all."""
    closings: int
    """Number of lives that ended by closing, with a ``check`` of the directory."""
    seconds: float


def item(number: int) -> bytes:
    """Return the item of that number, 1 to 3,000 bytes; most are short."""
    scattered = number * 2654435761 >> 7
    size_bytes = 1 + scattered % (3000 if number % 3 == 0 else 60)
    text = b"%d " % number
    return (text * (size_bytes // len(text) + 1))[:size_bytes]


# --- the child's side ------------------------------------------------------------------------------------------------


def live(
    directory: str,
    seed: int,
    flushes: int | None,
    ledger: int,
    disk: Disk = DISK,
    on_flush: Callable[[], None] = lambda: None,
    may_find_junk: bool = False,
) -> None:
    """Open the queue, check the served items, and flush without end. With ``flushes``, flush that often, close and
    ``check``.

    It calls ``on_flush`` before each flush. Recovery may set something aside only if a frame is torn, or if the file
    system leaves junk in files that were not synced. The ledger gets one line per report:

    - ``O``: the state that an opening found.
    - ``B``: the state that the next flush leads to.
    - ``P``: the state that the next flush leads to, for which the session does not wait.
    - ``A``: the state after a flush has returned, or its ticket is done.
    - ``C``: the state when the queue is closed.
    """
    chance = random.Random(seed)
    choose = chance.choice
    queue = call_on(
        disk,
        PersistentQueue,
        directory,
        segment_bytes=choose([1000, 4096, 16384]),
        inline_bytes=choose([0, 200, 2000, 65536]),
        memory_bytes=choose([0, 10_000, 1 << 20]),
        log_bytes=choose([4096, 8192]),
    )
    stats, found = queue.stats(), queue.recovery
    first, end = stats.dequeued, stats.enqueued
    assert list(queue.browse()) == [item(number) for number in range(first, end)], f"{first} to {end}: wrong items"
    assert not (found.lost_transactions or found.missing_bytes), found
    assert found.torn_bytes or may_find_junk or not found.set_aside, found
    os.write(ledger, b"O %d %d\n" % (first, end))
    session, waits = queue.session(), choose([True, True, True, False])
    ticket: Ticket | None = None
    while flushes != 0:
        flushes = None if flushes is None else flushes - 1
        if chance.random() < 0.05:
            queue.trim()
        added, taken = choose([(1, 0), (1, 0), (0, 1), (3, 1), (1, 2), (0, 7), (8, 0), (20, 5)])
        if end - first > _ITEMS_MAX:
            added, taken = 0, end - first - 1
        dequeued = session.dequeue_many(taken)
        most = min(taken, end - first) if waits else len(dequeued)  # not all that was flushed is visible yet
        found_numbers = [each.partition(b" ")[0] for each in dequeued]
        expected = [item(number) for number in range(first, first + most)]
        if dequeued == expected[: len(dequeued)] != expected:
            session.dequeue()  # with a dead disk: raises the error of the first item that cannot be read
        assert dequeued == expected, f"{first} to {end}: wrong items {found_numbers}"
        if dequeued and chance.random() < 0.2:
            session.rollback()
            if ticket is not None:
                ticket.result()  # of a refused flush, such as on a full disk: the rollback has released its items
            continue
        session.enqueue_many([item(number) for number in range(end, end + added)])
        first, end = first + len(dequeued), end + added
        os.write(ledger, b"%s %d %d\n" % (b"B" if waits else b"P", first, end))
        on_flush()
        if waits:
            session.flush()
            os.write(ledger, b"A %d %d\n" % (first, end))
        else:
            ticket = session.flush(wait=False)
            ticket.add_done_callback(partial(_acknowledge, ledger, first, end))
    queue.close()
    report = check(directory)
    assert report.ok and report.sealed, report
    os.write(ledger, b"C %d %d\n" % (first, end))


def _acknowledge(ledger: int, first: int, end: int, ticket: Ticket) -> None:
    if ticket.exception() is None:
        os.write(ledger, b"A %d %d\n" % (first, end))


def fork(child: Callable[[int], None]) -> tuple[int, int]:
    """Run ``child`` in a forked process, with its end of the ledger; return the process, and the parent's end.

    An exception of the child goes to the ledger: ``D`` if a dead disk explains it, ``E`` if not.
    """
    assert threading.active_count() == 1, "a process with threads must not fork"
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        os.close(reading)
        child(writing)
        os._exit(0)
    except BaseException as error:
        kind = "D" if isinstance(error, OSError | PersistentQueueError) else "E"
        text = f"{error!r} {traceback.format_exc()}".replace("\n", " | ")
        os.write(writing, f"{kind} {text[:3900]}\n".encode())
        os._exit(1)
    finally:
        os._exit(2)


# --- the server's side -----------------------------------------------------------------------------------------------


class Ledger:
    """States that may be found in one queue, according to the reports of its children."""

    def __init__(self) -> None:
        self.allowed = [Range()]
        """State after the last acknowledged flush, and those that the flushes under way lead to, in order."""
        self.acknowledged = self.openings = self.flushes = self.under_way = self.kept = self.closings = 0
        self.error = ""
        """Error that a child raised."""
        self._rest = b""

    def follow(self, ledger: int, seconds: float) -> bool:
        """Read until the child ends or the time is over; return if it ended. Raises ``AssertionError`` at a
        violation."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and select.select([ledger], [], [], left)[0]:
            data = os.read(ledger, 65536)
            if not data:
                return True
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._enter(line.decode())
        return False

    def end(self, pid: int, ledger: int, patience_seconds: float = 0.0) -> int:
        """Wait up to ``patience_seconds`` for the child's end, kill it, and read the rest; return its status for
        ``os``."""
        try:
            ended = patience_seconds > 0 and self.follow(ledger, patience_seconds)
        finally:
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
        try:
            self.follow(ledger, _PATIENCE_SECONDS)
        finally:
            os.close(ledger)
        assert ended or not patience_seconds, f"a child had not ended after {patience_seconds} s"
        return status

    def _enter(self, line: str) -> None:
        kind, _, text = line.partition(" ")
        if kind in {"D", "E"}:
            self.error = text
            assert kind == "D", f"expected one of {self.allowed}, found {text}"
            return
        state = Range(*map(int, text.split()))
        if kind == "B":
            self.flushes += 1
            self.allowed = [self.allowed[0], state]
            return
        if kind == "P":
            self.flushes += 1
            self.allowed.append(state)
            return
        assert state in self.allowed, f"expected one of {self.allowed}, found {state} ({kind})"
        if kind == "O":
            self.openings += 1
            self.under_way += len(self.allowed) > 1
            self.kept += state != self.allowed[0]
        self.acknowledged += kind == "A"
        self.closings += kind == "C"
        self.allowed = self.allowed[self.allowed.index(state) :] if kind == "A" else [state]


def close_and_check(directory: str, ledger: Ledger, flushes: int, may_find_junk: bool = False) -> None:
    """Run one life without a violent end: open, compare, flush ``flushes`` times, close, ``check``."""
    before = ledger.closings
    life = partial(live, directory, ledger.flushes, flushes, may_find_junk=may_find_junk)
    ledger.end(*fork(life), _PATIENCE_SECONDS)
    assert ledger.closings == before + 1, f"expected one of {ledger.allowed}, found {ledger.error}"


def in_a_process_of_its_own(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function in a new process, which has no threads, so that it may fork; return its result.

    An exception of the function is raised.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def fast_directory() -> str | None:
    """Return a directory whose files are in memory, so that syncs are cheap; None for the usual place."""
    return _MEMORY_FILES if os.access(_MEMORY_FILES, os.W_OK) else None


def run_kills(count: int, seed: int = 0) -> Report:
    """Kill ``count`` processes. Raises ``AssertionError`` at the first violation, with the expected and the found
    state."""
    return in_a_process_of_its_own(_serve, count, seed)


def _serve(count: int, seed: int) -> Report:
    began, chance = time.monotonic(), random.Random(seed)
    gc.freeze()  # a garbage collection would write to pages that the children share
    ledgers: list[Ledger] = []
    at_failpoints = 0
    with tempfile.TemporaryDirectory(prefix="kills-", dir=fast_directory()) as root:
        for kill in range(count):
            if kill % _LIVES_PER_QUEUE == 0:
                ledgers.append(Ledger())
            directory = os.path.join(root, str(len(ledgers)))
            at_failpoint = chance.random() < 0.5
            at_failpoints += at_failpoint
            try:
                _kill(directory, ledgers[-1], chance, at_failpoint)
                last = kill == count - 1 or (kill + 1) % _LIVES_PER_QUEUE == 0
                if last or kill % _LIVES_PER_CLOSING == 0:
                    close_and_check(directory, ledgers[-1], flushes=chance.choice([0, 5]))
                if last:
                    shutil.rmtree(directory)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, kill {kill}: {error}") from error
    return Report(
        count,
        at_failpoints,
        sum(ledger.acknowledged for ledger in ledgers),
        sum(ledger.under_way for ledger in ledgers),
        sum(ledger.kept for ledger in ledgers),
        sum(ledger.closings for ledger in ledgers),
        time.monotonic() - began,
    )


def _kill(directory: str, ledger: Ledger, chance: random.Random, at_failpoint: bool) -> None:
    """Run one life, and kill it."""
    steps, seconds, seed = chance.randint(1, _STEPS_MAX), chance.uniform(0, _DELAY_SECONDS_MAX), chance.getrandbits(32)
    disk = replace(DISK, failpoint=_Deadly(steps).step) if at_failpoint else DISK
    pid, pipe = fork(partial(live, directory, seed, None, disk=disk))
    try:
        ended = not at_failpoint and ledger.follow(pipe, seconds)
    finally:
        status = ledger.end(pid, pipe, _PATIENCE_SECONDS if at_failpoint else 0.0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed and not ended, f"expected one of {ledger.allowed}, found {ledger.error or status}"


class _Deadly:
    """Kills its process at the last of a number of failpoints."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def step(self, _name: str) -> None:
        self._left -= 1
        if self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

"""``kill -9`` by the thousand: a process that lives on a queue is killed at any moment, and the next one looks.


A server forks one child for each life, so that a life costs milliseconds. The child opens the queue, says what it
found, and flushes for ever; what it is about to flush and what is acknowledged it says on a pipe that outlives it: the
ledger. It is killed from outside after up to 4 ms, or kills itself at a failpoint. Promised: what the next child finds
is the state that was last acknowledged, or the one that was under way as a whole, and what an opening has once
served stays. A kill says nothing of power cuts; those are in ``cuts``.

Item number ``n`` of a queue has content that follows from ``n``, and items leave in order. So a state is two numbers.
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

from persistentqueue import PersistentQueue, PersistentQueueError, check
from persistentqueue.system.disk import DISK, Disk

_LIVES_PER_QUEUE = 200
_LIVES_PER_CLOSING = 25
_DELAY_SECONDS_MAX = 0.004
_STEPS_MAX = 60
_ITEMS_MAX = 60
_PATIENCE_SECONDS = 20.0
"""A child that takes longer to die hangs."""
_MEMORY_FILES = "/dev/shm"

P = ParamSpec("P")
T = TypeVar("T")


class Range(NamedTuple):
    """What a queue holds: the items from ``first`` up to, and without, ``next``."""

    first: int = 0
    next: int = 0


class Report(NamedTuple):
    """What a campaign did, without a violation."""

    kills: int
    at_failpoints: int
    """So many of the kills were at a failpoint, the others at any moment."""
    acknowledged: int
    """Flushes that returned."""
    under_way: int
    """Kills in the middle of a flush."""
    kept: int
    """So many of the flushes that were under way were found, as a whole; the others not at all."""
    closings: int
    """Lives that ended by closing, with a ``check`` of the directory."""
    seconds: float


def item(number: int) -> bytes:
    """The item of that number, 1 to 3,000 bytes; most are short."""
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
    """Open the queue, check what it serves, and flush for ever; or so often, and then close it and ``check`` it.

    Calls ``on_flush`` before each flush. Nothing may be set aside but where a frame is torn, or where the file system
    leaves junk in files that were not synced. Lines of the ledger: ``O`` what was found by opening, ``B`` what a flush
    is about to make of it, ``A`` that it returned, ``C`` that the queue is closed.
    """
    chance = random.Random(seed)
    choose = chance.choice
    queue = PersistentQueue(
        directory,
        segment_bytes=choose([1000, 4096, 16384]),
        inline_bytes=choose([0, 200, 2000, 65536]),
        memory_bytes=choose([0, 10_000, 1 << 20]),
        log_bytes=choose([4096, 8192]),
        disk=disk,
    )
    stats, found = queue.stats(), queue.recovery
    first, end = stats.dequeued, stats.enqueued
    assert list(queue.browse()) == [item(number) for number in range(first, end)], f"{first} to {end}: wrong items"
    assert not (found.lost_transactions or found.missing_bytes), found
    assert found.torn_bytes or may_find_junk or not found.set_aside, found
    os.write(ledger, b"O %d %d\n" % (first, end))
    session = queue.session()
    while flushes != 0:
        flushes = None if flushes is None else flushes - 1
        if chance.random() < 0.05:
            queue.trim()
        added, taken = choose([(1, 0), (1, 0), (0, 1), (3, 1), (1, 2), (0, 7), (8, 0), (20, 5)])
        if end - first > _ITEMS_MAX:
            added, taken = 0, end - first - 1
        dequeued = session.dequeue_many(taken)
        assert dequeued == [item(number) for number in range(first, min(first + taken, end))], f"{first}: wrong items"
        if dequeued and chance.random() < 0.2:
            session.rollback()
            continue
        session.enqueue_many([item(number) for number in range(end, end + added)])
        first, end = first + len(dequeued), end + added
        os.write(ledger, b"B %d %d\n" % (first, end))
        on_flush()
        session.flush()
        os.write(ledger, b"A %d %d\n" % (first, end))
    queue.close()
    report = check(directory)
    assert report.ok and report.sealed, report
    os.write(ledger, b"C %d %d\n" % (first, end))


def fork(child: Callable[[int], None]) -> tuple[int, int]:
    """Run ``child``, given its end of the ledger, in a forked process: the process, and our end.

    What it raises ends up in the ledger: ``D`` for what a dead disk explains, ``E`` for anything else.
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
    """What may be found in one queue, by what its children have said."""

    def __init__(self) -> None:
        self.allowed = [Range()]
        """The state after the last acknowledged flush, and the one that is under way if there is one."""
        self.acknowledged = self.openings = self.flushes = self.under_way = self.kept = self.closings = 0
        self.error = ""
        """What a child raised."""
        self._rest = b""

    def follow(self, ledger: int, seconds: float) -> bool:
        """Read until the child ends or the time is over; whether it ended. Raises ``AssertionError`` at a violation."""
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
        """Read the rest and see the child dead, by its own hand if it has the patience; how it ended, for ``os``."""
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
        assert state in self.allowed, f"expected one of {self.allowed}, found {state} ({kind})"
        if kind == "O":
            self.openings += 1
            self.under_way += len(self.allowed) > 1
            self.kept += state == self.allowed[-1] and len(self.allowed) > 1
        self.acknowledged += kind == "A"
        self.closings += kind == "C"
        self.allowed = [state]


def close_and_check(directory: str, ledger: Ledger, flushes: int, may_find_junk: bool = False) -> None:
    """One life without a violent end: open, compare, flush so often, close, ``check``."""
    before = ledger.closings
    life = partial(live, directory, ledger.flushes, flushes, may_find_junk=may_find_junk)
    ledger.end(*fork(life), _PATIENCE_SECONDS)
    assert ledger.closings == before + 1, f"expected one of {ledger.allowed}, found {ledger.error}"


def in_a_process_of_its_own(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call it in a new process, which has no threads, so that it may fork; returns or raises what it does."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def fast_directory() -> str | None:
    """Where temporary files are in memory, so that syncs are cheap; None for the usual place."""
    return _MEMORY_FILES if os.access(_MEMORY_FILES, os.W_OK) else None


def run_kills(count: int, seed: int = 0) -> Report:
    """Kill so many processes. Raises ``AssertionError`` at the first violation, with what was expected and found."""
    return in_a_process_of_its_own(_serve, count, seed)


def _serve(count: int, seed: int) -> Report:
    began, chance = time.monotonic(), random.Random(seed)
    gc.freeze()  # the children would copy what a collection marks
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
    """One life and its end."""
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
    """Kills its process at the last of so many failpoints."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def step(self, _name: str) -> None:
        self._left -= 1
        if self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

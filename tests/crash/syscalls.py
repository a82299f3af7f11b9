"""System calls of the real disk that fail: each call that a queue makes, with each error, and with a kill.

``strace`` attaches to a child that works on a queue, and answers one of its system calls instead of the kernel. It
returns ``EIO``, ``ENOSPC`` or ``EINTR``, once or from then on, or it kills the child at the start of the call. The
child reports to a ledger the state before each flush and after it (see ``kills``). Promises:

- A call of the queue succeeds, or raises a documented error that names the injected one. If Python repeats an
  interrupted call, ``EINTR`` is not seen.
- No sync fails silently. After a ``BrokenQueueError`` every call raises it, until the queue is opened again.
- After an error that occurred once, the life continues: the session flushes again, or the queue opens again.
- A fresh process finds the acknowledged state, or that state with the whole flush that was under way. ``check`` finds
  no problem, and no lock is left.

The cases are counted: a run without a fault records the calls of each program and their phases. Tracing of the child
begins after its imports, so that the number of a call counts only the queue's own calls. The list is shuffled, always
in one order, so that each slice of it is a sample.

A call that strace answers does not happen. So a file whose ``close`` fails stays open and locked while the child lives,
which the kernel would not do. A killed call has not begun; with the kernel, it may have begun.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import portalocker  # noqa: F401  here, so that no call of its import is among those that fail

from persistentqueue import (
    BrokenQueueError,
    CorruptionError,
    PersistentQueue,
    PersistentQueueError,
    QueueLockedError,
    ResourceError,
)
from persistentqueue.runtime.maintenance import Maintenance
from persistentqueue.runtime.session_state import SessionParts
from persistentqueue.session import Session
from persistentqueue.system.disk import DISK
from tests.support.disks import call_on

from .exploring import ViolationError
from .kills import Ledger, close_and_check, fast_directory, fork, item

FAULTS = {
    "EIO": "error=EIO:when={}",
    "ENOSPC": "error=ENOSPC:when={}",
    "EINTR": "error=EINTR:when={}",
    "KILL": "signal=KILL:when={}",
    "EIO+": "error=EIO:when={}+",
    "ENOSPC+": "error=ENOSPC:when={}+",
}
"""Action of strace on a call; with ``+`` it affects all later calls, too."""
SYNCS = frozenset({"fdatasync", "fsync"})
RETRIED = frozenset(
    {"openat", "pread64", "pwrite64", "pwritev", "pwritev2", "fdatasync", "fsync", "ftruncate", "fallocate", "flock"}
)
"""Calls that Python repeats when a signal interrupts them; nothing can interrupt the others on a local disk."""
_OF_OPENDIR = "O_NONBLOCK"
"""Flag of an ``openat`` that the C library makes, not Python."""

_CALLS = "%file,%desc"
# The child talks to the ledger by ``write`` and to strace by ``access``; a queue makes neither call.
_NOT_OF_THE_QUEUE = frozenset({"write", "mmap", "access", "faccessat", "faccessat2"})
_ACCESS = "/^f?access(at2?)?$"
_TRACED, _PHASE = "is it traced?", "phase "
_LINE = re.compile(r"(?P<pid>\d+) +(?P<call>\w+)\((?P<arguments>.*)\) += (?P<result>\S+)")
_PREFIX = "syscalls-"
_PR_SET_PTRACER = 0x59616D61
_PATIENCE_SECONDS = 20.0
_ATTEMPTS = 3
"""Number of times that a step is tried: one fault may show in the call and in the next one, but not a third time."""


class SyscallsUnavailable(Exception):  # noqa: N818 - a reason to skip, not an error
    """This machine cannot inject faults; the message says why."""


class Program(NamedTuple):
    """Work of a child: always the same steps, with these settings."""

    name: str
    settings: dict[str, Any]
    spill_bytes: int


PROGRAMS = (
    Program("log", {"segment_bytes": 4096, "log_bytes": 4096}, spill_bytes=1 << 20),
    Program("segments", {"segment_bytes": 1000, "log_bytes": 4096, "inline_bytes": 0, "memory_bytes": 0}, 2000),
    Program("unsynced", {"segment_bytes": 1000, "log_bytes": 4096, "memory_bytes": 500, "sync": False}, 4000),
)


class Case(NamedTuple):
    """One run: the call with this number, counted from the beginning, has the fault."""

    place: str | None
    program: Program
    phase: str
    call: str
    number: int
    is_retried: bool
    fault: str

    def __str__(self) -> str:
        return (
            f"{self.fault} in {self.call} {self.number} ({self.program.name}, {self.phase}, in {self.place or 'tmp'})"
        )


class Report(NamedTuple):
    """Result of a campaign without a violation."""

    runs: int
    kills: int
    per_phase: Counter[str]
    """Number of runs, by the phase of the fault."""
    errors: Counter[str]
    """Number of errors that the queue raised, by the name of their class."""
    unnoticed: int
    """Number of runs without an error: the call was retried, or its failure does no harm."""
    acknowledged: int
    """Number of flushes that returned."""
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.runs} system calls answered, {self.kills} of them with a kill, {self.unnoticed} unnoticed, "
            f"raised: {_listed(self.errors)}; {self.acknowledged} acknowledged flushes, 0 violations; "
            f"{_listed(self.per_phase)}; {self.seconds:.1f} s, {self.runs / self.seconds:.0f} per second"
        )


def run_injections(first: int = 0, count: int | None = None, jobs: int = 1) -> Report:
    """Run ``count`` cases from ``first`` on, by default all of them, in ``jobs`` processes.

    Raises ``ViolationError`` at the first violation, with the case and the command that replays it. Raises
    ``SyscallsUnavailable``.
    """
    began = time.monotonic()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        shares = [pool.submit(_serve, first, count, job, jobs) for job in range(jobs)]
        reports = [share.result() for share in shares]
    *sums, _ = zip(*reports, strict=True)
    runs, kills, per_phase, errors, unnoticed, acknowledged = sums
    return Report(
        sum(runs),
        sum(kills),
        sum(per_phase, Counter()),
        sum(errors, Counter()),
        sum(unnoticed),
        sum(acknowledged),
        time.monotonic() - began,
    )


# --- strace ----------------------------------------------------------------------------------------------------------


class Traced(NamedTuple):
    """A child, the parent's end of its ledger (see ``kills.fork``), and the process that traces it."""

    pid: int
    pipe: int
    tracer: subprocess.Popen[bytes]


@contextmanager
def traced(child: Callable[[int], None], log: str, calls: str, *options: str) -> Iterator[Traced]:
    """Fork a child, and trace these calls of it, from its first one on. The caller must wait for the child's end."""
    rules = ["-e", f"trace={_ACCESS},{calls}", "-e", f"inject={_ACCESS}:retval=0", *options]
    reading, writing = os.pipe()

    def live(ledger: int) -> None:
        with suppress(OSError, AttributeError):  # on some systems a sibling needs this permission to trace
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(2**64 - 1), 0, 0, 0)
        os.write(writing, b".")  # calls before this point must not be counted
        while not os.access(_TRACED, os.F_OK):  # there is no such file: strace answers that it exists
            os.sched_yield()
        child(ledger)

    try:
        pid, pipe = fork(live)
        os.read(reading, 1)
    finally:
        os.close(reading)
        os.close(writing)
    command = ["strace", "-f", "-qq", "-s", "256", "-o", log, *rules, "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as tracer:
        yield Traced(pid, pipe, tracer)


def need_strace() -> None:
    """Raise ``SyscallsUnavailable`` unless strace can be attached to a child of this process."""
    if shutil.which("strace") is None:
        raise SyscallsUnavailable("there is no strace")
    with traced(lambda _ledger: None, os.devnull, "fsync") as (pid, pipe, tracer):
        try:
            said = tracer.communicate(timeout=_PATIENCE_SECONDS)[1]
        finally:
            Ledger().end(pid, pipe)
    if tracer.returncode:
        raise SyscallsUnavailable(f"strace does not attach: {said.decode().strip()}")


def mark(phase: str) -> None:
    """Tell strace the phase that begins. The child calls it."""
    os.access(_PHASE + phase, os.F_OK)


def calls_of(log: str) -> Iterator[re.Match[str]]:
    """Yield the calls in a log of strace, in order: ``pid``, ``call``, ``arguments``, ``result``."""
    with open(log, encoding="ascii") as lines:
        for line in lines:
            match = _LINE.match(line)
            if match is not None and _TRACED not in line:
                yield match


# --- the child's side ------------------------------------------------------------------------------------------------


class _Child:
    """Performs the steps, even if some of them fail. Raises ``AssertionError`` at a violation."""

    def __init__(self, directory: str, case: Case, notes: int, ledger: int) -> None:
        self._directory, self._case = directory, case
        self._notes, self._ledger = notes, ledger
        self._code = getattr(errno, case.fault.rstrip("+"), 0)
        self._queue: PersistentQueue | None = None
        self._is_known = False
        self._first = self._next = 0

    def live(self) -> None:
        """Perform all steps. Return early if a lasting fault prevents the rest."""
        steps: list[Callable[[], None]] = [
            partial(self._open, "open"),
            partial(self._work, 3, 0),
            partial(self._work, 1, 2),
            partial(self._work, 9, 1, "roll"),
            self._trim,
            partial(self._work, 2, 8),
            self._close,
            partial(self._open, "reopen"),
            partial(self._work, 2, 1),
            self._crash,
            partial(self._open, "recover"),
            partial(self._work, 0, 3),
            self._close,
        ]
        for step in steps:
            if not self._attempt(step):
                return

    def _attempt(self, step: Callable[[], None]) -> bool:
        for _ in range(_ATTEMPTS):
            try:
                step()
            except (PersistentQueueError, OSError) as error:
                self._judge(error)
                if isinstance(error, QueueLockedError):
                    return False
                if isinstance(error, CorruptionError):
                    break  # the items are set aside until the next opening, which the parent makes
                self._go_on(error)
            else:
                return True
        assert self._case.fault.endswith("+"), "failed for good, though there was one fault"
        with suppress(PersistentQueueError, OSError):
            self._close()
        return False

    def _judge(self, error: BaseException) -> None:
        """Check that the fault explains the error."""
        os.write(self._notes, type(error).__name__.encode() + b" ")
        if isinstance(error, QueueLockedError):
            # The kernel frees the lock of a closed descriptor; with strace, the descriptor may stay open.
            assert self._case.call == "close", repr(error)
            return
        # Bytes that cannot be read are damage.
        answers = CorruptionError if self._case.call == "pread64" and self._code == errno.EIO else BrokenQueueError
        assert isinstance(error, BrokenQueueError | ResourceError | OSError | answers), (
            f"{error!r} is no answer to a fault"
        )
        codes: set[int | None] = set()
        cause: BaseException | None = error
        while cause is not None:
            codes.add(getattr(cause, "errno", None))
            cause = cause.__cause__
        assert self._code in codes, f"{error!r} does not name {self._case.fault}"
        assert not (self._code == errno.EINTR and self._case.is_retried), f"an interrupted call shows: {error!r}"

    def _go_on(self, error: BaseException) -> None:
        """Roll back the step, or forget the queue so that it is opened again."""
        queue = self._queue
        if queue is None:
            return
        if isinstance(error, BrokenQueueError) and not queue.closed:
            self._expect_broken(queue)
        if isinstance(error, BrokenQueueError) or queue.closed:
            self._queue, self._is_known = None, False
            with suppress(PersistentQueueError, OSError):
                queue.close()
        elif self._is_known:
            self._session.rollback()
            self._say(b"B", self._first, self._next)  # nothing is under way

    def _expect_broken(self, queue: PersistentQueue) -> None:
        session = self._session
        calls: list[Callable[[], object]] = [
            session.flush,
            lambda: session.dequeue_many(1),
            lambda: session.enqueue(b"never"),
            lambda: list(queue.browse()),
            queue.trim,
            queue.session().flush,
        ]
        for number, call in enumerate(calls):
            try:
                call()
            except BrokenQueueError:
                continue
            raise AssertionError(f"call {number} of a broken queue was answered")

    def _open(self, phase: str = "recover") -> None:
        mark(phase)
        if self._queue is None:
            # A clock that stands still: then the queue scans the inbox as often as in the run that counted the calls.
            disk = replace(DISK, time_ns=lambda: 0)
            self._queue = call_on(disk, PersistentQueue, self._directory, **self._case.program.settings)
        if not self._is_known:
            group = self._queue._open_queue
            assert group is not None
            self._session = Session(SessionParts(group, spill_bytes=self._case.program.spill_bytes))
            first, end = group._store.state.gone_count, group._store.state.next_sequence
            assert list(self._queue.browse()) == [item(number) for number in range(first, end)], "wrong items"
            self._say(b"O", first, end)
            self._first, self._next, self._is_known = first, end, True

    def _work(self, added: int, taken: int, phase: str = "flush") -> None:
        """Perform one transaction."""
        if not self._is_known:
            self._open()
        session, first, end = self._session, self._first, self._next
        mark("dequeue")
        dequeued: list[bytes] = []
        wanted = [item(number) for number in range(first, min(first + taken, end))]
        # A list ends before a block that cannot be read; the next call raises the error.
        while len(dequeued) < len(wanted) and (more := session.dequeue_many(len(wanted) - len(dequeued))):
            dequeued += more
        assert dequeued == wanted, "wrong items"
        mark("enqueue" if phase == "flush" else phase)
        session.enqueue_many([item(number) for number in range(end, end + added)])
        mark(phase)
        first, end = first + len(dequeued), end + added
        self._say(b"B", first, end)
        try:
            session.flush()
        except ResourceError as error:
            self._judge(error)
            self._say(b"B", self._first, self._next)
            self._say(b"B", first, end)
            session.flush()  # repeating the flush is documented
        self._say(b"A", first, end)
        self._first, self._next = first, end

    def _trim(self) -> None:
        if not self._is_known:
            self._open()
        mark("trim")
        assert self._queue is not None
        self._queue.trim()

    def _close(self) -> None:
        mark("close")
        queue, self._queue, self._is_known = self._queue, None, False
        if queue is not None:
            queue.close()

    def _crash(self) -> None:
        """End like a killed process: files closed, lock freed, nothing written."""
        mark("crash")
        queue, self._queue, self._is_known = self._queue, None, False
        if queue is not None and queue._open_queue is not None:
            queue._open_queue.disown("crashed by a test")

    def _say(self, kind: bytes, first: int, end: int) -> None:
        os.write(self._ledger, b"%s %d %d\n" % (kind, first, end))


# --- the server's side -----------------------------------------------------------------------------------------------


def _serve(first: int, count: int | None, job: int, jobs: int) -> Report:
    """Run one in ``jobs`` of these cases."""
    began = time.monotonic()
    need_strace()
    gc.freeze()  # a garbage collection would write to pages that the children share
    total = Report(0, 0, Counter(), Counter(), 0, 0, 0.0)
    cases = all_cases()
    for number in range(len(cases))[first:][:count][job::jobs]:
        case = cases[number]
        try:
            errors, acknowledged = _run(case)
        except (AssertionError, OSError) as error:
            replay = f"python -m tests.crash syscalls --first {number} --count 1"
            raise ViolationError(f"case {number}, {case}: {error}\nreplay with: {replay}") from error
        total = Report(
            total.runs + 1,
            total.kills + (case.fault == "KILL"),
            total.per_phase + Counter([case.phase]),
            total.errors + Counter(errors),
            total.unnoticed + (not errors and case.fault != "KILL"),
            total.acknowledged + acknowledged,
            time.monotonic() - began,
        )
    return total


def all_cases() -> list[Case]:
    """Return each call of each program with each fault, on a disk and in memory; in a random but fixed order."""
    places = [None] if fast_directory() is None else [None, fast_directory()]
    cases = [
        Case(place, program, *call, fault)
        for place in places
        for program in PROGRAMS
        for call in _count_calls(place, program)
        for fault in FAULTS
    ]
    random.Random(0).shuffle(cases)
    return cases


def _count_calls(place: str | None, program: Program) -> list[tuple[str, str, int, bool]]:
    """Return the calls that the program makes: phase, name, number among the calls of that name, if Python retries
    it."""
    calls = []
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=place) as root:
        log = os.path.join(root, "strace")
        outcome = _live(root, Case(place, program, "", "", 0, False, ""), Ledger(), log, _CALLS)
        assert outcome == (0, []), f"without a fault it ends with {outcome}"
        phase, numbers = "", Counter[str]()
        for match in calls_of(log):
            call = match["call"]
            if call.startswith(("access", "faccess")):
                phase = match["arguments"].split(_PHASE)[1].split('"')[0]
            elif call not in _NOT_OF_THE_QUEUE:
                numbers[call] += 1
                is_retried = call in RETRIED and _OF_OPENDIR not in match["arguments"]
                calls.append((phase, call, numbers[call], is_retried))
    return calls


def _run(case: Case) -> tuple[list[str], int]:
    """Run one case and compare; return the raised errors, and the number of acknowledged flushes."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=case.place) as root:
        ledger, log = Ledger(), os.path.join(root, "strace")
        rule = f"inject={case.call}:{FAULTS[case.fault].format(case.number)}"
        status, errors = _live(root, case, ledger, log, case.call, "-e", rule)
        if case.fault == "KILL":
            assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"not killed: {status}"
        else:
            injected = [match for match in calls_of(log) if match["call"] == case.call and "INJ" in match.string]
            assert injected, "there was no such call"
            assert status == 0, f"ended with {status}: {ledger.error}"
            assert errors or case.call not in SYNCS or case.fault == "EINTR", "a sync failed in silence"
        close_and_check(os.path.join(root, "queue"), ledger, flushes=0)
        return errors, ledger.acknowledged


def _live(root: str, case: Case, ledger: Ledger, log: str, calls: str, *options: str) -> tuple[int, list[str]]:
    """Run a traced life; return how it ended, and the errors that were raised."""
    reading, writing = os.pipe()
    directory = os.path.join(root, "queue")

    def live(ledger: int) -> None:
        # strace counts the calls of each thread separately, and shielded calls of the main thread run in another one.
        # Maintenance comes by the clock, and would add calls to a slow life. This process has only this life.
        Maintenance.maintain_soon = lambda self: None  # type: ignore[method-assign]
        with ThreadPoolExecutor(1) as alone:
            alone.submit(_Child(directory, case, writing, ledger).live).result()

    try:
        with traced(live, log, calls, *options) as child:
            os.close(writing)
            status = ledger.end(child.pid, child.pipe, _PATIENCE_SECONDS)
        return status, os.read(reading, 65536).decode().split()
    finally:
        os.close(reading)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "nothing"

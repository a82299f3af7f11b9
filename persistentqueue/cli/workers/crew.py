"""The parent of worker processes: it starts them, restarts those that die, and ends them gracefully.

The parent owns the queue, unless another process does, and looks every ``LOOK_SECONDS`` whether the queue has an owner.
It runs no work of its own, so it dies with no item, and it ends only after all of its workers.

A worker that dies is started again. If it has done an item, that is at once. Otherwise the parent waits first, each
time twice as long, and at most ``PAUSE_SECONDS_MAX``.

Each worker is in a session of its own, so Ctrl-C reaches the parent alone. A kill takes the children of a worker along.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import NamedTuple

from persistentqueue import NotServedError, ResourceError

from ..parser import UsageError
from .loop import DRAINED, HOPELESS, Job, Place, pause_seconds
from .signals import Signals

LOOK_SECONDS = 1.0
"""Time between two looks whether the queue has an owner, in seconds."""
PAUSE_SECONDS_MAX = 10.0
"""The longest time before a worker is started again that has done no item, in seconds."""
_START = (
    "import sys; sys.path[:] = filter(None, sys.path); import json; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "sys.argv[0] = 'persistentqueue worker'; from persistentqueue.cli.workers.loop import main; "
    "sys.exit(main(sys.argv[1:]))"
)
"""The program of a worker process, for ``python -c``. It finds modules where its parent does, and not in the working
directory first, which may have a ``queue.py``."""
_PATH = [*sys.path]
"""Where modules are found before the module of the function is imported, which may be in the working directory."""
_LOG = logging.getLogger("persistentqueue")


def need_python() -> None:
    """Raise ``UsageError`` if no Python interpreter runs this process: each worker would be the same program again."""
    if getattr(sys, "frozen", False) or not sys.executable:
        raise UsageError(
            "worker processes need a Python interpreter, and this program is not run by one: run the command with an "
            "installed Python, or call connect() in processes that your program starts"
        )


class Counts(NamedTuple):
    """The result of the verb: items done, failures of the function, and workers that were started again."""

    done: int
    failed: int
    restarted: int
    killed: bool
    """True if a second signal has killed the workers."""
    hopeless: bool
    """True if a worker has ended because the owner cannot open the next item."""


class Worker:
    """One worker: its process, if it runs, and what it has reported."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.pipe = -1
        self.rest = b""
        """The beginning of a line of which the rest is to come."""
        self.done = self.failed = 0
        self.done_before = 0
        """Items that were done before the process was started."""
        self.deaths = 0
        """Deaths in a row of processes that had done no item."""
        self.starts_at = 0.0
        """Time at which to start the process; ``inf`` for never."""
        self.is_drained = False
        """True if the process has reported that the queue is drained, and ends."""
        self.is_hopeless = False
        """True if the process has reported that the owner cannot open the next item, and ends."""

    def start(self, job: Job) -> None:
        """Start the process."""
        self.pipe, theirs = os.pipe()
        os.set_blocking(self.pipe, False)
        self.rest, self.done_before, self.starts_at = b"", self.done, inf
        place = Place(self.number, os.getpid(), theirs)
        documents = [json.dumps(each) for each in (_PATH, job._asdict(), place._asdict())]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, *documents],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs],
                start_new_session=True,
            )
        except BaseException:
            os.close(self.pipe)
            raise
        finally:
            os.close(theirs)

    def hear(self) -> bool:
        """Take the reports that have come; return False if there will be no more."""
        try:
            while data := os.read(self.pipe, 65536):
                *lines, self.rest = (self.rest + data).split(b"\n")
                for line in lines:
                    self._take(line)
        except BlockingIOError:
            return True
        return False

    def _take(self, line: bytes) -> None:
        if line == DRAINED.strip():
            self.is_drained = True
        elif line == HOPELESS.strip():
            self.is_hopeless = True
        else:
            done, failed = line.split()
            self.done += int(done)
            self.failed += int(failed)

    def is_over(self) -> bool:
        """Return whether the process has ended since the last call, and take its last reports."""
        if self.process is None or self.process.poll() is None:
            return False
        self.hear()
        return True

    def close(self) -> None:
        """Forget the process, which has ended."""
        os.close(self.pipe)
        self.process = None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process; kill its children, too, if that is the signal."""
        if self.process is None:
            return
        if number is signal.SIGKILL:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        self.process.send_signal(number)


class Crew:
    """All workers of one command."""

    def __init__(self, job: Job, processes: int, signals: Signals, look: Callable[[], object]) -> None:
        """``look`` makes a call of the queue, and so makes this process its owner if there is none."""
        self._job, self._signals, self._look = job, signals, look
        self._workers = [Worker(number) for number in range(1, processes + 1)]
        self._restarted = 0
        self._is_ending = False
        self._signals_seen = 0
        self._looks_at = time.monotonic() + LOOK_SECONDS

    def run(self) -> Counts:
        """Run the workers until a signal has ended them, or until the queue is drained. Raises errors of the queue."""
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._signals, selectors.EVENT_READ)
                while self._is_wanted():
                    self._start_due(selector)
                    for key, _ in selector.select(self._seconds_left()):
                        worker = key.data
                        if worker is not None and not worker.hear():
                            selector.unregister(worker.pipe)
                    self._signals.clear()
                    self._obey()
                    for worker in self._workers:
                        if worker.is_over():
                            with suppress(KeyError):
                                selector.unregister(worker.pipe)
                            self._bury(worker)
                    self._keep_owner()
        finally:
            self._kill()
        done, failed = (sum(getattr(each, what) for each in self._workers) for what in ("done", "failed"))
        hopeless = any(each.is_hopeless for each in self._workers)
        return Counts(done, failed, self._restarted, self._signals_seen > 1, hopeless)

    def _is_wanted(self) -> bool:
        """Return whether a worker runs, or will be started."""
        return any(each.process is not None or each.starts_at < inf for each in self._workers)

    def _start_due(self, selector: selectors.BaseSelector) -> None:
        for worker in self._workers:
            if worker.process is None and worker.starts_at <= time.monotonic():
                try:
                    worker.start(self._job)
                except OSError as error:  # memory or descriptors are short
                    self._plan(worker, f"cannot be started: {error}")
                else:
                    selector.register(worker.pipe, selectors.EVENT_READ, worker)

    def _seconds_left(self) -> float:
        """Return the time until something is due."""
        due = min(self._looks_at, *(each.starts_at for each in self._workers if each.process is None), inf)
        return max(due - time.monotonic(), 0.0)

    def _obey(self) -> None:
        """End all workers gracefully after the first signal, and kill them after the second one."""
        count = len(self._signals.came)
        if count > self._signals_seen:
            self._signals_seen = count
            self._start_none()
            for worker in self._workers:
                worker.send(signal.SIGTERM if count == 1 else signal.SIGKILL)

    def _start_none(self) -> None:
        self._is_ending = True
        for worker in self._workers:
            worker.starts_at = inf

    def _bury(self, worker: Worker) -> None:
        """Note that a process has ended, and plan the next one if it was not meant to end."""
        assert worker.process is not None
        status = worker.process.returncode
        worker.close()
        if worker.is_drained or worker.is_hopeless:
            self._start_none()
        if worker.is_hopeless:
            for each in self._workers:
                each.send(signal.SIGTERM)
        if not self._is_ending:
            if worker.done > worker.done_before:
                worker.deaths = -1
            self._restarted += 1
            self._plan(worker, f"has ended by signal {-status}" if status < 0 else f"has ended with status {status}")

    def _plan(self, worker: Worker, what: str) -> None:
        """Plan the next start of a worker that does not run."""
        worker.deaths += 1
        seconds = pause_seconds(worker.deaths, PAUSE_SECONDS_MAX)
        worker.starts_at = time.monotonic() + seconds
        _LOG.warning("worker %d %s; it is started again in %.1f s", worker.number, what, seconds)

    def _keep_owner(self) -> None:
        """Make a call of the queue if the time has come: if its owner has died, this process is the next one."""
        if time.monotonic() >= self._looks_at:
            try:
                self._signals.interruptible(self._look, self._signals_seen)  # an owner that is stopped answers no call
            except (NotServedError, ResourceError) as error:
                _LOG.warning("%s", error)
            self._looks_at = time.monotonic() + LOOK_SECONDS

    def _kill(self) -> None:
        """Kill the workers that still run, because of an error of the queue."""
        for worker in self._workers:
            if worker.process is not None:
                worker.send(signal.SIGKILL)
                worker.process.wait()
                worker.close()

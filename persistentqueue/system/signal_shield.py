"""Calls that no signal handler interrupts.

CPython runs signal handlers in the main thread only, between two of its instructions, and a handler may raise: the one
for Ctrl-C does. Whatever changes files, or shared memory in several steps, must not end in the middle. ``shielded``
therefore makes such a call of the main thread in a helper thread, which no handler ever enters, and waits for it. What
a handler raises meanwhile is raised when the call is over. Any other thread makes the call itself.

The hand-over takes some 50 microseconds. The shortest commits and dequeues do without it: they are written so that an
interruption finds nothing done, or something that a shielded call can finish (see ``commit`` and ``reader``).

The helper thread lives as long as there is something to do, and ends by itself; it has no queue of its own to close.

What the core asks of the threads above it: to make a call that no signal handler interrupts.

The core starts no thread. Its owner hands it an ``Insist`` instead: ``shield.shielded`` in a program, ``call_once``
where nothing interrupts, as in the tests that simulate a disk.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from .disk import after_fork_in_child

T = TypeVar("T")
THREAD_NAME = "persistentqueue-shield"
_IDLE_SECONDS = 0.05
"""After so long without a call the helper thread ends."""


class _Job(Generic[T]):
    """A call, and what came of it. ``ended`` is released behind it."""

    __slots__ = ("call", "ended", "error", "is_over", "result")

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.result: T | None = None
        self.error: BaseException | None = None
        self.is_over = False
        self.ended = threading.Lock()
        self.ended.acquire()

    def run(self) -> None:
        """Make the call, and wake the thread that waits for it."""
        try:
            self.result = self.call()
        except BaseException as error:
            self.error = error
        self.is_over = True
        self.ended.release()

    def wait(self) -> None:
        """Return when the call is over. Again, if it was interrupted: it may be over then."""
        while not self.is_over:
            self.ended.acquire()


class _Helper:
    """The helper thread, which makes one call after the other. Only the main thread asks for any."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._starting = threading.Lock()
        self._is_running = False
        self.main = threading.main_thread().ident
        """The one thread in which signal handlers run."""

    def run(self, job: _Job[Any]) -> None:
        """Have the job done, and wait for its end, however often this is interrupted; raises the first interruption."""
        try:
            self._jobs.put(job)  # one call of C: an interruption behind it finds the job submitted
            self._start()
            job.wait()
        except BaseException:
            # Between an interruption and the next ``try`` no instruction looks for another one.
            try:
                self._start()
                job.wait()
            except BaseException:
                try:
                    self._start()
                    job.wait()
                except BaseException:
                    self._start()
                    job.wait()
                    raise
                raise
            raise

    def end(self) -> None:
        """End the thread as soon as it has nothing to do."""
        if self._is_running:
            self._jobs.put(None)

    def _start(self) -> None:
        """Have a thread that takes the job which was submitted."""
        with self._starting:
            if self._is_running:
                return
            self._is_running = True
            try:
                _thread.start_new_thread(self._begin, ())  # one call of C; Thread.start() must not be interrupted
            except RuntimeError:  # too many threads, or the interpreter is about to end
                self._is_running = False
        if not self._is_running:
            while not self._jobs.empty():
                job = self._jobs.get()
                if job is not None:
                    job.run()

    def _begin(self) -> None:
        """Start the helper thread, from a thread that is not interrupted."""
        try:
            threading.Thread(target=self._work, name=THREAD_NAME, daemon=True).start()
        except RuntimeError:
            self._work()

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            except Empty:
                job = None
            if job is not None:
                job.run()
                del job  # the thread must not hold a queue that its user has dropped
                continue
            with self._starting:  # a job is submitted first, then a thread is asked for
                if self._jobs.empty():
                    self._is_running = False
                    return


_HELPER = _Helper()


def is_exposed() -> bool:
    """Return whether signal handlers run in this thread: a call of any other one need not be shielded."""
    return threading.get_ident() == _HELPER.main


def shielded(call: Callable[[], T]) -> T:
    """Make the call, and return or raise what it does; no signal handler interrupts it.

    In the main thread, what a handler raises meanwhile is raised behind the call, instead of what the call returns or
    raises: the caller looks at what the call has changed. The call must wait for no lock that its thread holds.
    """
    if not is_exposed() or sys.is_finalizing():
        return call()
    job = _Job(call)
    _HELPER.run(job)
    error, job.error = job.error, None
    if error is not None:
        try:
            raise error
        finally:
            del error, job  # no cycle of the error, its traceback, and this frame
    return job.result  # type: ignore[return-value]  # there is no error, so there is a result


def end_helper() -> None:
    """End the helper thread as soon as it has nothing to do; the next shielded call starts another one."""
    _HELPER.end()


def _begin_anew() -> None:
    # The child has not the thread, and another main thread than its parent, if one of the others has forked it.
    _HELPER.__init__()  # type: ignore[misc]


after_fork_in_child(_begin_anew)


class Shielded(Protocol):
    """Makes a call to its end, whatever signal handlers raise meanwhile."""

    def __call__(self, call: Callable[[], T], /) -> T:
        """Make the call; return or raise what it does. What a handler raises is raised behind it, instead."""


def call_once(call: Callable[[], T], /) -> T:
    """Make the call."""
    return call()


def is_interruption(error: BaseException) -> bool:
    """Return whether the error may come from a signal handler, and so says nothing of the call that it ended.

    An ``OSError`` of the system has a number. One without comes from a handler, as ``TimeoutError`` often does.
    """
    return not isinstance(error, OSError) or error.errno is None

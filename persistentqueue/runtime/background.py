"""The one background thread of a process, for work that no caller waits for: giving space back, compacting, filling
pools.

Deleting a large file takes the system longer than writing a frame, and nothing depends on when it happens. So no flush
waits for it.

The thread lives only while there is a job to do, or one that is due soon. The first job starts it, and it ends after
the last one. So a process with a thousand idle queues has no such thread, and a process with a thousand busy ones has
one. If a job is never done here, closing its queue does it, or the next opening.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from queue import Empty, SimpleQueue
from typing import NamedTuple

from ..interrupts.locks import Lock
from ..system.disk import after_fork_in_child

THREAD_NAME = "persistentqueue-maintenance"

Job = Callable[[], None]


class _Message(NamedTuple):
    """A message to the thread: a job, or None to forget the jobs of this owner."""

    job: Job | None
    due_seconds: float
    owner: int | None


class BackgroundThread:
    """A list of jobs, and the thread that does them one after the other. For any number of threads."""

    def __init__(self) -> None:
        # ``put`` of this class takes no lock, so a finalizer may call it at any point of its thread.
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._starting = Lock()
        self._is_running = False

    def submit(self, job: Job, delay_seconds: float = 0.0, owner: object = None) -> bool:
        """Do the job soon, but not before the delay is over. If no thread can be started, drop it and return False.

        An error of the job goes to ``threading.excepthook``. The other jobs, of other queues perhaps, are done.
        """
        with self._starting:
            self._inbox.put(_Message(job, time.monotonic() + delay_seconds, id(owner)))
            if self._is_running:
                return True
            try:
                # A daemon: a process that ends must not wait for it, and unfinished jobs do no harm.
                threading.Thread(target=self._run, name=THREAD_NAME, daemon=True).start()
            except RuntimeError:  # too many threads, an interpreter that is about to end, or a subinterpreter
                self._inbox = SimpleQueue()
            else:
                self._is_running = True
            return self._is_running

    def forget(self, owner: object) -> None:
        """Drop the jobs of this owner, except one that is about to begin. A finalizer may call this."""
        if self._is_running:
            self._inbox.put(_Message(None, 0.0, id(owner)))

    def _run(self) -> None:
        jobs: list[tuple[float, int, Job, int | None]] = []
        came = 0
        while True:
            left_seconds = jobs[0][0] - time.monotonic() if jobs else 0.0
            try:
                # A due job must not block here: get(timeout=0.0) of CPython 3.10 was seen to wait for ever. A look that
                # does not block has no timeout: the class of gevent before 25.4 raises ValueError for one.
                message = self._inbox.get(block=left_seconds > 0, timeout=left_seconds if left_seconds > 0 else None)
            except Empty:
                if jobs:
                    # No variable may keep the job: the thread must not keep a queue alive that its user has dropped.
                    try:
                        heappop(jobs)[2]()
                    except BaseException:  # not to the log: perhaps a handler of it has raised
                        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
                elif self._ends():
                    return
                continue
            if message.job is not None:
                came += 1
                heappush(jobs, (message.due_seconds, came, message.job, message.owner))
            else:
                jobs = [entry for entry in jobs if entry[3] != message.owner]
                heapify(jobs)
            del message

    def _ends(self) -> bool:
        with self._starting:
            self._is_running = not self._inbox.empty()
            return not self._is_running


BACKGROUND = BackgroundThread()
"""The background thread of this process."""


def _begin_anew() -> None:
    # The child has the jobs of its parent's queues, but no thread, and perhaps a lock that stays taken for ever.
    BACKGROUND.__init__()  # type: ignore[misc]


after_fork_in_child(_begin_anew)

"""The one thread of a process that does what nobody has to wait for: giving space back, compacting, filling pools.

To delete a large file takes the system longer than to write a frame, and nothing depends on when it happens; so no
flush waits for it. The thread lives only while there is something to do, or to be done soon: it is started by the first
job, and ends behind the last one, so that a process with a thousand idle queues has no thread, and one with a thousand
busy ones has one. A job that is never done is done by closing its queue, or by the next opening.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from .disk import after_fork_in_child

THREAD_NAME = "persistentqueue-maintenance"

Job = Callable[[], None]


class Maintenance:
    """Jobs in line, and the thread that does them, one after the other. For any number of threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._jobs: list[tuple[float, int, Job, object]] = []
        """When they are due, in which order they came, what is to be done, for whom."""
        self._numbers = count()
        self._is_running = False

    def submit(self, job: Job, delay_seconds: float = 0.0, owner: object = None) -> None:
        """Have the job done soon, but not before the delay is over. It must not raise; where no thread can be started
        it is not done."""
        with self._changed:
            heappush(self._jobs, (time.monotonic() + delay_seconds, next(self._numbers), job, owner))
            if self._is_running:
                self._changed.notify()
                return
            # A daemon, since a process that ends must not wait for it: what it leaves undone does no harm.
            thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # too many threads, or the interpreter is about to end
                self._jobs.clear()
            else:
                self._is_running = True

    def forget(self, owner: object, blocking: bool = True) -> None:
        """Leave undone what was submitted for this owner and is not being done.

        Not ``blocking`` for a finalizer, which may run while this very thread submits a job: it may stay in line then.
        """
        if self._changed.acquire(blocking):
            try:
                self._jobs = [entry for entry in self._jobs if entry[3] is not owner]
                heapify(self._jobs)
                self._changed.notify()
            finally:
                self._changed.release()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            job()
            del job  # the thread must not keep a queue alive that its user has dropped

    def _next(self) -> Job | None:
        with self._changed:
            while self._jobs:
                left_seconds = self._jobs[0][0] - time.monotonic()
                if left_seconds <= 0:
                    return heappop(self._jobs)[2]
                self._changed.wait(left_seconds)
            self._is_running = False
            return None


MAINTENANCE = Maintenance()
"""The one of this process."""


def _begin_anew() -> None:
    # The child has the jobs of its parent's queues, but not the thread, and maybe a mutex that is taken for ever.
    MAINTENANCE.__init__()  # type: ignore[misc]


after_fork_in_child(_begin_anew)

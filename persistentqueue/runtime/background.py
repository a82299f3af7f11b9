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
from queue import Empty, SimpleQueue
from typing import NamedTuple

from ..system.disk import after_fork_in_child

THREAD_NAME = "persistentqueue-maintenance"

Job = Callable[[], None]


class _Message(NamedTuple):
    """What the thread is told: a job, or None to forget those of this owner."""

    job: Job | None
    due_seconds: float
    owner: int | None


class BackgroundThread:
    """Jobs in line, and the thread that does them, one after the other. For any number of threads."""

    def __init__(self) -> None:
        # The one mailbox that a finalizer may use wherever it interrupts its thread: its ``put`` takes no lock.
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._starting = threading.Lock()
        self._is_running = False

    def submit(self, job: Job, delay_seconds: float = 0.0, owner: object = None) -> None:
        """Have the job done soon, but not before the delay is over. It must not raise; where no thread can be started
        it is not done."""
        with self._starting:
            self._inbox.put(_Message(job, time.monotonic() + delay_seconds, id(owner)))
            if self._is_running:
                return
            # A daemon, since a process that ends must not wait for it: what it leaves undone does no harm.
            thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # too many threads, or the interpreter is about to end
                self._inbox = SimpleQueue()
            else:
                self._is_running = True

    def forget(self, owner: object) -> None:
        """Leave undone what was submitted for this owner, unless it is about to be done. For finalizers too."""
        if self._is_running:
            self._inbox.put(_Message(None, 0.0, id(owner)))

    def _run(self) -> None:
        jobs: list[tuple[float, int, Job, int | None]] = []
        came = 0
        while True:
            left_seconds = jobs[0][0] - time.monotonic() if jobs else 0.0
            try:
                # A job that is due waits for nothing: get(timeout=0.0) of CPython 3.10 was seen to wait for ever.
                message = self._inbox.get(block=left_seconds > 0, timeout=max(left_seconds, 0.0))
            except Empty:
                if jobs:
                    # Nothing may keep the job afterwards: the thread must not hold a queue that its user has dropped.
                    try:
                        heappop(jobs)[2]()
                    except BaseException:
                        self._is_running = False  # the next job has a thread again
                        raise
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
"""The one of this process."""


def _begin_anew() -> None:
    # The child has the jobs of its parent's queues, but not the thread, and maybe a mutex that is taken for ever.
    BACKGROUND.__init__()  # type: ignore[misc]


after_fork_in_child(_begin_anew)

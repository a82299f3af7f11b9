"""The one thread of a process that does what nobody has to wait for: giving space back.

To delete a large file takes the system longer than to write a frame, and nothing depends on when it happens; so no
flush waits for it. The thread lives only while there is something to do: it is started by the first job, and ends
behind the last one, so that a process with a thousand idle queues has no thread. A job that is never done is done by
closing its queue, or by the next opening.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from .disk import after_fork_in_child

THREAD_NAME = "persistentqueue-maintenance"


class Maintenance:
    """Jobs in line, and the thread that does them, one after the other. For any number of threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()
        self._is_running = False

    def submit(self, job: Callable[[], None]) -> None:
        """Have the job done soon. It must not raise; where no thread can be started it is not done."""
        with self._mutex:
            self._jobs.append(job)
            if self._is_running:
                return
            # A daemon, since a process that ends must not wait for it: what it leaves undone does no harm.
            thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # too many threads, or the interpreter is about to end
                self._jobs.clear()
            else:
                self._is_running = True

    def _run(self) -> None:
        while True:
            with self._mutex:
                if not self._jobs:
                    self._is_running = False
                    return
                job = self._jobs.popleft()
            job()
            del job  # the thread must not keep a queue alive that its user has dropped


MAINTENANCE = Maintenance()
"""The one of this process."""


def _begin_anew() -> None:
    # The child has the jobs of its parent's queues, but not the thread, and maybe a mutex that is taken for ever.
    MAINTENANCE.__init__()  # type: ignore[misc]


after_fork_in_child(_begin_anew)

"""What stands between an event loop and threads: who does something elsewhere, and who is told of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
Job = Callable[[], None]
LINGER_SECONDS = 1.0
"""How long a thread waits for its next job."""


class Landing(asyncio.Future[T]):
    """What comes of something that a thread does and that nobody can stop. A task that awaits it and is cancelled
    meanwhile goes on when it is over, by a ``CancelledError``."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - that of asyncio's
        """It cannot be: then the task keeps in mind that it was."""
        return False

    def land(self, found: T | BaseException) -> None:
        """That is what came of it."""
        if isinstance(found, BaseException):
            self.set_exception(found)
        else:
            self.set_result(found)


async def over(landing: Landing[T]) -> T:
    """What came of it. A cancellation is raised from the error that it ended with, if any."""
    try:
        return await landing
    except asyncio.CancelledError as cancelled:
        raise cancelled from landing.exception()


def tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    """Have the loop make this call. For any thread; of a loop that was closed nobody hears anything."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)


class Worker:
    """One thread that does jobs, which must not raise, in order. It is there while there are some, and a moment longer.

    A daemon: a process that ends does not wait for it, and what it leaves undone is as after a crash.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, job: Job) -> None:
        """Have the job done. Raises ``RuntimeError`` where no thread can be started."""
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._jobs.put(job)

    def end(self) -> None:
        """Wait for the jobs and the thread."""
        with self._starting:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._jobs.put(None)
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=LINGER_SECONDS)
            except Empty:
                with self._starting:
                    if self._jobs.empty():
                        self._thread = None
                        return
                continue
            if job is None:
                return
            job()
            del job  # the thread must not hold a queue that its user has dropped

"""Futures and worker threads that connect an event loop with blocking calls."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import islice
from math import inf
from queue import Empty, SimpleQueue
from typing import TypeVar

from persistentqueue.interrupts.locks import Lock
from persistentqueue.interrupts.members import Members
from persistentqueue.system.disk import after_fork_in_child

T = TypeVar("T")
Job = Callable[[], None]
LINGER_SECONDS = 1.0
"""Seconds that a thread waits for its next job before it ends."""
_BATCH_ITEMS = 256
"""Number of items that browsing reads at a time."""
_GIVE_UP_SECONDS = 0.01
"""Time between two attempts to end the wait of a call that its thread has not begun yet, in seconds."""


def landable(error: BaseException) -> BaseException:
    """Return the error in the form that a future takes: a ``StopIteration`` becomes a ``RuntimeError``, as it does when
    it leaves a coroutine. A ``retry_delay_seconds`` that calls ``next`` may raise it."""
    if not isinstance(error, StopIteration):
        return error
    found = RuntimeError(f"a call of the queue raised {error!r}: let what the queue calls raise another error")
    found.__cause__ = error
    return found


def raise_in(waiters: deque[asyncio.Future[None]], error: BaseException, most: float = inf) -> None:
    """Give the error to up to ``most`` of the waiting tasks."""
    while waiters and most:
        waiter = waiters.popleft()
        if not waiter.done():
            waiter.set_exception(landable(error))
            most -= 1


class Landing(asyncio.Future[T]):
    """The result of a call in a thread, which cannot be cancelled.

    If a task that awaits it is cancelled, the task continues when the call has ended, with ``CancelledError``.
    """

    found: tuple[T | BaseException] | None = None
    """Result or exception of a call that has ended; None before."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - asyncio's signature
        """Return False: the call cannot be cancelled here. ``CancelledError`` comes when the thread has finished.

        If it has finished, set the result: Ctrl-C in the middle of the event loop may have lost that call of it.
        """
        if self.found is not None:
            self.land(*self.found)
        return False

    def bring(self, found: T | BaseException) -> None:
        """Let the event loop set the result, or the exception. For the thread that has made the call."""
        self.found = (found,)
        tell(self.get_loop(), self.land, found)

    def land(self, found: T | BaseException) -> None:
        """Set the result, or the exception, once."""
        if self.done():
            return
        if isinstance(found, BaseException):
            self.set_exception(landable(found))
        else:
            self.set_result(found)


async def over(landing: Landing[T]) -> T:
    """Return the result of the call. A ``CancelledError`` has the exception of the call, if any, as its cause."""
    try:
        return await landing
    except asyncio.CancelledError as cancelled:
        raise cancelled from landing.exception()


class Closing:
    """The close of a queue, which one task makes. A task that closes the queue meanwhile waits for its end.

    For the tasks of one event loop.
    """

    def __init__(self) -> None:
        self._landing: Landing[None] | None = None

    @property
    def is_under_way(self) -> bool:
        """True while a task closes the queue."""
        return self._landing is not None

    async def once(self, close: Callable[[], Awaitable[None]]) -> None:
        """Await ``close``, or wait for another task that does. Only the task that awaits ``close`` gets its errors."""
        if self._landing is not None:
            await over(self._landing)
            return
        landing: Landing[None] = Landing(loop=asyncio.get_running_loop())
        self._landing = landing
        try:
            await close()
        finally:
            self._landing = None
            landing.land(None)


def tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    """Make the loop call this. For any thread; if the loop is closed, nothing is called."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)


def launch(loop: asyncio.AbstractEventLoop, submit: Callable[[Job], object], call: Callable[[], T]) -> Landing[T]:
    """Let a thread, to which ``submit`` gives jobs, make a call, and return its result as a future.

    The call sees the context variables of the caller, as with ``asyncio.to_thread``.
    """
    landing: Landing[T] = Landing(loop=loop)
    submit(partial(_make, landing, partial(copy_context().run, call)))
    return landing


def _make(landing: Landing[T], call: Callable[[], T]) -> None:
    found: T | BaseException
    try:
        found = call()
    except BaseException as error:
        found = error
    landing.bring(found)


class Worker:
    """One thread that runs jobs in order. Jobs must not raise.

    The thread exists while there are jobs, and ``LINGER_SECONDS`` longer. It is a daemon: a process that ends does not
    wait for it. Jobs that it leaves undone are as after a crash. A forked child does not get the jobs of its parent.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin_anew()
        _WORKERS.add(self)

    def _begin_anew(self) -> None:
        """Begin without a thread. A forked child lacks the thread of its parent, and the lock may be taken."""
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._starting = Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """True while there is a thread."""
        return self._thread is not None

    def submit(self, job: Job) -> None:
        """Run the job in the thread. Raises ``RuntimeError`` if no thread can be started."""
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, args=(self._jobs,), name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._jobs.put(job)

    async def ended(self) -> None:
        """Wait until all jobs are done and the thread has ended. A cancelled call waits, too.

        The last job of the thread ends the wait, so it needs no other thread, such as one of the event loop.
        """
        landing: Landing[None] = Landing(loop=asyncio.get_running_loop())
        with self._starting:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._jobs.put(partial(landing.bring, None))
                self._jobs.put(None)
                self._jobs = SimpleQueue()  # a later thread must not take the end of this one
        if thread is not None:
            try:
                await over(landing)
            finally:
                thread.join()  # it has no job left

    def _run(self, jobs: SimpleQueue[Job | None]) -> None:
        while True:
            try:
                job = jobs.get(timeout=LINGER_SECONDS)
            except Empty:
                with self._starting:
                    if jobs.empty():
                        self._thread = None
                        return
                continue
            if job is None:
                return
            job()
            del job  # the thread must not keep a reference to a queue that the user has dropped


_WORKERS: Members[Worker] = Members()


def _forget_parent() -> None:
    for worker in _WORKERS:
        worker._begin_anew()


after_fork_in_child(_forget_parent)


async def patiently(landing: Landing[T], give_up: Callable[[], object]) -> T:
    """Return the result of a call that may wait, for an item or for room. A cancellation ends the wait."""
    try:
        await asyncio.wait([landing])  # it logs no error of the call behind a cancellation
    except asyncio.CancelledError as cancelled:
        return await impatiently(landing, give_up, cancelled)
    return landing.result()


async def impatiently(
    landing: Landing[T], give_up: Callable[[], object], cancelled: asyncio.CancelledError | None = None
) -> T:
    """End the wait of a call, and return its result when it has ended. Then raise the error of a cancellation."""
    while not landing.done():
        give_up()
        landing.cancel()
        try:
            await asyncio.wait([landing], timeout=_GIVE_UP_SECONDS)
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        raise cancelled from landing.exception()
    return landing.result()


async def apart(name: str, call: Callable[[], T], give_up: Callable[[], object] | None = None) -> T:
    """Make a call in a thread of its own, and return its result. A cancellation ends its wait by ``give_up``."""
    thread = Worker(name)
    landing = launch(asyncio.get_running_loop(), thread.submit, call)
    try:
        return await (over(landing) if give_up is None else patiently(landing, give_up))
    finally:
        await thread.ended()


def read_some(items: Iterator[T]) -> tuple[list[T], Exception | None]:
    """Return the next items of the iterator, and the error that follows them, if any."""
    found: list[T] = []
    try:
        found.extend(islice(items, _BATCH_ITEMS))
    except Exception as error:
        return found, error
    return found, None


def session_name(name: str | None) -> str:
    """Return the name for a session: this one, or that of the running task; an empty text if none runs."""
    if name is not None:
        return name
    task = asyncio.current_task()
    return task.get_name() if task is not None else ""

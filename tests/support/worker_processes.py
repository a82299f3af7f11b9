"""Processes of tests that share a queue: each of them does what the test tells it, one call after the other."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from persistentqueue import PersistentQueueError, connect, transaction
from persistentqueue.errors import SessionLostError
from persistentqueue.serving.server import Server
from persistentqueue.system.disk import DISK
from persistentqueue.workers import SharedQueue
from tests.support.disks import using_disk

_CONTEXT = get_context("forkserver")  # a process in a few milliseconds, forked where no threads are
_CONTEXT.set_forkserver_preload(["tests.support.worker_processes", "persistentqueue.serving.calls", "portalocker"])
TIMEOUT_SECONDS = 60.0
"""Time that any answer may take before the test fails."""
BEFORE_ANSWER, AFTER_ANSWER = "before the answer", "after the answer"
"""Places in a flush that are no failpoints of the disk."""


class CallError(Exception):
    """A call of the process has raised. The message begins with the name of the class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Colleague:
    """A process that uses the queue, and has one session from the beginning.

    ``call`` makes a call there, and returns its result. ``begin`` and ``result`` are its two halves.
    """

    def __init__(self, path: Path, name: Any = None, **settings: Any) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_work, args=(theirs, path, name, settings), daemon=True)
        self._process.start()
        theirs.close()
        self.answered = 0.0
        """Time of the last result, of the clock of all processes."""

    def __enter__(self) -> Colleague:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._pipe.close()
        self._process.close()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process.pid is not None
        return self._process.pid

    def begin(self, name: str, *arguments: Any, **named: Any) -> None:
        """Begin a call of the session, or of another function of this module's ``_CALLS``."""
        self._pipe.send((name, arguments, named))

    def result(self, seconds: float = TIMEOUT_SECONDS) -> Any:
        """Return the result of the call. Raises ``CallError`` if the call has raised."""
        assert self._pipe.poll(seconds), "no answer"
        done, found, self.answered = self._pipe.recv()
        if not done:
            raise CallError(*found)
        return found

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Make a call, and return its result."""
        self.begin(name, *arguments, **named)
        return self.result()

    def is_silent(self, seconds: float = 0.2) -> bool:
        """Return True if the call that was begun has no result for so many seconds."""
        return not self._pipe.poll(seconds)

    def kill(self) -> float:
        """Send ``kill -9``, and wait until the process is gone. Return the time of the kill."""
        began = time.monotonic()
        self._process.kill()
        self._process.join()
        return began

    def wait_for_death(self) -> None:
        """Wait until the process has killed itself."""
        self._process.join(TIMEOUT_SECONDS)
        assert self._process.exitcode == -signal.SIGKILL

    def stop(self) -> None:
        """Send ``SIGSTOP``, and wait until the process has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)

    def go_on(self) -> None:
        """Send ``SIGCONT``."""
        os.kill(self.pid, signal.SIGCONT)


class _Bomb:
    """Kills its process at a place of a flush, when it is armed."""

    def __init__(self) -> None:
        self._place = ""

    def arm(self, place: str) -> None:
        """Let the next flush end the process at this place."""
        self._place = place
        if place in {BEFORE_ANSWER, AFTER_ANSWER}:
            answer = Server._answer

            def explode(server: Server) -> None:
                """Answer the flush, or not; then die."""
                waiting = any(b"A" in message[4:5] for client in server._peers for message in client.client.out)
                if place == AFTER_ANSWER:
                    answer(server)
                if waiting:
                    os.kill(os.getpid(), signal.SIGKILL)
                answer(server)

            Server._answer = explode  # type: ignore[method-assign, assignment]

    def step(self, name: str) -> None:
        """Die at the place that was chosen."""
        if name == self._place:
            os.kill(os.getpid(), signal.SIGKILL)


class _Logged(logging.Handler):
    """Keeps what the process has logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a text."""
        self.texts.append(record.getMessage())


def _limit_descriptors(spare: int) -> int:
    """Let the process open so many files more, and return the former limit."""
    before, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    while (filling := os.open(os.devnull, os.O_RDONLY)) < used:  # no number below the limit is free
        pass
    os.close(filling)
    resource.setrlimit(resource.RLIMIT_NOFILE, (filling + spare, highest))
    return before


def _set_limit(most: int) -> None:
    """Let the process open so many files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _forbid(*packages: str) -> None:
    """Let each import of these packages fail from now on."""
    loaded = [name for name in sys.modules if name.partition(".")[0] in packages]
    sys.modules.update(dict.fromkeys((*loaded, *packages)))  # type: ignore[arg-type]  # None is for this


def _move(source: SharedQueue[bytes], target: SharedQueue[bytes]) -> bytes | None:
    """Take an item from a queue, put it into another one, and return it. For None, put another item."""
    with transaction(source, target) as (taking, putting):
        item = taking.dequeue()
        putting.enqueue(item or b"another")
    return item


def _work(pipe: Connection, path: Path, name: str | None, settings: dict[str, Any]) -> None:
    """Do what the test tells, until it ends."""
    bomb, logged = _Bomb(), _Logged()
    logging.getLogger("persistentqueue").addHandler(logged)
    queues: dict[str | None, SharedQueue[bytes]] = {}

    def join(name: str | None) -> SharedQueue[bytes]:
        """Connect to the queue of this name."""
        with using_disk(replace(DISK, failpoint=bomb.step)):
            queues[name] = connect(path, name, **{"lock_timeout": TIMEOUT_SECONDS, **settings})
        return queues[name]

    queue = join(name)
    session = queue.session()
    others: list[Any] = []

    def open_another() -> bool:
        """Open one more session; return whether it works."""
        others.append(queue.session())
        others[-1].enqueue(b"another")
        return bool(others[-1].flush())

    def use_in_a_fork() -> list[bytes]:
        """Take two items in a forked child, with a session of its own, and return what the child has left."""
        pid = os.fork()
        if not pid:
            with queue.session() as own:
                own.enqueue(b"of the child: %d" % len(own.dequeue_many(2)))
                own.flush()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        return list(queue.peek(9))

    def hammer(ends_on: int) -> tuple[int, list[str]]:
        """Enqueue and dequeue until a message comes. Return the number of flushes, and the errors."""
        flushes, errors = 0, []
        while not pipe.poll():
            try:
                session.enqueue(b"x")
                session.dequeue_many(ends_on)
                flushes += session.flush()
            except PersistentQueueError as error:
                errors.append(repr(error))
        return flushes, errors

    def move_on(*names: str) -> int:
        """Move items from one queue to the other, and back, until a message comes. Return the number of moves."""
        moves = 0
        while not pipe.poll():
            for source, target in (names, names[::-1]):
                with suppress(SessionLostError), transaction(queues[source], queues[target]) as (taking, putting):
                    putting.enqueue_many(taking.dequeue_many(2))
                    moves += 1
        return moves

    calls: dict[str, Callable[..., Any]] = {
        "owns": lambda: queue.owns,
        "owned": lambda: [each for each, queue in queues.items() if queue.owns],
        "connect": lambda name: join(name).owns,
        "reach": lambda name: len(queues[name]),
        "move": lambda source, target: _move(queues[source], queues[target]),
        "pid": os.getpid,
        "logged": logged.texts.copy,
        "forbid": _forbid,
        "length": queue.__len__,
        "peek": queue.peek,
        "peek of": lambda name, most: queues[name].peek(most),
        "close queue": queue.close,
        "arm": bomb.arm,
        "limit": _limit_descriptors,
        "set limit": _set_limit,
        "open another": open_another,
        "close another": lambda: others.pop().close(),
        "use in a fork": use_in_a_fork,
        "hammer": hammer,
        "move on": move_on,
    }
    pipe.send((True, queue.owns, time.monotonic()))
    while True:
        name, arguments, named = pipe.recv()
        try:
            found = (True, (calls.get(name) or getattr(session, name))(*arguments, **named))
        except Exception as error:
            found = (False, (type(error).__name__, str(error)))
        pipe.send((*found, time.monotonic()))

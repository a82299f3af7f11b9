"""One worker of the campaign ``workers``: a process that uses a shared queue at random, and records each of its calls.

A record is a line in a file of the process. The line of a call is written before the call, and the line of its result
after it, each with the time of ``CLOCK_MONOTONIC``. So a process that is killed leaves a call without a result. Each
line is also a byte in a pipe, which tells the campaign that work goes on.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import portalocker  # noqa: F401 - late in the package, but a fork shall not import

import persistentqueue.serving.calls
import persistentqueue.system.sockets  # noqa: F401
from persistentqueue import (
    HoldLostError,
    OutcomeUnknownError,
    PersistentQueueError,
    SessionLostError,
    UnflushedWarning,
    connect,
)
from persistentqueue.workers import SharedQueue

NEVER_WAITING = 2
"""The slots below this number never wait without a timeout, so that other processes get items."""
PRODUCING = 4
"""The slots below this number enqueue more than they dequeue."""
_MOST, _MOST_CALM = (1, 1, 2, 5), (1, 1, 1, 2)
_WAITS: tuple[float | None, ...] = (0.0, 0.0, 0.005, None)
_SESSIONS_MAX = 2
HOLD_SECONDS: dict[int, float] = {6: 0.015, 7: 0.5}
"""The slots whose sessions hold items for a limited time."""

Item: TypeAlias = str


class Post(NamedTuple):
    """Instructions for a worker that begins."""

    directory: str
    slot: int
    """Place of the worker among those of the campaign. A successor has the slot of the worker that ended."""
    life: int
    """Number of the worker in its slot, from 0 on."""
    seed: int
    is_calm: bool
    """True if no call should wait without a timeout, or take many items."""
    settings: dict[str, int]
    progress: int
    """Descriptor of the pipe that gets a byte for each record."""


class Recorder:
    """Writes records to a file. A record has the time in nanoseconds as ``t``."""

    def __init__(self, path: str, progress: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._progress = progress

    def write(self, **fields: Any) -> None:
        """Append a record."""
        os.write(self._fd, json.dumps({"t": time.monotonic_ns(), **fields}).encode() + b"\n")
        with suppress(BlockingIOError):
            os.write(self._progress, b".")


class _Use:
    """A session of the worker, and what it has taken and not flushed."""

    def __init__(self, session: Any, name: str) -> None:
        self.session = session
        self.name = name
        self.held: list[Item] = []
        self.new: list[Item] = []
        self.made = 0


class Worker:
    """Uses the queue until it is killed, or until it is told to close. ``SIGUSR1`` tells it."""

    def __init__(self, post: Post, records: Recorder) -> None:
        self._post, self._records = post, records
        self._chance = random.Random(post.seed)
        self._uses: list[_Use] = []
        self._opened = 0
        self._owns = False
        self._is_told = False
        self._queue: SharedQueue[bytes]

    def run(self) -> None:
        """Connect, work, close."""
        signal.signal(signal.SIGUSR1, self._close_soon)
        self._records.write(op="connect")
        self._queue = connect(
            self._post.directory,
            hold_seconds=HOLD_SECONDS.get(self._post.slot),
            lock_timeout=60.0,
            grace_seconds=self._chance.choice((0.0, 0.0, 0.02, 1.0)),  # else no hold goes to the next owner
            **_typed(self._post),
        )
        self._records.write(done=True, owns=self._notes_owner())
        while not self._is_told and self._chance.random() > 0.002:
            self._step()
        self._records.write(op="quit", owns=self._queue.owns)
        self._queue.close()
        self._records.write(done=True)

    def _close_soon(self, *_: object) -> None:
        self._is_told = True

    def _notes_owner(self) -> bool:
        self._owns = self._owns or self._queue.owns
        return self._owns

    def _step(self) -> None:
        """Make one call, of one of the sessions."""
        if not self._uses or (len(self._uses) < _SESSIONS_MAX and self._chance.random() < 0.05):
            name = f"{self._post.slot}.{self._post.life}.{self._opened}"
            self._opened += 1
            self._uses.append(_Use(self._queue.session(name), name))
        use, draw = self._chance.choice(self._uses), self._chance.random()
        if not (use.held or use.new) or draw < 0.25:
            self._gather(use)
        elif draw < 0.80:
            self._flush(use)
        elif draw < 0.85 and use.new:
            self._flush_marked(use)
        elif draw < 0.95:
            self._simply(use, "rollback", use.session.rollback)
        elif draw < 0.97:
            self._call(use, {"op": "extend"}, use.session.extend)
        else:
            self._simply(use, "close", use.session.close)
            self._uses.remove(use)

    def _gather(self, use: _Use) -> None:
        """Enqueue items, dequeue some, or do both."""
        produces = self._post.slot < PRODUCING
        if self._chance.random() < (0.7 if produces else 0.3):
            for _ in range(self._chance.choice([1, 1, 2, 3] if produces else [1])):
                use.new.append(f"{use.name}.{use.made}")
                use.made += 1
                use.session.enqueue(use.new[-1].encode())
        if self._chance.random() < (0.3 if produces else 0.8):
            self._dequeue(use)

    def _dequeue(self, use: _Use) -> None:
        calm = self._post.is_calm
        most = self._chance.choice(_MOST_CALM if calm else _MOST)
        timeout = self._chance.choice(_WAITS[:-1] if calm or self._post.slot < NEVER_WAITING else _WAITS)

        def take() -> list[Item]:
            if most > 1:
                return [item.decode() for item in use.session.dequeue_many(most, timeout=timeout)]
            item = use.session.dequeue(timeout=timeout)
            return [] if item is None else [item.decode()]

        taken = self._call(use, {"op": "dequeue", "most": most}, take) or []
        use.held += taken  # not in one step: the call may begin a new list

    def _flush(self, use: _Use) -> None:
        self._call(use, {"op": "flush", "new": use.new, "held": use.held}, use.session.flush, ends=True)

    def _flush_marked(self, use: _Use) -> None:
        """Flush with the next version of the marker of this slot, which a dead worker may have begun, or repeat the
        last one."""
        marker = f"slot {self._post.slot}"
        self._records.write(op="marker", name=marker)
        version = self._queue.marker(marker) or 0
        self._records.write(done=version, owns=self._notes_owner())
        version += self._chance.random() < 0.9 or not version
        fields = {"op": "flush", "new": use.new, "held": use.held, "marker": marker, "version": version}
        self._call(use, fields, lambda: use.session.flush(marker=(marker, version)), ends=True)

    def _simply(self, use: _Use, name: str, call: Callable[[], object]) -> None:
        self._call(use, {"op": name}, call, ends=True)

    def _call(self, use: _Use, fields: dict[str, Any], call: Callable[[], Any], *, ends: bool = False) -> Any:
        """Make and record a call. With ``ends`` it ends the transaction of the session."""
        self._records.write(session=use.name, **fields)
        try:
            found = call()
        except (SessionLostError, HoldLostError) as error:
            if isinstance(error, OutcomeUnknownError):
                raise
            lost = "hold" if isinstance(error, HoldLostError) else "session"
            self._records.write(lost=lost, owns=self._notes_owner())
            use.held, use.new = [], []
            if lost == "hold":
                self._simply(use, "rollback", use.session.rollback)
            return None
        if ends:
            use.held, use.new = [], []
        self._records.write(done=found, owns=self._notes_owner())
        return found


def _typed(post: Post) -> Any:
    return post.settings


def live(post: Post, path: str) -> int:
    """Be a worker, with its records at ``path``. Return the exit code of the process."""
    records = Recorder(path, post.progress)
    warnings.simplefilter("ignore", UnflushedWarning)  # a worker drops work on purpose
    try:
        Worker(post, records).run()
    except BaseException:
        records.write(error=traceback.format_exc())
        return 1
    return 0


def drain(directory: str, path: str, progress: int) -> int:
    """Open the queue as the last process, record its items in order, and leave them. Return the exit code."""
    records = Recorder(path, progress)
    try:
        records.write(op="connect")
        with connect(directory, lock_timeout=60.0) as queue:
            records.write(done=True, owns=queue.owns)
            with queue.session() as session:
                records.write(session="drain", op="dequeue", most=0)
                items = [item.decode() for item in session.dequeue_many(10**9)]
                records.write(done=items)
                session.rollback()
    except (PersistentQueueError, OSError, ValueError):
        records.write(error=traceback.format_exc())
        return 1
    return 0

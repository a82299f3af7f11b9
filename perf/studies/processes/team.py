"""The worker processes of one contender.

Each process joins the contender, says so, and then does one task after the other. A task is a function that can be
pickled. It gets the process's ``Hand``, and its result goes back to this process.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from ...contenders.shared import Hand, Place, Shared

ANSWER_SECONDS = 120.0
_LEAD_SECONDS = 0.05
"""Time between the order to begin and the beginning, so that every process has the order by then."""

T = TypeVar("T")
Task = Callable[[Hand], T]
_CONTEXT = multiprocessing.get_context("spawn")


class Member:
    """One worker process."""

    def __init__(self, contender: Shared, place: Place) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_work, args=(contender, place.address, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, task: Task[Any]) -> None:
        """Give the process a task. ``answer`` returns its result."""
        self._pipe.send(task)

    def answer(self) -> Any:
        """Return the result of the oldest task that was not answered yet, or what the process reported.

        Raises:
            TimeoutError: If there is none after two minutes.
            EOFError: If the process has ended. Its error is on stderr.
        """
        if not self._pipe.poll(ANSWER_SECONDS):
            raise TimeoutError(f"process {self.process.pid} has not answered for {ANSWER_SECONDS:g} s")
        return self._pipe.recv()

    def call(self, task: Task[T]) -> T:
        """Give the process a task and return its result."""
        self.ask(task)
        result: T = self.answer()
        return result

    def kill(self) -> float:
        """Kill the process, wait for its death, and return the time just before the signal."""
        begun = time.monotonic()
        self.process.kill()
        self.process.join()
        return begun

    def dismiss(self) -> None:
        """Have the process leave the queue and end. Kill it if it does not end in time."""
        if self.process.is_alive():
            try:
                self._pipe.send(None)
                self.process.join(ANSWER_SECONDS)
            except BrokenPipeError:
                pass
            self.process.kill()
        self.process.join()
        self.process.close()
        self._pipe.close()


class Team:
    """The worker processes of one contender. The first of ``members`` has joined before all others."""

    def __init__(self, contender: Shared, place: Place) -> None:
        self._contender, self.place = contender, place
        self.members: list[Member] = []

    def hire(self, count: int) -> Sequence[Member]:
        """Start this number of processes, and return them when all have joined."""
        hired = [Member(self._contender, self.place) for _ in range(count)]
        self.members += hired
        for member in hired:
            member.answer()
        return hired

    def all(self, task: Task[T]) -> list[T]:
        """Give all processes a task, and return the results."""
        for member in self.members:
            member.ask(task)
        return [member.answer() for member in self.members]

    def timed(self, task: Callable[[float, float, Hand], T], seconds: float) -> tuple[float, list[T]]:
        """Have all processes begin at one time, for these seconds. Return the time of the beginning, and the results.

        The task gets the times of its beginning and end. ``CLOCK_MONOTONIC`` is one clock for all processes.
        """
        begin = time.monotonic() + _LEAD_SECONDS
        return begin, self.all(_Timed(task, begin, begin + seconds))


class _Timed:
    """A task that begins at a given time."""

    def __init__(self, task: Callable[[float, float, Hand], Any], begin: float, end: float) -> None:
        self._task, self._begin, self._end = task, begin, end

    def __call__(self, hand: Hand) -> Any:
        time.sleep(max(self._begin - time.monotonic(), 0))
        return self._task(self._begin, self._end, hand)


@contextmanager
def team(contender: Shared, directory: Path, count: int) -> Iterator[Team]:
    """Start a contender and this number of processes, in a directory that may exist.

    The first process joins alone. So it becomes the owner, unless the contender has a server.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with contender.serve(directory.absolute()) as place:
        made = Team(contender, place)
        try:
            made.hire(min(count, 1))
            made.hire(count - 1)
            yield made
        finally:
            for member in reversed(made.members):
                member.dismiss()


def _work(contender: Shared, address: str, pipe: Connection) -> None:
    """Join the contender, and do the tasks that come through the pipe until there are no more."""
    with contender.join(address) as hand:
        pipe.send(None)
        while True:
            try:
                task = pipe.recv()
            except EOFError:  # the measuring process has ended
                return
            if task is None:
                return
            pipe.send(task(hand))

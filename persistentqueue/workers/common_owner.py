"""One owner for the queues of a directory: whether a process may own a queue, beside others that it is connected to.

A transaction over several queues needs one process that owns all of them. A process that finds no owner of a queue
looks at the other connected queues of the directory, in the order of their names:

1. If a process owns one of them, that process should own this queue, too. Another process is asked to. It does so if it
   is connected to this queue.
2. If no process owns any of them, this process tries to own the first one of all before the others. Queues of dead
   letters come last: the owner of a queue opens its dead letters, too, and cannot do so while they have another owner.

The processes of a program connect to the same queues, one after the other. The process that is asked may be about to
connect to this queue. So the other one waits for ``PATIENCE_SECONDS`` before it owns the queue nevertheless. It waits
for ``CHANGE_SECONDS`` if another process has a lock, but does not serve yet, or no more.

A process that owned a queue before it connected to the others gives it up to their owner: see ``gather``. It gives up
dead letters before it owns their queue.

While owners change, two processes may own the queues of a transaction: one was stopped in the middle of step 2, for
example. Such a split ends by the next transaction of one of the two. The transactions of all are tried again until
then: see ``patiently``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from ..errors import PersistentQueueError
from ..interprocess.questions import ask
from ..serving.calls import CONNECTED, CONNECTED_TEXT, LEAVING_TEXT, OWN_NEIGHBOUR, UNKNOWN_TEXT, Connected
from ..serving.server import server_of
from ..system.disk import Disk, current_disk, dirname
from ..system.path_errors import suppress

R = TypeVar("R")
PATIENCE_SECONDS: Final = 0.25
"""Time that another process has to answer, and to connect to this queue, in seconds."""
CHANGE_SECONDS: Final = 2.0
"""Time that a process has to begin to serve a queue, or to end, in seconds."""
ASKING_SECONDS = 0.05
"""Time between two questions, in seconds."""


def gather(disk: Disk, directory: str, wait_seconds: float = 0.0) -> None:
    """Give the other queues of the directory that this process owns to the owner of this one, which another process is.

    It must be connected to them. A queue stays here as long as this process has sessions of it. If the owner is
    leaving, the call waits for its end for up to ``wait_seconds``. An owner that does not answer is asked once.
    Raises nothing.
    """
    if is_owned_here(directory):  # but this process did not connect to own it
        return
    ends_at = disk.monotonic() + wait_seconds
    for other in list(CONNECTED):
        if dirname(other.directory) == dirname(directory) and other.owns and not other.is_leaving:
            with suppress(PersistentQueueError, OSError):
                while (answer := _ask_to_own(disk, directory, other.directory)) == LEAVING_TEXT:
                    if disk.monotonic() >= ends_at:
                        return
                    disk.sleep(ASKING_SECONDS)
                if answer is None:
                    return
                if answer == CONNECTED_TEXT:
                    other.give_up()


def patiently(flush: Callable[[], R], directories: Sequence[str]) -> R:
    """Return the result of a flush of several queues, which is tried again as long as they have several owners.

    If this process is one of the owners, it gives up its queues. The flush must have committed nothing when it raises
    ``NoCommonOwnerError``, which comes out after ``CHANGE_SECONDS``.
    """
    disk = current_disk()
    ends_at = disk.monotonic() + CHANGE_SECONDS
    while True:
        try:
            return flush()
        except ValueError as error:
            if not getattr(error, "needs_common_owner", False) or disk.monotonic() >= ends_at:
                raise
        for directory in directories:
            gather(disk, directory)
        disk.sleep(ASKING_SECONDS)


def is_owned_here(directory: str) -> bool:
    """Return whether this process owns and serves the queue, whichever object has opened it."""
    return server_of(directory) is not None


def give_up_dead_letters(directory: str) -> None:
    """Give up the queue of dead letters in this directory, if this process has connected to it first and owns it.

    The owner of the queue that they come from opens them. They stay as long as this process has sessions of them.
    Raises the errors of ``close``.
    """
    for each in list(CONNECTED):
        if each.directory == directory and each.owns:
            each.give_up()


def _ask_to_own(disk: Disk, directory: str, another: str) -> Any:
    """Ask the owner of a queue to own another one; return its answer. Older versions do not know the call."""
    return ask(disk, directory, OWN_NEIGHBOUR, PATIENCE_SECONDS, UNKNOWN_TEXT, directory=another)


class Candidacy:
    """The wish of a process to own a queue without an owner. For one thread at a time."""

    def __init__(self, disk: Disk, directory: str, dead_letters: str) -> None:
        self._disk, self._directory, self._dead_letters = disk, directory, dead_letters
        self._begin = self._asks_at = disk.monotonic()
        self._patient_until = self._begin + PATIENCE_SECONDS

    def may_own(self) -> bool:
        """Return whether this process may own the queue now. If not, ask again, after a look for another owner."""
        parent = dirname(self._directory)
        others = [each for each in CONNECTED if dirname(each.directory) == parent and each.directory != self._directory]
        others = [each for each in others if not each.is_leaving]
        dead_letters = {self._dead_letters, *(each.dead_letters for each in others)}

        def place(directory: str) -> tuple[bool, str]:
            """Return the place of a queue in the order."""
            return directory in dead_letters, directory

        others.sort(key=lambda each: place(each.directory))
        now = self._disk.monotonic()
        if not others or others[0].owns or now >= self._patient_until:
            return True
        if now < self._asks_at:
            return False
        self._asks_at = now + ASKING_SECONDS
        for other in others:
            if other.owns or is_owned_here(other.directory):
                return True
            answer = _ask_to_own(self._disk, other.directory, self._directory)
            if answer is not None:
                if answer == CONNECTED_TEXT:  # it owns the queue, or tries again when it is asked again
                    self._patient_until = now + PATIENCE_SECONDS
                elif answer == LEAVING_TEXT:
                    self._patient_until = self._begin + CHANGE_SECONDS
                return False
            if self._disk.monotonic() >= self._patient_until:  # several owners may hang
                break
        return place(self._directory) < place(others[0].directory) or self._owns_first(others[0])

    def _owns_first(self, first: Connected) -> bool:
        """Try to own the first queue; return whether this process owns it."""
        self._patient_until = self._begin + CHANGE_SECONDS
        with suppress(PersistentQueueError, OSError):
            return first.own_here()
        return False

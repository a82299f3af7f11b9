"""The loop of a worker process: it takes items from a served queue, runs a function for each, and flushes.

``main`` is such a process; the verb ``worker`` starts it. It never owns the queue: if one worker ended as the owner,
all others would lose the items that they have on hold.

The effects on an item:

- The function returns: the next flush consumes the item.
- The function raises, in a queue that counts delivery attempts: the item is rejected with the error as its reason.
- The function raises, in another queue: the item goes back, and the process pauses, longer after each such failure.
- There is no room, as in a full dead-letter queue: all items since the last flush go back, and the process pauses.
- The process dies: the kernel ends its connection, and the owner puts the item back at once.

After each flush the process writes a line to the pipe of its parent: the number of items done, and of failures. So the
parent knows the counts of a process that was killed. If the process ends because the queue is drained, it writes
``DRAINED``. It writes ``HOPELESS`` if the owner lacks the key of the next item, or stdout has no reader any more.

If the parent has ended, the process ends as well, and says so. The parent may have been the owner: the process waits
for no other one.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from persistentqueue import (
    MissingExtraError,
    Options,
    OutcomeUnknownError,
    PersistentQueueError,
    QueueFullError,
    ResourceError,
    SessionLostError,
    WrongKeyError,
    codecs,
    connect,
)
from persistentqueue.drawing.text import many
from persistentqueue.workers import STOP, SharedSubscription

from ..app import explanation
from ..output import log_at_once, logged
from ..parser import UsageError
from ..streams import FAILED, finish, lacks_reader, ready
from .function import function_at, need_finished, words_of
from .signals import Signals

if TYPE_CHECKING:
    from persistentqueue import Session
    from persistentqueue.workers import SharedQueue, WorkerSession

CODECS: dict[str, codecs.Codec[Any]] = {"bytes": codecs.BYTES, "text": codecs.TEXT, "json": codecs.JSON}
"""Codecs by the words of the command line."""
DRAINED = b"drained\n"
"""The line of a process that ends because the queue is drained."""
HOPELESS = b"hopeless\n"
"""The line of a process that ends because each item would fail, also in another process."""
LOOK_SECONDS, DRAINED_LOOK_SECONDS = 0.5, 0.1
"""Longest time between two looks for a signal, in seconds; and the time until it is asked whether the queue is drained.
"""
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.1, 5.0
"""The first and the longest pause after a failure, in seconds, in a queue that counts no attempts."""
_LOG = logging.getLogger("persistentqueue")


class Job(NamedTuple):
    """The work of a worker process. It is passed as JSON."""

    path: str
    name: str | None
    subscription: str
    """Name of the subscription to consume; empty for the plain queue."""
    function: str
    codec: str
    batch: int
    until_empty: bool
    counts: bool
    """True if the command line asks for delivery attempts: then the owner must count them."""
    lock_timeout: float
    trust: bool
    network_disk: bool
    as_json: bool


class Place(NamedTuple):
    """The place of a worker process: its number among all, its parent, and the pipe to it."""

    number: int
    parent: int
    pipe: int

    def is_orphan(self) -> bool:
        """Return whether the parent has ended, which would report and restart."""
        return os.getppid() != self.parent


class Loop:
    """The loop of one process. ``run`` returns after a signal, without its parent, or when the queue is drained."""

    def __init__(self, job: Job, place: Place, function: Callable[[Any], object], signals: Signals) -> None:
        self._job, self._place, self._signals = job, place, signals
        self._function, self._codec = function, CODECS[job.codec]
        self._failures = 0
        """Failures without a success between them."""
        self._warned = False
        self._is_unread = False
        """True if the function has failed to print, since no process reads stdout any more."""

    def run(self) -> None:
        """Take items and work, until the end. Raises the errors of the queue."""
        job = self._job
        STOP.asked = self._place.is_orphan
        # Without a demand of its own (sync=False): the parent has told which options the owner has otherwise.
        options = Options(create=False, sync=False, trust=job.trust, network_disk=job.network_disk)
        look_seconds = DRAINED_LOOK_SECONDS if job.until_empty else LOOK_SECONDS
        with (
            connect(job.path, job.name, serve="never", options=options, lock_timeout=job.lock_timeout) as queue,
            consumer_of(queue, job.subscription).session(f"worker {self._place.number}") as session,
        ):
            while not self._must_end():
                try:
                    items = session.dequeue_many(job.batch, look_seconds)
                    if not items and job.until_empty and is_drained(queue, job.subscription):
                        self._report(DRAINED)
                        break
                except (WrongKeyError, MissingExtraError):
                    self._report(HOPELESS)
                    raise
                except (QueueFullError, ResourceError) as error:  # of the dead letters, for example
                    self._tell(f"it waits: {error}")
                    self._pause()
                    continue
                if items:
                    self._work(session, items)
                if self._is_unread:
                    self._report(HOPELESS)
                    raise UsageError("stdout has no reader any more, so each item would fail: let the reader go on")

    def _must_end(self) -> bool:
        """Return whether a signal came, or the parent has ended."""
        return self._signals.wait(0) or self._place.is_orphan()

    def _work(self, session: Session[bytes] | WorkerSession[bytes], items: Sequence[bytes]) -> None:
        """Run the function for the items, flush, and report."""
        done = failed = 0
        pauses = False
        try:
            for at, item in enumerate(items):
                if at and self._must_end():
                    session.put_back(len(items) - at)
                    break
                try:
                    need_finished(self._function(self._codec.decode(item)))
                except Exception as error:
                    self._is_unread = isinstance(error, BrokenPipeError) and lacks_reader(sys.stdout)
                    if self._is_unread:
                        session.put_back(len(items) - at)
                        break
                    failed += 1
                    self._tell(f"an item failed: {words_of(error)} ({place_of(error)})")
                    if not self._rejects(session, item, error):
                        session.put_back(len(items) - at)
                        pauses = True
                        break
                else:
                    done += 1
            session.flush()
        except SessionLostError as error:
            is_unknown = isinstance(error, OutcomeUnknownError)
            self._tell(f"{'perhaps ' if is_unknown else ''}{many(done, 'item is', 'items are')} done again: {error}")
            session.rollback()
            done = 0
        except (QueueFullError, ResourceError) as error:
            self._tell(f"{many(done, 'item is', 'items are')} done again: {error}")
            session.rollback()
            done, pauses = 0, True
        self._report(b"%d %d\n" % (done, failed))
        if done:
            self._failures = 0
        if pauses:
            self._pause()

    def _pause(self) -> None:
        """Pause, longer after each failure without a success between them."""
        self._failures += 1
        self._signals.wait(pause_seconds(self._failures, PAUSE_SECONDS_MAX))

    def _rejects(self, session: Session[bytes] | WorkerSession[bytes], item: bytes, error: Exception) -> bool:
        """Reject the item; return False if its queue counts no attempts."""
        try:
            session.reject(item, words_of(error))
        except ValueError as refusal:
            if self._job.counts and not self._warned:
                self._warned = True
                self._tell(f"items that fail go back at once: {refusal}: start the owner of the queue with the options")
            return False
        return True

    def _report(self, line: bytes) -> None:
        with suppress(BrokenPipeError):  # without its parent the process ends soon
            os.write(self._place.pipe, line)

    def _tell(self, text: str) -> None:
        _LOG.warning("worker %d: %s", self._place.number, text)


def consumer_of(queue: SharedQueue[bytes], subscription: str) -> SharedQueue[bytes] | SharedSubscription[bytes]:
    """Return the subscription of this name, or the queue itself if the name is empty.

    A subscription that does not exist is not made: its calls raise ``SubscriptionNotFoundError``.
    """
    return SharedSubscription(queue, subscription) if subscription else queue


def is_drained(queue: SharedQueue[bytes], subscription: str) -> bool:
    """Return whether the consumer has no items: ready, held by another process, delayed or published."""
    if queue.stats().published:  # looked at first: an item that is adopted between the looks is seen by the second one
        return False
    return not consumer_of(queue, subscription).sizes().unconsumed


def pause_seconds(failures: int, longest_seconds: float) -> float:
    """Return the pause after so many failures in a row, in seconds: none after 0, and then twice as long each time."""
    return min(PAUSE_SECONDS * 2.0 ** min(failures - 1, 32), longest_seconds) if failures else 0.0


def place_of(error: BaseException) -> str:
    """Return the innermost place at which the error was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.name} in {frame.filename}, line {frame.lineno}"


def main(arguments: Sequence[str]) -> int:
    """Run the process, and return its exit status: 0 after a graceful end, else 2."""
    ready(discards=True)
    job, place = (kind(**json.loads(text)) for kind, text in zip((Job, Place), arguments, strict=True))
    os.set_inheritable(place.pipe, False)
    with logged(job.as_json), Signals() as signals:
        log_at_once()
        try:
            function = function_at(job.function)  # it may take long: until then a signal ends the process at once
            signals.ready()
            Loop(job, place, function, signals).run()
        except KeyboardInterrupt:
            if not signals.came:  # the function has raised it
                raise
            return finish(0)
        except (PersistentQueueError, UsageError, OSError) as error:
            if not place.is_orphan():
                words = explanation(error, {"path": job.path, "name": job.name, "subscription": job.subscription})
                if isinstance(error, WrongKeyError):  # the processes themselves never open an item
                    option = f"--key {error.key_id}=FILE, for the command that owns the queue"
                    words = f"{error} (on the command line: {option})"
                _LOG.warning("worker %d: it ends: %s: %s", place.number, type(error).__name__, words)
                return finish(FAILED)
        if place.is_orphan():
            why = "it ends, since the command, process %d, has ended: what is not done stays in the queue: run it again"
            _LOG.warning(f"worker %d: {why}", place.number, place.parent)
    return finish(0)

"""Retries and dead letters: what a queue does with items that were handed out and not consumed.

An *attempt* is a delivery. It is logged, durably, before the item is handed out, so that one that ends its process, by
``kill -9`` or a power cut, is counted as well. An item whose attempts are used up is *buried*: consumed here and put
into the dead-letter queue, in its envelope, by one transaction over both (see ``several``). That happens with the flush
of the session that rejects it; when an exception leaves the block of the session that has it; or, where nobody came to
say anything, before it would be handed out once more. The order of the steps of a delivery:

1. Hold what is ready: a batch of what was never delivered, or one that was (see ``counting``).
2. Are its attempts used up? Bury it, and begin again. *A crash leaves it here, to be buried, or there.* Where there is
   no room for it there, it stays here, and others overtake it; who finds nothing else hears why.
3. Log the delivery. *A crash leaves an attempt that nobody saw: so there are never more of them than were counted.*
4. Hand it out.

So that no other item is given up with a bad one, the last attempt is made alone: to a session that holds nothing else,
and gets nothing more until it has flushed or rolled back. The threads are those of ``group``; who is buried here takes
part there as in any transaction over several queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from itertools import chain
from math import isfinite
from typing import NamedTuple

from ..core.dead_letter import DeadLetter
from ..core.delivery_counts import Attempts
from ..core.intervals import Intervals, Run, join_runs, within, without
from ..core.operations import Delayed, Delivered
from ..core.page_cache import cost
from ..engine.reader import CountedAvailability, CountedReader, Reader
from ..engine.store import Store
from ..engine.transaction import Transaction
from ..errors import PersistentQueueError, QueueFullError, ResourceError
from ..system.disk import Disk, basename
from .multi_queue import commit_jointly
from .open_queue import OpenQueue

Delay = float | Callable[[int], float]
"""Seconds before an item comes again: a number, or what makes it of how often the item was delivered."""
DELAY_SECONDS_MAX = 10 * 366 * 86_400.0
"""Ten years: what the log counts in nanoseconds has room for more."""
_NS = 10**9
_NEVER_FLUSHED = "delivered {} times, never flushed: each time the process ended, or the session was rolled back"


class Rejection(NamedTuple):
    """What a session has said of an item that it holds."""

    sequence: int
    item: bytes
    reason: str
    retry: bool
    delay_seconds: float


class Retries:
    """What all sessions of a queue share: how often an item is delivered, and what becomes of it then."""

    def __init__(self, disk: Disk, group: OpenQueue, max_attempts: int | None, delay: Delay) -> None:
        self._disk = disk
        self.group = group
        self.max_attempts = max_attempts
        self._delay = delay
        self.dead: OpenQueue | None = None
        """Of the dead-letter queue, if there is one."""

    def times(self, ready: CountedAvailability, sequence: int) -> int:
        """How often this one was delivered."""
        return self.group.look(lambda: self.group.store.state.times(ready.number, sequence))

    def is_used_up(self, times: int) -> bool:
        """Whether what was delivered so often is not to be delivered once more."""
        return self.max_attempts is not None and times >= self.max_attempts

    def delay_seconds(self, times: int) -> float:
        """How long it is until what was delivered so often comes again. Raises ``ValueError``, and what the setting
        does."""
        return checked_delay(self._delay(times) if callable(self._delay) else self._delay)

    def pieces(self, ready: CountedAvailability, runs: Iterable[Run]) -> list[tuple[int, int, int]]:
        """The runs in parts that were delivered equally often, and how often that was."""

        def pieces() -> list[tuple[int, int, int]]:
            times = self.group.store.state.attempts.get(ready.number, Attempts()).times
            return [(first, count, many or 0) for run in runs for first, count, many in times.pieces(*run)]

        return self.group.look(pieces)

    def delayed(self, ready: CountedAvailability, first: int, count: int, seconds: float) -> Delayed:
        """What the log says of a delay that begins now."""
        delay_ns = int(seconds * _NS)
        return Delayed(ready.number, first, count, self._disk.time_ns() + delay_ns, delay_ns)

    def letter(self, ready: CountedAvailability, sequence: int, item: bytes, reason: str) -> bytes:
        """The envelope of an item that is given up."""
        seconds = self._disk.time_ns() // 1000 / 1e6
        time = datetime.fromtimestamp(seconds, timezone.utc)
        name, times = basename(self.group.store.directory), self.times(ready, sequence)
        return DeadLetter(item, name, ready.name, sequence, times, reason, time).encode()

    def bury(self, work: Transaction, items: Iterable[tuple[int, bytes]], reason: str) -> None:
        """Move what ``work`` holds, these, to the dead letters; durable on return. Raises what a flush raises."""
        ready, grave = work.ready, Transaction()
        assert isinstance(ready, CountedAvailability)
        assert self.dead is not None
        letters = [self.letter(ready, sequence, item, reason) for sequence, item in items]
        _put(grave, letters)
        commit_jointly([(self.group, work), (self.dead, grave)])
        self.count(dead=len(letters))

    def refuses(
        self, work: Transaction, sequence: int, item: bytes, times: int
    ) -> ResourceError | QueueFullError | None:
        """Bury the item that ``work`` holds, which nobody came to flush; or why there is no room for it. Raises what
        else a flush raises."""
        try:
            self.bury(work, [(sequence, item)], _NEVER_FLUSHED.format(times))
        except (ResourceError, QueueFullError) as error:
            return error
        return None

    def count(self, rejected: int = 0, dead: int = 0) -> None:
        """So many more."""

        def count() -> None:
            self.group.rejected += rejected
            self.group.dead += dead

        self.group.look(count)


class Trial:
    """What one session does with items that may fail. For one thread at a time."""

    def __init__(self, retries: Retries) -> None:
        self.retries = retries
        self._rejections: dict[int, Rejection] = {}
        """By sequence, in the order of rejection."""
        self._held: list[Run] | None = None
        """What the transaction held before its rejections were set apart; None if they are not."""
        self._again: dict[float, list[Run]] = {}
        """What of that is to come again, by the seconds until then."""

    def take(
        self, transaction: Transaction, reader: Reader, max_items: int, timeout_seconds: float | None
    ) -> list[bytes]:
        """Hold up to ``max_items`` items, as ``OpenQueue.take`` does; each of them is counted as delivered, durably.

        Nothing, at once, where the session holds an item at its last attempt, or holds anything and such a one is next.
        Raises what ``OpenQueue.take`` and a flush raise; then nothing more is held.
        """
        assert isinstance(reader, CountedReader)
        retries, group, ready = self.retries, self.retries.group, reader.counted
        if transaction.runs and retries.is_used_up(retries.times(ready, transaction.runs[0][0])):
            return []
        deadline = None if timeout_seconds is None else group.now() + timeout_seconds
        most = 1 if retries.max_attempts == 1 else max_items
        passed, refusal = Transaction(ready), None
        try:
            while True:
                left_seconds = None if deadline is None else max(deadline - group.now(), 0.0)
                held = Transaction(ready)
                try:
                    items = group.take(reader, most, 0.0 if refusal is not None else left_seconds, held.runs)
                    if not items:
                        if refusal is not None:
                            raise refusal
                        return items
                    runs = held.runs
                    first, times = runs[0][0], retries.times(ready, runs[0][0])
                    if retries.is_used_up(times):
                        refusal = refusal or retries.refuses(held, first, items[0], times)
                        if not held.committed:  # others overtake it: it must not keep them from making room
                            passed.runs, held.runs = [*passed.runs, *runs], []
                        continue
                    if retries.is_used_up(times + 1) and transaction.runs:
                        group.discard(held)
                        return []
                    delivery = Transaction(ready)
                    delivery.operations = [Delivered(ready.number, *run, 1) for run in runs]
                    group.commit(delivery)
                    joined = list(transaction.runs)
                    join_runs(joined, runs)
                    # From here on without a call: an interruption finds them in one of both.
                    transaction.runs, held.runs = joined, []
                except BaseException:
                    group.discard(held)
                    raise
                return items
        finally:
            if passed.runs:
                group.discard(passed)

    def reject(
        self,
        transaction: Transaction,
        reader: Reader,
        matches: Callable[[int, bytes], bool],
        reason: str,
        retry: bool,
        delay_seconds: float | None,
    ) -> None:
        """Say of the first item that the transaction holds, and that ``matches``, that it has failed: of those behind
        the one that was rejected last, else of all. So who goes through a batch does not begin anew for each.

        Raises ``ValueError`` where it holds none, or there are no dead letters and it is to be one of them, and
        ``CorruptionError`` where what it holds cannot be read any more.
        """
        assert isinstance(reader, CountedReader)
        retries = self.retries
        if not retry and retries.dead is None:
            raise ValueError("what is rejected with retry=False is a dead letter: open the queue with dead_letter=")
        if not isinstance(reason, str):
            raise TypeError(f"a reason must be text, not {reason!r}")
        seconds = None if delay_seconds is None else checked_delay(delay_seconds)
        behind, end = next(reversed(self._rejections), -1) + 1, max(map(sum, transaction.runs), default=0)
        runs = chain(within(transaction.runs, behind, end), within(transaction.runs, 0, behind))
        for sequence, item in reader.read(runs):
            if sequence not in self._rejections and matches(sequence, item):
                break
        else:
            raise ValueError("the session holds no such item, or none that it has not rejected yet")
        if seconds is None:
            seconds = retries.delay_seconds(retries.times(reader.counted, sequence))
        self._rejections[sequence] = Rejection(sequence, item, reason, retry, seconds)

    @property
    def rejects(self) -> bool:
        """Whether the next flush has anything to reject."""
        return bool(self._rejections)

    def forget(self, runs: Iterable[Run]) -> None:
        """These are not held any more: what was said of them was not flushed."""
        gone = Intervals(runs)
        kept = (item for item in self._rejections.items() if not gone.overlap(item[0], item[0] + 1))
        self._rejections = dict(kept)

    def set_apart(self, transaction: Transaction) -> list[bytes]:
        """Take what is to come again out of what the transaction consumes; the envelopes of what is given up."""
        if not self._rejections:
            return []
        retries, ready = self.retries, transaction.ready
        assert isinstance(ready, CountedAvailability)
        again: dict[float, list[Run]] = {}
        letters = []
        for each in sorted(self._rejections.values()):
            if each.retry and not retries.is_used_up(retries.times(ready, each.sequence)):
                join_runs(again.setdefault(each.delay_seconds, []), [(each.sequence, 1)])
            else:
                letters.append(retries.letter(ready, each.sequence, each.item, each.reason))
        self._held, self._again = transaction.runs, again
        transaction.runs = without(transaction.runs, chain.from_iterable(again.values()))
        transaction.operations = [
            retries.delayed(ready, *run, seconds) for seconds, runs in again.items() if seconds for run in runs
        ]
        return letters

    def settle(self, transaction: Transaction) -> None:
        """What was set apart comes again, if the transaction was committed; else the transaction holds it as before."""
        held, self._held = self._held, None
        if held is None:
            return
        if not transaction.committed:
            transaction.runs, transaction.operations = held, ()
            return
        retries, ready = self.retries, transaction.ready
        assert isinstance(ready, CountedAvailability)
        again = sum(count for runs in self._again.values() for _, count in runs)
        at_once = Transaction(ready)
        at_once.runs = self._again.pop(0, [])
        retries.group.discard(at_once)
        for seconds, runs in self._again.items():
            retries.group.postpone(ready, runs, seconds)
        retries.count(len(self._rejections), len(self._rejections) - again)
        self._rejections = {}

    def commit(self, transaction: Transaction, timeout_seconds: float | None = None) -> None:
        """Commit it as ``OpenQueue.commit`` does, with what becomes of what it has rejected."""
        commit_tried([(self.retries.group, transaction, self)], timeout_seconds)

    def discard(self, transaction: Transaction) -> None:
        """Give back what the transaction holds, after the delay, and forget the rest, like ``OpenQueue.discard``."""
        self._rejections = {}
        group = self.retries.group
        try:
            if transaction.runs and not transaction.settled and self._is_usable:
                self._put_off(transaction)
        finally:
            group.discard(transaction)

    def fail(self, transaction: Transaction, reader: Reader | None, error: BaseException) -> None:
        """Move what it holds, and what has no attempts left, to the dead letters, because of this error. Where that
        cannot be done now, it is before it would be handed out again."""
        retries = self.retries
        if not isinstance(reader, CountedReader) or not isinstance(error, Exception) or not self._is_usable:
            return
        work = Transaction(reader.counted)
        pieces = retries.pieces(reader.counted, transaction.runs)
        work.runs = [(first, count) for first, count, times in pieces if retries.is_used_up(times)]
        if work.runs:
            transaction.runs = without(transaction.runs, work.runs)  # first: what is consumed is never given back
            try:
                with suppress(Exception):  # the error is what its user is to see
                    retries.bury(work, reader.read(work.runs), f"{type(error).__name__}: {error}")
            finally:
                retries.group.discard(work)

    @property
    def _is_usable(self) -> bool:
        """Whether anything can be logged: of a queue that is broken also what is in memory may be half a change."""
        group = self.retries.group
        return group.closed is None and group.store.broken is None

    def _put_off(self, transaction: Transaction) -> None:
        """Let what it holds come again after the delay that there is."""
        retries, ready = self.retries, transaction.ready
        assert isinstance(ready, CountedAvailability)
        later = [
            (first, count, seconds)
            for first, count, times in retries.pieces(ready, transaction.runs)
            if not retries.is_used_up(times) and (seconds := retries.delay_seconds(times))
        ]
        if not later:
            return
        note = Transaction(ready)
        note.operations = [retries.delayed(ready, *each) for each in later]
        with suppress(PersistentQueueError, OSError):  # then it waits as long as the queue is open
            retries.group.commit(note)
        runs = [(first, count) for first, count, _ in later]
        transaction.runs = without(transaction.runs, runs)
        for first, count, seconds in later:
            retries.group.postpone(ready, [(first, count)], seconds)


def commit_tried(works: Sequence[tuple[OpenQueue, Transaction, Trial | None]], timeout_seconds: float | None) -> None:
    """Commit the transactions as ``commit_jointly`` does, with what becomes of what their sessions have rejected: what
    is given up is in its dead-letter queue, or what is to come again is not consumed, if all of it is committed."""
    by_group = {group: transaction for group, transaction, _ in works}
    graves: list[tuple[Transaction, int]] = []
    try:
        for _, transaction, trial in works:
            letters = trial.set_apart(transaction) if trial is not None else []
            if trial is not None and trial.retries.dead is not None and letters:
                grave = by_group.setdefault(trial.retries.dead, Transaction())
                _put(grave, letters)
                graves.append((grave, len(letters)))
        busy = [(group, transaction) for group, transaction in by_group.items() if not transaction.is_empty]
        if busy:
            commit_jointly(busy, timeout_seconds)
        for _, transaction, _ in works:  # of which nothing is left to commit
            transaction.settled = True
            transaction.skipped = bool(busy) and busy[0][1].skipped
    finally:
        for grave, count in graves:
            if not grave.committed:
                _take_back(grave, count)
        for _, transaction, trial in works:
            if trial is not None:
                trial.settle(transaction)


def counts_attempts(max_attempts: int | None, has_dead_letters: bool, delay: Delay, sync: bool) -> bool:
    """Whether a queue with these settings counts deliveries. Raises ``TypeError``, and ``ValueError`` for settings that
    do not go together."""
    if not callable(delay):
        if not isinstance(delay, int | float):
            raise TypeError(f"retry_delay_seconds must be a number, or make one of the attempts, not {delay!r}")
        checked_delay(delay)
    if max_attempts is not None and type(max_attempts) is not int:
        raise TypeError(f"max_attempts must be a whole number, not {max_attempts!r}")
    if max_attempts is not None and max_attempts < 1:
        raise ValueError(f"max_attempts must be at least 1, got {max_attempts}")
    if max_attempts is not None and not has_dead_letters:
        raise ValueError("max_attempts needs dead_letter=, the name of the queue for items that have no attempts left")
    if has_dead_letters and not sync:
        raise ValueError("dead_letter needs sync=True: a power cut could take an item from both queues, or from none")
    return has_dead_letters or callable(delay) or delay > 0


def require_fitting(store: Store, dead: Store) -> None:
    """Raise ``ValueError`` where the one cannot have the dead letters of the other."""
    fit = f"{dead.directory}: cannot have the dead letters of {store.directory}"
    if not dead.settings.sync or dead.subscriptions.plain is None:
        raise ValueError(f"{fit}: open it with sync=True, as one that was made without fan_out")
    if store.segments.envelopes.most_bytes and not dead.segments.envelopes.most_bytes:
        raise ValueError(f"{fit}, whose items are encrypted: open it with encryption=, too")


def checked_delay(seconds: float) -> float:
    """The delay. Raises ``ValueError`` where it is no time that can be waited."""
    if not (isfinite(seconds) and 0 <= seconds <= DELAY_SECONDS_MAX):
        raise ValueError(f"a delay must be from 0 to {DELAY_SECONDS_MAX} seconds, got {seconds}")
    return seconds


def _put(transaction: Transaction, letters: Sequence[bytes]) -> None:
    transaction.add(letters)


def _take_back(transaction: Transaction, count: int) -> None:
    transaction.cost_bytes -= cost(transaction.items[-count:])
    del transaction.items[-count:]

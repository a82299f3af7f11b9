"""Delivery attempts and dead letters: the handling of items that were delivered and not consumed.

A *delivery attempt* is logged durably before the item is returned. So an attempt that ends its process, by ``kill -9``
or a power cut, is counted as well. An item with no attempts left is *buried*. It is consumed here and enqueued in the
dead-letter queue, in its envelope, by one transaction over both queues (see ``two_phase``). That happens at one of
three times:

- with the flush of the session that rejects the item;
- when an exception leaves the ``with`` block of the session that holds the item;
- otherwise before the item would be delivered once more.

The steps of a delivery, in this order:

1. Hold ready items: a batch that was never delivered, or one item that was (see ``reader``).
2. If its attempts are used up, bury it and begin again. *A crash leaves it either here, to be buried later, or in the
   dead-letter queue.* If the dead-letter queue has no room, the item stays here and others overtake it. A consumer that
   finds nothing else gets the error of the dead-letter queue. An item that is too large for an envelope stays, too.
3. Log the delivery. *A crash leaves an attempt that reached no consumer: so there are never more attempts than were
   counted.*
4. Return the item to the caller.

The last attempt is made alone, so that no other item is given up with a bad one. The session must hold nothing else,
and it gets nothing more until it has flushed or rolled back.

Threads are those of ``open_queue``. A call that buries takes part in a transaction over several queues, with the locks
of such a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from itertools import chain, islice

from ..codecs.held_items import first_meant
from ..core.block import ITEM_BYTES_MAX
from ..core.dead_letter import DeadLetter
from ..core.intervals import Run, count_of, join_runs, last_of, without
from ..core.operations import Delayed, Delivered
from ..core.state import StateError
from ..drawing.text import many
from ..engine.reader import CountedAvailability, CountedReader, Reader
from ..engine.transaction import SPILL_BYTES, Rejection, Transaction
from ..errors import (
    DeadLetterError,
    ItemTooLargeError,
    NotHeldError,
    PersistentQueueError,
    QueueFullError,
    ResourceError,
)
from ..system.disk import Disk, basename
from ..system.path_errors import faults, suppress
from .multi_queue import commit_jointly
from .open_queue import OpenQueue

Delay = float | Callable[[int], float]
"""Seconds until an item is ready again: a number, or a function from the number of its delivery attempts to seconds."""
Take = Callable[[Reader, int, float | None, list[Run]], list[bytes]]
"""A call with the arguments and the effect of ``OpenQueue.take``."""
DELAY_SECONDS_MAX = 10 * 366 * 86_400.0
"""Ten years, in seconds. The log counts nanoseconds and has room for more."""
_BATCH_ITEMS = 256
"""Number of items that are read, or of dead letters that are moved back, at a time."""
_STEP_RUNS, _STEPS = 1024, 32
"""Runs whose delays are logged by one commit: so many, or more if that takes more than so many commits."""
_NS = 10**9
_NEVER_FLUSHED = "delivered {}, never flushed: each time the process ended, or the session was rolled back"


class Retries:
    """Delivery attempts of a queue, for all its sessions: their number for each item, and what follows the last one."""

    def __init__(self, disk: Disk, open_queue: OpenQueue, max_attempts: int | None, delay: Delay) -> None:
        self._disk = disk
        self.open_queue = open_queue
        self.max_attempts = max_attempts
        self._delay = delay
        self.dead: OpenQueue | None = None
        """The open dead-letter queue, if there is one."""

    def times(self, ready: CountedAvailability, sequence: int) -> int:
        """Return the number of delivery attempts of this sequence."""
        return self.open_queue.attempts(ready.number, sequence)

    def is_used_up(self, times: int) -> bool:
        """Return True if an item with this number of attempts must not be delivered again."""
        return self.max_attempts is not None and times >= self.max_attempts

    def delay_seconds(self, times: int) -> float:
        """Return the seconds until an item with this number of attempts is ready again, ten years at most. Raises
        ``TypeError`` and ``ValueError``, and errors of the setting."""
        if not callable(self._delay):
            return checked_delay(self._delay)
        found = self._delay(times)
        try:
            seconds = min(found, DELAY_SECONDS_MAX)
        except ArithmeticError:  # of a Decimal that is not a number
            seconds = found
        except TypeError:
            raise TypeError(
                f"retry_delay_seconds returned {found!r} for attempt {times}: let it return a number of seconds"
            ) from None
        return checked_delay(seconds)

    def delayed(self, ready: CountedAvailability, first: int, count: int, seconds: float) -> Delayed:
        """Return the operation of the log for a delay that begins now."""
        delay_ns = int(seconds * _NS)
        return Delayed(ready.number, first, count, self._disk.time_ns() + delay_ns, delay_ns)

    def letter(self, ready: CountedAvailability, sequence: int, item: bytes, reason: str) -> bytes:
        """Return the envelope of an item that is given up. Raises ``ItemTooLargeError``."""
        seconds = self._disk.time_ns() // 1000 / 1e6
        time = datetime.fromtimestamp(seconds, timezone.utc)
        name, times = basename(self.open_queue.directory), self.times(ready, sequence)
        envelope = DeadLetter(item, name, ready.name, sequence, times, reason, time).encode()
        if len(envelope) > ITEM_BYTES_MAX:
            raise ItemTooLargeError(
                f"{self.open_queue.directory}: item {sequence}, of {len(item)} bytes, is too large for a dead letter, "
                f"whose envelope exceeds the maximum of {ITEM_BYTES_MAX} bytes: open the queue without max_attempts, "
                "and consume the item without a rejection"
            )
        return envelope

    def read(self, reader: CountedReader, runs: Iterable[Run]) -> Iterator[tuple[int, bytes]]:
        """Yield the items of these held runs, as ``CountedReader.read`` does.

        Each part of them is read in a call of the queue, since a read takes its locks: code that interrupts it may not
        call the queue. Raises ``SubscriptionNotFoundError`` if an item is gone with its subscription.
        """
        items, part, most = reader.read(runs), [(0, b"")], 1  # a search mostly ends at the first item
        while part:
            try:
                part = self.open_queue.around(partial(list, islice(items, most)))
            except StateError:
                raise self.open_queue.removed(reader.ready) from None
            yield from part
            most = min(2 * most, _BATCH_ITEMS)

    def bury(self, work: Transaction, items: Iterable[tuple[int, bytes]], reason: str) -> None:
        """Move these items, which ``work`` holds, to the dead letters; durable on return. Raises errors of a flush."""
        ready, grave = work.ready, Transaction()
        assert isinstance(ready, CountedAvailability)
        assert self.dead is not None
        letters = [self.letter(ready, sequence, item, reason) for sequence, item in items]
        grave.add(letters)
        commit_jointly([(self.open_queue, work), (self.dead, grave)])
        self.open_queue.count_failed(0, len(letters))

    def refuses(
        self, work: Transaction, sequence: int, item: bytes, times: int
    ) -> ResourceError | QueueFullError | ItemTooLargeError | None:
        """Bury an item without attempts left, which ``work`` holds. Return the error if the dead-letter queue has no
        room for it, or if it is too large for an envelope.

        Raises the other errors of a flush.
        """
        try:
            self.bury(work, [(sequence, item)], _NEVER_FLUSHED.format(many(times, "time")))
        except (ResourceError, QueueFullError, ItemTooLargeError) as error:
            return error
        return None


class Trial:
    """The part of one session that handles items which may fail. For one thread at a time."""

    def __init__(self, retries: Retries) -> None:
        self.retries = retries
        self._place = 0
        """Index of the run that had the rejection before the last one; a hint, since runs come and go."""
        self._changed: Transaction | None = None
        """Transaction that ``set_apart`` has changed; None behind ``settle``."""
        self._held: list[Run] = []
        """Runs that it held before."""
        self._again: list[tuple[int, int, float]] = []
        """Runs of these that are to be ready again, each with the seconds until then."""
        self._failed = 0
        """Number of rejected items that are given up."""
        self._grave: tuple[Transaction, int, int] | None = None
        """The transaction that the envelopes were added to, with its items and their cost before that."""

    def take(
        self,
        transaction: Transaction,
        reader: Reader,
        max_items: int,
        timeout_seconds: float | None,
        take: Take | None = None,
    ) -> list[bytes]:
        """Hold up to ``max_items`` items by ``take``, by default ``OpenQueue.take``. Each delivery is logged durably
        before the return.

        Returns an empty list at once if the session holds an item at its last attempt. It does so as well if the
        session holds anything and such an item is next. Raises the errors of ``OpenQueue.take`` and of a flush; then
        nothing more is held.
        """
        assert isinstance(reader, CountedReader)
        retries, open_queue, ready = self.retries, self.retries.open_queue, reader.counted
        take = take or open_queue.take
        if transaction.runs and retries.is_used_up(retries.times(ready, transaction.runs[0][0])):
            return []
        deadline = None if timeout_seconds is None else open_queue.now() + timeout_seconds
        most = 1 if retries.max_attempts == 1 else max_items
        passed, refusal = Transaction(ready), None
        try:
            while True:
                left_seconds = None if deadline is None else max(deadline - open_queue.now(), 0.0)
                held = Transaction(ready)
                try:
                    items = take(reader, most, 0.0 if refusal is not None else left_seconds, held.runs)
                    if not items:
                        if refusal is not None:
                            raise refusal
                        return items
                    runs = held.runs
                    first, times = runs[0][0], retries.times(ready, runs[0][0])
                    if retries.is_used_up(times):
                        refusal = refusal or retries.refuses(held, first, items[0], times)
                        if not held.committed:  # others overtake it, and may make room
                            passed.runs += runs
                            held.runs = []
                        continue
                    if retries.is_used_up(times + 1) and transaction.runs:
                        open_queue.discard(held)
                        return []
                    delivery = Transaction(ready)
                    delivery.operations = [Delivered(ready.number, *run, 1) for run in runs]
                    open_queue.commit(delivery)
                    mine = transaction.runs
                    joined, behind = mine[-1:], slice(max(len(mine) - 1, 0), None)
                    join_runs(joined, runs)
                    # No call from here on: an interruption finds the runs in one of the two transactions.
                    mine[behind], held.runs = joined, []
                except BaseException:
                    open_queue.discard(held)
                    raise
                return items
        finally:
            if passed.runs:
                open_queue.discard(passed)

    def takes_no_more(self, transaction: Transaction, reader: Reader) -> bool:
        """Return True if ``take`` returns an empty list at once, however long it may wait.

        The session holds an item at its last attempt, or it holds anything and such an item is next.
        """
        if not transaction.runs:
            return False
        assert isinstance(reader, CountedReader)
        retries, ready = self.retries, reader.counted
        if retries.is_used_up(retries.times(ready, transaction.runs[0][0])):
            return True
        following = retries.open_queue.look(lambda: ready.next_run(0))
        times = retries.times(ready, following[0]) if following is not None else 0
        return following is not None and not retries.is_used_up(times) and retries.is_used_up(times + 1)

    def reject(
        self,
        transaction: Transaction,
        reader: Reader,
        matches: Callable[[int, bytes], int],
        reason: str,
        retry: bool,
        delay_seconds: float | None,
    ) -> None:
        """Mark a held item as failed: that which ``matches`` ranks highest, and of several the first behind the last
        rejected one, else the first.

        So a caller that goes through a batch with equal items rejects each of them in turn.

        Raises ``ValueError`` if no held item matches, or if the item must become a dead letter and there are none.
        Raises ``CorruptionError`` if a held item can no longer be read.
        """
        assert isinstance(reader, CountedReader)
        retries = self.retries
        if not retry and retries.dead is None:
            raise ValueError("reject with retry=False needs a dead-letter queue: open the queue with dead_letter=")
        checked_reason(reason)
        seconds = None if delay_seconds is None else checked_delay(delay_seconds)
        rejections = transaction.rejections
        runs = self._from_last(transaction.runs, next(reversed(rejections), -1))
        found = first_meant((each for each in retries.read(reader, runs) if each[0] not in rejections), matches)
        if found is None:
            raise NotHeldError
        sequence, item = found
        if seconds is None:
            times = retries.times(reader.counted, sequence)
            # A dead letter has no delay: the setting may not know one for the last attempt.
            seconds = retries.delay_seconds(times) if retry and not retries.is_used_up(times) else 0.0
        rejections[sequence] = Rejection(sequence, item, reason, retry, seconds)

    def _from_last(self, runs: list[Run], last: int) -> Iterator[Run]:
        """Yield the runs from behind ``last``, the item that was rejected last, and then those before it.

        The search for that item begins at the run of the one before it. So a loop of rejections visits each run once.
        """
        most = len(runs)
        places = ((self._place + step) % most for step in range(most))
        self._place = place = next((at for at in places if runs[at][0] <= last < sum(runs[at])), 0)
        if runs:
            first, count = runs[place]
            behind = min(max(last + 1, first), first + count)
            yield behind, first + count - behind
            for step in range(1, most):
                yield runs[(place + step) % most]
            yield first, behind - first

    def uncount(self, transaction: Transaction, count: int) -> None:
        """Take back the last delivery of the last ``count`` items that the transaction holds.

        Their consumer cannot open them, so they were not tried. If this cannot be logged, the delivery counts.
        """
        ready = transaction.ready
        assert isinstance(ready, CountedAvailability)
        note = Transaction(ready)
        note.operations = [Delivered(ready.number, *run, 0) for run in last_of(transaction.runs, count)]
        with suppress(PersistentQueueError, OSError):
            self.retries.open_queue.commit(note)

    def set_apart(self, transaction: Transaction) -> list[bytes]:
        """Take items that are to be ready again out of the runs that the transaction consumes.

        Returns the envelopes of the items that are given up. ``settle`` must follow.
        """
        if not transaction.rejections:
            return []
        retries, ready = self.retries, transaction.ready
        assert isinstance(ready, CountedAvailability)
        if ready.is_closed:  # the commit refuses the transaction, if it finds a run in it
            return []
        again: dict[float, list[Run]] = {}
        letters = []
        for each in sorted(transaction.rejections.values()):
            if self._comes_again(ready, each):
                join_runs(again.setdefault(each.delay_seconds, []), [(each.sequence, 1)])
            else:
                letters.append(retries.letter(ready, each.sequence, each.item, each.reason))
        later = [(*run, seconds) for seconds, runs in again.items() for run in runs]
        kept = without(transaction.runs, chain.from_iterable(again.values()))
        # No call in these steps, so no interruption in between.
        self._held, self._again, self._failed = transaction.runs, later, len(letters)
        self._changed, transaction.runs = transaction, kept
        transaction.operations = [
            retries.delayed(ready, *run, seconds) for seconds, runs in again.items() if seconds for run in runs
        ]
        return letters

    def buries(self, transaction: Transaction) -> bool:
        """Return whether the flush of this transaction moves an item to the dead letters."""
        ready, rejections = transaction.ready, transaction.rejections.values()
        return isinstance(ready, CountedAvailability) and not all(self._comes_again(ready, each) for each in rejections)

    def _comes_again(self, ready: CountedAvailability, rejected: Rejection) -> bool:
        """Return whether this item is to be ready again, and not a dead letter."""
        return rejected.retry and not self.retries.is_used_up(self.retries.times(ready, rejected.sequence))

    def add_letters(self, grave: Transaction, letters: Sequence[bytes]) -> None:
        """Add the envelopes of ``set_apart`` to the transaction of the dead-letter queue."""
        self._grave = grave, len(grave.items), grave.cost_bytes
        grave.add(letters)

    def settle(self) -> None:
        """Release the runs that were set apart, if their transaction was committed; otherwise restore what the
        transaction held, and what the dead-letter queue gets.

        It may be called again, after an interruption, and then does the rest.
        """
        if self._grave is not None:
            grave, count, cost_bytes = self._grave
            if not grave.committed and len(grave.items) > count:
                del grave.items[count:]
                grave.cost_bytes = cost_bytes
            self._grave = None
        transaction = self._changed
        if transaction is None:
            return
        if not transaction.committed:
            # No call in these steps, so no interruption in between.
            transaction.runs, transaction.operations = self._held, ()
            self._changed, self._held, self._again = None, [], []
            return
        retries, ready = self.retries, transaction.ready
        assert isinstance(ready, CountedAvailability)
        retries.open_queue.release_later(ready, self._again)
        self._changed, self._held = None, []
        retries.open_queue.count_failed(len(transaction.rejections), self._failed)

    def commit(self, transaction: Transaction, timeout_seconds: float | None = None) -> None:
        """Commit the transaction, as ``OpenQueue.commit`` does, together with its rejections."""
        commit_tried([(self.retries.open_queue, transaction, self)], timeout_seconds)

    def discard(self, transaction: Transaction) -> None:
        """Release what the transaction holds, after the delay, and drop the rest, as ``OpenQueue.discard`` does."""
        open_queue = self.retries.open_queue
        try:
            # In a broken queue the state in memory may be half changed.
            if transaction.runs and not transaction.committed and open_queue.is_usable:
                self._put_off(transaction)
        except faults(Exception):  # of a callable of the user
            if not transaction.skipped:  # else the flush has its result, and these items have no delay
                raise
        finally:
            open_queue.discard(transaction)

    def fail(self, transaction: Transaction, reader: Reader | None, error: BaseException) -> None:
        """Move held items without attempts left to the dead letters, with this error as their reason.

        If that is not possible now, it is done before the item would be delivered again.
        """
        retries = self.retries
        if not (isinstance(reader, CountedReader) and isinstance(error, Exception) and retries.open_queue.is_usable):
            return
        work = Transaction(reader.counted)
        pieces = retries.open_queue.attempts_in(reader.counted.number, transaction.runs)
        work.runs = [(first, count) for first, count, times in pieces if retries.is_used_up(times)]
        if work.runs:
            kept, given = without(transaction.runs, work.runs), transaction.given - count_of(work.runs)
            # First: consumed items are never released. No call until the ``try``, so no interruption in between.
            transaction.runs, transaction.given = kept, given
            try:
                with suppress(Exception):  # the user must see the error of the block, not this one
                    retries.bury(work, retries.read(reader, work.runs), f"{type(error).__name__}: {error}")
            finally:
                retries.open_queue.discard(work)

    def _put_off(self, transaction: Transaction) -> None:
        """Log and begin the delay of each held item that has attempts left."""
        retries, ready = self.retries, transaction.ready
        assert isinstance(ready, CountedAvailability)
        later = [
            (first, count, seconds)
            for first, count, times in retries.open_queue.attempts_in(ready.number, transaction.runs)
            if not retries.is_used_up(times) and (seconds := retries.delay_seconds(times))
        ]
        # In steps: each operation takes its time, and the flushes of other threads come in between. But each step
        # passes all runs of the transaction, so there are few steps.
        step = max(_STEP_RUNS, len(later) // _STEPS)
        for part in (later[at : at + step] for at in range(0, len(later), step)):
            note = Transaction(ready)
            note.operations = [retries.delayed(ready, *each) for each in part]
            try:
                with suppress(PersistentQueueError, OSError):  # then the delay is only in memory, until the close
                    retries.open_queue.commit(note)
            finally:  # also after an interruption: the log may have the delay
                retries.open_queue.release_later(ready, part, transaction)


def commit_tried(works: Sequence[tuple[OpenQueue, Transaction, Trial | None]], timeout_seconds: float | None) -> None:
    """Commit the transactions, as ``commit_jointly`` does, together with the rejections of their sessions.

    If everything is committed, items that are given up are in their dead-letter queue, and items to be ready again are
    not consumed. Otherwise nothing is committed.
    """
    by_queue = {open_queue: transaction for open_queue, transaction, _ in works}
    try:
        for _, transaction, trial in works:
            letters = trial.set_apart(transaction) if trial is not None else []
            if trial is not None and trial.retries.dead is not None and letters:
                grave = by_queue.setdefault(trial.retries.dead, Transaction())
                trial.add_letters(grave, letters)
        busy = [(open_queue, transaction) for open_queue, transaction in by_queue.items() if not transaction.is_empty]
        if busy:
            commit_jointly(busy, timeout_seconds)
        for _, transaction, _ in works:  # also those that had nothing left to commit
            transaction.settled = True
            transaction.skipped = bool(busy) and busy[0][1].skipped
    finally:
        for _, _, trial in reversed(works):  # two of them may have one dead-letter queue
            if trial is not None:
                trial.settle()


def requeue(open_queue: OpenQueue, dead: OpenQueue, max_items: int | None) -> int:
    """Move up to ``max_items`` dead letters (None: all) to the end of the queue that they came from; return their
    number.

    ``open_queue`` is that queue and ``dead`` the dead-letter queue. The items are taken out of their envelopes. One
    transaction over both queues does it, and it is durable on return.

    Dead letters of other queues, and items that are no dead letters, stay in place. They are on hold meanwhile, so no
    other session can dequeue them. Raises the errors of a flush, and ``CorruptionError`` as a dequeue does; then
    nothing was moved.
    """
    reader, name = dead.need_plain(), basename(open_queue.directory)
    into, out, held = Transaction(), Transaction(reader.ready), Transaction(reader.ready)
    count = 0
    try:
        while max_items is None or count < max_items:
            batch = _BATCH_ITEMS if max_items is None else min(_BATCH_ITEMS, max_items - count)
            envelopes = dead.take(reader, batch, 0.0, held.runs)
            if not envelopes:
                break
            runs = reversed(last_of(held.runs, len(envelopes)))
            sequences = (sequence for first, length in runs for sequence in range(first, first + length))
            for sequence, envelope in zip(sequences, envelopes, strict=True):
                item = _item_of(envelope, name)
                if item is not None:
                    join_runs(out.runs, [(sequence, 1)])
                    into.add([item])
                    count += 1
                    if into.cost_bytes > SPILL_BYTES:
                        open_queue.spill(into)
        if count:
            commit_jointly([(open_queue, into), (dead, out)])
    finally:
        if out.committed:
            held.runs = without(held.runs, out.runs)
        dead.discard(held)
        open_queue.discard(into)
    return count


def _item_of(envelope: bytes, queue: str) -> bytes | None:
    """Return the item if it came from this queue, else None."""
    try:
        letter = DeadLetter.decode(envelope)
    except DeadLetterError:
        return None
    return letter.item if letter.queue == queue else None


def counts_attempts(max_attempts: int | None, has_dead_letters: bool, delay: Delay, sync: bool) -> bool:
    """Return True if a queue with these settings counts delivery attempts. Raises ``TypeError``, and ``ValueError`` for
    settings that exclude each other."""
    if not callable(delay):
        if not isinstance(delay, int | float):
            raise TypeError(f"retry_delay_seconds must be a number, or a function of the attempts, not {delay!r}")
        checked_delay(delay)
    if max_attempts is not None and type(max_attempts) is not int:
        raise TypeError(f"max_attempts must be a whole number, not {max_attempts!r}")
    if max_attempts is not None and max_attempts < 1:
        raise ValueError(f"max_attempts must be at least 1, got {max_attempts}")
    if max_attempts is not None and not has_dead_letters:
        raise ValueError("max_attempts needs dead_letter=, the name of the queue for items that have no attempts left")
    if has_dead_letters and not sync:
        raise ValueError(
            "dead_letter needs sync=True: after a power cut an item could be in both queues, or in neither"
        )
    return has_dead_letters or callable(delay) or delay > 0


def require_fitting(open_queue: OpenQueue, dead: OpenQueue) -> None:
    """Raise ``ValueError`` if ``dead`` cannot take the dead letters of ``open_queue``."""
    fit = f"{dead.directory}: this queue cannot hold the dead letters of {open_queue.directory}"
    if not dead.settings.sync or dead.plain is None:
        raise ValueError(f"{fit}: open it with sync=True, and name one that was made without fan_out")
    if open_queue.encrypts and not dead.encrypts:
        raise ValueError(f"{fit}, whose items are encrypted: open it with encryption=, too")


def checked_reason(reason: str) -> str:
    """Return the reason of a rejection. Raises ``TypeError`` if it is no text, such as an exception."""
    if not isinstance(reason, str):
        raise TypeError(f"a reason must be text, not {reason!r}: pass repr(error) of an exception")
    return reason


def checked_delay(seconds: float) -> float:
    """Return the delay as a float. Raises ``TypeError`` if it is no number, and ``ValueError`` if it is not from 0 to
    ``DELAY_SECONDS_MAX``."""
    try:
        is_possible = 0 <= seconds <= DELAY_SECONDS_MAX
    except TypeError:
        is_possible = None
    except ArithmeticError:  # of a Decimal that is not a number
        is_possible = False
    if is_possible is None or isinstance(seconds, bool):
        raise TypeError(f"a delay must be a number of seconds, not {seconds!r}")
    if not is_possible:
        raise ValueError(f"a delay must be from 0 to {DELAY_SECONDS_MAX} seconds, got {seconds}")
    return float(seconds)  # a Decimal cannot be added to a time

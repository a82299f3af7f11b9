"""The holds and the buffer of a session, and the cleanup of a call of it that was interrupted.

``Session`` adds the calls of users. The methods here are for it: each of them is part of a call that has marked the
session as ``BUSY``, unless it says that it is for any thread. The functions below the classes are for the modules that
act on sessions: they flush several of them, or look at what a session keeps.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Generic, NamedTuple, TypeVar

from ..codecs import Codec, T, advice_on_hold
from ..codecs.held_items import ALIKE, OTHER, decode_held
from ..core.availability import Taken
from ..core.block import MIXED
from ..core.intervals import Run, append_run, count_of, united
from ..core.items import Alike, checked_held, checked_marker, checked_timeout, checked_truth, fitting_parts
from ..core.page_cache import ITEM_OVERHEAD_BYTES
from ..drawing.text import many
from ..engine.reader import Reader
from ..engine.segment_use import Hold
from ..engine.transaction import SPILL_BYTES, Transaction
from ..errors import ClosedError, CodecError, PersistentQueueError, UnflushedWarning
from ..interrupts.call_guard import BUSY, FREE, SessionCalls, claims, end_all, exclusively
from .multi_queue import introduce, require_neighbours
from .open_queue import OpenQueue
from .pipeline import Handed, Pipeline, Ticket, done
from .retries import Retries, Take, Trial, commit_tried

R = TypeVar("R")
_CLOSED = "was not flushed before its queue was closed"


class SessionParts(NamedTuple):
    """The parts that a session is made of."""

    open_queue: OpenQueue
    name: str = ""
    """Name of the session in ``PersistentQueue.explain``."""
    reader: Reader | None = None
    """Reader of the subscription that the session dequeues from; None for the plain queue."""
    retries: Retries | None = None
    """Delivery attempts of the queue; None if it does not count them."""
    queue: object = None
    """The queue. The reference keeps it alive: a queue that its user drops must close no file that a session is
    writing."""
    spill_bytes: int = SPILL_BYTES
    """Bytes of items in memory from which on the session spills."""


class SessionState(SessionCalls, Generic[T]):
    """The transaction of a session, and its holds."""

    __slots__ = (
        "__weakref__",
        "_codec",
        "_discard",
        "_lane",
        "_open_queue",
        "_pipeline",
        "_queue",
        "_queue_commit",
        "_reader",
        "_spill_bytes",
        "_taken",
        "_takes",
        "_together",
        "_transaction",
        "_trial",
        "name",
    )

    _elsewhere = "get another one from queue.session() in the process that has opened the queue, or use a Producer"

    def __init__(self, _parts: SessionParts) -> None:
        self._open_queue = open_queue = _parts.open_queue
        self._reader = reader = open_queue.plain if _parts.reader is None else _parts.reader
        """Reader of the subscription that the session dequeues from; None if the queue has only named subscriptions."""
        self._taken: list[Taken] = []
        """Items that were taken from the lane (see ``availability``), in order. ``_note`` joins them to the runs of the
        transaction."""
        self._lane: deque[Taken] = deque() if reader is None else reader.ready.lane
        self._takes: Iterator[None] = map(self._taken.append, iter(self._lane.popleft, None))
        """Each ``next`` moves one item from the lane to ``_taken``. That is one call of C code, so an interruption
        finds the item in one of the two."""
        self._codec: Codec[T] | None = None
        """Codec that decodes items before their caller gets them; None if they stay bytes."""
        self._queue = _parts.queue
        self.name = _parts.name
        """Name of the session in ``PersistentQueue.explain``."""
        self._spill_bytes = _parts.spill_bytes
        super().__init__()
        self._transaction: Transaction | None = self._new()
        self._trial = Trial(_parts.retries) if _parts.retries is not None else None
        """Handles delivery attempts and rejections; None in a queue that does not count attempts."""
        self._queue_commit = open_queue.commit if self._trial is None else self._trial.commit
        self._discard = open_queue.discard if self._trial is None else self._trial.discard
        self._pipeline: Pipeline | None = None
        """Flushes that were handed over; None before the first ``flush(wait=False)``."""
        self._together: _JointFlush | None = None
        """Flushes this session with the sessions of other queues; None if it belongs to no transaction over several
        queues."""

    def __repr__(self) -> str:
        transaction = getattr(self, "_transaction", None)
        if transaction is None:
            return f"<closed session {getattr(self, 'name', '?')!r}>"
        held = count_of(self._runs_of(transaction))
        buffered = f"{transaction.count} enqueued, {held} dequeued"
        return f"<session {self.name!r} of {self._open_queue.directory!r}: {buffered}, not flushed>"

    def __del__(self) -> None:
        transaction, pipeline = getattr(self, "_transaction", None), getattr(self, "_pipeline", None)
        try:
            if transaction is not None and (self._taken or transaction.runs or transaction.items or transaction.pieces):
                self._note(transaction)
                try:
                    # A broken queue raises errors, and one that is dropped warns itself that it releases what is held.
                    if self._open_queue.is_usable or (self._open_queue.was_dropped and transaction.count):
                        self._warn(transaction)
                finally:  # also if the warning is raised as an error
                    self._open_queue.abandon(transaction)
        finally:
            if pipeline is not None:
                pipeline.drop()

    def _warn(self, transaction: Transaction) -> None:
        """Warn that the session is dropped with this transaction."""
        if transaction.count:
            warnings.warn(self._lost("was dropped without a flush"), UnflushedWarning, stacklevel=3)
            return
        message = (
            f"{self._open_queue.directory}: the session {self.name!r} was dropped with items that it has dequeued and "
            "not flushed: they are given back: use it in a with block, or call close()"
        )
        warnings.warn(message, ResourceWarning, stacklevel=3, source=self)

    def _unflushed(self, *, closes: bool = False) -> str | None:
        """Return the text of an ``UnflushedWarning``; None if a rollback would drop nothing, or if the session or its
        queue is closed or broken.

        With ``closes``, the queue is about to be closed. Then only what was enqueued counts, and a session in a call
        gets an error from it.
        """
        transaction = self._transaction
        if transaction is None or not self._open_queue.is_usable or (closes and self._busy != FREE):
            return None
        has_work = transaction.count or (not closes and self._runs_of(transaction))
        return self._lost(_CLOSED if closes else "ended without a flush") if has_work else None

    def _lost(self, how: str) -> str:
        """Return the text of an ``UnflushedWarning``: the session has ended in this way, and its work is lost."""
        transaction = self._transaction
        assert transaction is not None
        dequeued = count_of(self._runs_of(transaction))
        parts = []
        if transaction.count or not dequeued:
            parts.append(many(transaction.count, "enqueued item is", "enqueued items are") + " dropped")
        if dequeued:
            parts.append(many(dequeued, "dequeued item is", "dequeued items are") + " given back")
        return (
            f"{self._open_queue.directory}: the session {self.name!r} {how}: {', '.join(parts)}: call flush(), or "
            "rollback() if that is intended"
        )

    def _clean_up(self) -> None:
        """Begin a new transaction behind a settled one. Release taken items that were not returned to the caller, and
        forget the refusal of an interrupted flush."""
        if self._pipeline is not None:
            self._pipeline.ring()
        transaction = self._transaction
        if transaction is not None:
            if self._trial is not None:
                self._trial.settle()
            if transaction.settled:
                self._finish(transaction)
            else:
                transaction.error = None  # the caller of an interrupted flush gets the interruption instead
                if self._taken:
                    self._note(transaction)
                if transaction.runs:
                    self._release(transaction, count_of(transaction.runs) - transaction.given)

    def _roll_back(self, following: Transaction | None) -> None:
        """Discard the transaction of the session and put ``following`` in its place."""
        transaction = self._transaction
        if transaction is not None:
            self._note(transaction)  # first: if the stack is full, the session keeps what it has
            self._transaction = following
            try:
                self._discard(transaction)
            except BaseException:  # as a finalizer does
                self._open_queue.abandon(transaction)
                raise

    def _take(
        self, transaction: Transaction, max_items: int, timeout: float | None, take: Take | None = None
    ) -> list[bytes]:
        """Hold items and return them. Their runs are in the transaction, even if an interruption comes before the
        return. ``take`` is called in place of ``OpenQueue.take``."""
        if self._trial is None:
            return (take or self._open_queue.take)(self._consumer(), max_items, timeout, transaction.runs)
        return self._trial.take(transaction, self._consumer(), max_items, timeout, take)

    def _take_first(self, transaction: Transaction, timeout: float | None) -> Any:
        """Fill the lane and return the first item; None if there is no item in time."""
        if self._taken:
            self._note(transaction)
        self._open_queue.fill(self._reader or self._consumer())
        if self._lane:
            try:
                next(self._takes)
            except IndexError as error:
                require_no_handlers(error)
            else:
                return self._taken[-1][1]
        items = self._take(transaction, 1, timeout)
        return items[0] if items else None

    def _note(self, transaction: Transaction) -> None:
        """Join the items from the lane to the runs of the transaction. After an interruption it may be called again."""
        runs, taken = transaction.runs, self._taken
        if len(taken) == 1 and not runs:
            alone = ((taken[0][0], 1),)
            # No call from here on, so no interruption in between.
            runs[:] = alone
            del taken[:]
        while taken:
            first, count = taken[0][0], len(taken)
            if taken[-1][0] >= first + count:  # other sessions have taken items in between
                count = next(at for at, (sequence, _) in enumerate(taken) if sequence != first + at)
            at, last = append_run(runs, first, count) if runs else (0, ((first, count),))
            noted = slice(count)
            # No call from here on, so no interruption in between.
            runs[at:] = last
            del taken[noted]

    def _runs_of(self, transaction: Transaction) -> list[Run]:
        """Return the runs that the transaction holds, with the items from the lane. For any thread."""
        taken = [sequence for sequence, _ in self._taken.copy()]
        return united(transaction.runs, taken)  # second: items that are noted in between are in both

    def _meaning(self, item: object) -> Callable[[int, bytes], int]:
        """Return a function that ranks held items as the one that the caller means. Its arguments are the sequence and
        the bytes of a held item."""
        if isinstance(item, CodecError) and item.sequence is not None:
            wanted, is_here = item.sequence, item.path == self._open_queue.directory
            return lambda sequence, _: ALIKE if is_here and sequence == wanted else OTHER
        rank = self._ranking(item)
        return lambda _, raw: rank(raw)

    def _ranking(self, item: object) -> Callable[[bytes], int]:
        """Return a function that ranks stored bytes as ``item``, which has the form that ``dequeue`` returned."""
        return lambda raw: ALIKE if raw == item else OTHER

    def _finish(self, transaction: Transaction) -> bool:
        """Begin a new transaction behind a settled one; return True if the settled one was committed."""
        if transaction.skipped:
            self._discard(transaction)
        self._transaction = self._new()
        return not transaction.skipped

    def _hand_over(self, transaction: Transaction, timeout: float | None) -> Ticket | None:
        """Hand the transaction over to the pipeline, and begin a new one.

        Return None if this thread must commit it: it has rejections, or the process cannot have another thread. Waits
        while too many flushes wait. Raises ``PrecedingFlushError`` and ``ReentrantUseError``.
        """
        pipeline, open_queue = self._pipeline, self._open_queue
        if pipeline is None and transaction.is_empty:
            return done(True)
        if transaction.rejections:
            if pipeline is not None:
                pipeline.settle()
            return None
        if pipeline is None:
            pipeline = Pipeline(open_queue, self._discard, self._queue)
            if not open_queue.shielded(partial(self._begin_pipeline, pipeline)):
                return None
        pipeline.make_room()
        following, ticket = self._new(), Ticket()
        handed = (Handed(transaction, ticket, timeout),)
        given_bytes = pipeline.given_bytes + transaction.cost_bytes
        waiting = pipeline.waiting
        # No call from here on: an interruption finds the transaction here, or handed over and its place taken.
        waiting += handed
        self._transaction = following
        pipeline.given_bytes = given_bytes
        pipeline.ring()
        return ticket

    def _begin_pipeline(self, pipeline: Pipeline) -> bool:
        """Start the thread of the pipeline, and let the session have it: also if an interruption follows, its end is
        that of the thread. Return False if the process cannot have another thread."""
        has_begun = pipeline.begin()
        if has_begun:
            self._pipeline = pipeline
        return has_begun

    def _hands_over_at_once(self) -> bool:
        """Return whether ``flush(wait=False)`` waits for nothing, so that an event loop may call it."""
        pipeline = self._pipeline
        return (pipeline is None or not pipeline.is_full()) and not self._rejects()

    def _has_pipeline(self) -> bool:
        """Return whether ``flush``, ``rollback`` and ``close`` may have to wait for flushes that were handed over."""
        return self._pipeline is not None

    def _counts_attempts(self) -> bool:
        """Return whether the queue counts delivery attempts, so that a dequeue and a rollback may write."""
        return self._trial is not None

    def _rejects(self) -> bool:
        """Return whether the next flush has an item to reject. For any thread."""
        transaction = self._transaction
        return transaction is not None and bool(transaction.rejections)

    def _takes_no_more(self) -> bool:
        """Return whether ``dequeue`` returns None at once, whatever its timeout is: an item is at its last attempt."""
        return self._trial is not None and self._trial.takes_no_more(self._open(), self._consumer())

    def _is_only_consumer(self) -> bool:
        """Return whether the queue has no other consumer than that of the session. Waits for no lock."""
        return self._open_queue.has_only(self._consumer())

    def _unheld(self) -> int:
        """Return the number of items of the consumer that no session holds: ready ones and delayed ones."""
        self._open_queue.check()
        ready = self._consumer().ready
        return self._open_queue.look(lambda: 0 if ready.is_closed else len(ready) + len(ready.delayed))

    def _decoded(self, data: list[bytes]) -> list[T]:
        """Return the items that were just put on hold, decoded, as ``decode_held`` describes."""
        assert self._codec is not None
        return decode_held(self._codec, data, self._give_back, self._undecodable, partial(uncount, self))

    def _undecodable(self, codec: object, data: bytes, reason: Exception) -> CodecError:
        """Return the error for the item that was dequeued last and that its codec refuses, and count it in the
        statistics.

        The error has the bytes, the directory of the queue, and the sequence of the item if it is known. ``reason`` is
        what the codec has raised. Raises ``ReentrantUseError``.
        """
        transaction, open_queue, last = self._transaction, self._open_queue, self._taken[-1:]
        open_queue.count_undecodable()
        runs = transaction.runs if transaction is not None else []
        sequence = last[0][0] if last else sum(runs[-1]) - 1 if runs else None
        return CodecError("decode", codec, data, reason, open_queue.directory, sequence, advice_on_hold(reason))

    def _give_back(self, count: int, returned: int = 0) -> None:
        """Release the last ``count`` items that were dequeued, to the front of the queue. The caller has got
        ``returned`` of them: all or none."""
        transaction = self._transaction
        if count and transaction is not None:
            self._note(transaction)
            # If the caller has got them, ``given`` is now lower than the count in ``runs``. Then the items are
            # released, however this call ends.
            transaction.given -= returned
            self._release(transaction, count)

    def _return_unopened(self, count: int) -> None:
        """Release the last ``count`` items, which the codec cannot open for now: no delivery attempt is counted."""
        uncount(self, count)
        self._give_back(count, count)

    def _release(self, transaction: Transaction, count: int) -> None:
        self._open_queue.put_back(transaction, count)
        if not transaction.runs and not transaction.pieces:
            transaction.since_seconds = 0.0

    def _new(self) -> Transaction:
        return Transaction(self._reader.ready if self._reader is not None else None)

    def _consumer(self) -> Reader:
        return self._reader or self._open_queue.need_plain()

    def _open_outermost(self) -> Transaction:
        """Return the transaction. Raises the errors of ``_open``, and ``ReentrantUseError`` in another call of the
        queue."""
        transaction, open_queue = self._transaction, self._open_queue
        if transaction is None or not open_queue.is_usable:
            transaction = self._open()
        open_queue.check_outermost()
        return transaction

    def _open(self) -> Transaction:
        """Return the transaction, after ``_note``. Raises ``ClosedError`` and ``BrokenQueueError``."""
        if self._transaction is None:
            advice = "the session is closed: get another one from queue.session()"
            raise ClosedError(self._open_queue.closed or f"{self._open_queue.directory}: {advice}")
        if not self._open_queue.is_usable:
            self._open_queue.check_usable()
        if self._taken:
            self._note(self._transaction)
        return self._transaction

    def _enqueue_large(self, transaction: Transaction, items: list[bytes]) -> None:
        """Buffer items that exceed the memory of the session, and spill as often as necessary."""
        ends, spill = list(accumulate(map(len, items), initial=0)), partial(self._open_queue.spill, transaction)
        for start, stop in fitting_parts(ends, self._spill_bytes, lambda: transaction.cost_bytes, spill):
            transaction.add(items[start:stop])


class _JointFlush:
    """The flush of the sessions of one transaction over several queues. For one thread at a time."""

    def __init__(self, sessions: Sequence[SessionState[Any]]) -> None:
        self._sessions = sorted(sessions, key=lambda session: session._open_queue.directory)

    def flush(
        self, asked: SessionState[Any], marker: tuple[str, int] | None, timeout: float | None, wait: bool
    ) -> bool:
        """Flush all sessions, as ``Session.flush`` does for one; ``asked`` is the session that the marker is for."""
        check_joint(timeout, wait)
        return exclusively(self._sessions, partial(self._flush, asked, marker))

    def _flush(self, asked: SessionState[Any], marker: tuple[str, int] | None) -> bool:
        works = [(session, session._open()) for session in self._sessions]
        for session, work in works:
            work.marker = checked_marker(marker) if session is asked and marker is not None else None
        busy = [(each, work) for each, work in works if work.enqueues or work.runs or work.marker is not None]
        if not busy:
            return True
        try:
            commit_tried([(session._open_queue, work, session._trial) for session, work in busy], 0.0)
        finally:
            for session, work in busy:
                if work.settled:  # also after an interruption behind the commit: the session begins a new transaction
                    session._finish(work)
        return not busy[0][1].skipped


def check_joint(timeout: float | None, wait: bool) -> None:
    """Raise ``ValueError`` or ``TypeError`` for arguments of ``flush`` that a transaction over several queues cannot
    have."""
    if not checked_truth("wait", wait):
        raise ValueError("a transaction over several queues has no tickets: flush it with wait=True")
    if checked_timeout(timeout):
        raise ValueError(
            f"a transaction over several queues never waits for room, got timeout={timeout}: pass 0 or None"
        )


def flush_all(
    open_queue: OpenQueue,
    sessions: Sequence[SessionState[Any]],
    markers: Sequence[tuple[str, int] | None],
    origins: Sequence[tuple[bytes, int]] = (),
) -> list[bool | Exception]:
    """Flush the sessions as ``PersistentQueue.flush_all`` promises; ``origins`` are those of workers' flushes."""
    sessions, markers = tuple(sessions), tuple(markers)  # a list of the caller may change meanwhile
    _require_apart(open_queue, sessions)
    return exclusively(sessions, partial(_flush_all, open_queue, sessions, markers, origins))


def _flush_all(
    open_queue: OpenQueue,
    sessions: Sequence[SessionState[Any]],
    markers: Sequence[tuple[str, int] | None],
    origins: Sequence[tuple[bytes, int]],
) -> list[bool | Exception]:
    found: list[bool | Exception] = [True] * len(sessions)
    works: dict[int, Transaction] = {}
    for number, session in enumerate(sessions):
        marker = markers[number] if markers else None
        if origins and session._transaction is not None:
            session._transaction.origin = origins[number]
        try:
            work = _work_of(session, marker)
            if work.rejections:  # dead letters go to another queue
                session._queue_commit(work, 0.0)
                found[number] = session._finish(work)
                continue
        except (PersistentQueueError, TypeError, ValueError) as error:
            found[number] = error
        else:
            if not work.is_empty:
                works[number] = work
    try:
        open_queue.commit_all(list(works.values()))
    except PersistentQueueError as error:
        for work in works.values():
            work.error = work.error or error
    finally:  # also after an interruption: settled sessions begin anew, the others keep their operations
        for number, work in works.items():
            failure, work.error = work.error, None
            if work.settled:
                found[number] = sessions[number]._finish(work)
            elif isinstance(failure, Exception):
                found[number] = failure
    return found


def _work_of(session: SessionState[Any], marker: tuple[str, int] | None) -> Transaction:
    """Return the transaction of the session, with this marker, behind all that was handed over."""
    if session._pipeline is not None:
        session._pipeline.settle()
    work = session._open()
    work.marker = None if marker is None else checked_marker(marker)
    return work


def _require_apart(open_queue: OpenQueue, sessions: Sequence[SessionState[Any]]) -> None:
    """Raise ``ValueError`` unless these are different sessions of this queue alone."""
    if len(set(map(id, sessions))) < len(sessions):
        raise ValueError("flush_all got the same session twice: pass each session once")
    if any(session._open_queue is not open_queue for session in sessions):
        raise ValueError("flush_all got a session of another queue: pass only sessions of this queue")
    if any(session._together is not None for session in sessions):
        raise ValueError("flush_all got a session of a transaction over several queues: call flush() of that session")


def flush_jointly(
    sessions: Sequence[SessionState[Any]],
    origins: Sequence[tuple[bytes, int]],
    marker: tuple[str, int] | None,
    check: Callable[[], object],
) -> bool:
    """Flush sessions of workers as one transaction over their queues, with their origins. The marker is for the first.

    ``check`` is called while the sessions refuse all other calls, before the flush. Raises its errors, those of
    ``flush``, and ``ValueError`` if the queues do not go together.
    """
    joint = joint_flush(sessions)

    def flush() -> bool:
        """Flush the sessions, whose transactions nothing else ends."""
        check()
        for session, origin in zip(sessions, origins, strict=True):
            session._open().origin = origin
        return joint._flush(sessions[0], marker)

    return exclusively(sessions, flush)


def flush_together(sessions: Sequence[SessionState[Any]]) -> _JointFlush:
    """Make ``flush`` of each of these sessions flush all of them, as one transaction over their queues; return it.

    Raises the errors of ``joint_flush``.
    """
    joint = joint_flush(sessions)
    for session in sessions:
        session._together = joint
    return joint


def joint_flush(sessions: Sequence[SessionState[Any]]) -> _JointFlush:
    """Return a flush of all sessions as one transaction. Raises ``ValueError`` if their queues do not go together."""
    open_queues = [session._open_queue for session in sessions]
    require_neighbours(*(open_queue.directory for open_queue in open_queues))
    introduce(open_queues)
    for open_queue in open_queues:
        if not open_queue.settings.sync:
            raise ValueError(
                f"{open_queue.directory}: opened with sync=False: a power cut could undo its part of a transaction "
                "over several queues and keep the other parts: open it with sync=True"
            )
    return _JointFlush(sessions)


def reader_of(session: SessionState[Any]) -> Reader | None:
    """Return the reader of the subscription that the session dequeues from; None if the queue has only
    named ones."""
    return session._reader


def put_at_once(session: SessionState[bytes], items: Sequence[bytes]) -> bool:
    """Buffer items of a message, if they have room in memory. Return False, and do nothing, if the call of the session
    must do it."""
    if session._busy and not claims(session):
        return False
    session._busy = BUSY
    try:
        transaction = session._transaction  # not before: until then another thread may flush the session
        if transaction is None or not session._open_queue.is_usable:
            return False
        each_bytes = items.each_bytes if isinstance(items, Alike) else MIXED
        size_bytes = sum(map(len, items)) if each_bytes == MIXED else each_bytes * len(items)
        cost_bytes = size_bytes + ITEM_OVERHEAD_BYTES * len(items)
        if transaction.cost_bytes + cost_bytes > session._spill_bytes:
            return False
        transaction.add_measured(items, cost_bytes, each_bytes)
        return True
    finally:
        session._busy = FREE


def flush_at_once(
    open_queue: OpenQueue, sessions: Sequence[SessionState[Any]], origins: Sequence[tuple[bytes, int]]
) -> list[bool | Exception] | None:
    """Flush sessions of workers as one group, and return their outcomes. Return None, and do nothing, if a session
    needs ``flush_all``."""
    works: list[Transaction] = []
    taken: list[SessionState[Any]] = []
    try:
        for session, origin in zip(sessions, origins, strict=True):
            if session._busy and not claims(session):
                return None
            # No call from here on: an interruption finds the session free, or busy and in the list.
            session._busy = BUSY
            taken += (session,)
            work = session._transaction  # not before: until then another thread may flush the session
            if work is None or session._trial is not None or not (work.items or work.runs or session._taken):
                return None
            work.origin, work.marker = origin, None
            if session._taken:
                session._note(work)
            works.append(work)
        try:
            open_queue.commit_all(works)
        except PersistentQueueError as error:
            for work in works:
                work.error = work.error or error
        return [_outcome(work) for work in works]
    finally:
        end_all(taken)


def _outcome(work: Transaction) -> bool | Exception:
    """Return what the flush of this transaction returns or raises."""
    failure, work.error = work.error, None
    return failure if isinstance(failure, Exception) and not work.settled else True


def buffered(session: SessionState[Any]) -> int:
    """Return the number of items that the session has enqueued since its last flush."""
    return session._transaction.count if session._transaction is not None else 0


def losses(sessions: Iterable[SessionState[Any]]) -> list[str]:
    """Return the text of an ``UnflushedWarning`` for each session whose queue is closed now and that has not flushed
    what it has enqueued. Without a warning are sessions in a call, and those of a broken queue: they get errors."""
    return [text for each in sessions if (text := each._unflushed(closes=True)) is not None]


def holds(session: SessionState[Any]) -> bool:
    """Return whether the session has dequeued anything since its last flush."""
    transaction = session._transaction
    return transaction is not None and bool(session._taken or transaction.runs)


def held_alone(session: SessionState[Any], *, may_enqueue: bool) -> list[Run]:
    """Return what the session holds, unless it has rejected any of it, or has enqueued anything and may not.

    Raises ``SessionInUseError`` if another thread flushes it.
    """

    def look() -> list[Run]:
        """Look at the transaction, which nothing else ends."""
        work = session._transaction
        if work is None or work.settled or work.rejections or (work.enqueues and not may_enqueue):
            return []
        session._note(work)
        return work.runs.copy()

    return exclusively([session], look)


def let_go(session: SessionState[Any]) -> None:
    """End the session, and release nothing: nothing else takes these items until the queue is closed.

    A flush over several queues that has found the session before raises ``ClosedError``. Raises ``SessionInUseError``
    if another thread flushes it.
    """

    def forget() -> None:
        """End the transaction."""
        session._transaction = None

    exclusively([session], forget)


def hold_again(session: SessionState[Any], runs: Sequence[Run]) -> bool:
    """Let a new session hold these items, as if it had dequeued them. Return False if one of them is not ready."""
    open_queue, work, ready = session._open_queue, session._open(), session._consumer().ready

    def hold() -> bool:
        """Hold the items, which only this session then gives back."""
        if not ready.hold_again(runs):
            return False
        work.runs, work.given = list(runs), count_of(runs)
        work.since_seconds = open_queue.now()
        return True

    return open_queue.look(hold)


def fail_held(session: SessionState[Any], error: BaseException) -> None:
    """Move held items without attempts left to the dead letters: this error has left the block of the session."""
    trial, transaction = session._trial, session._transaction
    if trial is not None and transaction is not None:
        exclusively([session], partial(trial.fail, transaction, session._reader, error))


def buries(session: SessionState[Any]) -> bool:
    """Return whether the next flush of the session moves an item to the dead letters. It then waits for no room."""
    trial, transaction = session._trial, session._transaction
    return trial is not None and transaction is not None and trial.buries(transaction)


def uncount(session: SessionState[Any], count: int) -> None:
    """Take back the last delivery of the last ``count`` items that the session holds. Raises ``ValueError`` if it holds
    fewer."""
    transaction = session._transaction
    if transaction is None or session._trial is None:
        return
    session._note(transaction)
    if checked_held(count, count_of(transaction.runs)):
        session._trial.uncount(transaction, count)


def counts_attempts(session: SessionState[Any]) -> bool:
    """Return whether the queue of the session counts delivery attempts."""
    return session._counts_attempts()


def takes_no_more(session: SessionState[Any]) -> bool:
    """Return whether a dequeue of the session returns nothing at once: an item is at its last attempt."""
    return session._takes_no_more()


def dequeue_by(session: SessionState[bytes], max_items: int, take: Take) -> list[bytes]:
    """Hold up to ``max_items`` items for the session without a wait, by ``take`` in place of ``OpenQueue.take``, and
    return them. Raises the errors of ``Session.dequeue_many``."""

    def dequeue() -> list[bytes]:
        """Hold the items for the session."""
        transaction = session._open()
        items = session._take(transaction, max_items, 0.0, take)
        if items and not transaction.since_seconds:
            transaction.since_seconds = session._open_queue.now()
        transaction.given += len(items)
        return items

    return exclusively([session], dequeue)


def hold_of(session: SessionState[Any]) -> Hold | None:
    """Return what the session has dequeued or spilled since its last flush; None if that is nothing. For any thread."""
    transaction, pipeline = session._transaction, session._pipeline
    taken = [sequence for sequence, _ in session._taken.copy()]
    keeping = [transaction] if transaction is not None and not transaction.committed else []
    # Another thread may hand the transaction over meanwhile: it counts once.
    keeping += [each for each in (pipeline.left() if pipeline is not None else ()) if each is not transaction]
    runs = [run for each in keeping for run in each.runs.copy()]  # behind what was taken: see ``_runs_of``
    pieces = [piece for each in keeping for piece in each.pieces]
    if not (taken or runs or pieces):
        return None
    return Hold(session.name, held_seconds(session), runs, taken, pieces)


def held_seconds(session: SessionState[Any]) -> float:
    """Return the seconds since the session began to keep what ``hold_of`` returns; 0.0 if that is nothing. For any
    thread."""
    transaction, pipeline = session._transaction, session._pipeline
    keeping = [each for each in (pipeline.left() if pipeline is not None else ()) if each.runs or each.pieces]
    if transaction is not None and (session._taken or transaction.runs or transaction.pieces):
        keeping.append(transaction)
    since_seconds = min((each.since_seconds for each in keeping if each.since_seconds), default=0.0)
    return session._open_queue.now() - since_seconds if since_seconds else 0.0


def require_no_handlers(error: IndexError) -> None:
    """Raise the error again if a signal handler has raised it. The lane itself raises it if other threads have emptied
    it."""
    if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
        raise error

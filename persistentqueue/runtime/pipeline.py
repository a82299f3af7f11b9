"""Flushes that no thread waits for: a session hands its transactions to a pipeline, which commits them in order.

Each session that calls ``flush(wait=False)`` has one pipeline, with a thread of its own. While the disk writes, the
session goes on. The thread takes everything that was handed over meanwhile, and merges neighbouring transactions: they
share one write and one sync. So one session shares syncs with itself, as many threads do by group commit.

Order is the promise: the flushes of a session become durable in the order in which they were made.

- A crash leaves a prefix of them. Merged transactions are one transaction on disk, so they are durable together.
- An error fails its flush and all that follow. If merged transactions are refused, they are tried one by one: those
  before the first refused one are committed. The session accepts no flush until it was rolled back. Until then it also
  keeps the holds of what has failed: a session must not get items again that it believes to be behind it.

A transaction with a marker or with spilled items is not merged, nor is one whose flush has a timeout.

Threads: the session's thread hands over, one call at a time. ``Pipeline`` says which calls are for any thread. No lock
is needed: ``waiting`` changes by single calls of C code, and each number and flag has one writer.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, TimeoutError  # noqa: A004 - not the built-in one before 3.11
from copy import copy
from typing import Any, Final, NamedTuple, NoReturn, Protocol, TypeVar, cast

from ..core.intervals import join_runs
from ..core.items import checked_timeout
from ..engine.transaction import SPILL_BYTES, Transaction
from ..errors import BrokenQueueError, ClosedError, PersistentQueueError, PrecedingFlushError, ReentrantUseError
from ..interrupts.locks import Condition, Lock
from ..pickling import IN_CHILD, Uncopyable
from ..system.disk import after_fork_in_child
from ..system.event_log import LOGGER
from ..system.path_errors import suppress

T = TypeVar("T")
THREAD_NAME = "persistentqueue-flush"
_WAITING_MAX = 500
"""Flushes that wait in a pipeline before a further one waits for them. As many may be under way."""
_WAITING_BYTES_MAX = SPILL_BYTES
"""Bytes in memory that the items of waiting flushes may take before a further flush waits for them."""
_END: Final = object()
"""In place of the lock of a ticket: its flush has ended, and no thread waits."""
_get_ident = threading.get_ident


def _checked(timeout: float) -> float:
    """Return the seconds to wait, cut to the longest wait; 0.0 for a negative timeout. Raises ``TypeError`` and
    ``ValueError``."""
    try:
        is_negative = timeout < 0
    except (TypeError, ArithmeticError):
        is_negative = False  # ``checked_timeout`` says what is wrong
    return 0.0 if is_negative else cast(float, checked_timeout(timeout))


def _lock_of(ticket: Ticket) -> Condition:
    """Return the lock of a ticket. It is made at its first use, with the other parts of a ``Future``, by a callback or
    by ``concurrent.futures.wait``: most flushes have ended before.

    The first thread that uses it and the thread that ends the flush both try to set ``_lock``, by one call of C code.
    If the latter is first, it sets ``_END``: nothing has to be called.
    """
    parts = ticket.__dict__
    lock = parts.get("_lock")
    if lock is None or lock is _END:
        parts.setdefault("_waiters", [])
        parts.setdefault("_done_callbacks", [])
        lock = parts.setdefault("_lock", Condition())
    if lock is _END:
        parts["_state"] = "FINISHED"  # the other thread is about to set it
        lock = parts.setdefault("_lock_behind", Condition())
    return cast(Condition, lock)


class Ticket(Uncopyable, Future[bool]):
    """The outcome of a flush that ``Session.flush(wait=False)`` has begun: a ``concurrent.futures.Future``.

    ``result`` waits for the flush, and returns what ``flush`` would return or raises what it would raise. ``done``
    tells whether the flush has ended. ``add_done_callback`` takes a callable, and calls it with the ticket in the
    thread that commits. Such a callable must not wait for a flush of the same session: that raises
    ``ReentrantUseError``. ``asyncio.wrap_future`` and ``concurrent.futures.wait`` accept a ticket.

    Durability: a flush whose ``result`` raises nothing is durable, and so are all flushes of the session before it.
    Threads: any thread may use a ticket.
    """

    _elsewhere = "wait for it in the process that has the session"
    _state = "PENDING"
    _result: bool | None = None
    _exception: BaseException | None = None
    _condition: threading.Condition = cast(Any, property(_lock_of))

    def __init__(self) -> None:
        """Begin an outcome that is unknown."""
        # Now, while one thread has the ticket: CPython before 3.12 makes two dictionaries if two threads ask for the
        # first one and a collection of garbage lets them change. One is lost, or the memory of both is freed twice.
        vars(self)

    def done(self) -> bool:
        """Return whether the flush has ended, well or badly. For any thread."""
        return self._state == "FINISHED" or self.__dict__.get("_lock") is _END

    def result(self, timeout: float | None = None) -> bool:
        """Wait until the flush has ended, and return True, or False if its marker had reached the version before.

        Args:
            timeout: Seconds to wait; none for 0 or less, as in a ``Future``. The default None waits for ever.

        Raises:
            TimeoutError: The time is over (``concurrent.futures.TimeoutError``, which is another class before 3.11).
            PersistentQueueError: The flush has failed; see ``Session.flush``.
            TypeError, ValueError: ``timeout`` is no number, or NaN.

        The flush is durable on return. For any thread.
        """
        error = self.exception(timeout)
        if error is None:
            return bool(self._result)
        try:
            raise error
        finally:
            del error, self  # no cycle of the error, its traceback, and this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the flush has ended, and return its error; None if it has ended well.

        Args:
            timeout: Seconds to wait; none for 0 or less, as in a ``Future``. The default None waits for ever.

        Raises:
            TimeoutError: The time is over, as in ``result``.
            TypeError, ValueError: ``timeout`` is no number, or NaN.

        A flush that has ended well is durable on return. For any thread.
        """
        if not self.wait(timeout):
            raise TimeoutError
        return self._exception

    def cancel(self) -> bool:
        """Return False: a flush cannot be withdrawn.

        Nothing changes by this call. For any thread.
        """
        return False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flush has ended, well or badly. Errors of the flush are not raised.

        Args:
            timeout: Seconds to wait; none for 0 or less, as in a ``Future``. The default None waits for ever.

        Returns:
            True if the flush has ended, False if the time is over.

        Raises:
            TypeError, ValueError: ``timeout`` is no number, or NaN.

        If the flush has ended well, it is durable. For any thread.
        """
        seconds = -1.0 if timeout is None else _checked(timeout)
        if self.done():
            return True
        # Not by the condition of a ``Future``: an interruption may leave it locked, and the end would wait for ever.
        turn = threading.Lock()
        turn.acquire()
        turns: list[threading.Lock] = self.__dict__.setdefault("_turns", [])
        turns.append(turn)
        try:
            if not self.done():  # else ``_tell`` may have passed by before it could see the lock
                turn.acquire(timeout=seconds)
        finally:
            turns.remove(turn)
        return self.done()

    def _tell(self) -> None:
        """Wake the threads that wait, once: the flush has ended."""
        for turn in tuple(self.__dict__.get("_turns", ())):  # a copy: threads whose time is over leave meanwhile
            turn.release()

    def _invoke_callbacks(self) -> None:
        self._tell()  # first: a callback may take long
        super()._invoke_callbacks()  # type: ignore[misc]

    def add_done_callback(self, fn: Callable[[Future[bool]], object]) -> None:
        """Call ``fn`` with the ticket when the flush has ended; at once and in this thread if it has ended already.

        In the thread that commits, each error of ``fn`` is logged, also ``SystemExit``, and the next flushes go on.

        Args:
            fn: The callable.

        A flush that has ended well is durable when ``fn`` is called. For any thread.
        """
        thread, is_here = _get_ident(), True

        def call(ticket: Future[bool]) -> None:
            """Call ``fn``. No error of it may end the thread that commits."""
            try:
                fn(ticket)
            except BaseException as error:
                if isinstance(error, Exception) or (is_here and _get_ident() == thread):
                    raise  # the base class logs an ``Exception``
                LOGGER.exception("a callback of a ticket has raised: the flushes behind it go on")

        super().add_done_callback(call)
        is_here = False

    def abandon(self, reason: str) -> None:
        """Fail with ``ClosedError`` unless the flush has ended; only for a forked child, which has one thread."""
        has_ended = self.done()
        result, error = self._result, self._exception
        self.__dict__.clear()  # the parent's thread may have held the lock: the ticket gets another one
        if not has_ended:
            _fail(self, ClosedError(reason))
        elif error is not None:
            _fail(self, error)
        else:
            _succeed(self, bool(result))

    def set_result(self, result: object) -> NoReturn:  # noqa: ARG002
        """Raise ``InvalidStateError``: only the queue knows the outcome of a flush."""
        raise InvalidStateError("a ticket gets its result from the queue")

    def set_exception(self, exception: BaseException | None) -> NoReturn:  # noqa: ARG002
        """Raise ``InvalidStateError``: only the queue knows the outcome of a flush."""
        raise InvalidStateError("a ticket gets its error from the queue")


def _succeed(ticket: Ticket, committed: bool) -> None:
    """Let the flush end well. Raises ``InvalidStateError`` if it has ended."""
    if not _ends_unseen(ticket, "_result", committed):
        Future.set_result(ticket, committed)


def _fail(ticket: Ticket, error: BaseException) -> None:
    """Let the flush end badly. Raises ``InvalidStateError`` if it has ended."""
    if not _ends_unseen(ticket, "_exception", error):
        Future.set_exception(ticket, error)


def _ends_unseen(ticket: Ticket, kind: str, outcome: object) -> bool:
    """Let the flush end, and return True, if no thread has looked for its end with a lock."""
    parts = ticket.__dict__
    if ticket.done():  # it may be running: only users say that, and it changes nothing
        raise InvalidStateError(f"the ticket has an outcome: {ticket!r}")
    parts[kind] = outcome  # before the end: a thread that finds the end reads it
    if parts.setdefault("_lock", _END) is not _END:
        return False
    parts["_state"] = "FINISHED"
    ticket._tell()
    return True


def done(committed: bool) -> Ticket:
    """Return the ticket of a flush that has ended well."""
    ticket = Ticket()
    _succeed(ticket, committed)
    return ticket


class Handed(NamedTuple):
    """A transaction that a session has handed over."""

    transaction: Transaction
    ticket: Ticket
    timeout_seconds: float | None

    @property
    def can_merge(self) -> bool:
        """Whether the transaction may be committed as a part of another one."""
        transaction = self.transaction
        return transaction.marker is None and not transaction.pieces and self.timeout_seconds is None


class _Failure:
    """The error of a flush that failed. Of an error of the package it keeps a copy, without the traceback.

    Where a ticket has raised the error, its traceback keeps all local variables, and perhaps the session. The thread of
    the pipeline would keep that session for ever.
    """

    def __init__(self, error: BaseException) -> None:
        self._kept, self._raised = error, None
        if isinstance(error, PersistentQueueError):
            self._kept, self._raised = copy(error), weakref.ref(error)
            self._kept.__cause__ = error.__cause__

    @property
    def error(self) -> BaseException:
        """The error itself, as long as the ticket or its caller has it; then the copy."""
        raised = self._raised() if self._raised is not None else None
        return self._kept if raised is None else raised


class Committing(Protocol):
    """The open queue, as a pipeline uses it. Its end ends the pipeline."""

    directory: str

    def commit(self, transaction: Transaction, timeout_seconds: float | None) -> None:
        """Commit the transaction, and wait for room up to the timeout."""

    def give_up(self, transaction: Transaction) -> None:
        """End the wait of the transaction for room."""

    def check_outermost(self) -> None:
        """Raise ``ReentrantUseError`` in a thread that is in a call of the queue: the pipeline may wait for that."""


class Pipeline:
    """The flushes that one session has handed over, and the thread that commits them.

    ``drain``, ``end``, ``give_up``, ``join`` and ``left`` are for any thread. The other calls are for the session's.
    """

    def __init__(self, owner: Committing, discard: Callable[[Transaction], None], keeps: object = None) -> None:
        """Begin without a thread.

        ``discard`` releases what a transaction holds, as a rollback does. For a flush that has failed, it is called in
        the session's thread while there is one. ``keeps`` is the queue. The reference keeps it alive, so that no file
        is closed while the thread writes.
        """
        self.owner, self._discard, self._keeps = owner, discard, keeps
        self.directory = owner.directory
        self.waiting: list[Handed] = []
        """Flushes that the thread has not taken. The session's thread appends, the other one removes from the front."""
        self.given_bytes = 0
        """Bytes in memory of all items that were handed over. The session's thread writes it."""
        self._taken_bytes = 0
        self._failure: _Failure | None = None
        """Error of the first flush that failed; None if there was none since the last rollback."""
        self._failed: list[Transaction] = []
        """Transactions of flushes that failed since the last rollback. The pipeline's thread appends, the session's
        removes."""
        self._thread: threading.Thread | None = None
        self._starting = Lock()
        """Held while the thread is started: only a thread that has begun can be waited for."""
        self._bell = threading.Lock()
        """Lock that the thread acquires in order to sleep; a release wakes the thread."""
        self._bell.acquire()
        self._room: threading.Lock | None = None
        """Lock to release when the thread has taken what waits: the session waits for it."""
        self._waiters: list[threading.Lock] = []
        """Locks to release when everything is done that was handed over before they came."""
        self._has_ended = self._is_dropped = False
        self._may_wait = True
        """False if no flush may wait for room any more."""
        self._current: Transaction | None = None
        self._under_way: Sequence[Handed] = ()

    # --- the session's side ------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Start the thread, once. Return False if the process cannot have another thread."""
        with self._starting:
            _ALIVE.add(self)
            try:
                # A daemon, so that a session that is never closed does not keep the process from ending.
                self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
                self._thread.start()
            except RuntimeError:
                _ALIVE.discard(self)
                self._thread = None
                return False
        return True

    def make_room(self) -> None:
        """Wait until few enough flushes wait. Raises the errors of ``check``."""
        self.check()
        while self.is_full():
            self._room = taken = threading.Lock()
            taken.acquire()
            self.owner.check_outermost()
            if self.is_full():  # else the thread may have passed by before it could see the lock
                self._wake()
                taken.acquire()
            self.check()

    def is_full(self) -> bool:
        """Return whether so much waits that a further flush must wait for room."""
        waiting_bytes = self.given_bytes - self._taken_bytes
        return len(self.waiting) >= _WAITING_MAX or (waiting_bytes >= _WAITING_BYTES_MAX and bool(self.waiting))

    def check(self) -> None:
        """Raise ``PrecedingFlushError`` if an earlier flush has failed, ``ReentrantUseError`` in the thread of the
        pipeline."""
        self.check_thread()
        if self._failure is not None:
            raise self._behind(self._failure)

    def check_thread(self) -> None:
        """Raise ``ReentrantUseError`` in the thread of the pipeline, which must not wait for itself."""
        thread = self._thread
        if thread is not None and thread.ident == _get_ident():
            raise ReentrantUseError(
                f"{self.directory}: called by a callback of a ticket, in the thread that commits for its session: make "
                "this call in another thread"
            )

    def ring(self) -> None:
        """Wake the thread, which looks at what was handed over. If it has ended, the queue is closed: fail that."""
        self._wake()
        if self._has_ended:
            self.join()
            self.run_once()

    def _wake(self) -> None:
        if self._bell.locked():
            with suppress(RuntimeError):  # another thread was faster
                self._bell.release()

    def settle(self) -> None:
        """Wait until all flushes that were handed over have ended. Raises the errors of ``check``."""
        self.drain()
        self.check()

    def forgive(self) -> None:
        """Wait as ``settle`` does, release what failed flushes hold, and forget the error: the session may flush
        again."""
        self.drain()
        self.release()
        self._failure = None

    def release(self) -> None:
        """Release what failed flushes hold. If this is interrupted, the next call releases the rest."""
        while self._failed:
            with suppress(Exception):  # of a callable of the user; all items are released nevertheless
                self._discard(self._failed[0])
            del self._failed[0]

    # --- for any thread ----------------------------------------------------------------------------------------------

    def drain(self, *, may_wait: bool = True) -> None:
        """Wait until all flushes that were handed over have ended. Raises ``ReentrantUseError`` in the own thread, and
        in a call of the queue.

        With ``may_wait`` off, no flush waits for room: it is refused.
        """
        self.check_thread()
        self.owner.check_outermost()
        done = threading.Lock()
        done.acquire()
        self._waiters.append(done)
        self._wake()
        if may_wait:
            self._await(done)
            return
        try:
            self._may_wait = False
            self.give_up()
            self._await(done)
        finally:
            self._may_wait = True

    def _await(self, done: threading.Lock) -> None:
        if self._has_ended:  # a thread that ends does not see what comes behind its last look
            self.join()
        else:
            done.acquire()

    @property
    def failure(self) -> PrecedingFlushError | None:
        """Error for what follows a flush that has failed; None if there was none since the last rollback."""
        return None if self._failure is None else self._behind(self._failure)

    def left(self) -> list[Transaction]:
        """Return the transactions that were handed over and are not settled."""
        # In the order in which they move, so that none is missed that moves meanwhile. Some may be found twice.
        found = [each.transaction for each in self.waiting.copy()]
        found += [each.transaction for each in self._under_way]
        found += self._failed.copy()
        return [each for each in {id(each): each for each in found}.values() if not each.committed]

    def give_up(self) -> None:
        """End the wait for room of the flush that is under way."""
        current = self._current
        if current is not None:
            self.owner.give_up(current)

    def end(self) -> None:
        """Let the thread end when everything is done."""
        self._has_ended = True
        self._wake()

    def drop(self) -> None:
        """Let the thread end as ``end`` does, and release what failed flushes hold. For the finalizer of the
        session."""
        self._is_dropped = True
        self.end()

    def join(self) -> None:
        """Wait for the end of the thread, after ``end``."""
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join()

    def abandon(self, reason: str) -> None:
        """Fail all flushes with ``ClosedError``, in a forked child: it does not have the thread."""
        for handed in (*self._under_way, *self.waiting):
            handed.ticket.abandon(reason)
        self.waiting, self._under_way, self._thread, self._has_ended = [], (), None, True
        self._starting = Lock()  # another thread of the parent may have held it

    # --- the thread's side -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._awaits():
                self.run_once()
        finally:
            if self._is_dropped:
                self._report()
                self.release()
            _ALIVE.discard(self)

    def _report(self) -> None:
        """Log failed flushes of a session that was dropped: no call of it is left that could raise."""
        if self._failed and self._failure is not None:
            failure = self._failure.error
            LOGGER.warning(
                "%s: a session was dropped, and %d of its flushes had failed (%s: %s), so their work is rolled back: "
                "use the session in a with block, which raises the error",
                self.directory,
                len(self._failed),
                type(failure).__name__,
                failure,
            )

    def _awaits(self) -> bool:
        """Sleep until something was handed over, and return True; False if the pipeline has ended."""
        while True:
            has_ended = self._has_ended  # first: all that came before the end is served
            if self.waiting or self._waiters:
                return True
            if has_ended:
                return False
            self._bell.acquire()

    def run_once(self) -> None:
        """Commit everything that was handed over until now, then tell those that wait for it."""
        waiters = _take(self._waiters)  # first, so that nothing before them is left out
        self._under_way = batch = self.waiting.copy()  # before they leave ``waiting``: see ``left``
        del self.waiting[: len(batch)]
        self._taken_bytes += sum(each.transaction.cost_bytes for each in batch)
        room, self._room = self._room, None
        if room is not None:
            room.release()
        try:
            self._commit_all(batch)
        except BaseException as error:  # for lack of memory, perhaps: no thread may wait for ever
            self._failure = self._failure or _Failure(error)
            for each in batch:
                if not each.ticket.done():
                    self._fail(each, error)
        self._under_way = ()
        for waiter in waiters:
            waiter.release()

    def _commit_all(self, batch: Sequence[Handed]) -> None:
        lots = deque(_lots(batch))
        while lots:
            lot = lots.popleft()
            if self._failure is not None:
                behind = self._behind(self._failure)
                for each in lot:
                    self._fail(each, behind)
            elif len(lot) == 1:
                self._commit_alone(lot[0])
            elif not self._commit_merged(lot):
                lots.extendleft([each] for each in reversed(lot))

    def _commit_merged(self, lot: Sequence[Handed]) -> bool:
        """Commit these flushes as one transaction. Return False if it was refused: then nothing was committed."""
        try:
            merged = _Merged(lot)
        except MemoryError:
            return False
        error = self._commit(merged, 0.0)
        if isinstance(error, PersistentQueueError) and not isinstance(error, BrokenQueueError):
            return False
        if error is not None:
            self._failure = _Failure(error)  # of each of them it is unknown whether it is durable
            for each in lot:
                self._fail(each, error)
            return True
        for each in lot:
            _succeed(each.ticket, True)
        return True

    def _commit_alone(self, handed: Handed) -> None:
        transaction = self._current = handed.transaction
        try:
            error = self._commit(transaction, handed.timeout_seconds if self._may_wait else 0.0)
            if transaction.skipped:
                self._discard(transaction)
        except BaseException as failure:
            error = failure
        self._current = None
        if error is None:
            _succeed(handed.ticket, not transaction.skipped)
        else:
            self._failure = _Failure(error)
            self._fail(handed, error)

    def _commit(self, transaction: Transaction, timeout_seconds: float | None) -> BaseException | None:
        """Commit the transaction; return the error if it may not be committed.

        An error behind the commit is only logged: the flush is durable, and the session must not repeat it.
        """
        try:
            if not transaction.is_empty:
                self.owner.commit(transaction, timeout_seconds)
        except BaseException as error:
            if not transaction.settled:
                return error
            LOGGER.exception("%s: an error behind a flush, which is durable: the next flushes go on", self.directory)
        return None

    def _fail(self, handed: Handed, error: BaseException) -> None:
        self._failed.append(handed.transaction)
        _fail(handed.ticket, error)

    def _behind(self, failure: _Failure) -> PrecedingFlushError:
        error = PrecedingFlushError(self.directory, failure.error)
        error.__cause__ = error.failure
        return error


class _Merged(Transaction):
    """One transaction with everything that some flushes enqueue and consume. They are settled in the step in which it
    is settled, with the mutex held: another thread finds their items either held or consumed."""

    __slots__ = ("_parts",)

    def __init__(self, lot: Sequence[Handed]) -> None:
        self._parts = [each.transaction for each in lot]
        super().__init__(self._parts[0].ready)
        for each in self._parts:
            self.items += each.items
            self.cost_bytes += each.cost_bytes
            join_runs(self.runs, each.runs)

    @property
    def settled(self) -> bool:
        """Whether the transaction, and with it each flush, was committed."""
        return self._parts[0].settled

    @settled.setter
    def settled(self, is_settled: bool) -> None:
        for each in self._parts:
            each.settled = is_settled


def _take(entries: list[T]) -> list[T]:
    """Remove and return everything, while other threads may append."""
    all_of_them = slice(len(entries))
    taken = entries[all_of_them]
    del entries[all_of_them]
    return taken


def _lots(batch: Sequence[Handed]) -> list[list[Handed]]:
    """Return the flushes in lots, in order; each lot is merged into one transaction."""
    lots: list[list[Handed]] = []
    is_open, lot_bytes = False, 0
    for each in batch:
        cost_bytes, can_merge = each.transaction.cost_bytes, each.can_merge
        if is_open and can_merge and lot_bytes + cost_bytes <= SPILL_BYTES:
            lots[-1].append(each)
            lot_bytes += cost_bytes
        else:
            lots.append([each])
            is_open, lot_bytes = can_merge, cost_bytes
    return lots


_ALIVE: set[Pipeline] = set()
"""Pipelines that have a thread."""


def pipelines_of(owner: object) -> list[Pipeline]:
    """Return the pipelines of this open queue."""
    return [each for each in _ALIVE.copy() if each.owner is owner]


def is_committing() -> bool:
    """Return whether this thread is that of a pipeline, in a callback of a ticket."""
    thread = threading.current_thread()
    return any(each._thread is thread for each in _ALIVE.copy())


def _finish_all() -> None:
    """Commit what was handed over, before the process ends."""
    for pipeline in _ALIVE.copy():
        with suppress(PersistentQueueError):
            pipeline.drain(may_wait=False)


def _abandon_all() -> None:
    for pipeline in _ALIVE.copy():
        pipeline.abandon(f"{pipeline.directory}: {IN_CHILD}")
    _ALIVE.clear()


atexit.register(_finish_all)
after_fork_in_child(_abandon_all)

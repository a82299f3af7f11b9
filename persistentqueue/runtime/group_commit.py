"""Group commit: the transactions of many threads share one write and one sync. One leader writes, and followers wait.

A thread that comes while no thread writes becomes the leader. It writes its own transactions and those of all threads
that came meanwhile, its followers. When the leader is done, the first thread that came during the write leads the next
group. A single thread has no cost from other threads. This module starts no thread.

Each finished follower wakes the next one; the leader does not wake them all. So each follower wakes at about the time
when the one before it waits again. Followers that all wake at once wait for the interpreter, in which only one thread
runs, so they sleep and wake a second time. That takes a seventh of the time of 32 threads that flush
(``perf/README.md`` has the figures).

An interruption, such as a ``KeyboardInterrupt``, may come between any two steps. It costs no other thread its turn.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from operator import methodcaller

from ..engine.transaction import Transaction
from ..errors import PersistentQueueError
from ..interrupts.locks import Lock
from ..interrupts.signal_shield import shielded


class _Member:
    """The transactions that one thread has brought. ``turn`` is released to tell the thread that they are done, or that
    it leads."""

    __slots__ = ("transactions", "turn")

    def __init__(self, transactions: Sequence[Transaction]) -> None:
        self.transactions = transactions
        self.turn = threading.Lock()
        self.turn.acquire()


class GroupCommit:
    """The threads that want transactions written. ``write`` is called for one group at a time. For any number of
    threads.

    ``check`` is called with the mutex held, before a thread lines up. It raises the error that the caller should
    receive.
    """

    def __init__(
        self,
        mutex: AbstractContextManager[object],
        check: Callable[[], None],
        write: Callable[[Sequence[Transaction]], None],
        note_seconds: Callable[[float], object],
    ) -> None:
        self._mutex = mutex
        self._check = check
        self._write = write
        self._note_seconds = note_seconds
        """Takes the seconds that a leader has waited for a write beside the groups."""
        self.writing = Lock()
        """Lock that is held over the writes of a group, and over all other writes beside the groups."""
        self._waiting: list[_Member] = []
        self._followers: list[_Member] = []
        """Followers of the present leader."""
        self._done: deque[threading.Lock] = deque()
        """Turns of the followers that are finished and were not woken yet."""
        # Taking the first turn and releasing it is one call of C, so no interruption comes in between. By ``__call__``
        # both need the same room on the stack, so no turn is taken and not released.
        taken = iter(self._done.popleft.__call__, None)  # type: ignore[operator]  # mypy does not know the attribute
        self._told = map(methodcaller("release"), taken)
        self.leader: Sequence[Transaction] | None = None
        """Transactions that the present leader has brought; None while no thread writes. Read-only outside this class.
        """

    def __len__(self) -> int:
        """Return the number of threads that wait for the next group."""
        return len(self._waiting)

    def commit(self, transaction: Transaction) -> bool:
        """Have the transaction written, in a group with others that wait: it is ``settled`` on return.

        Returns True if this thread has led the group. Raises the ``error`` of the transaction.
        """
        transaction.error = None
        alone, has_led = (transaction,), False
        while not transaction.settled:
            has_led = self._line_up(alone)
            error, transaction.error = transaction.error, None
            if error is not None:
                raise error
        return has_led

    def commit_all(self, transactions: Sequence[Transaction]) -> bool:
        """Have the transactions written in one group with others that wait. On return each is ``settled`` or has its
        ``error``.

        Returns True if this thread has led the group. Raises the error of ``check``; a transaction may be settled
        nevertheless.
        """
        has_led = False
        for transaction in transactions:
            transaction.error = None
        while left := [each for each in transactions if not each.settled and each.error is None]:
            has_led = self._line_up(left)
        return has_led

    def _line_up(self, transactions: Sequence[Transaction]) -> bool:
        """Have the transactions written, by this thread or another one; return True if this thread has led their group.

        If a transaction is then neither settled nor failed, it must line up again: its leader was interrupted before it
        wrote anything.
        """
        member: _Member | None = None
        try:
            with self._mutex:
                self._check()
                if self.leader is None:
                    self.leader = transactions
                else:
                    member = _Member(transactions)
                    self._waiting.append(member)
            if member is not None:
                member.turn.acquire()
                if self._done:
                    self._tell_next()
            if self.leader is not transactions:
                return False
            self._lead(transactions)
        except BaseException:
            shielded(partial(self.withdraw, transactions))
            raise
        return True

    def _lead(self, transactions: Sequence[Transaction]) -> None:
        """Write these transactions and those of all waiting threads, then hand the lead on."""
        group = list(transactions)
        began = time.monotonic() if self.writing.locked() else 0.0
        try:
            with self.writing:
                if began:
                    self._note_seconds(time.monotonic() - began)
                if self._waiting:
                    with self._mutex:
                        self._followers, self._waiting = self._waiting, []
                    for member in self._followers:
                        group += member.transactions
                self._write(group)
        except PersistentQueueError as error:
            for failed in group:
                failed.error = error
        finally:
            with self._mutex:
                self._hand_on()
            if self._done:
                self._tell_next()

    def _hand_on(self) -> None:
        """Mark the followers as done, and let the first thread that came meanwhile lead. The mutex is held.

        After an interruption it may be called again.
        """
        if self._followers:
            turns = [member.turn for member in self._followers]
            # No call in these two steps, so no interruption in between.
            self._done += turns
            self._followers = []
        if self._waiting:
            heir, before = self._waiting[0], (self._waiting, self.leader)
            self._waiting, self.leader = self._waiting[1:], heir.transactions
            try:
                heir.turn.release()
            except RecursionError:  # the heir was not told
                self._waiting, self.leader = before
                raise
        else:
            self.leader = None

    def _tell_next(self) -> None:
        """Wake the next finished follower, if there is one. Without the mutex, for which the woken threads would wait.

        A follower that was woken wakes the next one once, also if it withdraws, whether it was told or not. So as long
        as followers are left, one of them goes on.
        """
        try:  # noqa: SIM105 - suppress is slower
            next(self._told)
        except IndexError:
            pass

    def withdraw(self, transactions: Sequence[Transaction]) -> None:
        """After an interruption or an error of the thread that has brought these transactions: leave the line, or hand
        on the lead. It may be called again, by any thread.

        A follower that the leader has taken along waits for its outcome and wakes the next follower.
        """
        brought = set(transactions)
        with self._mutex:
            left = [member for member in self._waiting if brought.isdisjoint(member.transactions)]
            if len(left) < len(self._waiting):
                self._waiting = left
                return
            under_way = [member for member in self._followers if not brought.isdisjoint(member.transactions)]
        for member in under_way:
            member.turn.acquire()
        with self._mutex:
            if self.leader is not None and not brought.isdisjoint(self.leader):
                self._hand_on()
        self._tell_next()

"""The line of those who commit: leader and followers, so that many share a sync.

Whoever comes while nobody writes becomes the leader and writes for all who came meanwhile; the others wait. When the
leader is done, the first of those who came in the meantime leads the next group. One thread alone pays for no thread
but itself, and no thread is started here.

Who is done is told by the one before him, not all of them by the leader. So each is awake about when the one before him
waits again; those who all wake at once wait for the interpreter, in which only one of them runs, and sleep, and wake, a
second time, which takes a seventh of the time of 32 threads that flush (``perf/README.md`` has the figures).

An interruption, such as a ``KeyboardInterrupt``, may come between any two steps: it costs nobody else his turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from operator import methodcaller

from ..engine.transaction import Transaction
from ..errors import PersistentQueueError
from ..system.signal_shield import shielded


class _Member:
    """What one thread has in line. Its ``turn`` is released when it is told: that it is done, or that it is to lead."""

    __slots__ = ("transactions", "turn")

    def __init__(self, transactions: Sequence[Transaction]) -> None:
        self.transactions = transactions
        self.turn = threading.Lock()
        self.turn.acquire()


class GroupCommit:
    """Those who want something written, by ``write``, for one group at a time. For any number of threads.

    ``check`` is called under the ``mutex``, before anybody lines up: it raises what he is to hear instead.
    """

    def __init__(
        self,
        mutex: AbstractContextManager[object],
        check: Callable[[], None],
        write: Callable[[Sequence[Transaction]], None],
    ) -> None:
        self._mutex = mutex
        self._check = check
        self._write = write
        self.writing = threading.Lock()
        """Held over the writes of a group; for whoever writes anything else beside the groups, too."""
        self._waiting: list[_Member] = []
        self._followers: list[_Member] = []
        """Those whom the leader has taken along."""
        self._done: deque[threading.Lock] = deque()
        """The turns of those of whom it is known what has become of them, and who were not told yet."""
        # To take the first of them and to release it is one call of C, so that no interruption comes in between.
        self._told = map(methodcaller("release"), iter(self._done.popleft, None))
        self.leader: Sequence[Transaction] | None = None
        """What the thread brought which writes for all, and for which others have to wait; None while nobody writes.
        Not to be changed from outside."""

    def __len__(self) -> int:
        """How many threads wait for the next group."""
        return len(self._waiting)

    def commit(self, transaction: Transaction) -> bool:
        """Have the transaction written, in a group with others that wait: it is ``settled`` on return.

        Returns whether this thread has led the group. Raises the ``error`` of the transaction.
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
        """Have them written, in one group, with others that wait: on return each is ``settled`` or has its ``error``.

        Returns whether this thread has led the group. Raises what ``check`` does; each may be settled nevertheless.
        """
        has_led = False
        for transaction in transactions:
            transaction.error = None
        while left := [each for each in transactions if not each.settled and each.error is None]:
            has_led = self._line_up(left)
        return has_led

    def _line_up(self, transactions: Sequence[Transaction]) -> bool:
        """Have the transactions written, by this thread or another one; return whether this thread has led their group.

        A transaction that is neither settled nor failed then must line up again. Its leader was interrupted before it
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
            shielded(partial(self._withdraw, transactions, member))
            raise
        return True

    def _lead(self, transactions: Sequence[Transaction]) -> None:
        """Write these transactions and all that are in line, then hand the lead on."""
        group = list(transactions)
        try:
            with self.writing:
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
        """Have the followers told that they are done, and let the first of those who came meanwhile lead, with the
        mutex. Again, if it was interrupted."""
        if self._followers:
            turns = [member.turn for member in self._followers]
            # Without a call, here and behind it: an interruption never comes in the middle of it.
            self._done += turns
            self._followers = []
        if self._waiting:
            heir = self._waiting[0]
            self._waiting, self.leader = self._waiting[1:], heir.transactions
            heir.turn.release()
        else:
            self.leader = None

    def _tell_next(self) -> None:
        """Tell the next one who is done, if there is any; without the mutex, for which those who wake would wait.

        Who is told does so in turn, once, also if he withdraws, told or not: as long as there are others somebody will.
        """
        try:  # noqa: SIM105 - suppress is slower
            next(self._told)
        except IndexError:
            pass

    def _withdraw(self, transactions: Sequence[Transaction], member: _Member | None) -> None:
        """Interrupted, or failed: leave the line, or hand on the lead. Who was taken along waits for what becomes of
        him, and has the next one told."""
        if member is not None:
            with self._mutex:
                if member in self._waiting:
                    self._waiting.remove(member)
                    return
                is_under_way = member in self._followers
            if is_under_way:
                member.turn.acquire()
        if self.leader is transactions:
            with self._mutex:
                self._hand_on()
        self._tell_next()

"""The inbox at work: what other processes have published becomes the queue's, through its commits.

The write order is at the top of ``adopt``. Everything here is for the thread that writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from .adopt import Adopter
from .commit import Committer
from .errors import QueueFullError, unless_lacking
from .generations import Generations
from .limits import Limits
from .publication import Request
from .reader import Guard
from .state import State
from .subscriptions import Subscriptions
from .transaction import Transaction

COMMIT_FILES = 16
"""A commit takes about as long as to look at so many files."""


class Writing(Protocol):
    """What it asks of the store: its parts, the last steps of a commit, and what comes behind."""

    adopter: Adopter
    committer: Committer
    generations: Generations
    limits: Limits
    state: State
    subscriptions: Subscriptions

    def check(self) -> None:
        """Raise ``BrokenQueueError`` if a sync or a write of the log failed."""

    def log_group(self, group: Sequence[Transaction], inline: bool) -> None:
        """The steps of a commit from the frame on."""

    def trim(self) -> None:
        """Begin a new generation of the log."""

    def trim_if_worth(self) -> None:
        """Trim if what is drained is worth it."""

    def doubt(self, error: BaseException) -> None:
        """Break the store for what only recovery can tell the outcome of."""


class Inbox:
    """Adopts what is published for a queue."""

    def __init__(self, store: Writing, mutex: Guard, sync: bool) -> None:
        self._store = store
        self._adopter, self._committer, self._generations = store.adopter, store.committer, store.generations
        self._state, self._subscriptions, self._limits = store.state, store.subscriptions, store.limits
        self._mutex = mutex
        self._sync = sync
        self.adopted = 0
        """How many transactions were adopted."""
        self._told = ""
        """What never fits, and was told of."""
        self._full_at: tuple[int, int] | None = None
        """How many items were gone, and trims made, when there was no room for what is published."""

    def adopt(self, insists: bool = False, most: int | None = None) -> int:
        """Adopt what other processes have published until now, as far as there is room; how many transactions.

        What comes meanwhile is left to the next call, so that this one ends. It ends before that once it has dealt with
        about ``most`` files (None: all), a commit counted as ``COMMIT_FILES``. The rest is left to the next call, and
        ``is_cut`` says that there is any. Where there was no room it is tried again once something is gone, or who
        calls ``insists``; what is acknowledged behind it is answered all the same. What does not check out is set
        aside, and told of in the adopter's ``damage``, as is what is skipped, and what never fits. Raises ``OSError``
        for what cannot be read for now, which stays, ``ResourceError`` for what the system lacks, and
        ``BrokenQueueError``.
        """
        self._store.check()
        # Behind the frame of an adoption no call may fail for want of a descriptor, so that the inbox is open by then.
        with unless_lacking(self._adopter.directory, "to adopt what was published", "then dequeue again"):
            self._adopter.look(insists)
            if not self._adopter.left:
                self._adopter.is_cut = False
                return 0
            with self._adopter.opened():
                return self._adopt_listed(insists, most)

    def _adopt_listed(self, insists: bool, most: int | None) -> int:
        self._adopter.is_cut = False
        adopted, is_its_turn = 0, insists or self._full_at != self._progress
        left = self._adopter.left if most is not None else 0
        dealt, most = 0, most or 0
        while True:
            before = self._adopter.left
            try:
                published = self._begin(is_its_turn)
            except OSError:
                if adopted:
                    break  # first what is there, then what is wrong
                raise
            refused = None
            if published:
                adopted += self._commit(published)
                self._store.check()
                refused = next((transaction for transaction in published if not transaction.settled), None)
                dealt += COMMIT_FILES
            elif not is_its_turn or self._adopter.left in {0, before}:
                break
            if refused is None:
                self._full_at, is_its_turn = None, True
                if left and left - self._adopter.left + dealt >= most:
                    self._adopter.is_cut = self._adopter.left > 0
                    break
            elif is_its_turn:
                self._full_at, is_its_turn = self._progress, False
                self._tell_if_lasting(refused)
            else:
                break
        return adopted

    @property
    def is_cut(self) -> bool:
        """Whether the last ``adopt`` ended before it had dealt with all that it had listed."""
        return self._adopter.is_cut

    def _begin(self, is_its_turn: bool) -> list[Transaction]:
        """What comes next, or, if there is no room for that, what needs none."""
        if is_its_turn:
            return self._adopter.begin(self._state.next_sequence)
        return self._adopter.begin_behind(self._needs_no_order)

    def _needs_no_order(self, request: Request) -> bool:
        """Whether it says now what it will say in its turn: that what is in the queue already is consumed."""
        is_there = self._state.number_of(request.name) is not None
        return is_there and 0 < request.end <= self._state.next_sequence

    def _tell_if_lasting(self, transaction: Transaction) -> None:
        """Where it does not even fit into an empty queue nobody would ever hear why it waits."""
        error = self._limits.refuse_for_ever(transaction)
        if error is not None and self._told != transaction.published:
            path = self._adopter.path(transaction.published)
            self._told = transaction.published
            self._adopter.tell(QueueFullError(path, error.limit, error.most, error.holds, error.asked, True))

    def _commit(self, published: list[Transaction]) -> int:
        """Commit what the adopter has begun, as far as there is room; how many transactions."""
        try:
            self._adopt(published)
            self._committer.come_again(published)
            dropped = [each for each in published if each.skipped or (each.settled and not each.adoptions)]
            if dropped and not self._sync:
                self._store.trim()  # a power cut must not take a marker when nothing is left that it stands for
            self._adopter.end(published)
            self._store.trim_if_worth()
        except BaseException as error:
            self._store.doubt(error)
            raise
        adopted = sum(transaction.committed for transaction in published)
        self.adopted += adopted
        return adopted

    @property
    def _progress(self) -> tuple[int, int]:
        """Changes whenever there may be room that there was not."""
        return self._state.gone_count, self._generations.trims

    def _adopt(self, published: list[Transaction]) -> None:
        self._adopter.sync()
        if published[0].request is not None:
            self._answer(published)
            return
        self._committer.admit(published)
        group = list(takewhile(lambda each: each.error is None, published))  # the others wait, and keep their order
        group = [each for each in group if not each.skipped]
        if group:
            self._store.log_group(group, inline=False)

    def _answer(self, published: list[Transaction]) -> None:
        """Do what was asked, which may be nothing: make a subscription; or acknowledge, in one frame, of each
        subscription what is furthest, since that says what its others do."""
        furthest: dict[str, tuple[Transaction, Request]] = {}
        for transaction in published:
            request = transaction.request
            if request is not None and (request.name not in furthest or furthest[request.name][1].end < request.end):
                furthest[request.name] = transaction, request
        for transaction, request in furthest.values():
            number = self._state.number_of(request.name)
            if not request.end and number is None:
                transaction.operations = [self._state.next_subscription(request.name, request.first)]
            elif request.end and number:
                ready = self._subscriptions.find(request.name).ready
                with self._mutex:
                    transaction.ready, transaction.runs = ready, ready.hold_below(request.end)
        group = [transaction for transaction, _ in furthest.values() if transaction.operations or transaction.runs]
        if group:
            self._store.log_group(group, inline=False)
            with self._mutex:
                self._subscriptions.follow()
                for transaction in group:
                    if not transaction.settled and transaction.ready is not None:
                        transaction.ready.release(transaction.runs)
        if all(transaction.settled for transaction in group):
            for transaction in published:
                if not transaction.settled:
                    transaction.skipped = transaction.settled = True

"""The inbox at work: what other processes have published becomes the queue's, through its commits.

The write order is at the top of ``adopt``. Everything here is for the thread that writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from .adopt import Adopter
from .commit import Committer
from .errors import UnsupportedFormatError
from .generations import Generations
from .publication import Request
from .reader import Guard
from .state import State
from .subscriptions import Subscriptions
from .transaction import Transaction


class Writing(Protocol):
    """What it asks of the store: the last steps of a commit, and what comes behind."""

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

    def __init__(
        self,
        store: Writing,
        adopter: Adopter,
        committer: Committer,
        generations: Generations,
        state: State,
        subscriptions: Subscriptions,
        mutex: Guard,
        sync: bool,
    ) -> None:
        self._store = store
        self._adopter = adopter
        self._committer = committer
        self._generations = generations
        self._state = state
        self._subscriptions = subscriptions
        self._mutex = mutex
        self._sync = sync
        self._full_at: tuple[int, int] | None = None
        """How many items were gone, and trims made, when there was no room for what is published."""

    def adopt(self, insists: bool = False) -> int:
        """Adopt what other processes have published until now, as far as there is room; how many transactions.

        What comes meanwhile is left to the next call, so that this one ends. Where there was no room it is tried again
        once something is gone, or who calls ``insists``. What does not check out is set aside, and told of in the
        adopter's ``damage``. Raises ``UnsupportedFormatError`` and ``OSError`` for what cannot be read, which stays,
        and ``BrokenQueueError``.
        """
        self._store.check()
        self._adopter.look()
        adopted = 0
        while insists or self._full_at != self._progress:
            try:
                published = self._adopter.begin()
            except (OSError, UnsupportedFormatError):
                if adopted:
                    break  # first what is there, then what is wrong
                raise
            if not published:
                break
            adopted += self._commit(published)
            if not all(transaction.settled for transaction in published):
                self._full_at = self._progress
                break
            self._store.check()
        return adopted

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
        return sum(transaction.settled and not transaction.skipped for transaction in published)

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

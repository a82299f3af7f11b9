"""Group commit: the leader, its followers, and the effects of interruptions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random

import pytest

from persistentqueue.engine.transaction import Transaction
from persistentqueue.errors import DiskFullError, PersistentQueueError
from persistentqueue.runtime import group_commit as module
from persistentqueue.runtime.group_commit import GroupCommit
from tests.support.queues import wait_for

from .test_open_queue import SECONDS, Interruption

THREADS = 8


def settle(group: Sequence[Transaction]) -> None:
    for transaction in group:
        assert not transaction.settled
        transaction.settled = True


def is_as_long(them: GroupCommit, wanted: int) -> bool:
    return len(them) == wanted


def line(write: Callable[[Sequence[Transaction]], None] = settle) -> GroupCommit:
    return GroupCommit(threading.Lock(), lambda: None, write, lambda _: None)


def test_those_who_came_meanwhile_are_one_group() -> None:
    """Transactions that arrive while a group is written are the next group, in their order."""
    groups: list[list[Transaction]] = []
    written, go_on = threading.Event(), threading.Event()

    def write(group: Sequence[Transaction]) -> None:
        groups.append(list(group))
        settle(group)
        written.set()
        assert go_on.wait(SECONDS)

    them = line(write)
    transactions = [Transaction() for _ in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        jobs = [pool.submit(them.commit, transactions[0])]
        assert written.wait(SECONDS)
        for number, transaction in enumerate(transactions[1:], 1):
            jobs.append(pool.submit(them.commit, transaction))
            wait_for(partial(is_as_long, them, number))
        go_on.set()
        for job in jobs:
            job.result(SECONDS)
    assert groups == [transactions[:1], transactions[1:]]
    assert len(them) == 0


def test_each_hears_of_its_own_failure() -> None:
    """A transaction that is refused raises its own error; if a whole group fails, its transaction raises that error."""

    def write(group: Sequence[Transaction]) -> None:
        settle(group[1:])
        group[0].error = DiskFullError("/here", 28, "full")

    with pytest.raises(DiskFullError):
        line(write).commit(Transaction())

    def fail(_open_queue: Sequence[Transaction]) -> None:
        raise PersistentQueueError("nothing goes")

    with pytest.raises(PersistentQueueError, match="nothing goes"):
        line(fail).commit(Transaction())


@pytest.mark.parametrize("seed", range(20))
def test_interrupted_anywhere_nobody_waits_for_ever(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transaction is written once, and no thread waits for ever, if threads are interrupted while they wait or
    write."""
    chance = Random(seed)

    def interrupt(probability: float) -> None:
        if chance.random() < probability:
            raise Interruption

    class Turn:
        """A lock that may interrupt a thread that waits for it."""

        def __init__(self) -> None:
            self._lock = threading.Lock()
            self._lock.acquire()
            self._has_waited = False

        def acquire(self) -> None:
            first, self._has_waited = not self._has_waited, True
            while not self._lock.acquire(timeout=0.0001):
                if first:  # a thread that withdraws is not interrupted: that could go on for ever
                    interrupt(0.03)
            if first:
                interrupt(0.03)

        def release(self) -> None:
            self._lock.release()

    def init(member: module._Member, transactions: Sequence[Transaction]) -> None:
        member.transactions, member.turn = transactions, Turn()  # type: ignore[assignment]

    written: list[Transaction] = []

    def write(group: Sequence[Transaction]) -> None:
        others = threading.Event()
        for _ in range(10):  # so that there are followers
            if len(them) < THREADS // 2:
                others.wait(0.0001)
        interrupt(0.03)
        settle(group)
        written.extend(group)
        interrupt(0.03)

    monkeypatch.setattr(module._Member, "__init__", init)
    them = line(write)

    def work() -> list[Transaction]:
        mine = []
        for _ in range(100):
            transaction = Transaction()
            mine.append(transaction)
            while not transaction.settled:
                try:
                    them.commit(transaction)
                except Interruption:
                    continue
        return mine

    with ThreadPoolExecutor(THREADS) as pool:
        jobs = [pool.submit(work) for _ in range(THREADS)]
        wanted = [transaction for job in jobs for transaction in job.result(SECONDS)]
    assert len(written) == len(wanted)
    assert set(map(id, written)) == set(map(id, wanted))
    assert len(them) == 0

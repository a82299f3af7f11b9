"""Transactions over several queues of this process.

They are committed together, while no other transaction commits in any of these queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial

from ..engine.transaction import Transaction
from ..engine.two_phase import Part, commit_several
from ..storage.layout import queue_directory
from ..system.disk import basename, dirname
from .open_queue import OpenQueue, get_ident

Work = tuple[OpenQueue, Transaction]
"""An open queue, and its part of the transaction."""


def commit_jointly(works: Sequence[Work], timeout_seconds: float | None = 0.0) -> None:
    """Commit the transactions in all of their queues or in none; all are ``skipped`` or none is. No queue may come
    twice.

    A single transaction waits for room up to the timeout (None: for ever), if its queue blocks. Several never wait.
    Raises the errors of ``OpenQueue.commit``: then nothing was committed, or, after ``BrokenQueueError``, the outcome
    is unknown.
    """
    if len(works) == 1:
        open_queue, transaction = works[0]
        open_queue.commit(transaction, timeout_seconds)
        return
    works = sorted(works, key=lambda work: work[0].directory)  # they have the same parent
    open_queues = [open_queue for open_queue, _ in works]
    introduce(open_queues)
    for open_queue in open_queues:
        open_queue.check_outermost()
    first, *others = open_queues
    first.together(partial(first.shielded, partial(_call_inside, others, partial(_commit, works))))


def introduce(open_queues: Sequence[OpenQueue]) -> None:
    """Make the queues partners of each other.

    In the middle of a call of one queue no partner may be called. The partner might wait for a transaction that waits
    for this very call.
    """
    for open_queue in open_queues:
        open_queue.add_partners(open_queues)


def _call_inside(open_queues: Sequence[OpenQueue], call: Callable[[], None]) -> None:
    """Make the call as a call of these queues. Nothing interrupts it: it is part of a shielded call."""
    thread = get_ident()
    for each in open_queues:
        each.inside[thread] = None
    try:
        call()
    finally:
        for each in open_queues:
            del each.inside[thread]


def _commit(works: Sequence[Work]) -> None:
    try:
        with ExitStack() as turns:  # in the order of their names, so no two transactions wait for each other
            commit_several([Part(open_queue.take_part(work, turns), work) for open_queue, work in works])
        errors = [work.error for _, work in works if work.error is not None]
    finally:
        for _, work in works:
            work.error = None
    for open_queue, _ in works:
        open_queue.follow_up()
    if errors:
        raise errors[0]


@lru_cache
def require_neighbours(*directories: str) -> None:
    """Raise ``ValueError`` unless these are directories of different queues with the same parent."""
    if len(set(directories)) < len(directories):
        raise ValueError(
            f"a transaction got the same queue twice: {', '.join(sorted(directories))}: pass each queue once"
        )
    if len({dirname(directory) for directory in directories}) > 1:
        raise ValueError(
            "a transaction needs queues beside each other in one directory, opened by the same path, got "
            f"{', '.join(sorted(directories))}: move them into one directory, or open them by the same path"
        )
    for directory in directories:
        queue_directory(dirname(directory), basename(directory))

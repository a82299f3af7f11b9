"""Transactions of several queues of this process, committed together while nobody else commits in any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from ..engine.transaction import Transaction
from ..engine.two_phase import Part, commit_several
from ..storage.layout import queue_directory
from ..system.disk import basename, dirname
from .open_queue import OpenQueue

Work = tuple[OpenQueue, Transaction]
"""A transaction, and whose it is."""


def commit_jointly(works: Sequence[Work], timeout_seconds: float | None = 0.0) -> None:
    """Commit them in all of their queues, of which none comes twice, or in none; all are ``skipped`` or none is.

    One alone waits for room up to the timeout (None: for ever), if its queue blocks; several never do. Raises what
    ``OpenQueue.commit`` raises, and then nothing was committed, or nobody knows.
    """
    if len(works) == 1:
        group, transaction = works[0]
        group.commit(transaction, timeout_seconds)
        return
    works = sorted(works, key=lambda work: basename(work[0].store.directory))
    groups = [group for group, _ in works]
    introduce(groups)
    for group in groups:
        group.check_outermost()
    _call_around(groups, partial(_commit, works))


def introduce(groups: Sequence[OpenQueue]) -> None:
    """Have each know that it takes part in transactions with the others: in the middle of a call of one of them no
    other one may be called, since it might wait for a transaction that waits for this very call."""
    for group in groups:
        group.add_partners(groups)


def _call_around(groups: Sequence[OpenQueue], call: Callable[[], None]) -> None:
    """Make the call as one of all these groups, which nothing interrupts."""
    if groups:
        groups[0].together(partial(groups[0].shielded, partial(_call_around, groups[1:], call)))
    else:
        call()


def _commit(works: Sequence[Work]) -> None:
    try:
        with ExitStack() as turns:  # in the order of their names, so that two never wait for each other
            parts = [Part(turns.enter_context(group.taking_part(work)), work) for group, work in works]
            commit_several(parts)
        errors = [work.error for _, work in works if work.error is not None]
    finally:
        for _, work in works:
            work.error = None
    for group, _ in works:
        group.follow_up()
    if errors:
        raise errors[0]


def require_neighbours(directories: Sequence[str]) -> None:
    """Raise ``ValueError`` where these are not the directories of different queues beside each other."""
    if len(set(directories)) < len(directories):
        raise ValueError(f"the same queue twice in a transaction: {', '.join(sorted(directories))}")
    if len({dirname(directory) for directory in directories}) > 1:
        raise ValueError(
            "a transaction is over queues in directories beside each other, opened by the same path, not over "
            f"{', '.join(sorted(directories))}"
        )
    for directory in directories:
        queue_directory(dirname(directory), basename(directory))

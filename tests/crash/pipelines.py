"""Pipelines on the simulated disk: a session hands its flushes over, and a crash leaves the first of them.

The programs are those of ``explorer``. But each commit hands the works of its group over as flushes in a row, and lets
the pipeline commit them, without its thread. The pipeline merges neighbours, and tries them one by one if they are
refused together.

The model allows the first flushes of the row, in order, and none behind a missing one. A flush whose ticket is done
must stay. If a flush fails, all that follow must fail, and a rollback must release what they hold.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from persistentqueue.engine.store import Store
from persistentqueue.engine.transaction import Transaction
from persistentqueue.errors import BrokenQueueError, PersistentQueueError, PrecedingFlushError, QueueFullError
from persistentqueue.runtime.pipeline import Handed, Pipeline, Ticket

from .content import Content
from .disk import SimulatedDisk
from .explorer import DIRECTORY, Explorer, Model, Work, after, without
from .exploring import ViolationError

PIPELINES = "pipelines"


class PipelinesExplorer(Explorer):
    """All schedules of one seed whose commits go through a pipeline."""

    def __init__(self, seed: int, faults: bool = False, trace: bool = False) -> None:
        super().__init__(seed, faults, trace, PIPELINES)
        self._draw = self.random_of(PIPELINES)

    def _commit(
        self,
        disk: SimulatedDisk,
        store: Store,
        model: Model,
        group: list[Work],
        works: list[Work],
        held: list[tuple[str, bytes]],
    ) -> list[tuple[str, bytes]]:
        """Flush the works in a row; return the items that are held afterwards."""
        pipeline = Pipeline(_OpenStore(store), store.discard)
        for work in group:
            work.transaction.ready = store.reader.ready  # as all transactions of one session
            if self._draw.random() < 0.2:
                work.transaction.marker = (self._draw.choice("mn"), self._draw.randrange(6))
        before, most = model.content, max(self.settings.max_items or 2**63, len(model.content.kept))
        model.under_way = prefixes = [after(before, group[:count]) for count in range(1, len(group) + 1)]
        tickets = [Ticket() for _ in group]
        for work, ticket, content in zip(group, tickets, prefixes, strict=True):
            ticket.add_done_callback(partial(self._acknowledge, model, content))
            pipeline.waiting.append(Handed(work.transaction, ticket, None))
        pipeline.run_once()
        errors = [ticket.exception(0.0) for ticket in tickets]
        failed = [work for work, error in zip(group, errors, strict=True) if error is not None]
        if failed:
            self._need_reason_of(errors)
            if any(work.taken and not work.transaction.runs for work in failed):
                raise ViolationError("a failed flush has released what it held before the rollback")
            pipeline.release()
            if any(work.transaction.runs for work in failed):
                raise ViolationError("a rollback has not released what a failed flush held")
        if len(model.content.kept) > most:
            raise ViolationError(f"{len(model.content.kept)} items, allowed {most}")
        model.under_way = []
        for work in group:
            if work.transaction.skipped:
                store.discard(work.transaction)
            held = without(held, work)
            works[works.index(work)] = Work()
        return held

    def _acknowledge(self, model: Model, content: Content, ticket: Future[bool]) -> None:
        """Make the flushes up to this one stay."""
        if ticket.exception(0.0) is not None:
            return
        at = model.under_way.index(content)
        behind = model.under_way[at + 1 :]
        model.settle(model.under_way[at], durable=self.settings.sync)
        model.under_way = behind

    def _need_reason_of(self, errors: list[BaseException | None]) -> None:
        """Raise the error of the first failed flush if it ends the life of the queue. Raise ``ViolationError`` if it
        has no reason, or if a flush behind it did not fail for it."""
        at, first = next((at, error) for at, error in enumerate(errors) if error is not None)
        if isinstance(first, BrokenQueueError) or not isinstance(first, PersistentQueueError):
            raise first
        if not self._faults and not isinstance(first, QueueFullError):
            raise ViolationError(f"a flush was refused: {first!r}")
        for error in errors[at + 1 :]:
            if not isinstance(error, PrecedingFlushError) or error.failure is not first:
                raise ViolationError(f"a flush behind a failed one ended with {error!r}")


class _OpenStore:
    """A store that commits as an open queue does, for a pipeline without a thread."""

    directory = DIRECTORY

    def __init__(self, store: Store) -> None:
        self._store = store

    def commit(self, transaction: Transaction, timeout_seconds: float | None) -> None:
        """Commit the transaction. Raises its error."""
        self._store.commit([transaction])
        error, transaction.error = transaction.error, None
        if error is not None:
            raise error

    def give_up(self, transaction: Transaction) -> None:
        """Do nothing: no transaction waits."""

    def check_outermost(self) -> None:
        """Do nothing: no call is under way."""

"""A stage of an open pipeline: when it may run, one attempt to run it, and the end of an input that always fails.

The steps of an attempt (the numbers are those of the places at which the tests kill):

1. Hold one DataFrame of each source. With ``max_attempts``, count the attempt durably first. *A crash releases them.*
2. Call the function. Spark writes a payload for each target and makes it durable. *A crash leaves payloads that no
   manifest names: the next opening sweeps them.*
3. Commit once, over the queues of all sources and targets: consume the inputs, enqueue the manifests, count the run.
   *A crash leaves the whole commit or nothing of it: see* ``transaction``.
4. Remove the payloads that no consumer and no letter needs. *A crash leaves them for the sweep.*

With ``max_attempts``, an error is recorded durably before the next step, so that a kill does not lose it. When the
attempts are used up, one transaction consumes the inputs and enqueues a letter, instead of steps 2 and 3. An attempt
does not count if its inputs have no part in its error: if the function returns no DataFrame, for example. An attempt
that ends with Spark counts: its inputs may be the cause.

Two markers in the *lead* queue count the runs, and the attempts of the next run. The lead is the queue of the first
source, or that of the inputs to take again. A stage runs once at a time, so the number of a run identifies its inputs.
A stage without a source has the marker of its definition instead, in the queue of its first target. Behind its commit,
the other targets record it, too, so that they may change. A crash before that leaves it to the next look at the marker.

Commits of a pipeline take turns (``Store.committing``). So no thread looks for the readers of a payload while its
manifest moves from one queue to another.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from persistentqueue import (
    BrokenQueueError,
    ClosedError,
    CorruptionError,
    PersistentQueue,
    PersistentQueueError,
    ResourceError,
    Session,
    Subscription,
    transaction,
)

from .. import stages
from ..progress import Report, reporting
from ..sessions import SparkStoppedError, active, has_stopped
from ..stages import Manifest
from .edge import Edge
from .graph import Marker, StageDefinition
from .letters import Input, StageLetter, brief, decode_inputs, failure_of, need_sources
from .store import AbandonedError, Permit, Store, decode_from

_RUNS, _ATTEMPTS, _EXCUSED, _EVERY = (
    "persistentqueue.runs ",
    "persistentqueue.attempts ",
    "persistentqueue.excused ",
    "persistentqueue.every ",
)
"""Beginnings of the names of markers that a pipeline records."""
_ATTEMPTS_LIMIT = 2**20
_LOGGER = logging.getLogger("persistentqueue.spark")


class StageResultError(PersistentQueueError, TypeError):
    """A stage returned something else than DataFrames for its targets: correct its function."""


class _Work(NamedTuple):
    """The next run of a stage."""

    takes: tuple[PersistentQueue[bytes] | Subscription[bytes], ...]
    """The queues of its inputs."""
    lead: PersistentQueue[bytes]
    """The queue that counts."""
    marker: Marker
    """The marker that its commit records in the lead."""
    is_again: bool = False
    """Whether the inputs are those that ``requeue`` gave back."""

    @property
    def run(self) -> str:
        """The identity of this run, for all its attempts."""
        return f"{self.lead.name} {self.marker[1]}"


class OpenStage:
    """A stage with the queues of its pipeline. ``attempt`` is for one thread at a time, the other methods for any."""

    def __init__(self, definition: StageDefinition, store: Store) -> None:
        self.definition = definition
        self.name = definition.name
        self._store = store
        self._targets = [store.edges[name] for name in definition.targets]
        self.failures = 0
        """Attempts that failed since the last success; with ``max_attempts``, also those of earlier processes."""
        self.has_failed = False
        """Whether the last attempt has failed."""
        self.may_retry = False
        """Whether an error of ``attempt`` is that of an attempt that another one may follow."""
        self.blocked: Marker | None = None
        """The marker of the last scheduled run if a full target has held it back; None if none has."""
        self.seconds: float | None = None
        """Seconds of the last attempt."""
        self._counted: _Work | None = None
        """Work of the attempt under way, if it was counted before it began."""
        self._has_inputs = False
        """Whether the attempt under way has read the items of its inputs."""

    def has_input(self) -> bool:
        """Return whether inputs wait. A stage without a source has only such that ``requeue`` gave back."""
        if self._store.again(self.name) is not None:
            return True
        edges = [self._store.edges[name] for name in self.definition.sources]
        return bool(edges) and all(edge.waiting_count(self.name) for edge in edges)

    def is_blocked(self) -> bool:
        """Return whether a full target has held the last scheduled run back, and its marker is still not recorded.

        The stage then has something to do.
        """
        marker = self.blocked
        return marker is not None and not any(edge.is_recorded(marker) for edge in self._targets)

    def has_full_target(self) -> bool:
        """Return whether so much waits at a target that the stage may not run."""
        most, most_bytes = self.definition.max_waiting, self.definition.max_waiting_bytes
        return any(
            (most is not None and edge.waiting_count() >= most)
            or (most_bytes is not None and sum(each.bytes for each in edge.unconsumed()) >= most_bytes)
            for edge in self._targets
        )

    def must_be_alone(self) -> bool:
        """Return whether the next attempt is the last one, after others that failed or ended the process.

        An attempt of another stage may have ended the process. So the last one is made alone, and no inputs are given
        up because of a stage that runs at the same time.
        """
        most = self.definition.max_attempts
        work = self._next() if most is not None and self.has_input() else None
        return work is not None and 0 < self._attempts(work) == (most or 0) - 1

    def runs(self) -> int:
        """Return the number of inputs that the stage has taken from its sources, since the pipeline was made."""
        sources = self.definition.sources
        return _count(self._store.edges[sources[0]].queue, _RUNS + self.name) if sources else 0

    def attempt(self, permit: Permit, progress: Report | None) -> None:
        """Run the stage once and commit, or give its inputs up. Do nothing if it has no work, or a full target.

        Raises ``AbandonedError`` if the permit was withdrawn meanwhile. Raises the error of the attempt, unless it was
        the last one. Raises errors of its beginning, such as ``DiskFullError`` when it is counted, and errors of giving
        up. Raises ``SparkStoppedError`` if Spark has stopped. Then nothing was consumed and nothing was put.
        """
        self.may_retry, self.blocked = False, None
        work = self._next()
        if work is None:
            return
        if not work.takes and self.has_full_target():
            self.blocked = work.marker
            return
        spark = self._store.session()
        if has_stopped(spark):
            raise SparkStoppedError("Spark has stopped")
        begun = time.monotonic()
        number = self._begin(work)
        try:
            if number is None or not self._try(work, number, spark, permit, progress):
                self._give_up(work, permit)
        finally:
            self.seconds = time.monotonic() - begun
        self.failures, self.has_failed, self._counted = 0, False, None
        if not work.takes:
            self._record(work.marker)

    def is_final(self, error: BaseException) -> bool:
        """Return whether another attempt makes no sense after this error.

        The function may use queues of its own. If one of them is closed or broken, the error is like any other.
        """
        if isinstance(error, BrokenQueueError | ClosedError):
            return not self._store.is_usable()
        return isinstance(error, StageResultError | AbandonedError)

    def _is_excusable(self, error: BaseException) -> bool:
        """Return whether the inputs have no part in an error, so that the attempt shall not count."""
        return self.is_final(error) or (isinstance(error, CorruptionError) and not self._has_inputs)

    def excuse(self) -> None:
        """Count the attempt under way no more, durably: its inputs have no fault, such as in an abandoned run.

        Do nothing if there is none, or if it has failed already. If the queue cannot be written, the attempt counts.
        """
        with self._store.committing():
            work, self._counted = self._counted, None
            if work is not None:
                number = self._number(work, _EXCUSED) + 1
                with suppress(PersistentQueueError), work.lead.session() as session:
                    session.flush(marker=(_EXCUSED + self.name, work.marker[1] * _ATTEMPTS_LIMIT + number))

    def forget_session(self) -> None:
        """Let the next attempt use another session, if a function makes it."""
        self._store.forget_session()

    # --- the steps

    def _next(self) -> _Work | None:
        again = self._store.again(self.name)
        edges = [self._store.edges[name] for name in self.definition.sources]
        if again is not None:
            return _Work((again,), again, (_RUNS + self.name, _count(again, _RUNS + self.name) + 1), is_again=True)
        if edges:
            lead = edges[0].queue
            takes = tuple(edge.consumer(self.name) for edge in edges)
            return _Work(takes, lead, (_RUNS + self.name, _count(lead, _RUNS + self.name) + 1))
        marker = self.definition.marker
        if marker is None:
            period_ns = self.definition.period_ns
            assert period_ns is not None
            # The beginning of the period, and not its number: the number falls if the periods become longer.
            marker = _EVERY + self.name, time.time_ns() // period_ns * period_ns
        marker = marker() if callable(marker) else marker
        recorded = [edge.is_recorded(marker) for edge in self._targets]
        self._store.graph.claim(self.definition, marker)
        if any(recorded):
            self._record(marker)
            return None
        return _Work((), self._targets[0].queue, marker)

    def _record(self, marker: Marker) -> None:
        """Record the marker of a run without inputs in each target that lacks it.

        So the stage does not run again when its targets change. A target without space records it at the next look.
        """
        for edge in self._targets:
            if not edge.is_recorded(marker):
                with suppress(ResourceError):
                    edge.record(marker)

    def _begin(self, work: _Work) -> int | None:
        """Count an attempt, and return its number; None if there was no attempt left.

        With ``max_attempts`` the number is durable, so that attempts that end the process count, too. A stage without
        inputs has none that could be lost: its attempts are those of this process.
        """
        most = self.definition.max_attempts
        if most is None or not work.takes:
            return self.failures + 1
        number = self._attempts(work) + 1
        if number > most:
            return None
        counted = self._number(work, _ATTEMPTS) + 1
        with work.lead.session() as session:
            session.flush(marker=(_ATTEMPTS + self.name, work.marker[1] * _ATTEMPTS_LIMIT + counted))
        self._counted = work
        return number

    def _attempts(self, work: _Work) -> int:
        """Return the number of attempts of this run that were counted durably, without those that were excused."""
        return self._number(work, _ATTEMPTS) - self._number(work, _EXCUSED)

    def _number(self, work: _Work, kind: str) -> int:
        """Return the number of attempts of this run that a marker of this kind counts."""
        run, number = divmod(_count(work.lead, kind + self.name), _ATTEMPTS_LIMIT)
        return number if run == work.marker[1] else 0

    def _try(self, work: _Work, number: int, spark: SparkSession, permit: Permit, progress: Report | None) -> bool:
        """Make an attempt; return False if its error was that of the last one. Raises all other errors."""
        try:
            self._run(work, spark, permit, progress)
        except (KeyboardInterrupt, SystemExit):  # they end the process: the attempt counts, and has no error
            raise
        except BaseException as error:
            self.has_failed = False
            if self._is_excusable(error):
                self._note(error, permit)
                self.excuse()
                raise
            self._note(error, permit, work, number)
            if isinstance(error, Exception) and has_stopped(spark):  # the attempt counts: its inputs may be the cause
                raise SparkStoppedError(f"Spark has stopped ({type(error).__name__}: {brief(error)})") from error
            most = self.definition.max_attempts
            if most is None or number < most or not isinstance(error, Exception):
                self.may_retry = most is not None
                raise
            return False
        return True

    def _note(self, error: BaseException, permit: Permit, work: _Work | None = None, number: int = 0) -> None:
        """Keep the error of an attempt that has failed; one that counts, with its ``work`` and number, durably.

        Raises ``AbandonedError`` if the run was abandoned: then the error does not count.
        """
        with self._store.committing(permit):
            self.has_failed = True
            if work is not None:
                self._counted, self.failures = None, number
                if self.definition.max_attempts is not None:
                    self._store.record(self.name, failure_of(work.run, error))

    def _run(self, work: _Work, spark: SparkSession, permit: Permit, progress: Report | None) -> None:
        with transaction(*work.takes, *(edge.queue for edge in self._targets), name=f"stage {self.name}") as sessions:
            self._has_inputs = False
            inputs = self._hold(work, sessions[: len(work.takes)])
            self._has_inputs = True
            if work.is_again:
                need_sources(self.definition, inputs, "pass max_attempts= and discard their letter")
            frames = [self._store.edges[edge].read(manifest) for edge, manifest in inputs]
            written: list[tuple[Edge, Manifest]] = []
            try:
                with active(spark), reporting(spark, progress):
                    results = self._checked(self.definition.function(*frames))
                    for edge, frame in zip(self._targets, results, strict=True):
                        written.append((edge, edge.write(frame)))
            except BaseException:
                _remove(written)
                raise
            # After another error the manifests may be durable. Then the payloads stay, and the next opening decides.
            try:
                with self._store.committing(permit):
                    is_committed = self._commit(work, sessions, written)
            except (ResourceError, AbandonedError):
                _remove(written)
                raise
            if is_committed:  # behind the ``try``: an error leaves the payloads of what is committed
                with self._store.committing():
                    self._store.remove_unneeded(inputs)

    def _commit(
        self, work: _Work, sessions: Sequence[Session[bytes]], written: Sequence[tuple[Edge, Manifest]]
    ) -> bool:
        """Return False if another thread has put a DataFrame with the marker meanwhile: nothing is committed then."""
        for session, (_, manifest) in zip(sessions[len(work.takes) :], written, strict=True):
            session.enqueue(stages.encode(manifest))
        # The first session is that of the lead.
        is_committed = sessions[0].flush(marker=work.marker)
        if not is_committed:
            _remove(written)
        return is_committed

    def _give_up(self, work: _Work, permit: Permit) -> None:
        """Move the inputs into a letter with the last error, in one transaction; without inputs, write a letter."""
        failure, most = self._store.last_failure(self.name, work.run), self.definition.max_attempts
        letters = self._store.letters(self.name)
        with transaction(*(work.takes or (work.lead,)), letters, name=f"stage {self.name}") as sessions:
            inputs = self._hold(work, sessions[:-1]) if work.takes else ()
            now = datetime.now(timezone.utc)
            letter = StageLetter(self.name, inputs, failure.error, failure.message, failure.traceback, most or 0, now)
            sessions[-1].enqueue(letter.encode())
            with self._store.committing(permit):
                sessions[0].flush(marker=work.marker)
        _LOGGER.error(
            "stage %r gave up its inputs after %d attempts: %s %s",
            self.name,
            most,
            failure.error,
            brief(failure.message),
        )

    def _hold(self, work: _Work, sessions: Sequence[Session[bytes]]) -> tuple[Input, ...]:
        """Dequeue the inputs: one DataFrame of each source, or the item of inputs to take again."""
        items = []
        for session in sessions:
            item = session.dequeue()
            if item is None:
                raise PersistentQueueError(
                    f"stage {self.name!r}: an input that waited is gone: let only the pipeline use its queues"
                )
            items.append(item)
        if work.is_again:
            return decode_from(work.lead, decode_inputs, items[0])
        found = zip(self.definition.sources, items, strict=True)
        return tuple(Input(edge, self._store.edges[edge].decode(item)) for edge, item in found)

    def _checked(self, results: Any) -> Sequence[DataFrame]:
        """Return a DataFrame for each target. Raises ``StageResultError``."""
        targets = self.definition.targets
        if not targets:
            if results is not None:
                raise StageResultError(
                    f"stage {self.name!r} has no target, but returned {stages.kind(results)}: pass target=, or return "
                    "None"
                )
            return ()
        if len(targets) == 1:
            frames: Sequence[Any] = (results,)
        elif isinstance(results, dict) and set(results) == set(targets):
            frames = [results[name] for name in targets]
        elif isinstance(results, tuple | list) and len(results) == len(targets):
            frames = results
        else:
            raise StageResultError(
                f"stage {self.name!r} must return a tuple of {len(targets)} DataFrames, or a dict of them by the names "
                f"{', '.join(targets)}, not {stages.kind(results)}"
            )
        for name, frame in zip(targets, frames, strict=True):
            if not isinstance(frame, DataFrame):
                raise StageResultError(
                    f"stage {self.name!r} must return a DataFrame for edge {name!r}, not {stages.kind(frame)}: "
                    "nothing was consumed"
                )
        return frames


def _remove(written: Sequence[tuple[Edge, Manifest]]) -> None:
    for edge, manifest in written:
        edge.remove(manifest)


def _count(queue: PersistentQueue[bytes], marker: str) -> int:
    return queue.marker(marker) or 0

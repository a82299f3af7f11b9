"""The queues of an open pipeline: its edges, and for each stage the letters and the inputs that it gets once more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from typing import TypeVar

from pyspark.sql import SparkSession

from persistentqueue import (
    ClosedError,
    CorruptionError,
    MissingExtraError,
    Options,
    PersistentQueue,
    PersistentQueueError,
    QueueLockedError,
    View,
    WrongKeyError,
    list_queues,
    transaction,
)
from persistentqueue.interrupts.locks import Lock
from persistentqueue.storage.layout import queue_directory

from ..handoff import AGAIN, LETTERS, open_queue
from ..stages import NotAStageError, decode
from .edge import TAKER, Edge
from .graph import Graph, PipelineDefinitionError, StageDefinition
from .letters import NO_FAILURE, Failure, Input, StageLetter, decode_failure, decode_inputs, encode_inputs, need_sources

R = TypeVar("R")
Spark = SparkSession | Callable[[], SparkSession] | None
_FAILURE = ".failure"
"""Suffix of the name of a stage's third queue, as ``LETTERS`` and ``AGAIN``. The name of an edge has no dot."""
_OTHER = ". If it is another pipeline in this directory, give each pipeline a directory of its own"


class AbandonedError(Exception):
    """The run of the pipeline was ended at once, so its stages may not commit any more. Users never see it."""


class Permit:
    """The right of the stages of one run to commit, until it is withdrawn for ever."""

    is_withdrawn = False


class Store:
    """The open queues of a pipeline. For any number of threads.

    Args:
        spark: The session that reads payloads, a function that returns it, or None for the active session.
        path: The directory of the pipeline.
        payload_root: The directory of the payloads, as for ``StageHandoff``.
        network_disk: Whether ``path`` may be on a network file system.
        graph: The stages.
        forgotten: Consumers that may be removed with all that waits for them.

    Raises:
        PipelineDefinitionError: Inputs wait for a stage that does not take them any more.
    """

    def __init__(
        self,
        spark: Spark,
        path: str | os.PathLike[str],
        payload_root: str | os.PathLike[str] | None,
        network_disk: bool,
        graph: Graph,
        forgotten: Sequence[str],
    ) -> None:
        self.path, self._payload_root, self._network_disk = os.fspath(path), payload_root, network_disk
        self.graph = graph
        self._spark = spark
        self._session = None if callable(spark) else spark
        self._starting = Lock()
        self._commits = Lock()
        self._made = Lock()
        self._is_closed = False
        self._queues: dict[str, PersistentQueue[bytes]] = {}
        """Queues of stages beside the edges, by name; also those of stages that the pipeline lacks."""
        self.edges: dict[str, Edge] = {}
        os.makedirs(self.path, exist_ok=True)
        with ExitStack() as opened:
            opened.callback(self.close)
            # The letters first: another pipeline that has some is noticed before an edge is opened.
            self._open_letters()
            self._leave_inputs(forgotten)
            others = [name for name in list_queues(self.path) if name not in graph.edges and "." not in name]
            for name in others:
                self._leave_edge(name, forgotten)
            for name in graph.edges:
                self.edges[name] = self._edge(name)
                self.edges[name].connect(graph.readers(name), forgotten)
            opened.pop_all()

    def _open_letters(self) -> None:
        """Open the queues of stages that are here now. Raises ``QueueLockedError`` if another pipeline has one."""
        for name in list_queues(self.path):
            if name.endswith((LETTERS, AGAIN, _FAILURE)):
                self._queue(name)

    def _edge(self, name: str) -> Edge:
        return Edge(self.session, self.path, name, self._payload_root, self.kept, self._network_disk)

    def _leave_inputs(self, forgotten: Sequence[str]) -> None:
        """Delete the inputs to take again of forgotten stages. Raises ``PipelineDefinitionError`` for other stages."""
        for name, queue in self._queues.items():
            stage = name.removesuffix(AGAIN)
            if name.endswith(AGAIN) and stage not in self.graph.stages and len(queue):
                if stage not in forgotten:
                    raise PipelineDefinitionError(
                        f"{len(queue)} inputs of requeue wait for stage {stage!r}, which the pipeline does not have: "
                        f"define it again, or delete them by pipeline.forget({stage!r}). If it is a stage of another "
                        "pipeline, give each pipeline a directory of its own"
                    )
                queue.clear()

    def _leave_edge(self, name: str, forgotten: Sequence[str]) -> None:
        """Connect an edge that the graph lacks, as one from which no stage takes, if inputs of a stage wait there.

        Raises ``PipelineDefinitionError`` unless the stage is forgotten. Queues of other programs are left alone.
        """
        if _has_inputs(View(self.path, name)):
            with suppress(QueueLockedError), self._edge(name) as edge:  # locked: another pipeline runs with it
                edge.connect((), forgotten)

    def close(self) -> None:
        """Close all queues. A second call does nothing.

        A stage of an interrupted run may go on behind it, and may open none: nothing would close that queue.
        """
        with self._made:
            self._is_closed = True
        with ExitStack() as closing:
            for edge in self.edges.values():
                closing.callback(edge.close)
            for queue in self._queues.values():
                closing.callback(queue.close)

    def session(self) -> SparkSession:
        """Return the session. The function that makes it is called once, and again after ``forget_session``."""
        with self._starting:
            if self._session is None and callable(self._spark):
                self._session = self._spark()
            return self._session or SparkSession.active()

    def forget_session(self) -> None:
        """Let the next call of ``session`` call the function that makes it: Spark has stopped."""
        if callable(self._spark):
            self._session = None

    def is_usable(self) -> bool:
        """Return whether all queues are open, and none of them is broken."""
        with self._made:
            queues = [*(edge.queue for edge in self.edges.values()), *self._queues.values()]
        try:
            return not any(queue.stats().broken for queue in queues)
        except ClosedError:
            return False

    # --- commits

    @contextmanager
    def committing(self, permit: Permit | None = None) -> Iterator[None]:
        """Let one commit of the pipeline run at a time. Raises ``AbandonedError`` if the permit is withdrawn."""
        with self._commits:
            if permit is not None and permit.is_withdrawn:
                raise AbandonedError
            yield

    def withdraw(self, permit: Permit) -> None:
        """Let the stages of a run commit no more. A commit that has begun ends first."""
        with self._commits:
            permit.is_withdrawn = True

    def kept(self, naming: str) -> set[str]:
        """Return the names of the payloads that letters and inputs to take again need; only those with ``naming`` in
        their item.

        Without ``naming``, an edge is being opened, and has its lock. Before that, another pipeline may have made
        letters with payloads of this edge. So their queues are looked for again.

        Raises ``QueueLockedError`` if another pipeline has such a queue.
        """
        if not naming:
            self._open_letters()
        with self._made:
            queues = dict(self._queues)
        inputs: list[Input] = []
        for name, queue in queues.items():
            decode = _inputs_of_letter if name.endswith(LETTERS) else decode_inputs
            for item in queue.browse_all() if not name.endswith(_FAILURE) else ():
                if naming.encode() in item:
                    inputs += decode_from(queue, decode, item)
        return {each.manifest.directory for each in inputs}

    # --- failures and letters

    def record(self, stage: str, failure: Failure) -> None:
        """Keep the last failure of a stage, durably, instead of the one before."""
        with self._queue(stage + _FAILURE).transaction() as session:
            session.dequeue()
            session.enqueue(failure.encode())

    def last_failure(self, stage: str, run: str) -> Failure:
        """Return the last failure of this run of the stage; ``NO_FAILURE`` if no attempt has raised an error."""
        queue = self._queues.get(stage + _FAILURE)
        if queue is None:
            return NO_FAILURE
        for item in queue.peek():
            failure = decode_from(queue, decode_failure, item)
            if failure.run == run:
                return failure
        return NO_FAILURE

    def letters(self, stage: str) -> PersistentQueue[bytes]:
        """Return the queue of a stage's letters; make it if it is missing."""
        return self._queue(stage + LETTERS)

    def again(self, stage: str) -> PersistentQueue[bytes] | None:
        """Return the queue of inputs that the stage takes before those of its edges; None if nothing waits there."""
        queue = self._queues.get(stage + AGAIN)
        return queue if queue is not None and len(queue) else None

    def dead_letters(self, stage: str) -> list[StageLetter]:
        """Return the letters of a stage, the oldest first."""
        queue = self._queues.get(stage + LETTERS)
        return [] if queue is None else [decode_from(queue, StageLetter.decode, item) for item in queue.browse()]

    def letter_count(self, stage: str) -> int:
        """Return the number of letters of a stage, without a look at them."""
        queue = self._queues.get(stage + LETTERS)
        return 0 if queue is None else len(queue)

    def requeue(self, stage: StageDefinition, max_letters: int | None) -> int:
        """Give a stage the inputs of its letters once more, in one transaction; return the number of letters.

        Raises ``PipelineDefinitionError`` if the stage has other sources than the stage that wrote the letters.
        """
        letters = self._queues.get(stage.name + LETTERS)
        if letters is None or not len(letters):
            return 0
        again = self._queue(stage.name + AGAIN)
        with transaction(letters, again) as (old, new), self.committing():
            count = 0
            while (max_letters is None or count < max_letters) and (item := old.dequeue()) is not None:
                inputs = decode_from(letters, _inputs_of_letter, item)
                need_sources(stage, inputs, "discard the letters")
                new.enqueue(encode_inputs(inputs))
                count += 1
            old.flush()
        return count

    def discard(self, stage: str, max_letters: int | None) -> int:
        """Delete the letters of a stage, and the payloads that only they need; return the number of letters."""
        letters = self._queues.get(stage + LETTERS)
        if letters is None:
            return 0
        with letters.transaction() as session, self.committing():
            items: list[bytes] = []
            while (max_letters is None or len(items) < max_letters) and (item := session.dequeue()) is not None:
                items.append(item)
            session.flush()
            inputs = [each for item in items for each in decode_from(letters, _inputs_of_letter, item)]
            self.remove_unneeded(inputs)
            self._sweep({each.edge for each in inputs} - set(self.edges))
        return len(items)

    def remove_unneeded(self, inputs: Sequence[Input]) -> None:
        """Remove the payloads that neither a consumer nor a letter needs. Call it in ``committing``.

        A payload of an edge that the pipeline does not have stays: see ``_sweep``.
        """
        for each in inputs:
            edge = self.edges.get(each.edge)
            if edge is not None and not edge.is_needed(each.manifest):
                edge.remove(each.manifest)

    def _sweep(self, names: set[str]) -> None:
        """Let the openings of these edges, which the pipeline does not have, remove the payloads that nothing needs.

        An edge that cannot be opened keeps them: another pipeline has it, or letters that may need them, for example.
        """
        for name in names:
            with suppress(PersistentQueueError, ValueError, OSError):
                if name in list_queues(self.path):
                    self._edge(name).close()

    def _queue(self, name: str) -> PersistentQueue[bytes]:
        with self._made:
            if name not in self._queues:
                if self._is_closed:
                    raise ClosedError(f"{self.path}: the pipeline was closed: call the method of the pipeline again")
                self._queues[name] = open_queue(self.path, name, Options(network_disk=self._network_disk), _OTHER)
            return self._queues[name]


def decode_from(queue: PersistentQueue[bytes], decode: Callable[[bytes], R], item: bytes) -> R:
    """Return what ``decode`` makes of an item of the queue. Its ``NotAStageError`` gets the directory of the queue."""
    try:
        return decode(item)
    except NotAStageError as error:
        raise NotAStageError(f"{queue_directory(queue.path, queue.name)}: {error}") from error.__cause__


def _inputs_of_letter(item: bytes) -> tuple[Input, ...]:
    return StageLetter.decode(item).inputs


def _has_inputs(view: View) -> bool:
    """Return whether inputs of a stage wait in a queue, as far as its first item tells."""
    try:
        waiting = [name for name, count in view.look().subscriptions if count and name != TAKER]
        items = view.browse(waiting[0], damaged=lambda *_: None) if waiting else iter(())
        return any(decode(item.data) for item in islice(items, 1))
    except (NotAStageError, WrongKeyError, MissingExtraError, CorruptionError):  # made by another program
        return False

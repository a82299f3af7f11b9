"""The class ``Pipeline``: stages of Spark, with a named queue at each edge, and each output exactly once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame

from persistentqueue.core.items import checked_count
from persistentqueue.drawing.charts import curves
from persistentqueue.interrupts.locks import RLock
from persistentqueue.pickling import Uncopyable
from persistentqueue.storage.layout import queue_directory

from ..handoff import Stage
from ..options import local_path
from ..progress import Report as FrameReport
from ..progress import need_report
from ..stages import Manifest
from .edge import TAKER, Edge
from .graph import Delay, Graph, Marker, PipelineDefinitionError, StageDefinition
from .letters import StageLetter
from .picture import EdgeStats, PipelineStats, StageStats, shape
from .scheduler import Report, Scheduler, Until
from .store import Spark, Store

F = TypeVar("F", bound=Callable[..., Any])
_RATE_SECONDS = 60.0


class Pipeline(Uncopyable):
    """Stages that take DataFrames from named queues and put their results to others, each output exactly once.

    Example::

        pipeline = Pipeline(spark, "queues/flights")

        @pipeline.stage(source="raw", target="delays")
        def delays(flights):
            return flights.groupBy("carrier").agg({"dep_delay": "avg"})

        with pipeline:
            pipeline.put("raw", frame, marker=("flights", 2013))
            pipeline.run(until="drained")
            with pipeline.take("delays") as taken:
                taken.df.show()

    A run of a stage takes one DataFrame of each source. It consumes them, and puts its results, in one transaction over
    the queues of all these edges. So a program that is killed anywhere and started again has the results of an
    uninterrupted run. The function itself may run again: only what it returns is put exactly once.

    Define all stages first. The first call of another method opens the queues, which no other process may have open.
    ``close()``, or the end of a ``with`` block, closes them. All methods may be called from several threads.

    Args:
        spark: The session that reads the DataFrames that are taken, or a function that returns it. The function is
            called when a stage runs first, so that a program without work starts no Spark. It is called again when a
            stage runs after a run that has ended since Spark had stopped. With None, it is the active session.
        path: The directory of the pipeline, which is made if missing. Each edge is a queue in it. No other pipeline may
            have the directory, since it would keep the letters of stages that it does not have.
        payload_root: The directory of the payloads, as for ``StageHandoff``. With None, the default, it is beside each
            queue.
        network_disk: Whether ``path`` may be on a network file system, as for ``PersistentQueue``. Default: False.
            Payloads may always be there.

    Raises:
        TypeError: ``path`` is not text and no path object.
        ValueError: ``path`` is empty, or contains a NUL character.
    """

    _elsewhere = "use it in the process that has made it, outside of functions that Spark runs in tasks"

    def __init__(
        self,
        spark: Spark,
        path: str | os.PathLike[str],
        payload_root: str | os.PathLike[str] | None = None,
        *,
        network_disk: bool = False,
    ) -> None:
        self._spark = spark
        # Absolute paths, because the process may change its working directory.
        self._path = os.path.abspath(queue_directory(path, None))
        root = local_path(os.fspath(payload_root)) if payload_root else None
        self._payload_root, self._network_disk = payload_root if root is None else os.path.abspath(root), network_disk
        self._graph = Graph()
        self._forgotten: list[str] = []
        self._opening = RLock()
        self._scheduler: Scheduler | None = None
        """The open queues and their stages; None while the pipeline is closed."""

    # --- definition

    def stage(
        self,
        *functions: object,
        source: str | Sequence[str] = (),
        target: str | Sequence[str] = (),
        name: str | None = None,
        max_attempts: int | None = None,
        retry_delay_seconds: Delay = 0.0,
        max_waiting: int | None = None,
        max_waiting_bytes: int | None = None,
        every: float | None = None,
        marker: Marker | Callable[[], Marker] | None = None,
    ) -> Callable[[F], F]:
        """Define a stage, as a decorator of its function::

            @pipeline.stage(source=["flights", "airlines"], target=["late", "early"])
            def split(flights, airlines):
                named = flights.join(airlines, "carrier")
                return named.where("delay > 0"), named.where("delay <= 0")

        The function gets one DataFrame of each source, in their order. With one target it returns a DataFrame. With
        several, it returns a tuple in the order of the targets, or a dict by their names. Without a target it returns
        None: such a stage is a *sink*. A sink may run again after a kill, so what it does outside must be repeatable,
        and durable on return.

        Args:
            functions: Nothing: all arguments have names. A function here means that the decorator was not called.
            source: The edges that it takes from: a name, or several. Several stages may take from one edge; each of
                them gets every DataFrame. Without a source, pass ``marker`` or ``every``.
            target: The edges that it puts to: a name, or several. Several stages may put to one edge.
            name: The name of the stage, which must be unique. The default is the name of the function. It identifies
                the place of the stage at its sources, so keep it when the function gets another name.
            max_attempts: Number of attempts, at least 1, after which the inputs become a dead letter. Attempts that end
                the process or Spark count, too, so the last one of several is made while no other stage runs. The
                letter has the last error that an attempt raised. With None, the default, the first error ends the run,
                and the inputs wait. An attempt does not count if its inputs have no part in its end: the function
                returned no DataFrames, for example.
            retry_delay_seconds: Seconds from a failed attempt to the next one, at least 0, or a function from the
                number of failed attempts to seconds. The default is 0. A new run does not wait. The stage takes nothing
                else meanwhile, so that its order is kept.
            max_waiting: The stage does not run while so many DataFrames, at least 1, wait at one of its targets.
                Default None: no limit.
            max_waiting_bytes: The stage does not run while payloads of so many bytes wait at one of its targets.
                Default None: no limit.
            every: Seconds, for a stage without a source: it runs once in each period, also if the program is started
                again. Periods are counted from 1970, by the clock of the system. With ``marker``, it looks at the
                marker when a run begins, and at the beginning of each period.
            marker: A pair ``(name, version)``, or a function that returns one, for a stage without a source. It runs
                only if no target has recorded this version, or a later one, for this name. The transaction of its
                result records it. So ``marker=("flights", 2013)`` puts the flights once. The name belongs to the stage:
                no other stage with one of its targets may have it.

        Returns:
            A decorator, which returns the function unchanged.

        Raises:
            PipelineDefinitionError: An argument is out of range. Or the name exists. Or the stage closes a circle. Or
                another stage has the name of its marker at one of its targets. Or the queues are open. Or the decorator
                has no brackets.
        """
        if functions:
            given = getattr(functions[0], "__name__", repr(functions[0]))
            raise PipelineDefinitionError(
                f"stage {given!r}: arguments have names: call the decorator, as in "
                '@pipeline.stage(source="raw", target="out")'
            )

        def define(function: F) -> F:
            """Add the stage to the graph, and return its function."""
            own = name if name is not None else getattr(function, "__name__", "")
            definition = StageDefinition(
                own,
                function,
                _names(own, "source", source),
                _names(own, "target", target),
                max_attempts,
                retry_delay_seconds,
                max_waiting,
                max_waiting_bytes,
                every,
                marker,
            )
            with self._opening:
                if self._scheduler is not None:
                    raise PipelineDefinitionError(
                        f"stage {definition.name!r}: the pipeline is open: define all stages before its first use"
                    )
                self._graph.add(definition)
            return function

        return define

    def forget(self, stage: str) -> None:
        """Let the opening remove the places of a stage at the edges that it does not take from any more.

        Without this call, the opening raises ``PipelineDefinitionError`` if DataFrames wait there. A new stage at the
        edge gets them, or ``take`` if no stage takes from it. If the stage is not defined any more, inputs that
        ``requeue`` gave back to it are deleted. Call it before the first use.

        Args:
            stage: The name of the stage, which may be defined.

        Raises:
            PipelineDefinitionError: The queues are open.
        """
        with self._opening:
            if self._scheduler is not None:
                raise PipelineDefinitionError(
                    f"stage {stage!r} cannot be forgotten: the pipeline is open: call forget before its first use"
                )
            self._forgotten.append(stage)

    # --- data

    def put(self, edge: str, df: DataFrame, marker: Marker | None = None, progress: FrameReport | None = None) -> bool:
        """Write a DataFrame with Spark, and let it wait at an edge: ``StageHandoff.put``.

        Args:
            edge: The name of the edge.
            df: The DataFrame. Spark computes it once.
            marker: A pair ``(name, version)`` that is recorded with it; the default is None. If the edge has recorded
                this version, or a later one, for this name, nothing is put. If it is the marker of a stage that puts to
                this edge, the stage does not run for it.
            progress: A function that gets the tasks of Spark as ``Progress``. The default is None.

        Returns:
            True if the DataFrame was put; False if the marker was recorded before.

        Raises:
            PipelineDefinitionError: No stage names the edge.
            TypeError: The marker is not a pair of str and int, or ``progress`` is no function.
            ValueError: The marker is out of range.

        It also raises what ``StageHandoff.put`` raises. On return, the DataFrame is durable. For any thread.
        """
        was_put = self._edge(edge).put(df, marker, progress)
        self._opened().wake()
        return was_put

    @contextmanager
    def take(
        self, edge: str, timeout: float | None = 0.0, *, progress: FrameReport | None = None
    ) -> Iterator[Stage | None]:
        """Take the oldest DataFrame of an edge that no stage takes from, for the length of a ``with`` block.

        It behaves as ``StageHandoff.take``: the end of the block consumes the DataFrame, and an exception releases it.

        Args:
            edge: The name of the edge.
            timeout: Seconds to wait for a DataFrame, None for ever; the default is 0.
            progress: A function that gets the tasks of Spark in the block as ``Progress``. The default is None.

        Yields:
            The DataFrame with its manifest; None if none waits within the timeout.

        Raises:
            PipelineDefinitionError: No stage names the edge, or a stage takes from it.
            PayloadLostError: A file of the payload is missing, or its size is another one; see ``skip``.
            TypeError: ``progress`` is no function. Nothing was taken.

        It also raises what ``StageHandoff.take`` raises. For any thread.
        """
        with self._last_edge(edge, "take from").take(timeout, subscription=TAKER, progress=progress) as stage:
            yield stage
        self._opened().wake()

    def skip(self, edge: str, manifest: Manifest) -> bool:
        """Give up a DataFrame that waits for ``take``, so that those behind it can be taken.

        It is consumed. Its payload is not deleted: ``.lost`` is added to its name, unless a letter needs it.

        Example::

            try:
                with pipeline.take("report") as taken:
                    ...
            except PayloadLostError as error:
                pipeline.skip("report", error.manifest)

        Args:
            edge: The name of the edge.
            manifest: Its manifest, from ``PayloadLostError.manifest``.

        Returns:
            True if it was given up; False if it does not wait there, or if another thread is taking it.

        Raises:
            PipelineDefinitionError: No stage names the edge, or a stage takes from it. Such a stage gives its inputs up
                with ``max_attempts``.

        It also raises what ``StageHandoff.skip`` raises. Durable on return. For any thread.
        """
        was_skipped = self._last_edge(edge, "skip at").skip(manifest, subscription=TAKER)
        self._opened().wake()
        return was_skipped

    def dead_letters(self, stage: str) -> list[StageLetter]:
        """Return the inputs that a stage gave up, each with the last error.

        Args:
            stage: The name of the stage.

        Returns:
            The letters, the oldest first.

        Raises:
            PipelineDefinitionError: There is no such stage, and no letter of it.

        The payloads of the inputs are kept. A stage that was renamed or removed has its letters under its old name. For
        any thread.
        """
        return self._with_letters(stage).dead_letters(stage)

    def requeue(self, stage: str, max_letters: int | None = None) -> int:
        """Give a stage the inputs of its letters once more, in one transaction; it takes them before all others.

        Other stages do not get them again. The attempts are counted from 0.

        Args:
            stage: The name of the stage.
            max_letters: Upper bound for the number of letters, the oldest first; at least 0. Default None: all.

        Returns:
            The number of letters.

        Raises:
            PipelineDefinitionError: There is no such stage, or it had other sources when it gave the inputs up.
            TypeError: ``max_letters`` is no whole number.
            ValueError: ``max_letters`` is negative.

        It also raises what ``Session.flush`` raises; then nothing was moved. Durable on return. For any thread.
        """
        most = None if max_letters is None else checked_count("max_letters", max_letters)
        definition = self._graph.require_stage(stage)
        scheduler = self._opened()
        count = scheduler.store.requeue(definition, most)
        scheduler.wake()
        return count

    def discard(self, stage: str, max_letters: int | None = None) -> int:
        """Delete the letters of a stage, and the payloads that nothing else needs.

        Args:
            stage: The name of the stage.
            max_letters: Upper bound for the number of letters, the oldest first; at least 0. Default None: all.

        Returns:
            The number of letters.

        Raises:
            PipelineDefinitionError: There is no such stage, and no letter of it.
            TypeError: ``max_letters`` is no whole number.
            ValueError: ``max_letters`` is negative.

        It also raises what ``Session.flush`` raises; then nothing was deleted. Durable on return. A stage that was
        renamed or removed has its letters under its old name. For any thread.
        """
        most = None if max_letters is None else checked_count("max_letters", max_letters)
        return self._with_letters(stage).discard(stage, most)

    # --- running

    def run(self, until: Until = None, *, parallel: int = 1, progress: Report | None = None) -> bool:
        """Run the stages, each one whenever it has inputs.

        Of several stages that may run, those nearest to the end of the graph run first. A stage runs once at a time,
        and takes its inputs in their order.

        The first Ctrl-C ends the run after the running stages. The second one raises ``KeyboardInterrupt`` at once;
        then the running stages put and consume nothing, and their attempts do not count.

        Args:
            until: The end of the run. ``"drained"``: no stage has inputs, and no schedule is due; a period that begins
                while its stage runs is left to the next run. A number: so many seconds have passed. A function without
                arguments: it has returned true; it is called twice a second and after each stage. With None, the
                default, the run does not end by itself. Running stages are waited for.
            parallel: Number of stages that run at the same time, each on a thread of its own; at least 1, the default.
            progress: A function that is called as ``progress(stage, found)``, about twice a second for each running
                stage, with the tasks of Spark as a ``Progress``. The default is None. If it raises, it is not called
                again. The run ends after the running stages, and raises that error; all other inputs wait.

        Returns:
            True if the end that ``until`` describes was reached. False after Ctrl-C and ``stop()``. Also False with
            ``until="drained"``, if full targets hold back all stages that have inputs.

        Raises:
            StageFailedError: A stage without ``max_attempts`` has failed. Or one with it could not begin an attempt, or
                could not write its letter: the disk is full, for example. Or Spark has stopped, and the cause is a
                ``SparkStoppedError``. The inputs wait.
            StageResultError: A stage returned no DataFrame, or not one for each target. This is a ``TypeError``.
            ValueError: ``parallel`` or ``until`` is out of range.
            TypeError: ``progress`` is no function.
            BrokenQueueError: It is unknown whether a stage has put its results: close the pipeline and open it again.
            KeyboardInterrupt: Ctrl-C was pressed twice.

        All results of stages that ended are durable on return. For one thread at a time.
        """
        if type(parallel) is not int or parallel < 1:
            raise ValueError(f"parallel must be a number from 1, not {parallel!r}")
        is_known = until is None or until == "drained" or callable(until)
        if not is_known and not (isinstance(until, int | float) and until >= 0):
            raise ValueError(f'until must be "drained", seconds from 0, a function or None, not {until!r}')
        need_report(progress, "a stage's name and a Progress")
        return self._opened().run(until, parallel, progress)

    def stop(self) -> None:
        """End the run of another thread after the stages that are running. Nothing happens if there is no run."""
        with self._opening:
            scheduler = self._scheduler
        if scheduler is not None:
            scheduler.stop()

    # --- looks

    def stats(self) -> PipelineStats:
        """Return the states of the stages, and what waits at the edges.

        Returns:
            The values; ``print`` shows them, and a notebook draws the graph.

        Raises:
            PersistentQueueError: The queues cannot be opened.

        For any thread.
        """
        scheduler = self._opened()
        store, states = scheduler.store, {stage.name: stage for stage in scheduler.stages}
        stages = []
        for definition in self._graph:
            stage = states[definition.name]
            state, letters = scheduler.state(stage), store.letter_count(stage.name)
            stages.append(
                StageStats(
                    stage.name, definition.sources, definition.targets, state, stage.runs(), letters, stage.seconds
                )
            )
        return PipelineStats(tuple(stages), tuple(map(_edge_stats, store.edges.values())))

    def explain(self) -> str:
        """Return the graph as text, with what waits at each edge and the state of each stage.

        Raises:
            PersistentQueueError: The queues cannot be opened.

        For any thread.
        """
        return str(self.stats())

    def mermaid(self) -> str:
        """Return the graph in the language Mermaid, with depth, rates and age at each edge.

        Raises:
            PersistentQueueError: The queues cannot be opened.

        For any thread.
        """
        return self.stats().mermaid()

    def report(self, file: str | os.PathLike[str]) -> None:
        """Write a page of HTML with a picture of the graph, and with depth, rates and age at each edge.

        Args:
            file: The path of the page. A file that exists is replaced.

        Raises:
            OSError: The page cannot be written.
            PersistentQueueError: The queues cannot be opened.

        For any thread. The page is not synced.
        """
        Path(file).write_text(self.stats().page(os.path.basename(self._path)), encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return the picture for a notebook. It opens no queue: without open queues it shows the definition alone."""
        with self._opening:
            if self._scheduler is None:
                return shape(list(self._graph), list(self._graph.edges))
        return self.stats()._repr_html_()

    # --- opening and closing

    def close(self) -> None:
        """Close the queues. The Spark session stays open. A second call does nothing; another call opens them again.

        A run of another thread must have ended: see ``stop``.
        """
        with self._opening:
            scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.store.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _opened(self) -> Scheduler:
        with self._opening:
            if self._scheduler is None:
                if not self._graph.stages:
                    raise PipelineDefinitionError("the pipeline has no stage: define one with @pipeline.stage(…)")
                roots = (self._path, self._payload_root, self._network_disk)
                self._scheduler = Scheduler(Store(self._spark, *roots, self._graph, self._forgotten))
            return self._scheduler

    def _with_letters(self, stage: str) -> Store:
        """Return the store, if the stage is defined or has letters. Raises ``PipelineDefinitionError``."""
        store = self._opened().store
        if not store.letter_count(stage):
            self._graph.require_stage(stage)
        return store

    def _edge(self, name: str) -> Edge:
        self._graph.require_edge(name)
        return self._opened().store.edges[name]

    def _last_edge(self, name: str, call: str) -> Edge:
        """Return an edge that no stage takes from. Raises ``PipelineDefinitionError`` for others."""
        found, readers = self._edge(name), self._graph.readers(name)
        if readers:
            raise PipelineDefinitionError(
                f"edge {name!r}: stage {readers[0]!r} takes its DataFrames: {call} an edge without such a stage"
            )
        return found


def _names(stage: str, what: str, names: object) -> tuple[str, ...]:
    """Return the edges of a stage. Raises ``PipelineDefinitionError`` for others than a name, a list or a tuple."""
    if isinstance(names, list | tuple):
        return tuple(names)
    if isinstance(names, str):
        return (names,)
    raise PipelineDefinitionError(  # a set has another order in each process
        f"stage {stage!r}: {what} must be a name, or a list or tuple of names, not {names!r}"
    )


def _edge_stats(edge: Edge) -> EdgeStats:
    stats, manifests, seen = edge.queue.stats(), edge.unconsumed(), edge.queue.view().look()
    past = curves(stats.history, _RATE_SECONDS, 1)
    rates = (past.in_per_second[0] * 60, past.out_per_second[0] * 60) if past is not None else (0.0, 0.0)
    if not manifests:
        oldest_seconds = 0.0
    elif seen.oldest_ns is not None and seen.depth == len(manifests):
        oldest_seconds = (seen.time_ns - seen.oldest_ns) / 1e9
    else:  # a view does not know the outcome of the last transaction over several queues
        oldest_seconds = stats.oldest_seconds
    size_bytes = sum(manifest.bytes for manifest in manifests)
    return EdgeStats(edge.name, edge.waiting_count(), size_bytes, oldest_seconds, *rates)

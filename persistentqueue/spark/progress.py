"""The progress of the Spark jobs that one thread starts: the tasks that are done, and all that Spark knows of."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from persistentqueue.interrupts.locks import Lock

from .sessions import is_connect

SECONDS = 0.5
"""Seconds between two reports."""
_LOOKS, _LOOK_SECONDS = 100, 0.01
_GROUP = "spark.jobGroup.id"
_INTERVAL, _OFTEN = "spark.connect.progress.reportInterval", "50ms"
"""The setting of a session for the time between two messages of the server; its default is longer than many jobs."""
_changing = Lock()
_changed: dict[int, tuple[int, str | None]] = {}
"""For each session whose setting is changed now: the number of blocks that need it, and the value before the first."""


class Progress(NamedTuple):
    """The progress of Spark jobs, counted in tasks."""

    done: int
    """Tasks that are done."""
    total: int
    """All tasks that Spark knows of. The number grows while Spark plans further stages."""


Report = Callable[[Progress], None]


def need_report(report: object, takes: str = "a Progress") -> None:
    """Raise ``TypeError`` if ``report`` is neither None nor a function, which would get what ``takes`` describes."""
    if report is not None and not callable(report):
        raise TypeError(f"progress must be a function of {takes}, or None, not {report!r}")


@contextmanager
def reporting(spark: SparkSession, report: Report | None) -> Iterator[None]:
    """Report the progress of the jobs that this thread starts in the block, twice a second and once at its end.

    ``report`` is called from a thread of its own. If it raises, it is not called again, and its error is raised at the
    end of the block, unless the block itself raises. Errors of Spark fail no block: if the block stops the session,
    nothing is reported any more.
    """
    if report is None:
        yield
        return
    ended = threading.Event()
    failures: list[BaseException] = []

    def watch() -> None:
        """Report until the block ends, and then once more."""
        is_last = False
        while not is_last:
            is_last = ended.wait(SECONDS)
            try:
                found = progress(is_last)
            except Exception:  # Spark does not answer: the block may have stopped it
                continue
            try:
                report(found)
            except BaseException as failure:
                failures.append(failure)
                return

    with (_messages if is_connect(spark) else _jobs)(spark) as progress:
        thread = threading.Thread(target=watch, name="persistentqueue progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
    if failures:
        raise failures[0]


@contextmanager
def _jobs(spark: SparkSession) -> Iterator[Callable[[bool], Progress]]:
    """Yield a function that asks the driver for the jobs that this thread starts in the block."""
    context = spark.sparkContext
    tracker = context.statusTracker()
    group = context.getLocalProperty(_GROUP)
    if group is None:
        context.setLocalProperty(_GROUP, f"persistentqueue {uuid.uuid4().hex}")
    name = context.getLocalProperty(_GROUP)
    before = set(tracker.getJobIdsForGroup(name))

    def infos() -> list[Any]:
        """Return what the driver knows of the jobs that began in the block."""
        return [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup(name)) - before]

    def progress(is_last: bool) -> Progress:
        """Return the done tasks and all tasks of the jobs that began in the block, as the driver knows them now.

        Behind the block, the driver may not have counted the last tasks yet: another thread of it does so. So the last
        report waits until no job is running, for a second at most.
        """
        done = total = 0
        for _ in range(_LOOKS if is_last else 0):
            if not any(info is not None and info.status == "RUNNING" for info in infos()):
                break
            time.sleep(_LOOK_SECONDS)
        for info in infos():
            for stage in info.stageIds if info is not None else ():
                stage_info = tracker.getStageInfo(stage)
                if stage_info is not None:  # Spark forgets stages that ended long ago
                    done += stage_info.numCompletedTasks
                    # A stage of a successful job that did not run was skipped: another job had done its work.
                    is_done = info is not None and info.status == "SUCCEEDED"
                    total += stage_info.numCompletedTasks if is_done else stage_info.numTasks
        return Progress(done, total)

    try:
        yield progress
    finally:
        if group is None:
            with suppress(Exception):  # the block may have stopped Spark
                context.setLocalProperty(_GROUP, None)  # type: ignore[arg-type]


@contextmanager
def _messages(spark: Any) -> Iterator[Callable[[bool], Progress]]:
    """Yield a function that adds up what the server of Spark Connect says of the jobs of this thread in the block.

    The server says nothing after a job. So a stage that has begun counts as done when its job has ended. A job that
    ends before the first message is not counted.
    """
    thread = threading.get_ident()
    known: dict[Any, dict[int, tuple[int, int]]] = {}
    """For each operation, the done tasks and all tasks of its stages."""

    def hear(stages: Any, operation_id: Any, done: bool, **_: Any) -> None:
        """Note the tasks of the stages, if the operation is of this thread."""
        if threading.get_ident() == thread:  # Spark calls in the thread that waits for the job
            found = {stage.stage_id: (stage.num_completed_tasks, stage.num_tasks) for stage in stages}
            if done:  # a stage without a done task was skipped: another one had done its work
                begun = found or known.get(operation_id, {})
                found = {stage: (total, total) for stage, (count, total) in begun.items() if count or len(begun) == 1}
            known[operation_id] = found

    def progress(_is_last: bool) -> Progress:
        """Return the done tasks and all tasks of the messages so far."""
        counts = [count for stages in list(known.values()) for count in stages.values()]
        return Progress(sum(done for done, _ in counts), sum(total for _, total in counts))

    with _often(spark):
        spark.registerProgressHandler(hear)
        try:
            yield progress
        finally:
            with suppress(Exception):  # the block may have stopped Spark
                spark.removeProgressHandler(hear)


@contextmanager
def _often(spark: Any) -> Iterator[None]:
    """Let the server send messages often, until the last of the blocks ends that run at the same time in a session."""
    with _changing:
        blocks, before = _changed.get(id(spark), (0, None))
        if not blocks:
            before = spark.conf.get(_INTERVAL, None)
            spark.conf.set(_INTERVAL, _OFTEN)
        _changed[id(spark)] = blocks + 1, before
    try:
        yield
    finally:
        with _changing:
            blocks, before = _changed.pop(id(spark))
            if blocks > 1:
                _changed[id(spark)] = blocks - 1, before
            else:
                with suppress(Exception):  # the block may have stopped Spark
                    if before is None:
                        spark.conf.unset(_INTERVAL)
                    else:
                        spark.conf.set(_INTERVAL, before)

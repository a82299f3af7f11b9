"""The progress of the Spark jobs that one thread starts: the tasks that are done, and all that Spark knows of."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pyspark.sql import SparkSession

SECONDS = 0.5
"""Seconds between two reports."""
_GROUP = "spark.jobGroup.id"


class Progress(NamedTuple):
    """The progress of Spark jobs, counted in tasks."""

    done: int
    """Tasks that are done."""
    total: int
    """All tasks that Spark knows of. The number grows while Spark plans further stages."""


Report = Callable[[Progress], None]


@contextmanager
def reporting(spark: SparkSession, report: Report | None) -> Iterator[None]:
    """Report the progress of the jobs that this thread starts in the block, twice a second and once at its end.

    ``report`` is called from a thread of its own. If it raises, it is not called again, and its error is raised at the
    end of the block, unless the block itself raises.
    """
    if report is None:
        yield
        return
    context = spark.sparkContext
    tracker = context.statusTracker()
    group = context.getLocalProperty(_GROUP)
    if group is None:
        context.setLocalProperty(_GROUP, f"persistentqueue {uuid.uuid4().hex}")
    name = context.getLocalProperty(_GROUP)
    before = set(tracker.getJobIdsForGroup(name))
    ended = threading.Event()
    failures: list[BaseException] = []

    def tell() -> None:
        """Report once."""
        done = total = 0
        for job in set(tracker.getJobIdsForGroup(name)) - before:
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                stage_info = tracker.getStageInfo(stage)
                if stage_info is not None:  # Spark forgets stages that ended long ago
                    done += stage_info.numCompletedTasks
                    # A stage of a successful job that did not run was skipped: another job had done its work.
                    is_done = info is not None and info.status == "SUCCEEDED"
                    total += stage_info.numCompletedTasks if is_done else stage_info.numTasks
        report(Progress(done, total))

    def watch() -> None:
        """Report until the block ends, and then once more."""
        try:
            while not ended.wait(SECONDS):
                tell()
            tell()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=watch, name="persistentqueue progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if group is None:
            context.setLocalProperty(_GROUP, None)  # type: ignore[arg-type]
    if failures:
        raise failures[0]

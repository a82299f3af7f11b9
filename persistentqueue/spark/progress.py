"""How far Spark is with what one thread has it do: tasks that are done, of those that it knows of."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pyspark.sql import SparkSession

SECONDS = 0.5
"""Between two reports."""
_GROUP = "spark.jobGroup.id"


class Progress(NamedTuple):
    """``done`` tasks of ``total``; the total grows while Spark finds out what there is to be done."""

    done: int
    total: int


Report = Callable[[Progress], None]


@contextmanager
def reporting(spark: SparkSession, report: Report | None) -> Iterator[None]:
    """While the block runs, tell twice a second how far the jobs are that this thread starts, and once at its end.

    ``report`` is called by a thread of its own; if it raises, it is not called again, and the block raises that at its
    end, unless it raises something itself.
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
                if stage_info is not None:  # Spark forgets those that are long done
                    done += stage_info.numCompletedTasks
                    # Of a job that is done, stages that have not run were not needed: another job has.
                    is_done = info is not None and info.status == "SUCCEEDED"
                    total += stage_info.numCompletedTasks if is_done else stage_info.numTasks
        report(Progress(done, total))

    def watch() -> None:
        """Report until the block has ended, and then once more."""
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

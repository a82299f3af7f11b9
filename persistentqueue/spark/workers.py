"""Helpers for the callbacks of Spark: in its Python processes, and in functions of ``foreachBatch``."""

from __future__ import annotations

import gc
import sys
from functools import cache

from persistentqueue import PersistentQueueError

QUERY_ID = "sql.streaming.queryId"
"""The local property in which Spark names the query of a micro-batch: in the thread that runs it, and in its tasks."""


@cache
def settle() -> None:
    """Exclude the objects that exist now from garbage collection, if this process is a worker that Spark keeps.

    Spark's daemon makes each worker collect all garbage after each task, and each callback of a planner is a task. A
    collection visits every object. With Arrow, pandas and PySpark loaded it takes 50 ms of a processor, four times in
    each micro-batch, beside Spark's own work. Excluded garbage would never be freed, so a collection runs first. In any
    other process, such as the user's own, nothing is done.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        gc.collect()
        gc.freeze()


class OldCheckpointError(PersistentQueueError, RuntimeError):
    """A streaming query hands over a batch, but the queue has had a later batch of this query.

    Its checkpoint is an older copy, or another query has used a copy of it. So the batch can have other rows than the
    one that had its number, and to skip it could lose rows. Nothing was handed over. Use the latest checkpoint. Without
    it, begin with a new one: rows that the queue has had can then come again.
    """


def need_next(directory: str, query: str, batch: int, recorded: int | None) -> None:
    """Raise ``OldCheckpointError`` if the queue in this directory has recorded a later batch of the query.

    Spark repeats only the last batch of a query.
    """
    if recorded is not None and recorded > batch:
        raise OldCheckpointError(
            f"{directory}: the query {query} hands over its batch {batch}, but the queue has had batch {recorded}, or "
            "a later one: the checkpoint is an older copy, or another query has used a copy of it: use the latest "
            "checkpoint, or begin with a new one, which can repeat rows"
        )

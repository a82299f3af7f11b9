"""Helpers for the Python processes of Spark that run the callbacks of the data source."""

from __future__ import annotations

import gc
import sys
from functools import cache

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

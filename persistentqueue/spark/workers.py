"""The processes of Spark's in which our callbacks run, and what they take besides."""

from __future__ import annotations

import gc
import sys
from functools import cache

QUERY_ID = "sql.streaming.queryId"
"""The property in which Spark names the query of a micro-batch, to the thread that runs it, and to its tasks."""


@cache
def settle() -> None:
    """Spare this process the search for garbage in what it has imported, if it is a worker that Spark keeps.

    Spark's daemon has each worker collect all garbage after each task, and each callback of a planner is one. That goes
    through every object that there is, and with Arrow, pandas and PySpark loaded takes 50 ms of a processor: four times
    in each micro-batch, beside Spark's own work. What is there now is left out from then on; only cycles that are
    garbage already, which are looked for first, would never go. Elsewhere, in a user's own process, nothing is done.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        gc.collect()
        gc.freeze()

"""The two kinds of Spark sessions: classic ones have Java beside them, and those of Spark Connect only a server."""

from __future__ import annotations

from pyspark.sql import SparkSession

from persistentqueue import PersistentQueueError


class SparkConnectError(PersistentQueueError):
    """Spark Connect cannot do this: the message says why, and what to do instead."""


def is_connect(spark: SparkSession) -> bool:
    """Return whether this is a session of Spark Connect. Its class has no base class in common with a classic one."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def is_one_machine(spark: SparkSession) -> bool:
    """Return whether all tasks of a session run on one machine, as far as its master tells."""
    return str(spark.conf.get("spark.master", "")).startswith("local")

"""The two kinds of Spark sessions: classic ones have Java beside them, and those of Spark Connect only a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from persistentqueue import PersistentQueueError


class SparkConnectError(PersistentQueueError):
    """Spark Connect cannot do this: the message says why, and what to do instead."""


class SparkStoppedError(PersistentQueueError):
    """Spark has stopped: its Java or its server has ended, or its context or session was stopped. Make a new session.

    ``__cause__`` is the error that Spark has raised meanwhile; None if it had stopped before.
    """


def is_connect(spark: SparkSession) -> bool:
    """Return whether this is a session of Spark Connect. Its class has no base class in common with a classic one."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def is_one_machine(spark: SparkSession) -> bool:
    """Return whether all tasks of a session run on one machine, as far as its master tells."""
    return str(spark.conf.get("spark.master", "")).startswith("local")


def has_stopped(spark: Any) -> bool:
    """Return whether a session answers no more. Each error of its answer counts as none.

    Under Spark Connect, the client asks the server again for as long as its retry policies say.
    """
    try:
        if is_connect(spark):
            spark.conf.get("spark.app.name", "")  # a call of the server: the client keeps the answer of ``version``
            return False
        return isinstance(spark, SparkSession) and bool(spark.sparkContext._jsc.sc().isStopped())
    except Exception:
        return True


@contextmanager
def active(spark: Any) -> Iterator[None]:
    """Make a classic session the active one of this thread: there Spark looks for the data source and registers it.

    A thread of Python has no active session at first, except for the one that has made the session. Behind the block,
    the session that was active before is so again. If there was none, this one stays active.
    """
    if not isinstance(spark, SparkSession):  # under Spark Connect, each call names its session
        yield
        return
    java: Any = spark._jvm
    sessions = java.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())

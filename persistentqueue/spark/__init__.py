"""Queues between Spark jobs, and between Spark and other programs: a hand-off of DataFrames, and a data source.

A hand-off: one program puts a DataFrame; another program, later or in another process, takes it (``handoff``)::

    from persistentqueue.spark import StageHandoff, local_session

    spark = local_session("first stage")
    with StageHandoff(spark, "queues", "clean-flights") as handoff:
        handoff.put(frame, marker=("flights-2013", 1))

    with StageHandoff(spark, "queues", "clean-flights") as handoff, handoff.take() as stage:
        if stage is not None:
            stage.df.groupBy("carrier").count().show()

A data source: Spark writes rows to a queue as items, and reads items as rows (``source``, ``stream``, ``writer``)::

    from persistentqueue.spark import register

    register(spark)
    frame.write.format("persistentqueue").mode("append").option("queue", "orders").save("queues")
    spark.read.format("persistentqueue").option("queue", "orders").load("queues").show()

A pipeline: functions that take DataFrames from named queues and put their results to others (``pipelines``)::

    from persistentqueue.spark import Pipeline

    pipeline = Pipeline(spark, "queues/flights")

    @pipeline.stage(source="raw", target="delays")
    def delays(flights):
        return flights.groupBy("carrier").agg({"dep_delay": "avg"})

    pipeline.run(until="drained")

This package needs ``pip install 'persistentqueue[spark]'``; nothing else in ``persistentqueue`` imports it. A client of
Spark Connect needs only ``pip install 'persistentqueue[spark-client]'``.
"""

try:
    import pyarrow as _pyarrow  # noqa: F401
    import pyspark as _pyspark  # noqa: F401
except ImportError as missing:
    raise ImportError(
        "persistentqueue.spark needs PySpark and PyArrow: pip install 'persistentqueue[spark]'"
    ) from missing

from .handoff import PayloadLostError, Stage, StageHandoff
from .java import JavaNotFoundError, local_session
from .pipelines.graph import PipelineDefinitionError
from .pipelines.letters import Input, StageLetter
from .pipelines.picture import EdgeStats, PipelineStats, StageStats
from .pipelines.pipeline import Pipeline
from .pipelines.scheduler import StageFailedError
from .pipelines.stage import StageResultError
from .progress import Progress
from .sessions import SparkConnectError, SparkStoppedError
from .source import register
from .stages import Manifest, NotAStageError, batch_marker
from .stream import acknowledge
from .workers import OldCheckpointError

__all__ = [
    "StageHandoff",
    "Stage",
    "Manifest",
    "Progress",
    "Pipeline",
    "PipelineStats",
    "StageStats",
    "EdgeStats",
    "StageLetter",
    "Input",
    "register",
    "acknowledge",
    "batch_marker",
    "local_session",
    "NotAStageError",
    "OldCheckpointError",
    "PayloadLostError",
    "PipelineDefinitionError",
    "StageFailedError",
    "StageResultError",
    "JavaNotFoundError",
    "SparkConnectError",
    "SparkStoppedError",
]

"""A program for a Python with ``pyspark-client`` alone: ``python -m tests.support.spark_client URL DIRECTORY``.

It uses each face of the connector against a server of Spark Connect, and fails if one of them does.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.util import is_remote_only

from persistentqueue import PersistentQueue
from persistentqueue.spark import Progress, SparkConnectError, StageHandoff, acknowledge, local_session, register

ROWS = 100


def use_data_source(spark: SparkSession, root: Path) -> None:
    """Write rows in a batch, read them, and take them as a stream into another queue."""
    register(spark)
    frame = spark.range(ROWS, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
    for _ in range(2):
        writer = frame.write.format("persistentqueue").mode("append")
        writer.options(queue="numbers", txnAppId="nightly", txnVersion=1).save(str(root))
    read = spark.read.format("persistentqueue").option("queue", "numbers").load(str(root))
    assert sorted(int(row.value) for row in read.collect()) == list(range(ROWS))
    stream = spark.readStream.format("persistentqueue").options(queue="numbers", subscription="s").load(str(root))
    writing = stream.select("value").writeStream.format("persistentqueue").option("queue", "copies")
    query = writing.option("checkpointLocation", str(root / "c1")).trigger(availableNow=True).start(str(root))
    assert query.awaitTermination(300)
    assert acknowledge(query) == 1
    with PersistentQueue(root, "copies") as queue, queue.transaction() as session:
        assert sorted(map(int, session.dequeue_many(2 * ROWS))) == list(range(ROWS))
    with PersistentQueue(root, "numbers") as queue:
        assert len(queue.subscribe("s")) == 0


def use_handoff(spark: SparkSession, root: Path) -> None:
    """Put a frame and the batches of a stream, and take all of them."""
    told: list[Progress] = []
    with StageHandoff(spark, root, "stages") as handoff:
        for expected in (True, False):
            assert handoff.put(spark.range(ROWS), marker=("m", 1), progress=told.append) is expected
        assert told
        with handoff.take() as stage:
            assert stage is not None
            assert isinstance(stage.df, DataFrame)
            assert stage.df.count() == stage.manifest.rows == ROWS
        stream = spark.readStream.format("persistentqueue").options(queue="numbers", subscription="t").load(str(root))
        writing: Any = stream.writeStream
        writing = writing.foreachBatch(handoff.put_batch).option("checkpointLocation", str(root / "c2"))
        assert writing.trigger(availableNow=True).start().awaitTermination(300)
        with handoff.take() as stage:
            assert stage is not None
            assert sorted(int(row.value) for row in stage.df.collect()) == list(range(ROWS))
        with handoff.take() as stage:
            assert stage is None


def main(url: str, root: Path) -> None:
    """Use all faces."""
    assert is_remote_only()
    assert find_spec("py4j") is None
    try:
        local_session("client")
    except SparkConnectError as error:
        print(error)
    else:
        raise AssertionError("a client has no Spark to start")
    spark = SparkSession.builder.remote(url).getOrCreate()
    use_data_source(spark, root)
    use_handoff(spark, root)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

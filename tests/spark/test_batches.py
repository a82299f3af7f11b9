"""Functions of ``foreachBatch`` that flush sessions themselves: a transaction over several queues, exactly once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from persistentqueue import PersistentQueue, transaction
from persistentqueue.spark import SparkConnectError, batch_marker
from tests.support.queues import put
from tests.support.spark_modes import IS_CONNECT

pytestmark = pytest.mark.spark


def run(spark: SparkSession, root: Path, function: Callable[[DataFrame, int], None]) -> None:
    """Run a query with this function until the items of the queue "in" are read."""
    rows = spark.readStream.format("persistentqueue").options(queue="in", subscription="s").load(str(root))
    writer = rows.writeStream.foreachBatch(function).option("checkpointLocation", str(root / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)


@pytest.mark.skipif(IS_CONNECT, reason="Spark Connect does not tell the function its query")
def test_a_batch_is_in_several_queues_once(spark: SparkSession, tmp_path: Path) -> None:
    """A batch that fails after its commit, and one that Spark has forgotten, run again, and add nothing to any queue.

    The next batch is added to both.
    """
    with PersistentQueue(tmp_path, "in") as queue:
        put(queue, *[b"%d" % number for number in range(10)])
    results: list[bool] = []
    with PersistentQueue(tmp_path, "even") as even, PersistentQueue(tmp_path, "odd") as odd:

        def split(frame: DataFrame, batch_id: int) -> None:
            items = [bytes(row.value) for row in frame.collect()]
            with transaction(even, odd) as (to_even, to_odd):
                for item in items:
                    (to_odd if int(item) % 2 else to_even).enqueue(item)
                results.append(to_even.flush(marker=batch_marker(frame, batch_id)))
            if len(results) == 1:
                raise RuntimeError("after the commit")

        with pytest.raises(StreamingQueryException, match="after the commit"):
            run(spark, tmp_path, split)
        run(spark, tmp_path, split)
        (tmp_path / "checkpoint" / "commits" / "0").unlink()
        (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink()
        run(spark, tmp_path, split)
        assert results == [True, False, False]
        with PersistentQueue(tmp_path, "in") as queue:
            put(queue, b"10", b"11")
        run(spark, tmp_path, split)
        assert results == [True, False, False, True]
        assert list(even.browse()) == [b"%d" % number for number in range(0, 12, 2)]
        assert list(odd.browse()) == [b"%d" % number for number in range(1, 12, 2)]


def test_a_marker_needs_a_query_of_a_classic_session(spark: SparkSession) -> None:
    """Outside of a streaming query, and under Spark Connect, there is no marker: the error says what to do."""
    if IS_CONNECT:
        with pytest.raises(SparkConnectError, match=r"batch_marker: .*txnAppId.*put_batch"):
            batch_marker(spark.range(1), 0)
    else:
        with pytest.raises(ValueError, match=r"batch_marker is for foreachBatch .*a marker of your own"):
            batch_marker(spark.range(1), 0)

"""Calls of Spark to a data source, by process and time: the facts on which the connector relies, in every Spark
version.

None of the code under test is the connector's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not os.environ.get("EVERY_PLACE"), reason="of Spark, not of ours: make kills asks it"),
]
TASKS = 2


def watched(log: Path) -> type[DataSource]:
    """Return a data source that writes each call into this file.

    Its classes are local, so that the processes of Spark get them by value.
    """

    def note(call: str, **more: Any) -> None:
        task = TaskContext.get()
        if task is not None:
            more["query"] = task.getLocalProperty("sql.streaming.queryId")
            more["batch"] = task.getLocalProperty("streaming.sql.batchId")
        line = json.dumps({"call": call, "pid": os.getpid(), "in a task": task is not None, **more})
        with log.open("a") as file:
            file.write(f"{line}\n")

    class Piece(InputPartition):
        pass

    class Message(WriterCommitMessage):
        def __init__(self) -> None:
            task = TaskContext.get()
            assert task is not None
            self.task = task.taskAttemptId()

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            note("partitions")
            return [Piece(number) for number in range(TASKS)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            note("read")
            yield (partition.value,)

    class StreamReader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            note("initialOffset")
            return {"n": 0}

        def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
            note("latestOffset")
            return {"n": int(log.with_suffix(".end").read_text())}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            note("stream partitions", start=start["n"], end=end["n"])
            return [Piece(number) for number in range(start["n"], end["n"])]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            note("stream read")
            yield (partition.value,)

        def commit(self, end: dict[str, int]) -> None:
            note("source commit", end=end["n"])

    class Writer(DataSourceWriter):
        def __init__(self, fails: bool) -> None:
            self.fails = fails

        def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            note("write")
            return Message()

        def commit(self, messages: list[WriterCommitMessage | None]) -> None:
            note("commit", messages=sorted(message.task for message in messages if isinstance(message, Message)))
            if self.fails:
                raise ValueError("it was durable, and then this")

        def abort(self, messages: list[WriterCommitMessage | None]) -> None:
            note("abort", messages=sorted(message.task for message in messages if isinstance(message, Message)))

    class StreamWriter(DataSourceStreamWriter):
        def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            note("stream write")
            return Message()

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
            note("sink commit", batch=batchId)

    class Watched(DataSource):
        @classmethod
        def name(cls) -> str:
            return "watched"

        def schema(self) -> str:
            note("schema")
            return "n long"

        def reader(self, schema: StructType) -> DataSourceReader:
            note("reader")
            return Reader()

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            note("writer")
            return Writer("fails" in self.options)

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
            note("streamReader")
            return StreamReader()

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
            note("streamWriter")
            return StreamWriter()

    return Watched


def test_what_the_connector_relies_on(spark: SparkSession, tmp_path: Path) -> None:
    """The facts on which the connector relies hold in this Spark version.

    No call comes in the user's process. A commit that raised is aborted, even if it was durable. A task of a query
    knows its query and batch, a task of a job knows none. The offset of a query's last batch is committed only when
    there is a next one.
    """
    log = tmp_path / "calls"
    spark.dataSource.register(watched(log))
    for _ in range(2):
        assert spark.read.format("watched").load().count() == TASKS
    numbers = spark.range(TASKS, numPartitions=TASKS).toDF("n")
    numbers.write.format("watched").mode("append").save()
    with pytest.raises(PySparkException, match="it was durable, and then this"):
        numbers.write.format("watched").mode("append").option("fails", "yes").save()
    for end in (2, 4):
        log.with_suffix(".end").write_text(str(end))
        stream = spark.readStream.format("watched").load().writeStream.format("watched").trigger(availableNow=True)
        query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination()
    calls = [json.loads(line) for line in log.read_text().splitlines()]

    def of(*names: str) -> list[dict[str, Any]]:
        return [call for call in calls if call["call"] in names]

    in_tasks = {"read", "write", "stream read", "stream write"}
    assert {call["call"] for call in calls} > in_tasks | {
        "partitions",
        "commit",
        "abort",
        "sink commit",
        "streamWriter",
    }
    assert os.getpid() not in {call["pid"] for call in calls}
    assert {call["call"] for call in calls if call["in a task"]} == in_tasks

    (first, failed), (aborted,) = of("commit"), of("abort")
    assert len(first["messages"]) == len(failed["messages"]) == TASKS
    assert aborted["messages"] == failed["messages"]

    assert {(call["query"], call["batch"]) for call in of("read", "write")} == {(None, None)}
    streamed = {(call["query"], call["batch"]) for call in of("stream read", "stream write")}
    assert streamed == {(str(query.id), "0"), (str(query.id), "1")}
    assert [call["batch"] for call in of("sink commit")] == [0, 1]
    assert len(of("streamWriter")) >= len(of("sink commit"))  # a new writer for each batch

    planned = {(call["start"], call["end"]) for call in of("stream partitions")}
    assert {(0, 2), (2, 4)} <= planned <= {(0, 2), (2, 2), (2, 4)}  # Spark 4.0 plans its finished batch once more
    assert [call["end"] for call in of("source commit")] == [2]

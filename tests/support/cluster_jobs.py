"""The program of a user on the driver's machine of a cluster: ``python -m tests.support.cluster_jobs agent``.

A test calls its functions by an ``Agent``. The queue is on the driver's own disk, and the payloads where the test says.
At a place that a test has named in the file ``gate``, the program makes the file ``gate.reached``, and waits for
``gate.open``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import BarrierTaskContext
from pyspark.sql import DataFrame, SparkSession

from persistentqueue.spark import StageHandoff, handoff, local_session, register, stages

from .network_disks import SHARED, serve_calls

QUEUES = "/tmp/queues"
"""The directory of the queues, on the driver's own disk."""
GATE = "/tmp/gate"
STREAM = f"{SHARED}/stream"
"""Text files, each of them a micro-batch."""
GATE_SECONDS = 120
START_SECONDS = 200
_sessions: list[SparkSession] = []
_write = stages.write


def open_session(settings: dict[str, str], executors: int) -> None:
    """Start a session, and wait until all executors of the cluster are there."""
    spark = local_session("cluster", settings)
    _sessions.append(spark)
    vars(stages)["write"] = vars(handoff)["write"] = _gated_write
    end = time.monotonic() + START_SECONDS
    while count_executors() < executors:
        if time.monotonic() > end:
            raise TimeoutError("the executors have not come")
        time.sleep(0.05)


def count_executors() -> int:
    """Return the number of executors that the driver knows."""
    context: Any = _sessions[0].sparkContext
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is one of them


def _gated_write(*arguments: Any, **more: Any) -> Any:
    manifest = _write(*arguments, **more)
    pass_gate("payload")
    return manifest


def pass_gate(place: str) -> None:
    """Stop at this place until the test lets the program go on, if the test has named it."""
    with suppress(FileNotFoundError):
        if Path(GATE).read_text() == place:
            Path(f"{GATE}.reached").touch()
            end = time.monotonic() + GATE_SECONDS
            while not Path(f"{GATE}.open").exists():
                if time.monotonic() > end:
                    raise TimeoutError(f"nothing has opened the gate at {place}")
                time.sleep(0.02)
            Path(GATE).unlink()


def _opened(name: str, root: str | None) -> StageHandoff:
    return StageHandoff(_sessions[0], QUEUES, name, root)


def _slowly(seconds: float) -> Any:
    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(seconds)
            yield batch

    return slow


def _numbers(rows: int, tasks: int, seconds: float) -> DataFrame:
    frame = _sessions[0].range(rows, numPartitions=tasks)
    return frame.mapInArrow(_slowly(seconds), "id LONG") if seconds else frame


def put(
    name: str,
    root: str | None,
    rows: int,
    tasks: int = 4,
    seconds: float = 0,
    marker: tuple[str, int] | None = None,
) -> bool:
    """Hand over the numbers below ``rows``; each task takes some time."""
    with _opened(name, root) as owner:
        return owner.put(_numbers(rows, tasks, seconds), marker)


def put_batches(name: str, root: str | None, checkpoint: str) -> int:
    """Hand over each file of the stream as a micro-batch; return the number of batches of this run."""
    with _opened(name, root) as owner:
        source = _sessions[0].readStream.format("text").option("maxFilesPerTrigger", 1).load(STREAM)
        numbers = source.selectExpr("CAST(value AS LONG) AS id")
        writer = numbers.writeStream.foreachBatch(owner.put_batch)  # type: ignore[arg-type]
        writer = writer.option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return len(query.recentProgress)


def take_all(name: str, root: str | None) -> list[list[int]]:
    """Take all stages; return their numbers, in order."""
    taken: list[list[int]] = []
    with _opened(name, root) as owner:
        while True:
            with owner.take() as stage:
                if stage is None:
                    return taken
                taken.append(sorted(row.id for row in stage.df.collect()))
                pass_gate("taking")


def places(paths: list[str]) -> dict[str, list[bool]]:
    """Return, for the address of each executor, which of these paths exist there."""

    def look(_: Any) -> list[Any]:
        return [os.path.exists(path) for path in paths]

    return _on_each_executor(look)


def clocks() -> dict[str, list[float]]:
    """Return, for each executor's address, the time of day of its Java and of its Python, in seconds since 1970."""
    return _on_each_executor(lambda java_seconds: [java_seconds, time.time()])


def _on_each_executor(look: Callable[[float], list[Any]]) -> dict[str, list[Any]]:
    """Return, for each executor's address, what ``look`` finds there. It is given the time of day of Java."""

    def looked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        BarrierTaskContext.get().barrier()  # so that each executor, which has one core, has one of the tasks
        for batch in batches:
            found = json.dumps(look(int(batch.column("java")[0].as_py()) / 1000))
            yield pa.RecordBatch.from_pydict({"address": [os.environ["SPARK_LOCAL_IP"]], "found": [found]})

    count = count_executors()
    asked = "java_method('java.lang.System', 'currentTimeMillis') AS java"
    frame = _sessions[0].range(count, numPartitions=count).selectExpr(asked)
    rows = frame.mapInArrow(looked, "address STRING, found STRING", barrier=True).collect()
    return {row.address: json.loads(row.found) for row in rows}


def write_rows(directory: str, queue: str, options: dict[str, str]) -> None:
    """Write a hundred rows as items of a queue, by the data source."""
    spark = _sessions[0]
    register(spark)
    frame = spark.range(100, numPartitions=4).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("persistentqueue").mode("append").options(queue=queue, **options).save(directory)


def read_rows(directory: str, queue: str, options: dict[str, str]) -> list[int]:
    """Read the items of a queue as rows, by the data source."""
    spark = _sessions[0]
    register(spark)
    frame = spark.read.format("persistentqueue").options(queue=queue, minPartitions="4", **options).load(directory)
    return sorted(int(row.value) for row in frame.collect())


FUNCTIONS = {
    each.__name__: each
    for each in (open_session, count_executors, put, put_batches, take_all, places, clocks, write_rows, read_rows)
}

if __name__ == "__main__":
    assert sys.argv[1] == "agent"
    serve_calls(FUNCTIONS)

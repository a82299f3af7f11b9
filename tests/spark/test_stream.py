"""Streaming reads of queues: each query has a subscription, and gets each of its rows once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

from persistentqueue import PersistentQueue, Producer, QueueNotFoundError, check
from persistentqueue.spark import acknowledge
from persistentqueue.spark.options import StreamOptions, stream_read_options
from persistentqueue.spark.partition_reader import SCHEMA
from persistentqueue.spark.source import QueueDataSource
from persistentqueue.spark.stream import DataLossError, StreamReader, _own, limits
from persistentqueue.storage.publication import LATEST
from tests.support.queues import drain, put, segment_files

pytestmark = pytest.mark.spark


def read(spark: SparkSession, root: Path, queue: str = "in", **options: str | int) -> DataFrame:
    """Return a stream of the queue, for the subscription "spark"."""
    chosen: dict[str, Any] = {"queue": queue, "subscription": "spark", **options}
    return spark.readStream.format("persistentqueue").options(**chosen).load(str(root))


def begin(frame: DataFrame, root: Path, checkpoint: str = "checkpoint") -> StreamingQuery:
    """Begin to write the values of a stream to the queue "out", until everything that is available now is done."""
    return (
        frame.select("value")
        .writeStream.format("persistentqueue")
        .option("queue", "out")
        .option("checkpointLocation", str(root / checkpoint))
        .trigger(availableNow=True)
        .start(str(root))
    )


def to_queue(frame: DataFrame, root: Path, checkpoint: str = "checkpoint") -> StreamingQuery:
    """Write the values of a stream to the queue "out" like ``begin``, and wait for the end of the query."""
    query = begin(frame, root, checkpoint)
    query.awaitTermination(300)
    assert not query.isActive
    return query


def batches(frame: DataFrame, root: Path) -> tuple[StreamingQuery, list[int]]:
    """Run a query like ``to_queue``, and return it with the number of rows of each batch.

    Before Spark 4.2, a run has one batch: then it runs the query once for each batch.
    """
    query = to_queue(frame, root)
    counts = [sum(source["numInputRows"] for source in progress["sources"]) for progress in query.recentProgress]
    found = list(filter(None, counts))
    if limits is None and found:
        later, rest = batches(frame, root)
        return later if rest else query, found + rest
    return query, found


def enqueue(root: Path, *items: bytes, queue: str = "in", **settings: Any) -> None:
    """Open the queue, and enqueue the items with one flush."""
    with PersistentQueue(str(root), queue, **settings) as opened:
        put(opened, *items)


def taken(root: Path, queue: str = "out") -> list[bytes]:
    """Open the queue, and take all items."""
    with PersistentQueue(str(root), queue) as opened:
        return drain(opened)


def left(root: Path, name: str = "spark") -> list[bytes]:
    """Return the items that the subscription has not consumed."""
    with PersistentQueue(str(root), "in") as queue:
        return list(queue.subscribe(name).browse())


def at_most(rows: int) -> dict[str, Any]:
    """Return options for several batches in a run, if this Spark supports that."""
    return {"maxOffsetsPerTrigger": rows} if limits is not None else {}


def numbers(*count: int) -> list[bytes]:
    return [b"%d" % n for n in range(*count)]


def reader(root: Path, **options: Any) -> StreamReader:
    """Return the reader that plans a query, to be called as Spark does."""
    chosen: dict[str, str] = {"path": str(root), "queue": "in", "subscription": "spark", **options}
    made = QueueDataSource(chosen).streamReader(SCHEMA)
    assert isinstance(made, StreamReader)
    return made


# --- from queue to queue ---------------------------------------------------------------------------------------------


def test_from_queue_to_queue(spark: SparkSession, tmp_path: Path) -> None:
    """Each item goes from one queue to another once, over any number of runs.

    Finished batches are consumed, the last one when it is acknowledged, and their space is given back.
    """
    enqueue(tmp_path, *numbers(10), fan_out=True, segment_bytes=1000)
    query = to_queue(read(spark, tmp_path), tmp_path)
    assert taken(tmp_path) == numbers(10)
    assert left(tmp_path) == numbers(10)
    assert acknowledge(query) == 1
    assert left(tmp_path) == []
    enqueue(tmp_path, *[b"%04d" % n + bytes(300) for n in range(20)], segment_bytes=1000)
    query, counts = batches(read(spark, tmp_path, maxOffsetsPerTrigger=7), tmp_path)
    assert counts == [7, 7, 6]
    assert [item[:4] for item in taken(tmp_path)] == [b"%04d" % n for n in range(20)]
    assert len(left(tmp_path)) == 6
    acknowledge(query)
    assert left(tmp_path) == []
    assert len(segment_files(tmp_path / "in")) <= 1
    query = to_queue(read(spark, tmp_path), tmp_path)
    assert taken(tmp_path) == []
    assert check(tmp_path, "in").published <= 1


def test_beside_an_owner(spark: SparkSession, tmp_path: Path) -> None:
    """While this process owns the queue, a query reads its flushed items, and is another consumer than the plain one.

    The owner answers the requests of the query when it looks into the inbox.
    """
    with PersistentQueue(str(tmp_path), "in") as queue:
        put(queue, *numbers(5))
        query = to_queue(read(spark, tmp_path), tmp_path)
        assert queue.subscriptions() == []
        assert len(drain(queue)) == 5
        put(queue, b"5")  # this makes the owner look
        assert queue.subscriptions() == ["spark"]
        query = to_queue(read(spark, tmp_path), tmp_path)
        acknowledge(query)
        assert drain(queue) == [b"5"]
        queue._open()._look(insists=True)
        assert len(queue.subscribe("spark")) == 0
    assert taken(tmp_path) == numbers(6)


def roll_back(root: Path, batch: int) -> None:
    """Let Spark forget that it finished this batch, the last one."""
    (root / "checkpoint" / "commits" / f"{batch}").unlink()
    (root / "checkpoint" / "commits" / f".{batch}.crc").unlink(missing_ok=True)


def test_a_batch_that_is_run_again(spark: SparkSession, tmp_path: Path) -> None:
    """After a rollback of the commit log, the batch runs again with equal rows, and the sink skips it.

    That holds even if other consumers and a trim came meanwhile. If the batch was acknowledged, the query fails; with
    ``failOnDataLoss=false`` it reads the items that are left.
    """
    enqueue(tmp_path, *numbers(4))
    to_queue(read(spark, tmp_path), tmp_path)
    roll_back(tmp_path, 0)
    with PersistentQueue(str(tmp_path), "in") as queue:
        drain(queue)
        queue.trim()
        put(queue, b"4", b"5", b"6")
    query, counts = batches(read(spark, tmp_path), tmp_path)
    assert counts == [4, 3]
    acknowledge(query)
    assert left(tmp_path) == []
    assert taken(tmp_path, "in") == [b"4", b"5", b"6"]  # the items of the plain queue
    roll_back(tmp_path, 1)
    with pytest.raises(StreamingQueryException, match="3 items"):
        to_queue(read(spark, tmp_path), tmp_path)
    to_queue(read(spark, tmp_path, failOnDataLoss="false"), tmp_path)
    assert taken(tmp_path) == numbers(7)


def test_an_older_checkpoint_loses_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """A query that goes on from an older copy of its checkpoint fails before it hands over a batch.

    The queue has had other rows under the number of this batch. The latest checkpoint still works.
    """
    for number in range(3):
        enqueue(tmp_path, b"%d" % number)
        to_queue(read(spark, tmp_path), tmp_path)
        shutil.copytree(tmp_path / "checkpoint", tmp_path / f"copy {number}")
    enqueue(tmp_path, b"3")
    with PersistentQueue(str(tmp_path), "out") as queue:
        before = list(queue.browse())
    frame = read(spark, tmp_path, failOnDataLoss="false")
    with pytest.raises(
        StreamingQueryException, match=r"OldCheckpointError: .*out: the query .* its batch 1, .* batch 2"
    ):
        to_queue(frame, tmp_path, "copy 0")
    assert taken(tmp_path) == before == numbers(3)
    assert not list((tmp_path / "out" / "inbox").iterdir())
    assert left(tmp_path) == numbers(2, 4)
    to_queue(read(spark, tmp_path), tmp_path)
    assert taken(tmp_path) == [b"3"]


def test_two_queries_on_one_queue(spark: SparkSession, tmp_path: Path) -> None:
    """Each of two queries has a subscription and reads all items; one that begins with the latest reads later items."""
    enqueue(tmp_path, *numbers(3))
    late = {"subscription": "late", "startingOffsets": "latest"}
    to_queue(read(spark, tmp_path, **late), tmp_path, "late")
    enqueue(tmp_path, *numbers(3, 5))
    to_queue(read(spark, tmp_path, **late), tmp_path, "late")
    assert taken(tmp_path) == numbers(3, 5)
    to_queue(read(spark, tmp_path, subscription="other"), tmp_path, "other")
    assert taken(tmp_path) == numbers(5)


def test_two_queries_into_one_queue(spark: SparkSession, tmp_path: Path) -> None:
    """If two queries write to one queue at once, it has all items of both."""
    enqueue(tmp_path, *numbers(20))

    names = ("one", "two")
    frames = [read(spark, tmp_path, subscription=name, **at_most(10)) for name in names]
    for query in [begin(frame, tmp_path, name) for frame, name in zip(frames, names, strict=True)]:
        assert query.awaitTermination(300)
    assert sorted(taken(tmp_path)) == sorted(2 * numbers(20))


def test_available_now_ends(spark: SparkSession, tmp_path: Path) -> None:
    """A query of the available items ends with all of them while a producer goes on, in a directory of any name."""
    root = tmp_path / "größer, 100 % & mehr"
    enqueue(root, *numbers(50))
    ended = Event()

    def produce() -> int:
        number = 50
        with Producer(str(root), "in") as producer:
            while True:
                has_ended = ended.wait(0.02)  # first: the last item comes behind the end of the query
                producer.enqueue(b"%d" % number)
                producer.flush()
                number += 1
                if has_ended:
                    return number

    with ThreadPoolExecutor(1) as pool:
        producing = pool.submit(produce)
        try:
            to_queue(read(spark, root, **at_most(40)), root)
        finally:
            ended.set()
    found = taken(root)
    assert found == numbers(len(found))
    assert 50 <= len(found) < producing.result()
    assert taken(root, "in") == numbers(producing.result())


def test_partitions_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """A batch has as many partitions as requested, and its rows have their offsets and times."""
    enqueue(tmp_path, *numbers(1000))
    found = tmp_path / "found"

    def look(frame: DataFrame, _: int) -> None:
        rows = frame.collect()
        assert frame.select(F.spark_partition_id()).distinct().count() >= 4
        assert all(row.timestamp is not None for row in rows)
        with found.open("a") as file:  # Spark Connect calls this function in another process
            file.writelines(f"{row.offset} {bytes(row.value).decode()}\n" for row in rows)

    stream = read(spark, tmp_path, minPartitions=4).writeStream.foreachBatch(look)
    stream.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination(300)
    assert sorted(found.read_text().splitlines()) == sorted(f"{n} {n}" for n in range(1000))


@pytest.mark.skipif(limits is None, reason="Spark asks for the latest offset since 4.2")
def test_the_progress_of_a_query_tells_the_end_of_the_queue(spark: SparkSession, tmp_path: Path) -> None:
    """The progress has the end of the batch and the end of the queue, so that a user sees how far the query is behind.

    A query of the available items that begins with a backlog catches up with it, batch by batch.
    """
    enqueue(tmp_path, *numbers(10))
    query = to_queue(read(spark, tmp_path, maxOffsetsPerTrigger=4), tmp_path)
    told = [source for progress in query.recentProgress for source in progress["sources"] if source["numInputRows"]]
    found = [[_own(source[name]) for name in ("endOffset", "latestOffset")] for source in told]
    assert [[each and each["offset"] for each in pair] for pair in found] == [[4, 10], [8, 10], [10, 10]]


# --- calls of Spark, made by hand ------------------------------------------------------------------------------------


@pytest.mark.skipif(limits is None, reason="Spark speaks of limits since 4.2")
def test_limits_of_a_batch(tmp_path: Path) -> None:
    """A batch has no more rows, and about no more bytes, than the options allow, but at least one row.

    If Spark wants all available rows, these options do not count.
    """
    enqueue(tmp_path, *[bytes(100)] * 50)
    start = reader(tmp_path).initialOffset()

    def end(limit: Any = None, **options: str) -> int:
        planned = reader(tmp_path, **options).latestOffset(start, limit)
        assert planned["items"] == planned["offset"]
        return int(planned["offset"])

    assert start["offset"] == 0
    assert end() == end(limits.ReadAllAvailable(), maxOffsetsPerTrigger="3") == 50
    assert end(limits.ReadMaxRows(3), maxOffsetsPerTrigger="3") == 3
    assert 1 <= end(maxBytesPerTrigger="1") <= 1
    assert 5 <= end(maxBytesPerTrigger="1000") <= 10
    assert end(maxBytesPerTrigger="1000", maxOffsetsPerTrigger="2") == 2
    chosen = reader(tmp_path, maxOffsetsPerTrigger="3").getDefaultReadLimit()
    assert chosen == limits.ReadMaxRows(3)
    assert reader(tmp_path, maxBytesPerTrigger="3").getDefaultReadLimit() == limits.ReadMaxBytes(3)
    assert reader(tmp_path).getDefaultReadLimit() == limits.ReadAllAvailable()


def test_the_available_items_are_those_at_the_start(tmp_path: Path) -> None:
    """After ``prepareForTriggerAvailableNow``, batches end with the items of that moment, whatever is enqueued later.

    The latest offset that is reported goes on growing. Spark before 4.2 calls neither method.
    """
    enqueue(tmp_path, *numbers(5))
    planner = reader(tmp_path, maxOffsetsPerTrigger="3")
    start = planner.initialOffset()
    planner.prepareForTriggerAvailableNow()
    enqueue(tmp_path, *numbers(5, 9))
    ends = []
    for _ in range(3):
        end = planner.latestOffset(start)
        planner.partitions(start, end)
        ends.append(end["offset"])
        start = end
    assert ends == [3, 5, 5]
    assert planner.reportLatestOffset()["offset"] == 9
    assert reader(tmp_path).latestOffset(start)["offset"] == 9


def test_before_spark_tells_where_a_batch_begins(tmp_path: Path) -> None:
    """Without a start offset, as Spark 4.0 and 4.1 ask, a batch begins at the end of the last planned one.

    If none was planned, the batch has no row limit.
    """
    enqueue(tmp_path, *numbers(10))
    first = reader(tmp_path, maxOffsetsPerTrigger="4")
    start = first.initialOffset()
    end = first.latestOffset()
    assert (end["offset"], end["items"]) == (4, 4)
    assert len(first.partitions(start, end)) == 1
    then = first.latestOffset()
    assert (then["offset"], then["items"]) == (8, 4)
    assert first.partitions(end, then)
    assert first.partitions(then, first.latestOffset())
    assert first.latestOffset() == first.latestOffset()
    again = reader(tmp_path)
    end = again.latestOffset()
    assert (end["offset"], end["items"]) == (10, -1)
    assert again.partitions(start, end)
    assert again.latestOffset() == end


def test_where_a_query_begins(tmp_path: Path) -> None:
    """A new query begins at its starting offset, or at the position of its subscription, if there is one.

    A starting offset beyond the end is refused, since the items before it would be read.
    """
    with PersistentQueue(str(tmp_path), "in") as queue:
        put(queue, *numbers(10))
        with queue.session() as session:
            session.dequeue_many(3)
            session.flush()
        assert reader(tmp_path, startingOffsets="earliest", subscription="a").initialOffset()["offset"] == 3
        assert reader(tmp_path, startingOffsets="latest", subscription="b").initialOffset()["offset"] == 10
        assert reader(tmp_path, startingOffsets="5", subscription="c").initialOffset()["offset"] == 5
        assert reader(tmp_path, startingOffsets="10", subscription="d").initialOffset()["offset"] == 10
        with pytest.raises(ValueError, match="in: startingOffsets is 11, but the queue ends at 10: give an offset up"):
            reader(tmp_path, startingOffsets="11", subscription="e").initialOffset()
        put(queue, b"10")
        with queue.subscribe("c").transaction() as session:
            assert session.dequeue_many(2) == [b"5", b"6"]
        assert reader(tmp_path, subscription="c").initialOffset()["offset"] == 7
        assert queue.subscriptions() == [*"abcd"]
        assert [len(queue.subscribe(name)) for name in "abcd"] == [8, 1, 4, 1]
        assert reader(tmp_path).reportLatestOffset()["offset"] == 11


def goes_on(root: Path, offset: Any, reason: str) -> list[int]:
    """Return the offsets that a query at this offset reads next with ``failOnDataLoss=false``.

    Without that option the query must fail.
    """
    with pytest.raises(DataLossError, match=f"subscription 'spark' is at offset {offset['offset']}.*{reason}.*failOn"):
        reader(root).latestOffset(offset)
    lenient = reader(root, failOnDataLoss="false")
    end = lenient.latestOffset(offset)
    split = lenient.partitions(offset, end)
    found = [n for each in split for batch in lenient.read(each) for n in batch.column(1).to_pylist()]
    assert lenient.latestOffset(end) == end
    lenient.commit(end)
    return found


def test_a_queue_that_was_made_anew(tmp_path: Path) -> None:
    """A queue that was replaced by another one or by an older copy is reported.

    Items that were read from the first one are not acknowledged to the other.
    """
    enqueue(tmp_path, *numbers(3))
    shutil.copytree(tmp_path / "in", tmp_path / "copy")
    enqueue(tmp_path, *numbers(3, 5))
    planner = reader(tmp_path)
    start = planner.initialOffset()
    end = planner.latestOffset(start)
    shutil.rmtree(tmp_path / "in")
    enqueue(tmp_path, *numbers(7))
    with PersistentQueue(str(tmp_path), "in") as queue:
        queue.subscribe("spark")
    planner.commit(end)
    query: Any = SimpleNamespace(lastProgress={"sources": [{"endOffset": end}]})
    assert acknowledge(query) == 0
    assert left(tmp_path) == numbers(7)
    with pytest.raises(DataLossError, match="5 items are gone, of the batch that ends at 5"):
        reader(tmp_path).partitions(start, end)
    assert goes_on(tmp_path, end, "another queue has taken the place") == [*range(7)]
    assert left(tmp_path) == []
    shutil.rmtree(tmp_path / "in")
    os.rename(tmp_path / "copy", tmp_path / "in")
    assert goes_on(tmp_path, end, r"the queue ends at 3 \(an older copy") == [0, 1, 2]


def test_a_query_on_a_copy_leaves_the_original_alone(tmp_path: Path) -> None:
    """A query that goes on with a copy of its queue and its checkpoint consumes the items of the copy alone."""
    enqueue(tmp_path / "first", *numbers(3))
    planner = reader(tmp_path / "first")
    start = planner.initialOffset()
    end = planner.latestOffset(start)
    with PersistentQueue(str(tmp_path / "first"), "in") as queue:
        assert queue.subscriptions() == ["spark"]
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    copy = reader(tmp_path / "copy")
    copy.partitions(start, end)
    copy.commit(end)
    assert (left(tmp_path / "first"), left(tmp_path / "copy")) == (numbers(3), [])


def test_a_query_at_a_new_place_names_it(tmp_path: Path) -> None:
    """The first look at a new place ends a batch without rows, whose offset names the new place.

    So ``acknowledge`` reaches the queue that the query reads now, and not the one of an older offset.
    """
    enqueue(tmp_path / "first", *numbers(3))
    planner = reader(tmp_path / "first")
    end = planner.latestOffset(planner.initialOffset())
    with PersistentQueue(str(tmp_path / "first"), "in") as queue:
        assert queue.subscriptions() == ["spark"]
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    assert planner.latestOffset(end) == end
    copy = reader(tmp_path / "copy")
    moved = copy.latestOffset(end)
    assert (moved["path"], moved["subscription"]) == (str(tmp_path / "copy"), "spark")
    assert [each.value for each in copy.partitions(end, moved)] in ([], [[]])
    assert copy.latestOffset(moved) == moved
    query: Any = SimpleNamespace(lastProgress={"sources": [{"endOffset": moved}]})
    assert acknowledge(query) == 1
    assert (left(tmp_path / "first"), left(tmp_path / "copy")) == (numbers(3), [])


def test_a_checkpoint_of_another_subscription(tmp_path: Path) -> None:
    """A query with the checkpoint of another subscription fails, and consumes nothing of its own subscription.

    With ``failOnDataLoss=false`` it begins at the place of its own subscription.
    """
    enqueue(tmp_path, *numbers(3))
    other = reader(tmp_path, subscription="other")
    start = other.initialOffset()
    end = other.latestOffset(start)
    with PersistentQueue(str(tmp_path), "in") as queue:
        queue.subscribe("spark")
    enqueue(tmp_path, *numbers(3, 5))
    with pytest.raises(DataLossError, match=r"'spark' is at offset 0, but its checkpoint is .* subscription 'other'"):
        reader(tmp_path).partitions(start, end)
    reader(tmp_path).commit(end)
    assert left(tmp_path) == numbers(5)
    assert [each.value for each in reader(tmp_path, failOnDataLoss="false").partitions(start, end)] in ([], [[]])
    # Spark 4.0 does not tell the source its place: the beginning of the batch is that of the other subscription.
    untold = reader(tmp_path).latestOffset()
    with pytest.raises(DataLossError, match="subscription 'other'"):
        reader(tmp_path).partitions(end, untold)
    (split,) = reader(tmp_path, failOnDataLoss="false").partitions(end, untold)
    assert [n for batch in reader(tmp_path).read(split) for n in batch.column(1).to_pylist()] == [*range(5)]
    assert goes_on(tmp_path, end, "its checkpoint is that of the subscription 'other'") == [*range(5)]
    assert (left(tmp_path), left(tmp_path, "other")) == ([], numbers(5))


def test_acknowledging_at_a_place_that_is_left(tmp_path: Path) -> None:
    """If the directory was moved since the last batch, the error says to run the query at the new place first."""
    enqueue(tmp_path / "first", *numbers(3))
    planner = reader(tmp_path / "first")
    end = planner.latestOffset(planner.initialOffset())
    os.rename(tmp_path / "first", tmp_path / "moved")
    query: Any = SimpleNamespace(lastProgress={"sources": [{"endOffset": end}]})
    with pytest.raises(QueueNotFoundError, match=r"first/in: no queue here.*moved.*run the query at its new place"):
        acknowledge(query)
    moved = reader(tmp_path / "moved").latestOffset(end)
    query.lastProgress["sources"][0]["endOffset"] = moved
    assert acknowledge(query) == 1
    assert left(tmp_path / "moved") == []


def test_a_subscription_that_is_not_the_query_s_alone(tmp_path: Path) -> None:
    """A query does not silently skip items if its subscription was removed, or if another consumer used it."""
    enqueue(tmp_path, *numbers(10))
    planner = reader(tmp_path)
    end = planner.latestOffset(planner.initialOffset())
    with PersistentQueue(str(tmp_path), "in") as queue:
        assert len(drain(queue)) == 10
        with queue.subscribe("spark").transaction() as session:
            assert session.dequeue_many(4) == numbers(4)
    middle = planner.initialOffset()
    with PersistentQueue(str(tmp_path), "in") as queue, queue.subscribe("spark").transaction() as session:
        session.dequeue_many(2)
    assert goes_on(tmp_path, middle, r"before 6 were consumed by others \(2 items\)") == [6, 7, 8, 9]
    with PersistentQueue(str(tmp_path), "in") as queue:
        queue.unsubscribe("spark")
        put(queue, b"10", b"11")
    assert goes_on(tmp_path, end, "subscription was removed") == [10, 11]
    with PersistentQueue(str(tmp_path), "in") as queue:
        assert queue.subscriptions() == ["spark"]


def test_what_was_consumed_out_of_order_is_no_loss(tmp_path: Path) -> None:
    """Items consumed out of order before the subscription are skipped without an error, at any start of a query or
    batch."""
    with PersistentQueue(str(tmp_path), "in") as queue, queue.session() as session:
        put(queue, *numbers(10))
        assert session.dequeue_many(2) == numbers(2)
        with queue.transaction() as another:
            assert another.dequeue_many(3) == numbers(2, 5)
        session.rollback()
    for starting, expected in (("earliest", [0, 1, 5, 6, 7, 8, 9]), ("3", [5, 6, 7, 8, 9])):
        planner = reader(tmp_path, maxOffsetsPerTrigger="2", startingOffsets=starting, subscription=starting)
        end, found = planner.initialOffset(), []
        for _ in range(4):
            start, end = end, planner.latestOffset(end)
            split = planner.partitions(start, end)
            found += [n for each in split for batch in planner.read(each) for n in batch.column(1).to_pylist()]
            planner.commit(end)
        assert found == expected


def test_a_first_batch_that_is_run_again(tmp_path: Path) -> None:
    """If Spark plans the first batch of a query again from a later position, it has equal rows, or fails."""
    enqueue(tmp_path, *numbers(10))
    planner = reader(tmp_path)
    end = planner.latestOffset(planner.initialOffset())
    planner.commit(end)
    again = reader(tmp_path)
    start = again.initialOffset()
    assert start["offset"] == 10
    (split,) = again.partitions(start, end)  # the plain queue still needs these items
    assert sum(len(batch) for batch in again.read(split)) == 10
    assert len(taken(tmp_path, "in")) == 10
    with pytest.raises(DataLossError, match="10 items are gone, of the batch that ends at 10"):
        again.partitions(start, end)
    with pytest.raises(DataLossError, match="10 items"):
        again.partitions(start, {key: end[key] for key in end if key != "begin"})
    (nothing,) = reader(tmp_path, failOnDataLoss="false").partitions(start, end)
    assert nothing.value == []


def test_a_queue_that_is_not_there(tmp_path: Path) -> None:
    """A queue that does not exist raises an error, and is not made."""
    with pytest.raises(QueueNotFoundError, match=r"in: no queue here.*make the queue first"):
        reader(tmp_path / "nowhere").initialOffset()
    assert list(tmp_path.iterdir()) == []


def test_acknowledging_fails_no_query(tmp_path: Path) -> None:
    """An acknowledgement that is impossible now is made with the next batch."""
    enqueue(tmp_path, *numbers(3))
    planner = reader(tmp_path)
    start = planner.initialOffset()
    end = planner.latestOffset(start)
    os.rename(tmp_path / "in", tmp_path / "away")
    planner.commit(end)
    os.rename(tmp_path / "away", tmp_path / "in")
    planner.commit({**end, "offset": 2})
    assert left(tmp_path) == [b"2"]


def test_a_queue_that_does_not_sync_is_refused(tmp_path: Path) -> None:
    """A queue without syncs is refused, since a power cut may let it use a sequence twice."""
    enqueue(tmp_path, b"0", sync=False)
    queue = PersistentQueue(str(tmp_path), "in", sync=False)
    try:
        put(queue, b"1")
        with pytest.raises(ValueError, match="sync=True"):
            reader(tmp_path).initialOffset()
    finally:
        queue.close()


def test_acknowledging_what_is_no_queue() -> None:
    """A query of other sources, or one without progress, acknowledges nothing."""

    class Query:
        def __init__(self, progress: Any) -> None:
            self.lastProgress = progress

    sources = [{"endOffset": None}, {"endOffset": "7"}, {"endOffset": {"0": 3}}, {"endOffset": "no offset"}]
    queries: list[Any] = [Query(None), Query({"sources": sources}), Query({"sources": []})]
    assert [acknowledge(query) for query in queries] == [0, 0, 0]

    class Progress:
        json = json.dumps({"sources": sources})

    other: Any = Query(Progress())
    assert acknowledge(other) == 0


@pytest.mark.parametrize("told", [dict, json.dumps, str])
def test_an_offset_as_sparks_tell_it(tmp_path: Path, told: Callable[[dict[str, Any]], Any]) -> None:
    """The last offset of a query is understood in each form: as fields, as JSON, or as Python prints it."""
    enqueue(tmp_path, *numbers(4))
    with PersistentQueue(str(tmp_path), "in") as queue:
        queue.subscribe("spark")
    offset = {"path": str(tmp_path), "queue": "in", "subscription": "spark", "offset": 3, "items": 3}
    query: Any = SimpleNamespace(lastProgress={"sources": [{"endOffset": told(offset)}]})
    assert acknowledge(query) == 1
    assert left(tmp_path) == [b"3"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscription": ""}, "needs a subscription"),
        ({"startingOffsets": "now"}, "earliest, latest or an offset"),
        ({"maxOffsetsPerTrigger": "0"}, "above 0"),
        ({"maxBytesPerTrigger": "-1"}, "above 0"),
        ({"endingOffsets": "5"}, "endingoffsets"),
    ],
)
def test_options_that_cannot_be(options: dict[str, str], message: str) -> None:
    """An invalid option is refused before anything is read."""
    with pytest.raises(ValueError, match=message):
        stream_read_options({"path": "p", "subscription": "s", **options})


def test_options_that_can() -> None:
    """The valid options of a stream are accepted."""
    place = stream_read_options({"path": "/p", "subscription": "s", "startingOffsets": "latest"})
    assert (place.start, place.subscription, place.place.path) == (LATEST, "s", "/p")
    assert isinstance(place, StreamOptions)
    with pytest.raises(ValueError, match="reads struct"):
        schema = StructType([*SCHEMA.fields, StructField("more", StringType())])
        QueueDataSource({"path": "/p", "subscription": "s"}).streamReader(schema)

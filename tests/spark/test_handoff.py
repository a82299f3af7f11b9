"""The hand-off of DataFrames between Spark jobs."""

from __future__ import annotations

import datetime
import errno
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import persistentqueue
from persistentqueue import (
    BrokenQueueError,
    CorruptionError,
    DiskFullError,
    PersistentQueue,
    Producer,
    QueueLockedError,
    Session,
    SubscriptionNotFoundError,
)
from persistentqueue.spark import NotAStageError, PayloadLostError, Progress, StageHandoff
from persistentqueue.spark import payload as payload_room
from persistentqueue.spark import stages as stages_room
from persistentqueue.system.disk import DISK
from tests.support.spark_modes import IS_CONNECT, MOUNT

pytestmark = pytest.mark.spark

SOURCES = os.path.dirname(os.path.dirname(os.path.abspath(persistentqueue.__file__)))


def payloads(root: Path) -> set[str]:
    return set(os.listdir(root))


def filled(root: Path) -> set[str]:
    """Return the payloads with a file. Spark Connect deletes files, and leaves their directory."""
    return {name for name in payloads(root) if any((root / name).iterdir()) or not IS_CONNECT}


def numbers(handoff: StageHandoff) -> list[int] | None:
    """Take one stage of a single column, and return its values in order."""
    with handoff.take() as stage:
        return None if stage is None else sorted(row[0] for row in stage.df.collect())


def failing(spark: SparkSession) -> DataFrame:
    """Return a DataFrame that no job can compute."""
    return spark.range(1).select(F.raise_error(F.lit("the job ran")).cast("int").alias("never"))


class FlushError(Exception):
    """Error that the tests inject in place of a commit."""


def refuse(*_: object, **__: object) -> bool:
    raise FlushError


# --- streaming


def stream(spark: SparkSession, root: Path, handoff: StageHandoff) -> None:
    """Run a query that hands over the new files in ``root/in``, one in each batch, until there are none.

    The function of the query runs in this process, or beside the server of Spark Connect. It writes its results, and
    how many rows were computed for them, into files. If ``root/fails`` exists, each of its commits fails.
    """
    computed, results, fails = root / "computed", root / "results", root / "fails"

    def count(number: Any) -> bool:
        with computed.open("a") as file:
            file.write("x")
        return bool(number < 1000)

    counted = F.udf(lambda number: count(number), "boolean")  # noqa: PLW0108 - PySpark warns of some type hints

    def put(frame: DataFrame, batch_id: int) -> None:
        computed.write_text("")
        with pytest.MonkeyPatch.context() as patch:
            if fails.exists():
                patch.setattr(Session, "flush", refuse)
                patch.setattr(Producer, "flush", refuse)
            result = handoff.put_batch(frame.where(counted("id")), batch_id)
        assert len(computed.read_text()) in {0, 5}
        with results.open("a") as file:
            file.write(f"{result}\n")

    source = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).parquet(str(root / "in"))
    writer = source.writeStream.foreachBatch(put).option("checkpointLocation", str(root / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)


def count_waiting(handoff: StageHandoff) -> int:
    """Return how many stages wait, those included that Spark Connect has published and the owner has not taken in."""
    handoff._queue._open().adopt_news()
    return len(list(handoff.waiting()))


def put_results(root: Path) -> list[bool]:
    return [line == "True" for line in (root / "results").read_text().splitlines()]


def test_micro_batches_are_handed_over_once(spark: SparkSession, tmp_path: Path) -> None:
    """Each micro-batch is handed over as one stage, and computed once; a batch without rows is none.

    A batch that Spark repeats, since its commit log was rolled back, is not handed over again. A batch whose hand-off
    failed is handed over when the query is started again.
    """
    for number in range(3):
        spark.range(10 * number, 10 * number + 5).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    with StageHandoff(spark, tmp_path, "q") as handoff:
        stream(spark, tmp_path, handoff)
        assert put_results(tmp_path) == [True] * 3
        (tmp_path / "checkpoint" / "commits" / "2").unlink()
        (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink()
        stream(spark, tmp_path, handoff)
        assert put_results(tmp_path) == [True] * 3 + [False]
        assert count_waiting(handoff) == 3
        spark.range(100, 105).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        (tmp_path / "fails").touch()
        before = payloads(tmp_path / "q+payload")
        with pytest.raises(StreamingQueryException, match="FlushError"):
            stream(spark, tmp_path, handoff)
        (tmp_path / "fails").unlink()
        assert count_waiting(handoff) == 3
        assert len(payloads(tmp_path / "q+payload") - before) == (0 if IS_CONNECT else 1)  # here it may be durable
        stream(spark, tmp_path, handoff)
        assert put_results(tmp_path) == [True] * 3 + [False, True]
        spark.range(1000, 1005).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        before = payloads(tmp_path / "q+payload")
        stream(spark, tmp_path, handoff)
        assert put_results(tmp_path) == [True] * 3 + [False, True, False]
        assert payloads(tmp_path / "q+payload") == before
        found = [numbers(handoff) for _ in range(5)]
    assert sorted(filter(None, found)) == [list(range(start, start + 5)) for start in (0, 10, 20, 100)]
    assert found[-1] is None
    with StageHandoff(spark, tmp_path, "q"):
        assert payloads(tmp_path / "q+payload") == set()


def test_a_batch_of_an_older_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A micro-batch whose query has handed over a later one is refused, and Spark computes nothing.

    The checkpoint is an older copy then, and the batch can have other rows than that of its number.
    """
    with StageHandoff(spark, tmp_path, "q") as handoff:
        for number in range(3):
            spark.range(number, number + 5).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
            stream(spark, tmp_path, handoff)
            shutil.copytree(tmp_path / "checkpoint", tmp_path / f"copy {number}")
        shutil.rmtree(tmp_path / "checkpoint")
        shutil.copytree(tmp_path / "copy 0", tmp_path / "checkpoint")
        with pytest.raises(
            StreamingQueryException, match=r"OldCheckpointError: .*q: the query .* its batch 1, .* batch 2"
        ):
            stream(spark, tmp_path, handoff)
        assert put_results(tmp_path) == [True] * 3
        assert (tmp_path / "computed").read_text() == ""
        assert count_waiting(handoff) == 3


@pytest.mark.skipif(IS_CONNECT, reason="Spark Connect pickles a hand-off for foreachBatch")
def test_a_hand_off_belongs_to_its_process(spark: SparkSession, tmp_path: Path) -> None:
    """In classic Spark a hand-off cannot be pickled, for a task for instance, with or without a session of its own."""
    for own in (spark, None):
        with StageHandoff(own, tmp_path, "q") as handoff, pytest.raises(TypeError, match="one process"):
            pickle.dumps(handoff)


def test_a_batch_without_a_query_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Outside of a streaming query a batch is refused, since there is no query id to remember it by."""
    with StageHandoff(spark, tmp_path, "q") as handoff:
        with pytest.raises(ValueError, match="foreachBatch"):
            handoff.put_batch(spark.range(1), 0)
        assert list(handoff.waiting()) == []


# --- put and take


def test_rows_and_schema_come_back_equal(spark: SparkSession, tmp_path: Path) -> None:
    """A taken stage has the columns, the types and the rows of the put one."""
    noon = datetime.datetime(2013, 7, 4, 12, tzinfo=datetime.timezone.utc)
    rows = [
        (1, "größer", 2.5, Decimal("1.10"), noon, noon.date(), bytearray(b"\0\xff"), ["a", None], {"k": 1}, True),
        (2, None, None, None, None, None, None, None, None, None),
    ]
    schema = (
        "id BIGINT, `name with spaces` STRING, x DOUBLE, price DECIMAL(10,2), at TIMESTAMP, day DATE, raw BINARY, "
        "tags ARRAY<STRING>, counts MAP<STRING,INT>, sure BOOLEAN"
    )
    frame = spark.createDataFrame(rows, schema).repartition(2)
    with StageHandoff(spark, tmp_path, "q") as handoff:
        assert handoff.put(frame) is True
        with handoff.take() as stage:
            assert stage is not None
            assert stage.df.schema == frame.schema
            assert sorted(stage.df.collect()) == sorted(frame.collect())


def test_the_manifest_describes_the_payload(spark: SparkSession, tmp_path: Path) -> None:
    """Schema, files, sizes, bytes, rows and marker of a manifest describe its files."""
    with StageHandoff(spark, tmp_path, "q") as handoff:
        handoff.put(spark.range(100).repartition(3), marker=("m", 7))
        (waiting,) = handoff.waiting()
        with handoff.take() as stage:
            assert stage is not None
            assert stage.manifest == waiting
            directory = tmp_path / "q+payload" / waiting.directory
            assert waiting.files == tuple(sorted(file.name for file in directory.glob("*.parquet")))
            assert waiting.sizes == tuple((directory / name).stat().st_size for name in waiting.files)
            assert (waiting.bytes, waiting.rows, waiting.marker) == (sum(waiting.sizes), 100, ("m", 7))
            assert waiting.schema == spark.range(1).schema.jsonValue()


def test_stages_come_out_in_the_order_they_went_in(spark: SparkSession, tmp_path: Path) -> None:
    """Stages come out in the order of the puts, also those without rows, until none waits."""
    with StageHandoff(spark, tmp_path, "q") as handoff:
        for count in (2, 0, 1):
            handoff.put(spark.range(count))
    with StageHandoff(spark, tmp_path, "q") as handoff:
        assert [numbers(handoff) for _ in range(4)] == [[0, 1], [], [0], None]


def test_an_exception_gives_the_stage_back(spark: SparkSession, tmp_path: Path) -> None:
    """A block that raises has taken nothing: its stage is the next one again, with all its rows."""
    with StageHandoff(spark, tmp_path, "q") as handoff:
        handoff.put(spark.range(3))
        handoff.put(spark.range(5))
        with pytest.raises(ZeroDivisionError), handoff.take():
            raise ZeroDivisionError
        assert numbers(handoff) == [0, 1, 2]


def test_take_waits_for_another_thread(spark: SparkSession, tmp_path: Path) -> None:
    """With a timeout, ``take`` waits until another thread of the process has put a stage."""
    taken: list[list[int] | None] = []

    def take(handoff: StageHandoff) -> None:
        with handoff.take(timeout=None) as stage:
            assert stage is not None
            taken.append([row.id for row in stage.df.collect()])

    with StageHandoff(spark, tmp_path, "q") as handoff:
        taker = threading.Thread(target=take, args=(handoff,))
        taker.start()
        handoff.put(spark.range(1))
        taker.join()
    assert taken == [[0]]


def test_a_failed_job_hands_over_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A failed job raises Spark's own error, hands over nothing, and leaves no file."""
    with StageHandoff(spark, tmp_path, "q") as handoff:
        with pytest.raises(Exception, match="the job ran"):
            handoff.put(failing(spark))
        assert numbers(handoff) is None
        assert payloads(tmp_path / "q+payload") == set()


# --- markers


def test_a_marker_is_put_once(spark: SparkSession, tmp_path: Path) -> None:
    """A put with a recorded version of its marker, or an earlier one, is skipped, and its job does not run."""
    with StageHandoff(spark, tmp_path, "q") as handoff:
        assert handoff.put(spark.range(1), marker=("app", 5)) is True
    with StageHandoff(spark, tmp_path, "q") as handoff:
        assert handoff.put(failing(spark), marker=("app", 5)) is False
        assert handoff.put(failing(spark), marker=("app", 4)) is False
        assert handoff.put(spark.range(2), marker=("app", 6)) is True
        assert handoff.put(spark.range(3), marker=("another", 1)) is True
        assert [numbers(handoff) for _ in range(4)] == [[0], [0, 1], [0, 1, 2], None]


def test_a_marker_overtaken_by_another_thread(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the marker was recorded while the job ran, the put is undone: it returns False, and no payload is left."""
    with StageHandoff(spark, tmp_path, "q") as handoff:
        monkeypatch.setattr(Session, "flush", lambda self, marker=None: bool(self.rollback()))
        assert handoff.put(spark.range(1), marker=("app", 1)) is False
        assert payloads(tmp_path / "q+payload") == set()


@pytest.mark.parametrize("marker", ["app", ("app",), ("app", "1"), (1, 1), ("app", True), ["app", 1], ("app", 1, 2)])
def test_a_wrong_marker_is_refused_before_the_job(spark: SparkSession, tmp_path: Path, marker: Any) -> None:
    """A marker that is no pair of name and version raises ``TypeError`` before any job of Spark."""
    with StageHandoff(spark, tmp_path, "q") as handoff, pytest.raises(TypeError, match="a marker must be a name and"):
        handoff.put(failing(spark), marker=marker)


def test_what_is_no_frame_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """An object that is no DataFrame raises ``TypeError``, and leaves no payload."""
    with StageHandoff(spark, tmp_path, "q") as handoff, pytest.raises(TypeError, match="not an object of type list"):
        handoff.put([1, 2])  # type: ignore[arg-type]
    assert payloads(tmp_path / "q+payload") == set()


@pytest.mark.parametrize("marker", [("app", -1), ("app", 2**64), ("", 1)])
def test_a_marker_out_of_range_is_refused_before_the_job(spark: SparkSession, tmp_path: Path, marker: Any) -> None:
    """A version that no queue can record raises ``ValueError`` before any job of Spark."""
    with StageHandoff(spark, tmp_path, "q") as handoff, pytest.raises(ValueError, match="version"):
        handoff.put(failing(spark), marker=marker)


# --- durability and sweeping


def test_a_payload_that_goes_while_they_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload that its process removes between the listing and the look at it does not fail the sweep."""
    for name in ("stage-a-1", "stage-a-2"):
        (tmp_path / name).mkdir()
    scandir = os.scandir

    @contextmanager
    def scan(path: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scandir(path) as entries:
            found = list(entries)
        (tmp_path / "stage-a-1").rmdir()
        yield iter(found)

    monkeypatch.setattr(os, "scandir", scan)
    assert list(payload_room.payloads(tmp_path, None).names("a")) == ["stage-a-2"]


def test_a_root_in_a_directory_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of payloads may lie in a directory of another user that this process may not list, as a queue may."""

    def open_below(path: str, *arguments: int) -> int:
        if path == str(tmp_path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return DISK.open(path, *arguments)

    monkeypatch.setattr(payload_room, "DISK", replace(DISK, open=open_below))
    (tmp_path / "root").mkdir()
    payload_room.payloads(tmp_path / "root", None).prepare()


def test_the_payload_is_durable_before_the_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the item is flushed, every file of the payload and every directory above it was synced, and all are
    private."""
    synced: set[Path] = set()
    paths: dict[int, Path] = {}
    real_flush = Session.flush

    def opened(path: str, *arguments: int) -> int:
        fd = DISK.open(path, *arguments)
        paths[fd] = Path(path)
        return fd

    def fsync(fd: int) -> None:
        DISK.fsync(fd)
        synced.add(paths[fd])

    def flush(self: Session, marker: tuple[str, int] | None = None) -> bool:
        root = tmp_path / "new" / "root"
        assert {root.parent.parent, root.parent, root, *root.rglob("*")} <= synced
        assert len(synced) > 6
        assert stat.S_IMODE(root.stat().st_mode) == 0o700
        return real_flush(self, marker=marker)

    monkeypatch.setattr(payload_room, "DISK", replace(DISK, open=opened, fsync=fsync))
    monkeypatch.setattr(Session, "flush", flush)
    with StageHandoff(spark, tmp_path, "q", payload_root=tmp_path / "new" / "root") as handoff:
        assert handoff.put(spark.range(9).repartition(2)) is True


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path) -> str:
    """Return a root that is not on the local file system, as far as Spark knows."""
    mounted = spark.conf.get(MOUNT)
    assert mounted is not None
    # A name of its own: the oldest pytest uses the name of a folder again once its test has passed.
    folder = Path(mkdtemp(dir=mounted.removeprefix("file://")))
    (tmp_path / "mounted").symlink_to(folder)
    return f"viewfs://tests/bucket/{folder.name}/payloads/"


def test_payloads_on_another_file_system(spark: SparkSession, tmp_path: Path, elsewhere: str) -> None:
    """With a root of another Hadoop scheme, stages are put, taken, checked, removed and swept like local ones."""
    root = tmp_path / "mounted" / "payloads"
    frame = spark.range(10).repartition(2)
    with StageHandoff(spark, tmp_path, "q", payload_root=elsewhere) as handoff:
        assert handoff.put(frame, marker=("m", 1)) is True
        assert handoff.put(frame, marker=("m", 1)) is False
        (waiting,) = handoff.waiting()
        assert (waiting.rows, len(waiting.files)) == (10, 2)
        assert numbers(handoff) == list(range(10))
        assert filled(root) == set()
        with pytest.raises(Exception, match="the job ran"):
            handoff.put(failing(spark))
        assert filled(root) == set()
        handoff.put(frame)
        (waiting,) = handoff.waiting()
        (root / waiting.directory / waiting.files[0]).unlink()
        with pytest.raises(CorruptionError, match="no file"):
            numbers(handoff)
    orphan = root / waiting.directory.replace(waiting.directory[-32:], "0" * 32)
    for directory in (orphan, root / "somebody else's"):
        directory.mkdir()
        (directory / "part.parquet").write_text("a part of a file")
    with StageHandoff(None, tmp_path, "q", payload_root=elsewhere):
        assert filled(root) == {waiting.directory, "somebody else's"}
    in_work = root / stages_room.new_name(waiting.directory.split("-")[1], (str(uuid.uuid4()), 0))
    in_work.mkdir()
    (in_work / "part.parquet").write_text("a part of a micro-batch")
    StageHandoff(spark, tmp_path, "q", payload_root=elsewhere).close()
    assert in_work.name in filled(root)
    old = time.time() - stages_room.BATCH_GRACE_SECONDS - 60
    os.utime(in_work / "part.parquet", (old, old))
    StageHandoff(spark, tmp_path, "q", payload_root=elsewhere).close()
    assert in_work.name not in filled(root)
    with StageHandoff(spark, tmp_path, "q", payload_root=elsewhere) as handoff:
        assert handoff.skip(waiting)
    with StageHandoff(spark, tmp_path, "q", payload_root=elsewhere) as handoff:
        assert any(
            name.startswith(waiting.directory) and list((root / name).glob("*.parquet")) for name in filled(root)
        )
        assert numbers(handoff) is None
    for scheme in ("nosuch", "s3a"):  # Spark's own jars have neither
        with pytest.raises(OSError, match=rf"{scheme}://bucket.*spark\.jars\.packages.*hadoop-aws"):
            StageHandoff(spark, tmp_path, "p", payload_root=f"{scheme}://bucket/payloads")
    local = StageHandoff(spark, tmp_path, "r", payload_root=f"file://{tmp_path}/local")
    with local as handoff:
        handoff.put(frame)
        assert len(payloads(tmp_path / "local")) == 1


def test_every_subscriber_takes_every_stage(spark: SparkSession, tmp_path: Path) -> None:
    """A payload stays until all subscriptions have taken it, in any order, even over a restart."""
    root = tmp_path / "q+payload"
    with StageHandoff(spark, tmp_path, "q", fan_out=True) as handoff:
        handoff.subscribe("report")
        handoff.subscribe("train")
        handoff.put(spark.range(3))
        handoff.put(spark.range(5))
        assert handoff.subscriptions() == ["report", "train"]
        with handoff.take(subscription="report") as stage:
            assert stage is not None
            assert stage.df.count() == 3
        assert len(payloads(root)) == 2
    with StageHandoff(spark, tmp_path, "q") as handoff:
        assert len(payloads(root)) == 2
        assert [manifest.rows for manifest in handoff.waiting("report")] == [5]
        for rows in (3, 5):
            with handoff.take(subscription="train") as stage:
                assert stage is not None
                assert stage.df.count() == rows
        assert len(payloads(root)) == 1
        with pytest.raises(SubscriptionNotFoundError), handoff.take() as stage:
            pass
        with pytest.raises(SubscriptionNotFoundError, match="nobody"), handoff.take(subscription="nobody") as stage:
            pass
        handoff.subscribe("late", "latest")
        handoff.unsubscribe("report")
        assert payloads(root) == set()
        handoff.put(spark.range(1))
        assert [len(list(handoff.waiting(name))) for name in ("train", "late")] == [1, 1]


def test_few_manifests_are_decoded_for_one_payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether another consumer needs a payload is known without the manifests of other payloads."""
    with StageHandoff(None, tmp_path, "q") as handoff:
        handoff.subscribe("report")
        handoff.subscribe("train")
        names = [stages_room.new_name(handoff._queue.identity[:16]) for _ in range(50)]
        manifests = [stages_room.Manifest(name, {}, (), (), 0, 0, None) for name in names]
        with handoff._queue.session() as session:
            session.enqueue_many(map(stages_room.encode, manifests))
            session.flush()
        room, decoded = tmp_path / "q+payload", 0
        for name in names:
            (room / name).mkdir()

        def decode(item: bytes) -> stages_room.Manifest:
            nonlocal decoded
            decoded += 1
            return stages_room.decode(item)

        monkeypatch.setattr("persistentqueue.spark.handoff.decode", decode)
        for consumer in ("report", "train", None):
            assert payloads(room) == set(names)
            assert handoff.skip(manifests[0], subscription=consumer)
        assert payloads(room) == {*names[1:], f"{names[0]}.lost"}
        assert 0 < decoded < 10


def test_the_path_of_an_unknown_subscription(tmp_path: Path) -> None:
    """The error has the directory of the queue, not the one above it. No session of Spark is needed."""
    with StageHandoff(None, tmp_path, "q") as handoff, pytest.raises(SubscriptionNotFoundError) as caught:
        handoff.waiting("report")
    assert caught.value.path == str(tmp_path / "q")


def test_progress_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """Progress counts the tasks while Spark writes and reads, and the last report has all of them done.

    An exception of a report ends the put, with nothing handed over.
    """
    told: list[Progress] = []
    with StageHandoff(spark, tmp_path, "q") as handoff:
        handoff.put(spark.range(0, 8, 1, 4), progress=told.append)
        assert told[-1] == Progress(4, 4)
        assert all(0 <= each.done <= each.total for each in told)
        told.clear()
        with handoff.take(progress=told.append) as stage:
            assert stage is not None
            assert stage.df.repartition(3).count() == 8
        assert told[-1].done == told[-1].total > 0

        def fails(progress: Progress) -> None:
            raise FlushError

        with pytest.raises(FlushError):
            handoff.put(spark.range(1), progress=fails)
        assert list(handoff.waiting()) == []
        assert payloads(tmp_path / "q+payload") == set()


def test_progress_leaves_settings_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """The job group of a thread, or under Spark Connect the interval of messages, is the user's own after a report."""
    interval = "spark.connect.progress.reportInterval"
    told: list[Progress] = []
    with StageHandoff(spark, tmp_path, "q") as handoff:
        if IS_CONNECT:
            spark.conf.set(interval, "70ms")
        else:
            group = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
            spark.sparkContext.setJobGroup("mine", "the user's own")
        handoff.put(spark.range(1), progress=told.append)
        if IS_CONNECT:
            assert spark.conf.get(interval) == "70ms"
            spark.conf.unset(interval)
        else:
            assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == "mine"
            spark.sparkContext.setLocalProperty("spark.jobGroup.id", group)  # type: ignore[arg-type]
    assert told


def test_a_put_that_surely_failed_leaves_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that surely failed, as on a full disk, commits nothing and removes its payload at once.

    If the outcome is unknown, the payload stays.
    """

    def fails(error: Exception) -> None:
        def flush(*_: object, **__: object) -> bool:
            raise error

        with monkeypatch.context() as patch, pytest.raises(type(error)):
            patch.setattr(Session, "flush", flush)
            handoff.put(spark.range(3))

    with StageHandoff(spark, tmp_path, "q") as handoff:
        fails(DiskFullError("q", errno.ENOSPC, "no space left"))
        assert payloads(tmp_path / "q+payload") == set()
        fails(BrokenQueueError("injected"))
        assert len(payloads(tmp_path / "q+payload")) == 1


def test_the_payload_is_removed_only_after_the_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that fails keeps the payload, and the stage comes back; one that succeeds removes it."""
    root = tmp_path / "q+payload"
    with StageHandoff(spark, tmp_path, "q") as handoff:
        handoff.put(spark.range(4))
        before = payloads(root)
        with monkeypatch.context() as broken:
            broken.setattr(Session, "flush", refuse)
            with pytest.raises(FlushError):
                numbers(handoff)
        assert payloads(root) == before
        assert len(before) == 1
        assert numbers(handoff) == [0, 1, 2, 3]
        assert payloads(root) == set()


def test_orphans_are_swept_at_open(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads of an uncommitted put and of a take that was not cleaned up are swept at open; a waiting one stays."""
    root = tmp_path / "q+payload"
    with StageHandoff(spark, tmp_path, "q") as handoff:
        handoff.put(spark.range(1))
        handoff.put(spark.range(2))
        with monkeypatch.context() as killed:
            killed.setattr(shutil, "rmtree", lambda *_, **__: None)
            assert numbers(handoff) == [0]
            killed.setattr(Session, "flush", refuse)
            with pytest.raises(FlushError):
                handoff.put(spark.range(3))
        assert len(payloads(root)) == 3
    with StageHandoff(spark, tmp_path, "q") as handoff:
        assert payloads(root) == {manifest.directory for manifest in handoff.waiting()}
        assert numbers(handoff) == [0, 1]


def test_payloads_of_micro_batches_that_are_swept() -> None:
    """A payload of a micro-batch stays if a process may still hand it over: the batch is not recorded, and it is young.

    Its stage may wait, or may have been given up; it may belong to another queue, or to the owner.
    """
    mine, query = "0" * 16, str(uuid.uuid4())
    recorded = {query: 7}
    young, old = {}, {}
    for batch in (6, 7, 8):
        young[batch] = stages_room.new_name(mine, (query, batch))
        old[batch] = stages_room.new_name(mine, (query, batch))
    waiting, lost = stages_room.new_name(mine, (query, 5)), stages_room.new_name(mine, (query, 4))
    put = stages_room.new_name(mine)
    others = [stages_room.new_name("1" * 16), stages_room.new_name("1" * 16, (query, 1)), f"{young[6]}-copy", "notes"]
    other_query = stages_room.new_name(mine, (str(uuid.uuid4()), 0))
    names = dict.fromkeys([*young.values(), waiting, lost, f"{lost}.lost", put, *others, other_query], 1_000_000.0)
    names |= dict.fromkeys(old.values(), 1_000_000.0 - stages_room.BATCH_GRACE_SECONDS - 1)
    found = stages_room.unused(names, {waiting}, mine, recorded.get, 1_000_000.0)
    assert sorted(found) == sorted([young[6], young[7], *old.values(), put])


def test_a_look_needs_no_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The waiting stages can be seen without a Spark session; a taken stage is read by the session active then."""
    with StageHandoff(spark, tmp_path, "q") as handoff:
        handoff.put(spark.range(2))
    with StageHandoff(None, tmp_path, "q") as handoff:
        assert [manifest.rows for manifest in handoff.waiting()] == [2]
        assert numbers(handoff) == [0, 1]


def test_nothing_foreign_is_swept(spark: SparkSession, tmp_path: Path) -> None:
    """No file, link or directory of other programs is swept, and no payload of another queue that shares the root."""
    root = tmp_path / "root"
    with StageHandoff(spark, tmp_path, "other", payload_root=root) as other:
        other.put(spark.range(2))
        with StageHandoff(spark, tmp_path, "q", payload_root=root) as handoff:
            handoff.put(spark.range(1))
            (mine,) = handoff.waiting()
            assert numbers(handoff) == [0]
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        like_mine = mine.directory[:-1]
        (root / f"{like_mine}x").mkdir()
        (root / f"{like_mine}{mine.directory[-1]}-copy").mkdir()
        (root / mine.directory).symlink_to(elsewhere)
        (root / "notes").mkdir()
        (root / "stage-notes.txt").write_text("keep")
        before = payloads(root)
        with StageHandoff(spark, tmp_path, "q", payload_root=root):
            assert payloads(root) == before
        assert numbers(other) == [0, 1]


def test_a_queue_of_the_same_path_is_another_one(spark: SparkSession, tmp_path: Path) -> None:
    """Of two queues that had one path, one after the other or on two machines, neither sweeps payloads of the other."""
    root = tmp_path / "shared"
    with StageHandoff(spark, tmp_path / "app", "q", payload_root=root) as handoff:
        handoff.put(spark.range(2))
        (waiting,) = handoff.waiting()
    (tmp_path / "app").rename(tmp_path / "aside")
    with StageHandoff(spark, tmp_path / "app", "q", payload_root=root):
        assert payloads(root) == {waiting.directory}
    with StageHandoff(spark, tmp_path / "aside", "q", payload_root=root) as handoff:
        assert numbers(handoff) == [0, 1]
    assert payloads(root) == set()


def test_a_renewed_copy_leaves_the_payloads_of_the_original(spark: SparkSession, tmp_path: Path) -> None:
    """In a shared root, a copy with a new identity takes, skips and sweeps without removing what the original needs.

    A root of its own has nothing of other queues: there the copy removes what it has taken.
    """
    root = tmp_path / "shared"
    for given in (root, None):
        with StageHandoff(spark, tmp_path, "q", payload_root=given) as handoff:
            handoff.put(spark.range(2))
            handoff.put(spark.range(3))
            before = payloads(given or tmp_path / "q+payload")
        for name in ("copy", "copy+payload") if given is None else ("copy",):
            shutil.copytree(tmp_path / name.replace("copy", "q"), tmp_path / name)
        persistentqueue.repair(tmp_path, "copy", renew=True)
        with StageHandoff(spark, tmp_path, "copy", payload_root=given) as copy:
            assert numbers(copy) == [0, 1]
            if given is None:
                assert len(filled(tmp_path / "copy+payload")) == 1
            else:
                copy.subscribe("late")
                assert copy.skip(next(copy.waiting()))
                copy.unsubscribe("late")
        assert payloads(given or tmp_path / "q+payload") == before
        with StageHandoff(spark, tmp_path, "q", payload_root=given) as handoff:
            assert [numbers(handoff), numbers(handoff)] == [[0, 1], [0, 1, 2]]
        persistentqueue.delete_queue(tmp_path, "q")
        persistentqueue.delete_queue(tmp_path, "copy")


def test_the_whole_tree_can_be_moved(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A moved queue can take its stages, and still recognizes its orphans."""
    with StageHandoff(spark, tmp_path / "old", "q") as handoff:
        handoff.put(spark.range(2))
        with monkeypatch.context() as killed:
            killed.setattr(Session, "flush", refuse)
            with pytest.raises(FlushError):
                handoff.put(spark.range(3))
    (tmp_path / "old").rename(tmp_path / "new place")
    with StageHandoff(spark, tmp_path / "new place", "q") as handoff:
        assert len(payloads(tmp_path / "new place" / "q+payload")) == 1
        assert numbers(handoff) == [0, 1]


# --- refusals


def test_a_damaged_payload_is_reported_and_stays(spark: SparkSession, tmp_path: Path) -> None:
    """A file that is cut, changed or missing raises an error that names it; once repaired, the stage can be taken.

    A stage with a lost file can be skipped.
    """
    with StageHandoff(spark, tmp_path, "q") as handoff:
        handoff.put(spark.range(50).coalesce(1))
        (manifest,) = handoff.waiting()
        file = tmp_path / "q+payload" / manifest.directory / manifest.files[0]
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        with pytest.raises(CorruptionError, match=f"{file.name}.*expected {len(whole)} bytes"):
            numbers(handoff)
        file.write_bytes(bytes([whole[0], whole[1] ^ 1]) + whole[2:])
        with pytest.raises(Exception, match=r"(?i)checksum|not a parquet file"):
            numbers(handoff)
        file.unlink()
        with pytest.raises(CorruptionError, match="found no file"):
            numbers(handoff)
        file.write_bytes(whole)
        assert numbers(handoff) == list(range(50))
        handoff.put(spark.range(7).coalesce(1))
        (manifest,) = handoff.waiting()
        (tmp_path / "q+payload" / manifest.directory / manifest.files[0]).unlink()
        handoff.put(spark.range(3))
        with pytest.raises(PayloadLostError) as caught:
            numbers(handoff)
        assert handoff.skip(caught.value.manifest)
        assert numbers(handoff) == [0, 1, 2]
        assert payloads(tmp_path / "q+payload") == {f"{manifest.directory}.lost"}


@pytest.mark.skipif(IS_CONNECT, reason="jobs of Spark rename nothing: they leave a mark beside the payload")
@pytest.mark.parametrize("is_local", [True, False], ids=["local", "another file system"])
def test_a_payload_may_be_lost_twice(spark: SparkSession, tmp_path: Path, elsewhere: str, is_local: bool) -> None:
    """A payload that was set aside, put back, and is lost once more is set aside beside the one of the first time."""
    root = tmp_path / "local" if is_local else tmp_path / "mounted" / "payloads"
    with StageHandoff(spark, tmp_path, "q", payload_root=root if is_local else elsewhere) as handoff:
        for rows in (2, 3):
            handoff.put(spark.range(rows).repartition(2))
        first, second = handoff.waiting()
        for _ in range(2):  # killed before the commit of its skip, so it waits again
            shutil.copytree(root / first.directory, tmp_path / "backup", dirs_exist_ok=True)
            handoff._payloads.set_aside(first.directory)
            shutil.copytree(tmp_path / "backup", root / first.directory)
        (root / first.directory / first.files[0]).unlink()
        with pytest.raises(PayloadLostError) as caught:
            numbers(handoff)
        assert handoff.skip(caught.value.manifest)
        lost = [f"{first.directory}.lost{number}" for number in ("", "-2", "-3")]
        assert payloads(root) == {second.directory, *lost}
        assert [len(list((root / each).glob("*.parquet"))) for each in lost] == [2, 2, 1]
        assert numbers(handoff) == [0, 1, 2]
    with StageHandoff(spark, tmp_path, "q", payload_root=root if is_local else elsewhere):
        assert payloads(root) == set(lost)


@pytest.mark.parametrize("setting", ["ignoreCorruptFiles", "ignoreMissingFiles"])
def test_a_session_that_reads_past_damage(spark: SparkSession, tmp_path: Path, setting: str) -> None:
    """A session that skips unreadable files does not take a part of a stage for the whole."""
    with StageHandoff(spark, tmp_path, "q") as handoff:
        handoff.put(spark.range(100).repartition(2))
        (manifest,) = handoff.waiting()
        file = tmp_path / "q+payload" / manifest.directory / manifest.files[0]
        spark.conf.set(f"spark.sql.files.{setting}", "true")
        try:
            with pytest.raises(Exception, match=file.name), handoff.take() as stage:
                assert stage is not None
                if setting == "ignoreMissingFiles":
                    file.unlink()
                else:
                    file.write_bytes(bytes(manifest.sizes[0]))
                stage.df.collect()
        finally:
            spark.conf.unset(f"spark.sql.files.{setting}")
        assert list(handoff.waiting()) == [manifest]


def test_another_owner_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """While one hand-off is open, a second one cannot open the queue, and so cannot sweep the files of the first."""
    with StageHandoff(spark, tmp_path, "q"), pytest.raises(QueueLockedError):
        StageHandoff(spark, tmp_path, "q")


def test_a_queue_of_other_things_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Items that are no manifests, or lead out of the root, are refused at open, and nothing is swept."""
    with StageHandoff(spark, tmp_path, "q") as handoff:
        handoff.put(spark.range(1))
        (manifest,) = handoff.waiting()
    fields = json.loads(stages_room.encode(manifest))
    foreign = [
        b"hello",
        b"[]",
        b"{}",
        b"\xff",
        *(
            json.dumps(fields | change).encode()
            for change in (
                {"directory": "../../precious"},
                {"files": ["../precious"]},
                {"format": "persistentqueue stage 2"},
                {"surprise": 1},
            )
        ),
    ]
    for number, item in enumerate(foreign):
        with PersistentQueue(str(tmp_path), f"foreign{number}") as queue, queue.session() as session:
            session.enqueue(item)
            session.flush()
        with pytest.raises(NotAStageError, match="queue of its own"):
            StageHandoff(spark, tmp_path, f"foreign{number}")
        with PersistentQueue(str(tmp_path), f"foreign{number}") as queue:
            assert list(queue.browse()) == [item]


def test_a_root_that_spark_takes_for_a_pattern_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A root that Spark would expand as a pattern is refused at once, not only when a stage is taken."""
    with pytest.raises(ValueError, match="pattern"):
        StageHandoff(spark, tmp_path / "runs[1]", "q")


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_a_missing_package_is_named(tmp_path: Path, missing: str) -> None:
    """The package imports without Spark, and its Spark module names the extra to install."""
    code = f"import sys; sys.modules[{missing!r}] = None; import persistentqueue; import persistentqueue.spark"
    environ = os.environ | {"PYTHONPATH": SOURCES}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith("pip install 'persistentqueue[spark]'")

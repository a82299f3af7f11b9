"""Spark Connect: the hand-off under its limits, and a client without Spark.

The other tests of the connector run in both modes, with ``SPARK_MODE=connect`` and without.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from persistentqueue.spark import (
    Pipeline,
    SparkConnectError,
    SparkStoppedError,
    StageFailedError,
    StageHandoff,
    java,
    local_session,
)
from tests.support.spark_modes import IS_CONNECT, SOURCES, connect, serving, start_server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not IS_CONNECT, reason="of Spark Connect: make connect runs it"),
]
CLIENT = os.environ.get("SPARK_CLIENT_PYTHON", "")
PORT = 15002


def write_numbers(spark: SparkSession, root: Path) -> None:
    spark.range(5).coalesce(1).write.mode("append").parquet(str(root / "in"))


def start(spark: SparkSession, root: Path, handoff: StageHandoff, query: str | None = None) -> StreamingQuery:
    """Start a query that hands over the files in ``root/in``, and then goes on waiting for more."""

    def put(frame: DataFrame, batch_id: int) -> None:
        handoff.put_batch(frame, batch_id, query=query)

    writer = spark.readStream.schema("id BIGINT").parquet(str(root / "in")).writeStream.foreachBatch(put)
    writer = writer if query is None else writer.queryName(query)
    return writer.option("checkpointLocation", str(root / f"checkpoint of {query}")).start()


def test_a_query_is_found_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    """Of several queries in a session, each hands over its own batches, if it is called by its name.

    Without a name the hand-off refuses to guess: the query fails, and can be started again with a name.
    """
    write_numbers(spark, tmp_path)
    with StageHandoff(spark, tmp_path, "one") as one, StageHandoff(spark, tmp_path, "two") as two:
        queries = [start(spark, tmp_path, handoff, name) for handoff, name in ((one, "first"), (two, "second"))]
        nameless = start(spark, tmp_path, one)
        with pytest.raises(StreamingQueryException, match=r"SparkConnectError: .*3 active queries .*queryName"):
            nameless.awaitTermination(120)
        for query, handoff in zip(queries, (one, two), strict=True):
            query.processAllAvailable()
            query.stop()
            with handoff.take() as stage:
                assert stage is not None
                assert stage.manifest.marker == (str(query.id), 0)
                assert stage.df.count() == 5
            with handoff.take() as stage:
                assert stage is None


def test_other_methods_stay_in_the_program(spark: SparkSession, tmp_path: Path) -> None:
    """In the process of ``foreachBatch`` a hand-off has only ``put_batch``; the error says where the others are."""

    def put(_: DataFrame, __: int) -> None:
        list(handoff.waiting())

    write_numbers(spark, tmp_path)
    with StageHandoff(spark, tmp_path, "q") as handoff:
        stream = spark.readStream.schema("id BIGINT").parquet(str(tmp_path / "in")).writeStream.foreachBatch(put)
        query = stream.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        with pytest.raises(StreamingQueryException, match=r"SparkConnectError: waiting: .*only put_batch"):
            query.awaitTermination(120)
        assert handoff.put(spark.range(1))


def test_a_hand_off_that_is_pickled_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    """A copy of a hand-off outside of ``foreachBatch`` hands nothing over: the session has no query, or there is none.

    Its private names are missing, as Python's own protocols expect.
    """
    with StageHandoff(None, tmp_path, "q") as handoff:
        copied = pickle.loads(pickle.dumps(handoff))
        with pytest.raises(SparkConnectError, match="0 active queries"):
            copied.put_batch(spark.range(1), 0)
        copied._spark = None
        with pytest.raises(ValueError, match="foreachBatch"):
            copied.put_batch(spark.range(1), 0)
        assert not hasattr(copied, "_nothing")
        assert list(handoff.waiting()) == []


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[SparkSession]:
    """Yield a session of a server that sees another file system at ``tmp_path/apart``."""
    hidden = tmp_path / "apart"
    hidden.mkdir()
    prefix = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hidden))
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as reason:
        pytest.skip(f"needs mount namespaces, and so root: {reason}")
    (tmp_path / "server").mkdir()
    with serving(tmp_path / "server", {}, prefix) as url:
        session = connect(url)
        yield session
        session.stop()


def test_a_server_that_does_not_see_the_files(apart: SparkSession, tmp_path: Path) -> None:
    """If the server has other files under the path of the queue, a put and a batch fail with errors that say so.

    Nothing is handed over, and the server keeps no rows.
    """
    root = tmp_path / "apart"
    write_numbers(apart, tmp_path)
    with StageHandoff(apart, root, "q") as handoff:
        with pytest.raises(FileNotFoundError, match="this process sees no file of Spark here"):
            handoff.put(apart.range(1))
        address = f"file://{root}/q+payload/*"
        assert apart.read.format("binaryFile").load(address).count() == 0
        query = start(apart, tmp_path, handoff)
        with pytest.raises(StreamingQueryException, match=r"SparkConnectError: .*does not see the queue"):
            query.awaitTermination(120)
        assert list(handoff.waiting()) == []
        assert list((root / "q+payload").iterdir()) == []


@pytest.mark.filterwarnings("ignore:.RETRIES_EXCEEDED")
def test_a_killed_server_costs_no_input(tmp_path: Path) -> None:
    """If the server of a session is killed in a stage, the run of the pipeline ends, and all inputs wait."""
    with (tmp_path / "server.log").open("wb") as log:
        server, url = start_server(tmp_path / "server", {"spark.master": "local[1]"}, log)
    try:
        spark = connect(url)
        pipeline = Pipeline(spark, tmp_path / "flow")

        @pipeline.stage(source="raw", target="out", max_attempts=2)
        def work(raw: DataFrame) -> DataFrame:
            server.kill()
            server.wait()
            return raw

        with pipeline:
            for number in range(2):
                pipeline.put("raw", spark.range(number))
            with pytest.raises(StageFailedError) as raised:
                pipeline.run(until="drained")
            assert isinstance(raised.value.__cause__, SparkStoppedError)
            assert (pipeline.stats().edges[0].waiting, pipeline.dead_letters("work")) == (2, [])
        spark.client.close()
    finally:
        server.kill()
        server.wait()


@pytest.mark.skipif(
    not CLIENT, reason="SPARK_CLIENT_PYTHON names no Python with pyspark-client: make connect makes one"
)
def test_a_client_alone(tmp_path: Path) -> None:
    """A program with ``pyspark-client`` alone, without Java, py4j and Spark, can use each face of the connector."""
    (tmp_path / "server").mkdir()
    with serving(tmp_path / "server", {}) as url:
        command = [CLIENT, "-W", "error", "-m", "tests.support.spark_client", url, str(tmp_path / "queues")]
        done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert "contains no Spark to start" in done.stdout


def test_a_client_has_no_spark_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``pyspark-client`` alone, ``local_session`` raises an error that says what to do."""
    monkeypatch.setattr(java, "is_remote_only", lambda: True)
    with pytest.raises(SparkConnectError, match=r"SparkSession\.builder\.remote"):
        local_session("nothing")


LOCAL = """
from persistentqueue.spark import StageHandoff, local_session
spark = local_session("connected", {"spark.api.mode": "connect"})
with StageHandoff(spark, "queues", "q") as handoff:
    handoff.put(spark.range(7))
    with handoff.take() as stage:
        print(type(stage.df).__module__, stage.df.count())
spark.stop()
"""


def test_a_local_session_of_spark_connect(tmp_path: Path) -> None:
    """``local_session`` starts a server of Spark Connect if the settings say so, without a warning."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            pytest.skip(f"another server listens at the port {PORT}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    command = [sys.executable, "-W", "error::UserWarning", "-c", LOCAL]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "pyspark.sql.connect.dataframe 7\n"), done.stderr

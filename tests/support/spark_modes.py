"""The Spark of the tests: classic, or with ``SPARK_MODE=connect`` a server of Spark Connect and a session of it."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyspark
from pyspark.sql import SparkSession

import persistentqueue
from persistentqueue.spark import java, local_session

IS_CONNECT = os.environ.get("SPARK_MODE") == "connect"
IS_CLUSTER = os.environ.get("SPARK_MODE") == "cluster"
"""Whether this program runs on the driver's machine of a cluster: see ``cluster``."""
SOURCES = os.path.dirname(os.path.dirname(os.path.abspath(persistentqueue.__file__)))
SPARK = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
MOUNT = "spark.hadoop.fs.viewfs.mounttable.tests.link./bucket"
"""The setting with the local directory that Spark sees as ``viewfs://tests/bucket``: not local, as far as it knows."""
_START_SECONDS = 120


def java_home(scratch: Path) -> Path:
    """Make the home of a Java that starts Spark, and return it. Raises ``JavaNotFoundError``."""
    home = scratch / "java"
    if not home.exists():
        home.mkdir(parents=True)
        java._write_launcher(home / "bin" / "java", java._find_java(os.environ))
        (home / "log4j2.properties").write_text(java._QUIET_LOG)
    return home


def start_server(
    scratch: Path, config: Mapping[str, str], log: IO[bytes], prefix: tuple[str, ...] = ()
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server of Spark Connect as a process of its own; return it with its address when it listens."""
    home = java_home(scratch)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = (
        f"-Dlog4j2.configurationFile={home / 'log4j2.properties'} {config.get('spark.driver.extraJavaOptions', '')}"
    )
    settings = {
        "spark.master": "local[2,2]",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        **config,
        "spark.driver.extraJavaOptions": options,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    scratch.mkdir(exist_ok=True)
    file = scratch / "spark-defaults.conf"
    file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    command = [*prefix, str(SPARK / "bin" / "spark-submit"), "--properties-file", str(file)]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = {"JAVA_HOME": str(home), "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": SOURCES}
    process = subprocess.Popen(
        command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=scratch
    )
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, f"sc://127.0.0.1:{port}"
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise RuntimeError(f"the server does not listen: {shlex.join(command)}")


def connect(url: str) -> SparkSession:
    """Return a session of a server. It tries for seconds to reach a server that is gone, and not for ten minutes."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark: Any = SparkSession.builder.remote(url).create()
    spark.client.set_retry_policies([DefaultPolicy(max_retries=4, max_backoff=1000)])
    return spark  # type: ignore[no-any-return]


@contextmanager
def serving(scratch: Path, config: Mapping[str, str], prefix: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the address of a server that ends with the block."""
    with (scratch / "server.log").open("wb") as log:
        process, url = start_server(scratch, config, log, prefix)
        try:
            yield url
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def session(scratch: Path) -> Iterator[SparkSession]:
    """Yield the one session of all tests of a process; each task is tried twice."""
    (scratch / "mounted").mkdir()
    config = {
        "spark.master": "local[2,2]",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch}",
        "spark.local.dir": f"{scratch}",
        "spark.sql.warehouse.dir": f"{scratch / 'warehouse'}",
        "spark.sql.session.timeZone": "UTC",
        MOUNT: f"file://{scratch / 'mounted'}",
    }
    if IS_CONNECT:
        with serving(scratch, config) as url:
            spark = connect(url)
            yield spark
            spark.stop()
        return
    # PySpark starts Java by a fork. Newer Pythons deprecate a fork in a process that has threads, such as those of
    # NumPy.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        spark = local_session("tests", config)
    yield spark
    spark.stop()


@contextmanager
def after_first_task(spark: SparkSession, tell: Callable[[], None]) -> Iterator[None]:
    """Call a function once, when Spark knows that a task of the job in the block is done."""
    told = threading.Event()

    def hear(stages: Any, **_: Any) -> None:
        if not told.is_set() and any(stage.num_completed_tasks for stage in stages):
            told.set()
            tell()

    def watch() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not any(getattr(tracker.getStageInfo(n), "numCompletedTasks", 0) for n in tracker.getActiveStageIds()):
            time.sleep(0.01)
        tell()

    if IS_CONNECT:
        spark.conf.set("spark.connect.progress.reportInterval", "20ms")
        spark.registerProgressHandler(hear)  # type: ignore[arg-type]
        yield
        spark.removeProgressHandler(hear)  # type: ignore[arg-type]
        spark.conf.unset("spark.connect.progress.reportInterval")
        return
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        yield
        watching.result(60)

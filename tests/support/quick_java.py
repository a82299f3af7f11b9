"""A Java that starts Spark fast: its options, and an archive of the classes that Spark loads.

``python -m tests.support.quick_java`` makes the archive in the environment of its Python, as the ``Makefile`` does.
Without an archive, or with one of another Java or another Spark, Java loads the classes as always.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix, "spark.jsa")
# The Java of a test lives for seconds. It should start fast, without optimizing for long runs and without verifying the
# 20,000 classes that Spark loads. Spark itself runs with the settings that users have.
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:MetaspaceSize=300m"
UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_END_SECONDS = 120.0


def options() -> str:
    """Return the options of a Java that lives for seconds."""
    archive = [f"-XX:SharedArchiveFile={ARCHIVE} {_QUIET}"] if ARCHIVE.exists() else []
    return " ".join([QUICK, UNVERIFIED, *archive])


def make_archive() -> None:
    """Run a small Spark that loads what tests load, and let its Java write the archive when it ends."""
    from persistentqueue import PersistentQueue
    from persistentqueue.spark import StageHandoff, local_session, register

    with tempfile.TemporaryDirectory(dir=sys.prefix) as directory:
        made = Path(directory, ARCHIVE.name)
        os.environ["JDK_JAVA_OPTIONS"] = f"{QUICK} {UNVERIFIED} -XX:ArchiveClassesAtExit={made} {_QUIET}"
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
        made.rename(ARCHIVE)


if __name__ == "__main__":
    from persistentqueue.spark import JavaNotFoundError

    try:
        make_archive()
    except JavaNotFoundError as reason:
        print(reason)

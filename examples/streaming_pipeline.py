"""Measurements go through two queues and a streaming query of Spark between them, each of them once.

    python examples/streaming_pipeline.py --directory demo

A sensor, in a process of its own, enqueues numbered measurements into the queue "raw". A query reads them as they come,
drops lines that are no measurement, and turns Fahrenheit into Celsius. It writes the rest to the queue "clean". The
data source ``persistentqueue`` reads and writes both queues, and no process has to own them meanwhile. When the sensor
is done, the query processes the remaining measurements and is stopped. Then its last batch is acknowledged, so that the
space is given back.

Kill any of the processes at any moment (``kill -9``, Java too) and start it again: each measurement is in "clean" once.

- The sensor enqueues its measurements with markers. After a restart it begins with the first one again, and the queue
  skips those that it has.
- Spark records in the checkpoint which rows each micro-batch reads, before the batch begins, and its end. After a kill
  in between, it runs the batch again. The source then reads the very same items. The sink has the number of the batch
  in its transaction, and does nothing if it has that batch.

Everything is in ``--directory``; delete it to start over. It needs ``pip install 'persistentqueue[spark]'``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own manual uses
from pyspark.sql.streaming.query import StreamingQuery

from persistentqueue import PersistentQueue, Producer
from persistentqueue.spark import acknowledge, local_session, register

RAW, CLEAN = "raw", "clean"
SUBSCRIPTION = "cleaning"
PER_FLUSH = 10
BROKEN_EVERY = 25
"""One in this number of lines of the sensor is no measurement."""


# ----------------------------------------------------------------------------------------------------------- the sensor


def run_sensor(queues: Path, items: int, pause_seconds: float) -> None:
    """Enqueue all measurements, some in each transaction, which is durable when ``flush`` returns."""
    with Producer(queues, RAW) as sensor:
        for first in range(0, items, PER_FLUSH):
            sensor.enqueue_many(measurement(number) for number in range(first, min(first + PER_FLUSH, items)))
            if sensor.flush(marker=("sensor", first + PER_FLUSH)):
                time.sleep(pause_seconds)
    print(f"sensor: all {items} measurements are in", flush=True)


def measurement(number: int) -> bytes:
    if number % BROKEN_EVERY == 0:
        return b"no measurement: %d" % number
    return json.dumps({"number": number, "fahrenheit": 32 + 9 * (number % 50)}).encode()


# ------------------------------------------------------------------------------------------------------------ the query


def start_query(spark: SparkSession, directory: Path) -> StreamingQuery:
    """Start a query from "raw" to "clean", with a batch whenever there are new items."""
    queues = str(directory / "queues")
    Producer(queues, RAW).close()  # makes the queue if the sensor has not yet: the query fails without it
    raw = spark.readStream.format("persistentqueue").options(queue=RAW, subscription=SUBSCRIPTION)
    writer = clean(raw.option("maxOffsetsPerTrigger", 100).load(queues)).writeStream.format("persistentqueue")
    writer = writer.option("queue", CLEAN).option("checkpointLocation", str(directory / "checkpoint"))
    return writer.trigger(processingTime="50 milliseconds").start(queues)


def clean(raw: DataFrame) -> DataFrame:
    """Return the measurements in Celsius, as one column, named value."""
    parsed = raw.select(F.from_json(F.col("value").cast("string"), "number LONG, fahrenheit DOUBLE").alias("it"))
    celsius = parsed.where("it.number IS NOT NULL").selectExpr("it.number", "(it.fahrenheit - 32) * 5 / 9 AS celsius")
    return celsius.select(F.to_json(F.struct("number", "celsius")).alias("value"))


def run(directory: Path, items: int, pause_seconds: float) -> None:
    """Start the sensor and the query, and end when everything has gone through."""
    scratch = (directory / "scratch").resolve()
    shutil.rmtree(scratch, ignore_errors=True)  # left by a run that was killed
    scratch.mkdir()
    # Files that Spark needs while it runs stay inside the directory, too.
    places = {"spark.local.dir": f"{scratch}", "spark.sql.warehouse.dir": f"{scratch / 'warehouse'}"}
    java_options = f'"-Djava.io.tmpdir={scratch}" -XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1'
    spark = local_session("streaming pipeline", {"spark.driver.extraJavaOptions": java_options} | places)
    register(spark)
    query = start_query(spark, directory)
    print("query: started", flush=True)
    command = [sys.executable, __file__, f"--directory={directory}", f"--items={items}", f"--pause={pause_seconds}"]
    with subprocess.Popen([*command, "--part=sensor"]) as sensor:
        done = -1
        while sensor.poll() is None:
            done = report(query, done)
            time.sleep(0.05)
    if sensor.returncode:
        sys.exit("the sensor failed")
    query.processAllAvailable()
    report(query, done)
    query.stop()
    acknowledge(query)
    spark.stop()
    print("query: everything is done, and acknowledged", flush=True)
    shutil.rmtree(scratch, ignore_errors=True)


def report(query: StreamingQuery, done: int) -> int:
    """Print the batches of the query after the one of this number; return the number of the last one."""
    for progress in query.recentProgress:
        if progress["numInputRows"] and progress["batchId"] > done:
            done = int(progress["batchId"])
            print(f"query: batch {done} had {progress['numInputRows']} measurements", flush=True)
    return done


# ----------------------------------------------------------------------------------------------------------- the result


def show(queues: Path, items: int) -> None:
    """Compare the content of "clean", which another program may consume, and count the rest of "raw"."""
    with PersistentQueue(queues, CLEAN) as queue:
        numbers = Counter(json.loads(item)["number"] for item in queue.browse())
    with PersistentQueue(queues, RAW) as queue:
        left = len(queue.subscribe(SUBSCRIPTION))
    expected = Counter(number for number in range(items) if number % BROKEN_EVERY)
    print(f"{numbers.total()} of {items} measurements are clean, {items - expected.total()} were none, {left} are left")
    if numbers != expected:
        sys.exit(f"lost: {sorted((expected - numbers).elements())}, twice: {sorted((numbers - expected).elements())}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=Path("demo"), help="directory of all files (default: demo)")
    parser.add_argument(
        "--part", choices=("sensor", "all"), default="all", help="run the sensor alone, or all processes (default)"
    )
    parser.add_argument("--items", type=int, default=1000, help="number of measurements (default: 1000)")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between ten of them (default: 0.05)")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    queues = options.directory / "queues"
    if options.part == "sensor":
        run_sensor(queues, options.items, options.pause)
    else:
        run(options.directory, options.items, options.pause)
        show(queues, options.items)


if __name__ == "__main__":
    main()

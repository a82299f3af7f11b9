"""Measurements go through two queues and a streaming query of Spark between them, each of them once.

    python examples/streaming_pipeline.py --directory demo

A sensor, in a process of its own, puts numbered measurements into the queue "raw". A query reads them as they come,
throws away what is no measurement, turns Fahrenheit into Celsius, and writes the rest to the queue "clean". Both queues
are read and written by the data source ``persistentqueue``, and nobody has to own them meanwhile. When the sensor is
done, and the query has done all that it sent, it is stopped, and what it has read is acknowledged, so that its space is
given back.

Kill any of it wherever you like (``kill -9``, Java too), start it again, and each measurement is in "clean" once:

- The sensor puts its measurements in with markers, and begins from the first one again: what is there is skipped.
- Spark writes down, in the checkpoint, what each micro-batch reads before it begins, and that it is done when it is.
  Killed in between, it runs the same batch again: the source reads the very same items, and the sink, which has the
  number of the batch in its transaction, does nothing if it has had them.

Everything lies in ``--directory``; delete it to begin anew. It needs ``pip install 'persistentqueue[spark]'``.
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
"""Each so manieth line of the sensor is none."""


# ----------------------------------------------------------------------------------------------------------- the sensor


def run_sensor(queues: Path, items: int, pause_seconds: float) -> None:
    """Put all measurements in, some in each transaction, which is durable when ``flush`` returns."""
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
    """From "raw" to "clean", a batch whenever there is something."""
    queues = str(directory / "queues")
    Producer(queues, RAW).close()  # makes the queue, if the sensor never did: a misspelt one is none to wait for
    raw = spark.readStream.format("persistentqueue").options(queue=RAW, subscription=SUBSCRIPTION)
    writer = clean(raw.option("maxOffsetsPerTrigger", 100).load(queues)).writeStream.format("persistentqueue")
    writer = writer.option("queue", CLEAN).option("checkpointLocation", str(directory / "checkpoint"))
    return writer.trigger(processingTime="50 milliseconds").start(queues)


def clean(raw: DataFrame) -> DataFrame:
    """What is a measurement, in Celsius, as one column, named value."""
    parsed = raw.select(F.from_json(F.col("value").cast("string"), "number LONG, fahrenheit DOUBLE").alias("it"))
    celsius = parsed.where("it.number IS NOT NULL").selectExpr("it.number", "(it.fahrenheit - 32) * 5 / 9 AS celsius")
    return celsius.select(F.to_json(F.struct("number", "celsius")).alias("value"))


def run(directory: Path, items: int, pause_seconds: float) -> None:
    """Start the sensor and the query, and end when everything has gone through."""
    scratch = (directory / "scratch").resolve()
    shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed
    scratch.mkdir()
    # What Spark needs on disk while it runs stays inside the directory, too.
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
    """Print what the query has done since the batch of this number; the number of the last one."""
    for progress in query.recentProgress:
        if progress["numInputRows"] and progress["batchId"] > done:
            done = int(progress["batchId"])
            print(f"query: batch {done} had {progress['numInputRows']} measurements", flush=True)
    return done


# ----------------------------------------------------------------------------------------------------------- the result


def show(queues: Path, items: int) -> None:
    """Look at what is in "clean", which some other program may consume, and what is left of "raw"."""
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
    parser.add_argument("--directory", type=Path, default=Path("demo"), help="where everything lies (default: demo)")
    parser.add_argument("--part", choices=("sensor", "all"), default="all", help="be the sensor alone")
    parser.add_argument("--items", type=int, default=1000, help="how many measurements there are (default: 1000)")
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

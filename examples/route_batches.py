"""A stream is split over two queues, and each micro-batch is in both of them or in neither, exactly once.

    python examples/route_batches.py --directory demo

Readings wait in the queue "readings". A streaming query takes them, some in each micro-batch. Its function of
``foreachBatch`` enqueues the normal ones to "normal" and the others to "alarms", in one transaction over both queues.
The marker of the transaction has the id of the query and the number of the batch.

Kill it at any moment (``kill -9``, Java too), and start it again. If Spark does not know that a batch was done, it
calls the function once more. The flush then finds the marker, and commits nothing. So each reading is in one of the
queues once.

The rows of a batch pass through this process. For batches of many gigabytes, write to each queue by the data source
with ``txnAppId`` and ``txnVersion``: each queue then has the batch once, but one of them may have it earlier.

Everything is in ``--directory``; delete it to start over. It needs ``pip install 'persistentqueue[spark]'``.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from persistentqueue import PersistentQueue, Producer, transaction
from persistentqueue.spark import acknowledge, batch_marker, local_session, register

LIMIT = 90
"""The largest value of a normal reading."""


def enqueue_readings(queues: Path, count: int) -> None:
    """Enqueue the readings, once: after a restart the marker shows that they were enqueued."""
    with Producer(queues, "readings") as producer:
        producer.enqueue_many(json.dumps({"number": n, "value": n % 101}).encode() for n in range(count))
        producer.flush(marker=("readings", 1))


def route(spark: SparkSession, directory: Path, per_batch: int) -> None:
    """Split the readings that are there over both queues, batch by batch."""
    queues = str(directory / "queues")
    register(spark)
    with PersistentQueue(queues, "normal") as normal, PersistentQueue(queues, "alarms") as alarms:

        def split(frame: DataFrame, batch_id: int) -> None:
            readings = [bytes(row.value) for row in frame.select("value").collect()]
            with transaction(normal, alarms) as (to_normal, to_alarms):
                for reading in readings:
                    (to_alarms if json.loads(reading)["value"] > LIMIT else to_normal).enqueue(reading)
                is_new = to_normal.flush(marker=batch_marker(frame, batch_id))
            print(f"batch {batch_id}: {len(readings)} readings, {'routed' if is_new else 'known'}", flush=True)

        rows = spark.readStream.format("persistentqueue").options(queue="readings", subscription="routing")
        writer = rows.option("maxOffsetsPerTrigger", per_batch).load(queues).writeStream.foreachBatch(split)
        writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        acknowledge(query)


def main() -> None:
    """Route all readings, or the rest of them after a restart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=Path("demo"), help="directory of all files (default: demo)")
    parser.add_argument("--readings", type=int, default=1000, help="number of readings (default: 1000)")
    parser.add_argument("--per-batch", type=int, default=250, help="readings in a micro-batch (default: 250)")
    options = parser.parse_args()
    directory = options.directory.resolve()
    scratch = directory / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)  # left by a run that was killed
    scratch.mkdir(parents=True)
    enqueue_readings(directory / "queues", options.readings)
    # Files that Spark needs while it runs stay inside the directory, too.
    places = {"spark.local.dir": f"{scratch}", "spark.sql.warehouse.dir": f"{scratch / 'warehouse'}"}
    java_options = f'"-Djava.io.tmpdir={scratch}" -XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1'
    spark = local_session("route batches", {"spark.driver.extraJavaOptions": java_options} | places)
    route(spark, directory, options.per_batch)
    spark.stop()
    shutil.rmtree(scratch, ignore_errors=True)
    with (
        PersistentQueue(directory / "queues", "normal") as normal,
        PersistentQueue(directory / "queues", "alarms") as alarms,
    ):
        print(f"{len(normal)} readings are normal, {len(alarms)} are alarms")


if __name__ == "__main__":
    main()

"""A declarative pipeline of Spark 4.1 or later, from one queue to another: each order becomes one invoice, once.

    spark-pipelines run        # in this directory, after the paths in spark-pipeline.yml are set

Each run takes the orders that are there into the sink ``invoices``, which is a queue. The flow is a streaming query.
Each of its micro-batches is one transaction of the sink, with the query's id and the number of the batch as its marker.
So a run that is killed anywhere, and started again, adds no invoice twice.

The queues may have any owner meanwhile, or none. The queue "orders" must exist. A run consumes a batch when it plans
the next one. So the orders of the last batch stay in the queue until the next run.

It needs ``pip install 'persistentqueue[spark]' 'pyspark[pipelines]'``, also in the Python of the server's workers.
"""

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession

from persistentqueue.spark import register

spark = SparkSession.active()
queues = str(spark.conf.get("invoices.queues"))
register(spark)

pipelines.create_sink("invoices", "persistentqueue", {"path": queues, "queue": "invoices"})


@pipelines.append_flow(target="invoices")
def write_invoices() -> DataFrame:
    orders = spark.readStream.format("persistentqueue").options(queue="orders", subscription="invoices").load(queues)
    return orders.selectExpr("concat('invoice of ', CAST(value AS STRING)) AS value")

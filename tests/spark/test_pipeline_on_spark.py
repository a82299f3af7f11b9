"""Pipelines of stages on Spark itself; ``test_pipeline`` has all that needs no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from persistentqueue.spark import Pipeline, Progress, StageFailedError, StageHandoff
from tests.support.spark_modes import IS_CONNECT

pytestmark = pytest.mark.spark


def test_stages_run_in_parallel_and_report_their_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """Stages fan out, join and count on Spark, two at a time. Each schema is that of its DataFrame.

    ``progress`` gets the tasks of each stage, and nothing is left over.
    """
    pipeline = Pipeline(spark, tmp_path / "flow")
    seen: dict[str, Progress] = {}

    @pipeline.stage(source="raw", target=["even", "odd"])
    def split(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
        return frame.where("id % 2 = 0"), frame.where("id % 2 = 1")

    @pipeline.stage(source=["even", "odd"], target="all")
    def join(even: DataFrame, odd: DataFrame) -> DataFrame:
        return even.unionByName(odd, allowMissingColumns=True)

    @pipeline.stage(source="even", target="totals")
    def total(frame: DataFrame) -> DataFrame:
        return frame.groupBy().agg(F.sum("id").alias("total"))

    with pipeline:
        pipeline.put("raw", spark.range(10))
        pipeline.put("raw", spark.range(100, 104).withColumn("name", F.lit("a")))
        assert pipeline.run(until="drained", parallel=2, progress=seen.__setitem__)
        found: list[Any] = []
        for edge in ("all", "all", "totals", "totals"):
            with pipeline.take(edge) as taken:
                assert taken is not None
                found.append((taken.df.columns, sorted(map(tuple, taken.df.collect()))))
        assert found == [
            (["id"], [(number,) for number in range(10)]),
            (["id", "name"], [(number, "a") for number in range(100, 104)]),
            (["total"], [(20,)]),
            (["total"], [(202,)]),
        ]
    assert set(seen) == {"split", "join", "total"}
    least = 0 if IS_CONNECT else 1  # Spark Connect says nothing of a job that ends before its first message
    assert all(progress.done == progress.total >= least for progress in seen.values())
    assert [list(path.iterdir()) for path in tmp_path.glob("flow/*+payload")] == [[]] * 5


def test_a_job_that_fails_names_its_stage(spark: SparkSession, tmp_path: Path) -> None:
    """An error of Spark in the write of a result ends the run, names the stage in one line, and leaves the input."""
    pipeline = Pipeline(spark, tmp_path / "flow")

    @pipeline.stage(source="raw", target="wrong")
    def work(frame: DataFrame) -> DataFrame:
        return frame.select(F.raise_error(F.lit("the job ran")).cast("int").alias("never"))

    with pipeline:
        pipeline.put("raw", spark.range(1))
        with pytest.raises(StageFailedError, match=r"stage 'work' failed.*the job ran") as failed:
            pipeline.run(until="drained")
        assert "\n" not in str(failed.value) and "the job ran" in str(failed.value.__cause__)
        assert [(edge.name, edge.waiting) for edge in pipeline.stats().edges] == [("raw", 1), ("wrong", 0)]
    assert list((tmp_path / "flow" / "wrong+payload").iterdir()) == []


def test_a_stage_uses_the_data_source(spark: SparkSession, tmp_path: Path) -> None:
    """A stage, which runs on a thread of its own, writes to a queue by the data source, and reads one."""
    pipeline = Pipeline(spark, tmp_path / "flow")

    @pipeline.stage(source="raw", target="read")
    def save(frame: DataFrame) -> DataFrame:
        writer = frame.selectExpr("CAST(id AS string) AS value").write.format("persistentqueue").mode("append")
        writer.option("queue", "saved").save(str(tmp_path))
        return spark.read.format("persistentqueue").option("queue", "saved").load(str(tmp_path)).select("value")

    with pipeline:
        pipeline.put("raw", spark.range(3))
        assert pipeline.run(until="drained")
        with pipeline.take("read") as taken:
            assert taken is not None
            assert sorted(bytes(row.value) for row in taken.df.collect()) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", ["timestamp", "map<string,array<struct<at:timestamp>>>"])
def test_timestamps_that_spark_would_cut_are_refused(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """If the session writes timestamps in milliseconds, a put of timestamps is refused, and one of others is not."""
    frame = spark.createDataFrame([], f"id bigint, at {kind}")
    setting = "spark.sql.parquet.outputTimestampType"
    spark.conf.set(setting, "TIMESTAMP_MILLIS")
    try:
        with StageHandoff(spark, tmp_path, "h") as handoff:
            with pytest.raises(ValueError, match=f"{setting} is TIMESTAMP_MILLIS, .* set it to TIMESTAMP_MICROS"):
                handoff.put(frame)
            assert handoff.put(frame.select("id"))
            spark.conf.set(setting, "TIMESTAMP_MICROS")
            assert handoff.put(frame)
    finally:
        spark.conf.unset(setting)

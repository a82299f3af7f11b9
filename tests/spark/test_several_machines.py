"""A put whose tasks may run on several machines counts its rows. ``test_cluster`` has real machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from persistentqueue import NetworkDiskError
from persistentqueue.rows.registry import Registry
from persistentqueue.spark import StageHandoff, payload, stages
from persistentqueue.spark.options import read_options, stream_write_options, write_options
from persistentqueue.spark.sessions import is_one_machine
from persistentqueue.spark.source import QueueDataSource
from tests.support.disks import disk_with, using_disk

pytestmark = pytest.mark.spark


def without_the_last(files: Callable[[payload._Local, str], dict[str, int]]) -> Callable[..., dict[str, int]]:
    """Return a listing that lacks a file, as if another machine had written it to its own directory."""
    return lambda root, name: dict(list(files(root, name).items())[:-1])


def test_rows_that_this_machine_does_not_see(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If files of other tasks are missing here, the put fails with both numbers, and leaves no payload."""
    monkeypatch.setattr(stages, "is_one_machine", lambda _: False)
    with StageHandoff(spark, tmp_path, "q") as handoff:
        for rows in (0, 10):
            assert handoff.put(spark.range(rows, numPartitions=2)) is True
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(payload._Local, "files", without_the_last(payload._Local.files))
            with pytest.raises(FileNotFoundError, match=r"sees 5 of the 10 rows that Spark has written.*payload_root"):
                handoff.put(spark.range(10, numPartitions=2))
        assert [manifest.rows for manifest in handoff.waiting()] == [0, 10]
        assert len(list((tmp_path / "q+payload").iterdir())) == 2


def test_local_sessions_are_one_machine(spark: SparkSession) -> None:
    """The tasks of a local session run on one machine, and are not counted."""
    assert is_one_machine(spark)


def test_typed_rows_on_a_network_file_system(tmp_path: Path) -> None:
    """A write of typed rows that makes the queue there is refused; with ``networkDisk`` it registers its schema."""
    schema = StructType([StructField("id", LongType())])
    options = {"path": str(tmp_path / "far"), "queue": "rows", "format": "json"}
    (tmp_path / "far").mkdir()
    with using_disk(disk_with(tmp_path, "nfs4", tmp_path / "far")):
        with pytest.raises(NetworkDiskError, match="nfs4"):
            QueueDataSource(options).writer(schema, False)
        assert list((tmp_path / "far").iterdir()) == []
        QueueDataSource(options | {"networkDisk": "true"}).writer(schema, False)
        assert Registry(tmp_path / "far", "rows").newest().schema.by_name().keys() == {"id"}


def test_option_to_insist_on_a_network_file_system() -> None:
    """The option ``networkDisk`` is false by default, and reaches the place of every read and write."""
    for options in (read_options, write_options, stream_write_options):
        assert options({"path": "q"}).place.network_disk is False
        assert options({"path": "q", "networkDisk": "True"}).place.network_disk is True
        with pytest.raises(ValueError, match="networkDisk is true or false, not 'maybe'"):
            options({"path": "q", "networkDisk": "maybe"})

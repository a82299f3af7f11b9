"""Stages as their writers see them: the payload, the manifest that describes it, and the hand-over of micro-batches.

Two kinds of processes write payloads. The owner of a hand-off writes those of ``put`` under the queue's lock. Under
Spark Connect, a process beside the server runs the function of ``foreachBatch``. It has no lock, and publishes the
manifest in the inbox of the queue. The owner, now or later, adopts it as one transaction.

An unused payload of the owner is removed by the next opening. That of a micro-batch may still be in work then, so its
name has the id of its query and the number of its batch. An opening removes it if the queue has recorded this batch,
since the manifest cannot take effect any more; and otherwise when it is a week old.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession, functions
from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

from persistentqueue import BrokenQueueError, PersistentQueueError, Producer, QueueNotFoundError
from persistentqueue.interprocess import is_reached
from persistentqueue.storage.layout import queue_directory

from .payload import LOST_SUFFIX, Payloads, on_the_server, payloads
from .progress import Report, reporting
from .sessions import SparkConnectError, is_connect, is_one_machine
from .workers import QUERY_ID, need_next

BATCH_GRACE_SECONDS = 7 * 86400.0
"""Age of the payload of a micro-batch from which on an opening removes it, if no manifest names it."""
_FORMAT = "persistentqueue stage 1"
_SHARE = (
    "it needs a file system that it shares with the executors, or a payload_root that Spark reaches, such as "
    "s3a://bucket/payloads"
)
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
_OWNERS = r"stage-(?P<owner>[0-9a-f]{16})-[0-9a-f]{32}"
_BATCHES = r"batch-(?P<of>[0-9a-f]{16})-(?P<query>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-(?P<batch>\d{1,19})"
_NAME = re.compile(f"{_OWNERS}|{_BATCHES}-[0-9a-f]{{32}}")


class NotAStageError(PersistentQueueError, ValueError):
    """The queue holds an item that no hand-off has put there: give the hand-off a queue of its own."""


@dataclass(frozen=True)
class Manifest:
    """The description of one stage: exactly the content of its item in the queue."""

    directory: str
    """The name of the payload's directory, under the payload root."""
    schema: dict[str, Any]
    """The schema of the DataFrame, as ``StructType.jsonValue()`` gives it."""
    files: tuple[str, ...]
    """The names of the Parquet files in the directory."""
    sizes: tuple[int, ...]
    """The size of each file in bytes, in the order of ``files``."""
    bytes: int
    """The sum of the sizes."""
    rows: int
    """The number of rows of the DataFrame."""
    marker: tuple[str, int] | None
    """The marker that the transaction of the put recorded; None if it was put without one."""


def encode(manifest: Manifest) -> bytes:
    """Return the item of a stage."""
    return json.dumps({"format": _FORMAT, **asdict(manifest)}, separators=(",", ":")).encode()


def decode(item: bytes) -> Manifest:
    """Return the manifest in an item. Raises ``NotAStageError``."""
    try:
        return _parse(json.loads(item))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NotAStageError(f"an item is no manifest ({error!r}): give the hand-off a queue of its own") from error


def _parse(fields: dict[str, Any]) -> Manifest:
    """Return the manifest with these fields, or raise ``ValueError``.

    Its names lead to files that will be removed, so none of them may lead out of the payload root.
    """
    if fields.pop("format") != _FORMAT:
        raise ValueError("unknown format")
    files, sizes, marker = tuple(fields.pop("files")), tuple(fields.pop("sizes")), fields.pop("marker")
    if not _NAME.fullmatch(fields["directory"]) or any(os.path.basename(name) != name for name in files):
        raise ValueError("a path instead of a name")
    return Manifest(files=files, sizes=sizes, marker=marker and tuple(marker), **fields)


def new_name(identity: str, batch: tuple[str, int] | None = None) -> str:
    """Return the name of a new payload for the queue with this identity: of the owner, or of a micro-batch."""
    unique = uuid.uuid4().hex
    return f"stage-{identity}-{unique}" if batch is None else f"batch-{identity}-{batch[0]}-{batch[1]}-{unique}"


def unused(
    names: dict[str, float], needed: set[str], identity: str, recorded: Callable[[str], int | None], now: float
) -> list[str]:
    """Return the payloads of this queue that no manifest names, and that no process may be about to hand over.

    Args:
        names: The directories under the payload root, with the times of their last changes.
        needed: The payloads that a manifest in the queue names.
        identity: The identity of the queue.
        recorded: A function that returns the version that the queue has recorded for the name of a marker.
        now: The current time, in seconds since 1970.
    """
    found = []
    for name, changed in names.items():
        kind = _NAME.fullmatch(name)
        if kind is None or name in needed or f"{name}{LOST_SUFFIX}" in names:
            continue
        if kind["owner"] == identity:
            found.append(name)
        elif kind["of"] == identity:
            version = recorded(kind["query"])
            is_void = version is not None and version >= int(kind["batch"])
            if is_void or now - changed > BATCH_GRACE_SECONDS:
                found.append(name)
    return found


def kind(result: object) -> str:
    """Return the type of an object that is no DataFrame of Spark, as messages name it."""
    if result is None:
        return "None"
    module, name = type(result).__module__, type(result).__qualname__
    found = f"an object of type {name if module == 'builtins' else f'{module}.{name}'}"
    return f"{found} (convert it by spark.createDataFrame)" if module.partition(".")[0] == "pandas" else found


def write(
    root: Payloads,
    name: str,
    df: DataFrame,
    marker: tuple[str, int] | None = None,
    progress: Report | None = None,
) -> Manifest:
    """Let Spark write a payload, make it durable, and return its manifest. After an error, the payload is removed.

    Raises ``TypeError`` if ``df`` is no DataFrame of Spark, and ``ValueError`` if Spark would cut its timestamps.
    """
    if not isinstance(df, DataFrame):
        raise TypeError(f"a stage is a DataFrame of Spark, not {kind(df)}")
    _need_whole_timestamps(df)
    address = root.make(name)
    try:
        # 1. Spark writes the payload. 2. The payload is made durable, files first, then the names that lead to it.
        counted, observed = _counted(df) if root.is_path and not is_one_machine(df.sparkSession) else (df, None)
        with reporting(df.sparkSession, progress):
            counted.write.mode("append").parquet(address)
        manifest = _measure(root, name, df, marker)
        if observed is not None and manifest.rows != observed.get["rows"]:
            raise FileNotFoundError(
                f"{root.root}/{name}: this process sees {manifest.rows} of the {observed.get['rows']} rows that Spark "
                f"has written: {_SHARE}"
            )
        root.sync(name)
    except BaseException:
        root.remove(name)
        raise
    return manifest


def _need_whole_timestamps(df: DataFrame) -> None:
    """Raise ``ValueError`` if Spark would cut the microseconds of a timestamp in Parquet, without an error."""
    if _has_timestamp(df.schema) and df.sparkSession.conf.get(_TIMESTAMPS, None) == "TIMESTAMP_MILLIS":
        raise ValueError(
            f"{_TIMESTAMPS} is TIMESTAMP_MILLIS, which would cut the microseconds of timestamps: set it to "
            "TIMESTAMP_MICROS, or cast the timestamps of the DataFrame to strings"
        )


def _has_timestamp(kind: object) -> bool:
    if isinstance(kind, StructType):
        return any(_has_timestamp(field.dataType) for field in kind.fields)
    if isinstance(kind, MapType):
        return _has_timestamp(kind.keyType) or _has_timestamp(kind.valueType)
    return _has_timestamp(kind.elementType) if isinstance(kind, ArrayType) else isinstance(kind, TimestampType)


def _counted(df: DataFrame) -> tuple[DataFrame, Any]:
    """Return a frame with the same rows, and an observation of their number.

    On several machines, one path can lead to several directories. A task that writes elsewhere has no error, and its
    rows are not here. Their number shows it.
    """
    kind: Any = Observation
    if is_connect(df.sparkSession):
        from pyspark.sql.connect.observation import Observation as kind  # noqa: N813, PLC0415
    observed = kind()
    return df.observe(observed, functions.count(functions.lit(1)).alias("rows")), observed


def _measure(root: Payloads, name: str, df: DataFrame, marker: tuple[str, int] | None) -> Manifest:
    """Return the manifest of a payload, from its files: reading their footers shows that each one was finished."""
    files = root.files(name)
    if not files:
        if is_connect(df.sparkSession):
            on_the_server(root.root, df.sparkSession).remove(name)
        raise FileNotFoundError(f"{root.root}/{name}: this process sees no file of Spark here: {_SHARE}")
    rows = root.rows(name, list(files))
    sizes = tuple(files.values())
    return Manifest(name, df.schema.jsonValue(), tuple(files), sizes, sum(sizes), rows, marker)


def batch_marker(df: DataFrame, batch_id: int) -> tuple[str, int]:
    """Return the marker of a micro-batch, for a function of ``foreachBatch`` that flushes sessions itself.

    Spark calls the function again if it does not know whether the batch was done. A flush with this marker commits
    nothing then. So a transaction over several queues has each batch exactly once::

        def route(frame, batch_id):
            rows = frame.collect()
            with transaction(orders, alarms) as (to_orders, to_alarms):
                for row in rows:
                    (to_alarms if row.urgent else to_orders).enqueue(row.value)
                to_orders.flush(marker=batch_marker(frame, batch_id))

        stream.writeStream.foreachBatch(route)

    Args:
        df: The DataFrame of the batch.
        batch_id: The number of the batch, which Spark gives.

    Returns:
        The id of the query, which its checkpoint keeps, and the number of the batch. With a new checkpoint it is
        another query.

    Raises:
        ValueError: The call does not come from ``foreachBatch`` of a streaming query.
        SparkConnectError: Spark Connect does not tell the function its query.

    Nothing becomes durable by this call. It may be called from the thread in which Spark calls the function.
    """
    query = query_id(df)
    if query is not None:
        return query, batch_id
    if is_connect(df.sparkSession):
        raise SparkConnectError(
            "batch_marker: Spark Connect does not tell the function of foreachBatch which query has called it: use a "
            "classic session, or write to each queue by the data source with txnAppId, or use StageHandoff.put_batch"
        )
    raise ValueError("batch_marker is for foreachBatch of a streaming query: use a marker of your own elsewhere")


def query_id(df: DataFrame) -> str | None:
    """Return the id of the streaming query that calls this thread in a classic session; None if there is none."""
    if is_connect(df.sparkSession):
        return None
    return df.sparkSession.sparkContext.getLocalProperty(QUERY_ID)


class BatchHandoff:
    """A hand-off in the process that runs the function of ``foreachBatch`` for Spark Connect: it has ``put_batch``.

    Pickling a ``StageHandoff`` makes it. Nothing of it stays open between two batches.
    """

    def __init__(
        self, spark: SparkSession | None, path: str, name: str, payload_root: str, identity: str, network_disk: bool
    ) -> None:
        self._spark = spark
        self._path = path
        self._name = name
        self._root = payload_root
        self._identity = identity
        self._network_disk = network_disk
        self._queries: dict[str | None, str] = {}

    def put_batch(self, df: DataFrame, batch_id: int, query: str | None = None) -> bool:
        """Hand over one micro-batch, as ``StageHandoff.put_batch`` describes."""
        return self._put_batch(df, batch_id, query)

    def _put_batch(self, df: DataFrame, batch_id: int, query: str | None) -> bool:
        """Hand over one micro-batch. The unpickled method ``put_batch`` of a ``StageHandoff`` calls this one, too."""
        marker = (self._query_id(query), batch_id)
        try:
            if is_reached(self._path, self._name, marker):
                is_later = is_reached(self._path, self._name, (marker[0], batch_id + 1))
                need_next(queue_directory(self._path, self._name), *marker, batch_id + is_later)
                return False
            producer = Producer(self._path, self._name, create=False, network_disk=self._network_disk)
        except QueueNotFoundError as error:
            raise SparkConnectError(
                f"{error}; Spark Connect runs put_batch beside its server, which does not see the queue of the "
                "program: run both on one machine, or use a directory that both see"
            ) from error
        with producer:
            root = payloads(self._root, df.sparkSession)
            directory = new_name(self._identity, marker)
            manifest = write(root, directory, df, marker)
            if not manifest.rows:
                root.remove(directory)
                return False
            producer.enqueue(encode(manifest))
            try:
                is_new = producer.flush(marker)
            except BrokenQueueError:  # the manifest may be durable, as after an interruption
                raise
            except Exception:
                producer.rollback()
                root.remove(directory)
                raise
            if not is_new:
                root.remove(directory)
            return is_new

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # such as the methods of pickle
            raise AttributeError(name)
        raise SparkConnectError(
            f"{name}: Spark Connect runs the function of foreachBatch beside its server, where a hand-off has only "
            "put_batch: use the other methods in the program that opened it"
        )

    def _query_id(self, query: str | None) -> str:
        """Return the id of the query that runs this function.

        The server does not tell it, but lists the active queries of the session that has started this one.
        """
        if query not in self._queries:
            if self._spark is None:
                raise ValueError("put_batch is for foreachBatch of a streaming query: use put(df, marker=…) elsewhere")
            active = self._spark.streams.active
            found = [each.id for each in active if query is None or each.name == query]
            if len(found) != 1:
                names = ", ".join(str(each.name) for each in active)
                raise SparkConnectError(
                    f"the session has {len(found)} active queries{f' of the name {query}' if query else ''} ({names}), "
                    "and Spark Connect does not tell which one has called put_batch: set queryName('a name'), and call "
                    "handoff.put_batch(df, batch_id, query='a name')"
                )
            (self._queries[query],) = found
        return self._queries[query]


def batch_handoff(path: str, name: str, payload_root: str, identity: str, network_disk: bool) -> BatchHandoff:
    """Return a pickled hand-off in the process that unpickles it.

    Spark unpickles the function of ``foreachBatch`` while the session that has started the query is the active one.
    """
    try:
        spark = SparkSession.active()
    except PySparkException:
        spark = None
    return BatchHandoff(spark, path, name, payload_root, identity, network_disk)

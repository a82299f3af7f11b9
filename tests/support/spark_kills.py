"""A Spark program that loses one of its processes at a chosen place: ``python -m tests.support.spark_kills ROOT``.

``ROOT/cells`` has its pieces of work, one a line, ``kind place victim``. Each piece has a directory of its own, with
queues, and takes the numbers below ``ITEMS`` into the queue "out". It is a streaming query from the queue "in", or a
batch job with a marker; or one of them that hands over stages, which are then taken. The first process that reaches the
``place`` of a piece kills the ``victim`` there, once, by SIGKILL. It records the state at that moment in the file
"struck". If the program survives this, it begins the query or the job again. Otherwise its starter begins it again, and
it continues with the current piece.

With ``SPARK_MODE=connect`` Spark is a server of its own, which outlives the program, and goes on with its query.
With ``SPARK_MODE=cluster`` the program runs on the driver's machine of a cluster. Its payloads are on the file system
that the cluster shares, and its pieces are hand-offs, since the workers see nothing else. The victim can be a backend:
the Java of an executor.

The data source is the one of the package under another name. It brings this module into the processes of Spark.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from persistentqueue import PersistentQueue
from persistentqueue.interprocess.multi_writer import publish_parts
from persistentqueue.spark import StageHandoff, acknowledge, handoff, local_session, stages, writer
from persistentqueue.spark.source import QueueDataSource
from persistentqueue.spark.stream import Offset, StreamReader
from persistentqueue.system.disk import DISK
from tests.support.spark_modes import IS_CLUSTER, IS_CONNECT, connect, start_server

ITEMS, PER_BATCH, TASKS = 30, 10, 2
SUBSCRIPTION = "spark"
VICTIMS = ("jvm", "user", "planner", "executor")
"""Processes to kill: the Java of the driver or server, the program itself, the planner and committer, and the process
of a task."""
HANDOFF_VICTIMS = ("jvm", "user", "batcher") if IS_CONNECT else ("jvm", "user")
"""Under Spark Connect, the batcher is the process that runs the function of ``foreachBatch``."""
CLUSTER_VICTIMS = ("jvm", "user", "backend")
STREAM_PLACES = {
    "writing": "a task has written the blocks of its part, and not what makes it one",
    "publishing": "the manifest is written, and not published",
    "published": "the manifest is published, and Spark has not heard of it",
    "adopting": "the owner has found a manifest, and not adopted it",
    "committed": "Spark was told that it is committed, and has not written that down",
    "offsets": "Spark has written down what the batch is to have, and no more",
    "answering": "the planner, as the owner of a queue that nobody owns, is about to answer requests",
    "ended": "the query has ended, and its last batch is not acknowledged",
}
HANDOFF_PLACES = {
    "payload": "the payload is durable, and its manifest is not handed over",
    "handed": "the manifest is handed over, and Spark has not heard of it",
}
TASKS_PLACE = "tasks"
"""On a cluster: a task of the payload is done, and others are not."""
TAKE_PLACE = "taking"
"""A stage was read, and its take is not committed; the program itself is the victim."""
BATCH_PLACES = ("writing", "publishing", "published", "adopting", "committed")
WATCHED = ("checkpoint/offsets", "checkpoint/commits", "in/inbox", "out/inbox")
"""Directories whose file names are recorded."""
_ROOT = "PERSISTENTQUEUE_KILLS"
SETTINGS, PAYLOADS = "PERSISTENTQUEUE_CLUSTER", "PERSISTENTQUEUE_PAYLOADS"
"""Variables with the settings of a session on the cluster, as a json, and with the shared directory of payloads."""
_BACKEND = "CoarseGrainedExecutorBackend"
_LIVES = 4
T = TypeVar("T")


class Cell(NamedTuple):
    """A piece of work."""

    kind: str
    place: str
    victim: str

    @property
    def directory(self) -> Path:
        return Path(os.environ[_ROOT], "-".join(self))

    @property
    def payload_root(self) -> str | None:
        """The payload root on a cluster; None for the one beside the queue."""
        return os.path.join(os.environ[PAYLOADS], "-".join(self)) if PAYLOADS in os.environ else None

    @property
    def is_due(self) -> bool:
        """True if the piece may be struck: a streaming query must have done a batch before, and no process was killed
        yet."""
        is_begun = self.kind in {"batch", "put"} or (self.directory / "checkpoint" / "commits" / "0").exists()
        return is_begun and not (self.directory / "struck").exists()


def current() -> Cell | None:
    """Return the current piece of work of the program."""
    with suppress(FileNotFoundError):
        return Cell(*Path(os.environ[_ROOT], "current").read_text().split())
    return None


def program() -> int:
    """Return the process of the program."""
    return int(Path(os.environ[_ROOT], "program").read_text())


# --- the victims -----------------------------------------------------------------------------------------------------


class Process(NamedTuple):
    pid: int
    parent: int
    name: str
    command: str


def processes(root: str | None = None) -> Iterator[Process]:
    """Yield the living processes of the program with this root, by the environment that all of them inherit."""
    mark = f"{_ROOT}={root or os.environ[_ROOT]}\0".encode()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if mark in Path("/proc", entry, "environ").read_bytes():
                begin, _, end = Path("/proc", entry, "stat").read_text().rpartition(") ")
                state, parent, *_ = end.split()
                if state not in "ZX":
                    command = Path("/proc", entry, "cmdline").read_text().replace("\0", " ").strip()
                    yield Process(int(entry), int(parent), begin.partition("(")[2], command)


def find(victim: str) -> list[int]:
    """Return the processes of this kind."""
    found = list(processes())
    java = {process.pid for process in found if process.name == "java"}
    backends = [each.pid for each in found if each.pid in java and _BACKEND in each.command]
    if victim == "backend":
        return backends[:1]
    if victim == "jvm":
        return list(java.difference(backends))
    if victim == "user":
        return [program()]
    if victim == "batcher":
        return [each.pid for each in found if "foreach_batch_worker" in each.command]
    forked = [each for each in found if "pyspark.daemon" in each.command and each.parent not in java]
    if victim == "executor":
        return [each.pid for each in forked if each.command.endswith("pyspark.worker")]
    planners = [each.pid for each in forked if "pyspark.sql.worker" in each.command]
    return planners + [each.pid for each in found if "python_streaming_source_runner" in each.command]


def strike(place: str) -> None:
    """Kill the victim if this is the place of the current piece and no process did it before, and wait for the end."""
    cell = current()
    if cell is None or cell.place != place or not cell.is_due:
        return
    try:
        fd = os.open(cell.directory / "struck", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    is_executor = TaskContext.get() is not None
    victims = [os.getpid()] if is_executor and cell.victim == "executor" else find(cell.victim)
    names = {name: _names(cell.directory / name) for name in WATCHED}
    with os.fdopen(fd, "w") as file:
        who = {"by the program": os.getpid() == program(), "in a task": is_executor, "victims": len(victims)}
        json.dump(who | names, file)
    for pid in sorted(victims, key=os.getpid().__eq__):  # this process last
        if pid == os.getpid():
            _let_java_go()
        os.kill(pid, signal.SIGKILL)
    while any(each.pid in victims for each in processes()):
        time.sleep(0.001)


def _names(directory: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    return []


# --- the places ------------------------------------------------------------------------------------------------------

_publishing = threading.local()
write_payload = stages.write


def _failpoint(name: str) -> None:
    if name.startswith("publish.1") and TaskContext.get() is not None:
        strike("writing")
    elif name.startswith("publish.3") and getattr(_publishing, "now", False):
        strike("publishing")
    elif name.startswith("adopt.1"):
        strike("adopting" if os.getpid() == program() else "answering")


def _publish_parts(*arguments: Any) -> bool:
    _publishing.now = True
    try:
        is_new = publish_parts(*arguments)
    finally:
        _publishing.now = False
    strike("published")
    return is_new


_stopped: list[int] = []


def _let_java_go() -> None:
    while _stopped:
        with suppress(ProcessLookupError):
            os.kill(_stopped.pop(), signal.SIGCONT)


def _answer(write_int: Callable[[int, IO[bytes]], None]) -> Callable[[int, IO[bytes]], None]:
    """Return a function that tells Spark of a commit, and then strikes before Spark can do anything about it."""

    def answer(status: int, outfile: IO[bytes]) -> None:
        cell = current()
        if cell is None or cell.place != "committed" or not cell.is_due:
            write_int(status, outfile)
            return
        for pid in find("jvm"):
            os.kill(pid, signal.SIGSTOP)
            _stopped.append(pid)
        write_int(status, outfile)
        outfile.flush()
        strike("committed")
        _let_java_go()

    return answer


def _write(*arguments: Any, **more: Any) -> Any:
    manifest = write_payload(*arguments, **more)
    if manifest is not None:
        strike("payload")
    return manifest


def install() -> None:
    """Watch the places that this process can reach."""
    vars(stages)["write"] = vars(handoff)["write"] = _write
    object.__setattr__(DISK, "failpoint", _failpoint)
    vars(writer)["publish_parts"] = _publish_parts
    for name in ("python_streaming_sink_runner", "commit_data_source_write"):
        module: Any = sys.modules.get(f"pyspark.sql.worker.{name}")
        if module is not None and module.write_int.__module__ != __name__:
            module.write_int = _answer(module.write_int)


class Reader(StreamReader):
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        strike("offsets")
        return super().partitions(start, end)


class StreamWriter(writer.StreamWriter):
    """Stream writer through which its tasks import this module."""


class BatchWriter(writer.BatchWriter):
    """Batch writer through which its tasks import this module."""


class KillableSource(QueueDataSource):
    """The data source, watched."""

    @classmethod
    def name(cls) -> str:
        return "killable"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        reader = super().streamReader(schema)
        reader.__class__ = Reader
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = StreamWriter
        return writer

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer = super().writer(schema, overwrite)
        writer.__class__ = BatchWriter
        return writer


# --- the program -----------------------------------------------------------------------------------------------------


def run_stream(spark: SparkSession, directory: Path) -> StreamingQuery:
    """Run a streaming query from queue to queue, over all items there are; return it."""
    source = spark.readStream.format("killable").options(queue="in", subscription=SUBSCRIPTION, minPartitions=TASKS)
    frame = source.option("maxOffsetsPerTrigger", PER_BATCH).load(str(directory)).select("value")
    writer = frame.writeStream.format("killable").option("queue", "out").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).start(str(directory))
    query.awaitTermination()
    return query


def run_batch(spark: SparkSession, directory: Path) -> None:
    """Run one batch job, with a marker."""
    frame = spark.range(ITEMS, numPartitions=TASKS).selectExpr("CAST(id AS STRING) AS value")
    writer = frame.write.format("killable").mode("append").options(queue="out", txnAppId="job", txnVersion=1)
    writer.save(str(directory))


def _numbers(spark: SparkSession) -> DataFrame:
    """Return the numbers as a frame; on a cluster its tasks take time, one after the other on each executor."""
    if not IS_CLUSTER:
        return spark.range(ITEMS, numPartitions=TASKS).selectExpr("id AS number")
    wait = "IF(java_method('java.lang.Thread', 'sleep', 100L) = '', 1, 0)"
    return spark.range(ITEMS, numPartitions=2 * TASKS).selectExpr(f"id + {wait} AS number")


def _stream(spark: SparkSession, directory: Path) -> DataFrame:
    """Return the numbers as a stream: of a queue, or on a cluster of the text files in the shared directory."""
    if IS_CLUSTER:
        return spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(f"{os.environ[PAYLOADS]}/numbers")
    source = spark.readStream.format("killable").options(queue="in", subscription=SUBSCRIPTION)
    return source.option("maxOffsetsPerTrigger", PER_BATCH).load(str(directory))


@contextmanager
def _beside(watch: Callable[[threading.Event], None]) -> Iterator[None]:
    """Watch in a thread beside the block; the event says that the block is over."""
    is_over = threading.Event()
    thread = threading.Thread(target=watch, args=(is_over,))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def striking_between_tasks(spark: SparkSession) -> Iterator[None]:
    """Strike on a cluster when a task of the job in the block is done, and others are not."""
    if not IS_CLUSTER:
        yield
        return
    tracker = spark.sparkContext.statusTracker()

    def watch(is_over: threading.Event) -> None:
        while not is_over.wait(0.01):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            if any(stage is not None and 0 < stage.numCompletedTasks < stage.numTasks for stage in stages):
                strike(TASKS_PLACE)
                return

    with _beside(watch):
        yield


def run_handoff(spark: SparkSession, cell: Cell) -> None:
    """Hand over the batches of a streaming query, or one frame; then take all stages, and write down their rows."""
    directory = cell.directory
    with StageHandoff(spark, directory, "out", cell.payload_root) as owner:

        def put(frame: DataFrame, batch_id: int) -> None:
            owner.put_batch(frame, batch_id)
            strike("handed")

        if cell.kind == "put":
            for _ in range(2):
                with striking_between_tasks(spark):
                    owner.put(_numbers(spark), marker=("job", 1))
                strike("handed")
        else:
            frame = _stream(spark, directory)
            numbers = frame.selectExpr("CAST(CAST(value AS STRING) AS LONG) AS number")
            writer = numbers.writeStream.foreachBatch(put).option("checkpointLocation", str(directory / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            if not IS_CLUSTER:
                acknowledge(query)
        (directory / "taken").mkdir(exist_ok=True)
        while True:
            with owner.take() as stage:
                if stage is None:
                    return
                rows = sorted(row.number for row in stage.df.collect())
                (directory / "taken" / stage.manifest.directory).write_text(json.dumps(rows))
                strike(TAKE_PLACE)


@contextmanager
def owning(cell: Cell) -> Iterator[None]:
    """Own the target queue if the place is its adoption: the owner looks into the inbox when a batch is done."""
    if cell.place != "adopting":
        yield
        return

    def look(is_over: threading.Event) -> None:
        while not is_over.wait(0.005) or cell.is_due:
            if cell.is_due:
                queue._open()._look(insists=True)

    with PersistentQueue(cell.directory, "out") as queue, _beside(look):
        yield


def work(spark: SparkSession, cell: Cell) -> None:
    """Do this piece of work, from its current state on."""
    directory = cell.directory
    if not directory.exists() and not IS_CLUSTER:
        with PersistentQueue(directory, "in", fan_out=True) as queue, queue.transaction() as session:
            session.enqueue_many(b"%d" % number for number in range(ITEMS))
    Path(os.environ[_ROOT], "current").write_text(" ".join(cell))
    query = survive(cell, partial(run, spark, cell))
    if query is not None:
        strike("ended")
        acknowledge(query)
    elif cell.kind == "batch":
        survive(cell, partial(run_batch, spark, directory))  # once more: its marker must prevent a second write
    (directory / "done").touch()


def run(spark: SparkSession, cell: Cell) -> StreamingQuery | None:
    """Run the query or the job of the piece; return the query."""
    with owning(cell):
        if cell.kind == "stream":
            return run_stream(spark, cell.directory)
        if cell.kind in {"handoff", "put"}:
            run_handoff(spark, cell)
        else:
            run_batch(spark, cell.directory)
    return None


def survive(cell: Cell, call: Callable[[], T]) -> T:
    """Make the call again if it fails by the kill while Java lives, also late: Spark may begin its next work with a
    Python process that was killed."""
    for _ in range(_LIVES - 1):
        try:
            return call()
        except (PySparkException, Py4JError) as failure:
            if not find("jvm"):
                raise
            print(f"{' '.join(cell)}: {failure}"[:300], flush=True)
    return call()


def open_spark(root: Path) -> SparkSession:
    """Return a session: of a new Spark, or of the server that runs already."""
    if IS_CLUSTER:
        return local_session("kills", json.loads(os.environ[SETTINGS]))
    if not IS_CONNECT:
        return local_session("kills", {"spark.master": f"local[{TASKS},2]"})
    file = root / "server"
    if not find("jvm") or not file.exists():
        with (root / "server.log").open("ab") as log:
            _, url = start_server(root / "spark", {"spark.master": f"local[{TASKS},2]"}, log)
        file.write_text(url)
    return connect(file.read_text())


def end_server() -> None:
    """End the server that this program or an earlier one has started, with its processes."""
    while left := [each.pid for each in processes() if each.pid != os.getpid()]:
        for pid in left:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def main(root: Path) -> None:
    (root / "program").write_text(str(os.getpid()))
    spark = open_spark(root)
    install()
    spark.dataSource.register(KillableSource)
    for line in (root / "cells").read_text().splitlines():
        cell = Cell(*line.split())
        if not (cell.directory / "done").exists():
            work(spark, cell)
    spark.stop()
    if IS_CONNECT:
        end_server()


if __name__ == "__main__":
    # Not this module, which is ``__main__``: the processes of Spark could not import it by name.
    importlib.import_module("tests.support.spark_kills").main(Path(sys.argv[1]))
elif _ROOT in os.environ:
    install()

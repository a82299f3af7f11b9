"""A pipeline of ten stages that is killed: ``python -m tests.support.pipeline_kills DIRECTORY spark|stand-in``.

The program puts batches, and runs the pipeline until it is drained. At each start it continues. The file ``place`` in
the directory names a place of a run, and a count. When the program gets to this place for that time, it renames the
file to ``struck``, and kills its whole session.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyarrow.parquet import read_table

from persistentqueue import PersistentQueue, list_queues
from persistentqueue.spark import Pipeline, StageLetter, local_session, payload, stages
from persistentqueue.spark.pipelines.edge import Edge
from persistentqueue.spark.pipelines.stage import OpenStage
from persistentqueue.spark.pipelines.store import Store
from persistentqueue.system.disk import DISK
from tests.support.pipelines import Numbers, StandIn

BATCHES, ROWS = 3, 40
BAD_TOTAL = 480
"""A total that the last stage refuses at each attempt: that of the second batch."""
MAX_ATTEMPTS = 30
"""So many that no input is given up because of kills alone."""
PLACES = {
    "counted": "the attempt is counted, and nothing else is done",
    "holding": "the inputs are held, and the function is about to run",
    "writing": "a payload is written, and not synced",
    "between": "the payload of a target is durable, and that of another one may be missing",
    "written": "all payloads are durable, and nothing is committed",
    "several.1 write ahead": "the blocks of the commit are written, and no frame",
    "several.2 prepare": "a participant is about to be prepared",
    "several.3 decide": "all participants are prepared, and the coordinator has no decision",
    "several.4 apply": "the decision is durable, and no thread has seen it",
    "committed": "the commit is visible, and the payloads of the inputs are still there",
    "removed": "a payload of an input is removed, and that of another input may be there",
    "giving up": "the inputs are held to be moved to a letter",
    "given up": "the letter is durable",
}
"""Places of a run at which the program can be killed."""
_reached: Counter[str] = Counter()
_is_running = False


def reach(place: str) -> None:
    """Kill the session if this is the place and the time."""
    _reached[place] += 1
    file = Path(sys.argv[1], "place")
    if not _is_running or not file.exists():
        return
    name, _, count = file.read_text().rpartition(" ")
    if name == place and _reached[place] >= int(count):
        file.rename(file.with_name("struck"))
        os.killpg(0, signal.SIGKILL)


def _around(owner: type, name: str, before: str = "", after: str = "") -> None:
    """Let a method report a place before it runs, and another one after it."""
    method: Callable[..., Any] = getattr(owner, name)

    def watched(*arguments: Any, **options: Any) -> Any:
        if before:
            reach(before)
        result = method(*arguments, **options)
        if after:
            reach(after)
        return result

    setattr(owner, name, watched)


def install() -> None:
    """Watch the places."""
    _around(OpenStage, "_begin", after="counted")
    _around(OpenStage, "_hold", after="holding")
    _around(vars(payload)["_Local"], "sync", before="writing")
    _around(Edge, "write", after="between")
    _around(OpenStage, "_commit", before="written")
    _around(OpenStage, "_give_up", before="giving up", after="given up")
    _around(Store, "remove_unneeded", before="committed")
    _around(Edge, "remove", after="removed")
    object.__setattr__(DISK, "failpoint", reach)


def build(spark: Any, directory: Path) -> Pipeline:
    """Return the pipeline: fan in, fan out, a filter, two readers of one edge, and a stage that fails."""
    numbers = Numbers(spark)
    pipeline = Pipeline(spark, directory / "edges")

    @pipeline.stage(target="numbers", marker=("seed", 1))
    def seed() -> Any:
        return numbers.make(range(10_000, 10_000 + ROWS))

    @pipeline.stage(source="numbers", target=("even", "odd"))
    def split(frame: Any) -> Any:
        return numbers.where(frame, 2, 0), numbers.where(frame, 2, 1)

    @pipeline.stage(source="even", target="doubled", max_waiting=2)
    def double(frame: Any) -> Any:
        return numbers.scale(frame, 2, 0)

    @pipeline.stage(source="odd", target="negated", max_attempts=MAX_ATTEMPTS)
    def negate(frame: Any) -> Any:
        return numbers.scale(frame, -1, 0)

    @pipeline.stage(source=("doubled", "negated"), target="joined")
    def join(doubled: Any, negated: Any) -> Any:
        return numbers.union(doubled, negated)

    @pipeline.stage(source="joined", target=("kept", "dropped"))
    def choose(frame: Any) -> Any:
        return {"dropped": numbers.where(frame, 3, 1), "kept": numbers.where(frame, 3, 0)}

    @pipeline.stage(source="kept", target="totals")
    def total(frame: Any) -> Any:
        return numbers.total(frame)

    @pipeline.stage(source="kept", target="audit")
    def audit(frame: Any) -> Any:
        return numbers.scale(frame, 1, 0)

    @pipeline.stage(source="dropped", target="shifted")
    def shift(frame: Any) -> Any:
        return numbers.scale(frame, 1, 7)

    @pipeline.stage(source=("totals", "shifted"), target="result", max_attempts=MAX_ATTEMPTS)
    def finish(totals: Any, shifted: Any) -> Any:
        if totals.collect()[0][0] == BAD_TOTAL:
            raise ValueError("a bad batch")
        return numbers.union(totals, shifted)

    return pipeline


def results(directory: Path) -> str:
    """Return all results as text: the rows of each DataFrame sorted, and the letters. Neither Spark nor the pipeline
    takes part."""
    lines = []
    for name in ("audit", "result"):
        with PersistentQueue(directory / "edges", name) as queue:
            for manifest in map(stages.decode, queue.browse_all()):
                files = [directory / "edges" / f"{name}+payload" / manifest.directory / file for file in manifest.files]
                rows = sorted(row for file in files for row in read_table(file)["value"].to_pylist())
                lines.append(f"{name}: {rows}")
    with PersistentQueue(directory / "edges", "finish.letters") as queue:
        for letter in map(StageLetter.decode, queue.browse_all()):
            inputs = [(each.edge, each.manifest.rows) for each in letter.inputs]
            lines.append(f"{letter.stage}: {letter.error}: {letter.message}: {inputs}")
    return "\n".join(lines)


def left_over(directory: Path) -> set[str]:
    """Return the payloads that neither an edge nor a letter names, and the edges inside the graph with a DataFrame."""
    edges = directory / "edges"
    found, named = {path.name for root in edges.glob("*+payload") for path in root.iterdir()}, set()
    for name in list_queues(edges):
        with PersistentQueue(edges, name) as queue:
            items = list(queue.browse_all())
        if name.endswith(".letters"):
            named |= {each.manifest.directory for item in items for each in StageLetter.decode(item).inputs}
        elif name in {"audit", "result"}:
            named |= {stages.decode(item).directory for item in items}
        elif items and not name.endswith(".failure"):  # the last error stays until the next one
            found.add(name)
    return found ^ named


def main() -> None:
    global _is_running  # noqa: PLW0603 - the places of the opening are those of other tests
    directory, kind = Path(sys.argv[1]), sys.argv[2]
    logging.getLogger("persistentqueue.spark").setLevel(logging.CRITICAL)
    spark = StandIn() if kind == "stand-in" else local_session("kills", {"spark.sql.shuffle.partitions": "1"})
    install()
    with build(spark, directory) as pipeline:
        for number in range(BATCHES):
            values = range(ROWS * number, ROWS * (number + 1))
            pipeline.put("numbers", Numbers(spark).make(values), marker=("batch", number + 1))
        print("running", flush=True)
        _is_running = True
        assert pipeline.run(until="drained", parallel=3)
        _is_running = False
        print("drained", *[f"{name}: {count};" for name, count in _reached.items() if name in PLACES], flush=True)
    if not isinstance(spark, StandIn):
        spark.stop()


if __name__ == "__main__":
    main()

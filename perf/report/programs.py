"""Options, JSON and tables that the programs of the section "Spark" of ``README.md`` share."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from .. import harness
from ..harness import Row
from . import tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("stages", "pipelines", "spark_rows", "typed_rows", "streams", "manifests", "planning", "soak")
"""The modules of ``studies`` that are such programs.

Each may have a file ``results/<name>.json``, and has a place for its table in ``results/spark.md``.
"""
_HEADINGS = ("what", "ours", "ratio", "bar", "met?")


def table(name: str, found: tables.Found) -> str:
    """Return the table of a program for ``spark.md``, between its first and last marker line."""
    lines = (harness.table_line((row[0], row[1], *row[3:])) for row in found["rows"])
    head = harness.table_head(_HEADINGS)
    return "\n".join([f"<!-- {name} -->", f"`{found['command']}`:\n", head, *lines, f"<!-- end of {name} -->"])


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of all these programs."""
    made = harness.parser(f"perf.studies.{name}", doc)
    made.add_argument("--results", type=Path, help="a directory for the JSON; the table goes into its spark.md")
    return made


def run(name: str, options: argparse.Namespace, rows: Callable[[Path], Iterator[Row]]) -> None:
    """Measure in a new directory and print each line. With ``--results``, write the JSON and the table."""
    command = shlex.join(["python", "-m", f"perf.studies.{name}", *sys.argv[1:]])
    found: tables.Found = {"command": command, "machine": {}, "rows": []}
    print(harness.table_head(), flush=True)
    with harness.asked_for(options.directory) as directory:
        found["machine"] = tables.machine(directory)
        for row in rows(directory.resolve()):
            found["rows"].append(row)
            print(harness.table_line(row), flush=True)
    if options.results:
        options.results.mkdir(parents=True, exist_ok=True)
        (options.results / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        tables.replace(table(name, found), options.results / "spark.md")


def run_on_spark(
    name: str,
    options: argparse.Namespace,
    rows: Callable[[SparkSession, Path], Iterator[Row]],
    **config: str,
) -> None:
    """Call ``run`` with a local Spark session, and stop the session at the end."""
    from persistentqueue.spark import local_session

    spark = local_session(f"perf.studies.{name}", {key.replace("_", "."): value for key, value in config.items()})
    try:
        run(name, options, lambda directory: rows(spark, directory))
    finally:
        spark.stop()


def in_turn(count: int, rounds: int) -> Iterator[int]:
    """Yield the index of the next of ``count`` ways, round after round. Each round reverses the order."""
    for round_ in range(rounds):
        yield from range(count) if round_ % 2 else reversed(range(count))


def compared(
    what: str, name: str, ours: list[float], others: dict[str, list[float]], bar: float | None, least: bool
) -> Row:
    """Return a line with our figure and its ratios to the others, taken round by round.

    ``bar`` limits the median ratio to the first of the others: from below if ``least`` is true, else from above.
    """
    ratios = {each: [one / other for one, other in zip(ours, found, strict=True)] for each, found in others.items()}
    met = ""
    if bar is not None:
        first = median(next(iter(ratios.values())))
        met = harness.met(first >= bar if least else first <= bar)
    return Row(
        what,
        f"{median(ours):,.0f} {name}",
        " · ".join(f"{each} {median(found):,.0f} {name}" for each, found in others.items()),
        " · ".join(f"{harness.spread(found)} × {each}" for each, found in ratios.items()),
        "" if bar is None else f"{bar:g} × {next(iter(ratios))} at {'least' if least else 'most'}",
        met,
    )


def drop(df: object) -> None:
    """Read all rows of a DataFrame and discard them."""
    df.write.format("noop").mode("overwrite").save()  # type: ignore[attr-defined]

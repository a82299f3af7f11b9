"""``python -m tests.crash``: see ``--help``."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from .cuts import CutsUnavailable, run_cuts
from .exhaustive import SETTINGS, Exhaustive
from .explorer import Explorer
from .kills import run_kills
from .mutants import MUTANTS, run_mutants


def explore(options: argparse.Namespace) -> None:
    """Explore seeds, as many or until there were so many schedules; stops at the first violation."""
    if options.jobs > 1:
        _share(options)
        return
    began, schedules, lives, seeds = time.monotonic(), 0, 0, 0
    while seeds < options.count and (options.schedules is None or schedules < options.schedules):
        explorer = Explorer(options.first + seeds * options.step, options.faults, options.trace)
        try:
            explorer.run()
        finally:
            seeds += 1
            schedules += explorer.schedules
            lives += explorer.lives
            if options.progress and seeds % options.progress == 0:
                print(f"{schedules} schedules", flush=True)
    seconds = time.monotonic() - began
    print(
        f"{schedules} schedules, {lives} lives, 0 violations; {seeds} seeds from {options.first} on, every "
        f"{options.step}; {seconds:.1f} s, {schedules / seconds:.0f} per second; go on with "
        f"--first {options.first + seeds * options.step}",
        flush=True,
    )


def _share(options: argparse.Namespace) -> None:
    """The same in several processes, each with its own seeds; fails if one does."""
    arguments = ["--count", str(options.count), "--step", str(options.jobs)]
    if options.schedules is not None:
        arguments += ["--schedules", str(options.schedules // options.jobs)]
    if options.faults:
        arguments += ["--faults"]
    command = [sys.executable, "-m", "tests.crash", "random", *arguments]
    running = [subprocess.Popen([*command, "--first", str(options.first + job)]) for job in range(options.jobs)]
    sys.exit(max(process.wait() for process in running))


def exhaust(options: argparse.Namespace) -> None:
    """Run all small programs."""
    for settings in SETTINGS:
        began = time.monotonic()
        exhaustive = Exhaustive(settings, options.nested)
        exhaustive.run(options.operations)
        seconds = time.monotonic() - began
        print(
            f"{exhaustive.programs} programs, {exhaustive.crashes} crashes, {exhaustive.states} different states, "
            f"0 violations, {seconds:.1f} s"
        )


def hunt(options: argparse.Namespace) -> None:
    """Plant each bug; fails if one is not caught."""
    survivors = 0
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.name][: options.most]
    for verdict in run_mutants(chosen, options.seeds):
        survivors += not verdict.caught
        found = f"caught within {verdict.schedules}+" if verdict.caught else f"NOT CAUGHT by {verdict.schedules}"
        print(f"{found:28} {verdict.mutant.name}: {verdict.how}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} planted bugs caught")
    sys.exit(survivors > 0)


def kill(options: argparse.Namespace) -> None:
    """Kill real processes."""
    print(run_kills(options.count, options.seed))


def cut(options: argparse.Namespace) -> None:
    """Cut the power of a real file system; says so where that is not possible here."""
    try:
        print(run_cuts(options.count, seed=options.seed))
    except CutsUnavailable as reason:
        print(f"no power cuts here: {reason}")


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("random", help="random programs, crashed anywhere")
    command.add_argument("--first", type=int, default=0, help="the first seed")
    command.add_argument("--count", type=int, default=10**9, help="how many seeds")
    command.add_argument("--schedules", type=int, default=None, help="stop after so many schedules")
    command.add_argument("--step", type=int, default=1, help="from seed to seed")
    command.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    command.add_argument("--faults", action="store_true", help="calls fail, too")
    command.add_argument("--trace", action="store_true", help="print what the disk was asked")
    command.add_argument("--progress", type=int, default=0, help="print the count after so many seeds")
    command.set_defaults(do=explore)
    command = commands.add_parser("exhaustive", help="all programs of a few operations, all crashes")
    command.add_argument("--operations", type=int, default=2)
    command.add_argument("--nested", action="store_true", help="crash while recovering, too")
    command.set_defaults(do=exhaust)
    command = commands.add_parser("mutants", help="plant bugs and see them caught")
    command.add_argument("--seeds", type=int, default=2000)
    command.add_argument("--only", default="", help="those with this in their name")
    command.add_argument("--most", type=int, default=None, help="the first so many")
    command.set_defaults(do=hunt)
    for name, what, count, do in (
        ("kills", "kill -9 of real processes", 1000, kill),
        ("cuts", "power cuts of ext4 on a loop device; needs root", 40, cut),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument("--count", type=int, default=count)
        command.add_argument("--seed", type=int, default=0)
        command.set_defaults(do=do)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()

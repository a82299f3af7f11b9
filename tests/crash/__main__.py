"""Command line of the campaigns: ``python -m tests.crash``. For the arguments, see ``--help``."""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from persistentqueue import UnflushedWarning
from persistentqueue.engine.context import Settings

from .cuts import CutsUnavailable, run_cuts
from .damage import add_reports
from .exhaustive import SETTINGS, Exhaustive
from .explorer import STYLES, Explorer
from .flips import cut, flip_enclosed, flip_sealed, flips
from .fuzz import fuzz, fuzz_files
from .interrupts import PARTS, run_places
from .kills import run_kills
from .misuse import directed, run_misuse, run_programs
from .mutants import MUTANTS, run_mutants
from .owner_interrupts import run_owner_places
from .pipelines import PIPELINES, PipelinesExplorer
from .plans import PLANS, lines_of, run_lines
from .reentry import PARTS as REENTRY_PARTS
from .reentry import run_reentry
from .retries import RETRIES, RetriesExplorer
from .several import SEVERAL, SeveralExplorer
from .signals import run_signals
from .syscalls import SyscallsUnavailable, run_injections
from .worker_cuts import run_worker_cuts
from .worker_interrupts import run_worker_places
from .worker_kills import run_workers
from .workers import WORKERS, WorkersExplorer


def explore(options: argparse.Namespace) -> None:
    """Explore seeds until the requested number of seeds or schedules is reached. Stop at the first violation."""
    if options.jobs > 1:
        _share(options)
        return
    logging.getLogger("persistentqueue").setLevel(logging.CRITICAL)  # crashes cause warnings that are expected here
    began, schedules, lives, seeds = time.monotonic(), 0, 0, 0
    while seeds < options.count and (options.schedules is None or schedules < options.schedules):
        explorer = _explorer(options, options.first + seeds * options.step)
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


def _explorer(options: argparse.Namespace, seed: int) -> Explorer | SeveralExplorer | RetriesExplorer | WorkersExplorer:
    """Return the explorer of the seed.

    It explores one queue, or several queues if the style asks for that. Without a style, every eighth seed explores
    several queues. The style ``RETRIES`` explores items that fail, and ``PIPELINES`` flushes that no thread waits for.
    The style ``WORKERS`` explores sessions of workers on a simulated network.
    """
    if options.style == WORKERS:
        return WorkersExplorer(seed, options.trace)
    if options.style == PIPELINES:
        return PipelinesExplorer(seed, options.faults, options.trace)
    if options.style == RETRIES:
        return RetriesExplorer(seed, options.trace)
    if options.style == SEVERAL or (options.style is None and seed % 8 == 7):
        return SeveralExplorer(seed, options.faults, options.trace)
    return Explorer(seed, options.faults, options.trace, options.style)


def _share(options: argparse.Namespace) -> None:
    """Explore in several processes, each with its own seeds; exit with an error if one of them fails."""
    arguments = ["--count", str(options.count), "--step", str(options.jobs), "--progress", str(options.progress)]
    if options.schedules is not None:
        arguments += ["--schedules", str(options.schedules // options.jobs)]
    arguments += [name for name, given in (("--faults", options.faults), ("--trace", options.trace)) if given]
    if options.style is not None:
        arguments += ["--style", options.style]
    command = [sys.executable, "-m", "tests.crash", "random", *arguments]
    running = [subprocess.Popen([*command, "--first", str(options.first + job)]) for job in range(options.jobs)]
    sys.exit(max(process.wait() for process in running))


def exhaust(options: argparse.Namespace) -> None:
    """Run all small programs, with each kind of settings in a process of its own."""
    chosen = SETTINGS if options.only is None else [SETTINGS[options.only]]
    with ProcessPoolExecutor(options.jobs) as pool:
        for line in pool.map(partial(_exhaust, options.operations, options.nested), chosen):
            print(line, flush=True)


def _exhaust(operations: int, nested: bool, settings: Settings) -> str:
    began, exhaustive = time.monotonic(), Exhaustive(settings, nested)
    exhaustive.run(operations)
    return (
        f"{exhaustive.programs} programs, {exhaustive.crashes} crashes, {exhaustive.states} different states, "
        f"0 violations, {time.monotonic() - began:.1f} s"
    )


def hunt(options: argparse.Namespace) -> None:
    """Plant each bug; exit with an error if one is not caught."""
    survivors: list[str] = []
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.name][: options.most]
    chosen = chosen[options.seed % options.parts :: options.parts]
    for verdict in run_mutants(chosen, options.schedules, options.jobs):
        if not verdict.caught:
            survivors.append(verdict.mutant.name)
        found = f"caught within {verdict.schedules}+" if verdict.caught else f"NOT CAUGHT by {verdict.schedules}"
        seed = "" if verdict.seed is None else f"seed {verdict.seed}"
        print(f"{found:28} {seed:12} {verdict.mutant.name}: {verdict.how}", flush=True)
    # The names stand last: of a long output, a log may keep the end only.
    for name in survivors:
        print(f"NOT CAUGHT: {name}")
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} planted bugs caught")
    sys.exit(bool(survivors))


def kill(options: argparse.Namespace) -> None:
    """Kill real processes."""
    print(run_kills(options.count, options.seed))


def kill_workers(options: argparse.Namespace) -> None:
    """Kill processes that share queues."""
    print(run_workers(options.kills, options.seed))


def cut_power(options: argparse.Namespace) -> None:
    """Cut the power of a real file system, or print why this machine cannot do it."""
    try:
        run = run_worker_cuts if options.workers else run_cuts
        print(run(options.count, options.seed, options.only))
    except CutsUnavailable as reason:
        print(f"no power cuts here: {reason}")


def inject(options: argparse.Namespace) -> None:
    """Let real system calls fail, or print why this machine cannot do it."""
    try:
        print(run_injections(options.first, options.count, options.jobs))
    except SyscallsUnavailable as reason:
        print(f"no failing system calls here: {reason}")


def damage(options: argparse.Namespace) -> None:
    """Damage files in every way that one kind of damage has."""
    with ProcessPoolExecutor(options.jobs) as pool:
        share = partial(options.kind, options.bytes, options.seed, parts=options.parts)
        print(add_reports(pool.map(share, range(options.parts) if options.part is None else [options.part])))


def mutate(options: argparse.Namespace) -> None:
    """Mutate the formats, and plant hostile files."""
    if options.kind != "files":
        print(fuzz(options.count, options.first))
    if options.kind != "formats":
        print(fuzz_files(options.count, options.first))


def misuse(options: argparse.Namespace) -> None:
    """Run programs that use the library wrongly."""
    if options.directed:
        print(run_programs(directed(), options.repeat))
        return
    if options.jobs == 1:
        print(run_misuse(options.first, options.count, options.repeat))
        return
    share = -(-options.count // options.jobs)
    command = [sys.executable, "-m", "tests.crash", "misuse", "--count", str(share), "--repeat", str(options.repeat)]
    running = [subprocess.Popen([*command, "--first", str(options.first + job * share)]) for job in range(options.jobs)]
    sys.exit(max(process.wait() for process in running))


def interrupt(options: argparse.Namespace) -> None:
    """Interrupt every scenario at each place, then send signals at random moments; stop at the first violation."""
    if not options.signals_only:
        for run in (run_places, run_worker_places, run_owner_places):
            with ProcessPoolExecutor(options.jobs) as pool:
                share = partial(run, options.only, parts=PARTS)
                reports = list(pool.map(share, range(options.seed % options.parts, PARTS, options.parts)))
            places, done = (sum(each[at] for each in reports) for at in (1, 2))
            print(f"{reports[0].scenarios} scenarios, {places} places, {done} interruptions, 0 violations", flush=True)
    if options.count:
        print(run_signals(options.count, options.seed))


def reenter(options: argparse.Namespace) -> None:
    """Call the queue from a signal handler at each place of every scenario; stop at the first violation."""
    each = REENTRY_PARTS // options.parts
    first = options.seed % options.parts
    with ProcessPoolExecutor(options.jobs) as pool:
        shares = [first + options.parts * number for number in range(each)]
        reports = list(pool.map(partial(run_reentry, options.only, parts=REENTRY_PARTS), shares))
    places, done = (sum(report[at] for report in reports) for at in (1, 2))
    print(f"{reports[0].scenarios} scenarios, {places} places, {done} handlers that called, 0 violations")


def follow(options: argparse.Namespace) -> None:
    """Run the campaigns of a plan; exit with an error if one fails."""
    failed = run_lines(lines_of(options.plan, options.seed), options.jobs)
    for line in failed:
        print(f"FAILED: python -m tests.crash {line}")  # last: of a long output, a log may keep the end only
    sys.exit(bool(failed))


def main() -> None:
    """Parse the command line, and run the campaign."""
    # Campaigns cause damage and failed syncs on purpose, a million times: their warnings would hide the result.
    logging.getLogger("persistentqueue").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore", UnflushedWarning)
    options = parser().parse_args()
    options.do(options)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line. Its result has the campaign as ``do``."""
    made = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    commands = made.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    command = commands.add_parser("random", parents=[shared], help="random programs, crashed anywhere")
    command.add_argument("--first", type=int, default=0, help="the first seed")
    command.add_argument("--count", type=int, default=10**9, help="how many seeds")
    command.add_argument("--schedules", type=int, default=None, help="stop after so many schedules")
    command.add_argument("--step", type=int, default=1, help="from seed to seed")
    command.add_argument("--faults", action="store_true", help="calls fail, too")
    command.add_argument(
        "--style",
        choices=(*STYLES, SEVERAL, RETRIES, PIPELINES, WORKERS),
        default=None,
        help="only programs of this kind",
    )
    command.add_argument("--trace", action="store_true", help="print what the disk was asked")
    command.add_argument("--progress", type=int, default=0, help="print the count after so many seeds")
    command.set_defaults(do=explore)
    command = commands.add_parser("exhaustive", parents=[shared], help="all programs of a few operations, all crashes")
    command.add_argument("--operations", type=int, default=2)
    command.add_argument("--nested", action="store_true", help="crash while recovering, too")
    command.add_argument("--only", type=int, choices=range(len(SETTINGS)), help="one kind of settings")
    command.set_defaults(do=exhaust)
    command = commands.add_parser("mutants", parents=[shared], help="plant bugs and see them caught")
    command.add_argument("--schedules", type=int, default=100_000)
    command.add_argument("--only", default="", help="those with this in their name")
    command.add_argument("--most", type=int, default=None, help="the first so many")
    command.add_argument("--parts", type=int, default=1, help="take one in so many of them")
    command.add_argument("--seed", type=int, default=0, help="of the part")
    command.set_defaults(do=hunt)
    for name, what, count, do in (
        ("kills", "kill -9 of real processes", 1000, kill),
        ("cuts", "power cuts of file systems on a loop device; needs root", 40, cut_power),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument("--count", type=int, default=count)
        command.add_argument("--seed", type=int, default=0)
        command.set_defaults(do=do)
    command.add_argument("--only", default="", help="file systems with this in their name")
    command.add_argument("--workers", action="store_true", help="cut the power under processes that share a queue")
    command = commands.add_parser("workers", help="kill -9, SIGSTOP and closes of processes that share queues")
    command.add_argument("--kills", type=int, default=300, help="how many kills in total")
    command.add_argument("--seed", type=int, default=0, help="of what the processes do, and of the kills")
    command.set_defaults(do=kill_workers)
    command = commands.add_parser("interrupts", parents=[shared], help="signal handlers that raise, anywhere")
    command.add_argument("--only", default="", help="scenarios with this in their name")
    command.add_argument("--count", type=int, default=0, help="how many real signals, at random moments")
    command.add_argument("--signals-only", action="store_true", help="not each place in turn")
    command.add_argument("--seed", type=int, default=0, help="of the random moments, and of the part")
    command.add_argument("--parts", type=int, default=1, help="take one in so many of the places")
    command.set_defaults(do=interrupt)
    command = commands.add_parser("reentry", parents=[shared], help="signal handlers that call the queue, anywhere")
    command.add_argument("--only", default="", help="scenarios with this in their name")
    command.add_argument("--seed", type=int, default=0, help="of the part")
    command.add_argument("--parts", type=int, default=1, help="take one in so many of the places")
    command.set_defaults(do=reenter)
    command = commands.add_parser("syscalls", parents=[shared], help="real system calls that fail, through strace")
    command.add_argument("--first", type=int, default=0, help="the first case")
    command.add_argument("--count", type=int, default=None, help="how many cases")
    command.set_defaults(do=inject)
    for name, what, size, kind in (
        ("flips", "every bit of logs and data files flipped", 65536, flips),
        ("flips-sealed", "as flips, for a queue that was closed cleanly", 65536, flip_sealed),
        ("flips-enclosed", "as flips, for data files that are compressed and encrypted", 65536, flip_enclosed),
        ("truncate", "logs and data files cut at every byte, and made longer", 4096, cut),
    ):
        command = commands.add_parser(name, parents=[shared], help=what)
        command.add_argument("--bytes", type=int, default=size)
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--part", type=int, default=None, help="only this part of the work, from 0")
        command.add_argument("--parts", type=int, default=16, help="into how many it is divided")
        command.set_defaults(do=damage, kind=kind)
    command = commands.add_parser("fuzz", help="mutations that know the formats, and hostile files")
    command.add_argument("--first", type=int, default=0, help="the first seed")
    command.add_argument("--count", type=int, default=1000)
    command.add_argument("--kind", choices=("both", "formats", "files"), default="both")
    command.set_defaults(do=mutate)
    command = commands.add_parser("misuse", parents=[shared], help="programs that use the library wrongly")
    command.add_argument("--first", type=int, default=0, help="the first seed")
    command.add_argument("--count", type=int, default=1000, help="how many seeds")
    command.add_argument("--repeat", type=int, default=1, help="how often each program runs")
    command.add_argument("--directed", action="store_true", help="only the programs that find the planted bugs")
    command.set_defaults(do=misuse)
    command = commands.add_parser("plan", parents=[shared], help="several campaigns, as the Makefile does")
    command.add_argument("plan", choices=PLANS)
    command.add_argument("--seed", type=int, default=0, help="of the planted bugs, or the first of a search")
    command.set_defaults(do=follow)
    return made


if __name__ == "__main__":
    main()

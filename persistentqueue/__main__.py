"""``python -m persistentqueue check|repair PATH [NAME]``: inspect a queue, or repair it."""

from __future__ import annotations

import argparse
import sys

from . import PersistentQueueError, check, repair


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says. The exit status: 0 all is well, 1 there are or were problems, 2 it did not go."""
    parser = argparse.ArgumentParser(prog="python -m persistentqueue", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, what in (
        ("check", "read everything and report what is wrong; changes nothing, also while the queue is in use"),
        ("repair", "keep what is intact, set aside what is not (*.damaged), and report what is lost"),
    ):
        choice = commands.add_parser(command, help=what, description=what)
        choice.add_argument("path", help="the queue's directory, or the one that it is named in")
        choice.add_argument("name", nargs="?", help="the queue's name")
    options = parser.parse_args(arguments)
    try:
        problems = _check(options) if options.command == "check" else _repair(options)
    except (PersistentQueueError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 1 if problems else 0


def _check(options: argparse.Namespace) -> tuple[str, ...]:
    report = check(options.path, options.name)
    for problem in report.problems:
        print(problem)
    ending = (
        "closed cleanly" if report.sealed else f"in use or not closed, {report.transactions} transactions to replay"
    )
    print(f"{report.items} items read and checked; {ending}; {len(report.problems)} problems")
    if report.torn_bytes:
        print(f"{report.torn_bytes} bytes of an unfinished group, which the next opening drops")
    for name in report.leftovers:
        print(f"leftover: {name}")
    return report.problems


def _repair(options: argparse.Namespace) -> tuple[str, ...]:
    report = repair(options.path, options.name)
    for problem in report.problems:
        print(problem)
    for first, count in report.lost:
        print(f"lost: {count} items, sequences {first} to {first + count - 1}")
    if report.without_log:
        print("the log was of no use: some of these items may have been consumed before")
    for name in report.kept:
        print(f"kept: {name}")
    print(f"{report.items} items are in the queue; {len(report.problems)} problems were found")
    return report.problems


if __name__ == "__main__":
    sys.exit(main())

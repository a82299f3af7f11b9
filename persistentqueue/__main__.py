"""``python -m persistentqueue check|repair|pool|move …``: inspect a queue, repair it, fill its pool from outside, move
its segments to other media."""

from __future__ import annotations

import argparse
import sys

from . import PersistentQueueError, check, move_data, repair
from .directory import open_pool
from .pool import SIZE_BYTES_MAX

MIB = 1024 * 1024


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says. The exit status: 0 all is well, 1 there are or were problems, 2 it did not go."""
    parser = argparse.ArgumentParser(prog="python -m persistentqueue", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, what in (
        ("check", "read everything and report what is wrong; changes nothing, also while the queue is in use"),
        ("repair", "keep what is intact, set aside what is not (*.damaged), and report what is lost"),
    ):
        choice = commands.add_parser(command, help=what, description=what)
        _add_path(choice)
    what = "make empty files for segments, also while the queue is in use, or say what the pool has"
    choice = commands.add_parser("pool", help=what, description=what)
    choice.add_argument("action", choices=["fill", "show", "clear"])
    _add_path(choice)
    choice.add_argument("--shared", action="store_true", help="the pool that all queues of PATH share")
    choice.add_argument("--bytes", type=_size, default=256 * MIB, help="fill: until it has so many (%(default)s)")
    choice.add_argument("--file-bytes", type=_size, default=64 * MIB, help="fill: of each file (%(default)s)")
    what = "move the segments of closed queues to other media, or back"
    choice = commands.add_parser("move", help=what, description=what)
    choice.add_argument("path", help="the queue's directory, or the one that they are named in")
    choice.add_argument("names", nargs="*", metavar="name", help="the queues' names")
    to = choice.add_mutually_exclusive_group(required=True)
    to.add_argument("--data-path", help="where to, to a directory of each name there")
    to.add_argument("--back", action="store_true", help="back into the queues' own directories")
    options = parser.parse_args(arguments)
    if options.command == "pool" and options.bytes < options.file_bytes:
        parser.error(f"--bytes, {options.bytes}, is less than a file has, --file-bytes, {options.file_bytes}")
    try:
        problems = {"check": _check, "repair": _repair, "pool": _pool, "move": _move}[options.command](options)
    except (PersistentQueueError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 1 if problems else 0


def _size(text: str) -> int:
    """A number of bytes that a file may have."""
    size_bytes = int(text)
    if not 0 < size_bytes <= SIZE_BYTES_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to {SIZE_BYTES_MAX}")
    return size_bytes


def _add_path(choice: argparse.ArgumentParser) -> None:
    choice.add_argument("path", help="the queue's directory, or the one that it is named in")
    choice.add_argument("name", nargs="?", help="the queue's name")


def _pool(options: argparse.Namespace) -> tuple[str, ...]:
    pool = open_pool(options.path, options.name, shared=options.shared, max_bytes=options.bytes)
    if options.action == "fill":
        for name in pool.clean():
            print(f"removed: {name}")
        for size_bytes in pool.fill(options.bytes, options.file_bytes):
            print(f"made: {size_bytes} bytes")
    elif options.action == "clear":
        print(f"deleted: {pool.shrink(0)} bytes")
    files = pool.files()
    print(f"{len(files)} files, {sum(each.size_bytes for each in files)} bytes")
    return ()


def _move(options: argparse.Namespace) -> tuple[str, ...]:
    left: list[str] = []
    for name in options.names or [None]:
        moved = move_data(options.path, name, data_path=options.data_path)
        print(f"moved: {moved.files} files, {moved.copied_bytes} bytes, from {moved.source} to {moved.target}")
        for place in moved.left:
            print(f"left: {place} is not there, or could not be swept; it may hold files that do not count")
        left += moved.left
    return tuple(left)


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

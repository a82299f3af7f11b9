"""``python -m perf.compare BASE HEAD``: compares two commits of this package, in turn, on the same workloads.

Both commits are checked out beside each other. The harness of the present tree times them round by round. Each round
is a process of its own, and each ratio is taken within a round. Without ``HEAD`` the present tree is measured. A commit
from before the modules were moved into folders can be measured as well: see ``older_trees``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from . import harness
from .contenders import OURS_MANY
from .harness import ROOT
from .studies import tail, tasks, warm
from .workloads import WORKLOADS

_NAMES = ("single", "threads-8", "batch", "plain", "unsynced")
_WARM = "warm"
"""Not a workload: the processor time of Python alone, by the quickest flush of many, as flushes per second."""
_WARM_ROUNDS = 20
_TASKS = "tasks"
"""Not a workload: flushes per second of ``asyncio`` tasks, and of threads beside them."""
_TASK_FLUSHES = 5_000
_TAIL = "tail"
"""Not a workload: how long the slow flushes of a load take that goes on, as flushes of that kind per second."""
_TAIL_SECONDS = 4.0


@contextmanager
def checked_out(commit: str, above: Path) -> Iterator[Path]:
    """Check out the commit in a work tree, and remove the work tree at the end."""
    tree = above.absolute() / commit.replace("/", "-")
    command = ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(tree), commit]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"{commit} cannot be checked out: name a commit of this repository")
    try:
        yield tree
    finally:
        subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)], check=True)


def measure(tree: Path, directory: Path, name: str, scale: float) -> dict[str, float]:
    """Measure one round with the package of a tree, and return the rate of each direction, per second."""
    # ``perf`` is imported before the tree is on the path: the harness is this one, and the queue is that of the tree.
    code = (
        "import sys; from perf.older_trees import alias_moved_modules; sys.path.insert(0, sys.argv[4]); "
        "alias_moved_modules(); from perf.compare import child; child()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(directory.absolute()), name]
    command += [str(scale), str(tree.absolute())]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=directory)
    found: dict[str, float] = json.loads(output.stdout)
    return found


def child() -> None:
    """Measure one round in this process, and print the rates as JSON."""
    import persistentqueue

    directory, name, scale, tree = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), Path(sys.argv[4])
    if Path(persistentqueue.__file__).parent.parent != tree:
        raise SystemExit(f"{tree} has no package persistentqueue: found {persistentqueue.__file__}")
    if name == _WARM:
        with harness.workspace(directory, memory=True) as own:
            found = warm.best(own, max(round(_WARM_ROUNDS * scale), 1))
        print(json.dumps({f"{count:,}, {way}": 1 / seconds for (count, way), seconds in found.items()}))
        return
    if name == _TASKS:
        with harness.workspace(directory, memory=True) as own:
            rates = tasks.rates(own, max(round(_TASK_FLUSHES * scale), tasks.TASKS), 1, tickets=False)
        pairs = {who: {"in": rounds[0][0], "out": rounds[0][1]} for who, rounds in rates.items()}
        print(json.dumps({f"{who}, {way}": each for who, ways in pairs.items() for way, each in ways.items()}))
        return
    if name == _TAIL:
        with harness.workspace(directory) as own:
            parts = tail.parts_of(own, _TAIL_SECONDS * scale, OURS_MANY)
        print(json.dumps({what: 1 / seconds for what, seconds in parts.items()}))
        return
    workload = next(each for each in WORKLOADS if each.name == name).scaled(scale)
    ours = next(iter(workload.entries))
    with harness.workspace(directory, memory=True) as own:
        only = workload._replace(entries={ours: workload.entries[ours]})
        measured = harness.run(only, own, 1)[ours]
    print(json.dumps({way: measured.rates(way)[0] for way in workload.ways}))


def main() -> None:
    """Print a line for each direction of each workload."""
    parser = harness.parser("perf.compare", __doc__, rounds=9)
    parser.add_argument("base")
    parser.add_argument("head", nargs="?")
    names = [*(each.name for each in WORKLOADS), _WARM, _TASKS, _TAIL]
    parser.add_argument("--only", nargs="+", choices=names, default=_NAMES)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    head = options.head or "the present tree"
    headings = ("what", options.base, head, f"{head} is")
    with harness.asked_for(options.directory) as directory, checked_out(options.base, directory) as base:
        if options.head is None:
            _compare(base, ROOT, directory, options, headings)
        else:
            with checked_out(options.head, directory) as tree:
                _compare(base, tree, directory, options, headings)


def _compare(base: Path, head: Path, directory: Path, options: argparse.Namespace, headings: tuple[str, ...]) -> None:
    print(harness.table_head(headings, headings[:1]), flush=True)
    for name in options.only:
        found: dict[Path, list[dict[str, float]]] = {base: [], head: []}
        for number in range(options.rounds):
            for tree in (base, head) if number % 2 else (head, base):
                found[tree].append(measure(tree, directory, name, options.scale))
        for way in found[base][0]:
            before, after = ([each[way] for each in found[tree]] for tree in (base, head))
            found_ratios = [new / old for old, new in zip(before, after, strict=True)]
            cells = (f"{name}, {way}", f"{median(before):,.0f}/s", f"{median(after):,.0f}/s")
            print(harness.table_line((*cells, f"{harness.spread(found_ratios)} ×")), flush=True)


if __name__ == "__main__":
    main()

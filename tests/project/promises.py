"""The declared table of promises: for each promise of the README, the tests and the campaigns that hold it.

``python -m tests.project.promises`` generates ``docs/promises.md`` from it; ``test_promises`` fails when that is stale.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

from .modules import ROOT, first_sentence

PAGE = ROOT / "docs" / "promises.md"
TESTS = ROOT / "tests"


class Promise(NamedTuple):
    """A promise of the README by its first column, the test modules that hold it, and the campaigns."""

    name: str
    tests: tuple[str, ...]
    campaigns: tuple[str, ...]


def _promise(name: str, tests: str, *campaigns: str) -> Promise:
    return Promise(name, tuple(tests.split()), campaigns)


PROMISES = (
    _promise(
        "atomic",
        "unit/engine/commit unit/engine/two_phase unit/recovery/replay unit/recovery/in_doubt unit/recovery/decisions "
        "api/flush_all durability/several_killed durability/import_killed spark/pipeline_killed "
        "predecessors/diskqueue_scenarios "
        "predecessors/diskqueue_weaknesses misuse/identities misuse/copied_locations",
        "random --schedules 100000",
        "exhaustive --operations 3",
        "random --style several --schedules 100000",
    ),
    _promise(
        "consistent",
        "unit/core/state api/state_machine unit/recovery/replay durability/campaigns durability/golden "
        "durability/processes durability/failing_closes durability/producers_killed "
        "predecessors/diskqueue_faults predecessors/diskqueue_kills "
        "predecessors/diskqueue_log misuse/renames misuse/foreign_directories misuse/location_repair misuse/trust "
        "unit/recovery/mounts durability/network_disks "
        "misuse/misuse misuse/surroundings workers/killed",
        "random --schedules 100000",
        "kills --count 5000",
        "workers --kills 2000",
        "random --style renames --schedules 100000",
        "misuse --count 100000",
        "mutants",
    ),
    _promise(
        "isolated",
        "workers/simulated_network unit/serving/service unit/serving/protocol "
        "api/queue api/subscriptions unit/core/availability unit/runtime/open_queue unit/runtime/retries "
        "unit/runtime/dead_letters durability/compat_killed faces/compat faces/aio_cancelled faces/aio_steps "
        "misuse/sessions "
        "misuse/interrupts misuse/alarms misuse/reentry misuse/subinterpreters misuse/errors misuse/command_line "
        "misuse/arguments unit/interprocess/producer_interrupts",
        "interrupts",
        "reentry",
        "interrupts --signals-only --count 100000",
        "random --style retries --schedules 100000",
        "random --style workers --schedules 100000",
    ),
    _promise(
        "durable",
        "unit/engine/commit unit/runtime/group_commit durability/conformance durability/syscalls durability/campaigns "
        "predecessors/diskqueue_failing_disk",
        "cuts --count 300",
        "cuts --workers --count 60",
        "random --faults --schedules 100000",
        "syscalls --count 1000",
    ),
    _promise(
        "never a wrong byte",
        "unit/core/formats unit/core/encryption api/encryption unit/recovery/repair unit/recovery/lost_adoptions "
        "unit/system/bad_pages "
        "durability/flips predecessors/diskqueue_damage misuse/inboxes misuse/shared_inboxes misuse/corners "
        "unit/storage/log unit/storage/segment",
        "flips --bytes 65536",
        "truncate --bytes 2048",
        "fuzz --kind formats --count 1000",
        "fuzz --kind files --count 400",
        "random --style encloses --schedules 100000",
    ),
    _promise(
        "bounded",
        "unit/engine/reader unit/engine/admission unit/engine/compaction unit/engine/compaction_faults "
        "unit/system/quota unit/storage/pool unit/runtime/memory_budget unit/runtime/maintenance durability/full_disk "
        "durability/large predecessors/kahadb_compaction predecessors/linearstore_pool misuse/inbox_limits "
        "misuse/large_inboxes misuse/scarce_resources misuse/scarce_calls misuse/passing_errors "
        "unit/system/path_errors",
        "random --style compacts --schedules 100000",
        "random --faults --schedules 100000",
    ),
)
FOLDERS = ("durability", "misuse", "predecessors")
"""Folders of tests in which each module holds a promise."""


def words_of_readme() -> dict[str, str]:
    """Return the table of promises of the README: the text of each, by its name."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("## What it promises")[2].partition("\n\n|")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([^|]+?) \| (.+?) \|$", f"|{table}", re.MULTILINE)
    return {name: words for name, words in rows if name.strip("-: ")}


def module(name: str) -> Path:
    """Return the file of a test module of the table."""
    folder, _, leaf = name.rpartition("/")
    return TESTS / folder / f"test_{leaf}.py"


def count_tests(path: Path) -> int:
    """Return how many test functions and state machines a module has."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in ast.walk(tree))
    return functions + sum(isinstance(node, ast.Assign) and "TestCase" in ast.unparse(node.value) for node in tree.body)


def page() -> str:
    """Return the index of promises."""
    words = words_of_readme()
    parts = [
        "# Promises, and what holds them\n\n"
        "Made by `python -m tests.project.promises` from the table of promises of the README and from the first\n"
        "sentence of each test module. The campaigns are run by `python -m tests.crash`."
    ]
    for promise in PROMISES:
        lines = [f"## {promise.name}", "", words[promise.name], "", "| tests | how many | what |", "|---|---:|---|"]
        for name in promise.tests:
            path = module(name)
            link = f"[`{path.relative_to(TESTS)}`](../{path.relative_to(ROOT)})"
            lines.append(f"| {link} | {count_tests(path)} | {first_sentence(path)} |")
        lines += ["", "Campaigns: " + ", ".join(f"`{command}`" for command in promise.campaigns) + "."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

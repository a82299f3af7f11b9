"""The table for users of other queues: each line of it runs, for both queues."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "line_by_line.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line[:1] == "|"][2:]
NEEDS = {
    "queue.Queue": "queue",
    "asyncio.Queue": "asyncio",
    "persist-queue": "persistqueue",
    "queuelib": "queuelib",
    "Scrapy": "scrapy",
}
"""Package that each origin's lines need."""


def programs() -> dict[str, tuple[str, str]]:
    """Return their program and the program for this package, by origin."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    origin = ""
    for row in ROWS:
        origin = row[0].strip("`") or origin
        for lines, cell in zip(found.setdefault(origin, ([], [])), row[1:3], strict=True):
            code = re.fullmatch(r"`([^`]+)`", cell)
            assert code, f"a cell is one line of code: {cell}"
            lines.append(code[1])
    return {origin: ("\n".join(theirs), "\n".join(ours)) for origin, (theirs, ours) in found.items()}


PROGRAMS = programs()


def run(code: str, directory: Path, *options: str) -> None:
    """Run the code in a Python of its own, in this directory."""
    if "await " in code:
        code = f"import ast, asyncio\nasyncio.run(eval(compile({code!r}, '', 'exec', ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)))"
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_all_are_there() -> None:
    """The table has lines for each of these packages."""
    assert {origin.partition(",")[0] for origin in PROGRAMS} >= set(NEEDS)


@pytest.mark.parametrize("origin", PROGRAMS)
def test_theirs(origin: str, tmp_path: Path) -> None:
    """The table's lines for the other queue run."""
    needed = NEEDS[origin.partition(",")[0]]
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    run(PROGRAMS[origin][0], tmp_path)


@pytest.mark.parametrize("origin", PROGRAMS)
def test_ours(origin: str, tmp_path: Path) -> None:
    """The table's lines for this package run without a warning."""
    run(PROGRAMS[origin][1], tmp_path, "-W", "error")


def test_scrapy_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapy accepts both settings of the table, and with this package's setting the disk queue is this package's."""
    monkeypatch.chdir(tmp_path)  # Scrapy makes the directory of the job there
    pytest.importorskip("scrapy")
    from scrapy import Spider
    from scrapy.utils.misc import load_object
    from scrapy.utils.test import get_crawler

    used = []
    for program in PROGRAMS["Scrapy"]:
        settings: dict[str, object] = {}
        exec(program, {}, settings)
        used.append(load_object(get_crawler(Spider, settings).settings["SCHEDULER_DISK_QUEUE"]).__module__)
    assert used == ["scrapy.squeues", "persistentqueue.scrapy"]

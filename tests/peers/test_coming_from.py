"""The README's table for those who come from another queue: each line of it runs, theirs and ours."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("\n## Coming from another queue\n")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in SECTION.splitlines() if line[:1] == "|"][2:]
NEEDS = {
    "queue.Queue": "queue",
    "asyncio.Queue": "asyncio",
    "persist-queue": "persistqueue",
    "queuelib": "queuelib",
    "Scrapy": "scrapy",
}
"""What has to be installed for their lines."""


def programs() -> dict[str, tuple[str, str]]:
    """By where one comes from, their program and ours."""
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
    """Run it in a Python of its own, in this directory."""
    if "await " in code:
        code = f"import ast, asyncio\nasyncio.run(eval(compile({code!r}, '', 'exec', ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)))"
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_all_are_there() -> None:
    """Whoever comes from one of these finds his lines."""
    assert {origin.partition(",")[0] for origin in PROGRAMS} >= set(NEEDS)


@pytest.mark.parametrize("origin", PROGRAMS)
def test_theirs(origin: str, tmp_path: Path) -> None:
    """What the table says of the other queue is how that is used."""
    needed = NEEDS[origin.partition(",")[0]]
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    run(PROGRAMS[origin][0], tmp_path)


@pytest.mark.parametrize("origin", PROGRAMS)
def test_ours(origin: str, tmp_path: Path) -> None:
    """What the table says of this one runs, without a warning."""
    run(PROGRAMS[origin][1], tmp_path, "-W", "error")


def test_scrapy_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapy takes the settings, theirs and ours, and with ours the disk queue is ours."""
    monkeypatch.chdir(tmp_path)  # where it makes the job's directory
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

"""The code of each page of the documentation runs: twice, in the order of the page, in one directory.

A fence ``python`` is one program. A fence ``console`` has commands, each of which follows a ``$``. A page on Spark runs
fence by fence (see ``test_documents_spark``), and one on Airflow with the tests of Airflow. Code that only shows a
form stands in a fence ``text``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md") if not {"_build", "_generated"} & {*path.parts})
FENCE = re.compile(r"^(`{3,})(\w+)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)


def code_of(page: Path) -> list[tuple[str, str]]:
    """Return the fences of a page that run: their language and their code, in order."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [(language, code) for _, language, code in found if language in {"python", "console"}]


def is_on_spark(page: Path) -> bool:
    """Return True if the code of the page needs Spark."""
    return any("spark" in code.lower() for _, code in code_of(page))


def is_on_airflow(page: Path) -> bool:
    """Return True if the code of the page needs Airflow."""
    return any("airflow" in code.lower() for _, code in code_of(page))


def run_page(page: Path, directory: Path) -> None:
    """Run the code of a page, with warnings as errors. Each fence is a program of its own."""
    for language, code in code_of(page):
        run_fence(page, language, code, directory)


def run_fence(page: Path, language: str, code: str, directory: Path) -> None:
    """Run one program of a page, with warnings as errors."""
    programs = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONWARNINGS": "error"}
    environment["PYTHONPATH"] = str(ROOT)
    if language == "python":
        command = [sys.executable, "-c", code]
    else:
        lines = [line[2:] for line in code.splitlines() if line.startswith(("$ ", "> "))]
        command = [shutil.which("bash") or "sh", "-ec", "\n".join(lines)]
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{page.name}:\n{code}\n{done.stdout}\n{done.stderr}"


HERE = [
    page for page in [ROOT / "README.md", *PAGES] if code_of(page) and not is_on_spark(page) and not is_on_airflow(page)
]


@pytest.mark.parametrize("page", HERE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_of_the_page_runs_twice(page: Path, tmp_path: Path) -> None:
    """The code of a page runs twice in one directory: a reader that starts again finds no trap."""
    run_page(page, tmp_path)
    run_page(page, tmp_path)

"""The documents are true: every snippet of the README runs, and everything that the documents name exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from persistentqueue import Options

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


ON_SPARK = [snippet for snippet in SNIPPETS if "spark" in snippet]


def run(code: str, directory: Path, *arguments: str) -> None:
    """Run the code in a Python of its own, in the directory, with warnings as errors."""
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [number for number, snippet in enumerate(SNIPPETS) if snippet not in ON_SPARK])
def test_readme_snippet_runs(number: int, tmp_path: Path) -> None:
    """A snippet runs without a warning in an empty directory."""
    run(SNIPPETS[number], tmp_path)


def test_readme_has_snippets() -> None:
    """The pattern that finds snippets finds all of them."""
    assert len(SNIPPETS) == README.count("```python\n") > 0


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "perf/README.md", "docs/glossary.md", "docs/promises.md"]
)
def test_links_lead_somewhere(name: str) -> None:
    """Every relative link in a document leads to a file."""
    document = ROOT / name
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


def test_modules_that_contributing_names_exist() -> None:
    """Every path of a module in CONTRIBUTING leads to a file, from the top or from the package."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`([a-z_/]+\.py)`", text))
    assert len(paths) > 10
    for path in paths:
        assert any((above / path).exists() for above in (ROOT, ROOT / "persistentqueue")), path


def test_settings_table_is_complete() -> None:
    """The README's table names every setting, and no other."""
    named = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    arguments = {"codec", *Options.__dataclass_fields__}
    assert named == arguments


def test_make_targets_exist() -> None:
    """Every ``make`` command that a document names is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"^make (\w+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target

"""The package as others see it: its version, the bounds of its dependencies, its addresses, and what an import loads.

``release/check.py`` builds the distributions and checks them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from configparser import ConfigParser
from datetime import date
from pathlib import Path

import pytest

import persistentqueue
from tests.support.type_checks import lines_of_mypy

from .modules import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
WORKFLOW = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
RECIPE = (ROOT / "release" / "conda" / "meta.yaml").read_text(encoding="utf-8")
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
PLACEHOLDER = re.compile(
    r"example\.(com|org|net)|\b(TODO|FIXME|TBD|OWNER|USER|CHANGEME|YOUR[-_ ]\w+)\b|<(your|owner|user)\b|\byour-"
)
PUBLISHED = [
    *(ROOT / name for name in ("setup.cfg", "README.md", "SECURITY.md", "CODE_OF_CONDUCT.md")),
    *(
        path
        for folder in (".github", "release")
        for path in sorted((ROOT / folder).rglob("*.*"))
        if path.suffix in {".md", ".py", ".yaml", ".yml"}
    ),
]
LOADED = """
__future__ array atexit bisect collections concurrent.futures contextlib contextvars dataclasses datetime errno fcntl
functools heapq itertools json logging mmap operator os pickle queue select signal stat struct sys threading time types
typing weakref zlib
"""
"""Modules of the standard library that ``import persistentqueue`` may load, beside those that these load."""


def settings() -> ConfigParser:
    """Return the content of ``setup.cfg``."""
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def lines(section: str, name: str) -> list[str]:
    """Return the lines of an entry of ``setup.cfg``."""
    return settings()[section][name].split("\n")[1:]


def pythons() -> list[str]:
    """Return the minor versions of Python that the package declares."""
    return re.findall(
        r"^Programming Language :: Python :: (3\.\d+)$", "\n".join(lines("metadata", "classifiers")), re.M
    )


def releases() -> list[tuple[str, str]]:
    """Return the version and the date of each release in the changelog, the newest first."""
    return re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", CHANGELOG, re.MULTILINE)


def test_version_stands_in_one_place() -> None:
    """The metadata and the recipe have the version of ``persistentqueue.__version__``.

    It is that of the newest release, or with unreleased changes that of a later one, under development.
    """
    assert settings()["metadata"]["version"] == "attr: persistentqueue.__version__"
    unreleased = CHANGELOG.partition("## [Unreleased]\n")[2].partition("\n## [")[0].strip()
    released, is_development, _ = persistentqueue.__version__.partition(".dev0")
    assert bool(unreleased) == bool(is_development)
    newest = tuple(map(int, releases()[0][0].split(".")))
    assert (tuple(map(int, released.split("."))) > newest) == bool(is_development)
    assert is_development or released == releases()[0][0]
    assert f'{{% set version = "{persistentqueue.__version__}" %}}' in RECIPE


def test_changelog_keeps_its_form() -> None:
    """The changelog begins with what is unreleased. Dated releases follow, newest first, with the usual headings."""
    headings = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    assert headings == ["[Unreleased]", *(f"[{version}] - {day}" for version, day in releases())]
    versions = [tuple(map(int, version.split("."))) for version, _ in releases()]
    assert versions == sorted(versions, reverse=True)
    days = [date.fromisoformat(day) for _, day in releases()]
    assert days == sorted(days, reverse=True)
    assert set(re.findall(r"^### (.*)$", CHANGELOG, re.MULTILINE)) <= set(KINDS)


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_placeholder_is_published(path: Path) -> None:
    """No file that the public sees first has an address or a name that is still to be filled in."""
    assert PLACEHOLDER.search(path.read_text(encoding="utf-8")) is None


def test_addresses_of_the_project_are_complete() -> None:
    """The metadata has either no address of the project, as long as none is known, or all that people look for."""
    metadata = settings()["metadata"]
    found = {line.partition("=")[0].strip() for line in metadata.get("project_urls", "").split("\n") if line}
    assert found in (set(), {"Source", "Documentation", "Changelog", "Issues"})
    assert "url" not in metadata


@pytest.mark.parametrize(
    "text", ["https://example.com/x", "TODO: the address", "by OWNER/persistentqueue", "<your name>"]
)
def test_placeholders_are_recognized(text: str) -> None:
    """Each kind of placeholder is found."""
    assert PLACEHOLDER.search(text)


def requirements() -> list[str]:
    """Return the requirements of the package and of all extras, without the extras that an extra includes."""
    extras = settings()["options.extras_require"]
    found = [*lines("options", "install_requires"), *(line for name in extras for line in lines(extras.name, name))]
    return [each for each in found if not each.startswith("persistentqueue[")]


@pytest.mark.parametrize("requirement", requirements())
def test_dependencies_have_bounds(requirement: str) -> None:
    """Each dependency has a lower bound, which ``make bounds`` installs; an upper bound is a whole version."""
    assert re.fullmatch(r"[\w-]+(\[\w+\])?>=\d+(\.\d+)*(,<\d+(\.\d+)?)?", requirement)


def test_recipe_agrees_with_the_metadata() -> None:
    """The recipe of conda requires the Python and the packages that the metadata requires, and tries the command. It
    describes the package in the same words."""
    python = settings()["options"]["python_requires"]
    required = [
        f"python {python}",
        *(re.sub(r"([<>])", r" \1", each, count=1) for each in lines("options", "install_requires")),
    ]
    run = re.search(r"^  run:\n((?:    - .*\n)+)", RECIPE, re.MULTILINE)
    assert run is not None
    assert re.findall(r"- (.*)", run[1]) == required
    assert f"    - {lines('options.entry_points', 'console_scripts')[0]}\n" in RECIPE
    assert f'  summary: "{settings()["metadata"]["description"]}"\n' in RECIPE


def test_each_declared_python_is_tested() -> None:
    """The workflow tests each Python that the metadata declares. It tests the bounds on the oldest, and on the newest
    for which the oldest dependencies have wheels."""
    matrices = re.findall(r"python: \[(.*)\]", WORKFLOW)
    assert [re.findall(r'"(.*?)"', matrix) for matrix in matrices] == [pythons(), [pythons()[0], "3.13"]]
    assert settings()["options"]["python_requires"] == f">={pythons()[0]}"
    assert f'target-version = "py{pythons()[0].replace(".", "")}"' in (ROOT / "pyproject.toml").read_text(
        encoding="utf-8"
    )


def test_workflow_runs_targets_that_exist() -> None:
    """Each job of the workflow runs ``.ci/run``, a target of the Makefile, or tests that are there."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"- run: (.*)", WORKFLOW)
    assert ".ci/run" in commands
    for command in commands:
        if target := re.fullmatch(r"make (\w+)", command):
            assert re.search(rf"^{target[1]}:", makefile, re.MULTILINE), command
        for path in re.findall(r"\btests/\S+", command):
            assert (ROOT / path).exists(), path


LIST = """
import sys
for name in sys.argv[1:]:
    try:
        __import__(name)
    except ImportError:
        pass
before = set(sys.modules)
import persistentqueue
print(*sys.modules.keys() - before)
"""


def loaded_after(modules: set[str]) -> list[str]:
    """Return the modules that a new process loads with the package, after it has imported these."""
    command = [sys.executable, "-c", LIST, *sorted(modules)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()


def test_import_loads_what_is_declared() -> None:
    """``import persistentqueue`` loads its own modules, the declared ones, and what these load.

    So an import does not grow unnoticed. It takes no part of an extra, no other interface, and no event loop. The first
    lock loads ``portalocker``, which would take a third of the time.
    """
    tops = {name.partition(".")[0] for name in loaded_after({"zlib_ng.zlib_ng", *LOADED.split()})}
    assert {name for name in tops if not name.startswith("_")} == {"persistentqueue"}
    folders = {name.split(".")[1] for name in loaded_after(set()) if name.startswith("persistentqueue.")}
    assert folders & {"cli", "aio", "spark", "airflow", "compat", "scrapy", "prometheus", "faces"} == set()


def test_each_public_name_is_listed() -> None:
    """``dir`` lists each public name, also before its import. So ``help`` shows it, and an editor completes it."""
    code = "import persistentqueue; print(*set(persistentqueue.__all__) - set(dir(persistentqueue)))"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() == []


def test_a_type_checker_knows_the_public_names(tmp_path: Path) -> None:
    """mypy reports a name that the package does not have, and knows the ones that are imported late."""
    program = "from persistentqueue import Connection, Producr, connect\nreveal_type(connect)\n"
    found = lines_of_mypy(tmp_path, program)
    errors = [line for line in found if ": error:" in line]
    assert len(errors) == 1 and 'has no attribute "Producr"' in errors[0], found
    assert any("SharedQueue[" in line for line in found), found

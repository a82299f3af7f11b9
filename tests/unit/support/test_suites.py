"""Suites: each test module runs in one of them, and the targets of the ``Makefile`` find theirs."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from tests import suites
from tests.suites import APART, ELSEWHERE, ROOT


def _modules(names: str) -> set[Path]:
    """Return the test modules of these names, relative to the root."""
    found: set[Path] = set()
    for path in suites.paths(names):
        whole = ROOT / path.partition("::")[0]
        assert whole.exists(), path
        found |= set(whole.rglob("test_*.py")) if whole.is_dir() else {whole}
    return {path.relative_to(ROOT) for path in found}


def test_a_module_that_no_table_names_runs_under_make_test() -> None:
    """The suite ``test`` leaves out what the other suites run, each module once, and no other module."""
    apart = [_modules(suite.tests) for suite in APART.values()]
    for some, others in combinations(apart, 2):
        assert not some & others
    every = {
        path.relative_to(ROOT) for folder in ("tests", "perf/tests") for path in (ROOT / folder).rglob("test_*.py")
    }
    ignored = [each.partition("=")[2] for each in suites.arguments("test") if each.startswith("--ignore=")]
    run = {path for path in every if not any(path == Path(each) or Path(each) in path.parents for each in ignored)}
    assert run == every - set().union(*apart)
    assert Path("tests/unit/support/test_suites.py") in run


@pytest.mark.parametrize("name", [*APART, *ELSEWHERE])
def test_each_name_is_a_module_or_a_folder(name: str) -> None:
    """The tests of a suite, and those that it leaves out, are there."""
    suite = (APART | ELSEWHERE)[name]
    assert _modules(suite.tests) - _modules(suite.without)


def test_what_covers_runs_under_make_test() -> None:
    """Coverage watches tests of the suite ``test``, and modules of the package."""
    assert not _modules(suites.COVERING) & set().union(*(_modules(suite.tests) for suite in APART.values()))
    for module in suites.COVERED.split():
        path = ROOT.joinpath("persistentqueue", *module.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), module


def test_what_shares_a_spark_and_what_is_divided_is_there() -> None:
    """A test module is not in both tables."""
    assert not _modules(suites.ONE_JAVA) & _modules(suites.DIVIDED)


def test_the_targets_run_suites_that_exist() -> None:
    """Each suite of the ``Makefile`` is in a table, and each table has a target."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:\$\(SUITE\)|-m tests\.suites) ([a-z-]+)", makefile))
    assert named == {"test", *APART, *ELSEWHERE}


def test_an_unknown_suite_is_refused() -> None:
    """The command names the suites, and runs nothing."""
    for arguments in ([], ["lung"]):
        command = [sys.executable, "-m", "tests.suites", *arguments]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        assert ended.stdout == ""
        assert "a suite is one of test long flights kills" in ended.stderr


def test_options_go_to_pytest() -> None:
    """The command becomes pytest, with the tests of the suite and the options behind its name."""
    command = [sys.executable, "-m", "tests.suites", "models", "--collect-only", "-q", "-k", "no_such_test"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "deselected" in ended.stdout
    assert ended.returncode == pytest.ExitCode.NO_TESTS_COLLECTED

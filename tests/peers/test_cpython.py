"""The standard library's own tests of ``queue.Queue``, of each installed Python, on ``compat.Queue``, also shared."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import portalocker
import pytest

import persistentqueue

from . import cpython

SOURCES = Path(persistentqueue.__file__).parents[1]
LEAST_TESTS = {10: 23, 11: 23, 12: 23, 13: 59, 14: 58, 15: 58}
"""Least number of its tests that apply, by the minor version of Python."""


def python_of(minor: int) -> str | None:
    """Return a program of this Python version: this one, one on the path, or one of pyenv; None if there is none."""
    if sys.version_info[:2] == (3, minor):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [str(path) for path in sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python3.{minor}"))]
    on_path = shutil.which(f"python3.{minor}")
    for python in [on_path, *found] if on_path else found:
        if not subprocess.run([python, "-c", "import test.test_queue"], capture_output=True, check=False).returncode:
            return python
    return None


@pytest.mark.parametrize("minor", LEAST_TESTS, ids="3.{}".format)
def test_its_own_tests_pass(minor: int, tmp_path: Path) -> None:
    """Every class of ``test.test_queue`` that applies passes, unmodified, with warnings as errors."""
    python = python_of(minor)
    if python is None:
        pytest.skip(f"no Python 3.{minor} with its tests is installed here")
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "portalocker").symlink_to(Path(portalocker.__file__).parent)  # the only dependency
    done = subprocess.run(
        [python, "-W", "error", "-m", "tests.peers.cpython"],
        cwd=SOURCES,
        env=os.environ | {"PYTHONPATH": f"{SOURCES}{os.pathsep}{beside}", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    output = done.stdout
    assert done.returncode == 0, output
    ran = re.search(r"^ran (\d+), skipped 0$", output, re.MULTILINE)
    assert ran is not None
    assert int(ran[1]) >= LEAST_TESTS[minor]
    assert all(f"left out: {name}: " in output for name in cpython.LEFT_OUT | cpython.OF_SHARED)


def test_what_is_left_out_is_there() -> None:
    """Each exclusion names a class or a test that the suite has."""
    theirs = pytest.importorskip("test.test_queue")
    for name in cpython.LEFT_OUT | cpython.OF_SHARED:
        group, _, test = name.partition(".")
        assert hasattr(getattr(theirs, group), test or "setUp"), name

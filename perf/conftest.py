"""What the benchmarks start from: their sizes, and a directory on the disk.

Without ``--benchmark-enable`` each runs once with smoke values, so that none of them rots. ``PERF_SCALE`` multiplies
the real sizes, ``PERF_DIRECTORY`` chooses the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import workspace
from .workloads import REAL, SMOKE, Sizes


@pytest.fixture(scope="session")
def is_smoke(pytestconfig: pytest.Config) -> bool:
    """Whether this is not about figures."""
    return bool(pytestconfig.getoption("benchmark_disable")) and not pytestconfig.getoption("benchmark_enable")


@pytest.fixture(scope="session")
def sizes(is_smoke: bool) -> Sizes:
    """How much each benchmark does."""
    return SMOKE if is_smoke else REAL.scaled(float(os.environ.get("PERF_SCALE", "1")))


@pytest.fixture
def disk_directory(is_smoke: bool) -> Iterator[Path]:
    """A directory under the current one, or under ``PERF_DIRECTORY``; not under ``/tmp``, which may be no disk."""
    with workspace(Path(os.environ.get("PERF_DIRECTORY", ".")), memory=is_smoke) as directory:
        yield directory

"""Opening a queue of 10 million items: see ``opening``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from persistentqueue import PersistentQueue

from .opening import bare, crash, fill, rows
from .workloads import SMOKE, Sizes

_ROUNDS = 5


@pytest.fixture
def full(disk_directory: Path, sizes: Sizes) -> Path:
    """A queue of many items, closed cleanly."""
    fill(disk_directory / "full", sizes.backlog)
    return disk_directory / "full"


@pytest.mark.parametrize("after", ["clean close", "crash"])
def bench_opening(benchmark: Any, full: Path, sizes: Sizes, after: str) -> None:
    """Opening, in this process; ``python -m perf`` does it in others, and measures the memory that it takes."""
    benchmark.group = "Opening"
    opened: list[PersistentQueue] = []

    def prepare() -> None:
        while opened:
            opened.pop().close()
        if after == "crash":
            crash(full, sizes.singles)

    benchmark.pedantic(lambda: opened.append(PersistentQueue(full)), setup=prepare, rounds=_ROUNDS)
    opened.pop().close()


def bench_bare(benchmark: Any, full: Path, sizes: Sizes) -> None:
    """Reading and checksumming the log that a crash left, by which no opening is faster."""
    benchmark.group = "Opening"
    crash(full, sizes.singles)
    benchmark.pedantic(bare, (full,), rounds=_ROUNDS)


def test_rows(disk_directory: Path) -> None:
    """Opening has two lines in the table: after a clean close, and after a crash."""
    lines = list(rows(disk_directory, SMOKE.backlog, 1))
    assert [row.what.rpartition(" ")[2] for row in lines] == ["close", "crash"]
    assert all(row.ours.endswith("MiB") for row in lines)

"""The workloads under pytest-benchmark, each contender beside the others; tiny sizes unless benchmarks are enabled.

``python -m pytest perf --benchmark-only --benchmark-enable`` times them; the table with the ratios is
``python -m perf``, which lets the contenders take turns. Without benchmarks every workload runs once at its smallest,
so that none rots.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import backlog, compaction, harness, opening
from .workloads import SMOKE, WORKLOADS, Sizes, Workload

TIMED = Sizes(singles=400, batches=20, large=20, backlog=10_000, flood=200_000)
CASES = [
    pytest.param(workload, contender, id=f"{workload.name}-{contender.replace(' ', '_')}")
    for workload in WORKLOADS
    for contender in workload.contenders
]


@pytest.mark.parametrize(("workload", "contender"), CASES)
def bench_put_and_take(workload: Workload, contender: str, benchmark: Any, tmp_path: Path) -> None:
    """Everything that is put is taken, as fast as this contender does it."""
    sizes = SMOKE if benchmark.disabled else TIMED
    with workload.contenders[contender](tmp_path, sizes) as made:

        def put_and_take() -> None:
            made.prepare()
            made.put()
            made.take()

        benchmark.group = workload.what
        benchmark.extra_info["amount"] = made.amount
        benchmark(put_and_take)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_rows_are_complete(workload: Workload, tmp_path: Path) -> None:
    """The runner makes a line in, and a line out, with a ratio to each other contender."""
    rates = harness.run(workload, tmp_path, SMOKE, 2)
    assert {len(times.put_seconds) for times in rates.values()} == {2}
    lines = list(harness.rows(workload, rates))
    assert [line.what.rpartition(", ")[2] for line in lines] == list(workload.bars)
    assert all(line.ratio.count("×") == len(rates) - 1 for line in lines)
    assert all(line.met in {"", "yes", "**no**"} for line in lines)


def test_opening_is_measured(tmp_path: Path) -> None:
    """Opening is measured after a clean close and after a crash, in processes of their own."""
    lines = list(opening.rows(tmp_path, SMOKE.backlog, 1))
    assert [line.what for line in lines] == [
        "Opening 10,000 items after a clean close",
        "Opening 10,000 items after a crash",
    ]
    assert all("MiB" in line.ours for line in lines)


def test_backlog_is_measured(tmp_path: Path) -> None:
    """A backlog has lines for its memory, in, out, and opening; a small one grows the memory by little."""
    lines = list(backlog.rows(tmp_path, SMOKE.flood, 1))
    whats = [line.what.rpartition(", ")[2] for line in lines]
    assert whats == ["memory"] * 2 + ["in", "out"] * 2 + ["Opening 200,000 items"]
    assert lines[0].met == lines[1].met == "yes"


def test_compaction_is_measured(tmp_path: Path) -> None:
    """Compaction is measured for the disk, the room, the traffic beside it, and any order of completion."""
    lines = list(compaction.rows(tmp_path, SMOKE.backlog, 1))
    assert len(lines) == 5
    assert lines[1].met == "yes"

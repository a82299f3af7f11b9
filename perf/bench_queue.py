"""Every workload, for everybody who contends in it, in groups side by side: see ``workloads``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .harness import rows, run, table_line
from .workloads import SMOKE, WORKLOADS, Factory, Sizes, Workload

_ROUNDS = 5
_CONTENDERS = [
    pytest.param(workload, make, id=f"{workload.name}-{name.replace(' ', '-')}")
    for workload in WORKLOADS
    for name, make in workload.contenders.items()
]


@pytest.mark.parametrize(("workload", "make"), _CONTENDERS)
def bench_in(benchmark: Any, disk_directory: Path, sizes: Sizes, workload: Workload, make: Factory) -> None:
    """Putting; what was put is taken out before the next round."""
    benchmark.group = f"{workload.what}, in"
    with make(disk_directory, sizes) as contender:
        is_full = False

        def prepare() -> None:
            nonlocal is_full
            if is_full:
                contender.take()
            contender.prepare()
            is_full = True

        benchmark.pedantic(contender.put, setup=prepare, rounds=_ROUNDS)
        benchmark.extra_info[workload.unit] = contender.amount / benchmark.stats.stats.median if benchmark.stats else 0
        contender.take()


@pytest.mark.parametrize(("workload", "make"), _CONTENDERS)
def bench_out(benchmark: Any, disk_directory: Path, sizes: Sizes, workload: Workload, make: Factory) -> None:
    """Taking what was put before."""
    benchmark.group = f"{workload.what}, out"
    with make(disk_directory, sizes) as contender:

        def prepare() -> None:
            contender.prepare()
            contender.put()

        benchmark.pedantic(contender.take, setup=prepare, rounds=_ROUNDS)
        benchmark.extra_info[workload.unit] = contender.amount / benchmark.stats.stats.median if benchmark.stats else 0


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_table(disk_directory: Path, workload: Workload) -> None:
    """The comparison that ``python -m perf`` prints has a line for each way."""
    lines = [table_line(row) for row in rows(workload, run(workload, disk_directory, SMOKE, 2))]
    assert len(lines) == len(workload.bars)
    assert {line.count("|") for line in lines} == {8}

"""Every workload under pytest-benchmark, with each contender that is installed.

``python -m pytest perf/tests --benchmark-only --benchmark-enable`` times them. Tables with ratios come from
``python -m perf``, in which the contenders take turns. Without benchmarks every workload runs once at its smallest
size, as a test.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ..contenders.peers import is_there
from ..harness import Runner
from ..workloads import WORKLOADS, Workload

SMOKE_SCALE = 0.005
TIMED_SCALE = 0.1
CASES = [
    pytest.param(workload, name, id=f"{workload.name}-{name.replace(' ', '-')}")
    for workload in WORKLOADS
    for name in workload.entries
]


@pytest.mark.parametrize(("workload", "name"), CASES)
def bench_put_and_take(workload: Workload, name: str, benchmark: Any, tmp_path: Path) -> None:
    """Put and take all flushes of the workload with this contender."""
    entry = workload.entries[name]
    if not is_there(entry.contender):
        pytest.skip(f"{name} needs {' and '.join(entry.contender.needs)}: pip install '.[peers]'")
    scaled = workload.scaled(SMOKE_SCALE if benchmark.disabled else TIMED_SCALE)
    with ExitStack() as stack:
        runner = Runner(scaled, entry, tmp_path / "own")
        runner.begin(stack)
        benchmark.group = workload.what
        benchmark.pedantic(runner.round, rounds=1 if benchmark.disabled else 5)
        runner.end()
    measured = runner.measured
    benchmark.extra_info["items"] = measured.items
    assert measured.items > 0 and len(measured.put_seconds) >= 1
    assert len(measured.flush_seconds("in")) >= entry.threads

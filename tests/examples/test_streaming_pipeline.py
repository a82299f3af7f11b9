"""The streaming example: each measurement arrives once, after kills at any moment."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.examples import EXAMPLE, Run

pytestmark = pytest.mark.spark

STREAMING = EXAMPLE.with_name("streaming_pipeline.py")
EVERYWHERE = bool(os.environ.get("EVERY_PLACE"))
RANDOM_KILLS = 6 if EVERYWHERE else 0
SEED = 2013


def test_killed_anywhere_each_measurement_arrives_once(tmp_path: Path) -> None:
    """Killed with its Java after a batch and restarted, it ends with each measurement once, and nothing left to read.

    It leaves only its queues and its checkpoint. Each start takes a Java: only ``make kills`` adds six random moments,
    and one after the last item.
    """
    demo = tmp_path / "a demo"
    moment = random.Random(SEED)
    moments = [("query: started", moment.uniform(0.0, 3.0)) for _ in range(RANDOM_KILLS)]
    for line, seconds in [("query: batch", 0.0), *moments, *[("sensor: all", 0.0)] * EVERYWHERE]:
        with Run(demo, "--items=600", "--pause=0.04", example=STREAMING) as run:
            run.kill_at(line, seconds)
    with Run(demo, "--items=600", "--pause=0.04", example=STREAMING) as run:
        printed = run.finish()
    assert "576 of 600 measurements are clean, 24 were none, 0 are left" in printed
    assert {path.name for path in demo.iterdir()} == {"queues", "checkpoint"}
    assert list((tmp_path / "elsewhere").iterdir()) == []

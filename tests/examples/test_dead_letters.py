"""The example of dead letters: a worker that an item kills continues after a restart, and loses nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from persistentqueue import check

EXAMPLE = Path(__file__).parents[2] / "examples" / "dead_letters.py"


def test_the_worker_goes_on(tmp_path: Path) -> None:
    """The worker is killed three times, then all but two items are done in order, and these two are requeued."""
    command = [sys.executable, "-W", "error", str(EXAMPLE), "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert sum("the worker died" in line for line in lines) == 3
    flushed = " ".join(line.partition(": ")[2] for line in lines if line.startswith("flushed"))
    assert flushed == " ".join([*(f"job {number}" for number in range(20)), "late job", "last job"])
    assert "given up after 2 attempts: late job: it is too late for that" in lines
    assert any(line.startswith("given up after 3 attempts: bomb: delivered 3 times") for line in lines)
    assert lines[-1] == "done by hand: late job bomb"
    assert check(tmp_path, "bomb-jobs.dead").items == 0

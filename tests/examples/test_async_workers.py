"""The example of workers that are tasks: killed in the middle and started again, each job has one result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

from persistentqueue import PersistentQueue
from tests.support.queues import wait_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "async_workers.py"
JOBS, KILLS = 5_000, 3


def start(directory: Path) -> subprocess.Popen[str]:
    """Start the example in a process of its own."""
    command = [sys.executable, "-W", "error", str(EXAMPLE), "--directory", str(directory), f"--jobs={JOBS}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_killed_and_started_again(tmp_path: Path) -> None:
    """After kills at any moment and restarts, no job is lost, and each has one result."""
    chance = Random(1)
    for _ in range(KILLS):
        with start(tmp_path) as running:
            log = tmp_path / "async-jobs" / "log"
            wait_for(lambda log=log: log.exists() and any(log.glob("*.log")))  # type: ignore[misc]
            try:
                running.communicate(timeout=chance.uniform(0.05, 0.5))
            except subprocess.TimeoutExpired:
                running.kill()
    with start(tmp_path) as running:
        printed = running.communicate()[0]
    assert running.returncode == 0
    assert printed == f"{JOBS} results, sum {sum(number**2 for number in range(JOBS))}\n"
    with PersistentQueue(tmp_path, "async-jobs") as queue:
        assert len(queue.subscribe("jobs")) == 0

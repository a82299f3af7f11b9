"""The example of worker processes: the owner is killed, another process takes over, and each job has one result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from persistentqueue import check

EXAMPLE = Path(__file__).parents[2] / "examples" / "worker_processes.py"


def test_another_process_takes_over(tmp_path: Path) -> None:
    """One process is killed as the owner, at least two have owned the queue, and no result is missing or doubled."""
    command = [sys.executable, "-W", "error", str(EXAMPLE), "--directory", str(tmp_path)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        owners = {line.split()[1] for line in lines if line.endswith("owns the queue")}
        assert len(owners) >= 2
        (killed,) = {line.split()[1] for line in lines if line.endswith("dies with a job on hold")}
        assert killed in owners
        assert lines[-1] == "1 of 3 processes killed, 1000 jobs: 0 missing, 0 doubled"
    assert check(tmp_path, "shared-jobs").items == 0

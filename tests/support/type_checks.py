"""Type checks of small programs, as a user's project makes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_CACHE = Path(__file__).parents[2] / ".mypy_cache" / "programs"
"""Cache of mypy for the package and the standard library, which it reads in ten seconds."""


def lines_of_mypy(directory: Path, program: str) -> list[str]:
    """Return the lines that mypy prints of the program. Those of the package itself are for ``make lint``."""
    path = directory / "program.py"
    path.write_text(program, encoding="utf-8")
    words = [sys.executable, "-m", "mypy", "--cache-dir", str(_CACHE), "--config-file=", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if "program.py:" in line]

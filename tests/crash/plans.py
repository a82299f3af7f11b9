"""Plans: which campaigns run together, and how much of each: ``python -m tests.crash plan minute``, for example.

Some campaigns wait for files and processes, so a plan runs several of them at a time. Each prints its output as a whole
when it ends.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import NamedTuple


class Campaign(NamedTuple):
    """A campaign and its size in each plan; None leaves it out.

    In ``command`` stand ``{first}`` for the first seed of the plan, and ``{part}`` for the part of the work that it
    takes.
    """

    command: str
    size: str
    """Option that the size stands behind."""
    minute: int | None = None
    """About a minute on two cores, with each ``make test``."""
    commit: int | None = None
    """Some minutes, with each commit: ``.ci/run``."""
    release: int | None = None
    """Half an hour, before a release and weekly."""
    search: int | None = None
    """An hour and a half, with seeds that no run had before."""


PLANS = Campaign._fields[2:]
# The longest stand first, so that none is left alone at the end.
CAMPAIGNS = (
    Campaign("mutants --jobs 2 --seed {part}", "--parts", None, 3, 1),
    Campaign("interrupts", "--parts", None, 32, 8),
    Campaign("interrupts --only flush --seed 16", "--parts", None, 32, 32),  # another part of the same 32
    Campaign("exhaustive --only 0", "--operations", None, 2, 3),
    Campaign("flips", "--bytes", None, 16_384, 65_536),
    Campaign("reentry --seed {part}", "--parts", None, 32, 4),
    Campaign("syscalls", "--count", None, 300, 1_000),
    Campaign("exhaustive --only 1", "--operations", None, 2, 3),
    Campaign("random --first {first}", "--schedules", 3_000, 15_000, 40_000, 400_000),
    Campaign("random --first {first} --faults", "--schedules", 2_000, 9_000, 25_000, 200_000),
    Campaign("random --first {first} --style several", "--schedules", 1_000, 7_000, 20_000, 80_000),
    Campaign("random --first {first} --style several --faults", "--schedules", None, 3_000, 10_000, 40_000),
    Campaign("random --first {first} --style retries", "--schedules", 500, 2_000, 5_000, 80_000),
    Campaign("random --first {first} --style renames", "--schedules", 500, 3_500, 10_000, 60_000),
    Campaign("random --first {first} --style workers", "--schedules", 100, 950, 2_500, 16_000),
    Campaign("random --first {first} --style pipelines", "--schedules", 1_000, 7_000, 20_000, 80_000),
    Campaign("random --first {first} --style pipelines --faults", "--schedules", None, 3_000, 10_000, 40_000),
    Campaign("random --first {first} --style encloses", "--schedules", 500, 6_500, 20_000, 80_000),
    Campaign("random --first {first} --style encloses --faults", "--schedules", None, 3_000, 10_000, 40_000),
    Campaign("random --first 36", "--schedules", None, 4_000, 12_000),
    Campaign("random --first 7 --style retries", "--schedules", None, 700, 2_000),
    Campaign("truncate", "--bytes", None, 1_024, 2_048),
    Campaign("mutants", "--most", 3),
    Campaign("kills", "--count", 25, 1_525, 5_000),
    Campaign("workers", "--kills", 25, 625, 2_000, 4_000),
    Campaign("cuts", "--count", 3, 102, 300),
    Campaign("cuts --workers", "--count", 2, 21, 60),
    Campaign("misuse --first {first}", "--count", 50, 650, 2_000, 8_000),
    Campaign("misuse --directed", "--repeat", None, 6, 20),
    Campaign("fuzz --kind formats", "--count", None, 300, 1_000),
    Campaign("fuzz --kind files --first {first}", "--count", 5, 125, 400),
    Campaign("interrupts --signals-only", "--count", 50, 3_050, 10_000),
)
_FIRST = {"minute": 0, "commit": 1_000_000, "release": 1_000_000}
_printing = Lock()


def lines_of(plan: str, seed: int) -> list[str]:
    """Return the command lines of a plan. A search begins at ``seed``; otherwise the seed decides the parts."""
    return [
        f"{campaign.command.format(first=_FIRST.get(plan, seed), part=seed)} {campaign.size} {size}"
        for campaign in CAMPAIGNS
        if (size := getattr(campaign, plan)) is not None
    ]


def run_lines(lines: Sequence[str], jobs: int) -> list[str]:
    """Run campaigns, ``jobs`` at a time, and return the command lines of those that failed."""
    pool = ThreadPoolExecutor(jobs)
    try:
        succeeded = list(pool.map(_run, lines))
    finally:  # after Ctrl-C, which the campaigns get as well, those that run print their ends
        pool.shutdown(cancel_futures=True)
    return [line for line, success in zip(lines, succeeded, strict=True) if not success]


def _run(line: str) -> bool:
    """Run a campaign and print its output; return whether it succeeded."""
    _print(f"begun: {line}")
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "tests.crash", *line.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    how = "FAILED" if ended.returncode else "ended"
    _print(f"{how} after {time.monotonic() - began:.0f} s: python -m tests.crash {line}\n{ended.stdout}")
    return ended.returncode == 0


def _print(text: str) -> None:
    with _printing:
        print(text, flush=True)

"""The example of two queues in one transaction: killed in the middle and started again, each item is there once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

from persistentqueue import PersistentQueue, check

EXAMPLE = Path(__file__).parents[2] / "examples" / "chained_queues.py"
ORDERS, KILLS = 400, 6


# Runs the example. After each line that it prints, it waits for a line on stdin.
STEP_BY_STEP = """
import builtins, runpy, sys

write = builtins.print

def write_and_wait(*words, **options):
    write(*words, **options)
    sys.stdin.readline()

builtins.print, sys.argv = write_and_wait, sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def start(directory: Path, *program: str) -> subprocess.Popen[str]:
    """Start the example in a process of its own."""
    command = [sys.executable, *program, str(EXAMPLE), "--directory", str(directory), f"--orders={ORDERS}", "--step=2"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_killed_and_started_again(tmp_path: Path) -> None:
    """After kills at any moment and restarts, each order has one invoice, in the order of the orders."""
    chance = Random(1)
    for _ in range(KILLS):
        with start(tmp_path, "-c", STEP_BY_STEP) as running:
            assert running.stdin is not None and running.stdout is not None
            for _ in range(chance.randrange(1, 30)):
                running.stdout.readline()
                print(file=running.stdin, flush=True)
            running.kill()  # in the next step, or behind it
        with PersistentQueue(tmp_path, "orders") as orders, PersistentQueue(tmp_path, "invoices") as invoices:
            numbers = [json.loads(item)["order"] for item in [*invoices.browse(), *orders.browse()]]
            assert numbers == list(range(ORDERS))
            assert 0 < len(invoices) < ORDERS
    with start(tmp_path) as running:
        printed = running.communicate()[0]
    assert running.returncode == 0
    assert f"0 orders are left, {ORDERS} invoices over " in printed
    with PersistentQueue(tmp_path, "invoices") as invoices:
        assert [json.loads(item)["order"] for item in invoices.browse()] == list(range(ORDERS))
    assert check(tmp_path, "orders").items == 0

"""Processes that move items between queues, killed at every step: each move is whole, in any order of opening."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persistentqueue import PersistentQueue, transaction
from tests.predecessors.test_diskqueue_kills import ENOUGH, Deadly
from tests.support.disks import call_on
from tests.support.queues import IN_CACHE, put
from tests.unit.engine.test_two_phase import contents

from .test_processes import Forks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and signals")

MOVES = ("ab", "cab", "bc")


def tell(ledger: int, root: Path, last: int, half: bool) -> None:
    """Move items under a disk that kills at one step; the ledger gets each move, and the number of steps."""
    deadly = Deadly(last, half)
    settings: dict[str, Any] = {"log_bytes": 4096, "segment_bytes": 2000, "inline_bytes": 100}
    queues = {name: call_on(deadly.disk, PersistentQueue, root, name, **settings) for name in "abc"}
    for name, queue in queues.items():
        put(queue, *[f"{name}{number}".encode() * 30 for number in range(4)])
        os.write(ledger, b"put\n")
    for names in MOVES:
        with transaction(*[queues[name] for name in names]) as (source, *targets):
            for target, item in zip(targets, source.dequeue_many(len(targets)), strict=True):
                target.enqueue(item)
        os.write(ledger, b"moved\n")
        if names == "cab":
            queues["b"].trim()
    for queue in queues.values():
        queue.close()
    os.write(ledger, b"%d\n" % deadly.steps)


def states() -> list[list[list[bytes]]]:
    """Return the contents of the queues after each line of the ledger."""
    queues: dict[str, list[bytes]] = {name: [] for name in "abc"}
    found = [[list(items) for items in queues.values()]]
    for name in queues:
        queues[name] += [f"{name}{number}".encode() * 30 for number in range(4)]
        found.append([list(items) for items in queues.values()])
    for names in MOVES:
        for target in names[1:]:
            queues[target].append(queues[names[0]].pop(0))
        found.append([list(items) for items in queues.values()])
    return found


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """Yield one fork server for all tests."""
    server = Forks()
    with server:
        yield server


@pytest.mark.parametrize("half", [False, True], ids=["between steps", "in the middle of a write"])
def test_killed_at_every_step(tmp_path: Path, forks: Forks, half: bool) -> None:
    """After a kill at any step, each move is in all queues or in none, in any order of opening them."""
    allowed = states()
    lines, code = forks.run(tell, tmp_path / "whole", ENOUGH, half)
    assert code == 0
    steps, resolved = int(lines[-1]), set()
    for last in range(1, steps + 1):
        root = tmp_path / str(last)
        lines, code = forks.run(tell, root, last, half)
        assert code != 0
        done = len(lines)
        for number, order in enumerate(("abc", "cba")):
            copy = root.with_name(f"{last} {number}")
            if root.exists():
                shutil.copytree(root, copy)
            queues = {name: call_on(IN_CACHE, PersistentQueue, copy, name, log_bytes=4096) for name in order}
            resolved |= {queue.recovery.resolved for queue in queues.values()}
            assert contents(*[queues[name] for name in "abc"]) in allowed[done : done + 2], (last, order)
            for queue in queues.values():
                queue.close()
            shutil.rmtree(copy)
        shutil.rmtree(root, ignore_errors=True)
    assert resolved == {True, False, None}

"""Hand-offs on a cluster lose a process at any place: each row still arrives exactly once. See ``test_killed``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from persistentqueue.spark import StageHandoff
from tests.support import machines, spark_kills
from tests.support.cluster import Cluster, cluster
from tests.support.machines import kill
from tests.support.network_disks import SHARED, Gluster, Sshfs
from tests.support.queues import wait_for
from tests.support.spark_kills import (
    CLUSTER_VICTIMS,
    HANDOFF_PLACES,
    ITEMS,
    PER_BATCH,
    TAKE_PLACE,
    TASKS_PLACE,
    Cell,
    processes,
)

KINDS = [kind for kind in (Gluster, Sshfs) if not kind.missing()]
REASON = machines.missing() or ("" if KINDS else "a cluster needs glusterfs-server or sshfs")
ROOT = "/tmp/kills"
"""The directory of the pieces, on the driver's own disk."""
LIFE_SECONDS = 300

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(bool(REASON), reason=REASON or "all is there"),
]
CELLS = {
    victim: [
        *(Cell("handoff", place, victim) for place in HANDOFF_PLACES),
        *(Cell("put", place, victim) for place in (TASKS_PLACE, *HANDOFF_PLACES, TAKE_PLACE)),
    ]
    for victim in CLUSTER_VICTIMS
}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    """Yield a cluster, with the numbers as text files in the shared directory."""
    with cluster(tmp_path, KINDS[0]) as made:
        numbers = made.mounted.brick / "numbers"
        numbers.mkdir()
        for first in range(0, ITEMS, PER_BATCH):
            (numbers / f"{first:03}").write_text("\n".join(map(str, range(first, first + PER_BATCH))))
        yield made


def run(running: Cluster, cells: list[Cell]) -> tuple[int, str]:
    """Start the program until it has done all pieces; return the number of starts, and the printed text."""
    root = running.driver.directory / "kills"
    root.mkdir()
    (root / "cells").write_text("".join(f"{' '.join(cell)}\n" for cell in cells))
    settings = running.settings() | {"spark.executorEnv.PERSISTENTQUEUE_KILLS": ROOT}
    environment = {"SPARK_MODE": "cluster", "PERSISTENTQUEUE_KILLS": ROOT}
    environment |= {spark_kills.SETTINGS: json.dumps(settings), spark_kills.PAYLOADS: SHARED}
    for lives in range(1, len(cells) + 3):
        with (root / "log").open("ab") as log:
            program = running.driver.start(
                *(sys.executable, "-m", "tests.support.spark_kills", ROOT),
                environment=environment,
                stdout=log,
                stderr=log,
                cwd="/",
            )
            try:
                status = program.wait(LIFE_SECONDS)
            finally:
                kill(program)
        if status == 0:
            return lives, (root / "log").read_text()
    pytest.fail(f"it never came to its end:\n{(root / 'log').read_text()}")


def check_cell(running: Cluster, cell: Cell) -> None:
    """Check that each row was taken in one stage, and that nothing is left when the queue opens."""
    directory = running.driver.directory / "kills" / "-".join(cell)
    payloads = running.mounted.brick / "-".join(cell)
    found = json.loads((directory / "struck").read_text())
    assert found["victims"] >= 1 and found["by the program"]
    taken = [json.loads(file.read_text()) for file in (directory / "taken").iterdir()]
    assert sorted(number for rows in taken for number in rows) == list(range(ITEMS))
    with StageHandoff(None, directory, "out", payloads) as handoff:
        assert list(handoff.waiting()) == []
    assert list(payloads.iterdir()) == []


@pytest.mark.parametrize("victim", CLUSTER_VICTIMS)
def test_killed_on_a_cluster_each_row_arrives_once(running: Cluster, victim: str) -> None:
    """After a kill of a process of the driver's machine, or of an executor, at any place, each row is there once."""
    cells = CELLS[victim]
    lives, printed = run(running, cells)
    wait_for(lambda: not list(processes(ROOT)))  # the workers end the executors of a program that is gone
    assert lives == 1 + (0 if victim == "backend" else len(cells))
    for cell in cells:
        try:
            check_cell(running, cell)
        except BaseException as failure:
            failure.add_note(f"{cell}\n{printed}")
            raise

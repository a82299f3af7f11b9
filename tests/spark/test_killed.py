"""Queries and jobs of Spark lose any of their processes at any place: each item still arrives exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import persistentqueue
from persistentqueue import PersistentQueue
from persistentqueue.engine.inbox import PART_SECONDS_KEPT
from persistentqueue.spark import StageHandoff
from tests.support.parts import in_part
from tests.support.queues import drain
from tests.support.spark_kills import (
    BATCH_PLACES,
    HANDOFF_PLACES,
    HANDOFF_VICTIMS,
    ITEMS,
    STREAM_PLACES,
    SUBSCRIPTION,
    TAKE_PLACE,
    TASKS,
    VICTIMS,
    Cell,
    processes,
)
from tests.support.spark_modes import IS_CONNECT

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds its victims in /proc"),
]

SOURCES = os.path.dirname(os.path.dirname(os.path.abspath(persistentqueue.__file__)))
TIMEOUT_SECONDS = 900 if IS_CONNECT else 300
"""Time of one life of the program, for two cells. Each query of Spark Connect starts its own Python processes."""
SURVIVED = {"planner", "executor", "batcher"}
"""Victims whose death the program and its Java survive."""

CHAINS = {
    f"{kind}, {victim}": [Cell(kind, place, victim) for place in places]
    for kind, places in (("stream", list(STREAM_PLACES)), ("batch", BATCH_PLACES))
    for victim in VICTIMS
}
CHAINS |= {
    f"hand-offs, {victim}": [Cell("handoff", place, victim) for place in HANDOFF_PLACES]
    + [Cell("put", place, victim) for place in HANDOFF_PLACES if victim != "batcher"]
    + [Cell("put", TAKE_PLACE, victim) for _ in [None] if victim == "user"]
    for victim in HANDOFF_VICTIMS
}
SOME = [
    Cell("stream", "writing", "executor"),
    Cell("stream", "publishing", "planner"),
    Cell("stream", "published", "jvm"),
]
"""Some of the places, with two starts of Spark: ``EVERY_PLACE=1`` runs all."""
SOME_OF_CONNECT = [
    Cell("stream", "published", "user"),
    Cell("handoff", "payload", "batcher"),
    Cell("handoff", "handed", "user"),
]
"""Some of the places, with one start of a server of Spark Connect."""
if not os.environ.get("EVERY_PLACE"):
    CHAINS = {"some": SOME_OF_CONNECT if IS_CONNECT else SOME}
else:
    CHAINS = {name: chosen for name, cells in CHAINS.items() if (chosen := list(in_part(cells)))}


def run(root: Path, cells: Sequence[Cell]) -> tuple[int, str]:
    """Start the program until it has done all pieces; return the number of starts, and the printed text."""
    (root / "cells").write_text("".join(f"{' '.join(cell)}\n" for cell in cells))
    printed = ""
    for lives in range(1, len(cells) + 3):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.support.spark_kills", str(root)],
            cwd=SOURCES,
            env=os.environ | {"PYTHONPATH": SOURCES, "PERSISTENTQUEUE_KILLS": str(root), "TMPDIR": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                # Java and the processes that it has started hold the pipe as well: at its end, none of them is left.
                printed += process.communicate(timeout=TIMEOUT_SECONDS * max(1.0, len(cells) / 2))[0]
            except BaseException:
                kill_all(root)
                raise
        if process.returncode == 0:
            return lives, printed
    pytest.fail(f"it never came to its end:\n{printed}")


def kill_all(root: Path) -> None:
    """Kill all processes of the program, which inherit its environment."""
    for process in processes(str(root)):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def struck(directory: Path) -> dict[str, Any]:
    """Return the state that was recorded when the process was killed."""
    found: dict[str, Any] = json.loads((directory / "struck").read_text())
    return found


def check_place(cell: Cell, found: dict[str, Any]) -> None:
    """Check that the kill happened at the intended place."""
    assert found["victims"] >= 1
    in_the_program = {"adopting", "ended", TAKE_PLACE} | (
        set() if IS_CONNECT and cell.kind == "handoff" else {*HANDOFF_PLACES}
    )
    assert found["by the program"] == (cell.place in in_the_program)
    assert found["in a task"] == (cell.place == "writing")
    inbox = [os.path.splitext(name)[1] for name in found["out/inbox"]]
    if cell.kind == "stream" and cell.place in {"writing", "publishing", "published", "committed", "offsets"}:
        assert (found["checkpoint/offsets"], found["checkpoint/commits"]) == (["0", "1"], ["0"])
        assert inbox.count(".seg") == (2 if cell.place in {"published", "committed"} else 1)
    if cell.place == "ended":
        assert found["checkpoint/offsets"] == found["checkpoint/commits"] == ["0", "1", "2"]
    if cell.place in {"writing", "publishing"}:
        assert ".tmp" in inbox
    if cell.place == "adopting":
        assert inbox.count(".seg") >= 1
        assert inbox.count(".part") >= TASKS
    if cell.place == "answering":
        assert any(name.endswith(".seg") for name in found["in/inbox"])


def check_cell(directory: Path, cell: Cell) -> None:
    """Check that each item is there once, in order, that nothing waits, and that unused files are swept when old."""
    check_place(cell, struck(directory))
    old = time.time() - PART_SECONDS_KEPT - 60
    for file in (directory / "out" / "inbox").iterdir():
        os.utime(file, (old, old))
    if cell.kind in {"handoff", "put"}:
        check_handoff(directory)
        return
    with PersistentQueue(directory, "out") as out:
        assert drain(out) == [b"%d" % number for number in range(ITEMS)]
    PersistentQueue(directory, "out").close()
    assert list((directory / "out" / "inbox").iterdir()) == []
    assert len(list((directory / "out" / "data").glob("*.seg"))) <= 1
    if cell.kind == "stream":
        with PersistentQueue(directory, "in") as source:
            assert len(source.subscribe(SUBSCRIPTION)) == 0
            assert source.stats().live_bytes == 0
        assert list((directory / "in" / "inbox").iterdir()) == []


def check_handoff(directory: Path) -> None:
    """Check that each row was taken in one stage, and that no stage, file or payload is left when the queue opens."""
    taken = [json.loads(file.read_text()) for file in (directory / "taken").iterdir()]
    assert sorted(number for rows in taken for number in rows) == list(range(ITEMS))
    with StageHandoff(None, directory, "out") as handoff:
        assert list(handoff.waiting()) == []
    assert list((directory / "out+payload").iterdir()) == []
    assert list((directory / "out" / "inbox").iterdir()) == []


@pytest.mark.parametrize("cells", list(CHAINS.values()), ids=list(CHAINS))
def test_killed_anywhere_each_item_arrives_once(
    tmp_path: Path, cells: Sequence[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill of any process at any place of a micro-batch or job, and a restart, each item is in the queue once.

    The input is consumed, and nothing is left over.
    """
    monkeypatch.setenv("PERSISTENTQUEUE_KILLS", str(tmp_path))
    lives, printed = run(tmp_path, cells)
    print(printed)
    assert list(processes(str(tmp_path))) == []
    assert lives == 1 + sum(cell.victim not in SURVIVED for cell in cells)
    for cell in cells:
        try:
            check_cell(cell.directory, cell)
        except BaseException as failure:
            failure.add_note(f"{cell}\n{printed}")
            raise

"""The model of a take-over: ``spin`` searches all its runs for a broken promise, and finds each planted bug.

``take_over.pml`` has the protocol and its promises. ``make models`` runs these tests, and searches within larger bounds
as well. That takes two minutes, and up to 1 GB of memory for each of its two processes.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from shutil import which
from typing import NamedTuple

import pytest

from tests.support.parts import in_part

MODEL = Path(__file__).with_name("take_over.pml")
MISSING = [name for name in ("spin", "gcc") if which(name) is None]
LARGE = os.environ.get("LARGE_MODELS") == "1"

large = pytest.mark.skipif(not LARGE, reason="takes minutes: make models")
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}")


class Bounds(NamedTuple):
    """The bounds of a search: the macros of the model, whose names are these in upper case."""

    items: int = 2
    first: int = 1
    kills: int = 1
    leaves: int = 0
    returns: int = 0
    depth: int = 1
    patient: int = 0
    keeps: int = 0


SMALL = {
    "deaths": Bounds(kills=2),
    "an owner that leaves": Bounds(items=1, leaves=1),
    "an owner with patience": Bounds(kills=0, leaves=2, patient=1),
    "owners that hand over": Bounds(kills=0, leaves=2, keeps=1),
    "owners that hand over, and a death": Bounds(items=1, leaves=2, keeps=1),
    "a hung worker": Bounds(returns=1),
    "two flushes under way": Bounds(items=1, returns=1, depth=2),
}
LARGER = {
    "deaths": Bounds(items=3, first=2, kills=2),
    "an owner that leaves": Bounds(leaves=1),
    "an owner with patience": Bounds(first=2, kills=0, leaves=2, depth=2, patient=1),
    "a hung worker": Bounds(first=2, returns=1),
    "a hung worker, and deaths": Bounds(kills=2, returns=1),
    "owners that hand over, and a death": Bounds(leaves=2, keeps=1),
    "two flushes under way": Bounds(first=2, depth=2),
}
ONCE = "!((consumed&(1<<"
TAKEN_ONCE = "!((consumed&(1<<taken[i])))"
REPORTED_TRUE = "(in_log[me]&(1<<oldest))"
REPORTED_LOST = "!((in_log[me]&(1<<oldest)))"
DURABLE = "(synced&(1<<item))"
ORDER = "hold[0]==i"
NOTHING_LOST = "(waits[s]&&"
GRACE = "!(1)"
HANDED_OVER = "(0||0)"
"""Parts of the assertions that a planted bug breaks."""
ONE_OWNER = ("(writers==1)", "!((failed[i]&(1<<batch[i])))", "!((acknowledged&(1<<item)))")
"""Parts of the assertions that only a second owner breaks: one writes, what failed stays out, one acknowledgement."""
BUGS = {
    # The outcome of a flush under way.
    "NO_NUMBER": (Bounds(), REPORTED_LOST),
    "NUMBER_LATER": (Bounds(), REPORTED_LOST),
    "FORGET_AT_TAKE_OVER": (Bounds(), REPORTED_LOST),
    "FORGET_AT_LEAVE": (SMALL["an owner that leaves"], REPORTED_LOST),
    "SEND_AGAIN": (Bounds(), REPORTED_LOST),
    "ANSWER_FIRST": (Bounds(), REPORTED_TRUE),
    "NOT_STUCK": (SMALL["two flushes under way"], REPORTED_TRUE),
    "NO_SYNC": (Bounds(), DURABLE),
    # One owner.
    "TWO_OWNERS": (Bounds(), ONCE),
    "LEAVE_EARLY": (SMALL["an owner that leaves"], REPORTED_LOST),
    "NO_GRACE": (SMALL["an owner with patience"], GRACE),
    # Holds.
    "NO_FENCE": (SMALL["a hung worker"], ONCE),
    "FENCE_ALONE": (Bounds(), ONCE),
    "HOLD_IN_GROUP": (Bounds(), ONCE),
    "HOLDS_KEPT": (Bounds(), NOTHING_LOST),
    "TO_THE_BACK": (Bounds(items=3, first=2), ORDER),
    "NOT_HANDED_OVER": (SMALL["owners that hand over"], HANDED_OVER),
    "HANDED_OVER_AND_READY": (SMALL["owners that hand over"], TAKEN_ONCE),
    "HANDED_OVER_TWICE": (SMALL["owners that hand over, and a death"], ONCE),
    "KEPT_FOR_THE_DEAD": (SMALL["owners that hand over, and a death"], NOTHING_LOST),
}
"""Each planted bug, with bounds that are large enough for it, and with a part of the assertion that it breaks."""


class Verdict(NamedTuple):
    """The result of a search: the faults that it found, and the number of states that it visited."""

    faults: set[str]
    states: int


def search(
    folder: Path, bounds: Bounds, bug: str | None = None, *, endless: bool = False, goes_on: bool = False
) -> Verdict:
    """Search all runs of the model for a broken assertion, or for an endless run.

    The search ends at the first fault, unless it goes on behind it. Without a fault, require that it was complete.
    """
    macros = [f"-D{name.upper()}={value}" for name, value in bounds._asdict().items()]
    planted = [] if bug is None else [f"-DBUG_{bug}"]
    kind = ["-DNP"] if endless else ["-DSAFETY"]
    optimization = "-O0" if bug is not None else "-O2" if LARGE else "-O1"
    for command in (
        ["spin", "-a", *macros, *planted, str(MODEL)],
        ["gcc", "-w", optimization, *kind, "-DCOLLAPSE", "-DVECTORSZ=2048", "-DMEMLIM=2000", "-o", "pan", "pan.c"],
    ):
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
    searching = ["./pan", "-m100000", "-l" if endless else "-E", *(["-c0"] if goes_on else [])]
    found = subprocess.run(searching, cwd=folder, capture_output=True, text=True, check=False).stdout
    faults = set(re.findall(r"^pan:\d+: (.*) \(at depth \d+\)$", found, re.MULTILINE))
    if not faults:
        assert "errors: 0" in found, found
        assert "not completed" not in found, found
        assert "max search depth too small" not in found, found
    states = re.search(r"(\d+) states, stored", found)
    assert states is not None, found
    return Verdict(faults, int(states[1]))


@pytest.mark.parametrize("bounds", SMALL.values(), ids=SMALL)
def test_promises_hold(tmp_path: Path, bounds: Bounds) -> None:
    """No run breaks a promise: flushes report what is in the log, no item is consumed twice, and none is forgotten."""
    faults, states = search(tmp_path, bounds)
    assert not faults
    assert states > 100_000  # the protocol runs: a model that stops early has few states


@large
@pytest.mark.parametrize("bounds", [pytest.param(LARGER[name], id=name) for name in in_part([*LARGER])])
def test_promises_hold_within_larger_bounds(tmp_path: Path, bounds: Bounds) -> None:
    """No run breaks a promise with more items, and with more that happens in one run."""
    faults, states = search(tmp_path, bounds)
    assert not faults
    assert states > 1_000_000


@pytest.mark.parametrize(
    "bounds", [Bounds(), *(pytest.param(SMALL[name], marks=large, id=name) for name in in_part([*SMALL]))]
)
def test_each_call_returns(tmp_path: Path, bounds: Bounds) -> None:
    """No run is endless, and each run ends where nothing is forgotten: each worker learns the outcome of its flush."""
    assert search(tmp_path, bounds, endless=True).faults == set()


def test_endless_run_is_found(tmp_path: Path) -> None:
    """The search for endless runs finds a worker that asks for the outcome of a lost flush again and again."""
    assert search(tmp_path, Bounds(), "ASKS_FOREVER", endless=True).faults == {"non-progress cycle"}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found(tmp_path: Path, bug: str) -> None:
    """The search finds the planted bug, by the promise that it breaks."""
    bounds, promise = BUGS[bug]
    [fault] = search(tmp_path, bounds, bug).faults
    assert promise in fault


def test_second_owner_breaks_more_promises(tmp_path: Path) -> None:
    """An owner that frees its lock while it writes breaks each promise that needs one owner."""
    faults = search(tmp_path, SMALL["an owner that leaves"], "LEAVE_EARLY", goes_on=True).faults
    for promise in ONE_OWNER:
        assert any(promise in fault for fault in faults), promise


def test_each_bug_of_the_model_is_planted() -> None:
    """Each planted bug of the model has a test, and each test has its bug in the model."""
    assert set(re.findall(r"BUG_([A-Z_]+)", MODEL.read_text(encoding="utf-8"))) == {*BUGS, "ASKS_FOREVER"}
